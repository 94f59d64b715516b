/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the captures of the preload call of other files, for their unit test alone: what CUDA and
 * the back end say is set in `is`, and what was called is counted in `was`. */
#ifndef TESTS_UNIT_FAKE_CAPTURES_H
#define TESTS_UNIT_FAKE_CAPTURES_H

#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"
#include "tests/fixtures/in_child.h"

#include <pthread.h>
#include <string.h>

/* ------------------------------------------------------------ replaced functions of other files */

static int captures_now;   /* that are counted as under way */
static int of_threads_now; /* ... of streams of threads */
static struct {
    int begin, end, destroy, mode; /* what GVirtuS's functions return; the calling thread's mode */
    bool captured;                 /* what CUDA says of any stream */
    bool invalid;                  /* ... of its capture */
    int split, go_on;              /* what the streams that have joined say */
    const void *joins;             /* the stream that has joined */
    const void *apart;             /* the only one that does not wait for the legacy one */
    const void *away;              /* the only one on device 1 */
    int device;                    /* the one that is selected */
    bool memory;                   /* whether a captured node allocates memory */
    bool into_known;               /* the back end captures into graphs that are given */
    int into;                      /* ... with this error */
    bool tells;                    /* the back end tells the graph of a capture */
    const void *other;             /* ... of this stream another one than of all others */
    int told;                      /* ... with this error */
    size_t behind;                 /* ... and so many nodes before the next one */
    uint8_t edge;                  /* ... whose edges begin with this byte */
} is;
static struct {
    unsigned asked, rests, stays, destroyed, parts, begun, ended, forked, joined, moved, lost,
        updated, noted, settled;
    const void *last_destroyed;
    size_t behind; /* so many nodes the last part came */
} was;
static char made[16]; /* graphs: parts of captures */
static char own[16];  /* ... and those that this library makes to name them */
static unsigned parts, owns;
static ibx_frontend_next_capture *forbidding;

static int next_begin(void *stream, int mode)
{
    (void)stream, (void)mode;
    was.begun++;
    assert_true(was.settled);
    return is.begin;
}

static int next_end(void *stream, void **graph)
{
    (void)stream;
    was.ended++;
    *graph = is.end ? NULL : &made[parts++ % sizeof(made)];
    return is.end;
}

static int next_destroy(void *stream)
{
    (void)stream;
    return is.destroy;
}

void *ibx_frontend_next(_Atomic(void *) *found, const char *symbol)
{
    (void)found;
    return !strcmp(symbol, "cudaStreamBeginCapture") ? (void *)next_begin
           : !strcmp(symbol, "cudaStreamEndCapture") ? (void *)next_end
                                                     : (void *)next_destroy;
}

bool ibx_frontend_first_begins(void)
{
    return true;
}
void ibx_frontend_first_is_over(void) {}

int ibx_frontend_fail(int code)
{
    return code;
}

void ibx_frontend_capture_begins(void)
{
    captures_now++;
}
int ibx_frontend_captures_hold(void)
{
    return 0;
}
void ibx_frontend_captures_let_go(int cancel)
{
    (void)cancel;
}
void ibx_frontend_capture_gone(void)
{
    captures_now--;
}
bool ibx_frontend_capturing(void)
{
    return captures_now > 0;
}
int ibx_frontend_capture_mode(void)
{
    return is.mode;
}
bool ibx_frontend_captures(void *stream)
{
    return stream == &is;
}
bool ibx_frontend_capture_is_invalid(void *stream)
{
    (void)stream;
    return is.invalid;
}
void ibx_frontend_captures_forbid(ibx_frontend_next_capture *next)
{
    forbidding = next;
}
void ibx_frontend_thread_capture_begins(bool rested)
{
    (void)rested;
    of_threads_now++;
}
void ibx_frontend_thread_capture_ends(bool rested)
{
    (void)rested;
    of_threads_now--;
}

bool ibx_frontend_edges_are_valid(const void *edges, size_t count)
{
    (void)edges, (void)count;
    return true;
}
void ibx_frontend_managed_rests(void) {}
/* Copies in the legacy stream are over. Those that begin from now on see that something is
 * captured.
 */
void ibx_frontend_managed_captures(void)
{
    was.settled += captures_now > 0;
}
void ibx_frontend_objects_made(const void *graph)
{
    (void)graph;
    was.noted++;
}
void ibx_frontend_objects_stream_gone(const void *stream)
{
    (void)stream;
}
bool ibx_frontend_stream_blocks(const void *stream)
{
    return stream != is.apart;
}
int ibx_frontend_stream_device(const void *stream)
{
    return stream == CUDA_STREAM_PER_THREAD ? is.device : stream == is.away;
}
int ibx_frontend_current_device(void)
{
    return is.device;
}
int ibx_frontend_stream_ask(void *stream)
{
    (void)stream;
    was.asked++;
    return 0;
}
bool ibx_frontend_stream_gone(const void *stream, struct range *range)
{
    (void)stream, (void)range;
    return true;
}
void ibx_frontend_stream_stays(const struct range *range)
{
    (void)range;
    was.stays++;
}
void ibx_frontend_stream_rests(const void *stream)
{
    (void)stream;
    was.rests++;
}
void ibx_frontend_stream_used(const void *stream)
{
    (void)stream;
}

int cudaStreamIsCapturing(void *stream, int *status)
{
    (void)stream;
    *status = is.captured;
    return 0;
}
int cudaGraphCreate(void **graph, unsigned flags)
{
    (void)flags;
    *graph = &own[owns++ % sizeof(own)];
    return 0;
}
int cudaGraphDestroy(void *graph)
{
    was.destroyed++;
    was.last_destroyed = graph;
    return 0;
}
int cudaGraphGetNodes(void *graph, void **nodes, size_t *count)
{
    (void)graph;
    if (nodes)
        *nodes = NULL;
    *count = 1;
    return 0;
}
bool ibx_frontend_captured_memory(void)
{
    return true;
}
int cudaGraphNodeGetType(void *node, int *type)
{
    (void)node;
    *type = is.memory ? IBX_FRONTEND_NODE_ALLOCATION : IBX_FRONTEND_NODE_EMPTY;
    return 0;
}
int ibx_frontend_graph_move(void **node, void *graph, void *const *behind, size_t count,
                            void *child)
{
    (void)graph, (void)behind, (void)count;
    was.moved++;
    *node = child;
    return 0;
}
int cudaGraphAddChildGraphNode(void **node, void *graph, void *const *behind, size_t count,
                               void *child)
{
    (void)graph, (void)behind;
    was.behind = count;
    was.parts++;
    *node = child;
    return 0;
}

/* The graph is the one that the end of the capture returns. */
bool ibx_frontend_capture_ask(void *stream, struct ibx_told *t, int *rc)
{
    t->graph = &made[(parts + (stream == is.other)) % sizeof(made)];
    t->count = is.behind;
    for (size_t i = 0; i < is.behind; i++) {
        t->behind[i] = (char *)stream + i;
        t->edges[i * IBX_EXT_EDGE] = is.edge;
    }
    *rc = is.told;
    return is.tells;
}
bool ibx_frontend_edges_have_data(const void *edges, size_t count)
{
    return count && *(const uint8_t *)edges;
}
int ibx_frontend_capture_come_behind(void *stream, const void *graph, void *const *nodes,
                                     const void *edges, size_t count, unsigned flags)
{
    (void)stream, (void)nodes, (void)edges, (void)count, (void)flags;
    was.updated++;
    assert_ptr_equal(graph, &made[parts % sizeof(made)]);
    return 0;
}
bool ibx_frontend_capture_into(void *stream, const void *graph, void *const *behind,
                               const void *edges, size_t count, int mode, int *rc)
{
    (void)stream, (void)graph, (void)behind, (void)edges, (void)count, (void)mode;
    *rc = is.into;
    return is.into_known;
}
void ibx_frontend_graph_lost(void *graph)
{
    was.lost++;
    was.last_destroyed = graph;
}

static void *dependency; /* of any node */

int cudaGraphNodeGetDependencies_v2(void *node, void **nodes, void *edges, size_t *count)
{
    (void)node, (void)edges;
    nodes[0] = dependency;
    *count = dependency != NULL;
    return 0;
}

/* What has joined the only capture. */
struct ibx_forks {
    const void *stream;
} forks;

uint64_t ibx_frontend_thread_number(void)
{
    return (uint64_t)pthread_self();
}
struct ibx_forks *ibx_frontend_forks_begin(const void *stream)
{
    forks.stream = stream;
    return &forks;
}
void ibx_frontend_forks_end(struct ibx_forks *f)
{
    (void)f;
}
void ibx_frontend_forks_lose_root(struct ibx_forks *f)
{
    (void)f;
}
const struct ibx_forks *ibx_frontend_forks_of(const void *stream)
{
    return stream == is.joins ? &forks : NULL;
}
bool ibx_frontend_forks_any(const struct ibx_forks *f)
{
    return f && is.joins;
}
int ibx_frontend_forks_split(struct ibx_forks *f)
{
    (void)f;
    return is.split;
}
int ibx_frontend_forks_go_on(struct ibx_forks *f)
{
    (void)f;
    was.forked++;
    return is.go_on;
}
int ibx_frontend_forks_join(struct ibx_forks *f)
{
    (void)f;
    was.joined++;
    return 0;
}
void ibx_frontend_forks_stream_gone(const void *stream)
{
    (void)stream;
}

#endif
