/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The plugin has GVirtuS's requests wait for copies that are under way in the background. It cannot
 * make them query without waiting, or return what became of those copies: these calls do.
 */
#include "frontend-glue/preload/internal.h"

int cudaStreamSynchronize(void *stream)
{
    return ibx_frontend_waited(CALL_NEXT(cudaStreamSynchronize, stream), (uintptr_t)stream);
}

int cudaStreamQuery(void *stream)
{
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    if (calls && calls->pending((uintptr_t)stream))
        return CUDA_NOT_READY;
    return ibx_frontend_waited(CALL_NEXT(cudaStreamQuery, stream), (uintptr_t)stream);
}

int cudaEventSynchronize(void *event)
{
    return ibx_frontend_waited(CALL_NEXT(cudaEventSynchronize, event), 0);
}

int cudaEventQuery(void *event)
{
    return ibx_frontend_waited(CALL_NEXT(cudaEventQuery, event), 0);
}

int cudaDeviceSynchronize(void)
{
    return ibx_frontend_waited(CALL_NEXT(cudaDeviceSynchronize), 0);
}
