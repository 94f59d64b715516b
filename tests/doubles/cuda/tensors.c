/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Tensor maps. A map of the double has the arguments of the call, one after the other. */
#include "tests/doubles/cuda/internal.h"

#include <string.h>

#define MAP_BYTES 128u
#define RANKS     5u

struct map {
    unsigned char *to;
    size_t n;
};

static void put(struct map *m, const void *from, size_t n)
{
    if (m->n + n <= MAP_BYTES)
        memcpy(m->to + m->n, from, n);
    m->n += n;
}

static void put_byte(struct map *m, unsigned value)
{
    const unsigned char byte = (unsigned char)value;
    put(m, &byte, 1);
}

static bool begins(struct map *m, void *map, unsigned kind, int type, unsigned rank, void *at,
                   const uint64_t *sizes, const uint64_t *pitches)
{
    const uint64_t address = (uintptr_t)at;
    *m = (struct map){map, 0};
    if (!map || (uintptr_t)map % 64 || rank < (kind ? 3 : 1) || rank > RANKS || address % 16 ||
        type < 0 || type > 15)
        return false;
    memset(map, 0, MAP_BYTES);
    put(m, &address, sizeof(address));
    put_byte(m, kind);
    put_byte(m, (unsigned)type);
    put_byte(m, rank);
    put(m, sizes, 8ul * rank);
    put(m, pitches, 8ul * (rank - 1));
    return true;
}

static int ends(struct map *m, int interleave, int swizzle, int promotion, int fill)
{
    put_byte(m, (unsigned)interleave);
    put_byte(m, (unsigned)swizzle);
    put_byte(m, (unsigned)promotion);
    put_byte(m, (unsigned)fill);
    return leave(SUCCESS);
}

EXPORT int cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *at,
                                  const uint64_t *sizes, const uint64_t *pitches,
                                  const uint32_t *box, const uint32_t *steps, int interleave,
                                  int swizzle, int promotion, int fill)
{
    struct map m;
    const int code = enter("cuTensorMapEncodeTiled");
    if (code)
        return code;
    if (!begins(&m, map, 0, type, rank, at, sizes, pitches))
        return leave(INVALID_VALUE);
    for (unsigned i = 0; i < rank; i++) {
        put_byte(&m, box[i]);
        put_byte(&m, steps[i]);
    }
    return ends(&m, interleave, swizzle, promotion, fill);
}

EXPORT int cuTensorMapEncodeIm2col(void *map, int type, unsigned rank, void *at,
                                   const uint64_t *sizes, const uint64_t *pitches, const int *lower,
                                   const int *upper, unsigned channels, unsigned pixels,
                                   const uint32_t *steps, int interleave, int swizzle,
                                   int promotion, int fill)
{
    struct map m;
    const int code = enter("cuTensorMapEncodeIm2col");
    if (code)
        return code;
    if (!begins(&m, map, 1, type, rank, at, sizes, pitches))
        return leave(INVALID_VALUE);
    put(&m, lower, 4ul * (rank - 2));
    put(&m, upper, 4ul * (rank - 2));
    put_byte(&m, channels);
    put_byte(&m, pixels);
    for (unsigned i = 0; i < rank; i++)
        put_byte(&m, steps[i]);
    return ends(&m, interleave, swizzle, promotion, fill);
}

/* A driver before CUDA 12.8 has no cuTensorMapEncodeIm2colWide. */

EXPORT int cuTensorMapReplaceAddress(void *map, void *at)
{
    const uint64_t address = (uintptr_t)at;
    const int code = enter("cuTensorMapReplaceAddress");
    if (code)
        return code;
    if (!map || (uintptr_t)map % 64 || address % 16)
        return leave(INVALID_VALUE);
    memcpy(map, &address, sizeof(address));
    return leave(SUCCESS);
}
