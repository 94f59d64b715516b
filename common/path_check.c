/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/path_check.h"

#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BY_OTHERS    (S_IWGRP | S_IWOTH)
#define LINKS_MAX    40 /* the kernel's own limit */
#define OVERFLOW_UID 65534
#define ALL_USERS    UINT32_MAX

/* A path on its way. */
struct walk {
    const char *what, *path; /* for messages */
    int folder;              /* that it has come to; -1: the way ends early */
    unsigned links;
    char rest[2 * PATH_MAX]; /* the names that are left */
};

static void move_to(struct walk *walk, int folder)
{
    if (walk->folder >= 0)
        close(walk->folder);
    walk->folder = folder;
}

/* Of a user namespace that does not have all users: the owner is none of them, but the root of an
 * outer one, as a rule. */
static bool is_from_outside(uid_t user)
{
    unsigned first, outside, count = ALL_USERS;
    FILE *map = user == OVERFLOW_UID ? fopen("/proc/self/uid_map", "re") : NULL;
    if (!map)
        return false;
    if (fscanf(map, "%u %u %u", &first, &outside, &count) != 3)
        count = ALL_USERS;
    fclose(map);
    return count != ALL_USERS;
}

static const char *name_folder(const struct walk *walk, char name[PATH_MAX])
{
    char link[32];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", walk->folder);
    const ssize_t n = readlink(link, name, PATH_MAX - 1);
    name[n > 0 ? n : 0] = '\0';
    return n > 0 ? name : "a folder";
}

/* Of a folder on the way, or a link in it. */
static int check_owner(const struct walk *walk, const struct stat *st, struct ibx_error *err)
{
    char name[PATH_MAX];
    if (st->st_uid == geteuid() || st->st_uid == 0 || is_from_outside(st->st_uid))
        return 0;
    return ibx_error_set(err, -EPERM,
                         "%s%.250s: user %u owns %s%.250s on the way to it, and can put another "
                         "one in its place: name a place that only user %u or root can change",
                         walk->what, walk->path, (unsigned)st->st_uid,
                         S_ISLNK(st->st_mode) ? "a link in " : "", name_folder(walk, name),
                         (unsigned)geteuid());
}

static void warn(const struct walk *walk, const struct stat *st)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    char name[PATH_MAX];
    if (!atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN,
                "%s has mode %04o, so others can put another one in the place of %s%s: chmod go-w "
                "it, or chmod +t it where others need it",
                name_folder(walk, name), (unsigned)st->st_mode & 07777, walk->what, walk->path);
}

/* The folder that others have names in: what is to come may be theirs, and is looked at then. */
static int check_folder(const struct walk *walk, struct ibx_error *err)
{
    struct stat st;
    if (fstat(walk->folder, &st))
        return 0;
    const int rc = check_owner(walk, &st, err);
    if (!rc && st.st_mode & BY_OTHERS && !(st.st_mode & S_ISVTX))
        warn(walk, &st);
    return rc;
}

/* Puts where a link leads in its place. */
static void follow(struct walk *walk, int link)
{
    char target[PATH_MAX], rest[sizeof(walk->rest)];
    const ssize_t n = readlinkat(link, "", target, sizeof(target) - 1);
    target[n > 0 ? n : 0] = '\0';
    const int length =
        snprintf(rest, sizeof(rest), "%s%s%s", target, *walk->rest ? "/" : "", walk->rest);
    if (n <= 0 || ++walk->links > LINKS_MAX || (size_t)length >= sizeof(rest)) {
        move_to(walk, -1);
        return;
    }
    memcpy(walk->rest, rest, sizeof(rest));
    if (*target == '/')
        move_to(walk, open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
}

/* Takes the next name off the path; false: there is none. */
static bool next_name(struct walk *walk, char name[NAME_MAX + 1])
{
    const char *at = walk->rest + strspn(walk->rest, "/");
    const size_t length = strcspn(at, "/");
    if (!length || length > NAME_MAX)
        return false;
    memcpy(name, at, length);
    name[length] = '\0';
    at += length;
    at += strspn(at, "/");
    memmove(walk->rest, at, strlen(at) + 1);
    return true;
}

/* To what has that name in the folder. */
static int step(struct walk *walk, const char *name, struct ibx_error *err)
{
    struct stat st;
    int rc = check_folder(walk, err);
    const int next = rc ? -1 : openat(walk->folder, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (next < 0 || fstat(next, &st)) {
        move_to(walk, -1);
        return rc;
    }
    if (!S_ISLNK(st.st_mode)) {
        move_to(walk, next);
        return 0;
    }
    rc = check_owner(walk, &st, err);
    if (!rc)
        follow(walk, next);
    close(next);
    return rc;
}

int ibx_path_check(const char *what, const char *path, struct ibx_error *err)
{
    struct walk walk = {.what = what, .path = path, .folder = -1};
    char start[PATH_MAX] = "", name[NAME_MAX + 1];
    int rc = 0;
    if (*path != '/' && !getcwd(start, sizeof(start)))
        return 0;
    if ((size_t)snprintf(walk.rest, sizeof(walk.rest), "%s/%s", start, path) >= sizeof(walk.rest))
        return 0;
    move_to(&walk, open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
    while (!rc && walk.folder >= 0 && next_name(&walk, name))
        rc = step(&walk, name, err);
    move_to(&walk, -1);
    return rc;
}
