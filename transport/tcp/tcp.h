/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The tcp provider: messages and emulated one-sided work over sockets, between any two hosts. The
 * core calls it through ibx_provider_tcp; this header is for the folder only.
 *
 * A READ is a request that the owner of the memory answers with DATA. A WRITE carries its bytes and
 * is acknowledged. The owner checks key, range and access, and works only while it polls. Bytes go
 * from the registered memory to the socket and from the socket to where they belong, without a copy
 * in between.
 *
 * A lane is one socket. Lane 0 is the socket of the handshake: messages, urgent work and everything
 * small. Only DATA and WRITE travel on the bulk lanes. Where the handshake went on in TLS, so does
 * lane 0, and each bulk lane is a TLS connection of its own.
 *
 *   tcp.c         the provider's calls, memory regions, progress()
 *   setup.c       offer, join, finish: connects and authenticates the lanes
 *   frame.c       the bytes of frames, hellos and terms
 *   lane.c        bytes in and out of one socket, plain or by TLS
 *   lane_thread.c the thread of a bulk lane that is encrypted or one of several
 *   message.c     messages and their credits
 *   work.c        dispatches frames; posts of this side, jobs for the peer
 *   pad.c         widens TCP's congestion windows ahead of need
 *   peer_death.c  detects a dead host; takes the last messages of a peer that closed
 *   probe.c       finds out sooner than TCP that a silent network is back
 *   long_packets.c  where the network loses long packets and passes short ones
 *   loss.c        finds out that a relay lost bytes which TCP has delivered
 *   signs.c       tells a client that its server lives while that runs a long handler
 *   uring.c       io_uring as the engine of the bulk lanes
 *
 * When the peer dies: its kernel closes the sockets and the connection is lost at once, after what
 * it had sent on lane 0 was delivered. When its host or the network dies, no byte is acknowledged
 * any more, and the connection is lost after timeout_ms.
 *
 * io_uring is the choice of the option rdma.tcp_engine only. With one bulk lane, the default,
 * system calls are as fast or faster (over loopback 8.3 GB/s against 7.0, and 6 us against 20 for a
 * round trip) and take the same CPU time. Where a user sets eight lanes, io_uring takes a sixth
 * less CPU time for 16 MiB (measured through veth between network namespaces, GRO off). SEND_ZC won
 * nowhere: the kernel copies what stays in one host all the same. No real network card was
 * measured.
 */
#ifndef IBX_TRANSPORT_TCP_TCP_H
#define IBX_TRANSPORT_TCP_TCP_H

#include "common/state_machine.h"
#include "transport/core/tls.h"
#include "transport/tcp/frame.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/queue.h>
#include <sys/socket.h>

#define IBX_TCP_FLIGHT 8 /* items handed to the kernel in one call */
#define IBX_TCP_SPARES 1 /* memory of long messages kept for the next ones */

struct tcp;
struct tcp_thread;
struct tcp_uring;

/* ------------------------------------------------------------------- output */

enum tcp_item_kind {
    TCP_ITEM_SEND,
    TCP_ITEM_POST,
    TCP_ITEM_JOB,
    TCP_ITEM_CREDIT,
    TCP_ITEM_PAD,
    TCP_ITEM_CHECK
};

/* A frame to be sent: a header, and a body that stays where its owner has it. */
struct tcp_item {
    struct tcp_item *next;
    enum tcp_item_kind kind; /* of the struct around it */
    uint8_t header[IBX_TCP_FRAME_BYTES];
    const uint8_t *body;
    size_t length; /* of the body */
    size_t sent;   /* of header and body */
};

struct tcp_item_queue {
    struct tcp_item *head, **tail;
};

/* Bytes that mean nothing, one frame at a time. */
struct tcp_pad {
    struct tcp_item item;
    struct tcp_lane *lane;
    size_t left; /* bytes of frames to come */
    bool queued;
};

struct tcp_check {
    struct tcp_item item;
    bool queued;
};

/* A connection whose packets may not arrive at all is left alone for so long, even if a new one
 * could be made. */
#define IBX_TCP_PATIENT_MS 3000u

/* Whether a new connection would be answered while this one is not; see probe.c. */
struct tcp_probe {
    bool able;             /* to be tried */
    int fd;                /* -1: no request is under way */
    uint64_t began, until; /* ns; of the request */
    uint64_t born;         /* when this connection was made */
    struct tcp_lane *lane; /* which was silent when the request was made */
};

/* --------------------------------------------------------------------- lanes */

/*
 * What the next bytes on a lane are: a header, or the body of a frame.
 *
 * state machine: tcp lane input
 *   [*] -> HEADER -> MESSAGE | DATA | WRITE | PAD -> HEADER
 *   HEADER -> [*]
 */
enum tcp_input {
    TCP_INPUT_HEADER,
    TCP_INPUT_MESSAGE,
    TCP_INPUT_DATA,
    TCP_INPUT_WRITE,
    TCP_INPUT_PAD
};

struct tcp_lane {
    struct tcp *tcp;
    unsigned index;
    int fd;
    struct ibx_tls *tls; /* NULL: plain; that of lane 0 belongs to the core */
    bool watched;        /* by the core, for input */

    /* Output. `flight` was or is being given to the kernel, in this order; the queues wait. */
    struct tcp_item *flight[IBX_TCP_FLIGHT];
    unsigned flight_count;
    struct tcp_item_queue small, large;
    struct tcp_pad pad;
    uint64_t gone; /* bytes of frames that the socket or TLS has taken; the thread's, if there is
                      one, and then guarded by its `step` */
    uint64_t gone_checks; /* those of CHECKs among them, likewise */
    struct tcp_check ask, answer;
    uint32_t lacking; /* bytes that the peer had not received when that was noted; see loss.c */
    uint64_t lacking_gone, lacking_checks; /* gone - gone_checks, gone_checks then */
    uint64_t lacking_at;                   /* ns; when it last said so */
    uint64_t lacking_ns;                   /* for which it has waited for them */
    uint64_t silent_since;     /* ns; since when the peer acknowledges nothing; 0: it does */
    uint64_t unanswered_since; /* ns; the same, but of retransmissions alone; see probe.c */
    uint64_t unanswered_at;    /* ns; when that was last found so */
    uint64_t back_since;       /* ns; since when it is acknowledged again, without a byte from the
                                  peer; 0: it was not unanswered, or a byte came; see probe.c */
    uint64_t stuck_since;      /* ns; since when retransmissions have had no effect; 0: they have */
    uint64_t acknowledged;     /* bytes, at the last look; see long_packets.c */
    uint64_t segments;         /* from the peer, counted a while after stuck_since; 0: not yet */
    uint64_t answers_since; /* ns; since when the peer's host is known to answer while this lane is
                               stuck; 0: it is not */
    bool blocked;           /* the socket took no more */
    bool watched_output;    /* in tcp->writable */

    /* Input. Bytes arrive in `body` as long as one is expected, after it in `stage`: a header, on
     * lane 0 also what came behind it. Between calls `stage` has fewer bytes than a header. */
    struct ibx_state_machine input; /* enum tcp_input */
    void *body_owner;               /* the post of DATA, the job of WRITE */
    uint8_t *body;                  /* NULL: discarded */
    size_t body_left;
    uint64_t come; /* where the next frame has its place */
    uint8_t *stage;
    size_t stage_have;
    unsigned awaited; /* answers to own READs still to come on it */
    unsigned quiet;   /* consecutive reads that found nothing */

    struct tcp_thread *thread; /* NULL: none; while it has work, socket and tls are its own */

    /* The uring's, while it has work of this lane. */
    bool uring_in, uring_out;
    struct msghdr uring_message;
    struct iovec uring_pieces[2 * IBX_TCP_FLIGHT];
};

/* ---------------------------------------------------------------------- work */

/* A send request that the socket did not take at once, or whose sender wants a completion. */
struct tcp_send {
    struct tcp_item item;
    struct tcp_send *next; /* among the free or the sent ones */
    uint8_t *buffer;       /* allocated on first use */
    uint64_t cookie;
    bool signaled;
};

/*
 * A READ or WRITE of this side, until the core has its completion. ANSWERED: the answer came while
 * the kernel still has bytes of the request.
 *
 * state machine: tcp post
 *   [*] -> FREE -> QUEUED -> WAITING -> ARRIVING -> FREE   a READ, answered by DATA
 *   QUEUED | WAITING -> ANSWERED -> FREE
 *   WAITING -> FREE -> [*]                                 a WRITE acknowledged, or either refused
 *   QUEUED -> FREE                                         the connection ended
 */
enum tcp_post_state {
    TCP_POST_FREE,
    TCP_POST_QUEUED,
    TCP_POST_WAITING,
    TCP_POST_ARRIVING,
    TCP_POST_ANSWERED
};

struct tcp_post {
    struct tcp_item item;
    struct tcp_post *next; /* free */
    struct ibx_chunk *chunk;
    struct ibx_state_machine state; /* enum tcp_post_state */
    uint16_t generation;
    unsigned zerocopy_sends; /* whose memory the kernel still uses */
    int status;              /* when ANSWERED */
};

/*
 * A READ or WRITE of the peer in memory of this side.
 *
 * state machine: tcp job
 *   [*] -> FREE -> SENDING -> FREE                  a READ: its DATA is sent
 *   FREE -> RECEIVING -> ANSWERING -> FREE -> [*]   a WRITE: its bytes, then ACK or NAK
 *   FREE | SENDING -> ANSWERING                     a READ refused, or its memory deregistered
 */
enum tcp_job_state { TCP_JOB_FREE, TCP_JOB_SENDING, TCP_JOB_RECEIVING, TCP_JOB_ANSWERING };

struct tcp_job {
    struct tcp_item item;
    struct tcp_job *next;           /* free */
    LIST_ENTRY(tcp_job) entry;      /* in use */
    struct ibx_mr *mr;              /* while bytes move in it, otherwise NULL */
    struct tcp_lane *lane;          /* on which the bytes move */
    struct ibx_state_machine state; /* enum tcp_job_state */
    uint32_t id;                    /* the peer's */
    uint32_t status;                /* enum ibx_tcp_status, 0: fine so far */
};

/* Registered memory that the peer may name. */
struct tcp_region {
    struct ibx_mr *mr; /* NULL: free */
    uint64_t key;      /* random, generation, index */
    uint32_t next_free;
};

/*
 * state machine: tcp connection
 *   [*] -> LIVE -> DRAINING                      a bulk lane ended; lane 0 is read, nothing is sent
 *   LIVE | DRAINING -> BROKEN -> LOST            the link; what had arrived is still delivered
 *   LIVE | DRAINING -> FAILED -> LOST            an end broke the rules, or this one ran short
 *   LIVE | DRAINING | BROKEN | FAILED | LOST -> ABORTED -> [*]
 */
enum tcp_state { TCP_LIVE, TCP_DRAINING, TCP_BROKEN, TCP_FAILED, TCP_LOST, TCP_ABORTED };

enum tcp_engine { TCP_ENGINE_SYSCALLS, TCP_ENGINE_URING, TCP_ENGINE_URING_ZC };

struct tcp {
    struct ibx_link *link;
    struct ibx_tcp_terms mine, peer;
    bool same_host;
    int listener;         /* the server's, from offer to finish */
    int writable;         /* an epoll descriptor: readable when a blocked lane takes bytes again */
    int timer;            /* wakes for the next look at what is on its way; -1 over a unix socket */
    uint64_t look_at;     /* ns; when that is due, 0: nothing is on its way */
    uint64_t drain_until; /* ns; in DRAINING: then the connection is over */
    bool wrote;           /* since the last look */
    struct tcp_probe probe;
    bool places;          /* of frames are agreed on */
    uint64_t heard;       /* bytes of other frames than CHECKs, when more was noticed; see loss.c */
    uint64_t heard_parts; /* those that had come of the last ones, less their bytes, likewise */
    uint64_t checks;      /* that have come */
    uint64_t quiet_since; /* ns; when it was heard of, or this side began to wait */
    uint64_t check_at;    /* ns; when the peer is asked, if nothing comes; 0: not set */
    bool stuck;           /* it ends since packets do not arrive, though the peer's host answers */
    unsigned segment_limit; /* bytes; 0: none */
    bool expects_signs;     /* of life, from the server; see signs.c */
    uint64_t heard_all;     /* bytes of all frames, at the last look */
    uint64_t alive_since;   /* ns; when some of them came, or this side began to wait */

    /* Server: it gives signs of life, by another thread. `inside`: a thread uses this struct.
     * `sleeps`: the connection's own thread sleeps until something comes. */
    bool gives_signs, sleeps;
    atomic_bool inside;
    unsigned turns_seen; /* at the other thread's last look */
    LIST_ENTRY(tcp) giving;
    struct tcp_lane lanes[1 + IBX_TCP_LANES_MAX];
    unsigned lane_count; /* bulk lanes */
    size_t chunk;
    enum tcp_engine engine;
    struct tcp_uring *uring;

    /* Threads of lanes: of this connection, at most, and at most in this process. */
    unsigned threads, threads_max, threads_all;
    int threads_fd;            /* wakes this side's sleeper; -1: none yet */
    atomic_bool threads_armed; /* they are to wake the sleeper */
    bool threads_slept;        /* threads_armed was set since the last turn */

    /* Messages. One of at most `message_unit` bytes lies in its slot of the inbox, a longer one in
     * memory of its own, which its slot then has in `big`. */
    size_t message_unit, message_max;
    uint8_t *inbox;       /* mine.slots of message_unit bytes */
    uint32_t *inbox_free; /* stack of slots */
    unsigned inbox_count; /* on the stack */
    uint8_t *inbox_taken; /* one a slot: it has a message */
    uint8_t **big;        /* one a slot */
    uint8_t *lent;        /* the one of them that the program has lent */
    uint8_t *spare[IBX_TCP_SPARES];
    unsigned spare_count;
    unsigned credits;      /* messages that the peer has room for */
    unsigned peer_credits; /* what the peer knows about room here */
    unsigned owed;         /* room here of which the peer does not know yet */
    uint32_t arriving;     /* the slot of the message that is coming in, and where it begins */
    const uint8_t *arriving_at;
    struct tcp_item credit_item;
    bool credit_queued;
    struct tcp_send *sends; /* peer.slots */
    struct tcp_send *sends_free;
    struct tcp_send *sends_gone, **sends_gone_tail;

    struct tcp_post *posts; /* mine.depth */
    struct tcp_post *posts_free;
    unsigned posts_used;
    struct tcp_job *jobs; /* peer.depth */
    struct tcp_job *jobs_free;
    LIST_HEAD(, tcp_job) jobs_used;

    struct tcp_region *regions;
    uint32_t region_count, region_free;
    uint32_t random[64]; /* for keys */
    unsigned random_left;

    unsigned turns;
    int reports;                    /* upcalls made in this turn */
    bool moved;                     /* bytes, in this turn */
    struct ibx_state_machine state; /* enum tcp_state */
    int status;                     /* why the connection is over, 0 while it lives */
    char reason[192];
};

/* tcp.c */
static inline bool ibx_tcp_runs(const struct tcp *tcp)
{
    return tcp->state.now == TCP_LIVE || tcp->state.now == TCP_DRAINING;
}
/* Records the first failure; progress() tells the core. Returns a negative errno. */
int ibx_tcp_fail(struct tcp *tcp, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Moves a machine of this connection. False when the table does not allow it: then the connection
 * has failed, by an internal error. */
bool ibx_tcp_move(struct tcp *tcp, struct ibx_state_machine *machine, unsigned to);
/* Checks the peer's request: 0 and *mr, or an enum ibx_tcp_status. */
uint32_t ibx_tcp_region_find(const struct tcp *tcp, const struct ibx_tcp_frame *frame,
                             unsigned access, struct ibx_mr **mr);

/* setup.c */
int ibx_tcp_offer(void *endpoint, struct ibx_writer *offer, struct ibx_error *err);
int ibx_tcp_join(void *endpoint, struct ibx_reader *offer, struct ibx_writer *answer,
                 struct ibx_error *err);
int ibx_tcp_finish(void *endpoint, struct ibx_reader *answer, uint64_t deadline_ns,
                   struct ibx_error *err);
void ibx_tcp_receive_ahead(void *endpoint);

/* pad.c */
void ibx_tcp_pad(void *endpoint, size_t bytes);
void ibx_tcp_on_pad_sent(struct tcp_pad *pad);
/* Sends one small frame of padding, unless padding is under way. */
void ibx_tcp_pad_once(struct tcp_lane *lane);

/* probe.c */
void ibx_tcp_probe_init(struct tcp *tcp);
void ibx_tcp_probe_fini(struct tcp *tcp);
/* Call it often while this side waits. */
void ibx_tcp_probe_check(struct tcp *tcp, uint64_t now);

/* long_packets.c */
struct tcp_info;
/* Call it with each look at a lane that has unacknowledged bytes. */
void ibx_tcp_long_packets_check(struct tcp_lane *lane, const struct tcp_info *info, uint64_t now);
/* Call it when the lane has none. */
void ibx_tcp_long_packets_none(struct tcp_lane *lane);
/* Whether the lane has sent again, in vain, since the peer's host is known to answer. */
bool ibx_tcp_long_packets_tried(const struct tcp_lane *lane, const struct tcp_info *info,
                                uint64_t now);
/* Ends the connection: this lane's packets do not arrive. */
void ibx_tcp_long_packets_lost(struct tcp_lane *lane, const struct tcp_info *info, unsigned ms);
/* Resets the lane, so that the peer learns of the end now: otherwise it would come behind bytes
 * that do not arrive. */
void ibx_tcp_reset(struct tcp_lane *lane);

/* loss.c */
/* Whether this side waits for something that may have been lost. */
bool ibx_tcp_checks_wanted(const struct tcp *tcp);
/* Asks the peer, if nothing has come for a while. Call it with each look at the lanes. */
void ibx_tcp_checks_look(struct tcp *tcp, uint64_t now);
/* Asks the peer on this lane, unless a CHECK that does waits to be sent. */
void ibx_tcp_check_ask(struct tcp_lane *lane);
void ibx_tcp_on_check(struct tcp_lane *lane, const struct ibx_tcp_frame *frame);
/* Counts a frame that has come. False: it is not where it should be, and the connection is over. */
bool ibx_tcp_in_place(struct tcp_lane *lane, const struct ibx_tcp_frame *frame);

void ibx_tcp_sign_send(struct tcp_lane *lane);

/* signs.c */
/* The connection is live; its own thread calls these two. */
void ibx_tcp_signs_begin(struct tcp *tcp);
void ibx_tcp_signs_end(struct tcp *tcp);
void ibx_tcp_wait_to_enter(struct tcp *tcp);
/* Around all that the connection's own thread does with it. */
static inline void ibx_tcp_enter(struct tcp *tcp)
{
    if (tcp->gives_signs)
        ibx_tcp_wait_to_enter(tcp);
}
static inline void ibx_tcp_leave(struct tcp *tcp)
{
    if (tcp->gives_signs)
        atomic_store_explicit(&tcp->inside, false, memory_order_release);
}

/* peer_death.c */
void ibx_tcp_keepalive_set(const struct tcp *tcp, int fd);
/* Call it once the lanes are there. 0 or a negative errno. */
int ibx_tcp_peer_watch(struct tcp *tcp);
void ibx_tcp_peer_unwatch(struct tcp *tcp);
/* Ends the connection when the peer's host has been silent for too long. Call it often, and always
 * before this side sleeps. */
void ibx_tcp_peer_check(struct tcp *tcp);
/* A bulk lane has ended. False: nothing can be on its way on lane 0. Otherwise the connection
 * drains, with ibx_tcp_drain_check() to be called in each progress(). */
bool ibx_tcp_drain_begin(struct tcp *tcp);
/* Ends the connection when nothing has arrived for a while, or drains for too long. */
void ibx_tcp_drain_check(struct tcp *tcp);

/* lane.c */
int ibx_tcp_lane_init(struct tcp_lane *lane, struct tcp *tcp, unsigned index, int fd);
void ibx_tcp_lane_queue(struct tcp_lane *lane, struct tcp_item *item);
enum tcp_back { TCP_BACK_UNSENT, TCP_BACK_SENT, TCP_BACK_TOO_LATE };
/* Takes an item back. UNSENT: nothing of it was sent. SENT: all was, which is not reported any
 * more. TOO_LATE: it is not taken back, since a part is gone. */
enum tcp_back ibx_tcp_lane_unqueue(struct tcp_lane *lane, struct tcp_item *item);
/* The next item from the queues, or NULL. */
struct tcp_item *ibx_tcp_lane_pop(struct tcp_lane *lane);
bool ibx_tcp_lane_has_output(const struct tcp_lane *lane);
/* Whether input waits inside TLS, which poll(2) does not see. */
bool ibx_tcp_lane_has_input(const struct tcp_lane *lane);
/* One write to the lane: the bytes taken, or a negative errno. One read: the same, and 0 at the end
 * of the stream. */
ssize_t ibx_tcp_lane_write(struct tcp_lane *lane, struct iovec *pieces, int count);
ssize_t ibx_tcp_lane_read(struct tcp_lane *lane, struct iovec *pieces, int count);
/* Gives queued items to the socket as far as it takes them. */
void ibx_tcp_lane_push(struct tcp_lane *lane);
/* Takes what has arrived. */
void ibx_tcp_lane_pull(struct tcp_lane *lane);
/* The body of the frame whose header was read arrives next. */
void ibx_tcp_lane_expect(struct tcp_lane *lane, enum tcp_input kind, void *owner, uint8_t *body,
                         size_t length);
/* Fills `flight` from the queues and describes what is left of it: the number of pieces. */
int ibx_tcp_lane_pieces(struct tcp_lane *lane, struct iovec *pieces);
/* The first `n` bytes of that are gone. */
void ibx_tcp_lane_sent(struct tcp_lane *lane, size_t n);
/* `n` bytes arrived: first in the body, the rest in the stage. */
void ibx_tcp_lane_received(struct tcp_lane *lane, size_t n);
/* A call on the socket failed with this errno, or 0 for the end of the stream. EBADMSG: its bytes
 * were changed on their way. */
void ibx_tcp_lane_broken(struct tcp_lane *lane, int code);
/* After the link broke: takes what had arrived before that. */
void ibx_tcp_lane_read_out(struct tcp_lane *lane);

void ibx_tcp_item_init(struct tcp_item *item, enum tcp_item_kind kind,
                       const struct ibx_tcp_frame *frame);

/* message.c */
size_t ibx_tcp_message_memory(const struct ibx_options *options);
int ibx_tcp_messages_init(struct tcp *tcp, struct ibx_error *err);
void ibx_tcp_messages_fini(struct tcp *tcp);
int ibx_tcp_send(void *endpoint, const struct iovec *iov, int iovcnt, size_t length,
                 uint64_t cookie, unsigned flags);
void ibx_tcp_release(void *endpoint, uint64_t slot);
/* The slot that the next message will get, message_unit bytes; NULL when all are taken. */
uint8_t *ibx_tcp_inbox_next(const struct tcp *tcp);
void ibx_tcp_on_message(struct tcp_lane *lane, const struct ibx_tcp_frame *frame);
/* The message that was arriving is complete up to `end`. */
void ibx_tcp_on_message_end(struct tcp *tcp, const uint8_t *end);
/* The peer has room again. */
void ibx_tcp_on_credits(struct tcp *tcp, unsigned n);
/* Tells the peer about room here, when it may be waiting for that. */
void ibx_tcp_credits_return(struct tcp *tcp);
void ibx_tcp_on_send_gone(struct tcp *tcp, struct tcp_send *send);
/* Reports the sends whose bytes have left. */
void ibx_tcp_sends_report(struct tcp *tcp);
/* Reports all sends that were to be reported. */
void ibx_tcp_sends_flush(struct tcp *tcp, int status);

/* work.c */
int ibx_tcp_work_init(struct tcp *tcp, struct ibx_error *err);
void ibx_tcp_work_fini(struct tcp *tcp);
void ibx_tcp_on_frame(struct tcp_lane *lane, const struct ibx_tcp_frame *frame);
void ibx_tcp_on_body(struct tcp_lane *lane);
void ibx_tcp_on_item_sent(struct tcp *tcp, struct tcp_item *item);
/* The kernel has let go of one zero-copy send of this post. */
void ibx_tcp_on_post_released(struct tcp *tcp, struct tcp_post *post);
int ibx_tcp_rdma(void *endpoint, struct ibx_chunk *chunk);
/* Whether a READ or WRITE of this side was answered that has not been sent whole yet. */
bool ibx_tcp_posts_have_answered(const struct tcp *tcp);
/* Reports all READs and WRITEs of this side as failed. */
void ibx_tcp_posts_flush(struct tcp *tcp, int status);
/* No byte of `mr` is touched for the peer any more. */
void ibx_tcp_jobs_forget(struct tcp *tcp, struct ibx_mr *mr);

/* lane_thread.c; only the polling thread calls */
/* Gives the lane's thread what is queued, reports what it has sent. False: the lane has none. */
bool ibx_tcp_thread_push(struct tcp_lane *lane);
/* The same for a long body that arrives. False: the lane is to be read here. */
bool ibx_tcp_thread_pull(struct tcp_lane *lane);
/* Whether the thread has items that are not reported yet; and whether it has a body, or has
 * received one that was not handed on. */
bool ibx_tcp_thread_sends(const struct tcp_lane *lane);
bool ibx_tcp_thread_receives(const struct tcp_lane *lane);
/* How many bytes it has received and not handed on; and what has `gone` of a lane, with or without
 * a thread. */
size_t ibx_tcp_thread_got(const struct tcp_lane *lane);
uint64_t ibx_tcp_thread_gone(const struct tcp_lane *lane, uint64_t *checks);
/* Whether a push or pull would do something. */
bool ibx_tcp_thread_has_news(const struct tcp_lane *lane);
/* arm: from now on threads wake the sleeper. awake: it is awake. */
void ibx_tcp_threads_arm(struct tcp *tcp);
void ibx_tcp_threads_awake(struct tcp *tcp);
/* Takes the body back; what has arrived of it is handed on. */
void ibx_tcp_thread_cancel_input(struct tcp_lane *lane);
enum tcp_back ibx_tcp_thread_unqueue(struct tcp_lane *lane, struct tcp_item *item);
/* Reports all that the peer can have received. */
void ibx_tcp_threads_collect(struct tcp *tcp);
/* stop: afterwards they touch no memory but their own. end: frees them. */
void ibx_tcp_threads_stop(struct tcp *tcp);
void ibx_tcp_threads_end(struct tcp *tcp);

/* uring.c; only to be called where tcp_uring() is not NULL */
#ifdef IBX_WITH_URING
#define tcp_uring(tcp) ((tcp)->uring)
#else
#define tcp_uring(tcp) ((struct tcp_uring *)NULL)
#endif
int ibx_tcp_uring_open(struct tcp *tcp);
/* Handles what is done and starts what is next. */
void ibx_tcp_uring_progress(struct tcp *tcp);
/* Reports what the kernel has sent: all that the peer can have received. */
void ibx_tcp_uring_collect(struct tcp *tcp);
/* Whether the kernel has not taken all requests, for want of memory: nothing will wake a sleeper
 * for these. */
bool ibx_tcp_uring_has_refused(const struct tcp *tcp);
/* Cancels the lane's receive; afterwards the kernel writes to none of its memory. */
void ibx_tcp_uring_cancel_input(struct tcp_lane *lane);
/* Cancels everything and ends the bulk lanes. True when the kernel uses no memory any more. */
bool ibx_tcp_uring_stop(struct tcp *tcp);
/* The same, and waits for it. */
void ibx_tcp_uring_settle(struct tcp *tcp);
void ibx_tcp_uring_close(struct tcp *tcp);

#endif
