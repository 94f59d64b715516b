/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A thread that learns when clients' processes end, and then ends what their streams wait for. It
 * never waits for work: client_ends.c does as it frees memory, and that work may be what waits for
 * a word of a client that ends meanwhile.
 */
#include "frontend-glue/clients/clients.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define AGAIN_MS 1000u /* for so long work of a client may end by itself */

/* A client that has ended, whose streams may wait for words. */
struct waiting {
    struct waiting *next;
    uint64_t client, due; /* when the words are written */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct waiting *all; /* the one that is due first comes first */
static int processes = -1, wake = -1;
static pid_t runs_in; /* the process in which the thread runs */

/* Locked. */
static void enter(struct waiting *w)
{
    struct waiting **at = &all;
    w->due = ibx_deadline_in_ms(AGAIN_MS);
    while (*at)
        at = &(*at)->next;
    w->next = NULL;
    *at = w;
}

/* Takes out one that is due. NULL: there is none; *wait_ms: until there is, or -1. */
static struct waiting *take_due(int *wait_ms)
{
    pthread_mutex_lock(&lock);
    struct waiting *first = all;
    const uint64_t now = ibx_now_ns();
    const bool due = first && first->due <= now;
    *wait_ms = first && !due ? (int)((first->due - now) / IBX_NS_PER_MS) + 1 : -1;
    if (due)
        all = first->next;
    pthread_mutex_unlock(&lock);
    return due ? first : NULL;
}

/* Writes the words, and again later, unless the client's work is known to be over by then. */
static void end_waits(struct gpu_session *x, struct waiting *w)
{
    if (!ibx_stream_waits_first(w->client, NULL)) {
        free(w);
        return;
    }
    if (ibx_back_end_have_cuda(x))
        ibx_stream_waits_end(x, w->client);
    pthread_mutex_lock(&lock);
    enter(w);
    pthread_mutex_unlock(&lock);
}

static void *run(void *unused)
{
    static struct gpu_session own;
    ibx_back_end_own_session(&own);
    (void)unused;
    for (;;) {
        struct epoll_event event = {0};
        uint64_t times;
        int wait_ms;
        struct waiting *w = take_due(&wait_ms);
        if (w)
            end_waits(&own, w);
        else if (epoll_wait(processes, &event, 1, wait_ms) != 1)
            continue;
        else if (event.data.u64)
            ibx_clients_ended(event.data.u64);
        else if (read(wake, &times, sizeof(times)) < 0)
            continue;
    }
    return NULL;
}

static bool open_fds(void)
{
    struct epoll_event event = {.events = EPOLLIN};
    processes = epoll_create1(EPOLL_CLOEXEC);
    wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return processes >= 0 && wake >= 0 && !epoll_ctl(processes, EPOLL_CTL_ADD, wake, &event);
}

static void close_fds(void)
{
    if (processes >= 0)
        close(processes);
    if (wake >= 0)
        close(wake);
    processes = wake = -1;
}

/* Locked. Starts the thread, once in each process. False: the end of a process is noticed when its
 * connections do not come again. */
static bool begin(void)
{
    static bool told;
    if (runs_in == getpid())
        return true;
    close_fds(); /* those of the parent process */
    all = NULL;
    if (open_fds() && !ibx_thread_begin(NULL, run, NULL)) {
        runs_in = getpid();
        return true;
    }
    close_fds();
    if (!told)
        ibx_log(IBX_LOG_WARN, "what clients leave in GPU memory may stay there for a while: there "
                              "is no thread, or no descriptor, to learn that they have ended");
    told = true;
    return false;
}

void ibx_process_ends_watch(int process_fd, uint64_t client)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.u64 = client};
    pthread_mutex_lock(&lock);
    if (begin() && epoll_ctl(processes, EPOLL_CTL_ADD, process_fd, &event))
        epoll_ctl(processes, EPOLL_CTL_MOD, process_fd, &event);
    pthread_mutex_unlock(&lock);
}

void ibx_process_ends_waits(uint64_t client)
{
    const uint64_t one = 1;
    struct waiting *w = ibx_stream_waits_first(client, NULL) ? malloc(sizeof(*w)) : NULL;
    if (!w)
        return;
    w->client = client;
    pthread_mutex_lock(&lock);
    const bool begun = begin();
    if (begun)
        enter(w);
    if (begun && write(wake, &one, sizeof(one)) < 0) { /* the thread is awake already */
    }
    pthread_mutex_unlock(&lock);
    if (!begun)
        free(w);
}
