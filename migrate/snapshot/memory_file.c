/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The memory file of a Firecracker snapshot, offered like a folder: one block of that file, and a
 * device state of nothing. Its id comes from the file, so that a server that was started again
 * serves the same snapshot, and a file that has changed is another one.
 */
#include "migrate/snapshot/snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void number_put(uint8_t *at, uint64_t value)
{
    for (unsigned i = 0; i < 8; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static int id_make(const struct stat *st, uint8_t id[IBX_SNAPSHOT_ID], struct ibx_error *err)
{
    uint8_t identity[40], hash[EVP_MAX_MD_SIZE];
    number_put(identity, st->st_dev);
    number_put(identity + 8, st->st_ino);
    number_put(identity + 16, (uint64_t)st->st_size);
    number_put(identity + 24, (uint64_t)st->st_mtim.tv_sec);
    number_put(identity + 32, (uint64_t)st->st_mtim.tv_nsec);
    if (EVP_Digest(identity, sizeof(identity), hash, NULL, EVP_sha256(), NULL) != 1)
        return ibx_error_set(err, -EIO, "OpenSSL cannot compute SHA-256");
    memcpy(id, hash, IBX_SNAPSHOT_ID);
    return 0;
}

static int file_open(const char *path, struct stat *st, struct ibx_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, st)) {
        const int code = errno;
        if (fd >= 0)
            close(fd);
        return ibx_error_set(err, -code, "%s: %s", path, strerror(code));
    }
    if (S_ISREG(st->st_mode) && st->st_size > 0 && st->st_size % IBX_SNAPSHOT_PAGE == 0 &&
        (uint64_t)st->st_size <= IBX_SNAPSHOT_BYTES_MAX)
        return fd;
    close(fd);
    return ibx_error_set(err, -EINVAL,
                         "%s is neither the folder of a snapshot nor the memory file of one, with "
                         "whole pages of %u bytes",
                         path, IBX_SNAPSHOT_PAGE);
}

int ibx_snapshot_memory_file(const char *path, struct ibx_snapshot_folder *folder,
                             struct ibx_error *err)
{
    struct stat st;
    struct ibx_snapshot_manifest *m = &folder->manifest;
    const int fd = file_open(path, &st, err);
    if (fd < 0)
        return fd;
    const int state = memfd_create("ibx-no-state", MFD_CLOEXEC);
    int rc = state < 0 || ftruncate(state, IBX_SNAPSHOT_PAGE)
                 ? ibx_error_set(err, -errno, "a memory file: %s", strerror(errno))
                 : id_make(&st, m->id, err);
    m->description = rc ? NULL : json_object();
    if (!rc && !m->description)
        rc = ibx_error_set(err, -ENOMEM, "no memory for a manifest");
    if (rc) {
        if (state >= 0)
            close(state);
        close(fd);
        return rc;
    }
    m->complete = true;
    m->state_bytes = 1;
    m->ram_count = 1;
    m->ram[0].size = (uint64_t)st.st_size;
    snprintf(m->ram[0].id, sizeof(m->ram[0].id), "memory");
    snprintf(m->machine, sizeof(m->machine), "firecracker");
    folder->read_only = true;
    folder->count = 2;
    folder->fds[0] = fd;
    folder->sizes[0] = m->ram[0].size;
    folder->fds[1] = state;
    folder->sizes[1] = IBX_SNAPSHOT_PAGE;
    return 0;
}
