/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Communicators of NCCL (math_nccl.c) and their operations (math_nccl_operations.c). */
#ifndef IBX_FRONTEND_GLUE_DEVICE_CALLS_MATH_NCCL_COMMUNICATORS_H
#define IBX_FRONTEND_GLUE_DEVICE_CALLS_MATH_NCCL_COMMUNICATORS_H

#include "frontend-glue/device_calls/math_descriptors.h"
#include "frontend-glue/device_calls/math_nccl.h"
#include "frontend-glue/session/math_nccl.h"

#include <pthread.h>
#include <stdatomic.h>

#define OWN_OPERATORS 64u /* of a communicator, at most */

/* An operator that the client has made. */
struct reduction {
    int number;
    uint64_t scalar; /* an address on the device; 0: none */
};

struct communicator {
    pthread_mutex_t lock; /* around NCCL's functions */
    _Atomic(const struct gpu_session *)
        user;         /* the session whose request has it alone; NULL: none */
    void *of;         /* ncclComm_t; NULL: its parent has not made it yet, or it has ended */
    atomic_bool ends; /* its client ends it: nobody waits in it any more */
    bool blocking;    /* the client's own mode */
    bool made, finalized;
    int device, ranks, rank;       /* once it is made */
    uint8_t id[IBX_NCCL_ID_BYTES]; /* all 0: a split has made it */
    struct reduction operators[OWN_OPERATORS];
    unsigned operator_count;
    void *none; /* what NCCL writes at the end of a split in which this rank gets no new one */
    /* While it is being split; locked by `links`. */
    struct communicator *parent, *child;
    bool orphan; /* its client has ended it before its parent had made it */
};

static inline struct communicator *communicator_of(const void *handle)
{
    return (struct communicator *)(uintptr_t)handle;
}

/* A function of the library, which is looked up once; NULL: it is of a later version. */
#define FUNCTION(number)                                                                           \
    __extension__({                                                                                \
        void *found_function = ibx_math_function_of(ibx_math_find(IBX_MATH_##number));             \
        found_function;                                                                            \
    })

/* math_nccl.c */

/* Waits until the request has it alone. False: it takes too long, or somebody ends it. */
bool ibx_nccl_begin_alone(const struct gpu_session *x, struct communicator *c);
void ibx_nccl_end_alone(const struct gpu_session *x, struct communicator *c);
/* What NCCL says of it, also while it is being split off; the first time after it was made, notes
 * its ranks. */
int ibx_nccl_look(struct communicator *c);
/* Waits until nothing is in progress, its client aborts it, or its client is gone. */
int ibx_nccl_wait(struct gpu_session *x, struct communicator *c);

/* math_nccl_operations.c: of a communicator that the request has alone */

int ibx_nccl_make_operator(struct communicator *c, void *function,
                           const union ibx_math_value *values);
int ibx_nccl_end_operator(struct communicator *c, void *function, int number);
/* Runs the operations of a request. `stream`: that of all of them; NULL: each names its own. */
int ibx_nccl_run_group(struct gpu_session *x, const union ibx_math_value *values,
                       const uint64_t *stream);

#endif
