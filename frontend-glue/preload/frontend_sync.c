/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Calls that wait for streams or ask about them. The plugin has GVirtuS's requests come after the
 * copies that are under way in the background; what it cannot do is to say so without waiting, and
 * to tell what became of them.
 */
#include "frontend-glue/preload/frontend_internal.h"

EXPORTED int cudaStreamQuery(void *stream);
EXPORTED int cudaEventSynchronize(void *event);
EXPORTED int cudaEventQuery(void *event);
EXPORTED int cudaGetLastError(void);
EXPORTED int cudaPeekAtLastError(void);

/* An error of this thread's calls that the back end knows of in another thread, or not at all. */
static _Thread_local int last;

int ibx_frontend_outcome(int rc, uint64_t stream)
{
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    if (rc || !calls)
        return rc;
    rc = calls->failure(stream);
    if (rc)
        last = rc;
    return rc;
}

int ibx_frontend_refuse(int rc)
{
    last = rc;
    return rc;
}

/* GVirtuS's, of one pointer. */
static int ask(_Atomic(void *) *next, const char *symbol, void *about)
{
    int (*call)(void *);
    *(void **)&call = ibx_frontend_gvirtus(next, symbol);
    return call ? call(about) : CUDA_NOT_SUPPORTED;
}

static int ask_for_nothing(_Atomic(void *) *next, const char *symbol)
{
    int (*call)(void);
    *(void **)&call = ibx_frontend_gvirtus(next, symbol);
    return call ? call() : CUDA_NOT_SUPPORTED;
}

int cudaStreamSynchronize(void *stream)
{
    static _Atomic(void *) next;
    return ibx_frontend_outcome(ask(&next, "cudaStreamSynchronize", stream), (uintptr_t)stream);
}

int cudaStreamQuery(void *stream)
{
    static _Atomic(void *) next;
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    if (calls && calls->pending((uintptr_t)stream))
        return CUDA_NOT_READY;
    return ibx_frontend_outcome(ask(&next, "cudaStreamQuery", stream), (uintptr_t)stream);
}

int cudaEventSynchronize(void *event)
{
    static _Atomic(void *) next;
    return ibx_frontend_outcome(ask(&next, "cudaEventSynchronize", event), 0);
}

int cudaEventQuery(void *event)
{
    static _Atomic(void *) next;
    return ibx_frontend_outcome(ask(&next, "cudaEventQuery", event), 0);
}

int cudaDeviceSynchronize(void)
{
    static _Atomic(void *) next;
    return ibx_frontend_outcome(ask_for_nothing(&next, "cudaDeviceSynchronize"), 0);
}

int cudaGetLastError(void)
{
    static _Atomic(void *) next;
    int rc = ask_for_nothing(&next, "cudaGetLastError"), told = last;
    last = CUDA_SUCCESS;
    return rc ? rc : told;
}

int cudaPeekAtLastError(void)
{
    static _Atomic(void *) next;
    int rc = ask_for_nothing(&next, "cudaPeekAtLastError");
    return rc ? rc : last;
}
