/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What keeps a VM from migrating is found before its stop: the VM runs on at the source, and the
 * sentence names what differs, with both values. */
#include "tests/scenes/mover.h"

#define DISK "driver=null-co,size=1048576,node-name="

static const struct vm_options with_nodes = {.append = "",
                                             .extra = {"-blockdev", DISK "disk", "-blockdev",
                                                       DISK "spare", "-device",
                                                       "virtio-blk-pci,drive=disk,addr=5"}};

/* Copies nothing to its end: the VM's own writes, and there are none. */
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
static void test_block_job_before_the_stop(void)
{
    pair_start(&with_nodes);
    pair_run_to("source:exposing", NULL);
    begin_mirror();
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "the block job copy (mirror, ready) works in this QEMU");
    mover_ends(&receiver, 1);
    pair_stays();
    json_t *event = vm_event(&vms[0], "JOB_STATUS_CHANGE", "ready");
    json_decref(event);
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

int main(void)
{
    pair_beats = 40;
    pair_timeout = "timeout_ms=3000";
    static const struct vm_test tests[] = {VM_TEST(test_block_job),
                                           VM_TEST(test_block_job_before_the_stop),
                                           VM_TEST(test_block_job_at_the_stop),
                                           VM_TEST(test_block_export),
                                           {0}};
    return vm_tests(tests, mover_end_all);
}
