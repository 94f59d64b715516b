/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Page connections that are being made, each in a thread, because each takes several round
 * trips. */
#include "migrate/pages/pages.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOIN_BYTES 512 /* more than an encoded JOIN */
/* Bytes of padding over each connection. Over a long wire only what TCP, beginning with a window of
 * ten segments of 9000 bytes, carries in two round trips: there are not many more before the stop.
 */
#define PAD_BYTES (256u << 10)
#define PAD_MORE  (700u << 10)
#define PAD_LONG  (20 * IBX_NS_PER_MS)

struct connecting {
    struct ibx_page_connections *all;
    unsigned index;
    pthread_t thread;
    struct ibx_conn *conn; /* NULL: it failed */
    int rc;
    struct ibx_error err;
};

struct ibx_page_connections {
    struct ibx_options options;
    struct ibx_domain *domain; /* of all connections; NULL if there is only one */
    bool pads;                 /* each sends padding at once, if the wire is long */
    bool joins;                /* each sends `join` once it is made */
    struct ibx_migrate_join join;
    uint64_t began_ns;
    unsigned count, joined; /* threads started, and joined */
    struct connecting each[IBX_MIGRATE_LINKS_MAX];
    char uri[];
};

static int send_join(struct connecting *one)
{
    uint8_t bytes[JOIN_BYTES];
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_JOIN, .is.join = one->all->join};
    message.is.join.link = (uint16_t)one->index;
    const ssize_t length = ibx_migrate_encode(&message, bytes, sizeof(bytes));
    struct iovec iov = {bytes, (size_t)length};
    int rc = length < 0 ? (int)length : ibx_send(one->conn, &iov, 1, 0, 0);
    return rc ? ibx_error_set(&one->err, rc, "%s does not take JOIN: %s", one->all->uri,
                              strerror(-rc))
              : 0;
}

static void *connect_main(void *argument)
{
    struct connecting *one = argument;
    one->rc = ibx_connect(one->all->uri, &one->all->options, &one->conn, &one->err);
    if (!one->rc && one->all->joins)
        one->rc = send_join(one);
    /* Padding is sent as early as possible: it takes some round trips and must have arrived before
     * the VM stops. */
    const struct ibx_path *path = one->rc || !one->all->pads ? NULL : ibx_conn_path(one->conn);
    if (path && ibx_path_is_far(path))
        ibx_pad(one->conn, path->round_trip_ns < PAD_LONG ? PAD_MORE : PAD_BYTES);
    return NULL;
}

/* Which connections are to be made. */
struct wanted {
    const char *uri;
    const struct ibx_options *options;
    const struct ibx_migrate_join *join; /* NULL: JOIN is sent later */
    unsigned count;
    bool pads;
};

/* Starts a thread for each connection. */
static int begin(const struct wanted *wanted, struct ibx_page_connections **out,
                 struct ibx_error *err)
{
    const unsigned count = wanted->count;
    struct ibx_page_connections *c = calloc(1, sizeof(*c) + strlen(wanted->uri) + 1);
    if (!c)
        return ibx_error_set(err, -ENOMEM, "no memory for %u page connections", count);
    memcpy(c->uri, wanted->uri, strlen(wanted->uri));
    c->options = *wanted->options;
    c->pads = wanted->pads;
    c->joins = wanted->join != NULL;
    c->join = wanted->join ? *wanted->join : (struct ibx_migrate_join){.link = 0};
    snprintf(c->options.purpose, sizeof(c->options.purpose), IBX_MIGRATE_PURPOSE);
    c->began_ns = ibx_now_ns();
    /* A single connection needs no domain. Without one, threads of its own encrypt its bulk data
     * (transport/tcp/lane_thread.c), so that faults do not wait for that. */
    int rc = count > 1 ? ibx_domain_create(&c->domain, err) : 0;
    c->options.domain = c->domain;
    for (; !rc && c->count < count; c->count += !rc) {
        struct connecting *one = &c->each[c->count];
        one->all = c;
        one->index = c->count;
        rc = -pthread_create(&one->thread, NULL, connect_main, one);
        if (rc)
            ibx_error_set_task(err, rc, "no thread to make page connection %u", c->count);
    }
    if (rc)
        ibx_page_connections_drop(c);
    else
        *out = c;
    return rc;
}

int ibx_page_connections_begin(const char *uri, const struct ibx_options *options, unsigned count,
                               struct ibx_page_connections **out)
{
    const struct wanted wanted = {.uri = uri, .options = options, .count = count, .pads = true};
    return begin(&wanted, out, NULL);
}

/* Waits until all connections are made or have failed. 0 or the first failure. */
static int await_all(struct ibx_page_connections *c, struct ibx_error *err)
{
    int rc = 0;
    for (unsigned i = 0; i < c->count; i++) {
        struct connecting *one = &c->each[i];
        if (i >= c->joined)
            pthread_join(one->thread, NULL);
        if (!rc && one->rc) {
            rc = one->rc;
            *err = one->err;
            ibx_error_prefix(err, rc, "page connection %u", i);
        }
    }
    c->joined = c->count;
    return rc;
}

void ibx_page_connections_drop(struct ibx_page_connections *c)
{
    struct ibx_error silent = {0};
    if (!c)
        return;
    await_all(c, &silent);
    for (unsigned i = 0; i < c->count; i++)
        ibx_close(c->each[i].conn);
    ibx_domain_release(c->domain);
    free(c);
}

/* Whether connections that were begun early can be used: there are enough, none has failed, and the
 * other end will still wait for JOIN. */
static bool usable(struct ibx_page_connections *c, unsigned count)
{
    struct ibx_error err = {0};
    const uint64_t patience_ns = ibx_migrate_first_ms(&c->options) * IBX_NS_PER_MS / 2;
    if (await_all(c, &err)) {
        ibx_log(IBX_LOG_WARN, "%s; the page connections are made again", err.message);
        return false;
    }
    return c->count >= count && ibx_now_ns() - c->began_ns < patience_ns;
}

int ibx_page_connections_take(const struct ibx_page_server_config *config, struct ibx_conn **conns,
                              struct ibx_domain **domain, struct ibx_error *err)
{
    struct ibx_page_connections *c = config->begun;
    int rc = 0;
    if (c && !usable(c, config->links)) {
        ibx_page_connections_drop(c);
        c = NULL;
    }
    if (!c) {
        const struct wanted wanted = {.uri = config->uri,
                                      .options = config->options,
                                      .join = &config->join,
                                      .count = config->links,
                                      .pads = config->pads};
        rc = begin(&wanted, &c, err);
        if (rc)
            return rc;
    }
    rc = await_all(c, err);
    c->join = config->join;
    for (unsigned i = 0; !rc && !c->joins && i < config->links; i++)
        if ((rc = send_join(&c->each[i])))
            ibx_error_set(err, rc, "page connection %u: %s", i, c->each[i].err.message);
    for (unsigned i = 0; !rc && i < config->links; i++) {
        conns[i] = c->each[i].conn;
        c->each[i].conn = NULL;
    }
    if (!rc) {
        *domain = c->domain;
        c->domain = NULL;
    }
    ibx_page_connections_drop(c);
    return rc;
}
