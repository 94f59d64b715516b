/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/control_groups.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

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

void ibx_control_groups_of_memory(const char *root, const char *groups, ibx_look_at_group *look,
                                  void *context)
{
    const struct looking looking = {look, context};
    char line[PATH_MAX], place[PATH_MAX];
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
        } else if (strstr(line, ":memory:")) {
            snprintf(place, sizeof(place), "%.1000s/memory", root);
            look_up(&looking, place, path, false);
        }
    }
}
