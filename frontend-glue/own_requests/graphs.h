/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared by the files about graphs. */
#ifndef IBX_FRONTEND_GLUE_OWN_REQUESTS_GRAPHS_H
#define IBX_FRONTEND_GLUE_OWN_REQUESTS_GRAPHS_H

#include "frontend-glue/own_requests/own_requests.h"

static inline bool is_graph(const struct own_request *e, const void *graph)
{
    return ibx_handles_know(e->x, IBX_HANDLE_GRAPH, (uintptr_t)graph);
}

static inline bool is_exec(const struct own_request *e, const void *exec)
{
    return ibx_handles_know(e->x, IBX_HANDLE_EXEC, (uintptr_t)exec);
}

/* What was made, and cannot be noted, is given back by the runtime's function of that name. */
static inline int ibx_own_request_no_memory(const char *undo, const void *made)
{
    ibx_back_end_undo(undo, (uintptr_t)made);
    return CUDA_MEMORY_ALLOCATION;
}

/* enum cudaGraphNodeType */
#define MEMCPY_NODE 1
#define HOST_NODE   3

/* Where a new node is to be, and what it counts as. */
struct place {
    void *graph, *behind[IBX_OWN_BEHIND];
    size_t count;
    uint64_t inner;  /* nodes of the graph that is to be in it */
    unsigned depth;  /* graphs within each other in it */
    uint64_t weight; /* of it, reserved; 0: nothing is */
};

/* nodes.c */
bool ibx_own_request_get_place(struct own_request *e, struct place *p);
/* Before it is made: 0 when its room is reserved, until the next call. */
int ibx_own_request_node_room(struct own_request *e, struct place *p);
/* The answer to a request for a node that was made, if rc is 0. */
int ibx_own_request_answer_node(struct own_request *e, int rc, struct place *p, void *node);
/* What can be launched, or NULL for the graph itself; and one of the nodes that it was made of. */
bool ibx_own_request_get_node(struct own_request *e, void **exec, void **node);

/* graphs.c */

/* How many functions of the client's that graph calls, copies with the host among them. */
int ibx_own_request_count_functions(struct gpu_session *x, void *graph, size_t *count);

/* node_parameters.c: before the node is destroyed, whose graph the client may have asked for.
 */
void ibx_own_request_forget_child(struct own_request *e, void *node);

/* copies.c */

/* The number of the function of a node that copies between host and device; 0: it is none. */
uint64_t ibx_own_request_copy_of_node(struct own_request *e, void *node);
/* A graph has a function of the client's from now on, or what is captured from a stream has
 * (host_work.c). It is released when that has gone, with its copies and what was made of them. */
void ibx_own_request_graph_calls(void *graph, void *repeated);
void ibx_own_request_capture_calls(void *stream, void *repeated);

#endif
