/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/plugin/attach.h"

#include "common/log.h"
#include "common/thread.h"
#include "common/wire.h"
#include "frontend-glue/session/extra.h"
#include "frontend-glue/session/frames.h"
#include "frontend-glue/session/hooks.h"
#include "frontend-glue/plugin/host_memory.h"
#include "frontend-glue/preload/attach_table.h"
#include "frontend-glue/client_copies/client_copies.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define END_SLICE_MS     10u /* the end of the process does not wait longer for that of a thread */
#define PAGE             4096u       /* bytes; allocations of shared memory consist of such */
#define SHORT_COPY       1900u       /* bytes that go with the request */
#define BACKGROUND_LEAST (64u << 10) /* a shorter copy ends before another thread has begun */

/* Held by the thread and by the communicator; either may go first. */
struct ibx_attachment {
    _Atomic(struct ibx_session *) session; /* NULL: detached */
    struct ibx_pipeline *pipeline;         /* of the session; NULL: it has none */
    _Atomic unsigned users;
    pid_t process;
    atomic_bool lasts;       /* the end of its session was not counted yet */
    pthread_mutex_t closing; /* held while the session is closed at the end of the thread */
    atomic_bool ended;
    bool preloaded;                 /* the session carries the thread's own copies too */
    void (*begins)(void);           /* before its first request; NULL: it has begun */
    struct ibx_request_watch watch; /* the thread's */
    int stream_at;                  /* of the current request: see stream_at() */
    bool selects;                   /* the current request is cudaSetDevice, not answered yet */
    bool works;                     /* the watch has begun for it, and is not over */
    int device;                     /* that the thread has selected, -1: not known */
};

static _Thread_local struct ibx_attachment *mine;
static pthread_key_t thread_end;
static pthread_once_t begun = PTHREAD_ONCE_INIT;
static bool keyed;
static atomic_bool over_shm;                               /* the path of the last connection */
static atomic_uint epoch;                                  /* sessions of this process that ended */
static _Atomic(const struct ibx_frontend_watch *) watcher; /* NULL: the preload has none */

static void drop(struct ibx_attachment *attachment)
{
    if (atomic_fetch_sub(&attachment->users, 1) != 1)
        return;
    pthread_mutex_destroy(&attachment->closing);
    free(attachment);
}

/* At the back end a client without a session is none, and has nothing. It may be the last one that
 * the back end knows: a session it knows from its first reply on. */
static void count_end(struct ibx_attachment *attachment)
{
    if (atomic_exchange(&attachment->lasts, false))
        atomic_fetch_add(&epoch, 1);
}

/* False: the back end has not run yet what this thread has launched. */
static bool close_session(struct ibx_attachment *attachment)
{
    struct ibx_session *session = atomic_load(&attachment->session);
    if (!session)
        return true;
    if (!ibx_pipeline_finish(attachment->pipeline, END_SLICE_MS))
        return false;
    count_end(attachment);
    ibx_pipeline_lock(attachment->pipeline);
    ibx_session_close(session);
    ibx_pipeline_unlock(attachment->pipeline);
    atomic_store(&attachment->ended, true);
    return true;
}

/* What a thread has launched is run, however long that takes: others may wait for it. At the end of
 * the process another thread may destroy the session meanwhile. */
static void end_thread(void *argument)
{
    struct ibx_attachment *attachment = argument;
    mine = NULL;
    for (bool closed = false; !closed;) {
        pthread_mutex_lock(&attachment->closing);
        closed = close_session(attachment);
        pthread_mutex_unlock(&attachment->closing);
        if (!closed)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    drop(attachment);
}

/* The connection stays the parent's. The child's thread has another id, so GVirtuS connects anew.
 */
static void end_parent(void)
{
    if (mine)
        drop(mine);
    mine = NULL;
    ibx_host_copies_forget();
    pthread_setspecific(thread_end, NULL);
    atomic_fetch_add(&epoch, 1);
}

/* GVirtuS's front end closes all sessions behind this: it was there before its communicator. */
static void begin(void)
{
    atexit(ibx_session_process_ends);
    keyed = !pthread_key_create(&thread_end, end_thread) && !pthread_atfork(NULL, NULL, end_parent);
}

static struct ibx_session *session_of_thread(void)
{
    return mine ? atomic_load(&mine->session) : NULL;
}

/* The next two are about the thread's session. The keeper may be about to have it go on over
 * another connection, or find that it has ended. */
static bool is_over_shm(const struct ibx_session *session)
{
    ibx_pipeline_lock(mine->pipeline);
    const struct ibx_path *path = ibx_session_path(session);
    const bool over = path && !strcmp(path->provider, "shm");
    ibx_pipeline_unlock(mine->pipeline);
    return over;
}

static bool is_live(const struct ibx_session *session)
{
    ibx_pipeline_lock(mine->pipeline);
    const bool live = ibx_session_live(session);
    ibx_pipeline_unlock(mine->pipeline);
    return live;
}

/* ------------------------------------------------------------------ GVirtuS's requests */

/* Where a request holds its stream: an offset in its body, or one of these. */
#define NO_STREAM   (-1) /* copies under way make no difference to it */
#define LAST_STREAM (-2) /* the body's last bytes */
#define ANY_STREAM  (-3)

static int stream_at(const char *name)
{
    /* An event is recorded when the copies before it end, so most calls about events need not wait.
     */
    static const struct {
        const char *name;
        int at;
    } calls[] = {
        {"cudaLaunchKernel", 40},
        {"cudaMemcpyAsync", LAST_STREAM},
        {"cudaStreamSynchronize", 0},
        {"cudaStreamQuery", 0},
        {"cudaStreamWaitEvent", 0},
        {"cudaEventRecord", 8},
        {"cudaEventQuery", NO_STREAM},
        {"cudaEventSynchronize", NO_STREAM},
        {"cudaEventElapsedTime", NO_STREAM},
        {"cudaEventCreate", NO_STREAM},
        {"cudaEventCreateWithFlags", NO_STREAM},
        {"cudaEventDestroy", NO_STREAM},
        {"cudaStreamCreate", NO_STREAM},
        {"cudaStreamCreateWithFlags", NO_STREAM},
        {"cudaStreamCreateWithPriority", NO_STREAM},
        {"cudaMalloc", NO_STREAM},
        {"cudaPushCallConfiguration", NO_STREAM},
        {"cudaPopCallConfiguration", NO_STREAM},
        {"cudaSetDevice", NO_STREAM},
        {"cudaGetDevice", NO_STREAM},
        {"cudaGetDeviceCount", NO_STREAM},
        {"cudaGetLastError", NO_STREAM},
        {"cudaPeekAtLastError", NO_STREAM},
    };
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        if (!strcmp(calls[i].name, name))
            return calls[i].at;
    }
    return ANY_STREAM;
}

/* `bytes` are a request's name, or its body or a part of that. */
static void wait_for_copies(struct ibx_attachment *attachment, const uint8_t *bytes, size_t n)
{
    const struct ibx_request_watch *watch = &attachment->watch;
    if (ibx_request_begins(watch)) {
        bool whole = memchr(bytes, 0, n) == bytes + n - 1;
        attachment->stream_at = whole ? stream_at((const char *)bytes) : ANY_STREAM;
        attachment->selects = whole && !strcmp((const char *)bytes, "cudaSetDevice");
        if (attachment->stream_at == ANY_STREAM)
            ibx_async_copy_wait(0);
        return;
    }
    if (watch->stage != IBX_REQUEST_BODY || watch->got || attachment->stream_at == NO_STREAM)
        return;
    size_t at = attachment->stream_at >= 0 ? (size_t)attachment->stream_at : n - 8;
    bool there = n == watch->length && n >= 8 && at <= n - 8;
    struct ibx_reader r = ibx_reader_of(bytes + (there ? at : 0), there ? 8 : 0);
    ibx_async_copy_wait(there ? ibx_get_u64(&r) : 0);
}

static void watch_ends(struct ibx_attachment *attachment)
{
    if (attachment->works)
        atomic_load(&watcher)->over();
    attachment->works = false;
}

/* A request begins, whose name may be cut. An error is one of the connection, or of the device:
 * then the request fails, too. */
static void watch_begins(struct ibx_attachment *attachment, const char *bytes, size_t n)
{
    const struct ibx_frontend_watch *watch = atomic_load_explicit(&watcher, memory_order_acquire);
    watch_ends(attachment);
    if (watch)
        watch->request(bytes[n - 1] ? "?" : bytes, NULL, 0, &attachment->works);
}

void ibx_attachment_on_write(struct ibx_attachment *attachment, const void *bytes, size_t n)
{
    static const char capture[] = "cudaStreamBeginCapture";
    if (!attachment || !attachment->preloaded || !n)
        return;
    if (attachment->begins)
        attachment->begins();
    attachment->begins = NULL;
    if (ibx_request_begins(&attachment->watch) && n == sizeof(capture) &&
        !memcmp(bytes, capture, n))
        ibx_async_copy_forbid();
    if (ibx_request_begins(&attachment->watch))
        watch_begins(attachment, bytes, n);
    wait_for_copies(attachment, bytes, n);
    const unsigned resets = attachment->watch.resets;
    ibx_request_note_read(&attachment->watch, bytes, n);
    if (attachment->watch.resets != resets)
        ibx_async_copy_forget_failures();
}

/* A reply begins with the exit code, 0 when the device was selected. */
void ibx_attachment_on_read(struct ibx_attachment *attachment, const void *bytes, size_t n)
{
    if (attachment)
        watch_ends(attachment);
    if (!attachment || !attachment->selects)
        return;
    struct ibx_reader r = ibx_reader_of(bytes, n);
    if (!ibx_get_u32(&r) && !r.failed)
        attachment->device = attachment->watch.device;
    attachment->selects = false;
}

/* ---------------------------------------------------------------------- the preload's calls */

/* False: the copy has to be run here. */
static bool run_in_background(const struct ibx_session *session,
                              const struct ibx_frontend_copy *copy)
{
    if (!copy->async || !copy->pinned || copy->lasting ||
        copy->stream <= IBX_ASYNC_COPY_STREAM_SPECIAL ||
        (copy->n < BACKGROUND_LEAST && !ibx_async_copy_pending(copy->stream)))
        return false;
    ibx_pipeline_settle(mine->pipeline, copy->stream); /* it comes over another connection */
    const bool started = is_live(session) && ibx_async_copy_start(session, copy, mine->device);
    ibx_pipeline_elsewhere();
    return started;
}

/* An asynchronous copy from the device into lasting memory was answered before it was made. */
static atomic_bool left_for_later;

/* Whether earlier work of the stream may still change the copy's bytes: then the back end takes
 * them in the stream's order. */
static bool may_change(const struct ibx_frontend_copy *copy)
{
    return copy->to_device && atomic_load(&left_for_later) &&
           (copy->lasting || ibx_shared_holds(copy->host, copy->n)) &&
           !(copy->stream > IBX_ASYNC_COPY_STREAM_SPECIAL
                 ? ibx_pipeline_rests(mine->pipeline, copy->stream)
                 : ibx_pipeline_all_rests(mine->pipeline));
}

/* One that is waited for, in the order of the legacy stream: as an asynchronous one. */
static void put_in_order(struct ibx_frontend_copy *copy)
{
    copy->async = copy->lasting = copy->settle = true;
    copy->stream = 0;
}

static const char *name_of(const struct ibx_frontend_copy *copy)
{
    return copy->async ? "cudaMemcpyAsync" : "cudaMemcpy";
}

/* A short one: its bytes go with the request, in the pipeline. */
static bool run_in_pipeline(const struct ibx_frontend_copy *copy, int *exit_code)
{
    uint8_t body[SHORT_COPY + 36];
    struct ibx_writer w = ibx_writer_of(body, sizeof(body));
    if (!copy->to_device || copy->rows || copy->n > SHORT_COPY || ibx_async_copy_any() ||
        may_change(copy))
        return false;
    ibx_put_u64(&w, copy->device);
    ibx_put_u64(&w, copy->n);
    ibx_put_bytes(&w, copy->host, copy->n);
    ibx_put_u64(&w, copy->n);
    ibx_put_u32(&w, IBX_FRAME_H2D);
    if (copy->async)
        ibx_put_u64(&w, copy->stream);
    const struct ibx_pipeline_request request = {
        .name = name_of(copy), .body = body, .n = w.length};
    return !ibx_pipeline_call(mine->pipeline, &request, exit_code);
}

/* A longer one that is waited for natively, but for nothing else. */
static bool run_ahead(struct ibx_session *session, const struct ibx_frontend_copy *copy,
                      int *exit_code)
{
    if (copy->async || !copy->to_device || copy->rows || ibx_async_copy_any() || may_change(copy))
        return false;
    *exit_code = 0;
    if (ibx_pipeline_copy_gathered(mine->pipeline, copy->device, copy->host, copy->n))
        return true;
    ibx_pipeline_lock(mine->pipeline); /* others may go on over another connection meanwhile */
    const bool can = ibx_client_can_go_ahead(session, copy);
    ibx_pipeline_unlock(mine->pipeline);
    if (!can || !ibx_pipeline_copy_begin(mine->pipeline, copy->device, copy->n))
        return false;
    ibx_client_go_ahead(session, copy, exit_code);
    ibx_pipeline_copy_end(mine->pipeline);
    return true;
}

static int run_alone(struct ibx_session *session, struct ibx_frontend_copy *copy, int *exit_code)
{
    copy->lasting = false; /* its bytes are there when it has returned */
    ibx_pipeline_enter_alone(mine->pipeline);
    const int rc = ibx_client_copy(session, copy, exit_code);
    const int code = ibx_pipeline_leave(mine->pipeline, rc ? 0 : *exit_code, false);
    if (!rc)
        *exit_code = code;
    return rc;
}

static int run_whole(const struct ibx_frontend_copy *wish, int *exit_code);

/* Rows are read here, not in the stream's order: what may still change them has ended when a byte
 * has come back in the order of the legacy stream. */
static int wait_for_rows(const struct ibx_frontend_copy *rows, int *exit_code)
{
    uint8_t byte;
    const struct ibx_frontend_copy back = {.device = rows->device, .host = &byte, .n = 1};
    return run_whole(&back, exit_code);
}

static int run_whole(const struct ibx_frontend_copy *wish, int *exit_code)
{
    struct ibx_session *session = session_of_thread();
    struct ibx_frontend_copy copy = *wish;
    if (!session)
        return -ENOTCONN;
    if (copy.alone)
        return run_alone(session, &copy, exit_code);
    if (run_in_pipeline(&copy, exit_code) || run_ahead(session, &copy, exit_code))
        return 0;
    /* Over shm only, the back end maps such memory. */
    copy.lasting = copy.lasting && is_over_shm(session);
    if (run_in_background(session, &copy)) {
        *exit_code = 0;
        return 0;
    }
    if (copy.async && copy.lasting && !copy.to_device)
        atomic_store(&left_for_later, true);
    int rc;
    if (!copy.async && copy.rows && may_change(&copy) &&
        ((rc = wait_for_rows(&copy, exit_code)) || *exit_code))
        return rc;
    if (!copy.async && !copy.rows && may_change(&copy) && is_over_shm(session))
        put_in_order(&copy);
    ibx_async_copy_wait(copy.async ? copy.stream : 0);
    ibx_pipeline_enter(mine->pipeline, copy.async ? copy.stream : 0, wish->async);
    rc = ibx_client_copy(session, &copy, exit_code);
    int code = ibx_pipeline_leave(mine->pipeline, rc ? 0 : *exit_code, !rc && !wish->async);
    if (!rc)
        *exit_code = code;
    if (!rc && !code && copy.to_device && !copy.rows)
        ibx_pipeline_learn(mine->pipeline, name_of(&copy));
    if (!rc && !code && !wish->async && !copy.to_device)
        ibx_pipeline_settled(mine->pipeline);
    return rc;
}

static int run_watched(const struct ibx_frontend_copy *wish, int *exit_code)
{
    const struct ibx_frontend_watch *watch = atomic_load_explicit(&watcher, memory_order_acquire);
    if (watch && watch->withheld(wish))
        return -ENOTCONN;
    const int cancel = ibx_thread_hold_cancel();
    bool works = false;
    int rc = 0;
    if (watch && session_of_thread())
        *exit_code = watch->copy(wish, &works);
    if (!works || !*exit_code)
        rc = run_whole(wish, exit_code);
    if (works)
        watch->over();
    ibx_thread_release_cancel(cancel);
    return rc;
}

static void drain(const void *address, size_t n)
{
    ibx_host_copies_drain(address, n);
    ibx_async_copy_wait_memory(address, n);
}

static int run_copy(const struct ibx_frontend_copy *wish, int *exit_code)
{
    struct ibx_host_copy copy;
    ibx_host_copy_begins(&copy, wish);
    const int rc = run_watched(wish, exit_code);
    ibx_host_copy_ends(&copy);
    return rc;
}

/* The stream of one that ends with it. */
static uint64_t last_word(const struct ibx_frontend_request *request)
{
    struct ibx_reader r = ibx_reader_of(request->body, request->n);
    if (request->n > 8)
        ibx_get_bytes(&r, request->n - 8);
    return ibx_get_u64(&r);
}

/* With copies in the background GVirtuS makes the call: on its way they are waited for. */
static int make_call(const struct ibx_frontend_request *request, int *exit_code)
{
    const struct ibx_pipeline_request call = {request->name, request->body,  request->n,
                                              request->out,  request->out_n, request->unseen};
    if (!session_of_thread())
        return -ENOTCONN;
    if (!strcmp(request->name, IBX_EXTRA_NAME)) /* GVirtuS has no such call */
        ibx_async_copy_wait(0);
    else if (!strcmp(request->name, IBX_EXTRA_QUEUE))
        ibx_async_copy_wait(last_word(request));
    else if (ibx_async_copy_any() && strcmp(request->name, IBX_EXTRA_WORK) != 0)
        return -ENOTCONN;
    const struct ibx_frontend_watch *watch = atomic_load_explicit(&watcher, memory_order_acquire);
    const int cancel = ibx_thread_hold_cancel();
    bool works = false;
    int rc = 0;
    if (watch)
        *exit_code = watch->request(request->name, request->body, request->n, &works);
    if (!works || !*exit_code)
        rc = ibx_pipeline_call(mine->pipeline, &call, exit_code);
    if (works)
        watch->over();
    ibx_thread_release_cancel(cancel);
    return rc;
}

static void unseen(bool launch)
{
    if (session_of_thread())
        ibx_pipeline_unseen(mine->pipeline, launch);
}

static bool divert(void)
{
    return session_of_thread() && ibx_pipeline_divert(mine->pipeline);
}

static const void *diverted(size_t *n)
{
    return session_of_thread() ? ibx_pipeline_diverted(mine->pipeline, n) : NULL;
}

static bool knows_now(enum ibx_frontend_fact fact, uint64_t handle, int *answer)
{
    switch (fact) {
    case IBX_FRONTEND_NO_ERROR:
        return ibx_pipeline_has_no_error(mine->pipeline);
    case IBX_FRONTEND_DEVICE:
        return ibx_pipeline_device(mine->pipeline, answer);
    case IBX_FRONTEND_SELECTED:
        return ibx_pipeline_selected(mine->pipeline, (int)handle);
    case IBX_FRONTEND_STREAM_RESTS:
        return ibx_pipeline_rests(mine->pipeline, handle);
    case IBX_FRONTEND_EVENT_OVER:
        return ibx_pipeline_is_over(mine->pipeline, handle);
    case IBX_FRONTEND_LEAVES:
        return is_over_shm(session_of_thread()) && handle >= IBX_CLIENT_FROM_LEAST;
    case IBX_FRONTEND_ERRORS:
        return ibx_pipeline_errors(mine->pipeline, answer);
    }
    return false;
}

static bool knows(enum ibx_frontend_fact fact, uint64_t handle, int *answer)
{
    if (!session_of_thread() || ibx_async_copy_any())
        return false;
    const int cancel = ibx_thread_hold_cancel(); /* of a backlog that leaves meanwhile */
    const bool known = knows_now(fact, handle, answer);
    ibx_thread_release_cancel(cancel);
    return known;
}

static void prepare(void *address, size_t n)
{
    struct ibx_session *session = session_of_thread();
    if (!session)
        return;
    const int cancel = ibx_thread_hold_cancel();
    ibx_pipeline_enter(mine->pipeline, 0, false);
    ibx_session_prepare(session, address, n);
    ibx_pipeline_leave(mine->pipeline, 0, false);
    ibx_thread_release_cancel(cancel);
}

/* Over shm memory that the back end maps, and pins meanwhile: page-locked memory takes its time
 * natively, too, and then copies at once. Elsewhere memory whose registration can be cached. */
static void *allocate(size_t n)
{
    void *address = atomic_load(&over_shm) ? ibx_shared_allocate(n, NULL) : NULL;
    if (!address)
        address = ibx_host_memory_map(n);
    if (address)
        prepare(address, n);
    else
        ibx_log(IBX_LOG_WARN, "the application gets no %zu bytes of page-locked memory: %s", n,
                strerror(errno));
    return address;
}

static int ask_for_map(const struct ibx_writer *body, int *exit_code)
{
    const struct ibx_frontend_request request = {
        .name = IBX_EXTRA_NAME, .body = body->data, .n = body->length};
    return make_call(&request, exit_code);
}

static int stand_in(void *address, size_t n, bool on, int *exit_code)
{
    uint8_t body[32];
    struct ibx_writer w = ibx_writer_of(body, sizeof(body));
    uint64_t offset;
    if (ibx_shared_offset(address, n, &offset)) /* then it is reach() or nothing */
        return -EOPNOTSUPP;
    ibx_put_u16(&w, on ? IBX_EXTRA_HOST_MAP : IBX_EXTRA_HOST_UNMAP);
    ibx_put_u64(&w, (uintptr_t)address);
    if (on) {
        ibx_put_u64(&w, n);
        ibx_put_u64(&w, IBX_EXTRA_OWN_PAGES);
    }
    return ask_for_map(&w, exit_code);
}

/* Kernels write there unseen: later copies from such memory go in the order of their streams. */
static int reach(void *address, size_t n, bool on, int *exit_code)
{
    struct ibx_session *session = session_of_thread();
    uint8_t body[32];
    struct ibx_writer w = ibx_writer_of(body, sizeof(body));
    uint64_t offset;
    if (!session)
        return -ENOTCONN;
    if (!is_over_shm(session) || !ibx_shared_offset(address, n, &offset))
        return -EOPNOTSUPP;
    const int cancel = ibx_thread_hold_cancel();
    ibx_pipeline_lock(mine->pipeline);
    const int rc = ibx_session_share(session);
    ibx_pipeline_unlock(mine->pipeline);
    ibx_thread_release_cancel(cancel);
    if (rc)
        return rc;
    ibx_put_u16(&w, on ? IBX_EXTRA_HOST_MAP : IBX_EXTRA_HOST_UNMAP);
    ibx_put_u64(&w, (uintptr_t)address);
    if (on) {
        ibx_put_u64(&w, (n + PAGE - 1) / PAGE * PAGE);
        ibx_put_u64(&w, offset);
        atomic_store(&left_for_later, true);
    }
    return ask_for_map(&w, exit_code);
}

static unsigned reach_epoch(void)
{
    return atomic_load(&epoch);
}

static void watch(const struct ibx_frontend_watch *calls)
{
    atomic_store(&watcher, calls);
}

static void leave(void)
{
    struct ibx_session *session = session_of_thread();
    if (session && mine->process != getpid())
        return;
    ibx_session_process_ends(); /* its own handler may be none, as GVirtuS's destructors */
    if (session)
        ibx_pipeline_finish(mine->pipeline, IBX_PIPELINE_END_MS);
    ibx_process_leave();
    if (session && !mine->pipeline)
        ibx_session_close(session);
}

static void release(void *address, size_t n)
{
    if (!ibx_shared_free(address))
        munmap(address, n);
}

static _Atomic(ibx_attach_launch *) by_gvirtus;

static bool launch_by_gvirtus(const struct ibx_frontend_launch *launch, int *rc)
{
    return atomic_load(&by_gvirtus)(launch, rc);
}

struct ibx_attachment *ibx_attach(struct ibx_session *session, struct ibx_pipeline *pipeline,
                                  ibx_attach_launch *launch)
{
    static const struct ibx_frontend_calls calls = {
        .version = IBX_FRONTEND_VERSION,
        .copy = run_copy,
        .call = make_call,
        .unseen = unseen,
        .divert = divert,
        .diverted = diverted,
        .launch = launch_by_gvirtus,
        .knows = knows,
        .allocate = allocate,
        .release = release,
        .prepare = prepare,
        .reach = reach,
        .stand_in = stand_in,
        .reach_epoch = reach_epoch,
        .pending = ibx_async_copy_pending,
        .failure = ibx_async_copy_failure,
        .finish = ibx_async_copy_wait_memory,
        .drain = drain,
        .watch = watch,
        .leave = leave,
    };
    void (*attach)(const struct ibx_frontend_calls *calls) = NULL;
    void (*begins)(void) = NULL;
    *(void **)&attach = dlsym(RTLD_DEFAULT, IBX_FRONTEND_ATTACH);
    *(void **)&begins = dlsym(RTLD_DEFAULT, IBX_FRONTEND_BEGINS);
    pthread_once(&begun, begin);
    atomic_store(&by_gvirtus, launch);
    struct ibx_attachment *attachment = keyed ? malloc(sizeof(*attachment)) : NULL;
    if (!attachment)
        return NULL;
    *attachment = (struct ibx_attachment){.session = session,
                                          .pipeline = pipeline,
                                          .users = 2,
                                          .process = getpid(),
                                          .lasts = true,
                                          .closing = PTHREAD_MUTEX_INITIALIZER,
                                          .preloaded = attach != NULL,
                                          .begins = begins,
                                          .stream_at = ANY_STREAM,
                                          .device = -1};
    ibx_request_watch_init(&attachment->watch);
    if (mine)
        drop(mine);
    mine = attachment;
    pthread_setspecific(thread_end, attachment);
    atomic_store(&over_shm, is_over_shm(session));
    if (attach)
        attach(&calls);
    return attachment;
}

bool ibx_attachment_ended(const struct ibx_attachment *attachment)
{
    return attachment && atomic_load(&attachment->ended);
}

void ibx_detach(struct ibx_attachment *attachment)
{
    if (!attachment)
        return;
    bool ours = attachment->process == getpid(); /* a child has none of its parent's threads */
    if (ours)
        count_end(attachment);
    if (ours)
        pthread_mutex_lock(&attachment->closing);
    atomic_store(&attachment->session, NULL);
    if (ours)
        pthread_mutex_unlock(&attachment->closing);
    drop(attachment);
}
