/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Another client of QEMU removes a memory backend while pages are missing, for example after the
 * guest has ejected memory. QEMU unmaps it, and nothing waits for its pages. They are still
 * written to its file, which may be plugged in again. If a tool that recovers finds that the
 * file has been removed too, it drops the pages; otherwise the open descriptor keeps the file. */
#include "migrate/destination/ram.h"

#include "common/clock.h"
#include "common/write_whole.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Reading /proc/PID/maps takes up to some ms where QEMU has many threads, and other pages wait
 * meanwhile. In this time no guest takes memory into use that is plugged in again. */
#define LOOK_MS 10

/* 1: QEMU has the block mapped; 0: it has not. An error: QEMU is ending. */
static int find_mapping(const struct destination_ram *ram, unsigned i)
{
    return ibx_guest_block_find_mapping(ram->guest.pid, &ram->guest.blocks[i]);
}

bool ibx_destination_ram_unmapped(const struct destination_ram *ram, unsigned i)
{
    return !find_mapping(ram, i);
}

static int check_unmapped(struct destination_ram *ram, unsigned i, struct ibx_error *err)
{
    const struct ibx_guest_block *block = &ram->guest.blocks[i];
    if (ibx_now_ns() < atomic_load(&ram->unmapped_until_ns[i]))
        return 0;
    const int mapped = find_mapping(ram, i);
    if (mapped < 0)
        return -ENOENT;
    if (mapped) /* without a userfaultfd: the guest may have other data there by now */
        return ibx_error_set(err, -ESTALE,
                             "guest RAM %s (%s) was plugged in again before all of its pages had "
                             "come: unplug it (device_del, object-del in QEMU's monitor) until the "
                             "migration is complete",
                             block->id, block->path);
    atomic_store(&ram->unmapped_until_ns[i], ibx_deadline_in_ms(LOOK_MS));
    return 0;
}

/* Nothing is written to hugetlbfs but through a mapping, which reserves its pages. */
static int write_mapped(int fd, uint64_t at, const void *bytes, uint64_t length)
{
    void *memory = mmap(NULL, (size_t)length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)at);
    if (memory == MAP_FAILED)
        return -errno;
    memcpy(memory, bytes, (size_t)length);
    munmap(memory, (size_t)length);
    return 0;
}

int ibx_destination_ram_keep_unmapped(void *context, uint64_t page, uint64_t pages,
                                      const void *bytes, struct ibx_error *err)
{
    struct destination_ram *ram = context;
    const unsigned i = ibx_page_map_block(&ram->map, page);
    const struct ibx_guest_block *block = &ram->guest.blocks[i];
    const uint64_t length = pages * block->page_size,
                   at = block->offset + (page - ram->map.blocks[i].first) * block->page_size;
    const int rc = check_unmapped(ram, i, err);
    if (rc)
        return rc;
    if (block->gone) {
        if (ram->minor)
            madvise((uint8_t *)ram->aliases[i] + (at - block->offset), length, MADV_REMOVE);
        return 0;
    }
    if (ram->minor) /* READs have brought them there */
        return 0;
    return block->page_size > (uint64_t)sysconf(_SC_PAGESIZE)
               ? write_mapped(block->fd, at, bytes, length)
               : ibx_write_whole_at(block->fd, bytes, (size_t)length, at);
}
