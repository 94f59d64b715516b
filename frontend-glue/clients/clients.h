/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Clients, and what they have in one back end: what each may name, hold and end, while others work
 * beside it. What runs requests calls this.
 *
 *   departures.c     what becomes of a client that has no session
 *   isolation.c      refuses memory of other tenants, and what is too much
 *   graph_limits.c, graph_room.c  graphs, and those that wait: how many there may be
 *   graph_slots.c    page-locked memory through which graphs copy
 *   host_work.c      functions that the client calls when a stream gets there
 *   host_maps.c      page-locked memory of clients, for kernels
 *   virtual_memory.c memory that is mapped apart from its addresses
 *   ranges.c         ranges of addresses, found by any of them
 *   process_memory.c which addresses are this process's own memory
 *   held_memory.c    no free of memory that a copy is under way in
 *   cleared_memory.c memory that has nothing of another program's in it
 *   captures.c       captures of streams, kept from waits for the device
 *   frees.c          memory that is given back beside graphs
 *   own_streams.c    streams of the back end's own
 *   own_work.c       what a client's call waits for beside other clients
 *   moments.c        when all work that is under way now is over
 *   given_back.c     how each kind of thing is given back
 *   own_reset.c      cudaDeviceReset of one client of several
 *   client_ends.c, left_work.c  what clients leave behind
 *   ended.c          whether there is any of that
 *   end_hooks.c      what of this requests of our own give back, or are to know of
 *   last_requests.c  what takes modules back that a client leaves
 *   resets.c         contexts that clients reset or destroy
 *   broken_context.c what the log says of CUDA errors that stay
 *   ready_context.c  a context that is there before a client is
 *
 * Three circles of calls are left, each of two files. What is captured counts until its capture is
 * over, which captures.c sees, and graph_limits.c asks captures.c what is captured. client_ends.c
 * sees that a process has ended, and departures.c, which it tells, has it give things back. A
 * function of the host may copy by a slot, and a slot goes with its function: host_work.c and
 * graph_slots.c.
 */
#ifndef IBX_FRONTEND_GLUE_CLIENTS_CLIENTS_H
#define IBX_FRONTEND_GLUE_CLIENTS_CLIENTS_H

#include "frontend-glue/back_end/back_end.h"
#include "frontend-glue/gvirtus_handlers/client_functions.h"
#include "frontend-glue/tenants/client_list.h"
#include "frontend-glue/clients/ends.h"
#include "frontend-glue/handles/handles.h"
#include "frontend-glue/gvirtus_handlers/registrations.h"
#include "frontend-glue/tenants/rooms.h"
#include "frontend-glue/tenants/tenants.h"

/* isolation.c */

/* The session's client has proven itself: -EDQUOT if too many others are being set up, -ENOMEM. The
 * session has begun: as ibx_session_fail(). And it has ended. */
int ibx_isolation_admit(struct gpu_session *x, const struct ibx_path *path, struct ibx_error *err);
int ibx_isolation_begin(struct gpu_session *x);
void ibx_isolation_end(struct gpu_session *x);
/* Whether none of [address, address + n) is another tenant's, or another program's. */
bool ibx_isolation_allows(struct gpu_session *x, uint64_t address, uint64_t n);
/* The same, and that none of it is this process's own: ibx_process_memory_is_own(). */
bool ibx_isolation_is_memory(struct gpu_session *x, uint64_t address, uint64_t n);
/* The same as the first for a call that is made now: ibx_memory_not_there(). */
bool ibx_isolation_allows_now(struct gpu_session *x, uint64_t address, uint64_t n);
/* What GVirtuS is about to get, before and after x->requests notes it: as ibx_session_fail(). The
 * bytes may change. */
int ibx_isolation_before_read(struct gpu_session *x, uint8_t *bytes, size_t n);
int ibx_isolation_after_read(struct gpu_session *x, enum ibx_request_stage before);
/* Whether zeros leave instead of the last write, which x->replies has noted. */
bool ibx_isolation_withholds(const struct gpu_session *x);
/* The reply is complete. */
void ibx_isolation_replied(struct gpu_session *x);

/* captures.c */

/* Whether a client captures a stream. */
bool ibx_captures_any(void);
/* Whether the stream's work comes into a capture; CUDA's number of it, 0: not known. */
bool ibx_captures_active(struct gpu_session *x, uint64_t stream, uint64_t *id);
/* The same of any stream whose capture the session has begun, and not ended; 0 also if there are
 * several. */
bool ibx_captures_own(struct gpu_session *x, uint64_t *id);
/* Around a wait for the device, which ends all captures: the former stays until no other client
 * captures, for a bounded time, and until the latter none begins, likewise. */
void ibx_captures_wait_begin(struct gpu_session *x);
void ibx_captures_wait_end(void);
/* The same, at once or not at all: a client captures. */
bool ibx_captures_wait_try(void);
#define IBX_STREAM_NON_BLOCKING 1u /* CU_STREAM_NON_BLOCKING, cudaStreamNonBlocking */
/* Before work is added to that stream, and before the legacy one is waited for: where that would
 * end other clients' captures it stays until there are none, for a bounded time. */
void ibx_captures_spare(struct gpu_session *x, uint64_t stream);
/* Around a copy in the legacy stream: the same, and until the latter none begins, likewise. */
void ibx_captures_legacy_begin(struct gpu_session *x);
void ibx_captures_legacy_end(void);
/* What GVirtuS's handler does, by its request's name; before it runs; when it has returned, or its
 * session has ended; when it has answered. */
enum captures_use ibx_captures_use(const char *name, enum ibx_call_kind kind);
void ibx_captures_run(struct gpu_session *x);
void ibx_captures_ran(struct gpu_session *x);
void ibx_captures_answered(struct gpu_session *x, int exit_code);
/* The session has ended, and what it captured is nobody's. */
void ibx_captures_end(struct gpu_session *x);

/* frees.c: around what gives memory back, and waits for the device in CUDA. `address`: which
 * memory; 0: none of a pool. */
void ibx_frees_begin(struct gpu_session *x, uint64_t address);
void ibx_frees_end(void);
/* Likewise around the first look-up of a kernel on a device, with which the driver may load it.
 * False: it was looked up before, and no ibx_frees_end_load() is to follow. */
bool ibx_frees_begin_load(struct gpu_session *x, uint64_t function);
void ibx_frees_end_load(struct gpu_session *x, uint64_t function);
/* Kernels were unloaded, or a context went with its own. */
void ibx_frees_unloaded(void);
/* Launches a graph, when no memory is being given back. */
int ibx_frees_launch(struct gpu_session *x, int (*launch)(void *graph, void *stream), void *graph,
                     void *stream);
/* Before an executable graph is given back: waits for its last launch. */
void ibx_frees_exec(struct gpu_session *x, const void *exec);
/* A context was reset, with its events, as far as the last launches of executable graphs are
 * behind these; NULL: unknown which. */
void ibx_frees_forget(const void *context);

/* held_memory.c: the session is about to copy, before that is checked; or to free, before anything
 * of it. Each waits for the other, of other sessions. Its end; nothing, if there is none. */
void ibx_held_by_copy(struct gpu_session *x, const struct ibx_frame *f);
void ibx_held_by_free(struct gpu_session *x, uint64_t address);
void ibx_held_by_unmap(struct gpu_session *x, uint64_t address, uint64_t n); /* as by_free */
void ibx_held_end(struct gpu_session *x);

/* graph_limits.c */

/* A new graph has what a capture has made of it. False: there are too many graphs within each
 * other. */
bool ibx_graph_measure(struct gpu_session *x, uint64_t graph);
/* A request runs, which may add to what is captured; or is about to launch into that stream. False:
 * it is too much. */
bool ibx_graph_captures(struct gpu_session *x, const struct ibx_call *call, const uint8_t *body,
                        size_t n);
bool ibx_graph_captures_in(struct gpu_session *x, uint64_t stream);
bool ibx_graph_launches(struct gpu_session *x, uint64_t exec, uint64_t stream);
/* The capture of that number is over, and counts as a graph, if it has become one; all of the
 * tenant's are. */
void ibx_graph_capture_over(struct ibx_tenant *tenant, uint64_t id);
void ibx_graph_captures_over(struct ibx_tenant *tenant);
/* It ends the session. */
int ibx_captures_full(struct gpu_session *x);
/* A graph, or what was made of one, is the tenant's from now on; false: no memory. */
bool ibx_graph_note(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t handle);
/* The nodes of a graph by a function like cudaGraphGetNodes; NULL: *rc says why not. To be freed.
 */
void **ibx_graph_nodes_of(void *function, void *graph, size_t *count, int *rc);
#define CHILD_NODE 4 /* enum cudaGraphNodeType */
/* Before a node is made that is behind so many, with a graph of `inner` nodes in it, `depth` of
 * them within each other: 0 when its room is reserved, *weight of IBX_HOLD_GRAPHS, until the next
 * call.
 */
int ibx_graph_node_room(struct gpu_session *x, const void *graph, size_t behind, uint64_t inner,
                        unsigned depth, uint64_t *weight);

/* graph_room.c: before a launch of a graph with so many functions of clients, which stays until
 * there is room for them; so many were called, or will not be. */
void ibx_graph_room_take(unsigned functions);
void ibx_graph_room_give(unsigned functions);
/* Whether graphs of clients may call functions of theirs; and that there is one more such function,
 * or (-1) one less. */
bool ibx_host_work_repeats(void);
void ibx_graph_functions_count(int more);

/* host_work.c: cudaError_t */

/* A queue of the session's own, by whose id all of the client's threads name it. */
int ibx_host_work_open(struct gpu_session *x, uint64_t *id);
struct ibx_host_work {
    uint64_t stream, queue, number; /* number: the client's, not 0 */
    bool callback;
};
/* `enqueue` is the runtime's cudaLaunchHostFunc, or cudaStreamAddCallback. */
int ibx_host_work_add(struct gpu_session *x, const struct ibx_host_work *work, void *enqueue);
/* A function that a graph calls, as often as it is launched: what CUDA is to call it by. The same
 * number is the same function. It is known until it has been released as often, which CUDA may do
 * itself. NULL: *rc says why not. */
void *ibx_host_work_repeat(struct gpu_session *x, uint64_t queue, uint64_t number, int *rc);
void ibx_host_work_release(void *repeated);
/* Likewise until its queue's session ends. */
void ibx_host_work_for_good(const void *repeated);
void ibx_host_work_call(void *repeated);
/* The same of one that copies n bytes between the client and a slot, which is held once more for
 * the graph, and said. */
struct ibx_host_copy {
    uint64_t slot; /* 0: it is another function */
    size_t n;
    bool to_device;
};
void *ibx_host_work_copy(struct gpu_session *x, uint64_t queue, uint64_t number,
                         struct ibx_host_copy *copy, int *rc);
/* No graph has that slot any more, nor calls that function, of a copy. */
void ibx_host_work_unused(const void *repeated, uint64_t slot);
/* The copy of the function that the client is calling now. */
struct ibx_host_copy ibx_host_work_taken(const struct gpu_session *x, uint64_t number);
/* The number of one of the tenant's; 0: it is none. */
uint64_t ibx_host_work_number(const struct gpu_session *x, const void *repeated);
/* Whether it copies by a slot: nothing that needs CUDA is waited for then. */
bool ibx_host_work_is_copy(const void *repeated);
struct ibx_host_copy ibx_host_work_copy_of(const void *repeated);
/* `over` was called (0: none was). What is to be called now; `wait`: for a few milliseconds. */
struct ibx_host_called {
    uint64_t number; /* 0: nothing is */
    int status;      /* for a callback */
    struct ibx_host_copy copy;
};
int ibx_host_work_ask(struct gpu_session *x, uint64_t over, bool wait,
                      struct ibx_host_called *called);
/* The session has ended. */
void ibx_host_work_end(struct gpu_session *x);

/* host_maps.c: what kernels of the client, which is no more, have reached: who maps anything there
 * from now on waits until ibx_host_maps_end() has given it back. */
struct ibx_host_map *ibx_host_maps_take(uint64_t client);
/* Whether all n bytes (not 0) are in one piece of page-locked memory of the session's client that
 * is mapped for kernels. */
bool ibx_host_maps_hold(struct gpu_session *x, uint64_t address, uint64_t n);
void ibx_host_maps_end(struct gpu_session *x, struct ibx_host_map *taken);
/* `length` bytes of the session's client at that address, by the file that both ends map, at
 * `offset` in it; or pages of this process's own. And what begins there, or holds it, is given
 * back. cudaError_t */
struct ibx_host_map_wish {
    uint64_t address, length, offset;
    bool own; /* in no file: pages of this process's */
};
int ibx_host_maps_make(struct gpu_session *x, const struct ibx_host_map_wish *wish);
void ibx_host_maps_give_back(struct gpu_session *x, uint64_t address);

/* process_memory.c */

/* Whether [address, address + n) begins or ends in memory of this process, or is no range: CUDA may
 * take what a client calls memory of the device for what it is here. Of the device's, managed and
 * the client's own page-locked memory, and where nothing can be read here, CUDA judges. */
bool ibx_process_memory_is_own(struct gpu_session *x, uint64_t address, uint64_t n);

/* resets.c */

/* A request takes a context away: before its handler runs, and when that has answered. */
void ibx_context_lose(struct gpu_session *x);
void ibx_context_lost(struct gpu_session *x, int exit_code);

/* broken_context.c */

/* A call was answered with that code. */
void ibx_context_note_error(const struct gpu_session *x, int code);
/* Whether such an error has broken this process. */
bool ibx_context_broken(void);
/* A session has begun. */
void ibx_context_tell_broken(const struct gpu_session *x);
/* A client comes. Does not return in a process that is about to be replaced. */
void ibx_memory_hold_back(void);

/* ready_context.c */

/* In a spare process: begins to make a context in the background. */
void ibx_ready_context_make(const struct gpu_session *x);
/* A client comes. */
void ibx_ready_context_taken(void);
/* A thread of the client's program has selected that device; -1: none yet. */
void ibx_ready_context_selected(int device);

#endif
