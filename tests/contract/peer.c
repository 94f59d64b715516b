/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The peer process: serves its end of the connection and carries out orders. */
#include "tests/contract/harness.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define REGIONS_MAX    4
#define POLLS_PER_TURN 50
#define SURROUND       16384u /* bytes before and after an exposed region */
#define SEED_SURROUND  0x5055ull

struct region {
    /* SURROUND, the region, SURROUND; NULL if the transport allocated the memory, or if it
     * repeats */
    uint8_t *pages;
    uint8_t *bytes;
    size_t length;
    struct ibx_mr *mr;
};

struct peer {
    struct end end;
    int control;
    bool polling;
    bool gone; /* ibx_close() was ordered */
    struct region regions[REGIONS_MAX];
    uint64_t to_send;
    struct ibx_event echoes[HELD_MAX];
    unsigned echo_count;
};

/* -------------------------------------------------------------------- messages */

/* Sends echoes in the order of arrival. An echo without credit waits, and delays its sender. */
static void send_echoes(struct peer *peer)
{
    unsigned sent = 0;
    while (sent < peer->echo_count) {
        const struct ibx_event *event = &peer->echoes[sent];
        struct iovec iov = {(void *)(uintptr_t)event->data, event->length};
        int rc = ibx_send(peer->end.conn, &iov, 1, 0, 0);
        if (rc == -EAGAIN)
            break;
        CHECK(rc == 0 || rc == -ENOTCONN);
        ibx_message_release(peer->end.conn, event);
        sent++;
    }
    peer->echo_count -= sent;
    memmove(peer->echoes, peer->echoes + sent, peer->echo_count * sizeof(peer->echoes[0]));
}

static void message_echoed(struct end *end, const struct ibx_event *event)
{
    struct peer *peer = end->owner;
    CHECK(peer->echo_count < HELD_MAX); /* tests have fewer echoes in flight */
    peer->echoes[peer->echo_count++] = *event;
    end->received++;
    send_echoes(peer);
}

/* The message names the bytes of a WRITE that completed before it was sent. */
static void message_of_place(struct end *end, const struct ibx_event *event)
{
    struct peer *peer = end->owner;
    struct ibx_reader reader = ibx_reader_of(event->data, event->length);
    size_t offset = ibx_get_u64(&reader);
    size_t length = ibx_get_u64(&reader);
    uint64_t seed = ibx_get_u64(&reader);
    CHECK(!reader.failed && offset + length <= peer->regions[0].length);
    ssize_t at = pattern_check(peer->regions[0].bytes + offset, length, seed, offset);
    if (at >= 0)
        FAIL("the message overtook byte %zd of the WRITE of %zu bytes at %zu", at, length, offset);
    end->received++;
    ibx_message_release(end->conn, event);
}

static void send_more(struct peer *peer)
{
    while (peer->to_send && !end_send_next(&peer->end, 0))
        peer->to_send--;
    send_echoes(peer);
}

/* --------------------------------------------------------------------- regions */

static void fill_surroundings(struct region *region)
{
    pattern_fill(region->pages, SURROUND, SEED_SURROUND, 0);
    pattern_fill(region->bytes + region->length, SURROUND, SEED_SURROUND, 0);
}

static int expose(struct peer *peer, const struct order *order, struct answer *answer)
{
    struct region *region = &peer->regions[order->region];
    struct ibx_error err = {0};
    CHECK(!region->mr);
    *region = (struct region){.length = order->length};
    if (order->allocate) {
        int rc = ibx_mr_allocate(peer->end.conn, region->length, order->access, &region->mr, &err);
        if (rc)
            return rc;
        region->bytes = ibx_mr_address(region->mr);
    } else if (order->period) {
        region->bytes = pages_map_repeating(region->length, order->period);
        region->mr = end_register(&peer->end, region->bytes, region->length, order->access);
    } else {
        region->pages = pages_map(region->length + 2 * SURROUND);
        region->bytes = region->pages + SURROUND;
        region->mr = end_register(&peer->end, region->bytes, region->length, order->access);
        fill_surroundings(region);
    }
    CHECK(ibx_mr_length(region->mr) == region->length);
    CHECK(ibx_mr_address(region->mr) == region->bytes);
    if (order->seed)
        pattern_fill(region->bytes, order->period ? order->period : region->length, order->seed, 0);
    if (order->access)
        return ibx_mr_remote(region->mr, 0, region->length, &answer->remote);
    CHECK(ibx_mr_remote(region->mr, 0, region->length, &answer->remote) == -EACCES);
    return 0;
}

/* Deregisters the region, and maps other pages with another pattern at its addresses at once. */
static int drop(struct peer *peer, const struct order *order)
{
    struct region *region = &peer->regions[order->region];
    ibx_mr_deregister(region->mr);
    region->mr = NULL;
    CHECK(region->pages);
    size_t whole = region->length + 2 * SURROUND;
    CHECK(!munmap(region->pages, whole));
    void *again = mmap(region->pages, whole, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (again != region->pages)
        FAIL("the addresses are taken: %s", strerror(errno));
    fill_surroundings(region);
    pattern_fill(region->bytes, region->length, order->seed, 0);
    return 0;
}

static int64_t check(struct peer *peer, const struct order *order)
{
    struct region *region = &peer->regions[order->region];
    CHECK(order->offset + order->length <= region->length);
    if (region->pages &&
        (pattern_check(region->pages, SURROUND, SEED_SURROUND, 0) >= 0 ||
         pattern_check(region->bytes + region->length, SURROUND, SEED_SURROUND, 0) >= 0))
        FAIL("memory outside of region %u was written", order->region);
    return pattern_check(region->bytes + order->offset, order->length, order->seed,
                         order->position);
}

/* ----------------------------------------------------------------------- READs */

/* If the READ fails, no byte may have arrived. */
static int64_t read_remote(struct peer *peer, const struct order *order)
{
    struct end *end = &peer->end;
    size_t length = order->remote.length;
    uint8_t *bytes = pages_map(length);
    if (end->closed)
        return -2;
    struct ibx_mr *mr = end_register(end, bytes, length, IBX_ACCESS_LOCAL);
    unsigned post = end_read(end, mr, bytes, &order->remote, 0, length, 0);
    AWAIT(end, end->posts[post].times);
    int64_t at = pattern_check(bytes, length, order->seed, 0);
    if (end->posts[post].status) {
        for (size_t i = 0; i < length; i++)
            CHECK(!bytes[i]);
        at = -2;
    }
    ibx_mr_deregister(mr);
    pages_unmap(bytes, length);
    return at;
}

/* ---------------------------------------------------------------------- orders */

static void set_mode(struct peer *peer, enum mode mode, uint64_t seed)
{
    static void (*const handlers[])(struct end *, const struct ibx_event *) = {
        [MODE_SEQUENCE] = message_in_sequence,
        [MODE_HOLD] = message_held,
        [MODE_ECHO] = message_echoed,
        [MODE_PLACES] = message_of_place,
    };
    end_release_held(&peer->end);
    peer->end.message = handlers[mode];
    peer->end.seed_in = seed;
    peer->end.received = 0;
}

static void act_on_sleeper(struct peer *peer, const struct order *order)
{
    const pid_t sleeper = (pid_t)order->length;
    CHECK(await_asleep(sleeper, sleeper));
    if (order->value == SLEEPER_DIE)
        kill(getpid(), SIGKILL);
    peer->end.seed_out = order->seed;
    peer->to_send = 1;
}

static void leave(struct peer *peer)
{
    if (!peer->gone) {
        end_release_held(&peer->end);
        ibx_close(peer->end.conn);
    }
    end_fini(&peer->end);
    peer->gone = true;
    peer->polling = false;
}

static void carry_out(struct peer *peer, const struct order *order, struct answer *answer)
{
    switch (order->verb) {
    case ORDER_PING:
        break;
    case ORDER_EXPOSE:
        answer->rc = expose(peer, order, answer);
        break;
    case ORDER_FILL:
        pattern_fill(peer->regions[order->region].bytes, peer->regions[order->region].length,
                     order->seed, 0);
        break;
    case ORDER_CHECK:
        answer->value = check(peer, order);
        break;
    case ORDER_DROP:
        answer->rc = drop(peer, order);
        break;
    case ORDER_READ:
        answer->value = read_remote(peer, order);
        break;
    case ORDER_POLLING:
        peer->polling = order->value;
        break;
    case ORDER_MODE:
        set_mode(peer, (enum mode)order->value, order->seed);
        break;
    case ORDER_SEND:
        peer->end.seed_out = order->seed;
        peer->end.sent = 0;
        peer->to_send = order->value;
        break;
    case ORDER_COUNT:
        answer->value = (int64_t)peer->end.received;
        break;
    case ORDER_STATUS:
        answer->value = peer->end.closed;
        break;
    case ORDER_SLEEPER:
        act_on_sleeper(peer, order);
        break;
    case ORDER_CLOSE:
    case ORDER_EXIT:
        leave(peer);
        break;
    }
}

/* Takes one order. Only the sleeper's has no answer. */
static void take_order(struct peer *peer)
{
    struct order order;
    struct answer answer = {0};
    ssize_t n = recv(peer->control, &order, sizeof(order), 0);
    if (n == 0)
        _exit(0); /* the test has failed and its process has ended */
    CHECK(n == sizeof(order) && order.region < REGIONS_MAX);
    carry_out(peer, &order, &answer);
    if (order.verb != ORDER_SLEEPER)
        send(peer->control, &answer, sizeof(answer), MSG_NOSIGNAL);
    if (order.verb == ORDER_EXIT)
        _exit(0);
}

/* Polls the connection. Returns true if it is safe to sleep until its descriptor or an order
 * wakes the peer. */
static bool serve_connection(struct peer *peer)
{
    bool idle = true;
    for (int i = 0; i < POLLS_PER_TURN; i++) {
        idle = end_poll(&peer->end) == 0 && idle;
        if (peer->end.closed)
            return false;
        send_more(peer);
    }
    return idle && ibx_arm(peer->end.conn) == 0;
}

void peer_serve(struct ibx_conn *conn, int control)
{
    struct peer peer = {.control = control, .polling = true};
    end_init(&peer.end, conn);
    peer.end.owner = &peer;
    for (;;) {
        bool serving = peer.polling && !peer.end.closed;
        bool sleep = !serving || serve_connection(&peer);
        serving = serving && !peer.end.closed;
        struct pollfd wait[2] = {{.fd = control, .events = POLLIN},
                                 {.fd = serving ? ibx_fd(conn) : -1, .events = POLLIN}};
        if (poll(wait, 2, sleep ? -1 : 0) > 0 && wait[0].revents)
            take_order(&peer);
    }
}
