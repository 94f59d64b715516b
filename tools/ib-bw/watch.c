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

#define GRACE_MS 2000u /* for the call in hand */

atomic_bool ibx_bw_stop;

static struct {
    pthread_t thread;
    bool started;
    int signal_fd;
    int end_fd; /* an eventfd: the measurement is over */
} watch;

/* For a call that does not come back: the paths are left as they are, since their thread is in
 * them. */
static _Noreturn void leave_at_once(struct bw_bench *bench)
{
    fputs("ib-bw: stopped in the middle of a call that does not return\n", stderr);
    ibx_bw_bench_report(bench, NULL);
    ibx_bw_child_stop(&bench->child);
    _exit(130);
}

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

static bool over(void)
{
    struct pollfd wait = {.fd = watch.end_fd, .events = POLLIN};
    return poll(&wait, 1, 0) > 0;
}

static void *watch_main(void *bench)
{
    if (!await_signal(-1))
        return NULL;
    atomic_store(&ibx_bw_stop, true);
    /* Either the measurement ends now, or it is stuck; a second signal is impatience. */
    if (await_signal(GRACE_MS) || !over())
        leave_at_once(bench);
    return NULL;
}

int ibx_bw_watch_start(struct bw_bench *bench, struct ibx_error *err)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    watch.signal_fd = signalfd(-1, &set, SFD_CLOEXEC);
    watch.end_fd = eventfd(0, EFD_CLOEXEC);
    if (watch.signal_fd < 0 || watch.end_fd < 0)
        return ibx_error_set(err, -errno, "no descriptors for signals: %s", strerror(errno));
    int rc = pthread_create(&watch.thread, NULL, watch_main, bench);
    if (rc)
        return ibx_error_set(err, -rc, "no thread to wait for signals: %s", strerror(rc));
    watch.started = true;
    return 0;
}

void ibx_bw_watch_end(void)
{
    uint64_t one = 1;
    if (!watch.started || write(watch.end_fd, &one, sizeof(one)) != sizeof(one))
        return;
    watch.started = false;
    pthread_join(watch.thread, NULL);
}
