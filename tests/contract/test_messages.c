/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Messages arrive whole and in order, are limited by credits, and may be released in any order. */
#include "tests/contract/harness.h"

#include <errno.h>
#include <stdlib.h>

#define SEED_OUT 11u
#define SEED_IN  22u

static struct pair *open_with_sequences(enum side side, enum mode mode)
{
    struct pair *pair = pair_open(side);
    pair->end.seed_out = SEED_OUT;
    pair->end.seed_in = SEED_IN;
    pair_ask(pair, (struct order){.verb = ORDER_MODE, .value = (uint64_t)mode, .seed = SEED_OUT});
    return pair;
}

static void let_the_peer_send(struct pair *pair, uint64_t count)
{
    pair_ask(pair, (struct order){.verb = ORDER_SEND, .value = count, .seed = SEED_IN});
}

/* Waits until the peer has received all messages; it checks each one itself. */
static void await_arrival(struct pair *pair)
{
    CHECK(pair_await(pair, ORDER_COUNT, pair->end.sent) == pair->end.sent);
}

/* Messages in order, in one direction or both, without waiting for each other. Messages that one
 * side holds are released in random order and do not change until then. */
static void test_order(void **state)
{
    const struct {
        const char *name;
        enum mode peer;
        bool held;
        size_t out, in;
    } rows[] = {
        {"out", MODE_SEQUENCE, false, contract_size(10000, 2000), 0},
        {"in", MODE_SEQUENCE, false, 0, contract_size(10000, 2000)},
        {"both ways", MODE_SEQUENCE, false, contract_size(8000, 2000), contract_size(8000, 2000)},
        {"held by the peer", MODE_HOLD, false, contract_size(4000, 1000), 0},
        {"held by this side", MODE_SEQUENCE, true, 0, contract_size(4000, 1000)},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        print_message("             %s\n", rows[i].name);
        struct pair *pair = open_with_sequences(SIDE_OF(state), rows[i].peer);
        if (rows[i].held)
            pair->end.message = message_held;
        let_the_peer_send(pair, rows[i].in);
        end_send_many(&pair->end, rows[i].out);
        AWAIT(&pair->end, pair->end.received == rows[i].in);
        end_release_held(&pair->end);
        await_arrival(pair);
        pair_close(pair);
    }
}

static void message_counted(struct end *end, const struct ibx_event *event)
{
    end->received++;
    ibx_message_release(end->conn, event);
}

static void test_ping_pong(void **state)
{
    struct pair *pair = open_with_sequences(SIDE_OF(state), MODE_ECHO);
    pair->end.seed_in = SEED_OUT; /* its own messages are echoed */
    for (uint64_t i = 1; i <= contract_size(3000, 500); i++) {
        end_send_many(&pair->end, 1);
        AWAIT(&pair->end, pair->end.received == i);
    }
    pair_close(pair);
}

/* A peer that does not poll stops the sender by -EAGAIN. No message is lost. */
static void test_flood_without_polling(void **state)
{
    struct pair *pair = open_with_sequences(SIDE_OF(state), MODE_SEQUENCE);
    for (size_t round = 0; round < contract_size(5, 2); round++) {
        int rc;
        uint64_t before = pair->end.sent;
        pair_ask(pair, (struct order){.verb = ORDER_POLLING, .value = 0});
        while (!(rc = end_send_next(&pair->end, 0))) {
            if (pair->end.sent - before > 100000)
                FAIL("a peer that does not poll took %llu messages",
                     (unsigned long long)(pair->end.sent - before));
        }
        CHECK(rc == -EAGAIN);
        CHECK(round || pair->end.sent > before); /* in later rounds some credit may still arrive */
        for (int i = 0; i < 1000; i++) {
            end_poll(&pair->end);
            rc = end_send_next(&pair->end, 0);
            CHECK(rc == 0 || rc == -EAGAIN);
        }
        CHECK(end_send_next(&pair->end, 0) == -EAGAIN);
        pair_ask(pair, (struct order){.verb = ORDER_POLLING, .value = 1});
        end_send_many(&pair->end, 100);
        await_arrival(pair);
    }
    pair_close(pair);
}

/* A sender that spares the last credit stops one message before the peer's room is full. It
 * continues when the peer polls. */
static void test_last_credit_is_spared(void **state)
{
    struct pair *pair = open_with_sequences(SIDE_OF(state), MODE_SEQUENCE);
    for (size_t round = 0; round < contract_size(5, 2); round++) {
        pair_ask(pair, (struct order){.verb = ORDER_POLLING, .value = 0});
        for (int polls = 0; polls < 1000; polls++) { /* some credit may still arrive */
            end_poll(&pair->end);
            while (!end_send_next(&pair->end, IBX_SPARING))
                ;
        }
        CHECK(end_send_next(&pair->end, IBX_SPARING) == -EAGAIN);
        CHECK(end_send_next(&pair->end, 0) == 0);
        CHECK(end_send_next(&pair->end, 0) == -EAGAIN);
        pair_ask(pair, (struct order){.verb = ORDER_POLLING, .value = 1});
        for (int i = 0; i < 100; i++)
            end_send(&pair->end, IBX_SPARING);
        await_arrival(pair);
    }
    pair_close(pair);
}

/* A receiver that keeps all messages stops its sender after the agreed number of slots, until it
 * releases some. */
static void message_kept(struct end *end, const struct ibx_event *event)
{
    struct ibx_event *kept = end->owner;
    kept[end->received++] = *event;
}

static void test_credits_bound_a_held_flood(void **state)
{
    struct ibx_event kept[1024];
    struct pair_options with = {.set = "slots=8"};
    struct pair *pair = pair_open_with(SIDE_OF(state), &with);
    pair->end.message = message_kept;
    pair->end.owner = kept;
    let_the_peer_send(pair, 1000);
    AWAIT(&pair->end, pair->end.received >= 8);
    uint64_t before = pair->end.received;
    for (int i = 0; i < 2000; i++) {
        end_poll(&pair->end);
        CHECK(pair->end.received < 1000);
    }
    pair->end.message = message_counted;
    for (uint64_t i = 0, n = pair->end.received; i < n; i++)
        ibx_message_release(pair->end.conn, &kept[(i * 7 + 3) % n % n]);
    CHECK(before <= pair->end.received);
    AWAIT(&pair->end, pair->end.received == 1000);
    pair_close(pair);
}

static void test_sizes_and_signals(void **state)
{
    struct pair *pair = open_with_sequences(SIDE_OF(state), MODE_SEQUENCE);
    static char bytes[1 << 20];
    size_t max = pair->end.caps->message_max;
    struct iovec long_one = {bytes, max + 1};
    struct iovec wraps[2] = {{bytes, max}, {bytes, SIZE_MAX - max + 1}};
    CHECK(ibx_send(pair->end.conn, &long_one, 1, 0, 0) == -EMSGSIZE);
    CHECK(ibx_send(pair->end.conn, wraps, 2, 0, 0) == -EMSGSIZE);
    for (unsigned i = 0; i < 500; i++)
        end_send(&pair->end, i % 3 ? IBX_SIGNALED : 0);
    AWAIT(&pair->end, pair->end.signals == pair->end.signaled);
    await_arrival(pair);
    pair_close(pair);
}

static void test_no_pieces_is_an_empty_message(void **state)
{
    struct pair *pair = open_with_sequences(SIDE_OF(state), MODE_ECHO);
    pair->end.message = message_counted;
    CHECK(ibx_send(pair->end.conn, NULL, 0, 0, 0) == 0);
    AWAIT(&pair->end, pair->end.received == 1);
    pair_close(pair);
}

static const struct CMUnitTest tests[] = {
    TEST_BOTH(test_order),
    TEST_BOTH(test_ping_pong),
    TEST_BOTH(test_flood_without_polling),
    TEST_BOTH(test_last_credit_is_spared),
    TEST_BOTH(test_credits_bound_a_held_flood),
    TEST_BOTH(test_sizes_and_signals),
    TEST_BOTH(test_no_pieces_is_an_empty_message),
};
GROUP(group_messages, "messages", tests);
