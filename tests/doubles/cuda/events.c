/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A double of CUDA's driver: events. */
#include "tests/doubles/cuda/streams.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NO_TIMING    2u  /* CU_EVENT_DISABLE_TIMING */
#define INTERPROCESS 4u  /* CU_EVENT_INTERPROCESS */
#define KIND         0xe /* of handles */
#define NOT_MAPPED   205 /* CUDA_ERROR_MAP_FAILED */

struct event {
    struct event *next;    /* of all */
    struct stream *stream; /* NULL: not recorded */
    unsigned job;
    unsigned flags;
    int device;
    struct shared_event *shared; /* NULL: no other process may have it */
    int fd;
    bool opened;
};

static struct event *events;

bool shared_event_done(const struct shared_event *event, unsigned times)
{
    return (int)(event->done - times) >= 0 || (kill(event->process, 0) && errno == ESRCH);
}

void wait_a_moment(void)
{
    pthread_mutex_unlock(&mutex);
    usleep(200);
    pthread_mutex_lock(&mutex);
}

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

/* `fd` is of the shared state, and belongs to the event from now on; -1: it is not shared. NULL: no
 * memory. */
static struct event *event_new(unsigned flags, int fd)
{
    struct event *event = calloc(1, sizeof(*event));
    void *shared =
        event && fd >= 0 ? mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (!event || (fd >= 0 && shared == MAP_FAILED)) {
        free(event);
        return NULL;
    }
    *event = (struct event){.next = events,
                            .flags = flags,
                            .device = current->device,
                            .shared = fd >= 0 ? shared : NULL,
                            .fd = fd};
    events = event;
    stats.events++;
    return event;
}

static void event_free(struct event *event)
{
    if (event->fd >= 0)
        close(event->fd);
    free(event); /* a job may still write to the shared state */
    stats.events--;
}

EXPORT bool ibx_double_is_event(const void *handle)
{
    pthread_mutex_lock(&mutex);
    const struct event *event = events;
    while (event && event != handle)
        event = event->next;
    pthread_mutex_unlock(&mutex);
    return event;
}

EXPORT int cuEventCreate(void **handle, unsigned flags)
{
    int code = enter("cuEventCreate");
    if (code)
        return code;
    const bool shares = flags & INTERPROCESS;
    const int fd = shares ? memfd_create("event", MFD_CLOEXEC) : -1;
    const bool good = !shares || (fd >= 0 && !ftruncate(fd, PAGE));
    struct event *event = good ? event_new(flags, fd) : NULL;
    if (!event && fd >= 0)
        close(fd);
    if (event)
        *handle = event;
    return leave(event ? SUCCESS : OUT_OF_MEMORY);
}

EXPORT int cuIpcGetEventHandle(struct ipc_handle *handle, void *of)
{
    int code = enter("cuIpcGetEventHandle");
    if (code)
        return code;
    const struct event *event = event_of(of);
    if (!event || !event->shared || event->opened)
        return leave(INVALID_HANDLE);
    *handle = ipc_handle_of(KIND, event->fd, PAGE, event->device);
    return leave(SUCCESS);
}

/* Makes another event each time. */
EXPORT int cuIpcOpenEventHandle(void **opened, struct ipc_handle handle)
{
    int code = enter("cuIpcOpenEventHandle");
    if (code)
        return code;
    const int fd = ipc_handle_open(&handle, KIND);
    if (handle.kind == KIND && handle.process == getpid() && fd >= 0) {
        close(fd);
        return leave(INVALID_CONTEXT);
    }
    struct event *event = fd < 0 ? NULL : event_new(INTERPROCESS, fd);
    if (!event) {
        if (fd >= 0)
            close(fd);
        return leave(NOT_MAPPED);
    }
    event->opened = true;
    *opened = event;
    return leave(SUCCESS);
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
    capture_forgets(handle);
    event_free(handle);
    return leave(SUCCESS);
}

static bool is_done(const struct event *event)
{
    if (event->shared)
        return shared_event_done(event->shared, event->shared->recorded);
    return !event->stream || (int)(event->stream->done - event->job) >= 0;
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
    if (event->shared) {
        event->shared->process = getpid();
        marker->records = event->shared;
        marker->times = ++event->shared->recorded;
    }
    marker->idle = !is_legacy(stream) && (event->flags & NO_TIMING) != 0;
    capture_records(stream_handle, handle);
    submit(stream, marker);
    event->stream = stream;
    event->job = stream->submitted;
    return leave(SUCCESS);
}

EXPORT int cuEventQuery(void *handle)
{
    int code = enter_event("cuEventQuery", handle);
    if (code)
        return code;
    const struct event *event = event_of(handle);
    if (!event)
        return leave(INVALID_HANDLE);
    return leave(is_done(event) ? SUCCESS : IBX_CUDA_NOT_READY);
}

EXPORT int cuEventSynchronize(void *handle)
{
    int code = enter_event("cuEventSynchronize", handle);
    if (code)
        return code;
    const struct event *event = event_of(handle);
    if (!event)
        return leave(INVALID_HANDLE);
    stats.event_waits++;
    struct shared_event *shared = event->shared;
    if (shared) {
        const unsigned times = shared->recorded;
        while (!shared_event_done(shared, times))
            wait_a_moment();
    } else if (event->stream) {
        wait_for(event->stream, event->job);
    }
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
    if (stream && (code = capture_waits(handle, event_handle)))
        return leave(code);
    struct job *marker = stream ? job_new() : NULL;
    if (!marker)
        return leave(stream ? OUT_OF_MEMORY : INVALID_HANDLE);
    if (event->shared && !event->opened && stream->device >= 0 && stream->device != event->device)
        raise(SIGSEGV); /* as driver 580 does */
    if (event->shared) {
        marker->awaits = event->shared;
        marker->times = event->shared->recorded;
    } else if (event->stream) {
        marker->needs[event->stream->number] = event->job;
    }
    marker->idle = !is_legacy(stream) && is_done(event);
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
        event_free(gone);
    }
}
