/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/qemu/qemu.h"

#include "common/file_check.h"
#include "common/write_whole.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define ARGUMENTS_MAX ((size_t)6 << 20) /* bytes of a command line, as of execve(2) */

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

/* Asks no server of a file system, which may not answer. */
static int stat_at(int at, const char *path, struct stat *st)
{
    struct statx is;
    if (statx(at, path, AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_INO, &is))
        return -1;
    *st = (struct stat){.st_dev = makedev(is.stx_dev_major, is.stx_dev_minor),
                        .st_ino = is.stx_ino,
                        .st_mode = is.stx_mode,
                        .st_rdev = makedev(is.stx_rdev_major, is.stx_rdev_minor)};
    return 0;
}

int ibx_proc_stat(const char *path, struct stat *st)
{
    return stat_at(AT_FDCWD, path, st);
}

int ibx_proc_find_descriptor(pid_t pid, ibx_proc_look *look, void *context)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    if (!dir)
        return ibx_proc_error(pid, errno);
    int found = -ENOENT, unread = 0;
    for (struct dirent *entry; found < 0 && (errno = 0, entry = readdir(dir));) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "/proc/%d/fd/%.16s", (int)pid, entry->d_name);
        errno = 0;
        if (look(context, atoi(entry->d_name), path))
            found = atoi(entry->d_name);
        else if (errno == EACCES || errno == EPERM)
            unread = -errno;
    }
    if (found < 0 && errno)
        unread = ibx_proc_error(pid, errno);
    closedir(dir);
    return found < 0 && unread ? unread : found;
}

static bool is_link(void *context, int number, const char *path)
{
    char link[64];
    (void)number;
    const ssize_t n = readlink(path, link, sizeof(link) - 1);
    link[n > 0 ? n : 0] = '\0';
    return !strcmp(link, context);
}

int ibx_proc_find_socket(pid_t pid, uint64_t inode)
{
    char wanted[64];
    snprintf(wanted, sizeof(wanted), "socket:[%" PRIu64 "]", inode);
    return ibx_proc_find_descriptor(pid, is_link, wanted);
}

int ibx_proc_take(pid_t pid, int number)
{
    const int process = (int)syscall(SYS_pidfd_open, pid, 0);
    int taken = process < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, process, number, 0);
    if (taken < 0)
        taken = -errno;
    if (process >= 0)
        close(process);
    return taken;
}

int ibx_proc_open(const char *path, int flags,
                  bool (*fits)(const void *context, const struct stat *st), const void *context)
{
    struct stat st;
    const int found = open(path, O_PATH | O_CLOEXEC);
    int fd = found < 0 || stat_at(found, "", &st) ? -errno : fits(context, &st) ? 0 : -ESTALE;
    if (!fd)
        fd = ibx_file_reopen(found, flags);
    if (found >= 0)
        close(found);
    return fd;
}

/* Calls `is_it` for each line of a file of `pid` until it returns true. Lines may have any length,
 * since a program chooses the names of its files. */
static int find_line(pid_t pid, const char *name, bool (*is_it)(void *context, char *line),
                     void *context)
{
    char path[64], *line = NULL;
    size_t size = 0;
    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    FILE *file = fopen(path, "re");
    if (!file)
        return ibx_proc_error(pid, errno);
    bool found = false;
    while (!found && (errno = 0, getline(&line, &size, file) > 0))
        found = is_it(context, line);
    const int rc = found ? 1 : errno ? ibx_proc_error(pid, errno) : 0;
    free(line);
    fclose(file);
    return rc;
}

static bool is_core_dump(void *context, char *line)
{
    (void)context;
    return !strncmp(line, "CoreDumping:\t1", 14);
}

bool ibx_proc_dumps_core(pid_t pid)
{
    return pid > 0 && find_line(pid, "status", is_core_dump, NULL) == 1;
}

struct mapping_search {
    ibx_proc_look_mapping *look;
    void *context;
};

/* Reads a number and the character behind it. NULL stays NULL; NULL: it is not there. By hand:
 * sscanf(3) took a tenth of the time of a tool that looks at the mappings of all processes. */
static char *read_number(char *at, unsigned base, char end, uint64_t *number)
{
    static const char digits[] = "0123456789abcdef";
    const char *const first = at, *digit;
    *number = 0;
    for (; at && *at && (digit = memchr(digits, *at, base)); at++)
        *number = *number * base + (uint64_t)(digit - digits);
    return at && at > first && *at == end ? at + 1 : NULL;
}

static bool is_mapping(void *context, char *line)
{
    const struct mapping_search *search = context;
    struct ibx_proc_mapping m = {.permissions = ""};
    uint64_t major, minor;
    char *at = read_number(line, 16, '-', &m.start);
    at = read_number(at, 16, ' ', &m.end);
    if (!at || strcspn(at, " ") != 4 || !at[4])
        return false;
    memcpy(m.permissions, at, 4);
    at = read_number(at + 5, 16, ' ', &m.offset);
    at = read_number(at, 16, ':', &major);
    at = read_number(at, 16, ' ', &minor);
    at = read_number(at, 10, ' ', &m.ino);
    if (!at)
        return false;
    m.dev = makedev((unsigned)major, (unsigned)minor);
    m.path = at + strspn(at, " ");
    line[strcspn(line, "\n")] = '\0';
    return search->look(search->context, &m);
}

int ibx_proc_find_mapping(pid_t pid, ibx_proc_look_mapping *look, void *context)
{
    return find_line(pid, "maps", is_mapping, &(struct mapping_search){look, context});
}

/* PROCMAP_QUERY of <linux/fs.h>, from Linux 6.11 on: the first mapping that ends behind an address
 * and has these properties. */
struct procmap_query {
    uint64_t size, flags, address;
    uint64_t start, end, vma_flags, page_size, offset, inode;
    uint32_t major, minor, name_size, build_id_size;
    uint64_t name, build_id;
};
#define PROCMAP_QUERY    _IOWR('f', 17, struct procmap_query)
#define PROCMAP_WRITABLE 0x02u
#define PROCMAP_SHARED   0x08u
#define PROCMAP_NEXT     0x10u
#define PROCMAP_FILE     0x20u

/* As ibx_proc_find_writable(), of an open file; -ENOTTY: this kernel cannot be asked. */
static int query_writable(int maps, ibx_proc_look_mapping *look, void *context)
{
    struct ibx_proc_mapping m = {.permissions = "rw-s", .path = ""};
    while (true) {
        struct procmap_query query = {.size = sizeof(query),
                                      .flags = PROCMAP_WRITABLE | PROCMAP_SHARED | PROCMAP_NEXT |
                                               PROCMAP_FILE,
                                      .address = m.end};
        if (ioctl(maps, PROCMAP_QUERY, &query))
            return errno == ENOENT || errno == ESRCH ? 0 : -errno;
        m.start = query.start;
        m.end = query.end;
        m.offset = query.offset;
        m.dev = makedev(query.major, query.minor);
        m.ino = query.inode;
        if (look(context, &m))
            return 1;
    }
}

int ibx_proc_find_writable(pid_t pid, ibx_proc_look_mapping *look, void *context)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
    const int maps = open(path, O_RDONLY | O_CLOEXEC);
    if (maps < 0)
        return ibx_proc_error(pid, errno);
    const int rc = query_writable(maps, look, context);
    close(maps);
    return rc < 0 ? ibx_proc_find_mapping(pid, look, context) : rc;
}

struct flags_search {
    uint64_t start, end; /* of the mapping that the next lines describe */
    ibx_proc_look_flags *look;
    void *context;
};

static bool has_flags(void *context, char *line)
{
    struct flags_search *search = context;
    uint64_t start, end;
    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &start, &end) == 2) {
        search->start = start; /* only now: "Anonymous:" begins with a hex digit, too */
        search->end = end;
    } else if (!strncmp(line, "VmFlags:", 8)) {
        return search->look(search->context, search->start, search->end, line + 8);
    }
    return false;
}

int ibx_proc_find_flags(pid_t pid, ibx_proc_look_flags *look, void *context)
{
    return find_line(pid, "smaps", has_flags,
                     &(struct flags_search){.look = look, .context = context});
}

/* What a value of -action, such as "panic=pause,shutdown=pause", says of a shutdown; the last
 * one counts. `pauses`: the result if it says nothing. */
static bool shutdown_pauses(const char *actions, bool pauses)
{
    static const char key[] = "shutdown=";
    for (const char *at = actions; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (!strncmp(at, key, strlen(key)))
            pauses = !strncmp(at + strlen(key), "pause", strlen("pause"));
    }
    return pauses;
}

/* Copies what a program can be started with, at most. -E2BIG: there is more. */
static int copy_arguments(int from, int to)
{
    char part[16384];
    size_t all = 0;
    ssize_t n;
    int rc = 0;
    while (!rc && (n = read(from, part, sizeof(part))) != 0) {
        all += n > 0 ? (size_t)n : 0;
        rc = n < 0 ? -errno : all > ARGUMENTS_MAX ? -E2BIG : ibx_write_whole(to, part, (size_t)n);
    }
    return rc;
}

/* A process can show any part of its memory as its command line (PR_SET_MM_MAP), of any length. */
FILE *ibx_proc_arguments(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)pid);
    const int from = open(path, O_RDONLY | O_CLOEXEC);
    const int to = from >= 0 ? memfd_create("ibx-arguments", MFD_CLOEXEC) : -1;
    const int rc = to < 0 ? -errno : copy_arguments(from, to);
    FILE *file = !rc && !lseek(to, 0, SEEK_SET) ? fdopen(to, "r") : NULL;
    if (!file && to >= 0)
        close(to);
    if (from >= 0)
        close(from);
    if (rc)
        errno = -rc;
    return file;
}

bool ibx_proc_stays(pid_t pid)
{
    char *argument = NULL;
    size_t size = 0;
    bool stays = false, actions = false;
    FILE *file = ibx_proc_arguments(pid);
    while (file && getdelim(&argument, &size, '\0', file) > 0) {
        const char *option = argument + (argument[0] == '-' && argument[1] == '-');
        if (actions)
            stays = shutdown_pauses(argument, stays);
        actions = !actions && !strcmp(option, "-action");
        stays |= !strcmp(option, "-no-shutdown");
    }
    free(argument);
    if (file)
        fclose(file);
    return stays;
}
