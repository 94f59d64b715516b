/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Requests whose handlers pass on arrays and other memory of the client's. Each is made first as a
 * front end makes it, and then malformed. */
#include "frontend-glue/gvirtus_handlers/request_shapes.h"
#include "tests/fixtures/request_body.h"

#include <stdlib.h>
#include <string.h>

/* What a number becomes in a request of so many bytes. */
static uint64_t number_of(const char *name, size_t n, unsigned at, uint64_t value)
{
    struct body b = {.n = at};
    uint32_t after = 0;
    uint8_t *copy = malloc(n);
    assert_non_null(copy);
    add(&b, value, 4);
    memcpy(copy, b.bytes, n);
    ibx_library_arrays_sanitize(name, copy, n);
    memcpy(&after, copy + at, 4);
    free(copy);
    return after;
}

/* Each array has one element, or as many as are told. */
static void arrays(void **state)
{
    static const struct {
        const char *name;
        unsigned at, last; /* the number, and the beginning of the last array */
    } calls[] = {
        {"cudnnSetConvolutionNdDescriptor", 8, 44},
        {"cudnnSetFilterNdDescriptor", 16, 28},
        {"cudnnSetPoolingNdDescriptor", 16, 52},
        {"cudnnSetRNNDataDescriptor", 20, 36},
        {"cudnnSetTensorNdDescriptor", 12, 36},
        {"cudnnSetSpatialTransformerNdDescriptor", 16, 28},
        {"cudnnSetTensorNdDescriptorEx", 8, 20},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        const char *name = calls[i].name;
        const unsigned at = calls[i].at, last = calls[i].last;
        for (unsigned n = 1; n < 9; n++) {
            assert_int_equal(number_of(name, last + 4 * n, at, n), n);
            assert_int_equal(number_of(name, last + 4 * n, at, n + 1), 0);
            assert_int_equal(number_of(name, last + 4 * n - 1, at, n), 0);
        }
        assert_int_equal(number_of(name, last, at, 1), 0);
        assert_int_equal(number_of(name, last - 1, at, 1), 0);
        assert_int_equal(number_of(name, last + 4, at, UINT32_MAX), 0);
    }
    assert_int_equal(number_of("cudnnSetPooling2dDescriptor", 56, 16, 2), 2);
}

static void counts(void **state)
{
    static const struct {
        const char *name;
        unsigned at, most;
    } calls[] = {
        {"cudnnGetConvolutionNdDescriptor", 8, 8},
        {"cufftEstimateMany", 0, 3},
        {"cufftGetSizeMany", 4, 3},
        {"cufftGetSizeMany64", 4, 3},
        {"cufftMakePlanMany", 4, 3},
        {"cufftMakePlanMany64", 4, 3},
        {"cufftXtMakePlanMany", 4, 3},
        {"cufftXtSetGPUs", 4, 64},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        const unsigned most = calls[i].most;
        assert_int_equal(number_of(calls[i].name, 120, calls[i].at, most), most);
        assert_int_equal(number_of(calls[i].name, 120, calls[i].at, most + 1), 0);
        assert_int_equal(number_of(calls[i].name, 120, calls[i].at, UINT32_MAX), 0);
    }
    struct body plan = {0};
    add(&plan, 4, 8);
    add(&plan, 0, 4);
    add(&plan, 4, 4);
    plan.n = 80;
    ibx_library_arrays_sanitize("cufftPlanMany", plan.bytes, plan.n);
    assert_int_equal(plan.bytes[12], 0);
}

/* Results are written to what has come for them, or to one on the handler's stack. */
static void searches(void **state)
{
    static const struct {
        const char *name;
        unsigned at, most; /* results, however many have come */
    } calls[] = {
        {"cudnnFindConvolutionBackwardDataAlgorithm", 40, 9},
        {"cudnnFindConvolutionBackwardDataAlgorithmEx", 64, 9},
        {"cudnnFindConvolutionBackwardFilterAlgorithm", 40, 9},
        {"cudnnFindConvolutionBackwardFilterAlgorithmEx", 64, 9},
        {"cudnnFindConvolutionForwardAlgorithm", 40, 1},
        {"cudnnFindConvolutionForwardAlgorithmEx", 64, 9},
        {"cudnnGetConvolutionBackwardDataAlgorithm_v7", 40, 9},
        {"cudnnGetConvolutionBackwardFilterAlgorithm_v7", 40, 9},
        {"cudnnGetConvolutionForwardAlgorithm_v7", 40, 9},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        const char *name = calls[i].name;
        const unsigned at = calls[i].at, behind = at + 4 + 8;
        assert_int_equal(number_of(name, at + 4, at, 1), 1);
        assert_int_equal(number_of(name, at + 4, at, 2), 1);
        for (unsigned n = 2; n < 9; n++) {
            const unsigned fit = n < calls[i].most ? n : 1;
            assert_int_equal(number_of(name, behind + n * 48, at, n), fit);
            assert_int_equal(number_of(name, behind + n * 48 - 4, at, n), fit);
            assert_int_equal(number_of(name, behind + n * 48 - 5, at, n), 1);
            assert_int_equal(number_of(name, behind + n * 48, at, n + 1), 1);
        }
        assert_int_equal(number_of(name, behind + 8 * 48, at, UINT32_MAX), 1);
    }
    assert_int_equal(number_of("cudnnGetConvolutionForwardWorkspaceSize", 44, 40, 8), 8);
}

static void replies_with_rests(void **state)
{
    (void)state;
    assert_int_equal(ibx_library_rest_of("nvmlDeviceGetName"), IBX_REST_OF_TEXT);
    assert_int_equal(ibx_library_rest_of("nvmlSystemGetDriverVersion"), IBX_REST_OF_TEXT);
    assert_int_equal(ibx_library_rest_of("cublasGetVector"), IBX_REST_NONE);
}

static void rests(void **state)
{
    const enum ibx_library_rest rest = ibx_library_rest_of("cublasLtMatmulAlgoGetHeuristic");
    (void)state;
    for (uint32_t results = 0; results < 5; results++) { /* of three that were asked for */
        struct body b = {.n = 8 + 3 * 96};
        const unsigned set = results > 3 ? 0 : 96 * results;
        memset(b.bytes, 7, b.n);
        struct ibx_writer w = ibx_writer_of(b.bytes, 8);
        ibx_put_u64(&w, 3 * 96);
        add(&b, results, 4);
        ibx_library_clear_rest(rest, b.bytes, b.n);
        for (unsigned i = 0; i < 3 * 96; i++)
            assert_int_equal(b.bytes[8 + i], i < set ? 7 : 0);
        assert_int_equal(b.bytes[8 + 3 * 96], results);
    }
    struct body odd = {.n = 8 + 96 + 11}; /* of another length than a handler's */
    memset(odd.bytes, 7, odd.n);
    struct ibx_writer w = ibx_writer_of(odd.bytes, 8);
    ibx_put_u64(&w, 96);
    const struct body same = odd;
    ibx_library_clear_rest(rest, odd.bytes, odd.n);
    assert_memory_equal(odd.bytes, same.bytes, odd.n);
    ibx_library_clear_rest(IBX_REST_NONE, odd.bytes, odd.n);
    assert_memory_equal(odd.bytes, same.bytes, odd.n);
    for (size_t n = 0; n < 16; n++) {
        uint8_t bytes[16];
        memset(bytes, n < 8 ? 0 : 0xff, sizeof(bytes));
        ibx_library_clear_rest(rest, bytes, n);
        ibx_library_clear_rest(IBX_REST_OF_TEXT, bytes, n);
        assert_int_equal(bytes[15], n < 8 ? 0 : 0xff);
    }
}

static void texts(void **state)
{
    (void)state;
    for (size_t n = 0; n <= 16; n++) { /* a text of so many characters in memory for 16 */
        struct body b = {0};
        add(&b, 16, 8);
        memset(b.bytes + 8, 7, 16);
        if (n < 16)
            b.bytes[8 + n] = 0;
        ibx_library_clear_rest(IBX_REST_OF_TEXT, b.bytes, 8 + 16);
        for (size_t i = 0; i < 16; i++)
            assert_int_equal(b.bytes[8 + i], i < n ? 7 : 0);
    }
}

/* Arguments of functions: i: 4 bytes; l: 8 bytes, also handles and addresses of a device. I, L, Z:
 * memory of 4, 8 or 16 bytes that has to be there. o, q: of 4 or 8 bytes, which may be NULL. */
static const struct {
    const char *name, *arguments;
} functions[] = {
    {"cublasCrot_v2", "lililiIL"},
    {"cublasCrotg_v2", "lLLIL"},
    {"cublasCsrot_v2", "lililiII"},
    {"cublasDrot_v2", "lililiLL"},
    {"cublasDrotg_v2", "lLLLL"},
    {"cublasDrotm_v2", "lililiL"},
    {"cublasDrotmg_v2", "lLLLLL"},
    {"cublasSgemm_v2", "liiiiillililli"}, /* another one */
    {"cublasSrot_v2", "lililiII"},
    {"cublasSrotg_v2", "lIIII"},
    {"cublasSrotm_v2", "lililiI"},
    {"cublasSrotmg_v2", "lIIIII"},
    {"cublasZdrot_v2", "lililiLL"},
    {"cublasZrot_v2", "lililiLZ"},
    {"cublasZrotg_v2", "lZZLZ"},
    {"cufftEstimate1d", "iiiL"},
    {"cufftEstimate2d", "iiiL"},
    {"cufftEstimate3d", "iiiiL"},
    {"cufftEstimateMany", "iIoiioiiiiL"},
    {"cufftGetSize", "iL"},
    {"cufftGetSize1d", "iiiiL"},
    {"cufftGetSize2d", "iiiiL"},
    {"cufftGetSize3d", "iiiiiL"},
    {"cufftGetSizeMany", "iiIoiioiiiiL"},
    {"cufftGetSizeMany64", "iiLqllqllilL"},
    {"cufftMakePlan1d", "iiiiL"},
    {"cufftMakePlan2d", "iiiiL"},
    {"cufftMakePlan3d", "iiiiiL"},
    {"cufftMakePlanMany", "iiIoiioiiiiL"},
    {"cufftMakePlanMany64", "iiLqllqllilL"},
    {"cufftPlan1d", "Iiii"},
    {"cufftPlan3d", "Iiiii"},
    {"cufftPlanMany", "IiIoiioiiii"},
    {"cufftXtMakePlanMany", "iiLqlliqllilLi"},
};

/* `needed`, `optional`: whether there is memory of that kind. */
static struct body arguments_of(const char *arguments, bool needed, bool optional)
{
    struct body b = {0};
    for (; *arguments; arguments++) {
        const char kind = *arguments;
        const unsigned bytes = strchr("iIo", kind) ? 4 : kind == 'Z' ? 16 : 8;
        const bool may_miss = kind == 'o' || kind == 'q';
        if (kind == 'i' || kind == 'l') {
            add(&b, 1, bytes);
            continue;
        }
        add(&b, (may_miss ? optional : needed) ? bytes : 0, 8);
        b.n += !may_miss || optional ? bytes : 0;
    }
    return b;
}

/* The handler gets a length for what has to be there. */
static void absent(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * sizeof(functions) / sizeof(functions[0]); i++) {
        const char *name = functions[i / 2].name, *arguments = functions[i / 2].arguments;
        const struct body there = arguments_of(arguments, true, i % 2);
        struct body b = arguments_of(arguments, false, i % 2);
        ibx_library_arrays_sanitize(name, b.bytes, b.n);
        assert_memory_equal(b.bytes, there.bytes, there.n);
        ibx_library_arrays_sanitize(name, b.bytes, b.n);
        assert_memory_equal(b.bytes, there.bytes, there.n);
    }
    struct body less = {.n = 11}; /* the handler finds nothing */
    ibx_library_arrays_sanitize("cufftGetSize", less.bytes, less.n);
    for (size_t i = 0; i < 16; i++)
        assert_int_equal(less.bytes[i], 0);
}

static void driver(void **state)
{
    struct body b = {0};
    (void)state;
    add(&b, 6, 8);
    add(&b, 6, 8);
    add_bytes(&b, "name?", 6);
    add(&b, 256, 4);
    add(&b, 0, 4);
    struct body long_name = b;
    long_name.bytes[24] = 0xff;
    ibx_library_arrays_sanitize("cuDeviceGetName", long_name.bytes, long_name.n);
    ibx_library_arrays_sanitize("cuDeviceGetName", b.bytes, b.n);
    assert_memory_equal(b.bytes + 22, "\0\1\0\0", 4);
    assert_memory_equal(long_name.bytes + 22, "\0\4\0\0", 4);
    for (uint32_t bytes = 8; bytes < 10; bytes++) {
        const uint32_t values[] = {0, bytes, 8, 0, 1, 1, 7, 7};
        struct body v = {0};
        for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
            add(&v, values[i], 4);
        ibx_library_arrays_sanitize("cuParamSetv", v.bytes, v.n);
        assert_int_equal(v.bytes[4], bytes == 8 ? 8 : 0);
        assert_int_equal(v.bytes[24], bytes == 8 ? 7 : 0); /* the function */
    }
    assert_int_equal(number_of("cuPointerGetAttribute", 12, 0, 5), 0);
    assert_int_equal(number_of("cuPointerGetAttribute", 12, 0, 4), 4);
    assert_int_equal(number_of("cudaGraphGetNodes", 24, 8, 8), 0);
}

/* Truncated anywhere; each request has memory of exactly its length, for the sanitizer. */
static void truncated(void **state)
{
    static const char *const others[] = {"cudnnSetTensorNdDescriptor",
                                         "cufftXtSetGPUs",
                                         "cudnnFindConvolutionForwardAlgorithm",
                                         "cuDeviceGetName",
                                         "cuParamSetv",
                                         "cuPointerGetAttribute",
                                         "cudaGraphGetNodes"};
    const size_t count = sizeof(others) / sizeof(others[0]);
    (void)state;
    for (size_t i = 0; i < count + sizeof(functions) / sizeof(functions[0]); i++) {
        for (size_t n = 0; n < 120; n++) {
            uint8_t *bytes = test_malloc(n ? n : 1);
            memset(bytes, i % 2 ? 0xff : 0, n);
            ibx_library_arrays_sanitize(i < count ? others[i] : functions[i - count].name, bytes,
                                        n);
            memset(bytes, i % 2 ? 0 : 0xff, n);
            ibx_library_arrays_sanitize(i < count ? others[i] : functions[i - count].name, bytes,
                                        n);
            test_free(bytes);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrays),    cmocka_unit_test(counts),
        cmocka_unit_test(searches),  cmocka_unit_test(replies_with_rests),
        cmocka_unit_test(rests),     cmocka_unit_test(texts),
        cmocka_unit_test(absent),    cmocka_unit_test(driver),
        cmocka_unit_test(truncated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
