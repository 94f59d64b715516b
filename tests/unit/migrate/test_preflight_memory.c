/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How much memory control groups leave to a QEMU, in a simulated tree of both versions, and how
 * much a host has left; how several reasons become one sentence. */
#include "migrate/common/common.h"
#include "migrate/preflight/preflight.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB        (1ull << 20)
#define HUGE_2_MIB (21u << 26) /* for memfd_create(2) */

static char root[] = "/tmp/ibx-groups-XXXXXX", name[PATH_MAX];

/* Creates a folder of the tree, or a file with this content. */
static void make(const char *at, const char *content)
{
    char path[300];
    snprintf(path, sizeof(path), "%s%s", root, at);
    if (!content) {
        assert_int_equal(mkdir(path, 0700), 0);
        return;
    }
    FILE *file = fopen(path, "we");
    assert_true(file && fputs(content, file) >= 0 && !fclose(file));
}

static int make_root(void **state)
{
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    char command[64];
    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s", root);
    return system(command);
}

static void leaves(const char *groups, uint64_t swap_mib, uint64_t mib, const char *of)
{
    const uint64_t room = ibx_preflight_memory_room(root, groups, swap_mib * MIB, name);
    if (mib == UINT64_MAX)
        assert_true(room == UINT64_MAX);
    else
        assert_int_equal(room / MIB, mib);
    if (of)
        assert_string_equal(name + strlen(root), of);
}

/* The smallest remainder of all groups of a process counts. Cached files that can be dropped
 * count as free. */
static void test_second_version(void **state)
{
    (void)state;
    make("/slice", NULL);
    make("/slice/vm", NULL);
    leaves("0::/slice/vm\n", 0, UINT64_MAX, NULL);
    make("/slice/vm/memory.max", "max\n");
    make("/slice/vm/memory.current", "7\n");
    leaves("0::/slice/vm\n", 0, UINT64_MAX, NULL);
    make("/slice/vm/memory.max", "104857600\n");    /* 100 MiB */
    make("/slice/vm/memory.current", "62914560\n"); /* 60 */
    leaves("0::/slice/vm\n", 0, 40, "/slice/vm");
    leaves("0::/slice/vm\n", 5, 45, "/slice/vm");
    make("/slice/vm/memory.stat", "anon 5\ninactive_file 10485760\nactive_file 2097152\n");
    leaves("0::/slice/vm\n", 0, 52, "/slice/vm");
    make("/slice/vm/memory.swap.max", "3145728\n");
    make("/slice/vm/memory.swap.current", "1048576\n");
    leaves("0::/slice/vm\n", 100, 54, "/slice/vm");
    make("/slice/memory.max", "104857600\n");
    make("/slice/memory.current", "99614720\n"); /* 95 */
    leaves("0::/slice/vm\n", 0, 5, "/slice");
    make("/slice/memory.current", "200000000\n"); /* the limit was lowered */
    leaves("0::/slice/vm\n", 0, 0, "/slice");
    leaves("0::/../vm\n", 0, UINT64_MAX, NULL); /* of another namespace */
    leaves("", 0, UINT64_MAX, NULL);
    leaves("0::/\n", 0, UINT64_MAX, NULL); /* the real root group has no files of these names */
    make("/memory.max", "3145728\n");      /* the root that a container sees does */
    make("/memory.current", "1048576\n");
    leaves("0::/\n", 0, 2, "");
    leaves("0::/slice/vm\n", 3, 3, "/slice");
    make("/slice/memory.max", "max\n");
    leaves("0::/slice/vm\n", 3, 5, "");
    make("/memory.max", "max\n");
}

/* A limit that only slows a process down does not count. */
static void test_high(void **state)
{
    const char *groups = "4:memory:/high\n0::/high/vm\n";
    (void)state;
    make("/high", NULL);
    make("/high/vm", NULL);
    make("/high/vm/memory.high", "max\n");
    make("/high/vm/memory.current", "1048576\n");
    assert_true(ibx_preflight_memory_high(root, groups, 0, name) == UINT64_MAX);
    make("/high/memory.high", "104857600\n");
    make("/high/memory.current", "62914560\n");
    make("/high/memory.stat", "inactive_file 2097152\n");
    assert_int_equal(ibx_preflight_memory_high(root, groups, 0, name) / MIB, 42);
    assert_string_equal(name + strlen(root), "/high");
    assert_int_equal(ibx_preflight_memory_high(root, groups, MIB, name) / MIB, 43);
    leaves(groups, 0, UINT64_MAX, NULL);
}

static void test_first_version(void **state)
{
    (void)state;
    const char *groups = "9:name=systemd:/\n4:memory:/m/q\n1:cpu:/\n0::/\n";
    make("/memory", NULL);
    make("/memory/m", NULL);
    make("/memory/m/q", NULL);
    make("/memory/m/q/memory.limit_in_bytes", "9223372036854771712\n");
    make("/memory/m/q/memory.usage_in_bytes", "1048576\n");
    assert_true(ibx_preflight_memory_room(root, groups, 0, name) > 1ull << 60);
    make("/memory/m/memory.limit_in_bytes", "10485760\n");
    make("/memory/m/memory.usage_in_bytes", "4194304\n");
    make("/memory/m/memory.stat", "inactive_file 9999999\ntotal_inactive_file 1048576\n");
    leaves(groups, 0, 7, "/memory/m");
    leaves(groups, 9, 16, "/memory/m");
    make("/memory/m/memory.memsw.limit_in_bytes", "12582912\n");
    make("/memory/m/memory.memsw.usage_in_bytes", "4194304\n");
    leaves(groups, 9, 9, "/memory/m");
}

/* Free swap counts, and the memory that ZFS would give up. */
static void test_host(void **state)
{
    (void)state;
    assert_true(ibx_preflight_host_room(root) == UINT64_MAX);
    make("/meminfo", "MemTotal:       16384 kB\nMemFree:  1 kB\n"); /* before Linux 3.14 */
    assert_true(ibx_preflight_host_room(root) == UINT64_MAX);
    make("/meminfo", "MemTotal:       16384 kB\nMemAvailable:    4096 kB\nSwapTotal: 2048 kB\n"
                     "SwapFree:        1024 kB\n");
    assert_int_equal(ibx_preflight_host_room(root) / MIB, 5);
    make("/spl", NULL);
    make("/spl/kstat", NULL);
    make("/spl/kstat/zfs", NULL);
    make("/spl/kstat/zfs/arcstats", "9 1 0x01 123 33456 1 2\nname type data\nhits 4 7\n"
                                    "c_min                           4    1048576\n"
                                    "size                            4    4194304\n");
    assert_int_equal(ibx_preflight_host_room(root) / MIB, 8);
    make("/spl/kstat/zfs/arcstats", "size 4 5\nc_min 4 1048576\n");
    assert_int_equal(ibx_preflight_host_room(root) / MIB, 5);
}

/* Without overcommit a QEMU that gets no memory ends, and its VM with it. */
static void test_commit(void **state)
{
    static struct ibx_blockers blockers;
    (void)state;
    make("/meminfo", "MemAvailable:    4096 kB\nCommitLimit:  204800 kB\n"
                     "Committed_AS:  143361 kB\n");
    assert_true(ibx_preflight_commit_room(root) == UINT64_MAX); /* the host does not say */
    make("/sys", NULL);
    make("/sys/vm", NULL);
    make("/sys/vm/overcommit_memory", "0\n");
    assert_true(ibx_preflight_commit_room(root) == UINT64_MAX);
    ibx_preflight_commit(root, &blockers);
    assert_int_equal(blockers.count, 0);
    make("/sys/vm/overcommit_memory", "2\n");
    assert_int_equal(ibx_preflight_commit_room(root), (204800 - 143361) << 10);
    ibx_preflight_commit(root, &blockers);
    assert_int_equal(blockers.count, 1);
    assert_non_null(strstr(blockers.reasons[0], "59 MiB are left"));
    /* the limit was set later */
    make("/meminfo", "CommitLimit:  204800 kB\nCommitted_AS:  304800 kB\n");
    assert_int_equal(ibx_preflight_commit_room(root), 0);
    make("/meminfo", "CommitLimit:  204800 kB\nCommitted_AS:  104800 kB\n");
    memset(&blockers, 0, sizeof(blockers));
    ibx_preflight_commit(root, &blockers);
    assert_int_equal(blockers.count, 0);
}

/* The VM's data must fit, with a reserve. If only the rest of its memory does not fit, the tool
 * says so. */
static void test_what_a_vm_holds(void **state)
{
    static struct ibx_blockers blockers;
    static struct ibx_guest_block block;
    const uint64_t room = ibx_preflight_host_room("/proc");
    struct ibx_guest_ram ram = {.pid = getpid(), .blocks = &block, .count = 1};
    (void)state;
    assert_true(room < UINT64_MAX / 8);
    block = (struct ibx_guest_block){.page_size = 4096, .size = 4 * room};
    block.fd = memfd_create("ram", MFD_CLOEXEC);
    assert_int_equal(ftruncate(block.fd, (off_t)block.size), 0);
    const struct {
        uint64_t holds;
        size_t reasons, notes;
    } cases[] = {{0, 0, 1}, {MIB, 0, 1}, {2 * room, 1, 0}, {room, 1, 0}, {UINT64_MAX, 1, 0}};
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        memset(&blockers, 0, sizeof(blockers));
        blockers.holds = cases[i].holds;
        ibx_preflight_host_memory(&ram, &blockers);
        assert_int_equal(blockers.count, cases[i].reasons);
        assert_int_equal(blockers.note_count, cases[i].notes);
    }
    assert_non_null(strstr(blockers.reasons[0], "and this VM needs "));
    memset(&blockers, 0, sizeof(blockers));
    block.size = MIB;
    blockers.holds = UINT64_MAX;
    ibx_preflight_host_memory(&ram, &blockers);
    assert_int_equal(blockers.count + blockers.note_count, 0);
    assert_int_equal(ibx_preflight_held(&ram), 0);
    assert_int_equal(posix_fallocate(block.fd, 0, 65536), 0);
    assert_int_equal(ibx_preflight_held(&ram), 65536);
    close(block.fd);
}

/* The fault engine would refuse other pages only when the migration has begun. */
static void test_which_pages(void **state)
{
    static struct ibx_blockers blockers;
    static struct ibx_guest_block block = {.id = "ram0"};
    const struct ibx_guest_ram ram = {.blocks = &block, .count = 1};
    const struct {
        uint64_t bytes;
        const char *says;
    } pages[] = {{4096, NULL},
                 {16 << 10, "guest RAM ram0 has pages of 16 KiB"},
                 {64 << 10, "guest RAM ram0 has pages of 64 KiB"},
                 {2 << 20, NULL},
                 {1 << 30, "guest RAM ram0 has pages of 1048576 KiB"}};
    (void)state;
    for (unsigned i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
        memset(&blockers, 0, sizeof(blockers));
        block.page_size = pages[i].bytes;
        ibx_preflight_pages(&ram, &blockers);
        assert_int_equal(blockers.count, pages[i].says != NULL);
        assert_true(!pages[i].says || strstr(blockers.reasons[0], pages[i].says));
    }
}

/* A process that fills all memory would be killed; with --on-demand the tool says so. On a full
 * file system the process waits; the tool always says this. */
static void test_what_a_cache_needs(void **state)
{
    static struct ibx_blockers blockers;
    (void)state;
    const int at = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ibx_preflight_fill(at, root, MIB, true, &blockers);
    assert_int_equal(blockers.count + blockers.note_count, 0);
    ibx_preflight_fill(at, root, 1ull << 60, true, &blockers);
    assert_true(blockers.count > 0);
    assert_non_null(strstr(blockers.reasons[0], "what is to come of this snapshot needs "));
    assert_true(blockers.note_count > 0);
    assert_non_null(strstr(blockers.notes[blockers.note_count - 1], root));
    memset(&blockers, 0, sizeof(blockers));
    ibx_preflight_fill(at, root, 1ull << 60, false, &blockers);
    assert_int_equal(blockers.count, 0);
    assert_true(blockers.note_count > 1);
    close(at);
}

static bool ends(const char *text, const char *with)
{
    return strlen(text) >= strlen(with) && !strcmp(text + strlen(text) - strlen(with), with);
}

/* The sentence contains whole reasons, and the number of those for which there is no room. */
static void test_reasons_in_one_sentence(void **state)
{
    static struct ibx_blockers blockers;
    struct ibx_error err = {0};
    char remedy[301];
    (void)state;
    memset(remedy, 'x', sizeof(remedy) - 1);
    memcpy(remedy + sizeof(remedy) - 5, " END", 5);
    for (size_t n = 1; n <= 40; n++) {
        ibx_blockers_add(&blockers, "%s", remedy);
        assert_int_equal(ibx_migration_refused("no", &blockers, &err), -EPERM);
        char more[64];
        snprintf(more, sizeof(more), " END; and %zu more reason%s", n - 2, n > 3 ? "s" : "");
        assert_true(ends(err.message, n > 2 ? more : " END"));
    }
    /* Only a first reason that is too long is cut. */
    memset(&blockers, 0, sizeof(blockers));
    blockers.count = 2;
    memset(blockers.reasons[0], 'y', sizeof(blockers.reasons[0]) - 1);
    ibx_migration_refused("no", &blockers, &err);
    assert_true(ends(err.message, "yyy; and 1 more reason"));
    blockers.count = 0;
    ibx_migration_refused("no", &blockers, &err);
    assert_string_equal(err.message, "no: without a reason");
}

static unsigned free_pages(const char *what)
{
    char path[96];
    unsigned count = 0;
    snprintf(path, sizeof(path), "/sys/kernel/mm/hugepages/hugepages-2048kB/%s", what);
    FILE *file = fopen(path, "re");
    if (!file || fscanf(file, "%u", &count) != 1)
        skip();
    fclose(file);
    return count;
}

/* What is found of two files of so many huge pages that QEMU has mapped without reserving them: the
 * number of blockers, and a reason or note. `reserved`: somebody else has, for the second one. */
static size_t blockers_of(const size_t pages[2], bool reserved, char *reason, size_t size)
{
    static struct ibx_blockers blockers;
    struct ibx_guest_block blocks[2] = {{.id = "ram0", .fd = -1}, {.id = "ram1", .fd = -1}};
    const size_t page = 2 * MIB;
    for (unsigned i = 0; i < 2 && pages[i]; i++) {
        const int fd = memfd_create("ibx-test", MFD_CLOEXEC | MFD_HUGETLB | HUGE_2_MIB);
        if (fd < 0 || ftruncate(fd, (off_t)(pages[i] * page)))
            skip();
        blocks[i].fd = fd;
        blocks[i].size = pages[i] * page;
        blocks[i].page_size = page;
        if (reserved && i)
            munmap(mmap(NULL, blocks[i].size, PROT_READ, MAP_SHARED, fd, 0), blocks[i].size);
        void *at =
            mmap(NULL, blocks[i].size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
        if (at == MAP_FAILED)
            skip();
        blocks[i].address = (uint64_t)(uintptr_t)at;
    }
    const unsigned before = free_pages("resv_hugepages");
    memset(&blockers, 0, sizeof(blockers));
    ibx_preflight_huge_pages(&(struct ibx_guest_ram){.pid = getpid(), .blocks = blocks, .count = 2},
                             &blockers);
    if (pages[1]) /* other programs reserve some, too, but not as many */
        assert_true(free_pages("resv_hugepages") < before + pages[1]);
    for (unsigned i = 0; i < 2 && pages[i]; i++) {
        munmap((void *)(uintptr_t)blocks[i].address, blocks[i].size);
        close(blocks[i].fd);
    }
    snprintf(reason, size, "%s",
             blockers.count        ? blockers.reasons[0]
             : blockers.note_count ? blockers.notes[0]
                                   : "");
    return blockers.count;
}

static void test_huge_pages_that_are_not_reserved(NO_STATE)
{
    char reason[IBX_ERROR_MAX];
    const size_t many[2] = {(size_t)1 << 20, 0}, one[2] = {1, 0};
    assert_int_equal(blockers_of(many, false, reason, sizeof(reason)), 1);
    assert_non_null(strstr(reason, "of the 1048576 of 2048 KiB that it needs"));
    if (free_pages("free_hugepages") > free_pages("resv_hugepages"))
        assert_int_equal(blockers_of(one, false, reason, sizeof(reason)), 0);
}

static size_t pages_left(void)
{
    return free_pages("free_hugepages") - free_pages("resv_hugepages");
}

/* There are enough for each of the two, and not for both: that is told, and takes none. */
static void test_huge_pages_for_one_of_two(NO_STATE)
{
    char note[IBX_ERROR_MAX], reason[IBX_ERROR_MAX];
    const size_t left = pages_left(), most[2] = {left / 2 + 1, left / 2 + 1};
    if (left < 4)
        skip();
    const size_t none = blockers_of(most, false, note, sizeof(note)),
                 one = blockers_of(most, true, reason, sizeof(reason));
    if (pages_left() != left) /* another program's */
        skip();
    assert_int_equal(none, 0);
    assert_non_null(strstr(note, "guest RAM ram1"));
    assert_int_equal(one, 1);
    assert_non_null(strstr(reason, "guest RAM ram0"));
}

static void may_take(const char *groups, uint64_t mib, const char *of)
{
    const struct ibx_huge_pages pages = {.size = 2 * MIB, .owner_groups = ""};
    const uint64_t room = ibx_preflight_huge_room(root, groups, &pages, name);
    assert_true(mib == UINT64_MAX ? room == UINT64_MAX : room == mib * MIB);
    if (of)
        assert_string_equal(name + strlen(root), of);
}

/* Those that a receiver places count towards its own control groups. */
static void test_limits_of_huge_pages(NO_STATE)
{
    const char *groups = "5:hugetlb:/h1\n4:memory:/h1/q\n0::/h2/vm\n";
    struct ibx_guest_block block = {.id = "ram0", .size = 64 * MIB, .page_size = 2 * MIB};
    const struct ibx_guest_ram ram = {.blocks = &block, .count = 1};
    make("/h2", NULL);
    make("/h2/vm", NULL);
    make("/hugetlb", NULL);
    make("/hugetlb/h1", NULL);
    may_take(groups, UINT64_MAX, NULL);
    make("/h2/vm/hugetlb.2MB.max", "max\n");
    make("/h2/vm/hugetlb.2MB.current", "4194304\n");
    make("/h2/hugetlb.1GB.max", "0\n");
    make("/h2/hugetlb.1GB.current", "0\n");
    may_take(groups, UINT64_MAX, NULL);
    make("/h2/hugetlb.2MB.max", "67108864\n");
    make("/h2/hugetlb.2MB.current", "4194304\n");
    may_take(groups, 60, "/h2");
    make("/hugetlb/h1/hugetlb.2MB.limit_in_bytes", "8388608\n");
    make("/hugetlb/h1/hugetlb.2MB.usage_in_bytes", "2097152\n");
    may_take(groups, 6, "/hugetlb/h1");
    block.fd = memfd_create("ram", MFD_CLOEXEC);
    struct ibx_blockers blockers = {0};
    ibx_preflight_huge_limit(root, groups, groups, &ram, &blockers);
    assert_int_equal(blockers.count, 1);
    assert_non_null(strstr(blockers.reasons[0], "may take 6 MiB of them and this VM has 64 MiB"));
    assert_int_equal(ftruncate(block.fd, 64 * MIB), 0);
    assert_int_equal(fallocate(block.fd, 0, 0, 58 * MIB), 0); /* QEMU has them, in this group */
    memset(&blockers, 0, sizeof(blockers));
    ibx_preflight_huge_limit(root, groups, groups, &ram, &blockers);
    assert_int_equal(blockers.count, 0);
    /* ... or in another one, where they make no room for a receiver in this one. */
    ibx_preflight_huge_limit(root, groups, "5:hugetlb:/qemu\n0::/h2/vm\n", &ram, &blockers);
    assert_int_equal(blockers.count, 1);
    assert_non_null(strstr(blockers.reasons[0], "may take 6 MiB of them and this VM has 64 MiB"));
    memset(&blockers, 0, sizeof(blockers));
    block.page_size = 4096;
    assert_int_equal(ftruncate(block.fd, 0), 0);
    ibx_preflight_huge_limit(root, groups, groups, &ram, &blockers);
    assert_int_equal(blockers.count, 0);
    close(block.fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_second_version),
                                       cmocka_unit_test(test_high),
                                       cmocka_unit_test(test_first_version),
                                       cmocka_unit_test(test_host),
                                       cmocka_unit_test(test_commit),
                                       cmocka_unit_test(test_what_a_vm_holds),
                                       cmocka_unit_test(test_which_pages),
                                       cmocka_unit_test(test_what_a_cache_needs),
                                       cmocka_unit_test(test_huge_pages_that_are_not_reserved),
                                       cmocka_unit_test(test_huge_pages_for_one_of_two),
                                       cmocka_unit_test(test_limits_of_huge_pages),
                                       cmocka_unit_test(test_reasons_in_one_sentence)};
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
