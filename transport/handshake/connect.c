/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How a client reaches a listener's socket, and the parts that listen.c shares. */
#include "transport/handshake/handshake.h"

#include "common/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void ibx_handshake_peer_name(int fd, char *out, size_t size)
{
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof(address);
    char host[NI_MAXHOST], service[NI_MAXSERV];
    if (getpeername(fd, (struct sockaddr *)&address, &length))
        snprintf(out, size, "unknown");
    else if (address.ss_family == AF_UNIX)
        snprintf(out, size, "unix socket");
    else if (getnameinfo((struct sockaddr *)&address, length, host, sizeof(host), service,
                         sizeof(service), NI_NUMERICHOST | NI_NUMERICSERV))
        snprintf(out, size, "unknown");
    else
        snprintf(out, size, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, service);
}

const char *ibx_handshake_remedy(int rc)
{
    switch (rc) {
    case -ECONNREFUSED:
    case -ENOENT: /* of a unix socket */
        return "; start the server there, or correct the URI";
    case -ETIMEDOUT:
    case -EHOSTUNREACH:
    case -ENETUNREACH:
        return "; correct the URI, or look for a firewall or a route in the way";
    case -EADDRINUSE:
        return "; stop the server there, or choose another port";
    case -EADDRNOTAVAIL:
        return "; give an address of this host, 0.0.0.0 or [::]";
    case -EACCES:
    case -EPERM:
        return "; choose a place where this user may listen, such as a port from 1024 on";
    default:
        return "";
    }
}

int ibx_handshake_resolve(const struct ibx_uri *uri, int flags, struct addrinfo **list,
                          struct ibx_error *err)
{
    char service[8];
    snprintf(service, sizeof(service), "%u", uri->port);
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC,
        .ai_socktype = SOCK_STREAM,
        .ai_flags = flags | AI_NUMERICSERV,
    };
    int rc = getaddrinfo(uri->host, service, &hints, list);
    if (!rc)
        return 0;
    return ibx_error_set(err, -EADDRNOTAVAIL,
                         "host \"%s\" cannot be resolved: %s; correct the name, write an "
                         "address, or add it to DNS or /etc/hosts",
                         uri->host, rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
}

int ibx_handshake_unix_socket(const struct ibx_uri *uri, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path, uri->path, sizeof(address->sun_path));
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

static int finish_connect(int fd, uint64_t deadline)
{
    int rc = ibx_handshake_wait_socket(fd, POLLOUT, deadline);
    int error = 0;
    socklen_t length = sizeof(error);
    if (rc)
        return rc;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) ? -errno : -error;
}

static int connect_one(const struct addrinfo *to, uint64_t deadline, int *out)
{
    int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    int rc = connect(fd, to->ai_addr, to->ai_addrlen) ? -errno : 0;
    if (rc == -EINPROGRESS)
        rc = finish_connect(fd, deadline);
    if (rc) {
        close(fd);
        return rc;
    }
    *out = fd;
    return 0;
}

/* With a full queue of connection requests, connect(2) refuses a nonblocking socket at once; a
 * blocking one waits for its turn. */
static int connect_in_turn(int fd, const struct sockaddr_un *address, uint64_t deadline)
{
    struct timeval limit = {0};
    int rc, ms;
    fcntl(fd, F_SETFL, 0);
    do {
        ms = ibx_ms_until(deadline);
        limit = (struct timeval){.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
        rc = ms ? setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) : 0;
        if (!rc && ms)
            rc = connect(fd, (const struct sockaddr *)address, sizeof(*address));
        rc = !ms ? -ETIMEDOUT : rc ? -errno : 0;
    } while (rc == -EINTR || rc == -EAGAIN);
    limit = (struct timeval){0};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return rc;
}

/* With a timeout of 0 it tries once: -EAGAIN when the queue is full. */
static int connect_unix(const struct ibx_uri *uri, unsigned timeout_ms, int *fd,
                        struct ibx_error *err)
{
    struct sockaddr_un address;
    uint64_t deadline = ibx_deadline_in_ms(timeout_ms);
    int s = ibx_handshake_unix_socket(uri, &address);
    if (s < 0)
        return ibx_error_set(err, -errno, "no socket: %s", strerror(errno));
    int rc = connect(s, (struct sockaddr *)&address, sizeof(address)) ? -errno : 0;
    if (rc == -EAGAIN && timeout_ms)
        rc = connect_in_turn(s, &address, deadline);
    if (rc) {
        close(s);
        return ibx_error_set(err, rc, "no server answers at socket %s: %s%s", uri->path,
                             rc == -ETIMEDOUT ? "its queue stayed full" : strerror(-rc),
                             rc == -ETIMEDOUT ? "" : ibx_handshake_remedy(rc));
    }
    *fd = s;
    return 0;
}

int ibx_handshake_connect(const struct ibx_uri *uri, unsigned timeout_ms, int *fd,
                          struct ibx_error *err)
{
    if (uri->path[0])
        return connect_unix(uri, timeout_ms, fd, err);
    struct addrinfo *list;
    int rc = ibx_handshake_resolve(uri, 0, &list, err);
    if (rc)
        return rc;
    rc = -EADDRNOTAVAIL;
    for (struct addrinfo *a = list; a && rc; a = a->ai_next)
        rc = connect_one(a, ibx_deadline_in_ms(timeout_ms), fd);
    freeaddrinfo(list);
    if (rc)
        return ibx_error_set(err, rc, "no server answers at %s port %u: %s%s", uri->host, uri->port,
                             rc == -ETIMEDOUT ? "no reply in time" : strerror(-rc),
                             ibx_handshake_remedy(rc));
    int one = 1;
    setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return 0;
}
