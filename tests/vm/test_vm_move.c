/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* ib-migrate moves a running VM between two QEMUs of the test guest, whose pages are READ
 * through the guest's two soft-RoCE devices. Faults are tested too: the wire is cut, tools are
 * killed, a bit of a page that has not arrived is flipped.
 *
 * Runs in the guest only (README.md). It is an emulator in an emulator, so the guest does little
 * work. */
#include "tests/migrations/guest/churn.h"
#include "tests/fixtures/mover.h"
#include "tests/vm/wire.h"

#include "common/clock.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define GUEST "mib=16 beat=64"
#define BEATS 64 /* after this many beats each of the guest's pages was visited */
/* bytes per second of the background, so that the migration is not over too early */
#define SLOW "256K"
/* After this time a host that does not answer counts as dead. */
#define QUICK     "timeout_ms=5000"
#define USUAL     "timeout_ms=10000"
#define LONG      "timeout_ms=30000"
#define CUT_MS    3000 /* how long the wire is cut if nobody must notice */
#define PAGE      4096
#define CHURN_END (CHURN_BASE + (16 << 20)) /* physical address behind the guest's pages */

/* Bytes that may be locked: too few for the RAM and the buffers. */
#define LOCKED        ((rlim_t)VM_RAM_MIB << 20)
#define LOCKED_SOURCE ((rlim_t)16 << 20) /* for the messages of all connections */

#define BIG_M     "256"
#define BIG_MIB   256u
#define BIG_FIRST (64u << 20 >> 12) /* the first page that the guest does not use */
#define BIG_END   (BIG_MIB << 20 >> 12)

static char key[128], big[2][64];

/* ------------------------------------------------------------------ the scene */

static void make_key(void)
{
    snprintf(key, sizeof(key), "%s/key", mover_folder);
    int fd = open(key, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && write(fd, "0123456789abcdef0123456789abcdef", 32) == 32);
    close(fd);
}

static void begin(void)
{
    struct vm_options options = {.machine = "microvm", .append = GUEST " doze=0"};
    mover_begin();
    make_key();
    vm_start(&vms[0], &options);
    options.incoming = true;
    vm_start(&vms[1], &options);
    vm_wait_beats(&vms[0], BEATS);
}

/* `more`: another option of the receiver, and `its` one of the sender, or NULL. */
static void move_with(const char *bandwidth, const char *timeout, const char *more, const char *its)
{
    char uri[96];
    snprintf(uri, sizeof(uri), "verbs://%s:0", getenv("IBX_VM_ADDR_A"));
    mover_receive(&receiver, &vms[1], uri,
                  (const char *[]){"--key-file", key, "--set", timeout, "--max-bandwidth",
                                   bandwidth, more, NULL});
    mover_send(&sender, &vms[0], receiver.uri,
               (const char *[]){"--key-file", key, "--set", timeout, its, NULL});
}

static void move(const char *bandwidth, const char *timeout, const char *more)
{
    move_with(bandwidth, timeout, more, NULL);
}

static void at_full_speed(void)
{
    struct mover set;
    mover_start(&set, (const char *[]){"set", "--max-bandwidth", "0", "--qmp", vms[1].tool, NULL});
    mover_ends(&set, 0);
}

/* Both tools succeed; the VM runs at the destination, and each of its pages is right. */
static void arrived(void)
{
    char said[256];
    mover_ends(&sender, 0);
    mover_ends(&receiver, 0);
    vm_wait_beats(&vms[1], vm_beats(&vms[1]) + BEATS);
    int rc = vm_expect((const struct vm *[]){&vms[0], &vms[1], NULL}, GUEST, said, sizeof(said));
    if (rc)
        fail_msg("expect: %d %s", rc, said);
    json_t *status = vm_run(&vms[0], "query-status", NULL);
    assert_false(json_is_true(json_object_get(status, "running")));
    json_decref(status);
}

/* ------------------------------------------------------------------ a whole move */

static void test_move(void **state)
{
    (void)state;
    begin();
    move("0", USUAL, NULL);
    arrived();
    json_t *summary = mover_summary(&sender);
    assert_non_null(strstr(json_string_value(json_object_get(summary, "path")), "verbs rxe"));
    json_decref(summary);
    /* Memory that the guest never wrote to was neither exposed nor sent. */
    assert_true(mover_figure(&sender, "wire_bytes") < mover_figure(&sender, "ram_bytes") / 2);
    print_message(
        "figures: downtime %.0f ms, all of it %.0f ms; %lld faults, p50 %.0f us, p99 %.0f us\n",
        (double)mover_figure(&sender, "downtime_ns") / 1e6,
        (double)mover_figure(&sender, "total_ns") / 1e6, mover_figure(&sender, "faults"),
        (double)mover_figure(&sender, "fault_p50_ns") / 1e3,
        (double)mover_figure(&sender, "fault_p99_ns") / 1e3);
}

/* Pages are sent before the stop if the kernel reports which are written. Otherwise all pages
 * are sent after it, and a message says so. */
static void test_warm(void **state)
{
    struct utsname kernel;
    int major = 0, minor = 0;
    char uri[96];
    (void)state;
    uname(&kernel);
    sscanf(kernel.release, "%d.%d", &major, &minor);
    const bool tells = major > 6 || (major == 6 && minor >= 7);
    begin();
    snprintf(uri, sizeof(uri), "verbs://%s:0", getenv("IBX_VM_ADDR_A"));
    mover_receive(&receiver, &vms[1], uri,
                  (const char *[]){"--key-file", key, "--set", USUAL, NULL});
    mover_send(&sender, &vms[0], receiver.uri,
               (const char *[]){"--key-file", key, "--set", USUAL, "--warm", NULL});
    arrived();
    if (!tells)
        mover_must_print(&sender, "no page can be fetched before the VM stops (this kernel does "
                                  "not tell which pages are written (userfaultfd's WP_ASYNC and "
                                  "PAGEMAP_SCAN): Linux 6.7 does (6.10 on aarch64))");
    assert_int_equal(mover_figure(&receiver, "warm_pages") > 0, tells);
}

/* READs go to the VM's memory itself. */
static void test_minor(void **state)
{
    (void)state;
    begin();
    move("0", USUAL, "--minor");
    arrived();
}

/* check and send report the same, and the VM continues. */
static void refused_for_locked_memory(void)
{
    static const char words[] = "bytes of memory (RLIMIT_MEMLOCK); raise it: ulimit -l unlimited";
    struct mover check;
    mover_start(&check, (const char *[]){"check", "--qmp", vms[0].tool, receiver.uri, "--key-file",
                                         key, "--set", LONG, NULL});
    mover_ends(&check, 1);
    mover_must_print(&check, words);
    mover_send(&sender, &vms[0], receiver.uri,
               (const char *[]){"--key-file", key, "--set", LONG, NULL});
    mover_ends(&sender, 1);
    mover_must_print(&sender, words);
    assert_false(mover_resumed(&vms[0])); /* it never stopped */
    vm_wait_beats(&vms[0], vm_beats(&vms[0]) + BEATS);
}

/* The receiver must pin all of it, more than it may. This is noticed before the VM stops. */
static void test_minor_and_little_locked_memory(void **state)
{
    (void)state;
    char uri[96];
    const struct rlimit little = {LOCKED, RLIM_INFINITY}, usual = {RLIM_INFINITY, RLIM_INFINITY};
    begin();
    assert_false(mover_resumed(&vms[0])); /* from now on */
    snprintf(uri, sizeof(uri), "verbs://%s:0?" LONG, getenv("IBX_VM_ADDR_A"));
    assert_int_equal(prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK), 0); /* otherwise no limit applies */
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &little), 0);
    mover_receive(&receiver, &vms[1], uri, (const char *[]){"--key-file", key, "--minor", NULL});
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &usual), 0);
    refused_for_locked_memory();
    mover_must_print(&receiver, "RLIMIT_MEMLOCK");
}

/* The same for the source, whose page connections pin memory that holds data. */
static void test_source_and_little_locked_memory(void **state)
{
    (void)state;
    char uri[96];
    struct mover check;
    const struct rlimit little = {LOCKED_SOURCE, RLIM_INFINITY},
                        usual = {RLIM_INFINITY, RLIM_INFINITY};
    begin();
    assert_false(mover_resumed(&vms[0])); /* from now on */
    snprintf(uri, sizeof(uri), "verbs://%s:0?" LONG, getenv("IBX_VM_ADDR_A"));
    assert_int_equal(prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK), 0); /* otherwise no limit applies */
    mover_receive(&receiver, &vms[1], uri, (const char *[]){"--key-file", key, NULL});
    mover_start(&check, (const char *[]){"check", "--qmp", vms[0].tool, receiver.uri, "--key-file",
                                         key, "--set", LONG, NULL});
    mover_ends(&check, 0);
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &little), 0);
    refused_for_locked_memory();
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &usual), 0);
}

/* A VM whose RAM is in a file of the test. `fill`: whether to fill what the guest does not use. */
static uint64_t *big_start(unsigned i, bool fill)
{
    char ram[160];
    snprintf(big[i], sizeof(big[i]), "/dev/shm/ibx-big-%d-%u", (int)getpid(), i);
    snprintf(ram, sizeof(ram), "memory-backend-file,id=mem0,share=on,size=%uM,mem-path=%s", BIG_MIB,
             big[i]);
    int fd = open(big[i], O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && !ftruncate(fd, (off_t)BIG_MIB << 20));
    int access = PROT_READ | (fill ? PROT_WRITE : 0);
    uint64_t *words = mmap(NULL, (size_t)BIG_MIB << 20, access, MAP_SHARED, fd, 0);
    assert_true(words != MAP_FAILED);
    close(fd);
    for (uint64_t page = BIG_FIRST; fill && page < BIG_END; page++)
        words[page * PAGE / 8 + page % 512] = page;
    vm_start(&vms[i], &(struct vm_options){.machine = "microvm",
                                           .append = GUEST " doze=0",
                                           .incoming = !fill,
                                           .ram = ram,
                                           .extra = {"-m", BIG_M}});
    return words;
}

/* The processor time of all threads of a process. */
static uint64_t cpu_ns(pid_t pid)
{
    clockid_t clock;
    struct timespec t;
    assert_int_equal(clock_getcpuclockid(pid, &clock), 0);
    assert_int_equal(clock_gettime(clock, &t), 0);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Pages are transferred without the source's processor, as long as nobody compares them. If the
 * machine has other work, of which an emulator's clock knows nothing, both tools' times grow
 * alike. */
static void test_source_rests(void **state)
{
    (void)state;
    mover_begin();
    make_key();
    uint64_t *from = big_start(0, true), *to = big_start(1, false);
    vm_wait_beats(&vms[0], BEATS);
    move_with("0", USUAL, "--no-verify", "--no-verify");
    mover_await(&receiver, "filling", 0);
    mover_await(&sender, "filling", 0);
    uint64_t began = ibx_now_ns(), cpu = cpu_ns(sender.pid), there = cpu_ns(receiver.pid);
    mover_await(&receiver, "filling", 90);
    cpu = cpu_ns(sender.pid) - cpu;
    there = cpu_ns(receiver.pid) - there;
    uint64_t took = ibx_now_ns() - began;
    arrived();
    size_t first = (size_t)BIG_FIRST * PAGE, end = (size_t)BIG_END * PAGE;
    assert_memory_equal(to + first / 8, from + first / 8, end - first);
    munmap(from, (size_t)BIG_MIB << 20);
    munmap(to, (size_t)BIG_MIB << 20);
    print_message(
        "figures: %.0f MB READ; in %.0f ms of it the source's tool used %.1f ms of CPU time "
        "(%.1f %%), its page threads in all of the move %.1f ms; the destination's used %.1f ms\n",
        (double)mover_figure(&sender, "wire_bytes") / 1e6, (double)took / 1e6, (double)cpu / 1e6,
        100 * (double)cpu / (double)took, (double)mover_figure(&sender, "source_cpu_ns") / 1e6,
        (double)there / 1e6);
    /* The tool's main thread looks about five times a second; pages cost nothing. */
    assert_true((uint64_t)mover_figure(&sender, "source_cpu_ns") * 50 < took);
    assert_true(cpu * 10 < there);
}

/* --------------------------------------------------------------------- the wire */

static int mend_and_end(void **state)
{
    int rc = wire_mend_any() || system("rm -f /dev/shm/ibx-big-*");
    return mover_end_all(state) || rc;
}

/* Bytes of a VM's RAM that have arrived. */
static off_t there(const struct vm *vm)
{
    struct stat is;
    assert_int_equal(stat(vm->ram, &is), 0);
    return is.st_blocks * 512;
}

/* The VM waits, and no tool reports anything. */
static void test_short_cut(void **state)
{
    (void)state;
    begin();
    move(SLOW, LONG, NULL);
    mover_await(&receiver, "filling", 0);
    wire_cut();
    poll(NULL, 0, CUT_MS / 2); /* work in flight has arrived */
    off_t before = there(&vms[1]);
    poll(NULL, 0, CUT_MS / 2);
    assert_int_equal(there(&vms[1]), before);
    assert_true(before < there(&vms[0]));
    wire_mend();
    at_full_speed();
    arrived();
    assert_int_equal(mover_figure(&sender, "reconnects"), 0);
}

/* Both tools notice, and connect again when that is possible. */
static void test_long_cut(void **state)
{
    (void)state;
    begin();
    move(SLOW, QUICK, NULL);
    mover_await(&receiver, "filling", 0);
    wire_cut();
    mover_await(&sender, "reconnecting", 0);
    mover_await(&receiver, "reconnecting", 0);
    wire_mend();
    at_full_speed();
    arrived();
    assert_true(mover_figure(&sender, "reconnects") > 0);
}

/* ------------------------------------------------------------- dead tools, wrong pages */

/* One of the tools is killed. The other one notices and waits for a new one. */
static void test_tool_dies(void **state)
{
    struct mover *dead = *state, *left = dead == &receiver ? &sender : &receiver;
    begin();
    move(SLOW, USUAL, NULL);
    mover_await(&receiver, "filling", 0);
    mover_kill(dead, SIGKILL);
    mover_await(left, "reconnecting", 0);
    mover_start(dead,
                (const char *[]){"recover", "--qmp", vms[dead == &receiver].tool, "--json", NULL});
    if (dead == &sender) /* a new receiver has no limit */
        at_full_speed();
    arrived();
    assert_true(mover_figure(left, "reconnects") > 0);
}

/* Flips a bit of the guest's last page that has not arrived. */
static void flip_a_bit(void)
{
    int from = open(vms[0].ram, O_RDWR | O_CLOEXEC), to = open(vms[1].ram, O_RDONLY | O_CLOEXEC);
    assert_true(from >= 0 && to >= 0);
    off_t at = CHURN_END - PAGE;
    while (at > (off_t)CHURN_BASE && lseek(to, at, SEEK_DATA) == at)
        at -= PAGE;
    assert_true(at > (off_t)CHURN_BASE);
    uint8_t byte;
    assert_int_equal(pread(from, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(from, &byte, 1, at), 1);
    close(from);
    close(to);
}

/* Shows that right heartbeats mean right pages. */
static void test_wrong_bit_is_seen(void **state)
{
    (void)state;
    char said[256];
    begin();
    move(SLOW, LONG, NULL);
    mover_await(&receiver, "filling", 0);
    wire_cut();
    poll(NULL, 0, CUT_MS / 2); /* work in flight has arrived */
    flip_a_bit();
    wire_mend();
    at_full_speed();
    mover_ends(&sender, 0);
    mover_ends(&receiver, 0);
    vm_wait_beats(&vms[1], vm_beats(&vms[1]) + BEATS);
    assert_int_equal(
        vm_expect((const struct vm *[]){&vms[0], &vms[1], NULL}, GUEST, said, sizeof(said)), 1);
    assert_non_null(strstr(said, "memory is wrong"));
}

/* test_vm_move [PATTERN]: the tests of that name, or all. */
int main(int argc, char **argv)
{
    int skipped = vm_available();
    if (skipped)
        return skipped;
    if (!getenv("IBX_VM")) {
        print_error("test_vm_move wants the devices of the guest of tests/vm: run it there\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_move, mend_and_end),
        cmocka_unit_test_teardown(test_warm, mend_and_end),
        cmocka_unit_test_teardown(test_minor, mend_and_end),
        cmocka_unit_test_teardown(test_minor_and_little_locked_memory, mend_and_end),
        cmocka_unit_test_teardown(test_source_and_little_locked_memory, mend_and_end),
        cmocka_unit_test_teardown(test_source_rests, mend_and_end),
        cmocka_unit_test_teardown(test_short_cut, mend_and_end),
        cmocka_unit_test_teardown(test_long_cut, mend_and_end),
        {"test_receiver_dies", test_tool_dies, NULL, mend_and_end, &receiver},
        {"test_sender_dies", test_tool_dies, NULL, mend_and_end, &sender},
        cmocka_unit_test_teardown(test_wrong_bit_is_seen, mend_and_end),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
