/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared by session.c (the stream) and body.c (long pieces of it, moved one-sidedly). */
#ifndef IBX_FRONTEND_GLUE_SESSION_SESSION_INTERNAL_H
#define IBX_FRONTEND_GLUE_SESSION_SESSION_INTERNAL_H

#include "frontend-glue/device_copies/copies.h"
#include "frontend-glue/session/session.h"
#include "transport/core/regcache.h"

/*
 * What the messages of a session hold; docs/protocol.md has the bytes.
 *
 *   DATA     both ways    segments of the stream, in order; the server's
 *                         say how many bodies it has read
 *   GRANT    to server    memory for the next bytes of the body the server
 *                         announced
 *   DONE     to client    those bytes have been written
 *   FLUSH    to server    say when every body so far has been read ...
 *   FLUSHED  to client    ... now
 *   LANDED   to client    the body for the landing memory has been written
 */
enum message_type {
    MESSAGE_DATA = 1,
    MESSAGE_GRANT,
    MESSAGE_DONE,
    MESSAGE_FLUSH,
    MESSAGE_FLUSHED,
    MESSAGE_LANDED,
};

enum segment_kind {
    SEGMENT_NONE = 0,
    SEGMENT_INLINE,  /* u32 length, the bytes; the server's of length 0: it takes LANDING */
    SEGMENT_EXPOSED, /* client only: an ibx_remote that the server READs */
    SEGMENT_PENDING, /* server only: u64 length, to be WRITten where the client grants */
    SEGMENT_LANDING, /* client only: an ibx_remote, lent for one body of a reply */
    SEGMENT_LANDED,  /* server only: u64 length, to be WRITten there */
    SEGMENT_AIM,     /* client only: an ibx_remote, for the payload of this request's reply */
    SEGMENT_AIMED,   /* server only: u64 length, it went there */
    SEGMENT_SETTLE,  /* client only: answer this copy when it is done, whatever it says */
    SEGMENT_PLACED,  /* server only: the GPU itself was at the client's memory */
};

#define SEGMENT_HEAD_INLINE   5u /* kind, u32 length */
#define SEGMENT_LANDING_BYTES (1u + IBX_REMOTE_BYTES)

/*
 *   NEW --serve--> LISTENING
 *   NEW --connect--> LIVE --end, error, close--> DEAD
 *   KNOCKED (accepted) --first read--> LIVE
 */
enum session_state {
    SESSION_NEW,
    SESSION_LISTENING,
    SESSION_KNOCKED,
    SESSION_LIVE,
    SESSION_DEAD,
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

/* A long write of this side: the client's is exposed, the server's lands or waits for grants. */
struct body {
    const uint8_t *data; /* NULL, server: it comes from the GPU, by ibx_copies_deliver() */
    size_t length;
    struct ibx_mr *mr;         /* the client's exposed region */
    struct ibx_remote landing; /* the server's: where it goes, of length 0: where it is granted */
    struct body *next;
};

/* Memory of the client for one body, lent from the request that says so until the body is read. */
struct landing {
    struct ibx_mr *mr;        /* client: NULL until there was a reply that it would have served */
    bool welcome;             /* client: the server takes LANDING */
    bool refused;             /* client: there is no memory for it */
    bool lent;                /* client: the server may WRITE into it */
    bool arrived;             /* client: it has */
    size_t taken;             /* client: bytes of the body already read */
    struct ibx_remote remote; /* server: lent to it, of length 0: none is */
};

/* Where the client wants the payload of the reply in hand, from the request until the reply. */
struct aim {
    struct ibx_mr *mr; /* client: NULL: it did not say */
    bool lent;         /* client: and the registration is kept by who said it */
    uint8_t *to;
    size_t length;
    struct ibx_remote remote; /* server: of length 0: the client did not say, or it was used */
};

/* A bounded pipeline of registered memory for what cannot be registered itself. */
#define BOUNCE_PIECES      4u
#define BOUNCE_PIECE_BYTES (256u << 10)

struct ibx_session {
    enum session_state state;
    bool server;
    char *uri;
    struct ibx_options options;
    struct ibx_listener *listener;
    struct ibx_conn *conn;
    const struct ibx_caps *caps;
    struct ibx_path path;
    char reason[IBX_ERROR_MAX];

    uint8_t *out;        /* the DATA message being gathered, caps->message_max bytes */
    size_t out_length;   /* 0: nothing gathered, otherwise with the message's head */
    size_t out_inline;   /* position of the open inline segment's length, 0: none is open */
    struct body *bodies; /* of this side, not yet delivered */
    struct body **bodies_tail;
    bool synced; /* client: bodies have left in a request and the server may need them still */
    uint32_t bodies_read; /* of the client's: by the server, or as far as the client knows */

    /* DATA and FLUSH are read in the order of the stream; what answers a GRANT, a body or a FLUSH
     * does not wait behind them. */
    struct message_queue stream, control;
    bool ended; /* CLOSED has come; what was received before is still read */
    int end_status;
    bool in_frame;            /* bytes have been read since the last sync */
    bool answering;           /* client: the connection is dead and its calls are answered here */
    struct ibx_event current; /* the message being read, type MESSAGE when there is one */
    bool has_current;
    struct ibx_reader reader;
    struct segment segment;
    struct segment behind; /* goes on after it, of kind NONE: nothing does */
    struct copies copies;  /* server */

    unsigned ops_pending;  /* READs and WRITEs without a completion */
    int ops_status;        /* the first failure among them */
    struct ibx_mr *in_use; /* registration of the copy under way */
    struct landing landing;
    struct aim aim;
    bool settle;                /* server: of the request in hand, SETTLE came */
    bool placed;                /* client: of the reply in hand, PLACED came */
    struct client_stage *stage; /* client; NULL: not made yet */
    struct ibx_mr *bounce;      /* the server's pipeline, or one piece of the client */
    struct ibx_regcache *cache; /* where registration pins memory */
};

/* session.c */

/* Ends the session with a sentence: logs, closes, returns `code`. */
int ibx_session_fail(struct ibx_session *s, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Ends it without a complaint: -ENOTCONN. */
int ibx_session_leave(struct ibx_session *s, const char *why);

/* Waits until the current segment has bytes left. */
int ibx_session_refill(struct ibx_session *s);
/* Reads n bytes, of which it has no fewer. */
int ibx_session_read_some(struct ibx_session *s, uint8_t *to, size_t n);
/* Adds bytes to the message being gathered, which leaves whenever it is full. */
int ibx_session_gather(struct ibx_session *s, const uint8_t *from, size_t n);
int ibx_session_add_segment(struct ibx_session *s, const uint8_t *bytes, size_t n);
/* A long write by reference; server: of NULL, it comes from the GPU. 1: it has to be copied. */
int ibx_session_write_body(struct ibx_session *s, const void *data, size_t n);

/* answer.c */

#define IBX_CUDA_ERROR_UNKNOWN 999 /* what every call returns once the back end is gone */
/* Client: says that it is, once a session; the calls that follow are answered in silence. */
void ibx_session_tell_end(struct ibx_session *s);

/* messages.c */

int ibx_messages_init(struct ibx_session *s);
void ibx_messages_fini(struct ibx_session *s);
/* Waits for at least one event and files what came. */
int ibx_session_pump(struct ibx_session *s);
/* The same without waiting: how many came. */
int ibx_session_poll(struct ibx_session *s);
/* Sends one message, waiting for credit. */
int ibx_session_send(struct ibx_session *s, const struct iovec *iov, int iovcnt);
int ibx_session_send_short(struct ibx_session *s, enum message_type type);
/* The next message of one of the session's queues: to be released. */
int ibx_session_next_message(struct ibx_session *s, struct message_queue *queue,
                             struct ibx_event *event);
/* Client: n bytes are about to move, and a thread that sleeps meanwhile is woken long after. */
void ibx_session_expect(struct ibx_session *s, uint64_t n);
/* A message of one byte: just this type. */
bool ibx_message_is(const struct ibx_event *event, enum message_type type);

/* body.c */

/* Client: registers a long write for the server's READ. -errno: send it inline instead. */
int ibx_rendezvous_expose(struct ibx_session *s, const void *data, size_t length,
                          struct ibx_remote *remote);
/* Client: registers where a reply's payload is to go, until ibx_rendezvous_unpost(). -errno: do not
 * ask. */
int ibx_rendezvous_prepost(struct ibx_session *s, void *to, size_t n, struct ibx_remote *remote);
void ibx_rendezvous_unpost(struct ibx_session *s);
/* Server: notes a long write, which goes to the landing memory if it fits in. */
int ibx_rendezvous_announce(struct ibx_session *s, const void *data, size_t length);
/* Client: a long write in memory that is registered for longer. -ENOMEM. */
int ibx_rendezvous_note(struct ibx_session *s, const void *data, size_t length);
/* Client: the server has read them all. */
void ibx_rendezvous_drop(struct ibx_session *s);
/* Client: it says that it has read so many since the beginning. -EPROTO when it cannot have. */
int ibx_rendezvous_confirm(struct ibx_session *s, uint32_t bodies_read);
/* Server: READs n bytes of the current exposed segment into `to`. */
int ibx_rendezvous_take(struct ibx_session *s, uint8_t *to, size_t n);
/* Client: has the server WRITE n bytes of the current pending segment into `to`. */
int ibx_rendezvous_receive(struct ibx_session *s, uint8_t *to, size_t n);
/* Server: WRITEs what the client grants until every announced body has arrived. */
int ibx_rendezvous_deliver(struct ibx_session *s);
void ibx_rendezvous_fini(struct ibx_session *s);

/* landing.c */

/* Client: sees each segment; after a body that could have landed it has memory to lend. */
void ibx_posted_reply_prepare(struct ibx_session *s, enum segment_kind kind, uint64_t length);
/* Client: the segment that lends it, or nothing: bytes written. */
size_t ibx_posted_reply_lend(struct ibx_session *s, uint8_t *bytes, size_t size);
/* Client: whether a body of that length may land. */
bool ibx_posted_reply_expects(const struct ibx_session *s, uint64_t length);
/* Client: LANDED has come. */
int ibx_posted_reply_arrived(struct ibx_session *s);
/* Client: the next n bytes of the body that landed. */
int ibx_posted_reply_take(struct ibx_session *s, uint8_t *to, size_t n);
/* Server: whether a body of that length has a place to land. */
bool ibx_posted_reply_fits(const struct ibx_session *s, size_t length);

#endif
