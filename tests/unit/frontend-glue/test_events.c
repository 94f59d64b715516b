/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What is known of events, however many of them there are. */
#include "frontend-glue/call_pipeline/internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <time.h>
#include <cmocka.h>

#define FEW  500u
#define MANY 400000u

static uint64_t event_of(unsigned i)
{
    return 0x7f0000000000u + (uint64_t)i * 0x90;
}

static uint64_t cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* What each of n events costs, ns. */
static uint64_t cost_of(unsigned n)
{
    const uint64_t begun = cpu_ns();
    for (unsigned i = 0; i < n; i++)
        ibx_events_add(event_of(i));
    for (unsigned i = 0; i < n; i++) {
        const struct ibx_event_use use = {1, i + 1};
        struct ibx_event_use last = {0, 0};
        ibx_events_use(event_of(i), &use);
        ibx_events_record(event_of(i), &use);
        assert_true(ibx_events_last(event_of(i), &last) && last.number == i + 1);
    }
    for (unsigned i = 0; i < n; i += 2)
        ibx_events_remove(event_of(i));
    for (unsigned i = 0; i < n; i++)
        assert_int_equal(ibx_events_made(event_of(i)) != 0, i % 2);
    ibx_events_clear();
    return (cpu_ns() - begun) / n;
}

static void very_many_events_cost_little_more_each(void **state)
{
    uint64_t few = UINT64_MAX;
    (void)state;
    for (unsigned i = 0; i < 20; i++) {
        const uint64_t cost = cost_of(FEW);
        few = cost < few ? cost : few;
    }
    const uint64_t many = cost_of(MANY);
    print_message("each of %u events: %llu ns; of %u: %llu\n", FEW, (unsigned long long)few, MANY,
                  (unsigned long long)many);
    assert_true(many < 20 * few);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(very_many_events_cost_little_more_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
