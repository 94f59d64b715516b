/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "userfaultfd/protect.h"
#include "userfaultfd/fault.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/userfaultfd.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#ifndef UFFD_FEATURE_WP_HUGETLBFS_SHMEM
#define UFFD_FEATURE_WP_HUGETLBFS_SHMEM (1 << 12) /* Linux 5.19 */
#endif

int ibx_protect_enable(int uffd, struct ibx_error *err)
{
    return ibx_fault_uffd_enable(
        uffd, UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM, err);
}

int ibx_protect_register(int uffd, uint64_t start, uint64_t length, struct ibx_error *err)
{
    struct uffdio_register wish = {.range = {start, length}, .mode = UFFDIO_REGISTER_MODE_WP};
    int code = ioctl(uffd, UFFDIO_REGISTER, &wish) ? errno : 0;
    if (!code && !(wish.ioctls >> _UFFDIO_WRITEPROTECT & 1))
        code = EOPNOTSUPP;
    return code ? ibx_error_set(err, -code, "registering 0x%" PRIx64 " bytes at 0x%" PRIx64 ": %s",
                                length, start, strerror(code))
                : 0;
}

int ibx_protect_forbid(int uffd, uint64_t start, uint64_t length, struct ibx_error *err)
{
    struct uffdio_writeprotect wish = {.range = {start, length},
                                       .mode = UFFDIO_WRITEPROTECT_MODE_WP};
    while (ioctl(uffd, UFFDIO_WRITEPROTECT, &wish))
        if (errno != EAGAIN) /* the process changes its mappings at the moment */
            return ibx_error_set(err, -errno, "protecting 0x%" PRIx64 " bytes at 0x%" PRIx64 ": %s",
                                 length, start, strerror(errno));
    return 0;
}

int ibx_protect_retry(int uffd, uint64_t start, uint64_t length)
{
    struct uffdio_range range = {start, length};
    return ioctl(uffd, UFFDIO_WAKE, &range) ? -errno : 0;
}

int ibx_protect_next(int uffd, uint64_t *address)
{
    struct uffd_msg message;
    for (;;) {
        ssize_t n = read(uffd, &message, sizeof(message));
        if (n < 0 && errno == EINTR)
            continue;
        if (n != (ssize_t)sizeof(message))
            return n < 0 ? -errno : -EIO;
        if (message.event != UFFD_EVENT_PAGEFAULT)
            continue;
        *address = message.arg.pagefault.address;
        return 0;
    }
}
