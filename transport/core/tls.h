/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * TLS 1.3 over a socket between two ends that share 32 bytes: an external PSK with (EC)DHE, so that
 * a session which was recorded stays closed when the key becomes known later. No certificates, no
 * tickets, no early data. The handshake is OpenSSL's; records are tls_record.h's.
 *
 * One thread may send while another receives, if no third call is made meanwhile.
 */
#ifndef IBX_TRANSPORT_CORE_TLS_H
#define IBX_TRANSPORT_CORE_TLS_H

#include "transport/core/provider.h"

#include <sys/types.h>
#include <sys/uio.h>

#define IBX_TLS_PSK_BYTES 32

struct ibx_tls;

/* Over the connected, nonblocking socket `fd`, which stays the caller's. The PSK is forgotten at
 * the handshake's end. -ENOMEM. */
int ibx_tls_create(int fd, enum ibx_role role, const uint8_t psk[IBX_TLS_PSK_BYTES],
                   struct ibx_tls **tls, struct ibx_error *err);
/* Accepts NULL; does not close the socket. */
void ibx_tls_destroy(struct ibx_tls *tls);
/* Before the handshake: the kernel seals what is sent, if it can (tls_kernel.h). */
void ibx_tls_use_kernel(struct ibx_tls *tls);
/* 0: done. -EAGAIN: call again when the socket has `*events` (poll(2)). -EACCES: the ends have not
 * the same PSK, or a byte was changed on its way. -ECONNRESET. -EPROTO: the peer speaks something
 * else. */
int ibx_tls_handshake(struct ibx_tls *tls, short *events);
/* A server in its handshake: the client has shown that it has the PSK. False for NULL. */
bool ibx_tls_peer_has_key(const struct ibx_tls *tls);
/* "TLS 1.3 AES-128-GCM", once the handshake is done; with " by the kernel" where that seals. */
const char *ibx_tls_description(const struct ibx_tls *tls);

/* Takes bytes and gives them to the socket as far as it takes them: their number, at least 1.
 * -EAGAIN: the socket has not taken the last ones yet. -ECONNRESET, or what send(2) says. With n =
 * 0: 0 when the socket has all. */
ssize_t ibx_tls_send(struct ibx_tls *tls, const struct iovec *iov, int n);
/* The number of bytes, at least 1. 0: the peer closed in order. -EAGAIN: none now. -EBADMSG: they
 * were changed on their way. -ECONNRESET: the connection was cut. What was changed leaves zeros in
 * the memory of the list. */
ssize_t ibx_tls_receive(struct ibx_tls *tls, const struct iovec *iov, int n);
/* Bytes wait inside, which poll(2) does not see. */
bool ibx_tls_readable(const struct ibx_tls *tls);
/* Whether a record has come in part. */
bool ibx_tls_has_part(const struct ibx_tls *tls);
/* Taken bytes wait for the socket. */
bool ibx_tls_unsent(const struct ibx_tls *tls);
/* No other thread helps with this connection: its caller is one of several. */
void ibx_tls_work_alone(struct ibx_tls *tls);
/* Tells the peer, if the socket takes it now, that nothing more will be sent: its receive then ends
 * with 0. */
void ibx_tls_finish(struct ibx_tls *tls);

#endif
