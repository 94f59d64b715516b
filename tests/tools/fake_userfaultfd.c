/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Preloaded: a kernel whose userfaultfd has the features IBX_DOUBLE_UFFD_FEATURES (hexadecimal),
 * and who may make one: IBX_DOUBLE_UFFD_MAKERS has the words "call" (userfaultfd(2)), "user" (that
 * with UFFD_USER_MODE_ONLY) and "device" (/dev/userfaultfd). Others get EPERM, or the number in
 * IBX_DOUBLE_UFFD_CODE. With IBX_DOUBLE_UFFD_NO_DEVICE there is no such device, and with
 * IBX_DOUBLE_UFFD_NO_SYSCTL no vm.unprivileged_userfaultfd.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

static int descriptor(const char *maker, int code)
{
    const char *makers = getenv("IBX_DOUBLE_UFFD_MAKERS");
    if (makers && strstr(makers, maker))
        return (int)syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR | O_CLOEXEC);
    errno = code;
    return -1;
}

static int call_code(void)
{
    const char *code = getenv("IBX_DOUBLE_UFFD_CODE");
    return code ? atoi(code) : EPERM;
}

EXPORTED int access(const char *path, int mode)
{
    if (getenv("IBX_DOUBLE_UFFD_NO_SYSCTL") &&
        !strcmp(path, "/proc/sys/vm/unprivileged_userfaultfd")) {
        errno = ENOENT;
        return -1;
    }
    return (int)syscall(SYS_faccessat, AT_FDCWD, path, mode, 0);
}

EXPORTED long syscall(long number, ...)
{
    static long (*next)(long, ...);
    long a[6];
    va_list args;
    va_start(args, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(args, long);
    va_end(args);
    if (number == SYS_userfaultfd)
        return descriptor(a[0] & UFFD_USER_MODE_ONLY ? "user" : "call", call_code());
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "syscall");
    return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* Is open64() here: the project's files are of 64 bits everywhere. */
EXPORTED int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (!strcmp(path, "/dev/userfaultfd"))
        return descriptor("device", getenv("IBX_DOUBLE_UFFD_NO_DEVICE") ? ENOENT : EACCES);
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

EXPORTED int ioctl(int fd, unsigned long request, ...)
{
    va_list args;
    va_start(args, request);
    void *at = va_arg(args, void *);
    va_end(args);
    if (request == UFFDIO_API) {
        const char *features = getenv("IBX_DOUBLE_UFFD_FEATURES");
        ((struct uffdio_api *)at)->features = features ? strtoull(features, NULL, 16) : 0;
        return 0;
    }
    if (request == _IO(0xAA, 0x00)) /* USERFAULTFD_IOC_NEW */
        return descriptor("device", EPERM);
    return (int)syscall(SYS_ioctl, fd, request, at);
}
