/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/rights.h"

#include <inttypes.h>
#include <linux/capability.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A kernel without namespaces has no such file. In a namespace without a mapping it is empty. */
static bool is_first_map(const char *file)
{
    FILE *map = fopen(file, "re");
    uint64_t first = 0, to = 0, count = UINT32_MAX;
    const bool read =
        map && fscanf(map, "%" SCNu64 " %" SCNu64 " %" SCNu64, &first, &to, &count) == 3;
    if (!map)
        return true;
    fclose(map);
    return read && !first && !to && count == UINT32_MAX;
}

bool ibx_in_first_user_namespace(void)
{
    return is_first_map("/proc/self/uid_map");
}

bool ibx_process_in_first_user_namespace(pid_t pid)
{
    char file[64];
    snprintf(file, sizeof(file), "/proc/%d/uid_map", (int)pid);
    return is_first_map(file);
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
    return ibx_capable_in_namespace(capability) && ibx_in_first_user_namespace();
}
