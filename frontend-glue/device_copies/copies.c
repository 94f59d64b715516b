/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/device_copies/copies_internal.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of a client's memory that are pinned here at most. They are the client's own: its
 * allocations in the shared region. */
#define PINS_MAX (4ull << 30)

void ibx_copies_init(struct copies *x, const struct ibx_gpu_options *options)
{
    *x = (struct copies){.options = *options,
                         .choice = ibx_choice_default,
                         .chosen_for = -1,
                         .pins = {.bytes_max = PINS_MAX}};
    ibx_request_watch_init(&x->requests);
    ibx_copies_resets_begin(x);
}

void ibx_copies_release(struct ibx_session *s)
{
    struct copies *x = &s->copies;
    for (unsigned i = 0; i < x->region_count; i++)
        ibx_mr_deregister(x->regions[i]);
    ibx_mr_deregister(x->windows);
    ibx_gpu_spans_drop(&x->spans, 0);
    ibx_copies_handle_resets(x);
    ibx_client_pins_drop(&x->pins, x->cuda); /* before the connection takes their mapping away */
    free(x->regions);
    x->regions = NULL;
    x->region_count = 0;
    x->windows = NULL;
}

void ibx_copies_fini(struct ibx_session *s)
{
    struct copies *x = &s->copies;
    if (x->ran)
        ibx_log(IBX_LOG_INFO,
                "%lu copies were run for %s: %lu by the fabric in GPU memory, %lu in memory that "
                "both map, %lu by several threads, %lu straight from or into messages, the others "
                "by chunks",
                x->ran, s->path.peer, x->by_fabric, x->in_place, x->by_crew, x->inlined);
    ibx_copies_handle_resets(x);
    ibx_staging_destroy(x->staging);
    ibx_copy_threads_destroy(x->crew);
    x->crew = NULL;
    free(x->held);
    x->staging = NULL;
    x->held = NULL;
    x->held_size = 0;
    x->ran = x->inlined = x->in_place = x->by_crew = x->by_fabric = 0;
    x->options.mode = IBX_GPU_OFF;
}

/* ------------------------------------------------------------------------ watching */

void ibx_copies_note_read(struct ibx_session *s, const void *bytes, size_t n)
{
    struct copies *x = &s->copies;
    unsigned resets = x->requests.resets;
    ibx_request_note_read(&x->requests, bytes, n);
    /* The handler has not begun yet: what it takes away is let go before. */
    if (x->requests.resets != resets)
        ibx_copies_lose_context(x);
    if (x->requests.resets)
        ibx_gpu_spans_drop(&x->spans, 0);
    else if (x->requests.freed)
        ibx_gpu_spans_drop(&x->spans, x->requests.freed);
    x->requests.freed = 0;
}

void ibx_copies_note_write(struct ibx_session *s, const void *bytes, size_t n)
{
    if (!s->copies.answering)
        ibx_reply_note_write(&s->copies.replies, bytes, n);
}

void ibx_copies_note_sync(struct ibx_session *s)
{
    struct copies *x = &s->copies;
    if (x->answering)
        return;
    ibx_reply_note_sync(&x->replies);
    if (x->requests.resets)
        ibx_copies_lost_context(x, x->replies.exit_code);
    x->requests.resets = 0;
}

/* ------------------------------------------------------------------------ replies */

int ibx_copies_write_head(struct ibx_session *s, uint64_t began, uint64_t out)
{
    uint8_t head[IBX_REPLY_HEAD_MAX];
    double seconds = (double)(ibx_now_ns() - began) / 1e9;
    size_t n = ibx_reply_head(s->copies.replies.shape, 0, seconds, out, head);
    ssize_t rc = ibx_session_write(s, head, n);
    return rc < 0 ? (int)rc : 0;
}

int ibx_copies_tell_placed(struct ibx_session *s)
{
    uint8_t segment = SEGMENT_PLACED;
    s->copies.placed = false;
    return ibx_session_add_segment(s, &segment, 1);
}

int ibx_copies_answer(struct ibx_session *s, uint64_t began, const void *out, size_t n)
{
    int rc = ibx_copies_write_head(s, began, n);
    ssize_t wrote = !rc && n ? ibx_session_write(s, out, n) : 0;
    if (rc || wrote < 0)
        return rc ? rc : (int)wrote;
    return ibx_session_sync(s);
}

/* ------------------------------------------------------------------------- the whole */

/* Asynchronous towards the host, as in CUDA. */
static int run_on_device(struct copies *x)
{
    const struct ibx_frame *f = &x->frame;
    void *stream = f->stream ? (void *)(uintptr_t)f->stream : IBX_CUDA_STREAM_LEGACY;
    if (f->height == 1)
        return ibx_copies_outcome(x,
                                  x->cuda->memcpy_async(f->dst, f->src, (size_t)f->width, stream));
    struct ibx_cuda_memcpy2d rows = {
        .src_type = IBX_CUDA_MEMORY_DEVICE,
        .src_device = f->src,
        .src_pitch = (size_t)f->spitch,
        .dst_type = IBX_CUDA_MEMORY_DEVICE,
        .dst_device = f->dst,
        .dst_pitch = (size_t)f->dpitch,
        .width = (size_t)f->width,
        .height = (size_t)f->height,
    };
    return ibx_copies_outcome(x, x->cuda->memcpy_2d_async(&rows, stream));
}

/* DONE: run, taken out of the stream and answered. */
static int run(struct ibx_session *s, const struct request *q)
{
    struct copies *x = &s->copies;
    uint64_t began = ibx_now_ns();
    int rc;
    x->placed = false;
    if (q->body) {
        if (!ibx_copies_parse(q, &x->frame) || !ibx_copies_sound(x, &x->frame))
            return PASS;
        x->payload = q->body + x->frame.payload_at;
        x->arrived = 0;
        if (x->frame.kind == IBX_FRAME_D2H)
            return ibx_copies_run_from_device(s, q, began);
        rc = x->frame.kind == IBX_FRAME_H2D ? ibx_copies_run_from_message(s) : run_on_device(x);
    } else {
        rc = ibx_copies_run_exposed(s, q);
    }
    if (rc != DONE)
        return rc;
    ibx_copies_consume(s, q);
    rc = x->placed ? ibx_copies_tell_placed(s) : 0;
    if (!rc)
        rc = ibx_copies_answer(s, began, NULL, 0);
    return rc ? rc : DONE;
}

/* Captures, other clients' and this one's, neither stand in the way nor come to harm, as by CUDA's
 * own copies, if the captured stream does not wait for the legacy one; what would be a part of one
 * is not run here. GVirtuS's handlers,
 * the client's own cudaThreadExchangeStreamCaptureMode among them, find the thread as it was. */
static int run_aside(struct ibx_session *s, const struct request *q)
{
    struct copies *x = &s->copies;
    int mode = ibx_cuda_capture_relax(x->cuda);
    x->answering = true;
    int rc = run(s, q);
    x->answering = false;
    /* Copies before it may be under way still, in memory that the client uses anew after this one's
     * answer, for which GVirtuS's handler does not wait. */
    if (rc == PASS && s->settle) {
        ibx_copies_handle_resets(x);
        ibx_client_pins_wait(&x->pins, x->cuda);
    }
    ibx_cuda_capture_restore(x->cuda, mode);
    return rc;
}

int ibx_copies_run(struct ibx_session *s)
{
    struct copies *x = &s->copies;
    enum ibx_reply_shape shape = x->replies.shape;
    bool known = shape == IBX_REPLY_PLAIN || shape == IBX_REPLY_TIMED;
    int rc = DONE;
    while (rc == DONE && x->options.mode != IBX_GPU_OFF && known && !s->out_length &&
           ibx_request_begins(&x->requests)) {
        struct request q;
        rc = ibx_copies_find_request(s, &q);
        if (rc <= 0 || !ibx_copies_able(s))
            return rc < 0 ? rc : 0;
        rc = run_aside(s, &q);
        x->ran += rc == DONE;
    }
    return rc < 0 ? rc : 0;
}
