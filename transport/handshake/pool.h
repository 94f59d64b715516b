/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Clients that have not proven themselves yet: a bounded number of sockets in one epoll instance,
 * without a thread or a process for any of them. pool.c moves them on, pool_places.c knows whose
 * turn it is: who gives way when there is no place, and whose PROOF is looked at next.
 */
#ifndef IBX_TRANSPORT_HANDSHAKE_POOL_H
#define IBX_TRANSPORT_HANDSHAKE_POOL_H

#include "transport/handshake/handshake.h"

#define IBX_POOL_KNOWN   16u /* sources that have authenticated, the latest ones */
#define IBX_POOL_FAILING 64u /* sources of wrong PROOFs, the latest ones */

/* Where a client comes from: the bytes of its address, or its user. In IPv6 it is the network,
 * since whoever has one of its 2^64 addresses can have them all. Length 0: nobody knows. */
struct ibx_source {
    uint8_t bytes[16];
    size_t length;
};

struct ibx_stranger {
    struct ibx_stranger *next,
        **link; /* in the order in which they came; what points to this one */
    struct ibx_handshake *handshake;
    struct ibx_turn turn;
    struct ibx_source source;
    bool known;    /* its source was known when it came */
    uint64_t came; /* ns */
};

/* A source whose clients sent wrong PROOFs. */
struct ibx_failing {
    struct ibx_source source;
    unsigned count; /* halved each second */
    uint64_t since;
};

struct ibx_pool {
    struct ibx_pool *next; /* the list of all pools of this process */
    int listening, epoll_fd, timer_fd;
    const struct ibx_options *options;
    struct ibx_keys *keys;
    struct ibx_stranger *oldest, **newest;
    unsigned count, count_known, count_waiting;
    struct ibx_source known[IBX_POOL_KNOWN]; /* rings; a source of length 0 is none */
    struct ibx_failing failing[IBX_POOL_FAILING];
    unsigned next_known, next_failing;
    bool armed; /* the timer */
    pid_t owner;
    /* This end's half of the key exchange, for all who come within a second. */
    struct ibx_exchange *exchange;
    uint8_t public_key[IBX_PUBLIC_BYTES];
    uint64_t exchange_until;
    uint64_t lines_from; /* when the present second of log lines began */
    unsigned lines, left_out;
    char last[IBX_ERROR_MAX]; /* the last line */
};

/* The source of a connected socket's peer. */
struct ibx_source ibx_pool_source_of(int fd);
bool ibx_pool_is_known(const struct ibx_pool *pool, const struct ibx_source *source);
/* A client of this source has proven itself; or its PROOF was wrong. */
void ibx_pool_note_proven(struct ibx_pool *pool, const struct ibx_source *source);
void ibx_pool_note_wrong(struct ibx_pool *pool, const struct ibx_source *source);
/* The client that gives way to one more of this source; NULL: nobody has to. */
struct ibx_stranger *ibx_pool_too_many(const struct ibx_pool *pool,
                                       const struct ibx_source *source);
/* The client that gives way to anybody; NULL: there is none. */
struct ibx_stranger *ibx_pool_least(const struct ibx_pool *pool);
/* The client that gives way while descriptors are scarce, silent ones first, and none whose PROOF
 * waits or that keeps its place; NULL: there is none. */
struct ibx_stranger *ibx_pool_spare_one(const struct ibx_pool *pool);
/* The next client whose waiting PROOF is to be checked; NULL: none waits. */
struct ibx_stranger *ibx_pool_next_proof(struct ibx_pool *pool);

#endif
