/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/session_internal.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define SYNC_TO_DEVICE_MAX   (16u << 10) /* so much goes straight from the message to the driver */
#define SYNC_FROM_DEVICE_MAX (4u << 10)
#define GATHER_MAX           (1u << 20) /* longer bodies are exposed, unless the client cannot */

#define PLACES      ((1u << IBX_STAGING_DEPTH) - 1) /* bits of copies->arrived */
#define WINDOW_HEAD (1u << IBX_STAGING_DEPTH)
#define WINDOW_TAIL (WINDOW_HEAD << 1)
#define WINDOWS     (WINDOW_HEAD | WINDOW_TAIL)

/* What became of a request, when it is no error of the session. */
enum outcome { PASS /* it is GVirtuS's */, DONE /* run, not yet answered */ };

/* A request in the stream, still there. */
struct request {
    enum ibx_frame_call call;
    const uint8_t *body;      /* NULL: exposed ... */
    struct ibx_remote remote; /* ... here ... */
    struct ibx_reader after;  /* ... and the message goes on there */
    uint64_t length;          /* of the body */
    size_t inline_length;     /* bytes of it in the segment, with name and length */
    bool payload_only;        /* only the payload is exposed: the body's ends stand here */
    uint8_t ends[2 * IBX_FRAME_WINDOW];
};

/* Contexts that were reset in this process: pinned memory and events went with them. */
static _Atomic unsigned process_resets;

/* Whether there were any since `staging` was last used. */
static bool resets_seen(struct copies *x)
{
    unsigned resets = atomic_load(&process_resets), before = x->resets;
    x->resets = resets;
    return resets != before;
}

void copies_init(struct copies *x, enum ibx_gpu_mode mode, size_t memory)
{
    *x = (struct copies){.mode = mode, .memory = memory};
    ibx_request_watch_init(&x->requests);
}

void copies_release(struct ibx_session *s)
{
    struct copies *x = &s->copies;
    for (unsigned i = 0; i < x->region_count; i++)
        ibx_mr_deregister(x->regions[i]);
    ibx_mr_deregister(x->windows);
    free(x->regions);
    x->regions = NULL;
    x->region_count = 0;
    x->windows = NULL;
}

void copies_fini(struct ibx_session *s)
{
    struct copies *x = &s->copies;
    if (x->ran)
        ibx_log(IBX_LOG_INFO, "%lu copies were run for %s", x->ran, s->path.peer);
    if (x->staging) {
        ibx_staging_end(x->staging);
        if (resets_seen(x) || x->requests.resets)
            ibx_staging_forget(x->staging);
    }
    ibx_staging_destroy(x->staging);
    free(x->held);
    x->staging = NULL;
    x->held = NULL;
    x->held_size = 0;
    x->ran = 0;
    x->mode = IBX_GPU_OFF;
}

/* ------------------------------------------------------------------------ watching */

void copies_note_read(struct ibx_session *s, const void *bytes, size_t n)
{
    ibx_request_note_read(&s->copies.requests, bytes, n);
}

void copies_note_write(struct ibx_session *s, const void *bytes, size_t n)
{
    if (!s->copies.answering)
        ibx_reply_note_write(&s->copies.replies, bytes, n);
}

void copies_note_sync(struct ibx_session *s)
{
    struct copies *x = &s->copies;
    if (x->answering)
        return;
    ibx_reply_note_sync(&x->replies);
    atomic_fetch_add(&process_resets, x->requests.resets);
    x->requests.resets = 0;
}

/* -------------------------------------------------------------------- the request */

/* The body in the segment that follows in the same message, if it is one, exposed. */
static bool peek_exposed(struct ibx_session *s, struct request *q)
{
    q->after = s->reader;
    if (!s->has_current || ibx_get_u8(&q->after) != SEGMENT_EXPOSED)
        return false;
    ibx_remote_get(&q->after, &q->remote);
    q->body = NULL;
    return !q->after.failed && q->remote.length == q->length && q->length >= 2 * IBX_FRAME_WINDOW;
}

/* The same where only the payload is exposed, between the ends of the body. */
static bool peek_payload(struct ibx_session *s, struct request *q)
{
    size_t tail = ibx_frame_tail(q->call);
    const uint8_t *head = q->body;
    q->after = s->reader;
    if (!s->has_current || ibx_get_u8(&q->after) != SEGMENT_EXPOSED)
        return false;
    ibx_remote_get(&q->after, &q->remote);
    if (ibx_get_u8(&q->after) != SEGMENT_INLINE || ibx_get_u32(&q->after) != tail)
        return false;
    const uint8_t *last = ibx_get_bytes(&q->after, tail);
    if (q->after.failed || q->length < sizeof(q->ends) ||
        q->remote.length != q->length - IBX_FRAME_PAYLOAD_AT - tail)
        return false;
    memset(q->ends, 0, sizeof(q->ends));
    memcpy(q->ends, head, IBX_FRAME_PAYLOAD_AT);
    memcpy(q->ends + sizeof(q->ends) - tail, last, tail);
    q->payload_only = true;
    q->inline_length += IBX_FRAME_PAYLOAD_AT;
    q->body = NULL;
    return true;
}

/* Puts the next n bytes of the stream into memory of our own, and that in front of the rest. */
static int gather(struct ibx_session *s, size_t n)
{
    struct copies *x = &s->copies;
    if (x->held_size < n) {
        uint8_t *more = realloc(x->held, n);
        if (!more)
            return 0; /* nothing was read */
        x->held = more;
        x->held_size = n;
    }
    for (size_t got = 0; got < n;) {
        int rc = session_refill(s);
        if (rc)
            return rc;
        size_t some = n - got < s->segment.left ? n - got : (size_t)s->segment.left;
        rc = session_read_some(s, x->held + got, some);
        if (rc)
            return rc;
        got += some;
    }
    s->behind = s->segment;
    s->segment = (struct segment){.kind = SEGMENT_INLINE, .left = n, .inline_at = x->held};
    return 1;
}

/* Finds a copy at the beginning of the stream. 1; 0 when there is none that is whole and near; as
 * session_fail(). */
static int find_request(struct ibx_session *s, struct request *q)
{
    int rc = session_refill(s);
    if (rc || s->segment.kind != SEGMENT_INLINE)
        return rc;
    size_t name, left = (size_t)s->segment.left;
    q->payload_only = false;
    q->call = ibx_frame_name(s->segment.inline_at, left, &name);
    if (q->call == IBX_FRAME_OTHER || left - name < 8)
        return 0;
    struct ibx_reader r = ibx_reader_of(s->segment.inline_at + name, 8);
    q->length = ibx_get_u64(&r);
    q->body = s->segment.inline_at + name + 8;
    if (left - name - 8 >= q->length) {
        q->inline_length = name + 8 + (size_t)q->length;
        return 1;
    }
    q->inline_length = name + 8;
    if (left == q->inline_length && peek_exposed(s, q))
        return 1;
    if (left == q->inline_length + IBX_FRAME_PAYLOAD_AT && peek_payload(s, q))
        return 1;
    if (q->length > GATHER_MAX || s->behind.kind)
        return 0;
    rc = gather(s, name + 8 + (size_t)q->length);
    return rc > 0 ? find_request(s, q) : rc;
}

/* Takes it out of the stream. */
static void consume(struct ibx_session *s, const struct request *q)
{
    s->segment.inline_at += q->inline_length;
    s->segment.left -= q->inline_length;
    if (q->body)
        return;
    s->reader = q->after;
    s->bodies_read++;
}

/* ------------------------------------------------------------------------- wires */

static struct ibx_gpu_copy copy_of(const struct ibx_frame *f)
{
    bool to_device = f->kind == IBX_FRAME_H2D;
    return (struct ibx_gpu_copy){
        .device = to_device ? f->dst : f->src,
        .device_pitch = to_device ? f->dpitch : f->spitch,
        .host_pitch = to_device ? f->spitch : f->dpitch,
        .width = f->width,
        .height = f->height,
        .stream = f->stream ? (void *)(uintptr_t)f->stream : IBX_CUDA_STREAM_LEGACY,
    };
}

static int post(struct ibx_session *s, bool read, struct ibx_mr *mr, void *local, uint64_t at,
                size_t n, uint64_t cookie, unsigned flags)
{
    const struct ibx_remote *remote = &s->copies.remote;
    int rc = read ? ibx_read(s->conn, mr, local, remote, at, n, cookie, flags)
                  : ibx_write(s->conn, mr, local, remote, at, n, cookie, flags);
    if (rc)
        return session_fail(s, rc, "%s of %zu bytes with %s failed: %s", read ? "READ" : "WRITE", n,
                            s->path.peer, strerror(-rc));
    s->ops_pending++;
    return 0;
}

static int fabric_read(void *context, unsigned place, unsigned chunk, void *local, uint64_t offset,
                       size_t n)
{
    struct ibx_session *s = context;
    struct copies *x = &s->copies;
    return post(s, true, x->regions[chunk], local, x->remote_at + offset, n, place + 1, 0);
}

static int fabric_write(void *context, unsigned place, unsigned chunk, void *local, uint64_t offset,
                        size_t n)
{
    struct ibx_session *s = context;
    struct copies *x = &s->copies;
    return post(s, false, x->regions[chunk], local, x->remote_at + offset, n, place + 1, 0);
}

static int fabric_arrived(void *context, bool wait, uint32_t *places)
{
    struct ibx_session *s = context;
    struct copies *x = &s->copies;
    uint32_t windows = x->arrived & WINDOWS;
    int rc = 0;
    do {
        rc = wait && !(x->arrived & PLACES) ? session_pump(s) : session_poll(s);
        if (rc < 0)
            return rc;
    } while (wait && !(x->arrived & PLACES) && windows == (x->arrived & WINDOWS));
    if (s->ops_status)
        return session_fail(s, s->ops_status, "copying with %s failed: %s", s->path.peer,
                            strerror(-s->ops_status));
    *places = x->arrived & PLACES;
    x->arrived &= ~PLACES;
    return 0;
}

/* The payload came with the request. */
static int memory_read(void *context, unsigned place, unsigned chunk, void *local, uint64_t offset,
                       size_t n)
{
    (void)chunk;
    struct ibx_session *s = context;
    memcpy(local, s->copies.payload + offset, n);
    s->copies.arrived |= 1u << place;
    return 0;
}

/* The reply is too short for one-sided work. */
static int message_write(void *context, unsigned place, unsigned chunk, void *local,
                         uint64_t offset, size_t n)
{
    (void)chunk;
    (void)offset;
    struct ibx_session *s = context;
    ssize_t rc = ibx_session_write(s, local, n);
    if (rc < 0)
        return (int)rc;
    s->copies.arrived |= 1u << place;
    return 0;
}

static int memory_arrived(void *context, bool wait, uint32_t *places)
{
    (void)wait;
    struct ibx_session *s = context;
    *places = s->copies.arrived & PLACES;
    s->copies.arrived &= ~PLACES;
    return 0;
}

/* ------------------------------------------------------------------------ staging */

static void say_poor(struct copies *x, const char *why)
{
    if (!x->poor)
        ibx_log(IBX_LOG_WARN, "GVirtuS runs longer copies itself: %s", why);
    x->poor = true;
}

/* Registers the chunks in hand with the connection, where that has not been done. */
static bool regions_ready(struct ibx_session *s)
{
    struct copies *x = &s->copies;
    struct ibx_error err = {0};
    if (!x->regions) {
        x->regions = calloc(ibx_pinned_count(), sizeof(*x->regions));
        if (!x->regions)
            return false;
        x->region_count = ibx_pinned_count();
    }
    for (unsigned i = 0; i < ibx_staging_chunks(x->staging); i++) {
        unsigned chunk = ibx_staging_chunk(x->staging, i);
        uint8_t *begin = (uint8_t *)ibx_pinned_payload(chunk) - IBX_PINNED_BEFORE;
        struct ibx_span span = ibx_span_host(begin, IBX_PINNED_STRIDE);
        if (!x->regions[chunk] &&
            ibx_mr_register(s->conn, &span, IBX_ACCESS_LOCAL, &x->regions[chunk], &err)) {
            say_poor(x, err.message);
            return false;
        }
    }
    return true;
}

/* Chunks for a copy of `bytes`, for the fabric or not; ibx_staging_end() gives them back. */
static bool stage(struct ibx_session *s, uint64_t bytes, bool fabric)
{
    struct copies *x = &s->copies;
    struct ibx_error err = {0};
    if (!x->staging && ibx_staging_create(x->cuda, &x->staging, &err))
        return false;
    if (resets_seen(x))
        ibx_staging_forget(x->staging);
    if (ibx_pinned_open(x->cuda, x->memory, &err)) {
        say_poor(x, err.message);
        return false;
    }
    if (!ibx_staging_begin(x->staging, bytes))
        return false;
    if (!fabric || regions_ready(s))
        return true;
    ibx_staging_end(x->staging);
    return false;
}

/* What a copy's end means: DONE, PASS, or as session_fail(). */
static int outcome_of(const struct copies *x, int rc)
{
    if (rc <= 0)
        return rc ? rc : DONE;
    if (rc != IBX_STAGING_REFUSED)
        ibx_log(IBX_LOG_DEBUG, "a copy goes to GVirtuS: %s", ibx_cuda_error_name(x->cuda, rc));
    return PASS;
}

/* After ibx_staging_*: the lane is there unless the session ended. */
static int stage_end(struct copies *x, int rc)
{
    if (rc >= 0)
        ibx_staging_end(x->staging);
    return outcome_of(x, rc);
}

/* ------------------------------------------------------------------- to the device */

static int run_from_message(struct ibx_session *s)
{
    struct copies *x = &s->copies;
    const struct ibx_frame *f = &x->frame;
    bool plain = f->height == 1 && f->stream <= 1;
    if (plain && f->width <= SYNC_TO_DEVICE_MAX)
        return outcome_of(x, x->cuda->memcpy_to_device(f->dst, x->payload, (size_t)f->width));
    struct ibx_gpu_copy copy = copy_of(f);
    struct ibx_staging_wire wire = {s, memory_read, memory_arrived, NULL};
    if (!ibx_gpu_copy_fits(&copy) || !stage(s, f->payload, false))
        return PASS;
    return stage_end(x, ibx_staging_to_device(x->staging, &wire, &copy));
}

/* The ends of a long body say what it is; they are fetched while its first chunks are. */
static int windows_fetch(struct ibx_session *s, uint64_t length)
{
    struct copies *x = &s->copies;
    struct ibx_error err = {0};
    int rc = x->windows ? 0
                        : ibx_mr_allocate(s->conn, (size_t)2 * IBX_FRAME_WINDOW, IBX_ACCESS_LOCAL,
                                          &x->windows, &err);
    if (rc)
        return session_fail(s, rc, "no memory for a request's ends: %s", err.message);
    uint8_t *at = ibx_mr_address(x->windows);
    x->arrived &= ~WINDOWS;
    rc = post(s, true, x->windows, at, 0, IBX_FRAME_WINDOW, IBX_STAGING_DEPTH + 1, IBX_URGENT);
    return rc ? rc
              : post(s, true, x->windows, at + IBX_FRAME_WINDOW, length - IBX_FRAME_WINDOW,
                     IBX_FRAME_WINDOW, IBX_STAGING_DEPTH + 2, IBX_URGENT);
}

static int windows_wait(struct ibx_session *s)
{
    while ((s->copies.arrived & WINDOWS) != WINDOWS && !s->ops_status) {
        int rc = session_pump(s);
        if (rc)
            return rc;
    }
    return s->ops_status ? session_fail(s, s->ops_status, "copying with %s failed: %s",
                                        s->path.peer, strerror(-s->ops_status))
                         : 0;
}

/* Both windows are here: whether they are those of a good copy to the device. */
static bool windows_parse(struct copies *x, const uint8_t *at, enum ibx_frame_call call,
                          uint64_t length)
{
    struct ibx_frame_body body = {at, at + IBX_FRAME_WINDOW, length};
    return ibx_frame_parse(call, &body, &x->frame) && x->frame.kind == IBX_FRAME_H2D &&
           copies_sound(x, &x->frame);
}

/* ibx_staging_wire.open; the call is in x->frame.call, the body's length in x->remote.length. */
static int exposed_open(void *context, struct ibx_gpu_copy *copy)
{
    struct ibx_session *s = context;
    struct copies *x = &s->copies;
    if ((x->arrived & WINDOWS) != WINDOWS)
        return 1;
    if (!windows_parse(x, ibx_mr_address(x->windows), x->frame.call, x->remote.length))
        return IBX_STAGING_REFUSED;
    *copy = copy_of(&x->frame);
    return 0;
}

/* A plain copy's payload begins and ends where every such body's does. */
static int run_exposed_plain(struct ibx_session *s, const struct request *q)
{
    struct copies *x = &s->copies;
    size_t tail = q->call == IBX_FRAME_MEMCPY ? 12 : 20;
    struct ibx_gpu_copy size = {.width = q->length - IBX_FRAME_PAYLOAD_AT - tail, .height = 1};
    struct ibx_staging_wire wire = {s, fabric_read, fabric_arrived, exposed_open};
    if (!stage(s, size.width, true))
        return PASS;
    x->frame.call = q->call;
    int rc = windows_fetch(s, q->length);
    if (rc)
        return rc;
    rc = ibx_staging_to_device(x->staging, &wire, &size);
    int windows = rc >= 0 ? windows_wait(s) : 0;
    return windows ? windows : stage_end(x, rc);
}

/* With both ends of the body. */
static int run_exposed_known(struct ibx_session *s, const struct request *q, const uint8_t *ends)
{
    struct copies *x = &s->copies;
    if (!windows_parse(x, ends, q->call, q->length))
        return PASS;
    struct ibx_gpu_copy copy = copy_of(&x->frame);
    struct ibx_staging_wire wire = {s, fabric_read, fabric_arrived, NULL};
    if (!ibx_gpu_copy_fits(&copy) || !stage(s, x->frame.payload, true))
        return PASS;
    return stage_end(x, ibx_staging_to_device(x->staging, &wire, &copy));
}

static int run_exposed_rows(struct ibx_session *s, const struct request *q)
{
    int rc = windows_fetch(s, q->length);
    if (!rc)
        rc = windows_wait(s);
    return rc ? rc : run_exposed_known(s, q, ibx_mr_address(s->copies.windows));
}

static int run_exposed(struct ibx_session *s, const struct request *q)
{
    struct copies *x = &s->copies;
    x->remote = q->remote;
    x->remote_at = q->payload_only ? 0 : IBX_FRAME_PAYLOAD_AT;
    x->arrived = 0;
    if (q->payload_only)
        return run_exposed_known(s, q, q->ends);
    /* The ends of the body count from its first byte, not from the payload's. */
    return q->call == IBX_FRAME_MEMCPY_2D ? run_exposed_rows(s, q) : run_exposed_plain(s, q);
}

/* ------------------------------------------------------------------------ replies */

static int write_head(struct ibx_session *s, uint64_t began, uint64_t out)
{
    uint8_t head[IBX_REPLY_HEAD_MAX];
    double seconds = (double)(ibx_now_ns() - began) / 1e9;
    size_t n = ibx_reply_head(s->copies.replies.shape, 0, seconds, out, head);
    ssize_t rc = ibx_session_write(s, head, n);
    return rc < 0 ? (int)rc : 0;
}

static int answer(struct ibx_session *s, uint64_t began, const void *out, size_t n)
{
    int rc = write_head(s, began, n);
    ssize_t wrote = !rc && n ? ibx_session_write(s, out, n) : 0;
    if (rc || wrote < 0)
        return rc ? rc : (int)wrote;
    return ibx_session_sync(s);
}

static int gpu_failed(struct ibx_session *s, int code)
{
    return session_fail(s, -EIO, "a copy for %s broke off in the middle of its reply: %s",
                        s->path.peer, ibx_cuda_error_name(s->copies.cuda, code));
}

int copies_deliver(struct ibx_session *s, const struct ibx_remote *remote, size_t n)
{
    struct copies *x = &s->copies;
    struct ibx_staging_wire wire = {s, fabric_write, fabric_arrived, NULL};
    x->remote = *remote;
    x->remote_at = 0;
    int rc = ibx_staging_deliver(x->staging, &wire, n);
    return rc > 0 ? gpu_failed(s, rc) : rc;
}

/* The copy of n bytes stands in chunks, of which the first have come from the GPU. Its count stays
 * inline: so a client can have the bytes, and nothing else, where it wants them. */
static int answer_staged(struct ibx_session *s, uint64_t began, uint64_t n)
{
    struct copies *x = &s->copies;
    uint8_t count[8];
    struct ibx_writer w = ibx_writer_of(count, sizeof(count));
    ibx_put_u64(&w, n);
    int rc = write_head(s, began, sizeof(count) + n);
    if (!rc)
        rc = session_gather(s, count, sizeof(count));
    if (rc)
        return rc;
    if (n >= s->caps->rendezvous) {
        rc = session_write_body(s, NULL, (size_t)n);
    } else {
        struct ibx_staging_wire wire = {s, message_write, memory_arrived, NULL};
        rc = ibx_staging_deliver(x->staging, &wire, n);
        if (rc > 0)
            rc = gpu_failed(s, rc);
    }
    if (!rc)
        rc = ibx_session_sync(s);
    if (!rc)
        ibx_staging_end(x->staging);
    return rc;
}

/* ------------------------------------------------------------------ the other kinds */

static int run_short_from_device(struct ibx_session *s, const struct request *q, uint64_t began)
{
    struct copies *x = &s->copies;
    uint8_t out[8 + SYNC_FROM_DEVICE_MAX];
    size_t n = (size_t)x->frame.width;
    struct ibx_writer w = ibx_writer_of(out, 8);
    ibx_put_u64(&w, n);
    int rc = outcome_of(x, x->cuda->memcpy_from_device(out + 8, x->frame.src, n));
    if (rc != DONE)
        return rc;
    consume(s, q);
    rc = answer(s, began, out, 8 + n);
    return rc ? rc : DONE;
}

static int run_from_device(struct ibx_session *s, const struct request *q, uint64_t began)
{
    struct copies *x = &s->copies;
    const struct ibx_frame *f = &x->frame;
    bool plain = f->height == 1 && f->out == f->width && f->stream <= 1;
    if (plain && f->width <= SYNC_FROM_DEVICE_MAX)
        return run_short_from_device(s, q, began);
    struct ibx_gpu_copy copy = copy_of(f);
    if (!ibx_gpu_copy_fits(&copy) || !stage(s, f->out, f->out >= s->caps->rendezvous))
        return PASS;
    x->arrived = 0;
    int rc = ibx_staging_from_device(x->staging, &copy, "", 0);
    if (rc)
        return stage_end(x, rc);
    consume(s, q);
    rc = answer_staged(s, began, f->out);
    return rc ? rc : DONE;
}

/* Asynchronous towards the host, as in CUDA. */
static int run_on_device(struct copies *x)
{
    const struct ibx_frame *f = &x->frame;
    void *stream = f->stream ? (void *)(uintptr_t)f->stream : IBX_CUDA_STREAM_LEGACY;
    if (f->height == 1)
        return outcome_of(x, x->cuda->memcpy_async(f->dst, f->src, (size_t)f->width, stream));
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
    return outcome_of(x, x->cuda->memcpy_2d_async(&rows, stream));
}

/* ------------------------------------------------------------------------- the whole */

/* DONE: run, taken out of the stream and answered. */
static int run(struct ibx_session *s, const struct request *q)
{
    struct copies *x = &s->copies;
    uint64_t began = ibx_now_ns();
    int rc;
    if (q->body) {
        size_t window = q->length < IBX_FRAME_WINDOW ? (size_t)q->length : IBX_FRAME_WINDOW;
        struct ibx_frame_body body = {q->body, q->body + q->length - window, q->length};
        if (!ibx_frame_parse(q->call, &body, &x->frame) || !copies_sound(x, &x->frame))
            return PASS;
        x->payload = q->body + x->frame.payload_at;
        x->arrived = 0;
        if (x->frame.kind == IBX_FRAME_D2H)
            return run_from_device(s, q, began);
        rc = x->frame.kind == IBX_FRAME_H2D ? run_from_message(s) : run_on_device(x);
    } else {
        rc = run_exposed(s, q);
    }
    if (rc != DONE)
        return rc;
    consume(s, q);
    rc = answer(s, began, NULL, 0);
    return rc ? rc : DONE;
}

int copies_run(struct ibx_session *s)
{
    struct copies *x = &s->copies;
    enum ibx_reply_shape shape = x->replies.shape;
    bool known = shape == IBX_REPLY_PLAIN || shape == IBX_REPLY_TIMED;
    int rc = DONE;
    while (rc == DONE && x->mode != IBX_GPU_OFF && known && !s->out_length &&
           ibx_request_begins(&x->requests)) {
        struct request q;
        rc = find_request(s, &q);
        if (rc <= 0 || !copies_able(s))
            return rc < 0 ? rc : 0;
        x->answering = true;
        rc = run(s, &q);
        x->answering = false;
        x->ran += rc == DONE;
    }
    return rc < 0 ? rc : 0;
}
