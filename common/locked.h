/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Locked memory: what a fabric pins counts against RLIMIT_MEMLOCK. */
#ifndef IBX_COMMON_LOCKED_H
#define IBX_COMMON_LOCKED_H

#include "common/error.h"

#include <stdbool.h>
#include <stdint.h>

/* Bytes that this process may pin. False: there is no limit, or CAP_IPC_LOCK exempts it. */
bool ibx_locked_limit(uint64_t *bytes);
/* Bytes that it has pinned for devices now, as the kernel counts them. */
uint64_t ibx_locked_now(void);
/* Sets and returns -ENOMEM: `device` ("verbs rxe0") cannot register `bytes` with this limit.
 */
int ibx_locked_error(struct ibx_error *err, const char *device, uint64_t bytes, uint64_t limit);

#endif
