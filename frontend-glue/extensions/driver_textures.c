/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Textures that the driver makes: the runtime refuses integers that are read as such with a linear
 * filter. Both have the same handles, by CUDA's manual, so the runtime destroys these textures.
 */
#include "frontend-glue/extensions/extensions.h"
#include "frontend-glue/session/textures.h"

/* False: the driver has no such format. Then its elements could be longer than those that were
 * checked. */
static bool resource_of(struct ibx_driver_resource *to, const struct ibx_cuda_resource *from)
{
    const struct ibx_cuda_channel *c = &from->of.memory.channel;
    struct ibx_cuda_channel same;
    *to = (struct ibx_driver_resource){.kind = from->kind};
    if (from->kind == IBX_RESOURCE_ARRAY || from->kind == IBX_RESOURCE_MIPMAP) {
        to->of.array = from->of.array;
        return true;
    }
    to->of.memory.at = (uintptr_t)from->of.memory.at;
    memcpy(to->of.memory.sizes, from->of.memory.sizes, sizeof(to->of.memory.sizes));
    return ibx_driver_format(c, &to->of.memory.format, &to->of.memory.channels) &&
           ibx_driver_channel(&same, to->of.memory.format, to->of.memory.channels) &&
           !memcmp(&same, c, sizeof(same));
}

static void texture_of(struct ibx_driver_texture *to, const struct ibx_cuda_texture *from)
{
    const int *w = from->words;
    *to = (struct ibx_driver_texture){
        .filter = w[IBX_WORD_FILTER],
        .flags = (w[IBX_WORD_READ] == IBX_READ_ELEMENTS ? IBX_DRIVER_AS_INTEGERS : 0) |
                 (w[IBX_WORD_NORMALIZED] ? IBX_DRIVER_NORMALIZED : 0) |
                 (w[IBX_WORD_SRGB] ? IBX_DRIVER_SRGB : 0) |
                 (w[IBX_WORD_NO_TRILINEAR] ? IBX_DRIVER_NO_TRILINEAR : 0) |
                 (w[IBX_WORD_SEAMLESS] ? IBX_DRIVER_SEAMLESS_CUBEMAP : 0),
        .anisotropy = (unsigned)w[IBX_WORD_ANISOTROPY],
        .mipmap_filter = w[IBX_WORD_MIPMAP_FILTER],
        .bias = w[IBX_WORD_BIAS],
        .least_level = w[IBX_WORD_LEAST_LEVEL],
        .greatest_level = w[IBX_WORD_GREATEST_LEVEL]};
    memcpy(to->address, w + IBX_WORD_ADDRESS, sizeof(to->address));
    memcpy(to->border, w + IBX_WORD_BORDER, sizeof(to->border));
}

int ibx_extension_driver_texture(const struct extension_request *e, unsigned long long *texture,
                                 const struct ibx_cuda_resource *resource,
                                 const struct ibx_cuda_texture *how,
                                 const struct ibx_cuda_view *view)
{
    int (*create)(unsigned long long *texture, const struct ibx_driver_resource *resource,
                  const struct ibx_driver_texture *how, const struct ibx_cuda_view *view) = NULL;
    struct ibx_driver_resource r;
    struct ibx_driver_texture t;
    if (!resource_of(&r, resource))
        return CUDA_INVALID_VALUE;
    if (!ready(e))
        return CUDA_NOT_SUPPORTED;
    *(void **)&create = ibx_cuda_symbol("cuTexObjectCreate");
    texture_of(&t, how);
    return create ? create(texture, &r, &t, view) : CUDA_NOT_SUPPORTED;
}
