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

/* 0 if each folder on the path, and each link, belongs to the user of this process or to root;
 * otherwise -EPERM. What the path leads to is for the caller to check, and so is a path that ends
 * early, which is no error here. If others can write to one of these folders, and it has no sticky
 * bit, a warning is logged, once in a process, because containers get such folders. `what` is for
 * messages: "key file ", "folder ", or "". */
int ibx_path_check(const char *what, const char *path, struct ibx_error *err);
/* The same. *found: a descriptor by O_PATH of what is there, which the caller closes, whatever
 * somebody puts in the place of a folder or link meanwhile; -errno where the path ends early. */
int ibx_path_find(const char *what, const char *path, int *found, struct ibx_error *err);
/* Whether this owner is, as a rule, root of an outer user namespace: this process is in a namespace
 * that does not have all users, and the owner is none of those that it has. */
bool ibx_path_is_from_outside(uid_t owner);

#endif
