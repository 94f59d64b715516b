/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The end of a device's context and of a stream, of which every folder keeps something. */
#include "frontend-glue/preload/memory/device_objects.h"
#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/kernels/kernels.h"
#include "frontend-glue/preload/math_libraries/math_libraries.h"
#include "frontend-glue/preload/memory/host_pools.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

/* As natively, a reset ends all that was made on the device. With several devices it is not known
 * here to which one most handles belong, so these are dropped only if there is one device. */
int cudaDeviceReset(void)
{
    if (ibx_frontend_unloads())
        return CUDA_UNLOADING;
    ibx_frontend_print_all();
    ibx_frontend_managed_resets();
    const int rc = CALL_NEXT(cudaDeviceReset);
    ibx_frontend_variables_reset();
    ibx_frontend_graph_reset();
    ibx_frontend_reach_reset();
    ibx_math_contents_lose();
    if (!rc) {
        ibx_frontend_peers_reset(ibx_frontend_current_device());
        ibx_frontend_kept_events_reset(ibx_frontend_current_device());
        ibx_frontend_objects_reset(ibx_frontend_current_device());
        ibx_frontend_host_reset(ibx_frontend_current_device());
        ibx_frontend_pools_reset(ibx_frontend_current_device());
        ibx_frontend_things_reset(ibx_frontend_current_device());
        ibx_frontend_owned_reset(ibx_frontend_current_device());
        ibx_frontend_device_memory_reset(ibx_frontend_current_device());
        ibx_frontend_host_memory_reset(ibx_frontend_current_device());
        ibx_host_pools_reset(ibx_frontend_current_device());
    }
    if (!rc && ibx_frontend_one_device()) {
        ibx_frontend_captures_reset();
        ibx_frontend_streams_reset();
        ibx_frontend_managed_reset();
        ibx_frontend_managed_variables_reset();
        ibx_frontend_opened_reset();
    }
    return rc;
}

/* Before the call, forgets all that is known of the stream: as soon as the call is made, another
 * stream may get the same handle. */
int cudaStreamDestroy(void *stream)
{
    if (ibx_frontend_unloads())
        return CUDA_UNLOADING;
    ibx_frontend_owned_gone(OWNED_STREAM, stream);
    ibx_math_settings_stream_ends((uintptr_t)stream);
    return ibx_frontend_stream_destroy(stream);
}
