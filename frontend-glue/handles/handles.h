/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Handles that requests have returned: whose each is, who uses it, and which a request may name.
 *
 *   handles.c        the list of all handles
 *   handle_arrays.c  arrays that graphs name
 *   handle_ends.c    handles that a client leaves
 *   handle_events.c  events that graphs name
 *   handle_graphs.c  in which graphs something is
 *   handle_openers.c handles that other clients have opened
 *   handle_sizes.c   as how many graphs and executable graphs count
 *   handle_execs.c   what executable graphs have alone
 *   handle_modules.c modules of the driver's API
 *   handle_removals.c  handles that a client gives back
 *   handle_uses.c    streams and events that requests in hand name
 *   handle_memory.c  device memory: which program has it, and who frees it
 *   named_streams.c  which streams, events and other handles a request may name
 *   named_handlers.c which handles of libraries, contexts and modules a handler may get
 *
 * handles.c, handle_arrays.c, handle_events.c, handle_execs.c, handle_graphs.c, handle_modules.c,
 * handle_openers.c, handle_removals.c, handle_sizes.c and handle_uses.c call each other: they are
 * one list under one lock.
 */
#ifndef IBX_FRONTEND_GLUE_HANDLES_HANDLES_H
#define IBX_FRONTEND_GLUE_HANDLES_HANDLES_H

#include "frontend-glue/back_end_common/back_end.h"
#include "frontend-glue/tenants/client_list.h"
#include "frontend-glue/tenants/rooms.h"

struct handle;
struct ibx_taken;

/* handle_events.c */

/* The *count nodes of a graph, by a function like cudaGraphGetNodes; the caller frees the array.
 * NULL: *rc is the cudaError_t. */
void **ibx_graph_nodes_of(void *function, void *graph, size_t *count, int *rc);
/* enum cudaGraphNodeType */
#define CHILD_NODE  4
#define WAIT_NODE   6
#define RECORD_NODE 7
/* begin(): to be called before an executable graph is made of `graph`, or gets its nodes. The
 * request holds the events that the graph names until end(), which ibx_handles_let_go() calls, too.
 * A cudaError_t: CUDA_INVALID_HANDLE if one of them is gone. any_waits(): whether nodes wait for
 * these events. note(): the executable graph is made of that graph from now on. False: no
 * memory. */
int ibx_graph_events_begin(struct gpu_session *x, void *graph);
bool ibx_graph_events_any_waits(const struct gpu_session *x);
bool ibx_graph_events_note(struct gpu_session *x, uint64_t exec);
void ibx_graph_events_end(struct gpu_session *x);
/* A node waits for that event in the executable graph from now on. False: no memory. */
bool ibx_graph_event_set(struct gpu_session *x, uint64_t exec, uint64_t node, uint64_t event);
/* To be called before the executable graph is launched. A cudaError_t, as begin(); the request
 * holds the events for which it waits. */
int ibx_graph_events_launch(struct gpu_session *x, uint64_t exec);

/* handle_arrays.c */

/* Adds a level of a mipmapped array; whether an array is a level. */
bool ibx_handles_add_level(struct gpu_session *x, uint64_t array, uint64_t mipmap);
bool ibx_handles_is_level(struct gpu_session *x, uint64_t array);
/* A graph is about to name an array that the request holds. Returns what use_end() is to be called
 * with when neither the graph nor what was made of it exists; NULL: no memory, which is as
 * unknown(): nobody tells that, and the array is freed when its client ends. */
void *ibx_array_use_begin(struct gpu_session *x, uint64_t array);
void ibx_array_use_unknown(struct gpu_session *x, uint64_t array);
void ibx_array_use_end(void *use);
/* As unknown(), for all arrays of the client that are in graphs. */
void ibx_arrays_left_in_graphs(struct gpu_session *x);
/* The client frees an array or a mipmapped array: from now on no request may name it. If requests
 * hold it, waits for them for 10 s. NOW: the caller frees it; LATER: graphs name it; FREED: that
 * was done before. */
enum ibx_array_end { IBX_ARRAY_UNKNOWN, IBX_ARRAY_NOW, IBX_ARRAY_LATER, IBX_ARRAY_FREED };
enum ibx_array_end ibx_handles_free_array(struct gpu_session *x, enum ibx_handle_kind kind,
                                          uint64_t value);
/* CUDA has refused to free it, in a capture: it is to be freed later, or requests may name it
 * again.
 */
void ibx_handles_array_stays(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                             bool freed_later);
/* CUDA has freed it. If another thread has got a new array of the same address since, that stays.
 */
void ibx_handles_array_gone(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
/* One that is freed LATER, and that no graph names any more: the caller, and nobody else, frees it.
 * 0: there is none. */
uint64_t ibx_handles_unused_array(struct gpu_session *x, enum ibx_handle_kind kind);

/* handle_execs.c: a node has a module's function, or arrays, in the executable graph alone, and
 * nothing that it had there before. Calls end(what) of each when the node gets others, with the end
 * of the executable graph, or when that is made of another graph (ibx_graph_events_note()); of some
 * at once if (false) there is no memory. */
bool ibx_handles_exec_has(struct gpu_session *x, uint64_t exec, uint64_t node, void *const *whats,
                          unsigned count, void (*end)(void *what));
/* A launch of the executable graph is captured: it is not known what gets these. */
void ibx_handles_exec_captured(struct gpu_session *x, uint64_t exec);
/* Whether a graph, which the request holds, has an object of CUDA's for that until it ends; notes
 * that. */
bool ibx_handles_graph_has(struct gpu_session *x, uint64_t graph, const void *what);
void ibx_handles_graph_note(struct gpu_session *x, uint64_t graph, const void *what);
/* handle_graphs.c: how often requests so far may have changed which nodes some graph has, or what
 * they name; never 0. changed(): one is about to, or has. */
uint64_t ibx_graph_changes(void);
void ibx_graphs_changed(void);
/* plain(): at that number of changes no node of the graph names an event, or calls a function of a
 * client. is_plain(): whether that is so now. */
void ibx_handles_graph_plain(struct gpu_session *x, uint64_t graph, uint64_t changes);
bool ibx_handles_graph_is_plain(struct gpu_session *x, uint64_t graph);
/* handle_modules.c: GVirtuS launches a function of a module that its handlers have made, and the
 * launch may be captured: the module may not be unloaded any more (ibx_handles_may_end()). */
void ibx_handles_captured(struct gpu_session *x, uint64_t function);

/* handles.c, handle_ends.c, handle_graphs.c, handle_sizes.c, handle_openers.c */

/* Adds a handle of the session's tenant and client; a device's own pool is of all. False: no
 * memory. "The request holds" below: nobody gives the handle back until ibx_handles_let_go(). */
bool ibx_handles_add(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
/* Whether the client may name the handle; the request holds it then. Waits up to 10 s for other
 * requests that hold the same graph. ibx_handles_let_go(): the request in hand is over. */
bool ibx_handles_know(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
void ibx_handles_let_go(struct gpu_session *x);
/* ibx_handles_has() is the same, without holding it: it may be given back meanwhile.
 * ibx_handles_gone_so_far(): how many streams and events were given back, by anybody; until that
 * changes, those that were found are still there. */
bool ibx_handles_has(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
unsigned ibx_handles_gone_so_far(void);
/* handle_uses.c: notes that the request uses that stream or event, before it finds out whether
 * there is one: then nobody gives it back until ibx_handles_let_go(), which calls _uses_end().
 * False: it uses too many, and has to hold this one. has_used(): as ibx_handles_has(), for one that
 * it has noted; waits while another request has it alone. use_alone(): the request has it alone
 * from now on, for which it waits up to 10 s. uses_leave(): the session ends. */
bool ibx_handles_use(struct gpu_session *x, uint64_t value);
bool ibx_handles_has_used(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
bool ibx_handles_use_alone(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
void ibx_handles_uses_end(struct gpu_session *x);
void ibx_handles_uses_leave(struct gpu_session *x);
/* Adds a function or a texture reference of a module. */
bool ibx_handles_add_part(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                          uint64_t module);
/* Adds a graph that ends with the graph `outer`, or, if that is 0, with the capture into it: the
 * client cannot destroy it at any time. */
bool ibx_handles_add_graph_part(struct gpu_session *x, uint64_t graph, uint64_t outer);
/* Notes that a graph is that of a node of `other`, or has been moved there, and ends with it;
 * whether a graph is one of these. */
void ibx_handles_within(struct gpu_session *x, uint64_t graph, uint64_t other);
bool ibx_handles_is_within(struct gpu_session *x, uint64_t graph);
/* A stream is captured into the graph from now on: the client may name it, and must not destroy it.
 * over(): the capture is over, and the graph is the client's if it is `made`; if not, CUDA has
 * destroyed it, or is about to, and it is forgotten. It waits for nobody, so the caller has it
 * alone or knows that nobody can. is_captured(): whether a stream is captured into it. must_stay():
 * whether it is, or is within another graph. */
void ibx_handles_capture_begins(const struct gpu_session *x, uint64_t graph);
void ibx_handles_capture_over(const struct gpu_session *x, uint64_t graph, bool made);
bool ibx_handles_is_captured(struct gpu_session *x, uint64_t graph);
bool ibx_handles_must_stay(struct gpu_session *x, uint64_t graph);
/* As ibx_handles_within(), for a graph that is moved: it is not in the executable graphs that
 * `other` has already. */
void ibx_handles_move(struct gpu_session *x, uint64_t graph, uint64_t other);
/* The graph with which a graph ends; itself: none is known. */
uint64_t ibx_handles_outermost(struct gpu_session *x, uint64_t graph);
/* Whether a graph is `outer` itself, or is within it, however deep. */
bool ibx_handles_contains(struct gpu_session *x, uint64_t outer, uint64_t graph);
/* Adds a handle with which conditional nodes of a graph are made; it ends with the graph. Whether
 * it is of `graph`, or of one that this is within: of another one CUDA would use it after its end.
 */
bool ibx_handles_add_condition(struct gpu_session *x, uint64_t condition, uint64_t graph);
bool ibx_handles_condition_fits(struct gpu_session *x, uint64_t condition, uint64_t graph);
/* As ibx_handles_add(); the handle counts as `weight`. */
bool ibx_handles_add_heavy(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                           uint64_t weight);
/* add_node(): a new node of a graph, which counts as `weight`, with `depth` graphs within each
 * other in it. list_node(): a node that CUDA lists, which may be known already. is_node_of():
 * whether the node is of that graph; the request holds it then. */
bool ibx_handles_add_node(struct gpu_session *x, uint64_t node, uint64_t graph, uint64_t weight,
                          unsigned depth);
bool ibx_handles_list_node(struct gpu_session *x, uint64_t node, uint64_t graph);
bool ibx_handles_is_node_of(struct gpu_session *x, uint64_t node, uint64_t graph);
/* Notes the object of CUDA's by which a node's graph keeps what the node alone needs; 0: none.
 * Returns the one before. */
uint64_t ibx_handles_set_object(struct gpu_session *x, uint64_t node, uint64_t object);
/* The graph of a node, or, if `outermost`, the graph around it that is in no other; 0: not
 * known. */
uint64_t ibx_handles_graph_of(struct gpu_session *x, uint64_t node, bool outermost);
/* A graph has so many nodes more than were added to it, with `depth` graphs within each other. */
void ibx_handles_grow(struct gpu_session *x, uint64_t graph, uint64_t nodes, unsigned depth);
/* `nodes`: what a graph, or an executable graph, counts as, with the graphs in it; `level`: how
 * many graphs are around it; `depth`: how many are within each other in it, with itself. Zeros:
 * there is no such handle. */
struct ibx_graph_size ibx_handles_size(struct gpu_session *x, enum ibx_handle_kind kind,
                                       uint64_t value);
/* The executable graph was made of a graph of that size. */
void ibx_handles_made_so(struct gpu_session *x, uint64_t exec, struct ibx_graph_size size);
/* made_of(): the executable graph was made of that graph, and calls so many functions of clients
 * that may need CUDA to end. functions(): how many; 0: not known. has_node(): whether the node was
 * in the graph then, or in one within it; the request then holds it, and has the executable graph
 * alone. */
void ibx_handles_made_of(struct gpu_session *x, uint64_t exec, uint64_t graph, unsigned functions);
unsigned ibx_handles_functions(struct gpu_session *x, uint64_t exec);
bool ibx_handles_has_node(struct gpu_session *x, uint64_t exec, uint64_t node);
/* The request is about to change it, or to ask for a node of it: holds it alone, for which it waits
 * up to 10 s. False: there is none, or that takes too long. */
bool ibx_handles_change(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
/* Notes the stream that was selected for a library's handle; returns it. */
void ibx_handles_select(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                        uint64_t stream);
uint64_t ibx_handles_selected(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
/* rely(): a library's handle uses `other`, of kind `on`, from now on; 0: none. may_rely(): whether
 * what it uses is still there, and is the same one; the request holds that then. */
void ibx_handles_rely(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                      enum ibx_handle_kind on, uint64_t other);
bool ibx_handles_may_rely(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                          enum ibx_handle_kind on);
/* As ibx_handles_add_heavy(), for a library's handle that one of GVirtuS's handlers has made; and
 * who has made a handle. */
bool ibx_handles_add_of_handler(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                                uint64_t weight, enum ibx_handle_maker maker);
enum ibx_handle_maker ibx_handles_maker(struct gpu_session *x, enum ibx_handle_kind kind,
                                        uint64_t value);
/* The context is gone: drops all handles in it; NULL: it is not known which, and all are
 * dropped. */
void ibx_handles_forget(const void *context);
/* GVirtuS's handler is about to give back what has that handle: removes it, if the client may name
 * it. False: it is still there, since another request holds it for too long, or the client must not
 * end it: the handler must not get it. */
bool ibx_handles_gone(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
/* As ibx_handles_gone(), for a stream or an event, but does not wait. *later: other requests use
 * it; nobody can name it from now on, and when the last of them is over, `destroy` is called, in
 * any thread. */
bool ibx_handles_destroy(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                         void (*destroy)(const struct ibx_taken *taken), bool *later);
/* Removes the handle, once no other request holds it. False: there is none, it is another program's
 * and only open to the client, or that takes more than 10 s. */
bool ibx_handles_remove(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
/* The same of an executable graph, whose room goes on counting, for the caller. *graph: of which
 * graph it was made; 0: not known. */
bool ibx_handles_remove_exec(struct gpu_session *x, uint64_t exec, uint64_t *graph,
                             struct ibx_room *room);
/* Whether the client may end it: not if it is only open to the client, nor a graph that ends with
 * another one. True if there is none. */
bool ibx_handles_may_end(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
/* ibx_handles_take() removes all handles of the session's client in the thread's context that are
 * given back one by one. Returns how many, in no order; the caller frees *taken, and gives them
 * back to CUDA. */
struct ibx_taken {
    enum ibx_handle_kind kind;
    uint64_t value;
    const void *context; /* in which it is; NULL: not known */
    bool was_open;       /* to another client, too */
    uint64_t number;     /* of memory, for ibx_memory_free_end() */
    uint64_t owned;      /* as the tenant's, for ibx_owners_remove(); 0: it is not noted */
};
/* It was given back to CUDA. */
void ibx_taken_gone(const struct ibx_taken *taken);
size_t ibx_handles_take(struct gpu_session *x, struct ibx_taken **taken);
/* Takes the graphs and executable graphs of a client, in all contexts. */
size_t ibx_handles_take_graphs(uint64_t client, struct ibx_taken **taken);
/* Takes at most `most` handles of one kind in one context, into an array of the caller's. None
 * of these functions takes a handle that a request holds, or that another client has opened: the
 * latter belongs to that client from now on. */
size_t ibx_handles_take_some(uint64_t client, enum ibx_handle_kind kind, const void *context,
                             struct ibx_taken *taken, size_t most);
/* first(): the context of a handle that can be taken; false: there is none. any(): whether the
 * client has any handle that is given back by itself, also one that is held. */
bool ibx_handles_first(uint64_t client, enum ibx_handle_kind kind, const void **context);
bool ibx_handles_any(uint64_t client);
/* The session's client opens another client's handle. False: there is none in the tenant, or no
 * memory. */
bool ibx_handles_open(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
/* The session's client has opened something of another process. *again: somebody here has it open
 * already, and CUDA has opened it only once. Only one thread at a time may call this. False: no
 * memory. */
bool ibx_handles_open_theirs(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                             bool *again);
/* Whether the session's client has it open; whether any client has such a handle. */
bool ibx_handles_opened_by(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
bool ibx_handles_there(enum ibx_handle_kind kind, uint64_t value);
/* Somebody outside this process may use it from now on, as a client that has opened it. */
void ibx_handles_expose(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
/* Whether it is the client's own, and nobody else has ever opened it. *context: in which it is;
 * NULL: not known. */
bool ibx_handles_is_own(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                        const void **context);
/* All streams of a client (0: of all clients) in the context, or in no known one. They are held
 * until ibx_handles_release(), which frees the array as well. NULL: no memory. */
struct handle **ibx_handles_hold_streams(uint64_t client, const void *context, size_t *count);
uint64_t ibx_handles_value(const struct handle *held);
uint64_t ibx_handles_client(const struct handle *held);
void ibx_handles_release(struct handle **held, size_t count);

/* As ibx_handles_close(), but gives nothing back. *maker: the client that has made it and has
 * ended, if it belongs to that client again; 0 otherwise. */
bool ibx_handle_close(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                      uint64_t *maker);

/* handle_memory.c */

/* Around a call that allocates memory, and ibx_memory_add(). make_end() does nothing if nothing has
 * begun. */
void ibx_memory_make_begin(struct gpu_session *x);
void ibx_memory_make_end(struct gpu_session *x);
/* Notes n bytes (0: it is not known how many) as the session's client's. False: no memory.
 * `of_graph`: each launch of a graph allocates them again, at the same address, so they stay the
 * client's when they are freed. */
bool ibx_memory_add(struct gpu_session *x, uint64_t address, uint64_t n, bool of_graph);
/* The client, of another program, to which some of n bytes belong; 0: the session's client may use
 * them, or it is not known whose they are. */
uint64_t ibx_memory_other(struct gpu_session *x, uint64_t address, uint64_t n);
/* The same for a call that is made now: also IBX_CLIENT_NONE if there is no memory at all. CUDA
 * would refuse that, unless another program gets memory there before it looks. */
uint64_t ibx_memory_not_there(struct gpu_session *x, uint64_t address, uint64_t n);
/* Around a call that frees memory. False: CUDA must not get that address, because it is another
 * program's memory, or of another process's pool, which is closed instead, or somebody is freeing
 * it. *number: for ibx_memory_free_end(); 0: there is
 * nothing to end. */
bool ibx_memory_free_begin(struct gpu_session *x, uint64_t address, uint64_t *number);
void ibx_memory_free_end(uint64_t address, uint64_t number, bool freed);
/* Keeps n bytes of the client's own, of which no other program has ever had any open, from being
 * freed until ibx_memory_free_end(*base, *number, false). False: they are not that, or somebody is
 * freeing them. */
bool ibx_memory_keep_begin(uint64_t client, uint64_t address, uint64_t n, uint64_t *base,
                           uint64_t *number);

/* named_streams.c */

/* Whether CUDA may get that handle: it is 0, or one that each thread has, or of something of the
 * tenant's that exists, and that the client may name. */
bool ibx_named_stream(struct gpu_session *x, uint64_t stream);
bool ibx_named_event(struct gpu_session *x, uint64_t event);
bool ibx_named_array(struct gpu_session *x, uint64_t array);
/* Logs, once, that a request has named something that does not exist. */
void ibx_named_tell(const struct gpu_session *x);
/* Whether it is known here which streams a request of that name names. */
bool ibx_named_knows(const char *name);
/* Replaces handles that CUDA must not get by 0, in the body of a request that GVirtuS is about to
 * run. */
void ibx_named_invalidate(struct gpu_session *x, uint8_t *body, size_t n);
/* A handler has returned a stream, an event or an array that was not seen: any may be named from
 * now on. graph_unseen(): the same of a graph or an executable graph. */
void ibx_named_unseen(void);
bool ibx_named_any_unseen(void);
/* Whether there may be events that are not known here. */
bool ibx_named_any_event(const struct gpu_session *x);
void ibx_named_graph_unseen(void);

/* named_handlers.c */

/* Looks at the body of a request that GVirtuS is about to run. A handle of a library, a context, a
 * module or what is in one that nobody has given the client is replaced by none. Where the library
 * does not look whether there is one, the session ends; returns 0, or why it does. */
int ibx_named_handlers_invalidate(struct gpu_session *x, uint8_t *body, size_t n);
/* A handler has returned such a thing. `made`: its handle; 0: it could not be read, and all that
 * clients name is allowed from now on, or there is none (*seen is true). */
void ibx_named_handlers_made(struct gpu_session *x, uint64_t made, bool seen);

#endif
