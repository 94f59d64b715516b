/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The comparison at the source of ranges that come again while threads compare them. Guest RAM is
 * not at the beginning of its file. */
#include "migrate/pages/digest.h"
#include "migrate/pages/ram_view.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE     4096u
#define RANGES   3u
#define PAGES    (RANGES * IBX_DIGEST_PAGES)
#define BEFORE   (5u * PAGE) /* bytes in the file */
#define WAIT_MS  20000
#define UNMAP_MS 2000

#ifndef MADV_POPULATE_READ /* Linux 5.14 */
#define MADV_POPULATE_READ 22
#endif

static const uint8_t key[IBX_DIGEST_KEY] = "a key of both ends of a migrati";
static struct ibx_error error;

/* ------------------------------------------------------------ replaced functions */

/* While it is closed, whoever reads guest RAM waits. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned inside; /* threads that have come to it since it was closed */
    bool closed;
} door = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, false};

ssize_t __real_pread64(int fd, void *out, size_t size, off_t at);
ssize_t __wrap_pread64(int fd, void *out, size_t size, off_t at);
int __real_madvise(void *at, size_t size, int advice);
int __wrap_madvise(void *at, size_t size, int advice);
int __real_munmap(void *at, size_t size);
int __wrap_munmap(void *at, size_t size);

static void door_pass(void)
{
    pthread_mutex_lock(&door.lock);
    door.inside++;
    pthread_cond_broadcast(&door.changed);
    while (door.closed)
        pthread_cond_wait(&door.changed, &door.lock);
    pthread_mutex_unlock(&door.lock);
}

ssize_t __wrap_pread64(int fd, void *out, size_t size, off_t at)
{
    door_pass();
    return __real_pread64(fd, out, size, at);
}

/* Threads that read guest RAM where it is mapped wait here. */
static pthread_mutex_t populating = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool populates;

int __wrap_madvise(void *at, size_t size, int advice)
{
    if (advice == MADV_POPULATE_READ) {
        populates = true;
        pthread_mutex_lock(&populating);
        pthread_mutex_unlock(&populating);
    }
    return __real_madvise(at, size, advice);
}

/* Whoever unmaps all of guest RAM needs as long as the test wants, but not for ever. */
static atomic_bool unmapping, may_unmap = true, unmapped, in_time;

int __wrap_munmap(void *at, size_t size)
{
    if (size == PAGES * PAGE) {
        unmapping = true;
        for (unsigned ms = 0; !may_unmap && ms < UNMAP_MS; ms++)
            poll(NULL, 0, 1);
        in_time = may_unmap;
        unmapped = true;
    }
    return __real_munmap(at, size);
}

static void door_set(bool closed)
{
    pthread_mutex_lock(&door.lock);
    door.closed = closed;
    door.inside = 0;
    pthread_cond_broadcast(&door.changed);
    pthread_mutex_unlock(&door.lock);
}

static void door_await(unsigned threads)
{
    pthread_mutex_lock(&door.lock);
    while (door.inside < threads)
        pthread_cond_wait(&door.changed, &door.lock);
    pthread_mutex_unlock(&door.lock);
}

/* ------------------------------------------------------------ a VM's RAM */

static struct ibx_guest_block block = {
    .id = "ram0", .size = PAGES * PAGE, .page_size = PAGE, .offset = BEFORE};
static struct ibx_guest_ram ram = {.blocks = &block, .count = 1, .bytes = PAGES * PAGE};
static struct ibx_page_map map;
static uint8_t *memory;
static _Atomic uint64_t words[PAGES], uncompared;
static struct ibx_page_tags *tags;
static struct ibx_verifier *verifier;

/* All pages hold data. */
static int start(void **state)
{
    (void)state;
    block.fd = memfd_create("ram0", MFD_CLOEXEC);
    assert_true(block.fd >= 0 && !ftruncate(block.fd, BEFORE + PAGES * PAGE));
    memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, block.fd, BEFORE);
    assert_true(memory != MAP_FAILED);
    for (uint64_t page = 0; page < PAGES; page++)
        memset(memory + page * PAGE, (int)(page % 251) + 1, PAGE);
    assert_int_equal(ibx_page_map_init_ram(&map, &ram, &error), 0);
    ibx_page_map_set(&map, 0, PAGES);
    memset((void *)words, 0, sizeof(words));
    assert_int_equal(ibx_page_tags_create(&map, words, key, 1, &tags, &error), 0);
    assert_int_equal(ibx_verifier_open(&ram, &map, key, 2, &verifier, &error), 0);
    return 0;
}

static int end(void **state)
{
    (void)state;
    door_set(false);
    ibx_verifier_close(verifier);
    ibx_page_tags_destroy(tags);
    ibx_page_map_fini(&map);
    munmap(memory, PAGES * PAGE);
    close(block.fd);
    return 0;
}

/* The VM is borrowed, and one thread compares its pages. */
static void borrow(void)
{
    ibx_verifier_close(verifier);
    assert_int_equal(ibx_verifier_open(&ram, &map, key, 1, &verifier, &error), 0);
    ibx_verifier_compare_parts(verifier);
    ibx_page_tags_count(tags, &uncompared);
}

static void comes(uint64_t page)
{
    assert_int_equal(ibx_page_tags_note(tags, 0, page, 1, memory + page * PAGE, &error), 0);
}

static void all_come(void)
{
    for (uint64_t page = 0; page < PAGES; page++)
        comes(page);
}

static int take(uint64_t range, bool fresh)
{
    uint8_t entry[IBX_DIGEST_ENTRY];
    assert_true(fresh ? ibx_page_tags_fresh_entry(tags, range, entry)
                      : ibx_page_tags_entry(tags, range, entry));
    const struct ibx_bytes bytes = {entry, sizeof(entry)};
    return ibx_verifier_take(verifier, range * IBX_DIGEST_PAGES, &bytes, &error);
}

static int result(void)
{
    struct pollfd wait = {.fd = ibx_verifier_fd(verifier), .events = POLLIN};
    while (!ibx_verifier_idle(verifier))
        assert_true(poll(&wait, 1, WAIT_MS) >= 0 && (ibx_verifier_result(verifier, &error), 1));
    return ibx_verifier_result(verifier, &error);
}

/* ------------------------------------------------------------ tests */

/* It counts once: the end needs all ranges. */
static void test_two_threads_compare_one_range(NO_STATE)
{
    uint64_t compared, left_out;
    all_come();
    door_set(true);
    assert_int_equal(take(0, false), 0);
    door_await(1);
    assert_int_equal(take(0, false), 0);
    door_await(2);
    door_set(false);
    assert_int_equal(result(), -EAGAIN);
    assert_int_equal(take(1, false), 0);
    assert_int_equal(result(), -EAGAIN);
    assert_int_equal(take(2, false), 0);
    assert_int_equal(result(), 0);
    ibx_verifier_pages(verifier, &compared, &left_out);
    assert_int_equal(compared, PAGES);
    assert_int_equal(left_out, 0);
}

/* Nobody compares a range again that has agreed: nothing is missed if it cannot be taken. */
static void test_what_has_agreed_is_not_missed(NO_STATE)
{
    all_come();
    assert_int_equal(take(0, false), 0);
    assert_int_equal(result(), -EAGAIN);
    ibx_verifier_miss(verifier, 0, 1);
    assert_false(ibx_verifier_missed(verifier));
    ibx_verifier_miss(verifier, 0, RANGES);
    assert_true(ibx_verifier_missed(verifier));
    assert_int_equal(take(1, false), 0);
    assert_int_equal(take(2, false), 0);
    assert_int_equal(result(), 0);
    assert_false(ibx_verifier_missed(verifier));
}

/* Pages of a range that still waits would be compared by nobody, and count as compared. What was
 * missed comes over the next link. */
static void test_part_of_a_range_that_waits(NO_STATE)
{
    borrow();
    door_set(true);
    comes(1);
    assert_int_equal(take(0, true), 0);
    door_await(1);
    comes(600);
    assert_int_equal(take(1, true), 0);
    comes(601);
    assert_int_equal(take(1, true), -EPROTO);
    assert_true(ibx_verifier_missed(verifier));
    ibx_verifier_drop_parts(verifier);
    assert_false(ibx_verifier_missed(verifier));
    door_set(false);
    assert_int_equal(result(), -EAGAIN);
}

/* A page that comes twice waits for one comparison. */
static void test_page_that_comes_twice(NO_STATE)
{
    borrow();
    comes(1);
    comes(1);
    assert_int_equal(uncompared, 1);
    assert_int_equal(take(0, true), 0);
    assert_int_equal(result(), -EAGAIN);
    ibx_page_tags_agreed(tags, 0);
    assert_int_equal(uncompared, 0);
    assert_false(ibx_page_tags_fresh(tags, 0));
}

/* ------------------------------------------------------------ where the bytes are read */

static struct ibx_ram_view *view;

static void see(void)
{
    assert_int_equal(ibx_ram_view_open(&ram, false, &view, &error), 0);
    ibx_verifier_see(verifier, view);
    ibx_ram_view_drop(view); /* the verifier holds it */
    door_set(false);
}

static unsigned reads(void)
{
    pthread_mutex_lock(&door.lock);
    const unsigned count = door.inside;
    pthread_mutex_unlock(&door.lock);
    return count;
}

/* Pages are compared where they are mapped, and a page that differs is found there, too. */
static void test_pages_are_not_copied(NO_STATE)
{
    see();
    all_come();
    memory[7 * PAGE] ^= 1;
    assert_int_equal(take(1, false), 0);
    assert_int_equal(take(2, false), 0);
    assert_int_equal(result(), -EAGAIN);
    assert_int_equal(reads(), 0);
    assert_int_equal(take(0, false), 0);
    assert_int_equal(result(), -EBADMSG);
    assert_int_equal(reads(), 0);
}

/* From then on they are read from the file, by threads that are at work as well. */
static void test_view_is_taken_back(NO_STATE)
{
    see();
    all_come();
    assert_int_equal(take(0, false), 0);
    ibx_verifier_see(verifier, NULL);
    assert_int_equal(result(), -EAGAIN);
    door_set(false);
    assert_int_equal(take(1, false), 0);
    assert_int_equal(take(2, false), 0);
    assert_int_equal(result(), 0);
    assert_true(reads() > 0);
}

/* The last holder of a view unmaps it, which takes long. If that is a thread that compares, nobody
 * waits for it. */
static void test_nobody_waits_for_the_unmapping(NO_STATE)
{
    see();
    all_come();
    pthread_mutex_lock(&populating);
    populates = unmapping = may_unmap = unmapped = false;
    assert_int_equal(take(0, false), 0);
    while (!populates)
        poll(NULL, 0, 1);
    ibx_verifier_see(verifier, NULL);
    pthread_mutex_unlock(&populating);
    while (!unmapping)
        poll(NULL, 0, 1);
    ibx_verifier_idle(verifier);
    may_unmap = true;
    while (!unmapped)
        poll(NULL, 0, 1);
    assert_true(in_time);
    assert_int_equal(result(), -EAGAIN);
}

/* That is a reason, and no signal. */
static void test_file_that_was_cut_short(NO_STATE)
{
    see();
    all_come();
    assert_int_equal(ftruncate(block.fd, BEFORE + (PAGES - 9) * PAGE), 0);
    assert_int_equal(take(2, false), 0);
    assert_int_equal(result(), -EIO);
    assert_non_null(strstr(error.message, "its file has become shorter"));
}

/* A hole that counts as zeros stays a hole. */
static void test_view_fills_no_hole(NO_STATE)
{
    struct stat before, after;
    memset(memory + 3 * PAGE, 0, PAGE);
    all_come();
    assert_int_equal(madvise(memory + 3 * PAGE, PAGE, MADV_REMOVE), 0);
    ibx_verifier_look_into_holes(verifier);
    see();
    assert_int_equal(fstat(block.fd, &before), 0);
    for (uint64_t range = 0; range < RANGES; range++)
        assert_int_equal(take(range, false), 0);
    assert_int_equal(result(), 0);
    assert_int_equal(fstat(block.fd, &after), 0);
    assert_int_equal(after.st_blocks, before.st_blocks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_two_threads_compare_one_range, start, end),
        cmocka_unit_test_setup_teardown(test_what_has_agreed_is_not_missed, start, end),
        cmocka_unit_test_setup_teardown(test_part_of_a_range_that_waits, start, end),
        cmocka_unit_test_setup_teardown(test_page_that_comes_twice, start, end),
        cmocka_unit_test_setup_teardown(test_pages_are_not_copied, start, end),
        cmocka_unit_test_setup_teardown(test_view_is_taken_back, start, end),
        cmocka_unit_test_setup_teardown(test_nobody_waits_for_the_unmapping, start, end),
        cmocka_unit_test_setup_teardown(test_file_that_was_cut_short, start, end),
        cmocka_unit_test_setup_teardown(test_view_fills_no_hole, start, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
