/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Textures that the driver makes itself. The runtime's double destroys them, too: as in CUDA, both
 * have the same handles. */
#include "tests/doubles/cuda/internal.h"

#define AS_INTEGERS   0x01u
#define OTHER_FLAGS   0x72u /* normalized, sRGB, no trilinear optimization, seamless */
#define LINEAR_FILTER 1
#define FIRST         1050u /* those of the runtime's double have other numbers */

enum { OF_ARRAY, OF_MIPMAP, OF_LINEAR, OF_ROWS };

/* CUDA_RESOURCE_DESC */
struct resource {
    int kind;
    union {
        void *array;
        struct {
            uint64_t at;
            unsigned format, channels;
            size_t sizes[3];
        } memory;
        int reserved[32];
    } of;
    unsigned flags;
};

/* CUDA_TEXTURE_DESC */
struct texture {
    int address[3], filter;
    unsigned flags, anisotropy;
    int mipmap_filter, bias, least_level, greatest_level;
    int border[4], reserved[12];
};

/* CUarray_format: integers of 8, 16 and 32 bits. */
static bool has_format(const struct resource *r)
{
    const unsigned n = r->of.memory.channels, format = r->of.memory.format;
    return (n == 1 || n == 2 || n == 4) &&
           ((format >= 0x01 && format <= 0x03) || (format >= 0x08 && format <= 0x0a));
}

static bool is_resource(const struct resource *r)
{
    if (r->flags || r->kind < OF_ARRAY || r->kind > OF_ROWS)
        return false;
    if (r->kind == OF_ARRAY || r->kind == OF_MIPMAP)
        return r->of.array;
    return has_format(r) && device_bytes(r->of.memory.at, 1); /* the driver looks at the begin */
}

/* The words that are no flags are as the runtime's double wants them, but for the filters. */
static bool is_texture(const struct texture *t)
{
    bool good = t->flags & AS_INTEGERS && !(t->flags & ~(AS_INTEGERS | OTHER_FLAGS)) &&
                t->filter == LINEAR_FILTER && t->mipmap_filter == 13 && t->anisotropy == 12 &&
                t->bias == 14 && t->least_level == 15 && t->greatest_level == 16;
    for (int i = 0; i < 12; i++)
        good = good && !t->reserved[i] && (i >= 3 || t->address[i] == i + 1) &&
               (i >= 4 || t->border[i] == i + 7);
    return good;
}

/* CUDA_RESOURCE_VIEW_DESC: its layers are 7 and 9, as for the runtime's double. */
struct view {
    int format;
    size_t width, height, depth;
    unsigned levels_and_layers[4], reserved[16];
};

EXPORT int cuTexObjectCreate(unsigned long long *texture, const struct resource *resource,
                             const struct texture *how, const struct view *view)
{
    const int code = enter("cuTexObjectCreate");
    if (code)
        return code;
    if (!current)
        return leave(INVALID_CONTEXT);
    if (!is_resource(resource) || !is_texture(how) ||
        (view && (view->levels_and_layers[2] != 7 || view->levels_and_layers[3] != 9)))
        return leave(INVALID_VALUE);
    *texture = FIRST + (unsigned)resource->kind + (view ? 100u : 0u);
    return leave(SUCCESS);
}
