/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Huge pages that QEMU has not reserved for guest RAM (reserve=off). `receive` reserves them when
 * it has emptied the file, and refuses the VM if there are too few: this is what `check` has to
 * know, without reserving any.
 */
#include "migrate/preflight/preflight.h"

#include "userfaultfd/fault.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* A number of /sys/kernel/mm/hugepages; 0: there is none. */
static uint64_t read_count(uint64_t page_size, const char *name)
{
    char path[128];
    uint64_t count = 0;
    snprintf(path, sizeof(path), "/sys/kernel/mm/hugepages/hugepages-%" PRIu64 "kB/%s",
             page_size >> 10, name);
    FILE *file = fopen(path, "re");
    if (file && fscanf(file, "%" SCNu64, &count) != 1)
        count = 0;
    if (file)
        fclose(file);
    return count;
}

/* How many may still be reserved on this host. */
static uint64_t count_free(uint64_t page_size)
{
    const uint64_t free_now = read_count(page_size, "free_hugepages"),
                   reserved = read_count(page_size, "resv_hugepages"),
                   most = read_count(page_size, "nr_overcommit_hugepages"),
                   surplus = read_count(page_size, "surplus_hugepages");
    return (free_now > reserved ? free_now - reserved : 0) + (most > surplus ? most - surplus : 0);
}

static bool is_unreserved(void *context, uint64_t start, uint64_t end, const char *flags)
{
    const struct ibx_guest_block *block = context;
    return block->address >= start && block->address < end && strstr(flags, " nr");
}

/* How many this block has to get; 0: QEMU has reserved them, or they are no huge pages of 2 MiB,
 * the only ones that are fetched. */
static uint64_t count_needed(const struct ibx_guest_ram *ram, struct ibx_guest_block *block)
{
    struct stat st;
    if (block->fd < 0 || block->page_size <= 4096 || !ibx_fault_serves_pages_of(block->page_size) ||
        fstat(block->fd, &st) || ibx_proc_find_flags(ram->pid, is_unreserved, block) != 1)
        return 0;
    const uint64_t pages = block->size / block->page_size,
                   has = (uint64_t)st.st_blocks * 512 / block->page_size;
    return pages > has ? pages - has : 0;
}

/* Whether the file of a block that needs more pages than are left has its reservation already, from
 * a tool before this one. Nobody shows that, so it is tried: a file without one gets none. With
 * fewer pages it would get one, and keep what other processes may be about to use. */
static bool is_reserved(const struct ibx_guest_block *block)
{
    void *at = mmap(NULL, block->size, PROT_READ, MAP_SHARED, block->fd, (off_t)block->offset);
    if (at != MAP_FAILED)
        munmap(at, block->size);
    return at != MAP_FAILED;
}

static void add(const struct ibx_guest_block *block, uint64_t needed, uint64_t before,
                uint64_t left, struct ibx_blockers *blockers)
{
    const uint64_t kib = block->page_size >> 10;
    if (needed > left)
        ibx_blockers_add(blockers,
                         "QEMU has not reserved the huge pages of guest RAM %s (reserve=off), and "
                         "of the %" PRIu64 " of %" PRIu64 " KiB that it needs, %" PRIu64
                         " are free: make room for them (vm.nr_hugepages)",
                         block->id, needed, kib, left > before ? left - before : 0);
    else
        ibx_blockers_note(blockers,
                          "QEMU has not reserved the huge pages of guest RAM %s (reserve=off), and "
                          "of the %" PRIu64 " of %" PRIu64 " KiB that it needs with the RAM before "
                          "it, %" PRIu64 " are free: if an earlier receive has not reserved them, "
                          "the VM will be refused, so make room for them (vm.nr_hugepages)",
                          block->id, before + needed, kib, left);
}

void ibx_preflight_huge_pages(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers)
{
    uint64_t before = 0;
    for (size_t i = 0; i < ram->count; i++) {
        struct ibx_guest_block *block = &ram->blocks[i];
        const uint64_t needed = count_needed(ram, block);
        const uint64_t left = needed ? count_free(block->page_size) : 0;
        if (!needed || (needed > left && is_reserved(block)))
            continue;
        if (before + needed > left)
            add(block, needed, before, left, blockers);
        before += needed;
    }
}
