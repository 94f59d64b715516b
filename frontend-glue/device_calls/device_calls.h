/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The back end runs calls itself that are no copies.
 *
 *   calls.c          short calls, by CUDA's runtime
 *   launch.c         kernels, by the driver
 *   math_calls.c     functions of cuBLAS and others; math_libraries.c: where these are
 *   math_descriptors.c  descriptors of cuBLASLt
 *   math_dnn.c       graphs of cuDNN
 */
#ifndef IBX_FRONTEND_GLUE_DEVICE_CALLS_DEVICE_CALLS_H
#define IBX_FRONTEND_GLUE_DEVICE_CALLS_DEVICE_CALLS_H

#include "frontend-glue/clients/clients.h"

/* calls.c: an outcome, or as ibx_session_fail() */

/* `own` runs requests of our own: ibx_own_request_run() */
int ibx_device_call(struct gpu_session *x, const struct ibx_request *q,
                    int (*own)(struct gpu_session *x, const struct ibx_request *q,
                               struct ibx_writer *out));
/* GVirtuS has begun to read a request of that name; and has answered it. */
void ibx_device_call_read(struct gpu_session *x, const char *name);
void ibx_device_call_answered(struct gpu_session *x);

/* launch.c */

/* 0; otherwise GVirtuS has to launch it. */
int ibx_device_launch(struct gpu_session *x, const uint8_t *body, size_t n);
/* A kernel of a graph, of the body of a launch: adds it behind others, or sets the parameters of
 * one, where `exec` is set in what was made of the graph. What the driver returns. */
struct ibx_kernel_node {
    void *graph, **behind; /* to add it */
    size_t count;
    void *node, *exec; /* to set them; or what was added */
};
int ibx_device_kernel_node(struct gpu_session *x, const uint8_t *body, size_t n,
                           struct ibx_kernel_node *node);
/* The same with `count` attributes (own_requests.h), and what CUDA returns. */
int ibx_device_launch_as(struct gpu_session *x, const uint8_t *body, size_t n,
                         const uint8_t *attributes, size_t count);
/* Before GVirtuS launches it: 0; CUDA's error where there is no such function, or where its handler
 * would read more than the launch brings. */
int ibx_device_launch_check(struct gpu_session *x, const uint8_t *body, size_t n);
/* Behind that, by the runtime, and what it returns; `tried`: behind ibx_device_launch(), too. -1:
 * GVirtuS has to. */
int ibx_device_launch_by_runtime(struct gpu_session *x, const uint8_t *body, size_t n, bool tried);
/* Parameters of a kernel from the first-th on, *count at most, which becomes how many there are.
 * What CUDA returns. */
struct ibx_parameter {
    size_t at, bytes;
};
int ibx_device_parameters(struct gpu_session *x, uint64_t function, size_t first,
                          struct ibx_parameter *parameters, size_t *count);
/* The arguments of a node of that kernel's, as CUDA says where they are, one behind the other as
 * the kernel has them: to be freed. */
int ibx_device_arguments(struct gpu_session *x, uint64_t function, void *const *arguments,
                         void *const *extra, uint8_t **bytes, size_t *n);
/* GVirtuS is about to launch what has come in pieces, or is long, and was not looked at: if its
 * handler would read on from there it is a launch of no function then. */
void ibx_device_launch_spare(struct gpu_session *x, uint8_t *body, size_t n);

/* math_calls.c */

/* One for a function of cuBLAS and the like: the library's status, or IBX_MATH_ABSENT. */
int ibx_device_math(struct gpu_session *x, const struct ibx_request *q, struct ibx_writer *out);
/* Of struct ibx_end_hooks: has the library end what is of that type. */
void ibx_math_end(unsigned type, uint64_t handle);

#endif
