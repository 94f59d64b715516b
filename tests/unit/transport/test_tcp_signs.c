/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* When a server's other thread gives signs of life: signs.c alone, whose thread goes on when a test
 * says that a second is over. */
#include "tests/fixtures/in_child.h"
#include "transport/tcp/tcp.h"

#include "common/log.h"

#include <errno.h>
#include <sched.h>
#include <semaphore.h>
#include <stdlib.h>

static sem_t seconds, over;             /* that the thread may take; that it has waited for */
static _Atomic unsigned threads, ended; /* begun and ended */
static struct {
    bool answered;   /* a post of the first lane was: its end would be reported */
    bool no_room;    /* what waits on the first lane stays there */
    bool fails;      /* the connection does as that is sent */
    size_t waits;    /* bytes on the first lane */
    unsigned pushes; /* with something to send */
    _Atomic unsigned signs;
    bool queued; /* a sign, which is not pushed yet */
    int begin_fails;
    unsigned warnings;
} is;

/* ------------------------------------------------------------ what is simulated */

int __wrap_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
    (void)left;
    assert_int_equal(time->tv_sec, 1);
    sem_post(&over);
    while (sem_wait(&seconds))
        ;
    return 0;
}
static void *(*gives_signs)(void *argument);

static void *signs_thread(void *argument)
{
    gives_signs(argument);
    ended++;
    return NULL;
}

int __real_ibx_thread_begin(pthread_t *thread, void *(*function)(void *argument), void *argument);
int __wrap_ibx_thread_begin(pthread_t *thread, void *(*function)(void *argument), void *argument);
int __wrap_ibx_thread_begin(pthread_t *thread, void *(*function)(void *argument), void *argument)
{
    if (is.begin_fails)
        return is.begin_fails;
    threads++;
    gives_signs = function;
    return __real_ibx_thread_begin(thread, signs_thread, argument);
}
void ibx_log(enum ibx_log_level level, const char *format, ...)
{
    (void)level, (void)format;
    is.warnings++;
}
bool ibx_tcp_posts_have_answered(const struct tcp *tcp)
{
    (void)tcp;
    return is.answered;
}
bool ibx_tcp_lane_has_output(const struct tcp_lane *lane)
{
    (void)lane;
    return is.waits || is.queued;
}
void ibx_tcp_lane_push(struct tcp_lane *lane)
{
    assert_int_equal(lane->index, 0);
    is.pushes += is.waits || is.queued;
    if (is.fails)
        lane->tcp->status = -EPIPE;
    if (is.no_room)
        return;
    is.waits = 0;
    is.signs += is.queued;
    is.queued = false;
}
void ibx_tcp_sign_send(struct tcp_lane *lane)
{
    assert_int_equal(lane->index, 0);
    assert_int_equal(is.waits, 0); /* it would not be where its place is */
    is.queued = true;
}

/* ------------------------------------------------------------ steps */

static struct tcp *connection, *other;

static int allocate(void **state)
{
    (void)state;
    connection = calloc(1, sizeof(*connection));
    other = calloc(1, sizeof(*other));
    return !connection || !other || sem_init(&seconds, 0, 0) || sem_init(&over, 0, 0);
}

static int release(void **state)
{
    (void)state;
    free(connection);
    free(other);
    return 0;
}

/* The thread has seen that a second is over; at first it has begun to wait for one. */
static void await_thread(void)
{
    while (sem_wait(&over))
        ;
}

static void second_is_over(void)
{
    sem_post(&seconds);
    await_thread();
}

/* Its own thread is away from now on, for all that the thread of signs knows. */
static int begin(void **state)
{
    (void)state;
    memset(&is, 0, sizeof(is));
    memset(connection, 0, sizeof(*connection));
    connection->state.now = TCP_LIVE;
    ibx_tcp_signs_begin(connection);
    await_thread();
    return !connection->gives_signs;
}

/* The last connection has gone. */
static void last_is_gone(void)
{
    ibx_tcp_signs_end(connection);
    sem_post(&seconds);
    while (ended < threads)
        sched_yield();
}

static int end(void **state)
{
    (void)state;
    last_is_gone();
    return 0;
}

/* ------------------------------------------------------------ tests */

static void a_thread_that_is_away_has_signs_given(NO_STATE)
{
    second_is_over();
    assert_int_equal(is.signs, 1);
    second_is_over();
    assert_int_equal(is.signs, 2);
    assert_int_equal(is.pushes, 2);
    assert_false(atomic_load(&connection->inside));
}

static void one_that_polls_or_sleeps_has_none_given(NO_STATE)
{
    connection->turns++;
    second_is_over();
    assert_int_equal(is.signs, 0);
    connection->sleeps = true;
    second_is_over();
    assert_int_equal(is.signs, 0);
    connection->sleeps = false;
    second_is_over();
    assert_int_equal(is.signs, 1);
}

static void one_that_is_inside_is_not_away(NO_STATE)
{
    ibx_tcp_wait_to_enter(connection);
    second_is_over();
    assert_int_equal(is.signs, 0);
    assert_true(atomic_load(&connection->inside)); /* and stays so */
    ibx_tcp_leave(connection);
    second_is_over();
    assert_int_equal(is.signs, 1);
}

static void a_connection_that_ends_gives_none(NO_STATE)
{
    is.waits = 10;
    connection->state.now = TCP_DRAINING;
    second_is_over();
    connection->state.now = TCP_LIVE;
    connection->status = -EBADMSG;
    second_is_over();
    assert_int_equal(is.signs + is.pushes, 0);
}

/* The peer hears of that, and learns from each byte that its server lives. */
static void what_waits_is_sent_first(NO_STATE)
{
    is.waits = 10;
    is.no_room = true;
    second_is_over();
    assert_int_equal(is.pushes, 1);
    assert_int_equal(is.signs, 0);
    assert_false(is.queued);
    is.no_room = false;
    second_is_over();
    assert_int_equal(is.signs, 1);
}

static void a_connection_that_fails_as_it_sends_gets_no_sign(NO_STATE)
{
    is.waits = 10;
    is.fails = true;
    connection->lanes[0].tcp = connection;
    second_is_over();
    assert_int_equal(is.pushes, 1);
    assert_int_equal(is.signs, 0);
}

/* The end of the post would be reported by a thread that is not the connection's. */
static void a_post_that_was_answered_is_left_to_its_thread(NO_STATE)
{
    is.waits = 10;
    is.answered = true;
    second_is_over();
    assert_int_equal(is.signs + is.pushes, 0);
    assert_int_equal(is.waits, 10);
}

static void one_thread_serves_all_connections(NO_STATE)
{
    const unsigned before = threads;
    memset(other, 0, sizeof(*other));
    other->state.now = TCP_LIVE;
    ibx_tcp_signs_begin(other);
    assert_true(other->gives_signs);
    assert_int_equal(threads, before);
    second_is_over();
    assert_int_equal(is.signs, 2);
    ibx_tcp_signs_end(other);
    ibx_tcp_signs_end(other); /* it gives none any more */
    second_is_over();
    assert_int_equal(is.signs, 3);
}

static void a_thread_that_cannot_begin_is_told(NO_STATE)
{
    last_is_gone();
    is.begin_fails = -EAGAIN;
    ibx_tcp_signs_begin(connection);
    assert_false(connection->gives_signs);
    assert_int_equal(is.warnings, 1);
    ibx_tcp_signs_end(connection); /* of which the list knows nothing */
    is.begin_fails = 0;
    ibx_tcp_signs_begin(connection); /* the next one tries again */
    assert_true(connection->gives_signs);
    await_thread();
}

/* The thread is the parent's, and so are the connections. */
static int child_begins(void)
{
    const unsigned before = threads;
    sem_init(&seconds, 0, 0);
    sem_init(&over, 0, 0);
    memset(other, 0, sizeof(*other));
    other->state.now = TCP_LIVE;
    ibx_tcp_signs_begin(other);
    if (!other->gives_signs || threads != before + 1)
        return 1;
    await_thread();
    second_is_over();
    return is.signs == 1 ? 0 : 2;
}

static void a_child_has_a_thread_of_its_own(NO_STATE)
{
    alarm(60);
    passes_in_child(child_begins);
    second_is_over();
    assert_int_equal(is.signs, 1);
    alarm(0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(a_thread_that_is_away_has_signs_given),
                                       TEST(one_that_polls_or_sleeps_has_none_given),
                                       TEST(one_that_is_inside_is_not_away),
                                       TEST(a_connection_that_ends_gives_none),
                                       TEST(what_waits_is_sent_first),
                                       TEST(a_connection_that_fails_as_it_sends_gets_no_sign),
                                       TEST(a_post_that_was_answered_is_left_to_its_thread),
                                       TEST(one_thread_serves_all_connections),
                                       TEST(a_thread_that_cannot_begin_is_told),
                                       TEST(a_child_has_a_thread_of_its_own)};
    return cmocka_run_group_tests_name("tcp signs", tests, allocate, release);
}
