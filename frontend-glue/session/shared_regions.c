/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Memory that both ends map (ibx_shared_allocate()) stays registered between the client's copies
 * over shm, which then take a quarter fewer instructions. The peer gains no access by that: it can
 * read and write all such memory until the process ends. A freed piece is not found any more, and
 * memory that is allocated there later is registered again.
 */
#include "frontend-glue/session/session_internal.h"

#include <string.h>

static void leave(struct shared_region *region)
{
    region->left = true;
    if (region->users)
        return;
    ibx_mr_deregister(region->mr);
    *region = (struct shared_region){0};
}

static bool has(const struct shared_region *region, const void *data, size_t length)
{
    /* an address below the piece wraps, and is too large as well */
    const uintptr_t at = (uintptr_t)data - (uintptr_t)ibx_mr_address(region->mr);
    const size_t whole = ibx_mr_length(region->mr);
    return at <= whole && length <= whole - at;
}

/* A place that is not in use, in turn; NULL: all are in use. */
static struct shared_region *place(struct ibx_session *s)
{
    for (unsigned i = 0; i < SHARED_REGIONS; i++) {
        struct shared_region *region = &s->shared[s->shared_next++ % SHARED_REGIONS];
        if (region->mr && !region->users)
            leave(region);
        if (!region->mr)
            return region;
    }
    return NULL;
}

static struct ibx_mr *add(struct ibx_session *s, const void *data, size_t length, uint64_t freed)
{
    const unsigned both = IBX_ACCESS_REMOTE_READ | IBX_ACCESS_REMOTE_WRITE;
    struct ibx_span piece;
    struct ibx_mr *mr;
    if (s->server || strcmp(ibx_conn_path(s->conn)->provider, "shm") != 0 ||
        !ibx_shared_piece(data, length, &piece))
        return NULL;
    struct shared_region *region = place(s);
    if (!region || ibx_mr_register(s->conn, &piece, both, &mr, NULL))
        return NULL;
    *region = (struct shared_region){.mr = mr, .users = 1, .freed = freed};
    return mr;
}

struct ibx_mr *ibx_shared_region_get(struct ibx_session *s, const void *data, size_t length)
{
    const uint64_t freed = ibx_shared_freed();
    for (unsigned i = 0; i < SHARED_REGIONS; i++) {
        struct shared_region *region = &s->shared[i];
        if (!region->mr || region->left)
            continue;
        if (region->freed != freed) {
            leave(region);
        } else if (has(region, data, length) && ibx_mr_usable(region->mr)) {
            region->users++;
            return region->mr;
        }
    }
    return add(s, data, length, freed);
}

bool ibx_shared_region_put(struct ibx_session *s, struct ibx_mr *mr)
{
    for (unsigned i = 0; i < SHARED_REGIONS; i++) {
        struct shared_region *region = &s->shared[i];
        if (region->mr != mr)
            continue;
        if (!--region->users && region->left)
            leave(region);
        return true;
    }
    return false;
}

void ibx_shared_regions_leave(struct ibx_session *s)
{
    for (unsigned i = 0; i < SHARED_REGIONS; i++) {
        if (s->shared[i].mr)
            leave(&s->shared[i]);
    }
}
