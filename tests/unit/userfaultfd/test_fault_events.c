/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the owner of the memory does to it while it is filled: discard, unmap, move, fork. */
#include "tests/scenes/fault_memory.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#define PAGES 1024u
#define EVENTS                                                                                     \
    (IBX_FAULT_EVENT_REMOVE | IBX_FAULT_EVENT_UNMAP | IBX_FAULT_EVENT_REMAP | IBX_FAULT_EVENT_FORK)

static struct memory_data data;
static struct memory_reader *readers[2];
static struct ibx_fault_reader as[2];
static struct ibx_fault_range range;
static struct ibx_fault_config config;
static struct ibx_fault *engine;
static uint8_t *memory;
static int uffd;

static int make(void **state)
{
    struct ibx_error err = {0};
    (void)state;
    memory_data_make(&data, PAGES * PAGE, PAGE);
    memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(memory, PAGES * PAGE, MADV_NOHUGEPAGE);
    if (ibx_fault_uffd_open(EVENTS, &uffd, &err))
        fail_msg("%s", err.message);
    range = (struct ibx_fault_range){
        .start = (uintptr_t)memory, .length = PAGES * PAGE, .page_size = PAGE};
    assert_int_equal(ibx_fault_register(uffd, &range, &err), 0);
    for (int i = 0; i < 2; i++)
        as[i] = memory_reader_as(readers[i] = memory_reader_make(&data));
    config = (struct ibx_fault_config){.uffd = uffd,
                                       .events = true,
                                       .ranges = &range,
                                       .range_count = 1,
                                       .readers = as,
                                       .worker_count = 1};
    return 0;
}

static int drop(void **state)
{
    (void)state;
    ibx_fault_destroy(engine);
    engine = NULL;
    close(uffd);
    munmap(memory, PAGES * PAGE);
    free(readers[0]);
    free(readers[1]);
    memory_data_free(&data);
    return 0;
}

static void start(void)
{
    struct ibx_error err = {0};
    if (ibx_fault_create(&config, &engine, &err))
        fail_msg("%s", err.message);
    assert_int_equal(ibx_fault_serve(engine), 0);
}

static struct ibx_fault_stats stats(void)
{
    struct ibx_fault_stats s;
    ibx_fault_stats(engine, &s);
    return s;
}

static void discard(uint64_t page, uint64_t pages)
{
    assert_int_equal(madvise(memory + page * PAGE, pages * PAGE, MADV_DONTNEED), 0);
}

/* Discarded while in flight, while missing, and when present: zero each time, and zero for good. */
static void test_discard(void **state)
{
    (void)state;
    static _Atomic uint64_t arrived[PAGES / 64];
    readers[0]->hold = true;
    config.chunk_min = 16 * PAGE;
    config.arrived = arrived;
    start();
    assert_true(reader_asked(readers[0], 2)); /* 2 x 16 pages are in flight, at least */
    assert_int_equal(readers[0]->log[0].length, 16 * PAGE);
    discard(8, 16);
    discard(900, 10);
    assert_true(REACHES(engine, removes, 2));
    for (unsigned i = 0; i < PAGES; i++) /* for an engine after this one they are there */
        assert_int_equal(arrived[i / 64] >> i % 64 & 1,
                         (i >= 8 && i < 24) || (i >= 900 && i < 910));
    readers[0]->hold = false;
    assert_int_equal(engine_settled(engine), IBX_FAULT_COMPLETE);
    assert_true(page_is_right(&data, memory, 300));
    discard(300, 1);
    for (unsigned i = 0; i < PAGES; i++) {
        bool zero = (i >= 8 && i < 24) || (i >= 900 && i < 910) || i == 300;
        assert_true(zero ? page_is_zero(memory, i, PAGE) : page_is_right(&data, memory, i));
        assert_int_equal(data.fetched[i], i < 900 || i >= 910);
    }
    assert_int_equal(stats().by_cause[IBX_FAULT_BY_REMOVE], 26);
    assert_int_equal(stats().bytes, (PAGES - 26) * PAGE);
}

/* A thread waits for a page that is in flight when another discards it: it goes on, with zeros. */
static void *see_zero(void *arg)
{
    return (void *)(uintptr_t)page_is_zero(memory, *(unsigned *)arg, PAGE);
}

static void test_discard_awaited(void **state)
{
    (void)state;
    pthread_t thread;
    unsigned page = 40;
    void *zero;
    readers[0]->hold = true;
    config.no_background = true;
    start();
    assert_int_equal(pthread_create(&thread, NULL, see_zero, &page), 0);
    assert_true(reader_asked(readers[0], 1));
    discard(page, 1);
    readers[0]->hold = false;
    pthread_join(thread, &zero);
    assert_non_null(zero);
}

/* Every other page is discarded while all of them come, from two workers: from the moment that
 * madvise() has returned it is zero, also when its data was just being placed. */
static void discard_some(uint32_t seed)
{
    uint32_t page = next_random(&seed), step = next_random(&seed) | 1;
    for (unsigned i = 0; i < PAGES; i++, page += step) {
        unsigned p = page % PAGES;
        if (p % 2)
            discard(p, 1);
        assert_true(p % 2 ? page_is_zero(memory, p, PAGE) : page_is_right(&data, memory, p));
    }
    assert_int_equal(engine_settled(engine), IBX_FAULT_COMPLETE);
    for (unsigned i = 0; i < PAGES; i++)
        assert_true(i % 2 ? page_is_zero(memory, i, PAGE) : page_is_right(&data, memory, i));
}

/* The same with all at once, at some moment of the transfer: the marking takes longer then. */
static void discard_all(unsigned from)
{
    while (stats().present < from)
        ;
    discard(0, PAGES);
    assert_int_equal(engine_settled(engine), IBX_FAULT_COMPLETE);
    for (unsigned i = 0; i < PAGES; i++)
        assert_true(page_is_zero(memory, i, PAGE));
}

static void again(void **state)
{
    drop(state);
    make(state);
    config.worker_count = 2;
    config.spin_us = UINT_MAX;
    config.chunk_max = config.chunk_min = 16 * PAGE;
}

static void test_discard_race(void **state)
{
    for (unsigned round = 0; round < 10; round++) {
        again(state);
        readers[0]->delay = readers[1]->delay = 3;
        config.fault_workers = round % 2; /* then some are fetched twice */
        start();
        discard_some(5 + round);
    }
    for (unsigned round = 0; round < 60; round++) {
        again(state);
        start();
        discard_all(round * 16);
    }
}

static void test_unmap(void **state)
{
    (void)state;
    readers[0]->hold = true;
    start();
    assert_true(reader_asked(readers[0], 2));
    munmap(memory + 16 * PAGE, 100 * PAGE);
    assert_true(REACHES(engine, removes, 1));
    readers[0]->hold = false;
    assert_int_equal(engine_settled(engine), IBX_FAULT_COMPLETE);
    assert_int_equal(stats().by_cause[IBX_FAULT_BY_REMOVE], 100);
    for (unsigned i = 0; i < PAGES; i++)
        if (i < 16 || i >= 116)
            assert_true(page_is_right(&data, memory, i));
}

static void test_move(void **state)
{
    (void)state;
    readers[0]->hold = true;
    start();
    assert_true(reader_asked(readers[0], 2));
    uint8_t *place = mmap(NULL, PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memory = mremap(memory, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    assert_ptr_equal(memory, place);
    readers[0]->hold = false;
    for (unsigned i = PAGES; i-- > 0;)
        assert_true(page_is_right(&data, memory, i));
    assert_int_equal(engine_settled(engine), IBX_FAULT_COMPLETE);
}

static void test_move_of_a_part(void **state)
{
    (void)state;
    struct ibx_error err = {0};
    readers[0]->hold = true;
    start();
    uint8_t *place = mmap(NULL, 8 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_equal(
        mremap(memory + 64 * PAGE, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place),
        place);
    assert_int_equal(engine_settled(engine), IBX_FAULT_STOPPED);
    assert_int_equal(ibx_fault_reason(engine, &err), -EOPNOTSUPP);
    assert_non_null(strstr(err.message, "mremap"));
    munmap(place, 8 * PAGE);
}

/* The parent goes on; the child waits rather than see zero pages. */
static void test_fork(void **state)
{
    (void)state;
    readers[0]->hold = true;
    start();
    /* Not fork(): it holds locks that the worker may need before it has read the event. */
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (!child)
        syscall(SYS_exit_group, *(volatile uint8_t *)(memory + 70 * PAGE) ? 1 : 2);
    assert_true(REACHES(engine, forks, 1));
    readers[0]->hold = false;
    assert_int_equal(engine_settled(engine), IBX_FAULT_COMPLETE);
    for (unsigned i = 0; i < PAGES; i++)
        assert_true(page_is_right(&data, memory, i));
    int status;
    assert_int_equal(waitpid(child, &status, WNOHANG), 0);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_discard, make, drop),
        cmocka_unit_test_setup_teardown(test_discard_awaited, make, drop),
        cmocka_unit_test_setup_teardown(test_discard_race, make, drop),
        cmocka_unit_test_setup_teardown(test_unmap, make, drop),
        cmocka_unit_test_setup_teardown(test_move, make, drop),
        cmocka_unit_test_setup_teardown(test_move_of_a_part, make, drop),
        cmocka_unit_test_setup_teardown(test_fork, make, drop),
    };
    struct ibx_error err;
    if (ibx_fault_uffd_open(EVENTS, &uffd, &err)) {
        print_message("SKIPPED: %s\n", err.message);
        return 77;
    }
    close(uffd);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
