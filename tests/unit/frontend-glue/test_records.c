/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Calls that do not wait, over a fabric with slow messages. Event records are sent together with
 * the following calls, so that they time the work and not the network; but they are always sent,
 * also as the process ends, unless a thread waits for them, or has gone on since then. A long
 * backlog does not make calls slower. */
#include "tests/fixtures/patience.h"
#include "tests/fixtures/session_pair.h"

#include "common/clock.h"
#include "frontend-glue/call_pipeline/internal.h"
#include "frontend-glue/client_copies/client_copies.h"

#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#define REQUESTS 64u /* requests that are checked */
#define ATTEMPTS 1000u
#define LAG      20u    /* requests that have come and are not read yet */
#define MANY     15000u /* more than fit into a message, and fewer than a thread may be ahead */

static struct session_pair pair;
static struct ibx_pipeline *pipeline;
static atomic_uint requests;
static atomic_bool last_of_message[REQUESTS]; /* it is the last one in its message */
static atomic_bool held;                      /* the back end reads nothing */
static atomic_bool lags;                      /* ... or leaves LAG requests unread, */
static atomic_uint pauses_used;               /* and has run one for the last of so many pauses */
static atomic_ulong looks;                    /* how often waiting requests were looked at */
static atomic_uint pauses;                    /* of the first thread, in the product; waits for
                                                 a lock until some time are such, too */

size_t __real_ibx_call_request(const uint8_t *bytes, size_t n, const struct ibx_call **call);
size_t __wrap_ibx_call_request(const uint8_t *bytes, size_t n, const struct ibx_call **call);

size_t __wrap_ibx_call_request(const uint8_t *bytes, size_t n, const struct ibx_call **call)
{
    looks++;
    return __real_ibx_call_request(bytes, n, call);
}

int __real_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left);

int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
    pauses += gettid() == getpid();
    return __real_nanosleep(time, left);
}

int __real_pthread_mutex_clocklock(pthread_mutex_t *mutex, clockid_t clock,
                                   const struct timespec *until);
int __wrap_pthread_mutex_clocklock(pthread_mutex_t *mutex, clockid_t clock,
                                   const struct timespec *until);

int __wrap_pthread_mutex_clocklock(pthread_mutex_t *mutex, clockid_t clock,
                                   const struct timespec *until)
{
    pauses++;
    return __real_pthread_mutex_clocklock(mutex, clock, until);
}

static void pause_briefly(void)
{
    __real_nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* A back end that never has run all, and runs no more than one request between two pauses of the
 * first thread, however slow the machine is: it does not make up for pauses that it has missed. */
static bool may_run_another(void)
{
    const unsigned now = pauses;
    if (requests + LAG > atomic_load(&pipeline->answered) || now == pauses_used)
        return false;
    pauses_used = now;
    return true;
}

/* Serves as GVirtuS does. */
static int serve(struct session_pair *p, void *argument)
{
    static const uint8_t reply[20];
    struct ibx_session *s = p->server;
    uint8_t body[256];
    (void)argument;
    for (;;) {
        char name[64];
        uint64_t length;
        size_t n = 0;
        while (held || (lags && !may_run_another()))
            pause_briefly();
        while (n < sizeof(name) && ibx_session_read(s, name + n, 1) == 1 && name[n])
            n++;
        if (n == sizeof(name) || !ibx_session_live(s) || ibx_session_read(s, &length, 8) != 8 ||
            length > sizeof(body) || ibx_session_read(s, body, length) != (ssize_t)length)
            return 0;
        if (requests < REQUESTS)
            last_of_message[requests] = !s->in.segment.left;
        requests++;
        for (size_t at = 0; at < sizeof(reply); at += at ? 8 : 4)
            ibx_session_write(s, reply + at, at ? 8 : 4);
        if (ibx_session_sync(s))
            return 0;
    }
}

static void await_requests(unsigned count)
{
    const uint64_t deadline = ibx_deadline_in_ms(patience_ms(30000));
    while (requests < count && ibx_now_ns() < deadline)
        pause_briefly();
    assert_int_equal(requests, count);
}

static void call(const char *name, const void *body, size_t n)
{
    int code = -1;
    const struct ibx_pipeline_request request = {.name = name, .body = body, .n = n};
    assert_int_equal(ibx_pipeline_call(pipeline, &request, &code), 0);
    assert_int_equal(code, 0);
}

static void record(void)
{
    static const uint64_t body[2] = {7, 5};
    call("cudaEventRecord", body, sizeof(body));
}

static void set_memory(void)
{
    static const uint8_t body[28];
    call("cudaMemsetAsync", body, sizeof(body));
}

/* Waits until no call is pending. */
static void settle(unsigned count)
{
    await_requests(count);
    ibx_pipeline_finish(pipeline, 30000);
}

static int begin(void **state)
{
    (void)state;
    requests = 0;
    session_pair_open(&pair);
    session_pair_start(&pair, serve, NULL);
    pipeline = ibx_pipeline_create(pair.client, IBX_PIPELINE_ALL);
    assert_non_null(pipeline);
    ibx_pipeline_learn(pipeline, "cudaEventRecord");
    ibx_pipeline_learn(pipeline, "cudaMemsetAsync");
    record(); /* waits, and is known to succeed from now on */
    settle(1);
    return 0;
}

static int end(void **state)
{
    (void)state;
    ibx_pipeline_destroy(pipeline);
    ibx_session_close(pair.client);
    session_pair_join(&pair);
    session_pair_close(&pair);
    return 0;
}

/* The process's sending thread may have sent the record before the next call was made. Such an
 * attempt shows nothing. */
static void test_record_is_sent_with_the_next_call(void **state)
{
    (void)state;
    bool together = false;
    for (unsigned i = 0; i < ATTEMPTS && !together; i++) {
        requests = 0;
        record();
        record();
        set_memory();
        settle(3);
        together = !last_of_message[0] && !last_of_message[1];
    }
    assert_true(together);
}

/* No call follows. */
static void test_record_is_sent_alone(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 20; i++) {
        const unsigned before = requests;
        record();
        await_requests(before + 1);
    }
}

static bool has_unsent(void)
{
    pthread_mutex_lock(&pipeline->lock);
    const bool has = pipeline->backlog.end > pipeline->backlog.begin;
    pthread_mutex_unlock(&pipeline->lock);
    return has;
}

/* The back end is idle, so any other call is sent before it returns. */
static void test_other_calls_do_not_wait(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 20; i++) {
        const unsigned before = requests;
        set_memory();
        assert_false(has_unsent());
        settle(before + 1);
    }
}

/* The back end is slow, so most records wait in the client. None is looked at again and again. */
static void test_many_records_wait(void **state)
{
    (void)state;
    const unsigned before = requests;
    held = true;
    looks = 0;
    for (unsigned i = 0; i < MANY && looks < 8 * MANY; i++) {
        if (i % 7 < 3) /* so that messages have different lengths */
            record();
        else
            set_memory();
    }
    held = false;
    assert_true(looks < 8 * MANY);
    settle(before + MANY);
}

/* The child process that ends with records that are not sent yet, beside a thread that has the
 * lock of their pipeline. */
static atomic_uint wanted;  /* records in all; 0: this process is not that child */
static atomic_bool at_once; /* it is one whose exit does not wait */
static sem_t locked, ending;

static void *hold_lock(void *argument)
{
    const unsigned *left = argument; /* a process that does not wait is judged meanwhile */
    ibx_pipeline_lock(pipeline);
    sem_post(&locked);
    while (sem_wait(&ending))
        ;
    for (unsigned i = *left; i; i--)
        pause_briefly();
    held = false;
    ibx_pipeline_unlock(pipeline);
    return NULL;
}

/* Until the thread has the lock, which it keeps for so many pauses behind `ending`. */
static bool begin_holder(unsigned *pauses_left)
{
    pthread_t holder;
    sem_init(&locked, 0, 0);
    sem_init(&ending, 0, 0);
    if (pthread_create(&holder, NULL, hold_lock, pauses_left) || pthread_detach(holder))
        return false;
    while (sem_wait(&locked))
        ;
    return true;
}

static void begin_end(void)
{
    sem_post(&ending);
}

/* Behind the pipelines' own function, which was registered later. */
static void judge_end(void)
{
    if (wanted)
        _exit(requests == wanted ? 0 : 1);
    if (at_once)
        _exit(pauses ? 1 : 0);
    if (lags)
        _exit(pipeline->replied <= pipeline->answered_at_exit + 2 * LAG ? 0 : 1); /* see go_on() */
}

/* A call that goes past the pipeline, as copies do. Its thread has its reply afterwards. */
static int call_past_pipeline(void)
{
    int code = -1;
    ibx_pipeline_enter_alone(pipeline);
    const int rc = ibx_client_call(pair.client, "cudaDeviceSynchronize", "", 0, &code);
    return ibx_pipeline_leave(pipeline, rc ? rc : code, false);
}

static int end_beside_holder(void)
{
    static unsigned for_long = 50;
    begin(NULL);
    if (call_past_pipeline())
        return 2;
    held = true;
    for (unsigned i = 0; i < 100; i++)
        record();
    if (!begin_holder(&for_long) || atexit(begin_end))
        return 2;
    wanted = 102;
    exit(3);
}

/* The same beside a thread that waits for a reply, which never comes. */
static void *wait_for_ever(void *argument)
{
    (void)argument;
    call("cudaDeviceSynchronize", NULL, 0);
    return NULL;
}

static bool begin_waiter(void)
{
    pthread_t waiter;
    begin(NULL);
    ibx_pipeline_learn(pipeline, "cudaDeviceSynchronize");
    held = true;
    for (unsigned i = 0; i < 100; i++)
        record();
    if (pthread_create(&waiter, NULL, wait_for_ever, NULL) || pthread_detach(waiter))
        return false;
    while (!ibx_session_awaits_reply(pair.client))
        pause_briefly();
    pauses = 0;
    return true;
}

static int end_beside_waiter(void)
{
    if (!begin_waiter())
        return 2;
    at_once = true;
    exit(3);
}

static int leave_beside_waiter(void)
{
    if (!begin_waiter())
        return 2;
    ibx_process_leave();
    return pauses ? 1 : 0;
}

/* The same beside a thread that goes on making calls, so that the back end never has run all. So
 * many of them are without a reply: those of all may come before the first thread looks. */
static void *go_on(void *argument)
{
    (void)argument;
    for (;;) {
        if (pipeline->answered - pipeline->replied < 2 * LAG)
            record();
        else
            pause_briefly();
    }
    return NULL;
}

static int end_beside_caller(void)
{
    pthread_t caller;
    begin(NULL);
    pauses_used = pauses;
    lags = true;
    if (pthread_create(&caller, NULL, go_on, NULL) || pthread_detach(caller))
        return 2;
    while (pipeline->answered < 2 * LAG)
        pause_briefly();
    exit(3);
}

/* The end of a process beside threads closes the sessions that no thread is using, also if the
 * connection monitor is just looking after one. */
static int leave_beside_holder(void)
{
    static unsigned shortly = 5;
    begin(NULL);
    if (!begin_holder(&shortly))
        return 2;
    sem_post(&ending);
    ibx_process_leave();
    if (ibx_session_live(pair.client))
        return 1;
    session_pair_join(&pair);
    return 0;
}

static void assert_ends(int (*run)(void))
{
    int status = -1;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (!child)
        _exit(run());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_records_are_sent_at_exit_beside_a_thread_with_the_lock(void **state)
{
    (void)state;
    assert_ends(end_beside_holder);
}

static void test_sessions_are_closed_at_exit_beside_a_thread_with_the_lock(void **state)
{
    (void)state;
    assert_ends(leave_beside_holder);
}

static void test_exit_does_not_wait_for_a_thread_that_waits(void **state)
{
    (void)state;
    assert_ends(end_beside_waiter);
    assert_ends(leave_beside_waiter);
}

static void test_exit_waits_only_for_what_was_called_before(void **state)
{
    (void)state;
    assert_ends(end_beside_caller);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sessions_are_closed_at_exit_beside_a_thread_with_the_lock),
        cmocka_unit_test(test_exit_does_not_wait_for_a_thread_that_waits),
        cmocka_unit_test(test_records_are_sent_at_exit_beside_a_thread_with_the_lock),
        cmocka_unit_test(test_exit_waits_only_for_what_was_called_before),
        cmocka_unit_test_setup_teardown(test_record_is_sent_with_the_next_call, begin, end),
        cmocka_unit_test_setup_teardown(test_record_is_sent_alone, begin, end),
        cmocka_unit_test_setup_teardown(test_other_calls_do_not_wait, begin, end),
        cmocka_unit_test_setup_teardown(test_many_records_wait, begin, end),
    };
    session_pair_use("tcp", NULL, NULL, NULL);
    if (atexit(judge_end))
        return 1;
    return cmocka_run_group_tests_name("records", tests, NULL, NULL);
}
