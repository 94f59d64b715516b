/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared by captures.c, capture_entries.c, told_graphs.c and capture_graphs.c. */
#ifndef IBX_FRONTEND_GLUE_CLIENTS_CAPTURES_INTERNAL_H
#define IBX_FRONTEND_GLUE_CLIENTS_CAPTURES_INTERNAL_H

#include "frontend-glue/clients/clients.h"

#include <pthread.h>

#define CAPTURE_IS_ACTIVE      1 /* CUstreamCaptureStatus */
#define CAPTURE_IS_INVALIDATED 2

/* Of the captures that sessions have begun; what captures.c knows of them is under it, too. */
extern pthread_mutex_t ibx_captures_lock;

/* ------------------------------------------- capture_entries.c; all of these under the lock */

/* The place in the session's list of a capture in this stream that has not been answered yet;
 * stream 0: a free place. x->capturing.room: there is none. */
unsigned ibx_capture_place(const struct gpu_session *x, uint64_t stream);
/* If there is no memory, the capture is counted, but its stream is not known. */
void ibx_capture_add(struct gpu_session *x, uint64_t stream);
/* Forgets a capture of the session, or those in that stream, with their graphs. */
void ibx_capture_forget_one(struct gpu_session *x, struct ibx_captured *c);
void ibx_capture_forget(struct gpu_session *x, uint64_t stream);
/* If no session of the tenant captures any more, forgets what its captures counted: what came of
 * them counts as graphs. */
void ibx_capture_forget_work(const struct gpu_session *x);
/* The session begins captures, or has ended. */
void ibx_capture_join(struct gpu_session *x);
void ibx_capture_part(struct gpu_session *x);
/* The first session of this one's client that has begun captures, or the next one behind `before`;
 * NULL: there are no more. After ibx_clients_number(). */
struct gpu_session *ibx_capture_next_of_client(const struct gpu_session *x,
                                               const struct gpu_session *before);
/* Whether the session has begun a capture in this stream, and not ended it. */
bool ibx_capture_holds(const struct gpu_session *x, uint64_t stream);
/* The session that has begun a capture in this stream, or NULL. Handles up to 2 mean a stream that
 * each thread has for itself. */
struct gpu_session *ibx_capture_holder(struct gpu_session *x, uint64_t stream);
/* The entry of the capture that this stream has begun; NULL: there is none. */
struct ibx_captured *ibx_capture_entry_in(struct gpu_session *x, uint64_t stream);
/* The entry of a capture that a session of the tenant has begun: the one with that number, or, if
 * `id` is 0, of which a client was told that graph. NULL: there is none. */
struct ibx_captured *ibx_capture_entry_of(const struct gpu_session *x, uint64_t id, uint64_t graph);
/* The stream of one capture of the session; 0: there are no more. */
uint64_t ibx_capture_any_stream(const struct gpu_session *x);

/* ----------------------------------------------------------------------------- told_graphs.c */

/* The stream that a request of GVirtuS's names first; 0: none. */
static inline uint64_t ibx_captures_stream_of(const struct gpu_session *x)
{
    struct ibx_reader r = ibx_reader_of(x->requests.first, 8);
    return x->requests.length < 8 ? 0 : ibx_get_u64(&r);
}

/* The graph of the capture that this stream has begun, as far as a client was told it. `take`: the
 * capture does not have it any more. */
uint64_t ibx_told_graph(struct gpu_session *x, uint64_t stream, bool take);
/* The graph that the request has taken: its handler has ended the capture, and made the graph or
 * lost it; or it goes back to the capture, if that is still there. */
void ibx_told_graph_answered(struct gpu_session *x, bool is_over, bool made);
/* The capture of the stream may end. Its graph, if a client was told that, is the request's alone
 * until the end: other requests name its nodes. Takes ibx_captures_graphs_lock(). False, and it is
 * not taken: another request has the graph for too long. */
bool ibx_told_graphs_end_begin(struct gpu_session *x, uint64_t stream);

/* -------------------------------------------------------------------------- capture_graphs.c */

/* What sessions of the tenant's may have done to captures of each other. */
struct ibx_captured_work *ibx_captures_work(const struct gpu_session *x);
/* Its lock: who ends a capture has it alone. */
pthread_rwlock_t *ibx_captures_graphs_lock(const struct gpu_session *x);

/* Whether the stream waits for the legacy one, as a capture of it does. */
bool ibx_capture_would_block(struct gpu_session *x, uint64_t stream);

/* The status of a capture, and, if it is active, CUDA's number of it. False: the driver does not
 * tell, before CUDA 11.3. */
bool ibx_capture_status(struct gpu_session *x, uint64_t stream, int *status, uint64_t *id);

/* Whether the stream is still in capture `id`. Another thread may have ended that since, and begun
 * another one in that stream, or in a new stream with the same handle. An invalidated capture
 * counts as the same: it is of no use to anybody. */
bool ibx_capture_is_still(struct gpu_session *x, uint64_t stream, uint64_t id);

#endif
