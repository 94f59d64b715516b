/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tools/owner.h"
#include "tools/options.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define NO_GROUP                                                                                   \
    65534 /* of a user whom nobody knows: a number of a folder might be root's group               \
           */
#define LINKS_MAX 40

static bool was_root;
static uid_t acting;                /* 0: root still is */
static char because[PATH_MAX] = ""; /* the folder that this user can change */
static char remedy[PATH_MAX + 256];

/* -------------------------------------------------------------------- one step at a time */

/* A path on its way: the folder that it has come to, and the names that are left. */
struct walk {
    const struct ibx_owner_place *place;
    const char *path; /* for messages */
    int folder;
    unsigned links;
    char rest[2 * PATH_MAX];
};

static void cannot(const struct walk *walk) __attribute__((noreturn));
static void cannot(const struct walk *walk)
{
    ibx_tool_end("cannot open %s %s: %s%s", walk->place->what, walk->path, strerror(errno),
                 errno == EACCES ? ": run it as the owner, without sudo" : "");
}

static void move_to(struct walk *walk, int folder)
{
    if (folder < 0)
        cannot(walk);
    if (walk->folder >= 0)
        close(walk->folder);
    walk->folder = folder;
}

static void set_rest(struct walk *walk, const char *first, const char *then)
{
    char rest[2 * PATH_MAX];
    if ((size_t)snprintf(rest, sizeof(rest), "%s/%s", first, then) >= sizeof(rest)) {
        errno = ENAMETOOLONG;
        cannot(walk);
    }
    memcpy(walk->rest, rest, sizeof(rest));
}

/* Takes the next name off the path. */
static bool next_name(struct walk *walk, char name[NAME_MAX + 1])
{
    const char *at = walk->rest + strspn(walk->rest, "/");
    size_t length = strcspn(at, "/");
    if (length > NAME_MAX) {
        errno = ENAMETOOLONG;
        cannot(walk);
    }
    snprintf(name, NAME_MAX + 1, "%.*s", (int)length, at);
    memmove(walk->rest, at + length, strlen(at + length) + 1);
    return length > 0;
}

static void name_folder(const struct walk *walk, char out[PATH_MAX])
{
    char link[32];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", walk->folder);
    ssize_t n = readlink(link, out, PATH_MAX - 1);
    out[n > 0 ? n : 0] = '\0';
    if (n <= 0)
        snprintf(out, PATH_MAX, "a folder of %s", walk->path);
}

/* Puts where a link leads in its place. */
static void follow(struct walk *walk, int link)
{
    char target[PATH_MAX];
    ssize_t n = readlinkat(link, "", target, sizeof(target) - 1);
    if (n >= 0 && ++walk->links > LINKS_MAX) {
        n = -1;
        errno = ELOOP;
    }
    if (n < 0)
        cannot(walk);
    close(link);
    target[n] = '\0';
    set_rest(walk, target, walk->rest);
    if (*target == '/')
        move_to(walk, open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
}

/* Into a folder, or as far as a link leads, and whose link that was; 0: no link. */
static uid_t step(struct walk *walk, const char *name, bool shared)
{
    struct stat st;
    int next = openat(walk->folder, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (next < 0 && errno == ENOENT && walk->place->may_lack) {
        walk->rest[0] = '\0';
        return 0;
    }
    if (next < 0 || fstat(next, &st))
        cannot(walk);
    if (S_ISLNK(st.st_mode) && shared) /* a hard link to one of root's links may be anybody's */
        ibx_tool_end("%s leads through the link %s in a folder that others can write: give the "
                     "path without it",
                     walk->path, name);
    if (!S_ISDIR(st.st_mode) && !S_ISLNK(st.st_mode))
        ibx_tool_end("%s %s is not a directory", walk->place->what, walk->path);
    if (S_ISLNK(st.st_mode)) {
        follow(walk, next);
        return st.st_uid;
    }
    move_to(walk, next);
    return 0;
}

/* ----------------------------------------------------------------------- whose place it is */

/* Whose folder or link it is that `walk` has come to, and whether others can write it, too. */
static uid_t look(const struct walk *walk, bool last, bool *shared, char folder[PATH_MAX])
{
    struct stat st;
    if (fstat(walk->folder, &st))
        cannot(walk);
    name_folder(walk, folder);
    *shared = st.st_mode & (S_IWGRP | S_IWOTH);
    /* In one like /tmp what is root's stays what it is. */
    if (!st.st_uid && *shared && !(st.st_mode & S_ISVTX && (!last || walk->place->like_tmp)))
        ibx_tool_end("others than root can write %s: chmod go-w it, or run this as one of them, "
                     "without sudo",
                     folder);
    return st.st_uid;
}

/* The first user but root who can change where the path leads, or has made it lead there; 0: nobody
 * can. `theirs`: the folder or link by which they can. Ends the process where several can. */
static uid_t master_of(const struct ibx_owner_place *place, const char *path, char theirs[PATH_MAX])
{
    struct walk walk = {.place = place, .path = path, .folder = -1};
    char start[PATH_MAX] = "", name[NAME_MAX + 1];
    bool shared;
    if (*path != '/' && !getcwd(start, sizeof(start)))
        cannot(&walk);
    set_rest(&walk, start, path);
    move_to(&walk, open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
    uid_t uid = 0;
    bool more = true;
    while (more && !uid) {
        more = next_name(&walk, name);
        uid = look(&walk, !more, &shared, theirs);
        if (more && !uid && (uid = step(&walk, name, shared)) != 0)
            snprintf(theirs + strlen(theirs), PATH_MAX - strlen(theirs), "/%s", name);
    }
    close(walk.folder);
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
    return code != EACCES && code != EPERM ? ""
           : acting                        ? remedy
                                           : ": run it as the owner, or with sudo";
}
