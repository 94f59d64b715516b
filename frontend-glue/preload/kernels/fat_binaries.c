/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Modules that nvcc's code registers: fat binaries of images. */
#include "frontend-glue/preload/kernels/images.h"
#include "frontend-glue/preload/kernels/kernels.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include <string.h>

#define WRAPPER_MAGIC 0x466243b1u
#define MODULE_MAGIC  0xba55ed50u
#define FUNCTION      "vprintf" /* the symbol by which the code of a module calls printf */

/* The wrapper that nvcc's code passes, and the header of the fat binary. */
struct wrapper {
    uint32_t magic, version;
    const struct module *module;
};
struct module {
    uint32_t magic;
    uint16_t version, head;
    uint64_t rest;
};

static bool may_print(const struct wrapper *w)
{
    const struct module *m = w && w->magic == WRAPPER_MAGIC ? w->module : NULL;
    return m && m->magic == MODULE_MAGIC &&
           memmem(m, m->head + (size_t)m->rest, FUNCTION, strlen(FUNCTION));
}

void **__cudaRegisterFatBinary(void *compressed)
{
    __typeof__(&__cudaRegisterFatBinary) next = NEXT(__cudaRegisterFatBinary);
    struct ibx_image_wrapper *expanded = ibx_image_expand_wrapped(compressed);
    void *wrapper = expanded ? expanded : compressed;
    void **handle = next ? next(wrapper) : NULL;
    if (ibx_image_lacks_cubin(wrapper))
        ibx_frontend_kernels_unknown();
    ibx_frontend_module_registered(wrapper, handle, expanded);
    if (!handle)
        ibx_image_free_wrapped(expanded);
    else if (may_print(wrapper))
        ibx_frontend_prints();
    return handle;
}
