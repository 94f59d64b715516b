/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The fault engine on memory of this process. */
#include "tests/fixtures/fault_memory.h"

#include "userfaultfd/histogram.h"

#include <errno.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#define TOUCHERS     3
#define HELD_BACK_MS 300 /* longer than the bandwidth limit delays anything */
#define LOOK_MS      400

static void completes(void)
{
    assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
}

static void completes_once_each(void)
{
    completes();
    for (unsigned i = 0; i < PAGES; i++) {
        assert_true(page_is_right(i));
        assert_int_equal(rig.data.fetched[i], 1);
    }
}

/* Several threads touch pages, several workers fetch them, and the readers deliver in every
 * allowed way except failure. */
static void test_many_threads_and_workers(void **state)
{
    const unsigned workers = *state ? 3 : 1, spin_us = *state ? 50 : 0, delay = *state ? 5 : 20;
    struct look touchers[TOUCHERS];
    uint32_t seed = 77;
    rig_make(workers, 0);
    rig.config.spin_us = spin_us;
    rig.config.chunk_max = 256 * 1024;
    for (unsigned i = 0; i < workers; i++) {
        rig.readers[i]->delay = delay;
        rig.readers[i]->short_every = 3;
        rig.readers[i]->again_every = 5;
        rig.readers[i]->room = 5;
    }
    rig_start();
    for (unsigned i = 0; i < TOUCHERS; i++) {
        /* visits all pages */
        const uint32_t first = next_random(&seed), step = next_random(&seed) | 1;
        look_start(&touchers[i], first, PAGES, step);
    }
    assert_true(REACHES(waiting, TOUCHERS)); /* before the background has fetched everything */
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    for (unsigned i = 0; i < TOUCHERS; i++)
        look_sees_right(&touchers[i]);
    completes_once_each();
    struct ibx_fault_stats s = stats_now();
    assert_int_equal(s.present, PAGES);
    assert_int_equal(s.bytes, PAGES * PAGE);
    assert_int_equal(s.by_cause[IBX_FAULT_BY_FAULT] + s.by_cause[IBX_FAULT_BY_PREFETCH] +
                         s.by_cause[IBX_FAULT_BY_BACKGROUND],
                     PAGES);
    assert_true(s.faults >= TOUCHERS && s.latency_sum >= s.latency_p50);
    assert_true(REACHES(latency_count, TOUCHERS));
    assert_true(s.retries > 0);
}

static void test_zero_is_not_fetched(void **state)
{
    (void)state;
    rig_make(2, 0);
    rig_start();
    assert_int_equal(ibx_fault_mark_zero(rig.engine, 0, 100), 0);
    assert_int_equal(ibx_fault_mark_zero(rig.engine, 500, 24), 0);
    assert_int_equal(ibx_fault_mark_zero(rig.engine, PAGES, 1), -ERANGE);
    assert_int_equal(ibx_fault_mark_zero(rig.engine, 1, UINT64_MAX), -ERANGE);
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    assert_true(page_is_zero(50));
    completes();
    for (unsigned i = 0; i < PAGES; i++) {
        bool zero = i < 100 || (i >= 500 && i < 524);
        assert_int_equal(rig.data.fetched[i], !zero);
        assert_true(zero ? page_is_zero(i) : page_is_right(i));
    }
    assert_int_equal(stats_now().by_cause[IBX_FAULT_BY_ZERO], 124);
    assert_true(REACHES(zero_faults, 124));
}

static void test_held_pages(void **state)
{
    (void)state;
    struct look t, u;
    rig_make(2, 0);
    rig_start();
    look_at(&t, 7);
    look_at(&u, 900);
    assert_true(REACHES(waiting, 2));
    assert_int_equal(ibx_fault_state(rig.engine), IBX_FAULT_HELD);
    assert_int_equal(stats_now().requests, 0);
    assert_int_equal(t.looked + u.looked, 0);
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    assert_int_equal(ibx_fault_serve(rig.engine), -EBUSY);
    look_sees_right(&t);
    look_sees_right(&u);
    completes_once_each();
    assert_int_equal(stats_now().waiting, 0);
}

/* First the faulted page alone, then the rest of the aligned window around it, and nothing else. */
static void test_order(void **state)
{
    (void)state;
    rig_make(1, 0);
    rig.config.no_background = true;
    rig.readers[0]->hold_bulk = true;
    rig_serve_near();
    touch(105); /* continues although nothing else has arrived */
    assert_true(reader_asked(rig.readers[0], 3));
    const struct ibx_fault_request *log = rig.readers[0]->log;
    assert_int_equal(log[0].page, 105);
    assert_int_equal(log[0].length, PAGE);
    assert_true(log[0].urgent);
    assert_int_equal(log[1].page, 96);
    assert_int_equal(log[1].length, 9 * PAGE);
    assert_false(log[1].urgent);
    assert_int_equal(log[2].page, 106);
    assert_int_equal(log[2].length, 6 * PAGE);
    rig.readers[0]->hold_bulk = false;
    assert_true(REACHES(present, 16));
    assert_int_equal(rig.readers[0]->accepted, 3);
}

/* Pages that will fault soon are fetched before the background starts, and no others are. */
static void test_pages_before_the_background(void **state)
{
    (void)state;
    rig_make(2, 0);
    rig.config.no_background = true;
    rig.config.fault_workers = 1;
    rig.config.early = 40;
    rig.config.early_count = 24;
    rig_start();
    assert_int_equal(ibx_fault_mark_zero(rig.engine, 50, 4), 0);
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    assert_true(REACHES(present, 24));
    assert_int_equal(stats_now().by_cause[IBX_FAULT_BY_BACKGROUND], 20);
    assert_int_equal(rig.readers[0]->accepted, 0);
    assert_int_equal(rig.readers[1]->log[0].page, 40);
    touch(45);
    assert_int_equal(rig.readers[0]->accepted, 0);
    touch(PAGES - 1);
    assert_true(REACHES(present, 24 + 16));
    assert_int_equal(stats_now().by_cause[IBX_FAULT_BY_BACKGROUND], 20);
    ibx_fault_set_background(rig.engine, true);
    completes();
}

/* Nothing is fetched beyond the last page. */
static void test_pages_before_the_background_at_the_end(void **state)
{
    (void)state;
    const uint64_t from[] = {PAGES - 8, PAGES, UINT64_MAX};
    for (unsigned i = 0; i < 3; i++) {
        rig_make(1, 0);
        rig.config.no_background = true;
        rig.config.early = from[i];
        rig.config.early_count = UINT64_MAX;
        rig_start();
        assert_int_equal(ibx_fault_serve(rig.engine), 0);
        assert_true(REACHES(present, i ? 0 : 8));
        assert_int_equal(stats_now().present, i ? 0 : 8);
        rig_end(NULL);
    }
}

/* The background starts when it is told to. It does not use the first worker, which serves all
 * faults. */
static void test_worker_that_serves_faults_only(void **state)
{
    (void)state;
    rig_make(3, 0);
    rig.config.no_background = true;
    rig.config.fault_workers = 1;
    rig_serve_near();
    for (unsigned i = 0; i < 16;
         i++) { /* no three of them at equal distances, which would be a stride */
        unsigned window = (i & 1) + (i >> 1 & 1) * 3 + (i >> 2 & 1) * 9 + (i >> 3) * 27;
        touch(window * 16 + 9);
        assert_true(REACHES(present, (i + 1) * 16)); /* the window around it */
    }
    assert_int_equal(stats_now().present, 16 * 16);
    assert_int_equal(stats_now().by_cause[IBX_FAULT_BY_BACKGROUND], 0);
    assert_int_equal(rig.readers[1]->accepted + rig.readers[2]->accepted, 0);
    unsigned before = rig.readers[0]->accepted;
    ibx_fault_set_background(rig.engine, true);
    completes_once_each();
    assert_int_equal(rig.readers[0]->accepted, before);
}

/* The background's requests grow while there are no faults, and are small again after one. */
static void test_window(void **state)
{
    (void)state;
    rig_make(1, 0);
    rig.config.chunk_min = 4 * PAGE;
    rig.config.chunk_max = 64 * PAGE;
    rig.config.depth = 4;
    rig.config.fault_around = 1;
    rig_serve();
    struct memory_reader *s = rig.readers[0];
    completes();
    size_t largest = 0;
    for (unsigned i = 0; i < s->accepted; i++)
        largest = s->log[i].length > largest ? s->log[i].length : largest;
    assert_int_equal(s->log[0].length, 4 * PAGE);
    assert_int_equal(largest, 64 * PAGE);
}

static void test_window_falls_back(void **state)
{
    (void)state;
    rig_make(1, 0);
    rig.config.chunk_min = 4 * PAGE;
    rig.config.chunk_max = 64 * PAGE;
    rig.config.depth = 1;
    rig.config.fault_around = 1;
    struct memory_reader *s = rig.readers[0];
    s->hold_bulk_from = 5; /* now a large request is in flight, and no other may be */
    rig_serve_near();
    assert_true(reader_asked(s, 5));
    touch(800); /* does not wait behind the background */
    s->hold_bulk = false;
    completes_once_each();
    assert_int_equal(s->log[4].length, 64 * PAGE);
    assert_true(s->log[5].urgent);
    assert_int_equal(s->log[6].length, 4 * PAGE);
}

/* More threads wait than a worker can request pages for at once. */
static void test_many_faults(void **state)
{
    (void)state;
    struct look t[40];
    rig_make(1, 0);
    rig.config.no_background = true;
    rig.config.fault_around = 1;
    rig.readers[0]->delay = 200;
    rig_start();
    for (unsigned i = 0; i < 40; i++)
        look_at(&t[i], i * 20);
    assert_true(REACHES(waiting, 40));
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    for (unsigned i = 0; i < 40; i++)
        look_sees_right(&t[i]);
    assert_true(REACHES(present, 40));
    assert_int_equal(rig.readers[0]->accepted, 40);
}

/* More threads wait for pages that are there than a worker answers at once, and nothing else
 * happens that would have it look again. */
static void test_many_faults_on_zeros(void **state)
{
    (void)state;
    struct look t[40];
    rig_make(1, 0);
    rig.config.no_background = true;
    rig_start();
    for (unsigned i = 0; i < 40; i++)
        look_at(&t[i], i * 20);
    assert_true(REACHES(waiting, 40));
    assert_int_equal(ibx_fault_mark_zero(rig.engine, 0, PAGES - 1), 0);
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    assert_true(REACHES(zero_faults, 40));
    for (unsigned i = 0; i < 40; i++)
        look_sees_zero(&t[i]);
}

/* A thread waits for the last page of a chunk that has arrived, and none of the pages before can
 * be placed. */
static void test_awaited_page_is_placed_first(void **state)
{
    (void)state;
    struct look t;
    struct ibx_error err = {0};
    rig_make(1, 0);
    rig.config.chunk_min = 256 * PAGE;
    rig.config.fault_around = 1;
    rig.config.depth = 1;
    rig.readers[0]->hold = true;
    rig_serve();
    assert_true(reader_asked(rig.readers[0], 1));
    look_at(&t, 255);
    assert_true(REACHES(waiting, 1));
    munmap(rig.memory, 64 * PAGE); /* the engine gets no event of this */
    rig.readers[0]->hold = false;
    look_sees_right(&t);
    assert_int_equal(engine_settled(), IBX_FAULT_STOPPED);
    assert_int_equal(ibx_fault_reason(rig.engine, &err), -ENOENT);
    assert_int_equal(stats_now().present, 1);
}

static void test_bandwidth(void **state)
{
    (void)state;
    rig_make(1, 0);
    rig.config.max_bandwidth = 1; /* 1 byte per second */
    rig_serve();
    assert_true(REACHES(cap_stalls, 1));
    touch(PAGES - 1); /* the limit does not delay faults */
    assert_int_equal(ibx_fault_state(rig.engine), IBX_FAULT_SERVING);
    assert_true(stats_now().present < PAGES / 2);
    ibx_fault_set_bandwidth(rig.engine, 0);
    completes_once_each();
}

/* Workers that the limit delayed when the engine stopped sleep like any others: the end of their
 * delay wakes nobody. */
static void test_bandwidth_and_stopped(void **state)
{
    (void)state;
    rig_make(2, 0);
    rig.config.max_bandwidth = 2u << 20; /* delays for about 60 ms at a time */
    rig_serve();
    assert_true(REACHES(cap_stalls, 2));
    ibx_fault_stop(rig.engine, -EPIPE, "that will do");
    assert_int_equal(engine_settled(), IBX_FAULT_STOPPED);
    poll(NULL, 0, HELD_BACK_MS);
    clock_t before = clock(); /* processor time of the process */
    poll(NULL, 0, LOOK_MS);
    assert_true(clock() - before < LOOK_MS * CLOCKS_PER_SEC / 1000 / 10);
}

/* Workers that had more faults than they could serve at once sleep as well. */
static void test_faults_and_stopped(void **state)
{
    (void)state;
    enum { MANY = 20 };
    struct look t[MANY];
    struct rusage before, after;
    rig_make(1, 0);
    rig.config.no_background = true;
    rig.readers[0]->hold = true;
    rig_serve();
    for (unsigned i = 0; i < MANY; i++)
        look_at(&t[i], 40 * i);
    assert_true(REACHES(waiting, MANY));
    assert_true(reader_asked(rig.readers[0], 16));
    ibx_fault_stop(rig.engine, -EPIPE, "that will do");
    assert_int_equal(engine_settled(), IBX_FAULT_STOPPED);
    getrusage(RUSAGE_SELF, &before);
    poll(NULL, 0, LOOK_MS);
    getrusage(RUSAGE_SELF, &after);
    assert_in_range(after.ru_nvcsw - before.ru_nvcsw, 0, LOOK_MS / 10);
    assert_int_equal(ibx_fault_resume(rig.engine, rig.as, NULL), 0);
    for (unsigned i = 0; i < MANY; i++)
        look_sees_right(&t[i]);
}

/* In whatever way the reader fails, pages stay missing, faults wait, and another reader
 * continues. */
static void test_failure(void **state)
{
    const int dead = *state ? -ENOTCONN : 0;
    struct look t;
    struct ibx_error err = {0};
    rig_make(2, 0);
    for (unsigned i = 0; i < 2; i++)
        rig.readers[i]->hold = true;
    rig_start();
    assert_int_equal(ibx_fault_reason(rig.engine, &err), -EINPROGRESS);
    assert_int_equal(ibx_fault_resume(rig.engine, rig.as, &err), -EBUSY);
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    look_at(&t, 1000);
    assert_true(REACHES(waiting, 1));
    assert_true(REACHES(requests, 2));
    for (unsigned i = 0; i < 2; i++) {
        rig.readers[i]->fail_in = dead ? 0 : 1;
        rig.readers[i]->dead = dead;
        rig.readers[i]->hold = false;
    }
    assert_int_equal(engine_settled(), IBX_FAULT_STOPPED);
    assert_int_equal(ibx_fault_reason(rig.engine, &err), dead ? dead : -EIO);
    assert_non_null(strstr(err.message, dead ? "no more pages come: " : "fetching page "));
    struct ibx_fault_stats s = stats_now();
    uint64_t present = 0;
    bool before[PAGES];
    for (unsigned i = 0; i < PAGES; i++)
        present += before[i] = ibx_fault_present(rig.engine, i);
    assert_int_equal(s.present, present);
    if (dead) {
        assert_int_equal(present, 0);
        assert_int_equal(t.looked, 0);
        assert_int_equal(s.waiting, 1);
    }
    memset((void *)rig.data.fetched, 0, PAGES * sizeof *rig.data.fetched);
    struct memory_reader *again[2] = {memory_reader_make(&rig.data), memory_reader_make(&rig.data)};
    struct ibx_fault_reader as[2] = {memory_reader_as(again[0]), memory_reader_as(again[1])};
    assert_int_equal(ibx_fault_resume(rig.engine, as, &err), 0);
    look_sees_right(&t);
    completes();
    for (unsigned i = 0; i < PAGES; i++) {
        assert_int_equal(rig.data.fetched[i], !before[i]);
        assert_true(page_is_right(i));
    }
    rig_destroy_engine();
    free(again[0]);
    free(again[1]);
}

enum fault { TOO_LONG, NEVER_ASKED, OF_NO_SLOT, COMES_AGAIN };

/* A reader with a fault of its own. */
static struct {
    enum fault fault;
    uint64_t first; /* cookie */
    bool reused;    /* another request has its place */
} faulty;

static int ask_faulty(void *context, const struct ibx_fault_request *request)
{
    const struct memory_reader *reader = context;
    if (!reader->accepted)
        faulty.first = request->cookie;
    faulty.reused |=
        (uint32_t)request->cookie == (uint32_t)faulty.first && request->cookie != faulty.first;
    return memory_reader_ops.request(context, request);
}

static int poll_faulty(void *context, struct ibx_fault_arrival *arrivals, int max)
{
    const int n = memory_reader_ops.poll(context, arrivals, max);
    for (int i = 0; i < n; i++) {
        struct ibx_fault_arrival *a = &arrivals[i];
        a->length *= faulty.fault == TOO_LONG ? 2 : 1;
        a->cookie += faulty.fault == NEVER_ASKED ? 1ull << 32 : 0;
        a->cookie |= faulty.fault == OF_NO_SLOT ? UINT32_MAX : 0;
        if (faulty.fault == COMES_AGAIN && faulty.reused)
            a->cookie = faulty.first;
    }
    return n;
}

static void serve_faulty(enum fault fault)
{
    static struct ibx_fault_reader_ops ops;
    ops = memory_reader_ops;
    ops.request = ask_faulty;
    ops.poll = poll_faulty;
    memset(&faulty, 0, sizeof(faulty));
    faulty.fault = fault;
    rig_make(1, 0);
    rig.as[0].ops = &ops;
    rig_serve();
}

/* Bytes beyond those that were requested do not count. */
static void test_arrivals_too_long(void **state)
{
    (void)state;
    serve_faulty(TOO_LONG);
    completes_once_each();
}

/* Pages that were not requested, or that come once more, are not placed. */
static void test_arrivals_of_no_request(void **state)
{
    const enum fault faults[] = {NEVER_ASKED, OF_NO_SLOT, COMES_AGAIN};
    for (unsigned i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        struct ibx_error err = {0};
        serve_faulty(faults[i]);
        while (ibx_fault_state(rig.engine) == IBX_FAULT_SERVING)
            sched_yield();
        rig.readers[0]->dead = -EIO; /* what was requested never comes */
        assert_int_equal(engine_settled(), IBX_FAULT_STOPPED);
        assert_int_equal(ibx_fault_reason(rig.engine, &err), -EPROTO);
        assert_non_null(strstr(err.message, "were not requested"));
        rig_end(state);
    }
}

static void test_stop_and_destroy_in_flight(void **state)
{
    (void)state;
    struct ibx_error err = {0};
    rig_make(1, 0);
    rig.config.depth = 2;
    rig.readers[0]->hold = true;
    rig_serve();
    assert_true(REACHES(requests, 2));
    ibx_fault_stop(rig.engine, -ECONNRESET, "the link is down");
    assert_int_equal(engine_settled(), IBX_FAULT_STOPPED);
    assert_int_equal(rig.readers[0]->cancelled, 2);
    assert_int_equal(ibx_fault_reason(rig.engine, &err), -ECONNRESET);
    assert_string_equal(err.message, "the link is down");
    rig.readers[0]->hold = true;
    assert_int_equal(ibx_fault_resume(rig.engine, rig.as, &err), 0);
    assert_true(REACHES(requests, 4));
    rig_destroy_engine(); /* returns although two of them are in flight */
    assert_int_equal(rig.readers[0]->count, 0);
}

/* An engine takes over from a dead one that had already read a fault. */
static void test_takeover_from_a_dead_engine(void **state)
{
    (void)state;
    struct look u;
    struct ibx_error err = {0};
    uint8_t present[PAGES / 8] = {0};
    rig_make(1, 0);
    rig.config.no_background = true;
    rig.config.fault_around = 1;
    rig_serve();
    touch(33);
    assert_int_equal(ibx_fault_rebuild(rig.engine, present, PAGES, &err), -EBUSY);
    rig.readers[0]->hold = true;
    look_at(&u, 34);
    assert_true(reader_asked(rig.readers[0], 2));
    ibx_fault_destroy(rig.engine);
    /* The dead engine had placed page 34 too, but died before it woke the waiting thread. */
    struct uffdio_copy copy = {.dst = rig.range.start + 34 * PAGE,
                               .src = (uintptr_t)rig.data.bytes + 34 * PAGE,
                               .len = PAGE,
                               .mode = UFFDIO_COPY_MODE_DONTWAKE};
    assert_int_equal(ioctl(rig.config.uffd, UFFDIO_COPY, &copy), 0);
    present[33 / 8] |= 1 << 33 % 8 | 1 << 34 % 8;
    assert_int_equal(rig.data.fetched[34], 1);
    rig.config.no_background = false;
    rig.readers[0]->hold = false;
    rig_start();
    assert_int_equal(ibx_fault_rebuild(rig.engine, present, PAGES, &err), 0);
    assert_int_equal(stats_now().by_cause[IBX_FAULT_BY_REBUILD], 2);
    look_sees_right(&u);
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    completes_once_each();
}

static void refused(const char *why)
{
    struct ibx_error err = {0};
    struct ibx_fault *engine = NULL;
    assert_int_equal(ibx_fault_create(&rig.config, &engine, &err), -EINVAL);
    assert_null(engine);
    if (!strstr(err.message, why))
        fail_msg("\"%s\" says nothing of \"%s\"", err.message, why);
}

static void test_configs_are_checked(void **state)
{
    (void)state;
    rig_make(1, 0);
    struct ibx_fault_range good = rig.range, two[2] = {good, good};
    rig.range.page_size = 8192;
    refused("8192");
    rig.range = good;
    rig.range.length--;
    refused("whole pages");
    rig.range = good;
    rig.range.first_page = UINT64_MAX;
    refused("beyond number");
    rig.config.ranges = two;
    rig.config.range_count = 2;
    refused("addresses");
    two[1].start += good.length;
    refused("page numbers");
    rig.range = good;
    rig.config.ranges = &rig.range;
    rig.config.range_count = 1;
    rig.config.fault_around = 12345;
    refused("12345");
    rig.config.fault_around = 0;
    rig.config.chunk_min = 2 << 20;
    refused("2097152");
    rig.config.chunk_min = 0;
    rig.config.worker_count = 0;
    refused("0 workers");
    rig.config.worker_count = 1;
    rig.as[0].buffer = rig.memory + 1;
    refused("page-aligned");
}

static void test_histogram(void **state)
{
    (void)state;
    static struct histogram h;
    for (uint64_t v = 0; v < 100000; v += 7) {
        uint64_t top = histogram_value(histogram_bucket(v));
        assert_true(top >= v && top - v <= v / 16);
    }
    assert_int_equal(histogram_value(histogram_bucket(UINT64_MAX)), UINT64_MAX);
    assert_int_equal(histogram_quantile(&h, 500), 0);
    for (uint64_t v = 1; v <= 1000; v++)
        histogram_add(&h, v * 1000);
    assert_in_range(histogram_quantile(&h, 500), 500000, 532000);
    assert_in_range(histogram_quantile(&h, 990), 990000, 1000000);
    assert_int_equal(histogram_quantile(&h, 1000), 1000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_histogram, rig_end),
        cmocka_unit_test_teardown(test_configs_are_checked, rig_end),
        {"test_crowd_sleeping", test_many_threads_and_workers, NULL, rig_end, NULL},
        {"test_crowd_of_workers", test_many_threads_and_workers, NULL, rig_end, &rig},
        cmocka_unit_test_teardown(test_zero_is_not_fetched, rig_end),
        cmocka_unit_test_teardown(test_held_pages, rig_end),
        cmocka_unit_test_teardown(test_order, rig_end),
        cmocka_unit_test_teardown(test_pages_before_the_background, rig_end),
        cmocka_unit_test_teardown(test_pages_before_the_background_at_the_end, rig_end),
        cmocka_unit_test_teardown(test_worker_that_serves_faults_only, rig_end),
        cmocka_unit_test_teardown(test_window, rig_end),
        cmocka_unit_test_teardown(test_bandwidth, rig_end),
        cmocka_unit_test_teardown(test_bandwidth_and_stopped, rig_end),
        cmocka_unit_test_teardown(test_faults_and_stopped, rig_end),
        cmocka_unit_test_teardown(test_window_falls_back, rig_end),
        cmocka_unit_test_teardown(test_many_faults, rig_end),
        cmocka_unit_test_teardown(test_many_faults_on_zeros, rig_end),
        cmocka_unit_test_teardown(test_awaited_page_is_placed_first, rig_end),
        {"test_reader_fails", test_failure, NULL, rig_end, NULL},
        {"test_reader_ends", test_failure, NULL, rig_end, &rig},
        cmocka_unit_test_teardown(test_arrivals_too_long, rig_end),
        cmocka_unit_test(test_arrivals_of_no_request),
        cmocka_unit_test_teardown(test_stop_and_destroy_in_flight, rig_end),
        cmocka_unit_test_teardown(test_takeover_from_a_dead_engine, rig_end),
    };
    int skipped = rig_skipped(0);
    return skipped ? skipped : cmocka_run_group_tests(tests, NULL, NULL);
}
