/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A double of CUDA's driver: events. */
#include "tests/doubles/cuda/streams.h"

#include <stdlib.h>
#include <string.h>

struct event {
    struct event *next;    /* of all */
    struct stream *stream; /* NULL: not recorded */
    unsigned job;
    unsigned flags;
    int device;
};

static struct event *events;

/* NULL: there is no handle. */
static struct event *event_of(const void *handle)
{
    struct event *event = events;
    while (event && event != handle)
        event = event->next;
    if (handle && !event)
        no_handle("event", handle);
    return handle ? event : NULL;
}

EXPORT int cuEventCreate(void **handle, unsigned flags)
{
    int code = enter("cuEventCreate");
    if (code)
        return code;
    struct event *event = calloc(1, sizeof(*event));
    if (!event)
        return leave(OUT_OF_MEMORY);
    event->next = events;
    event->flags = flags;
    event->device = current->device;
    *handle = events = event;
    stats.events++;
    return leave(SUCCESS);
}

/* Of an event with the flag CU_EVENT_INTERPROCESS. What it returns no process of one's own opens.
 */
EXPORT int cuIpcGetEventHandle(void *bytes, void *handle)
{
    int code = enter("cuIpcGetEventHandle");
    if (code)
        return code;
    const struct event *event = event_of(handle);
    memset(bytes, 0x5a, 64);
    return leave(event && event->flags & 4 ? SUCCESS : INVALID_HANDLE);
}

EXPORT int cuEventDestroy_v2(void *handle)
{
    pthread_mutex_lock(&mutex);
    struct event **at = &events;
    while (*at && *at != handle)
        at = &(*at)->next;
    stats.lost_events += !*at;
    if (!*at)
        return leave(INVALID_HANDLE);
    *at = (*at)->next;
    free(handle);
    stats.events--;
    return leave(SUCCESS);
}

EXPORT int cuEventRecord(void *handle, void *stream_handle)
{
    int code = enter("cuEventRecord");
    if (code)
        return code;
    struct event *event = event_of(handle);
    struct stream *stream = stream_of(stream_handle);
    if (!event)
        return leave(INVALID_HANDLE);
    if (stream && stream->device >= 0 && stream->device != event->device)
        return leave(INVALID_HANDLE);
    struct job *marker = stream ? job_new() : NULL;
    if (!marker)
        return leave(stream ? OUT_OF_MEMORY : INVALID_HANDLE);
    submit(stream, marker);
    event->stream = stream;
    event->job = stream->submitted;
    return leave(SUCCESS);
}

EXPORT int cuEventQuery(void *handle)
{
    int code = enter_unsafe("cuEventQuery");
    if (code)
        return code;
    const struct event *event = event_of(handle);
    if (!event)
        return leave(INVALID_HANDLE);
    bool done = !event->stream || (int)(event->stream->done - event->job) >= 0;
    return leave(done ? SUCCESS : IBX_CUDA_NOT_READY);
}

EXPORT int cuEventSynchronize(void *handle)
{
    int code = enter_unsafe("cuEventSynchronize");
    if (code)
        return code;
    const struct event *event = event_of(handle);
    if (!event)
        return leave(INVALID_HANDLE);
    stats.event_waits++;
    if (event->stream)
        wait_for(event->stream, event->job);
    stats.event_waits--;
    return waited(leave(sticky()));
}

EXPORT int cuStreamWaitEvent(void *handle, void *event_handle, unsigned flags)
{
    (void)flags;
    int code = enter("cuStreamWaitEvent");
    if (code)
        return code;
    const struct event *event = event_of(event_handle);
    struct stream *stream = stream_of(handle);
    if (!event)
        return leave(INVALID_HANDLE);
    struct job *marker = stream ? job_new() : NULL;
    if (!marker)
        return leave(stream ? OUT_OF_MEMORY : INVALID_HANDLE);
    if (event->stream)
        marker->needs[event->stream - streams] = event->job;
    submit(stream, marker);
    return leave(SUCCESS);
}

void events_forget(int device)
{
    struct event **at = &events;
    while (*at) {
        struct event *gone = *at;
        if (gone->device != device) {
            at = &gone->next;
            continue;
        }
        *at = gone->next;
        free(gone);
        stats.events--;
    }
}
