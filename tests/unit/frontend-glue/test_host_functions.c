/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How the preload's thread for host functions waits for the next one. With many processors it
 * polls for a while and then sleeps. And what launches of graphs do about such functions. */
#include "tests/unit/frontend-glue/host_back_end.h"

#define POLL_NS 100000u

/* ------------------------------------------------------------ scenes */

/* For a time the thread does not sleep, and sees the next function; then it sleeps, and is
 * woken. */
static int polls(void)
{
    static _Atomic unsigned called;
    spins = true;
    for (unsigned i = 0; i < 10; i++) {
        CHECK(!call_one(&called));
        await(&looks, looks + 1000);
        now_ns += POLL_NS - 1;
        await(&looks, looks + 1000);
        CHECK(!sleeps);
    }
    for (unsigned i = 1; i <= 10; i++) {
        now_ns += POLL_NS;
        await(&sleeps, i);
        const unsigned before = looks;
        CHECK(!call_one(&called));
        await(&looks, before + 1000); /* it polls again */
    }
    return 0;
}

/* The thread sleeps at once, and does not look at the clock. */
static int sleeps_at_once(void)
{
    static _Atomic unsigned called;
    for (unsigned i = 1; i <= 10; i++) {
        CHECK(!call_one(&called));
        await(&sleeps, i);
    }
    CHECK(!looks);
    return 0;
}

static uint64_t first_over(void)
{
    pthread_mutex_lock(&back_end.lock);
    const uint64_t over = back_end.over;
    pthread_mutex_unlock(&back_end.lock);
    return over;
}

/* A number that was not enqueued: of a function in a graph that was not launched, or an unknown
 * number. The function is not called, and is reported as over. Otherwise its stream would stop,
 * and with it all clients' later functions. */
static int not_outstanding(void)
{
    static _Atomic unsigned called, repeated;
    uint64_t queue = 0;
    CHECK(!call_one(&called));
    const uint64_t number = ibx_frontend_host_repeated(count, (void *)&repeated, &queue);
    const uint64_t befores[] = {number, UINT64_C(1) << 40};
    for (unsigned i = 0; i < 2; i++) {
        back_end.before = befores[i];
        back_end.over = 0;
        const unsigned before = called;
        CHECK(!cudaLaunchHostFunc(NULL, count, (void *)&called));
        await(&called, before + 1); /* it has reported that the previous one was over */
        CHECK(!repeated && first_over() == befores[i]);
        while (ibx_frontend_host_functions())
            sched_yield();
    }
    return 0;
}

/* A graph calls another function than the one that it had when it was launched. */
static int launch_changed(void *exec, void *stream)
{
    (void)stream;
    pthread_mutex_lock(&back_end.lock);
    back_end.number = *(const uint64_t *)exec;
    pthread_cond_broadcast(&back_end.more);
    pthread_mutex_unlock(&back_end.lock);
    return 0;
}

/* The function is called once for each launch, and nothing stays outstanding. */
static int changed(void)
{
    static _Atomic unsigned called, first, second;
    uint64_t queue = 0;
    CHECK(!call_one(&called));
    const uint64_t of_graph = ibx_frontend_host_repeated(count, (void *)&first, &queue);
    uint64_t now = ibx_frontend_host_repeated(count, (void *)&second, &queue);
    for (unsigned i = 1; i <= 3; i++) {
        back_end.before = i == 3 ? now : 0; /* once more than it was launched */
        struct ibx_launch made = {.numbers = &of_graph, .count = 1};
        CHECK(!ibx_frontend_host_launch(&made, NULL, launch_changed, &now));
        await(&second, i);
        while (ibx_frontend_host_functions())
            sched_yield();
    }
    CHECK(!call_one(&called)); /* whatever was named before is over */
    CHECK(!first && second == 3);
    return 0;
}

static int launch_only(void *exec, void *stream)
{
    (void)stream;
    return exec ? CUDA_UNKNOWN : 0;
}

static struct ibx_launch_copy taken(char byte)
{
    char *bytes = malloc(1);
    if (bytes)
        *bytes = byte;
    return (struct ibx_launch_copy){IBX_COPY_TAKEN, (struct ibx_launch_bytes *)(void *)bytes};
}

static int launch_taken(uint64_t number, char byte, void *exec)
{
    struct ibx_launch_copy copy = taken(byte);
    struct ibx_launch made = {&number, &copy, 1, 0};
    const int rc = ibx_frontend_host_launch(&made, NULL, launch_only, exec);
    return rc || copy.taken ? 1 : 0;
}

/* The back end names the function once. */
static void name(uint64_t number, _Atomic unsigned *called)
{
    const unsigned before = *called;
    pthread_mutex_lock(&back_end.lock);
    back_end.number = number;
    pthread_cond_broadcast(&back_end.more);
    pthread_mutex_unlock(&back_end.lock);
    await(called, before + 1);
}

/* Each launch has its bytes, which are freed; one that fails, and those from before a reset, are
 * called for nobody; a reset of another device leaves them. */
static int each_launch(void)
{
    static _Atomic unsigned called, of_graph;
    uint64_t queue = 0;
    CHECK(!call_one(&called));
    const uint64_t number = ibx_frontend_host_repeated(count, (void *)&of_graph, &queue);
    CHECK(!launch_taken(number, 'a', NULL) && !launch_taken(number, 'b', NULL));
    CHECK(launch_taken(number, 'f', &queue));
    name(number, &of_graph);
    name(number, &of_graph);
    await(&freed, 3);
    CHECK(!launch_taken(number, 'r', NULL));
    ibx_frontend_host_reset(0);
    CHECK(!launch_taken(number, 'c', NULL));
    name(number, &of_graph);
    await(&freed, 5);
    device = 1; /* those on another device are not lost */
    CHECK(!launch_taken(number, 'd', NULL));
    ibx_frontend_host_reset(0);
    name(number, &of_graph);
    await(&freed, 6);
    while (ibx_frontend_host_functions())
        sched_yield();
    CHECK(!strcmp(given, "abcd") && freed == 6);
    return 0;
}

/* The same of a launch behind a reset, which has left another one in the list. */
static int changed_after_reset(void)
{
    static _Atomic unsigned called, first, second;
    uint64_t queue = 0;
    CHECK(!call_one(&called));
    const uint64_t of_graph = ibx_frontend_host_repeated(count, (void *)&first, &queue);
    uint64_t now = ibx_frontend_host_repeated(count, (void *)&second, &queue);
    struct ibx_launch made = {.numbers = &of_graph, .count = 1};
    CHECK(!ibx_frontend_host_launch(&made, NULL, launch_only, NULL));
    ibx_frontend_host_reset(0);
    CHECK(!ibx_frontend_host_launch(&made, NULL, launch_changed, &now));
    await(&second, 1);
    while (ibx_frontend_host_functions())
        sched_yield();
    CHECK(!first);
    return 0;
}

/* Waits for what the launch awaits. Returns the CUDA error. */
static int waited(const struct ibx_launch *made)
{
    struct ibx_launch_wait wait = {.code = CUDA_NOT_READY};
    while (wait.code == CUDA_NOT_READY)
        ibx_frontend_host_await(made, NULL, &wait);
    return wait.code;
}

/* A launch waits for the copies that it awaits, and no more when the stream has failed. */
static int launch_awaits(void)
{
    static _Atomic unsigned called, first;
    static uint64_t number;
    uint64_t queue = 0;
    CHECK(!call_one(&called));
    number = ibx_frontend_host_repeated(count, (void *)&first, &queue);
    struct ibx_launch_copy copy = {IBX_COPY_AWAITED, NULL};
    struct ibx_launch made = {&number, &copy, 1, 0};
    CHECK(!ibx_frontend_host_launch(&made, NULL, launch_changed, &number));
    const int code = waited(&made);
    CHECK((first == 1 || asked >= 3) && (!code || code == 700));
    await(&first, 1);
    asked = 0;
    CHECK(!ibx_frontend_host_launch(&made, NULL, launch_only, NULL));
    CHECK(waited(&made) == 700 && asked == 3);
    return 0;
}

/* ... though the back end answers again and again that no function is to be called. */
static int stream_fails(void)
{
    static _Atomic unsigned called, of_graph;
    uint64_t queue = 0;
    CHECK(!call_one(&called));
    const uint64_t number = ibx_frontend_host_repeated(count, (void *)&of_graph, &queue);
    struct ibx_launch_copy copy = {IBX_COPY_AWAITED, NULL};
    struct ibx_launch made = {&number, &copy, 1, 0};
    atomic_store(&ticks, true);
    pthread_mutex_lock(&back_end.lock);
    back_end.names_nothing = true;
    pthread_cond_broadcast(&back_end.more);
    pthread_mutex_unlock(&back_end.lock);
    CHECK(!ibx_frontend_host_launch(&made, NULL, launch_only, NULL));
    CHECK(waited(&made) == 700 && asked == 3);
    return 0;
}

static int launch_and_end(void *exec, void *stream)
{
    (void)exec, (void)stream;
    pthread_mutex_lock(&back_end.lock);
    back_end.gone = true;
    pthread_cond_broadcast(&back_end.more);
    pthread_mutex_unlock(&back_end.lock);
    return 0;
}

/* The back end ends while a launch waits: the copy is not made, which the launch tells. */
static int back_end_ends(void)
{
    static _Atomic unsigned called, of_graph;
    uint64_t queue = 0;
    CHECK(!call_one(&called));
    const uint64_t number = ibx_frontend_host_repeated(count, (void *)&of_graph, &queue);
    struct ibx_launch_copy copy = {IBX_COPY_AWAITED, NULL};
    struct ibx_launch made = {&number, &copy, 1, 0};
    atomic_store(&ticks, true);
    CHECK(!ibx_frontend_host_launch(&made, NULL, launch_and_end, NULL));
    CHECK(waited(&made) == CUDA_UNKNOWN && !of_graph);
    return 0;
}

/* A launch waits no more when it has taken the bytes, which the function gets. */
static int launch_takes_later(void)
{
    static _Atomic unsigned called, of_graph;
    uint64_t queue = 0;
    CHECK(!call_one(&called));
    const uint64_t number = ibx_frontend_host_repeated(count, (void *)&of_graph, &queue);
    struct ibx_launch_copy copy = {IBX_COPY_UNTAKEN, NULL};
    struct ibx_launch made = {&number, &copy, 1, 0};
    struct ibx_launch_bytes *bytes = taken('t').taken;
    CHECK(!ibx_frontend_host_launch(&made, NULL, launch_only, NULL));
    CHECK(!ibx_frontend_host_give(made.id + 1, number, bytes));
    CHECK(!ibx_frontend_host_give(made.id, number + 1, bytes));
    CHECK(ibx_frontend_host_give(made.id, number, bytes) && !waited(&made) && !asked);
    name(number, &of_graph);
    await(&freed, 1);
    CHECK(!strcmp(given, "t") && !ibx_frontend_host_give(made.id, number, NULL));
    return 0;
}

static atomic_bool may_begin;
static _Atomic unsigned first_begins;

static void hold_first(void)
{
    atomic_fetch_add(&first_begins, 1);
    while (!may_begin)
        sched_yield();
}

static void around(void) {}

static void *enqueue(void *called)
{
    return cudaLaunchHostFunc(NULL, count, called) ? called : NULL;
}

/* A thread forks while another one waits before the first function. The child has functions of its
 * own, and waits for no thread of its parent's. */
static int forked_before_first(void)
{
    static const struct ibx_frontend_around calls = {hold_first, around, around};
    static _Atomic unsigned called;
    pthread_t thread;
    void *failed = NULL;
    int status = -1;
    ibx_frontend_around_functions(&calls);
    CHECK(!pthread_create(&thread, NULL, enqueue, (void *)&called));
    await(&first_begins, 1);
    const pid_t child = fork();
    may_begin = true;
    if (!child) {
        alarm(FAILED_S);
        _exit(call_one(&called));
    }
    pthread_join(thread, &failed);
    await(&called, 1);
    CHECK(!failed && waitpid(child, &status, 0) == child);
    CHECK(!status);
    return 0;
}

static void test_polls(void **state)
{
    (void)state;
    run(polls);
}

static void test_sleeps(void **state)
{
    (void)state;
    run(sleeps_at_once);
}

static void test_function_that_is_not_outstanding(void **state)
{
    (void)state;
    run(not_outstanding);
}

static void test_changed_function_of_a_graph(void **state)
{
    (void)state;
    run(changed);
}

static void test_changed_function_after_a_reset(void **state)
{
    (void)state;
    run(changed_after_reset);
}

static void test_bytes_of_each_launch(void **state)
{
    (void)state;
    run(each_launch);
}

static void test_launch_that_awaits(void **state)
{
    (void)state;
    run(launch_awaits);
}

static void test_launch_that_takes_bytes_later(void **state)
{
    (void)state;
    run(launch_takes_later);
}

static void test_launch_whose_stream_fails(void **state)
{
    (void)state;
    run(stream_fails);
}

static void test_launch_whose_back_end_ends(void **state)
{
    (void)state;
    run(back_end_ends);
}

static void test_fork_before_the_first(void **state)
{
    (void)state;
    run(forked_before_first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_polls),
        cmocka_unit_test(test_sleeps),
        cmocka_unit_test(test_function_that_is_not_outstanding),
        cmocka_unit_test(test_changed_function_of_a_graph),
        cmocka_unit_test(test_changed_function_after_a_reset),
        cmocka_unit_test(test_bytes_of_each_launch),
        cmocka_unit_test(test_launch_that_awaits),
        cmocka_unit_test(test_launch_that_takes_bytes_later),
        cmocka_unit_test(test_launch_whose_stream_fails),
        cmocka_unit_test(test_launch_whose_back_end_ends),
        cmocka_unit_test(test_fork_before_the_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
