/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Tests of ibx-gvirtus preload this. It counts calls that change the file system, or make a change
 * durable. At the CRASH_AT-th one it makes the file CRASH_MARK, and with CRASH_MODE "kill" ends the
 * process; with "fail" that call returns EIO. With CRASH_MODE "nolink" there are no hard links;
 * with "short" a read returns a part of what it could, as it may on a network file system or FUSE.
 */
#undef _FILE_OFFSET_BITS /* open and open64 shall be two functions here */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))

static bool mode_is(const char *mode)
{
    const char *set = getenv("CRASH_MODE");
    return set && !strcmp(set, mode);
}

/* True when this call has to fail. */
static bool strike(void)
{
    static int calls;
    const char *at = getenv("CRASH_AT");
    if (!at || ++calls != atoi(at))
        return false;
    const char *mark = getenv("CRASH_MARK");
    if (mark)
        close((int)syscall(SYS_openat, AT_FDCWD, mark, O_WRONLY | O_CREAT, 0600));
    if (mode_is("kill"))
        raise(SIGKILL);
    errno = EIO;
    return true;
}

static void *next(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

static int open_next(const char *name, const char *path, int flags, mode_t mode)
{
    if ((flags & O_CREAT) && strike())
        return -1;
    return ((int (*)(const char *, int, ...))next(name))(path, flags, mode);
}

#define OPEN(name)                                                                                 \
    SHOWN int name(const char *path, int flags, ...);                                              \
    int name(const char *path, int flags, ...)                                                     \
    {                                                                                              \
        va_list args;                                                                              \
        va_start(args, flags);                                                                     \
        mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;                                  \
        va_end(args);                                                                              \
        return open_next(#name, path, flags, mode);                                                \
    }
OPEN(open)
OPEN(open64)

#define CHANGE(name, parameters, arguments)                                                        \
    SHOWN int name parameters;                                                                     \
    int name parameters                                                                            \
    {                                                                                              \
        return strike() ? -1 : ((int(*) parameters)next(#name))arguments;                          \
    }
CHANGE(fsync, (int fd), (fd))
CHANGE(fchmod, (int fd, mode_t mode), (fd, mode))
CHANGE(unlink, (const char *path), (path))
CHANGE(rename, (const char *from, const char *to), (from, to))
CHANGE(renameat2, (int a, const char *from, int b, const char *to, unsigned flags),
       (a, from, b, to, flags))

SHOWN ssize_t read(int fd, void *to, size_t n);
ssize_t read(int fd, void *to, size_t n)
{
    if (mode_is("short") && n > 7)
        n = n / 2;
    return ((ssize_t(*)(int, void *, size_t))next("read"))(fd, to, n);
}

SHOWN int link(const char *from, const char *to);
int link(const char *from, const char *to)
{
    if (mode_is("nolink")) {
        errno = EPERM;
        return -1;
    }
    return strike() ? -1 : ((int (*)(const char *, const char *))next("link"))(from, to);
}
