/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * How what clients have made in CUDA is given back: when they ask for it, when they reset their
 * device, and when their processes have ended. Part of clients.h.
 */
#ifndef IBX_FRONTEND_GLUE_CLIENTS_ENDS_H
#define IBX_FRONTEND_GLUE_CLIENTS_ENDS_H

#include "frontend-glue/handles/handles.h"

/* cleared_memory.c */

/* Clears n bytes that the client is about to get, unless this process has only ever had one client.
 * The former waits for that; the latter clears them in `stream`, which nobody captures, for what
 * comes behind it there. Returns a cudaError_t for the client: that there is no memory, or what has
 * broken the context. */
int ibx_clear_new(struct gpu_session *x, uint64_t address, uint64_t n);
int ibx_clear_new_in(struct gpu_session *x, uint64_t address, uint64_t n, void *stream);
/* Logs, once, that memory cannot be cleared. */
void ibx_clear_tell(const struct gpu_session *x);
/* The context is gone; NULL: it is not known which. */
void ibx_cleared_forget(const void *context);

/* pending_clears.c */

/* Memory of a pool is being cleared in `stream`, which nobody captures. False: it cannot be
 * noted. */
bool ibx_pending_clear_add(const struct gpu_session *x, uint64_t address, void *stream);
/* Whether this memory is being cleared. ibx_pending_clear_wait() waits until it is not. */
bool ibx_pending_clear(struct gpu_session *x, uint64_t address);
void ibx_pending_clear_wait(struct gpu_session *x, uint64_t address);
/* What is added to `stream` from now on comes behind the clear. False: CUDA fails. */
bool ibx_pending_clear_before(uint64_t address, void *stream);
/* The memory is freed, or the context is gone (NULL: it is not known which). */
void ibx_pending_clear_gone(uint64_t address);
void ibx_pending_clear_forget(const void *context);

/* departures.c */

/* The session ends. If it is its client's last one, and the client cannot come again, what the
 * client has made is given back. */
void ibx_clients_leave(struct gpu_session *x);
/* The client's process has ended: what it has made is given back. If it has sessions still, only
 * its communicators of NCCL are, and the words are written that its streams wait for: a session may
 * wait for such work, which would last for ever. */
void ibx_clients_ended(uint64_t number);
/* Has ibx_clients_ended() called as soon as the process of the session's client has ended, if this
 * host sees that. */
void ibx_clients_watch(struct gpu_session *x);

/* ended.c: counts clients whose processes have ended and whose things are still to be given back.
 * client_ends.c reports them: */

/* counting begins in this process; one more client has ended; one has things that cannot be given
 * back now; all things of one were given back; some were. */
void ibx_ended_begin(void);
void ibx_ended_one_more(void);
void ibx_ended_stuck(void);
void ibx_ended_over(bool was_stuck);
void ibx_ended_given(void);
/* Whether a thread waits in ibx_client_ends_wait(). */
bool ibx_ended_hurries(void);
/* For a caller that has found no GPU memory: waits up to 1 s until some is given back. False: none
 * was, or none is to be expected. */
bool ibx_client_ends_wait(void);
/* Whether there is a client beside the session's, or things of one that has ended. */
bool ibx_clients_several(struct gpu_session *x);

/* client_ends.c */

/* The client's process has ended: another thread gives back what it has made. */
void ibx_client_ends_add(uint64_t client, const struct ibx_client_name *name);
/* The same, but sessions of it are still in calls: only its communicators are ended, and its
 * streams' waits for words. */
void ibx_client_ends_in_calls(uint64_t client, const struct ibx_client_name *name);
/* The session's client closes what it has opened, as often as it has opened it. What was only kept
 * for that is given back. True: it is another process's, and nobody has it open here any more: the
 * caller is to give it back. */
bool ibx_handles_close(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
/* A client has freed that: another thread frees it in CUDA, once all work has ended that is under
 * way now. False: there is no memory to note it. */
bool ibx_client_ends_leave(const struct ibx_taken *taken);
/* The context is gone, with what was to be given back in it; NULL: it is not known which. */
void ibx_client_ends_forget(const void *context);

/* process_ends.c */

/* Has ibx_clients_ended() called when `process_fd` becomes readable, once at most. It stays the
 * caller's. */
void ibx_process_ends_watch(int process_fd, uint64_t client);
/* The client's process has ended: a second later its streams' waits for words are ended, if it
 * still has some, and again until these are forgotten. */
void ibx_process_ends_waits(uint64_t client);

/* own_streams.c */

/* Makes a non-blocking stream, for ibx_release_memory_async(); NULL: CUDA fails.
 * ibx_own_stream_end() waits for the stream's work, and destroys it. */
void *ibx_own_stream_begin(void);
void ibx_own_stream_end(const struct ibx_cuda *cuda, void *stream);
/* Makes a stream whose work is ordered behind that of the legacy stream, and behind nothing else;
 * NULL: CUDA fails. ibx_own_stream_leave() destroys it, and does not wait for its work. */
void *ibx_own_stream_behind_legacy(void);
void ibx_own_stream_leave(void *stream);
/* An event in the current context behind the work of the legacy stream, without delaying that
 * stream's later work. The caller destroys it. NULL: CUDA fails. */
void *ibx_own_event_behind_legacy(const struct ibx_cuda *cuda);

/* own_work.c */

/* If there are other clients: waits until the client's own work that is under way in the current
 * context has ended. False: there are no others, or not all of the client's work can be found, or
 * CUDA fails. */
bool ibx_own_work_wait(struct gpu_session *x);
/* Waits as ibx_own_work_wait() does, and frees memory of the client by cudaFreeAsync while
 * others work; without a wait, if it is still being cleared. False: the caller has to call
 * cudaFree. */
bool ibx_own_work_free(struct gpu_session *x, uint64_t memory);
/* The same for something that CUDA frees only behind all work: another thread frees it when that
 * has ended (client_ends.c). False: the caller has to free it. */
bool ibx_own_work_leave(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
/* To be called before x->requests notes what GVirtuS reads. If the request unregisters kernels
 * while work of others goes on, for which CUDA would wait and keep everybody out, the kernels stay
 * until the client's process has ended: the request gets the name of no call. */
void ibx_own_unload_guard(struct gpu_session *x, uint8_t *bytes, size_t n);

/* work_under_way.c */

/* What has become of a context's work. */
enum ibx_work {
    IBX_WORK_OVER,
    IBX_WORK_OF_OTHERS, /* of others; the client's own is over, if it has no session */
    IBX_WORK_OWN,       /* it may be the client's own, or somebody captures */
    IBX_WORK_LOST       /* the context is broken */
};
/* Waits up to `ms` until the client has no work of its own in the context, and up to `ms` again
 * until all work has ended that was there at that moment. The context is current, and the thread in
 * relaxed capture mode. Unless OVER, *whose is a client that has work there; 0: it is not known. */
enum ibx_work ibx_work_wait(struct gpu_session *x, uint64_t client, const void *context,
                            unsigned ms, uint64_t *whose);
/* If there are other clients: waits as ibx_work_wait() does, until all work has ended that was
 * in the current context at some moment. OVER also if there are no others, or if no such moment
 * is found, for example while a client captures. settle_all() waits until that, or until the
 * context is broken. */
enum ibx_work ibx_own_work_settle(struct gpu_session *x, unsigned ms, uint64_t *whose);
void ibx_own_work_settle_all(struct gpu_session *x);
/* Sleeps for *ns, and doubles that up to 10 ms; 0: begins with 50 us. */
void ibx_nap(uint64_t *ns);

/* stream_waits.c */

/* Notes that a stream of the client waits for a word of so many bytes, with these flags, in the
 * current context. The latest 1024 are kept; first those of that stream are forgotten. */
void ibx_stream_waits_add(struct gpu_session *x, void *stream, uint64_t address, unsigned bytes,
                          uint64_t value, unsigned flags);
/* The client's process has ended, and its work does not: writes what its streams may wait for. It
 * may have to be called several times. */
void ibx_stream_waits_end(struct gpu_session *x, uint64_t client);
/* A context in which streams of the client may wait; `context` may be NULL. False: there is
 * none. */
bool ibx_stream_waits_first(uint64_t client, void **context);
/* The client's work in that context is over. */
void ibx_stream_waits_over(uint64_t client, const void *context);
/* The client shares memory or events with others, or has ended, with its work. */
void ibx_stream_waits_forget(uint64_t client);

/* word_streams.c */

/* Makes a stream of the current context for the words of clients that have ended, unless it has
 * one. Call it before a wait is added there: it may be too late afterwards. */
void ibx_word_stream_prepare(const struct gpu_session *x);
/* NULL: that context has none. It is non-blocking, lives as long as the context, and may be in use
 * by several threads. */
void *ibx_word_stream_of(const void *context);
/* The context is gone; NULL: it is not known which. */
void ibx_word_stream_forget(const void *context);

/* left_work.c */

/* A thread of a session of that client ends: notes its work in CUDA's stream for the thread, and
 * all work in the legacy stream, until that has ended. */
void ibx_left_work_keep(struct gpu_session *x, uint64_t client);
/* The same for the work in a stream that is about to be destroyed. */
void ibx_left_work_of_stream(struct gpu_session *x, uint64_t stream);
/* Whether any of the noted work, except for the legacy stream's, is under way: of the client, or of
 * anybody up to `so_far`, a result of ibx_left_work_so_far(). ibx_left_work_in_legacy(): whether
 * work is under way that the legacy stream had when the client's session ended. */
bool ibx_left_work_any(const struct ibx_cuda *cuda, uint64_t client, uint64_t so_far);
bool ibx_left_work_in_legacy(const struct ibx_cuda *cuda, uint64_t client);
uint64_t ibx_left_work_so_far(void);
/* The context is gone, with its events; NULL: it is not known which. */
void ibx_left_work_forget(const void *context);
/* ibx_left_work_lost(): whether the context has gone since ibx_left_work_watch(); NULL: whether any
 * has. Only one thread at a time uses these. */
void ibx_left_work_watch(const void *context);
bool ibx_left_work_lost(void);

/* end_hooks.c */

/* Functions by which extensions/ and device_calls/ give back what only they know, or learn that
 * something is gone. All are set. */
struct ibx_end_hooks {
    void (*gone)(uint64_t value); /* this memory was given back, or this event destroyed */
    void (*mappable_gone)(uint64_t number); /* nobody names mapped memory by this number any more */
    void (*forget)(const void *context);    /* this context is gone; NULL: it is not known which */
    void (*give_back_opened)(enum ibx_handle_kind kind, uint64_t value); /* OPENED_POOL, _POINTER */
    void (*give_back_math)(unsigned type, uint64_t handle);              /* enum ibx_math_type */
};
/* Before there is a client; without it nobody opens such things, or calls libraries. */
void ibx_end_hooks_set(const struct ibx_end_hooks *hooks);
void ibx_end_gone(uint64_t value);
void ibx_end_mappable_gone(uint64_t number);
void ibx_end_forget(const void *context);
void ibx_end_opened(enum ibx_handle_kind kind, uint64_t value);
void ibx_end_math(unsigned type, uint64_t handle);

/* release.c */

/* The i-th kind of what is given back one by one, in the order of giving back; false: there are
 * fewer. */
bool ibx_release_kind(unsigned i, enum ibx_handle_kind *kind);
/* Frees memory of the current context by cudaFreeAsync in `stream`. False: CUDA cannot free it in
 * this way. */
bool ibx_release_memory_async(uint64_t memory, void *stream);
/* Gives back what was taken, in the current context. */
void ibx_release_taken(struct gpu_session *x, const struct ibx_taken *taken, size_t count);
/* Gives back a stream or an event that its client has destroyed while requests used it
 * (ibx_handles_destroy()). */
void ibx_release_destroyed(const struct ibx_taken *taken);
/* Gives back the graphs of a client that is no more. */
void ibx_release_graphs(struct gpu_session *x, uint64_t client);

/* own_reset.c */

/* For handlers of GVirtuS that make or destroy something: read() is called when the name of a
 * request has been read, run() when all of it has, answered() when the handler has answered.
 * `body`: the whole body, before the handler gets it; NULL: it came in pieces. run() returns 0, or
 * as ibx_session_fail(). */
void ibx_made_read(struct gpu_session *x, const char *name);
/* After ibx_made_read(): whether the tenant may have one more of what the handler makes. */
bool ibx_made_room(const struct gpu_session *x);
int ibx_made_run(struct gpu_session *x, uint8_t *body);
void ibx_made_answered(struct gpu_session *x);
/* cudaDeviceReset: gives back what the client has made. True: that is done, and *code is the
 * result, a cudaError_t. False: the client may reset the context. */
bool ibx_own_reset(struct gpu_session *x, int *code);
/* To be called before x->requests notes what GVirtuS reads: no handler resets the context while
 * other clients use it. The name of such a request is changed to that of no call: if `asked`,
 * unless ibx_own_reset() has permitted the reset; else, for requests that ibx_own_reset() does not
 * see, unless the client is alone now. */
void ibx_own_reset_guard(struct gpu_session *x, bool asked, uint8_t *bytes, size_t n);

#endif
