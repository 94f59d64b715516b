/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Sessions over verbs while the wire between the guest's two devices is cut. After a short cut
 * nothing has happened. After a long one both ends return with an error, and the next session
 * works.
 *
 * Runs in the guest only (README.md). */
#include "tests/fixtures/session_pair.h"
#include "tests/vm/wire.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define BODY (8u << 20)

static int mend_after(void **state)
{
    (void)state;
    return wire_mend_any();
}

/* Reads bodies until there are no more. Returns how many were right, or -1. */
static int read_bodies(struct session_pair *pair, void *argument)
{
    uint8_t *bytes = malloc(BODY);
    int count = 0;
    _Atomic int *progress = argument;
    while (ibx_session_read(pair->server, bytes, BODY) == BODY) {
        if (pattern_check(bytes, BODY, (uint64_t)count) != BODY) {
            count = -1;
            break;
        }
        *progress = ++count;
        uint8_t answer = 1;
        if (ibx_session_write(pair->server, &answer, 1) != 1 || ibx_session_sync(pair->server))
            break;
    }
    free(bytes);
    return count;
}

/* Relative to this time a cut is clearly short or long, even if a busy host prolongs it. */
static void give_up_after(const char *ms)
{
    session_pair_use("verbs", getenv("IBX_VM_ADDR_A"), "timeout_ms", ms);
}

static bool send_body(struct session_pair *pair, uint8_t *bytes, unsigned number)
{
    uint8_t answer;
    pattern_fill(bytes, BODY, number);
    return ibx_session_write(pair->client, bytes, BODY) == BODY &&
           !ibx_session_sync(pair->client) && ibx_session_read(pair->client, &answer, 1) == 1;
}

static void short_cut_is_not_noticed(void **state)
{
    (void)state;
    struct session_pair pair;
    _Atomic int progress = 0;
    uint8_t *bytes = malloc(BODY);
    give_up_after("20000");
    session_pair_open(&pair);
    session_pair_start(&pair, read_bodies, &progress);
    assert_true(send_body(&pair, bytes, 0));
    wire_cut();
    pthread_t mender = wire_mend_in(700);
    for (unsigned i = 1; i < 4; i++)
        assert_true(send_body(&pair, bytes, i));
    pthread_join(mender, NULL);
    ibx_session_close(pair.client);
    assert_int_equal(session_pair_join(&pair), 4);
    session_pair_close(&pair);
    free(bytes);
}

/* The wire is cut for good: in the middle of a body, or while nothing is in flight. */
static void long_cut(void **state)
{
    const bool idle = *state;
    struct session_pair pair;
    _Atomic int progress = 0;
    uint8_t *bytes = malloc(BODY), byte;
    give_up_after("2000");
    session_pair_open(&pair);
    session_pair_start(&pair, read_bodies, &progress);
    assert_true(send_body(&pair, bytes, 0));
    wire_cut();
    uint64_t began = ibx_now_ns();
    if (idle)
        assert_true(ibx_session_read(pair.client, &byte, 1) <= 0);
    else
        assert_false(send_body(&pair, bytes, 1));
    assert_int_equal(session_pair_join(&pair), 1);
    uint64_t took_ms = (ibx_now_ns() - began) / IBX_NS_PER_MS;
    print_message("both ends noticed after %u ms\n", (unsigned)took_ms);
    assert_true(took_ms < 60000); /* generous for a busy emulator; the limit asked for is 2 s */
    assert_string_not_equal(ibx_session_reason(pair.client), "");
    assert_string_not_equal(ibx_session_reason(pair.server), "");
    wire_mend();
    session_pair_close(&pair);

    session_pair_open(&pair);
    session_pair_start(&pair, read_bodies, &progress);
    assert_true(send_body(&pair, bytes, 0));
    ibx_session_close(pair.client);
    assert_int_equal(session_pair_join(&pair), 1);
    session_pair_close(&pair);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(short_cut_is_not_noticed, mend_after),
        {"long_cut_in_the_middle_of_a_body", long_cut, NULL, mend_after, NULL},
        {"long_cut_while_idle", long_cut, NULL, mend_after, "idle"},
    };
    if (!getenv("IBX_VM")) {
        print_error("test_wire_cut cuts the wires of the guest of tests/vm: run it there\n");
        return 77;
    }
    ibx_log_set_level(IBX_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
