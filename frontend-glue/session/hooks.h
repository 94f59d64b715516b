/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What client_copies/ and device_copies/ add to a session, and what a session offers them beyond
 * session.h. The session knows nothing else of them than the hooks. They call the functions below,
 * and never each other.
 *
 * All of these are called by the session's thread only. "As ibx_session_fail()": 0, or a negative
 * errno after which the session has ended: its connection and registrations are gone, and the hooks
 * `ending` and `ended` have run.
 */
#ifndef IBX_FRONTEND_GLUE_SESSION_HOOKS_H
#define IBX_FRONTEND_GLUE_SESSION_HOOKS_H

#include "frontend-glue/session/calls.h"
#include "frontend-glue/session/frames.h"
#include "frontend-glue/session/session.h"
#include "gpudirect/gpudirect.h"

#define IBX_CUDA_ERROR_UNLOADING 4   /* the result once exit(3) has cut a call off */
#define IBX_CUDA_ERROR_UNKNOWN   999 /* the result of every call once the back end is gone */

/* Server: a request at the beginning of the stream, not consumed yet. */
struct ibx_request {
    enum ibx_frame_call call;
    const struct ibx_call *called; /* another call, if its whole body is here; else NULL */
    uint64_t length;               /* of its body, bytes */
    const uint8_t *body; /* NULL: the body, or its payload, has to be READ from `remote` */
    /* The client's memory with the body or, with a tail, with its payload. */
    struct ibx_remote remote;
    const uint8_t *head, *tail;      /* the parts of the body before and after that payload */
    size_t head_length, tail_length; /* both 0: the whole body is in `remote` */
    struct ibx_remote reply_to; /* the client's memory for the reply's payload; length 0: unknown */
    bool settle;                /* the reply has to wait until the copy is complete */
    /* for ibx_session_consume(): where the stream continues */
    size_t inline_length; /* bytes in the current segment, with name and length */
    struct ibx_reader after;
    const uint8_t *rest; /* the rest of the segment that contains the tail */
    size_t rest_length;
};

enum ibx_request_outcome {
    IBX_REQUEST_PASS, /* it remains in the stream, and GVirtuS runs it */
    IBX_REQUEST_DONE, /* the hook has run it */
};

/* What the process that listens for several others has of the listening session. */
struct ibx_session_listening {
    struct ibx_listener *listener;
    struct ibx_records *records; /* NULL: sessions do not survive their connections */
    const struct ibx_session_hooks *hooks;
    void *context; /* of the hooks */
    const struct ibx_processes *processes;
};
struct ibx_session_listening ibx_session_listening(const struct ibx_session *s);

/* Each of them may be NULL. */
struct ibx_session_hooks {
    /* Extends `heir`, which was accepted by this session or created like it, in the same way. 0 or
     * a negative errno. */
    int (*inherit)(void *context, struct ibx_session *heir, struct ibx_error *err);

    /* Server: a client connects to the listening session. Returns when it may be served. */
    void (*hold_back)(void);
    /* Server with several processes for its clients. processes() is called in the listening process
     * before there are any, with the most processes at a time; false: no memory. process_serves():
     * there, before a process gets its first client, with the key name that all its clients have,
     * and their user (NULL: unknown). process_begins(): in such a process, with its number.
     * process_ended(): in the listening process, after it has ended. */
    bool (*processes)(unsigned most);
    void (*process_serves)(unsigned process, const char *name, const unsigned *user);
    void (*process_begins)(unsigned process);
    void (*process_ended)(unsigned process);
    /* Server, in such a process before it has a client: starts what takes long. */
    void (*make_ready)(void *context);
    /* Server: whether a client without a session may come again. */
    bool (*anybody)(void);
    /* Server: the client of this session was authenticated; `path` has its name. An error: its
     * connection is closed, and there is no session. */
    int (*admit)(void *context, const struct ibx_path *path, struct ibx_error *err);
    /* Server: the session was established. As ibx_session_fail(). */
    int (*began)(void *context);
    /* Server: whether GVirtuS is about to read a request for which `request` should be called. */
    bool (*wants_request)(void *context);
    /* Server: a request with a known name (frames.h, calls.h) begins. Returns an outcome (DONE: it
     * was consumed and answered), or as ibx_session_fail(). */
    int (*request)(void *context, const struct ibx_request *request);
    /* Server: sends the reply that ibx_session_delay() has delayed. As ibx_session_fail(). */
    int (*answer)(void *context);
    /* Server: the client is about to copy from and to this memory of its own. As
     * ibx_session_fail(). */
    int (*prepare)(void *context, const struct ibx_remote *remote);
    /* Server: WRITEs the next n bytes of a payload that was written with data NULL to the client's
     * memory. As ibx_session_fail(). */
    int (*deliver)(void *context, const struct ibx_remote *remote, size_t n);
    /* Server: the bytes that GVirtuS is about to get, which may be changed. As ibx_session_fail().
     */
    int (*note_read)(void *context, void *bytes, size_t n);
    /* Server: what GVirtuS is about to write (true: zeros are written instead), to send, and has
     * sent: it may free that now. */
    bool (*note_write)(void *context, const void *bytes, size_t n);
    void (*note_sync)(void *context);
    void (*note_sent)(void *context);

    /* The session is about to wait for its peer. Called again after ibx_wake(). */
    void (*waits)(void *context);
    /* A READ or WRITE with this cookie (never 0) has completed. */
    void (*arrived)(void *context, uint64_t cookie);
    /* The connection has ended, but the session has not. Nothing that this connection has mapped
     * may be used after this call. Registered regions move to the next connection by themselves,
     * except those of GPU memory, which are useless then: ibx_mr_usable(). */
    void (*broken)(void *context);
    /* The session continues over another connection. */
    void (*resumed)(void *context);
    /* The session has ended, and no READ or WRITE is under way: `ending` is called before its
     * connection is closed, `ended` after that. `ending` is not called for a connection that a fork
     * has inherited. */
    void (*ending)(void *context);
    void (*ended)(void *context);
    /* The session is destroyed; `ended` has run. */
    void (*destroy)(void *context);
};

/* Sets the hooks, and destroys the context of earlier ones. */
void ibx_session_set_hooks(struct ibx_session *session, const struct ibx_session_hooks *hooks,
                           void *context);
/* The context, if these are its hooks; otherwise NULL. */
void *ibx_session_context(const struct ibx_session *session, const struct ibx_session_hooks *hooks);

/* ------------------------------------------------------------------------ either side */

bool ibx_session_live(const struct ibx_session *session);
/* Whether the session survives its connection. */
bool ibx_session_kept(const struct ibx_session *session);
/* The peer's process id, by its own statement, and the pid namespace in which it is valid; 0:
 * unknown. */
uint32_t ibx_session_process(const struct ibx_session *session, uint64_t *process_namespace);
/* Client: whether the server's process has ended, or another one is there that does not have the
 * session. */
bool ibx_session_server_gone(const struct ibx_session *session);
/* While the session is live: a descriptor, which the caller closes, that is readable once the
 * peer's process has ended; -1: the process is not visible on this host. */
int ibx_session_process_watch(const struct ibx_session *session);
/* Of a session that has ended: whether the peer has closed it while its process goes on; whether
 * the peer's process has ended. */
bool ibx_session_took_leave(const struct ibx_session *session);
bool ibx_session_process_ended(const struct ibx_session *session);
/* Server, while a request takes long: whether its client is gone for good, as far as can be seen:
 * its process has ended, or its connection has and the time is over for which the session is kept.
 * *since: 0 at first, then what the last call has left there. The session itself stays as it is. */
bool ibx_session_client_gone(struct ibx_session *session, uint64_t *since);
/* Server: ibx_session_abandon() was called. */
bool ibx_session_abandoned(const struct ibx_session *session);
bool ibx_session_broken(const struct ibx_session *session);
/* Continues over another connection if this one has ended. False: the session has ended. */
bool ibx_session_resume_if_ended(struct ibx_session *session);
/* Whether it is a live session of a server. */
bool ibx_session_serving(const struct ibx_session *session);
/* Of a live session only. */
struct ibx_conn *ibx_session_conn(const struct ibx_session *session);
const struct ibx_caps *ibx_session_caps(const struct ibx_session *session);
/* The threads that help with long copies, made at the first call; NULL: none are wanted. */
struct ibx_copy_threads *ibx_session_threads(struct ibx_session *session);
/* After ibx_copy_threads_begin() of a long copy: as ibx_copy_threads_widen(), with more threads
 * unless the user has set their number. */
void ibx_session_widen_threads(struct ibx_session *session, size_t slice);
/* How many such threads there are, or would be. */
unsigned ibx_session_thread_count(const struct ibx_session *session);
/* Ends these threads until they are needed again. None may be copying. */
void ibx_session_drop_threads(struct ibx_session *session);

/* Allocates memory that is registered for this side until ibx_mr_deregister(). As ibx_mr_allocate()
 * on the connection, which may be another one later. */
int ibx_session_allocate(struct ibx_session *session, size_t bytes, unsigned access,
                         struct ibx_mr **mr, struct ibx_error *err);
/* Server: translates a remote that the client told on an earlier connection into its name on this
 * one. False: the client has not told it. */
bool ibx_session_resolve(const struct ibx_session *session, struct ibx_remote *remote);

/* Ends the session: logs the message, closes, returns `code`. */
int ibx_session_fail(struct ibx_session *session, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Waits for at least one event and handles it; as ibx_session_fail(). */
int ibx_session_pump(struct ibx_session *session);
/* The same without waiting: returns the number of events. That the session has continued over
 * another connection counts as one. */
int ibx_session_poll(struct ibx_session *session);
/* Copies bytes into the message that is being gathered, which is sent whenever it is full. As
 * ibx_session_fail(). Unlike ibx_session_write() it copies any number of bytes. */
int ibx_session_gather(struct ibx_session *session, const uint8_t *from, size_t n);
/* The same, but keeps the bytes in one message, if one can hold them. */
int ibx_session_gather_whole(struct ibx_session *session, const uint8_t *from, size_t n);
/* Client: the same with the last bytes of a request: a payload, and what follows it. If all fits
 * into one message, that is sent at once, and the payload is not copied. */
int ibx_session_gather_around(struct ibx_session *session, const void *payload, size_t n,
                              const void *tail, size_t tail_length);
/* Client, before a request that names memory: makes room for n (at most 512) bytes, so that they
 * can be gathered without sending anything. Otherwise the session might continue over another
 * connection meanwhile, on which the memory has another name. As ibx_session_fail(). */
int ibx_session_reserve(struct ibx_session *session, size_t n);
/* A long write by reference. Server, with data NULL: the hook `deliver` provides the bytes. 1: the
 * bytes have to be gathered; otherwise as ibx_session_fail(). */
int ibx_session_write_payload(struct ibx_session *session, const void *data, size_t n);

/* ------------------------------------------------------------------------- the server */

/* Removes a request from the stream. */
void ibx_session_consume(struct ibx_session *session, const struct ibx_request *request);
/* The reply to the request comes later: the hook `answer` is called before GVirtuS reads, and
 * before the session waits for input. No reply to a later request may be written before that. */
void ibx_session_delay(struct ibx_session *session);
/* Calls `answer` now if a reply is delayed. As ibx_session_fail(). */
int ibx_session_answer_delayed(struct ibx_session *session);
/* For `answer`: sends the reply that it has written, and leaves what the next request has brought.
 * As ibx_session_fail(). */
int ibx_session_sync_delayed(struct ibx_session *session);
/* Announces that the payload of n bytes is at the request's `reply_to`. As ibx_session_fail(). */
int ibx_session_reply_early(struct ibx_session *session, uint64_t n);
/* Announces that the GPU itself has made the copy for the next reply. As ibx_session_fail(). */
int ibx_session_reply_placed(struct ibx_session *session);
/* Tells, before the next reply, whether kernels have printed what the client has not got. As
 * ibx_session_fail(). */
int ibx_session_reply_printed(struct ibx_session *session, bool some);

/* A READ or WRITE of n bytes between `local`, in a region, and `offset` of the client's memory. */
struct ibx_session_op {
    bool read;
    struct ibx_mr *mr;
    void *local;
    const struct ibx_remote *remote;
    uint64_t offset;
    size_t n;
    uint64_t cookie; /* of the hook `arrived`, which is called when it completes; 0: not called */
    unsigned flags;  /* enum ibx_flags */
};
/* Posts it, copying what `op` refers to, except the bytes. As ibx_session_fail(). */
int ibx_session_post(struct ibx_session *session, const struct ibx_session_op *op);
bool ibx_session_posts_pending(const struct ibx_session *session);
/* Whether posts were given up since the last call, because the session has continued over a
 * connection on which their GPU memory is not registered. They complete without `arrived`, and
 * their bytes are undefined. */
bool ibx_session_take_given_up(struct ibx_session *session);
/* Whether all completed posts have succeeded; as ibx_session_fail(). */
int ibx_session_check_posts(struct ibx_session *session);
/* Waits until all posts are complete, and checks them. */
int ibx_session_finish_posts(struct ibx_session *session);
/* To be called after a copy by other means, with its result; a negative one ends the session, as
 * ibx_session_fail(). */
int ibx_session_copied(struct ibx_session *session, int rc);

/* ------------------------------------------------------------------------- the client */

/* Whether a request may begin: the session is live, and nothing is gathered but whole requests. */
bool ibx_session_idle(const struct ibx_session *session);
/* n bytes are about to arrive, so the next wait polls: a sleeping thread would wake up too late. */
void ibx_session_expect(struct ibx_session *session, uint64_t n);
/* Logs that the back end is gone, once a session. */
void ibx_session_tell_end(struct ibx_session *session);

/* A long write from memory that the caller keeps registered as `remote`. As ibx_session_fail(). */
int ibx_session_write_registered(struct ibx_session *session, const void *data,
                                 const struct ibx_remote *remote);
/* To be called before a request: the server may WRITE the payload of its reply, n bytes, directly
 * to `to`, which is registered until ibx_session_cts_end(). Memory that cannot be registered is not
 * offered. As ibx_session_fail(). */
int ibx_session_cts(struct ibx_session *session, void *to, size_t n);
/* The same with memory that the caller keeps registered as `remote`. */
int ibx_session_cts_registered(struct ibx_session *session, const struct ibx_remote *remote);
/* To be called before the reply to such a request is read: the memory that was offered. */
void ibx_session_cts_expect(struct ibx_session *session, void *to, size_t n);
/* To be called after the reply: the server no longer uses the memory. */
void ibx_session_cts_end(struct ibx_session *session);
/* To be called after the reply to the last request, when all earlier ones were answered, too. */
void ibx_session_all_answered(struct ibx_session *session);
/* To be called before a request that must not be answered before its copy is complete. */
int ibx_session_settle(struct ibx_session *session);
/* Whether the server has called ibx_session_reply_placed() since the last call. */
bool ibx_session_take_placed(struct ibx_session *session);
/* What the server has told by ibx_session_reply_printed() since the last call; from any thread. */
enum ibx_printed { IBX_PRINTED_UNKNOWN, IBX_PRINTED_NOTHING, IBX_PRINTED_SOME };
enum ibx_printed ibx_session_take_printed(struct ibx_session *session);
/* Whether bytes of the next reply have arrived; as ibx_session_fail(). */
int ibx_session_poll_reply(struct ibx_session *session);
/* Client: `pause` is called between two pieces of a wait (common/handlers.h), when others may use
 * the session. */
void ibx_session_set_pause(struct ibx_session *session, void (*pause)(void *context),
                           void *context);
/* Client: the session ends where it would wait longer than `ms` from now, in any call; 0: without
 * that limit again. False, which changes nothing: its connection has ended. */
bool ibx_session_limit(struct ibx_session *session, unsigned ms);
/* Around the read of a reply's first bytes, when its request was sent: await() waits, in pieces, if
 * waits have to be in pieces; if not, the read waits. */
void ibx_session_await_reply(struct ibx_session *session);
void ibx_session_reply_begins(struct ibx_session *session);
/* Whether a thread is between these two; from any thread. */
bool ibx_session_awaits_reply(const struct ibx_session *session);
/* The same for the replies to all requests that were answered before they were run. */
void ibx_session_await_owed(struct ibx_session *session);

/* Requests that GVirtuS was given an answer to before the server has run them: short ones, whose
 * reply has no output. Their replies are consumed before any other is read, and whenever this side
 * waits for credit. `reply` is called once for each. */
typedef void ibx_owed_reply(void *context, int exit_code);
/* Announces one more such request, which the caller adds to the stream. */
void ibx_session_owe(struct ibx_session *session, ibx_owed_reply *reply, void *context);
/* Whether a reply can have n bytes of output that nobody reads, as a failed handler's may: as many
 * as a payload has would come as one. As ibx_session_fail(); -ENOTCONN: the session has ended. */
int ibx_session_check_unread(struct ibx_session *session, uint64_t n);
/* Consumes the replies that have arrived; with `wait`, all of them. As ibx_session_fail(). */
int ibx_session_take_owed(struct ibx_session *session, bool wait);
/* The number of the last such request; and waits until the reply to that one was consumed. As
 * ibx_session_fail(). */
uint64_t ibx_session_owed_last(const struct ibx_session *session);
int ibx_session_wait_owed(struct ibx_session *session, uint64_t number);
/* The long payloads of the last request remain valid until its reply, so the next request need not
 * wait until the server has READ them. */
void ibx_session_keep_payloads(struct ibx_session *session);
/* Handles what has arrived, without waiting. False: the session has ended, or its connection has.
 */
bool ibx_session_look(struct ibx_session *session);
/* The same, with system calls, for occasional use. On a connection whose messages come through
 * memory it also notices the end of the connection, and on any path the loss of this host's
 * address. */
bool ibx_session_look_closely(struct ibx_session *session);
/* Gathers whole requests; they are sent with the next one. */
int ibx_session_gather_ahead(struct ibx_session *session, const uint8_t *bytes, size_t n);
/* Sends them, if no request has followed; as ibx_session_fail(). */
int ibx_session_send_ahead(struct ibx_session *session);
/* Sends whole requests, at most ibx_session_room() bytes, as a message of their own. False: nothing
 * was sent, because that needs credit or a connection; or the session has ended. */
bool ibx_session_send_now(struct ibx_session *session, const uint8_t *bytes, size_t n);
size_t ibx_session_room(const struct ibx_session *session);

#endif
