/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What may change guest RAM without being noticed, with simulated QEMUs (KVM, virtio-mem); and
 * pages that the kernel clears because it was told to drop them. */
#include "migrate/destination/destination.h"
#include "migrate/preflight/preflight.h"
#include "tests/fixtures/in_child.h"
#include "tests/fixtures/patience.h"
#include "tests/fixtures/unit.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define GENEROUS   patience_ms(20000)
#define LINE_BYTES 4096
#define PAGE       4096u

/* a QEMU with one vCPU and one device */
static struct fake {
    bool kvm;
    const char *feature; /* a feature of its processor */
    const char *device;  /* the device's type; NULL: no device */
    bool reports;        /* free-page-reporting */
    const char *registers;
    const char *negotiated; /* a feature of the device; NULL: unknown */
    const char *driver;     /* of a disk; NULL: no disk */
    int fd;
    pthread_t thread;
} fake;
static struct ibx_qmp *qmp;
static struct ibx_error error;

static json_t *result_of(const char *command, const json_t *arguments)
{
    const char *path = json_string_value(json_object_get(arguments, "path"));
    const char *property = json_string_value(json_object_get(arguments, "property"));
    if (!strcmp(command, "query-kvm"))
        return json_pack("{s:b, s:b}", "enabled", fake.kvm, "present", 1);
    if (!strcmp(command, "query-cpus-fast"))
        return json_pack("[{s:i, s:s}]", "cpu-index", 0, "qom-path", "/machine/cpu0");
    if (!strcmp(command, "human-monitor-command"))
        return json_string(fake.registers ? fake.registers : "unknown command");
    if (!strcmp(command, "qom-list") && fake.device && !strcmp(path, "/machine/peripheral"))
        return json_pack("[{s:s, s:s}]", "name", "one0", "type", fake.device);
    if (!strcmp(command, "qom-get") && !strcmp(property, "free-page-reporting"))
        return json_boolean(fake.reports);
    if (!strcmp(command, "x-query-virtio-status"))
        return fake.negotiated && !strcmp(path, "/machine/peripheral/one0/virtio-backend")
                   ? json_pack("{s:{s:[s, s], s:[]}}", "guest-features", "dev-features",
                               "VIRTIO_BALLOON_F_REPORTING: Page reporting VQ enabled",
                               fake.negotiated, "transports")
                   : NULL;
    if (!strcmp(command, "qom-get"))
        return !strcmp(path, "/machine/cpu0") && fake.feature
                   ? json_boolean(!strcmp(property, fake.feature))
                   : NULL;
    if (!strcmp(command, "query-named-block-nodes") && fake.driver)
        return json_pack("[{s:s, s:s}, {s:s, s:s}]", "node-name", "above", "drv", "raw",
                         "node-name", "below", "drv", fake.driver);
    return json_array(); /* neither devices nor disks */
}

static void answer(const char *line)
{
    json_t *command = json_loads(line, 0, NULL);
    const char *name = json_string_value(json_object_get(command, "execute"));
    const json_int_t id = json_integer_value(json_object_get(command, "id"));
    json_t *result = strcmp(name, "qmp_capabilities")
                         ? result_of(name, json_object_get(command, "arguments"))
                         : json_object();
    char *text = result ? json_dumps(result, JSON_ENCODE_ANY) : NULL;
    if (text)
        dprintf(fake.fd, "{\"return\": %s, \"id\": %lld}\n", text, (long long)id);
    else
        dprintf(fake.fd,
                "{\"error\": {\"class\": \"GenericError\", \"desc\": \"none\"}, \"id\": %lld}\n",
                id);
    free(text);
    json_decref(result);
    json_decref(command);
}

static void *fake_run(void *argument)
{
    char line[LINE_BYTES];
    FILE *in = fdopen(dup(fake.fd), "r");
    dprintf(fake.fd,
            "{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 0, \"minor\": 0, \"major\": 9}}, "
            "\"capabilities\": []}}\n");
    while (fgets(line, sizeof(line), in))
        answer(line);
    fclose(in);
    return argument;
}

static void begin(const struct fake *like)
{
    int pair[2];
    fake = *like;
    memset(&error, 0, sizeof(error));
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    fake.fd = pair[1];
    assert_int_equal(pthread_create(&fake.thread, NULL, fake_run, NULL), 0);
    assert_int_equal(ibx_qmp_attach(pair[0], ibx_deadline_in_ms(GENEROUS), &qmp, &error), 0);
}

static void end(void)
{
    ibx_qmp_close(qmp);
    pthread_join(fake.thread, NULL);
    close(fake.fd);
}

static int warm(const struct fake *like)
{
    const struct ibx_guest_ram none = {.pid = getpid()};
    begin(like);
    const int rc = ibx_preflight_warm(qmp, &none, NULL, ibx_deadline_in_ms(GENEROUS), &error);
    end();
    return rc;
}

static bool nests;

/* Like warm(), for reasons that pass, so that the tool may check again. */
static int warm_for_now(const struct fake *like)
{
    const struct ibx_guest_ram none = {.pid = getpid()};
    begin(like);
    const int rc = ibx_preflight_warm(qmp, &none, &nests, ibx_deadline_in_ms(GENEROUS), &error);
    end();
    return rc;
}

static void says(int rc, const char *words)
{
    assert_int_equal(rc, -EOPNOTSUPP);
    if (!strstr(error.message, words))
        fail_msg("\"%s\" is not in: %s", words, error.message);
}

/* Under KVM the processor writes pages of a nested VM, bypassing all page tables. */
static void test_a_vm_that_can_run_vms(NO_STATE)
{
    says(warm(&(struct fake){.kvm = true, .feature = "vmx"}), "vmx=off");
    says(warm(&(struct fake){.kvm = true, .feature = "svm"}), "its processor can run VMs (svm)");
    assert_int_equal(warm(&(struct fake){.kvm = true, .feature = "avx"}), 0);
    assert_int_equal(warm(&(struct fake){.kvm = true}), 0); /* a processor without either feature */
    assert_int_equal(warm(&(struct fake){.kvm = false, .feature = "svm"}), 0);
}

/* Block drivers that hand guest RAM to a device or to the host's kernel for good. */
static void test_disks_whose_writes_are_not_seen(NO_STATE)
{
    static const char *const unseen[] = {"nvme", "nvme-io_uring", "io_uring", "virtio-blk-vfio-pci",
                                         "virtio-blk-vhost-vdpa"};
    static const char *const seen[] = {"file", "host_device", "qcow2", "nbd", "vvfat"};
    for (size_t i = 0; i < sizeof(unseen) / sizeof(unseen[0]); i++) {
        says(warm(&(struct fake){.driver = unseen[i]}), "whose writes to guest RAM are not seen");
        assert_non_null(strstr(error.message, unseen[i]));
    }
    for (size_t i = 0; i < sizeof(seen) / sizeof(seen[0]); i++)
        assert_int_equal(warm(&(struct fake){.driver = seen[i]}), 0);
}

#define CPU(n, cr4, efer)                                                                          \
    "CPU#" n "\r\nEAX=00002000 EBX=00001000\r\nCR0=80050033 CR2=0 CR3=0 CR4=" cr4                  \
    "\r\nDR0=0 DR1=0\r\nEFER=" efer "\r\n"
#define PLAIN CPU("0", "00150ef0", "0000000000000d01")

/* This matters only while the guest uses it: a vCPU has CR4.VMXE or EFER.SVME set. */
static void test_a_vm_that_runs_no_vms_now(NO_STATE)
{
    struct fake like = {.kvm = true, .feature = "vmx", .registers = PLAIN PLAIN};
    assert_int_equal(warm_for_now(&like), 0);
    assert_true(nests);
    like.registers = PLAIN CPU("1", "00152ef0", "0000000000000d01");
    says(warm_for_now(&like), "runs VMs of its own (CR4.VMXE is on)");
    like.registers = PLAIN CPU("1", "00150ef0", "0000000000001d01");
    says(warm_for_now(&like), "runs VMs of its own (EFER.SVME is on)");
    like.registers = NULL;
    says(warm_for_now(&like), "does not tell whether its guest runs VMs");
    like.feature = "avx";
    assert_int_equal(warm_for_now(&like), 0);
    assert_false(nests);
}

static int gives_back(const struct fake *like)
{
    begin(like);
    const int rc = ibx_preflight_gives_back(qmp, "verbs", ibx_deadline_in_ms(GENEROUS), &error);
    end();
    return rc;
}

static void test_guest_that_gives_registered_pages_back(NO_STATE)
{
    says(gives_back(&(struct fake){.device = "child<virtio-mem-pci>"}),
         "device one0 (virtio-mem), and verbs registers its memory");
    says(gives_back(&(struct fake){.device = "child<virtio-balloon-pci>", .reports = true}),
         "device one0 (free-page-reporting)");
    assert_int_equal(gives_back(&(struct fake){.device = "child<virtio-balloon-pci>"}), 0);
    assert_int_equal(gives_back(&(struct fake){.device = "child<virtio-net-pci>"}), 0);
    assert_int_equal(gives_back(&(struct fake){.kvm = true, .feature = "vmx"}), 0);
}

static int wants_zeros(const struct fake *like)
{
    begin(like);
    const int rc = ibx_preflight_wants_zeros(qmp, ibx_deadline_in_ms(GENEROUS), &error);
    end();
    return rc;
}

/* Linux without init_on_free=1 clears a page only when it allocates it. */
static void test_guest_that_expects_zero_pages(NO_STATE)
{
    struct fake like = {.device = "child<virtio-balloon-pci>",
                        .reports = true,
                        .negotiated = "VIRTIO_BALLOON_F_STATS_VQ: Guest memory stats VQ available"};
    assert_int_equal(wants_zeros(&like), 0);
    like.negotiated = "VIRTIO_BALLOON_F_PAGE_POISON: Guest page poisoning enabled";
    says(wants_zeros(&like),
         "(init_on_free=1 or page_poison=1) and gives them back by device one0");
    like.negotiated = NULL;
    says(wants_zeros(&like), "QEMU does not tell whether the guest clears pages");
    like.reports = false;
    assert_int_equal(wants_zeros(&like), 0);
    assert_int_equal(wants_zeros(&(struct fake){.device = "child<virtio-net-pci>"}), 0);
}

/* The reason not to use minor mode, or "". */
static const char *against_minor(const struct fake *like, uint64_t page_size)
{
    static struct ibx_blockers blockers;
    struct ibx_guest_block block = {.id = "mem0", .size = 4 << 20, .page_size = page_size};
    const struct ibx_guest_ram ram = {.pid = getpid(), .count = 1, .blocks = &block};
    memset(&blockers, 0, sizeof(blockers));
    begin(like);
    ibx_preflight_minor(qmp, &ram, &blockers, ibx_deadline_in_ms(GENEROUS));
    end();
    return blockers.count ? blockers.reasons[0] : "";
}

static void test_huge_pages_that_are_given_back(NO_STATE)
{
    const struct fake balloon = {.device = "child<virtio-balloon-pci>"};
    text_has(against_minor(&balloon, 2 << 20),
             "mem0 has pages of 2097152 bytes, and device one0 (virtio-balloon-pci) may give");
    text_has(against_minor(&(struct fake){.device = "child<virtio-mem-pci>"}, 2 << 20),
             "without --minor");
    assert_string_equal(against_minor(&balloon, PAGE), "");
    assert_string_equal(against_minor(&(struct fake){.device = "child<virtio-net-pci>"}, 2 << 20),
                        "");
}

/* ---------------------------------------------------------------- dropping */

static bool clears; /* like the kernel with a part of a huge page that it cannot split */

int __real_fallocate64(int fd, int mode, off64_t from, off64_t length);
int __wrap_fallocate64(int fd, int mode, off64_t from, off64_t length);
int __wrap_fallocate64(int fd, int mode, off64_t from, off64_t length)
{
    static const char zeros[PAGE];
    if (!clears || !(mode & FALLOC_FL_PUNCH_HOLE))
        return __real_fallocate64(fd, mode, from, length);
    for (off64_t at = 0; at < length; at += PAGE)
        if (pwrite(fd, zeros, PAGE, from + at) != PAGE)
            return -1;
    return 0;
}

static void test_pages_that_stay(NO_STATE)
{
    static const char bytes[8 * PAGE] = {[0 ... 8 * PAGE - 1] = 7};
    struct destination_ram ram;
    struct ibx_page_map pages;
    ibx_destination_ram_init(&ram, false, 0);
    struct ibx_guest_block *block = ram.guest.blocks =
        calloc(1, sizeof(*block)); /* freed by fini */
    ram.guest.count = 1;
    *block = (struct ibx_guest_block){.size = sizeof(bytes), .page_size = PAGE};
    snprintf(block->id, sizeof(block->id), "mem0");
    block->fd = memfd_create("ram", MFD_CLOEXEC);
    assert_int_equal(pwrite(block->fd, bytes, sizeof(bytes), 0), sizeof(bytes));
    assert_int_equal(ibx_page_map_init_ram(&ram.map, &ram.guest, &error), 0);
    assert_int_equal(ibx_page_map_init_ram(&pages, &ram.guest, &error), 0);
    ibx_page_map_set(&pages, 2, 3);
    ibx_page_map_set(&pages, 7, 1);
    assert_int_equal(ibx_destination_ram_drop(&ram, &pages, &error), 0);
    assert_int_equal(lseek(block->fd, 2 * PAGE, SEEK_DATA), 5 * PAGE);
    assert_int_equal(pwrite(block->fd, bytes, sizeof(bytes), 0), sizeof(bytes));
    clears = true;
    assert_int_equal(ibx_destination_ram_drop(&ram, &pages, &error), -EBUSY);
    assert_non_null(strstr(error.message, "shmem_enabled"));
    clears = false;
    ibx_page_map_fini(&pages);
    close(block->fd);
    block->fd = -1;
    ibx_destination_ram_fini(&ram);
}

/* Another process may write to the file of guest RAM, which QEMU's mappings do not show. */
static void test_memory_that_another_process_has(NO_STATE)
{
    struct stat st;
    const int fd = memfd_create("ram", MFD_CLOEXEC);
    assert_int_equal(fstat(fd, &st), 0);
    struct ibx_guest_block block = {
        .id = "ram0", .path = "/dev/shm/web", .fd = fd, .dev = st.st_dev, .ino = st.st_ino};
    const struct ibx_guest_ram ram = {.pid = getppid(), .blocks = &block, .count = 1};
    const pid_t other = fork_bound();
    if (!other)
        for (;;)
            pause();
    begin(&(struct fake){0});
    says(
        ibx_preflight_warm(qmp, &ram, NULL, ibx_deadline_in_ms(GENEROUS), &error),
        "uses /dev/shm/web, the file of guest RAM ram0, too, and what it writes there is not seen: "
        "end that process");
    assert_int_equal(kill(other, SIGKILL), 0);
    assert_int_equal(waitpid(other, NULL, 0), other);
    assert_int_equal(ibx_preflight_warm(qmp, &ram, NULL, ibx_deadline_in_ms(GENEROUS), &error), 0);
    end();
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_vm_that_can_run_vms),
        cmocka_unit_test(test_a_vm_that_runs_no_vms_now),
        cmocka_unit_test(test_disks_whose_writes_are_not_seen),
        cmocka_unit_test(test_guest_that_gives_registered_pages_back),
        cmocka_unit_test(test_guest_that_expects_zero_pages),
        cmocka_unit_test(test_huge_pages_that_are_given_back),
        cmocka_unit_test(test_pages_that_stay),
        cmocka_unit_test(test_memory_that_another_process_has),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
