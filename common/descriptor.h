/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A file descriptor that goes with a message over a unix socket (SCM_RIGHTS). */
#ifndef IBX_COMMON_DESCRIPTOR_H
#define IBX_COMMON_DESCRIPTOR_H

#include <stdbool.h>
#include <sys/socket.h>

/* For sendmsg() of one. For recvmsg(), as msg_control: the kernel may put a second one there. */
union ibx_descriptor_room {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
};

/* `fd` goes with the message, of which `room` is a part from then on; negative: none does. */
void ibx_descriptor_add(struct msghdr *message, union ibx_descriptor_room *room, int fd);
/* As sendmsg(2). Linux lets a user who is not root have no more descriptors on their way, in all of
 * his processes' sockets, than the sender may open files. Whoever does not read what is sent keeps
 * them there, also when the sender has closed its end. So the sender's soft limit is raised to its
 * hard one for as long as it needs more; `to_stranger`, to a program that may not read it, half way
 * only: strangers do not use up what is left to others. ETOOMANYREFS: that is not enough, either.
 */
ssize_t ibx_descriptor_send(int socket, const struct msghdr *message, int flags, bool to_stranger);
#define IBX_DESCRIPTOR_TOO_MANY                                                                    \
    "too many descriptors are on their way in sockets of this user: raise the hard limit on open " \
    "files (ulimit -Hn)"
/* Of a message that was received: what came with it, the caller's from now on; others than the
 * first are closed. -1: none came, or this process may not have another one. */
int ibx_descriptor_take(struct msghdr *message);

#endif
