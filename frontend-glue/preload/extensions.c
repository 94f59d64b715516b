/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Extension requests (session/extensions.h), for calls that GVirtuS lacks or makes wrongly:
 * what all of them share, and those about streams and limits. With a back end that does not know a
 * request the call returns cudaErrorNotSupported.
 */
#include "frontend-glue/preload/preload.h"

#include "common/log.h"

#include <stdlib.h>

#define UNKNOWN (-1) /* the exit code of GVirtuS's back end for an unknown routine */

void ibx_frontend_request_begin(struct extension_request *e, enum ibx_extension number,
                                const char *call)
{
    const bool alone = number == IBX_EXT_HOST_ASK || number == IBX_EXT_STREAM_WAIT;
    const bool enqueues = number == IBX_EXT_MEMSET || number == IBX_EXT_MEMSET_2D ||
                          number == IBX_EXT_MEMSET_ELEMENTS || number == IBX_EXT_MEMCPY_3D_ASYNC ||
                          number == IBX_EXT_STREAM_VALUE || number == IBX_EXT_LAUNCH_QUEUED;
    e->name = alone ? IBX_EXT_WORK : enqueues ? IBX_EXT_QUEUE : IBX_EXT_NAME;
    e->call = call;
    e->body = ibx_writer_of(e->bytes, sizeof(e->bytes));
    e->more = NULL;
    ibx_put_u16(&e->body, (uint16_t)number);
}

void ibx_frontend_node_begin(struct extension_request *e, enum ibx_extension number,
                             const char *call, const void *exec, const void *node)
{
    ibx_frontend_request_begin(e, number, call);
    ibx_put_u64(&e->body, (uintptr_t)exec);
    ibx_put_u64(&e->body, (uintptr_t)node);
}

bool ibx_frontend_request_room(struct extension_request *e, size_t n)
{
    if (n <= e->body.capacity - e->body.length)
        return true;
    const size_t capacity = e->body.length + n;
    uint8_t *more = malloc(capacity);
    if (!more)
        return false;
    memcpy(more, e->body.data, e->body.length);
    free(e->more);
    e->more = e->body.data = more;
    e->body.capacity = capacity;
    return true;
}

void ibx_frontend_request_free(struct extension_request *e)
{
    free(e->more);
    e->more = NULL;
}

/* The cheapest call of GVirtuS. */
void ibx_frontend_connect(void)
{
    int device;
    CALL_NEXT(cudaGetDevice, &device);
}

static _Thread_local uint64_t attempt; /* 0: a thread of the program */

__attribute__((visibility("default"))) uint64_t ibx_frontend_attempt(void)
{
    return attempt;
}

bool ibx_frontend_connect_own(void)
{
    static _Atomic uint64_t last;
    int device;
    attempt = atomic_fetch_add(&last, 1) + 1;
    return CALL_NEXT(cudaGetDevice, &device) != CUDA_UNKNOWN;
}

static int not_supported(const struct extension_request *e, const char *why)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN, "%s returns cudaErrorNotSupported: %s", e->call, why);
    return ibx_frontend_fail(CUDA_NOT_SUPPORTED);
}

bool ibx_frontend_request_try(const struct extension_request *e, void *out, size_t n, int *code)
{
    const struct ibx_frontend_request request = {
        .name = e->name, .body = e->body.data, .n = e->body.length, .out = out, .out_n = n};
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    if (e->body.failed)
        return false;
    if (ibx_frontend_forbidden(code))
        return true;
    if (calls && !calls->call(&request, code))
        return true;
    ibx_frontend_connect();
    calls = ibx_frontend_plugin();
    return calls && !calls->call(&request, code);
}

bool ibx_frontend_request_known(const struct extension_request *e, void *out, size_t n, int *rc)
{
    int code;
    if (!ibx_frontend_request_try(e, out, n, &code) || code == UNKNOWN ||
        code == CUDA_NOT_SUPPORTED)
        return false;
    *rc = code ? ibx_frontend_fail(code) : CUDA_SUCCESS;
    return true;
}

int ibx_frontend_request_make(const struct extension_request *e, void *out, size_t n)
{
    int code;
    if (!ibx_frontend_request_try(e, out, n, &code))
        return not_supported(e, e->body.failed
                                    ? "its arguments do not fit into one message"
                                    : "it needs the rdma communicator, with rdma.pipeline on");
    if (code == UNKNOWN)
        return not_supported(e, "the back end's communicator is older than libibx-frontend.so, or "
                                "has rdma.gpu : off");
    return code ? ibx_frontend_fail(code) : CUDA_SUCCESS;
}

int ibx_frontend_request_ask(const struct extension_request *e, uint64_t *answer)
{
    uint8_t bytes[8];
    int rc = ibx_frontend_request_make(e, bytes, sizeof(bytes));
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    if (!rc)
        *answer = ibx_get_u64(&r);
    return rc;
}

/* ------------------------------------------------------------------------- streams, limits */

int cudaStreamSetAttribute(void *stream, int attribute, const void *value)
{
    struct extension_request e;
    ibx_frontend_request_begin(&e, IBX_EXT_STREAM_SET_ATTRIBUTE, "cudaStreamSetAttribute");
    if (!value)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    ibx_put_u64(&e.body, (uintptr_t)stream);
    ibx_put_u32(&e.body, (uint32_t)attribute);
    ibx_put_bytes(&e.body, value, IBX_EXT_ATTRIBUTE);
    return ibx_frontend_request_make(&e, NULL, 0);
}

int cudaStreamGetAttribute(void *stream, int attribute, void *value)
{
    struct extension_request e;
    ibx_frontend_request_begin(&e, IBX_EXT_STREAM_GET_ATTRIBUTE, "cudaStreamGetAttribute");
    if (!value)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    ibx_put_u64(&e.body, (uintptr_t)stream);
    ibx_put_u32(&e.body, (uint32_t)attribute);
    return ibx_frontend_request_make(&e, value, IBX_EXT_ATTRIBUTE);
}

static int stream_number(struct extension_request *e, const void *stream, int *number)
{
    uint64_t answer = 0;
    ibx_put_u64(&e->body, (uintptr_t)stream);
    int rc = number ? ibx_frontend_request_ask(e, &answer) : ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (!rc)
        *number = (int)(uint32_t)answer;
    return rc;
}

int cudaStreamGetFlags(void *stream, unsigned *flags)
{
    struct extension_request e;
    ibx_frontend_request_begin(&e, IBX_EXT_STREAM_FLAGS, "cudaStreamGetFlags");
    return stream_number(&e, stream, (int *)flags);
}

int cudaStreamGetPriority(void *stream, int *priority)
{
    struct extension_request e;
    ibx_frontend_request_begin(&e, IBX_EXT_STREAM_PRIORITY, "cudaStreamGetPriority");
    return stream_number(&e, stream, priority);
}

int cudaCtxResetPersistingL2Cache(void)
{
    struct extension_request e;
    ibx_frontend_request_begin(&e, IBX_EXT_RESET_L2, "cudaCtxResetPersistingL2Cache");
    return ibx_frontend_request_make(&e, NULL, 0);
}

int cudaDeviceGetLimit(size_t *value, int limit)
{
    struct extension_request e;
    uint64_t answer = 0;
    ibx_frontend_request_begin(&e, IBX_EXT_GET_LIMIT, "cudaDeviceGetLimit");
    ibx_put_u32(&e.body, (uint32_t)limit);
    int rc = value ? ibx_frontend_request_ask(&e, &answer) : ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (!rc)
        *value = answer;
    return rc;
}
