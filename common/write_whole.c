/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/write_whole.h"

#include "common/error.h"

#include <errno.h>
#include <stdbool.h>
#include <unistd.h>

static int write_all(int fd, const uint8_t *bytes, size_t length, bool placed, uint64_t at)
{
    for (size_t done = 0; done < length;) {
        const ssize_t n = placed ? pwrite(fd, bytes + done, length - done, (off_t)(at + done))
                                 : write(fd, bytes + done, length - done);
        if (n > 0)
            done += (size_t)n;
        else if (n == 0 || errno != EINTR)
            return n ? -errno : -ENOSPC;
    }
    return 0;
}

int ibx_write_whole(int fd, const void *bytes, size_t length)
{
    return write_all(fd, bytes, length, false, 0);
}

int ibx_write_whole_at(int fd, const void *bytes, size_t length, uint64_t at)
{
    return write_all(fd, bytes, length, true, at);
}

const char *ibx_write_remedy(int code, const char *room)
{
    return code == -EFBIG ? IBX_ERROR_RAISE_SIZE : room;
}
