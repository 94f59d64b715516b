/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The tcp provider's own view of a connection; shared by tcp*.c only.
 *
 * Lane 0 is the door's socket: messages, urgent work and everything small. The
 * bulk lanes are sockets of their own, on which only DATA and WRITE travel.
 *
 *   tcp.c          the provider's calls, memory regions, the turn of progress()
 *   tcp_setup.c    offer, join, finish: how the lanes come to be
 *   tcp_frame.c    the bytes of frames, hellos and terms
 *   tcp_lane.c     bytes in and out of one socket
 *   tcp_alive.c    whether the host behind a socket still answers
 *   tcp_message.c  messages and their credits
 *   tcp_work.c     what frames mean; posts of this side, jobs for the peer
 *   tcp_ring.c     io_uring as the engine of the bulk lanes, when asked for
 */
#ifndef IBX_TRANSPORT_TCP_TCP_H
#define IBX_TRANSPORT_TCP_TCP_H

#include "transport/tcp/frame.h"

#include <errno.h>
#include <sys/socket.h>

#define IBX_TCP_FLIGHT 8 /* items handed to the kernel in one call */
#define IBX_TCP_SPARES 2 /* memory of long messages kept for the next ones */

struct tcp;
struct tcp_ring;

/* ------------------------------------------------------------------ leaving */

enum tcp_item_kind { TCP_ITEM_LETTER, TCP_ITEM_POST, TCP_ITEM_JOB, TCP_ITEM_CREDIT };

/* One frame on its way out: a header, and a body that stays where its owner has it. */
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

/* --------------------------------------------------------------------- lanes */

/* Who gets the body that is arriving. */
enum tcp_body { TCP_BODY_NONE, TCP_BODY_MESSAGE, TCP_BODY_POST, TCP_BODY_JOB };

struct tcp_lane {
    struct tcp *tcp;
    unsigned index; /* 0: the door */
    int fd;
    bool watched; /* by the core, for input */

    /* Out. `flight` was or is being given to the kernel, in this order; the queues wait. */
    struct tcp_item *flight[IBX_TCP_FLIGHT];
    unsigned flight_count;
    struct tcp_item_queue small, large;
    uint64_t silent_since; /* ns; what is on its way there goes unanswered, 0: it does not */
    bool blocked;          /* the socket took no more */
    bool watched_output;   /* in tcp->writable */

    /* In. Bytes arrive in `body` as long as one is expected, after it in `stage`: a header, on lane
     * 0 also what came behind it. Between calls fewer bytes than a header are there. */
    uint8_t *stage;
    size_t stage_have;
    uint8_t *body; /* NULL: thrown away */
    size_t body_left;
    enum tcp_body body_kind;
    void *body_owner;
    unsigned awaited; /* answers to own READs still to come on it */
    unsigned quiet;   /* looks at it in a row that found nothing */

    /* The ring's, while it has work of this lane. */
    bool ring_in, ring_out;
    struct msghdr ring_message;
    struct iovec ring_pieces[2 * IBX_TCP_FLIGHT];
};

/* ---------------------------------------------------------------------- work */

/* A message that did not leave at once, or whose sender wants to know. */
struct tcp_letter {
    struct tcp_item item;
    struct tcp_letter *next; /* among the free or the sent ones */
    uint8_t *buffer;         /* made on first use */
    uint64_t cookie;
    bool signaled;
};

/*
 * A READ or WRITE of this side, until the core is told:
 *
 *   FREE -> QUEUED -> WAITING -> ARRIVING -> FREE    READ, answered by DATA
 *               \         \----------------> FREE    refused, or a WRITE acknowledged
 *                \-> ANSWERED -------------> FREE    ...while the kernel still has the bytes
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
    enum tcp_post_state state;
    uint16_t generation;
    unsigned notices; /* zero-copy sends of which the kernel has not let go: memory still in use */
    int status;       /* when ANSWERED */
};

/*
 * A READ or WRITE of the peer in memory of this side:
 *
 *   FREE -> SENDING ------------> FREE    READ: its DATA leaves
 *   FREE -> RECEIVING -> ANSWERING -> FREE    WRITE: its bytes arrive, then ACK or NAK leaves
 *   FREE -> ANSWERING -> FREE    READ, refused
 */
enum tcp_job_state { TCP_JOB_FREE, TCP_JOB_SENDING, TCP_JOB_RECEIVING, TCP_JOB_ANSWERING };

struct tcp_job {
    struct tcp_item item;
    struct tcp_job *next, *prev; /* free (next only), or in use */
    struct ibx_mr *mr;           /* while bytes move in it, otherwise NULL */
    struct tcp_lane *lane;       /* on which the bytes move */
    enum tcp_job_state state;
    uint32_t id;     /* the peer's */
    uint32_t status; /* enum ibx_tcp_status, 0: fine so far */
};

/* Registered memory that the peer may name. */
struct tcp_region {
    struct ibx_mr *mr; /* NULL: free */
    uint64_t key;      /* random, generation, index */
    uint32_t next_free;
};

enum tcp_engine { TCP_ENGINE_SYSCALLS, TCP_ENGINE_RING, TCP_ENGINE_RING_ZEROCOPY };

struct tcp {
    struct ibx_link *link;
    struct ibx_tcp_terms mine, peer;
    bool same_host;
    int listener;     /* the server's, from offer to finish */
    int writable;     /* an epoll descriptor: readable when a blocked lane takes bytes again */
    int timer;        /* wakes for the next look at what is on its way; -1 over a unix socket */
    uint64_t look_at; /* ns; when that is due, 0: nothing is on its way */
    bool wrote;       /* since the last look */
    struct tcp_lane lanes[1 + IBX_TCP_LANES_MAX];
    unsigned lane_count; /* bulk lanes */
    size_t chunk;
    enum tcp_engine engine;
    struct tcp_ring *ring;

    /* Messages. One of at most `message_unit` bytes lies in its slot of the inbox, a longer one in
     * memory of its own, which its slot then has in `big`. */
    size_t message_unit, message_max;
    uint8_t *inbox;       /* mine.slots of message_unit bytes */
    uint32_t *inbox_free; /* stack of slots */
    unsigned inbox_count; /* on the stack */
    uint8_t *inbox_taken; /* one a slot: it has a message */
    uint8_t **big;        /* one a slot */
    uint8_t *spare[IBX_TCP_SPARES];
    unsigned spare_count;
    unsigned credits;      /* messages that the peer has room for */
    unsigned peer_credits; /* what the peer knows about room here */
    unsigned owed;         /* room here of which the peer does not know yet */
    uint32_t arriving;     /* the slot of the message that is coming in, and where it begins */
    const uint8_t *arriving_at;
    struct tcp_item credit_item;
    bool credit_queued;
    struct tcp_letter *letters; /* peer.slots */
    struct tcp_letter *letters_free;
    struct tcp_letter *letters_sent, **letters_sent_tail;

    struct tcp_post *posts; /* mine.depth */
    struct tcp_post *posts_free;
    struct tcp_job *jobs; /* peer.depth */
    struct tcp_job *jobs_free, *jobs_used;

    struct tcp_region *regions;
    uint32_t region_count, region_free;
    uint32_t random[64]; /* for keys */
    unsigned random_left;

    unsigned turns;
    int reports; /* upcalls made in this turn */
    bool moved;  /* bytes, in this turn */
    int status;  /* why the connection is over, 0 while it lives */
    char reason[192];
    bool broken;  /* the link went, rather than that somebody broke the rules */
    bool parting; /* a bulk lane has ended: what is still on its way on lane 0 is taken, no more */
    bool lost_told, aborted;
};

/* tcp.c */
/* Notes the first failure; progress() tells the core. Returns a negative errno. */
int ibx_tcp_fail(struct tcp *tcp, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Where the peer's request lies in this process: 0 and *mr, or an enum ibx_tcp_status. */
uint32_t ibx_tcp_region_find(const struct tcp *tcp, const struct ibx_tcp_frame *frame,
                             unsigned access, struct ibx_mr **mr);

/* tcp_setup.c */
int ibx_tcp_offer(void *endpoint, struct ibx_writer *offer, struct ibx_error *err);
int ibx_tcp_join(void *endpoint, struct ibx_reader *offer, struct ibx_writer *answer,
                 struct ibx_error *err);
int ibx_tcp_finish(void *endpoint, struct ibx_reader *answer, uint64_t deadline_ns,
                   struct ibx_error *err);

/* tcp_alive.c */
void ibx_tcp_alive_tune(const struct tcp *tcp, int fd);
/* The lanes are there. */
int ibx_tcp_alive_open(struct tcp *tcp);
void ibx_tcp_alive_close(struct tcp *tcp);
/* Ends the connection when the peer's host has been silent for too long. To be called often, and
 * always before this side sleeps. */
void ibx_tcp_alive_check(struct tcp *tcp);
/* False where nothing can still be on its way on lane 0 when another one has ended. Otherwise it is
 * waited for, and ibx_tcp_alive_parting() to be called in each turn. */
bool ibx_tcp_alive_part(struct tcp *tcp);
/* Ends the connection when nothing has come for a while. */
void ibx_tcp_alive_parting(struct tcp *tcp);

/* tcp_lane.c */
int ibx_tcp_lane_init(struct tcp_lane *lane, struct tcp *tcp, unsigned index, int fd);
void ibx_tcp_lane_queue(struct tcp_lane *lane, struct tcp_item *item);
/* Takes an item back of which nothing was given to the kernel: false when it is too late. */
bool ibx_tcp_lane_unqueue(struct tcp_lane *lane, struct tcp_item *item);
bool ibx_tcp_lane_has_output(const struct tcp_lane *lane);
/* Gives queued items to the socket as far as it takes them. */
void ibx_tcp_lane_push(struct tcp_lane *lane);
/* Takes what has arrived. */
void ibx_tcp_lane_pull(struct tcp_lane *lane);
/* Fills `flight` from the queues and describes what is left of it: the number of pieces. */
int ibx_tcp_lane_pieces(struct tcp_lane *lane, struct iovec *pieces);
/* The first `n` bytes of that are gone. */
void ibx_tcp_lane_left(struct tcp_lane *lane, size_t n);
/* `n` bytes arrived: first in the body, the rest in the stage. */
void ibx_tcp_lane_came(struct tcp_lane *lane, size_t n);
/* A call on the socket failed with this errno, or 0 for the end of the stream. */
void ibx_tcp_lane_broken(struct tcp_lane *lane, int code);
/* After the link broke: takes what had arrived before that. */
void ibx_tcp_lane_read_out(struct tcp_lane *lane);

void ibx_tcp_item_init(struct tcp_item *item, enum tcp_item_kind kind,
                       const struct ibx_tcp_frame *frame);

/* tcp_message.c */
size_t ibx_tcp_message_memory(const struct ibx_options *options);
int ibx_tcp_messages_init(struct tcp *tcp, struct ibx_error *err);
void ibx_tcp_messages_fini(struct tcp *tcp);
int ibx_tcp_send(void *endpoint, const struct iovec *iov, int iovcnt, size_t length,
                 uint64_t cookie, unsigned flags);
void ibx_tcp_release(void *endpoint, uint64_t slot);
/* The slot that the next message will get, message_unit bytes; NULL when all are taken. */
uint8_t *ibx_tcp_inbox_next(const struct tcp *tcp);
void ibx_tcp_message_came(struct tcp_lane *lane, const struct ibx_tcp_frame *frame);
/* The message that was arriving is complete up to `end`. */
void ibx_tcp_message_whole(struct tcp *tcp, const uint8_t *end);
/* The peer has room again. */
void ibx_tcp_credits_came(struct tcp *tcp, unsigned n);
/* Tells the peer about room here, when it may be waiting for that. */
void ibx_tcp_credits_return(struct tcp *tcp);
void ibx_tcp_letter_left(struct tcp *tcp, struct tcp_letter *letter);
/* Reports the sends whose bytes have left. */
void ibx_tcp_letters_report(struct tcp *tcp);
/* Reports all sends that were to be reported. */
void ibx_tcp_letters_flush(struct tcp *tcp, int status);

/* tcp_work.c */
int ibx_tcp_work_init(struct tcp *tcp, struct ibx_error *err);
void ibx_tcp_work_fini(struct tcp *tcp);
void ibx_tcp_frame_came(struct tcp_lane *lane, const struct ibx_tcp_frame *frame);
void ibx_tcp_body_came(struct tcp_lane *lane);
void ibx_tcp_item_left(struct tcp *tcp, struct tcp_item *item);
/* The kernel has let go of one zero-copy send of this post. */
void ibx_tcp_post_noticed(struct tcp *tcp, struct tcp_post *post);
int ibx_tcp_rdma(void *endpoint, struct ibx_chunk *chunk);
/* Reports all READs and WRITEs of this side as failed. */
void ibx_tcp_posts_flush(struct tcp *tcp, int status);
/* No byte of `mr` is touched for the peer any more. */
void ibx_tcp_jobs_forget(struct tcp *tcp, struct ibx_mr *mr);

/* tcp_ring.c */
#ifdef IBX_WITH_URING
int ibx_tcp_ring_open(struct tcp *tcp);
/* One round: what is done, what is next. */
void ibx_tcp_ring_turn(struct tcp *tcp);
/* Takes back what the kernel has of this lane's input; afterwards nothing of it is in flight. */
void ibx_tcp_ring_recall_input(struct tcp_lane *lane);
/* Takes back everything and ends the bulk lanes. True when the kernel has let go of all memory. */
bool ibx_tcp_ring_stop(struct tcp *tcp);
/* The same, and waits for it. */
void ibx_tcp_ring_settle(struct tcp *tcp);
void ibx_tcp_ring_close(struct tcp *tcp);
#else
static inline int ibx_tcp_ring_open(struct tcp *tcp)
{
    (void)tcp;
    return -ENOSYS;
}
static inline void ibx_tcp_ring_turn(struct tcp *tcp)
{
    (void)tcp;
}
static inline void ibx_tcp_ring_recall_input(struct tcp_lane *lane)
{
    (void)lane;
}
static inline bool ibx_tcp_ring_stop(struct tcp *tcp)
{
    (void)tcp;
    return true;
}
static inline void ibx_tcp_ring_settle(struct tcp *tcp)
{
    (void)tcp;
}
static inline void ibx_tcp_ring_close(struct tcp *tcp)
{
    (void)tcp;
}
#endif

#endif
