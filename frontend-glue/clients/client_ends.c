/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What clients leave behind. Natively it goes with their process; here all have one context, in
 * which it would stay. A thread frees it, one client after the other, once client_list.c knows that
 * the process has ended (process_ends.c).
 *
 * cudaFree waits for all work of the device, and meanwhile the driver keeps other calls out, such
 * as one that a kernel waits for. So a few things at a time are freed, each time when all work has
 * ended that was there a moment ago (work_under_way.c), and not while somebody captures. Then the
 * thread rests for three times as long as that took, unless there are no clients, or somebody waits
 * for memory.
 *
 * Work that never ends would block all this. If it waits for a word in the client's memory, the
 * word is written (stream_waits.c). If it is another client's, memory is freed by cudaFreeAsync,
 * which does not wait for that work, and things whose freeing never waits are freed as well. Of the
 * rest (arrays), and of what a client leaves whose own work does not end, the log tells. The thread
 * tries such clients again and again, between the others.
 *
 * What a client itself frees, but CUDA frees only behind all work, comes here as well if others
 * have work that does not end (own_work.c): as the rest of an entry that belongs to no client.
 *
 * A reset of the context frees what is left.
 */
#include "frontend-glue/clients/clients.h"
#include "frontend-glue/clients/virtual_memory.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"
#include "frontend-glue/session/math_calls.h"
#include "frontend-glue/tenants/shared_handles.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SLICE         8u /* things at a time, if CUDA waits as it frees them */
#define SLICE_MOST    256u
#define REST_LEAST_NS 50000u
#define REST_MOST_NS  20000000u
#define REST_TIMES    3u
#define HELD_MS       10000u /* for so long a request of another client may hold something */
#define WORK_MS       1000u  /* for so long work is waited for; then it is another client's turn */
#define TOLD_MS       5000u  /* then the log tells what is in the way; from then on */
#define MOMENT_MS     50u    /* ... work is waited for so long each time */
#define STUCK_MS      100u   /* ... and so often */

/* A client whose process has ended; or IBX_CLIENT_NONE: what clients that still exist have freed.
 * */
struct ended {
    struct ended *next;
    uint64_t client;
    struct ibx_client_name name;
    uint64_t began;         /* 0: not yet */
    size_t things;          /* given back */
    bool told;              /* that something is in the way */
    bool in_calls;          /* sessions of it still are: only what may keep them there is ended */
    struct ibx_taken *rest; /* things that are to be freed when all work has ended: locked */
    size_t rest_count;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more_ended = PTHREAD_COND_INITIALIZER;
static struct ended *queue;
static pid_t runs_in; /* the process in which the thread runs */

/* ------------------------------------------------------------------------- it is given back */

/* The client whose things are being freed, and what is known about the work in a context. */
struct giving {
    struct gpu_session *x;
    struct ended *of;
    const void *context; /* NULL: nothing is known about any */
    enum ibx_work work;
    uint64_t whose; /* the client whose work is in the way */
};

/* A communicator of NCCL. It is aborted without a wait for work: its own, which waits for ranks
 * that may never come, ends by that. */
static bool is_communicator(enum ibx_handle_kind kind)
{
    return kind == IBX_HANDLE_MATH + IBX_MATH_COMM;
}

/* Whether CUDA waits for work as it frees such a thing. */
static bool waits(enum ibx_handle_kind kind)
{
    return kind == IBX_HANDLE_ARRAY || kind == IBX_HANDLE_MIPMAP || kind == IBX_HANDLE_MEMORY ||
           kind == IBX_HANDLE_MADE_POOL || kind == IBX_HANDLE_OPENED ||
           (kind >= IBX_HANDLE_MATH && !is_communicator(kind));
}

/* Whether such a thing can be freed while others' work is under way. */
static bool goes_beside(enum ibx_handle_kind kind)
{
    return kind != IBX_HANDLE_ARRAY && kind != IBX_HANDLE_MIPMAP && kind != IBX_HANDLE_OPENED &&
           kind < IBX_HANDLE_MATH &&
           (kind != IBX_HANDLE_MEMORY || ibx_back_end_runtime("cudaFreeAsync"));
}

/* The driver clears a process's memory before another process gets it. Memory that other programs
 * may have open is left as it is, as natively, where these are processes of their own. So is what
 * is mapped at reserved addresses, which others may have mapped, too: virtual_memory.c clears it as
 * it is made. */
static void clear(const struct gpu_session *x, const struct ibx_taken *taken, size_t count)
{
    int (*set)(void *address, int value, size_t n, void *of) = NULL;
    *(void **)&set = ibx_back_end_runtime("cudaMemsetAsync");
    void *stream = set ? ibx_own_stream_begin() : NULL;
    if (!stream)
        return;
    for (size_t i = 0; i < count; i++) {
        uint64_t base = 0;
        size_t n = 0;
        if ((taken[i].was_open && ibx_shared_handles_any()) || ibx_virtual_holds(taken[i].value))
            continue;
        if (!x->cuda->mem_get_address_range(&base, &n, taken[i].value) && base == taken[i].value)
            set((void *)(uintptr_t)base, 0, n, stream);
    }
    ibx_own_stream_end(x->cuda, stream);
}

/* Frees memory by cudaFreeAsync, also memory of cudaMalloc. Returns how many could not be freed in
 * this way, or may be used by work of others; these are then the first ones of the list. */
static size_t free_beside(const struct gpu_session *x, struct ibx_taken *taken, size_t count)
{
    struct ibx_taken freed[SLICE_MOST];
    size_t left = 0, done = 0;
    void *stream = ibx_own_stream_begin();
    if (!stream)
        return count;
    for (size_t i = 0; i < count; i++) {
        freed[done] = taken[i];
        if (!taken[i].was_open && ibx_release_memory_async(taken[i].value, stream))
            done++;
        else
            taken[left++] = taken[i];
    }
    ibx_own_stream_end(x->cuda, stream);
    for (size_t i = 0; i < done; i++)
        ibx_taken_gone(&freed[i]);
    return left;
}

/* Locked. Keeps them until all work has ended. False: there are none, or no memory to note them. */
static bool keep_rest(struct ended *of, const struct ibx_taken *taken, size_t count)
{
    struct ibx_taken *more =
        count ? realloc(of->rest, (of->rest_count + count) * sizeof(*more)) : NULL;
    if (!more)
        return false;
    memcpy(more + of->rest_count, taken, count * sizeof(*more));
    of->rest = more;
    of->rest_count += count;
    return true;
}

/* Takes the first ones of a context out of the rest. */
static size_t take_rest(struct ended *of, const void *context, struct ibx_taken taken[SLICE])
{
    size_t left = 0, count = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < of->rest_count; i++) {
        if (count < SLICE && of->rest[i].context == context)
            taken[count++] = of->rest[i];
        else
            of->rest[left++] = of->rest[i];
    }
    of->rest_count = left;
    pthread_mutex_unlock(&lock);
    return count;
}

/* Drops the rest of that context, which is gone. */
static void drop_rest(struct ended *of, const void *context)
{
    struct ibx_taken taken[SLICE];
    while (take_rest(of, context, taken)) {
    }
}

/* False: there is none. */
static bool first_of_rest(struct ended *of, const void **context)
{
    pthread_mutex_lock(&lock);
    const bool any = of->rest_count;
    if (any)
        *context = of->rest[0].context;
    pthread_mutex_unlock(&lock);
    return any;
}

static void give_plainly(struct gpu_session *x, const struct ibx_taken *taken, size_t count,
                         bool waiting)
{
    if (waiting)
        ibx_frees_begin(x, 0);
    ibx_release_taken(x, taken, count);
    if (waiting)
        ibx_frees_end();
}

/* Clearing memory takes a while, so the cleared memory is freed at a later moment: work that others
 * have begun since may wait for calls that cudaFree keeps out. Not so if the memory is gone with
 * its context, or the context is broken. */
static void give_memory(struct giving *g, const void *context, struct ibx_taken *taken,
                        size_t count)
{
    uint64_t ns = 0;
    clear(g->x, taken, count);
    ibx_clients_give_end();
    for (;; ibx_nap(&ns)) {
        if (g->work == IBX_WORK_OVER)
            g->work = ibx_work_wait(g->x, g->of->client, context, WORK_MS, &g->whose);
        if (g->work == IBX_WORK_LOST)
            return;
        if (ibx_clients_give_begin())
            break;
    }
    if (!ibx_left_work_lost() && g->work == IBX_WORK_OVER) {
        give_plainly(g->x, taken, count, true);
    } else if (!ibx_left_work_lost()) {
        count = free_beside(g->x, taken, count);
        pthread_mutex_lock(&lock);
        keep_rest(g->of, taken, count);
        pthread_mutex_unlock(&lock);
    }
    ibx_clients_give_end();
}

/* Frees a slice of the client's things. Returns when that began. */
static uint64_t give(struct giving *g, enum ibx_handle_kind kind, const void *context)
{
    struct ibx_taken taken[SLICE_MOST];
    const bool plainly = g->work == IBX_WORK_OVER;
    if (!ibx_clients_give_begin())
        return ibx_now_ns();
    ibx_left_work_watch(context);
    const size_t count = ibx_handles_take_some(g->of->client, kind, context, taken,
                                               waits(kind) && plainly ? SLICE : SLICE_MOST);
    const uint64_t began = ibx_now_ns();
    if (kind == IBX_HANDLE_MEMORY && count) {
        give_memory(g, context, taken, count);
    } else {
        give_plainly(g->x, taken, count, waits(kind) && plainly);
        ibx_clients_give_end();
    }
    g->of->things += count;
    ibx_ended_given();
    return began;
}

static void rest(uint64_t began)
{
    uint64_t ns = REST_TIMES * (ibx_now_ns() - began);
    ns = ns < REST_LEAST_NS ? REST_LEAST_NS : ns < REST_MOST_NS ? ns : REST_MOST_NS;
    if (ibx_clients_any() && !ibx_ended_hurries())
        ibx_nap(&ns);
}

/* Looks at the work of that context. An earlier result is used for things whose freeing does not
 * wait, and if others' work is in the client's way: then its own work had ended. */
static void learn(struct giving *g, bool waiting, const void *context)
{
    const bool known = context && context == g->context &&
                       (g->work == IBX_WORK_OF_OTHERS || (g->work == IBX_WORK_OVER && !waiting));
    if (known)
        return;
    g->work =
        ibx_work_wait(g->x, g->of->client, context, g->of->told ? MOMENT_MS : WORK_MS, &g->whose);
    if (g->work == IBX_WORK_OWN)
        ibx_stream_waits_end(g->x, g->of->client);
    g->context = context;
}

/* Frees some things of the kind, in the context. False: they cannot be freed now. */
static bool give_there(struct giving *g, enum ibx_handle_kind kind, const void *context)
{
    void *popped = NULL;
    if (context && g->x->cuda->ctx_push_current((void *)(uintptr_t)context)) {
        g->work = IBX_WORK_LOST;
        return false;
    }
    const int mode = ibx_cuda_capture_relax(g->x->cuda);
    if (!is_communicator(kind))
        learn(g, waits(kind), context);
    const bool can = is_communicator(kind) || g->work == IBX_WORK_OVER ||
                     (g->work == IBX_WORK_OF_OTHERS && goes_beside(kind));
    const uint64_t began = can ? give(g, kind, context) : 0;
    ibx_cuda_capture_restore(g->x->cuda, mode);
    if (context)
        g->x->cuda->ctx_pop_current(&popped);
    if (can)
        rest(began);
    return can;
}

/* Frees a few of the things that have to wait for all work. False: there are none, or not now. */
static bool give_some_of_rest(struct giving *g)
{
    struct ended *of = g->of;
    struct ibx_taken taken[SLICE];
    const void *context = NULL;
    void *popped = NULL;
    size_t n = 0;
    if (!first_of_rest(of, &context))
        return false;
    if (context && g->x->cuda->ctx_push_current((void *)(uintptr_t)context)) {
        drop_rest(of, context);
        return true;
    }
    const int mode = ibx_cuda_capture_relax(g->x->cuda);
    g->work = ibx_work_wait(g->x, of->client, context, of->told ? MOMENT_MS : WORK_MS, &g->whose);
    if (g->work == IBX_WORK_OVER && ibx_clients_give_begin()) {
        n = take_rest(of, context, taken); /* a reset would free them as well */
        give_plainly(g->x, taken, n, true);
        ibx_clients_give_end();
    }
    ibx_cuda_capture_restore(g->x->cuda, mode);
    if (context)
        g->x->cuda->ctx_pop_current(&popped);
    if (g->work == IBX_WORK_LOST)
        drop_rest(of, context);
    of->things += n;
    return n || g->work == IBX_WORK_LOST;
}

/* Frees the rest, a few at a time. False: some of it stays. */
static bool give_rest(struct giving *g)
{
    const void *context;
    uint64_t began = ibx_now_ns();
    for (; give_some_of_rest(g); began = ibx_now_ns())
        rest(began);
    return !first_of_rest(g->of, &context);
}

/* Frees the client's things, kind by kind. False: something is to be freed later. */
static bool give_kinds(struct giving *g)
{
    const void *context = NULL;
    enum ibx_handle_kind kind;
    bool all = give_rest(g);
    for (unsigned i = 0; ibx_release_kind(i, &kind); i++) {
        while (ibx_handles_first(g->of->client, kind, &context)) {
            if (give_there(g, kind, context))
                continue;
            if (g->work != IBX_WORK_OF_OTHERS)
                return g->work == IBX_WORK_LOST;
            all = false;
            break;
        }
    }
    return all && !first_of_rest(g->of, &context);
}

/* Ends the client's waits for words that outlast its things. False: its work goes on. */
static bool end_waits(struct giving *g)
{
    void *context, *popped;
    while (ibx_stream_waits_first(g->of->client, &context)) {
        if (!g->x->cuda->ctx_push_current(context)) {
            const int mode = ibx_cuda_capture_relax(g->x->cuda);
            learn(g, false, context);
            ibx_cuda_capture_restore(g->x->cuda, mode);
            g->x->cuda->ctx_pop_current(&popped);
            if (g->work == IBX_WORK_OWN)
                return false;
        }
        ibx_stream_waits_over(g->of->client, context);
    }
    return true;
}

/* Aborts the client's communicators. Those that a request holds come later. */
static bool give_communicators(struct giving *g)
{
    const void *context = NULL;
    const enum ibx_handle_kind kind = (enum ibx_handle_kind)(IBX_HANDLE_MATH + IBX_MATH_COMM);
    bool all = true;
    while (all && ibx_handles_first(g->of->client, kind, &context))
        all = give_there(g, kind, context);
    return all;
}

/* -------------------------------------------------------------------------- what is in the way */

/* The name of a client, also of one in the queue. 0: it is not known whose work it is. */
static struct ibx_client_name name_of(uint64_t client)
{
    struct ibx_client_name name = {"a client"};
    if (!client)
        return (struct ibx_client_name){"clients in the default stream"};
    pthread_mutex_lock(&lock);
    const struct ended *e = queue;
    while (e && e->client != client)
        e = e->next;
    if (e)
        name = e->name;
    pthread_mutex_unlock(&lock);
    if (!e)
        ibx_clients_name(client, &name);
    return name;
}

/* Logs what is in the way, once for each client. From now on nobody who needs memory waits for it.
 * */
static void tell(const struct giving *g)
{
    const struct ibx_client_name other = name_of(g->whose);
    g->of->told = true;
    ibx_ended_stuck();
    if (g->of->client == IBX_CLIENT_NONE)
        ibx_log(IBX_LOG_WARN,
                "arrays that clients have freed stay in GPU memory until the work of %s ends, "
                "because CUDA waits for that work when it frees them",
                other.text);
    else if (g->work == IBX_WORK_OF_OTHERS)
        ibx_log(IBX_LOG_WARN,
                "%s has ended; some of its GPU memory cannot be freed until the work of %s ends, "
                "because CUDA waits for that work",
                g->of->name.text, other.text);
    else
        ibx_log(IBX_LOG_WARN,
                "%s has ended, but for %u s its work on the GPU has not, or work in the default "
                "stream that this waits for, or a call of another client that uses what it had: "
                "its memory stays there until that ends, or this back end",
                g->of->name.text, TOLD_MS / 1000);
}

/* Frees what the client has left. False: not all of it was freed. */
static bool give_back(struct gpu_session *x, struct ended *of)
{
    struct giving g = {.x = x, .of = of};
    const uint64_t deadline = ibx_deadline_in_ms(of->told ? MOMENT_MS : HELD_MS);
    uint64_t ns = 0;
    bool done, held;
    if (!ibx_back_end_have_cuda(x))
        return true;
    of->began = of->began ? of->began : ibx_now_ns();
    for (;; ibx_nap(&ns)) {
        done = of->in_calls ? give_communicators(&g) : give_kinds(&g) && end_waits(&g);
        /* What a request held a moment ago may be free by now. */
        held = done && g.work != IBX_WORK_LOST &&
               (ibx_handles_any(of->client) || ibx_stream_waits_first(of->client, NULL));
        if (!held || ibx_now_ns() >= deadline)
            break;
    }
    done = done && !held;
    const uint64_t ms = (ibx_now_ns() - of->began) / IBX_NS_PER_MS;
    if (!done && !of->told && ms >= TOLD_MS)
        tell(&g);
    if (done && of->client != IBX_CLIENT_NONE && !of->in_calls) {
        ibx_stream_waits_forget(of->client);
        ibx_exec_ends_settle(x, of->client);
        ibx_log(IBX_LOG_INFO,
                "%zu allocations, streams and the like of a client whose process has ended were "
                "given back in %llu ms",
                of->things, (unsigned long long)ms);
    }
    if (done) {
        ibx_exec_ends_tidy(x);
        ibx_host_maps_tidy(x);
    }
    return done;
}

/* ---------------------------------------------------------------------------------- the thread */

/* Locked. The first client that nothing is in the way of, or else the first one; NULL: there is
 * none. */
static struct ended *first_of_queue(void)
{
    struct ended *e = queue;
    while (e && e->told)
        e = e->next;
    return e ? e : queue;
}

/* The next client whose things are to be freed. */
static struct ended *next(void)
{
    const struct timespec until = ibx_timespec_of(ibx_deadline_in_ms(STUCK_MS));
    int rc = 0;
    pthread_mutex_lock(&lock);
    struct ended *first = first_of_queue();
    while (!first || (first->told && !rc)) {
        rc = first ? pthread_cond_clockwait(&more_ended, &lock, CLOCK_MONOTONIC, &until)
                   : pthread_cond_wait(&more_ended, &lock);
        first = first_of_queue();
    }
    pthread_mutex_unlock(&lock);
    return first;
}

/* Locked. Takes it out of the queue, and appends it again if it is not done. */
static void move_on(struct ended *e, bool done)
{
    struct ended **at = &queue;
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    e->next = NULL;
    for (at = &queue; *at && !done;)
        at = &(*at)->next;
    if (done)
        ibx_ended_over(e->told);
    else
        *at = e;
}

static void *run(void *unused)
{
    static struct gpu_session own;
    ibx_back_end_own_session(&own);
    (void)unused;
    for (;;) {
        struct ended *e = next();
        bool done = give_back(&own, e);
        pthread_mutex_lock(&lock);
        done = done && !e->rest_count; /* unless more has come */
        move_on(e, done);
        pthread_mutex_unlock(&lock);
        if (done) {
            free(e->rest);
            free(e);
        }
    }
    return NULL;
}

/* Locked. Starts the thread, once in each process. False: what clients leave stays. */
static bool begin(void)
{
    static bool told;
    if (runs_in == getpid())
        return true;
    queue = NULL; /* that of the parent process */
    pthread_cond_init(&more_ended, NULL);
    ibx_ended_begin();
    if (!ibx_thread_begin(NULL, run, NULL)) {
        runs_in = getpid();
        return true;
    }
    if (!told)
        ibx_log(IBX_LOG_WARN, "what clients leave in GPU memory stays there until the back end "
                              "ends: there is no thread to give it back");
    told = true;
    return false;
}

/* Locked. Appends a client to the queue. NULL: there is no thread, or no memory. */
static struct ended *enter(uint64_t client, const struct ibx_client_name *name)
{
    struct ended *made = malloc(sizeof(*made)), **at = &queue;
    if (!made || !begin()) {
        free(made);
        return NULL;
    }
    *made = (struct ended){.client = client, .name = *name};
    while (*at)
        at = &(*at)->next;
    *at = made;
    ibx_ended_one_more();
    pthread_cond_signal(&more_ended);
    return made;
}

void ibx_client_ends_add(uint64_t client, const struct ibx_client_name *name)
{
    pthread_mutex_lock(&lock);
    enter(client, name);
    pthread_mutex_unlock(&lock);
    ibx_process_ends_waits(client);
}

void ibx_client_ends_in_calls(uint64_t client, const struct ibx_client_name *name)
{
    pthread_mutex_lock(&lock);
    struct ended *e = enter(client, name);
    if (e) {
        e->in_calls = e->told = true;
        ibx_ended_stuck();
    }
    pthread_mutex_unlock(&lock);
    ibx_process_ends_waits(client);
}

bool ibx_client_ends_leave(const struct ibx_taken *taken)
{
    static const struct ibx_client_name nobody = {"a client"};
    pthread_mutex_lock(&lock);
    struct ended *of = runs_in == getpid() ? queue : NULL;
    while (of && of->client != IBX_CLIENT_NONE)
        of = of->next;
    of = of ? of : enter(IBX_CLIENT_NONE, &nobody);
    const bool kept = of && keep_rest(of, taken, 1);
    pthread_mutex_unlock(&lock);
    return kept;
}

void ibx_client_ends_forget(const void *context)
{
    pthread_mutex_lock(&lock);
    for (struct ended *of = queue; of && runs_in == getpid(); of = of->next) {
        size_t left = 0;
        for (size_t i = 0; context && i < of->rest_count; i++) {
            if (of->rest[i].context && of->rest[i].context != context)
                of->rest[left++] = of->rest[i];
        }
        of->rest_count = left;
    }
    pthread_mutex_unlock(&lock);
}

bool ibx_handles_close(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    uint64_t maker;
    const bool theirs = ibx_handle_close(x, kind, value, &maker);
    if (maker)
        ibx_client_ends_add(maker, &(struct ibx_client_name){"a client"});
    return theirs;
}
