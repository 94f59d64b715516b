/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared by the files of session/ and by its tests only. The files call each other in a circle,
 * since each may find that the session has failed: ibx_session_fail() releases what all of them
 * hold. */
#ifndef IBX_FRONTEND_GLUE_SESSION_SESSION_INTERNAL_H
#define IBX_FRONTEND_GLUE_SESSION_SESSION_INTERNAL_H

#include "common/state_machine.h"
#include "frontend-glue/session/hooks.h"
#include "frontend-glue/session/report.h"
#include "transport/core/regcache.h"

/*
 * What the messages of a session hold; docs/protocol.md has the bytes.
 *
 *   DATA         both ways   segments of the stream, in order; the server's also hold the number
 *                            of payloads that it has READ
 *   CTS          to server   clear to send: memory for the next bytes of the payload it announced
 *   DONE         to client   those bytes have been written
 *   FLUSH        to server   asks for FLUSHED when every payload so far has been READ
 *   FLUSHED      to client   they have
 *
 * and those of its link, which have no number in the stream:
 *
 *   KEEP         to server   the session is to survive its connection
 *   KEPT         to client   it will, or will not
 *   RESUME       to server   first on another connection: how far the client has come
 *   NAMES        to server   what the client's memory is called there
 *   RESUMED      to client   how far the server has come
 *   BYE          both ways   this end of the connection is that of the session
 *   SESSIONS     to server   first on a connection that is for nothing else: asks for REPORT
 *   REPORT       to client   which sessions of its name have gone on over another connection
 */
enum message_type {
    MESSAGE_DATA = 1,
    MESSAGE_CTS,
    MESSAGE_DONE,
    MESSAGE_FLUSH,
    MESSAGE_FLUSHED,
    MESSAGE_KEEP = 7,
    MESSAGE_KEPT,
    MESSAGE_RESUME,
    MESSAGE_NAMES,
    MESSAGE_RESUMED,
    MESSAGE_BYE,
    MESSAGE_SESSIONS,
    MESSAGE_REPORT,
};

enum segment_kind {
    SEGMENT_NONE = 0,
    SEGMENT_INLINE,        /* u32 length, the bytes */
    SEGMENT_RTS_READ,      /* client only: an ibx_remote that the server READs */
    SEGMENT_RTS_WRITE,     /* server only: u64 length, to be WRITten to the client's CTS */
    SEGMENT_EARLY_CTS = 6, /* client only: an ibx_remote, for the payload of this request's reply */
    SEGMENT_EARLY_DONE,    /* server only: u64 length, it was WRITten there */
    SEGMENT_SETTLE,        /* client only: answer this copy when it has ended, even an async one */
    SEGMENT_PLACED,        /* server only: the GPU itself reached the client's memory */
    SEGMENT_PREPARE,       /* client only: an ibx_remote that copies are about to name */
    SEGMENT_PRINTED,       /* server only: u8, whether kernels have printed something */
};

#define SEGMENT_HEAD_INLINE  5u /* kind, u32 length */
#define SEGMENT_REMOTE_BYTES (1u + IBX_REMOTE_BYTES)

/*
 * state machine: session
 *   [*] -> NEW -> LISTENING -> DEAD
 *   [*] -> ACCEPTED                    a connection that is not established yet
 *   NEW -> LIVE                        connected
 *   ACCEPTED -> LIVE                   the first read
 *   NEW | ACCEPTED | LIVE -> DEAD      end of stream, error, close
 *   DEAD -> [*]
 */
enum session_state {
    SESSION_NEW,
    SESSION_LISTENING,
    SESSION_ACCEPTED,
    SESSION_LIVE,
    SESSION_DEAD,
};

/*
 * state machine: link of a session
 *   [*] -> SINGLE                  the session ends with its connection
 *   SINGLE -> CONNECTED            both ends keep the session beyond it
 *   CONNECTED -> BROKEN            the connection has ended
 *   BROKEN -> RESUMING             there is another one
 *   RESUMING -> CONNECTED          both ends agree on what has arrived
 *   RESUMING -> BROKEN             that connection has ended, too
 *   BROKEN -> LOST                 it takes too long, or is refused
 *   BROKEN -> SERVER_GONE          client: the server's process has ended, or does not know it
 *   SINGLE | CONNECTED | LOST | SERVER_GONE -> [*]
 */
enum link_state {
    LINK_SINGLE,
    LINK_CONNECTED,
    LINK_BROKEN,
    LINK_RESUMING,
    LINK_LOST,
    LINK_SERVER_GONE,
};

/* Whether the peer has ended the session (BYE), and its process with it. */
enum leave { LEAVE_NONE, LEAVE_SESSION, LEAVE_PROCESS };

/* Whether the client continues by tcp only: other paths carry shorter messages than are under way;
 * or they lock memory that cannot be locked, which may pass. */
enum by_tcp { BY_ANY_PATH, BY_TCP_FOR_LENGTH, BY_TCP_FOR_MEMORY };

/* Messages are numbered in two sequences: those of the stream, and those that do not wait behind
 * it. */
enum message_order { ORDER_STREAM, ORDER_CONTROL, ORDERS };

/* A message that the other end may not have taken yet. */
struct kept_message {
    uint8_t *bytes;
    size_t size, length;
    enum message_order order;
    uint64_t number;
};

/* The last messages that were sent. A message gets credit only after the one `slots` before it was
 * taken, so these are enough. */
#define KEPT_SPARES 4u
struct kept {
    struct kept_message *ring;
    unsigned size, first, count; /* ring; size is a power of two */
    unsigned sent; /* how many of them were sent on this connection; the others wait for credit */
    unsigned slots;
    unsigned longs;                         /* places in the ring with memory of a long message */
    unsigned shorts;                        /* short messages since the last long one, then */
    uint64_t numbers[ORDERS];               /* the numbers of the next messages */
    struct kept_message spare[KEPT_SPARES]; /* memory of long messages */
    unsigned spares;
};

/* Memory of the client: the remote that the server was told, and its remote on this connection. */
struct memory_name {
    struct ibx_remote then, now;
    struct ibx_mr *mr; /* client, while remotes change: its region; NULL: not registered any more */
    uint64_t at;       /* client, while remotes change: the offset in the region */
    bool unnamed;      /* its region could not be registered on this connection: `now` has only the
                          address, by which the next connection finds it */
};

#define SENT_NAMES 32u /* more than there can be unanswered CTSs, early ones included */

/*
 * state machine: READ or WRITE of a session
 *   [*] -> NONE                  its place is free
 *   NONE -> WAITING              for the connection, or for the next one
 *   WAITING -> POSTED
 *   POSTED -> WAITING            it has failed with its connection
 *   POSTED -> NONE               completed
 *   WAITING -> NONE              refused, or given up
 *   NONE -> [*]
 */
enum post_state { POST_NONE, POST_WAITING, POST_POSTED };

/* A READ or WRITE under way. */
struct posted {
    struct ibx_state_machine state; /* enum post_state */
    bool read;                      /* otherwise a WRITE */
    struct ibx_mr *mr;
    uint64_t at; /* the offset in its memory */
    struct ibx_remote remote;
    uint64_t offset;
    size_t n;
    uint64_t cookie;
    unsigned flags;
    unsigned failures;
};

/* Client: consecutive connections on which nothing was received (reconnect.c). */
struct futile {
    uint64_t taken; /* messages received from the server when the last one broke */
    uint64_t since; /* ns; when the first one broke */
    unsigned times;
};

/* What lets a session survive its connection. */
struct session_link {
    struct ibx_state_machine state; /* enum link_state */
    unsigned seconds;               /* for which a broken session is kept; 0: it is not */
    unsigned agreed;                /* the server's time */
    uint8_t id[IBX_CLAIM_ID_BYTES];
    uint8_t *secret;       /* IBX_SECRET_BYTES */
    struct ibx_keys *keys; /* client: the keys with which it continues */
    uint64_t epoch;  /* the number of the connection, counting also those that broke at once */
    enum leave peer; /* what the peer has said of its end */
    bool tells_end;  /* client: the server wants to know when this process ends */
    /* The peer's process id by its own statement, and its namespace; 0: unknown. */
    uint32_t process;
    uint64_t process_namespace;
    int peer_fd;                    /* a pidfd of its process on this host, or -1 */
    const struct ibx_conn *watched; /* the connection whose waits end with that process */
    unsigned resumed;               /* how often it has continued */
    uint64_t resumed_at;            /* ns; the last time */
    struct kept kept;
    uint64_t taken[ORDERS]; /* messages of the peer that were taken */
    struct memory_name sent_names[SENT_NAMES];
    unsigned next_sent;
    struct memory_name *names; /* server: remotes of earlier epochs */
    unsigned name_count;
    struct futile futile;
    enum by_tcp only_tcp; /* client */
    bool one_host;        /* client: the server's name has never led to several hosts */

    /* Server. */
    struct ibx_session_registry *registry; /* of the listening session and what it accepts */
    struct ibx_session *next;              /* there */
    int record;                            /* its place where other processes look, or -1 */
    /* The connection that ibx_session_accept() offers, and the one that was taken and is being
     * established; both are changed under the lock of `registry`. NULL: none. */
    _Atomic(struct ibx_conn *) offered;
    struct ibx_conn *establishing;
    int offer_fd;                     /* an eventfd, or -1 */
    struct ibx_session_report report; /* for others, who lock `registry` */
    char name[IBX_NAME_MAX + 1];
    bool has_user;
    unsigned user;
};

/* Received messages that were not handled yet, in order. */
struct message_queue {
    struct ibx_event *items; /* a ring */
    unsigned size, head, count;
};

/* A segment being read. */
struct segment {
    enum segment_kind kind;
    uint64_t left; /* bytes not yet read */
    const uint8_t *inline_at;
    struct ibx_remote remote;
    uint64_t remote_at; /* bytes of it that were read */
};

/* A long write of this side. */
struct payload {
    const uint8_t *data; /* NULL, server: the hook `deliver` provides it */
    size_t length;
    bool stays;              /* client: valid until the reply, whatever is written before that */
    struct ibx_mr *mr;       /* client: registered for the server's READ, or NULL */
    struct memory_name name; /* client */
    struct payload *next;
};

/* The client's memory for the payload of the next reply, from the request until the reply. */
struct early_cts {
    struct ibx_mr *mr; /* client; NULL: the caller registers the memory */
    uint8_t *to;       /* client; NULL: not announced */
    size_t length;
    struct ibx_remote remote; /* server; length 0: the client has not announced it */
};

/* Client: replies to requests that were answered already. */
struct owed {
    uint64_t ever; /* how many there ever were */
    unsigned count;
    uint8_t head[20]; /* of the reply that has begun */
    size_t got;       /* bytes of it */
    uint64_t rest;    /* bytes after the head that have not arrived */
    ibx_owed_reply *reply;
    void *context;
};

/* Client: memory that both ends map and that stays registered between copies (shared_regions.c). */
#define SHARED_REGIONS 4u
struct shared_region {
    struct ibx_mr *mr; /* NULL: unused */
    unsigned users;
    bool left;      /* to be deregistered by its last user */
    uint64_t freed; /* ibx_shared_freed() when it was registered */
};

/* Server: replies in `out` that wait for the next one (held_replies.c). */
struct held_replies {
    bool any;
    uint64_t since;         /* ns; of the first one */
    uint64_t left;          /* bytes of the segment behind the request whose reply is waited for */
    _Atomic unsigned state; /* whether they are lent: held_replies.c */
    unsigned loan;
    int failed;    /* of sending them; 0: it has not */
    unsigned seen; /* the sender's: the state at its last look */
    bool listed;
    struct ibx_session *next;
};

/* The DATA message that is being gathered. */
struct outgoing {
    uint8_t *bytes;
    size_t size;
    size_t most;      /* the longest message: size, or less if the connection requires that */
    size_t length;    /* 0: nothing gathered, otherwise with the message's head */
    size_t sending;   /* bytes of the message that waits for credit or a connection */
    size_t inline_at; /* the offset of the open inline segment's length; 0: none is open */
    bool ahead;       /* client: it has only whole requests, before the next one */
};

/* The DATA message that is being read. */
struct incoming {
    struct ibx_event message; /* data NULL: none is */
    struct ibx_conn *conn;    /* from which it came, if that has ended; NULL: the session's */
    struct ibx_reader reader;
    struct segment segment;
    struct segment behind; /* the segment that continues after it; kind NONE: none does */
    uint8_t *gathered;     /* server: a request that arrived in pieces */
    size_t gathered_size;
};
static inline bool ibx_incoming_any(const struct incoming *in)
{
    return in->message.data;
}
/* Whether it has more segments. */
static inline bool ibx_incoming_has_more(const struct incoming *in)
{
    return ibx_incoming_any(in) && ibx_reader_left(&in->reader);
}

/* READs and WRITEs. */
struct operations {
    struct posted *items; /* indexed by cookie - 1 */
    unsigned size;
    unsigned pending;      /* of these, not completed */
    unsigned posted;       /* of these, posted on the connection */
    int status;            /* the first failure among them */
    bool given_up;         /* some were in GPU memory that is not registered on the next
                              connection */
    struct ibx_mr *in_use; /* the registration of the copy that is under way */
};

/* A bounded pipeline of registered memory, for memory that cannot be registered. */
#define BOUNCE_PIECES      4u
#define BOUNCE_PIECE_BYTES (256u << 10)

struct ibx_session {
    struct ibx_state_machine state; /* enum session_state */
    bool server;
    char *uri;
    struct ibx_options options;
    struct ibx_listener *listener;
    struct ibx_conn *conn;
    const struct ibx_caps *caps;
    struct ibx_path path;
    char reason[IBX_ERROR_MAX];
    const struct ibx_session_hooks *hooks; /* never NULL */
    void *context;                         /* of the hooks */

    struct ibx_processes processes;        /* listening */
    const struct ibx_admission *admission; /* ... and has processes for its clients */
    bool counted;                          /* counted in a process of client_process.h */
    unsigned keep_seconds;                 /* for which a broken session is kept; 0: it is not */
    unsigned thread_count;                 /* as set by the user; 0: by the number of processors */
    struct ibx_copy_threads *threads;      /* NULL: not made yet, or not wanted */
    bool no_threads;                       /* none are wanted, or none can be made */

    struct session_link link;
    struct ibx_claim_check claim_check; /* of a listening session */

    struct outgoing out;
    struct held_replies held;
    struct payload *payloads; /* long writes of this side that were not delivered yet */
    struct payload **payloads_tail;
    bool synced; /* client: payloads were sent with a request, and the server may still need them */
    uint32_t payloads_read;    /* of the client's payloads: how many the server has READ, as far as
                                  this side knows */
    uint32_t payloads_flushed; /* client: how many of these a FLUSHED has confirmed */

    /* Received messages: DATA and FLUSH are read in the order of the stream; answers to a CTS, a
     * payload or a FLUSH do not wait behind them. */
    struct message_queue stream, control;
    bool ended; /* CLOSED was received; what was received before is still read */
    bool abandoned;
    int end_status;
    struct owed owed;
    void (*pause)(void *context); /* client: NULL, or between pieces of a wait */
    void *pause_context;
    uint64_t until;           /* client: ibx_session_limit(); 0: no limit */
    atomic_bool awaits_reply; /* client: ibx_session_awaits_reply() */
    bool in_frame;            /* bytes were read since the last sync */
    bool answering;           /* client: the connection is dead, and calls are answered here */
    struct incoming in;

    struct operations ops;
    struct early_cts early_cts;
    bool settle;  /* server: SETTLE came with the present request */
    bool delayed; /* server: the reply to the request before is left to the hook `answer` */
    bool placed;  /* client: PLACED came with the present reply */
    _Atomic enum ibx_printed printed; /* client: what PRINTED said */
    struct ibx_mr *bounce;            /* the server's pipeline, or one piece of the client */
    struct ibx_regcache *cache;       /* used if registration pins memory */
    struct shared_region shared[SHARED_REGIONS];
    unsigned shared_next; /* the next place to use */
};

/* session.c */

/* Gives the session an accepted connection. */
int ibx_session_adopt(struct ibx_session *s, struct ibx_conn *conn);
/* Establishes an accepted session; as ibx_session_fail(). */
int ibx_session_establish(struct ibx_session *s);
/* Ends the session without a warning: -ENOTCONN. */
int ibx_session_leave(struct ibx_session *s, const char *why);

/* stream.c */

/* Waits until the current segment has bytes left; as ibx_session_fail(). */
int ibx_session_refill(struct ibx_session *s);
/* Reads n bytes, from any number of segments; as ibx_session_fail(). */
int ibx_session_read_all(struct ibx_session *s, uint8_t *to, size_t n);
int ibx_session_add_segment(struct ibx_session *s, const uint8_t *bytes, size_t n);
int ibx_session_add_remote(struct ibx_session *s, enum segment_kind kind,
                           const struct ibx_remote *remote);

/* message_queues.c */

int ibx_messages_init(struct ibx_session *s);
void ibx_messages_fini(struct ibx_session *s);
/* Sends one message, waiting for credit. */
int ibx_session_send(struct ibx_session *s, const struct iovec *iov, int iovcnt);
/* Without waiting: as ibx_send(). */
int ibx_session_try_send(struct ibx_session *s, const struct iovec *iov, int iovcnt);
int ibx_session_send_short(struct ibx_session *s, enum message_type type);
/* Takes the next message of a queue, which the caller releases. */
int ibx_session_next_message(struct ibx_session *s, struct message_queue *queue,
                             struct ibx_event *event);
/* Waits for a control message that consists of this type only, by which the peer confirms `what`.
 * As ibx_session_fail(). */
int ibx_session_confirmed(struct ibx_session *s, enum message_type type, const char *what);
/* stream.c: releases the message that is being read. */
void ibx_session_release_current(struct ibx_session *s);
/* Whether it is a message of one byte, of this type. */
bool ibx_message_is(const struct ibx_event *event, enum message_type type);

/* shared_regions.c */

/* The registration of the whole piece of shared memory that contains [data, data + length), in use
 * until _put(). NULL: register these bytes. */
struct ibx_mr *ibx_shared_region_get(struct ibx_session *s, const void *data, size_t length);
/* False: it is no such registration. */
bool ibx_shared_region_put(struct ibx_session *s, struct ibx_mr *mr);
/* Deregisters all that are not in use, and the others when they are put: they belong to this
 * connection. */
void ibx_shared_regions_leave(struct ibx_session *s);

/* unacknowledged.c */

int ibx_kept_init(struct kept *kept, unsigned slots);
void ibx_kept_fini(struct kept *kept);
/* Keeps a message that was sent. -ENOMEM: it was not kept. */
int ibx_kept_add(struct kept *kept, const struct iovec *iov, int iovcnt);
/* Sends those that wait for credit, as far as there is credit. Returns whether none is left. */
bool ibx_kept_push(struct kept *kept, struct ibx_conn *conn);
/* Forgets all: the peer has taken them. */
void ibx_kept_forget(struct kept *kept);
/* Continues on another connection, whose peer has taken so many messages. -EPROTO: that is
 * impossible. */
int ibx_kept_rewind(struct kept *kept, const uint64_t taken[ORDERS]);
/* The length of the longest kept message. */
size_t ibx_kept_longest(const struct kept *kept);
enum message_order ibx_message_order(uint8_t type);

/* link.c */

void ibx_link_init(struct ibx_session *s);
void ibx_link_fini(struct ibx_session *s);
/* Whether the session survives the end of its connection. */
bool ibx_link_survives(const struct ibx_session *s);
/* Whether this host has seen the peer's process end. */
bool ibx_link_peer_died(const struct ibx_session *s);
/* Server: whether the client has come over another connection. */
static inline bool ibx_link_has_offer(const struct ibx_session *s)
{
    return s->link.offered;
}
/* To be called when the connection has ended: returns when the session continues over another one.
 * As ibx_session_fail(). */
int ibx_link_resume(struct ibx_session *s);
/* The same if the connection has ended, even if that was not noticed yet. False: it lives, or the
 * session has ended. */
bool ibx_link_resume_if_ended(struct ibx_session *s);

/* reconnect.c: how a client whose connection has broken finds its server again */
struct reconnect {
    uint64_t began;
    unsigned attempts;
    unsigned hasty;         /* of these, how many were made early because the network had changed */
    unsigned round_trip_ms; /* the round trip to the server, at most, in earlier attempts */
    int changes_fd;         /* ibx_network_changes() */
    bool reached, refused;  /* struct ibx_claim, of the last attempt */
    bool connected;         /* the last attempt got as far as a connection */
    struct ibx_lookup *lookup; /* of the server's name; NULL: none is under way */
};
void ibx_reconnect_begin(const struct ibx_session *s, struct reconnect *reconnect);
/* To be called when the connection has broken. -EMSGSIZE: it is no use to continue, as several
 * connections have shown. */
int ibx_reconnect_judge(struct ibx_session *s, struct ibx_error *err);
/* One attempt. */
int ibx_reconnect(struct ibx_session *s, struct reconnect *reconnect, struct ibx_conn **fresh,
                  struct ibx_error *err);
/* The path carries only shorter messages than are under way. -EAGAIN: the next attempt is by tcp,
 * which carries them; -EMSGSIZE: this end's options forbid tcp. */
int ibx_reconnect_by_tcp(struct ibx_session *s, struct ibx_error *err);
/* On that path one end cannot register memory, with error `rc`. -EAGAIN: the next attempt is by
 * tcp, which locks no memory; `rc`: tcp cannot be tried. */
int ibx_reconnect_unregistered(struct ibx_session *s, int rc, struct ibx_error *err);
/* After an attempt that failed with `rc`: waits until the next one may succeed. */
void ibx_reconnect_pause(const struct ibx_session *s, struct reconnect *reconnect, int rc);
void ibx_reconnect_end(struct reconnect *reconnect);

/* agreement.c */

/* Client, just connected: asks the server to keep the session, and waits for the answer. */
void ibx_link_agree(struct ibx_session *s);
/* Handles a message of the link on an established connection; as ibx_session_fail(). */
int ibx_link_message(struct ibx_session *s, const struct ibx_event *event);
/* The session ends: tells the peer. */
void ibx_link_say_bye(struct ibx_session *s);

/* names.c */

/* A remote in messages: its epoch precedes its length. */
void ibx_name_put(struct ibx_writer *w, const struct ibx_remote *remote, uint64_t epoch);
void ibx_name_get(struct ibx_reader *r, struct ibx_remote *remote);
/* Client: the name of memory, and that the server is told of it now. */
struct memory_name ibx_name_of(const struct ibx_session *s, const struct ibx_remote *remote);
void ibx_name_sent(struct ibx_session *s, const struct ibx_remote *remote);
/* Client, before and after ibx_conn_take_regions(). */
void ibx_names_before(struct ibx_session *s);
void ibx_names_after(struct ibx_session *s);
/* Client: encodes the next message NAMES, after *at; 0: there are no more. */
size_t ibx_names_message(const struct ibx_session *s, uint8_t *bytes, size_t size, unsigned *at);
unsigned ibx_names_count(const struct ibx_session *s);
/* Server: takes a message NAMES. 0 or a negative errno. */
int ibx_names_take(struct ibx_session *s, const uint8_t *bytes, size_t n);
void ibx_names_clear(struct ibx_session *s);

/* session_registry.c: where a server finds sessions when their clients come again */

/* `several`: there are several processes, each with sessions of its own. */
struct ibx_session_registry *ibx_session_registry_create(bool several);
/* The records that these processes share; NULL: there is one process. */
struct ibx_records *ibx_session_registry_records(const struct ibx_session_registry *registry);
struct ibx_session_registry *ibx_session_registry_hold(struct ibx_session_registry *registry);
void ibx_session_registry_release(struct ibx_session_registry *registry);
void ibx_session_registry_check(struct ibx_session_registry *registry,
                                struct ibx_claim_check *check);
/* False: there is no room. */
bool ibx_session_registry_add(struct ibx_session *s);
void ibx_session_registry_remove(struct ibx_session *s);
/* Takes the connection, in any thread, and gives it to its session. */
void ibx_session_registry_offer(struct ibx_session_registry *registry, struct ibx_conn *conn);
/* The connection that was offered, or NULL. It is to be established, which ends with an error when
 * another one is offered, and then to be used or dropped. */
struct ibx_conn *ibx_session_registry_take(struct ibx_session *s);
void ibx_session_registry_drop(struct ibx_session *s, struct ibx_conn *conn);
/* s->conn becomes this one. */
void ibx_session_registry_use(struct ibx_session *s, struct ibx_conn *conn);
/* Notes that the session, in the list or not, has continued over this path after `took_ms`. */
void ibx_session_registry_note(struct ibx_session *s, const struct ibx_path *path,
                               unsigned took_ms);

/* Calls `each` for the sessions of which the client of `asks` may know: those of its name and, if
 * both are known, of its user. The lock is held meanwhile. */
void ibx_session_registry_each(struct ibx_session *asks,
                               void (*each)(void *context, const struct ibx_session_report *report),
                               void *context);

/* report.c */

/* Server: answers SESSIONS. 0 or a negative errno. */
int ibx_report_send(struct ibx_session *s);

/* deferred_replies.c */

/* Whether there is an unread message of the stream, or an unread part of one. */
bool ibx_session_has_bytes(const struct ibx_session *s);

/* stream.c */

/* Server: sends the gathered message without waiting: as ibx_session_try_send(). */
int ibx_session_try_gathered(struct ibx_session *s);

/* held_replies.c: by the session's thread */

/* Whether the replies in `out` may be held until that to the next request, which ends `left` bytes
 * before the end of the segment. */
bool ibx_held_replies_hold(struct ibx_session *s, uint64_t left);
/* Lends them, if any are held, until _take(): meanwhile this thread uses neither `out` nor the
 * connection. */
void ibx_held_replies_lend(struct ibx_session *s);
/* Whether replies that were lent are still held. */
bool ibx_held_replies_take(struct ibx_session *s);
/* The session ends. */
void ibx_held_replies_end(struct ibx_session *s);

/* requests.c */

/* Server: has the hook run requests until there is something for GVirtuS to read. As
 * ibx_session_fail(). */
int ibx_session_run_requests(struct ibx_session *s);

/* rendezvous.c: as ibx_session_fail() unless it says otherwise */

/* Client: registers a long write for the server's READ. -errno: send it inline instead. */
int ibx_rendezvous_expose(struct ibx_session *s, const void *data, size_t length,
                          struct ibx_remote *remote);
/* Server: notes a long write. */
int ibx_rendezvous_announce(struct ibx_session *s, const void *data, size_t length);
/* Client: the server has READ them all. */
void ibx_rendezvous_drop(struct ibx_session *s);
/* Client: the server says that it has READ so many payloads since the beginning. -EPROTO: that is
 * impossible. */
int ibx_rendezvous_confirm(struct ibx_session *s, uint32_t payloads_read);
/* Server: READs n bytes of the current RTS_READ segment into `to`. */
int ibx_rendezvous_take(struct ibx_session *s, uint8_t *to, size_t n);
/* Client: has the server WRITE n bytes of the current RTS_WRITE segment into `to`. */
int ibx_rendezvous_receive(struct ibx_session *s, uint8_t *to, size_t n);
/* Server: WRITEs payloads as the client's CTSs request, until every announced one has arrived. */
int ibx_rendezvous_deliver(struct ibx_session *s);
void ibx_rendezvous_fini(struct ibx_session *s);
/* Handles the completion of a READ or WRITE; as ibx_session_fail(). */
int ibx_rendezvous_completed(struct ibx_session *s, const struct ibx_event *event);
/* On another connection: gives up what was under way in memory that is not registered on it. */
void ibx_rendezvous_give_up(struct ibx_session *s);
/* And repeats everything else that was under way. As ibx_session_fail(). */
int ibx_rendezvous_again(struct ibx_session *s);

#endif
