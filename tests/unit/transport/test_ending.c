/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The end of a connection is reported, whatever the peer continues to do. */
#include "tests/fixtures/memory_pair.h"
#include "transport/core/conn.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define ROUNDS_MAX 10000u

static struct memory_pair pair;
static struct ibx_options options;
static struct iovec word = {"word", 4};

static int reset(void **state)
{
    struct ibx_error err = {0};
    (void)state;
    memory_control_reset();
    ibx_options_init(&options);
    if (memory_pair_open(&pair, &options, &err))
        fail_msg("%s", err.message);
    return 0;
}

/* Takes one event of the server's connection and releases received messages. Returns how many it
 * released. */
static unsigned take(bool *closed)
{
    struct ibx_event event;
    int n = ibx_poll(pair.server, &event, 1);
    assert_true(n >= 0);
    if (!n)
        return 0;
    *closed = event.type == IBX_EVENT_CLOSED;
    if (event.type != IBX_EVENT_MESSAGE)
        return 0;
    ibx_message_release(pair.server, &event);
    return 1;
}

/* Each released message gives the peer credit for another one. */
static void test_peer_that_keeps_sending_does_not_delay_the_end(void **state)
{
    (void)state;
    bool closed = false;
    unsigned received = 0, rounds = 0;
    assert_int_equal(ibx_send(pair.client, &word, 1, 0, 0), 0);
    ibx_abort(pair.server);
    while (!closed && rounds++ < ROUNDS_MAX) {
        int rc = ibx_send(pair.client, &word, 1, 0, 0);
        assert_true(rc == 0 || rc == -EAGAIN || rc == -ENOTCONN);
        received += take(&closed);
    }
    assert_true(closed);
    assert_true(received <= 2 * options.slots);
    memory_pair_close(&pair);
}

/* Messages that were sent before the end are still received. */
static void test_messages_sent_before_the_end_are_received(void **state)
{
    (void)state;
    bool closed = false;
    unsigned received = 0, rounds = 0;
    for (unsigned i = 0; i < options.slots; i++)
        assert_int_equal(ibx_send(pair.client, &word, 1, 0, 0), 0);
    ibx_close(pair.client);
    pair.client = NULL;
    while (!closed && rounds++ < ROUNDS_MAX)
        received += take(&closed);
    assert_true(closed);
    assert_int_equal(received, options.slots);
    memory_pair_close(&pair);
}

/* The client allows only providers that this build lacks, so none was opened. */
static void test_connection_without_provider_shares_nothing(void **state)
{
    (void)state;
    static char memory[64];
    struct ibx_span span = ibx_span_host(memory, sizeof(memory));
    struct ibx_error err = {0};
    struct ibx_mr *mr, *shared = NULL;
    memory_pair_close(&pair);
    assert_int_equal(ibx_domain_create(&options.domain, &err), 0);
    if (memory_pair_open(&pair, &options, &err))
        fail_msg("%s", err.message);
    struct ibx_conn failed = {.options = options, .state.now = CONN_CLOSED};
    assert_int_equal(ibx_mr_register(pair.client, &span, IBX_ACCESS_LOCAL, &mr, &err), 0);
    assert_int_equal(ibx_mr_share(&failed, mr, &shared, &err), -ENOTCONN);
    assert_null(shared);
    ibx_mr_deregister(mr);
    memory_pair_close(&pair);
    ibx_domain_release(options.domain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_peer_that_keeps_sending_does_not_delay_the_end, reset),
        cmocka_unit_test_setup(test_messages_sent_before_the_end_are_received, reset),
        cmocka_unit_test_setup(test_connection_without_provider_shares_nothing, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
