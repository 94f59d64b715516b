/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Extension requests that name rows of memory. The rows count from the first byte to the end of
 * the last row, with the row length that CUDA uses. */
#include "frontend-glue/session/textures.h"
#include "tests/fixtures/extensions.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

static int copy_planes(struct client *c, const struct ibx_cuda_memcpy3d *p)
{
    uint8_t bytes[200];
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_MEMCPY_3D);
    ibx_layout_put(&w, IBX_LAYOUT_MEMCPY3D, p);
    return ext_run(c, &w, NULL);
}

/* Rows that start in the client's own memory, except that the position of the copy in them is
 * outside. */
static void test_rows_of_others(void **state)
{
    (void)state;
    uint8_t letters[2 * MEMORY], got[MEMORY];
    const size_t apart = (size_t)(bob.memory - alice.memory);
    void *own = (void *)(uintptr_t)alice.memory;
    struct ibx_cuda_memcpy3d copy = {
        .from = {own, 64, 64, 1}, .to = {own, 64, 64, 1}, .extent = {64, 1, 1}, .kind = 3};
    struct ibx_cuda_memcpy3d wide = copy;
    assert_true(bob.memory > alice.memory);
    memset(letters, 'b', sizeof(letters));
    assert_int_equal(app->to_device(bob.memory, letters, MEMORY), 0);
    assert_int_equal(copy_planes(&alice, &copy), 0);
    copy.to_at.width = apart;
    assert_int_equal(copy_planes(&alice, &copy), CUDA_INVALID_VALUE);
    copy.to_at.width = 0;
    copy.from_at.width = apart;
    assert_int_equal(copy_planes(&alice, &copy), CUDA_INVALID_VALUE);
    wide.extent.width = apart + 1; /* a row that is too long */
    assert_int_equal(copy_planes(&alice, &wide), CUDA_INVALID_VALUE);
    assert_int_equal(app->ctx_synchronize(), 0);
    assert_int_equal(app->from_device(got, bob.memory, MEMORY), 0);
    assert_memory_equal(got, letters, MEMORY);
    /* Up to the last byte of the client's memory, and of an array. */
    copy.from_at.width = MEMORY - 64;
    assert_int_equal(copy_planes(&alice, &copy), 0);
    const struct ibx_cuda_memcpy3d from_array = {.from_array = (void *)(uintptr_t)alice.array,
                                                 .to = {own, 64, 64, 4},
                                                 .to_at = {0, MEMORY / 64 - 4, 0},
                                                 .extent = {64, 4, 1},
                                                 .kind = 3};
    assert_int_equal(copy_planes(&alice, &from_array), 0);
}

/* An array of 64 by 8 elements, or texels. */
static uint64_t make_array(const struct ibx_cuda_channel *channel)
{
    const struct ibx_cuda_extent extent = {64, 8, 0};
    uint8_t bytes[128];
    uint64_t array;
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_MALLOC_ARRAY);
    ibx_layout_put(&w, IBX_LAYOUT_CHANNEL, channel);
    ibx_layout_put(&w, IBX_LAYOUT_EXTENT, &extent);
    ibx_put_u32(&w, 0);
    assert_int_equal(ext_run(&alice, &w, &array), 0);
    return array;
}

/* With an array, columns of memory count in its elements: CUDA goes that much further. */
static void test_columns_of_elements(void **state)
{
    (void)state;
    const struct ibx_cuda_channel channel = {32, 32, 32, 32, 2};
    const size_t element = 16, apart = (size_t)(bob.memory - alice.memory);
    const uint64_t array = make_array(&channel);
    struct ibx_cuda_memcpy3d copy = {.from_array = (void *)(uintptr_t)array,
                                     .to = {(void *)(uintptr_t)alice.memory, 1u << 30, 64, 1},
                                     .to_at = {MEMORY / element - 1, 0, 0},
                                     .extent = {1, 1, 1},
                                     .kind = 3};
    assert_true(bob.memory > alice.memory);
    assert_int_equal(copy_planes(&alice, &copy), 0);
    copy.to_at.width = apart / element;
    assert_int_equal(copy_planes(&alice, &copy), CUDA_INVALID_VALUE);
    copy.to_at.width = SIZE_MAX / element + 1; /* times the element: 0 */
    assert_int_equal(copy_planes(&alice, &copy), CUDA_INVALID_VALUE);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_FREE_ARRAY, array, NULL), 0);
}

/* In a compressed format, a block of four by four texels may have more bytes than four texels of
 * the channels' bits, and a row of blocks is as high as four of texels. */
static void test_rows_of_blocks(void **state)
{
    (void)state;
    const struct ibx_cuda_channel channel = {8, 0, 0, 0, 23}; /* BC4, blocks of 8 bytes */
    const size_t pitch = 256, row = 64 / 4 * 8;
    const uint64_t array = make_array(&channel);
    uint64_t both; /* the first half is alice's, the second one is bob's */
    assert_int_equal(app->mem_alloc(&both, 2 * MEMORY), 0);
    assert_true(ibx_owners_add(alice.x.isolation.tenant, both, MEMORY, NULL, 0));
    assert_true(ibx_owners_add(bob.x.isolation.tenant, both + MEMORY, MEMORY, NULL, 0));
    struct ibx_cuda_memcpy3d copy = {
        .from_array = (void *)(uintptr_t)array,
        .to = {(void *)(uintptr_t)(both + MEMORY - pitch - row), pitch, pitch, 2},
        .extent = {64, 8, 1},
        .kind = 3};
    assert_int_equal(copy_planes(&alice, &copy), 0);
    /* CUDA copies a whole row of blocks. */
    copy.extent.height = 1;
    copy.to.at = (void *)(uintptr_t)(both + MEMORY - row);
    assert_int_equal(copy_planes(&alice, &copy), 0);
    copy.to.at = (void *)(uintptr_t)(both + MEMORY - row / 2);
    assert_int_equal(copy_planes(&alice, &copy), CUDA_INVALID_VALUE);
    ibx_owners_remove(both, ibx_owners_number(both));
    ibx_owners_remove(both + MEMORY, ibx_owners_number(both + MEMORY));
    assert_int_equal(app->mem_free(both), 0);
    assert_int_equal(ext_call_one(&alice, IBX_EXT_FREE_ARRAY, array, NULL), 0);
}

/* Makes a texture of rows of alice's memory, and destroys it. `bits`: IBX_TEXTURE_*. */
static int texture_by(unsigned bits, const struct ibx_cuda_channel *channel, size_t width,
                      size_t rows, size_t pitch)
{
    const struct ibx_cuda_resource resource = {
        .kind = IBX_RESOURCE_PITCH_2D,
        .of = {.memory = {(void *)(uintptr_t)alice.memory, *channel, {width, rows, pitch}}}};
    struct ibx_cuda_texture how;
    uint64_t made;
    uint8_t bytes[256];
    for (int i = 0; i < 18; i++) /* as the simulated driver expects it */
        how.words[i] = i + 1;
    if (bits) {
        how.words[IBX_WORD_FILTER] = IBX_FILTER_LINEAR;
        how.words[IBX_WORD_READ] = IBX_READ_ELEMENTS;
    }
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_CREATE_TEXTURE);
    ibx_resource_put(&w, &resource);
    ibx_layout_put(&w, IBX_LAYOUT_TEXTURE, &how);
    ibx_put_u8(&w, (uint8_t)bits);
    const int rc = ext_run(&alice, &w, &made);
    if (!rc)
        assert_int_equal(ext_call_one(&alice, IBX_EXT_DESTROY_TEXTURE, made, NULL), 0);
    return rc;
}

static int texture(const struct ibx_cuda_channel *channel, size_t width, size_t rows, size_t pitch)
{
    return texture_by(0, channel, width, rows, pitch);
}

/* The lower right part of an image: another tenant's memory may start where the last row ends. */
static void test_textures_before_others(void **state)
{
    (void)state;
    const struct ibx_cuda_channel pairs = {32, 32, 0, 0, 2};
    const size_t apart = (size_t)(bob.memory - alice.memory), row = 64 * 8;
    assert_true(bob.memory > alice.memory);
    assert_int_equal(texture(&pairs, 64, 2, apart - row), 0);
    assert_int_equal(texture(&pairs, 64, 2, apart - row + 1), CUDA_INVALID_VALUE);
    assert_int_equal(texture(&pairs, 64, SIZE_MAX / 2, apart), CUDA_INVALID_VALUE);
    /* For any pitch. */
    const size_t fit = apart / 8 / 64 * 64;
    assert_int_equal(texture(&pairs, fit, 1, 64), 0);
    assert_int_equal(texture(&pairs, fit + 64, 1, 64), CUDA_INVALID_VALUE);
    assert_int_equal(texture(&pairs, SIZE_MAX / 64 * 64, 1, 64), CUDA_INVALID_VALUE);
    /* CUDA may interpret other channels differently, so a whole pitch counts. */
    const struct ibx_cuda_channel others[] = {{32, 16, 0, 0, 2}, {8, 0, 8, 0, 2}, {0, 0, 0, 0, 2}};
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(texture(&others[i], 64, 2, apart - row), CUDA_INVALID_VALUE);
        assert_int_equal(texture(&others[i], 64, 2, apart / 2), 0);
    }
}

/* The same for textures that the driver makes. It gets no elements but those that were checked. */
static void test_textures_of_driver_before_others(void **state)
{
    (void)state;
    const struct ibx_cuda_channel pairs = {16, 16, 0, 0, 1};
    const size_t apart = (size_t)(bob.memory - alice.memory), row = 64 * 4;
    const unsigned driver = IBX_TEXTURE_BY_DRIVER;
    assert_int_equal(texture_by(driver, &pairs, 64, 2, apart - row), 0);
    assert_int_equal(texture_by(driver, &pairs, 64, 2, apart - row + 1), CUDA_INVALID_VALUE);
    assert_int_equal(texture_by(driver, &pairs, SIZE_MAX / 64 * 64, 1, 64), CUDA_INVALID_VALUE);
    const struct ibx_cuda_channel others[] = {
        {16, 8, 0, 0, 1}, {16, 0, 16, 0, 1}, {16, 16, 16, 0, 1},  {64, 0, 0, 0, 1},
        {0, 0, 0, 0, 1},  {16, 16, 0, 0, 3}, {16, 16, 16, 32, 1}, {-16, 0, 0, 0, 1}};
    for (unsigned i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        assert_int_equal(texture_by(driver, &others[i], 1, 1, 64), CUDA_INVALID_VALUE);
    assert_int_equal(texture_by(driver | 4, &pairs, 1, 1, 64), CUDA_INVALID_VALUE);
    assert_int_equal(texture_by(4, &pairs, 1, 1, 64), CUDA_INVALID_VALUE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_of_others),
        cmocka_unit_test(test_columns_of_elements),
        cmocka_unit_test(test_rows_of_blocks),
        cmocka_unit_test(test_textures_before_others),
        cmocka_unit_test(test_textures_of_driver_before_others),
    };
    return cmocka_run_group_tests(tests, ext_set_up, ext_tear_down);
}
