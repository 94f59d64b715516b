/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Notices that this host has lost a connection's own address, because its VM has moved to
 * another network, or a laptop to another access point. TCP continues to send from that address,
 * and notices only by the silence that follows, seconds later. The kernel reports changed
 * addresses at once. */
#include "transport/core/conn.h"

#include "common/address.h"
#include "common/descriptor.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <unistd.h>

static bool is_loopback(const struct sockaddr_storage *address)
{
    size_t length;
    const uint8_t *host = ibx_address_host((const struct sockaddr *)address, &length);
    return length == 4 ? host[0] == 127
                       : IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

/* A socket to which the kernel tells changes of these groups; -errno. */
static int changes_of(unsigned groups)
{
    const struct sockaddr_nl changes = {.nl_family = AF_NETLINK, .nl_groups = groups};
    int fd = ibx_descriptor_apart(
        socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE));
    int rc = fd < 0 || bind(fd, (const struct sockaddr *)&changes, sizeof(changes)) ? -errno : 0;
    if (rc && fd >= 0)
        close(fd);
    return rc ? rc : fd;
}

int ibx_network_changes(void)
{
    return changes_of(RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR | RTMGRP_IPV4_ROUTE |
                      RTMGRP_IPV6_ROUTE);
}

/* The bytes of the next messages; 0: there are none; -ENOBUFS: there were more than the socket's
 * buffer holds. The number may be another socket's by now, if the program has closed ours: that one
 * may block, or have ended. */
static ssize_t take(int fd, char *messages, size_t most)
{
    const ssize_t n = recv(fd, messages, most, MSG_DONTWAIT);
    return n >= 0 ? n : errno == ENOBUFS ? -ENOBUFS : 0;
}

void ibx_network_changes_seen(int fd)
{
    char messages[4096];
    while (take(fd, messages, sizeof(messages)))
        ;
}

void ibx_own_address_watch(struct ibx_conn *conn)
{
    struct sockaddr_storage own;
    if (!conn->options.follow_address || conn->role != IBX_ROLE_CLIENT ||
        !ibx_address_of_socket(conn->handshake_socket, false, &own) || is_loopback(&own))
        return;
    int fd = changes_of(RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR);
    if (fd >= 0 && ibx_link_watch(&conn->link, fd)) {
        close(fd);
        return;
    }
    conn->address_fd = fd < 0 ? -1 : fd;
}

/* Whether one of these messages says that this address has gone. To try whether a socket can still
 * have the address would be too early: the kernel reports the change before it takes the route
 * away. */
static bool says_gone(const char *messages, size_t n, const struct sockaddr_storage *own)
{
    size_t length, left = n;
    const void *host = ibx_address_host((const struct sockaddr *)own, &length);
    for (const struct nlmsghdr *m = (const void *)messages; NLMSG_OK(m, left);
         m = NLMSG_NEXT(m, left)) {
        if (m->nlmsg_type != RTM_DELADDR || m->nlmsg_len < NLMSG_LENGTH(sizeof(struct ifaddrmsg)))
            continue;
        const struct ifaddrmsg *changed = NLMSG_DATA(m);
        const unsigned short which = changed->ifa_family == AF_INET ? IFA_LOCAL : IFA_ADDRESS;
        size_t rest = IFA_PAYLOAD(m);
        for (const struct rtattr *a = IFA_RTA(changed); RTA_OK(a, rest); a = RTA_NEXT(a, rest)) {
            if (changed->ifa_family == own->ss_family && a->rta_type == which &&
                RTA_PAYLOAD(a) == length && !memcmp(RTA_DATA(a), host, length))
                return true;
        }
    }
    return false;
}

void ibx_own_address_check(struct ibx_conn *conn)
{
    struct sockaddr_storage own;
    _Alignas(struct nlmsghdr) char messages[4096];
    bool gone = false;
    ssize_t n;
    ibx_address_of_socket(conn->handshake_socket, false, &own);
    /* This change may be among those that the buffer did not hold. A needless new connection does
     * no harm. */
    while ((n = take(conn->address_fd, messages, sizeof(messages))))
        gone = gone || n < 0 || says_gone(messages, (size_t)n, &own);
    if (gone)
        ibx_conn_lost(conn, -EADDRNOTAVAIL, "this host no longer has the connection's address");
}
