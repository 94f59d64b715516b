/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Requests of our own (session/extra.h), run by the runtime of GVirtuS's handlers in the session's
 * thread. Copies are between memory of the device and arrays: the client brings the bytes there by
 * copies of the usual kind.
 */
#include "frontend-glue/device_copies/copies.h"

#include "common/log.h"
#include "frontend-glue/session/extra.h"

#include <stdatomic.h>
#include <stdlib.h>

#define INVALID_VALUE     1 /* cudaError_t */
#define MEMORY_ALLOCATION 2
#define INVALID_HANDLE    400
#define NOT_SUPPORTED     801
#define ON_DEVICE         3 /* enum cudaMemcpyKind */

/* A request in hand. */
struct extra {
    struct copies *x;
    struct ibx_reader in;
    struct ibx_writer out;
    void *function; /* of the runtime */
};

/* Sets a pointer to a function of the runtime's. */
#define FUNCTION(e, pointer) memcpy(&(pointer), &(e)->function, sizeof(pointer))

static void *pointer(struct ibx_reader *r)
{
    return (void *)(uintptr_t)ibx_get_u64(r);
}

/* No bytes of the reader are missing, and none is left. */
static bool whole(const struct extra *e)
{
    return !e->in.failed && e->in.position == e->in.length;
}

static bool mine(const struct extra *e, const void *memory, size_t n)
{
    return ibx_isolation_allows(e->x, (uintptr_t)memory, n);
}

static bool is_array(const struct extra *e, const void *array)
{
    return ibx_handles_know(e->x, IBX_HANDLE_ARRAY, (uintptr_t)array);
}

static bool is_pool(const struct extra *e, const void *pool)
{
    return ibx_handles_know(e->x, IBX_HANDLE_POOL, (uintptr_t)pool);
}

/* Calls the runtime's function of that name with what was made and cannot be noted. */
static void undo(const char *name, uint64_t made)
{
    int (*give_back)(uint64_t) = NULL;
    void *function = ibx_copies_runtime(name);
    memcpy(&give_back, &function, sizeof(give_back));
    if (give_back)
        give_back(made);
}

/* ---------------------------------------------------------------- functions, streams, symbols */

static int set_stream_attribute(struct extra *e)
{
    int (*set)(void *stream, int attribute, const void *value) = NULL;
    _Alignas(8) uint8_t value[IBX_EXTRA_ATTRIBUTE] = {0};
    void *stream = pointer(&e->in);
    const int attribute = (int)ibx_get_u32(&e->in);
    const uint8_t *bytes = ibx_get_bytes(&e->in, sizeof(value));
    if (!whole(e))
        return INVALID_VALUE;
    FUNCTION(e, set);
    memcpy(value, bytes, sizeof(value));
    return set(stream, attribute, value);
}

static int get_stream_attribute(struct extra *e)
{
    int (*get)(void *stream, int attribute, void *value) = NULL;
    _Alignas(8) uint8_t value[IBX_EXTRA_ATTRIBUTE] = {0};
    void *stream = pointer(&e->in);
    const int attribute = (int)ibx_get_u32(&e->in);
    if (!whole(e))
        return INVALID_VALUE;
    FUNCTION(e, get);
    const int rc = get(stream, attribute, value);
    ibx_put_bytes(&e->out, value, sizeof(value));
    return rc;
}

static int reset_l2(struct extra *e)
{
    int (*reset)(void) = NULL;
    FUNCTION(e, reset);
    return whole(e) ? reset() : INVALID_VALUE;
}

static int get_limit(struct extra *e)
{
    int (*get)(size_t * value, int limit) = NULL;
    size_t value = 0;
    const int limit = (int)ibx_get_u32(&e->in);
    if (!whole(e))
        return INVALID_VALUE;
    FUNCTION(e, get);
    const int rc = get(&value, limit);
    ibx_put_u64(&e->out, value);
    return rc;
}

static int symbol_address(struct extra *e)
{
    int (*find)(void **address, const void *symbol) = NULL;
    void *address = NULL;
    const void *symbol = pointer(&e->in);
    if (!whole(e))
        return INVALID_VALUE;
    FUNCTION(e, find);
    const int rc = find(&address, symbol);
    ibx_put_u64(&e->out, (uintptr_t)address);
    return rc;
}

static int symbol_size(struct extra *e)
{
    int (*measure)(size_t * n, const void *symbol) = NULL;
    size_t n = 0;
    const void *symbol = pointer(&e->in);
    if (!whole(e))
        return INVALID_VALUE;
    FUNCTION(e, measure);
    const int rc = measure(&n, symbol);
    ibx_put_u64(&e->out, n);
    return rc;
}

/* ----------------------------------------------------------------------------------- arrays */

/* Their bytes are not counted, so there are none where that is asked for. */
static bool is_limited(const struct extra *e, const char *what)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (e->x->isolation.limited && !atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN,
                "%s gets no %s: their bytes are not counted, which rdma.device_memory asks for",
                ibx_session_path(e->x->s)->peer, what);
    return e->x->isolation.limited;
}

/* GVirtuS's handlers take arrays as well: other tenants' are refused there as their memory is. */
static bool own_array(struct extra *e, const void *array)
{
    const struct copies *x = e->x;
    void *context = NULL;
    return !x->isolation.on ||
           (ibx_copies_have_cuda(e->x) && !x->cuda->ctx_get_current(&context) &&
            ibx_owners_add(x->isolation.tenant, (uintptr_t)array, 1, context, 0));
}

static int free_array(struct extra *e)
{
    int (*give_back)(void *array) = NULL;
    void *array = pointer(&e->in);
    const uint64_t number = e->x->isolation.on ? ibx_owners_number((uintptr_t)array) : 0;
    if (!whole(e) || !ibx_handles_remove(e->x, IBX_HANDLE_ARRAY, (uintptr_t)array))
        return INVALID_VALUE;
    FUNCTION(e, give_back);
    const int rc = give_back(array);
    if (number)
        ibx_owners_remove((uintptr_t)array, number);
    return rc;
}

static int malloc_array(struct extra *e)
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
        return INVALID_VALUE;
    if (is_limited(e, "arrays"))
        return NOT_SUPPORTED;
    FUNCTION(e, make);
    int rc = make(&array, &channel, extent, flags);
    if (!rc &&
        (!ibx_handles_add(e->x, IBX_HANDLE_ARRAY, (uintptr_t)array) || !own_array(e, array))) {
        ibx_handles_remove(e->x, IBX_HANDLE_ARRAY, (uintptr_t)array);
        undo("cudaFreeArray", (uintptr_t)array);
        rc = MEMORY_ALLOCATION;
    }
    ibx_put_u64(&e->out, (uintptr_t)array);
    return rc;
}

static int to_array(struct extra *e)
{
    int (*copy)(void *array, size_t x, size_t y, const void *from, size_t n, int kind) = NULL;
    void *array = pointer(&e->in);
    const size_t x = ibx_get_u64(&e->in), y = ibx_get_u64(&e->in);
    const void *from = pointer(&e->in);
    const size_t n = ibx_get_u64(&e->in);
    if (!whole(e) || !is_array(e, array) || !mine(e, from, n))
        return INVALID_VALUE;
    FUNCTION(e, copy);
    return copy(array, x, y, from, n, ON_DEVICE);
}

static int from_array(struct extra *e)
{
    int (*copy)(void *to, const void *array, size_t x, size_t y, size_t n, int kind) = NULL;
    void *to = pointer(&e->in), *array = pointer(&e->in);
    const size_t x = ibx_get_u64(&e->in), y = ibx_get_u64(&e->in), n = ibx_get_u64(&e->in);
    if (!whole(e) || !is_array(e, array) || !mine(e, to, n))
        return INVALID_VALUE;
    FUNCTION(e, copy);
    return copy(to, array, x, y, n, ON_DEVICE);
}

/* Bytes from the first to the last of rows; false: of none, or of more than there are addresses. */
static bool span_of(size_t pitch, size_t width, size_t rows, size_t *n)
{
    return rows && !__builtin_mul_overflow(pitch, rows - 1, n) &&
           !__builtin_add_overflow(*n, width, n);
}

static int rows_to_array(struct extra *e)
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
        return INVALID_VALUE;
    FUNCTION(e, copy);
    return copy(array, x, y, from, pitch, width, height, ON_DEVICE);
}

static int rows_from_array(struct extra *e)
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
        return INVALID_VALUE;
    FUNCTION(e, copy);
    return copy(to, pitch, array, x, y, width, height, ON_DEVICE);
}

/* One side of a copy of planes: an array, or memory of the tenant's. */
static bool is_side(const struct extra *e, const void *array, const struct ibx_cuda_pitched *memory,
                    const struct ibx_cuda_extent *at, const struct ibx_cuda_extent *extent)
{
    size_t rows, n;
    if (array || !e->x->isolation.on)
        return array ? !memory->at && is_array(e, array) : memory->at != NULL;
    if (!extent->depth || __builtin_add_overflow(at->depth, extent->depth - 1, &rows) ||
        __builtin_mul_overflow(rows, memory->y, &rows) ||
        __builtin_add_overflow(rows, at->height, &rows) ||
        __builtin_add_overflow(rows, extent->height, &rows))
        return false;
    return memory->at && span_of(memory->pitch, memory->pitch, rows, &n) && mine(e, memory->at, n);
}

static int copy_planes(struct extra *e)
{
    int (*copy)(const struct ibx_cuda_memcpy3d *parameters) = NULL;
    struct ibx_cuda_memcpy3d p = {0};
    ibx_layout_get(&e->in, IBX_LAYOUT_MEMCPY3D, &p);
    if (!whole(e) || p.kind != ON_DEVICE ||
        !is_side(e, p.from_array, &p.from, &p.from_at, &p.extent) ||
        !is_side(e, p.to_array, &p.to, &p.to_at, &p.extent))
        return INVALID_VALUE;
    FUNCTION(e, copy);
    return copy(&p);
}

static int channel_of(struct extra *e)
{
    int (*get)(struct ibx_cuda_channel * channel, const void *array) = NULL;
    struct ibx_cuda_channel channel = {0};
    void *array = pointer(&e->in);
    if (!whole(e) || !is_array(e, array))
        return INVALID_VALUE;
    FUNCTION(e, get);
    const int rc = get(&channel, array);
    ibx_layout_put(&e->out, IBX_LAYOUT_CHANNEL, &channel);
    return rc;
}

/* --------------------------------------------------------------------- textures and surfaces */

static bool is_resource(const struct extra *e, const struct ibx_cuda_resource *resource)
{
    size_t n = resource->of.memory.sizes[0];
    if (resource->kind == IBX_RESOURCE_ARRAY)
        return is_array(e, resource->of.array);
    if (resource->kind == IBX_RESOURCE_PITCH_2D &&
        !span_of(resource->of.memory.sizes[2], resource->of.memory.sizes[2],
                 resource->of.memory.sizes[1], &n))
        return false;
    return resource->kind != IBX_RESOURCE_MIPMAP && mine(e, resource->of.memory.at, n);
}

static int create_texture(struct extra *e)
{
    int (*make)(unsigned long long *texture, const struct ibx_cuda_resource *resource,
                const struct ibx_cuda_texture *how, const struct ibx_cuda_view *view) = NULL;
    struct ibx_cuda_resource resource;
    struct ibx_cuda_texture how = {0};
    struct ibx_cuda_view view = {0};
    unsigned long long texture = 0;
    ibx_resource_get(&e->in, &resource);
    ibx_layout_get(&e->in, IBX_LAYOUT_TEXTURE, &how);
    const bool viewed = ibx_get_u8(&e->in);
    if (viewed)
        ibx_layout_get(&e->in, IBX_LAYOUT_VIEW, &view);
    if (!whole(e) || !is_resource(e, &resource))
        return INVALID_VALUE;
    FUNCTION(e, make);
    int rc = make(&texture, &resource, &how, viewed ? &view : NULL);
    if (!rc && !ibx_handles_add(e->x, IBX_HANDLE_TEXTURE, texture)) {
        undo("cudaDestroyTextureObject", texture);
        rc = MEMORY_ALLOCATION;
    }
    ibx_put_u64(&e->out, texture);
    return rc;
}

static int create_surface(struct extra *e)
{
    int (*make)(unsigned long long *surface, const struct ibx_cuda_resource *resource) = NULL;
    struct ibx_cuda_resource resource;
    unsigned long long surface = 0;
    ibx_resource_get(&e->in, &resource);
    if (!whole(e) || resource.kind != IBX_RESOURCE_ARRAY || !is_resource(e, &resource))
        return INVALID_VALUE;
    FUNCTION(e, make);
    int rc = make(&surface, &resource);
    if (!rc && !ibx_handles_add(e->x, IBX_HANDLE_SURFACE, surface)) {
        undo("cudaDestroySurfaceObject", surface);
        rc = MEMORY_ALLOCATION;
    }
    ibx_put_u64(&e->out, surface);
    return rc;
}

static int destroy(struct extra *e, enum ibx_handle_kind kind)
{
    int (*destroy_object)(unsigned long long object) = NULL;
    const unsigned long long object = ibx_get_u64(&e->in);
    if (!whole(e) || !ibx_handles_remove(e->x, kind, object))
        return INVALID_VALUE;
    FUNCTION(e, destroy_object);
    return destroy_object(object);
}

static int destroy_texture(struct extra *e)
{
    return destroy(e, IBX_HANDLE_TEXTURE);
}

static int destroy_surface(struct extra *e)
{
    return destroy(e, IBX_HANDLE_SURFACE);
}

/* ------------------------------------------------------------------------- memory of pools */

/* Whose it is, is noted as of cudaMalloc. */
static int note_owner(struct extra *e, int rc, void *made, size_t n, void *stream)
{
    struct copies *x = e->x;
    void *context = NULL;
    if (!rc && n && x->isolation.on &&
        (x->cuda->ctx_get_current(&context) ||
         !ibx_owners_add(x->isolation.tenant, (uintptr_t)made, n, context, 0))) {
        int (*give_back)(void *address, void *in_stream) = NULL;
        void *function = ibx_copies_runtime("cudaFreeAsync");
        memcpy(&give_back, &function, sizeof(give_back));
        if (give_back)
            give_back(made, stream);
        rc = MEMORY_ALLOCATION;
    }
    ibx_put_u64(&e->out, rc ? 0 : (uintptr_t)made);
    return rc;
}

static int malloc_async(struct extra *e)
{
    int (*make)(void **address, size_t n, void *stream) = NULL;
    void *made = NULL;
    const size_t n = ibx_get_u64(&e->in);
    void *stream = pointer(&e->in);
    if (!whole(e))
        return INVALID_VALUE;
    if (is_limited(e, "memory of pools") || !ibx_copies_have_cuda(e->x))
        return NOT_SUPPORTED;
    FUNCTION(e, make);
    const int rc = make(&made, n, stream);
    return note_owner(e, rc, made, n, stream);
}

static int malloc_from_pool(struct extra *e)
{
    int (*make)(void **address, size_t n, void *pool, void *stream) = NULL;
    void *made = NULL;
    const size_t n = ibx_get_u64(&e->in);
    void *pool = pointer(&e->in), *stream = pointer(&e->in);
    if (!whole(e) || !is_pool(e, pool))
        return INVALID_VALUE;
    if (is_limited(e, "memory of pools") || !ibx_copies_have_cuda(e->x))
        return NOT_SUPPORTED;
    FUNCTION(e, make);
    const int rc = make(&made, n, pool, stream);
    return note_owner(e, rc, made, n, stream);
}

static int free_async(struct extra *e)
{
    int (*give_back)(void *address, void *stream) = NULL;
    void *address = pointer(&e->in), *stream = pointer(&e->in);
    if (!whole(e) || !mine(e, address, 1))
        return INVALID_VALUE;
    const uint64_t number = e->x->isolation.on ? ibx_owners_number((uintptr_t)address) : 0;
    FUNCTION(e, give_back);
    ibx_gpu_registrations_drop(&e->x->registrations, (uintptr_t)address);
    const int rc = give_back(address, stream);
    if (!rc && number)
        ibx_owners_remove((uintptr_t)address, number);
    return rc;
}

static int pool_of_device(struct extra *e)
{
    int (*get)(void **pool, int device) = NULL;
    void *pool = NULL;
    const int device = (int)ibx_get_u32(&e->in);
    if (!whole(e))
        return INVALID_VALUE;
    FUNCTION(e, get);
    int rc = get(&pool, device);
    if (!rc && !ibx_handles_add(e->x, IBX_HANDLE_POOL, (uintptr_t)pool))
        rc = MEMORY_ALLOCATION;
    ibx_put_u64(&e->out, (uintptr_t)pool);
    return rc;
}

/* Attributes are int up to the fourth and 64 bits from there on; both begin in eight bytes. */
static int set_pool(struct extra *e)
{
    int (*set)(void *pool, int attribute, void *value) = NULL;
    void *pool = pointer(&e->in);
    const int attribute = (int)ibx_get_u32(&e->in);
    uint64_t value = ibx_get_u64(&e->in);
    if (!whole(e) || !is_pool(e, pool))
        return INVALID_VALUE;
    FUNCTION(e, set);
    return set(pool, attribute, &value);
}

static int get_pool(struct extra *e)
{
    int (*get)(void *pool, int attribute, void *value) = NULL;
    uint64_t value = 0;
    void *pool = pointer(&e->in);
    const int attribute = (int)ibx_get_u32(&e->in);
    if (!whole(e) || !is_pool(e, pool))
        return INVALID_VALUE;
    FUNCTION(e, get);
    const int rc = get(pool, attribute, &value);
    ibx_put_u64(&e->out, value);
    return rc;
}

static int trim_pool(struct extra *e)
{
    int (*trim)(void *pool, size_t keep) = NULL;
    void *pool = pointer(&e->in);
    const size_t keep = ibx_get_u64(&e->in);
    if (!whole(e) || !is_pool(e, pool))
        return INVALID_VALUE;
    FUNCTION(e, trim);
    return trim(pool, keep);
}

/* ---------------------------------------------------------------------------------- a launch */

static int launch(struct extra *e)
{
    const size_t n = ibx_get_u16(&e->in);
    const uint8_t *attributes = ibx_get_bytes(&e->in, n);
    const size_t left = ibx_reader_left(&e->in);
    const uint8_t *body = ibx_get_bytes(&e->in, left);
    if (e->in.failed || n % (4 + IBX_EXTRA_ATTRIBUTE))
        return INVALID_VALUE;
    return ibx_copies_launch_as(e->x, body, left, attributes, n / (4 + IBX_EXTRA_ATTRIBUTE));
}

/* --------------------------------------------------------------- functions of the client's */

static int host_open(struct extra *e)
{
    uint64_t id = 0;
    const int rc = whole(e) ? ibx_host_work_open(e->x, &id) : INVALID_VALUE;
    ibx_put_u64(&e->out, id);
    return rc;
}

static int host_add(struct extra *e)
{
    struct ibx_host_work work = {.stream = ibx_get_u64(&e->in)};
    work.queue = ibx_get_u64(&e->in);
    work.number = ibx_get_u64(&e->in);
    work.callback = ibx_get_u8(&e->in);
    if (!whole(e))
        return INVALID_VALUE;
    void *enqueue = work.callback ? ibx_copies_runtime("cudaStreamAddCallback") : e->function;
    return enqueue ? ibx_host_work_add(e->x, &work, enqueue) : NOT_SUPPORTED;
}

static int host_ask(struct extra *e)
{
    uint64_t number = 0;
    int status = 0;
    const uint64_t over = ibx_get_u64(&e->in);
    const bool wait = ibx_get_u8(&e->in);
    const int rc = whole(e) ? ibx_host_work_ask(e->x, over, wait, &number, &status) : INVALID_VALUE;
    ibx_put_u64(&e->out, number);
    ibx_put_u32(&e->out, (uint32_t)status);
    return rc;
}

/* ---------------------------------------------------------------------------------- requests */

static const struct {
    const char *function;
    int (*run)(struct extra *e);
} extras[IBX_EXTRAS] = {
    [IBX_EXTRA_LAUNCH] = {"cudaGetFuncBySymbol", launch},
    [IBX_EXTRA_STREAM_SET_ATTRIBUTE] = {"cudaStreamSetAttribute", set_stream_attribute},
    [IBX_EXTRA_STREAM_GET_ATTRIBUTE] = {"cudaStreamGetAttribute", get_stream_attribute},
    [IBX_EXTRA_RESET_L2] = {"cudaCtxResetPersistingL2Cache", reset_l2},
    [IBX_EXTRA_GET_LIMIT] = {"cudaDeviceGetLimit", get_limit},
    [IBX_EXTRA_SYMBOL_ADDRESS] = {"cudaGetSymbolAddress", symbol_address},
    [IBX_EXTRA_SYMBOL_SIZE] = {"cudaGetSymbolSize", symbol_size},
    [IBX_EXTRA_MALLOC_ARRAY] = {"cudaMalloc3DArray", malloc_array},
    [IBX_EXTRA_FREE_ARRAY] = {"cudaFreeArray", free_array},
    [IBX_EXTRA_TO_ARRAY] = {"cudaMemcpyToArray", to_array},
    [IBX_EXTRA_FROM_ARRAY] = {"cudaMemcpyFromArray", from_array},
    [IBX_EXTRA_2D_TO_ARRAY] = {"cudaMemcpy2DToArray", rows_to_array},
    [IBX_EXTRA_2D_FROM_ARRAY] = {"cudaMemcpy2DFromArray", rows_from_array},
    [IBX_EXTRA_MEMCPY_3D] = {"cudaMemcpy3D", copy_planes},
    [IBX_EXTRA_CHANNEL_DESC] = {"cudaGetChannelDesc", channel_of},
    [IBX_EXTRA_CREATE_TEXTURE] = {"cudaCreateTextureObject", create_texture},
    [IBX_EXTRA_DESTROY_TEXTURE] = {"cudaDestroyTextureObject", destroy_texture},
    [IBX_EXTRA_CREATE_SURFACE] = {"cudaCreateSurfaceObject", create_surface},
    [IBX_EXTRA_DESTROY_SURFACE] = {"cudaDestroySurfaceObject", destroy_surface},
    [IBX_EXTRA_MALLOC_ASYNC] = {"cudaMallocAsync", malloc_async},
    [IBX_EXTRA_MALLOC_FROM_POOL] = {"cudaMallocFromPoolAsync", malloc_from_pool},
    [IBX_EXTRA_FREE_ASYNC] = {"cudaFreeAsync", free_async},
    [IBX_EXTRA_POOL_DEFAULT] = {"cudaDeviceGetDefaultMemPool", pool_of_device},
    [IBX_EXTRA_POOL_CURRENT] = {"cudaDeviceGetMemPool", pool_of_device},
    [IBX_EXTRA_POOL_SET] = {"cudaMemPoolSetAttribute", set_pool},
    [IBX_EXTRA_POOL_GET] = {"cudaMemPoolGetAttribute", get_pool},
    [IBX_EXTRA_POOL_TRIM] = {"cudaMemPoolTrimTo", trim_pool},
    [IBX_EXTRA_HOST_OPEN] = {"cudaLaunchHostFunc", host_open},
    [IBX_EXTRA_HOST_ADD] = {"cudaLaunchHostFunc", host_add},
    [IBX_EXTRA_HOST_ASK] = {"cudaLaunchHostFunc", host_ask},
};

int ibx_copies_extra(struct copies *x, const struct ibx_request *q, struct ibx_writer *out)
{
    struct extra e = {.x = x, .in = ibx_reader_of(q->body, (size_t)q->length), .out = *out};
    const unsigned number = ibx_get_u16(&e.in);
    if (e.in.failed || number >= IBX_EXTRAS || !extras[number].run)
        return NOT_SUPPORTED;
    e.function = ibx_copies_runtime(extras[number].function);
    if (!e.function)
        return NOT_SUPPORTED;
    const int rc = extras[number].run(&e);
    *out = e.out;
    return rc;
}
