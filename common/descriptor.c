/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/descriptor.h"

#include <string.h>
#include <unistd.h>

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
