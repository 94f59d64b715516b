/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/plugin/attached.h"

#include "common/handlers.h"
#include "common/wire.h"
#include "frontend-glue/client_copies/client_copies.h"
#include "frontend-glue/plugin/host_memory.h"
#include "frontend-glue/session/hooks.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define END_SLICE_MS 10u /* the end of the process waits so long for a thread that ends */

_Thread_local struct ibx_attachment *ibx_attached;
_Atomic(const struct ibx_frontend_watch *) ibx_attached_watcher; /* NULL: the preload has none */
static pthread_key_t thread_end;
static pthread_once_t begun = PTHREAD_ONCE_INIT;
static bool keyed;
static atomic_bool attached_ever; /* the preload has the table */

void ibx_attachment_drop(struct ibx_attachment *attachment)
{
    if (atomic_fetch_sub(&attachment->users, 1) != 1)
        return;
    pthread_mutex_destroy(&attachment->closing);
    free(attachment);
}

/* Closes the attachment's session. False: the back end has not yet run what this thread has
 * launched. */
static bool close_session(struct ibx_attachment *attachment)
{
    struct ibx_session *session = atomic_load(&attachment->session);
    if (!session)
        return true;
    if (!ibx_pipeline_finish(attachment->pipeline, END_SLICE_MS))
        return false;
    if (!ibx_last_session_stays(attachment)) {
        ibx_pipeline_lock(attachment->pipeline);
        ibx_session_close(session);
        ibx_pipeline_unlock(attachment->pipeline);
    }
    atomic_store(&attachment->ended, true);
    return true;
}

/* A thread ends. Waits until what it has launched has been run, however long that takes, since
 * other threads may wait for that work. At the end of the process another thread may destroy the
 * session meanwhile. */
static void end_thread(void *argument)
{
    struct ibx_attachment *attachment = argument;
    ibx_attached = NULL;
    for (bool closed = false; !closed;) {
        pthread_mutex_lock(&attachment->closing);
        closed = close_session(attachment);
        pthread_mutex_unlock(&attachment->closing);
        if (!closed)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    ibx_attachment_drop(attachment);
}

/* In a forked child: the connection stays the parent's. The child's thread has another id, so
 * GVirtuS makes a new connection. */
static void end_parent(void)
{
    if (ibx_attached)
        ibx_attachment_drop(ibx_attached);
    ibx_attached = NULL;
    ibx_host_copies_forget();
    pthread_setspecific(thread_end, NULL);
    ibx_last_session_forked();
}

/* Runs before GVirtuS's front end is destroyed, which was made before the communicator. The front
 * end closes all other sessions. */
static void process_ends(void)
{
    if (ibx_inside_exits())
        return;
    const struct ibx_inside inside = ibx_inside_begin();
    ibx_session_process_ends();
    ibx_last_session_close();
    ibx_inside_end(inside);
}

static void begin(void)
{
    atexit(process_ends);
    keyed = !pthread_key_create(&thread_end, end_thread) && !pthread_atfork(NULL, NULL, end_parent);
}

struct ibx_session *ibx_attached_session(void)
{
    return ibx_attached ? atomic_load(&ibx_attached->session) : NULL;
}

bool ibx_attached_over_shm(const struct ibx_session *session)
{
    ibx_pipeline_lock(ibx_attached->pipeline);
    const struct ibx_path *path = ibx_session_path(session);
    const bool over = path && !strcmp(path->provider, "shm");
    ibx_pipeline_unlock(ibx_attached->pipeline);
    return over;
}

bool ibx_attached_live(const struct ibx_session *session)
{
    ibx_pipeline_lock(ibx_attached->pipeline);
    const bool live = ibx_session_live(session);
    ibx_pipeline_unlock(ibx_attached->pipeline);
    return live;
}

/* ------------------------------------------------------------------ GVirtuS's requests */

/* Where a request holds its stream: an offset in its body, or one of these. */
#define NO_STREAM   (-1) /* need not wait for copies under way */
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

/* Waits for background copies that a request has to come after; `bytes` are its name, or its body
 * or a part of it. */
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
        atomic_load(&ibx_attached_watcher)->over();
    attachment->works = false;
}

/* Tells the preload's watcher that a request begins; its name may be cut. The watcher's error is
 * ignored: if the connection or the device has failed, the request fails, too. */
static void watch_begins(struct ibx_attachment *attachment, const char *bytes, size_t n)
{
    const struct ibx_frontend_watch *watch =
        atomic_load_explicit(&ibx_attached_watcher, memory_order_acquire);
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

/* A reply begins with the exit code; 0: the device was selected. */
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

bool ibx_attachment_preloaded(const struct ibx_attachment *attachment)
{
    return attachment && attachment->preloaded;
}

void ibx_attach_begins(void)
{
    ibx_last_session_close();
}

/* A function of the preload library; NULL: the library is not loaded. */
static void *preloaded(_Atomic(void *) *known, const char *name)
{
    void *function = atomic_load(known);
    if (!function) {
        function = dlsym(RTLD_DEFAULT, name);
        atomic_store(known, function);
    }
    return function;
}

static _Atomic(void *) known_attach, known_begins, known_attempt, known_alone, known_let;

/* Done when this library is loaded, so that a thread that connects need not wait for the loader's
 * lock: the holder of that lock may be in a library's constructor, and wait for a lock that the
 * connecting thread holds. */
__attribute__((constructor)) static void look_for_preload(void)
{
    preloaded(&known_attach, IBX_FRONTEND_ATTACH);
    preloaded(&known_begins, IBX_FRONTEND_BEGINS);
    preloaded(&known_attempt, IBX_FRONTEND_ATTEMPT);
    preloaded(&known_alone, IBX_FRONTEND_ALONE);
    preloaded(&known_let, IBX_FRONTEND_LET);
}

uint64_t ibx_attach_attempt(void)
{
    uint64_t (*attempt)(void) = NULL;
    *(void **)&attempt = preloaded(&known_attempt, IBX_FRONTEND_ATTEMPT);
    return attempt ? attempt() : 0;
}

bool ibx_attach_holds(void)
{
    bool (*alone)(void) = NULL;
    *(void **)&alone = preloaded(&known_alone, IBX_FRONTEND_ALONE);
    return alone && alone() && atomic_load(&attached_ever);
}

void ibx_attach_lets(void)
{
    void (*let)(void) = NULL;
    *(void **)&let = preloaded(&known_let, IBX_FRONTEND_LET);
    if (let)
        let();
}

struct ibx_attachment *ibx_attach(struct ibx_session *session, struct ibx_pipeline *pipeline,
                                  ibx_attach_launch *launch)
{
    void (*attach)(const struct ibx_frontend_calls *calls) = NULL;
    void (*begins)(void) = NULL;
    *(void **)&attach = preloaded(&known_attach, IBX_FRONTEND_ATTACH);
    *(void **)&begins = preloaded(&known_begins, IBX_FRONTEND_BEGINS);
    pthread_once(&begun, begin);
    ibx_attached_launch_by(launch);
    struct ibx_attachment *attachment = keyed ? malloc(sizeof(*attachment)) : NULL;
    if (!attachment)
        return NULL;
    *attachment = (struct ibx_attachment){.session = session,
                                          .pipeline = pipeline,
                                          .users = 2,
                                          .process = getpid(),
                                          .closing = PTHREAD_MUTEX_INITIALIZER,
                                          .preloaded = attach != NULL,
                                          .begins = begins,
                                          .stream_at = ANY_STREAM,
                                          .device = -1};
    ibx_request_watch_init(&attachment->watch);
    if (ibx_attached)
        ibx_attachment_drop(ibx_attached);
    ibx_attached = attachment;
    pthread_setspecific(thread_end, attachment);
    ibx_last_session_begins(attachment);
    ibx_attached_path(session);
    if (attach)
        attach(&ibx_attached_calls);
    atomic_store(&attached_ever, true);
    return attachment;
}

bool ibx_attachment_ended(const struct ibx_attachment *attachment)
{
    return attachment && atomic_load(&attachment->ended);
}

bool ibx_detach(struct ibx_attachment *attachment, bool may_stay)
{
    if (!attachment)
        return false;
    const bool ours =
        attachment->process == getpid(); /* a forked child has none of its parent's threads */
    bool stays = false;
    if (ours) {
        pthread_mutex_lock(&attachment->closing);
        stays = may_stay && ibx_pipeline_finish_last(attachment->pipeline) &&
                ibx_last_session_stays(attachment);
        if (stays)
            attachment->owned = atomic_load(&attachment->session);
        else
            ibx_last_session_ends(attachment);
    }
    atomic_store(&attachment->session, NULL);
    if (ours)
        pthread_mutex_unlock(&attachment->closing);
    ibx_attachment_drop(attachment);
    return stays;
}
