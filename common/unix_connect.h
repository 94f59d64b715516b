/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Connections to unix sockets whose queue is full. */
#ifndef IBX_COMMON_UNIX_CONNECT_H
#define IBX_COMMON_UNIX_CONNECT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#define IBX_ASK_MS 100 /* between two questions whether this process is to end */

/* Waits until the queue of requests has room: connect(2) refuses a nonblocking socket at once then,
 * and a blocking one waits for its turn. `ends` may be NULL. Returns 0, an error of connect(2),
 * -ETIMEDOUT, or -EINTR where this process is to end; `fd` is nonblocking and has no limit. */
int ibx_unix_connect_in_turn(int fd, const struct sockaddr_un *address, socklen_t length,
                             bool (*ends)(void), uint64_t deadline);

#endif
