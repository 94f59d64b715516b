/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Graphs, and the capture of streams into them.
 *
 *   graphs.c         graphs, as extension requests
 *   graph_nodes.c, graph_parameters.c, graph_conditions.c  their nodes
 *   edges.c          the edges between these, and their data
 *   graph_drawing.c  cudaGraphDebugDotPrint
 *   user_objects.c   objects of the program that graphs keep (cudaUserObjectCreate)
 *   graph_copies.c   copies between host and device as nodes of graphs
 *   launch_copies.c  the bytes of this process that a launch takes for these, and waits for
 *   host_calls.c     cudaLaunchHostFunc and callbacks
 *   captured_work.c  what is captured in another way than GVirtuS would
 *   capture_graphs.c captures, and the graphs that a program names during one
 *   capture_questions.c  questions about the graph of a capture, to CUDA
 *   capture_numbers.c  the numbers of captures into one graph
 *
 * There are circles of calls. graph_nodes.c adds copies by graph_copies.c, which has it add the
 * node of a slot. graph_parameters.c exchanges executables by graphs.c, which tells it of graphs
 * that are gone. user_objects.c, which the others tell what graphs have, makes calls of CUDA
 * itself: it has a stream call a function when a launch has completed, and checks graphs.
 */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_GRAPHS_GRAPHS_H
#define IBX_FRONTEND_GLUE_PRELOAD_GRAPHS_GRAPHS_H

#include "frontend-glue/preload/preload.h"

/* Writes a graph, and those of its nodes that something comes behind. More than IBX_EXT_BEHIND make
 * the request fail later. */
static inline void ibx_frontend_put_place(struct extension_request *e, const void *graph,
                                          void *const *behind, size_t count)
{
    ibx_put_u64(&e->body, (uintptr_t)graph);
    ibx_put_u16(&e->body, (uint16_t)count);
    for (size_t i = 0; behind && i < count && i < IBX_EXT_BEHIND; i++)
        ibx_put_u64(&e->body, (uintptr_t)behind[i]);
    e->body.failed = e->body.failed || count > IBX_EXT_BEHIND;
}

/* ----------------------------------------------------------------------------- capture_graphs.c */

/* Forgets all captures of this process, after a reset of the device. */
void ibx_frontend_captures_reset(void);
/* cudaStreamDestroy, which also ends a capture of the stream. */
int ibx_frontend_stream_destroy(void *stream);

/* -------------------------------------------------------------------------- capture_questions.c */

/* What CUDA says of a stream that is captured: the graph, and the nodes behind which the stream's
 * next work comes, with the data of the edges from these. */
struct ibx_told {
    struct ibx_told *next; /* of another stream of the capture */
    const void *stream;
    void *graph;
    size_t count;
    void *behind[IBX_EXT_BEHIND];
    uint8_t edges[IBX_EXT_BEHIND * IBX_EXT_EDGE];
};
/* False: the back end cannot tell. Else *rc is a CUDA error. */
bool ibx_frontend_capture_ask(void *stream, struct ibx_told *t, int *rc);
/* cudaStreamUpdateCaptureDependencies with nodes of the capture's graph. Returns a CUDA error. */
int ibx_frontend_capture_come_behind(void *stream, const void *graph, void *const *nodes,
                                     const void *edges, size_t count, unsigned flags);
/* cudaStreamBeginCaptureToGraph. False: the back end cannot, or the graph is a part of another one;
 * else *rc is a CUDA error. */
bool ibx_frontend_capture_into(void *stream, const void *graph, void *const *behind,
                               const void *edges, size_t count, int mode, int *rc);

/* ---------------------------------------------------------------------------- capture_numbers.c */

/* The number of the captures into a graph: that of the first one, and `id` if this is it. CUDA
 * gives all of them the same. */
unsigned long long ibx_frontend_capture_of_graph(const void *graph, unsigned long long id);
/* A graph is about to be destroyed, or had the handle of one that was made now. */
void ibx_frontend_capture_graph_gone(const void *graph);

/* ------------------------------------------------------------------------------ captured_work.c */

/* Adds to the capture of a stream: a host function; a copy of which at least one side is host
 * memory. Return a CUDA error. */
int ibx_frontend_capture_function(void *stream, void (*function)(void *argument), void *argument);
int ibx_frontend_capture_copy(const struct ibx_cuda_memcpy3d *copy, void *stream);

/* ------------------------------------------------------------------------------------- graphs.c */

/* A list of a graph or a node from the back end: handles of nodes, or numbers of functions. NULL:
 * *rc is the error. The caller frees it. room(): memory for so many as the back end has stated. */
uint64_t *ibx_frontend_graph_list(enum ibx_extension number, const char *call, const void *of,
                                  int root, size_t *count, int *rc);
uint64_t *ibx_frontend_graph_room(size_t n, const char *call, int *rc);
/* CUDA has destroyed the graph of a capture: forgets what is known of it. */
void ibx_frontend_graph_lost(void *graph);
/* Launches a graph of this library's with one copy, which function `number` makes, and does not
 * wait for it. The function gets what `copy` has taken. */
struct ibx_launch_copy;
int ibx_frontend_launch_later(void *exec, void *stream, uint64_t number,
                              struct ibx_launch_copy *copy);
/* In an executable graph, has a node call function `number` from now on. `before`: the number that
 * the node in the graph calls. Returns a CUDA error. */
int ibx_frontend_exec_exchange(const void *exec, const void *node, uint64_t before,
                               uint64_t number);
/* A node of a graph calls another function from now on. Executable graphs that exist already still
 * call function `number`. */
void ibx_frontend_execs_keep(const void *node, uint64_t number);

/* -------------------------------------------------------------------------------------- edges.c */

/* Whether `count` dependencies may have this edge data (NULL: none): driver 580 knows plain and
 * programmatic ones. */
bool ibx_frontend_edges_are_valid(const void *edges, size_t count);
/* Whether any edge is not plain. */
bool ibx_frontend_edges_have_data(const void *edges, size_t count);
/* For a new node: whether it may have these edges, as far as that is known here. plain(): copies
 * the nodes that it comes behind by plain edges, and returns how many these are. add(): makes the
 * other edges. Returns a CUDA error. */
bool ibx_frontend_edges_fit(void *const *behind, const void *edges, size_t count, bool to_kernel);
size_t ibx_frontend_edges_plain(void *const *behind, const void *edges, size_t count,
                                void *plain_ones[IBX_EXT_BEHIND]);
int ibx_frontend_edges_add(void *graph, void *const *behind, const void *edges, size_t count,
                           const void *node);

/* ---------------------------------------------------------------------------- graph_conditions.c
 */

/* Adds a child node that has `child` itself, which is the graph's from then on. Returns a CUDA
 * error; before CUDA 12.9 there is always one. */
int ibx_frontend_graph_move(void **node, void *graph, void *const *behind, size_t count,
                            void *child);

/* ------------------------------------------------------------------------------- user_objects.c */

/* `to` was made from graph `from`, or contains it: it gets the same objects. */
void ibx_frontend_objects_share(const void *from, const void *to);
/* `from` is a part of `to` now, and ends with it. */
void ibx_frontend_objects_move(const void *from, const void *to);
/* What a graph gets from now on, `outer` gets: it ends with that one. */
void ibx_frontend_objects_within(const void *graph, const void *outer);
/* A graph was made: one that had its handle, and was within another one, is gone. */
void ibx_frontend_objects_made(const void *graph);
/* The same for all that is known of graphs. */
static inline void ibx_frontend_graph_made(const void *graph)
{
    ibx_frontend_objects_made(graph);
    ibx_frontend_capture_graph_gone(graph);
}
/* An executable graph was launched, or was updated to be like a graph. */
void ibx_frontend_objects_launched(const void *exec, void *stream);
void ibx_frontend_objects_updated(const void *exec, const void *graph);
/* A stream is about to be destroyed. */
void ibx_frontend_objects_stream_gone(const void *stream);
/* A device was reset. */
void ibx_frontend_objects_reset(int device);
/* Before a graph or an executable graph is destroyed: takes its objects, since another one may have
 * the handle right after the call. NULL: it has none. *launched: its last launch, or NULL. _gone()
 * follows after the call: `gone` says whether it succeeded. */
struct holding;
struct launched;
struct holding *ibx_frontend_objects_take(const void *holder, struct launched **launched);
void ibx_frontend_objects_gone(struct holding *taken, struct launched *launched, bool gone);

/* --------------------------------------------------------------------------- graph_parameters.c */

/* A graph was destroyed: frees what the program was given about its nodes. */
void ibx_frontend_graph_gone(const void *graph);

/* ------------------------------------------------------------------------------- graph_copies.c */

/* The number of a host function that makes the copy (ibx_frontend_host_repeated()); 0: *rc is the
 * error. */
uint64_t ibx_frontend_copy_function(const struct ibx_cuda_memcpy3d *copy, uint64_t *queue, int *rc);
/* Appends a copy between host and device to a request, to be made through a slot of the back end.
 * Returns the number of its host function; 0: it cannot be made so, and nothing was appended.
 * _made() sends the request. False: the back end has no slot for it, or does not know the request;
 * else *rc is the result. */
uint64_t ibx_frontend_slot_copy(struct ibx_writer *body, const struct ibx_cuda_memcpy3d *copy);
bool ibx_frontend_slot_made(struct extension_request *own, void *out, size_t n, int *rc);
/* The copy that function `number` makes, as the program described it; false: it makes none. */
bool ibx_frontend_slot_parameters(uint64_t number, struct ibx_cuda_memcpy3d *copy);
/* Makes a copy of one row between host and device in the order of the stream, without waiting. The
 * host memory is read when the stream gets there or, if `takes` is set, before the call returns;
 * `takes` is for few bytes. False: it cannot be made so, or there is no room for what is taken, and
 * nothing was done. */
bool ibx_frontend_graph_copy_behind(const struct ibx_cuda_memcpy3d *copy, bool takes, void *stream,
                                    int *rc);
/* Ends completed copies of this kind if there are many, to make room for others. Those in a stream
 * that waits for a host function stay. */
void ibx_frontend_graph_behind_trim(void);

/* ------------------------------------------------------------------------------ launch_copies.c */

/* As ibx_frontend_host_launch(), like CUDA's launch: the program may change pageable memory from
 * which the graph copies, and read that to which it copies, when the launch returns. */
int ibx_frontend_copies_launch(const uint64_t *numbers, size_t count, void *stream,
                               int (*launch)(void *exec, void *stream), void *exec);

/* -------------------------------------------------------------------------------- graph_nodes.c */

/* Adds the copy to an empty graph as its only node, through a slot. False: as for
 * ibx_frontend_slot_made(). */
bool ibx_frontend_slot_node(void **node, void *graph, const struct ibx_cuda_memcpy3d *copy,
                            int *rc);

#endif
