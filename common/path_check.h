/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Who decides where a path leads. Whoever can change a folder on the way can put another file, or
 * another folder, in the place of one that was checked.
 */
#ifndef IBX_COMMON_PATH_CHECK_H
#define IBX_COMMON_PATH_CHECK_H

#include "common/error.h"

/* Whether each folder on the way, and each link, belongs to the user of this process or to root:
 * -EPERM if one does not. What the path leads to itself is for the caller to check, and so is a
 * way that ends early, which is none. Where one of these folders can be written by others, and has
 * no sticky bit, it logs a warning, once in a process: containers get such folders. `what` is for
 * messages: "key file ", "folder ", or "". */
int ibx_path_check(const char *what, const char *path, struct ibx_error *err);

#endif
