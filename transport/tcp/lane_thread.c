/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A thread for a bulk lane that is encrypted or one of several, so that lanes are sealed, opened,
 * read and written at the same time. It starts with the lane's first long body (of a domain's
 * connection: the first that is received) and ends with the connection.
 *
 * The polling thread stays the owner of the connection: it reads headers, decides where bodies go,
 * and reports. It gives the lane's thread items to send and one body at a time to receive, and
 * collects what is done. The thread touches the lane's socket and its TLS only for these, and only
 * with `step` held: whoever has it knows that no byte moves.
 *
 *   output   ring of items   collected <= done <= given; the thread sends those from done on
 *   input    one body        with room behind it for the next header
 */
#include "transport/tcp/tcp.h"

#include "common/clock.h"
#include "common/descriptor.h"
#include "common/thread.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define RING       8u           /* items */
#define BODY_MIN   (32u << 10)  /* shorter ones are not worth waking a thread */
#define STEP_BYTES (512u << 10) /* of one step: it bounds how long the polling thread waits */

/*
 * state machine: tcp lane thread's input
 *   [*] -> NONE -> GIVEN -> DONE -> NONE
 *   GIVEN -> NONE                         taken back
 * The lane's thread moves it to DONE, the polling thread makes all other moves.
 */
enum input { INPUT_NONE, INPUT_GIVEN, INPUT_DONE };

struct tcp_thread {
    struct tcp_lane *lane;
    pthread_t thread;
    pid_t process; /* whose thread it is */
    int wake_fd;
    uint64_t spin_ns;
    pthread_mutex_t step;
    bool stopped; /* guarded by `step` */
    atomic_bool quits, sleeps;
    atomic_uint calls; /* counts what was given */

    struct tcp_item *items[RING];
    unsigned collected;
    atomic_uint done, given;
    atomic_int output_status; /* negative errno: the socket takes no more */

    atomic_uint input; /* enum input */
    struct iovec pieces[2];
    size_t got;
    int input_status; /* 1, or why no more comes: 0 for the end of the stream, negative errno */
};

/* ------------------------------------------------------------------ the lane's thread */

/* Wakes the polling thread, if it sleeps. */
static void tell(struct tcp *tcp)
{
    const uint64_t one = 1;
    if (atomic_load(&tcp->threads_armed) && atomic_exchange(&tcp->threads_armed, false)) {
        ssize_t ignored = write(tcp->threads_fd, &one, sizeof(one));
        (void)ignored;
    }
}

/* What is left of the given items, up to STEP_BYTES. */
static int output_pieces(struct tcp_thread *t, struct iovec *pieces)
{
    const unsigned first = t->done, end = atomic_load(&t->given);
    size_t bytes = 0;
    uint64_t place = t->lane->gone - (first != end ? t->items[first % RING]->sent : 0);
    int n = 0;
    for (unsigned i = first; i != end && bytes < STEP_BYTES; i++) {
        struct tcp_item *item = t->items[i % RING];
        size_t body = 0;
        if (!item->sent && t->lane->tcp->places)
            ibx_tcp_frame_place(item->header, place);
        place += sizeof(item->header) + item->length;
        if (item->sent < sizeof(item->header))
            pieces[n++] =
                (struct iovec){item->header + item->sent, sizeof(item->header) - item->sent};
        else
            body = item->sent - sizeof(item->header);
        size_t left = item->length - body;
        left = left < STEP_BYTES - bytes ? left : STEP_BYTES - bytes;
        if (left)
            pieces[n++] = (struct iovec){(void *)(uintptr_t)(item->body + body), left};
        bytes += left;
    }
    return n;
}

/* Whether TLS has bytes that it could not give to the socket. */
static bool unsent(const struct tcp_thread *t)
{
    return t->lane->tls && ibx_tls_unsent(t->lane->tls);
}

static bool output_step(struct tcp_thread *t)
{
    struct iovec pieces[2 * RING];
    int n = t->output_status ? 0 : output_pieces(t, pieces);
    if (t->output_status || (!n && !unsent(t)))
        return false;
    ssize_t took = ibx_tcp_lane_write(t->lane, pieces, n);
    if (took == -EAGAIN)
        return false;
    if (took < 0)
        atomic_store(&t->output_status, (int)took);
    unsigned done = t->done;
    t->lane->gone += took > 0 ? (size_t)took : 0;
    for (size_t left = took > 0 ? (size_t)took : 0; left;) {
        struct tcp_item *item = t->items[done % RING];
        size_t whole = sizeof(item->header) + item->length;
        size_t more = left < whole - item->sent ? left : whole - item->sent;
        item->sent += more;
        t->lane->gone_checks += item->kind == TCP_ITEM_CHECK ? more : 0;
        left -= more;
        done += item->sent == whole;
    }
    bool news = done != t->done || took < 0;
    atomic_store(&t->done, done);
    if (news)
        tell(t->lane->tcp);
    return true;
}

static bool input_step(struct tcp_thread *t)
{
    if (atomic_load(&t->input) != INPUT_GIVEN)
        return false;
    struct iovec left[2] = {t->pieces[0], t->pieces[1]};
    left[0].iov_base = (uint8_t *)left[0].iov_base + t->got;
    left[0].iov_len -= t->got;
    ssize_t n = ibx_tcp_lane_read(t->lane, left, 2);
    if (n == -EAGAIN)
        return false;
    if (n > 0)
        t->got += (size_t)n;
    else
        t->input_status = (int)n;
    if (n <= 0 || t->got >= t->pieces[0].iov_len) {
        atomic_store(&t->input, INPUT_DONE);
        tell(t->lane->tcp);
    }
    return true;
}

static bool step(struct tcp_thread *t)
{
    bool moved = false;
    pthread_mutex_lock(&t->step);
    if (!t->stopped) {
        moved = output_step(t);
        moved |= input_step(t);
    }
    pthread_mutex_unlock(&t->step);
    return moved;
}

/* Sleeps until the socket is ready for what it waits for, or something was given since `calls`. */
static void doze(struct tcp_thread *t, unsigned calls)
{
    uint64_t count;
    struct pollfd fds[] = {{.fd = t->wake_fd, .events = POLLIN}, {.fd = -1}};
    pthread_mutex_lock(&t->step);
    if (!t->stopped) {
        bool sends = !t->output_status && (t->done != t->given || unsent(t));
        bool receives = t->input == INPUT_GIVEN;
        fds[1].events = (short)((sends ? POLLOUT : 0) | (receives ? POLLIN : 0));
        fds[1].fd = fds[1].events ? t->lane->fd : -1;
    }
    pthread_mutex_unlock(&t->step);
    atomic_store(&t->sleeps, true);
    if (atomic_load(&t->calls) == calls)
        ibx_thread_await(fds, 2, -1);
    atomic_store(&t->sleeps, false);
    if (fds[0].revents)
        count = (uint64_t)read(t->wake_fd, &count, sizeof(count));
}

static void *run(void *argument)
{
    struct tcp_thread *t = argument;
    uint64_t busy_until = 0;
    for (;;) {
        const unsigned calls = atomic_load(&t->calls); /* first: whoever sets `quits` calls then */
        if (atomic_load(&t->quits))
            return NULL;
        if (step(t)) {
            busy_until = ibx_now_ns() + t->spin_ns;
        } else if (ibx_now_ns() < busy_until) {
            ibx_cpu_relax();
        } else {
            doze(t, calls);
            busy_until = ibx_now_ns() + t->spin_ns;
        }
    }
}

/* ---------------------------------------------------------------- the polling thread */

static void call(struct tcp_thread *t)
{
    const uint64_t one = 1;
    atomic_fetch_add(&t->calls, 1);
    if (atomic_load(&t->sleeps) && atomic_exchange(&t->sleeps, false)) {
        ssize_t ignored = write(t->wake_fd, &one, sizeof(one));
        (void)ignored;
    }
}

static int wake_open(struct tcp *tcp)
{
    if (tcp->threads_fd >= 0)
        return 0;
    tcp->threads_fd = ibx_descriptor_apart(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    return tcp->threads_fd < 0 ? -errno : ibx_link_watch(tcp->link, tcp->threads_fd);
}

/* Threads of all connections of this process. */
static atomic_uint running;

static void forked(void)
{
    atomic_store(&running, 0);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forked);
}

/* Counts one more thread, if there may be one. Lanes without one are served by the polling
 * threads. */
static bool allowed(const struct tcp *tcp)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    if (tcp->threads >= tcp->threads_max)
        return false;
    if (atomic_fetch_add(&running, 1) < tcp->threads_all)
        return true;
    atomic_fetch_sub(&running, 1);
    return false;
}

/* Whether the lane has a thread; starts it for a body of `length` bytes. */
static bool threaded(struct tcp_lane *lane, size_t length)
{
    struct tcp *tcp = lane->tcp;
    /* One plain lane is as fast without a thread. */
    const bool worth = lane->tls || tcp->lane_count > 1;
    if (lane->thread || length < BODY_MIN || !lane->index || !worth || lane->flight_count ||
        !allowed(tcp))
        return lane->thread;
    struct tcp_thread *t = calloc(1, sizeof(*t));
    if (!t)
        goto none;
    t->lane = lane;
    t->process = getpid();
    t->spin_ns = ibx_thread_may_spin() ? ibx_link_options(tcp->link)->spin_us * IBX_NS_PER_US : 0;
    t->wake_fd = ibx_descriptor_apart(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    pthread_mutex_init(&t->step, NULL);
    if (lane->tls)
        ibx_tls_work_alone(lane->tls);
    if (t->wake_fd < 0 || wake_open(tcp) || ibx_thread_begin(&t->thread, run, t))
        goto none;
    tcp->threads++;
    lane->thread = t;
    lane->blocked = false;
    return true;
none:
    if (t && t->wake_fd >= 0)
        close(t->wake_fd);
    free(t);
    atomic_fetch_sub(&running, 1);
    tcp->threads_max = 0; /* the polling thread does all */
    return false;
}

/* Whether the lane has a thread, or gets one for what it sends. Connections of a domain get none
 * for that: each has a polling thread, which would have nothing to do while a second thread
 * encrypts what is READ from here, and both would want a processor. While a second thread receives,
 * the polling thread hands on what came before. */
static bool sends_by_thread(struct tcp_lane *lane)
{
    const struct tcp_item *first = lane->small.head ? lane->small.head : lane->large.head;
    const bool may = first && !ibx_link_options(lane->tcp->link)->domain;
    return threaded(lane, may ? first->length : 0);
}

static void output_collect(struct tcp_lane *lane)
{
    struct tcp_thread *t = lane->thread;
    while (t->collected != atomic_load(&t->done)) {
        lane->tcp->moved = true;
        ibx_tcp_on_item_sent(lane->tcp, t->items[t->collected++ % RING]);
    }
}

bool ibx_tcp_thread_push(struct tcp_lane *lane)
{
    if (!sends_by_thread(lane))
        return false;
    struct tcp_thread *t = lane->thread;
    unsigned given = t->given;
    output_collect(lane);
    if (t->output_status) {
        ibx_tcp_lane_broken(lane, -t->output_status);
        return true;
    }
    while (given - t->collected < RING && (t->items[given % RING] = ibx_tcp_lane_pop(lane)))
        given++;
    if (given != t->given) {
        lane->tcp->wrote = true;
        atomic_store(&t->given, given);
        call(t);
    }
    return true;
}

/* Hands on what the thread has received, or why there will be no more. */
static void input_collect(struct tcp_lane *lane)
{
    struct tcp_thread *t = lane->thread;
    int status = t->input_status;
    atomic_store(&t->input, INPUT_NONE);
    if (t->got)
        ibx_tcp_lane_received(lane, t->got);
    if (status <= 0 && !lane->tcp->status)
        ibx_tcp_lane_broken(lane, -status);
}

bool ibx_tcp_thread_pull(struct tcp_lane *lane)
{
    if (!threaded(lane, lane->body ? lane->body_left : 0))
        return false;
    struct tcp_thread *t = lane->thread;
    if (t->input == INPUT_DONE)
        input_collect(lane);
    if (t->input == INPUT_NONE && lane->body && lane->body_left >= BODY_MIN && !lane->tcp->status) {
        t->pieces[0] = (struct iovec){lane->body, lane->body_left};
        t->pieces[1] =
            (struct iovec){lane->stage + lane->stage_have, IBX_TCP_FRAME_BYTES - lane->stage_have};
        t->got = 0;
        t->input_status = 1;
        atomic_store(&t->input, INPUT_GIVEN);
        call(t);
    }
    return t->input != INPUT_NONE;
}

bool ibx_tcp_thread_sends(const struct tcp_lane *lane)
{
    return lane->thread && lane->thread->collected != lane->thread->given;
}

bool ibx_tcp_thread_receives(const struct tcp_lane *lane)
{
    return lane->thread && lane->thread->input != INPUT_NONE;
}

size_t ibx_tcp_thread_got(const struct tcp_lane *lane)
{
    if (!ibx_tcp_thread_receives(lane))
        return 0;
    pthread_mutex_lock(&lane->thread->step);
    const size_t got = lane->thread->got;
    pthread_mutex_unlock(&lane->thread->step);
    return got;
}

uint64_t ibx_tcp_thread_gone(const struct tcp_lane *lane, uint64_t *checks)
{
    if (lane->thread)
        pthread_mutex_lock(&lane->thread->step);
    const uint64_t gone = lane->gone;
    *checks = lane->gone_checks;
    if (lane->thread)
        pthread_mutex_unlock(&lane->thread->step);
    return gone;
}

bool ibx_tcp_thread_has_news(const struct tcp_lane *lane)
{
    const struct tcp_thread *t = lane->thread;
    bool waits = lane->small.head || lane->large.head;
    return t->collected != t->done || t->input == INPUT_DONE || t->output_status ||
           (waits && t->given - t->collected < RING);
}

void ibx_tcp_threads_arm(struct tcp *tcp)
{
    if (!tcp->threads)
        return;
    tcp->threads_slept = true;
    atomic_store(&tcp->threads_armed, true);
}

void ibx_tcp_threads_awake(struct tcp *tcp)
{
    uint64_t count;
    if (!tcp->threads_slept)
        return;
    tcp->threads_slept = false;
    atomic_store(&tcp->threads_armed, false);
    ssize_t ignored = read(tcp->threads_fd, &count, sizeof(count));
    (void)ignored;
}

/* ------------------------------------------------------------------------ taking back */

void ibx_tcp_thread_cancel_input(struct tcp_lane *lane)
{
    struct tcp_thread *t = lane->thread;
    if (!t || t->input == INPUT_NONE)
        return;
    pthread_mutex_lock(&t->step);
    atomic_store(&t->input, INPUT_DONE);
    pthread_mutex_unlock(&t->step);
    input_collect(lane);
}

enum tcp_back ibx_tcp_thread_unqueue(struct tcp_lane *lane, struct tcp_item *item)
{
    struct tcp_thread *t = lane->thread;
    enum tcp_back back = TCP_BACK_TOO_LATE;
    pthread_mutex_lock(&t->step);
    unsigned at = t->collected, given = t->given;
    while (at != given && t->items[at % RING] != item)
        at++;
    if (at != given && at - t->collected < t->done - t->collected)
        back = TCP_BACK_SENT;
    else if (at != given && !item->sent)
        back = TCP_BACK_UNSENT;
    if (back != TCP_BACK_TOO_LATE) {
        for (unsigned i = at; i + 1 != given; i++)
            t->items[i % RING] = t->items[(i + 1) % RING];
        atomic_store(&t->given, given - 1);
        if (back == TCP_BACK_SENT)
            atomic_fetch_sub(&t->done, 1);
    }
    pthread_mutex_unlock(&t->step);
    return back;
}

void ibx_tcp_threads_collect(struct tcp *tcp)
{
    for (unsigned i = 1; i <= tcp->lane_count; i++) {
        struct tcp_thread *t = tcp->lanes[i].thread;
        if (!t)
            continue;
        /* Waits for a step under way: then all that the peer can have received is counted in
         * `done`. */
        pthread_mutex_lock(&t->step);
        pthread_mutex_unlock(&t->step);
        output_collect(&tcp->lanes[i]);
    }
}

void ibx_tcp_threads_stop(struct tcp *tcp)
{
    for (unsigned i = 1; i <= tcp->lane_count; i++) {
        struct tcp_thread *t = tcp->lanes[i].thread;
        if (!t)
            continue;
        pthread_mutex_lock(&t->step);
        t->stopped = true;
        pthread_mutex_unlock(&t->step);
        call(t); /* so that it no longer waits for the socket */
    }
}

void ibx_tcp_threads_end(struct tcp *tcp)
{
    for (unsigned i = 1; i <= tcp->lane_count; i++) {
        struct tcp_thread *t = tcp->lanes[i].thread;
        if (!t)
            continue;
        /* A forked child has none of its parent's threads. */
        if (t->process == getpid()) {
            atomic_store(&t->quits, true);
            call(t);
            pthread_join(t->thread, NULL);
            pthread_mutex_destroy(&t->step);
            atomic_fetch_sub(&running, 1);
        }
        close(t->wake_fd);
        free(t);
        tcp->lanes[i].thread = NULL;
    }
    if (tcp->threads_fd >= 0) {
        ibx_link_unwatch(tcp->link, tcp->threads_fd);
        close(tcp->threads_fd);
    }
}
