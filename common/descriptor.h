/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* File descriptors that go with a message over a unix socket (SCM_RIGHTS), and those of a library
 * in a program that is not ours. */
#ifndef IBX_COMMON_DESCRIPTOR_H
#define IBX_COMMON_DESCRIPTOR_H

#include <stdbool.h>
#include <sys/socket.h>

/* Room for one descriptor, for sendmsg(2). As msg_control of recvmsg(2) it may receive a second
 * one, because of its alignment. */
union ibx_descriptor_room {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
};

/* Attaches `fd` to the message, of which `room` is a part from then on; does nothing if `fd` is
 * negative. */
void ibx_descriptor_add(struct msghdr *message, union ibx_descriptor_room *room, int fd);
/* sendmsg(2): -1 with errno if it fails. A user who is not root can have at most as many
 * descriptors in flight, in the unix sockets of all of his processes, as the sender may open files.
 * A receiver that does not read keeps them in flight, even if the sender has closed its end. So
 * when the sender's soft limit is reached, it is raised to the hard one for this call. With
 * `to_stranger`, for a program that may not read, it is raised only half way, so that strangers
 * cannot use up what others need. ETOOMANYREFS: even that is not enough. */
ssize_t ibx_descriptor_send(int socket, const struct msghdr *message, int flags, bool to_stranger);
#define IBX_DESCRIPTOR_TOO_MANY                                                                    \
    "too many descriptors are on their way in sockets of this user: raise the hard limit on open " \
    "files (ulimit -Hn)"
/* The descriptor that came with a received message, which is now the caller's; further ones are
 * closed. -1: none came, or this process cannot have another one. */
int ibx_descriptor_take(struct msghdr *message);

/* Call it once, as a library is loaded into such a program. The program may close all descriptors,
 * as closefrom(3) does, and open its own, which get the lowest numbers. If ours had those, we would
 * read, write and close the program's files. So from then on ours get high numbers. */
void ibx_descriptors_of_library(void);
/* The same file under a high number, if this is such a library; `fd` is closed then. Otherwise, or
 * if there is no such number, `fd` itself. For a new descriptor that outlives the call in which it
 * is made, before anything knows its number. A negative `fd` is returned as it is, and errno
 * stays. */
int ibx_descriptor_apart(int fd);

#endif
