/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Texture and surface objects, which are the runtime's numbers. */
#include "frontend-glue/preload/copies/copies.h"
#include "frontend-glue/preload/streams/streams.h"
#include "frontend-glue/driver_api/driver.h"

static int resource_of(struct ibx_cuda_resource *to, const struct ibx_driver_resource *from)
{
    *to = (struct ibx_cuda_resource){.kind = from->kind, .flags = from->flags};
    if (from->kind == IBX_RESOURCE_ARRAY || from->kind == IBX_RESOURCE_MIPMAP) {
        to->of.array = from->of.array;
        return CUDA_SUCCESS;
    }
    if ((from->kind != IBX_RESOURCE_LINEAR && from->kind != IBX_RESOURCE_PITCH_2D) ||
        !ibx_driver_channel(&to->of.memory.channel, from->of.memory.format,
                            from->of.memory.channels))
        return CUDA_INVALID_VALUE;
    to->of.memory.at = (void *)(uintptr_t)from->of.memory.at;
    memcpy(to->of.memory.sizes, from->of.memory.sizes, sizeof(to->of.memory.sizes));
    return CUDA_SUCCESS;
}

static const struct ibx_cuda_channel unknown = {.kind = -1}; /* a channel */

/* The channel of the elements. */
static struct ibx_cuda_channel channel_in(const struct ibx_cuda_resource *resource)
{
    struct ibx_cuda_channel c = unknown;
    void *array = resource->of.array;
    if (resource->kind == IBX_RESOURCE_LINEAR || resource->kind == IBX_RESOURCE_PITCH_2D)
        return resource->of.memory.channel;
    if (resource->kind == IBX_RESOURCE_MIPMAP &&
        cudaGetMipmappedArrayLevel(&array, resource->of.array, 0))
        return unknown;
    return cudaGetChannelDesc(&c, array) ? unknown : c;
}

static bool is_of_integers(const struct ibx_cuda_channel *c)
{
    return c->kind == 0 || c->kind == 1;
}

/* Integers of up to 16 bits become numbers from 0 or -1 to 1, if not said otherwise. */
static int reads_of(struct ibx_cuda_channel c, unsigned flags)
{
    if (flags & IBX_DRIVER_AS_INTEGERS || !is_of_integers(&c))
        return IBX_READ_ELEMENTS;
    return c.x < 32 ? IBX_READ_NORMALIZED : IBX_READ_ELEMENTS;
}

/* The runtime refuses a linear filter for integers that are read as such; the driver takes it. A
 * filter between mipmapped levels is refused by neither. */
static unsigned made_by(struct ibx_cuda_channel c, int reads, int filter)
{
    return reads == IBX_READ_ELEMENTS && filter == IBX_FILTER_LINEAR && is_of_integers(&c)
               ? IBX_TEXTURE_BY_DRIVER
               : 0;
}

static void texture_of(struct ibx_cuda_texture *to, const struct ibx_driver_texture *from,
                       int reads)
{
    int *w = to->words;
    memset(to, 0, sizeof(*to));
    memcpy(w + IBX_WORD_ADDRESS, from->address, sizeof(from->address));
    memcpy(w + IBX_WORD_BORDER, from->border, sizeof(from->border));
    w[IBX_WORD_FILTER] = from->filter;
    w[IBX_WORD_READ] = reads;
    w[IBX_WORD_SRGB] = (from->flags & IBX_DRIVER_SRGB) != 0;
    w[IBX_WORD_NORMALIZED] = (from->flags & IBX_DRIVER_NORMALIZED) != 0;
    w[IBX_WORD_ANISOTROPY] = (int)from->anisotropy;
    w[IBX_WORD_MIPMAP_FILTER] = from->mipmap_filter;
    w[IBX_WORD_BIAS] = from->bias;
    w[IBX_WORD_LEAST_LEVEL] = from->least_level;
    w[IBX_WORD_GREATEST_LEVEL] = from->greatest_level;
    w[IBX_WORD_NO_TRILINEAR] = (from->flags & IBX_DRIVER_NO_TRILINEAR) != 0;
    w[IBX_WORD_SEAMLESS] = (from->flags & IBX_DRIVER_SEAMLESS_CUBEMAP) != 0;
}

static int create(unsigned long long *texture, const struct ibx_driver_resource *resource,
                  const struct ibx_driver_texture *how, const struct ibx_cuda_view *view)
{
    struct ibx_cuda_resource r;
    struct ibx_cuda_texture t;
    int rc = texture && resource && how ? resource_of(&r, resource) : CUDA_INVALID_VALUE;
    if (rc)
        return rc;
    /* Only the back end knows an array's: it is asked once, and if something depends on that. */
    const bool matters = !(how->flags & IBX_DRIVER_AS_INTEGERS) || how->filter == IBX_FILTER_LINEAR;
    const struct ibx_cuda_channel c = matters ? channel_in(&r) : unknown;
    const int reads = reads_of(c, how->flags);
    texture_of(&t, how, reads);
    rc = ibx_frontend_create_texture(texture, &r, &t, view, made_by(c, reads, how->filter));
    if (!rc)
        ibx_frontend_owned(OWNED_TEXTURE, (void *)(uintptr_t)*texture, ibx_driver_current());
    return rc;
}

EXPORTED int cuTexObjectCreate(unsigned long long *texture,
                               const struct ibx_driver_resource *resource,
                               const struct ibx_driver_texture *how,
                               const struct ibx_cuda_view *view)
{
    return IN_CONTEXT(create(texture, resource, how, view));
}

int ibx_driver_end_texture(void *handle)
{
    return cudaDestroyTextureObject((uintptr_t)handle);
}

EXPORTED int cuTexObjectDestroy(unsigned long long texture)
{
    return IN_CONTEXT(cudaDestroyTextureObject(texture));
}

/* ------------------------------------------------------------------------------- questions */

static int resource_is(struct ibx_driver_resource *to, const struct ibx_cuda_resource *from)
{
    struct ibx_driver_resource is = {.kind = from->kind, .flags = from->flags};
    if (from->kind == IBX_RESOURCE_ARRAY || from->kind == IBX_RESOURCE_MIPMAP) {
        is.of.array = from->of.array;
    } else {
        is.of.memory.at = (uintptr_t)from->of.memory.at;
        memcpy(is.of.memory.sizes, from->of.memory.sizes, sizeof(is.of.memory.sizes));
        if (!ibx_driver_format(&from->of.memory.channel, &is.of.memory.format,
                               &is.of.memory.channels))
            return CUDA_NOT_SUPPORTED;
    }
    *to = is;
    return CUDA_SUCCESS;
}

static int ask_resource(struct ibx_driver_resource *resource, unsigned long long object,
                        int (*ask)(struct ibx_cuda_resource *resource, unsigned long long object))
{
    struct ibx_cuda_resource r = {0};
    const int rc = resource ? ask(&r, object) : CUDA_INVALID_VALUE;
    return rc ? rc : resource_is(resource, &r);
}

EXPORTED int cuTexObjectGetResourceDesc(struct ibx_driver_resource *resource,
                                        unsigned long long texture)
{
    return IN_CONTEXT(ask_resource(resource, texture, cudaGetTextureObjectResourceDesc));
}

static int ask_texture(struct ibx_driver_texture *how, unsigned long long texture)
{
    struct ibx_cuda_resource resource = {0};
    struct ibx_cuda_texture t = {0};
    const int *w = t.words,
              rc = how ? cudaGetTextureObjectTextureDesc(&t, texture) : CUDA_INVALID_VALUE;
    if (rc)
        return rc;
    *how = (struct ibx_driver_texture){.filter = w[IBX_WORD_FILTER],
                                       .anisotropy = (unsigned)w[IBX_WORD_ANISOTROPY],
                                       .mipmap_filter = w[IBX_WORD_MIPMAP_FILTER],
                                       .bias = w[IBX_WORD_BIAS],
                                       .least_level = w[IBX_WORD_LEAST_LEVEL],
                                       .greatest_level = w[IBX_WORD_GREATEST_LEVEL]};
    memcpy(how->address, w + IBX_WORD_ADDRESS, sizeof(how->address));
    memcpy(how->border, w + IBX_WORD_BORDER, sizeof(how->border));
    const bool as_integers = w[IBX_WORD_READ] == IBX_READ_ELEMENTS &&
                             !cudaGetTextureObjectResourceDesc(&resource, texture) &&
                             reads_of(channel_in(&resource), 0) == IBX_READ_NORMALIZED;
    how->flags = (as_integers ? IBX_DRIVER_AS_INTEGERS : 0) |
                 (w[IBX_WORD_NORMALIZED] ? IBX_DRIVER_NORMALIZED : 0) |
                 (w[IBX_WORD_SRGB] ? IBX_DRIVER_SRGB : 0) |
                 (w[IBX_WORD_NO_TRILINEAR] ? IBX_DRIVER_NO_TRILINEAR : 0) |
                 (w[IBX_WORD_SEAMLESS] ? IBX_DRIVER_SEAMLESS_CUBEMAP : 0);
    return CUDA_SUCCESS;
}

EXPORTED int cuTexObjectGetTextureDesc(struct ibx_driver_texture *how, unsigned long long texture)
{
    return IN_CONTEXT(ask_texture(how, texture));
}

EXPORTED int cuTexObjectGetResourceViewDesc(struct ibx_cuda_view *view, unsigned long long texture)
{
    return IN_CONTEXT(cudaGetTextureObjectResourceViewDesc(view, texture));
}

/* ------------------------------------------------------------------------------- surfaces */

static int create_surface(unsigned long long *surface, const struct ibx_driver_resource *resource)
{
    struct ibx_cuda_resource r;
    int rc = surface && resource ? resource_of(&r, resource) : CUDA_INVALID_VALUE;
    if (!rc)
        rc = cudaCreateSurfaceObject(surface, &r);
    if (!rc)
        ibx_frontend_owned(OWNED_SURFACE, (void *)(uintptr_t)*surface, ibx_driver_current());
    return rc;
}

EXPORTED int cuSurfObjectCreate(unsigned long long *surface,
                                const struct ibx_driver_resource *resource)
{
    return IN_CONTEXT(create_surface(surface, resource));
}

int ibx_driver_end_surface(void *handle)
{
    return cudaDestroySurfaceObject((uintptr_t)handle);
}

EXPORTED int cuSurfObjectDestroy(unsigned long long surface)
{
    return IN_CONTEXT(cudaDestroySurfaceObject(surface));
}

EXPORTED int cuSurfObjectGetResourceDesc(struct ibx_driver_resource *resource,
                                         unsigned long long surface)
{
    return IN_CONTEXT(ask_resource(resource, surface, cudaGetSurfaceObjectResourceDesc));
}
