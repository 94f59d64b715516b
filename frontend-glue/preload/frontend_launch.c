/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What nvcc 13 makes of <<<>>> are two calls that no generation of GVirtuS has: one for a handle of
 * the kernel, one to launch it. Here the handle is the function itself, as cudaLaunchKernel() takes
 * it, which all generations since G2 have. A libcudart that has the two gets them.
 */
#include "frontend-glue/preload/frontend_internal.h"

struct dim3 {
    unsigned x, y, z;
};

EXPORTED int __cudaGetKernel(void **kernel, const void *function);
EXPORTED int __cudaLaunchKernel(void *kernel, struct dim3 grid, struct dim3 block, void **arguments,
                                size_t shared, void *stream);

int __cudaGetKernel(void **kernel, const void *function)
{
    static _Atomic(void *) next;
    int (*call)(void **, const void *);
    *(void **)&call = ibx_frontend_gvirtus(&next, "__cudaGetKernel");
    if (call)
        return call(kernel, function);
    *kernel = (void *)(uintptr_t)function;
    return CUDA_SUCCESS;
}

int __cudaLaunchKernel(void *kernel, struct dim3 grid, struct dim3 block, void **arguments,
                       size_t shared, void *stream)
{
    static _Atomic(void *) launch; /* whichever of the two there is */
    int (*call)(const void *, struct dim3, struct dim3, void **, size_t, void *);
    *(void **)&call = ibx_frontend_gvirtus(&launch, "__cudaLaunchKernel");
    if (!call)
        *(void **)&call = ibx_frontend_gvirtus(&launch, "cudaLaunchKernel");
    return call ? call(kernel, grid, block, arguments, shared, stream) : CUDA_NOT_SUPPORTED;
}
