/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The dispatch of extension requests; those about streams, launches, and functions of the
 * client. */
#include "frontend-glue/extensions/extensions.h"
#include "frontend-glue/clients/graph_slots.h"
#include "frontend-glue/tenants/printed.h"

/* ---------------------------------------------------------------- functions, streams */

static int set_stream_attribute(struct extension_request *e)
{
    int (*set)(void *stream, int attribute, const void *value) = NULL;
    _Alignas(8) uint8_t value[IBX_EXT_ATTRIBUTE] = {0};
    void *stream = stream_in(e);
    const int attribute = (int)ibx_get_u32(&e->in);
    const uint8_t *bytes = ibx_get_bytes(&e->in, sizeof(value));
    if (!whole(e) || is_event_attribute((uint32_t)attribute)) /* streams have none of them */
        return CUDA_INVALID_VALUE;
    FUNCTION(e, set);
    memcpy(value, bytes, sizeof(value));
    return set(stream, attribute, value);
}

static int get_stream_attribute(struct extension_request *e)
{
    int (*get)(void *stream, int attribute, void *value) = NULL;
    _Alignas(8) uint8_t value[IBX_EXT_ATTRIBUTE] = {0};
    void *stream = stream_in(e);
    const int attribute = (int)ibx_get_u32(&e->in);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, get);
    const int rc = get(stream, attribute, value);
    ibx_put_bytes(&e->out, value, sizeof(value));
    return rc;
}

static int wait_for_stream(struct extension_request *e)
{
    int (*wait)(void *stream) = NULL;
    void *stream = stream_in(e);
    FUNCTION(e, wait);
    return whole(e) ? wait(stream) : CUDA_INVALID_VALUE;
}

/* Becomes a node of the graph, which records the event in each of its launches. */
static int record_event(struct extension_request *e)
{
    int (*record)(void *event, void *stream, unsigned flags) = NULL;
    void *event = event_in(e), *stream = stream_in(e);
    const unsigned flags = ibx_get_u32(&e->in);
    FUNCTION(e, record);
    return whole(e) ? record(event, stream, flags) : CUDA_INVALID_VALUE;
}

static int reset_l2(struct extension_request *e)
{
    int (*reset)(void) = NULL;
    FUNCTION(e, reset);
    return whole(e) ? reset() : CUDA_INVALID_VALUE;
}

static int get_limit(struct extension_request *e)
{
    int (*get)(size_t * value, int limit) = NULL;
    size_t value = 0;
    const int limit = (int)ibx_get_u32(&e->in);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, get);
    const int rc = get(&value, limit);
    ibx_put_u64(&e->out, value);
    return rc;
}

/* ---------------------------------------------------------------------------------- a launch */

#define STREAM_AT 40 /* offset of the stream in the body of a launch */

/* Whether CUDA may get what a launch names. */
static bool names_good(struct extension_request *e, struct ibx_reader body,
                       struct ibx_reader attributes)
{
    struct extension_request in_stream = {.x = e->x, .in = body};
    ibx_get_bytes(&in_stream.in, STREAM_AT);
    stream_in(&in_stream);
    e->no_handle = in_stream.no_handle;
    e->no_room = in_stream.no_room;
    while (ibx_reader_left(&attributes) && !e->no_handle) {
        const uint32_t id = ibx_get_u32(&attributes);
        attribute_in(e, id, ibx_get_bytes(&attributes, IBX_EXT_ATTRIBUTE));
    }
    return !e->no_handle && !e->no_room;
}

static uint64_t stream_of_launch(const uint8_t *body, size_t n)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    ibx_get_bytes(&r, STREAM_AT);
    return ibx_get_u64(&r);
}

/* A launch, before `after` bytes more. */
static int launch_before(struct extension_request *e, size_t after)
{
    const size_t n = ibx_get_u16(&e->in);
    const uint8_t *attributes = ibx_get_bytes(&e->in, n);
    const size_t all = ibx_reader_left(&e->in), left = all > after ? all - after : 0;
    const uint8_t *body = ibx_get_bytes(&e->in, left);
    if (e->in.failed || n % (4 + IBX_EXT_ATTRIBUTE) ||
        !names_good(e, ibx_reader_of(body, left), ibx_reader_of(attributes, n)))
        return CUDA_INVALID_VALUE;
    const uint64_t stream = stream_of_launch(body, left);
    if (after && (ibx_get_u64(&e->in) != stream || !whole(e)))
        return CUDA_INVALID_VALUE;
    ibx_captures_spare(e->x, stream);
    return ibx_device_launch_as(e->x, body, left, attributes, n / (4 + IBX_EXT_ATTRIBUTE));
}

static int launch(struct extension_request *e)
{
    return launch_before(e, 0);
}

/* The stream follows the launch, too: that is where requests of this name have it. */
static int launch_queued(struct extension_request *e)
{
    return launch_before(e, sizeof(uint64_t));
}

/* --------------------------------------------------------------- functions of the client's */

static int host_open(struct extension_request *e)
{
    uint64_t id = 0;
    const int rc = whole(e) ? ibx_host_work_open(e->x, &id) : CUDA_INVALID_VALUE;
    ibx_put_u64(&e->out, id);
    return rc;
}

static int host_add(struct extension_request *e)
{
    struct ibx_host_work work = {.stream = (uintptr_t)stream_in(e)};
    work.queue = ibx_get_u64(&e->in);
    work.number = ibx_get_u64(&e->in);
    work.callback = ibx_get_u8(&e->in);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    void *enqueue = work.callback ? ibx_back_end_runtime("cudaStreamAddCallback") : e->function;
    return enqueue ? ibx_host_work_add(e->x, &work, enqueue) : CUDA_NOT_SUPPORTED;
}

/* Copies the bytes that the client is to copy into its own memory, if they are few. Returns how
 * many; 0: the client has to request them, or there are none. */
static size_t bytes_of(const struct ibx_host_copy *copy, uint8_t bytes[IBX_EXT_COPIED])
{
    struct ibx_slot_memory memory;
    if (copy->to_device || copy->n > IBX_EXT_COPIED || !copy->slot ||
        !ibx_slot_use(copy->slot, &memory))
        return 0;
    memcpy(bytes, memory.at, copy->n);
    ibx_slot_stop_using(copy->slot);
    return copy->n;
}

static int host_ask(struct extension_request *e)
{
    struct ibx_host_called called = {.number = 0};
    uint8_t bytes[IBX_EXT_COPIED] = {0};
    const uint64_t over = ibx_get_u64(&e->in);
    const bool wait = ibx_get_u8(&e->in);
    const size_t takes_bytes = ibx_reader_left(&e->in); /* not 0: the client does */
    ibx_get_bytes(&e->in, takes_bytes);
    const int rc = whole(e) ? ibx_host_work_ask(e->x, over, wait, &called) : CUDA_INVALID_VALUE;
    ibx_put_u64(&e->out, called.number);
    ibx_put_u32(&e->out, (uint32_t)called.status);
    if (!takes_bytes)
        return rc;
    ibx_put_u32(&e->out, (uint32_t)(rc ? 0 : bytes_of(&called.copy, bytes)));
    ibx_put_bytes(&e->out, bytes, sizeof(bytes));
    return rc;
}

/* --------------------------------------------------------------------- what kernels print */

static int give_printed(struct extension_request *e)
{
    uint8_t bytes[IBX_EXT_PRINTED_MOST] = {0};
    const unsigned wanted = ibx_get_u8(&e->in);
    const uint64_t client = ibx_clients_number(e->x);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    if (!client)
        return CUDA_NOT_SUPPORTED;
    if (wanted & IBX_EXT_PRINTED_ALL)
        ibx_kernel_output_write(e->x);
    const size_t n = ibx_printed_take(client, bytes, sizeof(bytes));
    if (wanted & IBX_EXT_PRINTED_TELL)
        ibx_printed_tell(client);
    ibx_put_u32(&e->out, (uint32_t)n);
    ibx_put_bytes(&e->out, bytes, sizeof(bytes));
    return 0;
}

/* ---------------------------------------------------------------------------------- requests */

static const struct extension_call extras[IBX_EXT_REQUESTS] = {
    [IBX_EXT_LAUNCH] = {"cudaGetFuncBySymbol", launch},
    [IBX_EXT_LAUNCH_QUEUED] = {"cudaGetFuncBySymbol", launch_queued},
    [IBX_EXT_STREAM_SET_ATTRIBUTE] = {"cudaStreamSetAttribute", set_stream_attribute},
    [IBX_EXT_STREAM_GET_ATTRIBUTE] = {"cudaStreamGetAttribute", get_stream_attribute},
    [IBX_EXT_STREAM_WAIT] = {"cudaStreamSynchronize", wait_for_stream},
    [IBX_EXT_RECORD] = {"cudaEventRecordWithFlags", record_event},
    [IBX_EXT_RESET_L2] = {"cudaCtxResetPersistingL2Cache", reset_l2},
    [IBX_EXT_GET_LIMIT] = {"cudaDeviceGetLimit", get_limit},
    [IBX_EXT_HOST_OPEN] = {"cudaLaunchHostFunc", host_open},
    [IBX_EXT_HOST_ADD] = {"cudaLaunchHostFunc", host_add},
    [IBX_EXT_HOST_ASK] = {"cudaLaunchHostFunc", host_ask},
    [IBX_EXT_PRINTED] = {"cudaStreamSynchronize", give_printed},
};

int ibx_extension_held(struct extension_request *e, uint64_t memory, uint64_t n,
                       int (*work)(struct extension_request *e, void *of), void *of)
{
    const struct ibx_cuda *cuda = e->x->cuda;
    int rc = CUDA_INVALID_VALUE;
    ibx_held_by_request(e->x, memory, n);
    if (ibx_isolation_allows_now(e->x, memory, n)) {
        const int mode = ibx_cuda_capture_relax(cuda);
        rc = work(e, of);
        ibx_cuda_capture_restore(cuda, mode);
    }
    ibx_held_end(e->x);
    return rc;
}

int ibx_extension_run(struct gpu_session *x, const struct ibx_request *q, struct ibx_writer *out)
{
    struct extension_request e = {
        .x = x, .in = ibx_reader_of(q->body, (size_t)q->length), .out = *out};
    const unsigned number = ibx_get_u16(&e.in);
    if (e.in.failed || number >= IBX_EXT_REQUESTS)
        return CUDA_NOT_SUPPORTED;
    const struct extension_call *const tables[] = {extras,
                                                   ibx_array_extensions,
                                                   ibx_graph_extensions,
                                                   ibx_node_extensions,
                                                   ibx_copy_extensions,
                                                   ibx_capture_extensions,
                                                   ibx_ipc_extensions,
                                                   ibx_variable_extensions,
                                                   ibx_pool_extensions,
                                                   ibx_query_extensions,
                                                   ibx_host_map_extensions,
                                                   ibx_node_parameter_extensions,
                                                   ibx_virtual_extensions,
                                                   ibx_tensor_extensions,
                                                   ibx_compile_extensions,
                                                   ibx_link_extensions,
                                                   ibx_value_extensions,
                                                   ibx_table_extensions,
                                                   ibx_edge_extensions};
    const struct extension_call *call = NULL;
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]) && !(call && call->run); i++)
        call = &tables[i][number];
    e.function = call->run && call->function ? ibx_back_end_runtime(call->function) : NULL;
    if (!call->run || (call->function && !e.function))
        return CUDA_NOT_SUPPORTED;
    const bool keeps = ibx_extension_keeps_graphs(number);
    if (!keeps)
        ibx_graphs_changed();
    const int rc = call->run(&e);
    if (!keeps)
        ibx_graphs_changed();
    ibx_handles_let_go(x);
    ibx_functions_let_go(&x->launches.user);
    *out = e.out;
    return e.no_handle ? CUDA_INVALID_HANDLE : e.no_room ? CUDA_MEMORY_ALLOCATION : rc;
}
