/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/descriptor.h"

#include "common/fork_lock.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static struct ibx_fork_lock raising = IBX_FORK_LOCK;

void ibx_descriptor_add(struct msghdr *message, union ibx_descriptor_room *room, int fd)
{
    if (fd < 0)
        return;
    memset(room, 0, sizeof(*room));
    room->header = (struct cmsghdr){
        .cmsg_len = CMSG_LEN(sizeof(fd)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(&room->header), &fd, sizeof(fd));
    message->msg_control = room;
    message->msg_controllen = sizeof(*room);
}

/* The caller has the lock: another thread would take the raised limit for the original one, and
 * leave it so. */
static ssize_t send_raised(int socket, const struct msghdr *message, int flags, bool half)
{
    struct rlimit before;
    if (getrlimit(RLIMIT_NOFILE, &before) || before.rlim_cur >= before.rlim_max) {
        errno = ETOOMANYREFS;
        return -1;
    }
    const rlim_t more = before.rlim_max - before.rlim_cur;
    const struct rlimit most = {before.rlim_cur + (half ? more / 2 : more), before.rlim_max};
    setrlimit(RLIMIT_NOFILE, &most);
    const ssize_t n = sendmsg(socket, message, flags);
    const int code = errno;
    setrlimit(RLIMIT_NOFILE, &before);
    errno = code;
    return n;
}

ssize_t ibx_descriptor_send(int socket, const struct msghdr *message, int flags, bool to_stranger)
{
    ssize_t n = sendmsg(socket, message, flags);
    if (n >= 0 || errno != ETOOMANYREFS)
        return n;
    ibx_fork_lock_take(&raising);
    n = send_raised(socket, message, flags, to_stranger);
    const int code = errno;
    ibx_fork_lock_release(&raising);
    errno = code;
    return n;
}

int ibx_descriptor_take(struct msghdr *message)
{
    int kept = -1;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
            if (kept < 0)
                kept = fd;
            else
                close(fd);
        }
    }
    return kept;
}
