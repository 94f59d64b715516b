/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A memory backend that another client of QEMU removes while pages are missing, as when the guest
 * has ejected memory: QEMU unmaps it, and nobody waits for its pages. They belong in its file all
 * the same, which may be plugged in again.
 */
#include "migrate/destination/ram.h"
#include "migrate/qemu/qemu_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

bool ibx_destination_ram_left(const struct destination_ram *ram, unsigned i)
{
    struct guest_mappings mappings;
    if (ibx_guest_mappings_read(ram->guest.pid, &mappings, NULL))
        return false;
    const bool left = !ibx_guest_block_is_mapped(&mappings, &ram->guest.blocks[i]);
    ibx_guest_mappings_fini(&mappings);
    return left;
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

static int write_all(int fd, uint64_t at, const uint8_t *bytes, uint64_t length)
{
    uint64_t done = 0;
    while (done < length) {
        const ssize_t n = pwrite(fd, bytes + done, (size_t)(length - done), (off_t)(at + done));
        if (n <= 0 && errno != EINTR)
            return n ? -errno : -ENOSPC;
        done += n > 0 ? (uint64_t)n : 0;
    }
    return 0;
}

int ibx_destination_ram_keep_left(void *context, uint64_t page, uint64_t pages, const void *bytes)
{
    const struct destination_ram *ram = context;
    const unsigned i = ibx_page_map_block(&ram->map, page);
    const struct ibx_guest_block *block = &ram->guest.blocks[i];
    const uint64_t length = pages * block->page_size,
                   at = block->offset + (page - ram->map.blocks[i].first) * block->page_size;
    if (!ibx_destination_ram_left(ram, i))
        return -ENOENT;
    if (ram->minor) /* READs have brought them there */
        return 0;
    return block->page_size > (uint64_t)sysconf(_SC_PAGESIZE)
               ? write_mapped(block->fd, at, bytes, length)
               : write_all(block->fd, at, bytes, length);
}
