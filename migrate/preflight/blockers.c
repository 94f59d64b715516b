/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/preflight/preflight.h"

#include "migrate/pages/pages.h"

#include "common/locked.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>

#define TEXT_MAX 256 /* bytes of QEMU's message in a blocker */
/* A receiver knows its QEMU's memory as it was when it began. */
#define SINCE                                                                                      \
    " (if it was plugged in or out there since ib-migrate receive began, begin that again)"

/* ------------------------------------------------------------ memory */

static void check_block(const struct ibx_guest_ram *ram, const struct ibx_guest_block *block,
                        struct ibx_blockers *blockers)
{
    const bool file = !strcmp(block->type, "memory-backend-file");
    const uint64_t mib = block->size >> 20;
    if (!block->shared) {
        /* Several blocks belong to NUMA nodes or plugged memory, whose options name the backends. A
         * single one, or pc.ram and the like, is made by a machine without a memory backend. */
        const char *dot = strrchr(block->id, '.');
        const bool whole = ram->count == 1 || (dot && !strcmp(dot, ".ram"));
        ibx_blockers_add(
            blockers,
            "guest RAM %s (%s, %" PRIu64 " MiB) is private to QEMU: start it with -object "
            "memory-backend-file,id=%s,size=%" PRIu64 "M,mem-path=/dev/shm/vm/NAME,share=on%s%s, "
            "after install -d -m 700 /dev/shm/vm "
            "(libvirt: <memoryBacking> with <source type='file'/> and <access mode='shared'/>)",
            block->id, block->type, mib, block->id, mib, whole ? " -machine memory-backend=" : "",
            whole ? block->id : "");
        return;
    }
    if (ibx_qmp_at_least(ram->version, 8, 1) && !file)
        ibx_blockers_add(
            blockers,
            "guest RAM %s is a %s, and QEMU %u.%u leaves only named files out of its own "
            "stream: use -object memory-backend-file,id=%s,size=%" PRIu64
            "M,mem-path=/dev/shm/vm/NAME,share=on, after install -d -m 700 /dev/shm/vm",
            block->id, block->type, ram->version.major, ram->version.minor, block->id, mib);
    if (block->page_size && (block->size % block->page_size || block->offset % block->page_size))
        ibx_blockers_add(blockers,
                         "guest RAM %s (%" PRIu64 " bytes at offset %" PRIu64
                         ") does not consist of "
                         "whole pages of %" PRIu64 " KiB: round its size up",
                         block->id, block->size, block->offset, block->page_size >> 10);
}

void ibx_preflight_ram(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers)
{
    for (size_t i = 0; i < ram->count; i++) {
        const struct ibx_guest_block *block = &ram->blocks[i];
        check_block(ram, block, blockers);
        for (size_t k = 0; block->shared && k < i; k++) {
            const struct ibx_guest_block *other = &ram->blocks[k];
            if (other->shared && other->dev == block->dev && other->ino == block->ino)
                ibx_blockers_add(blockers,
                                 "guest RAM %s and %s lie in one file %s: give each a file of "
                                 "its own",
                                 other->id, block->id, block->path);
        }
    }
    if (ram->bytes < ram->machine_bytes)
        ibx_blockers_add(
            blockers,
            "the machine has %" PRIu64 " MiB of memory, but its memory backends only %" PRIu64
            " MiB: give all of it a memory-backend-file (-machine memory-backend= or -numa "
            "node,memdev=)",
            ram->machine_bytes >> 20, ram->bytes >> 20);
}

/* discard-data=on would lose pages when the source's QEMU ends, and the VM needs them until the
 * migration is complete. */
static void check_discarding(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers)
{
    for (size_t i = 0; i < ram->count; i++) {
        const char *id = ram->blocks[i].id;
        if (ram->blocks[i].discards)
            ibx_blockers_add(
                blockers,
                "guest RAM %s has discard-data=on, so that it is lost if this QEMU ends before "
                "all pages are at the destination: turn it off by the QMP command qom-set (path "
                "/objects/%s, property discard-data, value false) and on QEMU's command line "
                "(libvirt: no <discard/> in <memoryBacking>)",
                id, id);
    }
}

/* Destination: guest RAM has to be on tmpfs or hugetlbfs, since userfaultfd works on no other file
 * system. */
static void check_missing_possible(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers)
{
    for (size_t i = 0; i < ram->count; i++) {
        const struct ibx_guest_block *block = &ram->blocks[i];
        struct statfs fs;
        if (block->fd < 0 || fstatfs(block->fd, &fs) || fs.f_type == TMPFS_MAGIC ||
            fs.f_type == HUGETLBFS_MAGIC)
            continue;
        ibx_blockers_add(blockers,
                         "guest RAM %s is in %s, which is on no tmpfs and not in huge pages, so "
                         "its pages cannot be fetched one by one: start QEMU with "
                         "mem-path=/dev/shm/vm/NAME, after install -d -m 700 /dev/shm/vm (libvirt: "
                         "memory_backing_dir = \"/dev/shm\" in qemu.conf)",
                         block->id, block->path);
    }
}

void ibx_preflight_pages(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers)
{
    for (size_t i = 0; i < ram->count; i++) {
        const struct ibx_guest_block *block = &ram->blocks[i];
        if (!block->page_size || ibx_fault_serves_pages_of(block->page_size))
            continue;
        ibx_blockers_add(
            blockers,
            "guest RAM %s has pages of %" PRIu64 " KiB, and only pages of 4 KiB and "
            "2 MiB can be fetched one by one: start QEMU, at both ends, with mem-path= "
            "in a hugetlbfs of pages of 2 MiB (mount -o pagesize=2M; libvirt: "
            "<hugepages><page size='2' unit='M'/></hugepages>)",
            block->id, block->page_size >> 10);
    }
}

/* ------------------------------------------------------------ both sides */

static void check_pair_block(const struct ibx_guest_block *from, const struct ibx_guest_block *to,
                             struct ibx_blockers *blockers)
{
    if (from->size != to->size)
        ibx_blockers_add(blockers,
                         "guest RAM %s has %" PRIu64 " MiB here and %" PRIu64
                         " MiB at the destination: "
                         "start the destination's QEMU with size=%" PRIu64 "M and the same -m",
                         from->id, from->size >> 20, to->size >> 20, from->size >> 20);
    if (from->page_size && to->page_size && from->page_size != to->page_size)
        ibx_blockers_add(
            blockers,
            "guest RAM %s has pages of %" PRIu64 " KiB here and of %" PRIu64 " KiB at the "
            "destination: put both on /dev/shm or both on hugetlbfs with one page size",
            from->id, from->page_size >> 10, to->page_size >> 10);
}

/* Checks that no block of the destination has the same file; compares all, since ids may be
 * swapped.
 */
static void check_same_file(const struct ibx_guest_block *from,
                            const struct ibx_guest_ram *destination, struct ibx_blockers *blockers)
{
    bool same = false;
    for (size_t i = 0; i < destination->count && from->file; i++)
        same = same || destination->blocks[i].file == from->file;
    if (same)
        ibx_blockers_add(
            blockers,
            "guest RAM %s is the same file here and at the destination, and the destination would "
            "empty it under the running VM: give the destination's QEMU another mem-path",
            from->id);
}

void ibx_preflight_pair(const struct ibx_guest_ram *source, const struct ibx_guest_ram *destination,
                        struct ibx_blockers *blockers)
{
    static const char no_uuid[] = "00000000-0000-0000-0000-000000000000";
    if (strcmp(source->machine, destination->machine))
        ibx_blockers_add(blockers,
                         "the machine is a %s here and a %s at the destination: start the "
                         "destination's QEMU with -M %s",
                         source->machine, destination->machine, source->machine);
    if (!ibx_qmp_at_least(destination->version, source->version.major, source->version.minor))
        ibx_blockers_add(
            blockers,
            "QEMU is %u.%u here and %u.%u at the destination, but migrates only to the same or "
            "a newer version: update it there",
            source->version.major, source->version.minor, destination->version.major,
            destination->version.minor);
    if (strcmp(source->uuid, destination->uuid) && strcmp(destination->uuid, no_uuid))
        ibx_blockers_add(blockers,
                         "the VM's UUID is %s here and %s at the destination: that QEMU waits "
                         "for another VM, or start it with -uuid %s",
                         source->uuid, destination->uuid, source->uuid);
    else if (strcmp(source->uuid, destination->uuid))
        ibx_blockers_note(blockers,
                          "the destination's QEMU has no -uuid, and the VM would have another UUID "
                          "when it boots again: start that QEMU with -uuid %s",
                          source->uuid);
    for (size_t i = 0; i < source->count; i++) {
        const struct ibx_guest_block *to = ibx_guest_ram_block(destination, source->blocks[i].id);
        if (to)
            check_pair_block(&source->blocks[i], to, blockers);
        else
            ibx_blockers_add(blockers,
                             "guest RAM %s is missing at the destination: start its QEMU with "
                             "the same -object memory-backend-... and ids as here" SINCE,
                             source->blocks[i].id);
        check_same_file(&source->blocks[i], destination, blockers);
    }
    for (size_t i = 0; i < destination->count; i++) {
        const char *id = destination->blocks[i].id;
        if (!ibx_guest_ram_block(source, id))
            ibx_blockers_add(blockers,
                             "the destination has guest RAM %s that is not here: start its "
                             "QEMU with the same -object memory-backend-... as here" SINCE,
                             id);
    }
}

void ibx_preflight_return(const struct ibx_guest_ram *source,
                          const struct ibx_guest_ram *destination, struct ibx_blockers *blockers)
{
    const struct ibx_qmp_version here = source->version, there = destination->version;
    if (!ibx_qmp_at_least(here, there.major, there.minor))
        ibx_blockers_note(blockers,
                          "QEMU is %u.%u here and %u.%u at the destination: the VM can return only "
                          "to a QEMU of %u.%u or a later version, so have one here by then",
                          here.major, here.minor, there.major, there.minor, there.major,
                          there.minor);
}

/* ------------------------------------------------------------ state */

/* Whether no migration is under way. A QEMU that never migrated has no status. */
static bool is_over(const char *status)
{
    return !status || !strcmp(status, "none") || !strcmp(status, "completed") ||
           !strcmp(status, "failed") || !strcmp(status, "cancelled");
}

#define MIGRATED "if it migrated before, ib-migrate status tells whether this QEMU is still needed"
#define BOOTS    "boot it anew (system_reset and cont, or where QEMU has -no-reboot a new QEMU)"

#define DEBUGGED                                                                                   \
    "a debugger (-gdb) has stopped it, which QEMU cannot take over elsewhere: continue it there, " \
    "or detach the debugger"

/* Refuses a sleeping VM (S3) with QEMU 9.0 and later, which keep a VM asleep when they stop it: if
 * the migration failed and the VM were continued here, QEMU would end by an assertion ("invalid
 * runstate transition: 'postmigrate' -> 'suspended'"). Earlier QEMUs wake the VM when they stop it.
 */
static void check_sleep(struct ibx_qmp_version is, const struct ibx_guest_ram *ram,
                        struct ibx_blockers *blockers)
{
    if (!strcmp(ram->status, "suspended") && ibx_qmp_sleeps_on(is))
        ibx_blockers_add(blockers,
                         "the VM's guest sleeps (S3), and this QEMU (%u.%u) could not continue it "
                         "here if its migration failed: wake it (system_wakeup in QEMU's monitor)",
                         is.major, is.minor);
}

static void check_run_state(const struct ibx_guest_ram *ram, enum ibx_migrate_role role,
                            struct ibx_blockers *blockers)
{
    static const struct {
        const char *status, *remedy;
    } gone[] = {
        {"postmigrate", MIGRATED "; if it was paused and stayed here, cont lets it run, and "
                                 "stop pauses it; if it was frozen (ib-migrate freeze), "
                                 "cont lets it run on, with overlays of its disks "
                                 "(blockdev-snapshot-sync) where children use these"},
        {"finish-migrate", MIGRATED},
        {"colo", MIGRATED},
        {"shutdown", BOOTS},
        {"guest-panicked", BOOTS},
        {"internal-error", BOOTS},
        {"debug", DEBUGGED},
        {"save-vm", "wait for the end of its snapshot"},
        {"restore-vm", "wait until its snapshot is loaded; if it could not be, cont lets it run"}};
    const bool waits = !strcmp(ram->status, "inmigrate");
    if (role == IBX_MIGRATE_DESTINATION) {
        if (!waits)
            ibx_blockers_add(blockers,
                             "this QEMU is %s and does not wait for a VM: start it with "
                             "-incoming defer",
                             ram->status);
        return;
    }
    if (waits)
        ibx_blockers_add(
            blockers,
            "this QEMU waits for a VM itself (-incoming): send from the one that runs it");
    for (size_t i = 0; i < sizeof(gone) / sizeof(gone[0]); i++) {
        if (!strcmp(ram->status, gone[i].status))
            ibx_blockers_add(blockers,
                             "the VM is in state %s, but must run or be paused to migrate: %s",
                             ram->status, gone[i].remedy);
    }
}

static int check_state(struct ibx_qmp *qmp, const struct ibx_guest_ram *ram,
                       enum ibx_migrate_role role, struct ibx_blockers *blockers,
                       uint64_t deadline_ns, struct ibx_error *err)
{
    json_t *info, *reason;
    int rc = ibx_qmp_execute(qmp, "query-migrate", NULL, &info, deadline_ns, err);
    if (rc)
        return rc;
    check_run_state(ram, role, blockers);
    if (role == IBX_MIGRATE_SOURCE)
        check_sleep(ibx_qmp_version(qmp), ram, blockers);
    const bool waits = !strcmp(ram->status, "inmigrate");
    if (waits && role == IBX_MIGRATE_DESTINATION)
        ibx_preflight_listening(ram, info, blockers);
    const char *status = json_string_value(json_object_get(info, "status"));
    /* Later versions of QEMU report "setup" while they listen. */
    if (!is_over(status) && !(waits && !strcmp(status, "setup")))
        /* The VM may already run at the other end: cancelling here might make it run twice. */
        ibx_blockers_add(blockers,
                         "a migration of this QEMU is under way already (%.32s): wait for its "
                         "end, or have whoever began it end it (ib-migrate status, cancel)",
                         status);
    size_t index;
    json_array_foreach(json_object_get(info, "blocked-reasons"), index, reason)
    {
        const char *text = json_string_value(reason);
        ibx_blockers_add(blockers,
                         "QEMU itself cannot migrate this VM (%.*s): remove that device or option",
                         TEXT_MAX, text ? text : "no reason given");
    }
    json_decref(info);
    return 0;
}

/* ------------------------------------------------------------ permissions */

void ibx_preflight_permissions(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers)
{
    /* pidfd_getfd checks the right to trace before it looks at the descriptor. */
    const int rc = ibx_proc_take(ram->pid, INT_MAX);
    struct ibx_error why;
    if ((rc == -EPERM || rc == -EACCES || rc == -ENOSYS) && ibx_fault_check_take(&why))
        ibx_blockers_add(blockers, "%s", why.message);
    else if (rc == -EPERM || rc == -EACCES)
        ibx_blockers_add(blockers,
                         "this tool may not trace QEMU (process %d): run it as root or with "
                         "CAP_SYS_PTRACE, or set sysctl kernel.yama.ptrace_scope=0 and run it "
                         "as QEMU's user (where that is 3, nobody may until the host restarts "
                         "with less)",
                         (int)ram->pid);
    else if (rc == -ESRCH)
        ibx_blockers_add(blockers, "QEMU (process %d) has ended", (int)ram->pid);
    if (ibx_uffd_possible(ram->pid, NULL, &why))
        ibx_blockers_add(blockers, "%s", why.message);
}

/* Refuses a VM of which pages are still missing: a missing page is a hole in the file of guest RAM,
 * like one that was never written. A userfaultfd that registers no memory for missing pages does
 * not count: the protection of a VM that has left, or one that QEMU could not close. */
static void check_missing_pages(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers)
{
    struct ibx_error why;
    const int awaits = blockers->returns ? 0 : ibx_uffd_awaits_pages(ram->pid, &why);
    if (!awaits)
        return;
    if (awaits < 0) {
        ibx_blockers_add(blockers, "%s", why.message);
        return;
    }
    ibx_blockers_add(blockers,
                     "the VM's migration to this QEMU (process %d) is not over, and pages that are "
                     "missing here would be zeros elsewhere: wait until ib-migrate status says "
                     "that it has all of them; a borrowed VM goes home by ib-migrate return",
                     (int)ram->pid);
}

void ibx_preflight_ask_ahead(struct ibx_qmp *qmp, uint64_t deadline_ns)
{
    ibx_qmp_ahead(qmp, "query-migrate", NULL, deadline_ns);
    ibx_qmp_ahead(qmp, "query-replay", NULL, deadline_ns);
    ibx_preflight_block_users_ask(qmp, deadline_ns);
    ibx_preflight_devices_ask(qmp, deadline_ns);
}

int ibx_preflight_qemu(struct ibx_qmp *qmp, const struct ibx_guest_ram *ram,
                       enum ibx_migrate_role role, struct ibx_blockers *blockers,
                       uint64_t deadline_ns, struct ibx_error *err)
{
    int rc = check_state(qmp, ram, role, blockers, deadline_ns, err);
    if (!rc)
        rc = ibx_preflight_replay(qmp, blockers, deadline_ns, err);
    if (!rc)
        rc = ibx_preflight_block_users(qmp, blockers, deadline_ns, err);
    if (!rc && role == IBX_MIGRATE_SOURCE)
        rc = ibx_preflight_hints(qmp, blockers, deadline_ns, err);
    return rc ? rc : ibx_preflight_devices(qmp, blockers, deadline_ns, err);
}

void ibx_preflight_host(const struct ibx_guest_ram *ram, enum ibx_migrate_role role,
                        struct ibx_blockers *blockers)
{
    ibx_preflight_ram(ram, blockers);
    ibx_preflight_ram_files(ram, blockers);
    ibx_preflight_commit("/proc", blockers);
    if (role == IBX_MIGRATE_DESTINATION) {
        ibx_preflight_permissions(ram, blockers);
        check_missing_possible(ram, blockers);
        ibx_preflight_pages(ram, blockers);
        if (!blockers->stands_still) /* with it, back ends of vhost-user devices may have it */
            ibx_preflight_users(ram, blockers);
        if (!blockers->takes_over) {
            ibx_preflight_space(ram, blockers);
            ibx_preflight_huge_pages(ram, blockers);
            ibx_preflight_host_memory(ram, blockers);
            ibx_preflight_memory_limit(ram, blockers);
        }
    } else {
        check_discarding(ram, blockers);
        check_missing_pages(ram, blockers);
    }
}

int ibx_preflight_side(struct ibx_qmp *qmp, const struct ibx_guest_ram *ram,
                       enum ibx_migrate_role role, struct ibx_blockers *blockers,
                       uint64_t deadline_ns, struct ibx_error *err)
{
    int rc = ibx_preflight_qemu(qmp, ram, role, blockers, deadline_ns, err);
    if (!rc)
        ibx_preflight_host(ram, role, blockers);
    return rc;
}

void ibx_preflight_ask(struct ibx_qmp *qmp, uint64_t deadline_ns)
{
    struct ibx_blockers *nobody = calloc(1, sizeof(*nobody));
    if (nobody && !ibx_preflight_block_users(qmp, nobody, deadline_ns, NULL))
        ibx_preflight_devices(qmp, nobody, deadline_ns, NULL);
    free(nobody);
}

/* ------------------------------------------------------------ locked memory */

static int block_bytes(const struct ibx_guest_ram *ram, const struct ibx_guest_block *block,
                       uint64_t *bytes, struct ibx_error *err)
{
    const uint64_t pages = block->size / block->page_size;
    const uint64_t piece =
        block->page_size > IBX_EXPORT_PIECE ? 1 : IBX_EXPORT_PIECE / block->page_size;
    uint64_t written, *bits = ibx_guest_bits_make(block, err);
    if (!bits)
        return -ENOMEM;
    int rc = ibx_guest_block_written(ram, block, bits, &written, err);
    for (uint64_t at = 0; !rc && at < pages; at += piece) {
        const uint64_t end = pages - at < piece ? pages : at + piece;
        *bytes +=
            ibx_guest_bits_next(bits, at, end, true) < end ? (end - at) * block->page_size : 0;
    }
    free(bits);
    return rc;
}

int ibx_preflight_locked_bytes(const struct ibx_guest_ram *ram, uint64_t *bytes,
                               struct ibx_error *err)
{
    uint64_t sum = 0;
    int rc = 0;
    for (size_t i = 0; !rc && i < ram->count; i++)
        if (ram->blocks[i].fd >= 0)
            rc = block_bytes(ram, &ram->blocks[i], &sum, err);
    if (!rc)
        *bytes = sum;
    return rc;
}

void ibx_preflight_locked(const char *fabric, uint64_t bytes, struct ibx_blockers *blockers)
{
    struct ibx_error why = {0};
    uint64_t limit;
    if (!ibx_locked_limit(&limit) || bytes <= limit)
        return;
    ibx_locked_error(&why, fabric, bytes, limit);
    ibx_blockers_add(blockers, "%s", why.message);
}
