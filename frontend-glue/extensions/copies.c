/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Extension requests about copies between host and device in graphs, by a slot (graph_slots.h):
 *
 *   to the device     a function, in which the client gives its bytes -> memcpy of the slot
 *   to the host       memcpy into the slot -> a function, in which the client takes the bytes
 *
 * A copy of the program is one node: so these two nodes are a graph within the graph, which CUDA
 * treats as one node, with one set of dependencies.
 *
 * The graph gets a user object of CUDA, which ends when the graph, its copies, and their executable
 * graphs are gone: then the slot is released, too.
 */
#include "frontend-glue/extensions/graphs.h"
#include "frontend-glue/clients/graph_slots.h"

#include <stdlib.h>

#define TO_DEVICE   1 /* enum cudaMemcpyKind */
#define FROM_DEVICE 2
#define NO_SYNC     1u /* cudaUserObjectNoDestructorSync */
#define MOVES       1u /* cudaGraphUserObjectMove */

#define SET_DEPENDENCIES 1u /* cudaStreamSetCaptureDependencies */

struct host_node {
    void (*function)(void *argument);
    void *argument;
};

/* A copy that a client asks for. */
struct asked {
    uint64_t queue, number;
    struct ibx_cuda_memcpy3d p; /* with the slot in place of host memory */
    size_t row, rows;           /* bytes of a row in the slot, and rows of a plane */
    struct host_node host;
    struct ibx_host_copy copy;
};

/* Functions of the runtime. */
struct runtime {
    int (*create)(void **graph, unsigned flags);
    int (*destroy)(void *graph);
    int (*add_copy)(void **made, void *graph, void *const *behind, size_t count,
                    const struct ibx_cuda_memcpy3d *copy);
    int (*add_host)(void **made, void *graph, void *const *behind, size_t count,
                    const struct host_node *host);
    int (*make_object)(void **made, void *what, void (*destroy)(void *what), unsigned count,
                       unsigned flags);
    int (*release_object)(void *object, unsigned count);
    int (*retain)(void *graph, void *object, unsigned count, unsigned flags);
};

static bool look_up(struct runtime *r)
{
    *(void **)&r->create = ibx_back_end_runtime("cudaGraphCreate");
    *(void **)&r->destroy = ibx_back_end_runtime("cudaGraphDestroy");
    *(void **)&r->add_copy = ibx_back_end_runtime("cudaGraphAddMemcpyNode");
    *(void **)&r->add_host = ibx_back_end_runtime("cudaGraphAddHostNode");
    *(void **)&r->make_object = ibx_back_end_runtime("cudaUserObjectCreate");
    *(void **)&r->release_object = ibx_back_end_runtime("cudaUserObjectRelease");
    *(void **)&r->retain = ibx_back_end_runtime("cudaGraphRetainUserObject");
    return r->create && r->destroy && r->add_copy && r->add_host && r->make_object &&
           r->release_object && r->retain;
}

/* -------------------------------------------------------------------------------- arguments */

/* Reads queue, number, and the copy, whose host side has no address. */
static void get_asked(struct extension_request *e, struct asked *a)
{
    *a = (struct asked){.queue = ibx_get_u64(&e->in)};
    a->number = ibx_get_u64(&e->in);
    ibx_layout_get(&e->in, IBX_LAYOUT_MEMCPY3D, &a->p);
}

/* Whether the device's side is memory or an array that the client may name. Says how long the rows
 * are. */
static bool is_of_client(const struct extension_request *e, struct asked *a)
{
    const struct ibx_cuda_memcpy3d *p = &a->p;
    const bool to_device = p->kind == TO_DEVICE;
    const struct ibx_cuda_pitched *memory = to_device ? &p->to : &p->from;
    const void *array = to_device ? p->to_array : p->from_array;
    struct ibx_array_unit unit = {1, 1};
    if (!array == !memory->at || (array && !ibx_extension_array_unit(e, array, &unit)) ||
        __builtin_mul_overflow(ibx_array_units(&unit, p->extent.width), unit.bytes, &a->row))
        return false;
    a->rows = ibx_array_units(&unit, p->extent.height);
    return array ||
           ibx_extension_holds(e, memory, to_device ? &p->to_at : &p->from_at, &p->extent, a->row);
}

/* Whether the copy is between the host and what the client may name on the device. */
static bool is_asked(const struct extension_request *e, struct asked *a)
{
    const struct ibx_cuda_memcpy3d *p = &a->p;
    const bool to_device = p->kind == TO_DEVICE;
    const struct ibx_cuda_pitched *host = to_device ? &p->from : &p->to;
    size_t n;
    if ((!to_device && p->kind != FROM_DEVICE) || host->at ||
        (to_device ? p->from_array : p->to_array) || !is_of_client(e, a) ||
        __builtin_mul_overflow(a->row, a->rows, &n) ||
        __builtin_mul_overflow(n, p->extent.depth, &n) || !n)
        return false;
    a->copy = (struct ibx_host_copy){.n = n, .to_device = to_device};
    return true;
}

/* Makes or finds the slot. *object holds it, and the caller gives *object to a graph. */
static int take_slot(struct extension_request *e, const struct runtime *r, struct asked *a,
                     void **object)
{
    struct ibx_slot_memory memory;
    int rc = 0;
    if (!ibx_back_end_begin_context(e->x))
        return CUDA_NOT_SUPPORTED;
    ibx_exec_ends_tidy(e->x); /* these have slots */
    const int mode = ibx_cuda_capture_relax(e->x->cuda);
    a->host = (struct host_node){ibx_host_work_call,
                                 ibx_host_work_copy(e->x, a->queue, a->number, &a->copy, &rc)};
    ibx_cuda_capture_restore(e->x->cuda, mode);
    if (rc)
        return rc;
    if (!ibx_slot_use(a->copy.slot, &memory))
        return CUDA_MEMORY_ALLOCATION;
    ibx_slot_stop_using(a->copy.slot);
    const struct ibx_cuda_pitched at = {memory.at, a->row, a->row, a->rows};
    *(a->copy.to_device ? &a->p.from : &a->p.to) = at;
    *(a->copy.to_device ? &a->p.from_at : &a->p.to_at) = (struct ibx_cuda_extent){0};
    rc = r->make_object(object, pointer_to(a->copy.slot), ibx_slot_release, 1, NO_SYNC);
    if (rc)
        ibx_slot_release(pointer_to(a->copy.slot));
    return rc;
}

/* ------------------------------------------------------------------------ objects of graphs */

/* The graph no longer needs an object; NULL: there is none. */
static void release_object(void *graph, void *object)
{
    int (*release)(void *of, void *what, unsigned references) = NULL;
    const bool had_error = ibx_back_end_has_error();
    *(void **)&release = ibx_back_end_runtime("cudaGraphReleaseUserObject");
    if (object && release && release(graph, object, 1) && !had_error)
        ibx_back_end_forget_error();
}

/* The node has another object in that graph, or none (NULL). */
static void set_object(struct extension_request *e, void *graph, const void *node,
                       const void *object)
{
    release_object(graph,
                   pointer_to(ibx_handles_set_object(e->x, (uintptr_t)node, (uintptr_t)object)));
}

static int keep(const struct runtime *r, void *graph, void *object)
{
    const int rc = r->retain(graph, object, 1, MOVES);
    if (rc)
        r->release_object(object, 1);
    return rc;
}

/* ---------------------------------------------------------------------------------- as nodes */

static int fill(const struct runtime *r, void *graph, const struct asked *a)
{
    void *first = NULL, *second = NULL;
    int rc;
    if (a->copy.to_device)
        return (rc = r->add_host(&first, graph, NULL, 0, &a->host))
                   ? rc
                   : r->add_copy(&second, graph, &first, 1, &a->p);
    return (rc = r->add_copy(&first, graph, NULL, 0, &a->p))
               ? rc
               : r->add_host(&second, graph, &first, 1, &a->host);
}

/* Makes a graph of the two nodes. The caller destroys the graph. */
static int make_pair(struct extension_request *e, const struct runtime *r, struct asked *a,
                     void **graph)
{
    void *object = NULL;
    int rc = take_slot(e, r, a, &object);
    *graph = NULL;
    if (rc)
        return rc;
    rc = r->create(graph, 0);
    if (rc)
        r->release_object(object, 1);
    else if (!(rc = keep(r, *graph, object)) && !(rc = fill(r, *graph, a)))
        ibx_extension_graph_has_copy(e, *graph, &a->p);
    if (rc && *graph)
        r->destroy(*graph);
    return rc;
}

static int add_copy(struct extension_request *e)
{
    int (*add)(void **made, void *graph, void *const *behind, size_t count, void *child) = NULL;
    struct runtime r;
    struct asked a;
    struct place p;
    void *pair = NULL, *node = NULL;
    const bool there = ibx_extension_get_place(e, &p);
    get_asked(e, &a);
    if (!there || !whole(e) || !is_asked(e, &a))
        return CUDA_INVALID_VALUE;
    if (!look_up(&r))
        return CUDA_NOT_SUPPORTED;
    FUNCTION(e, add);
    p.inner = 2;
    p.depth = 1;
    int rc = ibx_extension_node_room(e, &p);
    rc = rc ? rc : make_pair(e, &r, &a, &pair);
    if (!rc) {
        rc = add(&node, p.graph, p.behind, p.count, pair);
        r.destroy(pair);
    }
    return ibx_extension_answer_node(e, rc, &p, node);
}

/* The two nodes in a node that copies between host and device. */
struct pair {
    void *graph, *copy, *host;
    uint64_t number;
    bool to_device;
};

static bool is_pair(const struct extension_request *e, void **nodes, struct pair *pair)
{
    int (*type_of)(void *of, int *type) = NULL;
    int (*function_of)(void *of, struct host_node *host) = NULL;
    struct host_node host = {NULL, NULL};
    *(void **)&type_of = ibx_back_end_runtime("cudaGraphNodeGetType");
    *(void **)&function_of = ibx_back_end_runtime("cudaGraphHostNodeGetParams");
    for (unsigned i = 0; i < 2; i++) {
        int type = 0;
        if (!type_of || type_of(nodes[i], &type) || (type != MEMCPY_NODE && type != HOST_NODE))
            return false;
        *(type == HOST_NODE ? &pair->host : &pair->copy) = nodes[i];
    }
    if (!pair->host || !pair->copy || !function_of || function_of(pair->host, &host) ||
        host.function != ibx_host_work_call || !ibx_host_work_is_copy(host.argument))
        return false;
    pair->number = ibx_host_work_number(e->x, host.argument);
    pair->to_device = ibx_host_work_copy_of(host.argument).to_device;
    return pair->number;
}

static bool get_pair(const struct extension_request *e, void *node, struct pair *pair)
{
    int (*type_of)(void *of, int *type) = NULL;
    int (*child_of)(void *of, void **graph) = NULL;
    int type = 0, rc = 0;
    size_t count = 0;
    *pair = (struct pair){.number = 0};
    *(void **)&type_of = ibx_back_end_runtime("cudaGraphNodeGetType");
    *(void **)&child_of = ibx_back_end_runtime("cudaGraphChildGraphNodeGetGraph");
    void *list = ibx_back_end_runtime("cudaGraphGetNodes");
    if (!type_of || !child_of || !list || type_of(node, &type) || type != CHILD_NODE ||
        child_of(node, &pair->graph))
        return false;
    void **nodes = ibx_graph_nodes_of(list, pair->graph, &count, &rc);
    const bool is = nodes && count == 2 && is_pair(e, nodes, pair);
    free(nodes);
    return is;
}

uint64_t ibx_extension_copy_of_node(struct extension_request *e, void *node)
{
    struct pair pair;
    return get_pair(e, node, &pair) ? pair.number : 0;
}

/* ------------------------------------------------------------------------------ it changes */

/* An executable graph gets the parameters of both nodes from another graph of such two nodes. */
static int set_in_exec(struct extension_request *e, const struct runtime *r, struct asked *a,
                       void *exec, void *node)
{
    int (*set)(void *of, void *old, void *child) = NULL;
    void *pair = NULL;
    *(void **)&set = ibx_back_end_runtime("cudaGraphExecChildGraphNodeSetParams");
    if (!set)
        return CUDA_NOT_SUPPORTED;
    int rc = make_pair(e, r, a, &pair);
    if (rc)
        return rc;
    rc = set(exec, node, pair);
    r->destroy(pair);
    return rc;
}

/* The slot that the pair was made with stays as long as its graph, each later one until the next.
 */
static int set_in_graph(struct extension_request *e, const struct runtime *r, struct asked *a,
                        const struct pair *pair, const void *node)
{
    int (*set_parameters)(void *node, const struct ibx_cuda_memcpy3d *p) = NULL;
    int (*set_host)(void *node, const struct host_node *host) = NULL;
    void *object = NULL;
    FUNCTION(e, set_parameters);
    *(void **)&set_host = ibx_back_end_runtime("cudaGraphHostNodeSetParams");
    if (!set_host)
        return CUDA_NOT_SUPPORTED;
    int rc = take_slot(e, r, a, &object);
    rc = rc ? rc : keep(r, pair->graph, object);
    if (rc)
        return rc;
    rc = set_parameters(pair->copy, &a->p);
    if (rc) {
        release_object(pair->graph, object);
        return rc;
    }
    ibx_extension_graph_has_copy(e, pair->graph, &a->p);
    rc = set_host(pair->host, &a->host);
    if (!rc)
        set_object(e, pair->graph, node, object);
    return rc;
}

/* The answer has the number of the function that the node's graph has called so far. */
static int set_copy(struct extension_request *e)
{
    struct runtime r;
    struct asked a;
    struct pair pair;
    void *exec, *node;
    const bool there = ibx_extension_get_node(e, &exec, &node);
    get_asked(e, &a);
    if (!there || !whole(e) || !is_asked(e, &a) || !get_pair(e, node, &pair) ||
        pair.to_device != a.copy.to_device)
        return CUDA_INVALID_VALUE;
    if (!look_up(&r))
        return CUDA_NOT_SUPPORTED;
    ibx_put_u64(&e->out, pair.number);
    return exec ? set_in_exec(e, &r, &a, exec, node) : set_in_graph(e, &r, &a, &pair, node);
}

/* The answer has the number of the client's function; or 0 and the parameters of a copy within the
 * device. */
static int get_copy(struct extension_request *e)
{
    int (*get)(void *of, struct ibx_cuda_memcpy3d *p) = NULL;
    struct ibx_cuda_memcpy3d p = {.kind = 0};
    struct pair pair;
    void *node = pointer(&e->in);
    if (!whole(e) || !ibx_handles_know(e->x, IBX_HANDLE_NODE, (uintptr_t)node))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, get);
    const bool is_pair_of_ours = get_pair(e, node, &pair);
    const int rc = is_pair_of_ours ? 0 : get(node, &p);
    ibx_put_u64(&e->out, pair.number);
    ibx_layout_put(&e->out, IBX_LAYOUT_MEMCPY3D, &p);
    return rc;
}

/* ------------------------------------------------------------------------------- in a capture */

/* Adds the pair to the graph that the stream is captured into. */
static int add_captured(const struct extension_request *e, void *stream, void *pair)
{
    int (*add)(void **made, void *graph, void *const *behind, size_t count, void *child) = NULL;
    struct extension_captured c = {.count = 0};
    void *node = NULL;
    if (!ibx_extension_captured(stream, &c))
        return CUDA_NOT_SUPPORTED;
    FUNCTION(e, add);
    const int rc = add(&node, c.graph, c.behind, c.count, pair);
    return rc ? rc : ibx_extension_come_behind(stream, &c, &node, NULL, 1, SET_DEPENDENCIES);
}

static int capture_copy(struct extension_request *e)
{
    struct runtime r;
    struct asked a;
    void *pair = NULL, *stream = stream_in(e);
    get_asked(e, &a);
    if (!whole(e) || !is_asked(e, &a))
        return CUDA_INVALID_VALUE;
    if (!look_up(&r))
        return CUDA_NOT_SUPPORTED;
    int rc = make_pair(e, &r, &a, &pair);
    if (rc)
        return rc;
    if (ibx_extension_has_alone(e, stream)) {
        ibx_captures_graphs_hold(e->x);
        rc = add_captured(e, stream, pair);
        ibx_captures_graphs_let_go(e->x);
    } else {
        rc = CUDA_INVALID_HANDLE;
    }
    r.destroy(pair);
    return rc;
}

/* ------------------------------------------------------------------------------- plain functions
 */

/* From now on the graph has a function of the client. Returns the graph's object; NULL: there is
 * none, and the function stays. */
static void *graph_calls(void *graph, void *repeated)
{
    struct runtime r;
    void *object = NULL;
    const bool had_error = ibx_back_end_has_error();
    const bool tells = graph && look_up(&r) &&
                       !r.make_object(&object, repeated, ibx_host_work_release, 1, NO_SYNC);
    if (tells && !r.retain(graph, object, 1, MOVES))
        return object;
    ibx_host_work_for_good(repeated);
    if (tells)
        r.release_object(object, 1);
    else
        ibx_host_work_release(repeated);
    if (!had_error)
        ibx_back_end_forget_error();
    return NULL;
}

void ibx_extension_node_calls(struct extension_request *e, const void *node, void *repeated)
{
    void *graph = pointer_to(ibx_handles_graph_of(e->x, (uintptr_t)node, false));
    set_object(e, graph, node, graph_calls(graph, repeated));
}

void ibx_extension_node_calls_end(void *graph, uint64_t object)
{
    release_object(graph, pointer_to(object));
}

void ibx_extension_capture_calls(struct extension_request *e, void *stream, void *repeated)
{
    struct extension_captured c = {.count = 0};
    ibx_captures_graphs_hold(e->x);
    graph_calls(ibx_extension_captured(stream, &c) ? c.graph : NULL, repeated);
    ibx_captures_graphs_let_go(e->x);
}

/* ---------------------------------------------------------------------------------- requests */

const struct extension_call ibx_copy_extensions[IBX_EXT_REQUESTS] = {
    [IBX_EXT_NODE_COPY] = {"cudaGraphAddChildGraphNode", add_copy},
    [IBX_EXT_CAPTURE_COPY] = {"cudaGraphAddChildGraphNode", capture_copy},
    [IBX_EXT_SET_COPY] = {"cudaGraphMemcpyNodeSetParams", set_copy},
    [IBX_EXT_GET_COPY] = {"cudaGraphMemcpyNodeGetParams", get_copy},
};
