/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * call_pipeline/: calls of GVirtuS's front end (G2 to G5) that need no answer do not wait for one.
 * It stands between the communicator and its session: the front end writes a request and reads a
 * reply, and cannot tell whether the back end has run it already.
 *
 *   pipeline.c   one connection: what GVirtuS calls on it
 *   direct.c     calls of an application that do not go through GVirtuS's front end
 *   answers.c    which requests are answered without the back end, or before it
 *   library_calls.c  calls of cuBLAS and the like
 *   idle_handles.c  streams and events without work: queries of these are answered
 *   events.c     events that this process has made: which requests name them, and record them
 *   allocations.c  memory that cudaMalloc has returned: cudaFree of it will succeed
 *   backlog.c    requests that were answered: sending them, and taking their replies
 *   awaited_replies.c  requests that wait, and what is learned from their replies
 *   request_keys.c  what decides whether a request succeeds, and what its reply is
 *   process.c    all connections of the process: the order between them, the thread that sends what
 *                an application leaves behind, fork(2) and exit(3)
 *   process_facts.c  what holds for all of them: what has become worthless, what is left to run
 *   connection_monitor.c  a thread that notices broken connections whose threads are in no call
 *   unseen_launches.c  launches by <<<>>>, whose results nobody sees
 *   reply_cache.c  caches what replies were: which calls succeed again, with which reply
 *
 * Answered here are
 *   - launches like one that has succeeded (function, block, shared memory), event records and
 *     waits for events that have succeeded with the same handles: so what such a call returns is
 *     what it returns natively. With "all", cudaMemsetAsync, cudaMemset and copies within the
 *     device or, of few bytes, to it, too: their errors appear later.
 *   - launches by <<<>>>, of which nobody sees what they return: the first one, too;
 *   - calls of cuBLAS, cuDNN, cuFFT and cuRAND that add work, with the same arguments as before;
 *   - what a kernel's node of a graph is to be launched with, where it has taken the same function,
 *     grid and block before, and neither a graph nor a node was destroyed since;
 *   - the configuration of a launch, which never leaves this process;
 *   - what only tells a state that is known: the last error, the device, the device's properties.
 *
 * Requests that were answered are sent in order and together: at once while the back end is idle,
 * otherwise when a message is full, with the next call that waits, or by the process's own thread a
 * few microseconds later. An error among their replies is returned by the next call that waits for
 * the device, and by cudaGetLastError.
 *
 * Order between threads: a call that may have to come after another thread's requests waits until
 * the back end has run them.
 *
 * Threads: a connection's calls come from its own thread. Other threads send its backlog and take
 * its replies, under its lock.
 */
#ifndef IBX_FRONTEND_GLUE_CALL_PIPELINE_PIPELINE_H
#define IBX_FRONTEND_GLUE_CALL_PIPELINE_PIPELINE_H

#include "frontend-glue/session/session.h"

enum ibx_pipeline_mode { IBX_PIPELINE_OFF, IBX_PIPELINE_LAUNCHES, IBX_PIPELINE_ALL };

struct ibx_pipeline;

/* Makes the pipeline of a client's connected session, which has to outlive it. With the mode off
 * every call waits, but the connection monitor still continues the session after a broken
 * connection, between calls. NULL: no memory, and neither is done. All functions accept NULL unless
 * they say otherwise. */
struct ibx_pipeline *ibx_pipeline_create(struct ibx_session *session, enum ibx_pipeline_mode mode);
/* Finishes first, as ibx_pipeline_finish(). False: the process ends while the pipeline's thread is
 * in a call: nothing was destroyed, and the session must not be either. */
bool ibx_pipeline_destroy(struct ibx_pipeline *pipeline);

/* What GVirtuS calls on its communicator; not NULL. */
void ibx_pipeline_write(struct ibx_pipeline *pipeline, const void *bytes, size_t n);
void ibx_pipeline_sync(struct ibx_pipeline *pipeline);
/* False: the session has ended; see ibx_session_answer(). */
bool ibx_pipeline_read(struct ibx_pipeline *pipeline, void *buffer, size_t n);

/* Makes a call between two requests of GVirtuS, as GVirtuS's front end would make it; a success
 * returns exactly `out_n` bytes beside its exit code. 0: *exit_code is what the call returns.
 * -ENOTCONN: nothing was done, and GVirtuS has to make the call; also if GVirtuS has not made such
 * a call yet. */
struct ibx_pipeline_request {
    const char *name;
    const void *body;
    size_t n;
    void *out;
    size_t out_n;
    bool unseen; /* a launch by <<<>>>: see ibx_pipeline_unseen() */
};
int ibx_pipeline_call(struct ibx_pipeline *pipeline, const struct ibx_pipeline_request *call,
                      int *exit_code);
/* From here on a cudaLaunchKernel that GVirtuS writes is kept instead of sent, and answered with
 * success. False: the application's own calls must not go over this connection. */
bool ibx_pipeline_divert(struct ibx_pipeline *pipeline);
/* Ends that. Returns the body of the last launch, of *n bytes, which is valid until the next
 * request. NULL: there was none, or it is too long to be kept. */
const uint8_t *ibx_pipeline_diverted(struct ibx_pipeline *pipeline, size_t *n);
/* Says whether the next request, if it is a launch, is one by <<<>>>, whose result nobody sees.
 * Such a launch does not wait, although it may fail; cudaGetLastError returns the error. To be
 * called for each launch, since GVirtuS may have returned from the last one without a request. */
void ibx_pipeline_unseen(struct ibx_pipeline *pipeline, bool unseen);
/* A call of that name was made in another way, in a frame like GVirtuS's, and was answered without
 * output. */
void ibx_pipeline_learn(struct ibx_pipeline *pipeline, const char *name);
/* The following say what calls of the connection's thread would return, if that is known; false: it
 * is not known, or not so. */
bool ibx_pipeline_has_no_error(struct ibx_pipeline *pipeline);
/* No call whose result is known has left an error; and no other one has, or may have. Neither sends
 * anything. */
bool ibx_pipeline_knows_no_error(const struct ibx_pipeline *pipeline);
bool ibx_pipeline_has_no_late_error(const struct ibx_pipeline *pipeline);
/* *number differs from before if a call of the thread has failed since, or may have. */
bool ibx_pipeline_errors(const struct ibx_pipeline *pipeline, int *number);
/* How many calls were answered before they were run. */
bool ibx_pipeline_answered(const struct ibx_pipeline *pipeline, int *number);
/* *number differs from what it was when so many calls were answered only if a later call of the
 * thread has failed. False: one of these was answered, and may fail yet. */
bool ibx_pipeline_failures(const struct ibx_pipeline *pipeline, unsigned answered, int *number);
/* *error is that of a launch by <<<>>>, which is the only one that cudaGetLastError has not
 * returned of the calls that were answered before they were run; none of these may fail yet. */
bool ibx_pipeline_launch_failure(const struct ibx_pipeline *pipeline, int *error);
/* Whether a sticky error has broken the process's contexts, and which one. */
bool ibx_pipeline_broken_by(int *code);
/* The end of how many server processes was noticed so far, by any thread. */
unsigned ibx_pipeline_server_ends(void);
/* Another number than before if what the server had made for this process may be gone, as far as
 * this thread's session and broken ones tell. */
unsigned ibx_pipeline_server(const struct ibx_pipeline *pipeline);
bool ibx_pipeline_device(struct ibx_pipeline *pipeline, int *device);
bool ibx_pipeline_selected(struct ibx_pipeline *pipeline, int device);
bool ibx_pipeline_rests(struct ibx_pipeline *pipeline, uint64_t stream);
/* Whether there is no work that a copy in the legacy stream would wait for. That the legacy stream
 * itself rests says little about the streams that are ordered with it. */
bool ibx_pipeline_all_rests(struct ibx_pipeline *pipeline);
/* Whether no stream has work, which a wait for the device would wait for. */
bool ibx_pipeline_device_rests(const struct ibx_pipeline *pipeline);
/* Whether the legacy stream itself has no work that blocking streams would wait for. */
bool ibx_pipeline_legacy_rests(struct ibx_pipeline *pipeline);
/* How often a request may have left such work so far, and that it is over up to this number. */
uint64_t ibx_pipeline_legacy_left(void);
void ibx_pipeline_legacy_over(uint64_t left);
/* The same of all work that a copy in the legacy stream would wait for. */
uint64_t ibx_pipeline_all_left(void);
void ibx_pipeline_all_over(uint64_t left);
/* An event in the legacy stream, which is not such work itself, waits for others' work. */
void ibx_pipeline_legacy_orders(void);
bool ibx_pipeline_is_over(struct ibx_pipeline *pipeline, uint64_t event);
/* Whether the event cannot have completed, since the back end has not run its last record yet. */
bool ibx_pipeline_is_pending(struct ibx_pipeline *pipeline, uint64_t event);

/* Around other calls on the session, between two requests of GVirtuS. enter() hands the backlog to
 * the session, in front of the request that follows, and waits until other threads' requests have
 * been run that this may have to come after. `stream`: of the work that is about to be enqueued; 0:
 * it concerns all streams. `stays`: work may be left in its stream when the call returns. */
void ibx_pipeline_enter(struct ibx_pipeline *pipeline, uint64_t stream, bool stays);
/* The same for a copy that need not come after other threads' requests. */
void ibx_pipeline_enter_alone(struct ibx_pipeline *pipeline);
/* For work that another connection is about to enqueue: waits as enter() does, and until all
 * calls that were answered here have been run. */
void ibx_pipeline_settle(struct ibx_pipeline *pipeline, uint64_t stream);
/* Another connection has taken that work, and the call that brought it is about to return. */
void ibx_pipeline_elsewhere(void);
/* leave() is called after enter(), with the call's exit code. Returns that, or, if it is 0 and the
 * call has waited for the device (`waits`), the error of an earlier call that was not returned
 * yet. */
int ibx_pipeline_leave(struct ibx_pipeline *pipeline, int exit_code, bool waits);
/* Answers a synchronous copy to the device before it is made, over connections where several are
 * gathered in one message. False: nothing was done, and it has to be made in another way. */
bool ibx_pipeline_copy_gathered(struct ibx_pipeline *pipeline, uint64_t device, const void *host,
                                size_t n);
/* Around the sending of a synchronous copy to the device that is answered before it is made; see
 * ibx_session_owe(). False: nothing was done, and the call has to wait. */
bool ibx_pipeline_copy_begin(struct ibx_pipeline *pipeline, uint64_t device, size_t n);
void ibx_pipeline_copy_end(struct ibx_pipeline *pipeline);
/* The call that was just left has waited for all work that is ordered with the legacy stream. */
void ibx_pipeline_settled(struct ibx_pipeline *pipeline);
/* To be called before the session ends: waits up to `ms` until all that was answered has been run.
 * False: that takes longer. An error that no call has returned is left for other threads' calls. */
bool ibx_pipeline_finish(struct ibx_pipeline *pipeline, unsigned ms);
/* The same for the last time before the connection ends: waits IBX_PIPELINE_END_MS at most. Once
 * exit(3) was called, that is the limit of all such waits together. */
#define IBX_PIPELINE_END_MS 2000u
bool ibx_pipeline_finish_last(struct ibx_pipeline *pipeline);
/* As the process ends: bounds the following calls. Waits up to `ms` as _finish() does; if the
 * server does not answer a call within that time either, the session ends. True: _unlimit() is to
 * follow. False: nothing was changed, since there is more to wait for, or no connection. */
bool ibx_pipeline_limit(struct ibx_pipeline *pipeline, unsigned ms);
void ibx_pipeline_unlimit(struct ibx_pipeline *pipeline);
/* The process ends without the end of its threads: closes the sessions that no thread is using,
 * whose pipelines stay locked. */
void ibx_process_leave(void);
/* Around the session's end: between these calls no other thread uses the session. */
void ibx_pipeline_lock(struct ibx_pipeline *pipeline);
void ibx_pipeline_unlock(struct ibx_pipeline *pipeline);

#endif
