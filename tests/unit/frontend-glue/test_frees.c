/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Memory that is freed while a graph is launched. This file replaces everything around frees.c. */
#include "frontend-glue/device_copies/copies.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

static struct gpu_session x;
/* the launch is in CUDA; it may continue; the freeing thread waits */
static sem_t begun, go, stopped;
static atomic_bool launched;
static bool saw_launch; /* at the last wait for the device */
static __thread bool gives_back;
static struct timespec now; /* the clock stands still except while launches are held */
/* how long a graph runs; if another one is launched meanwhile, that one runs as long */
static unsigned follow_ms;
static unsigned rounds;

static bool several; /* clients */
static unsigned settles,
    words; /* waits for all work; the first ones during which a wait is added */

static _Atomic int counted; /* launches of functions that only an executable graph calls */

void ibx_exec_functions_launch(const void *exec, int more)
{
    (void)exec;
    counted += more;
}

void ibx_exec_functions_keep(const void *exec)
{
    (void)exec;
}

static bool captures;    /* there are some */
static bool legacy_free; /* no stream that waits for the legacy one is captured */
static unsigned legacy_ends;
static unsigned with_event, unseen; /* launches */

void ibx_exec_ends_launched(struct gpu_session *session, const void *exec, void *stream)
{
    (void)session, (void)exec, (void)stream;
    with_event++;
}

void ibx_exec_ends_unseen(struct gpu_session *session, const void *exec)
{
    (void)session, (void)exec;
    unseen++;
}

void ibx_exec_ends_forget(const void *context)
{
    (void)context;
}

void ibx_exec_functions_forget(const void *context)
{
    (void)context;
}

bool ibx_host_work_repeats(void)
{
    return true;
}

bool ibx_captures_any(void)
{
    return captures;
}

bool ibx_captures_legacy_try(void)
{
    return legacy_free;
}

void ibx_captures_legacy_end(void)
{
    legacy_ends++;
}

bool ibx_captures_wait_try(void)
{
    return true;
}

void ibx_captures_wait_end(void) {}

bool ibx_clients_several(struct gpu_session *session)
{
    (void)session;
    return several;
}

void ibx_own_work_settle_all(struct gpu_session *session)
{
    settles++;
    if (session && settles <= words) {
        ibx_frees_word_begin(session);
        ibx_frees_word_end();
    }
}

bool ibx_back_end_have_cuda(struct gpu_session *session)
{
    (void)session;
    return false;
}

unsigned ibx_handles_functions(struct gpu_session *session, uint64_t exec)
{
    (void)session, (void)exec;
    return 1;
}

void ibx_graph_room_take(unsigned functions)
{
    (void)functions;
}

void ibx_graph_room_give(unsigned functions)
{
    (void)functions;
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    (void)clock;
    *time = now;
    return 0;
}

int __wrap_pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock,
                                  const struct timespec *until);
int __wrap_pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock,
                                  const struct timespec *until)
{
    (void)cond, (void)mutex, (void)clock;
    now = *until;
    return ETIMEDOUT;
}

static int launch_at_once(void *graph, void *stream)
{
    (void)graph, (void)stream;
    return 0;
}

/* Another client launches its next graph as soon as it is allowed to. */
static void follow(void)
{
    const struct timespec before = now;
    ibx_frees_launch(&x, launch_at_once, &x, NULL);
    const int64_t held =
        (int64_t)(now.tv_sec - before.tv_sec) * 1000 + (now.tv_nsec - before.tv_nsec) / 1000000;
    rounds++;
    if (held >= follow_ms)
        follow_ms = 0; /* the previous graph has ended first */
}

static int wait_for_device(void)
{
    if (follow_ms && rounds < 20)
        follow();
    saw_launch = atomic_load(&launched);
    sem_post(&stopped);
    return 0;
}

void *ibx_back_end_runtime(const char *name)
{
    int (*const wait)(void) = wait_for_device;
    void *function = NULL;
    if (!strcmp(name, "cudaDeviceSynchronize"))
        memcpy(&function, &wait, sizeof(function));
    return function;
}

bool __wrap_ibx_thread_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);
bool __wrap_ibx_thread_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
    if (gives_back)
        sem_post(&stopped);
    return !pthread_cond_wait(cond, mutex);
}

static int launch(void *graph, void *stream)
{
    (void)graph, (void)stream;
    sem_post(&begun);
    sem_wait(&go);
    atomic_store(&launched, true);
    return 0;
}

static void *launch_graph(void *argument)
{
    ibx_frees_launch(&x, launch, argument, NULL);
    return NULL;
}

static void *give_back(void *argument)
{
    gives_back = true;
    ibx_frees_begin(&x, 0);
    ibx_frees_end();
    return argument;
}

/* The device is waited for only once the graph is in its stream: an earlier wait would not
 * include it. */
static void test_launch_under_way(NO_STATE)
{
    pthread_t launches, frees;
    sem_init(&begun, 0, 0);
    sem_init(&go, 0, 0);
    sem_init(&stopped, 0, 0);
    assert_int_equal(pthread_create(&launches, NULL, launch_graph, &x), 0);
    sem_wait(&begun);
    assert_int_equal(pthread_create(&frees, NULL, give_back, NULL), 0);
    sem_wait(&stopped);
    sem_post(&go);
    pthread_join(frees, NULL);
    pthread_join(launches, NULL);
    assert_true(saw_launch);
}

/* Other clients launch graphs one after the other. The longer a free waits, the longer the next
 * launch is held. Afterwards launches are held as before. */
static void test_free_waits_while_launches_follow(NO_STATE)
{
    for (unsigned again = 0; again < 2; again++) {
        follow_ms = 1000;
        rounds = 0;
        give_back(NULL);
        assert_int_equal(follow_ms, 0);
        assert_in_range(rounds, 3, 5);
    }
    follow_ms = 100000; /* the free might wait for ever, while launches continue */
    rounds = 0;
    const int64_t before = now.tv_sec;
    give_back(NULL);
    assert_int_equal(rounds, 20);
    assert_in_range(now.tv_sec - before, 20, 20 * 5);
}

static int counted_inside;

static int launch_counted(void *graph, void *stream)
{
    (void)graph;
    counted_inside = counted; /* CUDA may call its functions before the launch returns */
    return stream != NULL;
}

/* A launch counts before CUDA makes it, and does not count if CUDA refuses it. */
static void test_launches_of_functions(void **state)
{
    (void)state;
    counted = 0;
    assert_int_equal(ibx_frees_launch(&x, launch_counted, &x, &x), 1);
    assert_int_equal(counted_inside, 1);
    assert_int_equal(counted, 0);
    assert_int_equal(ibx_frees_launch(&x, launch_counted, &x, NULL), 0);
    assert_int_equal(counted, 1);
}

/* Beside a capture of a stream that waits for it no event is recorded in the legacy stream, nor
 * where CUDA does not tell. */
static void test_launch_beside_a_capture(void **state)
{
    (void)state;
    with_event = unseen = 0;
    captures = true;
    assert_int_equal(ibx_frees_launch(&x, launch_counted, &x, NULL), 0);
    captures = false;
    assert_true(with_event == 0 && unseen == 1);
    assert_int_equal(ibx_frees_launch(&x, launch_counted, &x, NULL), 0);
    assert_true(with_event == 1 && unseen == 1);
    captures = legacy_free = true;
    assert_int_equal(ibx_frees_launch(&x, launch_counted, &x, NULL), 0);
    captures = legacy_free = false;
    assert_true(with_event == 2 && unseen == 1 && legacy_ends == 1);
}

static int64_t now_ms(void)
{
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A wait for a word that is added meanwhile is work that the free has not waited for. It is held
 * for a while, and if it comes all the same, the free waits anew; then the next one is held for
 * longer, up to 3.2 s. */
static void test_word_is_added_before_a_free(NO_STATE)
{
    static const unsigned held_ms[] = {0, 200, 600, 1400, 3000, 6200, 9400};
    several = true;
    for (words = 0; words < sizeof(held_ms) / sizeof(held_ms[0]); words++) {
        const int64_t before = now_ms();
        settles = 0;
        ibx_frees_begin(&x, 0);
        ibx_frees_end();
        assert_int_equal(settles, words + 1);
        assert_int_equal(now_ms() - before, held_ms[words]);
    }
    several = false;
}

/* No wait is added while the free is in CUDA, unless that takes long, or there is one client. */
static void test_word_is_added_beside_a_free(NO_STATE)
{
    for (unsigned clients = 1; clients <= 2; clients++) {
        several = clients == 2;
        words = 0;
        ibx_frees_begin(&x, 0);
        const int64_t before = now_ms();
        ibx_frees_word_begin(&x);
        ibx_frees_word_end();
        assert_int_equal(now_ms() - before, several ? 3200 : 0);
        ibx_frees_end();
    }
    several = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_launches_of_functions),
                                       cmocka_unit_test(test_launch_beside_a_capture),
                                       cmocka_unit_test(test_word_is_added_before_a_free),
                                       cmocka_unit_test(test_word_is_added_beside_a_free),
                                       cmocka_unit_test(test_launch_under_way),
                                       cmocka_unit_test(test_free_waits_while_launches_follow)};
    return cmocka_run_group_tests_name("frees", tests, NULL, NULL);
}
