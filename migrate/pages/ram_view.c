/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/pages/ram_view.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ /* Linux 5.14 */
#define MADV_POPULATE_READ 22
#endif

struct ibx_ram_view {
    _Atomic unsigned holders;
    unsigned count;
    struct {
        uint8_t *memory;
        size_t size;
    } blocks[];
};

static int block_map(struct ibx_ram_view *view, const struct ibx_guest_block *block, bool pins,
                     struct ibx_error *err)
{
    int prot = PROT_READ;
    if (block->fd < 0 || !block->size)
        return ibx_error_set(err, -EINVAL, "memory backend %s is not shared: it cannot be exposed",
                             block->id);
    const int flags = fcntl(block->fd, F_GETFL);
    if (pins && flags >= 0 && (flags & O_ACCMODE) == O_RDWR)
        prot |= PROT_WRITE;
    void *memory =
        mmap(NULL, (size_t)block->size, prot, MAP_SHARED, block->fd, (off_t)block->offset);
    if (memory == MAP_FAILED)
        return ibx_error_set(err, -errno, "memory backend %s (%llu bytes) cannot be mapped: %s",
                             block->id, (unsigned long long)block->size, strerror(errno));
    madvise(memory, (size_t)block->size, MADV_DONTDUMP);
    /* With this advice the kernel does not treat the pages as used again: otherwise the unmapping
     * at the end would move them to the list of active pages, which takes twice as long. */
    madvise(memory, (size_t)block->size, MADV_SEQUENTIAL);
    view->blocks[view->count].memory = memory;
    view->blocks[view->count++].size = (size_t)block->size;
    return 0;
}

int ibx_ram_view_open(const struct ibx_guest_ram *ram, bool pins, struct ibx_ram_view **out,
                      struct ibx_error *err)
{
    struct ibx_ram_view *view = calloc(1, sizeof(*view) + ram->count * sizeof(view->blocks[0]));
    if (!view)
        return ibx_error_set(err, -ENOMEM, "no memory for %zu memory backends", ram->count);
    view->holders = 1;
    for (size_t i = 0; i < ram->count; i++) {
        const int rc = block_map(view, &ram->blocks[i], pins, err);
        if (rc) {
            ibx_ram_view_drop(view);
            return rc;
        }
    }
    *out = view;
    return 0;
}

struct ibx_ram_view *ibx_ram_view_hold(struct ibx_ram_view *view)
{
    if (view)
        atomic_fetch_add(&view->holders, 1);
    return view;
}

void ibx_ram_view_drop(struct ibx_ram_view *view)
{
    if (!view || atomic_fetch_sub(&view->holders, 1) > 1)
        return;
    for (unsigned i = 0; i < view->count; i++)
        munmap(view->blocks[i].memory, view->blocks[i].size);
    free(view);
}

uint8_t *ibx_ram_view_bytes(const struct ibx_ram_view *view, unsigned block, uint64_t offset)
{
    return view->blocks[block].memory + offset;
}

/* Copies them by pread(2). */
static int read_bytes(const struct ibx_guest_block *from, uint64_t at, size_t length,
                      uint8_t *buffer, struct ibx_error *err)
{
    for (size_t done = 0; done < length;) {
        const ssize_t n =
            pread(from->fd, buffer + done, length - done, (off_t)(from->offset + at + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return ibx_error_set(err, n ? -errno : -EIO,
                                 "guest RAM %s cannot be read at byte 0x%" PRIx64 ": %s", from->id,
                                 at + done, n ? strerror(errno) : "its file has become shorter");
        done += (size_t)n;
    }
    return 0;
}

int ibx_ram_view_find(const struct ibx_ram_view *view, const struct ibx_guest_block *from,
                      unsigned block, uint64_t at, size_t length, uint8_t *buffer,
                      const uint8_t **found, struct ibx_error *err)
{
    uint8_t *bytes = view ? ibx_ram_view_bytes(view, block, at) : NULL;
    const bool ready = bytes && !madvise(bytes, length, MADV_POPULATE_READ);
    const int rc = ready ? 0 : read_bytes(from, at, length, buffer, err);
    if (!rc)
        *found = ready ? bytes : buffer;
    return rc;
}
