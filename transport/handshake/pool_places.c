/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Places are few, so that strangers cost little, and nobody can hold them: each one has PROVE_MS to
 * prove itself, less while more than half of the places are taken. When all places are taken, the
 * one that has not even sent a HELLO for the longest time gives way. If all have, it is the oldest
 * one: of the newcomer's source (an address, in IPv6 a /64, or a user of this host over a unix
 * socket), if that has an eighth of the places, or else of all. No source has more than an eighth
 * of the places without having sent a HELLO.
 *
 * A source of which a client has proven itself lately is known. Clients of known sources come first
 * in up to half of the places, and may have so many without a HELLO. So the source of a migration
 * that comes back with all of its connections finds room among strangers, however many and quick
 * these are. A stranger at a known address counts as known, too, but it gets no further than other
 * strangers, and known sources have no claim to the other half.
 *
 * A PROOF takes an X25519, which costs the server more than all else of a handshake. So PROOFs wait
 * for each other, and sources take turns: the one with the fewest wrong ones lately is next, a
 * known one before others.
 */
#include "transport/handshake/pool.h"

#include "common/address.h"
#include "common/clock.h"

#include <string.h>
#include <sys/socket.h>

#define NETWORK_BYTES 8u
#define HALVED_NS     (1000 * IBX_NS_PER_MS)

/* ------------------------------------------------------------------------ sources */

struct ibx_source ibx_pool_source_of(int fd)
{
    struct ibx_source source = {.length = 0};
    struct sockaddr_storage address;
    struct ucred user;
    socklen_t length = sizeof(user);
    if (ibx_address_of_socket(fd, true, &address)) {
        const void *host = ibx_address_host((struct sockaddr *)&address, &source.length);
        if (source.length > NETWORK_BYTES)
            source.length = NETWORK_BYTES;
        memcpy(source.bytes, host, source.length);
    } else if (!getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &user, &length)) {
        source.length = sizeof(user.uid);
        memcpy(source.bytes, &user.uid, sizeof(user.uid));
    }
    return source;
}

static bool same_source(const struct ibx_source *a, const struct ibx_source *b)
{
    return a->length == b->length && !memcmp(a->bytes, b->bytes, a->length);
}

bool ibx_pool_is_known(const struct ibx_pool *pool, const struct ibx_source *source)
{
    for (unsigned i = 0; i < IBX_POOL_KNOWN; i++)
        if (source->length && same_source(&pool->known[i], source))
            return true;
    return false;
}

void ibx_pool_note_proven(struct ibx_pool *pool, const struct ibx_source *source)
{
    if (!ibx_pool_is_known(pool, source))
        pool->known[pool->next_known++ % IBX_POOL_KNOWN] = *source;
}

static void halve(struct ibx_failing *failing, uint64_t now)
{
    for (; failing->count && now - failing->since >= HALVED_NS; failing->since += HALVED_NS)
        failing->count /= 2;
}

static unsigned wrong_ones(struct ibx_pool *pool, const struct ibx_source *source, uint64_t now)
{
    for (unsigned i = 0; i < IBX_POOL_FAILING; i++) {
        if (source->length && same_source(&pool->failing[i].source, source)) {
            halve(&pool->failing[i], now);
            return pool->failing[i].count;
        }
    }
    return 0;
}

void ibx_pool_note_wrong(struct ibx_pool *pool, const struct ibx_source *source)
{
    uint64_t now = ibx_now_ns();
    struct ibx_failing *failing = NULL;
    for (unsigned i = 0; i < IBX_POOL_FAILING && !failing; i++) {
        if (same_source(&pool->failing[i].source, source))
            failing = &pool->failing[i];
    }
    if (!failing) {
        failing = &pool->failing[pool->next_failing++ % IBX_POOL_FAILING];
        *failing = (struct ibx_failing){.source = *source, .since = now};
    }
    halve(failing, now);
    if (!failing->count)
        failing->since = now;
    failing->count++;
}

struct ibx_stranger *ibx_pool_next_proof(struct ibx_pool *pool)
{
    struct ibx_stranger *best = NULL;
    unsigned least = 0;
    const uint64_t now = ibx_now_ns();
    for (struct ibx_stranger *s = pool->count_waiting ? pool->oldest : NULL; s; s = s->next) {
        if (s->turn.phase != IBX_TURN_WAITS)
            continue;
        unsigned wrong = 2 * wrong_ones(pool, &s->source, now) + !s->known;
        if (!best || wrong < least) {
            best = s;
            least = wrong;
        }
    }
    return best;
}

/* ------------------------------------------------------------------------- places */

static bool is_silent(const struct ibx_stranger *s)
{
    return s->handshake->state.now == HANDSHAKE_UNAUTHENTICATED;
}

/* Whether a client keeps its place. Clients of known sources give way only to each other, as long
 * as they have no more than half of the places. */
static bool is_safe(const struct ibx_pool *pool, const struct ibx_stranger *s)
{
    return s->known && pool->count_known <= pool->options->unauthenticated / 2;
}

/* The oldest client of this source or, if it is NULL, of all that do not keep their places. Unless
 * `all`, only those count that have sent no HELLO. */
static struct ibx_stranger *oldest_of(const struct ibx_pool *pool, const struct ibx_source *source,
                                      bool all)
{
    struct ibx_stranger *s = pool->oldest;
    while (s && ((source ? !same_source(source, &s->source) : is_safe(pool, s)) ||
                 (!all && !is_silent(s))))
        s = s->next;
    return s;
}

static unsigned count_of(const struct ibx_pool *pool, const struct ibx_source *source, bool all)
{
    unsigned count = 0;
    for (const struct ibx_stranger *s = pool->oldest; s; s = s->next)
        count += same_source(source, &s->source) && (all || is_silent(s));
    return count;
}

struct ibx_stranger *ibx_pool_least(const struct ibx_pool *pool)
{
    struct ibx_stranger *unsafe = oldest_of(pool, NULL, true);
    return unsafe ? unsafe : pool->oldest;
}

struct ibx_stranger *ibx_pool_spare_one(const struct ibx_pool *pool)
{
    struct ibx_stranger *s = oldest_of(pool, NULL, false);
    if (s)
        return s;
    for (s = pool->oldest; s && (is_safe(pool, s) || s->turn.phase == IBX_TURN_WAITS); s = s->next)
        ;
    return s;
}

struct ibx_stranger *ibx_pool_too_many(const struct ibx_pool *pool, const struct ibx_source *source)
{
    const unsigned most = pool->options->unauthenticated;
    const unsigned share = ibx_pool_is_known(pool, source) ? most / 2 : most / 8;
    if (count_of(pool, source, false) >= share)
        return oldest_of(pool, source, false);
    if (pool->count < most)
        return NULL;
    struct ibx_stranger *silent = oldest_of(pool, NULL, false);
    const bool greedy = count_of(pool, source, true) >= share;
    return silent ? silent : oldest_of(pool, greedy ? source : NULL, true);
}
