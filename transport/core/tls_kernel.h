/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The kernel's TLS, for what is sent: it seals records below send(2), from the caller's memory into
 * the socket's, where user space seals into memory of its own, which send(2) then copies. A network
 * card may do it, too.
 *
 * What arrives is opened in user space on every kernel. The kernel would save no pass over it: it
 * opens in memory of its own and copies, unless it may put what it has not authenticated yet where
 * it belongs (TLS_RX_EXPECT_NO_PAD), which nobody here could wipe.
 */
#ifndef IBX_TRANSPORT_CORE_TLS_KERNEL_H
#define IBX_TRANSPORT_CORE_TLS_KERNEL_H

#include "transport/core/tls_record.h"

/* Whether this kernel seals records that the peer can open, and can change to another key: tried
 * out once in a process, over loopback. False: *why is a sentence with the remedy, which stays
 * valid. */
bool ibx_tls_kernel_works(const char **why);
/* From now on the kernel seals what is written to the connected TCP socket `fd`, with the
 * direction's present key and from its record number on. Call it again, for the new key, after
 * ibx_tls_direction_update(). Negative errno: if this was the first call, the socket is as it
 * was. */
int ibx_tls_kernel_seal(int fd, const struct ibx_tls_direction *d);
/* Sends bytes: the number taken, at least 1, or a negative errno. Adds to *records at least as many
 * as they became. */
ssize_t ibx_tls_kernel_send(int fd, const struct iovec *iov, int n, uint64_t *records);
/* Sends a record of TLS's own: 0, or a negative errno and nothing was taken. */
int ibx_tls_kernel_say(int fd, enum ibx_tls_content content, const void *bytes, size_t n);

#endif
