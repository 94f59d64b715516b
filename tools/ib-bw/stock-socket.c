/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The sockets of stock GVirtuS: plain and blocking. */
#include "tools/ib-bw/ib-bw.h"

#include "common/address.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define CONNECT_SECONDS 10

/* Limits how long connect(2) may take; 0: no limit. */
static void limit_connect(int fd, time_t seconds)
{
    struct timeval limit = {.tv_sec = seconds};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

/* Connects to, or listens at, the first address of the list with which that succeeds. Returns the
 * socket or a negative errno. */
static int first_socket(const struct addrinfo *list, bool listens)
{
    int one = 1, rc = -EADDRNOTAVAIL;
    for (const struct addrinfo *a = list; a; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0) {
            rc = -errno;
            continue;
        }
        limit_connect(fd, CONNECT_SECONDS);
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)); /* matters to bind only */
        rc = listens ? bind(fd, a->ai_addr, a->ai_addrlen) || listen(fd, 64)
                     : connect(fd, a->ai_addr, a->ai_addrlen);
        rc = !rc ? 0 : errno == EINPROGRESS ? -ETIMEDOUT : -errno;
        if (!rc && !listens && ibx_address_meets_itself(fd))
            rc = -ECONNREFUSED;
        if (!rc) {
            limit_connect(fd, 0);
            return fd;
        }
        close(fd);
    }
    return rc;
}

/* "HOST:PORT" by the grammar of URIs. A socket or a negative errno. */
static int open_socket(const char *where, bool listens, struct ibx_error *err)
{
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC,
        .ai_socktype = SOCK_STREAM,
        .ai_flags = AI_NUMERICSERV | (listens ? AI_PASSIVE : 0),
    };
    struct addrinfo *list;
    struct ibx_uri uri;
    char text[400], service[8];
    if (strpbrk(where, "/?") ||
        (size_t)snprintf(text, sizeof(text), "tcp://%s", where) >= sizeof(text))
        return ibx_error_set(err, -EINVAL, "--stock: \"%.64s\" is not HOST:PORT", where);
    int rc = ibx_uri_parse(text, &uri, err);
    if (rc)
        return ibx_error_prefix(err, rc, "--stock");
    snprintf(service, sizeof(service), "%u", uri.port);
    rc = getaddrinfo(uri.host, service, &hints, &list);
    if (rc)
        return ibx_error_set(err, -EADDRNOTAVAIL,
                             "--stock: host \"%s\" cannot be resolved: %s; correct the name, or "
                             "write an address",
                             uri.host, rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
    int fd = first_socket(list, listens);
    freeaddrinfo(list);
    if (fd < 0 && listens)
        return ibx_error_set(err, fd, "--stock: cannot listen at %s: %s; %s", where, strerror(-fd),
                             fd == -EMFILE ? IBX_ERROR_RAISE_FILES
                                           : "give another port, or an address of this host");
    if (fd < 0)
        return ibx_error_set(
            err, fd,
            "--stock: nothing listens at %s: %s; start the server with --stock, or "
            "give the address and port at which it serves stock",
            where, strerror(-fd));
    return fd;
}

int ibx_bw_stock_listen(const char *where, int *out, uint16_t *port, struct ibx_error *err)
{
    char text[400];
    struct sockaddr_in6 bound; /* its port is where that of sockaddr_in is */
    socklen_t length = sizeof(bound);
    bool bare = where[0] && !where[strspn(where, "0123456789")];
    snprintf(text, sizeof(text), "%s%s", bare ? "127.0.0.1:" : "", where);
    int fd = open_socket(text, true, err);
    if (fd < 0)
        return fd;
    getsockname(fd, (struct sockaddr *)&bound, &length);
    *port = ntohs(bound.sin6_port);
    *out = fd;
    return 0;
}

int ibx_bw_stock_connect(const char *where, struct bw_stream **stream, struct ibx_error *err)
{
    int fd = open_socket(where, false, err);
    return fd < 0 ? fd : ibx_bw_stream_of_stock(fd, stream, err);
}
