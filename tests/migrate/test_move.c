/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A running VM moved by ib-migrate, two commands, between QEMUs of this host. */
#include "tests/migrate/mover.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BEATS 40

static struct vm vms[2];

static void heartbeats(const struct vm *const *of, const char *options)
{
    char said[256];
    int rc = vm_expect(of, options, said, sizeof(said));
    if (rc)
        fail_msg("expect: %d %s", rc, said);
}

/* The VM runs and is right at the destination, and the source stands still for good. */
static void arrived(struct vm *from, struct vm *to, const char *options)
{
    unsigned long at = vm_beats(to);
    vm_wait_beats(to, at + BEATS);
    heartbeats((const struct vm *[]){from, to, NULL}, options);
    json_t *status = vm_run(from, "query-status", NULL);
    assert_false(json_is_true(json_object_get(status, "running")));
    json_decref(status);
}

static void start_both(const struct vm_options *like)
{
    struct vm_options options = *like;
    mover_begin();
    vm_start(&vms[0], &options);
    options.incoming = true;
    vm_start(&vms[1], &options);
    vm_wait_beats(&vms[0], BEATS);
}

static void check_summary(const struct mover *sender)
{
    json_t *summary = mover_summary(sender);
    assert_non_null(summary);
    json_int_t pages = json_integer_value(json_object_get(summary, "pages"));
    assert_int_equal(pages, VM_RAM_MIB << 20 >> 12);
    assert_int_equal(json_integer_value(json_object_get(summary, "present_pages")), pages);
    assert_true(json_integer_value(json_object_get(summary, "downtime_ns")) > 0);
    print_message("downtime %.1f ms, %" JSON_INTEGER_FORMAT " faults, p50 %.0f us, p99 %.0f us\n",
                  (double)json_integer_value(json_object_get(summary, "downtime_ns")) / 1e6,
                  json_integer_value(json_object_get(summary, "faults")),
                  (double)json_integer_value(json_object_get(summary, "fault_p50_ns")) / 1e3,
                  (double)json_integer_value(json_object_get(summary, "fault_p99_ns")) / 1e3);
    json_decref(summary);
}

static void moved(const struct vm_options *like, const char *uri, const char *const *receive_more,
                  const char *const *send_more)
{
    struct mover receiver, sender;
    start_both(like);
    mover_receive(&receiver, &vms[1], uri, receive_more);
    mover_send(&sender, &vms[0], receiver.uri, send_more);
    mover_ends(&sender, 0);
    mover_ends(&receiver, 0);
    check_summary(&sender);
    arrived(&vms[0], &vms[1], like->append);
}

static void test_tcp(void **state)
{
    (void)state;
    moved(&(struct vm_options){.append = "mib=32"}, "tcp://127.0.0.1:0", NULL, NULL);
}

int main(void)
{
    int skipped = vm_available();
    if (skipped)
        return skipped;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_tcp, mover_end_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
