/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Another client of QEMU, such as a manager of VMs, lets the VM run, or migrates it, while freeze
 * or clone works on it. No snapshot has what such a VM writes, and no tool ends its QEMU.
 */
#include "common/clock.h"
#include "tests/fixtures/clones.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* ---------------------------------------------------------------- freeze */

#define LEFT "has continued, reset or migrated the VM since its memory was copied, and its QEMU"

/* A freeze that has stopped itself at this state. */
static void freezes(const char *state, const char *option)
{
    mover_begin();
    vm_start(&vms[0], &(struct vm_options){.append = MIB});
    vm_wait_beats(&vms[0], 2);
    snprintf(snapshot, sizeof(snapshot), "%s/snapshot", mover_folder);
    mover_stop_next(state);
    mover_start(&sender, (const char *[]){"freeze", snapshot, "--qmp", vms[0].tool, option, NULL});
    mover_await_stop(&sender);
}

static void goes_on(int status, const char *words)
{
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, status);
    mover_must_print(&sender, words);
}

static void there_is_none(void)
{
    assert_int_equal(access(snapshot, F_OK), -1);
}

static void the_vm_is_right(void)
{
    assert_true(vm_runs(&vms[0]));
    vm_wait_beats(&vms[0], vm_beats(&vms[0]) + 2);
    mover_heartbeats((const struct vm *[]){&vms[0], NULL}, MIB);
}

static bool is_over(void)
{
    json_t *status = vm_run(&vms[0], "query-status", NULL);
    const char *text = json_string_value(json_object_get(status, "status"));
    const bool is = text && !strcmp(text, "postmigrate");
    json_decref(status);
    return is;
}

static void migrate_away(void)
{
    vm_do(&vms[0], "migrate-set-capabilities",
          json_pack("{s:[{s:s,s:b}]}", "capabilities", "capability", "events", "state", 1));
    vm_do(&vms[0], "stop", NULL);
    vm_do(&vms[0], "migrate", json_pack("{s:s}", "uri", "exec:cat > /dev/null"));
    json_decref(vm_event(&vms[0], "MIGRATION", "completed"));
    const uint64_t until = vm_soon();
    while (!is_over()) { /* a moment later */
        if (ibx_now_ns() >= until)
            fail_msg("QEMU does not end its migration");
        poll(NULL, 0, 2);
    }
}

/* A migration of another client, which has continued the VM since, is no stop for this snapshot. */
static void test_migrated_and_continued_before(void)
{
    freezes("freeze:prepared", "--resume");
    migrate_away();
    vm_do(&vms[0], "cont", NULL);
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 0);
    is_as_frozen(snapshot);
    the_vm_is_right();
}

/* The snapshot would have the memory of one moment, and the devices' state of another. */
static void continued_meanwhile(const char *option)
{
    freezes("freeze:saved", option);
    vm_do(&vms[0], "cont", NULL);
    goes_on(1, "another client of QEMU has continued, reset or migrated the VM while");
    there_is_none();
    the_vm_is_right();
    mover_end_all(NULL);
}

static void test_continued_while_it_copies(void)
{
    continued_meanwhile(NULL);
    continued_meanwhile("--resume");
    continued_meanwhile("--quit");
}

/* The same with a VM that stands still again. */
static void test_continued_and_paused_while_it_copies(void)
{
    freezes("freeze:saved", NULL);
    vm_do(&vms[0], "cont", NULL);
    vm_wait_beats(&vms[0], vm_beats(&vms[0]) + 2);
    vm_do(&vms[0], "stop", NULL);
    mover_resumed(&vms[0]);
    goes_on(1, "another client of QEMU has continued, reset or migrated the VM while");
    there_is_none();
    assert_false(vm_runs(&vms[0]));
    assert_false(mover_resumed(&vms[0]));
}

static void test_reset_while_it_copies(void)
{
    freezes("freeze:saved", NULL);
    vm_do(&vms[0], "set-action", json_pack("{s:s}", "reboot", "reset"));
    vm_do(&vms[0], "system_reset", NULL);
    json_decref(vm_event(&vms[0], "RESET", NULL));
    goes_on(1, "another client of QEMU has continued, reset or migrated the VM while");
    there_is_none();
    assert_false(vm_runs(&vms[0]));
}

/* The guest has asked for a reset just when it was stopped, and QEMU obeys then. No other client
 * has the VM, so that it is continued. */
static void test_guest_resets_at_its_stop(void)
{
    freezes("freeze:saved", NULL);
    vm_do(&vms[0], "set-action", json_pack("{s:s}", "reboot", "reset"));
    vm_do(&vms[0], "human-monitor-command", json_pack("{s:s}", "command-line", "o /b 0xcf9 6"));
    json_decref(vm_event(&vms[0], "RESET", NULL));
    goes_on(1, "the guest has reset the VM just when it was stopped");
    there_is_none();
    assert_true(vm_runs(&vms[0]));
}

/* The tool does not advise to start the VM from its disks: it would run twice. */
static void test_migrated_while_it_copies_and_ended(void)
{
    freezes("freeze:saved", "--resume");
    vm_do(&vms[0], "cont", NULL);
    migrate_away();
    vm_kill(&vms[0]);
    goes_on(1, "unless it runs where another client of QEMU has migrated it");
    assert_false(mover_printed(&sender, "and the VM with it"));
    there_is_none();
}

/* The memory has been copied: there is a snapshot, but the VM's QEMU is not ended. */
static void test_continued_before_its_end(void)
{
    freezes("freeze:copied", "--quit");
    vm_do(&vms[0], "cont", NULL);
    goes_on(1, LEFT);
    is_as_frozen(snapshot);
    the_vm_is_right();
}

/* The VM need not run any more: what it has done since is only in that QEMU. */
static void test_continued_and_paused_before_its_end(void)
{
    freezes("freeze:copied", "--quit");
    vm_do(&vms[0], "cont", NULL);
    vm_wait_beats(&vms[0], vm_beats(&vms[0]) + 2);
    vm_do(&vms[0], "stop", NULL);
    goes_on(1, LEFT);
    is_as_frozen(snapshot);
    assert_false(vm_runs(&vms[0]));
    vm_do(&vms[0], "cont", NULL);
    the_vm_is_right();
}

static void test_migrated_before_its_end(void)
{
    freezes("freeze:sealed", "--quit");
    vm_do(&vms[0], "cont", NULL);
    migrate_away();
    goes_on(1, LEFT);
    is_as_frozen(snapshot);
    assert_false(vm_runs(&vms[0]));
}

static void test_continued_behind_the_copy(void)
{
    freezes("freeze:copied", NULL);
    vm_do(&vms[0], "cont", NULL);
    goes_on(0, "another client of QEMU has continued, reset or migrated the VM since");
    mover_must_print(&sender, "the VM runs on");
    is_as_frozen(snapshot);
    the_vm_is_right();
}

/* ---------------------------------------------------------------- clone */

/* A clone that has stopped itself when its child runs, of a QEMU that it has started itself, with
 * a second monitor: `child`. */
static void clones(struct vm *child, char monitor[160])
{
    char serial[200], own[200];
    freeze();
    *child = (struct vm){.pid = 0};
    snprintf(monitor, 160, "%s/child.qmp", mover_folder);
    snprintf(child->socket, sizeof(child->socket), "%.80s/own.qmp", mover_folder);
    snprintf(child->serial, sizeof(child->serial), "%.80s/serial", mover_folder);
    snprintf(serial, sizeof(serial), "file:%s", child->serial);
    snprintf(own, sizeof(own), "unix:%s,server=on,wait=off", child->socket);
    mover_stop_next("clone:loaded");
    mover_start(&sender, (const char *[]){"clone",      snapshot,
                                          "--qmp",      monitor,
                                          "--",         getenv("QEMU"),
                                          "-M",         "q35",
                                          "-accel",     vm_accel(),
                                          "-bios",      vm_bios(),
                                          "-m",         "64",
                                          "-display",   "none",
                                          "-serial",    serial,
                                          "-object",    PRIVATE,
                                          "-machine",   "memory-backend=mem0",
                                          "-qmp",       own,
                                          "-kernel",    getenv("GUEST_ELF"),
                                          "-no-reboot", "-nodefaults",
                                          NULL});
    mover_await_stop(&sender);
    vm_soon();
    vm_ok(ibx_qmp_connect(child->socket, vm_soon(), &child->qmp, &vm_error));
    started = ibx_qmp_pid(child->qmp);
}

/* Migrates the VM to somebody who reads nothing, so that the migration does not end. */
static void migrate(struct vm *child)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char uri[128];
    snprintf(address.sun_path, sizeof(address.sun_path), "%.64s/other", mover_folder);
    snprintf(uri, sizeof(uri), "unix:%s", address.sun_path);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(fd, 1), 0);
    vm_do(child, "migrate", json_pack("{s:s}", "uri", uri));
}

/* Its manager migrates it at once: the settings cannot be put back, and the VM is not lost. */
static void test_a_child_that_is_migrated_at_once(void)
{
    struct vm child;
    char monitor[160];
    clones(&child, monitor);
    migrate(&child);
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 0);
    mover_must_print(&sender, "migration settings could not be put back");
    assert_int_equal(kill(started, 0), 0);
    vm_wait_beats(&child, vm_beats(&child) + 2);
    assert_true(vm_runs(&child));
    assert_int_equal(access(monitor, F_OK), 0);
    mover_heartbeats((const struct vm *[]){&vms[0], &child, NULL}, MIB);
    ibx_qmp_close(child.qmp);
}

int main(void)
{
    static const struct vm_test tests[] = {
        VM_TEST(test_migrated_and_continued_before),
        VM_TEST(test_continued_while_it_copies),
        VM_TEST(test_continued_and_paused_while_it_copies),
        VM_TEST(test_reset_while_it_copies),
        VM_TEST(test_guest_resets_at_its_stop),
        VM_TEST(test_migrated_while_it_copies_and_ended),
        VM_TEST(test_continued_before_its_end),
        VM_TEST(test_continued_and_paused_before_its_end),
        VM_TEST(test_migrated_before_its_end),
        VM_TEST(test_continued_behind_the_copy),
        VM_TEST(test_a_child_that_is_migrated_at_once),
        {0},
    };
    return vm_tests(tests, clones_end);
}
