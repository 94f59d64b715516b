/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Removes the files of guest RAM, which are not needed once the migration is complete: all of
 * them with --remove, and always those that were renamed, whose names nobody else knows. */
#include "migrate/source/source.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The path of the file as QEMU sees it, while QEMU lives. */
static void path_of(const struct source *s, const struct ibx_guest_block *block, char *path,
                    size_t size)
{
    char root[64];
    snprintf(root, sizeof(root), "/proc/%d/%s", (int)s->vm.ram.pid,
             block->path[0] == '/' ? "root" : "cwd");
    const bool lives = !ibx_journal_process_ended(&s->status.record);
    snprintf(path, size, "%s/%s", lives && !access(root, X_OK) ? root : "", block->path);
}

/* Removes only the very file that QEMU has mapped, and only if it has no other name. */
static int remove_file(const struct source *s, const struct ibx_guest_block *block,
                       struct ibx_error *err)
{
    char folder[PATH_MAX + 128], name[PATH_MAX + 128];
    struct stat mapped, named;
    path_of(s, block, folder, sizeof(folder));
    memcpy(name, folder, sizeof(name));
    const char *base = basename(name);
    int at = open(dirname(folder), O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (at < 0 || fstat(block->fd, &mapped) || fstatat(at, base, &named, AT_SYMLINK_NOFOLLOW)) {
        ibx_error_set(err, -errno, "%s: %s", block->path, strerror(errno));
    } else if (!S_ISREG(named.st_mode) || named.st_dev != mapped.st_dev ||
               named.st_ino != mapped.st_ino) {
        ibx_error_set(err, -ESTALE, "%s is a link, or not the file that QEMU has mapped",
                      block->path);
    } else if (named.st_nlink != 1) {
        ibx_error_set(err, -EMLINK, "%s has other names, too", block->path);
    } else if (unlinkat(at, base, 0)) {
        ibx_error_set(err, -errno, "%s: %s", block->path, strerror(errno));
    } else if (ibx_journal_run_made(folder)) {
        rmdir(folder); /* made by ib-migrate run, if this was its last file */
    }
    if (at >= 0)
        close(at);
    return err->code;
}

void ibx_source_remove_files(struct source *s)
{
    for (size_t i = 0; i < s->vm.ram.count; i++) {
        const struct ibx_guest_block *block = &s->vm.ram.blocks[i];
        struct stat st;
        struct ibx_error why = {0};
        if (block->fd < 0 || !block->path[0] || fstat(block->fd, &st) || !st.st_nlink)
            continue;
        if (!s->options->remove && !ibx_journal_is_aside(&s->status.record, block->path))
            continue;
        if (remove_file(s, block, &why))
            ibx_migration_notify(&s->options->observer,
                                 "the file of guest RAM %s was not removed: %s", block->id,
                                 why.message);
    }
}
