/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which users may do to this process whatever they like. */
#ifndef IBX_COMMON_OWN_USER_H
#define IBX_COMMON_OWN_USER_H

#include <stdbool.h>
#include <sys/types.h>

/* Whether the user is this process's, or root, who may end it and read its memory. In a user
 * namespace in which several users of the host have one number (path_check.h), that number is
 * nobody's own. */
bool ibx_is_own_user(uid_t user);
/* The same of the process that has connected, or listens, at the other end of a unix socket. */
bool ibx_is_own_users_socket(int fd);

#endif
