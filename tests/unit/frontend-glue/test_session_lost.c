/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A session that is kept has lost its connection, and its peer does not come back: where it finds
 * out as it registers memory for a long payload, it ends as anywhere else. */
#include "tests/scenes/session_pair.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_client_writes, setup, teardown),
        cmocka_unit_test_setup_teardown(a_server_reads, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
