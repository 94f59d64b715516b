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
 *   BROKEN -> LOST                 it takes too long, or the other end is gone
 *   SINGLE | CONNECTED | LOST -> [*]
 */
enum link_state { LINK_SINGLE, LINK_CONNECTED, LINK_BROKEN, LINK_RESUMING, LINK_LOST };

/* Messages are numbered in two orders: those of the stream, and what does not wait behind it. */
enum message_order { ORDER_STREAM, ORDER_CONTROL, ORDERS };

/* A message that the other end may not have taken yet. */
struct kept_message {
    uint8_t *bytes;
    size_t size, length;
    enum message_order order;
    uint64_t number;
};

/* The last messages that were sent. A message has credit only when the one `slots` before it was
 * taken: so these are enough. */
struct kept {
    struct kept_message *ring;
    unsigned size, first, count; /* size: a power of two */
    unsigned sent;               /* of them, on this connection; the others wait for credit */
    unsigned slots;
    uint64_t numbers[ORDERS]; /* of the next ones */
};

/* Memory of the client as the server was told of it, and as it is called on this connection. */
struct memory_name {
    struct ibx_remote then, now;
    struct ibx_mr *mr; /* client, while names change; NULL: it is none any more */
    uint64_t at;       /* likewise: in it */
    bool unnamed;      /* its region could not be registered with this connection: `now` has the
                          address alone, by which it is found for the next one */
};

#define TOLD_NAMES 32u /* CTSs, early ones too: more than can be unanswered */

/* A READ or WRITE under way. */
struct posted {
    bool used, read, with_conn; /* with_conn: false: it waits for the next connection */
    struct ibx_mr *mr;
    uint64_t at; /* in its memory */
    struct ibx_remote remote;
    uint64_t offset;
    size_t n;
    uint64_t cookie;
    unsigned flags;
    unsigned failures;
};

/* Client: connections that brought nothing, one after the other (reconnect.c). */
struct futile {
    uint64_t taken; /* messages of the server, when one broke last */
    uint64_t since; /* ns; when the first of them broke */
    unsigned times;
};

/* What lets a session survive its connection. */
struct session_link {
    struct ibx_state_machine state; /* enum link_state */
    unsigned seconds;               /* for which a broken session is kept; 0: it is not */
    unsigned agreed;                /* the server's */
    uint8_t id[IBX_CLAIM_ID_BYTES];
    uint8_t *secret;       /* IBX_SECRET_BYTES */
    struct ibx_keys *keys; /* client: with which the session goes on */
    uint64_t epoch;        /* of the connection: counts them, also those that broke at once */
    bool server_gone;      /* client: the session is lost with the server's process */
    bool bye;              /* the peer's session has ended ... */
    bool peer_ends;        /* ... with its process */
    bool tells_end;        /* client: the server wants to know that of this one */
    uint32_t process;      /* the peer's, as it says, and which it is valid for; 0: not known */
    uint64_t process_namespace;
    int peer_fd;                    /* a pidfd of its process on this host, or -1 */
    const struct ibx_conn *watched; /* the connection whose waits end with that process */
    unsigned resumed;               /* times */
    uint64_t resumed_at;            /* ns; the last time */
    struct kept kept;
    uint64_t taken[ORDERS]; /* messages of the peer */
    struct memory_name told[TOLD_NAMES];
    unsigned told_next;
    struct memory_name *names; /* server: of earlier epochs */
    unsigned name_count;
    struct futile futile;
    bool only_tcp; /* client: others carry shorter messages than are under way, or lock memory */
    bool unregistered; /* ... the latter, which may change */

    /* Server. */
    struct ibx_waiting *waiting; /* of the listening session and all that it has accepted */
    struct ibx_session *next;    /* there */
    bool has_record;             /* where other processes look */
    int record;                  /* its place there */
    struct ibx_conn *offered;    /* by ibx_session_accept(), which locks it; NULL: none */
    struct ibx_conn *taken_last; /* of these, while it is being established; likewise */
    _Atomic bool has_offer;
    int offer_fd;                     /* an eventfd, or -1 */
    struct ibx_session_report report; /* for others, who lock `waiting` */
    char name[IBX_NAME_MAX + 1];
    bool has_user;
    unsigned user;
};

/* Received and not yet looked at, in order. */
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
    uint64_t remote_at; /* bytes of it already read */
};

/* A long write of this side. */
struct payload {
    const uint8_t *data; /* NULL, server: the hook `deliver` has it */
    size_t length;
    bool stays;              /* client: until the reply, whatever is written before that */
    struct ibx_mr *mr;       /* client: registered for the server's READ, or NULL */
    struct memory_name name; /* client */
    struct payload *next;
};

/* Where the client wants the payload of the reply in hand, from the request until the reply. */
struct early_cts {
    struct ibx_mr *mr; /* client: NULL: its caller registers */
    uint8_t *to;       /* client: NULL: it has not said */
    size_t length;
    struct ibx_remote remote; /* server: of length 0: the client has not said */
};

/* Client: replies to requests that were answered already. */
struct owed {
    uint64_t ever; /* how many there were */
    unsigned count;
    uint8_t head[20]; /* of the one that has begun */
    size_t got;       /* bytes of it */
    uint64_t rest;    /* bytes behind it that have not come */
    ibx_owed_reply *reply;
    void *context;
};

/* Client: memory that both ends map and that stays registered between copies (shared_regions.c). */
#define SHARED_REGIONS 4u
struct shared_region {
    struct ibx_mr *mr; /* NULL: the place is free */
    unsigned users;
    bool left;      /* only its users keep it */
    uint64_t freed; /* ibx_shared_freed() when it was registered */
};

/* A bounded pipeline of registered memory for what cannot be registered itself. */
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

    struct ibx_processes processes;   /* listening */
    bool counted;                     /* in a process of client_processes.h */
    unsigned keep_seconds;            /* for which a broken session is kept; 0: it is not */
    unsigned thread_count;            /* as set; 0: by the processors */
    struct ibx_copy_threads *threads; /* NULL: not made yet, or not wanted */
    bool no_threads;                  /* none are wanted, or none can be made */

    struct session_link link;
    struct ibx_claim_check claim_check; /* of a listening one */

    uint8_t *out;             /* the DATA message being gathered */
    size_t out_size;          /* bytes of it */
    size_t message_max;       /* of a message: out_size, or what the connection takes */
    size_t out_length;        /* 0: nothing gathered, otherwise with the message's head */
    size_t sending;           /* bytes of the message that waits for credit, or for a connection */
    bool out_ahead;           /* client: that is whole requests, in front of the next one */
    size_t out_inline;        /* position of the open inline segment's length, 0: none is open */
    struct payload *payloads; /* of this side, not yet delivered */
    struct payload **payloads_tail;
    bool synced; /* client: payloads have left in a request and the server may need them still */
    uint32_t payloads_read;    /* of the client's: by the server, or as far as the client knows */
    uint32_t payloads_flushed; /* client: of these, such that a FLUSHED told of */

    /* DATA and FLUSH are read in the order of the stream; what answers a CTS, a payload or a FLUSH
     * does not wait behind them. */
    struct message_queue stream, control;
    bool ended; /* CLOSED has come; what was received before is still read */
    bool abandoned;
    int end_status;
    struct owed owed;
    void (*pause)(void *context); /* client: NULL, or between pieces of a wait */
    void *pause_context;
    bool in_frame;            /* bytes have been read since the last sync */
    bool answering;           /* client: the connection is dead and its calls are answered here */
    struct ibx_event current; /* the message being read, type MESSAGE when there is one */
    bool has_current;
    struct ibx_conn *current_conn; /* from which it came, if that has ended; NULL: `conn` */
    struct ibx_reader reader;
    struct segment segment;
    struct segment behind; /* goes on after it, of kind NONE: nothing does */
    uint8_t *gathered;     /* server: a request that came in pieces */
    size_t gathered_size;

    struct posted *posted; /* READs and WRITEs, by their cookies - 1 */
    unsigned posted_size;
    unsigned ops_pending;  /* of them without a completion */
    unsigned ops_posted;   /* of these with the connection */
    int ops_status;        /* the first failure among them */
    bool ops_given_up;     /* some were in GPU memory that the next connection does not know */
    struct ibx_mr *in_use; /* registration of the copy under way */
    struct early_cts early_cts;
    bool settle;                /* server: of the request in hand, SETTLE came */
    bool delayed;               /* server: the reply to the one before is the hook `answer`'s */
    bool placed;                /* client: of the reply in hand, PLACED came */
    struct ibx_mr *bounce;      /* the server's pipeline, or one piece of the client */
    struct ibx_regcache *cache; /* where registration pins memory */
    struct shared_region shared[SHARED_REGIONS];
    unsigned shared_next; /* the place of the next one */
};

/* session.c */

/* The session of an accepted connection. */
int ibx_session_adopt(struct ibx_session *s, struct ibx_conn *conn);
/* Establishes an accepted one; as ibx_session_fail(). */
int ibx_session_establish(struct ibx_session *s);
/* Ends the session without a warning: -ENOTCONN. */
int ibx_session_leave(struct ibx_session *s, const char *why);

/* stream.c */

/* Waits until the current segment has bytes left; as ibx_session_fail(). */
int ibx_session_refill(struct ibx_session *s);
/* Reads n bytes, whatever segments they are in; likewise. */
int ibx_session_read_all(struct ibx_session *s, uint8_t *to, size_t n);
int ibx_session_add_segment(struct ibx_session *s, const uint8_t *bytes, size_t n);
int ibx_session_add_remote(struct ibx_session *s, enum segment_kind kind,
                           const struct ibx_remote *remote);

/* messages.c */

int ibx_messages_init(struct ibx_session *s);
void ibx_messages_fini(struct ibx_session *s);
/* Sends one message, waiting for credit. */
int ibx_session_send(struct ibx_session *s, const struct iovec *iov, int iovcnt);
/* Without waiting: as ibx_send(). */
int ibx_session_try_send(struct ibx_session *s, const struct iovec *iov, int iovcnt);
int ibx_session_send_short(struct ibx_session *s, enum message_type type);
/* The next message of one of the session's queues: to be released. */
int ibx_session_next_message(struct ibx_session *s, struct message_queue *queue,
                             struct ibx_event *event);
/* Waits for the peer's confirmation: a control message of just this type. `what` is confirmed. As
 * ibx_session_fail(). */
int ibx_session_confirmed(struct ibx_session *s, enum message_type type, const char *what);
/* The message being read is no longer needed. */
void ibx_session_release_current(struct ibx_session *s);
/* A message of one byte: just this type. */
bool ibx_message_is(const struct ibx_event *event, enum message_type type);

/* shared_regions.c */

/* The registration of the whole piece of shared memory around [data, data + length), in use until
 * it is put. NULL: register these bytes. */
struct ibx_mr *ibx_shared_region_get(struct ibx_session *s, const void *data, size_t length);
/* False: it is none of these. */
bool ibx_shared_region_put(struct ibx_session *s, struct ibx_mr *mr);
/* Deregisters all that are not in use, and the others when they are put: they are this
 * connection's. */
void ibx_shared_regions_leave(struct ibx_session *s);

/* kept.c */

int ibx_kept_init(struct kept *kept, unsigned slots);
void ibx_kept_fini(struct kept *kept);
/* Notes a message; `sent`: that it has left. -ENOMEM: it was not. */
int ibx_kept_add(struct kept *kept, const struct iovec *iov, int iovcnt, bool sent);
/* Sends those that wait, as far as there is credit. Whether none is left. */
bool ibx_kept_push(struct kept *kept, struct ibx_conn *conn);
/* Its peer has taken all of them. */
void ibx_kept_forget(struct kept *kept);
/* On another connection, whose peer has taken so many. -EPROTO: it cannot have. */
int ibx_kept_rewind(struct kept *kept, const uint64_t taken[ORDERS]);
/* The longest one, bytes. */
size_t ibx_kept_longest(const struct kept *kept);
enum message_order ibx_message_order(uint8_t type);

/* link.c */

void ibx_link_init(struct ibx_session *s);
void ibx_link_fini(struct ibx_session *s);
/* Whether the end of the connection is not that of the session. */
bool ibx_link_survives(const struct ibx_session *s);
/* Whether this host has seen the peer's process end. */
bool ibx_link_peer_died(const struct ibx_session *s);
/* Server: whether the client has come over another connection. */
static inline bool ibx_link_has_offer(const struct ibx_session *s)
{
    return s->link.has_offer;
}
/* The connection has ended: returns when the session goes on over another one. As
 * ibx_session_fail(). */
int ibx_link_resume(struct ibx_session *s);
/* The same if the connection has ended, whether that was noticed or not. False: it lives, or the
 * session has ended. */
bool ibx_link_mend(struct ibx_session *s);

/* reconnect.c: how a client whose connection has broken finds its server again */
struct reconnect {
    uint64_t began;
    unsigned attempts;
    unsigned hasty;         /* of these, before their time since the network had changed */
    unsigned round_trip_ms; /* to the server, at most this long before */
    int changes_fd;         /* ibx_network_changes() */
};
void ibx_reconnect_begin(const struct ibx_session *s, struct reconnect *reconnect);
/* The connection has broken. -EMSGSIZE: it is no use to go on, as others have shown before it. */
int ibx_reconnect_judge(struct ibx_session *s, struct ibx_error *err);
/* One attempt. `reached`: a server that has the session has answered. */
int ibx_reconnect(struct ibx_session *s, struct reconnect *reconnect, bool *reached,
                  struct ibx_conn **fresh, struct ibx_error *err);
/* The path is one of shorter messages than are under way. -EAGAIN: the next attempt is by tcp,
 * which carries them; -EMSGSIZE: this end's options forbid that. */
int ibx_reconnect_by_tcp(struct ibx_session *s, struct ibx_error *err);
/* By that path one of the ends cannot register memory, which says `rc` of it. -EAGAIN: likewise,
 * tcp locks none; rc: that is not to be tried. */
int ibx_reconnect_unregistered(struct ibx_session *s, int rc, struct ibx_error *err);
/* After one that failed with rc: until the next may succeed. */
void ibx_reconnect_pause(const struct ibx_session *s, struct reconnect *reconnect, int rc);
void ibx_reconnect_end(struct reconnect *reconnect);

/* agreement.c */

/* Client, just connected: asks the server to keep the session, and waits for the answer. */
void ibx_link_agree(struct ibx_session *s);
/* A message of the link on an established connection; as ibx_session_fail(). */
int ibx_link_message(struct ibx_session *s, const struct ibx_event *event);
/* The session ends: tells the peer. */
void ibx_link_say_bye(struct ibx_session *s);

/* names.c */

/* As a remote travels in messages: its epoch in front of its length. */
void ibx_name_put(struct ibx_writer *w, const struct ibx_remote *remote, uint64_t epoch);
void ibx_name_get(struct ibx_reader *r, struct ibx_remote *remote);
/* Client: the server is being told of this memory. */
struct memory_name ibx_name_of(const struct ibx_session *s, const struct ibx_remote *remote);
void ibx_name_told(struct ibx_session *s, const struct ibx_remote *remote);
/* Client, around ibx_conn_take_regions(). */
void ibx_names_before(struct ibx_session *s);
void ibx_names_after(struct ibx_session *s);
/* Client: the bytes of the next message NAMES, behind *at; 0: there are no more. */
size_t ibx_names_message(const struct ibx_session *s, uint8_t *bytes, size_t size, unsigned *at);
unsigned ibx_names_count(const struct ibx_session *s);
/* Server: as -errno. */
int ibx_names_take(struct ibx_session *s, const uint8_t *bytes, size_t n);
void ibx_names_clear(struct ibx_session *s);

/* waiting.c: what a server's sessions are found by when their clients come again */

/* `several`: processes, of which each has sessions of its own. */
struct ibx_waiting *ibx_waiting_create(bool several);
/* What these share; NULL: there is one process. */
struct ibx_records *ibx_waiting_records(const struct ibx_waiting *waiting);
struct ibx_waiting *ibx_waiting_hold(struct ibx_waiting *waiting);
void ibx_waiting_release(struct ibx_waiting *waiting);
void ibx_waiting_check(struct ibx_waiting *waiting, struct ibx_claim_check *check);
/* False: there is no place for it. */
bool ibx_waiting_add(struct ibx_session *s);
void ibx_waiting_remove(struct ibx_session *s);
/* Takes the connection, in whatever thread: its session gets it. */
void ibx_waiting_offer(struct ibx_waiting *waiting, struct ibx_conn *conn);
/* The connection that was offered, or NULL. It is to be established, which ends with an error when
 * another one is offered, and then to be used or dropped. */
struct ibx_conn *ibx_waiting_take(struct ibx_session *s);
void ibx_waiting_drop(struct ibx_session *s, struct ibx_conn *conn);
/* s->conn becomes this one. */
void ibx_waiting_use(struct ibx_session *s, struct ibx_conn *conn);
/* The session, `waiting` or not, has gone on by this path, which took so long. */
void ibx_waiting_note(struct ibx_session *s, const struct ibx_path *path, unsigned took_ms);

/* Calls `each` for the sessions that the client of this one may know of: those of its name, and of
 * its user where both are known. Others are locked out meanwhile. */
void ibx_waiting_each(struct ibx_session *asks,
                      void (*each)(void *context, const struct ibx_session_report *report),
                      void *context);

/* report.c */

/* Server: answers SESSIONS. 0 or a negative errno. */
int ibx_report_send(struct ibx_session *s);

/* owed.c */

/* Whether a message of the stream, or a part of one, was not read yet. */
bool ibx_session_has_bytes(const struct ibx_session *s);

/* requests.c */

/* Server: has the hook run requests until there is something for GVirtuS to read; as
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
/* Client: it says that it has READ so many since the beginning. -EPROTO when it cannot have. */
int ibx_rendezvous_confirm(struct ibx_session *s, uint32_t payloads_read);
/* Server: READs n bytes of the current RTS_READ segment into `to`. */
int ibx_rendezvous_take(struct ibx_session *s, uint8_t *to, size_t n);
/* Client: has the server WRITE n bytes of the current RTS_WRITE segment into `to`. */
int ibx_rendezvous_receive(struct ibx_session *s, uint8_t *to, size_t n);
/* Server: WRITEs as the client's CTSs say until every announced payload has arrived. */
int ibx_rendezvous_deliver(struct ibx_session *s);
void ibx_rendezvous_fini(struct ibx_session *s);
/* A READ or WRITE is over; as ibx_session_fail(). */
int ibx_rendezvous_completed(struct ibx_session *s, const struct ibx_event *event);
/* On another connection: forgets what was under way in memory that this one does not know. */
void ibx_rendezvous_give_up(struct ibx_session *s);
/* And begins again all else that was. As ibx_session_fail(). */
int ibx_rendezvous_again(struct ibx_session *s);

#endif
