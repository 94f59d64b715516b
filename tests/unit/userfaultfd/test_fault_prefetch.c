/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Pages that are fetched before they fault, and what that costs the pages that fault. */
#include "tests/fixtures/fault_memory.h"

#include "userfaultfd/engine.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

/* A thread touches every fourth page in order. After a few faults the fault worker fetches all
 * of them. */
static void test_stride_is_followed(void **state)
{
    (void)state;
    rig.config.no_background = true;
    rig.config.fault_around = 2 * PAGE;
    rig_serve();
    for (unsigned i = 0; i < PAGES; i += 4) {
        assert_true(page_is_right(i));
        assert_int_equal(rig.data.fetched[i], 1);
    }
    const struct ibx_fault_stats s = stats_now();
    assert_true(s.by_cause[IBX_FAULT_BY_PREFETCH] > s.by_cause[IBX_FAULT_BY_FAULT]);
    assert_int_equal(rig.readers[1]->accepted, 0);
    /* What is fetched ahead may be sent together; what somebody waits for is sent at once. */
    uint64_t at_once = 0;
    for (unsigned i = 0; i < rig.readers[0]->accepted; i++)
        at_once += !rig.readers[0]->log[i].more;
    assert_int_equal(at_once, s.by_cause[IBX_FAULT_BY_FAULT]);
    ibx_fault_set_background(rig.engine, true);
    everything_is_right();
    for (unsigned i = 0; i < PAGES; i++)
        assert_int_equal(rig.data.fetched[i], 1);
}

/* All pages that will fault soon are requested before any of them has arrived. */
static void test_early_pages_are_requested_at_once(void **state)
{
    (void)state;
    rig.config.no_background = true;
    rig.config.early = 40;
    rig.config.early_count = 32;
    rig.readers[1]->hold = true;
    rig_serve();
    assert_true(reader_asked(rig.readers[1], 4));
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(rig.readers[1]->log[i].length, 8 * PAGE);
    rig.readers[1]->hold = false;
    assert_true(REACHES(present, 32));
    ibx_fault_set_background(rig.engine, true);
    everything_is_right();
}

static _Atomic bool refuse_next; /* whether the next request is refused */

static int refusing_request(void *reader, const struct ibx_fault_request *request)
{
    return atomic_exchange(&refuse_next, false) ? -EAGAIN
                                                : memory_reader_ops.request(reader, request);
}

/* If the reader refuses a page, it is requested again as a fault, not as a part of its window.
 */
static void test_a_refused_fault_comes_before_its_window(void **state)
{
    (void)state;
    static struct ibx_fault_reader_ops ops; /* the engine's threads use it to their end */
    ops = memory_reader_ops;
    ops.request = refusing_request;
    rig.as[0].ops = &ops;
    rig.config.worker_count = 1;
    rig.config.no_background = true;
    rig.config.fault_around = 16 * PAGE;
    refuse_next = true;
    rig_serve();
    assert_true(page_is_right(100));
    assert_true(REACHES(by_cause[IBX_FAULT_BY_PREFETCH], 15));
    assert_int_equal(rig.readers[0]->log[0].length, PAGE);
    assert_true(rig.readers[0]->log[0].page == 100 && rig.readers[0]->log[0].urgent);
    assert_true(stats_now().by_cause[IBX_FAULT_BY_FAULT] == 1 && !refuse_next);
}

/* ------------------------------------------------------------ before the first fault */

static bool resident(void *memory, size_t length)
{
    unsigned char there[1024];
    const size_t pages = length / PAGE;
    assert_in_range(pages, 1, sizeof(there));
    assert_int_equal(mincore(memory, length, there), 0);
    for (size_t i = 0; i < pages; i++)
        if (!(there[i] & 1))
            return false;
    return true;
}

/* The buffers for the first pages have memory before a page is requested. With huge pages the
 * kernel clears 2 MiB at the first touch, and a stopped VM would wait for that. */
static void test_buffers_are_populated_before(void **state)
{
    (void)state;
    const size_t single = (URGENT_SLOTS + STRIDE_SLOTS) * PAGE;
    const size_t bytes = ibx_fault_buffer_bytes(&rig.config);
    uint8_t *buffers[2];
    for (unsigned i = 0; i < 2; i++) {
        buffers[i] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(buffers[i] != MAP_FAILED);
        rig.as[i].buffer = buffers[i];
    }
    rig_start();
    assert_true(resident(buffers[0], single));
    assert_true(resident(buffers[1] + single, 1u << 20));
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    everything_is_right();
    rig_destroy_engine();
    munmap(buffers[0], bytes);
    munmap(buffers[1], bytes);
}

/* ------------------------------------------------------ a reader without arrivals is not polled */

static _Atomic unsigned looks;
static int ready; /* readable when a request has arrived */

static int ready_request(void *reader, const struct ibx_fault_request *request)
{
    const uint64_t one = 1;
    int rc = memory_reader_ops.request(reader, request);
    return rc || write(ready, &one, sizeof(one)) == sizeof(one) ? rc : -EIO;
}

static int ready_poll(void *reader, struct ibx_fault_arrival *arrivals, int max)
{
    uint64_t count;
    ssize_t ignored = read(ready, &count, sizeof(count));
    (void)ignored;
    atomic_fetch_add(&looks, 1);
    return memory_reader_ops.poll(reader, arrivals, max);
}

static int ready_fd(void *reader)
{
    (void)reader;
    return ready;
}

/* The worker looks at the reader once for a fault, when poll(2) says that the page has arrived.
 * Each further look costs system calls while others wait for the processor. */
static void test_reader_is_looked_at_once_per_fault(void **state)
{
    (void)state;
    struct ibx_fault_reader_ops ops = memory_reader_ops;
    const unsigned faults = 300;
    ops.request = ready_request;
    ops.poll = ready_poll;
    ops.fd = ready_fd;
    ready = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    assert_true(ready >= 0);
    rig.as[0].ops = &ops;
    rig.config.no_background = true;
    rig.config.fault_around = PAGE;
    rig_serve();
    looks = 0;
    for (unsigned i = 0; i < faults; i++)
        assert_true(page_is_right(i * 7 % PAGES));
    assert_in_range(looks, faults, faults + faults / 2);
    ibx_fault_set_background(rig.engine, true);
    everything_is_right();
    rig_destroy_engine();
    close(ready);
}

#define ENGINE_TEST(name) cmocka_unit_test_setup_teardown(name, rig_make_pair, rig_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ENGINE_TEST(test_stride_is_followed),
        ENGINE_TEST(test_early_pages_are_requested_at_once),
        ENGINE_TEST(test_a_refused_fault_comes_before_its_window),
        ENGINE_TEST(test_buffers_are_populated_before),
        ENGINE_TEST(test_reader_is_looked_at_once_per_fault),
    };
    int skipped = rig_skipped(IBX_FAULT_EVENT_REMOVE);
    return skipped ? skipped : cmocka_run_group_tests(tests, NULL, NULL);
}
