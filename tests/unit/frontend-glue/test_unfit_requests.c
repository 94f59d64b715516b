/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Requests whose handlers would access memory outside their own. Each is made first as a front
 * end makes it, and then malformed. */
#include "frontend-glue/gvirtus_handlers/request_shapes.h"
#include "tests/fixtures/request_body.h"

#include <stdlib.h>
#include <string.h>

#define HOST  32u /* where the bytes of vectors start */
#define BLOCK 4096u

/* ------------------------------------------------------------------ options of modules */

static struct body load(uint32_t count, uint64_t bytes, const uint32_t *options, uint64_t present)
{
    struct body b = {0};
    add(&b, count, 4);
    add(&b, bytes, 8);
    add_bytes(&b, options, count * sizeof(*options));
    add(&b, 4, 8);
    add(&b, 4, 8);
    add_bytes(&b, "PTX", 4);
    for (uint32_t i = 0; i < count; i++) {
        add(&b, present, 8);
        add(&b, 32 + i, 8);
    }
    return b;
}

static void load_options(void **state)
{
    static const uint32_t numbers[] = {0, 7}; /* registers, level of optimization */
    static const uint32_t memory[] = {3, 5, 17, 18, 25, 27}, many[IBX_LOAD_OPTIONS + 1];
    struct body b = load(2, 8, numbers, 8);
    (void)state;
    assert_true(fits(ibx_load_options_fit, &b));
    b = load(0, 0, numbers, 8);
    assert_true(fits(ibx_load_options_fit, &b));
    b = load(2, 4, numbers, 8); /* the handler reads as many options as it is told */
    assert_false(fits(ibx_load_options_fit, &b));
    b = load(2, 8, numbers, 0); /* the handler follows NULL */
    assert_false(fits(ibx_load_options_fit, &b));
    b.n = 3;
    assert_false(fits(ibx_load_options_fit, &b));
    b = load(2, 8, numbers, 8), b.bytes[12 + 8 + 16 + 3] = 'X'; /* PTX without an end */
    assert_false(fits(ibx_load_options_fit, &b));
    b = load(2, 8, numbers, 8), b.bytes[12 + 8] = 255; /* PTX beyond the request */
    assert_false(fits(ibx_load_options_fit, &b));
    b = load(IBX_LOAD_OPTIONS, 4 * IBX_LOAD_OPTIONS, many, 8);
    assert_true(fits(ibx_load_options_fit, &b));
    b = load(IBX_LOAD_OPTIONS + 1, 4 * (IBX_LOAD_OPTIONS + 1), many, 8);
    assert_false(fits(ibx_load_options_fit, &b));
    b = load(2, 8, numbers, 8), memset(b.bytes, 0xff, 4);
    assert_false(fits(ibx_load_options_fit, &b));
    for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++) {
        b = load(1, 4, memory + i, 8);
        assert_false(fits(ibx_load_options_fit, &b));
    }
}

static void ends_in_zeros(struct ibx_reader *r)
{
    while (ibx_reader_left(r))
        assert_int_equal(ibx_get_u8(r), 0);
}

/* What GVirtuS's front end reads of a reply. */
static void reads_empty_logs(const uint8_t *payload, size_t n, const uint32_t *options,
                             uint32_t count)
{
    struct ibx_reader r = ibx_reader_of(payload, n);
    assert_int_equal(ibx_get_u64(&r), 7); /* the module */
    for (uint32_t i = 0; i + 1 < count; i++) {
        if (options[i] == 3) {
            assert_int_equal(ibx_get_u32(&r), 0);
        } else if (options[i] == 5) {
            assert_int_equal(ibx_get_u64(&r), 1);
            assert_int_equal(ibx_get_u64(&r), 1);
            assert_int_equal(ibx_get_u8(&r), 0);
        } else {
            assert_int_equal(ibx_get_u64(&r), 4);
            assert_int_equal(ibx_get_u32(&r), options[i] == 2 ? 9 + i : 0);
        }
    }
    assert_false(r.failed);
    ends_in_zeros(&r);
}

/* A program that wants logs gets empty ones, and its other options are passed on. */
static void logs(void **state)
{
    static const uint32_t wanted[][6] = {{0, 3, 4, 5, 6, 2}, {2, 5, 5, 5, 3, 0}, {5, 2, 3}, {4}};
    static const uint32_t counts[] = {6, 6, 3, 1};
    (void)state;
    for (unsigned k = 0; k < 4; k++) {
        struct ibx_load_options options;
        struct body b = load(counts[k], 4 * counts[k], wanted[k], 8), reply = {0};
        ibx_load_options_sanitize(b.bytes, b.n, &options);
        assert_true(fits(ibx_load_options_fit, &b));
        struct ibx_reader r = ibx_reader_of(b.bytes + 12, b.n - 12);
        for (uint32_t i = 0; i < counts[k]; i++) {
            const uint32_t kind = wanted[k][i];
            assert_int_equal(ibx_get_u32(&r), kind >= 3 && kind <= 6 ? 2 : kind);
        }
        ibx_get_bytes(&r, 20);
        add(&reply, 7, 8);
        for (uint32_t i = 0; i < counts[k]; i++) {
            assert_int_equal(ibx_get_u64(&r), 4);
            assert_int_equal(ibx_get_u32(&r), 32 + i);
            add(&reply, 8, 8); /* an address of the handler's, or a time */
            add(&reply, 9 + i, 8);
        }
        assert_false(r.failed);
        ends_in_zeros(&r);
        const struct body other = reply;
        ibx_load_options_answer(&options, reply.bytes, reply.n - 1); /* of another length */
        assert_memory_equal(reply.bytes, other.bytes, reply.n);
        ibx_load_options_answer(&options, reply.bytes, reply.n);
        reads_empty_logs(reply.bytes, reply.n, wanted[k], counts[k]);
    }
    struct ibx_load_options options = {.count = 1};
    struct body b = load(2, 8, wanted[0], 4); /* not as GVirtuS's front end sends it */
    const struct body same = b;
    ibx_load_options_sanitize(b.bytes, b.n, &options);
    assert_memory_equal(b.bytes, same.bytes, b.n);
    assert_int_equal(options.count, 0);
}

/* ---------------------------------------------------------------- vectors and numbers */

static struct body numbers(unsigned count, const uint32_t *values, size_t more)
{
    struct body b = {0};
    for (unsigned i = 0; i < count; i++)
        add(&b, values[i], 4);
    b.n += more;
    return b;
}

/* Whether the request is unchanged; otherwise its elements get a size of 0 bytes. */
static bool good(const char *name, struct body b, uint64_t longest, unsigned element)
{
    const struct body before = b;
    uint32_t bytes;
    ibx_library_shapes_sanitize(name, b.bytes, b.n, longest);
    memcpy(&bytes, b.bytes + element, 4);
    const bool same = !memcmp(b.bytes, before.bytes, b.n);
    assert_true(same || !bytes);
    return same;
}

static bool sets_vector(uint32_t n, uint32_t element, uint32_t step, uint32_t come)
{
    const uint32_t values[] = {n, element, step, 1, 7, 7, come, 0};
    return good("cublasSetVector", numbers(8, values, 64), 0, 4);
}

static bool sets_matrix(uint32_t rows, uint32_t columns, uint32_t step, uint32_t come)
{
    const uint32_t values[] = {rows, columns, 4, 7, 7, rows, step, come, 0};
    return good("cublasSetMatrix", numbers(9, values, 64), 0, 8);
}

static bool gets_vector(uint32_t n, uint32_t element, uint32_t step, uint64_t longest)
{
    const uint32_t values[] = {n, element, 1, step, 7, 7, 1, 0};
    return good("cublasGetVector", numbers(8, values, 1), longest, 4);
}

static bool gets_matrix(uint32_t rows, uint32_t columns, uint32_t step, uint64_t longest)
{
    const uint32_t values[] = {rows, columns, 4, 7, 7, rows, 1, 0};
    struct body b = numbers(8, values, 1);
    add(&b, step, 4);
    return good("cublasGetMatrix", b, longest, 8);
}

static void vectors(void **state)
{
    (void)state;
    assert_true(sets_vector(16, 4, 1, 64) && sets_vector(0, 4, 1, 0));
    assert_false(sets_vector(17, 4, 1, 64) || sets_vector(16, 4, 2, 64));
    assert_false(sets_vector(1, 4, 1, 65) || sets_vector(UINT32_MAX, UINT32_MAX, 1, 64));
    assert_true(sets_vector(8, 4, 2, 60) && !sets_vector(8, 4, 2, 59));
    assert_true(sets_matrix(4, 4, 4, 64) && sets_matrix(3, 4, 4, 60));
    assert_false(sets_matrix(4, 4, 5, 64) || sets_matrix(4, 5, 4, 64));
    assert_false(sets_matrix(INT32_MAX, INT32_MAX, 1, 64));
    assert_true(sets_matrix(0, 4, 4, 0) && sets_matrix(4, 0, 1, 0)); /* nothing */
    /* cuBLAS refuses numbers below 0, and steps of 0 */
    assert_false(sets_matrix(16, UINT32_MAX, 1, 64) || sets_vector(16, 4, UINT32_MAX, 64));
    assert_false(sets_vector(16, 4, 0, 64));
}

/* Results are written to GVirtuS's buffer for requests. */
static void results(void **state)
{
    (void)state;
    assert_true(gets_vector(BLOCK - HOST, 1, 1, 0));
    assert_false(gets_vector(BLOCK - HOST + 1, 1, 1, 0));
    assert_true(gets_vector(BLOCK - HOST + 1, 1, 1, BLOCK)); /* after a request this long */
    assert_false(gets_vector(BLOCK / 4, 4, 1, 0) || gets_vector(BLOCK / 2, 1, 2, 0));
    assert_false(gets_vector(UINT32_MAX, 4, 1, 0) || gets_vector(1, UINT32_MAX, 1, 0));
    assert_true(gets_vector(INT32_MAX, 1, 1, UINT32_MAX));
    assert_false(gets_vector(1u << 30, 4, 1, UINT32_MAX)); /* more than an int */
    assert_false(gets_matrix(1u << 15, 1u << 14, 1u << 15, UINT32_MAX));
    assert_true(gets_matrix((BLOCK - HOST) / 4, 1, BLOCK, 0));
    assert_false(gets_matrix((BLOCK - HOST) / 4 + 1, 1, BLOCK, 0));
    assert_true(gets_matrix(16, 16, 16, 0) && !gets_matrix(16, 16, 1024, 0));
    assert_true(gets_matrix(16, 16, 1024, 65536) && !gets_matrix(64, 64, 64, 0));
}

static bool has_handle(const char *name)
{
    struct body b = {.n = 0};
    uint64_t handle;
    add(&b, 0x7000, 8);
    add(&b, 0, 8); /* triangle, rows */
    ibx_library_shapes_sanitize(name, b.bytes, b.n, 0);
    memcpy(&handle, b.bytes, 8);
    assert_true(handle == 0x7000 || !handle);
    return handle;
}

/* cuBLAS ends the process, likely since it reads scalars by instructions that need alignment. */
static void scalars_that_are_not_aligned(void **state)
{
    (void)state;
    assert_true(has_handle("cublasZhemv_v2") && has_handle("cublasChpmv_v2"));
    assert_false(has_handle("cublasZhpmv_v2"));
}

static uint64_t sanitized(const char *name, unsigned at, unsigned bytes, uint64_t value)
{
    struct body b = {.n = at};
    uint64_t after = 0;
    add(&b, value, bytes);
    ibx_library_shapes_sanitize(name, b.bytes, b.n, 0);
    memcpy(&after, b.bytes + at, bytes);
    return after;
}

/* By as many characters of their names as are known. */
static void lengths(void **state)
{
    static const struct {
        const char *name;
        unsigned at, bytes;
        uint64_t most, instead;
    } calls[] = {
        {"cublasLtMatmulAlgoGetHe", 56, 4, 512, 0},
        {"cudnnBackendGetAttribut", 16, 8, INT32_MAX, 0},
        {"cudnnBackendSetAttribut", 16, 8, INT32_MAX, 0},
        {"cudnnGetConvolutionNdFo", 24, 4, 64, 0},
        {"cudnnGetLastErrorString", 0, 8, 65536, 65536},
        {"cudnnGetRNNDataDescript", 8, 4, 960, 0},
        {"cudnnGetTensorNdDescrip", 8, 4, 64, 0},
        {"nvmlDeviceGetName", 16, 4, 256, 0},
        {"nvmlSystemGetDriverVers", 0, 4, 256, 0},
        {"curandGenerate", 8, 8, UINT64_C(1) << 40, 0},
        {"curandGenerateUniformDo", 8, 8, UINT64_C(1) << 40, 0},
        {"cuLaunchKernel", 52, 8, 0, UINT64_MAX},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        const char *name = calls[i].name;
        const unsigned at = calls[i].at, bytes = calls[i].bytes;
        const uint64_t most = calls[i].most, largest = bytes == 4 ? UINT32_MAX : UINT64_MAX;
        assert_true(sanitized(name, at, bytes, most) == most);
        assert_true(sanitized(name, at, bytes, most + 1) == calls[i].instead);
        assert_true(sanitized(name, at, bytes, largest) == calls[i].instead);
    }
    /* Without room nobody writes the end of the text that the handler sends. */
    assert_true(sanitized("cudnnGetLastErrorString", 0, 8, 0) == 65536);
    assert_true(sanitized("cudnnGetLastErrorString", 0, 8, 1) == 1);
}

/* A transform without a place for its results gets no plan. */
static void short_transforms(void **state)
{
    static const char *const names[] = {"cufftExecC2C", "cufftExecR2C", "cufftExecZ2D"};
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        for (size_t n = 0; n <= 24; n++) {
            uint8_t body[24] = {1};
            ibx_library_shapes_sanitize(names[i], body, n, 0);
            assert_true(ibx_body_number(body, sizeof(body), 0, 4) ==
                        (n < 4 || n >= 20 ? 1 : UINT32_MAX));
        }
    }
}

/* Of a request that ends early nothing behind its end is read, or changed. */
static void short_vectors(void **state)
{
    static const char *const names[] = {"cublasSetVector", "cublasSetMatrix", "cublasGetVector",
                                        "cublasGetMatrix"};
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        for (size_t n = 0; n <= 40; n++) {
            uint8_t *body = malloc(n + 1), whole[41];
            assert_non_null(body);
            memset(whole, 0x41, sizeof(whole));
            memcpy(body, whole, n + 1);
            ibx_library_shapes_sanitize(names[i], body, n, 0);
            if (n < 32 || (i == 3 && n < 37)) /* the handler finds too few bytes */
                assert_memory_equal(body, whole, n);
            assert_int_equal(body[n], 0x41);
            free(body);
        }
    }
}

/* The same of numbers that are 0, and of requests that lose their handle. */
static void short_requests(void **state)
{
    static const char *const names[] = {"curandGenerate", "curandGenerateNormalDouble",
                                        "cublasZhpmv_v2"};
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        for (size_t n = 0; n <= 40; n++) {
            uint8_t body[64] = {0};
            memset(body + n, 0x41, sizeof(body) - n);
            ibx_library_shapes_sanitize(names[i], body, n, 0);
            for (size_t at = n; at < sizeof(body); at++)
                assert_int_equal(body[at], 0x41);
        }
    }
}

/* Where there is a number of the client's for cuRAND to write to, the handler is one that has no
 * more memory than that. */
static void random_numbers(void **state)
{
    static const struct {
        const char *name;
        unsigned others, element; /* bytes */
    } calls[] = {
        {"curandGenerate", 0, 4},          {"curandGenerateLongLong", 0, 8},
        {"curandGenerateUniform", 0, 4},   {"curandGenerateUniformDouble", 0, 8},
        {"curandGenerateNormal", 8, 4},    {"curandGenerateNormalDouble", 16, 8},
        {"curandGenerateLogNormal", 8, 4}, {"curandGenerateLogNormalDouble", 16, 8},
        {"curandGeneratePoisson", 8, 4},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        const size_t host = 16 + calls[i].others, device = host + 8;
        const size_t inside = host + 8 + calls[i].element;
        for (size_t n = host; n <= inside; n++) {
            struct body b = {.n = n};
            memset(b.bytes, 1, n);
            ibx_library_shapes_sanitize(calls[i].name, b.bytes, n, 0);
            assert_int_equal(b.bytes[0] || b.bytes[7], n <= device);
        }
        for (unsigned count = 0; count < 2; count++) { /* 0: in G3's requests that is NULL */
            struct body b = {.n = device};
            memset(b.bytes, 1, device);
            memset(b.bytes + 8, 0, 8);
            b.bytes[8] = (uint8_t)count;
            ibx_library_shapes_sanitize(calls[i].name, b.bytes, device, 0);
            assert_true(b.bytes[0] && b.bytes[7] && b.bytes[8] == count);
            for (size_t at = 16; at < device; at++)
                assert_int_equal(b.bytes[at], count || at >= 24);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(load_options),
        cmocka_unit_test(logs),
        cmocka_unit_test(vectors),
        cmocka_unit_test(random_numbers),
        cmocka_unit_test(short_transforms),
        cmocka_unit_test(short_vectors),
        cmocka_unit_test(short_requests),
        cmocka_unit_test(results),
        cmocka_unit_test(scalars_that_are_not_aligned),
        cmocka_unit_test(lengths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
