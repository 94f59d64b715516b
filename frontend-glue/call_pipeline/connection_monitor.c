/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The connection monitor: a thread that looks twice a second for broken connections that no call
 * notices, since their threads compute or only launch, and has their sessions go on over new ones.
 * If a session's own thread is in a call, that call does it.
 */
#include "frontend-glue/call_pipeline/internal.h"

#include "common/log.h"
#include "common/thread.h"

#include <string.h>
#include <time.h>

#define PERIOD_NS 500000000l

static _Atomic unsigned begun_in; /* ibx_process_number() of the process in which it runs, + 1 */

/* Locked. */
static void check_session(struct ibx_pipeline *p)
{
    if (atomic_load(&p->ended) || !ibx_session_live(p->session))
        return;
    if (!ibx_session_look_closely(p->session) || !ibx_session_resume_if_ended(p->session))
        ibx_backlog_drop(p);
    else
        ibx_backlog_push(p, true);
}

void ibx_connection_monitor_check(void)
{
    uint64_t below = UINT64_MAX;
    for (struct ibx_pipeline *p; (p = ibx_process_lock_below(&below));) {
        check_session(p);
        pthread_mutex_unlock(&p->lock);
    }
}

static void *monitor(void *argument)
{
    (void)argument;
    for (;;) {
        nanosleep(&(struct timespec){.tv_nsec = PERIOD_NS}, NULL);
        ibx_connection_monitor_check();
    }
    return NULL;
}

void ibx_connection_monitor_begin(void)
{
    const unsigned now = ibx_process_number() + 1;
    if (atomic_exchange(&begun_in, now) == now)
        return;
    const int rc = ibx_thread_begin(NULL, monitor, NULL);
    if (rc)
        ibx_log(IBX_LOG_WARN,
                "broken sessions reconnect only with their next call, because there is no thread "
                "for that: %s",
                strerror(-rc));
}
