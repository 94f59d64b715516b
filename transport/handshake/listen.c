/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Stream sockets: where doors are, and how to knock. */
#include "transport/core/conn.h"

#include "common/clock.h"
#include "common/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

struct ibx_listener {
    int fd;
    struct ibx_options options;
    struct ibx_key key;
    char uri[300];
    char path[108]; /* of the unix socket this listener made, "" otherwise */
    pid_t owner;    /* only its maker removes the socket, not a forked child */
};

void ibx_peer_name(int fd, char *out, size_t size)
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

/* What to do about a failed connect(2) or bind(2). */
static const char *remedy_of(int rc)
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
        return "; stop who listens there, or choose another port";
    case -EADDRNOTAVAIL:
        return "; give an address of this host, 0.0.0.0 or [::]";
    case -EACCES:
    case -EPERM:
        return "; give a place that is open to this user, such as a port from 1024 on";
    default:
        return "";
    }
}

static int resolve(const struct ibx_uri *uri, int flags, struct addrinfo **list,
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

static int unix_address(const struct ibx_uri *uri, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path, uri->path, sizeof(address->sun_path));
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* ------------------------------------------------------------------ knocking */

static int finish_connect(int fd, uint64_t deadline)
{
    struct pollfd wait = {.fd = fd, .events = POLLOUT};
    int rc;
    do
        rc = poll(&wait, 1, ibx_ms_until(deadline));
    while (rc < 0 && errno == EINTR);
    if (rc == 0)
        return -ETIMEDOUT;
    int error = 0;
    socklen_t length = sizeof(error);
    if (rc < 0 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length))
        return -errno;
    return -error;
}

static int connect_one(int family, const struct sockaddr *address, socklen_t length,
                       uint64_t deadline, int *out)
{
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    int rc = connect(fd, address, length) ? -errno : 0;
    if (rc == -EINPROGRESS)
        rc = finish_connect(fd, deadline);
    if (rc) {
        close(fd);
        return rc;
    }
    *out = fd;
    return 0;
}

/* Where the queue of knocks is full a nonblocking socket is refused, and told no time to come
 * again; a blocking one has its turn. */
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

/* With a timeout of 0 it asks once: -EAGAIN when the queue is full. */
static int connect_unix(const struct ibx_uri *uri, unsigned timeout_ms, int *fd,
                        struct ibx_error *err)
{
    struct sockaddr_un address;
    uint64_t deadline = ibx_deadline_in_ms(timeout_ms);
    int s = unix_address(uri, &address);
    if (s < 0)
        return ibx_error_set(err, -errno, "no socket: %s", strerror(errno));
    int rc = connect(s, (struct sockaddr *)&address, sizeof(address)) ? -errno : 0;
    if (rc == -EAGAIN && timeout_ms)
        rc = connect_in_turn(s, &address, deadline);
    if (rc) {
        close(s);
        return ibx_error_set(err, rc, "nobody answers at socket %s: %s%s", uri->path,
                             rc == -ETIMEDOUT ? "its queue stayed full" : strerror(-rc),
                             rc == -ETIMEDOUT ? "" : remedy_of(rc));
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
    int rc = resolve(uri, 0, &list, err);
    if (rc)
        return rc;
    rc = -EADDRNOTAVAIL;
    for (struct addrinfo *a = list; a; a = a->ai_next) {
        rc = connect_one(a->ai_family, a->ai_addr, a->ai_addrlen, ibx_deadline_in_ms(timeout_ms),
                         fd);
        if (!rc)
            break;
    }
    freeaddrinfo(list);
    if (rc)
        return ibx_error_set(err, rc, "nobody answers at %s port %u: %s%s", uri->host, uri->port,
                             rc == -ETIMEDOUT ? "no reply in time" : strerror(-rc), remedy_of(rc));
    int one = 1;
    setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return 0;
}

/* ----------------------------------------------------------------- listening */

static int bind_unix(struct ibx_listener *listener, const struct ibx_uri *uri,
                     struct ibx_error *err)
{
    struct sockaddr_un address;
    int probe = -1;
    int rc = connect_unix(uri, 0, &probe, NULL);
    if (probe >= 0)
        close(probe);
    /* -EAGAIN: its queue of knocks is full. */
    if (!rc || rc == -EAGAIN)
        return ibx_error_set(err, -EADDRINUSE, "another server answers at socket %s already",
                             uri->path);
    struct stat st;
    if (rc == -ECONNREFUSED && !lstat(uri->path, &st) && S_ISSOCK(st.st_mode))
        unlink(uri->path); /* left by a server that is gone */
    listener->fd = unix_address(uri, &address);
    if (listener->fd < 0 || bind(listener->fd, (struct sockaddr *)&address, sizeof(address)))
        return ibx_error_set(err, -errno, "socket %s cannot be made: %s%s", uri->path,
                             strerror(errno), errno == ENOENT ? "; make its folder" : "");
    memcpy(listener->path, uri->path, sizeof(listener->path));
    return 0;
}

/* Debian's installer gives a host's own name the address 127.0.1.1: whoever listens by that name
 * waits in vain for others. */
static void warn_of_loopback(const struct ibx_uri *uri, const struct sockaddr_storage *bound)
{
    struct in_addr literal;
    const struct sockaddr_in *four = (const struct sockaddr_in *)bound;
    if (bound->ss_family != AF_INET || ntohl(four->sin_addr.s_addr) >> 24 != IN_LOOPBACKNET ||
        inet_pton(AF_INET, uri->host, &literal) == 1 || !strcmp(uri->host, "localhost"))
        return;
    char address[INET_ADDRSTRLEN];
    inet_ntop(AF_INET, &four->sin_addr, address, sizeof(address));
    ibx_log(IBX_LOG_WARN,
            "\"%s\" is %s here, so no other host can come to port %u: listen at an address of this "
            "host, or at 0.0.0.0",
            uri->host, address, uri->port);
}

static int bind_host(struct ibx_listener *listener, struct ibx_uri *uri, struct ibx_error *err)
{
    struct addrinfo *list;
    int rc = resolve(uri, AI_PASSIVE, &list, err);
    if (rc)
        return rc;
    rc = -EADDRNOTAVAIL;
    for (struct addrinfo *a = list; a && rc; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        int one = 1;
        rc = fd < 0 ? -errno : 0;
        if (!rc)
            setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
        if (!rc && bind(fd, a->ai_addr, a->ai_addrlen))
            rc = -errno;
        if (rc && fd >= 0)
            close(fd);
        else
            listener->fd = fd;
    }
    freeaddrinfo(list);
    if (rc)
        return ibx_error_set(err, rc, "cannot listen at %s port %u: %s%s", uri->host, uri->port,
                             strerror(-rc), remedy_of(rc));
    struct sockaddr_storage bound = {0};
    socklen_t length = sizeof(bound);
    if (!getsockname(listener->fd, (struct sockaddr *)&bound, &length))
        uri->port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                      : ((struct sockaddr_in *)&bound)->sin_port);
    warn_of_loopback(uri, &bound);
    return 0;
}

int ibx_listen(const char *text, const struct ibx_options *options, struct ibx_listener **out,
               struct ibx_error *err)
{
    struct ibx_uri uri;
    int rc = ibx_uri_parse(text, &uri, err);
    if (rc)
        return rc;
    struct ibx_listener *listener = calloc(1, sizeof(*listener));
    if (!listener)
        return ibx_error_set(err, -ENOMEM, "no memory for a listener");
    listener->fd = -1;
    listener->owner = getpid();
    listener->options = *options;
    ibx_domain_hold(options->domain);
    rc = ibx_uri_options(&uri, &listener->options, err);
    if (!rc)
        rc = ibx_key_load(listener->options.key_file, &listener->key, err);
    if (!rc)
        rc = uri.path[0] ? bind_unix(listener, &uri, err) : bind_host(listener, &uri, err);
    if (!rc && listen(listener->fd, 512))
        rc = ibx_error_set(err, -errno, "cannot listen at %s: %s%s", text, strerror(errno),
                           remedy_of(-errno));
    if (rc) {
        ibx_listener_close(listener);
        return rc;
    }
    ibx_uri_print(&uri, listener->uri, sizeof(listener->uri));
    ibx_log(IBX_LOG_INFO, "listening at %s%s", listener->uri,
            listener->key.present        ? ""
            : listener->options.insecure ? " to every host, without a key"
                                         : " to this host only: there is no key");
    *out = listener;
    return 0;
}

int ibx_listener_fd(const struct ibx_listener *listener)
{
    return listener->fd;
}

const char *ibx_listener_uri(const struct ibx_listener *listener)
{
    return listener->uri;
}

int ibx_accept(struct ibx_listener *listener, struct ibx_conn **out, struct ibx_error *err)
{
    int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        int code = errno;
        if (code == EAGAIN || code == ECONNABORTED || code == EINTR)
            return -EAGAIN;
        return ibx_error_set(err, -code, "cannot take a connection at %s: %s%s", listener->uri,
                             strerror(code),
                             code == EMFILE ? "; raise the limit on open files (ulimit -n)" : "");
    }
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    struct ibx_conn *conn = ibx_conn_new(fd, IBX_ROLE_SERVER, &listener->options);
    if (!conn)
        return ibx_error_set(err, -ENOMEM, "no memory for a connection");
    conn->key = listener->key;
    snprintf(conn->uri, sizeof(conn->uri), "%s", listener->uri);
    *out = conn;
    return 0;
}

void ibx_listener_close(struct ibx_listener *listener)
{
    if (!listener)
        return;
    if (listener->fd >= 0)
        close(listener->fd);
    if (listener->path[0] && listener->owner == getpid())
        unlink(listener->path);
    explicit_bzero(&listener->key, sizeof(listener->key));
    ibx_domain_release(listener->options.domain);
    free(listener);
}
