/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a program learns of its graphs, and which functions of this process a launch is said to
 * call. The back end is simulated. */
#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"
#include "tests/fixtures/unit.h"
#include "tests/unit/frontend-glue/begun_requests.h"

#include "common/log.h"

#include <string.h>

#define GRAPH  ((void *)1000)
#define EXEC   ((void *)2000)
#define STREAM ((void *)64)
#define OLD    ((void *)1) /* what an output had before */

#define EDGE  0x10101ull /* the data of a programmatic edge, as a number */
#define MOST  100u
#define EVERY (2 * IBX_EXT_LISTED + 5) /* nodes that need three replies */

static struct {
    size_t nodes, functions, behind; /* of the graph; of each node */
    uint64_t function[MOST];
    size_t grows_at; /* another thread adds a node to the graph before this part of the list */
    int list_fails, update_fails, launch_fails, destroy_fails, reach_fails;
    bool older;                    /* it cannot refresh */
    bool plain;                    /* it knows plain edges only */
    size_t data_at, data_of;       /* the neighbours that edges with data lead to; none */
    uint8_t ordered[IBX_EXT_EDGE]; /* the data of the last edge that was made */
    bool tells;                    /* how many functions an update has found */
    uint64_t flags;
    unsigned orders, orders_well, destroyed;
    unsigned lists, updates; /* requests */
} gpu;

static struct {
    const void *made, *forgotten, *gone, *capture_gone, *shared, *updated, *launched, *used,
        *worked;
    bool ended;
    const void *captured; /* a stream */
    uint64_t functions[MOST];
    size_t count, launches;
    int version, error;
} is;

/* -------------------------------------------------------------------- stubs */

int ibx_frontend_fail(int code)
{
    return is.error = code;
}

void ibx_log(enum ibx_log_level level, const char *format, ...)
{
    (void)level, (void)format;
}

void *ibx_frontend_next(_Atomic(void *) *found, const char *symbol)
{
    (void)found, (void)symbol;
    return NULL;
}

bool ibx_frontend_first_begins(void)
{
    return true;
}

void ibx_frontend_first_is_over(void) {}

int ibx_frontend_unsafe(void)
{
    return 0;
}

/* Of nodes with odd numbers. */
int cudaGraphNodeGetType(void *node, int *type)
{
    *type = (uintptr_t)node & 1 ? IBX_FRONTEND_NODE_KERNEL : IBX_FRONTEND_NODE_EMPTY;
    return 0;
}

int ibx_frontend_cuda_version(void)
{
    return is.version;
}

void ibx_frontend_objects_made(const void *graph)
{
    is.made = graph;
}

void ibx_frontend_capture_graph_gone(const void *graph)
{
    is.capture_gone = graph;
}

void ibx_frontend_graph_gone(const void *graph)
{
    is.gone = graph;
}

void ibx_frontend_objects_share(const void *from, const void *to)
{
    assert_ptr_equal(from, GRAPH);
    is.shared = to;
}

void ibx_frontend_objects_updated(const void *exec, const void *graph)
{
    assert_ptr_equal(graph, GRAPH);
    is.updated = exec;
}

struct holding *ibx_frontend_objects_take(const void *holder, struct launched **launched)
{
    *launched = NULL;
    return (struct holding *)(uintptr_t)holder;
}

void ibx_frontend_objects_gone(struct holding *taken, struct launched *launched, bool gone)
{
    (void)launched;
    is.forgotten = taken;
    is.ended = gone;
}

void ibx_frontend_objects_launched(const void *exec, void *stream)
{
    assert_ptr_equal(stream, STREAM);
    is.launched = exec;
}

void ibx_frontend_stream_used(const void *stream)
{
    is.used = stream;
}

void ibx_frontend_stream_worked(void *stream)
{
    is.worked = stream;
}

int ibx_frontend_graph_reach(void)
{
    return gpu.reach_fails;
}

bool ibx_frontend_captures(void *stream)
{
    return stream == is.captured;
}

bool ibx_frontend_called(const char *name, const struct ibx_writer *body, int *rc)
{
    struct ibx_reader r = ibx_reader_of(body->data, body->length);
    assert_string_equal(name, "cudaGraphLaunch");
    assert_int_equal(ibx_get_u64(&r), (uintptr_t)EXEC);
    assert_int_equal(ibx_get_u64(&r), (uintptr_t)STREAM);
    is.launches++;
    *rc = gpu.launch_fails;
    return true;
}

int ibx_frontend_copies_launch(const uint64_t *numbers, size_t count, void *stream,
                               int (*launch)(void *exec, void *stream), void *exec)
{
    memcpy(is.functions, numbers, count * sizeof(*numbers));
    is.count = count;
    return launch(exec, stream);
}

int ibx_frontend_host_launch(struct ibx_launch *made, void *stream,
                             int (*launch)(void *exec, void *stream), void *exec)
{
    (void)made;
    return launch(exec, stream);
}

/* ---------------------------------------------------------------- the back end */

static uint64_t node(size_t i)
{
    return 10000 + i;
}

static int answer_list(enum ibx_extension number, struct ibx_reader *in, struct ibx_writer *out)
{
    const uint64_t about = ibx_get_u64(in), from = ibx_get_u64(in);
    const bool of_node = number == IBX_EXT_NODE_NEIGHBOURS || number == IBX_EXT_NODE_EDGES;
    const bool edges = number == IBX_EXT_NODE_EDGES;
    const bool functions = number == IBX_EXT_GRAPH_FUNCTIONS;
    gpu.lists++;
    if (from && from == gpu.grows_at)
        gpu.nodes++;
    const size_t count = of_node ? gpu.behind : functions ? gpu.functions : gpu.nodes;
    ibx_put_u64(out, count);
    for (size_t i = from; i < from + (edges ? IBX_EXT_EDGES : IBX_EXT_LISTED); i++) {
        ibx_put_u64(out, i >= count  ? 0
                         : of_node   ? about + i + 1
                         : functions ? gpu.function[i]
                                     : node(i));
        if (edges)
            ibx_put_u64(out, i >= gpu.data_at && i < gpu.data_at + gpu.data_of ? EDGE + i : 0);
    }
    return gpu.list_fails;
}

static int answer(enum ibx_extension number, struct ibx_reader *in, struct ibx_writer *out)
{
    switch (number) {
    case IBX_EXT_GRAPH_NODES:
    case IBX_EXT_GRAPH_FUNCTIONS:
    case IBX_EXT_NODE_NEIGHBOURS:
    case IBX_EXT_NODE_EDGES:
        return answer_list(number, in, out);
    case IBX_EXT_GRAPH_INSTANTIATE:
        assert_int_equal(ibx_get_u64(in), (uintptr_t)GRAPH);
        gpu.flags = ibx_get_u64(in);
        ibx_put_u64(out, (uintptr_t)EXEC);
        return 0;
    case IBX_EXT_GRAPH_CREATE:
    case IBX_EXT_GRAPH_CLONE:
        ibx_put_u64(out, (uintptr_t)GRAPH + 1);
        return 0;
    case IBX_EXT_EXEC_UPDATE:
    case IBX_EXT_EXEC_REFRESH:
        gpu.updates++;
        ibx_put_u32(out, (uint32_t)gpu.update_fails);
        ibx_put_u32(out, 3);
        ibx_put_u64(out, node(1));
        ibx_put_u64(out, node(2));
        if (number == IBX_EXT_EXEC_REFRESH)
            ibx_put_u64(out, gpu.tells ? gpu.functions : UINT64_MAX);
        return 0;
    case IBX_EXT_GRAPH_ORDER:
    case IBX_EXT_GRAPH_ORDER_DATA:
        memset(gpu.ordered, 0, sizeof(gpu.ordered));
        if (number == IBX_EXT_GRAPH_ORDER_DATA)
            memcpy(gpu.ordered, in->data + in->position + 25, sizeof(gpu.ordered));
        return ++gpu.orders > gpu.orders_well ? CUDA_INVALID_VALUE : 0;
    case IBX_EXT_EXEC_DESTROY:
    case IBX_EXT_GRAPH_DESTROY:
        gpu.destroyed++;
        return gpu.destroy_fails;
    default:
        fail_msg("request %d", (int)number);
        return -1;
    }
}

bool ibx_frontend_request_known(const struct extension_request *e, void *out, size_t n, int *rc)
{
    struct ibx_reader in = ibx_reader_of(e->body.data, e->body.length);
    uint8_t bytes[IBX_EXT_OUT_MAX] = {0};
    struct ibx_writer to = ibx_writer_of(bytes, sizeof(bytes));
    const enum ibx_extension number = ibx_get_u16(&in);
    if (gpu.older && number == IBX_EXT_EXEC_REFRESH)
        return false;
    if (gpu.plain && (number == IBX_EXT_NODE_EDGES || number == IBX_EXT_GRAPH_ORDER_DATA))
        return false;
    const int code = answer(number, &in, &to);
    if (n)
        memcpy(out, bytes, n);
    *rc = code ? ibx_frontend_fail(code) : 0;
    return true;
}

int ibx_frontend_request_make(const struct extension_request *e, void *out, size_t n)
{
    int rc;
    return ibx_frontend_request_known(e, out, n, &rc) ? rc : ibx_frontend_fail(CUDA_NOT_SUPPORTED);
}

int ibx_frontend_request_ask(const struct extension_request *e, uint64_t *to)
{
    uint8_t bytes[8] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    const int rc = ibx_frontend_request_make(e, bytes, sizeof(bytes));
    if (!rc)
        *to = ibx_get_u64(&r);
    return rc;
}

static int begin(void **state)
{
    (void)state;
    memset(&gpu, 0, sizeof(gpu));
    memset(&is, 0, sizeof(is));
    gpu.orders_well = MOST;
    return 0;
}

static void calls(size_t count, const uint64_t *functions)
{
    gpu.functions = count;
    memcpy(gpu.function, functions, count * sizeof(*functions));
}

static void instantiate(size_t count, const uint64_t *functions)
{
    void *exec = NULL;
    calls(count, functions);
    assert_int_equal(cudaGraphInstantiate(&exec, GRAPH, 0), 0);
    assert_ptr_equal(exec, EXEC);
}

static void assert_calls(size_t count, const uint64_t *functions)
{
    const size_t launches = is.launches;
    is.count = 0;
    assert_int_equal(cudaGraphLaunch(EXEC, STREAM), 0);
    assert_int_equal(is.launches, launches + 1);
    assert_int_equal(is.count, count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(is.functions[i], functions[i]);
}

#define OF(...)                                                                                    \
    sizeof((uint64_t[]){__VA_ARGS__}) / 8, (uint64_t[])                                            \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define ASSERT_CALLS(...)   assert_calls(OF(__VA_ARGS__))
#define ASSERT_CALLS_NONE() assert_calls(0, NULL)

static int end(void **state)
{
    (void)state;
    gpu.destroy_fails = 0;
    return cudaGraphExecDestroy(EXEC);
}

/* ---------------------------------------------------------------------- lists */

static void test_many_nodes(NO_STATE)
{
    void *nodes[MOST];
    size_t count = 0;
    gpu.nodes = EVERY;
    assert_int_equal(cudaGraphGetNodes(GRAPH, NULL, &count), 0);
    assert_int_equal(count, EVERY);
    count = MOST;
    for (size_t i = 0; i < MOST; i++)
        nodes[i] = OLD;
    assert_int_equal(cudaGraphGetNodes(GRAPH, nodes, &count), 0);
    assert_int_equal(count, EVERY);
    for (size_t i = 0; i < MOST; i++)
        assert_int_equal((uintptr_t)nodes[i], i < EVERY ? node(i) : 0);
    count = 3;
    nodes[3] = OLD;
    assert_int_equal(cudaGraphGetNodes(GRAPH, nodes, &count), 0);
    assert_int_equal(count, 3);
    assert_int_equal((uintptr_t)nodes[2], node(2));
    assert_ptr_equal(nodes[3], OLD);
}

/* Parts of two lists are none. */
static void test_list_changes_meanwhile(NO_STATE)
{
    void *nodes[MOST];
    size_t count = MOST;
    gpu.nodes = EVERY;
    gpu.grows_at = IBX_EXT_LISTED;
    assert_int_equal(cudaGraphGetNodes(GRAPH, nodes, &count), CUDA_INVALID_VALUE);
    assert_int_equal(count, MOST);
}

static void test_edges(NO_STATE)
{
    void *from[MOST], *to[MOST];
    size_t count = 0;
    gpu.nodes = 3;
    gpu.behind = 2;
    assert_int_equal(cudaGraphGetEdges_v2(GRAPH, NULL, NULL, NULL, &count), 0);
    assert_int_equal(count, 6);
    for (size_t room = 4; room < 9; room += 4) {
        for (size_t i = 0; i < MOST; i++)
            from[i] = to[i] = OLD;
        count = room;
        assert_int_equal(cudaGraphGetEdges_v2(GRAPH, from, to, NULL, &count), 0);
        assert_int_equal(count, room < 6 ? room : 6);
        for (size_t i = 0; i < MOST; i++) {
            const uint64_t first = i < room ? i < 6 ? node(i / 2) : 0 : (uintptr_t)OLD;
            const uint64_t last = i < room && i < 6 ? first + i % 2 + 1 : first;
            assert_int_equal((uintptr_t)from[i], first);
            assert_int_equal((uintptr_t)to[i], last);
        }
    }
    assert_int_equal(cudaGraphGetEdges_v2(GRAPH, from, NULL, NULL, &count), CUDA_INVALID_VALUE);
}

/* An array for the data of edges gets it, as far as there is room; without one the question fails,
 * unless it asks only how many there are. */
static void test_data_of_edges(NO_STATE)
{
    void *from[MOST], *to[MOST];
    uint64_t data[MOST];
    size_t count = 0;
    gpu.nodes = 2;
    gpu.behind = EVERY / 2;
    gpu.data_at = IBX_EXT_EDGES - 1; /* at the end of a reply, and in the next one */
    gpu.data_of = 2;
    void *const of = (void *)node(0);
    assert_int_equal(cudaGraphNodeGetDependencies_v2(of, NULL, NULL, &count), 0);
    assert_int_equal(count, EVERY / 2);
    assert_int_equal(cudaGraphNodeGetDependencies_v2(of, to, NULL, &count), CUDA_LOSSY_QUERY);
    assert_int_equal(count, EVERY / 2);
    memset(data, 9, sizeof(data));
    count = MOST;
    assert_int_equal(cudaGraphNodeGetDependentNodes_v2(of, to, data, &count), 0);
    assert_int_equal(count, EVERY / 2);
    for (size_t i = 0; i <= count; i++)
        assert_int_equal(data[i], i == count                                 ? 0x0909090909090909
                                  : i == gpu.data_at || i == gpu.data_at + 1 ? EDGE + i
                                                                             : 0);
    assert_int_equal(cudaGraphGetEdges_v2(GRAPH, NULL, NULL, NULL, &count), 0);
    assert_int_equal(count, 2 * (EVERY / 2));
    count = EVERY / 2 + gpu.data_at + 1;
    assert_int_equal(cudaGraphGetEdges_v2(GRAPH, from, to, NULL, &count), CUDA_LOSSY_QUERY);
    memset(data, 9, sizeof(data));
    assert_int_equal(cudaGraphGetEdges_v2(GRAPH, from, to, data, &count), 0);
    assert_int_equal(count, EVERY / 2 + gpu.data_at + 1);
    assert_int_equal(data[gpu.data_at], EDGE + gpu.data_at);
    assert_int_equal(data[count - 1], EDGE + gpu.data_at);
    assert_int_equal(data[count - 2], 0);
    assert_int_equal(data[count], 0x0909090909090909);
    gpu.plain = true; /* an older back end */
    assert_int_equal(cudaGraphNodeGetDependencies_v2(of, to, data, &count), 0);
    assert_int_equal(data[gpu.data_at], 0);
    gpu.plain = false;
    gpu.list_fails = CUDA_INVALID_VALUE;
    assert_int_equal(cudaGraphNodeGetDependencies_v2(of, to, data, &count), CUDA_INVALID_VALUE);
    assert_int_equal(cudaGraphGetEdges_v2(GRAPH, from, to, data, &count), CUDA_INVALID_VALUE);
    gpu.list_fails = 0;
    gpu.data_of = 0;
}

/* An edge with data is made with it, if the back end can. */
static void test_edges_keep_their_data(NO_STATE)
{
    static const uint8_t edge[IBX_EXT_EDGE] = {1, 0, 1}, none[IBX_EXT_EDGE];
    void *const ends[1] = {OLD};
    for (unsigned i = 0; i < 2; i++) {
        gpu.plain = i;
        gpu.orders = 0;
        gpu.orders_well = 2;
        assert_int_equal(cudaGraphAddDependencies_v2(GRAPH, ends, ends, edge, 1), 0);
        assert_memory_equal(gpu.ordered, i ? none : edge, sizeof(edge));
        assert_int_equal(cudaGraphRemoveDependencies_v2(GRAPH, ends, ends, edge, 1), 0);
        assert_memory_equal(gpu.ordered, i ? none : edge, sizeof(edge));
        assert_int_equal(gpu.orders, 2);
        assert_int_equal(cudaGraphAddDependencies_v2(GRAPH, ends, ends, edge, 1),
                         CUDA_INVALID_VALUE);
    }
    gpu.plain = false;
    gpu.orders_well = MOST;
}

/* From port, to port, type, reserved. */
static void test_kinds_of_edges(NO_STATE)
{
    static const uint8_t edges[][IBX_EXT_EDGE] = {
        {0}, {2, 0, 1}, {3}, {0, 1}, {0, 0, 2}, {0, 0, 0, 1}, {0, 0, 0, 0, 0, 0, 0, 1}};
    void *const ends[2] = {OLD, OLD};
    for (size_t i = 0; i < sizeof(edges) / sizeof(edges[0]); i++) {
        uint8_t both[2][IBX_EXT_EDGE] = {{0}};
        memcpy(both[1], edges[i], IBX_EXT_EDGE);
        gpu.orders = 0;
        assert_int_equal(cudaGraphAddDependencies_v2(GRAPH, ends, ends, both, 2),
                         i < 2 ? 0 : CUDA_INVALID_VALUE);
        assert_int_equal(gpu.orders, i < 2 ? 2 : 0);
    }
    gpu.orders = 0;
    assert_int_equal(cudaGraphAddDependencies_v2(GRAPH, ends, NULL, NULL, 2), CUDA_INVALID_VALUE);
    assert_int_equal(gpu.orders, 0);
    gpu.orders_well = 0;
    assert_int_equal(cudaGraphAddDependencies_v2(GRAPH, ends, ends, NULL, 2), CUDA_INVALID_VALUE);
    assert_int_equal(gpu.orders, 1);
}

/* What a new node may have, by its kind and that of the node before. */
static void test_edges_that_fit(NO_STATE)
{
    static const struct {
        uint8_t edge[IBX_EXT_EDGE];
        bool from_kernel, to_kernel, fits;
    } kinds[] = {{{0}, false, false, true},       {{1, 0, 1}, true, true, true},
                 {{2, 0, 1}, true, true, true},   {{1, 0, 1}, true, false, false},
                 {{1, 0, 1}, false, true, false}, {{0, 0, 1}, true, true, false},
                 {{1}, true, true, false},        {{2}, true, false, true},
                 {{2}, false, false, false}};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        void *const behind[2] = {(void *)2, (void *)(kinds[i].from_kernel ? 1ul : 2ul)};
        uint8_t both[2][IBX_EXT_EDGE] = {{0}};
        memcpy(both[1], kinds[i].edge, IBX_EXT_EDGE);
        assert_int_equal(ibx_frontend_edges_fit(behind, both, 2, kinds[i].to_kernel),
                         kinds[i].fits);
        assert_true(ibx_frontend_edges_fit(behind, NULL, 2, kinds[i].to_kernel));
    }
}

/* ------------------------------------------------------------- which functions */

static void test_node_calls_another(NO_STATE)
{
    instantiate(OF(5, 7, 5));
    ASSERT_CALLS(5, 7, 5);
    assert_int_equal(ibx_frontend_exec_exchange(EXEC, (void *)node(0), 5, 9), 0);
    ASSERT_CALLS(9, 7, 5);
    assert_int_equal(ibx_frontend_exec_exchange(EXEC, (void *)node(2), 5, 11), 0);
    ASSERT_CALLS(9, 7, 11);
    assert_int_equal(ibx_frontend_exec_exchange(EXEC, (void *)node(0), 9, 13), 0);
    ASSERT_CALLS(13, 7, 11);
    assert_int_equal(ibx_frontend_exec_exchange(EXEC, (void *)node(3), 5, 1), CUDA_UNKNOWN);
    ASSERT_CALLS(13, 7, 11);
}

/* The executable graph still calls what the node called before. */
static void test_node_of_the_graph_changes(NO_STATE)
{
    instantiate(OF(5, 7));
    ibx_frontend_execs_keep((void *)node(1), 7);
    ASSERT_CALLS(5, 7);
    assert_int_equal(ibx_frontend_exec_exchange(EXEC, (void *)node(1), 77, 9), 0);
    ASSERT_CALLS(5, 9);
}

/* Its nodes are the same, in the same order. */
static void test_update(NO_STATE)
{
    struct graph_update told = {0};
    instantiate(OF(5, 7));
    assert_int_equal(ibx_frontend_exec_exchange(EXEC, (void *)node(1), 7, 9), 0);
    for (unsigned way = 0; way < 3; way++) {
        gpu.older = way == 1;
        gpu.tells = way == 2;
        calls(OF(20 + way, 30));
        assert_int_equal(cudaGraphExecUpdate(EXEC, GRAPH, &told), 0);
        assert_int_equal(told.result, 3);
        assert_int_equal((uintptr_t)told.other, node(2));
        ASSERT_CALLS(20 + way, 30);
        assert_int_equal(ibx_frontend_exec_exchange(EXEC, (void *)node(1), 30, 31), 0);
        ASSERT_CALLS(20 + way, 31);
    }
    assert_ptr_equal(is.updated, EXEC);
    /* One that still calls, in the graph, what it called when the executable graph was made. */
    assert_int_equal(ibx_frontend_exec_exchange(EXEC, (void *)node(0), 5, 50), 0);
    ASSERT_CALLS(50, 31);
    calls(OF(8));
    assert_int_equal(cudaGraphExecUpdate(EXEC, GRAPH, &told), 0);
    ASSERT_CALLS(8);
    assert_int_equal(ibx_frontend_exec_exchange(EXEC, (void *)node(9), 8, 40), 0);
    ASSERT_CALLS(40);
    gpu.functions = 0;
    gpu.tells = true;
    gpu.lists = gpu.updates = 0;
    assert_int_equal(cudaGraphExecUpdate(EXEC, GRAPH, &told), 0);
    assert_int_equal(gpu.updates, 1); /* which has told all that there is to know */
    assert_int_equal(gpu.lists, 0);
    ASSERT_CALLS_NONE();
}

static void test_update_fails(NO_STATE)
{
    struct graph_update told = {0};
    instantiate(OF(5));
    gpu.update_fails = CUDA_UNKNOWN;
    calls(OF(6));
    assert_int_equal(cudaGraphExecUpdate(EXEC, GRAPH, &told), CUDA_UNKNOWN);
    assert_int_equal((uintptr_t)told.node, node(1));
    assert_null(is.updated);
    ASSERT_CALLS(5);
    is.version = 11; /* the call has other parameters there */
    gpu.update_fails = 0;
    assert_int_equal(cudaGraphExecUpdate(EXEC, GRAPH, &told), CUDA_NOT_SUPPORTED);
    ASSERT_CALLS(5);
}

/* A reset takes executable graphs without a call, and a later one may have the handle. */
static void test_handle_again(NO_STATE)
{
    instantiate(OF(5));
    instantiate(OF(6, 7));
    ASSERT_CALLS(6, 7);
    gpu.destroy_fails = CUDA_UNKNOWN;
    assert_int_equal(cudaGraphExecDestroy(EXEC), CUDA_UNKNOWN);
    assert_ptr_equal(is.forgotten, EXEC);
    assert_false(is.ended);
    gpu.destroy_fails = 0;
    ASSERT_CALLS_NONE();
}

/* ------------------------------------------------------------- graphs and launches */

static void test_made_and_gone(NO_STATE)
{
    void *graph = NULL, *const made = (void *)((uintptr_t)GRAPH + 1);
    assert_int_equal(cudaGraphCreate(&graph, 0), 0);
    assert_ptr_equal(is.made, made);
    assert_ptr_equal(is.capture_gone, made);
    is.made = is.capture_gone = NULL;
    assert_int_equal(cudaGraphClone(&graph, GRAPH), 0);
    assert_ptr_equal(is.made, made);
    assert_ptr_equal(is.capture_gone, made);
    assert_ptr_equal(is.shared, made);
    assert_int_equal(cudaGraphDestroy(GRAPH), 0);
    assert_ptr_equal(is.gone, GRAPH);
    assert_ptr_equal(is.capture_gone, GRAPH);
    assert_ptr_equal(is.forgotten, GRAPH);
    assert_true(is.ended);
    gpu.destroy_fails = CUDA_INVALID_VALUE;
    assert_int_equal(cudaGraphDestroy(GRAPH), CUDA_INVALID_VALUE);
    assert_false(is.ended);
}

/* Before CUDA 12 there may be an address in place of the flags. */
static void test_instantiates(NO_STATE)
{
    void *exec;
    assert_int_equal(cudaGraphInstantiate(&exec, GRAPH, 5), 0);
    assert_int_equal(gpu.flags, 5);
    assert_ptr_equal(is.shared, EXEC);
    assert_int_equal(cudaGraphInstantiate(&exec, GRAPH, 0x7f0000000005), 0);
    assert_int_equal(gpu.flags, 0);
    gpu.list_fails = CUDA_UNKNOWN;
    is.shared = NULL;
    assert_int_equal(cudaGraphInstantiate(&exec, GRAPH, 0), CUDA_UNKNOWN);
    assert_int_equal(gpu.destroyed, 1);
    assert_null(is.shared);
}

static void test_launches(NO_STATE)
{
    for (unsigned functions = 0; functions < 2; functions++) {
        memset(&is, 0, sizeof(is));
        instantiate(functions, (uint64_t[]){5});
        gpu.reach_fails = CUDA_UNKNOWN;
        assert_int_equal(cudaGraphLaunch(EXEC, STREAM), CUDA_UNKNOWN);
        assert_true(!is.launches && !is.launched);
        gpu.reach_fails = 0;
        assert_calls(functions, (uint64_t[]){5});
        assert_ptr_equal(is.used, STREAM);
        assert_ptr_equal(is.worked, STREAM);
        assert_ptr_equal(is.launched, EXEC);
        is.captured = STREAM; /* it becomes a node, and calls nothing now */
        ASSERT_CALLS_NONE();
        is.captured = is.launched = NULL;
        gpu.launch_fails = CUDA_INVALID_VALUE;
        assert_int_equal(cudaGraphLaunch(EXEC, STREAM), CUDA_INVALID_VALUE);
        assert_null(is.launched);
        gpu.launch_fails = 0;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_many_nodes, begin, end),
        cmocka_unit_test_setup_teardown(test_list_changes_meanwhile, begin, end),
        cmocka_unit_test_setup_teardown(test_edges, begin, end),
        cmocka_unit_test_setup_teardown(test_data_of_edges, begin, end),
        cmocka_unit_test_setup_teardown(test_edges_keep_their_data, begin, end),
        cmocka_unit_test_setup_teardown(test_kinds_of_edges, begin, end),
        cmocka_unit_test_setup_teardown(test_edges_that_fit, begin, end),
        cmocka_unit_test_setup_teardown(test_node_calls_another, begin, end),
        cmocka_unit_test_setup_teardown(test_node_of_the_graph_changes, begin, end),
        cmocka_unit_test_setup_teardown(test_update, begin, end),
        cmocka_unit_test_setup_teardown(test_update_fails, begin, end),
        cmocka_unit_test_setup_teardown(test_handle_again, begin, end),
        cmocka_unit_test_setup_teardown(test_made_and_gone, begin, end),
        cmocka_unit_test_setup_teardown(test_instantiates, begin, end),
        cmocka_unit_test_setup_teardown(test_launches, begin, end),
    };
    return cmocka_run_group_tests_name("graph-calls", tests, NULL, NULL);
}
