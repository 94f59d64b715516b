/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Extension requests about memory that is mapped to reserved addresses (virtual_memory.h). */
#include "frontend-glue/extensions/extensions.h"
#include "frontend-glue/clients/virtual_memory.h"

/* 0, or the exit code of the request: its bytes are wrong, or the driver lacks such memory. */
static int begins(const struct extension_request *e)
{
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    return ready(e) && ibx_virtual_is_known() ? 0 : CUDA_NOT_SUPPORTED;
}

static int granularity(struct extension_request *e)
{
    size_t n = 0;
    const int device = (int)ibx_get_u32(&e->in), option = (int)ibx_get_u32(&e->in);
    int rc = begins(e);
    if (!rc)
        rc = ibx_virtual_granularity(e->x, device, option, &n);
    ibx_put_u64(&e->out, n);
    return rc;
}

/* ------------------------------------------------------------------------------- addresses */

/* Notes whose addresses they are, as for cudaMalloc. */
static bool note(struct gpu_session *x, uint64_t begin, uint64_t n, const void *context)
{
    return (!x->isolation.on || ibx_owners_add(x->isolation.tenant, begin, n, context, 0)) &&
           ibx_memory_add(x, begin, n, false);
}

/* The address that the client wishes for is ignored: addresses are those of this process. */
static int reserve(struct extension_request *e)
{
    const size_t n = ibx_get_u64(&e->in), alignment = ibx_get_u64(&e->in);
    const void *context = NULL;
    uint64_t begin = 0;
    int rc = begins(e);
    if (rc || !n)
        return rc ? rc : CUDA_INVALID_VALUE;
    ibx_memory_make_begin(e->x);
    rc = ibx_virtual_reserve(e->x, n, alignment, &begin, &context);
    if (!rc && !note(e->x, begin, n, context)) {
        ibx_owners_remove(begin, ibx_room_owned(e->x, begin));
        ibx_virtual_end_addresses(begin);
        rc = CUDA_MEMORY_ALLOCATION;
    }
    ibx_memory_make_end(e->x);
    ibx_put_u64(&e->out, rc ? 0 : begin);
    return rc;
}

/* Gives back all addresses of one reservation, if nothing is mapped there. Other threads of the
 * client may map something, or give them back, until the last moment. */
static int free_addresses(struct extension_request *e)
{
    const uint64_t begin = ibx_get_u64(&e->in), n = ibx_get_u64(&e->in);
    uint64_t maker;
    const int rc = begins(e);
    if (rc)
        return rc;
    if (!ibx_virtual_is_empty(e->x, begin, n) || !ibx_memory_free_begin(e->x, begin, &maker))
        return CUDA_INVALID_VALUE;
    const uint64_t number = ibx_room_owned(e->x, begin);
    const bool freed = ibx_virtual_free(e->x, begin, n);
    ibx_memory_free_end(begin, maker, freed);
    if (freed)
        ibx_owners_remove(begin, number);
    return freed ? 0 : CUDA_INVALID_VALUE;
}

/* ---------------------------------------------------------------------------------- memory */

static int create(struct extension_request *e)
{
    const size_t n = ibx_get_u64(&e->in);
    const int device = (int)ibx_get_u32(&e->in);
    uint64_t number = 0;
    int rc = begins(e);
    if (!rc)
        rc = ibx_virtual_create(e->x, n, device, &number);
    if (rc)
        return rc;
    if (!ibx_handles_add(e->x, IBX_HANDLE_MAPPABLE, number)) {
        ibx_virtual_end_memory(number);
        return CUDA_MEMORY_ALLOCATION;
    }
    ibx_put_u64(&e->out, number);
    return 0;
}

static int release(struct extension_request *e)
{
    const uint64_t number = ibx_get_u64(&e->in);
    const int rc = begins(e);
    if (rc || !ibx_handles_remove(e->x, IBX_HANDLE_MAPPABLE, number))
        return rc ? rc : CUDA_INVALID_VALUE;
    ibx_ipc_mappable_gone(number);
    ibx_virtual_end_memory(number);
    return 0;
}

/* -------------------------------------------------------------------------------- mappings */

static int map(struct extension_request *e)
{
    const uint64_t at = ibx_get_u64(&e->in), n = ibx_get_u64(&e->in), number = ibx_get_u64(&e->in);
    const int rc = begins(e);
    if (rc || !ibx_handles_know(e->x, IBX_HANDLE_MAPPABLE, number))
        return rc ? rc : CUDA_INVALID_VALUE;
    return ibx_virtual_map(e->x, at, n, number);
}

/* Waits until copies of the client that are under way there have ended, but not for those of
 * others. */
static int unmap(struct extension_request *e)
{
    const uint64_t at = ibx_get_u64(&e->in), n = ibx_get_u64(&e->in);
    int rc = begins(e);
    if (rc || at + n < at || !ibx_isolation_allows(e->x, at, n))
        return rc ? rc : CUDA_INVALID_VALUE;
    ibx_held_by_unmap(e->x, at, n);
    rc = ibx_virtual_unmap(e->x, at, n);
    ibx_held_end(e->x);
    return rc;
}

static int set_access(struct extension_request *e)
{
    const uint64_t at = ibx_get_u64(&e->in), n = ibx_get_u64(&e->in);
    const int device = (int)ibx_get_u32(&e->in);
    const unsigned flags = ibx_get_u32(&e->in);
    const int rc = begins(e);
    return rc ? rc : ibx_virtual_set_access(e->x, at, n, device, flags);
}

static int get_access(struct extension_request *e)
{
    unsigned long long flags = 0;
    const uint64_t at = ibx_get_u64(&e->in);
    const int device = (int)ibx_get_u32(&e->in);
    int rc = begins(e);
    if (!rc)
        rc = ibx_virtual_get_access(e->x, at, device, &flags);
    ibx_put_u64(&e->out, flags);
    return rc;
}

/* ---------------------------------------------------------------------------------- requests */

const struct extension_call ibx_virtual_extensions[IBX_EXT_REQUESTS] = {
    [IBX_EXT_VIRTUAL_GRANULARITY] = {NULL, granularity},
    [IBX_EXT_VIRTUAL_RESERVE] = {NULL, reserve},
    [IBX_EXT_VIRTUAL_FREE] = {NULL, free_addresses},
    [IBX_EXT_VIRTUAL_CREATE] = {NULL, create},
    [IBX_EXT_VIRTUAL_RELEASE] = {NULL, release},
    [IBX_EXT_VIRTUAL_MAP] = {NULL, map},
    [IBX_EXT_VIRTUAL_UNMAP] = {NULL, unmap},
    [IBX_EXT_VIRTUAL_SET_ACCESS] = {NULL, set_access},
    [IBX_EXT_VIRTUAL_GET_ACCESS] = {NULL, get_access},
};
