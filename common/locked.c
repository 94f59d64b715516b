/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/locked.h"

#include "common/rights.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <stdio.h>
#include <sys/resource.h>

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
