/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What copies count in beside an array of each of cudaChannelFormatKind. The bits of the channels
 * are those of cudaCreateChannelDesc() for that format. For compressed formats CUDA's manual says
 * (CUDA_RESOURCE_VIEW_DESC) that each 4 by 4 texels are an element of two 32-bit numbers in BC1 and
 * BC4, and of four in the others.
 */
#include "frontend-glue/session/extensions.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static const struct format {
    struct ibx_cuda_channel channel;
    size_t bytes, texels;
} formats[] = {
    /* signed, unsigned and floating-point numbers */
    {{8, 0, 0, 0, 0}, 1, 1},
    {{16, 16, 0, 0, 0}, 4, 1},
    {{32, 32, 32, 32, 0}, 16, 1},
    {{8, 8, 8, 8, 1}, 4, 1},
    {{32, 0, 0, 0, 1}, 4, 1},
    {{16, 0, 0, 0, 2}, 2, 1},
    {{32, 32, 0, 0, 2}, 8, 1},
    /* normalized ones, 1 to 4 channels */
    {{8, 0, 0, 0, 5}, 1, 1},
    {{8, 8, 0, 0, 6}, 2, 1},
    {{8, 8, 8, 8, 7}, 4, 1},
    {{16, 0, 0, 0, 8}, 2, 1},
    {{16, 16, 0, 0, 9}, 4, 1},
    {{16, 16, 16, 16, 10}, 8, 1},
    {{8, 0, 0, 0, 11}, 1, 1},
    {{8, 8, 0, 0, 12}, 2, 1},
    {{8, 8, 8, 8, 13}, 4, 1},
    {{16, 0, 0, 0, 14}, 2, 1},
    {{16, 16, 0, 0, 15}, 4, 1},
    {{16, 16, 16, 16, 16}, 8, 1},
    /* BC1, BC2, BC3, each also sRGB */
    {{8, 8, 8, 8, 17}, 8, 4},
    {{8, 8, 8, 8, 18}, 8, 4},
    {{8, 8, 8, 8, 19}, 16, 4},
    {{8, 8, 8, 8, 20}, 16, 4},
    {{8, 8, 8, 8, 21}, 16, 4},
    {{8, 8, 8, 8, 22}, 16, 4},
    /* BC4, BC5, each unsigned and signed */
    {{8, 0, 0, 0, 23}, 8, 4},
    {{8, 0, 0, 0, 24}, 8, 4},
    {{8, 8, 0, 0, 25}, 16, 4},
    {{8, 8, 0, 0, 26}, 16, 4},
    /* BC6H unsigned and signed, BC7, also sRGB */
    {{16, 16, 16, 0, 27}, 16, 4},
    {{16, 16, 16, 0, 28}, 16, 4},
    {{8, 8, 8, 8, 29}, 16, 4},
    {{8, 8, 8, 8, 30}, 16, 4},
    /* 10, 10, 10 and 2 bits */
    {{10, 10, 10, 2, 31}, 4, 1},
};

static void test_formats(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        const struct format *f = &formats[i];
        const struct ibx_array_unit unit = ibx_array_unit_of(&f->channel);
        if (unit.bytes != f->bytes || unit.texels != f->texels)
            fail_msg("format %d: %zu bytes for %zu texels", f->channel.kind, unit.bytes,
                     unit.texels);
    }
}

/* Blocks at the edge are whole. */
static void test_rows(void **state)
{
    const struct ibx_array_unit block = {16, 4}, texel = {4, 1};
    const size_t texels[] = {0, 1, 3, 4, 5, 8, SIZE_MAX}, blocks[] = {0, 1, 1, 1, 2, 2};
    (void)state;
    for (size_t i = 0; i < sizeof(texels) / sizeof(texels[0]); i++) {
        assert_int_equal(ibx_array_units(&block, texels[i]), i < 6 ? blocks[i] : SIZE_MAX / 4 + 1);
        assert_int_equal(ibx_array_units(&texel, texels[i]), texels[i]);
    }
}

/* Channels that CUDA does not have. */
static void test_no_formats(void **state)
{
    const struct ibx_cuda_channel none[] = {
        {0, 0, 0, 0, 0}, {-8, 0, 0, 0, 0}, {64, 0, 0, 0, 0}, {8, 8, 8, 33, 1}, {8, 0, 0, -32, 2}};
    (void)state;
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
        assert_int_equal(ibx_array_unit_of(&none[i]).bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_no_formats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
