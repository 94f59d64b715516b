/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Signals that end a measurement early. */
#include "tools/ib-bw/ib-bw.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

static const struct timespec grace = {.tv_sec = 2}; /* for the current call to return */

static struct {
    pthread_t thread;
    atomic_bool *stopped; /* the measurement has to end */
    void (*report)(void);
    sigset_t signals;
    atomic_bool over; /* the measurement; the signal only wakes the thread */
} watch;

static void *watch_main(void *argument)
{
    int number;
    (void)argument;
    sigwait(&watch.signals, &number);
    if (atomic_load(&watch.over))
        return NULL;
    atomic_store(watch.stopped, true);
    /* After a second signal, or if the call does not return in time, this thread reports and ends
     * the process. The path stays open, since the measuring thread is inside of it. */
    sigtimedwait(&watch.signals, NULL, &grace);
    if (!atomic_load(&watch.over)) {
        fputs("ib-bw: stopped in the middle of a call that does not return\n", stderr);
        watch.report();
        _exit(130);
    }
    return NULL;
}

int ibx_bw_watch_start(atomic_bool *stopped, void (*report)(void), struct ibx_error *err)
{
    sigemptyset(&watch.signals);
    sigaddset(&watch.signals, SIGINT);
    sigaddset(&watch.signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &watch.signals, NULL);
    watch.report = report;
    watch.stopped = stopped;
    int rc = pthread_create(&watch.thread, NULL, watch_main, NULL);
    return rc ? ibx_error_set_task(err, -rc, "no thread to wait for signals") : 0;
}

void ibx_bw_watch_end(void)
{
    atomic_store(&watch.over, true);
    pthread_kill(watch.thread, SIGTERM);
    pthread_join(watch.thread, NULL);
}
