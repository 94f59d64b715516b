/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Descriptors of cuBLASLt. They are made for one call, from the attributes that the client has sent
 * (session/math_descriptors.h), in memory of the call: the library keeps no pointer to them. Only
 * attributes that this code knows are set, because others may be addresses in host memory.
 */
#include "frontend-glue/device_calls/device_calls.h"
#include "frontend-glue/device_calls/math_descriptors.h"
#include "frontend-glue/session/math_calls.h"

#include <stdatomic.h>
#include <string.h>

#define INVALID_VALUE 7
#define NOT_SUPPORTED 15

enum step { BEGINS, SETS, STEPS };

/* NULL: the library has no function of that name. */
static void *function_of(enum ibx_descriptor_type type, enum step step)
{
    static const char *const names[IBX_DESCRIPTOR_TYPES][STEPS] = {
        [IBX_DESCRIPTOR_LAYOUT] = {"cublasLtMatrixLayoutInit_internal",
                                   "cublasLtMatrixLayoutSetAttribute"},
        [IBX_DESCRIPTOR_MATMUL] = {"cublasLtMatmulDescInit_internal",
                                   "cublasLtMatmulDescSetAttribute"},
        [IBX_DESCRIPTOR_TRANSFORM] = {"cublasLtMatrixTransformDescInit_internal",
                                      "cublasLtMatrixTransformDescSetAttribute"},
        [IBX_DESCRIPTOR_PREFERENCE] = {"cublasLtMatmulPreferenceInit_internal",
                                       "cublasLtMatmulPreferenceSetAttribute"},
    };
    static _Atomic(void *) known[IBX_DESCRIPTOR_TYPES][STEPS];
    void *function = atomic_load_explicit(&known[type][step], memory_order_acquire);
    if (!function && (function = ibx_math_symbol(IBX_MATH_cublasLtMatmul, names[type][step])))
        atomic_store_explicit(&known[type][step], function, memory_order_release);
    return function;
}

static int begin(const struct ibx_descriptor *d, void *made)
{
    const uint64_t first = ibx_descriptor_value(d->type, d->bytes, d->n, 0);
    int (*layout)(void *at, size_t n, int type, uint64_t rows, uint64_t columns, int64_t pitch);
    int (*matmul)(void *at, size_t n, int compute, int scale);
    int (*transform)(void *at, size_t n, int scale);
    int (*preference)(void *at, size_t n);
    void *function = function_of(d->type, BEGINS);
    if (!function)
        return NOT_SUPPORTED;
    switch (d->type) {
    case IBX_DESCRIPTOR_LAYOUT:
        *(void **)&layout = function;
        return layout(made, ibx_descriptor_room(d->type), (int)first,
                      ibx_descriptor_value(d->type, d->bytes, d->n, IBX_LAYOUT_ROWS),
                      ibx_descriptor_value(d->type, d->bytes, d->n, IBX_LAYOUT_COLUMNS),
                      (int64_t)ibx_descriptor_value(d->type, d->bytes, d->n, IBX_LAYOUT_PITCH));
    case IBX_DESCRIPTOR_MATMUL:
        *(void **)&matmul = function;
        return matmul(made, ibx_descriptor_room(d->type), (int)first,
                      (int)ibx_descriptor_value(d->type, d->bytes, d->n, IBX_MATMUL_SCALE_TYPE));
    case IBX_DESCRIPTOR_TRANSFORM:
        *(void **)&transform = function;
        return transform(made, ibx_descriptor_room(d->type), (int)first);
    default:
        *(void **)&preference = function;
        return preference(made, ibx_descriptor_room(d->type));
    }
}

/* Whether the client may have the device use that address. */
static bool allowed(struct gpu_session *x, uint64_t at)
{
    return !at || ibx_isolation_is_memory(x, at, 1);
}

int ibx_descriptor_make(struct gpu_session *x, const struct ibx_descriptor *d, bool works,
                        void *made)
{
    int (*set)(void *at, unsigned attribute, const void *value, size_t n) = NULL;
    const struct ibx_attribute *attribute;
    uint64_t value;
    memset(made, 0, ibx_descriptor_room(d->type));
    *(void **)&set = function_of(d->type, SETS);
    if (!ibx_descriptor_good(d->type, d->bytes, d->n))
        return INVALID_VALUE;
    int status = set ? begin(d, made) : NOT_SUPPORTED;
    for (size_t i = 0;
         !status && ibx_descriptor_each(d->type, d->bytes, d->n, i, &attribute, &value); i++) {
        if (works && attribute->use == IBX_ATTRIBUTE_DEVICE && !allowed(x, value))
            return INVALID_VALUE;
        if (attribute->use == IBX_ATTRIBUTE_PLAIN || attribute->use == IBX_ATTRIBUTE_DEVICE)
            status = set(made, attribute->number, &value, attribute->size);
    }
    return status;
}
