/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Captures of streams. A wait for the device ends all captures in its context, in whatever mode.
 * All clients are threads of one process and share a context; natively they do not. So such a wait
 * is made while no other client captures, and a capture begins while no such wait is under way. The
 * first to come goes first: neither a chain of captures nor one of waits keeps the other kind out.
 *
 * Work in the legacy stream fails, and ends captures of streams that wait for the legacy one. So
 * such work is delayed until no other client has such a capture; those of the same client, by
 * whichever thread, it ends natively, too. The beginning of such a capture is delayed by copies,
 * which may be added piece by piece; for other work CUDA checks once, when it is added.
 *
 * It is not certain that a capture or a wait ends: the work that is waited for may need a capture
 * that has not begun. So nothing is delayed for long. A capture that outlasts the time for which a
 * wait is delayed is ended by it, and not waited for again.
 */
#include "frontend-glue/clients/captures_internal.h"

#include "common/clock.h"
#include "common/log.h"

#include <pthread.h>
#include <stdatomic.h>

#define CAPTURES_MS 2000u /* for so long captures delay a wait */
#define WAITS_MS    500u  /* for so long waits that are under way delay a capture */
#define QUEUED_MS   200u  /* ... waits in the queue do, which may need this capture */

/* A client that is about to capture, or to wait for the device. */
struct place {
    struct place *next; /* behind it */
    bool waits;
};

static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct place *queue;
static _Atomic unsigned captures; /* of all clients */
static unsigned whole;            /* of these, those that no wait has ended */
static _Atomic unsigned blocking; /* of the latter, those of streams that wait for the legacy one */
static unsigned ended;            /* how often a wait has ended all captures */
static unsigned waits;            /* waits for the device that are under way */
static struct {
    _Alignas(64) _Atomic unsigned count; /* in a cache line of its own: each copy changes it */
} copies;                                /* copies in the legacy stream that are under way */

bool ibx_captures_any(void)
{
    return atomic_load(&captures);
}

bool ibx_captures_any_of_tenant(const struct gpu_session *x)
{
    return atomic_load(&ibx_captures_work(x)->count);
}

unsigned ibx_captures_over_so_far(const struct gpu_session *x)
{
    return atomic_load(&ibx_captures_work(x)->endings_over);
}

bool ibx_captures_ended_since(const struct gpu_session *x, unsigned before)
{
    return atomic_load(&ibx_captures_work(x)->endings) != before;
}

/* Locked. How many captures of the session no wait has ended. */
static unsigned own(struct gpu_session *x)
{
    if (x->capturing.ended_noted != ended)
        x->capturing.whole = x->capturing.blocking = 0;
    x->capturing.ended_noted = ended;
    return x->capturing.whole;
}

/* Locked. How many captures of the client no wait has ended, of streams that wait for the legacy
 * one. */
static unsigned own_blocking(struct gpu_session *x)
{
    unsigned count = 0;
    struct gpu_session *of = ibx_capture_next_of_client(x, NULL);
    for (; of; of = ibx_capture_next_of_client(x, of))
        count += own(of) ? of->capturing.blocking : 0;
    return count;
}

/* Locked. All captures count as ended: nobody waits for them any more. */
static void give_up(void)
{
    ended += whole > 0;
    whole = 0;
    atomic_store(&blocking, 0);
    pthread_cond_broadcast(&changed);
}

/* Locked. */
static void enter(struct place *place)
{
    struct place **at = &queue;
    while (*at)
        at = &(*at)->next;
    *at = place;
}

/* Locked. */
static void leave(const struct place *place)
{
    struct place **at = &queue;
    while (*at != place)
        at = &(*at)->next;
    *at = place->next;
    pthread_cond_broadcast(&changed);
}

/* Locked. Whether somebody of the other kind came before. */
static bool is_behind(const struct place *place)
{
    const struct place *before = queue;
    while (before != place && before->waits == place->waits)
        before = before->next;
    return before != place;
}

/* Locked, except while it sleeps. False: the deadline has passed. */
static bool sleep_until(uint64_t deadline)
{
    const struct timespec until = ibx_timespec_of(deadline);
    return ibx_now_ns() < deadline &&
           (pthread_cond_clockwait(&changed, &ibx_captures_lock, CLOCK_MONOTONIC, &until), true);
}

/* ------------------------------------------------------------------------------- waits */

void ibx_captures_wait_begin(struct gpu_session *x)
{
    const uint64_t deadline = ibx_deadline_in_ms(CAPTURES_MS);
    struct place place = {.waits = true};
    pthread_mutex_lock(&ibx_captures_lock);
    enter(&place);
    while ((whole > own(x) || is_behind(&place)) && sleep_until(deadline)) {
    }
    leave(&place);
    give_up();
    waits++;
    pthread_mutex_unlock(&ibx_captures_lock);
}

bool ibx_captures_wait_try(void)
{
    pthread_mutex_lock(&ibx_captures_lock);
    const bool can = !atomic_load(&captures);
    waits += can;
    pthread_mutex_unlock(&ibx_captures_lock);
    return can;
}

void ibx_captures_wait_end(void)
{
    pthread_mutex_lock(&ibx_captures_lock);
    waits--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&ibx_captures_lock);
}

/* ----------------------------------------------------------------------- the legacy stream */

/* Locked, except while it sleeps. `all`: also captures of other threads of the client. */
static void spare(struct gpu_session *x, bool all)
{
    const uint64_t deadline = ibx_deadline_in_ms(CAPTURES_MS);
    bool late = false;
    while (!own(x) && atomic_load(&blocking) > (all ? 0 : own_blocking(x)) && !late)
        late = !sleep_until(deadline);
    if (late)
        give_up();
}

static void spare_in(struct gpu_session *x, uint64_t stream, bool all)
{
    if (stream > 1 || !atomic_load(&blocking))
        return;
    ibx_clients_number(x);
    pthread_mutex_lock(&ibx_captures_lock);
    spare(x, all);
    pthread_mutex_unlock(&ibx_captures_lock);
}

void ibx_captures_spare(struct gpu_session *x, uint64_t stream)
{
    spare_in(x, stream, false);
}

void ibx_captures_spare_all(struct gpu_session *x, uint64_t stream)
{
    spare_in(x, stream, true);
}

/* A copy and a capture that begins each raise their own count first, and then look at the
 * other's. */
void ibx_captures_legacy_begin(struct gpu_session *x)
{
    atomic_fetch_add(&copies.count, 1);
    if (!atomic_load(&blocking))
        return;
    ibx_captures_legacy_end();
    ibx_clients_number(x);
    pthread_mutex_lock(&ibx_captures_lock);
    spare(x, false);
    atomic_fetch_add(&copies.count, 1);
    pthread_mutex_unlock(&ibx_captures_lock);
}

bool ibx_captures_legacy_try(void)
{
    atomic_fetch_add(&copies.count, 1);
    if (!atomic_load(&blocking))
        return true;
    ibx_captures_legacy_end();
    return false;
}

void ibx_captures_legacy_end(void)
{
    if (atomic_fetch_sub(&copies.count, 1) != 1 || !atomic_load(&blocking))
        return;
    pthread_mutex_lock(&ibx_captures_lock);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&ibx_captures_lock);
}

/* ---------------------------------------------------------------------------- captures */

bool ibx_captures_own(struct gpu_session *x, uint64_t *id)
{
    pthread_mutex_lock(&ibx_captures_lock);
    const unsigned count = x->capturing.begun;
    const uint64_t stream = ibx_capture_any_stream(x);
    pthread_mutex_unlock(&ibx_captures_lock);
    *id = 0;
    if (count != 1 || !stream)
        return count;
    return ibx_named_stream(x, stream) && ibx_captures_active(x, stream, id);
}

/* A client that captures already does not queue behind waits, which wait for that capture. */
static void begin(struct gpu_session *x, uint64_t stream)
{
    const bool blocking_one = ibx_capture_would_block(x, stream);
    const uint64_t deadline = ibx_deadline_in_ms(WAITS_MS), queued = ibx_deadline_in_ms(QUEUED_MS);
    struct place place = {.waits = false};
    ibx_clients_number(x); /* from now on, other sessions look at it */
    pthread_mutex_lock(&ibx_captures_lock);
    const bool blocks =
        blocking_one && !ibx_capture_holds(x, stream); /* otherwise the request fails */
    enter(&place);
    while ((waits && sleep_until(deadline)) ||
           (!waits && !own(x) && is_behind(&place) && sleep_until(queued))) {
    }
    x->capturing.whole = own(x) + 1;
    x->capturing.begun++;
    atomic_fetch_add(&captures, 1);
    atomic_fetch_add(&ibx_captures_work(x)->count, 1);
    whole++;
    x->capturing.blocking += blocks;
    blocking += blocks;
    ibx_capture_join(x);
    ibx_capture_add(x, stream);
    leave(&place);
    while (blocks && atomic_load(&blocking) && atomic_load(&copies.count) &&
           sleep_until(deadline)) {
    }
    pthread_mutex_unlock(&ibx_captures_lock);
}

/* Locked. */
static void end(struct gpu_session *x, unsigned most)
{
    const unsigned count = most < x->capturing.begun ? most : x->capturing.begun;
    const unsigned mine = own(x), gone = mine < count ? mine : count;
    x->capturing.whole -= gone;
    whole -= gone;
    /* Which capture has ended is not known, unless it was the last one. */
    const unsigned blocks = x->capturing.whole ? 0 : x->capturing.blocking;
    x->capturing.blocking -= blocks;
    blocking -= blocks;
    x->capturing.begun -= count;
    atomic_fetch_sub(&captures, count);
    atomic_fetch_sub(&ibx_captures_work(x)->count, count);
    ibx_capture_forget_work(x);
    pthread_cond_broadcast(&changed);
}

/* ----------------------------------------------------------------- handlers of GVirtuS's */

/* Functions that destroy a library's handle wait for the device, too. */
static bool waits_for_device(const char *name)
{
    static const char *const names[] = {"cudaDeviceSynchronize", "cudaThreadSynchronize",
                                        "cuCtxSynchronize",      "cublasDestroy",
                                        "cublasDestroy_v2",      "cudnnDestroy"};
    size_t i = 0;
    while (i < sizeof(names) / sizeof(names[0]) && strcmp(name, names[i]) != 0)
        i++;
    return i < sizeof(names) / sizeof(names[0]);
}

/* Of the requests that calls.c does not know: those of libraries, and of the runtime's copies, sets
 * and launches. */
static bool may_add_work(const char *name)
{
    const char *plain = strncmp(name, "__", 2) ? name : name + 2;
    return strncmp(plain, "cuda", 4) != 0 || !strncmp(plain, "cudaMemcpy", 10) ||
           !strncmp(plain, "cudaMemset", 10) || !strncmp(plain, "cudaLaunch", 10);
}

enum captures_use ibx_captures_use(const char *name, enum ibx_call_kind kind)
{
    const bool may_add = (ibx_call_is_open(kind) && may_add_work(name)) ||
                         kind == IBX_CALL_SHARES || kind == IBX_CALL_WAITS ||
                         kind == IBX_CALL_ENQUEUES;
    if (!strncmp(name, "cudaStreamBeginCapture", 22))
        return CAPTURES_BEGUN;
    if (!strncmp(name, "cudaStreamEndCapture", 20))
        return CAPTURES_ENDED;
    if (!strcmp(name, "cudaStreamDestroy") || !strcmp(name, "cuStreamDestroy"))
        return CAPTURES_DROPPED;
    if (waits_for_device(name))
        return CAPTURES_WAIT;
    return may_add ? CAPTURES_SPARED : CAPTURES_UNUSED;
}

bool ibx_captures_run(struct gpu_session *x)
{
    if (x->handler.captures_run != CAPTURES_UNUSED)
        return true;
    x->handler.captures_run = x->handler.captures;
    x->handler.captures_before = ibx_captures_over_so_far(x);
    x->handler.ends_capture = x->handler.captures_run == CAPTURES_ENDED;
    x->handler.ends_graphs = x->handler.ends_capture || x->handler.captures_run == CAPTURES_DROPPED;
    if (x->handler.ends_graphs && !ibx_told_graphs_end_begin(x, ibx_captures_stream_of(x))) {
        x->handler.ends_capture = x->handler.ends_graphs = false;
        x->handler.captures_run = CAPTURES_UNUSED;
        return false;
    }
    if (x->handler.ends_capture)
        atomic_fetch_add(&ibx_captures_work(x)->endings, 1);
    else if (x->handler.captures_run == CAPTURES_BEGUN)
        begin(x, ibx_captures_stream_of(x));
    else if (x->handler.captures_run == CAPTURES_WAIT)
        ibx_captures_wait_begin(x);
    else if (x->handler.captures_run == CAPTURES_SPARED)
        ibx_captures_spare(x, 0);
    return true;
}

/* The stream that was to be destroyed stays, if the handler was to get it. Otherwise its users
 * destroy it, or have done so, and the client has it no more: the handler destroys another one in
 * its place, or none. With another one, the capture counts as over. */
static void refuse_destroy(struct gpu_session *x, uint8_t *body)
{
    const uint64_t stream = ibx_captures_stream_of(x);
    struct ibx_reader r = ibx_reader_of(body, sizeof(uint64_t));
    const uint64_t given = ibx_get_u64(&r);
    if (given && given != stream) {
        x->handler.captures_run = CAPTURES_DROPPED;
        return;
    }
    if (given)
        ibx_handles_add(x, IBX_HANDLE_STREAM, stream);
    memset(body, 0, sizeof(uint64_t));
}

int ibx_captures_refuse(struct gpu_session *x, uint8_t *body)
{
    if (!body)
        return ibx_session_fail(x->s, -EBUSY,
                                "%s ends a capture by %s while another of its requests uses the "
                                "graph for too long",
                                ibx_session_path(x->s)->peer, x->requests.name);
    ibx_log(IBX_LOG_WARN,
            "%s cannot end a capture by %s: another of its requests uses the graph for too long",
            ibx_session_path(x->s)->peer, x->requests.name);
    if (x->handler.captures == CAPTURES_DROPPED)
        refuse_destroy(x, body);
    else
        memset(body, 0, sizeof(uint64_t));
    return 0;
}

void ibx_captures_ran(struct gpu_session *x)
{
    if (x->handler.ends_capture)
        atomic_fetch_add(&ibx_captures_work(x)->endings_over, 1);
    if (x->handler.ends_graphs) { /* the answer tells what has become of the graph */
        x->handler.ended_graph = ibx_told_graph(x, ibx_captures_stream_of(x), true);
        pthread_rwlock_unlock(ibx_captures_graphs_lock(x));
    }
    x->handler.ends_capture = x->handler.ends_graphs = false;
    if (x->handler.captures_run != CAPTURES_WAIT)
        return;
    ibx_captures_wait_end();
    x->handler.captures_run = CAPTURES_UNUSED;
}

/* A capture has been begun in that stream, or could not be. An older one in it has ended
 * elsewhere. */
static void begun(struct gpu_session *x, uint64_t stream, int exit_code)
{
    int status;
    uint64_t id = 0;
    if (stream && !exit_code)
        ibx_capture_status(x, stream, &status, &id);
    pthread_mutex_lock(&ibx_captures_lock);
    const unsigned i = stream ? ibx_capture_place(x, stream) : x->capturing.room;
    if (i < x->capturing.room && !exit_code) {
        ibx_capture_forget(x, stream);
        x->capturing.list[i] = (struct ibx_captured){.stream = stream, .id = id};
    } else if (i < x->capturing.room) {
        x->capturing.list[i].stream = 0;
    }
    if (exit_code)
        end(x, 1);
    pthread_mutex_unlock(&ibx_captures_lock);
}

/* Clients are threads of one process here. One that captures a stream, in mode GLOBAL as most do,
 * would forbid all others to allocate or to wait, and a client that does so would end the capture.
 * Natively clients are processes: so each thread is set to mind only its own captures. Until the
 * driver is loaded, nobody captures. */
void ibx_captures_mind_own(struct gpu_session *x)
{
    int mode = IBX_CUDA_CAPTURE_THREAD_LOCAL;
    const struct ibx_cuda *cuda = x->capturing.minds_own ? NULL : ibx_cuda_load(NULL);
    if (cuda && cuda->thread_exchange_stream_capture_mode)
        x->capturing.minds_own = !cuda->thread_exchange_stream_capture_mode(&mode);
}

void ibx_captures_begins(struct gpu_session *x, uint64_t stream)
{
    ibx_captures_mind_own(x);
    begin(x, stream);
}

/* Ends a capture that has just begun into a graph, and cannot be in the list: it would be nobody's
 * to end, and its graph anybody's to destroy. There is no memory, or it is invalid already, and has
 * no number; then CUDA destroys the graph. */
static void end_at_once(struct gpu_session *x, uint64_t stream, uint64_t graph)
{
    int (*end_capture)(uint64_t stream, uint64_t * graph) = NULL;
    uint64_t same;
    *(void **)&end_capture = ibx_back_end_runtime("cudaStreamEndCapture");
    const bool stays = end_capture && !end_capture(stream, &same);
    ibx_handles_capture_over(x, graph, stays);
    pthread_mutex_lock(&ibx_captures_lock);
    ibx_capture_forget(x, stream);
    end(x, 1);
    pthread_mutex_unlock(&ibx_captures_lock);
}

int ibx_captures_begun(struct gpu_session *x, uint64_t stream, int rc, uint64_t graph)
{
    begun(x, stream, rc);
    if (rc)
        return rc;
    pthread_mutex_lock(&ibx_captures_lock);
    struct ibx_captured *c = ibx_capture_entry_in(x, stream);
    if (c) {
        c->graph = graph;
        c->given = true;
    }
    pthread_mutex_unlock(&ibx_captures_lock);
    ibx_handles_capture_begins(x, graph);
    if (!c)
        end_at_once(x, stream, graph);
    return c ? 0 : CUDA_MEMORY_ALLOCATION;
}

/* A capture has ended. Any session of the client may end a capture in relaxed mode, or destroy the
 * stream of any; a capture in another mode that it ends is lost, without a graph. */
static void over(struct gpu_session *x, uint64_t stream, int exit_code)
{
    unsigned known = 0;
    pthread_mutex_lock(&ibx_captures_lock);
    const bool of_another = !exit_code || exit_code == IBX_CALL_CAPTURE_WRONG_THREAD;
    struct gpu_session *whose =
        of_another || ibx_capture_holds(x, stream) ? ibx_capture_holder(x, stream) : NULL;
    for (unsigned i = 0; i < x->capturing.room; i++)
        known += x->capturing.list[i].stream != 0;
    if (whose) {
        ibx_capture_forget(whose, stream);
        end(whose, 1);
    } else if (x->handler.captures_run == CAPTURES_ENDED && x->capturing.begun > known) {
        end(x, 1);
    }
    pthread_mutex_unlock(&ibx_captures_lock);
}

void ibx_captures_answered(struct gpu_session *x, int exit_code)
{
    const enum captures_use ran = x->handler.captures_run;
    const uint64_t stream = ran == CAPTURES_UNUSED ? 0 : ibx_captures_stream_of(x);
    const bool is_over = (ran == CAPTURES_ENDED && ibx_call_ends_capture(exit_code)) ||
                         (ran == CAPTURES_DROPPED && !exit_code);
    ibx_told_graph_answered(x, is_over, ran == CAPTURES_ENDED && !exit_code);
    if (ran == CAPTURES_BEGUN)
        begun(x, stream, exit_code);
    else if (is_over)
        over(x, stream, exit_code);
    x->handler.captures_run = CAPTURES_UNUSED;
}

static uint64_t next_to_end(const struct gpu_session *x)
{
    pthread_mutex_lock(&ibx_captures_lock);
    const uint64_t stream = ibx_capture_any_stream(x);
    pthread_mutex_unlock(&ibx_captures_lock);
    return stream;
}

/* Takes the capture in that stream out of the list, with its graph; false: another session has
 * ended it. */
static bool take(struct gpu_session *x, uint64_t stream, struct ibx_captured *taken)
{
    unsigned i = 0;
    pthread_mutex_lock(&ibx_captures_lock);
    while (i < x->capturing.room && x->capturing.list[i].stream != stream)
        i++;
    const bool any = i < x->capturing.room;
    if (any) {
        *taken = x->capturing.list[i];
        x->capturing.list[i].graph = 0;
        ibx_capture_forget_one(x, &x->capturing.list[i]);
    }
    pthread_mutex_unlock(&ibx_captures_lock);
    return any;
}

/* Ends the captures of a client that has gone, as nobody else would: as long as a stream is
 * captured, waits for the device fail, and so does work in the legacy stream, and nothing is freed
 * that clients have left. CUDA wants this from the thread that has begun them. The runtime is
 * looked up only if there is a capture: the client's end of a session, which has none, ends in the
 * destructors of GVirtuS's libraries, where the look-up would start the client's libcudart once
 * more, and hang. */
static void end_in_cuda(struct gpu_session *x)
{
    int (*end_capture)(uint64_t stream, uint64_t * graph) = NULL;
    struct ibx_captured c = {.given = false};
    for (uint64_t stream; (stream = next_to_end(x));) {
        uint64_t graph = 0;
        *(void **)&end_capture = ibx_back_end_runtime("cudaStreamEndCapture");
        const bool there = stream == (uintptr_t)IBX_CUDA_STREAM_PER_THREAD ||
                           ibx_handles_know(x, IBX_HANDLE_STREAM, stream);
        /* Other sessions of the client's may go on. If one keeps the graph, the stream's end ends
         * the capture. */
        const bool alone = ibx_told_graphs_end_begin(x, stream);
        const bool taken = take(x, stream, &c);
        if (taken && alone && end_capture && there && ibx_capture_is_still(x, stream, c.id))
            end_capture(stream, &graph);
        if (taken && c.graph)
            ibx_handles_capture_over(x, c.graph, graph && c.given);
        if (alone)
            pthread_rwlock_unlock(ibx_captures_graphs_lock(x));
        if (graph && !c.given)
            ibx_back_end_undo("cudaGraphDestroy", graph);
        ibx_handles_let_go(x); /* a request can hold only a few handles */
    }
}

/* Whether the capture of the stream is under way that the handler was to end. *given: it was into a
 * graph of the client's. */
static bool is_under_way(struct gpu_session *x, uint64_t stream, bool *given)
{
    pthread_mutex_lock(&ibx_captures_lock);
    const struct ibx_captured *c = ibx_capture_entry_in(x, stream);
    const uint64_t id = c ? c->id : 0;
    *given = c && c->given;
    pthread_mutex_unlock(&ibx_captures_lock);
    return id &&
           (stream == (uintptr_t)IBX_CUDA_STREAM_PER_THREAD ||
            ibx_handles_know(x, IBX_HANDLE_STREAM, stream)) &&
           ibx_capture_is_still(x, stream, id);
}

/* Whether the handler has ended a capture, as the head of its answer tells, if it has written that
 * much; *made: the graph is there. Nobody else knows: CUDA destroys the graph if the end fails, and
 * may have made another one at that address for somebody else. So without an answer the graph is
 * forgotten, and may stay in CUDA. */
static bool has_ended(struct gpu_session *x, bool *made, bool *given)
{
    const bool ends = x->handler.captures_run == CAPTURES_ENDED;
    const bool told = x->replies.count && x->replies.sizes[0] == sizeof(x->replies.exit_code);
    const bool is_over = !is_under_way(x, ibx_captures_stream_of(x), given);
    const int code = x->replies.exit_code;
    *made = told && ends && !code;
    return !told ? is_over : ends ? ibx_call_ends_capture(code) : !code;
}

/* The session ends before its handler has answered. Nobody gets the graph, if there is one, but who
 * had it before. */
static void end_unanswered(struct gpu_session *x)
{
    const uint64_t graph = x->handler.ended_graph;
    bool given = false, made = false;
    const bool is_over = graph && has_ended(x, &made, &given);
    ibx_told_graph_answered(x, is_over, made && given);
    if (is_over)
        ibx_captures_answered(x, 0);
    if (made && !given)
        ibx_back_end_undo("cudaGraphDestroy", graph);
}

void ibx_captures_end(struct gpu_session *x)
{
    ibx_captures_ran(x);
    end_unanswered(x);
    end_in_cuda(x);
    pthread_mutex_lock(&ibx_captures_lock);
    end(x, x->capturing.begun);
    ibx_capture_part(x);
    pthread_mutex_unlock(&ibx_captures_lock);
    x->handler.captures_run = CAPTURES_UNUSED;
}
