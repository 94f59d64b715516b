/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* ibx_wait(): busy polling for spin_us, then sleeping.
 *
 * There is no busy polling if it costs more than it gains: if two ends share one processor and
 * sched_yield() does not switch between them, or if other processes want the processor. A thread
 * that yields loses it for milliseconds, while a sleeper that is woken gets it at once. */
#include "transport/core/conn.h"

#include "common/clock.h"
#include "common/thread.h"

#include <errno.h>
#include <sched.h>
#include <sys/epoll.h>
#include <unistd.h>

#define LOOKS_PER_POLL       16u /* by a provider's look(), which is cheaper */
#define POLLS_PER_WAKE_LOOK  256u
#define YIELD_NS             1000u   /* between two yields */
#define FIRST_YIELD_LATER_NS 10000u  /* before the first, with PLENTY_PROCESSORS */
#define PLENTY_PROCESSORS    4       /* the peer has one of its own */
#define LOST_NS              500000u /* a yield of this length ran others than the peer */
#define FUTILE_MAX           8u      /* futile tries in a row before a pause */
#define FUTILE_PAUSE         64u     /* waits without a try after those */
#define LOSS_WEIGHT          8u      /* of one lost processor; a find takes 1 away */
#define LOSSES_MAX           24u     /* weight before a pause */
#define LOSSES_PAUSE         256u /* waits without a try after that: each try costs milliseconds */

int ibx_fd(const struct ibx_conn *conn)
{
    return conn->epoll_fd;
}

int ibx_wait_watch(struct ibx_conn *conn, int fd)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.fd = -1};
    if (ibx_conn_is_copy(conn))
        return -ENOTCONN;
    return epoll_ctl(conn->epoll_fd, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
}

bool ibx_wait_watched(const struct ibx_conn *conn)
{
    return conn->watch_fired;
}

int ibx_arm(struct ibx_conn *conn)
{
    if (conn->events.count || !ibx_conn_is_up(conn))
        return 1;
    /* A wake-up without progress may have come from the handshake socket. */
    if (!conn->progressed)
        ibx_conn_check_peer(conn);
    if (conn->state.now != CONN_ESTABLISHED || conn->provider->arm(conn->endpoint))
        return 1;
    conn->progressed = false;
    return 0;
}

/* Credit is no event, but a sender without credit waits for nothing else. */
static bool worth_polling(const struct ibx_conn *conn)
{
    return conn->events.count || conn->state.now == CONN_CLOSED || ibx_conn_is_copy(conn) ||
           (conn->starved && conn->replenished);
}

static bool woken(struct ibx_conn *conn)
{
    uint64_t count;
    return read(conn->wake_fd, &count, sizeof(count)) == sizeof(count);
}

/* Microseconds of busy polling for this wait. */
static unsigned spin_time_us(struct ibx_conn *conn)
{
    bool loses = conn->busy.losses >= LOSSES_MAX;
    if (conn->busy.futile < FUTILE_MAX && !loses)
        return conn->options.spin_us;
    if (conn->busy.skipped < (loses ? LOSSES_PAUSE : FUTILE_PAUSE)) {
        conn->busy.skipped++;
        return 0;
    }
    conn->busy.skipped = 0;
    return conn->options.spin_us;
}

static bool processors_abound(void)
{
    static _Atomic unsigned count;
    if (!count)
        count = ibx_thread_processors();
    return count >= PLENTY_PROCESSORS;
}

/* On a busy core the peer, or a thread that feeds it, may be waiting for this core. Returns whether
 * another thread had the core for long. Sets `now` to the time after the yield. */
static bool yield_core(uint64_t *now)
{
    uint64_t before = *now;
    sched_yield();
    *now = ibx_now_ns();
    return *now - before >= LOST_NS;
}

enum polling {
    POLLING_FOUND,  /* what was waited for came */
    POLLING_FUTILE, /* it did not */
    POLLING_LOST    /* another thread had the core for long */
};

/* Notes the result of busy polling for spin_time_us(). */
static void note_result(struct ibx_conn *conn, enum polling result)
{
    if (result == POLLING_LOST) {
        conn->busy.losses += conn->busy.losses < LOSSES_MAX ? LOSS_WEIGHT : 0;
    } else if (result == POLLING_FOUND) {
        conn->busy.futile = 0;
        conn->busy.losses -= conn->busy.losses > 0;
    } else {
        conn->busy.futile += conn->busy.futile < FUTILE_MAX;
    }
}

/* A pause until the next poll, because some providers' polls are expensive, and so is reading the
 * time. It ends early if something comes. */
static void look(struct ibx_conn *conn)
{
    if (conn->provider->look && ibx_conn_has_endpoint(conn))
        conn->provider->look(conn->endpoint, LOOKS_PER_POLL);
    else
        ibx_cpu_relax();
}

/* Polls busily, or once if `once`: 1 when ibx_poll() has something, 0 when the time is over, -EINTR
 * for ibx_wake(). Work for the peer makes no event, but restarts the time, because more of it
 * follows; such a peer delays neither the deadline nor a wake-up. */
static int spin(struct ibx_conn *conn, unsigned spin_us, bool once, uint64_t deadline)
{
    uint64_t end = 0, yield_at = 0;
    bool lost = false;
    once = once || !spin_us;
    for (unsigned i = 1;; i++) {
        bool progressed = ibx_conn_progress(conn) > 0;
        if (worth_polling(conn)) {
            if (end || lost)
                note_result(conn, lost ? POLLING_LOST : POLLING_FOUND);
            return 1;
        }
        if (progressed) {
            /* A peer that gives work polls for the end of it, and each piece would wake a
             * sleeper. */
            conn->busy.futile = 0;
            spin_us = conn->busy.losses < LOSSES_MAX ? conn->options.spin_us : spin_us;
            once = !spin_us;
            end = 0;
        }
        if (once)
            return 0;
        uint64_t now = ibx_now_ns();
        if (!end) {
            end = now + spin_us * IBX_NS_PER_US;
            end = end < conn->busy.expected ? conn->busy.expected : end;
            yield_at = now + (processors_abound() ? FIRST_YIELD_LATER_NS : 0);
        }
        if (now >= end || now >= deadline) {
            if (now >= end)
                note_result(conn, lost ? POLLING_LOST : POLLING_FUTILE);
            return 0;
        }
        /* By time, not by the number of polls: those of some providers are system calls. */
        bool away = false;
        if (now >= yield_at) {
            away = yield_core(&now);
            lost |= away;
            yield_at = now + YIELD_NS;
        }
        /* Right after a lost core, too: 256 polls that lose it each time take long. */
        if ((away || i % POLLS_PER_WAKE_LOOK == 0) && woken(conn))
            return -EINTR;
        look(conn);
    }
}

/* Sleeps once. Returns -EINTR for ibx_wake(), otherwise 0. */
static int sleep_once(struct ibx_conn *conn, int timeout_ms)
{
    struct epoll_event ready[8];
    int n = epoll_wait(conn->epoll_fd, ready, 8, timeout_ms);
    int rc = 0;
    for (int i = 0; i < n; i++) {
        conn->watch_fired |= ready[i].data.fd < 0;
        if (ready[i].data.fd < 0 || (ready[i].data.fd == conn->wake_fd && woken(conn)))
            rc = -EINTR;
        if (ready[i].data.fd == conn->handshake_socket)
            ibx_conn_check_peer(conn);
        if (ready[i].data.fd == conn->address_fd)
            ibx_own_address_check(conn);
    }
    return rc;
}

int ibx_wait(struct ibx_conn *conn, int timeout_ms)
{
    uint64_t deadline = timeout_ms < 0 ? UINT64_MAX : ibx_deadline_in_ms((uint64_t)timeout_ms);
    unsigned spin_us = worth_polling(conn) ? 0 : spin_time_us(conn);
    int ready = worth_polling(conn) ? 1 : spin(conn, spin_us, false, deadline);
    unsigned refused = 0;
    while (!ready) {
        int left = timeout_ms < 0 ? -1 : ibx_ms_until(deadline);
        bool armed = !ibx_arm(conn);
        /* An endpoint with new credit refuses to sleep, too. */
        bool credit = !armed && conn->starved;
        /* The first refusal is usual: it asks for one more look after arming. */
        if ((armed || refused++) && sleep_once(conn, armed ? left : 0) == -EINTR)
            return -EINTR;
        ready = spin(conn, spin_us, true, deadline);
        if (!ready && credit)
            ready = 1;
        if (!ready && !left)
            return 0;
    }
    if (ready < 0)
        return ready;
    conn->starved = false; /* the next wait is for events, unless a send fails again */
    return 1;
}

void ibx_expect(struct ibx_conn *conn, unsigned us)
{
    conn->busy.expected = processors_abound() ? ibx_now_ns() + us * IBX_NS_PER_US : 0;
}

void ibx_wake(struct ibx_conn *conn)
{
    uint64_t one = 1;
    int before = errno;         /* of the code that a signal handler interrupted */
    if (ibx_conn_is_copy(conn)) /* the parent waits at the same descriptor */
        return;
    ssize_t ignored = write(conn->wake_fd, &one, sizeof(one));
    (void)ignored;
    errno = before;
}
