/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What ib-migrate prints. The bar fits into one line and keeps the most important figures. */
#include "tools/ib-migrate/ib-migrate.h"
#include "tests/fixtures/unit.h"

#include <stdlib.h>

/* Replaces the function of result.c that prints JSON of records. */
void ibx_cli_result_failed(const char *sentence)
{
    (void)sentence;
}

static struct ibx_migrate_status filling(void)
{
    return (struct ibx_migrate_status){.phase = IBX_PHASE_FILLING,
                                       .path = "verbs mlx5_0 port 1",
                                       .ram_bytes = 4096ull * 1000,
                                       .pages = 1000,
                                       .present = 250,
                                       .bytes = 1024000,
                                       .bytes_per_second = 4096 * 10,
                                       .faults = 12,
                                       .faults_per_second = 34,
                                       .fault_p50_ns = 45600,
                                       .fault_p99_ns = 1234567};
}

static void is(const char *text, const char *whole)
{
    assert_string_equal(text, whole);
}

static const char *bar(const struct ibx_migrate_status *status, unsigned width)
{
    static char text[256];
    ibx_cli_bar(status, width, text, sizeof(text));
    return text;
}

static const char *phase_line(const struct ibx_migrate_status *status)
{
    static char text[1024];
    ibx_cli_phase_line(status, text, sizeof(text));
    return text;
}

static const char *vm_name(const struct ibx_record *record)
{
    static char text[128];
    ibx_cli_vm_name(record, text, sizeof(text));
    return text;
}

static void test_bytes(NO_STATE)
{
    char text[32];
    const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {{0, "0 B"},
                 {1023, "1023 B"},
                 {1024, "1.0 KiB"},
                 {1536, "1.5 KiB"},
                 {102400, "100 KiB"},
                 {64ull << 20, "64.0 MiB"},
                 {3ull << 40, "3.0 TiB"},
                 {UINT64_MAX, "16777216 TiB"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        ibx_cli_bytes(cases[i].bytes, text, sizeof(text));
        is(text, cases[i].text);
    }
}

static void test_duration(NO_STATE)
{
    char text[32];
    const struct {
        uint64_t ns;
        const char *text;
    } cases[] = {{0, "0 ns"},
                 {7, "7 ns"},
                 {999, "999 ns"},
                 {1000, "1.00 us"},
                 {45600, "45.6 us"},
                 {123456, "123 us"},
                 {12345678, "12.3 ms"},
                 {4310000000, "4.31 s"},
                 {3600000000000, "3600 s"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        ibx_cli_duration(cases[i].ns, text, sizeof(text));
        is(text, cases[i].text);
    }
}

static void test_vm(NO_STATE)
{
    struct ibx_record record = {.qmp = "/run/q", .uuid = "00000000-0000-0000-0000-000000000000"};
    is(vm_name(&record), "VM at /run/q");
    snprintf(record.uuid, sizeof(record.uuid), "10000000-0000-0000-0000-000000000000");
    is(vm_name(&record), "10000000-0000-0000-0000-000000000000");
    snprintf(record.name, sizeof(record.name), "web\033[2J");
    is(vm_name(&record), "web?[2J");
    snprintf(record.name, sizeof(record.name),
             "K\u00f6ln \u65e5\u672c\xc2\x9b"); /* CSI as one byte */
    is(vm_name(&record), "K\u00f6ln \u65e5\u672c??");
}

static void test_wide_bar(NO_STATE)
{
    struct ibx_migrate_status status = filling();
    is(bar(&status, 200),
       "filling  [#####---------------] 25%  750 pages left  40.0 KiB/s  34 faults/s  "
       "p50 45.6 us p99 1.23 ms  1:15 left");
}

/* The source learns that pages have faulted before it learns how long that took. */
static void test_bar_before_latencies(NO_STATE)
{
    struct ibx_migrate_status status = filling();
    status.fault_p50_ns = status.fault_p99_ns = 0;
    is(bar(&status, 200),
       "filling  [#####---------------] 25%  750 pages left  40.0 KiB/s  34 faults/s  1:15 left");
}

/* A VM that has returned home was not shut down. */
static void test_ended(NO_STATE)
{
    struct ibx_migrate_status status = {.phase = IBX_PHASE_ENDED};
    is(phase_line(&status), "ended: the guest has shut the VM down at the destination");
    status.record.borrow = IBX_BORROW_LAZY;
    snprintf(status.record.vm_status, sizeof(status.record.vm_status), IBX_JOURNAL_RETURNED);
    is(phase_line(&status), "ended: the VM was borrowed and has returned");
}

/* When no pages arrive, the bar says so in place of the rate. */
static void test_silent_bar(NO_STATE)
{
    struct ibx_migrate_status status = filling();
    status.bytes_per_second = 0;
    status.silent_ns = 12600000000;
    is(bar(&status, 80), "filling  [#####---------------] 25%  750 pages left  nothing for 12 s");
}

/* The bar fits at every width, and drops the most important figures last. */
static void test_narrow_bars(NO_STATE)
{
    struct ibx_migrate_status status = filling();
    for (unsigned width = 1; width < 130; width++) {
        assert_in_range(strlen(bar(&status, width)), 1, width);
    }
    is(bar(&status, 90),
       "filling  [#####---------------] 25%  750 pages left  40.0 KiB/s  34 faults/s  "
       "1:15 left");
    is(bar(&status, 80),
       "filling  [#####---------------] 25%  750 pages left  40.0 KiB/s  1:15 left");
    is(bar(&status, 60), "filling  750 pages left  40.0 KiB/s  1:15 left");
    is(bar(&status, 40), "filling  750 pages left  1:15 left");
    is(bar(&status, 25), "filling  750 pages left");
    is(bar(&status, 10), "filling");
    is(bar(&status, 4), "fill");
}

/* A source learns from its destination which pages were sent before the stop, or were left there
 * by a returning VM. Before that the text calls none of them missing. */
static void test_pages_that_are_there(NO_STATE)
{
    struct ibx_migrate_status status = filling();
    status.source = true;
    status.present = 0;
    is(phase_line(&status),
       "filling: the VM runs at the destination, at most 1000 pages to fetch over verbs mlx5_0 "
       "port 1");
    is(bar(&status, 200), "filling  40.0 KiB/s  34 faults/s  p50 45.6 us p99 1.23 ms");
    status.present = 990;
    text_has(phase_line(&status), ", 10 pages to fetch over verbs");
    text_has(bar(&status, 200), "99%  10 pages left");
    status.source = false;
    status.present = 0;
    text_has(phase_line(&status), ", 1000 pages to fetch over verbs");
}

/* Pages that a borrowed VM does not need are not fetched, so it is unknown when the last one
 * will arrive. */
static void test_bar_of_a_borrowed_vm(NO_STATE)
{
    struct ibx_migrate_status status = filling();
    status.record.borrow = IBX_BORROW_LAZY;
    is(bar(&status, 90), "filling  [#####---------------] 25%  750 pages left  40.0 KiB/s  34 "
                         "faults/s");
    status.record.borrow = IBX_BORROW_FILL;
    text_has(bar(&status, 90), "  1:15 left");
}

static void test_bar_without_figures(NO_STATE)
{
    struct ibx_migrate_status status = filling();
    status.faults = 0;
    status.bytes_per_second = 0;
    status.now_ns = 5000000000;
    const char *text = bar(&status, 200);
    assert_null(strstr(text, "p50"));
    assert_null(strstr(text, "1:15"));
    text_has(text, "0 B/s"); /* no pages arrive */
    status.faults_per_second = 0;
    /* the transfer may have just started, so the rate is unknown */
    status.now_ns = status.began_ns + 900000000;
    assert_null(strstr(bar(&status, 200), "/s"));
    status.present = 0; /* the bar and the number of pages agree */
    status.zero_pages = 600;
    text_has(bar(&status, 200), "[############--------] 60%  400 pages left");
    status.present = 2000; /* a peer may send any number */
    text_has(bar(&status, 200), "[####################] 100%  0 pages left");
    status.pages = 0;
    text_has(bar(&status, 200), "filling");
}

static void test_bar_of_other_phases(NO_STATE)
{
    struct ibx_migrate_status status = {.phase = IBX_PHASE_RECONNECTING,
                                        .message = "the link is down\n\033[31m",
                                        .began_ns = 1,
                                        .now_ns = 67000000001};
    is(bar(&status, 200), "1:07  reconnecting: the link is down??[31m");
    is(bar(&status, 20), "1:07  reconnecting: ");
}

static void test_phase_lines(NO_STATE)
{
    struct ibx_migrate_status status = filling();
    snprintf(status.record.uri, sizeof(status.record.uri), "tcp://0.0.0.0:18600");
    is(phase_line(&status),
       "filling: the VM runs at the destination, 750 pages to fetch over verbs mlx5_0 "
       "port 1");
    status.zero_pages = 300; /* the source knows them before the destination has counted any */
    text_has(phase_line(&status), " 700 pages");
    status.phase = IBX_PHASE_WAITING;
    is(phase_line(&status), "waiting for a source at tcp://0.0.0.0:18600");
    status.source = true;
    text_has(phase_line(&status), "waiting for the destination at tcp://0.0.0.0:18600");
    struct ibx_migrate_status again = {.phase =
                                           IBX_PHASE_FILLING}; /* before anything was checked */
    is(phase_line(&again), "filling: the VM runs at the destination");
    again.phase = IBX_PHASE_RECONNECTING;
    is(phase_line(&again), "reconnecting: waiting for the other side to connect");
    again.phase = IBX_PHASE_FILLING;
    strcpy(again.record.vm_status, "paused");
    is(phase_line(&again), "filling: the VM is \"paused\" at the destination");
    again = (struct ibx_migrate_status){.phase = IBX_PHASE_PREPARING, .ram_bytes = 64 << 20};
    is(phase_line(&again), "preparing: the VM is at the source, 64.0 MiB");
    again.phase = IBX_PHASE_WARMING;
    is(phase_line(&again), "warming: the VM is at the source"); /* no page map has arrived */
    again.source = true;
    is(phase_line(&again), "warming: the VM is paused at the source");
    again.pages = 40;
    again.present = 7;
    is(phase_line(&again),
       "warming: the VM is paused at the source, 7 of 40 pages are at the destination");
    again.record.was_running = true;
    text_has(phase_line(&again), "warming: the VM runs at the source, ");
    const char *const words[] = {"waiting",      "preparing", "warming", "switching", "filling",
                                 "reconnecting", "done",      "ended",   "failed"};
    for (int phase = IBX_PHASE_WAITING; phase <= IBX_PHASE_FAILED; phase++) {
        status.phase = (enum ibx_migrate_phase)phase;
        assert_memory_equal(phase_line(&status), words[phase], strlen(words[phase]));
    }
}

static char *summary_of(const struct ibx_migrate_status *status)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    ibx_cli_summary(out, status);
    fclose(out);
    return text;
}

static void test_summary(NO_STATE)
{
    struct ibx_migrate_status status = filling();
    status.zero_pages = 100;
    status.downtime_ns = 12345678;
    status.map_ns = 2000000;
    status.commit_ns = 1300000;
    status.total_ns = 4310000000;
    status.register_ns = 210000000;
    status.fault_max_ns = 4100000;
    status.fault_sum_ns = 120000000;
    status.source_cpu_ns = 3000000;
    status.state_bytes = 640 << 10;
    status.warm_bytes = 700 << 10;
    status.warm_pages = 150;
    status.reconnects = 2;
    char *text = summary_of(&status);
    text_has(text, "downtime           12.3 ms (map 2.00 ms, resume 1.30 ms)\n");
    text_has(text,
             "total time         4.31 s, including 210 ms to register memory before the stop\n");
    text_has(text,
             "faults             12, p50 45.6 us, p99 1.23 ms, max 4.10 ms, together 120 ms\n");
    text_has(text, "zero pages         100 of 1000 (10%), not sent\n");
    text_has(text, "bytes on the wire  1000 KiB of pages over verbs mlx5_0 port 1\n");
    text_has(text,
             "before the stop    700 KiB of pages; 150 pages had not changed again when the VM "
             "stopped\n");
    text_has(text, "device state       640 KiB\n");
    text_has(text, "source CPU         3.00 ms\n");
    text_has(text, "reconnections      2\n");
    free(text);
}

/* Unknown figures are left out. */
static void test_summary_of_little(NO_STATE)
{
    struct ibx_migrate_status status = {.began_ns = 5, .now_ns = 1005};
    char *text = summary_of(&status);
    is(text, "  total time         1.00 us\n  faults             0\n");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_duration),
        cmocka_unit_test(test_vm),
        cmocka_unit_test(test_wide_bar),
        cmocka_unit_test(test_bar_before_latencies),
        cmocka_unit_test(test_ended),
        cmocka_unit_test(test_silent_bar),
        cmocka_unit_test(test_narrow_bars),
        cmocka_unit_test(test_pages_that_are_there),
        cmocka_unit_test(test_bar_of_a_borrowed_vm),
        cmocka_unit_test(test_bar_without_figures),
        cmocka_unit_test(test_bar_of_other_phases),
        cmocka_unit_test(test_phase_lines),
        cmocka_unit_test(test_summary),
        cmocka_unit_test(test_summary_of_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
