/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Extension requests about page-locked memory of clients, for kernels (clients/host_maps.c). */
#include "frontend-glue/extensions/extensions.h"

static int map(struct extension_request *e, bool anywhere)
{
    struct ibx_host_map_wish wish = {.anywhere = anywhere};
    wish.address = ibx_get_u64(&e->in);
    wish.length = ibx_get_u64(&e->in);
    wish.offset = ibx_get_u64(&e->in);
    wish.own = !anywhere && wish.offset == IBX_EXT_OWN_PAGES;
    return whole(e) ? ibx_host_maps_make(e->x, &wish) : CUDA_INVALID_VALUE;
}

static int host_map(struct extension_request *e)
{
    return map(e, false);
}

static int host_map_at(struct extension_request *e)
{
    return map(e, true);
}

static int host_unmap(struct extension_request *e)
{
    const uint64_t address = ibx_get_u64(&e->in);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    ibx_host_maps_give_back(e->x, address);
    return 0;
}

const struct extension_call ibx_host_map_extensions[IBX_EXT_REQUESTS] = {
    [IBX_EXT_HOST_MAP] = {"cudaGetLastError", host_map},
    [IBX_EXT_HOST_MAP_AT] = {"cudaGetLastError", host_map_at},
    [IBX_EXT_HOST_UNMAP] = {"cudaGetLastError", host_unmap},
};
