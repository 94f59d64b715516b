/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What a provider implements. Its users include transport.h instead.
 *
 * core/ cuts READs and WRITEs into chunks, bounds the number in flight, and turns completions into
 * events. handshake/ authenticates both ends and agrees on the provider. A provider moves one chunk
 * or one message at a time and reports the result from inside `progress` only. Its endpoint's life:
 *
 *   open -> server: offer -> client: join -> both: finish -> [work] -> abort -> close
 *
 *   offer   the server writes what a client needs to reach it (a port, an address)
 *   join    the client reads the offer and writes an answer, which may be empty
 *   finish  both sides complete the connection at the same time, before `deadline`; the server has
 *           the answer
 *
 * Each of them may fail. The client then tries the next provider on the same handshake socket, so
 * close must leave nothing behind. All blocking waits go through ibx_link_wait().
 */
#ifndef IBX_TRANSPORT_CORE_PROVIDER_H
#define IBX_TRANSPORT_CORE_PROVIDER_H

#include "common/clock.h"
#include "transport/transport.h"

#include <errno.h>
#include <poll.h>

enum ibx_role { IBX_ROLE_SERVER, IBX_ROLE_CLIENT };

#define IBX_PROOF_BYTES 32

enum ibx_rdma_kind { IBX_RDMA_READ, IBX_RDMA_WRITE };

/* One work request. Lives in the core until reported done. */
struct ibx_chunk {
    enum ibx_rdma_kind kind;
    unsigned lane; /* 0: urgent and messages; 1..caps.lanes: bulk */
    void *local;
    struct ibx_mr *mr;
    uint64_t remote_address;
    const uint64_t *remote_keys; /* IBX_RAILS_MAX of them */
    size_t length;               /* 1..caps.chunk bytes */
    bool more;                   /* may wait for the next progress, as posts with IBX_MORE do */

    uint64_t cookie[2];     /* the provider's until the report */
    struct ibx_chunk *next; /* the provider's until the report */
    struct ibx_chunk *prev;

    struct ibx_op *op; /* the core's */
};

struct ibx_mr {
    struct ibx_conn *conn;
    struct ibx_span span;
    unsigned access;
    bool allocated; /* by the provider, in mr_register with a NULL address */
    bool dead; /* set by the core: the region was moved to a connection that cannot register it.
                  Memory that was allocated is on the heap meanwhile */
    const struct ibx_mr *twin;    /* in mr_register only: NULL, or a region of the same memory and
                                     access in the same provider and domain, which may be shared */
    uint64_t keys[IBX_RAILS_MAX]; /* set by mr_register, sent to peers by ibx_mr_remote() */
    void *provider_data;
    struct ibx_mr *next, *prev; /* the core's list */
};

struct ibx_link;
struct ibx_tls;

/* How a provider reports. fault_injection/ puts its own in between. */
struct ibx_upcalls {
    /* A chunk accepted by `rdma` is over: status 0 or negative errno. Exactly once each. */
    void (*chunk_done)(struct ibx_link *link, struct ibx_chunk *chunk, int status);
    /* A message arrived; `data` stays valid until `release` is called with `slot`, and nobody else
     * can write to it: the core checks its MAC there. In the order of the peer's sends. */
    void (*message)(struct ibx_link *link, const void *data, size_t length, uint64_t slot);
    /* A send with IBX_SIGNALED is over. */
    void (*send_done)(struct ibx_link *link, uint64_t cookie, int status);
    /* The connection is over, with a reason in one sentence. May be repeated, the first counts. */
    void (*lost)(struct ibx_link *link, int status, const char *reason);
};

/* The core's side of a connection as a provider sees it. */
struct ibx_link {
    const struct ibx_upcalls *up;
    struct ibx_conn *conn;
    void *owner; /* for whoever implements the upcalls */
};

/* `slots` and `message` are the values that both ends agreed on. */
const struct ibx_options *ibx_link_options(const struct ibx_link *link);
/* domain.c: takes one more reference, until ibx_domain_release(). NULL stays NULL. */
struct ibx_domain *ibx_domain_hold(struct ibx_domain *domain);
enum ibx_role ibx_link_role(const struct ibx_link *link);
/* The connected handshake socket: for addresses (getsockname, getpeername) and, with
 * `takes_socket`, for the provider's own use once finish has returned on both sides. */
int ibx_link_socket(const struct ibx_link *link);
/* The TLS state of the handshake socket, with which a provider that takes the socket continues;
 * NULL: the socket is not encrypted. Further sockets of an encrypted connection have to be
 * encrypted as well, with a PSK by ibx_link_proof(). */
struct ibx_tls *ibx_link_tls(const struct ibx_link *link);
/* 32 bytes that only the two authenticated ends of this connection can compute, different for each
 * label: proof that a further socket or an rdma_cm request belongs to it. Compare it with
 * ibx_hash_equal(). */
void ibx_link_proof(const struct ibx_link *link, const char *label, uint8_t proof[IBX_PROOF_BYTES]);
/* Waits in offer, join or finish until `fd` has `events` (poll(2)): 0. -ETIMEDOUT; -ECANCELED: the
 * peer gave this attempt up, or is gone. */
int ibx_link_wait(struct ibx_link *link, int fd, short events, uint64_t deadline_ns);
/* Waits a moment, until one of this process's descriptors may be free again: 0, also after the
 * deadline; -ECANCELED. */
static inline int ibx_link_pause(struct ibx_link *link, uint64_t deadline_ns)
{
    const uint64_t until = ibx_deadline_in_ms(10);
    const int rc = ibx_link_wait(link, -1, POLLIN, until < deadline_ns ? until : deadline_ns);
    return rc == -ETIMEDOUT ? 0 : rc;
}
/* Whether accept4(2) failed with this code for want of a descriptor or memory: then a connection
 * still waits to be accepted. */
static inline bool ibx_accept_shortage(int code)
{
    return code == EMFILE || code == ENFILE || code == ENOBUFS || code == ENOMEM;
}
/* From finish on: POLLIN on `fd` (level-triggered) wakes a sleeper on ibx_fd(). The provider calls
 * ibx_link_unwatch() before it closes the fd. */
int ibx_link_watch(struct ibx_link *link, int fd);
void ibx_link_unwatch(struct ibx_link *link, int fd);

/* domain.c: what a provider opens once for all connections of a domain, such as a device. It is the
 * first member of the provider's own struct. */
struct ibx_domain_part {
    const struct ibx_domain_part_ops *ops;
    struct ibx_domain *domain; /* NULL: it belongs to one connection */
    struct ibx_domain_part *next;
    pid_t process;
    unsigned holders;
};

struct ibx_domain_part_ops {
    bool (*fits)(const struct ibx_domain_part *part, const void *want);
    /* Opens a part for `want`. With a domain, its connections will share the part. domain.c sets
     * the fields of struct ibx_domain_part. */
    int (*open)(void *want, const struct ibx_domain *domain, struct ibx_domain_part **part,
                struct ibx_error *err);
    void (*close)(struct ibx_domain_part *part); /* frees it, too */
};

/* Takes a part of the domain that fits, or opens a new one, until ibx_domain_part_release(), which
 * accepts NULL. Errors are those of `open`. From any thread. */
int ibx_domain_part_hold(struct ibx_domain *domain, const struct ibx_domain_part_ops *ops,
                         void *want, struct ibx_domain_part **part, struct ibx_error *err);
void ibx_domain_part_release(struct ibx_domain_part *part);

/* Copies a gather list to `out`, for a provider's `send`; returns the end. */
static inline uint8_t *ibx_gather(uint8_t *out, const struct iovec *iov, int iovcnt)
{
    for (int i = 0; i < iovcnt; i++) {
        if (iov[i].iov_len)
            memcpy(out, iov[i].iov_base, iov[i].iov_len);
        out += iov[i].iov_len;
    }
    return out;
}

struct ibx_provider {
    const char *name;
    bool takes_socket; /* it uses the handshake socket after finish, and notices its EOF */

    /* Whether this host can use it: "mlx5_0 port 1 (200 Gb/s)", or the reason against it. */
    int (*probe)(const struct ibx_options *options, char *description, size_t size,
                 struct ibx_error *err);

    /* Bytes of message buffers that an idle connection with these options may hold. Optional. */
    size_t (*message_memory)(const struct ibx_options *options);

    int (*open)(struct ibx_link *link, void **endpoint, struct ibx_error *err);
    int (*offer)(void *endpoint, struct ibx_writer *offer, struct ibx_error *err);
    int (*join)(void *endpoint, struct ibx_reader *offer, struct ibx_writer *answer,
                struct ibx_error *err);
    /* `answer` is NULL on the client. */
    int (*finish)(void *endpoint, struct ibx_reader *answer, uint64_t deadline_ns,
                  struct ibx_error *err);
    /* After finish: fills caps (all fields) and a description for ibx_path. */
    void (*query)(void *endpoint, struct ibx_caps *caps, char *description, size_t size);
    /* As ibx_receive_ahead(). Optional. */
    void (*receive_ahead)(void *endpoint);
    /* As ibx_pad(). Optional. */
    void (*pad)(void *endpoint, size_t bytes);

    /* Fills mr->keys and mr->provider_data. With mr->allocated it first allocates span.length
     * zeroed bytes and sets span.address. */
    int (*mr_register)(void *endpoint, struct ibx_mr *mr, struct ibx_error *err);
    void (*mr_deregister)(void *endpoint, struct ibx_mr *mr);
    /* As ibx_remote_hold(), ibx_remote_release() and ibx_remote_copy(). Optional, all three or
     * none. */
    int (*remote_hold)(void *endpoint, const struct ibx_remote *remote, unsigned access,
                       struct ibx_reach *reach);
    void (*remote_release)(void *endpoint);
    int (*remote_copy)(void *endpoint, bool read, void *local, uint64_t address, size_t length);

    /* As ibx_shared_give() and ibx_shared_of_peer(). Optional, both or none. */
    int (*shared_give)(void *endpoint);
    int (*shared_of_peer)(void *endpoint, uint64_t *bytes);

    /* Takes a chunk: 0, or -EAGAIN when no more fits now (asked again after progress), or another
     * negative errno, which ends the connection. No upcall from inside. */
    int (*rdma)(void *endpoint, struct ibx_chunk *chunk);
    /* Copies a message out of iov and sends it: 0, -EAGAIN without credit. No upcall from inside.
     */
    int (*send)(void *endpoint, const struct iovec *iov, int iovcnt, size_t length, uint64_t cookie,
                unsigned flags);
    void (*release)(void *endpoint, uint64_t slot);
    /* Carries work on and makes the upcalls. Returns their number plus the work done for the peer
     * without an upcall; 0 when idle. Never blocks. */
    int (*progress)(void *endpoint);
    /* Looks whether the peer has sent something, which costs less than progress: at most `times`
     * times, with a pause between two looks. Returns as soon as there is something for progress to
     * do. Optional. */
    void (*look)(void *endpoint, unsigned times);
    /* 0: sleeping on the watched fds is safe now; 1: call progress again first. */
    int (*arm)(void *endpoint);

    /* Stops: `rdma` and `send` are not called any more. Chunks in flight are reported with
     * -ECONNRESET from here or from later progress, once the fabric no longer touches their memory.
     */
    void (*abort)(void *endpoint);
    /* Frees everything, after any stage of the life above. All regions are deregistered. */
    void (*close)(void *endpoint);
};

const struct ibx_provider *ibx_provider_find(const char *name);

extern const struct ibx_provider ibx_provider_shm;
extern const struct ibx_provider ibx_provider_verbs;
extern const struct ibx_provider ibx_provider_ofi;
extern const struct ibx_provider ibx_provider_tcp;

#endif
