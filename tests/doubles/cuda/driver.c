/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A double of CUDA's driver: streams, events and copies. */
#include "tests/doubles/cuda/internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STREAMS     34
#define FIXED       3 /* the legacy one of device 0, the one per thread, the legacy one of device 1 */
#define CONNECTIONS 8 /* if more streams wait for a function, no copy is made */

struct job {
    bool sync; /* of cuMemcpyHtoD or cuMemcpyDtoH */
    struct job *next;
    unsigned needs[STREAMS]; /* of each stream so many jobs must be done before */
    uint8_t *to;
    const uint8_t *from;
    size_t to_pitch, from_pitch, width, height; /* 0 height: a marker */
    uint8_t *snapshot;
    void (*function)(void *argument); /* NULL: a copy, or a marker */
    void *argument;
};

struct stream {
    bool used, blocking;
    struct context *context; /* NULL: the current one */
    int device;              /* -1: of whichever (the per-thread stream) */
    pthread_t worker;
    unsigned submitted, done;
    struct job *first, **last;
};

struct event {
    struct event *next;    /* of all */
    struct stream *stream; /* NULL: not recorded */
    unsigned job;
    unsigned flags;
    int device;
};

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
struct allocation allocations[ALLOCATIONS];
static struct event *events;
static struct stream streams[STREAMS];
__thread struct context *current;
struct ibx_double_stats stats;
static struct {
    char function[32];
    unsigned in;
    int code;
    bool sticky;
} failure;
int sticky_error;
static unsigned slow_sync_us, slow_async_us;
static bool held;
static void *held_stream;
static void *captured;
static unsigned long in_flight;
static unsigned in_functions; /* streams that wait for one */

/* ------------------------------------------------------------------- for tests only */

static bool fails(const char *function, int *code)
{
    if (!failure.in || strcmp(failure.function, function) != 0 || --failure.in)
        return false;
    *code = failure.code;
    if (failure.sticky)
        sticky_error = failure.code;
    return true;
}

static unsigned alone; /* who wait for streams, and let nobody in */

static void begin_alone(void)
{
    alone += getenv("IBX_DOUBLE_ALONE") != NULL;
}

static void end_alone(void)
{
    alone -= alone != 0;
    pthread_cond_broadcast(&changed);
}

int enter(const char *function)
{
    int code = 0;
    pthread_mutex_lock(&mutex);
    while (alone)
        pthread_cond_wait(&changed, &mutex);
    if (fails(function, &code) || sticky_error || !current) {
        code = code ? code : sticky_error ? sticky_error : INVALID_CONTEXT;
        pthread_mutex_unlock(&mutex);
    }
    return code;
}

int leave(int code)
{
    pthread_mutex_unlock(&mutex);
    return code;
}

struct allocation *find(const void *address, size_t n)
{
    uintptr_t at = (uintptr_t)address;
    for (unsigned i = 0; i < ALLOCATIONS; i++) {
        uintptr_t from = (uintptr_t)allocations[i].address;
        if (from && at >= from && at - from < allocations[i].size &&
            n <= allocations[i].size - (at - from))
            return &allocations[i];
    }
    return NULL;
}

static uint8_t *device_bytes(uint64_t device, size_t n)
{
    struct allocation *a = find((void *)(uintptr_t)device, n);
    return a && a->device >= 0 ? a->bytes + ((uintptr_t)device - (uintptr_t)a->address) : NULL;
}

EXPORT bool ibx_double_peek(uint64_t device, void *to, size_t n)
{
    pthread_mutex_lock(&mutex);
    const uint8_t *bytes = device_bytes(device, n);
    if (bytes)
        memcpy(to, bytes, n);
    return !leave(!bytes);
}

EXPORT bool ibx_double_poke(uint64_t device, const void *from, size_t n)
{
    pthread_mutex_lock(&mutex);
    uint8_t *bytes = device_bytes(device, n);
    if (bytes)
        memcpy(bytes, from, n);
    return !leave(!bytes);
}

EXPORT void ibx_double_get_stats(struct ibx_double_stats *out)
{
    pthread_mutex_lock(&mutex);
    *out = stats;
    leave(0);
}

EXPORT void ibx_double_inject(const char *function, unsigned in, int code, bool sticky)
{
    pthread_mutex_lock(&mutex);
    failure.in = function ? in : 0;
    failure.code = code;
    failure.sticky = sticky;
    if (function)
        strncpy(failure.function, function, sizeof(failure.function) - 1);
    else
        sticky_error = 0;
    leave(0);
}

void slow_each(unsigned sync_us, unsigned async_us)
{
    pthread_mutex_lock(&mutex);
    slow_sync_us = sync_us;
    slow_async_us = async_us;
    leave(0);
}

EXPORT void ibx_double_slow(unsigned microseconds)
{
    slow_each(microseconds, microseconds);
}

EXPORT void ibx_double_hold(bool hold)
{
    pthread_mutex_lock(&mutex);
    held = hold;
    pthread_cond_broadcast(&changed);
    leave(0);
}

EXPORT void ibx_double_hold_stream(void *stream)
{
    pthread_mutex_lock(&mutex);
    held_stream = (uintptr_t)stream == 2 ? &streams[1] : stream; /* the per-thread stream */
    pthread_cond_broadcast(&changed);
    leave(0);
}

EXPORT void ibx_double_capture(void *stream)
{
    pthread_mutex_lock(&mutex);
    captured = stream;
    leave(0);
}

/* ---------------------------------------------------------------------- streams */

static bool runnable(const struct stream *stream, const struct job *job)
{
    if (held || stream == held_stream || (job->height && in_functions > CONNECTIONS))
        return false;
    for (unsigned i = 0; i < STREAMS; i++) {
        if ((int)(streams[i].done - job->needs[i]) < 0)
            return false;
    }
    return true;
}

static void run_job(const struct job *job, unsigned wait_us, bool broken)
{
    struct timespec time = {wait_us / 1000000, (long)(wait_us % 1000000) * 1000};
    if (wait_us && job->height)
        nanosleep(&time, NULL);
    for (size_t row = 0; row < job->height && !broken; row++)
        memmove(job->to + row * job->to_pitch, job->from + row * job->from_pitch, job->width);
    if (job->function && !broken)
        job->function(job->argument);
}

static void *work(void *argument)
{
    struct stream *stream = argument;
    pthread_mutex_lock(&mutex);
    for (;;) {
        struct job *job = stream->first;
        if (!job && !stream->used)
            break;
        if (!job || !runnable(stream, job)) {
            pthread_cond_wait(&changed, &mutex);
            continue;
        }
        int code;
        bool broken = (job->height && fails("dma", &code)) || sticky_error;
        unsigned wait_us = job->sync ? slow_sync_us : slow_async_us;
        in_functions += job->function != NULL;
        pthread_mutex_unlock(&mutex);
        run_job(job, wait_us, broken);
        pthread_mutex_lock(&mutex);
        in_functions -= job->function != NULL;
        stream->first = job->next;
        if (!stream->first)
            stream->last = &stream->first;
        stream->done++;
        in_flight -= job->height != 0;
        free(job->snapshot);
        free(job);
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&mutex);
    return NULL;
}

static bool stream_start(struct stream *stream, bool blocking)
{
    stream->used = true;
    stream->blocking = blocking;
    const bool fixed = stream < &streams[FIXED];
    stream->device =
        fixed ? (int)(stream - streams) % 2 ? -1 : (int)(stream - streams) / 2 : current->device;
    stream->context = fixed ? NULL : current;
    stream->last = &stream->first;
    return !pthread_create(&stream->worker, NULL, work, stream);
}

static struct stream *legacy_of(int device)
{
    struct stream *stream = &streams[2 * device];
    if (!stream->used)
        stream_start(stream, true);
    return stream;
}

static bool is_legacy(const struct stream *stream)
{
    return stream == &streams[0] || stream == &streams[2];
}

/* NULL: not a stream. */
static struct stream *stream_of(void *handle)
{
    unsigned i = current && current->device ? 2 : 0;
    if ((uintptr_t)handle == 2)
        i = 1;
    else if ((uintptr_t)handle > 2)
        i = (unsigned)((struct stream *)handle - streams);
    if (i >= STREAMS || ((uintptr_t)handle > 2 && handle != (void *)&streams[i]))
        return NULL;
    if (i < FIXED && !streams[i].used)
        stream_start(&streams[i], true);
    return streams[i].used ? &streams[i] : NULL;
}

/* Puts a job behind what it has to wait for. */
static void submit(struct stream *stream, struct job *job)
{
    for (unsigned i = 0; i < STREAMS; i++) {
        bool same = streams[i].device == stream->device || streams[i].device < 0;
        bool legacy = is_legacy(stream) || is_legacy(&streams[i]);
        if (&streams[i] != stream && stream->blocking && streams[i].blocking && legacy &&
            (same || stream->device < 0) && (int)(streams[i].submitted - job->needs[i]) > 0)
            job->needs[i] = streams[i].submitted;
    }
    *stream->last = job;
    stream->last = &job->next;
    stream->submitted++;
    if (job->height && ++in_flight > stats.in_flight_max)
        stats.in_flight_max = in_flight;
    pthread_cond_broadcast(&changed);
}

static struct job *job_new(void)
{
    struct job *job = calloc(1, sizeof(*job));
    for (unsigned i = 0; job && i < STREAMS; i++)
        job->needs[i] = streams[i].done;
    return job;
}

static void wait_for(const struct stream *stream, unsigned job)
{
    while ((int)(stream->done - job) < 0)
        pthread_cond_wait(&changed, &mutex);
}

EXPORT int cuStreamCreate(void **handle, unsigned flags)
{
    int code = enter("cuStreamCreate");
    if (code)
        return code;
    for (unsigned i = FIXED; i < STREAMS; i++) {
        if (streams[i].used || streams[i].submitted)
            continue;
        *handle = &streams[i];
        return leave(stream_start(&streams[i], !(flags & 1)) ? SUCCESS : OUT_OF_MEMORY);
    }
    return leave(OUT_OF_MEMORY);
}

EXPORT int cuStreamSynchronize(void *handle)
{
    int code = enter_unsafe("cuStreamSynchronize");
    struct stream *stream = code ? NULL : stream_of(handle);
    if (code)
        return code;
    if (stream)
        wait_for(stream, stream->submitted);
    return leave(stream ? sticky_error : INVALID_HANDLE);
}

EXPORT int cuStreamQuery(void *handle)
{
    int code = enter_unsafe("cuStreamQuery");
    struct stream *stream = code ? NULL : stream_of(handle);
    if (code)
        return code;
    if (!stream)
        return leave(INVALID_HANDLE);
    bool over = (int)(stream->done - stream->submitted) >= 0;
    return leave(over ? sticky_error : IBX_CUDA_NOT_READY);
}

EXPORT int cuCtxSynchronize(void)
{
    int code = enter_context("cuCtxSynchronize");
    if (code)
        return code;
    int device = current->device;
    stats.waits++;
    for (unsigned i = 0; i < STREAMS; i++) {
        if (streams[i].device == device || streams[i].device < 0)
            wait_for(&streams[i], streams[i].submitted);
    }
    return leave(sticky_error);
}

EXPORT int cuStreamIsCapturing(void *handle, int *status)
{
    int code = enter("cuStreamIsCapturing");
    if (code)
        return code;
    *status = captured && handle == captured ? 1 : capture_status(handle);
    return leave(stream_of(handle) ? SUCCESS : INVALID_HANDLE);
}

EXPORT int cuStreamGetFlags(void *handle, unsigned *flags)
{
    bool blocking = false;
    int code = enter("cuStreamGetFlags");
    if (code)
        return code;
    code = stream_known(handle, &blocking) ? SUCCESS : INVALID_HANDLE;
    *flags = !blocking;
    return leave(code);
}

EXPORT int cuStreamGetCtx(void *handle, void **context)
{
    int code = enter("cuStreamGetCtx");
    const struct stream *stream = code ? NULL : stream_of(handle);
    if (code)
        return code;
    if (stream)
        *context = stream->context ? stream->context : current;
    return leave(stream ? SUCCESS : INVALID_HANDLE);
}

/* ----------------------------------------------------------------------- events */

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
    const struct event *event = events;
    while (event && event != handle)
        event = event->next;
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
    struct event *event = handle;
    struct stream *stream = stream_of(stream_handle);
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
    const struct event *event = handle;
    bool done = !event->stream || (int)(event->stream->done - event->job) >= 0;
    return leave(done ? SUCCESS : IBX_CUDA_NOT_READY);
}

EXPORT int cuEventSynchronize(void *handle)
{
    int code = enter_unsafe("cuEventSynchronize");
    if (code)
        return code;
    const struct event *event = handle;
    if (event->stream)
        wait_for(event->stream, event->job);
    return leave(sticky_error);
}

EXPORT int cuStreamWaitEvent(void *handle, void *event_handle, unsigned flags)
{
    (void)flags;
    int code = enter("cuStreamWaitEvent");
    if (code)
        return code;
    const struct event *event = event_handle;
    struct stream *stream = stream_of(handle);
    struct job *marker = stream ? job_new() : NULL;
    if (!marker)
        return leave(stream ? OUT_OF_MEMORY : INVALID_HANDLE);
    if (event->stream)
        marker->needs[event->stream - streams] = event->job;
    submit(stream, marker);
    return leave(SUCCESS);
}

/* ----------------------------------------------------------------------- copies */

/* One end of a copy: device memory, or host memory that a job can use when it runs. */
static uint8_t *end_of(unsigned type, uint64_t device, const void *host, size_t n, bool *pinned)
{
    const struct allocation *a;
    if (type == IBX_CUDA_MEMORY_DEVICE)
        return device_bytes(device, n);
    a = find(host, n);
    *pinned = a && a->device < 0;
    return (uint8_t *)(uintptr_t)host;
}

static size_t span_of(size_t pitch, size_t width, size_t height)
{
    return (height - 1) * pitch + width;
}

static bool is_between(const struct ibx_cuda_memcpy2d *c)
{
    const struct allocation *to = find((void *)(uintptr_t)c->dst_device, 1),
                            *from = find((void *)(uintptr_t)c->src_device, 1);
    return c->dst_type == IBX_CUDA_MEMORY_DEVICE && c->src_type == IBX_CUDA_MEMORY_DEVICE && to &&
           from && to->device != from->device;
}

/* A copy between devices in a legacy stream comes behind all of both in streams that wait for
 * that; and they wait for it, where `behind` is its stream. */
static void meet_devices(struct job *job, const struct stream *behind)
{
    for (unsigned i = 0; job && i < STREAMS; i++) {
        if (streams[i].used && streams[i].blocking)
            job->needs[i] = streams[i].submitted;
    }
    struct stream *other = behind ? legacy_of(behind == &streams[0]) : NULL;
    struct job *marker = other ? job_new() : NULL;
    if (!marker)
        return;
    marker->needs[behind - streams] = behind->submitted;
    submit(other, marker);
}

/* Pageable memory is read at once, and an asynchronous copy to it is waited for: as the driver. It
 * keeps others out while it waits if IBX_DOUBLE_ALONE is set. */
static int copy_submit(const struct ibx_cuda_memcpy2d *c, void *handle, bool sync)
{
    bool from_pinned = true, to_pinned = true;
    struct stream *stream = stream_of(handle);
    uint8_t *from = end_of(c->src_type, c->src_device, c->src_host,
                           span_of(c->src_pitch, c->width, c->height), &from_pinned);
    uint8_t *to = end_of(c->dst_type, c->dst_device, c->dst_host,
                         span_of(c->dst_pitch, c->width, c->height), &to_pinned);
    if (!stream || !from || !to)
        return stream ? INVALID_VALUE : INVALID_HANDLE;
    int code;
    if (capture_takes(handle, is_legacy(stream), &code))
        return code;
    struct job *job = job_new();
    if (!job)
        return OUT_OF_MEMORY;
    const bool everywhere = is_legacy(stream) && is_between(c);
    if (everywhere) /* behind all that is under way on the other device, too */
        meet_devices(job, NULL);
    *(sync ? &stats.copies_sync : &stats.copies_async) += 1;
    stats.unpinned_async += !sync && (!from_pinned || !to_pinned);
    job->sync = sync;
    job->to = to;
    job->from = from;
    job->to_pitch = c->dst_pitch;
    job->from_pitch = c->src_pitch;
    job->width = c->width;
    job->height = c->height;
    if (!from_pinned && !sync) {
        job->snapshot = malloc(span_of(c->src_pitch, c->width, c->height));
        if (job->snapshot)
            job->from = memcpy(job->snapshot, from, span_of(c->src_pitch, c->width, c->height));
    }
    submit(stream, job);
    if (everywhere)
        meet_devices(NULL, stream);
    if (sync || !to_pinned) {
        begin_alone();
        wait_for(stream, stream->submitted);
        end_alone();
    }
    return sync ? sticky_error : SUCCESS;
}

int copy_plain(const char *name, unsigned to_type, uint64_t to, unsigned from_type, uint64_t from,
               size_t n, void *stream, bool sync)
{
    struct ibx_cuda_memcpy2d c = {.width = n, .height = 1, .src_pitch = n, .dst_pitch = n};
    c.src_type = from_type;
    c.src_device = from;
    c.src_host = (void *)(uintptr_t)from;
    c.dst_type = to_type;
    c.dst_device = to;
    c.dst_host = (void *)(uintptr_t)to;
    int code = enter(name);
    return code ? code : leave(n ? copy_submit(&c, stream, sync) : SUCCESS);
}

/* As a call of the driver's that waits for a stream and keeps others out. */
EXPORT void ibx_double_wait_alone(void *handle)
{
    pthread_mutex_lock(&mutex);
    struct stream *stream = stream_of(handle);
    begin_alone();
    if (stream)
        wait_for(stream, stream->submitted);
    end_alone();
    leave(0);
}

EXPORT int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n)
{
    return copy_plain("cuMemcpyHtoD", IBX_CUDA_MEMORY_DEVICE, to, IBX_CUDA_MEMORY_HOST,
                      (uintptr_t)from, n, NULL, true);
}

EXPORT int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t n)
{
    return copy_plain("cuMemcpyDtoH", IBX_CUDA_MEMORY_HOST, (uintptr_t)to, IBX_CUDA_MEMORY_DEVICE,
                      from, n, NULL, true);
}

EXPORT int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *stream)
{
    return copy_plain("cuMemcpyHtoDAsync", IBX_CUDA_MEMORY_DEVICE, to, IBX_CUDA_MEMORY_HOST,
                      (uintptr_t)from, n, stream, false);
}

EXPORT int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *stream)
{
    return copy_plain("cuMemcpyDtoHAsync", IBX_CUDA_MEMORY_HOST, (uintptr_t)to,
                      IBX_CUDA_MEMORY_DEVICE, from, n, stream, false);
}

/* What unified addressing makes of an address. */
static unsigned type_of(uint64_t address)
{
    const struct allocation *a = find((void *)(uintptr_t)address, 1);
    return a && a->device >= 0 ? IBX_CUDA_MEMORY_DEVICE : IBX_CUDA_MEMORY_HOST;
}

EXPORT int cuMemcpyAsync(uint64_t to, uint64_t from, size_t n, void *stream)
{
    pthread_mutex_lock(&mutex);
    unsigned to_type = type_of(to), from_type = type_of(from);
    pthread_mutex_unlock(&mutex);
    return copy_plain("cuMemcpyAsync", to_type, to, from_type, from, n, stream, false);
}

EXPORT int cuMemcpy2DAsync_v2(const struct ibx_cuda_memcpy2d *c, void *stream)
{
    int code = enter("cuMemcpy2DAsync");
    if (code)
        return code;
    if (!c->width || !c->height || c->width > c->src_pitch || c->width > c->dst_pitch)
        return leave(INVALID_VALUE);
    return leave(copy_submit(c, stream, false));
}

EXPORT int cuLaunchHostFunc(void *handle, void (*function)(void *argument), void *argument)
{
    int code = enter("cuLaunchHostFunc");
    struct stream *stream = code ? NULL : stream_of(handle);
    struct job *job = stream ? job_new() : NULL;
    if (code)
        return code;
    if (!job)
        return leave(stream ? OUT_OF_MEMORY : INVALID_HANDLE);
    job->function = function;
    job->argument = argument;
    submit(stream, job);
    return leave(SUCCESS);
}

/* ------------------------------------------------------------- for the other files */

bool stream_is_here(void *handle)
{
    const struct stream *stream = stream_of(handle);
    return stream && (stream->device < 0 || stream->device == current->device);
}

bool stream_known(void *handle, bool *blocking)
{
    const struct stream *stream = stream_of(handle);
    if (stream)
        *blocking = stream->blocking;
    return stream;
}

static void wait_alone(int device)
{
    begin_alone();
    stats.waits++;
    for (unsigned i = 0; i < STREAMS; i++) {
        if (device < 0 || streams[i].device < 0 || streams[i].device == device)
            wait_for(&streams[i], streams[i].submitted);
    }
    end_alone();
}

void wait_for_all(void)
{
    wait_alone(-1);
}

void wait_for_device(void)
{
    wait_alone(current->device);
}

bool in_use(const uint8_t *address, size_t n)
{
    for (unsigned i = 0; i < STREAMS; i++) {
        for (const struct job *job = streams[i].first; job; job = job->next) {
            if (job->height && ((job->to >= address && job->to < address + n) ||
                                (job->from >= address && job->from < address + n)))
                return true;
        }
    }
    return false;
}

/* Nothing is in them. Their handles are no others' later. */
void streams_forget(int device)
{
    for (unsigned i = FIXED; i < STREAMS; i++) {
        if (streams[i].used && streams[i].device == device && !pthread_detach(streams[i].worker)) {
            streams[i].used = false;
            streams[i].submitted += !streams[i].submitted;
            streams[i].done = streams[i].submitted;
        }
    }
    pthread_cond_broadcast(&changed);
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
