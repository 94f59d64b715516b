/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Threads that copy, where one thread's memcpy is slower than what it feeds. The owner copies too,
 * instead of waiting.
 *
 * The threads belong to one session and are created with it, never before a fork(2). They block all
 * signals except SIGSEGV and SIGBUS, and sleep while there is nothing to copy.
 *
 * Only the owner calls these functions.
 */
#ifndef IBX_GPUDIRECT_COPY_THREADS_H
#define IBX_GPUDIRECT_COPY_THREADS_H

#include "common/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IBX_COPY_THREADS_SLOTS 32u /* pieces under way at a time, at most */
#define IBX_COPY_THREADS_MAX   16u /* the owner included */
/* What one page table covers, in bytes. The kernel takes a lock for each page table of a peer's
 * memory, so threads that copy in the same one wait for each other. */
#define IBX_COPY_THREADS_APART ((size_t)2 << 20)

/* Copies `n` bytes between `local` and the peer's memory at `offset`; runs in any of the threads.
 * 0 or a negative errno. */
typedef int (*ibx_copy_threads_copy)(void *context, void *local, uint64_t offset, size_t n);

struct ibx_copy_threads;

/* The default number of threads for the processors of this process; 1: no copy threads. */
unsigned ibx_copy_threads_count(void);
/* The default number of threads for long copies: at least ibx_copy_threads_count(). */
unsigned ibx_copy_threads_wide_count(void);

/* `count` includes the owner. Fewer are created when the system refuses some; -EAGAIN when it
 * refuses all, -ENOMEM. */
int ibx_copy_threads_create(unsigned count, struct ibx_copy_threads **threads,
                            struct ibx_error *err);
/* Accepts NULL. In a child forked since, frees memory only. */
void ibx_copy_threads_destroy(struct ibx_copy_threads *threads);

/* To be called before a copy of several pieces. No piece may be under way. */
void ibx_copy_threads_begin(struct ibx_copy_threads *threads, ibx_copy_threads_copy copy,
                            void *context);
/* To be called after begin, for a long copy: `count` threads take part in this copy. `count`
 * includes the owner, which however copies nothing in such a copy. Threads that are missing are
 * created, as many as the system allows; they take part in long copies only. Each piece is copied
 * by several threads, a slice of `slice` bytes each, so that pieces end one after the other and not
 * all together. */
void ibx_copy_threads_widen(struct ibx_copy_threads *threads, unsigned count, size_t slice);
/* Posts a piece; `slot` names it until ibx_copy_threads_take() has reported it. */
void ibx_copy_threads_post(struct ibx_copy_threads *threads, unsigned slot, void *local,
                           uint64_t offset, size_t n);
/* Sets a bit in `slots` for each slot whose piece has ended; with `wait` returns once there is one,
 * or once no piece is under way. 0, or the first failure since ibx_copy_threads_begin(). */
int ibx_copy_threads_take(struct ibx_copy_threads *threads, bool wait, uint32_t *slots);
/* A whole copy of `n` bytes; calls ibx_copy_threads_begin() itself. It is cut into pieces here, and
 * no piece of a long copy crosses a multiple of IBX_COPY_THREADS_APART. 0, or the first failure. */
int ibx_copy_threads_run(struct ibx_copy_threads *threads, ibx_copy_threads_copy copy,
                         void *context, void *local, uint64_t offset, size_t n);
/* Drops pieces that no thread has begun, and waits for the others. */
void ibx_copy_threads_stop(struct ibx_copy_threads *threads);

#endif
