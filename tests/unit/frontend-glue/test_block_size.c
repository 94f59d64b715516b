/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which block size cuOccupancyMaxPotentialBlockSize() proposes, depending on what a back end
 * reports about its device. */
#include "frontend-glue/preload/kernels/kernels.h"
#include "frontend-glue/preload/streams/streams.h"
#include "frontend-glue/driver_api/driver.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define WARP_SIZE       10 /* CUdevice_attribute */
#define MULTIPROCESSORS 16
#define THREADS_AT      24 /* in cudaFuncAttributes */

int cuOccupancyMaxPotentialBlockSize(int *grid, int *block, const void *function,
                                     size_t (*shared_of)(int threads), size_t shared, int limit);

/* The back end's answers. Blocks that run at the same time have `fit` threads together, whatever
 * their size. */
static int threads_of_block, warp, multiprocessors, threads_at_once, fit;

static const char kernel;

static void begin(void)
{
    threads_of_block = 1024;
    warp = 32;
    multiprocessors = 132;
    threads_at_once = 2048;
    fit = 1536;
}

static int propose(int *grid, int *block)
{
    *grid = *block = -7;
    return cuOccupancyMaxPotentialBlockSize(grid, block, &kernel, NULL, 0, 0);
}

static void largest_block_that_uses_most_threads(void **state)
{
    int grid, block;
    (void)state;
    begin();
    assert_int_equal(propose(&grid, &block), 0);
    assert_true(block == 768 && grid == 2 * 132);
}

/* Without GVirtuS the driver returns the same. */
static void no_block_fits(void **state)
{
    int grid, block;
    (void)state;
    begin();
    fit = 0;
    assert_int_equal(propose(&grid, &block), 0);
    assert_true(block == 0 && grid == 0);
}

static void more_threads_than_the_device_allows(void **state)
{
    int *const all[] = {&threads_of_block, &warp, &multiprocessors, &fit};
    int grid, block;
    (void)state;
    for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        begin();
        *all[i] = INT_MAX;
        assert_int_not_equal(propose(&grid, &block), 0);
        assert_true(grid == -7 && block == -7);
    }
}

/* Either number is allowed alone; together they give too many threads or too many sizes to try. */
static void overflow_by_two_numbers(void **state)
{
    const int both[][2] = {{1 << 24, 1 << 14}, {1 << 14, 1}};
    int grid, block;
    (void)state;
    for (unsigned i = 0; i < sizeof(both) / sizeof(both[0]); i++) {
        begin();
        threads_of_block = both[i][0];
        warp = both[i][1];
        assert_int_not_equal(propose(&grid, &block), 0);
        assert_true(grid == -7 && block == -7);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(largest_block_that_uses_most_threads),
                                       cmocka_unit_test(no_block_fits),
                                       cmocka_unit_test(more_threads_than_the_device_allows),
                                       cmocka_unit_test(overflow_by_two_numbers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* ------------------------------------------------------------ replaced functions of other files */

int cudaFuncGetAttributes(void *attributes, const void *function)
{
    (void)function;
    memcpy((char *)attributes + THREADS_AT, &threads_of_block, sizeof(threads_of_block));
    return 0;
}

int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function,
                                                           int threads, size_t shared,
                                                           unsigned flags)
{
    (void)function, (void)shared, (void)flags;
    *blocks = fit / threads;
    return 0;
}

int ibx_driver_attribute(int *value, int attribute, int device)
{
    (void)device;
    *value = attribute == WARP_SIZE         ? warp
             : attribute == MULTIPROCESSORS ? multiprocessors
                                            : threads_at_once;
    return 0;
}

int ibx_driver_begin(struct ibx_driver_call *call, bool in_context)
{
    (void)call, (void)in_context;
    return 0;
}

int ibx_driver_end(const struct ibx_driver_call *call, int begun, int rc)
{
    (void)call, (void)begun;
    return rc;
}

/* No information about a kernel is kept between tests. */
unsigned ibx_frontend_modules_gone(void)
{
    static unsigned gone;
    return ++gone;
}

int ibx_frontend_current_device(void)
{
    return 0;
}

/* not called in this test */

int cudaFuncSetAttribute(const void *function, int attribute, int value)
{
    (void)function, (void)attribute, (void)value;
    return CUDA_UNKNOWN;
}

int cudaFuncSetCacheConfig(const void *function, int config)
{
    (void)function, (void)config;
    return CUDA_UNKNOWN;
}

int ibx_driver_check_device(int device)
{
    (void)device;
    return CUDA_UNKNOWN;
}

bool ibx_driver_config(struct launch_config *config, const struct ibx_driver_launch *launch)
{
    (void)config, (void)launch;
    return false;
}

int ibx_frontend_no_kernel(const void *function)
{
    (void)function;
    return CUDA_UNKNOWN;
}
