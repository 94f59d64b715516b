/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Tenants: who owns which device memory, what requests name, and how much is held. */
#include "frontend-glue/gvirtus_handlers/named_memory.h"
#include "frontend-glue/tenants/tenants.h"

#include "common/wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <cmocka.h>

static struct ibx_tenant *alice, *bob;
static int contexts[2];

static int set_up(void **state)
{
    (void)state;
    const struct ibx_tenant_limits limits = {0};
    alice = ibx_tenant_get("alice", &limits, 8);
    bob = ibx_tenant_get("bob", &limits, 8);
    ibx_owners_forget(NULL);
    return !alice || !bob;
}

/* ------------------------------------------------------------------------------ owners */

static bool bobs(uint64_t at, uint64_t n)
{
    return ibx_owners_other(alice, at, n) == bob;
}

static bool free_for_alice(uint64_t at, uint64_t n)
{
    return !ibx_owners_other(alice, at, n);
}

static void test_ranges(void **state)
{
    (void)state;
    assert_true(ibx_tenants_several());
    assert_true(ibx_owners_add(bob, 1000, 100, NULL, 0));
    assert_true(ibx_owners_add(alice, 1100, 100, NULL, 0));
    assert_true(ibx_owners_add(alice, 1200, 100, NULL, 0));
    assert_true(ibx_owners_add(bob, 1300, 1, NULL, 0));
    assert_true(bobs(1000, 1) && bobs(1050, 1) && bobs(1099, 1) && bobs(1300, 1));
    assert_true(bobs(900, 101) && free_for_alice(900, 100) && free_for_alice(1301, 1000));
    assert_true(free_for_alice(1100, 100) && free_for_alice(1100, 200) && bobs(1100, 201));
    assert_true(bobs(1099, 2) && bobs(1250, 60) && bobs(0, UINT64_MAX) && bobs(1300, UINT64_MAX));
    assert_true(free_for_alice(0, 0) && free_for_alice(UINT64_MAX, UINT64_MAX));
    assert_ptr_equal(ibx_owners_other(bob, 1150, 1), alice);
    assert_null(ibx_owners_other(bob, 1000, 100));
}

/* Memory at the address of an earlier allocation was noticed later. */
static void test_replaced_allocation(void **state)
{
    (void)state;
    assert_true(ibx_owners_add(alice, 4096, 4096, NULL, 0));
    const uint64_t number = ibx_owners_number(4096);
    assert_true(number);
    assert_int_equal(ibx_owners_number(4097), 0);
    assert_true(ibx_owners_add(bob, 4096, 512, NULL, 0));
    assert_true(bobs(4096, 1) && free_for_alice(4096 + 512, 1));
    ibx_owners_remove(4096, number); /* alice's free, which ended late */
    assert_true(bobs(4096, 1));
    ibx_owners_remove(4096, ibx_owners_number(4096));
    assert_true(free_for_alice(4096, 1));
    assert_int_equal(ibx_owners_number(4096), 0);
}

/* A graph's memory belongs to its tenant until it is replaced, or its context ends. */
static void test_memory_of_graphs(void **state)
{
    (void)state;
    assert_true(ibx_owners_add(bob, 4096, 512, NULL, 0));
    ibx_owners_keep(4096);
    ibx_owners_remove(4096, ibx_owners_number(4096));
    assert_true(bobs(4096, 512));
    assert_true(ibx_owners_add(alice, 4096, 256, NULL, 0));
    assert_true(free_for_alice(4096, 512));
    ibx_owners_remove(4096, ibx_owners_number(4096));
    assert_int_equal(ibx_owners_number(4096), 0);
    ibx_owners_keep(4096);
    assert_true(ibx_owners_add(bob, 4096, 512, NULL, 0));
    ibx_owners_keep(4096);
    ibx_owners_forget(NULL);
    assert_int_equal(ibx_owners_number(4096), 0);
}

static void test_contexts(void **state)
{
    (void)state;
    assert_true(ibx_owners_add(bob, 100, 10, &contexts[0], 0));
    assert_true(ibx_owners_add(bob, 200, 10, &contexts[1], 0));
    ibx_owners_forget(&contexts[0]);
    assert_true(free_for_alice(100, 10) && bobs(200, 10));
    ibx_owners_forget(NULL);
    assert_true(free_for_alice(200, 10));
}

static void test_cache(void **state)
{
    (void)state;
    struct ibx_owners_cache cache = {0};
    assert_true(ibx_owners_add(alice, 1000, 100, NULL, 0));
    assert_null(ibx_owners_other_cached(alice, &cache, 1000, 1));
    assert_int_equal(cache.begin, 1000);
    assert_null(ibx_owners_other_cached(alice, &cache, 1000, 100));
    assert_true(ibx_owners_add(bob, 1100, 1, NULL, 0)); /* right behind it */
    assert_null(ibx_owners_other_cached(alice, &cache, 1000, 1));
    assert_ptr_equal(ibx_owners_other_cached(alice, &cache, 1000, 101), bob);
    assert_true(ibx_owners_add(bob, 1050, 10, NULL, 0));
    assert_ptr_equal(ibx_owners_other_cached(alice, &cache, 1055, 1), bob);
    assert_ptr_equal(ibx_owners_other_cached(alice, &cache, 1055, 1), bob);
    assert_null(ibx_owners_other_cached(alice, &cache, 1001, 1));
}

/* A range across very many allocations takes no time for which others must wait. */
static void test_many_allocations(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 1000; i++)
        assert_true(ibx_owners_add(alice, 10000 + 2 * i, 1, NULL, 0));
    assert_true(free_for_alice(10000, 100));
    assert_ptr_equal(ibx_owners_other(alice, 10000, 2000), alice);
    const struct ibx_quota *quota = ibx_tenant_quota(alice, IBX_HOLD_ALLOCATIONS);
    assert_int_equal(quota->used, 1000);
    atomic_store(&ibx_tenant_quota(alice, IBX_HOLD_ALLOCATIONS)->most, 1000);
    assert_false(ibx_owners_add(alice, 50000, 1, NULL, 0));
    assert_true(ibx_owners_add(bob, 50000, 1, NULL, 0));
    ibx_owners_forget(NULL);
    assert_int_equal(quota->used, 0);
}

/* ------------------------------------------------------------------------------ limits */

static void test_limits(void **state)
{
    (void)state;
    struct ibx_tenant_limits limits = {.sessions = 10, .pins = 1000, .requests = 100};
    assert_ptr_equal(ibx_tenant_get("alice", &limits, 8), alice);
    assert_ptr_equal(ibx_tenant_get("bob", &limits, 8), bob);
    struct ibx_tenant *nobody = ibx_tenant_get("", &limits, 8);
    struct ibx_quota *pins = ibx_tenant_quota(alice, IBX_HOLD_PINS);
    struct ibx_quota *others = ibx_tenant_quota(bob, IBX_HOLD_PINS);
    assert_int_equal(ibx_tenant_quota(alice, IBX_HOLD_SESSIONS)->most, 7);
    assert_int_equal(ibx_tenant_quota(alice, IBX_HOLD_REQUESTS)->most, 75);
    assert_int_equal(ibx_tenant_quota(alice, IBX_HOLD_CHUNKS)->most, 6);
    assert_int_equal(ibx_tenant_quota(nobody, IBX_HOLD_PINS)->most, 1000);
    assert_false(ibx_quota_take(pins, 751));
    assert_true(ibx_quota_take(pins, 750));
    assert_int_equal(ibx_quota_left(pins), 0);
    assert_int_equal(ibx_quota_left(others), 250);
    assert_false(ibx_quota_take(others, 251));
    assert_true(ibx_quota_take(others, 250));
    assert_false(ibx_quota_take(others, 1));
    ibx_quota_give(pins, 750);
    assert_int_equal(ibx_quota_left(others), 500);
    assert_false(ibx_quota_take(others, UINT64_MAX));
    ibx_quota_give(others, 250);
    assert_int_equal(ibx_quota_left(pins), 750);
    limits = (struct ibx_tenant_limits){.share = 1};
    ibx_tenant_get("alice", &limits, 8);
    assert_int_equal(ibx_tenant_quota(alice, IBX_HOLD_SESSIONS)->most, IBX_TENANT_SESSIONS / 100);
    assert_int_equal(ibx_tenant_quota(alice, IBX_HOLD_CHUNKS)->most, 1);
}

/* Descriptors are nearly used up: a tenant that has more than an even share gets no further
 * connection. */
static void test_descriptors(void **state)
{
    (void)state;
    const struct ibx_tenant_limits limits = {0};
    struct ibx_quota *many = ibx_tenant_quota(alice, IBX_HOLD_SESSIONS);
    struct ibx_quota *few = ibx_tenant_quota(bob, IBX_HOLD_SESSIONS);
    struct rlimit before, low;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    low = (struct rlimit){.rlim_cur = 4, .rlim_max = before.rlim_max};
    assert_true(ibx_quota_take(many, 60) && ibx_quota_take(few, 4));
    assert_true(ibx_descriptors_left(alice, &limits));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    const bool of_many = ibx_descriptors_left(alice, &limits);
    const bool of_few = ibx_descriptors_left(bob, &limits);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    ibx_quota_give(many, 60);
    ibx_quota_give(few, 4);
    assert_false(of_many);
    assert_true(of_few);
}

/* ------------------------------------------------------------------------ named memory */

struct built {
    uint8_t bytes[512];
    size_t n;
};

/* 'q': 64 bits; 'i': 32; 'b': this many bytes after their length; 'm': the mark of D2H; 's': a
 * string of this length, as GVirtuS marshals it. */
static struct built build(const char *shape, ...)
{
    struct built body = {0};
    va_list args;
    va_start(args, shape);
    struct ibx_writer w = ibx_writer_of(body.bytes, sizeof(body.bytes));
    const uint8_t zeros[256] = {0};
    for (const char *c = shape; *c; c++) {
        const unsigned long long value = *c == 'm' ? 1 : va_arg(args, unsigned long long);
        if (*c == 'i')
            ibx_put_u32(&w, (uint32_t)value);
        else
            ibx_put_u64(&w, value);
        if (*c == 's')
            ibx_put_u64(&w, value);
        if (*c == 'b' || *c == 's' || *c == 'm')
            ibx_put_bytes(&w, zeros, value);
    }
    va_end(args);
    assert_false(w.failed);
    body.n = w.length;
    return body;
}

/* Checks that the body names exactly these ranges, and that spoiling removes the address. */
static void expect(const char *name, struct built body, unsigned count, ...)
{
    struct ibx_named named[IBX_NAMED_MAX];
    enum ibx_naming_role role;
    va_list args;
    va_start(args, count);
    assert_true(ibx_naming_known(name));
    assert_int_equal(ibx_naming_find(name, body.bytes, body.n, &role, named), count);
    for (unsigned i = 0; i < count; i++) {
        assert_int_equal(named[i].address, va_arg(args, unsigned long long));
        assert_int_equal(named[i].n, va_arg(args, unsigned long long));
        ibx_naming_invalidate(&named[i], body.bytes, body.n);
    }
    va_end(args);
    assert_int_equal(ibx_naming_find(name, body.bytes, body.n, &role, named), count);
    for (unsigned i = 0; i < count; i++)
        assert_int_equal(named[i].address, role == IBX_NAMING_FREES && !strstr(name, "Array"));
}

#define A 0x7f0011223344ull
#define B 0x7e5566778800ull

static void test_weights(void **state)
{
    (void)state;
    struct ibx_tenant_limits l = {0};
    assert_int_equal(ibx_share_of(&l, ""), 100);
    assert_int_equal(ibx_share_of(&l, "alice"), 100);
    strcpy(l.weights, "alice=300 , 50,al=7");
    assert_int_equal(ibx_share_of(&l, "alice"), 300);
    assert_int_equal(ibx_share_of(&l, "al"), 7);
    assert_int_equal(ibx_share_of(&l, "alic"), 50);
    assert_int_equal(ibx_share_of(&l, ""), 50);
}

static void test_copies(void **state)
{
    (void)state;
    expect("cudaMemcpy", build("qbqi", A, 20ull, 20ull, 1ull), 1, A, 20ull);
    expect("cudaMemcpy", build("mqqi", A, 30ull, 2ull), 1, A, 30ull);
    expect("cudaMemcpy", build("qqqi", A, B, 30ull, 3ull), 2, A, 30ull, B, 30ull);
    expect("cudaMemcpyAsync", build("qbqiq", A, 20ull, 20ull, 1ull, 7ull), 1, A, 20ull);
    expect("cudaMemcpyAsync", build("mqqiq", A, 30ull, 2ull, 7ull), 1, A, 30ull);
    expect("cudaMemcpyAsync", build("qqqiq", A, B, 30ull, 3ull, 7ull), 2, A, 30ull, B, 30ull);
    expect("cudaMemcpyAsync", build("qqqiq", A, B, 30ull, 0ull, 7ull), 0);
    expect("cudaMemcpy2D", build("qbqqqqi", A, 40ull, 100ull, 20ull, 10ull, 2ull, 1ull), 1, A,
           110ull);
    expect("cudaMemcpy2D", build("mqqqqqi", A, 20ull, 100ull, 10ull, 3ull, 2ull), 1, A, 210ull);
    expect("cudaMemcpy2D", build("qqqqqqi", A, B, 50ull, 100ull, 10ull, 3ull, 3ull), 2, A, 110ull,
           B, 210ull);
    /* Without the byte of the mark, which the handler then does not skip. */
    expect("cudaMemcpy", build("qqqi", 0ull, A, 30ull, 2ull), 1, A, 30ull);
    /* With bytes that no handler reads. */
    expect("cudaMemcpy2D", build("qbqqqqqi", A, 40ull, 100ull, 20ull, 10ull, 2ull, 9ull, 1ull), 1,
           A, 110ull);
    expect("cudaMemset", build("qiq", A, 0ull, 50ull), 1, A, 50ull);
    expect("cudaMemsetAsync", build("qiqq", A, 0ull, 50ull, 0ull), 1, A, 50ull);
    expect("cudaMemset2D", build("qqiqq", A, 100ull, 0ull, 10ull, 3ull), 1, A, 210ull);
    expect("cudaMemcpyPeerAsync", build("qiqiqq", A, 0ull, B, 1ull, 30ull, 0ull), 2, A, 30ull, B,
           30ull);
    expect("cudaMemcpyToSymbol", build("ssqqqi", 8ull, 3ull, A, 30ull, 0ull, 3ull), 1, A, 30ull);
    expect("cudaMemcpyToSymbol", build("ssbqqi", 8ull, 3ull, 30ull, 30ull, 0ull, 1ull), 0);
    expect("cudaMemcpyFromSymbol", build("qssqqi", A, 8ull, 3ull, 30ull, 0ull, 3ull), 1, A, 30ull);
}

/* Memory that a handler reserves before it asks CUDA. */
static void test_replies(void **state)
{
    (void)state;
    struct ibx_named named[IBX_NAMED_MAX];
    enum ibx_naming_role role;
    const struct {
        const char *name;
        struct built body;
        uint64_t reply;
    } rows[] = {
        {"cudaMemcpyFromSymbol", build("qssqqi", A, 8ull, 3ull, 1ull << 60, 0ull, 2ull),
         1ull << 60},
        {"cudaMemcpy", build("mqqi", A, 1ull << 60, 2ull), 1ull << 60},
        {"cudaMemcpy", build("qbqi", A, 20ull, 1ull << 60, 1ull), 0},
        {"cudaMemcpyAsync", build("mqqiq", A, 1ull << 60, 2ull, 0ull), 1ull << 60},
        {"cudaMemcpy2D", build("mqqqqqi", A, 20ull, 1ull << 60, 10ull, 3ull, 2ull), 60},
        {"cudaMemcpy2D", build("mqqqqqi", A, 1ull << 60, 20ull, 10ull, 33ull, 2ull), UINT64_MAX},
        {"cudaMemcpyFromArray", build("mqqqqi", A, 0ull, 0ull, 30ull, 2ull), 30},
        {"cudaMemcpy2DFromArray", build("mqqqqqqi", A, 10ull, 0ull, 0ull, 9ull, 3ull, 2ull), 30},
        {"cuMemcpyDtoH", build("qq", A, 30ull), 30},
    };
    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_int_equal(
            ibx_naming_find(rows[i].name, rows[i].body.bytes, rows[i].body.n, &role, named), 1);
        assert_true(named[0].reply == rows[i].reply);
    }
}

static void test_arrays(void **state)
{
    (void)state;
    expect("cudaMemcpyToArray", build("qqqbqi", A, 0ull, 0ull, 30ull, 30ull, 1ull), 1, A, 1ull);
    expect("cudaMemcpyToArray", build("qqqqqi", A, 0ull, 0ull, B, 30ull, 3ull), 2, A, 1ull, B,
           30ull);
    expect("cudaMemcpyFromArray", build("mqqqqi", A, 0ull, 0ull, 30ull, 2ull), 1, A, 1ull);
    expect("cudaMemcpyFromArray", build("qqqqqi", A, B, 0ull, 0ull, 30ull, 3ull), 2, A, 30ull, B,
           1ull);
    expect("cudaMemcpy2DToArray", build("qqqbqqqi", A, 0ull, 0ull, 30ull, 10ull, 10ull, 3ull, 1ull),
           1, A, 1ull);
    expect("cudaMemcpy2DToArray", build("qqqqqqqi", A, 0ull, 0ull, B, 100ull, 10ull, 3ull, 3ull), 2,
           A, 1ull, B, 210ull);
    expect("cudaMemcpy2DFromArray", build("mqqqqqqi", A, 10ull, 0ull, 0ull, 10ull, 3ull, 2ull), 1,
           A, 1ull);
    expect("cudaMemcpy2DFromArray", build("qqqqqqqi", A, B, 100ull, 0ull, 0ull, 10ull, 3ull, 3ull),
           2, A, 210ull, B, 1ull);
    expect("cudaMemcpyArrayToArray", build("qqqqqqqi", A, 0ull, 0ull, B, 0ull, 0ull, 30ull, 3ull),
           2, A, 1ull, B, 1ull);
    /* srcArray, srcPos, srcPtr, dstArray, dstPos, dstPtr, extent, kind */
    expect("cudaMemcpy3D",
           build("qqqqqqqqqqqqqqqqqqqqqq", 160ull, A, 0ull, 0ull, 0ull, 5ull, 6ull, 7ull, 8ull, B,
                 0ull, 0ull, 0ull, A + 4096, 64ull, 60ull, 10ull, 60ull, 10ull, 3ull, 1ull, 0ull),
           3, A, 1ull, B, 1ull, A + 4096, 64ull * 30);
}

/* The kind of a resource, and then an array, or memory with a channel format of 20 bytes. */
static struct built resource(uint64_t kind, uint64_t bits, uint64_t width, uint64_t rows,
                             uint64_t pitch)
{
    return build("qqqiiiiiiqqq", 64ull, kind, A, bits, bits, 0ull, 0ull, 2ull, 0ull, width, rows,
                 pitch);
}

static void test_textures(void **state)
{
    (void)state;
    struct ibx_named named[IBX_NAMED_MAX];
    enum ibx_naming_role role;
    const uint64_t pitch = 100;
    for (uint64_t i = 0; i < 10; i++) {
        const uint64_t kind = i % 5, rows = 1 + i / 5 * 2;
        struct built body = resource(kind, 8, 30, rows, pitch);
        const unsigned count =
            ibx_naming_find("cudaCreateTextureObject", body.bytes, body.n, &role, named);
        assert_int_equal(count, kind < 4);
        assert_true(!count || (named[0].address == A && role == IBX_NAMING_COPIES));
        assert_true(!count || named[0].array == (kind < 2));
        assert_true(!count || named[0].n == (kind < 2    ? 1
                                             : kind == 2 ? 30
                                                         : (rows - 1) * pitch + 60));
    }
    expect("cudaCreateTextureObject", resource(3, 32, 30, 3, 100), 1, A, 200ull + 240ull);
    expect("cudaCreateTextureObject", resource(3, 32, UINT64_MAX, 3, 100), 1, A, UINT64_MAX);
    expect("cudaCreateTextureObject", resource(3, 0, 30, 3, 100), 1, A, 300ull);
    expect("cudaGetChannelDesc", build("qqqiq", 20ull, 0ull, 0ull, 0ull, A), 1, A, 1ull);
    assert_true(ibx_naming_known("cudaGetChannelDesc"));
    assert_true(ibx_naming_known("cudaCreateTextureObject"));
}

static void test_driver(void **state)
{
    (void)state;
    expect("cuMemcpyDtoH", build("qq", A, 30ull), 1, A, 30ull);
    expect("cuMemcpyHtoD", build("qqb", 30ull, A, 30ull), 1, A, 30ull);
    /* x, y, type, host, device, array, pitch of both, then width and height */
    expect("cuMemcpy2D",
           build("qqqqqqqqqqqqqqqqqi", 128ull, 5ull, 2ull, 2ull, 0ull, A, 0ull, 100ull, 0ull, 0ull,
                 3ull, 0ull, 9ull, B, 0ull, 10ull, 3ull, 0ull),
           2, A, 415ull, B, 1ull);
    expect("cuMemcpy2D",
           build("qqqqqqqqqqqqqqqqqi", 128ull, 0ull, 0ull, 1ull, 9ull, A, 0ull, 100ull, 0ull, 0ull,
                 2ull, 0ull, B, 0ull, 100ull, 10ull, 3ull, 0ull),
           1, B, 210ull);
    expect("cuMemsetD32Async", build("qiqq", A, 0ull, 30ull, 0ull), 1, A, 120ull);
    expect("cuMemsetD32Async", build("qiqq", A, 0ull, 1ull << 62, 0ull), 1, A, UINT64_MAX);
    expect("cuStreamWriteValue32", build("qqii", 7ull, A, 1ull, 0ull), 1, A, 1ull);
    /* Another process could map the memory by this handle. */
    expect("cudaIpcGetMemHandle", build("bq", 64ull, A), 1, A, 1ull);
    static const char *const frees[] = {"cudaFree", "cudaFreeAsync", "cudaFreeArray", "cuMemFree",
                                        "cuArrayDestroy"};
    for (unsigned i = 0; i < 5; i++)
        expect(frees[i], build("q", A), 1, A, 1ull);
}

/* The driver, too, takes what it gets for a pointer to an array. */
static void test_arrays_of_driver(void **state)
{
    const struct built texture = build("qiq", A, 1ull, B), gone = build("q", A);
    const struct built rows =
        build("qqqqqqqqqqqqqqqqqi", 128ull, 0ull, 0ull, 3ull, 0ull, 0ull, A, 100ull, 0ull, 0ull,
              3ull, 0ull, 0ull, B, 0ull, 10ull, 3ull, 0ull);
    struct ibx_named named[IBX_NAMED_MAX];
    enum ibx_naming_role role;
    (void)state;
    expect("cuTexRefSetArray", texture, 1, A, 1ull);
    expect("cuMemcpy2D", rows, 2, A, 1ull, B, 1ull);
    assert_int_equal(ibx_naming_find("cuMemcpy2D", rows.bytes, rows.n, &role, named), 2);
    assert_true(named[0].array && named[1].array);
    assert_int_equal(ibx_naming_find("cuTexRefSetArray", texture.bytes, texture.n, &role, named),
                     1);
    assert_true(named[0].array && role == IBX_NAMING_COPIES && !named[0].bad);
    assert_int_equal(ibx_naming_find("cuArrayDestroy", gone.bytes, gone.n, &role, named), 1);
    assert_true(named[0].array && role == IBX_NAMING_FREES && !named[0].bad);
}

/* Lengths that are too long, bodies that are too short: nothing outside is read. */
static void test_malformed_requests(void **state)
{
    (void)state;
    static const char *const names[] = {
        "cudaMemcpy",          "cudaMemcpyAsync",        "cudaMemcpy2D",
        "cudaMemcpyToSymbol",  "cudaMemcpyToArray",      "cudaMemcpyFromSymbol",
        "cudaMemcpyFromArray", "cudaMemcpy3D",           "cudaMemcpy2DToArray",
        "cuMemcpy2D",          "cudaMemset2D",           "cudaFree",
        "cudaGetChannelDesc",  "cudaCreateTextureObject"};
    struct ibx_named named[IBX_NAMED_MAX];
    enum ibx_naming_role role;
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        for (size_t n = 0; n < 200; n++) {
            uint8_t body[200];
            for (int fill = 0; fill < 256; fill += 51) {
                memset(body, fill, n);
                if (n >= 12)
                    memcpy(body + n - 4, &(uint32_t){n % 4}, 4);
                unsigned count = ibx_naming_find(names[i], body, n, &role, named);
                for (unsigned k = 0; k < count; k++)
                    ibx_naming_invalidate(&named[k], body, n);
            }
        }
    }
    assert_false(ibx_naming_known("cudaLaunchKernel"));
    assert_false(ibx_naming_known("cudaGetLastError"));
}

static void test_allocated(void **state)
{
    (void)state;
    assert_true(ibx_naming_allocates("cudaMallocPitch") && !ibx_naming_allocates("cudaFree"));
    struct built plain = build("q", A), pitched = build("qq", A, 512ull),
                 counted = build("qq", 8ull, A);
    assert_int_equal(ibx_naming_allocated(plain.bytes, plain.n), A);
    assert_int_equal(ibx_naming_allocated(pitched.bytes, pitched.n), A);
    assert_int_equal(ibx_naming_allocated(counted.bytes, counted.n), A);
    assert_int_equal(ibx_naming_allocated(plain.bytes, 4), 0);
    assert_int_equal(ibx_naming_allocated(plain.bytes, 0), 0);
}

/* The memory of a request, and a request for more than there is. */
static void expect_bytes(const char *name, struct built body, uint64_t bytes)
{
    assert_true(ibx_naming_allocates(name));
    assert_int_equal(ibx_naming_allocation(name, body.bytes, body.n), bytes);
    ibx_naming_enlarge(name, body.bytes, body.n);
    const uint64_t absurd = ibx_naming_allocation(name, body.bytes, body.n);
    assert_true(absurd >= 1ull << 50 && absurd < UINT64_MAX / 2);
    for (size_t n = 0; n < body.n; n++) /* truncated */
        ibx_naming_enlarge(name, body.bytes, n);
}

static void test_sizes(void **state)
{
    (void)state;
    expect_bytes("cudaMalloc", build("q", 1ull), 512);
    expect_bytes("cudaMalloc", build("q", 1024ull), 1024);
    expect_bytes("cudaMalloc", build("q", UINT64_MAX), UINT64_MAX);
    expect_bytes("cudaMallocManaged", build("qqi", A, 1000ull, 1ull), 1024);
    expect_bytes("cudaMallocPitch", build("qqq", 0ull, 513ull, 10ull), 10240);
    expect_bytes("cudaMallocPitch", build("qqqq", 8ull, 0ull, 513ull, 10ull), 10240); /* as in G2 */
    expect_bytes("cudaMallocPitch", build("qqq", 0ull, 1ull << 20, UINT64_MAX), UINT64_MAX);
    expect_bytes("cuMemAlloc", build("q", 700ull), 1024);
    expect_bytes("cuMemAllocPitch", build("qqi", 512ull, 3ull, 4ull), 1536);
    expect_bytes("cudaMallocArray",
                 build("qiiiiiqq", 20ull, 32ull, 32ull, 0ull, 0ull, 2ull, 64ull, 3ull), 1536);
    expect_bytes("cudaMallocArray",
                 build("qiiiiiqq", 20ull, 8ull, 0ull, 0ull, 0ull, 2ull, 600ull, 0ull), 1024);
    expect_bytes(
        "cudaMalloc3DArray",
        build("qiiiiiqqqi", 20ull, 32ull, 0ull, 0ull, 0ull, 2ull, 128ull, 2ull, 3ull, 0ull), 3072);
    expect_bytes("cuArrayCreate", build("qqqii", 24ull, 256ull, 4ull, 0x20ull, 4ull), 16384);
    expect_bytes("cuArray3DCreate", build("qqqqiii", 40ull, 256ull, 4ull, 2ull, 1ull, 1ull, 0ull),
                 2048);
    assert_int_equal(ibx_naming_allocation("cudaMalloc", NULL, 0), 0);
    assert_int_equal(ibx_naming_allocation("cudaFree", build("q", 5ull).bytes, 8), 0);
}

/* What an allocation has taken from the limit is returned once, however it ends. */
static void test_charges(void **state)
{
    (void)state;
    struct ibx_quota *quota = ibx_tenant_quota(bob, IBX_HOLD_DEVICE);
    assert_true(ibx_quota_take(quota, 600));
    assert_true(ibx_owners_add(bob, 100, 10, NULL, 100));
    assert_true(ibx_owners_add(bob, 200, 10, NULL, 200));
    assert_true(ibx_owners_add(bob, 300, 10, &contexts[0], 300));
    const uint64_t number = ibx_owners_number(100);
    ibx_owners_remove(100, number);
    ibx_owners_remove(100, number);
    assert_int_equal(quota->used, 500);
    assert_true(ibx_owners_add(alice, 205, 10, NULL, 0)); /* replaces it */
    assert_int_equal(quota->used, 300);
    ibx_owners_forget(&contexts[0]);
    assert_int_equal(quota->used, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_ranges, set_up),
        cmocka_unit_test_setup(test_replaced_allocation, set_up),
        cmocka_unit_test_setup(test_memory_of_graphs, set_up),
        cmocka_unit_test_setup(test_contexts, set_up),
        cmocka_unit_test_setup(test_cache, set_up),
        cmocka_unit_test_setup(test_many_allocations, set_up),
        cmocka_unit_test_setup(test_limits, set_up),
        cmocka_unit_test_setup(test_descriptors, set_up),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_arrays_of_driver),
        cmocka_unit_test(test_textures),
        cmocka_unit_test(test_replies),
        cmocka_unit_test(test_driver),
        cmocka_unit_test(test_malformed_requests),
        cmocka_unit_test(test_allocated),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test_setup(test_charges, set_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
