/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Graphs, as extension requests. The graphs are CUDA's at the back end. A node that needs this
 * process (a host function of the application, or a copy between host and device) is there a
 * function that this process is asked to call. So this file knows which functions each executable
 * graph calls.
 */
#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include "common/log.h"

#include <pthread.h>
#include <stdlib.h>

#define FLAGS      15ull /* of cudaGraphInstantiate; before CUDA 12 an address is in their place */
#define LISTED_MAX ((size_t)1 << 24) /* of nodes or functions in a graph, more than any has */

#define UNKNOWN_PLACE SIZE_MAX

/* A node that calls another function in the executable graph than in the graph it was made from. */
struct exchanged {
    struct exchanged *next;
    const void *node;
    uint64_t first; /* its function when the executable graph was made */
    size_t place;   /* its index in the numbers of the executable graph */
};

/* An executable graph (cudaGraphExec_t) that calls functions of this process. An update keeps its
 * nodes, and so the index of each. */
struct executable {
    struct executable *next;
    void *handle;
    struct exchanged *exchanged;
    size_t count;
    uint64_t *first;    /* the numbers when it was made */
    uint64_t numbers[]; /* the functions that it calls now; `first` follows them */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct executable *executables;
static _Atomic unsigned executable_count;

static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

/* Sends a request to destroy `handle`. False: the back end does not know the request. */
static bool destroy(enum ibx_extension number, const char *call, const void *handle, int *rc)
{
    struct extension_request e;
    ibx_frontend_request_begin(&e, number, call);
    ibx_put_u64(&e.body, (uintptr_t)handle);
    return ibx_frontend_request_known(&e, NULL, 0, rc);
}

/* Sends a request whose answer is a handle. False: the back end does not know it. */
static bool made(const struct extension_request *e, void **handle, int *rc)
{
    uint8_t bytes[8] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    if (!ibx_frontend_request_known(e, bytes, sizeof(bytes), rc))
        return false;
    if (!*rc)
        *handle = (void *)(uintptr_t)ibx_get_u64(&r);
    return true;
}

static int not_known(const struct extension_request *e)
{
    return ibx_frontend_request_make(e, NULL, 0); /* logs why it is not supported */
}

/* ----------------------------------------------------------------------- which functions */

/* Called under the lock. */
static void forget(const void *handle)
{
    for (struct executable **at = &executables; *at; at = &(*at)->next) {
        struct executable *found = *at;
        if (found->handle != handle)
            continue;
        *at = found->next;
        for (struct exchanged *x; (x = found->exchanged);) {
            found->exchanged = x->next;
            free(x);
        }
        free(found);
        atomic_fetch_sub(&executable_count, 1);
        return;
    }
}

uint64_t *ibx_frontend_graph_room(size_t n, const char *call, int *rc)
{
    uint64_t *all = n <= LISTED_MAX ? calloc(n + 1, sizeof(*all)) : NULL;
    if (n > LISTED_MAX)
        ibx_log(IBX_LOG_ERROR, "%s fails: the back end says that the graph has %zu nodes", call, n);
    if (!all)
        *rc = ibx_frontend_fail(n > LISTED_MAX ? CUDA_UNKNOWN : CUDA_MEMORY_ALLOCATION);
    return all;
}

uint64_t *ibx_frontend_graph_list(enum ibx_extension number, const char *call, const void *graph,
                                  int root, size_t *count, int *rc)
{
    uint64_t *all = NULL;
    *count = 1;
    for (size_t from = 0; from < *count && !*rc; from += IBX_EXT_LISTED) {
        struct extension_request e;
        uint8_t bytes[8 + 8 * IBX_EXT_LISTED] = {0};
        struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
        ibx_frontend_request_begin(&e, number, call);
        ibx_put_u64(&e.body, (uintptr_t)graph);
        ibx_put_u64(&e.body, from);
        if (root >= 0)
            ibx_put_u8(&e.body, (uint8_t)root);
        if ((*rc = ibx_frontend_request_make(&e, bytes, sizeof(bytes))))
            break;
        const size_t n = (size_t)ibx_get_u64(&r);
        if (!from)
            all = ibx_frontend_graph_room(n, call, rc);
        else if (n != *count)
            *rc = ibx_frontend_fail(CUDA_INVALID_VALUE);
        *count = n;
        for (size_t i = from; i < n && i < from + IBX_EXT_LISTED && !*rc; i++)
            all[i] = ibx_get_u64(&r);
    }
    if (*rc) {
        free(all);
        all = NULL;
    }
    return all;
}

/* Called under the lock. */
static struct executable *find(const void *handle)
{
    struct executable *found = executables;
    while (found && found->handle != handle)
        found = found->next;
    return found;
}

/* Called under the lock. `e` replaces `before` after an update. */
static void take_over(struct executable *e, struct executable *before)
{
    if (before->count != e->count)
        return;
    memcpy(e->first, before->first, e->count * sizeof(*e->first));
    e->exchanged = before->exchanged;
    before->exchanged = NULL;
}

/* Notes the functions of an executable graph that was made from `graph` or updated to be like it.
 */
static int note(void *exec, const void *graph, bool update)
{
    size_t count;
    int rc = CUDA_SUCCESS;
    uint64_t *numbers = ibx_frontend_graph_list(IBX_EXT_GRAPH_FUNCTIONS, "cudaGraphInstantiate",
                                                graph, -1, &count, &rc);
    struct executable *made_of =
        count && !rc ? malloc(sizeof(*made_of) + 2 * count * sizeof(*numbers)) : NULL;
    if (!rc && count && !made_of)
        rc = ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
    if (made_of) {
        *made_of =
            (struct executable){.handle = exec, .count = count, .first = made_of->numbers + count};
        memcpy(made_of->numbers, numbers, count * sizeof(*numbers));
        memcpy(made_of->first, numbers, count * sizeof(*numbers));
    }
    pthread_mutex_lock(&lock);
    struct executable *before = update && made_of ? find(exec) : NULL;
    if (before)
        take_over(made_of, before);
    if (!rc)
        forget(exec);
    if (made_of) {
        made_of->next = executables;
        executables = made_of;
        atomic_fetch_add(&executable_count, 1);
    }
    pthread_mutex_unlock(&lock);
    free(numbers);
    return rc;
}

/* A copy of the numbers; NULL: it calls no functions (*count is 0), or there is no memory. */
static uint64_t *numbers_of(const void *exec, size_t *count)
{
    uint64_t *numbers = NULL;
    pthread_mutex_lock(&lock);
    const struct executable *found = find(exec);
    *count = found ? found->count : 0;
    if (found && (numbers = malloc(found->count * sizeof(*numbers))))
        memcpy(numbers, found->numbers, found->count * sizeof(*numbers));
    pthread_mutex_unlock(&lock);
    return numbers;
}

/* Called under the lock. NULL: there is no memory. */
static struct exchanged *exchanged_of(struct executable *e, const void *node, uint64_t before)
{
    struct exchanged *x = e->exchanged;
    while (x && x->node != node)
        x = x->next;
    if (!x && (x = malloc(sizeof(*x)))) {
        *x = (struct exchanged){e->exchanged, node, before, UNKNOWN_PLACE};
        e->exchanged = x;
    }
    return x;
}

void ibx_frontend_execs_keep(const void *node, uint64_t number)
{
    pthread_mutex_lock(&lock);
    for (struct executable *e = executables; e; e = e->next)
        exchanged_of(e, node, number);
    pthread_mutex_unlock(&lock);
}

/* Called under the lock. The index of an entry of this function that belongs to no other node;
 * e->count: there is none. */
static size_t free_place(const struct executable *e, uint64_t first)
{
    size_t i = 0;
    for (; i < e->count; i++) {
        const struct exchanged *x = e->first[i] == first ? e->exchanged : NULL;
        while (x && x->place != i)
            x = x->next;
        if (e->first[i] == first && !x)
            break;
    }
    return i;
}

int ibx_frontend_exec_exchange(const void *exec, const void *node, uint64_t before, uint64_t number)
{
    pthread_mutex_lock(&lock);
    struct executable *e = find(exec);
    struct exchanged *x = e ? exchanged_of(e, node, before) : NULL;
    if (x && x->place >= e->count)
        x->place = free_place(e, x->first);
    const bool found = x && x->place < e->count;
    if (found)
        e->numbers[x->place] = number;
    pthread_mutex_unlock(&lock);
    return found ? CUDA_SUCCESS : ibx_frontend_fail(CUDA_UNKNOWN);
}

/* --------------------------------------------------------------------------------- graphs */

int cudaGraphCreate(void **graph, unsigned flags)
{
    struct extension_request e;
    int rc;
    if (!graph)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    ibx_frontend_request_begin(&e, IBX_EXT_GRAPH_CREATE, "cudaGraphCreate");
    ibx_put_u32(&e.body, flags);
    if (!made(&e, graph, &rc))
        rc = CALL_NEXT(cudaGraphCreate, graph, flags);
    if (!rc)
        ibx_frontend_graph_made(*graph);
    return rc;
}

int cudaGraphClone(void **clone, void *graph)
{
    struct extension_request e;
    int rc;
    if (!clone)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    ibx_frontend_request_begin(&e, IBX_EXT_GRAPH_CLONE, "cudaGraphClone");
    ibx_put_u64(&e.body, (uintptr_t)graph);
    if (!made(&e, clone, &rc))
        return not_known(&e);
    if (rc)
        return rc;
    ibx_frontend_graph_made(*clone);
    ibx_frontend_objects_share(graph, *clone);
    return CUDA_SUCCESS;
}

int cudaGraphDestroy(void *graph)
{
    int rc;
    ibx_frontend_graph_gone(graph);
    ibx_frontend_capture_graph_gone(graph);
    struct launched *launched;
    struct holding *taken = ibx_frontend_objects_take(graph, &launched);
    if (!destroy(IBX_EXT_GRAPH_DESTROY, "cudaGraphDestroy", graph, &rc))
        rc = CALL_NEXT(cudaGraphDestroy, graph);
    if (taken)
        ibx_frontend_objects_gone(taken, launched, !rc);
    return rc;
}

void ibx_frontend_graph_lost(void *graph)
{
    struct launched *launched;
    ibx_frontend_graph_gone(graph);
    ibx_frontend_capture_graph_gone(graph);
    struct holding *taken = ibx_frontend_objects_take(graph, &launched);
    if (taken)
        ibx_frontend_objects_gone(taken, launched, true);
}

int cudaGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags)
{
    struct extension_request e;
    int rc = exec ? ibx_frontend_unsafe() : ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (rc)
        return rc;
    ibx_frontend_request_begin(&e, IBX_EXT_GRAPH_INSTANTIATE, "cudaGraphInstantiate");
    ibx_put_u64(&e.body, (uintptr_t)graph);
    ibx_put_u64(&e.body, flags & ~FLAGS ? 0 : flags);
    if (!made(&e, exec, &rc))
        return CALL_NEXT(cudaGraphInstantiate, exec, graph, flags);
    if (!rc && (rc = note(*exec, graph, false)))
        cudaGraphExecDestroy(*exec);
    else if (!rc)
        ibx_frontend_objects_share(graph, *exec);
    return rc;
}

int cudaGraphInstantiate(void **exec, void *graph, unsigned long long flags)
{
    return cudaGraphInstantiateWithFlags(exec, graph, flags);
}

int cudaGraphExecDestroy(void *exec)
{
    int rc;
    pthread_mutex_lock(&lock);
    forget(exec);
    pthread_mutex_unlock(&lock);
    struct launched *launched;
    struct holding *taken = ibx_frontend_objects_take(exec, &launched);
    if (!destroy(IBX_EXT_EXEC_DESTROY, "cudaGraphExecDestroy", exec, &rc))
        rc = CALL_NEXT(cudaGraphExecDestroy, exec);
    if (taken)
        ibx_frontend_objects_gone(taken, launched, !rc);
    return rc;
}

/* Sends the request for an update. *functions: of the graph, SIZE_MAX if they are not known. */
static int send_update(const void *exec, const void *graph, struct graph_update *result,
                       uint64_t *functions)
{
    static const char call[] = "cudaGraphExecUpdate";
    struct extension_request e;
    uint8_t bytes[IBX_EXT_REFRESHED] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    struct graph_update told;
    int rc;
    ibx_frontend_node_begin(&e, IBX_EXT_EXEC_REFRESH, call, exec, graph);
    ibx_put_u8(&e.body, 0);
    const bool known = ibx_frontend_request_known(&e, bytes, sizeof(bytes), &rc);
    if (!known) {
        ibx_frontend_node_begin(&e, IBX_EXT_EXEC_UPDATE, call, exec, graph);
        rc = ibx_frontend_request_make(&e, bytes, IBX_EXT_UPDATED);
    }
    if (rc)
        return rc;
    rc = (int)ibx_get_u32(&r);
    told.result = (int)ibx_get_u32(&r);
    told.node = (void *)(uintptr_t)ibx_get_u64(&r);
    told.other = (void *)(uintptr_t)ibx_get_u64(&r);
    if (result)
        *result = told;
    *functions = known ? ibx_get_u64(&r) : SIZE_MAX;
    return rc ? ibx_frontend_fail(rc) : CUDA_SUCCESS;
}

int cudaGraphExecUpdate(void *exec, void *graph, struct graph_update *result)
{
    uint64_t functions = SIZE_MAX;
    const int version = ibx_frontend_cuda_version();
    if (version && version < 12) /* it has four parameters */
        return ibx_frontend_fail(CUDA_NOT_SUPPORTED);
    const int rc = send_update(exec, graph, result, &functions);
    if (rc)
        return rc;
    ibx_frontend_objects_updated(exec, graph);
    if (functions)
        return note(exec, graph, true);
    if (atomic_load_explicit(&executable_count, memory_order_relaxed)) {
        pthread_mutex_lock(&lock);
        forget(exec);
        pthread_mutex_unlock(&lock);
    }
    return CUDA_SUCCESS;
}

int cudaGraphUpload(void *exec, void *stream)
{
    struct extension_request e;
    ibx_frontend_request_begin(&e, IBX_EXT_EXEC_UPLOAD, "cudaGraphUpload");
    ibx_put_u64(&e.body, (uintptr_t)exec);
    ibx_put_u64(&e.body, (uintptr_t)stream);
    return ibx_frontend_request_make(&e, NULL, 0);
}

/* Launches the graph: through the plugin or, if that cannot, by GVirtuS's function. */
static int launch(void *exec, void *stream)
{
    uint8_t bytes[16];
    struct ibx_writer body = ibx_writer_of(bytes, sizeof(bytes));
    int rc;
    ibx_put_u64(&body, (uintptr_t)exec);
    ibx_put_u64(&body, (uintptr_t)stream);
    return ibx_frontend_called("cudaGraphLaunch", &body, &rc)
               ? rc
               : CALL_NEXT(cudaGraphLaunch, exec, stream);
}

static int launch_plain(void *exec, void *stream)
{
    const int rc = launch(exec, stream);
    if (!rc)
        ibx_frontend_objects_launched(exec, stream);
    ibx_frontend_stream_worked(stream);
    return rc;
}

int cudaGraphLaunch(void *exec, void *stream)
{
    size_t count = 0;
    int rc = ibx_frontend_graph_reach();
    if (rc)
        return ibx_frontend_fail(rc);
    ibx_frontend_stream_used(stream);
    if (!atomic_load_explicit(&executable_count, memory_order_relaxed))
        return launch_plain(exec, stream);
    uint64_t *numbers = numbers_of(exec, &count);
    if (count && !numbers)
        return ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
    rc = !count || ibx_frontend_captures(stream)
             ? launch(exec, stream)
             : ibx_frontend_copies_launch(numbers, count, stream, launch, exec);
    free(numbers);
    if (!rc)
        ibx_frontend_objects_launched(exec, stream);
    ibx_frontend_stream_worked(stream);
    return rc;
}

int ibx_frontend_launch_later(void *exec, void *stream, uint64_t number,
                              struct ibx_launch_copy *copy)
{
    struct ibx_launch made = {.numbers = &number, .count = 1, .copies = copy};
    return ibx_frontend_host_launch(&made, stream, launch, exec);
}

/* ------------------------------------------------------------------------ what is in a graph */

static int get_nodes(const char *call, const void *graph, void **nodes, size_t *count, int root)
{
    size_t found;
    int rc = CUDA_SUCCESS;
    if (!count)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    uint64_t *all = ibx_frontend_graph_list(IBX_EXT_GRAPH_NODES, call, graph, root, &found, &rc);
    if (rc)
        return rc;
    for (size_t i = 0; nodes && i < *count; i++)
        nodes[i] = i < found ? (void *)(uintptr_t)all[i] : NULL;
    if (!nodes || *count > found)
        *count = found;
    free(all);
    return CUDA_SUCCESS;
}

int cudaGraphGetNodes(void *graph, void **nodes, size_t *count)
{
    return get_nodes("cudaGraphGetNodes", graph, nodes, count, 0);
}

int cudaGraphGetRootNodes(void *graph, void **nodes, size_t *count)
{
    return get_nodes("cudaGraphGetRootNodes", graph, nodes, count, 1);
}

int cudaGraphNodeSetEnabled(void *exec, void *node, unsigned on)
{
    struct extension_request e;
    ibx_frontend_request_begin(&e, IBX_EXT_NODE_ENABLE, "cudaGraphNodeSetEnabled");
    ibx_put_u64(&e.body, (uintptr_t)exec);
    ibx_put_u64(&e.body, (uintptr_t)node);
    ibx_put_u32(&e.body, on);
    return ibx_frontend_request_make(&e, NULL, 0);
}

int cudaGraphNodeGetEnabled(void *exec, void *node, unsigned *on)
{
    struct extension_request e;
    uint64_t answer = 0;
    ibx_frontend_request_begin(&e, IBX_EXT_NODE_ENABLED, "cudaGraphNodeGetEnabled");
    ibx_put_u64(&e.body, (uintptr_t)exec);
    ibx_put_u64(&e.body, (uintptr_t)node);
    const int rc =
        on ? ibx_frontend_request_ask(&e, &answer) : ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (!rc)
        *on = (unsigned)answer;
    return rc;
}

int cudaGraphNodeFindInClone(void **node, void *original, void *clone)
{
    struct extension_request e;
    int rc;
    if (!node)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    ibx_frontend_request_begin(&e, IBX_EXT_NODE_IN_CLONE, "cudaGraphNodeFindInClone");
    ibx_put_u64(&e.body, (uintptr_t)original);
    ibx_put_u64(&e.body, (uintptr_t)clone);
    return made(&e, node, &rc) ? rc : not_known(&e);
}

int cudaGraphExecGetFlags(void *exec, unsigned long long *flags)
{
    struct extension_request e;
    uint64_t answer = 0;
    ibx_frontend_request_begin(&e, IBX_EXT_EXEC_FLAGS, "cudaGraphExecGetFlags");
    ibx_put_u64(&e.body, (uintptr_t)exec);
    const int rc =
        flags ? ibx_frontend_request_ask(&e, &answer) : ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (!rc)
        *flags = answer;
    return rc;
}

/* ------------------------------------------------------------------------- memory of graphs */

int cudaDeviceGetGraphMemAttribute(int device, int attribute, void *value)
{
    struct extension_request e;
    uint64_t found = 0;
    ibx_frontend_request_begin(&e, IBX_EXT_GRAPH_MEMORY, "cudaDeviceGetGraphMemAttribute");
    ibx_put_u32(&e.body, (uint32_t)device);
    ibx_put_u32(&e.body, (uint32_t)attribute);
    const int rc =
        value ? ibx_frontend_request_ask(&e, &found) : ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (!rc)
        memcpy(value, &found, sizeof(found));
    return rc;
}

int cudaDeviceGraphMemTrim(int device)
{
    struct extension_request e;
    ibx_frontend_request_begin(&e, IBX_EXT_GRAPH_TRIM, "cudaDeviceGraphMemTrim");
    ibx_put_u32(&e.body, (uint32_t)device);
    return ibx_frontend_request_make(&e, NULL, 0);
}
