/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/client_calls/internal.h"

#include "common/clock.h"
#include "common/log.h"

#include <stdlib.h>
#include <string.h>

#define LOOK_EVERY_NS       20000u /* where looking at the connection is a system call */
#define EAGER_MESSAGES      8u     /* under way, before messages of a cheap fabric are filled */
#define BATCH               4096u  /* bytes that are worth a message beside others under way */
#define LAUNCH_LEAST        56u    /* bytes of a launch before its arguments */
#define GRID_X_MAX          0x7fffffffu /* of all devices that CUDA 8 and later serve */
#define GRID_YZ_MAX         0xffffu
#define CAPTURE_INVALIDATED 901 /* cudaError_t */
#define CAPTURE_UNJOINED    904
#define REPLY_READS         3u /* exit code, seconds, length; and one for the output, if any */

static const uint8_t no_output[IBX_REPLY_HEAD]; /* the reply of a success */

static const struct ibx_state request_states[] = {
    [REQUEST_STAGING] = {"staging", IBX_TO(REQUEST_ANSWERED) | IBX_TO(REQUEST_WAITING),
                         IBX_STATE_INITIAL},
    [REQUEST_ANSWERED] = {"answered", IBX_TO(REQUEST_STAGING), 0},
    [REQUEST_WAITING] = {"waiting", IBX_TO(REQUEST_STAGING), 0}};
static const struct ibx_state_table request_table =
    IBX_STATE_TABLE("request of GVirtuS", request_states);

/* --------------------------------------------------------------- beginning and end */

static bool is_eager(const struct ibx_session *session)
{
    const struct ibx_path *path = ibx_session_path(session);
    return path && (!strcmp(path->provider, "shm") || !strcmp(path->provider, "verbs"));
}

struct ibx_pipeline *ibx_pipeline_create(struct ibx_session *session, enum ibx_pipeline_mode mode)
{
    struct ibx_pipeline *p = mode == IBX_PIPELINE_OFF ? NULL : calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    p->session = session;
    p->mode = mode;
    ibx_state_begin(&p->state, &request_table, REQUEST_STAGING);
    p->eager = is_eager(session);
    p->room = ibx_session_room(session);
    memset(p->device, 0xff, sizeof(p->device));
    p->launches_from = ibx_process_resets();
    p->others_from = ibx_process_handles();
    p->streams = STREAMS_NONE;
    p->call = ibx_call_find("", 0);
    pthread_mutex_init(&p->lock, NULL);
    ibx_configurations_init(&p->configurations);
    ibx_process_add(p);
    return p;
}

/* Whether a fork has brought it into another process, to which it does not belong. */
static bool is_inherited(const struct ibx_pipeline *p)
{
    return p->process != ibx_process_number();
}

void ibx_pipeline_destroy(struct ibx_pipeline *p)
{
    if (!p)
        return;
    if (!is_inherited(p)) {
        ibx_pipeline_finish(p, IBX_PIPELINE_END_MS);
        ibx_process_remove(p);
        pthread_mutex_lock(&p->lock); /* who still has it lets go */
        ibx_process_count(-(int)(p->answered - p->replied));
        pthread_mutex_unlock(&p->lock);
        pthread_mutex_destroy(&p->lock);
    }
    ibx_successes_fini(&p->launches);
    ibx_successes_fini(&p->others);
    ibx_successes_fini(&p->forms);
    ibx_replies_clear(&p->replies);
    free(p->backlog);
    free(p);
}

void ibx_pipeline_lock(struct ibx_pipeline *p)
{
    if (p && !is_inherited(p))
        pthread_mutex_lock(&p->lock);
}

void ibx_pipeline_unlock(struct ibx_pipeline *p)
{
    if (p && !is_inherited(p))
        pthread_mutex_unlock(&p->lock);
}

/* ------------------------------------------------------- requests that were answered */

/* Locked. Nothing is outstanding any more. */
static void all_replied(struct ibx_pipeline *p)
{
    p->messages = 0;
    atomic_store(&p->streams, STREAMS_NONE);
    atomic_store(&p->events, false);
    atomic_store(&p->unsent, false);
}

/* Locked. The session has ended: what was not answered by the back end never is. */
static void drop_all(struct ibx_pipeline *p)
{
    const uint64_t lost = p->answered - p->replied;
    atomic_store(&p->ended, true);
    p->backlog_begin = p->backlog_end = 0;
    p->backlog_requests = 0;
    ibx_process_count(-(int)lost);
    atomic_store(&p->replied, p->answered);
    all_replied(p);
}

static void replied(void *context, int exit_code)
{
    struct ibx_pipeline *p = context;
    int none = 0;
    if (atomic_load(&p->ended))
        return;
    if (exit_code && p->replied >= p->mute) { /* registrations tell nobody of errors */
        ibx_log(IBX_LOG_INFO,
                "a CUDA call that was answered with 0 has failed with %d: the next "
                "one that waits returns that",
                exit_code);
        atomic_compare_exchange_strong(&p->failure, &none, exit_code);
        ibx_process_reset(); /* such calls wait again until they succeed */
    }
    atomic_fetch_add(&p->replied, 1);
    ibx_process_count(-1);
    if (p->answered - p->replied == p->backlog_requests)
        p->messages = 0; /* all that were sent */
    if (ibx_pipeline_idle(p))
        all_replied(p);
}

/* Locked. Bytes of whole requests at the beginning of the backlog that fit into one message. */
static size_t next_message(const struct ibx_pipeline *p, unsigned *requests)
{
    const size_t room = ibx_session_room(p->session), left = p->backlog_end - p->backlog_begin;
    const uint8_t *from = p->backlog + p->backlog_begin;
    const struct ibx_call *call;
    size_t n = 0, one;
    *requests = 0;
    if (left <= room) {
        *requests = p->backlog_requests;
        return left;
    }
    while ((one = ibx_call_request(from + n, left - n, &call)) && n + one <= room) {
        n += one;
        ++*requests;
    }
    return n;
}

static void take_from_backlog(struct ibx_pipeline *p, size_t n, unsigned requests)
{
    p->backlog_begin += n;
    p->backlog_requests -= requests;
    if (p->backlog_begin == p->backlog_end)
        p->backlog_begin = p->backlog_end = 0;
}

/* Locked. Whether a message is worth sending beside those that are under way. */
static bool worth_sending(const struct ibx_pipeline *p, bool now)
{
    const size_t left = p->backlog_end - p->backlog_begin;
    return !p->messages || left >= BATCH || ((now || p->eager) && p->messages < EAGER_MESSAGES);
}

/* Locked. Takes what has come; false: the session has ended. */
static bool look(struct ibx_pipeline *p, bool now)
{
    if (!p->messages && !p->refused)
        return ibx_session_live(p->session);
    if (!p->eager) {
        const uint64_t time = ibx_now_ns();
        if (!now && time - p->looked_at < LOOK_EVERY_NS)
            return true;
        p->looked_at = time;
    }
    return ibx_session_look(p->session);
}

void ibx_pipeline_push(struct ibx_pipeline *p, bool now)
{
    if (ibx_pipeline_idle(p))
        return;
    if (!look(p, now)) {
        drop_all(p);
        return;
    }
    while (p->backlog_end > p->backlog_begin && worth_sending(p, now)) {
        unsigned requests;
        const size_t n = next_message(p, &requests);
        p->refused = !n || !ibx_session_send_now(p->session, p->backlog + p->backlog_begin, n);
        if (p->refused)
            break;
        take_from_backlog(p, n, requests);
        p->messages++;
    }
    /* A back end whose replies nobody takes has to stop. */
    atomic_store(&p->unsent, p->backlog_end > p->backlog_begin || p->messages >= EAGER_MESSAGES);
}

/* Locked. Hands the backlog to the session, in front of the request that follows. */
static void gather_all(struct ibx_pipeline *p)
{
    if (ibx_pipeline_idle(p))
        return;
    if (ibx_session_live(p->session)) {
        if (p->backlog_end > p->backlog_begin)
            ibx_session_gather_ahead(p->session, p->backlog + p->backlog_begin,
                                     p->backlog_end - p->backlog_begin);
        take_from_backlog(p, p->backlog_end - p->backlog_begin, p->backlog_requests);
        p->messages++;
        atomic_store(&p->unsent, false);
    }
    if (!ibx_session_live(p->session))
        drop_all(p);
}

/* Locked. Sends the backlog and takes all replies. */
static void finish_all(struct ibx_pipeline *p)
{
    gather_all(p);
    if (ibx_session_live(p->session))
        ibx_session_sync(p->session);
    if (ibx_session_live(p->session))
        ibx_session_take_owed(p->session, true);
    if (!ibx_session_live(p->session))
        drop_all(p);
}

/* Locked. Room for n more bytes. */
static bool backlog_room(struct ibx_pipeline *p, size_t n)
{
    if (p->backlog_room - p->backlog_end >= n)
        return true;
    const size_t used = p->backlog_end - p->backlog_begin;
    if (used + n <= p->backlog_room / 2) {
        memmove(p->backlog, p->backlog + p->backlog_begin, used);
    } else {
        if (used + n > BACKLOG_MAX)
            return false;
        size_t room = p->backlog_room ? 2 * p->backlog_room : 32u << 10;
        uint8_t *more = malloc(room);
        if (!more)
            return false;
        if (used)
            memcpy(more, p->backlog + p->backlog_begin, used);
        free(p->backlog);
        p->backlog = more;
        p->backlog_room = room;
    }
    p->backlog_begin = 0;
    p->backlog_end = used;
    return true;
}

static void note_scope(struct ibx_pipeline *p, const struct ibx_scope *scope)
{
    uint64_t before = atomic_load(&p->streams), stream = scope->all ? STREAMS_MANY : scope->stream;
    if (before == STREAMS_NONE)
        atomic_store(&p->streams, stream);
    else if (before != stream)
        atomic_store(&p->streams, STREAMS_MANY);
    if (scope->events)
        atomic_store(&p->events, true);
}

/* Locked. Whether the request in hand can be taken. */
static bool has_room(struct ibx_pipeline *p)
{
    const bool mutes = p->call->kind == IBX_CALL_REGISTERS;
    if (atomic_load(&p->ended) || !ibx_session_live(p->session) || p->staged_length > p->room)
        return false;
    if (mutes && p->answered != p->replied && p->answered != p->mute)
        return false;
    if (!backlog_room(p, p->staged_length))
        finish_all(p); /* as for a full stream */
    return ibx_session_live(p->session) && backlog_room(p, p->staged_length);
}

/* Answers the request in hand. False: it has to wait, since there is no connection or no memory. */
static bool answer_early(struct ibx_pipeline *p, const struct ibx_scope *scope, bool sure)
{
    ibx_process_work();
    ibx_process_order(p, scope);
    pthread_mutex_lock(&p->lock);
    bool good = has_room(p);
    if (good) {
        memcpy(p->backlog + p->backlog_end, p->staged, p->staged_length);
        p->backlog_end += p->staged_length;
        p->backlog_requests++;
        note_scope(p, scope);
        ibx_session_owe(p->session, replied, p);
        ibx_process_count(1);
        const uint64_t request = atomic_fetch_add(&p->answered, 1) + 1;
        if (!sure)
            atomic_store(&p->unsure, request);
        if (p->call->kind == IBX_CALL_REGISTERS)
            p->mute = request;
        ibx_pipeline_push(p, false);
        good = !atomic_load(&p->ended);
    }
    if (good && atomic_load(&p->unsent) && !ibx_process_send_soon())
        finish_all(p);
    pthread_mutex_unlock(&p->lock);
    ibx_process_work(); /* once more: a query meanwhile may have come before it */
    return good;
}

/* ------------------------------------------------------------ what can be answered */

static const uint8_t *body_of(const struct ibx_pipeline *p, size_t *n)
{
    const uint8_t *nul = memchr(p->staged, 0, p->staged_length);
    const uint8_t *body = nul + 9;
    *n = p->staged_length - (size_t)(body - p->staged);
    return body;
}

/* The scope of the request in hand, of whose body there are n bytes. */
static struct ibx_scope scope_of(const struct ibx_call *call, const uint8_t *body, size_t n)
{
    uint64_t stream = 0;
    bool one = ibx_call_stream(call, body, n, &stream) && stream > STREAM_LEGACY;
    bool none = call->stream_at == IBX_CALL_NO_STREAM;
    return (struct ibx_scope){.any = !none || call->event,
                              .all = !none && !one,
                              .stream = one ? stream : STREAMS_NONE,
                              .events = call->event};
}

static uint32_t word(const uint8_t *at)
{
    struct ibx_reader r = ibx_reader_of(at, 4);
    return ibx_get_u32(&r);
}

/* A launch whose grid every device takes. */
static bool launch_is_plain(const uint8_t *body, size_t n)
{
    struct ibx_reader r = ibx_reader_of(body + LAUNCH_LEAST - 8, n < LAUNCH_LEAST ? 0 : 8);
    if (n < LAUNCH_LEAST || ibx_get_u64(&r) != n - LAUNCH_LEAST)
        return false;
    const uint32_t x = word(body + 8), y = word(body + 12), z = word(body + 16);
    return x && x <= GRID_X_MAX && y && y <= GRID_YZ_MAX && z && z <= GRID_YZ_MAX;
}

/* Of what decides whether a launch succeeds: device, function, block, shared memory. */
static uint64_t launch_hash(const struct ibx_pipeline *p, const uint8_t *body)
{
    uint8_t key[32];
    memcpy(key, body, 8);
    memcpy(key + 8, body + 20, 20);
    memcpy(key + 28, p->device, 4);
    return ibx_request_hash(1, key, sizeof(key));
}

/* And that its stream is one, of this device. */
static uint64_t stream_hash(const struct ibx_pipeline *p, const uint8_t *body)
{
    uint8_t key[12];
    memcpy(key, body + 40, 8);
    memcpy(key + 8, p->device, 4);
    return ibx_request_hash(3, key, sizeof(key));
}

static bool launch_succeeds(const struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    return launch_is_plain(body, n) && ibx_successes_hold(&p->launches, launch_hash(p, body)) &&
           ibx_successes_hold(&p->others, stream_hash(p, body));
}

/* That a call of this kind was answered without output. */
static uint64_t form_hash(const struct ibx_call *call)
{
    return ibx_request_hash(2, &call, sizeof(call));
}

/* Of a call that succeeds again with the same body. The default stream is that of the device. */
static uint64_t repeat_hash(const struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    return ibx_request_hash(form_hash(p->call) ^ word(p->device), body, n);
}

static void forget_device(struct ibx_pipeline *p)
{
    ibx_successes_clear(&p->launches);
    ibx_successes_clear(&p->others);
    ibx_replies_clear(&p->replies);
    memset(p->device, 0xff, sizeof(p->device));
    p->device_known = false;
}

static void forget_old(struct ibx_pipeline *p)
{
    const unsigned resets = ibx_process_resets(), handles = ibx_process_handles();
    if (p->launches_from != resets)
        forget_device(p);
    if (p->others_from != handles)
        ibx_successes_clear(&p->others);
    p->launches_from = resets;
    p->others_from = handles;
}

/* A copy that needs nothing of this process any more once its request was written. */
static bool copy_is_plain(const uint8_t *body, size_t n)
{
    const size_t window = n < IBX_FRAME_WINDOW ? n : IBX_FRAME_WINDOW;
    struct ibx_frame_body bytes = {body, body + n - window, n};
    struct ibx_frame frame;
    return ibx_frame_parse(IBX_FRAME_MEMCPY_ASYNC, &bytes, &frame) && frame.kind != IBX_FRAME_D2H;
}

/* Whether the request may be run later. *sure: it cannot fail by itself. */
static bool may_be_early(struct ibx_pipeline *p, const uint8_t *body, size_t n, bool *sure)
{
    const struct ibx_call *call = p->call;
    const bool all = p->mode == IBX_PIPELINE_ALL;
    *sure = true;
    if (ibx_process_captures() || (call->length && call->length != n))
        return false;
    forget_old(p);
    switch (call->kind) {
    case IBX_CALL_LAUNCH:
        return launch_succeeds(p, body, n);
    case IBX_CALL_REPEATS:
        return ibx_successes_hold(&p->others, repeat_hash(p, body, n));
    case IBX_CALL_REGISTERS:
        return ibx_successes_hold(&p->forms, form_hash(call));
    case IBX_CALL_COPIES:
    case IBX_CALL_ENQUEUES:
        *sure = false;
        return all && ibx_successes_hold(&p->forms, form_hash(call)) &&
               (call->kind == IBX_CALL_ENQUEUES || copy_is_plain(body, n));
    default:
        return false;
    }
}

static void set_answer(struct ibx_pipeline *p, const uint8_t *answer, size_t n)
{
    p->answer = answer;
    p->answer_left = n;
}

/* cudaGetLastError, cudaPeekAtLastError: there is nothing to tell, and nothing that may come. */
static bool nothing_failed(struct ibx_pipeline *p)
{
    if (!p->clean || !ibx_successes_hold(&p->forms, form_hash(p->call)) ||
        atomic_load(&p->failure) || atomic_load(&p->unsure) > atomic_load(&p->replied))
        return false;
    if (ibx_pipeline_idle(p))
        return true;
    pthread_mutex_lock(&p->lock); /* the connection may have ended meanwhile */
    ibx_pipeline_push(p, false);
    pthread_mutex_unlock(&p->lock);
    return !atomic_load(&p->ended) && !atomic_load(&p->failure);
}

/* All that the reply to the request in hand depends on; its length. Front ends send what the
 * application has where the reply is to go. */
static size_t reply_key(const struct ibx_pipeline *p, uint8_t key[sizeof(p->staged)])
{
    size_t body, n = p->staged_length;
    const uint8_t *from = body_of(p, &body);
    memcpy(key, p->staged, n);
    if (p->call->blind)
        memset(key + (from - p->staged), 0, body);
    if (n + sizeof(p->device) > sizeof(p->staged))
        return n; /* none is that long */
    memcpy(key + n, p->device, sizeof(p->device));
    return n + sizeof(p->device);
}

static bool answer_known(struct ibx_pipeline *p)
{
    uint8_t key[sizeof(p->staged)];
    const struct ibx_known_reply *known = ibx_replies_find(&p->replies, key, reply_key(p, key));
    if (known)
        set_answer(p, known->bytes + known->request, known->reply);
    return known;
}

/* A pop as the back end would answer it. */
static bool answer_pop(struct ibx_pipeline *p)
{
    size_t n = ibx_configurations_pop(&p->configurations, p->reply + IBX_REPLY_HEAD);
    struct ibx_writer w = ibx_writer_of(p->reply, IBX_REPLY_HEAD);
    ibx_put_u32(&w, 0);
    ibx_put_u64(&w, 0);
    ibx_put_u64(&w, n);
    set_answer(p, p->reply, IBX_REPLY_HEAD + n);
    return n;
}

static bool answer_push(struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    struct ibx_configurations *all = &p->configurations;
    if (n != IBX_CONFIGURATION_BYTES || !all->push_known || all->form < 0 || all->lost ||
        all->count == IBX_CONFIGURATIONS)
        return false;
    ibx_configurations_push(all, body, false);
    set_answer(p, no_output, sizeof(no_output));
    return true;
}

/* ------------------------------------------------------- streams and events at rest */

static uint64_t *quiet_since(struct ibx_quiet *quiet, uint64_t handle)
{
    for (unsigned i = 0; i < IBX_QUIET; i++) {
        if (quiet->items[i].epoch && quiet->items[i].handle == handle)
            return &quiet->items[i].epoch;
    }
    return NULL;
}

static void note_quiet(struct ibx_quiet *quiet, uint64_t handle, uint64_t epoch)
{
    uint64_t *known = quiet_since(quiet, handle);
    if (known) {
        *known = epoch;
        return;
    }
    quiet->items[quiet->next].handle = handle;
    quiet->items[quiet->next].epoch = epoch;
    quiet->next = (quiet->next + 1) % IBX_QUIET;
}

/* What a query is about: a stream or an event, by its only argument. */
static struct ibx_quiet *quiet_of(struct ibx_pipeline *p)
{
    return p->call->event ? &p->events_quiet : &p->streams_quiet;
}

/* A query, or a wait, that has succeeded before, and nobody has added work since. */
static bool is_quiet(struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    const uint64_t handle = ibx_get_u64(&r);
    const uint64_t *since = n == 8 ? quiet_since(quiet_of(p), handle) : NULL;
    return since && *since == ibx_process_epoch() && !atomic_load(&p->failure) &&
           ibx_pipeline_idle(p) && !ibx_process_captures();
}

/* One has succeeded. A wait for the device says the same of all streams that were known, if there
 * is but one device. */
static void learn_quiet(struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    const uint64_t handle = ibx_get_u64(&r);
    if (p->epoch != ibx_process_epoch())
        return;
    if (p->call->length == 8)
        note_quiet(quiet_of(p), handle, p->epoch);
    for (unsigned i = 0; i < IBX_QUIET && !p->call->length && !ibx_process_devices(); i++) {
        if (p->streams_quiet.items[i].epoch)
            p->streams_quiet.items[i].epoch = p->epoch;
    }
}

/* Requests of this kind may add work, or end a handle. */
static bool adds_work(enum ibx_call_kind kind)
{
    switch (kind) {
    case IBX_CALL_QUERIES:
    case IBX_CALL_ASKS:
    case IBX_CALL_CONSTANT:
    case IBX_CALL_PUSH:
    case IBX_CALL_POP:
    case IBX_CALL_LAST_ERROR:
    case IBX_CALL_PEEK_ERROR:
    case IBX_CALL_GET_DEVICE:
        return false;
    default:
        return true;
    }
}

/* Answers the request in hand without the back end, if that is possible. */
static bool answer_here(struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    set_answer(p, no_output, sizeof(no_output));
    forget_old(p);
    if (atomic_load(&p->ended))
        return false;
    switch (p->call->kind) {
    case IBX_CALL_PUSH:
        return answer_push(p, body, n);
    case IBX_CALL_POP:
        return answer_pop(p);
    case IBX_CALL_LAST_ERROR:
    case IBX_CALL_PEEK_ERROR:
        return nothing_failed(p);
    case IBX_CALL_SET_DEVICE:
        return p->device_known && n == sizeof(p->device) && !memcmp(body, p->device, n) &&
               nothing_failed(p);
    case IBX_CALL_GET_DEVICE:
    case IBX_CALL_CONSTANT:
        return answer_known(p);
    case IBX_CALL_QUERIES:
        return is_quiet(p, body, n);
    default:
        return false;
    }
}

/* ------------------------------------------------------------- requests that wait */

/* What others have learned may be true no more: of a request before and after it is run. What an
 * event is good for is another thing in a capture. */
static void outdates(enum ibx_call_kind kind)
{
    if (kind == IBX_CALL_RESETS)
        ibx_process_reset();
    if (kind == IBX_CALL_DESTROYS || kind == IBX_CALL_BEGIN_CAPTURE || kind == IBX_CALL_END_CAPTURE)
        ibx_process_handle();
}

/* What a request that waits means to others, before it is sent. */
static void before_waiting(struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    const struct ibx_scope scope = scope_of(p->call, body, n);
    if (adds_work(p->call->kind))
        ibx_process_work();
    p->epoch = ibx_process_epoch();
    if (p->call->kind == IBX_CALL_BEGIN_CAPTURE || p->call->kind == IBX_CALL_SHARES)
        ibx_process_capture(true); /* what is shared is so for good */
    outdates(p->call->kind);
    if (p->call->kind == IBX_CALL_PUSH && n == IBX_CONFIGURATION_BYTES)
        ibx_configurations_push(&p->configurations, body, true);
    if (p->call->kind == IBX_CALL_SET_DEVICE) {
        p->device_known = false;
        if (n < 4 || word(body))
            ibx_process_select();
    }
    if (p->call->kind == IBX_CALL_RESETS && !memcmp(p->staged, "cuC", 3)) /* a context */
        ibx_process_select();
    if (p->call->kind == IBX_CALL_OTHER || p->call->kind == IBX_CALL_SHARES ||
        p->call->kind == IBX_CALL_RESETS)
        p->clean = false; /* its handler may call CUDA more than once */
    ibx_process_order(p, &scope);
}

/* Hands what is staged to the session. `body`, n: as much of the body as is there. */
static void begin_waiting(struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    before_waiting(p, body, n);
    ibx_state_move(&p->state, REQUEST_WAITING);
    p->reply_length = 0;
    p->reads = 0;
    pthread_mutex_lock(&p->lock);
    if (ibx_session_live(p->session))
        ibx_session_write(p->session, NULL, 0);
    gather_all(p);
    if (ibx_session_live(p->session))
        ibx_session_gather(p->session, p->staged, p->staged_length);
    pthread_mutex_unlock(&p->lock);
}

/* A request that is too long to be kept, by what there is of it: its name, at least. */
static void begin_long(struct ibx_pipeline *p)
{
    const uint8_t *nul = memchr(p->staged, 0, p->staged_length);
    p->call = ibx_call_find(p->staged, nul ? (size_t)(nul - p->staged) + 1 : 0);
    p->foreign = p->foreign || !nul;
    begin_waiting(p, NULL, 0);
}

/* The reply's first bytes are known: an error of an earlier call is told by one that waits. */
static int told(struct ibx_pipeline *p, int exit_code, bool waits)
{
    if (exit_code) {
        p->clean = false;
        int same = exit_code; /* as of all calls after an error that stays: it is told now */
        if (waits)
            atomic_compare_exchange_strong(&p->failure, &same, 0);
        return exit_code;
    }
    int failure = waits ? atomic_exchange(&p->failure, 0) : 0;
    if (failure) {
        p->clean = false;
        p->last_error = failure;
    }
    return failure;
}

/* What cudaGetLastError returns where the back end says `exit_code`. */
static int last_error(struct ibx_pipeline *p, int exit_code, bool sets_back)
{
    int failure = atomic_exchange(&p->failure, 0);
    int code = exit_code ? exit_code : p->last_error ? p->last_error : failure;
    p->clean = !exit_code && (sets_back || !code);
    p->last_error = sets_back ? 0 : code;
    return code;
}

/* What cudaStreamEndCapture returned; by two of its errors a broken capture ends, too. */
static bool ends_capture(int exit_code)
{
    return !exit_code || exit_code == CAPTURE_INVALIDATED || exit_code == CAPTURE_UNJOINED;
}

/* The reply's first four bytes, which may be changed. */
static void note_exit_code(struct ibx_pipeline *p, uint8_t *bytes)
{
    const enum ibx_call_kind kind = p->call->kind;
    int before = (int)word(bytes), code;
    if (kind == IBX_CALL_LAST_ERROR || kind == IBX_CALL_PEEK_ERROR)
        code = last_error(p, before, kind == IBX_CALL_LAST_ERROR);
    else
        code = told(p, before, kind == IBX_CALL_WAITS || kind == IBX_CALL_QUERIES);
    struct ibx_writer w = ibx_writer_of(bytes, 4);
    ibx_put_u32(&w, (uint32_t)code);
    if (kind == IBX_CALL_SET_DEVICE && before)
        forget_device(p); /* whether it is another one now depends on the error */
    if ((kind == IBX_CALL_BEGIN_CAPTURE && before) ||
        (kind == IBX_CALL_END_CAPTURE && ends_capture(before)))
        ibx_process_capture(false);
}

/* A request has succeeded whose body is still staged; its reply is in `reply`. */
static void learn_success(struct ibx_pipeline *p, uint64_t out)
{
    const struct ibx_call *call = p->call;
    size_t n;
    const uint8_t *body = body_of(p, &n);
    if (call->kind == IBX_CALL_GET_DEVICE || call->kind == IBX_CALL_CONSTANT) {
        uint8_t key[sizeof(p->staged)];
        ibx_replies_add(&p->replies, key, reply_key(p, key), p->reply,
                        IBX_REPLY_HEAD + (size_t)out);
    }
    if (call->kind == IBX_CALL_POP)
        ibx_configurations_popped(&p->configurations, p->reply + IBX_REPLY_HEAD, (size_t)out);
    if (out || (call->length && call->length != n))
        return;
    ibx_successes_add(&p->forms, form_hash(call));
    const bool captures = ibx_process_captures(); /* then a success says little */
    if (call->kind == IBX_CALL_LAUNCH && launch_is_plain(body, n) && !captures) {
        ibx_successes_add(&p->launches, launch_hash(p, body));
        ibx_successes_add(&p->others, stream_hash(p, body));
    }
    if (call->kind == IBX_CALL_REPEATS && !captures)
        ibx_successes_add(&p->others, repeat_hash(p, body, n));
    if (call->kind == IBX_CALL_QUERIES)
        learn_quiet(p, body, n);
    if (call->kind == IBX_CALL_PUSH)
        p->configurations.push_known = true;
    if (call->kind == IBX_CALL_SET_DEVICE) {
        memcpy(p->device, body, sizeof(p->device));
        p->device_known = true;
    }
}

/* A reply is complete. */
static void reply_ends(struct ibx_pipeline *p, uint64_t out)
{
    const struct ibx_call *whole;
    forget_old(p);
    if (p->call->kind == IBX_CALL_POP && word(p->reply))
        p->configurations.lost = true;
    if (p->foreign || word(p->reply) || IBX_REPLY_HEAD + out > IBX_REPLY_MAX ||
        ibx_call_request(p->staged, p->staged_length, &whole) != p->staged_length)
        return;
    learn_success(p, out);
}

/* Its request has been run. What others have learned meanwhile may be from before. */
static void after_waiting(struct ibx_pipeline *p)
{
    if (adds_work(p->call->kind))
        ibx_process_work();
    outdates(p->call->kind);
}

/* n bytes of a reply were read. Front ends of another kind read it in other pieces. */
static void note_reply(struct ibx_pipeline *p, uint8_t *bytes, size_t n)
{
    static const size_t pieces[REPLY_READS] = {4, 8, 8};
    if (p->reads < REPLY_READS && n != pieces[p->reads])
        p->foreign = true;
    if (!p->reads && n >= 4)
        note_exit_code(p, bytes);
    if (!p->reads)
        after_waiting(p);
    p->reads++;
    for (size_t i = 0; i < n && p->reply_length + i < sizeof(p->reply); i++)
        p->reply[p->reply_length + i] = bytes[i];
    p->reply_length += n;
    if (p->foreign || p->reads < REPLY_READS)
        return;
    struct ibx_reader r = ibx_reader_of(p->reply + IBX_REPLY_HEAD - 8, 8);
    const uint64_t out = ibx_get_u64(&r);
    if (p->reply_length == IBX_REPLY_HEAD + out)
        reply_ends(p, out);
}

/* ------------------------------------------------------------------ GVirtuS's calls */

void ibx_pipeline_write(struct ibx_pipeline *p, const void *bytes, size_t n)
{
    if (is_inherited(p)) {
        ibx_session_write(p->session, bytes, n);
        return;
    }
    if (p->state.now == REQUEST_ANSWERED || (p->state.now == REQUEST_WAITING && p->reads)) {
        ibx_state_move(&p->state, REQUEST_STAGING);
        p->staged_length = 0;
    }
    if (p->state.now == REQUEST_STAGING && n <= sizeof(p->staged) - p->staged_length) {
        if (n)
            memcpy(p->staged + p->staged_length, bytes, n);
        p->staged_length += n;
        return;
    }
    if (p->state.now == REQUEST_STAGING)
        begin_long(p);
    pthread_mutex_lock(&p->lock);
    ibx_session_write(p->session, bytes, n);
    pthread_mutex_unlock(&p->lock);
}

/* The request is complete: it is answered here, or sent. */
static void request_ends(struct ibx_pipeline *p)
{
    if (p->foreign || ibx_call_request(p->staged, p->staged_length, &p->call) != p->staged_length) {
        begin_long(p);
        return;
    }
    size_t n;
    bool sure;
    const uint8_t *body = body_of(p, &n);
    bool answered = answer_here(p, body, n);
    if (!answered && may_be_early(p, body, n, &sure)) {
        const struct ibx_scope scope = scope_of(p->call, body, n);
        set_answer(p, no_output, sizeof(no_output));
        answered = answer_early(p, &scope, sure);
    }
    if (answered)
        ibx_state_move(&p->state, REQUEST_ANSWERED);
    else
        begin_waiting(p, body, n);
}

void ibx_pipeline_sync(struct ibx_pipeline *p)
{
    if (is_inherited(p)) {
        ibx_session_sync(p->session);
        return;
    }
    if (p->state.now == REQUEST_STAGING && p->staged_length)
        request_ends(p);
    if (p->state.now != REQUEST_WAITING)
        return;
    pthread_mutex_lock(&p->lock);
    ibx_session_sync(p->session);
    pthread_mutex_unlock(&p->lock);
}

bool ibx_pipeline_read(struct ibx_pipeline *p, void *buffer, size_t n)
{
    if (is_inherited(p))
        return ibx_session_read(p->session, buffer, n) == (ssize_t)n;
    if (p->state.now == REQUEST_ANSWERED) {
        const size_t some = n < p->answer_left ? n : p->answer_left;
        memcpy(buffer, p->answer, some);
        memset((uint8_t *)buffer + some, 0, n - some);
        p->answer += some;
        p->answer_left -= some;
        return true;
    }
    pthread_mutex_lock(&p->lock);
    const bool good = ibx_session_read(p->session, buffer, n) == (ssize_t)n;
    if (!ibx_session_live(p->session))
        drop_all(p);
    pthread_mutex_unlock(&p->lock);
    if (good)
        note_reply(p, buffer, n);
    else
        p->reads++; /* the next write begins a request */
    return good;
}

/* ------------------------------------------------------- other calls on the session */

static struct ibx_scope scope_of_stream(uint64_t stream)
{
    const bool one = stream > STREAM_LEGACY;
    return (struct ibx_scope){
        .any = true, .all = !one, .stream = one ? stream : STREAMS_NONE, .events = true};
}

void ibx_pipeline_enter(struct ibx_pipeline *p, uint64_t stream)
{
    if (!p || is_inherited(p))
        return;
    const struct ibx_scope scope = scope_of_stream(stream);
    ibx_process_work();
    ibx_process_order(p, &scope);
    pthread_mutex_lock(&p->lock);
    gather_all(p);
}

int ibx_pipeline_leave(struct ibx_pipeline *p, int exit_code, bool waits)
{
    if (!p || is_inherited(p))
        return exit_code;
    if (!ibx_session_live(p->session))
        drop_all(p);
    pthread_mutex_unlock(&p->lock);
    ibx_process_work();
    return told(p, exit_code, waits);
}

bool ibx_pipeline_finish(struct ibx_pipeline *p, unsigned ms)
{
    if (!p || is_inherited(p))
        return true;
    for (uint64_t deadline = ibx_deadline_in_ms(ms);
         !ibx_pipeline_idle(p) && ibx_now_ns() < deadline;) {
        pthread_mutex_lock(&p->lock);
        ibx_pipeline_push(p, true);
        pthread_mutex_unlock(&p->lock);
        if (!ibx_pipeline_idle(p))
            nanosleep(&(struct timespec){.tv_nsec = (long)LOOK_EVERY_NS}, NULL);
    }
    return ibx_pipeline_idle(p);
}

void ibx_pipeline_settle(struct ibx_pipeline *p, uint64_t stream)
{
    if (!p || is_inherited(p))
        return;
    const struct ibx_scope scope = scope_of_stream(stream);
    ibx_process_work();
    ibx_process_order(p, &scope);
    pthread_mutex_lock(&p->lock);
    if (!ibx_pipeline_idle(p))
        finish_all(p);
    pthread_mutex_unlock(&p->lock);
}

void ibx_pipeline_elsewhere(void)
{
    ibx_process_work();
}
