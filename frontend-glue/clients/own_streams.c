/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Streams and events of the back end itself. */
#include "frontend-glue/clients/clients.h"

/* NULL: there is none. */
static void *make_stream(unsigned flags)
{
    int (*make)(void **stream, unsigned flags) = NULL;
    void *stream = NULL;
    *(void **)&make = ibx_back_end_runtime("cudaStreamCreateWithFlags");
    if (make && !make(&stream, flags))
        return stream;
    ibx_back_end_forget_error();
    return NULL;
}

void ibx_own_stream_leave(void *stream)
{
    int (*destroy)(void *of) = NULL;
    *(void **)&destroy = ibx_back_end_runtime("cudaStreamDestroy");
    if (destroy)
        destroy(stream);
}

void *ibx_own_stream_begin(void)
{
    return make_stream(IBX_STREAM_NON_BLOCKING);
}

void ibx_own_stream_end(const struct ibx_cuda *cuda, void *stream)
{
    cuda->stream_synchronize(stream);
    ibx_own_stream_leave(stream);
}

/* An event in the legacy stream itself would come behind the work of all blocking streams, and
 * delay their later work; a wait for the legacy stream would wait for all of these, too. A new
 * blocking stream is ordered with the legacy one only. */
void *ibx_own_stream_behind_legacy(void)
{
    return make_stream(0);
}

void *ibx_own_event_behind_legacy(const struct ibx_cuda *cuda)
{
    void *event = NULL, *stream = ibx_own_stream_behind_legacy();
    if (stream && cuda->event_create(&event, IBX_CUDA_EVENT_DISABLE_TIMING))
        event = NULL;
    if (event && cuda->event_record(event, stream)) {
        cuda->event_destroy(event);
        event = NULL;
    }
    if (stream)
        ibx_own_stream_leave(stream);
    return event;
}
