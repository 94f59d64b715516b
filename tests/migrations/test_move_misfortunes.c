/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What can happen to a move though no side lies: a full file system, many silent connections, a VM
 * continued or reset by hand, a READ cut off half-way, memory given back. (A lost monitor:
 * test_move_monitor.c.) Afterwards the guest is alive and right on exactly one side.
 */
#include "migrate/qemu/qemu.h"
#include "migrate/common/vm.h"
#include "tests/fixtures/mover.h"
#include "tests/fixtures/ram_file.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define SILENT    40
#define FULL_MIB  (VM_RAM_MIB + 8)
#define PAGE      4096
#define FEW_FILES 2    /* enough for the record, and not for a connection */
#define FEW_BYTES 1000 /* enough for its messages, not for a record */

/* ------------------------------------------------------------ misfortunes */

/* The tool may write only very short files: it says that this is too little, and is not killed for
 * it. */
static void test_a_limit_of_file_sizes(void)
{
    struct rlimit before, small;
    pair_start(NULL);
    pair_receive(NULL);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){.rlim_cur = FEW_BYTES, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    pair_send(NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "cannot be written: File too large");
    mover_kill(&receiver, SIGINT);
    mover_ends(&receiver, 1);
    pair_stays();
}

/* The limit that leaves this process so many descriptors. */
static rlim_t with_free(pid_t pid, unsigned free)
{
    char path[64];
    rlim_t limit = 0;
    for (; free; limit++) {
        struct stat st;
        snprintf(path, sizeof(path), "/proc/%d/fd/%u", (int)pid, (unsigned)limit);
        free -= lstat(path, &st) != 0;
    }
    return limit;
}

/* A source that may not open the files of a connection says why it does not come back, and does
 * once it may. */
static void test_a_limit_of_open_files(void)
{
    struct rlimit before;
    pair_filling(NULL, NULL);
    mover_kill(&receiver, SIGKILL);
    mover_await_words(&sender, "connecting again");
    assert_int_equal(prlimit(sender.pid, RLIMIT_NOFILE, NULL, &before), 0);
    mover_await_asleep(&sender); /* between two tries */
    const struct rlimit few = {.rlim_cur = with_free(sender.pid, FEW_FILES),
                               .rlim_max = before.rlim_max};
    assert_int_equal(prlimit(sender.pid, RLIMIT_NOFILE, &few, NULL), 0);
    pair_recover(&receiver);
    mover_await_words(&sender, "cannot be reached again: ");
    mover_must_print(&sender, "Too many open files");
    assert_int_equal(prlimit(sender.pid, RLIMIT_NOFILE, &before, NULL), 0);
    pair_done();
    pair_moved("");
}

/* ... after the commit: the link stays, and the end waits for room. */
static void test_no_room_for_the_record_of_the_end(void)
{
    struct rlimit before, small;
    pair_filling(NULL, NULL);
    assert_int_equal(prlimit(sender.pid, RLIMIT_FSIZE, NULL, &before), 0);
    small = (struct rlimit){.rlim_cur = FEW_BYTES, .rlim_max = before.rlim_max};
    assert_int_equal(prlimit(sender.pid, RLIMIT_FSIZE, &small, NULL), 0);
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    mover_await_words(&sender, "it is tried again until it can be written");
    mover_must_print(&sender, "cannot be written: File too large");
    mover_await_record("destination", "complete");
    assert_int_equal(prlimit(sender.pid, RLIMIT_FSIZE, &before, NULL), 0);
    pair_done();
    assert_false(mover_printed(&sender, "connecting again"));
    assert_false(mover_printed(&receiver, "is lost"));
    pair_moved("");
}

/* Somebody acts on the VM by its monitor, while a tool that is about to commit is held up: the VM
 * stays, and the destination never runs it. */
static void meddle(const char *state, const char *command, const char *event, const char *sentence)
{
    pair_start(NULL);
    vm_do(&vms[0], "set-action", json_pack("{s:s}", "reboot", "reset")); /* not: end */
    pair_run_to(state, NULL);
    vm_do(&vms[0], command, NULL);
    json_decref(vm_event(&vms[0], event, NULL));
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 1);
    mover_must_print(&sender, sentence);
    mover_ends(&receiver, 1);
    assert_false(mover_resumed(&vms[1]));
}

static void test_continued_by_somebody_else(void)
{
    meddle("source:sending", "migrate_cancel", "RESUME", "has cancelled QEMU's migration");
    pair_runs_at_the_source();
}

/* ... when the tool has taken LOADED, and asks QEMU for the last time: what QEMU reports before its
 * answers came before the commit. */
static void test_continued_at_the_last_moment(void)
{
    meddle("source:committing", "migrate_cancel", "RESUME", "has cancelled QEMU's migration");
    pair_runs_at_the_source();
}

/* The state on its way is from before the reset, and would be loaded with guest RAM from after
 * it. */
static void test_reset_by_somebody_else(void)
{
    meddle("source:sending", "system_reset", "RESET", "the VM has been reset here");
    vm_wait_beats(&vms[0], vm_beats(&vms[0]) + pair_beats);
}

static void test_reset_at_the_last_moment(void)
{
    meddle("source:committing", "system_reset", "RESET", "the VM has been reset here");
    vm_wait_beats(&vms[0], vm_beats(&vms[0]) + pair_beats);
}

static int64_t event_us(const char *name)
{
    json_int_t seconds = 0, micro = 0;
    json_t *event = vm_event(&vms[0], name, NULL);
    json_unpack(event, "{s:{s:I,s:I}}", "timestamp", "seconds", &seconds, "microseconds", &micro);
    json_decref(event);
    return seconds * 1000000 + micro;
}

/* Guest RAM is not final at the STOP: QEMU then waits for its disks, and this disk takes two
 * seconds for a write. */
static void test_disks_are_waited_for(void)
{
    char text[256];
    struct timespec seen;
    struct vm_options slow = {
        .append = "", .extra = {"-drive", "if=none,id=slow,driver=null-aio,latency-ns=2000000000"}};
    pair_start(&slow);
    mover_stop_next("destination:joining");
    pair_receive(NULL);
    mover_stop_next("source:stopped");
    pair_send(NULL);
    mover_await_stop(&receiver);
    vm_hmp(&vms[0], "qemu-io slow \"aio_write 0 512\"", text, sizeof(text));
    mover_kill(&receiver, SIGCONT);
    mover_await_stop(&sender);
    clock_gettime(CLOCK_REALTIME, &seen);
    const int64_t stop = event_us("STOP");
    int64_t pass;
    while ((pass = event_us("MIGRATION_PASS")) < stop)
        ;
    assert_true(pass <= (int64_t)seen.tv_sec * 1000000 + seen.tv_nsec / 1000);
    mover_kill(&sender, SIGCONT);
    pair_done();
    pair_moved("");
}

/* Tool and watchdog killed before the commit, the VM continued by hand: recover leaves it here. */
static void test_recover_of_a_vm_that_runs(void)
{
    struct ibx_vm_undo vm = {.was_running = true, .touched = true};
    pair_start(NULL);
    pair_run_to("source:sending", NULL);
    kill(mover_watchdog(&sender), SIGKILL);
    mover_kill(&sender, SIGKILL);
    vm_ok(ibx_vm_stay(vms[0].qmp, &vm, vm_soon(), &vm_error));
    mover_ends(&receiver, 1);
    mover_must_print(MOVER_RUN(1, "recover", "--qmp", vms[0].tool, TIMED),
                     "the migration never came to its commit");
    mover_await_record("source", "kept");
    pair_stayed();
}

/* Connections that send nothing, more than are handled at a time. */
static void test_many_silent_connections(void)
{
    int silent[SILENT];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char uri[64];
    pair_start(NULL);
    snprintf(uri, sizeof(uri), "tcp://127.0.0.1:0?timeout_ms=%u", patience_ms(1500));
    mover_receive(&receiver, &vms[1], uri, NULL);
    to.sin_port = htons((uint16_t)atoi(strrchr(receiver.uri, ':') + 1));
    for (unsigned i = 0; i < SILENT; i++) {
        silent[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(silent[i], (struct sockaddr *)&to, sizeof(to)), 0);
    }
    pair_send(NULL);
    pair_done();
    for (unsigned i = 0; i < SILENT; i++)
        close(silent[i]);
    pair_moved("");
}

#define MANY_LINKS 20

/* How many sentences to the operator have these words. */
static unsigned count_said(const struct mover *mover, const char *words)
{
    char line[4096];
    unsigned count = 0;
    FILE *file = fopen(mover->out, "re");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file))
        count += strstr(line, "\"say\"") && strstr(line, words);
    fclose(file);
    return count;
}

/* There is room for the RAM when the tool checks, but not later. What is said of that is not
 * repeated for each link that is lost. */
static void full_file_system(const char *mode)
{
    char options[32], ram[256], filler[128];
    pair_start_source();
    snprintf(options, sizeof(options), "size=%uM", FULL_MIB);
    const char *place = mover_mount(options);
    snprintf(filler, sizeof(filler), "%s/filler", place);
    snprintf(ram, sizeof(ram), "memory-backend-file,id=mem0,size=%uM,mem-path=%s/ram,share=on",
             VM_RAM_MIB, place);
    vm_start(&vms[1], &(struct vm_options){.append = "", .incoming = true, .ram = ram});
    pair_run((const char *[]){"--max-bandwidth", HARDLY, mode, NULL});
    mover_await(&receiver, "filling", 0);
    int fd = open(filler, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    for (off_t at = 0; fd >= 0 && !posix_fallocate(fd, at, 4096); at += 4096)
        ;
    close(fd);
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    mover_await_words(&receiver, "make room");
    mover_must_print(&receiver, "the tmpfs (/dev/shm) that it lies in");
    mover_await_words(&receiver, "the VM waits for pages until this host has room for them");
    mover_await_words(&sender, "perhaps because it has no room for pages");
    assert_false(mover_printed(&receiver, "Bad address"));
    mover_await_figure(&sender, "reconnects", MANY_LINKS);
    assert_in_range(count_said(&receiver, "make room"), 1, MANY_LINKS / 4);
    assert_in_range(count_said(&receiver, "is back"), 0, MANY_LINKS / 4);
    assert_in_range(count_said(&sender, "connecting again"), 1, MANY_LINKS / 4);
    assert_in_range(count_said(&sender, "connected again"), 0, MANY_LINKS / 4);
    MOVER_RUN(0, "set", "--max-bandwidth", HARDLY, "--qmp", vms[1].tool);
    unlink(filler);
    mover_await_words(&receiver, "this host has room for pages again, and the source is back");
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    pair_done();
    pair_moved("");
}

static void test_full_file_system(void)
{
    full_file_system(NULL);
}

static void test_full_file_system_in_minor_mode(void)
{
    full_file_system("--minor");
}

/* ------------------------------------------------------------ a balloon */

#define BALLOON_PAGES 2048u

static void ask_balloon(struct vm *vm, unsigned pages)
{
    vm_do(vm, "balloon",
          json_pack("{s:I}", "value", ((json_int_t)VM_RAM_MIB << 20) - (json_int_t)pages * PAGE));
}

/* What the destination has on record of pages that never had to come. */
static json_int_t discarded_pages(void)
{
    char path[PATH_MAX];
    mover_record_path(path);
    json_t *record = json_load_file(path, 0, NULL);
    json_int_t pages =
        json_integer_value(json_object_get(json_object_get(record, "complete"), "discarded"));
    json_decref(record);
    return pages;
}

/* The guest gives memory back while its pages are still at the source: QEMU discards them and the
 * engine is told. None of them comes later over what the guest writes there afterwards. */
static void inflated(const char *minor)
{
    struct vm_options with = {.append = "balloon=2048", .extra = {VM_BALLOON}};
    pair_filling(&with, minor);
    ask_balloon(&vms[1], BALLOON_PAGES);
    vm_await_words(&vms[1], "balloon 00000800");
    ask_balloon(&vms[1], BALLOON_PAGES / 2); /* these it uses again, at once */
    vm_await_words(&vms[1], "balloon 00000400");
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    pair_done();
    assert_in_range(discarded_pages(), BALLOON_PAGES / 2, BALLOON_PAGES);
    ask_balloon(&vms[1], 0);
    vm_await_words(&vms[1], "balloon 00000000");
    vm_wait_beats(&vms[1], vm_beats(&vms[1]) + 3 * pair_beats);
    pair_moved("");
    mover_end_all(NULL);
}

static void test_balloon(void)
{
    inflated(NULL);
    inflated("--minor");
}

/* For the tool that recovers, pages that the guest has given back stay so: the source's bytes do
 * not come back, since a guest that clears pages as it frees them takes such pages for zeros. */
static void given_back_before_a_recovery(const char *minor)
{
    static bool before[RAM_PAGES], after[RAM_PAGES];
    struct vm_options with = {.append = "balloon=2048 mib=4", .extra = {VM_BALLOON}};
    pair_filling(&with, minor);
    vm_balloon(&vms[1], ((json_int_t)VM_RAM_MIB << 20) - BALLOON_PAGES * PAGE);
    mover_kill(&receiver, SIGKILL);
    const unsigned had = ram_pages(vms[0].ram, before);
    MOVER_RUN(0, "recover", "--qmp", vms[1].tool, "--json", TIMED);
    mover_ends(&sender, 0);
    assert_in_range(ram_pages(vms[1].ram, after), 1, had - BALLOON_PAGES * 9 / 10);
    vm_balloon(&vms[1], (json_int_t)VM_RAM_MIB << 20);
    pair_moved("mib=4");
    mover_end_all(NULL);
}

static void test_given_back_before_a_recovery(void)
{
    given_back_before_a_recovery(NULL);
    given_back_before_a_recovery("--minor");
}

/* The guest has given pages back, and the destination's tool is killed, and the list of the pages
 * that have come is lost; or half of it, as from an `older` tool, which did not note their
 * places. */
static void lose_the_list(const char *append, bool older)
{
    char list[PATH_MAX];
    struct stat st;
    struct vm_options with = {
        .append = append,
        .extra = {"-device", "virtio-balloon-pci,id=balloon0,free-page-reporting=on"}};
    pair_filling(&with, NULL);
    vm_balloon(&vms[1], ((json_int_t)VM_RAM_MIB << 20) - BALLOON_PAGES * PAGE);
    mover_kill(&receiver, SIGKILL);
    mover_arrived_path(list);
    assert_int_equal(stat(list, &st), 0);
    assert_int_equal(older ? truncate(list, st.st_size / 2) : unlink(list), 0);
}

/* Pages that the guest has given back come again. The tool says so, and refuses if the guest would
 * take old bytes for zeros. */
static void without_the_list(const char *append, bool refused, bool older)
{
    lose_the_list(append, older);
    struct mover *again =
        MOVER_RUN(refused ? 3 : 0, "recover", "--qmp", vms[1].tool, "--json", TIMED);
    mover_must_print(again,
                     refused ? "which it may take for zeros" : "come again, and take memory");
    mover_must_print(again, "or it is of an earlier release");
    if (!refused)
        mover_ends(&sender, 0);
    mover_end_all(NULL);
}

/* ... also if QEMU does not answer at first, as while its main thread waits for a page: here QEMU
 * stands still until the tool goes on without an answer. */
static void test_recover_without_the_list_or_an_answer(void)
{
    lose_the_list("balloon=2048 mib=4 poison=1", false);
    assert_int_equal(kill(vms[1].pid, SIGSTOP), 0);
    pair_recover(&receiver);
    mover_await_words(&receiver, "QEMU does not tell now");
    mover_await_words(&receiver, "all pages are here, but QEMU does not tell whether");
    assert_int_equal(kill(vms[1].pid, SIGCONT), 0);
    mover_ends(&receiver, 1);
    mover_must_print(&receiver, "which it may take for zeros");
    mover_ends(&sender, 1);
    assert_false(vm_runs(&vms[1]));
}

static void test_recover_without_the_list(void)
{
    without_the_list("balloon=2048 mib=4", false, false);
    without_the_list("balloon=2048 mib=4", false, true);
    without_the_list("balloon=2048 mib=4 poison=1", true, false);
}

/* READs of minor mode go into the page cache: some were cut off with their tool. */
static void test_recover_in_minor_mode(void)
{
    static uint8_t garbage[PAGE];
    pair_start(NULL);
    pair_run_to("destination:filling",
                (const char *[]){"--minor", "--max-bandwidth", HARDLY, NULL});
    mover_kill(&receiver, SIGKILL);
    int from = open(vms[0].ram, O_RDONLY | O_CLOEXEC), to = open(vms[1].ram, O_RDWR | O_CLOEXEC);
    unsigned cut_off = 0;
    memset(garbage, 0x5a, sizeof(garbage));
    for (off_t at = 0; at < (off_t)VM_RAM_MIB << 20; at += PAGE) {
        if (lseek(from, at, SEEK_DATA) != at || lseek(to, at, SEEK_HOLE) != at)
            continue;
        assert_int_equal(pwrite(to, garbage, PAGE, at), PAGE);
        cut_off++;
    }
    assert_true(cut_off > 0);
    close(from);
    close(to);
    MOVER_RUN(0, "recover", "--qmp", vms[1].tool, "--json", TIMED);
    mover_ends(&sender, 0);
    pair_moved("");
}

/* The kernel takes pages out of QEMU's page tables, as for swapping: only the page cache has what
 * the guest has changed in them. Returns how many pages stayed mapped. */
static uint64_t unmap_all(const struct ibx_guest_ram *ram)
{
    const struct ibx_guest_block *block = &ram->blocks[0];
    uint64_t *bits = calloc(block->size / block->page_size / 64 + 1, 8), mapped;
    const uint64_t arguments[6] = {block->address, block->size, MADV_PAGEOUT};
    int64_t result;
    vm_ok(ibx_inject_syscall(ram->pid, SYS_madvise, arguments, &result, vm_soon(), &vm_error));
    assert_int_equal(result, 0);
    vm_ok(ibx_guest_block_mapped(ram, block, bits, &mapped, &vm_error));
    free(bits);
    return mapped;
}

static void test_recover_in_minor_mode_of_unmapped_pages(void)
{
    struct ibx_guest_ram ram;
    pair_start(NULL);
    vm_ok(ibx_guest_ram_find(vms[1].qmp, false, &ram, vm_soon(), &vm_error));
    pair_run((const char *[]){"--minor", "--max-bandwidth", HARDLY, NULL});
    mover_await(&receiver, "filling", 0);
    vm_wait_beats(&vms[1], pair_beats); /* it changes its memory */
    mover_kill(&receiver, SIGKILL);
    char list[PATH_MAX];
    mover_arrived_path(list);
    assert_int_equal(access(list, F_OK), 0);
    const uint64_t mapped = unmap_all(&ram);
    print_message("%llu pages stayed mapped\n", (unsigned long long)mapped);
    assert_in_range(mapped, 0, 1000);
    ibx_guest_ram_fini(&ram);
    MOVER_RUN(0, "recover", "--qmp", vms[1].tool, "--json", TIMED);
    mover_ends(&sender, 0);
    pair_moved("");
    assert_int_equal(access(list, F_OK), -1);
}

/* Without the list nobody can tell such pages apart. */
static void test_recover_in_minor_mode_without_the_list(void)
{
    char list[PATH_MAX];
    pair_start(NULL);
    pair_run_to("destination:filling", (const char *[]){"--minor", NULL});
    mover_kill(&receiver, SIGKILL);
    mover_arrived_path(list);
    assert_int_equal(unlink(list), 0);
    struct mover *again = MOVER_RUN(3, "recover", "--qmp", vms[1].tool, TIMED);
    mover_must_print(again, "nobody can tell which pages");
    vm_end(&vms[1]);
    mover_kill(&sender, SIGKILL);
    MOVER_RUN(0, "rollback", "--qmp", vms[0].tool, "--yes", TIMED);
    pair_runs_at_the_source();
}

int main(void)
{
    pair_timeout = "timeout_ms=10000";
    static const struct vm_test tests[] = {VM_TEST(test_a_limit_of_file_sizes),
                                           VM_TEST(test_a_limit_of_open_files),
                                           VM_TEST(test_no_room_for_the_record_of_the_end),
                                           VM_TEST(test_continued_by_somebody_else),
                                           VM_TEST(test_continued_at_the_last_moment),
                                           VM_TEST(test_reset_by_somebody_else),
                                           VM_TEST(test_reset_at_the_last_moment),
                                           VM_TEST(test_disks_are_waited_for),
                                           VM_TEST(test_recover_of_a_vm_that_runs),
                                           VM_TEST(test_many_silent_connections),
                                           VM_TEST(test_full_file_system),
                                           VM_TEST(test_full_file_system_in_minor_mode),
                                           VM_TEST(test_balloon),
                                           VM_TEST(test_recover_without_the_list),
                                           VM_TEST(test_recover_without_the_list_or_an_answer),
                                           VM_TEST(test_given_back_before_a_recovery),
                                           VM_TEST(test_recover_in_minor_mode),
                                           VM_TEST(test_recover_in_minor_mode_of_unmapped_pages),
                                           VM_TEST(test_recover_in_minor_mode_without_the_list),
                                           {0}};
    return vm_tests(tests, mover_end_all);
}
