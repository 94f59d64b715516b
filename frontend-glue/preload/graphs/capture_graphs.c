/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Graphs that a program names while a stream is captured into them. If it asks for the graph, or
 * gives it, CUDA tells it at the back end, or captures into it (capture_questions.c), and the
 * capture stays whole.
 *
 * Otherwise, if the back end is older or the graph is a part of another one, the capture is split:
 * it ends, what was captured becomes a child node of the program's graph, and a new capture of the
 * stream begins:
 *
 *   begin ... info ... update ... end     the program's calls
 *   [ part  ]     [ part             ]    captures; each is a child graph after the last nodes
 *
 * Streams that have joined the capture join the first one again before a part ends, and are in the
 * next one from its beginning: streams/forks.c. A capture that cannot be split stays as it
 * was. If CUDA ends a part with an error, another one begins that is invalid at once, so that
 * no work of the program's runs that was to be captured.
 */
#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"
#include "frontend-glue/session/calls.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define ADD_DEPENDENCIES 0u /* flags of cudaStreamUpdateCaptureDependencies */
#define SET_DEPENDENCIES 1u

/* Who knows the graph of a capture. */
enum captured_graph {
    GRAPH_NOT_ASKED,
    GRAPH_OF_CUDA,  /* the one into which CUDA captures: the capture stays whole */
    GRAPH_OF_PARTS, /* one of this library's or the program's, which gets the parts of the capture
                     */
};

/* The capture of a stream. Only the thread that captures uses it; the list has a lock. */
struct capture {
    struct capture *next;
    void *stream;
    uint64_t by; /* the number of the thread */
    bool alone;  /* there was no other capture when it began, so no work was left to do before it */
    bool blocks; /* the stream waits for the legacy one */
    int device;  /* that of the stream */
    int mode;
    unsigned long long order; /* in which captures have begun */
    unsigned long long id;    /* that the program is told */
    struct ibx_forks *forks;
    void *graph; /* the graph that is captured into; NULL: the program has not asked for it */
    enum captured_graph whose;
    bool given;         /* the program gave the graph */
    bool over;          /* the capture was split, and could not be begun again */
    atomic_bool spoilt; /* another thread has invalidated it, which only its own can tell CUDA */
    size_t count;
    void *last[IBX_EXT_BEHIND]; /* nodes on which the next part depends */
    struct ibx_told *told;      /* GRAPH_OF_CUDA: by stream; protected by the lock of ranges */
};

static struct capture *all; /* protected by the lock of ranges */
static _Atomic unsigned long long ids;

static bool is_of(const struct capture *c, const void *stream)
{
    return ibx_frontend_same_stream(c->stream, c->by, stream);
}

/* Called under the lock. Counts captures of a thread's own stream. */
static void count(const struct capture *c, void (*change)(bool rested))
{
    if (c->stream == CUDA_STREAM_PER_THREAD)
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

/* NULL is ignored. */
static void release(struct capture *c)
{
    ibx_frontend_forks_end(c ? c->forks : NULL);
    for (struct ibx_told *t = c ? c->told : NULL, *next; t; t = next) {
        next = t->next;
        free(t);
    }
    free(c);
}

/* Frees a capture that ended without a call of this library. NULL is ignored. */
static void drop(struct capture *c)
{
    if (c && !c->over)
        ibx_frontend_capture_gone();
    release(c);
}

/* When a thread ends, its own stream ends, and the capture of that stream. */
static pthread_key_t of_thread;
/* False until the constructor: a library that was initialized earlier may capture. */
static bool keyed;

/* The back end ends the captures of a session that ends, but nobody waits for that: another thread
 * that has joined this one would still be refused work in the legacy stream. */
static void thread_ends(void *nothing)
{
    (void)nothing;
    const struct capture *c = find(CUDA_STREAM_PER_THREAD, false);
    const bool given = c && c->given;
    void *graph = NULL;
    if (!c)
        return;
    ibx_frontend_forks_lose_root(c->forks);
    if (!cudaStreamEndCapture(CUDA_STREAM_PER_THREAD, &graph) && !given)
        cudaGraphDestroy(graph);
    drop(find(CUDA_STREAM_PER_THREAD, true)); /* if CUDA does not say that it has ended */
}

/* Whether the capture forbids the call to the calling thread, as CUDA has it: unsafe calls to the
 * thread that has begun it, and to all threads if both it and they are in mode GLOBAL; waits for
 * its device, or for the legacy stream of that, to all. A stream of another device that has joined
 * it is not known here: such a wait is left to the back end. */
static bool forbids(const struct capture *c, enum ibx_forbidden call, bool others)
{
    const int mode = ibx_frontend_capture_mode();
    const bool own = c->by == ibx_frontend_thread_number();
    if (c->over || (own && others))
        return false;
    if (call != FORBIDDEN_UNSAFE)
        return c->device == ibx_frontend_current_device() && (call == FORBIDDEN_WAIT || c->blocks);
    if (mode == CUDA_CAPTURE_RELAXED || c->mode == CUDA_CAPTURE_RELAXED)
        return false;
    return own || (mode == CUDA_CAPTURE_GLOBAL && c->mode == CUDA_CAPTURE_GLOBAL);
}

/* The first such capture, of another thread if `others`, with a number above `last`: its number,
 * and its stream, or NULL if the stream is another thread's own; 0: there is none. */
static unsigned long long next_forbidding(unsigned long long last, enum ibx_forbidden call,
                                          bool others, void **stream)
{
    struct capture *next = NULL;
    ibx_frontend_ranges_lock();
    for (struct capture *c = all; c; c = c->next)
        if (c->order > last && (!next || c->order < next->order) && forbids(c, call, others))
            next = c;
    const unsigned long long order = next ? next->order : 0;
    *stream = next && is_of(next, next->stream) ? next->stream : NULL;
    if (next && !*stream)
        atomic_store(&next->spoilt, true);
    ibx_frontend_ranges_unlock();
    return order;
}

/* The captures are the parent's. */
static void in_child(void)
{
    all = NULL;
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
    keyed = !pthread_key_create(&of_thread, thread_ends);
    ibx_frontend_captures_forbid(next_forbidding);
}

/* Adds a capture. An earlier one of the stream must have ended by other means. */
static struct capture *note(void *stream, int mode, bool alone)
{
    drop(find(stream, true));
    struct capture *c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    ibx_frontend_stream_used(stream);
    if (stream == CUDA_STREAM_PER_THREAD && keyed)
        pthread_setspecific(of_thread, &of_thread);
    c->stream = stream;
    c->by = ibx_frontend_thread_number();
    c->alone = alone;
    c->blocks = ibx_frontend_stream_blocks(stream);
    c->device = ibx_frontend_stream_device(stream);
    c->mode = mode;
    c->id = c->order = atomic_fetch_add(&ids, 1) + 1;
    c->forks = ibx_frontend_forks_begin(stream);
    add(c);
    return c;
}

/* The graph into which the program has a stream captured, behind these nodes. */
struct given {
    void *graph;
    void *const *behind;
    const void *edges;
    size_t count;
    bool whole; /* CUDA captures into it; otherwise it gets the parts */
};

/* Begins a capture. `g` NULL: CUDA makes the graph. An error for a stream that is captured already
 * is detected here: the back end would have to ask CUDA. */
static int begin_capture(void *stream, int mode, struct given *g)
{
    int rc;
    if (ibx_frontend_captures(stream))
        return ibx_frontend_fail(CUDA_ILLEGAL_STATE);
    ibx_frontend_managed_rests();
    ibx_frontend_capture_begins(); /* before the call: from then on an event of another thread can
                                      join a stream to it */
    ibx_frontend_managed_captures();
    const int cancel = ibx_frontend_captures_hold();
    const bool whole =
        g && ibx_frontend_capture_into(stream, g->graph, g->behind, g->edges, g->count, mode, &rc);
    if (!whole)
        rc = CALL_NEXT(cudaStreamBeginCapture, stream, mode);
    ibx_frontend_captures_let_go(cancel);
    if (g)
        g->whole = whole;
    if (rc)
        ibx_frontend_capture_gone();
    return rc;
}

/* `c`: what is known of the capture; NULL: nothing. */
static int end_capture(const struct capture *c, void *stream, void **graph)
{
    if (c && atomic_load(&c->spoilt))
        ibx_frontend_stream_ask(stream);
    const int rc = CALL_NEXT(cudaStreamEndCapture, stream, graph);
    if (ibx_call_ends_capture(rc))
        ibx_frontend_capture_gone();
    if (!rc && !(c && c->whose == GRAPH_OF_CUDA)) /* that one is known already */
        ibx_frontend_graph_made(*graph);
    return rc;
}

/* A capture has ended without a graph: neither has the program the one that it has asked for. */
static void lose_graph(const struct capture *c)
{
    if (c && c->graph && c->whose == GRAPH_OF_CUDA)
        ibx_frontend_graph_lost(c->graph);
    else if (c && c->graph && !c->given)
        cudaGraphDestroy(c->graph);
}

/* Whether a graph of `count` nodes allocates memory or frees it. */
static bool has_memory(void *graph, size_t count)
{
    void **nodes = ibx_frontend_captured_memory() ? calloc(count, sizeof(*nodes)) : NULL;
    bool has = false;
    if (nodes && cudaGraphGetNodes(graph, nodes, &count))
        count = 0;
    for (size_t i = 0; nodes && i < count && !has; i++) {
        int type = IBX_FRONTEND_NODE_EMPTY;
        has = !cudaGraphNodeGetType(nodes[i], &type) &&
              (type == IBX_FRONTEND_NODE_ALLOCATION || type == IBX_FRONTEND_NODE_FREE);
    }
    free(nodes);
    return has;
}

/* Adds the captured part as a child node after the last nodes, unless it is empty. CUDA clones no
 * graph that allocates memory or frees it: such a part is moved. */
static int add_part(struct capture *c, void *part)
{
    void *node = NULL;
    size_t nodes = 0;
    int rc = cudaGraphGetNodes(part, NULL, &nodes);
    const bool moves = !rc && nodes && has_memory(part, nodes);
    if (moves)
        rc = ibx_frontend_graph_move(&node, c->graph, c->last, c->count, part);
    else if (!rc && nodes)
        rc = cudaGraphAddChildGraphNode(&node, c->graph, c->last, c->count, part);
    if (node) {
        c->last[0] = node;
        c->count = 1;
    }
    if (!moves || rc)
        cudaGraphDestroy(part);
    return rc;
}

/* After the end of a part, with the error `rc` or without one. */
static int go_on(struct capture *c, int rc)
{
    const int begun = begin_capture(c->stream, c->mode, NULL);
    c->over = begun;
    const int forked = begun ? begun : ibx_frontend_forks_go_on(c->forks);
    if (!begun && (rc || forked))
        ibx_frontend_stream_ask(c->stream);
    return rc ? rc : forked;
}

/* Splits the capture: the graph has what was captured so far, and the capture goes on. An error: it
 * is invalid then, or as before. */
static int cut(struct capture *c)
{
    void *part = NULL;
    const bool may = c->mode == CUDA_CAPTURE_RELAXED || c->by == ibx_frontend_thread_number();
    if (!may || !is_of(c, c->stream)) /* another thread would invalidate it, or cannot name it */
        return ibx_frontend_fail(CUDA_NOT_SUPPORTED);
    int rc = ibx_frontend_forks_split(c->forks);
    if (rc)
        return rc;
    rc = end_capture(c, c->stream, &part);
    const bool over = ibx_call_ends_capture(rc);
    if (!rc && !c->graph)
        rc = cudaGraphCreate(&c->graph, 0);
    c->whose = GRAPH_OF_PARTS;
    if (!rc)
        rc = add_part(c, part);
    return over ? go_on(c, rc) : rc;
}

/* ------------------------------------------------------------------------------- the calls */

int cudaStreamBeginCapture(void *stream, int mode)
{
    const bool alone = !ibx_frontend_capturing();
    const int rc = begin_capture(stream, mode, NULL);
    if (!rc)
        note(stream, mode, alone);
    return rc;
}

int cudaStreamBeginCaptureToGraph(void *stream, void *graph, void *const *behind, const void *edges,
                                  size_t count, int mode)
{
    if (!graph || !ibx_frontend_edges_are_valid(edges, count) || (count && !behind) ||
        count > IBX_EXT_BEHIND)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    const bool alone = !ibx_frontend_capturing();
    struct given given = {graph, behind, edges, count, false};
    const int rc = begin_capture(stream, mode, &given);
    struct capture *c = rc ? NULL : note(stream, mode, alone);
    if (!rc && !c) {
        void *part;
        end_capture(NULL, stream, &part);
        return ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
    }
    if (rc)
        return rc;
    c->id = ibx_frontend_capture_of_graph(graph, c->id);
    c->graph = graph;
    c->whose = given.whole ? GRAPH_OF_CUDA : GRAPH_OF_PARTS;
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
    if (c) /* what fails here, CUDA tells at the end */
        ibx_frontend_forks_join(c->forks);
    int rc = end_capture(c, stream, &part);
    /* The thread that began the capture has ended, and CUDA has ended the capture. */
    const bool left = rc == CUDA_ILLEGAL_STATE && c;
    const bool over = left || ibx_call_ends_capture(rc);
    if (over)
        c = find(stream, true);
    if (!rc && c && c->graph && c->whose == GRAPH_OF_PARTS)
        rc = add_part(c, part);
    if (!rc && nobodys)
        cudaGraphDestroy(part);
    if (graph && (over || rc))
        *graph = rc ? NULL : c && c->graph ? c->graph : part;
    if (over && rc)
        lose_graph(c);
    if (over && c && c->alone && stream == CUDA_STREAM_PER_THREAD) /* captured work has not run */
        ibx_frontend_stream_rests(stream);
    if (over && !rc && c && !nobodys)
        ibx_frontend_capture_of_graph(c->graph ? c->graph : part, c->id);
    if (left)
        drop(c);
    else if (over)
        release(c);
    return rc;
}

/* Ends the capture of the stream, too. */
int ibx_frontend_stream_destroy(void *stream)
{
    struct capture *c = ibx_frontend_capturing() ? find(stream, true) : NULL;
    struct range was;
    const bool known = ibx_frontend_stream_gone(stream, &was);
    ibx_frontend_objects_stream_gone(stream);
    const int rc = CALL_NEXT(cudaStreamDestroy, stream);
    if (known && rc && rc != CUDA_INVALID_HANDLE)
        ibx_frontend_stream_stays(&was);
    if (c && rc) {
        add(c);
        return rc;
    }
    if (!rc && ibx_frontend_capturing())
        ibx_frontend_forks_stream_gone(stream);
    lose_graph(c);
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
        ibx_frontend_forks_lose_root(c->forks);
        drop(c);
    }
}

/* The capture that the stream has begun, or has joined. */
static struct capture *find_any(const void *stream)
{
    struct capture *c = find(stream, false);
    const struct ibx_forks *forks = c ? NULL : ibx_frontend_forks_of(stream);
    if (!forks)
        return c;
    ibx_frontend_ranges_lock();
    c = all;
    while (c && c->forks != forks)
        c = c->next;
    ibx_frontend_ranges_unlock();
    return c;
}

/* The number of the only capture; 0: there are several. */
static unsigned long long only_id(void)
{
    ibx_frontend_ranges_lock();
    const unsigned long long id = all && !all->next ? all->id : 0;
    ibx_frontend_ranges_unlock();
    return id;
}

/* Notes what CUDA has told of a stream; what it has told before is replaced in place, as the
 * program has it until the next call. */
static const struct ibx_told *note_told(struct capture *c, struct ibx_told *t)
{
    ibx_frontend_ranges_lock();
    struct ibx_told *known = c->told;
    while (known && known->stream != t->stream)
        known = known->next;
    t->next = known ? known->next : c->told;
    if (known)
        *known = *t;
    else
        c->told = t;
    const bool first = c->whose == GRAPH_NOT_ASKED;
    c->whose = GRAPH_OF_CUDA;
    c->graph = t->graph;
    ibx_frontend_ranges_unlock();
    if (first)
        ibx_frontend_graph_made(t->graph);
    if (known)
        free(t);
    return known ? known : t;
}

/* Asks CUDA. False: the capture is to be split. Else *rc is a CUDA error. */
static bool ask(struct capture *c, void *stream, const struct ibx_told **told, int *rc)
{
    struct ibx_told *t = c->whose == GRAPH_OF_PARTS ? NULL : calloc(1, sizeof(*t));
    if (!t)
        return false;
    t->stream = stream;
    const bool known = ibx_frontend_capture_ask(stream, t, rc);
    if (known && !*rc) {
        *told = note_told(c, t);
        return true;
    }
    free(t);
    if (!known && c->whose == GRAPH_OF_CUDA)
        *rc = ibx_frontend_fail(CUDA_NOT_SUPPORTED);
    return known || c->whose == GRAPH_OF_CUDA;
}

/* The capture of which CUDA has told this graph. */
static struct capture *find_of_graph(const void *graph)
{
    ibx_frontend_ranges_lock();
    struct capture *c = all;
    while (c && !(c->whose == GRAPH_OF_CUDA && c->graph == graph))
        c = c->next;
    ibx_frontend_ranges_unlock();
    return c;
}

/* The first capture of the calling thread with a number above `last` whose graph is not known. */
static struct capture *next_unasked(unsigned long long last)
{
    struct capture *next = NULL;
    ibx_frontend_ranges_lock();
    for (struct capture *c = all; c; c = c->next)
        if (c->order > last && (!next || c->order < next->order) && is_of(c, c->stream) &&
            c->by == ibx_frontend_thread_number() && c->whose == GRAPH_NOT_ASKED)
            next = c;
    ibx_frontend_ranges_unlock();
    return next;
}

/* The capture that a stream has joined in another way than by an event of which this library knows,
 * such as in a library of CUDA's. CUDA tells the graph. NULL: the back end does not tell, or it is
 * another thread's, whose graph is not known. */
static struct capture *find_joined(void *stream)
{
    struct ibx_told told = {.stream = stream};
    const struct ibx_told *own;
    unsigned long long last = 0;
    int rc = CUDA_SUCCESS;
    if (!ibx_frontend_capture_ask(stream, &told, &rc) || rc)
        return NULL;
    struct capture *found = find_of_graph(told.graph);
    for (struct capture *c; !found && (c = next_unasked(last)); last = c->order)
        if (ask(c, c->stream, &own, &rc) && !rc && c->graph == told.graph)
            found = c;
    return found;
}

/* Of the last nodes. */
static const uint8_t plain_edges[IBX_EXT_BEHIND * IBX_EXT_EDGE];

/* `asks`: the caller wants more than the status and the number of the capture. */
static int capture_info(void *stream, int *status, unsigned long long *id, void **graph,
                        void *const **behind, const void **edges, size_t *count, bool asks)
{
    int now = 0;
    int rc = status ? cudaStreamIsCapturing(stream, &now) : ibx_frontend_fail(CUDA_INVALID_VALUE);
    struct capture *c = rc || now != 1 ? NULL : find_any(stream);
    if (!rc && now == 1 && !c && (asks || (id && !only_id())))
        c = find_joined(stream);
    const bool joined = !rc && now == 1 && !c; /* the capture is not found */
    const unsigned long long number = c ? c->id : joined && id ? only_id() : 0;
    if (joined && (asks || (id && !number)))
        rc = ibx_frontend_fail(CUDA_NOT_SUPPORTED);
    const struct ibx_told *told = NULL;
    if (!rc && c && asks && !ask(c, stream, &told, &rc))
        rc = cut(c);
    if (!rc && told && behind && !edges && ibx_frontend_edges_have_data(told->edges, told->count))
        rc = ibx_frontend_fail(CUDA_LOSSY_QUERY);
    if (rc)
        return rc;
    *status = now;
    if (id)
        *id = number;
    if (!asks || !c)
        return CUDA_SUCCESS;
    if (graph)
        *graph = c->graph;
    const size_t n = told ? told->count : c->count;
    if (behind)
        *behind = told ? told->behind : c->last;
    if (edges) /* as many as nodes: programs that name `edges` read them */
        *edges = !n ? NULL : told ? told->edges : plain_edges;
    if (count)
        *count = n;
    return CUDA_SUCCESS;
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

static bool is_in(const void *node, void *const *nodes, size_t count)
{
    size_t i = 0;
    while (i < count && nodes[i] != node)
        i++;
    return i < count;
}

/* New dependencies of one stream, while the next part has work of others, too: it stays behind the
 * last nodes. Those that are among the new ones or right before one of these are left out, and it
 * returns how many are left. */
static size_t keep_for_others(struct capture *c, void *const *nodes, size_t count)
{
    void *before[IBX_EXT_BEHIND];
    uint8_t data[IBX_EXT_BEHIND * IBX_EXT_EDGE];
    for (size_t n = 0; n <= count && c->count; n++) {
        size_t found = IBX_EXT_BEHIND, kept = 0;
        if (n < count && cudaGraphNodeGetDependencies_v2(nodes[n], before, data, &found))
            continue;
        void *const *covered = n < count ? before : nodes;
        const size_t covers = n == count ? count : found < IBX_EXT_BEHIND ? found : IBX_EXT_BEHIND;
        for (size_t i = 0; i < c->count; i++)
            if (!is_in(c->last[i], covered, covers))
                c->last[kept++] = c->last[i];
        c->count = kept;
    }
    return c->count;
}

int cudaStreamUpdateCaptureDependencies_v2(void *stream, void *const *nodes, const void *edges,
                                           size_t count, unsigned flags)
{
    struct capture *c = find_any(stream);
    if (!c && ibx_frontend_captures(stream))
        c = find_joined(stream);
    const bool valid = (!count || nodes) && flags <= SET_DEPENDENCIES &&
                       ibx_frontend_edges_are_valid(edges, count);
    int rc = !c ? CUDA_ILLEGAL_STATE : CUDA_SUCCESS; /* CUDA looks at the capture first */
    if (c && ibx_frontend_capture_is_invalid(stream))
        rc = CUDA_CAPTURE_INVALIDATED;
    if (rc || !valid)
        return ibx_frontend_fail(rc ? rc : CUDA_INVALID_VALUE);
    const struct ibx_told *told = NULL;
    if (ask(c, stream, &told, &rc))
        return rc ? rc
                  : ibx_frontend_capture_come_behind(stream, c->graph, nodes, edges, count, flags);
    rc = cut(c);
    if (rc)
        return rc;
    size_t before = c->count;
    if (flags == SET_DEPENDENCIES)
        before = ibx_frontend_forks_any(c->forks) ? keep_for_others(c, nodes, count) : 0;
    if (count > IBX_EXT_BEHIND - before)
        return ibx_frontend_fail(CUDA_NOT_SUPPORTED);
    if (count)
        memcpy(c->last + before, nodes, count * sizeof(*nodes));
    c->count = before + count;
    return CUDA_SUCCESS;
}
