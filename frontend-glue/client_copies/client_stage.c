/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Long copies of an application's pageable memory, through memory that both ends map and the back
 * end has pinned. The application's bytes are copied there, by several threads if one is slower
 * than the GPU, while the GPU already takes (or still brings) other bytes. The back end's process
 * could access the application's memory as well, but the kernel lets only few of its threads do so
 * at once.
 *
 * Such a copy goes out as several requests, each a frame of GVirtuS of its own; it has ended when
 * the last one has.
 */
#include "frontend-glue/client_copies/client_frame.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/stream_copy.h"

#include <stdlib.h>
#include <string.h>

#define STAGE_MIN    (32u << 10)  /* shorter copies are better off in one message */
#define SLOTS        32u          /* of the memory, one bit each; a divisor of 2^64 */
#define SLOT         (512u << 10) /* bytes of one */
#define PAGE         4096u
#define LINE         64u
#define PARTS        4u           /* of a short copy: the GPU takes some while others are copied */
#define UNIT_STEP    (64u << 10)  /* bytes; a part is a multiple of it */
#define UNIT_MIN     (128u << 10) /* parts are not shorter: each is a frame */
#define PER_FRAME    4u           /* at most; a power of two */
#define SHRINK       3u           /* each shrinking part is shorter by this factor */
#define LAST_MIN     (64u << 10)  /* least bytes of the last of these */
#define SPEED_MIN    (1u << 20)   /* what shorter copies wait for is no sign of the GPU's speed */
#define WAIT_PARTS   3u  /* eighths of the time of copying that the wait at the end may last */
#define BEHIND_MAX   3u  /* copies in a row that waited longer; then parts do not shrink */
#define EVEN_COPIES  64u /* copies, before shrinking parts are tried again */
#define THREADS_TO   (1u << 20)   /* bytes to the device: shorter copies end before threads begin */
#define THREADS_FROM (2u << 20)   /* bytes from the device: likewise */
#define WIDE_FROM    (8u << 20)   /* either way: as many threads as it takes to feed the GPU */
#define SLICE        (128u << 10) /* of a unit, for one of these threads */
#define EDGE_FROM    2u    /* units of a frame at either end of such a copy from the device */
#define IN_FLIGHT    3u    /* frames without an answer: of 4 message slots one is for a CTS */
#define ANSWER_US    1000u /* no answer takes longer, unless the GPU serves others */
#define USELESS_MAX  3u    /* useless copies in a row, after which the memory is given up */
#define SHORT        (PARTS * SLOT)
#define MAKE_NS      10000000u /* what it takes to make and pin the memory, on an H100's host */
#define GAIN_NS      15000u    /* ns that a copy gains by it there, at least */
#define GAIN_BYTES   20u       /* bytes, for each of which it gains one ns more */

/* Of a session: the context of its hooks. */
struct client_stage {
    struct ibx_session *s;
    bool tried;         /* whether making the memory was tried */
    uint64_t missed_ns; /* ns that copies have lost without it so far */
    uint8_t *memory;    /* both ends map it; NULL: there is none, or it was given up */
    struct ibx_mr *mr;
    struct client_ahead ahead;
    unsigned useless; /* copies in a row of which the GPU took nothing from here */
    size_t least;     /* shorter copies do not go this way any more */
    unsigned behind;  /* copies in a row that waited too long */
    unsigned even;    /* copies in parts of one length that are still to come */
};

/*
 * A copy is units of bytes, each in a slot for a while, in the order of their numbers:
 *
 *   to the device    posted to the copy threads -> copied -> sent in a frame -> settled
 *   from the device  sent for by a frame -> posted -> copied, and so settled
 */
struct run {
    struct ibx_session *s;
    struct client_stage *stage;
    const struct ibx_frontend_copy *copy;
    struct ibx_copy_threads *threads; /* NULL: this thread alone */
    size_t unit;                      /* bytes, of the last one perhaps fewer; 0: see begins */
    size_t begins[PARTS];             /* of units that shrink */
    unsigned per_frame, edge;         /* units; of the frames of the first and last per_frame */
    uint64_t units, frames;
    uint64_t posted, copied; /* units: begun, and copied without a gap */
    uint32_t done;           /* slots that are copied beyond that */
    uint64_t settled;        /* units whose slots are free again */
    uint64_t sent, answered; /* frames */
    bool placed;             /* the GPU has used the memory itself */
    uint64_t began_ns, all_sent_ns;
    int exit_code; /* the first that was not 0 */
};

/* ----------------------------------------------------------------------- the memory */

static void make_memory(struct client_stage *stage)
{
    struct ibx_error err = {0};
    unsigned both = IBX_ACCESS_REMOTE_READ | IBX_ACCESS_REMOTE_WRITE;
    stage->tried = true;
    uint8_t *memory = ibx_shared_allocate((size_t)SLOTS * SLOT + PAGE, &err);
    struct ibx_span span = ibx_span_host(memory, (size_t)SLOTS * SLOT + PAGE);
    if (memory && !ibx_mr_register(ibx_session_conn(stage->s), &span, both, &stage->mr, &err)) {
        stage->memory = memory;
        return;
    }
    ibx_log(IBX_LOG_INFO, "pageable memory is copied by the back end: %s", err.message);
    if (memory)
        ibx_shared_free(memory);
}

/* Whether to make the memory: once earlier copies have lost as much time without it as making it
 * takes. So a program that copies little does not wait for memory that it does not use. */
static bool pays(struct client_stage *stage, size_t n)
{
    stage->missed_ns += GAIN_NS + n / GAIN_BYTES;
    return stage->missed_ns >= MAKE_NS;
}

static void give_up(struct client_stage *stage)
{
    ibx_session_drop_threads(stage->s); /* first, since threads may be copying */
    ibx_mr_deregister(stage->mr);
    stage->mr = NULL;
    if (stage->memory)
        ibx_shared_free(stage->memory);
    stage->memory = NULL;
}

static void end_stage(void *context)
{
    struct client_stage *stage = context;
    give_up(stage);
    ibx_client_ahead_end(&stage->ahead);
}

static const struct ibx_session_hooks stage_hooks = {.ending = end_stage, .destroy = free};

static struct client_stage *stage_of(struct ibx_session *s)
{
    struct client_stage *stage = ibx_session_context(s, &stage_hooks);
    if (stage)
        return stage;
    stage = calloc(1, sizeof(*stage));
    if (!stage)
        return NULL;
    stage->s = s;
    ibx_session_set_hooks(s, &stage_hooks, stage);
    return stage;
}

void ibx_client_stage_at_once(struct ibx_session *s)
{
    struct client_stage *stage = stage_of(s);
    if (stage)
        stage->missed_ns = MAKE_NS;
}

struct client_ahead *ibx_client_stage_ahead(struct ibx_session *s)
{
    struct client_stage *stage = stage_of(s);
    return stage ? &stage->ahead : NULL;
}

/* Whether CUDA takes the bytes in the call, whatever the stream waits for, as the back end does:
 * through this memory the copy would be waited for. */
static bool is_taken(const struct ibx_frontend_copy *copy)
{
    return copy->async && copy->to_device && copy->n <= IBX_UNAWAITED_MOST;
}

bool ibx_client_stage_wants(struct ibx_session *s, const struct ibx_frontend_copy *copy)
{
    if (copy->rows || copy->whole || is_taken(copy) ||
        (copy->n < STAGE_MIN && ibx_client_fits(s, copy)) ||
        strcmp(ibx_session_path(s)->provider, "shm") != 0 || ibx_shared_holds(copy->host, copy->n))
        return false;
    struct client_stage *stage = stage_of(s);
    if (stage && !stage->tried && pays(stage, copy->n))
        make_memory(stage);
    return stage && stage->memory && copy->n >= stage->least;
}

/* ------------------------------------------------------------------------ the units */

static uint64_t offset_of(const struct run *run, uint64_t unit)
{
    return run->unit ? unit * run->unit : run->begins[unit];
}

/* A slot begins where the host's memory does in its page. Otherwise, on some processors, a store
 * waits for an earlier load at the same place of another page, and memcpy loses half of its speed.
 */
static uint8_t *slot_of(const struct run *run, uint64_t unit)
{
    return run->stage->memory + offset_of(run, unit % SLOTS) + (uintptr_t)run->copy->host % PAGE;
}

static size_t length_of(const struct run *run, uint64_t unit, uint64_t units)
{
    uint64_t end = unit + units < run->units ? offset_of(run, unit + units) : run->copy->n;
    return (size_t)(end - offset_of(run, unit));
}

/* ibx_copy_threads_copy: between a slot and the application. The GPU reads the slot, so it need not
 * be in this processor's cache. */
static int move(void *context, void *slot, uint64_t offset, size_t n)
{
    const struct ibx_frontend_copy *copy = context;
    uint8_t *host = (uint8_t *)copy->host + offset;
    if (copy->to_device)
        ibx_stream_copy(slot, host, n);
    else
        memcpy(host, slot, n);
    return 0;
}

/* Begins the copy of a unit, or makes it. */
static void post(struct run *run)
{
    uint64_t unit = run->posted++;
    void *slot = slot_of(run, unit);
    uint64_t offset = offset_of(run, unit);
    size_t n = length_of(run, unit, 1);
    if (run->threads) {
        ibx_copy_threads_post(run->threads, (unsigned)(unit % SLOTS), slot, offset, n);
        return;
    }
    move((void *)(uintptr_t)run->copy, slot, offset, n);
    run->done |= 1u << unit % SLOTS;
}

static void note_copied(struct run *run)
{
    while (run->copied < run->posted && run->done & 1u << run->copied % SLOTS) {
        run->done &= ~(1u << run->copied % SLOTS);
        run->copied++;
    }
    if (!run->copy->to_device)
        run->settled = run->copied;
}

/* ----------------------------------------------------------------------- the frames */

/* Frames at each end of the copy that have `edge` units. */
static uint64_t edges(const struct run *run)
{
    return run->per_frame / run->edge;
}

/* The first unit of the last frames, which may have fewer units. */
static uint64_t last_of(const struct run *run)
{
    return (run->units - 1) / run->per_frame * run->per_frame;
}

/* The number of the frame's first unit. Frames between the edges have `per_frame` units each. */
static uint64_t begin_of(const struct run *run, uint64_t frame)
{
    if (run->edge == run->per_frame)
        return frame * run->per_frame;
    if (frame < edges(run))
        return frame * run->edge;
    const uint64_t middle = last_of(run) / run->per_frame - 1, at = frame - edges(run);
    return at < middle ? (at + 1) * run->per_frame : last_of(run) + (at - middle) * run->edge;
}

static uint64_t end_of(const struct run *run, uint64_t frame)
{
    uint64_t end = begin_of(run, frame + 1);
    return end < run->units ? end : run->units;
}

/* Whether the frame's answer says that its copy is done, and with it all before. */
static bool settles(const struct run *run, uint64_t frame)
{
    return !run->copy->to_device || frame + 1 == run->frames ||
           end_of(run, frame) % (SLOTS / 2) == 0;
}

/* The copy of one frame. */
static struct ibx_frontend_copy frame_of(const struct run *run, uint64_t frame)
{
    struct ibx_frontend_copy copy = *run->copy;
    uint64_t unit = begin_of(run, frame);
    copy.async = copy.async || !settles(run, frame);
    copy.device += offset_of(run, unit);
    copy.host = slot_of(run, unit);
    copy.n = length_of(run, unit, end_of(run, frame) - unit);
    return copy;
}

/* As ibx_session_fail(). */
static int send_frame(struct run *run)
{
    struct ibx_session *s = run->s;
    struct client_stage *stage = run->stage;
    struct ibx_frontend_copy copy = frame_of(run, run->sent);
    struct ibx_remote remote;
    int rc = ibx_session_reserve(s, CLIENT_FRAME);
    if (rc)
        return rc;
    rc = ibx_mr_remote(stage->mr, (size_t)((uint8_t *)copy.host - stage->memory), copy.n, &remote);
    if (!rc && settles(run, run->sent))
        rc = ibx_session_settle(s);
    if (!rc)
        rc = ibx_client_send_frame(s, &copy, NULL, &remote);
    run->sent += !rc;
    if (run->sent == run->frames)
        run->all_sent_ns = ibx_now_ns();
    return rc;
}

static int take_answer(struct run *run)
{
    struct ibx_session *s = run->s;
    struct ibx_frontend_copy copy = frame_of(run, run->answered);
    int exit_code;
    if (!copy.to_device)
        ibx_session_cts_expect(s, copy.host, copy.n);
    ibx_expect(ibx_session_conn(s), ANSWER_US);
    ibx_session_take_printed(s); /* as the reply before has told */
    int rc = ibx_client_take_reply(s, &copy, NULL, &exit_code);
    if (rc)
        return rc;
    ibx_session_cts_end(s);
    run->exit_code = run->exit_code ? run->exit_code : exit_code;
    run->placed = ibx_session_take_placed(s) || run->placed;
    uint64_t end = end_of(run, run->answered);
    if (run->copy->to_device && settles(run, run->answered))
        run->settled = end;
    while (!run->copy->to_device && run->posted < end && !exit_code)
        post(run);
    run->answered++;
    return 0;
}

/* ------------------------------------------------------------------------- the whole */

/* Sends the frames whose slots are ready. */
static int send_frames(struct run *run)
{
    int rc = 0;
    while (!rc && !run->exit_code && run->sent < run->frames &&
           run->sent - run->answered < IN_FLIGHT) {
        uint64_t end = end_of(run, run->sent);
        if (run->copy->to_device ? end > run->copied : end - run->settled > SLOTS)
            break;
        rc = send_frame(run);
    }
    return rc;
}

static bool finished(const struct run *run)
{
    if (run->exit_code)
        return run->answered == run->sent;
    return run->answered == run->frames && (run->copy->to_device || run->copied == run->units);
}

/* Posts one unit for this thread alone, or all that fit for several. */
static void post_to_device(struct run *run)
{
    bool all = run->threads;
    while (!run->exit_code && run->posted < run->units && run->posted - run->settled < SLOTS) {
        post(run);
        if (!all)
            return;
    }
}

static int step(struct run *run)
{
    uint64_t before = run->copied + run->answered + run->sent;
    if (run->copy->to_device)
        post_to_device(run);
    if (run->threads)
        ibx_copy_threads_take(run->threads, false, &run->done);
    note_copied(run);
    int rc = send_frames(run);
    if (rc)
        return rc;
    if (run->answered < run->sent) {
        /* An answer counts even if the connection has ended after it. */
        rc = ibx_session_poll_reply(run->s);
        if (rc)
            return rc < 0 ? rc : take_answer(run);
    }
    if (run->copied + run->answered + run->sent != before)
        return 0;
    if (run->copied < run->posted) {
        ibx_copy_threads_take(run->threads, true, &run->done);
        return 0;
    }
    return take_answer(run);
}

/* For a GPU that takes bytes several times as fast as one thread copies them: it has finished each
 * part while the next, shorter one is copied, and only the last one is waited for. */
static void divide_shrinking(struct run *run)
{
    size_t n = run->copy->n, sum = 1; /* length of all parts, in lengths of the last one */
    for (run->units = 1; run->units < PARTS && n / (sum * SHRINK + 1) >= LAST_MIN; run->units++)
        sum = sum * SHRINK + 1;
    size_t length = n / sum / LINE * LINE, begin = n;
    for (uint64_t unit = run->units; --unit > 0; length *= SHRINK)
        run->begins[unit] = begin -= length;
    run->per_frame = run->edge = 1;
    run->frames = run->units;
}

/* Whether the threads together copy as fast as the GPU. Then there should be few frames, each of
 * which costs the GPU several microseconds. */
static bool is_wide(const struct run *run)
{
    return run->threads && run->copy->n >= WIDE_FROM;
}

/* Divides the copy into units, so that the GPU has some while others are copied. All have about the
 * same length, since a unit of a few bytes could not go by reference. The slots of one frame are
 * adjacent: their number divides SLOTS. A frame from the device becomes ready as a whole, for all
 * threads that copy out of it. The thread that takes the answers is one of these, and should soon
 * be able to take the next answer. */
static void divide_evenly(struct run *run)
{
    unsigned parts = run->threads && !run->copy->to_device ? PARTS * PER_FRAME : PARTS;
    size_t n = run->copy->n, part = n / parts / UNIT_STEP * UNIT_STEP;
    part = part < UNIT_MIN ? UNIT_MIN : part < SLOT ? part : SLOT;
    run->units = (n + part - 1) / part;
    run->unit = (size_t)((n + run->units - 1) / run->units + LINE - 1) / LINE * LINE;
    run->per_frame = run->copy->to_device && !is_wide(run) ? 1 : PER_FRAME;
    while (run->per_frame > 1 && run->units < PARTS * run->per_frame)
        run->per_frame /= 2;
    run->edge = run->per_frame;
    run->frames = (run->units + run->per_frame - 1) / run->per_frame;
    if (is_wide(run) && !run->copy->to_device && last_of(run)) {
        run->edge = EDGE_FROM;
        run->frames += edges(run) - 2 + (run->units - last_of(run) + run->edge - 1) / run->edge;
    }
}

static void divide(struct run *run)
{
    struct client_stage *stage = run->stage;
    bool may_shrink = run->copy->to_device && !run->threads && run->copy->n < SHORT;
    if (may_shrink && !stage->even) {
        divide_shrinking(run);
        return;
    }
    divide_evenly(run);
    if (may_shrink && !--stage->even)
        stage->behind = BEHIND_MAX - 1;
}

/* Shrinking parts are right if the wait at the end is short. A GPU that takes bytes three times as
 * fast as a thread copies them, 12 us later, ends after a quarter of the time of copying 1 MiB; one
 * that is 1.7 times as fast ends after nearly half of it. */
static void judge_speed(const struct run *run)
{
    struct client_stage *stage = run->stage;
    if (run->unit || run->copy->n < SPEED_MIN)
        return;
    uint64_t copying = run->all_sent_ns - run->began_ns, waiting = ibx_now_ns() - run->all_sent_ns;
    stage->behind = waiting > copying / 8 * WAIT_PARTS ? stage->behind + 1 : 0;
    if (stage->behind == BEHIND_MAX)
        stage->even = EVEN_COPIES;
}

/* For a back end that does not run copies itself, or cannot pin the memory, copies through this
 * memory are more work. Its rdma.tuning may exclude only short copies, so these are given up
 * first. */
static void judge_use(struct client_stage *stage, size_t n, bool placed)
{
    stage->useless = placed ? 0 : stage->useless + 1;
    if (stage->useless < USELESS_MAX)
        return;
    stage->useless = 0;
    if (n < SHORT)
        stage->least = SHORT;
    else
        give_up(stage);
}

int ibx_client_stage_copy(struct ibx_session *s, const struct ibx_frontend_copy *copy,
                          int *exit_code)
{
    struct run run = {.s = s, .stage = stage_of(s), .copy = copy};
    if (copy->n >= (copy->to_device ? THREADS_TO : THREADS_FROM))
        run.threads = ibx_session_threads(s);
    divide(&run);
    run.began_ns = ibx_now_ns();
    if (run.threads)
        ibx_copy_threads_begin(run.threads, move, (void *)(uintptr_t)copy);
    if (is_wide(&run))
        ibx_session_widen_threads(s, SLICE);
    ibx_session_take_placed(s);
    int rc = (int)ibx_session_write(s, NULL, 0); /* earlier payloads are READ now */
    while (!rc && !finished(&run))
        rc = step(&run);
    if (rc)
        return rc; /* the stage has ended with the session */
    if (run.threads)
        ibx_copy_threads_stop(run.threads);
    if (!run.exit_code) {
        judge_speed(&run);
        judge_use(run.stage, copy->n, run.placed);
        run.stage->ahead.reached = run.placed;
    }
    *exit_code = run.exit_code;
    return 0;
}
