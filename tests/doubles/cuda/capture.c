/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Stream captures of the double. What a capture forbids, and to which threads, was observed with
 * driver 580 on an H200. Captured work is counted, and never run. */
#include "tests/doubles/cuda/internal.h"

#define CAPTURES 16u

enum { INVALIDATED = 901, WRONG_THREAD = 908, IMPLICIT = 906, CAPTURED_EVENT = 907 };

static struct capture {
    void *stream; /* NULL: a free place */
    bool blocking;
    int mode;
    pthread_t thread;
    bool lost;      /* a call did what is forbidden */
    uintptr_t work; /* how much was captured */
    size_t behind;  /* how many nodes the next one would come behind */
    uint64_t id;
    void *graph; /* only of the runtime's */
} captures[CAPTURES];
static struct capture of_runtime; /* graphs.c */
static uint64_t ids;

static __thread int thread_mode;

/* cudaStreamPerThread is a different stream in each thread. */
static bool is_of(const struct capture *capture, const void *stream)
{
    return stream && capture->stream == stream &&
           ((uintptr_t)stream != 2 || pthread_equal(capture->thread, pthread_self()));
}

static struct capture *capture_of(const void *stream)
{
    for (unsigned i = 0; i < CAPTURES; i++) {
        if (is_of(&captures[i], stream))
            return &captures[i];
    }
    return NULL;
}

/* The captures of the driver's, and behind them the runtime's. */
static struct capture *capture_at(unsigned i)
{
    return i < CAPTURES ? &captures[i] : &of_runtime;
}

static bool forbids(const struct capture *capture)
{
    if (!capture->stream || thread_mode == IBX_CUDA_CAPTURE_RELAXED)
        return false;
    if (pthread_equal(capture->thread, pthread_self()))
        return capture->mode != IBX_CUDA_CAPTURE_RELAXED;
    return capture->mode == IBX_CUDA_CAPTURE_GLOBAL && thread_mode == IBX_CUDA_CAPTURE_GLOBAL;
}

static bool lose(bool all)
{
    bool lost = false;
    for (unsigned i = 0; i <= CAPTURES; i++) {
        struct capture *capture = capture_at(i);
        bool loses = capture->stream && (all || forbids(capture));
        capture->lost = capture->lost || loses;
        lost = lost || loses;
    }
    return lost;
}

int enter_unsafe(const char *function)
{
    int code = enter(function);
    if (!code && lose(false))
        code = leave(CAPTURE_UNSUPPORTED);
    return code;
}

/* Which invalidates the capture of the event, whatever its mode and the thread's are. */
int enter_event(const char *function, const void *event)
{
    int code = enter(function);
    if (!code && capture_has_event(event)) {
        of_runtime.lost = true;
        return leave(CAPTURED_EVENT);
    }
    if (!code && lose(false))
        code = leave(CAPTURE_UNSUPPORTED);
    return code;
}

/* For calls of the runtime's double. */
EXPORT int ibx_double_unsafe(const char *function)
{
    int code = enter_unsafe(function);
    return code ? code : leave(SUCCESS);
}

int enter_context(const char *function)
{
    int code = enter(function);
    if (!code && lose(true))
        code = leave(CAPTURE_UNSUPPORTED);
    return code;
}

int capture_status(const void *stream)
{
    const struct capture *capture = capture_of(stream);
    if (!capture && capture_has(stream))
        capture = &of_runtime;
    return capture ? 1 + capture->lost : 0;
}

int capture_spoilt(const void *stream)
{
    struct capture *capture = capture_has(stream) ? &of_runtime : capture_of(stream);
    if (!capture)
        return SUCCESS;
    const int code = capture->lost ? INVALIDATED : CAPTURE_UNSUPPORTED;
    capture->lost = true;
    return code;
}

bool capture_takes(const void *stream, bool legacy, int *code)
{
    struct capture *capture = capture_of(stream);
    *code = SUCCESS;
    for (unsigned i = 0; legacy && i <= CAPTURES; i++) {
        struct capture *blocking = capture_at(i);
        if (!blocking->stream || !blocking->blocking)
            continue;
        blocking->lost = true;
        *code = IMPLICIT;
    }
    if (!capture)
        return *code != SUCCESS;
    if (capture->lost)
        *code = INVALIDATED;
    capture->work += !capture->lost;
    return true;
}

EXPORT int cuThreadExchangeStreamCaptureMode(int *mode)
{
    int before = thread_mode;
    if (*mode < IBX_CUDA_CAPTURE_GLOBAL || *mode > IBX_CUDA_CAPTURE_RELAXED)
        return INVALID_VALUE;
    thread_mode = *mode;
    *mode = before;
    return SUCCESS;
}

EXPORT int cuStreamBeginCapture_v2(void *stream, int mode)
{
    bool blocking;
    int code = enter("cuStreamBeginCapture");
    if (code)
        return code;
    if ((uintptr_t)stream < 2 || !stream_known(stream, &blocking) || capture_of(stream))
        return leave(INVALID_VALUE);
    for (unsigned i = 0; i < CAPTURES; i++) {
        if (captures[i].stream)
            continue;
        captures[i] = (struct capture){.stream = stream,
                                       .blocking = blocking,
                                       .mode = mode,
                                       .thread = pthread_self(),
                                       .id = ++ids};
        return leave(SUCCESS);
    }
    return leave(OUT_OF_MEMORY);
}

/* Says which stream the runtime's double captures, from now on and by this thread; NULL: none. */
EXPORT void ibx_double_runtime_captures(void *stream, void *graph, int mode)
{
    bool blocking = false;
    pthread_mutex_lock(&mutex);
    if (stream)
        stream_known(stream, &blocking);
    of_runtime = (struct capture){.stream = stream,
                                  .blocking = blocking,
                                  .mode = mode,
                                  .thread = pthread_self(),
                                  .graph = graph,
                                  .id = ++ids};
    capture_streams_reset(stream);
    pthread_mutex_unlock(&mutex);
}

/* Whether a call has invalidated the capture of the runtime's double. */
EXPORT bool ibx_double_runtime_lost(void)
{
    pthread_mutex_lock(&mutex);
    const bool lost = of_runtime.lost;
    pthread_mutex_unlock(&mutex);
    return lost;
}

int capture_waits(const void *stream, const void *event)
{
    bool lost = false;
    if (of_runtime.lost && capture_has(stream))
        return INVALIDATED;
    const int code = capture_joins(stream, event, &lost);
    of_runtime.lost = of_runtime.lost || lost;
    return code;
}

/* Whether the stream is in the capture of the runtime's double, and the other one has begun it. */
EXPORT bool ibx_double_joined(const void *stream)
{
    pthread_mutex_lock(&mutex);
    const bool joined = capture_has(stream) && stream != of_runtime.stream;
    pthread_mutex_unlock(&mutex);
    return joined;
}

/* Something of the stream's was captured, as that node. */
EXPORT void ibx_double_captured(const void *stream, void *node)
{
    pthread_mutex_lock(&mutex);
    capture_streams_node(stream, node);
    pthread_mutex_unlock(&mutex);
}

EXPORT size_t ibx_double_captured_behind(const void *stream, void **behind)
{
    pthread_mutex_lock(&mutex);
    const size_t count = capture_streams_behind(stream, behind);
    pthread_mutex_unlock(&mutex);
    return count;
}

EXPORT void ibx_double_captured_set(const void *stream, void *const *nodes, size_t count, bool adds)
{
    pthread_mutex_lock(&mutex);
    capture_streams_set(stream, nodes, count, adds);
    pthread_mutex_unlock(&mutex);
}

/* The number of the capture of the runtime's double. */
EXPORT uint64_t ibx_double_runtime_id(void)
{
    pthread_mutex_lock(&mutex);
    const uint64_t id = of_runtime.id;
    pthread_mutex_unlock(&mutex);
    return id;
}

EXPORT bool ibx_double_unjoined(void)
{
    pthread_mutex_lock(&mutex);
    const bool unjoined = capture_is_unjoined();
    pthread_mutex_unlock(&mutex);
    return unjoined;
}

EXPORT void ibx_double_captures_behind(void *stream, size_t nodes)
{
    pthread_mutex_lock(&mutex);
    struct capture *capture = capture_of(stream);
    if (capture)
        capture->behind = nodes;
    pthread_mutex_unlock(&mutex);
}

/* It tells not behind which nodes the next one would come, only how many. */
EXPORT int cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *id, void **graph,
                                     void **behind, size_t *count)
{
    int code = enter("cuStreamGetCaptureInfo");
    if (code)
        return code;
    const struct capture *capture = capture_has(stream) ? &of_runtime : capture_of(stream);
    *status = capture ? 1 + capture->lost : 0;
    if (capture && !capture->lost && id)
        *id = capture->id;
    if (capture && !capture->lost && count)
        *count = capture->behind;
    if (capture && !capture->lost && graph)
        *graph = capture->graph;
    return leave(behind ? INVALID_VALUE : SUCCESS);
}

/* The graph is a number: how much was captured. */
EXPORT int cuStreamEndCapture(void *stream, void **graph)
{
    int code = enter("cuStreamEndCapture");
    if (code)
        return code;
    struct capture *capture = capture_of(stream);
    *graph = NULL;
    if (!capture)
        return leave(INVALID_VALUE);
    const bool may =
        capture->mode == IBX_CUDA_CAPTURE_RELAXED || pthread_equal(capture->thread, pthread_self());
    if (may && !capture->lost)
        *graph = (void *)capture->work;
    code = !may ? WRONG_THREAD : capture->lost ? INVALIDATED : SUCCESS;
    *capture = (struct capture){0};
    return leave(code);
}
