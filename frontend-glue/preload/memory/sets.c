/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* cudaMemset and its like, made without GVirtuS where possible. */
#include "frontend-glue/preload/memory/managed.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/streams/streams.h"

#include <stdatomic.h>

#define BODY      20 /* bytes of cudaMemset's request */
#define READ_ONLY 8u /* cudaHostRegisterReadOnly */

static void put_handle(struct ibx_writer *body, const void *handle)
{
    ibx_put_u64(body, (uintptr_t)handle);
}

static bool set(void *address, int value, size_t n, int *rc)
{
    struct ibx_writer body = ibx_writer_of((uint8_t[BODY]){0}, BODY);
    put_handle(&body, address);
    ibx_put_u32(&body, (uint32_t)value);
    ibx_put_u64(&body, n);
    ibx_frontend_device_used();
    return ibx_frontend_called("cudaMemset", &body, rc);
}

/* Whether there is certainly no memory for n bytes, which is an error that CUDA returns at once.
 * The back end may report it only later, and short page-locked memory is a part of what it has
 * there. */
static bool is_nowhere(const void *address, size_t n)
{
    return (!address && n && ibx_frontend_plugin()) ||
           (ibx_frontend_host_is_short(address, n) && !ibx_frontend_given_out(address));
}

/* Gives the device access if this is page-locked memory. */
static int reach(const void *address)
{
    const uint64_t word = (uintptr_t)address;
    if (!ibx_frontend_host_any() || ibx_frontend_given_out(address))
        return CUDA_SUCCESS;
    const int rc = ibx_frontend_arguments_reach(&word, sizeof(word));
    return rc ? ibx_frontend_fail(rc) : CUDA_SUCCESS;
}

int ibx_frontend_set_check(const struct ibx_cuda_memset *set)
{
    size_t width;
    if (!set || __builtin_mul_overflow(set->width, set->element, &width) ||
        is_nowhere(set->at, ibx_frontend_extent(set->pitch, width, set->height)))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    return reach(set->at);
}

static void fill(const struct ibx_cuda_memset *set, size_t width)
{
    for (size_t row = 0; row < set->height; row++) {
        char *to = (char *)set->at + row * set->pitch;
        for (size_t i = 0; i < width; i += set->element)
            memcpy(to + i, &set->value, set->element); /* of a little-endian host */
    }
}

/* The program may have mapped it for reading alone. */
static bool is_read_only(const void *address)
{
    struct range range;
    return ibx_frontend_host_range(address, &range) && range.flags & READ_ONLY;
}

/* Page-locked memory that the back end cannot reach, such as what the program has registered, is
 * set here, when the work before it in the stream is over. False: it is other memory, or only read,
 * or the stream is captured. */
static bool set_here(const struct ibx_cuda_memset *set, void *stream, int *rc)
{
    const size_t width = set->width * set->element;
    if (!ibx_frontend_host_any() || ibx_frontend_given_out(set->at) ||
        ibx_frontend_host_likely(set->at) || ibx_frontend_captures(stream) ||
        is_read_only(set->at) || (set->height > 1 && set->pitch < width))
        return false;
    *rc = ibx_frontend_wait_in_order(stream);
    if (!*rc)
        fill(set, width);
    return true;
}

static bool set_bytes_here(void *address, int value, size_t n, void *stream, int *rc)
{
    const struct ibx_cuda_memset set = {address, n, (unsigned)value & 0xff, 1, n, 1};
    return set_here(&set, stream, rc);
}

/* The back end does not know the requests below, so GVirtuS makes the calls. */
static atomic_bool gvirtus_sets;

/* Sends an extension request, which runs in the order of its stream. GVirtuS's front end (G4, G5)
 * sends cudaMemset, which runs in the legacy stream, and its back end has no cudaMemset2DAsync.
 * False: GVirtuS may know the call. */
static bool set_in_stream(const struct extension_request *e, int *rc)
{
    ibx_frontend_device_used();
    if (!ibx_frontend_plugin() || atomic_load_explicit(&gvirtus_sets, memory_order_relaxed))
        return false;
    int code;
    if (!ibx_frontend_request_try(e, NULL, 0, &code)) /* not now; another connection may know it */
        return false;
    if (code < 0 || code == CUDA_NOT_SUPPORTED) {
        atomic_store(&gvirtus_sets, true);
        return false;
    }
    *rc = code ? ibx_frontend_fail(code) : CUDA_SUCCESS;
    return true;
}

/* Whether the set may fail, which CUDA says at once: the bytes go beyond an allocation, or it is
 * memory of another device, of a pool perhaps, to which the current one may have no access. */
static bool may_fail(const void *address, size_t n)
{
    struct range range;
    return ibx_frontend_is_short(address, n) ||
           (!ibx_frontend_one_device() && ibx_frontend_allocation(address, &range) &&
            range.device != ibx_frontend_current_device() &&
            (range.pooled || !ibx_frontend_peers_reach(range.device)));
}

/* The same for n bytes. The call waits if it may fail. */
static bool set_within(struct extension_request *e, const void *address, size_t n, int *rc)
{
    if (may_fail(address, n))
        e->name = IBX_EXT_NAME;
    return set_in_stream(e, rc);
}

static void begin_set(struct extension_request *e, const char *call, void *address, int value,
                      size_t n, void *stream)
{
    ibx_frontend_request_begin(e, IBX_EXT_MEMSET, call);
    put_handle(&e->body, address);
    ibx_put_u32(&e->body, (uint32_t)value);
    ibx_put_u64(&e->body, n);
    put_handle(&e->body, stream);
}

static int set_anywhere(void *address, int value, size_t n)
{
    struct extension_request e;
    int rc;
    if (is_nowhere(address, n))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (set_bytes_here(address, value, n, NULL, &rc) || (rc = reach(address)))
        return rc;
    if (may_fail(address, n)) {
        begin_set(&e, "cudaMemset", address, value, n, NULL);
        if (set_within(&e, address, n, &rc))
            return rc;
    }
    return set(address, value, n, &rc) ? rc : CALL_NEXT(cudaMemset, address, value, n);
}

int cudaMemset(void *address, int value, size_t n)
{
    return ibx_frontend_was_set(set_anywhere(address, value, n), address, NULL);
}

int cudaMemsetAsync(void *address, int value, size_t n, void *stream)
{
    struct extension_request e;
    int rc;
    if (is_nowhere(address, n))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (set_bytes_here(address, value, n, stream, &rc) || (rc = reach(address)))
        return rc;
    ibx_frontend_stream_used(stream);
    begin_set(&e, "cudaMemsetAsync", address, value, n, stream);
    if (!ibx_frontend_captured(&e, stream, &rc) && !set_within(&e, address, n, &rc))
        rc = CALL_NEXT(cudaMemsetAsync, address, value, n, stream);
    ibx_frontend_stream_worked(stream);
    return rc;
}

/* Sets rows, in the order of the stream. False: GVirtuS may know the call. */
static bool set_rows(const struct ibx_cuda_memset *set, void *stream, int *rc)
{
    struct extension_request e;
    const size_t n = ibx_frontend_extent(set->pitch, set->width, set->height);
    if (is_nowhere(set->at, n)) {
        *rc = ibx_frontend_fail(CUDA_INVALID_VALUE);
        return true;
    }
    if (set_here(set, stream, rc) || (*rc = reach(set->at)))
        return true;
    ibx_frontend_stream_used(stream);
    ibx_frontend_request_begin(&e, IBX_EXT_MEMSET_2D, "cudaMemset2DAsync");
    put_handle(&e.body, set->at);
    ibx_put_u64(&e.body, set->pitch);
    ibx_put_u32(&e.body, set->value);
    ibx_put_u64(&e.body, set->width);
    ibx_put_u64(&e.body, set->height);
    put_handle(&e.body, stream);
    return ibx_frontend_captured(&e, stream, rc) || set_within(&e, set->at, n, rc);
}

int cudaMemset2D(void *address, size_t pitch, int value, size_t width, size_t height)
{
    const struct ibx_cuda_memset set = {address, pitch, (unsigned)value & 0xff, 1, width, height};
    int rc;
    if (!set_rows(&set, NULL, &rc))
        rc = CALL_NEXT(cudaMemset2D, address, pitch, value, width, height);
    return ibx_frontend_was_set(rc, address, NULL);
}

int cudaMemset2DAsync(void *address, size_t pitch, int value, size_t width, size_t height,
                      void *stream)
{
    const struct ibx_cuda_memset set = {address, pitch, (unsigned)value & 0xff, 1, width, height};
    int rc;
    if (!set_rows(&set, stream, &rc))
        rc = CALL_NEXT(cudaMemset2DAsync, address, pitch, value, width, height, stream);
    ibx_frontend_stream_worked(stream);
    return rc;
}

bool ibx_frontend_set_elements(const struct ibx_cuda_memset *set, void *stream, int *rc)
{
    static atomic_bool unknown; /* the back end does not know the request */
    struct extension_request e;
    int code;
    if (atomic_load_explicit(&unknown, memory_order_relaxed) || !ibx_frontend_plugin())
        return false;
    if (set_here(set, stream, rc) || (*rc = reach(set->at)))
        return true;
    ibx_frontend_stream_used(stream);
    ibx_frontend_request_begin(&e, IBX_EXT_MEMSET_ELEMENTS, "cuMemsetD2D32Async");
    ibx_layout_put(&e.body, IBX_LAYOUT_MEMSET, set);
    put_handle(&e.body, stream);
    ibx_frontend_device_used();
    if (!ibx_frontend_request_try(&e, NULL, 0, &code))
        return false;
    if (code < 0 || code == CUDA_NOT_SUPPORTED) {
        atomic_store(&unknown, true);
        return false;
    }
    *rc = code ? ibx_frontend_fail(code) : CUDA_SUCCESS;
    ibx_frontend_stream_worked(stream);
    return true;
}
