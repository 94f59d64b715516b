/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What a way for datagrams implements: udp.c and verbs.c. Its users call ibx_multicast_out_open()
 * and ibx_multicast_in_open(), which choose by the group; this header is for the folder and its
 * tests.
 */
#ifndef IBX_MIGRATE_MULTICAST_DATAGRAMS_H
#define IBX_MIGRATE_MULTICAST_DATAGRAMS_H

#include "migrate/multicast/multicast.h"

#define IBX_MULTICAST_AT_ONCE 32u /* datagrams that are sent, or received, by one call */
/* Bytes of a page as datagrams: its parts, each with a head and a tag, one after the other. */
#define IBX_MULTICAST_PAGE_ROOM                                                                    \
    (IBX_MULTICAST_PAGE + IBX_MULTICAST_PARTS_MAX * (IBX_MULTICAST_HEAD + IBX_MULTICAST_TAG))

/* Sends to one group; used by one thread. */
struct ibx_multicast_out {
    const struct ibx_multicast_out_ops *ops;
    size_t room;  /* bytes of a datagram, at most */
    size_t heads; /* bytes of headers that each datagram costs on the wire in addition */
    /* Room for IBX_MULTICAST_AT_ONCE pages to be sent; send() may change this pointer. */
    uint8_t (*pages)[IBX_MULTICAST_PAGE_ROOM];
};

struct ibx_multicast_out_ops {
    /* Sends the first `pages` of `pages`, each as `parts` datagrams; one page, or at most
     * IBX_MULTICAST_AT_ONCE datagrams in all. Datagrams that are lost are not reported. -ETIMEDOUT:
     * the socket or device accepts none. */
    int (*send)(struct ibx_multicast_out *out, unsigned pages, unsigned parts,
                struct ibx_error *err);
    void (*close)(struct ibx_multicast_out *out);
};

/* Called for a datagram that has come; length 0: it was longer than any datagram of a group. */
typedef void ibx_multicast_each(void *context, const uint8_t *datagram, size_t length);

/* A member of one group; used by one thread. */
struct ibx_multicast_in {
    const struct ibx_multicast_in_ops *ops;
    int fd; /* readable when something has come since take() found nothing */
};

struct ibx_multicast_in_ops {
    /* Calls `each` for datagrams that have come, IBX_MULTICAST_AT_ONCE at most, without waiting.
     * Returns how many; negative: no more will come, and `err` says why. */
    int (*take)(struct ibx_multicast_in *in, ibx_multicast_each *each, void *context,
                struct ibx_error *err);
    void (*close)(struct ibx_multicast_in *in);
};

/* ------------------------------------------------------------ udp.c */

int ibx_multicast_udp_out(const struct sockaddr_storage *group, unsigned interface, unsigned hops,
                          struct ibx_multicast_out **out, struct ibx_error *err);
/* Sends by a connected socket, which it takes over; NULL: no memory. */
struct ibx_multicast_out *ibx_multicast_socket_out(int fd, size_t room);
int ibx_multicast_udp_in(const struct sockaddr_storage *group, unsigned interface,
                         struct ibx_multicast_in **in, struct ibx_error *err);

/* ------------------------------------------------------------ verbs.c; not in every build */

/* 0 when this host has an RDMA device, or -ENODEV. */
int ibx_multicast_verbs_any(struct ibx_error *err);
int ibx_multicast_verbs_out(const struct sockaddr_storage *group, unsigned interface, unsigned hops,
                            struct ibx_multicast_out **out, struct ibx_error *err);
int ibx_multicast_verbs_in(const struct sockaddr_storage *group, unsigned interface,
                           struct ibx_multicast_in **in, struct ibx_error *err);

#endif
