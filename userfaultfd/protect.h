/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Memory of a process, shared or of huge pages, that this process and no other thread of that one
 * may change: whoever writes to it stops in the kernel until it is allowed again. Writes through
 * other mappings of the same file, by other processes, are not seen.
 *
 * Linux 5.19. All calls may come from any thread.
 */
#ifndef IBX_USERFAULTFD_PROTECT_H
#define IBX_USERFAULTFD_PROTECT_H

#include "common/error.h"

#include <stdbool.h>
#include <stdint.h>

/* UFFDIO_API for this use, on a new descriptor. -EOPNOTSUPP: this kernel cannot do it. */
int ibx_protect_enable(int uffd, struct ibx_error *err);
/* Registers the range; writes are still allowed. Registering it once more changes nothing. */
int ibx_protect_register(int uffd, uint64_t start, uint64_t length, struct ibx_error *err);
/* Forbids writes to the range. Costs 20 ms of processor time a GiB of pages of 4096 bytes, so large
 * ranges should be done in parts. */
int ibx_protect_forbid(int uffd, uint64_t start, uint64_t length, struct ibx_error *err);
/* Wakes threads that wait for a write to the range. They write again, and since writes are still
 * forbidden, they are reported anew. */
int ibx_protect_retry(int uffd, uint64_t start, uint64_t length);
/* The address of a write that waits and has not been reported yet. -EAGAIN: there is none; -EIO:
 * the userfaultfd has ended; other errors of read(2). */
int ibx_protect_next(int uffd, uint64_t *address);

#endif
