/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The source's side of page connections. What is to be exposed is one list that only grows. Each
 * connection's thread takes entries that no other has taken and registers them; then it goes
 * through the list, shares what others have registered, and sends a REGION for each entry.
 * Registering goes on while a REGION waits for credit.
 */
#include "migrate/pages/pages.h"
#include "migrate/pages/ram_view.h"

#include "common/state_machine.h"
#include "common/clock.h"
#include "common/thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define EVENTS_AT_ONCE 16
#define MESSAGE_BYTES  512 /* more than an encoded REGION */

/* Measured on 16 processors: three links reach 0.68 of the bandwidth of plain READs, five reach all
 * of it while the guest does not wait. For pages of 2 MiB, which have to be copied and hashed
 * before the guest can continue, seven are faster; more than seven take longer to connect than they
 * save. On few processors more links only wait for each other. */
static const struct {
    unsigned processors, links;
} links_by_processors[] = {{16, 7}, {8, 5}, {0, 3}};

/*
 * state machine: page server
 *   [*] -> OPEN -> CLOSING -> [*]
 *   OPEN -> FAILED -> CLOSING         a connection has ended
 */
enum server_state { SERVER_OPEN, SERVER_FAILED, SERVER_CLOSING };
static const struct ibx_state server_states[] = {
    [SERVER_OPEN] = {"open", IBX_TO(SERVER_FAILED) | IBX_TO(SERVER_CLOSING), IBX_STATE_INITIAL},
    [SERVER_FAILED] = {"failed", IBX_TO(SERVER_CLOSING), 0},
    [SERVER_CLOSING] = {"closing", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table server_table = IBX_STATE_TABLE("page server", server_states);

struct exposure {
    unsigned block;
    uint64_t offset, length;      /* bytes in the block */
    struct ibx_mr *_Atomic first; /* the registration by the link that took it; NULL: not yet */
};

struct link {
    struct ibx_page_server *server;
    struct ibx_conn *conn;
    pthread_t thread;
    bool started;
    unsigned index;
    struct ibx_mr **mrs; /* one an exposure; used by the link's thread only, as the next two */
    size_t registered;   /* the first so many exposures are registered or shared */
    size_t sent;
    bool pads;
    size_t announced;        /* a copy of `sent` for other threads; under the lock */
    _Atomic uint64_t cpu_ns; /* of the thread when its last REGION was sent */
};

struct mapping {
    uint8_t *memory;
    uint64_t size, piece, stretch; /* bytes */
    size_t first;                  /* its first piece in `exposed` */
};

struct ibx_page_server {
    struct link *links;
    unsigned link_count;
    struct ibx_ram_view *view;
    struct mapping *blocks;
    unsigned block_count;
    bool whole;       /* registration is free on all connections: blocks are exposed as wholes */
    atomic_bool pads; /* until ibx_page_server_quiet() */
    struct ibx_domain *domain; /* of all connections */
    struct exposure *exposures;
    _Atomic size_t asked; /* the first so many exposures are to be announced, and never change */
    _Atomic size_t taken; /* the first so many have been taken by a link, to register them */
    bool *exposed;        /* one for each piece; used by the caller's thread only */
    int event_fd;
    _Atomic unsigned state; /* enum server_state; moved under the lock */
    pthread_mutex_t lock;
    pthread_cond_t closes;
    struct ibx_error failure; /* the first; under the lock */
};

static void changed(struct ibx_page_server *server)
{
    uint64_t one = 1;
    ssize_t ignored = write(server->event_fd, &one, sizeof(one));
    (void)ignored; /* full: it is readable */
}

/* The one place that changes the state. The caller holds the lock. False: the table does not allow
 * the move. */
static bool move(struct ibx_page_server *server, enum server_state to)
{
    const bool allowed = ibx_state_allows(&server_table, server->state, to);
    if (allowed)
        server->state = to;
    return allowed;
}

/* ------------------------------------------------------- a connection's thread */

static void links_wake(const struct ibx_page_server *server)
{
    for (unsigned i = 0; i < server->link_count; i++)
        ibx_wake(server->links[i].conn);
}

static int link_register(struct link *link, size_t which, struct ibx_error *err)
{
    struct ibx_page_server *server = link->server;
    struct exposure *part = &server->exposures[which];
    struct ibx_span span =
        ibx_span_host(server->blocks[part->block].memory + part->offset, (size_t)part->length);
    int rc = ibx_mr_register(link->conn, &span, IBX_ACCESS_REMOTE_READ, &link->mrs[which], err);
    if (!rc) {
        part->first = link->mrs[which];
        links_wake(server);
    }
    return rc;
}

/* Shares the link's next exposure if another connection has registered it. */
static int link_share(struct link *link, struct ibx_error *err)
{
    const struct ibx_mr *first = link->server->exposures[link->registered].first;
    return first ? ibx_mr_share(link->conn, first, &link->mrs[link->registered], err) : 0;
}

/* Registers or shares one more of the first `asked` exposures. 1: nothing can be done now. */
static int link_register_next(struct link *link, size_t asked, struct ibx_error *err)
{
    struct ibx_page_server *server = link->server;
    const size_t before = link->registered;
    size_t which = server->taken;
    int rc = 0;
    bool took = false;
    while (which < asked && !took)
        took = atomic_compare_exchange_weak(&server->taken, &which, which + 1);
    if (took)
        rc = link_register(link, which, err);
    else if (before < asked && !link->mrs[before])
        rc = link_share(link, err);
    while (link->registered < asked && link->mrs[link->registered])
        link->registered++;
    return rc ? rc : !took && link->registered == before;
}

static int link_send(struct ibx_conn *conn, const struct ibx_migrate_any *message)
{
    uint8_t bytes[MESSAGE_BYTES];
    ssize_t length = ibx_migrate_encode(message, bytes, sizeof(bytes));
    if (length < 0)
        return (int)length;
    struct iovec iov = {bytes, (size_t)length};
    return ibx_send(conn, &iov, 1, 0, 0);
}

static int region_send(struct link *link)
{
    const struct exposure *part = &link->server->exposures[link->sent];
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_REGION};
    message.is.region.block = (uint16_t)part->block;
    message.is.region.offset = part->offset;
    message.is.region.length = part->length;
    int rc =
        ibx_mr_remote(link->mrs[link->sent], 0, (size_t)part->length, &message.is.region.remote);
    return rc ? rc : link_send(link->conn, &message);
}

/* Sends REGIONs as far as there is credit. link_events() reports the end of the connection with its
 * reason. */
static int link_announce(struct link *link, struct ibx_error *err)
{
    struct ibx_page_server *server = link->server;
    int rc = 0;
    size_t before = link->sent;
    while (link->sent < link->registered && !(rc = region_send(link)))
        link->sent++;
    if (link->sent != before) {
        link->cpu_ns = ibx_clock_ns(CLOCK_THREAD_CPUTIME_ID);
        pthread_mutex_lock(&server->lock);
        link->announced = link->sent;
        pthread_mutex_unlock(&server->lock);
        if (link->sent == server->asked)
            changed(server);
    }
    if (!rc || rc == -EAGAIN || rc == -ENOTCONN)
        return 0;
    return ibx_error_set(err, rc, "page connection %u: a region cannot be announced: %s",
                         link->index, strerror(-rc));
}

static int link_events(struct link *link, struct ibx_error *err)
{
    struct ibx_event events[EVENTS_AT_ONCE];
    int n, rc = 0;
    while (!rc && (n = ibx_poll(link->conn, events, EVENTS_AT_ONCE)) > 0)
        for (int i = 0; i < n; i++) {
            if (events[i].type == IBX_EVENT_CLOSED)
                rc = ibx_error_set(err, events[i].status, "page connection %u has ended: %s",
                                   link->index, ibx_conn_reason(link->conn));
            if (events[i].type != IBX_EVENT_MESSAGE)
                continue;
            ibx_message_release(link->conn, &events[i]);
            rc = ibx_error_set(err, -EPROTO,
                               "page connection %u: the destination sent a message, "
                               "which it may not",
                               link->index);
        }
    return rc;
}

static int link_step(struct link *link, struct ibx_error *err)
{
    struct ibx_page_server *server = link->server;
    if (link->pads && !server->pads) {
        link->pads = false;
        ibx_pad(link->conn, 0);
    }
    int rc = link_register_next(link, server->asked, err);
    const bool rests = rc > 0;
    if (rc == -ENOTCONN || rests)
        rc = 0; /* of -ENOTCONN, link_events() brings the reason */
    if (!rc)
        rc = link_announce(link, err);
    if (!rc)
        rc = link_events(link, err);
    if (!rc && rests && server->state != SERVER_CLOSING)
        ibx_wait(link->conn, -1);
    return rc;
}

static void link_failed(struct link *link, const struct ibx_error *why)
{
    struct ibx_page_server *server = link->server;
    pthread_mutex_lock(&server->lock);
    if (move(server, SERVER_FAILED))
        server->failure = *why;
    pthread_mutex_unlock(&server->lock);
    changed(server);
}

static void *link_main(void *arg)
{
    struct link *link = arg;
    struct ibx_page_server *server = link->server;
    struct ibx_error err = {0};
    pthread_setname_np(pthread_self(), "ibx-pages");
    /* The first of several connections carries faulted pages only. */
    if (!link->index && server->link_count > 1)
        ibx_thread_prompt();
    else if (link->index)
        ibx_thread_give_way();
    link->pads = server->pads;
    while (server->state != SERVER_CLOSING)
        if (link_step(link, &err)) {
            link_failed(link, &err);
            break;
        }
    /* The thread lives until close, so that its CPU time can be read. */
    pthread_mutex_lock(&server->lock);
    while (server->state != SERVER_CLOSING)
        ibx_thread_wait(&server->closes, &server->lock);
    pthread_mutex_unlock(&server->lock);
    return NULL;
}

/* --------------------------------------------------------------------- opening */

static int links_connect(struct ibx_page_server *server,
                         const struct ibx_page_server_config *config, struct ibx_error *err)
{
    struct ibx_conn *conns[IBX_MIGRATE_LINKS_MAX];
    int rc = ibx_page_connections_take(config, conns, &server->domain, err);
    if (rc)
        return rc;
    server->links = calloc(config->links, sizeof(*server->links));
    for (unsigned i = 0; !server->links && i < config->links; i++)
        ibx_close(conns[i]);
    if (!server->links)
        return ibx_error_set(err, -ENOMEM, "no memory for %u page connections", config->links);
    server->link_count = config->links;
    server->pads = config->pads;
    server->whole = true;
    for (unsigned i = 0; i < config->links; i++) {
        server->links[i].server = server;
        server->links[i].index = i;
        server->links[i].conn = conns[i];
        server->whole &= ibx_conn_caps(conns[i])->register_free;
    }
    return 0;
}

static void mapping_init(const struct ibx_page_server *server, const struct ibx_guest_block *block,
                         struct mapping *mapping)
{
    mapping->memory = ibx_ram_view_bytes(server->view, server->block_count, 0);
    mapping->size = block->size;
    mapping->piece = block->page_size > IBX_EXPORT_PIECE ? block->page_size : IBX_EXPORT_PIECE;
    mapping->stretch = mapping->piece > IBX_EXPORT_STRETCH ? mapping->piece : IBX_EXPORT_STRETCH;
}

static int blocks_map(struct ibx_page_server *server, const struct ibx_guest_ram *ram,
                      struct ibx_error *err)
{
    size_t pieces = 0;
    server->blocks = calloc(ram->count ? ram->count : 1, sizeof(*server->blocks));
    if (!server->blocks)
        return ibx_error_set(err, -ENOMEM, "no memory for %zu memory backends", ram->count);
    int rc = ibx_ram_view_open(ram, !server->whole, &server->view, err);
    if (rc)
        return rc;
    for (; server->block_count < ram->count; server->block_count++) {
        struct mapping *mapping = &server->blocks[server->block_count];
        mapping_init(server, &ram->blocks[server->block_count], mapping);
        mapping->first = pieces;
        pieces += (size_t)((mapping->size + mapping->piece - 1) / mapping->piece);
    }
    server->exposures = calloc(pieces, sizeof(*server->exposures));
    server->exposed = calloc(pieces, sizeof(*server->exposed));
    bool all = server->exposures && server->exposed;
    for (unsigned i = 0; i < server->link_count; i++) {
        server->links[i].mrs = calloc(pieces, sizeof(struct ibx_mr *));
        all = all && server->links[i].mrs;
    }
    return all ? 0 : ibx_error_set(err, -ENOMEM, "no memory for %zu regions", pieces);
}

static int threads_start(struct ibx_page_server *server, struct ibx_error *err)
{
    for (unsigned i = 0; i < server->link_count; i++) {
        struct link *link = &server->links[i];
        int rc = pthread_create(&link->thread, NULL, link_main, link);
        if (rc)
            return ibx_error_set_task(err, -rc, "no thread for page connection %u", i);
        link->started = true;
    }
    return 0;
}

unsigned ibx_page_links_default(void)
{
    const unsigned processors = ibx_thread_processors();
    unsigned i = 0;
    while (processors < links_by_processors[i].processors)
        i++;
    return links_by_processors[i].links;
}

static int config_check(const struct ibx_page_server_config *config, struct ibx_error *err)
{
    if (!config->links || config->links > IBX_MIGRATE_LINKS_MAX)
        return ibx_error_set(err, -EINVAL, "there cannot be %u page connections: use 1 to %u",
                             config->links, IBX_MIGRATE_LINKS_MAX);
    if (!config->ram->count || config->ram->count > IBX_GUEST_BLOCKS_MAX)
        return ibx_error_set(err, -EINVAL,
                             "%zu memory backends are too many or none: 1 to %u are possible",
                             config->ram->count, IBX_GUEST_BLOCKS_MAX);
    return 0;
}

int ibx_page_server_open(const struct ibx_page_server_config *config, struct ibx_page_server **out,
                         struct ibx_error *err)
{
    int rc = config_check(config, err);
    struct ibx_page_server *server = rc ? NULL : calloc(1, sizeof(*server));
    if (!server) {
        ibx_page_connections_drop(config->begun);
        return rc ? rc : ibx_error_set(err, -ENOMEM, "no memory for page connections");
    }
    pthread_mutex_init(&server->lock, NULL);
    pthread_cond_init(&server->closes, NULL);
    server->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    rc = server->event_fd < 0
             ? ibx_error_set(err, -errno, "no event descriptor: %s", strerror(errno))
             : 0;
    if (rc)
        ibx_page_connections_drop(config->begun);
    else
        rc = links_connect(server, config, err);
    if (!rc)
        rc = blocks_map(server, config->ram, err);
    if (!rc)
        rc = threads_start(server, err);
    if (rc) {
        ibx_page_server_close(server);
        return rc;
    }
    *out = server;
    return 0;
}

/* ----------------------------------------------------------------- what to expose */

static void exposure_add(struct ibx_page_server *server, size_t *count, unsigned block,
                         uint64_t offset, uint64_t length)
{
    struct exposure *part = &server->exposures[(*count)++];
    part->block = block;
    part->offset = offset;
    part->length = length;
}

static void block_expose(struct ibx_page_server *server, const struct ibx_page_map *map,
                         unsigned block, size_t *count)
{
    const struct mapping *mapping = &server->blocks[block];
    uint64_t first = map->blocks[block].first, page_size = map->blocks[block].page_size;
    if (server->whole) {
        if (!server->exposed[mapping->first])
            exposure_add(server, count, block, 0, mapping->size);
        server->exposed[mapping->first] = true;
        return;
    }
    uint64_t begin = 0, end = 0; /* the current run of pieces, which becomes one region */
    for (uint64_t at = 0; at < mapping->size; at += mapping->piece) {
        uint64_t left = mapping->size - at;
        uint64_t next = at + (left < mapping->piece ? left : mapping->piece);
        bool *exposed = &server->exposed[mapping->first + (size_t)(at / mapping->piece)];
        if (*exposed ||
            ibx_guest_bits_next(map->bits, first + at / page_size, first + next / page_size,
                                true) == first + next / page_size)
            continue;
        *exposed = true;
        if (at != end || at % mapping->stretch == 0) {
            if (end)
                exposure_add(server, count, block, begin, end - begin);
            begin = at;
        }
        end = next;
    }
    if (end)
        exposure_add(server, count, block, begin, end - begin);
}

int ibx_page_server_expose(struct ibx_page_server *server, const struct ibx_page_map *map,
                           struct ibx_error *err)
{
    uint32_t regions;
    int rc = ibx_page_server_done(server, &regions, err);
    if (rc)
        return rc;
    size_t count = server->asked;
    for (unsigned i = 0; i < server->block_count; i++)
        block_expose(server, map, i, &count);
    if (count == server->asked) {
        changed(server); /* nothing to add: done */
        return 0;
    }
    server->asked = count;
    links_wake(server);
    return 0;
}

/* ------------------------------------------------------------------------ answers */

void ibx_page_server_quiet(struct ibx_page_server *server)
{
    if (atomic_exchange(&server->pads, false))
        links_wake(server);
}

/* To be called before the state is read, so that no change is missed. */
static void event_clear(struct ibx_page_server *server)
{
    uint64_t count;
    ssize_t ignored = read(server->event_fd, &count, sizeof(count));
    (void)ignored;
}

int ibx_page_server_failed(struct ibx_page_server *server, struct ibx_error *err)
{
    event_clear(server);
    pthread_mutex_lock(&server->lock);
    int rc = server->failure.code;
    if (rc && err)
        *err = server->failure;
    pthread_mutex_unlock(&server->lock);
    return rc;
}

int ibx_page_server_done(struct ibx_page_server *server, uint32_t *regions, struct ibx_error *err)
{
    int rc = ibx_page_server_failed(server, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&server->lock);
    for (unsigned i = 0; i < server->link_count; i++)
        if (server->links[i].announced < server->asked)
            rc = -EAGAIN;
    pthread_mutex_unlock(&server->lock);
    if (rc)
        return ibx_error_set(err, rc, "regions are still being registered");
    *regions = (uint32_t)server->asked;
    return 0;
}

bool ibx_page_server_keeps(const struct ibx_page_server *server)
{
    return !server->whole;
}

int ibx_page_server_fd(const struct ibx_page_server *server)
{
    return server->event_fd;
}

const struct ibx_path *ibx_page_server_path(const struct ibx_page_server *server)
{
    return ibx_conn_path(server->links[0].conn);
}

struct ibx_ram_view *ibx_page_server_view(const struct ibx_page_server *server)
{
    return server->view;
}

const uint8_t *ibx_page_server_bytes(const struct ibx_page_server *server, unsigned block,
                                     uint64_t offset)
{
    return server->blocks[block].memory + offset;
}

uint64_t ibx_page_server_cpu_ns(struct ibx_page_server *server)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < server->link_count; i++) {
        clockid_t clock;
        uint64_t base = server->links[i].cpu_ns;
        if (pthread_getcpuclockid(server->links[i].thread, &clock))
            continue;
        uint64_t now = ibx_clock_ns(clock);
        sum += now > base ? now - base : 0;
    }
    return sum;
}

/* ------------------------------------------------------------------------ the end */

static void threads_end(struct ibx_page_server *server)
{
    pthread_mutex_lock(&server->lock);
    move(server, SERVER_CLOSING);
    pthread_cond_broadcast(&server->closes);
    pthread_mutex_unlock(&server->lock);
    for (unsigned i = 0; i < server->link_count; i++) {
        struct link *link = &server->links[i];
        if (!link->started)
            continue;
        ibx_wake(link->conn);
        pthread_join(link->thread, NULL);
    }
}

void ibx_page_server_close(struct ibx_page_server *server)
{
    if (!server)
        return;
    threads_end(server);
    for (unsigned i = 0; i < server->link_count; i++) {
        ibx_close(server->links[i].conn); /* and its registrations */
        free(server->links[i].mrs);
    }
    ibx_ram_view_drop(server->view);
    if (server->event_fd >= 0)
        close(server->event_fd);
    pthread_cond_destroy(&server->closes);
    pthread_mutex_destroy(&server->lock);
    free(server->exposed);
    free(server->exposures);
    free(server->blocks);
    free(server->links);
    ibx_domain_release(server->domain);
    free(server);
}
