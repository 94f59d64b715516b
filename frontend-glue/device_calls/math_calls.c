/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Functions of cuBLAS, cuBLASLt, cuRAND, cuFFT, cuSPARSE, cuSOLVER, cuDNN and NCCL
 * (session/math_calls.h). They are called in the library that GVirtuS's plugin for it has loaded;
 * without that plugin they are missing. For NCCL, whose calls math_nccl.c makes, there is no
 * plugin.
 *
 * A library uses a handle as an address in this process, and also a scalar if the handle's pointer
 * mode says that scalars are in host memory. So a handle has to be one that was made here, of the
 * type that the function takes, by the client or another client of its program; and the pointer
 * mode in the request has to be the one that the library has. Device addresses have to be memory
 * that the client may name; how far the library goes from there is up to its kernels, as with the
 * program's own. A handle that a handler of GVirtuS has made may be a generator that fills host
 * memory: it gets no work here. math_limits.c says how much each handle counts, and which handles a
 * request must have alone.
 */
#include "frontend-glue/device_calls/device_calls.h"
#include "frontend-glue/device_calls/math_descriptors.h"
#include "frontend-glue/device_calls/math_dnn.h"
#include "frontend-glue/device_calls/math_nccl.h"
#include "frontend-glue/tenants/math_limits.h"
#include "frontend-glue/session/math_calls.h"

#include <stdlib.h>
#include <string.h>

#define WORKSPACE_MOST ((uint64_t)1 << 30) /* bytes of host memory */

/* ------------------------------------------------------------------------------- a request */

struct call {
    struct gpu_session *x;
    const struct ibx_math_function *f;
    const struct ibx_math_statuses *statuses;
    struct ibx_reader in;
    uint64_t handle;                   /* the request's own handle; 0: it has none */
    bool on_device;                    /* scalars and results are in device memory */
    bool is_long;                      /* the reply is in x->long_reply */
    unsigned weight;                   /* the handle that the call makes counts as so many */
    int refused;                       /* the status to return; 0: none */
    bool unwanted[IBX_MATH_ARGUMENTS]; /* outputs for which the client has no place */
    union ibx_math_value values[IBX_MATH_ARGUMENTS];
    enum ibx_handle_kind kind; /* of the handle */
    void *workspace;           /* of the call; NULL: none */
    struct ibx_descriptor descriptors[IBX_MATH_ARGUMENTS];
    size_t used, used_long; /* bytes used of `memory`, and of the session's long reply */
    size_t used_arrays;     /* bytes used of the session's long arrays */
    _Alignas(16) uint8_t memory[IBX_MATH_ROOM];
};

static void *pointer_of(uint64_t handle)
{
    return (void *)(uintptr_t)handle;
}

static enum ibx_handle_kind kind_of(unsigned type)
{
    return (enum ibx_handle_kind)(IBX_HANDLE_MATH + type);
}

/* n bytes of the call's memory; NULL: there are not so many. */
static void *memory_of(struct call *c, size_t n)
{
    const size_t at = (c->used + 15) & ~(size_t)15;
    if (at > sizeof(c->memory) || n > sizeof(c->memory) - at)
        return NULL;
    c->used = at + n;
    return c->memory + at;
}

static void refuse(struct call *c, int status)
{
    if (!c->refused)
        c->refused = status;
}

static void *device_memory(struct call *c)
{
    const uint64_t at = ibx_get_u64(&c->in);
    if (at && !ibx_isolation_is_memory(c->x, at, 1))
        refuse(c, c->statuses->invalid_value);
    return (void *)(uintptr_t)at;
}

/* Without parameters, the library uses its defaults (PyTorch passes none). */
static void *other_handle(struct call *c, unsigned type, bool may_be_null)
{
    const uint64_t handle = ibx_get_u64(&c->in);
    if (!handle && (may_be_null || type == IBX_MATH_PARAMS))
        return NULL;
    if (ibx_math_fills(c->f, type) ? !ibx_handles_change(c->x, kind_of(type), handle)
                                   : !ibx_handles_know(c->x, kind_of(type), handle))
        refuse(c, c->statuses->invalid_value);
    return (void *)(uintptr_t)handle;
}

static void *stream(struct call *c)
{
    const uint64_t stream = ibx_get_u64(&c->in);
    if (!ibx_named_stream(c->x, stream))
        refuse(c, c->statuses->invalid_value);
    return (void *)(uintptr_t)stream;
}

/* Makes the session's memory for long replies: the first half is for the reply, the second for
 * outputs of the call. */
static bool has_long_reply(struct call *c)
{
    if (!c->x->long_reply)
        c->x->long_reply = malloc(2 * IBX_MATH_OUT_MOST);
    return c->x->long_reply;
}

static void *long_memory_of(struct call *c, size_t n)
{
    const size_t at = (c->used_long + 15) & ~(size_t)15;
    if (!has_long_reply(c))
        return NULL;
    if (at > IBX_MATH_OUT_MOST || n > IBX_MATH_OUT_MOST - at)
        return NULL;
    c->used_long = at + n;
    return c->x->long_reply + IBX_MATH_OUT_MOST + at;
}

/* Room of n bytes, all 0; NULL, and the call is refused: there are not so many. */
static void *room(struct call *c, size_t n)
{
    void *at = n ? memory_of(c, n) : NULL;
    if (at)
        memset(at, 0, n);
    else
        refuse(c, c->statuses->invalid_value);
    return at;
}

/* Arrays have as many bytes as in the request, whose length is bounded. */
#define LONG_ARRAYS (IBX_MATH_BODY + 16u * IBX_MATH_ARGUMENTS)

/* As room(), for an array whose bytes are in the request. The call's own memory is used for short
 * ones, as long as half of it is left for the rest. */
static void *array_room(struct call *c, size_t n)
{
    const size_t at = (c->used_arrays + 15) & ~(size_t)15;
    if (!n || (n <= IBX_MATH_SHORT && c->used + n <= sizeof(c->memory) / 2))
        return room(c, n);
    if (n <= c->in.length - c->in.position && at <= LONG_ARRAYS && n <= LONG_ARRAYS - at &&
        (c->x->long_arrays || (c->x->long_arrays = malloc(LONG_ARRAYS)))) {
        c->used_arrays = at + n;
        return c->x->long_arrays + at;
    }
    refuse(c, c->statuses->invalid_value);
    return NULL;
}

/* Room for an array, with its bytes from the request. A client that has passed NULL is refused
 * unless `may_be_null`: most of these functions read the array nevertheless. */
static void *host_bytes(struct call *c, size_t n, bool may_be_null)
{
    if (!ibx_get_u8(&c->in)) {
        if (!may_be_null)
            refuse(c, c->statuses->invalid_value);
        return NULL;
    }
    void *at = array_room(c, n);
    const uint8_t *bytes = ibx_get_bytes(&c->in, n);
    if (at && bytes)
        memcpy(at, bytes, n);
    return at;
}

/* Whether the function is told that the output has no room, and does not write to it. Numbers below
 * 0 do not say that: cuDNN takes -1 for as many as there are. */
static bool has_no_bytes(const struct call *c, const struct ibx_math_argument *a)
{
    return (a->size == IBX_MATH_BYTES_OF_INT && !c->values[a->of].i) ||
           (a->size == IBX_MATH_BYTES_OF_LONG && !c->values[a->of].l);
}

/* Functions whose outputs may be NULL by their documentation. Of others it is not known whether the
 * library checks that. */
static bool may_lack_outputs(const struct ibx_math_function *f)
{
    return f->number == IBX_MATH_cudnnGetRNNWeightParams ||
           f->number == IBX_MATH_cudnnBackendGetAttribute;
}

/* Room for output i, of n bytes. If the client has passed NULL for it, what the function writes
 * there is dropped. */
static void *host_room(struct call *c, unsigned i, size_t n)
{
    c->unwanted[i] = !ibx_get_u8(&c->in);
    if (c->unwanted[i] && (has_no_bytes(c, &c->f->arguments[i]) || may_lack_outputs(c->f)))
        return NULL;
    if (n <= IBX_MATH_OUT)
        return room(c, n);
    void *at = long_memory_of(c, n);
    if (at)
        memset(at, 0, n);
    else
        refuse(c, c->statuses->invalid_value);
    return at;
}

static void *descriptor(struct call *c, unsigned i)
{
    struct ibx_descriptor *d = &c->descriptors[i];
    d->type = (enum ibx_descriptor_type)c->f->arguments[i].n;
    d->n = ibx_get_u8(&c->in);
    d->bytes = ibx_get_bytes(&c->in, d->n);
    if (!d->n || !d->bytes)
        return NULL;
    void *made = room(c, ibx_descriptor_room(d->type));
    if (made) {
        const int status = ibx_descriptor_make(c->x, d, c->f->use == IBX_MATH_USE_ADDS, made);
        if (status)
            refuse(c, status);
    }
    return made;
}

/* A scalar is where its descriptor says; without a descriptor there is none. */
static void *scalar_of_descriptor(struct call *c, const struct ibx_math_argument *a)
{
    const struct ibx_descriptor *d = &c->descriptors[a->of];
    size_t size = 0;
    enum ibx_scalar_place place = IBX_SCALAR_UNKNOWN;
    if (d->n && d->bytes && ibx_descriptor_good(d->type, d->bytes, d->n))
        place = ibx_descriptor_scalar(d->type, d->bytes, d->n, a->kind == IBX_MATH_BETA, &size);
    switch (place) {
    case IBX_SCALAR_HOST:
        return host_bytes(c, size, false);
    case IBX_SCALAR_DEVICE:
        return device_memory(c);
    case IBX_SCALAR_NONE:
        return NULL;
    default:
        refuse(c, c->statuses->invalid_value);
        return NULL;
    }
}

/* Whether the function uses no more than n bytes of workspace: the library does not check the size
 * that the client states. */
static bool is_enough(const struct call *c, uint64_t n)
{
    union ibx_math_value values[IBX_MATH_ARGUMENTS];
    size_t sizes[2] = {0, 0};
    const struct ibx_math_function *asks = ibx_math_size_call(c->f, c->values, sizes, values);
    void *function = asks ? ibx_math_function_of(asks) : NULL;
    return function && !asks->call(function, values) && sizes[1] <= n;
}

/* A workspace in host memory, which the function may still use after its call has returned.
 * Captured work would need it until its last graph ends, which cannot be known here: so a call in a
 * capture is refused. */
static void *workspace(struct call *c, uint64_t n)
{
    const uint64_t stream = ibx_handles_selected(c->x, c->kind, c->handle);
    uint64_t id;
    if (!c->refused && !is_enough(c, n))
        refuse(c, c->statuses->invalid_value);
    if (!n || c->refused)
        return NULL;
    if (stream && ibx_named_stream(c->x, stream) && ibx_captures_active(c->x, stream, &id)) {
        refuse(c, c->statuses->not_supported);
        return NULL;
    }
    c->workspace = n <= WORKSPACE_MOST ? malloc(n) : NULL;
    if (!c->workspace)
        refuse(c, c->statuses->invalid_value);
    return c->workspace;
}

/* Frees the workspace when the handle's stream, which the library tells, is idle: then nothing uses
 * it any more. */
static void end_workspace(struct call *c)
{
    int (*stream_of)(void *handle, void **of) = NULL;
    int (*wait)(void *of) = NULL;
    void *of = NULL;
    if (!c->workspace)
        return;
    *(void **)&stream_of = ibx_math_function_of(ibx_math_find(IBX_MATH_cusolverDnGetStream));
    *(void **)&wait = ibx_back_end_runtime("cudaStreamSynchronize");
    if (c->refused || (stream_of && wait && !stream_of(pointer_of(c->handle), &of) && !wait(of)))
        free(c->workspace);
}

/* Decodes plain values first, since sizes of other arguments depend on them. */
static void get_plain(struct call *c, unsigned i)
{
    union ibx_math_value *v = &c->values[i];
    switch (c->f->arguments[i].kind) {
    case IBX_MATH_INT:
        v->i = (int)ibx_get_u32(&c->in);
        break;
    case IBX_MATH_LONG:
        v->l = ibx_get_u64(&c->in);
        break;
    case IBX_MATH_FLOAT:
        v->i = (int)ibx_get_u32(&c->in); /* the bits of a float */
        break;
    case IBX_MATH_DOUBLE:
        v->l = ibx_get_u64(&c->in);
        break;
    case IBX_MATH_DEVICE:
        v->p = device_memory(c);
        break;
    case IBX_MATH_STREAM:
        v->p = stream(c);
        break;
    case IBX_MATH_OTHER:
        v->p = other_handle(c, c->f->arguments[i].n, c->f->arguments[i].of);
        break;
    case IBX_MATH_HANDLE:
        v->p = pointer_of(c->handle);
        break;
    case IBX_MATH_PLAN:
        v->i = (int)(uint32_t)c->handle;
        break;
    default:
        break;
    }
}

static void get_sized(struct call *c, unsigned i)
{
    const struct ibx_math_argument *a = &c->f->arguments[i];
    const size_t n = ibx_math_bytes(a, c->values);
    union ibx_math_value *v = &c->values[i];
    switch (a->kind) {
    case IBX_MATH_SCALAR:
    case IBX_MATH_CHANGED:
        v->p = c->on_device ? device_memory(c) : host_bytes(c, n, false);
        break;
    case IBX_MATH_RESULT:
        v->p = c->on_device ? device_memory(c) : host_room(c, i, n);
        break;
    case IBX_MATH_HOST_CHANGED:
        v->p = host_bytes(c, n, true);
        break;
    case IBX_MATH_WORKSPACE:
        v->p = workspace(c, c->values[a->of].l);
        break;
    case IBX_MATH_ARRAY:
    case IBX_MATH_ARRAY_OR_NULL:
        v->p = host_bytes(c, n, a->kind == IBX_MATH_ARRAY_OR_NULL);
        break;
    case IBX_MATH_OUTPUT:
        v->p = host_room(c, i, n);
        break;
    case IBX_MATH_HOST_OR_NULL:
    case IBX_MATH_SCALING:
        v->p = host_bytes(c, n, true);
        break;
    case IBX_MATH_DESCRIPTOR:
        v->p = descriptor(c, i);
        break;
    case IBX_MATH_ALPHA:
    case IBX_MATH_BETA:
        v->p = scalar_of_descriptor(c, a);
        break;
    case IBX_MATH_LAST_STREAM:
        v->p = stream(c);
        break;
    case IBX_MATH_MAKES:
    case IBX_MATH_MAKES_PLAN:
        v->p = host_room(c, i, 8);
        if (c->unwanted[i])
            refuse(c, c->statuses->invalid_value);
        break;
    default:
        break;
    }
}

/* Whether the request's handle exists; holds it. If the pointer mode could be changed after it was
 * checked, the back end would use a device address as its own, and crash. */
static bool names_handle(struct call *c)
{
    const struct ibx_math_argument *a = c->f->arguments;
    unsigned i = 0;
    while (i < c->f->count && a[i].kind != IBX_MATH_HANDLE && a[i].kind != IBX_MATH_PLAN)
        i++;
    if (i == c->f->count || (!c->handle && c->f->number == IBX_MATH_cublasGetVersion_v2))
        return true; /* JAX asks before it has a handle, as cuBLAS allows */
    c->kind = kind_of(a[i].n);
    if (a[i].n == IBX_MATH_LT && c->f->use != IBX_MATH_USE_ENDS &&
        !ibx_handles_know(c->x, c->kind, c->handle))
        c->kind = kind_of(IBX_MATH_BLAS);
    return ibx_math_needs_alone(c->f, a[i].n) ? ibx_handles_change(c->x, c->kind, c->handle)
                                              : ibx_handles_know(c->x, c->kind, c->handle);
}

/* Whether the pointer mode of the request is that of the handle. */
static bool names_mode(struct call *c)
{
    int (*get)(void *handle, int *mode) = NULL;
    int mode = 0;
    if (!ibx_math_has_scalars(c->f))
        return true;
    if (c->statuses->pointer_mode)
        *(void **)&get = ibx_math_function_of(ibx_math_find(c->statuses->pointer_mode));
    return get && !get(pointer_of(c->handle), &mode) && mode == c->on_device;
}

/* Decodes the request. 0, or the status with which it is refused. */
static int decode(struct call *c)
{
    if (!names_handle(c))
        return c->statuses->not_initialized;
    if (c->f->use == IBX_MATH_USE_ADDS &&
        ibx_handles_maker(c->x, c->kind, c->handle) >= IBX_MAKER_HANDLER)
        return c->statuses->invalid_value;
    for (unsigned i = 0; i < c->f->count; i++)
        get_plain(c, i);
    for (unsigned i = 0; i < c->f->count; i++)
        get_sized(c, i);
    if (c->in.failed || c->in.position != c->in.length || !names_mode(c))
        refuse(c, c->statuses->invalid_value);
    if (!c->refused && ibx_math_is_dnn(c->f->number))
        refuse(c, ibx_dnn_check(c->x, c->f, c->values));
    return c->refused;
}

/* ------------------------------------------------------------------------------- what it makes */

void ibx_math_end(unsigned type, uint64_t handle)
{
    const struct ibx_math_function *f = ibx_math_find(ibx_math_end_of((enum ibx_math_type)type));
    void *function = ibx_math_function_of(f);
    union ibx_math_value value;
    if (f->arguments[0].kind == IBX_MATH_PLAN)
        value.i = (int)(uint32_t)handle;
    else
        value.p = (void *)(uintptr_t)handle;
    if (type == IBX_MATH_GRAPH)
        ibx_dnn_ended(handle);
    if (type == IBX_MATH_COMM)
        ibx_nccl_end(handle);
    else if (function)
        f->call(function, &value);
}

/* Notes the handle that the call has made. False: no memory; it was destroyed. */
static bool note(struct call *c, const struct ibx_math_argument *a, uint64_t made)
{
    if (!made && a->n == IBX_MATH_COMM) /* this rank gets none */
        return true;
    if (!ibx_handles_add_heavy(c->x, kind_of(a->n), made, c->weight)) {
        ibx_math_end(a->n, made);
        return false;
    }
    if (a->n == IBX_MATH_COMM)
        ibx_clients_watch(c->x);
    return true;
}

/* Bytes of an argument in the reply. */
static size_t bytes_of_reply(const struct call *c, unsigned i)
{
    const struct ibx_math_argument *a = &c->f->arguments[i];
    const bool changed = a->kind == IBX_MATH_CHANGED || a->kind == IBX_MATH_HOST_CHANGED;
    const bool result = a->kind == IBX_MATH_RESULT || a->kind == IBX_MATH_CHANGED;
    const bool output =
        a->kind == IBX_MATH_OUTPUT || a->kind == IBX_MATH_HOST_CHANGED || (result && !c->on_device);
    if (ibx_math_is_made(a))
        return 8;
    return output && c->values[i].p && (changed || !c->unwanted[i]) ? ibx_math_bytes(a, c->values)
                                                                    : 0;
}

/* Whether there is room for the reply; checked before the call. */
static bool reply_fits(struct call *c)
{
    size_t n = 0;
    for (unsigned i = 0; i < c->f->count; i++)
        n += bytes_of_reply(c, i);
    c->is_long = n > IBX_MATH_OUT;
    return !c->is_long || (n <= IBX_MATH_OUT_MOST && has_long_reply(c));
}

static int answer(struct call *c, struct ibx_writer *out)
{
    if (c->is_long)
        *out = ibx_writer_of(c->x->long_reply, IBX_MATH_OUT_MOST);
    for (unsigned i = 0; i < c->f->count; i++) {
        const struct ibx_math_argument *a = &c->f->arguments[i];
        const void *at = c->values[i].p;
        if (ibx_math_is_made(a) && !note(c, a, ibx_math_made(a, at)))
            return c->statuses->no_memory;
        if (ibx_math_is_made(a))
            ibx_put_u64(out, ibx_math_made(a, at));
        else
            ibx_put_bytes(out, at, bytes_of_reply(c, i));
    }
    return 0;
}

/* ------------------------------------------------------------------------------- its stream */

/* The function that selects a stream for handles of that kind. */
static const struct ibx_math_function *selector_of(enum ibx_handle_kind kind)
{
    switch (kind - IBX_HANDLE_MATH) {
    case IBX_MATH_BLAS:
        return ibx_math_find(IBX_MATH_cublasSetStream_v2);
    case IBX_MATH_RNG:
        return ibx_math_find(IBX_MATH_curandSetStream);
    case IBX_MATH_FFT:
        return ibx_math_find(IBX_MATH_cufftSetStream);
    case IBX_MATH_SPARSE:
        return ibx_math_find(IBX_MATH_cusparseSetStream);
    case IBX_MATH_DNN:
        return ibx_math_find(IBX_MATH_cudnnSetStream);
    case IBX_MATH_SPSOLVER:
        return ibx_math_find(IBX_MATH_cusolverSpSetStream);
    default:
        return ibx_math_find(IBX_MATH_cusolverDnSetStream);
    }
}

/* A library also uses the stream of a handle as an address, even if that stream was destroyed,
 * which would crash the back end. So if it no longer exists, the handle gets the legacy stream, and
 * the call is refused if it would add work. A stream that exists is held until the call is over. */
static bool has_stream(struct call *c)
{
    const uint64_t stream =
        c->kind >= IBX_HANDLE_MATH ? ibx_handles_selected(c->x, c->kind, c->handle) : 0;
    if (!stream || ibx_handles_know(c->x, IBX_HANDLE_STREAM, stream) ||
        ibx_named_stream(c->x, stream))
        return true;
    const struct ibx_math_function *f = selector_of(c->kind);
    const bool plan = f->arguments[0].kind == IBX_MATH_PLAN;
    union ibx_math_value values[2] = {{.p = pointer_of(c->handle)}, {.p = NULL}};
    if (plan)
        values[0].i = (int)(uint32_t)c->handle;
    void *function = ibx_math_function_of(f);
    if (!function || f->call(function, values))
        return false;
    ibx_handles_select(c->x, c->kind, c->handle, 0);
    return c->f->use != IBX_MATH_USE_ADDS;
}

/* ------------------------------------------------------------------------------- the call */

static int run(struct call *c, void *function)
{
    const bool ends = c->f->use == IBX_MATH_USE_ENDS, selects = c->f->use == IBX_MATH_USE_SELECTS;
    if (!ends && !selects && !ibx_math_names_stream(c->f) && !has_stream(c))
        return c->statuses->invalid_value;
    if (ends && c->kind == kind_of(IBX_MATH_COMM))
        ibx_nccl_leave(c->handle);
    if (ends && !ibx_handles_remove(c->x, kind_of(c->f->arguments[0].n), c->handle))
        return c->statuses->not_initialized;
    if (ends) /* destroying a handle waits for the device */
        ibx_captures_wait_begin(c->x);
    else if (c->f->use != IBX_MATH_USE_ASKS)
        ibx_captures_spare(c->x, 0);
    if (c->f->use != IBX_MATH_USE_ASKS)
        ibx_clients_hide_work(c->x);
    if (ends && c->kind == IBX_HANDLE_MATH + IBX_MATH_GRAPH)
        ibx_dnn_ended(c->handle); /* after the call, another descriptor may have its address */
    const int status =
        c->f->number == IBX_MATH_cudnnBackendExecute ? ibx_dnn_execute(c->x, function, c->values)
        : ibx_math_is_nccl(c->f->number)             ? ibx_nccl_run(c->x, c->f, function, c->values)
                                                     : c->f->call(function, c->values);
    if (!status && ibx_math_is_dnn(c->f->number))
        ibx_dnn_done(c->x, c->f, c->values);
    if (ends)
        ibx_captures_wait_end();
    if (selects && !status)
        ibx_handles_select(c->x, c->kind, c->handle, (uintptr_t)c->values[1].p);
    return status;
}

/* Takes room for the rest of the handle's weight: room for one was taken before. */
static bool take_weight(struct call *c, enum ibx_hold hold)
{
    const unsigned weight = ibx_math_weight(c->f, c->values);
    if (weight > c->weight && !ibx_room_take(c->x, hold, weight - c->weight))
        return false;
    c->weight = weight;
    return true;
}

int ibx_device_math(struct gpu_session *x, const struct ibx_request *q, struct ibx_writer *out)
{
    struct call c; /* its memory is not cleared, which would take longer than the rest */
    c.x = x;
    c.in = ibx_reader_of(q->body, (size_t)q->length);
    c.refused = 0;
    c.kind = IBX_HANDLE_STREAM; /* not a kind of a library's handle */
    c.workspace = NULL;
    c.weight = 1;
    c.used = c.used_long = c.used_arrays = 0;
    c.handle = ibx_get_u64(&c.in);
    const unsigned number = ibx_get_u16(&c.in);
    c.on_device = ibx_get_u8(&c.in);
    c.f = ibx_math_find(number);
    c.statuses = ibx_math_statuses_of(number);
    const bool may = !ibx_math_is_nccl(number) || ibx_nccl_allowed(x);
    void *function = !c.in.failed && c.f && may ? ibx_math_function_of(c.f) : NULL;
    if (!function || !ibx_back_end_begin_context(x))
        return IBX_MATH_ABSENT;
    const enum ibx_hold hold = ibx_math_makes(c.f);
    const bool room = hold == IBX_HOLDS || ibx_room_take(x, hold, 1);
    int status = room ? decode(&c) : c.statuses->no_memory;
    if (!status && hold != IBX_HOLDS && !take_weight(&c, hold))
        status = c.statuses->no_memory;
    if (!status && !reply_fits(&c))
        status = c.statuses->invalid_value;
    if (!status) {
        status = run(&c, function);
        const int unanswered = ibx_math_has_results(number, status) ? answer(&c, out) : 0;
        if (unanswered) {
            status = unanswered;
            out->length = 0;
        }
    }
    if (room && hold != IBX_HOLDS) /* the handle counts by itself now */
        ibx_room_give(x, hold, c.weight);
    end_workspace(&c);
    ibx_handles_let_go(x);
    return status;
}
