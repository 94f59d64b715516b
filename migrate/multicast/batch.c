/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/multicast/datagrams.h"

#include <errno.h>

void ibx_multicast_batch_begin(struct ibx_multicast_batch *b, struct ibx_multicast_out *out,
                               unsigned parts, unsigned datagrams)
{
    const unsigned most = datagrams < IBX_MULTICAST_AT_ONCE ? datagrams : IBX_MULTICAST_AT_ONCE;
    *b = (struct ibx_multicast_batch){.out = out, .parts = parts};
    b->most = most < parts ? 1 : most / parts;
}

bool ibx_multicast_batch_full(const struct ibx_multicast_batch *b)
{
    return b->pages == b->most;
}

int ibx_multicast_batch_add(struct ibx_multicast_batch *b, struct ibx_multicast_cipher *cipher,
                            uint64_t *number, uint64_t page, const uint8_t *bytes)
{
    uint8_t *at = b->out->pages[b->pages];
    for (unsigned part = 0; part < b->parts; part++) {
        const struct ibx_multicast_packet packet = {(*number)++, page, part, b->parts};
        const size_t length = ibx_multicast_seal(cipher, &packet, bytes, at);
        if (!length)
            return -EIO;
        at += length;
        b->bytes += length + b->out->heads;
    }
    b->pages++;
    return 0;
}

int ibx_multicast_batch_send(struct ibx_multicast_batch *b, unsigned *datagrams,
                             struct ibx_error *err)
{
    const int rc = b->out->ops->send(b->out, b->pages, b->parts, err);
    *datagrams = b->pages * b->parts;
    b->pages = 0;
    b->bytes = 0;
    return rc;
}
