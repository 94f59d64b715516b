/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Executable graphs that are destroyed while they run. This file replaces everything around
 * exec_ends.c: an exec is also the event behind its last launch, and is in context 1 or 2. */
#include "frontend-glue/clients/clients.h"
#include "tests/fixtures/unit.h"

#include "common/clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HANG_S 20u

static uint64_t of_client;    /* whose session it is */
static uintptr_t context_now; /* of the caller */
static uintptr_t pushed_from, recorded_in;
static bool running; /* all launches */
static bool context_gone, destroy_fails;
static int last_error;
static unsigned giving, functions_gone;
static bool resets;                /* a client resets the context */
static unsigned queries;           /* so far */
static _Atomic unsigned naps;      /* so far, */
static uint64_t nap_ns;            /* of each, for exec_ends.c, ... */
static _Atomic uint64_t slept_ns;  /* ... and of all */
static unsigned destroyed, events; /* events: made and not destroyed */
static void (*meanwhile)(void);    /* what others do while the driver is asked, */
static void (*in_destroy)(void);   /* ... or destroys one later */
static struct ibx_quota execs;     /* the tenant's */

static int get_context(void **context)
{
    *context = pointer_to(context_now);
    return 0;
}

static int push(void *context)
{
    if (context_gone)
        return IBX_CUDA_NOT_READY;
    pushed_from = context_now;
    context_now = (uintptr_t)context;
    return 0;
}

static int pop(void **context)
{
    (void)context;
    context_now = pushed_from;
    return 0;
}

/* A stream is the number of its context, and of none if that is odd. */
static int context_of(void *stream, void **context)
{
    *context = stream;
    return (uintptr_t)stream % 2 ? IBX_CUDA_NOT_READY : 0;
}

static int event_create(void **event, unsigned flags)
{
    (void)flags;
    *event = &events;
    events++;
    return 0;
}

static int event_record(void *event, void *stream)
{
    (void)event;
    recorded_in = context_now;
    return (uintptr_t)stream > 2 && stream != pointer_to(context_now) ? IBX_CUDA_NOT_READY : 0;
}

static int event_query(void *event)
{
    (void)event;
    queries++;
    if (meanwhile)
        meanwhile();
    return running ? IBX_CUDA_NOT_READY : 0;
}

static int event_synchronize(void *event)
{
    (void)event;
    return 0;
}

static int event_destroy(void *event)
{
    (void)event;
    events--;
    return 0;
}

static const struct ibx_cuda cuda = {.ctx_get_current = get_context,
                                     .ctx_push_current = push,
                                     .ctx_pop_current = pop,
                                     .stream_get_context = context_of,
                                     .event_create = event_create,
                                     .event_record = event_record,
                                     .event_query = event_query,
                                     .event_synchronize = event_synchronize,
                                     .event_destroy = event_destroy};
static struct gpu_session x = {.cuda = &cuda};

bool ibx_back_end_have_cuda(struct gpu_session *session)
{
    return session->cuda;
}

static int peek_error(void)
{
    return last_error;
}

static int take_error(void)
{
    const int error = last_error;
    last_error = 0;
    return error;
}

void *ibx_back_end_runtime(const char *name)
{
    int (*const function)(void) = strcmp(name, "cudaGetLastError") ? peek_error : take_error;
    void *found;
    memcpy(&found, &function, sizeof(found));
    return found;
}

void ibx_back_end_undo(const char *name, uint64_t made)
{
    (void)name, (void)made;
    if (in_destroy)
        in_destroy();
    destroyed++;
    last_error = destroy_fails ? 700 : last_error;
}

bool ibx_clients_give_begin(void)
{
    giving += !resets;
    return !resets;
}

void ibx_clients_give_end(void)
{
    giving--;
}

uint64_t ibx_clients_number(struct gpu_session *session)
{
    (void)session;
    return of_client;
}

void ibx_owners_remove(uint64_t base, uint64_t number)
{
    (void)base, (void)number;
}

void ibx_room_end(struct ibx_room *room)
{
    ibx_quota_give(room->quota, room->n);
    *room = (struct ibx_room){.quota = NULL};
}

void ibx_exec_functions_gone(const void *exec)
{
    functions_gone += exec != NULL;
}

int __real_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    const int rc = __real_clock_gettime(clock, time);
    *time =
        ibx_timespec_of((uint64_t)time->tv_sec * 1000000000u + (uint64_t)time->tv_nsec + slept_ns);
    return rc;
}

void ibx_nap(uint64_t *ns)
{
    *ns += 1;
    slept_ns += nap_ns;
    naps++;
}

static int destroy(void *exec)
{
    (void)exec;
    destroyed++;
    return 0;
}

/* `count` executable graphs of a client are launched and destroyed; the first one is `first`. */
static void destroy_some(uint64_t client, uintptr_t first, unsigned count)
{
    struct ibx_exec_left none = {.owned = 0};
    of_client = client;
    for (uintptr_t exec = first; exec < first + count; exec++)
        ibx_exec_ends_launched(&x, pointer_to(exec), NULL);
    for (uintptr_t exec = first; exec < first + count; exec++)
        assert_int_equal(ibx_exec_ends_destroy(&x, pointer_to(exec), destroy, &none), 0);
}

static int begin(void **state)
{
    (void)state;
    alarm(HANG_S);
    ibx_exec_ends_forget(NULL);
    meanwhile = in_destroy = NULL;
    context_now = 1;
    running = true;
    resets = context_gone = destroy_fails = false;
    last_error = 0;
    giving = functions_gone = 0;
    queries = destroyed = events = 0;
    naps = 0;
    nap_ns = 0;
    slept_ns = 0;
    execs = (struct ibx_quota){.most = 100};
    return 0;
}

static void launch_another(void)
{
    meanwhile = NULL;
    ibx_exec_ends_launched(&x, pointer_to(77), NULL);
}

/* The driver may let a look wait; launches by others go on, and other looks. */
static void test_launch_while_the_driver_is_asked(NO_STATE)
{
    destroy_some(1, 10, 1);
    meanwhile = launch_another;
    ibx_exec_ends_tidy(&x);
    assert_int_equal(events, 2);
    assert_int_equal(destroyed, 0);
}

static void look_again(void)
{
    meanwhile = NULL;
    ibx_exec_ends_tidy(&x);
}

/* Two threads look at the same time: each is destroyed once. */
static void test_two_look(NO_STATE)
{
    destroy_some(1, 10, 3);
    running = false;
    queries = 0;
    meanwhile = look_again;
    ibx_exec_ends_tidy(&x);
    assert_int_equal(destroyed, 3);
    assert_int_equal(queries, 3);
    assert_int_equal(events, 0);
}

static void context_goes(void)
{
    meanwhile = NULL;
    ibx_exec_ends_forget(pointer_to(1));
}

/* What is looked at goes with its context: it is not destroyed in one that has the same address. */
static void test_context_goes_while_the_driver_is_asked(NO_STATE)
{
    destroy_some(1, 10, 2);
    context_now = 2;
    destroy_some(1, 20, 1);
    running = false;
    queries = 0;
    meanwhile = context_goes;
    ibx_exec_ends_tidy(&x);
    ibx_exec_ends_tidy(&x);
    assert_int_equal(destroyed, 1);
    assert_int_equal(queries, 2); /* not that of the second one */
}

/* No event is behind its last launch: that of the one before does not stand for it, and no other
 * client destroys it. */
static void test_launch_without_event(NO_STATE)
{
    struct ibx_exec_left left = {.owned = 0};
    of_client = 1;
    ibx_exec_ends_launched(&x, pointer_to(10), NULL);
    ibx_exec_ends_unseen(&x, pointer_to(10));
    assert_int_equal(events, 0);
    assert_int_equal(ibx_exec_ends_destroy(&x, pointer_to(10), destroy, &left), 0);
    assert_int_equal(destroyed, 1);
    ibx_exec_ends_unseen(&x, pointer_to(11));
    ibx_exec_ends_launched(&x, pointer_to(11), NULL);
    assert_int_equal(ibx_exec_ends_destroy(&x, pointer_to(11), destroy, &left), 0);
    assert_int_equal(destroyed, 1);
}

/* The event is in the context of the stream, whatever is current; one that cannot be recorded does
 * not stand for the launch. */
static void test_launch_in_another_context(NO_STATE)
{
    struct ibx_exec_left left = {.owned = 0};
    of_client = 1;
    ibx_exec_ends_launched(&x, pointer_to(10), pointer_to(4));
    assert_true(recorded_in == 4 && context_now == 1);
    ibx_exec_ends_launched(&x, pointer_to(10), pointer_to(6));
    assert_true(recorded_in == 6 && context_now == 1);
    ibx_exec_ends_launched(&x, pointer_to(10), pointer_to(2)); /* the thread's own */
    assert_true(recorded_in == 1 && context_now == 1);
    assert_int_equal(events, 1);
    assert_int_equal(ibx_exec_ends_destroy(&x, pointer_to(10), destroy, &left), 0);
    assert_int_equal(destroyed, 0);
    ibx_exec_ends_launched(&x, pointer_to(11), pointer_to(4));
    ibx_exec_ends_launched(&x, pointer_to(11), pointer_to(5)); /* it is gone */
    assert_int_equal(events, 1);
    assert_int_equal(ibx_exec_ends_destroy(&x, pointer_to(11), destroy, &left), 0);
    assert_int_equal(destroyed, 1);
}

/* The functions of one go when it cannot be launched any more, not when CUDA destroys it. */
static void test_functions(NO_STATE)
{
    destroy_some(1, 10, 1);
    assert_int_equal(functions_gone, 1);
    running = false;
    destroy_some(1, 20, 1);
    assert_true(functions_gone == 2 && destroyed == 2);
    ibx_exec_ends_launched(&x, pointer_to(30), NULL);
    ibx_exec_ends_wait(&x, pointer_to(30));
    assert_int_equal(functions_gone, 3);
    assert_int_equal(events, 0);
}

/* One that is destroyed later leaves no error to the client whose request that is, whose own stays.
 * A reset waits no longer than the looks take. */
static void test_errors_of_others(NO_STATE)
{
    destroy_fails = true;
    for (int own = 0; own <= 46; own += 46) {
        running = true;
        destroy_some(1, 10, 1);
        running = false;
        last_error = own;
        ibx_exec_ends_tidy(&x);
        assert_true(own ? last_error : !last_error);
    }
    assert_int_equal(destroyed, 2);
    assert_int_equal(giving, 0);
}

/* If its context cannot be current any more, it has gone with that. */
static void test_context_cannot_be_current(NO_STATE)
{
    destroy_some(1, 10, 1);
    context_gone = true;
    ibx_exec_ends_tidy(&x);
    context_gone = false;
    assert_int_equal(queries, 1); /* when it was destroyed by its client */
    ibx_exec_ends_tidy(&x);
    assert_int_equal(queries, 1);
    assert_int_equal(destroyed, 0);
}

/* A client that leaves waits for its own only. */
static void test_settle(NO_STATE)
{
    destroy_some(1, 1000, 200);
    destroy_some(2, 2000, 100);
    running = false;
    queries = 0;
    ibx_exec_ends_settle(&x, 2);
    assert_int_equal(destroyed, 100);
    assert_int_equal(queries, 100);
    assert_int_equal(naps, 0);
    ibx_exec_ends_settle(&x, 2);
    assert_int_equal(queries, 100);
    running = true;
    ibx_exec_ends_settle(&x, 1);
    assert_true(naps > 0);
    resets = true;
    naps = 0;
    ibx_exec_ends_settle(&x, 1);
    assert_int_equal(naps, 0);
}

/* A further one is waited for; another client has as many. */
static void test_limit(NO_STATE)
{
    destroy_some(1, 10000, IBX_EXEC_ENDS_MOST);
    destroy_some(2, 20000, IBX_EXEC_ENDS_MOST);
    assert_int_equal(destroyed, 0);
    destroy_some(1, 30000, 1);
    assert_int_equal(destroyed, 1);
    running = false;
    for (unsigned looks = 0; looks < 2 * IBX_EXEC_ENDS_MOST / 64; looks++)
        ibx_exec_ends_tidy(&x);
    assert_int_equal(destroyed, 2 * IBX_EXEC_ENDS_MOST + 1);
    assert_int_equal(events, 0);
}

/* Launches and destroys an executable graph of graph 5, which has room for 3 nodes. */
static void destroy_with_room(uintptr_t exec)
{
    struct ibx_exec_left left = {.graph = 5};
    of_client = 1;
    assert_true(ibx_quota_take(&execs, 3));
    left.room = (struct ibx_room){&execs, 3};
    ibx_exec_ends_launched(&x, pointer_to(exec), NULL);
    assert_int_equal(ibx_exec_ends_destroy(&x, pointer_to(exec), destroy, &left), 0);
}

/* The room stays the graph's, and is given back once. */
static void test_room(NO_STATE)
{
    destroy_with_room(10);
    assert_int_equal(ibx_quota_used(&execs), 3);
    running = false;
    ibx_exec_ends_tidy(&x);
    assert_int_equal(ibx_quota_used(&execs), 0);
    destroy_with_room(11);
    assert_int_equal(destroyed, 2);
    assert_int_equal(ibx_quota_used(&execs), 0);
    running = true;
    destroy_with_room(12);
    ibx_exec_ends_forget(NULL);
    assert_int_equal(ibx_quota_used(&execs), 0);
}

static pthread_t waiter;
static atomic_bool has_waited;
static bool were_some;
static uint64_t used_then;

static void *wait_for_graph(void *unused)
{
    (void)unused;
    were_some = ibx_exec_ends_wait_graph(&x, 5);
    used_then = ibx_quota_used(&execs);
    atomic_store(&has_waited, true);
    return NULL;
}

static void start_waiter(void)
{
    in_destroy = NULL;
    if (pthread_create(&waiter, NULL, wait_for_graph, NULL))
        abort();
    while (!naps && !atomic_load(&has_waited)) {
    }
}

/* Who needs its end waits for it until CUDA has destroyed it, and then has its room. */
static void test_waits_for_one_that_is_being_destroyed(NO_STATE)
{
    atomic_store(&has_waited, false);
    destroy_with_room(10);
    running = false;
    in_destroy = start_waiter;
    ibx_exec_ends_tidy(&x);
    assert_int_equal(pthread_join(waiter, NULL), 0);
    assert_true(were_some);
    assert_int_equal(used_then, 0);
    assert_int_equal(destroyed, 1);
}

/* One whose launch does not end, perhaps because it waits for what this thread does next. */
static void test_waits_for_a_graph_as_long_as_it_may(NO_STATE)
{
    destroy_with_room(10);
    nap_ns = 100 * IBX_NS_PER_MS;
    const uint64_t before = ibx_now_ns();
    assert_true(ibx_exec_ends_wait_graph(&x, 5));
    assert_in_range(ibx_now_ns() - before, 10000 * IBX_NS_PER_MS, 20000 * IBX_NS_PER_MS);
    assert_int_equal(destroyed, 0);
}

static void context_goes_in_destroy(void)
{
    in_destroy = NULL;
    ibx_exec_ends_forget(pointer_to(1));
}

/* Its context goes while CUDA destroys it: nothing is given back twice. */
static void test_context_goes_while_it_is_destroyed(NO_STATE)
{
    destroy_with_room(10);
    running = false;
    assert_true(ibx_quota_take(&execs, 50));
    in_destroy = context_goes_in_destroy;
    ibx_exec_ends_tidy(&x);
    assert_int_equal(destroyed, 1);
    assert_int_equal(ibx_quota_used(&execs), 50);
    ibx_exec_ends_settle(&x, 1);
    assert_int_equal(naps, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_launch_while_the_driver_is_asked, begin),
        cmocka_unit_test_setup(test_two_look, begin),
        cmocka_unit_test_setup(test_context_goes_while_the_driver_is_asked, begin),
        cmocka_unit_test_setup(test_room, begin),
        cmocka_unit_test_setup(test_waits_for_one_that_is_being_destroyed, begin),
        cmocka_unit_test_setup(test_waits_for_a_graph_as_long_as_it_may, begin),
        cmocka_unit_test_setup(test_context_goes_while_it_is_destroyed, begin),
        cmocka_unit_test_setup(test_launch_without_event, begin),
        cmocka_unit_test_setup(test_launch_in_another_context, begin),
        cmocka_unit_test_setup(test_functions, begin),
        cmocka_unit_test_setup(test_errors_of_others, begin),
        cmocka_unit_test_setup(test_context_cannot_be_current, begin),
        cmocka_unit_test_setup(test_settle, begin),
        cmocka_unit_test_setup(test_limit, begin)};
    return cmocka_run_group_tests_name("exec-ends", tests, NULL, NULL);
}
