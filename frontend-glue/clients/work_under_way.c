/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * All work of a context that is under way at some moment: events behind it tell when it is over.
 * Clients' streams are known by their handles (handles.c), the work that threads had in streams of
 * their own by left_work.c.
 *
 * It is not known whose work is in the legacy stream. It may be behind work that does not end, in
 * another client's blocking stream.
 *
 * Work that is waited for in vain is waited for again, as long as it lasts. A new event each time
 * would fill the stream in the end: CUDA takes about a thousand entries, and then the call that
 * adds one more waits, and other threads' calls with it. So events are kept, one for each stream,
 * and used for the next moment. Work that came behind them meanwhile belongs to a further moment,
 * once they are over.
 */
#include "frontend-glue/clients/clients.h"

#include "common/clock.h"
#include "common/log.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define NAP_LEAST_NS 50000u
#define NAP_MOST_NS  10000000u

#define SETTLE_MS      1000u   /* for so long work is waited for at a time, at first */
#define SETTLE_MOST_MS 600000u /* ... and later */
#define TOLD_MS        5000u   /* ... after so long in all, this is logged */

struct behind {
    void *event;
    uint64_t client; /* whose work it is behind; 0: that of the legacy stream */
    const void *stream;
};

struct moment {
    struct behind *events;
    size_t count;
    unsigned resets; /* ibx_back_end_resets() as they were made: a reset destroys events */
    uint64_t left;   /* ibx_left_work_so_far() at the moment */
    bool now;        /* kept events are not used: they are behind work of an earlier moment */
    bool earlier;    /* some are kept events */
    const void *context;
};

struct kept {
    struct kept *next;
    struct behind behind;
    unsigned resets;
    const void *context;
};
#define KEPT_BUCKETS 4096u
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kept *all_kept[KEPT_BUCKETS]; /* by stream: a client may have thousands */
static size_t kept_count;

void ibx_nap(uint64_t *ns)
{
    *ns = *ns ? *ns : NAP_LEAST_NS;
    nanosleep(&(struct timespec){.tv_nsec = (long)*ns}, NULL);
    *ns = 2 * *ns < NAP_MOST_NS ? 2 * *ns : NAP_MOST_NS;
}

/* Locked. Where the kept event of the stream is; the end of its list: there is none. */
static struct kept **find_kept(const void *context, const void *stream)
{
    const uintptr_t at = (uintptr_t)stream;
    struct kept **k = &all_kept[(at >> 4 ^ at >> 12 ^ at >> 20) % KEPT_BUCKETS];
    while (*k && !((*k)->context == context && (*k)->behind.stream == stream))
        k = &(*k)->next;
    return k;
}

/* Takes the stream's kept event out of the table. NULL: there is none. */
static struct kept *take_kept(const void *context, const void *stream)
{
    pthread_mutex_lock(&lock);
    struct kept **at = find_kept(context, stream), *k = *at;
    if (k) {
        *at = k->next;
        kept_count--;
    }
    pthread_mutex_unlock(&lock);
    return k;
}

/* Takes all kept events of the context out of the table. Returns the first one. */
static struct kept *take_all_kept(const void *context)
{
    struct kept *all = NULL;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < KEPT_BUCKETS && kept_count; i++) {
        for (struct kept **at = &all_kept[i], *k; (k = *at);) {
            if (k->context != context) {
                at = &k->next;
                continue;
            }
            *at = k->next;
            k->next = all;
            all = k;
            kept_count--;
        }
    }
    pthread_mutex_unlock(&lock);
    return all;
}

/* Keeps an event. False: there is one of that stream already, or no memory. */
static bool keep(const struct moment *m, const struct behind *b)
{
    struct kept *made = malloc(sizeof(*made));
    if (!made)
        return false;
    *made = (struct kept){.behind = *b, .resets = m->resets, .context = m->context};
    pthread_mutex_lock(&lock);
    struct kept **end = find_kept(m->context, b->stream);
    const bool is_new = !*end;
    if (is_new) {
        *end = made;
        kept_count++;
    }
    pthread_mutex_unlock(&lock);
    if (!is_new)
        free(made);
    return is_new;
}

/* Drops the moment's last event, which is kept if it is not over. */
static void drop_event(const struct ibx_cuda *cuda, struct moment *m)
{
    const struct behind *b = &m->events[--m->count];
    if (cuda->event_query(b->event) != IBX_CUDA_NOT_READY || !keep(m, b))
        cuda->event_destroy(b->event);
}

/* Drops kept events of the context that are over, or gone with a reset. */
static void sort_out_kept(const struct ibx_cuda *cuda, const struct moment *m)
{
    struct kept *next;
    for (struct kept *k = take_all_kept(m->context); k; k = next) {
        next = k->next;
        const bool there = k->resets == m->resets;
        const bool stays = there && cuda->event_query(k->behind.event) == IBX_CUDA_NOT_READY;
        if (there && !(stays && keep(m, &k->behind)))
            cuda->event_destroy(k->behind.event);
        free(k);
    }
}

/* Uses the kept event of the stream for the moment. False: there is none. */
static bool put_kept(struct moment *m, const void *stream)
{
    struct kept *k = m->now ? NULL : take_kept(m->context, stream);
    if (!k)
        return false;
    m->events[m->count++] = k->behind;
    m->earlier = true;
    free(k);
    return true;
}

static bool put_event(const struct ibx_cuda *cuda, struct moment *m, void *stream, uint64_t client)
{
    void *event = NULL;
    if (put_kept(m, stream))
        return true;
    if (cuda->event_create(&event, IBX_CUDA_EVENT_DISABLE_TIMING))
        return false;
    if (cuda->event_record(event, stream)) {
        cuda->event_destroy(event);
        return false;
    }
    m->events[m->count++] = (struct behind){event, client, stream};
    return true;
}

static bool put_behind_legacy(const struct ibx_cuda *cuda, struct moment *m)
{
    if (cuda->stream_query(IBX_CUDA_STREAM_LEGACY) != IBX_CUDA_NOT_READY ||
        put_kept(m, IBX_CUDA_STREAM_LEGACY))
        return true;
    void *event = ibx_own_event_behind_legacy(cuda);
    if (event)
        m->events[m->count++] = (struct behind){event, 0, IBX_CUDA_STREAM_LEGACY};
    return event;
}

/* Puts events behind the busy ones of these streams, which are held. False: one of the client's own
 * is busy, or one is being captured, or CUDA fails. */
static bool put_behind(const struct ibx_cuda *cuda, uint64_t client, struct handle **streams,
                       size_t count, struct moment *m)
{
    for (size_t i = 0; i < count; i++) {
        void *stream = (void *)(uintptr_t)ibx_handles_value(streams[i]);
        const uint64_t whose = ibx_handles_client(streams[i]);
        int capturing = 0;
        const int rc = cuda->stream_is_capturing(stream, &capturing);
        if (!rc && capturing)
            return false;
        if (rc || cuda->stream_query(stream) != IBX_CUDA_NOT_READY)
            continue;
        if (whose == client || !put_event(cuda, m, stream, whose))
            return false;
    }
    return true;
}

/* To be called while nobody captures, nor begins to, and no reset is under way. */
static bool put_events(const struct ibx_cuda *cuda, uint64_t client, const void *context,
                       struct moment *m)
{
    size_t count = 0;
    struct handle **streams = ibx_handles_hold_streams(0, context, &count);
    m->events = streams ? calloc(count + 1, sizeof(*m->events)) : NULL;
    m->resets = ibx_back_end_resets();
    m->context = context;
    m->left = ibx_left_work_so_far();
    sort_out_kept(cuda, m);
    const bool put = m->events && !ibx_left_work_any(cuda, client, 0) &&
                     !ibx_left_work_in_legacy(cuda, client) &&
                     put_behind(cuda, client, streams, count, m) && put_behind_legacy(cuda, m);
    while (!put && m->count)
        drop_event(cuda, m);
    if (streams)
        ibx_handles_release(streams, count);
    return put;
}

static bool begin(const struct ibx_cuda *cuda, uint64_t client, const void *context, bool now,
                  struct moment *m)
{
    bool begun = false;
    *m = (struct moment){.now = now};
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

/* Whether the moment's work is over; `gives_up`: drops its events, which are kept if they are not
 * over. */
static bool look(const struct ibx_cuda *cuda, struct moment *m, bool gives_up)
{
    if (!ibx_clients_give_begin())
        return false;
    if (m->resets != ibx_back_end_resets())
        m->count = 0;
    while (m->count &&
           (gives_up || cuda->event_query(m->events[m->count - 1].event) != IBX_CUDA_NOT_READY))
        drop_event(cuda, m);
    const bool over = !m->count && !ibx_left_work_any(cuda, 0, m->left);
    ibx_clients_give_end();
    return over;
}

/* The work that is left is of others: what the client has left in the legacy stream was over when
 * the moment began (left_work.c). */
static enum ibx_work give_up(const struct ibx_cuda *cuda, struct moment *m, uint64_t *whose)
{
    uint64_t ns = 0;
    *whose = m->count ? m->events[m->count - 1].client : 0;
    for (look(cuda, m, true); m->count; look(cuda, m, true)) /* until a reset is over */
        ibx_nap(&ns);
    return IBX_WORK_OF_OTHERS;
}

/* *earlier: whether kept events may be used; on return, whether some were: then newer work may be
 * behind them. */
static enum ibx_work wait_once(struct gpu_session *x, uint64_t client, const void *context,
                               unsigned ms, uint64_t *whose, bool *earlier)
{
    struct moment m;
    uint64_t ns = 0, deadline = ibx_deadline_in_ms(ms);
    bool over = false;
    *whose = client;
    while (!begin(x->cuda, client, context, !*earlier, &m)) {
        if (ibx_context_broken() || ibx_now_ns() >= deadline)
            return ibx_context_broken() ? IBX_WORK_LOST : IBX_WORK_OWN;
        ibx_nap(&ns);
    }
    deadline = ibx_deadline_in_ms(ms);
    for (ns = 0; !(over = look(x->cuda, &m, false)) && ibx_now_ns() < deadline; ibx_nap(&ns))
        if (ibx_context_broken())
            break;
    enum ibx_work work = over ? IBX_WORK_OVER : IBX_WORK_LOST;
    if (!over && !ibx_context_broken())
        work = give_up(x->cuda, &m, whose);
    free(m.events);
    *earlier = m.earlier;
    return ibx_context_broken() ? IBX_WORK_LOST : work;
}

enum ibx_work ibx_work_wait(struct gpu_session *x, uint64_t client, const void *context,
                            unsigned ms, uint64_t *whose)
{
    bool earlier = true;
    const enum ibx_work work = wait_once(x, client, context, ms, whose, &earlier);
    if (work != IBX_WORK_OVER || !earlier)
        return work;
    earlier = false;
    return wait_once(x, client, context, ms, whose, &earlier);
}

/* ----------------------------------------------------------------- before something is given back
 */

enum ibx_work ibx_own_work_settle(struct gpu_session *x, unsigned ms, uint64_t *whose)
{
    void *context = NULL;
    if (!ibx_clients_several(x) || !ibx_back_end_have_cuda(x) ||
        x->cuda->ctx_get_current(&context) || !context)
        return IBX_WORK_OVER;
    const int mode = ibx_cuda_capture_relax(x->cuda);
    const enum ibx_work work = ibx_work_wait(x, IBX_CLIENT_NONE, context, ms, whose);
    ibx_cuda_capture_restore(x->cuda, mode);
    return work == IBX_WORK_OWN && *whose == IBX_CLIENT_NONE ? IBX_WORK_OVER : work;
}

static void tell(struct gpu_session *x, uint64_t whose)
{
    struct ibx_client_name name = {"the default stream, which all clients share,"},
                           own = {"a client"};
    ibx_clients_name(ibx_clients_number(x), &own);
    if (whose)
        ibx_clients_name(whose, &name);
    ibx_log(
        IBX_LOG_WARN,
        "%s gives something back, and waits until the work of %s has ended: CUDA would wait for "
        "it, and let nobody else do anything meanwhile",
        own.text, name.text);
}

/* Each wait is for the work of one moment, and others may always have newer work. So each wait
 * takes up to twice as long as the one before. */
void ibx_own_work_settle_all(struct gpu_session *x)
{
    uint64_t whose, waited = 0;
    for (unsigned ms = SETTLE_MS;; ms = ms < SETTLE_MOST_MS ? 2 * ms : ms) {
        const enum ibx_work work = ibx_own_work_settle(x, ms, &whose);
        if (work == IBX_WORK_OVER || work == IBX_WORK_LOST)
            return;
        if (waited < TOLD_MS && waited + ms >= TOLD_MS)
            tell(x, whose);
        waited += ms;
    }
}
