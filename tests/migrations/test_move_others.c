/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Migrations of the source's VM that another program makes, before this one or in the middle of it.
 * The VM may run at the other end of those: no tool cancels them, or continues the VM here after
 * one is complete.
 */
#include "tests/fixtures/mover.h"

#include "migrate/common/return_path.h"
#include "migrate/common/vm.h"

#include "common/clock.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static void *take_all(void *listener)
{
    char bytes[4096];
    const int fd = accept((int)(intptr_t)listener, NULL, NULL);
    while (read(fd, bytes, sizeof(bytes)) > 0)
        ;
    close(fd);
    close((int)(intptr_t)listener);
    return NULL;
}

/* A socket where somebody takes what QEMU writes: "unix:PATH". From a pipe ("exec:") the threads
 * of QEMU 10 read on when a migration with a return path is cancelled, and nothing ends them. */
static void somebody_takes_all(char uri[128])
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    pthread_t thread;
    snprintf(address.sun_path, sizeof(address.sun_path), "%.64s/other", mover_folder);
    snprintf(uri, 128, "unix:%s", address.sun_path);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(pthread_create(&thread, NULL, take_all, (void *)(intptr_t)fd), 0);
    pthread_detach(thread);
}

/* Another client begins a migration of its own after this one has passed all checks. The VM may run
 * at the other end of that: the tool does not cancel it, which would run the VM here, too. */
static void begin_another_migration(void)
{
    char uri[128];
    somebody_takes_all(uri);
    vm_do(&vms[0], "migrate-set-capabilities",
          json_pack("{s:[{s:s,s:b},{s:s,s:b}]}", "capabilities", "capability",
                    "pause-before-switchover", "state", 1, "capability", "events", "state", 1));
    vm_do(&vms[0], "migrate", json_pack("{s:s}", "uri", uri));
    json_decref(vm_event(&vms[0], "MIGRATION", "pre-switchover"));
}

/* QEMU keeps what it was given by getfd for the next client of the monitor. */
static void no_descriptor_is_left(void)
{
    int ours, theirs;
    vm_ok(ibx_vm_stream(&ours, &theirs, &vm_error));
    vm_refused(ibx_vm_migrate(vms[0].qmp, false, theirs, vm_soon(), &vm_error), -EREMOTEIO,
               "is migrating this VM already (pre-switchover)");
    vm_refused(ibx_qmp_execute(vms[0].qmp, "closefd", json_pack("{s:s}", "fdname", "ibx-state"),
                               NULL, vm_soon(), &vm_error),
               -EREMOTEIO, "not found");
    close(ours);
    close(theirs);
}

static void that_goes_on(void)
{
    struct ibx_vm_progress now;
    mover_ends(&sender, 1);
    mover_ends(&receiver, 1);
    no_descriptor_is_left();
    assert_int_equal(ibx_vm_migration(vms[0].qmp, &now, vm_soon(), NULL), 0);
    assert_string_equal(now.status, "pre-switchover");
    assert_false(mover_resumed(&vms[0]));
    vm_do(&vms[0], "migrate_cancel", NULL);
    json_decref(vm_event(&vms[0], "RESUME", NULL));
    pair_stayed();
}

static void test_another_migration_is_left_alone(void)
{
    pair_start(NULL);
    pair_run_to("source:exposing", NULL);
    begin_another_migration();
    mover_kill(&sender, SIGCONT);
    mover_await_words(&sender, "QEMU did not begin this migration");
    that_goes_on();
}

/* The same if this migration ends before its tool has told QEMU to begin. */
static void test_another_migration_beside_a_cancelled_one(void)
{
    pair_start(NULL);
    pair_receive(NULL);
    mover_stop_next("source:dropping");
    pair_send((const char *[]){"--warm", NULL});
    mover_await_stop(&sender);
    begin_another_migration();
    mover_kill(&sender, SIGINT);
    mover_kill(&sender, SIGCONT);
    that_goes_on();
}

/* Another client saves the VM, as libvirt would, when this tool has set all but one setting, and is
 * about to have QEMU begin: the VM's memory is in that. */
static void saves_with_ram(const char *const *words, bool ends)
{
    pair_start(&(struct vm_options){.append = "mib=16"});
    pair_receive(NULL);
    mover_stop_next(words ? "source:dropping" : "source:compared");
    pair_send(words);
    mover_await_stop(&sender);
    vm_do(&vms[0], "migrate-set-capabilities",
          json_pack("{s:[{s:s,s:b},{s:s,s:b}]}", "capabilities", "capability", "return-path",
                    "state", 0, "capability", "events", "state", 1));
    vm_do(&vms[0], "migrate", json_pack("{s:s}", "uri", "exec:cat > /dev/null"));
    json_decref(vm_event(&vms[0], "MIGRATION", "completed"));
    json_t *now = vm_run(&vms[0], "query-migrate", NULL);
    assert_in_range(json_integer_value(json_object_get(json_object_get(now, "ram"), "normal")),
                    4096, 1 << 20); /* pages of 4 KiB: the guest fills 16 MiB */
    json_decref(now);
    if (ends)
        vm_kill(&vms[0]);
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 1);
    mover_ends(&receiver, 1);
    if (ends)
        mover_must_print(&sender, "if it was saved (virsh save, virsh managedsave), restore it");
    else
        assert_false(mover_resumed(&vms[0])); /* it may run elsewhere */
    mover_end_all(NULL);
}

static void test_a_save_right_before_has_ram(void)
{
    saves_with_ram(NULL, false);
    saves_with_ram((const char *[]){"--warm", NULL}, false);
    saves_with_ram(NULL, true);
}

/* ------------------------------------------------------------ after this one was begun */

/* Another program makes its own migration after this one was cancelled: its end is as it would be
 * without this tool. */
static void make_another_migration(const char *until)
{
    static const char *const ours[] = {"x-ignore-shared", "return-path"};
    for (unsigned i = 0; i < 2; i++)
        vm_do(&vms[0], "migrate-set-capabilities",
              json_pack("{s:[{s:s,s:b}]}", "capabilities", "capability", ours[i], "state", 0));
    begin_another_migration();
    if (!strcmp(until, "completed")) {
        vm_do(&vms[0], "migrate-continue", json_pack("{s:s}", "state", "pre-switchover"));
        json_decref(vm_event(&vms[0], "MIGRATION", until));
    }
    mover_resumed(&vms[0]); /* of what was before */
}

static void it_is_still(const char *state)
{
    struct ibx_vm_progress now;
    assert_int_equal(ibx_vm_migration(vms[0].qmp, &now, vm_soon(), NULL), 0);
    assert_string_equal(now.status, state);
    assert_false(mover_resumed(&vms[0]));
    assert_false(vm_runs(&vms[0]));
}

/* Rollback, too, leaves the VM alone until the operator has checked where it runs. */
static void then_it_is_rolled_back(const char *state)
{
    it_is_still(state);
    const struct mover *refused = MOVER_RUN(1, "rollback", "--qmp", vms[0].tool, "--yes", TIMED);
    mover_must_print(refused, "another program");
    it_is_still(state);
    vm_do(&vms[0], strcmp(state, "completed") != 0 ? "migrate_cancel" : "cont", NULL);
    json_decref(vm_event(&vms[0], "RESUME", NULL));
    MOVER_RUN(0, "rollback", "--qmp", vms[0].tool, "--yes", TIMED);
    pair_runs_at_the_source();
    mover_end_all(NULL);
}

/* The tool has ended, and its watchdog says what it cannot do. */
static void the_watchdog_refuses(void)
{
    const uint64_t deadline = vm_soon();
    while (!mover_printed(&sender, "could not be continued here")) {
        if (ibx_now_ns() >= deadline)
            fail_msg("the watchdog says nothing");
        poll(NULL, 0, 2);
    }
    mover_must_print(&sender, "another program");
}

/* The watchdog comes late, when QEMU has continued the VM by itself. */
static void after_a_killed_tool(const char *state)
{
    pair_start(NULL);
    pair_run_to("source:stopped", NULL);
    const pid_t watchdog = mover_watchdog(&sender);
    assert_int_equal(kill(watchdog, SIGSTOP), 0);
    mover_kill(&sender, SIGKILL);
    json_decref(vm_event(&vms[0], "MIGRATION", "failed"));
    make_another_migration(state);
    assert_int_equal(kill(watchdog, SIGCONT), 0);
    the_watchdog_refuses();
    mover_ends(&receiver, 1);
    then_it_is_rolled_back(state);
}

static void test_after_a_killed_tool(void)
{
    after_a_killed_tool("pre-switchover");
    after_a_killed_tool("completed");
}

/* QEMU still has the connection that holds our migration open. */
static void beside_a_held_one(const char *state)
{
    pair_start(NULL);
    pair_run_to("destination:waiting", NULL);
    mover_await_asleep(&sender);
    mover_kill(&sender, SIGSTOP);
    vm_do(&vms[0], "migrate_cancel", NULL);
    json_decref(vm_event(&vms[0], "RESUME", NULL));
    make_another_migration(state);
    mover_kill(&sender, SIGCONT);
    mover_kill(&receiver, SIGCONT);
    mover_ends(&sender, 3);
    mover_must_print(&sender, "another program");
    mover_ends(&receiver, 1);
    the_watchdog_refuses();
    then_it_is_rolled_back(state);
}

static void test_beside_a_held_one(void)
{
    beside_a_held_one("pre-switchover");
    beside_a_held_one("completed");
}

/* What QEMU still has of our migration proves nothing: the VM has run here. */
static void recovered_beside(const char *state, int status)
{
    pair_start(NULL);
    mover_kill(pair_run_to("source:committed", NULL), SIGKILL);
    vm_do(&vms[0], "migrate_cancel", NULL);
    json_decref(vm_event(&vms[0], "RESUME", NULL));
    make_another_migration(state);
    pair_recover(&sender);
    mover_ends(&sender, status);
    mover_must_print(&sender, "another program");
    it_is_still(state);
    assert_false(mover_resumed(&vms[1]));
}

static void test_recovered_beside_one_under_way(void)
{
    recovered_beside("pre-switchover", 1);
    mover_ends(&receiver, 1);
    mover_must_print(&receiver, "may have changed before the destination had fetched it");
    mover_await_record("source", "broken");
}

/* ... which may also be a rollback of ours that was killed: nobody is told. */
static void test_recovered_after_a_complete_one(void)
{
    recovered_beside("completed", 3);
    mover_await_record("source", "may-run");
}

static struct mover rollback;

/* The first rollback is killed when QEMU's migration is over and the VM is not yet continued. */
static void cut_off(void)
{
    pair_start(NULL);
    mover_kill(pair_run_to("source:committed", NULL), SIGKILL);
    mover_kill(&receiver, SIGKILL);
    vm_kill(&vms[1]);
    mover_stop_next("rollback:marked");
    mover_start(&rollback,
                (const char *[]){"rollback", "--qmp", vms[0].tool, "--yes", TIMED, NULL});
    mover_await_stop(&rollback);
    mover_kill(&rollback, SIGKILL);
}

static void test_a_rollback_that_was_cut_off(void)
{
    cut_off();
    MOVER_RUN(0, "rollback", "--qmp", vms[0].tool, "--yes", TIMED);
    pair_runs_at_the_source();
}

static void test_after_a_rollback_that_was_cut_off(void)
{
    cut_off();
    vm_do(&vms[0], "cont", NULL);
    make_another_migration("completed");
    then_it_is_rolled_back("completed");
}

/* The same between the end of ours and the moment when this rollback continues the VM. */
static void beside_a_rollback(const char *at, const char *state)
{
    pair_start(NULL);
    mover_kill(pair_run_to("source:committed", NULL), SIGKILL);
    mover_kill(&receiver, SIGKILL);
    vm_kill(&vms[1]);
    mover_stop_next(at);
    mover_start(&rollback,
                (const char *[]){"rollback", "--qmp", vms[0].tool, "--yes", TIMED, NULL});
    mover_await_stop(&rollback);
    vm_do(&vms[0], "cont", NULL);
    make_another_migration(state);
    mover_kill(&rollback, SIGCONT);
    mover_ends(&rollback, 1);
    mover_must_print(&rollback, "another program");
    then_it_is_rolled_back(state);
}

static void test_beside_a_rollback(void)
{
    beside_a_rollback("rollback:released", "completed");
    beside_a_rollback("rollback:marked", "completed");
    beside_a_rollback("rollback:marked", "pre-switchover");
}

/* ------------------------------------------------------------ another client's answers */

/* A client has gone while QEMU executes its command: QEMU writes memory to a pipe that nobody reads
 * yet. */
static void somebody_was_there(const char *pipe)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char bytes[4096];
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", vms[0].tool);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_true(read(fd, bytes, sizeof(bytes)) > 0);
    assert_true(dprintf(fd, "{\"execute\": \"qmp_capabilities\"}\n") > 0);
    assert_true(read(fd, bytes, sizeof(bytes)) > 0);
    assert_true(dprintf(fd,
                        "{\"execute\": \"pmemsave\", \"id\": 1, \"arguments\": {\"val\": 0, "
                        "\"size\": 4096, \"filename\": \"%s\"}}\n",
                        pipe) > 0);
    vm_await_opening(&vms[0]);
    close(fd);
}

/* The next tool gets QEMU's answer to that command before it has asked anything. */
static void test_an_answer_to_an_earlier_client(void)
{
    char pipe[128], bytes[4096];
    pair_start_source();
    snprintf(pipe, sizeof(pipe), "%.64s/pipe", mover_folder);
    somebody_was_there(pipe);
    mover_start(&sender, (const char *[]){"check", "--qmp", vms[0].tool, NULL});
    mover_await_asleep(&sender);
    const int fd = open(pipe, O_RDONLY | O_CLOEXEC);
    while (read(fd, bytes, sizeof(bytes)) > 0)
        ;
    close(fd);
    mover_ends(&sender, 0);
    mover_must_print(&sender, "can be migrated");
    unlink(pipe);
}

/* ------------------------------------------------------------ another VM's monitor */

static struct vm other;
static char kept[sizeof(other.tool) + 8];

/* A QEMU that was started since has its monitor at the address of the source's, and a VM that its
 * operator has paused. */
static void other_has_the_monitor(void)
{
    vm_start(&other, &(struct vm_options){.append = ""});
    vm_do(&other, "stop", NULL);
    mover_resumed(&other);
    snprintf(kept, sizeof(kept), "%s.kept", vms[0].tool);
    assert_int_equal(rename(vms[0].tool, kept), 0);
    assert_int_equal(rename(other.tool, vms[0].tool), 0);
}

/* That VM stands still, and the source's is continued when its monitor is back. */
static void it_is_left_alone(void)
{
    assert_false(mover_resumed(&other));
    assert_false(vm_runs(&other));
    mover_must_print(MOVER_RUN(1, "rollback", "--qmp", vms[0].tool, "--yes", TIMED),
                     "restore that QEMU's monitor");
    assert_false(vm_runs(&other));
    assert_int_equal(rename(kept, vms[0].tool), 0);
    MOVER_RUN(0, "rollback", "--qmp", vms[0].tool, "--yes", TIMED);
    pair_runs_at_the_source();
    mover_end_all(NULL);
}

static void test_a_monitor_of_another_vm(void)
{
    pair_start(NULL);
    mover_kill(pair_run_to("source:committed", NULL), SIGKILL);
    mover_kill(&receiver, SIGKILL);
    vm_kill(&vms[1]);
    other_has_the_monitor();
    it_is_left_alone();
}

static void test_a_monitor_of_another_vm_and_a_killed_tool(void)
{
    pair_start(NULL);
    pair_run_to("source:sending", NULL);
    const pid_t watchdog = mover_watchdog(&sender);
    assert_int_equal(kill(watchdog, SIGSTOP), 0);
    mover_kill(&sender, SIGKILL);
    mover_kill(&receiver, SIGKILL);
    vm_kill(&vms[1]);
    other_has_the_monitor();
    assert_int_equal(kill(watchdog, SIGCONT), 0);
    const uint64_t deadline = vm_soon();
    while (!mover_printed(&sender, "could not be continued here")) {
        if (ibx_now_ns() >= deadline)
            fail_msg("the watchdog says nothing");
        poll(NULL, 0, 2);
    }
    it_is_left_alone();
}

/* A snapshot has the state of the VM, which stands still while its memory is copied. */
static void beside_a_snapshot(bool killed)
{
    char folder[160];
    pair_start_source();
    snprintf(folder, sizeof(folder), "%s/snapshot", mover_folder);
    mover_stop_next("freeze:saved");
    mover_start(&sender,
                (const char *[]){"freeze", folder, "--qmp", vms[0].tool, "--resume", NULL});
    mover_await_stop(&sender);
    const pid_t watchdog = mover_watchdog(&sender);
    if (killed) {
        assert_int_equal(kill(watchdog, SIGSTOP), 0);
        mover_kill(&sender, SIGKILL);
    }
    vm_do(&vms[0], "cont", NULL);
    make_another_migration("completed");
    if (killed) {
        assert_int_equal(kill(watchdog, SIGCONT), 0);
        the_watchdog_refuses();
    } else {
        mover_kill(&sender, SIGCONT);
        mover_ends(&sender, 1);
        mover_must_print(&sender, "has continued, reset or migrated the VM while");
    }
    it_is_still("completed");
    mover_end_all(NULL);
}

static void test_beside_a_snapshot(void)
{
    beside_a_snapshot(false);
    beside_a_snapshot(true);
}

/* ------------------------------------------------------------ an export of its disk */

static char disk_file[96];

static void make_the_disk(void)
{
    snprintf(disk_file, sizeof(disk_file), "/dev/shm/ibx-test-disk-%d", (int)getpid());
    const int fd = open(disk_file, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, 1 << 20), 0);
    close(fd);
}

/* A VM with a disk that both of its QEMUs have, which hand over who may write to it. */
static void start_with_a_disk(void)
{
    char drive[200];
    make_the_disk();
    snprintf(drive, sizeof(drive), "file=%s,format=raw,if=none,id=disk", disk_file);
    pair_start(&(struct vm_options){
        .append = "", .extra = {"-drive", drive, "-device", "virtio-blk-pci,drive=disk,addr=8"}});
}

/* QEMU takes the disk back for the export, and the other QEMU cannot have it. */
static void export_the_disk(void)
{
    char path[160];
    snprintf(path, sizeof(path), "%s/nbd", mover_folder);
    vm_do(&vms[0], "nbd-server-start",
          json_pack("{s:{s:s,s:{s:s}}}", "addr", "type", "unix", "data", "path", path));
    vm_do(&vms[0], "nbd-server-add", json_pack("{s:s}", "device", "disk"));
}

static void test_an_export_before_the_commit(void)
{
    start_with_a_disk();
    pair_run_to("source:sending", NULL);
    export_the_disk();
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 1);
    mover_ends(&receiver, 1);
    mover_must_print(&sender, "is exported by this QEMU");
    vm_do(&vms[0], "nbd-server-stop", NULL);
    pair_stays();
    unlink(disk_file);
}

/* At the last moment QEMU takes the disk back also for an export that it then refuses, and keeps
 * it, without an export that could be seen. */
static void test_a_refused_export_before_the_commit(void)
{
    char path[160];
    start_with_a_disk();
    pair_run_to("source:committing", NULL);
    snprintf(path, sizeof(path), "%s/nbd", mover_folder);
    vm_do(&vms[0], "nbd-server-start",
          json_pack("{s:{s:s,s:{s:s}}}", "addr", "type", "unix", "data", "path", path));
    vm_refused(ibx_qmp_execute(vms[0].qmp, "nbd-server-add",
                               json_pack("{s:s,s:b}", "device", "disk", "writable", 1), NULL,
                               vm_soon(), &vm_error),
               -EREMOTEIO, "Permission conflict");
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "if QEMU has taken it back for an export that it refused");
    mover_ends(&receiver, 1);
    pair_stays();
    unlink(disk_file);
}

static void stands_still(void)
{
    mover_await_words(&receiver, "is here and stopped, since it could not be continued");
    mover_await_words(&sender, "since somebody has begun here to use a disk");
    mover_await(&receiver, "filling", 100);
    assert_false(vm_runs(&vms[1]));
}

/* QEMU 10 can never run the VM then: it is given back. */
static bool is_given_back(void)
{
    if (!ibx_qmp_at_least(ibx_qmp_version(vms[1].qmp), 10, 0))
        return false;
    mover_ends(&receiver, 1);
    mover_must_print(&receiver, "has loaded the VM and cannot run it");
    mover_ends(&sender, 1);
    mover_must_print(&sender, "has loaded the VM and cannot run it");
    vm_await_end(&vms[1]);
    pair_stays();
    unlink(disk_file);
    return true;
}

/* The source's QEMU does not hand the disk over again before it ends, and the migration is not
 * complete before that. */
static void it_goes_on(void)
{
    vm_do(&vms[0], "quit", NULL);
    vm_await_end(&vms[0]);
    pair_done();
    mover_must_print(&receiver, "the VM is \"running\" now");
    pair_moved("");
    unlink(disk_file);
}

/* False: the VM was given back, as QEMU 10 has it. */
static bool exported_after_the_commit(void)
{
    start_with_a_disk();
    pair_run_to("source:committed", NULL);
    export_the_disk();
    mover_kill(&sender, SIGCONT);
    if (is_given_back())
        return false;
    stands_still();
    return true;
}

static void test_an_export_after_the_commit(void)
{
    if (exported_after_the_commit())
        it_goes_on();
}

/* The next tool continues it then. */
static void test_an_export_and_a_killed_receiver(void)
{
    if (!exported_after_the_commit())
        return;
    for (unsigned i = 0; i < 2; i++) {
        mover_kill(&receiver, SIGKILL);
        pair_recover(&receiver);
        mover_await_words(&receiver, "is here and stopped, since it could not be continued");
    }
    it_goes_on();
}

/* QEMU does not hand over a quorum of raw images at all: the VM stays. With auto-read-only QEMU
 * opens them anew as it keeps them. */
static void test_a_quorum_of_raw_images(void)
{
    static const char *const kinds[] = {"", ",auto-read-only=on"};
    for (size_t i = 0; i < 2; i++) {
        char disk[200];
        make_the_disk();
        snprintf(disk, sizeof(disk), "driver=file,node-name=file,filename=%s%s", disk_file,
                 kinds[i]);
        pair_start(&(struct vm_options){
            .append = "",
            .extra = {"-blockdev", disk, "-blockdev", "driver=raw,node-name=raw,file=file",
                      "-blockdev", "driver=quorum,node-name=disk,vote-threshold=1,children.0=raw",
                      "-device", "virtio-blk-pci,drive=disk,addr=8"}});
        pair_run(NULL);
        mover_ends(&sender, 1);
        mover_must_print(&sender, "does not hand");
        mover_ends(&receiver, 1);
        pair_stays();
        unlink(disk_file);
        mover_end_all(NULL);
    }
}

int main(void)
{
    pair_beats = 10;
    static const struct vm_test tests[] = {VM_TEST(test_another_migration_is_left_alone),
                                           VM_TEST(test_another_migration_beside_a_cancelled_one),
                                           VM_TEST(test_a_save_right_before_has_ram),
                                           VM_TEST(test_after_a_killed_tool),
                                           VM_TEST(test_beside_a_held_one),
                                           VM_TEST(test_recovered_beside_one_under_way),
                                           VM_TEST(test_recovered_after_a_complete_one),
                                           VM_TEST(test_a_rollback_that_was_cut_off),
                                           VM_TEST(test_after_a_rollback_that_was_cut_off),
                                           VM_TEST(test_beside_a_rollback),
                                           VM_TEST(test_beside_a_snapshot),
                                           VM_TEST(test_an_answer_to_an_earlier_client),
                                           VM_TEST(test_an_export_before_the_commit),
                                           VM_TEST(test_a_refused_export_before_the_commit),
                                           VM_TEST(test_an_export_after_the_commit),
                                           VM_TEST(test_an_export_and_a_killed_receiver),
                                           VM_TEST(test_a_quorum_of_raw_images),
                                           VM_TEST(test_a_monitor_of_another_vm),
                                           VM_TEST(test_a_monitor_of_another_vm_and_a_killed_tool),
                                           {0}};
    return vm_tests(tests, mover_end_all);
}
