/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Signs of life. A relay that ends TCP at both sides may swallow everything from some point on: it
 * acknowledges what it swallows, so that neither TCP nor the next frame shows anything. The end
 * that waits sends CHECKs (loss.c), but a peer whose thread runs a long handler answers none of
 * them either. So a server whose options say so has another thread that sends a sign of life each
 * second on lane 0 of every connection whose own thread polls nothing. A client that gets neither
 * an answer nor a sign for silence_ms ends its connection.
 *
 * A server that waits for its client polls, and answers what arrives. It sends no signs then: they
 * would hide that what the client sends is swallowed. A server whose clients always poll needs no
 * signs of theirs either: it ends a connection on which no CHECK is answered (answer_ms).
 *
 * The thread of signs only sends. What waits on lane 0, since the socket had no room for it, is
 * before a sign, and nobody else sends it while the connection's own thread is away. So the thread
 * of signs does, as far as there is room: any byte shows the client that its server lives.
 */
#include "transport/tcp/tcp.h"

#include "common/fork_lock.h"
#include "common/log.h"
#include "common/thread.h"

#include <sched.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PERIOD_S 1

static struct {
    struct ibx_fork_lock lock;
    LIST_HEAD(, tcp) list;
    pid_t process; /* whose connections these are: a forked child has neither them nor the thread */
    bool runs;     /* the thread; it ends when there are no connections left */
} signs = {.lock = IBX_FORK_LOCK};

void ibx_tcp_wait_to_enter(struct tcp *tcp)
{
    while (atomic_exchange_explicit(&tcp->inside, true, memory_order_acquire))
        sched_yield();
}

/* Sends what waits. False: something still does. The end of a post that was answered would be
 * reported from here, and only the connection's own thread reports. */
static bool push_what_waits(struct tcp *tcp)
{
    struct tcp_lane *first = &tcp->lanes[0];
    if (ibx_tcp_lane_has_output(first) && !ibx_tcp_posts_have_answered(tcp))
        ibx_tcp_lane_push(first);
    return !tcp->status && !ibx_tcp_lane_has_output(first);
}

static void sign(struct tcp *tcp)
{
    const bool away = !tcp->sleeps && tcp->turns == tcp->turns_seen;
    tcp->turns_seen = tcp->turns;
    if (!away || tcp->state.now != TCP_LIVE || tcp->status || !push_what_waits(tcp))
        return;
    ibx_tcp_sign_send(&tcp->lanes[0]);
    ibx_tcp_lane_push(&tcp->lanes[0]);
}

/* Whether there are any connections. */
static bool sign_all(void)
{
    struct tcp *tcp;
    ibx_fork_lock_take(&signs.lock);
    LIST_FOREACH(tcp, &signs.list, giving)
    {
        /* A thread that is inside is not away. */
        if (atomic_exchange_explicit(&tcp->inside, true, memory_order_acquire))
            continue;
        sign(tcp);
        ibx_tcp_leave(tcp);
    }
    signs.runs = !LIST_EMPTY(&signs.list);
    const bool any = signs.runs;
    ibx_fork_lock_release(&signs.lock);
    return any;
}

static void *give_signs(void *argument)
{
    (void)argument;
    do
        nanosleep(&(struct timespec){.tv_sec = PERIOD_S}, NULL);
    while (sign_all());
    return NULL;
}

/* Locked. */
static int add(struct tcp *tcp)
{
    const pid_t process = getpid();
    if (signs.process != process) {
        LIST_INIT(&signs.list);
        signs.runs = false;
        signs.process = process;
    }
    const int rc = signs.runs ? 0 : ibx_thread_begin(NULL, give_signs, NULL);
    if (rc)
        return rc;
    signs.runs = true;
    LIST_INSERT_HEAD(&signs.list, tcp, giving);
    return 0;
}

void ibx_tcp_signs_begin(struct tcp *tcp)
{
    ibx_fork_lock_take(&signs.lock);
    const int rc = add(tcp);
    tcp->gives_signs = !rc;
    ibx_fork_lock_release(&signs.lock);
    if (rc)
        ibx_log(IBX_LOG_WARN,
                "a client whose call lasts for longer than its rdma.silence_seconds will take this "
                "process for dead, because there is no thread that gives signs of life: %s",
                strerror(-rc));
}

void ibx_tcp_signs_end(struct tcp *tcp)
{
    if (!tcp->gives_signs)
        return;
    ibx_fork_lock_take(&signs.lock);
    LIST_REMOVE(tcp, giving);
    ibx_fork_lock_release(&signs.lock);
    tcp->gives_signs = false;
}
