/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Which provider carries a connection. The client tries those of options.provider, or all in the
 * order of providers.c, until both sides have set one up (handshake/handshake.c); shm only if the
 * server is on its host. The server answers a try by its own options.provider. Each side keeps the
 * reasons against the others for ibx_conn_path().
 */
#include "transport/core/conn.h"

#include "common/fork_lock.h"
#include "common/log.h"

#include <errno.h>
#include <string.h>

#define PEERS_NOTED 16u

/* The item of a comma-separated list, or NULL; its length is `*n`. */
static const char *list_item(const char *list, unsigned index, size_t *n)
{
    for (;; list++) {
        *n = strcspn(list, ",");
        if (!index--)
            return *n ? list : NULL;
        list += *n;
        if (!*list)
            return NULL;
    }
}

int ibx_path_next(struct ibx_conn *conn, unsigned *index, char name[16])
{
    bool any = !strcmp(conn->options.provider, "auto");
    for (;;) {
        size_t n = 15;
        const char *item =
            any ? ibx_provider_name(*index) : list_item(conn->options.provider, *index, &n);
        if (!item)
            return -ENOENT;
        ++*index;
        snprintf(name, 16, "%.*s", (int)n, item);
        if (strcmp(name, "shm") || conn->same_host)
            return 0;
        ibx_path_refused(conn, name, -EXDEV, "the server is on another host");
    }
}

bool ibx_path_allowed(const struct ibx_options *options, const char *name)
{
    size_t n;
    const char *item;
    if (!strcmp(options->provider, "auto"))
        return true;
    for (unsigned i = 0; (item = list_item(options->provider, i, &n)); i++) {
        if (n == strlen(name) && !memcmp(item, name, n))
            return true;
    }
    return false;
}

int ibx_path_open(struct ibx_conn *conn, const char *name, struct ibx_error *err)
{
    conn->provider = ibx_provider_find(name);
    if (!conn->provider)
        return ibx_error_set(err, -ENOSYS, "%.15s is not in this build", name);
    void *endpoint = NULL;
    int rc = conn->provider->open(&conn->link, &endpoint, err);
    conn->endpoint = rc ? NULL : endpoint;
    return rc;
}

void ibx_path_close(struct ibx_conn *conn)
{
    if (conn->endpoint)
        conn->provider->close(conn->endpoint);
    conn->endpoint = NULL;
}

static struct ibx_fork_lock lock = IBX_FORK_LOCK; /* what was said and seen last */

/* Not twice in a row: a program may make many connections to one server. */
static void warn_once(const char *text)
{
    static char last[512];
    ibx_fork_lock_take(&lock);
    bool again = !strncmp(text, last, sizeof(last) - 1);
    snprintf(last, sizeof(last), "%s", text);
    ibx_fork_lock_release(&lock);
    if (!again)
        ibx_log(IBX_LOG_WARN, "%s", text);
}

/* Whether somebody may have prevented shared memory on purpose: it is not safe to use, or another
 * user answers at its socket or denies access. The client continues over a path that others may
 * reach, which may be what that user wants. */
static bool suspicious(const struct ibx_conn *conn, const char *name, int code)
{
    return conn->role == IBX_ROLE_CLIENT && !strcmp(name, "shm") &&
           (code == -EACCES || code == -EPERM || code == -ENOTSOCK || code == -ETIMEDOUT);
}

void ibx_path_refused(struct ibx_conn *conn, const char *name, int code, const char *reason)
{
    struct ibx_path *path = &conn->path;
    char text[512];
    if (path->refused_count == sizeof(path->refused) / sizeof(path->refused[0]))
        return;
    unsigned i = path->refused_count++;
    snprintf(path->refused[i].provider, sizeof(path->refused[i].provider), "%s", name);
    snprintf(path->refused[i].reason, sizeof(path->refused[i].reason), "%.255s", reason);
    snprintf(text, sizeof(text), "%s with %s refused: %.255s", name, path->peer, reason);
    if (suspicious(conn, name, code))
        warn_once(text);
    else
        ibx_log(IBX_LOG_INFO, "%s", text);
}

/* What protects payloads. */
enum protection { IN_PLAIN, IN_SHARED_MEMORY, ENCRYPTED };

static enum protection protection_of(const struct ibx_path *path)
{
    return path->encrypted                  ? ENCRYPTED
           : !strcmp(path->provider, "shm") ? IN_SHARED_MEMORY
                                            : IN_PLAIN;
}

/* Returns what protected the payloads to this server the last time, and notes `now` for the next
 * time. With more than PEERS_NOTED servers, the one that was noted first is forgotten. */
static enum protection last_time(const char *peer, enum protection now)
{
    static struct {
        char peer[sizeof(((struct ibx_path *)NULL)->peer)];
        enum protection protection;
    } noted[PEERS_NOTED];
    static unsigned next;
    enum protection before = IN_PLAIN;
    unsigned i = 0;
    if (!strchr(peer, ':')) /* a unix socket: all have the same name here */
        return IN_PLAIN;
    ibx_fork_lock_take(&lock);
    while (i < PEERS_NOTED && strcmp(noted[i].peer, peer) != 0)
        i++;
    if (i < PEERS_NOTED) {
        before = noted[i].protection;
    } else {
        i = next++ % PEERS_NOTED;
        snprintf(noted[i].peer, sizeof(noted[i].peer), "%s", peer);
    }
    noted[i].protection = now;
    ibx_fork_lock_release(&lock);
    return before;
}

void ibx_path_warn(const struct ibx_conn *conn)
{
    const struct ibx_path *path = &conn->path;
    const bool off = conn->options.encryption == IBX_ENCRYPTION_OFF;
    char text[512] = "";
    if (conn->role != IBX_ROLE_CLIENT)
        return;
    const enum protection now = protection_of(path), before = last_time(path->peer, now);
    if (now != IN_PLAIN)
        return;
    if (conn->keyed && path->remote && !off)
        snprintf(text, sizeof(text),
                 "payloads to %s are not encrypted: %s%s; set encryption : off to accept this, or "
                 "required to refuse it",
                 path->peer, conn->encrypt ? path->provider : "the server has encryption : off",
                 conn->encrypt ? " cannot encrypt" : "");
    else if (before == ENCRYPTED && !off)
        snprintf(text, sizeof(text),
                 "payloads to %s are not encrypted, and the last time they were: set encryption : "
                 "off to accept this, or required to refuse it",
                 path->peer);
    else if (before == IN_SHARED_MEMORY && ibx_path_allowed(&conn->options, "shm"))
        snprintf(text, sizeof(text),
                 "payloads to %s go by %s and are not encrypted, and the last time they were in "
                 "shared memory",
                 path->peer, path->provider);
    if (text[0])
        warn_once(text);
}

int ibx_path_none(const struct ibx_conn *conn, struct ibx_error *err)
{
    char list[IBX_ERROR_MAX] = "";
    for (unsigned i = 0; i < conn->path.refused_count; i++) {
        size_t n = strlen(list);
        snprintf(list + n, sizeof(list) - n, "%s%s: %s", i ? "; " : "",
                 conn->path.refused[i].provider, conn->path.refused[i].reason);
    }
    return ibx_error_set(err, -ENOTSUP, "no path to %s: %.600s", conn->path.peer,
                         list[0] ? list : "the client named no provider");
}
