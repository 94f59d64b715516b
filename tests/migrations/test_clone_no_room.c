/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Children and caches in a file system, or on a host, that has no room for their pages. */
#include "tests/fixtures/clones.h"

#include "common/clock.h"
#include "migrate/snapshot/cache.h"
#include "migrate/snapshot/snapshot.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

static const char *small; /* a tmpfs in which nothing is */

#define FOLDER 200

/* Serves what was frozen, for a cache that is to be in this folder, of a tmpfs of that size. */
static void serve_into_small(const char *size, char folder[FOLDER])
{
    char option[32];
    freeze();
    snprintf(option, sizeof(option), "size=%s", size);
    small = mover_mount(option);
    snprintf(folder, FOLDER, "%s/cache", small);
    SERVE(&server, snapshot, "--listen", "tcp://127.0.0.1:0");
}

/* The cache's tmpfs is full: the cache says so, tries again with pauses, and goes on when there is
 * room. */
static void test_no_room_for_a_cache(void)
{
    char folder[FOLDER];
    serve_into_small("4m", folder);
    SERVE(&filler, folder, "--cache", server.uri);
    mover_must_print(&filler, "all of this snapshot may come to need");
    const uint64_t began = ibx_now_ns(), until = vm_soon();
    while (lines_with(filler.err, "make room") < 3 && ibx_now_ns() < until)
        poll(NULL, 0, 5);
    const uint64_t took = ibx_now_ns() - began;
    const int larger = mount("ibx-test", small, "tmpfs", MS_REMOUNT, "size=64m");
    if (!larger)
        mover_await_words(&filler, "\"whole\":true");
    mover_kill(&filler, SIGTERM);
    mover_ends(&filler, 0);
    is_as_frozen(folder);
    assert_int_equal(larger, 0);
    assert_true(took > 500 * IBX_NS_PER_MS);
}

/* Fills the tmpfs until so many bytes are left. */
static void leave_room(uint64_t bytes)
{
    char option[64];
    struct statfs fs;
    assert_int_equal(statfs(small, &fs), 0);
    snprintf(option, sizeof(option), "size=%llu",
             (unsigned long long)((fs.f_blocks - fs.f_bfree) * (uint64_t)fs.f_bsize + bytes));
    assert_int_equal(mount("ibx-test", small, "tmpfs", MS_REMOUNT, option), 0);
}

/* Makes the longest run of zeros in the frozen memory pages of this cache's file. */
static void make_zeros_pages(const char *folder)
{
    char path[220];
    off_t first = 0, bytes = 0, data = 0;
    snprintf(path, sizeof(path), "%s/ram.0", snapshot);
    const int frozen = open(path, O_RDONLY | O_CLOEXEC);
    snprintf(path, sizeof(path), "%s/ram.0", folder);
    const int cached = open(path, O_RDWR | O_CLOEXEC);
    assert_true(frozen >= 0 && cached >= 0);
    for (off_t hole = 0; data >= 0; hole = lseek(frozen, data, SEEK_HOLE)) {
        data = lseek(frozen, hole, SEEK_DATA);
        if (data - hole > bytes) {
            first = hole;
            bytes = data - hole;
        }
    }
    assert_true(bytes > 8 << 20);
    assert_int_equal(fallocate(cached, 0, first, bytes), 0);
    close(frozen);
    close(cached);
}

/* A cache's file has a page of zeros because somebody looked at it: such a page was not to come. */
static void test_no_room_beside_pages_of_zeros(void)
{
    char folder[FOLDER];
    serve_into_small("4m", folder);
    SERVE(&filler, folder, "--cache", server.uri);
    mover_await_words(&filler, "make room");
    mover_kill(&filler, SIGKILL);
    leave_room(64 << 20);
    make_zeros_pages(folder);
    leave_room(0);
    SERVE(&filler, folder, "--cache", server.uri);
    mover_must_print(&filler, "all of this snapshot may come to need");
    leave_room(64 << 20);
    mover_await_words(&filler, "\"whole\":true");
    mover_kill(&filler, SIGTERM);
    mover_ends(&filler, 0);
}

/* All pages are there, and no room for the manifest that says so: who ends then does not doubt the
 * pages. */
static void test_no_room_for_the_manifest(void)
{
    char folder[FOLDER];
    serve_into_small("64m", folder);
    SERVE(&filler, folder, "--cache", server.uri);
    mover_await_words(&filler, "\"whole\":true");
    mover_kill(&filler, SIGTERM);
    mover_ends(&filler, 0);
    forget_whole(folder);
    leave_room(0);
    SERVE(&filler, folder, "--cache", server.uri);
    mover_await_words(&filler, "it is tried again: make room there");
    mover_kill(&filler, SIGTERM);
    mover_ends(&filler, 0);
    mover_must_print(&filler, "has all pages, but its manifest does not say so");
    leave_room(1 << 20);
    SERVE(&filler, folder, "--cache", server.uri);
    mover_await_words(&filler, "\"whole\":true");
    is_as_frozen(folder);
}

/* A child looks at all of its memory, also at what is zero. */
static void look_at_all(struct vm *child)
{
    vm_do(child, "pmemsave",
          json_pack("{s:i, s:i, s:s}", "val", 0, "size", 64 << 20, "filename", "/dev/null"));
}

/* The zeros in those MiB of a snapshot's memory that also have data: how many there are depends on
 * how far the VM had come at its freeze. Longer runs of zeros are the child's own. */
static uint64_t zeros_beside_data(const char *folder)
{
    const off_t step = 1 << 20;
    char path[220];
    struct stat st;
    uint64_t bytes = 0;
    snprintf(path, sizeof(path), "%s/ram.0", folder);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && !fstat(fd, &st));
    for (off_t at = 0; at < st.st_size; at += step) {
        const off_t data = lseek(fd, at, SEEK_DATA);
        bytes += data >= at && data < at + step ? (uint64_t)step : 0;
    }
    close(fd);
    assert_in_range(bytes, 1, (uint64_t)st.st_size / 2);
    return bytes - (uint64_t)st.st_blocks * 512;
}

/* Pages of zeros that a child looks at take no room in the snapshot, where there may be none. */
static void test_no_room_for_zeros(void)
{
    char command[400], folder[FOLDER];
    freeze();
    small = mover_mount("size=256m");
    snprintf(command, sizeof(command), "cp -a --sparse=always %s %s/whole", snapshot, small);
    assert_int_equal(system(command), 0);
    snprintf(folder, sizeof(folder), "%s/whole", small);
    child_start(&children[0], (const char *[]){"-S", NULL});
    const uint64_t need = zeros_beside_data(folder);
    leave_room(need - IBX_SNAPSHOT_PAGE);
    mover_must_print(MOVER_RUN(1, "clone", folder, "--qmp", children[0].tool), "pages of zeros");
    leave_room(need);
    MOVER_RUN(0, "clone", folder, "--qmp", children[0].tool);
    look_at_all(&children[0]);
    vm_do(&children[0], "cont", NULL);
    child_is_right(&children[0]);
}

static size_t record_of(const char *folder, const struct vm *child, char *text, size_t size)
{
    char path[260];
    snprintf(path, sizeof(path), "%s/child.%d", folder, (int)child->pid);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    const size_t length = fread(text, 1, size, file);
    fclose(file);
    return length;
}

/* A cache in a tmpfs of that size, which gets what is asked for. */
static void fill_on_demand(const char *size, char folder[FOLDER])
{
    serve_into_small(size, folder);
    SERVE(&filler, folder, "--cache", server.uri, "--on-demand");
}

static void clone_on_demand(char folder[FOLDER])
{
    fill_on_demand("256m", folder);
    child_start(&children[0], (const char *[]){"-S", NULL});
    MOVER_RUN(0, "clone", folder, "--qmp", children[0].tool);
}

/* A clone for which the time that it gives QEMU passes fast, once it is to give up. */
static void clone_by_a_fast_clock(struct mover *tool, const char *folder)
{
    if (!getenv("IBX_FAST_CLOCK"))
        skip();
    child_start(&children[0], (const char *[]){"-S", NULL});
    mover_preload(getenv("IBX_FAST_CLOCK"));
    mover_start(tool, (const char *[]){"clone", folder, "--qmp", children[0].tool, NULL});
    mover_preload(NULL);
}

/* A processor in emulation reads guest memory as it is loaded. Under KVM only devices would. */
static void needs_pages_to_load(void)
{
    if (!vm_is_under_kvm())
        return;
    print_message("under KVM QEMU needs no page to load this VM\n");
    skip();
}

static void gives_up(struct mover *tool)
{
    mover_kill(tool, SIGUSR1);
    mover_ends(tool, 1);
}

/* QEMU needs pages to load the VM, for which the cache has no room. */
static void test_no_room_for_the_pages_of_a_child(void)
{
    char folder[FOLDER];
    struct mover tool;
    needs_pages_to_load();
    fill_on_demand("256m", folder);
    leave_room(4096);
    clone_by_a_fast_clock(&tool, folder);
    mover_await_words(&filler, "make room");
    gives_up(&tool);
    mover_must_print(&tool, "/cache has no room for the pages that QEMU needs to load the VM: make "
                            "room there");
}

/* A tmpfs without a limit says that no page of it is free. Here the server does not send any. */
static void test_pages_of_a_child_do_not_come_where_room_has_no_limit(void)
{
    char folder[FOLDER];
    struct mover tool;
    needs_pages_to_load();
    fill_on_demand("0", folder);
    mover_kill(&server, SIGSTOP);
    clone_by_a_fast_clock(&tool, folder);
    mover_await_asleep(&tool);
    gives_up(&tool);
    mover_must_print(&tool, "QEMU");
    assert_false(mover_printed(&tool, "room"));
}

/* Who says again that it is there, where its record cannot be written anew, keeps that. */
static void test_no_room_for_a_second_record(void)
{
    char folder[FOLDER], was[SNAPSHOT_CHILD_TEXT], is[sizeof(was)];
    struct ibx_snapshot_folder of;
    struct snapshot_child child;
    struct snapshot_holes holes;
    bool whole;
    clone_on_demand(folder);
    const size_t length = record_of(folder, &children[0], was, sizeof(was));
    vm_ok(ibx_snapshot_folder_open(folder, false, &of, &vm_error));
    vm_ok(ibx_snapshot_child_read(was, length, of.manifest.ram_count, &child, &vm_error));
    leave_room(0);
    vm_refused(ibx_snapshot_child_hand_over(&of, &child, &whole, &holes, &vm_error), -EREMOTEIO,
               "cannot be written: No space left on device");
    assert_int_equal(record_of(folder, &children[0], is, sizeof(is)), length);
    assert_memory_equal(is, was, length);
    leave_room(64 << 20);
    ibx_snapshot_folder_close(&of);
    mover_kill(&filler, SIGKILL);
    SERVE(&filler, folder, "--cache", server.uri);
    vm_do(&children[0], "cont", NULL);
    child_is_right(&children[0]);
}

/* Likewise for a cache that gets all pages after its child was made. `lacking`: a library for the
 * filler to preload, or NULL. */
static void cache_without_room(const char *lacking)
{
    char folder[FOLDER];
    clone_on_demand(folder);
    mover_kill(&filler, SIGTERM);
    mover_ends(&filler, 0);
    mover_preload(lacking);
    SERVE(&filler, folder, "--cache", server.uri);
    mover_preload(NULL);
    mover_await_words(&filler, "\"whole\":true");
    mover_kill(&filler, SIGTERM);
    mover_ends(&filler, 0);
    leave_room(0);
    look_at_all(&children[0]);
    vm_do(&children[0], "cont", NULL);
    child_is_right(&children[0]);
}

static void test_no_room_for_zeros_in_a_cache(void)
{
    cache_without_room(NULL);
}

/* ... and this host has no memory for them for a moment, as the child is to be let go. */
static void test_no_memory_for_zeros_in_a_cache(void)
{
    if (!getenv("IBX_NO_MEMORY"))
        skip();
    cache_without_room(getenv("IBX_NO_MEMORY"));
    mover_must_print(&filler, "it is tried again");
}

/* Likewise for a child that is made meanwhile: it is refused before it runs. */
static void whole_without_room(bool filled)
{
    char folder[FOLDER];
    struct mover tool;
    fill_on_demand("256m", folder);
    child_start(&children[0], (const char *[]){"-S", NULL});
    mover_stop_next("clone:mapped");
    mover_start(&tool, (const char *[]){"clone", folder, "--qmp", children[0].tool, NULL});
    mover_await_stop(&tool);
    mover_kill(&filler, SIGTERM);
    mover_ends(&filler, 0);
    SERVE(&filler, folder, "--cache", server.uri);
    mover_await_words(&filler, "\"whole\":true");
    if (!filled) {
        mover_kill(&filler, SIGTERM);
        mover_ends(&filler, 0);
    }
    leave_room(0);
    kill(tool.pid, SIGCONT);
    mover_ends(&tool, 1);
    mover_must_print(&tool, "pages of zeros");
}

static void test_no_room_for_zeros_when_whole(void)
{
    whole_without_room(false);
}

static void test_no_room_for_zeros_when_its_filler_says_whole(void)
{
    whole_without_room(true);
}

/* This host has no memory for a child's page for a moment: it gets the page later. */
static void test_no_memory_for_zeros(void)
{
    const char *no_memory = getenv("IBX_NO_MEMORY");
    if (!no_memory)
        skip();
    freeze();
    SERVE(&server, snapshot, "--listen", "tcp://127.0.0.1:0");
    mover_preload(no_memory);
    SERVE(&filler, cache, "--cache", server.uri, "--on-demand");
    mover_preload(NULL);
    child_start(&children[0], (const char *[]){"-S", NULL});
    MOVER_RUN(0, "clone", cache, "--qmp", children[0].tool);
    look_at_all(&children[0]);
    await_figure(&filler, "zero_faults", 1);
    mover_must_print(&filler, "it is tried again");
    vm_do(&children[0], "cont", NULL);
    child_is_right(&children[0]);
}

int main(void)
{
    static const struct vm_test tests[] = {
        VM_TEST(test_no_room_for_a_cache),
        VM_TEST(test_no_room_beside_pages_of_zeros),
        VM_TEST(test_no_room_for_the_manifest),
        VM_TEST(test_no_room_for_zeros),
        VM_TEST(test_no_room_for_the_pages_of_a_child),
        VM_TEST(test_pages_of_a_child_do_not_come_where_room_has_no_limit),
        VM_TEST(test_no_room_for_a_second_record),
        VM_TEST(test_no_room_for_zeros_in_a_cache),
        VM_TEST(test_no_memory_for_zeros_in_a_cache),
        VM_TEST(test_no_room_for_zeros_when_whole),
        VM_TEST(test_no_room_for_zeros_when_its_filler_says_whole),
        VM_TEST(test_no_memory_for_zeros),
        {0},
    };
    return vm_tests(tests, clones_end);
}
