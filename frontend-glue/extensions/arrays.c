/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Extension requests about arrays, textures and surfaces. Copies are between device memory and
 * arrays: the client moves the bytes to and from device memory by the usual copies.
 */
#include "frontend-glue/extensions/graphs.h"
#include "frontend-glue/session/textures.h"

#define CAPTURE_UNSUPPORTED 900 /* cudaError_t */

#define ON_DEVICE 3 /* enum cudaMemcpyKind */

static bool is_array(const struct extension_request *e, const void *array)
{
    return ibx_handles_know(e->x, IBX_HANDLE_ARRAY, (uintptr_t)array);
}

static bool is_mipmap(const struct extension_request *e, const void *mipmap)
{
    return ibx_handles_know(e->x, IBX_HANDLE_MIPMAP, (uintptr_t)mipmap);
}

/* CUDA frees no array in a capture: then the handle stays. So while there are captures the array is
 * freed before its handle is forgotten, which another request may get meanwhile. */
static int give_back(struct extension_request *e, enum ibx_handle_kind kind, uint64_t array)
{
    int (*free_it)(uint64_t array) = NULL;
    const uint64_t number = ibx_room_owned(e->x, array);
    const bool refusable = ibx_captures_any();
    *(void **)&free_it =
        ibx_back_end_runtime(kind == IBX_HANDLE_ARRAY ? "cudaFreeArray" : "cudaFreeMipmappedArray");
    if (ibx_own_work_leave(e->x, kind, array))
        return 0;
    if (!free_it || (!refusable && !ibx_handles_remove(e->x, kind, array)))
        return CUDA_INVALID_VALUE;
    ibx_frees_begin(e->x, 0);
    const int rc = free_it(array);
    ibx_frees_end();
    if (refusable && rc == CAPTURE_UNSUPPORTED)
        return rc;
    if (refusable)
        ibx_handles_array_gone(e->x, kind, array);
    ibx_owners_remove(array, number);
    return rc;
}

/* Frees what the client has freed while graphs named it, if these are gone. */
static void give_back_unused(struct extension_request *e)
{
    static const enum ibx_handle_kind kinds[] = {IBX_HANDLE_ARRAY, IBX_HANDLE_MIPMAP};
    for (unsigned i = 0; i < 2; i++) {
        for (uint64_t array; (array = ibx_handles_unused_array(e->x, kinds[i]));)
            if (give_back(e, kinds[i], array)) {
                ibx_handles_array_stays(e->x, kinds[i], array, true);
                break;
            }
    }
}

/* A level is freed with its mipmapped array, not by itself. */
static int give_back_as(struct extension_request *e, enum ibx_handle_kind kind)
{
    const uint64_t array = ibx_get_u64(&e->in);
    if (!whole(e) || ibx_handles_is_level(e->x, array))
        return CUDA_INVALID_VALUE;
    const enum ibx_array_end end = ibx_handles_free_array(e->x, kind, array);
    const int rc = end == IBX_ARRAY_NOW     ? give_back(e, kind, array)
                   : end == IBX_ARRAY_LATER ? 0
                                            : CUDA_INVALID_VALUE;
    if (end == IBX_ARRAY_NOW && rc == CAPTURE_UNSUPPORTED)
        ibx_handles_array_stays(e->x, kind, array, false);
    else
        give_back_unused(e);
    return rc;
}

/* ------------------------------------------------------------------------- arrays in graphs */

static void graph_has(struct extension_request *e, void *graph, const void *array)
{
    void *use = array ? ibx_array_use_begin(e->x, (uintptr_t)array) : NULL;
    if (use && !ibx_graph_retain(e->x, graph, use, ibx_array_use_end))
        ibx_array_use_unknown(e->x, (uintptr_t)array);
}

void ibx_extension_graph_has_copy(struct extension_request *e, void *graph,
                                  const struct ibx_cuda_memcpy3d *copy)
{
    graph_has(e, graph, copy->from_array);
    graph_has(e, graph, copy->to_array);
}

void ibx_extension_exec_has_copy(struct extension_request *e, const void *exec, const void *node,
                                 const struct ibx_cuda_memcpy3d *copy)
{
    const void *arrays[] = {copy->from_array, copy->to_array};
    void *uses[2];
    unsigned count = 0;
    for (unsigned i = 0; i < 2; i++) {
        void *use = arrays[i] ? ibx_array_use_begin(e->x, (uintptr_t)arrays[i]) : NULL;
        if (use)
            uses[count++] = use;
    }
    if (ibx_handles_exec_has(e->x, (uintptr_t)exec, (uintptr_t)node, uses, count,
                             ibx_array_use_end))
        return;
    for (unsigned i = 0; i < 2; i++)
        ibx_array_use_unknown(e->x, (uintptr_t)arrays[i]);
}

/* A capture that another thread has ended meanwhile may have the copy. */
static void captures(struct extension_request *e, const void *stream,
                     const struct ibx_cuda_memcpy3d *copy, unsigned before)
{
    uint64_t id;
    void *graph = NULL;
    if (ibx_captures_any() && (copy->from_array || copy->to_array) &&
        ibx_captures_graph(e->x, (uintptr_t)stream, &id, &graph)) {
        ibx_extension_graph_has_copy(e, graph, copy);
        ibx_captures_graphs_let_go(e->x);
    }
    if (!ibx_captures_ended_since(e->x, before))
        return;
    ibx_array_use_unknown(e->x, (uintptr_t)copy->from_array);
    ibx_array_use_unknown(e->x, (uintptr_t)copy->to_array);
}

/* ------------------------------------------------------------------------------------ frees */

static int free_array(struct extension_request *e)
{
    return give_back_as(e, IBX_HANDLE_ARRAY);
}

static int free_mipmap(struct extension_request *e)
{
    return give_back_as(e, IBX_HANDLE_MIPMAP);
}

/* Notes what was made as the client's, or destroys it by `undo`. */
static int note_made(struct extension_request *e, enum ibx_handle_kind kind, uint64_t made,
                     const char *undo)
{
    if (ibx_handles_add(e->x, kind, made) && ibx_room_own(e->x, made))
        return 0;
    ibx_handles_remove(e->x, kind, made);
    ibx_back_end_undo(undo, made);
    return CUDA_MEMORY_ALLOCATION;
}

static int malloc_array(struct extension_request *e)
{
    int (*make)(void **array, const struct ibx_cuda_channel *channel, struct ibx_cuda_extent extent,
                unsigned flags) = NULL;
    struct ibx_cuda_channel channel;
    struct ibx_cuda_extent extent;
    void *array = NULL;
    ibx_layout_get(&e->in, IBX_LAYOUT_CHANNEL, &channel);
    ibx_layout_get(&e->in, IBX_LAYOUT_EXTENT, &extent);
    const unsigned flags = ibx_get_u32(&e->in);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    if (ibx_room_limited(e->x, "arrays"))
        return CUDA_NOT_SUPPORTED;
    give_back_unused(e);
    FUNCTION(e, make);
    int rc = make(&array, &channel, extent, flags);
    if (!rc)
        rc = note_made(e, IBX_HANDLE_ARRAY, (uintptr_t)array, "cudaFreeArray");
    ibx_put_u64(&e->out, (uintptr_t)array);
    return rc;
}

static int malloc_mipmap(struct extension_request *e)
{
    int (*make)(void **mipmap, const struct ibx_cuda_channel *channel,
                struct ibx_cuda_extent extent, unsigned levels, unsigned flags) = NULL;
    struct ibx_cuda_channel channel;
    struct ibx_cuda_extent extent;
    void *mipmap = NULL;
    ibx_layout_get(&e->in, IBX_LAYOUT_CHANNEL, &channel);
    ibx_layout_get(&e->in, IBX_LAYOUT_EXTENT, &extent);
    const unsigned levels = ibx_get_u32(&e->in), flags = ibx_get_u32(&e->in);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    if (ibx_room_limited(e->x, "arrays"))
        return CUDA_NOT_SUPPORTED;
    give_back_unused(e);
    FUNCTION(e, make);
    int rc = make(&mipmap, &channel, extent, levels, flags);
    if (!rc)
        rc = note_made(e, IBX_HANDLE_MIPMAP, (uintptr_t)mipmap, "cudaFreeMipmappedArray");
    ibx_put_u64(&e->out, (uintptr_t)mipmap);
    return rc;
}

/* CUDA has one array for each level, which exists as long as the mipmapped array. */
static int level_of_mipmap(struct extension_request *e)
{
    int (*get)(void **array, const void *mipmap, unsigned level) = NULL;
    void *mipmap = pointer(&e->in), *array = NULL;
    const unsigned level = ibx_get_u32(&e->in);
    if (!whole(e) || !is_mipmap(e, mipmap))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, get);
    int rc = get(&array, mipmap, level);
    if (!rc && !ibx_handles_has(e->x, IBX_HANDLE_ARRAY, (uintptr_t)array) &&
        (!ibx_handles_add_level(e->x, (uintptr_t)array, (uintptr_t)mipmap) ||
         !ibx_room_own(e->x, (uintptr_t)array))) {
        ibx_handles_remove(e->x, IBX_HANDLE_ARRAY, (uintptr_t)array); /* it needs an owner */
        rc = CUDA_MEMORY_ALLOCATION;
    }
    ibx_put_u64(&e->out, (uintptr_t)array);
    return rc;
}

static int to_array(struct extension_request *e)
{
    int (*copy)(void *array, size_t x, size_t y, const void *from, size_t n, int kind) = NULL;
    void *array = pointer(&e->in);
    const size_t x = ibx_get_u64(&e->in), y = ibx_get_u64(&e->in);
    const void *from = pointer(&e->in);
    const size_t n = ibx_get_u64(&e->in);
    if (!whole(e) || !is_array(e, array) || !mine(e, from, n))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, copy);
    return copy(array, x, y, from, n, ON_DEVICE);
}

static int from_array(struct extension_request *e)
{
    int (*copy)(void *to, const void *array, size_t x, size_t y, size_t n, int kind) = NULL;
    void *to = pointer(&e->in), *array = pointer(&e->in);
    const size_t x = ibx_get_u64(&e->in), y = ibx_get_u64(&e->in), n = ibx_get_u64(&e->in);
    if (!whole(e) || !is_array(e, array) || !mine(e, to, n))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, copy);
    return copy(to, array, x, y, n, ON_DEVICE);
}

static int rows_to_array(struct extension_request *e)
{
    int (*copy)(void *array, size_t x, size_t y, const void *from, size_t pitch, size_t width,
                size_t height, int kind) = NULL;
    size_t n;
    void *array = pointer(&e->in);
    const size_t x = ibx_get_u64(&e->in), y = ibx_get_u64(&e->in);
    const void *from = pointer(&e->in);
    const size_t pitch = ibx_get_u64(&e->in), width = ibx_get_u64(&e->in),
                 height = ibx_get_u64(&e->in);
    if (!whole(e) || !is_array(e, array) || !span_of(pitch, width, height, &n) || !mine(e, from, n))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, copy);
    return copy(array, x, y, from, pitch, width, height, ON_DEVICE);
}

static int rows_from_array(struct extension_request *e)
{
    int (*copy)(void *to, size_t pitch, const void *array, size_t x, size_t y, size_t width,
                size_t height, int kind) = NULL;
    size_t n;
    void *to = pointer(&e->in);
    const size_t pitch = ibx_get_u64(&e->in);
    void *array = pointer(&e->in);
    const size_t x = ibx_get_u64(&e->in), y = ibx_get_u64(&e->in), width = ibx_get_u64(&e->in),
                 height = ibx_get_u64(&e->in);
    if (!whole(e) || !is_array(e, array) || !span_of(pitch, width, height, &n) || !mine(e, to, n))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, copy);
    return copy(to, pitch, array, x, y, width, height, ON_DEVICE);
}

bool ibx_extension_array_unit(const struct extension_request *e, const void *array,
                              struct ibx_array_unit *unit)
{
    int (*get)(struct ibx_cuda_channel * channel, const void *array) = NULL;
    struct ibx_cuda_channel c = {0};
    *(void **)&get = ibx_back_end_runtime("cudaGetChannelDesc");
    if (!is_array(e, array) || !get || get(&c, array))
        return false;
    *unit = ibx_array_unit_of(&c);
    return unit->bytes;
}

/* What the copy counts in. */
static bool unit_of(const struct extension_request *e, const struct ibx_cuda_memcpy3d *p,
                    struct ibx_array_unit *unit)
{
    const void *array = p->from_array ? p->from_array : p->to_array;
    *unit = (struct ibx_array_unit){1, 1};
    return !array || ibx_extension_array_unit(e, array, unit);
}

/* Checks from the memory's first byte, also before the first row, to the last row that is
 * copied. */
bool ibx_extension_holds(const struct extension_request *e, const struct ibx_cuda_pitched *memory,
                         const struct ibx_cuda_extent *at, const struct ibx_cuda_extent *extent,
                         size_t row)
{
    size_t rows, n;
    if (!extent->depth || __builtin_add_overflow(at->depth, extent->depth - 1, &rows) ||
        __builtin_mul_overflow(rows, memory->y, &rows) ||
        __builtin_add_overflow(rows, at->height, &rows) ||
        __builtin_add_overflow(rows, extent->height, &rows) ||
        __builtin_add_overflow(row, at->width, &row))
        return false;
    return span_of(memory->pitch, row, rows, &n) && mine(e, memory->at, n);
}

/* The same for a copy that counts in units. */
static bool holds_units(const struct extension_request *e, const struct ibx_cuda_pitched *memory,
                        const struct ibx_cuda_extent *at, const struct ibx_cuda_extent *extent,
                        const struct ibx_array_unit *unit)
{
    struct ibx_cuda_extent begin = *at, rows = *extent;
    size_t row;
    rows.height = ibx_array_units(unit, extent->height);
    return !__builtin_mul_overflow(at->width, unit->bytes, &begin.width) &&
           !__builtin_mul_overflow(ibx_array_units(unit, extent->width), unit->bytes, &row) &&
           ibx_extension_holds(e, memory, &begin, &rows, row);
}

/* Whether a side of a copy is either an array or memory. */
static bool is_side(const struct extension_request *e, const void *array,
                    const struct ibx_cuda_pitched *memory)
{
    return array ? !memory->at && is_array(e, array) : memory->at != NULL;
}

bool ibx_extension_is_copy(const struct extension_request *e, const struct ibx_cuda_memcpy3d *p)
{
    const struct ibx_cuda_extent *n = &p->extent;
    struct ibx_array_unit unit;
    if (p->kind != ON_DEVICE || !is_side(e, p->from_array, &p->from) ||
        !is_side(e, p->to_array, &p->to))
        return false;
    if (!e->x->isolation.on && (!n->width || !n->height || !n->depth))
        return true; /* nothing is copied */
    return unit_of(e, p, &unit) &&
           (p->from_array || holds_units(e, &p->from, &p->from_at, n, &unit)) &&
           (p->to_array || holds_units(e, &p->to, &p->to_at, n, &unit));
}

static int copy_planes(struct extension_request *e)
{
    int (*copy)(const struct ibx_cuda_memcpy3d *parameters) = NULL;
    struct ibx_cuda_memcpy3d p = {0};
    ibx_layout_get(&e->in, IBX_LAYOUT_MEMCPY3D, &p);
    if (!whole(e) || !ibx_extension_is_copy(e, &p))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, copy);
    return copy(&p);
}

static uint64_t place_of(const struct ibx_cuda_pitched *planes, const struct ibx_cuda_extent *at)
{
    const uint64_t row = (uint64_t)at->depth * planes->y + at->height;
    return (uintptr_t)planes->at + row * planes->pitch + at->width;
}

/* A single row from page-locked memory that kernels of the client use is a short copy from the host
 * for CUDA. A node of a graph is in its order. */
static int put_behind(const struct extension_request *e, const struct ibx_cuda_memcpy3d *p,
                      void *stream)
{
    const struct ibx_cuda *cuda = e->x->cuda;
    void *event = NULL;
    int capturing = 0;
    if (p->from_array || p->extent.height > 1 || p->extent.depth > 1 ||
        p->extent.width > IBX_CUDA_EARLY_MOST || !cuda ||
        !ibx_host_maps_hold(e->x, place_of(&p->from, &p->from_at), 1) ||
        cuda->stream_is_capturing(stream, &capturing) || capturing)
        return 0;
    int rc = cuda->event_create(&event, IBX_CUDA_EVENT_DISABLE_TIMING);
    if (rc)
        return rc;
    rc = ibx_cuda_put_behind(cuda, event, stream);
    cuda->event_destroy(event);
    return rc;
}

static int copy_planes_in_stream(struct extension_request *e)
{
    int (*copy)(const struct ibx_cuda_memcpy3d *parameters, void *stream) = NULL;
    struct ibx_cuda_memcpy3d p = {0};
    ibx_layout_get(&e->in, IBX_LAYOUT_MEMCPY3D, &p);
    void *stream = stream_in(e);
    if (!whole(e) || !ibx_extension_is_copy(e, &p))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, copy);
    const unsigned before = ibx_captures_over_so_far(e->x);
    int rc = put_behind(e, &p, stream);
    rc = rc ? rc : copy(&p, stream);
    if (!rc)
        captures(e, stream, &p, before);
    return rc;
}

static int channel_of(struct extension_request *e)
{
    int (*get)(struct ibx_cuda_channel * channel, const void *array) = NULL;
    struct ibx_cuda_channel channel = {0};
    void *array = pointer(&e->in);
    if (!whole(e) || !is_array(e, array))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, get);
    const int rc = get(&channel, array);
    ibx_layout_put(&e->out, IBX_LAYOUT_CHANNEL, &channel);
    return rc;
}

/* --------------------------------------------------------------------- textures and surfaces */

static bool is_resource(const struct extension_request *e, const struct ibx_cuda_resource *resource)
{
    const size_t *sizes = resource->of.memory.sizes;
    size_t n = sizes[0];
    if (resource->kind == IBX_RESOURCE_ARRAY)
        return is_array(e, resource->of.array);
    if (resource->kind == IBX_RESOURCE_MIPMAP)
        return is_mipmap(e, resource->of.array);
    if (resource->kind == IBX_RESOURCE_PITCH_2D &&
        !span_of(sizes[2], ibx_texture_row(&resource->of.memory.channel, sizes[0], sizes[2]),
                 sizes[1], &n))
        return false;
    /* A program may name more bytes than there are: CUDA checks only the beginning. */
    const uint64_t at = (uintptr_t)resource->of.memory.at;
    return ibx_isolation_allows(e->x, at, n) && !ibx_process_memory_is_own(e->x, at, 1);
}

static int create_texture(struct extension_request *e)
{
    int (*make)(unsigned long long *texture, const struct ibx_cuda_resource *resource,
                const struct ibx_cuda_texture *how, const struct ibx_cuda_view *view) = NULL;
    struct ibx_cuda_resource resource;
    struct ibx_cuda_texture how = {0};
    struct ibx_cuda_view view = {0};
    unsigned long long texture = 0;
    ibx_resource_get(&e->in, &resource);
    ibx_layout_get(&e->in, IBX_LAYOUT_TEXTURE, &how);
    const unsigned bits = ibx_get_u8(&e->in);
    const struct ibx_cuda_view *as = bits & IBX_TEXTURE_HAS_VIEW ? &view : NULL;
    if (as)
        ibx_layout_get(&e->in, IBX_LAYOUT_VIEW, &view);
    if (!whole(e) || bits & ~(IBX_TEXTURE_HAS_VIEW | IBX_TEXTURE_BY_DRIVER) ||
        !is_resource(e, &resource))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, make);
    if (!ibx_room_take(e->x, IBX_HOLD_TEXTURES, 1))
        return CUDA_MEMORY_ALLOCATION;
    int rc = bits & IBX_TEXTURE_BY_DRIVER
                 ? ibx_extension_driver_texture(e, &texture, &resource, &how, as)
                 : make(&texture, &resource, &how, as);
    if (!rc && !ibx_handles_add(e->x, IBX_HANDLE_TEXTURE, texture)) {
        ibx_back_end_undo("cudaDestroyTextureObject", texture);
        rc = CUDA_MEMORY_ALLOCATION;
    }
    ibx_room_give(e->x, IBX_HOLD_TEXTURES, 1);
    ibx_put_u64(&e->out, texture);
    return rc;
}

static int create_surface(struct extension_request *e)
{
    int (*make)(unsigned long long *surface, const struct ibx_cuda_resource *resource) = NULL;
    struct ibx_cuda_resource resource;
    unsigned long long surface = 0;
    ibx_resource_get(&e->in, &resource);
    if (!whole(e) || resource.kind != IBX_RESOURCE_ARRAY || !is_resource(e, &resource))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, make);
    if (!ibx_room_take(e->x, IBX_HOLD_TEXTURES, 1))
        return CUDA_MEMORY_ALLOCATION;
    int rc = make(&surface, &resource);
    if (!rc && !ibx_handles_add(e->x, IBX_HANDLE_SURFACE, surface)) {
        ibx_back_end_undo("cudaDestroySurfaceObject", surface);
        rc = CUDA_MEMORY_ALLOCATION;
    }
    ibx_room_give(e->x, IBX_HOLD_TEXTURES, 1);
    ibx_put_u64(&e->out, surface);
    return rc;
}

static int destroy(struct extension_request *e, enum ibx_handle_kind kind)
{
    int (*destroy_object)(unsigned long long object) = NULL;
    const unsigned long long object = ibx_get_u64(&e->in);
    if (!whole(e) || !ibx_handles_remove(e->x, kind, object))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, destroy_object);
    return destroy_object(object);
}

static int destroy_texture(struct extension_request *e)
{
    return destroy(e, IBX_HANDLE_TEXTURE);
}

static int destroy_surface(struct extension_request *e)
{
    return destroy(e, IBX_HANDLE_SURFACE);
}

/* ---------------------------------------------------------------------------------- requests */

const struct extension_call ibx_array_extensions[IBX_EXT_REQUESTS] = {
    [IBX_EXT_MALLOC_ARRAY] = {"cudaMalloc3DArray", malloc_array},
    [IBX_EXT_FREE_ARRAY] = {"cudaFreeArray", free_array},
    [IBX_EXT_MALLOC_MIPMAP] = {"cudaMallocMipmappedArray", malloc_mipmap},
    [IBX_EXT_FREE_MIPMAP] = {"cudaFreeMipmappedArray", free_mipmap},
    [IBX_EXT_MIPMAP_LEVEL] = {"cudaGetMipmappedArrayLevel", level_of_mipmap},
    [IBX_EXT_TO_ARRAY] = {"cudaMemcpyToArray", to_array},
    [IBX_EXT_FROM_ARRAY] = {"cudaMemcpyFromArray", from_array},
    [IBX_EXT_2D_TO_ARRAY] = {"cudaMemcpy2DToArray", rows_to_array},
    [IBX_EXT_2D_FROM_ARRAY] = {"cudaMemcpy2DFromArray", rows_from_array},
    [IBX_EXT_MEMCPY_3D] = {"cudaMemcpy3D", copy_planes},
    [IBX_EXT_MEMCPY_3D_ASYNC] = {"cudaMemcpy3DAsync", copy_planes_in_stream},
    [IBX_EXT_CHANNEL_DESC] = {"cudaGetChannelDesc", channel_of},
    [IBX_EXT_CREATE_TEXTURE] = {"cudaCreateTextureObject", create_texture},
    [IBX_EXT_DESTROY_TEXTURE] = {"cudaDestroyTextureObject", destroy_texture},
    [IBX_EXT_CREATE_SURFACE] = {"cudaCreateSurfaceObject", create_surface},
    [IBX_EXT_DESTROY_SURFACE] = {"cudaDestroySurfaceObject", destroy_surface},
};
