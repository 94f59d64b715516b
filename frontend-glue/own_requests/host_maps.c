/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Requests of our own about page-locked memory of clients, for kernels (clients/host_maps.c). */
#include "frontend-glue/own_requests/own_requests.h"

static int host_map(struct own_request *e)
{
    struct ibx_host_map_wish wish;
    wish.address = ibx_get_u64(&e->in);
    wish.length = ibx_get_u64(&e->in);
    wish.offset = ibx_get_u64(&e->in);
    wish.own = wish.offset == IBX_OWN_OWN_PAGES;
    return whole(e) ? ibx_host_maps_make(e->x, &wish) : CUDA_INVALID_VALUE;
}

static int host_unmap(struct own_request *e)
{
    const uint64_t address = ibx_get_u64(&e->in);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    ibx_host_maps_give_back(e->x, address);
    return 0;
}

const struct own_request_call ibx_host_map_own_requests[IBX_OWN_REQUESTS] = {
    [IBX_OWN_HOST_MAP] = {"cudaGetLastError", host_map},
    [IBX_OWN_HOST_UNMAP] = {"cudaGetLastError", host_unmap},
};
