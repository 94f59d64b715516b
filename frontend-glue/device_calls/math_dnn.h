/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Checks for graphs of cuDNN and its recurrent networks, in addition to those of math_calls.c. */
#ifndef IBX_FRONTEND_GLUE_DEVICE_CALLS_MATH_DNN_H
#define IBX_FRONTEND_GLUE_DEVICE_CALLS_MATH_DNN_H

#include "frontend-glue/device_calls/device_calls.h"
#include "frontend-glue/session/math_calls.h"

/* To be called before a call of cuDNN: 0, or the status with which it is refused. */
int ibx_dnn_check(struct gpu_session *x, const struct ibx_math_function *f,
                  const union ibx_math_value *values);
/* To be called after a call that has succeeded. */
void ibx_dnn_done(struct gpu_session *x, const struct ibx_math_function *f,
                  const union ibx_math_value *values);
/* A descriptor is about to end. */
void ibx_dnn_ended(uint64_t descriptor);
/* Runs a plan with the addresses and values that the request has. The library's status. */
int ibx_dnn_execute(struct gpu_session *x, void *function, const union ibx_math_value *values);

#endif
