/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Extension requests about the graph that a stream is captured into, while it is. If the program
 * gives the graph, a request begins the capture, and GVirtuS's handler ends it. CUDA tells which
 * graph that is, and behind which nodes the stream's next work comes; so the program may add nodes
 * to it meanwhile. The graph is the client's from the question on (ibx_captures_tell_graph()), and
 * nobody destroys it until the capture ends.
 *
 * What CUDA tells is in its own memory, until the next call that adds work to the stream: the
 * request has the stream alone, and nobody of the tenant ends a capture meanwhile.
 */
#include "frontend-glue/extensions/graphs.h"

#define CAPTURE_ACTIVE 1  /* enum cudaStreamCaptureStatus */
#define ADD            0u /* enum cudaStreamUpdateCaptureDependenciesFlags */
#define SET            1u

typedef int (*ask_edges)(void *stream, int *status, unsigned long long *id, void **graph,
                         void *const **behind, const void **edges, size_t *count);
typedef int (*ask_plain)(void *stream, int *status, unsigned long long *id, void **graph,
                         void *const **behind, size_t *count);

bool ibx_extension_captured(void *stream, struct extension_captured *c)
{
    ask_edges ask = NULL;
    ask_plain before = NULL;
    const int found = ibx_extension_runtime_version();
    if (!found)
        return false;
    c->edges_known = found >= EDGES_VERSION;
    *(void **)&before = ibx_back_end_runtime("cudaStreamGetCaptureInfo_v2");
    if (found >= EDGES_BEFORE)
        *(void **)&ask = ibx_back_end_runtime(c->edges_known ? "cudaStreamGetCaptureInfo"
                                                             : "cudaStreamGetCaptureInfo_v3");
    if (!ask && (c->edges_known || !before))
        return false;
    const int rc =
        ask ? ask(stream, &c->status, &c->id, &c->graph, &c->behind, &c->edges, &c->count)
            : before(stream, &c->status, &c->id, &c->graph, &c->behind, &c->count);
    return !rc && c->status == CAPTURE_ACTIVE && c->graph;
}

int ibx_extension_come_behind(void *stream, const struct extension_captured *c, void *const *nodes,
                              const uint8_t *edges, size_t count, unsigned flags)
{
    int (*update)(void *of, void *const *nodes, const void *edges, size_t count, unsigned flags) =
        NULL;
    int (*update_before)(void *of, void *const *nodes, size_t count, unsigned flags) = NULL;
    static const char name[] = "cudaStreamUpdateCaptureDependencies";
    void *function = edges ? ibx_extension_with_edges(name) : ibx_back_end_runtime(name);
    memcpy(&update, &function, sizeof(update));
    memcpy(&update_before, &function, sizeof(update_before));
    if (!function)
        return CUDA_NOT_SUPPORTED;
    return c->edges_known || edges ? update(stream, nodes, edges, count, flags)
                                   : update_before(stream, nodes, count, flags);
}

bool ibx_extension_has_alone(const struct extension_request *e, const void *stream)
{
    return !ibx_handles_has(e->x, IBX_HANDLE_STREAM, (uintptr_t)stream) ||
           ibx_handles_use_alone(e->x, IBX_HANDLE_STREAM, (uintptr_t)stream);
}

/* Notes the nodes of a page, and answers with it. */
static int tell(struct extension_request *e, const struct extension_captured *c, size_t from)
{
    static const uint8_t plain[IBX_EXT_EDGE];
    const uint8_t *edges = c->edges;
    int rc = 0;
    ibx_put_u32(&e->out, (uint32_t)c->status);
    ibx_put_u32(&e->out, (uint32_t)c->count);
    ibx_put_u64(&e->out, (uintptr_t)c->graph);
    for (size_t i = 0; i < IBX_EXT_TOLD; i++) {
        const bool is = from < c->count && i < c->count - from;
        void *node = is ? c->behind[from + i] : NULL;
        if (is && !ibx_handles_list_node(e->x, (uintptr_t)node, (uintptr_t)c->graph))
            rc = CUDA_MEMORY_ALLOCATION;
        ibx_put_u64(&e->out, (uintptr_t)node);
        ibx_put_bytes(&e->out, is && edges ? edges + (from + i) * IBX_EXT_EDGE : plain,
                      IBX_EXT_EDGE);
    }
    return rc;
}

/* The stream of a thread of the client's is another one in each thread here: only the thread that
 * captures it asks about it. */
static int get_info(struct extension_request *e)
{
    struct extension_captured c = {.count = 0};
    const uint64_t stream = ibx_get_u64(&e->in), from = ibx_get_u16(&e->in);
    e->no_handle = !ibx_named_stream(e->x, stream);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    if (stream < (uintptr_t)IBX_CUDA_STREAM_PER_THREAD)
        return CUDA_NOT_SUPPORTED;
    if (!ibx_extension_has_alone(e, pointer_to(stream)))
        return CUDA_INVALID_HANDLE;
    int rc = CUDA_NOT_SUPPORTED;
    ibx_captures_graphs_hold(e->x);
    if (ibx_extension_captured(pointer_to(stream), &c))
        rc = ibx_captures_tell_graph(e->x, c.id, (uintptr_t)c.graph);
    rc = rc ? rc : tell(e, &c, from);
    ibx_captures_graphs_let_go(e->x);
    return rc;
}

/* Each dependency counts, as those of events do. */
static bool has_room(struct extension_request *e, uint64_t stream, size_t count)
{
    bool has = true;
    for (size_t i = 0; i < count && has; i++)
        has = ibx_graph_captures_in(e->x, stream);
    e->no_room = e->no_room || !has;
    return has;
}

/* `data`: the request has that of the edges. */
static int change(struct extension_request *e, bool data)
{
    struct extension_captured c = {.count = 0};
    struct place p;
    uint8_t edges[IBX_EXT_BEHIND * IBX_EXT_EDGE];
    void *stream = stream_in(e);
    const unsigned flags = ibx_get_u32(&e->in);
    const bool there = ibx_extension_get_place(e, &p);
    if (!there || (data && !ibx_extension_get_edges(e, edges, p.count)) || !whole(e) || flags > SET)
        return CUDA_INVALID_VALUE;
    if (!has_room(e, (uintptr_t)stream, p.count))
        return CUDA_MEMORY_ALLOCATION;
    if (!ibx_extension_has_alone(e, stream))
        return CUDA_INVALID_HANDLE;
    ibx_captures_graphs_hold(e->x);
    const bool same = ibx_extension_captured(stream, &c) && c.graph == p.graph;
    const int rc =
        !same ? CUDA_INVALID_VALUE
        : flags == ADD && c.count > UINT16_MAX
            ? CUDA_NOT_SUPPORTED
            : ibx_extension_come_behind(stream, &c, p.behind, data ? edges : NULL, p.count, flags);
    ibx_captures_graphs_let_go(e->x);
    return rc;
}

static int update(struct extension_request *e)
{
    return change(e, false);
}

static int update_with_data(struct extension_request *e)
{
    return change(e, true);
}

/* Dependencies count, but the first one, which counts with the work behind it. If that is too much,
 * the capture gets no work. */
static void count_behind(struct extension_request *e, uint64_t stream, size_t count)
{
    for (size_t i = 1; i < count; i++)
        ibx_graph_captures_in(e->x, stream);
}

/* CUDA destroys the graph if the capture fails: so it must not be a part of another one, nor have
 * another capture, also an invalid one. */
static int begin_into(struct extension_request *e)
{
    int (*begin)(void *stream, void *graph, void *const *behind, const void *edges, size_t count,
                 int mode) = NULL;
    struct place p;
    uint8_t edges[IBX_EXT_BEHIND * IBX_EXT_EDGE];
    const uint64_t stream = ibx_get_u64(&e->in);
    e->no_handle = !ibx_named_stream(e->x, stream);
    const int mode = (int)ibx_get_u32(&e->in);
    const bool there = ibx_extension_get_place(e, &p), data = ibx_reader_left(&e->in);
    if (!there || (data && !ibx_extension_get_edges(e, edges, p.count)) || !whole(e))
        return CUDA_INVALID_VALUE;
    if (ibx_handles_is_within(e->x, (uintptr_t)p.graph))
        return CUDA_NOT_SUPPORTED;
    if (ibx_handles_is_captured(e->x, (uintptr_t)p.graph))
        return CUDA_ILLEGAL_STATE;
    if (!ibx_extension_has_alone(e, pointer_to(stream)))
        return CUDA_INVALID_HANDLE;
    FUNCTION(e, begin);
    ibx_captures_begins(e->x, stream);
    ibx_captures_graphs_hold(e->x);
    int rc = begin(pointer_to(stream), p.graph, p.behind, data ? edges : NULL, p.count, mode);
    rc = ibx_captures_begun(e->x, stream, rc, (uintptr_t)p.graph);
    ibx_captures_graphs_let_go(e->x);
    if (!rc)
        count_behind(e, stream, p.count);
    return rc;
}

/* ---------------------------------------------------------------------------------- requests */

const struct extension_call ibx_capture_extensions[IBX_EXT_REQUESTS] = {
    [IBX_EXT_CAPTURE_INFO] = {"cudaStreamUpdateCaptureDependencies", get_info},
    [IBX_EXT_CAPTURE_UPDATE] = {"cudaStreamUpdateCaptureDependencies", update},
    [IBX_EXT_CAPTURE_INTO] = {"cudaStreamBeginCaptureToGraph", begin_into},
    [IBX_EXT_CAPTURE_UPDATE_DATA] = {"cudaStreamUpdateCaptureDependencies", update_with_data},
};
