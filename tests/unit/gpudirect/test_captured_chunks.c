/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Another thread of the client begins to capture a stream while a copy in it goes through chunks:
 * the rest of the copy becomes part of a graph. */
#include "gpudirect/staging.h"
#include "tests/fixtures/cuda_unit.h"

#include <stdlib.h>

#define CHUNKS         20u
#define SIZE           ((size_t)6 * IBX_PINNED_CHUNK)
#define CAPTURED_EVENT 907 /* CUresult */

static struct ibx_quota quota = {.most = CHUNKS};
static struct ibx_staging *staging;
static uint64_t device;
static unsigned chunks[IBX_STAGING_DEPTH], count;

/* A copy whose `in`-th wait for a chunk returns `code`. */
static void fetch(unsigned in, int code)
{
    const struct ibx_gpu_copy copy = {.device = device, .width = SIZE, .height = 1};
    assert_true(ibx_staging_begin(staging, SIZE));
    count = ibx_staging_chunks(staging);
    for (unsigned i = 0; i < count; i++)
        chunks[i] = ibx_staging_chunk(staging, i);
    app->inject(code ? "cuEventSynchronize" : NULL, in, code, false);
    const int rc = ibx_staging_from_device(staging, &copy, true);
    assert_int_equal(rc, in == 1 ? code : 0);
    ibx_staging_end(staging);
    app->inject(NULL, 0, 0, false);
}

/* Nobody else gets these chunks, which count as the client's. It is told at the wait for the copy,
 * or at that for what else is under way when the chunks are to be given back. Other copies and
 * other errors are none of that. */
static void test_chunks_of_a_graph(void **state)
{
    (void)state;
    for (unsigned in = 1; in <= 2; in++) {
        fetch(in, CAPTURED_EVENT);
        assert_true(count > 1);
        assert_int_equal(ibx_pinned_taken(), count);
        assert_int_equal(ibx_quota_left(&quota), CHUNKS - count);
        for (unsigned i = 0; i < count; i++)
            ibx_pinned_give(&quota, chunks[i]);
        fetch(1, 0);
        assert_int_equal(ibx_pinned_taken(), 0);
        fetch(in, 700);
        assert_int_equal(ibx_pinned_taken(), 0);
        assert_int_equal(ibx_quota_left(&quota), CHUNKS);
    }
}

static int set_up(void **state)
{
    (void)state;
    assert_int_equal(app->mem_alloc(&device, SIZE), 0);
    assert_int_equal(ibx_pinned_open(cuda, CHUNKS * IBX_PINNED_STRIDE, NULL), 0);
    assert_int_equal(ibx_staging_create(cuda, &staging), 0);
    ibx_staging_set_quota(staging, &quota);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    ibx_staging_destroy(staging);
    return app->mem_free(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_chunks_of_a_graph, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("captured-chunks", tests, find_cuda, NULL);
}
