/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Snapshots of real VMs: freeze, serve and their readers. */
#include "tests/fixtures/mover.h"

#include "migrate/snapshot/snapshot.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define RAM (VM_RAM_MIB << 20)

static char snapshot[160];
static struct mover server;

/* A VM that has run for a while, frozen with these options. */
static void freeze(const char *append, const char *option)
{
    mover_begin();
    vm_start(&vms[0], &(struct vm_options){.append = append});
    vm_wait_beats(&vms[0], 2);
    snprintf(snapshot, sizeof(snapshot), "%s/snapshot", mover_folder);
    MOVER_RUN(0, "freeze", snapshot, "--qmp", vms[0].tool, "--json", option);
}

/* Until it has a URI. */
static void serve(const char *uri)
{
    mover_start(&server, (const char *[]){"serve", snapshot, "--listen", uri, "--json", NULL});
    mover_await_words(&server, "\"uri\":\"");
    FILE *file = fopen(server.out, "re");
    char line[1024];
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof(line), file));
    fclose(file);
    assert_int_equal(sscanf(strstr(line, "\"uri\":\""), "\"uri\":\"%299[^\"]", server.uri), 1);
}

static void end_server(void)
{
    mover_kill(&server, SIGTERM);
    mover_ends(&server, 0);
}

static struct ibx_options transport(void)
{
    struct ibx_options options;
    ibx_options_init(&options);
    return options;
}

static struct ibx_snapshot_reader *reader_open(unsigned links)
{
    const struct ibx_options options = transport();
    struct ibx_snapshot_reader *reader;
    vm_soon();
    vm_ok(ibx_snapshot_reader_open(server.uri, &options, links, &reader, &vm_error));
    return reader;
}

/* The bytes that cross the wire are those of these files. */
static void same_bytes(struct ibx_snapshot_reader *reader, unsigned block, const char *path,
                       size_t length)
{
    uint8_t *got = malloc(length), *is = calloc(1, length);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && got && is);
    assert_true(pread(fd, is, length, 0) >= 0);
    close(fd);
    vm_ok(ibx_snapshot_reader_fetch(reader, block, 0, got, length, &vm_error));
    assert_memory_equal(got, is, length);
    free(got);
    free(is);
}

/* ---------------------------------------------------------------- freeze */

static void read_back(const char *uri)
{
    char path[200];
    struct stat st;
    freeze("mib=16", NULL);
    assert_false(vm_runs(&vms[0]));
    assert_int_equal(stat(snapshot, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    serve(uri);
    struct ibx_snapshot_reader *one = reader_open(1), *other = reader_open(3);
    const struct ibx_snapshot_manifest *m = ibx_snapshot_reader_manifest(one);
    assert_int_equal(m->ram_count, 1);
    assert_string_equal(m->ram[0].id, "mem0");
    assert_true(m->ran && m->complete && m->ram[0].size == RAM);
    /* The frozen memory is what the stopped VM has, and zeros cross no wire. */
    assert_true(ibx_snapshot_reader_map(one)->data_pages >= 1 << 8);
    assert_true(ibx_snapshot_reader_map(one)->data_pages < RAM / 4096);
    same_bytes(one, 0, vms[0].ram, RAM);
    snprintf(path, sizeof(path), "%s/state", snapshot);
    same_bytes(other, 1, path, m->state_bytes);
    ibx_snapshot_reader_close(one);
    ibx_snapshot_reader_close(other);
    end_server();
}

static void test_read_back_tcp(void)
{
    read_back("tcp://127.0.0.1:0");
}

static void test_read_back_shm(void)
{
    read_back("shm://127.0.0.1:0");
}

/* The VM runs on, and what is frozen does not change. */
static void test_resume(void)
{
    struct ibx_snapshot_folder folder;
    struct ibx_page_map map;
    uint8_t digest[IBX_SNAPSHOT_DIGEST];
    freeze("mib=16", "--resume");
    assert_true(vm_runs(&vms[0]));
    vm_wait_beats(&vms[0], vm_beats(&vms[0]) + 2);
    vm_soon();
    vm_ok(ibx_snapshot_folder_open(snapshot, false, &folder, &vm_error));
    vm_ok(ibx_snapshot_folder_map(&folder, &map, &vm_error));
    vm_ok(ibx_snapshot_digest(&folder, &map, digest, &vm_error));
    assert_memory_equal(digest, folder.manifest.digest, sizeof(digest));
    ibx_page_map_fini(&map);
    ibx_snapshot_folder_close(&folder);
    mover_heartbeats((const struct vm *[]){&vms[0], NULL}, "mib=16");
}

static void test_quit(void)
{
    freeze("mib=16", "--quit");
    vm_await_end(&vms[0]);
}

/* ---------------------------------------------------------------- failures */

static void test_refused(void)
{
    freeze("mib=16", "--resume");
    /* The folder has a snapshot; nothing happens to the VM. */
    struct mover *again = MOVER_RUN(1, "freeze", snapshot, "--qmp", vms[0].tool);
    mover_must_print(again, "is not empty: give another one");
    assert_true(vm_runs(&vms[0]));
    assert_int_equal(chmod(snapshot, 0755), 0);
    mover_must_print(MOVER_RUN(1, "serve", snapshot, "--listen", "tcp://127.0.0.1:0"),
                     "chmod 0700");
    assert_int_equal(chmod(snapshot, 0700), 0);
    char path[200];
    snprintf(path, sizeof(path), "%s/ram.0", snapshot);
    assert_int_equal(truncate(path, 4096), 0);
    mover_must_print(MOVER_RUN(1, "serve", snapshot, "--listen", "tcp://127.0.0.1:0"),
                     "has not the 67108864 bytes that its manifest says; the snapshot is damaged: "
                     "copy, freeze or fetch it again");
    assert_int_equal(unlink(path), 0);
    mover_must_print(MOVER_RUN(1, "serve", snapshot, "--listen", "tcp://127.0.0.1:0"),
                     "ram.0 cannot be opened: No such file or directory; the snapshot is damaged");
}

/* A snapshot on a file system that nobody can write to, as an image that was mounted so. */
static void test_served_where_nobody_can_write(void)
{
    freeze("mib=16", "--resume");
    if (mount(snapshot, snapshot, NULL, MS_BIND, NULL))
        skip();
    const int only_read = mount(NULL, snapshot, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL);
    serve("tcp://127.0.0.1:0");
    struct ibx_snapshot_reader *reader = reader_open(1);
    char path[200];
    snprintf(path, sizeof(path), "%s/ram.0", snapshot);
    same_bytes(reader, 0, path, RAM);
    ibx_snapshot_reader_close(reader);
    end_server();
    umount(snapshot);
    assert_int_equal(only_read, 0);
}

/* The snapshot does not fit: the VM goes on, and nothing is left of it. */
static void test_no_room(void)
{
    struct stat st;
    mover_begin();
    vm_start(&vms[0], &(struct vm_options){.append = "mib=16"});
    vm_wait_beats(&vms[0], 2);
    snprintf(snapshot, sizeof(snapshot), "%s/snapshot", mover_mount("size=4m"));
    struct mover *tried = MOVER_RUN(1, "freeze", snapshot, "--qmp", vms[0].tool);
    const int gone = stat(snapshot, &st);
    mover_must_print(tried,
                     "/tmpfs/snapshot: guest RAM cannot be written into the snapshot: No space "
                     "left on device; free space there");
    assert_int_equal(gone, -1);
    assert_true(vm_runs(&vms[0]));
    vm_wait_beats(&vms[0], vm_beats(&vms[0]) + 2);
    mover_heartbeats((const struct vm *[]){&vms[0], NULL}, "mib=16");
}

/* A device is unplugged after the VM was described: a child would have it, and its guest not. */
static void test_a_device_at_the_stop(void)
{
    struct mover tool;
    struct stat st;
    mover_begin();
    vm_start(&vms[0], &(struct vm_options){.append = "mib=16",
                                           .extra = {"-device", "qemu-xhci,addr=5", "-device",
                                                     "usb-tablet,id=old"}});
    vm_wait_beats(&vms[0], 2);
    snprintf(snapshot, sizeof(snapshot), "%s/snapshot", mover_folder);
    mover_stop_next("freeze:prepared");
    mover_start(&tool, (const char *[]){"freeze", snapshot, "--qmp", vms[0].tool, NULL});
    mover_await_stop(&tool);
    vm_do(&vms[0], "device_del", json_pack("{s:s}", "id", "old"));
    mover_kill(&tool, SIGCONT);
    mover_ends(&tool, 1);
    mover_must_print(&tool, "another client of QEMU, or the guest, has plugged a device in or out");
    assert_int_equal(stat(snapshot, &st), -1);
    assert_true(vm_runs(&vms[0]));
    vm_wait_beats(&vms[0], vm_beats(&vms[0]) + 2);
    mover_heartbeats((const struct vm *[]){&vms[0], NULL}, "mib=16");
}

int main(void)
{
    static const struct vm_test tests[] = {
        VM_TEST(test_read_back_tcp),
        VM_TEST(test_read_back_shm),
        VM_TEST(test_resume),
        VM_TEST(test_quit),
        VM_TEST(test_refused),
        VM_TEST(test_served_where_nobody_can_write),
        VM_TEST(test_no_room),
        VM_TEST(test_a_device_at_the_stop),
        {0},
    };
    return vm_tests(tests, mover_end_all);
}
