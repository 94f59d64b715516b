/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Extension requests about pools of memory, and memory of them. */
#include "frontend-glue/extensions/extensions.h"

bool ibx_extension_is_pool(const struct extension_request *e, const void *pool)
{
    return ibx_handles_know(e->x, IBX_HANDLE_POOL, (uintptr_t)pool) ||
           ibx_handles_know(e->x, IBX_HANDLE_MADE_POOL, (uintptr_t)pool);
}

/* ------------------------------------------------------------------------- memory of pools */

/* Whether the stream is being captured: then launches of the graph allocate and free. */
static bool captures(const struct gpu_session *x, void *stream)
{
    int capturing = 0;
    return ibx_captures_any() && (uintptr_t)stream > 1 &&
           !x->cuda->stream_is_capturing(stream, &capturing) && capturing;
}

/* Notes whose memory it is, as for cudaMalloc. False: it cannot be noted. */
static bool note_tenant(struct gpu_session *x, void *made, size_t n, bool captured)
{
    void *context = NULL;
    if (!x->isolation.on)
        return true;
    if (x->cuda->ctx_get_current(&context) ||
        !ibx_owners_add(x->isolation.tenant, (uintptr_t)made, n, context, 0))
        return false;
    if (captured)
        ibx_owners_keep((uintptr_t)made);
    return true;
}

/* Notes the memory, and clears it, unless a graph allocates it. */
static int note_made(struct extension_request *e, void *made, size_t n, void *stream)
{
    int (*give_back)(void *address, void *in_stream) = NULL;
    const bool captured = captures(e->x, stream);
    int rc = note_tenant(e->x, made, n, captured) ? 0 : CUDA_MEMORY_ALLOCATION;
    if (!rc && !captured)
        rc = ibx_clear_new_in(e->x, (uintptr_t)made, n, stream);
    if (!rc) {
        ibx_memory_add(e->x, (uintptr_t)made, n, captured);
        return 0;
    }
    *(void **)&give_back = ibx_back_end_runtime("cudaFreeAsync");
    if (give_back)
        give_back(made, stream);
    return rc;
}

static int note_owner(struct extension_request *e, int rc, void *made, size_t n, void *stream)
{
    if (!rc && made && n)
        rc = note_made(e, made, n, stream);
    ibx_memory_make_end(e->x);
    ibx_put_u64(&e->out, rc ? 0 : (uintptr_t)made);
    return rc;
}

static int malloc_async(struct extension_request *e)
{
    int (*make)(void **address, size_t n, void *stream) = NULL;
    void *made = NULL;
    const size_t n = ibx_get_u64(&e->in);
    void *stream = stream_in(e);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    if (ibx_room_limited(e->x, "memory of pools") || !ibx_back_end_have_cuda(e->x))
        return CUDA_NOT_SUPPORTED;
    FUNCTION(e, make);
    ibx_memory_make_begin(e->x);
    int rc = make(&made, n, stream);
    while (rc == CUDA_MEMORY_ALLOCATION) {
        ibx_memory_make_end(e->x);
        if (!ibx_client_ends_wait())
            break;
        ibx_back_end_forget_error();
        ibx_memory_make_begin(e->x);
        rc = make(&made, n, stream);
    }
    return note_owner(e, rc, made, n, stream);
}

static int malloc_from_pool(struct extension_request *e)
{
    int (*make)(void **address, size_t n, void *pool, void *stream) = NULL;
    void *made = NULL;
    const size_t n = ibx_get_u64(&e->in);
    void *pool = pointer(&e->in), *stream = stream_in(e);
    if (!whole(e) || !ibx_extension_is_pool(e, pool))
        return CUDA_INVALID_VALUE;
    if (ibx_room_limited(e->x, "memory of pools") || !ibx_back_end_have_cuda(e->x))
        return CUDA_NOT_SUPPORTED;
    FUNCTION(e, make);
    ibx_memory_make_begin(e->x);
    const int rc = make(&made, n, pool, stream);
    return note_owner(e, rc, made, n, stream);
}

/* A free in a capture becomes part of a graph, and CUDA refuses memory that was not allocated by a
 * graph. In both cases the memory stays noted as it is. */
static int free_captured(struct extension_request *e, void *address, void *stream)
{
    int (*give_back)(void *address, void *stream) = NULL;
    uint64_t maker;
    if (!ibx_memory_free_begin(e->x, (uintptr_t)address, &maker))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, give_back);
    const int rc = give_back(address, stream);
    ibx_memory_free_end((uintptr_t)address, maker, false);
    return rc;
}

static int free_async(struct extension_request *e)
{
    int (*give_back)(void *address, void *stream) = NULL;
    void *address = pointer(&e->in), *stream = stream_in(e);
    uint64_t maker;
    if (!whole(e) || !mine(e, address, 1))
        return CUDA_INVALID_VALUE;
    if (ibx_back_end_have_cuda(e->x) && captures(e->x, stream))
        return free_captured(e, address, stream);
    if (!ibx_memory_free_begin(e->x, (uintptr_t)address, &maker))
        return CUDA_INVALID_VALUE;
    const bool noted = e->x->isolation.on && ibx_back_end_have_cuda(e->x);
    const uint64_t number = noted ? ibx_owners_number((uintptr_t)address) : 0;
    FUNCTION(e, give_back);
    ibx_gpu_registrations_freed(&e->x->registrations, (uintptr_t)address);
    if (!ibx_pending_clear_before((uintptr_t)address, stream)) /* cleared in another stream */
        ibx_pending_clear_wait(e->x, (uintptr_t)address);
    ibx_end_gone((uintptr_t)address);
    const int rc = give_back(address, stream);
    ibx_memory_free_end((uintptr_t)address, maker, !rc);
    if (!rc)
        ibx_owners_remove((uintptr_t)address, number);
    return rc;
}

static int pool_of_device(struct extension_request *e)
{
    int (*get)(void **pool, int device) = NULL;
    void *pool = NULL;
    const int device = (int)ibx_get_u32(&e->in);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, get);
    int rc = get(&pool, device);
    if (!rc && !ibx_handles_add(e->x, IBX_HANDLE_POOL, (uintptr_t)pool))
        rc = CUDA_MEMORY_ALLOCATION;
    ibx_put_u64(&e->out, (uintptr_t)pool);
    return rc;
}

/* Attributes 1 to 3 are int, and those from 4 on have 64 bits; both are at the beginning of
 * `value`. */
static int set_pool(struct extension_request *e)
{
    int (*set)(void *pool, int attribute, void *value) = NULL;
    void *pool = pointer(&e->in);
    const int attribute = (int)ibx_get_u32(&e->in);
    uint64_t value = ibx_get_u64(&e->in);
    if (!whole(e) || !ibx_extension_is_pool(e, pool))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, set);
    return set(pool, attribute, &value);
}

static int get_pool(struct extension_request *e)
{
    int (*get)(void *pool, int attribute, void *value) = NULL;
    uint64_t value = 0;
    void *pool = pointer(&e->in);
    const int attribute = (int)ibx_get_u32(&e->in);
    if (!whole(e) || !ibx_extension_is_pool(e, pool))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, get);
    const int rc = get(pool, attribute, &value);
    ibx_put_u64(&e->out, value);
    return rc;
}

static int trim_pool(struct extension_request *e)
{
    int (*trim)(void *pool, size_t keep) = NULL;
    void *pool = pointer(&e->in);
    const size_t keep = ibx_get_u64(&e->in);
    if (!whole(e) || !ibx_extension_is_pool(e, pool))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, trim);
    return trim(pool, keep);
}

/* ---------------------------------------------------------------------- pools of a tenant's */

/* cudaMemPoolProps: page-locked memory of a device. */
struct pool_properties {
    int allocation, handles;
    int at_device, device;
    void *security;
    size_t most;
    unsigned short usage;
    unsigned char reserved[54];
};

static int create_pool(struct extension_request *e)
{
    int (*make)(void **pool, const struct pool_properties *properties) = NULL;
    void *pool = NULL;
    struct pool_properties p = {
        .allocation = 1, .at_device = 1, .device = (int)ibx_get_u32(&e->in)};
    p.most = ibx_get_u64(&e->in);
    p.usage = ibx_get_u16(&e->in);
    p.handles = e->in.position < e->in.length ? ibx_get_u8(&e->in) : 0;
    if (!whole(e) || p.handles & ~IBX_POSIX_FILE)
        return CUDA_INVALID_VALUE;
    if (ibx_room_limited(e->x, "pools of memory"))
        return CUDA_NOT_SUPPORTED;
    if (!ibx_room_take(e->x, IBX_HOLD_POOLS, 1))
        return CUDA_MEMORY_ALLOCATION;
    FUNCTION(e, make);
    int rc = make(&pool, &p);
    if (!rc && !ibx_handles_add(e->x, IBX_HANDLE_MADE_POOL, (uintptr_t)pool)) {
        ibx_back_end_undo("cudaMemPoolDestroy", (uintptr_t)pool);
        rc = CUDA_MEMORY_ALLOCATION;
    }
    ibx_room_give(e->x, IBX_HOLD_POOLS, 1);
    ibx_put_u64(&e->out, (uintptr_t)pool);
    return rc;
}

static int destroy_pool(struct extension_request *e)
{
    int (*give_back)(void *pool) = NULL;
    void *pool = pointer(&e->in);
    if (!whole(e) || !ibx_handles_remove(e->x, IBX_HANDLE_MADE_POOL, (uintptr_t)pool))
        return CUDA_INVALID_VALUE;
    ibx_end_gone((uintptr_t)pool);
    FUNCTION(e, give_back);
    return give_back(pool);
}

/* cudaMemLocation, and cudaMemAccessDesc */
struct access {
    int at_device, device, flags;
};

/* Also a pool of another process, for which CUDA allows only this call. */
static bool is_any_pool(const struct extension_request *e, const void *pool)
{
    return ibx_extension_is_pool(e, pool) ||
           ibx_handles_know(e->x, IBX_HANDLE_OPENED_POOL, (uintptr_t)pool);
}

/* Whether the device would get less access to another device's own pool, whose memory other clients
 * use as well: kernels of theirs would break the context of all. So it keeps its access, as after
 * cudaDeviceDisablePeerAccess(). */
static bool takes_from_others(const struct extension_request *e, void *pool,
                              const struct access *access)
{
    int (*get)(int *flags, void *of, const struct access *location) = NULL;
    int (*pool_of)(void **own, int device) = NULL;
    void *own = NULL;
    int flags = 0;
    *(void **)&get = ibx_back_end_runtime("cudaMemPoolGetAccess");
    *(void **)&pool_of = ibx_back_end_runtime("cudaDeviceGetDefaultMemPool");
    if (!ibx_handles_know(e->x, IBX_HANDLE_POOL, (uintptr_t)pool) || !ibx_clients_several(e->x) ||
        !get || !pool_of || get(&flags, pool, access) || flags <= access->flags)
        return false;
    const bool had_error = ibx_back_end_has_error();
    const int rc = pool_of(&own, access->device);
    if (rc && !had_error)
        ibx_back_end_forget_error();
    return rc || own != pool; /* of its own, CUDA takes no access away */
}

static int set_access(struct extension_request *e)
{
    int (*set)(void *pool, const struct access *list, size_t count) = NULL;
    void *pool = pointer(&e->in);
    struct access access = {.at_device = 1, .device = (int)ibx_get_u32(&e->in)};
    access.flags = (int)ibx_get_u32(&e->in);
    if (!whole(e) || !is_any_pool(e, pool))
        return CUDA_INVALID_VALUE;
    if (takes_from_others(e, pool, &access))
        return 0;
    FUNCTION(e, set);
    return set(pool, &access, 1);
}

static int get_access(struct extension_request *e)
{
    int (*get)(int *flags, void *pool, struct access *location) = NULL;
    int flags = 0;
    void *pool = pointer(&e->in);
    struct access location = {.at_device = 1, .device = (int)ibx_get_u32(&e->in)};
    if (!whole(e) || !is_any_pool(e, pool))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, get);
    const int rc = get(&flags, pool, &location);
    ibx_put_u32(&e->out, (uint32_t)flags);
    return rc;
}

/* ---------------------------------------------------------------------------------- requests */

const struct extension_call ibx_pool_extensions[IBX_EXT_REQUESTS] = {
    [IBX_EXT_MALLOC_ASYNC] = {"cudaMallocAsync", malloc_async},
    [IBX_EXT_MALLOC_FROM_POOL] = {"cudaMallocFromPoolAsync", malloc_from_pool},
    [IBX_EXT_FREE_ASYNC] = {"cudaFreeAsync", free_async},
    [IBX_EXT_POOL_DEFAULT] = {"cudaDeviceGetDefaultMemPool", pool_of_device},
    [IBX_EXT_POOL_CURRENT] = {"cudaDeviceGetMemPool", pool_of_device},
    [IBX_EXT_POOL_SET] = {"cudaMemPoolSetAttribute", set_pool},
    [IBX_EXT_POOL_GET] = {"cudaMemPoolGetAttribute", get_pool},
    [IBX_EXT_POOL_TRIM] = {"cudaMemPoolTrimTo", trim_pool},
    [IBX_EXT_POOL_CREATE] = {"cudaMemPoolCreate", create_pool},
    [IBX_EXT_POOL_DESTROY] = {"cudaMemPoolDestroy", destroy_pool},
    [IBX_EXT_POOL_SET_ACCESS] = {"cudaMemPoolSetAccess", set_access},
    [IBX_EXT_POOL_GET_ACCESS] = {"cudaMemPoolGetAccess", get_access},
};
