/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Streams and events that requests in hand name. Most requests name one, so a request notes it
 * without a lock, and who gives a stream or an event back looks for such notes:
 *
 *   a request              notes the handle, then asks whether any was given back
 *   who gives it back      counts that one is given back, then looks whether a request has noted it
 *
 * So at least one of them sees the other: either the request does not rely on what it remembers,
 * and looks in the list, which is locked; or the handle stays until the request is over. Likewise
 * at its end: the request removes its notes, then asks whether any handle is to be destroyed
 * (handle_removals.c).
 */
#include "frontend-glue/handles/handle_lists.h"

#include "common/clock.h"

#include <stdlib.h>

#define HELD_MS 10000u /* for so long a request waits for those who use something */
#define USES    4u     /* that one request notes; it holds further ones as others */

struct ibx_uses {
    struct ibx_uses *next;
    atomic_bool taken;             /* by a session */
    _Atomic uint64_t values[USES]; /* handles; 0: none */
};

static _Atomic(struct ibx_uses *)
    all; /* is never freed: as many as there were sessions at a time */

static atomic_uint gone; /* streams and events that were given back, or are about to be */

unsigned ibx_handles_gone_so_far(void)
{
    return atomic_load(&gone);
}

void ibx_handle_is_going(void)
{
    atomic_fetch_add(&gone, 1);
}

/* NULL: no memory. */
static struct ibx_uses *take(void)
{
    struct ibx_uses *u = atomic_load(&all);
    bool taken = false;
    while (u && !atomic_compare_exchange_strong(&u->taken, &taken, true)) {
        u = u->next;
        taken = false;
    }
    if (u || !(u = calloc(1, sizeof(*u))))
        return u;
    atomic_store(&u->taken, true);
    u->next = atomic_load(&all);
    while (!atomic_compare_exchange_weak(&all, &u->next, u)) {
    }
    return u;
}

bool ibx_handles_use(struct gpu_session *x, uint64_t value)
{
    for (unsigned i = 0; i < x->use_count; i++)
        if (atomic_load_explicit(&x->uses->values[i], memory_order_relaxed) == value)
            return true;
    if (x->use_count == USES || !(x->uses || (x->uses = take())))
        return false;
    atomic_store(&x->uses->values[x->use_count++], value);
    return true;
}

void ibx_handle_use_ends(struct gpu_session *x, uint64_t value)
{
    unsigned i = 0;
    while (i < x->use_count && atomic_load(&x->uses->values[i]) != value)
        i++;
    if (i == x->use_count)
        return;
    atomic_store(&x->uses->values[i], atomic_load(&x->uses->values[--x->use_count]));
    atomic_store(&x->uses->values[x->use_count], 0);
}

void ibx_handles_uses_end(struct gpu_session *x)
{
    uint64_t values[USES];
    const unsigned n = x->use_count;
    while (x->use_count) {
        _Atomic uint64_t *at = &x->uses->values[--x->use_count];
        values[x->use_count] = atomic_load_explicit(at, memory_order_relaxed);
        atomic_store(at, 0);
    }
    if (n && ibx_handle_any_destroyed(values, n))
        ibx_handles_destroy_unused();
}

void ibx_handles_uses_leave(struct gpu_session *x)
{
    ibx_handles_uses_end(x);
    if (x->uses)
        atomic_store(&x->uses->taken, false);
    x->uses = NULL;
}

bool ibx_handle_is_used(const struct gpu_session *x, const struct handle *h)
{
    if (h->kind != IBX_HANDLE_STREAM && h->kind != IBX_HANDLE_EVENT)
        return false;
    ibx_handle_is_going();
    for (const struct ibx_uses *u = atomic_load(&all); u; u = u->next)
        for (unsigned i = 0; i < USES && (!x || u != x->uses); i++)
            if (atomic_load(&u->values[i]) == h->value)
                return true;
    return false;
}

/* Locked, except while it waits: a moment, as nobody tells that a note is gone. */
static void wait_a_moment(void)
{
    const struct timespec soon = ibx_timespec_of(ibx_deadline_in_ms(1));
    ibx_handle_wait(&soon);
}

static bool is_anothers(const struct gpu_session *x, const struct handle *h)
{
    return h->user && h->user != x;
}

/* Its own note would keep the one who has it alone from getting it. */
bool ibx_handles_has_used(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    const uint64_t deadline = ibx_deadline_in_ms(HELD_MS);
    pthread_mutex_lock(&ibx_handles_lock);
    const struct handle *h = ibx_handle_find(x, kind, value);
    while (h && is_anothers(x, h) && ibx_now_ns() < deadline) {
        ibx_handle_use_ends(x, value);
        wait_a_moment();
        h = ibx_handle_find(x, kind, value);
    }
    const bool has = h && !is_anothers(x, h) && ibx_handles_use(x, value);
    pthread_mutex_unlock(&ibx_handles_lock);
    if (!has)
        ibx_handles_destroy_unused(); /* its own note may have kept it */
    return has;
}

/* Locked. From the first call on, others that name it wait, unless somebody else has it alone. */
static bool gets_alone(struct gpu_session *x, struct handle *h)
{
    if (is_anothers(x, h))
        return false;
    h->user = x;
    return !ibx_handle_is_used(x, h);
}

bool ibx_handles_use_alone(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    const uint64_t deadline = ibx_deadline_in_ms(HELD_MS);
    struct handle *h;
    bool alone = false;
    pthread_mutex_lock(&ibx_handles_lock);
    ibx_handle_use_ends(x, value);
    while ((h = ibx_handle_find(x, kind, value)) && !(alone = gets_alone(x, h)) &&
           ibx_now_ns() < deadline)
        wait_a_moment();
    alone = alone && ibx_handle_hold(x, h);
    if (h && h->user == x && !alone)
        h->user = NULL;
    pthread_mutex_unlock(&ibx_handles_lock);
    if (!alone)
        ibx_handles_destroy_unused(); /* its own note may have kept it */
    return alone;
}
