/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What kernels print by printf. CUDA's driver has one buffer for all clients, and writes it to
 * libc's `stdout` as any call waits for the device: whose a line is nobody can tell. So it is a
 * client's while that is the only one that has asked for it, and there is one tenant alone; else it
 * goes where it did, to the back end's own output. From any thread.
 */
#ifndef IBX_FRONTEND_GLUE_TENANTS_PRINTED_H
#define IBX_FRONTEND_GLUE_TENANTS_PRINTED_H

#include <stddef.h>
#include <stdint.h>

/* The first `most` bytes, or fewer, of what the client's kernels have printed: how many. By its
 * first call it asks for what is printed from then on. */
size_t ibx_printed_take(uint64_t client, uint8_t *to, size_t most);
/* The client is no more. */
void ibx_printed_end(uint64_t client);

#endif
