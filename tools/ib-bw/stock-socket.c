/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Stock's sockets: plain and blocking. */
#include "tools/ib-bw/ib-bw.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define CONNECT_SECONDS 10

/* "HOST:PORT" by the grammar of URIs. */
static int resolve(const char *where, int flags, struct addrinfo **list, struct ibx_error *err)
{
    struct ibx_uri uri;
    char text[400], service[8];
    if (strpbrk(where, "/?") ||
        (size_t)snprintf(text, sizeof(text), "tcp://%s", where) >= sizeof(text) ||
        ibx_uri_parse(text, &uri, NULL))
        return ibx_error_set(err, -EINVAL, "--stock: \"%.64s\" is not HOST:PORT", where);
    snprintf(service, sizeof(service), "%u", uri.port);
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC,
        .ai_socktype = SOCK_STREAM,
        .ai_flags = flags | AI_NUMERICSERV,
    };
    int rc = getaddrinfo(uri.host, service, &hints, list);
    return rc ? ibx_error_set(err, -EADDRNOTAVAIL,
                              "--stock: host \"%s\" cannot be resolved: %s; correct the name, or "
                              "write an address",
                              uri.host, rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc))
              : 0;
}

/* How long connect(2) may take; 0: no limit. */
static void limit_connect(int fd, time_t seconds)
{
    struct timeval limit = {.tv_sec = seconds};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

/* The first socket on which `apply`, connect or bind, succeeds; otherwise a negative errno. */
static int first_socket(int (*apply)(int, const struct sockaddr *, socklen_t),
                        struct addrinfo *list)
{
    int rc = -EADDRNOTAVAIL;
    for (struct addrinfo *a = list; a; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0) {
            rc = -errno;
            continue;
        }
        int one = 1; /* matters to bind only */
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
        limit_connect(fd, CONNECT_SECONDS);
        if (!apply(fd, a->ai_addr, a->ai_addrlen)) {
            limit_connect(fd, 0);
            return fd;
        }
        rc = errno == EINPROGRESS ? -ETIMEDOUT : -errno;
        close(fd);
    }
    return rc;
}

int ibx_bw_stock_listen(const char *where, int *out, uint16_t *port, struct ibx_error *err)
{
    char text[400];
    struct addrinfo *list;
    bool bare = where[0] && !where[strspn(where, "0123456789")];
    snprintf(text, sizeof(text), "%s%s", bare ? "127.0.0.1:" : "", where);
    int rc = resolve(text, AI_PASSIVE, &list, err);
    if (rc)
        return rc;
    int fd = first_socket(bind, list);
    freeaddrinfo(list);
    if (fd >= 0 && listen(fd, 64)) {
        rc = -errno;
        close(fd);
        fd = rc;
    }
    if (fd < 0)
        return ibx_error_set(err, fd,
                             "--stock: cannot listen at %s: %s; give another port, or an address "
                             "of this host",
                             text, strerror(-fd));
    struct sockaddr_storage bound = {0};
    socklen_t length = sizeof(bound);
    getsockname(fd, (struct sockaddr *)&bound, &length);
    *port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                              : ((struct sockaddr_in *)&bound)->sin_port);
    *out = fd;
    return 0;
}

int ibx_bw_stock_connect(const char *where, struct bw_stream **stream, struct ibx_error *err)
{
    struct addrinfo *list;
    int rc = resolve(where, 0, &list, err);
    if (rc)
        return rc;
    int fd = first_socket(connect, list);
    freeaddrinfo(list);
    if (fd < 0)
        return ibx_error_set(
            err, fd,
            "--stock: nothing listens at %s: %s; start the server with --stock, or "
            "give the address and port at which it serves stock",
            where, strerror(-fd));
    return ibx_bw_stream_of_stock(fd, stream, err);
}
