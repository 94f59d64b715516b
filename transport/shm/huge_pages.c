/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Memfds, places in arenas, and transparent huge pages, which the kernel gives to allocations of
 * 2 MiB or more if /sys/kernel/mm/transparent_hugepage/shmem_enabled allows it. */
#include "transport/shm/shm.h"

#include "common/descriptor.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <unistd.h>

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif

size_t ibx_shm_page(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

int ibx_shm_memfd(const char *name, uint64_t bytes)
{
    /* Growing a file beyond this limit would kill the process by SIGXFSZ. */
    struct rlimit limit;
    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY &&
        bytes > limit.rlim_cur)
        return -EFBIG;
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) /* before Linux 6.3 */
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -errno;
    fd = ibx_descriptor_apart(fd);
    /* No peer can truncate a sealed file under our mapping, which would be a SIGBUS here. */
    if (ftruncate(fd, (off_t)bytes) || fcntl(fd, F_ADD_SEALS, SEALS | F_SEAL_SEAL)) {
        int rc = -errno;
        close(fd);
        return rc;
    }
    return fd;
}

bool ibx_shm_memfd_safe(int fd)
{
    struct statfs system;
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & SEALS) == SEALS && !fstatfs(fd, &system) &&
           system.f_type == TMPFS_MAGIC;
}

bool ibx_shm_extent_place(struct shm_extent **link, struct shm_extent *extent, uint64_t bytes)
{
    uint64_t unit = extent->length >= IBX_SHM_HUGE ? IBX_SHM_HUGE : ibx_shm_page(), at = 0;
    for (; *link; link = &(*link)->next) {
        if ((*link)->offset >= at && (*link)->offset - at >= extent->length)
            break;
        at = ((*link)->offset + (*link)->length + unit - 1) & ~(unit - 1);
    }
    if (at > bytes || bytes - at < extent->length)
        return false;
    extent->offset = at;
    extent->next = *link;
    *link = extent;
    return true;
}

void ibx_shm_extent_remove(struct shm_extent **link, struct shm_extent *extent)
{
    while (*link != extent)
        link = &(*link)->next;
    *link = extent->next;
}

void ibx_shm_huge_advise(void *address, uint64_t length)
{
    if (length >= IBX_SHM_HUGE)
        madvise(address, length, MADV_HUGEPAGE);
}
