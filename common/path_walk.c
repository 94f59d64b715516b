/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/path_walk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LINKS_MAX 40 /* the kernel's own limit */

static int set_rest(struct ibx_path_walk *walk, const char *first, const char *then)
{
    char rest[sizeof(walk->rest)];
    if ((size_t)snprintf(rest, sizeof(rest), "%s%s%s", first, *then ? "/" : "", then) >=
        sizeof(rest))
        return -ENAMETOOLONG;
    memcpy(walk->rest, rest, sizeof(rest));
    return 0;
}

static int move_to(struct ibx_path_walk *walk, int folder)
{
    if (folder < 0)
        return -errno;
    ibx_path_walk_end(walk);
    walk->folder = folder;
    return 0;
}

static int move_to_root(struct ibx_path_walk *walk)
{
    return move_to(walk, open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
}

int ibx_path_walk_begin(struct ibx_path_walk *walk, const char *path)
{
    char start[PATH_MAX] = "";
    *walk = (struct ibx_path_walk){.folder = -1};
    if (*path != '/' && !getcwd(start, sizeof(start)))
        return -errno;
    const int rc = set_rest(walk, start, path);
    return rc ? rc : move_to_root(walk);
}

void ibx_path_walk_end(struct ibx_path_walk *walk)
{
    if (walk->folder >= 0)
        close(walk->folder);
    walk->folder = -1;
}

int ibx_path_walk_next(struct ibx_path_walk *walk, char name[NAME_MAX + 1])
{
    const char *at = walk->rest + strspn(walk->rest, "/");
    const size_t length = strcspn(at, "/");
    if (length > NAME_MAX)
        return -ENAMETOOLONG;
    memcpy(name, at, length);
    name[length] = '\0';
    at += length;
    at += strspn(at, "/");
    memmove(walk->rest, at, strlen(at) + 1);
    return length > 0;
}

int ibx_path_walk_find(const struct ibx_path_walk *walk, const char *name, struct stat *st)
{
    /* O_DIRECTORY first: without it, what an automounter has there would not be mounted. */
    int found = openat(walk->folder, name, O_PATH | O_NOFOLLOW | O_DIRECTORY | O_CLOEXEC);
    if (found < 0 && errno == ENOTDIR)
        found = openat(walk->folder, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (found < 0 || !fstat(found, st))
        return found < 0 ? -errno : found;
    const int rc = -errno;
    close(found);
    return rc;
}

/* Puts the target of a link before the rest of the path. */
static int follow(struct ibx_path_walk *walk, int link)
{
    char target[PATH_MAX];
    const ssize_t n = readlinkat(link, "", target, sizeof(target) - 1);
    if (n <= 0 || ++walk->links > LINKS_MAX)
        return n < 0 ? -errno : n ? -ELOOP : -ENOENT;
    target[n] = '\0';
    const int rc = set_rest(walk, target, walk->rest);
    return rc || *target != '/' ? rc : move_to_root(walk);
}

int ibx_path_walk_take(struct ibx_path_walk *walk, int found, const struct stat *st)
{
    if (!S_ISLNK(st->st_mode))
        return move_to(walk, found);
    const int rc = follow(walk, found);
    close(found);
    return rc;
}

const char *ibx_path_walk_folder(const struct ibx_path_walk *walk, char name[PATH_MAX])
{
    char link[32];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", walk->folder);
    const ssize_t n = readlink(link, name, PATH_MAX - 1);
    name[n > 0 ? n : 0] = '\0';
    return n > 0 ? name : "a folder";
}
