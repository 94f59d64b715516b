/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/multicast/datagrams.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

#define PLACES 64u   /* pages being assembled, by page number modulo this */
#define LATEST 4096u /* the latest numbers, for which it is known which have come */

struct place {
    uint64_t page;
    unsigned parts; /* 0: it is empty */
    uint32_t got;   /* a bit a part */
    uint8_t bytes[IBX_MULTICAST_PAGE];
};

struct ibx_multicast_receiver {
    struct ibx_multicast_receiver_config config;
    struct ibx_multicast_cipher *cipher;
    struct ibx_multicast_in *in;
    uint64_t came;                /* for drop_every */
    uint64_t latest[LATEST / 64]; /* a ring of bits by number: it has come. Anybody can repeat a
                                     datagram, so a number is counted once */
    struct ibx_multicast_receiver_stats stats;
    struct place places[PLACES];
};

static void offer(struct ibx_multicast_receiver *r, struct place *place)
{
    if (r->config.take(r->config.context, place->page, place->bytes))
        r->stats.pages++;
    else
        r->stats.wrong++;
    place->parts = 0;
}

/* Counts an authentic datagram with this number. */
static void note(struct ibx_multicast_receiver *r, uint64_t number)
{
    struct ibx_multicast_receiver_stats *s = &r->stats;
    uint64_t *word = &r->latest[number % LATEST / 64];
    const uint64_t bit = 1ull << number % 64;
    if (number >= s->through) {
        const uint64_t ahead = number - s->through;
        for (uint64_t i = 0; i < ahead && i < LATEST; i++)
            r->latest[(s->through + i) % LATEST / 64] &= ~(1ull << (s->through + i) % 64);
        *word &= ~bit;
        s->through = number + 1;
        s->proven++;
    } else if (s->through - number > LATEST) {
        return;
    }
    s->packets += !(*word & bit);
    *word |= bit;
}

/* Handles a datagram. One that is not authentic changes nothing but a counter. */
static void take(void *context, const uint8_t *datagram, size_t length)
{
    struct ibx_multicast_receiver *r = context;
    struct ibx_multicast_packet p;
    uint8_t part[IBX_MULTICAST_PAGE];
    if (r->config.drop_every && ++r->came % r->config.drop_every == 0)
        return;
    if (!ibx_multicast_peek(datagram, length, r->config.group.id, &p)) {
        r->stats.strange++;
        return;
    }
    if (p.number == UINT64_MAX || !ibx_multicast_open(r->cipher, datagram, length, part)) {
        r->stats.strange++;
        return;
    }
    note(r, p.number);
    if (!r->config.wanted(r->config.context, p.page))
        return;
    struct place *place = &r->places[p.page % PLACES];
    if (place->parts != p.parts || place->page != p.page) {
        place->page = p.page;
        place->parts = p.parts;
        place->got = 0;
    }
    size_t bytes;
    const size_t at = ibx_multicast_part_at(p.parts, p.part, &bytes);
    memcpy(place->bytes + at, part, bytes);
    place->got |= 1u << p.part;
    if (place->got == (1u << p.parts) - 1)
        offer(r, place);
}

int ibx_multicast_receive(struct ibx_multicast_receiver *r, struct ibx_error *err)
{
    return r->in->ops->take(r->in, take, r, err);
}

int ibx_multicast_receiver_fd(const struct ibx_multicast_receiver *receiver)
{
    return receiver->in->fd;
}

void ibx_multicast_receiver_stats(const struct ibx_multicast_receiver *receiver,
                                  struct ibx_multicast_receiver_stats *stats)
{
    *stats = receiver->stats;
}

int ibx_multicast_receiver_open(const struct ibx_multicast_receiver_config *config,
                                struct ibx_multicast_receiver **out, struct ibx_error *err)
{
    struct ibx_multicast_receiver *r = calloc(1, sizeof(*r));
    if (!r)
        return ibx_error_set(err, -ENOMEM, "no memory for a multicast group's datagrams");
    r->config = *config;
    r->cipher = ibx_multicast_cipher_create(&config->group, false);
    int rc = r->cipher ? 0 : ibx_error_set(err, -ENOMEM, "OpenSSL makes no AES-128-GCM");
    if (!rc)
        rc = ibx_multicast_in_open(&config->group.address, config->interface, &r->in, err);
    if (rc)
        ibx_multicast_receiver_close(r);
    else
        *out = r;
    return rc;
}

void ibx_multicast_receiver_close(struct ibx_multicast_receiver *receiver)
{
    if (!receiver)
        return;
    ibx_multicast_in_close(receiver->in);
    ibx_multicast_cipher_destroy(receiver->cipher);
    OPENSSL_cleanse(receiver->config.group.key, sizeof(receiver->config.group.key));
    free(receiver);
}
