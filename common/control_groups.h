/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which control groups limit the memory of a process. */
#ifndef IBX_COMMON_CONTROL_GROUPS_H
#define IBX_COMMON_CONTROL_GROUPS_H

#include <stdbool.h>

struct ibx_control_group {
    const char *folder;
    bool second; /* of the second version */
    bool root; /* what is mounted itself: the root of all, which has no limit, or a container's; of
                  the first version it need not be above the group of another process */
};
typedef void ibx_look_at_group(void *context, const struct ibx_control_group *group);
/* Looks at the group of the process and at those above it, of both versions, by `groups`, the
 * content of /proc/PID/cgroup, and the place where they are mounted: /sys/fs/cgroup. */
void ibx_control_groups_of_memory(const char *root, const char *groups, ibx_look_at_group *look,
                                  void *context);

#endif
