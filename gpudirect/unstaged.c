/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Copies without chunks, between the device and memory that is already pinned: synchronous ones,
 * and ones that are left to their stream. While other sessions copy, these copies are cut into
 * pieces, so that the other sessions' copies come in between (turns.h). */
#include "gpudirect/staging_internal.h"

#include "common/clock.h"
#include "common/thread.h"

#include <errno.h>

#define WORD_MOST   (4u << 20) /* bytes: a longer copy gains nothing by a word */
#define LEFT_PIECE  (1u << 20) /* bytes of a piece of a copy that is not waited for */
#define PATIENCE_NS 1000000u   /* wait for it at most so long: its stream may wait for the client */

/* ------------------------------------------------------------------------ their turn */

int ibx_staging_put_behind(struct ibx_staging *st, void *stream, uint64_t n)
{
    if (n > IBX_CUDA_EARLY_MOST)
        return 0;
    const int rc = ibx_staging_before_ready(st);
    return rc ? rc : ibx_cuda_put_behind(st->cuda, st->before, stream);
}

static int put_behind(struct ibx_staging *st, bool to_device)
{
    return to_device && st->copy.changes && ibx_gpu_copy_is_plain(&st->copy)
               ? ibx_staging_put_behind(st, st->copy.stream, st->total)
               : 0;
}

/* ------------------------------------------------------------------------ waited for */

/* Waits by an event, not by synchronizing the stream, to which others may add work without end. */
static int wait_for_stream(struct ibx_staging *st, void *stream)
{
    int rc = ibx_staging_record(st, st->slots[0].event, stream);
    return rc ? rc : st->cuda->event_synchronize(st->slots[0].event);
}

/* Bytes of a straight copy that the GPU is given at once. */
static size_t straight_piece(enum ibx_turn_company company)
{
    return company == IBX_TURN_BESIDE        ? IBX_TURN_PIECE
           : company == IBX_TURN_BESIDE_LONG ? IBX_TURN_LONGER
           : company == IBX_TURN_NEAR        ? IBX_TURN_LONG
                                             : SIZE_MAX;
}

/* Whether there is a word in the context of the events; takes one if needed. */
static bool word_ready(struct ibx_staging *st)
{
    if (!st->word && !st->wordless)
        st->word = ibx_word_take(st->cuda, st->context);
    st->wordless = !st->word;
    return st->word;
}

void ibx_staging_prepare(struct ibx_staging *st)
{
    if (!ibx_staging_events_ready(st))
        word_ready(st);
}

/* Whether a word may tell the end of the copy. Not while other sessions copy, since their copies
 * would wait until the GPU has written it; and not beside graphs that wait for their client, when
 * the driver is called as little as possible. */
static bool may_have_word(const struct ibx_staging *st, const struct ibx_gpu_copy *copy)
{
    return st->company < IBX_TURN_BESIDE_LONG && !copy->beside_graphs;
}

/* Puts a mark behind the current copy: the word if `*word`, else the event. Should the driver
 * refuse to write the word, clears `*word` and uses the event. */
static int mark_end(struct ibx_staging *st, void *event, bool *word)
{
    *word = *word && !ibx_word_set(st->cuda, st->word, st->copy.stream);
    if (*word)
        return 0;
    ibx_word_give(st->word);
    st->word = NULL;
    st->wordless = true;
    return ibx_staging_record(st, event, st->copy.stream);
}

int ibx_staging_settle(struct ibx_staging *st, void *stream)
{
    int rc = ibx_staging_events_ready(st);
    if (!rc)
        rc = wait_for_stream(st, stream);
    return rc ? ibx_staging_stop_gpu(st, rc) : 0;
}

/* Copies a part of the current copy to or from pinned memory and waits for it. */
static int straight(struct ibx_staging *st, void *host, uint64_t at, size_t length, bool to_device)
{
    const bool plain = ibx_gpu_copy_is_plain(&st->copy);
    uint8_t *bytes = host;
    bool word = may_have_word(st, &st->copy) && word_ready(st);
    struct ibx_staging_slot *slot = &st->slots[0];
    unsigned begun = 0;
    bool any = false;
    int rc = 0;
    for (size_t done = 0, some; done < length && !rc; done += some, begun++) {
        const size_t most = plain ? straight_piece(st->company) : SIZE_MAX;
        slot = &st->slots[begun % IBX_STAGING_AT_ONCE];
        some = length - done < most ? length - done : most;
        const bool marked = word && done + some == length;
        ibx_staging_take_turn(st, some);
        rc = begun < IBX_STAGING_AT_ONCE ? 0 : st->cuda->event_synchronize(slot->event);
        if (!rc)
            rc = ibx_staging_dma(st, bytes + done, at + done, some, to_device,
                                 marked ? NULL : slot->event, &any);
        if (!rc && marked)
            rc = mark_end(st, slot->event, &word);
    }
    if (!rc)
        rc = word ? ibx_word_wait(st->cuda, st->word, st->copy.stream, slot->event)
                  : st->cuda->event_synchronize(slot->event);
    if (rc && begun) /* as in dma_start() */
        ibx_cuda_stream_wait(st->cuda, st->copy.stream);
    return rc;
}

bool ibx_staging_has_word(struct ibx_staging *st)
{
    st->company = ibx_turn_company(st->turn);
    return may_have_word(st, &st->copy) && word_ready(st);
}

int ibx_staging_by_word(struct ibx_staging *st, void *host, size_t length)
{
    return straight(st, host, 0, length, false);
}

/* On the legacy stream, without a word, a plain copy uses the driver's synchronous copy, as the
 * application's own cudaMemcpy would: that saves two driver calls. Not while others copy: they
 * would wait for the driver's lock meanwhile, and waking them takes time. */
int ibx_staging_straight(struct ibx_staging *st, void *host, const struct ibx_gpu_copy *copy,
                         bool to_device)
{
    const struct ibx_cuda *cuda = st->cuda;
    const bool legacy = !copy->stream || copy->stream == IBX_CUDA_STREAM_LEGACY;
    int rc;
    st->company = ibx_turn_company(st->turn);
    const bool word = may_have_word(st, copy) && copy->width <= WORD_MOST &&
                      !ibx_staging_events_ready(st) && word_ready(st);
    if (!word && !copy->beside_graphs && ibx_gpu_copy_is_plain(copy) && legacy &&
        st->company < IBX_TURN_BESIDE_LONG && copy->width <= straight_piece(st->company)) {
        rc = to_device ? cuda->memcpy_to_device(copy->device, host, (size_t)copy->width)
                       : cuda->memcpy_from_device(host, copy->device, (size_t)copy->width);
    } else {
        ibx_staging_set_copy(st, copy);
        rc = word ? 0 : ibx_staging_events_ready(st);
        if (!rc)
            rc = put_behind(st, to_device);
        if (!rc)
            rc = straight(st, host, 0, (size_t)st->total, to_device);
    }
    return rc ? ibx_staging_stop_gpu(st, rc) : 0;
}

bool ibx_staging_may_begin(struct ibx_staging *st, const struct ibx_gpu_copy *copy)
{
    return ibx_gpu_copy_is_plain(copy) && !copy->beside_graphs && st->open < IBX_STAGING_AT_ONCE &&
           ibx_turn_company(st->turn) <= IBX_TURN_NEAR;
}

/* Such copies have events of their own, since copies between begin and end use those of the slots.
 */
int ibx_staging_begin_straight(struct ibx_staging *st, void *host, const struct ibx_gpu_copy *copy,
                               struct ibx_staging_begun *begun)
{
    bool any = false;
    ibx_staging_set_copy(st, copy);
    ibx_staging_take_turn(st, (size_t)st->total);
    int rc = ibx_staging_begun_events_ready(st);
    void *event = st->begun_events[st->begun_next % IBX_STAGING_AT_ONCE];
    if (!rc)
        rc = ibx_staging_dma(st, host, 0, (size_t)st->total, false, event, &any);
    if (rc && any) /* as in dma_start() */
        ibx_cuda_stream_wait(st->cuda, copy->stream);
    if (rc)
        return ibx_staging_stop_gpu(st, rc);
    *begun = (struct ibx_staging_begun){event, st->generation};
    st->begun_next++;
    st->open++;
    return 0;
}

int ibx_staging_end_straight(struct ibx_staging *st, struct ibx_staging_begun *begun)
{
    if (begun->generation != st->generation) {
        begun->event = NULL;
        return IBX_STAGING_GONE;
    }
    const int rc = st->cuda->event_synchronize(begun->event);
    st->open--;
    return rc;
}

int ibx_staging_deliver_straight(struct ibx_staging *st, void *to, uint64_t n)
{
    if (n > st->total - st->delivered)
        return ibx_staging_stop_gpu(st, -ERANGE);
    if (st->gone)
        return ibx_staging_stop_gpu(st, IBX_STAGING_GONE);
    ibx_staging_reset_slots(st);
    int rc = n ? straight(st, to, st->delivered, (size_t)n, false) : 0;
    if (rc)
        return ibx_staging_stop_gpu(st, rc);
    ibx_staging_restart_at(st, st->delivered + n);
    return 0;
}

/* ------------------------------------------------------------------------- left behind */

/* Whether the older of the last two pieces that were left to the stream is over; with `all` both.
 */
static bool left_over(const struct ibx_staging *st, bool all)
{
    for (unsigned back = all ? 1 : IBX_STAGING_AT_ONCE;
         back <= IBX_STAGING_AT_ONCE && back <= st->left; back++) {
        if (st->cuda->event_query(st->slots[(st->left - back) % IBX_STAGING_AT_ONCE].event))
            return false;
    }
    return true;
}

/* Whether the stream has work other than such pieces. It may take any time, and a copy behind it
 * does not occupy the copy engine yet. */
static bool is_behind_others(const struct ibx_staging *st)
{
    const bool own = st->left_stream == st->copy.stream && !left_over(st, true);
    return !own && st->cuda->stream_query(st->copy.stream);
}

/* Waits until the GPU may be given one more piece. False: that takes longer than PATIENCE_NS. */
static bool left_room(const struct ibx_staging *st)
{
    const uint64_t until = ibx_now_ns() + PATIENCE_NS;
    while (!left_over(st, false)) {
        if (ibx_now_ns() > until)
            return false;
        ibx_cpu_relax();
    }
    return true;
}

int ibx_staging_leave(struct ibx_staging *st, void *host, const struct ibx_gpu_copy *copy,
                      bool to_device)
{
    uint8_t *bytes = host;
    bool begun = false;
    ibx_staging_set_copy(st, copy);
    bool beside = st->company == IBX_TURN_BESIDE;
    int rc = beside ? ibx_staging_events_ready(st) : 0;
    bool limited = beside && !rc && !is_behind_others(st); /* put_behind() adds work */
    if (!rc)
        rc = put_behind(st, to_device);
    for (size_t done = 0, some; done < st->total && !rc; done += some) {
        const size_t most = !beside ? SIZE_MAX : limited ? IBX_TURN_PIECE : LEFT_PIECE;
        some = st->total - done < most ? (size_t)(st->total - done) : most;
        ibx_staging_take_turn(st, some);
        limited = limited && left_room(st);
        void *event = limited ? st->slots[st->left % IBX_STAGING_AT_ONCE].event : NULL;
        rc = ibx_staging_dma(st, bytes + done, done, some, to_device, event, &begun);
        st->left += limited;
        st->left_stream = copy->stream;
        beside = beside && st->company == IBX_TURN_BESIDE;
        limited = limited && beside;
    }
    if (rc && begun) /* no fence is behind the pieces */
        ibx_cuda_stream_wait(st->cuda, copy->stream);
    return rc ? ibx_staging_stop_gpu(st, rc) : 0;
}
