/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Long copies of a client's pageable memory, in parts, through memory that both ends map. */
#include "tests/fixtures/copies_scene.h"

#include "frontend-glue/client_copies/client_frame.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LONGEST  ((size_t)40 << 20) /* more than is in flight at once */
#define GUARD    16u
#define INVALID  700 /* an illegal address */
#define MOST_OUT 3u  /* frames of one copy without an answer: IN_FLIGHT of client_stage.c */

static const size_t sizes[] = {32 << 10,  (32 << 10) + 1,   131071,        131073,
                               262144,    777777,           (1 << 20) + 3, (2 << 20) - 1,
                               (2 << 20), (4 << 20) + 4097, 17000001,      LONGEST - 7};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

static uint64_t far; /* LONGEST bytes of the device */

static int set_up_long(void **state)
{
    int rc = set_up(state);
    assert_int_equal(app->mem_alloc(&far, LONGEST), 0);
    return rc;
}

static int set_up_threads(void **state)
{
    int rc = set_up_long(state);
    ibx_session_set_threads(pair.client, 3);
    return rc;
}

/* With many processors a client uses more threads by default. */
static unsigned processors; /* 0: the real number */
unsigned __real_ibx_thread_processors(void);
unsigned __wrap_ibx_thread_processors(void);

unsigned __wrap_ibx_thread_processors(void)
{
    return processors ? processors : __real_ibx_thread_processors();
}

static int set_up_many(void **state)
{
    const struct ibx_gpu_options before = gpu;
    gpu.threads = 1; /* only the client has copy threads */
    int rc = set_up_long(state);
    gpu = before;
    return rc;
}

static int tear_down_long(void **state)
{
    app->inject(NULL, 0, 0, false);
    app->mem_free(far);
    return tear_down(state);
}

static int copy_by(struct ibx_session *client, bool to_device, bool async, uint8_t *host,
                   uint64_t at, size_t n)
{
    int code = -1;
    struct ibx_frontend_copy wish = {
        .to_device = to_device, .async = async, .device = far + at, .host = host, .n = n};
    assert_int_equal(ibx_client_copy(client, &wish, &code), 0);
    return code;
}

static int copy(bool to_device, bool async, uint8_t *host, uint64_t at, size_t n)
{
    return copy_by(pair.client, to_device, async, host, at, n);
}

/* The copies that the back end has run so far. */
static struct ibx_copy_counts counts(void)
{
    struct frame other = {0};
    put_u64(&other, 5);
    expect_code("cudaOther", &other, handler_says); /* updates seen() */
    return seen().copies;
}

/* Copies there and back, with memory at any offset in a page; nothing beside it is written. */
static void check_copies(size_t n, size_t into_page, bool async)
{
    uint8_t *memory = aligned_alloc(4096, (n + into_page + GUARD + 4095) & ~(size_t)4095);
    uint8_t *host = memory + into_page;
    uint64_t at = n < LONGEST / 2 ? into_page % 64 : 0;
    assert_non_null(memory);
    pattern_fill(host, n, n + async);
    assert_int_equal(copy(true, async, host, at, n), 0);
    memset(memory, 0, into_page);
    memset(host, 0, n + GUARD);
    assert_int_equal(copy(false, async, host, at, n), 0);
    assert_int_equal(pattern_check(host, n, n + async), n);
    for (size_t i = 0; i < GUARD; i++)
        assert_int_equal(host[n + i], 0);
    for (size_t i = 0; i < into_page; i++)
        assert_int_equal(memory[i], 0);
    free(memory);
}

static void test_sizes(void **state)
{
    (void)state;
    static const size_t places[] = {0, 16, 64, 2063, 4095};
    for (size_t i = 0; i < SIZES; i++)
        check_copies(sizes[i], places[i % 5], i % 2);
    for (size_t i = 0; i < 5; i++)
        check_copies(3 << 20, places[i], true);
    /* GVirtuS ran no copy, and every part was in place, but for the one asynchronous copy to the
     * device whose bytes CUDA takes in the call: of 32 KiB and a byte. */
    struct ibx_copy_counts now = counts();
    assert_int_equal(seen().requests, 2);
    assert_int_equal(now.in_place, now.all - 1);
    assert_true(now.all > 4 * SIZES);
}

static unsigned parts_of(bool to_device, uint8_t *host, size_t n)
{
    unsigned long before = counts().all;
    assert_int_equal(copy(to_device, false, host, 0, n), 0);
    return (unsigned)(counts().all - before);
}

#define EXITING 4u /* the kernel's PF_EXITING */

/* A joined thread may be visible a little longer. */
static bool is_alive(const char *thread)
{
    char path[64], text[512];
    unsigned flags = EXITING;
    snprintf(path, sizeof(path), "/proc/self/task/%.20s/stat", thread);
    FILE *file = fopen(path, "re");
    const char *behind = file && fgets(text, sizeof(text), file) ? strrchr(text, ')') : NULL;
    if (behind)
        sscanf(behind, ") %*c %*d %*d %*d %*d %*d %u", &flags);
    if (file)
        fclose(file);
    return !(flags & EXITING);
}

static unsigned threads_now(void)
{
    DIR *folder = opendir("/proc/self/task");
    unsigned count = 0;
    assert_non_null(folder);
    for (struct dirent *thread; (thread = readdir(folder));)
        count += thread->d_name[0] != '.' && is_alive(thread->d_name);
    closedir(folder);
    return count;
}

/* More threads copy long memory: three and the caller, then seven and the caller. */
static void test_many_threads(void **state)
{
    (void)state;
    const unsigned threads = threads_now();
    processors = 16;
    check_copies(5 << 20, 16, false);
    assert_int_equal(threads_now(), threads + 3);
    check_copies(LONGEST - 12345, 48, false);
    assert_int_equal(threads_now(), threads + 7);
    uint8_t *host = scene_memory(LONGEST);
    assert_int_equal(parts_of(true, host, 16 << 20), 8); /* parts of 2 MiB */
    assert_int_equal(parts_of(false, host, 16 << 20),
                     10); /* the first two and the last are 1 MiB long */
    assert_int_equal(parts_of(false, host, (16 << 20) + 1), 10);
    app->slow(500);
    check_copies(LONGEST, 2063, true);
    check_copies(5 << 20, 16, true);
    processors = 0;
}

/* Bytes that the GPU has not read yet are not overwritten; here the GPU is slower than the
 * client. */
static void test_slow_gpu(void **state)
{
    (void)state;
    app->slow(500);
    check_copies(LONGEST, 16, false);
    check_copies(LONGEST - 12345, 48, true);
}

/* The call returns the first failure, and the rest of the copy is not tried without end. */
static void test_failures(void **state)
{
    (void)state;
    const size_t n = 9 << 20;
    uint8_t *host = scene_memory(n);
    for (unsigned i = 0; i < 12; i++) {
        bool to_device = i % 2;
        unsigned before = seen().requests;
        app->inject("dma", 1 + i % 5, INVALID, true);
        const int code = copy(to_device, i % 3 == 0, host, 0, n);
        app->inject(NULL, 0, 0, false);
        /* GVirtuS's answer, or that of a part that had started */
        assert_true(code == HANDLED || code == INVALID);
        assert_in_range(seen().requests, before + (code == HANDLED), before + MOST_OUT);
        check_copies(n, 16, to_device);
    }
}

/* ------------------------------------------------------------------------ giving up */

/* A back end that runs nothing by itself soon gets the same requests as from a client without
 * such memory, and no copy threads remain. */
static void test_stage_that_is_useless(void **state)
{
    (void)state;
    const size_t n = 5 << 20;
    uint8_t *host = scene_memory(n);
    unsigned before = 0, frames = 0, threads = threads_now();
    handler_says = 0;
    for (unsigned i = 0; i < 6; i++) {
        before = seen().requests;
        assert_int_equal(copy(true, false, host, 0, n), 0);
        frames = seen().requests - before;
        if (!i)
            assert_int_equal(threads_now(), threads + 2);
    }
    handler_says = HANDLED;
    assert_int_equal(frames, 1);
    assert_int_equal(threads_now(), threads);
}

static int set_up_off(void **state)
{
    const struct ibx_gpu_options before = gpu;
    gpu.mode = IBX_GPU_OFF;
    gpu.threads = 1; /* only the client has copy threads */
    int rc = set_up_threads(state);
    gpu = before;
    return rc;
}

static int serve_twin(struct session_pair *twin, void *argument)
{
    const struct ibx_gpu_options off = {.mode = IBX_GPU_OFF, .threads = 1};
    if (ibx_session_accept(twin->listening, &twin->server, NULL))
        return -1;
    assert_int_equal(ibx_device_copies_attach(twin->server, &off, NULL), 0);
    return serve(twin, argument);
}

static int set_up_at_first(void **state)
{
    scene_stage_at_once = false;
    const int rc = set_up_long(state);
    scene_stage_at_once = true;
    return rc;
}

/* An application with few long copies does not wait for memory that it would not use. */
static void test_stage_is_made_when_useful(void **state)
{
    (void)state;
    const size_t n = 1 << 20;
    uint8_t *host = scene_memory(n);
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(parts_of(i % 2, host, n), 1);
    for (unsigned i = 0; i < 3; i++)
        check_copies(LONGEST - 7, 0, false); /* there and back: the sixth copy makes the memory */
    assert_true(parts_of(true, host, n) > 1);
    check_copies(LONGEST - 7, 64, false);
}

/* A second connection of an application, for asynchronous copies, has as many threads. */
static void test_second_connection_has_threads(void **state)
{
    (void)state;
    const size_t n = 5 << 20;
    uint8_t *host = scene_memory(n);
    struct session_pair twin = {.listening = pair.listening};
    assert_int_equal(ibx_session_create_like(pair.client, &twin.client, NULL), 0);
    session_pair_start(&twin, serve_twin, NULL);
    assert_int_equal(ibx_session_connect(twin.client, NULL), 0);
    ibx_client_stage_at_once(twin.client);
    unsigned threads = threads_now();
    handler_says = 0;
    assert_int_equal(copy_by(twin.client, true, false, host, 0, n), 0);
    handler_says = HANDLED;
    assert_int_equal(threads_now(), threads + 2);
    ibx_session_destroy(twin.client);
    assert_int_equal(session_pair_join(&twin), 0);
    ibx_session_destroy(twin.server);
}

#define SHORT ((size_t)1 << 20) /* four parts of 256 KiB */
#define LONG  ((size_t)3 << 20) /* six parts of 512 KiB */

static uint64_t some = 300000, never = IBX_CHOICE_NEVER;

/* A back end for which copies in place start at the size in the state. */
static int set_up_tuned(void **state)
{
    const uint64_t least = *(uint64_t *)*state;
    struct ibx_choice choice = ibx_choice_default;
    choice.ways[IBX_CHOICE_TO_DEVICE].in_place_min = least;
    choice.ways[IBX_CHOICE_FROM_DEVICE].in_place_min = least;
    gpu.tuning = (struct ibx_tuning){.found = true, .choice = choice, .file = "a file"};
    ibx_tuning_machine_of(ibx_cuda_load(NULL), 0, &gpu.tuning.machine);
    int rc = set_up_long(state);
    gpu.tuning = (struct ibx_tuning){0};
    return rc;
}

/* Several copies from the device: each part is waited for, and is in place only if it is long. */
static void expect_parts(unsigned copies, uint8_t *host, size_t n, unsigned parts)
{
    for (unsigned i = 0; i < copies; i++)
        assert_int_equal(parts_of(false, host, n), parts);
}

/* A stage that helps only long copies is not given up because of short ones. */
static void test_short_copies_stop_using_the_stage_alone(void **state)
{
    (void)state;
    uint8_t *host = scene_memory(LONG);
    for (unsigned i = 0; i < 2; i++) {
        expect_parts(2, host, SHORT, 4);
        expect_parts(1, host, LONG, 6); /* a copy for which it was useful */
    }
    expect_parts(3, host, SHORT, 4);
    expect_parts(1, host, SHORT, 1);
    expect_parts(4, host, LONG, 6);
    expect_parts(1, host, SHORT, 1);
}

static void test_long_copies_are_judged_separately(void **state)
{
    (void)state;
    uint8_t *host = scene_memory(LONG);
    expect_parts(3, host, SHORT, 4);
    expect_parts(3, host, LONG, 6);
    expect_parts(1, host, LONG, 1);
    expect_parts(1, host, SHORT, 1);
}

/* A synchronous copy has its bytes in the stage before it is requested: no earlier work of a
 * stream writes them, so the size decides. An asynchronous copy follows its stream's order. */
static void test_size_decides_for_synchronous_copies(void **state)
{
    (void)state;
    static const size_t n = 100000;
    uint8_t *host = pattern(n, 1);
    assert_int_equal(copy(true, false, host, 0, n), 0);
    assert_int_equal(counts().in_place, 0);
    assert_int_equal(copy(true, true, host, 0, n), 0);
    assert_int_equal(counts().in_place, 1);
    assert_int_equal(seen().requests, 3); /* counts() twice, and the scene's first request */
}

/* ------------------------------------------------------------- parts to a fast GPU */

/* Each part is a third of the previous one, unless the last one would be too short for a frame. */
static void test_parts_shrink(void **state)
{
    (void)state;
    uint8_t *host = scene_memory(SHORT);
    assert_int_equal(parts_of(true, host, (4 * 64 << 10) - 1), 1);
    assert_int_equal(parts_of(true, host, 4 * 64 << 10), 2);
    assert_int_equal(parts_of(true, host, (13 * 64 << 10) - 1), 2);
    assert_int_equal(parts_of(true, host, 13 * 64 << 10), 3);
    assert_int_equal(parts_of(true, host, SHORT), 3);
}

/* A GPU, or a bus, that is no faster than this processor gets parts of equal length. Its speed
 * is measured again now and then. */
static void test_parts_for_a_slow_gpu(void **state)
{
    (void)state;
    uint8_t *host = scene_memory(SHORT);
    unsigned least = 3; /* copies in a row; more if this host was slow during one */
    for (unsigned round = 0; round < 2; round++) {
        unsigned tries = 0;
        app->slow(200000);
        while (parts_of(true, host, SHORT) == 3 && tries < 20)
            tries++;
        assert_in_range(tries, least, 19);
        app->slow(0);
        for (unsigned i = 1; i < 64; i++)
            assert_int_equal(parts_of(true, host, SHORT), 4);
        least = 1;
    }
}

/* --------------------------------------------------------- what GVirtuS's handler runs */

#define HANDED ((size_t)8 << 20)   /* in 16 frames; the last one says SETTLE */
#define PART   ((size_t)512 << 10) /* bytes of a frame */

static uint64_t two_parts = 2 * PART;

/* The back end has no chunks, and shorter copies are in place only if they may outlive their
 * call. */
static int set_up_poor(void **state)
{
    size_t pool = gpu.memory;
    gpu.memory = 1;
    int rc = set_up_tuned(state);
    gpu.memory = pool;
    return rc;
}

/* The answer to such a frame says that all earlier copies have ended too, for which the handler
 * does not wait. Otherwise memory that the client reuses would change under the GPU. */
static void test_handled_frames_wait_for_earlier_copies(void **state)
{
    (void)state;
    uint8_t *host = scene_memory(HANDED), *got = scene_memory(HANDED);
    assert_non_null(got);
    unsigned before = seen().requests;
    uint64_t there[2]; /* too short for the last frame, which the handler therefore gets */
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(app->mem_alloc(&there[i], HANDED - PART), 0);
    app->slow(2000);
    handler_says = 0;
    for (unsigned i = 0; i < 2; i++) {
        pattern_fill(host, HANDED, i);
        assert_int_equal(copy(true, true, host, there[i] - far, HANDED), 0);
    }
    assert_int_equal(counts().in_place, 30);
    /* the last frames, and the request of counts() */
    assert_int_equal(seen().requests, before + 3);
    handler_says = HANDLED;
    assert_int_equal(app->ctx_synchronize(), 0);
    for (unsigned i = 0; i < 2; i++) {
        assert_true(app->peek(there[i], got, HANDED - PART));
        assert_int_equal(pattern_check(got, HANDED - PART, i), HANDED - PART);
        app->mem_free(there[i]);
    }
}

#define TEST(name, set_up, state)                                                                  \
    cmocka_unit_test_prestate_setup_teardown(name, set_up, tear_down_long, state)

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* Must run first: a process has one pool, which the other tests create. */
        TEST(test_handled_frames_wait_for_earlier_copies, set_up_poor, &two_parts),
        TEST(test_sizes, set_up_long, NULL),
        {"test_many_threads", test_many_threads, set_up_many, tear_down_long, NULL},
        {"test_sizes_by_several", test_sizes, set_up_threads, tear_down_long, NULL},
        TEST(test_slow_gpu, set_up_threads, NULL),
        TEST(test_failures, set_up_threads, NULL),
        TEST(test_stage_that_is_useless, set_up_off, NULL),
        TEST(test_stage_is_made_when_useful, set_up_at_first, NULL),
        TEST(test_second_connection_has_threads, set_up_threads, NULL),
        TEST(test_short_copies_stop_using_the_stage_alone, set_up_tuned, &some),
        TEST(test_long_copies_are_judged_separately, set_up_tuned, &never),
        TEST(test_size_decides_for_synchronous_copies, set_up_tuned, &some),
        TEST(test_parts_shrink, set_up_long, NULL),
        TEST(test_parts_for_a_slow_gpu, set_up_long, NULL),
    };
    session_pair_use("shm", NULL, NULL, NULL);
    app = cuda_application();
    return cmocka_run_group_tests_name("stage", tests, NULL, NULL);
}
