/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/own_user.h"

#include "common/path_check.h"

#include <sys/socket.h>
#include <unistd.h>

bool ibx_is_own_user(uid_t user)
{
    return (user == geteuid() || user == 0) && !ibx_path_is_from_outside(user);
}

bool ibx_is_own_users_socket(int fd)
{
    struct ucred other;
    socklen_t size = sizeof(other);
    return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &size) && ibx_is_own_user(other.uid);
}
