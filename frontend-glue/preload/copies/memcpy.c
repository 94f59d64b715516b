/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/preload/copies/copies.h"
#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include <sys/mman.h>
#include <unistd.h>

#define NO_TIMING 2u          /* cudaEventDisableTiming */
#define LONG      (32u << 10) /* bytes; shorter copies are read or written by the caller's thread */

#define FUNCTION_MS 100u        /* that a copy waits for a function before it */
#define TAKEN_MOST  (64u << 10) /* bytes of pageable memory that CUDA takes in the call */

/* Without a plugin GVirtuS gets the kind that the application has passed. */
static int kind_of(const void *to, const void *from, int kind)
{
    return ibx_frontend_plugin() ? ibx_frontend_copy_kind(to, from, kind) : kind;
}

/* GVirtuS's front end (G5) copies nothing then, and says that it has. */
static bool is_no_kind(int kind)
{
    return (unsigned)kind > CUDA_MEMCPY_DEFAULT && ibx_frontend_plugin();
}

/* All that the legacy stream comes after: an event there. Streams that it does not block may wait
 * for what this thread does next. A wait for the device would end captures. */
static int wait_for_legacy(void)
{
    void *event = NULL;
    if (ibx_frontend_capturing())
        return cudaStreamSynchronize(NULL);
    if (CALL_NEXT(cudaEventCreateWithFlags, &event, NO_TIMING))
        return cudaDeviceSynchronize();
    int rc = cudaEventRecord(event, NULL);
    if (!rc)
        rc = cudaEventSynchronize(event);
    cudaEventDestroy(event);
    return rc || !ibx_frontend_host_gone() ? rc : ibx_frontend_fail(CUDA_UNKNOWN);
}

/* A copy on the host is made at once. Copies of the stream (NULL: of any, as for the legacy stream)
 * may be under way in that memory, and kernels that reach it: they are waited for. */
static int wait_on_host(const void *to, const void *from, size_t n, int kind, void *stream)
{
    bool on_host = kind == CUDA_MEMCPY_ON_HOST || kind == CUDA_MEMCPY_DEFAULT;
    if (!ibx_frontend_plugin() || !on_host ||
        (!ibx_frontend_host_memory_used(to, n) && !ibx_frontend_host_memory_used(from, n)))
        return CUDA_SUCCESS;
    return stream ? cudaStreamSynchronize(stream) : wait_for_legacy();
}

int ibx_frontend_before_host(const void *memory, size_t n)
{
    const bool used = ibx_frontend_plugin() && ibx_frontend_host_memory_used(memory, n);
    return used || ibx_frontend_host_functions() ? wait_for_legacy() : CUDA_SUCCESS;
}

/* --------------------------------------------------------------------------- through the plugin */

/* A copy as CUDA's calls describe it; a plain one is one row with pitches of `width`. */
struct rows {
    void *to;
    const void *from;
    size_t to_pitch, from_pitch, width, height;
    int kind;
};

/* Without gaps on either side rows are a plain copy. */
static bool is_one_piece(const struct rows *r)
{
    return r->height == 1 || (r->to_pitch == r->width && r->from_pitch == r->width);
}

/* Whether the plugin runs it: it is between host and device, and not empty. CUDA's answer to wrong
 * pitches is left to GVirtuS. */
static bool is_ours(const struct rows *r)
{
    size_t most = r->to_pitch > r->from_pitch ? r->to_pitch : r->from_pitch, bytes;
    bool plain = r->height == 1 && most == r->width;
    return ibx_frontend_plugin() &&
           (r->kind == CUDA_MEMCPY_TO_DEVICE || r->kind == CUDA_MEMCPY_FROM_DEVICE) && r->width &&
           r->height && r->width <= r->to_pitch && r->width <= r->from_pitch &&
           (plain || (!__builtin_mul_overflow(most, r->height, &bytes) && bytes <= PTRDIFF_MAX));
}

/* Whether this process may read it, or write. A kernel before 5.14 does not tell. */
static bool is_permitted(void *at, size_t n, bool writes)
{
    static char own[1];
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const int advice = writes ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
    return !madvise(at, n, advice) || madvise((void *)((uintptr_t)own / page * page), page, advice);
}

/* Whether all of the host's side is mapped. Another thread, or the back end, is not to meet the end
 * of it in the middle of the copy. CUDA refuses lengths that the device's side does not have before
 * it touches the host's, which mostly ends there, too: then it is looked at more closely. The
 * kernel is not asked about page-locked memory that was allocated here: that takes as long as half
 * of such a call. */
static bool is_there(const struct ibx_frontend_copy *copy)
{
    const size_t rows = copy->rows ? copy->rows - 1 : 0, n = ibx_frontend_copy_extent(copy);
    if (ibx_frontend_host_ours(copy->host, n))
        return true;
    if (ibx_frontend_only_device(copy->host)) /* of a wrong kind */
        return false;
    if (n < LONG)
        return true;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)copy->host;
    const size_t before = at % page;
    void *const first = (void *)(at - before);
    if (!ibx_frontend_all_mapped(copy->host, n))
        return false;
    return !ibx_frontend_goes_beyond(copy->device, rows * copy->device_pitch + copy->n) ||
           is_permitted(first, before + n, !copy->to_device);
}

/* False: GVirtuS has to run it. True: *exit_code is what the call returns. */
static bool copied(const struct rows *r, bool async, void *stream, int *exit_code)
{
    bool to_device = r->kind == CUDA_MEMCPY_TO_DEVICE, one_piece = is_one_piece(r);
    if (!is_ours(r))
        return false;
    struct ibx_frontend_copy copy = {
        .to_device = to_device,
        .async = async,
        .device = (uintptr_t)(to_device ? r->to : r->from),
        .host = to_device ? (void *)(uintptr_t)r->from : r->to,
        .n = one_piece ? r->width * r->height : r->width,
        .stream = (uintptr_t)stream,
        .rows = one_piece ? 0 : r->height,
        .host_pitch = one_piece   ? 0
                      : to_device ? r->from_pitch
                                  : r->to_pitch,
        .device_pitch = one_piece   ? 0
                        : to_device ? r->to_pitch
                                    : r->from_pitch,
    };
    /* A frame could not hold that length, and GVirtuS would use the null pointer. */
    if (copy.n > PTRDIFF_MAX || !copy.host || !is_there(&copy)) {
        *exit_code = ibx_frontend_fail(CUDA_INVALID_VALUE);
        return true;
    }
    enum host_memory memory = async ? ibx_frontend_host_memory(copy.host, copy.n) : HOST_PAGEABLE;
    copy.lasting = memory == HOST_ALLOCATED;
    copy.pinned = memory != HOST_PAGEABLE;
    ibx_frontend_device_used();
    if (ibx_frontend_forbidden(exit_code))
        return true;
    if (ibx_frontend_plugin()->copy(&copy, exit_code))
        return false;
    if (!async)
        *exit_code = ibx_frontend_waited(*exit_code, 0);
    return true;
}

/* --------------------------------------------------------------------------- the calls */

/* Functions of the application's may have to write bytes that are read here. CUDA does not say that
 * a wait for the legacy stream is one for those that it waits for; a copy from there is, for one
 * byte that this copy is about to overwrite. */
static int wait_for_functions(const struct rows *r, void *stream)
{
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    uint8_t byte;
    const struct ibx_frontend_copy back = {.device = (uintptr_t)r->to, .host = &byte, .n = 1};
    int rc;
    if (ibx_frontend_forbidden(&rc))
        return rc;
    if ((uintptr_t)stream > 1)
        return cudaStreamSynchronize(stream);
    return calls && is_ours(r) && !calls->copy(&back, &rc) ? rc : wait_for_legacy();
}

/* Both sides are the host's. GVirtuS's front end (G5) would return what its request before that has
 * returned, and copy the gaps between rows whose pitches are the same. */
static int copy_on_host(const struct rows *r)
{
    if (!r->width || !r->height)
        return CUDA_SUCCESS;
    if (!r->to || !r->from)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    for (size_t i = 0; i < r->height; i++)
        memmove((char *)r->to + i * r->to_pitch, (const char *)r->from + i * r->from_pitch,
                r->width);
    return CUDA_SUCCESS;
}

/* False: GVirtuS has to run it, over `n` bytes of the host if it is there. True: *rc is the answer.
 */
static bool answered(const struct rows *r, size_t n, bool async, void *stream, int *rc)
{
    /* What comes from the device does so in the stream's order. */
    if (ibx_frontend_host_functions() && r->kind != CUDA_MEMCPY_ON_DEVICE &&
        r->kind != CUDA_MEMCPY_FROM_DEVICE && (*rc = wait_for_functions(r, stream)))
        return true;
    if (copied(r, async, stream, rc))
        return true;
    *rc = wait_on_host(r->to, r->from, n, r->kind, stream);
    if (*rc || r->kind != CUDA_MEMCPY_ON_HOST || !ibx_frontend_plugin())
        return *rc;
    *rc = copy_on_host(r);
    return true;
}

/* A copy to or from managed memory is made on the device, which CUDA does not wait for; of one that
 * the application takes for the host's it does. */
static int wait_for_host_side(int rc, int made, int asked)
{
    const bool waits = made == CUDA_MEMCPY_ON_DEVICE && asked != CUDA_MEMCPY_ON_DEVICE &&
                       asked != CUDA_MEMCPY_DEFAULT;
    return rc || !waits ? rc : cudaStreamSynchronize(NULL);
}

int cudaMemcpy(void *to, const void *from, size_t n, int kind)
{
    struct rows all = {to, from, n, n, n, 1, kind_of(to, from, kind)};
    int rc;
    if (is_no_kind(kind))
        return ibx_frontend_fail(CUDA_INVALID_DIRECTION);
    if (all.kind != CUDA_MEMCPY_TO_DEVICE) /* what comes back may be such a library's */
        ibx_frontend_look_for_libraries();
    if (!answered(&all, n, false, NULL, &rc))
        rc = ibx_frontend_passed(CALL_NEXT(cudaMemcpy, to, from, n, all.kind));
    return wait_for_host_side(rc, all.kind, kind);
}

static struct ibx_cuda_memcpy3d planes_of(const struct rows *r)
{
    return (struct ibx_cuda_memcpy3d){
        .from = {(void *)(uintptr_t)r->from, r->from_pitch, r->width, r->height},
        .to = {r->to, r->to_pitch, r->width, r->height},
        .extent = {r->width, r->height, 1},
        .kind = r->kind};
}

/* One side is the host's, or both, and the stream is being captured. */
static bool captured(const struct rows *r, void *stream, int *rc)
{
    const struct ibx_cuda_memcpy3d copy = planes_of(r);
    const bool on_host = r->kind == CUDA_MEMCPY_ON_HOST && ibx_frontend_plugin() && r->width &&
                         r->width <= r->to_pitch && r->width <= r->from_pitch;
    if ((!on_host && !is_ours(r)) || !ibx_frontend_captures(stream))
        return false;
    *rc = ibx_frontend_capture_copy(&copy, stream);
    return true;
}

/* Whether natively the call returns before it is made, and here otherwise does not; *takes: since
 * it takes the bytes. */
static bool would_wait(const struct rows *r, bool *takes)
{
    const bool to_device = r->kind == CUDA_MEMCPY_TO_DEVICE;
    *takes = false;
    if (!to_device && r->kind != CUDA_MEMCPY_FROM_DEVICE)
        return false;
    switch (ibx_frontend_host_memory(to_device ? r->from : r->to, r->width)) {
    case HOST_PAGEABLE:
        *takes = to_device && r->width <= TAKEN_MOST;
        return *takes;
    case HOST_ALLOCATED:
        return to_device || !ibx_frontend_knows(IBX_FRONTEND_LEAVES, r->width, NULL);
    default:
        return true;
    }
}

/* A function in that stream may be for what comes behind the call, which does not wait then. The
 * bytes of page-locked memory are those that it has when the stream gets there. Beside captures no
 * graph is made. */
static bool copied_behind_function(const struct rows *r, void *stream, int *rc)
{
    const struct ibx_cuda_memcpy3d copy = planes_of(r);
    bool takes;
    return ibx_frontend_host_functions() && !ibx_frontend_capturing() && is_ours(r) &&
           would_wait(r, &takes) && ibx_frontend_host_in_stream(stream, FUNCTION_MS) &&
           ibx_frontend_graph_copy_behind(&copy, takes, stream, rc);
}

int cudaMemcpyAsync(void *to, const void *from, size_t n, int kind, void *stream)
{
    struct rows all = {to, from, n, n, n, 1, kind_of(to, from, kind)};
    int rc;
    if (is_no_kind(kind))
        return ibx_frontend_fail(CUDA_INVALID_DIRECTION);
    if (n && (!to || !from) && ibx_frontend_plugin()) /* the back end may be asked later */
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    ibx_frontend_stream_used(stream);
    if (captured(&all, stream, &rc) || copied_behind_function(&all, stream, &rc))
        return rc;
    if (answered(&all, n, true, stream, &rc))
        return rc;
    return ibx_frontend_passed(CALL_NEXT(cudaMemcpyAsync, to, from, n, all.kind, stream));
}

static int copy_rows(const struct rows *r)
{
    size_t most = r->to_pitch > r->from_pitch ? r->to_pitch : r->from_pitch, bytes;
    int rc;
    if (__builtin_mul_overflow(most, r->height, &bytes))
        bytes = SIZE_MAX;
    if (answered(r, bytes, false, NULL, &rc))
        return rc;
    return ibx_frontend_passed(CALL_NEXT(cudaMemcpy2D, r->to, r->to_pitch, r->from, r->from_pitch,
                                         r->width, r->height, r->kind));
}

/* What CUDA has against them. A row alone needs no pitches. */
static int check_rows(struct rows *r, int kind)
{
    if (r->height == 1 && !r->to_pitch)
        r->to_pitch = r->width;
    if (r->height == 1 && !r->from_pitch)
        r->from_pitch = r->width;
    const bool empty = !r->width || !r->height;
    const bool narrow = !empty && (r->width > r->to_pitch || r->width > r->from_pitch);
    if (!ibx_frontend_plugin())
        return CUDA_SUCCESS;
    if (narrow && r->height > 1)
        return ibx_frontend_fail(CUDA_INVALID_PITCH);
    if (is_no_kind(kind))
        return ibx_frontend_fail(CUDA_INVALID_DIRECTION);
    return narrow ? ibx_frontend_fail(CUDA_INVALID_VALUE) : CUDA_SUCCESS;
}

int cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                 size_t height, int kind)
{
    struct rows rows = {to, from, to_pitch, from_pitch, width, height, kind_of(to, from, kind)};
    const int rc = check_rows(&rows, kind);
    return rc ? rc : copy_rows(&rows);
}

/* Rows with gaps within the device, in the order of the stream. False: they are not, or the back
 * end does not know such a request. */
static bool in_stream(const struct rows *r, void *stream, int *rc)
{
    const struct ibx_cuda_memcpy3d copy = planes_of(r);
    return ibx_frontend_plugin() && r->kind == CUDA_MEMCPY_ON_DEVICE && r->width && r->height &&
           r->width <= r->to_pitch && r->width <= r->from_pitch &&
           ibx_frontend_planes_in_stream(&copy, stream, rc);
}

/* GVirtuS has none. Rows with gaps that one side has on the host come after all that is in the
 * stream, and have been copied when the call returns. */
int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                      size_t height, int kind, void *stream)
{
    struct rows rows = {to, from, to_pitch, from_pitch, width, height, kind_of(to, from, kind)};
    int rc = check_rows(&rows, kind);
    if (rc || captured(&rows, stream, &rc))
        return rc;
    if (is_ours(&rows) && is_one_piece(&rows))
        return cudaMemcpyAsync(to, from, width * height, rows.kind, stream);
    if (in_stream(&rows, stream, &rc))
        return rc;
    if (ibx_frontend_plugin()) {
        rc = cudaStreamSynchronize(stream);
        if (!rc)
            rc = copy_rows(&rows);
        if (!rc && rows.kind == CUDA_MEMCPY_ON_DEVICE)
            rc = cudaStreamSynchronize(NULL);
        return rc;
    }
    return ibx_frontend_passed(
        CALL_NEXT(cudaMemcpy2DAsync, to, to_pitch, from, from_pitch, width, height, kind, stream));
}

/* Each device has its own addresses. */
int cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t n)
{
    int count = 0;
    const int rc = CALL_NEXT(cudaGetDeviceCount, &count);
    if (rc)
        return rc;
    if (to_device < 0 || to_device >= count || from_device < 0 || from_device >= count)
        return ibx_frontend_fail(CUDA_INVALID_DEVICE);
    return cudaMemcpy(to, from, n, CUDA_MEMCPY_ON_DEVICE);
}
