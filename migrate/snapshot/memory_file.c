/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The memory file of a Firecracker snapshot, offered like a folder: one block of that file, a
 * device state of nothing, and the hashes of its pages in a file without a name. Its id comes from
 * the file, so that a server that was started again serves the same snapshot, and a file that has
 * changed is another one.
 */
#include "common/file_check.h"
#include "common/path_check.h"
#include "common/shell_word.h"
#include "common/wire.h"
#include "migrate/common/common.h"
#include "migrate/snapshot/snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int id_make(const struct stat *st, uint8_t id[IBX_SNAPSHOT_ID], struct ibx_error *err)
{
    uint8_t identity[40], hash[EVP_MAX_MD_SIZE];
    struct ibx_writer w = ibx_writer_of(identity, sizeof(identity));
    ibx_put_u64(&w, st->st_dev);
    ibx_put_u64(&w, st->st_ino);
    ibx_put_u64(&w, (uint64_t)st->st_size);
    ibx_put_u64(&w, (uint64_t)st->st_mtim.tv_sec);
    ibx_put_u64(&w, (uint64_t)st->st_mtim.tv_nsec);
    if (EVP_Digest(identity, sizeof(identity), hash, NULL, EVP_sha256(), NULL) != 1)
        return ibx_error_set(err, -EIO, "OpenSSL cannot compute SHA-256");
    memcpy(id, hash, IBX_SNAPSHOT_ID);
    return 0;
}

static int check_pages(const char *path, const struct stat *st, struct ibx_error *err)
{
    if (S_ISREG(st->st_mode) && st->st_size > 0 && st->st_size % IBX_SNAPSHOT_PAGE == 0 &&
        (uint64_t)st->st_size <= IBX_SNAPSHOT_BYTES_MAX)
        return 0;
    return ibx_error_set(err, -EINVAL,
                         "%s is neither the folder of a snapshot nor the memory file of one, with "
                         "whole pages of %u bytes",
                         path, IBX_SNAPSHOT_PAGE);
}

/* Opens the file. Refuses a path with folders or links that another user owns, who could have
 * another file of this user served. Only a regular file is opened, since opening a device may have
 * effects.
 */
static int file_open(const char *path, struct stat *st, struct ibx_error *err)
{
    int found, rc = ibx_path_find("", path, &found, err);
    if (rc)
        return rc;
    int fd = found < 0 ? found : fstat(found, st) ? -errno : 0;
    if (!fd)
        rc = check_pages(path, st, err);
    if (!fd && !rc)
        fd = ibx_file_reopen(found, O_RDONLY);
    if (found >= 0)
        close(found);
    return rc ? rc : fd < 0 ? ibx_error_set(err, fd, "%s: %s", path, strerror(-fd)) : fd;
}

/* The file has all secrets of the VM, and others must not be able to change it. */
static int check_private(const char *path, const struct stat *st, struct ibx_error *err)
{
    if (st->st_uid != geteuid() && st->st_uid != 0)
        return ibx_error_set(err, -EPERM,
                             "%s belongs to user %u, who can change it: serve it as that user, or "
                             "a copy of your own",
                             path, (unsigned)st->st_uid);
    if (st->st_mode & 077)
        return ibx_error_set(err, -EPERM,
                             "other users can read or change %s (mode %04o), and a VM's memory is "
                             "in it: chmod 0600 %s",
                             path, st->st_mode & 07777u, ibx_shell_word(path).text);
    return 0;
}

/* No machine type of QEMU has this name. */
#define MACHINE "firecracker"

static void manifest_fill(struct ibx_snapshot_manifest *m, uint64_t bytes, bool hashed)
{
    m->complete = true;
    m->hashed = hashed;
    m->state_bytes = 1;
    m->ram_count = 1;
    m->ram[0].size = bytes;
    snprintf(m->ram[0].id, sizeof(m->ram[0].id), "memory");
    snprintf(m->machine, sizeof(m->machine), MACHINE);
}

/* Makes a memfd of zeros in place of a file that a snapshot's folder would have. */
static int block_add(struct ibx_snapshot_folder *folder, uint64_t bytes, struct ibx_error *err)
{
    const int fd = memfd_create("ibx-snapshot", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes)) {
        const int code = errno;
        if (fd >= 0)
            close(fd);
        return ibx_error_set(err, -code, "a memory file: %s", strerror(code));
    }
    folder->sizes[folder->count] = bytes;
    folder->fds[folder->count++] = fd;
    return 0;
}

static int hash_all(struct ibx_snapshot_folder *folder, struct ibx_error *err)
{
    struct ibx_snapshot_manifest *m = &folder->manifest;
    struct ibx_snapshot_table table = {.hashes = NULL};
    struct ibx_page_map map;
    int rc = ibx_snapshot_folder_map(folder, &map, err);
    if (rc)
        return rc;
    rc = ibx_snapshot_table_init(m, &table, err);
    if (!rc)
        rc = ibx_snapshot_table_fill(folder, &map, &table, ibx_migration_signals_pending, err);
    if (!rc)
        rc = ibx_snapshot_table_digest(m, &table, m->digest, err);
    if (!rc)
        rc = ibx_snapshot_table_write(folder, &table, err);
    ibx_snapshot_table_fini(&table);
    ibx_page_map_fini(&map);
    return rc;
}

static int open_all(const char *path, bool hashed, struct ibx_snapshot_folder *folder,
                    struct ibx_error *err)
{
    struct ibx_snapshot_manifest *m = &folder->manifest;
    struct stat st;
    const int fd = file_open(path, &st, err);
    if (fd < 0)
        return fd;
    snprintf(folder->path, sizeof(folder->path), "%s", path);
    folder->read_only = true;
    folder->count = 1;
    folder->fds[0] = fd;
    folder->sizes[0] = (uint64_t)st.st_size;
    manifest_fill(m, (uint64_t)st.st_size, hashed);
    int rc = check_private(path, &st, err);
    if (!rc)
        rc = id_make(&st, m->id, err);
    if (!rc && !(m->description = json_object()))
        rc = ibx_error_set(err, -ENOMEM, "no memory for a manifest");
    if (!rc)
        rc = block_add(folder, IBX_SNAPSHOT_PAGE, err);
    if (!rc && hashed)
        rc = block_add(folder, ibx_snapshot_table_bytes(m), err);
    if (!rc && hashed)
        rc = hash_all(folder, err);
    ibx_snapshot_folder_note_times(folder);
    folder->times[0] = st.st_mtim; /* the time before the file was read */
    return rc;
}

int ibx_snapshot_memory_file(const char *path, bool hashed, struct ibx_snapshot_folder *out,
                             struct ibx_error *err)
{
    struct ibx_snapshot_folder *folder = calloc(1, sizeof(*folder));
    if (!folder)
        return ibx_error_set(err, -ENOMEM, "no memory for a snapshot");
    const int rc = open_all(path, hashed, folder, err);
    if (rc)
        ibx_snapshot_folder_close(folder);
    else
        *out = *folder;
    free(folder);
    return rc;
}

int ibx_snapshot_memory_file_refuse(const struct ibx_snapshot_manifest *manifest,
                                    struct ibx_error *err)
{
    if (strcmp(manifest->machine, MACHINE))
        return 0;
    return ibx_error_set(err, -EINVAL,
                         "this is the memory file of a Firecracker snapshot, which \"ib-migrate "
                         "firecracker\" reads: clone needs what \"ib-migrate freeze\" has made");
}
