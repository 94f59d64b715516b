/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What befalls a VM, its QEMU and its tool while it is frozen: they end, somebody else has it
 * pause, sleep or migrate, and its files have no room. */
#include "tests/fixtures/mover.h"

#include "common/clock.h"

#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOBODY 65534

static char snapshot[160];

/* A VM that has run for a while. */
static void begin(void)
{
    mover_begin();
    vm_start(&vms[0], &(struct vm_options){.append = "mib=16"});
    vm_wait_beats(&vms[0], 2);
    snprintf(snapshot, sizeof(snapshot), "%s/snapshot", mover_folder);
}

/* A tool that has stopped itself at this state of a freeze of a new VM. */
static void freezes(struct mover *tool, const char *state, const char *option)
{
    begin();
    mover_stop_next(state);
    mover_start(tool, (const char *[]){"freeze", snapshot, "--qmp", vms[0].tool, option, NULL});
    mover_await_stop(tool);
}

/* Whether QEMU leaves RAM out of what it saves. */
static bool ignores_shared(void)
{
    json_t *list = vm_run(&vms[0], "query-migrate-capabilities", NULL), *one;
    size_t i;
    bool on = false;
    json_array_foreach(list, i, one) on |=
        !strcmp(json_string_value(json_object_get(one, "capability")), "x-ignore-shared") &&
        json_is_true(json_object_get(one, "state"));
    json_decref(list);
    return on;
}

/* QEMU has written its state by then, and would leave the VM stopped. */
static void goes_on(void)
{
    const uint64_t until = vm_soon();
    while (!vm_runs(&vms[0]) || ignores_shared()) {
        if (ibx_now_ns() >= until)
            fail_msg("the VM does not go on");
        poll(NULL, 0, 5);
    }
    vm_wait_beats(&vms[0], vm_beats(&vms[0]) + 2);
    mover_heartbeats((const struct vm *[]){&vms[0], NULL}, "mib=16");
}

static void is_killed_at(const char *state)
{
    struct mover tool;
    freezes(&tool, state, NULL);
    mover_kill(&tool, SIGKILL);
    goes_on();
}

/* The next try meets what the killed one has left, and says what that is. */
static void test_killed_while_it_copies(void)
{
    is_killed_at("freeze:saved");
    MOVER_RUN(0, "freeze", snapshot, "--qmp", vms[0].tool, "--resume"); /* an empty folder */
    mover_end_all(NULL);

    is_killed_at("freeze:copied");
    mover_must_print(MOVER_RUN(1, "freeze", snapshot, "--qmp", vms[0].tool),
                     "has the files of a snapshot that was not finished: remove it, or give "
                     "another one");
    assert_true(vm_runs(&vms[0]));
}

/* The next freeze is there before the watchdog of the one that was killed has QEMU's monitor again,
 * and lets go of it for the watchdog, which has the VM until it ends. */
static void test_frozen_again_at_once(void)
{
    struct mover tool;
    freezes(&tool, "freeze:saved", NULL);
    const pid_t watchdog = mover_watchdog(&tool);
    assert_int_equal(kill(watchdog, SIGSTOP), 0); /* so that it keeps the monitor */
    mover_kill(&tool, SIGKILL);
    mover_start(&tool,
                (const char *[]){"freeze", snapshot, "--qmp", vms[0].tool, "--resume", NULL});
    mover_await_asleep(&tool); /* it waits for the monitor */
    assert_int_equal(kill(watchdog, SIGCONT), 0);
    mover_ends(&tool, 0);
    goes_on();
}

/* Where a tool has died together with its watchdog, nobody has put back what would have savevm
 * leave out the VM's RAM, and the next tool can only put back what it finds. */
static void test_ram_is_left_out_already(void)
{
    begin();
    vm_set_capability(&vms[0], "x-ignore-shared", true);
    struct mover *tool = MOVER_RUN(0, "freeze", snapshot, "--qmp", vms[0].tool, "--resume");
    mover_must_print(tool, "x-ignore-shared was on in QEMU already");
    assert_true(ignores_shared());
    vm_set_capability(&vms[0], "x-ignore-shared", false);
    snprintf(snapshot, sizeof(snapshot), "%s/another", mover_folder);
    tool = MOVER_RUN(0, "freeze", snapshot, "--qmp", vms[0].tool, "--resume");
    assert_false(mover_printed(tool, "x-ignore-shared"));
    assert_false(ignores_shared());
}

/* The tool that freezes a VM has stopped itself at this state of that; then QEMU ends. */
static void qemu_ends_at(struct mover *tool, const char *state)
{
    freezes(tool, state, NULL);
    vm_kill(&vms[0]);
    mover_kill(tool, SIGCONT);
}

/* Nobody can continue the VM. It is not thrown away where the snapshot has all of it. */
static void test_qemu_ends(void)
{
    struct mover tool;
    struct stat st;
    qemu_ends_at(&tool, "freeze:saved");
    mover_ends(&tool, 1);
    mover_must_print(&tool, "has ended, and the VM with it: start it from its disks");
    assert_int_equal(stat(snapshot, &st), -1);
    mover_end_all(NULL);

    qemu_ends_at(&tool, "freeze:copied");
    mover_ends(&tool, 0);
    mover_must_print(&tool, "the VM is only in the snapshot now");
    vm_start(&vms[1], &(struct vm_options){.append = "mib=16",
                                           .ram = "memory-backend-ram,id=mem0,size=64M",
                                           .incoming = true});
    MOVER_RUN(0, "clone", snapshot, "--qmp", vms[1].tool);
    vm_do(&vms[1], "cont", NULL);
    vm_wait_beats(&vms[1], 2);
    mover_heartbeats((const struct vm *[]){&vms[0], &vms[1], NULL}, "mib=16");
}

/* What the kernel tells of a process whose core dump is being written; false: nothing is mounted.
 */
static bool say_that_it_dumps_core(pid_t pid, char at[64])
{
    char line[512], copy[200];
    snprintf(at, 64, "/proc/%d/status", (int)pid);
    snprintf(copy, sizeof(copy), "%s/status", mover_folder);
    FILE *from = fopen(at, "re"), *to = fopen(copy, "we");
    assert_true(from && to);
    while (fgets(line, sizeof(line), from))
        fputs(strncmp(line, "CoreDumping:", 12) != 0 ? line : "CoreDumping:\t1\n", to);
    fclose(from);
    assert_int_equal(fclose(to), 0);
    return !mount(copy, at, NULL, MS_BIND, NULL);
}

/* QEMU crashes when all has been copied, and its core dump takes longer than anybody waits: until
 * then it has not ended, and answers nobody. Here it stands still instead. */
static void test_qemu_dumps_core(void)
{
    struct mover tool;
    char at[64];
    freezes(&tool, "freeze:copied", NULL);
    if (!say_that_it_dumps_core(vms[0].pid, at))
        skip();
    kill(vms[0].pid, SIGSTOP);
    mover_kill(&tool, SIGCONT);
    const int status = mover_wait(&tool);
    struct mover *check = MOVER_RUN(1, "check", "--qmp", vms[0].tool);
    umount(at);
    assert_int_equal(status, 0);
    mover_must_print(&tool, "the VM is only in the snapshot now");
    mover_must_print(check, "has crashed, and its core dump is being written");
}

/* Both users at once, by which programs that are started are nobody. */
static void become(uid_t user)
{
    assert_int_equal(setresuid(0, 0, 0), 0);
    assert_int_equal(setresgid(user, user, 0), 0);
    assert_int_equal(setresuid(user, user, 0), 0);
}

/* Nobody has waited for it: what a process that is dead has in /proc is root's. */
static void test_qemu_is_a_zombie(void)
{
    struct mover tool;
    siginfo_t ended;
    if (geteuid())
        skip();
    mover_begin();
    assert_int_equal(chown(mover_folder, NOBODY, NOBODY), 0);
    vm_start(&vms[0], &(struct vm_options){.append = "mib=16", .nobody = true});
    vm_wait_beats(&vms[0], 2);
    snprintf(snapshot, sizeof(snapshot), "%s/snapshot", mover_folder);
    mover_stop_next("freeze:copied");
    become(NOBODY);
    const bool may = !access(getenv("IB_MIGRATE"), X_OK);
    if (may)
        mover_start(&tool, (const char *[]){"freeze", snapshot, "--qmp", vms[0].tool, NULL});
    become(0);
    if (!may)
        skip();
    mover_await_stop(&tool);
    kill(vms[0].pid, SIGKILL);
    assert_int_equal(waitid(P_PID, (id_t)vms[0].pid, &ended, WEXITED | WNOWAIT), 0);
    mover_kill(&tool, SIGCONT);
    mover_ends(&tool, 0);
    mover_must_print(&tool, "the VM is only in the snapshot now");
}

static void test_files_may_not_be_so_large(void)
{
    const struct rlimit small = {1 << 20, RLIM_INFINITY};
    struct rlimit before;
    struct mover tool;
    begin();
    getrlimit(RLIMIT_FSIZE, &before);
    setrlimit(RLIMIT_FSIZE, &small);
    mover_start(&tool, (const char *[]){"freeze", snapshot, "--qmp", vms[0].tool, NULL});
    setrlimit(RLIMIT_FSIZE, &before);
    mover_ends(&tool, 1);
    mover_must_print(&tool, "cannot have 67108864 bytes: File too large");
    goes_on();
}

/* ------------------------------------------------------------ beside another client */

/* It is killed, and its watchdog does not say of a VM that stands still that it goes on. */
static void is_killed_and_leaves(struct mover *tool)
{
    mover_kill(tool, SIGKILL);
    mover_await_watchdog(tool, "does not run here, and is left so (QEMU says ");
    assert_false(mover_printed(tool, "VM  ")); /* one without a name has its monitor's */
    assert_false(vm_runs(&vms[0]));
    assert_false(mover_resumed(&vms[0]));
    mover_end_all(NULL);
}

/* Somebody pauses the VM before QEMU's migration stops it: it stays so, whatever comes then. */
static void test_paused_before_its_stop(void)
{
    struct mover tool;
    freezes(&tool, "freeze:prepared", "--resume");
    vm_do(&vms[0], "stop", NULL);
    is_killed_and_leaves(&tool);

    freezes(&tool, "freeze:prepared", "--resume");
    vm_do(&vms[0], "stop", NULL);
    mover_kill(&tool, SIGCONT);
    mover_ends(&tool, 0);
    assert_false(vm_runs(&vms[0]));
    assert_false(mover_resumed(&vms[0]));
    mover_end_all(NULL);
}

/* Somebody pauses the VM when it goes on already, and then the snapshot cannot be finished: it
 * stays paused. */
static void test_paused_before_its_manifest(void)
{
    struct mover tool;
    struct stat st;
    char in_the_way[200];
    freezes(&tool, "freeze:continued", "--resume");
    assert_true(vm_runs(&vms[0]) && mover_resumed(&vms[0]));
    vm_do(&vms[0], "stop", NULL);
    snprintf(in_the_way, sizeof(in_the_way), "%s/manifest.json.new", snapshot);
    assert_int_equal(mkdir(in_the_way, 0700), 0);
    mover_kill(&tool, SIGCONT);
    mover_ends(&tool, 1);
    mover_must_print(&tool, "manifest.json cannot be written");
    assert_false(vm_runs(&vms[0]));
    assert_false(mover_resumed(&vms[0]));
    assert_int_equal(rmdir(in_the_way), 0);
    assert_int_equal(stat(snapshot, &st), 0);
    assert_int_equal(rmdir(snapshot), 0);
    mover_end_all(NULL);
}

/* `device`: NULL, or one that it has besides. */
static void begin_one_that_can_sleep(const char *device)
{
    mover_begin();
    vm_start(&vms[0], &(struct vm_options){.append = "button=3",
                                           .extra = {device ? "-device" : NULL, device}});
    vm_wait_beats(&vms[0], 2);
    vm_do(&vms[0], "set-action", json_pack("{s:s}", "reboot", "reset")); /* no place to wake at */
    snprintf(snapshot, sizeof(snapshot), "%s/snapshot", mover_folder);
}

/* It is frozen, and its guest goes to sleep (S3) at this state of that. */
static void freeze_asleep_at(struct mover *tool, const char *state)
{
    mover_stop_next(state);
    mover_start(tool, (const char *[]){"freeze", snapshot, "--qmp", vms[0].tool, "--resume", NULL});
    mover_await_stop(tool);
    vm_do(&vms[0], "system_powerdown", NULL);
    json_decref(vm_event(&vms[0], "SUSPEND", NULL));
    mover_kill(tool, SIGCONT);
}

static void falls_asleep_at(struct mover *tool, const char *state)
{
    begin_one_that_can_sleep(NULL);
    freeze_asleep_at(tool, state);
}

/* QEMU 7.2 wakes it as it stops it; later ones, which would end by an assertion when they continue
 * it, are not told to. */
static void test_asleep_before_its_stop(void)
{
    struct mover tool;
    struct stat st;
    falls_asleep_at(&tool, "freeze:prepared");
    const bool sleeps_on = ibx_qmp_sleeps_on(ibx_qmp_version(vms[0].qmp));
    mover_ends(&tool, sleeps_on ? 1 : 0);
    assert_int_equal(stat(snapshot, &st), sleeps_on ? -1 : 0);
    if (sleeps_on) {
        mover_must_print(&tool, "has gone to sleep (S3) while it was being frozen");
        vm_do(&vms[0], "system_wakeup", NULL);
    }
    assert_true(vm_runs(&vms[0]));
    mover_end_all(NULL);

    falls_asleep_at(&tool, "freeze:starting");
    mover_ends(&tool, 0); /* what it was is in the snapshot */
    assert_int_equal(stat(snapshot, &st), 0);
    assert_int_equal(mover_printed(&tool, "went to sleep (S3) in the moment"), sleeps_on);
    assert_int_equal(mover_printed(&tool, "runs on after"), !sleeps_on);
    assert_int_equal(vm_runs(&vms[0]), !sleeps_on);
    assert_int_equal(kill(vms[0].pid, 0), 0);
    if (sleeps_on) { /* ... and sleeps on in a child of that */
        vm_start(&vms[1], &(struct vm_options){.append = "button=3",
                                               .ram = "memory-backend-ram,id=mem0,size=64M",
                                               .incoming = true});
        vm_do(&vms[1], "set-action", json_pack("{s:s}", "reboot", "reset"));
        MOVER_RUN(0, "clone", snapshot, "--qmp", vms[1].tool);
        vm_do(&vms[1], "system_wakeup", NULL);
        assert_true(vm_runs(&vms[1]));
    }
}

/* The tool is killed as soon as the VM has stopped: its watchdog does not let QEMU end. */
static void test_asleep_and_killed(void)
{
    struct mover tool;
    falls_asleep_at(&tool, "freeze:starting,freeze:stopped");
    const bool sleeps_on = ibx_qmp_sleeps_on(ibx_qmp_version(vms[0].qmp));
    mover_await_stop(&tool);
    mover_kill(&tool, SIGKILL);
    if (sleeps_on) {
        mover_await_watchdog(&tool, "its guest sleeps (S3), and this QEMU would end if it "
                                    "continued it: ");
        assert_false(vm_runs(&vms[0]));
        assert_false(ignores_shared());
    } else {
        const uint64_t until = vm_soon();
        while (!vm_runs(&vms[0]) && ibx_now_ns() < until)
            poll(NULL, 0, 5);
        assert_true(vm_runs(&vms[0]));
    }
}

/* ... or before that, when it has not read that the guest sleeps: QEMU's migration is cancelled, so
 * that the guest sleeps on as if nothing had been. What QEMU writes before it stops the VM, of the
 * memory of a display, is more than a socket takes, so that it has not stopped it. */
static void test_asleep_and_killed_unread(void)
{
    struct mover tool;
    begin_one_that_can_sleep("VGA,vgamem_mb=256");
    freeze_asleep_at(&tool, "freeze:starting,freeze:begun");
    mover_await_stop(&tool);
    mover_kill(&tool, SIGKILL);
    mover_await_watchdog(&tool, "is left so (QEMU says suspended): its guest sleeps (S3): "
                                "system_wakeup in QEMU's monitor wakes it");
    vm_do(&vms[0], "system_wakeup", NULL);
    assert_true(vm_runs(&vms[0]));
    assert_false(ignores_shared());
}

/* There is no room for the snapshot: nobody is told to go on with a clone of that, and how the VM
 * is left is said. */
static void test_asleep_and_no_room(void)
{
    struct mover tool;
    struct stat st;
    begin_one_that_can_sleep(NULL);
    const bool sleeps_on = ibx_qmp_sleeps_on(ibx_qmp_version(vms[0].qmp));
    snprintf(snapshot, sizeof(snapshot), "%s/snapshot", mover_mount("size=64k"));
    freeze_asleep_at(&tool, "freeze:starting");
    const int status = mover_wait(&tool);
    const int gone = stat(snapshot, &st);
    assert_int_equal(status, 1);
    assert_int_equal(gone, -1);
    assert_int_equal(kill(vms[0].pid, 0), 0);
    assert_int_equal(vm_runs(&vms[0]), !sleeps_on);
    assert_false(mover_printed(&tool, "with a clone of the snapshot"));
    assert_int_equal(mover_printed(&tool, "its guest sleeps (S3), and this QEMU would end if it "
                                          "continued it: end it (quit in its monitor), and start "
                                          "the VM from its disks"),
                     sleeps_on);
    assert_false(ignores_shared());
}

/* Another migration is under way when this one is to begin: it goes on. */
static void test_beside_a_migration(void)
{
    static const char *const ours[] = {"pause-before-switchover", "events"};
    struct mover tool;
    freezes(&tool, "freeze:prepared", NULL);
    for (unsigned i = 0; i < 2; i++)
        vm_set_capability(&vms[0], ours[i], true);
    vm_do(&vms[0], "migrate", json_pack("{s:s}", "uri", "exec:cat > /dev/null"));
    json_decref(vm_event(&vms[0], "MIGRATION", "pre-switchover"));
    mover_kill(&tool, SIGCONT);
    mover_ends(&tool, 1);
    mover_must_print(&tool, "QEMU did not begin this migration; if another migration of its VM");
    assert_false(mover_resumed(&vms[0]));
    vm_do(&vms[0], "migrate-continue", json_pack("{s:s}", "state", "pre-switchover"));
    json_decref(vm_event(&vms[0], "MIGRATION", "completed"));
}

/* Another migration is over when this one is to begin: the VM may run at the other end of it. QEMU
 * may still have its thread, and would end by SIGSEGV (7.2). */
static void freezes_behind_a_migration(struct mover *tool)
{
    freezes(tool, "freeze:prepared", "--resume");
    vm_set_capability(&vms[0], "events", true);
    vm_do(&vms[0], "migrate", json_pack("{s:s}", "uri", "exec:cat > /dev/null"));
    json_decref(vm_event(&vms[0], "MIGRATION", "completed"));
}

static void test_behind_a_migration(void)
{
    struct mover tool;
    freezes_behind_a_migration(&tool);
    is_killed_and_leaves(&tool);

    freezes_behind_a_migration(&tool);
    mover_kill(&tool, SIGCONT);
    mover_ends(&tool, 1);
    mover_must_print(&tool, "see where it runs now");
    assert_false(vm_runs(&vms[0]));
    assert_false(mover_resumed(&vms[0]));
}

/* One that was paused is continued: its disks were not looked at. */
static void test_continued_before_its_stop(void)
{
    struct mover tool;
    mover_begin();
    vm_start(&vms[0], &(struct vm_options){.append = "mib=16"});
    vm_wait_beats(&vms[0], 2);
    vm_do(&vms[0], "stop", NULL);
    snprintf(snapshot, sizeof(snapshot), "%s/snapshot", mover_folder);
    mover_stop_next("freeze:prepared");
    mover_start(&tool,
                (const char *[]){"freeze", snapshot, "--qmp", vms[0].tool, "--resume", NULL});
    mover_await_stop(&tool);
    vm_do(&vms[0], "cont", NULL);
    mover_kill(&tool, SIGCONT);
    mover_ends(&tool, 1);
    mover_must_print(&tool, "another client of QEMU has continued the VM, which was paused");
    vm_wait_beats(&vms[0], vm_beats(&vms[0]) + 2);
    mover_heartbeats((const struct vm *[]){&vms[0], NULL}, "mib=16");
}

/* How many pages of RAM QEMU's last migration had in it that were not zero. */
static json_int_t pages_saved(void)
{
    json_t *now = vm_run(&vms[0], "query-migrate", NULL);
    const json_int_t pages =
        json_integer_value(json_object_get(json_object_get(now, "ram"), "normal"));
    json_decref(now);
    return pages;
}

/* libvirt saves the VM right before its freeze, and would end QEMU then: RAM is in what it saves.
 */
static void test_saved_right_before_its_stop(void)
{
    struct mover tool;
    freezes(&tool, "freeze:starting", "--resume");
    vm_set_capability(&vms[0], "events", true);
    vm_do(&vms[0], "migrate", json_pack("{s:s}", "uri", "exec:cat > /dev/null"));
    json_decref(vm_event(&vms[0], "MIGRATION", "completed"));
    assert_in_range(pages_saved(), 1000, 1 << 20); /* of 4 KiB; without RAM some 50 */
    const uint64_t until = vm_soon();              /* for QEMU to be done with it */
    while (ibx_qmp_execute(vms[0].qmp, "cont", NULL, NULL, vm_soon(), &vm_error) == -EREMOTEIO &&
           ibx_now_ns() < until)
        poll(NULL, 0, 5);
    mover_kill(&tool, SIGCONT);
    mover_ends(&tool, 0);
    goes_on();
}

/* ... and right after it, when the VM runs again. */
static void test_saved_right_after_its_end(void)
{
    struct mover tool;
    freezes(&tool, "stay:continued", "--resume");
    assert_true(vm_runs(&vms[0]));
    assert_false(ignores_shared());
    mover_kill(&tool, SIGCONT);
    mover_ends(&tool, 0);
    goes_on();
}

/* It was the last one that looked at them. */
static void test_settings_change_before_its_stop(void)
{
    struct mover tool;
    struct stat st;
    freezes(&tool, "freeze:starting", "--resume");
    vm_set_capability(&vms[0], "xbzrle", true);
    mover_kill(&tool, SIGCONT);
    mover_ends(&tool, 1);
    mover_must_print(&tool, "has changed its migration settings (xbzrle)");
    assert_int_not_equal(stat(snapshot, &st), 0);
    goes_on();
}

#define NODE(name) "driver=null-co,size=67108864,node-name=" name

static void freezes_with_disks(struct mover *tool, const char *state, unsigned times)
{
    mover_begin();
    vm_start(&vms[0],
             &(struct vm_options){.append = "mib=16",
                                  .extra = {"-blockdev", NODE("disk"), "-blockdev", NODE("spare"),
                                            "-device", "virtio-blk-pci,drive=disk,addr=5"}});
    vm_wait_beats(&vms[0], 2);
    snprintf(snapshot, sizeof(snapshot), "%s/snapshot", mover_folder);
    mover_stop_often(state, times);
    mover_start(tool, (const char *[]){"freeze", snapshot, "--qmp", vms[0].tool, NULL});
}

static void fails_beside_a_copy(struct mover *tool, const char *words)
{
    vm_do(&vms[0], "blockdev-mirror",
          json_pack("{s:s,s:s,s:s,s:s,s:i}", "job-id", "copy", "device", "disk", "target", "spare",
                    "sync", "full", "speed", 1 << 20));
    mover_kill(tool, SIGCONT);
    mover_ends(tool, 1);
    mover_must_print(tool, words);
    goes_on();
    mover_end_all(NULL);
}

/* A job that copies would write to a disk that QEMU has handed over: QEMU ends, and the VM. Also
 * when it begins after QEMU was told to save its state, and after this tool has asked for jobs. */
static void test_a_block_job_before_its_stop(void)
{
    static const struct {
        const char *at, *words;
    } states[] = {{"freeze:prepared", "the block job copy (mirror, "},
                  {"freeze:starting", "the block job copy (mirror, "},
                  {"freeze:begun", "the block job copy (mirror, "},
                  {"freeze:reading", "the block job copy began while the VM was being frozen"}};
    struct mover tool;
    for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        print_message("%s\n", states[i].at);
        freezes_with_disks(&tool, states[i].at, 1);
        mover_await_stop(&tool);
        fails_beside_a_copy(&tool, states[i].words);
    }
}

/* It begins while QEMU writes, and waits for the last time before it stops the VM. */
static void test_a_block_job_right_before_its_stop(void)
{
    struct mover tool;
    freezes_with_disks(&tool, "freeze:reading", MOVER_STOPS_MAX);
    const unsigned last = mover_go_on(&tool, &vms[0], MOVER_STOPS_MAX);
    assert_in_range(last, 1, MOVER_STOPS_MAX - 1);
    mover_end_all(NULL);
    freezes_with_disks(&tool, "freeze:reading", last);
    assert_int_equal(mover_go_on(&tool, &vms[0], last), last);
    fails_beside_a_copy(&tool, "the block job copy began while the VM was being frozen");
}

/* The client of an export might write to what the VM's children need as it is. */
static void test_an_export_behind_its_stop(void)
{
    struct mover tool;
    char path[200];
    mover_begin();
    vm_start(&vms[0], &(struct vm_options){.append = "mib=16",
                                           .extra = {"-blockdev", NODE("disk"), "-device",
                                                     "virtio-blk-pci,drive=disk,addr=5"}});
    vm_wait_beats(&vms[0], 2);
    snprintf(snapshot, sizeof(snapshot), "%s/snapshot", mover_folder);
    snprintf(path, sizeof(path), "%s/nbd", mover_folder);
    mover_stop_next("freeze:saved");
    mover_start(&tool, (const char *[]){"freeze", snapshot, "--qmp", vms[0].tool, NULL});
    mover_await_stop(&tool);
    vm_do(&vms[0], "nbd-server-start",
          json_pack("{s:{s:s,s:{s:s}}}", "addr", "type", "unix", "data", "path", path));
    vm_do(&vms[0], "block-export-add",
          json_pack("{s:s,s:s,s:s}", "id", "out", "type", "nbd", "node-name", "disk"));
    mover_kill(&tool, SIGCONT);
    mover_ends(&tool, 1);
    mover_must_print(&tool, "is exported by this QEMU (nbd export out)");
    vm_do(&vms[0], "nbd-server-stop", NULL);
    goes_on();
}

int main(void)
{
    static const struct vm_test tests[] = {
        VM_TEST(test_killed_while_it_copies),
        VM_TEST(test_frozen_again_at_once),
        VM_TEST(test_ram_is_left_out_already),
        VM_TEST(test_qemu_ends),
        VM_TEST(test_qemu_dumps_core),
        VM_TEST(test_qemu_is_a_zombie),
        VM_TEST(test_files_may_not_be_so_large),
        VM_TEST(test_paused_before_its_stop),
        VM_TEST(test_paused_before_its_manifest),
        VM_TEST(test_asleep_before_its_stop),
        VM_TEST(test_asleep_and_killed),
        VM_TEST(test_asleep_and_killed_unread),
        VM_TEST(test_asleep_and_no_room),
        VM_TEST(test_beside_a_migration),
        VM_TEST(test_behind_a_migration),
        VM_TEST(test_continued_before_its_stop),
        VM_TEST(test_saved_right_before_its_stop),
        VM_TEST(test_saved_right_after_its_end),
        VM_TEST(test_settings_change_before_its_stop),
        VM_TEST(test_a_block_job_before_its_stop),
        VM_TEST(test_a_block_job_right_before_its_stop),
        VM_TEST(test_an_export_behind_its_stop),
        {0},
    };
    return vm_tests(tests, mover_end_all);
}
