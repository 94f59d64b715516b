/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/session/extensions.h"

#define FLOATS 2 /* enum cudaChannelFormatKind; before it are integers */

static size_t size_of(char field)
{
    return field == 'q' ? 8 : 4;
}

/* The offset of the next field of this size. */
static size_t aligned(size_t at, size_t size)
{
    return (at + size - 1) / size * size;
}

bool ibx_extension_keeps_graphs(unsigned number)
{
    switch (number) {
    case IBX_EXT_LAUNCH:
    case IBX_EXT_LAUNCH_QUEUED:
    case IBX_EXT_MEMSET:
    case IBX_EXT_MEMSET_2D:
    case IBX_EXT_MEMSET_ELEMENTS:
    case IBX_EXT_MEMCPY_3D_ASYNC:
    case IBX_EXT_MALLOC_ASYNC:
    case IBX_EXT_MALLOC_FROM_POOL:
    case IBX_EXT_FREE_ASYNC:
    case IBX_EXT_STREAM_VALUE:
    case IBX_EXT_STREAM_WAIT:
    case IBX_EXT_STREAM_FLAGS:
    case IBX_EXT_STREAM_DEVICE:
    case IBX_EXT_IS_CAPTURING:
    case IBX_EXT_CAPTURE_INFO:
    case IBX_EXT_HOST_OPEN:
    case IBX_EXT_HOST_ADD:
    case IBX_EXT_HOST_ASK:
    case IBX_EXT_POINTER:
    case IBX_EXT_PRINTED:
    case IBX_EXT_GRAPH_NODES:
    case IBX_EXT_GRAPH_FUNCTIONS:
    case IBX_EXT_NODE_TYPE:
    case IBX_EXT_NODE_NEIGHBOURS:
    case IBX_EXT_NODE_EDGES:
    case IBX_EXT_GET_KERNEL:
    case IBX_EXT_GET_MEMSET:
    case IBX_EXT_SET_KERNEL:
    case IBX_EXT_SET_MEMSET:
    case IBX_EXT_EXEC_UPDATE:
    case IBX_EXT_EXEC_REFRESH:
    case IBX_EXT_EXEC_UPLOAD:
    case IBX_EXT_EXEC_FLAGS:
        return true;
    default:
        return false;
    }
}

void ibx_layout_put(struct ibx_writer *w, const char *layout, const void *structure)
{
    const uint8_t *bytes = structure;
    for (size_t at = 0; *layout; layout++) {
        const size_t n = size_of(*layout);
        uint32_t word;
        uint64_t both;
        at = aligned(at, n);
        if (n == 4) {
            memcpy(&word, bytes + at, 4);
            ibx_put_u32(w, word);
        } else {
            memcpy(&both, bytes + at, 8);
            ibx_put_u64(w, both);
        }
        at += n;
    }
}

void ibx_layout_get(struct ibx_reader *r, const char *layout, void *structure)
{
    uint8_t *bytes = structure;
    for (size_t at = 0; *layout; layout++) {
        const size_t n = size_of(*layout);
        at = aligned(at, n);
        if (n == 4) {
            const uint32_t word = ibx_get_u32(r);
            memcpy(bytes + at, &word, 4);
        } else {
            const uint64_t both = ibx_get_u64(r);
            memcpy(bytes + at, &both, 8);
        }
        at += n;
    }
}

/* The layout of the union, by kind. */
static const char *layout_of(int kind)
{
    static const char *const layouts[] = {[IBX_RESOURCE_ARRAY] = "q",
                                          [IBX_RESOURCE_MIPMAP] = "q",
                                          [IBX_RESOURCE_LINEAR] = "qiiiiiq",
                                          [IBX_RESOURCE_PITCH_2D] = "qiiiiiqqq"};
    return kind >= 0 && (size_t)kind < sizeof(layouts) / sizeof(layouts[0]) ? layouts[kind] : NULL;
}

void ibx_resource_put(struct ibx_writer *w, const struct ibx_cuda_resource *resource)
{
    const char *layout = layout_of(resource->kind);
    ibx_put_u32(w, (uint32_t)resource->kind);
    if (layout)
        ibx_layout_put(w, layout, &resource->of);
}

void ibx_resource_get(struct ibx_reader *r, struct ibx_cuda_resource *resource)
{
    *resource = (struct ibx_cuda_resource){.kind = (int)ibx_get_u32(r)};
    const char *layout = layout_of(resource->kind);
    if (layout)
        ibx_layout_get(r, layout, &resource->of);
    else
        r->failed = true;
}

size_t ibx_texture_row(const struct ibx_cuda_channel *channel, size_t width, size_t pitch)
{
    const uint32_t bits[] = {(uint32_t)channel->x, (uint32_t)channel->y, (uint32_t)channel->z,
                             (uint32_t)channel->w};
    bool sure = bits[0] && channel->kind >= 0 && channel->kind <= FLOATS;
    size_t element = bits[0], row;
    for (unsigned i = 1; i < 4; i++) {
        sure = sure && (!bits[i] || bits[i] == bits[i - 1]);
        element += bits[i];
    }
    if (__builtin_mul_overflow(width, (element + 7) / 8, &row))
        return SIZE_MAX;
    return sure || row > pitch ? row : pitch;
}
