/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/unix_connect.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/time.h>

int ibx_unix_connect_in_turn(int fd, const struct sockaddr_un *address, socklen_t length,
                             bool (*ends)(void), uint64_t deadline)
{
    struct timeval limit;
    int rc;
    fcntl(fd, F_SETFL, 0);
    do {
        int ms = ibx_ms_until(deadline);
        rc = ends && ends() ? -EINTR : ms ? 0 : -ETIMEDOUT;
        if (rc)
            break;
        ms = ends && ms > IBX_ASK_MS ? IBX_ASK_MS : ms;
        limit = (struct timeval){.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
        if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) ||
            connect(fd, (const struct sockaddr *)address, length))
            rc = -errno;
    } while (rc == -EINTR || rc == -EAGAIN);
    limit = (struct timeval){0};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return rc;
}
