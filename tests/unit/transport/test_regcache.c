/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The registration cache in one thread: hits, invalidation, limits, errors. */
#include "tests/fixtures/regcache_fake.h"

#include <stdio.h>
#include <sys/resource.h>

static struct registrar r;
static struct ibx_regcache *cache;

static int set_up(void **state)
{
    (void)state;
    r = (struct registrar){0};
    cache = make(&r);
    return 0;
}

/* Checks that nothing is registered any more. */
static int tear_down(void **state)
{
    (void)state;
    ibx_regcache_destroy(cache);
    assert_int_equal(r.left, r.entered);
    assert_int_equal(r.bytes, 0);
    return 0;
}

/* ------------------------------------------------------------------------ hits */

static void test_hits(void **state)
{
    (void)state;
    char *memory = map(8);
    struct ibx_mr *first = get(cache, memory + PAGE + 100, 2 * PAGE, LOCAL);
    assert_ptr_equal(first->span.address, memory + PAGE);
    assert_int_equal(first->span.length, 3 * PAGE);
    struct ibx_mr *second = NULL;
    ASSERT_HIT(r, second = get(cache, memory + 2 * PAGE, PAGE, LOCAL));
    assert_ptr_equal(first, second);
    ibx_regcache_put(cache, first);
    ibx_regcache_put(cache, second);
    ASSERT_HIT(r, get_and_put(cache, memory + PAGE, 3 * PAGE));
    ASSERT_MISS(r, get_and_put(cache, memory + PAGE - 1, 2));
    ASSERT_MISS(r, get_and_put(cache, memory + 4 * PAGE - 1, 2));
    assert_int_equal(stats(cache).hits, 2);
    assert_int_equal(stats(cache).misses, 3);
    assert_int_equal(stats(cache).uncached, 0);
    munmap(memory, 8 * PAGE);
}

static void test_access(void **state)
{
    (void)state;
    char *memory = map(2);
    struct ibx_mr *mr = get(cache, memory, PAGE, READ | WRITE);
    ibx_regcache_put(cache, mr);
    ASSERT_HIT(r, ibx_regcache_put(cache, get(cache, memory, PAGE, READ)));
    ASSERT_HIT(r, ibx_regcache_put(cache, get(cache, memory, PAGE, LOCAL)));
    char *other = memory + PAGE;
    ibx_regcache_put(cache, get(cache, other, PAGE, READ));
    ASSERT_MISS(r, mr = get(cache, other, PAGE, WRITE));
    assert_int_equal(mr->access, WRITE); /* no more access than requested */
    ibx_regcache_put(cache, mr);
    ASSERT_HIT(r, ibx_regcache_put(cache, get(cache, other, PAGE, READ)));
    munmap(memory, 2 * PAGE);
}

/* A larger registration replaces the smaller ones inside it. */
static void test_growth_replaces(void **state)
{
    (void)state;
    char *memory = map(16);
    get_and_put(cache, memory, 4 * PAGE);
    struct ibx_mr *held = get(cache, memory + 8 * PAGE, PAGE, LOCAL);
    ASSERT_MISS(r, get_and_put(cache, memory, 16 * PAGE));
    assert_int_equal(r.left, 1); /* the one in use stays */
    assert_int_equal(stats(cache).bytes, 17 * PAGE);
    ibx_regcache_put(cache, held);
    assert_int_equal(r.left, 2);
    assert_int_equal(r.last, (uintptr_t)memory + 8 * PAGE);
    assert_int_equal(stats(cache).entries, 1);
    ASSERT_HIT(r, get_and_put(cache, memory + 8 * PAGE, PAGE));
    munmap(memory, 16 * PAGE);
    get_and_put(cache, memory = map(1), 1);
    assert_int_equal(stats(cache).stale, 1);
    munmap(memory, PAGE);
}

static void test_bad_ranges(void **state)
{
    (void)state;
    struct ibx_mr *mr;
    struct ibx_error err = {0};
    assert_int_equal(ibx_regcache_get(cache, cache, 0, LOCAL, &mr, &err), -EINVAL);
    assert_int_equal(ibx_regcache_get(cache, cache, SIZE_MAX, LOCAL, &mr, &err), -EINVAL);
    assert_int_equal(ibx_regcache_get(cache, (char *)UINTPTR_MAX - 99, 50, LOCAL, &mr, &err),
                     -EINVAL);
    assert_int_equal(create(&r, 0, &cache, &err), -EINVAL);
    assert_int_equal(create(&r, 4097, &cache, &err), -EINVAL);
    assert_non_null(strstr(err.message, "4097"));
    ibx_regcache_destroy(NULL);
}

/* ---------------------------------------------------------------------- deaths */

/* Registers new memory, lets `change` put other memory in its place, and checks that the cache
 * notices. */
static void check_invalidation(void (*change)(char *memory, size_t length))
{
    const size_t length = 4 * PAGE;
    char *memory = map(4);
    *(uint64_t *)memory = 0xdead;
    assert_int_equal(get_and_put(cache, memory, length)->keys[0], 0xdead);
    ASSERT_HIT(r, get_and_put(cache, memory, length));
    change(memory, length);
    *(uint64_t *)memory = 0xbeef;
    struct ibx_mr *mr = NULL;
    ASSERT_MISS(r, mr = get(cache, memory, length, LOCAL));
    assert_int_equal(mr->keys[0], 0xbeef);
    assert_int_equal(stats(cache).stale, 1);
    assert_int_equal(r.left, 1); /* the owner's next call has removed it */
    ibx_regcache_put(cache, mr);
    ASSERT_HIT(r, get_and_put(cache, memory, length));
    tear_down(NULL);
    set_up(NULL);
    munmap(memory, length);
}

/* A change need not begin or end where the registered memory does. Beside it, it changes nothing.
 */
static void test_changes_across_the_ends(void **state)
{
    (void)state;
    static const struct {
        size_t from, pages;
        bool hit;
    } changes[] = {{0, 8, false}, {1, 2, false}, {4, 2, false},
                   {3, 1, false}, {0, 2, true},  {5, 3, true}};
    for (unsigned i = 0; i < 6; i++) {
        char *memory = map(8), *registered = memory + 2 * PAGE;
        get_and_put(cache, registered, 3 * PAGE);
        assert_ptr_not_equal(mmap(memory + changes[i].from * PAGE, changes[i].pages * PAGE,
                                  PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_POPULATE, -1, 0),
                             MAP_FAILED);
        if (changes[i].hit)
            ASSERT_HIT(r, get_and_put(cache, registered, 3 * PAGE));
        else
            ASSERT_MISS(r, get_and_put(cache, registered, 3 * PAGE));
        munmap(memory, 8 * PAGE);
        ibx_regcache_tidy(cache);
    }
}

/* Otherwise another connection would register memory that is gone. */
static void test_invalid_entries_leave_before_a_move(void **state)
{
    (void)state;
    char *gone = map(2), *kept = map(2), *used = map(2);
    get_and_put(cache, gone, 2 * PAGE);
    get_and_put(cache, kept, 2 * PAGE);
    struct ibx_mr *mr = get(cache, used, 2 * PAGE, LOCAL);
    munmap(gone, 2 * PAGE);
    ibx_regcache_tidy(cache);
    assert_int_equal(r.left, 1);
    assert_int_equal(r.last, (uintptr_t)gone);
    ASSERT_HIT(r, get_and_put(cache, kept, 2 * PAGE));
    munmap(used, 2 * PAGE);
    ibx_regcache_tidy(cache);
    assert_int_equal(r.left, 1);
    ibx_regcache_put(cache, mr);
    assert_int_equal(r.left, 2);
    munmap(kept, 2 * PAGE);
}

/* At the limit of locked memory another connection may have no room for all that is cached. */
static void test_entries_that_cannot_move_leave(void **state)
{
    (void)state;
    char *idle = map(2), *used = map(2);
    get_and_put(cache, idle, 2 * PAGE)->dead = true;
    struct ibx_mr *mr = get(cache, used, 2 * PAGE, LOCAL);
    mr->dead = true;
    ibx_regcache_tidy(cache);
    assert_int_equal(r.left, 1);
    assert_int_equal(r.last, (uintptr_t)idle);
    mr->dead = false;
    ASSERT_HIT(r, get_and_put(cache, used, 2 * PAGE));
    ibx_regcache_put(cache, mr);
    ASSERT_MISS(r, get_and_put(cache, idle, 2 * PAGE));
    munmap(idle, 2 * PAGE);
    munmap(used, 2 * PAGE);
}

static void unmapped(char *memory, size_t length)
{
    munmap(memory, length);
    map_at(memory, length, MAP_FIXED_NOREPLACE);
}

static void holed(char *memory, size_t length)
{
    (void)length;
    munmap(memory + 2 * PAGE, PAGE);
    map_at(memory + 2 * PAGE, PAGE, MAP_FIXED_NOREPLACE);
}

static void mapped_over(char *memory, size_t length)
{
    (void)length;
    map_at(memory + 3 * PAGE, PAGE, MAP_FIXED);
}

static void moved(char *memory, size_t length)
{
    char *there = map(length / PAGE);
    assert_ptr_equal(mremap(memory, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, there), there);
    map_at(memory, length, MAP_FIXED_NOREPLACE);
    munmap(there, length);
}

/* The pages move and the mapping stays, empty. */
static void moved_out(char *memory, size_t length)
{
    char *there = map(length / PAGE);
    int flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
    assert_ptr_equal(mremap(memory, length, length, flags, there), there);
    touch(memory, length);
    munmap(there, length);
}

static void moved_upon(char *memory, size_t length)
{
    char *other = map(length / PAGE);
    assert_ptr_equal(mremap(other, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, memory), memory);
}

static void shrunk(char *memory, size_t length)
{
    assert_ptr_equal(mremap(memory, length, length - PAGE, 0), memory);
    map_at(memory + length - PAGE, PAGE, MAP_FIXED_NOREPLACE);
}

static void emptied(char *memory, size_t length)
{
    assert_int_equal(madvise(memory + PAGE, PAGE, MADV_DONTNEED), 0);
    touch(memory, length);
}

static void given_back(char *memory, size_t length)
{
    assert_int_equal(madvise(memory + PAGE, PAGE, MADV_FREE), 0);
    touch(memory, length);
}

static void test_deaths(void **state)
{
    (void)state;
    check_invalidation(unmapped);
    check_invalidation(holed);
    check_invalidation(mapped_over);
    check_invalidation(moved);
    check_invalidation(moved_out);
    check_invalidation(moved_upon);
    check_invalidation(shrunk);
    check_invalidation(emptied);
    check_invalidation(given_back);
}

/* A registration in use whose memory goes stays until it is put back, and is not found. */
static void test_memory_goes_while_in_use(void **state)
{
    (void)state;
    char *memory = map(1);
    *(uint64_t *)memory = 1;
    struct ibx_mr *old = get(cache, memory, PAGE, LOCAL);
    munmap(memory, PAGE);
    map_at(memory, PAGE, MAP_FIXED_NOREPLACE);
    *(uint64_t *)memory = 2;
    struct ibx_mr *new = get(cache, memory, PAGE, LOCAL);
    assert_ptr_not_equal(old, new);
    assert_int_equal(new->keys[0], 2);
    assert_int_equal(r.left, 0);
    ibx_regcache_put(cache, old);
    assert_int_equal(r.left, 1);
    ibx_regcache_put(cache, new);
    ASSERT_HIT(r, get_and_put(cache, memory, PAGE));
    munmap(memory, PAGE);
}

/* The end of other memory has no effect. */
static void test_neighbours_stay(void **state)
{
    (void)state;
    char *memory = map(6);
    get_and_put(cache, memory + 2 * PAGE, 2 * PAGE);
    munmap(memory, 2 * PAGE);
    madvise(memory + 4 * PAGE, PAGE, MADV_DONTNEED);
    munmap(memory + 5 * PAGE, PAGE);
    ASSERT_HIT(r, get_and_put(cache, memory + 2 * PAGE, 2 * PAGE));
    munmap(memory + 2 * PAGE, 3 * PAGE);
}

static void test_realloc_of_a_buffer(void **state)
{
    (void)state;
    uint64_t *buffer = NULL;
    for (size_t round = 1; round <= 400; round++) {
        /* Sizes on both sides of the one from which malloc() uses mappings. */
        size_t size = (round * 7919 % 40 + 1) * PAGE;
        buffer = realloc(buffer, size);
        assert_non_null(buffer);
        memset(buffer, 0, size);
        /* The page may contain other bytes before the buffer. */
        uint64_t *page = (uint64_t *)((uintptr_t)buffer & ~(uintptr_t)(PAGE - 1));
        struct ibx_mr *mr = get(cache, buffer, size, LOCAL);
        assert_true((uint64_t *)mr->span.address <= page);
        ibx_regcache_put(cache, mr);
        ASSERT_HIT(r, get_and_put(cache, buffer, size));
    }
    free(buffer);
}

/* ---------------------------------------------------------------------- bounds */

static void test_eviction_by_entries(void **state)
{
    (void)state;
    char *memory = map(2 * ENTRIES);
    struct ibx_mr *held = get(cache, memory, 1, LOCAL);
    for (unsigned i = 1; i < ENTRIES; i++)
        get_and_put(cache, memory + i * PAGE, 1);
    /* now the entry of page 2 is the least recently used */
    ASSERT_HIT(r, get_and_put(cache, memory + PAGE, 1));
    get_and_put(cache, memory + ENTRIES * PAGE, 1);
    assert_int_equal(r.left, 1);
    assert_int_equal(r.last, (uintptr_t)memory + 2 * PAGE);
    assert_int_equal(stats(cache).evicted, 1);
    ASSERT_HIT(r, get_and_put(cache, memory, 1));
    ASSERT_HIT(r, get_and_put(cache, memory + PAGE, 1));
    ASSERT_MISS(r, get_and_put(cache, memory + 2 * PAGE, 1));
    assert_int_equal(stats(cache).entries, ENTRIES);
    ibx_regcache_put(cache, held);
    munmap(memory, 2 * ENTRIES * PAGE);
}

static void test_eviction_by_bytes(void **state)
{
    (void)state;
    char *memory = map(128);
    struct ibx_mr *held = get(cache, memory, 40 * PAGE, LOCAL);
    get_and_put(cache, memory + 40 * PAGE, 10 * PAGE);
    get_and_put(cache, memory + 50 * PAGE, 10 * PAGE);
    /* both others are evicted, but not the held one */
    get_and_put(cache, memory + 60 * PAGE, 24 * PAGE);
    assert_int_equal(r.left, 2);
    assert_int_equal(stats(cache).bytes, 64 * PAGE);
    ASSERT_HIT(r, get_and_put(cache, memory, 40 * PAGE));
    /* Nothing idle could make room, so the memory is registered for this use only. */
    struct ibx_mr *last = get(cache, memory + 60 * PAGE, 24 * PAGE, LOCAL);
    ASSERT_MISS(r, get_and_put(cache, memory + 100 * PAGE, PAGE));
    assert_int_equal(stats(cache).uncached, 1);
    assert_int_equal(r.last, (uintptr_t)memory + 100 * PAGE);
    /* Memory larger than the whole cache is not cached either, and evicts nothing. */
    ibx_regcache_put(cache, last);
    ASSERT_MISS(r, get_and_put(cache, memory, 65 * PAGE));
    ASSERT_HIT(r, get_and_put(cache, memory + 60 * PAGE, 24 * PAGE));
    ibx_regcache_put(cache, held);
    munmap(memory, 128 * PAGE);
}

/* Whether the kernel has these pages in one mapping. */
static bool one_piece(const char *memory, size_t length)
{
    char line[256];
    unsigned long long start, end;
    bool whole = false;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (fgets(line, sizeof(line), maps)) {
        if (sscanf(line, "%llx-%llx", &start, &end) == 2)
            whole |= start <= (uintptr_t)memory && (uintptr_t)memory + length <= end;
    }
    fclose(maps);
    return whole;
}

/* A temporary lack of descriptors must not disable the cache for ever. */
static void test_without_descriptors_for_a_while(void **state)
{
    (void)state;
    struct rlimit usual, few;
    char *memory = map(2);
    const int next = dup(0);
    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
    few = usual;
    few.rlim_cur = (rlim_t)next;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    get_and_put(cache, memory, PAGE);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
    assert_int_equal(stats(cache).uncached, 1);
    ASSERT_MISS(r, get_and_put(cache, memory, PAGE));
    ASSERT_HIT(r, get_and_put(cache, memory, PAGE));
    munmap(memory, 2 * PAGE);
}

/* poll(2) refuses more descriptors than a process may open. The cache still notices unmapping
 * and its own end. */
static void test_fewer_descriptors_than_are_waited_for(void **state)
{
    (void)state;
    struct rlimit usual, few;
    char *memory = map(2);
    get_and_put(cache, memory, 2 * PAGE);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
    few = usual;
    few.rlim_cur = 1;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    madvise(memory, PAGE, MADV_DONTNEED);
    touch(memory, PAGE);
    ASSERT_MISS(r, get_and_put(cache, memory, 2 * PAGE));
    ibx_regcache_destroy(cache);
    cache = NULL;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
    munmap(memory, 2 * PAGE);
}

/* Memory that is no longer cached is not watched any more, unless another cache has it. */
static void test_evicted_is_unwatched(void **state)
{
    (void)state;
    struct registrar s = {0};
    struct ibx_regcache *one = make(&r), *two = make(&s), *three = make(&s);
    char *memory = map(4), *other = map(1);
    get_and_put(three, other, PAGE);
    get_and_put(one, memory, 2 * PAGE);
    get_and_put(two, memory, 2 * PAGE);
    assert_false(one_piece(memory, 4 * PAGE));
    ibx_regcache_destroy(one);
    madvise(memory + PAGE, PAGE, MADV_DONTNEED);
    touch(memory, 2 * PAGE);
    ASSERT_MISS(s, get_and_put(two, memory, 2 * PAGE));
    ibx_regcache_destroy(two);
    assert_true(one_piece(memory, 4 * PAGE));
    ibx_regcache_destroy(three);
    munmap(memory, 4 * PAGE);
    munmap(other, PAGE);
}

/* --------------------------------------------------------------- not for caching */

static void test_shared_memory(void **state)
{
    (void)state;
    int fd = memfd_create("shared", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, 4 * PAGE), 0);
    char *shared = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(shared != MAP_FAILED);
    touch(shared, 4 * PAGE);
    check_uncached(shared, 4 * PAGE);
    munmap(shared, 4 * PAGE);
    close(fd);
    char *nameless = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    touch(nameless, PAGE);
    check_uncached(nameless, PAGE);
    munmap(nameless, PAGE);
}

static void test_file_memory(void **state)
{
    (void)state;
    char name[] = "/tmp/test_regcache.XXXXXX";
    int fd = mkstemp(name);
    unlink(name);
    assert_int_equal(ftruncate(fd, PAGE), 0);
    char *file = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    assert_true(file != MAP_FAILED);
    assert_int_equal(first_word(file), 0); /* now the page is present, and still the file's */
    check_uncached(file, PAGE);
    munmap(file, PAGE);
    close(fd);
}

/* ---------------------------------------------------------------------- errors */

static void test_registrar_fails(void **state)
{
    (void)state;
    r.answer = -EFAULT;
    char *memory = map(1);
    struct ibx_mr *mr = NULL;
    struct ibx_error err = {0};
    assert_int_equal(ibx_regcache_get(cache, memory, 1, LOCAL, &mr, &err), -EFAULT);
    assert_string_equal(err.message, "no registration today");
    assert_null(mr);
    assert_int_equal(stats(cache).entries, 0);
    assert_int_equal(stats(cache).bytes, 0);
    r.answer = 0;
    get_and_put(cache, memory, 1);
    ASSERT_HIT(r, get_and_put(cache, memory, 1));
    munmap(memory, PAGE);
}

/* If the system's limit is lower than the cache's, idle registrations make room. */
static void test_no_memory_evicts(void **state)
{
    (void)state;
    r.limit = 4 * PAGE;
    char *memory = map(8);
    struct ibx_mr *held = get(cache, memory, PAGE, LOCAL), *mr = NULL;
    get_and_put(cache, memory + PAGE, 2 * PAGE);
    ASSERT_MISS(r, get_and_put(cache, memory + 4 * PAGE, 3 * PAGE));
    struct ibx_error err = {0};
    assert_int_equal(ibx_regcache_get(cache, memory + 4 * PAGE, 4 * PAGE, LOCAL, &mr, &err),
                     -ENOMEM);
    assert_string_equal(err.message, "too much");
    ibx_regcache_put(cache, held);
    munmap(memory, 8 * PAGE);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_hits),
        TEST(test_access),
        TEST(test_growth_replaces),
        TEST(test_bad_ranges),
        TEST(test_deaths),
        TEST(test_memory_goes_while_in_use),
        TEST(test_neighbours_stay),
        TEST(test_changes_across_the_ends),
        TEST(test_invalid_entries_leave_before_a_move),
        TEST(test_entries_that_cannot_move_leave),
        TEST(test_realloc_of_a_buffer),
        TEST(test_eviction_by_entries),
        TEST(test_eviction_by_bytes),
        TEST(test_without_descriptors_for_a_while),
        TEST(test_fewer_descriptors_than_are_waited_for),
        TEST(test_evicted_is_unwatched),
        TEST(test_shared_memory),
        TEST(test_file_memory),
        TEST(test_registrar_fails),
        TEST(test_no_memory_evicts),
    };
    if (!watch_works()) {
        print_message("SKIPPED: userfaultfd is not available here\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
