/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Memory that a process shares with those that it forks. It has no locks: one that is stopped while
 * it held one would stop all others. */
#ifndef IBX_COMMON_FORKED_H
#define IBX_COMMON_FORKED_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* n bytes of zeros, in no core dump, of which only what is used is there; for munmap(2). NULL, with
 * errno: there is no memory. */
void *ibx_forked_map(size_t n);

/* Sleeps until somebody wakes those that wait for `word`, or that time (CLOCK_MONOTONIC): not at
 * all if it has another value than `value`, and now and then for nothing. */
void ibx_forked_wait(atomic_uint *word, unsigned value, uint64_t until_ns);
/* All of them, of any process; whoever calls it has changed the word. */
void ibx_forked_wake(atomic_uint *word);

#endif
