/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/snapshot/snapshot.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MANIFEST "manifest.json"
#define PIECE    (1u << 20) /* bytes read at a time */

/* ------------------------------------------------------------ names */

static int name_of(const struct ibx_snapshot_folder *folder, const char *name, char *path,
                   struct ibx_error *err)
{
    return snprintf(path, PATH_MAX, "%s/%s", folder->path, name) < PATH_MAX
               ? 0
               : ibx_error_set(err, -ENAMETOOLONG, "the path %.128s... is too long", folder->path);
}

static int block_path(const struct ibx_snapshot_folder *folder, unsigned block, char *path,
                      struct ibx_error *err)
{
    char name[24] = "state";
    if (block < folder->manifest.ram_count)
        snprintf(name, sizeof(name), "ram.%u", block);
    return name_of(folder, name, path, err);
}

/* All that the VM knows is in the folder. */
static int check_private(const char *path, struct ibx_error *err)
{
    struct stat st;
    if (stat(path, &st))
        return ibx_error_set(err, -errno, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return ibx_error_set(err, -ENOTDIR, "%s is not a folder", path);
    if (st.st_uid != geteuid() && st.st_uid != 0)
        return ibx_error_set(err, -EPERM, "%s belongs to user %u: use a folder of your own", path,
                             (unsigned)st.st_uid);
    if (st.st_mode & 077)
        return ibx_error_set(err, -EPERM,
                             "other users can enter %s (mode %04o), and a VM's memory is in it: "
                             "chmod 0700 %s",
                             path, st.st_mode & 07777u, path);
    return 0;
}

static bool is_empty(const char *path)
{
    DIR *dir = opendir(path);
    unsigned entries = 0;
    while (dir && entries < 3 && readdir(dir))
        entries++;
    if (dir)
        closedir(dir);
    return entries == 2;
}

int ibx_snapshot_folder_make(const char *path, struct ibx_error *err)
{
    if (!mkdir(path, 0700))
        return 0;
    if (errno != EEXIST)
        return ibx_error_set(err, -errno, "the folder %s cannot be made: %s", path,
                             strerror(errno));
    int rc = check_private(path, err);
    if (!rc && !is_empty(path))
        rc = ibx_error_set(err, -EEXIST, "the folder %s is not empty: give another one", path);
    return rc;
}

/* ------------------------------------------------------------ files */

int ibx_snapshot_folder_files(struct ibx_snapshot_folder *folder, bool create, bool writable,
                              struct ibx_error *err)
{
    struct ibx_migrate_block *blocks = calloc(IBX_GUEST_BLOCKS_MAX, sizeof(*blocks));
    char path[PATH_MAX];
    int rc = blocks ? 0 : ibx_error_set(err, -ENOMEM, "no memory for the snapshot's blocks");
    const unsigned count = rc ? 0 : ibx_snapshot_blocks(&folder->manifest, blocks);
    const int flags = O_CLOEXEC | O_NOFOLLOW | (create || writable ? O_RDWR : O_RDONLY) |
                      (create ? O_CREAT | O_EXCL : 0);
    for (folder->count = 0; !rc && folder->count < count; folder->count += !rc) {
        const unsigned i = folder->count;
        struct stat st;
        folder->sizes[i] = blocks[i].size;
        rc = block_path(folder, i, path, err);
        folder->fds[i] = rc ? -1 : open(path, flags, 0600);
        if (!rc && folder->fds[i] < 0)
            rc = ibx_error_set(err, -errno, "%s: %s", path, strerror(errno));
        if (!rc && create && ftruncate(folder->fds[i], (off_t)blocks[i].size))
            rc = ibx_error_set(err, -errno, "%s cannot have %llu bytes: %s", path,
                               (unsigned long long)blocks[i].size, strerror(errno));
        if (!rc && (fstat(folder->fds[i], &st) || (uint64_t)st.st_size != blocks[i].size))
            rc = ibx_error_set(err, -EINVAL, "%s has not the %llu bytes that its manifest says",
                               path, (unsigned long long)blocks[i].size);
        if (rc && folder->fds[i] >= 0)
            close(folder->fds[i]);
    }
    free(blocks);
    return rc;
}

static int read_manifest(struct ibx_snapshot_folder *folder, struct ibx_error *err)
{
    char path[PATH_MAX];
    int rc = name_of(folder, MANIFEST, path, err);
    const int fd = rc ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;
    if (rc)
        return rc;
    if (fd < 0)
        return ibx_error_set(err, -errno, "%s: %s; a snapshot is made by ib-migrate freeze", path,
                             strerror(errno));
    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size > IBX_SNAPSHOT_TEXT_MAX) {
        close(fd);
        return ibx_error_set(err, -EINVAL, "%s is not a file of up to %u bytes", path,
                             IBX_SNAPSHOT_TEXT_MAX);
    }
    char *text = malloc((size_t)st.st_size + 1);
    const ssize_t n = text ? read(fd, text, (size_t)st.st_size) : -1;
    if (!text || n != st.st_size)
        rc = ibx_error_set(err, text ? -EIO : -ENOMEM, "%s cannot be read", path);
    else
        rc = ibx_snapshot_manifest_read(text, (size_t)n, &folder->manifest, err);
    if (rc == -EPROTO)
        ibx_error_prefix(err, rc, "%s", path);
    free(text);
    close(fd);
    return rc;
}

int ibx_snapshot_folder_open(const char *path, bool writable, struct ibx_snapshot_folder *out,
                             struct ibx_error *err)
{
    struct ibx_snapshot_folder *folder = calloc(1, sizeof(*folder));
    if (!folder)
        return ibx_error_set(err, -ENOMEM, "no memory for a snapshot");
    snprintf(folder->path, sizeof(folder->path), "%s", path);
    int rc = check_private(path, err);
    if (!rc)
        rc = read_manifest(folder, err);
    if (!rc)
        rc = ibx_snapshot_folder_files(folder, false, writable, err);
    if (rc)
        ibx_snapshot_folder_close(folder);
    else
        *out = *folder;
    free(folder);
    return rc;
}

int ibx_snapshot_folder_seal(const struct ibx_snapshot_folder *folder, struct ibx_error *err)
{
    char path[PATH_MAX], fresh[PATH_MAX], *text;
    size_t length;
    int rc = ibx_snapshot_manifest_write(&folder->manifest, &text, &length, err);
    if (rc)
        return rc;
    rc = name_of(folder, MANIFEST, path, err);
    if (!rc)
        rc = name_of(folder, MANIFEST ".new", fresh, err);
    const int fd =
        rc ? -1 : open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (!rc &&
        (fd < 0 || write(fd, text, length) != (ssize_t)length || fsync(fd) || rename(fresh, path)))
        rc = ibx_error_set(err, errno ? -errno : -EIO, "%s cannot be written: %s", path,
                           strerror(errno));
    if (fd >= 0)
        close(fd);
    free(text);
    return rc;
}

void ibx_snapshot_folder_remove(const struct ibx_snapshot_folder *folder)
{
    char path[PATH_MAX];
    for (unsigned i = 0; i < folder->count; i++)
        if (!block_path(folder, i, path, NULL))
            unlink(path);
    if (!name_of(folder, MANIFEST, path, NULL))
        unlink(path);
    rmdir(folder->path);
}

void ibx_snapshot_folder_close(struct ibx_snapshot_folder *folder)
{
    for (unsigned i = 0; i < folder->count; i++)
        close(folder->fds[i]);
    folder->count = 0;
    ibx_snapshot_manifest_fini(&folder->manifest);
}

/* ------------------------------------------------------------ pages */

static int block_pages(int fd, uint64_t first, uint64_t size, struct ibx_page_map *map)
{
    off_t from = 0, to;
    while ((uint64_t)from < size && (from = lseek(fd, from, SEEK_DATA)) >= 0) {
        to = lseek(fd, from, SEEK_HOLE);
        if (to < 0)
            return -errno;
        const uint64_t low = (uint64_t)from / IBX_SNAPSHOT_PAGE;
        const uint64_t high = ((uint64_t)to + IBX_SNAPSHOT_PAGE - 1) / IBX_SNAPSHOT_PAGE;
        ibx_page_map_set(map, first + low, high - low);
        from = to;
    }
    return from < 0 && errno != ENXIO ? -errno : 0;
}

int ibx_snapshot_folder_map(const struct ibx_snapshot_folder *folder, struct ibx_page_map *map,
                            struct ibx_error *err)
{
    int rc = ibx_snapshot_map_init(&folder->manifest, map, err);
    if (rc)
        return rc;
    for (unsigned i = 0; !rc && i < folder->count; i++) {
        rc = block_pages(folder->fds[i], map->blocks[i].first, folder->sizes[i], map);
        if (rc)
            ibx_error_set(err, rc, "the holes of block %u in %s cannot be found: %s", i,
                          folder->path, strerror(-rc));
    }
    if (rc)
        ibx_page_map_fini(map);
    return rc;
}

struct digesting {
    const struct ibx_snapshot_folder *folder;
    const struct ibx_page_map *map;
    EVP_MD_CTX *md;
    uint8_t *piece;
    struct ibx_error *err;
};

static bool put_number(EVP_MD_CTX *md, uint64_t value)
{
    uint8_t bytes[8];
    for (unsigned i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
    return EVP_DigestUpdate(md, bytes, sizeof(bytes)) == 1;
}

static bool is_zero(const uint8_t *page)
{
    return !page[0] && !memcmp(page, page + 1, IBX_SNAPSHOT_PAGE - 1);
}

static int digest_run(void *context, uint64_t first, uint64_t count, bool data)
{
    const struct digesting *d = context;
    while (data && count) {
        const unsigned block = ibx_page_map_block(d->map, first);
        const uint64_t within = first - d->map->blocks[block].first;
        uint64_t most = PIECE / IBX_SNAPSHOT_PAGE;
        most = most < count ? most : count;
        const size_t bytes = (size_t)most * IBX_SNAPSHOT_PAGE;
        const ssize_t n =
            pread(d->folder->fds[block], d->piece, bytes, (off_t)(within * IBX_SNAPSHOT_PAGE));
        if (n != (ssize_t)bytes)
            return ibx_error_set(d->err, n < 0 ? -errno : -EIO, "block %u of %s cannot be read: %s",
                                 block, d->folder->path,
                                 n < 0 ? strerror(errno) : "it is too short");
        for (uint64_t i = 0; i < most; i++)
            if (!is_zero(d->piece + i * IBX_SNAPSHOT_PAGE) &&
                (!put_number(d->md, first + i) ||
                 EVP_DigestUpdate(d->md, d->piece + i * IBX_SNAPSHOT_PAGE, IBX_SNAPSHOT_PAGE) != 1))
                return ibx_error_set(d->err, -EIO, "OpenSSL cannot compute SHA-256");
        first += most;
        count -= most;
    }
    return 0;
}

int ibx_snapshot_digest(const struct ibx_snapshot_folder *folder, const struct ibx_page_map *map,
                        uint8_t digest[IBX_SNAPSHOT_DIGEST], struct ibx_error *err)
{
    struct digesting d = {folder, map, EVP_MD_CTX_new(), malloc(PIECE), err};
    bool good = d.md && d.piece && EVP_DigestInit_ex(d.md, EVP_sha256(), NULL) == 1;
    for (unsigned i = 0; good && i < folder->count; i++)
        good = put_number(d.md, folder->sizes[i]);
    int rc = good ? ibx_page_map_runs(map, digest_run, &d)
                  : ibx_error_set(err, -ENOMEM, "no memory for a digest");
    if (!rc && EVP_DigestFinal_ex(d.md, digest, NULL) != 1)
        rc = ibx_error_set(err, -EIO, "OpenSSL cannot compute SHA-256");
    EVP_MD_CTX_free(d.md);
    free(d.piece);
    return rc;
}
