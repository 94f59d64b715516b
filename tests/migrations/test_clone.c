/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Children of a snapshot: their memory is the parent's at its freeze, and from then on their own.
 */
#include "tests/fixtures/clones.h"

#include <fcntl.h>
#include <unistd.h>

/* ---------------------------------------------------------------- of a snapshot */

static void test_of_a_snapshot(void)
{
    freeze();
    for (unsigned i = 0; i < 2; i++)
        child_of(&children[i], snapshot);
    for (unsigned i = 0; i < 2; i++)
        child_is_right(&children[i]);
    assert_false(vm_runs(&vms[0]));
    is_as_frozen(snapshot);
}

/* How many mappings of the snapshot's memory in this child are without a flag of smaps: dd, they
 * are left out of core dumps; mg, KSM may merge their pages. */
static unsigned without(const struct vm *child, const char *flag)
{
    char path[64], line[512], word[8];
    snprintf(word, sizeof(word), " %s", flag);
    bool ram = false, was = false;
    unsigned count = 0;
    snprintf(path, sizeof(path), "/proc/%d/smaps", (int)child->pid);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file)) {
        if (strstr(line, "-p ")) /* a private mapping begins */
            ram = strstr(line, "/ram.0") != NULL;
        if (ram && !strncmp(line, "VmFlags:", 8)) {
            count += !strstr(line, word);
            was = true;
        }
    }
    fclose(file);
    assert_true(was);
    return count;
}

/* How many mappings of the child's RAM are private memory without huge pages; there are others. */
static unsigned without_huge_pages(const struct vm *child)
{
    char path[64], line[512];
    unsigned long first = 0, start = 0, at, end;
    bool anonymous = false;
    unsigned found = 0, count = 0;
    snprintf(path, sizeof(path), "/proc/%d/smaps", (int)child->pid);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file)) {
        if (sscanf(line, "%lx-%lx ", &at, &end) == 2) {
            start = at;
            first = !first && strstr(line, "/ram.0") ? start : first;
            anonymous = strstr(line, " 00:00 0 ") != NULL;
        } else if (anonymous && first && start - first < 64ul << 20 &&
                   !strncmp(line, "VmFlags:", 8)) {
            found++;
            count += !strstr(line, " hg");
        }
    }
    fclose(file);
    assert_true(found > 0);
    return count;
}

/* QEMU wants huge pages for its RAM. Parts of zeros can have them. */
static void test_parts_of_zeros_may_have_huge_pages(void)
{
    if (access("/sys/kernel/mm/transparent_hugepage", F_OK))
        skip();
    freeze();
    child_of(&children[0], snapshot);
    assert_int_equal(without_huge_pages(&children[0]), 0);
    child_is_right(&children[0]);
}

/* By dump=off of the backend, or dump-guest-core=off of the machine, which is its default; and by
 * merge and mem-merge, where the kernel has KSM. */
static void test_memory_is_dumped_and_merged_as_qemu_was_told(void)
{
    freeze();
    child_start(&children[0],
                (const char *[]){"-machine", "dump-guest-core=off,mem-merge=off", NULL});
    MOVER_RUN(0, "clone", snapshot, "--qmp", children[0].tool);
    assert_int_equal(without(&children[0], "dd"), 0);
    const unsigned unmerged = without(&children[0], "mg");
    assert_true(unmerged > 0);
    child_is_right(&children[0]);
    child_of(&children[1], snapshot);
    assert_true(without(&children[1], "dd") > 0);
    assert_int_equal(without(&children[1], "mg"),
                     access("/sys/kernel/mm/ksm", F_OK) ? unmerged : 0);
}

/* The kernel would keep it with the file, for all children at once. */
static void test_a_numa_policy_is_said_to_have_no_effect(void)
{
    freeze();
    vm_start(&children[0], &(struct vm_options){.append = MIB,
                                                .ram = PRIVATE ",policy=bind,host-nodes=0",
                                                .incoming = true});
    struct mover *clone = MOVER_RUN(0, "clone", snapshot, "--qmp", children[0].tool);
    mover_must_print(clone, "the NUMA policy of memory backend mem0 (policy=bind) has no effect");
    child_is_right(&children[0]);
    child_start(&children[1], NULL);
    clone = MOVER_RUN(0, "clone", snapshot, "--qmp", children[1].tool);
    assert_false(mover_printed(clone, "NUMA"));
}

/* The parent's lines of serial output up to where the child goes on. */
static void parent_until(const struct vm *child, struct vm *before)
{
    char line[256], first[256] = "";
    unsigned from = 0, count;
    *before = (struct vm){.pid = 0};
    snprintf(before->serial, sizeof(before->serial), "%s/before", mover_folder);
    FILE *theirs = fopen(child->serial, "re"), *in = fopen(vms[0].serial, "re"),
         *out = fopen(before->serial, "we");
    assert_true(theirs && in && out);
    /* The first line may be the end of one that the parent had begun. */
    while (!from && fgets(first, sizeof(first), theirs))
        sscanf(first, "beat %*u %x", &from);
    while (fgets(line, sizeof(line), in) &&
           (sscanf(line, "beat %*u %x", &count) != 1 || count < from))
        fputs(line, out);
    fclose(theirs);
    fclose(in);
    fclose(out);
}

/* The parent runs on, and has written much since its freeze. */
static void test_of_a_vm_that_runs_on(void)
{
    struct vm before;
    mover_begin();
    vm_start(&vms[0], &(struct vm_options){.append = MIB});
    vm_wait_beats(&vms[0], 2);
    snprintf(snapshot, sizeof(snapshot), "%s/snapshot", mover_folder);
    MOVER_RUN(0, "freeze", snapshot, "--qmp", vms[0].tool, "--resume");
    vm_wait_beats(&vms[0], vm_beats(&vms[0]) + 4);
    child_of(&children[0], snapshot);
    vm_wait_beats(&children[0], 4);
    mover_heartbeats((const struct vm *[]){&vms[0], NULL}, MIB);
    parent_until(&children[0], &before);
    mover_heartbeats((const struct vm *[]){&before, &children[0], NULL}, MIB);
}

/* One command starts the QEMU and makes it a child. */
static void test_command(void)
{
    char monitor[160], serial[200];
    struct vm child = {.pid = 0};
    int pid;
    freeze();
    snprintf(monitor, sizeof(monitor), "%s/child.qmp", mover_folder);
    snprintf(child.serial, sizeof(child.serial), "%s/serial", mover_folder);
    snprintf(serial, sizeof(serial), "file:%s", child.serial);
#define COMMAND(smp)                                                                               \
    "clone", snapshot, "--qmp", monitor, "--json", "--name", "web-1", "--", getenv("QEMU"), "-M",  \
        "q35", "-accel", vm_accel(), "-bios", vm_bios(), "-m", "64", "-nodefaults", "-display",    \
        "none", "-no-reboot", "-smp", smp, "-serial", serial, "-object", PRIVATE, "-machine",      \
        "memory-backend=mem0", "-kernel", getenv("GUEST_ELF")
    /* The child does not fit: nothing is left of it. */
    mover_must_print(MOVER_RUN(1, COMMAND("2")), "cannot become a child");
    assert_int_equal(access(monitor, F_OK), -1);
    struct mover *done = MOVER_RUN(0, COMMAND("1"));
    FILE *file = fopen(done->out, "re");
    char line[1024];
    assert_true(file && fgets(line, sizeof(line), file));
    fclose(file);
    assert_int_equal(sscanf(strstr(line, "\"pid\":"), "\"pid\":%d", &pid), 1);
    started = pid;
    vm_wait_beats(&child, 3);
    mover_heartbeats((const struct vm *[]){&vms[0], &child, NULL}, MIB);
    mover_must_print(MOVER_RUN(1, COMMAND("1")), "is there already");
    /* The monitor that appears there belongs to another QEMU, which is left alone. */
    char script[400], stolen[200];
    child_start(&children[0], NULL);
    snprintf(stolen, sizeof(stolen), "%s/stolen.qmp", mover_folder);
    snprintf(script, sizeof(script), "ln -s %s %s; sleep 1000; :", children[0].tool, stolen);
    mover_must_print(
        MOVER_RUN(1, "clone", snapshot, "--qmp", stolen, "--", "/bin/sh", "-c", script),
        "is that of another QEMU");
    assert_int_equal(access(stolen, F_OK), 0);
    MOVER_RUN(0, "clone", snapshot, "--qmp", children[0].tool);
}

/* Two of them by two monitors: the second one would take the memory of the first one's child. */
static void test_two_in_one_qemu(void)
{
    struct mover first = {0};
    char monitor[160], qmp[200];
    freeze();
    snprintf(monitor, sizeof(monitor), "%s/other.qmp", mover_folder);
    snprintf(qmp, sizeof(qmp), "unix:%s,server=on,wait=off", monitor);
    child_start(&children[0], (const char *[]){"-qmp", qmp, NULL});
    mover_stop_next("clone:mapped");
    mover_start(&first, (const char *[]){"clone", snapshot, "--qmp", children[0].tool, NULL});
    mover_await_stop(&first);
    mover_must_print(MOVER_RUN(1, "clone", snapshot, "--qmp", monitor),
                     "another ib-migrate is making a child of this QEMU");
    mover_kill(&first, SIGCONT);
    mover_ends(&first, 0);
    mover_must_print(MOVER_RUN(1, "clone", snapshot, "--qmp", monitor), "cannot become a child");
    child_is_right(&children[0]);
}

static void test_refused(void)
{
    freeze();
    vm_start(&children[0], &(struct vm_options){.append = MIB, .incoming = true});
    mover_must_print(MOVER_RUN(1, "clone", snapshot, "--qmp", children[0].tool),
                     "memory backend mem0 is shared, but a child's memory must be private");
    vm_end(&children[0]);
    vm_start(&children[0], &(struct vm_options){.append = MIB, .ram = PRIVATE});
    mover_must_print(MOVER_RUN(1, "clone", snapshot, "--qmp", children[0].tool),
                     "start it with -incoming defer");
    assert_true(vm_runs(&children[0]));
    vm_end(&children[0]);
    vm_start(&children[0],
             &(struct vm_options){.append = MIB, .ram = PRIVATE, .incoming = true, .two = true});
    mover_must_print(MOVER_RUN(1, "clone", snapshot, "--qmp", children[0].tool),
                     "cannot become a child (\"here\" is the snapshot's VM");
    vm_end(&children[0]);
    child_start(&children[0], NULL);
    vm_do(&children[0], "migrate-incoming", json_pack("{s:s}", "uri", "tcp:127.0.0.1:0"));
    mover_must_print(MOVER_RUN(1, "clone", snapshot, "--qmp", children[0].tool),
                     "listens for a migration of its own");
    vm_end(&children[0]);
    child_start(&children[0], (const char *[]){"-overcommit", "mem-lock=on", NULL});
    mover_must_print(MOVER_RUN(1, "clone", snapshot, "--qmp", children[0].tool),
                     "without -overcommit mem-lock");
    mover_must_print(MOVER_RUN(1, "serve", cache, "--cache", "tcp://127.0.0.1:1"), "refused");
    assert_int_equal(access(cache, F_OK), -1);
}

/* Firecracker's memory file can be served and cached as a snapshot is, but no QEMU continues it. */
static void test_of_a_memory_file(void)
{
    char memory[200];
    freeze();
    snprintf(memory, sizeof(memory), "%s/memory", mover_folder);
    const int fd = open(memory, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, 64 << 20), 0);
    close(fd);
    SERVE(&server, memory, "--listen", "tcp://127.0.0.1:0");
    child_start(&children[0], NULL);
    mover_must_print(MOVER_RUN(1, "clone", server.uri, "--qmp", children[0].tool),
                     "is the memory file of a Firecracker snapshot");
    SERVE(&filler, cache, "--cache", server.uri);
    mover_must_print(MOVER_RUN(1, "clone", cache, "--qmp", children[0].tool),
                     "is the memory file of a Firecracker snapshot");
}

/* ---------------------------------------------------------------- identities */

static void id_of(struct vm *vm, uint8_t id[16])
{
    json_t *result = vm_run(vm, "query-vm-generation-id", NULL);
    const char *text = json_string_value(json_object_get(result, "guid"));
    unsigned part[16], n = 0;
    for (; n < 16 && text && *text; text += *text == '-' ? 1 : 2)
        if (*text != '-')
            assert_int_equal(sscanf(text, "%2x", &part[n++]), 1);
    assert_int_equal(n, 16);
    /* As ACPI has it: the first three numbers little-endian. */
    static const unsigned order[16] = {3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15};
    for (unsigned i = 0; i < 16; i++)
        id[i] = (uint8_t)part[order[i]];
    json_decref(result);
}

/* Whether these bytes are in the guest's memory, as the guest sees it. */
static bool guest_has(struct vm *vm, const uint8_t id[16])
{
    static uint8_t memory[VM_RAM_MIB << 20];
    char path[160];
    snprintf(path, sizeof(path), "%s/memory", mover_folder);
    vm_do(vm, "pmemsave",
          json_pack("{s:i, s:i, s:s}", "val", 0, "size", (int)sizeof(memory), "filename", path));
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    assert_int_equal(fread(memory, 1, sizeof(memory), file), sizeof(memory));
    fclose(file);
    unlink(path);
    return memmem(memory, sizeof(memory), id, 16) != NULL;
}

/* The table of ib-migrate(1), "Identities". */
static void test_identities(void)
{
    uint8_t parent[16], child[16];
    static const char uuid[] = "6d1e0a35-2c5b-4ed2-8f14-0123456789ab";
    struct vm_options options = {.append = MIB " host=1",
                                 .extra = {"-device", "vmgenid,guid=auto", "-fw_cfg",
                                           "name=opt/ibx/host,string=parent", "-name", "web",
                                           "-uuid", "6d1e0a35-2c5b-4ed2-8f14-000000000000"}};
    vm_needs_seabios("place for the identity of vmgenid");
    freeze_like(&options);
    assert_true(vm_printed(&vms[0], "host parent\n"));
    id_of(&vms[0], parent);
    options.incoming = true;
    options.ram = PRIVATE;
    options.extra[3] = "name=opt/ibx/host,string=child-1";
    options.extra[5] = "web-1";
    options.extra[7] = uuid;
    vm_start(&children[0], &options);
    MOVER_RUN(0, "clone", snapshot, "--qmp", children[0].tool);
    child_is_right(&children[0]);
    assert_true(vm_printed(&children[0], "host child-1\n"));
    id_of(&children[0], child);
    assert_memory_not_equal(parent, child, sizeof(child));
    assert_true(guest_has(&children[0], child));
    assert_false(guest_has(&children[0], parent));
    json_t *is = vm_run(&children[0], "query-uuid", NULL);
    assert_string_equal(json_string_value(json_object_get(is, "UUID")), uuid);
    json_decref(is);
}

/* A TPM of its own for this VM. */
static void tpm_options(unsigned number, char chardev[256], struct vm_options *options)
{
    char command[512];
    snprintf(command, sizeof(command),
             "mkdir %s/tpm%u && swtpm socket --tpm2 --tpmstate dir=%s/tpm%u --ctrl "
             "type=unixio,path=%s/tpm%u/s --daemon --terminate",
             mover_folder, number, mover_folder, number, mover_folder, number);
    assert_int_equal(system(command), 0);
    snprintf(chardev, 256, "socket,id=c,path=%s/tpm%u/s", mover_folder, number);
    const char *const more[] = {"-chardev", chardev,           "-tpmdev", "emulator,id=t,chardev=c",
                                "-device",  "tpm-crb,tpmdev=t"};
    memcpy(options->extra, more, sizeof(more));
}

/* The TPM behaves as the manual says, and users of freeze and of clone are told so. */
static void test_tpm(void)
{
    static char chardevs[2][256];
    char command[256];
    struct vm_options options = {.append = MIB};
    if (system("command -v swtpm >/dev/null"))
        skip();
    mover_begin();
    tpm_options(0, chardevs[0], &options);
    vm_start(&vms[0], &options);
    vm_wait_beats(&vms[0], 2);
    snprintf(snapshot, sizeof(snapshot), "%s/snapshot", mover_folder);
    mover_must_print(MOVER_RUN(0, "freeze", snapshot, "--qmp", vms[0].tool), "this VM has a TPM");
    options.incoming = true;
    options.ram = PRIVATE;
    tpm_options(1, chardevs[1], &options);
    vm_start(&children[0], &options);
    mover_must_print(MOVER_RUN(0, "clone", snapshot, "--qmp", children[0].tool),
                     "has its parent's TPM");
    child_is_right(&children[0]);
    snprintf(command, sizeof(command), "cd %s && cmp tpm0/tpm2-00.permall tpm1/tpm2-00.permall",
             mover_folder);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    static const struct vm_test tests[] = {
        VM_TEST(test_of_a_vm_that_runs_on),
        VM_TEST(test_command),
        VM_TEST(test_identities),
        VM_TEST(test_tpm),
        VM_TEST(test_of_a_snapshot),
        VM_TEST(test_memory_is_dumped_and_merged_as_qemu_was_told),
        VM_TEST(test_parts_of_zeros_may_have_huge_pages),
        VM_TEST(test_a_numa_policy_is_said_to_have_no_effect),
        VM_TEST(test_two_in_one_qemu),
        VM_TEST(test_refused),
        VM_TEST(test_of_a_memory_file),
        {0},
    };
    return vm_tests(tests, clones_end);
}
