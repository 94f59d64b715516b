/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Graphs that a program names while a stream is captured into them. GVirtuS's captures each make a
 * graph, which is there when they end. So where a program asks for the graph, or gives one, what
 * was captured so far becomes a graph within it, and the stream is captured again:
 *
 *   begin ... info ... update ... end     the program's calls
 *   [ part  ]     [ part             ]    captures, each a child graph behind the last nodes
 *
 * Streams that other streams have joined cannot be cut like that.
 */
#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"
#include "frontend-glue/session/calls.h"

#include <pthread.h>
#include <stdlib.h>

#define ADD_DEPENDENCIES 0u /* flags of cudaStreamUpdateCaptureDependencies */
#define SET_DEPENDENCIES 1u

#define PER_THREAD ((void *)2) /* cudaStreamPerThread */

/* Of a stream that is captured. Only the thread that captures uses it, but for the list. */
struct capture {
    struct capture *next;
    void *stream;
    pthread_t by;
    bool alone; /* it has begun while there was no other: nothing was left to do before it */
    int mode;
    unsigned long long id;
    void *graph; /* NULL: the program has not asked for it */
    bool given;  /* by the program */
    bool over;   /* it could not be begun again */
    size_t count;
    void *last[IBX_OWN_BEHIND]; /* nodes that the next part comes behind */
};

static struct capture *all; /* under the lock of ranges */
static _Atomic unsigned long long ids;

/* cudaStreamPerThread is another stream in each thread. */
static bool is_of(const struct capture *c, const void *stream)
{
    return c->stream == stream && (stream != PER_THREAD || pthread_equal(c->by, pthread_self()));
}

/* Locked. */
static void count(const struct capture *c, void (*change)(bool rested))
{
    if (c->stream == PER_THREAD)
        change(c->alone);
}

static struct capture *find(const void *stream, bool remove)
{
    ibx_frontend_ranges_lock();
    struct capture **at = &all;
    while (*at && !is_of(*at, stream))
        at = &(*at)->next;
    struct capture *found = *at;
    if (found && remove) {
        *at = found->next;
        count(found, ibx_frontend_thread_capture_ends);
    }
    ibx_frontend_ranges_unlock();
    return found;
}

static void add(struct capture *c)
{
    ibx_frontend_ranges_lock();
    c->next = all;
    all = c;
    count(c, ibx_frontend_thread_capture_begins);
    ibx_frontend_ranges_unlock();
}

/* It ended unseen, and what it was counted for ends here. NULL: nothing. */
static void drop(struct capture *c)
{
    if (c && !c->over)
        ibx_frontend_capture_gone();
    free(c);
}

/* With the thread ends its own stream, and the capture of that. */
static pthread_key_t of_thread;
static bool keyed; /* libraries that began before this one may have captured */

static void thread_ends(void *nothing)
{
    (void)nothing;
    drop(find(PER_THREAD, true));
}

/* They are the parent's. */
static void in_child(void)
{
    all = NULL;
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
    keyed = !pthread_key_create(&of_thread, thread_ends);
}

/* One that it had before was ended by something else. */
static struct capture *note(void *stream, int mode, bool alone)
{
    drop(find(stream, true));
    struct capture *c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    ibx_frontend_stream_used(stream);
    if (stream == PER_THREAD && keyed)
        pthread_setspecific(of_thread, &of_thread);
    c->stream = stream;
    c->by = pthread_self();
    c->alone = alone;
    c->mode = mode;
    c->id = atomic_fetch_add(&ids, 1) + 1;
    add(c);
    return c;
}

/* A stream that is captured already is answered for here: the back end would ask CUDA about it. */
static int begin_capture(void *stream, int mode)
{
    if (ibx_frontend_captures(stream))
        return ibx_frontend_fail(CUDA_ILLEGAL_STATE);
    ibx_frontend_managed_rests();
    ibx_frontend_capture_begins(); /* before another thread's event can bring a stream into it */
    const int rc = CALL_NEXT(cudaStreamBeginCapture, stream, mode);
    if (rc)
        ibx_frontend_capture_gone();
    return rc;
}

static int end_capture(void *stream, void **graph)
{
    const int rc = CALL_NEXT(cudaStreamEndCapture, stream, graph);
    if (ibx_call_ends_capture(rc))
        ibx_frontend_capture_gone();
    return rc;
}

/* The part becomes a node behind the last ones, if there is anything in it. */
static int add_part(struct capture *c, void *part)
{
    void *node = NULL;
    size_t nodes = 0;
    int rc = cudaGraphGetNodes(part, NULL, &nodes);
    if (!rc && nodes)
        rc = cudaGraphAddChildGraphNode(&node, c->graph, c->last, c->count, part);
    if (node) {
        c->last[0] = node;
        c->count = 1;
    }
    cudaGraphDestroy(part);
    return rc;
}

/* What is captured so far is in the graph, and it goes on. An error: it does not. */
static int cut(struct capture *c)
{
    void *part = NULL;
    if (c->mode != CUDA_CAPTURE_RELAXED &&
        !pthread_equal(c->by, pthread_self())) /* it would be lost by that */
        return ibx_frontend_fail(CUDA_NOT_SUPPORTED);
    int rc = end_capture(c->stream, &part);
    const bool over = ibx_call_ends_capture(rc);
    if (!rc && !c->graph)
        rc = cudaGraphCreate(&c->graph, 0);
    if (!rc)
        rc = add_part(c, part);
    if (!rc)
        rc = begin_capture(c->stream, c->mode);
    c->over = rc && over;
    return rc;
}

/* ------------------------------------------------------------------------------- the calls */

int cudaStreamBeginCapture(void *stream, int mode)
{
    const bool alone = !ibx_frontend_capturing();
    const int rc = begin_capture(stream, mode);
    if (!rc)
        note(stream, mode, alone);
    return rc;
}

int cudaStreamBeginCaptureToGraph(void *stream, void *graph, void *const *behind, const void *edges,
                                  size_t count, int mode)
{
    if (!graph || edges || (count && !behind) || count > IBX_OWN_BEHIND)
        return ibx_frontend_fail(edges && graph ? CUDA_NOT_SUPPORTED : CUDA_INVALID_VALUE);
    const bool alone = !ibx_frontend_capturing();
    const int rc = begin_capture(stream, mode);
    struct capture *c = rc ? NULL : note(stream, mode, alone);
    if (!rc && !c) {
        void *part;
        end_capture(stream, &part);
        return ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
    }
    if (rc)
        return rc;
    c->graph = graph;
    c->given = true;
    c->count = count;
    if (count)
        memcpy(c->last, behind, count * sizeof(*behind));
    return CUDA_SUCCESS;
}

int cudaStreamEndCapture(void *stream, void **graph)
{
    void *part = NULL;
    struct capture *c = find(stream, false);
    const bool nobodys = !graph && !(c && c->graph);
    int rc = end_capture(stream, &part);
    /* The thread that has begun it has ended, and so has it. */
    const bool left = rc == CUDA_ILLEGAL_STATE && c;
    const bool over = left || ibx_call_ends_capture(rc);
    if (over)
        c = find(stream, true);
    if (!rc && c && c->graph)
        rc = add_part(c, part);
    if (!rc && nobodys)
        cudaGraphDestroy(part);
    if (over && graph)
        *graph = rc ? NULL : c && c->graph ? c->graph : part;
    if (over && rc && c && c->graph && !c->given)
        cudaGraphDestroy(c->graph);
    if (over && c && c->alone && stream == PER_THREAD) /* nothing of it has run */
        ibx_frontend_stream_rests(stream);
    if (left)
        drop(c);
    else if (over)
        free(c);
    return rc;
}

/* By it ends a capture of that stream. */
int ibx_frontend_stream_destroy(void *stream)
{
    struct capture *c = ibx_frontend_capturing() ? find(stream, true) : NULL;
    unsigned flags;
    const bool known = ibx_frontend_stream_gone(stream, &flags);
    const int rc = CALL_NEXT(cudaStreamDestroy, stream);
    if (known && rc && rc != CUDA_INVALID_HANDLE)
        ibx_frontend_stream_stays(stream, flags);
    if (c && rc) {
        add(c);
        return rc;
    }
    if (c && c->graph && !c->given)
        cudaGraphDestroy(c->graph);
    drop(c);
    return rc;
}

void ibx_frontend_captures_reset(void)
{
    ibx_frontend_ranges_lock();
    struct capture *left = all;
    for (const struct capture *c = all; c; c = c->next)
        count(c, ibx_frontend_thread_capture_ends);
    all = NULL;
    ibx_frontend_ranges_unlock();
    for (struct capture *c = left; c; c = left) {
        left = c->next;
        drop(c);
    }
}

/* `asks`: for more than whether it is captured, and by which number. */
static int capture_info(void *stream, int *status, unsigned long long *id, void **graph,
                        void *const **behind, const void **edges, size_t *count, bool asks)
{
    int now = 0;
    int rc = status ? cudaStreamIsCapturing(stream, &now) : ibx_frontend_fail(CUDA_INVALID_VALUE);
    struct capture *c = rc || now != 1 ? NULL : find(stream, false);
    if (!rc && now == 1 && !c && asks) /* it has joined another stream's capture */
        rc = ibx_frontend_fail(CUDA_NOT_SUPPORTED);
    if (!rc && c && asks)
        rc = cut(c);
    if (rc)
        return rc;
    *status = now;
    if (id)
        *id = c ? c->id : 0;
    if (!asks || !c)
        return CUDA_SUCCESS;
    if (graph)
        *graph = c->graph;
    if (behind)
        *behind = c->last;
    if (edges)
        *edges = NULL;
    if (count)
        *count = c->count;
    return CUDA_SUCCESS;
}

/* Before CUDA 13 it has three arguments, and the others came under names of their own. */
int cudaStreamGetCaptureInfo(void *stream, int *status, unsigned long long *id, void **graph,
                             void *const **behind, const void **edges, size_t *count)
{
    const int version = ibx_frontend_cuda_version();
    const bool asks = (!version || version > 12) && (graph || behind || count);
    return capture_info(stream, status, id, graph, behind, edges, count, asks);
}

int cudaStreamGetCaptureInfo_v2(void *stream, int *status, unsigned long long *id, void **graph,
                                void *const **behind, size_t *count)
{
    return capture_info(stream, status, id, graph, behind, NULL, count, graph || behind || count);
}

int cudaStreamGetCaptureInfo_v3(void *stream, int *status, unsigned long long *id, void **graph,
                                void *const **behind, const void **edges, size_t *count)
{
    return capture_info(stream, status, id, graph, behind, edges, count, graph || behind || count);
}

/* Before CUDA 13 there is no array of edges' data, and two numbers come in its place. */
int cudaStreamUpdateCaptureDependencies(void *stream, void *const *nodes, const void *edges,
                                        size_t count, unsigned flags)
{
    const int version = ibx_frontend_cuda_version();
    if (version && version < 13) {
        flags = (unsigned)count;
        count = (size_t)edges;
        edges = NULL;
    }
    struct capture *c = find(stream, false);
    if (!c || (count && !nodes) || flags > SET_DEPENDENCIES)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (edges)
        return ibx_frontend_fail(CUDA_NOT_SUPPORTED);
    int rc = cut(c);
    const size_t before = flags == ADD_DEPENDENCIES ? c->count : 0;
    if (!rc && count > IBX_OWN_BEHIND - before)
        rc = ibx_frontend_fail(CUDA_NOT_SUPPORTED);
    if (!rc && count)
        memcpy(c->last + before, nodes, count * sizeof(*nodes));
    if (!rc)
        c->count = before + count;
    return rc;
}
