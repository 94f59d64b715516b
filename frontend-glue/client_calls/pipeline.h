/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * client_calls/: calls of GVirtuS's front end (G2 to G5) that need no answer do not wait for one.
 * It stands between the communicator and its session: the front end writes a request and reads a
 * reply, and cannot tell whether the back end has run it already.
 *
 *   pipeline.c   one connection: what GVirtuS calls on it
 *   direct.c     calls, and questions, of an application that GVirtuS's front end does not see
 *   answers.c    which requests are answered without the back end, or before it
 *   library_calls.c  calls of cuBLAS and the like
 *   idle_handles.c  streams and events at rest: what is asked about them is known
 *   allocations.c  memory that cudaMalloc has returned: cudaFree of it succeeds
 *   backlog.c    requests that were answered: they leave, their replies come
 *   waiting.c    requests that wait, and what is learned from their replies
 *   request_keys.c  what decides whether a request succeeds, and what its reply is
 *   process.c    all connections of the process: the order between them, the thread that sends what
 *                an application leaves behind, fork(2) and exit(3)
 *   keeper.c     a thread that notices broken connections whose threads are in no call
 *   unseen_launches.c  launches by <<<>>>: nobody sees what they return
 *   learned.c    what the replies have told: what succeeds again, what has the same reply again
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
 * Requests that were answered leave in order and together: at once while the back end is idle,
 * otherwise when a message is full, with the next call that waits, or by the process's own thread a
 * few microseconds later. An error among their replies is returned by the next call that waits for
 * the device, and by cudaGetLastError.
 *
 * Order between threads: a call that may have to come after another thread's requests waits until
 * the back end has run them.
 *
 * Threads: a connection's calls come from its own thread. Others settle it, under its lock.
 */
#ifndef IBX_FRONTEND_GLUE_CLIENT_CALLS_PIPELINE_H
#define IBX_FRONTEND_GLUE_CLIENT_CALLS_PIPELINE_H

#include "frontend-glue/session/session.h"

enum ibx_pipeline_mode { IBX_PIPELINE_OFF, IBX_PIPELINE_LAUNCHES, IBX_PIPELINE_ALL };

struct ibx_pipeline;

/* Of a connected session of a client, which outlives it. With the mode off every call waits, and
 * the keeper has the session go on between calls. NULL: there is no memory, and neither is done.
 * All functions accept NULL where they do not say otherwise. */
struct ibx_pipeline *ibx_pipeline_create(struct ibx_session *session, enum ibx_pipeline_mode mode);
/* ibx_pipeline_finish() comes first. False: the end of the process has come while the pipeline's
 * thread is in a call, which goes on until then. Nothing was destroyed, nor may the session be. */
bool ibx_pipeline_destroy(struct ibx_pipeline *pipeline);

/* What GVirtuS calls on its communicator; not NULL. */
void ibx_pipeline_write(struct ibx_pipeline *pipeline, const void *bytes, size_t n);
void ibx_pipeline_sync(struct ibx_pipeline *pipeline);
/* False: the session has ended; see ibx_session_answer(). */
bool ibx_pipeline_read(struct ibx_pipeline *pipeline, void *buffer, size_t n);

/* A call between two requests of GVirtuS, as GVirtuS's front end would make it; a success returns
 * just `out_n` bytes beside its exit code. Returns 0: *exit_code is what the call returns.
 * -ENOTCONN: nothing was done: GVirtuS has to make it, also since it has not made such a call yet.
 */
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
/* From here on a cudaLaunchKernel that GVirtuS writes is kept and not sent, and it gets a success.
 * False: the connection is none on which the application's own calls may go. */
bool ibx_pipeline_divert(struct ibx_pipeline *pipeline);
/* Ends that: the body of the last one, of n bytes, until the next request. NULL: there was none, or
 * it is too long to be kept. */
const uint8_t *ibx_pipeline_diverted(struct ibx_pipeline *pipeline, size_t *n);
/* Whether the next request, if it is a launch, is one by <<<>>>: nobody sees what it returns. So it
 * does not wait, though it may fail; cudaGetLastError returns that. To be said of each launch:
 * GVirtuS may have returned from the last one without a request. */
void ibx_pipeline_unseen(struct ibx_pipeline *pipeline, bool unseen);
/* Such a call was made otherwise, in a frame like GVirtuS's, and was answered without output. */
void ibx_pipeline_learn(struct ibx_pipeline *pipeline, const char *name);
/* What calls of the connection's thread would return, if that is known. */
bool ibx_pipeline_has_no_error(struct ibx_pipeline *pipeline);
/* Another number than before when one of them has failed since, or may have. */
bool ibx_pipeline_errors(const struct ibx_pipeline *pipeline, int *number);
/* Of how many processes of the server's the end was noticed, by any thread. */
unsigned ibx_pipeline_server_ends(void);
bool ibx_pipeline_device(struct ibx_pipeline *pipeline, int *device);
bool ibx_pipeline_selected(struct ibx_pipeline *pipeline, int device);
bool ibx_pipeline_rests(struct ibx_pipeline *pipeline, uint64_t stream);
/* Nothing is behind that a copy of the legacy stream would wait for. That this stream rests says
 * little of those that are ordered with it. */
bool ibx_pipeline_all_rests(struct ibx_pipeline *pipeline);
bool ibx_pipeline_is_over(struct ibx_pipeline *pipeline, uint64_t event);

/* Before and after other calls on the session, between two requests of GVirtuS. What was answered
 * is gathered, in front of the request that follows, and everything of other threads that it may
 * have to come after was run. `stream`: of the work that is about to be enqueued, 0: it concerns
 * all. `stays`: it may be behind in its stream when the call returns. */
void ibx_pipeline_enter(struct ibx_pipeline *pipeline, uint64_t stream, bool stays);
/* The same for a copy that comes after nothing of other threads. */
void ibx_pipeline_enter_alone(struct ibx_pipeline *pipeline);
/* Likewise, for work that another connection is about to enqueue: what was answered was run. */
void ibx_pipeline_settle(struct ibx_pipeline *pipeline, uint64_t stream);
/* Another connection has taken that work, and the call that brought it is about to return. */
void ibx_pipeline_elsewhere(void);
/* `exit_code`: of that call. Returns it, or that of an earlier call which nobody was told of if
 * `waits`: this one has waited for the device. */
int ibx_pipeline_leave(struct ibx_pipeline *pipeline, int exit_code, bool waits);
/* Answers a synchronous copy to the device before it is made, where several go in one message.
 * False: it has to be made in another way, and nothing was done. */
bool ibx_pipeline_copy_gathered(struct ibx_pipeline *pipeline, uint64_t device, const void *host,
                                size_t n);
/* Around the sending of a synchronous copy to the device that is answered before it is made; see
 * ibx_session_owe(). False: it has to wait, and nothing was done. */
bool ibx_pipeline_copy_begin(struct ibx_pipeline *pipeline, uint64_t device, size_t n);
void ibx_pipeline_copy_end(struct ibx_pipeline *pipeline);
/* The call that was left so has waited for what is ordered with the legacy stream. */
void ibx_pipeline_settled(struct ibx_pipeline *pipeline);
/* Before the session's end: what was answered was run, unless false: that takes longer. An error
 * that no call has returned is left to other threads' calls. */
#define IBX_PIPELINE_END_MS 2000u /* what the end of a process waits */
bool ibx_pipeline_finish(struct ibx_pipeline *pipeline, unsigned ms);
/* The process ends without its threads' end: closes the sessions that no thread is using, whose
 * pipelines stay locked. */
void ibx_process_leave(void);
/* Around the session's end; between them no other thread uses it. */
void ibx_pipeline_lock(struct ibx_pipeline *pipeline);
void ibx_pipeline_unlock(struct ibx_pipeline *pipeline);

#endif
