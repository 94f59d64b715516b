/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Contexts of a part of a device (green contexts): some of its multiprocessors. Here such a context
 * is that of its device under another name, as every other one is, and its streams are streams: its
 * kernels may run on all multiprocessors, which a line says once. What a program asks for is
 * divided as CUDA divides it, in pieces that a processor of that kind can have.
 */
#include "frontend-glue/driver_api/driver.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/streams/streams.h"

#include "common/log.h"

#define MULTIPROCESSORS  16
#define CAPABILITY_MAJOR 75
#define NOT_A_RESOURCE   914 /* CUDA_ERROR_INVALID_RESOURCE_TYPE */
#define NO_SUCH_PARTS    915 /* CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION */
#define MARK             0x69627867u
#define NON_BLOCKING     1u /* CU_STREAM_NON_BLOCKING */
#define DEFAULT_STREAM   1u /* CU_GREEN_CTX_DEFAULT_STREAM */

/* CUdevResourceType */
enum { NOTHING, OF_MULTIPROCESSORS };
/* Flags of a split: pieces need not be of neighbours, or are for large clusters. */
enum { IGNORE_NEIGHBOURS = 1, LARGE_CLUSTERS = 2 };

/* CUdevResource. The driver's own bytes begin with who has made it. */
struct resource {
    int type;
    unsigned mark;
    int device;
    uint8_t own[84];
    unsigned count, least, multiple; /* multiprocessors, and in how many a piece is counted */
    uint8_t reserved[36];
};
_Static_assert(sizeof(struct resource) == 144, "as CUDA has it");

/* CUdevResourceDesc: the device and the number, not an address. */
static void *description_of(int device, unsigned count)
{
    return (void *)(((uintptr_t)(unsigned)device + 1) << 32 | count);
}

/* How many multiprocessors a piece has at least, and by how many it grows. */
static void set_pieces(struct resource *r, int major, unsigned flags)
{
    const bool is_fine = flags & IGNORE_NEIGHBOURS || major < 9;
    r->least = !is_fine ? 8 : major == 8 && !(flags & IGNORE_NEIGHBOURS) ? 4 : major < 7 ? 1 : 2;
    r->multiple = !is_fine ? 8 : major < 7 ? 1 : 2;
}

static int resource_of(struct resource *r, int device, unsigned count, unsigned flags)
{
    int major = 0;
    const int rc = ibx_driver_attribute(&major, CAPABILITY_MAJOR, device);
    if (rc)
        return rc;
    *r = (struct resource){
        .type = OF_MULTIPROCESSORS, .mark = MARK, .device = device, .count = count};
    set_pieces(r, major, flags);
    return CUDA_SUCCESS;
}

static int resource_of_device(struct resource *r, int device, int type)
{
    int count = 0, rc = ibx_driver_check_device(device);
    if (rc || !r)
        return rc ? rc : CUDA_INVALID_VALUE;
    if (type != OF_MULTIPROCESSORS)
        return NOT_A_RESOURCE;
    rc = ibx_driver_attribute(&count, MULTIPROCESSORS, device);
    return rc ? rc : resource_of(r, device, (unsigned)count, 0);
}

EXPORTED int cuDeviceGetDevResource(int device, struct resource *r, int type)
{
    return ANYWHERE(resource_of_device(r, device, type));
}

/* Of any context. */
static int resource_of_context(const void *context, struct resource *r, int type)
{
    const unsigned count = context ? ibx_driver_part(context) : 0;
    if (!context || !ibx_driver_is_context(context))
        return CUDA_INVALID_CONTEXT;
    const int device = ibx_driver_device_of(context);
    const int rc = resource_of_device(r, device, type);
    return rc || !count ? rc : resource_of(r, device, count, 0);
}

EXPORTED int cuCtxGetDevResource(const void *context, struct resource *r, int type)
{
    return ANYWHERE(resource_of_context(context, r, type));
}

EXPORTED int cuGreenCtxGetDevResource(const void *context, struct resource *r, int type)
{
    return ANYWHERE(ibx_driver_part(context) ? resource_of_context(context, r, type)
                                             : CUDA_INVALID_CONTEXT);
}

/* ----------------------------------------------------------------------------- parts of it */

static bool is_resource(const struct resource *r)
{
    return r && r->mark == MARK && r->type == OF_MULTIPROCESSORS;
}

/* `parts` may be NULL: then only their number is wanted. */
static int split(struct resource *parts, unsigned *n, const struct resource *whole,
                 struct resource *rest, unsigned flags, unsigned least)
{
    struct resource part;
    if (!n || !whole || flags & ~(unsigned)(IGNORE_NEIGHBOURS | LARGE_CLUSTERS))
        return CUDA_INVALID_VALUE;
    if (!is_resource(whole))
        return NOT_A_RESOURCE;
    if (least > whole->count || (parts && !*n))
        return CUDA_INVALID_VALUE;
    const struct resource all = *whole; /* `rest` may be the same */
    const int rc = resource_of(&part, all.device, 0, flags);
    if (rc)
        return rc;
    part.count = least < part.least ? part.least : least;
    part.count = (part.count + part.multiple - 1) / part.multiple * part.multiple;
    const unsigned most = all.count / part.count, made = parts && *n < most ? *n : most;
    if (!made)
        return NO_SUCH_PARTS;
    for (unsigned i = 0; parts && i < made; i++)
        parts[i] = part;
    if (rest) {
        *rest = all;
        rest->count = all.count - made * part.count;
        rest->type = rest->count ? OF_MULTIPROCESSORS : NOTHING;
    }
    *n = made;
    return CUDA_SUCCESS;
}

EXPORTED int cuDevSmResourceSplitByCount(struct resource *parts, unsigned *n,
                                         const struct resource *whole, struct resource *rest,
                                         unsigned flags, unsigned least)
{
    return ANYWHERE(split(parts, n, whole, rest, flags, least));
}

static int describe(void **description, const struct resource *all, unsigned n)
{
    unsigned count = 0;
    if (!description || !all || !n)
        return CUDA_INVALID_VALUE;
    for (unsigned i = 0; i < n; i++) {
        if (!is_resource(&all[i]))
            return NOT_A_RESOURCE;
        if (all[i].device != all[0].device)
            return NO_SUCH_PARTS;
        count += all[i].count;
    }
    *description = description_of(all[0].device, count);
    return CUDA_SUCCESS;
}

EXPORTED int cuDevResourceGenerateDesc(void **description, const struct resource *all, unsigned n)
{
    return ANYWHERE(describe(description, all, n));
}

/* ----------------------------------------------------------------------------- the context */

static int create(void **context, const void *description, int device, unsigned flags)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    const unsigned count = (unsigned)(uintptr_t)description;
    int all = 0, rc = ibx_driver_check_device(device);
    rc = rc ? rc : ibx_driver_attribute(&all, MULTIPROCESSORS, device);
    if (rc)
        return rc;
    if (!context || flags != DEFAULT_STREAM || !count || count > (unsigned)all ||
        description != description_of(device, count))
        return CUDA_INVALID_VALUE;
    if (!atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN,
                "a context of %u multiprocessors: its kernels may run on all %d of the remote "
                "GPU, which is not divided",
                count, all);
    return ibx_driver_create_part(context, device, count);
}

EXPORTED int cuGreenCtxCreate(void **context, const void *description, int device, unsigned flags)
{
    return ANYWHERE(create(context, description, device, flags));
}

EXPORTED int cuGreenCtxDestroy(void *context)
{
    return ANYWHERE(ibx_driver_part(context) ? ibx_driver_destroy(context) : CUDA_INVALID_CONTEXT);
}

/* They have the same handle. */
EXPORTED int cuCtxFromGreenCtx(void **context, void *green)
{
    return ANYWHERE(!context                 ? CUDA_INVALID_VALUE
                    : ibx_driver_part(green) ? (*context = green, CUDA_SUCCESS)
                                             : CUDA_INVALID_CONTEXT);
}

EXPORTED int cuGreenCtxGetId(const void *context, unsigned long long *id)
{
    const void *c = context ? context : ibx_driver_current();
    return ANYWHERE(!id                  ? CUDA_INVALID_VALUE
                    : ibx_driver_part(c) ? (*id = ibx_driver_id(c), CUDA_SUCCESS)
                                         : CUDA_INVALID_CONTEXT);
}

/* ----------------------------------------------------------------------------- its streams */

/* The context that is current does not matter. */
static int create_stream(void **stream, const void *context, unsigned flags, int priority)
{
    if (!stream || (ibx_driver_part(context) && flags != NON_BLOCKING))
        return CUDA_INVALID_VALUE;
    const int before = ibx_frontend_current_device(), device = ibx_driver_device_of(context);
    int rc = before == device ? CUDA_SUCCESS : cudaSetDevice(device);
    if (!rc)
        rc = priority ? cudaStreamCreateWithPriority(stream, flags, priority)
                      : cudaStreamCreateWithFlags(stream, flags);
    if (!rc) /* while its device is selected, which is noted, too */
        ibx_frontend_owned(OWNED_STREAM, *stream, context);
    if (before != device)
        cudaSetDevice(before);
    return rc;
}

EXPORTED int cuGreenCtxStreamCreate(void **stream, const void *context, unsigned flags,
                                    int priority)
{
    return ANYWHERE(ibx_driver_part(context) ? create_stream(stream, context, flags, priority)
                                             : CUDA_INVALID_CONTEXT);
}

void *ibx_driver_part_of_stream(const void *stream)
{
    const void *context = (uintptr_t)stream > (uintptr_t)CUDA_STREAM_PER_THREAD
                              ? ibx_frontend_owner(OWNED_STREAM, stream)
                              : ibx_driver_current();
    return ibx_driver_part(context) ? (void *)(uintptr_t)context : NULL;
}

static int resource_of_stream(const void *stream, struct resource *r, int type)
{
    const void *part = ibx_driver_part_of_stream(stream);
    return part ? resource_of_context(part, r, type)
                : resource_of_device(r, ibx_frontend_device_of_stream(stream), type);
}

EXPORTED int cuStreamGetDevResource(const void *stream, struct resource *r, int type)
{
    return IN_CONTEXT_OF(stream, resource_of_stream(stream, r, type));
}

EXPORTED int cuStreamGetGreenCtx(const void *stream, void **context)
{
    return IN_CONTEXT_OF(stream, context
                                     ? (*context = ibx_driver_part_of_stream(stream), CUDA_SUCCESS)
                                     : CUDA_INVALID_VALUE);
}

/* --------------------------------------------------- the same by the runtime, from CUDA 13.1 on */

static int told(int rc)
{
    return rc ? ibx_frontend_fail(ibx_driver_result(rc)) : CUDA_SUCCESS;
}

/* An execution context is a green or a primary one. */
static int checked(const void *context)
{
    return context && ibx_driver_is_context(context) ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
}

EXPORTED int cudaDeviceGetDevResource(int device, struct resource *r, int type)
{
    return told(resource_of_device(r, device, type));
}

EXPORTED int cudaDevSmResourceSplitByCount(struct resource *parts, unsigned *n,
                                           const struct resource *whole, struct resource *rest,
                                           unsigned flags, unsigned least)
{
    return told(split(parts, n, whole, rest, flags, least));
}

EXPORTED int cudaDevResourceGenerateDesc(void **description, const struct resource *all, unsigned n)
{
    return told(describe(description, all, n));
}

EXPORTED int cudaGreenCtxCreate(void **context, const void *description, int device, unsigned flags)
{
    return told(flags ? CUDA_INVALID_VALUE : create(context, description, device, DEFAULT_STREAM));
}

EXPORTED int cudaDeviceGetExecutionCtx(void **context, int device)
{
    const int rc = ibx_driver_check_device(device);
    void *primary = ibx_driver_primary(device);
    if (!rc && context && primary)
        *context = primary;
    return told(rc ? rc : context && primary ? CUDA_SUCCESS : CUDA_INVALID_VALUE);
}

EXPORTED int cudaExecutionCtxDestroy(void *context)
{
    return told(ibx_driver_part(context) ? ibx_driver_destroy(context) : CUDA_INVALID_VALUE);
}

EXPORTED int cudaExecutionCtxGetDevResource(const void *context, struct resource *r, int type)
{
    const int rc = checked(context);
    return told(rc ? rc : resource_of_context(context, r, type));
}

EXPORTED int cudaExecutionCtxGetDevice(int *device, const void *context)
{
    const int rc = device ? checked(context) : CUDA_INVALID_VALUE;
    if (!rc)
        *device = ibx_driver_device_of(context);
    return told(rc);
}

EXPORTED int cudaExecutionCtxGetId(const void *context, unsigned long long *id)
{
    const int rc = id ? checked(context) : CUDA_INVALID_VALUE;
    if (!rc)
        *id = ibx_driver_id(context);
    return told(rc);
}

EXPORTED int cudaExecutionCtxStreamCreate(void **stream, const void *context, unsigned flags,
                                          int priority)
{
    const int rc = checked(context);
    return told(rc ? rc : create_stream(stream, context, flags, priority));
}

EXPORTED int cudaExecutionCtxSynchronize(const void *context)
{
    const int before = ibx_frontend_current_device();
    int rc = checked(context);
    if (rc)
        return told(rc);
    const int device = ibx_driver_device_of(context);
    rc = before == device ? CUDA_SUCCESS : cudaSetDevice(device);
    rc = rc ? rc : cudaDeviceSynchronize();
    if (before != device)
        cudaSetDevice(before);
    return told(rc);
}

EXPORTED int cudaStreamGetDevResource(const void *stream, struct resource *r, int type)
{
    return told(resource_of_stream(stream, r, type));
}
