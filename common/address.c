/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/address.h"

#include <string.h>

_Static_assert(offsetof(struct sockaddr_in, sin_port) == offsetof(struct sockaddr_in6, sin6_port),
               "one place for the port");

const void *ibx_address_host(const struct sockaddr *address, size_t *length)
{
    *length = address->sa_family == AF_INET6 ? 16 : 4;
    if (address->sa_family == AF_INET6)
        return &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    if (address->sa_family == AF_INET)
        return &((const struct sockaddr_in *)(const void *)address)->sin_addr;
    return NULL;
}

in_port_t *ibx_address_port(struct sockaddr_storage *address)
{
    if (address->ss_family != AF_INET && address->ss_family != AF_INET6)
        return NULL;
    return &((struct sockaddr_in *)address)->sin_port;
}

void ibx_address_make(struct sockaddr_storage *address, const void *host, size_t length,
                      in_port_t port)
{
    struct in6_addr six;
    memset(address, 0, sizeof(*address));
    if (length == 16) {
        memcpy(&six, host, sizeof(six));
        if (!IN6_IS_ADDR_V4MAPPED(&six)) {
            *(struct sockaddr_in6 *)address =
                (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = port, .sin6_addr = six};
            return;
        }
        host = six.s6_addr + 12;
    }
    *(struct sockaddr_in *)address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = port};
    memcpy(&((struct sockaddr_in *)address)->sin_addr, host, 4);
}

bool ibx_address_same(const struct sockaddr *a, const struct sockaddr *b)
{
    size_t length, other;
    const void *host = ibx_address_host(a, &length), *second = ibx_address_host(b, &other);
    return host && second && length == other && !memcmp(host, second, length);
}

bool ibx_address_of_socket(int fd, bool peer, struct sockaddr_storage *address)
{
    socklen_t length = sizeof(*address);
    struct sockaddr *to = (struct sockaddr *)address;
    memset(address, 0, sizeof(*address));
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)address;
    if ((peer ? getpeername(fd, to, &length) : getsockname(fd, to, &length)) ||
        !ibx_address_port(address)) {
        memset(address, 0, sizeof(*address));
        return false;
    }
    if (address->ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&six->sin6_addr)) {
        struct in6_addr host = six->sin6_addr;
        ibx_address_make(address, &host, sizeof(host), *ibx_address_port(address));
    }
    return true;
}

bool ibx_address_meets_itself(int fd)
{
    struct sockaddr_storage own, peer;
    if (!ibx_address_of_socket(fd, false, &own) || !ibx_address_of_socket(fd, true, &peer) ||
        *ibx_address_port(&own) != *ibx_address_port(&peer) ||
        !ibx_address_same((struct sockaddr *)&own, (struct sockaddr *)&peer))
        return false;
    /* Makes close(2) reset the connection, so that the port is free at once for its server. */
    const struct linger now = {.l_onoff = 1};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    return true;
}
