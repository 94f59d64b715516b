/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Streams, events, graphs, arrays and pools that requests name. CUDA takes their handles for
 * addresses in this process, so one that was made up would crash it, and all other clients'
 * programs with it. So the handle has to be one that a call has returned to the tenant, of
 * something that still exists.
 *
 * An extension request with another handle is answered as CUDA answers an invalid event. In a
 * request for GVirtuS's handler the handle is replaced by 0: no event, no graph, or the legacy
 * stream.
 *
 * If the replies of handlers cannot be read, it is not known what they have returned, and all is
 * allowed.
 */
#include "frontend-glue/handles/handles.h"

#include "common/log.h"

#include <stdatomic.h>
#include <string.h>

static atomic_bool unseen, graph_unseen; /* a handler has returned what could not be read */

void ibx_named_unseen(void)
{
    atomic_store(&unseen, true);
}

bool ibx_named_any_unseen(void)
{
    return atomic_load(&unseen);
}

void ibx_named_graph_unseen(void)
{
    atomic_store(&graph_unseen, true);
}

/* Whether that value was found before, and no stream or event was given back since then. */
static bool is_remembered(struct gpu_session *x, uint64_t *place, uint64_t value)
{
    const unsigned gone = ibx_handles_gone_so_far();
    if (x->named_since != gone)
        memset(x->named, 0, sizeof(x->named));
    x->named_since = gone;
    return *place == value;
}

static bool nobody_knows(const struct gpu_session *x, const atomic_bool *none_seen)
{
    return atomic_load(none_seen) || !ibx_reply_can_read(&x->replies) || !ibx_cuda_load(NULL);
}

static bool is_there(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    uint64_t *place =
        &x->named[kind == IBX_HANDLE_EVENT][(value >> 4 ^ value >> 12) % IBX_NAMED_STREAMS];
    const bool noted = ibx_handles_use(x, value);
    if (noted && is_remembered(x, place, value))
        return true;
    if (noted ? !ibx_handles_has_used(x, kind, value) : !ibx_handles_know(x, kind, value))
        return nobody_knows(x, &unseen);
    if (noted)
        *place = value;
    return true;
}

bool ibx_named_any_event(const struct gpu_session *x)
{
    return nobody_knows(x, &unseen);
}

bool ibx_named_stream(struct gpu_session *x, uint64_t stream)
{
    if (stream == (uintptr_t)IBX_CUDA_STREAM_PER_THREAD && !x->thread_stream)
        ibx_clients_use_thread_stream(x);
    return stream <= (uintptr_t)IBX_CUDA_STREAM_PER_THREAD ||
           is_there(x, IBX_HANDLE_STREAM, stream);
}

bool ibx_named_event(struct gpu_session *x, uint64_t event)
{
    return !event || is_there(x, IBX_HANDLE_EVENT, event);
}

/* CUDA itself refuses 0, except for a free. */
bool ibx_named_array(struct gpu_session *x, uint64_t array)
{
    return !array || ibx_handles_has(x, IBX_HANDLE_ARRAY, array) || nobody_knows(x, &unseen);
}

static bool is_pool(struct gpu_session *x, uint64_t pool)
{
    return !pool || ibx_handles_has(x, IBX_HANDLE_POOL, pool) ||
           ibx_handles_has(x, IBX_HANDLE_MADE_POOL, pool) || nobody_knows(x, &unseen);
}

/* ------------------------------------------------------------------- GVirtuS's handlers */

/* Of a handle: so many bytes behind the beginning, or before the end, < 0, as handlers find it. If
 * `behind_float`, it is behind a float, too, unless the length of that, which is first, is 0. */
struct place {
    bool is;
    enum ibx_handle_kind kind;
    int at;
    bool behind_float;
};
/* clang-format off */
#define E(at) {true, IBX_HANDLE_EVENT, at, false}
#define T(at) {true, IBX_HANDLE_EVENT, at, true}
#define S(at) {true, IBX_HANDLE_STREAM, at, false}
#define G(at) {true, IBX_HANDLE_GRAPH, at, false}
#define X(at) {true, IBX_HANDLE_EXEC, at, false}
#define P(at) {true, IBX_HANDLE_MADE_POOL, at, false}
/* clang-format on */

static const struct {
    const char *name;
    struct place places[2];
} namings[] = {
    {"__cudaPushCallConfiguration", {S(32)}},
    {"cudaConfigureCall", {S(32)}},
    {"cudaEventDestroy", {E(0)}},
    {"cudaEventElapsedTime", {T(8), T(16)}},
    {"cudaEventQuery", {E(0)}},
    {"cudaEventRecord", {E(0), S(8)}},
    {"cudaEventSynchronize", {E(0)}},
    {"cudaGraphDestroy", {G(0)}},
    {"cudaGraphExecDestroy", {X(0)}},
    {"cudaGraphGetNodes", {G(0)}},
    {"cudaGraphInstantiate", {G(0)}},
    {"cudaGraphLaunch", {X(0), S(8)}},
    {"cudaIpcGetEventHandle", {E(72), E(8)}}, /* after the IPC handle, which has 64 bytes or none */
    {"cudaLaunchKernel", {S(40)}},
    {"cudaMemPoolDestroy", {P(0)}},
    {"cudaMemPoolGetAttribute", {P(0)}},
    {"cudaMemcpyAsync", {S(-8)}},
    {"cudaMemcpyPeerAsync", {S(32)}},
    {"cudaMemsetAsync", {S(-8)}},
    {"cudaStreamAddCallback", {S(0)}},
    {"cudaStreamBeginCapture", {S(0)}},
    {"cudaStreamDestroy", {S(0)}},
    {"cudaStreamEndCapture", {S(0)}},
    {"cudaStreamIsCapturing", {S(0)}},
    {"cudaStreamQuery", {S(0)}},
    {"cudaStreamSynchronize", {S(0)}},
    {"cudaStreamWaitEvent", {S(0), E(8)}},
    {"cuEventDestroy", {E(0)}},
    {"cuEventElapsedTime", {T(8), T(16)}},
    {"cuEventQuery", {E(0)}},
    {"cuEventRecord", {E(0), S(8)}},
    {"cuEventSynchronize", {E(0)}},
    {"cuLaunchGridAsync", {S(16)}},
    {"cuLaunchKernel", {S(36)}},
    {"cuMemsetD32Async", {S(20)}},
    {"cuStreamDestroy", {S(0)}},
    {"cuStreamQuery", {S(0)}},
    {"cuStreamSynchronize", {S(0)}},
    {"cuStreamWriteValue32", {S(0)}},
};

void ibx_named_tell(const struct gpu_session *x)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN,
                "%s names a handle in %s (of a stream, an event, a graph, an array, a pool, a "
                "context, a module or a library) that no call has returned, that is gone, or that "
                "is not its to destroy: GVirtuS gets none in its place",
                ibx_session_path(x->s)->peer, x->requests.name);
}

/* Whether there is room for the executable graph, if the handler makes one, and all events of the
 * graph are there. The room is reserved, and the events are held, until it exists. */
static bool has_room(struct gpu_session *x, uint64_t graph)
{
    if (x->handler.task != TASK_EXEC)
        return true;
    x->handler.exec_size = ibx_handles_size(x, IBX_HANDLE_GRAPH, graph);
    ibx_room_end(&x->handler.exec_room);
    return ibx_room_take_execs(x, x->handler.exec_size.nodes, &x->handler.exec_room) &&
           !ibx_graph_events_begin(x, pointer_to(graph));
}

/* Whether the executable graph may be launched, if the handler does that: nobody changes it, and
 * the events are there for which it waits. They are held until the handler has answered. */
static bool may_launch(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    if (kind != IBX_HANDLE_EXEC || strcmp(x->requests.name, "cudaGraphLaunch") != 0 ||
        !ibx_handles_has(x, kind, value))
        return true;
    return ibx_handles_know(x, kind, value) && !ibx_graph_events_launch(x, value);
}

static bool is_known(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    switch (kind) {
    case IBX_HANDLE_STREAM:
        return ibx_named_stream(x, value);
    case IBX_HANDLE_EVENT:
        return ibx_named_event(x, value);
    case IBX_HANDLE_MADE_POOL:
        return is_pool(x, value);
    case IBX_HANDLE_GRAPH: /* held until the handler has answered: others may change it */
        if (ibx_handles_know(x, kind, value))
            return true;
        return !ibx_handles_has(x, kind, value) && nobody_knows(x, &graph_unseen);
    default:
        return ibx_handles_has(x, kind, value) || nobody_knows(x, &graph_unseen);
    }
}

static void invalidate(struct gpu_session *x, const struct place *place, bool ends, uint8_t *body,
                       size_t n)
{
    size_t from = place->at < 0 ? n - (size_t)-place->at : (size_t)place->at;
    if (place->behind_float && ibx_body_number(body, n, 0, 8))
        from += sizeof(float);
    if (from > n || n - from < 8)
        return;
    struct ibx_reader r = ibx_reader_of(body + from, 8);
    const uint64_t value = ibx_get_u64(&r);
    const bool known =
        is_known(x, place->kind, value) && (!ends || ibx_handles_may_end(x, place->kind, value));
    if (known && has_room(x, value) && may_launch(x, place->kind, value))
        return;
    memset(body + from, 0, 8);
    if (!known)
        ibx_named_tell(x);
}

#define NAMINGS (sizeof(namings) / sizeof(namings[0]))

/* x->requests has only the beginning of a long name. */
static size_t find(const char *name)
{
    size_t i = 0;
    while (i < NAMINGS && strncmp(namings[i].name, name,
                                  sizeof(((struct gpu_session *)0)->requests.name) - 1) != 0)
        i++;
    return i;
}

bool ibx_named_knows(const char *name)
{
    return find(name) < NAMINGS;
}

void ibx_named_invalidate(struct gpu_session *x, uint8_t *body, size_t n)
{
    const size_t i = x->options.mode == IBX_GPU_OFF ? NAMINGS : find(x->requests.name);
    const bool ends = i < NAMINGS && strstr(namings[i].name, "Destroy");
    for (unsigned k = 0; i < NAMINGS && k < 2; k++) {
        if (namings[i].places[k].is)
            invalidate(x, &namings[i].places[k], ends, body, n);
    }
}
