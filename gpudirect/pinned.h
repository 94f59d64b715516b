/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The pinned memory of this process: one pool of equal chunks, through which all connections stage
 * their copies. The first copy that needs it creates it, unless a thread has done so before: a
 * constructor, or a call before a fork(2), must not. From any thread.
 *
 * The memory is mapped here and registered with CUDA, rather than allocated by it: it stays when a
 * context is reset, only slower to copy from, until it is pinned again.
 */
#ifndef IBX_GPUDIRECT_PINNED_H
#define IBX_GPUDIRECT_PINNED_H

#include "common/quota.h"
#include "gpudirect/cuda.h"

#include <stdbool.h>

#define IBX_PINNED_CHUNK (512u << 10) /* bytes of payload in a chunk */
/* Bytes from one chunk to the next: not a power of two, so that chunks differ in cache sets. */
#define IBX_PINNED_STRIDE (IBX_PINNED_CHUNK + 4096u)

/* Creates the pool, of at most `bytes` in all, unless there is one (`bytes` is ignored then), and
 * pins it again if its context is gone. A context must be current. While one thread creates it,
 * others have it as soon as its first chunks are pinned, and all go without the last ones where
 * CUDA refuses these. A context may go meanwhile, and the pool is to be pinned again. -EINVAL:
 * `bytes` hold no chunk; -ENOMEM; -EPERM in a child of the process that made it; or the CUresult of
 * pinning. */
int ibx_pinned_open(const struct ibx_cuda *cuda, size_t bytes, struct ibx_error *err);
/* Has a thread do that in the background, in the primary context of a device that has one. Without
 * effect once that was done, or where it is under way or not possible. Loads CUDA, in that thread.
 */
void ibx_pinned_prepare(size_t bytes);
/* Whether it may have an effect. */
bool ibx_pinned_wanted(void);
/* Returns when no thread is at it, for tests. */
void ibx_pinned_settle(void);
/* Chunks in the pool, pinned already or not. */
unsigned ibx_pinned_count(void);
/* Page aligned. */
void *ibx_pinned_payload(unsigned chunk);

/* Takes a chunk, waiting up to `wait_ms` for one that the quota allows (NULL: any). Its number, or
 * -EAGAIN. */
int ibx_pinned_take(struct ibx_quota *quota, unsigned wait_ms);
void ibx_pinned_give(struct ibx_quota *quota, unsigned chunk);

/* A chunk for up to IBX_PINNED_STRIDE bytes of somebody else's use; NULL: there is no pool yet, or
 * it is half empty, since nobody waits for it. And gives it back. */
void *ibx_pinned_borrow(size_t bytes);
void ibx_pinned_return(void *payload);
/* Whether all of these bytes lie in the pool. */
bool ibx_pinned_holds(const void *address, size_t length);

/* Chunks that are taken now, for tests. */
unsigned ibx_pinned_taken(void);

#endif
