/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The peer is killed or stopped. Every post completes once; then the end is reported once. */
#include "tests/contract/harness.h"

#include "common/clock.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LENGTH      ((size_t)8 << 20)
#define OUTSTANDING 12u
#define LAST        4u /* messages */

static struct field open_field(enum side side)
{
    return field_open(pair_open(side), contract_size(LENGTH, LENGTH / 8), R | W);
}

/* After the end nothing is reported, and no post is accepted. */
static void check_ended(struct field *field)
{
    struct iovec iov = {"x", 1};
    AWAIT(field->end, field->end->closed);
    for (int i = 0; i < 3; i++)
        end_poll(field->end);
    CHECK(ibx_send(field->end->conn, &iov, 1, 0, 0) == -ENOTCONN);
    CHECK(end_try_read(field->end, field->mr, field->bytes, &field->remote, 0, 1, 0) == -ENOTCONN);
    CHECK(end_try_write(field->end, field->mr, field->bytes, &field->remote, 0, 1, IBX_URGENT) ==
          -ENOTCONN);
    CHECK(ibx_arm(field->end->conn) == 1);
    CHECK(ibx_wait(field->end->conn, 1000) == 1);
}

static void test_killed_while_idle(void **state)
{
    struct field field = open_field(SIDE_OF(state));
    pair_kill(field.pair);
    check_ended(&field);
    field_close(&field);
}

/* Keeps posts outstanding, kills the peer after some have completed, and continues to post until
 * the end is reported. */
static void kill_under_load(enum side side, bool reads, bool writes, bool messages)
{
    struct field field = open_field(side);
    struct end *end = field.end;
    uint64_t deadline = await_until();
    unsigned after = 0;
    while (!end->closed) {
        while (end->posted - end->completed < OUTSTANDING && (reads || writes)) {
            bool read = reads && (!writes || end->posted % 2);
            unsigned flags = end->posted % 5 ? 0 : IBX_URGENT;
            size_t length = flags ? 4096 : field.length;
            int rc =
                read ? end_try_read(end, field.mr, field.bytes, &field.remote, 0, length, flags)
                     : end_try_write(end, field.mr, field.bytes, &field.remote, 0, length, flags);
            CHECK(rc == 0 || rc == -ENOTCONN);
            if (rc)
                break;
        }
        if (messages) {
            int rc = end_send_next(end, IBX_SIGNALED);
            CHECK(rc == 0 || rc == -EAGAIN || rc == -ENOTCONN);
        }
        if (field.pair->peer && end->completed + end->sent >= 20) {
            CHECK(!(reads || writes) || end->posted > end->completed);
            after = end->completed;
            pair_kill(field.pair);
        }
        end_poll(end);
        if (ibx_now_ns() > deadline)
            FAIL("the death goes unnoticed");
    }
    check_ended(&field);
    /* The posts that were outstanding at the end did not all succeed. */
    CHECK(!(reads || writes) || (end->failed > 0 && end->completed > after));
    field_close(&field);
}

static void test_killed_during_work(void **state)
{
    static const struct {
        const char *name;
        bool reads, writes, messages;
    } works[] = {{"READs", true, false, false},
                 {"WRITEs", false, true, false},
                 {"messages", false, false, true},
                 {"everything", true, true, true}};
    for (size_t i = 0; i < sizeof(works) / sizeof(works[0]); i++) {
        print_message("             %s\n", works[i].name);
        kill_under_load(SIDE_OF(state), works[i].reads, works[i].writes, works[i].messages);
    }
}

/* Held messages stay readable after the end, until they are released. */
static void test_killed_while_messages_are_held(void **state)
{
    struct field field = open_field(SIDE_OF(state));
    field.end->message = message_held;
    field.end->seed_in = 5;
    pair_ask(field.pair, (struct order){.verb = ORDER_SEND, .value = HELD_MAX, .seed = 5});
    AWAIT(field.end, field.end->held_count == HELD_MAX);
    pair_kill(field.pair);
    check_ended(&field);
    end_release_held(field.end);
    field_close(&field);
}

/* READs into separate places: a place whose READ has succeeded contains the right bytes. */
static void read_into_places(struct field *field, size_t place)
{
    pattern_fill(field->bytes, field->length, SEED_LOCAL, 0);
    for (size_t at = 0; at + place <= field->length; at += place)
        end_read(field->end, field->mr, field->bytes + at, &field->remote, at, place, 0);
}

static void check_places(struct field *field, size_t place)
{
    for (size_t i = 0; (i + 1) * place <= field->length; i++) {
        bool complete = pattern_check(field->bytes + i * place, place, SEED_REMOTE, i * place) < 0;
        if (!field->end->posts[i].status && !complete)
            FAIL("READ %zu succeeded without its bytes", i);
    }
}

/* This side aborts. It gets its completions before its memory is freed. */
static void test_aborted(void **state)
{
    struct field field = open_field(SIDE_OF(state));
    read_into_places(&field, field.length / 64);
    ibx_abort(field.end->conn);
    check_ended(&field);
    CHECK(field.end->closed_status == -ECONNABORTED);
    check_places(&field, field.length / 64);
    ibx_abort(field.end->conn);
    end_poll(field.end);
    field_close(&field);
}

/* A stopped peer serves nothing more, so it probably dies with all READs outstanding. */
static void test_killed_owing_reads(void **state)
{
    struct field field = open_field(SIDE_OF(state));
    int status;
    CHECK(!kill(field.pair->peer, SIGSTOP));
    CHECK(waitpid(field.pair->peer, &status, WUNTRACED) == field.pair->peer && WIFSTOPPED(status));
    read_into_places(&field, field.length / 16);
    pair_kill(field.pair);
    check_ended(&field);
    check_places(&field, field.length / 16);
    field_close(&field);
}

/* One process has several connections. When one peer dies, no other connection notices. */
static void test_others_live_on(void **state)
{
    struct field one = open_field(SIDE_OF(state)), two = open_field(SIDE_OF(state));
    for (int i = 0; i < 4; i++) {
        end_read(one.end, one.mr, one.bytes, &one.remote, 0, one.length, 0);
        end_read(two.end, two.mr, two.bytes, &two.remote, 0, two.length, 0);
    }
    pair_kill(one.pair);
    AWAIT(two.end, two.end->completed == 4);
    CHECK(two.end->failed == 0);
    check_ended(&one);
    end_read(two.end, two.mr, two.bytes, &two.remote, 0, two.length, 0);
    AWAIT(two.end, two.end->completed == 5);
    CHECK(two.end->failed == 0);
    field_close(&one);
    field_close(&two);
}

enum last_act { ACT_NONE, ACT_SEND, ACT_READ, ACTS };

static void last_messages(enum side side, bool killed, enum last_act act)
{
    struct field field =
        field_open(pair_open_with(side, &(struct pair_options){.set = "message=1K"}), 4096, R | W);
    struct end *end = field.end;
    end->seed_in = SEED_REMOTE;
    pair_ask(field.pair, (struct order){.verb = ORDER_SEND, .value = LAST, .seed = SEED_REMOTE});
    pair_ask(field.pair, (struct order){.verb = ORDER_PING}); /* the messages have been sent */
    if (killed)
        pair_kill(field.pair);
    else
        pair_ask(field.pair, (struct order){.verb = ORDER_CLOSE});
    for (int rc = 0; act == ACT_SEND && !rc;)
        rc = end_send_next(end, 0);
    for (unsigned i = 0; act == ACT_READ && i < OUTSTANDING; i++)
        end_read(end, field.mr, field.bytes, &field.remote, 0, field.length, IBX_URGENT);
    AWAIT(end, end->closed);
    CHECK(end->received == LAST);
    field_close(&field);
}

/* What the peer sent before its end is delivered before the end, even if this side has sent or
 * READ over the dead connection before it looked. */
static void test_last_messages_come_first(void **state)
{
    /* A queue pair is destroyed together with messages that it has not sent. */
    if (!strcmp(contract.provider, "verbs"))
        SKIP("a promise of memory and sockets");
    for (unsigned act = ACT_NONE; act < ACTS; act++) {
        last_messages(SIDE_OF(state), false, (enum last_act)act);
        last_messages(SIDE_OF(state), true, (enum last_act)act);
    }
}

/* A peer that is stopped for a while does not count as dead. */
static void test_stopped_and_continued(void **state)
{
    struct field field = open_field(SIDE_OF(state));
    struct end *end = field.end;
    int status, rc;
    CHECK(!kill(field.pair->peer, SIGSTOP));
    CHECK(waitpid(field.pair->peer, &status, WUNTRACED) == field.pair->peer && WIFSTOPPED(status));
    for (unsigned i = 0; i < OUTSTANDING; i++) {
        end_read(end, field.mr, field.bytes, &field.remote, 0, field.length, 0);
        end_write(end, field.mr, field.bytes, &field.remote, 0, 4096, IBX_URGENT);
    }
    while (!(rc = end_send_next(end, 0)))
        ;
    CHECK(rc == -EAGAIN);
    for (int i = 0; i < 20000; i++)
        end_poll(end);
    CHECK(!end->closed);
    CHECK(!kill(field.pair->peer, SIGCONT));
    AWAIT(end, end->completed == 2 * OUTSTANDING);
    CHECK(end->failed == 0);
    end_send_many(end, 50);
    pair_await(field.pair, ORDER_COUNT, end->sent);
    field_close(&field);
}

static const struct CMUnitTest tests[] = {
    TEST_BOTH(test_killed_while_idle),
    TEST_BOTH(test_killed_during_work),
    TEST_BOTH(test_killed_while_messages_are_held),
    TEST_BOTH(test_aborted),
    TEST_BOTH(test_killed_owing_reads),
    TEST_BOTH(test_others_live_on),
    TEST_BOTH(test_last_messages_come_first),
    TEST_BOTH(test_stopped_and_continued),
};
GROUP(group_deaths, "deaths", tests);
