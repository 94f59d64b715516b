/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How a client reaches a listener's socket, and the parts that listen.c shares. */
#include "transport/handshake/handshake.h"

#include "common/address.h"
#include "common/clock.h"
#include "common/descriptor.h"
#include "common/unix_connect.h"
#include "transport/core/segments.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define AT_ONCE    8u   /* addresses of one name that are tried at the same time */
#define STAGGER_MS 100u /* between two, at most; less where there is less time (RFC 8305) */

#define UNREACHABLE "; correct the URI, or look for a firewall or a route in the way"

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

/* What became of a connection: without descriptors or memory here, nobody was asked. */
static const char *outcome(int rc)
{
    return rc == -EMFILE || rc == -ENFILE || rc == -ENOMEM || rc == -ENOBUFS
               ? "no socket can be made here for a server"
               : "no server answers";
}

/* Whether this is an address to listen at, by which a client reaches its own host. */
static bool names_own_host(const struct ibx_uri *uri)
{
    return !uri->path[0] && (!strcmp(uri->host, "0.0.0.0") || !strcmp(uri->host, "::"));
}

/* "; " and what to do about this error of connect(2), or "". */
static const char *remedy(const struct ibx_uri *uri, int rc)
{
    switch (rc) {
    case -ECONNREFUSED:
    case -ENOENT: /* of a unix socket */
        return names_own_host(uri)
                   ? "; for a client this is its own host: start the server here, or "
                     "write the name of the server's host"
                   : "; start the server there, or correct the URI";
    case -ETIMEDOUT: /* of a unix socket: see "its queue stayed full" */
        return uri->path[0] ? "" : UNREACHABLE;
    case -EHOSTUNREACH:
    case -ENETUNREACH:
        return UNREACHABLE;
    case -EADDRNOTAVAIL:
        return "; give an address of a kind that this host has one of, too (look at `ip address`), "
               "or let connections end: all its local ports may be in use";
    case -EACCES:
    case -EPERM:
        return uri->path[0] ? "; run this as a user who may write it"
                            : "; look for a rule that forbids it: of a firewall, a route, or a "
                              "policy as SELinux's";
    case -EINVAL:
        return IBX_HANDSHAKE_ONE_HOST;
    default:
        return "";
    }
}

int ibx_handshake_unix_socket(const struct ibx_uri *uri, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path, uri->path, sizeof(address->sun_path));
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* Connects to all addresses of a name, each a little after the one before, or at once if that
 * failed. So an address that leads nowhere costs a moment and not a timeout. The first address that
 * answers is taken. */
struct race {
    const struct addrinfo *next; /* to be tried */
    uint64_t next_at;
    struct pollfd under_way[AT_ONCE];
    unsigned count;
    int rc; /* of the failure that tells most; of several, the last */
};

static int connected(int fd)
{
    int error = 0;
    socklen_t length = sizeof(error);
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length))
        return -errno;
    return !error && ibx_address_meets_itself(fd) ? -ECONNREFUSED : -error;
}

/* How much an error tells. 3: a host has answered. 2: something kept it from answering. 1: no such
 * address can be reached from here, which is so with every name that has IPv6 addresses where there
 * is only IPv4. */
static int tells(int rc)
{
    switch (rc) {
    case -ECONNREFUSED:
        return 3;
    case -EADDRNOTAVAIL:
    case -EAFNOSUPPORT:
    case -EHOSTUNREACH:
    case -ENETUNREACH:
        return 1;
    default:
        return 2;
    }
}

static void race_note(struct race *race, int rc)
{
    if (tells(rc) >= tells(race->rc))
        race->rc = rc;
}

static void race_failed(struct race *race, int fd, int rc)
{
    if (fd >= 0)
        close(fd);
    race_note(race, rc);
    race->next_at = 0;
}

/* Begins to connect to an address. Returns the socket if it is connected already, otherwise -1. */
static int race_begin(struct race *race, const struct addrinfo *to, unsigned stagger_ms)
{
    int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0)
        ibx_segments_limit(fd, to->ai_addr);
    int rc = fd < 0 || connect(fd, to->ai_addr, to->ai_addrlen) ? -errno : connected(fd);
    if (!rc)
        return fd;
    if (rc == -EINPROGRESS)
        race->under_way[race->count++] = (struct pollfd){.fd = fd, .events = POLLOUT};
    else
        race_failed(race, fd, rc);
    if (rc == -EINPROGRESS)
        race->next_at = ibx_deadline_in_ms(stagger_ms);
    return -1;
}

/* Looks at the attempts under way, after poll(2). Returns the first connected socket, or -1. */
static int race_look(struct race *race)
{
    for (unsigned i = 0; i < race->count; i++) {
        const int fd = race->under_way[i].fd;
        if (!race->under_way[i].revents)
            continue;
        int rc = connected(fd);
        race->under_way[i--] = race->under_way[--race->count];
        if (!rc)
            return fd;
        race_failed(race, fd, rc);
    }
    return -1;
}

static int race_run(struct race *race, unsigned timeout_ms, bool (*ends)(void))
{
    const uint64_t deadline = ibx_deadline_in_ms(timeout_ms);
    const unsigned stagger_ms = timeout_ms / 2 < STAGGER_MS ? timeout_ms / 2 : STAGGER_MS;
    int fd = -1;
    while (fd < 0 && (race->next || race->count)) {
        const uint64_t now = ibx_now_ns();
        const bool room = race->next && race->count < AT_ONCE;
        if (now >= deadline && race->count) {
            race_note(race, -ETIMEDOUT);
            break;
        }
        if (room && (!race->count || now >= race->next_at)) {
            fd = race_begin(race, race->next, stagger_ms);
            race->next = race->next->ai_next;
            continue;
        }
        const uint64_t until = room && race->next_at < deadline ? race->next_at : deadline;
        const int n = ibx_handshake_poll(race->under_way, race->count, ends, until);
        if (n > 0)
            fd = race_look(race);
        if (n == -EINTR) {
            race->rc = n;
            break;
        }
    }
    while (race->count)
        close(race->under_way[--race->count].fd);
    return fd;
}

/* Connects to a unix socket. With a timeout of 0 it tries once: -EAGAIN when the queue is full. */
static int connect_unix(const struct ibx_uri *uri, unsigned timeout_ms, bool (*ends)(void), int *fd,
                        struct ibx_error *err)
{
    struct sockaddr_un address;
    uint64_t deadline = ibx_deadline_in_ms(timeout_ms);
    int s = ibx_handshake_unix_socket(uri, &address);
    if (s < 0)
        return ibx_error_set(err, -errno, "no socket: %s%s", strerror(errno), remedy(uri, -errno));
    int rc = connect(s, (struct sockaddr *)&address, sizeof(address)) ? -errno : 0;
    if (rc == -EAGAIN && timeout_ms)
        rc = ibx_unix_connect_in_turn(s, &address, sizeof(address), ends, deadline);
    if (rc) {
        close(s);
        /* Nobody listens, whether a socket is left there or not. */
        return ibx_error_set(err, rc == -ENOENT ? -ECONNREFUSED : rc,
                             "no server answers at socket %s: %s%s", uri->path,
                             rc == -ETIMEDOUT ? "its queue stayed full"
                             : rc == -EINTR   ? "this process was told to end"
                                              : strerror(-rc),
                             remedy(uri, rc));
    }
    *fd = ibx_descriptor_apart(s);
    return 0;
}

int ibx_handshake_connect(const struct ibx_uri *uri, const struct ibx_lookup *lookup,
                          unsigned timeout_ms, bool (*ends)(void), int *fd, unsigned *hosts,
                          struct ibx_error *err)
{
    if (hosts)
        *hosts = 1;
    if (uri->path[0])
        return connect_unix(uri, timeout_ms, ends, fd, err);
    struct addrinfo *list = NULL;
    const struct addrinfo *known = ibx_handshake_looked_up(lookup, uri);
    int rc = known ? 0 : ibx_handshake_resolve(uri, 0, &list, err);
    if (rc)
        return rc;
    if (hosts)
        *hosts = ibx_handshake_hosts(known ? known : list);
    struct race race = {.next = known ? known : list, .rc = -EADDRNOTAVAIL};
    const int connected_fd = race_run(&race, timeout_ms, ends);
    if (list)
        freeaddrinfo(list);
    rc = race.rc;
    if (connected_fd < 0)
        return ibx_error_set(err, rc, "%s at %s port %u: %s%s", outcome(rc), uri->host, uri->port,
                             rc == -ETIMEDOUT ? "no reply in time"
                             : rc == -EINTR   ? "this process was told to end"
                                              : strerror(-rc),
                             remedy(uri, rc));
    int one = 1;
    *fd = ibx_descriptor_apart(connected_fd);
    setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return 0;
}
