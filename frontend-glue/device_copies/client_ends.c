/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What clients leave behind. Natively it goes with their process; here all have one context, in
 * which it would stay. A thread of its own gives it back, one client after the other, once
 * clients.c knows that the process has ended, or waits for that.
 *
 * cudaFree waits for all work of the device, and while it does the driver may keep other calls out,
 * such as one that a kernel waits for. So a few things at a time are given back, each time when all
 * work has ended that was there a moment ago, which events behind it tell; and not while somebody
 * captures. Then the thread rests, three times as long as that took, unless nobody else is there,
 * or somebody finds no memory. Work that never ends is in the way of all this, and of nothing else.
 *
 * A reset of the context takes what is left.
 */
#include "frontend-glue/device_copies/copies.h"

#include "common/clock.h"
#include "common/log.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define SLICE        8u /* things for which CUDA waits */
#define SLICE_MOST   256u
#define NAP_LEAST_NS 50000u
#define NAP_MOST_NS  10000000u
#define REST_MOST_NS 20000000u
#define REST_TIMES   3u
#define HELD_MS      10000u /* that a request of another client's may hold something */
#define ROOM_MS      1000u  /* that somebody waits for more memory */

#define STREAM_NON_BLOCKING 1u /* cudaStreamNonBlocking */

struct ended {
    struct ended *next;
    uint64_t client;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct ended *queue;
static _Atomic unsigned pending; /* of the queue */
static _Atomic unsigned hurried; /* threads that wait for memory */
static uint64_t given;           /* slices so far */
static size_t things;            /* of the client in hand; the thread's own */
static int processes = -1, wake = -1;
static pid_t runs_in; /* the process in which the thread runs */

/* -------------------------------------------------------------------------- what is under way */

/* Events behind all work of a context. */
struct moment {
    void **events;
    size_t count;
    unsigned resets; /* with one the events are gone */
    uint64_t left;   /* likewise, the last of them */
};

static void nap(uint64_t *ns)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)*ns}, NULL);
    *ns = 2 * *ns < NAP_MOST_NS ? 2 * *ns : NAP_MOST_NS;
}

static void put_event(const struct ibx_cuda *cuda, struct moment *m, void *stream)
{
    void *event = NULL;
    if (cuda->event_create(&event, IBX_CUDA_EVENT_DISABLE_TIMING))
        return;
    if (cuda->event_record(event, stream))
        cuda->event_destroy(event);
    else
        m->events[m->count++] = event;
}

/* Of streams that are held; false: one of the client's own is busy, or one is captured. */
static bool put_behind(const struct ibx_cuda *cuda, uint64_t client, struct handle **streams,
                       size_t count, struct moment *m)
{
    for (size_t i = 0; i < count; i++) {
        void *stream = (void *)(uintptr_t)ibx_handles_value(streams[i]);
        int capturing = 0;
        const int rc = cuda->stream_is_capturing(stream, &capturing);
        if (!rc && capturing)
            return false;
        if (rc || cuda->stream_query(stream) != IBX_CUDA_NOT_READY)
            continue;
        if (ibx_handles_client(streams[i]) == client)
            return false;
        put_event(cuda, m, stream);
    }
    return true;
}

/* Nobody captures, nor begins to, and no reset is under way. An event in the legacy stream comes
 * behind what all blocking ones have, and their later work behind it. So there is none while the
 * client's own work is under way, nor where that stream is not in use. */
static bool put_events(const struct ibx_cuda *cuda, uint64_t client, const void *context,
                       struct moment *m)
{
    size_t count = 0;
    struct handle **streams = ibx_handles_hold_streams(context, &count);
    m->events = streams ? calloc(count + 1, sizeof(void *)) : NULL;
    m->resets = ibx_copies_resets();
    m->left = ibx_left_work_so_far();
    const bool put = m->events && !ibx_left_work_any(cuda, client, 0) &&
                     put_behind(cuda, client, streams, count, m);
    if (put && cuda->stream_query(IBX_CUDA_STREAM_LEGACY) == IBX_CUDA_NOT_READY)
        put_event(cuda, m, IBX_CUDA_STREAM_LEGACY);
    while (!put && m->count)
        cuda->event_destroy(m->events[--m->count]);
    if (streams)
        ibx_handles_release(streams, count);
    return put;
}

static bool begin_moment(const struct ibx_cuda *cuda, uint64_t client, const void *context,
                         struct moment *m)
{
    bool begun = false;
    *m = (struct moment){.events = NULL};
    if (!ibx_captures_wait_try())
        return false;
    if (ibx_clients_give_begin()) {
        begun = put_events(cuda, client, context, m);
        ibx_clients_give_end();
    }
    ibx_captures_wait_end();
    if (!begun)
        free(m->events);
    return begun;
}

/* Whether it is over. */
static bool look(const struct ibx_cuda *cuda, struct moment *m)
{
    if (!ibx_clients_give_begin())
        return false;
    if (m->resets != ibx_copies_resets())
        m->count = 0;
    while (m->count && cuda->event_query(m->events[m->count - 1]) != IBX_CUDA_NOT_READY)
        cuda->event_destroy(m->events[--m->count]);
    const bool over = !m->count && !ibx_left_work_any(cuda, 0, m->left);
    ibx_clients_give_end();
    return over;
}

/* In the context. False: it is broken. */
static bool wait_for_work(struct copies *x, uint64_t client, const void *context)
{
    struct moment m;
    uint64_t ns = NAP_LEAST_NS;
    while (!begin_moment(x->cuda, client, context, &m)) {
        if (ibx_copies_broken(x))
            return false;
        nap(&ns);
    }
    ns = NAP_LEAST_NS;
    while (!look(x->cuda, &m) && !ibx_copies_broken(x))
        nap(&ns);
    free(m.events);
    return !ibx_copies_broken(x);
}

/* ------------------------------------------------------------------------- it is given back */

static bool waits(enum ibx_handle_kind kind)
{
    return kind == IBX_HANDLE_ARRAY || kind == IBX_HANDLE_MIPMAP || kind == IBX_HANDLE_MEMORY ||
           kind == IBX_HANDLE_MADE_POOL;
}

/* The driver clears what a process has had before another one gets it. In a stream of its own,
 * which waits for nothing, nor is waited for by what others capture. */
static void clear(struct copies *x, const struct ibx_taken *taken, size_t count)
{
    int (*make)(void **stream, unsigned flags) = NULL;
    int (*set)(void *address, int value, size_t n, void *stream) = NULL;
    int (*destroy)(void *stream) = NULL;
    void *stream = NULL;
    *(void **)&make = ibx_copies_runtime("cudaStreamCreateWithFlags");
    *(void **)&set = ibx_copies_runtime("cudaMemsetAsync");
    *(void **)&destroy = ibx_copies_runtime("cudaStreamDestroy");
    if (!make || !set || !destroy || make(&stream, STREAM_NON_BLOCKING))
        return;
    for (size_t i = 0; i < count; i++) {
        uint64_t base = 0;
        size_t n = 0;
        if (!x->cuda->mem_get_address_range(&base, &n, taken[i].value) && base == taken[i].value)
            set((void *)(uintptr_t)base, 0, n, stream);
    }
    x->cuda->stream_synchronize(stream);
    destroy(stream);
}

/* Memory that was cleared, which took a while, is given back at a moment of its own: what others
 * have begun since may wait for calls that cudaFree keeps out. False: it is gone with the context,
 * or that is broken. */
static bool wait_again(struct copies *x, uint64_t client, const void *context)
{
    do {
        if (!wait_for_work(x, client, context))
            return false;
    } while (!ibx_clients_give_begin());
    if (!ibx_left_work_lost())
        return true;
    ibx_clients_give_end();
    return false;
}

/* When it began to give back. */
static uint64_t give(struct copies *x, uint64_t client, enum ibx_handle_kind kind,
                     const void *context)
{
    struct ibx_taken taken[SLICE_MOST];
    const bool waiting = waits(kind);
    if (!ibx_clients_give_begin())
        return ibx_now_ns();
    ibx_left_work_watch(context);
    const size_t count =
        ibx_handles_take_some(client, kind, context, taken, waiting ? SLICE : SLICE_MOST);
    if (kind == IBX_HANDLE_MEMORY && count) {
        clear(x, taken, count);
        ibx_clients_give_end();
        if (!wait_again(x, client, context))
            return ibx_now_ns();
    }
    const uint64_t began = ibx_now_ns();
    if (waiting)
        ibx_frees_begin(x, 0);
    ibx_own_give_back(x, taken, count);
    if (waiting)
        ibx_frees_end();
    ibx_clients_give_end();
    things += count;
    pthread_mutex_lock(&lock);
    given++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return began;
}

static void rest(uint64_t began)
{
    uint64_t ns = REST_TIMES * (ibx_now_ns() - began);
    ns = ns < NAP_LEAST_NS ? NAP_LEAST_NS : ns < REST_MOST_NS ? ns : REST_MOST_NS;
    if (ibx_clients_any() && !atomic_load(&hurried))
        nap(&ns);
}

/* In its context. False: that is broken, or gone, with all that is in it. */
static bool give_there(struct copies *x, uint64_t client, enum ibx_handle_kind kind,
                       const void *context, bool quiet)
{
    void *popped = NULL;
    if (context && x->cuda->ctx_push_current((void *)(uintptr_t)context))
        return false;
    const int mode = ibx_cuda_capture_relax(x->cuda);
    const bool can = quiet || wait_for_work(x, client, context);
    const uint64_t began = can ? give(x, client, kind, context) : 0;
    ibx_cuda_capture_restore(x->cuda, mode);
    if (context)
        x->cuda->ctx_pop_current(&popped);
    if (can)
        rest(began);
    return can;
}

static bool give_kinds(struct copies *x, uint64_t client)
{
    const void *context = NULL, *quiet = NULL; /* where all its work has ended */
    enum ibx_handle_kind kind;
    for (unsigned i = 0; ibx_own_kind(i, &kind); i++) {
        while (ibx_handles_first(client, kind, &context)) {
            if (!give_there(x, client, kind, context, context && context == quiet && !waits(kind)))
                return false;
            quiet = context;
        }
    }
    return true;
}

static void give_back(struct copies *x, uint64_t client)
{
    const uint64_t began = ibx_now_ns(), deadline = ibx_deadline_in_ms(HELD_MS);
    uint64_t ns = NAP_LEAST_NS;
    things = 0;
    if (!ibx_copies_have_cuda(x))
        return;
    while (give_kinds(x, client) && ibx_handles_held(client) && ibx_now_ns() < deadline)
        nap(&ns);
    ibx_log(IBX_LOG_INFO,
            "%zu allocations, streams and the like of a client whose process has ended were given "
            "back in %llu ms",
            things, (unsigned long long)((ibx_now_ns() - began) / IBX_NS_PER_MS));
}

/* ---------------------------------------------------------------------------------- the thread */

/* The next one that is to be given back. */
static struct ended *next(void)
{
    for (;;) {
        struct epoll_event event = {0};
        uint64_t unused;
        pthread_mutex_lock(&lock);
        struct ended *first = queue;
        pthread_mutex_unlock(&lock);
        if (first)
            return first;
        if (epoll_wait(processes, &event, 1, -1) != 1)
            continue;
        if (event.data.u64)
            ibx_clients_ended(event.data.u64);
        else if (read(wake, &unused, sizeof(unused)) < 0)
            continue;
    }
}

static void *run(void *unused)
{
    static struct copies own;
    own = (struct copies){.options = {.mode = IBX_GPU_AUTO},
                          .requests = {.device = -1},
                          .selected = -1,
                          .chosen_for = -1};
    (void)unused;
    for (;;) {
        struct ended *first = next();
        give_back(&own, first->client);
        pthread_mutex_lock(&lock);
        queue = first->next;
        atomic_fetch_sub(&pending, 1);
        given++;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
        free(first);
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

static bool start(void)
{
    sigset_t every, before;
    pthread_t thread;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    const int rc = pthread_create(&thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!rc)
        pthread_detach(thread);
    return !rc;
}

/* Locked. False: what clients leave stays. */
static bool begin(void)
{
    static bool told;
    if (runs_in == getpid())
        return true;
    close_fds(); /* a parent's */
    queue = NULL;
    atomic_store(&pending, 0);
    if (open_fds() && start()) {
        runs_in = getpid();
        return true;
    }
    close_fds();
    if (!told)
        ibx_log(IBX_LOG_WARN, "what clients leave in GPU memory stays there until the back end "
                              "ends: there is no thread, or no descriptor, to give it back");
    told = true;
    return false;
}

void ibx_client_ends_add(uint64_t client)
{
    struct ended *made = malloc(sizeof(*made)), **at = &queue;
    const uint64_t one = 1;
    pthread_mutex_lock(&lock);
    if (!made || !begin()) {
        pthread_mutex_unlock(&lock);
        free(made);
        return;
    }
    *made = (struct ended){.client = client};
    while (*at)
        at = &(*at)->next;
    *at = made;
    atomic_fetch_add(&pending, 1);
    if (write(wake, &one, sizeof(one)) < 0) { /* it is awake */
    }
    pthread_mutex_unlock(&lock);
}

void ibx_client_ends_watch(int process_fd, uint64_t client)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.u64 = client};
    pthread_mutex_lock(&lock);
    if (begin() && epoll_ctl(processes, EPOLL_CTL_ADD, process_fd, &event))
        epoll_ctl(processes, EPOLL_CTL_MOD, process_fd, &event);
    pthread_mutex_unlock(&lock);
}

bool ibx_client_ends_wait(void)
{
    if (!atomic_load(&pending))
        return false;
    const struct timespec until = ibx_timespec_of(ibx_deadline_in_ms(ROOM_MS));
    int rc = 0;
    atomic_fetch_add(&hurried, 1);
    pthread_mutex_lock(&lock);
    const uint64_t before = given;
    while (queue && given == before && !rc)
        rc = pthread_cond_clockwait(&changed, &lock, CLOCK_MONOTONIC, &until);
    const bool more = given != before;
    pthread_mutex_unlock(&lock);
    atomic_fetch_sub(&hurried, 1);
    return more;
}
