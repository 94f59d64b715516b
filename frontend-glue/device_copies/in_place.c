/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The path in_place: the GPU reads or writes memory of the client that this process has mapped and
 * pinned, too. */
#include "frontend-glue/device_copies/copies.h"

#include "common/clock.h"
#include "common/log.h"
#include "frontend-glue/clients/unpinned_copies.h"

#include <stdatomic.h>

#define NEXT_US    200u       /* in which another copy often follows one that is not waited for */
#define FILL_BYTES 500u       /* least that an application writes in a microsecond */
#define FILL_MAX   30000u     /* microseconds */
#define LATE_MIN   (1u << 20) /* bytes: parts of long copies, which are sent ahead ... */
#define LATE_MAX   (4u << 20) /* ... longer copies are whole ones */
#define SOON_MS    20u /* for so long work is waited for that keeps memory from being pinned */

/* Pins the allocation of which the client's memory in reach is a part. */
static bool pin(struct gpu_session *x, const struct ibx_reach *reach)
{
    struct ibx_error err;
    err.code = 0; /* to clear the message would take as long as the rest */
    bool pinned = ibx_client_pin(&x->pins, x->cuda, reach->base, reach->length, reach->id,
                                 reach->writable, &err);
    if (err.code && !x->logged_pins)
        ibx_log(IBX_LOG_WARN, "copies for %s go through chunks: %s", ibx_session_path(x->s)->peer,
                err.message);
    x->logged_pins = x->logged_pins || err.code;
    if (err.code)
        ibx_copies_note_refusal(x, err.message);
    return pinned;
}

/* Whether the memory was pinned in parts, and the copy is in several of them. */
static bool in_parts(struct gpu_session *x)
{
    return ibx_client_pin_rest(&x->pins, x->copy.reach.address) < x->copy.bytes;
}

static bool is_whole(const struct copy *c)
{
    return c->gpu.height == 1 && ibx_gpu_copy_bytes(&c->gpu) == c->gpu.width &&
           c->stage != COPY_PART;
}

/* The same for the copy in hand. It is cut if it is in several parts, unless it has rows, or is a
 * part of a reply. */
static bool pin_for_copy(struct gpu_session *x)
{
    return pin(x, &x->copy.reach) && (!in_parts(x) || is_whole(&x->copy));
}

/* Whether the stream has work that does not end by `deadline`. */
static bool is_busy(const struct gpu_session *x, uint64_t deadline)
{
    uint64_t ns = 0;
    int rc;
    while ((rc = x->cuda->stream_query(x->copy.gpu.stream)) == IBX_CUDA_NOT_READY &&
           ibx_now_ns() < deadline)
        ibx_nap(&ns);
    return rc == IBX_CUDA_NOT_READY;
}

/* A copy whose memory is not pinned may not wait for its stream, in which a kernel may wait for the
 * program. False: it need not, or has to; the former also if the memory may be pinned soon. To look
 * at the legacy stream would end captures. */
static bool leave_unpinned(struct gpu_session *x)
{
    struct copy *c = &x->copy;
    const bool writes = c->stage == COPY_TO_CLIENT;
    if (!is_whole(c) || (writes && !c->reach.writable) || ibx_captures_any() ||
        !is_busy(x, x->pins.put_off ? ibx_deadline_in_ms(SOON_MS) : 0))
        return false;
    c->behind = ibx_unpinned_begin(x, c->gpu.stream, c->bytes);
    c->answered = COPY_ANSWERED_EARLY;
    return c->behind;
}

/* Whether this is a part of a long copy from the device, as far as can be seen: then the client has
 * sent the next part, or is about to. */
static bool is_part(struct gpu_session *x)
{
    const struct copy *c = &x->copy;
    return c->settle && c->reach.lasting && c->stage == COPY_TO_CLIENT && c->bytes >= LATE_MIN &&
           c->bytes <= LATE_MAX && !ibx_captures_any() && !in_parts(x) &&
           ibx_staging_may_begin(x->staging, &c->gpu);
}

/* Only on this path can a copy be answered while it, or another one, is under way. */
static bool in_place_able(struct gpu_session *x)
{
    struct copy *c = &x->copy;
    /* What is pinned will be unpinned, which waits for graphs, and these for such a session. */
    if (!c->held || !c->reach.id || x->host_queue || c->alone)
        return false;
    bool async = c->reach.lasting && c->frame.call == IBX_FRAME_MEMCPY_ASYNC;
    bool leave = async && !c->settle;
    bool in_order = async && c->stage == COPY_FROM_CLIENT; /* earlier work may fill that memory */
    c->gpu.changes = in_order;
    if (!leave && !in_order && c->bytes < ibx_copies_way(x)->in_place_min)
        return false;
    bool pinned = pin_for_copy(x);
    if (!pinned && leave && leave_unpinned(x))
        return true;
    if (!pinned && in_order) { /* other paths do not heed the stream's order */
        ibx_cuda_stream_wait(x->cuda, c->gpu.stream);
        pinned = x->pins.put_off && pin_for_copy(x);
    }
    const bool part = pinned && !leave && is_part(x);
    const bool fenced = pinned && (leave || part) &&
                        ibx_client_pin_fence(&x->pins, x->cuda, c->reach.base, c->gpu.stream);
    c->answered = !fenced ? COPY_ANSWERED_AT_END : leave ? COPY_ANSWERED_EARLY : COPY_ANSWERED_LATE;
    return pinned;
}

static int finish(struct gpu_session *x, int rc)
{
    const struct copy *c = &x->copy;
    if (c->answered != COPY_ANSWERED_AT_END && !c->behind && !rc)
        ibx_client_pin_fence_record(&x->pins, x->cuda, c->reach.address, (size_t)c->bytes);
    ibx_remote_release(ibx_session_conn(x->s));
    x->copy.placed = !rc;
    return ibx_copies_outcome(x, rc);
}

static int make(struct gpu_session *x, void *host, const struct ibx_gpu_copy *gpu, bool to_device)
{
    return x->copy.answered == COPY_ANSWERED_EARLY
               ? ibx_staging_leave(x->staging, host, gpu, to_device)
               : ibx_staging_straight(x->staging, host, gpu, to_device);
}

/* Makes the copy, or leaves it to its stream, part by part of what is pinned. */
static int make_all(struct gpu_session *x, bool to_device)
{
    struct ibx_gpu_copy part = x->copy.gpu;
    uint8_t *host = x->copy.reach.address;
    uint64_t left = part.width, some = 0;
    unsigned parts = 0;
    int rc = 0;
    if (x->copy.behind)
        return ibx_unpinned_add(x, x->copy.behind, host, &part, to_device);
    if (!in_parts(x))
        return make(x, host, &part, to_device);
    for (; left && !rc; left -= some, part.device += some, host += some, parts++) {
        some = ibx_client_pin_rest(&x->pins, host);
        some = some && some < left ? some : left;
        part.width = part.host_pitch = part.device_pitch = some;
        rc = make(x, host, &part, to_device);
    }
    if (rc && parts > 1) /* no fence is behind those before */
        ibx_cuda_stream_wait(x->cuda, part.stream);
    return rc;
}

static int in_place_to_device(struct gpu_session *x)
{
    const int rc = finish(x, make_all(x, true));
    if (x->copy.answered == COPY_ANSWERED_EARLY)
        ibx_expect(ibx_session_conn(x->s), NEXT_US);
    return rc;
}

static int in_place_to_client(struct gpu_session *x)
{
    if (x->copy.answered != COPY_ANSWERED_LATE)
        return finish(x, make_all(x, false));
    return finish(x, ibx_staging_begin_straight(x->staging, x->copy.reach.address, &x->copy.gpu,
                                                &x->copy.begun));
}

static int in_place_part(struct gpu_session *x, size_t n)
{
    int rc = ibx_staging_deliver_straight(x->staging, x->copy.reach.address, n);
    ibx_remote_release(ibx_session_conn(x->s));
    return rc > 0 ? ibx_copies_broke_off(x, rc) : rc;
}

const struct copy_path ibx_path_in_place = {
    .holds = true,
    .able = in_place_able,
    .to_device = in_place_to_device,
    .to_client = in_place_to_client,
    .part = in_place_part,
};

/* ------------------------------------------------------------------------ before copies */

/* Has the context of the thread's device current. If the thread has none yet, pushes one for a
 * while: the client's first call may be one for page-locked memory, which makes the context
 * natively, too. The first context that is made for a device here is kept. */
static bool context_enter(struct gpu_session *x, bool *pushed, int *device)
{
    static atomic_uint kept; /* one bit for each device */
    const struct ibx_cuda *cuda = x->cuda;
    void *context = NULL;
    *pushed = false;
    if (!cuda->ctx_get_current(&context) && context)
        return true;
    *device = x->requests.device < 0 ? 0 : x->requests.device;
    if (*device >= 32 || !cuda->device_primary_ctx_retain || !cuda->device_primary_ctx_release ||
        cuda->device_primary_ctx_retain(&context, *device))
        return false;
    *pushed = !cuda->ctx_push_current(context);
    if (!*pushed || atomic_fetch_or(&kept, 1u << *device) & 1u << *device)
        cuda->device_primary_ctx_release(*device);
    return *pushed;
}

/* The first copy follows as soon as the application has filled its memory. A thread that sleeps
 * until then takes 40 to 100 us to wake up. */
static void expect_first(struct gpu_session *x, size_t n)
{
    const size_t us = n / FILL_BYTES;
    ibx_expect(ibx_session_conn(x->s), us < FILL_MAX ? (unsigned)us : FILL_MAX);
}

/* If the memory cannot be pinned, that is not an error: the first copy that needs it pinned tries
 * again. */
int ibx_copies_prepare(void *context, const struct ibx_remote *remote)
{
    struct gpu_session *x = context;
    struct ibx_conn *conn = ibx_session_conn(x->s);
    const struct ibx_choice_way *ways = x->choice.ways;
    struct ibx_reach reach = {0};
    void *popped;
    bool pushed;
    int device;
    if (x->host_queue || ibx_session_posts_pending(x->s) || !ibx_back_end_have_cuda(x) ||
        !context_enter(x, &pushed, &device))
        return 0;
    int mode = ibx_cuda_capture_relax(x->cuda);
    ibx_back_end_handle_resets(x);
    if (!ibx_remote_hold(conn, remote, IBX_ACCESS_REMOTE_READ, &reach)) {
        if (reach.id &&
            (reach.length >= ways[IBX_CHOICE_TO_DEVICE].in_place_min ||
             reach.length >= ways[IBX_CHOICE_FROM_DEVICE].in_place_min) &&
            pin(x, &reach)) {
            if (ibx_copies_staging(x))
                ibx_staging_prepare(x->staging);
            expect_first(x, reach.length);
        }
        ibx_remote_release(conn);
    }
    ibx_cuda_capture_restore(x->cuda, mode);
    if (pushed)
        x->cuda->ctx_pop_current(&popped);
    return 0;
}
