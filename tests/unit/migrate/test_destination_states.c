/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Messages of a source in an order that no source of ours sends, once the VM runs here. */
#include "migrate/destination/destination.h"
#include "tests/scenes/unit.h"

#include <errno.h>
#include <string.h>

#define EPOCH 3u

static struct destination destination;
static const struct ibx_receive_options options = {.folder = "/nonexistent"};

static void begin(enum destination_state first)
{
    destination = (struct destination){.options = &options, .lock_fd = -1, .complete_ns = 1};
    destination.status.record.epoch = EPOCH;
    ibx_destination_ram_init(&destination.ram, false, 0);
    ibx_destination_link_init(&destination.link);
    ibx_destination_stream_init(&destination.stream, STREAM_CLOSED);
    assert_int_equal(ibx_destination_begin(&destination, first), 0);
}

static int on(const struct ibx_migrate_any *message)
{
    struct ibx_error err = {0};
    struct message_context context = {&destination, &err};
    return ibx_destination_on_message(&context, message);
}

static const struct ibx_migrate_any gives_up = {.type = IBX_MIGRATE_ABORT, .is.reason = "no"};
static const struct ibx_migrate_any confirm = {.type = IBX_MIGRATE_CONFIRM, .is.epoch = EPOCH};

/* An ABORT after the commit ends a connection and nothing else: the source may confirm later. */
static void test_confirmed_after_an_abort(NO_STATE)
{
    struct ibx_error err = {0};
    begin(DESTINATION_FILLING);
    assert_int_equal(on(&gives_up), -ECONNABORTED);
    assert_int_equal(destination.state.now, DESTINATION_FILLING);
    assert_int_equal(on(&confirm), -EPROTO);
    assert_int_equal(ibx_destination_move(&destination, DESTINATION_COMPLETE, &err), 0);
    assert_int_equal(on(&confirm), 0);
    assert_int_equal(destination.peer.now, PEER_CONFIRMED);
}

/* What is confirmed stays so. */
static void test_aborted_after_the_confirmation(NO_STATE)
{
    begin(DESTINATION_COMPLETE);
    assert_int_equal(on(&confirm), 0);
    assert_int_equal(on(&gives_up), -ECONNABORTED);
    assert_int_equal(on(&confirm), 0);
    assert_int_equal(destination.peer.now, PEER_CONFIRMED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_confirmed_after_an_abort),
        cmocka_unit_test(test_aborted_after_the_confirmation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
