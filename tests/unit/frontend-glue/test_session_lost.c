/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A session that is kept has lost its connection, and its peer does not come back: where it finds
 * out as it registers memory for a long payload, it ends as anywhere else. And what of a
 * client's broken connections is taken for packets that are lost, which ends a session. */
#include "tests/fixtures/session_pair.h"

#include "common/clock.h"
#include "transport/core/conn.h"
#include "transport/core/segments.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define SECONDS 1u
#define LONG    (4u << 20)

static struct session_pair pair;
static uint8_t *memory;

static int setup(void **state)
{
    (void)state;
    memory = calloc(1, LONG);
    session_keeps = SECONDS;
    session_pair_use("tcp", NULL, NULL, NULL);
    session_pair_open(&pair);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    free(memory);
    session_pair_close(&pair);
    return 0;
}

/* As when the peer's process dies. */
static void vanish(struct ibx_session *s)
{
    ibx_abort(s->conn);
    ibx_hang_up(s->conn);
}

static void stop_listening(void)
{
    pthread_cancel(pair.accepting);
    pthread_join(pair.accepting, NULL);
    pair.accepts = false;
    ibx_session_close(pair.listening);
}

static void await_end(struct ibx_session *s)
{
    while (!s->ended)
        assert_true(ibx_session_poll(s) >= 0);
}

static void expect_lost(struct ibx_session *s)
{
    assert_false(ibx_session_live(s));
    if (!strstr(ibx_session_reason(s), "the session cannot go on"))
        fail_msg("%s", ibx_session_reason(s));
}

static void a_client_writes(void **state)
{
    (void)state;
    stop_listening();
    vanish(pair.server);
    await_end(pair.client);
    assert_true(ibx_session_write(pair.client, memory, LONG) < 0);
    expect_lost(pair.client);
}

static void a_server_reads(void **state)
{
    (void)state;
    assert_int_equal(ibx_session_write(pair.client, memory, LONG), LONG);
    assert_int_equal(ibx_session_sync(pair.client), 0);
    while (!pair.server->stream.count)
        assert_true(ibx_session_poll(pair.server) >= 0);
    vanish(pair.client);
    await_end(pair.server);
    assert_true(ibx_session_read(pair.server, memory, LONG) < 0);
    expect_lost(pair.server);
}

/* What the client says of its connection, which it has had for so long, when that is reset. */
static int judge_reset(uint64_t lived_ms)
{
    struct session_link *link = &pair.client->link;
    struct ibx_error err;
    link->resumed = 1;
    link->resumed_at = ibx_now_ns() - lived_ms * IBX_NS_PER_MS;
    pair.client->conn->lost_status = -ECONNRESET;
    return ibx_reconnect_judge(pair.client, &err);
}

/* As if the connections since then had taken longer than the session would be kept. */
static void time_passes(void)
{
    pair.client->link.futile.since -= (pair.client->link.agreed * 1000 + 1) * IBX_NS_PER_MS;
}

static unsigned segments_limit(void)
{
    return ibx_segments_limit_of(pair.client->conn->handshake_socket);
}

static void a_client_is_reset_again_and_again(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(judge_reset(10), 0);
    time_passes();
    assert_int_equal(judge_reset(10), -EMSGSIZE);
}

/* A call that takes hours, on a network where something resets connections now and then. */
static void a_client_is_reset_now_and_then(void **state)
{
    (void)state;
    const unsigned long_ms = 2 * pair.client->options.timeout_ms;
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(judge_reset(i % 2 ? long_ms : 10), 0);
        time_passes();
    }
}

static void a_connection_that_brought_something_lost_nothing(void **state)
{
    (void)state;
    const unsigned before = segments_limit();
    for (unsigned i = 0; i < 8; i++) {
        pair.client->link.taken[ORDER_STREAM]++;
        assert_int_equal(judge_reset(10), 0);
        time_passes();
    }
    assert_int_equal(segments_limit(), before);
}

/* Its server needs 2 seconds to find out, however short the time-out is. */
static void a_short_timeout_is_no_reason_to_try_for_ever(void **state)
{
    (void)state;
    pair.client->options.timeout_ms = 100;
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(judge_reset(2500), 0);
    time_passes();
    assert_int_equal(judge_reset(2500), -EMSGSIZE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_client_writes, setup, teardown),
        cmocka_unit_test_setup_teardown(a_server_reads, setup, teardown),
        cmocka_unit_test_setup_teardown(a_connection_that_brought_something_lost_nothing, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_client_is_reset_now_and_then, setup, teardown),
        cmocka_unit_test_setup_teardown(a_client_is_reset_again_and_again, setup, teardown),
        cmocka_unit_test_setup_teardown(a_short_timeout_is_no_reason_to_try_for_ever, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
