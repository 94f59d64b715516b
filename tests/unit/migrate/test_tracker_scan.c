/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Scans for written pages, in memory of this process. The final scan finds the same pages with
 * one thread as with several, and no requested page is missed. Also: protecting some pages, and
 * finding them when they are written. */
#include "migrate/qemu/qemu.h"
#include "tests/fixtures/tracking_uffd.h"
#include "tests/fixtures/unit.h"
#include "userfaultfd/dirty.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE  4096u
#define PART  4096u /* pages that one thread takes at a time */
#define PAGES (5 * PART + 70)
#define WORDS ((PAGES + 63) / 64)

static unsigned processors;
static struct ibx_error error;

int __wrap_sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set);

int __wrap_sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
    (void)pid;
    CPU_ZERO_S(size, set);
    for (unsigned i = 0; i < processors; i++)
        CPU_SET_S((size_t)i, size, set);
    return 0;
}

#define HUGE 512u /* pages that one entry of a page table may map */

struct memory {
    uint8_t *whole, *bytes;
    int uffd;
    struct ibx_guest_block block;
    struct ibx_guest_ram ram;
    struct ibx_tracker tracker;
};

/* Pages at both ends of parts, and some others. */
static bool is_written(uint64_t page)
{
    return page % PART == 0 || page % PART == PART - 1 || page % 97 == 5 || page == PAGES - 1;
}

/* All pages are present and protected; then some are written. The memory starts `shift` pages
 * after a multiple of 2 MiB. */
static void begin_at(struct memory *m, unsigned shift)
{
    memset(m, 0, sizeof(*m));
    m->uffd = tracking_uffd();
    m->whole = mmap(NULL, (PAGES + 2 * HUGE) * PAGE, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(m->whole != MAP_FAILED);
    m->bytes = m->whole + HUGE * PAGE - (uintptr_t)m->whole % (HUGE * PAGE) + shift * PAGE;
    memset(m->bytes, 0, PAGES * PAGE);
    m->block = (struct ibx_guest_block){
        .size = PAGES * PAGE, .page_size = PAGE, .address = (uintptr_t)m->bytes};
    m->ram = (struct ibx_guest_ram){.pid = getpid(), .blocks = &m->block, .count = 1};
    assert_int_equal(ibx_dirty_register(m->uffd, m->block.address, m->block.size, &error), 0);
    assert_int_equal(ibx_guest_ram_protect(&m->ram, &error), 0);
    for (uint64_t page = 0; page < PAGES; page++)
        if (is_written(page))
            m->bytes[page * PAGE] = 1;
    ibx_tracker_init(&m->tracker);
    assert_int_equal(ibx_tracker_attach(&m->tracker, &m->ram, &error), 0);
}

static void begin(struct memory *m)
{
    begin_at(m, 0);
}

static void end(struct memory *m)
{
    ibx_tracker_close(&m->tracker);
    munmap(m->whole, (PAGES + 2 * HUGE) * PAGE);
    close(m->uffd);
}

static void find_all(struct memory *m)
{
    uint64_t bits[WORDS] = {0};
    assert_int_equal(ibx_tracker_scan_last(&m->tracker, 0, NULL, bits, &error), 0);
    for (uint64_t page = 0; page < PAGES; page++) {
        if ((bits[page / 64] >> page % 64 & 1) != is_written(page))
            fail_msg("page %llu, %u processors", (unsigned long long)page, processors);
    }
}

/* Pages that nobody asked for may or may not be found. */
static void find_some(struct memory *m, const uint64_t *asked, unsigned count)
{
    uint64_t bits[WORDS] = {0}, among[WORDS] = {0};
    for (unsigned i = 0; i < count; i++)
        among[asked[i] / 64] |= 1ull << asked[i] % 64;
    assert_int_equal(ibx_tracker_scan_last(&m->tracker, 0, among, bits, &error), 0);
    for (uint64_t page = 0; page < PAGES; page++) {
        const bool found = bits[page / 64] >> page % 64 & 1;
        if ((found && !is_written(page)) ||
            (among[page / 64] >> page % 64 & 1 && found != is_written(page)))
            fail_msg("page %llu, %u processors", (unsigned long long)page, processors);
    }
}

static void test_one_thread_and_several_find_the_same(NO_STATE)
{
    static const uint64_t ends[] = {0, PART - 1, 5 * PART, PAGES - 1},
                          inner[] = {3 * PART - 1, 97 * 140 + 5};
    struct memory memory;
    begin(&memory);
    for (processors = 1; processors <= 16; processors += 15) {
        find_all(&memory);
        find_some(&memory, ends, COUNT(ends));
        find_some(&memory, inner, COUNT(inner));
        find_some(&memory, NULL, 0);
    }
    end(&memory);
}

/* ---------------------------------------------------------------- protecting some pages */

static bool has(const uint64_t *bits, uint64_t page)
{
    return bits[page / 64] >> page % 64 & 1;
}

/* Whether the kernel could map both pages by one entry. */
static bool together(const struct memory *m, uint64_t a, uint64_t b)
{
    const uint64_t first = m->block.address / PAGE;
    return (first + a) / HUGE == (first + b) / HUGE;
}

/* Checks that the unprotected pages are exactly those in `bits`, inside and outside the 2 MiB
 * around any of `asked`. */
static void find_after(const struct memory *m, const uint64_t *bits, const uint64_t *asked,
                       unsigned count)
{
    uint64_t now[WORDS] = {0};
    assert_int_equal(ibx_tracker_scan(&m->tracker, 0, false, now, &error), 0);
    for (uint64_t page = 0; page < PAGES; page++) {
        bool near = false;
        for (unsigned i = 0; i < count; i++)
            near |= together(m, page, asked[i]);
        if (has(bits, page) != (near && is_written(page)) ||
            has(now, page) != (!near && is_written(page)))
            fail_msg("page %llu: found %d, without protection %d, written %d, near %d",
                     (unsigned long long)page, has(bits, page), has(now, page), is_written(page),
                     near);
    }
}

static void protect(const struct memory *m, const uint64_t *asked, unsigned count)
{
    uint64_t bits[WORDS] = {0}, which[WORDS] = {0};
    for (unsigned i = 0; i < count; i++)
        which[asked[i] / 64] |= 1ull << asked[i] % 64;
    assert_int_equal(ibx_tracker_protect(&m->tracker, 0, which, bits, &error), 0);
    find_after(m, bits, asked, count);
}

/* Each of these pages is protected together with its neighbours. Pages that were written are
 * reported. */
static void test_neighbours_are_protected_and_named(NO_STATE)
{
    static const uint64_t asked[] = {0,    1,        HUGE - 1, HUGE, 3 * HUGE - 5, 9 * HUGE + 64,
                                     PART, 3 * PART, PAGES - 1};
    struct memory memory;
    for (unsigned count = 0; count <= COUNT(asked); count += COUNT(asked) / 3) {
        begin_at(&memory, count % 2 ? 5 : 0);
        protect(&memory, asked, count);
        end(&memory);
    }
}

/* A later write is found by every scan until the page is protected again. */
static void test_found_until_it_is_protected(NO_STATE)
{
    const uint64_t page = 2 * PART + 7;
    struct memory memory;
    begin(&memory);
    protect(&memory, &page, 1);
    memory.bytes[page * PAGE] = 2;
    for (unsigned time = 0; time < 3; time++) {
        uint64_t now[WORDS] = {0}, which[WORDS] = {0}, bits[WORDS] = {0};
        assert_int_equal(ibx_tracker_scan(&memory.tracker, 0, false, now, &error), 0);
        assert_int_equal(has(now, page), time < 2);
        which[page / 64] |= (uint64_t)(time == 1) << page % 64;
        assert_int_equal(ibx_tracker_protect(&memory.tracker, 0, which, bits, &error), 0);
        assert_int_equal(has(bits, page), time == 1);
    }
    end(&memory);
}

/* ---------------------------------------------------------------- failures */

static void test_failed_scan_is_reported(NO_STATE)
{
    uint64_t bits[WORDS] = {0};
    struct memory memory;
    begin(&memory);
    close(memory.tracker.pagemap);
    memory.tracker.pagemap = open("/dev/null", O_RDONLY | O_CLOEXEC);
    for (processors = 1; processors <= 16; processors += 15)
        assert_int_equal(ibx_tracker_scan_last(&memory.tracker, 0, NULL, bits, &error),
                         -EOPNOTSUPP);
    end(&memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_thread_and_several_find_the_same),
        cmocka_unit_test(test_neighbours_are_protected_and_named),
        cmocka_unit_test(test_found_until_it_is_protected),
        cmocka_unit_test(test_failed_scan_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
