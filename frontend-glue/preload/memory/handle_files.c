/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Where CUDA gives a program a file descriptor for another process, it is here one of a file that
 * contains the handle by which the back end knows what it is (extensions/ipc.c). */
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/session/extensions.h"

#include "common/thread.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define MAGIC 8

struct contents {
    char magic[MAGIC]; /* what its handle is of */
    uint8_t handle[IBX_EXT_HANDLE];
};

static const char magics[][MAGIC + 1] = {
    [FILE_OF_POOL] = "ibxpool1", [FILE_OF_MAPPED] = "ibxmapd1"};

bool ibx_frontend_file_is_in_limit(size_t n)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) || n <= limit.rlim_cur; /* RLIM_INFINITY is most */
}

int ibx_frontend_handle_file(enum handle_file kind, const uint8_t *handle)
{
    struct contents c;
    memcpy(c.magic, magics[kind], MAGIC);
    memcpy(c.handle, handle, sizeof(c.handle));
    if (!ibx_frontend_file_is_in_limit(sizeof(c)))
        return -1;
    const int cancel = ibx_thread_hold_cancel();
    int fd = memfd_create("ibx-handle", MFD_CLOEXEC);
    if (fd >= 0 && pwrite(fd, &c, sizeof(c), 0) != (ssize_t)sizeof(c)) {
        close(fd);
        fd = -1;
    }
    ibx_thread_release_cancel(cancel);
    return fd;
}

bool ibx_frontend_handle_in_file(enum handle_file kind, int fd, uint8_t *handle)
{
    struct contents c;
    const int cancel = ibx_thread_hold_cancel();
    const ssize_t n = pread(fd, &c, sizeof(c), 0);
    ibx_thread_release_cancel(cancel);
    if (n != (ssize_t)sizeof(c) || memcmp(c.magic, magics[kind], MAGIC) != 0)
        return false;
    memcpy(handle, c.handle, sizeof(c.handle));
    return true;
}
