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
#ifndef IBX_GPUDIRECT_CREW_H
#define IBX_GPUDIRECT_CREW_H

#include "common/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IBX_CREW_PLACES      32u /* copies under way */
#define IBX_CREW_THREADS_MAX 16u
/* What one page table covers. The kernel walks those of a peer's memory under a lock for each:
 * threads in the same one wait for each other, and so each is given its own. */
#define IBX_CREW_APART ((size_t)2 << 20)

/* Copies `n` bytes between `local` and the peer's at `offset`: from any thread of the crew. 0 or a
 * negative errno. */
typedef int (*ibx_crew_copy)(void *context, void *local, uint64_t offset, size_t n);

struct ibx_crew;

/* How many threads a crew has where nobody says: by the processors of this process; 1: none. */
unsigned ibx_crew_threads(void);

/* Of so many threads, the caller counted. */
int ibx_crew_create(unsigned threads, struct ibx_crew **crew, struct ibx_error *err);
/* Accepts NULL. In a child forked since, only its memory is given back. */
void ibx_crew_destroy(struct ibx_crew *crew);

/* Before a copy of several pieces: what copies them. None is under way. */
void ibx_crew_begin(struct ibx_crew *crew, ibx_crew_copy copy, void *context);
/* Begins a piece; `place` names it until it was reported. */
void ibx_crew_post(struct ibx_crew *crew, unsigned place, void *local, uint64_t offset, size_t n);
/* Adds a bit for each place that is over; with `wait` returns when there is one. 0, or the first
 * failure since ibx_crew_begin(). */
int ibx_crew_take(struct ibx_crew *crew, bool wait, uint32_t *places);
/* One copy from its begin to its end: `n` bytes between `local` and the peer's at `offset`, in
 * pieces of this function's choosing: of a long one, those that lie between multiples of
 * IBX_CREW_APART. None is under way. 0, or the first failure. */
int ibx_crew_run(struct ibx_crew *crew, ibx_crew_copy copy, void *context, void *local,
                 uint64_t offset, size_t n);
/* Returns when nothing is under way; what was posted and not begun is dropped. */
void ibx_crew_stop(struct ibx_crew *crew);

#endif
