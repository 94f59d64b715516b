/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * How what clients have made in CUDA is given back: when they ask for it, when they reset their
 * device, and when their processes have ended. Part of clients.h.
 */
#ifndef IBX_FRONTEND_GLUE_CLIENTS_ENDS_H
#define IBX_FRONTEND_GLUE_CLIENTS_ENDS_H

#include "frontend-glue/handles/handles.h"

/* cleared_memory.c */

/* n bytes that the client is about to get, whoever has had them before, are zeros then; the latter:
 * for what comes behind it in the stream, which nobody captures. False: CUDA fails. */
bool ibx_clear_new(struct gpu_session *x, uint64_t address, uint64_t n);
bool ibx_clear_new_in(struct gpu_session *x, uint64_t address, uint64_t n, void *stream);
/* The log says once that it cannot be. */
void ibx_clear_tell(const struct gpu_session *x);
/* The context is gone; NULL: it is not known which. */
void ibx_cleared_forget(const void *context);

/* departures.c */

/* The session ends. */
void ibx_clients_leave(struct gpu_session *x);
/* The client's process has ended, if it has no session: what it has made is given back. */
void ibx_clients_ended(uint64_t number);

/* ended.c: clients that have ended, and what client_ends.c tells of them: */

/* None in this process so far; one more; something is in the way of one; it is over; some of one
 * was given back. */
void ibx_ended_begin(void);
void ibx_ended_one_more(void);
void ibx_ended_stuck(void);
void ibx_ended_over(bool was_stuck);
void ibx_ended_given(void);
/* Whether somebody waits for that. */
bool ibx_ended_hurries(void);
/* For whom there is no memory: whether more has been given back, for which it waits. */
bool ibx_client_ends_wait(void);
/* Whether there is a client beside the session's, or things of one that has ended. */
bool ibx_clients_several(struct gpu_session *x);

/* client_ends.c */

/* The client's process has ended: what it has made is given back, a little later. */
void ibx_client_ends_add(uint64_t client, const struct ibx_client_name *name);
/* ibx_clients_ended() is called when that is readable, once at most. */
void ibx_client_ends_watch(int process_fd, uint64_t client);
/* The session's client uses no more what it has opened, once it has said so as often. What was only
 * there for that is given back; true: it is another process's, nobody here uses it any more, and
 * the caller is to give it back. */
bool ibx_handles_close(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
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
bool ibx_own_work_wait(struct gpu_session *x);
/* Likewise, and gives memory of the client's back, beside work of others. False: cudaFree has to.
 */
bool ibx_own_work_free(struct gpu_session *x, uint64_t memory);
/* Likewise what CUDA gives back behind all work only, which waits for that elsewhere. False: a call
 * of CUDA's has to. */
bool ibx_own_work_leave(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
/* Before x->requests notes what GVirtuS reads: kernels that the client takes away stay until its
 * process has ended, where work of others that does not end would keep everybody out meanwhile. The
 * request becomes a call that is none. */
void ibx_own_unload_guard(struct gpu_session *x, uint8_t *bytes, size_t n);

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
enum ibx_work ibx_work_wait(struct gpu_session *x, uint64_t client, const void *context,
                            unsigned ms, uint64_t *whose);
/* Waits so long, beside other clients, until all work has ended that was there at some moment, or
 * it is not known: OVER. *whose as of ibx_work_wait(). And the same as long as that takes. */
enum ibx_work ibx_own_work_settle(struct gpu_session *x, unsigned ms, uint64_t *whose);
void ibx_own_work_settle_all(struct gpu_session *x);
/* Sleeps, each time twice as long; 0: it begins. */
void ibx_nap(uint64_t *ns);

/* left_work.c */

/* A session's thread ends, of that client: what it has under way in CUDA's stream for it, and what
 * anybody has in the legacy stream, is known from now on, until it is over. */
void ibx_left_work_keep(struct gpu_session *x, uint64_t client);
/* Likewise what is under way in a stream that is about to be destroyed. */
void ibx_left_work_of_stream(struct gpu_session *x, uint64_t stream);
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

/* given_back.c */

/* The i-th kind of what is given back one by one, in that order; false: there are not so many. */
bool ibx_own_kind(unsigned i, enum ibx_handle_kind *kind);
/* Memory, in the current context: it goes when the stream gets there. False: it cannot go so. */
bool ibx_own_free_async(uint64_t memory, void *stream);
/* Gives back what was taken, in the current context. */
void ibx_own_give_back(struct gpu_session *x, const struct ibx_taken *taken, size_t count);
/* Gives back the graphs of a client that is no more. */
void ibx_own_graphs_end(struct gpu_session *x, uint64_t client);

/* own_reset.c */

/* A handler of GVirtuS's makes or ends something: when its name has been read, when all of its
 * request has, when it has answered. */
void ibx_made_read(struct gpu_session *x, const char *name);
/* Behind the former: whether the tenant may make one more of it. */
bool ibx_made_room(const struct gpu_session *x);
void ibx_made_run(struct gpu_session *x);
void ibx_made_answered(struct gpu_session *x);
/* cudaDeviceReset: gives back what the client has made. False: the client may reset the context. */
bool ibx_own_reset(struct gpu_session *x, int *code);
/* Before x->requests notes what GVirtuS reads: no handler resets the context beside other clients.
 * A reset that the function above has not let pass becomes a call that is none, if it was asked of
 * those that come whole: one in pieces could go on when others are there. */
void ibx_own_reset_guard(struct gpu_session *x, bool asked, uint8_t *bytes, size_t n);

#endif
