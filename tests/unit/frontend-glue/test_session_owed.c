/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Replies to requests that were answered before the server has run them: the session consumes them
 * as they arrive, gives their room back, and notices an end. */
#include "tests/fixtures/session_pair.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define OUTPUT 5u /* bytes of a reply that nobody wants */
#define LONG   (4u << 20)

static struct session_pair pair;
static int codes[8];
static unsigned replies;

static void note_reply(void *context, int exit_code)
{
    (void)context;
    codes[replies++] = exit_code;
}

static int setup(void **state)
{
    (void)state;
    replies = 0;
    session_pair_use("tcp", NULL, NULL, NULL);
    session_pair_open(&pair);
    alarm(40);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    session_pair_close(&pair);
    return 0;
}

static void write_head(int exit_code, uint64_t rest)
{
    uint8_t head[20];
    struct ibx_writer w = ibx_writer_of(head, sizeof(head));
    ibx_put_u32(&w, (uint32_t)exit_code);
    ibx_put_u64(&w, 0);
    ibx_put_u64(&w, rest);
    assert_int_equal(ibx_session_write(pair.server, head, sizeof(head)), sizeof(head));
}

/* The server's reply, which is a message of its own if it `ends`. */
static void reply(int exit_code, uint64_t rest, bool ends)
{
    static const uint8_t output[OUTPUT];
    write_head(exit_code, rest);
    if (rest)
        assert_int_equal(ibx_session_write(pair.server, output, rest), rest);
    if (ends)
        assert_int_equal(ibx_session_sync(pair.server), 0);
}

static void owe(unsigned count)
{
    while (count--)
        ibx_session_owe(pair.client, note_reply, NULL);
}

/* More replies than the client has room for messages, in one message each and several at once. */
static void replies_are_consumed_as_they_arrive(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 3 * pair.client->options.slots; i++) {
        owe(2);
        reply((int)i, 0, i % 2);
        reply((int)i + 1, i % 3 ? OUTPUT : 0, true);
        replies = 0;
        while (replies < 2)
            assert_true(ibx_session_look(pair.client));
        assert_int_equal(codes[0], i);
        assert_int_equal(codes[1], i + 1);
        assert_int_equal(pair.client->owed.count, 0);
        assert_false(ibx_incoming_any(&pair.client->in)); /* nor is it held for the next one */
    }
}

/* Both have arrived, and nothing more comes. */
static void wait_for_replies_that_have_arrived(void **state)
{
    (void)state;
    owe(2);
    const uint64_t last = ibx_session_owed_last(pair.client);
    reply(3, 0, false);
    reply(4, OUTPUT, true);
    while (!pair.client->stream.count)
        assert_true(ibx_session_poll(pair.client) >= 0);
    assert_int_equal(ibx_session_wait_owed(pair.client, last), 0);
    assert_int_equal(replies, 2);
    assert_int_equal(codes[1], 4);
}

static int reply_at_length(struct session_pair *of, void *bytes)
{
    write_head(0, OUTPUT);
    const bool failed =
        ibx_session_write(of->server, bytes, LONG) < 0 || ibx_session_sync(of->server);
    return failed ? 0 : -1; /* nobody takes it */
}

/* The server would wait until somebody says where its bytes belong. */
static void reply_with_a_payload_ends_the_session(void **state)
{
    (void)state;
    uint8_t *bytes = calloc(1, LONG);
    owe(1);
    session_pair_start(&pair, reply_at_length, bytes);
    while (ibx_session_look(pair.client))
        ;
    assert_false(ibx_session_live(pair.client));
    assert_int_equal(replies, 0);
    ibx_session_close(pair.client);
    assert_int_equal(session_pair_join(&pair), 0);
    free(bytes);
}

/* The connection ends, and the session with it: who looks learns that. */
static void replies_never_come(void **state)
{
    (void)state;
    owe(1);
    ibx_abort(pair.server->conn);
    ibx_hang_up(pair.server->conn);
    while (!pair.client->ended)
        ibx_session_look_closely(pair.client);
    assert_false(ibx_session_look(pair.client));
    assert_false(ibx_session_look_closely(pair.client));
    assert_int_equal(replies, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(replies_are_consumed_as_they_arrive, setup, teardown),
        cmocka_unit_test_setup_teardown(wait_for_replies_that_have_arrived, setup, teardown),
        cmocka_unit_test_setup_teardown(reply_with_a_payload_ends_the_session, setup, teardown),
        cmocka_unit_test_setup_teardown(replies_never_come, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
