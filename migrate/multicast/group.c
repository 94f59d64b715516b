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

#define BY_VERBS "verbs://"

/* ------------------------------------------------------------ texts */

bool ibx_multicast_is_group(const struct sockaddr_storage *address)
{
    size_t length;
    const uint8_t *host = ibx_address_host((const struct sockaddr *)address, &length);
    return host && (length == 16 ? host[0] == 0xff : host[0] >= 224 && host[0] < 240);
}

bool ibx_multicast_by_verbs(const struct sockaddr_storage *address)
{
    struct sockaddr_storage copy = *address;
    const in_port_t *port = ibx_address_port(&copy);
    return port && !*port;
}

/* Splits HOST, HOST:PORT or [HOST]:PORT; verbs://HOST has port 0. */
static bool cut(const char *text, char host[64], unsigned long *port)
{
    if (!strncmp(text, BY_VERBS, strlen(BY_VERBS))) {
        *port = 0;
        return snprintf(host, 64, "%s", text + strlen(BY_VERBS)) < 64;
    }
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

static int parse(const char *text, struct sockaddr_storage *address, struct ibx_error *err)
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
                             "\"%.64s\" is no multicast group: 239.1.2.3, 239.1.2.3:7000, "
                             "[ff15::1]:7000, or verbs://239.1.2.3 without a port",
                             text);
    *address = found;
    return 0;
}

static int choose_randomly(bool six, uint16_t port, struct sockaddr_storage *address,
                           struct ibx_error *err)
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
    ibx_address_make(address, host, six ? 16 : 4, htons(port));
    return 0;
}

int ibx_multicast_group_choose(const char *text, bool six, struct sockaddr_storage *address,
                               struct ibx_error *err)
{
    if (!text)
        return choose_randomly(six, IBX_MULTICAST_PORT, address, err);
    if (!strcmp(text, BY_VERBS)) /* RoCE v2 has groups of IPv4 only */
        return choose_randomly(false, 0, address, err);
    return parse(text, address, err);
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
    if (port && *port)
        snprintf(out, size, length == 16 ? "[%s]:%u" : "%s:%u", host, ntohs(*port));
    else
        snprintf(out, size, BY_VERBS "%s", host);
}

/* ------------------------------------------------------------ interfaces */

/* The address that this host has as the sender of packets to `host`. */
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

int ibx_multicast_failed(const char *what, const struct sockaddr_storage *group, unsigned interface,
                         int code, struct ibx_error *err)
{
    char text[64], name[IF_NAMESIZE] = "?";
    ibx_multicast_group_print(group, text, sizeof(text));
    if_indextoname(interface, name);
    return ibx_error_set(err, -code, "%s the multicast group %s over %s: %s", what, text, name,
                         strerror(code));
}
