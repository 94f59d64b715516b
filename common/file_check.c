/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/file_check.h"

#include "common/path_check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* `name` is for messages. */
static int check(int fd, enum ibx_file_kind kind, const char *name, struct ibx_error *err)
{
    const bool key = kind == IBX_FILE_KEY;
    const char *what = key ? "key file " : "";
    struct stat st;
    if (fstat(fd, &st))
        return ibx_error_set(err, -errno, "%s%s: %s", what, name, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return ibx_error_set(err, -EINVAL, "%s%s is not a regular file", what, name);
    if (st.st_mode & (key ? 077 : 022))
        return ibx_error_set(err, -EPERM, "%s%s has mode %04o, so others can %s it: chmod %s it",
                             what, name, (unsigned)(st.st_mode & 07777), key ? "read" : "change",
                             key ? "600" : "go-w");
    if (st.st_uid != geteuid() && st.st_uid != 0)
        return ibx_error_set(err, -EPERM, "%s%s belongs to user %u, not to user %u or root: %s",
                             what, name, (unsigned)st.st_uid, (unsigned)geteuid(),
                             key ? IBX_FILE_KEY_COPY : "chown it to one of them");
    return 0;
}

static int cannot_open(const char *what, const char *path, int code, struct ibx_error *err)
{
    return ibx_error_set(err, -code, "cannot open %s%s: %s", what, path, strerror(code));
}

int ibx_file_reopen(int found, int flags)
{
    char again[40]; /* not /proc/self: the first thread may have ended */
    snprintf(again, sizeof(again), "/proc/thread-self/fd/%d", found);
    const int fd = open(again, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    return fd >= 0 ? fd : errno == ENOENT ? -ENOSYS : -errno;
}

int ibx_file_open(const char *path, enum ibx_file_kind kind, struct ibx_error *err)
{
    const char *what = kind == IBX_FILE_KEY ? "key file " : "";
    int found, rc = ibx_path_find(what, path, &found, err);
    if (rc)
        return rc;
    if (found < 0)
        return cannot_open(what, path, -found, err);
    int fd = check(found, kind, path, err);
    if (!fd) {
        fd = ibx_file_reopen(found, O_RDONLY);
        if (fd == -ENOSYS)
            ibx_error_set(err, fd, "cannot open %s%s: mount /proc, which this needs", what, path);
        else if (fd < 0)
            cannot_open(what, path, -fd, err);
    }
    close(found);
    return fd;
}

int ibx_file_check_replace(const char *path, struct ibx_error *err)
{
    struct stat st;
    if (lstat(path, &st) || S_ISREG(st.st_mode))
        return 0;
    return ibx_error_set(
        err, -EINVAL,
        "%s cannot be written, because it is %s and would be replaced: name another file", path,
        S_ISLNK(st.st_mode)   ? "a link"
        : S_ISDIR(st.st_mode) ? "a folder"
                              : "no regular file");
}
