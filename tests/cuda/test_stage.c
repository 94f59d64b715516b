/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Long copies of a client's pageable memory, in parts, through memory that both ends map. */
#include "tests/cuda/copies_scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LONGEST  ((size_t)40 << 20) /* more than all that is in flight at once */
#define GUARD    16u
#define INVALID  700 /* an illegal address */
#define MOST_OUT 8u  /* frames without an answer */

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

static int set_up_crew(void **state)
{
    int rc = set_up_long(state);
    struct ibx_gpu_options options = gpu;
    options.threads = 3;
    ibx_session_set_gpu(pair.client, &options);
    return rc;
}

static int tear_down_long(void **state)
{
    app->inject(NULL, 0, 0, false);
    app->mem_free(far);
    return tear_down(state);
}

static int copy(bool to_device, bool async, uint8_t *host, uint64_t at, size_t n)
{
    int code = -1;
    struct ibx_frontend_copy wish = {
        .to_device = to_device, .async = async, .device = far + at, .host = host, .n = n};
    assert_int_equal(ibx_session_copy(pair.client, &wish, &code), 0);
    return code;
}

/* There and back, wherever in a page the memory begins, and nothing beside it. */
static void check(size_t n, size_t into_page, bool async)
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
        check(sizes[i], places[i % 5], i % 2);
    for (size_t i = 0; i < 5; i++)
        check(3 << 20, places[i], true);
    /* No copy was GVirtuS's, and every part one in place. */
    struct frame other = {0};
    put_u64(&other, 5);
    send_frame("cudaOther", &other);
    assert_int_equal(receive_reply(NULL, 0), HANDLED);
    assert_int_equal(seen().requests, 2);
    assert_int_equal(seen().copies.in_place, seen().copies.all);
    assert_true(seen().copies.all > 4 * SIZES);
    free(other.bytes);
}

/* What the GPU has not taken yet is not written over: it is slower than the client here. */
static void test_slow_gpu(void **state)
{
    (void)state;
    app->slow(500);
    check(LONGEST, 16, false);
    check(LONGEST - 12345, 48, true);
}

/* The first failure is the call's; the rest of the copy is not tried for ever. */
static void test_failures(void **state)
{
    (void)state;
    const size_t n = 9 << 20;
    uint8_t *host = malloc(n);
    assert_non_null(host);
    for (unsigned i = 0; i < 12; i++) {
        bool to_device = i % 2;
        unsigned before = seen().requests;
        app->inject("dma", 1 + i % 5, INVALID, true);
        assert_int_equal(copy(to_device, i % 3 == 0, host, 0, n), HANDLED);
        app->inject(NULL, 0, 0, false);
        assert_in_range(seen().requests, before + 1, before + MOST_OUT + 1);
        check(n, 16, to_device);
    }
    free(host);
}

/* A back end that runs nothing by itself sees what it would of a client without such memory, but
 * for the first copies. */
static void test_useless(void **state)
{
    (void)state;
    const size_t n = 5 << 20;
    uint8_t *host = calloc(1, n);
    assert_non_null(host);
    unsigned before = 0, frames = 0;
    handler_says = 0;
    for (unsigned i = 0; i < 6; i++) {
        before = seen().requests;
        assert_int_equal(copy(true, false, host, 0, n), 0);
        frames = seen().requests - before;
    }
    handler_says = HANDLED;
    assert_int_equal(frames, 1);
    free(host);
}

static int set_up_off(void **state)
{
    gpu.mode = IBX_GPU_OFF;
    int rc = set_up_long(state);
    gpu.mode = IBX_GPU_ON;
    return rc;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_sizes, set_up_long, tear_down_long),
        {"test_sizes_by_several", test_sizes, set_up_crew, tear_down_long, NULL},
        cmocka_unit_test_setup_teardown(test_slow_gpu, set_up_crew, tear_down_long),
        cmocka_unit_test_setup_teardown(test_failures, set_up_crew, tear_down_long),
        cmocka_unit_test_setup_teardown(test_useless, set_up_off, tear_down_long),
    };
    session_pair_use("shm", NULL, NULL, NULL);
    app = cuda_application();
    return cmocka_run_group_tests_name("stage", tests, NULL, NULL);
}
