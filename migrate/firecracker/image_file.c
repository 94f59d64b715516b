/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A memory file on this host: each request is a pread(2), whose pages are there at once. A file
 * that somebody changes meanwhile has pages that do not fit those that were placed before. So its
 * times are checked after each read; write(2) sets them before it changes bytes. Of writes through
 * a mapping only the first one to a page is noticed.
 */
#include "migrate/firecracker/image.h"

#include "common/file_check.h"
#include "common/path_check.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#define QUEUE 256u /* arrivals that the engine has not taken yet, at most */

struct file_image;

struct file_reader {
    struct file_image *image;
    int never; /* an eventfd that is never readable, since arm() knows of all arrivals */
    unsigned count;
    struct ibx_fault_arrival arrivals[QUEUE];
};

struct file_image {
    struct ibx_image is;
    int fd;
    char why[PATH_MAX + 128]; /* set with `changed`; then all readers fail */
    _Atomic bool changed;
    unsigned count;
    struct file_reader *readers;
};

static int identify(int fd, uint64_t identity[IBX_IMAGE_IDENTITY])
{
    struct stat st;
    if (fstat(fd, &st))
        return -errno;
    const uint64_t now[IBX_IMAGE_IDENTITY] = {st.st_dev, st.st_ino, (uint64_t)st.st_size,
                                              (uint64_t)st.st_mtim.tv_sec,
                                              (uint64_t)st.st_mtim.tv_nsec};
    memcpy(identity, now, sizeof(now));
    return 0;
}

/* Whether the file is unchanged since it was opened. */
static int check(struct file_image *image)
{
    uint64_t now[IBX_IMAGE_IDENTITY];
    const int rc = identify(image->fd, now);
    if (rc || !memcmp(now, image->is.identity, sizeof(now)))
        return rc;
    atomic_store(&image->changed, true);
    return -ESTALE;
}

static int request(void *context, const struct ibx_fault_request *r)
{
    struct file_reader *reader = context;
    const int fd = reader->image->fd;
    size_t at = 0;
    if (reader->count == QUEUE)
        return -EAGAIN;
    while (at < r->length) {
        const ssize_t n =
            pread(fd, (uint8_t *)r->buffer + at, r->length - at, (off_t)(r->offset + at));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) /* the file has become shorter */
            return n ? -errno : -ENODATA;
        at += (size_t)n;
    }
    const int rc = check(reader->image);
    if (rc)
        return rc;
    reader->arrivals[reader->count++] =
        (struct ibx_fault_arrival){.cookie = r->cookie, .length = r->length};
    return 0;
}

static int take(void *context, struct ibx_fault_arrival *arrivals, int max)
{
    struct file_reader *reader = context;
    const unsigned n = reader->count < (unsigned)max ? reader->count : (unsigned)max;
    memcpy(arrivals, reader->arrivals, n * sizeof(*arrivals));
    reader->count -= n;
    memmove(reader->arrivals, reader->arrivals + n, reader->count * sizeof(*arrivals));
    return (int)n;
}

static int arm(void *context)
{
    const struct file_reader *reader = context;
    return reader->count > 0;
}

static int descriptor(void *context)
{
    const struct file_reader *reader = context;
    return reader->never;
}

static const struct ibx_fault_reader_ops reader_ops = {
    .request = request, .poll = take, .arm = arm, .fd = descriptor};

static void readers_free(struct file_image *image)
{
    for (unsigned i = 0; i < image->count; i++)
        if (image->readers[i].never >= 0)
            close(image->readers[i].never);
    free(image->readers);
    image->readers = NULL;
    image->count = 0;
}

static int file_readers(struct ibx_image *is, unsigned count, size_t buffer_bytes,
                        struct ibx_fault_reader *as, struct ibx_error *err)
{
    struct file_image *image = (struct file_image *)is;
    (void)buffer_bytes; /* the engine's own */
    readers_free(image);
    image->readers = calloc(count, sizeof(*image->readers));
    if (!image->readers)
        return ibx_error_set(err, -ENOMEM, "no memory for %u readers of the snapshot's memory file",
                             count);
    image->count = count;
    for (unsigned i = 0; i < count; i++) {
        image->readers[i].image = image;
        image->readers[i].never = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        as[i] = (struct ibx_fault_reader){.ops = &reader_ops, .context = &image->readers[i]};
    }
    return 0;
}

static int file_data(struct ibx_image *is,
                     int (*each)(void *context, uint64_t offset, uint64_t length), void *context,
                     struct ibx_error *err)
{
    const struct file_image *image = (struct file_image *)is;
    const off_t size = (off_t)is->bytes;
    int rc = 0;
    for (off_t at = 0; !rc && at < size;) {
        const off_t from = lseek(image->fd, at, SEEK_DATA);
        if (from < 0 && errno == ENXIO) /* only a hole is left */
            return 0;
        off_t to = from < 0 ? from : lseek(image->fd, from, SEEK_HOLE);
        if (to < 0) /* this filesystem cannot tell holes */
            return each(context, (uint64_t)at, (uint64_t)(size - at));
        to = to < size ? to : size;
        rc = each(context, (uint64_t)from, (uint64_t)(to - from));
        at = to;
    }
    return rc ? ibx_error_set(err, rc, "the memory file: %s", strerror(-rc)) : 0;
}

static const char *file_reason(const struct ibx_image *is)
{
    const struct file_image *image = (const struct file_image *)is;
    return atomic_load(&image->changed) ? image->why : "";
}

static void file_close(struct ibx_image *is)
{
    struct file_image *image = (struct file_image *)is;
    readers_free(image);
    close(image->fd);
    free(image);
}

static const struct ibx_image_ops image_ops = {
    .data = file_data, .readers = file_readers, .reason = file_reason, .close = file_close};

/* `peer` gets the file's bytes. If folders or links of the path belong to that user, or another
 * one, the file has to belong to `peer`: otherwise that user could make the path lead to any file
 * that this process can read. */
static int check_way(const char *path, const struct stat *st, uid_t peer, struct ibx_error *err)
{
    struct stat is;
    int found;
    if (peer == 0 || peer == geteuid() || st->st_uid == peer)
        return 0;
    const int rc = ibx_path_find("--from ", path, &found, err);
    if (rc)
        return rc;
    const bool same =
        found >= 0 && !fstat(found, &is) && is.st_dev == st->st_dev && is.st_ino == st->st_ino;
    if (found >= 0)
        close(found);
    return same
               ? 0
               : ibx_error_set(
                     err, -EPERM,
                     "--from %s was replaced while it was being opened: do not change it meanwhile",
                     path);
}

static int no_pages(const char *path, const struct stat *st, struct ibx_error *err)
{
    return ibx_error_set(err, -EINVAL,
                         "--from %s is no file of whole pages (%lld bytes): name the memory "
                         "file of a snapshot, mem_file_path of its creation",
                         path, (long long)st->st_size);
}

static int cannot_open(const char *path, int code, struct ibx_error *err)
{
    return ibx_error_set(err, -code,
                         "--from %s: %s; name the memory file of a snapshot, or the URI where "
                         "ib-migrate serve offers it",
                         path, strerror(code));
}

/* Opens the file and returns the descriptor. Only a regular file is opened, since opening a device
 * may have effects. */
static int open_looked_at(const char *path, uid_t peer, struct stat *st, struct ibx_error *err)
{
    const int found = open(path, O_PATH | O_CLOEXEC);
    if (found < 0 || fstat(found, st)) {
        const int code = errno;
        if (found >= 0)
            close(found);
        return cannot_open(path, code, err);
    }
    int rc = check_way(path, st, peer, err);
    if (!rc && (!S_ISREG(st->st_mode) || !st->st_size || st->st_size % IBX_SNAPSHOT_PAGE))
        rc = no_pages(path, st, err);
    const int fd = rc ? rc : ibx_file_reopen(found, O_RDONLY);
    close(found);
    return !rc && fd < 0 ? cannot_open(path, -fd, err) : fd;
}

int ibx_image_open_file(const char *path, uid_t peer, struct ibx_image **out, struct ibx_error *err)
{
    struct stat st;
    const int fd = open_looked_at(path, peer, &st, err);
    if (fd < 0)
        return fd;
    struct file_image *image = calloc(1, sizeof(*image));
    if (!image) {
        close(fd);
        return ibx_error_set(err, -ENOMEM, "no memory for an image");
    }
    image->is = (struct ibx_image){.ops = &image_ops, .bytes = (uint64_t)st.st_size};
    image->fd = fd;
    snprintf(image->why, sizeof(image->why),
             "%s was changed while it is served: its pages do not match those already in the "
             "microVM; leave a memory file as it is while microVMs run from it",
             path);
    const int rc = identify(fd, image->is.identity);
    if (rc) {
        file_close(&image->is);
        return ibx_error_set(err, rc, "--from %s: %s", path, strerror(-rc));
    }
    *out = &image->is;
    return 0;
}
