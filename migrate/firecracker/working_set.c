/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The file of a working set: docs/protocol.md, "The working set". */
#include "migrate/firecracker/firecracker.h"

#include "common/file_check.h"
#include "common/path_check.h"
#include "common/wire.h"
#include "common/write_whole.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC        "ibx working set\n"
#define MAGIC_BYTES  16u
#define VERSION      1u
#define HEADER_BYTES (MAGIC_BYTES + 4u + 4u + 8u + 8u)
#define RUN_BYTES    12u
#define HASH_BYTES   32u
#define PAGES_MAX    (1ull << 40)
#define FIRST_ROOM   1024u

static int hash(const uint8_t *bytes, size_t length, uint8_t out[HASH_BYTES])
{
    return EVP_Digest(bytes, length, out, NULL, EVP_sha256(), NULL) == 1 ? 0 : -EIO;
}

void ibx_working_set_fini(struct ibx_working_set *set)
{
    free(set->runs);
    *set = (struct ibx_working_set){0};
}

int ibx_working_set_add(struct ibx_working_set *set, uint64_t page, uint64_t pages)
{
    struct ibx_fault_run *last = set->count ? &set->runs[set->count - 1] : NULL;
    set->pages += pages;
    if (last && last->page + last->pages == page && last->pages + pages <= UINT32_MAX) {
        last->pages += pages;
        return 0;
    }
    if (set->count == IBX_WORKING_SET_RUNS_MAX)
        return -E2BIG;
    /* Room doubles when the count is a power of two. */
    if (!(set->count & (set->count - 1)) && (!set->count || set->count >= FIRST_ROOM)) {
        const size_t room = set->count ? 2 * set->count : FIRST_ROOM;
        struct ibx_fault_run *more = realloc(set->runs, room * sizeof(*more));
        if (!more)
            return -ENOMEM;
        set->runs = more;
    }
    set->runs[set->count++] = (struct ibx_fault_run){page, pages};
    return 0;
}

uint8_t *ibx_working_set_encode(const struct ibx_working_set *set, size_t *length)
{
    const size_t size = HEADER_BYTES + set->count * RUN_BYTES + HASH_BYTES;
    uint8_t *bytes = malloc(size);
    struct ibx_writer w = ibx_writer_of(bytes, size);
    if (!bytes)
        return NULL;
    ibx_put_bytes(&w, MAGIC, MAGIC_BYTES);
    ibx_put_u32(&w, VERSION);
    ibx_put_u32(&w, 0);
    ibx_put_u64(&w, set->image_pages);
    ibx_put_u64(&w, set->count);
    for (size_t i = 0; i < set->count; i++) {
        ibx_put_u64(&w, set->runs[i].page);
        ibx_put_u32(&w, (uint32_t)set->runs[i].pages);
    }
    if (w.failed || hash(bytes, w.length, bytes + w.length)) {
        free(bytes);
        return NULL;
    }
    *length = size;
    return bytes;
}

/* Takes the head; checks the version first, since nothing is known of the rest of another version.
 */
static int header_take(struct ibx_reader *r, size_t length, struct ibx_working_set *set,
                       uint64_t *runs, struct ibx_error *err)
{
    const uint8_t *magic = ibx_get_bytes(r, MAGIC_BYTES);
    const uint32_t version = ibx_get_u32(r), reserved = ibx_get_u32(r);
    set->image_pages = ibx_get_u64(r);
    *runs = ibx_get_u64(r);
    if (r->failed || !magic || memcmp(magic, MAGIC, MAGIC_BYTES))
        return ibx_error_set(err, -EPROTO, "it is no working set: record one with --record");
    if (version != VERSION)
        return ibx_error_set(err, -EPROTO,
                             "it is a working set of version %u, and this ib-migrate knows version "
                             "%u: record it again",
                             version, VERSION);
    if (reserved || set->image_pages > PAGES_MAX || *runs > IBX_WORKING_SET_RUNS_MAX ||
        length != HEADER_BYTES + *runs * RUN_BYTES + HASH_BYTES)
        return ibx_error_set(err, -EPROTO,
                             "it is truncated or damaged: it has %zu bytes and announces %" PRIu64
                             " runs of pages; record it again",
                             length, *runs);
    return 0;
}

static int runs_take(struct ibx_reader *r, uint64_t runs, struct ibx_working_set *set,
                     struct ibx_error *err)
{
    for (uint64_t i = 0; i < runs; i++) {
        const uint64_t page = ibx_get_u64(r), pages = ibx_get_u32(r);
        if (!pages || page > set->image_pages || pages > set->image_pages - page)
            return ibx_error_set(err, -EPROTO,
                                 "run %" PRIu64 " has %" PRIu64 " pages from %" PRIu64
                                 " on, of a memory of %" PRIu64 ": record it again",
                                 i, pages, page, set->image_pages);
        int rc = ibx_working_set_add(set, page, pages);
        if (rc)
            return ibx_error_set(err, rc, "no memory for %" PRIu64 " runs of pages", runs);
    }
    return 0;
}

int ibx_working_set_decode(const uint8_t *bytes, size_t length, struct ibx_working_set *set,
                           struct ibx_error *err)
{
    struct ibx_reader r = ibx_reader_of(bytes, length);
    struct ibx_working_set out = {0};
    uint8_t sum[HASH_BYTES];
    uint64_t runs;
    int rc = header_take(&r, length, &out, &runs, err);
    if (!rc && (hash(bytes, length - HASH_BYTES, sum) ||
                memcmp(sum, bytes + length - HASH_BYTES, HASH_BYTES)))
        rc = ibx_error_set(err, -EPROTO, "it is damaged (its SHA-256 differs): record it again");
    if (!rc)
        rc = runs_take(&r, runs, &out, err);
    if (rc)
        ibx_working_set_fini(&out);
    else
        *set = out;
    return rc;
}

/* ------------------------------------------------------------ files */

static int read_whole(int fd, uint8_t *bytes, size_t length)
{
    for (size_t at = 0; at < length;) {
        const ssize_t n = read(fd, bytes + at, length - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n ? -errno : -ENODATA;
        at += (size_t)n;
    }
    return 0;
}

/* Opens the file and returns the descriptor. Only a regular file is opened, since opening a device
 * may have effects. */
static int open_file(const char *path, size_t *size, struct ibx_error *err)
{
    const off_t most = HEADER_BYTES + (off_t)IBX_WORKING_SET_RUNS_MAX * RUN_BYTES + HASH_BYTES;
    struct stat st;
    const int found = open(path, O_PATH | O_CLOEXEC);
    int fd = found < 0 || fstat(found, &st) ? -errno : 0;
    const bool fits = !fd && S_ISREG(st.st_mode) && st.st_size <= most;
    if (fits)
        fd = ibx_file_reopen(found, O_RDONLY);
    if (found >= 0)
        close(found);
    if (fd < 0)
        return ibx_error_set(err, fd, "--replay %s: %s%s", path, strerror(-fd),
                             fd == -ENOENT ? "; an earlier run writes that file with --record"
                                           : "");
    if (!fits)
        return ibx_error_set(err, -EINVAL, "--replay %s is no file of up to %lld bytes", path,
                             (long long)most);
    *size = (size_t)st.st_size;
    return fd;
}

int ibx_working_set_load(const char *path, struct ibx_working_set *set, struct ibx_error *err)
{
    size_t size = 0;
    const int fd = open_file(path, &size, err);
    if (fd < 0)
        return fd;
    uint8_t *bytes = malloc(size + 1);
    int rc = bytes ? read_whole(fd, bytes, size) : -ENOMEM;
    if (rc)
        ibx_error_set(err, rc, "--replay %s: %s", path, strerror(-rc));
    else if ((rc = ibx_working_set_decode(bytes, size, set, err)))
        ibx_error_prefix(err, rc, "--replay %s", path);
    free(bytes);
    close(fd);
    return rc;
}

int ibx_working_set_check_way(const char *path, struct ibx_error *err)
{
    return ibx_path_check("--record ", path, err);
}

/* Opens the folder of the file by O_PATH, so that it cannot be replaced any more, and sets the
 * file's name in it. Refuses a path with folders of another user, who could have other files of
 * this user replaced. */
static int open_folder(const char *path, const char **name, struct ibx_error *err)
{
    char folder[PATH_MAX];
    struct stat st;
    const char *slash = strrchr(path, '/');
    int found, rc = ibx_working_set_check_way(path, err);
    if (rc)
        return rc;
    *name = slash ? slash + 1 : path;
    if (snprintf(folder, sizeof(folder), "%.*s", slash ? (int)(slash - path + 1) : 1,
                 slash ? path : ".") >= (int)sizeof(folder))
        return ibx_error_set(err, -ENAMETOOLONG, "--record %.64s...: the path is too long", path);
    rc = ibx_path_find("--record ", folder, &found, err);
    if (rc)
        return rc;
    if (found < 0 || fstat(found, &st)) {
        rc = found < 0 ? found : -errno;
        ibx_error_set(err, rc, "--record %s cannot be written: %s", path, strerror(-rc));
    } else if (st.st_uid != geteuid() && st.st_uid && !ibx_path_is_from_outside(st.st_uid)) {
        rc = ibx_error_set(err, -EPERM, "--record %s: its folder was exchanged for user %u's", path,
                           (unsigned)st.st_uid);
    }
    if (rc && found >= 0)
        close(found);
    return rc ? rc : found;
}

/* Makes a new file in the folder, with a random name `fresh`; returns its descriptor. */
static int open_fresh(int folder, const char *name, char fresh[NAME_MAX + 1])
{
    for (unsigned tries = 0; tries < 100; tries++) {
        uint32_t number;
        if (getrandom(&number, sizeof(number), 0) != sizeof(number))
            return -EIO;
        if (snprintf(fresh, NAME_MAX + 1, "%s.%08" PRIx32, name, number) > NAME_MAX)
            return -ENAMETOOLONG;
        const int fd = openat(folder, fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd >= 0 || errno != EEXIST)
            return fd >= 0 ? fd : -errno;
    }
    return -EEXIST;
}

static int replace(int folder, const char *name, const uint8_t *bytes, size_t length)
{
    char fresh[NAME_MAX + 1];
    const int fd = open_fresh(folder, name, fresh);
    int rc = fd < 0 ? fd : ibx_write_whole(fd, bytes, length);
    if (!rc && (fsync(fd) || renameat(folder, fresh, folder, name)))
        rc = -errno;
    if (rc && fd >= 0)
        unlinkat(folder, fresh, 0);
    if (fd >= 0)
        close(fd);
    return rc;
}

int ibx_working_set_save(const char *path, const struct ibx_working_set *set, struct ibx_error *err)
{
    const char *name;
    size_t length = 0;
    const int folder = open_folder(path, &name, err);
    if (folder < 0)
        return folder;
    uint8_t *bytes = ibx_working_set_encode(set, &length);
    const int rc = bytes ? replace(folder, name, bytes, length) : -ENOMEM;
    free(bytes);
    close(folder);
    return rc ? ibx_error_set(err, rc, "--record %s cannot be written: %s", path, strerror(-rc))
              : 0;
}
