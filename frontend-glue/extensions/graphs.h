/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared by the files about graphs. */
#ifndef IBX_FRONTEND_GLUE_EXTENSIONS_GRAPHS_H
#define IBX_FRONTEND_GLUE_EXTENSIONS_GRAPHS_H

#include "frontend-glue/extensions/extensions.h"

static inline bool is_graph(const struct extension_request *e, const void *graph)
{
    return ibx_handles_know(e->x, IBX_HANDLE_GRAPH, (uintptr_t)graph) &&
           (!ibx_captures_any_of_tenant(e->x) ||
            ibx_captures_has_graph(e->x, ibx_handles_outermost(e->x, (uintptr_t)graph)));
}

static inline bool is_exec(const struct extension_request *e, const void *exec)
{
    return ibx_handles_know(e->x, IBX_HANDLE_EXEC, (uintptr_t)exec);
}

/* Destroys `made`, which cannot be noted, by the runtime's function `undo`. */
static inline int ibx_extension_no_memory(const char *undo, const void *made)
{
    ibx_back_end_undo(undo, (uintptr_t)made);
    return CUDA_MEMORY_ALLOCATION;
}

/* enum cudaGraphNodeType */
#define MEMCPY_NODE 1
#define HOST_NODE   3

/* The place of a new node in a graph, and what the node counts as. */
struct place {
    void *graph, *behind[IBX_EXT_BEHIND];
    size_t count;
    uint64_t inner;  /* nodes of the graph that is to be in the node */
    unsigned depth;  /* how deeply graphs are nested in it */
    uint64_t weight; /* reserved for it; 0: nothing is */
};

/* nodes.c */
bool ibx_extension_get_place(struct extension_request *e, struct place *p);
/* To be called before the node is made: 0, and its room is reserved until answer_node(); or a
 * cudaError_t, as ibx_graph_node_room(). */
int ibx_extension_node_room(struct extension_request *e, struct place *p);
/* Answers a request for a node, which was made if rc is 0; notes it, and gives its reserved room
 * back. Returns the exit code. */
int ibx_extension_answer_node(struct extension_request *e, int rc, struct place *p, void *node);
/* Reads an executable graph, or NULL for the graph itself; and one of the nodes that it was made
 * of. False: the client may not name these. */
bool ibx_extension_get_node(struct extension_request *e, void **exec, void **node);

/* arrays.c: a graph, or a node in the executable graph `exec` alone, has got a copy. */
void ibx_extension_graph_has_copy(struct extension_request *e, void *graph,
                                  const struct ibx_cuda_memcpy3d *copy);
void ibx_extension_exec_has_copy(struct extension_request *e, const void *exec, const void *node,
                                 const struct ibx_cuda_memcpy3d *copy);

/* edges.c */

#define EDGES_VERSION 13000 /* from here on all functions have data of edges */
#define EDGES_BEFORE  12030 /* from here on further ones have it, which end with _v2 or _v3 */

/* Of the runtime: 1000 times the major and 10 times the minor number; 0: not known. */
int ibx_extension_runtime_version(void);
/* The runtime's function that takes data of edges; before CUDA 13 its name ends with _v2. NULL:
 * there is none. */
void *ibx_extension_with_edges(const char *name);
/* Reads the data of edges, IBX_EXT_EDGE bytes each. False: CUDA knows no such data. */
bool ibx_extension_get_edges(struct extension_request *e, uint8_t *edges, size_t count);

/* captures.c */

/* What CUDA tells of a capture. `edges` NULL: they are plain, or the runtime does not tell. */
struct extension_captured {
    bool edges_known; /* the runtime's functions have data of edges */
    int status;
    unsigned long long id;
    void *graph, *const *behind;
    const void *edges;
    size_t count;
};
/* False: the stream is in no active capture, or the runtime does not tell. To be called while
 * nobody of the tenant ends a capture (ibx_captures_graphs_hold()). */
bool ibx_extension_captured(void *stream, struct extension_captured *c);
/* Makes the stream's next work depend on these nodes: cudaStreamUpdateCaptureDependencies. `edges`
 * NULL: by plain edges. */
int ibx_extension_come_behind(void *stream, const struct extension_captured *c, void *const *nodes,
                              const uint8_t *edges, size_t count, unsigned flags);
/* The nodes that CUDA says the next one comes behind are in its own memory, until the next call
 * that adds work to the stream: no other thread of the client may make one. False: one does for too
 * long. */
bool ibx_extension_has_alone(const struct extension_request *e, const void *stream);

/* graphs.c */

/* *count: how many functions of the client the graph calls, with copies between host and device. A
 * cudaError_t. */
int ibx_extension_count_functions(struct gpu_session *x, void *graph, size_t *count);

/* node_parameters.c: to be called before a node is destroyed. Forgets its child graph, which the
 * client may have asked for. */
void ibx_extension_forget_child(struct extension_request *e, void *node);

/* copies.c */

/* The number of the function of a node that copies between host and device; 0: it is no such
 * node. */
uint64_t ibx_extension_copy_of_node(struct extension_request *e, void *node);
/* From now on a node of a graph, or the capture of a stream, has a function of the client
 * (host_work.c). The function is released when that graph, its copies and its executable graphs are
 * gone. The graph itself holds only the latest function of a node, and none once the node was
 * destroyed: then _end() is called, with the object that ibx_handles_set_object() has returned. */
void ibx_extension_node_calls(struct extension_request *e, const void *node, void *repeated);
void ibx_extension_node_calls_end(void *graph, uint64_t object);
void ibx_extension_capture_calls(struct extension_request *e, void *stream, void *repeated);

#endif
