/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The plugin's side of attach_table.h: asynchronous copies in the background.
 *
 * GVirtuS has one connection for each thread, and one request on it at a time. So
 * what is to go on while the application does is run by threads of our own, each
 * with a connection of its own: to the back end they are further clients. Copies
 * of one stream are run one after the other, in their order; whoever asks the back
 * end for something that has to come after them in CUDA's order waits for them
 * first. So to the application they are in their stream from the call on.
 *
 * Streams are the back end's handles. Those up to IBX_ASYNC_COPY_STREAM_SPECIAL are none
 * of one stream and stand for all. From any thread; a forked child has nothing of it. exit(3) waits
 * for all.
 */
#ifndef IBX_FRONTEND_GLUE_CLIENT_COPIES_ASYNC_COPY_H
#define IBX_FRONTEND_GLUE_CLIENT_COPIES_ASYNC_COPY_H

#include "frontend-glue/session/session.h"

#define IBX_ASYNC_COPY_STREAM_SPECIAL 2u /* 0 and 1: the legacy stream, 2: the thread's own */

/* Has a copy in such a stream run, with `device` selected, over a connection as that of `session`,
 * which lives. Its memory belongs to it until it is over. False: it cannot be, now or ever. */
bool ibx_async_copy_start(const struct ibx_session *session, const struct ibx_frontend_copy *copy,
                          int device);
/* From now on nothing is any more: what is recorded into a graph has to come from one thread. */
void ibx_async_copy_forbid(void);

/* Whether there is any copy that is not over. */
bool ibx_async_copy_any(void);
/* Whether there is one in that stream. */
bool ibx_async_copy_pending(uint64_t stream);
/* Returns when there is none in that stream, or none in that memory. */
void ibx_async_copy_wait(uint64_t stream);
void ibx_async_copy_wait_memory(const void *address, size_t n);
/* The first error of such a copy in that stream that nobody was told yet, or 0. */
int ibx_async_copy_failure(uint64_t stream);
/* Nobody is told any more of those that there were: streams and errors end with their context. */
void ibx_async_copy_forget_failures(void);

#endif
