/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * One thread accepts, and one for each connection sends what the reader needs to know and then
 * keeps the connection going: on tcp and shm this processor takes part in READs, on RDMA it sleeps.
 */
#include "migrate/snapshot/snapshot.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define CONNECTIONS_MAX 1024u
#define EVENTS_AT_ONCE  16

struct client {
    struct client *next;
    struct ibx_snapshot_server *server;
    struct ibx_conn *conn; /* NULL, under the lock: it is being closed */
    pthread_t thread;
    bool over;           /* under the lock */
    struct ibx_mr **mrs; /* of each part, where registering pins; under server->pinning */
    char name[IBX_NAME_MAX + 1], address[IBX_ADDRESS_MAX];
};

struct ibx_snapshot_server {
    struct ibx_snapshot_server_config config;
    struct ibx_options options;
    struct ibx_listener *listener;
    pthread_t thread;
    int stop_fd;
    char *manifest;
    size_t manifest_length;
    _Atomic bool touched, closing;
    pthread_mutex_t lock; /* of what follows */
    struct client *clients;
    struct ibx_snapshot_server_stats stats;
    /* Readers may all reach the same memory, so it is pinned once for all of them. */
    struct ibx_domain *domain;
    pthread_mutex_t pinning; /* taken before the lock */
};

/* ------------------------------------------------------------ what a reader is told */

static int take_open(struct client *client, bool *whole, struct ibx_error *err)
{
    const unsigned timeout_ms = client->server->options.timeout_ms;
    const uint64_t deadline = ibx_deadline_in_ms(timeout_ms);
    struct ibx_snapshot_any message;
    struct ibx_event event;
    while (!client->server->closing && ibx_now_ns() < deadline) {
        const int n = ibx_poll(client->conn, &event, 1);
        if (n < 0 || (n == 1 && event.type == IBX_EVENT_CLOSED))
            return ibx_error_set(err, -ECONNRESET, "it closed without a message");
        if (n == 1 && event.type == IBX_EVENT_MESSAGE) {
            int rc = ibx_snapshot_decode(event.data, event.length, &message, err);
            if (!rc && message.type != IBX_SNAPSHOT_OPEN)
                rc = ibx_error_set(err, -EPROTO, "its first message is not OPEN");
            *whole = message.whole;
            ibx_message_release(client->conn, &event);
            return rc;
        }
        if (!n)
            ibx_wait(client->conn, ibx_ms_until(deadline));
    }
    return ibx_error_set(err, -ETIMEDOUT, "no message came within %u ms", timeout_ms);
}

static size_t room(const struct ibx_conn *conn)
{
    const size_t max = ibx_conn_caps(conn)->message_max;
    return (max < IBX_MIGRATE_MESSAGE ? max : IBX_MIGRATE_MESSAGE) - 16;
}

static int send_manifest(struct client *client, uint64_t deadline, struct ibx_error *err)
{
    const struct ibx_snapshot_server *server = client->server;
    const size_t most = room(client->conn);
    int rc = 0;
    for (size_t at = 0, n; !rc && at < server->manifest_length; at += n) {
        n = server->manifest_length - at < most ? server->manifest_length - at : most;
        struct ibx_snapshot_any message = {.type = IBX_SNAPSHOT_MANIFEST,
                                           .length = (uint32_t)server->manifest_length,
                                           .offset = (uint32_t)at};
        message.bytes.bytes = (const uint8_t *)server->manifest + at;
        message.bytes.length = n;
        rc = ibx_snapshot_send(client->conn, &message, deadline, err);
    }
    return rc;
}

static int send_map(struct client *client, uint64_t deadline, struct ibx_error *err)
{
    const size_t most = room(client->conn);
    uint8_t *bytes = malloc(most);
    uint64_t from = 0;
    size_t n = 0;
    int rc = bytes ? 0 : ibx_error_set(err, -ENOMEM, "no memory for the page map");
    while (!rc && (n = ibx_page_map_encode(client->server->config.map, &from, bytes, most))) {
        struct ibx_snapshot_any message = {.type = IBX_SNAPSHOT_MAP};
        message.bytes.bytes = bytes;
        message.bytes.length = n;
        rc = ibx_snapshot_send(client->conn, &message, deadline, err);
    }
    free(bytes);
    return rc;
}

/* ------------------------------------------------------------ regions */

/* A part of a block that is exposed: the next one from `*at` on; false behind the last. Where
 * registering pins memory, pieces without data are left out. */
static bool next_part(const struct ibx_page_map *map, unsigned block, bool free_of_cost,
                      uint64_t *at, uint64_t *offset, uint64_t *length)
{
    const uint64_t first = map->blocks[block].first, pages = map->blocks[block].pages;
    const uint64_t piece = IBX_EXPORT_PIECE / IBX_SNAPSHOT_PAGE;
    const uint64_t stretch = IBX_EXPORT_STRETCH / IBX_SNAPSHOT_PAGE;
    uint64_t from = *at, to;
    if (free_of_cost) {
        *at = pages;
        *offset = 0;
        *length = pages * IBX_SNAPSHOT_PAGE;
        return from < pages;
    }
    from = ibx_guest_bits_next(map->bits, first + from, first + pages, true) - first;
    if (from >= pages)
        return false;
    from -= from % piece;
    for (to = from; to < pages && to - from < stretch; to += piece) {
        const uint64_t end = to + piece < pages ? to + piece : pages;
        if (ibx_guest_bits_next(map->bits, first + to, first + end, true) == first + end)
            break;
    }
    to = to < pages ? to : pages;
    *at = to;
    *offset = from * IBX_SNAPSHOT_PAGE;
    *length = (to - from) * IBX_SNAPSHOT_PAGE;
    return true;
}

static uint32_t count_parts(const struct ibx_page_map *map, bool free_of_cost)
{
    uint64_t offset, length;
    uint32_t count = 0;
    for (unsigned i = 0; i < map->block_count; i++)
        for (uint64_t at = 0; next_part(map, i, free_of_cost, &at, &offset, &length);)
            count++;
    return count;
}

/* What another connection has registered is shared. That one cannot end meanwhile. */
static int part_register(struct client *client, uint32_t part, const struct ibx_span *span,
                         struct ibx_mr **mr, struct ibx_error *err)
{
    struct ibx_snapshot_server *server = client->server;
    const struct ibx_mr *there = NULL;
    if (!client->mrs)
        return ibx_mr_register(client->conn, span, IBX_ACCESS_REMOTE_READ, mr, err);
    pthread_mutex_lock(&server->pinning);
    pthread_mutex_lock(&server->lock);
    for (const struct client *c = server->clients; c && !there; c = c->next)
        there = c->mrs && c != client ? c->mrs[part] : NULL;
    pthread_mutex_unlock(&server->lock);
    const int rc = there ? ibx_mr_share(client->conn, there, mr, err)
                         : ibx_mr_register(client->conn, span, IBX_ACCESS_REMOTE_READ, mr, err);
    if (!rc)
        client->mrs[part] = *mr;
    pthread_mutex_lock(&server->lock);
    server->stats.pinned += !rc && !there;
    pthread_mutex_unlock(&server->lock);
    pthread_mutex_unlock(&server->pinning);
    return rc;
}

/* Before its connection is closed, and its registrations with it. */
static void parts_forget(struct client *client)
{
    pthread_mutex_lock(&client->server->pinning);
    free(client->mrs);
    client->mrs = NULL;
    pthread_mutex_unlock(&client->server->pinning);
}

static int send_region(struct client *client, uint32_t part, unsigned block, uint64_t offset,
                       uint64_t length, uint64_t deadline, struct ibx_error *err)
{
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_REGION};
    struct ibx_span span =
        ibx_span_host((char *)client->server->config.memory[block] + offset, (size_t)length);
    uint8_t bytes[256];
    struct ibx_mr *mr;
    int rc = part_register(client, part, &span, &mr, err);
    if (rc)
        return rc;
    message.is.region.block = (uint16_t)block;
    message.is.region.offset = offset;
    message.is.region.length = length;
    rc = ibx_mr_remote(mr, 0, (size_t)length, &message.is.region.remote);
    const ssize_t n = rc ? rc : ibx_migrate_encode(&message, bytes, sizeof(bytes));
    return n < 0 ? ibx_error_set(err, (int)n, "a region cannot be described")
                 : ibx_snapshot_send_bytes(client->conn, bytes, (size_t)n, deadline, err);
}

static int send_regions(struct client *client, uint64_t deadline, struct ibx_error *err)
{
    const struct ibx_page_map *map = client->server->config.map;
    const bool free_of_cost = ibx_conn_caps(client->conn)->register_free;
    struct ibx_snapshot_any list = {.type = IBX_SNAPSHOT_LIST,
                                    .regions = count_parts(map, free_of_cost)};
    uint64_t offset, length;
    uint32_t part = 0;
    memcpy(list.id, client->server->config.manifest->id, sizeof(list.id));
    if (!free_of_cost || client->server->config.share) {
        struct ibx_mr **mrs = calloc(list.regions + 1, sizeof(struct ibx_mr *));
        if (!mrs)
            return ibx_error_set(err, -ENOMEM, "no memory for %u regions", list.regions);
        pthread_mutex_lock(&client->server->pinning);
        client->mrs = mrs;
        pthread_mutex_unlock(&client->server->pinning);
    }
    int rc = ibx_snapshot_send(client->conn, &list, deadline, err);
    for (unsigned i = 0; !rc && i < map->block_count; i++)
        for (uint64_t at = 0; !rc && next_part(map, i, free_of_cost, &at, &offset, &length);)
            rc = send_region(client, part++, i, offset, length, deadline, err);
    return rc;
}

static int refuse(struct client *client, uint64_t deadline, struct ibx_error *err)
{
    struct ibx_snapshot_any message = {.type = IBX_SNAPSHOT_REFUSED};
    snprintf(message.reason, sizeof(message.reason),
             "this cache has not all pages yet, and over %.15s it can serve only what is there: "
             "try again later, or connect over tcp or shm",
             ibx_conn_path(client->conn)->provider);
    int rc = ibx_snapshot_send(client->conn, &message, deadline, err);
    return rc ? rc : ibx_error_set(err, -EAGAIN, "%s", message.reason);
}

static int begin(struct client *client, struct ibx_error *err)
{
    bool whole = false;
    int rc = ibx_establish(client->conn, err);
    if (!rc)
        rc = take_open(client, &whole, err);
    if (rc)
        return rc;
    const uint64_t deadline = ibx_deadline_in_ms(client->server->options.timeout_ms);
    if (client->server->touched && !ibx_conn_caps(client->conn)->register_free)
        return refuse(client, deadline, err);
    if (whole)
        rc = send_manifest(client, deadline, err);
    if (!rc && whole)
        rc = send_map(client, deadline, err);
    return rc ? rc : send_regions(client, deadline, err);
}

/* ------------------------------------------------------------ a connection */

static void keep_going(struct client *client)
{
    struct ibx_event events[EVENTS_AT_ONCE];
    int n = 0;
    while (!client->server->closing && n >= 0) {
        while ((n = ibx_poll(client->conn, events, EVENTS_AT_ONCE)) > 0)
            for (int i = 0; i < n; i++) {
                if (events[i].type == IBX_EVENT_CLOSED)
                    return;
                if (events[i].type != IBX_EVENT_MESSAGE)
                    continue;
                ibx_message_release(client->conn, &events[i]);
                ibx_log(IBX_LOG_WARN, "%s sent a message where none is expected: it is closed",
                        ibx_conn_path(client->conn)->peer);
                return;
            }
        if (!n)
            ibx_wait(client->conn, -1);
    }
}

static void *client_main(void *argument)
{
    struct client *client = argument;
    struct ibx_snapshot_server *server = client->server;
    struct ibx_error err = {0};
    pthread_setname_np(pthread_self(), "ibx-snapshot");
    const int rc = begin(client, &err);
    if (!rc)
        keep_going(client);
    else if (!server->closing)
        ibx_log(IBX_LOG_WARN, "a connection from %s was turned away: %s",
                ibx_conn_path(client->conn)->peer, err.message);
    parts_forget(client);
    pthread_mutex_lock(&server->lock);
    struct ibx_conn *conn = client->conn;
    client->conn = NULL;
    pthread_mutex_unlock(&server->lock);
    ibx_close(conn);
    pthread_mutex_lock(&server->lock);
    client->over = true;
    server->stats.connections--;
    server->stats.served += !rc;
    server->stats.turned_away += rc != 0;
    pthread_mutex_unlock(&server->lock);
    return NULL;
}

/* Joins the threads that are over, or all of them. */
static void reap(struct ibx_snapshot_server *server, bool all)
{
    struct client *gone = NULL;
    pthread_mutex_lock(&server->lock);
    for (struct client **link = &server->clients; *link;) {
        struct client *client = *link;
        if (!client->over && !all) {
            link = &client->next;
            continue;
        }
        *link = client->next;
        client->next = gone;
        gone = client;
        if (client->conn)
            ibx_wake(client->conn);
    }
    pthread_mutex_unlock(&server->lock);
    while (gone) {
        struct client *client = gone;
        gone = client->next;
        pthread_join(client->thread, NULL);
        free(client);
    }
}

/* Keys without a name are one for all, so there it is the host that counts. Whoever holds as many
 * connections as are left gets no more: one of another name always finds some. Under the lock. */
static bool may_come(const struct ibx_snapshot_server *server, const struct client *client)
{
    const unsigned most =
        server->config.connections_max ? server->config.connections_max : CONNECTIONS_MAX;
    unsigned own = 0;
    for (const struct client *c = server->clients; c; c = c->next)
        own += !c->over && !strcmp(c->name, client->name) &&
               (c->name[0] || !strcmp(c->address, client->address));
    return server->stats.connections < most && own < most - server->stats.connections;
}

static void admit(struct ibx_snapshot_server *server, struct ibx_conn *conn)
{
    struct client *client = calloc(1, sizeof(*client));
    bool begun = false;
    unsigned all;
    reap(server, false);
    if (client) {
        *client = (struct client){.server = server, .conn = conn};
        snprintf(client->name, sizeof(client->name), "%s", ibx_conn_path(conn)->name);
        ibx_acceptor_address(conn, client->address);
    }
    pthread_mutex_lock(&server->lock);
    if (client && may_come(server, client)) {
        client->next = server->clients;
        begun = !pthread_create(&client->thread, NULL, client_main, client);
        if (begun) {
            server->clients = client;
            server->stats.connections++;
        }
    }
    all = server->stats.connections;
    pthread_mutex_unlock(&server->lock);
    if (begun)
        return;
    ibx_log(IBX_LOG_WARN,
            "a connection from %s was turned away: no memory or thread for it, or it has too many "
            "of them (all have %u)",
            ibx_conn_path(conn)->peer, all);
    ibx_close(conn);
    free(client);
}

static void *accept_main(void *argument)
{
    struct ibx_snapshot_server *server = argument;
    struct pollfd fds[2] = {{.fd = ibx_listener_fd(server->listener), .events = POLLIN},
                            {.fd = server->stop_fd, .events = POLLIN}};
    for (;;) {
        struct ibx_error err = {0};
        struct ibx_conn *conn;
        poll(fds, 2, -1);
        if (fds[1].revents)
            return NULL;
        const int rc = ibx_accept(server->listener, &conn, &err);
        if (!rc) {
            admit(server, conn);
        } else if (rc != -EAGAIN) {
            ibx_log(IBX_LOG_ERROR, "%s", err.message);
            poll(&fds[1], 1, 100);
        }
    }
}

/* ------------------------------------------------------------ opening, closing */

static void release(struct ibx_snapshot_server *server)
{
    ibx_listener_close(server->listener);
    if (server->stop_fd >= 0)
        close(server->stop_fd);
    pthread_mutex_destroy(&server->lock);
    pthread_mutex_destroy(&server->pinning);
    ibx_domain_release(server->domain);
    free(server->manifest);
    free(server);
}

int ibx_snapshot_server_open(const struct ibx_snapshot_server_config *config,
                             struct ibx_snapshot_server **out, struct ibx_error *err)
{
    struct ibx_snapshot_server *server = calloc(1, sizeof(*server));
    if (!server)
        return ibx_error_set(err, -ENOMEM, "no memory for a server");
    server->config = *config;
    server->options = *config->options;
    server->options.message = IBX_MIGRATE_MESSAGE;
    server->touched = config->touched;
    snprintf(server->options.purpose, sizeof(server->options.purpose), IBX_SNAPSHOT_PURPOSE);
    pthread_mutex_init(&server->lock, NULL);
    pthread_mutex_init(&server->pinning, NULL);
    server->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = server->stop_fd < 0
                 ? ibx_error_set(err, -errno, "no event descriptor: %s", strerror(errno))
                 : ibx_snapshot_manifest_write(config->manifest, &server->manifest,
                                               &server->manifest_length, err);
    if (!rc)
        rc = ibx_domain_create(&server->domain, err);
    server->options.domain = server->domain;
    if (!rc)
        rc = ibx_listen(config->uri, &server->options, &server->listener, err);
    if (!rc && (rc = -pthread_create(&server->thread, NULL, accept_main, server)))
        ibx_error_set(err, rc, "no thread for the listener: %s", strerror(-rc));
    if (rc)
        release(server);
    else
        *out = server;
    return rc;
}

const char *ibx_snapshot_server_uri(const struct ibx_snapshot_server *server)
{
    return ibx_listener_uri(server->listener);
}

void ibx_snapshot_server_whole(struct ibx_snapshot_server *server)
{
    server->touched = false;
}

void ibx_snapshot_server_stats(struct ibx_snapshot_server *server,
                               struct ibx_snapshot_server_stats *stats)
{
    pthread_mutex_lock(&server->lock);
    *stats = server->stats;
    pthread_mutex_unlock(&server->lock);
}

void ibx_snapshot_server_close(struct ibx_snapshot_server *server)
{
    if (!server)
        return;
    eventfd_write(server->stop_fd, 1);
    pthread_join(server->thread, NULL);
    server->closing = true;
    reap(server, true);
    release(server);
}
