/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the owner of the memory does to it while it is being filled: discard, unmap, move, fork. */
#include "tests/fixtures/fault_memory.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#define EVENTS                                                                                     \
    (IBX_FAULT_EVENT_REMOVE | IBX_FAULT_EVENT_UNMAP | IBX_FAULT_EVENT_REMAP | IBX_FAULT_EVENT_FORK)

static int make(void **state)
{
    (void)state;
    rig_make(2, EVENTS);
    rig.config.worker_count = 1;
    return 0;
}

static void discard(uint64_t page, uint64_t pages)
{
    assert_int_equal(madvise(rig.memory + page * PAGE, pages * PAGE, MADV_DONTNEED), 0);
}

/* Pages are discarded while in flight, while missing, and when present. Each time they are zero,
 * and they stay zero. */
static void test_discard(void **state)
{
    (void)state;
    static _Atomic uint64_t arrived[PAGES / 64];
    rig.readers[0]->hold = true;
    rig.config.chunk_min = 16 * PAGE;
    rig.config.arrived = arrived;
    rig_serve();
    assert_true(reader_asked(rig.readers[0], 2)); /* at least 2 x 16 pages are in flight */
    assert_int_equal(rig.readers[0]->log[0].length, 16 * PAGE);
    discard(8, 16);
    discard(900, 10);
    discard(8, 16); /* once more, still in flight */
    assert_true(REACHES(removes, 3));
    ibx_fault_note_events(rig.engine);   /* pages are counted first, and marked later */
    for (unsigned i = 0; i < PAGES; i++) /* for the next engine they count as arrived */
        assert_int_equal(arrived[i / 64] >> i % 64 & 1,
                         (i >= 8 && i < 24) || (i >= 900 && i < 910));
    rig.readers[0]->hold = false;
    assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
    assert_true(page_is_right(300));
    discard(300, 1);
    for (unsigned i = 0; i < PAGES; i++) {
        bool zero = (i >= 8 && i < 24) || (i >= 900 && i < 910) || i == 300;
        assert_true(zero ? page_is_zero(i) : page_is_right(i));
        assert_int_equal(rig.data.fetched[i], i < 900 || i >= 910);
    }
    assert_int_equal(stats_now().by_cause[IBX_FAULT_BY_REMOVE], 26);
    assert_int_equal(stats_now().bytes, (PAGES - 26) * PAGE);
}

/* A thread waits for a page in flight when another thread discards it. It continues, and reads
 * zeros. */
static void test_discard_awaited(void **state)
{
    (void)state;
    struct look look;
    rig.readers[0]->hold = true;
    rig.config.no_background = true;
    rig_serve();
    look_at(&look, 40);
    assert_true(reader_asked(rig.readers[0], 1));
    discard(40, 1);
    rig.readers[0]->hold = false;
    look_sees_zero(&look);
}

/* The last page is discarded in flight, and then its request comes back without it. */
static void test_discard_of_what_does_not_come(void **state)
{
    (void)state;
    rig.readers[0]->hold = true;
    rig.readers[0]->again_every = 1;
    rig_start();
    assert_int_equal(ibx_fault_mark_zero(rig.engine, 0, 40), 0);
    assert_int_equal(ibx_fault_mark_zero(rig.engine, 41, PAGES - 41), 0);
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    assert_true(reader_asked(rig.readers[0], 1));
    discard(40, 1);
    ibx_fault_note_events(rig.engine);
    rig.readers[0]->hold = false;
    assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
    assert_true(page_is_zero(40));
}

/* Every other page is discarded while two workers fetch all of them. Once madvise() has returned
 * a page is zero, even if its data was just being placed. */
static void discard_some(uint32_t seed)
{
    uint32_t page = next_random(&seed), step = next_random(&seed) | 1;
    for (unsigned i = 0; i < PAGES; i++, page += step) {
        unsigned p = page % PAGES;
        if (p % 2)
            discard(p, 1);
        assert_true(p % 2 ? page_is_zero(p) : page_is_right(p));
    }
    assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
    for (unsigned i = 0; i < PAGES; i++)
        assert_true(i % 2 ? page_is_zero(i) : page_is_right(i));
}

/* The same for all pages at once, at some moment of the transfer: marking them takes longer. */
static void discard_all(unsigned from)
{
    while (stats_now().present < from)
        ;
    discard(0, PAGES);
    assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
    for (unsigned i = 0; i < PAGES; i++)
        assert_true(page_is_zero(i));
}

static void again(void **state)
{
    rig_end(state);
    make(state);
    rig.config.worker_count = 2;
    rig.config.spin_us = UINT_MAX;
    rig.config.chunk_max = rig.config.chunk_min = 16 * PAGE;
}

static void test_discard_race(void **state)
{
    for (unsigned round = 0; round < 10; round++) {
        again(state);
        rig.readers[0]->delay = rig.readers[1]->delay = 3;
        rig.config.fault_workers = round % 2; /* in these rounds some pages are fetched twice */
        rig_serve();
        discard_some(5 + round);
    }
    for (unsigned round = 0; round < 60; round++) {
        again(state);
        rig_serve();
        discard_all(round * 16);
    }
}

static void test_unmap(void **state)
{
    (void)state;
    rig.readers[0]->hold = true;
    rig_serve();
    assert_true(reader_asked(rig.readers[0], 2));
    munmap(rig.memory + 16 * PAGE, 100 * PAGE);
    assert_true(REACHES(removes, 1));
    rig.readers[0]->hold = false;
    assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
    assert_int_equal(stats_now().by_cause[IBX_FAULT_BY_REMOVE], 100);
    for (unsigned i = 0; i < PAGES; i++)
        if (i < 16 || i >= 116)
            assert_true(page_is_right(i));
}

static void test_move(void **state)
{
    (void)state;
    rig.readers[0]->hold = true;
    rig_serve();
    assert_true(reader_asked(rig.readers[0], 2));
    uint8_t *place = mmap(NULL, PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    rig.memory =
        mremap(rig.memory, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    assert_ptr_equal(rig.memory, place);
    rig.readers[0]->hold = false;
    for (unsigned i = PAGES; i-- > 0;)
        assert_true(page_is_right(i));
    assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
}

static void move_part(unsigned first)
{
    struct ibx_error err = {0};
    rig.readers[0]->hold = true;
    rig_serve();
    uint8_t *place = mmap(NULL, 8 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_equal(
        mremap(rig.memory + first * PAGE, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place),
        place);
    assert_int_equal(engine_settled(), IBX_FAULT_STOPPED);
    assert_int_equal(ibx_fault_reason(rig.engine, &err), -EOPNOTSUPP);
    assert_non_null(strstr(err.message, "mremap"));
    munmap(place, 8 * PAGE);
}

static void test_move_of_a_part(void **state)
{
    (void)state;
    move_part(64);
}

static void test_move_of_the_first_part(void **state)
{
    (void)state;
    move_part(0);
}

static _Atomic unsigned asked; /* how often an engine has asked its reader for the descriptor */
static _Atomic int reader_fd;

static int count_and_tell(void *context)
{
    (void)context;
    atomic_fetch_add(&asked, 1);
    return atomic_load(&reader_fd);
}

/* The memory may still be changed when the engine has stopped. Its reader may be gone by then. */
static void test_move_while_stopped(void **state)
{
    (void)state;
    struct ibx_fault_reader_ops ops = memory_reader_ops;
    ops.fd = count_and_tell;
    atomic_store(&reader_fd, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    rig.as[0].ops = &ops;
    rig.config.no_background = true;
    rig_serve();
    ibx_fault_stop(rig.engine, -EPIPE, "that will do");
    assert_int_equal(engine_settled(), IBX_FAULT_STOPPED);
    const unsigned before = atomic_load(&asked);
    uint8_t *place = mmap(NULL, PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    rig.memory =
        mremap(rig.memory, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    assert_ptr_equal(rig.memory, place);
    discard(0, 1); /* its event is read in another turn of the worker, after that of the move */
    assert_true(REACHES(removes, 1));
    assert_int_equal(atomic_load(&asked), before);
    assert_int_equal(ibx_fault_resume(rig.engine, rig.as, NULL), 0);
    touch(1);
    assert_true(page_is_right(1));
    rig_destroy_engine();
    close(atomic_load(&reader_fd));
}

/* The parent continues; the child waits and must not see zero pages. */
static void test_fork(void **state)
{
    (void)state;
    rig.readers[0]->hold = true;
    rig_serve();
    /* fork() would hold locks that the worker may need before it has read the event. */
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (!child)
        syscall(SYS_exit_group, *(volatile uint8_t *)(rig.memory + 70 * PAGE) ? 1 : 2);
    assert_true(REACHES(forks, 1));
    rig.readers[0]->hold = false;
    assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
    for (unsigned i = 0; i < PAGES; i++)
        assert_true(page_is_right(i));
    int status;
    assert_int_equal(waitpid(child, &status, WNOHANG), 0);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_discard, make, rig_end),
        cmocka_unit_test_setup_teardown(test_discard_awaited, make, rig_end),
        cmocka_unit_test_setup_teardown(test_discard_of_what_does_not_come, make, rig_end),
        cmocka_unit_test_setup_teardown(test_discard_race, make, rig_end),
        cmocka_unit_test_setup_teardown(test_unmap, make, rig_end),
        cmocka_unit_test_setup_teardown(test_move, make, rig_end),
        cmocka_unit_test_setup_teardown(test_move_of_a_part, make, rig_end),
        cmocka_unit_test_setup_teardown(test_move_of_the_first_part, make, rig_end),
        cmocka_unit_test_setup_teardown(test_move_while_stopped, make, rig_end),
        cmocka_unit_test_setup_teardown(test_fork, make, rig_end),
    };
    int skipped = rig_skipped(EVENTS);
    return skipped ? skipped : cmocka_run_group_tests(tests, NULL, NULL);
}
