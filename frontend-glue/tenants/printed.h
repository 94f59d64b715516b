/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What kernels print by printf. CUDA's driver has one buffer for all clients, and writes it to
 * libc's `stdout` when any call waits for the device: nobody can tell whose a line is. So lines
 * belong to a client only while no other client has asked for them, and there is only one tenant;
 * otherwise they go to the back end's own output, as before. From any thread.
 */
#ifndef IBX_FRONTEND_GLUE_TENANTS_PRINTED_H
#define IBX_FRONTEND_GLUE_TENANTS_PRINTED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Takes up to `most` bytes of what the client's kernels have printed since its first call; returns
 * how many. */
size_t ibx_printed_take(uint64_t client, uint8_t *to, size_t most);
/* The client wants to be told of what it can take. */
void ibx_printed_tell(uint64_t client);
/* Whether it does, and *some: whether it can take any now. */
bool ibx_printed_told(uint64_t client, bool *some);
/* False: no client does, which is quick to know. */
bool ibx_printed_anybody_told(void);
/* The client is no more. */
void ibx_printed_end(uint64_t client);

#endif
