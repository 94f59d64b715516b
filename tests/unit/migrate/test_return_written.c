/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which pages a returning VM has written, and which it has given back. This process's memory
 * stands for QEMU's. Includes the moment when a page is in place and not noted yet. And how long
 * the return waits for pages to be compared. */
#include "migrate/source/source.h"
#include "tests/fixtures/tracking_uffd.h"
#include "tests/fixtures/unit.h"
#include "userfaultfd/dirty.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE  4096u
#define PAGES 300u
#define WORDS ((PAGES + 63) / 64)
#define FIRST 70u  /* pages of the first block; the second one starts within a word of the map */
#define CAME  100u /* the first pages, which are here; the VM's home has all */

static struct ibx_error error;

/* What another process does while the pages of files are counted: this page of `memory` arrives,
 * and is noted as placed at once or later. 0: nothing. That is when so many files have been
 * counted: before the next one is, or right after it. */
static struct memory *coming_to;
static uint64_t coming;
static bool noted_at_once, coming_behind;
static unsigned coming_after;

struct memory {
    uint8_t *bytes;
    int uffd;
    struct ibx_guest_block blocks[2];
    uint64_t base[WORDS], arrived[2 * WORDS]; /* pages that have arrived; pages that are placed */
    struct source source;
};

static void note(struct memory *m, uint64_t page, bool is_placed)
{
    m->arrived[page / 64] |= 1ull << page % 64;
    if (is_placed)
        m->arrived[WORDS + page / 64] |= 1ull << page % 64;
}

static void comes(uint64_t page)
{
    note(coming_to, page, false);
    coming_to->bytes[page * PAGE] = 2;
}

int __real_fstat64(int fd, struct stat *st);
int __wrap_fstat64(int fd, struct stat *st);

int __wrap_fstat64(int fd, struct stat *st)
{
    const uint64_t page = coming_after ? 0 : coming;
    coming_after -= coming_after > 0;
    if (page)
        coming = 0;
    if (page && !coming_behind)
        comes(page);
    const int rc = __real_fstat64(fd, st);
    if (page && coming_behind)
        comes(page);
    if (page && noted_at_once)
        note(coming_to, page, true);
    return rc;
}

/* The time that a test has passed. */
static uint64_t ahead_ms;

int __real_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t);

int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
    const int rc = __real_clock_gettime(clock, t);
    t->tv_sec += (time_t)(ahead_ms / 1000);
    return rc;
}

static void make_maps(struct source *s)
{
    struct ibx_page_map *maps[] = {&s->vm.map, &s->home.gone, &s->home.there, &s->home.written,
                                   &s->home.among};
    for (size_t i = 0; i < COUNT(maps); i++)
        assert_int_equal(ibx_page_map_init_ram(maps[i], &s->vm.ram, &error), 0);
}

static void make_block(struct memory *m, unsigned block, uint64_t first, uint64_t pages)
{
    const int fd = memfd_create("guest", MFD_CLOEXEC);
    uint8_t *at = m->bytes + first * PAGE;
    assert_int_equal(ftruncate(fd, (off_t)(pages * PAGE)), 0);
    assert_ptr_equal(mmap(at, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0),
                     at);
    m->blocks[block] = (struct ibx_guest_block){
        .size = pages * PAGE, .page_size = PAGE, .fd = fd, .address = (uintptr_t)at};
    snprintf(m->blocks[block].id, sizeof(m->blocks[block].id), "mem%u", block);
    assert_int_equal(
        ibx_dirty_register(m->uffd, m->blocks[block].address, m->blocks[block].size, &error), 0);
}

/* A stopped VM whose first pages are in place and write-protected. */
static struct memory *begin(void)
{
    static struct memory memory;
    struct memory *m = &memory;
    struct source *s = &m->source;
    memset(m, 0, sizeof(*m));
    m->uffd = tracking_uffd();
    m->bytes = mmap(NULL, PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(m->bytes != MAP_FAILED);
    make_block(m, 0, 0, FIRST);
    make_block(m, 1, FIRST, PAGES - FIRST);
    s->vm.ram = (struct ibx_guest_ram){
        .pid = getpid(), .blocks = m->blocks, .count = 2, .bytes = PAGES * PAGE};
    for (uint64_t page = 0; page < PAGES; page++)
        m->base[page / 64] |= 1ull << page % 64;
    for (uint64_t page = 0; page < CAME; page++) {
        m->bytes[page * PAGE] = 1;
        note(m, page, true);
    }
    struct ibx_guest_block blocks[] = {m->blocks[0], m->blocks[1]};
    blocks[1].size = (CAME - FIRST) * PAGE;
    struct ibx_guest_ram came = {.pid = getpid(), .blocks = blocks, .count = 2};
    assert_int_equal(ibx_guest_ram_protect(&came, &error), 0);
    make_maps(s);
    s->home.base.memory = m->base;
    s->home.arrived.memory = m->arrived;
    s->state.now = SOURCE_STOPPED;
    ibx_tracker_init(&s->warm.tracker);
    assert_int_equal(ibx_tracker_attach(&s->warm.tracker, &s->vm.ram, &error), 0);
    return m;
}

static void end(struct memory *m)
{
    struct source *s = &m->source;
    struct ibx_page_map *maps[] = {&s->vm.map, &s->home.gone, &s->home.there, &s->home.written,
                                   &s->home.among};
    for (size_t i = 0; i < COUNT(maps); i++)
        ibx_page_map_fini(maps[i]);
    ibx_tracker_close(&s->warm.tracker);
    munmap(m->bytes, PAGES * PAGE);
    close(m->blocks[0].fd);
    close(m->blocks[1].fd);
    close(m->uffd);
}

/* Checks that exactly these pages are found. The map of the stop has all pages that home had
 * except these. -1: none. */
static void found(struct memory *m, int64_t written, int64_t given_back)
{
    struct source *s = &m->source;
    assert_int_equal(ibx_source_return_find_map(s, &error), 0);
    for (uint64_t page = 0; page < PAGES; page++) {
        if (ibx_page_map_data(&s->home.written, page) != ((int64_t)page == written))
            fail_msg("page %llu is%s written", (unsigned long long)page,
                     (int64_t)page == written ? " not" : "");
        if (ibx_page_map_data(&s->vm.map, page) != ((int64_t)page != given_back))
            fail_msg("page %llu is%s zero", (unsigned long long)page,
                     (int64_t)page == given_back ? " not" : "");
    }
    assert_int_equal(s->home.written.data_pages, written >= 0);
    assert_int_equal(s->vm.map.data_pages, PAGES - (given_back >= 0));
}

/* The page comes when so many files, from now on, have been counted. */
static void comes_behind(struct memory *m, uint64_t page, unsigned files)
{
    coming_to = m;
    coming = page;
    coming_after = files - 1;
    coming_behind = true;
    noted_at_once = false;
}

static void give_back(struct memory *m, uint64_t page)
{
    const unsigned block = page >= FIRST;
    assert_int_equal(fallocate(m->blocks[block].fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                               (off_t)((page - block * FIRST) * PAGE), PAGE),
                     0);
}

static void test_one_after_the_other(NO_STATE)
{
    struct memory *m = begin();
    found(m, -1, -1);
    m->bytes[(FIRST - 1) * PAGE] = 2;
    found(m, FIRST - 1, -1);
    give_back(m, 3);
    found(m, FIRST - 1, 3);
    assert_int_equal(ibx_source_return_find_written(&m->source, &error), 0);
    assert_int_equal(m->source.home.written.data_pages, 1);
    end(m);
}

static void test_in_the_second_block(NO_STATE)
{
    struct memory *m = begin();
    found(m, -1, -1);
    m->bytes[FIRST * PAGE] = 2;
    found(m, FIRST, -1);
    give_back(m, FIRST + 1);
    found(m, FIRST, FIRST + 1);
    end(m);
}

/* A page has arrived and was written, and is not noted yet. */
static void test_page_that_is_not_noted_yet(NO_STATE)
{
    struct memory *m = begin();
    found(m, -1, -1);
    note(m, 200, false);
    found(m, -1, -1); /* it is in flight */
    m->bytes[200 * PAGE] = 2;
    found(m, 200, -1);
    note(m, 200, true);
    found(m, 200, -1);
    end(m);
}

/* Another page is given back meanwhile, so that the number of pages stays the same. */
static void test_as_many_pages_arrive_as_are_given_back(NO_STATE)
{
    struct memory *m = begin();
    found(m, -1, -1);
    give_back(m, 3);
    note(m, 200, false);
    m->bytes[200 * PAGE] = 2;
    found(m, 200, 3);
    note(m, 200, true);
    found(m, 200, 3);
    end(m);
}

/* The page is counted on one side only: in the files, or as placed. */
static void test_page_arrives_while_pages_are_counted(NO_STATE)
{
    for (int at_once = 0; at_once < 2; at_once++) {
        struct memory *m = begin();
        found(m, -1, -1);
        give_back(m, 3);
        coming_to = m;
        coming = 200;
        noted_at_once = at_once;
        found(m, 200, 3);
        assert_int_equal(coming, 0);
        end(m);
    }
}

static void take_page_away(struct memory *m, uint64_t page)
{
    give_back(m, page);
    m->arrived[page / 64] &= ~(1ull << page % 64);
    m->arrived[WORDS + page / 64] &= ~(1ull << page % 64);
}

/* No page has come here, so that nobody has to look for written ones. */
static void take_all_away(struct memory *m)
{
    for (uint64_t page = 0; page < CAME; page++)
        take_page_away(m, page);
}

/* It was not given back. Nor was it if another page comes while the mapped ones are counted. */
static void test_page_that_qemu_has_not_mapped(NO_STATE)
{
    for (int another = 0; another < 3; another++) {
        struct memory *m = begin();
        m->source.state.now = another == 2 ? SOURCE_WARMING : SOURCE_STOPPED;
        assert_int_equal(madvise(m->bytes + 5ul * PAGE, PAGE, MADV_DONTNEED), 0);
        if (another == 1)
            comes_behind(m, 200, 4); /* both have been counted twice then */
        found(m, another == 1 ? 200 : -1, -1);
        assert_int_equal(coming, 0);
        coming_behind = false;
        end(m);
    }
}

static void test_page_that_was_given_back_comes_again(NO_STATE)
{
    struct memory *m = begin();
    found(m, -1, -1);
    give_back(m, 3);
    found(m, -1, 3);
    m->bytes[3 * PAGE] = 2;
    give_back(m, 4);
    found(m, 3, 4);
    end(m);
}

static void test_written_page_is_given_back(NO_STATE)
{
    struct memory *m = begin();
    m->bytes[3 * PAGE] = 2;
    found(m, 3, -1);
    give_back(m, 3);
    found(m, -1, 3);
    end(m);
}

/* Somebody has read the hole, and the VM has written to that page. It makes up for none that was
 * given back. */
static void test_page_that_nobody_has_noted(NO_STATE)
{
    struct memory *m = begin();
    found(m, -1, -1);
    give_back(m, 3);
    found(m, -1, 3);
    m->bytes[200 * PAGE] = 2;
    found(m, 200, 3);
    end(m);
}

/* Nor does one that was there before this side looked for the first time. */
static void test_page_that_nobody_had_noted(NO_STATE)
{
    struct memory *m = begin();
    m->bytes[200 * PAGE] = 2;
    found(m, 200, -1);
    give_back(m, 3);
    found(m, 200, 3);
    end(m);
}

static void test_first_page_of_a_block(NO_STATE)
{
    struct memory *m = begin();
    take_all_away(m);
    found(m, -1, -1);
    note(m, 60, false);
    m->bytes[60 * PAGE] = 2;
    found(m, 60, -1);
    end(m);
}

/* It comes behind the count by which nobody has to look there. */
static void test_first_page_comes_behind_the_count(NO_STATE)
{
    struct memory *m = begin();
    take_all_away(m);
    found(m, -1, -1);
    comes_behind(m, 60, 2);
    assert_int_equal(ibx_source_return_find_written(&m->source, &error), 0);
    coming_behind = false;
    assert_int_equal(coming, 0);
    assert_true(ibx_page_map_data(&m->source.home.written, 60));
    end(m);
}

/* Before the stop: finds a page that was a hole at home and comes, although another one was given
 * back. */
static void test_found_before_the_stop(NO_STATE)
{
    struct memory *m = begin();
    struct source *s = &m->source;
    m->base[200 / 64] &= ~(1ull << 200 % 64);
    assert_int_equal(ibx_source_return_find_map(s, &error), 0);
    assert_false(ibx_page_map_data(&s->vm.map, 200));
    give_back(m, 3);
    note(m, 200, false);
    m->bytes[200 * PAGE] = 2;
    assert_int_equal(ibx_source_return_find_written(s, &error), 0);
    assert_int_equal(s->home.written.data_pages, 1);
    assert_true(ibx_page_map_data(&s->home.written, 200));
    assert_true(ibx_page_map_data(&s->vm.map, 200));
    end(m);
}

/* What cannot be searched has not been given back: home would take the VM's pages for zero. */
static void test_a_file_that_cannot_be_searched(NO_STATE)
{
    struct memory *m = begin();
    const int fd = m->blocks[1].fd;
    found(m, -1, -1);
    m->blocks[1].fd = -1;
    assert_int_equal(ibx_source_return_find_map(&m->source, &error), -EINVAL);
    m->blocks[1].fd = fd;
    found(m, -1, -1);
    end(m);
}

/* Pages that nobody has searched are not taken for zero, or for unwritten. */
static void test_a_search_that_fails(NO_STATE)
{
    uint64_t bits[WORDS] = {0}, count = 42;
    const uint64_t which[WORDS] = {1};
    const struct ibx_dirty_range range = {-1, 1u << 30, PAGES * PAGE, PAGE};
    assert_int_equal(ibx_dirty_mapped(&range, true, bits, &count, &error), -EBADF);
    assert_int_equal(ibx_dirty_scan(&range, true, bits, &error), -EBADF);
    assert_int_equal(ibx_dirty_protect(&range, which, bits, &error), -EBADF);
    assert_non_null(strstr(error.message, "cannot be searched for pages"));
    assert_int_equal(count, 42);
}

/* ------------------------------------------------------------ what home has */

/* As begin(). Home has all pages but these; the VM runs on here. */
static struct memory *begin_return(const uint64_t *lacks, unsigned count)
{
    struct memory *m = begin();
    struct source *s = &m->source;
    struct ibx_page_map *maps[] = {&s->home.have, &s->warm.held, &s->warm.wanted};
    for (size_t i = 0; i < COUNT(maps); i++)
        assert_int_equal(ibx_page_map_init_ram(maps[i], &s->vm.ram, &error), 0);
    ibx_page_map_set(&s->home.have, 0, PAGES);
    for (unsigned i = 0; i < count; i++)
        s->home.have.bits[lacks[i] / 64] &= ~(1ull << lacks[i] % 64);
    ibx_page_map_recount(&s->home.have);
    s->home.have_it = true;
    return m;
}

static void end_return(struct memory *m)
{
    struct source *s = &m->source;
    struct ibx_page_map *maps[] = {&s->home.have, &s->warm.held, &s->warm.wanted};
    for (size_t i = 0; i < COUNT(maps); i++)
        ibx_page_map_fini(maps[i]);
    end(m);
}

/* A page that home has lost, and that has not come here, is nowhere. */
static void test_home_has_lost_a_page(NO_STATE)
{
    static const uint64_t lacks[] = {150};
    struct memory *m = begin_return(lacks, 1);
    found(m, -1, -1);
    assert_int_equal(ibx_source_return_begin(&m->source, &error), -EBADMSG);
    assert_non_null(strstr(error.message, "home lacks 1 pages"));
    m->source.home.have_it = false;
    assert_int_equal(ibx_source_return_begin(&m->source, &error), -EPROTO);
    end_return(m);
}

/* It is here; or the guest has given it back; or it goes home. What was written here goes home. */
static void test_home_needs_no_page(NO_STATE)
{
    static const uint64_t lacks[] = {3, 4, 151};
    struct memory *m = begin_return(lacks, COUNT(lacks));
    struct source *s = &m->source;
    found(m, -1, -1);
    m->bytes[5 * PAGE] = 2;
    give_back(m, 4);
    found(m, 5, 4);
    take_page_away(m, 4);
    ibx_page_map_set(&s->warm.wanted, 151, 1);
    assert_int_equal(ibx_source_return_begin(s, &error), 0);
    assert_true(ibx_page_map_data(&s->warm.wanted, 5));
    assert_true(ibx_page_map_data(&s->warm.held, 200));
    assert_false(ibx_page_map_data(&s->warm.held, 151));
    end_return(m);
}

/* Memory that was exchanged has pages of which home knows nothing. The notes of what has come are
 * looked for after that, and are not there. */
static void test_memory_that_was_exchanged(NO_STATE)
{
    static struct ibx_record came = {.id = {0x5e}};
    const struct ibx_send_options options = {.folder = "/nonexistent", .returns = &came};
    struct memory *m = begin();
    struct source *s = &m->source;
    s->options = &options;
    snprintf((char *)came.id + 1, sizeof(came.id) - 1, "%d", (int)getpid());
    for (unsigned change = 0; change < 6; change++) {
        came.block_count = 2;
        for (unsigned i = 0; i < 2; i++) {
            const struct ibx_guest_block *block = &m->blocks[i];
            came.blocks[i] = (struct ibx_journal_block){.size = block->size,
                                                        .address = block->address,
                                                        .dev = block->dev,
                                                        .ino = block->ino};
            memcpy(came.blocks[i].id, block->id, sizeof(block->id));
        }
        came.blocks[1].size += change == 1 ? PAGE : 0;
        came.blocks[1].address += change == 2 ? PAGE : 0;
        came.blocks[1].ino += change == 3;
        came.blocks[1].dev += change == 4;
        came.blocks[1].id[0] = change == 5 ? 'x' : m->blocks[1].id[0];
        assert_int_equal(ibx_source_return_open(s, &error), change ? -EOPNOTSUPP : -ESTALE);
        assert_non_null(strstr(error.message, change ? "was plugged in" : "is gone"));
    }
    came.block_count = 1;
    assert_int_equal(ibx_source_return_open(s, &error), -EOPNOTSUPP);
    assert_non_null(strstr(error.message, "device_del"));
    end(m);
}

/* A device whose writes are not seen was plugged in meanwhile. */
static void test_memory_that_a_device_has_written_to(NO_STATE)
{
    char folder[] = "/tmp/ibx-return-XXXXXX";
    static struct ibx_record came = {.id = {0x5f}, .epoch = 1};
    const struct ibx_send_options options = {.folder = folder, .returns = &came};
    struct memory *m = begin();
    m->source.options = &options;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(ibx_journal_touch_base(folder, &came, &error), 0);
    assert_int_equal(ibx_source_return_open(&m->source, &error), -EOPNOTSUPP);
    assert_non_null(strstr(error.message, "whose writes to its memory are not seen"));
    char path[128];
    ibx_journal_path(folder, &came, ".touched", path, sizeof(path));
    assert_true(!unlink(path) && !rmdir(folder));
    end(m);
}

/* ------------------------------------------------------------ pages that are compared */

#define LIMIT_MS 60000u

static unsigned told;

static void count_told(void *context, const char *message)
{
    (void)context;
    told += strstr(message, "not compared") != NULL;
}

/* Of a VM that returns and is stopped, so many pages are not compared. Returns what the return says
 * after this time. */
static int compared_after(struct source *s, uint64_t ms, uint64_t left)
{
    ((uint64_t *)s->home.tags.memory)[s->vm.map.pages] = left;
    ahead_ms += ms;
    return ibx_source_return_compared(s, &error);
}

/* However many pages there are, it waits as long as home compares some; and not longer. */
static void test_waits_while_pages_are_compared(NO_STATE)
{
    static const struct ibx_send_options options = {.observer = {.notify = count_told}};
    static uint64_t tags[PAGES + 1];
    static struct source source;
    struct source *s = &source;
    s->options = &options;
    s->status.record.base[0] = 1;
    s->transport.timeout_ms = LIMIT_MS;
    s->state.now = SOURCE_STOPPED;
    s->vm.map.pages = PAGES;
    s->home.tags.memory = tags;
    assert_int_equal(compared_after(s, 0, 5000), -EAGAIN);
    assert_int_equal(told, 0);
    for (uint64_t left = 4990; left > 4900; left -= 10)
        assert_int_equal(compared_after(s, LIMIT_MS / 2, left), -EAGAIN);
    assert_int_equal(told, 1);
    assert_int_equal(compared_after(s, LIMIT_MS / 2, 6000), -EAGAIN); /* others have come */
    assert_int_equal(compared_after(s, LIMIT_MS / 2, 6000), -ETIMEDOUT);
    assert_non_null(strstr(error.message, "6000 pages"));
    assert_int_equal(compared_after(s, 0, 0), 0);
    assert_false(ibx_source_return_waits(&s->home));
    assert_int_equal(compared_after(s, 3 * LIMIT_MS, 7000), -EAGAIN); /* anew */
    assert_int_equal(compared_after(s, LIMIT_MS / 2, 7000), -EAGAIN);
    assert_int_equal(compared_after(s, LIMIT_MS / 2, 7000), -ETIMEDOUT);
}

/* Before the stop a few pages may be left, which are compared soon after it. At the stop none may:
 * home overwrites them. */
static void test_few_pages_are_compared_after_the_stop(NO_STATE)
{
    static const struct ibx_send_options options = {.observer = {.notify = count_told}};
    static uint64_t tags[PAGES + 1];
    static struct source source;
    struct source *s = &source;
    s->options = &options;
    s->status.record.base[0] = 1;
    s->transport.timeout_ms = LIMIT_MS;
    s->vm.map.pages = PAGES;
    s->home.tags.memory = tags;
    s->state.now = SOURCE_WARMING;
    assert_int_equal(compared_after(s, 0, 1), 0);
    assert_int_equal(compared_after(s, 0, 5000), -EAGAIN);
    s->state.now = SOURCE_STOPPED;
    assert_int_equal(compared_after(s, 0, 1), -EAGAIN);
    assert_int_equal(compared_after(s, 0, 0), 0);
    assert_int_equal(compared_after(s, 0, IBX_PAGE_TAGS_BROKEN), -EBADMSG);
    assert_non_null(strstr(error.message, "start it from its disk"));
    s->state.now = SOURCE_ASKING;
    assert_int_equal(compared_after(s, 0, IBX_PAGE_TAGS_BROKEN | 1), -EBADMSG);
    assert_non_null(strstr(error.message, "ib-migrate rollback at home"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_file_that_cannot_be_searched),
        cmocka_unit_test(test_a_search_that_fails),
        cmocka_unit_test(test_one_after_the_other),
        cmocka_unit_test(test_in_the_second_block),
        cmocka_unit_test(test_page_that_is_not_noted_yet),
        cmocka_unit_test(test_as_many_pages_arrive_as_are_given_back),
        cmocka_unit_test(test_page_arrives_while_pages_are_counted),
        cmocka_unit_test(test_page_that_qemu_has_not_mapped),
        cmocka_unit_test(test_page_that_was_given_back_comes_again),
        cmocka_unit_test(test_written_page_is_given_back),
        cmocka_unit_test(test_page_that_nobody_has_noted),
        cmocka_unit_test(test_page_that_nobody_had_noted),
        cmocka_unit_test(test_first_page_of_a_block),
        cmocka_unit_test(test_first_page_comes_behind_the_count),
        cmocka_unit_test(test_found_before_the_stop),
        cmocka_unit_test(test_home_has_lost_a_page),
        cmocka_unit_test(test_home_needs_no_page),
        cmocka_unit_test(test_memory_that_was_exchanged),
        cmocka_unit_test(test_memory_that_a_device_has_written_to),
        cmocka_unit_test(test_waits_while_pages_are_compared),
        cmocka_unit_test(test_few_pages_are_compared_after_the_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
