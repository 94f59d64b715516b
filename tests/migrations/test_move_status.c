/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The VM at the destination runs, is paused, was shut down by its guest, or somebody has ended its
 * QEMU: both tools report that, and nothing else.
 */
#include "tests/fixtures/mover.h"
#include "tests/fixtures/patience.h"

#include "common/clock.h"

/* Both QEMUs, the destination's with one more option, and neither with tools. */
static void start(const char *append, const char *more)
{
    mover_begin();
    vm_start(&vms[0], &(struct vm_options){.append = append});
    vm_start(&vms[1],
             &(struct vm_options){.append = append, .incoming = true, .extra = {more, NULL}});
    vm_wait_beats(&vms[0], pair_beats);
}

static const char *text_of(const json_t *summary, const char *name)
{
    const char *text = json_string_value(json_object_get(summary, name));
    return text ? text : "";
}

/* The last line of both. */
static void both_report(const char *status, bool downtime)
{
    const struct mover *const both[] = {&sender, &receiver};
    for (unsigned i = 0; i < 2; i++) {
        json_t *summary = mover_summary(both[i]);
        assert_string_equal(text_of(summary, "vm_status"), status);
        assert_string_equal(text_of(json_object_get(summary, "record"), "vm_status"), status);
        assert_int_equal(json_is_integer(json_object_get(summary, "downtime_ns")),
                         downtime && both[i] == &sender);
        json_decref(summary);
    }
}

static void is_paused(struct vm *vm, bool yes)
{
    char text[128];
    vm_hmp(vm, "info status", text, sizeof(text));
    if (yes != !!strstr(text, "paused"))
        fail_msg("%s", text);
}

/* ------------------------------------------------------------ it runs, or is paused */

/* libvirt starts every QEMU so: the VM that ran goes on by itself. */
static void test_runs_though_started_paused(void)
{
    start("", "-S");
    pair_run(NULL);
    pair_done();
    both_report("running", true);
    pair_moved("");
}

static void stays_paused(const char *words)
{
    pair_done();
    both_report("paused", false);
    is_paused(&vms[1], true);
    mover_must_print(MOVER_RUN(0, "status", "--qmp", vms[1].tool), words);
    mover_must_print(MOVER_RUN(0, "status", "--qmp", vms[0].tool), "was \"paused\"");
    assert_int_equal(vm_beats(&vms[1]), 0);
    vm_do(&vms[1], "cont", NULL);
    pair_moved("");
}

/* Or it does not, when that was wished. */
static void test_to_stay_paused(void)
{
    start("", "-S");
    pair_run((const char *[]){"--paused", NULL});
    stays_paused("was \"paused\" when QEMU was last asked, and is here");
}

static void test_to_stay_paused_in_a_qemu_that_starts(void)
{
    start("", NULL);
    pair_run((const char *[]){"--paused", NULL});
    pair_done();
    both_report("paused", false);
    is_paused(&vms[1], true);
    vm_do(&vms[1], "cont", NULL);
    pair_moved("");
}

/* A VM that was paused before the move is paused after it, and its pause does not count as
 * downtime. */
static void test_paused_at_the_source(void)
{
    static const char *const more[] = {NULL, "-S"};
    for (unsigned i = 0; i < 2; i++) {
        start("", more[i]);
        vm_do(&vms[0], "stop", NULL);
        pair_run(NULL);
        stays_paused("paused");
        mover_end_all(NULL);
    }
}

/* It was paused by somebody between the check and the stop. */
static void test_paused_meanwhile(void)
{
    start("", "-S");
    pair_run_to("source:exposing", NULL);
    vm_do(&vms[0], "stop", NULL);
    mover_kill(&sender, SIGCONT);
    stays_paused("paused");
}

/* A receiver that dies between the load and the `cont`: the next one learns from the source that
 * the VM is to run. */
static void test_killed_before_it_was_continued(void)
{
    start("", "-S");
    pair_run_to("destination:loaded", NULL);
    mover_kill(&receiver, SIGKILL);
    is_paused(&vms[1], true);
    pair_recover(&receiver);
    pair_done();
    both_report("running", false);
    pair_moved("");
}

static void falls_asleep(void)
{
    vm_do(&vms[0], "system_powerdown", NULL);
    json_decref(vm_event(&vms[0], "SUSPEND", NULL));
}

/* A VM that sleeps is not left stopped when its migration fails: nothing would wake it any more.
 * QEMU 7.2 has woken it as it stopped it; later versions would end by an assertion if it were
 * continued. */
static void test_asleep(void)
{
    pair_start(&(struct vm_options){.append = "button=3"});
    vm_do(&vms[0], "set-action", json_pack("{s:s}", "reboot", "reset")); /* no place to wake at */
    falls_asleep();
    if (ibx_qmp_sleeps_on(ibx_qmp_version(vms[0].qmp))) {
        pair_receive(NULL);
        pair_send(NULL);
        mover_ends(&sender, 1);
        mover_must_print(&sender, "wake it (system_wakeup");
        vm_do(&vms[0], "system_wakeup", NULL);
        return;
    }
    pair_run_to("destination:waiting", NULL); /* so QEMU has written its state */
    mover_kill(&sender, SIGKILL);
    mover_await_watchdog(&sender, "ended before the commit");
    mover_kill(&receiver, SIGKILL);
    assert_true(vm_runs(&vms[0]));
}

static void test_asleep_meanwhile(void)
{
    pair_start(&(struct vm_options){.append = "button=3"});
    vm_do(&vms[0], "set-action", json_pack("{s:s}", "reboot", "reset"));
    pair_run_to("source:exposing", NULL);
    falls_asleep();
    mover_kill(&sender, SIGCONT);
    if (ibx_qmp_sleeps_on(ibx_qmp_version(vms[0].qmp))) {
        mover_ends(&sender, 1);
        mover_must_print(&sender, "gone to sleep (S3) while it was being migrated");
        mover_ends(&receiver, 1);
        vm_do(&vms[0], "system_wakeup", NULL);
        return;
    }
    mover_await(&sender, "filling", 0); /* it wakes there, and is reset */
}

/* A pause while pages are missing is the operator's. */
static void test_paused_while_filling(void)
{
    pair_filling(NULL, NULL);
    vm_do(&vms[1], "stop", NULL);
    mover_await_words(&sender, "\"vm_status\":\"paused\"");
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    pair_done();
    both_report("paused", true);
    vm_do(&vms[1], "cont", NULL);
    pair_moved("");
}

/* ------------------------------------------------------------ its guest shuts it down */

/* Goes on until the destination runs the VM without nearly all of its pages, then presses the power
 * button there. */
static void press(const char *append, const char *more)
{
    start(append, more);
    pair_run((const char *[]){"--max-bandwidth", HARDLY, NULL});
    mover_await(&receiver, "filling", 0);
    mover_await(&sender, "filling", 0);
    vm_do(&vms[1], "system_powerdown", NULL);
}

static void on_record(const struct vm *vm, const char *state)
{
    struct mover *status = MOVER_RUN(0, "status", "--qmp", vm->tool, "--json");
    char words[64];
    snprintf(words, sizeof(words), "\"state\":\"%s\",\"over\":%s", state,
             !strcmp(state, "ended") ? "true" : "false");
    mover_must_print(status, words);
    mover_must_print(status, "shut down by its guest");
}

/* Both tools are satisfied, and nobody continues the VM. */
static void has_ended(void)
{
    mover_ends(&sender, 4);
    mover_ends(&receiver, 4);
    both_report("guest-shutdown", !mover_printed(&sender, "connected again"));
    json_t *summary = mover_summary(&sender);
    assert_string_equal(text_of(summary, "phase"), "ended");
    assert_true(json_is_false(json_object_get(summary, "complete")));
    json_decref(summary);
    on_record(&vms[0], "ended");
    on_record(&vms[1], "ended");
    assert_false(vm_runs(&vms[0]));
    struct mover *prune = MOVER_RUN(0, "prune");
    mover_must_print(prune, "its QEMU lives and must not be continued");
    mover_must_print(prune, "deleted");
    struct mover *rollback = MOVER_RUN(1, "rollback", "--yes", "--qmp", vms[0].tool);
    mover_must_print(rollback, "no unfinished");
}

static void test_runs_until_shut_down(void)
{
    press("button=1", NULL);
    vm_await_end(&vms[1]);
    has_ended();
    mover_must_print(&receiver, "the guest has shut the VM down");
    assert_false(mover_printed(&receiver, "rollback"));
}

/* A manager ends a QEMU that stays after the shutdown: the first of both counts. */
static void test_shut_down_and_ended(void)
{
    press("button=1", "-no-shutdown");
    json_decref(vm_event(&vms[1], "SHUTDOWN", NULL));
    mover_await_words(&sender, "\"vm_status\":\"shutdown\"");
    kill(vms[1].pid, SIGTERM);
    vm_await_end(&vms[1]);
    has_ended();
}

/* Both tools are lost before the source has heard of it. */
static void test_shut_down_unheard(void)
{
    mover_stop_next("destination:shut down");
    press("button=1", NULL);
    mover_await_stop(&receiver);
    mover_kill(&sender, SIGKILL);
    mover_kill(&receiver, SIGKILL);
    on_record(&vms[1], "shut-down");
    vm_await_end(&vms[1]);
    pair_recover(&receiver);
    mover_await_words(&receiver, "only the source's confirmation of that is missing");
    struct mover *rollback = MOVER_RUN(1, "rollback", "--yes", "--qmp", vms[0].tool, TIMED);
    mover_must_print(rollback, "shut it down there");
    pair_recover(&sender);
    has_ended();
}

/* ------------------------------------------------------------ others end it */

/* QEMU stays, with a VM that is shut down: the move goes on, and says so. */
static void test_shut_down_and_kept(void)
{
    press("button=1", "-no-shutdown");
    json_decref(vm_event(&vms[1], "SHUTDOWN", NULL));
    mover_await_words(&sender, "\"vm_status\":\"shutdown\"");
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    pair_done();
    both_report("shutdown", true);
    mover_must_print(MOVER_RUN(0, "status", "--qmp", vms[1].tool), "was \"shutdown\"");
}

/* The source keeps everything, since it may be wanted back. */
static void is_kept(const char *words, const char *reason)
{
    vm_await_end(&vms[1]);
    mover_ends(&receiver, 3);
    mover_must_print(&receiver, words);
    mover_must_print(&receiver, "rollback at the source");
    mover_must_print(MOVER_RUN(0, "status", "--qmp", vms[1].tool), reason);
    mover_ends(&sender, 3);
    mover_must_print(&sender, "where its QEMU has ended");
    MOVER_RUN(0, "rollback", "--yes", "--qmp", vms[0].tool, TIMED);
    pair_runs_at_the_source();
    /* This side does not know of the rollback. */
    mover_must_print(MOVER_RUN(0, "status", "--qmp", vms[1].tool),
                     "unless ib-migrate status there says that this was done");
    mover_must_print(
        MOVER_RUN(6, "recover", "--qmp", vms[1].tool, "--listen", "rdma://127.0.0.1:0", TIMED),
        "unless ib-migrate status there says that this was done");
    mover_end_all(NULL);
}

static void filling(const char *append, const char *more)
{
    start(append, more);
    pair_run((const char *[]){"--max-bandwidth", HARDLY, NULL});
    mover_await(&receiver, "filling", 0);
}

static void test_ended_by_others(void)
{
    filling("", NULL);
    vm_do(&vms[1], "quit", NULL);
    is_kept("told to quit by a client of its monitor", "(host-qmp-quit)");
    filling("", NULL);
    kill(vms[1].pid, SIGTERM);
    is_kept("ended by a signal", "(host-signal)");
    filling("", NULL);
    vm_do(&vms[1], "system_reset", NULL);
    is_kept("a client of its monitor reset it", "(host-qmp-system-reset)");
    filling("", NULL);
    kill(vms[1].pid, SIGKILL);
    is_kept("is gone", "has ended;");
}

static void filling_with(const struct vm_options *options)
{
    struct vm_options incoming = *options;
    incoming.incoming = true;
    vm_start(&vms[0], options);
    vm_start(&vms[1], &incoming);
    vm_wait_beats(&vms[0], pair_beats);
    pair_run((const char *[]){"--max-bandwidth", HARDLY, NULL});
    mover_await(&receiver, "filling", 0);
}

/* The cause may be the memory that came: the source's memory is worth keeping. */
static void test_panicked(void)
{
    mover_begin();
    filling_with(&(struct vm_options){.append = "button=2", .extra = {"-device", "pvpanic"}});
    vm_do(&vms[1], "system_powerdown", NULL);
    is_kept("its guest panicked", "(guest-panic)");
}

/* As a guest would that sets its watchdog to expire at once. QEMU may end before it answers. */
static void watchdog_expires(struct vm *vm)
{
    ibx_qmp_execute(vm->qmp, "human-monitor-command",
                    json_pack("{s:s}", "command-line", "o /b 0x443 0xf"), NULL,
                    ibx_deadline_in_ms(patience_ms(20000)), NULL);
}

/* QEMU ends at once, and does not say that it shuts down. */
static void test_ended_by_its_watchdog(void)
{
    mover_begin();
    filling_with(
        &(struct vm_options){.extra = {"-device", "ib700", "-action", "watchdog=poweroff"}});
    watchdog_expires(&vms[1]);
    is_kept("its watchdog ended its QEMU", "(guest-watchdog)");
}

/* QEMU gives the reason of a restart by the guest for a reset by the watchdog. */
static void test_reset_by_its_watchdog(void)
{
    mover_begin();
    filling_with(&(struct vm_options){.extra = {"-device", "ib700", "-no-reboot"}});
    watchdog_expires(&vms[1]);
    is_kept("its watchdog reset it", "(guest-watchdog-reset)");
}

#define PAUSING "-device", "ib700", "-action", "watchdog=pause"

/* Nobody has paused the VM, so both tools say why it does not run, and the pages come. */
static void test_paused_by_its_watchdog(void)
{
    mover_begin();
    filling_with(&(struct vm_options){.extra = {PAUSING}});
    watchdog_expires(&vms[1]);
    mover_await_words(&receiver, "the VM is stopped here (\"watchdog\"): its watchdog");
    mover_await_words(&sender, "the VM is stopped there (\"watchdog\"): its watchdog");
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    pair_done();
    both_report("watchdog", true);
    vm_do(&vms[1], "cont", NULL);
    pair_moved("");
}

static void test_paused_by_its_watchdog_before_the_stop(void)
{
    pair_start(&(struct vm_options){.extra = {PAUSING}});
    pair_receive((const char *[]){"--max-bandwidth", HARDLY, NULL});
    pair_send((const char *[]){"--warm", NULL});
    mover_await(&sender, "warming", 0);
    watchdog_expires(&vms[0]);
    mover_await_words(&sender, "the VM is stopped here (\"watchdog\"), and will be at the "
                               "destination: its watchdog");
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    pair_done();
    mover_must_print(&receiver, "the VM is stopped here (\"watchdog\")");
    vm_do(&vms[1], "cont", NULL);
    pair_moved("");
}

#define PANICS "-device", "pvpanic", "-action", "panic=pause"

static void panics(struct vm *vm)
{
    vm_do(vm, "human-monitor-command", json_pack("{s:s}", "command-line", "o /b 0x505 1"));
    json_decref(vm_event(vm, "GUEST_PANICKED", NULL));
}

/* The VM that has come is as dead as it was, and both sides say what the reason is. */
static void test_panicked_before_the_stop(void)
{
    pair_start(&(struct vm_options){.extra = {PANICS}});
    pair_receive((const char *[]){"--max-bandwidth", HARDLY, NULL});
    pair_send((const char *[]){"--warm", NULL});
    mover_await(&sender, "warming", 0);
    panics(&vms[0]);
    mover_await_words(&sender, "the VM is stopped here (\"guest-panicked\"), and will be at the "
                               "destination: its guest has panicked");
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    pair_done();
    mover_must_print(&receiver, "the VM is stopped here (\"guest-panicked\"): its guest has");
    vm_do(&vms[1], "set-action", json_pack("{s:s}", "reboot", "reset"));
    vm_do(&vms[1], "system_reset", NULL);
    vm_do(&vms[1], "cont", NULL);
    vm_wait_beats(&vms[1], vm_beats(&vms[1]) + pair_beats);
}

static void test_panicked_and_paused(void)
{
    mover_begin();
    filling_with(&(struct vm_options){.extra = {PANICS}});
    panics(&vms[1]);
    mover_await_words(&receiver, "the VM is stopped here (\"guest-panicked\"): its guest");
    mover_await_words(&sender, "the VM is stopped there (\"guest-panicked\"): its guest");
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    pair_done();
    both_report("guest-panicked", true);
}

/* ... or before the migration. */
static void test_paused_by_its_watchdog_before(void)
{
    pair_start(&(struct vm_options){.extra = {PAUSING}});
    watchdog_expires(&vms[0]);
    json_decref(vm_event(&vms[0], "STOP", NULL));
    pair_run(NULL);
    pair_done();
    mover_must_print(&sender, "the VM is stopped here (\"watchdog\"), and will be at the");
    vm_do(&vms[1], "cont", NULL);
    pair_moved("");
}

int main(void)
{
    static const struct vm_test tests[] = {VM_TEST(test_runs_though_started_paused),
                                           VM_TEST(test_to_stay_paused),
                                           VM_TEST(test_to_stay_paused_in_a_qemu_that_starts),
                                           VM_TEST(test_paused_at_the_source),
                                           VM_TEST(test_paused_meanwhile),
                                           VM_TEST(test_killed_before_it_was_continued),
                                           VM_TEST(test_paused_while_filling),
                                           VM_TEST(test_runs_until_shut_down),
                                           VM_TEST(test_shut_down_and_ended),
                                           VM_TEST(test_shut_down_unheard),
                                           VM_TEST(test_shut_down_and_kept),
                                           VM_TEST(test_asleep),
                                           VM_TEST(test_asleep_meanwhile),
                                           VM_TEST(test_ended_by_others),
                                           VM_TEST(test_panicked),
                                           VM_TEST(test_ended_by_its_watchdog),
                                           VM_TEST(test_reset_by_its_watchdog),
                                           VM_TEST(test_paused_by_its_watchdog),
                                           VM_TEST(test_paused_by_its_watchdog_before_the_stop),
                                           VM_TEST(test_paused_by_its_watchdog_before),
                                           VM_TEST(test_panicked_before_the_stop),
                                           VM_TEST(test_panicked_and_paused),
                                           {0}};
    return vm_tests(tests, mover_end_all);
}
