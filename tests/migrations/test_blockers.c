/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Every reason against a move: with real QEMUs if these can have it, otherwise with made-up
 * answers. */
#include "migrate/preflight/preflight.h"
#include "tests/fixtures/denied_call.h"
#include "tests/fixtures/vm.h"

#include "common/clock.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#define MIB (1ull << 20)

static struct vm vm;
static struct ibx_blockers blockers;

static bool says(const char *words)
{
    for (size_t i = 0; i < blockers.count && i < IBX_BLOCKERS_MAX; i++) {
        if (strstr(blockers.reasons[i], words))
            return true;
    }
    return false;
}

static void show(void)
{
    for (size_t i = 0; i < blockers.count && i < IBX_BLOCKERS_MAX; i++)
        print_error("refused: %s\n", blockers.reasons[i]);
}

/* Exactly one reason, with these words; NULL: none. */
static void only(const char *words)
{
    if (blockers.count != (words ? 1 : 0) || (words && !says(words))) {
        show();
        fail_msg("%zu blockers, wanted: %s", blockers.count, words ? words : "none");
    }
    memset(&blockers, 0, sizeof(blockers));
}

static void look(enum ibx_migrate_role role)
{
    struct ibx_guest_ram ram;
    memset(&blockers, 0, sizeof(blockers));
    vm_ok(ibx_guest_ram_find(vm.qmp, true, &ram, vm_soon(), &vm_error));
    vm_ok(ibx_preflight_side(vm.qmp, &ram, role, &blockers, vm_soon(), &vm_error));
    ibx_guest_ram_fini(&ram);
}

static void look_only(enum ibx_migrate_role role, const char *words)
{
    look(role);
    only(words);
}

/* ------------------------------------------------------------ with QEMU */

#define DISCARDED "memory-backend-file,id=mem0,size=64M,mem-path=/dev/shm,share=on,discard-data=on"

/* The one blocker of each QEMU, or none. */
static void test_one_side(void)
{
    static const struct {
        struct vm_options options;
        enum ibx_migrate_role role;
        const char *words;
    } rows[] = {
        {{.extra = {"-device", "virtio-rng-pci", "-netdev", "hubport,id=n0,hubid=0", "-device",
                    "virtio-net-pci,netdev=n0,romfile="}},
         IBX_MIGRATE_SOURCE,
         NULL},
        {{.incoming = true}, IBX_MIGRATE_DESTINATION, NULL},
        {{0},
         IBX_MIGRATE_DESTINATION,
         "this QEMU is running and does not wait for a VM: start it with -incoming defer"},
        {{.incoming = true}, IBX_MIGRATE_SOURCE, "send from the one that runs it"},
        {{.ram = ""},
         IBX_MIGRATE_SOURCE,
         "guest RAM pc.ram (memory-backend-ram, 64 MiB) is private to QEMU"},
        {{.ram = "memory-backend-file,id=mem0,size=64M,mem-path=/dev/shm,share=off"},
         IBX_MIGRATE_SOURCE,
         "guest RAM mem0 (memory-backend-file, 64 MiB) is private to QEMU: start it with -object "
         "memory-backend-file,id=mem0,size=64M,mem-path=/dev/shm/vm/NAME,share=on -machine "
         "memory-backend=mem0, after install -d -m 700 /dev/shm/vm (libvirt"},
        /* The object alone, without -machine memory-backend=mem0: QEMU does not use it. */
        {{.ram = "",
          .extra = {"-object", "memory-backend-file,id=mem0,size=64M,mem-path=/dev/shm,share=on"}},
         IBX_MIGRATE_SOURCE,
         "id=pc.ram,size=64M,mem-path=/dev/shm/vm/NAME,share=on -machine memory-backend=pc.ram, "},
        {{.extra = {"-m", "64M,slots=1,maxmem=1G", "-object",
                    "memory-backend-ram,id=more,size=128M", "-device", "pc-dimm,memdev=more"}},
         IBX_MIGRATE_SOURCE,
         "start it with -object memory-backend-file,id=more,size=128M,mem-path=/dev/shm/vm/NAME,"
         "share=on, after"},
        {{.ram = DISCARDED, .incoming = true}, IBX_MIGRATE_DESTINATION, NULL},
        /* Some KVMs cannot have all that QEMU's "max" has. */
        {{.accel = "tcg", .extra = {"-only-migratable", "-cpu", "max"}}, IBX_MIGRATE_SOURCE, NULL},
        {{.accel = "tcg", .extra = {"-icount", "shift=7"}}, IBX_MIGRATE_SOURCE, NULL},
        {{.accel = "tcg", .extra = {"-icount", "shift=7,rr=record,rrfile=/dev/null"}},
         IBX_MIGRATE_SOURCE,
         "(-icount rr=record), and would end by an assertion when it migrates"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        print_message("row %zu\n", i);
        vm_start(&vm, &rows[i].options);
        look_only(rows[i].role, rows[i].words);
        vm_end(&vm);
    }
}

/* As -incoming tcp:... on the command line, and as libvirt has QEMU listen, which its tool knows.
 */
static void test_listening_by_itself(void)
{
    static const struct {
        const char *uri, *words;
        bool managed;
    } rows[] = {
        {"tcp:127.0.0.1:0", "takes no other one: start it with -incoming defer", false},
        {"tcp:127.0.0.1:0", "give virsh migrate --migrateuri unix://PATH", true},
        {NULL, "one that libvirt has listen there needs --libvirt /tmp/ibx-listens-", false},
        {NULL, NULL, true}};
    char folder[] = "/tmp/ibx-listens-XXXXXX", uri[64], path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/in", folder);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct ibx_guest_ram ram;
        print_message("row %zu\n", i);
        memset(&blockers, 0, sizeof(blockers));
        blockers.managed = rows[i].managed;
        snprintf(uri, sizeof(uri), "%s%s",
                 rows[i].uri ? rows[i].uri : "unix:", rows[i].uri ? "" : path);
        vm_start(&vm, &(struct vm_options){.incoming = true});
        vm_do(&vm, "migrate-incoming", json_pack("{s:s}", "uri", uri));
        vm_ok(ibx_guest_ram_find(vm.qmp, true, &ram, vm_soon(), &vm_error));
        vm_ok(ibx_preflight_side(vm.qmp, &ram, IBX_MIGRATE_DESTINATION, &blockers, vm_soon(),
                                 &vm_error));
        ibx_guest_ram_fini(&ram);
        only(rows[i].words);
        vm_end(&vm);
    }
    unlink(path);
    assert_int_equal(rmdir(folder), 0);
}

/* QEMU does not say from which address it reads. */
static void test_reading_by_itself(void)
{
    int ends[2];
    char incoming[32], words[96];
    assert_int_equal(pipe(ends), 0);
    snprintf(incoming, sizeof(incoming), "fd:%d", ends[0]);
    snprintf(words, sizeof(words),
             "this QEMU was started with -incoming %s, and takes no other migration: start it with "
             "-incoming defer",
             incoming);
    vm_start(&vm, &(struct vm_options){.extra = {"-incoming", incoming}});
    close(ends[0]);
    look_only(IBX_MIGRATE_DESTINATION, words);
    vm_end(&vm);
    close(ends[1]);
}

/* Its QEMU empties the file when it ends, with pages in it that the VM still needs. */
static void test_ram_that_is_discarded(void)
{
    vm_start(&vm, &(struct vm_options){.ram = DISCARDED});
    look_only(IBX_MIGRATE_SOURCE, "guest RAM mem0 has discard-data=on, so that it is lost");
    vm_do(&vm, "qom-set",
          json_pack("{s:s,s:s,s:b}", "path", "/objects/mem0", "property", "discard-data", "value",
                    0));
    look_only(IBX_MIGRATE_SOURCE, NULL);
}

/* A user who can read the file has the VM's memory; a folder that others cannot enter prevents
 * that. */
static void test_ram_that_others_reach(void)
{
    static const struct {
        mode_t file, folder;
        uid_t owner, folder_owner;
        const char *words;
    } rows[] = {
        {0600, 0755, 0, 0, NULL},
        {0644, 0755, 0, 0, "whose mode 0644 lets other users read the VM's memory: chmod 600"},
        {0602, 0755, 0, 0, "whose mode 0602 lets other users change"},
        {0640, 0755, 0, 0, "whose mode 0640 lets other users read"},
        {0666, 0700, 0, 0, NULL},
        {0644, 0750, 0, 0, "lets other users read"}, /* the group can enter, and then is an other */
        {0604, 0750, 0, 0, NULL},
        {0600, 0755, 12345, 0, "belongs to user 12345 and neither to QEMU's (0) nor to root"},
        {0644, 0700, 0, 12345, "whose mode 0644 lets other users read"}, /* its owner can enter */
    };
    char folder[] = "/dev/shm/ibx-vm-folder-XXXXXX", file[64], second[64], ram[160];
    assert_non_null(mkdtemp(folder));
    snprintf(file, sizeof(file), "%s/ram", folder);
    snprintf(ram, sizeof(ram), "memory-backend-file,id=mem0,size=64M,mem-path=%s,share=on", file);
    vm_start(&vm, &(struct vm_options){.ram = ram});
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        print_message("row %zu\n", i);
        assert_int_equal(chown(file, rows[i].owner, 0), 0);
        assert_int_equal(chmod(file, rows[i].file), 0);
        assert_int_equal(chown(folder, rows[i].folder_owner, 0), 0);
        assert_int_equal(chmod(folder, rows[i].folder), 0);
        look_only(IBX_MIGRATE_SOURCE, rows[i].words);
    }
    /* By its other name everybody reaches it. */
    assert_int_equal(chown(folder, 0, 0), 0);
    snprintf(second, sizeof(second), "%s-second", folder);
    look_only(IBX_MIGRATE_SOURCE, NULL);
    assert_int_equal(link(file, second), 0);
    look_only(IBX_MIGRATE_SOURCE, "whose mode 0644 lets other users read");
    unlink(second);
    vm_end(&vm);
    unlink(file);
    rmdir(folder);
}

static void test_blocked(void)
{
    vm_start(&vm, &(struct vm_options){
                      .extra = {"-object",
                                "memory-backend-file,id=shared,size=1M,mem-path=/dev/shm,"
                                "share=on",
                                "-device", "ivshmem-plain,memdev=shared,master=off"}});
    look(IBX_MIGRATE_SOURCE);
    if (!says("QEMU itself cannot migrate this VM (Migration is disabled when using feature 'peer"))
        fail_msg("the blocker of ivshmem is not named");
}

static struct ibx_settings set_for_a_migration(void)
{
    struct ibx_settings settings;
    vm_ok(ibx_settings_plan(vm.qmp, &settings, vm_soon(), &vm_error));
    vm_ok(ibx_settings_set(vm.qmp, &settings, vm_soon(), &vm_error));
    return settings;
}

/* Held before the switch-over, then moved away, by somebody else. */
static void test_migrating_already(void)
{
    vm_start(&vm, &(struct vm_options){0});
    struct ibx_settings settings = set_for_a_migration();
    ibx_settings_fini(&settings);
    vm_set_capability(&vm, "pause-before-switchover", true);
    vm_do(&vm, "migrate", json_pack("{s:s}", "uri", "exec:cat >/dev/null"));
    json_decref(vm_event(&vm, "MIGRATION", "pre-switchover"));
    look(IBX_MIGRATE_SOURCE);
    if (!says("a migration of this QEMU is under way already (pre-switchover)")) {
        show();
        fail_msg("not refused");
    }
    vm_do(&vm, "migrate-continue", json_pack("{s:s}", "state", "pre-switchover"));
    json_decref(vm_event(&vm, "MIGRATION", "completed"));
    /* The event comes a little before the state. */
    uint64_t deadline = vm_soon();
    do {
        look(IBX_MIGRATE_SOURCE);
    } while (says("state finish-migrate") && ibx_now_ns() < deadline);
    assert_true(says("the VM is in state postmigrate"));
    only("if it was paused and stayed here, cont lets it run, and stop pauses it; if it was frozen "
         "(ib-migrate freeze), cont lets it run on, with overlays of its disks");
}

/* Nothing has moved: the operator is told how the VM runs again. */
static void test_shut_down(void)
{
    vm_start(&vm, &(struct vm_options){.append = "button=1", .extra = {"-no-shutdown"}});
    vm_await_words(&vm, "beat 0 00000003");
    vm_do(&vm, "system_powerdown", NULL);
    json_decref(vm_event(&vm, "STOP", NULL));
    look(IBX_MIGRATE_SOURCE);
    only("the VM is in state shutdown, but must run or be paused to migrate: boot it anew (");
}

static void test_ended(void)
{
    struct ibx_guest_ram ram = {.pid = 1 << 22};
    memset(&blockers, 0, sizeof(blockers));
    ibx_preflight_permissions(&ram, &blockers);
    assert_true(says("has ended"));
    memset(&blockers, 0, sizeof(blockers));
}

/* What a child that has become another user finds out about its parent, or, with `own`, about the
 * QEMU. False: it could not become that user. */
static bool found_by(bool (*become)(void), bool own)
{
    struct ibx_guest_ram ram;
    vm_ok(ibx_guest_ram_find(vm.qmp, true, &ram, vm_soon(), &vm_error));
    int pair[2];
    assert_int_equal(pipe(pair), 0);
    pid_t child = fork();
    if (!child) {
        memset(&blockers, 0, sizeof(blockers));
        if (!own)
            ram.pid = getppid();
        if (!become())
            _exit(1);
        ibx_preflight_permissions(&ram, &blockers);
        (void)!write(pair[1], &blockers, sizeof(blockers));
        _exit(0);
    }
    close(pair[1]);
    char *to = (char *)&blockers;
    for (ssize_t n; (n = read(pair[0], to, sizeof(blockers))) > 0;)
        to += n;
    close(pair[0]);
    ibx_guest_ram_fini(&ram);
    return to == (char *)(&blockers + 1);
}

static bool nobody(void)
{
    return !setgid(65534) && !setuid(65534);
}

/* As a user who may neither trace QEMU nor open the device. */
static void test_missing_permissions(void)
{
    vm_start(&vm, &(struct vm_options){.incoming = true});
    assert_true(found_by(nobody, false));
    only("or set sysctl kernel.yama.ptrace_scope=0 and run it as QEMU's user (where that is 3, "
         "nobody may");
}

/* It answers as a kernel without userfaultfd(2) does. */
static bool of_a_profile(void)
{
    return deny_call(SYS_userfaultfd, ENOSYS);
}

static bool without_pidfd_open(void)
{
    return deny_call(SYS_pidfd_open, EPERM);
}

static bool without_pidfd_getfd(void)
{
    return deny_call(SYS_pidfd_getfd, EPERM);
}

static bool as_by_a_kernel_without_pidfd_getfd(void)
{
    return deny_call(SYS_pidfd_getfd, ENOSYS);
}

/* Not even root may call it then. */
static void test_a_profile_without_pidfd(void)
{
    vm_start(&vm, &(struct vm_options){.incoming = true});
    if (!found_by(without_pidfd_open, true))
        skip();
    only("a seccomp profile denies pidfd_open (Operation not permitted) to this process");
    assert_true(found_by(without_pidfd_getfd, true));
    only("a seccomp profile denies pidfd_getfd (Operation not permitted) to this process");
    assert_true(found_by(as_by_a_kernel_without_pidfd_getfd, true));
    only("a seccomp profile denies pidfd_getfd (Function not implemented) to this process");
}

/* Such a kernel has no sysctl for userfaultfd, either. */
static bool of_a_kernel_without(void)
{
    return !unshare(CLONE_NEWNS) && !mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) &&
           !mount("none", "/proc/sys/vm", "tmpfs", 0, NULL) && of_a_profile();
}

/* No right helps then; and what is forbidden to the tool need not be forbidden to QEMU. */
static void test_a_kernel_without_userfaultfd(void)
{
    vm_start(&vm, &(struct vm_options){.incoming = true});
    if (!found_by(of_a_profile, true))
        skip();
    only(NULL);
    if (!found_by(of_a_kernel_without, true))
        skip();
    assert_false(says("root"));
    only("no userfaultfd can be made in QEMU (process ");
}

/* ------------------------------------------------------------ with made-up answers */

struct answer {
    const char *asked, *json;
};

struct liar {
    int fd;
    const struct answer *answers;
    pthread_t thread;
};

static const char *member_of(const char *json)
{
    return strncmp(json, "{\"class\"", 8) ? "return" : "error";
}

static void *liar_run(void *argument)
{
    struct liar *liar = argument;
    FILE *in = fdopen(dup(liar->fd), "r");
    char line[4096];
    dprintf(liar->fd, "{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 0, \"minor\": 0, "
                      "\"major\": 9}}, \"capabilities\": []}}\n");
    while (fgets(line, sizeof(line), in)) {
        const char *json = "{}", *id = strstr(line, "\"id\":");
        for (const struct answer *a = liar->answers; a->asked; a++)
            json = strstr(line, a->asked) ? a->json : json;
        if (strstr(line, "qom-list") && !strcmp(json, "{}"))
            json = "[]";
        dprintf(liar->fd, "{\"%s\": %s, \"id\": %lld}\n", member_of(json), json,
                id ? atoll(id + 5) : 0);
    }
    fclose(in);
    return NULL;
}

static void devices_of(const struct ibx_blockers *asked, const struct answer *answers)
{
    int pair[2];
    struct liar liar = {.answers = answers};
    struct ibx_qmp *qmp;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    liar.fd = pair[1];
    assert_int_equal(pthread_create(&liar.thread, NULL, liar_run, &liar), 0);
    vm_ok(ibx_qmp_attach(pair[0], vm_soon(), &qmp, &vm_error));
    blockers = *asked;
    vm_ok(ibx_preflight_devices(qmp, &blockers, vm_soon(), &vm_error));
    ibx_qmp_close(qmp);
    pthread_join(liar.thread, NULL);
    close(pair[1]);
}

static void devices(const struct answer *answers)
{
    static const struct ibx_blockers nothing;
    devices_of(&nothing, answers);
}

/* Neither freeze, clone nor return has the option that would help others. */
static void test_devices_where_nothing_helps(void)
{
    static const struct ibx_blockers asked[] = {{.snapshot = true}, {.returns = true}};
    for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]); i++) {
        devices_of(&asked[i],
                   (const struct answer[]){
                       {"peripheral\"", "[{\"name\": \"fs\", \"type\": \"child<vhost-user-fs>\"}]"},
                       {"info network", "\" \\\\ net0: index=0,type=vhost-user,fd=12\\r\\n\""},
                       {0}});
        assert_int_equal(blockers.count, 2);
        assert_null(strstr(blockers.reasons[0], "--stand-still"));
        assert_null(strstr(blockers.reasons[1], "--stand-still"));
    }
    memset(&blockers, 0, sizeof(blockers));
}

static void test_devices(void)
{
    devices((const struct answer[]){{"peripheral\"",
                                     "[{\"name\": \"gpu\", \"type\": \"child<vfio-pci>\"},"
                                     " {\"name\": \"nic\", \"type\": \"child<virtio-net-pci>\"},"
                                     " {\"name\": \"type\", \"type\": \"string\"}]"},
                                    {0}});
    only("device gpu (vfio-pci) accesses guest RAM without QEMU, and would read pages that are "
         "not there yet: unplug it (device_del gpu) first");
    devices((const struct answer[]){
        {"peripheral-anon", "[{\"name\": \"device[0]\", \"type\": \"child<vhost-user-fs-pci>\"}]"},
        {0}});
    only("device device[0] (vhost-user-fs-pci) accesses guest RAM without QEMU, and would read "
         "pages that are not there yet: unplug it (device_del /machine/peripheral-anon/device[0]) "
         "first, or migrate by send and receive with --stand-still");
    devices((const struct answer[]){
        {"objects", "[{\"name\": \"c0\", \"type\": \"child<cryptodev-vhost-user>\"}]"}, {0}});
    only("not there yet: remove it (object_del c0, after the device that uses it) first, or "
         "migrate by send");
    devices((const struct answer[]){{"peripheral\"",
                                     "[{\"name\": \"one\", \"type\": \"child<pci-serial>\"},"
                                     " {\"name\": \"two\", \"type\": \"child<pci-serial-2x>\"}]"},
                                    {0}});
    only("device two (pci-serial-2x) makes QEMU crash when it migrates");
    devices((const struct answer[]){
        {"peripheral\"", "[{\"name\": \"s\", \"type\": \"child<ivshmem-plain>\"}]"}, {0}});
    only("device s (ivshmem-plain) shares memory with others on this host");
    devices((const struct answer[]){{"info network",
                                     "\"n0: index=0,type=nic,model=virtio-net-pci\\r\\n"
                                     " \\\\ net0: index=0,type=vhost-user,fd=12\\r\\n\""},
                                    {0}});
    only("the network net0 is a vhost-user");
    devices(
        (const struct answer[]){{"info network", "\"net1: index=0,type=vhost-vdpa\\r\\n\""}, {0}});
    only("the network net1 is a vhost-vdpa");
    devices((const struct answer[]){
        {"info network", "\" \\\\ net2: index=0,type=passt,vhost-user,connected to pid 7\\r\\n"
                         "net3: index=0,type=passt,stream,connected to pid 8\\r\\n\""},
        {0}});
    only("the network net2 is a passt with vhost-user=on, which accesses guest RAM without QEMU");
    devices((const struct answer[]){{"query-named-block-nodes",
                                     "[{\"drv\": \"nvme\"}, {\"drv\": \"raw\"},"
                                     " {\"drv\": \"io_uring\"}, {\"drv\": \"nvme\"}]"},
                                    {0}});
    only("a disk is used by QEMU's driver nvme, which accesses guest RAM without QEMU's page "
         "tables");
    devices((const struct answer[]){
        {"query-named-block-nodes", "[{\"drv\": \"virtio-blk-vhost-user\"}]"}, {0}});
    only("a disk is used by QEMU's driver virtio-blk-vhost-user");
    /* As before QEMU 5.0. */
    const struct answer no_flat = {
        "\"flat\"", "{\"class\": \"GenericError\", \"desc\": \"Parameter 'flat' is unexpected\"}"};
    devices((const struct answer[]){no_flat, {0}});
    only(NULL);
    devices((const struct answer[]){
        {"query-named-block-nodes", "[{\"drv\": \"nvme\"}]"}, no_flat, {0}});
    only("a disk is used by QEMU's driver nvme");
    devices((const struct answer[]){
        {"info network", "\"net0: index=0,type=tap,ifname=tap0,vhost=on\\r\\n\""},
        {"peripheral\"", "[{\"name\": \"v\", \"type\": \"child<vhost-vsock-pci>\"}]"},
        {0}});
    only(NULL);
}

static struct ibx_guest_ram made_up(struct ibx_guest_block *block)
{
    memset(block, 0, sizeof(*block));
    strcpy(block->id, "mem0");
    strcpy(block->type, "memory-backend-file");
    strcpy(block->path, "/dev/shm/vm");
    block->shared = block->named = true;
    block->size = 64 * MIB;
    block->page_size = 4096;
    block->fd = -1;
    block->ino = 1;
    return (struct ibx_guest_ram){.version = {7, 2, 0},
                                  .machine = "pc-q35-7.2",
                                  .uuid = "00000000-0000-0000-0000-000000000000",
                                  .machine_bytes = 64 * MIB,
                                  .bytes = 64 * MIB,
                                  .blocks = block,
                                  .count = 1};
}

static void ram_only(const struct ibx_guest_ram *ram, const char *words)
{
    ibx_preflight_ram(ram, &blockers);
    only(words);
}

static void pair_only(const struct ibx_guest_ram *source, const struct ibx_guest_ram *destination,
                      const char *words)
{
    ibx_preflight_pair(source, destination, &blockers);
    only(words);
}

static void test_ram(void)
{
    struct ibx_guest_block block;
    struct ibx_guest_ram ram = made_up(&block);
    ram_only(&ram, NULL);
    strcpy(block.type, "memory-backend-memfd");
    ram_only(&ram, NULL);
    ram.version = (struct ibx_qmp_version){8, 1, 0};
    ram_only(&ram, "is a memory-backend-memfd, and QEMU 8.1 leaves only named files out");
    ram = made_up(&block);
    block.page_size = 128 * MIB;
    ram_only(&ram, "does not consist of whole pages of 131072 KiB");
    ram = made_up(&block);
    ram.machine_bytes = 128 * MIB;
    ram_only(&ram, "the machine has 128 MiB of memory, but its memory backends only 64 MiB");
}

static void test_pairs(void)
{
    struct ibx_guest_block here, there;
    struct ibx_guest_ram source = made_up(&here), destination = made_up(&there);
    pair_only(&source, &destination, NULL);
    strcpy(destination.machine, "pc-i440fx-7.2");
    pair_only(&source, &destination, "start the destination's QEMU with -M pc-q35-7.2");
    destination = made_up(&there);
    there.size = 32 * MIB;
    pair_only(&source, &destination, "64 MiB here and 32 MiB at the destination");
    destination = made_up(&there);
    there.page_size = 2 * MIB;
    pair_only(&source, &destination, "pages of 4 KiB here and of 2048 KiB at the destination");
    destination = made_up(&there);
    here.file = 5;
    pair_only(&source, &destination, NULL); /* not known there */
    there.file = 5;
    pair_only(&source, &destination, "mem0 is the same file here and at the destination");
    struct ibx_guest_block crossed[2] = {there, there};
    strcpy(crossed[0].id, "other");
    crossed[1].file = 6;
    destination.blocks = crossed;
    destination.count = 2;
    ibx_preflight_pair(&source, &destination, &blockers);
    assert_true(says("mem0 is the same file here and at the destination"));
    memset(&blockers, 0, sizeof(blockers));
    here.file = 0;
    destination = made_up(&there);
    strcpy(destination.uuid, "12345678-9abc-4def-8123-456789abcdef");
    pair_only(&source, &destination, "that QEMU waits for another VM");
    destination = made_up(&there);
    strcpy(there.id, "ram");
    ibx_preflight_pair(&source, &destination, &blockers);
    assert_int_equal(blockers.count, 2);
    assert_true(says("mem0 is missing at the destination"));
    assert_true(says("since ib-migrate receive began, begin that again"));
    assert_true(says("the destination has guest RAM ram that is not here"));
    memset(&blockers, 0, sizeof(blockers));
}

/* A borrowed VM can go to a newer QEMU, and not return from there to this one. */
static void test_return(void)
{
    struct ibx_guest_block here, there;
    struct ibx_guest_ram source = made_up(&here), destination = made_up(&there);
    source.version = destination.version = (struct ibx_qmp_version){7, 2, 19};
    ibx_preflight_return(&source, &destination, &blockers);
    assert_int_equal(blockers.note_count, 0);
    destination.version = (struct ibx_qmp_version){7, 2, 4};
    ibx_preflight_return(&source, &destination, &blockers);
    assert_int_equal(blockers.note_count, 0);
    destination.version = (struct ibx_qmp_version){10, 0, 2};
    ibx_preflight_return(&source, &destination, &blockers);
    assert_int_equal(blockers.note_count, 1);
    assert_non_null(strstr(blockers.notes[0], "return only to a QEMU of 10.0 or a later version"));
    only(NULL);
}

/* A file larger than the room that is left in its file system: as long as the VM might not fill it,
 * this is only told. */
static void test_space(void)
{
    struct ibx_guest_block block;
    struct ibx_guest_ram ram = made_up(&block);
    FILE *file = tmpfile();
    assert_non_null(file);
    struct statfs fs;
    assert_int_equal(fstatfs(fileno(file), &fs), 0);
    block.fd = fileno(file);
    ibx_preflight_space(&ram, &blockers);
    only(NULL);
    block.size = ((uint64_t)fs.f_blocks + 1) * (uint64_t)fs.f_bsize;
    ibx_preflight_space(&ram, &blockers);
    assert_int_equal(blockers.note_count, 1);
    assert_non_null(strstr(blockers.notes[0], "free space then, or the VM hangs"));
    only(NULL);
    blockers.holds = block.size;
    ibx_preflight_space(&ram, &blockers);
    only("free space; the VM hangs");
    fclose(file);
}

static void test_too_many(void)
{
    memset(&blockers, 0, sizeof(blockers));
    for (unsigned i = 0; i < IBX_BLOCKERS_MAX + 5; i++)
        ibx_blockers_add(&blockers, "reason %u\x1b", i);
    assert_int_equal(blockers.count, IBX_BLOCKERS_MAX + 5);
    assert_string_equal(blockers.reasons[IBX_BLOCKERS_MAX - 1], "reason 23?");
    memset(&blockers, 0, sizeof(blockers));
}

int main(void)
{
    static const struct vm_test tests[] = {VM_TEST(test_one_side),
                                           VM_TEST(test_listening_by_itself),
                                           VM_TEST(test_reading_by_itself),
                                           VM_TEST(test_ram_that_is_discarded),
                                           VM_TEST(test_ram_that_others_reach),
                                           VM_TEST(test_blocked),
                                           VM_TEST(test_migrating_already),
                                           VM_TEST(test_shut_down),
                                           VM_TEST(test_ended),
                                           VM_TEST(test_missing_permissions),
                                           VM_TEST(test_a_profile_without_pidfd),
                                           VM_TEST(test_a_kernel_without_userfaultfd),
                                           VM_TEST(test_devices),
                                           VM_TEST(test_devices_where_nothing_helps),
                                           VM_TEST(test_ram),
                                           VM_TEST(test_pairs),
                                           VM_TEST(test_return),
                                           VM_TEST(test_space),
                                           VM_TEST(test_too_many),
                                           {0}};
    return vm_tests(tests, vm_end_all);
}
