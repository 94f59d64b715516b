/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/qemu/qemu.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ibx_proc_error(pid_t pid, int code)
{
    if (code != ENOENT && code != ESRCH)
        return -code;
    return kill(pid, 0) && errno == ESRCH ? -ESRCH : -EACCES;
}

const char *ibx_proc_remedy(int rc)
{
    return rc == -EACCES || rc == -EPERM
               ? "; run this tool as root or with CAP_SYS_PTRACE (and where /proc is mounted with "
                 "hidepid, as a member of its group)"
               : "";
}

int ibx_proc_find_descriptor(pid_t pid, ibx_proc_look *look, void *context)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    if (!dir)
        return ibx_proc_error(pid, errno);
    int found = -ENOENT, hidden = 0;
    for (struct dirent *entry; found < 0 && (entry = readdir(dir));) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "/proc/%d/fd/%.16s", (int)pid, entry->d_name);
        errno = 0;
        if (look(context, atoi(entry->d_name), path))
            found = atoi(entry->d_name);
        else if (errno == EACCES || errno == EPERM)
            hidden = -errno;
    }
    closedir(dir);
    return found < 0 && hidden ? hidden : found;
}

int ibx_proc_find_mapping(pid_t pid, ibx_proc_look_mapping *look, void *context)
{
    char path[64], *line = NULL; /* of any length: a program chooses the names of its files */
    size_t size = 0;
    unsigned long long from = 0, to = 0, a, b;
    snprintf(path, sizeof(path), "/proc/%d/smaps", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return ibx_proc_error(pid, errno);
    bool found = false;
    while (!found && getline(&line, &size, file) > 0)
        if (sscanf(line, "%llx-%llx ", &a, &b) == 2) { /* "Anonymous:" begins with a digit, too */
            from = a;
            to = b;
        } else if (!strncmp(line, "VmFlags:", 8)) {
            found = look(context, from, to, line + 8);
        }
    const int rc = found ? 1 : ferror(file) ? -EIO : 0;
    free(line);
    fclose(file);
    return rc;
}
