/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Events and streams, for fake_frontend.c: nothing is ever under way. */
#include "frontend-glue/preload/exported.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

int ibx_frontend_event_take(struct ibx_kept_event *own)
{
    static char made;
    *own = (struct ibx_kept_event){.event = &made};
    return CUDA_SUCCESS;
}

void ibx_frontend_event_give_back(const struct ibx_kept_event *own, bool good)
{
    (void)own, (void)good;
}

int cudaEventRecord(void *event, void *stream)
{
    (void)event, (void)stream;
    return CUDA_SUCCESS;
}

int ibx_frontend_event_ask(void *event)
{
    (void)event;
    return CUDA_SUCCESS;
}

int cudaEventSynchronize(void *event)
{
    (void)event;
    return CUDA_SUCCESS;
}

int cudaStreamCreateWithFlags(void **stream, unsigned flags)
{
    static char made;
    (void)flags;
    *stream = &made;
    return CUDA_SUCCESS;
}

int cudaStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    (void)stream, (void)event, (void)flags;
    return CUDA_SUCCESS;
}
