/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/path_check.h"
#include "common/shell_word.h"
#include "common/write_whole.h"
#include "migrate/snapshot/snapshot.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define MANIFEST IBX_SNAPSHOT_SEAL
#define AGAIN    "the snapshot is damaged: copy, freeze or fetch it again"

/* ------------------------------------------------------------ the folder itself */

static void block_name(const struct ibx_snapshot_folder *folder, unsigned block, char name[24])
{
    if (block < folder->manifest.ram_count)
        snprintf(name, 24, "ram.%u", block);
    else
        snprintf(name, 24, "%s", block == folder->manifest.ram_count ? "state" : "hashes");
}

/* The folder has all secrets of the VM, so only this user may enter it. */
static int check_private(const char *path, int fd, struct ibx_error *err)
{
    struct stat st;
    if (fstat(fd, &st))
        return ibx_error_set(err, -errno, "%s: %s", path, strerror(errno));
    if (st.st_uid != geteuid() && st.st_uid != 0)
        return ibx_error_set(err, -EPERM, "%s belongs to user %u: use a folder of your own", path,
                             (unsigned)st.st_uid);
    if (st.st_mode & 077)
        return ibx_error_set(err, -EPERM,
                             "other users can enter %s (mode %04o), and a VM's memory is in it: "
                             "chmod 0700 %s",
                             path, st.st_mode & 07777u, ibx_shell_word(path).text);
    return 0;
}

/* The owner of a file can change it, also by a descriptor from before the file was moved here. */
static int check_owner(const struct ibx_snapshot_folder *folder, const char *file,
                       const struct stat *st, struct ibx_error *err)
{
    return st->st_uid == geteuid() || st->st_uid == 0
               ? 0
               : ibx_error_set(err, -EPERM,
                               "%s/%s belongs to user %u, who can change it: use a copy of the "
                               "snapshot whose files are your own",
                               folder->path, file, (unsigned)st->st_uid);
}

static int set_path(struct ibx_snapshot_folder *folder, const char *path, struct ibx_error *err)
{
    const size_t length = strlen(path);
    if (!length) /* an unset variable, for instance; it must not mean the working directory */
        return ibx_error_set(err, -ENOENT, "the path of a snapshot is empty: name the folder");
    if (length >= sizeof(folder->path))
        return ibx_error_set(err, -ENAMETOOLONG, "the path %.128s... is too long", path);
    memcpy(folder->path, path, length + 1);
    for (size_t n = length; n > 1 && folder->path[n - 1] == '/'; n--)
        folder->path[n - 1] = '\0'; /* with a slash at the end a symbolic link would be followed */
    return 0;
}

/* Opens the parent folder by O_PATH and sets `name` to the folder's name in it. Refuses a path with
 * folders that another user owns, who could make it lead elsewhere. Returns the descriptor, or an
 * error, also if a part of the path does not exist. */
static int open_above(const char *path, char name[NAME_MAX + 1], struct ibx_error *err)
{
    char above[PATH_MAX];
    const char *slash = strrchr(path, '/'), *last = slash ? slash + 1 : path;
    int found, rc = ibx_path_check("folder ", path, err);
    if (rc)
        return rc;
    if (strlen(last) > NAME_MAX)
        return ibx_error_set(err, -ENAMETOOLONG, "the name %.64s... is too long", last);
    snprintf(name, NAME_MAX + 1, "%s", *last ? last : ".");
    if (slash)
        snprintf(above, sizeof(above), "%.*s", slash > path ? (int)(slash - path) : 1, path);
    else
        snprintf(above, sizeof(above), ".");
    rc = ibx_path_find("folder ", above, &found, err);
    return rc          ? rc
           : found < 0 ? ibx_error_set(err, found, "%s: %s", above, strerror(-found))
                       : found;
}

static int no_such_folder(const char *path, struct ibx_error *err)
{
    return ibx_error_set(err, -ENOENT,
                         "there is no folder %s: correct the path, or make it by ib-migrate "
                         "freeze or serve --cache",
                         path);
}

static int cannot_open(const char *path, int above, const char *name, int code,
                       struct ibx_error *err)
{
    struct stat st;
    if (!fstatat(above, name, &st, AT_SYMLINK_NOFOLLOW) && S_ISLNK(st.st_mode))
        return ibx_error_set(err, -ENOTDIR, "%s is a link: name the folder itself", path);
    if (code == ENOTDIR)
        return ibx_error_set(err, -ENOTDIR, "%s is not a folder: give the folder of a snapshot",
                             path);
    if (code == ENOENT)
        return no_such_folder(path, err);
    return ibx_error_set(err, -code, "%s: %s", path, strerror(code));
}

#define ELSEWHERE "choose another place, or make the folder above it"

/* Opens the folder itself, with `make` after creating it if it is missing. From here on its files
 * are found by this descriptor, since whoever can write to the parent folder may replace this one.
 */
static int open_itself(struct ibx_snapshot_folder *folder, bool make, struct ibx_error *err)
{
    char name[NAME_MAX + 1];
    const int above = open_above(folder->path, name, err);
    if (above == -ENOENT && make)
        return ibx_error_set(err, above, "the folder %s cannot be made: %s; " ELSEWHERE,
                             folder->path, strerror(-above));
    if (above == -ENOENT)
        return no_such_folder(folder->path, err);
    if (above < 0)
        return above;
    int rc = 0, fd = -1;
    if (make && mkdirat(above, name, 0700) && errno != EEXIST)
        rc = ibx_error_set(err, -errno, "the folder %s cannot be made: %s; " ELSEWHERE,
                           folder->path, strerror(errno));
    if (!rc)
        fd = openat(above, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (!rc && fd < 0)
        rc = cannot_open(folder->path, above, name, errno, err);
    close(above);
    if (!rc)
        rc = check_private(folder->path, fd, err);
    if (rc && fd >= 0)
        close(fd);
    folder->opened = !rc;
    folder->at = rc ? -1 : fd;
    return rc;
}

static bool is_empty(const struct ibx_snapshot_folder *folder)
{
    const int fd = openat(folder->at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    unsigned entries = 0;
    while (dir && entries < 3 && readdir(dir))
        entries++;
    if (dir)
        closedir(dir);
    else if (fd >= 0)
        close(fd);
    return entries == 2;
}

/* Whether this is what a tool leaves that was killed before the snapshot was complete: the manifest
 * is written last. */
static bool is_unfinished(const struct ibx_snapshot_folder *folder)
{
    return !faccessat(folder->at, "ram.0", F_OK, AT_SYMLINK_NOFOLLOW) &&
           faccessat(folder->at, MANIFEST, F_OK, AT_SYMLINK_NOFOLLOW) && errno == ENOENT;
}

int ibx_snapshot_folder_lock(const struct ibx_snapshot_folder *folder, struct ibx_error *err)
{
    return flock(folder->at, LOCK_EX | LOCK_NB)
               ? ibx_error_set(err, errno == EWOULDBLOCK ? -EBUSY : -errno,
                               "another ib-migrate fills %s: give another folder", folder->path)
               : 0;
}

int ibx_snapshot_folder_make(const char *path, struct ibx_snapshot_folder *folder,
                             struct ibx_error *err)
{
    int rc = set_path(folder, path, err);
    if (!rc)
        rc = open_itself(folder, true, err);
    if (!rc)
        rc = ibx_snapshot_folder_lock(folder, err);
    if (!rc && is_unfinished(folder))
        rc = ibx_error_set(err, -EEXIST,
                           "the folder %s has the files of a snapshot that was not finished: "
                           "remove it, or give another one",
                           path);
    else if (!rc && !is_empty(folder))
        rc = ibx_error_set(err, -EEXIST, "the folder %s is not empty: give another one", path);
    return rc;
}

/* ------------------------------------------------------------ files */

/* What to do about a file of the folder that cannot be opened. */
static const char *remedy_of(int code, const char *missing)
{
    return code == ENOENT  ? missing
           : code == ELOOP ? "; put the file itself there, and no link to it"
                           : "";
}

int ibx_snapshot_folder_files(struct ibx_snapshot_folder *folder, enum ibx_snapshot_files how,
                              struct ibx_error *err)
{
    const bool create = how == IBX_SNAPSHOT_FILES_MAKE;
    struct ibx_migrate_block *blocks = calloc(IBX_GUEST_BLOCKS_MAX, sizeof(*blocks));
    char name[24];
    int rc = blocks ? 0 : ibx_error_set(err, -ENOMEM, "no memory for the snapshot's blocks");
    const unsigned count = rc ? 0 : ibx_snapshot_blocks(&folder->manifest, blocks);
    const int flags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK |
                      (how == IBX_SNAPSHOT_FILES_READ ? O_RDONLY : O_RDWR) |
                      (create ? O_CREAT | O_EXCL : 0);
    for (folder->count = 0; !rc && folder->count < count; folder->count += !rc) {
        const unsigned i = folder->count;
        struct stat st;
        folder->sizes[i] = blocks[i].size;
        block_name(folder, i, name);
        folder->fds[i] = openat(folder->at, name, flags, 0600);
        if (folder->fds[i] < 0)
            rc = ibx_error_set(err, -errno, "%s/%s cannot be %s: %s%s", folder->path, name,
                               create ? "made" : "opened", strerror(errno),
                               create ? "; choose another place" : remedy_of(errno, "; " AGAIN));
        if (!rc && create && ftruncate(folder->fds[i], (off_t)blocks[i].size))
            rc = ibx_error_set(err, -errno, "%s/%s cannot have %llu bytes: %s; %s", folder->path,
                               name, (unsigned long long)blocks[i].size, strerror(errno),
                               ibx_write_remedy(-errno, "choose another place"));
        if (!rc && (fstat(folder->fds[i], &st) || !S_ISREG(st.st_mode) ||
                    (uint64_t)st.st_size != blocks[i].size))
            rc = ibx_error_set(err, -EINVAL,
                               "%s/%s has not the %llu bytes that its manifest says; " AGAIN,
                               folder->path, name, (unsigned long long)blocks[i].size);
        if (!rc)
            rc = check_owner(folder, name, &st, err);
        if (!rc || folder->fds[i] < 0)
            continue;
        close(folder->fds[i]);
        if (create)
            unlinkat(folder->at, name, 0);
    }
    free(blocks);
    ibx_snapshot_folder_note_times(folder);
    return rc;
}

static int read_manifest(struct ibx_snapshot_folder *folder, struct ibx_error *err)
{
    const char *path = folder->path;
    const int fd = openat(folder->at, MANIFEST, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct ibx_error broken = {0};
    struct stat st;
    if (fd < 0)
        return ibx_error_set(err, -errno, "%s/" MANIFEST ": %s%s", path, strerror(errno),
                             remedy_of(errno, "; a snapshot is made by ib-migrate freeze"));
    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size > IBX_SNAPSHOT_TEXT_MAX) {
        close(fd);
        return ibx_error_set(err, -EINVAL,
                             "%s/" MANIFEST " is not a file of up to %u bytes; " AGAIN, path,
                             IBX_SNAPSHOT_TEXT_MAX);
    }
    char *text = malloc((size_t)st.st_size + 1);
    const ssize_t n = text ? read(fd, text, (size_t)st.st_size) : -1;
    int rc = check_owner(folder, MANIFEST, &st, &broken);
    if (!rc && (!text || n != st.st_size))
        rc = ibx_error_set(&broken, text ? -EIO : -ENOMEM, "%s/" MANIFEST " cannot be read", path);
    if (!rc)
        rc = ibx_snapshot_manifest_read(text, (size_t)n, &folder->manifest, &broken);
    if (rc == -EPROTO)
        ibx_error_set(&broken, rc, "%s/" MANIFEST ": %s; " AGAIN, path, broken.message);
    if (rc && err)
        *err = broken;
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
    int rc = set_path(folder, path, err);
    if (!rc)
        rc = open_itself(folder, false, err);
    if (!rc)
        rc = read_manifest(folder, err);
    if (!rc)
        rc = ibx_snapshot_folder_files(
            folder, writable ? IBX_SNAPSHOT_FILES_WRITE : IBX_SNAPSHOT_FILES_READ, err);
    if (rc)
        ibx_snapshot_folder_close(folder);
    else
        *out = *folder;
    free(folder);
    return rc;
}

bool ibx_snapshot_folder_is_whole_now(const struct ibx_snapshot_folder *folder)
{
    struct ibx_snapshot_folder *now = calloc(1, sizeof(*now));
    if (!now)
        return false;
    memcpy(now->path, folder->path, sizeof(now->path));
    now->at = folder->at;
    const bool whole = !read_manifest(now, NULL) && now->manifest.complete &&
                       ibx_snapshot_same(&now->manifest, &folder->manifest);
    ibx_snapshot_manifest_fini(&now->manifest);
    free(now);
    return whole;
}

int ibx_snapshot_folder_sync(const struct ibx_snapshot_folder *folder, struct ibx_error *err)
{
    for (unsigned i = 0; i < folder->count; i++)
        if (fsync(folder->fds[i]))
            return ibx_error_set(err, -errno, "block %u of %s cannot be written: %s", i,
                                 folder->path, strerror(errno));
    return 0;
}

int ibx_snapshot_folder_seal(const struct ibx_snapshot_folder *folder, struct ibx_error *err)
{
    char *text;
    size_t length;
    int rc = ibx_snapshot_manifest_write(&folder->manifest, &text, &length, err);
    if (rc)
        return rc;
    const int fd = openat(folder->at, MANIFEST ".new",
                          O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    rc = fd < 0 ? -errno : ibx_write_whole(fd, text, length);
    if (!rc && (fsync(fd) || renameat(folder->at, MANIFEST ".new", folder->at, MANIFEST) ||
                (fsync(folder->at) && errno != EINVAL /* some filesystems cannot */)))
        rc = -errno;
    if (rc) {
        ibx_error_set(err, rc, "%s/" MANIFEST " cannot be written: %s", folder->path,
                      strerror(-rc));
        unlinkat(folder->at, MANIFEST ".new", 0);
    }
    if (fd >= 0)
        close(fd);
    free(text);
    return rc;
}

int ibx_snapshot_folder_unseal(const struct ibx_snapshot_folder *folder)
{
    if (unlinkat(folder->at, MANIFEST, 0))
        return errno == ENOENT ? 0 : -errno;
    fsync(folder->at); /* best effort: without power the VM does not run on either */
    return 0;
}

void ibx_snapshot_folder_remove(const struct ibx_snapshot_folder *folder)
{
    char name[24];
    struct stat is, there;
    if (!folder->opened)
        return;
    for (unsigned i = 0; i < folder->count; i++) {
        block_name(folder, i, name);
        unlinkat(folder->at, name, 0);
    }
    if (folder->count) {
        unlinkat(folder->at, MANIFEST, 0);
        ibx_snapshot_unmark(folder);
    }
    if (!fstat(folder->at, &is) && !lstat(folder->path, &there) && is.st_dev == there.st_dev &&
        is.st_ino == there.st_ino)
        rmdir(folder->path);
}

void ibx_snapshot_folder_close(struct ibx_snapshot_folder *folder)
{
    for (unsigned i = 0; i < folder->count; i++)
        close(folder->fds[i]);
    folder->count = 0;
    if (folder->opened)
        close(folder->at);
    folder->opened = false;
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
        const uint64_t end = (uint64_t)to < size ? (uint64_t)to : size; /* the file may grow */
        const uint64_t low = (uint64_t)from / IBX_SNAPSHOT_PAGE;
        const uint64_t high = (end + IBX_SNAPSHOT_PAGE - 1) / IBX_SNAPSHOT_PAGE;
        if (low < high)
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
