/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Signals that end a measurement early. */
#include "tools/ib-bw/ib-bw.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define GRACE_MS 2000 /* for the call in hand */

static struct {
    pthread_t thread;
    struct bw_bench *bench; /* NULL: not started */
    void (*report)(struct bw_bench *bench);
    int signal_fd;
    int end_fd; /* an eventfd: the measurement is over */
} watch;

/* True when a signal came, false at the end of the measurement or of the time. */
static bool await_signal(int timeout_ms)
{
    struct signalfd_siginfo info;
    struct pollfd wait[2] = {{.fd = watch.end_fd, .events = POLLIN},
                             {.fd = watch.signal_fd, .events = POLLIN}};
    while (poll(wait, 2, timeout_ms) < 0 && errno == EINTR)
        ;
    return !wait[0].revents && wait[1].revents &&
           read(watch.signal_fd, &info, sizeof(info)) == sizeof(info);
}

static void *watch_main(void *argument)
{
    struct pollfd end = {.fd = watch.end_fd, .events = POLLIN};
    (void)argument;
    if (!await_signal(-1))
        return NULL;
    atomic_store(&watch.bench->results.stopped, true);
    /* A second signal is impatience, and without an end in time a call hangs. The measuring thread
     * is inside of its path then, which therefore stays open. */
    if (await_signal(GRACE_MS) || poll(&end, 1, 0) <= 0) {
        fputs("ib-bw: stopped in the middle of a call that does not return\n", stderr);
        watch.report(watch.bench);
        _exit(130);
    }
    return NULL;
}

int ibx_bw_watch_start(struct bw_bench *bench, void (*report)(struct bw_bench *bench),
                       struct ibx_error *err)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    watch.report = report;
    watch.signal_fd = signalfd(-1, &set, SFD_CLOEXEC);
    watch.end_fd = eventfd(0, EFD_CLOEXEC);
    if (watch.signal_fd < 0 || watch.end_fd < 0)
        return ibx_error_set(err, -errno, "no descriptors for signals: %s", strerror(errno));
    watch.bench = bench;
    int rc = pthread_create(&watch.thread, NULL, watch_main, NULL);
    if (!rc)
        return 0;
    watch.bench = NULL;
    return ibx_error_set(err, -rc, "no thread to wait for signals: %s", strerror(rc));
}

void ibx_bw_watch_end(void)
{
    uint64_t one = 1;
    if (!watch.bench || write(watch.end_fd, &one, sizeof(one)) != sizeof(one))
        return;
    pthread_join(watch.thread, NULL);
    watch.bench = NULL;
}
