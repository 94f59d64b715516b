/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The lists of functions of cuBLAS and other libraries, from which both ends derive their code. */
#include "frontend-glue/tenants/math_limits.h"
#include "frontend-glue/session/frames.h"
#include "frontend-glue/session/math_calls.h"
#include "frontend-glue/session/math_descriptors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

/* Numbers never change: they are part of the protocol. */
static void numbers_never_change(void **state)
{
    (void)state;
    static const struct {
        unsigned number;
        const char *name;
    } golden[] = {
        {0x1001, "cublasCreate_v2"},         {0x101d, "cublasSnrm2_v2"},
        {0x10e8, "cublasGemmBatchedEx"},     {0x110e, "cublasSgetriBatched"},
        {0x2001, "curandCreateGenerator"},   {0x2005, "curandSetStream"},
        {0x2018, "curandGenerateSeeds"},     {0x3001, "cufftPlan1d"},
        {0x3004, "cufftPlanMany"},           {0x3017, "cufftExecC2C"},
        {0x4001, "cusparseCreate"},          {0x5003, "cusolverDnCreate"},
        {0x6001, "cublasLtCreate"},          {0x6005, "cublasLtMatmul"},
        {0x1124, "cublasNrm2Ex_64"},         {0x1203, "cublasTSSgemvStridedBatched_64"},
        {0x7001, "cudnnGetProperty"},        {0x700b, "cudnnBackendExecute"},
        {0x7021, "cudnnConvolutionForward"}, {0x7063, "cudnnSpatialTfSamplerBackward"},
        {0x8001, "ncclGetVersion"},          {0x800f, "ncclGroupEnd"},
    };
    for (size_t i = 0; i < sizeof(golden) / sizeof(golden[0]); i++) {
        const struct ibx_math_function *f = ibx_math_find(golden[i].number);
        if (!f || strcmp(f->name, golden[i].name) != 0)
            fail_msg("%#x is %s", golden[i].number, f ? f->name : "none");
    }
}

static void numbers_of_no_function(void **state)
{
    (void)state;
    static const unsigned none[] = {0,      1,      0xfff,  0x1000, 0x1fff, 0x2000, 0x2fff, 0x3000,
                                    0x3fff, 0x6fff, 0x7fff, 0x8fff, 0x9001, 0xf001, 0xffff};
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
        assert_null(ibx_math_find(none[i]));
    size_t count = 0;
    for (unsigned number = 0; number <= 0xffff; number++) {
        const struct ibx_math_function *f = ibx_math_find(number);
        assert_true(!f || (f->number == number && ibx_math_statuses_of(number)));
        count += f != NULL;
    }
    assert_int_equal(count, IBX_MATH_FUNCTIONS);
    assert_null(ibx_math_each(count));
}

/* The sizes of arguments refer to integers among the function's own arguments. */
static bool has_valid_references(const struct ibx_math_function *f,
                                 const struct ibx_math_argument *a)
{
    const bool typed = a->size > IBX_MATH_BYTES_OF_LONG;
    const bool array = a->kind == IBX_MATH_ARRAY || a->kind == IBX_MATH_ARRAY_OR_NULL ||
                       a->size == IBX_MATH_BYTES_OF_INT;
    const bool by_descriptor = a->kind == IBX_MATH_ALPHA || a->kind == IBX_MATH_BETA;
    const bool by_long = a->size == IBX_MATH_BYTES_OF_LONG || a->size == IBX_MATH_OF_COMPUTE_LONG ||
                         a->size == IBX_MATH_OF_ATTRIBUTE || a->kind == IBX_MATH_WORKSPACE;
    const bool second = array || a->size == IBX_MATH_OF_COMPUTE || by_long;
    if (a->kind < IBX_MATH_SCALAR && a->kind != IBX_MATH_WORKSPACE)
        return true;
    if (by_descriptor) /* the descriptor must come first */
        return a->of < a - f->arguments && f->arguments[a->of].kind == IBX_MATH_DESCRIPTOR;
    return (!typed || (a->n < f->count && f->arguments[a->n].kind == IBX_MATH_INT)) &&
           (!second || (a->of < f->count &&
                        f->arguments[a->of].kind == (by_long ? IBX_MATH_LONG : IBX_MATH_INT)));
}

static void lists_are_consistent(void **state)
{
    (void)state;
    for (size_t i = 0; ibx_math_each(i); i++) {
        const struct ibx_math_function *f = ibx_math_each(i);
        unsigned handles = 0, makes = 0;
        bool good = f->count && f->count <= IBX_MATH_ARGUMENTS;
        for (unsigned k = 0; k < f->count; k++) {
            const struct ibx_math_argument *a = &f->arguments[k];
            handles += a->kind == IBX_MATH_HANDLE || a->kind == IBX_MATH_PLAN;
            makes += a->kind == IBX_MATH_MAKES || a->kind == IBX_MATH_MAKES_PLAN;
            good = good && has_valid_references(f, a);
            good = good && (a->kind != IBX_MATH_LAST_STREAM || k == f->count - 1u);
        }
        good = good && handles <= 1 && makes <= 1 && !(handles && makes);
        /* A stream is the last argument, because its request has it there. */
        if (f->use == IBX_MATH_USE_SELECTS)
            good = good && f->count == 2 && f->arguments[1].kind == IBX_MATH_STREAM;
        if (f->use == IBX_MATH_USE_ADDS || f->use == IBX_MATH_USE_ENDS)
            good = good && handles == 1;
        if (!good)
            fail_msg("%s", f->name);
    }
    for (unsigned type = 0; type < IBX_MATH_TYPES; type++) {
        const struct ibx_math_function *f =
            ibx_math_find(ibx_math_end_of((enum ibx_math_type)type));
        assert_true(f && f->use == IBX_MATH_USE_ENDS && f->arguments[0].n == type);
    }
}

static size_t bytes(unsigned number, unsigned argument, unsigned sized_by, int value,
                    unsigned other, int of)
{
    union ibx_math_value values[IBX_MATH_ARGUMENTS] = {{0}};
    values[sized_by].i = value;
    values[other].i = of;
    return ibx_math_bytes(&ibx_math_find(number)->arguments[argument], values);
}

static void sizes(void **state)
{
    (void)state;
    const unsigned gemm = IBX_MATH_cublasGemmEx, scal = IBX_MATH_cublasScalEx;
    const unsigned many = IBX_MATH_cufftPlanMany;
    assert_int_equal(bytes(IBX_MATH_cublasZdotu_v2, 6, 0, 0, 0, 0), 16);
    assert_int_equal(bytes(gemm, 6, 17, 68, 15, 0), 4);   /* COMPUTE_32F of R_32F */
    assert_int_equal(bytes(gemm, 6, 17, 68, 15, 2), 4);   /* ... of R_16F */
    assert_int_equal(bytes(gemm, 6, 17, 77, 15, 4), 8);   /* COMPUTE_32F_FAST_TF32 of C_32F */
    assert_int_equal(bytes(gemm, 6, 17, 64, 15, 2), 2);   /* COMPUTE_16F */
    assert_int_equal(bytes(gemm, 13, 17, 70, 15, 5), 16); /* COMPUTE_64F of C_64F */
    assert_int_equal(bytes(gemm, 6, 17, 72, 15, 10), 4);  /* COMPUTE_32I of R_32I */
    assert_int_equal(bytes(gemm, 6, 17, 1, 15, 0), 0);
    assert_int_equal(bytes(scal, 2, 3, 1, 0, 0), 8);  /* R_64F */
    assert_int_equal(bytes(scal, 2, 3, 14, 0, 0), 2); /* R_16BF */
    assert_int_equal(bytes(scal, 2, 3, -1, 0, 0), 0);
    assert_int_equal(bytes(scal, 2, 3, 1 << 30, 0, 0), 0);
    assert_int_equal(bytes(IBX_MATH_cublasRotmEx, 8, 9, 1, 0, 0), 40);
    assert_int_equal(bytes(many, 2, 1, 3, 0, 0), 12);
    assert_int_equal(bytes(many, 2, 1, -3, 0, 0), 0);
    assert_int_equal(bytes(many, 2, 1, 1 << 30, 0, 0), 0);
    assert_int_equal(bytes(IBX_MATH_cublasGemmGroupedBatchedEx, 6, 17, 5, 19, 70), 40);
    const unsigned grouped = IBX_MATH_cublasGemmGroupedBatchedEx_64;
    assert_int_equal(bytes(grouped, 6, 17, 5, 19, 70), 40);
    assert_int_equal(bytes(grouped, 3, 17, 5, 19, 70), 40); /* 64-bit integers */
    assert_int_equal(bytes(grouped, 1, 17, 5, 19, 70), 20); /* enums */
    assert_int_equal(bytes(IBX_MATH_cublasIsamax_v2_64, 4, 0, 0, 0, 0), 8);
    /* More than a body has, although the lower half is small. */
    union ibx_math_value values[IBX_MATH_ARGUMENTS] = {{0}};
    values[17].l = ((uint64_t)1 << 32) + 1;
    values[19].i = 70;
    for (unsigned i = 1; i < 17; i++) {
        const struct ibx_math_argument *a = &ibx_math_find(grouped)->arguments[i];
        assert_true(a->kind != IBX_MATH_ARRAY || !ibx_math_bytes(a, values));
    }
}

static uint8_t made[IBX_DESCRIPTOR_MAX];
static size_t made_n;

static void set_in(enum ibx_descriptor_type type, unsigned number, uint64_t value)
{
    assert_true(
        ibx_descriptor_set(made, sizeof(made), &made_n, ibx_attribute_find(type, number), value));
}

static void descriptors(void **state)
{
    (void)state;
    const enum ibx_descriptor_type type = IBX_DESCRIPTOR_MATMUL;
    static const uint8_t golden[] = {0x02, 68, 0,  0, 0,    0x06, 0, 0, 0, 0,    0x0a, 4,   0,
                                     0,    0,  35, 8, 0x7f, 0x11, 0, 0, 0, 0x66, 0x55, 100, 1};
    made_n = 0;
    set_in(type, IBX_MATMUL_COMPUTE_TYPE, 68);
    /* this depends on another attribute that is still missing */
    assert_false(ibx_descriptor_good(type, made, made_n));
    set_in(type, IBX_MATMUL_SCALE_TYPE, 0);
    assert_true(ibx_descriptor_good(type, made, made_n));
    set_in(type, IBX_MATMUL_POINTER_MODE, 1);
    set_in(type, 8, 0x5566000000117f08);
    set_in(type, 25, 1);
    set_in(type, IBX_MATMUL_POINTER_MODE, 4); /* replaces the earlier value */
    assert_int_equal(made_n, sizeof(golden));
    assert_memory_equal(made, golden, sizeof(golden));
    assert_true(ibx_descriptor_good(type, made, made_n));
    assert_true(ibx_descriptor_value(type, made, made_n, 8) == 0x5566000000117f08);
    assert_int_equal(ibx_descriptor_value(type, made, made_n, 25), 1);
    assert_int_equal(ibx_descriptor_value(type, made, made_n, 7), 1); /* the default */
    for (size_t n = 0; n < made_n; n++) /* cut within an attribute, or too early */
        assert_true(!ibx_descriptor_good(type, made, n) || n == 10 || n == 15 || n == 24);
    size_t room = made_n;
    assert_false(ibx_descriptor_set(made, made_n + 4, &room, ibx_attribute_find(type, 3), 1));
    assert_int_equal(room, made_n);
}

static void malformed_descriptors(void **state)
{
    (void)state;
    static const uint8_t layout[] = {0x02, 0, 0, 0, 0, 11, 1, 0,  0, 0, 0, 0, 0, 0, 15, 1,
                                     0,    0, 0, 0, 0, 0,  0, 19, 1, 0, 0, 0, 0, 0, 0,  0};
    uint8_t bytes[64];
    assert_true(ibx_descriptor_good(IBX_DESCRIPTOR_LAYOUT, layout, sizeof(layout)));
    assert_false(ibx_descriptor_good(IBX_DESCRIPTOR_MATMUL, layout, sizeof(layout)));
    memcpy(bytes, layout, sizeof(layout));
    memcpy(bytes + sizeof(layout), layout, 5); /* the same attribute twice */
    assert_false(ibx_descriptor_good(IBX_DESCRIPTOR_LAYOUT, bytes, sizeof(layout) + 5));
    bytes[sizeof(layout)] = 63 << 2 | 2; /* unknown number, unknown size */
    assert_false(ibx_descriptor_good(IBX_DESCRIPTOR_LAYOUT, bytes, sizeof(layout) + 5));
    bytes[sizeof(layout)] = 1 << 2 | 1;
    assert_false(ibx_descriptor_good(IBX_DESCRIPTOR_LAYOUT, bytes, sizeof(layout) + 3));
    bytes[sizeof(layout)] = 1 << 2 | 2;
    assert_true(ibx_descriptor_good(IBX_DESCRIPTOR_LAYOUT, bytes, sizeof(layout) + 5));
    made_n = 0; /* an address of the host */
    set_in(IBX_DESCRIPTOR_MATMUL, IBX_MATMUL_COMPUTE_TYPE, 68);
    set_in(IBX_DESCRIPTOR_MATMUL, IBX_MATMUL_SCALE_TYPE, 0);
    set_in(IBX_DESCRIPTOR_MATMUL, IBX_MATMUL_EMULATION, 0);
    assert_true(ibx_descriptor_good(IBX_DESCRIPTOR_MATMUL, made, made_n));
    set_in(IBX_DESCRIPTOR_MATMUL, IBX_MATMUL_EMULATION, 0x1234);
    assert_false(ibx_descriptor_good(IBX_DESCRIPTOR_MATMUL, made, made_n));
}

static void scalars_of_descriptors(void **state)
{
    (void)state;
    static const struct {
        uint64_t mode;
        enum ibx_scalar_place alpha, beta;
    } places[] = {
        {0, IBX_SCALAR_HOST, IBX_SCALAR_HOST},     {1, IBX_SCALAR_DEVICE, IBX_SCALAR_DEVICE},
        {2, IBX_SCALAR_DEVICE, IBX_SCALAR_DEVICE}, {3, IBX_SCALAR_DEVICE, IBX_SCALAR_NONE},
        {4, IBX_SCALAR_DEVICE, IBX_SCALAR_HOST},   {5, IBX_SCALAR_UNKNOWN, IBX_SCALAR_UNKNOWN},
    };
    const enum ibx_descriptor_type type = IBX_DESCRIPTOR_MATMUL;
    size_t size;
    made_n = 0;
    set_in(type, IBX_MATMUL_SCALE_TYPE, 1);
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        set_in(type, IBX_MATMUL_POINTER_MODE, places[i].mode);
        assert_int_equal(ibx_descriptor_scalar(type, made, made_n, false, &size), places[i].alpha);
        assert_int_equal(ibx_descriptor_scalar(type, made, made_n, true, &size), places[i].beta);
        assert_int_equal(size, 8);
    }
    set_in(type, IBX_MATMUL_POINTER_MODE, 0);
    set_in(type, IBX_MATMUL_SCALE_TYPE, 1000);
    assert_int_equal(ibx_descriptor_scalar(type, made, made_n, false, &size), IBX_SCALAR_UNKNOWN);
}

/* A function that needs memory of the host is asked, with its own arguments, how much it needs. */
static void workspaces(void **state)
{
    (void)state;
    unsigned found = 0;
    for (size_t i = 0; ibx_math_each(i); i++) {
        const struct ibx_math_function *f = ibx_math_each(i);
        union ibx_math_value values[IBX_MATH_ARGUMENTS], asked[IBX_MATH_ARGUMENTS];
        size_t sizes[2];
        bool works = false;
        for (unsigned k = 0; k < f->count; k++) {
            values[k].l = k;
            works = works || f->arguments[k].kind == IBX_MATH_WORKSPACE;
        }
        if (!works)
            continue;
        const struct ibx_math_function *asks = ibx_math_size_call(f, values, sizes, asked);
        if (!asks)
            fail_msg("%s", f->name);
        for (unsigned k = 0; k < asks->count; k++) {
            const bool size = asked[k].p == &sizes[0] || asked[k].p == &sizes[1];
            assert_true(size ? asks->arguments[k].kind == IBX_MATH_OUTPUT
                             : f->arguments[asked[k].l].kind == asks->arguments[k].kind);
        }
        found++;
    }
    assert_true(found > 5);
    const union ibx_math_value values[IBX_MATH_ARGUMENTS] = {
        {.l = 0},  {.l = 1},  {.l = 2},  {.l = 3},  {.l = 4},  {.l = 5},
        {.l = 6},  {.l = 7},  {.l = 8},  {.l = 9},  {.l = 10}, {.l = 11},
        {.l = 12}, {.l = 13}, {.l = 14}, {.l = 15}, {.l = 16}};
    union ibx_math_value asked[IBX_MATH_ARGUMENTS];
    size_t sizes[2];
    ibx_math_size_call(ibx_math_find(IBX_MATH_cusolverDnXgetrf), values, sizes, asked);
    assert_int_equal(asked[7].l, 8); /* after the pivots */
    ibx_math_size_call(ibx_math_find(IBX_MATH_cusolverDnXsyevBatched), values, sizes, asked);
    assert_int_equal(asked[13].l, 16); /* the number of matrices */
}

/* Each kind of handle counts; the limit is lowest for kinds that use most memory. */
static void handles_count(void **state)
{
    (void)state;
    for (unsigned type = 0; type < IBX_MATH_TYPES; type++) {
        const enum ibx_hold hold = ibx_math_hold(type);
        assert_true(hold == IBX_HOLD_LIBRARIES || hold == IBX_HOLD_PLANS ||
                    hold == IBX_HOLD_DESCRIPTORS || hold == IBX_HOLD_GRAPH_PARTS);
    }
    /* kinds of graph descriptors: plans, and what finds engines */
    for (int type = 0; type < 50; type++) {
        const union ibx_math_value value = {.i = type};
        assert_int_equal(
            ibx_math_weight(ibx_math_find(IBX_MATH_cudnnBackendCreateDescriptor), &value),
            type == 4 || type == 5 ? IBX_MATH_HEAVY : 1);
        assert_int_equal(ibx_math_weight(ibx_math_find(IBX_MATH_cudnnGetProperty), &value), 1);
    }
    assert_int_equal(ibx_math_makes(ibx_math_find(IBX_MATH_cublasCreate_v2)), IBX_HOLD_LIBRARIES);
    assert_int_equal(ibx_math_makes(ibx_math_find(IBX_MATH_cufftPlan1d)), IBX_HOLD_PLANS);
    assert_int_equal(ibx_math_makes(ibx_math_find(IBX_MATH_cusparseCreateCsr)),
                     IBX_HOLD_DESCRIPTORS);
    assert_int_equal(ibx_math_makes(ibx_math_find(IBX_MATH_cublasSaxpy_v2)), IBX_HOLDS);
    const union ibx_math_value none = {0};
    assert_int_equal(ibx_math_weight(ibx_math_find(IBX_MATH_ncclCommSplit), &none), IBX_MATH_HEAVY);
    /* Each function that makes one is recognized by the part of its name that a server keeps. */
    const size_t most = sizeof(((struct ibx_request_watch *)NULL)->name) - 1;
    const struct ibx_math_function *f;
    for (size_t i = 0; (f = ibx_math_each(i)); i++) {
        char name[64];
        unsigned type = IBX_MATH_TYPES;
        snprintf(name, sizeof(name), "%.*s", (int)most, f->name);
        const bool makes = ibx_math_makes(f) != IBX_HOLDS;
        assert_int_equal(ibx_math_maker(name, most, &type), makes);
        assert_int_equal(makes ? ibx_math_hold(type) : IBX_HOLDS, ibx_math_makes(f));
    }
    assert_int_equal(ibx_math_statuses_of(IBX_MATH_cublasCreate_v2)->no_memory, 3);
    assert_int_equal(ibx_math_statuses_of(IBX_MATH_cublasLtCreate)->no_memory, 3);
    assert_int_equal(ibx_math_statuses_of(IBX_MATH_curandCreateGenerator)->no_memory, 102);
    assert_int_equal(ibx_math_statuses_of(IBX_MATH_cufftPlan1d)->no_memory, 2);
    assert_int_equal(ibx_math_statuses_of(IBX_MATH_cusparseCreateCsr)->no_memory, 2);
    assert_int_equal(ibx_math_statuses_of(IBX_MATH_cusolverDnCreate)->no_memory, 2);
    assert_int_equal(ibx_math_statuses_of(IBX_MATH_cudnnCreate)->no_memory, 4003);
    assert_int_equal(ibx_math_statuses_of(IBX_MATH_ncclGetUniqueId)->no_memory, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_never_change),
        cmocka_unit_test(numbers_of_no_function),
        cmocka_unit_test(lists_are_consistent),
        cmocka_unit_test(sizes),
        cmocka_unit_test(descriptors),
        cmocka_unit_test(malformed_descriptors),
        cmocka_unit_test(scalars_of_descriptors),
        cmocka_unit_test(workspaces),
        cmocka_unit_test(handles_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
