/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Modules that nvcc's code registers: fat binaries of images. */
#include "frontend-glue/preload/kernels/images.h"
#include "frontend-glue/preload/kernels/kernels.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define DEFERRED_LEAST   65536u /* bytes of a module, as many as it has when it is decompressed */
#define CAPABILITY_MAJOR 75     /* enum cudaDeviceAttr */
#define CAPABILITY_MINOR 76
#define WRAPPER_MAGIC    0x466243b1u
#define MODULE_MAGIC     0xba55ed50u
#define FUNCTION         "vprintf" /* the symbol by which the code of a module calls printf */

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

/* Not by CALL_NEXT: the loader may be held here, which a thread in its first call needs. */
static bool add_target(struct ibx_image_targets *t, int device)
{
    __typeof__(&cudaDeviceGetAttribute) get = NEXT(cudaDeviceGetAttribute);
    int major = 0, minor = 0;
    if (!get || get(&major, CAPABILITY_MAJOR, device) || get(&minor, CAPABILITY_MINOR, device) ||
        major <= 0 || minor < 0 || minor > 9)
        return false;
    t->of[t->count++] = 10 * (unsigned)major + (unsigned)minor;
    return true;
}

static void look_for_targets(struct ibx_image_targets *t)
{
    __typeof__(&cudaGetDeviceCount) count_devices = NEXT(cudaGetDeviceCount);
    int count = 0;
    bool good = count_devices && !count_devices(&count) && count <= (int)IBX_IMAGE_TARGETS;
    for (int i = 0; i < count && good; i++)
        good = add_target(t, i);
    if (!good)
        t->count = 0;
}

/* Without a lock, which a thread that the loader waits for might hold: several threads may look. */
const struct ibx_image_targets *ibx_frontend_targets(void)
{
    static const struct ibx_image_targets none;
    static _Atomic(const struct ibx_image_targets *) known;
    const struct ibx_image_targets *there = atomic_load(&known);
    struct ibx_image_targets *found = there ? NULL : calloc(1, sizeof(*found));
    if (!found)
        return there ? there : &none;
    look_for_targets(found);
    if (atomic_compare_exchange_strong(&known, &there, found))
        return found;
    free(found);
    return there;
}

struct ibx_image_wrapper *ibx_frontend_expand_module(const void *wrapper)
{
    size_t n;
    const uint8_t *fat = ibx_image_wrapped(wrapper, &n);
    return fat && ibx_image_is_compressed(fat, n)
               ? ibx_image_expand_wrapped(wrapper, ibx_frontend_targets())
               : NULL;
}

void ibx_frontend_module_begins(const void *wrapper)
{
    if (ibx_image_lacks_cubin(wrapper))
        ibx_frontend_kernels_unknown();
    if (may_print(wrapper))
        ibx_frontend_prints();
}

void **ibx_frontend_register_module(void *compressed)
{
    __typeof__(&__cudaRegisterFatBinary) next = NEXT(__cudaRegisterFatBinary);
    struct ibx_image_wrapper *expanded = ibx_frontend_expand_module(compressed);
    void *wrapper = expanded ? expanded : compressed;
    void **handle = next ? next(wrapper) : NULL;
    ibx_frontend_module_registered(wrapper, handle, expanded);
    if (handle)
        ibx_frontend_module_begins(wrapper);
    else
        ibx_image_free_wrapped(expanded);
    return handle;
}

/* Whether it need not be registered before one of its kernels is needed. Programs that were built
 * before CUDA 12 may register textures with the handle that GVirtuS returns. */
static bool may_be_deferred(const void *wrapper)
{
    struct ibx_image_entry e;
    uint64_t bytes = 0;
    size_t n = 0, at = IBX_IMAGE_FAT_HEAD;
    const uint8_t *fat = ibx_image_wrapped(wrapper, &n);
    while (fat && at < n && bytes < DEFERRED_LEAST && ibx_image_next(fat, n, &at, &e))
        bytes += e.uncompressed_n > e.n ? e.uncompressed_n : e.n;
    return bytes >= DEFERRED_LEAST && !ibx_frontend_before_13();
}

static bool is_back_end_gone(void)
{
    __typeof__(&cudaDeviceSynchronize) synchronize = NEXT(cudaDeviceSynchronize);
    return synchronize && synchronize() == CUDA_UNKNOWN;
}

/* GVirtuS uses the handle at the module's end, even if it is null. So a program that is registering
 * its modules when the back end ends gets one, and its first call fails. */
void **__cudaRegisterFatBinary(void *compressed)
{
    if (may_be_deferred(compressed) && ibx_frontend_module_deferred(compressed))
        return compressed;
    void **handle = ibx_frontend_register_module(compressed);
    return handle || !is_back_end_gone() ? handle : compressed;
}

void __cudaRegisterFatBinaryEnd(void **handle)
{
    __typeof__(&__cudaRegisterFatBinaryEnd) next = NEXT(__cudaRegisterFatBinaryEnd);
    void **there;
    if (next && ibx_frontend_module_there(handle, &there))
        next(there);
}
