/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Asynchronous copies of memory that both ends map and that is not pinned. CUDA would use such
 * memory at once, and not when the stream gets there; and to wait for the stream may last for ever,
 * since a kernel in it may wait for the program that makes the copy. So a copy is left to its
 * stream, with a page-locked chunk: the stream calls a function (cuLaunchHostFunc) which copies
 * between the client's memory and the chunk, and the GPU copies between the chunk and the device.
 * One chunk is enough for all copies of a stream, which come one after the other.
 *
 * A session may have IBX_UNPINNED_STREAMS such streams at a time, and all sessions of the process
 * together IBX_UNPINNED_PARTS functions that were not called yet, of which each of several tenants
 * gets half of what the others leave. CUDA takes 56 copies with such functions between them in a
 * stream that waits (H200, driver 580); the next one waits, and with it all calls that other
 * threads make in the context, so that nobody can end the first wait.
 */
#ifndef IBX_FRONTEND_GLUE_CLIENTS_UNPINNED_COPIES_H
#define IBX_FRONTEND_GLUE_CLIENTS_UNPINNED_COPIES_H

#include "frontend-glue/clients/clients.h"

#define IBX_UNPINNED_STREAMS 4u
#define IBX_UNPINNED_KEPT    8u /* chunks that a tenant's graphs may have: then it gets no more */
#define IBX_UNPINNED_PARTS   32u

/* Before a plain copy of `bytes` in a stream of the current context which has other work. NULL: it
 * cannot be left to that stream, since a limit is reached, or there is no chunk. */
struct ibx_unpinned_stream *ibx_unpinned_begin(struct gpu_session *x, void *stream, uint64_t bytes);
/* Then: that copy. `host` stays mapped until ibx_unpinned_end(). 0 or a CUresult, after which
 * nothing of the copy is under way. */
int ibx_unpinned_add(struct gpu_session *x, struct ibx_unpinned_stream *behind, void *host,
                     const struct ibx_gpu_copy *copy, bool to_device);
/* Waits until the session's copies are over. */
void ibx_unpinned_wait(struct gpu_session *x);
/* The client's memory is about to be unmapped: waits for the copies, unless the client's process
 * has ended, or the context is broken. Then the functions copy nothing any more. */
void ibx_unpinned_end(struct gpu_session *x);
/* A context is gone with its streams, which call no function any more; NULL: it is not known which,
 * and nobody waits any more for what was left so far. */
void ibx_unpinned_forget(const void *context);

#endif
