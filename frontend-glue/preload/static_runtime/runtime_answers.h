/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The targets of functions of a statically linked runtime that no libcudart replaces. */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_STATIC_RUNTIME_RUNTIME_ANSWERS_H
#define IBX_FRONTEND_GLUE_PRELOAD_STATIC_RUNTIME_RUNTIME_ANSWERS_H

/* For a function that needs no GPU; NULL: it is another one. */
void *ibx_static_runtime_without_gpu(const char *name);
/* For this function, if there is no libcudart: it returns cudaErrorInsufficientDriver, as without a
 * driver. */
void *ibx_static_runtime_unreached(const char *name);
/* For this function, if the libcudart lacks it: it returns cudaErrorNotSupported and logs its name
 * once. */
void *ibx_static_runtime_lacked(const char *name);

#endif
