/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * CUDA errors that stay: the context, which all clients of this process share, runs nothing any
 * more, and no call mends that: after a reset each returns 46 (seen with driver 580 on an H100).
 * Whoever runs the back end is told, since clients only see that each of their calls fails.
 *
 * Only another process mends it, and takes this one's place where there is a supervisor: as soon as
 * no session is left, or a little later, since who has the error may sleep on it. New clients wait
 * meanwhile. Not while sessions use other devices, whose contexts are in order: then all goes on,
 * and new clients come in.
 */
#include "frontend-glue/device_copies/copies.h"

#include "common/clock.h"
#include "common/log.h"
#include "frontend-glue/session/supervisor.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#define LEAVE_MS 3000u /* that sessions have to see what has happened */
#define LOOK_NS  10000000l

/* cudaError_t after which "the process must be terminated and relaunched", from CUDA 10.1 on. */
static bool stays(int code)
{
    static const int codes[] = {214, 220, 700, 702, 710, 714, 715, 716, 717, 718, 719};
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        if (codes[i] == code)
            return true;
    }
    return false;
}

#define DEVICES 64 /* and one more for those beyond */

static atomic_int broken[DEVICES + 1]; /* the first of them on each device, 0: none */
static atomic_uint users[DEVICES + 1]; /* sessions */

/* The place of the device that the session's runtime uses: each has a context of its own. */
static atomic_int *of_device(const struct copies *x)
{
    const struct ibx_cuda *cuda = ibx_cuda_load(NULL);
    int device = x->requests.device;
    if (device < 0 && (!cuda || cuda->ctx_get_device(&device)))
        device = 0;
    return &broken[device < 0 || device > DEVICES ? DEVICES : device];
}

/* ------------------------------------------------------------------- the next process */

static atomic_flag watched = ATOMIC_FLAG_INIT; /* a thread waits for the end of sessions */

struct harm {
    unsigned here, elsewhere; /* sessions that use broken devices, and others */
    bool any;                 /* device is broken */
};

static struct harm harm_done(void)
{
    struct harm harm = {0};
    for (int i = 0; i <= DEVICES; i++) {
        const bool is_broken = atomic_load(&broken[i]);
        *(is_broken ? &harm.here : &harm.elsewhere) += atomic_load(&users[i]);
        harm.any = harm.any || is_broken;
    }
    return harm;
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
}

static void *watch(void *nothing)
{
    (void)nothing;
    for (uint64_t deadline = ibx_deadline_in_ms(LEAVE_MS);; nap()) {
        const struct harm harm = harm_done();
        if (harm.elsewhere)
            deadline = ibx_deadline_in_ms(LEAVE_MS);
        else if (!harm.here || !ibx_ms_until(deadline))
            ibx_supervised_begin_again();
    }
}

/* False: nobody begins another process. */
static bool watch_harm(void)
{
    pthread_t thread;
    sigset_t all, before;
    if (!ibx_supervised() || atomic_flag_test_and_set(&watched))
        return ibx_supervised();
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool begun = !pthread_create(&thread, NULL, watch, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (begun)
        pthread_detach(thread);
    else
        atomic_flag_clear(&watched);
    return begun;
}

void ibx_copies_hold_back(void)
{
    for (struct harm harm = harm_done(); ibx_supervised() && harm.any && !harm.elsewhere;
         harm = harm_done())
        nap();
}

static int place_of(const struct copies *x)
{
    const int device = x->requests.device;
    return device < 0 ? 0 : device > DEVICES ? DEVICES : device;
}

void ibx_copies_count_user(struct copies *x)
{
    const int place = place_of(x);
    if (x->used == place + 1)
        return;
    atomic_fetch_add(&users[place], 1); /* first: it does not seem to be nobody meanwhile */
    ibx_copies_discount_user(x);
    x->used = place + 1;
}

void ibx_copies_discount_user(struct copies *x)
{
    if (x->used)
        atomic_fetch_sub(&users[x->used - 1], 1);
    x->used = 0;
}

/* -------------------------------------------------------------------- what breaks and mends */

void ibx_copies_note_error(const struct copies *x, int code)
{
    int none = 0;
    atomic_int *place = stays(code) ? of_device(x) : NULL;
    if (place && atomic_compare_exchange_strong(place, &none, code))
        ibx_log(IBX_LOG_ERROR,
                "CUDA error %d of %s stays: it has broken the context of all clients of this back "
                "end on device %d, whose calls fail from now on; %s",
                code, ibx_session_path(x->s)->peer, (int)(place - broken),
                watch_harm() ? "another process takes its place when no session uses another "
                               "device, and waits for those of this one for 3 seconds"
                             : "start the back end again");
}

bool ibx_copies_broken(const struct copies *x)
{
    return atomic_load(of_device(x));
}

void ibx_copies_tell_broken(const struct copies *x)
{
    for (int i = 0; i <= DEVICES; i++) {
        const int code = atomic_load(&broken[i]);
        if (code)
            ibx_log(IBX_LOG_ERROR,
                    "the CUDA calls of %s on device %d will fail: error %d of an earlier client "
                    "has broken the context of this back end; %s",
                    ibx_session_path(x->s)->peer, i, code,
                    ibx_supervised() ? "another process takes its place when no session uses "
                                       "another device"
                                     : "start it again");
    }
}
