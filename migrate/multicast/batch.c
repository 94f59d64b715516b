/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Datagrams that follow each other at once. Where the kernel cuts what it is given into datagrams
 * (UDP_SEGMENT), the parts of a page are one piece, which costs half of the processor's time.
 */
#include "migrate/multicast/multicast.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define DATAGRAMS 32u
#define PAGE_BYTES                                                                                 \
    (IBX_MULTICAST_PAGE + IBX_MULTICAST_PARTS_MAX * (IBX_MULTICAST_HEAD + IBX_MULTICAST_TAG))
#define HEADS 48u /* of UDP and IPv6 */

struct ibx_multicast_batch {
    unsigned parts, most; /* of a page; pages */
    unsigned pages;
    bool cuts; /* the kernel does */
    size_t bytes;
    size_t lengths[DATAGRAMS]; /* of the pages' datagrams, in all */
    uint8_t datagrams[DATAGRAMS][PAGE_BYTES];
    struct iovec iovs[DATAGRAMS];
    struct mmsghdr messages[DATAGRAMS];
};

struct ibx_multicast_batch *ibx_multicast_batch_create(void)
{
    return calloc(1, sizeof(struct ibx_multicast_batch));
}

void ibx_multicast_batch_destroy(struct ibx_multicast_batch *batch)
{
    free(batch);
}

static size_t datagram_length(const struct ibx_multicast_batch *b, unsigned part)
{
    size_t length;
    ibx_multicast_part_at(b->parts, part, &length);
    return IBX_MULTICAST_HEAD + length + IBX_MULTICAST_TAG;
}

void ibx_multicast_batch_begin(struct ibx_multicast_batch *b, int fd, unsigned parts,
                               unsigned datagrams)
{
    b->parts = parts;
    const int length = (int)datagram_length(b, 0);
    b->most = datagrams < parts ? 1 : datagrams > DATAGRAMS ? DATAGRAMS / parts : datagrams / parts;
    b->pages = 0;
    b->bytes = 0;
    b->cuts = parts > 1 && !setsockopt(fd, SOL_UDP, UDP_SEGMENT, &length, sizeof(length));
}

bool ibx_multicast_batch_full(const struct ibx_multicast_batch *b)
{
    return b->pages == b->most;
}

size_t ibx_multicast_batch_bytes(const struct ibx_multicast_batch *b)
{
    return b->bytes;
}

int ibx_multicast_batch_add(struct ibx_multicast_batch *b, struct ibx_multicast_cipher *cipher,
                            uint64_t *number, uint64_t page, const uint8_t *bytes)
{
    uint8_t *at = b->datagrams[b->pages];
    size_t sum = 0;
    for (unsigned part = 0; part < b->parts; part++) {
        const struct ibx_multicast_packet packet = {(*number)++, page, part, b->parts};
        const size_t length = ibx_multicast_seal(cipher, &packet, bytes, at + sum);
        if (!length)
            return -EIO;
        sum += length;
    }
    b->lengths[b->pages++] = sum;
    b->bytes += sum + HEADS * b->parts;
    return 0;
}

static void put(struct ibx_multicast_batch *b, unsigned i, uint8_t *bytes, size_t length)
{
    b->iovs[i] = (struct iovec){bytes, length};
    b->messages[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &b->iovs[i], .msg_iovlen = 1}};
}

/* How many messages the pages from this one on are. */
static unsigned prepare(struct ibx_multicast_batch *b, unsigned page)
{
    unsigned n = 0;
    for (; page < b->pages; page++) {
        if (b->cuts) {
            put(b, n++, b->datagrams[page], b->lengths[page]);
            continue;
        }
        uint8_t *at = b->datagrams[page];
        for (unsigned part = 0; part < b->parts; part++) {
            put(b, n++, at, datagram_length(b, part));
            at += datagram_length(b, part);
        }
    }
    return n;
}

/* Some devices cannot be given what is to be cut: then this host sends it as it is. */
static bool stop_cutting(struct ibx_multicast_batch *b, int fd)
{
    const int none = 0;
    if (!b->cuts || (errno != EIO && errno != EINVAL))
        return false;
    b->cuts = false;
    return !setsockopt(fd, SOL_UDP, UDP_SEGMENT, &none, sizeof(none));
}

int ibx_multicast_batch_send(struct ibx_multicast_batch *b, int fd, unsigned *datagrams)
{
    unsigned sent = 0, all = prepare(b, 0);
    int rc = 0;
    while (!rc && sent < all) {
        const int n = sendmmsg(fd, b->messages + sent, all - sent, 0);
        if (n > 0) {
            sent += (unsigned)n;
        } else if (errno == ENOBUFS) { /* this host has dropped it, as any other may */
            sent++;
        } else if (stop_cutting(b, fd)) { /* so far a message was a page */
            all = prepare(b, sent);
            sent = 0;
        } else if (errno != EINTR) {
            rc = errno == EAGAIN ? -ETIMEDOUT : -errno;
        }
    }
    *datagrams = b->pages * b->parts;
    b->pages = 0;
    b->bytes = 0;
    return rc;
}
