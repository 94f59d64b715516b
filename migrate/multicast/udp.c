/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Datagrams by UDP. Where the kernel cuts what it is given into datagrams (UDP_SEGMENT), the parts
 * of a page are one piece, which costs half of the processor's time.
 */
#include "migrate/multicast/datagrams.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RECEIVE_BYTES (8 << 20)
#define SEND_MS       1000 /* in which a socket has to accept datagrams */
#define HEADS         48u  /* of UDP and IPv6 */
#define AT_ONCE       IBX_MULTICAST_AT_ONCE

/* ------------------------------------------------------------ sockets */

static socklen_t length_of(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                          : sizeof(struct sockaddr_in);
}

/* The group's address, with the interface if the address has a scope. */
static struct sockaddr_storage scoped(const struct sockaddr_storage *group, unsigned interface)
{
    struct sockaddr_storage at = *group;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)&at;
    if (at.ss_family == AF_INET6)
        six->sin6_scope_id = interface;
    return at;
}

static int set(int fd, int level, int name, int value)
{
    return setsockopt(fd, level, name, &value, sizeof(value));
}

static int failed(const char *what, const struct sockaddr_storage *group, unsigned interface,
                  int code, int fd, struct ibx_error *err)
{
    if (fd >= 0)
        close(fd);
    return ibx_multicast_failed(what, group, interface, code, err);
}

static bool prepare_four(int fd, unsigned interface, unsigned hops)
{
    const struct ip_mreqn by = {.imr_ifindex = (int)interface};
    return !setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &by, sizeof(by)) &&
           !set(fd, IPPROTO_IP, IP_MULTICAST_TTL, (int)hops) &&
           !set(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
}

static bool prepare_six(int fd, unsigned interface, unsigned hops)
{
    return !set(fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, (int)interface) &&
           !set(fd, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, (int)hops) &&
           !set(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO);
}

/* ------------------------------------------------------------ sending */

struct udp_out {
    struct ibx_multicast_out out;
    int fd;
    unsigned parts; /* for which UDP_SEGMENT was set; 0: not yet */
    bool cuts;      /* the kernel cuts a page into datagrams */
    uint8_t pages[AT_ONCE][IBX_MULTICAST_PAGE_ROOM];
    struct iovec iovs[AT_ONCE];
    struct mmsghdr messages[AT_ONCE];
};

static void put(struct udp_out *u, unsigned i, uint8_t *bytes, size_t length)
{
    u->iovs[i] = (struct iovec){bytes, length};
    u->messages[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &u->iovs[i], .msg_iovlen = 1}};
}

/* Prepares the messages for these pages; returns how many. */
static unsigned prepare(struct udp_out *u, unsigned page, unsigned pages, unsigned parts)
{
    unsigned n = 0;
    for (; page < pages; page++) {
        uint8_t *from = u->pages[page], *at = from;
        for (unsigned part = 0; part < parts; part++) {
            const size_t length = ibx_multicast_datagram(parts, part);
            if (!u->cuts)
                put(u, n++, at, length);
            at += length;
        }
        if (u->cuts)
            put(u, n++, from, (size_t)(at - from));
    }
    return n;
}

static void begin_cutting(struct udp_out *u, unsigned parts)
{
    if (u->parts == parts)
        return;
    u->parts = parts;
    u->cuts = parts > 1 && !set(u->fd, SOL_UDP, UDP_SEGMENT, (int)ibx_multicast_datagram(parts, 0));
}

/* Some devices cannot send what has to be cut: then this side makes the datagrams itself. */
static bool stop_cutting(struct udp_out *u)
{
    if (!u->cuts || (errno != EIO && errno != EINVAL))
        return false;
    u->cuts = false;
    return !set(u->fd, SOL_UDP, UDP_SEGMENT, 0);
}

static int udp_send(struct ibx_multicast_out *out, unsigned pages, unsigned parts,
                    struct ibx_error *err)
{
    struct udp_out *u = (struct udp_out *)out;
    begin_cutting(u, parts);
    unsigned sent = 0, all = prepare(u, 0, pages, parts);
    int rc = 0;
    while (!rc && sent < all) {
        const int n = sendmmsg(u->fd, u->messages + sent, all - sent, 0);
        if (n > 0) {
            sent += (unsigned)n;
        } else if (errno == ENOBUFS) { /* dropped by this host; a loss like any other */
            sent++;
        } else if (stop_cutting(u)) { /* a message was a page: `sent` counts pages */
            all = prepare(u, sent, pages, parts);
            sent = 0;
        } else if (errno != EINTR) {
            rc = errno == EAGAIN ? -ETIMEDOUT : -errno;
        }
    }
    return rc ? ibx_error_set(err, rc, "%s", strerror(-rc)) : 0;
}

static void udp_out_close(struct ibx_multicast_out *out)
{
    struct udp_out *u = (struct udp_out *)out;
    close(u->fd);
    free(u);
}

struct ibx_multicast_out *ibx_multicast_socket_out(int fd, size_t room)
{
    static const struct ibx_multicast_out_ops ops = {udp_send, udp_out_close};
    struct udp_out *u = calloc(1, sizeof(*u));
    if (!u)
        return NULL;
    u->out = (struct ibx_multicast_out){.ops = &ops, .room = room, .heads = HEADS};
    u->out.pages = u->pages;
    u->fd = fd;
    return &u->out;
}

int ibx_multicast_udp_out(const struct sockaddr_storage *group, unsigned interface, unsigned hops,
                          struct ibx_multicast_out **out, struct ibx_error *err)
{
    const bool six = group->ss_family == AF_INET6;
    const struct sockaddr_storage to = scoped(group, interface);
    const struct timeval limit = {.tv_sec = SEND_MS / 1000};
    int mtu = 0;
    socklen_t length = sizeof(mtu);
    const int fd = socket(group->ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || !(six ? prepare_six : prepare_four)(fd, interface, hops) ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) ||
        connect(fd, (const struct sockaddr *)&to, length_of(&to)) ||
        getsockopt(fd, six ? IPPROTO_IPV6 : IPPROTO_IP, six ? IPV6_MTU : IP_MTU, &mtu, &length))
        return failed("nothing can be sent to", group, interface, errno, fd, err);
    const int heads = six ? 48 : 28;
    struct ibx_multicast_out *made =
        ibx_multicast_socket_out(fd, mtu > heads ? (size_t)(mtu - heads) : 0);
    if (!made)
        return failed("nothing can be sent to", group, interface, ENOMEM, fd, err);
    *out = made;
    return 0;
}

/* ------------------------------------------------------------ receiving */

struct udp_in {
    struct ibx_multicast_in in;
    struct iovec iovs[AT_ONCE];
    struct mmsghdr messages[AT_ONCE];
    uint8_t datagrams[AT_ONCE][IBX_MULTICAST_PACKET];
};

static int udp_take(struct ibx_multicast_in *in, ibx_multicast_each *each, void *context,
                    struct ibx_error *err)
{
    struct udp_in *u = (struct udp_in *)in;
    (void)err; /* errors of this socket concern single datagrams */
    for (unsigned i = 0; i < AT_ONCE; i++) {
        u->iovs[i] = (struct iovec){u->datagrams[i], sizeof(u->datagrams[i])};
        u->messages[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &u->iovs[i], .msg_iovlen = 1}};
    }
    const int n = recvmmsg(in->fd, u->messages, AT_ONCE, MSG_DONTWAIT, NULL);
    for (int i = 0; i < n; i++) {
        const bool cut = u->messages[i].msg_hdr.msg_flags & MSG_TRUNC;
        each(context, u->datagrams[i], cut ? 0 : u->messages[i].msg_len);
    }
    return n > 0 ? n : 0;
}

static void udp_in_close(struct ibx_multicast_in *in)
{
    close(in->fd);
    free(in);
}

static int join(const struct sockaddr_storage *group, unsigned interface, struct ibx_error *err)
{
    const int level = group->ss_family == AF_INET6 ? IPPROTO_IPV6 : IPPROTO_IP;
    const int all = group->ss_family == AF_INET6 ? IPV6_MULTICAST_ALL : IP_MULTICAST_ALL;
    const struct sockaddr_storage at = scoped(group, interface);
    const struct group_req request = {.gr_interface = interface, .gr_group = at};
    const int fd = socket(group->ss_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* Several caches of one host can be members of one group. */
    if (fd < 0 || set(fd, SOL_SOCKET, SO_REUSEADDR, 1) ||
        bind(fd, (const struct sockaddr *)&at, length_of(&at)) ||
        setsockopt(fd, level, MCAST_JOIN_GROUP, &request, sizeof(request)))
        return failed("cannot join", group, interface, errno, fd, err);
    /* Receive only what this socket has joined (for IPv6 since Linux 4.20). */
    set(fd, level, all, 0);
    if (set(fd, SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BYTES))
        set(fd, SOL_SOCKET, SO_RCVBUF, RECEIVE_BYTES);
    return fd;
}

int ibx_multicast_udp_in(const struct sockaddr_storage *group, unsigned interface,
                         struct ibx_multicast_in **in, struct ibx_error *err)
{
    static const struct ibx_multicast_in_ops ops = {udp_take, udp_in_close};
    struct udp_in *u = calloc(1, sizeof(*u));
    if (!u)
        return ibx_error_set(err, -ENOMEM, "no memory for a multicast group's datagrams");
    const int fd = join(group, interface, err);
    if (fd < 0) {
        free(u);
        return fd;
    }
    u->in = (struct ibx_multicast_in){&ops, fd};
    *in = &u->in;
    return 0;
}
