/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tools/owner.h"
#include "common/error.h"
#include "common/path_check.h"
#include "common/path_walk.h"
#include "tools/options.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define NO_GROUP                                                                                   \
    65534 /* of a user whom nobody knows: a number of a folder might be root's group               \
           */

static bool was_root;
static uid_t acting;                /* the user that root has become; 0: still root */
static char because[PATH_MAX] = ""; /* the folder that this user can change */
static char remedy[PATH_MAX + 256];

/* -------------------------------------------------------------------- one step at a time */

struct way {
    const struct ibx_owner_place *place;
    const char *path; /* for messages */
    struct ibx_path_walk walk;
};

static void cannot(const struct way *way, int code) __attribute__((noreturn));
static void cannot(const struct way *way, int code)
{
    ibx_tool_end("cannot open %s %s: %s%s", way->place->what, way->path, strerror(-code),
                 code == -EACCES   ? ": run it as the owner, without sudo"
                 : code == -ENOENT ? "; correct the path"
                                   : "");
}

/* The owner; 0: root, or a user outside of this user namespace, whom nobody here can become. */
static uid_t owner_of(const struct stat *st)
{
    return ibx_path_is_from_outside(st->st_uid) ? 0 : st->st_uid;
}

/* Steps into a folder or follows a symbolic link; returns the owner of the link, 0: it was none. */
static uid_t step(struct way *way, const char *name, bool shared)
{
    struct stat st;
    const int next = ibx_path_walk_find(&way->walk, name, &st);
    if (next == -ENOENT && way->place->may_lack) {
        way->walk.rest[0] = '\0';
        return 0;
    }
    if (next < 0)
        cannot(way, next);
    const bool link = S_ISLNK(st.st_mode);
    if (link && shared) /* a hard link to one of root's links may be anybody's */
        ibx_tool_end("%s leads through the link %s in a folder that others can write: give the "
                     "path without it",
                     way->path, name);
    if (!link && !S_ISDIR(st.st_mode))
        ibx_tool_end("%s %s is not a directory", way->place->what, way->path);
    const int rc = ibx_path_walk_take(&way->walk, next, &st);
    if (rc)
        cannot(way, rc);
    return link ? owner_of(&st) : 0;
}

/* ----------------------------------------------------------------------- whose place it is */

/* The owner of the folder that the walk has reached, and whether others can write to it, too. */
static uid_t look(const struct way *way, bool last, bool *shared, char folder[PATH_MAX])
{
    struct stat st;
    char name[PATH_MAX];
    if (fstat(way->walk.folder, &st))
        cannot(way, -errno);
    snprintf(folder, PATH_MAX, "%s", ibx_path_walk_folder(&way->walk, name));
    *shared = st.st_mode & (S_IWGRP | S_IWOTH);
    /* In a folder like /tmp (sticky) nobody else can replace what belongs to root. */
    const uid_t owner = owner_of(&st);
    if (!owner && *shared && !(st.st_mode & S_ISVTX && (!last || way->place->like_tmp)))
        ibx_tool_end("others than root can write %s: chmod go-w it, or run this as one of them, "
                     "without sudo",
                     folder);
    return owner;
}

/* The first user other than root who can change where the path leads, or has made it lead there; 0:
 * nobody can. `theirs` is the folder or link by which that user can. Ends the process if several
 * can.
 */
static uid_t master_of(const struct ibx_owner_place *place, const char *path, char theirs[PATH_MAX])
{
    struct way way = {.place = place, .path = path};
    char name[NAME_MAX + 1];
    bool shared;
    int more = ibx_path_walk_begin(&way.walk, path);
    if (more < 0)
        cannot(&way, more);
    uid_t uid = 0;
    do {
        more = ibx_path_walk_next(&way.walk, name);
        if (more < 0)
            cannot(&way, more);
        uid = look(&way, !more, &shared, theirs);
        if (more && !uid && (uid = step(&way, name, shared)) != 0)
            snprintf(theirs + strlen(theirs), PATH_MAX - strlen(theirs), "/%s", name);
    } while (more && !uid);
    ibx_path_walk_end(&way.walk);
    return uid;
}

void ibx_owner_become(const struct ibx_owner_place *place, const char *path)
{
    was_root = was_root || !geteuid();
    uid_t uid = geteuid() ? 0 : master_of(place, path, because);
    if (!uid)
        return;
    const struct passwd *user = getpwuid(uid);
    gid_t group = user ? user->pw_gid : NO_GROUP;
    if ((user ? initgroups(user->pw_name, group) : setgroups(0, NULL)) ||
        setresgid(group, group, group) || setresuid(uid, uid, uid))
        ibx_tool_end("cannot act as user %u, who can change %s: %s: run it as that user",
                     (unsigned)uid, because, strerror(errno));
    acting = uid;
    snprintf(remedy, sizeof(remedy), ": done as user %u, who can change %s: %s", (unsigned)uid,
             because, place->remedy);
}

void ibx_owner_check(const struct ibx_owner_place *place, const char *home, const char *folder)
{
    char theirs[PATH_MAX];
    uid_t uid = was_root && !acting ? master_of(place, folder, theirs) : 0;
    if (uid)
        ibx_tool_end("user %u can change %s, and %s %s only root: chown both to one of them",
                     (unsigned)uid, theirs, place->what, home);
}

bool ibx_owner_was_root(void)
{
    return was_root;
}

const char *ibx_owner_remedy(int code)
{
    if (code == ENOSPC || code == EDQUOT)
        return ": free space there";
    if (code == EROFS)
        return ": mount its file system for writing, too (mount -o remount,rw)";
    if (code == EFBIG)
        return ": " IBX_ERROR_RAISE_SIZE;
    return code != EACCES && code != EPERM ? ""
           : acting                        ? remedy
                                           : ": run it as the owner, or with sudo";
}
