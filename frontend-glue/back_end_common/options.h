/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Options of a back end, from its configuration. */
#ifndef IBX_FRONTEND_GLUE_BACK_END_COMMON_OPTIONS_H
#define IBX_FRONTEND_GLUE_BACK_END_COMMON_OPTIONS_H

#include "frontend-glue/back_end_common/tuning.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether a back end runs copies between its client and the GPU itself. */
enum ibx_gpu_mode {
    IBX_GPU_OFF,
    IBX_GPU_AUTO, /* where CUDA is there */
    IBX_GPU_ON,   /* the same, and a warning where it is not */
};

#define IBX_WEIGHTS_MAX 512

/* Limits of what clients may do to each other and to this process. 0: the default, in []. */
struct ibx_tenant_limits {
    bool shared;       /* rdma.tenants: no memory is refused */
    uint64_t sessions; /* of all tenants [IBX_TENANT_SESSIONS] */
    uint64_t pins;     /* bytes of all tenants [the host's memory] */
    uint64_t requests; /* bytes of all tenants [half of the host's memory] */
    uint64_t device;   /* bytes of the GPUs, of all tenants [no limit] */
    uint64_t share;    /* percent of each that one tenant may hold [75; the process's own user, who
                        * has no name, and root: 100] */
    /* Weights in the turns on a GPU (gpudirect/turns.h): WEIGHT and NAME=WEIGHT, separated by
     * commas; WEIGHT is that of all who are not named ["": 100]. */
    char weights[IBX_WEIGHTS_MAX];
};
#define IBX_TENANT_SESSIONS 4096u
#define IBX_TENANT_SHARE    75u
#define IBX_WEIGHT_MAX      10000u

struct ibx_gpu_options {
    enum ibx_gpu_mode mode;
    size_t memory;    /* bytes of pinned memory that this process's sessions share */
    bool nccl;        /* rdma.nccl: clients may call NCCL [no] */
    unsigned threads; /* copy threads of one session; 0: as tuned, or by the number of processors */
    struct ibx_tuning tuning; /* used if it was measured on this GPU */
    struct ibx_tenant_limits limits;
};

#endif
