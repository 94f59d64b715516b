/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * QEMU's migration settings: a move gets along with those that somebody has left behind, and leaves
 * them as they were, at both ends, on every way out and also when its tool is killed. A snapshot of
 * the VM while pages are missing has all of its RAM.
 */
#include "tests/fixtures/mover.h"
#include "tests/fixtures/process.h"

#include "common/clock.h"

#include <fcntl.h>

#define LOOK_MS      5
#define FREEZE_S_MAX 5 /* far below the 20 s that a forgotten tls-creds took */

/* All capabilities and parameters: a reference. */
static json_t *settings_of(struct vm *vm)
{
    return json_pack("[o, o]", vm_run(vm, "query-migrate-capabilities", NULL),
                     vm_run(vm, "query-migrate-parameters", NULL));
}

static bool is_on(const json_t *list, const char *capability)
{
    const json_t *item;
    bool on = false;
    size_t index;
    json_array_foreach(list, index, item)
    {
        if (!strcmp(json_string_value(json_object_get(item, "capability")), capability))
            on = json_is_true(json_object_get(item, "state"));
    }
    return on;
}

static bool has(struct vm *vm, const char *capability)
{
    json_t *list = vm_run(vm, "query-migrate-capabilities", NULL);
    const bool on = is_on(list, capability);
    json_decref(list);
    return on;
}

static void await_settings(struct vm *vm, json_t *as)
{
    const uint64_t deadline = vm_soon();
    json_t *now;
    while (!json_equal(now = settings_of(vm), as)) {
        if (ibx_now_ns() >= deadline)
            fail_msg("%s\n is not\n%s", json_dumps(now, 0), json_dumps(as, 0));
        json_decref(now);
        poll(NULL, 0, LOOK_MS);
    }
    json_decref(now);
}

/* Of the two VMs, before anything was done. */
static json_t *before[2];

static int end(void **state)
{
    for (unsigned i = 0; i < 2; i++) {
        json_decref(before[i]);
        before[i] = NULL;
    }
    return mover_end_all(state);
}

static void note(void)
{
    for (unsigned i = 0; i < 2; i++)
        before[i] = settings_of(&vms[i]);
}

static void as_before(void)
{
    for (unsigned i = 0; i < 2; i++)
        await_settings(&vms[i], before[i]);
}

/* What other migrations of these QEMUs would have left: each alone breaks or stalls a move. */
static void leave_settings_behind(void)
{
    vm_do(&vms[0], "migrate-set-capabilities",
          json_pack("{s:[{s:s,s:b},{s:s,s:b},{s:s,s:b},{s:s,s:b}]}", "capabilities", "capability",
                    "xbzrle", "state", 1, "capability", "auto-converge", "state", 1, "capability",
                    "return-path", "state", 1, "capability", "pause-before-switchover", "state",
                    1));
    vm_do(&vms[1], "migrate-set-capabilities",
          json_pack("{s:[{s:s,s:b},{s:s,s:b}]}", "capabilities", "capability", "postcopy-ram",
                    "state", 1, "capability", "late-block-activate", "state", 1));
    for (unsigned i = 0; i < 2; i++)
        vm_do(&vms[i], "migrate-set-parameters",
              json_pack("{s:s, s:s, s:I, s:I}", "tls-creds", "gone", "tls-hostname", "elsewhere",
                        "max-bandwidth", (json_int_t)4096, "downtime-limit", (json_int_t)0));
}

static void no_freeze(const struct mover *source)
{
    assert_in_range(mover_figure(source, "downtime_ns"), 1, FREEZE_S_MAX * 1000000000ll);
}

static void start(void)
{
    pair_start(NULL);
    leave_settings_behind();
    note();
}

/* The source's settings are needed until the end: until then QEMU cannot save the VM's state. */
static void refuses_a_snapshot(void)
{
    vm_refused(ibx_qmp_execute(vms[0].qmp, "migrate", json_pack("{s:s}", "uri", "exec:false"), NULL,
                               vm_soon(), &vm_error),
               -EREMOTEIO, "migration");
    assert_true(has(&vms[0], "x-ignore-shared"));
}

/* What an operator sets while the move needs another value stays. */
static void set_by_an_operator(void)
{
    const json_int_t limit = 4711 << 10;
    vm_do(&vms[0], "migrate-set-parameters", json_pack("{s:I}", "max-bandwidth", limit));
    json_object_set_new(json_array_get(before[0], 1), "max-bandwidth", json_integer(limit));
}

/* The destination's settings are as before while nearly all pages are still missing, and at the end
 * those of both are. */
static void test_left_behind_while_filling(void)
{
    start();
    pair_run((const char *[]){"--max-bandwidth", HARDLY, NULL});
    mover_await(&receiver, "filling", 0);
    mover_await(&sender, "filling", 0);
    await_settings(&vms[1], before[1]);
    refuses_a_snapshot();
    set_by_an_operator();
    pair_filled();
    as_before();
    no_freeze(&sender);
}

/* ------------------------------------------------------------ snapshots while pages are missing */

static void await_migrated(struct vm *vm)
{
    const uint64_t deadline = vm_soon();
    for (bool over = false; !over;) {
        json_t *is = vm_run(vm, "query-migrate", NULL);
        const char *status = json_string_value(json_object_get(is, "status"));
        over = status && !strcmp(status, "completed");
        if ((status && !strcmp(status, "failed")) || ibx_now_ns() >= deadline)
            fail_msg("migrate to a file: %s", json_dumps(is, 0));
        json_decref(is);
        poll(NULL, 0, LOOK_MS);
    }
}

/* The VM goes on in a third QEMU, which has loaded the snapshot, from where it was. */
static void goes_on(const struct vm_options *options, const char *uri)
{
    static struct vm third;
    vm_start(&third, options);
    if (uri) {
        vm_do(&third, "migrate-incoming", json_pack("{s:s}", "uri", uri));
        await_migrated(&third);
    }
    vm_do(&third, "cont", NULL);
    vm_wait_beats(&third, pair_beats);
    mover_heartbeats((const struct vm *[]){&vms[0], &vms[1], &third, NULL}, "");
    vm_end(&third);
}

static void create(struct vm *vm, json_t *options)
{
    vm_do(vm, "blockdev-create", json_pack("{s:s, s:o}", "job-id", "create", "options", options));
    json_decref(vm_event(vm, "JOB_STATUS_CHANGE", "concluded"));
    vm_do(vm, "job-dismiss", json_pack("{s:s}", "id", "create"));
}

/* An empty disk for snapshots, of no device. */
static void add_disk(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    for (unsigned i = 0; i < 2; i++) {
        vm_do(
            &vms[i], "blockdev-add",
            json_pack("{s:s, s:s, s:s}", "driver", "file", "node-name", "file", "filename", path));
        if (!i)
            create(&vms[0], json_pack("{s:s, s:s, s:i}", "driver", "qcow2", "file", "file", "size",
                                      1 << 20));
        vm_do(&vms[i], "blockdev-add",
              json_pack("{s:s, s:s, s:s}", "driver", "qcow2", "node-name", "d0", "file", "file"));
    }
}

static void test_snapshots_while_filling(void)
{
    static const char *const refused[] = {"savevm now", "loadvm now", "delvm now"};
    static const char *const done[] = {"savevm one", "loadvm one", "delvm one", "savevm now"};
    char disk[128], drive[192], text[256], to[160], from[160];
    pair_start(NULL);
    snprintf(disk, sizeof(disk), "%s/d.qcow2", mover_folder);
    snprintf(drive, sizeof(drive), "if=none,id=d0,format=qcow2,file=%s", disk);
    add_disk(disk);
    pair_run((const char *[]){"--max-bandwidth", HARDLY, NULL});
    mover_await(&receiver, "filling", 0);
    vm_wait_beats(&vms[1], 1);
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        vm_hmp(&vms[0], refused[i], text, sizeof(text));
        assert_non_null(strstr(text, "Error"));
    }
    vm_do(&vms[1], "stop", NULL);
    for (size_t i = 0; i < sizeof(done) / sizeof(done[0]); i++) {
        vm_hmp(&vms[1], done[i], text, sizeof(text));
        assert_string_equal(text, "");
    }
    snprintf(to, sizeof(to), "exec:cat >%s/state", mover_folder);
    snprintf(from, sizeof(from), "exec:cat %s/state", mover_folder);
    vm_do(&vms[1], "migrate", json_pack("{s:s}", "uri", to));
    await_migrated(&vms[1]);
    pair_done(); /* QEMU has touched every page */
    vm_kill(&vms[0]);
    vm_kill(&vms[1]); /* and its lock of the disk */
    goes_on(&(struct vm_options){.append = "", .incoming = true}, from);
    goes_on(&(struct vm_options){.append = "", .extra = {"-drive", drive, "-loadvm", "now"}}, NULL);
}

/* ------------------------------------------------------------ on every way out */

/* Reads QEMU's answer to a question from before: to answer now, QEMU might need a page that nobody
 * brings. */
static bool had(struct vm *vm, const char *capability)
{
    const uint64_t deadline = vm_soon();
    json_t *reply;
    while (!(reply = ibx_qmp_reply(vm->qmp))) {
        if (ibx_now_ns() >= deadline)
            fail_msg("QEMU does not answer");
        poll(NULL, 0, LOOK_MS);
        vm_ok(ibx_qmp_pump(vm->qmp, &vm_error));
    }
    const bool on = is_on(json_object_get(reply, "return"), capability);
    json_decref(reply);
    return on;
}

/* The VM runs here, and the tool that knew it is gone before it had told anybody. */
static void test_receiver_killed(void)
{
    start();
    pair_run_to("destination:filling", (const char *[]){"--max-bandwidth", HARDLY, NULL});
    vm_ok(ibx_qmp_post(vms[1].qmp, "query-migrate-capabilities", vm_soon(), &vm_error));
    mover_kill(&receiver, SIGKILL);
    pair_recover(&receiver);
    assert_false(had(&vms[1], "x-ignore-shared"));
    await_settings(&vms[1], before[1]);
    pair_done();
    as_before();
    pair_moved("");
}

/* As long as the VM need not stop (with --warm that takes a minute), a snapshot of it has all of
 * its RAM. */
static void test_set_late(void)
{
    start();
    pair_run_to("source:exposing", NULL);
    await_settings(&vms[0], before[0]); /* the destination sets its own, soon or now */
    mover_kill(&sender, SIGCONT);
    pair_done();
    as_before();
}

/* Another client sets them again at the last moment: without the capability for events QEMU would
 * stop the VM, and nobody would know. */
static void test_changed_at_the_last_moment(void)
{
    static const char *const names[] = {"events", "x-ignore-shared", "return-path", "xbzrle"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        pair_start(NULL);
        pair_run_to("source:compared", NULL);
        vm_do(&vms[0], "migrate-set-capabilities",
              json_pack("{s:[{s:s,s:b}]}", "capabilities", "capability", names[i], "state",
                        !has(&vms[0], names[i])));
        mover_kill(&sender, SIGCONT);
        mover_ends(&sender, 1);
        mover_must_print(&sender, "has changed its migration settings (");
        mover_must_print(&sender, names[i]);
        mover_ends(&receiver, 1);
        assert_false(has(&vms[0], "x-ignore-shared"));
        pair_stays();
        mover_end_all(NULL);
    }
}

/* Before QEMU is told to migrate. */
static void until_they_are_set(void)
{
    start();
    pair_receive(NULL);
    mover_stop_next("source:dropping");
    pair_send((const char *[]){"--warm", NULL});
    mover_await_stop(&sender);
    assert_true(has(&vms[0], "return-path"));
    assert_false(has(&vms[0], "x-ignore-shared")); /* QEMU gets it together with its command */
}

/* The watchdog has been told what to put back. */
static void test_sender_killed_early(void)
{
    until_they_are_set();
    mover_kill(&sender, SIGKILL);
    mover_ends(&receiver, 1);
    await_settings(&vms[0], before[0]);
    pair_stays();
}

/* ... and the watchdog is killed, too: the VM runs on with these settings. */
static void kill_sender_and_watchdog(void)
{
    kill(mover_watchdog(&sender), SIGKILL);
    mover_kill(&sender, SIGKILL);
    mover_ends(&receiver, 1);
}

static void status_says(const char *words)
{
    mover_must_print(MOVER_RUN(0, "status", "--qmp", vms[0].tool), words);
}

static void they_are_put_back(void)
{
    MOVER_RUN(0, "rollback", "--qmp", vms[0].tool, "--yes", TIMED);
    await_settings(&vms[0], before[0]);
    assert_false(mover_printed(MOVER_RUN(0, "status", "--qmp", vms[0].tool), "settings"));
    pair_stays();
}

/* A snapshot is good, as long as QEMU has not begun to migrate. Of a QEMU that does not answer this
 * is not known. */
static void test_sender_and_watchdog_killed(void)
{
    until_they_are_set();
    kill_sender_and_watchdog();
    assert_true(has(&vms[0], "return-path"));
    status_says("; QEMU may still have the settings of a migration, until \"ib-migrate recover\"");
    kill(vms[0].pid, SIGSTOP);
    status_says("; QEMU may still have the settings of a migration, with which a snapshot");
    kill(vms[0].pid, SIGCONT);
    they_are_put_back();
}

/* QEMU has begun, and continues the VM by itself: nobody else knows that a snapshot would be of no
 * use. */
static void test_sender_and_watchdog_killed_later(void)
{
    start();
    pair_run_to("source:sending", NULL);
    kill_sender_and_watchdog();
    assert_true(has(&vms[0], "x-ignore-shared"));
    status_says("; QEMU still has the settings of a migration, with which a snapshot of the VM "
                "(savevm) has no RAM, until \"ib-migrate recover\" or \"rollback\"");
    they_are_put_back();
}

static void test_sender_killed_after_the_commit(void)
{
    start();
    pair_run_to("source:serving", NULL);
    assert_true(has(&vms[0], "x-ignore-shared"));
    mover_kill(&sender, SIGKILL);
    pair_recover(&sender);
    pair_done();
    as_before();
    pair_moved("");
}

/* The watchdog knows them, too. */
/* QEMU's migration has ended by then. */
static void test_sender_killed_at_its_end(void)
{
    start();
    pair_run_to("source:done", NULL);
    mover_kill(&sender, SIGKILL);
    mover_ends(&receiver, 0);
    assert_true(has(&vms[0], "x-ignore-shared"));
    pair_recover(&sender);
    mover_ends(&sender, 1); /* the receiver, which knows all, is gone */
    as_before();
}

static void test_sender_killed_before_the_commit(void)
{
    start();
    pair_run_to("source:sending", NULL);
    mover_kill(&sender, SIGKILL);
    mover_ends(&receiver, 1);
    await_settings(&vms[0], before[0]);
    pair_stayed();
}

static void test_cancelled(void)
{
    start();
    pair_run_to("source:sending", NULL);
    mover_kill(&sender, SIGINT);
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 1);
    mover_ends(&receiver, 1);
    await_settings(&vms[0], before[0]);
    pair_stayed();
}

static bool describes_state(struct vm *vm)
{
    json_t *is = vm_run(vm, "qom-get",
                        json_pack("{s:s, s:s}", "path", "/machine", "property", "suppress-vmdesc"));
    const bool suppressed = json_is_true(is);
    json_decref(is);
    return !suppressed;
}

/* A machine that was told not to describe its device state describes it for the migration, which
 * needs this to see its end, and not longer. */
static void test_a_state_that_is_not_described(void)
{
    pair_start(&(struct vm_options){.append = "", .machine = "q35,suppress-vmdesc=on"});
    pair_run_to("source:sending", NULL);
    assert_true(describes_state(&vms[0]));
    mover_kill(&sender, SIGINT);
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 1);
    mover_ends(&receiver, 1);
    assert_false(describes_state(&vms[0]));
    pair_stayed();
    mover_end_all(NULL);
    pair_start(&(struct vm_options){.append = "", .machine = "q35,suppress-vmdesc=on"});
    pair_run(NULL);
    pair_done();
    pair_moved("");
    assert_false(describes_state(&vms[0]));
}

/* Both tools and the destination's QEMU are lost: rollback finds them in the record. */
static void test_rolled_back(void)
{
    start();
    pair_run_to("source:serving", NULL);
    mover_kill(&sender, SIGKILL);
    mover_kill(&receiver, SIGKILL);
    vm_kill(&vms[1]);
    assert_true(has(&vms[0], "x-ignore-shared"));
    MOVER_RUN(0, "rollback", "--yes", "--qmp", vms[0].tool, TIMED);
    await_settings(&vms[0], before[0]);
    pair_runs_at_the_source();
}

/* ------------------------------------------------------------ where libvirt drives */

/* Somebody removes the monitor's socket, and then the tool is killed: its watchdog goes on with the
 * tool's connection. */
static void test_killed_without_its_monitors_socket(void)
{
    pair_start(NULL);
    note();
    pair_run_to("source:compared", NULL);
    assert_true(has(&vms[0], "return-path"));
    assert_int_equal(unlink(vms[0].tool), 0);
    mover_kill(&sender, SIGKILL);
    await_settings(&vms[0], before[0]);
    mover_ends(&receiver, 1);
    pair_runs_at_the_source();
}

/* QEMU takes no settings during a migration, and one that libvirt has begun ends a moment after the
 * tool's. */
static void test_libvirt_has_begun(void)
{
    char here[128], there[128], elsewhere[128], uri[140];
    int place;
    pair_start(NULL);
    note();
    snprintf(here, sizeof(here), "%s/a.sock", vms[0].dir);
    snprintf(there, sizeof(there), "%s/b.sock", vms[1].dir);
    snprintf(elsewhere, sizeof(elsewhere), "%s/c.sock", vms[0].dir);
    pair_receive((const char *[]){"--libvirt", there, NULL});
    mover_await_words(&receiver, "waiting at");
    snprintf(uri, sizeof(uri), "unix:%s", there);
    vm_do(&vms[1], "migrate-incoming", json_pack("{s:s}", "uri", uri));
    snprintf(uri, sizeof(uri), "unix:%s", elsewhere);
    mover_stop_next("source:starting");
    pair_send((const char *[]){"--libvirt", here, NULL});
    vm_set_capability(&vms[0], "pause-before-switchover", true); /* as libvirt does */
    mover_await_stop(&sender);
    /* Its watchdog resets this for a tool that stands still: here the migration comes before that.
     */
    const uint64_t soon = vm_soon();
    while (has(&vms[0], "x-ignore-shared") && ibx_now_ns() < soon)
        poll(NULL, 0, LOOK_MS);
    vm_set_capability(&vms[0], "x-ignore-shared", true);
    const int listener = process_full_listener(elsewhere, &place);
    vm_do(&vms[0], "migrate", json_pack("{s:s}", "uri", uri));
    mover_kill(&receiver, SIGKILL);
    mover_kill(&sender, SIGCONT);
    const uint64_t deadline = vm_soon();
    while (!access(here, F_OK) && ibx_now_ns() < deadline)
        poll(NULL, 0, LOOK_MS);
    for (unsigned i = 0; i < 10; i++)
        assert_true(has(&vms[0], "x-ignore-shared"));
    close(listener);
    close(place);
    mover_ends(&sender, 1);
    await_settings(&vms[0], before[0]);
    pair_runs_at_the_source();
}

int main(void)
{
    static const struct vm_test tests[] = {VM_TEST(test_left_behind_while_filling),
                                           VM_TEST(test_snapshots_while_filling),
                                           VM_TEST(test_receiver_killed),
                                           VM_TEST(test_set_late),
                                           VM_TEST(test_changed_at_the_last_moment),
                                           VM_TEST(test_sender_killed_early),
                                           VM_TEST(test_sender_and_watchdog_killed),
                                           VM_TEST(test_sender_and_watchdog_killed_later),
                                           VM_TEST(test_sender_killed_after_the_commit),
                                           VM_TEST(test_sender_killed_at_its_end),
                                           VM_TEST(test_sender_killed_before_the_commit),
                                           VM_TEST(test_cancelled),
                                           VM_TEST(test_a_state_that_is_not_described),
                                           VM_TEST(test_killed_without_its_monitors_socket),
                                           VM_TEST(test_libvirt_has_begun),
                                           VM_TEST(test_rolled_back),
                                           {0}};
    return vm_tests(tests, end);
}
