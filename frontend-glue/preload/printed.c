/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What kernels print by printf, which the driver writes at the back end. A program that has a
 * module which calls it fetches that behind each call that waits, as CUDA writes it then.
 */
#include "frontend-glue/preload/images.h"
#include "frontend-glue/preload/internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define WRAPPER_MAGIC 0x466243b1u
#define MODULE_MAGIC  0xba55ed50u
#define FUNCTION      "vprintf" /* by which name a module's code calls it */

/* As nvcc's code passes a module, and its beginning. */
struct wrapper {
    uint32_t magic, version;
    const struct module *module;
};
struct module {
    uint32_t magic;
    uint16_t version, head;
    uint64_t rest;
};

static atomic_bool prints; /* a module of this program's */

static bool may_print(const struct wrapper *w)
{
    const struct module *m = w && w->magic == WRAPPER_MAGIC ? w->module : NULL;
    return m && m->magic == MODULE_MAGIC &&
           memmem(m, m->head + (size_t)m->rest, FUNCTION, strlen(FUNCTION));
}

/* One reply of it: whether there may be more. */
static bool fetch(bool all)
{
    struct extra e;
    uint8_t bytes[4 + IBX_EXTRA_PRINTED_MOST] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    int code;
    ibx_frontend_extra_begin(&e, IBX_EXTRA_PRINTED, "printf of a kernel");
    ibx_put_u8(&e.body, all);
    if (!ibx_frontend_extra_try(&e, bytes, sizeof(bytes), &code))
        return false;
    if (code < 0 || code == CUDA_NOT_SUPPORTED)
        atomic_store(&prints, false);
    const uint32_t n = ibx_get_u32(&r);
    if (code || n > IBX_EXTRA_PRINTED_MOST)
        return false;
    fwrite(ibx_get_bytes(&r, n), 1, n, stdout);
    return n == IBX_EXTRA_PRINTED_MOST;
}

static bool asks(void)
{
    return atomic_load_explicit(&prints, memory_order_relaxed) && !ibx_frontend_capturing();
}

void ibx_frontend_printed(void)
{
    if (!asks())
        return;
    const int before = errno;
    bool more = fetch(true);
    while (more)
        more = fetch(false);
    errno = before;
}

void ibx_frontend_print_all(void)
{
    if (asks())
        cudaDeviceSynchronize();
}

/* So that the back end keeps what it prints from the first launch on. */
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
    else if (may_print(wrapper) && !atomic_exchange(&prints, true))
        fetch(false);
    return handle;
}
