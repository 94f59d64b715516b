/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Launches of kernels. The arguments in a request are in the kernel's own layout. GVirtuS's handler
 * makes the pointers to them that the runtime's launch takes, and has to look up the layout for
 * that. The driver takes up to 4 KiB of arguments as they are; for more, and for nodes of graphs,
 * it tells where each one is (CUDA 12.4). The kernel is the runtime's, found by the function that
 * the client has registered. A launch that fails is made once more by the runtime, so that exit
 * code and last error are the runtime's own. Before CUDA 12.4 GVirtuS makes that launch; it does
 * not know kernels that exist only as PTX. GVirtuS does not get launches with fewer arguments than
 * the kernel takes: its handler would read beyond the request.
 */
#include "frontend-glue/device_calls/device_calls.h"

#include "common/log.h"
#include "frontend-glue/session/extensions.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PACKED_MAX 4096u /* bytes of arguments that every driver takes in one buffer */
#define KNOWN_MAX  4352u /* bytes up to which GVirtuS's handler knows a kernel's layout */
#define HEAD       56u   /* bytes of a request before the arguments */

#define INVALID_FUNCTION 98 /* cudaError_t */

/* CU_LAUNCH_PARAM_... */
#define BUFFER_POINTER ((void *)1)
#define BUFFER_SIZE    ((void *)2)

/* CUlaunchAttribute and CUlaunchConfig */
struct launch_attribute {
    int id;
    _Alignas(8) uint8_t value[IBX_EXT_ATTRIBUTE];
};
struct launch_config {
    unsigned grid[3], block[3], shared;
    void *stream;
    const struct launch_attribute *attributes;
    unsigned count;
};
#define ATTRIBUTES_MAX 16u

/* CUDA_KERNEL_NODE_PARAMS; the driver before CUDA 12 looks no further than `extra`. */
struct kernel_parameters {
    void *kernel;
    unsigned size[6], shared;
    void **arguments, **extra;
    void *other_kernel, *context;
};

/* dim3 */
struct size {
    unsigned x, y, z;
};

/* A launch's request. */
struct launch {
    uint64_t function, shared, stream;
    unsigned size[6]; /* grid, block */
    size_t bytes;     /* of arguments */
    uint8_t *arguments;
    void *packed[5]; /* the arguments in one buffer, for the driver */
    void **pointers; /* the arguments one by one; NULL: use `packed` */
    void *few[LAYOUT_MOST];
};

static struct {
    int (*launch)(void *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                  unsigned block_y, unsigned block_z, unsigned shared, void *stream,
                  void **arguments, void **extra);
    int (*launch_as)(const struct launch_config *config, void *kernel, void **arguments,
                     void **extra);
    int (*add_node)(void **node, void *graph, void *const *behind, size_t count,
                    const struct kernel_parameters *parameters);
    int (*set_node)(void *node, const struct kernel_parameters *parameters);
    int (*set_exec)(void *exec, void *node, const struct kernel_parameters *parameters);
    int (*kernel_of)(void **kernel, const void *function);
    int (*parameter)(void *kernel, size_t index, size_t *at, size_t *n);
    int (*launch_runtime)(const void *function, struct size grid, struct size block,
                          void **arguments, size_t shared, void *stream);
    int (*refuse)(const void *function, size_t index, size_t *at, size_t *n);
    int (*peek_error)(void);
    int (*get_error)(void); /* and forgets it */
} cuda;
static atomic_bool loaded; /* `cuda` is set, and no longer changes */
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

/* A function of CUDA 12, or its older version. */
static void *graph_function(const char *name)
{
    char before[64];
    void *found = ibx_cuda_symbol(name);
    snprintf(before, sizeof(before), "%.*s", (int)(strlen(name) - strlen("_v2")), name);
    return found ? found : ibx_cuda_symbol(before);
}

static bool load(struct gpu_session *x)
{
    if (atomic_load_explicit(&loaded, memory_order_acquire))
        return cuda.launch && cuda.kernel_of;
    if (x->launches.tried)
        return false;
    x->launches.tried = true;
    pthread_mutex_lock(&loading);
    if (!atomic_load(&loaded))
        *(void **)&cuda.get_error = ibx_back_end_runtime("cudaGetLastError");
    if (cuda.get_error && !atomic_load(&loaded)) {
        *(void **)&cuda.peek_error = ibx_back_end_runtime("cudaPeekAtLastError");
        *(void **)&cuda.kernel_of = ibx_back_end_runtime("cudaGetFuncBySymbol"); /* CUDA 11 */
        *(void **)&cuda.launch = ibx_cuda_symbol("cuLaunchKernel");
        *(void **)&cuda.launch_as = ibx_cuda_symbol("cuLaunchKernelEx");   /* CUDA 11.8 */
        *(void **)&cuda.parameter = ibx_cuda_symbol("cuFuncGetParamInfo"); /* CUDA 12.4 */
        *(void **)&cuda.launch_runtime = ibx_back_end_runtime("cudaLaunchKernel");
        *(void **)&cuda.refuse = ibx_back_end_runtime("cudaFuncGetParamInfo");
        *(void **)&cuda.add_node = graph_function("cuGraphAddKernelNode_v2");
        *(void **)&cuda.set_node = graph_function("cuGraphKernelNodeSetParams_v2");
        *(void **)&cuda.set_exec = graph_function("cuGraphExecKernelNodeSetParams_v2");
        atomic_store(&loaded, true);
    }
    pthread_mutex_unlock(&loading);
    return cuda.get_error && cuda.launch && cuda.kernel_of;
}

/* A failed look-up sets the thread's last error. If GVirtuS can make the launch (`can_pass`),
 * nothing is looked up while an earlier call's error is pending, so that it stays the last error.
 * The first look-up of a kernel loads it, which must not affect what the thread captures. */
static int find_kernel(struct gpu_session *x, struct launch_function *f, uint64_t name,
                       bool can_pass)
{
    const int before = can_pass ? cuda.peek_error() : 0;
    if (before)
        return before;
    const bool loads = ibx_frees_begin_load(x, name);
    const int mode = ibx_cuda_capture_relax(x->cuda);
    const int rc = cuda.kernel_of(&f->kernel, (const void *)(uintptr_t)name);
    ibx_cuda_capture_restore(x->cuda, mode);
    if (loads)
        ibx_frees_end_load(x, name);
    if (rc && can_pass)
        cuda.get_error();
    return rc;
}

static struct launch_function *place_of(struct gpu_session *x, uint64_t function)
{
    return &x->launches.known[(function >> 4 ^ function >> 12) % LAUNCH_FUNCTIONS];
}

/* The kernel, if it is known; its module is held until ibx_functions_let_go(). NULL: it has to be
 * looked up. */
static struct launch_function *known_of(struct gpu_session *x, uint64_t function)
{
    struct launch_function *f = place_of(x, function);
    void *context = NULL;
    return f->function == function && f->since == ibx_registrations_changes() &&
                   !x->cuda->ctx_get_current(&context) && f->context == context &&
                   ibx_functions_hold(&x->launches.user, f->module)
               ? f
               : NULL;
}

/* The kernel, which is looked up if it is not known. Its module is held likewise. NULL: the error
 * is x->launches.failure. */
static struct launch_function *function_of(struct gpu_session *x, uint64_t function, bool can_pass)
{
    const unsigned since = ibx_registrations_changes();
    struct launch_function *f = known_of(x, function);
    void *context = NULL;
    if (f)
        return f;
    x->launches.failure = x->cuda->ctx_get_current(&context);
    if (x->launches.failure)
        return NULL;
    f = place_of(x, function);
    *f = (struct launch_function){.function = function, .context = context, .since = since};
    const uint64_t name = ibx_functions_take(ibx_functions_user_of(x), function);
    f->module = x->launches.user.held;
    x->launches.failure = name ? find_kernel(x, f, name, can_pass) : INVALID_FUNCTION;
    if (!x->launches.failure)
        return f;
    f->function = 0;
    return NULL;
}

static bool parse(struct gpu_session *x, struct launch *l, const uint8_t *body, size_t n)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    l->function = ibx_get_u64(&r);
    for (unsigned i = 0; i < 6; i++)
        l->size[i] = ibx_get_u32(&r);
    l->shared = ibx_get_u64(&r);
    l->stream = ibx_get_u64(&r);
    l->bytes = (size_t)ibx_get_u64(&r);
    if (r.failed || l->bytes != n - HEAD || l->bytes > sizeof(x->launches.arguments) ||
        l->shared > UINT_MAX)
        return false;
    l->arguments = x->launches.arguments;
    memcpy(l->arguments, body + HEAD, l->bytes);
    /* The kernel may take more bytes than have come: it must not get those of an earlier launch. */
    if (x->launches.argument_bytes > l->bytes)
        memset(l->arguments + l->bytes, 0, x->launches.argument_bytes - l->bytes);
    x->launches.argument_bytes = l->bytes;
    l->packed[0] = BUFFER_POINTER;
    l->packed[1] = l->arguments;
    l->packed[2] = BUFFER_SIZE;
    l->packed[3] = &l->bytes;
    l->packed[4] = NULL;
    l->pointers = NULL;
    return true;
}

/* How many parameters the kernel has, and where they end. */
static size_t parameters_of(void *kernel, size_t *end)
{
    size_t count = 0, at, n;
    for (*end = 0;
         cuda.parameter && count < IBX_EXT_ARGUMENTS_MAX && !cuda.parameter(kernel, count, &at, &n);
         count++)
        *end = at + n > *end ? at + n : *end;
    return count;
}

/* The driver is asked only once: a program may set the arguments of a graph's kernels each time
 * before it launches the graph. */
static const struct launch_layout *layout_of(struct launch_function *f)
{
    struct launch_layout *const layout = &f->layout;
    size_t end = 0, at, n;
    if (layout->state != LAYOUT_NOT_ASKED)
        return layout;
    const size_t count = parameters_of(f->kernel, &end);
    bool whole = count <= LAYOUT_MOST && end <= UINT16_MAX;
    for (size_t i = 0; i < count && whole; i++) {
        whole = !cuda.parameter(f->kernel, i, &at, &n);
        layout->at[i] = (uint16_t)at;
    }
    layout->count = (uint16_t)(whole ? count : 0);
    layout->end = (uint16_t)(whole ? end : 0);
    layout->state = whole ? LAYOUT_KNOWN : LAYOUT_LONG;
    return layout;
}

static void end_arguments(struct launch *l)
{
    if (l->pointers != l->few)
        free(l->pointers);
}

static int point_to_many(struct launch *l, void *kernel, size_t count)
{
    size_t at, n;
    l->pointers = calloc(count, sizeof(*l->pointers));
    for (size_t i = 0; l->pointers && i < count; i++) {
        if (cuda.parameter(kernel, i, &at, &n))
            return CUDA_INVALID_VALUE;
        l->pointers[i] = l->arguments + at;
    }
    return l->pointers ? 0 : CUDA_MEMORY_ALLOCATION;
}

/* Sets l->pointers, until end_arguments(), if the arguments cannot be passed in one buffer. Nor
 * should they for a node of a graph (`node`), where that is possible: driver 580 makes no such node
 * a cooperative one, and captures no cooperative launch. */
static int point_to_arguments(struct launch *l, struct launch_function *f, bool node)
{
    const bool must = l->bytes > PACKED_MAX;
    if (!must && (!node || !l->bytes))
        return 0;
    const struct launch_layout *layout = layout_of(f);
    size_t end = layout->end;
    const size_t count =
        layout->state == LAYOUT_KNOWN ? layout->count : parameters_of(f->kernel, &end);
    if (!count || end > l->bytes)
        return !must ? 0 : cuda.parameter ? CUDA_INVALID_VALUE : CUDA_NOT_SUPPORTED;
    if (layout->state != LAYOUT_KNOWN)
        return point_to_many(l, f->kernel, count);
    l->pointers = l->few;
    for (size_t i = 0; i < count; i++)
        l->few[i] = l->arguments + layout->at[i];
    return 0;
}

static void **packed(struct launch *l)
{
    return l->pointers || !l->bytes ? NULL : l->packed;
}

static int launch(struct gpu_session *x, const uint8_t *body, size_t n)
{
    struct launch l;
    if (!parse(x, &l, body, n) || !ibx_back_end_able(x) || !load(x))
        return -1;
    struct launch_function *f = function_of(x, l.function, true);
    if (!f || f->refused)
        return -1;
    const unsigned before = ibx_captures_over_so_far(x);
    int rc = point_to_arguments(&l, f, false);
    if (!rc)
        rc =
            cuda.launch(f->kernel, l.size[0], l.size[1], l.size[2], l.size[3], l.size[4], l.size[5],
                        (unsigned)l.shared, (void *)(uintptr_t)l.stream, l.pointers, packed(&l));
    end_arguments(&l);
    f->refused = rc;
    ibx_graph_captures_kernel(x, l.stream, before);
    return rc;
}

int ibx_device_launch(struct gpu_session *x, const uint8_t *body, size_t n)
{
    const int rc = launch(x, body, n);
    ibx_functions_let_go(&x->launches.user);
    return rc;
}

/* Whether the request lacks arguments, or GVirtuS's handler does not know the kernel's layout. The
 * handler knows layouts by the names of kernels only, of all clients: it may take the kernel for
 * one with fewer parameters, and give CUDA pointers that nobody has set for the others. */
static bool brings_less(struct gpu_session *x, uint64_t function, size_t bytes)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    size_t end = 0;
    if (!ibx_back_end_begin_context(x) || !load(x))
        return false;
    const int before = cuda.peek_error();
    const struct launch_function *f = function_of(x, function, false);
    if (!f && !before)
        cuda.get_error();
    if (!f || !parameters_of(f->kernel, &end) || (end <= KNOWN_MAX && end <= bytes))
        return false;
    if (!atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN,
                "%s: a launch fails with cudaErrorInvalidValue, since it brings %zu of the %zu "
                "bytes of its kernel's parameters: GVirtuS does not read the sizes of those of "
                "more than 4 KiB, and until 2024 leaves out gaps between them and single bytes; "
                "run the program with libibx-frontend.so, and rdma.pipeline on",
                ibx_session_path(x->s)->peer, bytes, end);
    return true;
}

int ibx_device_launch_check(struct gpu_session *x, const uint8_t *body, size_t n)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    size_t at, bytes;
    if (n < 8)
        return 0;
    const uint64_t function = ibx_get_u64(&r);
    const uint64_t name = ibx_functions_take(ibx_functions_user_of(x), function);
    /* The handler takes NULL for the arguments if their length is 0, whatever follows it. Nobody
     * else sends another length than that of the arguments. */
    const bool whole = n >= HEAD && ibx_body_number(body, n, HEAD - 8, 8) == n - HEAD;
    const bool less = name && n >= HEAD && brings_less(x, function, whole ? n - HEAD : 0);
    if (less && cuda.refuse) /* so that the thread's last error is set by CUDA */
        cuda.refuse((const void *)(uintptr_t)name, SIZE_MAX, &at, &bytes);
    ibx_functions_let_go(&x->launches.user);
    return name ? less ? CUDA_INVALID_VALUE : 0 : INVALID_FUNCTION;
}

/* Launches by the runtime. -1: that is not possible here. `tried`: the kernel was looked up
 * already. */
static int launch_by_runtime(struct gpu_session *x, const uint8_t *body, size_t n, bool tried)
{
    struct launch l;
    size_t end, bytes;
    if (!parse(x, &l, body, n) || !ibx_back_end_able(x) || !load(x) || !cuda.parameter ||
        !cuda.launch_runtime)
        return -1;
    const struct launch_function *f =
        tried ? known_of(x, l.function) : function_of(x, l.function, true);
    const size_t count = f ? parameters_of(f->kernel, &end) : 0;
    if (!f || end > l.bytes)
        return -1;
    void **pointers = calloc(count + 1, sizeof(*pointers));
    bool whole = pointers;
    for (size_t i = 0, at; whole && i < count; i++) {
        whole = !cuda.parameter(f->kernel, i, &at, &bytes);
        pointers[i] = l.arguments + at;
    }
    const uint64_t name = ibx_functions_take(ibx_functions_user_of(x), l.function);
    const unsigned before = ibx_captures_over_so_far(x);
    const int rc =
        whole && name ? cuda.launch_runtime((const void *)(uintptr_t)name,
                                            (struct size){l.size[0], l.size[1], l.size[2]},
                                            (struct size){l.size[3], l.size[4], l.size[5]},
                                            pointers, (size_t)l.shared, (void *)(uintptr_t)l.stream)
                      : -1;
    free(pointers);
    ibx_graph_captures_kernel(x, l.stream, before);
    return rc;
}

void ibx_device_launch_spare(struct gpu_session *x, uint8_t *body, size_t n)
{
    const bool checked = x->handler.launch_checked;
    if (strcmp(x->requests.name, "cudaLaunchKernel") != 0)
        return;
    x->handler.launch_checked = false;
    if (!checked && ibx_back_end_have_cuda(x) &&
        ibx_device_launch_check(x, body, n) == CUDA_INVALID_VALUE)
        memset(body, 0, 8);
}

int ibx_device_launch_by_runtime(struct gpu_session *x, const uint8_t *body, size_t n, bool tried)
{
    const int rc = launch_by_runtime(x, body, n, tried);
    ibx_functions_let_go(&x->launches.user);
    return rc;
}

int ibx_device_parameters(struct gpu_session *x, uint64_t function, size_t first,
                          struct ibx_parameter *parameters, size_t *count)
{
    if (!ibx_back_end_begin_context(x) || !load(x) || !cuda.parameter)
        return CUDA_NOT_SUPPORTED;
    const struct launch_function *f = function_of(x, function, false);
    size_t n = 0;
    while (f && n < *count &&
           !cuda.parameter(f->kernel, first + n, &parameters[n].at, &parameters[n].bytes))
        n++;
    ibx_functions_let_go(&x->launches.user);
    *count = n;
    return f ? 0 : x->launches.failure;
}

/* Arguments that are passed in one buffer. NULL: they are not. */
static const uint8_t *packed_in(void *const *extra, size_t *n)
{
    const uint8_t *at = NULL;
    *n = 0;
    for (unsigned i = 0; extra && i < 4 && extra[i]; i += 2) {
        if (extra[i] == BUFFER_POINTER)
            at = extra[i + 1];
        else if (extra[i] == BUFFER_SIZE)
            memcpy(n, extra[i + 1], sizeof(*n));
    }
    return at;
}

static int gather_arguments(void *kernel, void *const *arguments, void *const *extra,
                            uint8_t **bytes, size_t *n)
{
    size_t given, at, length;
    const uint8_t *all = packed_in(extra, &given);
    const size_t count = parameters_of(kernel, n);
    *bytes = calloc(1, *n + 1);
    if (!*bytes)
        return CUDA_MEMORY_ALLOCATION;
    if (all)
        memcpy(*bytes, all, given < *n ? given : *n);
    for (size_t i = 0; !all && arguments && i < count; i++) {
        if (!cuda.parameter(kernel, i, &at, &length) && arguments[i])
            memcpy(*bytes + at, arguments[i], length);
    }
    return 0;
}

int ibx_device_arguments(struct gpu_session *x, uint64_t function, void *const *arguments,
                         void *const *extra, uint8_t **bytes, size_t *n)
{
    if (!ibx_back_end_begin_context(x) || !load(x) || !cuda.parameter)
        return CUDA_NOT_SUPPORTED;
    const struct launch_function *f = function_of(x, function, false);
    const int rc =
        f ? gather_arguments(f->kernel, arguments, extra, bytes, n) : x->launches.failure;
    ibx_functions_let_go(&x->launches.user);
    return rc;
}

static void *graph_of(struct gpu_session *x, const void *node)
{
    return pointer_to(ibx_handles_graph_of(x, (uintptr_t)node, false));
}

static int kernel_node(struct gpu_session *x, const uint8_t *body, size_t n,
                       struct ibx_kernel_node *node)
{
    struct launch l;
    if (!parse(x, &l, body, n))
        return CUDA_INVALID_VALUE;
    if (!ibx_back_end_begin_context(x) || !load(x) || !cuda.add_node || !cuda.set_node ||
        !cuda.set_exec)
        return CUDA_NOT_SUPPORTED;
    struct launch_function *f = function_of(x, l.function, false);
    if (!f)
        return x->launches.failure;
    int rc = point_to_arguments(&l, f, true);
    struct kernel_parameters parameters = {.kernel = f->kernel,
                                           .shared = (unsigned)l.shared,
                                           .arguments = l.pointers,
                                           .extra = packed(&l)};
    memcpy(parameters.size, l.size, sizeof(parameters.size));
    if (!rc && node->graph)
        rc = cuda.add_node(&node->node, node->graph, node->behind, node->count, &parameters);
    else if (!rc)
        rc = node->exec ? cuda.set_exec(node->exec, node->node, &parameters)
                        : cuda.set_node(node->node, &parameters);
    end_arguments(&l);
    if (!rc && node->exec)
        ibx_graph_exec_has_kernel(x, node->exec, node->node);
    else if (!rc)
        ibx_graph_has_kernel(x, node->graph ? node->graph : graph_of(x, node->node));
    return rc;
}

int ibx_device_kernel_node(struct gpu_session *x, const uint8_t *body, size_t n,
                           struct ibx_kernel_node *node)
{
    const int rc = kernel_node(x, body, n, node);
    ibx_functions_let_go(&x->launches.user);
    return rc;
}

static bool is_captured(struct gpu_session *x, const struct launch *l)
{
    uint64_t id;
    return ibx_captures_any() && ibx_captures_active(x, l->stream, &id);
}

static int launch_as(struct gpu_session *x, const uint8_t *body, size_t n,
                     const uint8_t *attributes, size_t count)
{
    struct launch l;
    struct launch_attribute given[ATTRIBUTES_MAX];
    struct ibx_reader r = ibx_reader_of(attributes, count * (4 + IBX_EXT_ATTRIBUTE));
    if (!parse(x, &l, body, n) || count > ATTRIBUTES_MAX)
        return CUDA_INVALID_VALUE;
    if (!ibx_back_end_begin_context(x) || !load(x) || !cuda.launch_as)
        return CUDA_NOT_SUPPORTED;
    for (size_t i = 0; i < count; i++) {
        given[i].id = (int)ibx_get_u32(&r);
        memcpy(given[i].value, ibx_get_bytes(&r, IBX_EXT_ATTRIBUTE), IBX_EXT_ATTRIBUTE);
    }
    struct launch_function *f = function_of(x, l.function, false);
    if (!f)
        return x->launches.failure;
    struct launch_config config = {.shared = (unsigned)l.shared,
                                   .stream = (void *)(uintptr_t)l.stream,
                                   .attributes = given,
                                   .count = (unsigned)count};
    memcpy(config.grid, l.size, sizeof(config.grid));
    memcpy(config.block, l.size + 3, sizeof(config.block));
    const unsigned before = ibx_captures_over_so_far(x);
    int rc = point_to_arguments(&l, f, is_captured(x, &l));
    if (!rc)
        rc = cuda.launch_as(&config, f->kernel, l.pointers, packed(&l));
    end_arguments(&l);
    ibx_graph_captures_kernel(x, l.stream, before);
    return rc;
}

int ibx_device_launch_as(struct gpu_session *x, const uint8_t *body, size_t n,
                         const uint8_t *attributes, size_t count)
{
    const int rc = launch_as(x, body, n, attributes, count);
    ibx_functions_let_go(&x->launches.user);
    return rc;
}
