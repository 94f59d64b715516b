/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * All pipelines of the process. The sender is a thread that sends what applications have left
 * unsent while they compute; it sleeps as long as there is nothing. Order of locks: the process's
 * first, then one of a pipeline, which is only tried, except as the process ends: who has a
 * pipeline's lock never waits for the process's.
 */
#include "frontend-glue/call_pipeline/internal.h"

#include "common/clock.h"
#include "common/handlers.h"
#include "common/log.h"
#include "common/thread.h"

#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#define TICK_NS     20000u /* of the sender: for so long a request is left unsent, at least */
#define IDLE_TICKS  50u    /* ticks without work; then it sleeps */
#define SPIN_NS     50000u /* for so long a thread polls for another one's requests */
#define TARGETS_MAX 64u
#define LEAVE_MS    500u /* for so long the end of a process waits for pipelines' locks */

/* Of the sender, moved by compare and exchange: */
enum sender_state { SENDER_NONE, SENDER_AWAKE, SENDER_ASLEEP, SENDER_NAPS, SENDER_FAILED };

static struct {
    pthread_mutex_t lock;
    struct ibx_pipeline *first;
    uint64_t ids;
    sem_t wake;
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};
static _Atomic unsigned number;
static _Atomic long outstanding; /* of all pipelines */
static _Atomic enum sender_state sender;
static _Atomic uint32_t nap_ns; /* while it NAPS */
/* exit(3) was called, and how long waits may take from then on, ns. */
static atomic_bool ends;
static _Atomic uint64_t end_ns;
static pthread_once_t begun = PTHREAD_ONCE_INIT;

unsigned ibx_process_number(void)
{
    return atomic_load_explicit(&number, memory_order_relaxed);
}

void ibx_process_count(int n)
{
    atomic_fetch_add(&outstanding, n);
}

/* -------------------------------------------------------------------- fork and exit */

static void before_fork(void)
{
    pthread_mutex_lock(&process.lock);
    ibx_allocations_lock();
    ibx_events_lock();
    ibx_library_lock();
    ibx_process_facts_lock();
}

static void after_fork(void)
{
    ibx_process_facts_unlock();
    ibx_library_unlock();
    ibx_events_unlock();
    ibx_allocations_unlock();
    pthread_mutex_unlock(&process.lock);
}

/* In the child: pipelines, their connections and the sender belong to the parent. */
static void in_child(void)
{
    sem_init(&process.wake, 0, 0);
    process.first = NULL;
    pthread_mutex_unlock(&process.lock);
    ibx_process_facts_unlock();
    ibx_process_facts_clear();
    ibx_library_unlock();
    ibx_library_clear();
    ibx_events_unlock();
    ibx_events_clear();
    ibx_allocations_unlock();
    ibx_allocations_clear();
    atomic_fetch_add(&number, 1);
    atomic_store(&outstanding, 0);
    atomic_store(&sender, SENDER_NONE);
    atomic_store(&ends, false);
}

/* Locked. Other threads may go on for ever: what they call from now on is not waited for. */
static void note_exit(void)
{
    for (struct ibx_pipeline *p = process.first; p; p = p->next)
        p->answered_at_exit = atomic_load(&p->answered);
}

/* Locked. Sends what can be sent. Whether something is left to be sent or to be run. The connection
 * monitor or another thread that has a pipeline's lock may not send before the process has ended. A
 * thread that waits for a reply has sent everything. It may wait for ever, which must not delay the
 * end. */
static bool push_all(void)
{
    bool left = false;
    for (struct ibx_pipeline *p = process.first; p; p = p->next) {
        if (!ibx_pipeline_idle(p) && !pthread_mutex_trylock(&p->lock)) {
            ibx_backlog_push(p, true);
            pthread_mutex_unlock(&p->lock);
        }
        left = left || !(atomic_load(&p->replied) >= p->answered_at_exit ||
                         ibx_session_awaits_reply(p->session));
    }
    return left;
}

static void rest(void)
{
    nanosleep(&(struct timespec){.tv_nsec = TICK_NS}, NULL);
}

uint64_t ibx_process_end_ns(void)
{
    return atomic_load(&ends) ? atomic_load(&end_ns) : IBX_PIPELINE_END_MS * IBX_NS_PER_MS;
}

void ibx_process_end_waited(uint64_t since)
{
    const uint64_t left = atomic_load(&end_ns), waited = ibx_now_ns() - since;
    if (atomic_load(&ends))
        atomic_store(&end_ns, waited < left ? left - waited : 0);
}

/* Has everything run that an application has launched before it ends. */
static void run_all(void)
{
    const uint64_t since = ibx_now_ns(), deadline = since + ibx_process_end_ns();
    pthread_mutex_lock(&process.lock);
    note_exit();
    pthread_mutex_unlock(&process.lock);
    for (bool left = true; left && ibx_now_ns() < deadline;) {
        pthread_mutex_lock(&process.lock);
        left = push_all();
        pthread_mutex_unlock(&process.lock);
        ibx_handlers_run();
        if (left)
            rest();
    }
    ibx_process_end_waited(since);
}

/* Inside, since another signal's handler may call exit(3) once more. */
static void at_exit(void)
{
    if (ibx_inside_exits())
        return;
    const struct ibx_inside inside = ibx_inside_begin();
    if (!atomic_load(&ends))
        atomic_store(&end_ns, IBX_PIPELINE_END_MS * IBX_NS_PER_MS);
    atomic_store(&ends, true);
    run_all();
    ibx_inside_end(inside);
}

static void begin(void)
{
    sem_init(&process.wake, 0, 0);
    if (pthread_atfork(before_fork, after_fork, in_child) || atexit(at_exit))
        ibx_log(IBX_LOG_WARN, "calls made just before exit() may be lost: no memory");
}

void ibx_process_add(struct ibx_pipeline *p)
{
    pthread_once(&begun, begin);
    pthread_mutex_lock(&process.lock);
    p->process = ibx_process_number();
    p->id = ++process.ids;
    p->next = process.first;
    process.first = p;
    pthread_mutex_unlock(&process.lock);
}

void ibx_process_remove(struct ibx_pipeline *p)
{
    pthread_mutex_lock(&process.lock);
    struct ibx_pipeline **at = &process.first;
    while (*at && *at != p)
        at = &(*at)->next;
    if (*at)
        *at = p->next;
    pthread_mutex_unlock(&process.lock);
}

/* A pipeline's lock, for which this waits until a time, unless its thread waits for a reply. */
static bool lock_before(struct ibx_pipeline *p, const struct timespec *until)
{
    return !pthread_mutex_trylock(&p->lock) ||
           (!ibx_session_awaits_reply(p->session) &&
            !pthread_mutex_clocklock(&p->lock, CLOCK_MONOTONIC, until));
}

/* The connection monitor and the sender have each lock for a moment only. */
void ibx_process_leave(void)
{
    const struct timespec until = ibx_timespec_of(ibx_deadline_in_ms(LEAVE_MS));
    pthread_mutex_lock(&process.lock);
    for (struct ibx_pipeline *p = process.first; p; p = p->next) {
        if (!lock_before(p, &until))
            continue;
        ibx_backlog_push(p, true);
        ibx_session_close(p->session);
    }
    pthread_mutex_unlock(&process.lock);
}

/* ------------------------------------------------------------- order between threads */

/* Another thread's pipeline, and up to which number its requests have to be run. */
struct target {
    uint64_t id, number;
};

static bool covers_all(const struct ibx_scope *scope, const struct ibx_pipeline *p, bool named)
{
    return (scope->memory && atomic_load(&p->concerns.memory)) || scope->all ||
           (scope->events &&
            atomic_load(&p->concerns.events) >= (named ? EVENTS_ANY : EVENTS_NAMED));
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* The last request of a pipeline that concerns the stream; 0: none. */
static uint64_t last_in_stream(const struct ibx_stream_uses *uses, uint64_t stream)
{
    const uint64_t all = atomic_load(&uses->all);
    for (unsigned i = 0; i < IBX_STREAM_USES; i++) {
        if (atomic_load(&uses->of[i].stream) == stream)
            return later(all, atomic_load(&uses->of[i].number));
    }
    return stream == STREAM_THREAD ? all : later(all, atomic_load(&uses->others));
}

/* The last request of a pipeline that has to be run first; 0: none. `uses`: those of the only event
 * that the scope is about; NULL: it is about others, too. */
static uint64_t covered(const struct ibx_scope *scope, const struct ibx_event_uses *uses,
                        const struct ibx_pipeline *p)
{
    uint64_t last = 0;
    if (covers_all(scope, p, uses))
        return atomic_load(&p->answered);
    if (scope->stream != STREAMS_NONE)
        last = last_in_stream(&p->concerns.streams, scope->stream);
    else if (scope->events && !uses)
        last = atomic_load(&p->concerns.streams.all);
    for (unsigned i = 0; uses && i < uses->count; i++) {
        if (uses->of[i].pipeline == p->id)
            last = later(last, uses->of[i].number);
    }
    return last;
}

/* Locked. */
static struct ibx_pipeline *pipeline_of(uint64_t id)
{
    struct ibx_pipeline *p = process.first;
    while (p && p->id != id)
        p = p->next;
    return p;
}

struct ibx_pipeline *ibx_process_lock_below(uint64_t *below)
{
    pthread_mutex_lock(&process.lock);
    struct ibx_pipeline *p = process.first; /* in falling order */
    while (p && (p->id >= *below || pthread_mutex_trylock(&p->lock)))
        p = p->next;
    if (p)
        *below = p->id;
    pthread_mutex_unlock(&process.lock);
    return p;
}

/* Locked. Fills `targets` with the highest pipelines below an id. Later requests of the same
 * threads are not waited for. */
static unsigned find_targets(const struct ibx_pipeline *but, const struct ibx_scope *scope,
                             const struct ibx_event_uses *uses, uint64_t below,
                             struct target *targets)
{
    unsigned count = 0;
    for (struct ibx_pipeline *p = process.first; p && count < TARGETS_MAX; p = p->next) {
        const uint64_t last =
            p != but && p->id < below && !ibx_pipeline_idle(p) ? covered(scope, uses, p) : 0;
        if (last)
            targets[count++] = (struct target){p->id, last};
    }
    return count;
}

/* Locked. Sends for the targets, and keeps those that are not reached yet; returns how many. */
static unsigned approach(struct target *targets, unsigned count)
{
    unsigned left = 0;
    for (unsigned i = 0; i < count; i++) {
        struct ibx_pipeline *p = pipeline_of(targets[i].id);
        if (p && !pthread_mutex_trylock(&p->lock)) {
            ibx_backlog_push(p, true);
            pthread_mutex_unlock(&p->lock);
        }
        if (p && atomic_load(&p->replied) < targets[i].number)
            targets[left++] = targets[i];
    }
    return left;
}

void ibx_process_order(const struct ibx_pipeline *pipeline, const struct ibx_scope *scope)
{
    /* Read in this order, since replies to this thread's own requests may come meanwhile. */
    const long everybodys = atomic_load(&outstanding);
    const uint64_t mine = atomic_load(&pipeline->answered) - atomic_load(&pipeline->replied);
    struct target targets[TARGETS_MAX];
    struct ibx_event_uses of_event;
    unsigned count = 0;
    if (!scope->any || everybodys <= (long)mine)
        return;
    const struct ibx_event_uses *uses =
        scope->event && ibx_events_uses(scope->event, &of_event) ? &of_event : NULL;
    const uint64_t spin_until = ibx_now_ns() + SPIN_NS;
    uint64_t below = UINT64_MAX; /* the list is in falling order */
    do {                         /* if there are more than fit, in several rounds */
        pthread_mutex_lock(&process.lock);
        count = find_targets(pipeline, scope, uses, below, targets);
        below = count ? targets[count - 1].id : 0;
        for (unsigned left = approach(targets, count); left; left = approach(targets, left)) {
            pthread_mutex_unlock(&process.lock);
            ibx_handlers_run();
            if (ibx_now_ns() > spin_until)
                rest();
            else
                ibx_cpu_relax();
            pthread_mutex_lock(&process.lock);
        }
        pthread_mutex_unlock(&process.lock);
    } while (count == TARGETS_MAX);
}

bool ibx_process_waits_for(const struct ibx_event_use *use)
{
    bool broken = false;
    pthread_mutex_lock(&process.lock);
    struct ibx_pipeline *p = pipeline_of(use->pipeline);
    if (p && atomic_load(&p->replied) < use->number && !pthread_mutex_trylock(&p->lock)) {
        ibx_backlog_push(p, true);
        broken = !ibx_session_live(p->session) || ibx_session_broken(p->session);
        pthread_mutex_unlock(&p->lock);
    }
    const bool waits = p && !broken && atomic_load(&p->replied) < use->number;
    pthread_mutex_unlock(&process.lock);
    return waits;
}

/* ------------------------------------------------------------------------ the sender */

/* Sends what was left unsent. Whether there was anything; *ns: until when to look again. */
static bool sweep(uint32_t *ns)
{
    bool found = false;
    uint32_t left = UINT32_MAX;
    pthread_mutex_lock(&process.lock);
    for (struct ibx_pipeline *p = process.first; p; p = p->next) {
        if (!atomic_load(&p->unsent))
            continue;
        if (pthread_mutex_trylock(&p->lock)) { /* its holder sends, or calls the sender later */
            left = 0;
            continue;
        }
        ibx_backlog_push(p, true);
        if (atomic_load(&p->unsent) && atomic_load(&p->patience) < left)
            left = atomic_load(&p->patience);
        pthread_mutex_unlock(&p->lock);
        found = true;
    }
    pthread_mutex_unlock(&process.lock);
    *ns = left == UINT32_MAX || left < TICK_NS ? TICK_NS : left;
    return found;
}

/* How soon something that was left has to be sent, ns; UINT32_MAX: nothing was left. */
static uint32_t least_patience(void)
{
    uint32_t least = UINT32_MAX;
    pthread_mutex_lock(&process.lock);
    for (struct ibx_pipeline *p = process.first; p; p = p->next) {
        if (atomic_load(&p->unsent) && atomic_load(&p->patience) < least)
            least = atomic_load(&p->patience);
    }
    pthread_mutex_unlock(&process.lock);
    return least;
}

static void nap(uint32_t ns)
{
    if (ns <= TICK_NS) {
        rest();
        return;
    }
    const struct timespec until = ibx_timespec_of(ibx_now_ns() + ns);
    atomic_store(&nap_ns, ns);
    atomic_store(&sender, SENDER_NAPS);
    if (least_patience() >= ns)
        sem_clockwait(&process.wake, CLOCK_MONOTONIC, &until);
    atomic_store(&sender, SENDER_AWAKE);
}

static void *send_for_others(void *argument)
{
    (void)argument;
    ibx_thread_prompt();
    prctl(PR_SET_TIMERSLACK, 1);
    uint32_t ns = TICK_NS;
    for (unsigned idle = 0;;) {
        nap(ns);
        idle = sweep(&ns) ? 0 : idle + 1;
        if (idle < IDLE_TICKS)
            continue;
        atomic_store(&sender, SENDER_ASLEEP);
        if (least_patience() == UINT32_MAX) {
            while (sem_wait(&process.wake))
                ;
        }
        atomic_store(&sender, SENDER_AWAKE);
        idle = 0;
    }
    return NULL;
}

static bool sender_begin(void)
{
    enum sender_state none = SENDER_NONE;
    if (!atomic_compare_exchange_strong(&sender, &none, SENDER_AWAKE))
        return none != SENDER_FAILED;
    const int rc = ibx_thread_begin(NULL, send_for_others, NULL);
    if (!rc)
        return true;
    atomic_store(&sender, SENDER_FAILED);
    ibx_log(IBX_LOG_WARN, "CUDA calls are sent one by one: no thread to send them: %s",
            strerror(-rc));
    return false;
}

bool ibx_process_send_soon(uint32_t patience)
{
    enum sender_state now = atomic_load(&sender);
    const bool late = now == SENDER_NAPS && patience < atomic_load(&nap_ns);
    if ((now == SENDER_ASLEEP || late) &&
        atomic_compare_exchange_strong(&sender, &now, SENDER_AWAKE))
        sem_post(&process.wake);
    return now == SENDER_NONE ? sender_begin() : now != SENDER_FAILED;
}
