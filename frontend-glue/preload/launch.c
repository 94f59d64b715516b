/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * nvcc 13 makes two calls of <<<>>> that no generation of GVirtuS has: one for a handle of the
 * kernel, one to launch it. Here the handle is the function itself, as cudaLaunchKernel() takes it,
 * which all generations since G2 have. A libcudart that has the two calls gets them.
 */
#include "frontend-glue/preload/internal.h"

int __cudaGetKernel(void **kernel, const void *function)
{
    __typeof__(&__cudaGetKernel) next = NEXT(__cudaGetKernel);
    if (next)
        return next(kernel, function);
    *kernel = (void *)(uintptr_t)function;
    return CUDA_SUCCESS;
}

int __cudaLaunchKernel(void *kernel, struct dim3 grid, struct dim3 block, void **arguments,
                       size_t shared, void *stream)
{
    static _Atomic(void *) launch;
    __typeof__(&__cudaLaunchKernel) next = NEXT(__cudaLaunchKernel);
    if (!next)
        *(void **)&next = ibx_frontend_next(&launch, "cudaLaunchKernel");
    return next ? next(kernel, grid, block, arguments, shared, stream) : CUDA_NOT_SUPPORTED;
}
