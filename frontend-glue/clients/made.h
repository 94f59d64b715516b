/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Clients, what they have made in CUDA, and how it is given back: when they ask for it, when they
 * reset their device, and when their processes have ended. Part of clients.h.
 */
#ifndef IBX_FRONTEND_GLUE_CLIENTS_MADE_H
#define IBX_FRONTEND_GLUE_CLIENTS_MADE_H

#include "frontend-glue/back_end/types.h"

struct copies;
struct ibx_cuda;
struct ibx_functions_user;

#define IBX_CLIENT_NONE UINT64_MAX /* the number of no client */

struct handle;

/* handles.c, handle_ends.c, handle_sizes.c, handle_openers.c */

/* A handle of the session's tenant and client, a device's own pool of all. False: no memory. */
bool ibx_handles_add(struct copies *x, enum ibx_handle_kind kind, uint64_t value);
/* This one, and those below that ask, hold what they find for the request in hand: nobody gives it
 * back until ibx_handles_let_go(). */
bool ibx_handles_know(struct copies *x, enum ibx_handle_kind kind, uint64_t value);
void ibx_handles_let_go(struct copies *x);
/* Likewise, but what it finds may be given back meanwhile; and how many streams and events were, by
 * anybody: until that changes, what was there is. */
bool ibx_handles_has(struct copies *x, enum ibx_handle_kind kind, uint64_t value);
unsigned ibx_handles_gone_so_far(void);
/* A level of a mipmapped array; whether the array is such a one. */
bool ibx_handles_add_level(struct copies *x, uint64_t array, uint64_t mipmap);
bool ibx_handles_is_level(struct copies *x, uint64_t array);
/* A graph that goes with another one, of which it is a conditional node's; whether it is. */
void ibx_handles_within(struct copies *x, uint64_t graph, uint64_t other);
bool ibx_handles_is_within(struct copies *x, uint64_t graph);
/* What conditional nodes of a graph are made with; it goes with the graph. */
bool ibx_handles_add_condition(struct copies *x, uint64_t condition, uint64_t graph);
/* A new node of a graph, which counts as `weight`, with so many graphs within each other in it, or
 * one that CUDA lists; those of a graph that is no more; whether it is one of it. */
bool ibx_handles_add_node(struct copies *x, uint64_t node, uint64_t graph, uint64_t weight,
                          unsigned depth);
bool ibx_handles_list_node(struct copies *x, uint64_t node, uint64_t graph);
void ibx_handles_forget_nodes(uint64_t graph);
bool ibx_handles_is_node_of(struct copies *x, uint64_t node, uint64_t graph);
/* The graph that it is in, or the one that this is in; 0: that is not known. */
uint64_t ibx_handles_graph_of(struct copies *x, uint64_t node, bool outermost);
/* A graph has so many nodes more than were added to it. */
void ibx_handles_grow(struct copies *x, uint64_t graph, uint64_t nodes, unsigned depth);
/* What a graph, or what was made of one, counts as, with the graphs in it; of how many it is one
 * within the other, and how many are so in it, itself too. Zeros: there is none. */
struct ibx_graph_size ibx_handles_size(struct copies *x, enum ibx_handle_kind kind, uint64_t value);
/* What can be launched was made of a graph of that size. */
void ibx_handles_made_so(struct copies *x, uint64_t exec, struct ibx_graph_size size);
/* It was made of that graph, with so many functions of clients that may need CUDA
 * to end; these, 0: not known; whether the node was in it then. */
void ibx_handles_made_of(struct copies *x, uint64_t exec, uint64_t graph, unsigned functions);
unsigned ibx_handles_functions(struct copies *x, uint64_t exec);
bool ibx_handles_has_node(struct copies *x, uint64_t exec, uint64_t node);
/* A request is about to change it, as one that asks for a node of it is, too: when no other request
 * has it. False: there is none, or that takes too long. */
bool ibx_handles_change(struct copies *x, enum ibx_handle_kind kind, uint64_t value);
/* A library's handle has that stream; which one it has. */
void ibx_handles_select(struct copies *x, enum ibx_handle_kind kind, uint64_t value,
                        uint64_t stream);
uint64_t ibx_handles_selected(struct copies *x, enum ibx_handle_kind kind, uint64_t value);
/* A library's handle that a handler of GVirtuS's has made: as ibx_handles_add(); whether it is one.
 */
bool ibx_handles_add_of_handler(struct copies *x, enum ibx_handle_kind kind, uint64_t value);
bool ibx_handles_is_of_handler(struct copies *x, enum ibx_handle_kind kind, uint64_t value);
/* The context is gone, and what was in it; NULL: it is not known which. */
void ibx_handles_forget(const void *context);
/* GVirtuS's handler is about to give back what has that handle, if it is the tenant's. */
void ibx_handles_gone(struct copies *x, uint64_t value);
/* Whether it was there; it is no more. Waits for other requests that hold it; false also if that
 * takes too long. */
bool ibx_handles_remove(struct copies *x, enum ibx_handle_kind kind, uint64_t value);
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
size_t ibx_handles_take(struct copies *x, struct ibx_taken **taken);
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
bool ibx_handles_open(struct copies *x, enum ibx_handle_kind kind, uint64_t value);
/* The session's client has opened what is another process's, whoever has done so before; *again:
 * somebody has, and it is open once in all. One thread at a time. False: no memory. */
bool ibx_handles_open_theirs(struct copies *x, enum ibx_handle_kind kind, uint64_t value,
                             bool *again);
/* Whether the session's client has it open; whether anybody has it at all. */
bool ibx_handles_opened_by(struct copies *x, enum ibx_handle_kind kind, uint64_t value);
bool ibx_handles_there(enum ibx_handle_kind kind, uint64_t value);
/* Somebody whom nobody here knows may use it, as another client that has opened it. */
void ibx_handles_expose(struct copies *x, enum ibx_handle_kind kind, uint64_t value);
/* Whether it is the client's own, which nobody else has ever opened: the context in which it is;
 * NULL: not known. */
bool ibx_handles_is_own(struct copies *x, enum ibx_handle_kind kind, uint64_t value,
                        const void **context);
/* All streams of a client's, 0: of all, in the context, or of no known one, held; NULL: no memory.
 */
struct handle **ibx_handles_hold_streams(uint64_t client, const void *context, size_t *count);
uint64_t ibx_handles_value(const struct handle *held);
uint64_t ibx_handles_client(const struct handle *held);
void ibx_handles_release(struct handle **held, size_t count);

/* handle_memory.c */

/* Around a call that makes memory, and what notes it; the latter also when nothing has begun. */
void ibx_memory_make_begin(struct copies *x);
void ibx_memory_make_end(struct copies *x);
/* n bytes (0: it is not known how many) are the session's client's. False: no memory. `of_graph`: a
 * graph has them, with which they come back each time that it is launched: they stay the client's
 * when they are given back. */
bool ibx_memory_add(struct copies *x, uint64_t address, uint64_t n, bool of_graph);
/* The client, another program, whose memory some of n bytes is; 0: the session's client may use
 * them, or whose they are is not known. */
uint64_t ibx_memory_other(struct copies *x, uint64_t address, uint64_t n);
/* The same for a call that is made now: IBX_CLIENT_NONE, too, if there is no memory at all, which
 * CUDA refuses, but where another program may get some before it does. */
uint64_t ibx_memory_not_there(struct copies *x, uint64_t address, uint64_t n);
/* Around a call that gives memory back. False: CUDA must not get that address: it is another
 * program's memory, or somebody is giving it back. *number: for the latter; 0: nothing is noted. */
bool ibx_memory_free_begin(struct copies *x, uint64_t address, uint64_t *number);
void ibx_memory_free_end(uint64_t address, uint64_t number, bool freed);

/* cleared_memory.c */

/* n bytes that the client is about to get, whoever has had them before, are zeros then; the latter:
 * for what comes behind it in the stream, which nobody captures. False: CUDA fails. */
bool ibx_clear_new(struct copies *x, uint64_t address, uint64_t n);
bool ibx_clear_new_in(struct copies *x, uint64_t address, uint64_t n, void *stream);
/* The log says once that it cannot be. */
void ibx_clear_tell(const struct copies *x);
/* The context is gone; NULL: it is not known which. */
void ibx_cleared_forget(const void *context);

/* clients.c */

/* The session begins, which stays while a client resets the context of all, for a bounded time. */
void ibx_clients_join(struct copies *x);
/* It has a queue of functions for graphs (host_work.c), by a session that lasts as long as it: when
 * its last one ends nobody can launch its graphs any more, and they are given back. */
void ibx_clients_calls(struct copies *x);
/* Whether there is such a client, or its process may come again. */
bool ibx_clients_has(uint64_t number);
/* Whether there is a client that has no session, and may come again. */
bool ibx_clients_left(void);
/* Whether any client has a session. */
bool ibx_clients_any(void);
/* Whether there is a client beside the session's. */
bool ibx_clients_others(struct copies *x);
/* The session uses the stream that CUDA has for its thread. Whether another session of any client
 * does. */
void ibx_clients_use_thread_stream(struct copies *x);
bool ibx_clients_use_thread_streams(const struct copies *x);
/* The client may have work where it is not found: in a library's own streams. Whether all of its
 * work is found by its handles, in the session's thread. */
void ibx_clients_hide_work(struct copies *x);
bool ibx_clients_find_work(const struct copies *x);
/* Around calls of CUDA that give back what clients have left: no client resets the context
 * meanwhile. False: one does that now. */
bool ibx_clients_give_begin(void);
void ibx_clients_give_end(void);
/* A number of the session's client, which no other ever has; 0: there is none, or no memory. */
uint64_t ibx_clients_number(struct copies *x);
/* Likewise, once that was called; 0: it was not. */
uint64_t ibx_clients_number_of(const struct copies *x);
/* The session as one who uses functions. */
struct ibx_functions_user *ibx_copies_user(struct copies *x);
/* Whether a client that has said which process it is, and may be no more, is another program than
 * the session's, as far as that has said so, too. */
bool ibx_clients_apart(const struct copies *x, uint64_t number);
/* Whether this process has ever had more than one. */
bool ibx_clients_were_several(void);
/* Of the client from which it was forked, once ibx_clients_number() was called; 0: not known. */
uint64_t ibx_clients_parent(const struct copies *x);
/* Likewise whether it is known of which process it is. */
bool ibx_clients_is_process(const struct copies *x);
/* Whether the client may reset the context: no other has a session, or something that is still
 * being given back behind its last one, or the context is `broken`. If so no session begins until
 * the reset is over, or has taken too long. */
bool ibx_clients_reset(struct copies *x, bool broken);
void ibx_clients_reset_over(const struct copies *x);

/* What a line of the log calls it: "a client" if it is not known. */
struct ibx_client_name {
    char text[192];
};
void ibx_clients_name(uint64_t number, struct ibx_client_name *name);

/* departures.c */

/* The session ends. */
void ibx_clients_leave(struct copies *x);
/* The client's process has ended, if it has no session: what it has made is given back. */
void ibx_clients_ended(uint64_t number);

/* client_ends.c */

/* The client's process has ended: what it has made is given back, a little later. */
void ibx_client_ends_add(uint64_t client, const struct ibx_client_name *name);
/* ibx_clients_ended() is called when that is readable, once at most. */
void ibx_client_ends_watch(int process_fd, uint64_t client);
/* For whom there is no memory: whether more has been given back, for which it waits. */
bool ibx_client_ends_wait(void);
/* The session's client uses no more what it has opened, once it has said so as often. What was only
 * there for that is given back; true: it is another process's, nobody here uses it any more, and
 * the caller is to give it back. */
bool ibx_handles_close(struct copies *x, enum ibx_handle_kind kind, uint64_t value);
/* Whether there is a client beside the session's, or any of these things are. */
bool ibx_clients_several(struct copies *x);
/* A client has given that back, which is nobody's any more: CUDA does once all work has ended that
 * is there now. False: it cannot be noted. */
bool ibx_client_ends_leave(const struct ibx_taken *taken);
/* The context is gone, with what was to be given back in it; NULL: it is not known which. */
void ibx_client_ends_forget(const void *context);

/* own_streams.c */

/* A stream for ibx_own_free_async(), which waits for nothing, nor is waited for by what others
 * capture; NULL: there is none. Its end waits for what is in it. */
void *ibx_own_stream_begin(void);
void ibx_own_stream_end(const struct ibx_cuda *cuda, void *stream);
/* A stream that is behind what the legacy one has, and behind nothing else; NULL: there is none.
 * What is in it goes on when it is left. */
void *ibx_own_stream_behind_legacy(void);
void ibx_own_stream_leave(void *stream);
/* An event, in the current context, behind what the legacy stream has, to be destroyed. It holds
 * nobody up. NULL: CUDA fails. */
void *ibx_own_event_behind_legacy(const struct ibx_cuda *cuda);

/* own_work.c */

/* Beside other clients: waits until the client's own work in the current context has ended that is
 * there now. False: it has no others beside it, or it is not known what it has. */
bool ibx_own_work_wait(struct copies *x);
/* Likewise, and gives memory of the client's back, beside work of others. False: cudaFree has to.
 */
bool ibx_own_work_free(struct copies *x, uint64_t memory);
/* Likewise what CUDA gives back behind all work only, which waits for that elsewhere. False: a call
 * of CUDA's has to. */
bool ibx_own_work_leave(struct copies *x, enum ibx_handle_kind kind, uint64_t value);
/* Waits so long, beside other clients, until all work has ended that was there at some moment, or
 * it is not known: OVER. *whose as of ibx_work_wait(). And the same as long as that takes. */
enum ibx_work ibx_own_work_settle(struct copies *x, unsigned ms, uint64_t *whose);
void ibx_own_work_settle_all(struct copies *x);
/* Before x->requests notes what GVirtuS reads: kernels that the client takes away stay until its
 * process has ended, where work of others that does not end would keep everybody out meanwhile. The
 * request becomes a call that is none. */
void ibx_own_unload_guard(struct copies *x, uint8_t *bytes, size_t n);

/* moments.c */

/* What has become of a context's work. */
enum ibx_work {
    IBX_WORK_OVER,
    IBX_WORK_OF_OTHERS, /* a client's own is over whose sessions have ended */
    IBX_WORK_OWN,       /* it may be the client's, or somebody captures */
    IBX_WORK_LOST       /* the context is broken */
};
/* Waits, in the context and in relaxed capture mode, until all work has ended that was there when
 * none of the client's own was any more: so long for that, and as long for the rest. If it has not,
 * *whose is a client whose work it is; 0: not known. */
enum ibx_work ibx_work_wait(struct copies *x, uint64_t client, const void *context, unsigned ms,
                            uint64_t *whose);
/* Sleeps, each time twice as long; 0: it begins. */
void ibx_nap(uint64_t *ns);

/* left_work.c */

/* A session's thread ends, of that client: what it has under way in CUDA's stream for it, and what
 * anybody has in the legacy stream, is known from now on, until it is over. */
void ibx_left_work_keep(struct copies *x, uint64_t client);
/* Likewise what is under way in a stream that is about to be destroyed. */
void ibx_left_work_of_stream(struct copies *x, uint64_t stream);
/* Whether anything of that is under way, but for the legacy stream: the client's; or of what
 * ibx_left_work_so_far() meant. And in that stream what was there when its last session ended. */
bool ibx_left_work_any(const struct ibx_cuda *cuda, uint64_t client, uint64_t so_far);
bool ibx_left_work_in_legacy(const struct ibx_cuda *cuda, uint64_t client);
uint64_t ibx_left_work_so_far(void);
/* The context is gone, with its events; NULL: it is not known which. */
void ibx_left_work_forget(const void *context);
/* Whether that context has gone since the former, which one thread at a time calls. */
void ibx_left_work_watch(const void *context);
bool ibx_left_work_lost(void);

/* end_hooks.c */

/* What runs requests of our own, and calls libraries, gives back, or is to know of. All are set. */
struct ibx_end_hooks {
    void (*gone)(uint64_t value);        /* this memory was given back, or this event destroyed */
    void (*forget)(const void *context); /* it is gone; NULL: it is not known which */
    void (*give_back_opened)(enum ibx_handle_kind kind, uint64_t value); /* OPENED_POOL, _POINTER */
    void (*give_back_math)(unsigned type, uint64_t handle);              /* enum ibx_math_type */
};
/* Before there is a client; without it nobody opens such things, or calls libraries. */
void ibx_end_hooks_set(const struct ibx_end_hooks *hooks);
void ibx_end_gone(uint64_t value);
void ibx_end_forget(const void *context);
void ibx_end_opened(enum ibx_handle_kind kind, uint64_t value);
void ibx_end_math(unsigned type, uint64_t handle);

/* own_reset.c */

/* A handler of GVirtuS's makes or ends something: when its name has been read, when all of its
 * request has, when it has answered. */
void ibx_made_read(struct copies *x, const char *name);
/* Behind the former: whether the tenant may make one more of it. */
bool ibx_made_room(const struct copies *x);
void ibx_made_run(struct copies *x);
void ibx_made_answered(struct copies *x);
/* cudaDeviceReset: gives back what the client has made. False: the client may reset the context. */
bool ibx_own_reset(struct copies *x, int *code);
/* The i-th kind of what is given back one by one, in that order; false: there are not so many. */
bool ibx_own_kind(unsigned i, enum ibx_handle_kind *kind);
/* Memory, in the current context: it goes when the stream gets there. False: it cannot go so. */
bool ibx_own_free_async(uint64_t memory, void *stream);
/* Gives back what was taken, in the current context. */
void ibx_own_give_back(struct copies *x, const struct ibx_taken *taken, size_t count);
/* Gives back the graphs of a client that is no more. */
void ibx_own_graphs_end(struct copies *x, uint64_t client);
/* Before x->requests notes what GVirtuS reads: no handler resets the context beside other clients.
 * A reset that the function above has not let pass becomes a call that is none, if it was asked of
 * those that come whole: one in pieces could go on when others are there. */
void ibx_own_reset_guard(struct copies *x, bool asked, uint8_t *bytes, size_t n);

#endif
