/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * client_copies/: copies that an application's front end runs itself, over the connection that
 * GVirtuS made, in GVirtuS's own frames. plugin/ calls this header for libibx-frontend.so, and
 * ib-bw does for its measurements.
 *
 *   client_copy.c   the calls below for one copy, and for one call
 *   client_frame.c  one request and its reply: the payload stays in the application's memory
 *   client_rows.c   cudaMemcpy2D
 *   client_stage.c  long copies of pageable memory, in parts, over shm
 *   client_ahead.c  short copies whose calls return before the copies are made
 *   async_copy.c    asynchronous copies in the background
 *
 * The first five call each other: client_stage.c has what all of them remember of a session, and
 * client_frame.c, by which all of them send, asks client_copy.c what is left to the GPU.
 */
#ifndef IBX_FRONTEND_GLUE_CLIENT_COPIES_CLIENT_COPIES_H
#define IBX_FRONTEND_GLUE_CLIENT_COPIES_CLIENT_COPIES_H

#include "frontend-glue/preload/attach_table.h"
#include "frontend-glue/session/session.h"

/* Whether an asynchronous copy of n bytes from the device into lasting memory is left to the GPU.
 * Few bytes come with the reply for a while when the GPU could not reach such memory: that is
 * faster than through memory that it reaches. */
bool ibx_client_leaves(struct ibx_session *session, size_t n);
/* The same, and few bytes only where the GPU has reached such memory: else the call would wait for
 * all work before the copy. */
bool ibx_client_leaves_surely(struct ibx_session *session, size_t n);

/* Makes a copy between the caller's memory and the device, at a point where GVirtuS would begin a
 * request, without a buffer of GVirtuS. 0: *exit_code is what the call returns, 999 if the back end
 * is gone (logged the first time). -ENOTCONN: nothing was done: the back end was gone before, or a
 * request has begun. The frames are those of G2 and later. */
int ibx_client_copy(struct ibx_session *session, const struct ibx_frontend_copy *copy,
                    int *exit_code);
/* For a plain copy to the device whose call returns before the copy is made. can_go_ahead():
 * whether this side can take the copy's bytes before it returns. go_ahead(): sends the copy; before
 * that, the caller has called ibx_session_owe() for its reply. *exit_code: 0, or 999 if the back
 * end is gone. */
bool ibx_client_can_go_ahead(struct ibx_session *session, const struct ibx_frontend_copy *copy);
void ibx_client_go_ahead(struct ibx_session *session, const struct ibx_frontend_copy *copy,
                         int *exit_code);
/* Makes a call whose answer is only its exit code; results as ibx_client_copy(). */
int ibx_client_call(struct ibx_session *session, const char *name, const void *body, size_t n,
                    int *exit_code);

/*
 * Asynchronous copies. GVirtuS has one connection for each thread, with one request on it at a
 * time. So further threads make asynchronous copies, each over a connection of its own; to the
 * back end they are further clients. Copies of one stream run in their order. A call that comes
 * after them in CUDA's order waits for them first.
 *
 * Streams are the back end's handles; those up to IBX_ASYNC_COPY_STREAM_SPECIAL stand for all
 * streams. Any thread may call these. A forked child has none of the copies. exit(3) waits for all.
 */
#define IBX_ASYNC_COPY_STREAM_SPECIAL 2u /* 0 and 1: the legacy stream, 2: the thread's own */

/* Starts a copy in one stream, with `device` selected, over a connection like that of `session`. Of
 * `session` it reads only what this was created with. The memory belongs to the copy until it has
 * ended. False: not started; the caller has to copy. */
bool ibx_async_copy_start(const struct ibx_session *session, const struct ibx_frontend_copy *copy,
                          int device);
/* Starts no more copies from now on: work that is captured into a graph has to come from one
 * thread. */
void ibx_async_copy_forbid(void);

/* Whether any copy has not ended. */
bool ibx_async_copy_any(void);
/* Whether any copy in that stream has not ended. */
bool ibx_async_copy_pending(uint64_t stream);
/* Block until all copies in that stream, or with that memory, have ended. */
void ibx_async_copy_wait(uint64_t stream);
void ibx_async_copy_wait_memory(const void *address, size_t n);
/* The first error of a copy in that stream that was not returned yet, or 0. */
int ibx_async_copy_failure(uint64_t stream);
/* Drops all errors: they end with their context, as streams do. */
void ibx_async_copy_forget_failures(void);

#endif
