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

static size_t bytes_of(const struct destination_ram *ram)
{
    return (size_t)(ram->map.pages + 63) / 64 * 8;
}

static int map(struct destination_ram *ram, int fd, const char *path, struct ibx_error *err)
{
    void *at = mmap(NULL, bytes_of(ram), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return ibx_error_set(err, -errno, "%s cannot be mapped: %s", path, strerror(errno));
    ram->arrived = at;
    ram->arrived_bytes = bytes_of(ram);
    return 0;
}

int ibx_destination_arrived_make(struct destination_ram *ram, const struct ibx_journal *record,
                                 struct ibx_error *err)
{
    char path[128];
    ibx_journal_arrived_path(record, path, sizeof(path));
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    int code = fd < 0 ? errno : posix_fallocate(fd, 0, (off_t)bytes_of(ram));
    int rc = code ? ibx_error_set(err, -code,
                                  "%s, where --minor notes which pages have come, cannot be made: "
                                  "%s; make room in /dev/shm, or receive without --minor",
                                  path, strerror(code))
                  : map(ram, fd, path, err);
    if (fd >= 0)
        close(fd);
    if (rc && fd >= 0)
        unlink(path);
    return rc;
}

int ibx_destination_arrived_find(struct destination_ram *ram, const struct ibx_journal *record,
                                 struct ibx_error *err)
{
    char path[128];
    struct stat st;
    ibx_journal_arrived_path(record, path, sizeof(path));
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    const bool good = fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) &&
                      (st.st_uid == geteuid() || st.st_uid == 0) && !(st.st_mode & 022) &&
                      st.st_size == (off_t)bytes_of(ram);
    int rc = good ? map(ram, fd, path, err)
                  : ibx_error_set(err, -ESTALE,
                                  "%s, where the tool before this one noted which pages have come, "
                                  "is gone or is not its: which of the VM's pages are whole cannot "
                                  "be known; end this QEMU, and ib-migrate rollback at "
                                  "the source continues the VM from where it was stopped",
                                  path);
    if (fd >= 0)
        close(fd);
    return rc;
}

void ibx_destination_arrived_remove(const struct ibx_journal *record)
{
    char path[128];
    ibx_journal_arrived_path(record, path, sizeof(path));
    unlink(path);
}
