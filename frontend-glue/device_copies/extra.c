/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Requests of our own about streams, pools of memory, launches, functions to call. */
#include "frontend-glue/device_copies/extra.h"

#include "common/log.h"

#include <stdatomic.h>
#include <stdlib.h>

void ibx_extra_undo(const char *name, uint64_t made)
{
    int (*give_back)(uint64_t) = NULL;
    void *function = ibx_copies_runtime(name);
    memcpy(&give_back, &function, sizeof(give_back));
    if (give_back)
        give_back(made);
}

bool ibx_extra_limited(const struct extra *e, const char *what)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (e->x->isolation.limited && !atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN,
                "%s gets no %s: their bytes are not counted, which rdma.device_memory asks for",
                ibx_session_path(e->x->s)->peer, what);
    return e->x->isolation.limited;
}

bool ibx_extra_own(struct copies *x, uint64_t handle)
{
    void *context = NULL;
    return !x->isolation.on || (ibx_copies_have_cuda(x) && !x->cuda->ctx_get_current(&context) &&
                                ibx_owners_add(x->isolation.tenant, handle, 1, context, 0));
}

uint64_t ibx_extra_owned(const struct copies *x, uint64_t handle)
{
    return x->isolation.on ? ibx_owners_number(handle) : 0;
}

void ibx_extra_disown(uint64_t handle, uint64_t number)
{
    if (number)
        ibx_owners_remove(handle, number);
}

static bool is_pool(const struct extra *e, const void *pool)
{
    return ibx_handles_know(e->x, IBX_HANDLE_POOL, (uintptr_t)pool);
}

/* ---------------------------------------------------------------- functions, streams */

static int set_stream_attribute(struct extra *e)
{
    int (*set)(void *stream, int attribute, const void *value) = NULL;
    _Alignas(8) uint8_t value[IBX_EXTRA_ATTRIBUTE] = {0};
    void *stream = pointer(&e->in);
    const int attribute = (int)ibx_get_u32(&e->in);
    const uint8_t *bytes = ibx_get_bytes(&e->in, sizeof(value));
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, set);
    memcpy(value, bytes, sizeof(value));
    return set(stream, attribute, value);
}

static int get_stream_attribute(struct extra *e)
{
    int (*get)(void *stream, int attribute, void *value) = NULL;
    _Alignas(8) uint8_t value[IBX_EXTRA_ATTRIBUTE] = {0};
    void *stream = pointer(&e->in);
    const int attribute = (int)ibx_get_u32(&e->in);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, get);
    const int rc = get(stream, attribute, value);
    ibx_put_bytes(&e->out, value, sizeof(value));
    return rc;
}

static int wait_for_stream(struct extra *e)
{
    int (*wait)(void *stream) = NULL;
    void *stream = pointer(&e->in);
    FUNCTION(e, wait);
    return whole(e) ? wait(stream) : CUDA_INVALID_VALUE;
}

static int reset_l2(struct extra *e)
{
    int (*reset)(void) = NULL;
    FUNCTION(e, reset);
    return whole(e) ? reset() : CUDA_INVALID_VALUE;
}

static int get_limit(struct extra *e)
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

/* ------------------------------------------------------------------------- memory of pools */

/* Whose it is, is noted as of cudaMalloc. */
static int note_owner(struct extra *e, int rc, void *made, size_t n, void *stream)
{
    struct copies *x = e->x;
    void *context = NULL;
    if (!rc && n && x->isolation.on &&
        (x->cuda->ctx_get_current(&context) ||
         !ibx_owners_add(x->isolation.tenant, (uintptr_t)made, n, context, 0))) {
        int (*give_back)(void *address, void *in_stream) = NULL;
        void *function = ibx_copies_runtime("cudaFreeAsync");
        memcpy(&give_back, &function, sizeof(give_back));
        if (give_back)
            give_back(made, stream);
        rc = CUDA_MEMORY_ALLOCATION;
    }
    ibx_put_u64(&e->out, rc ? 0 : (uintptr_t)made);
    return rc;
}

static int malloc_async(struct extra *e)
{
    int (*make)(void **address, size_t n, void *stream) = NULL;
    void *made = NULL;
    const size_t n = ibx_get_u64(&e->in);
    void *stream = pointer(&e->in);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    if (ibx_extra_limited(e, "memory of pools") || !ibx_copies_have_cuda(e->x))
        return CUDA_NOT_SUPPORTED;
    FUNCTION(e, make);
    const int rc = make(&made, n, stream);
    return note_owner(e, rc, made, n, stream);
}

static int malloc_from_pool(struct extra *e)
{
    int (*make)(void **address, size_t n, void *pool, void *stream) = NULL;
    void *made = NULL;
    const size_t n = ibx_get_u64(&e->in);
    void *pool = pointer(&e->in), *stream = pointer(&e->in);
    if (!whole(e) || !is_pool(e, pool))
        return CUDA_INVALID_VALUE;
    if (ibx_extra_limited(e, "memory of pools") || !ibx_copies_have_cuda(e->x))
        return CUDA_NOT_SUPPORTED;
    FUNCTION(e, make);
    const int rc = make(&made, n, pool, stream);
    return note_owner(e, rc, made, n, stream);
}

static int free_async(struct extra *e)
{
    int (*give_back)(void *address, void *stream) = NULL;
    void *address = pointer(&e->in), *stream = pointer(&e->in);
    if (!whole(e) || !mine(e, address, 1))
        return CUDA_INVALID_VALUE;
    const uint64_t number = e->x->isolation.on ? ibx_owners_number((uintptr_t)address) : 0;
    FUNCTION(e, give_back);
    ibx_gpu_registrations_drop(&e->x->registrations, (uintptr_t)address);
    ibx_ipc_gone((uintptr_t)address);
    const int rc = give_back(address, stream);
    if (!rc && number)
        ibx_owners_remove((uintptr_t)address, number);
    return rc;
}

static int pool_of_device(struct extra *e)
{
    int (*get)(void **pool, int device) = NULL;
    void *pool = NULL;
    const int device = (int)ibx_get_u32(&e->in);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, get);
    int rc = get(&pool, device);
    if (!rc && !ibx_handles_add(e->x, IBX_HANDLE_POOL, (uintptr_t)pool))
        rc = CUDA_MEMORY_ALLOCATION;
    ibx_put_u64(&e->out, (uintptr_t)pool);
    return rc;
}

/* Attributes are int up to the fourth and 64 bits from there on; both begin in eight bytes. */
static int set_pool(struct extra *e)
{
    int (*set)(void *pool, int attribute, void *value) = NULL;
    void *pool = pointer(&e->in);
    const int attribute = (int)ibx_get_u32(&e->in);
    uint64_t value = ibx_get_u64(&e->in);
    if (!whole(e) || !is_pool(e, pool))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, set);
    return set(pool, attribute, &value);
}

static int get_pool(struct extra *e)
{
    int (*get)(void *pool, int attribute, void *value) = NULL;
    uint64_t value = 0;
    void *pool = pointer(&e->in);
    const int attribute = (int)ibx_get_u32(&e->in);
    if (!whole(e) || !is_pool(e, pool))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, get);
    const int rc = get(pool, attribute, &value);
    ibx_put_u64(&e->out, value);
    return rc;
}

static int trim_pool(struct extra *e)
{
    int (*trim)(void *pool, size_t keep) = NULL;
    void *pool = pointer(&e->in);
    const size_t keep = ibx_get_u64(&e->in);
    if (!whole(e) || !is_pool(e, pool))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, trim);
    return trim(pool, keep);
}

/* ---------------------------------------------------------------------------------- a launch */

static int launch(struct extra *e)
{
    const size_t n = ibx_get_u16(&e->in);
    const uint8_t *attributes = ibx_get_bytes(&e->in, n);
    const size_t left = ibx_reader_left(&e->in);
    const uint8_t *body = ibx_get_bytes(&e->in, left);
    if (e->in.failed || n % (4 + IBX_EXTRA_ATTRIBUTE))
        return CUDA_INVALID_VALUE;
    return ibx_copies_launch_as(e->x, body, left, attributes, n / (4 + IBX_EXTRA_ATTRIBUTE));
}

/* --------------------------------------------------------------- functions of the client's */

static int host_open(struct extra *e)
{
    uint64_t id = 0;
    const int rc = whole(e) ? ibx_host_work_open(e->x, &id) : CUDA_INVALID_VALUE;
    ibx_put_u64(&e->out, id);
    return rc;
}

static int host_add(struct extra *e)
{
    struct ibx_host_work work = {.stream = ibx_get_u64(&e->in)};
    work.queue = ibx_get_u64(&e->in);
    work.number = ibx_get_u64(&e->in);
    work.callback = ibx_get_u8(&e->in);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    void *enqueue = work.callback ? ibx_copies_runtime("cudaStreamAddCallback") : e->function;
    return enqueue ? ibx_host_work_add(e->x, &work, enqueue) : CUDA_NOT_SUPPORTED;
}

/* The client's function copies these bytes from the device; it is told which, when it is called. */
static int host_copy(struct extra *e)
{
    void *context = NULL;
    const uint64_t queue = ibx_get_u64(&e->in), number = ibx_get_u64(&e->in);
    struct ibx_host_copy copy = {.address = ibx_get_u64(&e->in)};
    copy.n = ibx_get_u32(&e->in);
    if (!whole(e) || !copy.n || copy.n > IBX_EXTRA_COPIED)
        return CUDA_INVALID_VALUE;
    if (!ibx_copies_able(e->x) || e->x->cuda->ctx_get_current(&context))
        return CUDA_NOT_SUPPORTED;
    copy.context = context;
    return ibx_host_work_copies(e->x, queue, number, &copy);
}

/* Bytes of a copy that the client is to make: in a stream of its, as a request for it would have it
 * done. 0: it has to make it itself, and then learns why. */
static size_t bytes_of(struct copies *x, const struct ibx_host_copy *copy, uint64_t stream,
                       uint8_t bytes[IBX_EXTRA_COPIED])
{
    const uint64_t n = copy->n;
    struct ibx_frame f = {.call = IBX_FRAME_MEMCPY_ASYNC,
                          .kind = IBX_FRAME_D2H,
                          .src = copy->address,
                          .width = n,
                          .height = 1,
                          .spitch = n,
                          .dpitch = n,
                          .out = n,
                          .stream = stream};
    void *context = NULL;
    if (!n || stream <= 1 || !ibx_copies_able(x) || x->cuda->ctx_get_current(&context) ||
        context != copy->context)
        return 0;
    const int mode = ibx_cuda_capture_relax(x->cuda);
    uint8_t *pinned = ibx_pinned_borrow(copy->n);
    const bool good =
        pinned && ibx_copies_sound(x, &f) &&
        !x->cuda->memcpy_from_device_async(pinned, f.src, copy->n, pointer_to(stream)) &&
        !x->cuda->stream_synchronize(pointer_to(stream));
    ibx_cuda_capture_restore(x->cuda, mode);
    if (good)
        memcpy(bytes, pinned, copy->n);
    if (pinned)
        ibx_pinned_return(pinned);
    return good ? copy->n : 0;
}

static int host_ask(struct extra *e)
{
    struct ibx_host_called called = {.number = 0};
    uint8_t bytes[IBX_EXTRA_COPIED] = {0};
    const uint64_t over = ibx_get_u64(&e->in);
    const bool wait = ibx_get_u8(&e->in), takes_bytes = ibx_reader_left(&e->in);
    const uint64_t stream = takes_bytes ? ibx_get_u64(&e->in) : 0;
    const int rc = whole(e) ? ibx_host_work_ask(e->x, over, wait, &called) : CUDA_INVALID_VALUE;
    ibx_put_u64(&e->out, called.number);
    ibx_put_u32(&e->out, (uint32_t)called.status);
    if (!takes_bytes)
        return rc;
    ibx_put_u32(&e->out, (uint32_t)(rc ? 0 : bytes_of(e->x, &called.copy, stream, bytes)));
    ibx_put_bytes(&e->out, bytes, sizeof(bytes));
    return rc;
}

/* ---------------------------------------------------------------------------------- requests */

static const struct extra_call extras[IBX_EXTRAS] = {
    [IBX_EXTRA_LAUNCH] = {"cudaGetFuncBySymbol", launch},
    [IBX_EXTRA_STREAM_SET_ATTRIBUTE] = {"cudaStreamSetAttribute", set_stream_attribute},
    [IBX_EXTRA_STREAM_GET_ATTRIBUTE] = {"cudaStreamGetAttribute", get_stream_attribute},
    [IBX_EXTRA_STREAM_WAIT] = {"cudaStreamSynchronize", wait_for_stream},
    [IBX_EXTRA_RESET_L2] = {"cudaCtxResetPersistingL2Cache", reset_l2},
    [IBX_EXTRA_GET_LIMIT] = {"cudaDeviceGetLimit", get_limit},
    [IBX_EXTRA_MALLOC_ASYNC] = {"cudaMallocAsync", malloc_async},
    [IBX_EXTRA_MALLOC_FROM_POOL] = {"cudaMallocFromPoolAsync", malloc_from_pool},
    [IBX_EXTRA_FREE_ASYNC] = {"cudaFreeAsync", free_async},
    [IBX_EXTRA_POOL_DEFAULT] = {"cudaDeviceGetDefaultMemPool", pool_of_device},
    [IBX_EXTRA_POOL_CURRENT] = {"cudaDeviceGetMemPool", pool_of_device},
    [IBX_EXTRA_POOL_SET] = {"cudaMemPoolSetAttribute", set_pool},
    [IBX_EXTRA_POOL_GET] = {"cudaMemPoolGetAttribute", get_pool},
    [IBX_EXTRA_POOL_TRIM] = {"cudaMemPoolTrimTo", trim_pool},
    [IBX_EXTRA_HOST_OPEN] = {"cudaLaunchHostFunc", host_open},
    [IBX_EXTRA_HOST_ADD] = {"cudaLaunchHostFunc", host_add},
    [IBX_EXTRA_HOST_ASK] = {"cudaLaunchHostFunc", host_ask},
    [IBX_EXTRA_HOST_COPY] = {"cudaLaunchHostFunc", host_copy},
};

int ibx_copies_extra(struct copies *x, const struct ibx_request *q, struct ibx_writer *out)
{
    struct extra e = {.x = x, .in = ibx_reader_of(q->body, (size_t)q->length), .out = *out};
    const unsigned number = ibx_get_u16(&e.in);
    if (e.in.failed || number >= IBX_EXTRAS)
        return CUDA_NOT_SUPPORTED;
    const struct extra_call *const tables[] = {extras,           ibx_array_extras,
                                               ibx_graph_extras, ibx_node_extras,
                                               ibx_ipc_extras,   ibx_variable_extras};
    const struct extra_call *call = NULL;
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]) && !(call && call->run); i++)
        call = &tables[i][number];
    e.function = call->run ? ibx_copies_runtime(call->function) : NULL;
    if (!e.function)
        return CUDA_NOT_SUPPORTED;
    const int rc = call->run(&e);
    *out = e.out;
    return rc;
}
