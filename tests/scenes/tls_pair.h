/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Two ends of TLS and a relay between them, which counts, changes or withholds what it passes on:
 * client (0) - relay - server (1). */
#ifndef IBX_TESTS_SCENES_TLS_PAIR_H
#define IBX_TESTS_SCENES_TLS_PAIR_H

#include "transport/core/tls.h"

#include <openssl/ssl.h>

struct tls_pair {
    struct ibx_tls *tls[2];
    int fd[2], middle[2]; /* the ends' sockets, and the relay's towards each of them */
    int status[2];        /* of the last call that ended something */
    size_t heard[2];
    struct {
        size_t flip, limit; /* offsets; SIZE_MAX: none */
        size_t passed;
    } relay[2]; /* by the sender */
};

extern const uint8_t tls_key[IBX_TLS_PSK_BYTES];

void tls_pair_open(struct tls_pair *pair, bool unix_socket, const uint8_t client[IBX_TLS_PSK_BYTES],
                   const uint8_t server[IBX_TLS_PSK_BYTES]);
/* Over TCP, the kernel sealing at those ends, if it can. */
void tls_pair_open_kernel(struct tls_pair *pair, bool client, bool server);
void tls_pair_close(struct tls_pair *pair);
/* Passes on what is there. */
void tls_pair_relay(struct tls_pair *pair);
/* Both handshakes, until each has a status or waits in vain (-EAGAIN). */
void tls_pair_shake(struct tls_pair *pair);
/* Whether this end's handshake is done. */
bool tls_pair_done(struct tls_pair *pair, unsigned end);
/* The relay goes away, behind what it has. */
void tls_pair_cut(struct tls_pair *pair);
/* For an OpenSSL of its own at one end: what it knows of the key. */
SSL_SESSION *tls_stranger_session(SSL *ssl);
/* A psk_find_session callback. */
int tls_stranger_find(SSL *ssl, const unsigned char *id, size_t length, SSL_SESSION **session);
/* Cuts memory into at most 5 pieces of random length: their number. */
int tls_pieces(struct iovec *pieces, uint8_t *memory, size_t length);

#endif
