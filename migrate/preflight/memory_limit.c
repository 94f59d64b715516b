/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How much memory this host has left, how much the control groups of a QEMU leave it, and the
 * file system of guest RAM. If guest RAM exceeds the limit, the kernel kills QEMU, which already
 * runs the VM, or another process. In minor mode a page is charged to the process that READs it
 * into the file, so the kernel kills the tool, and the VM waits. */
#include "migrate/preflight/preflight.h"

#include "common/control_groups.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysinfo.h>

#include <linux/magic.h>

#define ROOT "/sys/fs/cgroup"

/* Bytes that a receiving tool takes itself, as measured: WORKS, and for each connection the pages
 * in flight, 8 chunks, which have their largest size on a fast one. */
#define WORKS          (8ull << 20)
#define IN_FLIGHT      (4ull << 20)
#define IN_FLIGHT_MOST (8ull << 20)
#define NOTED          9 /* bytes noted for each page */

/* Names of the files in a control group, for both versions of them. */
struct files {
    const char *limit, *usage, *swap_limit, *swap_usage, *cache[2];
    bool second; /* `swap_limit` is of swap alone, not of both */
};

static const struct files first_version = {"memory.limit_in_bytes",
                                           "memory.usage_in_bytes",
                                           "memory.memsw.limit_in_bytes",
                                           "memory.memsw.usage_in_bytes",
                                           {"total_inactive_file ", "total_active_file "},
                                           false},
                          second_version = {"memory.max",
                                            "memory.current",
                                            "memory.swap.max",
                                            "memory.swap.current",
                                            {"inactive_file ", "active_file "},
                                            true},
                          slowing = {"memory.high",
                                     "memory.current",
                                     "memory.swap.max",
                                     "memory.swap.current",
                                     {"inactive_file ", "active_file "},
                                     true};

static FILE *open_in(const char *group, const char *name)
{
    char path[2 * PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", group, name);
    return fopen(path, "re");
}

/* Reads a number in a file of a group. False: there is no such file, or it has no number ("max").
 */
static bool read_bytes(const char *group, const char *name, uint64_t *bytes)
{
    FILE *file = open_in(group, name);
    const bool read = file && fscanf(file, "%" SCNu64, bytes) == 1;
    if (file)
        fclose(file);
    return read;
}

/* Bytes of cached files in the group that the kernel can drop. */
static uint64_t cached(const char *group, const struct files *files)
{
    char line[128];
    uint64_t sum = 0, bytes;
    FILE *file = open_in(group, "memory.stat");
    while (file && fgets(line, sizeof(line), file))
        for (unsigned i = 0; i < 2; i++) {
            const size_t length = strlen(files->cache[i]);
            if (!strncmp(line, files->cache[i], length) &&
                sscanf(line + length, "%" SCNu64, &bytes) == 1)
                sum += bytes;
        }
    if (file)
        fclose(file);
    return sum;
}

static uint64_t less(uint64_t from, uint64_t what)
{
    return from > what ? from - what : 0;
}

static uint64_t sum_of(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* Bytes that a group may still take; UINT64_MAX: it has no limit. */
static uint64_t room_in(const char *group, const struct files *files, uint64_t swap)
{
    uint64_t limit, usage, both;
    if (!read_bytes(group, files->limit, &limit) || !read_bytes(group, files->usage, &usage))
        return UINT64_MAX;
    const uint64_t forgets = cached(group, files);
    uint64_t room = sum_of(less(limit, usage), forgets);
    const bool limited = read_bytes(group, files->swap_limit, &limit) &&
                         read_bytes(group, files->swap_usage, &usage);
    both = less(limited ? limit : UINT64_MAX, limited ? usage : 0);
    if (files->second)
        return sum_of(room, both < swap ? both : swap);
    room = sum_of(room, swap);
    both = sum_of(both, forgets);
    return both < room ? both : room;
}

struct search {
    const struct files *first, *second; /* NULL: groups of this version are ignored */
    uint64_t swap, room;
    char *name;
};

static void look_at(void *context, const struct ibx_control_group *group)
{
    struct search *search = context;
    const struct files *files = group->second ? search->second : search->first;
    const bool looks = files && (group->second || !group->root);
    const uint64_t here = looks ? room_in(group->folder, files, search->swap) : UINT64_MAX;
    if (here >= search->room)
        return;
    search->room = here;
    snprintf(search->name, PATH_MAX, "%s", group->folder);
}

uint64_t ibx_preflight_memory_room(const char *root, const char *groups, uint64_t swap,
                                   char name[PATH_MAX])
{
    struct search search = {&first_version, &second_version, swap, UINT64_MAX, name};
    ibx_control_groups_of("memory", root, groups, look_at, &search);
    return search.room;
}

uint64_t ibx_preflight_memory_high(const char *root, const char *groups, uint64_t swap,
                                   char name[PATH_MAX])
{
    struct search search = {NULL, &slowing, swap, UINT64_MAX, name};
    ibx_control_groups_of("memory", root, groups, look_at, &search);
    return search.room;
}

/* The number after `columns` further columns of the line that begins with `word`; 0: there is none.
 */
static uint64_t number_in(FILE *file, const char *word, unsigned columns)
{
    char line[128];
    const size_t length = strlen(word);
    uint64_t number = 0;
    rewind(file);
    while (fgets(line, sizeof(line), file)) {
        if (strncmp(line, word, length))
            continue;
        const char *at = line + length;
        for (unsigned i = 0; i < columns; i++) {
            at += strspn(at, " ");
            at += strcspn(at, " ");
        }
        if (sscanf(at, "%" SCNu64, &number) == 1)
            break;
    }
    return number;
}

/* Bytes of files that ZFS caches and would give up; the kernel does not count them as available. */
static uint64_t cached_by_zfs(const char *proc)
{
    FILE *file = open_in(proc, "spl/kstat/zfs/arcstats");
    if (!file)
        return 0;
    const uint64_t bytes = less(number_in(file, "size ", 1), number_in(file, "c_min ", 1));
    fclose(file);
    return bytes;
}

uint64_t ibx_preflight_host_room(const char *proc)
{
    FILE *file = open_in(proc, "meminfo");
    if (!file)
        return UINT64_MAX;
    const uint64_t available = number_in(file, "MemAvailable:", 0);
    const uint64_t swap = number_in(file, "SwapFree:", 0);
    fclose(file);
    return available ? sum_of((available + swap) << 10, cached_by_zfs(proc)) : UINT64_MAX;
}

/* ------------------------------------------------------------ what may be committed */

/* What QEMU commits for a migration: the stacks of two threads, buffers, and some spare. */
#define QEMU_COMMITS (64ull << 20)

uint64_t ibx_preflight_commit_room(const char *proc)
{
    uint64_t way = 0;
    FILE *file = open_in(proc, "meminfo");
    if (!read_bytes(proc, "sys/vm/overcommit_memory", &way) || way != 2 || !file) {
        if (file)
            fclose(file);
        return UINT64_MAX;
    }
    const uint64_t limit = number_in(file, "CommitLimit:", 0);
    const uint64_t room = less(limit, number_in(file, "Committed_AS:", 0));
    fclose(file);
    return room << 10;
}

void ibx_preflight_commit(const char *proc, struct ibx_blockers *blockers)
{
    const uint64_t room = ibx_preflight_commit_room(proc);
    if (room < QEMU_COMMITS)
        ibx_blockers_add(blockers,
                         "this host promises no more memory than it has (vm.overcommit_memory is "
                         "2), and of its CommitLimit %" PRIu64 " MiB are left: QEMU ends when it "
                         "cannot get what a migration takes, up to %llu MiB; raise "
                         "vm.overcommit_ratio or vm.overcommit_kbytes, or end other programs",
                         room >> 20, QEMU_COMMITS >> 20);
}

/* ------------------------------------------------------------ what a VM needs of it */

#define SPARE 16u /* add 1/16 to what the VM holds: it goes on writing during the migration */

/* Sets `bytes` to the memory that a block takes now. False: it does not count, since it has huge
 * pages or is private. */
static bool held_of(const struct ibx_guest_block *block, uint64_t *bytes)
{
    struct statfs fs;
    struct stat st;
    if (block->fd < 0 || fstatfs(block->fd, &fs) || fs.f_type == HUGETLBFS_MAGIC ||
        fstat(block->fd, &st))
        return false;
    const uint64_t held = (uint64_t)st.st_blocks * 512;
    *bytes = held < block->size ? held : block->size;
    return true;
}

uint64_t ibx_preflight_held(const struct ibx_guest_ram *ram)
{
    uint64_t sum = 0, bytes;
    for (size_t i = 0; i < ram->count; i++)
        sum += held_of(&ram->blocks[i], &bytes) ? bytes : 0;
    return sum;
}

/* Bytes that are needed in addition to what is taken already. */
struct need {
    uint64_t most, now;      /* for all of the VM's RAM; for what the VM holds at present */
    const char *whose, *all; /* for messages */
};

static struct need need_of(const struct ibx_guest_ram *ram, uint64_t holds)
{
    struct need need = {.whose = "this VM", .all = "a VM of this size"};
    uint64_t there = 0, bytes;
    for (size_t i = 0; i < ram->count; i++) {
        if (!held_of(&ram->blocks[i], &bytes))
            continue;
        need.most += ram->blocks[i].size - bytes;
        there += bytes;
    }
    need.now = less(sum_of(holds, holds / SPARE), there);
    need.now = need.now < need.most ? need.now : need.most;
    return need;
}

/* Where `bytes` are left, for messages: `remedy` would make more, and without it `end` happens. */
struct room {
    const char *where, *what, *remedy, *end;
    uint64_t bytes;
};

static void judge(const struct room *room, const struct need *need, struct ibx_blockers *blockers)
{
    if (room->bytes < need->now)
        ibx_blockers_add(blockers,
                         "%s has %" PRIu64 " MiB%s left and %s needs %" PRIu64
                         " MiB more: %s; %s where a page finds no room",
                         room->where, room->bytes >> 20, room->what, need->whose, need->now >> 20,
                         room->remedy, room->end);
    else if (room->bytes < need->most)
        ibx_blockers_note(blockers,
                          "%s has %" PRIu64 " MiB%s left and %s may come to need %" PRIu64
                          " MiB more: %s then, or %s where a page finds no room",
                          room->where, room->bytes >> 20, room->what, need->all, need->most >> 20,
                          room->remedy, room->end);
}

#define GROUPS_BYTES (2 * PATH_MAX)

static void groups_of(const char *process, char groups[GROUPS_BYTES])
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%s/cgroup", process);
    FILE *file = fopen(path, "re");
    const size_t n = file ? fread(groups, 1, GROUPS_BYTES - 1, file) : 0;
    if (file)
        fclose(file);
    groups[n] = '\0';
}

/* Bytes that its control groups leave to a process (`process` is its name in /proc), by their
 * limits, or with `slow` by memory.high; `name` is set to the group that leaves least. */
static uint64_t room_of(const char *process, bool slow, char name[PATH_MAX])
{
    char groups[GROUPS_BYTES];
    struct sysinfo host = {0};
    groups_of(process, groups);
    sysinfo(&host);
    const uint64_t swap = (uint64_t)host.freeswap * host.mem_unit;
    return slow ? ibx_preflight_memory_high(ROOT, groups, swap, name)
                : ibx_preflight_memory_room(ROOT, groups, swap, name);
}

static void judge_host(const struct need *need, const char *end, struct ibx_blockers *blockers)
{
    const struct room room = {.where = "this host (MemAvailable and SwapFree of /proc/meminfo)",
                              .what = " of memory",
                              .remedy = "free memory or add swap",
                              .end = end,
                              .bytes = ibx_preflight_host_room("/proc")};
    judge(&room, need, blockers);
}

void ibx_preflight_host_memory(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers)
{
    const struct need need = need_of(ram, blockers->holds);
    judge_host(&need, "the kernel ends this QEMU or another process", blockers);
}

/* Adds a note, not a blocker, about memory.high: beyond it the kernel slows processes down but ends
 * none. */
static void judge_slowing(const char *process, const struct need *need,
                          struct ibx_blockers *blockers)
{
    char name[PATH_MAX] = "";
    const uint64_t bytes = room_of(process, true, name);
    if (bytes < need->now)
        ibx_blockers_note(blockers,
                          "the control group of QEMU, %.200s, has %" PRIu64
                          " MiB left up to its memory.high and %s needs %" PRIu64
                          " MiB more: beyond that the kernel lets QEMU, and the VM, run slowly; "
                          "raise it (MemoryHigh= of systemd)",
                          name, bytes >> 20, need->whose, need->now >> 20);
}

void ibx_preflight_memory_limit(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers)
{
    char process[32], name[PATH_MAX] = "", where[300];
    const struct need need = need_of(ram, blockers->holds);
    struct room room = {.where = where,
                        .what = " of memory",
                        .remedy = "raise its limit (MemoryMax= of systemd, <hard_limit> of "
                                  "libvirt, that of the container)",
                        .end = "the kernel ends QEMU"};
    snprintf(process, sizeof(process), "%d", (int)ram->pid);
    room.bytes = room_of(process, false, name);
    snprintf(where, sizeof(where), "the control group of QEMU, %.200s,", name);
    judge(&room, &need, blockers);
    judge_slowing(process, &need, blockers);
}

/* Judges the control group of this process; `which` says which pages are charged to it. */
static void judge_own(const struct need *need, const char *which, const char *remedy,
                      struct ibx_blockers *blockers)
{
    char name[PATH_MAX] = "", where[400];
    const struct room room = {.where = where,
                              .what = " of memory",
                              .remedy = remedy,
                              .end = "the kernel ends ib-migrate",
                              .bytes = room_of("self", false, name)};
    snprintf(where, sizeof(where), "the control group of this ib-migrate, %.200s, to which %s,",
             name, which);
    judge(&room, need, blockers);
}

void ibx_preflight_memory_limit_minor(const struct ibx_guest_ram *ram,
                                      struct ibx_blockers *blockers)
{
    const struct need need = need_of(ram, blockers->holds);
    judge_own(&need, "the pages count that it READs into place (--minor)",
              "raise its limit (MemoryMax= of systemd, that of the container) or leave out --minor",
              blockers);
}

void ibx_preflight_memory_limit_own(const struct ibx_guest_ram *ram, unsigned links,
                                    struct ibx_blockers *blockers)
{
    struct need need = {.whose = "this migration", .all = "this migration"};
    uint64_t notes = 0;
    for (size_t i = 0; i < ram->count; i++)
        notes += ram->blocks[i].size / ram->blocks[i].page_size * NOTED;
    need.now = notes + WORKS + links * IN_FLIGHT;
    need.most = notes + WORKS + links * IN_FLIGHT_MOST;
    judge_own(&need, "what it fetches and notes counts",
              "raise its limit (MemoryMax= of systemd, that of the container)", blockers);
}

/* ------------------------------------------------------------ huge pages */

struct huge_search {
    const char *root;
    const struct ibx_huge_pages *pages;
    uint64_t room;
    char *name;
};

struct huge_membership {
    const char *folder;
    bool found;
};

static void look_for_folder(void *context, const struct ibx_control_group *group)
{
    struct huge_membership *membership = context;
    membership->found |= !strcmp(group->folder, membership->folder);
}

static void look_at_huge(void *context, const struct ibx_control_group *group)
{
    struct huge_search *search = context;
    const struct ibx_huge_pages *pages = search->pages;
    const uint64_t mib = pages->size >> 20;
    struct huge_membership qemu = {.folder = group->folder};
    char limit[64], usage[64];
    uint64_t most, now, room;
    snprintf(limit, sizeof(limit), "hugetlb.%" PRIu64 "MB.%s", mib,
             group->second ? "max" : "limit_in_bytes");
    snprintf(usage, sizeof(usage), "hugetlb.%" PRIu64 "MB.%s", mib,
             group->second ? "current" : "usage_in_bytes");
    if (!read_bytes(group->folder, limit, &most) || !read_bytes(group->folder, usage, &now))
        return;
    ibx_control_groups_of("hugetlb", search->root, pages->owner_groups, look_for_folder, &qemu);
    room = sum_of(less(most, now), qemu.found ? pages->there : 0);
    if (room >= search->room)
        return;
    search->room = room;
    snprintf(search->name, PATH_MAX, "%s", group->folder);
}

uint64_t ibx_preflight_huge_room(const char *root, const char *groups,
                                 const struct ibx_huge_pages *pages, char name[PATH_MAX])
{
    struct huge_search search = {root, pages, UINT64_MAX, name};
    ibx_control_groups_of("hugetlb", root, groups, look_at_huge, &search);
    return search.room;
}

/* All of them count when they are placed. Those that are there are dropped before: they count
 * towards the groups of QEMU, which allocated them. */
void ibx_preflight_huge_limit(const char *root, const char *groups, const char *qemu_groups,
                              const struct ibx_guest_ram *ram, struct ibx_blockers *blockers)
{
    char name[PATH_MAX] = "";
    struct ibx_huge_pages pages = {.owner_groups = qemu_groups};
    uint64_t bytes = 0;
    struct stat st;
    for (size_t i = 0; i < ram->count; i++) {
        const struct ibx_guest_block *block = &ram->blocks[i];
        if (block->fd < 0 || block->page_size < 1 << 20 || fstat(block->fd, &st))
            continue;
        pages.size = block->page_size; /* only those of one size are fetched */
        bytes += block->size;
        pages.there += (uint64_t)st.st_blocks * 512;
    }
    const uint64_t room =
        pages.size ? ibx_preflight_huge_room(root, groups, &pages, name) : UINT64_MAX;
    if (bytes > room)
        ibx_blockers_add(blockers,
                         "the control group of this ib-migrate, %.200s, to which the huge pages "
                         "that it places count, may take %" PRIu64 " MiB of them and this VM has "
                         "%" PRIu64 " MiB: raise its limit (hugetlb.%" PRIu64
                         "MB.max, or limit_in_bytes); the VM waits where a page finds no room",
                         name, room >> 20, bytes >> 20, pages.size >> 20);
}

void ibx_preflight_huge_limit_own(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers)
{
    char process[32], groups[GROUPS_BYTES], qemu_groups[GROUPS_BYTES];
    groups_of("self", groups);
    snprintf(process, sizeof(process), "%d", (int)ram->pid);
    groups_of(process, qemu_groups);
    ibx_preflight_huge_limit(ROOT, groups, qemu_groups, ram, blockers);
}

/* ------------------------------------------------------------ the file system of its files */

/* The need on the file system of a block, by all blocks that are on it: all that the VM brings may
 * have to go there, and if this QEMU takes memory over, into the holes of that. */
static struct need need_beside(const struct ibx_guest_ram *ram, const struct ibx_guest_block *block,
                               const struct ibx_blockers *blockers)
{
    const uint64_t holds = blockers->holds,
                   own = blockers->takes_over ? ibx_preflight_held(ram) : 0;
    const struct need all = need_of(ram, sum_of(holds, own));
    struct need need = all;
    uint64_t bytes;
    need.most = 0;
    for (size_t i = 0; i < ram->count; i++)
        if (ram->blocks[i].dev == block->dev && held_of(&ram->blocks[i], &bytes))
            need.most += ram->blocks[i].size - bytes;
    need.now = all.now < need.most ? all.now : need.most;
    return need;
}

#define ENLARGE "enlarge it (a tmpfs: mount -o remount,size=...) or free space"

void ibx_preflight_space(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers)
{
    for (size_t i = 0; i < ram->count; i++) {
        const struct ibx_guest_block *block = &ram->blocks[i];
        char where[PATH_MAX + 32];
        bool counted = false;
        for (size_t k = 0; k < i; k++)
            counted |= ram->blocks[k].fd >= 0 && ram->blocks[k].dev == block->dev;
        struct statfs fs;
        /* Huge pages are reserved when QEMU maps them; no blocks means no limit. */
        if (counted || block->fd < 0 || fstatfs(block->fd, &fs) || fs.f_type == HUGETLBFS_MAGIC ||
            !fs.f_blocks)
            continue;
        const struct need need = need_beside(ram, block, blockers);
        const struct room room = {
            .where = where,
            .what = "",
            .remedy = ENLARGE,
            .end = "the VM hangs, and once it has all of its pages QEMU ends (SIGBUS),",
            .bytes = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize};
        snprintf(where, sizeof(where), "the file system of %s",
                 block->path[0] ? block->path : block->id);
        judge(&room, &need, blockers);
    }
}

/* ------------------------------------------------------------ a cache of a snapshot */

void ibx_preflight_fill(int folder, const char *path, uint64_t bytes, bool all,
                        struct ibx_blockers *blockers)
{
    const struct need need = {.most = bytes,
                              .now = all ? bytes : 0,
                              .whose = "what is to come of this snapshot",
                              .all = "all of this snapshot"};
    char where[PATH_MAX + 32];
    struct statfs fs;
    judge_host(&need, "the kernel ends this ib-migrate or another process", blockers);
    judge_own(&need, "the pages of a cache count",
              "raise its limit (MemoryMax= of systemd, that of the container)", blockers);
    if (fstatfs(folder, &fs) || !fs.f_blocks)
        return;
    const struct need waits = {.most = bytes, .whose = need.whose, .all = need.all};
    const struct room room = {.where = where,
                              .what = "",
                              .remedy = ENLARGE,
                              .end = "it waits until there is room",
                              .bytes = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize};
    snprintf(where, sizeof(where), "the file system of %s", path);
    judge(&room, &waits, blockers);
}
