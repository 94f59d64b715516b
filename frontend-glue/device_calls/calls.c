/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Short calls other than copies. They are run here as GVirtuS's handler runs them, by the same
 * functions of the same runtime in the same thread, but without its overhead. So their results, and
 * the thread's last error, are those of the handler.
 */
#include "frontend-glue/device_calls/device_calls.h"

#include "common/clock.h"
#include "frontend-glue/session/extensions.h"
#include "frontend-glue/session/math_calls.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define PASSES  INT32_MIN   /* not a cudaError_t: GVirtuS has to run the call */
#define NOWHERE ((void *)1) /* an address that CUDA refuses */

/* The function that runs extension requests. */
typedef int extensions(struct gpu_session *x, const struct ibx_request *q, struct ibx_writer *out);

/* A call's arguments, and what it answers beside its exit code. */
struct arguments {
    struct ibx_reader in;
    uint8_t out[IBX_EXT_OUT_MAX];
    const uint8_t *long_out; /* the answer, in place of `out`; NULL: it is in `out` */
    size_t out_n;
};

/* Functions of the runtime; NULL: it has no such function. */
static struct {
    int (*event_record)(void *event, void *stream);
    int (*stream_wait_event)(void *stream, void *event, unsigned flags);
    int (*event_query)(void *event);
    int (*event_synchronize)(void *event);
    int (*stream_query)(void *stream);
    int (*stream_synchronize)(void *stream);
    int (*device_synchronize)(void);
    int (*graph_launch)(void *graph, void *stream);
    int (*memset)(void *address, int value, size_t n);
    int (*malloc)(void **address, size_t n);
    int (*free)(void *address);
    int (*enable_peer)(int peer, unsigned flags);
    int (*disable_peer)(int peer);
} runtime;

static void *pointer(struct ibx_reader *r)
{
    return pointer_to(ibx_get_u64(r));
}

static int event_record(struct gpu_session *x, struct arguments *a)
{
    (void)x;
    void *event = pointer(&a->in);
    return runtime.event_record(event, pointer(&a->in));
}

static int stream_wait_event(struct gpu_session *x, struct arguments *a)
{
    void *stream = pointer(&a->in), *event = pointer(&a->in);
    const unsigned flags = ibx_get_u32(&a->in);
    int code;
    return ibx_shared_event_wait(x, stream, event, flags, runtime.stream_wait_event, &code)
               ? code
               : runtime.stream_wait_event(stream, event, flags);
}

static int event_query(struct gpu_session *x, struct arguments *a)
{
    (void)x;
    return runtime.event_query(pointer(&a->in));
}

static int event_synchronize(struct gpu_session *x, struct arguments *a)
{
    (void)x;
    return runtime.event_synchronize(pointer(&a->in));
}

static int stream_query(struct gpu_session *x, struct arguments *a)
{
    (void)x;
    return runtime.stream_query(pointer(&a->in));
}

static int stream_synchronize(struct gpu_session *x, struct arguments *a)
{
    (void)x;
    return runtime.stream_synchronize(pointer(&a->in));
}

static int device_synchronize(struct gpu_session *x, struct arguments *a)
{
    (void)a;
    if (ibx_own_work_wait(x))
        return 0;
    ibx_captures_wait_begin(x);
    const int rc = runtime.device_synchronize();
    ibx_captures_wait_end();
    return rc;
}

/* An executable graph that is not known here, or is another tenant's, is left to GVirtuS's
 * handler. */
static int graph_launch(struct gpu_session *x, struct arguments *a)
{
    void *graph = pointer(&a->in);
    if (!ibx_handles_know(x, IBX_HANDLE_EXEC, (uintptr_t)graph))
        return PASSES;
    void *stream = pointer(&a->in);
    const unsigned before = ibx_captures_over_so_far(x);
    const bool room = ibx_graph_launches(x, (uintptr_t)graph, (uintptr_t)stream);
    int rc = room ? ibx_graph_events_launch(x, (uintptr_t)graph) : CUDA_MEMORY_ALLOCATION;
    if (!rc)
        rc = ibx_frees_launch(x, runtime.graph_launch, graph, stream);
    ibx_graph_launched(x, (uintptr_t)graph, (uintptr_t)stream, before);
    ibx_handles_let_go(x);
    return rc;
}

static int set_memory(struct gpu_session *x, struct arguments *a)
{
    void *address = pointer(&a->in);
    const int value = (int)ibx_get_u32(&a->in);
    const uint64_t n = ibx_get_u64(&a->in);
    if (!ibx_isolation_allows_now(x, (uintptr_t)address, n))
        return PASSES;
    return runtime.memset(address, value, n);
}

/* Whether allocations and frees have to go through GVirtuS, where they are noted: if tenants are
 * isolated or limited. */
static bool is_noted(const struct gpu_session *x)
{
    return x->isolation.on || x->isolation.limited;
}

static void free_again(struct gpu_session *x, void *address)
{
    uint64_t number;
    if (ibx_memory_free_begin(x, (uintptr_t)address, &number))
        ibx_memory_free_end((uintptr_t)address, number, !runtime.free(address));
}

static int allocate_noted(struct gpu_session *x, void **address, uint64_t n)
{
    ibx_memory_make_begin(x);
    int rc = runtime.malloc(address, n);
    if (!rc && *address)
        ibx_memory_add(x, (uintptr_t)*address, n, false);
    ibx_memory_make_end(x);
    if (rc || !*address)
        return rc;
    rc = ibx_clear_new(x, (uintptr_t)*address, n);
    if (rc) {
        free_again(x, *address);
        *address = NULL;
    }
    return rc;
}

static int allocate(struct gpu_session *x, struct arguments *a)
{
    void *address = NULL;
    if (is_noted(x) || !x->allocates_plainly)
        return PASSES;
    const uint64_t n = ibx_get_u64(&a->in);
    int rc = allocate_noted(x, &address, n);
    while (rc == CUDA_MEMORY_ALLOCATION && ibx_client_ends_wait()) {
        ibx_back_end_forget_error();
        rc = allocate_noted(x, &address, n);
    }
    struct ibx_writer w = ibx_writer_of(a->out, sizeof(a->out));
    ibx_put_u64(&w, (uintptr_t)address);
    a->out_n = w.length;
    return rc;
}

static int free_noted(struct gpu_session *x, void *address)
{
    if (ibx_own_work_free(x, (uintptr_t)address))
        return 0;
    if (is_noted(x))
        return PASSES;
    ibx_pending_clear_wait(x, (uintptr_t)address);
    ibx_end_gone((uintptr_t)address); /* after the free, another thread may have this address */
    ibx_frees_begin(x, (uintptr_t)address);
    const int rc = runtime.free(address);
    ibx_frees_end();
    return rc;
}

static int free_held(struct gpu_session *x, void *address)
{
    uint64_t number;
    if (!address)
        return is_noted(x) ? PASSES : runtime.free(address);
    if (!ibx_memory_free_begin(x, (uintptr_t)address, &number))
        return is_noted(x) ? PASSES : runtime.free(NOWHERE);
    ibx_gpu_registrations_freed(&x->registrations, (uintptr_t)address);
    const int rc = free_noted(x, address);
    ibx_memory_free_end((uintptr_t)address, number, !rc);
    return rc;
}

/* Others' memory is not freed, so their copies go on. */
static int give_back(struct gpu_session *x, struct arguments *a)
{
    void *address = pointer(&a->in);
    if (address && ibx_isolation_allows(x, (uintptr_t)address, 1)) /* logs it, if not */
        ibx_held_by_free(x, (uintptr_t)address);
    const int rc = free_held(x, address);
    ibx_held_end(x);
    return rc;
}

#define INVALID_FUNCTION    98    /* cudaError_t */
#define ATTRIBUTES_BYTES    4096u /* more than cudaFuncAttributes has */
#define PEER_ACCESS_ENABLED 704   /* cudaError_t */

/* All clients share one context on a device. Access that another client has enabled can be enabled
 * by this one, too. */
static int enable_peer(struct gpu_session *x, struct arguments *a)
{
    int (*peek_error)(void) = NULL, (*get_error)(void) = NULL;
    (void)x;
    const int peer = (int)ibx_get_u32(&a->in);
    *(void **)&peek_error = ibx_back_end_runtime("cudaPeekAtLastError");
    *(void **)&get_error = ibx_back_end_runtime("cudaGetLastError");
    if (!peek_error || !get_error || peek_error()) /* a pending error would be lost */
        return PASSES;
    const int rc = runtime.enable_peer(peer, ibx_get_u32(&a->in));
    if (rc != PEER_ACCESS_ENABLED)
        return rc;
    get_error();
    return 0;
}

/* Other clients may have enabled the access as well: so it stays enabled. Only a device that does
 * not exist is an error. */
static int disable_peer(struct gpu_session *x, struct arguments *a)
{
    int (*can_reach)(int *can, int device, int peer) = NULL;
    int can = 0;
    const int peer = (int)ibx_get_u32(&a->in);
    *(void **)&can_reach = ibx_back_end_runtime("cudaDeviceCanAccessPeer");
    const bool known = can_reach && peer >= 0 && peer != x->device;
    return known && !can_reach(&can, x->device, peer) && can ? 0 : runtime.disable_peer(peer);
}

static const struct handler {
    const char *name; /* of the request, and of the runtime's function */
    void *at;
    int (*run)(struct gpu_session *x, struct arguments *a);
    size_t length; /* of the body */
    int event_at;  /* offset of an event in the body; -1: there is none */
} handlers[] = {
    {"cudaEventRecord", &runtime.event_record, event_record, 16, 0},
    {"cudaStreamWaitEvent", &runtime.stream_wait_event, stream_wait_event, 20, 8},
    {"cudaEventQuery", &runtime.event_query, event_query, 8, 0},
    {"cudaEventSynchronize", &runtime.event_synchronize, event_synchronize, 8, 0},
    {"cudaStreamQuery", &runtime.stream_query, stream_query, 8, -1},
    {"cudaStreamSynchronize", &runtime.stream_synchronize, stream_synchronize, 8, -1},
    {"cudaDeviceSynchronize", &runtime.device_synchronize, device_synchronize, 0, -1},
    {"cudaGraphLaunch", &runtime.graph_launch, graph_launch, 16, -1},
    {"cudaMemset", &runtime.memset, set_memory, 20, -1},
    {"cudaMalloc", &runtime.malloc, allocate, 8, -1},
    {"cudaFree", &runtime.free, give_back, 8, -1},
    {"cudaDeviceEnablePeerAccess", &runtime.enable_peer, enable_peer, 8, -1},
    {"cudaDeviceDisablePeerAccess", &runtime.disable_peer, disable_peer, 4, -1},
};
#define HANDLERS (sizeof(handlers) / sizeof(handlers[0]))

/* ------------------------------------------------------------------------- the runtime */

static const struct ibx_call *known[HANDLERS]; /* by handler; NULL: the runtime lacks it */
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool loaded;

/* The runtime is loaded at the latest when GVirtuS has run a call of a session. */
static bool load(struct gpu_session *x)
{
    if (atomic_load_explicit(&loaded, memory_order_acquire))
        return true;
    if (x->tried_runtime)
        return false;
    x->tried_runtime = true;
    pthread_mutex_lock(&loading);
    const bool there = ibx_back_end_runtime("cudaGetLastError");
    for (size_t i = 0; i < HANDLERS && there && !atomic_load(&loaded); i++) {
        void *function = ibx_back_end_runtime(handlers[i].name);
        memcpy(handlers[i].at, &function, sizeof(function));
        if (function)
            known[i] = ibx_call_find(handlers[i].name, strlen(handlers[i].name) + 1);
    }
    if (there)
        atomic_store(&loaded, true);
    pthread_mutex_unlock(&loading);
    return there;
}

static const struct handler *handler_of(const struct ibx_call *call, uint64_t length)
{
    size_t i = 0;
    while (i < HANDLERS && known[i] != call)
        i++;
    return i < HANDLERS && handlers[i].length == length ? &handlers[i] : NULL;
}

/* -------------------------------------------------------------------------- the calls */

/* Fails as CUDA does for a function that does not exist. */
static int no_function(void)
{
    int (*attributes_of)(void *attributes, const void *function) = NULL;
    _Alignas(8) uint8_t attributes[ATTRIBUTES_BYTES];
    *(void **)&attributes_of = ibx_back_end_runtime("cudaFuncGetAttributes");
    const int rc = attributes_of ? attributes_of(attributes, NULL) : 0;
    return rc ? rc : INVALID_FUNCTION;
}

/* A failed launch may end a capture, also one in another stream, and would then fail in another way
 * when it is tried again. So while anybody captures, it is tried only once. */
static int launch(struct gpu_session *x, const struct ibx_request *q)
{
    const bool tried = !ibx_captures_any();
    if (tried && !ibx_device_launch(x, q->body, (size_t)q->length))
        return 0;
    const int code = ibx_device_launch_check(x, q->body, (size_t)q->length);
    const int made = code ? -1 : ibx_device_launch_by_runtime(x, q->body, (size_t)q->length, tried);
    if (made >= 0)
        return made;
    x->handler.launch_checked = !code;
    return code == INVALID_FUNCTION ? no_function() : code ? code : PASSES;
}

static int answer_extension(struct gpu_session *x, const struct ibx_request *q, struct arguments *a,
                            extensions *run_extension)
{
    struct ibx_writer out = ibx_writer_of(a->out, sizeof(a->out));
    const int code = run_extension(x, q, &out);
    a->out_n = code ? 0 : out.length;
    return code;
}

/* Work that a library adds may come into a capture. */
static int run_math(struct gpu_session *x, const struct ibx_request *q, struct arguments *a)
{
    struct ibx_writer out = ibx_writer_of(a->out, sizeof(a->out));
    const int status = ibx_device_math(x, q, &out);
    a->long_out = out.data != a->out ? out.data : NULL;
    a->out_n = out.length;
    x->handler.captures = q->called->kind == IBX_CALL_LIBRARY ? CAPTURES_SPARED : CAPTURES_UNUSED;
    return status;
}

static bool names_event(struct gpu_session *x, const struct ibx_request *q, int at)
{
    struct ibx_reader r = ibx_reader_of(q->body + at, 8);
    return ibx_named_event(x, ibx_get_u64(&r));
}

bool ibx_device_call_is_first(const struct ibx_call *call)
{
    return call && (call->kind == IBX_CALL_RESETS ||
                    (ibx_shared_event_any() && !strcmp(call->name, "cudaStreamWaitEvent")));
}

/* Fails as CUDA does for an invalid event. */
static int refused(struct gpu_session *x)
{
    const int rc = load(x) && runtime.event_query ? runtime.event_query(NULL) : 0;
    return rc ? rc : CUDA_INVALID_HANDLE;
}

static int run(struct gpu_session *x, const struct ibx_request *q, struct arguments *a,
               extensions *run_extension)
{
    uint64_t stream = 0; /* cudaMemset uses the legacy stream */
    int reset = 0;
    if (ibx_call_stream(q->called, q->body, (size_t)q->length, &stream) ||
        q->called->kind == IBX_CALL_ENQUEUES)
        (q->called->kind == IBX_CALL_QUERIES ? ibx_captures_spare_all : ibx_captures_spare)(x,
                                                                                            stream);
    if (!ibx_named_stream(x, stream))
        return refused(x);
    if (q->called->kind == IBX_CALL_RESETS)
        return ibx_own_reset(x, &reset) ? reset : PASSES;
    if (ibx_extension_is(q->called->name))
        return answer_extension(x, q, a, run_extension);
    if (ibx_math_is(q->called->name))
        return run_math(x, q, a);
    if (q->called->kind == IBX_CALL_LAUNCH)
        return launch(x, q);
    /* The first call makes a context, which takes long. */
    if (!ibx_back_end_able(x) &&
        !((q->called->kind == IBX_CALL_OTHER || ibx_device_call_is_first(q->called)) &&
          ibx_back_end_begin_context(x)))
        return PASSES;
    const struct handler *handler = load(x) ? handler_of(q->called, q->length) : NULL;
    if (handler && handler->event_at >= 0 && !names_event(x, q, handler->event_at))
        return refused(x);
    return handler ? handler->run(x, a) : PASSES;
}

/* A copy waits without the driver; and of other calls than these two CUDA does not say that they
 * write out what kernels have printed. */
static int tell_output(struct gpu_session *x, const struct ibx_request *q, int code)
{
    const enum ibx_call_kind kind = q->called->kind;
    const char *name = q->called->name;
    if (code || (kind != IBX_CALL_QUERIES && kind != IBX_CALL_FREES))
        return 0;
    return ibx_kernel_output_tell(x, !strcmp(name, "cudaStreamSynchronize") ||
                                         !strcmp(name, "cudaEventSynchronize"));
}

int ibx_device_call(struct gpu_session *x, const struct ibx_request *q, extensions *run_extension)
{
    const uint64_t began = ibx_now_ns();
    struct arguments a = {.in = ibx_reader_of(q->body, (size_t)q->length)};
    uint8_t head[IBX_REPLY_HEAD_MAX];
    if (!ibx_graph_joins_begin(x, q->called->name, q->body, (size_t)q->length))
        return ibx_captures_full(x);
    const int code = run(x, q, &a, run_extension);
    if (code == PASSES)
        return IBX_REQUEST_PASS;
    bool room = ibx_graph_captures(x, q->called, q->body, (size_t)q->length);
    room = ibx_graph_joins_end(x) && room;
    ibx_handles_let_go(x);
    x->handler.captures = CAPTURES_UNUSED;
    if (!room)
        return ibx_captures_full(x);
    if (code && !ibx_math_is(q->called->name))
        ibx_context_note_error(x, code);
    ibx_session_consume(x->s, q);
    const double seconds = (double)(ibx_now_ns() - began) / 1e9;
    ssize_t rc = tell_output(x, q, code);
    if (rc >= 0)
        rc = ibx_session_write(x->s, head,
                               ibx_reply_head(x->replies.shape, code, seconds, a.out_n, head));
    if (rc >= 0 && a.out_n)
        rc = ibx_session_write(x->s, a.long_out ? a.long_out : a.out, a.out_n);
    if (rc >= 0)
        rc = ibx_session_sync(x->s);
    return rc < 0 ? (int)rc : IBX_REQUEST_DONE;
}

/* ----------------------------------------------------------------- what GVirtuS does itself */

/* Whether it is a call of a library that adds no work to streams. */
static bool is_harmless(const char *name)
{
    return !strncmp(name, "nvml", 4) || !strncmp(name, "nvrtc", 5);
}

/* Whether the call may add work that cannot be found: in streams of a library's own, or in a stream
 * that it names in a way that is not known here. GVirtuS may have plugins for any library. */
static bool may_hide_work(const char *name)
{
    const char *plain = strncmp(name, "__", 2) ? name : name + 2;
    if (is_harmless(name) || ibx_named_knows(name))
        return false;
    const bool is_cuda = !strncmp(plain, "cuda", 4) ||
                         (!strncmp(plain, "cu", 2) && plain[2] >= 'A' && plain[2] <= 'Z');
    return !is_cuda || strstr(plain, "Async") || strstr(plain, "Launch");
}

static enum handler_task find_task(const char *name, enum ibx_call_kind kind,
                                   enum captures_use captures)
{
    static const struct {
        const char *name;
        enum handler_task task;
    } tasks[] = {
        {"cudaMalloc", TASK_ALLOCATES},
        {"cudaSetDevice", TASK_SELECTS},
        {"cudaGraphCreate", TASK_GRAPH},
        {"cudaGraphInstantiate", TASK_EXEC},
    };
    for (size_t i = 0; i < sizeof(tasks) / sizeof(tasks[0]); i++)
        if (!strcmp(name, tasks[i].name))
            return tasks[i].task;
    if (captures == CAPTURES_ENDED)
        return TASK_GRAPH;
    if (strstr(name, "cudaUnregisterFatBinary"))
        return TASK_UNLOADS;
    return kind == IBX_CALL_REGISTERS || kind == IBX_CALL_RESETS ? TASK_REGISTERS : TASK_OTHER;
}

/* Whether the call may change a graph, also by work that a stream captures from now on. */
static bool changes_graphs(const char *name)
{
    return strcmp(name, "cudaGraphLaunch") != 0 &&
           (strstr(name, "Graph") || strstr(name, "Capture"));
}

static bool changes_kernels(enum handler_task task)
{
    return task == TASK_REGISTERS || task == TASK_UNLOADS;
}

void ibx_device_call_read(struct gpu_session *x, const char *name)
{
    const enum ibx_call_kind kind = ibx_call_find(name, strlen(name) + 1)->kind;
    x->handler.captures = ibx_captures_use(name, kind);
    ibx_made_read(x, name);
    if (ibx_call_is_open(kind) && may_hide_work(name))
        ibx_clients_hide_work(x);
    x->handler.registrations = ibx_registrations_use(name);
    x->handler.task = find_task(name, kind, x->handler.captures);
    if (changes_kernels(x->handler.task))
        ibx_registrations_changed();
    x->handler.changes_graphs = changes_graphs(name);
    if (x->handler.changes_graphs)
        ibx_graphs_changed();
}

/* Notes a handle that GVirtuS's handler has returned: extension requests may name it, too. */
static void note_handle(struct gpu_session *x, enum ibx_handle_kind kind)
{
    struct ibx_reader r = ibx_reader_of(x->replies.last, 8);
    const uint64_t handle = ibx_get_u64(&r);
    const bool exec = kind == IBX_HANDLE_EXEC;
    if (x->replies.last_size != 8)
        ibx_named_graph_unseen();
    else if (handle && !ibx_graph_note(x, kind, handle))
        ibx_back_end_undo(exec ? "cudaGraphExecDestroy" : "cudaGraphDestroy", handle);
    else if (handle && exec)
        ibx_handles_made_so(x, handle, x->handler.exec_size);
    else if (handle && !ibx_graph_measure(x, handle) && ibx_handles_remove(x, kind, handle))
        ibx_back_end_undo("cudaGraphDestroy", handle);
}

void ibx_device_call_answered(struct gpu_session *x)
{
    const int code = x->replies.exit_code;
    const enum handler_task task = x->handler.task;
    if (task == TASK_ALLOCATES && !code)
        x->allocates_plainly = x->replies.last_size == 8;
    ibx_graph_joins_end(x); /* if that is too much, the next one ends the session */
    ibx_captures_answered(x, code);
    ibx_made_answered(x);
    if ((task == TASK_GRAPH || task == TASK_EXEC) && !code)
        note_handle(x, task == TASK_GRAPH ? IBX_HANDLE_GRAPH : IBX_HANDLE_EXEC);
    ibx_room_end(&x->handler.exec_room);
    ibx_handles_let_go(x);
    x->handler.captures = CAPTURES_UNUSED;
    if (x->handler.changes_graphs)
        ibx_graphs_changed();
    x->handler.changes_graphs = false;
    if (changes_kernels(task)) /* other sessions may have looked kernels up while it ran */
        ibx_registrations_changed();
    x->handler.task = TASK_OTHER;
}
