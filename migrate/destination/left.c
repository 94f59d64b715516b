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

int ibx_destination_ram_keep_left(void *context, uint64_t page, uint64_t pages, const void *bytes)
{
    const struct destination_ram *ram = context;
    const unsigned i = ibx_page_map_block(&ram->map, page);
    const struct ibx_guest_block *block = &ram->guest.blocks[i];
    const uint64_t length = pages * block->page_size,
                   at = block->offset + (page - ram->map.blocks[i].first) * block->page_size;
    uint64_t done = 0;
    if (!ibx_destination_ram_left(ram, i))
        return -ENOENT;
    while (!ram->minor && done < length) { /* in minor mode READs have brought them there */
        const ssize_t n = pwrite(block->fd, (const uint8_t *)bytes + done, (size_t)(length - done),
                                 (off_t)(at + done));
        if (n <= 0 && errno != EINTR)
            return n ? -errno : -ENOSPC;
        done += n > 0 ? (uint64_t)n : 0;
    }
    return 0;
}
