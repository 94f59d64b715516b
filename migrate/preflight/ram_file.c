/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which users can access the file of guest RAM, which contains everything that the VM knows, or
 * QEMU's monitor, which does everything. */
#include "migrate/preflight/preflight.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool effective_user(pid_t pid, uid_t *user)
{
    char line[256];
    unsigned real, effective;
    bool found = false;
    snprintf(line, sizeof(line), "/proc/%d/status", (int)pid);
    FILE *file = fopen(line, "re");
    while (file && !found && fgets(line, sizeof(line), file))
        found = sscanf(line, "Uid: %u %u", &real, &effective) == 2;
    if (file)
        fclose(file);
    if (found)
        *user = effective;
    return found;
}

/* Whether a folder of the path that belongs to QEMU's user or root lacks the permissions `search`,
 * so that users who depend on these cannot reach the file. False also if they might reach it
 * another way: the file has another name, or the path does not lead to this file (another mount
 * namespace). */
static bool kept_out(const char *path, const struct stat *file, uid_t user, mode_t search)
{
    char at[PATH_MAX];
    struct stat st;
    if (file->st_nlink != 1 || stat(path, &st) || st.st_dev != file->st_dev ||
        st.st_ino != file->st_ino)
        return false;
    snprintf(at, sizeof(at), "%s", path);
    for (char *slash; (slash = strrchr(at, '/')) && slash != at;) {
        *slash = 0;
        if (!stat(at, &st) && !(st.st_mode & search) && (st.st_uid == user || st.st_uid == 0))
            return true;
    }
    return false;
}

/* Whether the mode lets QEMU's group, or others, do one of `how`: 04 read, 02 write. */
static bool others_can(const char *path, const struct stat *file, uid_t user, mode_t how)
{
    const bool group = file->st_mode & (how << 3) && !kept_out(path, file, user, 011);
    return group || (file->st_mode & how && !kept_out(path, file, user, 001));
}

static void check_file(const struct ibx_guest_block *block, uid_t user,
                       struct ibx_blockers *blockers)
{
    char link[64], path[PATH_MAX];
    struct stat st;
    if (block->fd < 0 || fstat(block->fd, &st) || !st.st_nlink) /* without a name */
        return;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", block->fd);
    const ssize_t length = readlink(link, path, sizeof(path) - 1);
    path[length > 0 ? length : 0] = 0;
    if (st.st_uid != user && st.st_uid != 0)
        ibx_blockers_add(blockers,
                         "guest RAM %s is in %s, which belongs to user %u and neither to QEMU's "
                         "(%u) nor to root, so that user can read and change the VM's memory: "
                         "remove the file and start QEMU again, with a mem-path in a folder that "
                         "only its user can enter (mode 0700)",
                         block->id, path, (unsigned)st.st_uid, (unsigned)user);
    if (others_can(path, &st, user, 06))
        ibx_blockers_add(blockers,
                         "guest RAM %s is in %s, whose mode %04o lets other users %s the VM's "
                         "memory: chmod 600 that file now, and start QEMU with a mem-path in a "
                         "folder that only its user can enter (mode 0700), or with umask 077 and "
                         "without -daemonize, which sets another one",
                         block->id, path, (unsigned)st.st_mode & 07777,
                         st.st_mode & 022 ? "change" : "read");
}

void ibx_preflight_ram_files(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers)
{
    uid_t user;
    if (!effective_user(ram->pid, &user))
        return; /* QEMU has ended, which other checks report */
    for (size_t i = 0; i < ram->count; i++)
        if (ram->blocks[i].shared)
            check_file(&ram->blocks[i], user, blockers);
}

void ibx_preflight_users(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers)
{
    struct ibx_guest_user user;
    struct ibx_error why = {0};
    /* Another ib-migrate may wait for a VM for this QEMU, too, and has its file open. */
    if (ibx_guest_ram_find_user(ram, ram->pid, true, &user, &why))
        ibx_blockers_add(blockers, "%s", why.message);
    else if (user.pid)
        ibx_blockers_add(blockers,
                         "process %d (%s) uses %s, the file of guest RAM %s, too, and a VM that "
                         "comes here would overwrite what it has there: end that process, or start "
                         "this QEMU with another mem-path",
                         (int)user.pid, user.name, user.block->path, user.block->id);
}

void ibx_preflight_writers(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers)
{
    struct ibx_guest_user user;
    /* The back ends of vhost-user devices write there, and belong to the VM. */
    if (!blockers->stands_still && !ibx_guest_ram_find_user(ram, ram->pid, true, &user, NULL) &&
        user.pid)
        ibx_blockers_note(blockers,
                          "process %d (%s) can write to %s, the file of guest RAM %s, too: if it "
                          "does so once the VM has stopped, the migration ends as broken: end it "
                          "before, if it is a second QEMU with the same mem-path",
                          (int)user.pid, user.name, user.block->path, user.block->id);
}

void ibx_preflight_monitor_file(const char *path, pid_t pid, struct ibx_blockers *blockers)
{
    struct stat st;
    uid_t user;
    if (stat(path, &st) || !S_ISSOCK(st.st_mode) || !effective_user(pid, &user))
        return;
    if (others_can(path, &st, user, 02))
        ibx_blockers_note(blockers,
                          "QEMU's monitor is at %s, whose mode %04o lets other users control the "
                          "VM and have QEMU open files of this host: chmod 600 that socket now, "
                          "and start QEMU with umask 077, or with its monitor in a folder that "
                          "only its user can enter (mode 0700)",
                          path, (unsigned)st.st_mode & 07777);
}
