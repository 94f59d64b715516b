/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Extension requests about tensor maps, which the driver makes from numbers: nothing is read or
 * written at the addresses in them. */
#include "frontend-glue/extensions/extensions.h"

#include "gpudirect/cuda.h"

#include <stdalign.h>

#define SLOTS IBX_EXT_TENSOR_RANK

/* CUtensorMap */
struct map {
    alignas(64) uint8_t bytes[IBX_EXT_TENSOR_MAP_BYTES];
};

/* 0, or the exit code of the request: its bytes are wrong, or there is no driver. */
static int begins(const struct extension_request *e)
{
    return !whole(e) ? CUDA_INVALID_VALUE : ready(e) ? 0 : CUDA_NOT_SUPPORTED;
}

/* The fields of a request; its arrays have all slots, whatever the rank. */
struct tensor {
    uint32_t kind, rank, channels, pixels;
    int type, interleave, mode, swizzle, promotion, fill;
    void *at;
    uint64_t sizes[SLOTS], pitches[SLOTS - 1];
    uint32_t first[SLOTS], second[SLOTS], steps[SLOTS];
};

static void slots_in(struct extension_request *e, uint32_t slots[SLOTS])
{
    for (size_t i = 0; i < SLOTS; i++)
        slots[i] = ibx_get_u32(&e->in);
}

static void tensor_in(struct extension_request *e, struct tensor *t)
{
    t->kind = ibx_get_u32(&e->in);
    t->type = (int)ibx_get_u32(&e->in);
    t->rank = ibx_get_u32(&e->in);
    t->at = pointer(&e->in);
    for (size_t i = 0; i < SLOTS; i++)
        t->sizes[i] = ibx_get_u64(&e->in);
    for (size_t i = 0; i < SLOTS - 1; i++)
        t->pitches[i] = ibx_get_u64(&e->in);
    slots_in(e, t->first);
    slots_in(e, t->second);
    t->channels = ibx_get_u32(&e->in);
    t->pixels = ibx_get_u32(&e->in);
    slots_in(e, t->steps);
    t->interleave = (int)ibx_get_u32(&e->in);
    t->mode = (int)ibx_get_u32(&e->in);
    t->swizzle = (int)ibx_get_u32(&e->in);
    t->promotion = (int)ibx_get_u32(&e->in);
    t->fill = (int)ibx_get_u32(&e->in);
}

/* The driver's function is NULL in older drivers. */
static int tiled(const struct tensor *t, struct map *map)
{
    int (*encode)(struct map * map, int type, uint32_t rank, void *at, const uint64_t *sizes,
                  const uint64_t *pitches, const uint32_t *box, const uint32_t *steps,
                  int interleave, int swizzle, int promotion, int fill);
    *(void **)&encode = ibx_cuda_symbol("cuTensorMapEncodeTiled");
    return encode ? encode(map, t->type, t->rank, t->at, t->sizes, t->pitches, t->first, t->steps,
                           t->interleave, t->swizzle, t->promotion, t->fill)
                  : CUDA_NOT_SUPPORTED;
}

static int im2col(const struct tensor *t, struct map *map)
{
    int (*encode)(struct map * map, int type, uint32_t rank, void *at, const uint64_t *sizes,
                  const uint64_t *pitches, const int *lower, const int *upper, uint32_t channels,
                  uint32_t pixels, const uint32_t *steps, int interleave, int swizzle,
                  int promotion, int fill);
    int lower[SLOTS], upper[SLOTS];
    memcpy(lower, t->first, sizeof(lower));
    memcpy(upper, t->second, sizeof(upper));
    *(void **)&encode = ibx_cuda_symbol("cuTensorMapEncodeIm2col");
    return encode ? encode(map, t->type, t->rank, t->at, t->sizes, t->pitches, lower, upper,
                           t->channels, t->pixels, t->steps, t->interleave, t->swizzle,
                           t->promotion, t->fill)
                  : CUDA_NOT_SUPPORTED;
}

static int im2col_wide(const struct tensor *t, struct map *map)
{
    int (*encode)(struct map * map, int type, uint32_t rank, void *at, const uint64_t *sizes,
                  const uint64_t *pitches, int lower, int upper, uint32_t channels, uint32_t pixels,
                  const uint32_t *steps, int interleave, int mode, int swizzle, int promotion,
                  int fill);
    *(void **)&encode = ibx_cuda_symbol("cuTensorMapEncodeIm2colWide");
    return encode ? encode(map, t->type, t->rank, t->at, t->sizes, t->pitches, (int)t->first[0],
                           (int)t->second[0], t->channels, t->pixels, t->steps, t->interleave,
                           t->mode, t->swizzle, t->promotion, t->fill)
                  : CUDA_NOT_SUPPORTED;
}

static int encode(const struct tensor *t, struct map *map)
{
    switch (t->kind) {
    case IBX_EXT_TENSOR_TILED:
        return tiled(t, map);
    case IBX_EXT_TENSOR_IM2COL:
        return im2col(t, map);
    case IBX_EXT_TENSOR_IM2COL_WIDE:
        return im2col_wide(t, map);
    default:
        return CUDA_INVALID_VALUE;
    }
}

/* The driver reads as many elements of the arrays as the rank says. */
static int make(struct extension_request *e)
{
    struct tensor t;
    struct map map = {.bytes = {0}};
    tensor_in(e, &t);
    int rc = begins(e);
    if (!rc && (!t.rank || t.rank > SLOTS))
        rc = CUDA_INVALID_VALUE;
    if (!rc)
        rc = encode(&t, &map);
    if (!rc)
        ibx_put_bytes(&e->out, map.bytes, sizeof(map.bytes));
    return rc;
}

static int replace(struct extension_request *e)
{
    struct map map;
    int (*replace_address)(struct map * map, void *at);
    void *at = pointer(&e->in);
    const uint8_t *bytes = ibx_get_bytes(&e->in, sizeof(map.bytes));
    int rc = begins(e);
    if (rc)
        return rc;
    memcpy(map.bytes, bytes, sizeof(map.bytes));
    *(void **)&replace_address = ibx_cuda_symbol("cuTensorMapReplaceAddress");
    rc = replace_address ? replace_address(&map, at) : CUDA_NOT_SUPPORTED;
    if (!rc)
        ibx_put_bytes(&e->out, map.bytes, sizeof(map.bytes));
    return rc;
}

const struct extension_call ibx_tensor_extensions[IBX_EXT_REQUESTS] = {
    [IBX_EXT_TENSOR_MAP] = {NULL, make},
    [IBX_EXT_TENSOR_ADDRESS] = {NULL, replace},
};
