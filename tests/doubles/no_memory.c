/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* To be preloaded: a host that has no memory for a child's first pages of zeros (children.c). */
#include <errno.h>
#include <linux/userfaultfd.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TIMES 2

__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...)
{
    static _Atomic int so_far;
    char thread[16] = "";
    va_list arguments;
    va_start(arguments, request);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    prctl(PR_GET_NAME, thread);
    if (request == UFFDIO_ZEROPAGE && !strcmp(thread, "ibx-child") &&
        atomic_fetch_add(&so_far, 1) < TIMES) {
        errno = ENOMEM;
        return -1;
    }
    return (int)syscall(SYS_ioctl, fd, request, argument);
}
