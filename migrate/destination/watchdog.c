/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Where libvirt drives, its libvirtd asks the destination's QEMU before it is told that the
 * migration has failed, and waits without limit. A QEMU whose main thread waits for a page of a
 * tool that was killed would never answer. So a child of the tool is left, which takes guest RAM
 * off the userfaultfd. QEMU continues with zero pages, finds that its state has no end, and fails.
 * After the commit the child does nothing: QEMU may have the end, and only the true pages will do.
 */
#include "migrate/destination/destination.h"

#include "common/descriptor.h"

#include <errno.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* The message from the tool to its child that comes with the userfaultfd. All others are a single
 * letter. */
struct armed {
    unsigned count;
    struct uffdio_range ranges[IBX_GUEST_BLOCKS_MAX];
};
#define COMMITTED 'C' /* the commit has come, or the tool ends */

/* ---------------------------------------------------------------- the child */

static void watch(int tool)
{
    static struct armed armed;
    int uffd = -1;
    for (;;) {
        struct armed now;
        union ibx_descriptor_room room;
        struct iovec part = {.iov_base = &now, .iov_len = sizeof(now)};
        struct msghdr message = {.msg_iov = &part,
                                 .msg_iovlen = 1,
                                 .msg_control = &room,
                                 .msg_controllen = sizeof(room)};
        ssize_t n = recvmsg(tool, &message, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 1)
            return;
        if (n <= 0)
            break;
        armed = now;
        uffd = ibx_descriptor_take(&message);
    }
    for (unsigned i = 0; uffd >= 0 && i < armed.count; i++)
        ioctl(uffd, UFFDIO_UNREGISTER, &armed.ranges[i]);
}

/* ---------------------------------------------------------------- the tool's side */

/* To be called before there are connections: memory that an HCA knows must not be shared with a
 * child. */
int ibx_destination_watchdog_start(struct destination_watchdog *watchdog, struct ibx_error *err)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
        return ibx_error_set(err, -errno, "no pipe to a watchdog: %s", strerror(errno));
    const pid_t pid = fork();
    if (pid == 0) {
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_BLOCK, &all, NULL);
        dup2(pair[0], 0);
        close_range(1, ~0u, 0);
        setsid();
        prctl(PR_SET_NAME, "ibx-watchdog");
        watch(0);
        _exit(0);
    }
    close(pair[0]);
    if (pid < 0) {
        close(pair[1]);
        return ibx_error_set_task(err, -errno, "no process for a watchdog");
    }
    *watchdog = (struct destination_watchdog){.pid = pid, .fd = pair[1]};
    return 0;
}

int ibx_destination_watchdog_arm(struct destination_watchdog *watchdog,
                                 const struct destination_ram *ram, struct ibx_error *err)
{
    struct armed armed = {.count = (unsigned)ram->guest.count};
    union ibx_descriptor_room room;
    struct iovec part = {.iov_base = &armed, .iov_len = sizeof(armed)};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (!watchdog->pid)
        return 0;
    for (unsigned i = 0; i < armed.count; i++)
        armed.ranges[i] = (struct uffdio_range){.start = ram->guest.blocks[i].address,
                                                .len = ram->guest.blocks[i].size};
    ibx_descriptor_add(&message, &room, ram->uffd.fd);
    if (ibx_descriptor_send(watchdog->fd, &message, MSG_NOSIGNAL, false) == (ssize_t)sizeof(armed))
        return 0;
    return errno == ETOOMANYREFS ? ibx_error_set(err, -errno, IBX_DESCRIPTOR_TOO_MANY)
                                 : ibx_error_set(err, -EPIPE, "the watchdog process has died");
}

void ibx_destination_watchdog_commit(struct destination_watchdog *watchdog)
{
    if (watchdog->pid)
        send(watchdog->fd, &(char){COMMITTED}, 1, MSG_NOSIGNAL);
}

void ibx_destination_watchdog_end(struct destination_watchdog *watchdog)
{
    if (!watchdog->pid)
        return;
    ibx_destination_watchdog_commit(watchdog);
    close(watchdog->fd);
    while (waitpid(watchdog->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    watchdog->pid = 0;
}
