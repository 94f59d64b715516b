/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The pinned memory of this process: one pool of equal chunks, through which
 * the copies of all connections are staged. It is made by the first copy that
 * wants it, never earlier: not in a constructor, nor before a fork(2).
 *
 * From any thread. Used by staging.c and by tests.
 */
#ifndef IBX_GPUDIRECT_PINNED_H
#define IBX_GPUDIRECT_PINNED_H

#include "gpudirect/cuda.h"

#define IBX_PINNED_CHUNK (512u << 10) /* bytes of payload in a chunk */
/* From one to the next: so that they are not all of the same cache sets. */
#define IBX_PINNED_STRIDE (IBX_PINNED_CHUNK + 4096u)

/* Makes the pool, of at most `bytes` in all, unless there is one: then `bytes` is not looked at.
 * Pins it again if the context that it was pinned in is gone. A current context is needed.
 * A negative errno and a sentence, or the CUresult that pinning gave (also with a sentence). */
int ibx_pinned_open(const struct ibx_cuda *cuda, size_t bytes, struct ibx_error *err);
/* Chunks in the pool. */
unsigned ibx_pinned_count(void);
/* Page aligned. */
void *ibx_pinned_payload(unsigned chunk);

/* Takes a chunk; when there is none waits for one up to `wait_ms`. Its number, or -EAGAIN. */
int ibx_pinned_take(unsigned wait_ms);
void ibx_pinned_give(unsigned chunk);

/* Chunks that are taken now, for tests. */
unsigned ibx_pinned_taken(void);

#endif
