/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* For tests of host_functions.c: a clock and a back end that are simulated. A thread that asks gets
 * the function that is enqueued. Each case is a process of its own, because the thread is started
 * only once. */
#ifndef IBX_TESTS_HOST_BACK_END_H
#define IBX_TESTS_HOST_BACK_END_H

#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"
#include "tests/fixtures/patience.h"
#include "tests/unit/frontend-glue/begun_requests.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define FAILED_S (30 * patience_times())

/* --------------------------------------------------------------------------- replaced functions */

static _Atomic uint64_t now_ns = 1000000000;
static bool spins;
static pthread_t application;
static _Atomic unsigned looks; /* how often the thread has looked at the clock */
static _Atomic unsigned sleeps;

static atomic_bool ticks; /* the clock is not simulated any more */

int __real_clock_gettime(clockid_t clock, struct timespec *at);
int __wrap_clock_gettime(clockid_t clock, struct timespec *at);
int __wrap_clock_gettime(clockid_t clock, struct timespec *at)
{
    if (atomic_load(&ticks))
        return __real_clock_gettime(clock, at);
    looks += !pthread_equal(pthread_self(), application);
    *at = (struct timespec){(time_t)(now_ns / 1000000000), (long)(now_ns % 1000000000)};
    return 0;
}

static void (*waits_in_lost)(void); /* called as the program waits without a limit */

bool __wrap_ibx_thread_wait(pthread_cond_t *condition, pthread_mutex_t *mutex);
bool __wrap_ibx_thread_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    const bool ours = pthread_equal(pthread_self(), application);
    sleeps += !ours;
    if (ours && waits_in_lost)
        waits_in_lost();
    return !pthread_cond_wait(condition, mutex);
}

bool __wrap_ibx_thread_may_spin(void);
bool __wrap_ibx_thread_may_spin(void)
{
    return spins;
}

/* ------------------------------------------------------------ the back end */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t more;
    uint64_t number;    /* of the function that has not been called yet; 0: none */
    uint64_t before;    /* of a function that was never enqueued and is named before it; 0: none */
    uint64_t over;      /* the first function that was reported as over since this was 0 */
    bool names_nothing; /* it answers at once that no function is to be called */
    unsigned nothings;  /* so often it does so */
    bool gone;          /* it answers no more */
    bool holds;         /* it does not answer that a stream goes on */
    bool takes_bytes;   /* it has the bytes that a function would copy: so many */
    uint32_t bytes;
    int add_fails;                      /* what a function that is enqueued returns */
    const _Atomic unsigned *add_awaits; /* it returns only when this is not 0 */
    unsigned adds;
} back_end = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};

static int device; /* of all streams */

static void count(void *argument)
{
    atomic_fetch_add((_Atomic unsigned *)argument, 1);
}

int ibx_frontend_stream_device(const void *stream)
{
    (void)stream;
    return device;
}

bool ibx_frontend_stream_blocks(const void *stream)
{
    (void)stream;
    return true;
}

int ibx_frontend_request_ask(const struct extension_request *e, uint64_t *answer)
{
    (void)e;
    *answer = 7; /* the number of the queue */
    return 0;
}

/* HOST_ADD: a stream, the queue, and the number. */
int ibx_frontend_request_make(const struct extension_request *e, void *out, size_t n)
{
    struct ibx_reader r = ibx_reader_of(e->bytes, e->body.length);
    (void)out, (void)n;
    ibx_get_u16(&r);
    ibx_get_u64(&r);
    ibx_get_u64(&r);
    pthread_mutex_lock(&back_end.lock);
    back_end.adds++;
    const int rc = back_end.add_fails;
    if (!rc)
        back_end.number = ibx_get_u64(&r);
    pthread_cond_broadcast(&back_end.more);
    pthread_mutex_unlock(&back_end.lock);
    while (back_end.add_awaits && !*back_end.add_awaits)
        sched_yield();
    return rc;
}

/* HOST_ASK: what was called, and whether to wait for the next function. */
bool ibx_frontend_request_try(const struct extension_request *e, void *out, size_t n, int *code)
{
    struct ibx_reader r = ibx_reader_of(e->bytes, e->body.length);
    struct ibx_writer w = ibx_writer_of(out, n);
    ibx_get_u16(&r);
    const uint64_t over = ibx_get_u64(&r);
    const bool waits = ibx_get_u8(&r);
    pthread_mutex_lock(&back_end.lock);
    if (!back_end.over)
        back_end.over = over;
    while (over && back_end.holds)
        pthread_cond_wait(&back_end.more, &back_end.lock);
    while (waits && !back_end.number && !back_end.names_nothing && !back_end.nothings &&
           !back_end.gone)
        pthread_cond_wait(&back_end.more, &back_end.lock);
    back_end.nothings -= waits && back_end.nothings;
    uint64_t *next = back_end.number && back_end.before ? &back_end.before : &back_end.number;
    ibx_put_u64(&w, *next);
    ibx_put_u32(&w, 0);
    if (n > 12)
        ibx_put_u32(&w, back_end.bytes);
    *next = 0;
    const bool gone = back_end.gone;
    pthread_mutex_unlock(&back_end.lock);
    *code = 0;
    return !gone;
}

bool ibx_frontend_connect_own(void)
{
    return true;
}

_Thread_local struct ibx_frontend_thread ibx_frontend_thread;

void ibx_frontend_exits(void) {}

static unsigned device_uses;

void ibx_frontend_device_used(void)
{
    device_uses++;
}

void ibx_frontend_graph_behind_trim(void) {}

static bool a_child; /* as far as own_streams.c knows */
bool ibx_frontend_is_child(void)
{
    return a_child;
}
bool ibx_frontend_capturing(void)
{
    return false;
}

int ibx_frontend_relax(void)
{
    return 0;
}

void ibx_frontend_relax_end(int mode)
{
    (void)mode;
}

void ibx_frontend_host_function_is(enum ibx_host_function is)
{
    (void)is;
}

int ibx_frontend_fail(int rc)
{
    return rc;
}

bool ibx_frontend_graph_takes_bytes(void)
{
    return back_end.takes_bytes;
}

bool ibx_frontend_graph_copies(void (*function)(void *))
{
    (void)function;
    return false;
}

static _Atomic unsigned copies; /* which functions have made with bytes of the back end's */
static size_t copied_bytes;     /* the latest one's */

bool ibx_frontend_graph_copied(void (*function)(void *), void *argument, uint8_t *bytes, size_t n)
{
    (void)function, (void)argument, (void)bytes;
    copied_bytes = n;
    atomic_fetch_add(&copies, 1);
    return true;
}

static char given[8]; /* what functions have got of bytes that launches have taken */
static _Atomic unsigned given_count, freed, asked;

void ibx_frontend_graph_give(void *argument, struct ibx_launch_bytes *taken)
{
    given[given_count] = *(const char *)taken;
    atomic_fetch_add(&given_count, 1);
    count(argument);
}

void ibx_launch_bytes_free(struct ibx_launch_bytes *taken)
{
    freed += taken != NULL;
    free(taken);
}

/* The third time it has failed. */
int ibx_frontend_stream_ask(void *stream)
{
    (void)stream;
    return ++asked < 3 ? CUDA_NOT_READY : 700;
}

bool ibx_frontend_captures(void *stream)
{
    (void)stream;
    return false;
}

int ibx_frontend_capture_function(void *stream, void (*function)(void *), void *argument)
{
    (void)stream, (void)function, (void)argument;
    return CUDA_UNKNOWN;
}

/* ------------------------------------------------------------ steps */

/* In a scene, whose process ends if the condition does not hold. */
#define CHECK(condition)                                                                           \
    do                                                                                             \
        if (!(condition)) {                                                                        \
            print_error("%s:%d: %s\n", __FILE__, __LINE__, #condition);                            \
            _exit(1);                                                                              \
        }                                                                                          \
    while (0)

static void await(const _Atomic unsigned *figure, unsigned least)
{
    while (*figure < least) /* an alarm ends a wait in vain */
        sched_yield();
}

/* The function was called and the stream continues. The thread waits for the next one. */
static int call_one(_Atomic unsigned *called)
{
    const unsigned before = *called;
    if (cudaLaunchHostFunc(NULL, count, called))
        return 1;
    await(called, before + 1);
    while (ibx_frontend_host_functions())
        sched_yield();
    return 0;
}

/* For ThreadSanitizer, which would report the thread of a scene whose back end ends: nobody joins
 * it in a child that calls _exit(2). */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "report_thread_leaks=0";
}

static void run(int (*scene)(void))
{
    int status = -1;
    const pid_t child = fork();
    if (!child) {
        application = pthread_self();
        alarm(FAILED_S);
        _exit(scene());
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

#endif
