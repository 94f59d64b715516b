/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Events that graphs name and clients destroy, and handles that are in use. CUDA's double ends the
 * process where the driver does. */
#include "common/clock.h"
#include "frontend-glue/session/session_internal.h"
#include "tests/fixtures/extensions.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <dirent.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#define TIMES 100u /* as fast as the real time */

static _Atomic uint64_t fast_since; /* 0: time passes as it does */

int __real_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t);
int __real_pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock,
                                  const struct timespec *until);
int __wrap_pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock,
                                  const struct timespec *until);

int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
    const int rc = __real_clock_gettime(clock, t);
    const uint64_t since = clock == CLOCK_MONOTONIC ? fast_since : 0;
    const uint64_t ns = (uint64_t)t->tv_sec * 1000000000u + (uint64_t)t->tv_nsec;
    if (since)
        *t = ibx_timespec_of(since + (ns - since) * TIMES);
    return rc;
}

/* Wakes up without a cause, to look at the time. */
int __wrap_pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock,
                                  const struct timespec *until)
{
    struct timespec soon;
    __real_clock_gettime(clock, &soon);
    soon = ibx_timespec_of((uint64_t)soon.tv_sec * 1000000000u + (uint64_t)soon.tv_nsec + 1000000u);
    return __real_pthread_cond_clockwait(cond, mutex, clock, fast_since ? &soon : until);
}

static void *event_make(void)
{
    void *event = NULL;
    assert_int_equal(app->event_create(&event, 0), 0);
    assert_true(ibx_handles_add(&alice.x, IBX_HANDLE_EVENT, (uintptr_t)event));
    return event;
}

/* Adds a node with an event or a graph. */
static uint64_t node_add(unsigned number, uint64_t graph, uint64_t what)
{
    uint64_t node = 0;
    uint8_t bytes[32];
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), number);
    ibx_put_u64(&w, graph);
    ibx_put_u16(&w, 0);
    ibx_put_u64(&w, what);
    assert_int_equal(ext_run(&alice, &w, &node), 0);
    return node;
}

static uint64_t graph_with(unsigned number, const void *event, uint64_t *node)
{
    uint64_t graph = 0;
    assert_int_equal(ext_graph_create(&alice, &graph), 0);
    *node = node_add(number, graph, (uintptr_t)event);
    return graph;
}

static int instantiate(uint64_t graph, uint64_t *exec)
{
    return ext_call(&alice, IBX_EXT_GRAPH_INSTANTIATE, 2, (uint64_t[]){graph, 0}, exec);
}

static int update(uint64_t exec, uint64_t graph)
{
    return ext_call(&alice, IBX_EXT_EXEC_UPDATE, 2, (uint64_t[]){exec, graph}, NULL);
}

/* As the back end launches it. */
static int launch(uint64_t exec)
{
    int (*run)(void *exec, void *stream) = NULL;
    *(void **)&run = ibx_back_end_runtime("cudaGraphLaunch");
    assert_true(run && ibx_handles_know(&alice.x, IBX_HANDLE_EXEC, exec));
    int rc = ibx_graph_events_launch(&alice.x, exec);
    if (!rc)
        rc = run(pointer_to(exec), NULL);
    ibx_handles_let_go(&alice.x);
    return rc;
}

static int upload(uint64_t exec)
{
    return ext_call(&alice, IBX_EXT_EXEC_UPLOAD, 2, (uint64_t[]){exec, 0}, NULL);
}

/* Whether GVirtuS's handler would get it, as for a request that has more bytes. */
static bool handler_launches(struct gpu_session *x, uint64_t exec)
{
    uint8_t body[17] = {0};
    struct ibx_writer w = ibx_writer_of(body, sizeof(body));
    ibx_put_u64(&w, exec);
    strcpy(x->requests.name, "cudaGraphLaunch");
    ibx_named_invalidate(x, body, sizeof(body));
    struct ibx_reader r = ibx_reader_of(body, sizeof(body));
    ibx_handles_let_go(x);
    return ibx_get_u64(&r) == exec;
}

static void destroy(uint64_t exec, uint64_t graph)
{
    if (exec)
        ext_exec_destroy(&alice, exec);
    if (graph)
        ext_graph_destroy(&alice, graph);
}

static const unsigned kinds[] = {IBX_EXT_NODE_RECORD, IBX_EXT_NODE_WAIT};

/* No executable graph is made of a graph that names a destroyed event, also within it, nor updated
 * by one. */
static void test_made_of_destroyed_events(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        uint64_t node, exec = 0, none = 0, outer;
        void *event = event_make(), *other = event_make();
        const uint64_t graph = graph_with(kinds[i], event, &node);
        const uint64_t good = graph_with(kinds[i], other, &node);
        assert_int_equal(ext_graph_create(&alice, &outer), 0);
        node_add(IBX_EXT_NODE_CHILD, outer, graph);
        assert_int_equal(instantiate(good, &exec), 0);
        assert_int_equal(update(exec, graph), 0);
        ext_event_destroy(event);
        assert_int_equal(instantiate(graph, &none), CUDA_INVALID_HANDLE);
        assert_int_equal(instantiate(outer, &none), CUDA_INVALID_HANDLE);
        assert_int_equal(update(exec, graph), CUDA_INVALID_HANDLE);
        assert_int_equal(update(exec, good), 0);
        assert_int_equal(launch(exec), 0);
        destroy(exec, good);
        destroy(0, outer);
        destroy(0, graph);
        ext_event_destroy(other);
    }
}

/* An executable graph that waits for a destroyed event is not launched; one that records it is. A
 * graph may be destroyed after the events that it names. */
static void test_launched_with_destroyed_events(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        uint64_t node, exec = 0, around = 0, outer;
        void *event = event_make();
        const uint64_t graph = graph_with(kinds[i], event, &node);
        assert_int_equal(ext_graph_create(&alice, &outer), 0);
        node_add(IBX_EXT_NODE_CHILD, outer, graph);
        assert_int_equal(instantiate(graph, &exec), 0);
        assert_int_equal(instantiate(outer, &around), 0);
        assert_int_equal(launch(exec), 0);
        assert_int_equal(launch(around), 0);
        assert_true(handler_launches(&alice.x, exec) && upload(exec) == 0);
        ext_event_destroy(event);
        const int code = kinds[i] == IBX_EXT_NODE_WAIT ? CUDA_INVALID_HANDLE : 0;
        assert_int_equal(launch(exec), code);
        assert_int_equal(launch(around), code);
        assert_int_equal(upload(exec), 0); /* as by driver 580 */
        assert_int_equal(handler_launches(&alice.x, exec), !code);
        destroy(exec, graph);
        destroy(around, outer);
    }
}

/* The same after an update, whose nodes are those of another graph. */
static void test_another_event_after_an_update(void **state)
{
    uint64_t node, other_node, exec = 0;
    void *event = event_make(), *other = event_make(), *third = event_make();
    const uint64_t graph = graph_with(IBX_EXT_NODE_WAIT, event, &node);
    const uint64_t with = graph_with(IBX_EXT_NODE_WAIT, other, &other_node);
    (void)state;
    assert_int_equal(instantiate(graph, &exec), 0);
    assert_int_equal(update(exec, with), 0);
    const uint64_t set[] = {exec, node, (uintptr_t)third};
    assert_int_equal(ext_call(&alice, IBX_EXT_SET_EVENT, 3, set, NULL), 0);
    ext_event_destroy(other);
    assert_int_equal(launch(exec), 0);
    ext_event_destroy(third);
    assert_int_equal(launch(exec), CUDA_INVALID_HANDLE);
    ext_event_destroy(event);
    destroy(exec, graph);
    destroy(0, with);
}

/* A node of an executable graph gets another event: then the one before may be destroyed, and the
 * other one counts. */
static void test_another_event(void **state)
{
    uint64_t node, exec = 0;
    void *event = event_make(), *other = event_make();
    const uint64_t graph = graph_with(IBX_EXT_NODE_WAIT, event, &node);
    (void)state;
    assert_int_equal(instantiate(graph, &exec), 0);
    const uint64_t set[] = {exec, node, (uintptr_t)other};
    assert_int_equal(ext_call(&alice, IBX_EXT_SET_EVENT, 3, set, NULL), 0);
    ext_event_destroy(event);
    assert_int_equal(launch(exec), 0);
    ext_event_destroy(other);
    assert_int_equal(launch(exec), CUDA_INVALID_HANDLE);
    destroy(exec, graph);
}

static struct gpu_session another_session(const char *name, uint64_t value)
{
    struct gpu_session other = alice.x;
    memset(&other.graph_events, 0, sizeof(other.graph_events));
    memset(&other.requests, 0, sizeof(other.requests));
    other.held_count = 0;
    other.requests.stage = IBX_REQUEST_BODY;
    other.requests.length = sizeof(value);
    snprintf(other.requests.name, sizeof(other.requests.name), "%s", name);
    memcpy(other.requests.first, &value, sizeof(value));
    return other;
}

static void *destroy_event(void *event)
{
    struct gpu_session other = another_session("", (uintptr_t)event);
    return ibx_handles_remove(&other, IBX_HANDLE_EVENT, (uintptr_t)event) ? event : NULL;
}

/* Another session that destroys an event waits until a launch that waits for it is over. */
static void test_destroyed_beside_a_launch(void **state)
{
    uint64_t node, exec = 0;
    void *event = event_make(), *result = NULL;
    pthread_t thread;
    const uint64_t graph = graph_with(IBX_EXT_NODE_WAIT, event, &node);
    (void)state;
    assert_int_equal(instantiate(graph, &exec), 0);
    assert_int_equal(ibx_graph_events_launch(&alice.x, exec), 0);
    assert_int_equal(pthread_create(&thread, NULL, destroy_event, event), 0);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec = (until.tv_nsec + 100000000) % 1000000000;
    until.tv_sec += until.tv_nsec < 100000000;
    assert_int_not_equal(pthread_timedjoin_np(thread, &result, &until), 0);
    assert_true(ibx_handles_has(&alice.x, IBX_HANDLE_EVENT, (uintptr_t)event));
    ibx_handles_let_go(&alice.x);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_ptr_equal(result, event);
    assert_int_equal(app->event_destroy(event), 0);
    destroy(exec, graph);
}

static void *handler_destroys_exec(void *exec)
{
    uint64_t body = (uintptr_t)exec;
    struct gpu_session other = another_session("cudaGraphExecDestroy", body);
    return ibx_isolation_before_read(&other, (uint8_t *)&body, sizeof(body)) ? exec
                                                                             : pointer_to(body);
}

/* What GVirtuS's handler of that name would get. */
static uint64_t handler_gets(const char *name, uint64_t graph)
{
    struct gpu_session x = another_session(name, graph);
    uint8_t body[8];
    struct ibx_writer w = ibx_writer_of(body, sizeof(body));
    ibx_put_u64(&w, graph);
    ibx_named_invalidate(&x, body, sizeof(body));
    struct ibx_reader r = ibx_reader_of(body, sizeof(body));
    ibx_handles_let_go(&x);
    return ibx_get_u64(&r);
}

static void *handler_lists(void *graph)
{
    return pointer_to(handler_gets("cudaGraphGetNodes", (uintptr_t)graph));
}

static void *handler_launches_it(void *exec)
{
    struct gpu_session x = another_session("cudaGraphLaunch", (uintptr_t)exec);
    return handler_launches(&x, (uintptr_t)exec) ? exec : NULL;
}

/* Another request than alice's destroys an event. Returns what GVirtuS's handler gets, which is
 * CUDA's to destroy. */
static uint64_t handler_destroys_event(const void *event)
{
    uint64_t body = (uintptr_t)event;
    struct gpu_session other = another_session("cudaEventDestroy", body);
    ibx_made_read(&other, "cudaEventDestroy");
    assert_int_equal(ibx_made_run(&other, (uint8_t *)&body), 0);
    assert_false(ibx_handles_has(&alice.x, IBX_HANDLE_EVENT, (uintptr_t)event));
    return body;
}

/* GVirtuS's handlers do not get what another request holds for more than 10 s. So nothing stays
 * known that is destroyed. An event is destroyed at once, for the client: the handler gets another
 * one, and the last request that holds the event destroys it. */
static void test_held_for_too_long(void **state)
{
    uint64_t node, exec = 0, changed = 0, many = 0;
    void *event = event_make(), *handled = &exec, *launched = &exec, *listed = &exec;
    pthread_t thread, launching, listing;
    const uint64_t graph = graph_with(IBX_EXT_NODE_WAIT, event, &node);
    bool (*is_event)(const void *event) = NULL;
    *(void **)&is_event = ibx_cuda_symbol("ibx_double_is_event");
    (void)state;
    fast_since = ibx_now_ns();
    strcpy(session->path.provider, "shm"); /* warnings name the peer */
    assert_int_equal(instantiate(graph, &changed), 0);
    assert_int_equal(ext_graph_create(&alice, &many), 0);
    struct gpu_session adds = another_session("ibxRuntime", many);
    assert_true(ibx_handles_know(&adds, IBX_HANDLE_GRAPH, many));
    assert_int_equal(pthread_create(&listing, NULL, handler_lists, pointer_to(many)), 0);
    struct gpu_session changes = another_session("ibxRuntime", changed);
    assert_true(ibx_handles_change(&changes, IBX_HANDLE_EXEC, changed));
    assert_int_equal(instantiate(graph, &exec), 0);
    assert_true(ibx_handles_know(&alice.x, IBX_HANDLE_EXEC, exec));
    assert_int_equal(ibx_graph_events_launch(&alice.x, exec), 0);
    assert_int_equal(pthread_create(&launching, NULL, handler_launches_it, pointer_to(changed)), 0);
    assert_int_equal(pthread_create(&thread, NULL, handler_destroys_exec, pointer_to(exec)), 0);
    void *instead = pointer_to(handler_destroys_event(event));
    assert_true(instead != event && is_event(instead));
    assert_int_equal(app->event_destroy(instead), 0);
    assert_int_equal(pthread_join(thread, &handled), 0);
    assert_int_equal(pthread_join(launching, &launched), 0);
    assert_int_equal(pthread_join(listing, &listed), 0);
    assert_true(!handled && !launched && !listed);
    ibx_handles_let_go(&adds);
    assert_int_equal(handler_gets("cudaGraphGetNodes", many), many);
    assert_true(is_event(event));
    ibx_handles_let_go(&alice.x);
    assert_false(is_event(event));
    destroy(0, many);
    ibx_handles_let_go(&changes);
    assert_int_equal(launch(exec), CUDA_INVALID_HANDLE); /* what it waits for is gone */
    fast_since = 0;
    destroy(changed, 0);
    destroy(exec, graph);
}

/* Until so many threads beside this one sleep. */
static void wait_for_sleepers(unsigned wanted)
{
    for (unsigned sleeping = 0; sleeping < wanted;) {
        DIR *tasks = opendir("/proc/self/task");
        char path[64], state = 0;
        assert_non_null(tasks);
        sleeping = 0;
        for (const struct dirent *task; (task = readdir(tasks));) {
            snprintf(path, sizeof(path), "/proc/self/task/%.20s/stat", task->d_name);
            FILE *stat = task->d_name[0] == '.' ? NULL : fopen(path, "re");
            if (stat && fscanf(stat, "%*d (%*[^)]) %c", &state) == 1)
                sleeping += state == 'S';
            if (stat)
                fclose(stat);
        }
        closedir(tasks);
        sched_yield();
    }
}

/* Two requests destroy what a third one holds: one handler gets it. */
static void test_two_destroy(void **state)
{
    uint64_t node, exec = 0;
    void *event = event_make(), *one = &exec, *two = &exec;
    pthread_t first, second;
    const uint64_t graph = graph_with(IBX_EXT_NODE_WAIT, event, &node);
    (void)state;
    strcpy(session->path.provider, "shm");
    assert_int_equal(instantiate(graph, &exec), 0);
    assert_true(ibx_handles_know(&alice.x, IBX_HANDLE_EXEC, exec));
    assert_int_equal(pthread_create(&first, NULL, handler_destroys_exec, pointer_to(exec)), 0);
    assert_int_equal(pthread_create(&second, NULL, handler_destroys_exec, pointer_to(exec)), 0);
    wait_for_sleepers(2);
    ibx_handles_let_go(&alice.x);
    assert_int_equal(pthread_join(first, &one), 0);
    assert_int_equal(pthread_join(second, &two), 0);
    assert_true(!one != !two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_destroy),
        cmocka_unit_test(test_made_of_destroyed_events),
        cmocka_unit_test(test_launched_with_destroyed_events),
        cmocka_unit_test(test_another_event),
        cmocka_unit_test(test_another_event_after_an_update),
        cmocka_unit_test(test_destroyed_beside_a_launch),
        cmocka_unit_test(test_held_for_too_long),
    };
    return cmocka_run_group_tests(tests, ext_set_up, ext_tear_down);
}
