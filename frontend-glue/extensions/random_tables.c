/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Tables of cuRAND, which the library has in memory of the host. They are copied to memory of the
 * client's on the device. */
#include "frontend-glue/extensions/extensions.h"
#include "frontend-glue/device_calls/math_descriptors.h"
#include "frontend-glue/session/math_calls.h"

#define FIRST_SET 101 /* curandDirectionVectorSet_t */

static void *symbol(const char *name)
{
    return ibx_math_symbol(IBX_MATH_curandGetVersion, name);
}

/* Returns the library's status, or CUDA_NOT_SUPPORTED below 0: there is no such function. */
static int find_table(enum ibx_extension_table table, const void **at)
{
    int (*vectors)(const void **at, int set) = NULL;
    int (*constants)(const void **at) = NULL;
    const bool wide = table >= IBX_TABLE_VECTORS_64 && table != IBX_TABLE_CONSTANTS_32;
    if (table < IBX_TABLE_CONSTANTS_32) {
        *(void **)&vectors =
            symbol(wide ? "curandGetDirectionVectors64" : "curandGetDirectionVectors32");
        return vectors ? vectors(at, FIRST_SET + (int)table) : -CUDA_NOT_SUPPORTED;
    }
    *(void **)&constants =
        symbol(wide ? "curandGetScrambleConstants64" : "curandGetScrambleConstants32");
    return constants ? constants(at) : -CUDA_NOT_SUPPORTED;
}

struct table {
    uint64_t to;
    const void *from;
    size_t n;
};

static int copy(struct extension_request *e, void *of)
{
    const struct table *t = of;
    return e->x->cuda->memcpy_to_device(t->to, t->from, t->n);
}

static int random_table(struct extension_request *e)
{
    const uint32_t table = ibx_get_u32(&e->in);
    const uint64_t to = ibx_get_u64(&e->in);
    const void *from = NULL;
    if (!whole(e) || table >= IBX_TABLES)
        return CUDA_INVALID_VALUE;
    const size_t n = ibx_table_bytes((enum ibx_extension_table)table);
    if (!mine(e, pointer_to(to), n))
        return CUDA_INVALID_VALUE;
    const int status =
        ready(e) ? find_table((enum ibx_extension_table)table, &from) : -CUDA_NOT_SUPPORTED;
    if (status < 0)
        return CUDA_NOT_SUPPORTED;
    const int rc = status ? 0 : ibx_extension_held(e, to, n, copy, &(struct table){to, from, n});
    ibx_put_u32(&e->out, (uint32_t)status);
    return rc;
}

const struct extension_call ibx_table_extensions[IBX_EXT_REQUESTS] = {
    [IBX_EXT_RANDOM_TABLE] = {NULL, random_table},
};
