/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* If a message was sent and cannot be kept, it must not be sent twice. Memory for long kept
 * messages is freed once they are not kept any more. */
#include "tests/fixtures/session_pair.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include <cmocka.h>

#define SLOTS    16u
#define SESSIONS 8u
#define LONGEST  (516u << 10)

static bool no_memory;

int __real_ibx_kept_add(struct kept *kept, const struct iovec *iov, int iovcnt);
int __wrap_ibx_kept_add(struct kept *kept, const struct iovec *iov, int iovcnt);

int __wrap_ibx_kept_add(struct kept *kept, const struct iovec *iov, int iovcnt)
{
    return no_memory ? -ENOMEM : __real_ibx_kept_add(kept, iov, iovcnt);
}

/* After "nothing was sent", the caller would send the message again. */
static void test_no_memory_ends_the_session(void **state)
{
    static const uint8_t request[] = "cudaLaunchKernel";
    struct session_pair pair;
    (void)state;
    session_keeps = 30;
    session_pair_use("tcp", NULL, NULL, NULL);
    session_pair_open(&pair);
    assert_true(ibx_session_send_now(pair.client, request, sizeof(request)));
    no_memory = true;
    assert_false(ibx_session_send_now(pair.client, request, sizeof(request)));
    no_memory = false;
    assert_false(ibx_session_live(pair.client));
    session_pair_close(&pair);
}

static _Atomic size_t mapped; /* bytes; memory of long messages is mapped by itself */

void *__real_mmap64(void *at, size_t n, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap64(void *at, size_t n, int protection, int flags, int fd, off_t offset);
int __real_munmap(void *at, size_t n);
int __wrap_munmap(void *at, size_t n);

void *__wrap_mmap64(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
    void *memory = __real_mmap64(at, n, protection, flags, fd, offset);
    mapped += memory == MAP_FAILED ? 0 : n;
    return memory;
}

int __wrap_munmap(void *at, size_t n)
{
    mapped -= n;
    return __real_munmap(at, n);
}

static void add(struct kept *kept, uint8_t *bytes, size_t length, unsigned times)
{
    struct iovec iov = {bytes, length};
    while (times--)
        assert_int_equal(ibx_kept_add(kept, &iov, 1), 0);
}

/* Returns a long message. */
static uint8_t *open_all(struct kept all[SESSIONS])
{
    for (unsigned i = 0; i < SESSIONS; i++)
        assert_int_equal(ibx_kept_init(&all[i], SLOTS), 0);
    return calloc(1, LONGEST);
}

static void close_all(struct kept all[SESSIONS], uint8_t *bytes)
{
    for (unsigned i = 0; i < SESSIONS; i++)
        ibx_kept_fini(&all[i]);
    free(bytes);
}

static void test_memory_of_long_messages(void **state)
{
    struct kept all[SESSIONS];
    uint8_t *bytes = open_all(all);
    (void)state;
    const size_t before = mapped;
    for (unsigned i = 0; i < SESSIONS; i++)
        add(&all[i], bytes, LONGEST, 100);
    assert_true(mapped - before >= (size_t)SESSIONS * 2 * SLOTS * LONGEST);
    for (unsigned i = 0; i < SESSIONS; i++) {
        add(&all[i], bytes, 100, 100);
        assert_int_equal(ibx_kept_longest(&all[i]), 100);
        add(&all[i], bytes, LONGEST, 1);
    }
    assert_in_range(mapped, 0, before + SESSIONS * 8u * LONGEST);
    close_all(all, bytes);
    assert_int_equal(mapped, before);
}

static void add_answered(struct kept *kept, uint8_t *bytes, size_t length, unsigned times)
{
    while (times--) {
        add(kept, bytes, length, 1);
        ibx_kept_forget(kept);
    }
}

/* An end whose messages are all answered, such as a client's: each of the following short ones
 * uses the same place. */
static void test_memory_of_answered_messages(void **state)
{
    struct kept all[SESSIONS];
    uint8_t *bytes = open_all(all);
    (void)state;
    const size_t before = mapped;
    for (unsigned i = 0; i < SESSIONS; i++) {
        for (unsigned k = 0; k < 5; k++) { /* it keeps memory that it will soon need again */
            add(&all[i], bytes, LONGEST, 2 * SLOTS);
            ibx_kept_forget(&all[i]);
            add_answered(&all[i], bytes, 100, 500);
        }
    }
    assert_true(mapped - before >= (size_t)SESSIONS * (2 * SLOTS - 1) * LONGEST);
    for (unsigned i = 0; i < SESSIONS; i++)
        add_answered(&all[i], bytes, 100, 600);
    assert_in_range(mapped, 0, before + SESSIONS * 8u * LONGEST);
    close_all(all, bytes);
    assert_int_equal(mapped, before);
}

static long faults(void)
{
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_THREAD, &usage), 0);
    return usage.ru_minflt;
}

/* Memory of shorter messages, of which there is enough, does not matter. */
static void test_long_messages_take_turns(void **state)
{
    struct kept kept;
    uint8_t *bytes = calloc(1, LONGEST);
    (void)state;
    assert_int_equal(ibx_kept_init(&kept, SLOTS), 0);
    add(&kept, bytes, 64u << 10, 100);
    add(&kept, bytes, 100, 100);
    add(&kept, bytes, LONGEST, 100);
    const long before = faults();
    add(&kept, bytes, LONGEST, 100);
    assert_in_range(faults() - before, 0, 1000); /* of 12,900 pages */
    ibx_kept_fini(&kept);
    free(bytes);
}

/* What the peer says that it has taken was sent, and is not older than what is kept: otherwise
 * messages would be left out, or repeated. */
static void test_messages_that_the_peer_has_not_taken(void **state)
{
    static const struct {
        uint64_t taken[ORDERS];
        int rc;
    } cases[] = {
        {{5, 0}, -EPROTO}, {{0, 3}, -EPROTO}, {{UINT64_MAX, 0}, -EPROTO},
        {{1, 1}, 0},       {{0, 1}, -EPROTO}, {{1, 0}, -EPROTO},
        {{4, 2}, 0},
    };
    uint8_t stream[8] = {0}, control[8] = {MESSAGE_DONE};
    struct kept kept;
    (void)state;
    assert_int_equal(ibx_message_order(stream[0]), ORDER_STREAM);
    assert_int_equal(ibx_kept_init(&kept, SLOTS), 0);
    for (unsigned i = 0; i < 2; i++) {
        add(&kept, stream, sizeof(stream), 2);
        add(&kept, control, sizeof(control), 1);
    }
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const unsigned before = kept.count;
        const uint64_t *taken = cases[i].taken;
        assert_int_equal(ibx_kept_rewind(&kept, taken), cases[i].rc);
        assert_int_equal(kept.count, cases[i].rc ? before : 6 - taken[0] - taken[1]);
    }
    ibx_kept_fini(&kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_that_the_peer_has_not_taken),
        cmocka_unit_test(test_memory_of_answered_messages),
        cmocka_unit_test(test_long_messages_take_turns),
        cmocka_unit_test(test_memory_of_long_messages),
        cmocka_unit_test(test_no_memory_ends_the_session),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
