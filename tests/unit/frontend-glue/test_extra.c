/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CUDA's structures in extension requests. */
#include "frontend-glue/session/extensions.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static void fields_without_gaps(void **state)
{
    (void)state;
    static const uint8_t golden[] = {3, 0, 0, 0, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0,  0,
                                     0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  0,
                                     0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 128};
    const struct ibx_cuda_view view = {.format = 3,
                                       .width = 0x0203040506070809,
                                       .height = 0x0000000200000001,
                                       .levels_and_layers = {0, 0, 7, 0x80000000}};
    struct ibx_cuda_view got = {0};
    uint8_t bytes[100];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    ibx_layout_put(&w, IBX_LAYOUT_VIEW, &view);
    assert_false(w.failed);
    assert_int_equal(w.length, sizeof(golden));
    assert_memory_equal(bytes, golden, sizeof(golden));
    struct ibx_reader r = ibx_reader_of(bytes, w.length);
    ibx_layout_get(&r, IBX_LAYOUT_VIEW, &got);
    assert_false(r.failed);
    assert_memory_equal(&got, &view, sizeof(view));
}

static void planes(void **state)
{
    (void)state;
    struct ibx_cuda_memcpy3d p, got;
    uint8_t bytes[200];
    /* without the padding after the last field */
    const size_t fields = offsetof(struct ibx_cuda_memcpy3d, kind) + sizeof(p.kind);
    for (size_t i = 0; i < sizeof(p); i++)
        ((uint8_t *)&p)[i] = (uint8_t)i;
    memset(&got, 0, sizeof(got));
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    ibx_layout_put(&w, IBX_LAYOUT_MEMCPY3D, &p);
    assert_int_equal(w.length, 19 * 8 + 4);
    assert_memory_equal(bytes, &p, fields); /* this host is little-endian, and there are no gaps */
    struct ibx_reader r = ibx_reader_of(bytes, w.length);
    ibx_layout_get(&r, IBX_LAYOUT_MEMCPY3D, &got);
    assert_memory_equal(&got, &p, fields);
}

static void resources(void **state)
{
    (void)state;
    static const uint8_t golden[] = {3, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0,
                                     0, 8, 0, 0, 0, 8,  0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0, 0, 0,
                                     0, 0, 6, 0, 0, 0,  0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0};
    struct ibx_cuda_resource pitch = {.kind = IBX_RESOURCE_PITCH_2D}, got;
    pitch.of.memory.at = (void *)4096;
    pitch.of.memory.channel = (struct ibx_cuda_channel){8, 8, 8, 8, 1};
    pitch.of.memory.sizes[0] = 5;
    pitch.of.memory.sizes[1] = 6;
    pitch.of.memory.sizes[2] = 512;
    uint8_t bytes[100];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    ibx_resource_put(&w, &pitch);
    assert_int_equal(w.length, sizeof(golden));
    assert_memory_equal(bytes, golden, sizeof(golden));
    for (size_t n = 0; n <= w.length; n++) {
        struct ibx_reader r = ibx_reader_of(bytes, n);
        ibx_resource_get(&r, &got);
        assert_int_equal(r.failed, n < w.length);
    }
    assert_ptr_equal(got.of.memory.at, pitch.of.memory.at);
    assert_int_equal(got.of.memory.sizes[2], 512);
    for (int kind = -1; kind < 6; kind++) { /* nothing is read of unknown kinds */
        struct ibx_cuda_resource other = {.kind = kind};
        w = ibx_writer_of(bytes, sizeof(bytes));
        ibx_resource_put(&w, &other);
        struct ibx_reader r = ibx_reader_of(bytes, w.length);
        ibx_resource_get(&r, &got);
        assert_int_equal(r.failed, kind < 0 || kind > 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_without_gaps),
        cmocka_unit_test(planes),
        cmocka_unit_test(resources),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
