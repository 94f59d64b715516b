/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Minor mode: which pages have come, in shared memory that outlives the tool. READs go into the
 * page cache. So a page there may be incomplete, because a tool died while it fetched it. Or the
 * guest may have changed it and the kernel unmapped it (to swap it out, to move it). The first kind
 * has to be fetched again, the second kind never, and only this file tells them apart.
 */
#include "migrate/destination/destination.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int map(struct destination_note *note, size_t bytes, int fd, const char *path,
               struct ibx_error *err)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return ibx_error_set(err, -errno, "%s cannot be mapped: %s", path, strerror(errno));
    note->memory = at;
    note->bytes = bytes;
    return 0;
}

/* `what` is noted there, and `without` is the option for none of it. */
static int make(struct destination_note *note, size_t bytes, const char *path, const char *what,
                const char *without, struct ibx_error *err)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    int code = fd < 0 ? errno : posix_fallocate(fd, 0, (off_t)bytes);
    int rc = code ? ibx_error_set(err, -code,
                                  "%s, where %s, cannot be made: %s; make room in /dev/shm, or "
                                  "receive %s",
                                  path, what, strerror(code), without)
                  : map(note, bytes, fd, path, err);
    if (fd >= 0)
        close(fd);
    if (rc && fd >= 0)
        unlink(path);
    return rc;
}

/* -ESTALE, without a sentence: it is gone, or another one's. */
static int find(struct destination_note *note, size_t bytes, const char *path,
                struct ibx_error *err)
{
    struct stat st;
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    const bool good = fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) &&
                      (st.st_uid == geteuid() || st.st_uid == 0) && !(st.st_mode & 022) &&
                      st.st_size == (off_t)bytes;
    int rc = good ? map(note, bytes, fd, path, err) : -ESTALE;
    if (fd >= 0)
        close(fd);
    return rc;
}

void ibx_destination_note_fini(struct destination_note *note)
{
    if (note->memory)
        munmap(note->memory, note->bytes);
    note->memory = NULL;
}

/* ---------------------------------------------------------------- minor mode: which have come */

static size_t arrived_bytes(const struct destination_ram *ram)
{
    return (size_t)(ram->map.pages + 63) / 64 * 8;
}

int ibx_destination_arrived_make(struct destination_ram *ram, const struct ibx_journal *record,
                                 struct ibx_error *err)
{
    char path[128];
    ibx_journal_arrived_path(record, path, sizeof(path));
    return make(&ram->arrived, arrived_bytes(ram), path, "--minor notes which pages have come",
                "without --minor", err);
}

int ibx_destination_arrived_find(struct destination_ram *ram, const struct ibx_journal *record,
                                 struct ibx_error *err)
{
    char path[128];
    ibx_journal_arrived_path(record, path, sizeof(path));
    int rc = find(&ram->arrived, arrived_bytes(ram), path, err);
    return rc != -ESTALE
               ? rc
               : ibx_error_set(err, rc,
                               "%s, where the tool before this one noted which pages have come, "
                               "is gone or is not its: which of the VM's pages are whole cannot "
                               "be known; end this QEMU, and ib-migrate rollback at "
                               "the source continues the VM from where it was stopped",
                               path);
}

void ibx_destination_arrived_remove(const struct ibx_journal *record)
{
    char path[128];
    ibx_journal_arrived_path(record, path, sizeof(path));
    unlink(path);
}

/* ---------------------------------------------------------------- verified: what has come */

static size_t tags_bytes(const struct destination_ram *ram)
{
    return (size_t)ram->map.pages * sizeof(uint64_t);
}

static int use_tags(struct destination_ram *ram, const struct ibx_journal *record,
                    struct ibx_error *err)
{
    return ibx_page_tags_create(&ram->map, ram->tags.memory, record->verify_key,
                                IBX_MIGRATE_LINKS_MAX, &ram->page_tags, err);
}

int ibx_destination_tags_make(struct destination_ram *ram, const struct ibx_journal *record,
                              struct ibx_error *err)
{
    char path[128];
    ibx_journal_tags_path(record, path, sizeof(path));
    int rc = make(&ram->tags, tags_bytes(ram), path, "the digests of pages are noted",
                  "and send with --no-verify", err);
    return rc ? rc : use_tags(ram, record, err);
}

int ibx_destination_tags_find(struct destination_ram *ram, const struct ibx_journal *record,
                              struct ibx_error *err)
{
    char path[128];
    ibx_journal_tags_path(record, path, sizeof(path));
    int rc = find(&ram->tags, tags_bytes(ram), path, err);
    return rc == 0 ? use_tags(ram, record, err)
           : rc != -ESTALE
               ? rc
               : ibx_error_set(err, rc,
                               "%s, where the tool before this one noted the digests of "
                               "pages, is gone or is not its: recover with --no-verify "
                               "at both ends to go on without comparing them",
                               path);
}

void ibx_destination_tags_remove(const struct ibx_journal *record)
{
    char path[128];
    ibx_journal_tags_path(record, path, sizeof(path));
    unlink(path);
}
