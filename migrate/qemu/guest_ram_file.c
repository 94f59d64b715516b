/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The files of guest RAM after QEMU has ended, found by what was noted while it lived. */
#include "migrate/qemu/qemu_internal.h"

#include "common/file_check.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

uint64_t ibx_guest_file_hash(uint64_t dev, uint64_t ino)
{
    char name[128];
    FILE *boot = fopen("/proc/sys/kernel/random/boot_id", "re");
    bool known = boot && fgets(name, 64, boot);
    if (boot)
        fclose(boot);
    if (!known)
        return 0;
    size_t n = strlen(name);
    snprintf(name + n, sizeof(name) - n, "%" PRIx64 " %" PRIx64, dev, ino);
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (const char *c = name; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 1099511628211u;
    return hash;
}

/* ------------------------------------------------------------ while QEMU lives */

/* Whether `path` is the block's file, not a link to it, and can be put into a record. */
static bool is_path_of(const char *path, const struct ibx_guest_block *block)
{
    struct stat st;
    size_t length = strlen(path);
    for (const char *c = path; *c; c++)
        if ((unsigned char)*c < ' ' || (unsigned char)*c >= 0x7f)
            return false;
    return *path == '/' && length < IBX_GUEST_FILE_PATH && !lstat(path, &st) &&
           S_ISREG(st.st_mode) && st.st_dev == block->dev && st.st_ino == block->ino;
}

/* Makes a mem-path absolute; a relative one starts at QEMU's current directory. */
static void absolute(pid_t pid, const char *path, char *out, size_t size)
{
    char link[64], folder[PATH_MAX];
    snprintf(link, sizeof(link), "/proc/%d/cwd", (int)pid);
    ssize_t length = *path == '/' ? 0 : readlink(link, folder, sizeof(folder) - 1);
    folder[length > 0 ? length : 0] = '\0';
    snprintf(out, size, "%s%s%s", folder, *folder ? "/" : "", path);
}

void ibx_guest_file_describe(pid_t pid, const struct ibx_guest_block *block,
                             struct ibx_guest_file *file)
{
    char path[2 * PATH_MAX], link[64];
    struct stat st;
    *file = (struct ibx_guest_file){.file = block->file};
    if (block->fd < 0 || fstat(block->fd, &st) || !st.st_nlink)
        return;
    file->owner = st.st_uid;
    file->mode = st.st_mode;
    absolute(pid, block->path, path, sizeof(path));
    /* QEMU has other mounts, or its path is a link: use the path that this tool sees. */
    if (!is_path_of(path, block)) {
        snprintf(link, sizeof(link), "/proc/self/fd/%d", block->fd);
        ssize_t length = readlink(link, path, sizeof(path) - 1);
        path[length > 0 ? length : 0] = '\0';
    }
    if (is_path_of(path, block))
        snprintf(file->path, sizeof(file->path), "%.*s", (int)sizeof(file->path) - 1, path);
}

/* ------------------------------------------------------------ afterwards */

/* Why this is not the file that was noted; NULL: it is. */
static const char *differs(const struct stat *st, const struct ibx_guest_block *block,
                           const struct ibx_guest_file *file)
{
    if (!S_ISREG(st->st_mode) || st->st_dev != block->dev || st->st_ino != block->ino)
        return "it is another file now";
    if (!file->file || ibx_guest_file_hash(st->st_dev, st->st_ino) != file->file)
        return "this host was started anew since";
    if (st->st_uid != file->owner)
        return "it has another owner now";
    if (st->st_mode != file->mode)
        return "it has another mode now";
    if ((uint64_t)st->st_size < block->offset + block->size)
        return "it is shorter now";
    return NULL;
}

/* Finds the file at `path` by O_PATH, so that nothing is opened, not even a device that may be
 * there now. Returns the descriptor. */
static int find_at(const char *path, const struct ibx_guest_block *block,
                   const struct ibx_guest_file *file, struct ibx_error *err)
{
    struct stat st;
    int fd = open(path, O_PATH | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return ibx_error_set(err, -errno, "the file %s of guest RAM %s: %s", path, block->id,
                             strerror(errno));
    const char *why = fstat(fd, &st) ? strerror(errno) : differs(&st, block, file);
    if (!why)
        return fd;
    close(fd);
    return ibx_error_set(err, -ESTALE,
                         "%s is not the file of guest RAM %s that the VM had when its migration "
                         "began: %s",
                         path, block->id, why);
}

/* Finds the file under its name, or its name with `suffix`, and sets `path`. Returns a descriptor
 * by O_PATH. */
static int find(const struct ibx_guest_block *block, const struct ibx_guest_file *file,
                const char *suffix, char path[PATH_MAX], struct ibx_error *err)
{
    if (!file->path[0])
        return ibx_error_set(err, -ENOENT,
                             "the file of guest RAM %s had no name, so it ended with its QEMU",
                             block->id);
    snprintf(path, PATH_MAX, "%s%s", file->path, suffix);
    int fd = find_at(path, block, file, NULL);
    if (fd >= 0)
        return fd;
    snprintf(path, PATH_MAX, "%s", file->path);
    return find_at(path, block, file, err);
}

int ibx_guest_file_find(const struct ibx_guest_block *block, const struct ibx_guest_file *file,
                        const char *suffix, char path[PATH_MAX], struct ibx_error *err)
{
    int fd = find(block, file, suffix, path, err);
    if (fd < 0)
        return fd;
    close(fd);
    return 0;
}

/* Whether `path` leads to nothing, to another file, or to what is left of this one. */
static bool is_lost_at(const char *path, const struct ibx_guest_block *block)
{
    struct stat st;
    return stat(path, &st) ? errno == ENOENT || errno == ENOTDIR
                           : st.st_dev != block->dev || st.st_ino != block->ino ||
                                 (uint64_t)st.st_size < block->offset + block->size;
}

bool ibx_guest_file_is_gone(const struct ibx_guest_block *block, const struct ibx_guest_file *file,
                            const char *suffix)
{
    char aside[PATH_MAX];
    if (!file->path[0])
        return !file->mode; /* otherwise it has a name that could not be put into a record */
    snprintf(aside, sizeof(aside), "%s%s", file->path, suffix);
    return is_lost_at(file->path, block) && is_lost_at(aside, block);
}

int ibx_guest_file_folder(const char *path, uint64_t dev, uint64_t ino, const char **base)
{
    char folder[PATH_MAX];
    struct stat st;
    const char *slash = strrchr(path, '/');
    if (!slash || snprintf(folder, sizeof(folder), "%.*s/", (int)(slash - path), path) >= PATH_MAX)
        return -EINVAL;
    int at = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (at < 0)
        return -errno;
    *base = slash + 1;
    int rc = fstatat(at, *base, &st, AT_SYMLINK_NOFOLLOW) ? -errno : 0;
    if (!rc && (!S_ISREG(st.st_mode) || st.st_dev != dev || st.st_ino != ino))
        rc = -ESTALE;
    if (!rc)
        return at;
    close(at);
    return rc;
}

int ibx_guest_file_open(struct ibx_guest_block *block, const struct ibx_guest_file *file,
                        const char *suffix, bool writable, struct ibx_error *err)
{
    char path[PATH_MAX];
    const uint64_t noted = block->page_size;
    int there = find(block, file, suffix, path, err);
    if (there < 0)
        return there;
    if (block->fd >= 0) /* left by an earlier attempt that failed at another block */
        close(block->fd);
    block->fd = ibx_file_reopen(there, writable ? O_RDWR : O_RDONLY);
    int rc = block->fd < 0 ? block->fd : ibx_guest_file_page_size(block->fd, &block->page_size);
    close(there);
    if (rc)
        ibx_error_set(err, rc, "the file %s of guest RAM %s: %s", path, block->id, strerror(-rc));
    if (!rc && block->page_size != noted)
        rc = ibx_error_set(err, -ESTALE,
                           "%s has pages of %llu bytes, not of %llu as when the migration began",
                           path, (unsigned long long)block->page_size, (unsigned long long)noted);
    snprintf(block->path, sizeof(block->path), "%s", path);
    block->shared = block->named = !rc;
    return rc;
}

int ibx_guest_ram_open_files(struct ibx_guest_ram *ram, const struct ibx_guest_file *files,
                             const char *suffix, bool writable, struct ibx_error *err)
{
    int rc = 0;
    ram->pid = 0;
    for (size_t i = 0; !rc && i < ram->count; i++) {
        rc = ibx_guest_file_open(&ram->blocks[i], &files[i], suffix, writable, err);
        if (!rc)
            ram->blocks[i].file = files[i].file;
    }
    return rc ? rc : ibx_guest_ram_check_unused(ram, err);
}

int ibx_guest_file_set_aside(struct ibx_guest_block *block, const struct ibx_guest_file *file,
                             const char *suffix, struct ibx_error *err)
{
    char from[PATH_MAX], to[PATH_MAX];
    const char *base;
    int rc = ibx_guest_file_find(block, file, suffix, from, err);
    if (rc)
        return rc;
    snprintf(to, sizeof(to), "%s%s", file->path, suffix);
    if (strcmp(from, to) != 0) {
        int at = ibx_guest_file_folder(from, block->dev, block->ino, &base);
        if (at < 0)
            rc = at;
        else if (renameat2(at, base, at, strrchr(to, '/') + 1, RENAME_NOREPLACE))
            rc = -errno;
        if (at >= 0)
            close(at);
    }
    if (rc)
        return ibx_error_set(err, rc, "%s cannot be renamed to %s: %s", from, to, strerror(-rc));
    snprintf(block->path, sizeof(block->path), "%s", to);
    block->named = true;
    return 0;
}

/* Other mappings of its file, of a backend that is share=off or readonly=on, have no userfaultfd.
 * A recovery does not count them either (ibx_guest_ram_reopen_unmapped()). */
static bool is_of(void *context, const struct ibx_proc_mapping *m)
{
    const struct ibx_guest_block *block = context;
    return m->permissions[1] == 'w' && m->permissions[3] == 's' && m->dev == block->dev &&
           m->ino == block->ino;
}

int ibx_guest_block_find_mapping(pid_t pid, const struct ibx_guest_block *block)
{
    return ibx_proc_find_mapping(pid, is_of, (void *)block);
}

int ibx_guest_ram_check_sizes(const struct ibx_guest_ram *ram, bool used, struct ibx_error *err)
{
    struct ibx_error cut = {0};
    for (size_t i = 0; !cut.code && i < ram->count; i++) {
        const struct ibx_guest_block *block = &ram->blocks[i];
        struct stat st;
        if (block->fd >= 0 && !fstat(block->fd, &st) &&
            ibx_guest_block_check_size(block, block->path, &st, &cut) && used &&
            ibx_guest_block_find_mapping(ram->pid, block) != 1)
            cut.code = 0;
    }
    return cut.code ? ibx_error_set(err, cut.code, "%s", cut.message) : 0;
}
