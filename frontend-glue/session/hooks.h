/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What client_copies/ and device_copies/ add to a session, and what a session offers them beyond
 * session.h. The session calls the hooks and knows nothing else of the two; they call the functions
 * below and never each other.
 *
 * Only the session's thread calls these. "As ibx_session_fail()": 0, or a negative errno after
 * which the session has ended: its connection and registrations are gone, and the hooks `ending`
 * and `ended` have run.
 */
#ifndef IBX_FRONTEND_GLUE_SESSION_HOOKS_H
#define IBX_FRONTEND_GLUE_SESSION_HOOKS_H

#include "frontend-glue/session/calls.h"
#include "frontend-glue/session/frames.h"
#include "frontend-glue/session/session.h"
#include "gpudirect/gpudirect.h"

#define IBX_CUDA_ERROR_UNKNOWN 999 /* what every call returns once the back end is gone */

/* Server: a request at the beginning of the stream, still in it. */
struct ibx_request {
    enum ibx_frame_call call;
    const struct ibx_call *called;   /* of another call, whose body is all there; otherwise NULL */
    uint64_t length;                 /* of its body, bytes */
    const uint8_t *body;             /* NULL: to be READ from `remote`, or its payload is */
    struct ibx_remote remote;        /* the body, or its payload if there is a tail */
    const uint8_t *head, *tail;      /* of the body, in front of that payload and behind it */
    size_t head_length, tail_length; /* both 0: `remote` is the whole body */
    struct ibx_remote reply_to; /* where the client wants the reply's payload; length 0: unknown */
    bool settle;                /* the answer has to wait until the copy has ended */
    /* ibx_session_consume()'s: where the stream goes on */
    size_t inline_length; /* bytes of it in the current segment, with name and length */
    struct ibx_reader after;
    const uint8_t *rest; /* of the segment that has the tail */
    size_t rest_length;
};

enum ibx_request_outcome {
    IBX_REQUEST_PASS, /* it stays in the stream, and GVirtuS runs it */
    IBX_REQUEST_DONE, /* it was run */
};

/* Any of them may be NULL. */
struct ibx_session_hooks {
    /* Extends `heir`, accepted by this session or created like it, in the same way. 0 or a negative
     * errno. */
    int (*inherit)(void *context, struct ibx_session *heir, struct ibx_error *err);

    /* Server: a client comes to the listening session. Returns when it may. */
    void (*hold_back)(void);
    /* Server with several processes for its clients, at most so many at a time. In the one that
     * listens, before there is any: false: no memory; and before such a process gets its first
     * client: the name of the key, which all of its clients have, and their user (NULL: not
     * known). In such a process, which it is; and again in the one that listens, once that has
     * ended. */
    bool (*processes)(unsigned most);
    void (*process_serves)(unsigned process, const char *name, const unsigned *user);
    void (*process_begins)(unsigned process);
    void (*process_ended)(unsigned process);
    /* Server, in such a process before there is a client: begins what takes long. */
    void (*make_ready)(void *context);
    /* Server: whether there is a client without a session that may come again. */
    bool (*anybody)(void);
    /* Server: the client of this session has proven itself, whose name `path` has. An error: its
     * connection is closed, and no session comes of it. */
    int (*admit)(void *context, const struct ibx_path *path, struct ibx_error *err);
    /* Server: the session is established; as ibx_session_fail(). */
    int (*began)(void *context);
    /* Server: whether GVirtuS is about to read a request that may be one for `request`. */
    bool (*wants_request)(void *context);
    /* Server: a request of a known name (frames.h, calls.h) begins. An outcome (DONE: consumed and
     * answered), or as ibx_session_fail(). */
    int (*request)(void *context, const struct ibx_request *request);
    /* Server: sends the reply that ibx_session_delay() has delayed. As ibx_session_fail(). */
    int (*answer)(void *context);
    /* Server: the client is about to copy from and to that memory of its own. As
     * ibx_session_fail(). */
    int (*prepare)(void *context, const struct ibx_remote *remote);
    /* Server: WRITEs the next n bytes of a payload that was written as NULL to the client's memory.
     * As ibx_session_fail(). */
    int (*deliver)(void *context, const struct ibx_remote *remote, size_t n);
    /* Server: what GVirtuS gets, which may be changed; as ibx_session_fail(). */
    int (*note_read)(void *context, void *bytes, size_t n);
    /* Server: what GVirtuS is about to write, and to send. True: zeros are written instead. */
    bool (*note_write)(void *context, const void *bytes, size_t n);
    void (*note_sync)(void *context);

    /* A READ or WRITE with this cookie (never 0) has ended. */
    void (*arrived)(void *context, uint64_t cookie);
    /* The connection has ended, the session has not. Nothing that this connection has mapped may be
     * used after it; registered regions move to the next one by themselves, but for those of GPU
     * memory, which are of no use then: ibx_mr_usable(). */
    void (*broken)(void *context);
    /* The session goes on over another connection. */
    void (*resumed)(void *context);
    /* The session has ended, and no READ or WRITE is under way any more: before its connection is
     * closed, and after. `ending` is not called for a connection that a fork has inherited. */
    void (*ending)(void *context);
    void (*ended)(void *context);
    /* With the session; `ended` has run. */
    void (*destroy)(void *context);
};

/* The context of the earlier hooks is destroyed. */
void ibx_session_set_hooks(struct ibx_session *session, const struct ibx_session_hooks *hooks,
                           void *context);
/* The context, if these are its hooks; otherwise NULL. */
void *ibx_session_context(const struct ibx_session *session, const struct ibx_session_hooks *hooks);

/* ------------------------------------------------------------------------ either side */

bool ibx_session_live(const struct ibx_session *session);
/* Whether it survives its connection; and whether that has ended. */
bool ibx_session_kept(const struct ibx_session *session);
/* The number of the peer's process as it says, and of the pid namespace where that is one; 0: it
 * has not said. */
uint32_t ibx_session_process(const struct ibx_session *session, uint64_t *process_namespace);
/* Client: whether it has ended with that, or another one is there, which has no such session. */
bool ibx_session_server_gone(const struct ibx_session *session);
/* Likewise, while the session is live: a descriptor for the caller that is readable once that
 * process has ended; -1: this host does not know it. */
int ibx_session_process_watch(const struct ibx_session *session);
/* Of one that has ended: whether the peer has said so, and not that its process ends; or this. */
bool ibx_session_took_leave(const struct ibx_session *session);
bool ibx_session_process_ended(const struct ibx_session *session);
/* Server: ibx_session_abandon() was called. */
bool ibx_session_abandoned(const struct ibx_session *session);
bool ibx_session_broken(const struct ibx_session *session);
/* Goes on over another connection if this one has ended. False: the session has ended. */
bool ibx_session_mend(struct ibx_session *session);
/* A live one of a server. */
bool ibx_session_serving(const struct ibx_session *session);
/* Of a live session. */
struct ibx_conn *ibx_session_conn(const struct ibx_session *session);
const struct ibx_caps *ibx_session_caps(const struct ibx_session *session);
/* The threads that copy beside this one, made at the first call; NULL: none are wanted. */
struct ibx_copy_threads *ibx_session_threads(struct ibx_session *session);
/* Behind ibx_copy_threads_begin() of a long copy of theirs: as ibx_copy_threads_widen(). More of
 * them take part, unless the user has set their number. */
void ibx_session_widen_threads(struct ibx_session *session, size_t slice);
/* How many there are, or would be. */
unsigned ibx_session_thread_count(const struct ibx_session *session);
/* Ends them until they are wanted again. None is copying. */
void ibx_session_drop_threads(struct ibx_session *session);

/* Allocates memory that is registered for this side, until ibx_mr_deregister(); as
 * ibx_mr_allocate() on the connection, which may be another one meanwhile. */
int ibx_session_allocate(struct ibx_session *session, size_t bytes, unsigned access,
                         struct ibx_mr **mr, struct ibx_error *err);
/* Server: what the client's memory is called on this connection, if it was told on an earlier one.
 * False: the client has not said. */
bool ibx_session_resolve(const struct ibx_session *session, struct ibx_remote *remote);

/* Ends the session: logs the message, closes, returns `code`. */
int ibx_session_fail(struct ibx_session *session, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Waits for at least one event and handles it; as ibx_session_fail(). */
int ibx_session_pump(struct ibx_session *session);
/* The same without waiting: how many there were; that the session goes on over another connection
 * counts as one. */
int ibx_session_poll(struct ibx_session *session);
/* Adds bytes to the message being gathered, which leaves whenever it is full; as
 * ibx_session_fail(). Unlike ibx_session_write() the bytes are copied, however many. */
int ibx_session_gather(struct ibx_session *session, const uint8_t *from, size_t n);
/* The same with bytes that are in one message, if one can hold them. */
int ibx_session_gather_whole(struct ibx_session *session, const uint8_t *from, size_t n);
/* Client: the same with a request's last bytes, a payload and what is behind it. If all fit into
 * one message the payload is not copied into it, and the message leaves. */
int ibx_session_gather_around(struct ibx_session *session, const void *payload, size_t n,
                              const void *tail, size_t tail_length);
/* Client, before a request that names memory: so many bytes, of at most 512, are gathered without
 * sending anything, so that the session does not go on over another connection, on which the memory
 * has another name. As ibx_session_fail(). */
int ibx_session_reserve(struct ibx_session *session, size_t n);
/* A long write by reference. Server, data NULL: the hook `deliver` has the bytes. 1: the bytes have
 * to be gathered; otherwise as ibx_session_fail(). */
int ibx_session_write_payload(struct ibx_session *session, const void *data, size_t n);

/* ------------------------------------------------------------------------- the server */

/* Takes a request out of the stream. */
void ibx_session_consume(struct ibx_session *session, const struct ibx_request *request);
/* Its reply comes later: the hook `answer` is called before GVirtuS reads, and before the session
 * waits for what is not here yet. No reply to a later request may be written before. */
void ibx_session_delay(struct ibx_session *session);
/* Has `answer` called now, if there is such a reply. As ibx_session_fail(). */
int ibx_session_answer_delayed(struct ibx_session *session);
/* For `answer`: sends the reply that it has written. What the next request has brought stays. As
 * ibx_session_fail(). */
int ibx_session_sync_delayed(struct ibx_session *session);
/* The payload of n bytes is at the request's `reply_to`. As ibx_session_fail(). */
int ibx_session_reply_early(struct ibx_session *session, uint64_t n);
/* The GPU itself has made the copy of the reply that follows; as ibx_session_fail(). */
int ibx_session_reply_placed(struct ibx_session *session);

/* Posts a READ or WRITE of n bytes at `offset` of the client's memory. Its end calls the hook
 * `arrived` unless the cookie is 0. As ibx_session_fail(). */
int ibx_session_post(struct ibx_session *session, bool read, struct ibx_mr *mr, void *local,
                     const struct ibx_remote *remote, uint64_t offset, size_t n, uint64_t cookie,
                     unsigned flags);
bool ibx_session_posts_pending(const struct ibx_session *session);
/* Whether posts were given up since the last call, since the session went on over a connection that
 * does not know their GPU memory: they have ended without `arrived`, and nothing is known of their
 * bytes. */
bool ibx_session_take_given_up(struct ibx_session *session);
/* Whether all posts that are over have succeeded; as ibx_session_fail(). */
int ibx_session_check_posts(struct ibx_session *session);
/* Waits until all are over; likewise. */
int ibx_session_finish_posts(struct ibx_session *session);
/* After a copy by other means, with its result; a negative one as ibx_session_fail(). */
int ibx_session_copied(struct ibx_session *session, int rc);

/* ------------------------------------------------------------------------- the client */

/* Whether a request may begin: the session is live, and nothing is gathered but whole requests. */
bool ibx_session_idle(const struct ibx_session *session);
/* n bytes are about to move: a thread that slept meanwhile would wake up too late. */
void ibx_session_expect(struct ibx_session *session, uint64_t n);
/* Logs that the back end is gone, once a session. */
void ibx_session_tell_end(struct ibx_session *session);

/* A long write of memory that the caller keeps registered, at `remote`; as ibx_session_fail(). */
int ibx_session_write_registered(struct ibx_session *session, const void *data,
                                 const struct ibx_remote *remote);
/* Before a request: the server may put the payload of its reply, n bytes, straight to `to`, which
 * is registered until ibx_session_cts_end(). Memory that cannot be is not offered. As
 * ibx_session_fail(). */
int ibx_session_cts(struct ibx_session *session, void *to, size_t n);
/* The same of memory that the caller keeps registered, at `remote`. */
int ibx_session_cts_registered(struct ibx_session *session, const struct ibx_remote *remote);
/* Before the reply to such a request is read: which memory that is. */
void ibx_session_cts_expect(struct ibx_session *session, void *to, size_t n);
/* After the reply: the memory is the caller's alone. */
void ibx_session_cts_end(struct ibx_session *session);
/* After the reply to the last request, and to all before it. */
void ibx_session_all_answered(struct ibx_session *session);
/* Before a request: it may be answered only when its copy has ended. */
int ibx_session_settle(struct ibx_session *session);
/* Whether ibx_session_reply_placed() came since the last call. */
bool ibx_session_take_placed(struct ibx_session *session);
/* Whether bytes of a reply that is to be read are there; as ibx_session_fail(). */
int ibx_session_poll_reply(struct ibx_session *session);
/* Client: between two pieces of a wait (common/handlers.h) others may use the session. */
void ibx_session_set_pause(struct ibx_session *session, void (*pause)(void *context),
                           void *context);
/* Until they are there, or never come, where a wait has to be one in pieces; otherwise the caller's
 * next read waits. */
void ibx_session_await_reply(struct ibx_session *session);
/* The same for those to all requests that were answered before they were run. */
void ibx_session_await_owed(struct ibx_session *session);

/* Requests that GVirtuS has an answer to before the server has run them: short ones whose reply is
 * an exit code, seconds and no output. Their replies are consumed before any other is read, and
 * whenever this side waits for credit; each calls `reply` once. */
typedef void ibx_owed_reply(void *context, int exit_code);
/* One more is being added to the stream. */
void ibx_session_owe(struct ibx_session *session, ibx_owed_reply *reply, void *context);
/* Consumes replies that are there; with `wait`, all. As ibx_session_fail(). */
int ibx_session_take_owed(struct ibx_session *session, bool wait);
/* The number of the last one, of all that ever were owed; and waits until that one was consumed. As
 * ibx_session_fail(). */
uint64_t ibx_session_owed_last(const struct ibx_session *session);
int ibx_session_wait_owed(struct ibx_session *session, uint64_t number);
/* The long payloads of the request that was sent last stay where they are until its reply: the next
 * one need not wait until they were READ. */
void ibx_session_keep_payloads(struct ibx_session *session);
/* Takes what has come, without waiting. False: the session has ended, or its connection has. */
bool ibx_session_look(struct ibx_session *session);
/* The same, with system calls, for who looks now and then: of a connection whose messages come by
 * memory it also notices the end, and by any path that this host has lost its address. */
bool ibx_session_look_closely(struct ibx_session *session);
/* Gathers whole requests that somebody owes; they leave with the next one. */
int ibx_session_gather_ahead(struct ibx_session *session, const uint8_t *bytes, size_t n);
/* Sends them, if none has followed; as ibx_session_fail(). */
int ibx_session_send_ahead(struct ibx_session *session);
/* Sends such requests, ibx_session_room() bytes at most, as a message of their own. False: that
 * needs credit, or a connection, and nothing was sent; or the session has ended. */
bool ibx_session_send_now(struct ibx_session *session, const uint8_t *bytes, size_t n);
size_t ibx_session_room(const struct ibx_session *session);

#endif
