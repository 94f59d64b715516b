/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Copies guest RAM to the file of a snapshot's block; pages of zeros become holes. */
#include "migrate/snapshot/snapshot.h"

#include "common/write_whole.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int ibx_snapshot_put(int fd, const uint8_t *bytes, uint64_t length, uint64_t at, const char *what,
                     struct ibx_error *err)
{
    const int rc = ibx_write_whole_at(fd, bytes, (size_t)length, at);
    return rc ? ibx_error_set(err, rc,
                              "%s cannot be written into the snapshot: %s; %s, or choose "
                              "another folder", /* whose filesystem may take longer files */
                              what, strerror(-rc), ibx_write_remedy(rc, "free space there"))
              : 0;
}

/* Copies the runs of pages in [from, end) that are not zero. */
static int copy_run(const uint8_t *memory, uint64_t from, uint64_t end, int fd, bool (*ends)(void),
                    struct ibx_error *err)
{
    while (from < end) {
        uint64_t to;
        while (from < end && ibx_snapshot_page_is_zero(memory + from))
            from += IBX_SNAPSHOT_PAGE;
        for (to = from;
             to < end && to - from < (1u << 20) && !ibx_snapshot_page_is_zero(memory + to);)
            to += IBX_SNAPSHOT_PAGE;
        if (ends && ends())
            return ibx_error_set(err, -EINTR, "guest RAM was copied in part");
        int rc = ibx_snapshot_put(fd, memory + from, to - from, from, "guest RAM", err);
        if (rc)
            return rc;
        from = to;
    }
    return 0;
}

int ibx_snapshot_copy_block(const struct ibx_guest_ram *ram, const struct ibx_guest_block *block,
                            int fd, bool (*ends)(void), struct ibx_error *err)
{
    const uint64_t pages = block->size / block->page_size;
    uint64_t count, *bits = ibx_guest_bits_make(block, err);
    int rc = bits ? ibx_guest_block_written(ram, block, bits, &count, err) : -ENOMEM;
    uint8_t *memory = rc ? MAP_FAILED
                         : mmap(NULL, (size_t)block->size, PROT_READ, MAP_SHARED, block->fd,
                                (off_t)block->offset);
    if (!rc && memory == MAP_FAILED)
        rc = ibx_error_set(err, -errno, "guest RAM %s cannot be mapped: %s", block->id,
                           strerror(errno));
    for (uint64_t from = 0, to; !rc && from < pages; from = to) {
        from = ibx_guest_bits_next(bits, from, pages, true);
        to = ibx_guest_bits_next(bits, from, pages, false);
        rc = copy_run(memory, from * block->page_size, to * block->page_size, fd, ends, err);
    }
    if (memory != MAP_FAILED)
        munmap(memory, (size_t)block->size);
    free(bits);
    return rc;
}
