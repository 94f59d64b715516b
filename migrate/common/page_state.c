/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/common/page_state.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bytes: a page state up to this size is populated when it is mapped, because it may be filled
 * while the VM is stopped. */
#define AT_ONCE (4u << 20)

static int map(struct ibx_page_state *state, size_t bytes, int fd, const char *path,
               struct ibx_error *err)
{
    const int now = bytes <= AT_ONCE ? MAP_POPULATE : 0;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | now, fd, 0);
    if (at == MAP_FAILED)
        return ibx_error_set(
            err, -errno,
            "%s cannot be mapped: %s; raise the limit on address space (ulimit -v), or "
            "free memory of this host or of this ib-migrate's control group",
            path, strerror(errno));
    state->memory = at;
    state->bytes = bytes;
    return 0;
}

/* Others can give further names to any file that they may write to. */
static bool is_file(const struct stat *st)
{
    return S_ISREG(st->st_mode) && st->st_nlink == 1;
}

static const char *remedy(int code)
{
    switch (code) {
    case ENOSPC:
        return "make room in /dev/shm";
    case EDQUOT:
        return "raise this user's quota in /dev/shm";
    case ENOMEM:
        return "free memory of this host or of this ib-migrate's control group";
    case EMFILE:
        return IBX_ERROR_RAISE_FILES;
    case ENFILE:
        return "raise fs.file-max (sysctl), or see which processes have so many files open";
    case EFBIG:
        return IBX_ERROR_RAISE_SIZE;
    case EEXIST:
        return "remove it, which no ib-migrate has made";
    default:
        return "let this ib-migrate write to /dev/shm, which it needs with --no-verify, too";
    }
}

/* Whether no ib-migrate of this user has made what is there. */
static bool is_of_others(const char *path)
{
    struct stat st;
    return !lstat(path, &st) && !(is_file(&st) && st.st_uid == geteuid());
}

/* Takes the place of what another user has made there, if this user may, as root may. Removing that
 * and trying again would not do: the other user could be faster. A folder with files in it stays,
 * by another name. So does an empty file of ours if this tool is killed in here: to look for such
 * files is not worth it, since no other user can have that happen. */
static int take_place(const char *path)
{
    char fresh[PATH_MAX];
    snprintf(fresh, sizeof(fresh), "%s.XXXXXX", path);
    int fd = mkostemp(fresh, O_CLOEXEC); /* 0600 */
    if (fd < 0)
        return -1;
    if (renameat2(AT_FDCWD, fresh, AT_FDCWD, path, RENAME_EXCHANGE)) {
        close(fd);
        fd = -1;
        errno = EEXIST;
    }
    const int code = errno;
    if (unlink(fresh) && errno == EISDIR)
        rmdir(fresh);
    errno = code;
    return fd;
}

static int make_file(const char *path)
{
    const int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    return fd < 0 && errno == EEXIST && is_of_others(path) ? take_place(path) : fd;
}

int ibx_page_state_make(struct ibx_page_state *state, size_t bytes, const char *path,
                        const char *what, const char *without, struct ibx_error *err)
{
    int fd = make_file(path);
    int code = fd < 0 ? errno : posix_fallocate(fd, 0, (off_t)bytes);
    int rc = code ? ibx_error_set(err, -code, "%s, where %s, cannot be made: %s; %s, or %s", path,
                                  what, strerror(code), remedy(code), without)
                  : map(state, bytes, fd, path, err);
    if (fd >= 0)
        close(fd);
    if (rc && fd >= 0)
        unlink(path);
    return rc;
}

/* Whether a page state may be there all the same: it could not be opened for want of something. */
static bool is_lack(int code)
{
    return code == EMFILE || code == ENFILE || code == ENOMEM || code == EINTR || code == EIO;
}

int ibx_page_state_find(struct ibx_page_state *state, size_t bytes, const char *path,
                        struct ibx_error *err)
{
    struct stat st;
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && is_lack(errno))
        return ibx_error_set(err, -errno, "%s cannot be opened: %s; %s, and try again", path,
                             strerror(errno), remedy(errno));
    const bool good = fd >= 0 && !fstat(fd, &st) && is_file(&st) &&
                      (st.st_uid == geteuid() || st.st_uid == 0) && !(st.st_mode & 022) &&
                      st.st_size == (off_t)bytes;
    int rc = good ? map(state, bytes, fd, path, err) : -ESTALE;
    if (fd >= 0)
        close(fd);
    return rc;
}

void ibx_page_state_fini(struct ibx_page_state *state)
{
    if (state->memory)
        munmap(state->memory, state->bytes);
    state->memory = NULL;
}
