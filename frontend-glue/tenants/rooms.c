/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Room of a tenant that a session takes for what it makes, which is reserved before CUDA makes it;
 * and notes whose a handle is.
 */
#include "frontend-glue/tenants/rooms.h"

#include "common/log.h"

#include <stdatomic.h>

static struct ibx_quota *quota_of(const struct gpu_session *x, enum ibx_hold hold)
{
    return x->isolation.tenant ? ibx_tenant_quota(x->isolation.tenant, hold) : NULL;
}

/* Once for each limit. */
void ibx_room_tell(const struct gpu_session *x, enum ibx_hold hold)
{
    static const char *const things[IBX_HOLDS] = {
        [IBX_HOLD_REQUESTS] = "memory for requests",
        [IBX_HOLD_EVENTS] = "events",
        [IBX_HOLD_GRAPHS] = "graphs and nodes",
        [IBX_HOLD_EXECS] = "nodes of graphs that can be launched on a GPU",
        [IBX_HOLD_TEXTURES] = "textures and surfaces",
        [IBX_HOLD_POOLS] = "pools of memory",
        [IBX_HOLD_LIBRARIES] = "handles of libraries",
        [IBX_HOLD_PLANS] = "plans of libraries",
        [IBX_HOLD_DESCRIPTORS] = "descriptors of libraries",
        [IBX_HOLD_GRAPH_PARTS] = "descriptors of cuDNN's graphs",
    };
    if (!x->isolation.tenant || !ibx_tenant_tell_once(x->isolation.tenant, hold))
        return;
    if (hold == IBX_HOLDS)
        ibx_log(IBX_LOG_WARN,
                "clients of tenant \"%s\" get no more than %u graphs within each other",
                ibx_tenant_name(x->isolation.tenant), IBX_EXT_GRAPHS_DEEP);
    else
        ibx_log(IBX_LOG_WARN,
                "clients of tenant \"%s\" get no more %s: they have as many as all of a tenant may "
                "have",
                ibx_tenant_name(x->isolation.tenant), things[hold]);
}

bool ibx_room_take(struct gpu_session *x, enum ibx_hold hold, uint64_t n)
{
    struct ibx_quota *quota = quota_of(x, hold);
    const bool taken = !quota || ibx_quota_take(quota, n);
    if (!taken)
        ibx_room_tell(x, hold);
    return taken;
}

void ibx_room_give(struct gpu_session *x, enum ibx_hold hold, uint64_t n)
{
    struct ibx_quota *quota = quota_of(x, hold);
    if (quota)
        ibx_quota_give(quota, n);
}

int ibx_room_gpu(struct gpu_session *x)
{
    int gpu = 0;
    return ibx_back_end_have_cuda(x) && !x->cuda->ctx_get_device(&gpu) ? gpu : 0;
}

bool ibx_room_has_execs(struct gpu_session *x, uint64_t n)
{
    struct ibx_tenant *tenant = x->isolation.tenant;
    return !tenant || ibx_quota_left(ibx_tenant_execs(tenant, ibx_room_gpu(x))) >= n;
}

bool ibx_room_take_execs(struct gpu_session *x, uint64_t n, struct ibx_room *room)
{
    struct ibx_tenant *tenant = x->isolation.tenant;
    *room = (struct ibx_room){tenant ? ibx_tenant_execs(tenant, ibx_room_gpu(x)) : NULL, n};
    if (!room->quota || ibx_quota_take(room->quota, n))
        return true;
    *room = (struct ibx_room){.quota = NULL};
    ibx_room_tell(x, IBX_HOLD_EXECS);
    return false;
}

void ibx_room_end(struct ibx_room *room)
{
    if (room->quota)
        ibx_quota_give(room->quota, room->n);
    *room = (struct ibx_room){.quota = NULL};
}

bool ibx_room_limited(const struct gpu_session *x, const char *what)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (x->isolation.limited && !atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN,
                "%s gets no %s: their bytes are not counted, which rdma.device_memory asks for",
                ibx_session_path(x->s)->peer, what);
    return x->isolation.limited;
}

bool ibx_room_own(struct gpu_session *x, uint64_t handle)
{
    void *context = NULL;
    return !x->isolation.on || (ibx_back_end_have_cuda(x) && !x->cuda->ctx_get_current(&context) &&
                                ibx_owners_add(x->isolation.tenant, handle, 1, context, 0));
}

uint64_t ibx_room_owned(const struct gpu_session *x, uint64_t handle)
{
    return x->isolation.on ? ibx_owners_number(handle) : 0;
}
