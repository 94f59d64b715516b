/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Who decides where a path leads. Whoever can change a folder on the way can put another file, or
 * another folder, in the place of one that was checked.
 */
#ifndef IBX_COMMON_PATH_CHECK_H
#define IBX_COMMON_PATH_CHECK_H

#include "common/error.h"

#include <stdbool.h>
#include <sys/types.h>

/* Whether each folder on the way, and each link, belongs to the user of this process or to root:
 * -EPERM if one does not. What the path leads to itself is for the caller to check, and so is a
 * way that ends early, which is none. Where one of these folders can be written by others, and has
 * no sticky bit, it logs a warning, once in a process: containers get such folders. `what` is for
 * messages: "key file ", "folder ", or "". */
int ibx_path_check(const char *what, const char *path, struct ibx_error *err);
/* The same, and a descriptor by O_PATH of what was found there, whatever somebody puts in the place
 * of a folder or link meanwhile; *found is -errno where the way ends early. */
int ibx_path_find(const char *what, const char *path, int *found, struct ibx_error *err);
/* Whether what has this owner is, as a rule, the root's of an outer user namespace: this process is
 * in one that does not have all users, and the owner is none of them. */
bool ibx_path_is_from_outside(uid_t owner);

#endif
