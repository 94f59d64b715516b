/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Extension requests about graphs. Graphs, nodes and executable graphs are named by CUDA's
 * handles; the nodes of a graph end with it. A copy between host and device is a function of the
 * client in a graph, like the functions of the application (host_work.c).
 */
#include "frontend-glue/extensions/graphs.h"

#include <stdlib.h>

/* ---------------------------------------------------------------------------------- graphs */

static int answer_graph(struct extension_request *e, int rc, void *graph)
{
    if (!rc && !ibx_graph_note(e->x, IBX_HANDLE_GRAPH, (uintptr_t)graph))
        rc = ibx_extension_no_memory("cudaGraphDestroy", graph);
    ibx_put_u64(&e->out, (uintptr_t)graph);
    return rc;
}

static int create(struct extension_request *e)
{
    int (*make)(void **graph, unsigned flags) = NULL;
    void *graph = NULL;
    const unsigned flags = ibx_get_u32(&e->in);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    if (!ibx_room_take(e->x, IBX_HOLD_GRAPHS, 1))
        return CUDA_MEMORY_ALLOCATION;
    FUNCTION(e, make);
    int rc = make(&graph, flags);
    rc = answer_graph(e, rc, graph);
    ibx_room_give(e->x, IBX_HOLD_GRAPHS, 1);
    return rc;
}

static int clone_graph(struct extension_request *e)
{
    int (*copy)(void **clone, void *graph) = NULL;
    void *made = NULL, *graph = pointer(&e->in);
    if (!whole(e) || !is_graph(e, graph))
        return CUDA_INVALID_VALUE;
    const struct ibx_graph_size size = ibx_handles_size(e->x, IBX_HANDLE_GRAPH, (uintptr_t)graph);
    if (!ibx_room_take(e->x, IBX_HOLD_GRAPHS, size.nodes))
        return CUDA_MEMORY_ALLOCATION;
    FUNCTION(e, copy);
    int rc = copy(&made, graph);
    rc = answer_graph(e, rc, made);
    if (!rc && size.nodes)
        ibx_handles_grow(e->x, (uintptr_t)made, size.nodes - 1, size.depth - 1);
    ibx_room_give(e->x, IBX_HOLD_GRAPHS, size.nodes);
    return rc;
}

/* The request has the graph before it looks whether that may go: one that had it meanwhile may have
 * begun a capture into it, or moved it into another one. */
static int destroy(struct extension_request *e)
{
    int (*give_back)(void *graph) = NULL;
    void *graph = pointer(&e->in);
    if (!whole(e) || !is_graph(e, graph))
        return CUDA_INVALID_VALUE;
    const uint64_t number = ibx_room_owned(e->x, (uintptr_t)graph);
    if (ibx_handles_is_captured(e->x, (uintptr_t)graph))
        return CUDA_ILLEGAL_STATE; /* as CUDA has it */
    if (ibx_handles_is_within(e->x, (uintptr_t)graph) ||
        !ibx_handles_remove(e->x, IBX_HANDLE_GRAPH, (uintptr_t)graph))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, give_back);
    const int rc = give_back(graph);
    ibx_owners_remove((uintptr_t)graph, number);
    return rc;
}

/* The numbers of a graph's functions, while they are searched. */
struct functions {
    const struct gpu_session *x;
    uint64_t *numbers;
    size_t count, room;
    unsigned waited_for; /* functions that may need CUDA to end */
    void *get_nodes;
    int (*type_of)(void *node, int *type);
    int (*function_of)(void *node, void *function_and_argument[2]);
    int (*child_of)(void *node, void **graph);
};

static int add_number(struct functions *f, uint64_t number)
{
    if (f->count == f->room) {
        const size_t room = f->room ? 2 * f->room : 64;
        uint64_t *more = realloc(f->numbers, room * sizeof(*more));
        if (!more)
            return CUDA_MEMORY_ALLOCATION;
        f->numbers = more;
        f->room = room;
    }
    f->numbers[f->count++] = number;
    return 0;
}

static int add_function(struct functions *f, void *node)
{
    void *both[2] = {NULL, NULL}, *ours = NULL;
    void (*call)(void *repeated) = ibx_host_work_call;
    memcpy(&ours, &call, sizeof(ours));
    const int rc = f->function_of(node, both);
    const uint64_t number = !rc && both[0] == ours ? ibx_host_work_number(f->x, both[1]) : 0;
    f->waited_for += number && !ibx_host_work_is_copy(both[1]);
    return number ? add_number(f, number) : rc;
}

static int find_functions(struct functions *f, void *graph, unsigned depth)
{
    size_t count = 0;
    int rc = 0, type;
    void *child = NULL;
    void **nodes = ibx_graph_nodes_of(f->get_nodes, graph, &count, &rc);
    for (size_t i = 0; nodes && i < count && !rc; i++) {
        rc = f->type_of(nodes[i], &type);
        if (!rc && type == HOST_NODE)
            rc = add_function(f, nodes[i]);
        if (!rc && type == CHILD_NODE && depth < IBX_EXT_GRAPHS_DEEP &&
            !(rc = f->child_of(nodes[i], &child)))
            rc = find_functions(f, child, depth + 1);
    }
    free(nodes);
    return rc;
}

/* False: the runtime lacks a function. */
static bool look_up(struct functions *f)
{
    f->get_nodes = ibx_back_end_runtime("cudaGraphGetNodes");
    *(void **)&f->type_of = ibx_back_end_runtime("cudaGraphNodeGetType");
    *(void **)&f->function_of = ibx_back_end_runtime("cudaGraphHostNodeGetParams");
    *(void **)&f->child_of = ibx_back_end_runtime("cudaGraphChildGraphNodeGetGraph");
    return f->get_nodes && f->type_of && f->function_of && f->child_of;
}

/* How many functions may need CUDA to end; 0: none, or they cannot be found. */
static unsigned count_functions(const struct gpu_session *x, void *graph)
{
    struct functions f = {.x = x};
    const bool found = ibx_host_work_repeats() && look_up(&f) && !find_functions(&f, graph, 0);
    free(f.numbers);
    return found ? f.waited_for : 0;
}

int ibx_extension_count_functions(struct gpu_session *x, void *graph, size_t *count)
{
    struct functions f = {.x = x};
    if (!look_up(&f))
        return CUDA_NOT_SUPPORTED;
    const int rc = find_functions(&f, graph, 0);
    *count = f.count;
    free(f.numbers);
    return rc;
}

/* Executable graphs count until they are destroyed. So those of the client make room whose launches
 * have ended. */
static bool take_room(struct extension_request *e, uint64_t nodes, struct ibx_room *room)
{
    ibx_exec_ends_tidy(e->x);
    if (!ibx_room_has_execs(e->x, nodes))
        ibx_exec_ends_settle(e->x, ibx_clients_number(e->x));
    return ibx_room_take_execs(e->x, nodes, room);
}

/* CUDA refuses it as long as there is one of the same graph, if the graph allocates memory: also
 * one that the client has destroyed, and that runs. */
static int make_exec(struct extension_request *e,
                     int (*make)(void **exec, void *graph, unsigned long long flags), void **exec,
                     void *graph, unsigned long long flags)
{
    const bool had_error = ibx_back_end_has_error();
    const int rc = make(exec, graph, flags);
    if (!rc || !ibx_exec_ends_wait_graph(e->x, (uintptr_t)graph))
        return rc;
    if (!had_error)
        ibx_back_end_forget_error();
    return make(exec, graph, flags);
}

static int instantiate(struct extension_request *e)
{
    int (*make)(void **exec, void *graph, unsigned long long flags) = NULL;
    void *exec = NULL, *graph = pointer(&e->in);
    const unsigned long long flags = ibx_get_u64(&e->in);
    if (!whole(e) || !is_graph(e, graph))
        return CUDA_INVALID_VALUE;
    const struct ibx_graph_size size = ibx_handles_size(e->x, IBX_HANDLE_GRAPH, (uintptr_t)graph);
    FUNCTION(e, make);
    struct ibx_room room;
    if (!take_room(e, size.nodes, &room))
        return CUDA_MEMORY_ALLOCATION;
    const unsigned functions = count_functions(e->x, graph);
    int rc = ibx_graph_events_begin(e->x, graph);
    rc = rc ? rc : make_exec(e, make, &exec, graph, flags);
    if (!rc && !ibx_graph_note(e->x, IBX_HANDLE_EXEC, (uintptr_t)exec))
        rc = ibx_extension_no_memory("cudaGraphExecDestroy", exec);
    if (!rc) {
        ibx_handles_made_so(e->x, (uintptr_t)exec, size);
        ibx_handles_made_of(e->x, (uintptr_t)exec, (uintptr_t)graph, functions);
    }
    ibx_room_end(&room);
    ibx_put_u64(&e->out, (uintptr_t)exec);
    return rc;
}

/* Writes how many values there are, and those from number `from` on. */
static void put_list(struct extension_request *e, const uint64_t *values, size_t count,
                     uint64_t from)
{
    ibx_put_u64(&e->out, count);
    for (size_t i = 0; i < IBX_EXT_LISTED; i++)
        ibx_put_u64(&e->out, from < count && i < count - from ? values[from + i] : 0);
}

static int list_nodes(struct extension_request *e)
{
    size_t count = 0;
    int rc = 0;
    void *graph = pointer(&e->in), *function = e->function;
    const uint64_t from = ibx_get_u64(&e->in);
    if (ibx_get_u8(&e->in))
        function = ibx_back_end_runtime("cudaGraphGetRootNodes");
    if (!whole(e) || !is_graph(e, graph) || !function)
        return CUDA_INVALID_VALUE;
    void **nodes = ibx_graph_nodes_of(function, graph, &count, &rc);
    if (!nodes)
        return rc;
    uint64_t values[IBX_EXT_LISTED] = {0};
    for (size_t i = 0; !rc && i < IBX_EXT_LISTED && from < count && i < count - from; i++) {
        values[i] = (uintptr_t)nodes[from + i];
        if (!ibx_handles_list_node(e->x, values[i], (uintptr_t)graph))
            rc = CUDA_MEMORY_ALLOCATION;
    }
    free(nodes);
    ibx_put_u64(&e->out, count);
    for (size_t i = 0; i < IBX_EXT_LISTED; i++)
        ibx_put_u64(&e->out, values[i]);
    return rc;
}

static int list_functions(struct extension_request *e)
{
    struct functions f = {.x = e->x};
    void *graph = pointer(&e->in);
    const uint64_t from = ibx_get_u64(&e->in);
    if (!whole(e) || !is_graph(e, graph))
        return CUDA_INVALID_VALUE;
    if (!look_up(&f))
        return CUDA_NOT_SUPPORTED;
    const int rc = find_functions(&f, graph, 0);
    put_list(e, f.numbers, f.count, from);
    free(f.numbers);
    return rc;
}

/* ------------------------------------------------------------------- what can be launched */

/* What an update has come to. */
struct updated {
    int rc; /* cudaError_t */
    struct {
        int result;
        void *node, *other;
    } told;
    size_t functions; /* of the client, which the graph calls */
    bool plain;       /* none, and no node names an event */
};

/* Finds what the graph's nodes name, unless it is known that they name nothing; the request holds
 * the events. A cudaError_t. While streams are captured their work may come into a graph. */
static int find_named(struct extension_request *e, void *graph, struct updated *u)
{
    const uint64_t changes = ibx_graph_changes();
    u->plain = !ibx_captures_any() && ibx_handles_graph_is_plain(e->x, (uintptr_t)graph);
    ibx_graph_events_end(e->x);
    if (u->plain)
        return 0;
    int rc = ibx_graph_events_begin(e->x, graph);
    if (!rc && ibx_extension_count_functions(e->x, graph, &u->functions))
        u->functions = SIZE_MAX; /* not known */
    u->plain = !rc && !u->functions && !e->x->graph_events.count && !ibx_captures_any();
    if (u->plain)
        ibx_handles_graph_plain(e->x, (uintptr_t)graph, changes);
    return rc;
}

/* Returns an error of the request's; one of CUDA's update is u->rc. */
static int run_update(struct extension_request *e, void *exec, void *graph, struct updated *u)
{
    int (*change)(void *exec, void *graph, void *result) = NULL;
    int (*version)(int *found) = NULL;
    int found = 0;
    if (!ibx_handles_change(e->x, IBX_HANDLE_EXEC, (uintptr_t)exec) || !is_graph(e, graph))
        return CUDA_INVALID_VALUE;
    *(void **)&version = ibx_back_end_runtime("cudaRuntimeGetVersion");
    if (!version || version(&found) || found < 12000)
        return CUDA_NOT_SUPPORTED;
    const int rc = find_named(e, graph, u);
    if (rc)
        return rc;
    FUNCTION(e, change);
    u->rc = change(exec, graph, &u->told);
    if (!u->rc)
        ibx_exec_functions_gone(exec);
    if (!u->rc && !ibx_graph_events_note(e->x, (uintptr_t)exec))
        u->rc = CUDA_MEMORY_ALLOCATION;
    return 0;
}

static void put_updated(struct extension_request *e, const struct updated *u)
{
    ibx_put_u32(&e->out, (uint32_t)u->rc);
    ibx_put_u32(&e->out, (uint32_t)u->told.result);
    ibx_put_u64(&e->out, (uintptr_t)u->told.node);
    ibx_put_u64(&e->out, (uintptr_t)u->told.other);
}

/* An error of the update is part of the answer, with CUDA's result: the request itself succeeds. */
static int update(struct extension_request *e)
{
    struct updated u = {.rc = 0};
    void *exec = pointer(&e->in), *graph = pointer(&e->in);
    const int rc = whole(e) ? run_update(e, exec, graph, &u) : CUDA_INVALID_VALUE;
    if (!rc)
        put_updated(e, &u);
    return rc;
}

/* The same, unless the client's call has returned: nobody reads the answer then. */
static int refresh(struct extension_request *e)
{
    struct updated u = {.rc = 0};
    void *exec = pointer(&e->in), *graph = pointer(&e->in);
    const bool late = ibx_get_u8(&e->in);
    const int rc = whole(e) ? run_update(e, exec, graph, &u) : CUDA_INVALID_VALUE;
    if (rc)
        return rc;
    put_updated(e, &u);
    ibx_put_u64(&e->out, u.functions);
    ibx_put_u32(&e->out, u.plain);
    return late ? u.rc : 0;
}

static int destroy_exec(struct extension_request *e)
{
    int (*give_back)(void *exec) = NULL;
    void *exec = pointer(&e->in);
    struct ibx_exec_left left = {.owned = ibx_room_owned(e->x, (uintptr_t)exec)};
    if (!whole(e) || !ibx_handles_remove_exec(e->x, (uintptr_t)exec, &left.graph, &left.room))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, give_back);
    return ibx_exec_ends_destroy(e->x, exec, give_back, &left);
}

static int upload(struct extension_request *e)
{
    int (*bring)(void *exec, void *stream) = NULL;
    void *exec = pointer(&e->in), *stream = stream_in(e);
    if (!whole(e) || !is_exec(e, exec))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, bring);
    return bring(exec, stream);
}

static int flags_of_exec(struct extension_request *e)
{
    int (*get)(void *exec, unsigned long long *flags) = NULL;
    unsigned long long flags = 0;
    void *exec = pointer(&e->in);
    if (!whole(e) || !is_exec(e, exec))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, get);
    const int rc = get(exec, &flags);
    ibx_put_u64(&e->out, flags);
    return rc;
}

/* ------------------------------------------------------------- captures, memory of graphs */

static int is_capturing(struct extension_request *e)
{
    int (*ask)(void *stream, int *status) = NULL;
    int status = 0;
    void *stream = stream_in(e);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, ask);
    const int rc = ask(stream, &status);
    ibx_put_u32(&e->out, (uint32_t)status);
    return rc;
}

static int capture_function(struct extension_request *e)
{
    int (*launch)(void *stream, void (*function)(void *), void *argument) = NULL;
    int rc = 0;
    void *stream = stream_in(e);
    const uint64_t queue = ibx_get_u64(&e->in), number = ibx_get_u64(&e->in);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    void *repeated = ibx_host_work_repeat(e->x, queue, number, &rc);
    if (rc)
        return rc;
    memcpy(&launch, &e->function, sizeof(launch));
    rc = launch ? launch(stream, ibx_host_work_call, repeated) : CUDA_NOT_SUPPORTED;
    if (rc)
        ibx_host_work_release(repeated);
    else
        ibx_extension_capture_calls(e, stream, repeated);
    return rc;
}

/* Whether there is no memory at the address. Not asked in a capture: memory that the graph
 * allocates need not exist yet. */
static bool is_gone(const struct extension_request *e, const void *address)
{
    return !ibx_captures_any() && ibx_memory_not_there(e->x, (uintptr_t)address, 1);
}

static int set_memory(struct extension_request *e)
{
    int (*set)(void *address, int value, size_t n, void *stream) = NULL;
    void *address = pointer(&e->in);
    const int value = (int)ibx_get_u32(&e->in);
    const size_t n = ibx_get_u64(&e->in);
    void *stream = stream_in(e);
    if (!whole(e) || (n && (is_gone(e, address) || !mine(e, address, n))))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, set);
    return set(address, value, n, stream);
}

static int set_rows(struct extension_request *e)
{
    int (*set)(void *address, size_t pitch, int value, size_t width, size_t rows, void *stream) =
        NULL;
    size_t n = 0;
    void *address = pointer(&e->in);
    const size_t pitch = ibx_get_u64(&e->in);
    const int value = (int)ibx_get_u32(&e->in);
    const size_t width = ibx_get_u64(&e->in), rows = ibx_get_u64(&e->in);
    void *stream = stream_in(e);
    if (!whole(e) ||
        (rows && width &&
         (!span_of(pitch, width, rows, &n) || is_gone(e, address) || !mine(e, address, n))))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, set);
    return set(address, pitch, value, width, rows, stream);
}

/* By the driver, since the runtime has no such call. A single row may have any pitch. */
static int set_elements(struct extension_request *e)
{
    int (*set)(uint64_t at, unsigned value, size_t count, void *stream) = NULL;
    int (*set_rows_of)(uint64_t at, size_t pitch, unsigned value, size_t width, size_t rows,
                       void *stream) = NULL;
    struct ibx_cuda_memset s = {0};
    size_t row = 0, n = 0;
    ibx_layout_get(&e->in, IBX_LAYOUT_MEMSET, &s);
    void *stream = stream_in(e);
    if (!whole(e) || (s.element != 2 && s.element != 4) ||
        __builtin_mul_overflow(s.width, s.element, &row) || (s.height > 1 && s.pitch < row))
        return CUDA_INVALID_VALUE;
    if (!row || !s.height)
        return 0;
    if (!span_of(s.height > 1 ? s.pitch : row, row, s.height, &n) || is_gone(e, s.at) ||
        !mine(e, s.at, n))
        return CUDA_INVALID_VALUE;
    const bool wide = s.element == 4, alone = s.height == 1;
    *(void **)&set = ibx_cuda_symbol(wide ? "cuMemsetD32Async" : "cuMemsetD16Async");
    *(void **)&set_rows_of = ibx_cuda_symbol(wide ? "cuMemsetD2D32Async" : "cuMemsetD2D16Async");
    if (!ready(e) || !set || !set_rows_of)
        return CUDA_NOT_SUPPORTED;
    return alone ? set((uintptr_t)s.at, s.value, s.width, stream)
                 : set_rows_of((uintptr_t)s.at, s.pitch, s.value, s.width, s.height, stream);
}

static int graph_memory(struct extension_request *e)
{
    int (*get)(int device, int attribute, void *value) = NULL;
    uint64_t value = 0;
    const int device = (int)ibx_get_u32(&e->in), attribute = (int)ibx_get_u32(&e->in);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, get);
    const int rc = get(device, attribute, &value);
    ibx_put_u64(&e->out, value);
    return rc;
}

static int trim(struct extension_request *e)
{
    int (*give_back)(int device) = NULL;
    const int device = (int)ibx_get_u32(&e->in);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, give_back);
    return give_back(device);
}

/* ---------------------------------------------------------------------------------- requests */

const struct extension_call ibx_graph_extensions[IBX_EXT_REQUESTS] = {
    [IBX_EXT_IS_CAPTURING] = {"cudaStreamIsCapturing", is_capturing},
    [IBX_EXT_HOST_CAPTURE] = {"cudaLaunchHostFunc", capture_function},
    [IBX_EXT_MEMSET] = {"cudaMemsetAsync", set_memory},
    [IBX_EXT_MEMSET_2D] = {"cudaMemset2DAsync", set_rows},
    [IBX_EXT_MEMSET_ELEMENTS] = {NULL, set_elements},
    [IBX_EXT_GRAPH_CREATE] = {"cudaGraphCreate", create},
    [IBX_EXT_GRAPH_DESTROY] = {"cudaGraphDestroy", destroy},
    [IBX_EXT_GRAPH_CLONE] = {"cudaGraphClone", clone_graph},
    [IBX_EXT_GRAPH_INSTANTIATE] = {"cudaGraphInstantiateWithFlags", instantiate},
    [IBX_EXT_GRAPH_NODES] = {"cudaGraphGetNodes", list_nodes},
    [IBX_EXT_GRAPH_FUNCTIONS] = {"cudaGraphGetNodes", list_functions},
    [IBX_EXT_EXEC_UPDATE] = {"cudaGraphExecUpdate", update},
    [IBX_EXT_EXEC_REFRESH] = {"cudaGraphExecUpdate", refresh},
    [IBX_EXT_EXEC_DESTROY] = {"cudaGraphExecDestroy", destroy_exec},
    [IBX_EXT_EXEC_UPLOAD] = {"cudaGraphUpload", upload},
    [IBX_EXT_EXEC_FLAGS] = {"cudaGraphExecGetFlags", flags_of_exec},
    [IBX_EXT_GRAPH_MEMORY] = {"cudaDeviceGetGraphMemAttribute", graph_memory},
    [IBX_EXT_GRAPH_TRIM] = {"cudaDeviceGraphMemTrim", trim},
};
