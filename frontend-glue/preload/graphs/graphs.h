/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Graphs, and streams that are captured into them.
 *
 *   graphs.c         graphs, in requests of our own
 *   graph_nodes.c, graph_parameters.c, graph_conditions.c  their nodes
 *   graph_drawing.c  their drawings
 *   user_objects.c   objects of the program's that they have
 *   graph_copies.c   copies between host and device in them, or made by them
 *   host_calls.c     functions of the host that are added to streams
 *   captured_work.c  what goes into a capture in another way than GVirtuS's
 *   capture_graphs.c captures, and graphs that a program names while there is one
 */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_GRAPHS_GRAPHS_H
#define IBX_FRONTEND_GLUE_PRELOAD_GRAPHS_GRAPHS_H

#include "frontend-glue/preload/preload.h"

/* ----------------------------------------------------------------------------- capture_graphs.c */

/* A device was reset: no capture of this process's is left. */
void ibx_frontend_captures_reset(void);
/* cudaStreamDestroy, with the capture of the stream. */
int ibx_frontend_stream_destroy(void *stream);

/* ------------------------------------------------------------------------------ captured_work.c */

/* What a stream that is captured takes: a function; a copy of which one side is the host's. */
int ibx_frontend_capture_function(void *stream, void (*function)(void *argument), void *argument);
int ibx_frontend_capture_copy(const struct ibx_cuda_memcpy3d *copy, void *stream);

/* ------------------------------------------------------------------------------------- graphs.c */

/* Whether these dependencies, of which each has data (NULL: none has), are as good as usual ones.
 */
bool ibx_frontend_edges_are_known(const void *edges, size_t count);
/* What is launched calls another function from now on, in that node; `before`: that which the node
 * itself calls. What the call returns. */
int ibx_frontend_exec_exchange(const void *exec, const void *node, uint64_t before,
                               uint64_t number);
/* The node itself does: what can be launched already still calls that one. */
void ibx_frontend_execs_keep(const void *node, uint64_t number);

/* ------------------------------------------------------------------------------- user_objects.c */

/* What was made of a graph, or has another one in it, has the objects of that, too. */
void ibx_frontend_objects_share(const void *from, const void *to);
/* What can be launched was, or has become like that graph. */
void ibx_frontend_objects_launched(const void *exec, void *stream);
void ibx_frontend_objects_updated(const void *exec, const void *graph);
/* It, or a graph, is about to be destroyed: behind that another one may have its handle. NULL: it
 * has none. Whether it is gone. */
struct holding;
struct holding *ibx_frontend_objects_take(const void *holder);
void ibx_frontend_objects_gone(struct holding *taken, bool gone);

/* --------------------------------------------------------------------------- graph_parameters.c */

/* A graph was destroyed: what its nodes have told. */
void ibx_frontend_graph_gone(const void *graph);

/* ------------------------------------------------------------------------------- graph_copies.c */

/* The number of a function that makes the copy, as ibx_frontend_host_repeated(); 0: *rc says why
 * not. */
uint64_t ibx_frontend_copy_function(const struct ibx_cuda_memcpy3d *copy, uint64_t *queue, int *rc);
/* Puts a copy of which one side is the host's into a request, to be made by a slot of the back
 * end's: the number of its function; 0: it cannot be made so, and nothing was put. The request:
 * false: the back end has no slot for it, or knows none; otherwise *rc says how it went. */
uint64_t ibx_frontend_slot_copy(struct ibx_writer *body, const struct ibx_cuda_memcpy3d *copy);
bool ibx_frontend_slot_made(struct own_request *own, void *out, size_t n, int *rc);
/* The copy of that function, as the program has said it; false: it is none. */
bool ibx_frontend_slot_parameters(uint64_t number, struct ibx_cuda_memcpy3d *copy);
/* A copy of one row between the host's memory and the device in the order of the stream: the call
 * does not wait. Its bytes are read when the stream gets there, or where the call takes them, now;
 * they are few then. False: it cannot be made so, and nothing was done. */
bool ibx_frontend_graph_copy_behind(const struct ibx_cuda_memcpy3d *copy, bool takes, void *stream,
                                    int *rc);
/* When there are many such copies, those that are over are given up, but for those in streams that
 * wait for functions, so that there is room for others. */
void ibx_frontend_graph_behind_trim(void);

/* -------------------------------------------------------------------------------- graph_nodes.c */

/* graph_nodes.c: the same as a graph's only node. */
bool ibx_frontend_slot_node(void **node, void *graph, const struct ibx_cuda_memcpy3d *copy,
                            int *rc);

#endif
