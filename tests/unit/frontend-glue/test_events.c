/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What is known of events, however many of them there are, and of work that is left in streams. */
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

/* What is left in the legacy stream itself is known apart from the rest. */
static void work_in_the_legacy_stream(void **state)
{
    (void)state;
    ibx_process_facts_clear();
    ibx_process_work(IBX_LEAVES_NOTHING);
    assert_true(ibx_process_rests() && ibx_process_legacy_rests());
    ibx_process_work(IBX_LEAVES_IN_STREAM);
    assert_true(!ibx_process_rests() && ibx_process_legacy_rests());
    const struct ibx_left first = ibx_process_left();
    ibx_process_work(IBX_LEAVES_IN_LEGACY);
    const struct ibx_left second = ibx_process_left();
    ibx_process_legacy_settled(first.in_legacy);
    assert_false(ibx_process_legacy_rests());
    ibx_process_legacy_settled(second.in_legacy);
    ibx_process_legacy_settled(first.in_legacy); /* is heard late */
    assert_true(!ibx_process_rests() && ibx_process_legacy_rests());
    ibx_process_settled(first);
    assert_false(ibx_process_rests());
    ibx_process_settled(second);
    assert_true(ibx_process_rests());
    ibx_process_work(IBX_LEAVES_IN_LEGACY);
    ibx_process_settled(ibx_process_left());
    assert_true(ibx_process_rests() && ibx_process_legacy_rests());
}

/* One of them is not that of another device. */
static void work_in_legacy_streams_of_several_devices(void **state)
{
    (void)state;
    ibx_process_facts_clear();
    ibx_process_work(IBX_LEAVES_IN_LEGACY);
    ibx_process_select();
    ibx_process_settled(ibx_process_left());
    assert_false(ibx_process_legacy_rests());
    ibx_process_facts_clear();
    assert_true(ibx_process_legacy_rests());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(very_many_events_cost_little_more_each),
        cmocka_unit_test(work_in_the_legacy_stream),
        cmocka_unit_test(work_in_legacy_streams_of_several_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
