/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * GVirtuS's handlers keep the modules, kernels and variables of all clients in maps of the process,
 * without a lock, and each client's handlers run in a thread of its own. Two programs that began at
 * the same time could crash the back end (G5: "host function not found") or each other. So a
 * handler that changes these maps runs alone, and one that looks something up runs only beside
 * other look-ups.
 *
 * A handler looks up at once, but may go on to wait for its client's kernels, which may never end.
 * So a change waits for at most LOOKUPS_MS and LAST_MS, and then no longer waits for the look-ups
 * that have not returned.
 */
#include "frontend-glue/gvirtus_handlers/registrations.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"

#include <pthread.h>
#include <stdatomic.h>

#define LOOKUPS_MS 1000u
#define LAST_MS    100u /* after that, while none can begin: those left wait for the GPU */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned looking; /* handlers that look something up, and for which changes wait */
static unsigned passed;  /* how often a change stopped waiting for all of these */
static bool changing;
static atomic_uint times_changed;

static bool begins(const char *name, const char *with)
{
    return !strncmp(name, with, strlen(with));
}

enum registrations_use ibx_registrations_use(const char *name)
{
    const char *plain = begins(name, "__") ? name + 2 : name;
    if (begins(plain, "cudaRegister") || begins(plain, "cudaUnregister"))
        return REGISTRATIONS_CHANGED;
    return begins(plain, "cudaLaunch") || strstr(plain, "Symbol") ? REGISTRATIONS_LOOKED_UP
                                                                  : REGISTRATIONS_UNUSED;
}

/* Locked, except while it sleeps. */
static void sleep_until(uint64_t deadline)
{
    const struct timespec until = ibx_timespec_of(deadline);
    pthread_cond_clockwait(&changed, &lock, CLOCK_MONOTONIC, &until);
}

/* Locked, except while it waits. Whether it stopped waiting for look-ups before they had ended. */
static bool wait_for_others(bool changes)
{
    uint64_t deadline = ibx_deadline_in_ms(LOOKUPS_MS);
    while (changing || (changes && looking && ibx_now_ns() < deadline)) {
        const bool was = changing;
        if (was)
            ibx_thread_wait(&changed, &lock);
        else
            sleep_until(deadline);
        if (was)
            deadline = ibx_deadline_in_ms(LOOKUPS_MS);
    }
    changing = changes; /* from here on look-ups wait: a chain of them would never end */
    for (deadline = ibx_deadline_in_ms(LAST_MS); changes && looking && ibx_now_ns() < deadline;)
        sleep_until(deadline);
    const bool late = changes && looking;
    passed += late;
    looking = late ? 0 : looking;
    return late;
}

/* At first a look-up does not wait for a change that is itself waiting, since some look-ups wait
 * for the GPU. */
void ibx_registrations_begin(struct gpu_session *x)
{
    const enum registrations_use use = x->handler.registrations;
    if (use == REGISTRATIONS_UNUSED || x->handler.registrations_run != REGISTRATIONS_UNUSED)
        return;
    pthread_mutex_lock(&lock);
    const bool late = wait_for_others(use == REGISTRATIONS_CHANGED);
    looking += use == REGISTRATIONS_LOOKED_UP;
    x->handler.lookups_passed = passed;
    pthread_mutex_unlock(&lock);
    x->handler.registrations_run = use;
    if (late)
        ibx_log(IBX_LOG_WARN,
                "kernels and variables are registered beside a launch, or a copy to a variable, "
                "that has not returned for %u ms: see what its client runs",
                LOOKUPS_MS);
}

void ibx_registrations_end(struct gpu_session *x)
{
    if (x->handler.registrations_run == REGISTRATIONS_UNUSED)
        return;
    pthread_mutex_lock(&lock);
    if (x->handler.registrations_run == REGISTRATIONS_CHANGED)
        changing = false;
    else
        looking -= x->handler.lookups_passed == passed;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    x->handler.registrations_run = REGISTRATIONS_UNUSED;
}

void ibx_registrations_changed(void)
{
    atomic_fetch_add(&times_changed, 1);
}

unsigned ibx_registrations_changes(void)
{
    return atomic_load(&times_changed);
}
