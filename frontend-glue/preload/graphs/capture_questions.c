/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Questions about the graph of a capture that CUDA answers at the back end: which graph it is, and
 * behind which nodes the next work of a stream comes. The capture stays as it is, and the program
 * may add nodes to that graph. And captures into a graph that the program gives.
 */
#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/preload.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_BYTES (16 + IBX_EXT_TOLD * (8 + IBX_EXT_EDGE))
_Static_assert(PAGE_BYTES <= IBX_EXT_OUT_MAX, "a page of nodes fits into a reply");

/* Reads the nodes from number `from` on. False: the back end cannot tell. */
static bool ask_page(void *stream, size_t from, struct ibx_told *t, int *rc)
{
    struct extension_request e;
    uint8_t bytes[PAGE_BYTES] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    ibx_frontend_request_begin(&e, IBX_EXT_CAPTURE_INFO, "cudaStreamGetCaptureInfo");
    ibx_put_u64(&e.body, (uintptr_t)stream);
    ibx_put_u16(&e.body, (uint16_t)from);
    if (!ibx_frontend_request_known(&e, bytes, sizeof(bytes), rc))
        return false;
    if (*rc)
        return true;
    ibx_get_u32(&r);
    t->count = ibx_get_u32(&r);
    t->graph = (void *)(uintptr_t)ibx_get_u64(&r);
    for (size_t i = from; i < from + IBX_EXT_TOLD && i < t->count && i < IBX_EXT_BEHIND; i++) {
        t->behind[i] = (void *)(uintptr_t)ibx_get_u64(&r);
        memcpy(t->edges + i * IBX_EXT_EDGE, ibx_get_bytes(&r, IBX_EXT_EDGE), IBX_EXT_EDGE);
    }
    return true;
}

bool ibx_frontend_capture_ask(void *stream, struct ibx_told *t, int *rc)
{
    size_t from = 0;
    do {
        if (!ask_page(stream, from, t, rc))
            return false;
        from += IBX_EXT_TOLD;
    } while (!*rc && from < t->count && t->count <= IBX_EXT_BEHIND);
    if (!*rc && t->count > IBX_EXT_BEHIND)
        *rc = ibx_frontend_fail(CUDA_NOT_SUPPORTED);
    return true;
}

static void begin_in(struct extension_request *e, enum ibx_extension number, const char *call,
                     const void *stream, unsigned how)
{
    ibx_frontend_request_begin(e, number, call);
    ibx_put_u64(&e->body, (uintptr_t)stream);
    ibx_put_u32(&e->body, how);
}

/* An older back end gets plain edges: edges.c. */
int ibx_frontend_capture_come_behind(void *stream, const void *graph, void *const *nodes,
                                     const void *edges, size_t count, unsigned flags)
{
    static const char call[] = "cudaStreamUpdateCaptureDependencies";
    struct extension_request e;
    int rc;
    if (count > IBX_EXT_BEHIND)
        return ibx_frontend_fail(CUDA_NOT_SUPPORTED);
    if (ibx_frontend_edges_have_data(edges, count)) {
        begin_in(&e, IBX_EXT_CAPTURE_UPDATE_DATA, call, stream, flags);
        ibx_frontend_put_place(&e, graph, nodes, count);
        ibx_put_bytes(&e.body, edges, count * IBX_EXT_EDGE);
        if (ibx_frontend_request_known(&e, NULL, 0, &rc))
            return rc;
    }
    begin_in(&e, IBX_EXT_CAPTURE_UPDATE, call, stream, flags);
    ibx_frontend_put_place(&e, graph, nodes, count);
    return ibx_frontend_request_make(&e, NULL, 0);
}

bool ibx_frontend_capture_into(void *stream, const void *graph, void *const *behind,
                               const void *edges, size_t count, int mode, int *rc)
{
    struct extension_request e;
    begin_in(&e, IBX_EXT_CAPTURE_INTO, "cudaStreamBeginCaptureToGraph", stream, (unsigned)mode);
    ibx_frontend_put_place(&e, graph, behind, count);
    if (ibx_frontend_edges_have_data(edges, count))
        ibx_put_bytes(&e.body, edges, count * IBX_EXT_EDGE);
    return ibx_frontend_request_known(&e, NULL, 0, rc);
}
