/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Whether a file may decide what a process does. Whoever can change a configuration file names back
 * ends, key files and folders for the process that reads it; whoever can read a key file has the
 * key.
 */
#ifndef IBX_COMMON_FILE_CHECK_H
#define IBX_COMMON_FILE_CHECK_H

#include "common/error.h"

enum ibx_file_kind {
    IBX_FILE_CONFIGURATION, /* others may read it */
    IBX_FILE_KEY,           /* only its owner may */
};

/* What a user does who may not use a key file: its owner must not change, since others use it. */
#define IBX_FILE_KEY_COPY                                                                          \
    "give this user a copy (mode 0600), named by rdma.key_file in a gvirtus.properties of its "    \
    "own (GVIRTUS_RDMA_PROPERTIES), or by --key-file of ib-bw or ib-migrate"

/* Opens a file for reading if it is a regular one that belongs to the user of this process or to
 * root, and in which nobody else has more rights than its kind allows: returns the descriptor.
 * -EINVAL: of another type; -EPERM: of another user, or open to others; or an error of
 * ibx_path_check() or open(2). The path is checked, too: whoever can put another file in its place
 * could choose one of root's that has words of his own in it, such as /proc/PID/environ. A file
 * that is not a regular one is not opened at all, since that alone may do something: rewind a tape,
 * arm a watchdog. -ENOSYS: /proc is not mounted. */
int ibx_file_open(const char *path, enum ibx_file_kind kind, struct ibx_error *err);
/* Opens, with `flags` (O_RDONLY, O_RDWR), what ibx_path_find() or open(2) with O_PATH has found and
 * the caller has checked, wherever its path leads by now. Returns the descriptor, or an error of
 * open(2); -ENOSYS: /proc is not mounted. `found` stays the caller's. */
int ibx_file_reopen(int found, int flags);
/* For a result that rename(2) is to put at `path`: 0 when nothing is there, or a regular file.
 * -EINVAL for anything else: root would replace /dev/null, or the link /dev/stdout. */
int ibx_file_check_replace(const char *path, struct ibx_error *err);

#endif
