/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Whether the files of a snapshot are still what was frozen.
 *
 * A file `verified` in the folder notes the files' times of change when they were last verified, so
 * that a snapshot is read once, not for every child. Only the folder's owner and root can write it.
 */
#include "migrate/snapshot/cache.h"

#include "common/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#define MARK       "verified"
#define MARK_BYTES 32u
#define TRIES      3u /* if the files are changed while they are read */

/* ------------------------------------------------------------ the mark */

static void put_time(struct ibx_writer *w, const struct timespec *time)
{
    ibx_put_u64(w, (uint64_t)time->tv_sec);
    ibx_put_u64(w, (uint64_t)time->tv_nsec);
}

static bool mark_of(const struct ibx_snapshot_folder *folder, uint8_t mark[MARK_BYTES])
{
    static const size_t each = 7 * 8;
    const size_t size = IBX_SNAPSHOT_DIGEST + IBX_GUEST_BLOCKS_MAX * each;
    uint8_t *bytes = calloc(1, size);
    struct ibx_writer w = ibx_writer_of(bytes, size);
    bool good = bytes != NULL;
    if (good)
        ibx_put_bytes(&w, folder->manifest.digest, IBX_SNAPSHOT_DIGEST);
    for (unsigned i = 0; good && i < folder->count; i++) {
        struct stat st;
        good = !fstat(folder->fds[i], &st);
        ibx_put_u64(&w, good ? st.st_dev : 0);
        ibx_put_u64(&w, good ? st.st_ino : 0);
        ibx_put_u64(&w, good ? (uint64_t)st.st_size : 0);
        put_time(&w, &st.st_mtim);
        put_time(&w, &st.st_ctim);
    }
    good = good && !w.failed && EVP_Digest(bytes, w.length, mark, NULL, EVP_sha256(), NULL) == 1;
    free(bytes);
    return good;
}

static bool is_marked(const struct ibx_snapshot_folder *folder)
{
    uint8_t wanted[MARK_BYTES], is[MARK_BYTES + 1];
    const int fd = openat(folder->at, MARK, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return false;
    const ssize_t n = read(fd, is, sizeof(is));
    close(fd);
    return n == MARK_BYTES && mark_of(folder, wanted) && !memcmp(is, wanted, MARK_BYTES);
}

/* If the mark cannot be written, the snapshot is simply read again the next time. */
static void write_mark(const struct ibx_snapshot_folder *folder, const uint8_t mark[MARK_BYTES])
{
    char name[64];
    snprintf(name, sizeof(name), MARK ".%d", (int)getpid());
    const int fd = openat(folder->at, name,
                          O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0)
        return;
    const bool good = write(fd, mark, MARK_BYTES) == (ssize_t)MARK_BYTES;
    close(fd);
    if (!good || renameat(folder->at, name, folder->at, MARK))
        unlinkat(folder->at, name, 0);
}

void ibx_snapshot_mark_verified(const struct ibx_snapshot_folder *folder)
{
    uint8_t mark[MARK_BYTES];
    if (folder->opened && mark_of(folder, mark))
        write_mark(folder, mark);
}

void ibx_snapshot_unmark(const struct ibx_snapshot_folder *folder)
{
    unlinkat(folder->at, MARK, 0);
}

/* ------------------------------------------------------------ reading all of it */

static int compare(const struct ibx_snapshot_folder *folder, uint64_t *bytes, struct ibx_error *err)
{
    uint8_t digest[IBX_SNAPSHOT_DIGEST];
    struct ibx_page_map map;
    int rc = ibx_snapshot_folder_map(folder, &map, err);
    if (rc)
        return rc;
    *bytes = map.data_pages * IBX_SNAPSHOT_PAGE;
    rc = ibx_snapshot_digest(folder, &map, digest, err);
    ibx_page_map_fini(&map);
    if (!rc && memcmp(digest, folder->manifest.digest, sizeof(digest)))
        rc = ibx_error_set(err, -EBADMSG,
                           "the pages in %s are not those that were frozen: their digest differs "
                           "from the manifest's; remove it, and freeze or fetch the snapshot again",
                           folder->path);
    return rc;
}

int ibx_snapshot_verify(const struct ibx_snapshot_folder *folder, uint64_t *bytes,
                        struct ibx_error *err)
{
    uint8_t before[MARK_BYTES], after[MARK_BYTES];
    *bytes = 0;
    if (!folder->manifest.hashed || is_marked(folder))
        return 0;
    /* If a file was changed while it was read, it may have been changed after that: once more. */
    for (unsigned i = 0; i < TRIES; i++) {
        const bool known = mark_of(folder, before);
        const int rc = compare(folder, bytes, err);
        if (rc || !known)
            return rc;
        if (!mark_of(folder, after) || memcmp(before, after, MARK_BYTES) != 0)
            continue;
        if (folder->opened)
            write_mark(folder, before);
        return 0;
    }
    return ibx_error_set(err, -EBUSY,
                         "the files in %s are changed again and again while they are compared with "
                         "what was frozen: wait until whoever copies them has ended",
                         folder->path);
}

/* ------------------------------------------------------------ while it is served */

static struct snapshot_intact *watched; /* one in a process */

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    const struct snapshot_intact *intact = watched;
    const uintptr_t at = (uintptr_t)info->si_addr;
    (void)context;
    for (unsigned i = 0; intact && i < intact->folder->count; i++) {
        const uintptr_t start = (uintptr_t)intact->memory[i];
        if (!start || at < start || at - start >= intact->folder->sizes[i])
            continue;
        /* This thread must not continue with wrong bytes, and the process is about to end. */
        eventfd_write(intact->fd, 1);
        for (;;)
            pause();
    }
    signal(number, SIG_DFL);
}

int ibx_snapshot_intact_begin(struct snapshot_intact *intact,
                              const struct ibx_snapshot_folder *folder, void *const *memory,
                              struct ibx_error *err)
{
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    *intact = (struct snapshot_intact){.folder = folder, .memory = memory};
    intact->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (intact->fd < 0)
        return ibx_error_set(err, -errno, "no event descriptor: %s", strerror(errno));
    watched = intact;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGBUS, &action, &intact->before)
               ? ibx_error_set(err, -errno, "sigaction: %s", strerror(errno))
               : 0;
}

void ibx_snapshot_intact_end(struct snapshot_intact *intact)
{
    if (watched == intact) {
        sigaction(SIGBUS, &intact->before, NULL);
        watched = NULL;
        close(intact->fd);
    }
}

static int refuse_shorter(const struct ibx_snapshot_folder *folder, struct ibx_error *err)
{
    return ibx_error_set(err, -ESTALE,
                         "%s was cut short while it was served, and its readers get nothing more: "
                         "put the file back as it was and serve it again",
                         folder->path);
}

/* Whether the files' bytes have changed, not only their times: on some kernels, registering a
 * mapping for RDMA changes the time. */
static int check_changed(struct snapshot_intact *intact, struct ibx_error *err)
{
    const struct ibx_snapshot_folder *folder = intact->folder;
    uint64_t bytes;
    if (folder->manifest.hashed && !compare(folder, &bytes, err))
        return 0;
    return ibx_error_set(err, -ESTALE,
                         "%s was changed while it was served, and its readers get nothing more: "
                         "serve what it is now to those that begin with it",
                         folder->path);
}

int ibx_snapshot_intact_check(struct snapshot_intact *intact, struct ibx_snapshot_folder *folder,
                              struct ibx_error *err)
{
    eventfd_t count;
    bool changed = false;
    if (!eventfd_read(intact->fd, &count))
        return refuse_shorter(folder, err);
    for (unsigned i = 0; i < folder->count; i++) {
        struct stat st;
        if (fstat(folder->fds[i], &st))
            return ibx_error_set(err, -errno, "%s: %s", folder->path, strerror(errno));
        if ((uint64_t)st.st_size < folder->sizes[i])
            return refuse_shorter(folder, err);
        changed = changed || st.st_mtim.tv_sec != folder->times[i].tv_sec ||
                  st.st_mtim.tv_nsec != folder->times[i].tv_nsec;
        folder->times[i] = st.st_mtim;
    }
    return changed ? check_changed(intact, err) : 0;
}

void ibx_snapshot_folder_note_times(struct ibx_snapshot_folder *folder)
{
    struct stat st;
    for (unsigned i = 0; i < folder->count; i++)
        if (!fstat(folder->fds[i], &st))
            folder->times[i] = st.st_mtim;
}
