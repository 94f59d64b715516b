/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "gpudirect/staging_internal.h"

#include "gpudirect/copy_threads.h"
#include "gpudirect/second_context.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define STEP_UNIT    (64u << 10) /* short copies are cut into multiples of it */
#define TAKE_WAIT_MS 50u         /* for a chunk, when all are taken */
#define BESIDE       2u          /* slots of a copy that the GPU has, while others copy, too */

static const struct ibx_state slot_states[] = {
    [SLOT_FREE] = {"free", IBX_TO(SLOT_MOVING) | IBX_TO(SLOT_DMA),
                   IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [SLOT_MOVING] = {"moving", IBX_TO(SLOT_FILLED) | IBX_TO(SLOT_FREE), 0},
    [SLOT_FILLED] = {"filled", IBX_TO(SLOT_DMA) | IBX_TO(SLOT_MOVING) | IBX_TO(SLOT_FREE), 0},
    [SLOT_DMA] = {"dma", IBX_TO(SLOT_FREE) | IBX_TO(SLOT_FILLED), 0},
};
static const struct ibx_state_table slot_table = IBX_STATE_TABLE("staging slot", slot_states);

/* ------------------------------------------------------------------------ sizes */

uint64_t ibx_gpu_copy_bytes(const struct ibx_gpu_copy *copy)
{
    return ibx_gpu_copy_is_plain(copy) ? copy->width : copy->host_pitch * copy->height;
}

bool ibx_gpu_copy_fits(const struct ibx_gpu_copy *copy)
{
    return ibx_gpu_copy_is_plain(copy) || copy->host_pitch <= IBX_PINNED_CHUNK;
}

/* Bytes of one slot: whole rows of a 2D copy. A short plain copy uses an eighth of its length, so
 * that its parts overlap, too. */
static size_t step_of(const struct ibx_staging *st, const struct ibx_gpu_copy *copy, uint64_t total)
{
    if (!ibx_gpu_copy_is_plain(copy))
        return IBX_PINNED_CHUNK - IBX_PINNED_CHUNK % (size_t)copy->host_pitch;
    uint64_t part = total / IBX_STAGING_DEPTH / STEP_UNIT * STEP_UNIT;
    if (part < STEP_UNIT)
        part = STEP_UNIT;
    const size_t most =
        st->company == IBX_TURN_BESIDE && st->chunk > IBX_TURN_PIECE ? IBX_TURN_PIECE : st->chunk;
    return part < most ? (size_t)part : most;
}

void ibx_staging_restart_at(struct ibx_staging *st, uint64_t at)
{
    st->begun = st->delivered = at;
    st->current = st->refill = st->fetched = 0;
}

void ibx_staging_set_copy(struct ibx_staging *st, const struct ibx_gpu_copy *copy)
{
    st->copy = *copy;
    st->gone = false;
    st->company = ibx_turn_company(st->turn);
    st->total = ibx_gpu_copy_bytes(copy);
    st->step = step_of(st, copy, st->total);
    ibx_staging_restart_at(st, 0);
}

/* Where the next piece begins. With `spread` the copy is cut into runs of IBX_COPY_THREADS_APART
 * bytes and groups of `spread` runs; the pieces of a group are taken from its runs in turn. The
 * rest, which is less than a group, is taken in order. */
static uint64_t next_at(const struct ibx_staging *st, unsigned spread)
{
    uint64_t run = IBX_COPY_THREADS_APART / st->step, group = run * spread,
             i = st->begun / st->step, in = i % group;
    if (spread < 2 || (i - in + group) * st->step > st->total)
        return st->begun;
    return (i - in + in % spread * run + in / spread) * st->step;
}

/* Gives a free slot the next piece of the copy. */
static void slot_begin(struct ibx_staging *st, struct ibx_staging_slot *slot, unsigned spread)
{
    slot->at = next_at(st, spread);
    slot->length = st->total - slot->at < st->step ? (size_t)(st->total - slot->at) : st->step;
    st->begun += slot->length;
}

/* ------------------------------------------------------------------- life and events */

int ibx_staging_create(const struct ibx_cuda *cuda, struct ibx_staging **staging)
{
    struct ibx_staging *st = calloc(1, sizeof(*st));
    if (!st)
        return -ENOMEM;
    st->cuda = cuda;
    st->chunk = IBX_PINNED_CHUNK;
    *staging = st;
    return 0;
}

/* Notes that the events no longer exist; `begun`: neither do those of copies that were begun. */
static void forget_events(struct ibx_staging *st, bool begun)
{
    st->events = st->left = 0;
    st->before = NULL;
    ibx_word_give(st->word);
    st->word = NULL;
    st->wordless = false;
    if (!begun)
        return;
    st->begun_ready = st->open = 0;
    st->generation++;
    st->context = NULL;
}

/* Destroys the events of the slots and, with `begun`, those of copies that were begun. A context
 * that is gone has destroyed its events itself. */
static void drop_events(struct ibx_staging *st, bool begun)
{
    const struct ibx_cuda *cuda = st->cuda;
    void *context = NULL, *popped = NULL;
    bool any = st->events || st->before || (begun && st->begun_ready);
    bool foreign = cuda->ctx_get_current(&context) || context != st->context;
    bool inside = any && (!foreign || !cuda->ctx_push_current(st->context));
    for (unsigned i = 0; inside && i < st->events; i++)
        cuda->event_destroy(st->slots[i].event);
    if (inside && st->before)
        cuda->event_destroy(st->before);
    for (unsigned i = 0; inside && begun && i < st->begun_ready; i++)
        cuda->event_destroy(st->begun_events[i]);
    if (foreign && inside)
        cuda->ctx_pop_current(&popped);
    forget_events(st, begun);
}

void ibx_staging_drop_events(struct ibx_staging *st)
{
    drop_events(st, true);
}

/* Drops the events if they belong to another context than the current one. */
static int enter_context(struct ibx_staging *st)
{
    void *context = NULL;
    int rc = st->cuda->ctx_get_current(&context);
    if (!rc && context != st->context) {
        ibx_staging_drop_events(st);
        st->context = context;
    }
    return rc;
}

int ibx_staging_events_ready(struct ibx_staging *st)
{
    unsigned wanted = st->count > IBX_STAGING_AT_ONCE ? st->count : IBX_STAGING_AT_ONCE;
    int rc = enter_context(st);
    while (!rc && st->events < wanted) {
        rc = st->cuda->event_create(&st->slots[st->events].event, IBX_CUDA_EVENT_DISABLE_TIMING);
        st->events += !rc;
    }
    return rc;
}

int ibx_staging_begun_events_ready(struct ibx_staging *st)
{
    int rc = enter_context(st);
    while (!rc && st->begun_ready < IBX_STAGING_AT_ONCE) {
        rc = st->cuda->event_create(&st->begun_events[st->begun_ready],
                                    IBX_CUDA_EVENT_DISABLE_TIMING);
        st->begun_ready += !rc;
    }
    return rc;
}

int ibx_staging_before_ready(struct ibx_staging *st)
{
    const int rc = enter_context(st);
    return rc || st->before ? rc
                            : st->cuda->event_create(&st->before, IBX_CUDA_EVENT_DISABLE_TIMING);
}

/* Frees all slots in SLOT_DMA: the GPU has nothing left to do. */
static void dma_ended(struct ibx_staging *st)
{
    for (unsigned i = 0; i < st->count; i++) {
        if (st->slots[i].state.now == SLOT_DMA)
            ibx_state_move(&st->slots[i].state, SLOT_FREE);
    }
}

void ibx_staging_forget(struct ibx_staging *st, const void *context)
{
    ibx_lent_chunks_forget(&st->overdue, context);
    ibx_lent_chunks_forget(&st->unawaited, context);
    if (context && st->context != context)
        return;
    dma_ended(st);
    forget_events(st, true);
    st->gone = true;
}

void ibx_staging_destroy(struct ibx_staging *st)
{
    if (!st)
        return;
    ibx_staging_leave_slots(st);
    ibx_staging_end(st);
    ibx_staging_overdue_end(st);
    ibx_staging_unawaited_end(st);
    ibx_staging_drop_events(st);
    free(st);
}

void ibx_staging_set_quota(struct ibx_staging *st, struct ibx_quota *quota)
{
    st->quota = quota;
}

void ibx_staging_set_turn(struct ibx_staging *st, struct ibx_turn *turn)
{
    st->turn = turn;
}

void ibx_staging_set_chunk(struct ibx_staging *st, size_t bytes)
{
    st->chunk = bytes;
}

bool ibx_staging_begin(struct ibx_staging *st, uint64_t bytes)
{
    struct ibx_gpu_copy plain = {.width = bytes, .height = 1};
    size_t step = step_of(st, &plain, bytes);
    st->captured = st->captured && st->count;
    ibx_lent_chunks_take_back(st->cuda);
    while (st->count < IBX_STAGING_DEPTH && (!st->count || st->count * (uint64_t)step < bytes)) {
        int chunk = ibx_pinned_take(st->quota, st->count ? 0 : TAKE_WAIT_MS);
        if (chunk < 0)
            break;
        st->slots[st->count].chunk = (unsigned)chunk;
        ibx_state_begin(&st->slots[st->count++].state, &slot_table, SLOT_FREE);
    }
    return st->count;
}

unsigned ibx_staging_chunks(const struct ibx_staging *st)
{
    return st->count;
}

unsigned ibx_staging_chunk(const struct ibx_staging *st, unsigned slot)
{
    return st->slots[slot].chunk;
}

/* In relaxed capture mode, because the client may have begun to capture a stream meanwhile. */
void ibx_staging_reset_slots(struct ibx_staging *st)
{
    for (unsigned i = 0; i < st->count; i++) {
        struct ibx_staging_slot *slot = &st->slots[i];
        if (slot->state.now == SLOT_DMA) {
            int mode = ibx_cuda_capture_relax(st->cuda);
            const int rc = st->cuda->event_synchronize(slot->event);
            ibx_cuda_capture_restore(st->cuda, mode);
            st->captured = st->captured || rc == IBX_CUDA_CAPTURED_EVENT;
        }
        if (slot->state.now != SLOT_FREE)
            ibx_state_move(&slot->state, SLOT_FREE);
    }
}

void ibx_staging_end(struct ibx_staging *st)
{
    ibx_staging_reset_slots(st);
    for (unsigned i = 0; i < st->count && !st->captured; i++)
        ibx_pinned_give(st->quota, st->slots[i].chunk);
    st->count = 0;
    st->moving = 0;
}

/* --------------------------------------------------------------------------- DMA */

/* A 2D copy of the rows at `host`, which is byte `at` of the host's side. */
static int dma_rows(const struct ibx_staging *st, void *host, uint64_t at, size_t length,
                    bool to_device)
{
    const struct ibx_gpu_copy *copy = &st->copy;
    const uint64_t device = copy->device + at / copy->host_pitch * copy->device_pitch;
    struct ibx_cuda_memcpy2d rows = {.width = copy->width, .height = length / copy->host_pitch};
    rows.src_type = to_device ? IBX_CUDA_MEMORY_HOST : IBX_CUDA_MEMORY_DEVICE;
    rows.dst_type = to_device ? IBX_CUDA_MEMORY_DEVICE : IBX_CUDA_MEMORY_HOST;
    rows.src_host = rows.dst_host = host; /* the type says which end it is */
    rows.src_device = rows.dst_device = device;
    rows.src_pitch = to_device ? copy->host_pitch : copy->device_pitch;
    rows.dst_pitch = to_device ? copy->device_pitch : copy->host_pitch;
    /* The bytes between rows are sent, too, and might be what another client left in the chunk. */
    if (!to_device && copy->host_pitch != copy->width)
        memset(host, 0, length);
    return st->cuda->memcpy_2d_async(&rows, copy->stream);
}

/* Starts to copy `length` bytes, from byte `at` of the copy on, between `host` and the device. */
static int dma(struct ibx_staging *st, void *host, uint64_t at, size_t length, bool to_device)
{
    const struct ibx_gpu_copy *copy = &st->copy;
    if (!ibx_gpu_copy_is_plain(copy))
        return dma_rows(st, host, at, length, to_device);
    if (to_device && copy->alone)
        return ibx_staging_to_device_alone(st, host, copy->device + at, length);
    if (to_device)
        return st->cuda->memcpy_to_device_async(copy->device + at, host, length, copy->stream);
    return st->cuda->memcpy_from_device_async(host, copy->device + at, length, copy->stream);
}

int ibx_staging_record(struct ibx_staging *st, void *event, void *stream)
{
    const int rc = st->cuda->event_record(event, stream);
    return rc == IBX_CUDA_INVALID_HANDLE ? ibx_cuda_stream_wait(st->cuda, stream) : rc;
}

int ibx_staging_dma(struct ibx_staging *st, void *host, uint64_t at, size_t length, bool to_device,
                    void *event, bool *begun)
{
    const bool entered = ibx_turn_enter(st->turn, st->company);
    int rc = dma(st, host, at, length, to_device);
    *begun = *begun || !rc;
    if (!rc && event)
        rc = ibx_staging_record(st, event, st->copy.stream);
    ibx_turn_exit(st->turn, entered);
    return rc;
}

void ibx_staging_take_turn(struct ibx_staging *st, size_t length)
{
    const struct ibx_gpu_copy *copy = &st->copy;
    st->company =
        ibx_turn_take(st->turn, ibx_gpu_copy_is_plain(copy)
                                    ? length
                                    : ibx_turn_bytes(copy->width, length / copy->host_pitch));
}

/* Gives a slot to the GPU. 0, a CUresult, or a negative errno. */
static int dma_start(struct ibx_staging *st, struct ibx_staging_slot *slot, bool to_device)
{
    bool begun = false;
    int rc = st->aside ? ibx_staging_dma_aside(st, slot, to_device) : 0;
    if (st->aside && rc <= 0)
        return rc;
    st->aside = false; /* the other context has failed */
    ibx_staging_take_turn(st, slot->length);
    uint8_t *bytes = ibx_pinned_payload(slot->chunk);
    if (to_device && st->copy.unawaited &&
        ibx_staging_copy_unawaited(st, bytes, slot->at, slot->length, &rc))
        return rc ? rc : ibx_state_move(&slot->state, SLOT_FREE);
    rc = ibx_staging_dma(st, bytes, slot->at, slot->length, to_device, slot->event, &begun);
    if (rc && begun) /* no event is behind it */
        ibx_cuda_stream_wait(st->cuda, st->copy.stream);
    if (rc)
        return rc;
    slot->serial = ++st->serial;
    return ibx_state_move(&slot->state, SLOT_DMA);
}

/* The slot whose DMA began first, or with `last` last; NULL: no DMA is under way. */
static struct ibx_staging_slot *dma_pick(struct ibx_staging *st, bool last)
{
    struct ibx_staging_slot *found = NULL;
    for (unsigned i = 0; i < st->count; i++) {
        struct ibx_staging_slot *slot = &st->slots[i];
        if (slot->state.now == SLOT_DMA &&
            (!found || (slot->serial - found->serial < UINT32_MAX / 2) == last))
            found = slot;
    }
    return found;
}

static unsigned under_way(const struct ibx_staging *st)
{
    unsigned n = 0;
    for (unsigned i = 0; i < st->count; i++)
        n += st->slots[i].state.now == SLOT_DMA;
    return n;
}

/* Whether the GPU has as much of this copy as it should have while other sessions copy. */
static bool has_enough(const struct ibx_staging *st)
{
    return st->company == IBX_TURN_BESIDE && !st->copy.alone && under_way(st) >= BESIDE;
}

/* Whether a slot that has had its piece stays free, for pieces that become overdue. */
static bool keeps_free(const struct ibx_staging *st)
{
    const unsigned n = st->copy.alone ? under_way(st) : 0;
    return n && n + 1 >= st->count;
}

int ibx_staging_stop_gpu(struct ibx_staging *st, int rc)
{
    st->captured = st->captured || rc == IBX_CUDA_CAPTURED_EVENT;
    ibx_staging_reset_slots(st);
    drop_events(st, !st->open);
    return rc;
}

/* -------------------------------------------------------------------------- wire */

static int move_start(struct ibx_staging *st, const struct ibx_staging_wire *wire, unsigned i,
                      void *local, uint64_t offset, size_t n)
{
    int rc = wire->move(wire->context, i, st->slots[i].chunk, local, offset, n);
    if (rc)
        return rc;
    st->moving++;
    return ibx_state_move(&st->slots[i].state, SLOT_MOVING);
}

static int take_arrivals(struct ibx_staging *st, const struct ibx_staging_wire *wire, bool wait)
{
    uint32_t slots = 0;
    int rc = wire->arrived(wire->context, wait, &slots);
    /* With an error the wire may have destroyed `st`. */
    for (unsigned i = 0; !rc && i < st->count; i++) {
        if (!(slots & 1u << i) || st->slots[i].state.now != SLOT_MOVING)
            continue;
        st->moving--;
        rc = ibx_state_move(&st->slots[i].state, SLOT_FILLED);
    }
    return rc;
}

/* Waits for moves under way, then for DMA. Returns `why`, or the wire's error if it fails, too. */
static int stop_all(struct ibx_staging *st, const struct ibx_staging_wire *wire, int why)
{
    while (st->moving) {
        int rc = take_arrivals(st, wire, true);
        if (rc)
            return rc;
    }
    if (why != IBX_STAGING_REFUSED)
        return ibx_staging_stop_gpu(st, why);
    ibx_staging_reset_slots(st);
    return why;
}

/* --------------------------------------------------------------------- to the device */

/* Frees slots that the GPU is done with; with `wait` waits for at least one. */
static int reclaim_slots(struct ibx_staging *st, bool wait)
{
    struct ibx_staging_slot *oldest;
    int rc = 0;
    while (!rc && (oldest = dma_pick(st, false))) {
        rc = wait ? st->cuda->event_synchronize(oldest->event)
                  : st->cuda->event_query(oldest->event);
        if (rc == IBX_CUDA_NOT_READY)
            return 0;
        if (!rc)
            rc = ibx_state_move(&oldest->state, SLOT_FREE);
        wait = false;
    }
    return rc;
}

static int fill_slots(struct ibx_staging *st, const struct ibx_staging_wire *wire)
{
    int rc = 0;
    for (unsigned i = 0; !rc && i < st->count && st->begun < st->total; i++) {
        struct ibx_staging_slot *slot = &st->slots[i];
        if (slot->state.now != SLOT_FREE)
            continue;
        slot_begin(st, slot, wire->spread);
        rc = move_start(st, wire, i, ibx_pinned_payload(slot->chunk), slot->at, slot->length);
    }
    return rc;
}

/* Starts the DMA of filled slots; counts the bytes given to the GPU. */
static int submit_slots(struct ibx_staging *st, uint64_t *given)
{
    int rc = 0;
    for (unsigned i = 0; i < st->count && !rc; i++) {
        struct ibx_staging_slot *slot = &st->slots[i];
        if (slot->state.now != SLOT_FILLED)
            continue;
        if (has_enough(st))
            rc = reclaim_slots(st, true);
        if (!rc)
            rc = dma_start(st, slot, true);
        *given += slot->length;
    }
    return rc;
}

int ibx_staging_to_device(struct ibx_staging *st, const struct ibx_staging_wire *wire,
                          const struct ibx_gpu_copy *copy)
{
    ibx_staging_set_copy(st, copy);
    int rc = ibx_staging_events_ready(st);
    if (rc)
        return ibx_staging_stop_gpu(st, rc);
    bool open = !wire->open;
    uint64_t given = 0;
    while (given < st->total) {
        rc = fill_slots(st, wire);
        if (!rc && (st->moving || !open))
            rc = take_arrivals(st, wire, true);
        if (rc)
            return rc;
        if (!open) {
            rc = wire->open(wire->context, &st->copy);
            if (rc < 0)
                return rc;
            if (rc > 1)
                return stop_all(st, wire, rc);
            open = !rc;
        }
        rc = st->gone ? IBX_STAGING_GONE : open ? ibx_staging_find_way(st) : 0;
        if (!rc && open)
            rc = submit_slots(st, &given);
        if (!rc)
            rc = reclaim_slots(st, !st->moving && given < st->total && open);
        if (rc)
            return stop_all(st, wire, rc);
    }
    struct ibx_staging_slot *last = dma_pick(st, true);
    rc = last ? st->cuda->event_synchronize(last->event) : 0;
    if (rc)
        return ibx_staging_stop_gpu(st, rc);
    dma_ended(st);
    return 0;
}

/* ------------------------------------------------------------------- from the device */

/* Gives a free slot the next piece of the copy, none of which is moved yet. */
static void fetch_begin(struct ibx_staging *st, struct ibx_staging_slot *slot)
{
    slot_begin(st, slot, 1);
    slot->next = ibx_pinned_payload(slot->chunk);
    slot->left = slot->length;
}

/* Starts the DMA of the next piece of the copy into a free slot. */
static int fetch(struct ibx_staging *st, struct ibx_staging_slot *slot)
{
    if (st->begun == st->total)
        return 0;
    fetch_begin(st, slot);
    return dma_start(st, slot, false);
}

/* Starts DMA into slots that have had no piece yet, in order, up to slot `count` - 1. */
static int fetch_first(struct ibx_staging *st, unsigned count)
{
    int rc = 0;
    while (st->fetched < count && !rc && !has_enough(st))
        rc = fetch(st, &st->slots[st->fetched++]);
    return rc;
}

/* Fetches a plain copy that fits into one chunk, and waits for it by a word (completion_word.h):
 * most such copies have a few bytes, and the program waits for them. */
static int fetch_whole(struct ibx_staging *st)
{
    struct ibx_staging_slot *slot = &st->slots[st->fetched++];
    fetch_begin(st, slot);
    const int rc = ibx_staging_by_word(st, slot->next, slot->length);
    return rc ? rc : ibx_state_move(&slot->state, SLOT_DMA);
}

int ibx_staging_from_device(struct ibx_staging *st, const struct ibx_gpu_copy *copy, bool ahead)
{
    ibx_staging_set_copy(st, copy);
    int rc = ibx_staging_events_ready(st);
    const bool by_word = !rc && st->total <= st->step && ibx_gpu_copy_is_plain(copy) &&
                         !copy->alone && ibx_staging_has_word(st);
    st->aside = copy->alone && ibx_staging_has_overdue(st) && ibx_second_context_is_there(st->cuda);
    if (by_word)
        rc = fetch_whole(st);
    else if (!rc)
        rc = fetch_first(st, ahead || copy->alone ? st->count : 1);
    if (!rc && st->slots[0].state.now == SLOT_FILLED) /* by another context */
        return 0;
    if (!rc && !by_word)
        rc = copy->alone ? ibx_staging_await_first(st)
                         : st->cuda->event_synchronize(st->slots[0].event);
    if (rc == IBX_STAGING_OVERDUE)
        return rc;
    return rc ? ibx_staging_stop_gpu(st, rc) : ibx_state_move(&st->slots[0].state, SLOT_FILLED);
}

/* Waits for the event of the current slot, if nothing is moving. */
static int current_event(struct ibx_staging *st)
{
    void *event = st->slots[st->current].event;
    if (st->moving)
        return st->cuda->event_query(event);
    return st->copy.alone ? ibx_staging_await_current(st) : st->cuda->event_synchronize(event);
}

/* Waits until the current slot is filled; meanwhile the wire continues. IBX_STAGING_OVERDUE: it has
 * to be begun again. */
static int current_ready(struct ibx_staging *st, const struct ibx_staging_wire *wire)
{
    struct ibx_staging_slot *slot = &st->slots[st->current];
    while (slot->state.now == SLOT_DMA && !st->gone) {
        int rc = current_event(st);
        if (!rc)
            return ibx_state_move(&slot->state, SLOT_FILLED);
        if (rc == IBX_CUDA_NOT_READY && st->moving)
            rc = take_arrivals(st, wire, false);
        if (rc)
            return rc;
    }
    return st->gone ? IBX_STAGING_GONE : 0; /* perhaps since an arrival */
}

/* Starts the next pieces into slots whose bytes have all been moved; in the order of the slots,
 * since pieces are moved in order. */
static int refetch(struct ibx_staging *st)
{
    int rc = 0;
    for (;;) {
        struct ibx_staging_slot *slot = &st->slots[st->refill];
        if (rc || slot->state.now != SLOT_FILLED || slot->left || has_enough(st) || keeps_free(st))
            return rc;
        rc = ibx_state_move(&slot->state, SLOT_FREE);
        st->refill = (st->refill + 1) % st->count;
        if (!rc)
            rc = fetch(st, slot);
    }
}

/* Starts to move the next n bytes, or as many of them as the current slot has. */
static int move_current(struct ibx_staging *st, const struct ibx_staging_wire *wire,
                        uint64_t offset, uint64_t n, uint64_t *moved)
{
    struct ibx_staging_slot *slot = &st->slots[st->current];
    size_t some = n < slot->left ? (size_t)n : slot->left;
    int rc = move_start(st, wire, st->current, slot->next, offset, some);
    if (rc)
        return rc;
    slot->next += some;
    slot->left -= some;
    *moved += some;
    if (!slot->left)
        st->current = (st->current + 1) % st->count;
    return 0;
}

int ibx_staging_deliver(struct ibx_staging *st, const struct ibx_staging_wire *wire, uint64_t n)
{
    if (n > st->total - st->delivered)
        return ibx_staging_stop_gpu(st, -ERANGE);
    st->delivered += n;
    for (uint64_t moved = 0; moved < n || st->moving;) {
        int rc = st->gone ? IBX_STAGING_GONE : fetch_first(st, st->count);
        if (!rc)
            rc = refetch(st);
        if (rc)
            return stop_all(st, wire, rc);
        const struct ibx_staging_slot *slot = &st->slots[st->current];
        unsigned state = slot->state.now;
        bool empty = state == SLOT_FREE || (state == SLOT_FILLED && !slot->left);
        if (moved == n || state == SLOT_MOVING || (empty && st->moving)) {
            rc = take_arrivals(st, wire, true);
        } else {
            rc = current_ready(st, wire);
            if (rc == IBX_STAGING_OVERDUE)
                continue;
            if (rc > 0)
                return stop_all(st, wire, rc);
            if (!rc)
                rc = move_current(st, wire, moved, n - moved, &moved);
        }
        if (rc)
            return rc;
    }
    return 0;
}
