/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/locked.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Of this process; a kernel without them has no such file. */
static bool in_first_user_namespace(void)
{
    FILE *map = fopen("/proc/self/uid_map", "re");
    uint64_t first = 0, to = 0, count = UINT32_MAX;
    const bool read =
        map && fscanf(map, "%" SCNu64 " %" SCNu64 " %" SCNu64, &first, &to, &count) == 3;
    if (map)
        fclose(map);
    return !read || (!first && !to && count == UINT32_MAX);
}

bool ibx_capable_in_namespace(unsigned capability)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {{0}};
    return !syscall(SYS_capget, &head, data) &&
           data[CAP_TO_INDEX(capability)].effective & CAP_TO_MASK(capability);
}

bool ibx_capable(unsigned capability)
{
    return ibx_capable_in_namespace(capability) && in_first_user_namespace();
}

bool ibx_locked_limit(uint64_t *bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) || limit.rlim_cur == RLIM_INFINITY ||
        ibx_capable(CAP_IPC_LOCK))
        return false;
    *bytes = limit.rlim_cur;
    return true;
}

uint64_t ibx_locked_now(void)
{
    FILE *file = fopen("/proc/thread-self/status", "re");
    char line[256];
    uint64_t kib = 0;
    while (file && fgets(line, sizeof(line), file))
        if (sscanf(line, "VmPin: %" SCNu64, &kib) == 1)
            break;
    if (file)
        fclose(file);
    return kib << 10;
}

int ibx_locked_error(struct ibx_error *err, const char *device, uint64_t bytes, uint64_t limit)
{
    return ibx_error_set(err, -ENOMEM,
                         "%s cannot register %" PRIu64 " bytes: this process may lock %" PRIu64
                         " bytes of memory (RLIMIT_MEMLOCK); raise it: ulimit -l unlimited, "
                         "LimitMEMLOCK=infinity, or memlock in /etc/security/limits.conf",
                         device, bytes, limit);
}
