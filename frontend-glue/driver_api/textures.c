/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Texture and surface objects, which are the runtime's numbers. */
#include "frontend-glue/preload/streams/streams.h"
#include "frontend-glue/driver_api/driver.h"

#define AS_INTEGERS      0x01u /* CU_TRSF_* */
#define NORMALIZED       0x02u
#define SRGB             0x10u
#define NO_TRILINEAR     0x20u
#define SEAMLESS_CUBEMAP 0x40u

/* Words of cudaTextureDesc */
enum {
    WORD_ADDRESS,
    WORD_FILTER = 3,
    WORD_READ,
    WORD_SRGB,
    WORD_BORDER,
    WORD_NORMALIZED = 10,
    WORD_ANISOTROPY,
    WORD_MIPMAP_FILTER,
    WORD_BIAS,
    WORD_LEAST_LEVEL,
    WORD_GREATEST_LEVEL,
    WORD_NO_TRILINEAR,
    WORD_SEAMLESS
};
enum { READ_ELEMENTS, READ_NORMALIZED };

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
    int mipmap_filter, bias, least_level, greatest_level; /* floats, as they are */
    int border[4], reserved[12];
};

static int resource_of(struct ibx_cuda_resource *to, const struct resource *from)
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

/* Integers of up to 16 bits become numbers from 0 or -1 to 1, if not said otherwise. */
static int reads_of(const struct ibx_cuda_resource *resource, unsigned flags)
{
    struct ibx_cuda_channel c = {0};
    if (flags & AS_INTEGERS)
        return READ_ELEMENTS;
    if (resource->kind == IBX_RESOURCE_ARRAY && cudaGetChannelDesc(&c, resource->of.array))
        return READ_ELEMENTS;
    if (resource->kind == IBX_RESOURCE_MIPMAP) {
        void *level = NULL;
        if (cudaGetMipmappedArrayLevel(&level, resource->of.array, 0) ||
            cudaGetChannelDesc(&c, level))
            return READ_ELEMENTS;
    }
    if (resource->kind == IBX_RESOURCE_LINEAR || resource->kind == IBX_RESOURCE_PITCH_2D)
        c = resource->of.memory.channel;
    return c.kind < 2 && c.x < 32 ? READ_NORMALIZED : READ_ELEMENTS;
}

static void texture_of(struct ibx_cuda_texture *to, const struct texture *from, int reads)
{
    int *w = to->words;
    memset(to, 0, sizeof(*to));
    memcpy(w + WORD_ADDRESS, from->address, sizeof(from->address));
    memcpy(w + WORD_BORDER, from->border, sizeof(from->border));
    w[WORD_FILTER] = from->filter;
    w[WORD_READ] = reads;
    w[WORD_SRGB] = (from->flags & SRGB) != 0;
    w[WORD_NORMALIZED] = (from->flags & NORMALIZED) != 0;
    w[WORD_ANISOTROPY] = (int)from->anisotropy;
    w[WORD_MIPMAP_FILTER] = from->mipmap_filter;
    w[WORD_BIAS] = from->bias;
    w[WORD_LEAST_LEVEL] = from->least_level;
    w[WORD_GREATEST_LEVEL] = from->greatest_level;
    w[WORD_NO_TRILINEAR] = (from->flags & NO_TRILINEAR) != 0;
    w[WORD_SEAMLESS] = (from->flags & SEAMLESS_CUBEMAP) != 0;
}

static int create(unsigned long long *texture, const struct resource *resource,
                  const struct texture *how, const struct ibx_cuda_view *view)
{
    struct ibx_cuda_resource r;
    struct ibx_cuda_texture t;
    int rc = texture && resource && how ? resource_of(&r, resource) : CUDA_INVALID_VALUE;
    if (rc)
        return rc;
    texture_of(&t, how, reads_of(&r, how->flags));
    rc = cudaCreateTextureObject(texture, &r, &t, view);
    if (!rc)
        ibx_frontend_owned(OWNED_TEXTURE, (void *)(uintptr_t)*texture, ibx_driver_current());
    return rc;
}

EXPORTED int cuTexObjectCreate(unsigned long long *texture, const struct resource *resource,
                               const struct texture *how, const struct ibx_cuda_view *view)
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

static int resource_is(struct resource *to, const struct ibx_cuda_resource *from)
{
    struct resource is = {.kind = from->kind, .flags = from->flags};
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

static int ask_resource(struct resource *resource, unsigned long long object,
                        int (*ask)(struct ibx_cuda_resource *resource, unsigned long long object))
{
    struct ibx_cuda_resource r = {0};
    const int rc = resource ? ask(&r, object) : CUDA_INVALID_VALUE;
    return rc ? rc : resource_is(resource, &r);
}

EXPORTED int cuTexObjectGetResourceDesc(struct resource *resource, unsigned long long texture)
{
    return IN_CONTEXT(ask_resource(resource, texture, cudaGetTextureObjectResourceDesc));
}

static int ask_texture(struct texture *how, unsigned long long texture)
{
    struct ibx_cuda_resource resource = {0};
    struct ibx_cuda_texture t = {0};
    const int *w = t.words,
              rc = how ? cudaGetTextureObjectTextureDesc(&t, texture) : CUDA_INVALID_VALUE;
    if (rc)
        return rc;
    *how = (struct texture){.filter = w[WORD_FILTER],
                            .anisotropy = (unsigned)w[WORD_ANISOTROPY],
                            .mipmap_filter = w[WORD_MIPMAP_FILTER],
                            .bias = w[WORD_BIAS],
                            .least_level = w[WORD_LEAST_LEVEL],
                            .greatest_level = w[WORD_GREATEST_LEVEL]};
    memcpy(how->address, w + WORD_ADDRESS, sizeof(how->address));
    memcpy(how->border, w + WORD_BORDER, sizeof(how->border));
    const bool as_integers = w[WORD_READ] == READ_ELEMENTS &&
                             !cudaGetTextureObjectResourceDesc(&resource, texture) &&
                             reads_of(&resource, 0) == READ_NORMALIZED;
    how->flags = (as_integers ? AS_INTEGERS : 0) | (w[WORD_NORMALIZED] ? NORMALIZED : 0) |
                 (w[WORD_SRGB] ? SRGB : 0) | (w[WORD_NO_TRILINEAR] ? NO_TRILINEAR : 0) |
                 (w[WORD_SEAMLESS] ? SEAMLESS_CUBEMAP : 0);
    return CUDA_SUCCESS;
}

EXPORTED int cuTexObjectGetTextureDesc(struct texture *how, unsigned long long texture)
{
    return IN_CONTEXT(ask_texture(how, texture));
}

EXPORTED int cuTexObjectGetResourceViewDesc(struct ibx_cuda_view *view, unsigned long long texture)
{
    return IN_CONTEXT(cudaGetTextureObjectResourceViewDesc(view, texture));
}

/* ------------------------------------------------------------------------------- surfaces */

static int create_surface(unsigned long long *surface, const struct resource *resource)
{
    struct ibx_cuda_resource r;
    int rc = surface && resource ? resource_of(&r, resource) : CUDA_INVALID_VALUE;
    if (!rc)
        rc = cudaCreateSurfaceObject(surface, &r);
    if (!rc)
        ibx_frontend_owned(OWNED_SURFACE, (void *)(uintptr_t)*surface, ibx_driver_current());
    return rc;
}

EXPORTED int cuSurfObjectCreate(unsigned long long *surface, const struct resource *resource)
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

EXPORTED int cuSurfObjectGetResourceDesc(struct resource *resource, unsigned long long surface)
{
    return IN_CONTEXT(ask_resource(resource, surface, cudaGetSurfaceObjectResourceDesc));
}
