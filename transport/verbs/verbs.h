/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The verbs provider: InfiniBand and RoCE. The core calls it through ibx_provider_verbs; this
 * header is for the folder only.
 *
 * A lane is one reliable queue pair, set up by rdma_cm: lane 0 carries messages and urgent chunks,
 * the others carry bulk. A rail is one device with the protection domain, completion queue and
 * registrations that its lanes share. Other connections have others, so that a key of one
 * connection is invalid on another; but those of one domain (transport.h) share protection
 * domains, and registrations by ibx_mr_share().
 *
 *   verbs.c    the provider's calls: progress(), the end
 *   chunks.c   READs and WRITEs in flight
 *   completions.c  what a completion means; what a failed work request says
 *   cm.c       offer, join, finish: addresses, routes, proofs by rdma_cm
 *   qp.c       rails and queue pairs
 *   message.c  messages on lane 0, their buffers and credits
 *   mr.c       memory regions, one registration a rail
 *   domain.c   the open device that the connections of a domain share
 *   device.c   which devices this host has, and which addresses lie on them
 *
 * When the peer's process dies, rdma_cm reports a disconnection. When its host or the network dies,
 * a work request fails after its retries, which take timeout_ms at most (ack_timeout() in qp.c); an
 * idle connection is closed with the socket of the handshake.
 */
#ifndef IBX_TRANSPORT_VERBS_VERBS_H
#define IBX_TRANSPORT_VERBS_VERBS_H

#include "common/state_machine.h"
#include "transport/core/provider.h"

#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <sys/socket.h>

#define VERBS_LANES_MAX 16u /* bulk lanes a rail */

/* The port that a rail uses; two addresses may lie on one port. */
struct verbs_port {
    char device[64];
    uint8_t port_num;
};

/* One device in use (domain.c). */
struct verbs_device {
    struct ibx_domain_part part;
    struct ibv_context *context;
    struct ibv_pd *pd;
    pthread_mutex_t lock;     /* of the next one */
    struct verbs_lane *lanes; /* that have a queue pair here, of all connections */
    _Atomic bool shut;        /* no connection may begin here any more */
};

/*
 * Whether the next completion on a rail raises an event. FRESH: armed by the last arm().
 *
 * state machine: verbs event
 *   [*] -> UNARMED -> FRESH -> ARMED -> UNARMED -> [*]
 */
enum verbs_event { VERBS_EVENT_UNARMED, VERBS_EVENT_FRESH, VERBS_EVENT_ARMED };

struct verbs_rail {
    struct sockaddr_storage address; /* the server's, with its port */
    struct rdma_cm_id *listener;     /* server only */
    struct verbs_device *device;     /* NULL until its first lane is set up */
    struct ibv_context *context;     /* of `device`, as is `pd` */
    struct ibv_pd *pd;
    struct ibv_device_attr limits;
    size_t max_message; /* bytes of one work request */
    uint8_t port_num;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    unsigned unacked;               /* completion events taken but not yet acknowledged */
    struct ibx_state_machine event; /* enum verbs_event */
    bool more;                      /* the last poll may have left completions in the queue */
    bool watched;
};

/*
 * state machine: verbs lane
 *   [*] -> NEW -> ADDRESSED -> ROUTED -> CONNECTING -> UP   client: address, route, request, reply
 *   NEW -> CONNECTING                                       server: a valid request, accepted
 *   UP -> DOWN -> [*]                                       disconnected
 */
enum verbs_lane_state {
    VERBS_LANE_NEW,
    VERBS_LANE_ADDRESSED,
    VERBS_LANE_ROUTED,
    VERBS_LANE_CONNECTING,
    VERBS_LANE_UP,
    VERBS_LANE_DOWN
};

struct verbs_lane {
    struct ibx_state_machine state; /* enum verbs_lane_state */
    unsigned index;
    struct verbs_rail *rail;
    struct rdma_cm_id *id;
    struct ibv_qp *qp;
    struct verbs_lane *beside; /* the next one of the device */
    unsigned inline_max;       /* bytes */
    unsigned depth;            /* chunks in flight here */
    unsigned reads_max;        /* of which READs: what both devices agreed on */
    unsigned chunks, reads;
    uint64_t posted;          /* work requests, ever */
    struct ibx_chunk *flight; /* chunks in flight, newest first */
};

/* A message send in the send queue. */
struct verbs_send {
    uint64_t number; /* of its work request on lane 0 */
    uint64_t cookie;
    bool signaled; /* by the user: wants an upcall */
};

/* The work request of a receive buffer, filled in once. */
struct verbs_receive {
    struct ibv_recv_wr wr;
    struct ibv_sge sge;
};

/* Messages on lane 0: buffers, credits, sends in flight. See message.c. */
struct verbs_messages {
    char *block; /* receive buffers, then send buffers */
    size_t block_length;
    size_t stride; /* bytes of one buffer */
    struct ibv_mr *mr;
    unsigned slots;    /* messages that a peer may have outstanding, each way */
    unsigned receives; /* buffers: slots and some for credit messages */
    unsigned buffers;  /* for sends, a ring that goes with `sends` */
    size_t message_max;

    unsigned batch; /* receives that are posted at once; sends that share a completion */

    struct verbs_receive *posts;  /* one a receive buffer */
    struct ibv_recv_wr *unposted; /* buffers that are free, to be posted together */
    unsigned released; /* of these, those that had messages: their credit is owed after that */

    unsigned credits; /* messages we may send now */
    unsigned held;    /* the peer's messages whose credit we have not yet returned */
    unsigned owed;    /* of these, released by the user and posted anew: to be returned */

    struct verbs_send *sends; /* in flight: `count` from `first` on */
    unsigned first, count;
    unsigned unsignaled;         /* since the last signaled one */
    struct ibv_send_wr send;     /* the fields that all sends share are filled in once */
    struct ibv_sge send_segment; /* likewise */
};

/*
 * state machine: verbs connection
 *   [*] -> LIVE -> LOST -> REPORTED          found outside progress(), then reported by it
 *   LIVE | LOST | REPORTED -> ABORTED -> [*]
 */
enum verbs_state { VERBS_LIVE, VERBS_LOST, VERBS_REPORTED, VERBS_ABORTED };

struct verbs {
    struct ibx_link *link;
    struct ibx_state_machine state; /* enum verbs_state */
    struct rdma_event_channel *events;
    bool events_watched;
    bool told; /* the log tells of one refused request: strangers cannot fill it */
    unsigned rail_count, lanes_per_rail;
    struct verbs_rail rails[IBX_RAILS_MAX];
    struct verbs_port ports[IBX_RAILS_MAX]; /* of rails whose address was looked up here */
    unsigned lane_count;                    /* 1 + rails * lanes_per_rail */
    struct verbs_lane *lanes;
    unsigned mtu; /* bytes, agreed by both sides; 0: the path's */
    struct verbs_messages messages;
    struct ibx_caps caps;
    unsigned exposed; /* enum ibx_access that the queue pairs let the peer have */

    unsigned bulk, bulk_max; /* bulk chunks in flight, and how many may be now */
    uint64_t shrunk_ns;      /* when bulk_max was last lowered */
    uint64_t polled_ns;      /* when progress was last called with bulk in flight */
    bool attentive;          /* that was soon after the call before */

    unsigned idle;           /* polls since the connection manager was last checked */
    bool moved;              /* something completed since sleeping was last allowed */
    int lost_status;         /* when LOST */
    bool device_removed;     /* even if something else was noticed first */
    char lost_reason[160];   /* likewise */
    uint64_t abort_deadline; /* when flushed completions are no longer waited for */
};

/* A work request's id: a chunk's address, or one of these with a number above. */
enum { VERBS_ID_CHUNK = 0, VERBS_ID_SEND = 1, VERBS_ID_RECEIVE = 2, VERBS_ID_MASK = 3 };

/* device.c */
int ibx_verbs_probe(const struct ibx_options *options, char *description, size_t size,
                    struct ibx_error *err);
/* 0 when this host has any device, or -ENODEV and a sentence. */
int ibx_verbs_device_any(struct ibx_error *err);
/* 0 when /dev/infiniband/NAME, which that kernel module provides, can be opened; otherwise a
 * negative errno, with why not and what to do. */
int ibx_verbs_file_check(const char *name, const char *module, struct ibx_error *err);
/* The n-th name in options->device; false when there is none. */
bool ibx_verbs_device_name(const struct ibx_options *options, unsigned n, char *name, size_t size);
/* Finds an address of this host, with port 0, that lies on `device` ("": on any device) and on none
 * of the `count` ports in `ports`: `prefer` itself (if not NULL), else one of its family, else any,
 * link-local ones last. Writes the port on which it lies to ports[count]. -ENODEV: there is
 * none. */
int ibx_verbs_device_address(const struct ibx_options *options, const char *device,
                             const struct sockaddr *prefer, struct verbs_port *ports,
                             unsigned count, struct sockaddr_storage *address,
                             struct ibx_error *err);
/* Refuses a device that the options exclude, or that is not InfiniBand or RoCE. */
int ibx_verbs_device_check(const struct ibx_options *options, unsigned rail,
                           const struct rdma_cm_id *id, struct ibx_error *err);
/* "10.0.0.7", without the port. */
void ibx_verbs_address_print(const struct sockaddr *address, char *out, size_t size);
unsigned ibx_verbs_mtu_bytes(enum ibv_mtu mtu);
enum ibv_mtu ibx_verbs_mtu_code(unsigned bytes);

/* domain.c: opens the device, or takes it as another connection of `domain` has opened it. `domain`
 * may be NULL. */
int ibx_verbs_device_hold(struct ibx_domain *domain, struct ibv_device *what,
                          struct verbs_device **device, struct ibx_error *err);
void ibx_verbs_device_release(struct verbs_device *device);
/* A lane whose queue pair was made on the device, or is about to be destroyed. False: all were
 * ended meanwhile, and so must be this one. */
bool ibx_verbs_device_enter(struct verbs_device *device, struct verbs_lane *lane);
void ibx_verbs_device_leave(struct verbs_device *device, const struct verbs_lane *lane);
/* Ends all queue pairs on the device, also those of other connections, which belong to other
 * threads; those that begin later get another device. 0, or the errno of one that does not end. */
int ibx_verbs_device_shut(struct verbs_device *device);

/* cm.c */
int ibx_verbs_offer(void *endpoint, struct ibx_writer *offer, struct ibx_error *err);
int ibx_verbs_join(void *endpoint, struct ibx_reader *offer, struct ibx_writer *answer,
                   struct ibx_error *err);
int ibx_verbs_finish(void *endpoint, struct ibx_reader *answer, uint64_t deadline_ns,
                     struct ibx_error *err);
/* Handles the events of the connection manager; never blocks. */
void ibx_verbs_cm_progress(struct verbs *v);

/* qp.c: rails and queue pairs */
/* Makes a descriptor of libibverbs or librdmacm non-blocking and close-on-exec. */
int ibx_verbs_fd_prepare(int fd, const char *what, struct ibx_error *err);
int ibx_verbs_rail_open(struct verbs *v, struct verbs_rail *rail, struct rdma_cm_id *id,
                        struct ibx_error *err);
void ibx_verbs_rail_close(struct verbs *v, struct verbs_rail *rail);
/* Makes the lane's queue pair and brings it to INIT. */
int ibx_verbs_qp_create(struct verbs *v, struct verbs_lane *lane, struct ibx_error *err);
/* Brings the queue pair to RTS, with what rdma_cm and both sides agreed on. */
int ibx_verbs_qp_connect(struct verbs *v, struct verbs_lane *lane, struct ibx_error *err);
void ibx_verbs_qp_destroy(struct verbs_lane *lane);

/* message.c */
size_t ibx_verbs_message_memory(const struct ibx_options *options);
int ibx_verbs_messages_open(struct verbs *v, struct ibx_error *err);
void ibx_verbs_messages_close(struct verbs *v);
/* Queue entries that messages need on lane 0. */
unsigned ibx_verbs_messages_sends(const struct verbs *v);
unsigned ibx_verbs_messages_receives(const struct verbs *v);
/* Posts all receives of a lane 0 that is at least in INIT. */
int ibx_verbs_messages_prepost(struct verbs *v, struct ibx_error *err);
int ibx_verbs_send(void *endpoint, const struct iovec *iov, int iovcnt, size_t length,
                   uint64_t cookie, unsigned flags);
void ibx_verbs_release(void *endpoint, uint64_t slot);
/* A receive completed. Like the next, it returns the number of upcalls, credits and buffers that a
 * waiting sender may need. */
int ibx_verbs_message_received(struct verbs *v, uint64_t slot, size_t bytes);
/* All sends up to work request `number` are over. */
int ibx_verbs_sends_retire(struct verbs *v, uint64_t number, int status);
/* Posts released buffers and returns credits, each when it is due. */
void ibx_verbs_credits_return(struct verbs *v);

/* chunks.c */
#define VERBS_BULK_QUEUE_NS (2 * IBX_NS_PER_MS) /* of the fabric's time, in flight at once */
int ibx_verbs_rdma(void *endpoint, struct ibx_chunk *chunk);
/* The chunk is in flight no more. Returns as ibx_verbs_message_received() does. */
int ibx_verbs_chunk_over(struct verbs *v, struct ibx_chunk *chunk, int status);

/* completions.c */
#define VERBS_BATCH 32 /* completions of one poll */
/* Takes n completions, and what the rail's completion queue has besides; n < 0: the poll failed.
 * `wc` has room for VERBS_BATCH. Returns as ibx_verbs_message_received() does. */
int ibx_verbs_completions_take(struct verbs *v, struct verbs_rail *rail, struct ibv_wc *wc, int n);

/* mr.c */
int ibx_verbs_mr_register(void *endpoint, struct ibx_mr *mr, struct ibx_error *err);
void ibx_verbs_mr_deregister(void *endpoint, struct ibx_mr *mr);
/* The local key on `rail`; -EACCES for a READ into memory that could only be registered for
 * reading. */
int ibx_verbs_mr_lkey(const struct ibx_mr *mr, unsigned rail, bool writes, uint32_t *lkey);
/* Whether all rails can register dma-bufs. */
bool ibx_verbs_mr_dmabuf(const struct verbs *v);
/* Fills `err` for a registration that failed with errno `code`. */
int ibx_verbs_mr_error(int code, const void *address, size_t length, const char *device,
                       struct ibx_error *err);

/* verbs.c */
/* Moves a machine of this connection; a move that the table does not allow ends the connection. */
bool ibx_verbs_move(struct verbs *v, struct ibx_state_machine *machine, unsigned to);
void ibx_verbs_lost(struct verbs *v, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
