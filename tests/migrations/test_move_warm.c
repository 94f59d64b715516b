/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* ib-migrate send --warm: pages that are fetched while the VM still runs at the source. */
#include "tests/fixtures/mover.h"
#include "tests/fixtures/ram_file.h"
#include "tests/fixtures/slow_disk.h"

#include "common/clock.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define WARM "--warm"

/* Checks the figures of the pages that came before the stop and were still right then. */
static void check_warm(void)
{
    const json_int_t pages = mover_figure(&receiver, "warm_pages"),
                     data =
                         mover_figure(&receiver, "pages") - mover_figure(&receiver, "zero_pages");
    print_message("%d passes, %.1f MiB before the stop, %d of %d pages were right then, %d faults, "
                  "downtime %.1f ms\n",
                  (int)mover_figure(&sender, "warm_rounds"),
                  (double)mover_figure(&sender, "warm_bytes") / 1e6, (int)pages, (int)data,
                  (int)mover_figure(&receiver, "faults"),
                  (double)mover_figure(&sender, "downtime_ns") / 1e6);
    assert_true(pages > 0 && pages <= data);
    assert_int_equal(pages, mover_figure(&sender, "warm_pages"));
    assert_true(mover_figure(&sender, "warm_bytes") >= pages * 4096);
}

static void moved(const struct vm_options *like, const char *uri, const char *const *more)
{
    pair_start(like);
    mover_receive(&receiver, &vms[1], uri, NULL);
    mover_send(&sender, &vms[0], receiver.uri, more);
    pair_done();
    check_warm();
    pair_moved(like->append);
}

static void test_tcp(void)
{
    moved(&(struct vm_options){.append = "mib=32"}, "tcp://127.0.0.1:0",
          (const char *[]){WARM, NULL});
}

static void test_shm(void)
{
    moved(&(struct vm_options){.append = "cpus=2", .two = true}, "shm://127.0.0.1:0",
          (const char *[]){WARM, NULL});
}

/* With TLS, also for pages that come before the stop. */
static void test_encrypted(void)
{
    char key[64], text[70] = "";
    for (unsigned i = 0; i < 64; i++)
        text[i] = "0123456789abcdef"[i % 16];
    pair_start(&(struct vm_options){.append = "mib=16"});
    snprintf(key, sizeof(key), "%s/key", vms[0].dir);
    const int fd = open(key, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, text, 64), 64);
    close(fd);
    const char *options[] = {"--key-file", key, "--encryption", "required", NULL, NULL};
    pair_receive(options);
    options[4] = WARM;
    pair_send(options);
    pair_done();
    check_warm();
    mover_must_print(&sender, "TLS");
    pair_moved("mib=16");
}

/* Memory is registered in pieces there, and more of it between two parts. */
static void test_ofi(void)
{
    mover_needs_ofi();
    moved(&(struct vm_options){.append = "beat=64"}, OFI,
          (const char *[]){WARM, "--set", PATIENT, NULL});
}

/* ---------------------------------------------------------------- every byte */

/* Without the digests, which would find a wrong page, too. */
static void test_right_every_byte(void)
{
    struct vm_options options = {.append = "cpus=2", .two = true};
    mover_begin();
    vm_start(&vms[0], &options);
    options.incoming = true;
    options.extra[0] = "-S";
    vm_start(&vms[1], &options);
    vm_wait_beats(&vms[0], pair_beats);
    mover_receive(&receiver, &vms[1], "tcp://127.0.0.1:0",
                  (const char *[]){"--paused", "--no-verify", NULL});
    mover_send(&sender, &vms[0], receiver.uri,
               (const char *[]){WARM, "--no-verify", "--warm-rounds", "3", NULL});
    pair_done();
    check_warm();
    uint8_t *wanted = ram_copy(vms[0].ram);
    ram_is(vms[1].ram, wanted);
    ram_free(wanted);
    vm_do(&vms[1], "cont", NULL);
    pair_moved(options.append);
}

/* ---------------------------------------------------------------- writes that leave no mark */

static struct slow_disk disk;

static int end_all(void **state)
{
    const int rc = mover_end_all(state);
    slow_disk_end(&disk);
    return rc;
}

/* Each read of the disk takes far longer than all pages together: the read that is under way when
 * they are fetched ends later, in pages that it had marked dirty before. False: on a busy host the
 * disk came to rest too late, and nothing was fetched before the stop. */
static bool right_past_the_page_cache(void)
{
    char drive[160];
    if (!slow_disk_start(&disk))
        skip();
    snprintf(drive, sizeof(drive),
             "file=%s,if=ide,format=raw,cache=none,aio=threads,file.locking=off", disk.path);
    pair_start(&(struct vm_options){.machine = "pc",
                                    .append = "mib=4 beat=64 disk=1 idle=2000000",
                                    .extra = {"-drive", drive}});
    vm_await_words(&vms[0], "disk 00000009"); /* every buffer, and one of them again */
    slow_disk_delay(400);
    vm_await_words(&vms[0], "disk 0000000c");
    pair_receive(NULL);
    pair_send((const char *[]){WARM, NULL});
    pair_done();
    if (mover_printed(&sender, "it is no longer known which pages"))
        return false;
    check_warm();
    slow_disk_delay(0);
    vm_wait_beats(&vms[1], pair_beats + 16); /* it looks at one buffer after each */
    assert_false(vm_printed(&vms[0], "wrong"));
    assert_false(vm_printed(&vms[1], "wrong"));
    pair_moved("mib=4 beat=64");
    return true;
}

static void test_right_past_the_page_cache(void)
{
    for (unsigned tries = 1; !right_past_the_page_cache(); tries++) {
        assert_true(tries < 5);
        end_all(NULL);
    }
}

/* Whether this page of a file is there. */
static bool has_page(const char *path, off_t at)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const off_t data = lseek(fd, at, SEEK_DATA);
    close(fd);
    return data == at;
}

/* The guest gives memory back that the destination already has: nobody has written it, and it is
 * zero now. */
static void test_balloon(void)
{
    pair_start(
        &(struct vm_options){.append = "balloon=2048 mib=4 idle=2000000", .extra = {VM_BALLOON}});
    mover_stop_next("source:dropping");
    pair_receive(NULL);
    pair_send((const char *[]){WARM, NULL});
    mover_await_stop(&sender);
    vm_balloon(&vms[0], 56 << 20);
    mover_kill(&sender, SIGCONT);
    mover_await_words(&sender, "its balloon has another size");
    pair_done();
    assert_int_equal(mover_figure(&receiver, "warm_pages"), 0);
    vm_do(&vms[1], "balloon", json_pack("{s:i}", "value", 64 << 20));
    vm_await_words(&vms[1], "balloon 00000000");
    assert_false(vm_printed(&vms[1], "wrong"));
    pair_moved("mib=4");
}

/* Registered memory keeps pages that the guest has given back: READs would always bring these. */
static void test_balloon_of_registered_memory(void)
{
    mover_needs_ofi();
    pair_start(
        &(struct vm_options){.append = "balloon=2048 mib=4 idle=2000000", .extra = {VM_BALLOON}});
    mover_stop_next("source:warming");
    mover_receive(&receiver, &vms[1], OFI, NULL);
    mover_send(&sender, &vms[0], receiver.uri, (const char *[]){WARM, "--set", PATIENT, NULL});
    mover_await_stop(&sender);
    vm_balloon(&vms[0], 56 << 20);
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "has changed its size since its memory was registered");
    mover_ends(&receiver, 1);
    pair_stays();
}

/* With free-page-reporting the guest does so without notice: the migration does not begin, with or
 * without --warm. */
static void test_reporting_of_registered_memory(void)
{
    mover_needs_ofi();
    pair_start(&(struct vm_options){
        .machine = "pc",
        .append = "",
        .extra = {"-device", "virtio-balloon-pci,id=balloon0,free-page-reporting=on"}});
    mover_receive(&receiver, &vms[1], OFI, NULL);
    mover_send(&sender, &vms[0], receiver.uri, (const char *[]){"--set", PATIENT, NULL});
    mover_ends(&sender, 1);
    mover_must_print(&sender, "balloon0 (free-page-reporting), and ofi registers its memory");
    mover_ends(&receiver, 1);
    pair_stays();
}

/* Like a balloon that has not reported its size yet. */
static void test_memory_that_is_given_back(void)
{
    static const char bytes[64 << 10] = {1, 2, 3};
    const off_t at = 60 << 20; /* the guest does not use it */
    pair_start(&(struct vm_options){.append = "mib=4 idle=2000000"});
    int fd = open(vms[0].ram, O_RDWR | O_CLOEXEC);
    assert_int_equal(pwrite(fd, bytes, sizeof(bytes), at), sizeof(bytes));
    close(fd);
    mover_stop_next("source:dropping");
    pair_receive(NULL);
    pair_send((const char *[]){WARM, NULL});
    mover_await_stop(&sender);
    assert_true(has_page(vms[1].ram, at));
    fd = open(vms[0].ram, O_RDWR | O_CLOEXEC);
    assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, sizeof(bytes)),
                     0);
    close(fd);
    mover_kill(&sender, SIGCONT);
    pair_done();
    check_warm();
    assert_false(has_page(vms[1].ram, at));
    pair_moved("mib=4");
}

/* Pages begin to come, and would for minutes. */
static void warms_slowly(void)
{
    pair_receive((const char *[]){"--max-bandwidth", "64K", NULL});
    pair_send((const char *[]){WARM, NULL});
    mover_await(&receiver, "warming", 0);
    mover_await_figure(&receiver, "wire_bytes", 1);
}

/* Until its main thread waits for a page that has not come. */
static void await_waiting(const struct vm *vm)
{
    const uint64_t until = vm_soon();
    while (!strstr(vm_where(vm), "userfault")) {
        if (ibx_now_ns() >= until)
            fail_msg("QEMU's main thread waits in %s", vm_where(vm));
        poll(NULL, 0, 5);
    }
}

/* Somebody reads a page through the destination's QEMU while parts come that do not have it: the
 * reader waits. A zero page for the reader would stay there in place of what is written at the
 * source. */
static void test_looked_at_there(void)
{
    static const char bytes[4096] = {1, 2, 3};
    char there[4096];
    const off_t at = 58 << 20; /* the guest does not use it */
    pair_start(&(struct vm_options){.append = "mib=4 idle=2000000"});
    warms_slowly();
    vm_hmp_blocks(&vms[1], "xp /1xw 0x3a00000");
    await_waiting(&vms[1]);
    int fd = open(vms[0].ram, O_RDWR | O_CLOEXEC);
    assert_int_equal(pwrite(fd, bytes, sizeof(bytes), at), sizeof(bytes));
    close(fd);
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    pair_done();
    fd = open(vms[1].ram, O_RDONLY | O_CLOEXEC);
    assert_int_equal(pread(fd, there, sizeof(there), at), sizeof(there));
    close(fd);
    assert_memory_equal(there, bytes, sizeof(bytes));
    check_warm();
    pair_moved("mib=4");
}

/* Where a mapping of this file begins in QEMU. */
static uint64_t mapped_at(const struct vm *vm)
{
    char path[64], line[512];
    uint64_t start = 0;
    snprintf(path, sizeof(path), "/proc/%d/maps", (int)vm->pid);
    FILE *maps = fopen(path, "re");
    assert_non_null(maps);
    while (!start && fgets(line, sizeof(line), maps))
        if (strstr(line, vm->ram))
            start = strtoull(line, NULL, 16);
    fclose(maps);
    assert_true(start > 0);
    return start;
}

/* By the destination's QEMU, of a page that has come: it would stay zero. */
static void test_given_back_there(void)
{
    int64_t result = -1;
    pair_start(&(struct vm_options){.append = "mib=32"});
    pair_receive((const char *[]){"--max-bandwidth", "512K", NULL});
    pair_send((const char *[]){WARM, NULL});
    mover_await(&receiver, "warming", 2);
    const uint64_t arguments[6] = {mapped_at(&vms[1]), 1 << 20, MADV_DONTNEED};
    vm_ok(ibx_inject_syscall(vms[1].pid, SYS_madvise, arguments, &result, vm_soon(), &vm_error));
    assert_int_equal(result, 0);
    struct mover faster; /* if the receiver has not ended by that already */
    mover_start(&faster,
                (const char *[]){"set", "--max-bandwidth", "0", "--qmp", vms[1].tool, NULL});
    mover_wait(&faster);
    mover_ends(&receiver, 1);
    mover_must_print(&receiver, "has given back guest RAM here");
    mover_ends(&sender, 1);
    pair_stays();
}

/* ---------------------------------------------------------------- ends before the stop */

static unsigned userfaultfds(const struct vm *vm)
{
    char command[160], text[32] = "";
    snprintf(command, sizeof(command), "ls -l /proc/%d/fd | grep -c userfaultfd", (int)vm->pid);
    FILE *out = popen(command, "re");
    assert_non_null(out);
    assert_non_null(fgets(text, sizeof(text), out));
    pclose(out);
    return (unsigned)atoi(text);
}

static void warming(void)
{
    vm_start(&vms[1], &(struct vm_options){.append = "", .incoming = true});
    warms_slowly();
    mover_await(&sender, "warming", 0);
}

/* The VM runs on, nothing is left in its QEMU, and it can be migrated. */
static void ended(struct mover *other, int status)
{
    mover_ends(other, status);
    pair_stays();
    vm_end(&vms[1]);
    assert_int_equal(userfaultfds(&vms[0]), 0);
}

static void test_whoever_ends_while_it_runs_here(void)
{
    pair_start_source();
    warming();
    mover_kill(&sender, SIGKILL);
    ended(&receiver, 1);
    warming();
    mover_kill(&receiver, SIGKILL);
    ended(&sender, 1);
    warming();
    MOVER_RUN(0, "cancel", "--qmp", vms[0].tool);
    mover_ends(&receiver, 1);
    ended(&sender, 1);
    warming();
    vm_kill(&vms[1]);
    mover_ends(&receiver, 1);
    mover_ends(&sender, 1);
    vm_wait_beats(&vms[0], vm_beats(&vms[0]) + pair_beats);
    vm_end(&vms[1]);
    warming();
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    pair_done();
    check_warm();
    pair_moved("");
}

/* Only the holes of the file show which pages came before the stop. */
static void recovered(const char *state)
{
    struct mover *killed = strncmp(state, "source", 6) ? &receiver : &sender;
    pair_start(&(struct vm_options){.append = "mib=16"});
    mover_stop_next(state);
    pair_receive(NULL);
    pair_send((const char *[]){WARM, NULL});
    mover_await_stop(killed);
    mover_kill(killed, SIGKILL);
    pair_recover(killed);
    pair_done();
    pair_moved("mib=16");
    mover_end_all(NULL);
}

static void test_killed_after_the_stop(void)
{
    recovered("destination:filling");
    recovered("source:serving");
}

/* A limit of time, though there is much left: the VM gets there. */
static void test_seconds(void)
{
    pair_start(&(struct vm_options){.append = "mib=32"});
    pair_receive((const char *[]){"--max-bandwidth", "8M", NULL});
    pair_send((const char *[]){"--warm-seconds", "1", NULL});
    mover_await(&sender, "filling", 0);
    assert_true(mover_figure(&sender, "warm_bytes") < 16 << 20);
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    pair_done();
    pair_moved("mib=32");
}

/* What it writes could never be fetched in time: most of its memory is not even tried. However slow
 * the guest is, it has the time to write to what has come. */
static void test_faster_than_the_link(void)
{
    pair_start(&(struct vm_options){.append = "mib=32"});
    pair_receive((const char *[]){"--max-bandwidth", "4M", NULL});
    pair_send((const char *[]){WARM, NULL});
    mover_await_figure(&sender, "warm_bytes", 12 << 20);
    MOVER_RUN(0, "set", "--max-bandwidth", HARDLY, "--qmp", vms[1].tool);
    vm_wait_beats(&vms[0], vm_beats(&vms[0]) + 40); /* all of its memory, of 1 MiB a beat */
    MOVER_RUN(0, "set", "--max-bandwidth", "4M", "--qmp", vms[1].tool);
    mover_await(&sender, "filling", 0);
    mover_must_print(&sender, "writes to its memory faster than it crosses");
    assert_in_range(mover_figure(&sender, "warm_bytes"), 16 << 20, 26 << 20);
    assert_int_equal(mover_figure(&sender, "warm_rounds"), 1);
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    pair_done();
    pair_moved("mib=32");
}

/* ---------------------------------------------------------------- others meanwhile */

/* Until pages come before the stop, so slowly that the VM never comes to it. */
static void warming_for_ever(void)
{
    pair_start(&(struct vm_options){
        .append = "", .extra = {"-device", "qemu-xhci,addr=5", "-device", "usb-tablet,id=old"}});
    pair_receive((const char *[]){"--max-bandwidth", HARDLY, NULL});
    pair_send((const char *[]){WARM, NULL});
    mover_await(&receiver, "warming", 0);
}

static void refused_while_warming(const char *words)
{
    mover_ends(&sender, 1);
    mover_must_print(&sender, words);
    mover_ends(&receiver, 1);
}

/* Refused when it happens, and not when the pages have come in vain. */
static void test_devices_before_the_stop(void)
{
    warming_for_ever();
    vm_do(&vms[0], "device_add", json_pack("{s:s,s:s}", "driver", "usb-kbd", "id", "new"));
    refused_while_warming("the device new (usb-kbd) has been plugged in since");
    pair_stayed();
    mover_end_all(NULL);
    warming_for_ever();
    vm_do(&vms[0], "device_del", json_pack("{s:s}", "id", "old"));
    refused_while_warming("the device old (usb-tablet) has been plugged out since");
    pair_stayed();
}

/* A backup may end before the stop: the operator is told, and nothing ends. */
static void test_other_images_before_the_stop(void)
{
    char file[96], over[112], drive[160];
    mover_begin();
    mover_make_file(file, sizeof(file), "disk", 1 << 20);
    snprintf(over, sizeof(over), "%s.over", file);
    snprintf(drive, sizeof(drive), "file=%s,format=raw,if=ide,id=d", file);
    pair_start(&(struct vm_options){.append = "", .extra = {"-drive", drive}});
    pair_receive((const char *[]){"--max-bandwidth", HARDLY, NULL});
    pair_send((const char *[]){WARM, NULL});
    mover_await(&receiver, "warming", 0);
    vm_do(&vms[0], "blockdev-snapshot-sync",
          json_pack("{s:s,s:s}", "device", "d", "snapshot-file", over));
    mover_await_words(&sender, "if this is so when the VM is to stop, its migration ends then: the "
                               "image of the disk ");
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    refused_while_warming("another client of QEMU has changed it meanwhile");
    pair_stayed();
}

/* The sentence names what is in the way, and so does one of what comes later. The filter of a
 * backup is a layer of the disk's image, and nothing to give the destination. */
static void test_block_jobs_before_the_stop(void)
{
#define NODE(name) "driver=null-co,size=1048576,node-name=" name
    static const char *const commands[] = {"blockdev-backup", "blockdev-mirror"};
    static const char *const words[] = {"its migration ends then: the block job j0 (backup, ",
                                        "its migration ends then: the block job j1 (mirror, "};
    pair_start(&(struct vm_options){.append = "",
                                    .extra = {"-blockdev", NODE("disk"), "-blockdev", NODE("spare"),
                                              "-device", "virtio-blk-pci,drive=disk,addr=5"}});
    pair_receive((const char *[]){"--max-bandwidth", HARDLY, NULL});
    pair_send((const char *[]){WARM, NULL});
    mover_await(&receiver, "warming", 0);
    for (size_t i = 0; i < 2; i++) {
        const char id[] = {'j', (char)('0' + i), 0};
        vm_do(&vms[0], commands[i],
              json_pack("{s:s,s:s,s:s,s:s}", "job-id", id, "device", "disk", "target", "spare",
                        "sync", "none"));
        mover_await_words(&sender, words[i]);
        vm_do(&vms[0], "block-job-cancel", json_pack("{s:s,s:b}", "device", id, "force", 1));
        json_decref(vm_event(&vms[0], "JOB_STATUS_CHANGE", "null"));
    }
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    pair_done();
    pair_moved("");
}

static void await_status(struct vm *vm, const char *status)
{
    const uint64_t deadline = vm_soon();
    for (bool is = false; !is; poll(NULL, 0, is ? 0 : 20)) {
        assert_true(ibx_now_ns() < deadline);
        json_t *answer = vm_run(vm, "query-status", NULL);
        is = !strcmp(json_string_value(json_object_get(answer, "status")), status);
        json_decref(answer);
    }
}

static void test_another_migration_before_the_stop(void)
{
    warming_for_ever();
    vm_do(&vms[0], "migrate-set-parameters", json_pack("{s:i}", "max-bandwidth", 10000));
    vm_do(&vms[0], "migrate", json_pack("{s:s}", "uri", "exec:cat >/dev/null"));
    refused_while_warming("another client has QEMU migrate this VM since this migration began");
    vm_do(&vms[0], "migrate_cancel", NULL);
    pair_stayed();
    mover_end_all(NULL);
    warming_for_ever();
    mover_kill(&sender, SIGSTOP);
    vm_do(&vms[0], "migrate", json_pack("{s:s}", "uri", "exec:cat >/dev/null"));
    await_status(&vms[0], "postmigrate");
    mover_kill(&sender, SIGCONT);
    refused_while_warming("another client of QEMU has migrated this VM meanwhile");
    assert_false(vm_runs(&vms[0]));
}

/* ---------------------------------------------------------------- where it is not possible */

static void moved_after_the_stop(const char *words)
{
    pair_done();
    mover_must_print(&sender, words);
    mover_must_print(&sender, "all of them are fetched after it");
    assert_int_equal(mover_figure(&receiver, "warm_pages"), 0);
    assert_int_equal(mover_figure(&receiver, "warm_bytes"), 0);
    pair_moved("");
}

/* The writes of such a process would not be seen. */
static void test_another_process_has_the_memory(void)
{
    pair_start(NULL);
    const int fd = open(vms[0].ram, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    pair_receive(NULL);
    pair_send((const char *[]){WARM, NULL});
    moved_after_the_stop("the file of guest RAM mem0");
    close(fd);
}

static void test_minor(void)
{
    pair_start(NULL);
    pair_receive((const char *[]){"--minor", NULL});
    pair_send((const char *[]){WARM, NULL});
    moved_after_the_stop("receives with --minor");
}

static void test_free_page_reporting(void)
{
    pair_start(&(struct vm_options){
        .machine = "pc",
        .append = "",
        .extra = {"-device", "virtio-balloon-pci,id=balloon0,free-page-reporting=on"}});
    pair_receive(NULL);
    pair_send((const char *[]){WARM, NULL});
    moved_after_the_stop("balloon0 has free-page-reporting");
}

/* Nothing of a paused VM is written, and the operator need not say anything. */
static void test_paused(void)
{
    pair_start(NULL);
    vm_do(&vms[0], "stop", NULL);
    pair_receive(NULL);
    pair_send((const char *[]){WARM, NULL});
    pair_done();
    assert_false(mover_printed(&sender, "before the VM stops"));
    vm_do(&vms[1], "cont", NULL);
    pair_moved("");
}

int main(void)
{
    pair_beats = 20;
    static const struct vm_test tests[] = {VM_TEST(test_tcp),
                                           VM_TEST(test_shm),
                                           VM_TEST(test_encrypted),
                                           VM_TEST(test_ofi),
                                           VM_TEST(test_balloon),
                                           VM_TEST(test_balloon_of_registered_memory),
                                           VM_TEST(test_reporting_of_registered_memory),
                                           VM_TEST(test_memory_that_is_given_back),
                                           VM_TEST(test_given_back_there),
                                           VM_TEST(test_looked_at_there),
                                           VM_TEST(test_whoever_ends_while_it_runs_here),
                                           VM_TEST(test_killed_after_the_stop),
                                           VM_TEST(test_seconds),
                                           VM_TEST(test_faster_than_the_link),
                                           VM_TEST(test_right_every_byte),
                                           VM_TEST(test_devices_before_the_stop),
                                           VM_TEST(test_other_images_before_the_stop),
                                           VM_TEST(test_block_jobs_before_the_stop),
                                           VM_TEST(test_another_migration_before_the_stop),
                                           VM_TEST(test_right_past_the_page_cache),
                                           VM_TEST(test_another_process_has_the_memory),
                                           VM_TEST(test_minor),
                                           VM_TEST(test_free_page_reporting),
                                           VM_TEST(test_paused),
                                           {0}};
    return vm_tests(tests, end_all);
}
