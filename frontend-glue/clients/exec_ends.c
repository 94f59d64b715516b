/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Ends of executable graphs. While CUDA destroys one whose last launch has not ended, the driver
 * may wait for that, and keep other calls out; the launch may wait for one of these, or for what
 * its client does next. So an event is put behind each launch. An executable graph whose event has
 * not been reached is destroyed later: when a client makes or destroys another one, resets the
 * device or leaves. Until then what CUDA's objects keep for the graph stays: functions of clients,
 * slots, modules, arrays; and it counts for its tenant.
 *
 * CUDA has one executable graph at a time of a graph that allocates memory. So if it refuses to
 * make another one, those of that graph that run are waited for.
 */
#include "frontend-glue/clients/clients.h"

#include "common/clock.h"
#include "common/thread.h"

#include <pthread.h>
#include <search.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/queue.h>

#define LOOKS     64u  /* executable graphs that are looked at for each that is made or destroyed */
#define SETTLE_MS 100u /* for so long the launches of a client that leaves are waited for */
/* ... and those of a graph that is instantiated again: a launch may wait for what the calling
 * thread does next */
#define INSTANTIATE_MS 10000u

/* An event behind an executable graph's last launch. */
struct last_launch {
    const void *exec;
    void *event, *context; /* ... in this context */
    unsigned users;        /* threads that record the event, or ask for it, without the lock */
    bool forgotten;        /* the last user frees it */
    /* Of one that is to be destroyed: */
    TAILQ_ENTRY(last_launch) ends;
    uint64_t client;
    struct ibx_exec_left left;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static void *last_launches; /* a tree, by exec; with all its entries under the lock */
/* To be destroyed: locked. */
static TAILQ_HEAD(ends, last_launch) ended = TAILQ_HEAD_INITIALIZER(ended);
static _Atomic unsigned ended_count;

/* ------------------------------------------------------------------------ launches */

static int compare(const void *a, const void *b)
{
    const struct last_launch *left = a, *right = b;
    const uintptr_t at = (uintptr_t)left->exec, other = (uintptr_t)right->exec;
    return (at > other) - (at < other);
}

/* Locked. NULL: no launch is known. */
static struct last_launch *find(const void *exec)
{
    const struct last_launch wanted = {.exec = exec};
    struct last_launch **found = tfind(&wanted, &last_launches, compare);
    return found ? *found : NULL;
}

static struct last_launch *make(const struct ibx_cuda *cuda, const void *exec)
{
    struct last_launch *made = calloc(1, sizeof(*made));
    if (made && (cuda->ctx_get_current(&made->context) ||
                 cuda->event_create(&made->event, IBX_CUDA_EVENT_DISABLE_TIMING))) {
        free(made);
        return NULL;
    }
    if (made)
        made->exec = exec;
    return made;
}

/* Not locked: CUDA may wait here, as for room in a stream. NULL: no memory, or no event. */
static struct last_launch *use(const struct ibx_cuda *cuda, const void *exec)
{
    pthread_mutex_lock(&lock);
    struct last_launch *last = find(exec), *made = NULL;
    if (!last) {
        pthread_mutex_unlock(&lock);
        made = make(cuda, exec);
        pthread_mutex_lock(&lock);
        struct last_launch **in = made ? tsearch(made, &last_launches, compare) : NULL;
        last = in ? *in : NULL;
    }
    if (last)
        last->users++;
    pthread_mutex_unlock(&lock);
    if (made && made != last) {
        cuda->event_destroy(made->event);
        free(made);
    }
    return last;
}

static void stop_using(struct last_launch *last)
{
    pthread_mutex_lock(&lock);
    const bool over = !--last->users && last->forgotten;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    if (over)
        free(last);
}

/* Takes the last launch out of the tree. NULL: none is known. */
static struct last_launch *take(const void *exec)
{
    pthread_mutex_lock(&lock);
    struct last_launch *last = find(exec);
    if (last)
        tdelete(last, &last_launches, compare);
    while (last && last->users)
        ibx_thread_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return last;
}

/* What is known of the launch before would make another client destroy the graph, and wait. */
void ibx_exec_ends_unseen(struct gpu_session *x, const void *exec)
{
    struct last_launch *last = take(exec);
    if (last && ibx_back_end_have_cuda(x))
        x->cuda->event_destroy(last->event);
    free(last);
}

/* In the context of the stream, which is current. The event of a launch in another one cannot be
 * recorded in this. */
static bool record(struct gpu_session *x, const void *exec, void *stream, const void *context)
{
    struct last_launch *last = use(x->cuda, exec);
    if (last && last->context != context) {
        stop_using(last);
        ibx_exec_ends_unseen(x, exec);
        last = use(x->cuda, exec);
    }
    const bool recorded = last && !x->cuda->event_record(last->event, stream);
    if (last)
        stop_using(last);
    return recorded;
}

/* Puts an event behind the launch. If there is none, the graph is destroyed at once. */
void ibx_exec_ends_launched(struct gpu_session *x, const void *exec, void *stream)
{
    void *now = NULL, *context = NULL, *popped = NULL;
    if (!ibx_back_end_have_cuda(x) || x->cuda->ctx_get_current(&now))
        return;
    if ((uintptr_t)stream <= (uintptr_t)IBX_CUDA_STREAM_PER_THREAD ||
        x->cuda->stream_get_context(stream, &context))
        context = now;
    const bool pushed = context != now && !x->cuda->ctx_push_current(context);
    if (!record(x, exec, stream, context))
        ibx_exec_ends_unseen(x, exec);
    if (pushed)
        x->cuda->ctx_pop_current(&popped);
}

/* Waits for it. The wait fails if the event has gone with its context. */
static void wait_for(struct gpu_session *x, struct last_launch *last)
{
    if (last && ibx_back_end_have_cuda(x)) {
        const int mode = ibx_cuda_capture_relax(x->cuda);
        x->cuda->event_synchronize(last->event);
        x->cuda->event_destroy(last->event);
        ibx_cuda_capture_restore(x->cuda, mode);
    }
    free(last);
}

void ibx_exec_ends_wait(struct gpu_session *x, const void *exec)
{
    wait_for(x, take(exec));
    ibx_exec_functions_gone(exec);
}

/* ------------------------------------------------------------------------ those that end later */

/* Whether its launch has ended, or its context is gone. */
static bool is_over(const struct ibx_cuda *cuda, const struct last_launch *last)
{
    void *popped = NULL;
    if (last->context && cuda->ctx_push_current(last->context))
        return true;
    const bool over = cuda->event_query(last->event) != IBX_CUDA_NOT_READY;
    if (last->context)
        cuda->ctx_pop_current(&popped);
    return over;
}

/* Finds up to LOOKS ones of a client's, or of all (NULL), at which no other thread looks. They are
 * the last ones of the list then, and this thread uses them. */
static size_t pick(const uint64_t *client, struct last_launch **picked)
{
    size_t count = 0;
    pthread_mutex_lock(&lock);
    const struct last_launch *last = TAILQ_LAST(&ended, ends);
    for (struct last_launch *l = TAILQ_FIRST(&ended), *next; l && count < LOOKS;
         l = l == last ? NULL : next) {
        next = TAILQ_NEXT(l, ends);
        if (l->users || (client && l->client != *client))
            continue;
        l->users++;
        TAILQ_REMOVE(&ended, l, ends);
        TAILQ_INSERT_TAIL(&ended, l, ends);
        picked[count++] = l;
    }
    pthread_mutex_unlock(&lock);
    return count;
}

/* Whether its context has gone since it was picked. */
static bool is_forgotten(const struct last_launch *l)
{
    pthread_mutex_lock(&lock);
    const bool forgotten = l->forgotten;
    pthread_mutex_unlock(&lock);
    return forgotten;
}

/* An error is not the client's whose request this is. */
static void destroy_quietly(const void *exec)
{
    int (*peek)(void) = NULL, (*forget)(void) = NULL;
    *(void **)&peek = ibx_back_end_runtime("cudaPeekAtLastError");
    *(void **)&forget = ibx_back_end_runtime("cudaGetLastError");
    const bool clean = peek && !peek();
    ibx_back_end_undo("cudaGraphExecDestroy", (uintptr_t)exec);
    if (clean && forget)
        forget();
}

/* If its context is gone, so are the graph and the event. */
static void destroy_with_event(const struct ibx_cuda *cuda, const struct last_launch *over)
{
    void *popped = NULL;
    if (!over->context || !cuda->ctx_push_current(over->context)) {
        cuda->event_destroy(over->event);
        destroy_quietly(over->exec);
        if (over->context)
            cuda->ctx_pop_current(&popped);
    }
    ibx_owners_remove((uintptr_t)over->exec, over->left.owned);
}

/* Locked. */
static void take_out(struct last_launch *l)
{
    TAILQ_REMOVE(&ended, l, ends);
    atomic_fetch_sub(&ended_count, 1);
    ibx_room_end(&l->left.room);
}

/* Ends the use of one that was picked; if its launch is over, destroys it before. It stays in the
 * list meanwhile, since others wait until there is none, for its graph or its room. True: it was
 * destroyed. */
static bool end_if_over(const struct ibx_cuda *cuda, struct last_launch *l)
{
    const bool ends = !is_forgotten(l) && is_over(cuda, l) && !is_forgotten(l);
    if (ends)
        destroy_with_event(cuda, l);
    pthread_mutex_lock(&lock);
    const bool forgotten = l->forgotten;
    l->users--;
    if (ends && !forgotten)
        take_out(l);
    pthread_mutex_unlock(&lock);
    if (ends || forgotten)
        free(l);
    return ends;
}

/* Looks at some of a client's, or of all (NULL). The driver may let each look wait as long as it
 * keeps others out: so nothing is locked meanwhile. Returns how many were destroyed; -1: a client
 * resets the context, or there is no CUDA. */
static int tidy(struct gpu_session *x, const uint64_t *client)
{
    struct last_launch *picked[LOOKS];
    int count = 0;
    if (!atomic_load(&ended_count))
        return 0;
    if (!ibx_back_end_have_cuda(x) || !ibx_clients_give_begin())
        return -1;
    const int mode = ibx_cuda_capture_relax(x->cuda);
    const size_t looks = pick(client, picked);
    for (size_t i = 0; i < looks; i++)
        count += end_if_over(x->cuda, picked[i]);
    ibx_cuda_capture_restore(x->cuda, mode);
    ibx_clients_give_end();
    return count;
}

void ibx_exec_ends_tidy(struct gpu_session *x)
{
    tidy(x, NULL);
}

/* Locked. How many of the client's are there, of that graph or (0) of any. */
static unsigned count_of(uint64_t client, uint64_t graph)
{
    unsigned count = 0;
    const struct last_launch *l;
    TAILQ_FOREACH(l, &ended, ends)
    count += l->client == client && (!graph || l->left.graph == graph);
    return count;
}

static bool has_any(uint64_t client, uint64_t graph)
{
    if (!atomic_load(&ended_count))
        return false;
    pthread_mutex_lock(&lock);
    const bool any = count_of(client, graph);
    pthread_mutex_unlock(&lock);
    return any;
}

/* Waits until there are none of these, or until the deadline. False: there were none. */
static bool settle(struct gpu_session *x, uint64_t client, uint64_t graph, uint64_t deadline)
{
    uint64_t ns = 0;
    bool any = false;
    while (has_any(client, graph)) {
        any = true;
        const int count = tidy(x, &client);
        if (count < 0 || ibx_now_ns() >= deadline)
            break;
        if (!count)
            ibx_nap(&ns);
    }
    return any;
}

void ibx_exec_ends_settle(struct gpu_session *x, uint64_t client)
{
    settle(x, client, 0, ibx_deadline_in_ms(SETTLE_MS));
}

bool ibx_exec_ends_wait_graph(struct gpu_session *x, uint64_t graph)
{
    return settle(x, ibx_clients_number(x), graph, ibx_deadline_in_ms(INSTANTIATE_MS));
}

/* False: it is to be waited for now. */
static bool leave(struct gpu_session *x, struct last_launch *last, const struct ibx_exec_left *left)
{
    last->client = ibx_clients_number(x);
    last->left = *left;
    pthread_mutex_lock(&lock);
    const bool room = count_of(last->client, 0) < IBX_EXEC_ENDS_MOST;
    if (room)
        TAILQ_INSERT_TAIL(&ended, last, ends);
    atomic_fetch_add(&ended_count, room);
    pthread_mutex_unlock(&lock);
    return room;
}

static bool is_running(struct gpu_session *x, const struct last_launch *last)
{
    if (!ibx_back_end_have_cuda(x))
        return false;
    const int mode = ibx_cuda_capture_relax(x->cuda);
    const bool over = is_over(x->cuda, last);
    ibx_cuda_capture_restore(x->cuda, mode);
    return !over;
}

int ibx_exec_ends_destroy(struct gpu_session *x, void *exec, int (*destroy)(void *exec),
                          struct ibx_exec_left *left)
{
    ibx_exec_ends_tidy(x);
    struct last_launch *last = take(exec);
    if (last && is_running(x, last) && leave(x, last, left)) {
        ibx_exec_functions_gone(exec);
        return 0;
    }
    wait_for(x, last);
    ibx_exec_functions_gone(exec);
    const int rc = destroy(exec);
    ibx_owners_remove((uintptr_t)exec, left->owned);
    ibx_room_end(&left->room);
    return rc;
}

/* ------------------------------------------------------------------------ contexts end */

/* Locked. The context that is gone, for forget(); NULL: it is not known which. */
static const void *gone;

/* Last launches in other contexts stay known. */
static void forget(void *entry)
{
    struct last_launch *last = entry;
    if (gone && last->context != gone && tsearch(last, &last_launches, compare))
        return;
    last->forgotten = true;
    if (!last->users)
        free(last);
}

/* Locked. Those that were to be destroyed have gone with the context. */
static void forget_ended(const void *context)
{
    for (struct last_launch *l = TAILQ_FIRST(&ended), *next; l; l = next) {
        next = TAILQ_NEXT(l, ends);
        if (context && l->context != context)
            continue;
        take_out(l);
        l->forgotten = true;
        if (!l->users)
            free(l);
    }
}

void ibx_exec_ends_forget(const void *context)
{
    pthread_mutex_lock(&lock);
    void *all = last_launches;
    last_launches = NULL;
    gone = context;
    tdestroy(all, forget);
    forget_ended(context);
    pthread_mutex_unlock(&lock);
}
