/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Captures of streams. A wait for the device ends all captures in its context, in whatever mode.
 * All clients are threads of one process and share a context, which natively they do not. So such a
 * wait is made while no other client captures, and a capture begins while none is under way. Who
 * comes first goes first: neither captures nor waits that follow each other keep the other kind
 * out.
 *
 * Nobody is sure to end, and what a wait is for may need a capture that has not begun. So nobody
 * stays here for long. A capture that outlasts a wait's patience is ended by it, and not waited for
 * again.
 */
#include "frontend-glue/device_copies/copies.h"

#include "common/clock.h"

#include <pthread.h>
#include <stdatomic.h>

#define CAPTURES_MS 2000u /* a wait stays for captures */
#define WAITS_MS    500u  /* a capture stays for waits */
#define QUEUED_MS   200u  /* ... that have not begun: the one they stay for may stay for this one */

#define CAPTURE_INVALIDATED 901 /* cudaError_t */
#define CAPTURE_UNJOINED    904

/* A client that is about to capture, or to wait for the device. */
struct place {
    struct place *next; /* behind it */
    bool waits;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct place *queue;
static _Atomic unsigned captures; /* of all clients */
static unsigned whole;            /* of them, those that no wait has ended */
static unsigned ended;            /* how often a wait has ended all there were */
static unsigned waits;            /* for the device, under way */

bool ibx_copies_captures(void)
{
    return atomic_load(&captures);
}

/* Locked. The client's own captures that no wait has ended. */
static unsigned own(struct copies *x)
{
    if (x->captures_ended != ended)
        x->whole_captures = 0;
    x->captures_ended = ended;
    return x->whole_captures;
}

/* Locked. */
static void enter(struct place *place)
{
    struct place **at = &queue;
    while (*at)
        at = &(*at)->next;
    *at = place;
}

/* Locked. */
static void leave(const struct place *place)
{
    struct place **at = &queue;
    while (*at != place)
        at = &(*at)->next;
    *at = place->next;
    pthread_cond_broadcast(&changed);
}

/* Locked. Whether somebody of the other kind came before. */
static bool is_behind(const struct place *place)
{
    const struct place *before = queue;
    while (before != place && before->waits == place->waits)
        before = before->next;
    return before != place;
}

/* Locked, and not while it sleeps. False: it is that late. */
static bool sleep_until(uint64_t deadline)
{
    const struct timespec until = {(time_t)(deadline / 1000000000u),
                                   (long)(deadline % 1000000000u)};
    return ibx_now_ns() < deadline &&
           (pthread_cond_clockwait(&changed, &lock, CLOCK_MONOTONIC, &until), true);
}

/* ------------------------------------------------------------------------------- waits */

void ibx_captures_wait_begin(struct copies *x)
{
    const uint64_t deadline = ibx_deadline_in_ms(CAPTURES_MS);
    struct place place = {.waits = true};
    pthread_mutex_lock(&lock);
    enter(&place);
    while ((whole > own(x) || is_behind(&place)) && sleep_until(deadline)) {
    }
    leave(&place);
    ended += whole > 0;
    whole = 0;
    waits++;
    pthread_mutex_unlock(&lock);
}

bool ibx_captures_wait_try(void)
{
    pthread_mutex_lock(&lock);
    const bool can = !atomic_load(&captures);
    waits += can;
    pthread_mutex_unlock(&lock);
    return can;
}

void ibx_captures_wait_end(void)
{
    pthread_mutex_lock(&lock);
    waits--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* ---------------------------------------------------------------------------- captures */

/* A client that captures already goes before those who wait for that. */
static void begin(struct copies *x)
{
    const uint64_t deadline = ibx_deadline_in_ms(WAITS_MS), queued = ibx_deadline_in_ms(QUEUED_MS);
    struct place place = {.waits = false};
    pthread_mutex_lock(&lock);
    enter(&place);
    while ((waits && sleep_until(deadline)) ||
           (!waits && !own(x) && is_behind(&place) && sleep_until(queued))) {
    }
    x->whole_captures = own(x) + 1;
    x->captures++;
    atomic_fetch_add(&captures, 1);
    whole++;
    leave(&place);
    pthread_mutex_unlock(&lock);
}

static void end(struct copies *x, unsigned count)
{
    pthread_mutex_lock(&lock);
    const unsigned mine = own(x), gone = mine < count ? mine : count;
    x->whole_captures -= gone;
    whole -= gone;
    x->captures -= count;
    atomic_fetch_sub(&captures, count);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* By two of cudaStreamEndCapture's errors a broken capture ends, too. */
static bool has_ended(int exit_code)
{
    return !exit_code || exit_code == CAPTURE_INVALIDATED || exit_code == CAPTURE_UNJOINED;
}

/* ----------------------------------------------------------------- handlers of GVirtuS's */

/* What gives a library's handle back waits for the device, too. */
static bool waits_for_device(const char *name)
{
    static const char *const names[] = {"cudaDeviceSynchronize", "cudaThreadSynchronize",
                                        "cuCtxSynchronize",      "cublasDestroy",
                                        "cublasDestroy_v2",      "cudnnDestroy"};
    size_t i = 0;
    while (i < sizeof(names) / sizeof(names[0]) && strcmp(name, names[i]) != 0)
        i++;
    return i < sizeof(names) / sizeof(names[0]);
}

enum captures_use ibx_captures_use(const char *name)
{
    if (!strncmp(name, "cudaStreamBeginCapture", 22))
        return CAPTURES_BEGUN;
    if (!strncmp(name, "cudaStreamEndCapture", 20))
        return CAPTURES_ENDED;
    return waits_for_device(name) ? CAPTURES_WAIT : CAPTURES_UNUSED;
}

void ibx_captures_run(struct copies *x)
{
    if (x->captures_run != CAPTURES_UNUSED)
        return;
    x->captures_run = x->captures_use;
    if (x->captures_run == CAPTURES_BEGUN)
        begin(x);
    else if (x->captures_run == CAPTURES_WAIT)
        ibx_captures_wait_begin(x);
}

void ibx_captures_ran(struct copies *x)
{
    if (x->captures_run != CAPTURES_WAIT)
        return;
    ibx_captures_wait_end();
    x->captures_run = CAPTURES_UNUSED;
}

void ibx_captures_answered(struct copies *x, int exit_code)
{
    if (x->captures && ((x->captures_run == CAPTURES_BEGUN && exit_code) ||
                        (x->captures_run == CAPTURES_ENDED && has_ended(exit_code))))
        end(x, 1);
    x->captures_run = CAPTURES_UNUSED;
}

void ibx_captures_end(struct copies *x)
{
    ibx_captures_ran(x);
    end(x, x->captures);
    x->captures_run = CAPTURES_UNUSED;
}
