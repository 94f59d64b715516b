/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Tensor maps, by which kernels copy blocks of memory (TMA). A map is 128 bytes in the program's
 * memory, which the program passes to kernels as an argument. Only NVIDIA's driver knows the layout
 * of these bytes, so the back end's driver makes them from the parameters of the call. Their
 * addresses are the back end's, as in kernels. CUDA's header wants maps to be aligned to 64 bytes;
 * the driver takes them at any address (580, on an H200), and those of cuda-python are at multiples
 * of 16.
 */
#include "frontend-glue/driver_api/driver.h"

struct map {
    enum ibx_extension_tensor_map kind;
    int type;
    unsigned rank;
    const void *at;
    const uint64_t *sizes, *pitches;    /* rank of them, and rank - 1 */
    const void *first, *second;         /* corners, of 4 bytes each */
    unsigned first_count, second_count; /* of these corners */
    unsigned channels, pixels;
    const uint32_t *steps; /* rank of them */
    int interleave, mode, swizzle, promotion, fill;
};

static void put_long(struct ibx_writer *w, const uint64_t *from, unsigned n, unsigned slots)
{
    for (unsigned i = 0; i < slots; i++)
        ibx_put_u64(w, i < n ? from[i] : 0);
}

/* The arrays are of int or of unsigned. */
static void put_short(struct ibx_writer *w, const void *from, unsigned n)
{
    for (unsigned i = 0; i < IBX_EXT_TENSOR_RANK; i++) {
        uint32_t value = 0;
        if (i < n)
            memcpy(&value, (const uint8_t *)from + i * sizeof(value), sizeof(value));
        ibx_put_u32(w, value);
    }
}

static int ask(const struct extension_request *e, void *map)
{
    uint8_t bytes[IBX_EXT_TENSOR_MAP_BYTES];
    const int rc = ibx_frontend_request_make(e, bytes, sizeof(bytes));
    if (!rc)
        memcpy(map, bytes, sizeof(bytes));
    return rc;
}

static int encode(void *map, const struct map *m, const char *call)
{
    const bool is_wide = m->kind == IBX_EXT_TENSOR_IM2COL_WIDE;
    const unsigned least = m->kind == IBX_EXT_TENSOR_TILED ? 1 : 3;
    struct extension_request e;
    if (!map || m->rank < least || m->rank > IBX_EXT_TENSOR_RANK || !m->sizes ||
        (m->rank > 1 && !m->pitches) || !m->first || (!m->second && m->second_count) || !m->steps)
        return CUDA_INVALID_VALUE;
    ibx_frontend_request_begin(&e, IBX_EXT_TENSOR_MAP, call);
    ibx_put_u32(&e.body, (uint32_t)m->kind);
    ibx_put_u32(&e.body, (uint32_t)m->type);
    ibx_put_u32(&e.body, m->rank);
    ibx_put_u64(&e.body, (uintptr_t)m->at);
    put_long(&e.body, m->sizes, m->rank, IBX_EXT_TENSOR_RANK);
    put_long(&e.body, m->pitches, m->rank - 1, IBX_EXT_TENSOR_RANK - 1);
    put_short(&e.body, m->first, m->first_count);
    put_short(&e.body, m->second, m->second_count);
    ibx_put_u32(&e.body, m->channels);
    ibx_put_u32(&e.body, m->pixels);
    put_short(&e.body, m->steps, m->rank);
    ibx_put_u32(&e.body, (uint32_t)m->interleave);
    ibx_put_u32(&e.body, is_wide ? (uint32_t)m->mode : 0);
    ibx_put_u32(&e.body, (uint32_t)m->swizzle);
    ibx_put_u32(&e.body, (uint32_t)m->promotion);
    ibx_put_u32(&e.body, (uint32_t)m->fill);
    return ask(&e, map);
}

EXPORTED int cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *at,
                                    const uint64_t *sizes, const uint64_t *pitches,
                                    const uint32_t *box, const uint32_t *steps, int interleave,
                                    int swizzle, int promotion, int fill)
{
    const struct map m = {.kind = IBX_EXT_TENSOR_TILED,
                          .type = type,
                          .rank = rank,
                          .at = at,
                          .sizes = sizes,
                          .pitches = pitches,
                          .first = box,
                          .first_count = rank,
                          .steps = steps,
                          .interleave = interleave,
                          .swizzle = swizzle,
                          .promotion = promotion,
                          .fill = fill};
    return ANYWHERE(encode(map, &m, "cuTensorMapEncodeTiled"));
}

/* The corners are of the dimensions between the innermost and the outermost. */
EXPORTED int cuTensorMapEncodeIm2col(void *map, int type, unsigned rank, void *at,
                                     const uint64_t *sizes, const uint64_t *pitches,
                                     const int *lower, const int *upper, unsigned channels,
                                     unsigned pixels, const uint32_t *steps, int interleave,
                                     int swizzle, int promotion, int fill)
{
    const unsigned corners = rank > 2 ? rank - 2 : 0;
    const struct map m = {.kind = IBX_EXT_TENSOR_IM2COL,
                          .type = type,
                          .rank = rank,
                          .at = at,
                          .sizes = sizes,
                          .pitches = pitches,
                          .first = lower,
                          .second = upper,
                          .first_count = corners,
                          .second_count = corners,
                          .channels = channels,
                          .pixels = pixels,
                          .steps = steps,
                          .interleave = interleave,
                          .swizzle = swizzle,
                          .promotion = promotion,
                          .fill = fill};
    return ANYWHERE(encode(map, &m, "cuTensorMapEncodeIm2col"));
}

EXPORTED int cuTensorMapEncodeIm2colWide(void *map, int type, unsigned rank, void *at,
                                         const uint64_t *sizes, const uint64_t *pitches, int lower,
                                         int upper, unsigned channels, unsigned pixels,
                                         const uint32_t *steps, int interleave, int mode,
                                         int swizzle, int promotion, int fill)
{
    const struct map m = {.kind = IBX_EXT_TENSOR_IM2COL_WIDE,
                          .type = type,
                          .rank = rank,
                          .at = at,
                          .sizes = sizes,
                          .pitches = pitches,
                          .first = &lower,
                          .second = &upper,
                          .first_count = 1,
                          .second_count = 1,
                          .channels = channels,
                          .pixels = pixels,
                          .steps = steps,
                          .interleave = interleave,
                          .mode = mode,
                          .swizzle = swizzle,
                          .promotion = promotion,
                          .fill = fill};
    return ANYWHERE(encode(map, &m, "cuTensorMapEncodeIm2colWide"));
}

static int replace(void *map, const void *at)
{
    struct extension_request e;
    if (!map)
        return CUDA_INVALID_VALUE;
    ibx_frontend_request_begin(&e, IBX_EXT_TENSOR_ADDRESS, "cuTensorMapReplaceAddress");
    ibx_put_u64(&e.body, (uintptr_t)at);
    ibx_put_bytes(&e.body, map, IBX_EXT_TENSOR_MAP_BYTES);
    return ask(&e, map);
}

EXPORTED int cuTensorMapReplaceAddress(void *map, void *at)
{
    return ANYWHERE(replace(map, at));
}
