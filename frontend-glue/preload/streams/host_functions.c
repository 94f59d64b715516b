/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Functions of the application that CUDA calls when a stream gets there: cudaLaunchHostFunc and
 * cudaStreamAddCallback. A thread of this library, with its own connection, asks the back end which
 * function is to be called, and calls it. With the next request it reports that the function has
 * returned, and the stream goes on (clients/host_work.c). The thread asks while functions are
 * outstanding, and sleeps otherwise.
 *
 * A function in a graph keeps its number (repeated_functions.c). It is outstanding once for each
 * launch of a graph that calls it, with the bytes that launch_copies.c has taken for it.
 *
 * An asynchronous copy may read bytes that such a function writes. So while one is outstanding, a
 * copy to the device waits for what precedes it in its stream, or is made when the stream gets
 * there (graph_copies.c).
 */
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/outstanding.h"
#include "frontend-glue/preload/streams/streams.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

/*
 * The state of the thread. Changed under the lock by two threads, so it is no struct
 * ibx_state_machine.
 *
 *   NONE -> BEGINS -> SERVES -> ENDS
 *           BEGINS -> NO_THREAD  it could not be started
 *           BEGINS -> NONE       it gets no connection: the next call starts another one
 *           BEGINS -> REFUSED    the back end does not know such requests
 *           SERVES -> REFUSED    its connection is lost
 *                     ENDS -> LEFT   the process ends, and a function does not return
 */
enum server_state {
    SERVER_NONE,
    SERVER_BEGINS,
    SERVER_SERVES,
    SERVER_REFUSED, /* the thread has ended, or is about to */
    SERVER_NO_THREAD,
    SERVER_ENDS,
    SERVER_LEFT
};

#define END_MS  2000u   /* how long the end of the process waits for a function */
#define ASK_MS  100u    /* between questions about a stream that a launch waits for */
#define POLL_NS 100000u /* to poll for the next function, if there are processors for it */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct {
    enum server_state state;
    pthread_t thread;
    uint64_t queue;
    uint64_t last_number, last_order, last_launch;
    uint64_t answers;                  /* number of answers that the thread got */
    struct ibx_outstanding *functions; /* the outstanding functions, oldest first */
    uint64_t called; /* a function that was called, and whose stream has not gone on yet; 0: none */
    struct ibx_in_stream called_in;
    uint64_t called_order, called_for; /* its order and launch; order 0: not known yet */
    unsigned called_vain_ms;           /* somebody has waited for it for so long in vain */
    uint64_t before_event;             /* the last order before an event in the legacy stream */
    bool returned;                     /* it has returned */
    struct host_node runs;             /* what was called and has not returned; {0}: nothing */
    uint64_t runs_for;                 /* the launch that awaits this; 0: none */
    uint64_t changes;                  /* copies that graphs have made, and streams that went on */
} server;                              /* under the lock */
static _Atomic unsigned outstanding;   /* functions that a stream has not passed yet */
static _Atomic uint64_t so_far;        /* how many were ever outstanding */

/*
 * Whether this process has, or had, host functions.
 *
 *   NONE -> BEGINS   the first one is about to be enqueued, or put into a graph
 *   BEGINS -> BEGUN  nothing that does not expect functions is under way any more
 */
enum use_state { USE_NONE, USE_BEGINS, USE_BEGUN };

static _Atomic enum use_state used;
static pthread_mutex_t use_lock = PTHREAD_MUTEX_INITIALIZER; /* held while the state is BEGINS */
static const struct ibx_frontend_around *_Atomic around;

bool ibx_frontend_gives_beside(void)
{
    return atomic_load(&used) != USE_NONE || ibx_frontend_capturing() || ibx_frontend_is_child();
}

/* Called before the lock is taken. A copy in the legacy stream's order that began before the state
 * was BEGINS could wait for the function, which may need what the copying thread has. */
static void use(void)
{
    if (atomic_load(&used) == USE_BEGUN || ibx_frontend_unloads())
        return;
    pthread_mutex_lock(&use_lock);
    if (atomic_load(&used) == USE_NONE) {
        atomic_store(&used, USE_BEGINS);
        const struct ibx_frontend_around *calls = atomic_load(&around);
        if (calls)
            calls->first();
        atomic_store(&used, USE_BEGUN);
    }
    pthread_mutex_unlock(&use_lock);
}

bool ibx_frontend_host_functions(void)
{
    return atomic_load_explicit(&outstanding, memory_order_acquire);
}

uint64_t ibx_frontend_host_made(void)
{
    return atomic_load(&so_far);
}

uint64_t ibx_frontend_host_enqueued(void)
{
    if (!ibx_frontend_host_functions())
        return 0;
    pthread_mutex_lock(&lock);
    const uint64_t order = server.last_order;
    pthread_mutex_unlock(&lock);
    return order;
}

bool ibx_frontend_host_lost(uint64_t order, bool all, const void *stream)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    /* A different stream in each thread. */
    if (!order || (!all && stream == CUDA_STREAM_PER_THREAD) || ibx_frontend_unloads())
        return false;
    pthread_mutex_lock(&lock);
    const struct ibx_outstanding *f = server.functions;
    while (f && (f->abandoned || !f->order || f->order > order || (!all && f->in.handle != stream)))
        f = f->next;
    /* If the back end still answers, and the function is still outstanding after two more answers,
     * its context was reset. */
    const uint64_t enough = server.answers + 2;
    const int cancel = ibx_thread_hold_cancel();
    while (f && server.state == SERVER_SERVES && server.answers < enough)
        ibx_thread_wait(&changed, &lock);
    ibx_thread_release_cancel(cancel);
    const bool lost = f && server.state == SERVER_REFUSED;
    pthread_mutex_unlock(&lock);
    if (lost && !atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_ERROR, "functions of cudaLaunchHostFunc were not called: the connection "
                               "over which the back end names them is gone");
    return lost;
}

static struct ibx_in_stream stream_of(const void *handle)
{
    return (struct ibx_in_stream){(void *)(uintptr_t)handle, ibx_frontend_stream_blocks(handle),
                                  ibx_frontend_stream_device(handle)};
}

/* Called under the lock. The first function before work in the stream that was not called. */
static struct ibx_outstanding *next_before(const struct ibx_in_stream *in)
{
    return ibx_outstanding_before(server.functions, in);
}

/* Called under the lock. Whether work in the stream comes after one that was called, and whose
 * stream has not gone on yet. */
static bool is_after_called(const struct ibx_in_stream *in)
{
    return server.called && ibx_streams_ordered(&server.called_in, in);
}

/* Called under the lock. For how long that one, or the next, was waited for in vain; also if the
 * order is that of an event in the legacy stream. NULL: there is none. */
static unsigned *vain_before(const struct ibx_in_stream *in)
{
    struct ibx_outstanding *f = next_before(in);
    if (is_after_called(in))
        return &server.called_vain_ms;
    if (f || !in->blocking)
        return f ? &f->vain_ms : NULL;
    if (server.called && server.called_in.blocking && server.called_order <= server.before_event)
        return &server.called_vain_ms;
    f = ibx_outstanding_up_to(server.functions, server.before_event);
    return f ? &f->vain_ms : NULL;
}

void ibx_frontend_host_ordered(void)
{
    if (!ibx_frontend_host_functions())
        return;
    pthread_mutex_lock(&lock);
    server.before_event = server.last_order;
    pthread_mutex_unlock(&lock);
}

/* A function that has returned does not count: its stream goes on, and this process is told a
 * moment later. */
bool ibx_frontend_host_waits(const void *stream)
{
    const struct ibx_in_stream in = stream_of(stream);
    pthread_mutex_lock(&lock);
    const bool waits = (is_after_called(&in) && !server.returned) || next_before(&in);
    pthread_mutex_unlock(&lock);
    return waits;
}

bool ibx_frontend_host_before(const void *stream, unsigned ms)
{
    const uint64_t deadline = ibx_deadline_in_ms(ms);
    const struct timespec until = ibx_timespec_of(deadline);
    const struct ibx_in_stream in = stream_of(stream);
    const int cancel = ibx_thread_hold_cancel();
    unsigned *vain;
    pthread_mutex_lock(&lock);
    while ((vain = vain_before(&in)) && *vain < ms && server.state == SERVER_SERVES &&
           ibx_now_ns() < deadline)
        pthread_cond_clockwait(&changed, &lock, CLOCK_MONOTONIC, &until);
    if (vain && *vain < ms)
        *vain = ms;
    const bool found = vain && server.state == SERVER_SERVES;
    pthread_mutex_unlock(&lock);
    ibx_thread_release_cancel(cancel);
    return found;
}

bool ibx_frontend_host_gone(const void *stream)
{
    if (!ibx_frontend_host_functions())
        return false;
    const struct ibx_in_stream in = stream_of(stream);
    pthread_mutex_lock(&lock);
    const bool gone = server.state == SERVER_REFUSED && next_before(&in);
    pthread_mutex_unlock(&lock);
    return gone;
}

void ibx_frontend_host_reset(int device)
{
    pthread_mutex_lock(&lock);
    atomic_fetch_sub(&outstanding, ibx_outstanding_abandon(server.functions, device));
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* ------------------------------------------------------------------------------ the thread */

/* Nobody joins a thread that has left the state NONE behind. */
static bool open_queue(void)
{
    struct extension_request e;
    uint64_t queue = 0;
    enum server_state state = SERVER_NONE;
    if (ibx_frontend_connect_own()) {
        ibx_frontend_request_begin(&e, IBX_EXT_HOST_OPEN, "cudaLaunchHostFunc");
        state = ibx_frontend_request_ask(&e, &queue) ? SERVER_REFUSED : SERVER_SERVES;
    } else {
        pthread_detach(pthread_self());
    }
    pthread_mutex_lock(&lock);
    server.queue = queue;
    server.state = state;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return state == SERVER_SERVES;
}

struct called {
    uint64_t number; /* 0: no function */
    int status;
    size_t n; /* bytes that the function would copy, which follow */
    uint8_t bytes[IBX_EXT_COPIED];
};

/* Asks which function is to be called, and reports that function `over` has returned. `wait`: the
 * answer may come later. False: the back end is gone. */
static bool ask(uint64_t over, bool wait, struct called *called)
{
    struct extension_request e;
    uint8_t bytes[16 + IBX_EXT_COPIED] = {0};
    const bool takes_bytes = ibx_frontend_graph_takes_bytes();
    const size_t n = takes_bytes ? sizeof(bytes) : 12;
    struct ibx_reader r = ibx_reader_of(bytes, n);
    int code;
    ibx_frontend_request_begin(&e, IBX_EXT_HOST_ASK, "cudaLaunchHostFunc");
    ibx_put_u64(&e.body, over);
    ibx_put_u8(&e.body, wait);
    if (takes_bytes)
        ibx_put_u8(&e.body, 1);
    if (!ibx_frontend_request_try(&e, bytes, n, &code) || code)
        return false;
    called->number = ibx_get_u64(&r);
    called->status = (int)ibx_get_u32(&r);
    called->n = takes_bytes ? ibx_get_u32(&r) : 0;
    if (takes_bytes)
        memcpy(called->bytes, ibx_get_bytes(&r, IBX_EXT_COPIED), IBX_EXT_COPIED);
    if (called->n > IBX_EXT_COPIED)
        called->n = 0;
    return true;
}

void ibx_frontend_around_functions(const struct ibx_frontend_around *calls)
{
    atomic_store(&around, calls);
    if (atomic_load(&used)) /* a function may be running, and has called nothing before it */
        calls->begins();
}

static void call(const struct ibx_outstanding *f, struct called *called)
{
    const struct ibx_frontend_around *calls = atomic_load(&around);
    if (calls)
        calls->begins();
    ibx_frontend_host_function_is(f->callback || !ibx_frontend_graph_copies(f->function)
                                      ? IBX_FUNCTION_THEIRS
                                      : IBX_FUNCTION_OURS);
    if (f->callback)
        f->callback(f->in.handle, called->status, f->argument);
    else if (f->copy.taken)
        ibx_frontend_graph_give(f->argument, f->copy.taken);
    else if (!called->n ||
             !ibx_frontend_graph_copied(f->function, f->argument, called->bytes, called->n))
        f->function(f->argument);
    ibx_frontend_host_function_is(IBX_FUNCTION_NONE);
    calls = atomic_load(&around); /* set meanwhile, perhaps */
    if (calls)
        calls->ends();
    pthread_mutex_lock(&lock);
    server.returned = true;
    server.runs = (struct host_node){0};
    if (server.runs_for)
        pthread_cond_broadcast(&changed);
    server.runs_for = 0;
    server.changes++;
    while (server.state == SERVER_LEFT) /* from now on GVirtuS must not be called */
        ibx_thread_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

/* Polls for a moment: a graph that is launched repeatedly has its function outstanding again soon,
 * and to wake a thread takes 12 us. */
static void poll_for_more(void)
{
    const uint64_t until = ibx_now_ns() + POLL_NS;
    while (!ibx_frontend_host_functions() && ibx_now_ns() < until)
        ibx_cpu_relax();
}

/* Waits until a function is outstanding. False: the process ends. */
static bool wait_for_more(bool polls)
{
    if (polls)
        poll_for_more();
    pthread_mutex_lock(&lock);
    while (!server.functions && server.state == SERVER_SERVES)
        ibx_thread_wait(&changed, &lock);
    const bool more = server.state == SERVER_SERVES;
    pthread_mutex_unlock(&lock);
    return more;
}

/* Calls the function that the back end has named, if it is known. Returns whether it was
 * outstanding. */
static bool call_named(struct called *called)
{
    pthread_mutex_lock(&lock);
    struct ibx_outstanding *f =
        called->number ? ibx_outstanding_take(&server.functions, called->number) : NULL;
    if (called->number && !f)
        f = ibx_outstanding_replace(&server.functions, called->number);
    const bool was_outstanding = f && !f->abandoned;
    server.called = was_outstanding ? f->number : 0;
    server.called_in = f ? f->in : (struct ibx_in_stream){0};
    server.called_order = f ? f->order : 0;
    server.called_vain_ms = f ? f->vain_ms : 0;
    server.called_for = f ? f->launch : 0;
    server.returned = false;
    server.runs = f ? (struct host_node){f->function, f->argument} : (struct host_node){0};
    server.runs_for = f && ibx_outstanding_is_awaited(f) ? f->launch : 0;
    server.answers++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    if (f)
        call(f, called);
    else if (called->number)
        ibx_log(IBX_LOG_ERROR,
                "a stream has got to function %llu of the host, which is none of this process's, "
                "or of no graph that was launched: it goes on without it",
                (unsigned long long)called->number);
    ibx_outstanding_free(f);
    return was_outstanding;
}

/* The stream has passed the function: copies need not wait for it. */
static void goes_on(void)
{
    pthread_mutex_lock(&lock);
    atomic_fetch_sub(&outstanding, 1);
    server.called = 0;
    server.changes++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void *serve(void *argument)
{
    (void)argument;
    uint64_t over = 0;
    bool was_outstanding = false;
    struct called called;
    const bool polls = ibx_thread_may_spin();
    if (!open_queue())
        return NULL;
    while (over || wait_for_more(polls)) {
        if (!ask(over, !over, &called))
            break;
        if (was_outstanding)
            goes_on();
        was_outstanding = call_named(&called);
        over = called.number;
    }
    pthread_mutex_lock(&lock);
    /* No more functions are accepted, and outstanding ones are not called. */
    if (server.state == SERVER_SERVES)
        server.state = SERVER_REFUSED;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* Registered with atexit(3): ends the thread, so that it is in no request when GVirtuS's front end
 * or libcrypto is destroyed. */
static void at_exit(void)
{
    ibx_frontend_exits();
    if (ibx_frontend_unloads()) /* the thread may wait for what this one has */
        return;
    pthread_mutex_lock(&lock);
    const bool serves = server.state == SERVER_SERVES,
               there = serves || server.state == SERVER_REFUSED;
    if (serves)
        server.state = SERVER_ENDS;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    if (!there || pthread_equal(server.thread, pthread_self()))
        return;
    const uint64_t deadline = ibx_deadline_in_ms(END_MS);
    const struct timespec until = ibx_timespec_of(deadline);
    if (!pthread_clockjoin_np(server.thread, NULL, CLOCK_MONOTONIC, &until) || !serves)
        return;
    pthread_mutex_lock(&lock);
    server.state = SERVER_LEFT;
    pthread_mutex_unlock(&lock);
    ibx_log(IBX_LOG_WARN, "the process ends though a function of cudaLaunchHostFunc does not");
}

static void in_child(void)
{
    server.state = SERVER_NONE;
    atomic_store(&used, USE_NONE);
    pthread_mutex_init(&use_lock, NULL);
    server.functions = NULL;
    server.called = server.runs_for = 0;
    server.runs = (struct host_node){0};
    ibx_repeated_in_child();
    ibx_frontend_host_events_in_child();
    atomic_store(&outstanding, 0);
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&changed, NULL);
}

/* From the start: a thread may fork while another one waits before the first function (use()). */
__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

static void watch_end(void)
{
    atexit(at_exit);
}

/* Called under the lock. Starts the thread if needed; returns whether it serves. */
static bool begin(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (ibx_frontend_unloads())
        return false;
    pthread_once(&once, watch_end);
    if (server.state == SERVER_NONE) {
        server.state = SERVER_BEGINS;
        if (ibx_thread_begin(&server.thread, serve, NULL))
            server.state = SERVER_NO_THREAD;
    }
    const int cancel = ibx_thread_hold_cancel();
    while (server.state == SERVER_BEGINS)
        ibx_thread_wait(&changed, &lock);
    ibx_thread_release_cancel(cancel);
    return server.state == SERVER_SERVES;
}

/* Called under the lock. */
static void add(struct ibx_outstanding *f)
{
    ibx_outstanding_append(&server.functions, f);
    atomic_fetch_add(&so_far, 1);
    atomic_fetch_add(&outstanding, 1);
}

/* Called under the lock, after what has enqueued a function or a launch's: the back end may have
 * named it meanwhile, so that it is in the list no more. */
static void order_called(uint64_t number, uint64_t launch)
{
    if (server.called_order || (launch ? server.called_for != launch : server.called != number))
        return;
    server.called_order = ++server.last_order;
    pthread_cond_broadcast(&changed); /* some may wait for it in vain */
}

/* ------------------------------------------------------------------------------ of graphs */

uint64_t ibx_frontend_host_repeated(void (*function)(void *argument), void *argument,
                                    uint64_t *queue)
{
    const struct host_node wanted = {function, argument};
    use();
    pthread_mutex_lock(&lock);
    const uint64_t number = begin() ? ibx_repeated_number(&wanted, &server.last_number) : 0;
    *queue = server.queue;
    pthread_mutex_unlock(&lock);
    return number;
}

bool ibx_frontend_host_function_of(uint64_t number, struct host_node *host)
{
    pthread_mutex_lock(&lock);
    const bool found = ibx_repeated_find(number, host);
    pthread_mutex_unlock(&lock);
    return found;
}

void ibx_frontend_host_outstanding(void (*visit)(const struct host_node *host, void *context),
                                   void *context)
{
    pthread_mutex_lock(&lock);
    visit(&server.runs, context);
    for (const struct ibx_outstanding *f = server.functions; f; f = f->next)
        if (!f->abandoned)
            visit(&(struct host_node){f->function, f->argument}, context);
    pthread_mutex_unlock(&lock);
}

/* Called under the lock. Makes the function outstanding, which has what `copy` has taken from then
 * on; false: there is no memory, or no such function. */
static bool add_repeated(uint64_t number, struct ibx_launch_copy *copy,
                         const struct ibx_in_stream *in, uint64_t launch)
{
    struct host_node host;
    struct ibx_outstanding *made = ibx_repeated_find(number, &host) ? malloc(sizeof(*made)) : NULL;
    if (!made)
        return false;
    *made = (struct ibx_outstanding){.number = number,
                                     .launch = launch,
                                     .in = *in,
                                     .argument = host.argument,
                                     .function = host.function};
    if (copy) {
        made->copy = *copy;
        copy->taken = NULL;
    }
    add(made);
    return true;
}

/* Called under the lock. Whether a copy that the launch awaits has not been made yet. */
static bool awaits(uint64_t launch)
{
    const struct ibx_outstanding *f = server.functions;
    while (f && (f->launch != launch || f->abandoned || !ibx_outstanding_is_awaited(f)))
        f = f->next;
    return f || server.runs_for == launch;
}

/* Called under the lock, which it gives up meanwhile. Whether the stream has failed. */
static int ask_stream(void *stream)
{
    pthread_mutex_unlock(&lock);
    const int mode = ibx_frontend_relax(); /* a launch is permitted beside captures */
    const int code = ibx_frontend_stream_ask(stream);
    ibx_frontend_relax_end(mode);
    pthread_mutex_lock(&lock);
    return code;
}

/* The thread for functions gets an answer each 20 ms, and tells all who wait. */
void ibx_frontend_host_await(const struct ibx_launch *launch, void *stream,
                             struct ibx_launch_wait *wait)
{
    int code = CUDA_NOT_READY;
    const int cancel = ibx_thread_hold_cancel();
    pthread_mutex_lock(&lock);
    while (code == CUDA_NOT_READY && wait->seen == server.changes &&
           server.state == SERVER_SERVES && awaits(launch->id)) {
        wait->ask = wait->ask ? wait->ask : ibx_deadline_in_ms(ASK_MS);
        const struct timespec until = ibx_timespec_of(wait->ask);
        if (!pthread_cond_clockwait(&changed, &lock, CLOCK_MONOTONIC, &until))
            continue;
        wait->ask = 0;
        code = ask_stream(stream);
    }
    wait->code = !awaits(launch->id)             ? CUDA_SUCCESS
                 : server.state != SERVER_SERVES ? CUDA_UNKNOWN
                                                 : code;
    wait->seen = server.changes;
    pthread_mutex_unlock(&lock);
    ibx_thread_release_cancel(cancel);
}

bool ibx_frontend_host_give(uint64_t launch, uint64_t number, struct ibx_launch_bytes *taken)
{
    pthread_mutex_lock(&lock);
    struct ibx_outstanding *f = server.functions;
    while (f && (f->launch != launch || f->number != number || f->abandoned ||
                 f->copy.use != IBX_COPY_UNTAKEN))
        f = f->next;
    if (f)
        f->copy = (struct ibx_launch_copy){IBX_COPY_TAKEN, taken};
    pthread_mutex_unlock(&lock);
    return f;
}

int ibx_frontend_host_launch(struct ibx_launch *made, void *stream,
                             int (*launch)(void *exec, void *stream), void *exec)
{
    const struct ibx_in_stream in = stream_of(stream);
    struct ibx_launch_copy *copies = made->copies;
    size_t n = 0;
    pthread_mutex_lock(&lock);
    made->id = ++server.last_launch;
    const bool serves = server.state == SERVER_SERVES;
    while (serves && n < made->count &&
           add_repeated(made->numbers[n], copies ? copies + n : NULL, &in, made->id))
        n++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    const bool ready = serves && n == made->count;
    const int rc = ready ? launch(exec, stream) : serves ? CUDA_MEMORY_ALLOCATION : CUDA_UNKNOWN;
    pthread_mutex_lock(&lock);
    if (!rc)
        order_called(0, made->id);
    atomic_fetch_sub(&outstanding, ibx_outstanding_settle(&server.functions, made->id,
                                                          rc ? NULL : &server.last_order));
    pthread_mutex_unlock(&lock);
    return ready ? rc : ibx_frontend_fail(rc);
}

/* ------------------------------------------------------------------------------ of streams */

int ibx_frontend_host_enqueue(const struct ibx_frontend_host_call *wish, const char *name)
{
    struct extension_request e;
    struct ibx_outstanding *f = malloc(sizeof(*f));
    if (!f)
        return ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
    const struct ibx_in_stream in = stream_of(wish->stream);
    use();
    pthread_mutex_lock(&lock);
    const bool serves = begin();
    *f = (struct ibx_outstanding){.in = in,
                                  .argument = wish->argument,
                                  .function = wish->function,
                                  .callback = wish->callback};
    f->number = ++server.last_number;
    if (serves)
        add(f);
    pthread_cond_broadcast(&changed);
    const uint64_t queue = server.queue, number = f->number;
    const int refused = server.state == SERVER_NONE ? CUDA_UNKNOWN : CUDA_NOT_SUPPORTED;
    pthread_mutex_unlock(&lock);
    if (!serves) {
        free(f);
        return ibx_frontend_fail(refused);
    }
    ibx_frontend_request_begin(&e, IBX_EXT_HOST_ADD, name);
    ibx_put_u64(&e.body, (uintptr_t)wish->stream);
    ibx_put_u64(&e.body, queue);
    ibx_put_u64(&e.body, number);
    ibx_put_u8(&e.body, wish->callback != NULL);
    ibx_frontend_device_used();
    int rc = ibx_frontend_request_make(&e, NULL, 0);
    pthread_mutex_lock(&lock);
    f = rc ? ibx_outstanding_take(&server.functions, number) : NULL;
    atomic_fetch_sub(&outstanding, f != NULL);
    if (!rc && !ibx_outstanding_order(server.functions, number, &server.last_order))
        order_called(number, 0);
    pthread_mutex_unlock(&lock);
    free(f);
    return rc;
}
