/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A receiver recognizes a QEMU by the file of its memory, and checks that QEMU still maps that
 * file, and that nobody else has had it load a VM. This process acts as QEMU. */
#include "migrate/common/vm.h"
#include "migrate/destination/destination.h"
#include "tests/fixtures/denied_call.h"
#include "tests/fixtures/in_child.h"
#include "tests/fixtures/qmp_peer.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define PAGE 4096u

static struct destination destination;

static void *map(int fd, void *at)
{
    assert_int_equal(ftruncate(fd, PAGE), 0);
    void *memory = mmap(at, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | (at ? MAP_FIXED : 0), fd, 0);
    assert_true(memory != MAP_FAILED);
    return memory;
}

/* Maps guest RAM in this file, as a receiver finds it. */
static void *ram_in(int fd)
{
    static struct ibx_guest_block block;
    struct stat st;
    void *memory = map(fd, NULL);
    assert_int_equal(fstat(fd, &st), 0);
    block = (struct ibx_guest_block){
        .id = "mem0", .fd = fd, .address = (uintptr_t)memory, .dev = st.st_dev, .ino = st.st_ino};
    destination = (struct destination){.ram_lock_fds = {-1, -1}};
    destination.ram.guest.blocks = &block;
    destination.ram.guest.count = 1;
    destination.ram.guest.pid = getpid();
    return memory;
}

static void is_refused(void)
{
    memset(&error, 0, sizeof(error));
    assert_int_equal(ibx_destination_lock(&destination, &error), -EBUSY);
    assert_non_null(strstr(error.message, "has been given other memory meanwhile"));
    ibx_destination_unlock(&destination);
}

static void test_other_memory(NO_STATE)
{
    const int before = memfd_create("before", MFD_CLOEXEC), now = memfd_create("now", MFD_CLOEXEC);
    void *memory = ram_in(before);
    map(now, memory);
    is_refused();
    munmap(memory, PAGE);
    is_refused();
    close(before);
    close(now);
}

static void test_another_receiver(NO_STATE)
{
    char path[64];
    const int file = memfd_create("ram", MFD_CLOEXEC);
    void *memory = ram_in(file);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    const int other = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(flock(other, LOCK_EX), 0);
    memset(&error, 0, sizeof(error));
    assert_int_equal(ibx_destination_lock(&destination, &error), -EBUSY);
    text_has(error.message, "which only one receiver may lock");
    ibx_destination_unlock(&destination);
    /* check says the same: it need not be an ib-migrate. */
    says(ibx_vm_check_claimed(&destination.ram.guest, false, &error), -EBUSY,
         "which only one receiver may lock");
    assert_int_equal(ibx_vm_check_claimed(&destination.ram.guest, true, &error), 0);
    munmap(memory, PAGE);
    close(other);
    close(file);
}

static int refuses_a_forbidden_lock(void)
{
    if (!deny_call(SYS_flock, EACCES))
        return CHILD_SKIPS;
    return ibx_destination_lock(&destination, &error) == -EACCES &&
                   strstr(error.message, "RAM mem0 (/dev/shm/vm) cannot be locked: Permission") &&
                   strstr(error.message, "policy, allow ib-migrate to read and lock it")
               ? 0
               : 1;
}

/* As by AppArmor, whose rules have a letter for locks. */
static void test_a_lock_that_is_forbidden(NO_STATE)
{
    const int file = memfd_create("ram", MFD_CLOEXEC);
    void *memory = ram_in(file);
    memset(&error, 0, sizeof(error));
    strcpy(destination.ram.guest.blocks[0].path, "/dev/shm/vm");
    passes_in_child(refuses_a_forbidden_lock);
    munmap(memory, PAGE);
    close(file);
}

/* The first file of each tmpfs has the same inode number. */
static int first_file_of(const char *place)
{
    char path[64];
    assert_int_equal(mkdir(place, 0700), 0);
    if (mount("ibx-test", place, "tmpfs", 0, "size=64k"))
        skip();
    snprintf(path, sizeof(path), "%s/ram", place);
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    return fd;
}

static void test_other_memory_with_the_same_inode_number(NO_STATE)
{
    char folder[] = "/tmp/ibx-lock-XXXXXX", places[2][40];
    struct stat st[2];
    int files[2];
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        skip();
    assert_non_null(mkdtemp(folder));
    for (unsigned i = 0; i < 2; i++) {
        snprintf(places[i], sizeof(places[i]), "%s/%u", folder, i);
        files[i] = first_file_of(places[i]);
        assert_int_equal(fstat(files[i], &st[i]), 0);
    }
    assert_true(st[0].st_ino == st[1].st_ino && st[0].st_dev != st[1].st_dev);
    void *memory = ram_in(files[0]);
    map(files[1], memory);
    is_refused();
    munmap(memory, PAGE);
    for (unsigned i = 0; i < 2; i++) {
        close(files[i]);
        umount(places[i]);
        rmdir(places[i]);
    }
    rmdir(folder);
}

#define STATUS(is)                                                                                 \
    {                                                                                              \
        "query-status", "{\"return\": {\"status\": \"" is "\"}, \"id\": 2}\r\n", 0                 \
    }
#define MIGRATION(is)                                                                              \
    {                                                                                              \
        "query-migrate", "{\"return\": {" is "}, \"id\": 3}\r\n", 0                                \
    }

/* Claims a QEMU that answers like this. */
static int lock_by(const struct step *steps, bool managed)
{
    const int file = memfd_create("ram", MFD_CLOEXEC);
    void *memory = ram_in(file);
    attached(steps);
    destination.qemu.qmp = qmp;
    destination.qemu.managed = managed;
    const int rc = ibx_destination_lock(&destination, &error);
    assert_true(destination.ram_lock_fds[0] >= 0);
    ibx_destination_unlock(&destination);
    done();
    munmap(memory, PAGE);
    close(file);
    return rc;
}

static void test_nobody_else(NO_STATE)
{
    assert_int_equal(lock_by(SCRIPT(STATUS("inmigrate"), MIGRATION("")), false), 0);
    /* Its migration has begun, and is this tool's, if libvirt drives. */
    assert_int_equal(lock_by(SCRIPT(STATUS("inmigrate")), true), 0);
}

/* Two VMs in one QEMU would lose both. */
static void test_another_vm_has_come(NO_STATE)
{
    says(lock_by(SCRIPT(STATUS("running")), false), -EBUSY, "come to this QEMU");
    says(lock_by(SCRIPT(STATUS("paused")), true), -EBUSY, "by another monitor");
}

static void test_another_vm_is_coming(NO_STATE)
{
    says(lock_by(SCRIPT(STATUS("inmigrate"), MIGRATION("\"status\": \"active\"")), false), -EBUSY,
         "is under way already (active)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nobody_else),
        cmocka_unit_test(test_another_vm_has_come),
        cmocka_unit_test(test_another_vm_is_coming),
        cmocka_unit_test(test_other_memory),
        cmocka_unit_test(test_another_receiver),
        cmocka_unit_test(test_a_lock_that_is_forbidden),
        cmocka_unit_test(test_other_memory_with_the_same_inode_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
