/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What tls.c (the handshake) and tls_io.c (sending and receiving) share. */
#ifndef IBX_TRANSPORT_CORE_TLS_STATE_H
#define IBX_TRANSPORT_CORE_TLS_STATE_H

#include "transport/core/tls.h"
#include "transport/core/tls_record.h"

#include <openssl/ssl.h>
#include <stdatomic.h>

/* How many records go to the socket together; there is room for as many that come from it. */
#define IBX_TLS_GATHERED  32u
#define IBX_TLS_RAW_BYTES (IBX_TLS_GATHERED * IBX_TLS_RECORD_MAX)

#define IBX_TLS_UPDATE_BYTES 5u

struct ibx_tls {
    int fd;
    enum ibx_role role;
    uint8_t psk[IBX_TLS_PSK_BYTES];
    SSL *ssl;         /* until the handshake is done */
    BIO *from, *into; /* handshake bytes from the peer and for the peer, of `ssl` */
    /* From the handshake: what the client and the server seal with. */
    uint8_t secrets[2][IBX_HASH_BYTES];
    unsigned have_secrets;

    struct ibx_tls_direction out, in;
    bool kernel_wanted;        /* once the handshake is done */
    bool kernel;               /* the kernel seals what is sent; nothing is in `sealed` */
    bool alone;                /* without helpers */
    int send_failed;           /* negative errno */
    atomic_bool update_wanted; /* by the peer */
    uint8_t *sealed;           /* IBX_TLS_GATHERED records, and a KeyUpdate before them */
    size_t sealed_at, sealed_end;

    bool closed;     /* the peer did, in order */
    int read_failed; /* negative errno */
    uint8_t *raw;    /* what the socket gave */
    size_t raw_at, raw_end;
    const uint8_t *plain; /* in it: opened, not taken yet */
    size_t plain_left;
};

/* Sends what is in `sealed`: 0 when the socket has taken all of it, otherwise a negative errno of
 * send(2). */
int ibx_tls_flush(struct ibx_tls *tls);

#endif
