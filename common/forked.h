/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Memory, and a lock in it, that a process shares with those that it forks. */
#ifndef IBX_COMMON_FORKED_H
#define IBX_COMMON_FORKED_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* n bytes of zeros, in no core dump, of which only what is used is there; for munmap(2). NULL, with
 * errno: there is no memory. */
void *ibx_forked_map(size_t n);
void ibx_forked_lock_init(pthread_mutex_t *lock);
/* Also where a process has ended that had it: what that leaves has to be sound. */
void ibx_forked_lock(pthread_mutex_t *lock);

/* Sleeps until somebody wakes those that wait for `word`, or that time (CLOCK_MONOTONIC): not at
 * all if it has another value than `value`, and now and then for nothing. */
void ibx_forked_wait(atomic_uint *word, unsigned value, uint64_t until_ns);
/* All of them, of any process; whoever calls it has changed the word. */
void ibx_forked_wake(atomic_uint *word);

#endif
