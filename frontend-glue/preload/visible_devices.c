/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * CUDA_VISIBLE_DEVICES in the program's environment selects GPUs of this host, by numbers or UUIDs.
 * Workload managers such as Slurm set it to the GPUs that they have allocated, on a host without a
 * GPU to none. The remote GPUs are selected by the variable in the back end's environment. So this
 * one is not applied, and a warning says so if it may have been meant for remote GPUs.
 */
#include "frontend-glue/preload/preload.h"

#include "common/log.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define CHOOSES "CUDA_VISIBLE_DEVICES"

/* The value of the variable; NULL if it selects no GPU, as local_libraries.c sets it. */
static const char *chosen(void)
{
    const char *list = secure_getenv(CHOOSES);
    return list && *list && *list != '-' && strncmp(list, "NoDevFiles", 10) != 0 ? list : NULL;
}

/* The length of the list if it is 0, 1, 2 ... in this order; else 0. */
static unsigned first_ones(const char *list)
{
    unsigned count = 0;
    for (;; list++) {
        char *end;
        if (*list < '0' || *list > '9' || strtoul(list, &end, 10) != count)
            return 0;
        count++;
        list = end;
        if (!*list)
            return count;
        if (*list != ',')
            return 0;
    }
}

static void tell(const char *list)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN,
                CHOOSES "=%s chooses among the GPUs of this host only, and the program sees all "
                        "GPUs of its back end: set the variable where the back end is started, or "
                        "select one by cudaSetDevice",
                list);
}

void ibx_frontend_visible_devices(void)
{
    const char *list = chosen();
    if (list && !first_ones(list))
        tell(list);
}

int cudaGetDeviceCount(int *count)
{
    const int rc =
        count ? ASK_NEXT(cudaGetDeviceCount, count) : ibx_frontend_fail(CUDA_INVALID_VALUE);
    const char *list = rc || !ibx_frontend_plugin() ? NULL : chosen();
    if (list && first_ones(list) < (unsigned)*count)
        tell(list);
    return rc;
}
