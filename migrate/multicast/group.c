/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/multicast/multicast.h"

#include "common/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RECEIVE_BYTES (8 << 20)
#define SEND_MS       1000 /* for a socket to take datagrams */

/* ------------------------------------------------------------ texts */

bool ibx_multicast_is_group(const struct sockaddr_storage *address)
{
    size_t length;
    const uint8_t *host = ibx_address_host((const struct sockaddr *)address, &length);
    return host && (length == 16 ? host[0] == 0xff : host[0] >= 224 && host[0] < 240);
}

/* HOST, HOST:PORT and [HOST]:PORT in their parts. */
static bool cut(const char *text, char host[64], unsigned long *port)
{
    const char *first = strchr(text, ':'), *last = strrchr(text, ':'), *end = NULL;
    const bool bracket = *text == '[';
    const char *from = text + bracket;
    size_t length = strlen(from);
    char *rest = NULL;
    *port = IBX_MULTICAST_PORT;
    if (bracket) {
        end = strchr(text, ']');
        if (!end || (end[1] && end[1] != ':'))
            return false;
        length = (size_t)(end - from);
        last = end[1] ? end + 1 : NULL;
    } else if (first && first == last) {
        length = (size_t)(last - from);
    } else {
        last = NULL;
    }
    if (last)
        *port = strtoul(last + 1, &rest, 10);
    if (length >= 64 || (last && (last[1] < '0' || last[1] > '9' || *rest)))
        return false;
    snprintf(host, 64, "%.*s", (int)length, from);
    return *port && *port <= UINT16_MAX;
}

int ibx_multicast_group_parse(const char *text, struct sockaddr_storage *address,
                              struct ibx_error *err)
{
    struct in6_addr host;
    struct sockaddr_storage found;
    char name[64];
    unsigned long port;
    size_t length = 0;
    if (cut(text, name, &port))
        length = inet_pton(AF_INET, name, &host) == 1    ? 4
                 : inet_pton(AF_INET6, name, &host) == 1 ? 16
                                                         : 0;
    if (length)
        ibx_address_make(&found, &host, length, htons((uint16_t)port));
    if (!length || !ibx_multicast_is_group(&found))
        return ibx_error_set(err, -EINVAL,
                             "\"%.64s\" is no multicast group: 239.1.2.3, 239.1.2.3:7000 or "
                             "[ff15::1]:7000",
                             text);
    *address = found;
    return 0;
}

int ibx_multicast_group_random(bool six, struct sockaddr_storage *address, struct ibx_error *err)
{
    uint8_t host[16];
    if (RAND_bytes(host, sizeof(host)) != 1)
        return ibx_error_set(err, -EIO, "OpenSSL has no random bytes for a group");
    if (six) {
        host[0] = 0xff;
        host[1] = 0x15;   /* transient, of the site */
        host[12] |= 0x80; /* a dynamic one, RFC 3307 */
    } else {
        host[0] = 239; /* 239.192.0.0/14, of an organization, RFC 2365 */
        host[1] = (uint8_t)(192 | (host[1] & 3));
    }
    ibx_address_make(address, host, six ? 16 : 4, htons(IBX_MULTICAST_PORT));
    return 0;
}

void ibx_multicast_group_print(const struct sockaddr_storage *address, char *out, size_t size)
{
    struct sockaddr_storage copy = *address;
    size_t length;
    char host[INET6_ADDRSTRLEN] = "";
    const in_port_t *port = ibx_address_port(&copy);
    const void *bytes = ibx_address_host((const struct sockaddr *)address, &length);
    if (bytes)
        inet_ntop(address->ss_family, bytes, host, sizeof(host));
    snprintf(out, size, length == 16 ? "[%s]:%u" : "%s:%u", host, port ? ntohs(*port) : 0u);
}

/* ------------------------------------------------------------ interfaces */

/* This host's address when it speaks to another. */
static int own_address(const char *host, struct sockaddr_storage *own, struct ibx_error *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char name[256];
    const bool bracket = *host == '[';
    snprintf(name, sizeof(name), "%.*s", (int)(strcspn(host, "]") - bracket), host + bracket);
    const int bad = getaddrinfo(name, "9", &hints, &found);
    if (bad)
        return ibx_error_set(err, -EADDRNOTAVAIL, "no interface leads to \"%.128s\": %s", name,
                             gai_strerror(bad));
    const int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int rc = fd < 0 || connect(fd, found->ai_addr, found->ai_addrlen) ? -errno : 0;
    freeaddrinfo(found);
    if (!rc && !ibx_address_of_socket(fd, false, own))
        rc = -EADDRNOTAVAIL;
    if (fd >= 0)
        close(fd);
    return rc ? ibx_error_set(err, rc, "no interface leads to %.128s: %s", name, strerror(-rc)) : 0;
}

int ibx_multicast_interface(const char *name, const char *host, unsigned *index,
                            struct ibx_error *err)
{
    struct sockaddr_storage own;
    struct ifaddrs *all = NULL;
    if (name) {
        *index = if_nametoindex(name);
        return *index ? 0
                      : ibx_error_set(err, -ENODEV,
                                      "this host has no interface \"%.32s\": \"ip link\" lists "
                                      "those that it has",
                                      name);
    }
    int rc = own_address(host, &own, err);
    if (rc)
        return rc;
    rc = getifaddrs(&all) ? -errno : -ENODEV;
    for (const struct ifaddrs *at = all; at && rc; at = at->ifa_next) {
        if (!at->ifa_addr || !ibx_address_same(at->ifa_addr, (const struct sockaddr *)&own))
            continue;
        *index = if_nametoindex(at->ifa_name);
        rc = *index ? 0 : -ENODEV;
    }
    freeifaddrs(all);
    return rc ? ibx_error_set(err, rc, "the interface that leads to %.128s is not known: %s", host,
                              strerror(-rc))
              : 0;
}

/* ------------------------------------------------------------ sockets */

static socklen_t length_of(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                          : sizeof(struct sockaddr_in);
}

/* With the interface, where the address's scope needs it. */
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
    char text[64], name[IF_NAMESIZE] = "?";
    ibx_multicast_group_print(group, text, sizeof(text));
    if_indextoname(interface, name);
    if (fd >= 0)
        close(fd);
    return ibx_error_set(err, -code, "%s the multicast group %s over %s: %s", what, text, name,
                         strerror(code));
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

int ibx_multicast_socket_send(const struct sockaddr_storage *group, unsigned interface,
                              unsigned hops, int *out, size_t *mtu, struct ibx_error *err)
{
    const bool six = group->ss_family == AF_INET6;
    const struct sockaddr_storage to = scoped(group, interface);
    const struct timeval limit = {.tv_sec = SEND_MS / 1000};
    int found = 0;
    socklen_t length = sizeof(found);
    const int fd = socket(group->ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || !(six ? prepare_six : prepare_four)(fd, interface, hops) ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) ||
        connect(fd, (const struct sockaddr *)&to, length_of(&to)) ||
        getsockopt(fd, six ? IPPROTO_IPV6 : IPPROTO_IP, six ? IPV6_MTU : IP_MTU, &found, &length))
        return failed("nothing can be sent to", group, interface, errno, fd, err);
    *mtu = (size_t)found;
    *out = fd;
    return 0;
}

int ibx_multicast_socket_receive(const struct sockaddr_storage *group, unsigned interface, int *out,
                                 struct ibx_error *err)
{
    const bool six = group->ss_family == AF_INET6;
    const int level = six ? IPPROTO_IPV6 : IPPROTO_IP;
    const struct sockaddr_storage at = scoped(group, interface);
    const struct group_req join = {.gr_interface = interface, .gr_group = at};
    const int fd = socket(group->ss_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* Several caches of one host can be members of one group. */
    if (fd < 0 || set(fd, SOL_SOCKET, SO_REUSEADDR, 1) ||
        bind(fd, (const struct sockaddr *)&at, length_of(&at)) ||
        setsockopt(fd, level, MCAST_JOIN_GROUP, &join, sizeof(join)))
        return failed("cannot join", group, interface, errno, fd, err);
    /* Only what this socket has joined; IPv6 knows it from Linux 4.20 on. */
    set(fd, level, six ? IPV6_MULTICAST_ALL : IP_MULTICAST_ALL, 0);
    if (set(fd, SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BYTES))
        set(fd, SOL_SOCKET, SO_RCVBUF, RECEIVE_BYTES);
    *out = fd;
    return 0;
}
