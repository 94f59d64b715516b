/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Waits before this process reads or writes host memory itself, in the order of a stream.
 */
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#define NO_TIMING 2u /* cudaEventDisableTiming */

/* By an event: CUDA does not promise that a wait for a stream includes the streams that work in it
 * comes after. A wait for a blocking stream does not include the legacy one (H200).
 * cudaDeviceSynchronize() would not do: streams that are not ordered with this one may wait for
 * what this thread does next, and captures would be invalidated. */
static int wait_by_event(void *stream)
{
    void *event = NULL;
    if (CALL_NEXT(cudaEventCreateWithFlags, &event, NO_TIMING))
        return cudaDeviceSynchronize();
    int rc = cudaEventRecord(event, stream);
    if (!rc)
        rc = cudaEventSynchronize(event);
    cudaEventDestroy(event);
    return rc || !ibx_frontend_host_gone(stream) ? rc : ibx_frontend_fail(CUDA_UNKNOWN);
}

/* An event belongs to the device on which it is made. */
static int wait_on_its_device(void *stream)
{
    const int here = ibx_frontend_current_device(), there = ibx_frontend_device_of_stream(stream);
    int rc = there == here ? CUDA_SUCCESS : cudaSetDevice(there);
    if (rc)
        return rc;
    rc = wait_by_event(stream);
    const int back = there == here ? CUDA_SUCCESS : cudaSetDevice(here);
    return rc ? rc : back;
}

/* While any stream is captured, an event in the legacy stream could end the capture. */
int ibx_frontend_wait_in_order(void *stream)
{
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    const bool legacy = (uintptr_t)stream <= 1;
    int rc;
    if (ibx_frontend_forbidden(&rc))
        return rc;
    if (legacy ? ibx_frontend_capturing()
               : !ibx_frontend_stream_blocks(stream) || ibx_frontend_captures(stream) ||
                     ibx_frontend_knows(IBX_FRONTEND_LEGACY_RESTS, 0, NULL))
        return ibx_frontend_stream_wait(stream);
    const uint64_t left = calls ? calls->legacy_left() : 0;
    const int mode = ibx_frontend_relax();
    rc = wait_on_its_device(stream);
    ibx_frontend_relax_end(mode);
    if (!rc && calls)
        calls->legacy_over(left);
    return rc;
}
