/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What requests have returned, by its handle: whose it is, who uses it, which a request may name.
 *
 *   handles.c        what requests have returned
 *   handle_ends.c    ... of which, what a client leaves
 *   handle_openers.c ... what other clients have opened
 *   handle_sizes.c   ... what graphs, and what was made of them, count as
 *   handle_memory.c  ... memory: which program has it, and who gives it back
 *   named_streams.c  which of these, and which streams, a request may name
 *
 * handles.c, handle_openers.c and handle_sizes.c call each other: they are one list under one lock.
 */
#ifndef IBX_FRONTEND_GLUE_HANDLES_HANDLES_H
#define IBX_FRONTEND_GLUE_HANDLES_HANDLES_H

#include "frontend-glue/back_end/back_end.h"
#include "frontend-glue/tenants/client_list.h"
#include "frontend-glue/tenants/rooms.h"

struct handle;

/* handles.c, handle_ends.c, handle_sizes.c, handle_openers.c */

/* A handle of the session's tenant and client, a device's own pool of all. False: no memory. */
bool ibx_handles_add(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
/* This one, and those below that ask, hold what they find for the request in hand: nobody gives it
 * back until ibx_handles_let_go(). */
bool ibx_handles_know(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
void ibx_handles_let_go(struct gpu_session *x);
/* Likewise, but what it finds may be given back meanwhile; and how many streams and events were, by
 * anybody: until that changes, what was there is. */
bool ibx_handles_has(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
unsigned ibx_handles_gone_so_far(void);
/* A level of a mipmapped array; whether the array is such a one. */
bool ibx_handles_add_level(struct gpu_session *x, uint64_t array, uint64_t mipmap);
bool ibx_handles_is_level(struct gpu_session *x, uint64_t array);
/* A graph that goes with another one, of which it is a conditional node's; whether it is. */
void ibx_handles_within(struct gpu_session *x, uint64_t graph, uint64_t other);
bool ibx_handles_is_within(struct gpu_session *x, uint64_t graph);
/* What conditional nodes of a graph are made with; it goes with the graph. */
bool ibx_handles_add_condition(struct gpu_session *x, uint64_t condition, uint64_t graph);
/* What counts as `weight`. */
bool ibx_handles_add_heavy(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                           uint64_t weight);
/* A new node of a graph, which counts as `weight`, with so many graphs within each other in it, or
 * one that CUDA lists; those of a graph that is no more; whether it is one of it. */
bool ibx_handles_add_node(struct gpu_session *x, uint64_t node, uint64_t graph, uint64_t weight,
                          unsigned depth);
bool ibx_handles_list_node(struct gpu_session *x, uint64_t node, uint64_t graph);
void ibx_handles_forget_nodes(uint64_t graph);
bool ibx_handles_is_node_of(struct gpu_session *x, uint64_t node, uint64_t graph);
/* The graph that it is in, or the one that this is in; 0: that is not known. */
uint64_t ibx_handles_graph_of(struct gpu_session *x, uint64_t node, bool outermost);
/* A graph has so many nodes more than were added to it. */
void ibx_handles_grow(struct gpu_session *x, uint64_t graph, uint64_t nodes, unsigned depth);
/* What a graph, or what was made of one, counts as, with the graphs in it; of how many it is one
 * within the other, and how many are so in it, itself too. Zeros: there is none. */
struct ibx_graph_size ibx_handles_size(struct gpu_session *x, enum ibx_handle_kind kind,
                                       uint64_t value);
/* What can be launched was made of a graph of that size. */
void ibx_handles_made_so(struct gpu_session *x, uint64_t exec, struct ibx_graph_size size);
/* It was made of that graph, with so many functions of clients that may need CUDA
 * to end; these, 0: not known; whether the node was in it then. */
void ibx_handles_made_of(struct gpu_session *x, uint64_t exec, uint64_t graph, unsigned functions);
unsigned ibx_handles_functions(struct gpu_session *x, uint64_t exec);
bool ibx_handles_has_node(struct gpu_session *x, uint64_t exec, uint64_t node);
/* A request is about to change it, as one that asks for a node of it is, too: when no other request
 * has it. False: there is none, or that takes too long. */
bool ibx_handles_change(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
/* A library's handle has that stream; which one it has. */
void ibx_handles_select(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                        uint64_t stream);
uint64_t ibx_handles_selected(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
/* A library's handle uses another one from now on, of that kind; 0: none. Whether what it uses is
 * there still, and no other one in its place: then the request holds it, too. */
void ibx_handles_rely(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                      enum ibx_handle_kind on, uint64_t other);
bool ibx_handles_may_rely(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                          enum ibx_handle_kind on);
/* A library's handle that a handler of GVirtuS's has made: as ibx_handles_add_heavy(); whether it
 * is one. */
bool ibx_handles_add_of_handler(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                                uint64_t weight);
bool ibx_handles_is_of_handler(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
/* The context is gone, and what was in it; NULL: it is not known which. */
void ibx_handles_forget(const void *context);
/* GVirtuS's handler is about to give back what has that handle, if it is the tenant's. */
void ibx_handles_gone(struct gpu_session *x, uint64_t value);
/* Whether it was there; it is no more. Waits for other requests that hold it; false also if that
 * takes too long. */
bool ibx_handles_remove(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
/* All of the client's in the thread's context that are given back one by one, in no order; they are
 * no more. How many; *taken is to be freed. */
struct ibx_taken {
    enum ibx_handle_kind kind;
    uint64_t value;
    const void *context; /* in which it is; NULL: not known */
    bool was_open;       /* to another client, too */
    uint64_t number;     /* of memory, for ibx_memory_free_end() */
    uint64_t owned;      /* as the tenant's, for ibx_owners_remove(); 0: it is not noted */
};
/* CUDA has it back. */
void ibx_taken_gone(const struct ibx_taken *taken);
size_t ibx_handles_take(struct gpu_session *x, struct ibx_taken **taken);
/* Likewise the graphs of a client, of all contexts, and what was made of them to be launched. */
size_t ibx_handles_take_graphs(uint64_t client, struct ibx_taken **taken);
/* Likewise so many of one kind in one context, at most; how many. In none of these is what another
 * client has opened, and a request holds: the former is that client's from now on. */
size_t ibx_handles_take_some(uint64_t client, enum ibx_handle_kind kind, const void *context,
                             struct ibx_taken *taken, size_t most);
/* The context of one that can be taken; false: there is none. Whether there are any of the
 * client's, held ones too. */
bool ibx_handles_first(uint64_t client, enum ibx_handle_kind kind, const void **context);
bool ibx_handles_any(uint64_t client);
/* The session's client uses another one's from now on. False: it is not there, or no memory. */
bool ibx_handles_open(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
/* The session's client has opened what is another process's, whoever has done so before; *again:
 * somebody has, and it is open once in all. One thread at a time. False: no memory. */
bool ibx_handles_open_theirs(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                             bool *again);
/* Whether the session's client has it open; whether anybody has it at all. */
bool ibx_handles_opened_by(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
bool ibx_handles_there(enum ibx_handle_kind kind, uint64_t value);
/* Somebody whom nobody here knows may use it, as another client that has opened it. */
void ibx_handles_expose(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
/* Whether it is the client's own, which nobody else has ever opened: the context in which it is;
 * NULL: not known. */
bool ibx_handles_is_own(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                        const void **context);
/* All streams of a client's, 0: of all, in the context, or of no known one, held; NULL: no memory.
 */
struct handle **ibx_handles_hold_streams(uint64_t client, const void *context, size_t *count);
uint64_t ibx_handles_value(const struct handle *held);
uint64_t ibx_handles_client(const struct handle *held);
void ibx_handles_release(struct handle **held, size_t count);

/* The session's client uses it no more, as ibx_handles_close(). *nobody: the client that has made
 * it, and is no more, whose it is again; 0: it is not. */
bool ibx_handle_close(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                      uint64_t *nobody);

/* handle_memory.c */

/* Around a call that makes memory, and what notes it; the latter also when nothing has begun. */
void ibx_memory_make_begin(struct gpu_session *x);
void ibx_memory_make_end(struct gpu_session *x);
/* n bytes (0: it is not known how many) are the session's client's. False: no memory. `of_graph`: a
 * graph has them, with which they come back each time that it is launched: they stay the client's
 * when they are given back. */
bool ibx_memory_add(struct gpu_session *x, uint64_t address, uint64_t n, bool of_graph);
/* The client, another program, whose memory some of n bytes is; 0: the session's client may use
 * them, or whose they are is not known. */
uint64_t ibx_memory_other(struct gpu_session *x, uint64_t address, uint64_t n);
/* The same for a call that is made now: IBX_CLIENT_NONE, too, if there is no memory at all, which
 * CUDA refuses, but where another program may get some before it does. */
uint64_t ibx_memory_not_there(struct gpu_session *x, uint64_t address, uint64_t n);
/* Around a call that gives memory back. False: CUDA must not get that address: it is another
 * program's memory, or somebody is giving it back. *number: for the latter; 0: nothing is noted. */
bool ibx_memory_free_begin(struct gpu_session *x, uint64_t address, uint64_t *number);
void ibx_memory_free_end(uint64_t address, uint64_t number, bool freed);

/* named_streams.c */

/* Whether CUDA may get that handle: of one of the tenant's that is there, or that each thread has,
 * or 0. */
bool ibx_named_stream(struct gpu_session *x, uint64_t stream);
bool ibx_named_event(struct gpu_session *x, uint64_t event);
bool ibx_named_array(struct gpu_session *x, uint64_t array);
/* The log says so once. */
void ibx_named_tell(const struct gpu_session *x);
/* Whether such a request's streams are known here, by its name. */
bool ibx_named_knows(const char *name);
/* Puts 0 in place of others in the body of a request that GVirtuS is about to run. */
void ibx_named_spoil(struct gpu_session *x, uint8_t *body, size_t n);
/* A handler has returned a stream or an event, and it was not seen which: all may be named. The
 * same of a graph, or of what was made of one to be launched. */
void ibx_named_unseen(void);
bool ibx_named_any_unseen(void);
void ibx_named_graph_unseen(void);

#endif
