/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Events that this process has made, and which requests without a reply name them. An event for
 * which there is no memory here is not noted: calls with it wait, as calls with events of other
 * processes do.
 */
#include "frontend-glue/call_pipeline/internal.h"

#include <stdlib.h>

#define FIRST_BITS 10u

struct event {
    struct event *next;
    uint64_t handle;
    uint64_t made;             /* no other event has had this number */
    struct ibx_event_use last; /* its last record; number 0: it has a reply */
    struct ibx_event_uses uses;
};

static struct event *first_chains[1u << FIRST_BITS];
static struct {
    pthread_mutex_t lock;
    struct event **chains; /* 1 << bits of them */
    unsigned bits;
    size_t count;  /* of events */
    uint64_t made; /* the last one's number */
} all = {.lock = PTHREAD_MUTEX_INITIALIZER, .chains = first_chains, .bits = FIRST_BITS};

/* Locked. The pointer to the event, or to NULL at its chain's end. */
static struct event **place_of(uint64_t handle)
{
    struct event **at = &all.chains[handle * 0x9e3779b97f4a7c15u >> (64 - all.bits)];
    while (*at && (*at)->handle != handle)
        at = &(*at)->next;
    return at;
}

/* Locked. Replaces the chains, which have no events. */
static void set_chains(struct event **chains, unsigned bits)
{
    if (all.chains != first_chains)
        free(all.chains);
    all.chains = chains;
    all.bits = bits;
}

/* Locked. Twice as many chains, if there is memory: a program may have very many events. */
static void grow(void)
{
    const size_t chains = (size_t)1 << all.bits;
    struct event **more = calloc(2 * chains, sizeof(*more)), *events = NULL;
    if (!more)
        return;
    for (size_t i = 0; i < chains; i++) {
        for (struct event *e; (e = all.chains[i]); events = e) {
            all.chains[i] = e->next;
            e->next = events;
        }
    }
    set_chains(more, all.bits + 1);
    for (struct event *e; (e = events);) {
        struct event **at = place_of(e->handle);
        events = e->next;
        e->next = NULL;
        *at = e;
    }
}

void ibx_events_add(uint64_t handle)
{
    struct event *made = calloc(1, sizeof(*made));
    pthread_mutex_lock(&all.lock);
    struct event **at = place_of(handle);
    if (*at) { /* it was destroyed by a call that was not seen here */
        free(made);
        made = *at;
        *at = made->next;
        all.count--;
    }
    if (made) {
        *made = (struct event){.next = *at, .handle = handle, .made = ++all.made};
        *at = made;
        if (++all.count > (size_t)1 << all.bits)
            grow();
    }
    pthread_mutex_unlock(&all.lock);
}

void ibx_events_remove(uint64_t handle)
{
    pthread_mutex_lock(&all.lock);
    struct event **at = place_of(handle), *gone = *at;
    if (gone) {
        *at = gone->next;
        all.count--;
    }
    pthread_mutex_unlock(&all.lock);
    free(gone);
}

void ibx_events_clear(void)
{
    pthread_mutex_lock(&all.lock);
    for (size_t i = 0; i < (size_t)1 << all.bits; i++) {
        for (struct event *e; (e = all.chains[i]);) {
            all.chains[i] = e->next;
            free(e);
        }
    }
    set_chains(first_chains, FIRST_BITS);
    all.count = 0;
    pthread_mutex_unlock(&all.lock);
}

uint64_t ibx_events_made(uint64_t handle)
{
    pthread_mutex_lock(&all.lock);
    const struct event *e = *place_of(handle);
    const uint64_t made = e ? e->made : 0;
    pthread_mutex_unlock(&all.lock);
    return made;
}

/* ---------------------------------------------------------------------------- who uses it */

/* Locked. */
static void note_use(struct event *e, const struct ibx_event_use *use)
{
    struct ibx_event_uses *uses = &e->uses;
    unsigned i = 0;
    while (i < uses->count && uses->of[i].pipeline != use->pipeline)
        i++;
    if (i == IBX_EVENT_USES) {
        uses->many = true;
        return;
    }
    uses->of[i] = *use;
    uses->count += i == uses->count;
}

void ibx_events_use(uint64_t handle, const struct ibx_event_use *use)
{
    pthread_mutex_lock(&all.lock);
    struct event *e = *place_of(handle);
    if (e)
        note_use(e, use);
    pthread_mutex_unlock(&all.lock);
}

bool ibx_events_uses(uint64_t handle, struct ibx_event_uses *uses)
{
    pthread_mutex_lock(&all.lock);
    const struct event *e = *place_of(handle);
    if (e)
        *uses = e->uses;
    pthread_mutex_unlock(&all.lock);
    return e && !uses->many;
}

void ibx_events_record(uint64_t handle, const struct ibx_event_use *use)
{
    pthread_mutex_lock(&all.lock);
    struct event *e = *place_of(handle);
    if (e) {
        e->last = *use;
        if (use->number)
            note_use(e, use);
    }
    pthread_mutex_unlock(&all.lock);
}

bool ibx_events_last(uint64_t handle, struct ibx_event_use *last)
{
    pthread_mutex_lock(&all.lock);
    const struct event *e = *place_of(handle);
    if (e)
        *last = e->last;
    pthread_mutex_unlock(&all.lock);
    return e && last->number;
}

/* ------------------------------------------------------------------------------- around a fork */

void ibx_events_lock(void)
{
    pthread_mutex_lock(&all.lock);
}

void ibx_events_unlock(void)
{
    pthread_mutex_unlock(&all.lock);
}
