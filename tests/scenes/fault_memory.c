/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "fault_memory.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint32_t next_random(uint32_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 17;
    *seed ^= *seed << 5;
    return *seed;
}

void memory_data_make(struct memory_data *data, size_t length, uint32_t page_size)
{
    uint32_t seed = 0x1234567;
    data->bytes = aligned_alloc(PAGE, length);
    data->length = length;
    data->page_size = page_size;
    data->fetched = calloc(length / page_size, sizeof *data->fetched);
    for (size_t i = 0; i < length; i += 4) {
        uint32_t v = next_random(&seed);
        memcpy(data->bytes + i, &v, 4);
    }
}

void memory_data_free(struct memory_data *data)
{
    free(data->bytes);
    free((void *)data->fetched);
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
    s->flying[s->count++] =
        (struct memory_flight){*r, delay ? next_random(&s->seed) % (delay + 1) : 0};
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

static struct ibx_fault_arrival answer(struct memory_reader *s, const struct ibx_fault_request *r)
{
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
    memcpy(r->buffer, s->data->bytes + r->offset, a.length);
    for (size_t i = 0; i < a.length / s->data->page_size; i++)
        atomic_fetch_add(&s->data->fetched[r->offset / s->data->page_size + i], 1);
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
        arrivals[n++] = answer(s, &f->request);
        *f = s->flying[--s->count];
    }
    return n;
}

const struct ibx_fault_reader_ops memory_reader_ops = {
    .request = request, .cancel = cancel, .poll = take};

struct ibx_fault_reader memory_reader_as(struct memory_reader *reader)
{
    return (struct ibx_fault_reader){.ops = &memory_reader_ops, .context = reader};
}

bool page_is_right(const struct memory_data *data, const uint8_t *memory, uint64_t page)
{
    return !memcmp(memory + page * data->page_size, data->bytes + page * data->page_size,
                   data->page_size);
}

bool page_is_zero(const uint8_t *memory, uint64_t page, uint32_t page_size)
{
    const uint8_t *p = memory + page * page_size;
    return !p[0] && !memcmp(p, p + 1, page_size - 1);
}

enum ibx_fault_state engine_settled(struct ibx_fault *engine)
{
    struct pollfd fd = {.fd = ibx_fault_event_fd(engine), .events = POLLIN};
    uint64_t n;
    if (poll(&fd, 1, 20000) == 1 && read(fd.fd, &n, sizeof n) < 0)
        return IBX_FAULT_HELD;
    return ibx_fault_state(engine);
}

bool engine_reaches(struct ibx_fault *engine, size_t figure, uint64_t value)
{
    uint64_t deadline = ibx_deadline_in_ms(20000);
    while (true) {
        struct ibx_fault_stats stats;
        uint64_t now;
        ibx_fault_stats(engine, &stats);
        memcpy(&now, (char *)&stats + figure, sizeof now);
        if (now >= value)
            return true;
        if (ibx_now_ns() > deadline)
            return false;
        sched_yield();
    }
}

bool reader_asked(const struct memory_reader *reader, unsigned n)
{
    uint64_t deadline = ibx_deadline_in_ms(20000);
    while (atomic_load(&reader->accepted) < n) {
        if (ibx_now_ns() > deadline)
            return false;
        sched_yield();
    }
    return true;
}
