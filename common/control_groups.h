/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Control groups: which ones limit the memory of a process, by which ones it is ended, and whether
 * it is frozen. */
#ifndef IBX_COMMON_CONTROL_GROUPS_H
#define IBX_COMMON_CONTROL_GROUPS_H

#include <stdbool.h>
#include <sys/types.h>

struct ibx_control_group {
    const char *folder;
    bool second; /* of cgroup v2, not v1 */
    bool root;   /* the mount's own root: either the real root, which has no limit, or a container's
                    group; in v1 the latter need not be above the group of another process */
};
typedef void ibx_look_at_group(void *context, const struct ibx_control_group *group);
/* Calls `look` for the group of a process and for each group above it, of cgroup v2 and of this
 * controller of v1, "memory" or "hugetlb". `groups`: the content of /proc/PID/cgroup; `root`: where
 * the groups are mounted, which is /sys/fs/cgroup. */
void ibx_control_groups_of(const char *controller, const char *root, const char *groups,
                           ibx_look_at_group *look, void *context);

/* Moves this process to those groups of process `pid` by which a service manager ends processes: of
 * cgroup v2, and of v1's "name=systemd". `root`: as above. 0: it is in them now, or was before;
 * -EACCES and others: not in all of them, because this user may not, or they are not to be seen. */
int ibx_control_groups_join(const char *root, pid_t pid);

/* Whether the group of cgroup v2 that process `pid` is in is frozen, by itself or with one above
 * it. False also if that is not to be seen. `root`: as above. */
bool ibx_control_groups_frozen(const char *root, pid_t pid);

#endif
