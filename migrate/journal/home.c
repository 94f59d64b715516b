/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The marker of a borrowed VM that may run at home again. */
#include "migrate/journal/journal_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void ibx_journal_home_path(const uint8_t id[IBX_MIGRATE_ID_BYTES], char *path, size_t size)
{
    char digits[2 * IBX_MIGRATE_ID_BYTES + 1];
    ibx_hex_text(id, IBX_MIGRATE_ID_BYTES, digits);
    snprintf(path, size, "/dev/shm/ibx-%s.source.home", digits);
}

/* The marker is empty, and this user's alone. Others can give its name to a file that they may
 * write to. The number of its names says nothing: without fs.protected_hardlinks others could give
 * the marker a second one, and the VM might run twice if it counted as none then. */
static bool is_marker(const struct stat *st)
{
    return !st->st_size && !(st->st_mode & (S_IRWXG | S_IRWXO)) &&
           (st->st_uid == geteuid() || st->st_uid == 0);
}

static bool is_marked(const char *path)
{
    struct stat st;
    return !lstat(path, &st) && is_marker(&st);
}

static bool is_marked_in(const char *folder, const struct ibx_record *record)
{
    struct stat st;
    const int rc = ibx_journal_look_beside(folder, record, HOME, &st);
    return rc ? rc != -ENOENT : is_marker(&st);
}

static struct ibx_record borrowing(const uint8_t id[IBX_MIGRATE_ID_BYTES])
{
    struct ibx_record record = {.source = true};
    memcpy(record.id, id, sizeof(record.id));
    return record;
}

/* The marker goes into /dev/shm, which is fast, since the VM stands still meanwhile. But every user
 * can write there, and it may be full: if it fails there, the marker goes into the folder. */
int ibx_journal_mark_home(const char *folder, const uint8_t id[IBX_MIGRATE_ID_BYTES],
                          struct ibx_error *err)
{
    char path[NAME_BYTES + 32], name[NAME_BYTES];
    const struct ibx_record record = borrowing(id);
    ibx_journal_home_path(id, path, sizeof(path));
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int fd = open(path, flags, 0600);
    if (fd < 0 && errno == EEXIST && is_marked(path))
        return 0;
    if (fd < 0 && errno == EEXIST && !unlink(path)) /* another user's file, which root can remove */
        fd = open(path, flags, 0600);
    const int code = errno;
    if (fd < 0)
        fd = ibx_journal_open_beside(folder, &record, HOME, flags & ~O_EXCL);
    if (fd < 0) {
        ibx_journal_name(&record, HOME, name);
        return ibx_error_set(err, fd,
                             "neither %s (%s) nor %s/%s (%s), where it is noted that the VM may "
                             "run here again, can be made: make room in /dev/shm",
                             path, strerror(code), folder, name, strerror(-fd));
    }
    close(fd);
    return 0;
}

bool ibx_journal_home_marked(const char *folder, const struct ibx_record *record)
{
    char path[NAME_BYTES + 32];
    ibx_journal_home_path(record->id, path, sizeof(path));
    return record->source && record->borrow && (is_marked(path) || is_marked_in(folder, record));
}

void ibx_journal_unmark_home(const char *folder, const uint8_t id[IBX_MIGRATE_ID_BYTES])
{
    char path[NAME_BYTES + 32];
    const struct ibx_record record = borrowing(id);
    ibx_journal_home_path(id, path, sizeof(path));
    unlink(path);
    ibx_journal_unlink_beside(folder, &record, HOME);
}
