/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Several threads that copy, where one thread's memcpy is slower than what it
 * feeds. The thread that owns a crew is one of them: it copies whenever it would
 * wait.
 *
 * A crew belongs to one session. Its threads are made with it, never before a
 * fork(2), take no signals but those of the memory that they touch, sleep while
 * there is nothing to copy, and end with it.
 */
#ifndef IBX_GPUDIRECT_COPY_THREADS_H
#define IBX_GPUDIRECT_COPY_THREADS_H

#include "common/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IBX_COPY_THREADS_PLACES      32u /* copies under way */
#define IBX_COPY_THREADS_THREADS_MAX 16u
/* What one page table covers. The kernel walks those of a peer's memory under a lock for each:
 * threads in the same one wait for each other, and so each is given its own. */
#define IBX_COPY_THREADS_APART ((size_t)2 << 20)

/* Copies `n` bytes between `local` and the peer's at `offset`: from any thread of the crew. 0 or a
 * negative errno. */
typedef int (*ibx_copy_threads_copy)(void *context, void *local, uint64_t offset, size_t n);

struct ibx_copy_threads;

/* How many threads a crew has where nobody says: by the processors of this process; 1: none. */
unsigned ibx_copy_threads_count(void);

/* Of so many threads, the caller counted. */
int ibx_copy_threads_create(unsigned threads, struct ibx_copy_threads **crew,
                            struct ibx_error *err);
/* Accepts NULL. In a child forked since, only its memory is given back. */
void ibx_copy_threads_destroy(struct ibx_copy_threads *crew);

/* Before a copy of several pieces: what copies them. None is under way. */
void ibx_copy_threads_begin(struct ibx_copy_threads *crew, ibx_copy_threads_copy copy,
                            void *context);
/* Begins a piece; `place` names it until it was reported. */
void ibx_copy_threads_post(struct ibx_copy_threads *crew, unsigned place, void *local,
                           uint64_t offset, size_t n);
/* Adds a bit for each place that is over; with `wait` returns when there is one. 0, or the first
 * failure since ibx_copy_threads_begin(). */
int ibx_copy_threads_take(struct ibx_copy_threads *crew, bool wait, uint32_t *places);
/* One copy from its begin to its end: `n` bytes between `local` and the peer's at `offset`, in
 * pieces of this function's choosing: of a long one, those that lie between multiples of
 * IBX_COPY_THREADS_APART. None is under way. 0, or the first failure. */
int ibx_copy_threads_run(struct ibx_copy_threads *crew, ibx_copy_threads_copy copy, void *context,
                         void *local, uint64_t offset, size_t n);
/* Returns when nothing is under way; what was posted and not begun is dropped. */
void ibx_copy_threads_stop(struct ibx_copy_threads *crew);

#endif
