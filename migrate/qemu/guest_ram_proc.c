/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/qemu/qemu_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define REPLACED        "\xef\xbf\xbd" /* QEMU tells this for a byte that is not UTF-8 */
#define PAGEMAP_PRESENT (1ull << 63)
#define PAGEMAP_SWAPPED (1ull << 62) /* or being moved by the kernel */

int ibx_process_status(pid_t pid, const char *key, int base, unsigned long long *value,
                       struct ibx_error *err)
{
    char path[64], line[256];
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file) {
        const int rc = ibx_proc_error(pid, errno);
        return ibx_error_set(err, rc, "cannot read %s: %s%s", path, strerror(-rc),
                             ibx_proc_remedy(rc));
    }
    *value = 0;
    while (fgets(line, sizeof(line), file))
        if (!strncmp(line, key, strlen(key)))
            *value = strtoull(line + strlen(key), NULL, base);
    fclose(file);
    return 0;
}

/* ------------------------------------------------------------ mappings */

static bool continues(const struct guest_mapping *last, const struct guest_mapping *m)
{
    return last->end == m->start && last->dev == m->dev && last->ino == m->ino &&
           last->offset + (last->end - last->start) == m->offset;
}

/* Makes room for one more: there is room for as many as the next power of two. */
static int make_room(struct guest_mappings *mappings)
{
    const size_t count = mappings->count;
    if (count & (count - 1))
        return 0;
    struct guest_mapping *items =
        reallocarray(mappings->items, count ? 2 * count : 1, sizeof(*mappings->items));
    mappings->items = items ? items : mappings->items;
    return items ? 0 : -ENOMEM;
}

static int add_mapping(struct guest_mappings *mappings, const struct guest_mapping *m,
                       const char *path)
{
    struct guest_mapping *last = mappings->count ? &mappings->items[mappings->count - 1] : NULL;
    if (last && continues(last, m)) {
        last->end = m->end;
        return 0;
    }
    /* As short as it is: a process may have a great many mappings. */
    char *copy = make_room(mappings) ? NULL : strndup(path, PATH_MAX - 1);
    if (!copy)
        return -ENOMEM;
    mappings->items[mappings->count] = *m;
    mappings->items[mappings->count++].path = copy;
    return 0;
}

struct reading {
    struct guest_mappings found;
    int rc;
};

/* Adds a mapping. True: no more can be added, so the search ends. */
static bool add_shared(void *context, const struct ibx_proc_mapping *m)
{
    struct reading *reading = context;
    if (m->permissions[1] != 'w' || m->permissions[3] != 's' || !m->ino)
        return false;
    const struct guest_mapping shared = {.start = m->start,
                                         .end = m->end,
                                         .part_end = m->end,
                                         .offset = m->offset,
                                         .dev = m->dev,
                                         .ino = m->ino};
    reading->rc = add_mapping(&reading->found, &shared, m->path);
    return reading->rc != 0;
}

int ibx_guest_mappings_read(pid_t pid, struct guest_mappings *mappings, struct ibx_error *err)
{
    struct reading reading = {0};
    int rc = ibx_proc_find_mapping(pid, add_shared, &reading);
    rc = rc < 0 ? rc : reading.rc;
    if (rc) {
        ibx_guest_mappings_fini(&reading.found);
        return ibx_error_set(err, rc, "cannot read /proc/%d/maps: %s%s", (int)pid, strerror(-rc),
                             ibx_proc_remedy(rc));
    }
    *mappings = reading.found;
    return 0;
}

void ibx_guest_mappings_fini(struct guest_mappings *mappings)
{
    for (size_t i = 0; i < mappings->count; i++)
        free(mappings->items[i].path);
    free(mappings->items);
    memset(mappings, 0, sizeof(*mappings));
}

/* ------------------------------------------------------------ the mapping of a block */

/* The backend's path as QEMU sees it, in its own mount namespace. */
static void path_in(pid_t pid, const struct ibx_guest_block *block, char *path, size_t size)
{
    snprintf(path, size, "/proc/%d/%s/%s", (int)pid, block->path[0] == '/' ? "root" : "cwd",
             block->path);
}

/* Whether the mapping is of a file that QEMU has made because mem-path is a directory: it makes
 * DIR/qemu_back_mem.ID.RANDOM and unlinks it. */
static bool is_temporary(const struct guest_mapping *m, const struct ibx_guest_block *block)
{
    char name[IBX_GUEST_ID_MAX + 32];
    snprintf(name, sizeof(name), "/qemu_back_mem.%s.", block->id);
    for (char *p = name + 1; *p; p++)
        *p = *p == '/' ? '_' : *p;
    return strstr(m->path, name) != NULL;
}

static bool may_be(const struct guest_mapping *m, const struct ibx_guest_block *block,
                   const struct stat *st)
{
    if (m->offset > block->offset || m->end - m->start < block->size ||
        block->offset - m->offset > m->end - m->start - block->size)
        return false;
    if (st && S_ISREG(st->st_mode))
        return m->dev == st->st_dev && m->ino == st->st_ino;
    if (st)
        return is_temporary(m, block);
    /* A memfd maps all of itself and nothing else. */
    return !strcmp(block->type, "memory-backend-memfd") && m->end - m->start == block->size &&
           !strncmp(m->path, "/memfd:memory-backend-memfd", 27);
}

/* Whether a mapping is of this file, and shared, but for reading only. */
static bool only_reads(void *file, const struct ibx_proc_mapping *m)
{
    const struct stat *st = file;
    return m->dev == st->st_dev && m->ino == st->st_ino && m->permissions[1] != 'w' &&
           m->permissions[3] == 's';
}

/* Why none of the mappings that can be written is this block; `file`: what its path leads to, or
 * NULL. */
static int say_missing(pid_t pid, const struct ibx_guest_block *block, struct stat *file,
                       struct ibx_error *err)
{
    if (file && ibx_proc_find_mapping(pid, only_reads, file) == 1)
        return ibx_error_set(err, -ENOTSUP,
                             "memory backend %s is readonly=on, so that no page of %.200s can be "
                             "put into it: unplug the device that uses it, then object_del %s, "
                             "or let the guest have the file as a disk",
                             block->id, block->path, block->id);
    return ibx_error_set(err, -ENOENT,
                         "process %d does not map %s (%s %.200s): it is not the QEMU of this "
                         "QMP socket, or the file was removed or replaced while QEMU was using it, "
                         "which then has to be started anew",
                         (int)pid, block->id, block->type, block->path);
}

int ibx_guest_block_locate(pid_t pid, const struct guest_mappings *mappings, uint64_t address,
                           struct ibx_guest_block *block, const struct guest_mapping **where,
                           struct ibx_error *err)
{
    struct stat st;
    char path[PATH_MAX + 64];
    path_in(pid, block, path, sizeof(path));
    const bool seen = block->path[0] && !stat(path, &st);
    const int hidden = block->path[0] && !seen && errno == EACCES ? -EACCES : 0;
    const struct guest_mapping *found = NULL;
    for (size_t i = 0; i < mappings->count; i++) {
        const struct guest_mapping *m = &mappings->items[i];
        if (!may_be(m, block, seen ? &st : NULL) ||
            (address && address != m->start + (block->offset - m->offset)))
            continue;
        if (found)
            return ibx_error_set(err, -ENOTUNIQ,
                                 "process %d maps several files that could be %s: use "
                                 "memory-backend-file with a mem-path of its own",
                                 (int)pid, block->id);
        found = m;
    }
    if (!found && hidden)
        return ibx_error_set(err, hidden, "cannot look at %s: %s%s", path, strerror(-hidden),
                             ibx_proc_remedy(hidden));
    if (!found && strstr(block->path, REPLACED))
        return ibx_error_set(err, -ENOENT,
                             "the file of guest RAM %s cannot be found, because QEMU tells no path "
                             "that is not UTF-8 (mem-path %.200s): give it another name",
                             block->id, block->path);
    if (!found)
        return say_missing(pid, block, seen ? &st : NULL, err);
    block->address = found->start + (block->offset - found->offset);
    block->dev = found->dev;
    block->ino = found->ino;
    block->named = seen && S_ISREG(st.st_mode);
    *where = found;
    return 0;
}

int ibx_guest_block_relocate(pid_t pid, const struct guest_mappings *mappings,
                             struct ibx_guest_block *block, const struct guest_mapping **where,
                             struct ibx_error *err)
{
    for (size_t i = 0; i < mappings->count; i++) {
        const struct guest_mapping *m = &mappings->items[i];
        if (m->dev != block->dev || m->ino != block->ino || block->address < m->start ||
            block->address >= m->end || m->end - block->address < block->size ||
            m->offset + (block->address - m->start) != block->offset)
            continue;
        snprintf(block->path, sizeof(block->path), "%s", m->path);
        block->named = m->path[0] == '/'; /* opening it checks that the name leads to this file */
        *where = m;
        return 0;
    }
    return ibx_error_set(
        err, -ESTALE,
        "process %d does not have guest RAM %s where it was when the migration began: if it was "
        "plugged in again meanwhile, unplug it (device_del, object-del in QEMU's monitor)",
        (int)pid, block->id);
}

/* ------------------------------------------------------------ opening */

static bool is_file(const void *context, const struct stat *st)
{
    const struct ibx_guest_block *block = context;
    return st->st_dev == block->dev && st->st_ino == block->ino;
}

struct opening {
    const struct ibx_guest_block *block;
    int flags, fd;
};

static bool open_that(void *context, int number, const char *path)
{
    struct opening *opening = context;
    (void)number;
    opening->fd = ibx_proc_open(path, opening->flags, is_file, opening->block);
    if (opening->fd < 0)
        errno = -opening->fd; /* what ibx_proc_look demands */
    return opening->fd >= 0;
}

/* Opens the file through one of QEMU's descriptors: map_files needs more rights. */
static int open_descriptor(pid_t pid, int flags, const struct ibx_guest_block *block)
{
    struct opening opening = {block, flags, -ENOENT};
    const int rc = ibx_proc_find_descriptor(pid, open_that, &opening);
    return rc < 0 ? rc : opening.fd;
}

int ibx_guest_file_page_size(int fd, uint64_t *bytes)
{
    struct statfs fs;
    if (fstatfs(fd, &fs))
        return -errno;
    *bytes = fs.f_type == HUGETLBFS_MAGIC ? (uint64_t)fs.f_bsize : (uint64_t)sysconf(_SC_PAGESIZE);
    return 0;
}

int ibx_guest_block_check_size(const struct ibx_guest_block *block, const char *path,
                               const struct stat *st, struct ibx_error *err)
{
    const uint64_t needs = block->offset + block->size;
    return (uint64_t)st->st_size >= needs
               ? 0
               : ibx_error_set(err, -ESTALE,
                               "the file of guest RAM %s (%.200s) was cut short to %llu of %llu "
                               "bytes, and what it held beyond them is lost",
                               block->id, path[0] ? path : "without a name",
                               (unsigned long long)st->st_size, (unsigned long long)needs);
}

int ibx_guest_block_open(pid_t pid, const struct guest_mapping *where, bool writable,
                         struct ibx_guest_block *block, struct ibx_error *err)
{
    char path[PATH_MAX + 64];
    struct stat st;
    const int flags = writable ? O_RDWR : O_RDONLY;
    snprintf(path, sizeof(path), "/proc/%d/map_files/%" PRIx64 "-%" PRIx64, (int)pid, where->start,
             where->part_end);
    int fd = ibx_proc_open(path, flags, is_file, block);
    if (fd < 0)
        fd = open_descriptor(pid, flags, block);
    if (fd < 0 && block->named) {
        path_in(pid, block, path, sizeof(path));
        fd = ibx_proc_open(path, flags, is_file, block);
    }
    if (fd < 0 && fd != -ESTALE)
        return ibx_error_set(err, fd,
                             "cannot open the file of guest RAM %s (%.200s): %s; run "
                             "this tool as root",
                             block->id, where->path, strerror(-fd));
    /* The path leads to another file by now. */
    const bool other = fd < 0 || ibx_guest_file_page_size(fd, &block->page_size) || fstat(fd, &st);
    int rc = other ? ibx_error_set(err, -ESTALE, "the file of guest RAM %s (%.200s) was replaced",
                                   block->id, where->path)
                   : ibx_guest_block_check_size(block, where->path, &st, err);
    if (!rc)
        block->fd = fd;
    else if (fd >= 0)
        close(fd);
    return rc;
}

/* ------------------------------------------------------------ written pages */

static void set_bits(uint64_t *bits, uint64_t from, uint64_t to, uint64_t *count)
{
    for (uint64_t i = from, next; i < to; i = next) {
        next = i / 64 * 64 + 64 < to ? i / 64 * 64 + 64 : to;
        bits[i / 64] |= ~0ull >> (64 - (next - i)) << i % 64;
    }
    *count += to - from;
}

/* Sets the bits of the pages in [first, last) that are no holes, by SEEK_DATA: in a tmpfs file,
 * data are the pages in memory or swap. */
static int written_by_seek(const struct ibx_guest_block *block, uint64_t first, uint64_t last,
                           uint64_t *bits, uint64_t *count)
{
    off_t at = (off_t)(block->offset + first * block->page_size);
    off_t end = (off_t)(block->offset + last * block->page_size);
    while (at < end) {
        off_t data = lseek(block->fd, at, SEEK_DATA);
        if (data < 0 && errno == ENXIO)
            return 0;
        if (data < 0)
            return -errno;
        if (data >= end)
            return 0;
        off_t hole = lseek(block->fd, data, SEEK_HOLE);
        if (hole < 0)
            return -errno;
        hole = hole < end ? hole : end;
        /* Rounded outward to whole pages. */
        uint64_t from = (uint64_t)(data - (off_t)block->offset) / block->page_size;
        uint64_t to =
            ((uint64_t)(hole - (off_t)block->offset) + block->page_size - 1) / block->page_size;
        set_bits(bits, from, to, count);
        at = (off_t)(block->offset + to * block->page_size);
    }
    return 0;
}

/* Sets the bits of the pages that QEMU itself has mapped, and counts them: none of a block that it
 * has left, where it may have mapped something else by now. */
static int written_by_pagemap(pid_t pid, const struct ibx_guest_block *block, uint64_t *bits,
                              uint64_t *count)
{
    char path[64];
    if (block->unmapped)
        return 0;
    snprintf(path, sizeof(path), "/proc/%d/pagemap", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    const uint64_t small = (uint64_t)sysconf(_SC_PAGESIZE), step = block->page_size / small;
    int rc = 0;
    for (uint64_t i = 0; !rc && i < block->size / block->page_size; i++) {
        uint64_t entry;
        off_t at = (off_t)((block->address / small + i * step) * sizeof(entry));
        if (pread(fd, &entry, sizeof(entry), at) != (ssize_t)sizeof(entry))
            rc = -EIO;
        else if (entry & (PAGEMAP_PRESENT | PAGEMAP_SWAPPED))
            set_bits(bits, i, i + 1, count);
    }
    close(fd);
    return rc;
}

/* SEEK_DATA finds no holes in hugetlbfs; only the number of allocated pages is known. If QEMU maps
 * as many, the pages that it maps are the written ones. Otherwise some have another origin (an
 * earlier run, prealloc), and every page counts as written, as it does when QEMU has ended. */
static int written_huge(const struct ibx_guest_ram *ram, const struct ibx_guest_block *block,
                        uint64_t *bits, uint64_t *count)
{
    struct stat st;
    if (fstat(block->fd, &st))
        return -errno;
    int rc = ram->pid ? written_by_pagemap(ram->pid, block, bits, count) : 0;
    if (!rc && ram->pid && (uint64_t)st.st_blocks * 512 == *count * block->page_size)
        return 0;
    *count = 0;
    set_bits(bits, 0, block->size / block->page_size, count);
    return 0;
}

/* Whether all of a tmpfs file is allocated. Then it is not searched for holes, which would take the
 * kernel 10 ms a GiB. */
static bool is_whole(const struct ibx_guest_block *block)
{
    struct statfs fs;
    struct stat st;
    return !fstatfs(block->fd, &fs) && fs.f_type == TMPFS_MAGIC && !fstat(block->fd, &st) &&
           (uint64_t)st.st_blocks * 512 >= (uint64_t)st.st_size;
}

static int written_small(const struct ibx_guest_block *block, uint64_t *bits, uint64_t *count)
{
    const uint64_t pages = block->size / block->page_size;
    if (!is_whole(block))
        return written_by_seek(block, 0, pages, bits, count);
    set_bits(bits, 0, pages, count);
    return 0;
}

int ibx_guest_block_written(const struct ibx_guest_ram *ram, const struct ibx_guest_block *block,
                            uint64_t *bits, uint64_t *count, struct ibx_error *err)
{
    uint64_t pages = block->size / block->page_size, written = 0;
    if (block->fd < 0)
        return ibx_error_set(err, -EINVAL, "guest RAM %s is private to QEMU", block->id);
    memset(bits, 0, (size_t)((pages + 63) / 64) * sizeof(*bits));
    int rc = block->page_size > (uint64_t)sysconf(_SC_PAGESIZE)
                 ? written_huge(ram, block, bits, &written)
                 : written_small(block, bits, &written);
    if (rc)
        return ibx_error_set(err, rc, "cannot find the holes of guest RAM %s: %s", block->id,
                             strerror(-rc));
    *count = written;
    return 0;
}

int ibx_guest_block_mapped(const struct ibx_guest_ram *ram, const struct ibx_guest_block *block,
                           uint64_t *bits, uint64_t *count, struct ibx_error *err)
{
    uint64_t pages = block->size / block->page_size, mapped = 0;
    memset(bits, 0, (size_t)((pages + 63) / 64) * sizeof(*bits));
    int rc = written_by_pagemap(ram->pid, block, bits, &mapped);
    if (rc)
        return ibx_error_set(err, rc, "/proc/%d/pagemap cannot be read: %s", (int)ram->pid,
                             strerror(-rc));
    *count = mapped;
    return 0;
}

uint64_t *ibx_guest_bits_make(const struct ibx_guest_block *block, struct ibx_error *err)
{
    const uint64_t pages = block->size / block->page_size;
    uint64_t *bits = calloc((size_t)(pages + 63) / 64, sizeof(*bits));
    if (!bits)
        ibx_error_set(err, -ENOMEM, "no memory for the bits of %llu pages of guest RAM %s",
                      (unsigned long long)pages, block->id);
    return bits;
}

uint64_t ibx_guest_bits_next(const uint64_t *bits, uint64_t page, uint64_t end, bool value)
{
    const uint64_t flip = value ? 0 : UINT64_MAX;
    while (page < end) {
        uint64_t word = (bits[page / 64] ^ flip) >> page % 64;
        if (word) {
            page += (unsigned)__builtin_ctzll(word);
            return page < end ? page : end;
        }
        page += 64 - page % 64;
    }
    return end;
}

int ibx_guest_block_written_since(const struct ibx_guest_ram *ram,
                                  const struct ibx_guest_block *block, uint64_t *bits,
                                  uint64_t *count, struct ibx_error *err)
{
    uint64_t pages = block->size / block->page_size, came = 0, last;
    if (block->fd < 0 || block->page_size > (uint64_t)sysconf(_SC_PAGESIZE))
        return ibx_guest_block_written(ram, block, bits, count, err);
    for (uint64_t at = ibx_guest_bits_next(bits, 0, pages, false); at < pages;
         at = ibx_guest_bits_next(bits, last, pages, false)) {
        last = ibx_guest_bits_next(bits, at, pages, true);
        int rc = written_by_seek(block, at, last, bits, &came);
        if (rc)
            return ibx_error_set(err, rc, "cannot find the holes of guest RAM %s: %s", block->id,
                                 strerror(-rc));
    }
    *count += came;
    return 0;
}
