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

/* Whether this kernel seals records that the peer can open, and can go on with another key: tried
 * out once in a process, over loopback. False: *why has a sentence with the remedy, for ever. */
bool ibx_tls_kernel_works(const char **why);
/* From now on what is written to the connected TCP socket `fd` is sealed with the direction's
 * present key, from its record number on; called again after ibx_tls_direction_update(), with the
 * new key. Negative errno: the first time the socket is as it was. */
int ibx_tls_kernel_seal(int fd, const struct ibx_tls_direction *d);
/* The bytes taken, at least 1; adds to *records at least as many as they became. */
ssize_t ibx_tls_kernel_send(int fd, const struct iovec *iov, int n, uint64_t *records);
/* A record of what TLS says itself: 0, or negative errno and nothing was taken. */
int ibx_tls_kernel_say(int fd, enum ibx_tls_content content, const void *bytes, size_t n);

#endif
