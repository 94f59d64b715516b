/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Functions of NCCL that a remote GPU cannot have. They return ncclInvalidUsage, which is NCCL's
 * "not supported", and log their name once. NVIDIA's library, which the program brings, has them,
 * but would dereference the back end's communicators.
 */
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/session/math_nccl.h"

/* The prototypes are in the library's header. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

#define ABSENT(call)                                                                               \
    __attribute__((visibility("default"))) int call(void)                                          \
    {                                                                                              \
        static atomic_flag told = ATOMIC_FLAG_INIT;                                                \
        return ibx_frontend_absent(#call, NCCL_INVALID_USAGE, "ncclInvalidUsage", &told);          \
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
