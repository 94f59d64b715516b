/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The core's own view of a connection: shared by conn.c, memory.c, chunks.c, door*.c and
 * listen.c only. */
#ifndef IBX_TRANSPORT_CORE_CONN_H
#define IBX_TRANSPORT_CORE_CONN_H

#include "transport/handshake/auth.h"
#include "transport/core/provider.h"

#include <sys/types.h>

/*
 *   KNOCKED --establish/connect--> LIVE --lost--> DRAINING --in flight = 0--> ENDED
 *      \_______________failure_______________________________________________/^
 *
 * In DRAINING the provider still may touch memory of chunks in flight. ENDED has put
 * IBX_EVENT_CLOSED in the queue (or never came to life).
 */
enum conn_state { CONN_KNOCKED, CONN_LIVE, CONN_DRAINING, CONN_ENDED };

/* One READ or WRITE as posted, cut into chunks as the fabric takes them. */
struct ibx_op {
    enum ibx_rdma_kind kind;
    bool urgent;
    int status; /* the first failure */
    uint64_t cookie;
    struct ibx_mr *mr;
    char *local;     /* of the next chunk */
    uint64_t remote; /* likewise */
    uint64_t keys[IBX_RAILS_MAX];
    size_t left;          /* bytes not yet given to the provider */
    unsigned outstanding; /* chunks in the provider */
    struct ibx_op *next;
};

struct op_queue {
    struct ibx_op *head, **tail;
};

struct event_ring {
    struct ibx_event *items;
    unsigned capacity, head, count; /* capacity is a power of two */
};

/* The door: framed, authenticated dialogue before establishment, then only watched. */
struct door {
    int fd;
    bool authenticated; /* frames carry MACs now */
    uint8_t session_key[IBX_HASH_BYTES];
    uint8_t transcript[IBX_HASH_BYTES]; /* running hash of all frames before authentication */
    uint64_t sent, received;            /* frames, for the MACs */
    bool result_known;                  /* the peer's RESULT came while we were still waiting */
    int result;                         /* 0 or -errno of the peer's attempt */
    char result_reason[256];
};

struct ibx_conn {
    enum conn_state state;
    enum ibx_role role;
    struct ibx_options options;
    char uri[300]; /* as given, for messages */
    struct ibx_key key;
    struct door door;
    struct ibx_path path;
    struct ibx_caps caps;

    struct ibx_link link;
    const struct ibx_provider *inner;    /* the fabric's */
    const struct ibx_provider *provider; /* inner, or faulty round it */
    void *endpoint;
    struct ibx_mr *regions;

    struct op_queue bulk, urgent; /* ops with bytes left to give */
    struct ibx_op *free_ops;
    struct ibx_chunk *chunks; /* all of them */
    struct ibx_chunk *free_bulk, *free_urgent;
    unsigned in_flight; /* chunks in the provider */
    unsigned next_lane;
    struct event_ring events;
    unsigned events_reserved; /* completions that are still to come, for which the ring has room */

    int epoll_fd, wake_fd;
    uint64_t expected; /* until then an event is due, ibx_now_ns(), 0: nobody said so */
    unsigned polls;    /* since the door was last looked at, idle ones weighted */
    unsigned futile;   /* times in a row that busy polling has found nothing ... */
    unsigned skipped;  /* ... and waits without it since there were too many */
    unsigned lost;     /* weight of the times that it lost the core meanwhile, fading */
    bool starved;      /* a send found no credit ... */
    bool fed;          /* ... and something has moved since, perhaps credit */
    bool moved;        /* something has, since sleeping was last allowed */
    unsigned late;     /* messages that came when the end was known */
    int lost_status;
    char lost_reason[256];
    pid_t owner; /* the process that established it, 0: none yet */
};

/* chunks.c */
int ibx_chunks_init(struct ibx_conn *conn);
void ibx_chunks_fini(struct ibx_conn *conn);
/* Gives queued work to the provider as far as it takes it. */
void ibx_chunks_dispatch(struct ibx_conn *conn);
/* Completes everything not yet given to the provider with `status`. */
void ibx_chunks_flush(struct ibx_conn *conn, int status);
void ibx_chunk_done(struct ibx_conn *conn, struct ibx_chunk *chunk, int status);
/* -ENOMEM when the ring cannot grow. */
int ibx_events_push(struct ibx_conn *conn, const struct ibx_event *event);
bool ibx_events_pop(struct ibx_conn *conn, struct ibx_event *event);

/* conn.c */
void ibx_conn_lost(struct ibx_conn *conn, int status, const char *reason);
/* door.c needs a connection round a socket; takes the fd in any case. */
struct ibx_conn *ibx_conn_new(int fd, enum ibx_role role, const struct ibx_options *options);
/* Called by door.c when a provider stands on both sides. */
int ibx_conn_live(struct ibx_conn *conn, struct ibx_error *err);

/* door.c */
int ibx_handshake_server(struct ibx_conn *conn, struct ibx_error *err);
int ibx_handshake_client(struct ibx_conn *conn, struct ibx_error *err);
int ibx_handshake_wait(struct ibx_conn *conn, int fd, short events, uint64_t deadline_ns);

/* listen.c */
int ibx_handshake_connect(const struct ibx_uri *uri, unsigned timeout_ms, int *fd,
                          struct ibx_error *err);
/* "[::1]:5000", "10.0.0.7:4000" or "unix socket". */
void ibx_peer_name(int fd, char *out, size_t size);

#endif
