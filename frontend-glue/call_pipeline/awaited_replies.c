/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Requests that wait for the back end, and what is learned from their replies. */
#include "frontend-glue/call_pipeline/internal.h"

#include "common/handlers.h"
#include "frontend-glue/session/extensions.h"

#include <string.h>

#define ILLEGAL_STATE 401
#define FORM_OUT_MAX  16u /* most bytes of output with which a call's form is noted */
#define REPLY_READS   3u  /* exit code, seconds, length; and one for the output, if any */

/* Whether the request destroys nodes of graphs. */
static bool ends_nodes(const struct ibx_call *call, const uint8_t *body, size_t n)
{
    const unsigned number = ibx_call_extension(call, body, n);
    return number == IBX_EXT_GRAPH_DESTROY || number == IBX_EXT_NODE_DESTROY ||
           number == IBX_EXT_EXEC_DESTROY;
}

static bool is_end_of_stream(const struct ibx_call *call)
{
    return call->kind == IBX_CALL_DESTROYS && call->stream_at == 0;
}

/* Whether the request destroys a stream, an event or an executable graph, *handle. */
static bool ends_handle(const struct ibx_call *call, const uint8_t *body, size_t n,
                        uint64_t *handle)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    const bool exec = ibx_call_extension(call, body, n) == IBX_EXT_EXEC_DESTROY;
    if (exec)
        ibx_get_u16(&r);
    *handle = ibx_get_u64(&r);
    return exec || call->kind == IBX_CALL_DESTROYS;
}

/* What other threads have learned may be outdated by the request in hand; called before and after
 * it is run. What is known of an event does not hold in a capture. */
static void outdates(const struct ibx_pipeline *p)
{
    static const struct ibx_event_use none;
    const enum ibx_call_kind kind = p->call->kind;
    if (p->effects.ends_nodes)
        ibx_process_outdate(IBX_OUTDATED_NODES);
    if (p->effects.changes_graphs)
        ibx_process_outdate(IBX_OUTDATED_GRAPHS);
    if (kind == IBX_CALL_RESETS) {
        ibx_process_outdate(IBX_OUTDATED_ALL);
        ibx_library_clear();
    }
    if (kind == IBX_CALL_SETS_UP || is_end_of_stream(p->call))
        ibx_process_outdate(IBX_OUTDATED_LIBRARIES);
    if (p->effects.begins_capture || kind == IBX_CALL_END_CAPTURE)
        ibx_process_outdate(IBX_OUTDATED_STREAMS);
    if (p->effects.ends_handle)
        ibx_process_destroy(p->effects.ended_handle);
    if (p->effects.records)
        ibx_events_record(p->effects.records, &none);
}

/* Whether this process shares events with other processes from here on. */
static bool shares(const struct ibx_call *call, const uint8_t *body, size_t n)
{
    const unsigned number = ibx_call_extension(call, body, n);
    return call->kind == IBX_CALL_SHARES || number == IBX_EXT_IPC_EVENT ||
           number == IBX_EXT_IPC_OPEN_EVENT;
}

/* Whether other processes may access this one's memory from here on. */
static bool shares_memory(const struct ibx_call *call, const uint8_t *body, size_t n)
{
    return ibx_call_extension(call, body, n) == IBX_EXT_IPC_MEMORY;
}

/* Notes what a request that waits means for others, before it is sent, and waits for other threads'
 * requests. */
static void before_waiting(struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    const struct ibx_scope scope = ibx_request_scope(p->call, body, n);
    p->effects.leaves = ibx_request_leaves(p->call, body, n);
    p->effects.settles = ibx_request_settles(p->call, body, n);
    if (ibx_call_adds_work(p->call))
        ibx_process_work(p->effects.leaves);
    p->effects.epoch = ibx_process_epoch();
    p->effects.left = ibx_process_left();
    p->effects.breaks = ibx_process_breaks();
    if (shares_memory(p->call, body, n))
        ibx_process_share_memory();
    p->effects.begins_capture = ibx_request_begins_capture(p->call, body, n);
    if (p->effects.begins_capture || shares(p->call, body, n))
        ibx_process_capture(true); /* sharing does not end */
    p->effects.ends_nodes = ends_nodes(p->call, body, n);
    p->effects.changes_graphs = ibx_request_changes_graphs(p, body, n);
    p->effects.ends_handle = ends_handle(p->call, body, n, &p->effects.ended_handle);
    p->effects.records = ibx_call_records(p->call) ? scope.event : 0;
    if (p->call->kind == IBX_CALL_SETS_UP || p->call->kind == IBX_CALL_SELECTS)
        ibx_library_sets_up(body, n);
    if (is_end_of_stream(p->call))
        ibx_library_stream_ends(body, n);
    outdates(p);
    if (p->call->kind == IBX_CALL_PUSH && n == IBX_CONFIGURATION_BYTES)
        ibx_configurations_push(&p->configurations, body, true);
    if (p->call->kind == IBX_CALL_SET_DEVICE) {
        p->device.known = false;
        p->device.current = -1;
        if (n < 4 || ibx_request_word(body))
            ibx_process_select();
    }
    if (p->call->kind == IBX_CALL_RESETS && !memcmp(p->staged, "cuC", 3)) /* a context */
        ibx_process_select();
    if (ibx_call_is_open(p->call->kind) || p->call->kind == IBX_CALL_SHARES ||
        p->call->kind == IBX_CALL_RESETS || p->call->kind == IBX_CALL_EXTENSION)
        p->returned.clean = false; /* its handler may leave an error of another CUDA call */
    ibx_process_order(p, &scope);
    if (ibx_call_ends_event(p->call))
        ibx_events_remove(scope.event);
}

void ibx_awaited_begin(struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    before_waiting(p, body, n);
    ibx_state_move(&p->state, REQUEST_WAITING);
    p->reply_length = 0;
    p->reads = 0;
    pthread_mutex_lock(&p->lock);
    if (ibx_session_live(p->session))
        ibx_session_write(p->session, NULL, 0);
    ibx_backlog_gather(p);
    if (ibx_session_live(p->session)) /* in one message, if it fits */
        ibx_session_gather_whole(p->session, p->staged, p->staged_length);
    pthread_mutex_unlock(&p->lock);
}

void ibx_awaited_begin_long(struct ibx_pipeline *p)
{
    const uint8_t *nul = memchr(p->staged, 0, p->staged_length);
    p->call = ibx_call_find(p->staged, nul ? (size_t)(nul - p->staged) + 1 : 0);
    p->was_long = true;
    p->unseen = false;
    p->foreign = p->foreign || !nul;
    ibx_awaited_begin(p, NULL, 0);
    if (!ibx_handlers_held())
        return;
    /* GVirtuS writes the rest. A signal handler that runs meanwhile may wait for what was
     * gathered. */
    pthread_mutex_lock(&p->lock);
    if (ibx_session_live(p->session))
        ibx_session_send_ahead(p->session);
    pthread_mutex_unlock(&p->lock);
}

/* Takes an error of this thread's earlier calls, or of a thread that has ended, or of lost
 * requests; 0: none. */
static int take_failure(struct ibx_pipeline *p)
{
    const int own = atomic_exchange(&p->failure, 0);
    const int failure = own ? own : ibx_process_take_failure(0);
    const unsigned losses = ibx_process_losses();
    if (failure || p->returned.losses == losses)
        return failure;
    p->returned.losses = losses;
    ibx_process_tell_losses(losses);
    return IBX_CUDA_ERROR_UNKNOWN;
}

int ibx_awaited_returned(struct ibx_pipeline *p, int exit_code, bool waits)
{
    p->returned.errors += exit_code != 0;
    ibx_process_returned(exit_code, waits, p->effects.breaks);
    if (exit_code) {
        p->returned.clean = false;
        int same = exit_code; /* a sticky error, which all calls return: it is told by this one */
        if (waits) {
            if (atomic_compare_exchange_strong(&p->failure, &same, 0))
                p->returned.late = true;
            ibx_process_take_failure(exit_code);
        }
        return exit_code;
    }
    const int failure = waits ? take_failure(p) : 0;
    if (failure) {
        ibx_process_returned(failure, waits, p->effects.breaks);
        p->returned.clean = false;
        p->returned.errors++;
        p->returned.last_error = failure;
        p->returned.late = true;
        ibx_pipeline_forget(p); /* lost calls reset nothing, and replies are known by device */
    }
    return failure;
}

/* What cudaGetLastError returns if the back end returns `exit_code`. */
static int last_error(struct ibx_pipeline *p, int exit_code, bool sets_back)
{
    int failure = atomic_exchange(&p->failure, 0);
    const int launch = atomic_exchange(&p->launch_failure, 0); /* mostly known there, too */
    if (!failure)
        failure = launch;
    int code = exit_code ? exit_code : p->returned.last_error ? p->returned.last_error : failure;
    p->returned.clean = !exit_code && (sets_back || !code);
    p->returned.last_error = sets_back ? 0 : code;
    p->returned.late = p->returned.late && !sets_back;
    return code;
}

static bool is_reset(const struct ibx_pipeline *p)
{
    static const char reset[] = "cudaDeviceReset";
    return p->call->kind == IBX_CALL_RESETS && !memcmp(p->staged, reset, sizeof(reset));
}

/* A capture also ends with its stream, with its thread, and with a reset of the device. With
 * several devices it is not known of which one a stream is. */
static void note_captures(const struct ibx_pipeline *p, int exit_code)
{
    size_t n;
    const bool ends = p->call->kind == IBX_CALL_END_CAPTURE, begins = p->effects.begins_capture;
    const bool destroys = is_end_of_stream(p->call);
    if (!exit_code && is_reset(p) && !ibx_process_devices())
        ibx_process_captured_reset();
    if (!ends && !begins && !destroys)
        return;
    const uint8_t *body = ibx_request_body(p, &n);
    struct ibx_reader r = ibx_reader_of(body, n);
    if (p->call->kind == IBX_CALL_EXTENSION)
        ibx_get_u16(&r); /* its number */
    const uint64_t stream = ibx_get_u64(&r);
    if (begins && exit_code)
        ibx_process_capture(false);
    else if (begins)
        ibx_process_captured(stream);
    else if (ends && ibx_call_ends_capture(exit_code)) {
        ibx_process_captured_ends(stream);
        ibx_process_capture(false);
    } else if (((ends && exit_code == ILLEGAL_STATE) || (destroys && !exit_code)) &&
               ibx_process_captured_ends(stream))
        ibx_process_capture(false);
}

/* Whether the call returns errors of earlier calls: it waits for the device, or resets it. */
static bool tells(const struct ibx_pipeline *p)
{
    const enum ibx_call_kind kind = p->call->kind;
    return kind == IBX_CALL_WAITS || kind == IBX_CALL_QUERIES || kind == IBX_CALL_FREES ||
           is_reset(p);
}

/* Notes the exit code, in the reply's first four bytes, and may change it. */
static void note_exit_code(struct ibx_pipeline *p, uint8_t *bytes)
{
    const enum ibx_call_kind kind = p->call->kind;
    int before = (int)ibx_request_word(bytes), code;
    if (kind == IBX_CALL_LAST_ERROR || kind == IBX_CALL_PEEK_ERROR)
        code = last_error(p, before, kind == IBX_CALL_LAST_ERROR);
    else
        code = ibx_awaited_returned(p, before, tells(p));
    struct ibx_writer w = ibx_writer_of(bytes, 4);
    ibx_put_u32(&w, (uint32_t)code);
    if (kind == IBX_CALL_SET_DEVICE && before)
        ibx_pipeline_forget(p); /* which device is selected now depends on the error */
    note_captures(p, before);
}

/* Notes what cudaGetDevice has returned: the number, which may be preceded by its length. */
static void learn_device(struct ibx_pipeline *p, const uint8_t *out, size_t n)
{
    struct ibx_reader r = ibx_reader_of(out, n);
    if (n == 4 || (n == 12 && ibx_get_u64(&r) == 4))
        p->device.current = (int32_t)ibx_get_u32(&r);
}

/* Notes a stream or an event that was made; the handle may be preceded by its length. */
static void learn_handle(struct ibx_pipeline *p, size_t out)
{
    struct ibx_reader r = ibx_reader_of(p->reply + IBX_REPLY_HEAD, out);
    const uint64_t length = out == 16 ? ibx_get_u64(&r) : 8, made = ibx_get_u64(&r);
    const char *name = p->call->name;
    if ((out != 8 && out != 16) || length != 8 || !made || ibx_process_captures())
        return;
    if (!strncmp(name, "cudaEventCreate", 15)) {
        ibx_events_add(made);
        ibx_successes_add(&p->others, ibx_event_key(p, made));
    }
    if (!strncmp(name, "cudaStreamCreate", 16))
        ibx_successes_add(&p->others, ibx_stream_key(p, made));
}

static void learn_reply(struct ibx_pipeline *p, size_t out)
{
    uint8_t key[sizeof(p->staged)];
    ibx_replies_add(&p->replies, key, ibx_reply_key(p, key), p->reply, IBX_REPLY_HEAD + out);
    if (p->call->kind == IBX_CALL_GET_DEVICE)
        learn_device(p, p->reply + IBX_REPLY_HEAD, out);
}

static void learn_allocation(const struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    struct ibx_reader r = ibx_reader_of(p->reply + IBX_REPLY_HEAD, 8);
    struct ibx_reader size = ibx_reader_of(body, n);
    const uint64_t made = ibx_get_u64(&r);
    if (made) /* NULL is returned for 0 bytes */
        ibx_allocations_add(made, ibx_get_u64(&size));
}

/* Learns from a success without output. */
static void learn_plain(struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    const struct ibx_call *call = p->call;
    p->plain_known = true;
    if (call->kind == IBX_CALL_SELECTS)
        ibx_library_selected(p, body, n);
    if (ibx_extension_is(call->name))
        ibx_successes_add(&p->forms, ibx_form_key(call, body, n));
    const bool captures = ibx_process_captures(); /* in a capture, a success says little */
    struct ibx_queued_launch launch;
    if (!captures && ibx_request_queued_launch(call, body, n, &launch) && launch.plain) {
        ibx_successes_add(&p->launches, ibx_queued_launch_key(p, &launch));
        ibx_successes_add(&p->others, ibx_launch_stream_key(p, launch.body));
    }
    if (call->kind == IBX_CALL_LAUNCH && ibx_launch_is_plain(body, n) && !captures) {
        ibx_successes_add(&p->launches, ibx_launch_key(p, body));
        ibx_successes_add(&p->others, ibx_launch_stream_key(p, body));
    }
    if (call->kind == IBX_CALL_REPEATS && !captures)
        ibx_successes_add(&p->others, ibx_request_key(p, body, n));
    if (ibx_request_sets_node(call, body, n) && !captures)
        ibx_successes_add(&p->others, ibx_node_key(p, body, n));
    /* cudaFree of other memory than cudaMalloc's (NULL, memory of a pool) does not wait for
     * work. */
    if (call->kind == IBX_CALL_QUERIES || (call->kind == IBX_CALL_FREES && p->effects.frees))
        ibx_idle_learn(p, body, n);
    if (call->kind == IBX_CALL_PUSH)
        p->configurations.push_known = true;
    if (call->kind == IBX_CALL_SET_DEVICE)
        ibx_pipeline_selects(p, body, n);
}

/* In a capture, more may come into the graph. */
static void learn_refresh(struct ibx_pipeline *p, const uint8_t *body, size_t out)
{
    if (out == IBX_EXT_REFRESHED && !ibx_process_captures() &&
        !memcmp(p->reply + IBX_REPLY_HEAD, ibx_refresh_answer + IBX_REPLY_HEAD, out))
        ibx_successes_add(&p->others, ibx_refresh_key(p, body));
}

/* Learns from a request that has succeeded. Its body is still staged, its reply is in p->reply. */
static void learn_success(struct ibx_pipeline *p, size_t out)
{
    const struct ibx_call *call = p->call;
    size_t n;
    const uint8_t *body = ibx_request_body(p, &n);
    if (call->kind == IBX_CALL_GET_DEVICE || call->kind == IBX_CALL_CONSTANT)
        learn_reply(p, out);
    if (call->kind == IBX_CALL_POP)
        ibx_configurations_popped(&p->configurations, p->reply + IBX_REPLY_HEAD, out);
    if (call->kind == IBX_CALL_LIBRARY)
        ibx_library_learn(p, body, n, out);
    if (call->kind == IBX_CALL_SETS_UP)
        ibx_library_made(p->reply + IBX_REPLY_HEAD, out);
    if (call->length && call->length != n)
        return;
    if (ibx_request_refreshes(call, body, n))
        learn_refresh(p, body, out);
    if (call->kind == IBX_CALL_ALLOCATES && out == 8)
        learn_allocation(p, body, n);
    if (call->kind == IBX_CALL_ASKS)
        learn_handle(p, out);
    if (out <= FORM_OUT_MAX)
        ibx_successes_add(&p->forms, ibx_call_key(call, out));
    if (!out)
        learn_plain(p, body, n);
}

/* A reply is complete. */
static void reply_ends(struct ibx_pipeline *p, uint64_t out)
{
    const struct ibx_call *whole;
    ibx_pipeline_forget_old(p);
    if (p->call->kind == IBX_CALL_POP && ibx_request_word(p->reply))
        p->configurations.lost = true;
    if (p->foreign || ibx_request_word(p->reply) || IBX_REPLY_HEAD + out > IBX_REPLY_MAX ||
        ibx_call_request(p->staged, p->staged_length, &whole) != p->staged_length)
        return;
    learn_success(p, (size_t)out);
}

/* The request has been run. What other threads have learned meanwhile may be from before that. */
static void after_waiting(struct ibx_pipeline *p)
{
    if (ibx_call_adds_work(p->call))
        ibx_process_work(p->effects.leaves);
    outdates(p);
}

static void note_settled(const struct ibx_effects *e)
{
    if (e->settles == IBX_SETTLES_ALL)
        ibx_process_all_settled(e->left);
    else if (e->settles == IBX_SETTLES_ORDERED)
        ibx_process_settled(e->left);
    else if (e->settles == IBX_SETTLES_LEGACY)
        ibx_process_legacy_settled(e->left.in_legacy);
}

void ibx_awaited_note_reply(struct ibx_pipeline *p, uint8_t *bytes, size_t n)
{
    static const size_t pieces[REPLY_READS] = {4, 8, 8};
    if (p->reads < REPLY_READS && n != pieces[p->reads])
        p->foreign = true;
    if (!p->reads && n >= 4)
        note_exit_code(p, bytes);
    if (!p->reads && n >= 4 && !ibx_request_word(bytes))
        note_settled(&p->effects);
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
    if (p->reply_length != IBX_REPLY_HEAD + out)
        return;
    reply_ends(p, out);
    if (!p->was_long) /* the session can drop what it has kept of a long request */
        return;
    p->was_long = false;
    pthread_mutex_lock(&p->lock);
    ibx_session_all_answered(p->session);
    pthread_mutex_unlock(&p->lock);
}
