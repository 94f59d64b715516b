/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The pinned memory of this process: one pool of equal chunks, through which all connections stage
 * their copies. The first copy that needs it creates it, unless a thread has done so before: a
 * constructor, or a call before a fork(2), must not. From any thread.
 *
 * The memory is mapped here and registered with CUDA, rather than allocated by CUDA, so that it
 * survives the reset of a context: copies are merely slower until it is pinned again.
 */
#ifndef IBX_GPUDIRECT_PINNED_H
#define IBX_GPUDIRECT_PINNED_H

#include "common/quota.h"
#include "gpudirect/cuda.h"

#include <stdbool.h>

#define IBX_PINNED_CHUNK (512u << 10) /* bytes of payload in a chunk */
/* Bytes from one chunk to the next: not a power of two, so that chunks differ in cache sets. */
#define IBX_PINNED_STRIDE (IBX_PINNED_CHUNK + 4096u)

/* Creates the pool, of at most `bytes`, unless it exists (then `bytes` is ignored), and pins it
 * again if the context in which it was pinned is gone. A context must be current. While one thread
 * creates the pool, others can use it as soon as its first chunks are pinned. If CUDA refuses to
 * pin all of it, the pool is smaller. A context may be destroyed during this call; then the pool
 * has to be pinned again. -EINVAL: `bytes` is less than a chunk; -ENOMEM; -EPERM: this is a child
 * of the process that created the pool; or the CUresult of pinning. */
int ibx_pinned_open(const struct ibx_cuda *cuda, size_t bytes, struct ibx_error *err);
/* Starts a thread that calls ibx_pinned_open() in the primary context of a device that has one, and
 * loads CUDA for that. Has no effect if the pool was prepared before, is being prepared, or cannot
 * be. */
void ibx_pinned_prepare(size_t bytes);
/* Whether ibx_pinned_prepare() would have an effect now. */
bool ibx_pinned_wanted(void);
/* Waits until the thread of ibx_pinned_prepare() has ended; called at exit(3), and by tests. */
void ibx_pinned_settle(void);
/* Chunks in the pool, pinned already or not. */
unsigned ibx_pinned_count(void);
/* Page aligned. */
void *ibx_pinned_payload(unsigned chunk);

/* Takes a chunk, waiting up to `wait_ms` for one that the quota allows (NULL: any). Its number, or
 * -EAGAIN. */
int ibx_pinned_take(struct ibx_quota *quota, unsigned wait_ms);
void ibx_pinned_give(struct ibx_quota *quota, unsigned chunk);

/* Takes a chunk for a use other than staged copies; `bytes` is at most IBX_PINNED_STRIDE. Does not
 * wait. NULL: there is no pool yet, or less than half of it, or 16 chunks, are free. */
void *ibx_pinned_borrow(size_t bytes);
/* Gives such a chunk back. */
void ibx_pinned_return(void *payload);
/* Whether all of these bytes lie in the pool. */
bool ibx_pinned_holds(const void *address, size_t length);

/* Chunks that are taken now, for tests. */
unsigned ibx_pinned_taken(void);

#endif
