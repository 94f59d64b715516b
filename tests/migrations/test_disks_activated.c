/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A VM's migration is cancelled as QEMU is about to stop the VM: it runs on, and its disks are
 * active. Otherwise QEMU would end with the next migration (QEMU before 10.0).
 */
#include "migrate/common/vm.h"
#include "tests/fixtures/vm.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MIGRATIONS 200 /* without cont QEMU has ended before these are through, 5 times of 5 */
#define STEPS      24  /* the cancel comes after so many of these... */
#define STEP_BYTES 2048

static struct vm vm;
static char image[] = "/tmp/ibx-disk-XXXXXX";

static void make_disk(void)
{
    const int fd = mkostemp(image, O_CLOEXEC);
    assert_true(fd >= 0 && !ftruncate(fd, 1 << 20));
    close(fd);
}

static int end(void **state)
{
    unlink(image);
    return vm_end_all(state);
}

/* Reads until QEMU has written so many bytes of its migration, or all of them. */
static void read_some(int stream, size_t bytes)
{
    char some[STEP_BYTES];
    while (bytes) {
        struct pollfd wait = {.fd = stream, .events = POLLIN};
        assert_int_equal(poll(&wait, 1, (int)VM_WAIT_MS), 1);
        const ssize_t n = read(stream, some, bytes < sizeof(some) ? bytes : sizeof(some));
        if (n <= 0)
            return;
        bytes -= (size_t)n;
    }
}

static void test_after_a_cancel(void)
{
    char drive[128];
    make_disk();
    snprintf(drive, sizeof(drive), "file=%s,format=raw,if=virtio", image);
    vm_start(&vm, &(struct vm_options){.extra = {"-drive", drive}});
    vm_do(&vm, "migrate-set-capabilities",
          json_pack("{s:[{s:s, s:b}, {s:s, s:b}]}", "capabilities", "capability", "x-ignore-shared",
                    "state", 1, "capability", "events", "state", 1));
    for (size_t i = 0; i < MIGRATIONS; i++) {
        struct ibx_vm_undo undo = {.was_running = true, .touched = true};
        int ours, theirs;
        vm_ok(ibx_vm_stream(&ours, &theirs, &vm_error));
        vm_ok(ibx_vm_migrate(vm.qmp, false, theirs, vm_soon(), &vm_error));
        close(theirs);
        read_some(ours, i % STEPS * STEP_BYTES / 16 + 1);
        vm_ok(ibx_vm_stay(vm.qmp, &undo, vm_soon(), &vm_error));
        close(ours);
        assert_true(vm_runs(&vm));
        vm_do(&vm, "migrate-set-capabilities",
              json_pack("{s:[{s:s, s:b}]}", "capabilities", "capability", "x-ignore-shared",
                        "state", 1));
    }
    vm_wait_beats(&vm, vm_beats(&vm) + 2);
    vm_end(&vm);
}

int main(void)
{
    static const struct vm_test tests[] = {VM_TEST(test_after_a_cancel), {0}};
    return vm_tests(tests, end);
}
