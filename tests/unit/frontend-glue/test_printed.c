/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* When the output of printf in kernels is fetched, and that it reaches stdout. The back end is
 * simulated; printed.c's own clock goes on. */
#include "frontend-glue/preload/streams/streams.h"
#include "tests/fixtures/in_child.h"
#include "tests/fixtures/thread_state.h"
#include "tests/unit/frontend-glue/begun_requests.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <unistd.h>

static struct {
    bool attached, captures, in_function;
    int told;          /* of a reply: -1: nothing, else whether there is output */
    int code;          /* what the back end returns; with an answer that has the output */
    const char *wrong; /* an output that is longer than it may be */
    size_t left;       /* bytes of output, which are all 'x' */
    unsigned asks, waits, failures;
    uint8_t wanted;      /* by the latest request */
    unsigned last_calls; /* requests as the process ends */
    int failure;
    int error;
    pthread_barrier_t *answers; /* the answer waits here, for its request to be known, and again */
} is;

/* ------------------------------------------------------------ the back end */

static int answer(const void *body, size_t n, void *out, size_t room)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    struct ibx_writer w = ibx_writer_of(out, room);
    assert_int_equal(ibx_get_u16(&r), IBX_EXT_PRINTED);
    is.wanted = ibx_get_u8(&r);
    is.asks++;
    for (int i = 0; is.answers && i < 2; i++)
        pthread_barrier_wait(is.answers);
    errno = EBADF; /* as any request may leave it */
    const size_t some = is.left < IBX_EXT_PRINTED_MOST ? is.left : IBX_EXT_PRINTED_MOST;
    ibx_put_u32(&w, is.wrong ? IBX_EXT_PRINTED_MOST + 1 : (uint32_t)some);
    memset((uint8_t *)out + 4, 'x', some);
    is.left -= some;
    return is.code;
}

static int last_call(const struct ibx_frontend_request *request, unsigned ms, int *code)
{
    assert_in_range(ms, 1, 1000);
    is.last_calls++;
    *code = answer(request->body, request->n, request->out, request->out_n);
    return 0;
}

static int failure(uint64_t stream)
{
    assert_int_equal(stream, 5);
    is.failures++;
    return is.failure;
}

const struct ibx_frontend_calls *ibx_frontend_plugin(void)
{
    static const struct ibx_frontend_calls calls = {
        .version = IBX_FRONTEND_VERSION, .last_call = last_call, .failure = failure};
    return is.attached ? &calls : NULL;
}

bool ibx_frontend_request_try(const struct extension_request *e, void *out, size_t n, int *code)
{
    *code = answer(e->body.data, e->body.length, out, n);
    return true;
}

bool ibx_frontend_knows(enum ibx_frontend_fact fact, uint64_t handle, int *some)
{
    assert_true(fact == IBX_FRONTEND_PRINTED && !handle);
    if (is.told >= 0)
        *some = is.told;
    return is.told >= 0;
}

bool ibx_frontend_capturing(void)
{
    return is.captures;
}

bool ibx_frontend_in_host_function(void)
{
    return is.in_function;
}

int ibx_frontend_fail(int code)
{
    return is.error = code;
}

int ibx_frontend_device_wait_within(void)
{
    is.waits++;
    return 0;
}

/* ------------------------------------------------------------ steps */

static int output; /* what is stdout otherwise */

static int begin(void **state)
{
    char name[] = "/tmp/ibx_test_printed.XXXXXX";
    const int file = mkstemp(name);
    (void)state;
    memset(&is, 0, sizeof(is));
    is.attached = true;
    is.told = -1;
    if (file < 0 || unlink(name))
        return -1;
    fflush(stdout);
    output = dup(STDOUT_FILENO);
    dup2(file, STDOUT_FILENO);
    close(file);
    ibx_frontend_prints(); /* nothing but for the first time */
    is.asks = 0;
    return 0;
}

static int end(void **state)
{
    (void)state;
    fflush(stdout);
    dup2(output, STDOUT_FILENO);
    return close(output);
}

/* How many bytes of output have come so far. */
static size_t written(void)
{
    fflush(stdout);
    const off_t n = lseek(STDOUT_FILENO, 0, SEEK_END);
    for (off_t i = 0; i < n; i++) {
        char byte;
        assert_int_equal(pread(STDOUT_FILENO, &byte, 1, i), 1);
        assert_int_equal(byte, 'x');
    }
    return (size_t)n;
}

static void assert_asks(unsigned requests, size_t bytes)
{
    is.asks = 0;
    const size_t before = written();
    ibx_frontend_printed();
    assert_int_equal(is.asks, requests);
    assert_int_equal(written() - before, bytes);
}

/* ------------------------------------------------------------ tests */

/* The first test: no module has called printf yet. */
static void a_program_that_prints_nothing_asks_nothing(NO_STATE)
{
    memset(&is, 0, sizeof(is));
    is.attached = true;
    ibx_frontend_printed();
    ibx_frontend_print_last();
    ibx_frontend_print_all();
    assert_int_equal(is.asks + is.waits, 0);
    ibx_frontend_prints();
    assert_int_equal(is.asks, 1);
    assert_int_equal(is.wanted, IBX_EXT_PRINTED_TELL);
    ibx_frontend_prints();
    assert_int_equal(is.asks, 1);
    ibx_frontend_print_all();
    assert_int_equal(is.waits, 1);
}

static void output_is_written_after_a_wait(NO_STATE)
{
    is.left = 7;
    assert_asks(1, 7);
    assert_int_equal(is.wanted, IBX_EXT_PRINTED_ALL);
    assert_asks(1, 0);
}

static void a_reply_tells_whether_there_is_any(NO_STATE)
{
    is.left = 7;
    is.told = false;
    assert_asks(0, 0);
    is.told = true;
    assert_asks(1, 7);
    assert_int_equal(is.wanted, 0); /* what the reply has told of */
}

static void much_output_takes_several_requests(NO_STATE)
{
    is.left = 2 * IBX_EXT_PRINTED_MOST + 1;
    assert_asks(3, 2 * IBX_EXT_PRINTED_MOST + 1);
    is.left = IBX_EXT_PRINTED_MOST;
    assert_asks(2, IBX_EXT_PRINTED_MOST);
}

static void a_back_end_that_says_too_much_is_not_believed(NO_STATE)
{
    is.wrong = "length";
    assert_asks(1, 0);
}

static void an_error_writes_nothing(NO_STATE)
{
    is.left = 7;
    is.code = 999;
    assert_asks(1, 0);
    is.code = 0;
    is.left = 7;
    assert_asks(1, 7); /* and the next wait asks again */
}

/* A request would invalidate the capture; a function must make none. */
static void captures_and_functions_ask_nothing(NO_STATE)
{
    is.left = 7;
    is.captures = true;
    assert_asks(0, 0);
    is.captures = false;
    is.in_function = true;
    assert_asks(0, 0);
    ibx_frontend_print_last();
    assert_int_equal(is.last_calls, 0);
    is.in_function = false;
    assert_asks(1, 7);
}

static void errno_stays_the_programs(NO_STATE)
{
    errno = ENOENT;
    ibx_frontend_printed();
    assert_int_equal(errno, ENOENT);
    ibx_frontend_print_last();
    assert_int_equal(errno, ENOENT);
}

static void the_end_of_the_process_writes_the_rest(NO_STATE)
{
    is.left = IBX_EXT_PRINTED_MOST + 3;
    ibx_frontend_print_last();
    assert_int_equal(written(), IBX_EXT_PRINTED_MOST + 3);
    assert_int_equal(is.last_calls, 2);
    is.attached = false;
    is.asks = 0;
    ibx_frontend_print_last();
    assert_int_equal(is.asks, 0);
}

static void a_wait_that_fails_fetches_nothing(NO_STATE)
{
    is.left = 7;
    assert_int_equal(ibx_frontend_waited(700, 5), 700);
    assert_int_equal(is.asks + is.failures, 0);
    is.failure = 719;
    assert_int_equal(ibx_frontend_waited(0, 5), 719);
    assert_int_equal(is.error, 719);
    assert_int_equal(is.asks, 1);
    is.failure = 0;
    assert_int_equal(ibx_frontend_waited(0, 5), 0);
}

static pthread_barrier_t both;
static _Atomic bool another_waited;
static _Atomic pid_t waiting;

static void *waits_as_well(void *nothing)
{
    waiting = gettid();
    ibx_frontend_printed();
    another_waited = true;
    return nothing;
}

static void *waits(void *nothing)
{
    ibx_frontend_printed();
    return nothing;
}

/* The thread that fetches is the parent's. */
static int child_waits_for_no_thread(void)
{
    const uint64_t began = ibx_now_ns();
    ibx_frontend_printed();
    return ibx_now_ns() - began >= 1000000000u;
}

/* What another thread has fetched is written before a wait returns for which nothing is left. */
static void a_wait_is_not_over_before_output_is_written(NO_STATE)
{
    pthread_t first, second;
    is.left = 7;
    is.answers = &both;
    assert_int_equal(pthread_barrier_init(&both, NULL, 2), 0);
    assert_int_equal(pthread_create(&first, NULL, waits, NULL), 0);
    pthread_barrier_wait(&both); /* it has made its request */
    is.told = false;
    assert_int_equal(pthread_create(&second, NULL, waits_as_well, NULL), 0);
    while (!another_waited && (!waiting || thread_state(getpid(), waiting) != 'S'))
        sched_yield();
    assert_false(another_waited);
    passes_in_child(child_waits_for_no_thread);
    pthread_barrier_wait(&both);
    assert_int_equal(pthread_join(first, NULL) + pthread_join(second, NULL), 0);
    assert_int_equal(is.asks, 1);
    assert_int_equal(written(), 7);
    pthread_barrier_destroy(&both);
}

static void fill(int pipe)
{
    static const char bytes[4096];
    fcntl(pipe, F_SETFL, O_NONBLOCK);
    while (write(pipe, bytes, sizeof(bytes)) > 0) {
    }
    fcntl(pipe, F_SETFL, 0);
}

/* A thread that is cancelled while it writes keeps nobody from fetching. */
static void a_cancelled_thread_leaves_its_turn(NO_STATE)
{
    int ends[2];
    pthread_t thread;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    fill(ends[1]);
    dup2(ends[1], STDOUT_FILENO);
    is.left = 64 * IBX_EXT_PRINTED_MOST; /* more than stdout's buffer takes */
    waiting = 0;
    assert_int_equal(pthread_create(&thread, NULL, waits_as_well, NULL), 0);
    while (!waiting || thread_state(getpid(), waiting) != 'S')
        sched_yield();
    assert_int_equal(pthread_cancel(thread) + pthread_join(thread, NULL), 0);
    assert_true(is.asks);
    __fpurge(stdout);
    dup2(output, STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    is.told = false;
    const uint64_t began = ibx_now_ns();
    ibx_frontend_printed();
    assert_true(ibx_now_ns() - began < 1000000000u); /* it has waited for nobody */
}

static void *keeps_stdout(void *nothing)
{
    flockfile(stdout);
    pthread_barrier_wait(&both);
    pthread_barrier_wait(&both);
    funlockfile(stdout);
    return nothing;
}

/* exit(3) must not hang on a thread that has stdout's lock for ever. */
static void the_end_of_the_process_does_not_wait_for_ever(NO_STATE)
{
    pthread_t thread;
    is.left = 7;
    assert_int_equal(pthread_barrier_init(&both, NULL, 2), 0);
    assert_int_equal(pthread_create(&thread, NULL, keeps_stdout, NULL), 0);
    pthread_barrier_wait(&both);
    const uint64_t began = ibx_now_ns();
    ibx_frontend_print_last();
    assert_true(ibx_now_ns() - began >= 1000000000u);
    assert_int_equal(is.last_calls, 0);
    pthread_barrier_wait(&both);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_barrier_destroy(&both);
}

/* The last test: an older back end is not asked again. */
static void a_back_end_that_cannot_tell_is_asked_once(NO_STATE)
{
    is.code = -1;
    assert_asks(1, 0);
    assert_asks(0, 0);
    is.code = 0;
    ibx_frontend_prints();
    is.code = CUDA_NOT_SUPPORTED;
    assert_asks(1, 0);
    assert_asks(0, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_program_that_prints_nothing_asks_nothing),
                                       TEST(output_is_written_after_a_wait),
                                       TEST(a_reply_tells_whether_there_is_any),
                                       TEST(much_output_takes_several_requests),
                                       TEST(a_back_end_that_says_too_much_is_not_believed),
                                       TEST(an_error_writes_nothing),
                                       TEST(captures_and_functions_ask_nothing),
                                       TEST(errno_stays_the_programs),
                                       TEST(the_end_of_the_process_writes_the_rest),
                                       TEST(a_wait_that_fails_fetches_nothing),
                                       TEST(a_wait_is_not_over_before_output_is_written),
                                       TEST(a_cancelled_thread_leaves_its_turn),
                                       TEST(the_end_of_the_process_does_not_wait_for_ever),
                                       TEST(a_back_end_that_cannot_tell_is_asked_once)};
    return cmocka_run_group_tests_name("printed", tests, NULL, NULL);
}
