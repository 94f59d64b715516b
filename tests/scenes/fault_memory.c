/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "fault_memory.h"

#include "common/clock.h"
#include "tests/scenes/patience.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

struct fault_rig rig = {.file = -1};

uint32_t next_random(uint32_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 17;
    *seed ^= *seed << 5;
    return *seed;
}

/* Made once, since that takes longer than most tests of the engine. */
static const uint8_t *random_bytes(size_t length)
{
    static uint8_t *bytes;
    static size_t made;
    uint32_t seed = 0x1234567;
    if (made >= length)
        return bytes;
    free(bytes);
    bytes = malloc(length);
    assert_non_null(bytes);
    for (size_t i = 0; i < length; i += 4) {
        uint32_t v = next_random(&seed);
        memcpy(bytes + i, &v, 4);
    }
    made = length;
    return bytes;
}

static void memory_data_make(struct memory_data *data, size_t length, uint32_t page_size)
{
    data->bytes = aligned_alloc(PAGE, length);
    data->length = length;
    data->page_size = page_size;
    data->fetched = calloc(length / page_size, sizeof *data->fetched);
    memcpy(data->bytes, random_bytes(length), length);
}

struct memory_reader *memory_reader_make(struct memory_data *data)
{
    struct memory_reader *s = calloc(1, sizeof *s);
    s->data = data;
    s->room = 32;
    s->seed = 99;
    return s;
}

static int request(void *reader, const struct ibx_fault_request *r)
{
    struct memory_reader *s = reader;
    if (s->count == s->room)
        return -EAGAIN;
    unsigned n = atomic_load(&s->accepted), delay = atomic_load(&s->delay);
    if (n < LOG_MAX)
        s->log[n] = *r;
    if (n + 1 == s->hold_bulk_from)
        atomic_store(&s->hold_bulk, true);
    struct memory_flight *f = &s->flying[s->count++];
    *f = (struct memory_flight){*r, delay ? next_random(&s->seed) % (delay + 1) : 0, {0}};
    if (r->pages)
        memcpy(f->pages, r->pages, r->page_count * sizeof(*f->pages));
    atomic_store(&s->accepted, n + 1); /* the log and what is in flight are the test's to see */
    return 0;
}

static void cancel(void *reader, uint64_t cookie)
{
    struct memory_reader *s = reader;
    (void)cookie;
    atomic_fetch_add(&s->cancelled, 1);
    atomic_store(&s->hold, false);
    atomic_store(&s->hold_bulk, false);
}

static struct ibx_fault_arrival answer(struct memory_reader *s, const struct memory_flight *f)
{
    const struct ibx_fault_request *r = &f->request;
    struct ibx_fault_arrival a = {.cookie = r->cookie, .length = r->length};
    unsigned again = atomic_load(&s->again_every), brief = atomic_load(&s->short_every);
    unsigned fail = atomic_load(&s->fail_in);
    s->arrivals++;
    if (fail)
        atomic_store(&s->fail_in, fail - 1);
    a.status = fail == 1 ? -EIO : again && s->arrivals % again == 0 ? -EAGAIN : 0;
    if (brief && s->arrivals % brief == 0 && a.length > s->data->page_size)
        a.length = a.length / 2 + 1; /* not even whole pages */
    a.zero = s->says_zero;
    if (a.status || a.zero)
        return a;
    const size_t size = s->data->page_size;
    for (size_t i = 0; i * size < a.length; i++) {
        const uint64_t at = r->offset + (r->pages ? f->pages[i] - r->page : i) * size;
        const size_t left = a.length - i * size;
        memcpy((uint8_t *)r->buffer + i * size, s->data->bytes + at, left < size ? left : size);
        if (left >= size)
            atomic_fetch_add(&s->data->fetched[at / size], 1);
    }
    return a;
}

static int take(void *reader, struct ibx_fault_arrival *arrivals, int max)
{
    struct memory_reader *s = reader;
    int n = 0;
    if (atomic_load(&s->dead))
        return atomic_load(&s->dead);
    if (atomic_load(&s->hold))
        return 0;
    for (unsigned i = 0; i < s->count && n < max;) {
        struct memory_flight *f = &s->flying[i];
        if (f->polls_left || (atomic_load(&s->hold_bulk) && !f->request.urgent)) {
            f->polls_left -= f->polls_left > 0;
            i++;
            continue;
        }
        arrivals[n++] = answer(s, f);
        *f = s->flying[--s->count];
    }
    return n;
}

const struct ibx_fault_reader_ops memory_reader_ops = {
    .request = request, .cancel = cancel, .poll = take, .scatters = true};

struct ibx_fault_reader memory_reader_as(struct memory_reader *reader)
{
    return (struct ibx_fault_reader){.ops = &memory_reader_ops, .context = reader};
}

bool reader_asked(const struct memory_reader *reader, unsigned n)
{
    uint64_t deadline = ibx_deadline_in_ms(patience_ms(20000));
    while (atomic_load(&reader->accepted) < n) {
        if (ibx_now_ns() > deadline)
            return false;
        sched_yield();
    }
    return true;
}

/* ------------------------------------------------------------ the engine */

int rig_skipped(uint64_t features)
{
    struct ibx_error err;
    int uffd;
    if (ibx_fault_uffd_open(features, &uffd, &err)) {
        print_message("SKIPPED: %s\n", err.message);
        return 77;
    }
    close(uffd);
    return 0;
}

static void *map(size_t length)
{
    int kind = rig.file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, kind, rig.file, 0);
    assert_true(memory != MAP_FAILED);
    return memory;
}

void rig_map(unsigned workers, int file, size_t length, uint32_t page_size, bool in_place)
{
    rig.file = file;
    rig.memory = map(length);
    madvise(rig.memory, length, MADV_NOHUGEPAGE);
    memory_data_make(&rig.data, length, page_size);
    rig.range = (struct ibx_fault_range){.start = (uintptr_t)rig.memory,
                                         .length = length,
                                         .page_size = page_size,
                                         .alias = in_place ? map(length) : NULL};
    for (unsigned i = 0; i < workers; i++) {
        rig.readers[i] = memory_reader_make(&rig.data);
        rig.as[i] = memory_reader_as(rig.readers[i]);
    }
    rig.config = (struct ibx_fault_config){.uffd = -1,
                                           .ranges = &rig.range,
                                           .range_count = 1,
                                           .readers = rig.as,
                                           .worker_count = workers};
}

void rig_register(uint64_t features)
{
    struct ibx_error err = {0};
    rig.config.events = features & (IBX_FAULT_EVENT_FORK | IBX_FAULT_EVENT_REMAP |
                                    IBX_FAULT_EVENT_REMOVE | IBX_FAULT_EVENT_UNMAP);
    if (ibx_fault_uffd_open(features, &rig.config.uffd, &err) ||
        ibx_fault_register(rig.config.uffd, &rig.range, &err))
        fail_msg("%s", err.message);
}

void rig_make(unsigned workers, uint64_t features)
{
    rig_map(workers, -1, PAGES * PAGE, PAGE, false);
    rig_register(features);
}

int rig_make_pair(void **state)
{
    (void)state;
    rig_make(2, IBX_FAULT_EVENT_REMOVE);
    rig.config.fault_workers = 1;
    rig.config.chunk_min = 16 * PAGE;
    return 0;
}

void rig_start(void)
{
    struct ibx_error err = {0};
    if (ibx_fault_create(&rig.config, &rig.engine, &err))
        fail_msg("%s", err.message);
}

void rig_serve(void)
{
    rig_start();
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
}

void rig_destroy_engine(void)
{
    ibx_fault_destroy(rig.engine);
    rig.engine = NULL;
}

int rig_end(void **state)
{
    (void)state;
    if (!rig.memory)
        return 0;
    rig_destroy_engine();
    close(rig.config.uffd);
    munmap(rig.memory, rig.data.length);
    if (rig.range.alias)
        munmap(rig.range.alias, rig.data.length);
    if (rig.file >= 0)
        close(rig.file);
    for (unsigned i = 0; i < READERS; i++)
        free(rig.readers[i]);
    free(rig.data.bytes);
    free((void *)rig.data.fetched);
    rig = (struct fault_rig){.file = -1};
    return 0;
}

bool page_is_right(uint64_t page)
{
    const size_t size = rig.data.page_size;
    return !memcmp(rig.memory + page * size, rig.data.bytes + page * size, size);
}

bool page_is_zero(uint64_t page)
{
    const uint8_t *p = rig.memory + page * rig.data.page_size;
    return !p[0] && !memcmp(p, p + 1, rig.data.page_size - 1);
}

struct ibx_fault_stats stats_now(void)
{
    struct ibx_fault_stats stats;
    ibx_fault_stats(rig.engine, &stats);
    return stats;
}

enum ibx_fault_state engine_settled(void)
{
    struct pollfd fd = {.fd = ibx_fault_event_fd(rig.engine), .events = POLLIN};
    uint64_t n;
    if (poll(&fd, 1, (int)patience_ms(20000)) == 1 && read(fd.fd, &n, sizeof n) < 0)
        return IBX_FAULT_HELD;
    return ibx_fault_state(rig.engine);
}

bool engine_reaches(size_t figure, uint64_t value)
{
    uint64_t deadline = ibx_deadline_in_ms(patience_ms(20000));
    while (true) {
        struct ibx_fault_stats stats = stats_now();
        uint64_t now;
        memcpy(&now, (char *)&stats + figure, sizeof now);
        if (now >= value)
            return true;
        if (ibx_now_ns() > deadline)
            return false;
        sched_yield();
    }
}

void everything_is_right(void)
{
    assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
    const struct ibx_fault_stats s = stats_now();
    assert_int_equal(s.present, PAGES);
    assert_int_equal(s.by_cause[IBX_FAULT_BY_FAULT] + s.by_cause[IBX_FAULT_BY_PREFETCH] +
                         s.by_cause[IBX_FAULT_BY_BACKGROUND] + s.by_cause[IBX_FAULT_BY_REMOVE],
                     PAGES);
}

/* ------------------------------------------------------------ who faults */

static void *look_main(void *argument)
{
    struct look *l = argument;
    const uint64_t pages = rig.data.length / rig.data.page_size;
    for (uint64_t i = 0, page = l->page; i < l->count; i++, page += l->step) {
        atomic_fetch_add(&l->right, page_is_right(page % pages));
        atomic_fetch_add(&l->zero, page_is_zero(page % pages));
        atomic_fetch_add(&l->looked, 1);
    }
    return NULL;
}

void look_start(struct look *look, uint64_t page, uint64_t count, uint64_t step)
{
    *look = (struct look){.page = page, .count = count, .step = step};
    assert_int_equal(pthread_create(&look->thread, NULL, look_main, look), 0);
}

void look_at(struct look *look, uint64_t page)
{
    look_start(look, page, 1, 0);
}

void look_sees_right(struct look *look)
{
    pthread_join(look->thread, NULL);
    assert_int_equal(look->right, look->count);
}

void look_sees_zero(struct look *look)
{
    pthread_join(look->thread, NULL);
    assert_int_equal(look->zero, look->count);
}

void touch(uint64_t page)
{
    struct look look;
    look_at(&look, page);
    look_sees_right(&look);
}
