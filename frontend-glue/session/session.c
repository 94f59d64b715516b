/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The beginning and the end of a session, its hooks and its copy threads. */
#include "frontend-glue/session/client_process.h"
#include "frontend-glue/session/session_internal.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINES_A_SECOND 10u   /* warnings of a server */
#define ABANDON_MS     5000u /* for copies under way at the end; ibx_close() is final */
#define LACK_MS        100   /* until a server retries what failed for a lack of something */
#define THREADS_LEFT   4u    /* that are left for a connection, and for others */

static const struct ibx_state session_states[] = {
    [SESSION_NEW] = {"new", IBX_TO(SESSION_LISTENING) | IBX_TO(SESSION_LIVE) | IBX_TO(SESSION_DEAD),
                     IBX_STATE_INITIAL},
    [SESSION_LISTENING] = {"listening", IBX_TO(SESSION_DEAD), 0},
    [SESSION_ACCEPTED] = {"accepted", IBX_TO(SESSION_LIVE) | IBX_TO(SESSION_DEAD),
                          IBX_STATE_INITIAL},
    [SESSION_LIVE] = {"live", IBX_TO(SESSION_DEAD), 0},
    [SESSION_DEAD] = {"dead", 0, IBX_STATE_FINAL}};
static const struct ibx_state_table session_table = IBX_STATE_TABLE("session", session_states);

/* ------------------------------------------------------------------- beginning */

static const struct ibx_session_hooks no_hooks;

int ibx_session_create(const char *uri, const struct ibx_options *options,
                       struct ibx_session **session, struct ibx_error *err)
{
    struct ibx_uri parsed;
    int rc = ibx_uri_parse(uri, &parsed, err);
    if (rc)
        return rc;
    struct ibx_session *s = calloc(1, sizeof(*s));
    if (s)
        s->uri = strdup(uri);
    if (!s || !s->uri) {
        free(s);
        return ibx_error_set(err, -ENOMEM, "no memory for a session");
    }
    s->options = *options;
    s->payloads_tail = &s->payloads;
    s->hooks = &no_hooks;
    ibx_link_init(s);
    rc = ibx_uri_options(&parsed, &s->options, err);
    if (!rc)
        rc = ibx_state_begin(&s->state, &session_table, SESSION_NEW);
    if (rc) {
        free(s->uri);
        free(s);
        return rc;
    }
    *session = s;
    return 0;
}

/* Copies the settings of threads and hooks from `other`. */
static int inherit(const struct ibx_session *other, struct ibx_session *heir, struct ibx_error *err)
{
    heir->thread_count = other->thread_count;
    heir->link.seconds = other->keep_seconds;
    heir->keep_seconds = other->keep_seconds;
    return other->hooks->inherit ? other->hooks->inherit(other->context, heir, err) : 0;
}

int ibx_session_create_like(const struct ibx_session *other, struct ibx_session **session,
                            struct ibx_error *err)
{
    struct ibx_session *s;
    int rc = ibx_session_create(other->uri, &other->options, &s, err);
    if (rc)
        return rc;
    rc = inherit(other, s, err);
    if (rc)
        ibx_session_destroy(s);
    else
        *session = s;
    return rc;
}

void ibx_session_lend(struct ibx_session *s, const struct ibx_message_memory *memory)
{
    s->options.long_messages = memory;
}

int ibx_session_serve(struct ibx_session *s, struct ibx_error *err)
{
    if (s->state.now != SESSION_NEW)
        return ibx_error_set(err, -EINVAL, "the session at %s is in use already", s->uri);
    struct ibx_options options = s->options;
    if (s->keep_seconds)
        s->link.registry = ibx_session_registry_create(s->processes.each != IBX_PROCESSES_ONE);
    if (s->link.registry) {
        ibx_session_registry_check(s->link.registry, &s->claim_check);
        options.claim_check = &s->claim_check;
    }
    if (s->processes.each != IBX_PROCESSES_ONE)
        options.admission = s->admission;
    int rc = ibx_listen(s->uri, &options, &s->listener, err);
    ibx_log_bound(LINES_A_SECOND);
    return rc ? rc : ibx_state_move(&s->state, SESSION_LISTENING);
}

const char *ibx_session_uri(const struct ibx_session *s)
{
    return s->listener ? ibx_listener_uri(s->listener) : s->uri;
}

/* Allocates what a live session needs besides its connection. */
static int come_alive(struct ibx_session *s)
{
    s->caps = ibx_conn_caps(s->conn);
    s->path = *ibx_conn_path(s->conn);
    s->out.size = s->out.most = s->caps->message_max;
    s->out.bytes = malloc(s->out.size);
    if (!s->out.bytes || ibx_messages_init(s))
        return ibx_session_fail(s, -ENOMEM, "no memory for a session with %s", s->path.peer);
    return ibx_state_move(&s->state, SESSION_LIVE);
}

int ibx_session_adopt(struct ibx_session *s, struct ibx_conn *conn)
{
    s->server = true;
    s->conn = conn;
    return ibx_state_begin(&s->state, &session_table, SESSION_ACCEPTED);
}

/* For a process that serves some of the clients: asks to be let go when nobody needs it any more.
 * Returns after how many milliseconds to look again; -1: when the event is readable. */
static int look(const struct ibx_session *listening)
{
    return ibx_client_process_look(listening->hooks->anybody,
                                   ibx_listener_taken(listening->listener));
}

/* Whether the lack may pass: of memory, or of descriptors. poll(2) accepts no more than the limit
 * on open files, which an operator may have lowered (prlimit(1)). */
static bool is_lack(int code)
{
    return code == EINVAL || code == ENOMEM;
}

/* A lack must not end the server: it is logged, and accepting is tried again. */
static int accept_connection(struct ibx_session *listening, int cancel, struct ibx_conn **conn,
                             struct ibx_error *err)
{
    for (int again_ms = -1;;) {
        struct pollfd wait[] = {{.fd = ibx_listener_fd(listening->listener), .events = POLLIN},
                                {.fd = ibx_client_process_event(), .events = POLLIN}};
        ibx_thread_release_cancel(cancel);
        const int n = poll(wait, 2, again_ms), failed = errno;
        (void)ibx_thread_hold_cancel();
        if (n == 0 || (n > 0 && wait[1].revents))
            again_ms = look(listening);
        if (n > 0 && wait[0].revents && listening->hooks->hold_back)
            listening->hooks->hold_back();
        if (n < 0 && is_lack(failed)) {
            ibx_log(IBX_LOG_ERROR, "waiting at %s: %s%s", listening->uri, strerror(failed),
                    failed == EINVAL ? IBX_ERROR_MORE_FILES : "");
            poll(NULL, 0, LACK_MS);
        } else if (n < 0 && failed != EINTR) {
            return ibx_error_set(err, -failed, "waiting at %s: %s", listening->uri,
                                 strerror(failed));
        }
        struct ibx_error why = {0};
        int rc = ibx_accept(listening->listener, conn, &why);
        if (rc == -ENOTCONN) /* the listening process has ended, or lets this one go */
            _exit(EXIT_SUCCESS);
        if (!rc && !ibx_conn_claimed(*conn))
            return 0;
        if (rc != -EAGAIN) /* a request to be let go that was made before this connection is void */
            ibx_client_process_look_again();
        if (!rc) { /* it continues a session */
            ibx_session_registry_offer(listening->link.registry, *conn);
            continue;
        }
        if (rc != -EAGAIN) {
            ibx_log(IBX_LOG_ERROR, "%s", why.message);
            poll(NULL, 0, LACK_MS);
        }
    }
}

/* GVirtuS starts a thread for the session, and the whole process ends if that fails: because the
 * user, or the control group, has as many processes as it may. Before it does, other threads of
 * this process may begin, so that there has to be room for more than one. */
static int look_for_thread(const struct ibx_conn *conn, struct ibx_error *err)
{
    const int rc = ibx_thread_check(THREADS_LEFT);
    return rc ? ibx_error_set_task(err, rc, "%s is turned away: there is no thread for it",
                                   ibx_conn_path(conn)->peer)
              : 0;
}

/* Makes a session of a connection, or closes it. */
static int welcome(struct ibx_session *listening, struct ibx_conn *conn,
                   struct ibx_session **session, struct ibx_error *err)
{
    struct ibx_session *s;
    int rc = ibx_session_create(listening->uri, &listening->options, &s, err);
    if (rc) {
        ibx_close(conn);
        return rc;
    }
    rc = ibx_session_adopt(s, conn);
    s->counted = ibx_client_process();
    if (s->counted)
        ibx_client_process_session_begins();
    s->link.registry = ibx_session_registry_hold(listening->link.registry);
    if (!rc)
        rc = inherit(listening, s, err);
    if (!rc && s->hooks->admit)
        rc = s->hooks->admit(s->context, ibx_conn_path(conn), err);
    if (!rc) /* last, since these may begin threads */
        rc = look_for_thread(conn, err);
    if (rc)
        ibx_session_destroy(s);
    else
        *session = s;
    return rc;
}

/* A client that cannot be served does not end the server. A thread may be cancelled in its wait
 * only; anywhere else it would leave connections and a lock behind. */
int ibx_session_accept(struct ibx_session *listening, struct ibx_session **session,
                       struct ibx_error *err)
{
    if (listening->state.now != SESSION_LISTENING)
        return ibx_error_set(err, -EINVAL, "no listener is at %s", listening->uri);
    const int cancel = ibx_thread_hold_cancel();
    int rc;
    for (;;) {
        struct ibx_conn *conn;
        struct ibx_error why = {0};
        rc = accept_connection(listening, cancel, &conn, err);
        if (rc || !welcome(listening, conn, session, &why))
            break;
        ibx_log(IBX_LOG_WARN, "%s", why.message);
        ibx_client_process_look_again();
    }
    ibx_thread_release_cancel(cancel);
    return rc;
}

int ibx_session_connect(struct ibx_session *s, struct ibx_error *err)
{
    if (s->state.now != SESSION_NEW)
        return ibx_error_set(err, -EINVAL, "the session at %s is in use already", s->uri);
    struct ibx_options options = s->options;
    options.keys = &s->link.keys;
    int rc = ibx_connect(s->uri, &options, &s->conn, err);
    if (rc)
        return rc;
    rc = come_alive(s);
    if (rc)
        return ibx_error_set(err, rc, "%s", s->reason);
    s->link.one_host = s->path.hosts == 1;
    ibx_link_agree(s);
    return 0;
}

int ibx_session_establish(struct ibx_session *s)
{
    struct ibx_error err = {0};
    int rc = ibx_establish(s->conn, &err);
    if (rc)
        return ibx_session_fail(s, rc, "%s", err.message);
    rc = come_alive(s);
    return rc || !s->hooks->began ? rc : s->hooks->began(s->context);
}

/* ------------------------------------------------------------------------- end */

/* Registrations may be released only when no copy is under way. */
static void abandon_ops(struct ibx_session *s)
{
    struct ibx_event events[8];
    uint64_t deadline = ibx_deadline_in_ms(ABANDON_MS);
    ibx_abort(s->conn);
    while (s->ops.posted && ibx_now_ns() < deadline) {
        int n = ibx_poll(s->conn, events, 8);
        if (n < 0)
            return;
        for (int i = 0; i < n; i++)
            s->ops.posted -= events[i].type == IBX_EVENT_READ || events[i].type == IBX_EVENT_WRITE;
        if (!n)
            ibx_wait(s->conn, 100);
    }
}

static void release_all(struct ibx_session *s)
{
    ibx_held_replies_end(s);
    if (s->state.now != SESSION_DEAD)
        ibx_state_move(&s->state, SESSION_DEAD);
    /* Everything else is the parent's, and in use there. */
    if (s->conn && !ibx_conn_inherited(s->conn)) {
        ibx_link_say_bye(s);
        ibx_session_registry_remove(s);
        abandon_ops(s);
        if (s->hooks->ending)
            s->hooks->ending(s->context);
        ibx_rendezvous_fini(s);
    }
    ibx_close(s->conn);
    ibx_close(s->in.conn);
    s->in.conn = NULL;
    ibx_link_fini(s);
    if (s->hooks->ended)
        s->hooks->ended(s->context);
    ibx_session_drop_threads(s);
    s->conn = NULL;
    s->caps = NULL;
    free(s->out.bytes);
    free(s->in.gathered);
    free(s->ops.items);
    s->ops.items = NULL;
    s->ops.size = s->ops.pending = s->ops.posted = 0;
    s->out.bytes = s->in.gathered = NULL;
    s->in.gathered_size = 0;
    ibx_messages_fini(s);
    s->in.message.data = NULL;
    s->delayed = false;
    s->owed.count = 0;
    s->in.segment = s->in.behind = (struct segment){.kind = SEGMENT_NONE};
}

int ibx_session_fail(struct ibx_session *s, int code, const char *format, ...)
{
    va_list args;
    if (s->state.now == SESSION_DEAD) /* the first reason is kept */
        return code;
    va_start(args, format);
    vsnprintf(s->reason, sizeof(s->reason), format, args);
    va_end(args);
    ibx_log(IBX_LOG_WARN, "%s", s->reason);
    release_all(s);
    return code;
}

int ibx_session_leave(struct ibx_session *s, const char *why)
{
    snprintf(s->reason, sizeof(s->reason), "%s: %s", s->path.peer, why);
    ibx_log(IBX_LOG_INFO, "%s", s->reason);
    release_all(s);
    return -ENOTCONN;
}

void ibx_session_close(struct ibx_session *s)
{
    ibx_listener_close(s->listener);
    s->listener = NULL;
    release_all(s);
}

void ibx_session_destroy(struct ibx_session *s)
{
    if (!s)
        return;
    ibx_session_close(s);
    ibx_session_set_hooks(s, &no_hooks, NULL);
    ibx_session_registry_release(s->link.registry);
    if (s->counted)
        ibx_client_process_session_ended();
    free(s->uri);
    free(s);
}

void ibx_session_abandon(struct ibx_session *s)
{
    s->abandoned = true;
}

bool ibx_session_abandoned(const struct ibx_session *s)
{
    return s->abandoned;
}

/* ------------------------------------------------------------- hooks, copy threads */

void ibx_session_set_hooks(struct ibx_session *s, const struct ibx_session_hooks *hooks,
                           void *context)
{
    if (s->hooks->destroy)
        s->hooks->destroy(s->context);
    s->hooks = hooks;
    s->context = context;
}

void *ibx_session_context(const struct ibx_session *s, const struct ibx_session_hooks *hooks)
{
    return s->hooks == hooks ? s->context : NULL;
}

void ibx_session_keep(struct ibx_session *s, unsigned seconds)
{
    s->keep_seconds = s->link.seconds = seconds;
    s->options.follow_address = seconds;
}

void ibx_session_set_processes(struct ibx_session *s, const struct ibx_processes *processes,
                               const struct ibx_admission *admission)
{
    s->processes = *processes;
    s->admission = admission;
}

struct ibx_session_listening ibx_session_listening(const struct ibx_session *s)
{
    return (struct ibx_session_listening){.listener = s->listener,
                                          .records = ibx_session_registry_records(s->link.registry),
                                          .hooks = s->hooks,
                                          .context = s->context,
                                          .processes = &s->processes};
}

unsigned ibx_session_resumed(const struct ibx_session *s)
{
    return s->link.resumed;
}

void ibx_session_set_threads(struct ibx_session *s, unsigned threads)
{
    if (s->thread_count != threads)
        ibx_session_drop_threads(s);
    s->thread_count = threads;
}

unsigned ibx_session_thread_count(const struct ibx_session *s)
{
    return s->thread_count ? s->thread_count : ibx_copy_threads_count();
}

struct ibx_copy_threads *ibx_session_threads(struct ibx_session *s)
{
    struct ibx_error err = {0};
    if (s->threads || s->no_threads)
        return s->threads;
    unsigned count = ibx_session_thread_count(s);
    if (count > 1 && ibx_copy_threads_create(count, &s->threads, &err))
        ibx_log(IBX_LOG_WARN, "copies use one thread: %s", err.message);
    s->no_threads = !s->threads;
    return s->threads;
}

void ibx_session_widen_threads(struct ibx_session *s, size_t slice)
{
    if (s->threads)
        ibx_copy_threads_widen(
            s->threads, s->thread_count ? s->thread_count : ibx_copy_threads_wide_count(), slice);
}

void ibx_session_drop_threads(struct ibx_session *s)
{
    ibx_copy_threads_destroy(s->threads);
    s->threads = NULL;
    s->no_threads = false;
}

/* -------------------------------------------------------------------- questions */

const struct ibx_path *ibx_session_path(const struct ibx_session *s)
{
    return s->path.provider[0] ? &s->path : NULL;
}

const char *ibx_session_reason(const struct ibx_session *s)
{
    return s->reason;
}

bool ibx_session_in_frame(const struct ibx_session *s)
{
    return s->in_frame;
}

bool ibx_session_live(const struct ibx_session *s)
{
    return s->state.now == SESSION_LIVE;
}

bool ibx_session_serving(const struct ibx_session *s)
{
    return s->server && ibx_session_live(s);
}

void ibx_session_all_answered(struct ibx_session *s)
{
    if (ibx_session_live(s) && !s->owed.count && !s->out.length)
        ibx_kept_forget(&s->link.kept);
}

bool ibx_session_idle(const struct ibx_session *s)
{
    return ibx_session_live(s) && (!s->out.length || s->out.ahead);
}

struct ibx_conn *ibx_session_conn(const struct ibx_session *s)
{
    return s->conn;
}

const struct ibx_caps *ibx_session_caps(const struct ibx_session *s)
{
    return s->caps;
}
