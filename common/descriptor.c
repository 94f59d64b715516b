/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/descriptor.h"

#include "common/fork_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
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

/* The upper half of the numbers that there may be, or twice that many from here on. The kernel's
 * table has 8 bytes for each number up to the highest one in use, which a fork copies. */
#define APART_MOST 2048u
static _Atomic unsigned apart; /* the lowest of them; 0: every number will do */
static _Atomic unsigned given; /* how many there were so far */

void ibx_descriptors_of_library(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit))
        return;
    const rlim_t half = limit.rlim_cur / 2;
    const unsigned least = half < APART_MOST ? (unsigned)half : APART_MOST;
    /* To enlarge the kernel's table takes milliseconds in a process with several threads, so it is
     * done now. */
    const int fd = least ? fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, (int)(2 * least - 1)) : -1;
    if (fd >= 0)
        close(fd);
    atomic_store(&apart, least);
}

int ibx_descriptor_apart(int fd)
{
    const unsigned least = atomic_load_explicit(&apart, memory_order_relaxed);
    const int code = errno;
    if (fd < 0 || !least || (unsigned)fd >= least)
        return fd;
    /* Each time another one: what still has the number of a descriptor that the program has closed
     * must not use the next one of ours for it. */
    const unsigned next = least + atomic_fetch_add(&given, 1) % least;
    int high = fcntl(fd, F_DUPFD_CLOEXEC, (int)next);
    if (high < 0)
        high = fcntl(fd, F_DUPFD_CLOEXEC, (int)least);
    if (high >= 0)
        close(fd);
    errno = code;
    return high < 0 ? fd : high;
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
    return ibx_descriptor_apart(kept);
}
