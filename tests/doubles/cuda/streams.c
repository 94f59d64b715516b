/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A double of CUDA's driver: streams, and what waits for them. */
#include "tests/doubles/cuda/streams.h"

#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct stream streams[FIXED] = {
    {.next = &streams[1], .given = PTHREAD_COND_INITIALIZER},
    {.next = &streams[2], .given = PTHREAD_COND_INITIALIZER, .number = 1},
    {.given = PTHREAD_COND_INITIALIZER, .number = 2}};
static unsigned stream_count = FIXED;
static void *made_streams; /* a tree: clients may make thousands */
static unsigned slow_sync_us, slow_async_us;
static bool held;
static void *captured;
static unsigned long in_flight;
static unsigned in_functions; /* streams that wait for one */
unsigned copies_wait;

/* ------------------------------------------------------------------- for tests only */

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
    for (struct stream *s = streams; s; s = s->next)
        s->held = stream && (s->held || stream == s);
    if (stream && (uintptr_t)stream <= 2) /* the legacy stream, the per-thread stream */
        streams[(uintptr_t)stream - 1].held = true;
    pthread_cond_broadcast(&changed);
    leave(0);
}

EXPORT void ibx_double_hold_stream_after(void *stream, unsigned copies)
{
    pthread_mutex_lock(&mutex);
    ((struct stream *)stream)->copies_until_held = copies + 1;
    leave(0);
}

EXPORT void ibx_double_release_stream(void *stream)
{
    pthread_mutex_lock(&mutex);
    const bool fixed = (uintptr_t)stream <= 2;
    struct stream *one = fixed ? &streams[(uintptr_t)stream - 1] : stream;
    one->held = false;
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

static bool word_is(const struct job *job)
{
    enum { NOT_LESS, EQUAL, AND };
    const bool wide = job->word_bytes == 8;
    const uint64_t is = wide ? __atomic_load_n((const uint64_t *)job->word, __ATOMIC_ACQUIRE)
                             : __atomic_load_n((const uint32_t *)job->word, __ATOMIC_ACQUIRE);
    switch (job->condition) {
    case NOT_LESS: /* in a circle */
        return wide ? (int64_t)(is - job->value) >= 0 : (int32_t)(is - job->value) >= 0;
    case EQUAL:
        return is == job->value;
    case AND:
        return is & job->value;
    default:
        return ~(is | job->value) & (wide ? UINT64_MAX : UINT32_MAX);
    }
}

/* Whether what the job has to wait for in other streams is done. */
static bool comes_now(const struct job *job)
{
    for (struct stream *s = streams; s; s = s->next) {
        if (s->number < job->count && (int)(s->done - job->needs[s->number]) < 0)
            return false;
    }
    return (!job->awaits || shared_event_done(job->awaits, job->times)) &&
           (!job->word || sticky_error || word_is(job));
}

/* Whether the stream waits for others' work, and has work of that kind behind that. */
static bool waits_with(const struct stream *stream, enum queue queue)
{
    const struct job *job = stream->first;
    if (!job || comes_now(job))
        return false;
    while (job && job->queue != queue)
        job = job->next;
    return job;
}

static bool is_of_second(const struct stream *stream)
{
    return stream->context && stream->context->second;
}

/* Whether streams that wait have all queues for such work, of any priority. A function is among
 * what they wait for, or they would not wait for long. */
static bool is_without_queue(const struct stream *stream, const struct job *job)
{
    static const unsigned most[QUEUES] = {[QUEUE_TO_HOST] = QUEUE_TO_HOST_STREAMS,
                                          [QUEUE_TO_DEVICE] = QUEUE_TO_DEVICE_STREAMS,
                                          [QUEUE_KERNELS] = QUEUE_KERNELS_STREAMS};
    unsigned waiting = 0;
    if (!job->queue || !in_functions || is_of_second(stream))
        return false;
    for (const struct stream *s = streams; s; s = s->next)
        waiting += s != stream && s->used && !is_of_second(s) && waits_with(s, job->queue);
    return waiting >= most[job->queue];
}

/* While all work is held, markers without work before them are reached, as with CUDA. */
static bool runnable(const struct stream *stream, const struct job *job)
{
    const bool works = job->height || job->function;
    if ((held && works && !stream->urgent) || stream->held ||
        (job->height && in_functions > CONNECTIONS && !is_of_second(stream)))
        return false;
    return comes_now(job) && !is_without_queue(stream, job);
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
            if (!job) /* what others do makes no work for it */
                pthread_cond_wait(&stream->given, &mutex);
            else if (job->awaits || job->word) /* no signal comes from another process */
                wait_a_moment();
            else
                wait_for_change();
            continue;
        }
        if (job->height && stream->copies_until_held && !--stream->copies_until_held) {
            stream->held = true;
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
        if (job->records)
            job->records->done = job->times;
        stream->first = job->next;
        if (!stream->first)
            stream->last = &stream->first;
        stream->done++;
        in_flight -= job->height != 0;
        free(job->snapshot);
        free(job);
        memory_unmap_unused();
        pthread_cond_broadcast(&changed);
    }
    stream->working = false;
    pthread_mutex_unlock(&mutex);
    return NULL;
}

static bool stream_start(struct stream *stream, bool blocking)
{
    stream->used = true;
    stream->blocking = blocking;
    stream->urgent = false;
    const bool fixed = stream->number < FIXED;
    stream->device = fixed ? stream->number % 2 ? -1 : (int)stream->number / 2 : current->device;
    stream->context = fixed ? NULL : current;
    stream->last = &stream->first;
    stream->working = true;
    if (pthread_create(&stream->worker, NULL, work, stream))
        return false;
    pthread_setname_np(stream->worker, "double-stream");
    return true;
}

struct stream *legacy_of(int device)
{
    struct stream *stream = &streams[2 * device];
    if (!stream->used)
        stream_start(stream, true);
    return stream;
}

bool is_legacy(const struct stream *stream)
{
    return stream == &streams[0] || stream == &streams[2];
}

/* The driver reads memory at the address that the handle is. */
_Noreturn void no_handle(const char *what, const void *handle)
{
    fprintf(stderr, "the double of CUDA's driver was given a %s that is none: %p\n", what, handle);
    abort();
}

static int by_address(const void *a, const void *b)
{
    return ((uintptr_t)a > (uintptr_t)b) - ((uintptr_t)a < (uintptr_t)b);
}

/* A stream that was made, in use or not; NULL: it is none. */
static struct stream *find_made(const void *handle)
{
    struct stream *const *found = tfind(handle, &made_streams, by_address);
    return found ? *found : NULL;
}

struct stream *stream_of(void *handle)
{
    struct stream *stream = (uintptr_t)handle > 2 ? find_made(handle)
                                                  : &streams[(uintptr_t)handle == 2       ? 1
                                                             : current && current->device ? 2
                                                                                          : 0];
    if (stream && stream->number < FIXED && !stream->used)
        stream_start(stream, true);
    if (!stream || !stream->used)
        no_handle("stream", handle);
    return stream;
}

void submit(struct stream *stream, struct job *job)
{
    for (struct stream *s = streams; s; s = s->next) {
        bool same = s->device == stream->device || s->device < 0;
        bool legacy = is_legacy(stream) || is_legacy(s);
        if (s != stream && stream->blocking && s->blocking && legacy &&
            (same || stream->device < 0) && (int)(s->submitted - job->needs[s->number]) > 0)
            job->needs[s->number] = s->submitted;
    }
    *stream->last = job;
    stream->last = &job->next;
    stream->submitted++;
    if (job->height && ++in_flight > stats.in_flight_max)
        stats.in_flight_max = in_flight;
    pthread_cond_signal(&stream->given);
}

struct job *job_new(void)
{
    struct job *job = calloc(1, sizeof(*job) + stream_count * sizeof(job->needs[0]));
    if (!job)
        return NULL;
    job->count = stream_count;
    for (struct stream *s = streams; s; s = s->next)
        job->needs[s->number] = s->done;
    return job;
}

void wait_for(const struct stream *stream, unsigned job)
{
    while ((int)(stream->done - job) < 0)
        wait_for_change();
}

bool has_work(const struct stream *stream)
{
    const struct job *job = stream->first;
    while (job && job->idle)
        job = job->next;
    return job;
}

/* Whether a wait for `submitted` jobs of the stream is over. What is left may be events without a
 * time that wait for other streams' work: the driver does not wait for these (H200). */
static bool is_over(const struct stream *stream, unsigned submitted)
{
    if ((int)(stream->done - submitted) >= 0)
        return true;
    return !has_work(stream) && !stream->held && !runnable(stream, stream->first);
}

void note_beside_functions(void)
{
    stats.beside_functions += in_functions != 0;
}

EXPORT bool ibx_double_stream_waits(void *handle)
{
    pthread_mutex_lock(&mutex);
    const struct stream *stream = stream_of(handle);
    const bool waits = stream->first && !runnable(stream, stream->first);
    leave(0);
    return waits;
}

/* A stream that was destroyed, or a new one: CUDA has as many streams as memory has room for. */
static struct stream *unused_stream(void)
{
    struct stream *last = NULL;
    for (struct stream *s = streams; s; s = s->next) {
        if (s->number >= FIXED && !s->used && !s->working && !s->gone)
            return s;
        last = s;
    }
    struct stream *made = calloc(1, sizeof(*made));
    if (!made)
        return NULL;
    pthread_cond_init(&made->given, NULL);
    made->number = stream_count++;
    tsearch(made, &made_streams, by_address);
    return last->next = made;
}

static bool awaits_word(void)
{
    for (const struct stream *s = streams; s; s = s->next)
        if (s->used && s->first && s->first->word && !word_is(s->first))
            return true;
    return false;
}

/* As driver 580, which makes no stream while a copy waits for a word. */
EXPORT int cuStreamCreate(void **handle, unsigned flags)
{
    int code = enter("cuStreamCreate");
    if (code)
        return code;
    while (copies_wait && awaits_word())
        wait_a_moment();
    note_beside_functions();
    struct stream *stream = unused_stream();
    if (!stream || !stream_start(stream, !(flags & 1)))
        return leave(OUT_OF_MEMORY);
    *handle = stream;
    return leave(SUCCESS);
}

/* As on a GPU, where running work makes room for a stream of a higher priority. */
EXPORT int cuStreamCreateWithPriority(void **handle, unsigned flags, int priority)
{
    const int rc = cuStreamCreate(handle, flags);
    if (!rc)
        ((struct stream *)*handle)->urgent = priority < 0;
    return rc;
}

/* Work that was submitted is still run. */
EXPORT int cuStreamDestroy_v2(void *handle)
{
    int code = enter("cuStreamDestroy");
    if (code)
        return code;
    struct stream *stream = stream_of(handle);
    if (stream->number < FIXED)
        return leave(INVALID_HANDLE);
    stream->used = false;
    pthread_detach(stream->worker);
    pthread_cond_signal(&stream->given);
    return leave(SUCCESS);
}

EXPORT int cuStreamSynchronize(void *handle)
{
    int code = enter_unsafe("cuStreamSynchronize");
    struct stream *stream = code ? NULL : stream_of(handle);
    if (code)
        return code;
    if (!stream)
        return leave(INVALID_HANDLE);
    if ((code = capture_spoilt(handle)))
        return leave(code);
    stats.stream_waits++;
    for (struct stream *s = streams; s; s = s->next) {
        if (is_legacy(stream) && s->blocking && (s->device == stream->device || s->device < 0))
            wait_for(s, s->submitted);
    }
    const unsigned submitted = stream->submitted;
    while (!is_over(stream, submitted))
        wait_for_change();
    stats.stream_waits--;
    return waited(leave(sticky()));
}

/* As observed with driver 580 on an H100, a query of the legacy stream is about all streams that
 * wait for it, as a wait for it is. */
EXPORT int cuStreamQuery(void *handle)
{
    int code = enter_unsafe("cuStreamQuery");
    struct stream *stream = code ? NULL : stream_of(handle);
    if (code)
        return code;
    if (!stream)
        return leave(INVALID_HANDLE);
    if (is_legacy(stream) && capture_takes(NULL, true, &code)) /* whatever the thread's mode is */
        return leave(code);
    if ((code = capture_spoilt(handle)))
        return leave(code);
    bool over = is_over(stream, stream->submitted);
    for (struct stream *s = streams; s && over && is_legacy(stream); s = s->next) {
        const bool here = s->device == stream->device || s->device < 0;
        over = !(s->used && s->blocking && here && (int)(s->done - s->submitted) < 0);
    }
    return leave(over ? sticky() : IBX_CUDA_NOT_READY);
}

EXPORT int cuCtxSynchronize(void)
{
    int code = enter_context("cuCtxSynchronize");
    if (code)
        return code;
    int device = current->device;
    stats.waits++;
    for (struct stream *s = streams; s; s = s->next) {
        if (s->device == device || s->device < 0)
            wait_for(s, s->submitted);
    }
    return waited(leave(sticky()));
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

/* As a call of the driver that waits for a stream, and keeps other threads out. The stream may have
 * been destroyed: its work goes on. */
EXPORT void ibx_double_wait_alone(void *handle)
{
    pthread_mutex_lock(&mutex);
    struct stream *stream = streams;
    while (stream && stream != handle)
        stream = stream->next;
    if ((uintptr_t)handle <= 2)
        stream = stream_of(handle);
    begin_alone();
    if (stream)
        wait_for(stream, stream->submitted);
    end_alone();
    leave(0);
}

/* One more, or one less, or (0) one that is refused. */
EXPORT void ibx_double_count_exec(int more)
{
    pthread_mutex_lock(&mutex);
    stats.execs += (unsigned long)more;
    stats.execs_refused += !more;
    pthread_mutex_unlock(&mutex);
}

/* As driver 580 on an H200: the launch of a graph makes a copy between page-locked memory itself,
 * behind all that comes before it in the graph. Until then it keeps all other calls out. */
EXPORT void ibx_double_copy_on_host(const void *to, const void *from, void *handle)
{
    pthread_mutex_lock(&mutex);
    const struct allocation *a = find(to, 1), *b = find(from, 1);
    const struct stream *stream = stream_of(handle);
    if (a && b && a->device < 0 && b->device < 0) {
        keep_out(true);
        wait_for(stream, stream->submitted);
        keep_out(false);
    }
    leave(0);
}

void wait_for_work_on(int device)
{
    begin_alone();
    stats.waits++;
    for (struct stream *s = streams; s; s = s->next) {
        if (device < 0 || s->device < 0 || s->device == device)
            wait_for(s, s->submitted);
    }
    end_alone();
}

void wait_for_all(void)
{
    wait_for_work_on(-1);
}

void wait_for_device(void)
{
    wait_for_work_on(current->device);
}

bool in_use(const uint8_t *address, size_t n)
{
    for (struct stream *s = streams; s; s = s->next) {
        for (const struct job *job = s->first; job; job = job->next) {
            if (job->height && ((job->to >= address && job->to < address + n) ||
                                (job->from >= address && job->from < address + n)))
                return true;
        }
    }
    return false;
}

/* Forgets streams, which are empty. Their handles are not used again. */
void streams_forget(int device)
{
    for (struct stream *s = streams; s; s = s->next) {
        if (s->number >= FIXED && s->used && s->device == device && !is_of_second(s) &&
            !pthread_detach(s->worker)) {
            s->used = false;
            s->gone = true;
            s->done = s->submitted;
            pthread_cond_signal(&s->given);
        }
    }
    pthread_cond_broadcast(&changed);
}
