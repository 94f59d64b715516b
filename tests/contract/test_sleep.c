/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A side that sleeps (spin_us=0) is woken by everything that concerns it, and by nothing else. */
#include "tests/contract/harness.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LENGTH (1u << 20)

static struct pair *open_sleeper(enum side side)
{
    struct pair_options with = {.set = "spin_us=0"};
    return pair_open_with(side, &with);
}

/* The peer acts once this process sleeps. */
static void arrange(struct pair *pair, enum sleeper what)
{
    struct order order = {.verb = ORDER_SLEEPER,
                          .value = (uint64_t)what,
                          .length = (uint64_t)getpid(),
                          .seed = pair->end.seed_in};
    pair_tell(pair, &order);
}

/* Sleeps as a user does: waits and polls until there is an event. */
static void sleep_until_event(struct end *end)
{
    uint64_t deadline = await_until();
    do {
        int rc = ibx_wait(end->conn, ibx_ms_until(deadline));
        if (rc != 1)
            FAIL("ibx_wait returned %d", rc);
    } while (!end_poll(end));
}

/* The same with the single steps. */
static void sleep_by_hand(struct end *end)
{
    uint64_t deadline = await_until();
    while (!end_poll(end)) {
        int rc = ibx_arm(end->conn);
        CHECK(rc == 0 || rc == 1);
        struct pollfd wait = {.fd = ibx_fd(end->conn), .events = POLLIN};
        if (!rc && poll(&wait, 1, ibx_ms_until(deadline)) != 1)
            FAIL("the descriptor stayed silent");
    }
}

static void test_woken_by_a_message(void **state)
{
    struct pair *pair = open_sleeper(SIDE_OF(state));
    for (unsigned i = 1; i <= 40; i++) {
        arrange(pair, SLEEPER_SEND);
        while (pair->end.received < i) {
            if (i % 2)
                sleep_until_event(&pair->end);
            else
                sleep_by_hand(&pair->end);
        }
    }
    pair_close(pair);
}

static void test_woken_by_completions(void **state)
{
    struct pair *pair = open_sleeper(SIDE_OF(state));
    struct end *end = &pair->end;
    struct field field = field_open(pair, LENGTH, R | W);
    for (unsigned i = 0; i < 60; i++) {
        size_t length = i % 3 ? LENGTH : i;
        unsigned flags = i % 4 ? 0 : IBX_URGENT;
        if (i % 2)
            end_read(end, field.mr, field.bytes, &field.remote, 0, length, flags);
        else
            end_write(end, field.mr, field.bytes, &field.remote, 0, length, flags);
        while (end->completed < end->posted) {
            if (i % 5)
                sleep_until_event(end);
            else
                sleep_by_hand(end);
        }
    }
    CHECK(end->failed == 0);
    field_close(&field);
}

static void test_woken_by_a_signaled_send(void **state)
{
    struct pair *pair = open_sleeper(SIDE_OF(state));
    for (unsigned i = 1; i <= 10; i++) {
        CHECK(end_send_next(&pair->end, IBX_SIGNALED) == 0);
        while (pair->end.signals < i)
            sleep_until_event(&pair->end);
    }
    pair_close(pair);
}

/* A sender without credit must be able to sleep until there is some. */
static void test_woken_by_credit(void **state)
{
    struct pair *pair = open_sleeper(SIDE_OF(state));
    struct order go_on = {.verb = ORDER_POLLING, .value = 1};
    for (int round = 0; round < 10; round++) {
        int rc;
        pair_ask(pair, (struct order){.verb = ORDER_POLLING, .value = 0});
        while (!(rc = end_send_next(&pair->end, 0)))
            ;
        CHECK(rc == -EAGAIN);
        pair_tell(pair, &go_on);
        uint64_t deadline = await_until();
        while ((rc = end_send_next(&pair->end, 0)) == -EAGAIN) {
            CHECK(ibx_wait(pair->end.conn, ibx_ms_until(deadline)) == 1);
            end_poll(&pair->end);
        }
        CHECK(rc == 0);
        CHECK(pair_answer(pair).rc == 0);
    }
    pair_close(pair);
}

static void test_woken_by_the_peers_death(void **state)
{
    struct pair *pair = open_sleeper(SIDE_OF(state));
    arrange(pair, SLEEPER_DIE);
    while (!pair->end.closed)
        sleep_until_event(&pair->end);
    CHECK(process_end(pair->peer) == -9);
    pair->peer = 0;
    pair_close(pair);
}

/* -------------------------------------------------------------------- ibx_wake */

struct waker {
    struct ibx_conn *conn;
    pid_t sleeper;
};

static void *wake_the_sleeper(void *arg)
{
    struct waker *waker = arg;
    /* otherwise nothing is woken, and the test reports that */
    if (await_asleep(getpid(), waker->sleeper))
        ibx_wake(waker->conn);
    return NULL;
}

static void test_woken_by_ibx_wake(void **state)
{
    struct pair *pair = open_sleeper(SIDE_OF(state));
    struct waker waker = {pair->end.conn, (pid_t)syscall(SYS_gettid)};
    for (int i = 0; i < 10; i++) {
        pthread_t thread;
        CHECK(!pthread_create(&thread, NULL, wake_the_sleeper, &waker));
        int rc = ibx_wait(pair->end.conn, (int)contract_patience_ms());
        CHECK(!pthread_join(thread, NULL));
        CHECK(rc == -EINTR);
    }
    /* A wake that comes just before the wait is not lost, and the wait consumes it. */
    ibx_wake(pair->end.conn);
    CHECK(ibx_wait(pair->end.conn, (int)contract_patience_ms()) == -EINTR);
    CHECK(ibx_wait(pair->end.conn, 20) == 0);
    pair_close(pair);
}

static uint64_t own_processor_ns(void)
{
    struct timespec t;
    CHECK(!clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t));
    return (uint64_t)t.tv_sec * 1000 * IBX_NS_PER_MS + (uint64_t)t.tv_nsec;
}

/* A wake also ends spinning that would last longer than the allowed wait. On a busy host the
 * side gets less processor time than that, but much more than it needs to notice the wake. */
static void test_ibx_wake_ends_spinning(void **state)
{
    struct pair_options with = {.set = "spin_us=10000000"};
    struct pair *pair = pair_open_with(SIDE_OF(state), &with);
    ibx_wake(pair->end.conn);
    uint64_t before = own_processor_ns();
    CHECK(ibx_wait(pair->end.conn, 9500) == -EINTR);
    CHECK(own_processor_ns() - before < 4000 * IBX_NS_PER_MS);
    CHECK(ibx_wait(pair->end.conn, 20) == 0);
    pair_close(pair);
}

static void test_a_wait_that_nothing_ends(void **state)
{
    struct pair *pair = open_sleeper(SIDE_OF(state));
    uint64_t before = ibx_now_ns();
    CHECK(ibx_wait(pair->end.conn, 50) == 0);
    CHECK(ibx_now_ns() - before >= 49 * IBX_NS_PER_MS);
    CHECK(ibx_wait(pair->end.conn, 0) == 0);
    pair_close(pair);
}

/* An idle connection sleeps: its descriptor does not become readable without a reason. */
static void test_an_idle_descriptor_is_silent(void **state)
{
    struct pair *pair = open_sleeper(SIDE_OF(state));
    if (strstr(ibx_conn_path(pair->end.conn)->description, "naps")) {
        pair_close(pair);
        SKIP("libfabric has no descriptor here, so the connection naps");
    }
    pair->end.seed_out = pair->end.seed_in = 3;
    pair_ask(pair, (struct order){.verb = ORDER_MODE, .value = MODE_ECHO, .seed = 3});
    for (unsigned i = 1; i <= 100; i++) {
        end_send_many(&pair->end, 1);
        AWAIT(&pair->end, pair->end.received == i);
    }
    /* Some late credit may still arrive; after that the descriptor is silent. */
    unsigned wakes = 0;
    for (int quiet = 0; quiet < 3;) {
        while (end_poll(&pair->end))
            ;
        int rc = ibx_arm(pair->end.conn);
        struct pollfd wait = {.fd = ibx_fd(pair->end.conn), .events = POLLIN};
        if (!rc && !poll(&wait, 1, 10))
            quiet++;
        else if (++wakes > 200)
            FAIL("the descriptor of an idle connection is always ready");
    }
    pair_close(pair);
}

static const struct CMUnitTest tests[] = {
    TEST_BOTH(test_woken_by_a_message),           TEST_BOTH(test_woken_by_completions),
    TEST_BOTH(test_woken_by_a_signaled_send),     TEST_BOTH(test_woken_by_credit),
    TEST_BOTH(test_woken_by_the_peers_death),     TEST_BOTH(test_woken_by_ibx_wake),
    TEST_BOTH(test_ibx_wake_ends_spinning),       TEST_BOTH(test_a_wait_that_nothing_ends),
    TEST_BOTH(test_an_idle_descriptor_is_silent),
};
GROUP(group_sleep, "sleep", tests);
