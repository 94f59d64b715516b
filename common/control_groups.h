/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which control groups limit the memory of a process. */
#ifndef IBX_COMMON_CONTROL_GROUPS_H
#define IBX_COMMON_CONTROL_GROUPS_H

#include <stdbool.h>

struct ibx_control_group {
    const char *folder;
    bool second; /* of cgroup v2, not v1 */
    bool root;   /* the mount's own root: either the real root, which has no limit, or a container's
                    group; in v1 the latter need not be above the group of another process */
};
typedef void ibx_look_at_group(void *context, const struct ibx_control_group *group);
/* Calls `look` for the group of a process and for each group above it, of cgroup v2 and of v1's
 * memory controller. `groups`: the content of /proc/PID/cgroup; `root`: where the groups are
 * mounted, which is /sys/fs/cgroup. */
void ibx_control_groups_of_memory(const char *root, const char *groups, ibx_look_at_group *look,
                                  void *context);

#endif
