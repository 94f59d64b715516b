/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Extension requests about the nodes of graphs. */
#include "frontend-glue/extensions/graphs.h"

#define CONDITIONAL_NODE 13 /* enum cudaGraphNodeType */
#define MOVE             1  /* cudaGraphChildGraphOwnershipMove */

_Static_assert(IBX_HANDLES_HELD >= IBX_EXT_BEHIND + IBX_EXT_GRAPHS_DEEP + 1,
               "a new node depends on nodes of a graph that is within others");

bool ibx_extension_get_place(struct extension_request *e, struct place *p)
{
    p->inner = p->weight = 0;
    p->depth = 0;
    p->graph = pointer(&e->in);
    p->count = ibx_get_u16(&e->in);
    if (p->count > IBX_EXT_BEHIND || !is_graph(e, p->graph))
        return false;
    for (size_t i = 0; i < p->count; i++) {
        p->behind[i] = pointer(&e->in);
        if (!ibx_handles_is_node_of(e->x, (uintptr_t)p->behind[i], (uintptr_t)p->graph))
            return false;
    }
    return true;
}

int ibx_extension_node_room(struct extension_request *e, struct place *p)
{
    return ibx_graph_node_room(e->x, p->graph, p->count, p->inner, p->depth, &p->weight);
}

int ibx_extension_answer_node(struct extension_request *e, int rc, struct place *p, void *node)
{
    if (!rc &&
        !ibx_handles_add_node(e->x, (uintptr_t)node, (uintptr_t)p->graph, p->weight, p->depth))
        rc = ibx_extension_no_memory("cudaGraphDestroyNode", node);
    ibx_room_give(e->x, IBX_HOLD_GRAPHS, p->weight);
    p->weight = 0;
    ibx_put_u64(&e->out, (uintptr_t)node);
    return rc;
}

static int add_kernel(struct extension_request *e)
{
    struct place p;
    if (!ibx_extension_get_place(e, &p))
        return CUDA_INVALID_VALUE;
    const size_t left = ibx_reader_left(&e->in);
    struct ibx_kernel_node k = {.graph = p.graph, .behind = p.behind, .count = p.count};
    int rc = ibx_extension_node_room(e, &p);
    rc = rc ? rc : ibx_device_kernel_node(e->x, ibx_get_bytes(&e->in, left), left, &k);
    return ibx_extension_answer_node(e, rc, &p, k.node);
}

bool ibx_extension_get_node(struct extension_request *e, void **exec, void **node)
{
    *exec = pointer(&e->in);
    *node = pointer(&e->in);
    return !e->in.failed && (*exec ? ibx_handles_has_node(e->x, (uintptr_t)*exec, (uintptr_t)*node)
                                   : is_node(e, *node));
}

static int set_kernel(struct extension_request *e)
{
    struct ibx_kernel_node k = {.graph = NULL};
    if (!ibx_extension_get_node(e, &k.exec, &k.node))
        return CUDA_INVALID_VALUE;
    const size_t left = ibx_reader_left(&e->in);
    return ibx_device_kernel_node(e->x, ibx_get_bytes(&e->in, left), left, &k);
}

/* Adds a node by a call of the runtime that takes a graph, nodes to depend on, and `last`. */
static int make_node(struct extension_request *e, struct place *p, const void *last, void **node)
{
    int (*add)(void **made, void *graph, void *const *behind, size_t count, const void *what) =
        NULL;
    const int rc = ibx_extension_node_room(e, p);
    FUNCTION(e, add);
    return rc ? rc : add(node, p->graph, p->behind, p->count, last);
}

static int add_noted(struct extension_request *e, struct place *p, const void *last, void **node)
{
    const int rc = make_node(e, p, last, node);
    return ibx_extension_answer_node(e, rc, p, *node);
}

static int add_node(struct extension_request *e, struct place *p, const void *last)
{
    void *node = NULL;
    return add_noted(e, p, last, &node);
}

/* Sets a node's parameters: in its graph by the request's function, or in the executable graph
 * `exec`, if that is not NULL, by the function named `of_exec`. */
static int set_node(struct extension_request *e, void *exec, void *node, const char *of_exec,
                    const void *parameters)
{
    int (*set)(void *node, const void *parameters) = NULL;
    int (*set_exec)(void *exec, void *node, const void *parameters) = NULL;
    FUNCTION(e, set);
    *(void **)&set_exec = ibx_back_end_runtime(of_exec);
    if (!exec)
        return set(node, parameters);
    return set_exec ? set_exec(exec, node, parameters) : CUDA_NOT_SUPPORTED;
}

static int add_copy(struct extension_request *e)
{
    struct place p;
    struct ibx_cuda_memcpy3d copy = {0};
    const bool there = ibx_extension_get_place(e, &p);
    ibx_layout_get(&e->in, IBX_LAYOUT_MEMCPY3D, &copy);
    if (!there || !whole(e) || !ibx_extension_is_copy(e, &copy))
        return CUDA_INVALID_VALUE;
    const int rc = add_node(e, &p, &copy);
    if (!rc)
        ibx_extension_graph_has_copy(e, p.graph, &copy);
    return rc;
}

static int set_copy(struct extension_request *e)
{
    void *exec, *node;
    struct ibx_cuda_memcpy3d copy = {0};
    const bool there = ibx_extension_get_node(e, &exec, &node);
    ibx_layout_get(&e->in, IBX_LAYOUT_MEMCPY3D, &copy);
    if (!there || !whole(e) || !ibx_extension_is_copy(e, &copy))
        return CUDA_INVALID_VALUE;
    const int rc = set_node(e, exec, node, "cudaGraphExecMemcpyNodeSetParams", &copy);
    if (!rc && exec)
        ibx_extension_exec_has_copy(e, exec, node, &copy);
    else if (!rc)
        ibx_extension_graph_has_copy(
            e, pointer_to(ibx_handles_graph_of(e->x, (uintptr_t)node, false)), &copy);
    return rc;
}

static bool is_set(const struct extension_request *e, const struct ibx_cuda_memset *set)
{
    size_t n, row;
    if (__builtin_mul_overflow(set->width, set->element, &row) || !set->height ||
        __builtin_mul_overflow(set->pitch, set->height - 1, &n) ||
        __builtin_add_overflow(n, row, &n))
        return false;
    return mine(e, set->at, n);
}

static int add_memset(struct extension_request *e)
{
    struct place p;
    struct ibx_cuda_memset set = {0};
    const bool there = ibx_extension_get_place(e, &p);
    ibx_layout_get(&e->in, IBX_LAYOUT_MEMSET, &set);
    return there && whole(e) && is_set(e, &set) ? add_node(e, &p, &set) : CUDA_INVALID_VALUE;
}

static int set_memset(struct extension_request *e)
{
    void *exec, *node;
    struct ibx_cuda_memset set = {0};
    const bool there = ibx_extension_get_node(e, &exec, &node);
    ibx_layout_get(&e->in, IBX_LAYOUT_MEMSET, &set);
    return there && whole(e) && is_set(e, &set)
               ? set_node(e, exec, node, "cudaGraphExecMemsetNodeSetParams", &set)
               : CUDA_INVALID_VALUE;
}

static int get_memset(struct extension_request *e)
{
    int (*get)(void *node, struct ibx_cuda_memset *set) = NULL;
    struct ibx_cuda_memset set = {0};
    void *node = pointer(&e->in);
    if (!whole(e) || !is_node(e, node))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, get);
    const int rc = get(node, &set);
    ibx_layout_put(&e->out, IBX_LAYOUT_MEMSET, &set);
    return rc;
}

static int add_host(struct extension_request *e)
{
    struct place p;
    int rc = 0;
    void *node = NULL;
    struct {
        void (*function)(void *argument);
        void *argument;
    } host = {.function = ibx_host_work_call};
    const bool there = ibx_extension_get_place(e, &p);
    const uint64_t queue = ibx_get_u64(&e->in), number = ibx_get_u64(&e->in);
    if (!there || !whole(e))
        return CUDA_INVALID_VALUE;
    host.argument = ibx_host_work_repeat(e->x, queue, number, &rc);
    if (rc)
        return rc;
    rc = add_noted(e, &p, &host, &node);
    if (rc)
        ibx_host_work_release(host.argument);
    else
        ibx_extension_node_calls(e, node, host.argument);
    return rc;
}

static int add_empty(struct extension_request *e)
{
    struct place p;
    return ibx_extension_get_place(e, &p) && whole(e) ? add_node(e, &p, NULL) : CUDA_INVALID_VALUE;
}

/* A graph has come into another one, which may be of a conditional node. An executable graph need
 * not have the objects of what is within such a graph, and it is not known which these are. */
static void comes_into(struct extension_request *e, const void *graph)
{
    if (!ibx_handles_is_within(e->x, (uintptr_t)graph))
        return;
    ibx_functions_left_in_graphs(ibx_functions_user_of(e->x)->client, true);
    ibx_arrays_left_in_graphs(e->x);
}

/* CUDA ends the process if a graph is to be within itself. */
static int add_child(struct extension_request *e)
{
    struct place p;
    const bool there = ibx_extension_get_place(e, &p);
    const void *child = pointer(&e->in);
    if (!there || !whole(e) || !is_graph(e, child) ||
        ibx_handles_contains(e->x, (uintptr_t)child, (uintptr_t)p.graph))
        return CUDA_INVALID_VALUE;
    const struct ibx_graph_size size = ibx_handles_size(e->x, IBX_HANDLE_GRAPH, (uintptr_t)child);
    p.inner = size.nodes;
    p.depth = size.depth;
    comes_into(e, p.graph);
    return add_node(e, &p, child);
}

static int add_event(struct extension_request *e)
{
    struct place p;
    const bool there = ibx_extension_get_place(e, &p);
    const void *event = event_in(e);
    return there && whole(e) ? add_node(e, &p, event) : CUDA_INVALID_VALUE;
}

/* struct cudaMemAllocNodeParams */
struct allocation {
    int kind, shared_as;
    int at_device, device;
    void *security;
    size_t most;
    unsigned char reserved[56];
    const void *access;
    size_t access_count, n;
    void *address;
};

struct access {
    int at_device, device;
    int flags;
};

/* Which devices may use the memory, besides its own: the rest of the request. */
static bool get_accesses(struct extension_request *e, struct allocation *a,
                         struct access list[IBX_EXT_ACCESSES])
{
    a->access_count = ibx_reader_left(&e->in) / 8;
    a->access = a->access_count ? list : NULL;
    if (a->access_count > IBX_EXT_ACCESSES)
        return false;
    for (size_t i = 0; i < a->access_count; i++) {
        const int device = (int)ibx_get_u32(&e->in);
        list[i] = (struct access){1, device, (int)ibx_get_u32(&e->in)};
    }
    return whole(e);
}

/* Notes whose memory it is, as for cudaMalloc, for as long as the graph may be launched. False: it
 * cannot be noted. */
static bool note_owner(const struct extension_request *e, const struct allocation *a)
{
    const struct isolation *i = &e->x->isolation;
    void *context = NULL;
    if (!i->on || !a->n)
        return true;
    if (e->x->cuda->ctx_get_current(&context) ||
        !ibx_owners_add(i->tenant, (uintptr_t)a->address, a->n, context, 0))
        return false;
    ibx_owners_keep((uintptr_t)a->address);
    return true;
}

static int add_allocation(struct extension_request *e)
{
    struct place p;
    void *node = NULL;
    const bool there = ibx_extension_get_place(e, &p);
    struct allocation a = {.kind = 1, .at_device = 1, .device = (int)ibx_get_u32(&e->in)};
    struct access accesses[IBX_EXT_ACCESSES];
    a.n = ibx_get_u64(&e->in);
    if (!there || !get_accesses(e, &a, accesses))
        return CUDA_INVALID_VALUE;
    if (ibx_room_limited(e->x, "memory of graphs") || !ibx_back_end_have_cuda(e->x))
        return CUDA_NOT_SUPPORTED;
    int rc = make_node(e, &p, &a, &node);
    /* Noted as all memory, because an old handle of another client may have that address. */
    if (!rc && (!note_owner(e, &a) || !ibx_memory_add(e->x, (uintptr_t)a.address, a.n, true)))
        rc = ibx_extension_no_memory("cudaGraphDestroyNode", node);
    rc = ibx_extension_answer_node(e, rc, &p, node);
    ibx_put_u64(&e->out, (uintptr_t)a.address);
    return rc;
}

static int add_release(struct extension_request *e)
{
    struct place p;
    const bool there = ibx_extension_get_place(e, &p);
    const void *address = pointer(&e->in);
    return there && whole(e) && mine(e, address, 1) ? add_node(e, &p, address) : CUDA_INVALID_VALUE;
}

/* ------------------------------------------------------------------------- conditional nodes */

static int make_condition(struct extension_request *e)
{
    int (*make)(uint64_t * handle, void *graph, unsigned value, unsigned flags) = NULL;
    uint64_t handle = 0;
    void *graph = pointer(&e->in);
    const unsigned value = ibx_get_u32(&e->in), flags = ibx_get_u32(&e->in);
    if (!whole(e) || !is_graph(e, graph))
        return CUDA_INVALID_VALUE;
    if (!ibx_room_take(e->x, IBX_HOLD_GRAPHS, 1))
        return CUDA_MEMORY_ALLOCATION;
    FUNCTION(e, make);
    int rc = make(&handle, graph, value, flags);
    if (!rc && !ibx_handles_add_condition(e->x, handle, (uintptr_t)graph))
        rc = CUDA_MEMORY_ALLOCATION; /* the condition ends with the graph */
    ibx_room_give(e->x, IBX_HOLD_GRAPHS, 1);
    ibx_put_u64(&e->out, handle);
    return rc;
}

/* cudaGraphNodeParams of a conditional node */
struct conditional {
    int type, reserved[3];
    uint64_t handle;
    int kind;
    unsigned size;
    void **graphs; /* CUDA's array, which exists as long as the node */
    uint64_t rest[27];
};

/* Before CUDA 13 the function takes no array of edges' data. */
static int call_add(struct extension_request *e, const struct place *p, void *parameters,
                    void **node)
{
    int (*add)(void **made, void *graph, void *const *behind, const void *edges, size_t count,
               void *parameters) = NULL;
    int (*add_before)(void **made, void *graph, void *const *behind, size_t count,
                      void *parameters) = NULL;
    const int found = ibx_extension_runtime_version();
    if (!found)
        return CUDA_NOT_SUPPORTED;
    FUNCTION(e, add);
    FUNCTION(e, add_before);
    return found < EDGES_VERSION ? add_before(node, p->graph, p->behind, p->count, parameters)
                                 : add(node, p->graph, p->behind, NULL, p->count, parameters);
}

/* The node's graphs are filled by the client, and end with the node. */
static int add_conditional(struct extension_request *e)
{
    struct place p;
    struct conditional c = {.type = CONDITIONAL_NODE};
    void *node = NULL;
    const bool there = ibx_extension_get_place(e, &p);
    c.handle = ibx_get_u64(&e->in);
    c.kind = (int)ibx_get_u32(&e->in);
    c.size = ibx_get_u32(&e->in);
    if (!there || !whole(e) || !c.size || c.size > IBX_EXT_LISTED ||
        !ibx_handles_know(e->x, IBX_HANDLE_CONDITION, c.handle) ||
        !ibx_handles_condition_fits(e->x, c.handle, (uintptr_t)p.graph))
        return CUDA_INVALID_VALUE;
    p.depth = 1; /* its graphs are counted by themselves */
    int rc = ibx_extension_node_room(e, &p);
    rc = rc ? rc : call_add(e, &p, &c, &node);
    rc = ibx_extension_answer_node(e, rc, &p, node);
    for (unsigned i = 0; i < IBX_EXT_LISTED; i++) {
        const uint64_t body = !rc && i < c.size && c.graphs ? (uintptr_t)c.graphs[i] : 0;
        if (body && !ibx_graph_note_part(e->x, body, (uintptr_t)p.graph))
            rc = CUDA_MEMORY_ALLOCATION;
        ibx_put_u64(&e->out, rc ? 0 : body);
    }
    return rc;
}

/* cudaGraphNodeParams of a graph; moved: it is the node's own from then on, no clone of it is. */
struct moved {
    int type, reserved[3];
    void *graph;
    int ownership;
    uint64_t rest[28];
};

static int add_moved(struct extension_request *e)
{
    struct place p;
    void *node = NULL;
    const bool there = ibx_extension_get_place(e, &p);
    struct moved m = {.type = CHILD_NODE, .graph = pointer(&e->in), .ownership = MOVE};
    if (!there || !whole(e) || !is_graph(e, m.graph) ||
        ibx_handles_must_stay(e->x, (uintptr_t)m.graph) ||
        ibx_handles_contains(e->x, (uintptr_t)m.graph, (uintptr_t)p.graph))
        return CUDA_INVALID_VALUE;
    p.depth = ibx_handles_size(e->x, IBX_HANDLE_GRAPH, (uintptr_t)m.graph).depth;
    comes_into(e, p.graph);
    int rc = ibx_extension_node_room(e, &p);
    rc = rc ? rc : call_add(e, &p, &m, &node);
    if (!rc) /* its nodes are counted by themselves */
        ibx_handles_move(e->x, (uintptr_t)m.graph, (uintptr_t)p.graph);
    return ibx_extension_answer_node(e, rc, &p, node);
}

/* ------------------------------------------------------------------------------ what it is */

static int type_of(struct extension_request *e)
{
    int (*get)(void *node, int *type) = NULL;
    int type = 0;
    void *node = pointer(&e->in);
    if (!whole(e) || !is_node(e, node))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, get);
    const int rc = get(node, &type);
    if (!rc && type == CHILD_NODE && ibx_extension_copy_of_node(e, node))
        type = MEMCPY_NODE;
    ibx_put_u32(&e->out, (uint32_t)type);
    return rc;
}

/* CUDA itself checks whether a graph is a clone of the other. */
static int in_clone(struct extension_request *e)
{
    int (*find)(void **node, void *original, void *clone) = NULL;
    void *original = pointer(&e->in), *clone = pointer(&e->in), *node = NULL;
    if (!whole(e) || !is_node(e, original) || !is_graph(e, clone))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, find);
    int rc = find(&node, original, clone);
    if (!rc && !ibx_handles_list_node(e->x, (uintptr_t)node, (uintptr_t)clone))
        rc = CUDA_MEMORY_ALLOCATION;
    ibx_put_u64(&e->out, (uintptr_t)node);
    return rc;
}

static bool is_of_type(void *node, int wanted)
{
    int (*get)(void *of, int *type) = NULL;
    int type = 0;
    *(void **)&get = ibx_back_end_runtime("cudaGraphNodeGetType");
    return get && !get(node, &type) && type == wanted;
}

/* CUDA refuses it in a graph that allocates memory: then the node stays, with its function. A
 * conditional node is not destroyed alone: its graphs would end with it, and it is not known here
 * which these are. */
static int destroy_node(struct extension_request *e)
{
    int (*give_back)(void *node) = NULL;
    void *node = pointer(&e->in);
    const uint64_t value = (uintptr_t)node;
    if (!whole(e) || !is_node(e, node))
        return CUDA_INVALID_VALUE;
    if (is_of_type(node, CONDITIONAL_NODE))
        return CUDA_NOT_SUPPORTED;
    /* as CUDA has it while a stream is captured into the graph */
    if (ibx_handles_is_captured(e->x, ibx_handles_graph_of(e->x, value, false)))
        return CUDA_ILLEGAL_STATE;
    FUNCTION(e, give_back);
    const bool calls = is_of_type(node, HOST_NODE);
    const uint64_t graph = ibx_handles_graph_of(e->x, value, false);
    const uint64_t weight = ibx_handles_size(e->x, IBX_HANDLE_NODE, value).nodes;
    const uint64_t object = ibx_handles_set_object(e->x, value, 0);
    ibx_extension_forget_child(e, node);
    const bool ours = ibx_handles_remove(e->x, IBX_HANDLE_NODE, value);
    const int rc = ours ? give_back(node) : CUDA_INVALID_VALUE;
    if (ours && rc && ibx_handles_list_node(e->x, value, graph))
        ibx_handles_grow(e->x, graph, weight, 0);
    if (rc)
        ibx_handles_set_object(e->x, value, object);
    else if (calls) /* the objects of others are in graphs within them */
        ibx_extension_node_calls_end(pointer_to(graph), object);
    return rc;
}

/* Not for a copy between host and device, which is a child graph: CUDA cannot disable these. */
static int enable_node(struct extension_request *e)
{
    int (*set)(void *exec, void *node, unsigned on) = NULL;
    void *exec, *node;
    const bool there = ibx_extension_get_node(e, &exec, &node);
    const unsigned on = ibx_get_u32(&e->in);
    if (!there || !exec || !whole(e))
        return CUDA_INVALID_VALUE;
    if (ibx_extension_copy_of_node(e, node))
        return on ? 0 : CUDA_NOT_SUPPORTED;
    FUNCTION(e, set);
    return set(exec, node, on);
}

static int is_enabled(struct extension_request *e)
{
    int (*get)(void *exec, void *node, unsigned *on) = NULL;
    void *exec, *node;
    unsigned on = 0;
    if (!ibx_extension_get_node(e, &exec, &node) || !exec || !whole(e))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, get);
    const bool is_copy = ibx_extension_copy_of_node(e, node);
    const int rc = is_copy ? 0 : get(exec, node, &on);
    ibx_put_u64(&e->out, is_copy ? 1 : on);
    return rc;
}

/* ---------------------------------------------------------------------------------- requests */

const struct extension_call ibx_node_extensions[IBX_EXT_REQUESTS] = {
    [IBX_EXT_NODE_KERNEL] = {"cudaGetFuncBySymbol", add_kernel},
    [IBX_EXT_NODE_MEMCPY] = {"cudaGraphAddMemcpyNode", add_copy},
    [IBX_EXT_NODE_MEMSET] = {"cudaGraphAddMemsetNode", add_memset},
    [IBX_EXT_NODE_HOST] = {"cudaGraphAddHostNode", add_host},
    [IBX_EXT_NODE_EMPTY] = {"cudaGraphAddEmptyNode", add_empty},
    [IBX_EXT_NODE_CHILD] = {"cudaGraphAddChildGraphNode", add_child},
    [IBX_EXT_NODE_RECORD] = {"cudaGraphAddEventRecordNode", add_event},
    [IBX_EXT_NODE_WAIT] = {"cudaGraphAddEventWaitNode", add_event},
    [IBX_EXT_NODE_ALLOC] = {"cudaGraphAddMemAllocNode", add_allocation},
    [IBX_EXT_NODE_FREE] = {"cudaGraphAddMemFreeNode", add_release},
    [IBX_EXT_GRAPH_CONDITION] = {"cudaGraphConditionalHandleCreate", make_condition},
    [IBX_EXT_NODE_CONDITIONAL] = {"cudaGraphAddNode", add_conditional},
    [IBX_EXT_NODE_MOVED] = {"cudaGraphAddNode", add_moved},
    [IBX_EXT_NODE_TYPE] = {"cudaGraphNodeGetType", type_of},
    [IBX_EXT_NODE_IN_CLONE] = {"cudaGraphNodeFindInClone", in_clone},
    [IBX_EXT_NODE_ENABLE] = {"cudaGraphNodeSetEnabled", enable_node},
    [IBX_EXT_NODE_ENABLED] = {"cudaGraphNodeGetEnabled", is_enabled},
    [IBX_EXT_NODE_DESTROY] = {"cudaGraphDestroyNode", destroy_node},
    [IBX_EXT_SET_KERNEL] = {"cudaGetFuncBySymbol", set_kernel},
    [IBX_EXT_SET_MEMCPY] = {"cudaGraphMemcpyNodeSetParams", set_copy},
    [IBX_EXT_GET_MEMSET] = {"cudaGraphMemsetNodeGetParams", get_memset},
    [IBX_EXT_SET_MEMSET] = {"cudaGraphMemsetNodeSetParams", set_memset},
};
