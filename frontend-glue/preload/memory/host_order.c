/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Waits before this process reads or writes host memory itself, in the order of a stream; and the
 * order of blocking streams around what it does in the legacy one.
 */
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#define TIMING 0u /* cudaEventDefault */

/* By an event: CUDA does not promise that a wait for a stream includes the streams that work in it
 * comes after. A wait for a blocking stream does not include the legacy one (H200).
 * cudaDeviceSynchronize() would not do: streams that are not ordered with this one may wait for
 * what this thread does next, and captures would be invalidated. */
static int wait_by_event(void *stream)
{
    struct ibx_kept_event own;
    if (ibx_frontend_event_take(&own))
        return ibx_frontend_device_wait_within();
    int rc = ibx_frontend_event_record(own.event, stream);
    if (!rc)
        rc = cudaEventSynchronize(own.event);
    ibx_frontend_event_give_back(&own, !rc);
    return rc || !ibx_frontend_host_gone(stream) ? rc : ibx_frontend_fail(CUDA_UNKNOWN);
}

/* Calls make(stream) on the stream's device: an event belongs to the device on which it is made. */
static int on_its_device(int (*make)(void *stream), void *stream)
{
    const int here = ibx_frontend_current_device(), there = ibx_frontend_device_of_stream(stream);
    int rc = there == here ? CUDA_SUCCESS : cudaSetDevice(there);
    if (rc)
        return rc;
    rc = make(stream);
    const int back = there == here ? CUDA_SUCCESS : cudaSetDevice(here);
    return rc ? rc : back;
}

/* In the legacy stream the event comes after all work that blocking streams had, too. */
static int wait_and_tell(void *stream)
{
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    const uint64_t in_legacy = calls ? calls->legacy_left() : 0;
    const uint64_t all = calls ? calls->all_left() : 0;
    const int mode = ibx_frontend_relax(), rc = on_its_device(wait_by_event, stream);
    ibx_frontend_relax_end(mode);
    if (rc || !calls)
        return rc;
    calls->legacy_over(in_legacy);
    if ((uintptr_t)stream <= 1)
        calls->all_over(all);
    return CUDA_SUCCESS;
}

/* If only non-blocking streams are captured, an event in the legacy stream is permitted, in each
 * mode of the captures. Otherwise it is an error that ends them, as any command there is (H200). */
int ibx_frontend_wait_in_order(void *stream)
{
    int rc;
    if (ibx_frontend_forbidden(&rc))
        return rc;
    if ((uintptr_t)stream > 1 &&
        (!ibx_frontend_stream_blocks(stream) || ibx_frontend_captures(stream) ||
         ibx_frontend_knows(IBX_FRONTEND_LEGACY_RESTS, 0, NULL)))
        return ibx_frontend_stream_wait(stream);
    return wait_and_tell(stream);
}

/* Whether no stream has work that is ordered with what is in this one: it is blocking. */
static bool all_rests(const void *stream)
{
    return ibx_frontend_stream_blocks(stream) &&
           ibx_frontend_knows(IBX_FRONTEND_ALL_RESTS, 0, NULL);
}

int ibx_frontend_wait_for_work(void *stream)
{
    return all_rests(stream) || !ibx_frontend_plugin() ? CUDA_SUCCESS
                                                       : ibx_frontend_wait_in_order(stream);
}

/* Whether the legacy stream puts a command in the stream in no order. */
static bool orders_nothing(const void *stream)
{
    return !ibx_frontend_stream_blocks(stream) || all_rests(stream) ||
           ((uintptr_t)stream > 1 && ibx_frontend_knows(IBX_FRONTEND_LEGACY_RESTS, 0, NULL));
}

/* A wait for a blocking stream includes an event that was recorded there behind the legacy stream's
 * work only if the event has a time (H200). */
static int record_event(void *stream)
{
    void *event = NULL;
    int rc = CALL_NEXT(cudaEventCreateWithFlags, &event, TIMING);
    if (rc)
        return rc;
    rc = cudaEventRecord(event, stream);
    cudaEventDestroy(event);
    return rc;
}

int ibx_frontend_order_work(void *stream)
{
    int rc;
    if (orders_nothing(stream))
        return CUDA_SUCCESS;
    if (ibx_frontend_forbidden(&rc))
        return rc;
    const int mode = ibx_frontend_relax();
    rc = on_its_device(record_event, stream);
    ibx_frontend_relax_end(mode);
    return rc;
}

int ibx_frontend_order_legacy(void *stream)
{
    return (uintptr_t)stream > 1 ? CUDA_SUCCESS : ibx_frontend_order_work(stream);
}
