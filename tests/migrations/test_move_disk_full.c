/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A disk of the VM that can no longer be written, before and after the commit: QEMU stops the VM
 * (werror=stop, "io-error"), and lets it go on when there is room again and somebody says `cont`.
 * No write is lost, and the operator who moves the VM is told why it stands still.
 */
#include "tests/migrations/guest/disk.h"
#include "tests/fixtures/mover.h"

#include "common/clock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>

#define DISK_MIB (DISK_PARTS * DISK_BYTES >> 20)
#define GUEST    "mib=4 beat=64"

static char place[64], image[96]; /* "": no place */

/* A file system of its own, with as much room as the disk may come to need. The guest takes ten
 * seconds to write to all of it: a disk that has everything needs no more room. */
static void make_disk(void)
{
    char size[32];
    snprintf(place, sizeof(place), "/tmp/ibx-disk-%d-XXXXXX", (int)getpid());
    assert_non_null(mkdtemp(place));
    snprintf(image, sizeof(image), "%s/disk", place);
    snprintf(size, sizeof(size), "size=%uM", DISK_MIB + 1);
    if (mount("none", place, "tmpfs", 0, size))
        skip();
    const int fd = open(image, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && !ftruncate(fd, (off_t)DISK_MIB << 20));
    close(fd);
}

static int end_all(void **state)
{
    const int rc = mover_end_all(state);
    if (place[0]) {
        umount2(place, MNT_DETACH);
        rmdir(place);
    }
    place[0] = '\0';
    return rc;
}

static void fill(void)
{
    char filler[128];
    snprintf(filler, sizeof(filler), "%s/filler", place);
    const int fd = open(filler, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    for (off_t at = 0; fd >= 0 && !posix_fallocate(fd, at, 4096); at += 4096)
        ;
    close(fd);
}

static void make_room(void)
{
    char filler[128];
    snprintf(filler, sizeof(filler), "%s/filler", place);
    assert_int_equal(unlink(filler), 0);
}

static void start(const char *format)
{
    char drive[256];
    make_disk();
    snprintf(drive, sizeof(drive), format, image);
    pair_start(&(struct vm_options){
        .machine = "pc", .append = GUEST " disk=2 doze=20000000", .extra = {"-drive", drive}});
    vm_await_words(&vms[0], "disk 00000003");
}

static unsigned written(const struct vm *vm)
{
    char words[32];
    unsigned n = 0;
    do {
        snprintf(words, sizeof(words), "disk %08x", n + 1);
    } while (vm_printed(vm, words) && ++n);
    return n;
}

static void await_status(struct vm *vm, const char *wanted)
{
    const uint64_t until = vm_soon();
    for (bool is = false; !is;) {
        json_t *now = vm_run(vm, "query-status", NULL);
        is = !strcmp(json_string_value(json_object_get(now, "status")), wanted);
        json_decref(now);
        if (!is && ibx_now_ns() > until)
            fail_msg("the VM is not %s", wanted);
    }
}

/* The disk has everything of which the guest was told that it is written. */
static void is_on_disk(unsigned transfers)
{
    static uint32_t part[DISK_BYTES / 4];
    const int fd = open(image, O_RDONLY | O_CLOEXEC);
    for (uint32_t t = 0; t < transfers && t < DISK_PARTS; t++) {
        const uint32_t first = disk_part(t) * (DISK_BYTES / 4);
        assert_int_equal(pread(fd, part, sizeof(part), (off_t)first * 4), sizeof(part));
        for (uint32_t i = 0; i < DISK_BYTES / 4; i++)
            if (part[i] != disk_word(first + i))
                fail_msg("write %u was lost", t);
    }
    close(fd);
}

/* There is room again: it goes on where it stands, with the write that found none. */
static void goes_on(struct vm *vm, unsigned before)
{
    char words[32];
    snprintf(words, sizeof(words), "disk %08x", before + 4);
    make_room();
    vm_do(vm, "cont", NULL);
    vm_await_words(vm, words);
    vm_do(vm, "stop", NULL);
    is_on_disk(before + 3);
}

static void has_no_settings_left(struct vm *vm)
{
    size_t i;
    json_t *one, *all = vm_run(vm, "query-migrate-capabilities", NULL);
    json_array_foreach(all, i, one)
    {
        assert_false(json_is_true(json_object_get(one, "state")));
    }
    json_decref(all);
}

#define STOPS "file=%s,if=ide,format=raw,werror=stop,id=data"

/* The VM has nowhere to go, and no write of its finds room here. */
static void test_cancelled_with_a_full_disk(void)
{
    start(STOPS);
    pair_run_to("source:sending", NULL);
    fill();
    mover_kill(&sender, SIGINT);
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 1);
    mover_ends(&receiver, 1);
    await_status(&vms[0], "io-error");
    has_no_settings_left(&vms[0]);
    goes_on(&vms[0], written(&vms[0]));
}

static void test_killed_with_a_full_disk(void)
{
    start(STOPS);
    pair_run_to("source:sending", NULL);
    fill();
    mover_kill(&sender, SIGKILL);
    mover_await_watchdog(&sender, "ended before the commit");
    mover_ends(&receiver, 1);
    await_status(&vms[0], "io-error");
    has_no_settings_left(&vms[0]);
    goes_on(&vms[0], written(&vms[0]));
}

/* Both sides say why the VM does not run. */
static void test_full_behind_the_stop(void)
{
    start(STOPS);
    pair_receive((const char *[]){"--max-bandwidth", HARDLY, NULL});
    mover_stop_next("source:sending");
    pair_send(NULL);
    mover_await_stop(&sender);
    fill();
    mover_kill(&sender, SIGCONT);
    mover_await_words(&receiver, "the VM is stopped here (\"io-error\")");
    mover_must_print(&receiver, "there is no room for what its disk data (");
    mover_await_words(&sender, "the VM is stopped there (\"io-error\")");
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    pair_done();
    goes_on(&vms[1], written(&vms[0]));
}

/* The VM moves as it is, and the tool says so before: nobody waits for it to run there. */
static void test_full_before(void)
{
    start(STOPS);
    fill();
    await_status(&vms[0], "io-error");
    pair_run(NULL);
    pair_done();
    mover_must_print(&sender, "the VM is stopped here (\"io-error\"), and will be at the");
    mover_must_print(&sender, "there is no room for what its disk data (");
    await_status(&vms[1], "io-error");
    goes_on(&vms[1], written(&vms[0]));
}

/* QEMU 7.2 gives no reason for a migration that fails since it cannot write its images back. */
static void test_not_written_back(void)
{
    start("driver=raw,file.driver=blkdebug,file.image.driver=file,file.image.filename=%s,"
          "file.inject-error.0.event=flush_to_disk,file.inject-error.0.errno=28,if=ide,id=data");
    pair_run(NULL);
    mover_ends(&sender, 1);
    mover_ends(&receiver, 1);
    if (!mover_printed(&sender, "No space left on device"))
        mover_must_print(&sender, "it gives none when it cannot write to a disk of the VM");
    has_no_settings_left(&vms[0]);
}

int main(void)
{
    static const struct vm_test tests[] = {
        VM_TEST(test_cancelled_with_a_full_disk), VM_TEST(test_killed_with_a_full_disk),
        VM_TEST(test_full_behind_the_stop),       VM_TEST(test_full_before),
        VM_TEST(test_not_written_back),           {0}};
    return vm_tests(tests, end_all);
}
