/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Copies that come after nothing, in streams that the GPU does not get to. */
#include "gpudirect/staging.h"
#include "gpudirect/second_context.h"
#include "tests/fixtures/cuda_unit.h"
#include "tests/fixtures/random_fill.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#define CHUNKS        24u
#define SIZE          ((size_t)5 * IBX_PINNED_CHUNK)
#define NON_BLOCKING  1u
#define OUT_OF_MEMORY 2 /* CUresult */
#define NOT_SUPPORTED 801
#define SLOW_US       3000u /* longer than a copy has, once there is a second context */

static struct ibx_quota quota = {.most = CHUNKS};
static struct ibx_staging *staging;
static uint64_t device;
static uint8_t *expected, *got;
static void *stream;

static bool to_device;

static const struct ibx_cuda *driver; /* `cuda`, but for cases that have a table of their own */

static pthread_t releasing;  /* a thread that releases the stream ... */
static bool releases;        /* ... if there is one */
static atomic_bool given_up; /* the case has failed: so no thread waits for what it does next */

/* What the GPU makes may take any time. So the clock stands meanwhile, perhaps until the stream is
 * kept waiting. */
static enum { CLOCK_GOES, CLOCK_STANDS, CLOCK_STANDS_UNTIL_HELD } clock_mode;
static struct timespec stands_at;

int __real_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    if (clock_mode == CLOCK_GOES ||
        (clock_mode == CLOCK_STANDS_UNTIL_HELD && app->stream_waits(stream)))
        return __real_clock_gettime(clock, time);
    *time = stands_at;
    return 0;
}

static void stop_clock(bool until_held)
{
    __real_clock_gettime(CLOCK_MONOTONIC, &stands_at);
    clock_mode = until_held ? CLOCK_STANDS_UNTIL_HELD : CLOCK_STANDS;
}

static int wire_move(void *context, unsigned slot, unsigned chunk, void *local, uint64_t offset,
                     size_t n)
{
    (void)chunk;
    memcpy(to_device ? local : got + offset, to_device ? got + offset : local, n);
    *(uint32_t *)context |= 1u << slot;
    return 0;
}

static int wire_arrived(void *context, bool wait, uint32_t *slots)
{
    (void)wait;
    *slots = *(uint32_t *)context;
    *(uint32_t *)context = 0;
    return 0;
}

static int begin(size_t at, size_t n)
{
    const struct ibx_gpu_copy copy = {
        .device = device + at, .width = n, .height = 1, .stream = stream, .alone = true};
    assert_true(ibx_staging_begin(staging, n));
    return ibx_staging_from_device(staging, &copy, true);
}

static void deliver(size_t at, size_t n)
{
    uint32_t arrived = 0;
    const struct ibx_staging_wire wire = {&arrived, wire_move, wire_arrived, NULL, 1};
    memset(got, 0, SIZE);
    assert_int_equal(ibx_staging_deliver(staging, &wire, n), 0);
    ibx_staging_end(staging);
    assert_memory_equal(got, expected + at, n);
}

/* As the GPU makes it. */
static void begin_made(size_t at, size_t n)
{
    stop_clock(false);
    const int rc = begin(at, n);
    clock_mode = CLOCK_GOES;
    assert_int_equal(rc, 0);
}

/* As far as the GPU makes it. */
static void comes(size_t at, size_t n)
{
    begin_made(at, n);
    stop_clock(true);
    deliver(at, n);
    clock_mode = CLOCK_GOES;
}

/* Writes other bytes there. */
static void give(void *in, size_t at, size_t n)
{
    uint32_t arrived = 0;
    const struct ibx_staging_wire wire = {&arrived, wire_move, wire_arrived, NULL, 1};
    const struct ibx_gpu_copy copy = {
        .device = device + at, .width = n, .height = 1, .stream = in, .alone = true};
    random_fill(got, n, at + n);
    memcpy(expected + at, got, n);
    to_device = true;
    assert_true(ibx_staging_begin(staging, n));
    assert_int_equal(ibx_staging_to_device(staging, &wire, &copy), 0);
    ibx_staging_end(staging);
    to_device = false;
}

static void send(void *in, size_t at, size_t n)
{
    give(in, at, n);
    assert_on_device(device, expected, SIZE);
}

static void open_scene(int number)
{
    cuda_application_use(number);
    assert_int_equal(app->mem_alloc(&device, SIZE), 0);
    assert_true(app->poke(device, expected, SIZE));
    assert_int_equal(app->stream_create(&stream, NON_BLOCKING), 0);
    assert_int_equal(ibx_pinned_open(cuda, CHUNKS * IBX_PINNED_STRIDE, NULL), 0);
    assert_int_equal(ibx_staging_create(cuda, &staging), 0);
    ibx_staging_set_quota(staging, &quota);
}

static void await_made(void)
{
    while (ibx_staging_has_overdue(staging))
        sched_yield();
}

static void end_session(void)
{
    ibx_staging_destroy(staging);
    staging = NULL;
}

static void close_scene(void)
{
    end_session();
    assert_int_equal(ibx_pinned_taken(), 0);
    assert_int_equal(ibx_quota_left(&quota), CHUNKS);
    app->mem_free(device);
}

static const struct {
    size_t at, n;
} parts[] = {{0, 65536}, {1, 1},    {12, 4},       {5, 77777},
             {16, 4096}, {7, 4097}, {3, SIZE - 3}, {0, SIZE}};
#define PARTS (sizeof(parts) / sizeof(parts[0]))

/* A copy to the device is not given to a GPU that makes none: a second context makes it. What the
 * GPU makes late is no part of it. */
static void test_goes_where_none_is_made(void **state)
{
    (void)state;
    open_scene(0);
    assert_false(ibx_second_context_is_there(cuda));
    for (size_t i = 0; i < PARTS; i++) {
        app->hold_stream(stream);
        send(stream, parts[i].at, parts[i].n);
        assert_true(ibx_second_context_is_there(cuda));
        app->release_stream(stream);
        assert_int_equal(app->stream_synchronize(stream), 0);
        assert_on_device(device, expected, SIZE);
    }
    close_scene();
}

/* The bytes come nevertheless, in any number and from any address, and the GPU keeps the chunks
 * until it has used them. Then copies go the usual way again. */
static void test_comes_from_a_second_context(void **state)
{
    (void)state;
    open_scene(0);
    app->slow(SLOW_US);
    for (size_t i = 0; i < PARTS; i++) {
        app->hold_stream(stream);
        assert_int_equal(begin(parts[i].at, parts[i].n), IBX_STAGING_OVERDUE);
        const unsigned kept = ibx_pinned_taken();
        assert_true(kept && ibx_staging_has_overdue(staging));
        assert_true(ibx_second_context_is_there(cuda));
        assert_int_equal(ibx_quota_left(&quota), CHUNKS - kept);
        for (int again = 0; again < 2; again++) {
            assert_int_equal(begin(parts[i].at, parts[i].n), 0);
            deliver(parts[i].at, parts[i].n);
            assert_int_equal(ibx_pinned_taken(), kept);
        }
        app->release_stream(stream);
        await_made();
        assert_int_equal(ibx_pinned_taken(), 0);
        comes(parts[i].at, parts[i].n);
    }
    app->slow(0);
    close_scene();
}

/* Copies to the device are made by the second context as long as there are overdue ones. */
static void test_goes_by_a_second_context(void **state)
{
    void *other;
    (void)state;
    open_scene(0);
    assert_int_equal(app->stream_create(&other, NON_BLOCKING), 0);
    for (size_t i = 0; i < PARTS; i++)
        send(other, parts[i].at, parts[i].n);
    app->hold_stream(stream);
    app->hold_stream(other);
    assert_int_equal(begin(0, SIZE), IBX_STAGING_OVERDUE);
    for (size_t i = 0; i < PARTS; i++)
        send(other, parts[i].at, parts[i].n);
    assert_int_equal(begin(0, SIZE), 0);
    deliver(0, SIZE);
    app->release_stream(stream);
    app->release_stream(other);
    close_scene();
}

/* Any piece of a copy may be the first that the GPU does not begin, however few slots it has. */
static void test_later_pieces(void **state)
{
    static const unsigned chunks[] = {CHUNKS, 3, 2};
    (void)state;
    open_scene(0);
    app->slow(SLOW_US);
    for (size_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++) {
        for (unsigned made = 1; made < 5; made++) {
            quota.most = chunks[i];
            app->hold_stream_after(stream, made);
            comes(0, SIZE);
            assert_true(ibx_staging_has_overdue(staging));
            assert_int_equal(ibx_pinned_taken(), ibx_quota_used(&quota));
            app->release_stream(stream);
            await_made();
            assert_int_equal(ibx_pinned_taken(), 0);
        }
    }
    app->slow(0);
    quota.most = CHUNKS;
    close_scene();
}

static void *release(void *argument)
{
    (void)argument;
    cuda_application_use(0);
    app->release_stream(stream);
    return NULL;
}

static void begin_release(void *(*how)(void *))
{
    assert_int_equal(pthread_create(&releasing, NULL, how, NULL), 0);
    releases = true;
}

static void await_release(void)
{
    if (releases)
        pthread_join(releasing, NULL);
    releases = false;
}

/* Its end waits for what the GPU still has. */
static void test_ends_while_overdue(void **state)
{
    (void)state;
    open_scene(0);
    const unsigned long events = cuda_stats().events;
    app->hold_stream(stream);
    assert_int_equal(begin(0, SIZE), IBX_STAGING_OVERDUE);
    begin_release(release);
    stop_clock(false);
    close_scene();
    clock_mode = CLOCK_GOES;
    await_release();
    assert_int_equal(cuda_stats().events, events);
}

/* Takes a chunk, and gives it back, until there are no others. */
static void await_returned(void)
{
    assert_int_equal(ibx_staging_create(cuda, &staging), 0);
    ibx_staging_set_quota(staging, &quota);
    do {
        sched_yield();
        assert_true(ibx_staging_begin(staging, 1));
        ibx_staging_end(staging);
    } while (ibx_pinned_taken());
    end_session();
    assert_int_equal(ibx_quota_used(&quota), 0);
}

/* The end does not wait for ever. The GPU keeps chunks until it has used them, or its context is
 * gone. */
static void test_ends_before_it_is_made(void **state)
{
    (void)state;
    for (unsigned way = 0; way < 4; way++) {
        void *context;
        open_scene(0);
        const unsigned long events = cuda_stats().events;
        assert_int_equal(cuda->ctx_get_current(&context), 0);
        if (way % 2) { /* in the midst of the copy */
            app->hold_stream_after(stream, 1);
            begin_made(0, SIZE);
        } else {
            app->hold_stream(stream);
            assert_int_equal(begin(0, SIZE), IBX_STAGING_OVERDUE);
        }
        const unsigned kept = ibx_pinned_taken() - way % 2;
        end_session();
        assert_int_equal(ibx_pinned_taken(), kept);
        assert_int_equal(ibx_quota_used(&quota), kept);
        app->release_stream(stream);
        if (way < 2) {
            await_returned();
            assert_int_equal(cuda_stats().events, events);
            app->mem_free(device);
        } else {
            app->primary_reset(0);
            ibx_staging_forget_for_all(context);
            assert_int_equal(ibx_pinned_taken(), 0);
        }
    }
}

/* Nobody asks for an event in another context than its own. */
static void test_ends_and_another_context_goes_on(void **state)
{
    (void)state;
    open_scene(0);
    app->hold_stream(stream);
    assert_int_equal(begin(0, SIZE), IBX_STAGING_OVERDUE);
    const unsigned kept = ibx_pinned_taken();
    end_session();
    cuda_application_use(1);
    assert_int_equal(ibx_staging_create(cuda, &staging), 0);
    app->inject("cuEventQuery", 1, OUT_OF_MEMORY, false);
    assert_true(ibx_staging_begin(staging, 1));
    ibx_staging_end(staging);
    app->inject(NULL, 0, 0, false);
    assert_int_equal(ibx_pinned_taken(), kept);
    end_session();
    cuda_application_use(0);
    app->release_stream(stream);
    await_returned();
    app->mem_free(device);
}

#define IS_DESTROYED    709
#define INVALID_CONTEXT 201
#define UNKNOWN         999

static int pushed_rc;        /* of ctx_push_current, ... */
static unsigned pushes_well; /* ... after so many calls that enter the context */

static int push(void *context)
{
    if (pushed_rc && !pushes_well)
        return pushed_rc;
    pushes_well -= pushed_rc != 0;
    return driver->ctx_push_current(context);
}

/* Sessions were told that the context is gone before the end of this one leaves its chunks to the
 * GPU. That has nothing to make there, unless the error says something else. */
static void test_ends_behind_its_context(void **state)
{
    static const int errors[] = {IS_DESTROYED, INVALID_CONTEXT, UNKNOWN};
    static struct ibx_cuda table;
    (void)state;
    table = *cuda;
    table.ctx_push_current = push;
    cuda = &table;
    for (unsigned way = 0; way < 4; way++) {
        void *context;
        open_scene(0);
        assert_int_equal(cuda->ctx_get_current(&context), 0);
        app->hold_stream(stream);
        assert_int_equal(begin(0, SIZE), IBX_STAGING_OVERDUE);
        const unsigned kept = ibx_pinned_taken();
        ibx_staging_forget_for_all(context);
        pushes_well = way == 3; /* it goes while the end waits */
        pushed_rc = errors[way % 3];
        end_session();
        pushed_rc = 0;
        assert_int_equal(ibx_pinned_taken(), way == 2 ? kept : 0);
        assert_int_equal(ibx_quota_used(&quota), way == 2 ? kept : 0);
        app->release_stream(stream);
        app->primary_reset(0);
        ibx_staging_forget_for_all(context);
        assert_int_equal(ibx_pinned_taken(), 0);
    }
    cuda = driver;
}

/* A context that came later has its address: in it nobody may ask for the events. */
static void test_ends_behind_another_context(void **state)
{
    void *context;
    (void)state;
    open_scene(0);
    assert_int_equal(cuda->ctx_get_current(&context), 0);
    app->hold_stream(stream);
    assert_int_equal(begin(0, SIZE), IBX_STAGING_OVERDUE);
    ibx_staging_forget_for_all(context);
    end_session();
    assert_int_equal(ibx_pinned_taken(), 0);
    assert_int_equal(ibx_quota_used(&quota), 0);
    app->release_stream(stream);
    app->mem_free(device);
}

/* A reset ends the work that had the chunks, and not the second context. */
static void test_reset_while_overdue(void **state)
{
    (void)state;
    open_scene(0);
    app->hold_stream(stream);
    assert_int_equal(begin(0, SIZE), IBX_STAGING_OVERDUE);
    app->release_stream(stream);
    ibx_staging_drop_events(staging);
    app->primary_reset(0);
    ibx_staging_forget(staging, NULL);
    ibx_staging_forget_for_all(NULL);
    assert_int_equal(ibx_pinned_taken(), 0);
    close_scene();
    open_scene(0);
    app->hold_stream(stream);
    assert_int_equal(begin(0, SIZE), IBX_STAGING_OVERDUE);
    assert_int_equal(begin(0, SIZE), 0);
    deliver(0, SIZE);
    app->release_stream(stream);
    close_scene();
}

static const char *refused = "cuCtxCreate"; /* by the driver, as when it has no memory left */

/* Where the driver makes no second context, or no kernel there, the copy waits for its stream, as
 * others do. The context, if there is one, does not wait for that. */
static void test_no_second_context(void **state)
{
    (void)state;
    open_scene(1);
    app->inject(refused, 1, OUT_OF_MEMORY, false);
    app->hold_stream(stream);
    assert_int_equal(cuda->memcpy_to_device_async(device, expected, 1, stream), 0);
    assert_false(ibx_second_context_make(cuda));
    begin_release(release);
    assert_int_equal(begin(0, SIZE), 0);
    deliver(0, SIZE);
    await_release();
    assert_false(ibx_second_context_is_there(cuda) || ibx_staging_has_overdue(staging));
    app->hold_stream(stream);
    begin_release(release);
    send(stream, 0, SIZE);
    await_release();
    close_scene();
}

static unsigned copy_probes, kernel_probes; /* of either kind of queue */

static bool is_probe(uint64_t to)
{
    return to < device || to - device >= SIZE;
}

static int copy_rows(const struct ibx_cuda_memcpy2d *rows, void *in)
{
    copy_probes += is_probe(rows->dst_device);
    return driver->memcpy_2d_async(rows, in);
}

static int copy_bytes(uint64_t to, const void *from, size_t n, void *in)
{
    kernel_probes += is_probe(to);
    return driver->memcpy_to_device_async(to, from, n, in);
}

/* A copy to the device is given to the GPU if that makes some in the queues that the copy takes: an
 * odd number of bytes may be in a queue for kernels. */
static void test_probes_its_queues(void **state)
{
    static const struct {
        size_t n;
        unsigned kernel_probes;
    } sizes[] = {{1, 1}, {2, 0}, {4096, 0}, {4097, 1}, {65535, 1}, {65536, 0}};
    static struct ibx_cuda table;
    (void)state;
    table = *cuda;
    table.memcpy_2d_async = copy_rows;
    table.memcpy_to_device_async = copy_bytes;
    cuda = &table;
    open_scene(1);
    assert_false(ibx_second_context_is_there(cuda));
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        copy_probes = kernel_probes = 0;
        send(stream, 0, sizes[i].n);
        assert_int_equal(copy_probes, 1);
        assert_int_equal(kernel_probes, sizes[i].kernel_probes);
    }
    close_scene();
    cuda = driver;
}

/* Not before: the copy would be made in its stream. */
static void *release_after_failure(void *argument)
{
    cuda_application_use(0);
    while (ibx_second_context_is_there(cuda) && !atomic_load(&given_up))
        sched_yield();
    return release(argument);
}

static struct ibx_staging *other_staging;
static void *other_stream;

static void swap_sessions(void)
{
    struct ibx_staging *const staging_before = staging;
    void *const stream_before = stream;
    staging = other_staging;
    stream = other_stream;
    other_staging = staging_before;
    other_stream = stream_before;
}

static unsigned waits; /* for events that are not done */

static int await_event(void *event)
{
    const bool done = driver->event_query(event) != IBX_CUDA_NOT_READY;
    waits += !done;
    if (!done)
        app->hold_stream(NULL);
    return driver->event_synchronize(event);
}

static void begin_other(void)
{
    static struct ibx_cuda table;
    swap_sessions();
    assert_int_equal(app->stream_create(&stream, NON_BLOCKING), 0);
    table = *cuda;
    table.event_synchronize = await_event;
    assert_int_equal(ibx_staging_create(&table, &staging), 0);
    ibx_staging_set_quota(staging, &quota);
    app->hold_stream(stream);
    assert_int_equal(begin(0, SIZE), IBX_STAGING_OVERDUE);
    swap_sessions();
}

/* It has copies that the GPU does not begin, and others, which are overdue. */
static void end_other(void)
{
    swap_sessions();
    assert_int_equal(app->stream_create(&stream, NON_BLOCKING), 0);
    app->hold_stream_after(stream, 1);
    begin_made(0, SIZE);
    assert_true(ibx_staging_has_overdue(staging));
    const unsigned kept = ibx_pinned_taken() - 1;
    waits = 0;
    end_session();
    assert_int_equal(waits, 0);
    assert_int_equal(ibx_pinned_taken(), kept);
    app->hold_stream(NULL);
    await_returned();
    swap_sessions();
}

/* A kernel of the second context fails: copies wait for their streams again, and the end of a
 * session waits no longer than before. */
static void test_failed_context(void **state)
{
    (void)state;
    open_scene(0);
    begin_other();
    app->hold_stream(stream);
    assert_int_equal(begin(0, SIZE), IBX_STAGING_OVERDUE);
    app->inject("cuLaunchKernel", 2, OUT_OF_MEMORY, false);
    begin_release(release_after_failure);
    assert_int_equal(begin(0, SIZE), 0);
    assert_false(ibx_second_context_is_there(cuda) || ibx_second_context_make(cuda));
    deliver(0, SIZE);
    await_release();
    await_made();
    assert_int_equal(ibx_second_context_copy(cuda, device, device, 16), NOT_SUPPORTED);
    for (size_t i = 0; i < PARTS; i++) {
        send(stream, parts[i].at, parts[i].n);
        comes(parts[i].at, parts[i].n);
    }
    end_other();
    close_scene();
}

static int set_up(void **state)
{
    expected = malloc(SIZE);
    got = malloc(SIZE);
    random_fill(expected, SIZE, 1);
    const int rc = expected && got ? find_cuda(state) : -1;
    driver = cuda;
    return rc;
}

/* A case that has failed leaves its scene open. The next ones have theirs nevertheless. */
static int tear_down(void **state)
{
    (void)state;
    atomic_store(&given_up, true);
    await_release();
    atomic_store(&given_up, false);
    cuda = driver;
    clock_mode = CLOCK_GOES;
    to_device = false;
    pushed_rc = 0;
    quota.most = CHUNKS;
    app->inject(NULL, 0, 0, false);
    app->slow(0);
    if (staging)
        app->hold_stream_after(stream, UINT_MAX); /* none */
    app->hold_stream(NULL);
    end_session();
    swap_sessions();
    end_session();
    for (int number = 0; number < 2; number++) {
        void *context;
        cuda_application_use(number);
        if (!app->ctx_synchronize() && !cuda->ctx_get_current(&context))
            ibx_staging_forget_for_all(context);
    }
    return 0;
}

/* An argument names the function that the driver refuses. */
int main(int argc, char **argv)
{
    refused = argc > 1 ? argv[1] : refused;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_goes_where_none_is_made, tear_down),
        cmocka_unit_test_teardown(test_comes_from_a_second_context, tear_down),
        cmocka_unit_test_teardown(test_goes_by_a_second_context, tear_down),
        cmocka_unit_test_teardown(test_later_pieces, tear_down),
        cmocka_unit_test_teardown(test_ends_while_overdue, tear_down),
        cmocka_unit_test_teardown(test_ends_before_it_is_made, tear_down),
        cmocka_unit_test_teardown(test_ends_and_another_context_goes_on, tear_down),
        cmocka_unit_test_teardown(test_ends_behind_its_context, tear_down),
        cmocka_unit_test_teardown(test_ends_behind_another_context, tear_down),
        cmocka_unit_test_teardown(test_reset_while_overdue, tear_down),
        cmocka_unit_test_teardown(test_no_second_context, tear_down),
        cmocka_unit_test_teardown(test_probes_its_queues, tear_down),
        cmocka_unit_test_teardown(test_failed_context, tear_down), /* the last one on this device */
    };
    return cmocka_run_group_tests_name("overdue-copies", tests, set_up, NULL);
}
