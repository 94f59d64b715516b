/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A connection inside core/, and what handshake/ needs to set one up:
 *
 *   conn.c         its life: events, messages, the end
 *   wait.c         sleeping, busy polling, waking
 *   chunks.c       READs and WRITEs as chunks in flight, and the event queue
 *   own_address.c  the end of a connection whose address this host has lost
 *   round_trip.c   how far away the peer is
 *   regions.c      memory regions, and the peer's memory as posts and copies name it
 *   path_choice.c  which provider carries it: the choice of the path for rdma://
 *
 * conn.c calls chunks.c, which calls back only for ibx_conn_lost(). The other files of core/ know
 * no connection: providers.c (the table of providers), domain.c, remote.c, options.c, uri.c,
 * crypto.c, secret.c, mac.c, segments.c (hosts that long packets do not reach), TLS (tls*.c) and
 * the registration cache, regcache.c with regcache_watch.c.
 */
#ifndef IBX_TRANSPORT_CORE_CONN_H
#define IBX_TRANSPORT_CORE_CONN_H

#include "common/state_machine.h"
#include "transport/core/crypto.h"
#include "transport/core/mac.h"
#include "transport/core/provider.h"
#include "transport/core/tls.h"

#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/types.h>

/*
 * state machine: connection
 *   [*] -> REQUESTED -> ESTABLISHED -> LOST -> DRAINING -> CLOSED -> [*]
 *   REQUESTED -> CLOSED                           setting up failed
 *
 * LOST: the end is known, but messages from before it are still taken in. DRAINING: the provider
 * may still touch the memory of chunks in flight. CLOSED: IBX_EVENT_CLOSED is queued.
 */
enum conn_state { CONN_REQUESTED, CONN_ESTABLISHED, CONN_LOST, CONN_DRAINING, CONN_CLOSED };

/* One READ or WRITE as posted, cut into chunks as the fabric takes them. */
struct ibx_op {
    enum ibx_rdma_kind kind;
    bool urgent, more;
    int status; /* the first failure */
    uint64_t cookie;
    struct ibx_mr *mr;
    char *local;     /* of the next chunk */
    uint64_t remote; /* of the next chunk */
    uint64_t keys[IBX_RAILS_MAX];
    size_t left;          /* bytes not yet given to the provider */
    unsigned outstanding; /* chunks in the provider */
    struct ibx_op *next;
};

/* Ops with bytes left to give to the provider, and the chunks for them. */
struct op_queue {
    struct ibx_op *head, **tail;
    struct ibx_chunk *free;
};

struct event_ring {
    struct ibx_event *items;
    unsigned capacity, head, count; /* capacity is a power of two */
};

/* When ibx_wait() polls busily, and what that has brought: wait.c. */
struct busy_polling {
    uint64_t expected; /* an event is due until then, ibx_now_ns(); 0: unknown */
    unsigned futile;   /* times in a row that it found nothing */
    unsigned skipped;  /* waits in a row without it */
    unsigned losses;   /* weight of the times that it lost the processor, fading */
};

/* What sets a connection up. handshake/ implements it; core/ calls it until the connection is
 * established or closed. */
struct ibx_conn_setup {
    int (*wait)(struct ibx_conn_setup *setup, int fd, short events, uint64_t deadline_ns);
    void (*destroy)(struct ibx_conn_setup *setup);
};

struct ibx_conn {
    struct ibx_state_machine state; /* enum conn_state */
    enum ibx_role role;
    struct ibx_options options;
    struct ibx_path path;
    struct ibx_caps caps;
    struct sockaddr_storage peer; /* of the handshake socket, once established */
    unsigned segment;             /* TCP's segment size there in bytes, once established */
    int handshake_socket;         /* after establishment it only shows that the peer is alive */
    bool encrypt;                 /* both ends agreed on TLS for every socket of this connection */
    bool same_host;               /* the client knows that the server runs on its own kernel */
    uint8_t *session_key;         /* IBX_HASH_BYTES, in no core dump; NULL until there is one */
    bool keyed;                   /* both ends have proven that they know a key */
    struct ibx_tls *tls;          /* over the handshake socket, from the proofs on; NULL: plain */
    struct ibx_mac *mac;          /* of messages; NULL: they carry none */
    struct ibx_conn_setup *setup; /* NULL once established */

    struct ibx_link link;
    const struct ibx_provider *provider;
    void *endpoint;
    struct ibx_mr *regions;

    struct op_queue bulk, urgent;
    struct ibx_op *free_ops;
    struct ibx_chunk *chunks; /* all of them */
    unsigned in_flight;       /* chunks in the provider */
    unsigned next_lane;
    struct event_ring events;
    unsigned events_reserved; /* completions to come, for which the ring has room */

    int epoll_fd, wake_fd;
    bool watch_fired; /* of ibx_wait_watch() */
    int address_fd;   /* own_address.c: readable when an address has come or gone; -1: none */
    struct busy_polling busy;
    unsigned polls;   /* since the handshake socket was last looked at; idle ones count more */
    bool starved;     /* a send found no credit */
    bool replenished; /* there was progress since: perhaps credit */
    bool progressed;  /* since sleeping was last allowed */
    unsigned late;    /* messages that came when the end was known */
    int lost_status;
    char lost_reason[256];
    _Atomic pid_t owner; /* the process that established it, 0: none yet */
    unsigned forks;      /* ibx_conn_forks in that process */
    bool has_claimed, has_program;
    uint8_t claimed[IBX_CLAIM_ID_BYTES]; /* server: the id that the client has claimed and proven */
    uint8_t program[IBX_PROGRAM_BYTES];  /* server: the client's program, which proves nothing */
};

/* Grows in each forked child. */
extern _Atomic unsigned ibx_conn_forks;

/* Whether a forked child has this copy of its parent's connection. Whatever it did would meet what
 * the parent does: both would send under the same numbers, so that two messages had one MAC key or
 * one nonce, and take each other's bytes from a socket and credits from shared memory. */
static inline bool ibx_conn_is_copy(const struct ibx_conn *conn)
{
    return conn->forks != atomic_load_explicit(&ibx_conn_forks, memory_order_relaxed);
}

static inline bool ibx_conn_is_up(const struct ibx_conn *conn)
{
    return conn->state.now == CONN_ESTABLISHED && !ibx_conn_is_copy(conn);
}

/* Whether regions can be made and the peer's memory be reached. */
static inline bool ibx_conn_has_endpoint(const struct ibx_conn *conn)
{
    return (conn->state.now == CONN_ESTABLISHED || conn->state.now == CONN_LOST) &&
           !ibx_conn_is_copy(conn);
}

/* For handshake/. */

/* Takes `fd` and `setup`, also on failure: NULL, -ENOMEM in `err`. */
struct ibx_conn *ibx_conn_create(int fd, enum ibx_role role, const struct ibx_options *options,
                                 struct ibx_conn_setup *setup, struct ibx_error *err);
/* Makes the descriptors that ibx_link_watch() needs, before any provider is opened. */
int ibx_conn_prepare(struct ibx_conn *conn, struct ibx_error *err);
/* Both sides have set up the endpoint: REQUESTED -> ESTABLISHED. */
int ibx_conn_establish(struct ibx_conn *conn, struct ibx_error *err);
/* Setting up failed: REQUESTED -> CLOSED. */
void ibx_conn_fail(struct ibx_conn *conn);

/* own_address.c. */

/* From now on the connection ends when this host loses the connection's address, if the options say
 * so. If the kernel does not report such changes, it ends only by the peer's silence. */
void ibx_own_address_watch(struct ibx_conn *conn);
/* Call it after address_fd was readable. */
void ibx_own_address_check(struct ibx_conn *conn);

/* round_trip.c: nanoseconds, the least that the handshake's socket has seen; 0: not known. */
uint64_t ibx_conn_round_trip(const struct ibx_conn *conn);

/* path_choice.c, for handshake/. */

/* The client's next candidate; `*index` begins with 0. -ENOENT: there are no more. */
int ibx_path_next(struct ibx_conn *conn, unsigned *index, char name[16]);
/* Whether the server's options allow this provider. */
bool ibx_path_allowed(const struct ibx_options *options, const char *name);
/* Opens an endpoint of the provider for the connection. */
int ibx_path_open(struct ibx_conn *conn, const char *name, struct ibx_error *err);
void ibx_path_close(struct ibx_conn *conn);
/* Notes in ibx_conn_path() why this provider was not taken; `code` is a negative errno. A client
 * warns if that is shared memory, and `code` one that somebody else may have caused. */
void ibx_path_refused(struct ibx_conn *conn, const char *name, int code, const char *reason);
/* A client warns when payloads over an established connection are not protected, though they could
 * be (a key, another host), or were the last time. Call it after path.encrypted is set. */
void ibx_path_warn(const struct ibx_conn *conn);
/* -ENOTSUP: every candidate was refused, with all the reasons. */
int ibx_path_none(const struct ibx_conn *conn, struct ibx_error *err);

/* conn.c, for core/. */

void ibx_conn_lost(struct ibx_conn *conn, int status, const char *reason);
/* Looks whether the peer still has the handshake socket open. */
void ibx_conn_check_peer(struct ibx_conn *conn);
/* Makes one round of progress, and returns what the provider's progress() has returned. */
int ibx_conn_progress(struct ibx_conn *conn);

/* chunks.c */

int ibx_chunks_init(struct ibx_conn *conn);
void ibx_chunks_fini(struct ibx_conn *conn);
/* Gives queued work to the provider as far as it takes it. */
void ibx_chunks_dispatch(struct ibx_conn *conn);
/* Completes everything not yet given to the provider with `status`. */
void ibx_chunks_flush(struct ibx_conn *conn, int status);
/* The upcall of that name. */
void ibx_chunk_done(struct ibx_link *link, struct ibx_chunk *chunk, int status);
/* -ENOMEM when the ring cannot grow. */
int ibx_events_push(struct ibx_conn *conn, const struct ibx_event *event);
bool ibx_events_pop(struct ibx_conn *conn, struct ibx_event *event);

#endif
