/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A path, one name after the other, for who has to look at each folder and each link on the way:
 * what was looked at is where the walk goes on, whatever somebody puts in its place meanwhile.
 */
#ifndef IBX_COMMON_PATH_WALK_H
#define IBX_COMMON_PATH_WALK_H

#include <limits.h>
#include <sys/stat.h>

struct ibx_path_walk {
    int folder; /* that it has come to, by O_PATH; -1: it has ended */
    unsigned links;
    char rest[2 * PATH_MAX]; /* the names that are left */
};

/* At "/", with all of the path ahead, and the working directory where it is a relative one.
 * -errno: there is nothing to be ended. */
int ibx_path_walk_begin(struct ibx_path_walk *walk, const char *path);
void ibx_path_walk_end(struct ibx_path_walk *walk);
/* Takes the next name off the path. 0: there is none; -ENAMETOOLONG. */
int ibx_path_walk_next(struct ibx_path_walk *walk, char name[NAME_MAX + 1]);
/* What has that name in the folder, a link itself too: a descriptor, or -errno. */
int ibx_path_walk_find(const struct ibx_path_walk *walk, const char *name, struct stat *st);
/* Takes what was found, and goes into it, or to where a link begins to lead. -errno: it stays. */
int ibx_path_walk_take(struct ibx_path_walk *walk, int found, const struct stat *st);
/* The folder that it has come to, for messages. */
const char *ibx_path_walk_folder(const struct ibx_path_walk *walk, char name[PATH_MAX]);

#endif
