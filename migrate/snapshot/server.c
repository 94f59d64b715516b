/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * One thread accepts, and one for each connection sends what the reader needs to know and then
 * keeps the connection going: on tcp and shm this processor takes part in READs, on RDMA it sleeps,
 * or answers a reader that has to ask for pages (message_reader.c).
 */
#include "migrate/snapshot/snapshot.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define CONNECTIONS_MAX 1024u
#define EVENTS_AT_ONCE  16
#define UNSENT_MAX      (256u << 10) /* for one socket; see docs/experiments.md */

struct client {
    struct client *next;
    struct ibx_snapshot_server *server;
    struct ibx_conn *conn;         /* NULL, under the lock: it is being closed */
    struct ibx_conn *establishing; /* under the lock: as long as ibx_establish() has it */
    pthread_t thread;
    bool over;           /* under the lock */
    struct ibx_mr **mrs; /* of each part, where registering pins; under server->pinning */
    struct ibx_peer peer;
    bool asked;                                      /* pages are sent by messages */
    struct ibx_snapshot_any asks[IBX_SNAPSHOT_ASKS]; /* a ring of ASKs not answered yet */
    unsigned ask_first, ask_count;
    uint32_t sent; /* bytes of the first ASK that are sent */
};

struct ibx_snapshot_server {
    struct ibx_snapshot_server_config config;
    struct ibx_options options;
    struct ibx_accept_thread *accepts;
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

/* Waits for the first message, OPEN or JOIN. */
static int take_first(struct client *client, struct ibx_snapshot_any *first, struct ibx_error *err)
{
    const unsigned first_ms = ibx_migrate_first_ms(&client->server->options);
    const uint64_t deadline = ibx_deadline_in_ms(first_ms);
    struct ibx_event event;
    while (!client->server->closing) {
        const int n = ibx_poll(client->conn, &event, 1);
        if (n < 0 || (n == 1 && event.type == IBX_EVENT_CLOSED))
            return ibx_error_set(err, -ECONNRESET, "it closed without a message");
        if (n == 1 && event.type == IBX_EVENT_MESSAGE) {
            int rc = ibx_snapshot_decode(event.data, event.length, first, err);
            if (!rc && first->type != IBX_SNAPSHOT_OPEN && first->type != IBX_SNAPSHOT_JOIN)
                rc = ibx_error_set(err, -EPROTO, "its first message is not OPEN");
            ibx_message_release(client->conn, &event);
            return rc;
        }
        if (ibx_now_ns() >= deadline)
            break;
        if (!n)
            ibx_wait(client->conn, ibx_ms_until(deadline));
    }
    return ibx_error_set(err, -ETIMEDOUT, "no message came within %u ms", first_ms);
}

static int tell(const struct client *client, const struct ibx_snapshot_any *message,
                uint64_t deadline, struct ibx_error *err)
{
    return ibx_snapshot_send_unless(client->conn, message, &client->server->closing, deadline, err);
}

/* Tells a reader of another version which one this is, by an OPEN, whose head all versions read
 * alike; the reader then reports both. What the reader sends may have other fields, and is ignored.
 */
static void tell_version(const struct client *client)
{
    const struct ibx_snapshot_any open = {.type = IBX_SNAPSHOT_OPEN};
    const uint64_t deadline = ibx_deadline_in_ms(ibx_migrate_first_ms(&client->server->options));
    struct ibx_event event;
    int n = tell(client, &open, deadline, NULL);
    while (n >= 0 && !client->server->closing && ibx_now_ns() < deadline) {
        n = ibx_poll(client->conn, &event, 1);
        if (n > 0 && event.type == IBX_EVENT_CLOSED)
            return;
        if (n > 0 && event.type == IBX_EVENT_MESSAGE)
            ibx_message_release(client->conn, &event);
        else if (!n)
            ibx_wait(client->conn, ibx_ms_until(deadline));
    }
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
        rc = tell(client, &message, deadline, err);
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
        rc = tell(client, &message, deadline, err);
    }
    free(bytes);
    return rc;
}

/* Sends the index, without pieces that have no page of the map: the reader knows that their hashes
 * are zeros. */
static int send_index(struct client *client, uint64_t deadline, struct ibx_error *err)
{
    const struct ibx_snapshot_server_config *c = &client->server->config;
    const size_t most = room(client->conn) / IBX_SNAPSHOT_HASH * IBX_SNAPSHOT_HASH;
    uint8_t *bytes = malloc(most);
    int rc = bytes ? 0 : ibx_error_set(err, -ENOMEM, "no memory for a part of the index");
    struct ibx_snapshot_any message = {.type = IBX_SNAPSHOT_INDEX};
    uint64_t piece = ibx_snapshot_piece_next(c->manifest, c->map, 0);
    message.bytes.bytes = bytes;
    while (!rc && piece < c->index->pieces) {
        size_t n = 0;
        for (; n < most && piece < c->index->pieces; n += IBX_SNAPSHOT_HASH) {
            memcpy(bytes + n, c->index->hashes + piece * IBX_SNAPSHOT_HASH, IBX_SNAPSHOT_HASH);
            piece = ibx_snapshot_piece_next(c->manifest, c->map, piece + 1);
        }
        message.bytes.length = n;
        rc = tell(client, &message, deadline, err);
        message.offset += (uint32_t)n;
    }
    free(bytes);
    return rc;
}

/* ------------------------------------------------------------ regions */

/* Finds the next part of a block to expose, from `*at` on, which is advanced; false: there is none.
 * If registering pins memory (not `free_of_cost`), pieces without data are left out. */
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

/* Registers a part, or shares the registration of another connection, which cannot end meanwhile,
 * because `pinning` is held. */
static int part_register(struct client *client, uint32_t part, const struct ibx_span *span,
                         struct ibx_mr **mr, struct ibx_error *err)
{
    struct ibx_snapshot_server *server = client->server;
    const struct ibx_mr *there = NULL;
    if (!client->mrs)
        return ibx_mr_register(client->conn, span, IBX_ACCESS_REMOTE_READ, mr, err);
    if (client->mrs[part]) {
        *mr = client->mrs[part];
        return 0;
    }
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

/* To be called before the connection is closed, which ends its registrations. */
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
    /* Pinning the parts before this one may have taken long. */
    const uint64_t own = ibx_deadline_in_ms(client->server->options.timeout_ms);
    deadline = own > deadline ? own : deadline;
    rc = ibx_mr_remote(mr, 0, (size_t)length, &message.is.region.remote);
    const ssize_t n = rc ? rc : ibx_migrate_encode(&message, bytes, sizeof(bytes));
    return n < 0 ? ibx_error_set(err, (int)n, "a region cannot be described")
                 : ibx_snapshot_send_bytes(client->conn, bytes, (size_t)n, &client->server->closing,
                                           deadline, err);
}

/* Whether the memory can be registered: kernels before 6.2 cannot register a read-only shared
 * mapping. */
static bool can_register(struct client *client)
{
    const struct ibx_page_map *map = client->server->config.map;
    uint64_t offset, length, at = 0;
    struct ibx_mr *mr;
    if (!client->server->config.read_only || !next_part(map, 0, false, &at, &offset, &length))
        return true;
    struct ibx_span span =
        ibx_span_host((char *)client->server->config.memory[0] + offset, (size_t)length);
    return part_register(client, 0, &span, &mr, NULL) != -EFAULT;
}

static int parts_prepare(struct client *client, uint32_t count, struct ibx_error *err)
{
    struct ibx_mr **mrs = calloc(count + 1, sizeof(struct ibx_mr *));
    if (!mrs)
        return ibx_error_set(err, -ENOMEM, "no memory for %u regions", count);
    pthread_mutex_lock(&client->server->pinning);
    client->mrs = mrs;
    pthread_mutex_unlock(&client->server->pinning);
    return 0;
}

static int send_regions(struct client *client, uint64_t deadline, struct ibx_error *err)
{
    const struct ibx_page_map *map = client->server->config.map;
    const bool free_of_cost = ibx_conn_caps(client->conn)->register_free;
    struct ibx_snapshot_any list = {.type = IBX_SNAPSHOT_LIST,
                                    .regions = count_parts(map, free_of_cost)};
    uint64_t offset, length;
    uint32_t part = 0;
    int rc = 0;
    memcpy(list.id, client->server->config.manifest->id, sizeof(list.id));
    if (!client->asked && (!free_of_cost || client->server->config.share))
        rc = parts_prepare(client, list.regions, err);
    if (!rc && !client->asked && !free_of_cost)
        client->asked = !can_register(client);
    list.asked = client->asked;
    list.regions = client->asked ? 0 : list.regions;
    if (!rc)
        rc = tell(client, &list, deadline, err);
    for (unsigned i = 0; !rc && !client->asked && i < map->block_count; i++)
        for (uint64_t at = 0; !rc && next_part(map, i, free_of_cost, &at, &offset, &length);)
            rc = send_region(client, part++, i, offset, length, deadline, err);
    return rc;
}

static int begin(struct client *client, bool whole, struct ibx_error *err)
{
    const struct ibx_snapshot_server_config *c = &client->server->config;
    const uint64_t index = c->index ? c->index->pieces * IBX_SNAPSHOT_HASH : 0;
    uint64_t deadline = ibx_deadline_in_ms(client->server->options.timeout_ms);
    int rc = 0;
    if (whole)
        deadline +=
            IBX_SNAPSHOT_SLOW_NS(client->server->manifest_length + c->map->pages / 8 + index);
    client->asked =
        client->server->touched && (c->share || !ibx_conn_caps(client->conn)->register_free);
    if (whole)
        rc = send_manifest(client, deadline, err);
    if (!rc && whole)
        rc = send_map(client, deadline, err);
    if (!rc && whole && c->index)
        rc = send_index(client, deadline, err);
    return rc ? rc : send_regions(client, deadline, err);
}

/* ------------------------------------------------------------ a connection */

/* Where the bytes of an ASK are in this process. NULL: no single block has them. */
static const uint8_t *asked_memory(const struct client *client, const struct ibx_snapshot_any *ask)
{
    const struct ibx_page_map *map = client->server->config.map;
    for (unsigned i = 0; i < map->block_count; i++) {
        const uint64_t first = map->blocks[i].first * IBX_SNAPSHOT_PAGE;
        const uint64_t size = map->blocks[i].pages * IBX_SNAPSHOT_PAGE;
        if (ask->at >= first && ask->at - first < size && ask->length <= size - (ask->at - first))
            return (const uint8_t *)client->server->config.memory[i] + (ask->at - first);
    }
    return NULL;
}

/* Queues an ASK. False: the reader must not send it. */
static bool take_ask(struct client *client, const struct ibx_event *event)
{
    struct ibx_snapshot_any ask;
    if (!client->asked || client->ask_count == IBX_SNAPSHOT_ASKS ||
        ibx_snapshot_decode(event->data, event->length, &ask, NULL) ||
        ask.type != IBX_SNAPSHOT_ASK || !asked_memory(client, &ask))
        return false;
    client->asks[(client->ask_first + client->ask_count++) % IBX_SNAPSHOT_ASKS] = ask;
    return true;
}

/* Answers ASKs in order, as far as there is credit. A page that is missing is fetched when its
 * bytes are copied. 0, or an error if the connection is lost. */
static int answer_asks(struct client *client)
{
    const size_t most = room(client->conn);
    int rc = 0;
    while (!rc && client->ask_count && !client->server->closing) {
        const struct ibx_snapshot_any *ask = &client->asks[client->ask_first];
        const size_t left = ask->length - client->sent, n = left < most ? left : most;
        struct ibx_snapshot_any pages = {
            .type = IBX_SNAPSHOT_PAGES, .number = ask->number, .offset = client->sent};
        uint8_t head[16];
        const ssize_t length = ibx_snapshot_encode(&pages, head, sizeof(head));
        const uint8_t *bytes = asked_memory(client, ask) + client->sent;
        struct iovec iov[] = {{head, (size_t)length}, {(void *)(uintptr_t)bytes, n}};
        rc = ibx_send(client->conn, iov, 2, 0, 0);
        client->sent += rc ? 0 : (uint32_t)n;
        if (rc || client->sent < ask->length)
            continue;
        client->sent = 0;
        client->ask_first = (client->ask_first + 1) % IBX_SNAPSHOT_ASKS;
        client->ask_count--;
        pthread_mutex_lock(&client->server->lock);
        client->server->stats.asks++;
        pthread_mutex_unlock(&client->server->lock);
    }
    return rc == -EAGAIN ? 0 : rc;
}

/* False: the connection has ended, or is to end. */
static bool take_event(struct client *client, const struct ibx_event *event)
{
    if (event->type != IBX_EVENT_MESSAGE)
        return event->type != IBX_EVENT_CLOSED;
    const bool good = take_ask(client, event);
    ibx_message_release(client->conn, event);
    if (!good)
        ibx_log(IBX_LOG_WARN, "%s sent a message that is not expected: it is closed",
                ibx_conn_path(client->conn)->peer);
    return good;
}

static void keep_going(struct client *client)
{
    struct ibx_event events[EVENTS_AT_ONCE];
    int n = 0;
    while (!client->server->closing && n >= 0) {
        while ((n = ibx_poll(client->conn, events, EVENTS_AT_ONCE)) > 0)
            for (int i = 0; i < n; i++)
                if (!take_event(client, &events[i]))
                    return;
        if (client->ask_count && answer_asks(client))
            return;
        if (!n)
            ibx_wait(client->conn, -1);
    }
}

static int establish(struct client *client, struct ibx_error *err)
{
    const int rc = ibx_establish(client->conn, err);
    pthread_mutex_lock(&client->server->lock);
    client->establishing = NULL;
    pthread_mutex_unlock(&client->server->lock);
    return rc;
}

static int serve(struct client *client, struct ibx_error *err)
{
    struct ibx_snapshot_server *server = client->server;
    struct ibx_snapshot_any first;
    int rc = establish(client, err);
    if (!rc)
        rc = ibx_channel_check_room(client->conn, err);
    if (!rc)
        rc = take_first(client, &first, err);
    if (rc == -EPROTONOSUPPORT)
        tell_version(client);
    if (rc)
        return rc;
    if (first.type == IBX_SNAPSHOT_JOIN)
        return ibx_snapshot_multicast_serve(&server->config, client->conn, &first,
                                            server->options.timeout_ms, &server->closing, err);
    rc = begin(client, first.whole, err);
    if (!rc)
        keep_going(client);
    return rc;
}

static void *client_main(void *argument)
{
    struct client *client = argument;
    struct ibx_snapshot_server *server = client->server;
    struct ibx_error err = {0};
    pthread_setname_np(pthread_self(), "ibx-snapshot");
    const int rc = serve(client, &err);
    if (rc && !server->closing)
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
    pthread_mutex_unlock(&server->lock);
    return NULL;
}

/* Joins the threads that are over, or all of them. A reader that has stopped while its connection
 * is set up would be waited for as long as its time-outs take. */
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
        if (client->establishing) /* cannot be woken yet */
            ibx_hang_up(client->establishing);
        else if (client->conn)
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

/* Whether this peer may have another connection: not if it has as many as are left, so that another
 * peer always finds some. The caller holds the lock. */
static bool may_come(const struct ibx_snapshot_server *server, const struct client *client)
{
    const unsigned most =
        server->config.connections_max ? server->config.connections_max : CONNECTIONS_MAX;
    unsigned own = 0;
    for (const struct client *c = server->clients; c; c = c->next)
        own += !c->over && ibx_peer_same(&c->peer, &client->peer);
    return server->stats.connections < most && own < most - server->stats.connections;
}

/* Counts the client if it may come. */
static bool add(struct ibx_snapshot_server *server, struct client *client)
{
    pthread_mutex_lock(&server->lock);
    const bool may = may_come(server, client);
    if (may) {
        client->next = server->clients;
        server->clients = client;
        server->stats.connections++;
    }
    pthread_mutex_unlock(&server->lock);
    return may;
}

/* Takes the latest client back, which has no thread. */
static void remove_first(struct ibx_snapshot_server *server)
{
    pthread_mutex_lock(&server->lock);
    server->clients = server->clients->next;
    server->stats.connections--;
    pthread_mutex_unlock(&server->lock);
}

/* Why the connection cannot have a thread, which closes it; or NULL. Called by one thread. */
static const char *begin_client(struct ibx_snapshot_server *server, struct ibx_conn *conn)
{
    struct client *client = calloc(1, sizeof(*client));
    if (!client)
        return "there is no memory for it";
    *client = (struct client){.server = server, .conn = conn, .establishing = conn};
    ibx_peer_of(conn, &client->peer);
    const bool added = add(server, client);
    if (added && !ibx_thread_create(&client->thread, client_main, client))
        return NULL;
    if (added)
        remove_first(server);
    free(client);
    return added ? "there is no thread for it: " IBX_ERROR_RAISE_TASKS
                 : "too many connections are open, from there or in all";
}

static void admit(void *context, struct ibx_conn *conn)
{
    struct ibx_snapshot_server *server = context;
    reap(server, false);
    const char *why = begin_client(server, conn);
    if (!why)
        return;
    pthread_mutex_lock(&server->lock);
    const unsigned all = server->stats.connections;
    pthread_mutex_unlock(&server->lock);
    ibx_log(IBX_LOG_WARN, "a connection from %s was turned away: %s (%u are open)",
            ibx_conn_path(conn)->peer, why, all);
    ibx_close(conn);
}

/* ------------------------------------------------------------ opening, closing */

static void release(struct ibx_snapshot_server *server)
{
    ibx_accept_thread_close(server->accepts);
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
    server->options.unsent_max = UNSENT_MAX;
    server->touched = config->touched;
    /* With `touched`, shm readers must not read by process_vm_readv(2): the kernel would wait in
     * this process's memory for a missing page, and if this process ended meanwhile, nobody would
     * fill the page, and the reader would get zeros. */
    server->options.shm_not_direct = &server->touched;
    snprintf(server->options.purpose, sizeof(server->options.purpose), IBX_SNAPSHOT_PURPOSE);
    pthread_mutex_init(&server->lock, NULL);
    pthread_mutex_init(&server->pinning, NULL);
    int rc = ibx_snapshot_manifest_write(config->manifest, &server->manifest,
                                         &server->manifest_length, err);
    if (!rc)
        rc = ibx_domain_create(&server->domain, err);
    server->options.domain = server->domain;
    if (!rc)
        rc = ibx_accept_thread_open(config->uri, &server->options, admit, server, &server->accepts,
                                    err);
    if (rc)
        release(server);
    else
        *out = server;
    return rc;
}

const char *ibx_snapshot_server_uri(const struct ibx_snapshot_server *server)
{
    return ibx_accept_thread_uri(server->accepts);
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
    ibx_accept_thread_end(server->accepts);
    server->closing = true;
    reap(server, true);
    release(server);
}
