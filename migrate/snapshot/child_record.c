/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* FOLDER/child.PID: what is known about a child, for the next process that fills the folder.
 * While no process fills it, a child waits at its first missing page. */
#include "migrate/snapshot/cache.h"

#include "common/log.h"
#include "common/write_whole.h"
#include "migrate/journal/journal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RECORD      "child."
#define RECORD_NEW  ".child"
#define RECORD_NAME 32

static void record_name(pid_t pid, char name[RECORD_NAME])
{
    snprintf(name, RECORD_NAME, RECORD "%d", (int)pid);
}

/* ------------------------------------------------------------ written */

static int write_text(int folder, const char *text)
{
    const int fd = openat(folder, RECORD_NEW,
                          O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    const int rc = fd < 0 ? -errno : ibx_write_whole(fd, text, strlen(text));
    if (fd >= 0)
        close(fd);
    return rc;
}

int ibx_snapshot_child_record_write(const struct ibx_snapshot_folder *folder,
                                    const struct snapshot_child *child, struct ibx_error *err)
{
    char name[RECORD_NAME];
    json_t *json = ibx_snapshot_child_json(child);
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    record_name(child->pid, name);
    int rc = text ? write_text(folder->at, text) : -ENOMEM;
    if (!rc && renameat(folder->at, RECORD_NEW, folder->at, name))
        rc = -errno;
    if (rc)
        unlinkat(folder->at, RECORD_NEW, 0);
    free(text);
    json_decref(json);
    return rc ? ibx_error_set(err, rc, "%s/%s cannot be written: %s", folder->path, name,
                              strerror(-rc))
              : 0;
}

void ibx_snapshot_child_record_remove(const struct ibx_snapshot_folder *folder, pid_t pid)
{
    char name[RECORD_NAME];
    record_name(pid, name);
    unlinkat(folder->at, name, 0);
}

/* ------------------------------------------------------------ read */

static int read_record(const struct ibx_snapshot_folder *folder, const char *name,
                       struct snapshot_child *child, struct ibx_error *err)
{
    char text[SNAPSHOT_CHILD_TEXT];
    const int file = openat(folder->at, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    const ssize_t n = file < 0 ? -1 : read(file, text, sizeof(text));
    const int code = errno;
    if (file >= 0)
        close(file);
    if (n < 0)
        return ibx_error_set(err, -code, "%s", strerror(code));
    return ibx_snapshot_child_read(text, (size_t)n, folder->manifest.ram_count, child, err);
}

/* One child, if this name is a record's and its process has not ended. */
static bool found(const struct ibx_snapshot_folder *folder, const char *name,
                  struct snapshot_child *child)
{
    struct ibx_error err = {0};
    if (strncmp(name, RECORD, strlen(RECORD)))
        return false;
    const int rc = read_record(folder, name, child, &err);
    if (rc && rc != -ENOENT) /* who has removed it meanwhile has let the child go */
        ibx_log(IBX_LOG_ERROR, "a child in %s cannot be served: %s", name, err.message);
    if (rc || !ibx_process_ended(child->pid, child->started))
        return !rc;
    unlinkat(folder->at, name, 0);
    return false;
}

bool ibx_snapshot_child_records(const struct ibx_snapshot_folder *folder,
                                bool (*each)(void *context, const struct snapshot_child *child),
                                void *context)
{
    const int fd = openat(folder->at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *entry;
    bool enough = false;
    while (dir && !enough && (entry = readdir(dir))) {
        struct snapshot_child child;
        enough = found(folder, entry->d_name, &child) && each(context, &child);
    }
    if (dir)
        closedir(dir);
    else if (fd >= 0)
        close(fd);
    return enough;
}

static bool any(void *context, const struct snapshot_child *child)
{
    (void)context;
    (void)child;
    return true;
}

bool ibx_snapshot_children_left(const struct ibx_snapshot_folder *folder)
{
    return ibx_snapshot_child_records(folder, any, NULL);
}
