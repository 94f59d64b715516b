/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * systemd's store of file descriptors (sd_notify(3), FileDescriptorStoreMax=): a supervisor that is
 * killed gets them back when its unit is started again. Its messages are plain text on a datagram
 * socket, so its library is not needed.
 */
#include "migrate/firecracker/internal.h"

#include "common/descriptor.h"
#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define FIRST_FD 3 /* SD_LISTEN_FDS_START */

static const char *const names[KEPT_COUNT] = {"ibx-uffd", "ibx-socket", "ibx-session", "ibx-peer"};

void ibx_firecracker_kept_close(struct kept *kept)
{
    for (unsigned i = 0; i < KEPT_COUNT; i++) {
        if (kept->fds[i] >= 0)
            close(kept->fds[i]);
        kept->fds[i] = -1;
    }
}

static void notify(const char *text, int fd)
{
    const char *path = secure_getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    union ibx_descriptor_room room;
    struct iovec part = {(char *)(uintptr_t)text, strlen(text)};
    if (!path || (*path != '/' && *path != '@') || strlen(path) >= sizeof(address.sun_path))
        return;
    memcpy(address.sun_path, path, strlen(path));
    struct msghdr message = {.msg_name = &address,
                             .msg_namelen =
                                 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path)),
                             .msg_iov = &part,
                             .msg_iovlen = 1};
    if (*path == '@')
        address.sun_path[0] = '\0';
    ibx_descriptor_add(&message, &room, fd);
    int s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (s < 0 || ibx_descriptor_send(s, &message, MSG_NOSIGNAL, false) < 0)
        ibx_log(IBX_LOG_WARN, "systemd (NOTIFY_SOCKET %s) was not told \"%.*s\": %s", path,
                (int)strcspn(text, "\n"), text, strerror(errno));
    if (s >= 0)
        close(s);
}

void ibx_firecracker_ready(void)
{
    notify("READY=1", -1);
}

void ibx_firecracker_store(const struct kept *kept)
{
    char text[96];
    for (unsigned i = 0; i < KEPT_COUNT; i++) {
        /* FDPOLL=0: otherwise systemd removes a descriptor at its end of file. */
        snprintf(text, sizeof(text), "FDSTORE=1\nFDPOLL=0\nFDNAME=%s", names[i]);
        if (kept->fds[i] >= 0)
            notify(text, kept->fds[i]);
    }
}

void ibx_firecracker_forget(void)
{
    char text[96];
    for (unsigned i = 0; i < KEPT_COUNT; i++) {
        snprintf(text, sizeof(text), "FDSTOREREMOVE=1\nFDNAME=%s", names[i]);
        notify(text, -1);
    }
}

/* Takes the next name of a list separated by colons; "" at the end. */
static void name_next(const char **list, char *name, size_t size)
{
    const size_t length = strcspn(*list, ":");
    snprintf(name, size, "%.*s", (int)length, *list);
    *list += length + ((*list)[length] == ':');
}

void ibx_firecracker_stored(struct kept *kept)
{
    const char *pid = secure_getenv("LISTEN_PID"), *count = secure_getenv("LISTEN_FDS");
    const char *list = secure_getenv("LISTEN_FDNAMES");
    for (unsigned i = 0; i < KEPT_COUNT; i++)
        kept->fds[i] = -1;
    if (!pid || !count || !list || strtol(pid, NULL, 10) != getpid())
        return;
    const long n = strtol(count, NULL, 10);
    for (int fd = FIRST_FD; fd < FIRST_FD + n && n <= 64; fd++) {
        char name[64];
        name_next(&list, name, sizeof(name));
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        for (unsigned i = 0; i < KEPT_COUNT; i++)
            if (!strcmp(name, names[i]) && kept->fds[i] < 0)
                kept->fds[i] = fd;
    }
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    if (kept->fds[KEPT_UFFD] < 0 || kept->fds[KEPT_SOCKET] < 0 || kept->fds[KEPT_SESSION] < 0)
        ibx_firecracker_kept_close(kept);
}
