/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The peer's memory for who copies it without posts: a GPU, or several threads.
 * While it is held the claim says so (shm_memory.c), as during any copy that this
 * side makes alone; there is one claim a side, and so no chunk may be under way.
 */
#include "transport/shm/shm.h"

#include <errno.h>

int ibx_shm_remote_hold(void *endpoint, const struct ibx_remote *remote, unsigned access,
                        struct ibx_reach *reach)
{
    struct shm *shm = endpoint;
    if (shm->urgent.head || shm->bulk.head || ibx_shm_ask_open(shm))
        return -EBUSY;
    int rc = ibx_shm_region_claim_whole(shm, remote, access, reach);
    if (rc)
        return rc;
    reach->copies = !reach->address && shm->direct;
    if (reach->address || reach->copies)
        return 0;
    ibx_shm_region_unclaim(shm);
    return -EOPNOTSUPP;
}

void ibx_shm_remote_release(void *endpoint)
{
    ibx_shm_region_unclaim(endpoint);
}

int ibx_shm_remote_copy(void *endpoint, bool read, void *local, uint64_t address, size_t length)
{
    return ibx_shm_direct_copy(endpoint, read, local, address, length);
}
