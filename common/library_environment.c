/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/library_environment.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

/* How the names begin, in rdma-core 44, its drivers, libfabric 1.17 and the PSM libraries. */
static const char *const prefixes[] = {
    "RDMAV_", "IBV_", "VERBS_", "SYSFS_PATH=", "MLX",  "QELR_",
    "CXGB",   "FI_",  "PSM",    "HFI_",        "OPX_", "IPATH_",
};

static bool is_theirs(const char *variable)
{
    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
        if (!strncmp(variable, prefixes[i], strlen(prefixes[i])))
            return true;
    }
    return false;
}

int ibx_library_environment_check(struct ibx_error *err)
{
    char **variable = getauxval(AT_SECURE) ? environ : NULL;
    while (variable && *variable && !is_theirs(*variable))
        variable++;
    if (!variable || !*variable)
        return 0;
    return ibx_error_set(err, -EPERM,
                         "the environment variable %.*s could have a library for RDMA load any "
                         "file, with rights that whoever started this program lacks: unset it, or "
                         "give the rights to the process (AmbientCapabilities) and not to the file",
                         (int)strcspn(*variable, "=") < 60 ? (int)strcspn(*variable, "=") : 60,
                         *variable);
}
