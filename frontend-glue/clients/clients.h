/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The clients of one back end: what each may name and hold, and how what it has made is given back,
 * while others work beside it. The files that run requests call this.
 *
 *   departures.c     what becomes of a client that has no session
 *   isolation.c      refuses memory of other tenants, and what is too much
 *   graph_limits.c, graph_room.c  graphs, and those that wait: how many there may be
 *   graph_slots.c    page-locked memory through which graphs copy
 *   host_work.c      functions of the client that a stream waits for
 *   host_maps.c      page-locked memory of clients, for kernels
 *   virtual_memory.c, virtual_sharing.c  memory that is mapped apart from its addresses
 *   ranges.c         ranges of addresses, found by any of them
 *   process_memory.c which addresses are this process's own memory
 *   unpinned_copies.c  asynchronous copies of memory that is not pinned
 *   held_memory.c    keeps memory from being freed while a copy uses it
 *   cleared_memory.c clears memory before another program gets it
 *   pending_clears.c what is being cleared, and is not to be freed yet
 *   captures.c       keeps captures of streams and waits for the device apart
 *   capture_entries.c  which captures sessions have begun
 *   told_graphs.c    graphs of captures that clients were told
 *   capture_graphs.c what the driver tells of captures, and their graphs
 *   exec_ends.c      executable graphs that are destroyed while they run
 *   exec_functions.c functions of clients that only an executable graph calls
 *   frees.c          frees memory while graphs of clients run
 *   own_streams.c    streams of the back end's own
 *   shared_events.c  events for other processes that another device's stream waits for
 *   own_work.c       waits for a client's own work, where CUDA would wait for all clients'
 *   work_under_way.c  when all work that is under way now is over
 *   release.c        how each kind of thing is given back
 *   own_reset.c      cudaDeviceReset of one client of several
 *   process_ends.c   learns that clients' processes have ended
 *   client_ends.c, left_work.c  what clients leave behind
 *   stream_waits.c, word_streams.c  end waits for words of clients that have ended
 *   ended.c          whether there are such clients, for those who wait for memory
 *   end_hooks.c      calls extensions/ and device_calls/ for what only they can give back
 *   last_requests.c  unloads modules that a client leaves
 *   resets.c         contexts that clients reset or destroy
 *   kernel_output.c  what kernels have printed: replies to waits tell of it
 *   broken_context.c sticky CUDA errors: who is told, and how the process is replaced
 *   ready_context.c  a context that is there before a client is
 *
 * There are three circles of calls, each between a few files. captures.c tells graph_limits.c, by
 * capture_entries.c, that a capture is over, and graph_limits.c asks captures.c whether a stream is
 * captured. process_ends.c tells departures.c that a process has ended, and departures.c has
 * client_ends.c give its things back, which tells process_ends.c of its streams' waits. host_work.c
 * makes the slot for a function that copies, and graph_slots.c has host_work.c forget that function
 * when the slot has gone, and frees the slot's memory by frees.c, which notes graphs' launches by
 * exec_ends.c and exec_functions.c, and these by host_work.c.
 */
#ifndef IBX_FRONTEND_GLUE_CLIENTS_CLIENTS_H
#define IBX_FRONTEND_GLUE_CLIENTS_CLIENTS_H

#include "frontend-glue/back_end_common/back_end.h"
#include "frontend-glue/gvirtus_handlers/client_functions.h"
#include "frontend-glue/tenants/client_list.h"
#include "frontend-glue/clients/ends.h"
#include "frontend-glue/handles/handles.h"
#include "frontend-glue/gvirtus_handlers/registrations.h"
#include "frontend-glue/tenants/rooms.h"
#include "frontend-glue/tenants/tenants.h"

/* isolation.c */

/* ibx_isolation_admit(): the session's client has been authenticated, and counts as being set up.
 * -EDQUOT: too many of its tenant's are, or too few descriptors are left; -ENOMEM.
 * ibx_isolation_begin(): the session has begun; as ibx_session_fail(), with the same errors.
 * ibx_isolation_end(): it has ended. */
int ibx_isolation_admit(struct gpu_session *x, const struct ibx_path *path, struct ibx_error *err);
int ibx_isolation_begin(struct gpu_session *x);
void ibx_isolation_end(struct gpu_session *x);
/* Whether the client may name [address, address + n): none of it is memory of another tenant or
 * program. */
bool ibx_isolation_allows(struct gpu_session *x, uint64_t address, uint64_t n);
/* The same, and that the range is not this process's own memory: ibx_process_memory_is_own(). */
bool ibx_isolation_is_memory(struct gpu_session *x, uint64_t address, uint64_t n);
/* As ibx_isolation_allows(), for a call that is made now: there has to be memory
 * (ibx_memory_not_there()). */
bool ibx_isolation_allows_now(struct gpu_session *x, uint64_t address, uint64_t n);
/* Checks the bytes of a request that GVirtuS is about to get, before and after x->requests notes
 * them; as ibx_session_fail(). The former may change the bytes. */
int ibx_isolation_before_read(struct gpu_session *x, uint8_t *bytes, size_t n);
int ibx_isolation_after_read(struct gpu_session *x, enum ibx_request_stage before);
/* The handler has returned. What it may have launched into a capture stays: it is not known in
 * which graph it is. */
void ibx_isolation_launched(struct gpu_session *x);
/* Whether zeros are to be sent instead of GVirtuS's last write, which x->replies has noted. */
bool ibx_isolation_withholds(const struct gpu_session *x);
/* To be called before GVirtuS's bytes of a reply are noted: changes those that its front end would
 * take for something else. */
void ibx_isolation_answers(const struct gpu_session *x, uint8_t *bytes, size_t n);
/* The reply is complete. */
void ibx_isolation_replied(struct gpu_session *x);
/* ... and was sent: it no longer counts. */
void ibx_isolation_sent(struct gpu_session *x);

/* captures.c */

/* Whether a client captures a stream. */
bool ibx_captures_any(void);
bool ibx_captures_any_of_tenant(const struct gpu_session *x);
/* Whether the stream is being captured. *id: CUDA's number of the capture; 0: not known. */
bool ibx_captures_active(struct gpu_session *x, uint64_t stream, uint64_t *id);
/* Likewise, with the graph that it is captured into. If it is, the graph exists until
 * ibx_captures_graphs_let_go(): nobody of the tenant ends a capture meanwhile. graphs_hold(): the
 * same for what the caller finds out itself. In between, the caller makes short calls only. */
bool ibx_captures_graph(struct gpu_session *x, uint64_t stream, uint64_t *id, void **graph);
void ibx_captures_graphs_hold(struct gpu_session *x);
void ibx_captures_graphs_let_go(struct gpu_session *x);
/* The client is told the graph of a capture, by CUDA's number of that; the caller has
 * graphs_hold(). From then on it may name the graph, which nobody destroys, until the capture ends.
 * A cudaError_t; CUDA_NOT_SUPPORTED: it is not known which session has begun the capture. */
int ibx_captures_tell_graph(struct gpu_session *x, uint64_t id, uint64_t graph);
/* Whether a graph that the client may name is there: a capture may have ended unseen, and with it
 * its graph. Such a graph is forgotten. */
bool ibx_captures_has_graph(struct gpu_session *x, uint64_t graph);
/* How many nodes the next one of that stream, which is being captured, comes behind; 0: the driver
 * does not tell. */
size_t ibx_captures_behind(struct gpu_session *x, uint64_t stream);
/* Whether the session has begun a capture and not ended it. *id: as above; 0 also if it has begun
 * several. */
bool ibx_captures_own(struct gpu_session *x, uint64_t *id);
/* Around a wait for the device, which ends all captures in its context. wait_begin() blocks
 * until no other client captures, for a bounded time. No capture begins until wait_end(), or
 * until a bounded time has passed. */
void ibx_captures_wait_begin(struct gpu_session *x);
void ibx_captures_wait_end(void);
/* As wait_begin(), but does not block. False: a client captures, and there is no wait to end. */
bool ibx_captures_wait_try(void);
#define IBX_STREAM_NON_BLOCKING 1u /* CU_STREAM_NON_BLOCKING, cudaStreamNonBlocking */
/* To be called before work is added to `stream`. If that is the legacy one (0 or 1), the work would
 * end captures of streams that wait for it: blocks until no other client has such captures, for a
 * bounded time. spare_all(): before a wait for `stream`, which the client may make on behalf of a
 * call that CUDA permits beside captures: also until none of the client's other threads has one. */
void ibx_captures_spare(struct gpu_session *x, uint64_t stream);
void ibx_captures_spare_all(struct gpu_session *x, uint64_t stream);
/* Around a copy in the legacy stream. legacy_begin() blocks as ibx_captures_spare() does, and no
 * such capture begins until legacy_end(), for a bounded time. */
void ibx_captures_legacy_begin(struct gpu_session *x);
/* The same without blocking. False: there is such a capture. */
bool ibx_captures_legacy_try(void);
void ibx_captures_legacy_end(void);
/* ibx_captures_use(): what GVirtuS's handler for requests of that name and kind does with captures.
 * The others are called before the handler runs; when it has returned, or its session has ended;
 * when it has answered with that exit code. run() is false if the handler must not end the capture,
 * whose graph another request has for too long: then refuse() has it get no stream, in its `body`,
 * or ends the session if that is NULL. It returns as ibx_session_fail(). */
enum captures_use ibx_captures_use(const char *name, enum ibx_call_kind kind);
bool ibx_captures_run(struct gpu_session *x);
int ibx_captures_refuse(struct gpu_session *x, uint8_t *body);
void ibx_captures_ran(struct gpu_session *x);
void ibx_captures_answered(struct gpu_session *x, int exit_code);
/* The same for an extension request that has CUDA begin a capture into a graph of the client's:
 * begins() may wait for waits for the device; begun() gets the call's error, and returns that of
 * the request. The caller has graphs_hold() from before the call until begun() has returned. */
void ibx_captures_begins(struct gpu_session *x, uint64_t stream);
int ibx_captures_begun(struct gpu_session *x, uint64_t stream, int rc, uint64_t graph);
/* Has the session's thread mind only its own captures. */
void ibx_captures_mind_own(struct gpu_session *x);
/* Around what may be captured: whether a capture of the tenant's may have ended since over_so_far()
 * was called. Then the work may be in its graph, though its stream is not captured any more. */
unsigned ibx_captures_over_so_far(const struct gpu_session *x);
bool ibx_captures_ended_since(const struct gpu_session *x, unsigned before);
/* The session has ended: ends its captures in CUDA, and destroys what they have made. */
void ibx_captures_end(struct gpu_session *x);

/* frees.c: around a call that frees memory or something else, for which CUDA waits for the device.
 * begin() blocks until that keeps out nobody whom a graph needs. `address`: the memory; 0:
 * something else, which is no memory of a pool. */
void ibx_frees_begin(struct gpu_session *x, uint64_t address);
void ibx_frees_end(void);
/* The same around the first look-up of a kernel on a device, at which the driver may load the
 * kernel. False: it was looked up before, or no graph calls clients' functions; no
 * ibx_frees_end_load() is to follow. */
bool ibx_frees_begin_load(struct gpu_session *x, uint64_t function);
void ibx_frees_end_load(struct gpu_session *x, uint64_t function);
/* Kernels were unloaded, by themselves or with a context: their next look-ups are the first ones
 * again. */
void ibx_frees_unloaded(void);
/* Calls `launch` for an executable graph, when no thread is between ibx_frees_begin() and
 * ibx_frees_end(). Returns the result of `launch`. */
int ibx_frees_launch(struct gpu_session *x, int (*launch)(void *graph, void *stream), void *graph,
                     void *stream);
/* Around a call that has a stream wait for a word: begin() waits while a free is in CUDA, or soon
 * will be. */
void ibx_frees_word_begin(struct gpu_session *x);
void ibx_frees_word_end(void);
/* The context is gone: forgets its executable graphs (exec_ends.c, exec_functions.c), and which
 * kernels were looked up. NULL: it is not known which context. */
void ibx_frees_forget(const void *context);

/* exec_ends.c */

/* Most executable graphs of one client that are destroyed later, at a time. */
#define IBX_EXEC_ENDS_MOST 1024u

/* What an executable graph that the client cannot name any more still takes. */
struct ibx_exec_left {
    uint64_t owned;       /* for ibx_owners_remove() */
    uint64_t graph;       /* that it was made of; 0: not known */
    struct ibx_room room; /* ends when CUDA has destroyed it */
};

/* launched(): an executable graph was launched in the stream. unseen(): the same, where no event
 * can be recorded: it is destroyed at once, for which CUDA waits, unless it is launched again
 * before. */
void ibx_exec_ends_launched(struct gpu_session *x, const void *exec, void *stream);
void ibx_exec_ends_unseen(struct gpu_session *x, const void *exec);
/* To be called before an executable graph is destroyed: waits until its last launch has ended. */
void ibx_exec_ends_wait(struct gpu_session *x, const void *exec);
/* Destroys an executable graph that the client cannot name any more; `destroy`: CUDA's function.
 * If its last launch has not ended, it is destroyed later, and the result is success; if the client
 * has IBX_EXEC_ENDS_MOST of these, this waits. Returns a cudaError_t. */
int ibx_exec_ends_destroy(struct gpu_session *x, void *exec, int (*destroy)(void *exec),
                          struct ibx_exec_left *left);
/* Destroys those whose last launches have ended by now, of all clients. */
void ibx_exec_ends_tidy(struct gpu_session *x);
/* A client leaves, or resets the device: waits a moment for the launches of those that it has
 * destroyed, and destroys what it can. */
void ibx_exec_ends_settle(struct gpu_session *x, uint64_t client);
/* Waits, for 10 s at most, for the launches of those of the client's that were made of the graph,
 * and destroys them. False: there are none. */
bool ibx_exec_ends_wait_graph(struct gpu_session *x, uint64_t graph);
/* The context is gone, with its executable graphs; NULL: it is not known which. */
void ibx_exec_ends_forget(const void *context);

/* shared_events.c */

/* To be called when an event with these flags was made in the current context, before one is
 * destroyed, and when a context is gone (NULL: any may be). Without memory a wait for it is left to
 * CUDA. */
void ibx_shared_event_made(struct gpu_session *x, uint64_t event, unsigned flags);
void ibx_shared_event_gone(uint64_t event);
void ibx_shared_event_forget(const void *context);
/* Whether there is one. */
bool ibx_shared_event_any(void);
/* Has the stream wait for an event for other processes that is another device's, by `wait`; sets
 * *code. False: it is no such event, and nothing was done. */
bool ibx_shared_event_wait(const struct gpu_session *x, void *stream, void *event, unsigned flags,
                           int (*wait)(void *stream, void *event, unsigned flags), int *code);

/* held_memory.c: keeps copies and frees of the same memory apart. by_copy() is called before a copy
 * is checked, by_free() and by_unmap() before memory is freed or unmapped: each blocks while
 * another session does the opposite with any of these bytes. ibx_held_end() when that is over; it
 * does nothing if nothing is held. */
void ibx_held_by_copy(struct gpu_session *x, const struct ibx_frame *f);
/* As by_copy(), of an extension request that copies these bytes. */
void ibx_held_by_request(struct gpu_session *x, uint64_t address, uint64_t n);
void ibx_held_by_free(struct gpu_session *x, uint64_t address);
void ibx_held_by_unmap(struct gpu_session *x, uint64_t address, uint64_t n);
void ibx_held_end(struct gpu_session *x);

/* graph_limits.c */

/* Counts the nodes of a graph that a capture has made. False: there are too many graphs within each
 * other. */
bool ibx_graph_measure(struct gpu_session *x, uint64_t graph);
/* Counts what is about to come into a capture: the work of a request that is about to run; one more
 * piece of work in that stream; a launch of an executable graph in it. False: it is too much. */
bool ibx_graph_captures(struct gpu_session *x, const struct ibx_call *call, const uint8_t *body,
                        size_t n);
bool ibx_graph_captures_in(struct gpu_session *x, uint64_t stream);
/* Around a call of that name, which counts the nodes that a captured stream or an event gets to
 * come behind, if it waits for an event or records one. False: as above; if it is joins_begin(),
 * CUDA must not get the call. */
bool ibx_graph_joins_begin(struct gpu_session *x, const char *name, const uint8_t *body, size_t n);
bool ibx_graph_joins_end(struct gpu_session *x);
bool ibx_graph_launches(struct gpu_session *x, uint64_t exec, uint64_t stream);
/* It was launched. Before that ibx_captures_over_so_far() was `before`: the launch may be part of a
 * capture, or of one that has ended since. */
void ibx_graph_launched(struct gpu_session *x, uint64_t exec, uint64_t stream, unsigned before);
/* The capture with that number of CUDA's is over, or all captures of the tenant are: their work
 * counts no more. A graph that has come of it is counted as a graph. */
void ibx_graph_capture_over(struct ibx_tenant *tenant, uint64_t id);
void ibx_graph_captures_over(struct ibx_tenant *tenant);
/* Ends the session, which captures too much: -EDQUOT, as ibx_session_fail(). */
int ibx_captures_full(struct gpu_session *x);
/* Notes a graph as the tenant's, or an executable graph, with the events for which it waits. False:
 * no memory. */
bool ibx_graph_note(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t handle);
/* The same for a graph that ends with the graph `outer`, or, if that is 0, with the capture into
 * it. Another thread of the client's may guess its address before it is told, and name it. */
bool ibx_graph_note_part(struct gpu_session *x, uint64_t graph, uint64_t outer);
/* Reserves room for a node that is to be made behind `behind` others, with a graph of `inner` nodes
 * in it, which has `depth` graphs within each other. 0: *weight of IBX_HOLD_GRAPHS are reserved.
 * CUDA_NOT_SUPPORTED: too many graphs within each other; CUDA_MEMORY_ALLOCATION: the tenant has no
 * room. */
int ibx_graph_node_room(struct gpu_session *x, const void *graph, size_t behind, uint64_t inner,
                        unsigned depth, uint64_t *weight);

/* exec_functions.c: set(): a node of an executable graph, which is the session's alone meanwhile,
 * calls that function (ibx_host_work_repeat_lone()) in place of the one before. launch(): it is
 * launched, or (-1) was not, after all. keep(): something else may call its functions, too. gone():
 * it has none of them any more. forget(): the context is gone, with all that is launched in it;
 * NULL: all are. */
void ibx_exec_functions_set(struct gpu_session *x, const void *exec, const void *node,
                            const void *function);
void ibx_exec_functions_launch(const void *exec, int more);
void ibx_exec_functions_keep(const void *exec);
void ibx_exec_functions_gone(const void *exec);
void ibx_exec_functions_forget(const void *context);

/* graph_room.c: ibx_graph_room_take() is called before the launch of a graph that calls so many
 * functions of clients, and blocks until there is room for them, for a bounded time.
 * ibx_graph_room_give(): so many were called, or will not be. */
void ibx_graph_room_take(unsigned functions);
void ibx_graph_room_give(unsigned functions);
/* Whether there is any function of a client that graphs call; and counts one more of these (1), or
 * one less (-1). */
bool ibx_host_work_repeats(void);
void ibx_graph_functions_count(int more);

/* host_work.c: results that are int are cudaError_t */

/* Makes the session's queue of functions; all of the client's threads name it by *id.
 * CUDA_INVALID_VALUE: the session has one already. */
int ibx_host_work_open(struct gpu_session *x, uint64_t *id);
struct ibx_host_work {
    uint64_t stream, queue, number; /* number: the client's, not 0 */
    bool callback;
};
/* Enqueues a function in a stream. `enqueue` is the runtime's cudaLaunchHostFunc, or
 * cudaStreamAddCallback if `work->callback`. CUDA_NOT_SUPPORTED: the stream is being captured (for
 * a callback CUDA's own error, and the capture has failed); CUDA_INVALID_VALUE: the tenant has no
 * such queue; CUDA_MEMORY_ALLOCATION: the queue is full. */
int ibx_host_work_add(struct gpu_session *x, const struct ibx_host_work *work, void *enqueue);
/* A function that a graph calls at each launch. Returns the argument with which CUDA is to call
 * ibx_host_work_call(); NULL: *rc is the error. The same number is the same function. The function
 * is known until ibx_host_work_release() was called as often as this has succeeded; CUDA may make
 * these calls itself. */
void *ibx_host_work_repeat(struct gpu_session *x, uint64_t queue, uint64_t number, int *rc);
void ibx_host_work_release(void *repeated);
/* The function is known until its queue's session ends, however often it is released. */
void ibx_host_work_for_good(const void *repeated);
void ibx_host_work_call(void *repeated);
/* The same of a function that one node of an executable graph calls, whatever others have its
 * number: it is known until it is replaced, and was called as often as launched. launch(): once
 * more, or (-1) not, after all. replace(): `over`: launches until now call it no more. */
void *ibx_host_work_repeat_lone(struct gpu_session *x, uint64_t queue, uint64_t number, int *rc);
void ibx_host_work_launch(const void *lone, int more);
void ibx_host_work_replace(const void *lone, bool over);
/* The same of a function that copies n bytes between the client and a slot (graph_slots.h). The
 * slot is held once more for the graph; copy->slot is its number. Such a function is not released,
 * but forgotten when its slot has gone. CUDA_INVALID_VALUE: the number is that of another function
 * or copy; CUDA_NOT_SUPPORTED: there is no room for a slot. */
struct ibx_host_copy {
    uint64_t slot; /* 0: it is another function */
    size_t n;
    bool to_device;
};
void *ibx_host_work_copy(struct gpu_session *x, uint64_t queue, uint64_t number,
                         struct ibx_host_copy *copy, int *rc);
/* The slot has gone: forgets the function that copies by it, which no graph calls any more. */
void ibx_host_work_unused(const void *repeated, uint64_t slot);
/* The copy of the function that the client is calling now, by the lowest 31 bits of its number;
 * slot 0: there is none. */
struct ibx_host_copy ibx_host_work_taken(const struct gpu_session *x, uint32_t number);
/* The client's number of such a function; 0: it is none of the tenant's. */
uint64_t ibx_host_work_number(const struct gpu_session *x, const void *repeated);
/* Whether the function copies by a slot: it ends without calls of CUDA then. */
bool ibx_host_work_is_copy(const void *repeated);
struct ibx_host_copy ibx_host_work_copy_of(const void *repeated);
/* The client has called function `over` (0: none). *called is the function that it is to call now;
 * with `wait`, this is awaited for 20 ms. CUDA_INVALID_VALUE: the session has no queue, or the
 * client was not calling `over`. */
struct ibx_host_called {
    uint64_t number; /* 0: nothing is */
    int status;      /* for a callback */
    struct ibx_host_copy copy;
};
int ibx_host_work_ask(struct gpu_session *x, uint64_t over, bool wait,
                      struct ibx_host_called *called);
/* The session has ended. */
void ibx_host_work_end(struct gpu_session *x);

/* host_maps.c: takes out all mappings of a client that has no session any more, for
 * ibx_host_maps_end(), which unmaps them, but later if the client's work on a device is not over
 * after two seconds. Whoever maps anything there meanwhile waits for that, for a bounded time. */
struct ibx_host_map *ibx_host_maps_take(uint64_t client);
/* Whether all n bytes (n > 0) are in one piece of page-locked memory of the session's client that
 * is mapped for kernels. */
bool ibx_host_maps_hold(struct gpu_session *x, uint64_t address, uint64_t n);
/* Copies between `bytes` and n bytes in pages of this process that are such memory. False: they are
 * in none. */
bool ibx_host_maps_copy(struct gpu_session *x, uint64_t address, void *bytes, size_t n,
                        bool to_pages);
void ibx_host_maps_end(struct gpu_session *x, struct ibx_host_map *taken);
/* Unmaps what was kept, if that work is over by now. */
void ibx_host_maps_tidy(struct gpu_session *x);
/* To be called before host memory that the client's work may use is unpinned: waits up to `ms` on
 * each device until that work is over. cuMemHostUnregister() waits without end for work in the
 * context in which the memory was pinned, and not for that in others: there a kernel or copy that
 * still uses the memory would fail, and with it all work of that context (H200, driver 580). False:
 * the work is not over yet. */
bool ibx_work_on_devices(struct gpu_session *x, uint64_t client, unsigned ms);
/* Writes a word of 4 or 8 bytes in such a piece of that client, also while it is unpinned. False:
 * it is in none. */
bool ibx_host_maps_write(uint64_t client, uint64_t address, unsigned bytes, uint64_t word);
/* ibx_host_maps_make() maps `length` bytes of the client's page-locked memory at the client's own
 * `address` (both in whole pages), and pins them: from `offset` in the file that both ends map, or
 * as pages of this process. 0, or CUDA_NOT_SUPPORTED, and the log says why.
 * ibx_host_maps_give_back() unmaps the one that has `address` in it. */
struct ibx_host_map_wish {
    uint64_t address, length, offset;
    bool own;      /* in no file: pages of this process's */
    bool anywhere; /* at any address of the program's, not only where shared memory is */
};
int ibx_host_maps_make(struct gpu_session *x, const struct ibx_host_map_wish *wish);
void ibx_host_maps_give_back(struct gpu_session *x, uint64_t address);

/* process_memory.c */

/* Whether [address, address + n) begins or ends in this process's own memory, or goes beyond all
 * addresses. A client has called it device memory, but CUDA may take it for host memory. False for
 * device memory, managed memory, and the client's own page-locked memory, and if nothing can be
 * read there: CUDA judges these itself. */
bool ibx_process_memory_is_own(struct gpu_session *x, uint64_t address, uint64_t n);

/* resets.c */

/* Around a request that resets or destroys a context: before its handler runs, and when the handler
 * has answered with that exit code. */
void ibx_context_lose(struct gpu_session *x);
void ibx_context_lost(struct gpu_session *x, int exit_code);

/* kernel_output.c */

/* Has the driver write out what kernels have printed, as it does when one of its calls waits: waits
 * for the per-thread stream of the session's thread if that stream is idle, and not captured. If
 * not, the next call does. */
void ibx_kernel_output_write(struct gpu_session *x);
/* Before the reply to a call that waits: tells a client that wants it whether kernels have printed
 * anything until then. `written`: the driver has waited, so that it has written that out. As
 * ibx_session_fail(). */
int ibx_kernel_output_tell(struct gpu_session *x, bool written);

/* broken_context.c */

/* A call was answered with that cudaError_t. If it is the first sticky one, logs it, and has this
 * process replaced, or closed to new clients, where that is possible. */
void ibx_context_note_error(const struct gpu_session *x, int code);
/* Whether a sticky error has broken this process. */
bool ibx_context_broken(void);
/* A session has begun: logs that its calls will fail, if they will. */
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
