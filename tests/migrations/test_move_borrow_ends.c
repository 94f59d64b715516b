/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* ib-migrate borrow and return: in each state a tool or a QEMU ends. */
#include "tests/fixtures/borrow.h"

#include "common/clock.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/ioctl.h>

/* ---------------------------------------------------------------- which tool is killed */

/* Waits until this tool, by its own report, has worked for so long: it may get no processor for a
 * while. */
static void works_on(struct mover *mover, json_int_t ms)
{
    mover_await_figure(mover, "elapsed_ns",
                       mover_figure(mover, "elapsed_ns") + ms * (json_int_t)IBX_NS_PER_MS);
}

/* Before the commit the VM stays away, and it can return later. */
static void killed_before(const char *state)
{
    borrowed_small();
    struct mover *killed = bring_to(state);
    mover_kill(killed, SIGKILL);
    mover_ends(killed == &lender ? &bringer : &lender, 1);
    stays_away();
    vm_end(&home); /* which may have its memory */
    home_and_bring();
    returned();
    mover_end_all(NULL);
}

/* The note of the map of the stop, of the return: home keeps that of its own stop until the end. */
static void is_no_map(const char *record, const char *note)
{
    json_t *json = json_load_file(record, 0, NULL);
    const char *base = json_string_value(json_object_get(json, "base"));
    assert_non_null(base);
    const bool returns = base[strspn(base, "0")];
    json_decref(json);
    if (returns && strstr(note, ".map") && !access(note, F_OK))
        fail_msg("%s is there", note);
}

/* After the commit everything goes on. */
static void killed_after(const char *state)
{
    borrowed_small();
    struct mover *killed = bring_to(state);
    mover_kill(killed, SIGKILL);
    if (!strcmp(state, "source:confirming")) /* which has nothing to recover then */
        mover_each_note(is_no_map);
    mover_recover(killed, killed == &lender ? &home : &vms[1]);
    returned();
    mover_end_all(NULL);
}

/* While the VM is away. */
static void killed_while_away(struct mover *killed)
{
    borrowed_small();
    mover_kill(killed, SIGKILL);
    pair_recover(killed);
    mover_await(&sender, "filling", 0);
    mover_await(&receiver, "filling", 0);
    stays_away();
    home_and_bring();
    returned();
    mover_end_all(NULL);
}

/* Before there is a record, nothing is noted: nobody would find it. */
static void test_first_killed(void)
{
    borrowed_small();
    mover_stop_next("destination:filling");
    bring_to("source:recorded");
    mover_each_note(is_no_map);
    mover_kill(&bringer, SIGCONT);
    mover_await_stop(&lender);
    mover_kill(&lender, SIGKILL);
    mover_recover(&lender, &home);
    returned();
}

static void test_killed_before_the_commit(void)
{
    static const char *const states[] = {
        "source:compared",    "source:exposing",     "source:warming",      "source:dropping",
        "source:starting",    "source:reading",      "source:stopped",      "source:sending",
        "source:committing",  "destination:claimed", "destination:joining", "destination:ready",
        "destination:mapped", "destination:waiting"};
    for (unsigned i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        print_message("%s\n", states[i]);
        killed_before(states[i]);
    }
}

static void test_killed_after_the_commit(void)
{
    static const char *const states[] = {"source:committed",    "source:serving",
                                         "source:confirming",   "destination:loaded",
                                         "destination:filling", "destination:complete"};
    for (unsigned i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        print_message("%s\n", states[i]);
        killed_after(states[i]);
    }
}

/* QEMU has not got the end of the device state: the VM never ran at home, which only the operator
 * can know. */
static void test_killed_in_the_commit(void)
{
    borrowed_small();
    bring_to("destination:resuming");
    mover_kill(&lender, SIGKILL);
    mover_recover(&lender, &home);
    assert_int_not_equal(mover_wait(&lender), 0);
    mover_await(&bringer, "reconnecting", 0);
    mover_kill(&bringer, SIGINT);
    mover_await_words(&bringer, "interrupt once more");
    mover_kill(&bringer, SIGINT);
    mover_ends(&bringer, 3);
    MOVER_RUN(0, "rollback", "--yes", "--qmp", vms[1].tool, TIMED);
    stays_away();
    vm_end(&home);
    home_and_bring();
    returned();
}

static void test_killed_while_away(void)
{
    killed_while_away(&receiver);
    killed_while_away(&sender);
}

/* The tools of the first migration have no purpose any more when they are killed in the second one,
 * and have to learn that. */
static void test_killed_while_it_returns(void)
{
    borrowed_small();
    bring_to("source:serving");
    mover_kill(&receiver, SIGKILL);
    mover_kill(&sender, SIGKILL);
    mover_kill(&bringer, SIGCONT);
    brought();
    pair_recover(&receiver);
    pair_recover(&sender);
    pair_done();
    is_home();
}

/* The QEMU that the VM left has the files of its memory, and runs nothing before it quits. */
static void test_held_until_it_quits(void)
{
    struct ibx_error why = {0};
    mover_stop_next("source:done");
    borrowed_small();
    home_and_bring();
    brought();
    mover_await_stop(&sender);
    assert_int_not_equal(ibx_qmp_execute(vms[0].qmp, "cont", NULL, NULL, vm_soon(), &why), 0);
    assert_non_null(strstr(why.message, "not finalized yet"));
    mover_kill(&sender, SIGCONT);
    pair_done();
    is_home();
}

/* The tool that would have told QEMU to quit is killed: recover tells it. */
static void killed_before_it_quits(const char *state, int status)
{
    print_message("%s\n", state);
    mover_stop_next(state);
    borrowed_small();
    home_and_bring();
    brought();
    mover_await_stop(&sender);
    if (status)
        mover_ends(&receiver, 0);
    mover_kill(&sender, SIGKILL);
    struct mover *last = MOVER_RUN(status, "recover", "--qmp", vms[0].tool, "--json", TIMED);
    mover_must_print(last, "has returned");
    vm_await_end(&vms[0]);
    if (!status)
        mover_ends(&receiver, 0);
    is_home();
    mover_end_all(NULL);
}

static void test_killed_before_it_quits(void)
{
    killed_before_it_quits("source:confirming", 0);
    killed_before_it_quits("source:done", 1); /* there nobody waits for the confirmation */
}

/* A VM at home whose memory is kept warm: both tools at the borrower are killed in turn, and
 * continued beside the other one. */
static void test_killed_while_kept_warm(void)
{
    borrowed_small();
    home_start(NULL);
    home_receives(TCP, NULL);
    mover_stop_next("source:sending");
    bring("--keep-warm");
    mover_await_stop(&bringer);
    mover_kill(&receiver, SIGKILL);
    mover_kill(&bringer, SIGCONT);
    mover_await(&lender, "filling", 100);
    mover_recover(&receiver, &vms[1]);
    mover_ends(&receiver, 0);
    mover_ends(&sender, 0);

    mover_kill(&bringer, SIGKILL);
    mover_await(&lender, "reconnecting", 0);
    mover_recover(&bringer, &vms[1]);
    mover_await(&bringer, "filling", 0);
    mover_await(&lender, "filling", 100);
    vm_wait_beats(&home, vm_beats(&home) + pair_beats);
    mover_kill(&lender, SIGINT); /* it has all of its pages */
    mover_ends(&lender, 0);
    mover_ends(&bringer, 0);
    is_home();
}

/* The tool that still serves the VM there leaves the monitor to the tool that continues the return,
 * however long that takes. */
static void test_killed_and_continued_late(void)
{
    borrowed_small();
    bring_to("source:serving");
    mover_kill(&receiver, SIGKILL);
    mover_recover(&receiver, &vms[1]);
    mover_await(&receiver, "reconnecting", 0); /* home serves no page of a VM that has come */
    mover_kill(&bringer, SIGKILL);
    works_on(&receiver, 1500); /* a tool looks for its monitor once a second */
    mover_recover(&bringer, &vms[1]);
    returned();
}

/* Waits until the tool waits for an answer of a stopped QEMU. */
static void await_question(const struct vm *vm)
{
    const uint64_t deadline = vm_soon();
    const int fd = vm_end_of_tool(vm);
    for (int unread = 0; !unread; poll(NULL, 0, 5)) {
        assert_int_equal(ioctl(fd, FIONREAD, &unread), 0);
        assert_true(ibx_now_ns() < deadline);
    }
    close(fd);
}

/* QEMU's main thread may wait for a page that the source has: the tool does not wait for it. */
static void test_killed_while_the_monitor_is_silent(void)
{
    borrowed_small();
    kill(vms[1].pid, SIGSTOP);
    mover_kill(&sender, SIGKILL);
    mover_await(&receiver, "reconnecting", 0);
    await_question(&vms[1]); /* it looks at QEMU's devices every two seconds */
    pair_recover(&sender);
    mover_await(&sender, "filling", 0);
    assert_false(mover_printed(&sender, "did not answer"));
    kill(vms[1].pid, SIGCONT);
    home_and_bring();
    returned();
}

/* The VM is borrowed by a QEMU that takes the memory that was kept there. The QEMU that kept it
 * lives and has the memory, too: that is no reason for a tool that goes on to call the VM lost. */
static void test_killed_where_it_was_kept_warm(void)
{
    static struct vm again, last;
    static struct mover keeper, repeater, other;
    struct vm_options options;
    borrowed_small();
    home_start(NULL);
    mover_stop_next("destination:done"); /* a tool that takes its time to end */
    home_receives(TCP, NULL);
    bring("--keep-warm");
    pair_done();
    mover_await(&lender, "filling", 100);
    options = borrow_options;
    options.incoming = true;
    vm_start(&again, &options);
    mover_stop_next("destination:filling");
    mover_receive(&keeper, &again, TCP, (const char *[]){"--home", NULL});
    mover_start(&repeater, (const char *[]){"borrow", keeper.uri, "--qmp", home.tool, "--json",
                                            "--yes", "--fill", TIMED, NULL});
    mover_await_stop(&keeper);
    mover_kill(&keeper, SIGKILL);
    mover_recover(&keeper, &again);
    mover_await(&keeper, "filling", 100);
    vm_wait_beats(&again, vm_beats(&again) + pair_beats);
    mover_await_stop(&lender);
    vm_start(&last, &options);
    mover_receive(&other, &last, TCP, (const char *[]){"--home", NULL});
    MOVER_RUN(0, "return", other.uri, "--qmp", again.tool, "--json", TIMED);
    mover_ends(&other, 0);
    vm_wait_beats(&last, vm_beats(&last) + pair_beats);
    mover_heartbeats((const struct vm *[]){&vms[0], &vms[1], &home, &again, &last, NULL},
                     borrow_options.append);
}

/* `status` does not say what to do if no tool works on it, or if the other side is lost. */
static void status_of_one_that_is_served(void)
{
    for (unsigned i = 0; i < 2; i++) {
        const struct mover *status = MOVER_RUN(0, "status", "--qmp", vms[i].tool);
        mover_must_print(status, i ? "\"ib-migrate return\" brings it home\n"
                                   : "leave this QEMU as it is\n");
        assert_false(mover_printed(status, "at work"));
        assert_false(mover_printed(status, "for good"));
    }
}

/* Home's tool is gone. */
static void status_of_one_that_waits(void)
{
    mover_must_print(MOVER_RUN(0, "status", "--qmp", vms[0].tool),
                     "leave this QEMU as it is; \"ib-migrate recover\" continues to send them\n");
    mover_must_print(MOVER_RUN(0, "status", "--qmp", vms[1].tool),
                     "brings it home; if they are lost there for good, interrupt ib-migrate");
}

/* ... for good. A VM that waits for pages is told from one that has all of them, at either side. */
static void test_killed_and_never_back(void)
{
    borrowed_small();
    status_of_one_that_is_served();
    mover_kill(&sender, SIGKILL);
    mover_await_words(&receiver, "the VM waits for pages until the source is back");
    status_of_one_that_waits();
    pair_timeout = PAIR_TIMEOUT_SHORT; /* for which `return` waits */
    home_start(NULL);
    home_receives(TCP, NULL);
    bring(NULL);
    mover_ends(&bringer, 1);
    mover_must_print(&bringer, "the VM waits for pages, since the other side is away");
    mover_must_print(&bringer, "ib-migrate recover there");

    mover_kill(&receiver, SIGKILL); /* the next tool has never had a link */
    pair_recover(&receiver);
    mover_await(&receiver, "reconnecting", 0);
    bring(NULL);
    mover_ends(&bringer, 1);
    mover_must_print(&bringer, "since the other side is away: the VM cannot go before it is back");
    mover_end_all(NULL);
    pair_timeout = PAIR_TIMEOUT;

    borrowed(&(struct vm_options){.append = "mib=4"}, TCP, (const char *[]){"--fill", NULL});
    mover_await(&receiver, "filling", 100);
    mover_kill(&sender, SIGKILL);
    mover_await_words(&receiver, "the VM has all of its pages and runs on");
    assert_false(mover_printed(&receiver, "the VM waits for pages"));
    pair_timeout = PAIR_TIMEOUT_SHORT;
    home_start(NULL);
    home_receives(TCP, NULL);
    bring(NULL);
    mover_ends(&bringer, 1);
    mover_must_print(&bringer, "runs on with all of its pages, but the other side is away");
    stays_away();
    mover_kill(&receiver, SIGINT);
    mover_await_words(&receiver, "stays here: it does not return");
    mover_kill(&receiver, SIGINT);
    mover_ends(&receiver, 3);
    MOVER_RUN(0, "prune", "--unfinished", "--qmp", vms[1].tool);
    pair_timeout = PAIR_TIMEOUT;
}

/* A return that begins a moment too early is waited for. */
static void test_returns_while_the_link_is_made_anew(void)
{
    borrowed_small();
    mover_kill(&sender, SIGKILL);
    mover_await(&receiver, "reconnecting", 0);
    pair_timeout = PATIENT;
    home_and_bring();
    mover_await_words(&bringer,
                      "the other side of the borrowed VM is not connected: waiting for it");
    pair_recover(&sender);
    returned();
    pair_timeout = PAIR_TIMEOUT;
}

/* ---------------------------------------------------------------- which QEMU ends */

/* Its memory at home is in a file. */
static void test_home_ends_while_away(void)
{
    borrowed_small();
    vm_kill(&vms[0]);
    mover_await_words(&sender, "its pages are held here");
    stays_away();
    home_and_bring();
    returned();
}

/* Only the memory of the VM's stop is left. */
static void test_borrower_ends(void)
{
    borrowed_small();
    vm_kill(&vms[1]);
    mover_ends(&receiver, 3);
    mover_ends(&sender, 3);
    MOVER_RUN(0, "rollback", "--yes", "--qmp", vms[0].tool);
    vm_wait_beats(&vms[0], vm_beats(&vms[0]) + pair_beats);
    mover_heartbeats((const struct vm *[]){&vms[0], NULL}, borrow_options.append);
}

/* Another client has migrated the VM on from there, and then ended that QEMU, as is usual: a tool
 * that advises a restart here says this, too. */
static void migrate_on(bool with_ram)
{
    vm_do(&vms[1], "migrate-set-capabilities",
          json_pack("{s:[{s:s,s:b},{s:s,s:b}]}", "capabilities", "capability", "events", "state", 1,
                    "capability", "x-ignore-shared", "state", !with_ram));
    vm_do(&vms[1], "migrate", json_pack("{s:s}", "uri", "exec:cat > /dev/null"));
    /* Not an event: that of the VM's own way here may still be in the queue. */
    const uint64_t deadline = vm_soon();
    for (bool over = false; !over; poll(NULL, 0, over ? 0 : 2)) {
        json_t *is = vm_run(&vms[1], "query-status", NULL);
        over = !strcmp(json_string_value(json_object_get(is, "status")), "postmigrate");
        json_decref(is);
        assert_true(ibx_now_ns() < deadline);
    }
}

/* The last QEMU has ended, or is about to. The receiver ends with `status`: 6 if it is `recover`,
 * which can do nothing more where the QEMU in which the VM ran has ended. */
static void all_say_unless(int status)
{
    static const char unless[] = "unless it runs where another client of QEMU has migrated it";
    vm_await_end(&vms[1]);
    mover_ends(&receiver, status);
    mover_ends(&sender, 3);
    mover_must_print(&receiver, unless);
    mover_must_print(&sender, unless);
    struct mover *told = MOVER_RUN(0, "status");
    mover_must_print(told, unless);
    mover_must_print(MOVER_RUN(1, "rollback", "--qmp", vms[0].tool), unless);
}

static void migrated_on_and(int signal, int status)
{
    vm_do(&vms[1], "stop", NULL);
    migrate_on(true);
    mover_await_words(&receiver, "\"vm_status\":\"postmigrate\"");
    assert_int_equal(kill(vms[1].pid, signal), 0);
    all_say_unless(status);
}

static void test_borrower_is_migrated_on(void)
{
    borrowed_small();
    migrated_on_and(SIGKILL, 3);
}

/* The tool there learns of both at once. It is stopped, so it serves no memory meanwhile. */
static void test_borrower_is_migrated_on_unheard(void)
{
    borrowed_small();
    vm_do(&vms[1], "stop", NULL);
    mover_kill(&receiver, SIGSTOP);
    migrate_on(false);
    assert_int_equal(kill(vms[1].pid, SIGKILL), 0);
    mover_kill(&receiver, SIGCONT);
    all_say_unless(3);
}

/* The tool that sees it has not seen QEMU load the VM. */
static void test_borrower_is_migrated_on_after_a_recovery(void)
{
    borrowed_small();
    mover_kill(&receiver, SIGKILL);
    pair_recover(&receiver);
    vm_do(&vms[1], "stop", NULL);
    mover_await_words(&receiver, "\"vm_status\":\"paused\"");
    migrated_on_and(SIGKILL, 6);
}

/* As libvirt does. QEMU says then that it is shut down, and by what. */
static void test_borrower_is_migrated_on_and_told_to_end(void)
{
    borrowed_small();
    migrated_on_and(SIGTERM, 3);
}

/* The memory of the stop no longer exists once pages were dropped. */
static void test_base_after_a_return_that_failed(void)
{
    borrowed_small();
    bring_to("source:sending");
    vm_kill(&home);
    mover_kill(&bringer, SIGCONT);
    mover_ends(&bringer, 1);
    mover_ends(&lender, 1);
    stays_away();
    vm_kill(&vms[1]);
    mover_ends(&receiver, 3);
    mover_ends(&sender, 3);
    mover_must_print(&sender, "in another QEMU here (ib-migrate status), start it from its disk");
    mover_must_print(MOVER_RUN(1, "rollback", "--yes", "--qmp", vms[0].tool),
                     "a return of this VM has begun");
}

/* Pages that had not been fetched before are only at home, and newer there: no tool advises what
 * cannot be done. */
static void test_home_ends_after_a_return(void)
{
    borrowed_small();
    bring_to("destination:filling");
    vm_kill(&home);
    mover_kill(&lender, SIGCONT);
    mover_ends(&lender, 3);
    mover_must_print(&lender, "if it had all of its pages there");
    mover_ends(&bringer, 3);
    mover_must_print(&bringer, "nothing can restart it here, start it from its disk");
    mover_must_print(MOVER_RUN(0, "status", "--qmp", vms[1].tool),
                     "nothing can restart it here: end its QEMUs and start it from its disk");
    mover_must_print(MOVER_RUN(1, "rollback", "--yes", "--qmp", vms[1].tool, TIMED),
                     "it is lost, since it cannot go on there either");
    mover_must_print(MOVER_RUN(0, "status", "--qmp", home.tool),
                     "if it had all of its pages there, else start it from its disk");
    mover_must_print(MOVER_RUN(1, "rollback", "--yes", "--qmp", home.tool),
                     "if it had all of its pages there, else start it from its disk");
    pair_done();
}

/* By then, home's pages may be from the VM's time there. */
static void test_filled_stops_for_its_return(void)
{
    borrow_options = (struct vm_options){.append = "mib=4"};
    pair_start(&borrow_options);
    static uint8_t data[24 << 20]; /* hardly any of it comes before the return */
    const int ram = open(vms[0].ram, O_RDWR | O_CLOEXEC);
    memset(data, 0x5a, sizeof(data));
    assert_int_equal(pwrite(ram, data, sizeof(data), 36 << 20), sizeof(data));
    close(ram);
    mover_receive(&receiver, &vms[1], TCP, (const char *[]){"--max-bandwidth", HARDLY, NULL});
    mover_start(&sender, (const char *[]){"borrow", receiver.uri, "--qmp", vms[0].tool, "--json",
                                          "--yes", "--fill", TIMED, NULL});
    mover_await(&sender, "filling", 0);
    vm_wait_beats(&vms[1], pair_beats);
    bring_to("source:committed");
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    const uint64_t deadline = vm_soon();
    json_int_t before, now = -1;
    do { /* what it says may be of some time ago */
        before = now;
        poll(NULL, 0, 1000);
        now = mover_figure(&receiver, "wire_bytes");
        assert_true(ibx_now_ns() < deadline);
    } while (now != before);
    assert_true(mover_figure(&receiver, "present_pages") < mover_figure(&receiver, "pages"));
    mover_kill(&bringer, SIGCONT);
    returned();
}

/* The VM returns and runs at home for a moment, and the borrower does not hear of it. False: the VM
 * did not run, because it needed a page that the stopped tool had to serve. */
static bool runs_at_home_unheard(void)
{
    borrow_options = (struct vm_options){.append = "mib=32 beat=64 idle=20000000"};
    pair_beats = 150; /* all of its memory */
    pair_start(&borrow_options);
    pair_beats = 8;
    borrow_tools(TCP, NULL);
    vm_wait_beats(&vms[1], pair_beats);
    home_start(NULL);
    mover_stop_next("destination:resuming");
    home_receives("shm://127.0.0.1:0", NULL);
    bring(NULL);
    mover_await_stop(&lender);
    mover_await_asleep(&bringer);
    mover_kill(&bringer, SIGSTOP); /* its memory can be read all the same, mostly */
    mover_kill(&lender, SIGCONT);
    for (const uint64_t until = ibx_deadline_in_ms(patience_ms(4000));
         vm_beats(&home) < 2 && ibx_now_ns() < until;)
        poll(NULL, 0, 100);
    return vm_beats(&home) >= 2;
}

/* Then its QEMU there has ended. Pages that were not fetched before are from that time by now. */
static void test_rolled_back_after_it_ran_at_home(void)
{
    for (unsigned tries = 0; !runs_at_home_unheard(); tries++) {
        assert_true(tries < 5);
        mover_end_all(NULL);
    }
    mover_kill(&lender, SIGKILL);
    vm_kill(&home);
    mover_kill(&bringer, SIGKILL);
    MOVER_RUN(0, "rollback", "--yes", "--qmp", vms[1].tool, TIMED);
    const unsigned long before = vm_beats(&vms[1]);
    for (unsigned i = 0; i < 30 && vm_beats(&vms[1]) < before + pair_beats; i++)
        poll(NULL, 0, 100);
    mover_heartbeats((const struct vm *[]){&vms[0], &vms[1], NULL}, "mib=32 beat=64");
    mover_await_words(&sender, "no page of it is served");
    /* All pages may have come: then only the source, which nobody brings back, could end it. */
    mover_recover(&lender, &home);
    if (!mover_ends_or_prints(&lender, 3, "if the VM was taken back at the source")) {
        mover_kill(&lender, SIGINT);
        mover_ends(&lender, 3);
    }
}

int main(void)
{
    pair_beats = 8;
    static const struct vm_test tests[] = {VM_TEST(test_first_killed),
                                           VM_TEST(test_borrower_ends),
                                           VM_TEST(test_borrower_is_migrated_on),
                                           VM_TEST(test_borrower_is_migrated_on_unheard),
                                           VM_TEST(test_borrower_is_migrated_on_after_a_recovery),
                                           VM_TEST(test_borrower_is_migrated_on_and_told_to_end),
                                           VM_TEST(test_killed_before_the_commit),
                                           VM_TEST(test_killed_after_the_commit),
                                           VM_TEST(test_killed_in_the_commit),
                                           VM_TEST(test_killed_while_away),
                                           VM_TEST(test_killed_while_it_returns),
                                           VM_TEST(test_held_until_it_quits),
                                           VM_TEST(test_killed_before_it_quits),
                                           VM_TEST(test_killed_while_kept_warm),
                                           VM_TEST(test_killed_and_continued_late),
                                           VM_TEST(test_killed_while_the_monitor_is_silent),
                                           VM_TEST(test_killed_where_it_was_kept_warm),
                                           VM_TEST(test_killed_and_never_back),
                                           VM_TEST(test_returns_while_the_link_is_made_anew),
                                           VM_TEST(test_home_ends_while_away),
                                           VM_TEST(test_base_after_a_return_that_failed),
                                           VM_TEST(test_home_ends_after_a_return),
                                           VM_TEST(test_filled_stops_for_its_return),
                                           VM_TEST(test_rolled_back_after_it_ran_at_home),
                                           {0}};
    return vm_tests(tests, mover_end_all);
}
