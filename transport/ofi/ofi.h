/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The libfabric provider: Slingshot, EFA, Omni-Path and other fabrics that verbs does not reach.
 * The core calls it through ibx_provider_ofi; this header is for the folder only.
 *
 * A connection has an address vector, a completion queue and endpoints of its own, and a domain,
 * its own or a shared one. A lane is one reliable-datagram endpoint: lane 0 carries messages and
 * urgent chunks, the others carry bulk. libfabric's endpoints are connectionless, so any host on
 * the fabric can send to them. Therefore every message begins with a cookie that only the two
 * authenticated ends can compute, and a message without it is dropped.
 *
 *     offset  bytes  field (little-endian)
 *          0      8  cookie of this direction
 *          8      4  sequence number of a DATA message, from 0; of a FENCE and its answer
 *         12      4  bytes that follow the header
 *         16      2  receive credits given back
 *         18      1  kind: 1 HELLO (a proof follows), 2 DATA, 3 CREDIT, 4 FENCE, 5 FENCED
 *         19      1  lane of a HELLO
 *         20      4  zero
 *
 *   ofi.c      the provider's calls: setting a connection up, taking it down
 *   info.c     which of libfabric's providers carries a connection
 *   side.c     offer and answer; which own address leads to the peer
 *   msg.c      messages, credits, order
 *   io.c       chunks, completions, sleeping, the end
 *   mr.c       memory registration
 *   fence.c    no access of the peer outlives a deregistration
 *   domain.c   a libfabric domain, of one connection or of several
 *   library.c  loads libfabric when it is wanted
 *
 * When the peer dies: the core sees the socket of the handshake end. A peer that stays silent fails
 * chunks by libfabric's own timeouts; io.c has one for libfabric's shm, which has none. What is in
 * flight is over once the endpoints are closed.
 */
#ifndef IBX_TRANSPORT_OFI_OFI_H
#define IBX_TRANSPORT_OFI_OFI_H

#include "common/state_machine.h"
#include "transport/core/provider.h"

#include <netinet/in.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sys/queue.h>

/* The version of the interface that this code is written against. Later ones add dma-bufs. */
#if FI_MAJOR_VERSION > 1 || FI_MINOR_VERSION >= 20
#define IBX_OFI_DMABUF 1
#define IBX_OFI_API    FI_VERSION(1, 20)
#else
#define IBX_OFI_DMABUF 0
#define IBX_OFI_API    FI_VERSION(1, 17)
#endif

#define OFI_HEADER_BYTES  24u
#define OFI_ADDRESS_MAX   256u
#define OFI_LANES_MAX     17u /* options->lanes allows 16 bulk ones */
#define OFI_URGENT_CHUNKS 64u /* beside the bulk ones */

enum ofi_kind { OFI_HELLO = 1, OFI_DATA = 2, OFI_CREDIT = 3, OFI_FENCE = 4, OFI_FENCED = 5 };

/* library.c: makes libfabric's functions callable, or reports why they are not. From any thread. */
int ibx_ofi_library(struct ibx_error *err);
/* Whether a process that this one was forked from has used libfabric. */
bool ibx_ofi_inherited(void);

/* ------------------------------------------------------- choosing (info.c) */

/* What a provider has to match; NULL or 0: anything. */
struct ofi_wanted {
    const char *provider; /* exactly this one: what the peer offers */
    const char *fabric;   /* preferred, not required */
    uint32_t addr_format;
    struct sockaddr_storage local; /* preferred own address; AF_UNSPEC: none */
};

struct ofi_choice {
    struct fi_info *info;   /* freed by its holder */
    bool native;            /* a fabric with hardware behind it */
    bool delivery_complete; /* a WRITE can complete when it is visible at its target */
    bool shareable;         /* a domain can serve several threads, and a region all its endpoints */
};

/* Picks the best of what libfabric has here. */
int ibx_ofi_info_choose(const struct ibx_options *options, const struct ofi_wanted *wanted,
                        struct ofi_choice *choice, struct ibx_error *err);
/* Whether `name` ("tcp;ofi_rxm") is what the option asks for ("tcp", or the whole). */
bool ibx_ofi_name_matches(const char *name, const char *wanted);
int ibx_ofi_probe(const struct ibx_options *options, char *description, size_t size,
                  struct ibx_error *err);
/* "1.17", of the library that runs. */
const char *ibx_ofi_version_text(void);

/* ------------------------------------------------------- domains (domain.c) */

struct ofi_domain {
    struct ibx_domain_part part;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fi_info *info; /* what it was opened for */
};

/* Opens a domain. Where domains can be shared and the owner already has one that fits, takes a
 * reference to that one. From any thread. */
int ibx_ofi_domain_hold(struct ibx_domain *owner, const struct ofi_choice *choice,
                        struct ofi_domain **out, struct ibx_error *err);
/* Call it after everything in the domain that is the connection's was closed. Accepts NULL. */
void ibx_ofi_domain_release(struct ofi_domain *domain);
/* fi_close(), with a log entry when it fails. */
void ibx_ofi_fid_close(struct fid *fid);
/* An error of libfabric (negative) in opening something, in words. */
int ibx_ofi_open_error(const struct fi_info *info, const char *what, int rc, struct ibx_error *err);

/* ------------------------------------------------------------------- a connection */

enum ofi_use { OFI_USE_RECV, OFI_USE_SEND, OFI_USE_CHUNK };

/*
 * A receive. IDLE: not posted, or completed just now; progress posts it (again).
 *
 * state machine: ofi receive
 *   [*] -> IDLE -> POSTED -> IDLE             libfabric has it until it completes
 *   IDLE -> WAITING -> HELD -> IDLE -> [*]    DATA: until its turn; the user's, until released
 */
enum ofi_recv_state { OFI_RECV_IDLE, OFI_RECV_POSTED, OFI_RECV_WAITING, OFI_RECV_HELD };

/* One operation that libfabric knows by `context`. */
struct ofi_request {
    struct fi_context2 context; /* first: some providers write into it */
    enum ofi_use use;
    struct ibx_state_machine state; /* of a receive: enum ofi_recv_state */
    unsigned lane;
    bool busy;        /* a send or a chunk that libfabric has */
    int status;       /* of one that is over */
    uint32_t epoch;   /* of a chunk: the endpoint's when it was posted */
    bool signaled;    /* a send that is reported with `cookie` */
    bool owes_credit; /* a receive: the peer gets a credit back once it is posted again */
    uint64_t cookie;
    uint8_t *buffer;         /* of a receive or a send */
    size_t length;           /* of the message received, header included */
    struct ibx_chunk *chunk; /* until it is reported */
    struct ofi_request *next;
};

/*
 * The exchange of HELLOs on a lane: libfabric took ours; the peer's has arrived with its proof.
 *
 * state machine: ofi lane
 *   [*] -> NEW -> SENT -> READY               the client sends first
 *   NEW -> PROVEN -> READY -> [*]             the server answers
 */
enum ofi_lane_state { OFI_LANE_NEW, OFI_LANE_SENT, OFI_LANE_PROVEN, OFI_LANE_READY };
extern const struct ibx_state_table ibx_ofi_lane_table;

struct ofi_lane {
    struct fid_ep *ep;
    fi_addr_t peer;
    struct ibx_state_machine state; /* enum ofi_lane_state */
};

/* The offer of the server, the answer of the client. */
struct ofi_side {
    char provider[64];
    char fabric[128];
    uint32_t version; /* fi_version() */
    uint32_t addr_format;
    uint64_t host; /* the same on the same boot of the same host */
    uint32_t slots;
    uint32_t message; /* bytes of the longest message, header not counted */
    unsigned lanes;
    struct {
        size_t length;
        uint8_t bytes[OFI_ADDRESS_MAX];
    } address[OFI_LANES_MAX];
};

/*
 * STOPPED: nothing is posted any more. CLOSED: the endpoints are, so no memory is touched any more.
 *
 * state machine: ofi connection
 *   [*] -> SETUP -> LIVE -> STOPPED -> CLOSED -> [*]
 *   SETUP -> STOPPED
 *   SETUP | LIVE -> CLOSED
 */
enum ofi_state { OFI_SETUP, OFI_LIVE, OFI_STOPPED, OFI_CLOSED };

/* Whether the user waits to send. */
enum ofi_send_turn {
    OFI_SEND_TAKEN,   /* its last send was taken, or it was told to try again */
    OFI_SEND_REFUSED, /* its last send was refused */
    OFI_SEND_AGAIN    /* something has completed since: it may try again before it sleeps */
};

struct ofi_endpoint {
    struct ibx_link *link;
    struct ibx_state_machine state; /* enum ofi_state */
    struct ofi_choice choice;
    struct ofi_side own, peer;

    struct ofi_domain *home;
    struct fid_av *av;
    struct fid_cq *cq;
    struct ofi_lane lanes[OFI_LANES_MAX];
    unsigned lane_count; /* those in use */
    int cq_fd;           /* borrowed from the completion queue; -1: it has none */
    int timer_fd;        /* bounds sleeping where cq_fd is not enough */
    bool watched;
    uint64_t idle_since; /* by ibx_now_ns(), 0: something has happened since the last sleep */

    uint8_t *memory; /* all message buffers */
    size_t memory_bytes, buffer_bytes;
    struct fid_mr *memory_mr;
    void *memory_desc;

    struct ofi_request *recvs, *sends, *works;
    unsigned recv_count, send_count, work_count;
    struct ofi_request *idle_recvs, *free_sends, *free_works;
    struct ofi_request *over, **over_tail; /* sends and chunks to report */
    struct ofi_request **window;           /* DATA that has arrived, by sequence number */
    uint32_t window_mask;
    uint64_t cookie_out, cookie_in;
    uint8_t proof_out[IBX_PROOF_BYTES], proof_in[IBX_PROOF_BYTES];
    uint32_t next_send, next_deliver;
    unsigned credits;  /* DATA messages that the peer has room for */
    unsigned missing;  /* credits that the peer has spent and not got back */
    unsigned returned; /* of these, how many the next message gives back */

    bool is_shm; /* libfabric's, which needs special care */
    unsigned depth;
    size_t chunk;
    unsigned in_flight; /* sends and chunks that will complete */
    unsigned chunks_in_flight;
    uint64_t abort_deadline; /* until which transfers in flight may end by themselves */
    uint64_t end_deadline;   /* until which ibx_ofi_io_end() waits; 0: it was not called yet */
    uint64_t silent_since;   /* no chunk completed since then (ibx_now_ns(), 0: not yet checked) */
    unsigned idle_polls;
    unsigned receives_lost; /* in a row */
    bool refused;           /* libfabric returned -FI_EAGAIN to a post since the last progress */
    bool retry_turn;
    enum ofi_send_turn send_turn;

    uint32_t epoch;         /* grows with each FENCE of the peer */
    unsigned old_chunks;    /* chunks in flight since before the last FENCE of the peer */
    uint32_t requested;     /* the number of that FENCE */
    bool answer_due;        /* it is to be answered, as soon as they are over */
    uint32_t fence, fenced; /* our last FENCE, and the last one answered */

    struct ibx_error failure; /* in SETUP */
    LIST_HEAD(, ofi_region) regions;
    int made; /* upcalls of this progress */
};

/* A registration with a domain, which all regions that share it hold. */
struct ofi_registration {
    struct fid_mr *mr; /* NULL: it went with its endpoint */
    const struct fid_domain *domain;
    _Atomic unsigned holders;
};

struct ofi_region {
    struct ofi_registration *made; /* NULL: none is needed */
    void *desc;
    LIST_ENTRY(ofi_region) entry; /* in endpoint->regions, when there is one */
};

/* side.c */
void ibx_ofi_side_put(struct ibx_writer *writer, const struct ofi_side *side);
int ibx_ofi_side_get(struct ibx_reader *reader, struct ofi_side *side, struct ibx_error *err);
/* Whether the peer's addresses are of our kind and length. */
bool ibx_ofi_side_fits(const struct ofi_side *own, const struct ofi_side *peer);
/* The same on one boot of one host, 0 when unknown. */
uint64_t ibx_ofi_side_host(void);
/* Our address from which the kernel would route to the peer's; AF_UNSPEC: it is no IP address. */
void ibx_ofi_side_local_towards(const struct ofi_side *peer, struct sockaddr_storage *local);

/* mr.c */
int ibx_ofi_mr_register(void *endpoint, struct ibx_mr *mr, struct ibx_error *err);
void ibx_ofi_mr_deregister(void *endpoint, struct ibx_mr *mr);
/* Closes what is bound to an endpoint, so that the endpoint can be closed. */
void ibx_ofi_mr_detach_all(struct ofi_endpoint *e);
/* Registers message buffers where local access needs it; elsewhere e->memory_mr stays NULL. */
int ibx_ofi_mr_buffers(struct ofi_endpoint *e, struct ibx_error *err);

/* msg.c: messages, credits, order */
/* Bytes for an endpoint with this many lanes, lane 0 included. */
size_t ibx_ofi_msg_memory(unsigned slots, size_t message, unsigned lanes);
int ibx_ofi_msg_init(struct ofi_endpoint *e, struct ibx_error *err);
void ibx_ofi_msg_fini(struct ofi_endpoint *e);
/* Posts every receive that is IDLE; ibx_ofi_fail() when that is impossible. */
void ibx_ofi_msg_post(struct ofi_endpoint *e);
int ibx_ofi_msg_hello(struct ofi_endpoint *e, unsigned lane);
void ibx_ofi_on_message(struct ofi_endpoint *e, struct ofi_request *r, size_t length);
/* A receive failed: posts it again, unless the connection is ending. */
void ibx_ofi_msg_repost(struct ofi_endpoint *e, struct ofi_request *r);
void ibx_ofi_on_truncated(struct ofi_endpoint *e, struct ofi_request *r);
/* A FENCE, or the answer to one: 0 or -EAGAIN, or another negative errno after ibx_ofi_fail(). */
int ibx_ofi_msg_control(struct ofi_endpoint *e, enum ofi_kind kind, uint32_t number);
/* Delivers the DATA whose turn it is, returns credits. */
void ibx_ofi_msg_deliver(struct ofi_endpoint *e);
bool ibx_ofi_msg_deliverable(const struct ofi_endpoint *e);
int ibx_ofi_msg_send(void *endpoint, const struct iovec *iov, int iovcnt, size_t length,
                     uint64_t cookie, unsigned flags);
void ibx_ofi_msg_release(void *endpoint, uint64_t slot);

/* fence.c: no access of the peer outlives a deregistration */
/* Waits until the accesses of the peer that were under way are over. If the peer does not confirm
 * that in time, the connection is lost and its endpoints are closed. */
void ibx_ofi_fence(struct ofi_endpoint *e);
void ibx_ofi_on_fence(struct ofi_endpoint *e, uint32_t number);
void ibx_ofi_on_fenced(struct ofi_endpoint *e, uint32_t number);
void ibx_ofi_fence_on_chunk(struct ofi_endpoint *e, const struct ofi_request *r);
/* Answers the peer's FENCE if all chunks from before it are over. */
void ibx_ofi_fence_answer(struct ofi_endpoint *e);

/* io.c: chunks, completions, the end */
int ibx_ofi_io_init(struct ofi_endpoint *e, struct ibx_error *err);
int ibx_ofi_io_rdma(void *endpoint, struct ibx_chunk *chunk);
int ibx_ofi_io_progress(void *endpoint);
int ibx_ofi_io_arm(void *endpoint);
/* Takes completions, without any upcall; returns how many. */
int ibx_ofi_io_take(struct ofi_endpoint *e);
/* Stops, waits for a second until chunks in flight have ended by themselves, and closes the
 * endpoints: for 100 ms more if one of them is busy. Later calls wait no longer than the first. */
void ibx_ofi_io_end(struct ofi_endpoint *e);
/* Sleeps until there may be completions, at most 1 ms: false when the peer has closed the
 * handshake's socket. */
bool ibx_ofi_io_nap(struct ofi_endpoint *e);
/* Whether to send would lose what the peer has sent last. Emulations close a socket that they
 * cannot write to, with all that has arrived in it. So nothing is sent to a peer that has gone: the
 * core takes its last messages, and then notices its end. */
bool ibx_ofi_would_lose(const struct ofi_endpoint *e);
void ibx_ofi_io_abort(void *endpoint);
/* 0, or the negative libfabric code of the first endpoint that did not close. */
int ibx_ofi_io_close_lanes(struct ofi_endpoint *e);
/* The connection is over, or cannot be set up: the first call counts. */
void ibx_ofi_fail(struct ofi_endpoint *e, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static inline bool ibx_ofi_stopped(const struct ofi_endpoint *e)
{
    return e->state.now >= OFI_STOPPED;
}
/* Moves a machine of this connection; a move that the table does not allow ends the connection. */
bool ibx_ofi_move(struct ofi_endpoint *e, struct ibx_state_machine *machine, unsigned to);
/* libfabric's positive codes as negative errno values. */
int ibx_ofi_errno(int code);

#endif
