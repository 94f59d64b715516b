/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/path_check.h"

#include "common/log.h"
#include "common/path_walk.h"
#include "common/rights.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define BY_OTHERS    (S_IWGRP | S_IWOTH)
#define OVERFLOW_UID 65534

struct check {
    const char *what, *path; /* for messages */
    struct ibx_path_walk walk;
    int ended;   /* -errno: why the path ends early */
    bool opened; /* the last name is a link of /proc, such as /proc/self/fd/3 */
};

bool ibx_path_is_from_outside(uid_t owner)
{
    return owner == OVERFLOW_UID && !ibx_in_first_user_namespace();
}

/* Checks who owns a folder on the path, or a link in it. */
static int check_owner(const struct check *check, const struct stat *st, struct ibx_error *err)
{
    char name[PATH_MAX];
    if (st->st_uid == geteuid() || st->st_uid == 0 || ibx_path_is_from_outside(st->st_uid))
        return 0;
    return ibx_error_set(err, -EPERM,
                         "%s%.250s: user %u owns %s%.250s on the path to it, and could replace the "
                         "file: use a path that only user %u or root can change",
                         check->what, check->path, (unsigned)st->st_uid,
                         S_ISLNK(st->st_mode) ? "a link in " : "",
                         ibx_path_walk_folder(&check->walk, name), (unsigned)geteuid());
}

static void warn(const struct check *check, const struct stat *st)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    char name[PATH_MAX];
    if (!atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN,
                "%s has mode %04o, so others can replace %s%s: chmod go-w it, or chmod +t it if "
                "others need it",
                ibx_path_walk_folder(&check->walk, name), (unsigned)st->st_mode & 07777,
                check->what, check->path);
}

/* Checks the folder. Others may have names in it: what the next name leads to is checked in its
 * turn. */
static int check_folder(const struct check *check, struct ibx_error *err)
{
    struct stat st;
    if (fstat(check->walk.folder, &st))
        return 0;
    const int rc = check_owner(check, &st, err);
    if (!rc && st.st_mode & BY_OTHERS && !(st.st_mode & S_ISVTX))
        warn(check, &st);
    return rc;
}

static bool is_in_proc(const struct ibx_path_walk *walk)
{
    struct statfs st;
    return !fstatfs(walk->folder, &st) && st.f_type == PROC_SUPER_MAGIC;
}

/* Goes on to what has this name in the folder. That a path ends early is no error. */
static int step(struct check *check, const char *name, struct ibx_error *err)
{
    struct stat st;
    int rc = check_folder(check, err);
    const int next = rc ? rc : ibx_path_walk_find(&check->walk, name, &st);
    if (next >= 0 && S_ISLNK(st.st_mode))
        rc = check_owner(check, &st, err);
    if (next >= 0 && rc)
        close(next);
    if (next >= 0 && S_ISLNK(st.st_mode) && !check->walk.rest[0])
        check->opened = is_in_proc(&check->walk);
    check->ended = rc || next < 0 ? next : ibx_path_walk_take(&check->walk, next, &st);
    if (rc || check->ended)
        ibx_path_walk_end(&check->walk);
    return rc;
}

static int walk(struct check *check, struct ibx_error *err)
{
    char name[NAME_MAX + 1];
    int rc = 0, more = 1;
    check->ended = ibx_path_walk_begin(&check->walk, check->path);
    while (!rc && !check->ended && more > 0) {
        more = ibx_path_walk_next(&check->walk, name);
        if (more > 0)
            rc = step(check, name, err);
        else
            check->ended = more;
    }
    return rc;
}

int ibx_path_check(const char *what, const char *path, struct ibx_error *err)
{
    struct check check = {.what = what, .path = path, .walk = {.folder = -1}};
    const int rc = walk(&check, err);
    ibx_path_walk_end(&check.walk);
    return rc;
}

int ibx_path_find(const char *what, const char *path, int *found, struct ibx_error *err)
{
    struct check check = {.what = what, .path = path, .walk = {.folder = -1}};
    const int rc = walk(&check, err);
    if (!rc && check.ended && check.opened) {
        *found = open(path, O_PATH | O_CLOEXEC);
        *found = *found < 0 ? -errno : *found;
    } else if (!rc) {
        *found = check.ended ? check.ended : check.walk.folder;
        if (!check.ended)
            check.walk.folder = -1;
    }
    ibx_path_walk_end(&check.walk);
    return rc;
}
