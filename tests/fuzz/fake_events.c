/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Events and streams, for fake_frontend.c: nothing is ever under way. */
#include "frontend-glue/preload/exported.h"
#include "frontend-glue/preload/preload.h"

int cudaEventCreateWithFlags(void **event, unsigned flags)
{
    static char made;
    (void)flags;
    *event = &made;
    return CUDA_SUCCESS;
}

int cudaEventRecord(void *event, void *stream)
{
    (void)event, (void)stream;
    return CUDA_SUCCESS;
}

int cudaEventQuery(void *event)
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
