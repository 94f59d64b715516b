/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Makes functions of cuBLAS, cuBLASLt, cuRAND, cuFFT, cuSPARSE and cuSOLVER as requests
 * (session/math_calls.h). A function that only adds work to a stream may return before it runs, as
 * a launch does; one with a result in host memory waits for it. If the back end does not know these
 * requests, or lacks the library, GVirtuS's function gets the call. So does each call with a handle
 * that GVirtuS has made.
 */
#include "frontend-glue/preload/math_libraries/math_calls.h"

#include "frontend-glue/preload/math_libraries/math_contents.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include "common/log.h"

#include <stdlib.h>

#define UNKNOWN (-1) /* the exit code of GVirtuS's back end for an unknown routine */

#define DNN_NULL_POINTER 2002 /* CUDNN_STATUS_BAD_PARAM_NULL_POINTER */

struct call {
    const struct ibx_math_function *f;
    const struct ibx_math_statuses *statuses;
    const union ibx_math_value *values;
    enum ibx_math_type type; /* the type of its handle */
    uint64_t handle;         /* 0: the function has no handle */
    bool on_device;          /* scalars and results are in device memory */
    size_t out;              /* bytes of the reply after the exit code */
    bool odd;                /* an argument has an unknown type, a bad count, or is no descriptor */
    bool same;               /* the same request has the same answer each time */
};

/* ------------------------------------------------------------------------ GVirtuS's function */

static void note_stream(const struct call *c)
{
    if (c->f->use == IBX_MATH_USE_SELECTS) /* arguments: handle, stream */
        ibx_math_handle_selects(c->type, c->handle, c->values[1].p);
}

/* Marks the handles that GVirtuS's function has made as its own. */
static void note_foreign(const struct call *c)
{
    for (unsigned i = 0; i < c->f->count; i++) {
        const struct ibx_math_argument *a = &c->f->arguments[i];
        if (ibx_math_is_made(a) && c->values[i].p)
            ibx_math_handle_set((enum ibx_math_type)a->n, ibx_math_made(a, c->values[i].p),
                                IBX_MATH_FOREIGN);
    }
}

static void tell(const struct call *c, int status)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&told))
        return;
    if (ibx_math_is_nccl(c->f->number))
        ibx_log(IBX_LOG_WARN,
                "%s returns %d: the back end allows no NCCL (write rdma.nccl : on in its "
                "gvirtus.properties), or has no libnccl.so.2 (install libnccl2 there), or its "
                "communicator is older than libibx-frontend.so",
                c->f->name, status);
    else
        ibx_log(IBX_LOG_WARN,
                "%s returns %d: the back end has no %s (GVirtuS loads it as a plugin), or its "
                "communicator is older than libibx-frontend.so, or has rdma.gpu : off",
                c->f->name, status, c->statuses->file);
}

/* Whether GVirtuS's function, or NVIDIA's cuDNN or NCCL in this process, may get the call. cuDNN
 * would dereference a handle of the back end: so it gets only handles that it has made, and no
 * graphs, whose attributes contain other handles. NCCL has no GPU here. */
static bool may_pass(const struct call *c)
{
    if (ibx_math_is_nccl(c->f->number))
        return c->f->number == IBX_MATH_ncclGetVersion;
    for (unsigned i = 0; i < c->f->count && ibx_math_is_dnn(c->f->number); i++) {
        const struct ibx_math_argument *a = &c->f->arguments[i];
        const bool names = a->kind == IBX_MATH_HANDLE || a->kind == IBX_MATH_OTHER;
        const uint64_t handle = (uintptr_t)c->values[i].p;
        if (((names || ibx_math_is_made(a)) && a->n == IBX_MATH_GRAPH) ||
            (names && handle &&
             ibx_math_handle_is((enum ibx_math_type)a->n, handle) != IBX_MATH_FOREIGN))
            return false;
    }
    return true;
}

static int pass(const struct call *c)
{
    static _Atomic(void *) found[IBX_MATH_FUNCTIONS];
    void *next = ibx_frontend_next(&found[c->f - ibx_math_each(0)], c->f->name);
    if (!may_pass(c))
        next = NULL;
    const bool may = ibx_frontend_first_begins();
    const int status = may && next ? c->f->call(next, c->values) : c->statuses->not_supported;
    ibx_frontend_first_is_over();
    if (may && (!next || (status && ibx_math_is_dnn(c->f->number)))) /* NVIDIA's own has none */
        tell(c, status);
    if (!status) {
        note_stream(c);
        note_foreign(c);
    }
    return status;
}

/* ------------------------------------------------------------------------------- the request */

/* Where the scalar is that is the i-th argument, by its descriptor. *size: its bytes. */
static enum ibx_scalar_place place_of(const struct call *c, unsigned i, size_t *size)
{
    const struct ibx_math_argument *a = &c->f->arguments[i];
    const enum ibx_descriptor_type type = (enum ibx_descriptor_type)c->f->arguments[a->of].n;
    size_t n;
    const uint8_t *bytes = ibx_descriptor_bytes(type, c->values[a->of].p, &n);
    return bytes ? ibx_descriptor_scalar(type, bytes, n, a->kind == IBX_MATH_BETA, size)
                 : IBX_SCALAR_UNKNOWN;
}

#define ADDRESSES (IBX_MATH_ARGUMENTS + IBX_DESCRIPTOR_MAX / 9)

static size_t addresses_in(const struct ibx_math_argument *a, const void *descriptor,
                           uint64_t *addresses)
{
    const struct ibx_attribute *attribute;
    uint64_t value;
    size_t n, count = 0;
    const uint8_t *bytes = ibx_descriptor_bytes((enum ibx_descriptor_type)a->n, descriptor, &n);
    for (size_t i = 0; bytes && ibx_descriptor_each((enum ibx_descriptor_type)a->n, bytes, n, i,
                                                    &attribute, &value);
         i++) {
        if (attribute->use == IBX_ATTRIBUTE_DEVICE)
            addresses[count++] = value;
    }
    return count;
}

/* Gives the library's kernels access to page-locked memory that the arguments point to. False: they
 * cannot have it. */
static bool reach(const struct call *c)
{
    uint64_t addresses[ADDRESSES];
    size_t n = 0, size;
    for (unsigned i = 0; i < c->f->count; i++) {
        const unsigned kind = c->f->arguments[i].kind;
        const bool scalar =
            kind == IBX_MATH_SCALAR || kind == IBX_MATH_RESULT || kind == IBX_MATH_CHANGED;
        const bool either = kind == IBX_MATH_ALPHA || kind == IBX_MATH_BETA;
        if (kind == IBX_MATH_DEVICE || (scalar && c->on_device) ||
            (either && place_of(c, i, &size) == IBX_SCALAR_DEVICE))
            addresses[n++] = (uintptr_t)c->values[i].p;
        else if (kind == IBX_MATH_DESCRIPTOR && c->f->use == IBX_MATH_USE_ADDS)
            n += addresses_in(&c->f->arguments[i], c->values[i].p, addresses + n);
    }
    return !ibx_frontend_arguments_reach(addresses, n * sizeof(addresses[0]));
}

static void put_plain(struct ibx_writer *w, const struct ibx_math_argument *a,
                      const union ibx_math_value *v)
{
    switch (a->kind) {
    case IBX_MATH_INT:
    case IBX_MATH_FLOAT: /* the bits of a float */
        ibx_put_u32(w, (uint32_t)v->i);
        break;
    case IBX_MATH_LONG:
    case IBX_MATH_DOUBLE:
        ibx_put_u64(w, v->l);
        break;
    case IBX_MATH_DEVICE:
    case IBX_MATH_STREAM:
    case IBX_MATH_OTHER:
        ibx_put_u64(w, (uintptr_t)v->p);
        break;
    default:
        break;
    }
}

/* Appends n bytes of host memory, or a note that `at` is NULL. */
static void put_host(struct call *c, struct ibx_writer *w, const void *at, size_t n)
{
    ibx_put_u8(w, at != NULL);
    if (at)
        ibx_put_bytes(w, at, n);
    c->odd = c->odd || (at && !n);
}

static void put_place(struct call *c, struct ibx_writer *w, const void *at, size_t n)
{
    ibx_put_u8(w, at != NULL);
    c->out += at ? n : 0;
    c->odd = c->odd || (at && !n);
}

static void put_descriptor(struct call *c, struct ibx_writer *w, const struct ibx_math_argument *a,
                           const void *descriptor)
{
    size_t n = 0;
    const uint8_t *bytes = ibx_descriptor_bytes((enum ibx_descriptor_type)a->n, descriptor, &n);
    ibx_put_u8(w, bytes ? (uint8_t)n : 0);
    if (bytes)
        ibx_put_bytes(w, bytes, n);
    c->odd = c->odd || (descriptor && !bytes);
}

static void put_scalar(struct call *c, struct ibx_writer *w, unsigned i)
{
    size_t size;
    switch (place_of(c, i, &size)) {
    case IBX_SCALAR_HOST:
        put_host(c, w, c->values[i].p, size);
        break;
    case IBX_SCALAR_DEVICE:
        ibx_put_u64(w, (uintptr_t)c->values[i].p);
        break;
    case IBX_SCALAR_NONE:
        break;
    default:
        c->odd = true;
    }
}

/* A float or a double: which one is unknown here. A double is aligned to 8 bytes, so 8 bytes can be
 * read at such an address. */
IBX_UNSANITIZED static void put_scaling(struct call *c, struct ibx_writer *w, const void *at)
{
    const volatile uint32_t *words = at;
    uint32_t bytes[2] = {0};
    for (int i = 0; at && i < ((uintptr_t)at % 8 ? 1 : 2); i++)
        bytes[i] = words[i];
    put_host(c, w, at ? bytes : NULL, sizeof(bytes));
}

static void put_sized(struct call *c, struct ibx_writer *w, unsigned i)
{
    const struct ibx_math_argument *a = &c->f->arguments[i];
    const void *at = c->values[i].p;
    const size_t n = ibx_math_bytes(a, c->values);
    switch (a->kind) {
    case IBX_MATH_SCALAR:
    case IBX_MATH_CHANGED:
    case IBX_MATH_RESULT:
        if (c->on_device)
            ibx_put_u64(w, (uintptr_t)at);
        else if (a->kind == IBX_MATH_RESULT)
            put_place(c, w, at, n);
        else
            put_host(c, w, at, n);
        if (!c->on_device && a->kind == IBX_MATH_CHANGED)
            c->out += at ? n : 0;
        break;
    case IBX_MATH_HOST_CHANGED:
        put_host(c, w, at, n);
        c->out += at ? n : 0;
        break;
    case IBX_MATH_ARRAY:
    case IBX_MATH_ARRAY_OR_NULL:
        put_host(c, w, at, n);
        break;
    case IBX_MATH_OUTPUT:
        put_place(c, w, n || a->size == IBX_MATH_BYTES ? at : NULL, n);
        break;
    case IBX_MATH_HOST_OR_NULL:
        put_host(c, w, at, n);
        break;
    case IBX_MATH_SCALING:
        put_scaling(c, w, at);
        break;
    case IBX_MATH_DESCRIPTOR:
        put_descriptor(c, w, a, at);
        break;
    case IBX_MATH_ALPHA:
    case IBX_MATH_BETA:
        put_scalar(c, w, i);
        break;
    case IBX_MATH_LAST_STREAM:
        ibx_put_u64(w, (uintptr_t)at);
        break;
    case IBX_MATH_MAKES:
    case IBX_MATH_MAKES_PLAN:
        put_place(c, w, at, 8);
        break;
    default:
        break;
    }
}

/* Encodes the request. False: it does not fit into one message, or an argument cannot be encoded.
 */
static bool encode(struct call *c, struct ibx_writer *w)
{
    ibx_put_u64(w, c->handle);
    ibx_put_u16(w, c->f->number);
    ibx_put_u8(w, c->on_device);
    for (unsigned i = 0; i < c->f->count; i++)
        put_plain(w, &c->f->arguments[i], &c->values[i]);
    for (unsigned i = 0; i < c->f->count; i++)
        put_sized(c, w, i);
    return !c->odd && !w->failed && w->length <= IBX_MATH_BODY && c->out <= IBX_MATH_OUT_MOST;
}

static const char *name_of(const struct call *c)
{
    if (ibx_math_is_nccl(c->f->number) && c->f->use == IBX_MATH_USE_ASKS)
        return IBX_MATH_ASKS;
    if (c->f->number == IBX_MATH_ncclCommAbort)
        return IBX_MATH_ABORTS;
    switch ((enum ibx_math_use)c->f->use) {
    case IBX_MATH_USE_ADDS:
        return c->out                        ? IBX_MATH_WAITS
               : ibx_math_names_stream(c->f) ? IBX_MATH_ADDS_IN
                                             : IBX_MATH_ADDS;
    case IBX_MATH_USE_SELECTS:
        return IBX_MATH_SELECTS;
    case IBX_MATH_USE_SETS_UP:
    case IBX_MATH_USE_ENDS:
        return IBX_MATH_SETS_UP;
    case IBX_MATH_USE_ASKS:
        break;
    }
    return IBX_MATH_WAITS;
}

/* ------------------------------------------------------------------------------- its answer */

static void take_results(const struct call *c, const uint8_t *out)
{
    struct ibx_reader r = ibx_reader_of(out, c->out);
    for (unsigned i = 0; i < c->f->count; i++) {
        const struct ibx_math_argument *a = &c->f->arguments[i];
        const bool result = a->kind == IBX_MATH_RESULT || a->kind == IBX_MATH_CHANGED;
        void *at = c->values[i].p;
        const bool output = a->kind == IBX_MATH_OUTPUT || a->kind == IBX_MATH_HOST_CHANGED;
        if (!at || !(ibx_math_is_made(a) || (result && !c->on_device) || output))
            continue;
        if (ibx_math_is_made(a)) {
            const uint64_t made = ibx_get_u64(&r);
            const int plan = (int)(uint32_t)made;
            if (ibx_math_is_dnn(c->f->number)) /* its handles do not survive a reset */
                ibx_math_handle_end((enum ibx_math_type)a->n, made);
            else
                ibx_math_handle_set((enum ibx_math_type)a->n, made, IBX_MATH_USUAL);
            ibx_math_handle_selects((enum ibx_math_type)a->n, made, NULL);
            if (a->n == IBX_MATH_BLAS)
                ibx_math_settings_end(made);
            if (a->n == IBX_MATH_DNVEC) /* arguments: handle, size, values, type */
                ibx_math_vector_made(made, c->values[3].i);
            if (a->n == IBX_MATH_BLAS || a->n == IBX_MATH_LT || a->n == IBX_MATH_DNN)
                ibx_math_answers_forget();
            if (a->kind == IBX_MATH_MAKES)
                memcpy(at, &made, sizeof(made));
            else
                memcpy(at, &plan, sizeof(plan));
            continue;
        }
        const size_t n = ibx_math_bytes(a, c->values);
        const uint8_t *bytes = ibx_get_bytes(&r, n);
        if (bytes)
            memcpy(at, bytes, n);
    }
}

/* Notes the effects of a successful call on later calls. */
static void note(const struct call *c)
{
    note_stream(c);
    if (c->f->number == IBX_MATH_cublasSetPointerMode_v2 ||
        c->f->number == IBX_MATH_cusparseSetPointerMode)
        ibx_math_handle_set(c->type, c->handle,
                            c->values[1].i ? IBX_MATH_ON_DEVICE : IBX_MATH_USUAL);
    if (c->f->use == IBX_MATH_USE_ENDS &&
        (c->type == IBX_MATH_LT || c->type == IBX_MATH_BLAS || c->type == IBX_MATH_DNN))
        ibx_math_answers_forget();
}

/* Sends the request. False: the back end has not executed it. A session's first request is refused,
 * because the back end does not know yet what GVirtuS's replies look like. Then GVirtuS makes a
 * call first. */
static bool ask(const struct extension_request *e, uint8_t *out, size_t n, int *code)
{
    bool made = ibx_frontend_request_try(e, out, n, code);
    if (made && *code == UNKNOWN) {
        ibx_frontend_connect();
        made = ibx_frontend_request_try(e, out, n, code);
    }
    return made && *code != UNKNOWN && *code != IBX_MATH_ABSENT;
}

/* Whether a number of elements is too large to count their bytes. */
static bool has_many(const struct call *c)
{
    for (unsigned i = 0; i < c->f->count; i++) {
        const struct ibx_math_argument *a = &c->f->arguments[i];
        if ((a->size == IBX_MATH_BYTES_OF_INT && c->values[a->of].i > (int)IBX_MATH_BODY) ||
            (a->size == IBX_MATH_BYTES_OF_LONG && (int64_t)c->values[a->of].l > IBX_MATH_BODY))
            return true;
    }
    return false;
}

static int tell_long(const struct call *c)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if ((!c->odd || has_many(c)) && !atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN,
                "%s returns %d: its arguments are more than the %u bytes that a call has over a "
                "remote GPU, or its results more than %u",
                c->f->name, c->statuses->invalid_value, IBX_MATH_BODY, IBX_MATH_OUT_MOST);
    return c->statuses->invalid_value;
}

/* Encodes a request that needs more room than struct extension_request has. Returns a status. */
static int encode_long(struct call *c, struct extension_request *e)
{
    if (c->odd)
        return tell_long(c);
    e->more = malloc(IBX_MATH_BODY);
    if (!e->more)
        return c->statuses->no_memory;
    c->out = 0;
    e->body = ibx_writer_of(e->more, IBX_MATH_BODY);
    return encode(c, &e->body) ? 0 : tell_long(c);
}

/* cuFFT has to have a place for each result. */
static bool has_places(const struct call *c)
{
    for (unsigned i = 0; ibx_math_is_fft(c->f->number) && i < c->f->count; i++)
        if (c->f->arguments[i].kind == IBX_MATH_OUTPUT && !c->values[i].p)
            return false;
    return true;
}

static int request(struct call *c)
{
    struct extension_request e;
    uint8_t usual[IBX_MATH_OUT], *more = NULL, *out = usual;
    uint64_t since = 0;
    int code;
    e.call = c->f->name;
    e.body = ibx_writer_of(e.bytes, sizeof(e.bytes));
    e.more = NULL;
    if (!has_places(c) || !reach(c))
        return c->statuses->invalid_value;
    int status = encode(c, &e.body) ? 0 : encode_long(c, &e);
    if (!status && c->out > sizeof(usual) && !(out = more = malloc(c->out)))
        status = c->statuses->no_memory;
    if (status) {
        ibx_frontend_request_free(&e);
        return status;
    }
    e.name = name_of(c);
    memset(out, 0xff, c->out); /* an older back end gives no position of a zero pivot */
    const bool known =
        c->same && ibx_math_answer_known(e.body.data, e.body.length, out, c->out, &since);
    code = 0;
    const bool asked = known || ask(&e, out, c->out, &code);
    if (asked && ibx_math_has_results(c->f->number, code))
        take_results(c, out);
    if (asked && !code)
        note(c);
    if (asked && !code && c->same && !known)
        ibx_math_answer_keep(e.body.data, e.body.length, out, c->out, since);
    free(more);
    ibx_frontend_request_free(&e);
    return asked ? code : pass(c);
}

/* Whether the call may put work into the calling thread's own stream. */
static bool works_in_own(const struct call *c)
{
    if (c->f->use != IBX_MATH_USE_ADDS)
        return false;
    return ibx_math_names_stream(c->f) ? c->values[c->f->count - 1].p == CUDA_STREAM_PER_THREAD
                                       : ibx_math_handle_is_in_own(c->type, c->handle);
}

/* `theirs`: by GVirtuS's function. */
static int make(struct call *c, bool theirs)
{
    const bool own = works_in_own(c);
    if (own)
        ibx_frontend_stream_used(CUDA_STREAM_PER_THREAD);
    const int status = theirs ? pass(c) : request(c);
    if (own)
        ibx_frontend_stream_worked(CUDA_STREAM_PER_THREAD);
    return status;
}

static void find_handle(struct call *c)
{
    for (unsigned i = 0; i < c->f->count; i++) {
        const struct ibx_math_argument *a = &c->f->arguments[i];
        if (a->kind != IBX_MATH_HANDLE && a->kind != IBX_MATH_PLAN)
            continue;
        c->type = (enum ibx_math_type)a->n;
        c->handle =
            a->kind == IBX_MATH_HANDLE ? (uintptr_t)c->values[i].p : (uint32_t)c->values[i].i;
        return;
    }
}

static struct call call_of(unsigned number, const union ibx_math_value *values)
{
    struct call c = {
        .f = ibx_math_find(number), .statuses = ibx_math_statuses_of(number), .values = values};
    find_handle(&c);
    c.same = !ibx_math_is_dnn(number) && ibx_math_answers_are_same(c.f);
    return c;
}

int ibx_frontend_math_now(unsigned number, const union ibx_math_value *values)
{
    struct call c = call_of(number, values);
    return make(&c, false);
}

int ibx_frontend_math_named(unsigned number, const union ibx_math_value *values, bool same)
{
    struct call c = call_of(number, values);
    c.same = same && ibx_math_answers_are_same(c.f);
    return make(&c, false);
}

size_t ibx_frontend_math_body(unsigned number, const union ibx_math_value *values, uint8_t *bytes,
                              size_t room)
{
    struct call c = call_of(number, values);
    struct ibx_writer w = ibx_writer_of(bytes, room);
    return reach(&c) && encode(&c, &w) ? w.length : 0;
}

int ibx_frontend_math_again(const uint8_t *body, size_t n, size_t at, uint64_t handle)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    struct extension_request e;
    int code = 0;
    ibx_get_u64(&r);
    struct call c = {.f = ibx_math_find(ibx_get_u16(&r))};
    e.call = c.f->name;
    e.name = name_of(&c);
    e.body = ibx_writer_of(e.bytes, sizeof(e.bytes));
    e.more = NULL;
    if (!ibx_frontend_request_room(&e, n))
        return ibx_math_statuses_of(c.f->number)->no_memory;
    ibx_put_bytes(&e.body, body, at);
    ibx_put_u64(&e.body, handle);
    ibx_put_bytes(&e.body, body + at + 8, n - at - 8);
    const bool asked = ask(&e, NULL, 0, &code);
    ibx_frontend_request_free(&e);
    return asked ? code : ibx_math_statuses_of(c.f->number)->not_supported;
}

/* What may be NULL when it is destroyed. */
static bool is_nothing(const struct call *c)
{
    switch (c->type) {
    case IBX_MATH_COMM:
    case IBX_MATH_GRAPH:
    case IBX_MATH_IRSINFOS:
    case IBX_MATH_IRSPARAMS:
    case IBX_MATH_REFACTOR:
    case IBX_MATH_SPSOLVER:
    case IBX_MATH_DISTRIBUTION:
    case IBX_MATH_FFT:
    case IBX_MATH_RNG:
    case IBX_MATH_SOLVER:
    case IBX_MATH_LT:
    case IBX_MATH_BLAS:
        return false;
    default:
        return !c->handle;
    }
}

/* The status of a handle that is destroyed and is none, as natively. */
static int status_of_none(const struct call *c)
{
    if (c->type == IBX_MATH_GRAPH && !c->handle)
        return DNN_NULL_POINTER;
    if ((c->type == IBX_MATH_LT && !c->handle) || c->type == IBX_MATH_SPARSE)
        return c->statuses->invalid_value;
    return c->statuses->not_initialized;
}

/* Destroys a handle. What is known of it is dropped before the call: right after it another thread
 * may get the same handle. A reset takes handles at the back end; natively they are then destroyed
 * as before. */
static int end(struct call *c, bool theirs, enum ibx_math_handle is)
{
    if (is_nothing(c))
        return 0;
    const int vector = c->type == IBX_MATH_DNVEC ? ibx_math_vector_type(c->handle) : -1;
    const bool in_own = ibx_math_handle_is_in_own(c->type, c->handle);
    const bool known = ibx_math_handle_end(c->type, c->handle);
    if (vector >= 0)
        ibx_math_vector_ended(c->handle);
    const int status = make(c, theirs);
    if (known && !theirs && status == c->statuses->not_initialized)
        return 0;
    if (status && known)
        ibx_math_handle_set(c->type, c->handle, is);
    if (status && in_own)
        ibx_math_handle_selects(c->type, c->handle, CUDA_STREAM_PER_THREAD);
    if (status && vector >= 0)
        ibx_math_vector_made(c->handle, vector);
    return theirs || status != c->statuses->not_initialized ? status : status_of_none(c);
}

int ibx_frontend_math(unsigned number, const union ibx_math_value *values)
{
    union ibx_math_value own[IBX_MATH_ARGUMENTS];
    enum ibx_math_named named = IBX_MATH_NAMED;
    int status = 0;
    if (ibx_math_is_dnn(number)) {
        named = ibx_math_contents_name(number, values, own, &status);
        values = own;
    }
    if (named == IBX_MATH_CALLED)
        return status;
    struct call c = call_of(number, values);
    c.same = c.same || (named == IBX_MATH_NAMED_SHARED && ibx_math_answers_are_same(c.f));
    const enum ibx_math_handle is = ibx_math_handle_is(c.type, c.handle);
    c.on_device = is == IBX_MATH_ON_DEVICE;
    const bool theirs = is == IBX_MATH_FOREIGN ||
                        (is == IBX_MATH_ON_HOST && c.f->use == IBX_MATH_USE_ADDS) ||
                        (ibx_math_is_lt(number) && !ibx_frontend_lt_is_ours());
    const bool blas = c.type == IBX_MATH_BLAS && c.handle && !theirs;
    if (blas && ibx_math_settings_set(c.handle, number, values, &status)) {
        if (!status)
            note(&c);
        return status;
    }
    if (blas && c.f->use == IBX_MATH_USE_ENDS)
        ibx_math_settings_end(c.handle);
    else if (blas)
        status = ibx_math_settings_use(c.handle);
    if (status)
        return status;
    return c.f->use == IBX_MATH_USE_ENDS ? end(&c, theirs, is) : make(&c, theirs);
}

/* ------------------------------------------------------------------------------- functions */

#define MATH(name, use, ...)                                                                       \
    IBX_UNSANITIZED int name(IBX_EACH(IBX_PARAMETER, __VA_ARGS__))                                 \
    {                                                                                              \
        const union ibx_math_value values[] = {IBX_EACH(IBX_INITIALISER, __VA_ARGS__)};            \
        return ibx_frontend_math(IBX_MATH_##name, values);                                         \
    }
#undef MATH_BY_HAND
#define MATH_BY_HAND(...)
#include "frontend-glue/session/math_blas.def"
#include "frontend-glue/session/math_dnn.def"
#include "frontend-glue/session/math_fft.def"
#include "frontend-glue/session/math_lt.def"
#include "frontend-glue/session/math_rng.def"
#include "frontend-glue/session/math_solver.def"
#include "frontend-glue/session/math_sparse.def"
