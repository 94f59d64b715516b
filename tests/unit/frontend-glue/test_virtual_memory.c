/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Memory that is mapped separately from its addresses. One client's mappings cost others no
 * time, and threads of a client do not change each other's results. What clients may request:
 * gvirtus/gpu_calls_mapped.cpp. */
#include "frontend-glue/clients/ranges.h"
#include "frontend-glue/tenants/tenants.h"
#include "frontend-glue/clients/virtual_memory.h"
#include "tests/fixtures/extensions.h"
#include "tests/fixtures/rounds.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#define PIECE ((uint64_t)2 << 20) /* bytes: the simulated driver's granularity */

static uint64_t reserve(struct client *c, uint64_t n)
{
    uint64_t at = 0;
    assert_int_equal(ext_call(c, IBX_EXT_VIRTUAL_RESERVE, 2, (uint64_t[]){n, 0}, &at), 0);
    assert_true(at);
    return at;
}

static int free_addresses(struct client *c, uint64_t at, uint64_t n)
{
    return ext_call(c, IBX_EXT_VIRTUAL_FREE, 2, (uint64_t[]){at, n}, NULL);
}

static uint64_t create(struct client *c)
{
    uint8_t bytes[32];
    uint64_t piece = 0;
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_VIRTUAL_CREATE);
    ibx_put_u64(&w, PIECE);
    ibx_put_u32(&w, 0);
    assert_int_equal(ext_run(c, &w, &piece), 0);
    return piece;
}

static int map(struct client *c, uint64_t at, uint64_t piece)
{
    return ext_call(c, IBX_EXT_VIRTUAL_MAP, 3, (uint64_t[]){at, PIECE, piece}, NULL);
}

static int unmap(struct client *c, uint64_t at, uint64_t n)
{
    return ext_call(c, IBX_EXT_VIRTUAL_UNMAP, 2, (uint64_t[]){at, n}, NULL);
}

static int export_piece(struct client *c, uint64_t piece, uint8_t handle[IBX_EXT_HANDLE])
{
    uint8_t bytes[16], out[IBX_EXT_OUT_MAX];
    size_t n;
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_VIRTUAL_EXPORT);
    ibx_put_u64(&w, piece);
    const int code = ext_answer(c, &w, out, &n);
    if (!code)
        assert_int_equal(n, IBX_EXT_HANDLE);
    memcpy(handle, out, IBX_EXT_HANDLE);
    return code;
}

static int import_piece(struct client *c, const uint8_t handle[IBX_EXT_HANDLE], uint64_t *piece)
{
    uint8_t bytes[IBX_EXT_HANDLE + 8], out[IBX_EXT_OUT_MAX];
    size_t n;
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_VIRTUAL_IMPORT);
    ibx_put_bytes(&w, handle, IBX_EXT_HANDLE);
    const int code = ext_answer(c, &w, out, &n);
    if (code)
        return code;
    struct ibx_reader r = ibx_reader_of(out, sizeof(out));
    *piece = ibx_get_u64(&r);
    assert_true(n == 20 && ibx_get_u64(&r) == PIECE && !ibx_get_u32(&r));
    return 0;
}

static int release(struct client *c, uint64_t piece)
{
    return ext_call_one(c, IBX_EXT_VIRTUAL_RELEASE, piece, NULL);
}

/* Asks the question that each copy asks, many times. */
static double seconds_to_ask(uint64_t address, uint64_t n, bool lacks)
{
    struct timespec begun, done;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun);
    for (unsigned i = 0; i < 2000; i++)
        assert_true(ibx_virtual_lacks(address, n) == lacks);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &done);
    return (double)(done.tv_sec - begun.tv_sec) + 1e-9 * (double)(done.tv_nsec - begun.tv_nsec);
}

static void test_much_that_is_reserved(void **state)
{
    enum { FEW = 20, MANY = 4000 };
    static uint64_t at[MANY];
    double first = 0;
    (void)state;
    for (unsigned i = 0; i < MANY; i++) {
        if (i == FEW)
            first = seconds_to_ask(bob.memory, 64, false);
        at[i] = reserve(&alice, PIECE);
    }
    const double last = seconds_to_ask(bob.memory, 64, false);
    for (unsigned i = MANY; i--;)
        assert_int_equal(free_addresses(&alice, at[i], PIECE), 0);
    if (last > 20 * first + 0.002)
        fail_msg("%f s for 2000 questions beside %u ranges, %f s beside %u", last, MANY, first,
                 FEW);
}

/* The same by a client that asks about all of it again and again. Meanwhile nobody else would be
 * answered. */
static void test_much_that_is_mapped(void **state)
{
    enum { FEW = 20, MANY = 2000 };
    const uint64_t n = (uint64_t)MANY * PIECE, at = reserve(&alice, n), piece = create(&alice);
    double first = 0;
    (void)state;
    for (unsigned i = 0; i < MANY; i++) {
        if (i == FEW)
            first = seconds_to_ask(at, FEW * PIECE, false);
        assert_int_equal(map(&alice, at + i * PIECE, piece), 0);
    }
    const double last = seconds_to_ask(at, n, false);
    assert_int_equal(unmap(&alice, at + MANY / 2 * PIECE, PIECE), 0);
    seconds_to_ask(at, n, true);
    seconds_to_ask(at, MANY / 2 * PIECE, false);
    assert_int_equal(unmap(&alice, at, n), 0);
    assert_int_equal(release(&alice, piece), 0);
    assert_int_equal(free_addresses(&alice, at, n), 0);
    if (last > 20 * first + 0.002)
        fail_msg("%f s for 2000 questions about %u pieces, %f s about %u", last, MANY, first, FEW);
}

/* One client's addresses are limited, and do not reduce another one's. */
static void test_too_many_addresses(void **state)
{
    struct ibx_quota *quota = ibx_tenant_quota(alice.x.isolation.tenant, IBX_HOLD_ADDRESSES);
    const uint64_t left = ibx_quota_left(quota), at = reserve(&alice, PIECE);
    uint64_t more;
    (void)state;
    assert_true(left == (uint64_t)8 << 40 && ibx_quota_left(quota) == left - PIECE);
    ibx_quota_note(quota, left - PIECE);
    assert_int_equal(ext_call(&alice, IBX_EXT_VIRTUAL_RESERVE, 2, (uint64_t[]){PIECE, 0}, &more),
                     2);
    assert_int_equal(free_addresses(&bob, reserve(&bob, PIECE), PIECE), 0);
    assert_int_equal(free_addresses(&alice, at, PIECE), 0);
    assert_int_equal(free_addresses(&alice, reserve(&alice, PIECE), PIECE), 0);
    ibx_quota_give(quota, left - PIECE);
    assert_true(ibx_quota_left(quota) == left);
}

/* A client of the same tenant gets the memory by its handle, and a number of its own, which counts
 * as an entry and takes no more memory. Another tenant gets nothing. */
static void test_imported(void **state)
{
    struct ibx_quota *entries = ext_quota(&alice, IBX_HOLD_ALLOCATIONS);
    const unsigned long pieces = cuda_stats().mappable;
    const uint64_t left = ibx_quota_left(entries), piece = create(&alice),
                   at = reserve(&alice, PIECE);
    uint8_t handle[IBX_EXT_HANDLE], same[IBX_EXT_HANDLE], other[IBX_EXT_HANDLE];
    uint64_t imported, none;
    (void)state;
    assert_int_equal(export_piece(&alice, piece, handle), 0);
    assert_int_equal(export_piece(&alice, piece, same), 0);
    assert_memory_equal(same, handle, sizeof(handle));
    assert_int_equal(export_piece(&bob, piece, other), 1);
    assert_int_equal(export_piece(&alice, piece + 1, other), 1);
    assert_int_equal(import_piece(&bob, handle, &none), 400);
    for (unsigned i = 0; i < IBX_EXT_HANDLE; i += 21) { /* also bytes that must be zero */
        memcpy(other, handle, sizeof(handle));
        other[i] ^= 1;
        assert_int_equal(import_piece(&alice, other, &none), 400);
    }
    const uint64_t held = ibx_quota_left(entries),
                   before = ext_allow_more(&alice, IBX_HOLD_ALLOCATIONS, 0);
    assert_int_equal(import_piece(&alice, handle, &none), 2);
    atomic_store(&entries->most, before);
    assert_true(ibx_quota_left(entries) == held);
    assert_int_equal(import_piece(&alice, handle, &imported), 0);
    assert_true(imported != piece && cuda_stats().mappable == pieces + 1);
    assert_true(ibx_quota_left(entries) == held - 1);
    /* The memory stays when its maker no longer names it, and its handle does not. */
    assert_int_equal(release(&alice, piece), 0);
    assert_int_equal(import_piece(&alice, handle, &none), 400);
    assert_int_equal(map(&alice, at, piece), 1);
    assert_int_equal(map(&alice, at, imported), 0);
    assert_int_equal(release(&alice, imported), 0);
    assert_int_equal(release(&alice, imported), 1);
    assert_true(cuda_stats().mappable == pieces + 1);
    assert_int_equal(unmap(&alice, at, PIECE), 0);
    assert_true(cuda_stats().mappable == pieces);
    assert_int_equal(free_addresses(&alice, at, PIECE), 0);
    assert_true(ibx_quota_left(entries) == left);
}

/* What another process of the back end has made counts here, too, as long as it is named or mapped:
 * there it may be gone. */
static void test_imported_from_another_process(void **state)
{
    struct ibx_quota *bytes = ext_quota(&alice, IBX_HOLD_DEVICE),
                     *entries = ext_quota(&alice, IBX_HOLD_ALLOCATIONS);
    const uint64_t all = ibx_quota_left(bytes), left = ibx_quota_left(entries);
    const uint64_t at = reserve(&alice, PIECE);
    const bool limited = alice.x.isolation.limited;
    const int fd = memfd_create("theirs", 0), nothing = open("/dev/null", O_RDONLY);
    struct ibx_virtual_memory is = {.n = PIECE};
    (void)state;
    assert_int_equal(ftruncate(fd, PIECE), 0);
    alice.x.isolation.limited = true;
    const uint64_t before = ext_allow_more(&alice, IBX_HOLD_DEVICE, PIECE - 1);
    assert_int_equal(ibx_virtual_import(&alice.x, fd, &is), 2);
    atomic_store(&bytes->most, before);
    assert_int_equal(ibx_virtual_import(&alice.x, nothing, &is), 1);
    assert_true(ibx_quota_left(bytes) == all);
    assert_int_equal(ibx_virtual_import(&alice.x, fd, &is), 0);
    assert_true(is.n == PIECE && ibx_quota_left(bytes) == all - PIECE);
    assert_true(ibx_handles_add(&alice.x, IBX_HANDLE_MAPPABLE, is.number));
    assert_int_equal(map(&alice, at, is.number), 0);
    assert_int_equal(release(&alice, is.number), 0);
    assert_true(ibx_quota_left(bytes) == all - PIECE);
    assert_int_equal(unmap(&alice, at, PIECE), 0);
    assert_true(ibx_quota_left(bytes) == all);
    assert_int_equal(free_addresses(&alice, at, PIECE), 0);
    assert_true(ibx_quota_left(entries) == left);
    alice.x.isolation.limited = limited;
    close(fd);
    close(nothing);
}

/* CUDA's handles of textures and surfaces are small numbers, too. Memory stays exported as one of
 * them is given back that has the same number, which may be another tenant's. */
static void test_exported_beside_textures(void **state)
{
    static const enum ibx_handle_kind kinds[] = {IBX_HANDLE_TEXTURE, IBX_HANDLE_SURFACE};
    const uint64_t piece = create(&alice);
    uint8_t handle[IBX_EXT_HANDLE];
    uint64_t imported;
    (void)state;
    assert_int_equal(export_piece(&alice, piece, handle), 0);
    for (unsigned i = 0; i < 2; i++)
        ibx_release_taken(&bob.x, &(struct ibx_taken){.kind = kinds[i], .value = piece}, 1);
    assert_int_equal(import_piece(&alice, handle, &imported), 0);
    ibx_release_taken(&alice.x, &(struct ibx_taken){.kind = IBX_HANDLE_MAPPABLE, .value = piece},
                      1);
    assert_true(ibx_handles_remove(&alice.x, IBX_HANDLE_MAPPABLE, piece));
    assert_int_equal(release(&alice, imported), 0);
    assert_int_equal(import_piece(&alice, handle, &imported), 400);
}

/* ---------------------------------------------------------------------- two threads of a client */

struct freeing {
    struct client own; /* another session of alice */
    _Atomic uint64_t at;
    atomic_bool done;
    unsigned freed;
};

static void *free_again(void *argument)
{
    struct freeing *f = argument;
    while (!atomic_load(&f->done)) {
        const uint64_t at = atomic_load(&f->at);
        if (free_addresses(&f->own, at, PIECE))
            continue;
        f->freed++;
        atomic_store(&f->at, reserve(&f->own, PIECE));
    }
    return NULL;
}

/* Addresses at which something is mapped are not freed, whenever it was mapped. */
static void test_freed_while_it_is_mapped(void **state)
{
    struct freeing f = {.own = alice};
    const uint64_t piece = create(&alice);
    unsigned mapped = 0, lost = 0;
    pthread_t thread;
    (void)state;
    atomic_store(&f.at, reserve(&alice, PIECE));
    assert_int_equal(pthread_create(&thread, NULL, free_again, &f), 0);
    for (unsigned i = 0; i < 1000000 && mapped < ROUNDS(100000, 10000) && !lost; i++) {
        const uint64_t at = atomic_load(&f.at);
        if (map(&alice, at, piece))
            continue;
        mapped++;
        lost += unmap(&alice, at, PIECE) != 0;
    }
    atomic_store(&f.done, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(free_addresses(&alice, f.at, PIECE), 0);
    assert_int_equal(release(&alice, piece), 0);
    assert_true(mapped && f.freed);
    assert_int_equal(lost, 0);
}

enum { PLACES = 6, STEPS = 1500 };

/* Addresses that all threads of a client name. Some are no longer reserved, or belong to another
 * client by now. */
struct shared {
    _Atomic uint64_t at[PLACES], pieces[PLACES];
};

struct crowd {
    struct client own;
    struct shared *shared;
    uint32_t random;
    uint64_t reserved[STEPS]; /* all that were ever reserved */
    unsigned count;
};

static unsigned next_random(struct crowd *c, unsigned n)
{
    c->random = c->random * 1664525 + 1013904223;
    return (c->random >> 8) % n;
}

/* What another thread maps into the replaced part at the last moment stays until the end. */
static void replace_some(struct crowd *c)
{
    const unsigned i = next_random(c, PLACES);
    if (next_random(c, 2)) {
        const uint64_t at = c->reserved[c->count++] = reserve(&c->own, 3 * PIECE);
        const uint64_t before = atomic_exchange(&c->shared->at[i], at);
        unmap(&c->own, before, 3 * PIECE);
        free_addresses(&c->own, before, 3 * PIECE);
    } else {
        const uint64_t before = atomic_exchange(&c->shared->pieces[i], create(&c->own));
        release(&c->own, before);
    }
}

/* The memory takes the place of another piece. */
static void import_some(struct crowd *c, uint64_t piece)
{
    uint8_t handle[IBX_EXT_HANDLE];
    uint64_t imported;
    if (export_piece(&c->own, piece, handle) || import_piece(&c->own, handle, &imported))
        return;
    release(&c->own, atomic_exchange(&c->shared->pieces[next_random(c, PLACES)], imported));
}

static void do_something(struct crowd *c, const struct shared *named)
{
    const uint64_t at = atomic_load(&named->at[next_random(c, PLACES)]) + next_random(c, 3) * PIECE;
    const uint64_t n = (1 + next_random(c, 3)) * PIECE;
    uint8_t bytes[64];
    struct ibx_writer w;
    switch (next_random(c, 9)) {
    case 0:
        replace_some(c);
        break;
    case 1:
    case 2:
        map(&c->own, at, atomic_load(&named->pieces[next_random(c, PLACES)]));
        break;
    case 3:
        unmap(&c->own, at, n);
        break;
    case 4:
        w = ext_body(bytes, sizeof(bytes), IBX_EXT_VIRTUAL_SET_ACCESS);
        ibx_put_u64(&w, at);
        ibx_put_u64(&w, n);
        ibx_put_u32(&w, 0);
        ibx_put_u32(&w, 3);
        ext_run(&c->own, &w, NULL);
        break;
    case 5:
        free_addresses(&c->own, at, 3 * PIECE);
        break;
    case 6:
        release(&c->own, atomic_load(&named->pieces[next_random(c, PLACES)]));
        break;
    case 7:
        import_some(c, atomic_load(&named->pieces[next_random(c, PLACES)]));
        break;
    default:
        ibx_virtual_lacks(at, n);
        ibx_virtual_holds(at);
    }
}

static struct shared of_alice, of_bob;

static void *in_the_crowd(void *argument)
{
    struct crowd *c = argument;
    for (unsigned i = 0; i < STEPS; i++)
        do_something(c, next_random(c, 8) ? c->shared : &of_alice);
    return NULL;
}

/* Ends everything of a thread. */
static void end_all(struct crowd *c)
{
    for (unsigned i = 0; i < c->count; i++) {
        unmap(&c->own, c->reserved[i], 3 * PIECE);
        free_addresses(&c->own, c->reserved[i], 3 * PIECE);
    }
    for (unsigned i = 0; i < PLACES; i++)
        release(&c->own, c->shared->pieces[i]);
}

/* Nobody is harmed, and each tenant can have its whole limit again. */
static void test_all_at_once(void **state)
{
    static struct crowd crowd[4];
    struct ibx_quota *quotas[] = {ibx_tenant_quota(alice.x.isolation.tenant, IBX_HOLD_ALLOCATIONS),
                                  ibx_tenant_quota(bob.x.isolation.tenant, IBX_HOLD_ALLOCATIONS)};
    const uint64_t before[] = {ibx_quota_left(quotas[0]), ibx_quota_left(quotas[1])};
    const unsigned long there = cuda_stats().reservations, pieces = cuda_stats().mappable;
    pthread_t threads[4];
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        crowd[i].own = i / 2 ? bob : alice;
        crowd[i].shared = i / 2 ? &of_bob : &of_alice;
        crowd[i].random = i;
        assert_int_equal(pthread_create(&threads[i], NULL, in_the_crowd, &crowd[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (unsigned i = 0; i < 4; i++)
        end_all(&crowd[i]);
    assert_int_equal(cuda_stats().reservations, there);
    assert_int_equal(cuda_stats().mappable, pieces);
    assert_true(ibx_quota_left(quotas[0]) == before[0]);
    assert_true(ibx_quota_left(quotas[1]) == before[1]);
}

/* covered ranges */

#define UNITS 300u

static bool covers(const bool *is, unsigned begin, unsigned last)
{
    while (begin <= last && is[begin])
        begin++;
    return begin > last;
}

/* Units come and go in any order, including the first and the last address. */
static void test_covers(void **state)
{
    static const uint64_t bases[] = {0, 4096, UINT64_MAX - 10 * UNITS + 1};
    (void)state;
    for (unsigned b = 0; b < 3; b++) {
        bool is[UNITS] = {false};
        void *cover = NULL;
        for (unsigned step = 0; step < 30000; step++) {
            const unsigned i = (unsigned)(ext_random() % UNITS),
                           k = (unsigned)(ext_random() % UNITS);
            const uint64_t at = bases[b] + 10 * i;
            const unsigned last = k < i ? i : k;
            if (is[i])
                ibx_cover_remove(&cover, at, at + 9);
            else
                assert_true(ibx_cover_add(&cover, at, at + 9));
            is[i] = !is[i];
            assert_true(ibx_cover_has(cover, at, bases[b] + 10 * last + 9) == covers(is, i, last));
        }
        for (unsigned i = 0; i < UNITS; i++) {
            if (is[i])
                ibx_cover_remove(&cover, bases[b] + 10 * i, bases[b] + 10 * i + 9);
        }
        assert_null(cover);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_much_that_is_reserved),
        cmocka_unit_test(test_much_that_is_mapped),
        cmocka_unit_test(test_too_many_addresses),
        cmocka_unit_test(test_imported),
        cmocka_unit_test(test_imported_from_another_process),
        cmocka_unit_test(test_exported_beside_textures),
        cmocka_unit_test(test_freed_while_it_is_mapped),
        cmocka_unit_test(test_all_at_once),
        cmocka_unit_test(test_covers),

    };
    return cmocka_run_group_tests(tests, ext_set_up, ext_tear_down);
}
