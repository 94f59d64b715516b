/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Limits what is in flight over a wire, beside faulted pages, to about what fills the wire. More
 * would queue there, and the answer to the next fault would come after it, even over a connection
 * of its own.
 *
 * The round trip is the shortest time that a request of a few pages has taken; until one has been
 * measured, the caller's estimate. Arriving bytes are counted in windows of time. The rate of the
 * wire is the highest rate that two windows in a row have reached (a single window is not enough:
 * after a pause of this process all that came meanwhile arrives at once). The rate counts as known
 * once it has stopped growing although enough was in flight to fill the wire. Then the limit is
 * what arrives in a round trip, times a factor. The factor grows while requests are held back and
 * less arrives than the rate, for whatever reason, and shrinks otherwise.
 */
#include "userfaultfd/engine.h"

#include "common/clock.h"

#define FORGET_NS (20 * IBX_NS_PER_MS) /* between two steps by which the round trip may grow */
#define WINDOW_NS (2 * IBX_NS_PER_MS)  /* the shortest window in which the rate is measured */

/* The rate is known after this many windows in which enough was in flight and it did not grow by
 * more than a quarter: connections begin slowly. */
#define STEADY 4u

/* The factor, in 64ths. SLACK_NS is added to the round trip times the factor. */
#define FACTOR_LEAST 80u /* 1.25 */
#define FACTOR_MOST  512u
#define SLACK_NS     (IBX_NS_PER_MS / 2)
/* Used instead of SLACK_NS when no fault has occurred for QUIET_NS. */
#define SLACK_QUIET_NS (3 * IBX_NS_PER_MS)
#define QUIET_NS       (50 * IBX_NS_PER_MS)

/* A shorter time is taken at once. Longer ones raise the round trip by at most 1/64 every
 * FORGET_NS, so that it doubles in about a second. */
void ibx_fault_note_round_trip(struct ibx_fault *e, uint64_t ns, uint64_t now_ns)
{
    struct flight *f = &e->flight;
    const uint64_t before = atomic_load_explicit(&f->round_trip_ns, memory_order_relaxed),
                   most = before + before / 64;
    uint64_t now = ns;
    if (before && ns > before) {
        uint64_t then = atomic_load_explicit(&f->forgot_ns, memory_order_relaxed);
        if (now_ns - then < FORGET_NS ||
            !atomic_compare_exchange_strong(&f->forgot_ns, &then, now_ns))
            return;
        now = ns < most ? ns : most;
    }
    atomic_store_explicit(&f->round_trip_ns, now, memory_order_relaxed);
}

/* A window has ended, in which `rate` bytes per second arrived. One thread at a time. */
static void rate_note(struct flight *f, uint64_t rate, uint64_t trip)
{
    const uint64_t other = atomic_exchange(&f->latest, rate);
    const uint64_t both = rate < other ? rate : other;
    const uint64_t most = atomic_load_explicit(&f->rate, memory_order_relaxed);
    const uint64_t flying = atomic_load_explicit(&f->bytes, memory_order_relaxed);
    const bool held = atomic_exchange(&f->held, false);
    unsigned factor = atomic_load_explicit(&f->factor, memory_order_relaxed);
    const bool full = flying / 3 * 2 > both / 1000 * (trip / 1000) / 1000;
    if (both > most)
        atomic_store_explicit(&f->rate, both, memory_order_relaxed);
    if (both > most + most / 4)
        atomic_store_explicit(&f->steady, 0, memory_order_relaxed);
    else if (full && atomic_load_explicit(&f->steady, memory_order_relaxed) < STEADY)
        atomic_fetch_add(&f->steady, 1);
    if (held && rate < most / 10 * 9) {
        factor += factor / 4;
        if (factor > FACTOR_MOST) /* the limit is not the cause: the wire has become slower */
            atomic_store_explicit(&f->rate, most - most / 16, memory_order_relaxed);
    } else if (factor > FACTOR_LEAST) {
        factor -= factor / 32;
    }
    factor = factor < FACTOR_LEAST ? FACTOR_LEAST : factor > FACTOR_MOST ? FACTOR_MOST : factor;
    atomic_store_explicit(&f->factor, factor, memory_order_relaxed);
}

void ibx_fault_note_arrival(struct ibx_fault *e, uint64_t bytes, uint64_t now_ns)
{
    struct flight *f = &e->flight;
    const uint64_t trip = round_trip_of(e);
    uint64_t from = atomic_load_explicit(&f->window_ns, memory_order_relaxed);
    if (!e->wire)
        return;
    count(&f->window_bytes, bytes);
    if (now_ns - from < (trip > WINDOW_NS ? trip : WINDOW_NS) ||
        !atomic_compare_exchange_strong(&f->window_ns, &from, now_ns))
        return;
    const uint64_t came = atomic_exchange(&f->window_bytes, 0);
    if (from)
        rate_note(f, came * 1000 / ((now_ns - from) / 1000) * 1000, trip);
}

uint64_t ibx_fault_flight_room(const struct fault_worker *w, uint64_t now_ns)
{
    const struct ibx_fault *e = w->engine;
    const struct flight *f = &e->flight;
    const uint64_t rate = atomic_load_explicit(&f->rate, memory_order_relaxed);
    if (!e->wire || atomic_load_explicit(&f->steady, memory_order_relaxed) < STEADY)
        return UINT64_MAX;
    const bool quiet = now_ns - atomic_load_explicit(&f->fault_ns, memory_order_relaxed) > QUIET_NS;
    const uint64_t factor = atomic_load_explicit(&f->factor, memory_order_relaxed);
    const uint64_t ns = round_trip_of(e) / 64 * (factor > FACTOR_LEAST ? factor : FACTOR_LEAST) +
                        (quiet ? SLACK_QUIET_NS : SLACK_NS);
    return rate / 1000 * (ns / 1000) / 1000 / (e->worker_count - e->fault_workers) + SMALL_PAGE;
}
