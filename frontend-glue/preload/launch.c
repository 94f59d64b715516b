/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * nvcc 13 makes two calls of <<<>>> that no generation of GVirtuS has: one for a handle of the
 * kernel, one to launch it. Here the handle is the function itself, as cudaLaunchKernel() takes it,
 * which all generations since G2 have. A libcudart that has the two calls gets them.
 *
 * Launches with attributes, cooperative ones for instance, go in requests of our own. How long a
 * kernel's arguments are GVirtuS's front end knows: it writes a launch of the usual kind, which is
 * kept and not sent.
 */
#include "frontend-glue/preload/internal.h"

#define ATTRIBUTE_COOPERATIVE 2 /* cudaLaunchAttributeID */

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

static __typeof__(&__cudaLaunchKernel) plain_launch(void)
{
    static _Atomic(void *) launch;
    __typeof__(&__cudaLaunchKernel) next = NULL;
    *(void **)&next = ibx_frontend_next(&launch, "cudaLaunchKernel");
    return next;
}

/* The body of a plain launch, as GVirtuS's front end writes it; NULL: *rc is the error. */
static const void *body_of(const struct launch_config *config, const void *function,
                           void **arguments, size_t *n, int *rc)
{
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    __typeof__(&__cudaLaunchKernel) write_launch = plain_launch();
    if (!calls || !calls->divert()) {
        ibx_frontend_connect();
        calls = ibx_frontend_plugin();
        if (!calls || !calls->divert())
            write_launch = NULL;
    }
    *rc = write_launch ? write_launch((void *)(uintptr_t)function, config->grid, config->block,
                                      arguments, config->shared, config->stream)
                       : CUDA_NOT_SUPPORTED;
    const void *body = write_launch ? calls->diverted(n) : NULL;
    if (!body && !*rc) /* it is too long */
        *rc = CUDA_NOT_SUPPORTED;
    return *rc ? NULL : body;
}

int cudaLaunchKernelExC(const struct launch_config *config, const void *function, void **arguments)
{
    struct extra e;
    size_t n;
    int rc;
    __typeof__(&__cudaLaunchKernel) launch = plain_launch();
    if (!config || (config->count && !config->attributes))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (!config->count)
        return launch ? launch((void *)(uintptr_t)function, config->grid, config->block, arguments,
                               config->shared, config->stream)
                      : CUDA_NOT_SUPPORTED;
    const void *body = body_of(config, function, arguments, &n, &rc);
    if (!body)
        return ibx_frontend_fail(rc);
    ibx_frontend_extra_begin(&e, IBX_EXTRA_LAUNCH, "a launch with attributes");
    ibx_put_u16(&e.body, (uint16_t)(config->count * (4 + IBX_EXTRA_ATTRIBUTE)));
    for (unsigned i = 0; i < config->count && !e.body.failed; i++) {
        ibx_put_u32(&e.body, (uint32_t)config->attributes[i].id);
        ibx_put_bytes(&e.body, config->attributes[i].value, IBX_EXTRA_ATTRIBUTE);
    }
    ibx_put_bytes(&e.body, body, n);
    ibx_frontend_device_used();
    return ibx_frontend_extra(&e, NULL, 0);
}

int cudaLaunchCooperativeKernel(const void *function, struct dim3 grid, struct dim3 block,
                                void **arguments, size_t shared, void *stream)
{
    struct launch_attribute cooperative = {.id = ATTRIBUTE_COOPERATIVE};
    const int on = 1;
    memcpy(cooperative.value, &on, sizeof(on));
    const struct launch_config config = {grid, block, shared, stream, &cooperative, 1};
    return cudaLaunchKernelExC(&config, function, arguments);
}
