/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The socket to which Firecracker connects. A process that connects gets nothing, but could make
 * this process fill its memory with pages of the snapshot. So the socket is for one user (0600),
 * in a folder that no other user can change, and the kernel reports who has connected. */
#include "migrate/firecracker/internal.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/own_user.h"
#include "common/path_check.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

#define BY_OTHERS       (S_IWGRP | S_IWOTH)
#define SOCKET_NAME_MAX 64u   /* an address has 108 bytes, with the folder's descriptor */
#define MESSAGE_MS      10000 /* in which Firecracker sends it, after connect(2) */
#define FDS_MAX         8     /* taken from one message, to be closed */
#define LOCK_MS         5000  /* to wait for another process that makes a socket there */
#define LOCK_STEP_MS    2

/* ------------------------------------------------------------ listening */

static bool trusted(const struct ibx_firecracker_config *config, uid_t user)
{
    return ibx_is_own_user(user) || (user == config->peer && user != geteuid());
}

/* Opens the socket's folder. The peer may choose among its own folders. For any other folder, no
 * user but root and this one may own a folder or a link on the path: that user could make it lead
 * to any folder of root's, in which a socket would be made for the peer, or a file be removed. */
static int way_open(const struct ibx_firecracker_config *config, const char *path, struct stat *st,
                    struct ibx_error *err)
{
    int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int rc = fd < 0 || fstat(fd, st) ? -errno : 0;
    const bool peers = !rc && st->st_uid == config->peer && config->peer != geteuid();
    if (!rc && !peers && trusted(config, st->st_uid)) {
        close(fd);
        rc = ibx_path_find("--socket ", path, &fd, err);
        if (rc)
            return rc;
        rc = fd < 0 ? fd : fstat(fd, st) ? -errno : 0;
    }
    if (!rc)
        return fd;
    if (fd >= 0)
        close(fd);
    return ibx_error_set(err, rc, "--socket %s: its folder %s: %s%s", config->socket, path,
                         strerror(-rc), rc == -ENOENT ? "; make it, or name another path" : "");
}

/* Opens the folder of the socket's path, and sets the name in it. */
static int folder_open(const struct ibx_firecracker_config *config, const char **name,
                       struct ibx_error *err)
{
    const char *slash = strrchr(config->socket, '/');
    char path[PATH_MAX];
    struct stat st;
    snprintf(path, sizeof(path), "%.*s", slash ? (int)(slash - config->socket + 1) : 1,
             slash ? config->socket : ".");
    *name = slash ? slash + 1 : config->socket;
    if (!**name || strlen(*name) > SOCKET_NAME_MAX)
        return ibx_error_set(err, -ENAMETOOLONG,
                             "--socket %s: a name of 1 to %u bytes is needed after the last /",
                             config->socket, SOCKET_NAME_MAX);
    int rc = 0, fd = way_open(config, path, &st, err);
    if (fd < 0)
        return fd;
    if (!trusted(config, st.st_uid))
        rc = ibx_error_set(err, -EPERM,
                           "--socket %s: its folder belongs to user %u, who could put another "
                           "socket there: name a folder of root, of user %u, or --peer-uid %u",
                           config->socket, (unsigned)st.st_uid, (unsigned)geteuid(),
                           (unsigned)st.st_uid);
    else if (st.st_mode & BY_OTHERS && !(st.st_mode & S_ISVTX))
        rc = ibx_error_set(err, -EPERM,
                           "--socket %s: its folder has mode %04o, so that others could put "
                           "another socket there: chmod go-w, or name another folder",
                           config->socket, (unsigned)st.st_mode & 07777);
    if (rc)
        close(fd);
    return rc ? rc : fd;
}

static struct sockaddr_un address_of(int folder, const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/%s", folder, name);
    return address;
}

/* Removes what a dead process left. */
static int stale_remove(const struct ibx_firecracker_config *config, int folder, const char *name,
                        struct ibx_error *err)
{
    struct stat st;
    if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW))
        return errno == ENOENT
                   ? 0
                   : ibx_error_set(err, -errno, "--socket %s: %s", config->socket, strerror(errno));
    if (!S_ISSOCK(st.st_mode))
        return ibx_error_set(err, -EEXIST, "--socket %s exists and is no socket: name another path",
                             config->socket);
    const struct sockaddr_un address = address_of(folder, name);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int rc = fd < 0                                                            ? -errno
             : connect(fd, (const struct sockaddr *)&address, sizeof(address)) ? -errno
                                                                               : 0;
    if (fd >= 0)
        close(fd);
    if (rc == -ENOENT) /* gone meanwhile */
        return 0;
    if (rc == -ECONNREFUSED)
        return unlinkat(folder, name, 0)
                   ? ibx_error_set(err, -errno, "--socket %s: %s", config->socket, strerror(errno))
                   : 0;
    return ibx_error_set(err, -EADDRINUSE,
                         "--socket %s: another process listens there: name another path, or end "
                         "that process",
                         config->socket);
}

/* Gives the socket's file to the peer, after checking that it is still the one that bind(2) has
 * made: the owner of the folder could have replaced it. */
static int give_to_peer(const struct ibx_firecracker_config *config, int folder, const char *name,
                        struct ibx_error *err)
{
    struct stat st;
    if (config->peer == geteuid())
        return 0;
    int rc = 0, fd = openat(folder, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st))
        rc = -errno;
    else if (!S_ISSOCK(st.st_mode) || st.st_uid != geteuid() || st.st_nlink != 1)
        rc = -EPERM;
    else if (fchownat(fd, "", config->peer, (gid_t)-1, AT_EMPTY_PATH))
        rc = -errno;
    if (fd >= 0)
        close(fd);
    return rc ? ibx_error_set(err, rc,
                              "--socket %s cannot be given to user %u: %s; start this as "
                              "root, or as that user",
                              config->socket, (unsigned)config->peer, strerror(-rc))
              : 0;
}

/* Locks the folder until the descriptor is closed, so that of two processes that start at once none
 * removes the socket of the other. -1: another process keeps the lock, or the folder cannot be
 * locked. */
static int lock_folder(int folder)
{
    const uint64_t deadline = ibx_deadline_in_ms(LOCK_MS);
    const int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB)) {
        if (errno != EWOULDBLOCK || ibx_now_ns() >= deadline) {
            close(fd);
            return -1;
        }
        poll(NULL, 0, LOCK_STEP_MS);
    }
    return fd;
}

/* Makes a listening socket under `name`; returns its descriptor or an error. */
static int listen_at(const struct ibx_firecracker_config *config, int folder, const char *name,
                     struct ibx_error *err)
{
    int rc = stale_remove(config, folder, name, err);
    int fd = rc ? -1 : socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    /* A random name: in a folder like /tmp others could occupy one that they can guess. */
    uint64_t random = 0;
    if (!rc && getrandom(&random, sizeof(random), GRND_NONBLOCK) != sizeof(random))
        random = ibx_now_ns();
    char fresh[NAME_MAX + 1];
    snprintf(fresh, sizeof(fresh), ".ibx-%016llx", (unsigned long long)random);
    const struct sockaddr_un address = address_of(folder, fresh);
    /* The file gets the mode that the socket has when it is bound: never open to others. It gets
     * its name last: whoever finds it can connect. */
    if (!rc && (fd < 0 || fchmod(fd, 0600) ||
                bind(fd, (const struct sockaddr *)&address, sizeof(address))))
        rc = ibx_error_set(err, -errno, "--socket %s: %s", config->socket, strerror(errno));
    if (!rc) {
        rc = give_to_peer(config, folder, fresh, err);
        if (!rc && (listen(fd, 4) || renameat(folder, fresh, folder, name)))
            rc = ibx_error_set(err, -errno, "--socket %s: %s", config->socket, strerror(errno));
        if (rc)
            unlinkat(folder, fresh, 0);
    }
    if (rc && fd >= 0)
        close(fd);
    return rc ? rc : fd;
}

int ibx_firecracker_listen(const struct ibx_firecracker_config *config, int *listener,
                           struct ibx_error *err)
{
    const char *name;
    int folder = folder_open(config, &name, err);
    if (folder < 0)
        return folder;
    const int lock = lock_folder(folder);
    int fd = listen_at(config, folder, name, err);
    if (lock >= 0) {
        flock(lock,
              LOCK_UN); /* closing does not unlock if a forked child has the descriptor, too */
        close(lock);
    }
    close(folder);
    if (fd < 0)
        return fd;
    *listener = fd;
    return 0;
}

void ibx_firecracker_unlisten(const struct ibx_firecracker_config *config, int listener)
{
    const char *name;
    struct ibx_error ignored;
    int folder = folder_open(config, &name, &ignored);
    if (folder >= 0) {
        unlinkat(folder, name, 0); /* while it listens, the name can only be this socket's */
        close(folder);
    }
    close(listener);
}

/* ------------------------------------------------------------ the message */

/* Takes all descriptors of a message; keeps the first one if it is the only one. */
static int fds_take(struct msghdr *message, int *uffd)
{
    int count = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
            count++;
            if (*uffd < 0)
                *uffd = fd;
            else
                close(fd);
        }
    }
    return count;
}

static bool is_userfaultfd(int fd)
{
    char path[64], target[64] = "";
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return readlink(path, target, sizeof(target) - 1) > 0 &&
           !strcmp(target, "anon_inode:[userfaultfd]");
}

/* Receives a part of the message; returns its length, 0 at the end, or an error. */
static ssize_t part_take(int fd, char *at, size_t room, int *uffd, unsigned *fds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
    } control;
    struct iovec part = {at, room};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    const ssize_t n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0)
        return -errno;
    *fds += (unsigned)fds_take(&message, uffd);
    if (message.msg_flags & MSG_CTRUNC)
        *fds = FDS_MAX + 1;
    return n;
}

/* Receives the whole message, which a stream socket may deliver in parts. */
static int message_take(int fd, struct hello *hello, int *uffd, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(MESSAGE_MS);
    struct ibx_firecracker_layout layout;
    unsigned fds = 0;
    while (true) {
        struct pollfd look = {.fd = fd, .events = POLLIN};
        if (poll(&look, 1, ibx_ms_until(deadline)) == 0)
            return ibx_error_set(err, -ETIMEDOUT,
                                 "Firecracker has sent no whole message in %d s (%zu bytes)",
                                 MESSAGE_MS / 1000, hello->length);
        const ssize_t n = part_take(fd, hello->message + hello->length,
                                    sizeof(hello->message) - hello->length, uffd, &fds);
        if (n == -EAGAIN || n == -EINTR)
            continue;
        if (n < 0)
            return ibx_error_set(err, (int)n, "Firecracker's message: %s", strerror((int)-n));
        hello->length += (size_t)n;
        int rc =
            n ? ibx_firecracker_layout_parse(hello->message, hello->length, &layout, err) : -EPROTO;
        if (!n)
            ibx_error_set(err, rc, "Firecracker has closed the socket after %zu bytes",
                          hello->length);
        if (rc == -EAGAIN && hello->length == sizeof(hello->message))
            return ibx_error_set(err, -E2BIG, "Firecracker's message has more than %u bytes",
                                 IBX_FIRECRACKER_MESSAGE_MAX);
        if (rc && rc != -EAGAIN)
            return rc;
        if (rc)
            continue;
        if (fds == 1 && is_userfaultfd(*uffd))
            return 0;
        return ibx_error_set(err, -EPROTO,
                             "Firecracker's message came with %u descriptors%s: one userfaultfd is "
                             "expected",
                             fds > FDS_MAX ? FDS_MAX : fds,
                             fds == 1 ? ", which is no userfaultfd" : "");
    }
}

/* A pidfd of the process, so that its end is noticed, even if its pid is used again; -1: none. */
static int pidfd_of(int connection, pid_t pid)
{
    int fd = -1;
    socklen_t size = sizeof(fd);
    if (!getsockopt(connection, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) && fd >= 0) {
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        return fd;
    }
    return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

int ibx_firecracker_accept(const struct ibx_firecracker_config *config, int listener,
                           struct kept *kept, struct hello *hello, struct ibx_error *err)
{
    struct ucred peer = {0};
    socklen_t size = sizeof(peer);
    int uffd = -1, fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED
                   ? -EAGAIN
                   : ibx_error_set(err, -errno, "--socket %s: %s", config->socket, strerror(errno));
    int rc = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) ? -errno : 0;
    if (!rc && !trusted(config, peer.uid))
        rc = ibx_error_set(err, -EACCES,
                           "user %u (process %d) has connected to %s and is refused: for a "
                           "Firecracker of that user give --peer-uid %u",
                           (unsigned)peer.uid, (int)peer.pid, config->socket, (unsigned)peer.uid);
    const bool stranger = rc != 0;
    hello->pid = peer.pid;
    hello->length = 0;
    rc = rc ? rc : message_take(fd, hello, &uffd, err);
    if (rc) {
        if (uffd >= 0)
            close(uffd);
        close(fd);
        if (!stranger && hello->length)
            return rc;
        ibx_log(IBX_LOG_WARN, "%s", err->message);
        return -EAGAIN;
    }
    kept->fds[KEPT_UFFD] = uffd;
    kept->fds[KEPT_SOCKET] = fd;
    kept->fds[KEPT_PEER] = pidfd_of(fd, peer.pid);
    return 0;
}
