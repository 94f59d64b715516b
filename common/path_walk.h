/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Walks along a path, name by name, for code that has to check each folder and each link on the
 * way. The walk goes on from what was checked, whatever somebody puts in its place meanwhile.
 */
#ifndef IBX_COMMON_PATH_WALK_H
#define IBX_COMMON_PATH_WALK_H

#include <limits.h>
#include <sys/stat.h>

struct ibx_path_walk {
    int folder; /* where it is, by O_PATH; -1: it has ended */
    unsigned links;
    char rest[2 * PATH_MAX]; /* the names that are left */
};

/* Begins at "/" with the whole path ahead, which begins with the working directory if `path` is a
 * relative one. -errno: there is no walk to be ended. */
int ibx_path_walk_begin(struct ibx_path_walk *walk, const char *path);
void ibx_path_walk_end(struct ibx_path_walk *walk);
/* Takes the next name off the path: 1. 0: there is none left; -ENAMETOOLONG. */
int ibx_path_walk_next(struct ibx_path_walk *walk, char name[NAME_MAX + 1]);
/* Looks for that name in the folder, and does not follow a link: returns a descriptor by O_PATH,
 * and fills *st; or -errno. */
int ibx_path_walk_find(const struct ibx_path_walk *walk, const char *name, struct stat *st);
/* Goes into what was found, whose descriptor it takes over; of a link, into the target's first
 * folder. -errno: the walk stays where it is. */
int ibx_path_walk_take(struct ibx_path_walk *walk, int found, const struct stat *st);
/* The path of the folder where the walk is, for messages: in `name`, or "a folder" if that is
 * unknown. */
const char *ibx_path_walk_folder(const struct ibx_path_walk *walk, char name[PATH_MAX]);

#endif
