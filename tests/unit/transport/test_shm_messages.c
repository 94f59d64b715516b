/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Messages of the shm provider: what a sender may have on its way. */
#include "tests/fixtures/shm_pair.h"

#include <errno.h>

#define SLOTS 8u

static struct end *const server = &both.server, *const client = &both.client;

static void test_the_last_credit_is_spared(void **state)
{
    (void)state;
    for (unsigned i = 1; i < SLOTS; i++)
        assert_int_equal(end_send(client, "a", 1, IBX_SPARING), 0);
    assert_int_equal(end_send(client, "b", 1, IBX_SPARING), -EAGAIN);
    assert_int_equal(end_send(client, "c", 1, 0), 0);
    assert_int_equal(end_send(client, "d", 1, 0), -EAGAIN);
    await_notes(server, NULL, SLOTS);
    assert_int_equal(server->notes[SLOTS - 1].data[0], 'c');
}

/* The sender has room at the peer again, and has not been told of its sends yet. */
static void test_sends_that_are_not_reported_yet(void **state)
{
    (void)state;
    for (unsigned i = 0; i < SLOTS; i++)
        assert_int_equal(end_send(client, "a", 1, IBX_SIGNALED), 0);
    await_notes(server, NULL, SLOTS);
    for (unsigned i = 0; i < SLOTS; i++)
        ibx_provider_shm.release(server->shm, server->notes[i].token);
    assert_int_equal(end_send(client, "b", 1, IBX_SIGNALED), -EAGAIN);
    assert_int_equal(end_send(client, "c", 1, 0), 0);
    await_notes(client, NULL, SLOTS);
    assert_int_equal(end_send(client, "d", 1, IBX_SIGNALED), 0);
    await_notes(client, NULL, SLOTS + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_last_credit_is_spared, both_connected, both_close),
        cmocka_unit_test_setup_teardown(test_sends_that_are_not_reported_yet, both_connected,
                                        both_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
