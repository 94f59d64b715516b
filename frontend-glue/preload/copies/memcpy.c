/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/preload/copies/copies.h"
#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/host_copies.h"
#include "frontend-glue/preload/streams/streams.h"

#include "common/clock.h"
#include "common/thread.h"

#include <time.h>

#define LONG (32u << 10) /* bytes; shorter copies are made by the calling thread */

#define WAIT_MS       100u        /* how long a copy waits for host functions and words before it */
#define SHORT_WAIT_MS 2u          /* ... if it is short: then a graph costs less than that */
#define QUERY_NS      100000u     /* ... and how often it looks */
#define VAIN          16u         /* streams that a thread has waited for in vain, at most */
#define TAKEN_MOST    (64u << 10) /* bytes of pageable memory that CUDA reads in the call */
#define SHORT_MOST    (64u << 10) /* bytes of a short copy */

/* The direction of the copy. Without a plugin GVirtuS gets the kind that the application passed. */
static int kind_of(const void *to, const void *from, int kind)
{
    return ibx_frontend_plugin() ? ibx_frontend_copy_kind(to, from, kind) : kind;
}

/* G5's front end would copy nothing and return success. */
static bool is_no_kind(int kind)
{
    return ibx_frontend_is_no_kind(kind) && ibx_frontend_plugin();
}

int ibx_frontend_before_host(const void *memory, size_t n, void *stream)
{
    const bool used = ibx_frontend_plugin() && ibx_frontend_host_memory_used(memory, n);
    return used || ibx_frontend_host_functions() ? ibx_frontend_wait_in_order(stream)
                                                 : CUDA_SUCCESS;
}

/* --------------------------------------------------------------------------- through the plugin */

/* A copy as CUDA's calls describe it. One without rows is one row, with pitches of `width`. */
struct rows {
    void *to;
    const void *from;
    size_t to_pitch, from_pitch, width, height;
    int kind;
    bool ours;  /* the host's side is known to be page-locked memory that was allocated here, */
    bool known; /* ... and the device's side to be device memory */
};

static struct ibx_cuda_memcpy3d planes_of(const struct rows *r)
{
    return (struct ibx_cuda_memcpy3d){
        .from = {(void *)(uintptr_t)r->from, r->from_pitch, r->width, r->height},
        .to = {r->to, r->to_pitch, r->width, r->height},
        .extent = {r->width, r->height, 1},
        .kind = r->kind};
}

/* Whether device memory or page-locked memory is shorter than the copy. CUDA says so before it
 * accesses host memory, which is then mostly too short as well, also if the whole copy is within
 * host memory; the back end may say it only later. */
static bool is_short(const struct rows *r)
{
    const bool to_device = r->kind == CUDA_MEMCPY_TO_DEVICE || r->kind == CUDA_MEMCPY_ON_DEVICE;
    const bool from_device = r->kind == CUDA_MEMCPY_FROM_DEVICE || r->kind == CUDA_MEMCPY_ON_DEVICE;
    const size_t to = ibx_frontend_extent(r->to_pitch, r->width, r->height);
    const size_t from = ibx_frontend_extent(r->from_pitch, r->width, r->height);
    return (to_device ? ibx_frontend_goes_beyond((uintptr_t)r->to, to)
                      : ibx_frontend_host_is_short(r->to, to)) ||
           (from_device ? ibx_frontend_goes_beyond((uintptr_t)r->from, from)
                        : ibx_frontend_host_is_short(r->from, from));
}

/* Checks a copy of one row, whose kind is the one that the application has passed, and finds its
 * real kind. */
static int check_row(struct rows *r)
{
    const int kind = r->kind;
    const bool to_device = kind == CUDA_MEMCPY_TO_DEVICE;
    const void *device = to_device ? r->to : r->from, *host = to_device ? r->from : r->to;
    if ((to_device || kind == CUDA_MEMCPY_FROM_DEVICE) && ibx_frontend_plugin() &&
        ibx_frontend_copy_is_plain(device, host, r->width, &r->ours, &r->known))
        return CUDA_SUCCESS;
    r->kind = kind_of(r->to, r->from, kind);
    if (is_no_kind(kind))
        return CUDA_INVALID_DIRECTION;
    return is_short(r) ? CUDA_INVALID_VALUE : CUDA_SUCCESS;
}

/* Rows without gaps on both sides are one contiguous copy. */
static bool is_one_piece(const struct rows *r)
{
    return r->height == 1 || (r->to_pitch == r->width && r->from_pitch == r->width);
}

/* Whether the plugin makes the copy: it is between host and device, and not empty. GVirtuS gets
 * copies with wrong pitches, for which CUDA has an error, and empty ones of a single row. */
static bool is_ours(const struct rows *r)
{
    size_t most = r->to_pitch > r->from_pitch ? r->to_pitch : r->from_pitch, bytes;
    bool plain = r->height == 1 && most == r->width;
    return ibx_frontend_plugin() &&
           (r->kind == CUDA_MEMCPY_TO_DEVICE || r->kind == CUDA_MEMCPY_FROM_DEVICE) && r->width &&
           r->height && r->width <= r->to_pitch && r->width <= r->from_pitch &&
           (plain || (!__builtin_mul_overflow(most, r->height, &bytes) && bytes <= PTRDIFF_MAX));
}

/* Whether all of the host memory is mapped, so that neither another thread nor the back end gets to
 * an unmapped page in the middle of the copy. The kernel is not asked about page-locked memory that
 * was allocated here, because that takes half as long as such a call. */
static bool is_there(const struct rows *r, const struct ibx_frontend_copy *copy)
{
    const size_t n = ibx_frontend_copy_extent(copy);
    if (r->ours || ibx_frontend_host_ours(copy->host, n))
        return true;
    if (ibx_frontend_only_device(copy->host)) /* it is device memory */
        return false;
    return n < LONG || ibx_frontend_all_mapped(copy->host, n);
}

/* Before a copy to the device: a kernel may find addresses in the bytes. */
static void reach_what_is_copied(const struct rows *r)
{
    if (r->kind == CUDA_MEMCPY_TO_DEVICE && is_one_piece(r) && ibx_frontend_host_any())
        ibx_frontend_copied_reach(r->from, r->width * r->height);
}

/* Makes the copy by the plugin: *exit_code is what the call returns. False: GVirtuS has to make it.
 */
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
    /* GVirtuS would dereference the NULL pointer, and a frame cannot hold that length. */
    if (copy.n > PTRDIFF_MAX || !copy.host || !is_there(r, &copy)) {
        *exit_code = ibx_frontend_fail(CUDA_INVALID_VALUE);
        return true;
    }
    reach_what_is_copied(r);
    enum host_memory memory = async ? ibx_frontend_host_memory(copy.host, copy.n) : HOST_PAGEABLE;
    copy.checked = async && !r->known && ibx_frontend_only_host(to_device ? r->to : r->from);
    copy.lasting = memory == HOST_ALLOCATED;
    copy.pinned = memory != HOST_PAGEABLE;
    /* Registered memory that has moved is in memory from allocate(), too. What else has moved with
     * it, or is not registered any more, may change when this call has returned. */
    uint8_t *shared = ibx_registered_shared(copy.host, ibx_frontend_copy_extent(&copy));
    if (shared) {
        copy.registered = copy.host;
        copy.host = shared;
        copy.lasting = copy.pinned;
    }
    ibx_frontend_device_used();
    if (ibx_frontend_forbidden(exit_code))
        return true;
    if (!async)
        ibx_frontend_wait_begins();
    if (ibx_frontend_plugin()->copy(&copy, exit_code))
        return false;
    if (!async)
        *exit_code = ibx_frontend_waited(*exit_code, 0);
    return true;
}

/* --------------------------------------------------------------------------- the calls */

/* Waits for host functions, which may have to write the bytes that are about to be read. In the
 * legacy stream a copy of one byte back, which this copy overwrites anyway, takes fewer requests
 * than an event. */
static int wait_for_functions(const struct rows *r, void *stream)
{
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    uint8_t byte;
    const struct ibx_frontend_copy back = {.device = (uintptr_t)r->to, .host = &byte, .n = 1};
    int rc;
    if (ibx_frontend_forbidden(&rc))
        return rc;
    return (uintptr_t)stream <= 1 && calls && is_ours(r) && !calls->copy(&back, &rc)
               ? rc
               : ibx_frontend_wait_in_order(stream);
}

static bool is_used(struct ibx_host_span span)
{
    return ibx_frontend_host_memory_used((const void *)span.begin, span.end - span.begin);
}

/* Copies that may be under way in the memory, and kernels that can access it, are before this one
 * in the order of its stream. So is all other work in that order: CUDA returns from such a copy
 * when it is over, and the program may go by that. */
int ibx_frontend_before_on_host(const struct ibx_cuda_memcpy3d *copy, void *stream)
{
    int rc;
    if (copy->kind != CUDA_MEMCPY_ON_HOST || !ibx_frontend_plugin())
        return ibx_frontend_host_functions() && ibx_frontend_copy_is_on_host(copy)
                   ? ibx_frontend_wait_in_order(stream)
                   : CUDA_SUCCESS;
    if (ibx_frontend_legacy_refuses(stream, &rc))
        return rc;
    if (!ibx_host_copy_bytes(copy))
        return CUDA_SUCCESS;
    return ibx_frontend_host_functions() || is_used(ibx_host_copy_reads(copy)) ||
                   is_used(ibx_host_copy_writes(copy))
               ? ibx_frontend_wait_in_order(stream)
               : ibx_frontend_wait_for_work(stream);
}

/* Copies within host memory. G5's front end would return the result of its previous request, and
 * would also copy the gaps between rows of equal pitch. */
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

/* Makes the copy by the plugin or, within host memory, here: *rc is the result. False: GVirtuS has
 * to make it (a thread's first copy), which reads at once what goes to the device. `n`: bytes of
 * host memory that it covers. */
static bool answered(const struct rows *r, size_t n, bool async, void *stream, int *rc)
{
    const struct ibx_cuda_memcpy3d copy = planes_of(r);
    if ((*rc = ibx_frontend_before_on_host(&copy, stream)))
        return true;
    if (r->kind == CUDA_MEMCPY_ON_HOST && ibx_frontend_plugin()) {
        *rc = copy_on_host(r);
        return true;
    }
    /* a copy from the device is in the order of the stream */
    if (ibx_frontend_host_functions() && !ibx_frontend_copy_is_on_host(&copy) &&
        r->kind != CUDA_MEMCPY_ON_DEVICE && r->kind != CUDA_MEMCPY_FROM_DEVICE &&
        (*rc = wait_for_functions(r, stream)))
        return true;
    if (copied(r, async, stream, rc))
        return true;
    if (r->kind == CUDA_MEMCPY_TO_DEVICE && ibx_frontend_plugin() &&
        ibx_frontend_host_memory_used(r->from, n))
        *rc = ibx_frontend_wait_in_order(stream);
    return *rc;
}

/* A copy to or from managed memory is made as one within the device, for which CUDA does not wait.
 * If the application called that memory the host's, CUDA does wait. */
static int wait_for_host_side(int rc, int made, int asked)
{
    const bool waits = made == CUDA_MEMCPY_ON_DEVICE && asked != CUDA_MEMCPY_ON_DEVICE &&
                       asked != CUDA_MEMCPY_DEFAULT;
    return rc || !waits ? rc : ibx_frontend_stream_wait(NULL);
}

int cudaMemcpy(void *to, const void *from, size_t n, int kind)
{
    struct rows all = {to, from, n, n, n, 1, kind, false, false};
    int rc = check_row(&all);
    if (rc)
        return ibx_frontend_fail(rc);
    /* The results may come from a library that uses this host's GPU. */
    if (all.kind != CUDA_MEMCPY_TO_DEVICE)
        ibx_frontend_look_for_libraries();
    if (!answered(&all, n, false, NULL, &rc))
        rc = ibx_frontend_passed(CALL_NEXT(cudaMemcpy, to, from, n, all.kind));
    return wait_for_host_side(rc, all.kind, kind);
}

/* Adds the copy to a capture: the stream is being captured, and at least one side is host memory.
 */
static bool captured(const struct rows *r, void *stream, int *rc)
{
    const struct ibx_cuda_memcpy3d copy = planes_of(r);
    if (!ibx_frontend_capturing())
        return false;
    const bool on_host = ibx_frontend_plugin() && r->width && r->width <= r->to_pitch &&
                         r->width <= r->from_pitch && ibx_frontend_copy_is_on_host(&copy);
    if ((!on_host && !is_ours(r)) || !ibx_frontend_captures(stream))
        return false;
    *rc = ibx_frontend_capture_copy(&copy, stream);
    return true;
}

/* Whether CUDA returns from the call before the copy is made, where this library would otherwise
 * wait. *takes: CUDA reads the bytes before it returns. */
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

/* Bytes that CUDA takes in the call are those of the call, so nothing is waited for but what costs
 * less than a graph. */
static unsigned wait_of(const struct rows *r)
{
    return r->width * r->height <= SHORT_MOST ? SHORT_WAIT_MS : WAIT_MS;
}

/* The streams for which the thread has waited in vain, and for how long. */
static _Thread_local struct vain {
    const void *stream;
    unsigned ms; /* 0: none */
} vain[VAIN];

/* NULL: none. */
static struct vain *find_vain(const void *stream)
{
    struct vain *v = vain;
    while (v < vain + VAIN && !(v->ms && v->stream == stream))
        v++;
    return v < vain + VAIN ? v : NULL;
}

/* With 0 it has been waited for: then it has no work. */
static void note_vain(const void *stream, unsigned ms)
{
    static _Thread_local unsigned next;
    struct vain *v = find_vain(stream);
    if (!v && ms)
        v = &vain[next++ % VAIN];
    if (v)
        *v = (struct vain){stream, ms};
}

/* Whether the stream has work that does not end in so many ms, or *rc: an error of that work. It
 * may wait for what the program does after this call. Who has waited for a stream in vain does not
 * wait again, until that has no work. */
static bool goes_on(void *stream, unsigned ms, int *rc)
{
    const uint64_t deadline = ibx_deadline_in_ms(ms);
    const int mode = ibx_frontend_relax();
    *rc = cudaStreamQuery(stream);
    const struct vain *before = find_vain(stream);
    const bool waits = !before || before->ms < ms;
    while (*rc == CUDA_NOT_READY && waits && ibx_now_ns() < deadline) {
        const int cancel = ibx_thread_hold_cancel();
        nanosleep(&(struct timespec){.tv_nsec = QUERY_NS}, NULL);
        ibx_thread_release_cancel(cancel);
        *rc = cudaStreamQuery(stream);
    }
    ibx_frontend_relax_end(mode);
    if (*rc != CUDA_NOT_READY || waits)
        note_vain(stream, *rc == CUDA_NOT_READY ? ms : 0);
    return *rc;
}

/* The copy becomes a graph that is launched in the stream. Page-locked memory is read when the
 * stream gets there. False: there is no graph. */
static bool copied_by_graph(const struct rows *r, bool takes, void *stream, int *rc)
{
    const struct ibx_cuda_memcpy3d copy = planes_of(r);
    reach_what_is_copied(r);
    return ibx_frontend_graph_copy_behind(&copy, takes, stream, rc);
}

/* Whether a graph may make the copy. While a stream is being captured no graph is made. For a copy
 * within host memory CUDA waits, too. */
static bool may_be_graph(const struct rows *r)
{
    const struct ibx_cuda_memcpy3d copy = planes_of(r);
    return !ibx_frontend_capturing() && is_ours(r) && !ibx_frontend_copy_is_on_host(&copy);
}

/* The stream is in a host function, or in a wait for a word, which may wait for what the program
 * does after this call, so the call must not wait. An event may have the stream wait for a function
 * in another one, which only the back end knows. */
static bool copied_behind_wait(const struct rows *r, void *stream, int *rc)
{
    bool takes;
    if ((!ibx_frontend_host_functions() && !ibx_frontend_words_awaited()) || !may_be_graph(r) ||
        !would_wait(r, &takes))
        return false;
    if (!ibx_frontend_host_before(stream, wait_of(r))) {
        if (!goes_on(stream, wait_of(r), rc))
            return false;
        if (*rc != CUDA_NOT_READY)
            return true;
    }
    return copied_by_graph(r, takes, stream, rc);
}

/* GVirtuS reads or writes whole pitches of host memory even if the rows have no bytes. */
static bool is_empty(const struct rows *r)
{
    return !r->width || !r->height;
}

/* A copy of nothing becomes no part of a capture, and is no error in one that is invalid, whatever
 * its kind is. */
static bool is_nothing_in_capture(const struct rows *r, void *stream)
{
    return is_empty(r) && ibx_frontend_plugin() && ibx_frontend_captures(stream);
}

static int copy_in_stream(const struct rows *r, void *stream)
{
    int rc;
    ibx_frontend_stream_used(stream);
    if (!captured(r, stream, &rc) && !copied_behind_wait(r, stream, &rc) &&
        !answered(r, r->width, true, stream, &rc))
        rc = ibx_frontend_passed(
            CALL_NEXT(cudaMemcpyAsync, r->to, r->from, r->width, r->kind, stream));
    ibx_frontend_stream_worked(stream);
    return rc;
}

int cudaMemcpyAsync(void *to, const void *from, size_t n, int kind, void *stream)
{
    struct rows all = {to, from, n, n, n, 1, kind, false, false};
    if (is_nothing_in_capture(&all, stream))
        return CUDA_SUCCESS;
    const int rc = check_row(&all);
    if (rc)
        return ibx_frontend_fail(rc);
    /* An error that the back end would report too late. */
    if (n && (!to || !from) && ibx_frontend_plugin())
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    return copy_in_stream(&all, stream);
}

static size_t extent_of(const struct rows *r)
{
    const size_t most = r->to_pitch > r->from_pitch ? r->to_pitch : r->from_pitch;
    size_t bytes;
    return __builtin_mul_overflow(most, r->height, &bytes) ? SIZE_MAX : bytes;
}

static int copy_rows(const struct rows *r)
{
    int rc;
    if (answered(r, extent_of(r), false, NULL, &rc))
        return rc;
    return ibx_frontend_passed(CALL_NEXT(cudaMemcpy2D, r->to, r->to_pitch, r->from, r->from_pitch,
                                         r->width, r->height, r->kind));
}

/* Checks the addresses, the pitches and the kind as CUDA does. A single row needs no pitches. */
static int check_rows(struct rows *r, int kind)
{
    if (r->height == 1 && !r->to_pitch)
        r->to_pitch = r->width;
    if (r->height == 1 && !r->from_pitch)
        r->from_pitch = r->width;
    const bool empty = is_empty(r);
    const bool narrow = !empty && (r->width > r->to_pitch || r->width > r->from_pitch);
    if (!ibx_frontend_plugin())
        return CUDA_SUCCESS;
    if (narrow && r->height > 1)
        return ibx_frontend_fail(CUDA_INVALID_PITCH);
    if (is_no_kind(kind))
        return ibx_frontend_fail(CUDA_INVALID_DIRECTION);
    const bool nowhere = !empty && (!r->to || !r->from);
    return narrow || nowhere || is_short(r) ? ibx_frontend_fail(CUDA_INVALID_VALUE) : CUDA_SUCCESS;
}

int cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                 size_t height, int kind)
{
    const int real = kind_of(to, from, kind);
    struct rows rows = {to, from, to_pitch, from_pitch, width, height, real, false, false};
    const int rc = check_rows(&rows, kind);
    if (!rc && is_empty(&rows) && ibx_frontend_plugin())
        return cudaMemcpy(to, from, 0, kind);
    return rc ? rc : copy_rows(&rows);
}

/* Copies rows within the device in the order of the stream. False: it is no such copy, or the back
 * end does not know the request. */
static bool in_stream(const struct rows *r, void *stream, int *rc)
{
    const struct ibx_cuda_memcpy3d copy = planes_of(r);
    if (!ibx_frontend_plugin() || r->kind != CUDA_MEMCPY_ON_DEVICE || !r->width || !r->height ||
        r->width > r->to_pitch || r->width > r->from_pitch)
        return false;
    *rc = ibx_frontend_before_on_host(&copy, stream);
    return *rc ||
           ibx_frontend_planes_in_stream(&copy, ibx_frontend_copy_of_unknown(&copy), stream, rc);
}

/* The stream has no work any more. Beside captures nothing may run in the legacy stream, which
 * would invalidate those of streams that wait for it: each row is copied in this stream. */
static int copy_rows_behind(const struct rows *r, void *stream)
{
    if (!ibx_frontend_capturing() || r->kind == CUDA_MEMCPY_ON_DEVICE)
        return copy_rows(r);
    int rc = CUDA_SUCCESS;
    for (size_t i = 0; i < r->height && !rc; i++)
        rc = cudaMemcpyAsync((char *)r->to + i * r->to_pitch,
                             (const char *)r->from + i * r->from_pitch, r->width, r->kind, stream);
    return rc ? rc : ibx_frontend_stream_wait(stream);
}

/* Rows with gaps between the device and page-locked memory, for which CUDA does not wait, though
 * the stream may wait for what the program does after this call. */
static bool rows_behind_wait(const struct rows *r, void *stream, int *rc)
{
    const bool to_device = r->kind == CUDA_MEMCPY_TO_DEVICE;
    const void *host = to_device ? r->from : r->to;
    const size_t n =
        ibx_frontend_extent(to_device ? r->from_pitch : r->to_pitch, r->width, r->height);
    if (!may_be_graph(r) || ibx_frontend_host_memory(host, n) == HOST_PAGEABLE ||
        !goes_on(stream, wait_of(r), rc))
        return false;
    return *rc != CUDA_NOT_READY || copied_by_graph(r, false, stream, rc);
}

/* GVirtuS does not have this call. If one side is host memory with gaps between rows, the copy is
 * made after all that is in the stream and, unless both sides are, in the legacy one; and it is
 * complete when the call returns, unless that takes long. */
int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                      size_t height, int kind, void *stream)
{
    const int real = kind_of(to, from, kind);
    struct rows rows = {to, from, to_pitch, from_pitch, width, height, real, false, false};
    if (is_nothing_in_capture(&rows, stream))
        return CUDA_SUCCESS;
    int rc = check_rows(&rows, kind);
    if (rc || captured(&rows, stream, &rc))
        return rc;
    if (is_empty(&rows) && ibx_frontend_plugin())
        return cudaMemcpyAsync(to, from, 0, kind, stream);
    if (is_ours(&rows) && is_one_piece(&rows))
        return cudaMemcpyAsync(to, from, width * height, rows.kind, stream);
    if (in_stream(&rows, stream, &rc))
        return rc;
    if (rows.kind == CUDA_MEMCPY_ON_HOST && ibx_frontend_plugin() &&
        answered(&rows, extent_of(&rows), true, stream, &rc))
        return rc;
    if (ibx_frontend_plugin() && rows_behind_wait(&rows, stream, &rc))
        return rc;
    if (ibx_frontend_plugin()) {
        rc = ibx_frontend_stream_wait(stream);
        if (!rc)
            rc = copy_rows_behind(&rows, stream);
        if (!rc && rows.kind == CUDA_MEMCPY_ON_DEVICE)
            rc = ibx_frontend_stream_wait(NULL);
        return rc;
    }
    return ibx_frontend_passed(
        CALL_NEXT(cudaMemcpy2DAsync, to, to_pitch, from, from_pitch, width, height, kind, stream));
}

/* ----------------------------------------------------------------- copies between devices */

#define NOWHERE (-1)

/* The legacy stream or the thread's own: of whichever device is selected. */
static bool is_of_each_device(const void *stream)
{
    return (uintptr_t)stream <= (uintptr_t)CUDA_STREAM_PER_THREAD;
}

/* The devices share one address space, so their numbers are only checked. */
int ibx_frontend_are_devices(int one, int other)
{
    int count = 0;
    const int rc = CALL_NEXT(cudaGetDeviceCount, &count);
    if (rc)
        return rc;
    return one >= 0 && one < count && other >= 0 && other < count
               ? CUDA_SUCCESS
               : ibx_frontend_fail(CUDA_INVALID_DEVICE);
}

/* The device, other than that one, of memory of a pool, which no other device reaches unless the
 * pool allows it; NOWHERE: it is no such memory. */
static int far_pool(const void *address, int device)
{
    struct range range;
    const bool pooled = ibx_frontend_allocation(address, &range) && range.pooled && !range.reserved;
    return pooled && range.device != device ? range.device : NOWHERE;
}

/* The device on which a copy reaches both; NOWHERE: there is none. */
static int device_of_both(const void *to, const void *from, int here)
{
    const int of_to = far_pool(to, here), of_from = far_pool(from, here);
    const int there = of_to == NOWHERE ? of_from : of_to;
    if (there == NOWHERE)
        return here;
    return far_pool(to, there) == NOWHERE && far_pool(from, there) == NOWHERE ? there : NOWHERE;
}

int ibx_frontend_peers_begin(const void *to, const void *from, const void *stream, int *back)
{
    const int here = ibx_frontend_current_device(), there = device_of_both(to, from, here);
    *back = there == here || there == NOWHERE ? NOWHERE : here;
    if (*back == NOWHERE)
        return CUDA_SUCCESS;
    int rc = is_of_each_device(stream) ? ibx_frontend_wait_in_order((void *)(uintptr_t)stream)
                                       : CUDA_SUCCESS;
    rc = rc ? rc : cudaSetDevice(there);
    if (rc)
        *back = NOWHERE;
    return rc;
}

int ibx_frontend_peers_end(int rc, void *stream, int back)
{
    if (back == NOWHERE)
        return rc;
    if (!rc && is_of_each_device(stream))
        rc = ibx_frontend_stream_wait(stream);
    const int selected = cudaSetDevice(back);
    return rc ? rc : selected;
}

int ibx_frontend_peers_captured(void *to, int to_device, const void *from, int from_device,
                                size_t n, void *stream)
{
    ibx_frontend_stream_used(stream);
    const int rc = CALL_NEXT(cudaMemcpyPeerAsync, to, to_device, from, from_device, n, stream);
    ibx_frontend_stream_worked(stream);
    return rc;
}

bool ibx_frontend_peers_apart(const void *to, const void *from)
{
    return device_of_both(to, from, ibx_frontend_current_device()) == NOWHERE;
}

/* By GVirtuS, whose back end calls CUDA's function of that name. That one needs no access, but does
 * not know page-locked memory of this process. */
static bool has_to_be_gvirtus(const void *to, const void *from)
{
    return ibx_frontend_peers_apart(to, from) && ibx_frontend_only_device(to) &&
           ibx_frontend_only_device(from);
}

static int copy_on_device(void *to, const void *from, size_t n, void *stream, bool waits)
{
    int back;
    int rc = ibx_frontend_peers_begin(to, from, stream, &back);
    if (!rc)
        rc = waits ? cudaMemcpy(to, from, n, CUDA_MEMCPY_ON_DEVICE)
                   : cudaMemcpyAsync(to, from, n, CUDA_MEMCPY_ON_DEVICE, stream);
    return ibx_frontend_peers_end(rc, stream, back);
}

int cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t n)
{
    int rc = ibx_frontend_are_devices(to_device, from_device);
    if (rc || !has_to_be_gvirtus(to, from))
        return rc ? rc : copy_on_device(to, from, n, NULL, true);
    rc = ibx_frontend_peers_captured(to, to_device, from, from_device, n, NULL);
    return rc ? rc : ibx_frontend_stream_wait(NULL);
}

/* cudaMemcpyAsync is answered before the back end has run it. */
int cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t n,
                        void *stream)
{
    const int rc = ibx_frontend_are_devices(to_device, from_device);
    const struct ibx_cuda_memcpy3d copy =
        planes_of(&(struct rows){to, from, n, n, n, 1, CUDA_MEMCPY_ON_DEVICE, false, false});
    if (!rc && ibx_frontend_copy_is_on_host(&copy) && ibx_frontend_captures(stream))
        return ibx_frontend_capture_copy(&copy, stream);
    if (!rc && (ibx_frontend_captures(stream) || has_to_be_gvirtus(to, from)))
        return ibx_frontend_peers_captured(to, to_device, from, from_device, n, stream);
    return rc ? rc : copy_on_device(to, from, n, stream, false);
}
