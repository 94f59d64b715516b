/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * kill -9 of each tool at each of its states (source.h, destination.h), one after the other, and
 * then what ib-migrate(1) advises. Afterwards the guest is alive and right on exactly one side. The
 * last states of either side, complete and confirming, are test_move_end.c's.
 *
 * A tool is caught at a state by IBX_MOVE_STOP_AT, which makes it stop itself there.
 */
#include "tests/fixtures/mover.h"

#include "migrate/common/common.h"
#include "migrate/journal/journal.h"

#include "common/clock.h"

#define LISTEN  "tcp://127.0.0.1:0?timeout_ms=5000"
#define LOOK_MS 2

static void start_destination(void)
{
    vm_start(&vms[1], &(struct vm_options){.append = "", .incoming = true});
}

static void receive_until(const char *state, const char *option, const char *value)
{
    if (state)
        mover_stop_next(state);
    pair_receive((const char *[]){option, value, NULL});
}

static void send_until(const char *state)
{
    if (state)
        mover_stop_next(state);
    /* Not the default: a tool that recovers learns it from the destination. */
    pair_send((const char *[]){"--links", "2", NULL});
}

static void killed(struct mover *m)
{
    mover_await_stop(m);
    mover_kill(m, SIGKILL);
}

/* Starts both tools, and kills the one that has this state when it is there. */
static void killed_at(const char *state)
{
    const bool source = !strncmp(state, "source", 6);
    print_message("%s\n", state);
    receive_until(source ? NULL : state, NULL, NULL);
    send_until(source ? state : NULL);
    killed(source ? &sender : &receiver);
}

static bool goes_from_here(const struct ibx_record *record)
{
    return record->source && !ibx_journal_over(record);
}

/* Waits until the source has no unfinished move: at the latest when its watchdog has done its
 * work. */
static void await_over(void)
{
    const uint64_t deadline = vm_soon();
    struct ibx_record record;
    struct ibx_error silent;
    while (!ibx_journal_find(mover_state_dir, vms[0].tool, goes_from_here, &record, &silent)) {
        if (ibx_now_ns() >= deadline)
            fail_msg("the source's move is %s", ibx_journal_state_name(record.state));
        poll(NULL, 0, LOOK_MS);
    }
    assert_int_equal(silent.code, -ENOENT);
}

/* The VM goes on at the source, has never run at the destination, and can be moved. */
static void stays(void)
{
    pair_stays();
    await_over();
    vm_end(&vms[1]);
}

/* ------------------------------------------------------------ before the commit */

static void killed_before_they_met(void)
{
    print_message("destination:listening\n");
    start_destination();
    mover_stop_next("destination:listening");
    mover_start(&receiver,
                (const char *[]){"receive", "--qmp", vms[1].tool, "--listen", LISTEN, NULL});
    killed(&receiver);
    killed_at("source:recorded"); /* the same QEMU waits for another receiver */
    await_over();
    print_message("source:asking\n");
    send_until("source:asking");
    killed(&sender);
    mover_kill(&receiver, SIGINT);
    mover_ends(&receiver, 1);
    stays();
}

/* Each side is killed in the state in which it has seen that the move fails. */
static void killed_when_it_has_failed(void)
{
    print_message("source:kept\n");
    pair_timeout = PAIR_TIMEOUT_SHORT;
    start_destination();
    receive_until("destination:joining", NULL, NULL);
    send_until("source:kept");
    mover_await_stop(&receiver);
    killed(&sender); /* which has waited in vain */
    mover_kill(&receiver, SIGCONT);
    mover_ends(&receiver, 1);
    stays();
    pair_timeout = PAIR_TIMEOUT;
    print_message("destination:given up\n");
    start_destination();
    receive_until("destination:given up", NULL, NULL);
    send_until("source:exposing");
    mover_await_stop(&sender);
    mover_kill(&sender, SIGINT);
    mover_kill(&sender, SIGCONT);
    killed(&receiver);
    mover_ends(&sender, 1);
    stays();
}

/* One VM for all of them, which goes on each time; in the end it can be moved. */
static void test_before_the_commit(void)
{
    static const char *const states[] = {
        "source:exposing",     "source:starting",   "source:stopped",     "source:sending",
        "destination:joining", "destination:ready", "destination:mapped", "destination:waiting"};
    pair_start_source();
    killed_before_they_met();
    for (unsigned i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        const bool source = !strncmp(states[i], "source", 6);
        start_destination();
        killed_at(states[i]);
        mover_ends(source ? &receiver : &sender, 1);
        stays();
    }
    killed_when_it_has_failed();
    start_destination();
    receive_until(NULL, NULL, NULL);
    send_until(NULL);
    pair_done();
    pair_moved("");
}

/* The next tool is there before the watchdog of the one that was killed has QEMU's monitor again,
 * and lets go of it for the watchdog, which has the VM until it ends. */
static void test_sent_again_at_once(void)
{
    pair_start_source();
    start_destination();
    receive_until(NULL, NULL, NULL);
    send_until("source:recorded");
    mover_await_stop(&sender);
    const pid_t watchdog = mover_watchdog(&sender);
    assert_int_equal(kill(watchdog, SIGSTOP), 0); /* so that it keeps the monitor */
    mover_kill(&sender, SIGKILL);
    send_until(NULL);
    mover_await_asleep(&sender); /* it waits for the monitor */
    assert_int_equal(kill(watchdog, SIGCONT), 0);
    pair_done();
    pair_moved("");
}

/* The destination has everything and waits for the commit, and nobody is left who sends that. */
static void test_source_killed_while_the_destination_waits(void)
{
    pair_start_source();
    start_destination();
    receive_until("destination:waiting", NULL, NULL);
    send_until(NULL);
    mover_await_stop(&receiver);
    mover_kill(&sender, SIGKILL);
    mover_kill(&receiver, SIGCONT);
    mover_ends(&receiver, 1);
    mover_must_print(&receiver, "the VM has not run here");
    stays();
}

/* ------------------------------------------------------------ after it */

/* Another tool goes on. */
static void test_recovered(void)
{
    static const char *const states[] = {"source:committed", "source:serving",
                                         "destination:filling"};
    for (unsigned i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        const bool source = !strncmp(states[i], "source", 6);
        pair_start_source();
        start_destination();
        killed_at(states[i]);
        mover_await(source ? &receiver : &sender, "reconnecting", 0);
        pair_recover(source ? &sender : &receiver);
        pair_done();
        pair_moved("");
        if (!source) { /* which has had no time to connect when the tool begins */
            mover_must_print(&receiver, "the VM waits for pages until the source is back");
            assert_false(mover_printed(&receiver, "these pages are lost"));
        }
        mover_end_all(NULL);
    }
}

/* The next tool at the destination counts from its own start; the source adds both. */
static void test_figures_of_both_tools(void)
{
    pair_filling(NULL, NULL);
    mover_await_figure(&sender, "faults", 1);
    mover_kill(&receiver, SIGKILL);
    mover_await(&sender, "reconnecting", 0);
    const json_int_t faults = mover_figure(&sender, "faults");
    const json_int_t bytes = mover_figure(&sender, "wire_bytes");
    pair_recover(&receiver);
    pair_done();
    assert_true(mover_figure(&sender, "faults") >= faults);
    assert_true(mover_figure(&sender, "fault_p99_ns") > 0);
    assert_int_equal(mover_figure(&sender, "wire_bytes"),
                     bytes + mover_figure(&receiver, "wire_bytes"));
}

/* Nothing was left to do. */
static void test_done(void)
{
    static const char *const states[] = {"source:done", "destination:done"};
    for (unsigned i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        pair_start_source();
        start_destination();
        killed_at(states[i]);
        mover_ends(i ? &sender : &receiver, 0);
        await_over();
        pair_moved("");
        mover_end_all(NULL);
    }
}

static void rolled_back(void)
{
    const unsigned long before = vm_beats(&vms[0]);
    mover_await(&sender, "reconnecting", 0);
    mover_kill(&sender, SIGINT);
    mover_await_words(&sender, "interrupt once more");
    mover_kill(&sender, SIGINT);
    mover_ends(&sender, 3);
    MOVER_RUN(0, "rollback", "--qmp", vms[0].tool, "--yes", TIMED);
    vm_wait_beats(&vms[0], before + pair_beats);
    mover_heartbeats((const struct vm *[]){&vms[0], NULL}, "");
}

/* Before QEMU has the last byte of the device state: the VM never ran there, which only the
 * operator can know. */
static void test_resuming(void)
{
    pair_start_source();
    start_destination();
    killed_at("destination:resuming");
    pair_recover(&receiver);
    assert_int_not_equal(mover_wait(&receiver), 0);
    rolled_back();
    assert_false(mover_resumed(&vms[1]));
    assert_int_equal(vm_beats(&vms[1]), 0);
}

/* A QEMU that waits for a page does not answer: the tool that recovers does not wait for that, but
 * lets the source come, whose pages it waits for. */
static void test_resuming_with_a_silent_monitor(void)
{
    pair_start_source();
    start_destination();
    killed_at("destination:loaded");
    const uint64_t first = ibx_now_ns();
    MOVER_RUN(0, "status", "--qmp", vms[1].tool);
    const uint64_t before = ibx_now_ns(), starts_ns = before - first; /* what any tool takes */
    kill(vms[1].pid, SIGSTOP);
    pair_recover(&receiver);
    mover_await_words(&receiver, "waiting at ");
    const uint64_t took_ns = ibx_now_ns() - before;
    if (took_ns >= MIGRATION_QMP_MS * IBX_NS_PER_MS + starts_ns / 2) /* as an answer has */
        fail_msg("%llu ms, and any tool takes %llu", (unsigned long long)(took_ns / IBX_NS_PER_MS),
                 (unsigned long long)(starts_ns / IBX_NS_PER_MS));
    kill(vms[1].pid, SIGCONT);
    pair_done();
    pair_moved("");
}

/* The destination, which has the whole VM, waits for a source that does not come any more. */
static void test_rolled_back_beside_a_destination_that_waits(void)
{
    pair_start(NULL);
    mover_kill(pair_run_to("source:committed", NULL), SIGKILL);
    mover_await(&receiver, "reconnecting", 0);
    MOVER_RUN(0, "rollback", "--qmp", vms[0].tool, "--yes", TIMED);
    mover_ends(&receiver, 1);
    mover_must_print(&receiver, "taken back at the source by ib-migrate rollback");
    mover_await_record("destination", "given-up");
    pair_stayed();
}

/* The destination's host is lost in mid-move: its QEMU, and its tool, which has seen that. */
static void test_failed(void)
{
    pair_start_source();
    start_destination();
    receive_until("destination:failed", "--max-bandwidth", HARDLY);
    send_until(NULL);
    mover_await(&receiver, "filling", 0);
    vm_kill(&vms[1]);
    killed(&receiver);
    rolled_back();
}

/* QEMU is killed when it has been given the last byte, and has not run the VM. Its tool cannot know
 * that, and nobody says that it ran. */
static void test_qemu_killed_before_it_runs_the_vm(void)
{
    pair_start(NULL);
    pair_run_to("destination:resuming", NULL);
    kill(vms[1].pid, SIGSTOP);
    mover_kill(&receiver, SIGCONT);
    mover_await_words(&receiver, "has not reported that it runs: it may be stopped");
    vm_kill(&vms[1]);
    mover_ends(&receiver, 3);
    mover_must_print(&receiver, "the VM was taken over here, may have run, and");
    mover_ends(&sender, 3);
    mover_must_print(&sender, "the VM went to ");
    assert_false(mover_printed(&sender, " ran "));
    struct mover *status = MOVER_RUN(0, "status", "--qmp", vms[0].tool);
    mover_must_print(status, " went to ");
    assert_false(mover_printed(status, " ran "));
    /* A service manager starts it again after other exit statuses. */
    struct mover *recover = MOVER_RUN(1, "recover", "--qmp", vms[1].tool, "--json", TIMED);
    mover_must_print(recover, "of this migration has ended: unless it runs at the source");
    mover_must_print(recover, "\"outcome\":\"failed\"");
    MOVER_RUN(0, "rollback", "--qmp", vms[0].tool, "--yes", TIMED);
    pair_stays();
}

int main(void)
{
    pair_beats = 10;
    static const struct vm_test tests[] = {
        VM_TEST(test_before_the_commit),
        VM_TEST(test_sent_again_at_once),
        VM_TEST(test_source_killed_while_the_destination_waits),
        VM_TEST(test_recovered),
        VM_TEST(test_figures_of_both_tools),
        VM_TEST(test_done),
        VM_TEST(test_resuming),
        VM_TEST(test_resuming_with_a_silent_monitor),
        VM_TEST(test_rolled_back_beside_a_destination_that_waits),
        VM_TEST(test_failed),
        VM_TEST(test_qemu_killed_before_it_runs_the_vm),
        {0}};
    return vm_tests(tests, mover_end_all);
}
