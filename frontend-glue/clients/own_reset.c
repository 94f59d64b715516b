/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * cudaDeviceReset of a client that is not alone. CUDA's would destroy everybody's memory, streams
 * and kernels, since all clients share the context; natively each has its own. So what this client
 * has made in the context, as far as that was seen, is given back, and nothing else. Its kernels
 * and variables stay as they are.
 *
 * A client that is alone resets the context itself; so does one in a broken context.
 */
#include "frontend-glue/clients/clients.h"
#include "frontend-glue/tenants/math_limits.h"
#include "frontend-glue/gvirtus_handlers/named_memory.h"
#include "frontend-glue/session/math_calls.h"

#include <stdlib.h>
#include <string.h>

#define WORK_MS 1000u /* for so long work of others is waited for */

/* ----------------------------------------------------------------- what GVirtuS's handlers make */

static const struct {
    const char *name;
    enum ibx_handle_kind kind;
    enum made_use use;
} makers[] = {
    {"cudaMalloc", IBX_HANDLE_MEMORY, MADE_MAKES},
    {"cudaMallocAsync", IBX_HANDLE_MEMORY, MADE_MAKES},
    {"cudaMallocManaged", IBX_HANDLE_MEMORY, MADE_MAKES},
    {"cudaMallocPitch", IBX_HANDLE_MEMORY, MADE_MAKES},
    {"cudaMallocArray", IBX_HANDLE_ARRAY, MADE_MAKES},
    {"cudaMalloc3DArray", IBX_HANDLE_ARRAY, MADE_MAKES},
    {"cuArrayCreate", IBX_HANDLE_ARRAY, MADE_MAKES},
    {"cuArray3DCreate", IBX_HANDLE_ARRAY, MADE_MAKES},
    {"cudaFreeArray", IBX_HANDLE_ARRAY, MADE_ENDS},
    {"cuArrayDestroy", IBX_HANDLE_ARRAY, MADE_ENDS},
    {"cudaCreateTextureObject", IBX_HANDLE_TEXTURE, MADE_MAKES},
    {"cudaDestroyTextureObject", IBX_HANDLE_TEXTURE, MADE_ENDS},
    {"cudaDeviceGetDefaultMemPool", IBX_HANDLE_POOL, MADE_MAKES},
    {"cudaMemPoolDestroy", IBX_HANDLE_MADE_POOL, MADE_ENDS},
    {"cuMemAlloc", IBX_HANDLE_MEMORY, MADE_MAKES},
    {"cuMemAllocPitch", IBX_HANDLE_MEMORY, MADE_MAKES},
    {"cudaFree", IBX_HANDLE_MEMORY, MADE_ENDS},
    {"cudaFreeAsync", IBX_HANDLE_MEMORY, MADE_ENDS},
    {"cuMemFree", IBX_HANDLE_MEMORY, MADE_ENDS},
    {"cudaStreamCreate", IBX_HANDLE_STREAM, MADE_MAKES},
    {"cudaStreamCreateWithFlags", IBX_HANDLE_STREAM, MADE_MAKES},
    {"cudaStreamCreateWithPriority", IBX_HANDLE_STREAM, MADE_MAKES},
    {"cuStreamCreate", IBX_HANDLE_STREAM, MADE_MAKES},
    {"cudaStreamDestroy", IBX_HANDLE_STREAM, MADE_ENDS},
    {"cuStreamDestroy", IBX_HANDLE_STREAM, MADE_ENDS},
    {"cudaEventCreate", IBX_HANDLE_EVENT, MADE_MAKES},
    {"cudaEventCreateWithFlags", IBX_HANDLE_EVENT, MADE_MAKES},
    {"cuEventCreate", IBX_HANDLE_EVENT, MADE_MAKES},
    {"curandCreateGeneratorHost", IBX_HANDLE_MATH + IBX_MATH_RNG, MADE_MAKES},
    {"cuCtxCreate", IBX_HANDLE_MADE_CONTEXT, MADE_MAKES},
    {"cuCtxDestroy", IBX_HANDLE_MADE_CONTEXT, MADE_ENDS},
    {"cuCtxDetach", IBX_HANDLE_MADE_CONTEXT, MADE_ENDS},
    {"cuCtxGetCurrent", IBX_HANDLE_CONTEXT, MADE_MAKES},
    {"cuCtxPopCurrent", IBX_HANDLE_CONTEXT, MADE_MAKES},
    {"cuModuleGetFunction", IBX_HANDLE_FUNCTION, MADE_MAKES},
    {"cuModuleGetTexRef", IBX_HANDLE_TEXTURE_REFERENCE, MADE_MAKES},
    {"cuModuleLoadData", IBX_HANDLE_MODULE, MADE_MAKES},
    {"cuModuleLoadDataEx", IBX_HANDLE_MODULE, MADE_MAKES},
    {"cuModuleLoadFatBinary", IBX_HANDLE_MODULE, MADE_MAKES},
    {"cuModuleUnload", IBX_HANDLE_MODULE, MADE_ENDS},
    {"nvmlDeviceGetDeviceHandleFromMigDeviceHandle", IBX_HANDLE_NVML_DEVICE, MADE_MAKES},
    {"nvmlDeviceGetHandleByIndex", IBX_HANDLE_NVML_DEVICE, MADE_MAKES},
    {"nvmlDeviceGetHandleByIndex_v2", IBX_HANDLE_NVML_DEVICE, MADE_MAKES},
    {"nvmlDeviceGetHandleByPciBusId", IBX_HANDLE_NVML_DEVICE, MADE_MAKES},
    {"nvmlDeviceGetHandleByPciBusId_v2", IBX_HANDLE_NVML_DEVICE, MADE_MAKES},
    {"nvmlDeviceGetHandleBySerial", IBX_HANDLE_NVML_DEVICE, MADE_MAKES},
    {"nvmlDeviceGetHandleByUUID", IBX_HANDLE_NVML_DEVICE, MADE_MAKES},
    {"nvmlDeviceGetMigDeviceHandleByIndex", IBX_HANDLE_NVML_DEVICE, MADE_MAKES},
    {"cublasLtMatmulDescCreate", IBX_HANDLE_LT_OPERATION, MADE_MAKES},
    {"cublasLtMatmulDescDestroy", IBX_HANDLE_LT_OPERATION, MADE_ENDS},
    {"cublasLtMatmulPreferenceCreate", IBX_HANDLE_LT_PREFERENCE, MADE_MAKES},
    {"cublasLtMatmulPreferenceDestroy", IBX_HANDLE_LT_PREFERENCE, MADE_ENDS},
    {"cublasLtMatrixLayoutCreate", IBX_HANDLE_LT_LAYOUT, MADE_MAKES},
    {"cublasLtMatrixLayoutDestroy", IBX_HANDLE_LT_LAYOUT, MADE_ENDS},
    {"cudaEventDestroy", IBX_HANDLE_EVENT, MADE_ENDS},
    {"cuEventDestroy", IBX_HANDLE_EVENT, MADE_ENDS},
};

/* Functions of libraries have handlers as well: what they make counts as what extension requests
 * make, and may be destroyed by either. Nearly all requests are the runtime's, whose names begin
 * differently from those of libraries. */
static void find_library_use(struct gpu_session *x, const char *name)
{
    unsigned made;
    if (!strncmp(name, "cuda", 4))
        return;
    if (ibx_math_maker(name, sizeof(x->requests.name) - 1, &made)) {
        x->handler.made = MADE_MAKES;
        x->handler.made_kind = (enum ibx_handle_kind)(IBX_HANDLE_MATH + made);
    }
    for (unsigned type = 0; type < IBX_MATH_TYPES; type++) {
        const unsigned end = ibx_math_end_of((enum ibx_math_type)type);
        if (strncmp(ibx_math_find(end)->name, name, sizeof(x->requests.name) - 1) != 0)
            continue;
        x->handler.made = MADE_ENDS;
        x->handler.made_kind = (enum ibx_handle_kind)(IBX_HANDLE_MATH + type);
    }
}

void ibx_made_read(struct gpu_session *x, const char *name)
{
    x->handler.made = MADE_UNUSED;
    x->handler.maker = strcmp(name, "curandCreateGeneratorHost") != 0 ? IBX_MAKER_HANDLER
                                                                      : IBX_MAKER_HANDLER_FOR_HOST;
    for (size_t i = 0; i < sizeof(makers) / sizeof(makers[0]); i++) {
        /* x->requests has only the beginning of a long name. */
        if (strncmp(makers[i].name, name, sizeof(x->requests.name) - 1) != 0)
            continue;
        x->handler.made = makers[i].use;
        x->handler.made_kind = makers[i].kind;
        return;
    }
    find_library_use(x, name);
}

bool ibx_made_room(const struct gpu_session *x)
{
    const bool graph = x->handler.task == TASK_GRAPH && x->handler.captures != CAPTURES_ENDED;
    const bool makes = x->handler.made == MADE_MAKES;
    const enum ibx_handle_kind kind = x->handler.made_kind;
    const enum ibx_hold hold = graph                        ? IBX_HOLD_GRAPHS
                               : !makes                     ? IBX_HOLDS
                               : kind == IBX_HANDLE_STREAM  ? IBX_HOLD_STREAMS
                               : kind == IBX_HANDLE_EVENT   ? IBX_HOLD_EVENTS
                               : kind == IBX_HANDLE_TEXTURE ? IBX_HOLD_TEXTURES
                               : kind >= IBX_HANDLE_MATH    ? ibx_math_hold(kind - IBX_HANDLE_MATH)
                                                            : IBX_HOLDS;
    return hold == IBX_HOLDS || ibx_quota_left(ibx_tenant_quota(x->isolation.tenant, hold));
}

/* What the handler is about to destroy is still in use by another request, or not the client's to
 * destroy. It gets no handle, or, if it may not take that, the session ends. */
static int keep(const struct gpu_session *x, uint8_t *body)
{
    if (!body || x->handler.made_kind >= IBX_HANDLE_MATH ||
        ibx_handle_is_of_handlers(x->handler.made_kind))
        return ibx_session_fail(x->s, -EBUSY,
                                "%s destroys by %s what another of its requests has used for too "
                                "long, or what is not its to destroy",
                                ibx_session_path(x->s)->peer, x->requests.name);
    memset(body, 0, sizeof(x->requests.first));
    ibx_named_tell(x);
    return 0;
}

/* Whether the handler frees the array: no graph names it, and no other request frees it. */
static bool may_free(struct gpu_session *x, uint64_t array)
{
    const enum ibx_array_end end = ibx_handles_free_array(x, IBX_HANDLE_ARRAY, array);
    return end == IBX_ARRAY_UNKNOWN ||
           (end == IBX_ARRAY_NOW && ibx_handles_remove(x, IBX_HANDLE_ARRAY, array));
}

/* Graphs name the array: it is freed later, and counts until then. CUDA takes none for one that is
 * freed already. */
static int free_nothing(struct gpu_session *x, uint8_t *body)
{
    x->isolation.freed = x->isolation.gone = 0;
    if (!body)
        return keep(x, body);
    memset(body, 0, sizeof(x->requests.first));
    return 0;
}

/* Has the handler destroy a new stream or event in place of one that another request still uses.
 * False: CUDA makes none. */
static bool put_another(struct gpu_session *x, uint8_t *body)
{
    void *made = NULL;
    if (!ibx_back_end_begin_context(x))
        return false;
    const int mode = ibx_cuda_capture_relax(x->cuda);
    if (x->handler.made_kind == IBX_HANDLE_STREAM)
        made = ibx_own_stream_begin();
    else if (x->cuda->event_create(&made, IBX_CUDA_EVENT_DISABLE_TIMING))
        made = NULL;
    ibx_cuda_capture_restore(x->cuda, mode);
    struct ibx_writer w = ibx_writer_of(body, sizeof(x->requests.first));
    ibx_put_u64(&w, (uintptr_t)made);
    return made;
}

/* Whether a stream or an event that other requests use may be destroyed after the handler. To
 * destroy a stream may end a capture, whose graph others use: only the handler has that alone, and
 * with it the capture counts as over. */
static bool may_end_later(const struct gpu_session *x)
{
    return x->handler.made_kind == IBX_HANDLE_EVENT ||
           (x->handler.made_kind == IBX_HANDLE_STREAM && !ibx_captures_any_of_tenant(x));
}

/* The handler is about to destroy a stream or an event. Natively that does not wait for a thread
 * that waits for it. */
static int destroy(struct gpu_session *x, uint64_t value, uint8_t *body)
{
    bool later;
    const bool gone =
        ibx_handles_destroy(x, x->handler.made_kind, value, ibx_release_destroyed, &later);
    if (!gone || (later && !put_another(x, body)))
        return keep(x, body);
    if (later)
        x->isolation.gone = 0;
    else if (x->handler.made_kind == IBX_HANDLE_EVENT)
        ibx_shared_event_gone(value);
    return 0;
}

/* Forgets what is destroyed before the call: after it, another thread may get the same handle. */
int ibx_made_run(struct gpu_session *x, uint8_t *body)
{
    struct ibx_reader r = ibx_reader_of(x->requests.first, sizeof(x->requests.first));
    if (x->handler.made == MADE_MAKES && x->handler.made_kind == IBX_HANDLE_MEMORY)
        ibx_memory_make_begin(x);
    const bool plan = x->handler.made_kind == IBX_HANDLE_MATH + IBX_MATH_FFT; /* an int */
    if (x->handler.made != MADE_ENDS ||
        x->requests.length < (plan ? sizeof(uint32_t) : sizeof(x->requests.first)) ||
        x->isolation.given)
        return 0;
    const uint64_t value = plan ? ibx_get_u32(&r) : ibx_get_u64(&r);
    if (x->handler.made_kind == IBX_HANDLE_STREAM)
        ibx_left_work_of_stream(x, value);
    if (x->handler.made_kind == IBX_HANDLE_ARRAY)
        return may_free(x, value) ? 0 : free_nothing(x, body);
    if (body && may_end_later(x))
        return destroy(x, value, body);
    const bool gone = ibx_handles_gone(x, x->handler.made_kind, value);
    if (!gone && x->handler.made_kind != IBX_HANDLE_MEMORY) /* that has its own check */
        return keep(x, body);
    if (x->handler.made_kind == IBX_HANDLE_EVENT)
        ibx_shared_event_gone(value);
    return 0;
}

/* A plan of cuFFT in a reply: an int as it is, or an array of one int, which has its length in
 * bytes before it. */
static uint64_t made_plan(const uint8_t *payload, size_t n)
{
    struct ibx_reader r = ibx_reader_of(payload, n);
    if (n == 12 && ibx_get_u64(&r) != 4)
        return 0;
    return n == 4 || n == 12 ? ibx_get_u32(&r) : 0;
}

static uint64_t made_by(const struct gpu_session *x)
{
    const struct ibx_reply_watch *r = &x->replies;
    if (x->handler.made != MADE_MAKES || r->exit_code || r->last_size > sizeof(r->last))
        return 0;
    return x->handler.made_kind == IBX_HANDLE_MATH + IBX_MATH_FFT
               ? made_plan(r->last, r->last_size)
               : ibx_naming_allocated(r->last, r->last_size);
}

/* Of the event that the handler has made: 4 bytes, or 0 if the request has none. */
static unsigned event_flags(const struct gpu_session *x)
{
    struct ibx_reader r = ibx_reader_of(x->requests.first, sizeof(uint32_t));
    return x->requests.length == sizeof(uint32_t) ? ibx_get_u32(&r) : 0;
}

static bool note_made(struct gpu_session *x, uint64_t made)
{
    uint64_t base = made;
    size_t n = 0;
    if (x->handler.made_kind >= IBX_HANDLE_MATH)
        return ibx_handles_add_of_handler(
            x, x->handler.made_kind, made,
            ibx_math_weight_most(x->handler.made_kind - IBX_HANDLE_MATH), x->handler.maker);
    if (x->handler.made_kind == IBX_HANDLE_EVENT)
        ibx_shared_event_made(x, made, event_flags(x));
    if (x->handler.made_kind != IBX_HANDLE_MEMORY)
        return ibx_handles_add(x, x->handler.made_kind, made);
    if (!ibx_back_end_have_cuda(x) || x->cuda->mem_get_address_range(&base, &n, made) ||
        base != made)
        n = 0;
    const bool added = ibx_memory_add(x, made, n, false);
    ibx_memory_make_end(x);
    if (ibx_clear_new(x, made, n))
        ibx_clear_tell(x);
    return added;
}

/* Its handle is at the beginning of the reply, whatever follows; 0 is no handle. */
static void note_of_handlers(struct gpu_session *x)
{
    struct ibx_reader r = ibx_reader_of(x->replies.last, 8);
    const bool done = x->handler.made == MADE_MAKES && !x->replies.exit_code;
    const uint64_t made = x->replies.last_size >= 8 ? ibx_get_u64(&r) : 0;
    if (done)
        ibx_named_handlers_made(x, made, x->replies.last_size >= 8);
    x->handler.made = MADE_UNUSED;
}

void ibx_made_answered(struct gpu_session *x)
{
    if (ibx_handle_is_of_handlers(x->handler.made_kind) && x->handler.made != MADE_UNUSED) {
        note_of_handlers(x);
        return;
    }
    const uint64_t made = made_by(x);
    const bool seen = made && note_made(x, made);
    ibx_memory_make_end(x);
    const bool missed = x->handler.made == MADE_MAKES && !x->replies.exit_code && !seen;
    const enum ibx_handle_kind kind = x->handler.made_kind;
    /* Only things that handlers name matter; they name no textures. */
    if (missed && kind >= IBX_HANDLE_MATH)
        ibx_named_handlers_made(x, 0, false);
    else if (missed && kind != IBX_HANDLE_MEMORY && kind != IBX_HANDLE_TEXTURE)
        ibx_named_unseen();
    x->handler.made = MADE_UNUSED;
}

/* ---------------------------------------------------------------------------------- the reset */

/* While work of others does not end: what CUDA would wait for is freed in another way, or later.
 * Returns how many are left, which are then the first ones of the list. `over`: no work of the
 * client's own uses them; work of others may use what was open to them. */
static size_t give_back_beside(struct gpu_session *x, struct ibx_taken *taken, size_t count,
                               bool over)
{
    size_t left = 0;
    void *stream = over ? ibx_own_stream_begin() : NULL;
    for (size_t i = 0; i < count; i++) {
        const enum ibx_handle_kind kind = taken[i].kind;
        const bool waits =
            kind == IBX_HANDLE_ARRAY || kind == IBX_HANDLE_MIPMAP || kind == IBX_HANDLE_MEMORY;
        if (stream && kind == IBX_HANDLE_MEMORY && !taken[i].was_open &&
            ibx_release_memory_async(taken[i].value, stream)) {
            ibx_taken_gone(&taken[i]);
        } else if (!waits || !ibx_client_ends_leave(&taken[i])) {
            taken[left++] = taken[i];
        }
    }
    if (stream)
        ibx_own_stream_end(x->cuda, stream);
    return left;
}

/* `over`: no work of the client's own is under way. */
static void give_back_all(struct gpu_session *x, bool over)
{
    int (*forget)(void) = NULL;
    struct ibx_taken *taken = NULL;
    uint64_t whose;
    size_t count = ibx_handles_take(x, &taken);
    const enum ibx_work work = ibx_own_work_settle(x, WORK_MS, &whose);
    const bool plainly = work == IBX_WORK_OVER || work == IBX_WORK_LOST;
    if (plainly)
        ibx_frees_begin(x, 0);
    else
        count = give_back_beside(x, taken, count, over);
    ibx_release_taken(x, taken, count);
    if (plainly)
        ibx_frees_end();
    free(taken);
    *(void **)&forget = ibx_back_end_runtime("cudaGetLastError");
    if (forget)
        forget(); /* an error of something that was already freed unseen */
}

/* Waits for the device, unless that would end another client's capture: then the calls that free
 * memory wait. */
static int wait_for_device(void)
{
    int (*wait)(void) = NULL;
    *(void **)&wait = ibx_back_end_runtime("cudaDeviceSynchronize");
    if (!wait || !ibx_captures_wait_try())
        return 0;
    const int rc = wait();
    ibx_captures_wait_end();
    return rc;
}

bool ibx_own_reset(struct gpu_session *x, int *code)
{
    x->handler.may_reset = ibx_clients_reset(x, ibx_context_broken());
    if (x->handler.may_reset)
        return false;
    *code = 0;
    if (!ibx_back_end_begin_context(x)) /* there is no context, and nothing in it */
        return true;
    ibx_captures_end(x);
    const bool over = ibx_own_work_wait(x);
    const int rc = over ? 0 : wait_for_device();
    if (rc)
        ibx_context_note_error(x, rc);
    x->handler.may_reset = rc && ibx_clients_reset(x, ibx_context_broken());
    if (x->handler.may_reset) /* nothing in the context can be saved */
        return false;
    ibx_gpu_registrations_drop(&x->registrations, 0);
    ibx_exec_ends_settle(x, ibx_clients_number(x));
    give_back_all(x, over);
    return true;
}

void ibx_own_reset_guard(struct gpu_session *x, bool asked, uint8_t *bytes, size_t n)
{
    static const char *const names[] = {"cudaDeviceReset", "cudaThreadExit"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        uint8_t *last = ibx_request_ends_name(&x->requests, bytes, n, names[i]);
        if (last && (asked ? !x->handler.may_reset : !ibx_clients_reset(x, ibx_context_broken())))
            *last = '?';
    }
}
