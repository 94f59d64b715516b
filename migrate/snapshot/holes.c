/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Parts of guest RAM that a whole snapshot's files do not have, because they are zero. A child that
 * reads such a page, or writes to it, through its mapping of the file first puts a page of zeros
 * into the file. On tmpfs that takes memory for good, and if the tmpfs is full, the kernel ends the
 * child by SIGBUS. So the longest of these parts become private memory of the child.
 */
#include "migrate/snapshot/cache.h"

#include "migrate/preflight/preflight.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define STEP (1ull << 20) /* bytes: holes are found in units of this */

/* Adds a hole, in place of a shorter one if there are too many. */
static void keep(struct snapshot_holes *holes, unsigned block, uint64_t offset, uint64_t length)
{
    struct snapshot_hole *least = &holes->at[0];
    if (holes->count < SNAPSHOT_HOLES) {
        least = &holes->at[holes->count++];
    } else {
        for (unsigned i = 1; i < SNAPSHOT_HOLES; i++)
            least = holes->at[i].length < least->length ? &holes->at[i] : least;
        if (least->length >= length)
            return;
    }
    *least = (struct snapshot_hole){block, offset, length};
}

/* Asks at each step where data begins (SEEK_DATA). SEEK_HOLE would be slow: in a file without holes
 * the kernel would look at every page. */
static void find_in(struct snapshot_holes *holes, unsigned block, int fd, uint64_t size)
{
    for (uint64_t at = 0, data; at < size; at = data) {
        const off_t found = lseek(fd, (off_t)at, SEEK_DATA);
        if (found < 0 && errno != ENXIO)
            return; /* unknown, so it may be data */
        data = found < 0 || (uint64_t)found > size ? size : (uint64_t)found;
        data -= data < size ? data % STEP : 0;
        if (data > at)
            keep(holes, block, at, data - at);
        else
            data = at + STEP;
    }
}

void ibx_snapshot_holes_find(const struct ibx_snapshot_folder *folder, struct snapshot_holes *holes)
{
    holes->count = 0;
    for (unsigned i = 0; i < folder->manifest.ram_count; i++)
        find_in(holes, i, folder->fds[i], folder->sizes[i]);
}

void ibx_snapshot_holes_room(const struct ibx_snapshot_folder *folder,
                             const struct snapshot_holes *holes, struct ibx_blockers *blockers)
{
    struct statfs fs;
    struct stat st;
    uint64_t need = 0, room;
    if (fstatfs(folder->at, &fs) || fs.f_type != TMPFS_MAGIC || !fs.f_blocks)
        return;
    for (unsigned i = 0; i < folder->manifest.ram_count; i++) {
        const uint64_t there = fstat(folder->fds[i], &st) ? 0 : (uint64_t)st.st_blocks * 512;
        need += folder->sizes[i] > there ? folder->sizes[i] - there : 0;
    }
    for (unsigned i = 0; i < holes->count; i++)
        need -= holes->at[i].length < need ? holes->at[i].length : need;
    room = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize;
    if (room < need)
        ibx_blockers_add(blockers,
                         "the tmpfs of %.200s has %" PRIu64 " KiB left, and its children may need "
                         "%" PRIu64 " KiB there, for pages of zeros: enlarge it (mount -o "
                         "remount,size=...) or free space; a child would be killed for want of it",
                         folder->path, room >> 10, need >> 10);
}

/* ------------------------------------------------------------ by a map, as text */

json_t *ibx_snapshot_holes_json(const struct ibx_page_map *map, unsigned blocks)
{
    struct snapshot_holes holes = {.count = 0};
    json_t *list = json_array();
    for (unsigned i = 0; i < blocks; i++) {
        const uint64_t first = map->blocks[i].first, end = first + map->blocks[i].pages;
        for (uint64_t from = first, to; from < end; from = to) {
            from = ibx_guest_bits_next(map->bits, from, end, false);
            to = ibx_guest_bits_next(map->bits, from, end, true);
            if ((to - from) * IBX_SNAPSHOT_PAGE >= STEP)
                keep(&holes, i, (from - first) * IBX_SNAPSHOT_PAGE,
                     (to - from) * IBX_SNAPSHOT_PAGE);
        }
    }
    for (unsigned i = 0; list && i < holes.count; i++)
        json_array_append_new(list, json_pack("[i, I, I]", (int)holes.at[i].block,
                                              (json_int_t)holes.at[i].offset,
                                              (json_int_t)holes.at[i].length));
    return list;
}

void ibx_snapshot_holes_read(const json_t *json, const struct ibx_snapshot_folder *folder,
                             struct snapshot_holes *holes)
{
    json_t *item;
    size_t i;
    holes->count = 0;
    json_array_foreach((json_t *)(uintptr_t)json, i, item)
    {
        int block = -1;
        json_int_t offset = -1, length = -1;
        const bool good = i < SNAPSHOT_HOLES &&
                          !json_unpack(item, "[i, I, I]", &block, &offset, &length) && block >= 0 &&
                          (unsigned)block < folder->manifest.ram_count && offset >= 0 &&
                          length > 0 && (offset | length) % IBX_SNAPSHOT_PAGE == 0 &&
                          (uint64_t)offset <= folder->sizes[block] &&
                          (uint64_t)length <= folder->sizes[block] - (uint64_t)offset;
        if (!good) {
            holes->count = 0;
            return;
        }
        holes->at[holes->count++] =
            (struct snapshot_hole){(unsigned)block, (uint64_t)offset, (uint64_t)length};
    }
}
