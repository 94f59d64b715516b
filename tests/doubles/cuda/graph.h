/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Graphs of the doubles: shared by the runtime's double, which has most of their calls, and the
 * driver's, which has kernels. An invalid handle ends the process, as with CUDA. */
#ifndef TESTS_DOUBLES_CUDA_GRAPH_H
#define TESTS_DOUBLES_CUDA_GRAPH_H

#include "frontend-glue/session/extensions.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#define GRAPH_NODES   64u
#define GRAPH_BEHIND  64u
#define GRAPH_OBJECTS 128u

enum graph_node_type { /* enum cudaGraphNodeType */
                       NODE_KERNEL,
                       NODE_MEMCPY,
                       NODE_MEMSET,
                       NODE_HOST,
                       NODE_GRAPH,
                       NODE_EMPTY,
                       NODE_WAIT,
                       NODE_RECORD,
                       NODE_ALLOC = 10,
                       NODE_FREE,
                       NODE_NONE,
                       NODE_CONDITIONAL
};

/* CUDA_KERNEL_NODE_PARAMS */
struct kernel_parameters {
    void *kernel;
    unsigned size[6], shared;
    void **arguments, **extra;
    void *other_kernel, *context;
};

/* Takes a launch into the graph of its stream's capture; false: the stream is not captured.
 * `packed`: its arguments came in one buffer. */
typedef bool ibx_double_take(void *stream, void *kernel, const unsigned size[6],
                             const uint64_t values[3], bool packed);

struct double_graph;

struct graph_node {
    uint64_t magic;
    struct double_graph *graph;
    int type;
    bool off; /* disabled, in an executable graph */
    unsigned index, count;
    unsigned behind[GRAPH_BEHIND];
    uint8_t edges[GRAPH_BEHIND][IBX_EXT_EDGE]; /* the data of these */
    struct {
        uint64_t values[3]; /* arguments of the kernel */
        void *wide;         /* arguments of a kernel of IBX_DOUBLE_WIDE; NULL: another kernel */
        bool packed;        /* the arguments came in one buffer */
        unsigned size[6];
        void *kernel;
        void *pointers[3];      /* to its arguments, for calls that return these */
        uint64_t attribute[16]; /* those that calls return */
        struct ibx_cuda_memcpy3d copy;
        struct ibx_cuda_memset set;
        struct {
            void (*function)(void *argument);
            void *argument;
        } host;
        struct double_graph *child;
        void *bodies[2]; /* of a conditional node; NULL: there is none */
        unsigned condition;
        void *event;
        void *memory; /* of a node that allocates or frees it */
        size_t memory_bytes;
    } of;
};

/* `destroy` is called when no graph has the object any more. */
struct user_object {
    atomic_uint references;
    void (*destroy)(void *what);
    void *what;
};

struct double_graph {
    uint64_t magic;
    void *launched;                        /* the stream of the last launch */
    const void *clone_of;                  /* NULL: it is not a clone */
    const void *copy_of;                   /* NULL: it is not a copy */
    bool copied;                           /* others may have its memory */
    unsigned long long flags;              /* of an executable graph */
    struct double_graph *next_with_memory; /* executable graphs whose graph allocates memory */
    unsigned count, objects;
    struct graph_node nodes[GRAPH_NODES];
    struct user_object *object[GRAPH_OBJECTS];
};
#define GRAPH_MAGIC 0x6772617068ull
#define NODE_MAGIC  0x6e6f6465ull

static inline struct double_graph *graph_of(void *handle)
{
    struct double_graph *graph = handle;
    if (graph->magic != GRAPH_MAGIC)
        abort();
    return graph;
}

static inline struct graph_node *node_of(void *handle)
{
    struct graph_node *node = handle;
    if (node->magic != NODE_MAGIC)
        abort();
    graph_of(node->graph);
    return node;
}

/* The part of an executable graph that is the copy of `graph`: itself, or a graph in one of its
 * nodes. NULL: there is none. */
static inline struct double_graph *graph_in(struct double_graph *exec, const void *graph)
{
    struct double_graph *found = exec->copy_of == graph ? exec : NULL;
    for (unsigned i = 0; i < exec->count && !found; i++) {
        const struct graph_node *node = &exec->nodes[i];
        if (node->type == NODE_GRAPH)
            found = graph_in(node->of.child, graph);
        for (unsigned b = 0; b < 2 && node->type == NODE_CONDITIONAL && !found; b++)
            found = node->of.bodies[b] ? graph_in(node->of.bodies[b], graph) : NULL;
    }
    return found;
}

/* The node of an executable graph that stands for `node`. */
static inline struct graph_node *node_in(void *exec, void *node)
{
    struct double_graph *all = graph_of(exec), *found = graph_in(all, node_of(node)->graph);
    return &(found ? found : all)->nodes[node_of(node)->index];
}

/* Adds a node; NULL: there are too many. */
static inline struct graph_node *graph_add(void *handle, int type, void *const *behind,
                                           size_t count)
{
    struct double_graph *graph = graph_of(handle);
    if (graph->count == GRAPH_NODES || count > GRAPH_BEHIND)
        return NULL;
    struct graph_node *node = &graph->nodes[graph->count];
    *node = (struct graph_node){.magic = NODE_MAGIC,
                                .graph = graph,
                                .type = type,
                                .index = graph->count++,
                                .count = (unsigned)count};
    for (size_t i = 0; i < count; i++)
        node->behind[i] = node_of(behind[i])->index;
    return node;
}

/* graphs.c. captured(): the graph into which the stream is captured; NULL: it is not captured. */
struct double_graph *graph_captured(void *stream);
/* The nodes behind which the stream's next one comes in the capture, and how many. tell(): these,
 * in memory that is freed as soon as there is a next one, or the capture has ended. */
size_t capture_behind(const void *stream, void **behind);
void *const *capture_tell(void *const *behind, size_t count);
struct double_graph *graph_copy(void *graph);
void graph_discard(void *graph);

/* graph_runs.c: whether the events of all nodes exist, and their kernels are loaded. */
bool graph_has_all(const struct double_graph *graph);

/* graph_runs.c: runs what such a node does, in a stream. */
int graph_run_copy(const struct ibx_cuda_memcpy3d *copy, void *stream);
int graph_run_set(const struct ibx_cuda_memset *set, void *stream);

/* graph_copies.c. hold(): a copy of a graph has the same objects. release(): a graph that is gone
 * has none. exchange(): an executable graph has the objects of `graph`, and keeps its earlier ones
 * until its launches have ended. */
void graph_objects_hold(const struct double_graph *graph);
void graph_objects_release(struct double_graph *graph);
void graph_objects_exchange(struct double_graph *exec, const struct double_graph *graph);

#endif
