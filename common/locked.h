/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Locked memory: what a fabric pins counts against RLIMIT_MEMLOCK. */
#ifndef IBX_COMMON_LOCKED_H
#define IBX_COMMON_LOCKED_H

#include "common/error.h"

#include <stdbool.h>
#include <stdint.h>

/* Bytes that this process may have pinned. False: it is held to no limit (none is set, or it has
 * CAP_IPC_LOCK). */
bool ibx_locked_limit(uint64_t *bytes);
/* Bytes that it has pinned for devices now, by the kernel's own count. */
uint64_t ibx_locked_now(void);
/* -ENOMEM: `who` ("verbs rxe0") cannot register so many bytes for this limit, and what to do. */
int ibx_locked_error(struct ibx_error *err, const char *who, uint64_t bytes, uint64_t limit);

#endif
