/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Textures and surfaces, in requests of our own. What they were made of is known here. */
#include "frontend-glue/preload/internal.h"

#include <pthread.h>
#include <stdlib.h>

enum object_kind { TEXTURE, SURFACE };

struct object {
    struct object *next;
    unsigned long long handle;
    enum object_kind kind;
    int device;
    struct ibx_cuda_resource resource;
    struct ibx_cuda_texture how;
    struct ibx_cuda_view view;
    bool has_view;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct object *objects;

static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

/* Locked. The place of its pointer. */
static struct object **place_of(enum object_kind kind, unsigned long long handle)
{
    struct object **at = &objects;
    while (*at && !((*at)->kind == kind && (*at)->handle == handle))
        at = &(*at)->next;
    return at;
}

/* False: there is none. */
static bool forget(enum object_kind kind, unsigned long long handle)
{
    pthread_mutex_lock(&lock);
    struct object **at = place_of(kind, handle), *found = *at;
    if (found)
        *at = found->next;
    pthread_mutex_unlock(&lock);
    free(found);
    return found;
}

/* Those of the device have gone with its context. */
void ibx_frontend_objects_reset(int device)
{
    pthread_mutex_lock(&lock);
    for (struct object **at = &objects, *gone; (gone = *at);) {
        if (gone->device != device) {
            at = &gone->next;
            continue;
        }
        *at = gone->next;
        free(gone);
    }
    pthread_mutex_unlock(&lock);
}

/* Takes `made`. */
static void note(struct object *made)
{
    forget(made->kind, made->handle); /* one whose end was not seen */
    pthread_mutex_lock(&lock);
    made->next = objects;
    objects = made;
    pthread_mutex_unlock(&lock);
}

/* Programs of CUDA before 13 have shorter structures: they end before what is reserved. A program
 * of which it is not known which it is gets no more. */
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

/* Seamless cube maps have come with CUDA 12. */
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

/* NULL: no memory. */
static struct object *object_of(enum object_kind kind, const struct ibx_cuda_resource *resource)
{
    struct object *made = calloc(1, sizeof(*made));
    if (!made)
        return NULL;
    made->kind = kind;
    copy_resource(&made->resource, resource);
    return made;
}

static int make(const struct extra *e, struct object *made, unsigned long long *object)
{
    uint64_t handle = 0;
    const int rc =
        made ? ibx_frontend_extra_ask(e, &handle) : ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
    if (rc) {
        free(made);
        return rc;
    }
    made->handle = *object = handle;
    made->device = ibx_frontend_current_device();
    note(made);
    return CUDA_SUCCESS;
}

int cudaCreateTextureObject(unsigned long long *texture, const struct ibx_cuda_resource *resource,
                            const struct ibx_cuda_texture *how, const struct ibx_cuda_view *view)
{
    struct extra e;
    if (!texture || !resource || !how)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (is_no_array(resource))
        return ibx_frontend_fail(CUDA_INVALID_HANDLE);
    ibx_frontend_extra_begin(&e, IBX_EXTRA_CREATE_TEXTURE, "cudaCreateTextureObject");
    ibx_resource_put(&e.body, resource);
    ibx_layout_put(&e.body, IBX_LAYOUT_TEXTURE, how);
    ibx_put_u8(&e.body, view != NULL);
    if (view)
        ibx_layout_put(&e.body, IBX_LAYOUT_VIEW, view);
    struct object *made = object_of(TEXTURE, resource);
    if (made) {
        copy_texture(&made->how, how);
        made->has_view = view;
        if (view)
            copy_view(&made->view, view);
    }
    return make(&e, made, texture);
}

int cudaCreateSurfaceObject(unsigned long long *surface, const struct ibx_cuda_resource *resource)
{
    struct extra e;
    if (!surface || !resource)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (is_no_array(resource))
        return ibx_frontend_fail(CUDA_INVALID_HANDLE);
    ibx_frontend_extra_begin(&e, IBX_EXTRA_CREATE_SURFACE, "cudaCreateSurfaceObject");
    ibx_resource_put(&e.body, resource);
    return make(&e, object_of(SURFACE, resource), surface);
}

/* First forgotten: behind the call another thread may be given the same handle. One that is none is
 * no error of CUDA's. */
static int destroy(enum ibx_extra number, const char *call, enum object_kind kind,
                   unsigned long long object)
{
    struct extra e;
    ibx_frontend_extra_begin(&e, number, call);
    ibx_put_u64(&e.body, object);
    return forget(kind, object) ? ibx_frontend_extra(&e, NULL, 0) : CUDA_SUCCESS;
}

int cudaDestroyTextureObject(unsigned long long texture)
{
    return destroy(IBX_EXTRA_DESTROY_TEXTURE, "cudaDestroyTextureObject", TEXTURE, texture);
}

int cudaDestroySurfaceObject(unsigned long long surface)
{
    return destroy(IBX_EXTRA_DESTROY_SURFACE, "cudaDestroySurfaceObject", SURFACE, surface);
}

/* ---------------------------------------------------------------------- what they were made of */

/* Of what `to` gets a part of; what the call returns. */
static int find(enum object_kind kind, unsigned long long handle, const void *to,
                struct object *object)
{
    pthread_mutex_lock(&lock);
    const struct object *found = *place_of(kind, handle);
    if (found)
        *object = *found;
    pthread_mutex_unlock(&lock);
    return found && to ? CUDA_SUCCESS : ibx_frontend_fail(CUDA_INVALID_VALUE);
}

static int get_resource(enum object_kind kind, unsigned long long handle,
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
    return get_resource(TEXTURE, texture, resource);
}

int cudaGetSurfaceObjectResourceDesc(struct ibx_cuda_resource *resource, unsigned long long surface)
{
    return get_resource(SURFACE, surface, resource);
}

int cudaGetTextureObjectTextureDesc(struct ibx_cuda_texture *how, unsigned long long texture)
{
    struct object object;
    const int rc = find(TEXTURE, texture, how, &object);
    if (!rc)
        copy_texture(how, &object.how);
    return rc;
}

int cudaGetTextureObjectResourceViewDesc(struct ibx_cuda_view *view, unsigned long long texture)
{
    struct object object;
    const int rc = find(TEXTURE, texture, view, &object);
    if (rc || !object.has_view)
        return rc ? rc : ibx_frontend_fail(CUDA_INVALID_VALUE);
    copy_view(view, &object.view);
    return CUDA_SUCCESS;
}
