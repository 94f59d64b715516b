/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Textures and surfaces, as extension requests. Their descriptions are kept here. */
#include "frontend-glue/preload/copies/copies.h"
#include "frontend-glue/preload/memory/device_objects.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"
#include "frontend-glue/session/textures.h"

#include <stdlib.h>

struct object {
    struct thing thing;
    struct ibx_cuda_resource resource;
    struct ibx_cuda_texture how;
    struct ibx_cuda_view view;
    bool has_view;
};

/* Before CUDA 13 these structures are shorter: they end before the reserved part. If the program's
 * version is unknown, the shorter part is copied. */
static void copy_resource(struct ibx_cuda_resource *to, const struct ibx_cuda_resource *from)
{
    const size_t before = offsetof(struct ibx_cuda_resource, of) + sizeof(from->of.memory);
    memcpy(to, from, ibx_frontend_cuda_version() < 13 ? before : sizeof(*to));
}

static void copy_view(struct ibx_cuda_view *to, const struct ibx_cuda_view *from)
{
    const size_t before = offsetof(struct ibx_cuda_view, reserved);
    memcpy(to, from, ibx_frontend_cuda_version() < 13 ? before : sizeof(*to));
}

/* The member for seamless cube maps came with CUDA 12. */
static void copy_texture(struct ibx_cuda_texture *to, const struct ibx_cuda_texture *from)
{
    const int version = ibx_frontend_cuda_version();
    const size_t since = version && version < 12 ? sizeof(from->words[0]) : 0;
    memcpy(to, from, sizeof(*to) - since);
}

static bool is_no_array(const struct ibx_cuda_resource *resource)
{
    return (resource->kind == IBX_RESOURCE_ARRAY || resource->kind == IBX_RESOURCE_MIPMAP) &&
           !resource->of.array;
}

/* An entry with the description; NULL: there is no memory. */
static struct object *object_of(enum thing_kind kind, const struct ibx_cuda_resource *resource)
{
    struct object *made = calloc(1, sizeof(*made));
    if (!made)
        return NULL;
    made->thing.kind = kind;
    copy_resource(&made->resource, resource);
    return made;
}

static int make(const struct extension_request *e, struct object *made, unsigned long long *object)
{
    uint64_t handle = 0;
    const int rc =
        made ? ibx_frontend_request_ask(e, &handle) : ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
    if (rc) {
        free(made);
        return rc;
    }
    made->thing.handle = *object = handle;
    made->thing.device = ibx_frontend_current_device();
    ibx_frontend_thing_made(&made->thing);
    return CUDA_SUCCESS;
}

int ibx_frontend_create_texture(unsigned long long *texture,
                                const struct ibx_cuda_resource *resource,
                                const struct ibx_cuda_texture *how,
                                const struct ibx_cuda_view *view, unsigned by)
{
    struct extension_request e;
    if (!texture || !resource || !how)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (is_no_array(resource))
        return ibx_frontend_fail(CUDA_INVALID_HANDLE);
    ibx_frontend_request_begin(&e, IBX_EXT_CREATE_TEXTURE, "cudaCreateTextureObject");
    ibx_resource_put(&e.body, resource);
    ibx_layout_put(&e.body, IBX_LAYOUT_TEXTURE, how);
    ibx_put_u8(&e.body, (uint8_t)(by | (view ? IBX_TEXTURE_HAS_VIEW : 0)));
    if (view)
        ibx_layout_put(&e.body, IBX_LAYOUT_VIEW, view);
    struct object *made = object_of(THING_TEXTURE, resource);
    if (made) {
        copy_texture(&made->how, how);
        made->has_view = view;
        if (view)
            copy_view(&made->view, view);
    }
    return make(&e, made, texture);
}

int cudaCreateTextureObject(unsigned long long *texture, const struct ibx_cuda_resource *resource,
                            const struct ibx_cuda_texture *how, const struct ibx_cuda_view *view)
{
    return ibx_frontend_create_texture(texture, resource, how, view, 0);
}

int cudaCreateSurfaceObject(unsigned long long *surface, const struct ibx_cuda_resource *resource)
{
    struct extension_request e;
    if (!surface || !resource)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (is_no_array(resource))
        return ibx_frontend_fail(CUDA_INVALID_HANDLE);
    ibx_frontend_request_begin(&e, IBX_EXT_CREATE_SURFACE, "cudaCreateSurfaceObject");
    ibx_resource_put(&e.body, resource);
    return make(&e, object_of(THING_SURFACE, resource), surface);
}

/* The entry is removed before the call: another thread may get the same handle right after it. As
 * in CUDA, an unknown handle is no error. */
static int destroy(enum ibx_extension number, const char *call, enum thing_kind kind,
                   unsigned long long object)
{
    struct extension_request e;
    ibx_frontend_request_begin(&e, number, call);
    ibx_put_u64(&e.body, object);
    struct thing *gone = ibx_frontend_thing_take(kind, object);
    const bool known = gone;
    free(gone);
    return known ? ibx_frontend_request_make(&e, NULL, 0) : CUDA_SUCCESS;
}

int cudaDestroyTextureObject(unsigned long long texture)
{
    ibx_frontend_owned_gone(OWNED_TEXTURE, (void *)(uintptr_t)texture);
    return destroy(IBX_EXT_DESTROY_TEXTURE, "cudaDestroyTextureObject", THING_TEXTURE, texture);
}

int cudaDestroySurfaceObject(unsigned long long surface)
{
    ibx_frontend_owned_gone(OWNED_SURFACE, (void *)(uintptr_t)surface);
    return destroy(IBX_EXT_DESTROY_SURFACE, "cudaDestroySurfaceObject", THING_SURFACE, surface);
}

/* ---------------------------------------------------------------------- what they were made of */

/* Copies the entry of a texture or surface into *object. `to`: the caller's output, which must not
 * be NULL. Returns a CUDA error. */
static int find(enum thing_kind kind, unsigned long long handle, const void *to,
                struct object *object)
{
    const struct object *found = (const struct object *)ibx_frontend_thing_hold(kind, handle);
    if (found)
        *object = *found;
    ibx_frontend_things_let_go();
    return found && to ? CUDA_SUCCESS : ibx_frontend_fail(CUDA_INVALID_VALUE);
}

static int get_resource(enum thing_kind kind, unsigned long long handle,
                        struct ibx_cuda_resource *resource)
{
    struct object object;
    const int rc = find(kind, handle, resource, &object);
    if (!rc)
        copy_resource(resource, &object.resource);
    return rc;
}

int cudaGetTextureObjectResourceDesc(struct ibx_cuda_resource *resource, unsigned long long texture)
{
    return get_resource(THING_TEXTURE, texture, resource);
}

int cudaGetSurfaceObjectResourceDesc(struct ibx_cuda_resource *resource, unsigned long long surface)
{
    return get_resource(THING_SURFACE, surface, resource);
}

int cudaGetTextureObjectTextureDesc(struct ibx_cuda_texture *how, unsigned long long texture)
{
    struct object object;
    const int rc = find(THING_TEXTURE, texture, how, &object);
    if (!rc)
        copy_texture(how, &object.how);
    return rc;
}

int cudaGetTextureObjectResourceViewDesc(struct ibx_cuda_view *view, unsigned long long texture)
{
    struct object object;
    const int rc = find(THING_TEXTURE, texture, view, &object);
    if (rc || !object.has_view)
        return rc ? rc : ibx_frontend_fail(CUDA_INVALID_VALUE);
    copy_view(view, &object.view);
    return CUDA_SUCCESS;
}
