/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Memory backends that another client of a QEMU adds or removes while pages are missing, as for
 * memory that is plugged in or out. */
#include "tests/fixtures/mover.h"

#include "common/clock.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#define MORE_BYTES (16u << 20)
#define SLOTS      "-m", "64,slots=2,maxmem=1G"

static char files[2][96], backends[2][200];
static bool nameless; /* the destination's file of more memory has no name */
/* ... is in a file system of which one page that is written takes a huge page, whose other pages
 * have no holes any more */
static bool huge;

/* A backend with data that the VM does not use, with a file of its own on each side. */
static void start_with_more(const char *option)
{
    static const char data[] = "data of nobody";
    mover_begin();
    const char *const there = huge ? mover_mount("huge=always") : "/dev/shm";
    for (unsigned i = 0; i < 2; i++) {
        snprintf(files[i], sizeof(files[i]), "%s/ibx-vm-%d-more-%u", i ? there : "/dev/shm",
                 (int)getpid(), i);
        snprintf(backends[i], sizeof(backends[i]),
                 "memory-backend-file,id=extra,size=16M,share=on,mem-path=%s", files[i]);
        unlink(files[i]);
        if (nameless && i)
            snprintf(backends[i], sizeof(backends[i]),
                     "memory-backend-memfd,id=extra,size=16M,share=on");
        const int fd = open(files[i], O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        assert_true(fd >= 0 && !ftruncate(fd, MORE_BYTES));
        for (off_t at = 0; !i && at < MORE_BYTES; at += 1 << 16)
            assert_int_equal(pwrite(fd, data, sizeof(data), at), sizeof(data));
        close(fd);
        vm_start(&vms[i], &(struct vm_options){.append = "",
                                               .incoming = i,
                                               .extra = {SLOTS, "-object", backends[i]}});
    }
    vm_wait_beats(&vms[0], pair_beats);
    pair_run((const char *[]){"--max-bandwidth", HARDLY, option, NULL});
    mover_await(&receiver, "filling", 0);
}

static void remove_more(struct vm *vm)
{
    vm_do(vm, "object-del", json_pack("{s:s}", "id", "extra"));
    /* QEMU unmaps it a little later. */
    const char *const file = vm == &vms[0] ? files[0]
                             : nameless    ? "/memfd:memory-backend-memfd"
                                           : files[1];
    const uint64_t until = vm_soon();
    while (vm_memory_has(vm, file, " rd"))
        assert_true(ibx_now_ns() < until);
}

/* All of its pages have come, used or not. */
static void more_is_the_same(void)
{
    char command[260];
    snprintf(command, sizeof(command), "cmp %s %s && rm %s %s", files[0], files[1], files[0],
             files[1]);
    assert_int_equal(system(command), 0);
}

static void test_removed_at_the_source_and_its_tool_killed(void)
{
    start_with_more(NULL);
    mover_kill(&sender, SIGKILL);
    remove_more(&vms[0]);
    pair_recover(&sender);
    pair_filled();
    more_is_the_same();
}

static void test_added_at_the_source_and_its_tool_killed(void)
{
    pair_filling(&(struct vm_options){.append = "", .extra = {SLOTS}}, NULL);
    vm_do(&vms[0], "object-add",
          json_pack("{s:s, s:s, s:i, s:b, s:s}", "qom-type", "memory-backend-file", "id", "a",
                    "size", MORE_BYTES, "share", 1, "mem-path", "/dev/shm"));
    mover_kill(&sender, SIGKILL);
    pair_recover(&sender);
    pair_filled();
}

/* The next tool has no limit, so the rest comes by itself: pair_filled() would look for a tool that
 * may have ended. */
static void receiver_is_killed(void)
{
    mover_kill(&receiver, SIGKILL);
    pair_recover(&receiver);
    pair_done();
    pair_moved("");
}

/* Bytes of the file that the tool has in the place of one that is gone. */
static off_t kept_by(const struct mover *mover)
{
    char folder[32], path[300], link[64];
    struct stat st = {.st_size = 0};
    snprintf(folder, sizeof(folder), "/proc/%d/fd", (int)mover->pid);
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (const struct dirent *one; !st.st_size && (one = readdir(dir));) {
        snprintf(path, sizeof(path), "%s/%s", folder, one->d_name);
        const ssize_t n = readlink(path, link, sizeof(link) - 1);
        link[n > 0 ? n : 0] = '\0';
        if (strstr(link, "ibx-removed-memory"))
            assert_int_equal(stat(path, &st), 0);
    }
    closedir(dir);
    assert_int_equal(st.st_size, MORE_BYTES);
    return (off_t)st.st_blocks * 512;
}

/* Nobody can see its pages any more. */
static void removed_for_ever_at_the_destination(const char *option, bool named)
{
    nameless = !named;
    start_with_more(option);
    remove_more(&vms[1]);
    if (named)
        assert_int_equal(unlink(files[1]), 0);
    mover_kill(&receiver, SIGKILL);
    mover_stop_next("destination:complete");
    pair_recover(&receiver);
    mover_await_stop(&receiver);
    assert_int_equal(kept_by(&receiver), 0);
    kill(receiver.pid, SIGCONT);
    pair_done();
    pair_moved("");
    assert_false(vm_memory_has(&vms[1], vms[1].ram, " nh"));
}

static void test_removed_without_a_name_at_the_destination_and_its_tool_killed(void)
{
    removed_for_ever_at_the_destination(NULL, false);
}

static void test_removed_without_a_name_in_minor_mode_and_its_tool_killed(void)
{
    removed_for_ever_at_the_destination("--minor", false);
}

static void test_removed_with_its_file_at_the_destination_and_its_tool_killed(void)
{
    removed_for_ever_at_the_destination(NULL, true);
}

/* Nobody waits for its pages any more, and who plugs it in again finds them in its file. */
static void removed_at_the_destination(bool killed, const char *option)
{
    start_with_more(option);
    remove_more(&vms[1]);
    if (killed)
        receiver_is_killed();
    else
        pair_filled();
    more_is_the_same();
    assert_false(vm_memory_has(&vms[1], vms[1].ram, " nh"));
}

static void test_removed_at_the_destination(void)
{
    removed_at_the_destination(false, NULL);
}

static void test_removed_at_the_destination_in_minor_mode(void)
{
    removed_at_the_destination(false, "--minor");
}

static void test_removed_at_the_destination_and_its_tool_killed(void)
{
    removed_at_the_destination(true, NULL);
}

static void test_removed_at_the_destination_in_minor_mode_and_its_tool_killed(void)
{
    removed_at_the_destination(true, "--minor");
}

/* Whoever owns its file may free what it holds: neither VM needs that. */
static void cut_short_at_the_destination(bool killed)
{
    start_with_more(NULL);
    remove_more(&vms[1]);
    assert_int_equal(truncate(files[1], 0), 0);
    if (killed)
        receiver_is_killed();
    else
        pair_filled();
}

static void test_removed_at_the_destination_and_its_file_is_cut_short(void)
{
    cut_short_at_the_destination(false);
}

static void test_removed_at_the_destination_its_file_cut_short_and_its_tool_killed(void)
{
    cut_short_at_the_destination(true);
}

static void test_removed_at_the_source_and_its_file_is_cut_short_before_a_rollback(void)
{
    start_with_more(NULL);
    mover_kill(&sender, SIGKILL);
    mover_kill(&receiver, SIGKILL);
    vm_kill(&vms[1]);
    remove_more(&vms[0]);
    assert_int_equal(truncate(files[0], 0), 0);
    MOVER_RUN(0, "rollback", "--yes", "--qmp", vms[0].tool);
    pair_runs_at_the_source();
}

/* The destination has it still, and its pages have gone. */
static void test_removed_at_the_source_and_its_file_is_cut_short_after_a_recovery(void)
{
    start_with_more(NULL);
    mover_kill(&sender, SIGKILL);
    remove_more(&vms[0]);
    pair_recover(&sender);
    mover_await(&receiver, "filling", 0);
    mover_await(&sender, "filling", 0);
    assert_int_equal(truncate(files[0], 0), 0);
    mover_ends(&sender, 1);
    mover_ends(&receiver, 1);
    mover_must_print(&sender, files[0]);
    mover_must_print(&receiver, files[0]);
}

/* Another client of QEMU reads the file, by a backend that is share=off or readonly=on. No guest is
 * handed its pages, since such a mapping has no userfaultfd. */
static void test_removed_at_the_destination_and_its_file_is_a_private_backend(void)
{
    start_with_more(NULL);
    remove_more(&vms[1]);
    vm_do(&vms[1], "object-add",
          json_pack("{s:s, s:s, s:i, s:b, s:s}", "qom-type", "memory-backend-file", "id", "private",
                    "size", MORE_BYTES, "share", 0, "mem-path", files[1]));
    pair_filled();
    more_is_the_same();
}

/* Its pages would be put over what a guest has there by then, so they wait until it is unplugged.
 */
static void plugged_in_again_at_the_destination(bool killed)
{
    start_with_more(NULL);
    remove_more(&vms[1]);
    vm_do(&vms[1], "object-add",
          json_pack("{s:s, s:s, s:i, s:b, s:s}", "qom-type", "memory-backend-file", "id", "extra",
                    "size", MORE_BYTES, "share", 1, "mem-path", files[1]));
    if (killed) {
        mover_kill(&receiver, SIGKILL);
        pair_recover(&receiver);
    } else {
        MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    }
    mover_await_words(&receiver, "plugged in again before all of its pages had come: unplug it");
    remove_more(&vms[1]);
    pair_done();
    pair_moved("");
    more_is_the_same();
}

static void test_plugged_in_again_at_the_destination(void)
{
    plugged_in_again_at_the_destination(false);
}

static void test_plugged_in_again_at_the_destination_and_its_tool_killed(void)
{
    plugged_in_again_at_the_destination(true);
}

static int end_all(void **state)
{
    const int rc = mover_end_all(state);
    for (unsigned i = 0; i < 2; i++)
        unlink(files[i]);
    nameless = huge = false;
    return rc;
}

/* Whether the file has more pages than have come. */
static bool has_huge_page(const char *file)
{
    struct stat st;
    return !stat(file, &st) && st.st_blocks * 512 >= 2 << 20;
}

static void test_removed_at_the_destination_with_huge_pages_and_its_tool_killed(void)
{
    huge = true;
    start_with_more(NULL);
    remove_more(&vms[1]);
    /* Of this memory one page may have come meanwhile, or none. */
    MOVER_RUN(0, "set", "--max-bandwidth", "512K", "--qmp", vms[1].tool);
    for (const uint64_t until = vm_soon(); !has_huge_page(files[1]);)
        assert_true(ibx_now_ns() < until);
    receiver_is_killed();
    more_is_the_same();
}

int main(void)
{
    static const struct vm_test tests[] = {
        VM_TEST(test_added_at_the_source_and_its_tool_killed),
        VM_TEST(test_removed_at_the_source_and_its_tool_killed),
        VM_TEST(test_removed_at_the_destination),
        VM_TEST(test_removed_at_the_destination_in_minor_mode),
        VM_TEST(test_removed_at_the_destination_and_its_tool_killed),
        VM_TEST(test_removed_at_the_destination_in_minor_mode_and_its_tool_killed),
        VM_TEST(test_removed_without_a_name_at_the_destination_and_its_tool_killed),
        VM_TEST(test_removed_without_a_name_in_minor_mode_and_its_tool_killed),
        VM_TEST(test_removed_with_its_file_at_the_destination_and_its_tool_killed),
        VM_TEST(test_removed_at_the_destination_and_its_file_is_cut_short),
        VM_TEST(test_removed_at_the_destination_its_file_cut_short_and_its_tool_killed),
        VM_TEST(test_removed_at_the_source_and_its_file_is_cut_short_before_a_rollback),
        VM_TEST(test_removed_at_the_source_and_its_file_is_cut_short_after_a_recovery),
        VM_TEST(test_removed_at_the_destination_and_its_file_is_a_private_backend),
        VM_TEST(test_plugged_in_again_at_the_destination),
        VM_TEST(test_plugged_in_again_at_the_destination_and_its_tool_killed),
        VM_TEST(test_removed_at_the_destination_with_huge_pages_and_its_tool_killed),
        {0},
    };
    return vm_tests(tests, end_all);
}
