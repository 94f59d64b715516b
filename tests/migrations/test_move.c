/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A running VM moved by ib-migrate, two commands, between QEMUs of this host. */
#include "tests/migrations/guest/churn.h"
#include "tests/fixtures/mover.h"

#include "common/clock.h"

#include <fcntl.h>
#include <linux/mman.h>
#include <sys/mman.h>

#define HUGE_RAM "memory-backend-file,id=mem0,size=64M,share=on,mem-path="

static void check_summary(void)
{
    json_t *summary = mover_summary(&sender);
    assert_non_null(summary);
    json_int_t pages = json_integer_value(json_object_get(summary, "pages"));
    assert_int_equal(pages, VM_RAM_MIB << 20 >> 12);
    assert_int_equal(json_integer_value(json_object_get(summary, "present_pages")), pages);
    assert_true(json_integer_value(json_object_get(summary, "downtime_ns")) > 0);
    print_message("downtime %.1f ms, %" JSON_INTEGER_FORMAT " faults, p50 %.0f us, p99 %.0f us\n",
                  (double)json_integer_value(json_object_get(summary, "downtime_ns")) / 1e6,
                  json_integer_value(json_object_get(summary, "faults")),
                  (double)json_integer_value(json_object_get(summary, "fault_p50_ns")) / 1e3,
                  (double)json_integer_value(json_object_get(summary, "fault_p99_ns")) / 1e3);
    json_decref(summary);
}

/* These options, and one with which a busy host does not end the setup of a connection. */
static const char *const *patiently(const char *options[8], const char *const *more)
{
    unsigned n = 0;
    options[n++] = "--set";
    options[n++] = PATIENT;
    while (more && *more)
        options[n++] = *more++;
    options[n] = NULL;
    return options;
}

static void moved(const struct vm_options *like, const char *uri, const char *const *receive_more,
                  const char *const *send_more)
{
    const char *options[8];
    pair_start(like);
    mover_receive(&receiver, &vms[1], uri, patiently(options, receive_more));
    mover_send(&sender, &vms[0], receiver.uri, patiently(options, send_more));
    pair_done();
    check_summary();
    pair_moved(like->append);
}

static void test_tcp(void)
{
    moved(&(struct vm_options){.append = "mib=32"}, "tcp://127.0.0.1:0", NULL, NULL);
}

/* --remove removes only the source's file, and only by its own name. */
static void test_removes_the_file(void)
{
    char other[128];
    moved(&(struct vm_options){.append = ""}, "tcp://127.0.0.1:0", NULL,
          (const char *[]){"--remove", NULL});
    assert_int_equal(access(vms[0].ram, F_OK), -1);
    assert_int_equal(access(vms[1].ram, F_OK), 0);
    mover_end_all(NULL);
    pair_start(NULL);
    snprintf(other, sizeof(other), "%s.other", vms[0].ram);
    assert_int_equal(link(vms[0].ram, other), 0);
    pair_receive(NULL);
    pair_send((const char *[]){"--remove", NULL});
    pair_done();
    mover_must_print(&sender, "has other names");
    assert_int_equal(access(vms[0].ram, F_OK), 0);
    mover_end_all(NULL);
    unlink(other);
    pair_start(NULL);
    pair_receive(NULL);
    mover_stop_next("source:serving");
    pair_send((const char *[]){"--remove", NULL});
    mover_await_stop(&sender);
    snprintf(other, sizeof(other), "%s.other", vms[0].ram);
    assert_int_equal(rename(vms[0].ram, other), 0);
    assert_int_equal(symlink(other, vms[0].ram), 0);
    mover_kill(&sender, SIGCONT);
    pair_done();
    mover_must_print(&sender, "is a link");
    assert_int_equal(access(other, F_OK), 0);
    unlink(other);
}

static void test_shm(void)
{
    moved(&(struct vm_options){.append = "cpus=2", .two = true}, "shm://127.0.0.1:0", NULL, NULL);
}

static void test_ofi(void)
{
    mover_needs_ofi();
    moved(&(struct vm_options){.append = "beat=64"}, OFI, NULL, NULL);
}

/* rdma:// chooses by itself, and several links serve at once. */
static void test_auto_with_links(void)
{
    moved(&(struct vm_options){.machine = "pc", .append = "cpus=2", .two = true},
          "rdma://127.0.0.1:0", NULL, (const char *[]){"--links", "4", NULL});
}

static void test_microvm(void)
{
    moved(&(struct vm_options){.machine = "microvm", .append = "mib=16"}, "tcp://127.0.0.1:0", NULL,
          (const char *[]){"--links", "1", NULL});
}

static void test_minor(void)
{
    moved(&(struct vm_options){.append = "cpus=2", .two = true}, "tcp://127.0.0.1:0",
          (const char *[]){"--minor", NULL}, NULL);
}

static void test_minor_shm(void)
{
    moved(&(struct vm_options){.append = ""}, "shm://127.0.0.1:0",
          (const char *[]){"--minor", NULL}, NULL);
}

/* From 8.1 on QEMU would send a memfd itself, and it is refused. */
static void test_memfd(void)
{
    const struct vm_options options = {.ram = "memory-backend-memfd,id=mem0,size=64M,share=on",
                                       .append = "beat=64"};
    vm_start(&vms[0], &options);
    bool refused = ibx_qmp_at_least(ibx_qmp_version(vms[0].qmp), 8, 1);
    vm_end(&vms[0]);
    if (refused)
        skip();
    moved(&options, "tcp://127.0.0.1:0", NULL, NULL);
}

/* The heartbeats detect one wrong bit of one page. */
static void test_one_wrong_bit_shows(void)
{
    const off_t at = CHURN_BASE + (1234 << 12) + 17;
    char said[256], byte;
    vm_start(&vms[0], &(struct vm_options){.append = "mib=16"});
    vm_wait_beats(&vms[0], pair_beats);
    vm_do(&vms[0], "stop", NULL);
    int fd = open(vms[0].ram, O_RDWR | O_CLOEXEC);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte = (char)(byte ^ 4);
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
    vm_do(&vms[0], "cont", NULL);
    vm_wait_beats(&vms[0], vm_beats(&vms[0]) + pair_beats);
    assert_int_equal(vm_expect((const struct vm *[]){&vms[0], NULL}, "mib=16", said, sizeof(said)),
                     1);
}

/* Between beats the guest does nothing: most pages come in the background. */
static void test_idle(void)
{
    pair_start(&(struct vm_options){.append = "idle=20000000 beat=64"});
    mover_receive(&receiver, &vms[1], "tcp://127.0.0.1:0", NULL);
    mover_send(&sender, &vms[0], receiver.uri, NULL);
    pair_done();
    pair_moved("beat=64");
}

static void test_bandwidth(void)
{
    pair_start(NULL);
    mover_receive(&receiver, &vms[1], "tcp://127.0.0.1:0",
                  (const char *[]){"--max-bandwidth", HARDLY, NULL});
    mover_send(&sender, &vms[0], receiver.uri, NULL);
    mover_await(&receiver, "filling", 0);
    vm_wait_beats(&vms[1], 10);
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    pair_done();
    pair_moved("");
}

/* The kernel would put a huge page in the place of missing pages. */
static void test_no_huge_pages_meanwhile(void)
{
    if (access("/sys/kernel/mm/transparent_hugepage", F_OK))
        skip();
    pair_start(NULL);
    assert_true(vm_memory_has(&vms[1], vms[1].ram, " hg"));
    mover_receive(&receiver, &vms[1], "tcp://127.0.0.1:0",
                  (const char *[]){"--max-bandwidth", HARDLY, NULL});
    mover_send(&sender, &vms[0], receiver.uri, NULL);
    mover_await(&receiver, "filling", 0);
    assert_true(vm_memory_has(&vms[1], vms[1].ram, " nh"));
    mover_kill(&receiver, SIGKILL);
    mover_await(&sender, "reconnecting", 0);
    assert_true(vm_memory_has(&vms[1], vms[1].ram, " nh"));
    pair_recover(&receiver);
    pair_done();
    pair_moved("");
    assert_true(vm_memory_has(&vms[1], vms[1].ram, " hg"));
}

/* The tool that kept huge pages away was killed when all pages were there. */
static void test_no_huge_pages_until_a_recovery(void)
{
    if (access("/sys/kernel/mm/transparent_hugepage", F_OK))
        skip();
    pair_start(NULL);
    pair_run_to("destination:complete", NULL);
    mover_kill(&receiver, SIGKILL);
    assert_true(vm_memory_has(&vms[1], vms[1].ram, " nh"));
    pair_recover(&receiver);
    pair_done();
    pair_moved("");
    assert_true(vm_memory_has(&vms[1], vms[1].ram, " hg"));
}

static void test_sandboxed(void)
{
    if (access("/dev/userfaultfd", R_OK | W_OK))
        skip();
    moved(&(struct vm_options){.nobody = true, .append = "mib=16", .extra = {"-sandbox", "on"}},
          "tcp://127.0.0.1:0", NULL, NULL);
}

/* As many huge pages as two VMs need, if this kernel has them; returns how many there were. */
static long huge_pages_reserve(long wanted)
{
    static const char path[] = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    long before = -1, now = -1;
    FILE *file = fopen(path, "r+e");
    if (!file)
        return -1;
    if (fscanf(file, "%ld", &before) == 1 && !fseek(file, 0, SEEK_SET) &&
        fprintf(file, "%ld\n", wanted) > 0 && !fflush(file) && !fseek(file, 0, SEEK_SET) &&
        fscanf(file, "%ld", &now) == 1 && now < wanted && !fseek(file, 0, SEEK_SET))
        fprintf(file, "%ld\n", before);
    fclose(file);
    return now < wanted ? -1 : before;
}

static char huge_folder[32];
static long huge_pages_before = -1;

/* Room for two VMs and four more, in huge_folder. False: this kernel has no such pages to spare. */
static bool borrow_huge_pages(void)
{
    char command[128];
    snprintf(huge_folder, sizeof(huge_folder), "/tmp/ibx-huge-%d", (int)getpid());
    snprintf(command, sizeof(command), "mkdir %s && mount -t hugetlbfs none %s", huge_folder,
             huge_folder);
    huge_pages_before = huge_pages_reserve(VM_RAM_MIB + 4);
    return huge_pages_before >= 0 && !system(command);
}

/* After each case: one that fails gives the huge pages back, too. */
static int end_all(void **state)
{
    char command[160];
    int rc = mover_end_all(state);
    if (huge_pages_before < 0)
        return rc;
    /* A libvirtd of this host makes a folder of its own where huge pages are. */
    snprintf(command, sizeof(command), "{ ! mountpoint -q %s || umount %s; } && rm -rf %s",
             huge_folder, huge_folder, huge_folder);
    if (system(command))
        rc = -1;
    huge_pages_reserve(huge_pages_before);
    huge_pages_before = -1;
    return rc;
}

/* A hugetlbfs file has no holes by which to tell its pages, and no process has it mapped. */
static void kill_source_in_huge_pages(void)
{
    mover_await(&receiver, "filling", 0);
    mover_await(&sender, "filling", 0);
    mover_kill(&sender, SIGKILL);
    mover_await(&receiver, "reconnecting", 0);
    pair_recover(&sender); /* while QEMU's page tables still know which pages were written */
    mover_await_words(&sender, "connected again");
    mover_kill(&sender, SIGKILL);
    vm_kill(&vms[0]);
    mover_await(&receiver, "reconnecting", 0);
    pair_recover(&sender);
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
}

/* QEMU tells nobody when it gives back such a page, which may be on its way. */
static void refused_in_minor_mode(void)
{
    mover_receive(&receiver, &vms[1], "tcp://127.0.0.1:0", (const char *[]){"--minor", NULL});
    mover_must_print(MOVER_RUN(1, "check", "--qmp", vms[0].tool, receiver.uri, TIMED),
                     "(virtio-balloon-pci) may give one back while it comes");
    mover_kill(&receiver, SIGINT);
    mover_ends(&receiver, 1);
}

/* The destination has all pages, and nobody here knows it, nor which pages were written. */
static void lose_source_in_huge_pages(void)
{
    mover_await_stop(&receiver);
    mover_kill(&sender, SIGKILL);
    vm_kill(&vms[0]);
    mover_kill(&receiver, SIGCONT);
    pair_recover(&sender);
}

static void moved_in_huge_pages(const char *const *more, const char *send, void (*then)(void))
{
    char from[128], to[128];
    if (!borrow_huge_pages())
        skip();
    snprintf(from, sizeof(from), HUGE_RAM "%s/from", huge_folder);
    snprintf(to, sizeof(to), HUGE_RAM "%s/to", huge_folder);
    struct vm_options options = {.append = "cpus=2", .two = true, .ram = from};
    if (!more && !send)
        options = (struct vm_options){
            .append = "cpus=2", .two = true, .ram = from, .extra = {VM_BALLOON}};
    mover_begin();
    vm_start(&vms[0], &options);
    options.ram = to;
    options.incoming = true;
    vm_start(&vms[1], &options);
    vm_wait_beats(&vms[0], pair_beats);
    if (!more && !send)
        refused_in_minor_mode();
    mover_receive(&receiver, &vms[1], "tcp://127.0.0.1:0", more);
    mover_send(&sender, &vms[0], receiver.uri, (const char *[]){send, NULL});
    if (then)
        then();
    pair_done();
    pair_moved("cpus=2");
}

static void test_huge_pages(void)
{
    moved_in_huge_pages(NULL, NULL, NULL);
}

static void test_huge_pages_warm(void)
{
    moved_in_huge_pages(NULL, "--warm", NULL);
}

static void test_huge_pages_minor(void)
{
    moved_in_huge_pages((const char *[]){"--minor", NULL}, NULL, NULL);
}

static void test_huge_pages_of_a_dead_source(void)
{
    moved_in_huge_pages((const char *[]){"--max-bandwidth", HARDLY, NULL}, NULL,
                        kill_source_in_huge_pages);
}

static void test_huge_pages_of_a_source_that_dies_unaware(void)
{
    mover_stop_next("destination:complete");
    moved_in_huge_pages((const char *[]){NULL}, NULL, lose_source_in_huge_pages);
}

/* Data that the guest never touches: it is at 16 to 24 MiB, and below 2. */
#define APART_AT    ((size_t)32 << 20)
#define APART_BYTES ((size_t)24 << 20)

static uint8_t *apart_map(const char *ram)
{
    const int fd = open(ram, O_RDWR | O_CLOEXEC);
    uint8_t *bytes =
        mmap(NULL, APART_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)APART_AT);
    assert_true(fd >= 0 && bytes != MAP_FAILED);
    close(fd);
    return bytes;
}

static void apart_write(const char *ram)
{
    uint8_t *bytes = apart_map(ram);
    for (size_t i = 0; i < APART_BYTES; i += sizeof(uint64_t))
        memcpy(bytes + i, &(uint64_t){i * 0x9e3779b97f4a7c15u + 1}, sizeof(uint64_t));
    munmap(bytes, APART_BYTES);
}

static void apart_came(const char *from, const char *to)
{
    uint8_t *written = apart_map(from), *come = apart_map(to);
    assert_memory_equal(come, written, APART_BYTES);
    munmap(written, APART_BYTES);
    munmap(come, APART_BYTES);
}

/* Both tools are killed when pages have come over their transport, and others go on over another
 * one. */
static void go_on_over(const char *uri, const char *bandwidth)
{
    mover_await(&receiver, "filling", 0);
    mover_await_figure(&receiver, "wire_bytes", 1);
    assert_true(mover_figure(&receiver, "present_pages") < mover_figure(&receiver, "pages"));
    mover_kill(&receiver, SIGKILL);
    mover_kill(&sender, SIGKILL);
    mover_start(&receiver, (const char *[]){"recover", "--qmp", vms[1].tool, "--listen", uri,
                                            "--json", "--max-bandwidth", bandwidth, TIMED, NULL});
    mover_await_words(&receiver, "waiting at ");
    mover_start(&sender,
                (const char *[]){"recover", "--qmp", vms[0].tool, uri, "--json", TIMED, NULL});
}

static void transports_change(const char *minor)
{
    char from[128], to[128], shm[160], tcp[160];
    if (!borrow_huge_pages())
        skip();
    snprintf(from, sizeof(from), HUGE_RAM "%s/from", huge_folder);
    snprintf(to, sizeof(to), HUGE_RAM "%s/to", huge_folder);
    mover_begin();
    vm_start(&vms[0], &(struct vm_options){.append = "mib=8", .ram = from});
    vm_start(&vms[1], &(struct vm_options){.append = "mib=8", .ram = to, .incoming = true});
    vm_wait_beats(&vms[0], pair_beats);
    apart_write(from + strlen(HUGE_RAM));
    mover_receive(&receiver, &vms[1], "tcp://127.0.0.1:0", NULL);
    snprintf(tcp, sizeof(tcp), "%s", receiver.uri);
    mover_kill(&receiver, SIGINT);
    mover_ends(&receiver, 1);
    mover_receive(&receiver, &vms[1], "shm://127.0.0.1:0",
                  (const char *[]){"--max-bandwidth", HARDLY, minor, NULL});
    snprintf(shm, sizeof(shm), "%s", receiver.uri);
    mover_send(&sender, &vms[0], shm, NULL);
    go_on_over(tcp, HARDLY);
    go_on_over(shm, "0");
    pair_done();
    pair_moved("mib=8");
    apart_came(from + strlen(HUGE_RAM), to + strlen(HUGE_RAM));
}

static void test_huge_pages_change_transports(void)
{
    transports_change(NULL);
}

static void test_huge_pages_change_transports_minor(void)
{
    transports_change("--minor");
}

/* The destination's memory has these options, too. */
static void start_in_huge_pages(const char *options)
{
    char from[128], to[128];
    if (!borrow_huge_pages())
        skip();
    snprintf(from, sizeof(from), HUGE_RAM "%s/from", huge_folder);
    snprintf(to, sizeof(to), HUGE_RAM "%s/to,%s", huge_folder, options);
    mover_begin();
    vm_start(&vms[0], &(struct vm_options){.append = "", .ram = from});
    vm_start(&vms[1], &(struct vm_options){.append = "", .ram = to, .incoming = true});
    vm_wait_beats(&vms[0], pair_beats);
}

/* Takes huge pages away from others until they are unmapped; MAP_FAILED: there are not enough. */
static void *take_huge_pages(size_t bytes)
{
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | 21u << MAP_HUGE_SHIFT, -1, 0);
}

static void taken_by_nobody_at(const char *state, const char *option)
{
    const size_t more = (size_t)12 << 20; /* than are free */
    start_in_huge_pages("prealloc=on");
    mover_stop_next(state);
    pair_receive(NULL);
    pair_send((const char *[]){option, NULL});
    mover_await_stop(&receiver);
    assert_ptr_equal(take_huge_pages(more), MAP_FAILED);
    mover_kill(&receiver, SIGCONT);
    pair_done();
    pair_moved("");
}

/* The huge pages that QEMU has allocated beforehand, and loses to make room for pages that are to
 * come, stay reserved for it. */
static void test_huge_pages_that_others_want(void)
{
    taken_by_nobody_at("destination:ready", NULL);
}

/* ... and so does the place of those that came before the stop, and have to come again. */
static void test_huge_pages_that_come_again(void)
{
    taken_by_nobody_at("destination:mapped", "--warm");
}

/* A QEMU that counts on free huge pages that do not exist: the VM does not stop for this. */
static void test_huge_pages_too_few(void)
{
    const size_t half = (size_t)(VM_RAM_MIB / 2) << 20;
    start_in_huge_pages("reserve=off");
    pair_receive(NULL);
    void *taken = take_huge_pages(half); /* when receive has found enough */
    assert_ptr_not_equal(taken, MAP_FAILED);
    pair_send(NULL);
    mover_ends(&sender, 1);
    mover_must_print(&sender, " refuses: QEMU has not reserved the huge pages of guest RAM mem0 "
                              "(reserve=off), and of the 32 of 2048 KiB that it needs, ");
    mover_kill(&receiver, SIGINT); /* it waits for other VMs */
    mover_ends(&receiver, 1);
    struct mover *refused = MOVER_RUN(1, "check", "--qmp", vms[1].tool, "--destination");
    mover_must_print(refused,
                     "QEMU has not reserved the huge pages of guest RAM mem0 (reserve=off)");
    pair_stayed();
    munmap(taken, half);
}

/* There and back again, twice or as often as is asked for: each destination is the next source. */
static void test_there_and_back(void)
{
    enum { MOST = 10 };
    static struct vm chain[MOST + 1];
    const char *asked = getenv("IBX_TRIPS");
    const unsigned moves = asked ? 2 * (unsigned)atoi(asked) : 4;
    assert_in_range(moves, 2, MOST);
    struct vm_options options = {.append = "cpus=2 beat=64", .two = true};
    const struct vm *all[MOST + 2] = {NULL};
    mover_begin();
    vm_start(&chain[0], &options);
    options.incoming = true;
    for (unsigned i = 0; i < moves; i++) {
        vm_start(&chain[i + 1], &options);
        vm_wait_beats(&chain[i], 20);
        mover_receive(&receiver, &chain[i + 1], i % 2 ? "shm://127.0.0.1:0" : "tcp://127.0.0.1:0",
                      NULL);
        mover_send(&sender, &chain[i], receiver.uri, (const char *[]){"--quit", NULL});
        mover_ends(&sender, 0);
        mover_ends(&receiver, 0);
    }
    vm_wait_beats(&chain[moves], pair_beats);
    for (unsigned i = 0; i <= moves; i++)
        all[i] = &chain[i];
    mover_heartbeats(all, options.append);
}

/* A VM that was paused arrives paused, and runs when it is told to. */
static void test_paused(void)
{
    pair_start(NULL);
    vm_do(&vms[0], "stop", NULL);
    mover_receive(&receiver, &vms[1], "tcp://127.0.0.1:0", NULL);
    mover_send(&sender, &vms[0], receiver.uri, NULL);
    pair_done();
    mover_must_print(&sender, "preparing: the VM is paused at the source");
    json_t *status = vm_run(&vms[1], "query-status", NULL);
    assert_string_equal(json_string_value(json_object_get(status, "status")), "paused");
    json_decref(status);
    vm_do(&vms[1], "cont", NULL);
    pair_moved("");
}

/* A backend that the guest does not use, of 8 huge pages. */
#define MORE_BYTES ((size_t)16 << 20)
#define MORE       "memory-backend-file,id=more,size=16M,share=on,mem-path="

static uint8_t *more_map(const char *path, int flags)
{
    const int fd = open(path, O_RDWR | O_CLOEXEC | flags, 0600);
    assert_true(fd >= 0 && !ftruncate(fd, MORE_BYTES));
    uint8_t *bytes = mmap(NULL, MORE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(bytes, MAP_FAILED);
    close(fd);
    return bytes;
}

/* Another client removes the backend from the destination's QEMU before its pages have come: nobody
 * waits for them, and they come into their file, which can only be written through a mapping. */
static void removed_from_huge_pages(bool killed)
{
    char files[2][64], backends[2][160];
    uint8_t *bytes[2];
    if (!borrow_huge_pages())
        skip();
    mover_begin();
    for (unsigned i = 0; i < 2; i++) {
        snprintf(files[i], sizeof(files[i]), "%s/more-%u", huge_folder, i);
        snprintf(backends[i], sizeof(backends[i]), MORE "%s", files[i]);
        bytes[i] = more_map(files[i], O_CREAT | O_EXCL);
        for (size_t at = 0; !i && at < MORE_BYTES; at += sizeof(uint64_t))
            memcpy(bytes[i] + at, &(uint64_t){at * 0x9e3779b97f4a7c15u + 1}, sizeof(uint64_t));
        munmap(bytes[i], MORE_BYTES);
        vm_start(&vms[i], &(struct vm_options){
                              .append = "",
                              .incoming = i,
                              .extra = {"-m", "64,slots=2,maxmem=1G", "-object", backends[i]}});
    }
    vm_wait_beats(&vms[0], pair_beats);
    pair_run((const char *[]){"--max-bandwidth", HARDLY, NULL});
    mover_await(&receiver, "filling", 0);
    vm_do(&vms[1], "object-del", json_pack("{s:s}", "id", "more"));
    for (const uint64_t until = vm_soon(); vm_memory_has(&vms[1], files[1], " rd");)
        assert_true(ibx_now_ns() < until);
    if (killed) { /* without a limit: the tool may have ended before it could be told anything */
        mover_kill(&receiver, SIGKILL);
        pair_recover(&receiver);
        pair_done();
        pair_moved("");
    } else {
        pair_filled();
    }
    for (unsigned i = 0; i < 2; i++)
        bytes[i] = more_map(files[i], 0);
    assert_memory_equal(bytes[1], bytes[0], MORE_BYTES);
    for (unsigned i = 0; i < 2; i++)
        munmap(bytes[i], MORE_BYTES);
}

static void test_huge_pages_removed(void)
{
    removed_from_huge_pages(false);
}

static void test_huge_pages_removed_and_its_tool_killed(void)
{
    removed_from_huge_pages(true);
}

int main(void)
{
    pair_beats = 40;
    static const struct vm_test tests[] = {VM_TEST(test_tcp),
                                           VM_TEST(test_removes_the_file),
                                           VM_TEST(test_shm),
                                           VM_TEST(test_ofi),
                                           VM_TEST(test_auto_with_links),
                                           VM_TEST(test_microvm),
                                           VM_TEST(test_minor),
                                           VM_TEST(test_minor_shm),
                                           VM_TEST(test_memfd),
                                           VM_TEST(test_one_wrong_bit_shows),
                                           VM_TEST(test_idle),
                                           VM_TEST(test_bandwidth),
                                           VM_TEST(test_no_huge_pages_meanwhile),
                                           VM_TEST(test_no_huge_pages_until_a_recovery),
                                           VM_TEST(test_sandboxed),
                                           VM_TEST(test_huge_pages),
                                           VM_TEST(test_huge_pages_warm),
                                           VM_TEST(test_huge_pages_minor),
                                           VM_TEST(test_huge_pages_of_a_dead_source),
                                           VM_TEST(test_huge_pages_of_a_source_that_dies_unaware),
                                           VM_TEST(test_huge_pages_change_transports),
                                           VM_TEST(test_huge_pages_change_transports_minor),
                                           VM_TEST(test_huge_pages_that_others_want),
                                           VM_TEST(test_huge_pages_that_come_again),
                                           VM_TEST(test_huge_pages_too_few),
                                           VM_TEST(test_huge_pages_removed),
                                           VM_TEST(test_huge_pages_removed_and_its_tool_killed),
                                           VM_TEST(test_paused),
                                           VM_TEST(test_there_and_back),
                                           {0}};
    return vm_tests(tests, end_all);
}
