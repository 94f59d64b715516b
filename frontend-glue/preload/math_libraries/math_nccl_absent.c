/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Functions of NCCL that a remote GPU cannot have. They return ncclInvalidUsage, which is NCCL's
 * "not supported", and log their name once. NVIDIA's library, which the program brings, has them,
 * but would dereference the back end's communicators.
 */
#include "frontend-glue/preload/preload.h"

#include "common/log.h"

/* The prototypes are in the library's header. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

#define INVALID_USAGE 5

static int absent(const char *call, atomic_flag *told)
{
    if (!atomic_flag_test_and_set(told))
        ibx_log(IBX_LOG_WARN,
                "%s returns ncclInvalidUsage: it is not there for a remote GPU; ibx-gvirtus(1) "
                "lists what is",
                call);
    return INVALID_USAGE;
}

#define ABSENT(call)                                                                               \
    __attribute__((visibility("default"))) int call(void)                                          \
    {                                                                                              \
        static atomic_flag told = ATOMIC_FLAG_INIT;                                                \
        return absent(#call, &told);                                                               \
    }                                                                                              \
    extern __attribute__((visibility("default"), alias(#call))) int p##call(void);

ABSENT(ncclCommGetUniqueId)
ABSENT(ncclCommGrow)
ABSENT(ncclCommMemStats)
ABSENT(ncclCommResume)
ABSENT(ncclCommRevoke)
ABSENT(ncclCommShrink)
ABSENT(ncclCommSuspend)
ABSENT(ncclCommWindowDeregister)
ABSENT(ncclCommWindowRegister)
ABSENT(ncclDevCommCreate)
ABSENT(ncclDevCommDestroy)
ABSENT(ncclGroupSimulateEnd)
ABSENT(ncclPutSignal)
ABSENT(ncclSignal)
ABSENT(ncclWaitSignal)
ABSENT(ncclWinGetUserPtr)
