/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Registered memory was unmapped when the session's connection breaks. The session continues,
 * although the new connection refuses to register that memory again. */
#include "tests/fixtures/island.h"
#include "tests/fixtures/memory_provider.h"
#include "tests/fixtures/session_pair.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#define LENGTH  (1u << 20)
#define SECONDS 30u

static struct session_pair pair;

static atomic_bool unmapped;

/* Serves a long request, a short one and a long one, with an answer of one byte each; the second
 * one comes over another connection. */
static int answer(struct session_pair *of, void *argument)
{
    static const size_t lengths[] = {LENGTH, 1, LENGTH};
    uint8_t *bytes = malloc(LENGTH), byte = 7;
    int rc = 0;
    (void)argument;
    for (unsigned i = 0; i < 3 && !rc; i++) {
        if (ibx_session_read(of->server, bytes, lengths[i]) != (ssize_t)lengths[i] || *bytes != 9)
            rc = -EIO;
        while (i == 1 && !unmapped)
            sched_yield();
        if (i == 1)
            ibx_abort(of->server->conn);
        if (!rc && (ibx_session_write(of->server, &byte, 1) != 1 || ibx_session_sync(of->server)))
            rc = -EPIPE;
    }
    free(bytes);
    return rc;
}

static void ask(const uint8_t *bytes, size_t length)
{
    if (ibx_session_write(pair.client, bytes, length) != (ssize_t)length ||
        ibx_session_sync(pair.client))
        fail_msg("%s", ibx_session_reason(pair.client));
}

static void take_answer(void)
{
    uint8_t byte = 0;
    if (ibx_session_read(pair.client, &byte, 1) != 1)
        fail_msg("%s", ibx_session_reason(pair.client));
    assert_int_equal(byte, 7);
}

static void test_unmapped_memory_does_not_end_a_session(void **state)
{
    (void)state;
    uint8_t *memory = mmap((void *)(uintptr_t)ISLAND, LENGTH, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    const uint8_t nine = 9;
    assert_true(memory != MAP_FAILED);
    memset(memory, 9, LENGTH);
    session_pair_open(&pair);
    session_pair_start(&pair, answer, NULL);
    ask(memory, LENGTH);
    take_answer();
    ask(&nine, 1); /* registers nothing, so that the cache does not notice */
    munmap(memory, LENGTH);
    unmapped = true;
    take_answer();
    assert_int_equal(ibx_session_resumed(pair.client), 1);
    uint8_t *other = malloc(LENGTH); /* it is registered on the present connection */
    memset(other, 9, LENGTH);
    ask(other, LENGTH);
    take_answer();
    assert_int_equal(session_pair_join(&pair), 0);
    session_pair_close(&pair);
    free(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unmapped_memory_does_not_end_a_session),
    };
    memory_control_reset();
    memory_control.pins = true;
    session_keeps = SECONDS;
    session_pair_use("shm", NULL, NULL, NULL);
    alarm(60);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
