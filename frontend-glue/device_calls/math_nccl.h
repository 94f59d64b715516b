/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Calls of NCCL, whose library the back end loads itself. */
#ifndef IBX_FRONTEND_GLUE_DEVICE_CALLS_MATH_NCCL_H
#define IBX_FRONTEND_GLUE_DEVICE_CALLS_MATH_NCCL_H

#include "frontend-glue/device_calls/device_calls.h"
#include "frontend-glue/session/math_calls.h"

/* Whether the back end may call NCCL: rdma.nccl. */
bool ibx_nccl_allowed(const struct gpu_session *x);
/* Runs the function. A handle in *values is a communicator that the client may name; what the
 * function makes is one. The library's status. */
int ibx_nccl_run(struct gpu_session *x, const struct ibx_math_function *f, void *function,
                 const union ibx_math_value *values);
/* The client is about to end the communicator: calls of other threads that wait for it return. */
void ibx_nccl_leave(uint64_t communicator);
/* Ends a communicator that its client has left. */
void ibx_nccl_end(uint64_t communicator);

#endif
