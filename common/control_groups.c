/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/control_groups.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct looking {
    ibx_look_at_group *look;
    void *context;
};

static void look_up(const struct looking *looking, const char *root, const char *path, bool second)
{
    char group[2 * PATH_MAX - 64];
    const size_t above = (size_t)snprintf(group, PATH_MAX, "%s", root);
    if (above >= PATH_MAX || strstr(path, "/..")) /* "/..": outside this cgroup namespace */
        return;
    snprintf(group + above, sizeof(group) - above, "%s", path[1] ? path : "");
    for (char *cut = group + strlen(group); cut; cut = strrchr(group + above, '/')) {
        *cut = '\0';
        looking->look(looking->context,
                      &(struct ibx_control_group){group, second, group[above] == '\0'});
    }
}

void ibx_control_groups_of(const char *controller, const char *root, const char *groups,
                           ibx_look_at_group *look, void *context)
{
    const struct looking looking = {look, context};
    char line[PATH_MAX], place[PATH_MAX], of[32];
    snprintf(of, sizeof(of), ":%.16s:", controller);
    for (size_t n; *groups; groups += n + (groups[n] == '\n')) {
        n = strcspn(groups, "\n");
        snprintf(line, sizeof(line), "%.*s", (int)n, groups);
        const char *path = strchr(line, '/');
        if (!path || n >= sizeof(line))
            continue;
        if (!strncmp(line, "0::", 3)) {
            look_up(&looking, root, path, true);
            snprintf(place, sizeof(place), "%.1000s/unified", root);
            look_up(&looking, place, path, true);
        } else if (strstr(line, of)) {
            snprintf(place, sizeof(place), "%.1000s/%.16s", root, controller);
            look_up(&looking, place, path, false);
        }
    }
}

/* ------------------------------------------------------------ joined */

static int move_to(const char *mount, const char *path)
{
    char procs[PATH_MAX];
    if (strstr(path, "/..")) /* outside this cgroup namespace */
        return -EACCES;
    snprintf(procs, sizeof(procs), "%s%.2000s/cgroup.procs", mount, path);
    const int fd = open(procs, O_WRONLY | O_CLOEXEC);
    const int rc = fd < 0 || write(fd, "0", 1) != 1 ? -errno : 0;
    if (fd >= 0)
        close(fd);
    return rc;
}

static int join(const char *root, const char *line)
{
    char mount[PATH_MAX];
    if (strncmp(line, "0::", 3) != 0) {
        snprintf(mount, sizeof(mount), "%.1000s/systemd", root);
        return move_to(mount, strchr(line, '/'));
    }
    const int rc = move_to(root, line + 3);
    snprintf(mount, sizeof(mount), "%.1000s/unified", root);
    return rc == -ENOENT ? move_to(mount, line + 3) : rc;
}

/* Whether the groups of this process have that line, too. */
static bool is_in(const char *wanted)
{
    char *line = NULL;
    size_t size = 0;
    bool found = false;
    FILE *own = fopen("/proc/self/cgroup", "re");
    while (own && !found && getline(&line, &size, own) > 0)
        found = !strcmp(line, wanted);
    if (own)
        fclose(own);
    free(line);
    return found;
}

int ibx_control_groups_join(const char *root, pid_t pid)
{
    char path[32], *line = NULL;
    size_t size = 0;
    int rc = 0;
    snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)pid);
    FILE *groups = fopen(path, "re");
    if (!groups)
        return -errno;
    while (getline(&line, &size, groups) > 0) {
        if ((strncmp(line, "0::/", 4) != 0 && !strstr(line, ":name=systemd:/")) || is_in(line))
            continue;
        line[strcspn(line, "\n")] = '\0';
        const int failed = join(root, line);
        rc = rc ? rc : failed;
    }
    free(line);
    fclose(groups);
    return rc;
}

/* ------------------------------------------------------------ frozen */

/* -ENOENT: there is no such group. */
static int read_events(const char *mount, const char *path, char *events, size_t size)
{
    char file[PATH_MAX];
    snprintf(file, sizeof(file), "%.1000s%.2000s/cgroup.events", mount, path);
    const int fd = open(file, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? -1 : read(fd, events, size - 1);
    const int code = n < 0 ? errno : 0;
    events[n > 0 ? n : 0] = '\0';
    if (fd >= 0)
        close(fd);
    return -code;
}

bool ibx_control_groups_frozen(const char *root, pid_t pid)
{
    char path[PATH_MAX], mount[PATH_MAX], events[256] = "", *line = NULL;
    size_t size = 0;
    snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)pid);
    FILE *groups = fopen(path, "re");
    while (groups && getline(&line, &size, groups) > 0) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "0::/", 4) != 0 || strstr(line, "/.."))
            continue;
        snprintf(mount, sizeof(mount), "%.1000s/unified", root);
        if (read_events(root, line + 3, events, sizeof(events)) == -ENOENT)
            read_events(mount, line + 3, events, sizeof(events));
    }
    free(line);
    if (groups)
        fclose(groups);
    return strstr(events, "frozen 1") != NULL;
}
