/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Listening, and the clients that have authenticated. */
#include "transport/handshake/handshake.h"

#include "common/address.h"
#include "common/clock.h"
#include "common/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* Connection requests that may wait for ibx_accept(): as many as the kernel allows, since a request
 * that finds no room is repeated only after a second. */
#define BACKLOG SOMAXCONN

/* How long a port that is in use is tried again: the kernel closes the sockets of a process that
 * was killed a moment after it has gone, and whoever restarts it at once comes before that. */
#define LET_GO_MS      1000
#define LET_GO_STEP_MS 10

struct ibx_listener {
    int fd, handed; /* `handed`: the socket through which connections are handed over; -1: it
                       listens itself */
    uint64_t taken; /* how many were handed over */
    struct ibx_options options;
    struct ibx_keys *keys;
    struct ibx_pool *pool;
    char uri[300];
    char path[108]; /* of the unix socket that this listener made, or "" */
    dev_t dev;      /* of the socket's file, so that only this one is removed at the end */
    ino_t ino;
    pid_t owner; /* only this process removes the socket, not a forked child */
};

/* Locks the socket's folder. When two servers begin at a socket that was left behind, one must not
 * remove what the other has made since it looked. Returns a descriptor, which is locked until it is
 * closed; -1: the folder cannot be locked, or somebody else has it. */
static int lock_folder(const char *path)
{
    char folder[sizeof(((struct ibx_uri *)NULL)->path)];
    snprintf(folder, sizeof(folder), "%.*s", (int)(strrchr(path, '/') + 1 - path), path);
    const uint64_t deadline = ibx_deadline_in_ms(LET_GO_MS);
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB)) {
        if (errno != EWOULDBLOCK || !ibx_ms_until(deadline)) {
            close(fd);
            return -1;
        }
        poll(NULL, 0, LET_GO_STEP_MS);
    }
    return fd;
}

/* Also listens: only then others see that somebody uses the socket. */
static int bind_locked(struct ibx_listener *listener, const struct ibx_uri *uri,
                       struct ibx_error *err)
{
    struct sockaddr_un address;
    int probe = -1;
    int rc = ibx_handshake_connect(uri, NULL, 0, NULL, &probe, NULL, NULL);
    if (probe >= 0)
        close(probe);
    /* -EAGAIN: its queue of connection requests is full. */
    if (!rc || rc == -EAGAIN)
        return ibx_error_set(err, -EADDRINUSE, "another server answers at socket %s already",
                             uri->path);
    struct stat st;
    if (rc == -ECONNREFUSED && !lstat(uri->path, &st) && S_ISSOCK(st.st_mode))
        unlink(uri->path); /* left by a server that is gone */
    listener->fd = ibx_handshake_unix_socket(uri, &address);
    if (listener->fd < 0 || bind(listener->fd, (struct sockaddr *)&address, sizeof(address)))
        return ibx_error_set(err, -errno, "socket %s cannot be made: %s%s", uri->path,
                             strerror(errno), errno == ENOENT ? "; make its folder" : "");
    memcpy(listener->path, uri->path, sizeof(listener->path));
    if (!lstat(uri->path, &st)) {
        listener->dev = st.st_dev;
        listener->ino = st.st_ino;
    }
    return listen(listener->fd, BACKLOG) ? ibx_error_set(err, -errno, "socket %s cannot listen: %s",
                                                         uri->path, strerror(errno))
                                         : 0;
}

static int bind_unix(struct ibx_listener *listener, const struct ibx_uri *uri,
                     struct ibx_error *err)
{
    const int lock = lock_folder(uri->path);
    int rc = bind_locked(listener, uri, err);
    if (lock >= 0) {
        flock(lock, LOCK_UN); /* a child that was forked meanwhile has the descriptor, too */
        close(lock);
    }
    return rc;
}

/* Debian's installer gives a host's own name the address 127.0.1.1, where other hosts cannot come.
 */
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
            "\"%s\" is %s here, so no other host can connect to port %u: listen at an address of "
            "this host, or at 0.0.0.0",
            uri->host, address, uri->port);
}

/* Clients may know another address of a name than the one that was bound. */
static void warn_of_others(const struct ibx_uri *uri, const struct sockaddr_storage *bound)
{
    char address[INET6_ADDRSTRLEN] = "";
    size_t length;
    const void *host = ibx_address_host((const struct sockaddr *)bound, &length);
    if (!host || !inet_ntop(bound->ss_family, host, address, sizeof(address)) ||
        !strcmp(uri->host, "localhost"))
        return;
    ibx_log(IBX_LOG_WARN,
            "\"%s\" has several addresses, and this listens at %s port %u alone: listen at 0.0.0.0 "
            "or [::] for clients that connect to another one",
            uri->host, address, uri->port);
}

/* A socket that is bound there, or a negative error code. */
static int bound_socket(const struct addrinfo *a, uint64_t deadline)
{
    const int one = 1, fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    while (bind(fd, a->ai_addr, a->ai_addrlen)) {
        const int code = errno;
        if (code != EADDRINUSE || !ibx_ms_until(deadline)) {
            close(fd);
            return -code;
        }
        poll(NULL, 0, LET_GO_STEP_MS);
    }
    return fd;
}

/* "; " and what to do about this error of bind(2) or listen(2), or "". */
static const char *remedy(int rc)
{
    switch (rc) {
    case -EADDRINUSE:
        return "; stop the server there, or choose another port";
    case -EADDRNOTAVAIL:
        return "; give an address of this host, 0.0.0.0 or [::]";
    case -EACCES:
    case -EPERM:
        return "; choose a place where this user may listen, such as a port from 1024 on";
    case -EINVAL:
        return IBX_HANDSHAKE_ONE_HOST;
    default:
        return "";
    }
}

static int bind_host(struct ibx_listener *listener, struct ibx_uri *uri, struct ibx_error *err)
{
    struct addrinfo *list;
    int rc = ibx_handshake_resolve(uri, AI_PASSIVE, &list, err);
    if (rc)
        return rc;
    const uint64_t deadline = ibx_deadline_in_ms(uri->port ? LET_GO_MS : 0);
    rc = -EADDRNOTAVAIL;
    for (struct addrinfo *a = list; a && rc < 0; a = a->ai_next)
        rc = bound_socket(a, deadline);
    const bool several = list && list->ai_next;
    freeaddrinfo(list);
    if (rc < 0)
        return ibx_error_set(err, rc, "cannot listen at %s port %u: %s%s", uri->host, uri->port,
                             strerror(-rc), remedy(rc));
    listener->fd = rc;
    struct sockaddr_storage bound = {0};
    socklen_t length = sizeof(bound);
    if (!getsockname(listener->fd, (struct sockaddr *)&bound, &length))
        uri->port = ntohs(*ibx_address_port(&bound));
    if (several)
        warn_of_others(uri, &bound);
    else
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
    listener->fd = listener->handed = -1;
    listener->owner = getpid();
    listener->options = *options;
    ibx_domain_hold(options->domain);
    rc = ibx_uri_options(&uri, &listener->options, err);
    if (!rc)
        rc = ibx_keys_load(listener->options.key_file, &listener->keys, err);
    if (!rc)
        rc = ibx_keys_check_allowed(listener->keys, &listener->options, err);
    if (!rc)
        rc = ibx_handshake_check_encryption(&listener->options, listener->keys, err);
    if (!rc)
        rc = uri.path[0] ? bind_unix(listener, &uri, err) : bind_host(listener, &uri, err);
    if (!rc && listen(listener->fd, BACKLOG))
        rc = ibx_error_set(err, -errno, "cannot listen at %s: %s%s", text, strerror(errno),
                           remedy(-errno));
    if (!rc) {
        listener->pool = ibx_pool_create(listener->fd, &listener->options, listener->keys, err);
        rc = listener->pool ? 0 : -ENOMEM;
    }
    if (rc) {
        ibx_listener_close(listener);
        return rc;
    }
    ibx_uri_print(&uri, listener->uri, sizeof(listener->uri));
    ibx_log(IBX_LOG_INFO, "listening at %s%s", listener->uri,
            listener->keys               ? ""
            : listener->options.insecure ? " to every host, without a key"
                                         : " to this host only: there is no key");
    *out = listener;
    return 0;
}

int ibx_listener_fd(const struct ibx_listener *listener)
{
    return listener->handed >= 0 ? listener->handed : ibx_pool_fd(listener->pool);
}

const char *ibx_listener_uri(const struct ibx_listener *listener)
{
    return listener->uri;
}

int ibx_accept(struct ibx_listener *listener, struct ibx_conn **out, struct ibx_error *err)
{
    struct ibx_error why = {0};
    int rc = listener->handed >= 0 ? ibx_handshake_take(listener->handed, &listener->options,
                                                        &listener->taken, out, &why)
                                   : ibx_pool_step(listener->pool, out, &why);
    if (rc && rc != -EAGAIN) /* `why` may be of a client that was refused before */
        return ibx_error_set(err, rc, "cannot take a connection at %s: %s", listener->uri,
                             why.code == rc ? why.message : strerror(-rc));
    if (why.code && err)
        *err = why;
    return rc;
}

int ibx_accept_wait(struct ibx_listener *listener, int timeout_ms, struct ibx_conn **out,
                    struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(timeout_ms < 0 ? 0 : (unsigned)timeout_ms);
    struct pollfd wait = {.fd = ibx_listener_fd(listener), .events = POLLIN};
    for (;;) {
        int n = poll(&wait, 1, timeout_ms < 0 ? -1 : ibx_ms_until(deadline));
        if (n < 0 && errno != EINTR)
            return ibx_error_set(err, -errno, "waiting at %s: %s", listener->uri, strerror(errno));
        int rc = ibx_accept(listener, out, err);
        if (rc != -EAGAIN)
            return rc;
        /* Strangers may come without end. */
        if (n == 0 || (timeout_ms >= 0 && ibx_now_ns() >= deadline))
            return ibx_error_set(err, -ETIMEDOUT, "no client came to %s in time", listener->uri);
    }
}

void ibx_listener_take_from(struct ibx_listener *listener, int socket)
{
    ibx_pool_destroy(listener->pool);
    listener->pool = NULL;
    close(listener->fd);
    ibx_keys_release(listener->keys); /* a client's GPU kernel may read this process's memory */
    listener->keys = NULL;
    listener->fd = -1;
    listener->handed = socket;
}

uint64_t ibx_listener_taken(const struct ibx_listener *listener)
{
    return listener->taken;
}

/* Another server may have the path by now, because somebody has removed the socket, or a folder of
 * the path has been replaced. As long as this socket is open no other file gets its number. */
static void remove_socket(const struct ibx_listener *listener)
{
    struct stat st;
    if (listener->path[0] && listener->owner == getpid() && !lstat(listener->path, &st) &&
        st.st_dev == listener->dev && st.st_ino == listener->ino)
        unlink(listener->path);
}

void ibx_listener_close(struct ibx_listener *listener)
{
    if (!listener)
        return;
    ibx_pool_destroy(listener->pool);
    remove_socket(listener);
    if (listener->fd >= 0)
        close(listener->fd);
    if (listener->handed >= 0)
        close(listener->handed);
    ibx_keys_release(listener->keys);
    ibx_domain_release(listener->options.domain);
    free(listener);
}
