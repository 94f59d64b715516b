/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Words in memory that streams write, and wait for. They are in memory of the device, or in
 * page-locked memory if kernels access the pages that the program has (over shm). Over other paths
 * a stream would wait for a word of the back end's, which the program never writes.
 *
 * A stream that waits keeps no call of the program waiting, unless that call waits for the stream
 * natively, too. Copies between host and device behind the wait are made as those behind a host
 * function (preload/copies/memcpy.c), with the same limits.
 */
#include "frontend-glue/preload/memory/managed.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/streams/streams.h"
#include "frontend-glue/driver_api/driver.h"

#define BATCH_MOST     256u       /* operations of a batch are fewer */
#define CONDITION_LAST 3u         /* CU_STREAM_WAIT_VALUE_NOR */
#define WAIT_AND_FLUSH (1u << 30) /* CU_STREAM_WAIT_VALUE_FLUSH */

/* CUstreamBatchMemOpType, apart from those of the request */
enum { FLUSH = 3, BARRIER = 6 };

/* CUstreamBatchMemOpParams */
struct operation {
    int type;
    unsigned flags; /* of FLUSH and BARRIER */
    uint64_t address, value;
    unsigned value_flags;
    uint64_t rest[2];
};
_Static_assert(sizeof(struct operation) == 48, "CUDA's layout");

static bool is_wide(int type)
{
    return type == IBX_VALUE_WAIT_64 || type == IBX_VALUE_WRITE_64;
}

static int check_flags(int type, unsigned flags)
{
    switch (type) {
    case IBX_VALUE_WAIT_32:
    case IBX_VALUE_WAIT_64:
        if (flags & WAIT_AND_FLUSH)
            return CUDA_NOT_SUPPORTED;
        return flags > CONDITION_LAST ? CUDA_INVALID_VALUE : CUDA_SUCCESS;
    case IBX_VALUE_WRITE_32:
    case IBX_VALUE_WRITE_64:
        return flags ? CUDA_INVALID_VALUE : CUDA_SUCCESS; /* NO_MEMORY_BARRIER is of CUDA 11's */
    default:
        return CUDA_INVALID_VALUE;
    }
}

/* CUDA takes no managed memory. Page-locked memory has to be the back end's as well. */
static int check_address(int type, uint64_t address)
{
    struct managed managed;
    struct range range;
    if (!address || address % (is_wide(type) ? 8 : 4))
        return CUDA_INVALID_VALUE;
    if (ibx_managed_find(address, &managed))
        return managed.in_place || managed.mapped ? CUDA_NOT_SUPPORTED : CUDA_INVALID_VALUE;
    return ibx_frontend_host_try((const void *)(uintptr_t)address, &range);
}

static int check(int type, uint64_t address, unsigned flags)
{
    const int rc = check_flags(type, flags);
    return rc ? rc : check_address(type, address);
}

/* The operation was checked. */
static int add(void *stream, int type, uint64_t address, uint64_t value, unsigned flags)
{
    struct extension_request e;
    if (type == IBX_VALUE_WAIT_32 || type == IBX_VALUE_WAIT_64)
        ibx_frontend_word_awaited();
    ibx_frontend_stream_used(stream);
    ibx_frontend_request_begin(&e, IBX_EXT_STREAM_VALUE, "cuStreamWaitValue32");
    ibx_put_u64(&e.body, address);
    ibx_put_u64(&e.body, value);
    ibx_put_u32(&e.body, (uint32_t)type);
    ibx_put_u32(&e.body, flags);
    ibx_put_u64(&e.body, (uintptr_t)stream);
    ibx_frontend_device_used();
    return ibx_frontend_request_make(&e, NULL, 0);
}

static int add_one(void *stream, int type, uint64_t address, uint64_t value, unsigned flags)
{
    const int rc = check(type, address, flags);
    return rc ? rc : add(stream, type, address, value, flags);
}

static int check_one(const struct operation *o)
{
    switch (o->type) {
    case FLUSH:
        return CUDA_NOT_SUPPORTED;
    case BARRIER:
        return o->flags > 1 ? CUDA_INVALID_VALUE : CUDA_SUCCESS;
    default:
        return check(o->type, o->address, o->value_flags);
    }
}

/* A batch that is refused must not leave a wait in the stream, so all of it is checked first. */
static int add_all(void *stream, unsigned count, const struct operation *all, unsigned flags)
{
    int rc = flags || count >= BATCH_MOST || (count && !all) ? CUDA_INVALID_VALUE : CUDA_SUCCESS;
    for (unsigned i = 0; i < count && !rc; i++)
        rc = check_one(&all[i]);
    for (unsigned i = 0; i < count && !rc; i++) {
        const struct operation *o = &all[i];
        if (o->type != BARRIER) /* what comes next in the stream comes after it anyway */
            rc = add(stream, o->type, o->address, is_wide(o->type) ? o->value : (uint32_t)o->value,
                     o->value_flags);
    }
    return rc;
}

#define VALUE(call, type, number)                                                                  \
    EXPORTED int call(void *stream, uint64_t address, number value, unsigned flags)                \
    {                                                                                              \
        return IN_CONTEXT_OF(stream, add_one(stream, type, address, value, flags));                \
    }                                                                                              \
    SAME_AS(call##_v2, call)                                                                       \
    EXPORTED int call##_ptsz(void *stream, uint64_t address, number value, unsigned flags)         \
    {                                                                                              \
        return call(ibx_frontend_own(stream), address, value, flags);                              \
    }                                                                                              \
    SAME_AS(call##_v2_ptsz, call##_ptsz)

VALUE(cuStreamWaitValue32, IBX_VALUE_WAIT_32, uint32_t)
VALUE(cuStreamWaitValue64, IBX_VALUE_WAIT_64, uint64_t)
VALUE(cuStreamWriteValue32, IBX_VALUE_WRITE_32, uint32_t)
VALUE(cuStreamWriteValue64, IBX_VALUE_WRITE_64, uint64_t)

EXPORTED int cuStreamBatchMemOp(void *stream, unsigned count, const struct operation *all,
                                unsigned flags)
{
    return IN_CONTEXT_OF(stream, add_all(stream, count, all, flags));
}

EXPORTED int cuStreamBatchMemOp_ptsz(void *stream, unsigned count, const struct operation *all,
                                     unsigned flags)
{
    return cuStreamBatchMemOp(ibx_frontend_own(stream), count, all, flags);
}

SAME_AS(cuStreamBatchMemOp_v2, cuStreamBatchMemOp)
SAME_AS(cuStreamBatchMemOp_v2_ptsz, cuStreamBatchMemOp_ptsz)
