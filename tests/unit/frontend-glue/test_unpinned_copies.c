/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Asynchronous copies of memory that both ends map and that cannot be pinned, behind a kernel that
 * waits for the program which makes them: in the double, a stream that is held. */
#include "frontend-glue/clients/unpinned_copies.h"
#include "tests/fixtures/copies_scene.h"
#include "tests/fixtures/patience.h"

#include "common/clock.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <cmocka.h>

#define CHUNKS 40u
#define BYTES  ((size_t)3000000) /* six chunks, of which the last is not full */

static uint8_t *memory;
static void *stream;
static atomic_size_t pins_most; /* of the back end's session */

static atomic_bool has_ended; /* the client's process */

bool __wrap_ibx_clients_own_ended(const struct gpu_session *x);
bool __wrap_ibx_clients_own_ended(const struct gpu_session *x)
{
    (void)x;
    return has_ended;
}

enum { NO_CAPTURE, CAPTURE_BEGINS, CAPTURE_ENDS };
static atomic_int meanwhile;
static atomic_bool captures, ended;
static _Thread_local void *lent; /* the chunk that was lent last */
static _Atomic(void *) kept;     /* by the last copy */

void *__real_ibx_pinned_borrow(size_t bytes);
void *__wrap_ibx_pinned_borrow(size_t bytes);
bool __wrap_ibx_captures_any(void);
bool __wrap_ibx_captures_ended_since(const struct gpu_session *x, unsigned before);
struct ibx_unpinned_stream *__real_ibx_unpinned_begin(struct gpu_session *x, void *of,
                                                      uint64_t bytes);
struct ibx_unpinned_stream *__wrap_ibx_unpinned_begin(struct gpu_session *x, void *of,
                                                      uint64_t bytes);

static struct {
    atomic_bool on;
    uint8_t *host; /* cannot be read until `go` */
    sem_t reads, go;
    pthread_t graph;
    void (*function)(void *argument);
    void *argument;
    atomic_int code;
} beside_graph;

bool __wrap_ibx_captures_any(void)
{
    return captures;
}

bool __wrap_ibx_captures_ended_since(const struct gpu_session *x, unsigned before)
{
    (void)x;
    (void)before;
    if (beside_graph.on)
        sem_post(&beside_graph.go);
    return ended;
}

void *__wrap_ibx_pinned_borrow(size_t bytes)
{
    return lent = __real_ibx_pinned_borrow(bytes);
}

/* Another thread captures the stream before the copy is added. */
struct ibx_unpinned_stream *__wrap_ibx_unpinned_begin(struct gpu_session *x, void *of,
                                                      uint64_t bytes)
{
    struct ibx_unpinned_stream *begun = __real_ibx_unpinned_begin(x, of, bytes);
    if (begun && meanwhile == CAPTURE_BEGINS)
        app->capture(of);
    captures = begun && meanwhile == CAPTURE_BEGINS;
    ended = begun && meanwhile == CAPTURE_ENDS;
    kept = lent;
    return begun;
}

static _Atomic(void *) others[IBX_UNPINNED_STREAMS]; /* streams */
static atomic_uint beside;      /* streams that could be used beside the first one */
static atomic_bool as_long[2];  /* the longest copy; one that is longer by a byte */
static atomic_bool for_another; /* the latter, for another session */

static bool begins(struct gpu_session *x, void *of, uint64_t bytes)
{
    struct ibx_unpinned_stream *begun = ibx_unpinned_begin(x, of, bytes);
    return begun &&
           !ibx_unpinned_add(x, begun, memory, &(struct ibx_gpu_copy){.stream = of}, false);
}

static void find_limits(struct gpu_session *x)
{
    struct ibx_unpinned_stream *begun[IBX_UNPINNED_STREAMS];
    const uint64_t left = IBX_UNPINNED_PARTS - 1 - (BYTES / IBX_PINNED_CHUNK + 2);
    as_long[0] = begins(x, stream, left * IBX_PINNED_CHUNK);
    as_long[1] = begins(x, stream, left * IBX_PINNED_CHUNK + 1);
    struct gpu_session another = {.cuda = x->cuda};
    for_another = ibx_unpinned_begin(&another, others[0], left * IBX_PINNED_CHUNK + 1);
    for (beside = 0; beside < IBX_UNPINNED_STREAMS; beside++)
        if (!(begun[beside] = ibx_unpinned_begin(x, others[beside], 1)))
            break;
    for (unsigned i = 0; i < beside; i++)
        ibx_unpinned_add(x, begun[i], memory, &(struct ibx_gpu_copy){.stream = others[i]}, false);
}

static _Atomic(void *) lost[2 * IBX_UNPINNED_KEPT]; /* chunks that graphs may have */
static atomic_uint lost_count;

/* Captures end while copies are added, again and again. */
static void lose_chunks(struct gpu_session *x)
{
    meanwhile = CAPTURE_ENDS;
    while (lost_count < 2 * IBX_UNPINNED_KEPT && begins(x, stream, 1))
        lost[lost_count++] = lent;
    meanwhile = NO_CAPTURE;
    ended = false;
}

static atomic_uint together;  /* sessions that could begin while one capture ends */
static atomic_bool may_go_on; /* whether one that has a chunk already could, too */
static struct gpu_session earlier, crowd[2 * IBX_UNPINNED_KEPT];

/* Many sessions add copies while a capture ends. */
static void lose_together(struct gpu_session *x)
{
    struct ibx_unpinned_stream *begun[2 * IBX_UNPINNED_KEPT];
    const struct ibx_gpu_copy one = {.stream = stream, .device = device, .width = 1, .height = 1};
    earlier = (struct gpu_session){.cuda = x->cuda};
    struct ibx_unpinned_stream *before = ibx_unpinned_begin(&earlier, stream, 1);
    if (!before || ibx_unpinned_add(&earlier, before, memory, &one, false))
        return;
    for (unsigned i = 0; i < 2 * IBX_UNPINNED_KEPT; i++) {
        crowd[i] = (struct gpu_session){.cuda = x->cuda};
        if (!(begun[i] = ibx_unpinned_begin(&crowd[i], stream, 1)))
            break;
        lost[together++] = lent;
    }
    may_go_on = ibx_unpinned_begin(&earlier, stream, 1) == before;
    ended = true;
    for (unsigned i = 0; i < together; i++)
        ibx_unpinned_add(&crowd[i], begun[i], memory, &(struct ibx_gpu_copy){.stream = stream},
                         false);
    ended = false;
    if (may_go_on)
        ibx_unpinned_add(&earlier, before, memory, &(struct ibx_gpu_copy){.stream = stream}, false);
}

static atomic_uint at_once; /* sessions that began the longest copy before any of these was added */

static void begin_at_once(struct gpu_session *x)
{
    static struct gpu_session sessions[3];
    struct ibx_unpinned_stream *begun[3];
    at_once = 0;
    for (unsigned i = 0; i < 3; i++) {
        sessions[i] = (struct gpu_session){.cuda = x->cuda};
        begun[i] = ibx_unpinned_begin(&sessions[i], stream,
                                      (IBX_UNPINNED_PARTS - 1) * (uint64_t)IBX_PINNED_CHUNK);
        at_once += begun[i] != NULL;
    }
    for (unsigned i = 0; i < 3; i++)
        if (begun[i])
            ibx_unpinned_add(&sessions[i], begun[i], memory,
                             &(struct ibx_gpu_copy){.stream = stream}, false);
}

#define TENANTS 3
static atomic_uint taken_by[TENANTS]; /* copies of one part that each tenant could leave */

/* One tenant after the other leaves as many copies as it may. */
static void take_all(struct gpu_session *x)
{
    static const char *const names[TENANTS] = {"alice", "bob", "carol"};
    static struct gpu_session sessions[TENANTS];
    const struct ibx_tenant_limits limits = {.share = 100};
    const struct ibx_gpu_copy one = {.stream = stream, .device = device, .width = 1, .height = 1};
    for (unsigned i = 0; i < TENANTS; i++)
        sessions[i] = (struct gpu_session){
            .cuda = x->cuda, .isolation.tenant = ibx_tenant_get(names[i], &limits, CHUNKS)};
    for (unsigned i = 0; i < TENANTS; i++) {
        struct ibx_unpinned_stream *begun;
        while (taken_by[i] < IBX_UNPINNED_PARTS &&
               (begun = ibx_unpinned_begin(&sessions[i], stream, 1)) &&
               !ibx_unpinned_add(&sessions[i], begun, memory, &one, false))
            taken_by[i]++;
    }
}

void *__real_ibx_cuda_symbol(const char *name);
void *__wrap_ibx_cuda_symbol(const char *name);
int __real_pthread_cond_wait(pthread_cond_t *changed, pthread_mutex_t *mutex);
int __wrap_pthread_cond_wait(pthread_cond_t *changed, pthread_mutex_t *mutex);

/* Until then the graph makes the copy, or until __wrap_ibx_captures_ended_since(). */
int __wrap_pthread_cond_wait(pthread_cond_t *changed, pthread_mutex_t *mutex)
{
    if (beside_graph.on)
        sem_post(&beside_graph.go);
    return __real_pthread_cond_wait(changed, mutex);
}

static void on_read(int number)
{
    (void)number;
    sem_post(&beside_graph.reads);
    sem_wait(&beside_graph.go);
    mprotect(beside_graph.host, 4096, PROT_READ | PROT_WRITE);
}

static void *run_graph(void *none)
{
    beside_graph.function(beside_graph.argument);
    return none;
}

/* CUDA refuses it, while a graph that has the same function runs. */
static int launch_beside_graph(void *of, void (*function)(void *argument), void *argument)
{
    (void)of;
    beside_graph.function = function;
    beside_graph.argument = argument;
    if (pthread_create(&beside_graph.graph, NULL, run_graph, NULL))
        abort();
    sem_wait(&beside_graph.reads);
    return 2;
}

void *__wrap_ibx_cuda_symbol(const char *name)
{
    if (!beside_graph.on || strcmp(name, "cuLaunchHostFunc") != 0)
        return __real_ibx_cuda_symbol(name);
    int (*const launch)(void *of, void (*function)(void *argument), void *argument) =
        launch_beside_graph;
    void *function;
    memcpy(&function, &launch, sizeof(function));
    return function;
}

static void refuse_beside_graph(struct gpu_session *x)
{
    const struct ibx_gpu_copy one = {.stream = stream, .device = device, .width = 1, .height = 1};
    struct ibx_unpinned_stream *begun = ibx_unpinned_begin(x, stream, 1);
    beside_graph.host = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (beside_graph.host == MAP_FAILED)
        abort();
    beside_graph.on = begun;
    beside_graph.code = begun ? ibx_unpinned_add(x, begun, beside_graph.host, &one, true) : 0;
    if (begun)
        pthread_join(beside_graph.graph, NULL);
    munmap(beside_graph.host, 4096);
    beside_graph.on = false;
}

/* In the back end's thread. */
static void handle(const char *name)
{
    if (!strcmp(name, "limit"))
        ibx_copies_of(pair.server)->pins.bytes_max = pins_most;
    if (!strcmp(name, "limits"))
        find_limits(ibx_copies_of(pair.server));
    if (!strcmp(name, "lose"))
        lose_chunks(ibx_copies_of(pair.server));
    if (!strcmp(name, "together"))
        lose_together(ibx_copies_of(pair.server));
    if (!strcmp(name, "crowd"))
        begin_at_once(ibx_copies_of(pair.server));
    if (!strcmp(name, "tenants"))
        take_all(ibx_copies_of(pair.server));
    if (!strcmp(name, "graph"))
        refuse_beside_graph(ibx_copies_of(pair.server));
}

static void limit_pins(size_t most)
{
    struct frame nothing = {0};
    pins_most = most;
    expect_code("limit", &nothing, HANDLED);
}

static int begin(void **state)
{
    gpu.memory = CHUNKS * (size_t)IBX_PINNED_STRIDE;
    on_request = handle;
    const int rc = set_up(state);
    memory = ibx_shared_allocate(BYTES, NULL);
    assert_non_null(memory);
    assert_int_equal(app->stream_create(&stream, 1), 0);
    limit_pins(0);
    return rc;
}

static int end(void **state)
{
    app->hold_stream(NULL);
    app->stream_synchronize(stream);
    app->stream_destroy(stream);
    const int rc = tear_down(state);
    return ibx_shared_free(memory) ? rc : -1;
}

/* The stream has work that does not end before release(). */
static void hold(void)
{
    app->hold_stream(stream);
    assert_int_equal(
        app->copy_async(device + DEVICE_BYTES - 8, device + DEVICE_BYTES - 16, 8, stream), 0);
}

static void release(void)
{
    app->hold_stream(NULL);
    assert_int_equal(app->stream_synchronize(stream), 0);
}

static void copy(bool to_device, size_t n)
{
    assert_int_equal(copy_by_client((struct ibx_frontend_copy){.to_device = to_device,
                                                               .async = true,
                                                               .host = memory,
                                                               .n = n,
                                                               .stream = (uintptr_t)stream,
                                                               .lasting = true}),
                     0);
}

/* The program goes on, and only then ends what the kernel waits for. The bytes are those that are
 * there when the stream gets to the copy, as with page-locked memory. */
static void test_to_the_device(void **state)
{
    (void)state;
    pattern_fill(memory, BYTES, 1);
    hold();
    copy(true, BYTES);
    assert_int_equal(app->stream_query(stream), IBX_CUDA_NOT_READY);
    pattern_fill(memory, BYTES, 2);
    release();
    assert_device(BYTES, 2);
}

static void test_from_the_device(void **state)
{
    (void)state;
    pattern_fill(memory, BYTES, 3);
    copy(true, BYTES);
    assert_int_equal(app->stream_synchronize(stream), 0);
    memset(memory, 0, BYTES);
    hold();
    copy(false, BYTES);
    assert_int_equal(app->stream_query(stream), IBX_CUDA_NOT_READY);
    assert_int_equal(pattern_check(memory, BYTES, 3), 0);
    release();
    assert_int_equal(pattern_check(memory, BYTES, 3), BYTES);
}

/* They come one after the other, through one chunk. */
static void test_several_in_a_stream(void **state)
{
    (void)state;
    const unsigned taken = ibx_pinned_taken();
    pattern_fill(memory, BYTES, 4);
    hold();
    for (unsigned i = 0; i < 4; i++)
        copy(i % 2 == 0, BYTES);
    assert_int_equal(ibx_pinned_taken(), taken + 1);
    release();
    assert_device(BYTES, 4);
    assert_int_equal(pattern_check(memory, BYTES, 4), BYTES);
    while (ibx_pinned_taken() != taken)
        sched_yield();
}

/* A thread's session ends before its copy, which is made all the same. */
static void test_session_ends(void **state)
{
    (void)state;
    pattern_fill(memory, BYTES, 5);
    hold();
    copy(true, BYTES);
    ibx_session_close(pair.client);
    release();
    join_server();
    assert_device(BYTES, 5);
}

/* The client is killed: its session ends while the copy waits, which then uses nothing of the
 * client's memory. */
static void test_client_is_killed(void **state)
{
    (void)state;
    const unsigned taken = ibx_pinned_taken();
    uint8_t got[4096], zeros[4096] = {0};
    pattern_fill(memory, BYTES, 7);
    copy(true, BYTES);
    assert_int_equal(app->stream_synchronize(stream), 0);
    pattern_fill(memory, BYTES, 8);
    hold();
    copy(false, BYTES);
    copy(true, BYTES);
    has_ended = true;
    ibx_session_close(pair.client);
    join_server();
    has_ended = false;
    assert_int_equal(app->stream_query(stream), IBX_CUDA_NOT_READY);
    assert_int_equal(ibx_pinned_taken(), taken + 1);
    release();
    assert_true(app->peek(device, got, sizeof(got)));
    assert_memory_equal(got, zeros, sizeof(got));
    assert_int_equal(pattern_check(memory, BYTES, 8), BYTES);
    while (ibx_pinned_taken() != taken)
        sched_yield();
}

/* The context goes: nobody waits for the copy any more, and its chunk is free again. */
static void test_context_goes(void **state)
{
    (void)state;
    const unsigned taken = ibx_pinned_taken();
    void *context = NULL;
    assert_int_equal(app->primary_retain(&context, 0), 0);
    hold();
    copy(true, BYTES);
    assert_int_equal(ibx_pinned_taken(), taken + 1);
    ibx_unpinned_forget(context);
    assert_int_equal(ibx_pinned_taken(), taken);
    release();
}

/* The chunk may be in a graph of the client's: nobody else gets it, whatever the graph does. */
static void test_captured(void **state)
{
    (void)state;
    const unsigned taken = ibx_pinned_taken();
    for (unsigned i = 0; i < 3; i++) {
        meanwhile = i == 0 ? CAPTURE_BEGINS : i == 1 ? CAPTURE_ENDS : NO_CAPTURE;
        pattern_fill(memory, BYTES, 7 + i);
        hold();
        copy(true, BYTES);
        meanwhile = NO_CAPTURE;
        captures = ended = false;
        app->capture(NULL);
        release();
        assert_device(BYTES, 7 + i);
        while (i == 2 && ibx_pinned_taken() != taken)
            sched_yield();
        assert_int_equal(ibx_pinned_taken(), taken + (i < 2));
        if (i < 2)
            ibx_pinned_return(kept);
    }
}

/* The GPU has copied from the chunk before somebody else gets it. */
static void test_chunk_is_in_use(void **state)
{
    (void)state;
    const unsigned taken = ibx_pinned_taken();
    pattern_fill(memory, BYTES, 10);
    hold();
    copy(true, IBX_PINNED_CHUNK);
    app->slow(50000);
    app->hold_stream(NULL);
    while (ibx_pinned_taken() != taken)
        sched_yield();
    void *chunk = ibx_pinned_borrow(IBX_PINNED_CHUNK); /* the one that was given back last */
    memset(chunk, 0xff, IBX_PINNED_CHUNK);
    ibx_pinned_return(chunk);
    release();
    assert_device(IBX_PINNED_CHUNK, 10);
}

/* A session may have so many streams, and all together so many parts, and no more. */
static void test_limits(void **state)
{
    (void)state;
    struct frame nothing = {0};
    for (unsigned i = 0; i < IBX_UNPINNED_STREAMS; i++) {
        void *made = NULL;
        assert_int_equal(app->stream_create(&made, 1), 0);
        others[i] = made;
    }
    hold();
    copy(true, BYTES);
    expect_code("limits", &nothing, HANDLED);
    release();
    for (unsigned i = 0; i < IBX_UNPINNED_STREAMS; i++)
        app->stream_destroy(others[i]);
    assert_true(as_long[0]);
    assert_false(as_long[1]);
    assert_false(for_another);
    assert_int_equal(beside, IBX_UNPINNED_STREAMS - 1);
}

/* Sessions that add copies at the same time have no more parts together than one of them may. */
static void test_limit_at_once(void **state)
{
    (void)state;
    struct frame nothing = {0};
    copy(true, BYTES); /* in a context */
    assert_int_equal(app->stream_synchronize(stream), 0);
    expect_code("crowd", &nothing, HANDLED);
    assert_int_equal(at_once, 1);
}

/* None of several tenants takes what the others need. */
static void test_tenants_share(void **state)
{
    (void)state;
    struct frame nothing = {0};
    copy(true, BYTES); /* in a context */
    assert_int_equal(app->stream_synchronize(stream), 0);
    hold();
    expect_code("tenants", &nothing, HANDLED);
    release();
    for (unsigned i = 0, left = IBX_UNPINNED_PARTS - 1; i < TENANTS; left -= taken_by[i++])
        assert_int_equal(taken_by[i], left / 2);
}

/* A tenant loses only so many chunks, whatever its graphs have. */
static void test_captured_often(void **state)
{
    (void)state;
    struct frame nothing = {0};
    copy(true, BYTES); /* in a context */
    assert_int_equal(app->stream_synchronize(stream), 0);
    const unsigned taken = ibx_pinned_taken();
    expect_code("lose", &nothing, HANDLED);
    assert_in_range(lost_count, 1, IBX_UNPINNED_KEPT);
    assert_int_equal(ibx_pinned_taken(), taken + lost_count);
    for (unsigned i = 0; i < lost_count; i++)
        ibx_pinned_return(lost[i]);
}

/* ... and however many sessions add copies at a time. */
static void test_captured_at_once(void **state)
{
    (void)state;
    struct frame nothing = {0};
    copy(true, BYTES); /* in a context */
    assert_int_equal(app->stream_synchronize(stream), 0);
    const unsigned taken = ibx_pinned_taken();
    app->hold_stream(stream);
    expect_code("together", &nothing, HANDLED);
    app->hold_stream(NULL);
    assert_int_equal(app->stream_synchronize(stream), 0);
    for (unsigned i = 0; i < together; i++)
        ibx_pinned_return(lost[i]);
    assert_in_range(together, 1, IBX_UNPINNED_KEPT);
    assert_false(may_go_on);
    assert_int_equal(ibx_pinned_taken(), taken);
}

/* If CUDA refuses a part, the copy has failed, and nothing of it is under way. */
static void test_refused(void **state)
{
    (void)state;
    const unsigned taken = ibx_pinned_taken();
    for (unsigned i = 1; i <= 3; i++) {
        app->slow(20000 * patience_times());
        assert_int_equal(app->copy_async(device + 8, device, 8, stream), 0);
        app->inject("cuLaunchHostFunc", i, 2, false);
        assert_int_not_equal(copy_by_client((struct ibx_frontend_copy){.to_device = i != 2,
                                                                       .async = true,
                                                                       .host = memory,
                                                                       .n = BYTES,
                                                                       .stream = (uintptr_t)stream,
                                                                       .lasting = true}),
                             0);
        assert_int_equal(ibx_pinned_taken(), taken);
        app->inject(NULL, 0, 0, false);
    }
}

/* ... also if a graph that was captured before is just making the copy in its place. */
static void test_refused_beside_a_graph(void **state)
{
    (void)state;
    struct frame nothing = {0};
    struct sigaction reads = {.sa_handler = on_read, .sa_flags = (int)SA_RESETHAND}, before;
    copy(true, BYTES); /* in a context */
    assert_int_equal(app->stream_synchronize(stream), 0);
    const unsigned taken = ibx_pinned_taken();
    sem_init(&beside_graph.reads, 0, 0);
    sem_init(&beside_graph.go, 0, 0);
    sigaction(SIGSEGV, &reads, &before);
    expect_code("graph", &nothing, HANDLED);
    sigaction(SIGSEGV, &before, NULL);
    assert_int_equal(beside_graph.code, 2);
    assert_int_equal(ibx_pinned_taken(), taken);
}

/* Without work in the stream they are made at once, as before. */
static void test_idle_stream(void **state)
{
    (void)state;
    pattern_fill(memory, BYTES, 6);
    copy(true, BYTES);
    assert_int_equal(app->stream_synchronize(stream), 0);
    assert_device(BYTES, 6);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_to_the_device),
        TEST(test_from_the_device),
        TEST(test_several_in_a_stream),
        TEST(test_session_ends),
        TEST(test_client_is_killed),
        TEST(test_context_goes),
        TEST(test_captured),
        TEST(test_chunk_is_in_use),
        TEST(test_limits),
        TEST(test_limit_at_once),
        TEST(test_refused),
        TEST(test_idle_stream),
        TEST(test_refused_beside_a_graph),
        TEST(test_captured_often),
        TEST(test_captured_at_once),
        TEST(test_tenants_share),
    };
    session_pair_use("shm", NULL, NULL, NULL);
    app = cuda_application();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
