/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The RAM of real QEMUs as the tool finds it, compared with QEMU's reports and with its memory. */
#include "common/rights.h"
#include "migrate/qemu/qemu_internal.h"
#include "tests/migrations/guest/churn.h"
#include "tests/fixtures/vm.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ull << 20)

static struct vm vm;

static void find(struct ibx_guest_ram *ram)
{
    vm_ok(ibx_guest_ram_find(vm.qmp, true, ram, vm_soon(), &vm_error));
}

/* The file and QEMU's memory at `address` are the same thing: what goes in here comes out there. */
static void same_memory(const struct ibx_guest_ram *ram, const struct ibx_guest_block *block,
                        uint64_t at)
{
    char path[64], mark[32], seen[32];
    snprintf(path, sizeof(path), "/proc/%d/mem", (int)ram->pid);
    snprintf(mark, sizeof(mark), "block %s at %" PRIx64, block->id, at);
    assert_int_equal(pwrite(block->fd, mark, sizeof(mark), (off_t)(block->offset + at)),
                     sizeof(mark));
    int mem = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(mem >= 0);
    assert_int_equal(pread(mem, seen, sizeof(seen), (off_t)(block->address + at)), sizeof(seen));
    close(mem);
    assert_string_equal(seen, mark);
}

/* What a record keeps of it. */
static void copy_layout(const struct ibx_guest_ram *ram, struct ibx_guest_ram *again)
{
    *again = (struct ibx_guest_ram){.pid = ram->pid, .count = ram->count};
    again->blocks = calloc(ram->count, sizeof(*again->blocks));
    assert_non_null(again->blocks);
    for (size_t i = 0; i < ram->count; i++) {
        const struct ibx_guest_block *from = &ram->blocks[i];
        again->blocks[i] = (struct ibx_guest_block){.size = from->size,
                                                    .page_size = from->page_size,
                                                    .offset = from->offset,
                                                    .address = from->address,
                                                    .dev = from->dev,
                                                    .ino = from->ino,
                                                    .fd = -1};
        memcpy(again->blocks[i].id, from->id, sizeof(from->id));
    }
}

static void not_found_again(const struct ibx_guest_ram *ram, size_t member)
{
    struct ibx_guest_ram again;
    copy_layout(ram, &again);
    *(uint64_t *)((char *)&again.blocks[0] + member) += MIB;
    vm_soon();
    vm_refused(ibx_guest_ram_reopen(&again, &vm_error), -ESTALE, again.blocks[0].id);
    ibx_guest_ram_fini(&again);
}

/* The RAM is found again without a question to QEMU, and only where it was. */
static void found_again(const struct ibx_guest_ram *ram)
{
    struct ibx_guest_ram again;
    copy_layout(ram, &again);
    vm_soon();
    vm_ok(ibx_guest_ram_reopen(&again, &vm_error));
    for (size_t i = 0; i < again.count; i++)
        same_memory(&again, &again.blocks[i], 2 * MIB);
    ibx_guest_ram_fini(&again);
    not_found_again(ram, offsetof(struct ibx_guest_block, size));
    not_found_again(ram, offsetof(struct ibx_guest_block, page_size));
    not_found_again(ram, offsetof(struct ibx_guest_block, offset));
    not_found_again(ram, offsetof(struct ibx_guest_block, address));
    not_found_again(ram, offsetof(struct ibx_guest_block, dev));
    not_found_again(ram, offsetof(struct ibx_guest_block, ino));
}

static bool bit(const uint64_t *bits, uint64_t i)
{
    return bits[i / 64] >> (i % 64) & 1;
}

static void test_file(void)
{
    vm_start(&vm, &(struct vm_options){.extra = {"-name", "a guest", "-uuid",
                                                 "12345678-9abc-4def-8123-456789abcdef", "-S"}});
    struct ibx_guest_ram ram;
    find(&ram);
    assert_int_equal(ram.pid, vm.pid);
    assert_string_equal(ram.name, "a guest");
    assert_string_equal(ram.uuid, "12345678-9abc-4def-8123-456789abcdef");
    assert_string_equal(ram.status, "prelaunch");
    assert_non_null(strstr(ram.machine, "pc-q35-"));
    assert_null(strstr(ram.machine, "-machine"));
    assert_int_equal(ram.bytes, VM_RAM_MIB * MIB);
    assert_int_equal(ram.machine_bytes, VM_RAM_MIB * MIB);
    assert_int_equal(ram.count, 1);
    const struct ibx_guest_block *block = ibx_guest_ram_block(&ram, "mem0");
    assert_non_null(block);
    assert_null(ibx_guest_ram_block(&ram, "mem"));
    assert_string_equal(block->type, "memory-backend-file");
    assert_string_equal(block->path, vm.ram);
    assert_true(block->shared && block->named);
    assert_int_equal(block->page_size, sysconf(_SC_PAGESIZE));
    struct stat st;
    assert_int_equal(stat(vm.ram, &st), 0);
    assert_true(block->dev == st.st_dev && block->ino == st.st_ino);
    same_memory(&ram, block, 40 * MIB);
    found_again(&ram);
    ibx_guest_ram_fini(&ram);
}

/* The VM's name is for people, and libvirt's may have 255 bytes. */
static void test_long_name(void)
{
    char name[256] = "", cut[128] = "";
    for (unsigned i = 0; i < 85; i++)
        strcat(name, "\u20ac"); /* of three bytes */
    memcpy(cut, name, 126);
    vm_start(&vm, &(struct vm_options){.extra = {"-name", name, "-S"}});
    struct ibx_guest_ram ram;
    find(&ram);
    assert_string_equal(ram.name, cut);
    ibx_guest_ram_fini(&ram);
}

/* Two nodes of memfd: alike in /proc, so QEMU has to tell which is which. */
static void test_numa_memfd(void)
{
    vm_start(&vm, &(struct vm_options){
                      .ram = "memory-backend-memfd,id=left,size=32M,share=on",
                      .two = true,
                      .extra = {"-object", "memory-backend-memfd,id=right,size=32M,share=on",
                                "-numa", "node,memdev=right", "-numa", "node,memdev=left", "-S"}});
    struct ibx_guest_ram ram;
    find(&ram);
    assert_int_equal(ram.count, 2);
    const struct ibx_guest_block *left = &ram.blocks[0], *right = &ram.blocks[1];
    assert_string_equal(left->id, "left");
    assert_string_equal(right->id, "right");
    assert_true(left->shared && right->shared && !left->named);
    assert_true(left->ino != right->ino && left->address != right->address);
    same_memory(&ram, left, MIB);
    same_memory(&ram, right, MIB);
    found_again(&ram);
    /* Node 0 is the right one, so it is what the guest sees at 1 MiB. */
    char text[256];
    vm_hmp(&vm, "xp /8c 0x100000", text, sizeof(text));
    assert_non_null(strstr(text, "'b' 'l' 'o' 'c' 'k' ' ' 'r' 'i'"));
    ibx_guest_ram_fini(&ram);
}

static void test_a_path_that_is_not_utf8(void)
{
    char path[64], ram[160];
    snprintf(path, sizeof(path), "/dev/shm/ibx-vm-%d-\xe4", (int)getpid());
    snprintf(ram, sizeof(ram), "memory-backend-file,id=mem0,size=64M,mem-path=%s,share=on", path);
    vm_start(&vm, &(struct vm_options){.ram = ram, .extra = {"-S"}});
    struct ibx_guest_ram found;
    const int rc = ibx_guest_ram_find(vm.qmp, true, &found, vm_soon(), &vm_error);
    unlink(path);
    vm_refused(rc, -ENOENT, "QEMU tells no path that is not UTF-8");
}

/* mem-path names a directory: QEMU's file there has no name any more. */
static void test_directory(void)
{
    vm_start(&vm, &(struct vm_options){
                      .ram = "memory-backend-file,id=mem0,size=64M,mem-path=/dev/shm,share=on",
                      .extra = {"-S"}});
    struct ibx_guest_ram ram;
    find(&ram);
    assert_int_equal(ram.count, 1);
    assert_true(ram.blocks[0].shared && !ram.blocks[0].named);
    same_memory(&ram, &ram.blocks[0], 3 * MIB);
    ibx_guest_ram_fini(&ram);
}

/* The RAM begins somewhere in its file: QEMU 8.1 and later. */
static void test_offset(void)
{
    vm_start(&vm, &(struct vm_options){.extra = {"-S"}});
    const bool knows = ibx_qmp_at_least(ibx_qmp_version(vm.qmp), 8, 1);
    vm_end(&vm);
    if (!knows)
        skip();
    char path[] = "/dev/shm/ibx-test-ram-XXXXXX", ram_is[160];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (VM_RAM_MIB + 2) * MIB), 0);
    snprintf(ram_is, sizeof(ram_is),
             "memory-backend-file,id=mem0,size=64M,mem-path=%s,share=on,offset=2M", path);
    vm_start(&vm, &(struct vm_options){.ram = ram_is, .extra = {"-S"}});
    close(fd);
    struct ibx_guest_ram ram;
    find(&ram);
    unlink(path);
    assert_int_equal(ram.blocks[0].offset, 2 * MIB);
    same_memory(&ram, &ram.blocks[0], 5 * MIB);
    uint64_t bits[VM_RAM_MIB * 256 / 64], count;
    vm_ok(ibx_guest_block_written(&ram, &ram.blocks[0], bits, &count, &vm_error));
    assert_true(bit(bits, 5 * 256) && !bit(bits, 7 * 256) && !bit(bits, 3 * 256));
    ibx_guest_ram_fini(&ram);
}

static void test_private(void)
{
    vm_start(&vm, &(struct vm_options){.ram = "", .extra = {"-S"}});
    struct ibx_guest_ram ram;
    find(&ram);
    assert_int_equal(ram.count, 1);
    assert_string_equal(ram.blocks[0].type, "memory-backend-ram");
    assert_false(ram.blocks[0].shared);
    assert_int_equal(ram.blocks[0].fd, -1);
    assert_int_equal(ram.blocks[0].size, VM_RAM_MIB * MIB);
    ibx_guest_ram_fini(&ram);
}

/* Shared with nobody: QEMU's own "/dev/zero (deleted)". */
static void test_shared_without_a_file(void)
{
    vm_start(&vm, &(struct vm_options){.ram = "memory-backend-ram,id=mem0,size=64M,share=on",
                                       .extra = {"-S"}});
    struct ibx_guest_ram ram;
    vm_refused(ibx_guest_ram_find(vm.qmp, true, &ram, vm_soon(), &vm_error), -ENOTSUP,
               "use -object memory-backend-file,id=mem0,size=64M,");
    vm_end(&vm);
    vm_start(&vm, &(struct vm_options){.extra = {"-S"}});
    if (!ibx_qmp_at_least(ibx_qmp_version(vm.qmp), 9, 1))
        return;
    vm_do(&vm, "object-add",
          json_pack("{s:s, s:s, s:i}", "qom-type", "memory-backend-shm", "id", "more", "size",
                    1 << 20));
    vm_refused(ibx_guest_ram_find(vm.qmp, true, &ram, vm_soon(), &vm_error), -ENOTSUP,
               "guest RAM more (memory-backend-shm, share=on) has no file");
}

/* The file was replaced. */
static void test_not_the_one(void)
{
    vm_start(&vm, &(struct vm_options){.extra = {"-S"}});
    struct ibx_guest_ram ram;
    assert_int_equal(unlink(vm.ram), 0);
    int fd = open(vm.ram, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    vm_refused(ibx_guest_ram_find(vm.qmp, true, &ram, vm_soon(), &vm_error), -ENOENT,
               "removed or replaced while QEMU was using it, which then has to be started anew");
}

/* An image that the guest sees as an NVDIMM, and may only read. */
static void test_read_only(void)
{
    char path[] = "/dev/shm/ibx-image-XXXXXX", object[128];
    struct ibx_guest_ram ram;
    int fd = mkstemp(path);
    assert_true(fd >= 0 && !ftruncate(fd, MIB));
    close(fd);
    snprintf(object, sizeof(object),
             "memory-backend-file,id=image,size=1M,mem-path=%s,share=on,readonly=on", path);
    vm_start(&vm, &(struct vm_options){.extra = {"-S", "-object", object}});
    const int rc = ibx_guest_ram_find(vm.qmp, true, &ram, vm_soon(), &vm_error);
    unlink(path);
    vm_refused(rc, -ENOTSUP, "memory backend image is readonly=on");
}

/* The capabilities that count when a process looks at another one. */
static void keep_ptrace(bool keep)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
    assert_int_equal(syscall(SYS_capget, &head, data), 0);
    data[CAP_TO_INDEX(CAP_SYS_PTRACE)].effective &= ~CAP_TO_MASK(CAP_SYS_PTRACE);
    if (keep)
        data[CAP_TO_INDEX(CAP_SYS_PTRACE)].effective |= CAP_TO_MASK(CAP_SYS_PTRACE);
    assert_int_equal(syscall(SYS_capset, &head, data), 0);
}

/* As root of a container looks at a QEMU that has more rights. */
static void test_without_the_right_to_look(void)
{
    struct ibx_guest_ram ram;
    if (!ibx_capable(CAP_SYS_PTRACE))
        skip();
    vm_start(&vm, &(struct vm_options){.extra = {"-S"}});
    keep_ptrace(false);
    const int rc = ibx_guest_ram_find(vm.qmp, true, &ram, vm_soon(), &vm_error);
    keep_ptrace(true);
    vm_refused(rc, -EACCES, "run this tool as root or with CAP_SYS_PTRACE");
}

/* A child that runs as nobody has mapped `path`, closed it, and let another file take the name that
 * /proc shows for the mapping: without rights to map_files, only that name leads to a file. Returns
 * what the child finds. */
static int reopen_replaced(const char *path)
{
    char again[PATH_MAX];
    struct stat st;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *at = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || fstat(fd, &st) || at == MAP_FAILED || close(fd) || unlink(path))
        return 1;
    struct ibx_guest_block block = {.id = "mem0",
                                    .size = MIB,
                                    .page_size = 4096,
                                    .address = (uintptr_t)at,
                                    .dev = st.st_dev,
                                    .ino = st.st_ino,
                                    .fd = -1};
    struct ibx_guest_ram ram = {.pid = getpid(), .blocks = &block, .count = 1};
    snprintf(again, sizeof(again), "%s (deleted)", path);
    fd = open(again, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, MIB) || close(fd))
        return 2;
    int rc = ibx_guest_ram_reopen(&ram, &vm_error);
    unlink(again);
    return rc == -ESTALE && strstr(vm_error.message, "was replaced") && block.fd == -1 ? 0 : 3;
}

static void test_replaced(void)
{
    char path[] = "/dev/shm/ibx-test-ram-XXXXXX";
    int fd = mkstemp(path), status;
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, MIB), 0);
    assert_true(geteuid() || !fchown(fd, 65534, 65534));
    close(fd);
    pid_t child = fork();
    if (!child)
        _exit(!geteuid() && (setgid(65534) || setuid(65534) || prctl(PR_SET_DUMPABLE, 1))
                  ? 77
                  : reopen_replaced(path));
    assert_int_equal(waitpid(child, &status, 0), child);
    unlink(path);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* The pages reported as untouched hold zeros; returns how many are reported as written. */
static uint64_t check_written(const struct ibx_guest_ram *ram, const struct ibx_guest_block *block,
                              uint64_t *bits)
{
    uint64_t pages = block->size / block->page_size, count = 0, ones = 0;
    char *page = malloc(block->page_size), *zeros = calloc(1, block->page_size);
    memset(bits, 0xff, (size_t)(pages + 63) / 64 * sizeof(*bits));
    vm_ok(ibx_guest_block_written(ram, block, bits, &count, &vm_error));
    struct stat st;
    assert_int_equal(fstat(block->fd, &st), 0);
    assert_int_equal(count * block->page_size, st.st_blocks * 512);
    for (uint64_t i = 0; i < pages; i++) {
        ones += bit(bits, i);
        assert_int_equal(pread(block->fd, page, block->page_size, (off_t)(i * block->page_size)),
                         block->page_size);
        if (!bit(bits, i))
            assert_memory_equal(page, zeros, block->page_size);
    }
    assert_int_equal(ones, count);
    free(page);
    free(zeros);
    return count;
}

/* A 64 MiB guest that churns 8 MiB leaves the rest alone, and looking allocates nothing. */
static void test_written(void)
{
    vm_start(&vm, &(struct vm_options){.append = "mib=8"});
    vm_wait_beats(&vm, 20);
    vm_do(&vm, "stop", NULL);
    struct ibx_guest_ram ram;
    find(&ram);
    uint64_t bits[VM_RAM_MIB * 256 / 64];
    uint64_t count = check_written(&ram, &ram.blocks[0], bits);
    assert_true(count >= 8 * 256 && count < VM_RAM_MIB * 256 / 2);
    for (uint64_t i = 0; i < 8 * 256; i++)
        assert_true(bit(bits, CHURN_BASE / 4096 + i));
    assert_false(bit(bits, CHURN_BASE / 4096 + 9 * 256));
    ibx_guest_ram_fini(&ram);
}

/* A second look finds what was written since to holes, and keeps what was known. */
static void test_written_since(void)
{
    const uint64_t known = CHURN_BASE / 4096 + 17, edge = CHURN_BASE / 4096 + 1024;
    uint64_t all[VM_RAM_MIB * 256 / 64], bits[VM_RAM_MIB * 256 / 64] = {0}, count, later = 0;
    vm_start(&vm, &(struct vm_options){.append = "mib=8"});
    vm_wait_beats(&vm, 20);
    vm_do(&vm, "stop", NULL);
    struct ibx_guest_ram ram;
    find(&ram);
    vm_ok(ibx_guest_block_written(&ram, &ram.blocks[0], all, &count, &vm_error));
    vm_ok(ibx_guest_block_written_since(&ram, &ram.blocks[0], bits, &later, &vm_error));
    assert_int_equal(later, count);
    assert_memory_equal(bits, all, sizeof(all));
    /* As if these had not been there before, at the edges of words and inside of one. */
    for (uint64_t page = known; page < edge; page += 61)
        bits[page / 64] &= ~(1ull << (page % 64)), later--;
    vm_ok(ibx_guest_block_written_since(&ram, &ram.blocks[0], bits, &later, &vm_error));
    assert_int_equal(later, count);
    assert_memory_equal(bits, all, sizeof(all));
    /* What was known to be written stays. */
    assert_int_equal(fallocate(ram.blocks[0].fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                               (off_t)(known * 4096), 4096),
                     0);
    vm_ok(ibx_guest_block_written_since(&ram, &ram.blocks[0], bits, &later, &vm_error));
    assert_true(bit(bits, known) && later == count);
    ibx_guest_ram_fini(&ram);
}

static unsigned free_huge_pages(void)
{
    unsigned count = 0;
    FILE *file = fopen("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "re");
    if (file && fscanf(file, "%u", &count) != 1)
        count = 0;
    if (file)
        fclose(file);
    return count;
}

/* The same in pages of 2 MiB: the kernel tells only their number; and if somebody other than QEMU
 * has written one, none may be taken for untouched. */
static void test_written_huge(void)
{
    if (free_huge_pages() < VM_RAM_MIB / 2)
        skip();
    vm_start(&vm, &(struct vm_options){.ram = "memory-backend-memfd,id=mem0,size=64M,share=on,"
                                              "hugetlb=on,hugetlbsize=2M",
                                       .append = "mib=8"});
    vm_wait_beats(&vm, 20);
    vm_do(&vm, "stop", NULL);
    struct ibx_guest_ram ram;
    find(&ram);
    const struct ibx_guest_block *block = &ram.blocks[0];
    assert_int_equal(block->page_size, 2 * MIB);
    uint64_t bits[1];
    uint64_t count = check_written(&ram, block, bits);
    assert_true(count >= 5 && count < VM_RAM_MIB / 4);
    for (uint64_t i = 0; i < 4; i++)
        assert_true(bit(bits, CHURN_BASE / (2 * MIB) + i));
    const uint64_t untouched = VM_RAM_MIB / 4;
    assert_false(bit(bits, untouched));
    char *ours = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, block->fd,
                      (off_t)(untouched * 2 * MIB));
    assert_true(ours != MAP_FAILED);
    ours[5] = 1;
    munmap(ours, 2 * MIB);
    vm_ok(ibx_guest_block_written(&ram, block, bits, &count, &vm_error));
    assert_true(bit(bits, untouched));
    assert_int_equal(count, VM_RAM_MIB / 2);
    ibx_guest_ram_fini(&ram);
}

/* Two blocks in one file, one behind the other: the kernel has one mapping for both, and QEMU tells
 * the address of the second in the middle of it. */
static void test_in_the_middle_of_a_mapping(void)
{
    char path[] = "/dev/shm/ibx-two-XXXXXX";
    struct stat st;
    int fd = mkstemp(path);
    assert_true(fd >= 0 && !fstat(fd, &st));
    struct guest_mapping items[] = {{.start = 16 * MIB,
                                     .end = 18 * MIB,
                                     .part_end = 18 * MIB,
                                     .dev = st.st_dev,
                                     .ino = st.st_ino},
                                    {.start = 32 * MIB,
                                     .end = 33 * MIB,
                                     .part_end = 33 * MIB,
                                     .offset = MIB,
                                     .dev = st.st_dev,
                                     .ino = st.st_ino}};
    const struct guest_mappings mappings = {items, 2};
    const struct guest_mapping *where;
    struct ibx_guest_block block = {
        .id = "mem1", .type = "memory-backend-file", .size = MIB, .offset = MIB};
    snprintf(block.path, sizeof(block.path), "%s", path);
    vm_soon();
    const int many = ibx_guest_block_locate(getpid(), &mappings, 0, &block, &where, &vm_error);
    int rc = ibx_guest_block_locate(getpid(), &mappings, 17 * MIB, &block, &where, &vm_error);
    unlink(path);
    close(fd);
    assert_int_equal(many, -ENOTUNIQ);
    assert_int_equal(rc, 0);
    assert_ptr_equal(where, &items[0]);
    assert_int_equal(block.address, 17 * MIB);
}

int main(void)
{
    static const struct vm_test tests[] = {VM_TEST(test_file),
                                           VM_TEST(test_long_name),
                                           VM_TEST(test_numa_memfd),
                                           VM_TEST(test_a_path_that_is_not_utf8),
                                           VM_TEST(test_directory),
                                           VM_TEST(test_offset),
                                           VM_TEST(test_in_the_middle_of_a_mapping),
                                           VM_TEST(test_private),
                                           VM_TEST(test_shared_without_a_file),
                                           VM_TEST(test_not_the_one),
                                           VM_TEST(test_read_only),
                                           VM_TEST(test_written),
                                           VM_TEST(test_written_since),
                                           VM_TEST(test_written_huge),
                                           VM_TEST(test_replaced),
                                           VM_TEST(test_without_the_right_to_look),
                                           {0}};
    return vm_tests(tests, vm_end_all);
}
