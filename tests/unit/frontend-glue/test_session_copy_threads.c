/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Long bodies that several threads of the server copy directly from or to the client's memory,
 * over shm. */
#include "tests/fixtures/patience.h"
#include "tests/fixtures/session_pair.h"

#include "common/log.h"
#include "gpudirect/gpudirect.h"
#include "transport/core/conn.h"

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

#define BYTES    ((size_t)8 << 20)
#define THREADS  3u
#define SHORTLY  100u   /* how long a client waits for a server that is stuck (ms) */
#define FOR_LONG 90000u /* the same, long enough for all tests (ms) */
#define YIELDS   500u   /* yields that give a too early thread its chance */

static const size_t sizes[] = {(3u << 20) - 1, 3u << 20, (5u << 20) + 77, 3, (33u << 20) + 4097};
#define SIZES  (sizeof(sizes) / sizeof(sizes[0]))
#define READS  4u /* bodies that the threads read: the last one counts as two */
#define WRITES 3u /* bodies that they write: the first one and another one are too short */

/* ------------------------------------------------------------------ the copy threads, watched */

enum stand { NOT_AT_ALL, UNTIL_LEAVING, UNTIL_LEFT };

static struct {
    atomic_uint copies;
    enum stand stand; /* what the copy waits for before it starts */
    atomic_bool there, leaving, left, over;
} threads;

int __real_ibx_copy_threads_run(struct ibx_copy_threads *of, ibx_copy_threads_copy copy,
                                void *context, void *local, uint64_t offset, size_t n);
int __wrap_ibx_copy_threads_run(struct ibx_copy_threads *of, ibx_copy_threads_copy copy,
                                void *context, void *local, uint64_t offset, size_t n);

int __wrap_ibx_copy_threads_run(struct ibx_copy_threads *of, ibx_copy_threads_copy copy,
                                void *context, void *local, uint64_t offset, size_t n)
{
    threads.copies++;
    threads.there = true;
    while (threads.stand == UNTIL_LEAVING ? !threads.leaving
                                          : threads.stand == UNTIL_LEFT && !threads.left)
        sched_yield();
    for (unsigned i = 0; threads.stand == UNTIL_LEAVING && i < YIELDS; i++)
        sched_yield();
    int rc = __real_ibx_copy_threads_run(of, copy, context, local, offset, n);
    threads.over = true;
    return rc;
}

static void open_pair(struct session_pair *pair, const char *direct)
{
    session_pair_use("shm", NULL, "shm_direct", direct);
    session_threads = THREADS;
    session_pair_open(pair);
    threads.copies = 0;
    threads.there = threads.leaving = threads.left = threads.over = false;
}

/* ------------------------------------------------------------------------ whole bodies */

static int serve_sizes(struct session_pair *pair, void *argument)
{
    int rc = 0;
    (void)argument;
    for (unsigned i = 0; i < SIZES && !rc; i++) {
        size_t n = sizes[i];
        uint8_t *bytes = malloc(n);
        size_t first = i == SIZES - 1 ? n / 2 : n;
        rc = ibx_session_read(pair->server, bytes, first) == (ssize_t)first ? 0 : -1;
        if (!rc && first < n)
            rc = ibx_session_read(pair->server, bytes + first, n - first) < 0;
        if (!rc && pattern_check(bytes, n, i) != n)
            rc = -2;
        pattern_fill(bytes, n, 1000 + i);
        if (!rc && ibx_session_write(pair->server, bytes, n) != (ssize_t)n)
            rc = -3;
        rc = rc ? rc : ibx_session_sync(pair->server);
        free(bytes);
    }
    if (rc)
        ibx_session_close(pair->server); /* so that the other side ends too */
    return rc;
}

/* Exchanges bodies in both directions with client memory of at least the longest length and 64
 * bytes more. */
static void exchange(struct session_pair *pair, uint8_t *bytes)
{
    session_pair_start(pair, serve_sizes, NULL);
    for (unsigned i = 0; i < SIZES; i++) {
        size_t n = sizes[i], at = i * 13;
        pattern_fill(bytes + at, n, i);
        assert_int_equal(ibx_session_write(pair->client, bytes + at, n), n);
        assert_int_equal(ibx_session_sync(pair->client), 0);
        memset(bytes + at + n, 77, 1);
        assert_int_equal(ibx_session_read(pair->client, bytes + at, n), n);
        assert_int_equal(pattern_check(bytes + at, n, 1000 + i), n);
        assert_int_equal(bytes[at + n], 77);
    }
    assert_int_equal(session_pair_join(pair), 0);
    session_pair_close(pair);
}

#define ROOM (sizes[SIZES - 1] + 64)

static void memory_of_the_client_alone(void **state)
{
    (void)state;
    struct session_pair pair;
    uint8_t *bytes = malloc(ROOM);
    open_pair(&pair, "yes");
    bool reached = pair.server->caps->remote_copy;
    exchange(&pair, bytes);
    assert_int_equal(threads.copies, reached ? READS + WRITES : 0);
    open_pair(&pair, "no");
    exchange(&pair, bytes);
    assert_int_equal(threads.copies, 0);
    free(bytes);
}

static void memory_that_both_map(void **state)
{
    (void)state;
    struct session_pair pair;
    uint8_t *bytes = ibx_shared_allocate(ROOM, NULL);
    assert_non_null(bytes);
    open_pair(&pair, "no");
    exchange(&pair, bytes);
    assert_int_equal(threads.copies, READS + WRITES);
    assert_true(ibx_shared_free(bytes));
}

/* The server has mapped the memory for reading only, so nothing is written there. */
static void memory_that_both_map_for_reading(void **state)
{
    (void)state;
    struct session_pair pair;
    struct ibx_mr *mr;
    open_pair(&pair, "no");
    assert_int_equal(ibx_mr_allocate(pair.client->conn, ROOM, IBX_ACCESS_REMOTE_READ, &mr, NULL),
                     0);
    exchange(&pair, ibx_mr_address(mr));
    assert_int_equal(threads.copies, READS);
}

/* ---------------------------------------------------------------------------- ends */

static int serve_one_read(struct session_pair *pair, void *argument)
{
    (void)argument;
    uint8_t *bytes = malloc(BYTES);
    ssize_t n = ibx_session_read(pair->server, bytes, BYTES);
    free(bytes);
    return (int)n;
}

static uint8_t *expose(struct session_pair *pair)
{
    uint8_t *bytes = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(bytes != MAP_FAILED);
    assert_int_equal(ibx_session_write(pair->client, bytes, BYTES), BYTES);
    assert_int_equal(ibx_session_sync(pair->client), 0);
    return bytes;
}

/* The memory that the client has exposed no longer exists. */
static void memory_that_no_longer_exists(void **state)
{
    (void)state;
    struct session_pair pair;
    open_pair(&pair, "yes");
    if (pair.server->caps->remote_copy) {
        uint8_t *bytes = expose(&pair);
        munmap(bytes + BYTES / 2, BYTES / 2);
        session_pair_start(&pair, serve_one_read, NULL);
        assert_int_equal(session_pair_join(&pair), -EFAULT);
        assert_non_null(strstr(ibx_session_reason(pair.server), "copying with"));
        assert_int_equal(threads.copies, 1);
        munmap(bytes, BYTES / 2);
    }
    session_pair_close(&pair);
}

/* A client that leaves in the middle gets its memory back when nobody uses it any more. One that
 * has waited as long as it was told takes it back earlier, and nobody uses it later. */
static void client_that_leaves(void **state)
{
    bool waits = *state;
    struct session_pair pair;
    open_pair(&pair, "yes");
    if (pair.server->caps->remote_copy) {
        threads.stand = waits ? UNTIL_LEAVING : UNTIL_LEFT;
        pair.client->conn->options.timeout_ms = waits ? FOR_LONG : SHORTLY;
        uint8_t *bytes = expose(&pair);
        session_pair_start(&pair, serve_one_read, NULL);
        while (!threads.there)
            sched_yield();
        threads.leaving = true;
        ibx_session_close(pair.client);
        assert_int_equal(threads.over, waits);
        threads.left = true;
        if (waits)
            munmap(bytes, BYTES);
        assert_int_equal(session_pair_join(&pair), waits ? (int)BYTES : -ESRCH);
        if (!waits)
            munmap(bytes, BYTES);
        threads.stand = NOT_AT_ALL;
    }
    session_pair_close(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_of_the_client_alone),
        cmocka_unit_test(memory_that_both_map),
        cmocka_unit_test(memory_that_both_map_for_reading),
        cmocka_unit_test(memory_that_no_longer_exists),
        cmocka_unit_test(client_that_leaves),
        {"client_that_leaves_and_waits", client_that_leaves, NULL, NULL, "waits"},
    };
    ibx_log_set_level(IBX_LOG_ERROR);
    alarm(110 * patience_times());
    return cmocka_run_group_tests_name("session_threads", tests, NULL, NULL);
}
