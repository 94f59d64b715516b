/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A double of CUDA's runtime: graphs, and captures of one stream at a time. */
#include "tests/doubles/cuda/graph.h"
#include "tests/doubles/cuda/runtime.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

#define INVALID_VALUE  1
#define ILLEGAL_STATE  401
#define UNSUPPORTED    900
#define INVALIDATED    901
#define UNJOINED       904
#define WRONG_THREAD   908
#define MODE_RELAXED   2
#define NON_BLOCKING   1u /* of a stream's flags */
#define UPDATE_FAILURE 910

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct {
    void *stream; /* NULL: none is captured */
    struct double_graph *graph;
    int mode;
    pthread_t thread; /* that has begun it */
    bool lost;        /* a call did what CUDA does not permit */
} capture;
static unsigned device_waits; /* under way */

static struct double_graph *make(void)
{
    struct double_graph *graph = calloc(1, sizeof(*graph));
    graph->magic = GRAPH_MAGIC;
    return graph;
}

static void release_all_objects(struct double_graph *graph)
{
    graph_objects_release(graph);
    for (unsigned i = 0; i < graph->count; i++)
        if (graph->nodes[i].type == NODE_GRAPH)
            release_all_objects(graph->nodes[i].of.child);
}

/* CUDA does not say that the copy has the body's objects, nor those of graphs within it. */
static struct double_graph *copy_body(void *handle)
{
    struct double_graph *body = graph_copy(handle);
    release_all_objects(body);
    return body;
}

struct double_graph *graph_copy(void *handle)
{
    struct double_graph *graph = malloc(sizeof(*graph));
    graph_of(handle)->copied = true;
    memcpy(graph, graph_of(handle), sizeof(*graph));
    graph->copy_of = handle;
    for (unsigned i = 0; i < graph->count; i++) {
        graph->nodes[i].graph = graph;
        if (graph->nodes[i].type == NODE_GRAPH)
            graph->nodes[i].of.child = graph_copy(graph->nodes[i].of.child);
        for (unsigned b = 0; b < 2 && graph->nodes[i].type == NODE_CONDITIONAL; b++)
            if (graph->nodes[i].of.bodies[b])
                graph->nodes[i].of.bodies[b] = copy_body(graph->nodes[i].of.bodies[b]);
    }
    graph_objects_hold(graph);
    return graph;
}

void graph_discard(void *handle)
{
    struct double_graph *graph = graph_of(handle);
    for (unsigned i = 0; i < graph->count; i++) {
        if (graph->nodes[i].type == NODE_GRAPH)
            graph_discard(graph->nodes[i].of.child);
        for (unsigned b = 0; b < 2 && graph->nodes[i].type == NODE_CONDITIONAL; b++)
            if (graph->nodes[i].of.bodies[b])
                graph_discard(graph->nodes[i].of.bodies[b]);
        graph->nodes[i].magic = 0;
    }
    graph->magic = 0;
    graph_objects_release(graph);
    free(graph);
}

/* -------------------------------------------------------------------------------- captures */

static void **told_behind; /* what capture_tell() has returned last */

size_t capture_behind(const void *stream, void **behind)
{
    size_t (*get)(const void *stream, void **behind) = NULL;
    *(void **)&get = driver_function("ibx_double_captured_behind");
    return get(stream, behind);
}

void *const *capture_tell(void *const *behind, size_t count)
{
    void **made = malloc((count + 1) * sizeof(*made));
    memcpy(made, behind, count * sizeof(*made));
    pthread_mutex_lock(&mutex);
    free(told_behind);
    told_behind = made;
    pthread_mutex_unlock(&mutex);
    return made;
}

/* Whether the stream has joined the capture, of which the driver's double knows. */
static bool has_joined(const void *stream)
{
    bool (*joined)(const void *stream) = NULL;
    *(void **)&joined = driver_function("ibx_double_joined");
    return joined(stream);
}

static struct graph_node *captured(void *stream, int type)
{
    struct graph_node *node = NULL;
    void (*tell)(const void *stream, void *node) = NULL;
    void *behind[GRAPH_BEHIND];
    const bool joined = has_joined(stream);
    const size_t count = capture_behind(stream, behind);
    pthread_mutex_lock(&mutex);
    if (capture.stream && (joined || stream == capture.stream)) {
        free(told_behind);
        told_behind = NULL;
        node = graph_add(capture.graph, type, behind, count);
    }
    pthread_mutex_unlock(&mutex);
    *(void **)&tell = driver_function("ibx_double_captured");
    if (node)
        tell(stream, node);
    return node;
}

/* The driver's double knows what a call of it has invalidated. */
static void learn_lost(void)
{
    bool (*lost)(void) = NULL;
    *(void **)&lost = driver_function("ibx_double_runtime_lost");
    const bool is = lost && lost();
    pthread_mutex_lock(&mutex);
    capture.lost = capture.lost || (is && capture.stream);
    pthread_mutex_unlock(&mutex);
}

bool capture_is_lost(const void *stream)
{
    learn_lost();
    const bool joined = has_joined(stream);
    pthread_mutex_lock(&mutex);
    const bool lost = stream && (joined || stream == capture.stream) && capture.lost;
    pthread_mutex_unlock(&mutex);
    return lost;
}

struct double_graph *graph_captured(void *stream)
{
    const bool joined = has_joined(stream);
    pthread_mutex_lock(&mutex);
    const bool in = joined || stream == capture.stream;
    struct double_graph *graph = stream && capture.stream && in ? capture.graph : NULL;
    pthread_mutex_unlock(&mutex);
    return graph;
}

bool captures_function(void *stream, void (*function)(void *argument), void *argument)
{
    struct graph_node *node = captured(stream, NODE_HOST);
    if (node) {
        node->of.host.function = function;
        node->of.host.argument = argument;
    }
    return node;
}

bool captures_event(void *stream, bool records, void *event)
{
    struct graph_node *node = captured(stream, records ? NODE_RECORD : NODE_WAIT);
    if (node)
        node->of.event = event;
    return node;
}

bool captures_memory(void *stream, bool allocates, void *memory, size_t n)
{
    struct graph_node *node = captured(stream, allocates ? NODE_ALLOC : NODE_FREE);
    if (node) {
        node->of.memory = memory;
        node->of.memory_bytes = n;
    }
    return node;
}

bool device_wait_begins(void)
{
    pthread_mutex_lock(&mutex);
    const bool fits = !capture.stream;
    capture.lost = !fits;
    device_waits++;
    pthread_mutex_unlock(&mutex);
    return fits;
}

void device_wait_ends(void)
{
    pthread_mutex_lock(&mutex);
    device_waits--;
    pthread_mutex_unlock(&mutex);
}

bool legacy_fits_captures(void)
{
    int (*flags_of)(void *stream, unsigned *flags) = NULL;
    unsigned flags = NON_BLOCKING;
    *(void **)&flags_of = driver_function("cuStreamGetFlags");
    pthread_mutex_lock(&mutex);
    void *stream = capture.stream;
    pthread_mutex_unlock(&mutex);
    if (!stream || flags_of(stream, &flags) || flags & NON_BLOCKING)
        return true;
    pthread_mutex_lock(&mutex);
    capture.lost = capture.lost || capture.stream == stream;
    pthread_mutex_unlock(&mutex);
    return false;
}

bool load_fits_captures(void)
{
    int (*exchange)(int *mode) = NULL;
    int mode = MODE_RELAXED;
    *(void **)&exchange = driver_function("cuThreadExchangeStreamCaptureMode");
    exchange(&mode);
    const bool relaxed = mode == MODE_RELAXED;
    exchange(&mode);
    pthread_mutex_lock(&mutex);
    const bool fits = relaxed || !capture.stream || !pthread_equal(capture.thread, pthread_self());
    capture.lost = capture.lost || !fits;
    pthread_mutex_unlock(&mutex);
    return fits;
}

static bool take_kernel(void *stream, void *kernel, const unsigned size[6],
                        const uint64_t values[3], bool packed)
{
    struct graph_node *node = captured(stream, NODE_KERNEL);
    if (node) {
        node->of.packed = packed;
        node->of.kernel = kernel;
        memcpy(node->of.size, size, sizeof(node->of.size));
        memcpy(node->of.values, values, sizeof(node->of.values));
    }
    return node;
}

static void tell_driver(void *stream)
{
    void (*tell)(void *captured, void *graph, int mode) = NULL;
    void (*give)(ibx_double_take * take) = NULL;
    *(void **)&tell = driver_function("ibx_double_runtime_captures");
    *(void **)&give = driver_function("ibx_double_runtime_takes");
    give(take_kernel);
    tell(stream, graph_captured(stream), capture.mode);
}

static void begin_capture(void *stream, int mode, struct double_graph *graph)
{
    pthread_mutex_lock(&mutex);
    capture.graph = graph;
    capture.stream = stream;
    capture.mode = mode;
    capture.thread = pthread_self();
    capture.lost = device_waits;
    pthread_mutex_unlock(&mutex);
    tell_driver(stream);
}

EXPORT int cudaStreamBeginCapture(void *stream, int mode)
{
    begin_capture(stream, mode, make());
    return returns(0);
}

static bool is_captured(const void *graph)
{
    pthread_mutex_lock(&mutex);
    const bool is = capture.stream && capture.graph == graph;
    pthread_mutex_unlock(&mutex);
    return is;
}

/* The codes are those of an H200. */
EXPORT int cudaStreamBeginCaptureToGraph(void *stream, void *graph, void *const *behind,
                                         const void *edges, size_t count, int mode)
{
    int (*set)(void *of, void *const *nodes, const void *data, size_t n, unsigned flags) =
        cudaStreamUpdateCaptureDependencies;
    if (!graph || (count && !behind) || mode < 0 || mode > MODE_RELAXED)
        return returns(INVALID_VALUE);
    if (!stream)
        return returns(UNSUPPORTED);
    learn_lost();
    pthread_mutex_lock(&mutex); /* what CUDA says of a graph whose capture is lost was not seen */
    const bool any = capture.stream && !(capture.lost && capture.graph == graph);
    pthread_mutex_unlock(&mutex);
    if (any || graph_captured(stream)) /* CUDA permits captures into other graphs */
        return returns(ILLEGAL_STATE);
    for (size_t i = 0; i < count; i++)
        if (node_of(behind[i])->graph != graph)
            return returns(INVALID_VALUE);
    begin_capture(stream, mode, graph_of(graph));
    return set(stream, behind, edges, count, 1);
}

/* Others are captured by the double of the driver. */
EXPORT int cudaStreamEndCapture(void *stream, void **graph)
{
    int (*end)(void *stream, void **graph) = NULL;
    bool (*unjoined)(void) = NULL;
    learn_lost();
    *(void **)&unjoined = driver_function("ibx_double_unjoined");
    const bool open = unjoined();
    pthread_mutex_lock(&mutex);
    if (stream != capture.stream)
        *(void **)&end = driver_function("cuStreamEndCapture");
    if (end) {
        pthread_mutex_unlock(&mutex);
        return returns(end(stream, graph));
    }
    const bool may = capture.mode == MODE_RELAXED || pthread_equal(capture.thread, pthread_self());
    const bool lost = capture.lost || !may, fails = lost || open;
    if (fails)
        graph_discard(capture.graph);
    *graph = stream == capture.stream && !fails ? capture.graph : NULL;
    capture.stream = NULL;
    capture.lost = false;
    free(told_behind);
    told_behind = NULL;
    pthread_mutex_unlock(&mutex);
    tell_driver(NULL);
    return returns(!may ? WRONG_THREAD : lost ? INVALIDATED : open ? UNJOINED : 0);
}

/* CUDA ends its capture. */
EXPORT void ibx_double_stream_destroyed(void *stream)
{
    pthread_mutex_lock(&mutex);
    const bool captured = stream && stream == capture.stream;
    if (captured) {
        graph_discard(capture.graph);
        capture.stream = NULL;
        capture.lost = false;
    }
    pthread_mutex_unlock(&mutex);
    if (captured)
        tell_driver(NULL);
}

EXPORT int cudaStreamIsCapturing(void *stream, int *status)
{
    int (*by_driver)(void *stream, int *status) = NULL;
    *(void **)&by_driver = driver_function("cuStreamIsCapturing");
    const bool joined = has_joined(stream);
    learn_lost();
    pthread_mutex_lock(&mutex);
    const bool captured = stream && (stream == capture.stream || joined);
    *status = captured ? 1 + capture.lost : 0;
    pthread_mutex_unlock(&mutex);
    return returns(captured || !stream ? 0 : by_driver(stream, status));
}

EXPORT int cudaMemset2DAsync(void *address, size_t pitch, int value, size_t width, size_t height,
                             void *stream)
{
    const struct ibx_cuda_memset set = {.at = address,
                                        .pitch = pitch,
                                        .value = (unsigned)value & 255,
                                        .element = 1,
                                        .width = width,
                                        .height = height};
    if (height > 1 && pitch < width)
        return returns(INVALID_VALUE);
    if (capture_is_lost(stream))
        return returns(INVALIDATED);
    struct graph_node *node = captured(stream, NODE_MEMSET);
    if (!node)
        return returns(graph_run_set(&set, stream));
    node->of.set = set;
    return returns(0);
}

EXPORT int cudaMemsetAsync(void *address, int value, size_t n, void *stream)
{
    return cudaMemset2DAsync(address, n, value, n, 1, stream);
}

int captures_nothing(const void *stream)
{
    learn_lost();
    const bool joined = has_joined(stream);
    pthread_mutex_lock(&mutex);
    const bool captured = stream && (joined || stream == capture.stream);
    const bool lost = captured && capture.lost;
    capture.lost = capture.lost || captured;
    pthread_mutex_unlock(&mutex);
    return lost ? INVALIDATED : captured ? UNSUPPORTED : 0;
}

EXPORT int cudaMemcpy3DAsync(const struct ibx_cuda_memcpy3d *p, void *stream)
{
    if (capture_is_lost(stream))
        return returns(INVALIDATED);
    struct graph_node *node = captured(stream, NODE_MEMCPY);
    if (!node)
        return returns(graph_run_copy(p, stream));
    node->of.copy = *p;
    return returns(0);
}

/* ---------------------------------------------------------------------------------- graphs */

EXPORT int cudaRuntimeGetVersion(int *version)
{
    *version = 13000;
    return 0;
}

EXPORT int cudaGraphCreate(void **graph, unsigned flags)
{
    if (flags)
        return returns(INVALID_VALUE);
    *graph = make();
    return returns(0);
}

/* The handle is a number, a mark, and the value with which it begins. */
EXPORT int cudaGraphConditionalHandleCreate(uint64_t *handle, void *graph, unsigned value,
                                            unsigned flags)
{
    static _Atomic uint64_t numbers;
    graph_of(graph);
    *handle = ++numbers << 32 | (0xc0000000u + value);
    return returns(flags == 1 ? 0 : INVALID_VALUE);
}

/* cudaGraphNodeParams of a conditional node */
struct conditional {
    int type, reserved[3];
    uint64_t handle;
    int kind;
    unsigned size;
    void **graphs;
};

struct child {
    int type, reserved[3];
    void *graph;
    int ownership;
};

static int add_moved(void **made, void *graph, void *const *behind, size_t count,
                     const struct child *p)
{
    if (p->ownership != 1 || p->graph == graph)
        return returns(INVALID_VALUE);
    struct graph_node *node = graph_add(graph, NODE_GRAPH, behind, count);
    node->of.child = graph_of(p->graph);
    *made = node;
    return returns(0);
}

/* An "if", with a body for each of the two or for the first; or a graph that is moved there. */
EXPORT int cudaGraphAddNode(void **made, void *graph, void *const *behind, const void *edges,
                            size_t count, struct conditional *p)
{
    if (p->type == NODE_GRAPH)
        return add_moved(made, graph, behind, count, (struct child *)p);
    if ((p->handle >> 30 & 3) != 3)
        abort(); /* as CUDA may */
    if (p->type != NODE_CONDITIONAL || edges || p->kind || p->size > 2)
        return returns(INVALID_VALUE);
    struct graph_node *node = graph_add(graph, NODE_CONDITIONAL, behind, count);
    for (unsigned i = 0; i < p->size; i++)
        node->of.bodies[i] = make();
    node->of.condition = (unsigned)p->handle & 0xffff;
    p->graphs = node->of.bodies;
    *made = node;
    return returns(0);
}

/* Whether no earlier node allocates the same memory, which that one's free gives back. */
static bool is_first_of_memory(const struct double_graph *graph, unsigned at)
{
    unsigned i = 0;
    while (graph->nodes[i].type != NODE_ALLOC ||
           graph->nodes[i].of.memory != graph->nodes[at].of.memory)
        i++;
    return i == at;
}

/* Of a graph that was never launched nor copied. */
static void free_memory(const struct double_graph *graph)
{
    for (unsigned i = 0; i < graph->count && !graph->copied; i++)
        if (graph->nodes[i].type == NODE_ALLOC && is_first_of_memory(graph, i))
            graph_free(graph->nodes[i].of.memory);
}

static struct double_graph *with_memory; /* locked */

/* CUDA has one executable graph at a time of a graph that allocates memory. */
static bool has_memory(const struct double_graph *graph)
{
    bool has = false;
    for (unsigned i = 0; i < graph->count; i++)
        has = has || graph->nodes[i].type == NODE_ALLOC;
    return has;
}

static bool is_there_with_memory(const void *graph)
{
    pthread_mutex_lock(&mutex);
    const struct double_graph *exec = with_memory;
    while (exec && exec->copy_of != graph)
        exec = exec->next_with_memory;
    pthread_mutex_unlock(&mutex);
    return exec;
}

static void add_with_memory(struct double_graph *exec)
{
    pthread_mutex_lock(&mutex);
    exec->next_with_memory = with_memory;
    with_memory = exec;
    pthread_mutex_unlock(&mutex);
}

/* One of both is gone. */
static void forget_with_memory(const void *exec, const void *graph)
{
    pthread_mutex_lock(&mutex);
    for (struct double_graph **at = &with_memory; *at;)
        if (*at == exec || (graph && (*at)->copy_of == graph))
            *at = (*at)->next_with_memory;
        else
            at = &(*at)->next_with_memory;
    pthread_mutex_unlock(&mutex);
}

/* A graph that the driver's double has captured is a number, without contents. */
EXPORT int cudaGraphDestroy(void *graph)
{
    if (is_captured(graph))
        return returns(ILLEGAL_STATE);
    if ((uintptr_t)graph >= 4096) {
        forget_with_memory(NULL, graph);
        free_memory(graph_of(graph));
        graph_discard(graph);
    }
    return returns(0);
}

EXPORT int cudaGraphClone(void **clone, void *graph)
{
    struct double_graph *made = graph_copy(graph);
    made->clone_of = graph;
    *clone = made;
    return returns(0);
}

EXPORT int cudaGraphNodeFindInClone(void **node, void *original, void *handle)
{
    struct double_graph *clone = graph_of(handle);
    const struct graph_node *of = node_of(original);
    if (clone->clone_of != of->graph)
        return returns(INVALID_VALUE);
    *node = &clone->nodes[of->index];
    return returns(0);
}

static void count_exec(int more)
{
    void (*count)(int more) = NULL;
    *(void **)&count = driver_function("ibx_double_count_exec");
    count(more);
}

EXPORT int cudaGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags)
{
    bool (*fails)(const char *function, int *code) = NULL;
    int code = INVALID_VALUE;
    *(void **)&fails = driver_function("ibx_double_fails");
    const int unsafe = is_unsafe("cudaGraphInstantiate");
    if (unsafe || flags > 15 || fails("cudaGraphInstantiate", &code))
        return returns(unsafe ? unsafe : code);
    if (!graph_has_all(graph_of(graph)))
        raise(SIGSEGV); /* as driver 580 does */
    if (is_there_with_memory(graph)) {
        count_exec(0);
        return returns(INVALID_VALUE);
    }
    struct double_graph *made = graph_copy(graph);
    made->flags = flags;
    *exec = made;
    if (has_memory(made))
        add_with_memory(made);
    count_exec(1);
    return returns(0);
}

EXPORT int cudaGraphExecGetFlags(void *exec, unsigned long long *flags)
{
    *flags = graph_of(exec)->flags;
    return returns(0);
}

/* As the driver, waits for the last launch, and may keep other threads out meanwhile. */
EXPORT int cudaGraphExecDestroy(void *exec)
{
    void (*wait_alone)(void *stream) = NULL;
    *(void **)&wait_alone = driver_function("ibx_double_wait_alone");
    if (graph_of(exec)->launched)
        wait_alone(graph_of(exec)->launched);
    forget_with_memory(exec, NULL);
    graph_discard(exec);
    count_exec(-1);
    return returns(0);
}

EXPORT int cudaGraphUpload(void *exec, void *stream)
{
    (void)stream;
    graph_of(exec);
    return returns(0);
}

struct update_result {
    int result;
    void *node, *other;
};

EXPORT int cudaGraphExecUpdate(void *handle, void *graph_handle, struct update_result *told)
{
    bool (*fails)(const char *function, int *code) = NULL;
    int code = 0;
    struct double_graph *exec = graph_of(handle), *graph = graph_of(graph_handle);
    *told = (struct update_result){.result = 0};
    *(void **)&fails = driver_function("ibx_double_fails");
    if (fails("cudaGraphExecUpdate", &code))
        return returns(code);
    bool same = exec->count == graph->count;
    for (unsigned i = 0; i < graph->count && same; i++)
        same = exec->nodes[i].type == graph->nodes[i].type;
    if (!same) {
        told->result = 2;
        return returns(UPDATE_FAILURE);
    }
    if (!graph_has_all(graph))
        raise(SIGSEGV);
    graph_objects_exchange(exec, graph);
    for (unsigned i = 0; i < graph->count; i++) {
        const bool child = graph->nodes[i].type == NODE_GRAPH;
        if (child)
            graph_discard(exec->nodes[i].of.child);
        exec->nodes[i].of = graph->nodes[i].of;
        if (child)
            exec->nodes[i].of.child = graph_copy(graph->nodes[i].of.child);
    }
    return returns(0);
}
