/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A child: a QEMU that waits for a VM gets the snapshot's files as its RAM, mapped privately in
 * place of the RAM that it was started with (mmap, injected: qemu/inject.c), a userfaultfd for
 * pages that are not there yet, and then the device state. The files are open for reading only
 * there: nothing that QEMU does reaches them.
 *
 * What QEMU has put into its RAM at its start is lost with that RAM, as with any migration.
 */
#include "migrate/snapshot/cache.h"

#include "common/clock.h"
#include "migrate/common/common.h"
#include "migrate/common/vm.h"
#include "userfaultfd/fault.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOAD_MS    60000 /* for QEMU to load the device state */
#define ROOM_LEAST 16u   /* pages: with less of them a file system is full */
#define PART       65536
#define FD_NAME    "ibx-snapshot"
#define LOOK_US    500

struct cloning {
    const struct ibx_clone_config *config;
    struct ibx_snapshot_folder folder;
    struct ibx_qmp *qmp;
    struct ibx_guest_ram ram;
    struct ibx_settings settings;
    struct ibx_uffd uffd;
    int claim; /* of ibx_vm_lock(); -1: none */
    struct snapshot_child child;
    struct snapshot_holes holes; /* of a whole folder */
    struct snapshot_network network;
    json_t *before;
    uint64_t verified;
    bool changed; /* QEMU's RAM has been changed, so it can be used for nothing else */
};

/* ------------------------------------------------------------ whether it is one */

/* Removes properties and options in which a child may differ: docs/man/ib-migrate.1,
 * "Identities". */
static void drop_identity(json_t *description)
{
    static const char *const own[] = {"mac", "guid"};
    json_t *device;
    size_t i;
    json_object_del(description, "fw_cfg");
    json_object_del(description, "smbios");
    json_array_foreach(json_object_get(description, "devices"), i, device)
    {
        json_t *properties = json_object_get(device, "properties");
        for (size_t k = 0; k < sizeof(own) / sizeof(own[0]); k++)
            json_object_del(properties, own[k]);
    }
}

static void check_ram(const struct cloning *c, struct ibx_blockers *blockers)
{
    const struct ibx_snapshot_manifest *m = &c->folder.manifest;
    if (strcmp(c->ram.machine, m->machine))
        ibx_blockers_add(blockers,
                         "its machine type is %.60s, the snapshot's %.60s: start QEMU "
                         "with -machine %.60s",
                         c->ram.machine, m->machine, m->machine);
    if (c->ram.count != m->ram_count)
        ibx_blockers_add(blockers, "it has %zu memory backends, the snapshot %u", c->ram.count,
                         m->ram_count);
    for (unsigned i = 0; i < m->ram_count; i++) {
        const struct ibx_guest_block *block = ibx_guest_ram_block(&c->ram, m->ram[i].id);
        if (!block)
            ibx_blockers_add(blockers,
                             "it has no memory backend %.120s: give it -object "
                             "memory-backend-ram,id=%.120s,size=%" PRIu64,
                             m->ram[i].id, m->ram[i].id, m->ram[i].size);
        else if (block->size != m->ram[i].size)
            ibx_blockers_add(blockers,
                             "memory backend %.120s has %" PRIu64 " bytes, the snapshot's %" PRIu64,
                             block->id, block->size, m->ram[i].size);
        else if (block->shared)
            ibx_blockers_add(blockers,
                             "memory backend %.120s is shared, but a child's memory must be "
                             "private: give it -object memory-backend-ram,id=%.120s,size=%" PRIu64,
                             block->id, block->id, block->size);
    }
}

static int compare(struct cloning *c, struct ibx_blockers *blockers, struct ibx_error *err)
{
    json_t *own, *theirs = json_deep_copy(c->folder.manifest.description);
    int rc = theirs ? ibx_describe(c->qmp, &c->ram, &own, ibx_deadline_in_ms(MIGRATION_QMP_MS), err)
                    : ibx_error_set(err, -ENOMEM, "no memory for a description");
    if (rc) {
        json_decref(theirs);
        return rc;
    }
    if (!c->config->parent_mac)
        rc = ibx_snapshot_network_find(c->qmp, theirs, own, &c->network, blockers, err);
    drop_identity(own);
    drop_identity(theirs);
    ibx_compare(&(struct ibx_comparison){
        .source = theirs,
        .destination = own,
        .same_version = ibx_qmp_same_version(c->ram.version, c->folder.manifest.version),
        .disks_differ = true,
        .blockers = blockers});
    json_decref(own);
    json_decref(theirs);
    return rc;
}

/* Mapping locked memory reads all of it at once, which would fill a cache with zero pages. */
static void check_unlocked(pid_t pid, struct ibx_blockers *blockers)
{
    char line[256];
    unsigned long long kib = 0;
    snprintf(line, sizeof(line), "/proc/%d/status", (int)pid);
    FILE *file = fopen(line, "re");
    while (file && fgets(line, sizeof(line), file))
        sscanf(line, "VmLck: %llu kB", &kib);
    if (file)
        fclose(file);
    if (kib)
        ibx_blockers_add(blockers,
                         "it locks its memory (%llu KiB), but a child's memory is in the page "
                         "cache: start it without -overcommit mem-lock",
                         kib);
}

static pid_t parent_of(pid_t pid)
{
    char line[512], *at;
    int parent = 0;
    snprintf(line, sizeof(line), "/proc/%d/stat", (int)pid);
    FILE *file = fopen(line, "re");
    if (file && fgets(line, sizeof(line), file) && (at = strrchr(line, ')')))
        sscanf(at, ") %*c %d", &parent);
    if (file)
        fclose(file);
    return parent;
}

/* Checks that the monitor is that of the QEMU that the caller has started: another QEMU that was
 * started with the same path meanwhile takes it away. A QEMU that has become a daemon is no longer
 * a descendant; then the process that the caller started has ended. */
static int check_started(const struct cloning *c, struct ibx_error *err)
{
    const pid_t started = c->config->started;
    siginfo_t ended = {0};
    for (pid_t pid = c->ram.pid; started && pid != started; pid = parent_of(pid))
        if (pid <= 1)
            return waitid(P_PID, (id_t)started, &ended, WEXITED | WNOHANG | WNOWAIT) || ended.si_pid
                       ? 0
                       : ibx_error_set(err, -EBUSY,
                                       "the monitor at %s is that of another QEMU (process %d) "
                                       "than was started: give each its own --qmp",
                                       c->config->qmp, (int)c->ram.pid);
    return 0;
}

/* Whether a blocker results from comparing with the snapshot. The messages are those of a
 * migration, whose source is the snapshot. */
static bool compares(const struct ibx_blockers *blockers)
{
    for (size_t i = 0; i < blockers->count && i < IBX_BLOCKERS_MAX; i++)
        if (strstr(blockers->reasons[i], "destination"))
            return true;
    return false;
}

static int check(struct cloning *c, struct ibx_error *err)
{
    struct ibx_blockers *blockers = calloc(1, sizeof(*blockers));
    if (!blockers)
        return ibx_error_set(err, -ENOMEM, "no memory for a list of reasons");
    blockers->snapshot = true;
    int rc = 0;
    if (strcmp(c->ram.status, "inmigrate"))
        ibx_blockers_add(blockers, "its status is \"%s\": start it with -incoming defer",
                         c->ram.status);
    else
        rc = compare(c, blockers, err);
    json_t *migration = NULL;
    if (!rc)
        rc = ibx_qmp_execute(c->qmp, "query-migrate", NULL, &migration,
                             ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (!rc && !strcmp(c->ram.status, "inmigrate"))
        ibx_preflight_listening(&c->ram, migration, blockers);
    json_decref(migration);
    if (!rc) /* such devices would access other memory than the vCPUs */
        rc = ibx_preflight_devices(c->qmp, blockers, ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (c->folder.manifest.complete) {
        ibx_snapshot_holes_find(&c->folder, &c->holes);
        ibx_snapshot_holes_room(&c->folder, &c->holes, blockers);
    }
    check_ram(c, blockers);
    check_unlocked(c->ram.pid, blockers);
    ibx_preflight_permissions(&c->ram, blockers);
    if (!rc && blockers->count)
        rc = ibx_migration_refused(compares(blockers)
                                       ? "this QEMU cannot become a child (\"here\" is the "
                                         "snapshot's VM, and the destination is this QEMU)"
                                       : "this QEMU cannot become a child",
                                   blockers, err);
    free(blockers);
    return rc;
}

/* ------------------------------------------------------------ its RAM */

struct private_span {
    uint64_t at, end; /* all before `at` has been found private */
};

/* Ends the search (true) at a mapping that is not private, at a gap, or beyond the end. */
static bool ends_private(void *context, const struct ibx_proc_mapping *m)
{
    struct private_span *span = context;
    if (span->at < m->start || span->at >= m->end)
        return span->at < m->start;
    if (strcmp(m->permissions, "rw-p") != 0)
        return true;
    span->at = m->end;
    return span->at >= span->end;
}

/* Whether all of [address, address + size) is private memory, which can be replaced. */
static int check_private(pid_t pid, uint64_t address, uint64_t size, struct ibx_error *err)
{
    struct private_span span = {address, address + size};
    const int rc = ibx_proc_find_mapping(pid, ends_private, &span);
    if (rc < 0)
        return ibx_error_set(err, rc, "cannot read /proc/%d/maps: %s%s", (int)pid, strerror(-rc),
                             ibx_proc_remedy(rc));
    if (span.at < span.end)
        return ibx_error_set(err, -ENOTSUP,
                             "QEMU's memory at 0x%" PRIx64 " is not private: give it its RAM by "
                             "-object memory-backend-ram",
                             span.at);
    return 0;
}

static bool is_file(void *context, int number, const char *path)
{
    const struct stat *wanted = context;
    struct stat is;
    (void)number;
    return !ibx_proc_stat(path, &is) && is.st_dev == wanted->st_dev && is.st_ino == wanted->st_ino;
}

/* The number in QEMU of the descriptor that it was given for a file. */
static int find_file(pid_t pid, int fd)
{
    struct stat wanted;
    return fstat(fd, &wanted) ? -errno : ibx_proc_find_descriptor(pid, is_file, &wanted);
}

static int inject(struct cloning *c, long number, const uint64_t arguments[6], uint64_t wanted,
                  const char *what, struct ibx_error *err)
{
    int64_t result;
    int rc = ibx_inject_syscall(c->ram.pid, number, arguments, &result,
                                ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (rc || (uint64_t)result == wanted)
        return rc;
    return ibx_error_set(err, result < 0 && result > -4096 ? (int)result : -EIO,
                         "%s in QEMU (process %d) failed: %s", what, (int)c->ram.pid,
                         strerror((int)-result));
}

static int map_block(struct cloning *c, unsigned i, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    const struct ibx_guest_block *block =
        ibx_guest_ram_block(&c->ram, c->folder.manifest.ram[i].id);
    uint64_t address;
    int rc = ibx_guest_block_ask_address(c->qmp, block, &address, deadline, err);
    if (!rc)
        rc = check_private(c->ram.pid, address, block->size, err);
    if (!rc)
        rc = ibx_qmp_getfd(c->qmp, FD_NAME, c->folder.fds[i], deadline, err);
    if (rc)
        return rc;
    const int remote = find_file(c->ram.pid, c->folder.fds[i]);
    /* Nobody may access a missing page before the userfaultfd watches it. */
    const uint64_t map[6] = {address,
                             block->size,
                             c->folder.manifest.complete ? PROT_READ | PROT_WRITE : PROT_NONE,
                             MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
                             (uint64_t)remote,
                             0};
    if (remote < 0)
        rc =
            ibx_error_set(err, remote, "QEMU (process %d) does not have the file that it was given",
                          (int)c->ram.pid);
    if (!rc) {
        c->changed = true;
        rc = inject(c, SYS_mmap, map, address, "mapping the snapshot", err);
    }
    ibx_qmp_execute(c->qmp, "closefd", json_pack("{s:s}", "fdname", FD_NAME), NULL, deadline, NULL);
    c->child.addresses[i] = address;
    return rc;
}

/* The children of a complete folder have no server: checks again that zero pages find room. */
static int check_room(struct cloning *c, struct ibx_error *err)
{
    struct ibx_blockers *blockers = calloc(1, sizeof(*blockers));
    int rc = blockers ? 0 : ibx_error_set(err, -ENOMEM, "no memory for a list of reasons");
    if (blockers)
        ibx_snapshot_holes_room(&c->folder, &c->holes, blockers);
    if (blockers && blockers->count)
        rc = ibx_migration_refused("this QEMU cannot become a child", blockers, err);
    free(blockers);
    return rc;
}

/* Who fills this host's cache and is killed before it has a child is missed by nobody else. */
static int hand_over(struct cloning *c, bool *whole, struct ibx_error *err)
{
    struct ibx_error why = {0};
    struct ibx_host_cache cache;
    int rc = ibx_snapshot_child_hand_over(&c->folder, &c->child, whole, &c->holes, &why);
    if (rc == -ECONNREFUSED && c->config->filled_by) {
        rc = ibx_snapshot_host_cache(c->config->filled_by, &cache, err);
        return rc ? rc : ibx_snapshot_child_hand_over(&c->folder, &c->child, whole, &c->holes, err);
    }
    return rc ? ibx_error_set(err, rc, "%s", why.message) : 0;
}

/* Faults on pages that are not in the files go to the process that fills them. */
static int watch(struct cloning *c, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    bool whole = false;
    int rc = ibx_uffd_make(c->ram.pid, c->qmp, IBX_UFFD_ANY, &c->uffd, deadline, err);
    if (rc)
        return rc;
    rc = ibx_fault_uffd_enable(c->uffd.fd, 0, err);
    for (unsigned i = 0; !rc && i < c->child.count; i++) {
        const struct ibx_fault_range range = {.start = c->child.addresses[i],
                                              .length = c->folder.sizes[i]};
        rc = ibx_fault_register(c->uffd.fd, &range, err);
    }
    c->child.pid = c->ram.pid;
    c->child.remote = c->uffd.remote;
    if (!rc)
        rc = ibx_process_find_start(c->ram.pid, &c->child.started, err);
    if (!rc)
        rc = hand_over(c, &whole, err);
    if (rc && rc != -EREMOTEIO && ibx_snapshot_folder_is_whole_now(&c->folder)) {
        rc = 0;
        whole = true;
        ibx_snapshot_holes_find(&c->folder, &c->holes);
    }
    if (!rc && whole)
        rc = check_room(c, err);
    if (!rc && !whole) {
        close(c->uffd.fd); /* QEMU keeps it, and so does the process that fills the cache */
        c->uffd.fd = -1;
        return 0;
    }
    /* Nothing that could need a page runs in QEMU yet. */
    const int closed = ibx_uffd_close_in_qemu(&c->uffd, deadline, rc ? NULL : err);
    c->uffd.fd = -1;
    return rc ? rc : closed;
}

/* A kernel may be without the feature that an advice concerns. */
static int advise(struct cloning *c, uint64_t at, uint64_t size, int advice, struct ibx_error *err)
{
    const uint64_t arguments[6] = {at, size, (uint64_t)advice};
    int64_t result;
    return ibx_inject_syscall(c->ram.pid, SYS_madvise, arguments, &result,
                              ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
}

static int unlock_block(struct cloning *c, unsigned i, struct ibx_error *err)
{
    const uint64_t arguments[6] = {c->child.addresses[i], c->folder.sizes[i],
                                   PROT_READ | PROT_WRITE};
    return inject(c, SYS_mprotect, arguments, 0, "mprotect", err);
}

/* Maps private memory over the holes, which replaces the mapping of the snapshot's file and its
 * registration with the userfaultfd. Here QEMU can have huge pages, which it wants for its RAM. */
static int map_holes(struct cloning *c, struct ibx_error *err)
{
    int rc = 0;
    for (unsigned i = 0; !rc && i < c->holes.count; i++) {
        const struct snapshot_hole *hole = &c->holes.at[i];
        const uint64_t map[6] = {c->child.addresses[hole->block] + hole->offset,
                                 hole->length,
                                 PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE | MAP_ANONYMOUS,
                                 (uint64_t)-1,
                                 0};
        rc = inject(c, SYS_mmap, map, map[0], "mapping memory of zeros", err);
        rc = rc ? rc : advise(c, map[0], map[1], MADV_HUGEPAGE, err);
    }
    return rc;
}

/* Advises as QEMU does with its RAM. */
static int finish_block(struct cloning *c, unsigned i, struct ibx_error *err)
{
    const char *id = c->folder.manifest.ram[i].id;
    const uint64_t at = c->child.addresses[i], size = c->folder.sizes[i];
    const uint64_t alone[6] = {at, size, MADV_DONTFORK}, secret[6] = {at, size, MADV_DONTDUMP};
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    bool dumped = true, merged = false;
    int rc = c->folder.manifest.complete ? 0 : unlock_block(c, i, err);
    ibx_snapshot_say_policy(c->qmp, id, deadline);
    rc = rc ? rc : inject(c, SYS_madvise, alone, 0, "madvise", err);
    rc = rc ? rc : ibx_guest_block_ask_flag(c->qmp, id, "dump", &dumped, deadline, err);
    rc = rc || dumped ? rc : inject(c, SYS_madvise, secret, 0, "madvise", err);
    rc = rc ? rc : ibx_guest_block_ask_flag(c->qmp, id, "merge", &merged, deadline, err);
    return rc || !merged ? rc : advise(c, at, size, MADV_MERGEABLE, err);
}

static int give_ram(struct cloning *c, struct ibx_error *err)
{
    int rc = 0;
    c->child.count = c->folder.manifest.ram_count;
    for (unsigned i = 0; !rc && i < c->child.count; i++) {
        rc = map_block(c, i, err);
        if (!rc && !c->folder.manifest.complete) /* as ibx_guest_ram_huge_pages() */
            rc = advise(c, c->child.addresses[i], c->folder.sizes[i], MADV_NOHUGEPAGE, err);
    }
    ibx_migration_stop_at("clone", "mapped");
    if (!rc && !c->folder.manifest.complete)
        rc = watch(c, err);
    if (!rc)
        rc = map_holes(c, err);
    for (unsigned i = 0; !rc && i < c->child.count; i++)
        rc = finish_block(c, i, err);
    return rc;
}

/* ------------------------------------------------------------ its device state */

static int feed(struct cloning *c, int fd, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(LOAD_MS);
    const unsigned block = c->folder.manifest.ram_count;
    uint8_t bytes[PART];
    for (uint64_t at = 0; at < c->folder.manifest.state_bytes;) {
        const uint64_t left = c->folder.manifest.state_bytes - at;
        struct pollfd wait = {.fd = fd, .events = POLLOUT};
        const ssize_t n = pread(c->folder.fds[block], bytes,
                                (size_t)(left < sizeof(bytes) ? left : sizeof(bytes)), (off_t)at);
        if (n <= 0)
            return ibx_error_set(err, n ? -errno : -EIO, "%s/state cannot be read", c->folder.path);
        const ssize_t sent = send(fd, bytes, (size_t)n, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR)
            return ibx_error_set(err, -errno,
                                 "QEMU does not read the device state (%s): see its log",
                                 strerror(errno));
        if (sent < 0 && ibx_now_ns() >= deadline)
            return ibx_error_set(err, -ETIMEDOUT, "QEMU did not read the device state within %u s",
                                 LOAD_MS / 1000);
        if (sent < 0)
            poll(&wait, 1, ibx_ms_until(deadline));
        at += sent > 0 ? (uint64_t)sent : 0;
    }
    return 0;
}

/* Whether QEMU has loaded the VM. What it reports of a migration may concern a later one that
 * another client has begun, but until a VM is loaded its status is inmigrate. */
static bool has_vm(struct cloning *c)
{
    char status[32];
    return !ibx_vm_status(c->qmp, status, sizeof(status), ibx_deadline_in_ms(MIGRATION_QMP_MS),
                          NULL) &&
           strcmp(status, "inmigrate") != 0;
}

static int await_loaded(struct cloning *c, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(LOAD_MS);
    struct ibx_vm_progress now;
    for (;;) {
        int rc = ibx_vm_migration(c->qmp, &now, deadline, err);
        if (rc)
            return rc;
        if (!strcmp(now.status, "completed") || has_vm(c))
            return 0;
        if (!strcmp(now.status, "failed") || ibx_now_ns() >= deadline)
            return ibx_error_set(err, -EIO,
                                 "QEMU did not load the device state (\"%s\"%s%s): see "
                                 "its log",
                                 now.status, *now.error ? ": " : "", now.error);
        usleep(LOOK_US);
    }
}

/* Waits until the VM has its final status: QEMU reports the migration as complete a moment before.
 */
static int await_status(struct cloning *c, char *status, size_t size, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(LOAD_MS);
    for (;;) {
        int rc = ibx_vm_status(c->qmp, status, size, deadline, err);
        if (rc || strcmp(status, "inmigrate"))
            return rc;
        if (ibx_now_ns() >= deadline)
            return ibx_error_set(err, -ETIMEDOUT, "the VM did not leave the status inmigrate");
        usleep(LOOK_US);
    }
}

/* A QEMU that waits for a page which the cache has no room for answers nobody. A tmpfs without a
 * limit tells neither its size nor its room. */
static int blame_room(const struct cloning *c, int rc, struct ibx_error *err)
{
    struct statfs fs;
    const bool waits = rc == -ETIMEDOUT && !c->folder.manifest.complete;
    return waits && !fstatfs(c->folder.at, &fs) && fs.f_blocks && fs.f_bavail < ROOM_LEAST
               ? ibx_error_prefix(err, rc,
                                  "the file system of %s has no room for the pages that QEMU needs "
                                  "to load the VM: make room there",
                                  c->folder.path)
               : rc;
}

static int load(struct cloning *c, char *status, size_t size, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    int ours, theirs, rc = ibx_settings_set(c->qmp, &c->settings, deadline, err);
    if (rc)
        return rc;
    c->before = json_incref(c->settings.before);
    rc = ibx_snapshot_network_down(c->qmp, &c->network, err);
    rc = rc ? rc : ibx_vm_stream(&ours, &theirs, err);
    if (rc)
        return rc;
    if (c->config->loads)
        c->config->loads();
    rc = ibx_vm_migrate(c->qmp, true, theirs, deadline, err);
    close(theirs);
    if (!rc)
        rc = feed(c, ours, err);
    close(ours);
    if (!rc)
        rc = await_loaded(c, err);
    if (!rc)
        rc = await_status(c, status, size, err);
    return blame_room(c, rc, err);
}

/* ------------------------------------------------------------ its network */

/* Waits for the MACs only if the VM runs: a paused guest cannot set one. */
static int give_network(struct cloning *c, struct ibx_clone_result *result, struct ibx_error *err)
{
    result->cards = c->network.count;
    int rc = ibx_snapshot_network_down(c->qmp, &c->network, err);
    if (!rc && !strcmp(result->status, "running"))
        rc = ibx_snapshot_network_up(c->qmp, &c->network,
                                     ibx_deadline_in_ms(c->config->mac_wait_s * 1000u), err);
    for (unsigned i = 0; i < c->network.count; i++)
        result->cards_down += !c->network.cards[i].up;
    if (rc == -ETIMEDOUT)
        return ibx_error_prefix(err, rc, "this QEMU (process %d) is a child and runs", c->ram.pid);
    return rc ? ibx_error_prefix(err, rc,
                                 "this QEMU (process %d) has become a child, but network cards of "
                                 "it have no link",
                                 c->ram.pid)
              : 0;
}

/* ------------------------------------------------------------ all of it */

/* Makes sure that only one clone at a time gives this QEMU its memory, whichever monitor it uses: a
 * second one would take the memory from a VM that may run by then. The memory has no file that
 * could be locked. */
static int claim(struct cloning *c, struct ibx_error *err)
{
    const int rc = ibx_vm_lock(c->ram.pid, &c->claim);
    if (rc == -EWOULDBLOCK)
        return ibx_error_set(err, -EBUSY,
                             "another ib-migrate is making a child of this QEMU (process %d), or "
                             "works on its VM: wait for it, or start another QEMU for this child",
                             (int)c->ram.pid);
    return rc ? ibx_error_set(err, rc, "/proc/%d/fd cannot be locked: %s", (int)c->ram.pid,
                              strerror(-rc))
              : 0;
}

/* Opens the snapshot's folder, which must have all pages or be filled by another process. */
static int open_parent(struct cloning *c, struct ibx_error *err)
{
    int rc = ibx_snapshot_folder_open(c->config->path, false, &c->folder, err);
    if (rc)
        return rc;
    rc = c->folder.manifest.complete ? 0 : ibx_snapshot_child_expected(&c->folder, err);
    if (rc && ibx_snapshot_folder_is_whole_now(&c->folder)) {
        ibx_snapshot_folder_close(&c->folder);
        rc = ibx_snapshot_folder_open(c->config->path, false, &c->folder, err);
    }
    if (!rc && c->folder.manifest.complete)
        rc = ibx_snapshot_verify(&c->folder, &c->verified, err);
    if (!rc && c->folder.manifest.complete)
        ibx_snapshot_let_left_go(&c->folder);
    return rc;
}

static int begin(struct cloning *c, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    int rc = open_parent(c, err);
    if (!rc)
        rc = ibx_snapshot_memory_file_refuse(&c->folder.manifest, err);
    if (!rc)
        rc = ibx_qmp_connect_unless_busy(c->config->qmp, deadline, &c->qmp, err);
    if (!rc)
        rc = ibx_guest_ram_find(c->qmp, false, &c->ram, deadline, err);
    if (!rc)
        rc = claim(c, err);
    if (!rc)
        rc = check_started(c, err);
    if (!rc)
        rc = check(c, err);
    return rc ? rc : ibx_settings_plan(c->qmp, &c->settings, deadline, err);
}

static int make_child(struct cloning *c, struct ibx_clone_result *result, struct ibx_error *err)
{
    const uint64_t began = ibx_now_ns();
    int rc = begin(c, err);
    const uint64_t checked = ibx_now_ns();
    if (!rc)
        rc = give_ram(c, err);
    const uint64_t mapped = ibx_now_ns();
    if (!rc)
        rc = load(c, result->status, sizeof(result->status), err);
    ibx_migration_stop_at("clone", "loaded");
    const uint64_t loaded = ibx_now_ns();
    result->child = !rc || (c->changed && has_vm(c));
    if (rc && rc != -ESRCH && c->changed && !result->child) /* -ESRCH: it has ended */
        ibx_error_prefix(err, rc, "end this QEMU, which has lost the memory that it began with");
    else if (rc && c->changed && result->child)
        ibx_error_prefix(err, rc, "this QEMU (process %d) has a VM, and is left alone",
                         (int)c->ram.pid);
    if (!rc)
        rc = ibx_vm_restore(c->qmp, c->before, false, ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (!rc)
        rc = give_network(c, result, err);
    result->pid = c->ram.pid;
    result->check_ns = checked - began;
    result->memory_ns = mapped - checked;
    result->load_ns = loaded - mapped;
    result->network_ns = ibx_now_ns() - loaded;
    result->verified = c->verified;
    result->whole = c->folder.manifest.complete;
    result->ran = c->folder.manifest.ran;
    result->tpm = ibx_description_has_tpm(c->folder.manifest.description);
    return rc;
}

int ibx_snapshot_clone(const struct ibx_clone_config *config, struct ibx_clone_result *result,
                       struct ibx_error *err)
{
    struct cloning *c = calloc(1, sizeof(*c));
    struct ibx_clone_result got = {.pid = 0};
    if (!c)
        return ibx_error_set(err, -ENOMEM, "no memory for a child");
    c->config = config;
    c->uffd.fd = c->claim = -1;
    int rc = make_child(c, &got, err);
    if (got.child)
        *result = got;
    json_decref(c->before);
    ibx_settings_fini(&c->settings);
    ibx_guest_ram_fini(&c->ram);
    ibx_qmp_close(c->qmp);
    ibx_snapshot_folder_close(&c->folder);
    if (c->claim >= 0)
        close(c->claim);
    free(c);
    return rc;
}
