/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Memory that a process shares with the processes that it forks. There are no locks in it: a
 * process that is stopped while it has one would stop all others. */
#ifndef IBX_COMMON_FORKED_H
#define IBX_COMMON_FORKED_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* Maps n bytes of zeros that are in no core dump and take up memory only where they are used;
 * munmap(2) frees them. NULL, with errno: there is no memory. */
void *ibx_forked_map(size_t n);

/* Sleeps until ibx_forked_wake() is called for `word`, or until that time (CLOCK_MONOTONIC).
 * Returns at once if the word has another value than `value`; may also return for no reason. */
void ibx_forked_wait(atomic_uint *word, unsigned value, uint64_t until_ns);
/* Wakes all that wait for `word`, in all processes. The caller has changed the word before. */
void ibx_forked_wake(atomic_uint *word);

#endif
