/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What is known of events, however many of them there are, and of work that is left in streams. */
#include "frontend-glue/call_pipeline/internal.h"

#include "frontend-glue/session/extensions.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
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

/* A copy that waits says nothing about non-blocking streams, but a wait for the device does. */
static void work_in_all_streams(void **state)
{
    (void)state;
    ibx_process_facts_clear();
    assert_true(ibx_process_all_rests());
    ibx_process_work(IBX_LEAVES_IN_STREAM);
    const struct ibx_left first = ibx_process_left();
    ibx_process_settled(first);
    assert_true(ibx_process_rests() && !ibx_process_all_rests());
    ibx_process_work(IBX_LEAVES_IN_STREAM);
    ibx_process_all_settled(first);
    assert_false(ibx_process_all_rests());
    ibx_process_all_settled(ibx_process_left());
    assert_true(ibx_process_all_rests());
    ibx_process_work(IBX_LEAVES_NOTHING);
    assert_true(ibx_process_all_rests());
    ibx_process_select(); /* each device has its own */
    ibx_process_all_settled(ibx_process_left());
    assert_false(ibx_process_all_rests());
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

#define BYTES(...)  .body = {__VA_ARGS__}, .n = sizeof((uint8_t[]){__VA_ARGS__})
#define NUMBER(low) low, 0, 0, 0, 0, 0, 0, 0
#define OWN_STREAM  0x80, 0x70, 0x60, 0x50, 0x40, 0x55, 0, 0
#define LEGACY      NUMBER(0)
#define DEVICE      0, 0x10, 0x32, 0x54, 0x76, 0x7f, 0, 0
#define KIND(kind)  kind, 0, 0, 0

/* Requests as GVirtuS makes them; each is a copy of 5 bytes, if it is one. */
static void what_requests_leave_and_settle(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint8_t body[40];
        size_t n;
        enum ibx_leaves leaves;
        enum ibx_settles settles;
    } requests[] = {
        {"cudaDeviceSynchronize", .settles = IBX_SETTLES_ALL},
        {"cudaStreamSynchronize", BYTES(LEGACY), .settles = IBX_SETTLES_LEGACY},
        {"cudaStreamQuery", BYTES(LEGACY), .settles = IBX_SETTLES_LEGACY},
        {"cudaStreamSynchronize", BYTES(OWN_STREAM)},
        {"cudaEventSynchronize", BYTES(DEVICE)},
        {"cudaMemcpy", BYTES(NUMBER(1), 0, DEVICE, NUMBER(5), KIND(2)),
         .settles = IBX_SETTLES_ORDERED},
        {"cudaMemcpy", BYTES(NUMBER(1), 0, DEVICE, NUMBER(0), KIND(2))},
        {"cudaMemcpy", BYTES(DEVICE, NUMBER(5), 1, 2, 3, 4, 5, NUMBER(5), KIND(1))},
        {"cudaMemcpy", BYTES(DEVICE, DEVICE, NUMBER(5), KIND(3)), .leaves = IBX_LEAVES_IN_LEGACY},
        {"cudaMemset", BYTES(DEVICE, KIND(7), NUMBER(5)), .leaves = IBX_LEAVES_IN_LEGACY},
        {"cudaMemsetAsync", BYTES(DEVICE, KIND(7), NUMBER(5), LEGACY),
         .leaves = IBX_LEAVES_IN_LEGACY},
        {"cudaMemsetAsync", BYTES(DEVICE, KIND(7), NUMBER(5), OWN_STREAM),
         .leaves = IBX_LEAVES_IN_STREAM},
        {"cudaGraphLaunch", BYTES(DEVICE, LEGACY), .leaves = IBX_LEAVES_IN_LEGACY},
        {"cudaGraphLaunch", BYTES(DEVICE, OWN_STREAM), .leaves = IBX_LEAVES_IN_STREAM},
        {"cudaEventRecord", BYTES(DEVICE, LEGACY)},
        {"cublasSetStream_v2", BYTES(DEVICE, OWN_STREAM), .leaves = IBX_LEAVES_IN_STREAM},
        {"cudaMalloc", BYTES(NUMBER(5))},
        {"cudaFree", BYTES(DEVICE)},
        {IBX_EXT_NAME, BYTES(IBX_EXT_STREAM_FLAGS, 0, LEGACY), .leaves = IBX_LEAVES_IN_STREAM},
        {IBX_EXT_NAME, BYTES(IBX_EXT_FREE_ASYNC, 0, DEVICE, OWN_STREAM),
         .leaves = IBX_LEAVES_IN_STREAM},
        {IBX_EXT_NAME, BYTES(IBX_EXT_MEMSET_2D, 0), .leaves = IBX_LEAVES_IN_LEGACY},
        {"cublasSdot_v2", .leaves = IBX_LEAVES_IN_LEGACY}, /* nobody knows where */
    };
    for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
        const uint8_t *body = requests[i].body;
        const struct ibx_call *call = ibx_call_find(requests[i].name, strlen(requests[i].name) + 1);
        if (ibx_request_leaves(call, body, requests[i].n) != requests[i].leaves ||
            ibx_request_settles(call, body, requests[i].n) != requests[i].settles)
            fail_msg("request %zu, %s", i, requests[i].name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(very_many_events_cost_little_more_each),
        cmocka_unit_test(work_in_the_legacy_stream),
        cmocka_unit_test(work_in_legacy_streams_of_several_devices),
        cmocka_unit_test(work_in_all_streams),
        cmocka_unit_test(what_requests_leave_and_settle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
