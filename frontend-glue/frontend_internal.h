/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared by the files of libibx-frontend.so. */
#ifndef IBX_FRONTEND_GLUE_FRONTEND_INTERNAL_H
#define IBX_FRONTEND_GLUE_FRONTEND_INTERNAL_H

#include "frontend-glue/frontend.h"

#include <stdatomic.h>

#define EXPORTED __attribute__((visibility("default")))

/* Of cudaError_t. */
#define CUDA_SUCCESS            0
#define CUDA_INVALID_VALUE      1
#define CUDA_MEMORY_ALLOCATION  2
#define CUDA_ALREADY_REGISTERED 712
#define CUDA_NOT_REGISTERED     713
#define CUDA_NOT_SUPPORTED      801

/* NULL: there is none (yet). */
const struct ibx_frontend_calls *frontend_plugin(void);
/* GVirtuS's function of that name, which is kept in *place; NULL: it has none. */
void *frontend_gvirtus(_Atomic(void *) *place, const char *symbol);

/* frontend_host.c: whether all these bytes are page-locked memory from here. If so, an asynchronous
 * copy may be under way in it from now on. */
bool frontend_lasting(const void *address, size_t n);

#endif
