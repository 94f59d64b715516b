/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Obstacles to a migration, also after it has begun: the VM runs on at the source, and a sentence
 * names the obstacle. */
#include "tests/fixtures/mover.h"

#include "common/clock.h"
#include "migrate/common/vm.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define SNAPSHOTS 4

#define DISK "driver=null-co,size=1048576,node-name="

static const struct vm_options with_nodes = {.append = "",
                                             .extra = {"-blockdev", DISK "disk", "-blockdev",
                                                       DISK "spare", "-device",
                                                       "virtio-blk-pci,drive=disk,addr=5"}};

/* Begins a mirror job that never ends: it copies only the VM's own writes, and there are none. */
static void begin_mirror(void)
{
    vm_do(&vms[0], "blockdev-mirror",
          json_pack("{s:s,s:s,s:s,s:s,s:b}", "job-id", "copy", "device", "disk", "target", "spare",
                    "sync", "none", "auto-finalize", 1));
}

static void end_mirror(void)
{
    vm_do(&vms[0], "block-job-cancel", json_pack("{s:s,s:b}", "device", "copy", "force", 1));
    json_decref(vm_event(&vms[0], "JOB_STATUS_CHANGE", "null"));
}

/* A job is in the way of `send` and `check`, and when it has ended the VM moves. */
static void test_block_job(void)
{
    static const char words[] = "the block job copy (mirror, ready) works in this QEMU";
    pair_start(&with_nodes);
    begin_mirror();
    json_decref(vm_event(&vms[0], "JOB_STATUS_CHANGE", "ready"));
    pair_run(NULL);
    mover_ends(&sender, 1);
    mover_must_print(&sender, words);
    assert_true(mover_printed(MOVER_RUN(1, "check", "--qmp", vms[0].tool), words));
    pair_stays();
    end_mirror();
    pair_send(NULL);
    pair_done();
    pair_moved("");
}

/* One that begins after `check`, while the VM's memory is exposed: the VM does not even stop. */
static void test_a_late_block_job(void)
{
    pair_start(&with_nodes);
    pair_run_to("source:exposing", NULL);
    begin_mirror();
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "the block job copy (mirror, ready) works in this QEMU");
    mover_ends(&receiver, 1);
    pair_no_maps();
    pair_stays();
    json_t *event = vm_event(&vms[0], "JOB_STATUS_CHANGE", "ready");
    json_decref(event);
    end_mirror();
    pair_stayed();
}

/* One that begins after the other checks: QEMU is not told to migrate at all. It might have handed
 * the disk over under the job, and so ended, before this tool could cancel that. */
static void test_block_job_before_migrate(void)
{
    pair_start(&with_nodes);
    pair_run_to("source:compared", NULL);
    begin_mirror();
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "the block job copy (mirror, ");
    mover_ends(&receiver, 1);
    json_t *answer = vm_run(&vms[0], "query-migrate", NULL);
    assert_null(json_object_get(answer, "status"));
    json_decref(answer);
    end_mirror();
    pair_stayed();
}

/* One that begins in the milliseconds between `migrate` and the stop is reported by its event. */
static void test_block_job_at_the_stop(void)
{
    pair_start(&with_nodes);
    pair_run_to("source:starting", NULL);
    vm_do(&vms[0], "blockdev-create",
          json_pack("{s:s,s:{s:s,s:s,s:i}}", "job-id", "late", "options", "driver", "qcow2", "file",
                    "spare", "size", 1 << 20));
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "the block job late began here at the last moment");
    mover_ends(&receiver, 1);
    pair_stayed();
}

/* Would write to a disk that QEMU has handed over, and end QEMU by an assertion, and the VM. */
static void begin_copy(void)
{
    vm_do(&vms[0], "blockdev-mirror",
          json_pack("{s:s,s:s,s:s,s:s,s:i}", "job-id", "copy", "device", "disk", "target", "spare",
                    "sync", "full", "speed", 4096));
}

static void sends_to(const char *state, unsigned times, const char *option)
{
    pair_start(&with_nodes);
    mover_stop_often(state, times);
    pair_receive(NULL);
    pair_send((const char *[]){option, NULL});
}

static void is_kept_beside_a_copy(void)
{
    begin_copy();
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "the block job copy began here at the last moment");
    mover_ends(&receiver, 1);
    assert_false(vm_has_stopped(&vms[0])); /* nothing more was read */
    pair_stayed();
    mover_end_all(NULL);
}

/* It begins when QEMU was told to migrate already, and the tool does nothing for a while. */
static void test_a_copy_at_the_stop(void)
{
    static const char *const options[] = {NULL, "--warm"};
    for (unsigned i = 0; i < 2; i++) {
        sends_to("source:starting", 1, options[i]);
        mover_await_stop(&sender);
        assert_true(vm_fills_stream(&vms[0]));
        is_kept_beside_a_copy();
    }
}

/* ... and when QEMU waits for the last time before it stops the VM. */
static void test_a_copy_right_before_the_stop(void)
{
    sends_to("source:reading", MOVER_STOPS_MAX, NULL);
    const unsigned last = mover_go_on(&sender, &vms[0], MOVER_STOPS_MAX);
    assert_in_range(last, 1, MOVER_STOPS_MAX - 1);
    mover_end_all(NULL);
    sends_to("source:reading", last, NULL);
    assert_int_equal(mover_go_on(&sender, &vms[0], last), last);
    is_kept_beside_a_copy();
}

/* QEMU makes a job before it finds out that the disks are handed over: none has begun. */
static void test_a_block_job_that_qemu_refuses(void)
{
    pair_start(&with_nodes);
    pair_run_to("source:sending", NULL);
    vm_refused(ibx_qmp_execute(vms[0].qmp, "blockdev-mirror",
                               json_pack("{s:s,s:s,s:s,s:s}", "job-id", "late", "device", "disk",
                                         "target", "spare", "sync", "full"),
                               NULL, vm_soon(), &vm_error),
               -EREMOTEIO, "read-only");
    mover_kill(&sender, SIGCONT);
    pair_done();
    pair_moved("");
}

/* Somebody takes a snapshot of a disk after the destination has compared it: what the VM writes
 * from then on would be in an image that the destination does not have. Until QEMU stops the VM. */
static char over[96];

static void start_with_disk(void)
{
    char file[96], drive[160];
    mover_begin();
    mover_make_file(file, sizeof(file), "disk", 1 << 20);
    snprintf(over, sizeof(over), "%s/over", mover_folder);
    snprintf(drive, sizeof(drive), "file=%s,format=raw,if=none,id=d", file);
    pair_start(&(struct vm_options){
        .append = "", .extra = {"-drive", drive, "-device", "virtio-blk-pci,drive=d,addr=5"}});
}

static void refused_for_snapshot(void)
{
    mover_ends(&sender, 1);
    mover_must_print(&sender, "(1048576 bytes, layers: 2), and the destination has compared ");
    mover_must_print(&sender, over);
    mover_ends(&receiver, 1);
    pair_stayed();
}

static void late_snapshot(const char *state)
{
    start_with_disk();
    pair_run_to(state, NULL);
    vm_do(&vms[0], "blockdev-snapshot-sync",
          json_pack("{s:s,s:s}", "device", "d", "snapshot-file", over));
    mover_kill(&sender, SIGCONT);
    refused_for_snapshot();
}

static void test_a_late_snapshot(void)
{
    late_snapshot("source:exposing");
    mover_end_all(NULL);
    late_snapshot("source:compared");
}

/* A loadvm that fails leaves the VM so. QEMU would end if it began a migration of it. */
static void test_a_failed_loadvm_before_the_stop(void)
{
    char text[256];
    pair_start(NULL);
    pair_run_to("source:compared", NULL);
    vm_hmp(&vms[0], "loadvm none", text, sizeof(text));
    assert_false(vm_runs(&vms[0]));
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "the VM is in state restore-vm");
    mover_ends(&receiver, 1);
    vm_do(&vms[0], "cont", NULL);
    pair_runs_at_the_source();
}

/* A debugger that has the VM of the source execute one instruction, and then stand still. */
static int debugger(void)
{
    static const char step[] = "+$s#73";
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char line[160], text[256], status[32] = "";
    const uint64_t until = vm_soon();
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(at.sun_path, sizeof(at.sun_path), "%.90s/gdb", vms[0].dir);
    snprintf(line, sizeof(line), "gdbserver unix:%s,server=on,wait=off", at.sun_path);
    vm_hmp(&vms[0], line, text, sizeof(text));
    assert_int_equal(connect(fd, (const struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(write(fd, step, strlen(step)), strlen(step));
    while (strcmp(status, "debug") != 0) {
        vm_ok(ibx_vm_status(vms[0].qmp, status, sizeof(status), until, &vm_error));
        assert_true(ibx_now_ns() < until);
    }
    return fd;
}

/* The destination's QEMU would end by an assertion when it takes over a VM in that state ("invalid
 * runstate transition: 'inmigrate' -> 'debug'"). */
static void test_a_debugger(void)
{
    pair_start(NULL);
    vm_wait_beats(&vms[0], 3);
    const int fd = debugger();
    mover_must_print(MOVER_RUN(1, "check", "--qmp", vms[0].tool),
                     "the VM is in state debug, but must run or be paused to migrate: a debugger "
                     "(-gdb) has stopped it");
    close(fd);
}

static void test_a_debugger_before_the_stop(void)
{
    pair_start(NULL);
    pair_run_to("source:compared", NULL);
    const int fd = debugger();
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "a debugger has stopped the VM (debug)");
    mover_ends(&receiver, 1);
    close(fd);
    vm_do(&vms[0], "cont", NULL);
    pair_runs_at_the_source();
}

/* With a guest that hints at free pages while QEMU migrates, QEMU would end by SIGSEGV. */
static void test_free_page_hints(void)
{
    static const char *const on[] = {"virtio-balloon-pci,id=b,free-page-hint=on,iothread=io",
                                     "virtio-balloon-pci,id=b,free-page-reporting=on"};
    for (unsigned i = 0; i < sizeof(on) / sizeof(on[0]); i++) {
        pair_start(&(struct vm_options){.extra = {"-object", "iothread,id=io", "-device", on[i]}});
        const struct mover *check = MOVER_RUN(!i, "check", "--qmp", vms[0].tool);
        assert_int_equal(
            mover_printed(check, "device b (virtio-balloon-pci) has free-page-hint=on"), !i);
        mover_end_all(NULL);
    }
}

static bool migrates(struct vm *vm)
{
    json_t *now = vm_run(vm, "query-migrate", NULL);
    const bool does = json_object_get(now, "status");
    json_decref(now);
    return does;
}

/* A snapshot is taken when QEMU has begun to migrate, and the VM runs on for some milliseconds:
 * mostly one of a few is that early. A snapshot that is taken after the stop has no writes of the
 * VM. */
static void test_a_snapshot_before_the_stop(void)
{
    bool early = false;
    for (unsigned turn = 0; turn < SNAPSHOTS && !early; turn++) {
        mover_end_all(NULL);
        start_with_disk();
        pair_run(NULL);
        const uint64_t until = vm_soon();
        while (!migrates(&vms[0]))
            assert_true(ibx_now_ns() < until);
        ibx_qmp_execute(vms[0].qmp, "blockdev-snapshot-sync",
                        json_pack("{s:s,s:s}", "device", "d", "snapshot-file", over), NULL, until,
                        NULL);                           /* too late it may fail */
        early = !access(over, F_OK) && vm_runs(&vms[0]); /* until the stop, or again */
        if (!early)
            mover_wait(&sender);
    }
    if (early)
        refused_for_snapshot();
}

/* The source, which was stopped, goes on: it refuses, and says these words. */
static void refused_then(const char *words)
{
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 1);
    mover_must_print(&sender, words);
    mover_ends(&receiver, 1);
    pair_stayed();
}

/* QEMU unplugs no device while it migrates, but does until then. The destination's QEMU would still
 * have the device. */
static void test_a_device_at_the_stop(void)
{
    pair_start(&(struct vm_options){
        .append = "", .extra = {"-device", "qemu-xhci,addr=5", "-device", "usb-tablet,id=old"}});
    pair_run_to("source:compared", NULL);
    vm_do(&vms[0], "device_del", json_pack("{s:s}", "id", "old"));
    refused_then("the device old (usb-tablet) has been plugged out since");
}

/* Where the device of this PCI class is. */
static unsigned slot_of(int class)
{
    json_t *device, *buses = vm_run(&vms[0], "query-pci", NULL);
    unsigned slot = 0;
    size_t i;
    json_array_foreach(json_object_get(json_array_get(buses, 0), "devices"), i, device)
    {
        const json_t *is = json_object_get(json_object_get(device, "class_info"), "class");
        if (json_integer_value(is) == class)
            slot = (unsigned)json_integer_value(json_object_get(device, "slot"));
    }
    json_decref(buses);
    assert_true(slot > 0);
    return slot;
}

/* A PC's chip set ejects the device whose slot number is written to it; the monitor writes as the
 * guest would. */
static void ejected_at_the_stop(const char *option, const char *device, int class)
{
    char text[64], line[64];
    pair_start(&(struct vm_options){.append = "", .machine = "pc", .extra = {option, device}});
    snprintf(line, sizeof(line), "o /w 0xae08 0x%x", 1u << slot_of(class));
    pair_run_to("source:stopped", NULL);
    vm_hmp(&vms[0], "o /w 0xae10 0", text, sizeof(text)); /* the bus */
    vm_hmp(&vms[0], line, text, sizeof(text));
}

/* A guest ejects one by itself, also when QEMU plugs none any more. */
static void test_a_device_that_the_guest_ejects(void)
{
    ejected_at_the_stop("-device", "virtio-rng-pci,addr=7,id=old", 0xff);
    refused_then("the device old (virtio-rng-pci) has been plugged out since");
}

/* Likewise one that QEMU has made for another option than -device: it is in no list of a client's.
 */
static void test_a_network_card_that_the_guest_ejects(void)
{
    ejected_at_the_stop("-net", "nic,model=e1000", 0x200);
    refused_then("(e1000) has been plugged out since");
}

/* The destination's QEMU is not the one that was compared: the VM would find a device that it does
 * not know, or other contents of its disk. */
static void changed_there(const char *state, const char *option)
{
    char file[96], other[96], drive[160];
    mover_begin();
    mover_make_file(file, sizeof(file), "disk", 1 << 20);
    mover_make_file(other, sizeof(other), "other", 1 << 20);
    snprintf(drive, sizeof(drive), "file=%s,format=raw,if=none,id=d", file);
    pair_start(&(struct vm_options){.append = "",
                                    .extra = {"-device", "qemu-xhci,addr=5", "-drive", drive,
                                              "-device", "ide-cd,bus=ide.0,drive=d,id=cd"}});
    mover_stop_next(state);
    pair_receive(NULL);
    pair_send((const char *[]){option, NULL});
    mover_await_stop(&receiver);
    vm_do(&vms[1], "device_add", json_pack("{s:s,s:s}", "driver", "usb-kbd", "id", "new"));
    vm_do(&vms[1], "blockdev-change-medium",
          json_pack("{s:s,s:s,s:s}", "id", "cd", "filename", other, "format", "raw"));
    mover_kill(&receiver, SIGCONT);
    mover_ends(&receiver, 1);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "the device new (usb-kbd) has been plugged in since");
    mover_must_print(&sender, "the image of the disk cd is ");
    pair_stayed();
}

static void test_a_change_at_the_destination(void)
{
    changed_there("destination:joining", NULL);
    mover_end_all(NULL);
    changed_there("destination:ready", NULL);
    mover_end_all(NULL);
    changed_there("destination:ready", "--warm");
}

/* The destination lacks a device that was unplugged since, and has one that was plugged in. */
static void test_late_devices(void)
{
    pair_start(&(struct vm_options){
        .append = "", .extra = {"-device", "qemu-xhci,addr=5", "-device", "usb-tablet,id=old"}});
    pair_run_to("source:exposing", NULL);
    vm_do(&vms[0], "device_del", json_pack("{s:s}", "id", "old"));
    vm_do(&vms[0], "device_add", json_pack("{s:s,s:s}", "driver", "usb-kbd", "id", "new"));
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "the device old (usb-tablet) has been plugged out since");
    mover_must_print(&sender, "the device new (usb-kbd) has been plugged in since");
    mover_ends(&receiver, 1);
    pair_stayed();
}

/* The QEMU there cannot load a device that it does not have, and ends: the source names the
 * device. */
static void test_a_device_that_cannot_be_loaded(void)
{
    pair_start(&(struct vm_options){
        .append = "", .extra = {"-device", "pcie-root-port,id=free,addr=6,chassis=1"}});
    pair_run_to("source:compared", NULL);
    vm_do(&vms[0], "device_add",
          json_pack("{s:s,s:s,s:s}", "driver", "virtio-rng-pci", "id", "new", "bus", "free"));
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "the destination gave up: ");
    mover_must_print(&sender, "the device new (virtio-rng-pci) has been plugged in since");
    mover_ends(&receiver, 1);
    pair_stayed();
}

/* A client of an export would read what this QEMU knows of the disk, not what is there. */
static void test_block_export(void)
{
    char path[160];
    snprintf(path, sizeof(path), "%s/nbd", vms[0].dir);
    pair_start(&with_nodes);
    snprintf(path, sizeof(path), "%s/nbd", vms[0].dir);
    vm_do(&vms[0], "nbd-server-start",
          json_pack("{s:{s:s,s:{s:s}}}", "addr", "type", "unix", "data", "path", path));
    vm_do(&vms[0], "block-export-add",
          json_pack("{s:s,s:s,s:s}", "type", "nbd", "id", "backup", "node-name", "disk"));
    assert_true(mover_printed(MOVER_RUN(1, "check", "--qmp", vms[0].tool),
                              "the block node disk is exported by this QEMU (nbd export backup)"));
    vm_do(&vms[0], "nbd-server-stop", NULL);
}

/* Its QEMU stays, and would be migrated with a VM that is off. */
static void test_a_guest_that_shuts_down(void)
{
    static const char *const states[] = {"source:asking", "source:exposing"};
    for (unsigned i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        pair_start(&(struct vm_options){.append = "button=1", .extra = {"-no-shutdown"}});
        pair_run_to(states[i], NULL);
        vm_do(&vms[0], "system_powerdown", NULL);
        json_decref(vm_event(&vms[0], "SHUTDOWN", NULL));
        mover_kill(&sender, SIGCONT);
        mover_ends(&sender, 1);
        mover_must_print(&sender, "it is off, and its QEMU");
        mover_ends(&receiver, 1);
        mover_end_all(NULL);
    }
}

int main(void)
{
    pair_beats = 40;
    static const struct vm_test tests[] = {VM_TEST(test_block_job),
                                           VM_TEST(test_a_late_block_job),
                                           VM_TEST(test_block_job_before_migrate),
                                           VM_TEST(test_block_job_at_the_stop),
                                           VM_TEST(test_a_copy_at_the_stop),
                                           VM_TEST(test_a_copy_right_before_the_stop),
                                           VM_TEST(test_a_block_job_that_qemu_refuses),
                                           VM_TEST(test_a_late_snapshot),
                                           VM_TEST(test_a_snapshot_before_the_stop),
                                           VM_TEST(test_a_failed_loadvm_before_the_stop),
                                           VM_TEST(test_a_debugger),
                                           VM_TEST(test_a_debugger_before_the_stop),
                                           VM_TEST(test_free_page_hints),
                                           VM_TEST(test_a_device_at_the_stop),
                                           VM_TEST(test_a_device_that_the_guest_ejects),
                                           VM_TEST(test_a_network_card_that_the_guest_ejects),
                                           VM_TEST(test_a_change_at_the_destination),
                                           VM_TEST(test_late_devices),
                                           VM_TEST(test_a_device_that_cannot_be_loaded),
                                           VM_TEST(test_block_export),
                                           VM_TEST(test_a_guest_that_shuts_down),
                                           {0}};
    return vm_tests(tests, mover_end_all);
}
