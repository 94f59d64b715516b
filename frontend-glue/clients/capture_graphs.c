/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the driver tells of captures, and their graphs, which sessions of a tenant share. */
#include "frontend-glue/clients/captures_internal.h"

struct ibx_captured_work *ibx_captures_work(const struct gpu_session *x)
{
    static struct ibx_captured_work of_nobody = {
        .graphs = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP};
    struct ibx_tenant *tenant = x->isolation.tenant;
    return tenant ? ibx_tenant_captured(tenant) : &of_nobody;
}

bool ibx_capture_would_block(struct gpu_session *x, uint64_t stream)
{
    int (*get)(void *of, unsigned *flags) = NULL;
    unsigned flags = 0;
    if (stream && ibx_back_end_have_cuda(x))
        *(void **)&get = ibx_cuda_symbol("cuStreamGetFlags");
    return get && !get((void *)(uintptr_t)stream, &flags) && !(flags & IBX_STREAM_NON_BLOCKING);
}

bool ibx_capture_status(struct gpu_session *x, uint64_t stream, int *status, uint64_t *id)
{
    int (*get)(void *of, int *found, uint64_t *number, void **graph, void **behind, size_t *count) =
        NULL;
    *status = 0;
    *id = 0;
    if (ibx_back_end_have_cuda(x))
        *(void **)&get = ibx_cuda_symbol("cuStreamGetCaptureInfo_v2");
    return get && !get((void *)(uintptr_t)stream, status, id, NULL, NULL, NULL);
}

bool ibx_capture_is_still(struct gpu_session *x, uint64_t stream, uint64_t id)
{
    int status;
    uint64_t now;
    if (!id || !ibx_capture_status(x, stream, &status, &now))
        return !id;
    return status == CAPTURE_IS_INVALIDATED || (status == CAPTURE_IS_ACTIVE && now == id);
}

bool ibx_captures_active(struct gpu_session *x, uint64_t stream, uint64_t *id)
{
    int status = 0;
    if (!ibx_back_end_have_cuda(x))
        return false;
    if (!ibx_capture_status(x, stream, &status, id) &&
        x->cuda->stream_is_capturing((void *)(uintptr_t)stream, &status))
        return false;
    return status == CAPTURE_IS_ACTIVE;
}

struct known {
    uint64_t id;
    void *graph;
    size_t behind; /* how many nodes the next one comes behind */
};

/* False: no capture is active in the stream, or the driver does not tell. The older function may
 * fail if an edge to the next node would have data. */
static bool get_known(struct gpu_session *x, uint64_t stream, struct known *c)
{
    int (*get)(void *of, int *status, uint64_t *id, void **graph, void **behind, void **edges,
               size_t *count) = NULL;
    int (*get_before)(void *of, int *status, uint64_t *id, void **graph, void **behind,
                      size_t *count) = NULL;
    void *of = (void *)(uintptr_t)stream, *behind, *edges;
    int status = 0, rc = -1;
    if (!ibx_back_end_have_cuda(x))
        return false;
    *(void **)&get = ibx_cuda_symbol("cuStreamGetCaptureInfo_v3");
    *(void **)&get_before = ibx_cuda_symbol("cuStreamGetCaptureInfo_v2");
    if (get)
        rc = get(of, &status, &c->id, &c->graph, &behind, &edges, &c->behind);
    else if (get_before)
        rc = get_before(of, &status, &c->id, &c->graph, NULL, &c->behind);
    return !rc && status == CAPTURE_IS_ACTIVE;
}

/* A session that ends a capture, or destroys a stream, has it alone, before those that come later:
 * launches of many threads would keep it out for ever. So nobody holds it twice. The graph of a
 * capture is a bare address, and the capture may have come to the stream from another one: so it is
 * one lock for all captures that a tenant's clients can end. */
pthread_rwlock_t *ibx_captures_graphs_lock(const struct gpu_session *x)
{
    return &ibx_captures_work(x)->graphs;
}

void ibx_captures_graphs_hold(struct gpu_session *x)
{
    pthread_rwlock_rdlock(ibx_captures_graphs_lock(x));
}

void ibx_captures_graphs_let_go(struct gpu_session *x)
{
    pthread_rwlock_unlock(ibx_captures_graphs_lock(x));
}

bool ibx_captures_graph(struct gpu_session *x, uint64_t stream, uint64_t *id, void **graph)
{
    struct known c = {.graph = NULL};
    ibx_captures_graphs_hold(x);
    if (!get_known(x, stream, &c)) {
        ibx_captures_graphs_let_go(x);
        return false;
    }
    *id = c.id;
    *graph = c.graph;
    return true;
}

size_t ibx_captures_behind(struct gpu_session *x, uint64_t stream)
{
    struct known c = {.graph = NULL};
    return get_known(x, stream, &c) ? c.behind : 0;
}
