/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Server: replies that are sent together with the next one, since its request has arrived and runs
 * quickly. A launch does not if CUDA's queue is full, and what ends that may be a thread of the
 * client's that waits for one of these replies. So while a request runs, its session lends the
 * message with them to a thread of this process, which sends it if the request takes long.
 */
#include "frontend-glue/session/session_internal.h"

#include "common/clock.h"
#include "common/thread.h"

#include <semaphore.h>

#define HOLD_NS    50000u   /* for so long replies are held, and then for one more request */
#define TICK_NS    2000000u /* a request that runs for one to two ticks takes long */
#define IDLE_TICKS 50u      /* without replies that are lent; then the thread sleeps */

/* What session->held.state has in its lowest bits. Above them is the number of the loan, which is
 * another one for each request.
 *   OWN -> LENT         by the session's thread, before a request runs
 *   LENT -> SENDING     by the thread that sends: its loan has lasted too long
 *   SENDING -> LENT     ... there is no credit
 *   SENDING -> OWN      ... it has been sent
 *   any -> OWN          by the session's thread, which waits while it is sent */
enum { OWN, LENT, SENDING, STATES = 4 };

static struct {
    pthread_mutex_t lock; /* held while a message is sent */
    struct ibx_session *first;
    pthread_once_t begun;
    bool runs;
    atomic_bool asleep;
    sem_t wake;
} sender = {.lock = PTHREAD_MUTEX_INITIALIZER, .begun = PTHREAD_ONCE_INIT};

/* Locked. */
static void send_held(struct ibx_session *s, unsigned loan)
{
    unsigned state = loan * STATES + LENT;
    if (!atomic_compare_exchange_strong(&s->held.state, &state, loan * STATES + SENDING))
        return;
    const int rc = ibx_session_try_gathered(s);
    const bool again = rc == -EAGAIN || rc == -ENOTCONN;
    s->held.failed = again ? 0 : rc;
    state = loan * STATES + SENDING;
    atomic_compare_exchange_strong(&s->held.state, &state, again ? loan * STATES + LENT : OWN);
}

/* Whether any replies are lent. Those that were so at the last look are sent. */
static bool look(bool sends)
{
    bool lent = false;
    pthread_mutex_lock(&sender.lock);
    for (struct ibx_session *s = sender.first; s; s = s->held.next) {
        const unsigned state = atomic_load(&s->held.state);
        if (state % STATES != LENT)
            continue;
        lent = true;
        if (sends && s->held.seen == state)
            send_held(s, state / STATES);
        s->held.seen = state;
    }
    pthread_mutex_unlock(&sender.lock);
    return lent;
}

static void *send_what_is_held(void *argument)
{
    (void)argument;
    for (unsigned idle = 0;;) {
        nanosleep(&(struct timespec){.tv_nsec = TICK_NS}, NULL);
        idle = look(true) ? 0 : idle + 1;
        if (idle < IDLE_TICKS)
            continue;
        atomic_store(&sender.asleep, true);
        while (!look(false) && sem_wait(&sender.wake))
            ;
        atomic_store(&sender.asleep, false);
        idle = 0;
    }
    return NULL;
}

static void begin(void)
{
    sem_init(&sender.wake, 0, 0);
    sender.runs = !ibx_thread_begin(NULL, send_what_is_held, NULL);
}

/* Locked. */
static void add(struct ibx_session *s)
{
    s->held.next = sender.first;
    sender.first = s;
    s->held.listed = true;
}

bool ibx_held_replies_hold(struct ibx_session *s, uint64_t left)
{
    const uint64_t now = ibx_now_ns();
    pthread_once(&sender.begun, begin);
    if (!s->held.listed && sender.runs) {
        pthread_mutex_lock(&sender.lock);
        add(s);
        pthread_mutex_unlock(&sender.lock);
    }
    if (!s->held.any)
        s->held.since = now;
    s->held.any = s->held.listed && now - s->held.since < HOLD_NS;
    s->held.left = left;
    s->held.loan = (s->held.loan + 1) % (UINT_MAX / STATES);
    return s->held.any;
}

void ibx_held_replies_lend(struct ibx_session *s)
{
    if (!s->held.any)
        return;
    atomic_store(&s->held.state, s->held.loan * STATES + LENT);
    if (atomic_load(&sender.asleep) && atomic_exchange(&sender.asleep, false))
        sem_post(&sender.wake);
}

bool ibx_held_replies_take(struct ibx_session *s)
{
    if (atomic_load_explicit(&s->held.state, memory_order_acquire) == OWN)
        return false;
    const bool sending = atomic_exchange(&s->held.state, OWN) % STATES == SENDING;
    if (sending) {
        pthread_mutex_lock(&sender.lock);
        pthread_mutex_unlock(&sender.lock);
    }
    s->held.any = s->out.length;
    return s->held.any;
}

void ibx_held_replies_end(struct ibx_session *s)
{
    ibx_held_replies_take(s);
    s->held.any = false;
    if (!s->held.listed)
        return;
    pthread_mutex_lock(&sender.lock);
    struct ibx_session **at = &sender.first;
    while (*at != s)
        at = &(*at)->held.next;
    *at = s->held.next;
    pthread_mutex_unlock(&sender.lock);
    s->held.listed = false;
}
