/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * device_calls/: calls other than copies that the back end runs itself.
 *
 *   calls.c          short calls, by CUDA's runtime
 *   launch.c         kernels, by the driver
 *   graph_kernels.c  modules of kernels that are in graphs, and whatever else these need
 *   math_calls.c     functions of cuBLAS and others; math_libraries.c: where these are
 *   math_descriptors.c  descriptors of cuBLASLt
 *   math_dnn.c       graphs of cuDNN
 *   math_nccl.c, math_nccl_operations.c  communicators of NCCL, and what they do
 */
#ifndef IBX_FRONTEND_GLUE_DEVICE_CALLS_DEVICE_CALLS_H
#define IBX_FRONTEND_GLUE_DEVICE_CALLS_DEVICE_CALLS_H

#include "frontend-glue/clients/clients.h"

/* calls.c: returns an outcome, or as ibx_session_fail() */

/* Runs the request, if it can; extension requests by run_extension(): ibx_extension_run(). */
int ibx_device_call(struct gpu_session *x, const struct ibx_request *q,
                    int (*run_extension)(struct gpu_session *x, const struct ibx_request *q,
                                         struct ibx_writer *out));
/* Whether a session runs such a call also as its first one, before it has seen a reply of
 * GVirtuS's: the handler would harm other clients. */
bool ibx_device_call_is_first(const struct ibx_call *call);
/* GVirtuS has begun to read a request of that name; GVirtuS has answered it. */
void ibx_device_call_read(struct gpu_session *x, const char *name);
void ibx_device_call_answered(struct gpu_session *x);

/* launch.c */

/* Launches the kernel of a launch request's body. 0: done; otherwise GVirtuS has to launch it. */
int ibx_device_launch(struct gpu_session *x, const uint8_t *body, size_t n);
/* Adds a kernel node to a graph, behind others, or sets the parameters of a node in its graph or in
 * the executable graph `exec`. The kernel and its parameters are those of a launch request's body.
 * Returns what the driver returns. */
struct ibx_kernel_node {
    void *graph, **behind; /* to add a node */
    size_t count;
    void *node, *exec; /* to set parameters; or the node that was added */
};
int ibx_device_kernel_node(struct gpu_session *x, const uint8_t *body, size_t n,
                           struct ibx_kernel_node *node);
/* Launches the kernel of a launch request's body with `count` attributes (extensions.h). Returns
 * what CUDA returns. */
int ibx_device_launch_as(struct gpu_session *x, const uint8_t *body, size_t n,
                         const uint8_t *attributes, size_t count);
/* To be called before GVirtuS launches it. 0, or CUDA's error: there is no such function, or
 * GVirtuS's handler would read beyond the request. */
int ibx_device_launch_check(struct gpu_session *x, const uint8_t *body, size_t n);
/* After that check: launches by the runtime, and returns what it returns; `tried`:
 * ibx_device_launch() has failed before. -1: GVirtuS has to launch it. */
int ibx_device_launch_by_runtime(struct gpu_session *x, const uint8_t *body, size_t n, bool tried);
/* Offsets and lengths of a kernel's parameters, from number `first` on, at most *count; *count
 * becomes how many were written. Returns what CUDA returns. */
struct ibx_parameter {
    size_t at, bytes;
};
int ibx_device_parameters(struct gpu_session *x, uint64_t function, size_t first,
                          struct ibx_parameter *parameters, size_t *count);
/* Copies the arguments of a node of that kernel, which are where CUDA says (`arguments`, `extra`),
 * into *n bytes with the kernel's layout. The caller frees *bytes. */
int ibx_device_arguments(struct gpu_session *x, uint64_t function, void *const *arguments,
                         void *const *extra, uint8_t **bytes, size_t *n);
/* To be called before GVirtuS runs a launch that may not have been checked, because it came in
 * pieces or is long. If the handler would read beyond the request, changes the function to none. */
void ibx_device_launch_spare(struct gpu_session *x, uint8_t *body, size_t n);

/* graph_kernels.c */

/* Calls end(what) when neither the graph nor what was made of it exists; at once if that will be
 * told by an earlier call; at once, or too early, if it returns false: CUDA lacks the calls, or has
 * no memory. */
bool ibx_graph_retain(struct gpu_session *x, void *graph, void *what, void (*end)(void *what));
/* A graph has got a function of the module that the request holds; a node in an executable graph
 * has; the launch of such a function may have been captured, before which
 * ibx_captures_over_so_far() was `before`. */
void ibx_graph_has_kernel(struct gpu_session *x, void *graph);
void ibx_graph_exec_has_kernel(struct gpu_session *x, const void *exec, const void *node);
void ibx_graph_captures_kernel(struct gpu_session *x, uint64_t stream, unsigned before);

/* math_calls.c */

/* Runs a request for a function of cuBLAS or another library. Returns the library's status, or
 * IBX_MATH_ABSENT. */
int ibx_device_math(struct gpu_session *x, const struct ibx_request *q, struct ibx_writer *out);
/* For struct ibx_end_hooks: has the library destroy a handle of that type. */
void ibx_math_end(unsigned type, uint64_t handle);

#endif
