/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The key files that ib-migrate run makes, DIR/run-ID.key. They are removed when they are not
 * needed any more. The process that has made one keeps it locked as long as it lives. */
#include "tools/ib-migrate/run.h"

#include "common/write_whole.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define YOUNG_S 60 /* younger keys stay: the process that made one may not have locked it yet */

static bool is_name(const char *name)
{
    static const char begin[] = "run-", end[] = ".key", digits[] = "0123456789abcdef";
    if (strncmp(name, begin, strlen(begin)) != 0)
        return false;
    name += strlen(begin);
    const size_t n = strspn(name, digits);
    return n == 32 && !strcmp(name + n, end);
}

bool ibx_cli_is_run_key(const char *folder, const char *path)
{
    const size_t length = strlen(folder);
    const char *name = strrchr(path, '/');
    if (!name)
        return false;
    if (!strcmp(name, "/key"))
        return ibx_journal_in_run_folder(path);
    return (size_t)(name - path) == length && !strncmp(path, folder, length) && is_name(name + 1);
}

void ibx_cli_forget_key(const char *folder, const struct ibx_record *record)
{
    if (ibx_journal_over(record) && ibx_cli_is_run_key(folder, record->key_file))
        unlink(record->key_file);
}

bool ibx_cli_key_forgotten(const char *folder, const struct ibx_record *record)
{
    return ibx_cli_is_run_key(folder, record->key_file) && access(record->key_file, F_OK) &&
           errno == ENOENT;
}

int ibx_run_key_make(const char *path, const char *key, struct ibx_error *err)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int rc = fd < 0 || flock(fd, LOCK_EX | LOCK_NB) ? -errno : 0;
    if (!rc)
        rc = ibx_write_whole(fd, key, strlen(key));
    return rc ? ibx_error_set(err, rc, "%s cannot be written: %s; %s", path, strerror(-rc),
                              ibx_write_remedy(rc, "free space and rights in that folder, or "
                                                   "choose another with --state-dir"))
              : 0; /* it stays open, and locked, until this process ends */
}

/* Whether a record names this key; only file names are compared, since records have the folder as
 * it was typed. */
static bool is_of_record(const char *folder, const char *name)
{
    struct ibx_error silent = {0};
    struct ibx_record *records = NULL;
    size_t count = 0;
    bool found = ibx_journal_list(folder, &records, &count, &silent) != 0; /* perhaps */
    for (size_t i = 0; i < count; i++) {
        const char *slash = strrchr(records[i].key_file, '/');
        found |= !strcmp(slash ? slash + 1 : records[i].key_file, name);
    }
    free(records);
    return found;
}

/* Removes a key that a killed run has left: one that is not locked and that no record names. */
static void remove_one(const char *folder, const char *name)
{
    char path[PATH_MAX];
    struct stat st;
    snprintf(path, sizeof(path), "%.3900s/%.64s", folder, name);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
        st.st_mtime + YOUNG_S < time(NULL) && !flock(fd, LOCK_EX | LOCK_NB) &&
        !is_of_record(folder, name))
        unlink(path);
    if (fd >= 0)
        close(fd);
}

void ibx_cli_prune_keys(const char *folder)
{
    DIR *dir = opendir(folder);
    if (!dir)
        return;
    for (const struct dirent *entry; (entry = readdir(dir));)
        if (is_name(entry->d_name))
            remove_one(folder, entry->d_name);
    closedir(dir);
}
