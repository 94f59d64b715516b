/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which host functions work in a stream waits for, which are lost, what a reset leaves of them, and
 * what a child has of its parent's. */
#include "tests/fixtures/thread_state.h"
#include "tests/unit/frontend-glue/host_back_end.h"

#define FIRST  ((void *)0x100)
#define SECOND ((void *)0x200)
#define EVENT  ((void *)0x300)
#define OTHER  ((void *)0x400)
#define APART  ((void *)0x500)

static void back_end_changes(bool *what, bool to)
{
    pthread_mutex_lock(&back_end.lock);
    *what = to;
    pthread_cond_broadcast(&back_end.more);
    pthread_mutex_unlock(&back_end.lock);
}

static void rests(void)
{
    while (ibx_frontend_host_functions())
        sched_yield();
}

/* A function that returns when it may. */
static atomic_bool may_return;
static _Atomic unsigned begun;

static void stays(void *argument)
{
    (void)argument;
    atomic_fetch_add(&begun, 1);
    while (!may_return)
        sched_yield();
}

/* ------------------------------------------------------------ waits */

/* Until it has returned for its stream, and for those with which that is ordered; the legacy stream
 * is ordered with both. */
static int waits_until_it_returns(void)
{
    back_end.holds = true;
    CHECK(!ibx_frontend_host_waits(FIRST));
    CHECK(!cudaLaunchHostFunc(FIRST, stays, NULL));
    await(&begun, 1);
    CHECK(ibx_frontend_host_waits(FIRST) && ibx_frontend_host_before(FIRST, 0));
    CHECK(ibx_frontend_host_waits(NULL) && ibx_frontend_host_before(NULL, 0));
    CHECK(!ibx_frontend_host_waits(SECOND) && !ibx_frontend_host_before(SECOND, 0));
    may_return = true;
    while (ibx_frontend_host_waits(FIRST)) /* though its stream has not gone on yet */
        sched_yield();
    CHECK(ibx_frontend_host_before(FIRST, 0) && ibx_frontend_host_functions());
    back_end_changes(&back_end.holds, false);
    rests();
    CHECK(!ibx_frontend_host_before(FIRST, 0) && !ibx_frontend_host_before(NULL, 0));
    return 0;
}

/* An event in the legacy stream orders what comes behind it with what came before, and not with
 * what is enqueued later. */
static int waits_in_the_order_of_an_event(void)
{
    ibx_frontend_host_ordered(); /* before the function */
    CHECK(!cudaLaunchHostFunc(FIRST, stays, NULL));
    await(&begun, 1);
    CHECK(!ibx_frontend_host_before(SECOND, 0));
    ibx_frontend_host_ordered();
    CHECK(ibx_frontend_host_before(SECOND, 0));
    CHECK(!ibx_frontend_host_waits(SECOND));
    may_return = true;
    rests();
    CHECK(!ibx_frontend_host_before(SECOND, 0));
    return 0;
}

/* The same if it is called before the call that enqueues it has returned. */
static int waits_in_the_order_of_an_early_call(void)
{
    back_end.add_awaits = &begun;
    return waits_in_the_order_of_an_event();
}

static _Atomic pid_t waiter;
static _Atomic unsigned waits_beside;
static bool found_beside;

static void *waits_in_another_stream(void *nothing)
{
    waiter = gettid();
    found_beside = ibx_frontend_host_before(SECOND, 1000000);
    return nothing;
}

/* The call that has enqueued the function returns when somebody waits for its order. */
static void *sees_the_waiter(void *nothing)
{
    pthread_t thread;
    await(&begun, 1);
    CHECK(!pthread_create(&thread, NULL, waits_in_another_stream, NULL));
    for (unsigned asleep = 0; asleep < 1000; sched_yield())
        asleep = waiter && thread_state(getpid(), waiter) == 'S' ? asleep + 1 : 0;
    waits_beside = 1;
    CHECK(!pthread_join(thread, NULL));
    return nothing;
}

/* Who waits for an early call that turns out to be behind the event goes on then. */
static int stops_waiting_for_an_early_call(void)
{
    pthread_t thread;
    ticks = true;
    back_end.add_awaits = &waits_beside;
    ibx_frontend_host_ordered();
    CHECK(!pthread_create(&thread, NULL, sees_the_waiter, NULL));
    CHECK(!cudaLaunchHostFunc(FIRST, stays, NULL));
    CHECK(!pthread_join(thread, NULL)); /* an alarm ends a wait in vain */
    CHECK(!found_beside);
    may_return = true;
    rests();
    return 0;
}

static int launch_awaits_call(void *exec, void *stream)
{
    (void)stream;
    pthread_mutex_lock(&back_end.lock);
    back_end.number = *(const uint64_t *)exec;
    pthread_cond_broadcast(&back_end.more);
    pthread_mutex_unlock(&back_end.lock);
    await(&begun, 1);
    return 0;
}

/* ... and of a graph's, before its launch has. */
static int waits_in_the_order_of_a_launch(void)
{
    uint64_t queue = 0, number = ibx_frontend_host_repeated(stays, NULL, &queue);
    struct ibx_launch made = {.numbers = &number, .count = 1};
    ibx_frontend_host_ordered();
    CHECK(!ibx_frontend_host_launch(&made, FIRST, launch_awaits_call, &number));
    CHECK(ibx_frontend_host_waits(FIRST) && !ibx_frontend_host_before(SECOND, 0));
    ibx_frontend_host_ordered();
    CHECK(ibx_frontend_host_before(SECOND, 0));
    may_return = true;
    rests();
    return 0;
}

static const void *visited[4];
static unsigned visits;

static void visit(const struct host_node *host, void *context)
{
    (void)context;
    if (host->function)
        visited[visits++ % 4] = host->argument;
}

/* Of those that run, and those that do not yet. */
static int is_seen_while_it_runs(void)
{
    static _Atomic unsigned called;
    CHECK(!cudaLaunchHostFunc(FIRST, stays, FIRST));
    await(&begun, 1);
    CHECK(!cudaLaunchHostFunc(FIRST, count, &called));
    ibx_frontend_host_outstanding(visit, NULL);
    CHECK(visits == 2 && visited[0] == FIRST && visited[1] == (void *)&called);
    may_return = true;
    await(&called, 1);
    rests();
    visits = 0;
    ibx_frontend_host_outstanding(visit, NULL);
    CHECK(!visits);
    return 0;
}

/* ------------------------------------------------------------ what fails */

static int is_not_outstanding_if_it_was_refused(void)
{
    static _Atomic unsigned called;
    CHECK(!call_one(&called) && device_uses == 1);
    back_end.add_fails = 700;
    CHECK(cudaLaunchHostFunc(FIRST, count, &called) == 700);
    CHECK(!ibx_frontend_host_functions() && !ibx_frontend_host_waits(FIRST));
    back_end.add_fails = 0;
    CHECK(!call_one(&called) && called == 2);
    return 0;
}

static _Atomic unsigned first_called;

static int launch_never(void *exec, void *stream)
{
    (void)exec, (void)stream;
    return 0;
}

/* A launch whose function the back end does not name; returns the function's number. */
static uint64_t launched(void *stream, struct ibx_launch_copy *copy, struct ibx_launch *made)
{
    static uint64_t number;
    uint64_t queue = 0;
    number = ibx_frontend_host_repeated(count, (void *)&first_called, &queue);
    *made = (struct ibx_launch){.numbers = &number, .copies = copy, .count = 1};
    CHECK(number && !ibx_frontend_host_launch(made, stream, launch_never, NULL));
    return number;
}

/* Those before the mark, in the stream, or all. */
static int is_lost_with_the_back_end(void)
{
    struct ibx_launch made;
    CHECK(!ibx_frontend_host_event_lost(EVENT)); /* there are no functions */
    launched(FIRST, NULL, &made);
    const uint64_t first = ibx_frontend_host_enqueued();
    ibx_frontend_host_event(EVENT, FIRST);
    ibx_frontend_host_event(OTHER, FIRST);
    ibx_frontend_host_event(EVENT, FIRST);  /* again, which leaves the other one */
    ibx_frontend_host_event(APART, SECOND); /* which has no functions */
    launched(CUDA_STREAM_PER_THREAD, NULL, &made);
    const uint64_t last = ibx_frontend_host_enqueued();
    CHECK(first && last > first);
    back_end_changes(&back_end.gone, true);
    CHECK(ibx_frontend_host_lost(last, true, NULL) && ibx_frontend_host_lost(last, false, FIRST));
    CHECK(!ibx_frontend_host_lost(0, true, NULL));
    CHECK(!ibx_frontend_host_lost(last, false, SECOND));
    CHECK(!ibx_frontend_host_lost(last, false, CUDA_STREAM_PER_THREAD)); /* another thread's */
    CHECK(ibx_frontend_host_event_lost(EVENT) && ibx_frontend_host_event_lost(OTHER));
    CHECK(!ibx_frontend_host_event_lost(APART));
    CHECK(ibx_frontend_host_gone(FIRST) && !ibx_frontend_host_gone(SECOND));
    return 0;
}

static _Atomic unsigned answered;

/* As the program waits: one more answer, and behind that no other. */
static void one_answer(void)
{
    pthread_mutex_lock(&back_end.lock);
    if (atomic_fetch_add(&answered, 1))
        back_end.gone = true;
    else
        back_end.nothings = 1;
    pthread_cond_broadcast(&back_end.more);
    pthread_mutex_unlock(&back_end.lock);
}

/* One answer may have been under way when the function should have been named. */
static int is_lost_if_the_back_end_goes_within_two_answers(void)
{
    struct ibx_launch made;
    launched(FIRST, NULL, &made);
    waits_in_lost = one_answer;
    CHECK(ibx_frontend_host_lost(ibx_frontend_host_enqueued(), true, NULL));
    CHECK(answered == 2);
    return 0;
}

/* ------------------------------------------------------------ resets */

static int nobody_waits_behind_a_reset(void)
{
    struct ibx_launch made;
    struct ibx_launch_copy copy = {IBX_COPY_AWAITED, NULL};
    struct ibx_launch_wait wait = {.code = CUDA_NOT_READY};
    const uint64_t number = launched(FIRST, &copy, &made);
    CHECK(ibx_frontend_host_waits(FIRST));
    ibx_frontend_host_reset(0);
    CHECK(!ibx_frontend_host_functions() && !ibx_frontend_host_waits(FIRST));
    ibx_frontend_host_await(&made, FIRST, &wait);
    CHECK(!wait.code && !asked);
    ibx_frontend_host_outstanding(visit, NULL);
    CHECK(!visits);
    /* If it is called all the same, it is none that is outstanding. */
    struct ibx_launch again;
    launched(SECOND, NULL, &again); /* or the thread would not ask */
    ibx_frontend_host_reset(0);
    pthread_mutex_lock(&back_end.lock);
    back_end.number = number;
    pthread_cond_broadcast(&back_end.more);
    pthread_mutex_unlock(&back_end.lock);
    await(&first_called, 1);
    static _Atomic unsigned called;
    CHECK(!call_one(&called)); /* its stream has gone on */
    CHECK(!ibx_frontend_host_functions());
    return 0;
}

/* ------------------------------------------------------------ bytes with the back end's message */

static int takes_the_bytes_that_come(void)
{
    static _Atomic unsigned called;
    back_end.takes_bytes = true;
    back_end.bytes = IBX_EXT_COPIED;
    CHECK(!cudaLaunchHostFunc(FIRST, count, (void *)&called));
    await(&copies, 1);
    rests();
    CHECK(copied_bytes == IBX_EXT_COPIED && !called);
    back_end.bytes = IBX_EXT_COPIED + 1; /* more than there can be */
    CHECK(!call_one(&called) && copies == 1);
    back_end.bytes = 0;
    CHECK(!call_one(&called) && copies == 1);
    return 0;
}

static _Atomic unsigned firsts, begins, ends;

static void is_first(void)
{
    firsts++;
}
static void is_begun(void)
{
    begins++;
}
static void is_over(void)
{
    ends++;
}

/* Set while a function runs: it has not been told that it begins. */
static int is_told_of_functions_that_run(void)
{
    static const struct ibx_frontend_around around = {is_first, is_begun, is_over};
    static _Atomic unsigned called;
    CHECK(!cudaLaunchHostFunc(FIRST, stays, NULL));
    await(&begun, 1);
    ibx_frontend_around_functions(&around);
    CHECK(begins == 1 && !ends && !firsts);
    may_return = true;
    await(&ends, 1);
    CHECK(!call_one(&called) && begins == 2 && ends == 2);
    return 0;
}

static int is_told_of_the_first_function(void)
{
    static const struct ibx_frontend_around around = {is_first, is_begun, is_over};
    static _Atomic unsigned called;
    ibx_frontend_around_functions(&around);
    CHECK(!begins);
    CHECK(!call_one(&called) && !call_one(&called));
    CHECK(firsts == 1 && begins == 2 && ends == 2);
    return 0;
}

/* ------------------------------------------------------------ children */

static int in_child(uint64_t number, struct ibx_launch *made)
{
    static _Atomic unsigned called;
    struct host_node host;
    /* The back end of this process has none of its parent's functions. */
    pthread_mutex_init(&back_end.lock, NULL);
    pthread_cond_init(&back_end.more, NULL);
    application = pthread_self();
    CHECK(!ibx_frontend_host_functions() && !ibx_frontend_host_waits(FIRST));
    CHECK(!ibx_frontend_host_enqueued() && !ibx_frontend_gives_beside());
    a_child = true; /* whose parent may have functions */
    CHECK(ibx_frontend_gives_beside());
    CHECK(!ibx_frontend_host_function_of(number, &host));
    ibx_frontend_host_outstanding(visit, NULL);
    CHECK(!visits);
    CHECK(!call_one(&called)); /* it has a thread of its own */
    launched(FIRST, NULL, made);
    back_end_changes(&back_end.gone, true);
    CHECK(ibx_frontend_host_lost(ibx_frontend_host_enqueued(), true, NULL));
    CHECK(!ibx_frontend_host_event_lost(EVENT)); /* a handle of the parent's */
    return 0;
}

static int a_child_has_none(void)
{
    static _Atomic unsigned called;
    struct ibx_launch made;
    int status = -1;
    for (unsigned i = 0; i < 8; i++) /* the parent's order is ahead of the child's */
        CHECK(!call_one(&called));
    const uint64_t number = launched(FIRST, NULL, &made);
    ibx_frontend_host_event(EVENT, FIRST);
    CHECK(!cudaLaunchHostFunc(SECOND, stays, NULL));
    await(&begun, 1);
    const pid_t child = fork();
    if (!child) {
        alarm(FAILED_S);
        _exit(in_child(number, &made));
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(!status);
    CHECK(ibx_frontend_host_waits(FIRST));
    may_return = true;
    return 0;
}

#define SCENE(name)                                                                                \
    static void test_##name(void **state)                                                          \
    {                                                                                              \
        (void)state;                                                                               \
        run(name);                                                                                 \
    }

SCENE(waits_until_it_returns)
SCENE(waits_in_the_order_of_an_event)
SCENE(waits_in_the_order_of_an_early_call)
SCENE(stops_waiting_for_an_early_call)
SCENE(waits_in_the_order_of_a_launch)
SCENE(is_seen_while_it_runs)
SCENE(is_not_outstanding_if_it_was_refused)
SCENE(is_lost_with_the_back_end)
SCENE(is_lost_if_the_back_end_goes_within_two_answers)
SCENE(nobody_waits_behind_a_reset)
SCENE(takes_the_bytes_that_come)
SCENE(is_told_of_functions_that_run)
SCENE(is_told_of_the_first_function)
SCENE(a_child_has_none)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_waits_until_it_returns),
        cmocka_unit_test(test_waits_in_the_order_of_an_event),
        cmocka_unit_test(test_waits_in_the_order_of_an_early_call),
        cmocka_unit_test(test_stops_waiting_for_an_early_call),
        cmocka_unit_test(test_waits_in_the_order_of_a_launch),
        cmocka_unit_test(test_is_seen_while_it_runs),
        cmocka_unit_test(test_is_not_outstanding_if_it_was_refused),
        cmocka_unit_test(test_is_lost_with_the_back_end),
        cmocka_unit_test(test_is_lost_if_the_back_end_goes_within_two_answers),
        cmocka_unit_test(test_nobody_waits_behind_a_reset),
        cmocka_unit_test(test_takes_the_bytes_that_come),
        cmocka_unit_test(test_is_told_of_functions_that_run),
        cmocka_unit_test(test_is_told_of_the_first_function),
        cmocka_unit_test(test_a_child_has_none),
    };
    return cmocka_run_group_tests_name("host waits", tests, NULL, NULL);
}
