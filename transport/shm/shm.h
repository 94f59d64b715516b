/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The shm provider's own view of a connection: shared by shm*.c only.
 *
 *   shm.c         the provider's table, opening and closing
 *   shm_meet.c    how the two processes find each other and map one segment
 *   shm_ring.c    commands, messages, sleeping and waking
 *   shm_memory.c  regions: keys, the shared table of them, arenas
 *   shm_shared.c  the process's arena, which belongs to no connection
 *   shm_copy.c    READ and WRITE, and who copies
 *   shm_ask.c     copies with the peer's help
 *   shm_reach.c   the peer's memory for who copies without posts
 *
 * Functions that take `void *endpoint` stand in the provider's table as they are.
 *
 * One memfd, made by the server, is mapped by both. It has two halves of equal
 * shape; a side writes its own half and reads the other's, with the exceptions
 * named below. Nothing read from shared memory is believed: it is copied out,
 * then checked, then used. Whatever a peer must not be able to change
 * afterwards (a message being parsed, the state of a piece) lives in private
 * memory.
 */
#ifndef IBX_TRANSPORT_SHM_SHM_H
#define IBX_TRANSPORT_SHM_SHM_H

#include "transport/core/provider.h"

#include <stdatomic.h>
#include <sys/types.h>

#define IBX_SHM_VERSION       4u
#define IBX_SHM_INLINE        104u         /* bytes of a message that travel inside its command */
#define IBX_SHM_PIECES        6u           /* bounce buffers for the work that one side starts */
#define IBX_SHM_URGENT_PIECES 2u           /* of these, kept for urgent work */
#define IBX_SHM_PIECE         (128u << 10) /* bytes of a bounce buffer: two of them fit in L2 */
#define IBX_SHM_PAGE          4096u
#define IBX_SHM_PIECE_ROOM    (IBX_SHM_PIECE + IBX_SHM_PAGE) /* wherever in a page it begins */
#define IBX_SHM_REGIONS       16384u                         /* registrations of one side */
#define IBX_SHM_ARENA         (16ull << 30) /* sparse; bytes that one side can allocate */
#define IBX_SHM_NONCE         16u
#define IBX_SHM_SHARED_ID     UINT64_MAX /* of all memory in the process's arena: its pages stay */

/* ------------------------------------------------------------ shared memory */

enum shm_command_kind {
    SHM_COMMAND_MESSAGE = 1, /* length */
    SHM_COMMAND_READ,        /* copy length bytes of your memory into my bounce buffer `piece` */
    SHM_COMMAND_WRITE,       /* the other way */
    SHM_COMMAND_DONE,        /* your `piece` is ready: status */
};

enum shm_claim { SHM_CLAIM_OPEN, SHM_CLAIM_TAKEN, SHM_CLAIM_TAKEN_BACK };

/* One place of a ring. It is taken by the reader when `sequence` says so and overwritten one lap
 * later; no index is shared. A lap cannot overtake the reader, because every command in the ring
 * holds a credit or a piece that only the reader's answer frees (struct shm_geometry). */
struct shm_command {
    _Alignas(128) _Atomic uint32_t sequence; /* position + 1, written last */
    uint8_t kind;
    uint8_t urgent;
    uint16_t piece;
    uint32_t length;
    int32_t status;
    union {
        uint8_t data[IBX_SHM_INLINE]; /* a message of at most so many bytes */
        struct {
            uint64_t key, address;
        } target;
    };
};
_Static_assert(sizeof(struct shm_command) == 128, "a command is two cache lines");

enum shm_sleep { SHM_AWAKE, SHM_SLEEPS, SHM_SLEEPS_HUNGRY /* for credit as well */ };

/* Each on a line of its own: the peer's polling must not slow down the writer. */
struct shm_control {
    _Alignas(128) _Atomic uint32_t sleeping; /* enum shm_sleep; the peer sets it back */
    _Alignas(128) _Atomic uint64_t released; /* messages this side has given back */
    /* 1 + index of the peer's region that this side copies from or to right now, 0: none.
     * The peer's deregistration waits for it. */
    _Alignas(128) _Atomic uint32_t copying;
    /* enum shm_claim, of the copy that was asked for with this side's piece of the same index; who
     * changes it first does the copy. Not in the command: that place of the ring may be a newer
     * command's by the time an overtaken piece is served. A piece is not used again before DONE. */
    _Alignas(128) _Atomic uint32_t claims[IBX_SHM_PIECES];
};

/* A region as the peer's copying side sees it. */
struct shm_published {
    _Alignas(64) _Atomic uint64_t key; /* 0: none; written last */
    uint64_t address, length;
    uint64_t arena_offset;
    uint32_t access;
    uint32_t arena; /* enum shm_arena_kind; with one: the allocation that the region is part of */
    uint64_t allocation, allocation_offset, allocation_length; /* its id; where in the arena */
};
_Static_assert(sizeof(struct shm_published) == 64, "a published region is one cache line");

/* What the server decides and the client checks. */
struct shm_geometry {
    uint32_t slots;    /* messages in flight each way */
    uint32_t message;  /* bytes of the longest */
    uint32_t stride;   /* of message buffers */
    uint32_t commands; /* a power of two, at least slots + 2 * IBX_SHM_PIECES */
    size_t regions_at, messages_at, bounce_at; /* offsets in a half; commands follow the control */
    size_t half;                               /* bytes */
};

/* Where the parts of one half are mapped. */
struct shm_half {
    struct shm_control *control;
    struct shm_command *commands;
    struct shm_published *regions;
    uint8_t *messages;
    uint8_t *bounce;
};

/* ----------------------------------------------------------- private memory */

enum shm_arena_kind {
    SHM_ARENA_NONE,
    SHM_ARENA_READ,   /* the peer's mapping is read-only */
    SHM_ARENA_WRITE,  /* the peer's mapping is writable */
    SHM_ARENA_SHARED, /* the same; ibx_shared_allocate(), the same one in all connections */
    SHM_ARENA_KINDS,
};

/* A registration of this side; allocated ones are also a piece of an arena, or anonymous memory. */
struct shm_region {
    struct ibx_mr *mr;
    uint32_t index;
    enum shm_arena_kind arena;
    uint64_t offset; /* of the region in its arena */
    uint64_t mapped; /* bytes of the allocation; 0: the region is no allocation */
    uint64_t id;     /* of the allocation that it is or is part of, 0: of none ... */
    uint64_t whole_offset, whole_length; /* ... which is here in the arena */
    struct shm_region *next;             /* in its arena, by offset */
};

struct shm_arena {
    int fd; /* -1: not made yet */
    uint64_t bytes;
    struct shm_region *regions;
};

/* A bounce buffer of this side, and the copy that the peer was asked for with it. */
struct shm_piece {
    struct ibx_chunk *chunk; /* NULL: it needs nothing more of the peer */
    uint8_t *local;
    uint64_t address;
    size_t length;
    bool busy; /* not answered yet */
};

/* What the peer asked for with its bounce buffer of the same index. */
struct shm_request {
    enum ibx_rdma_kind kind;
    uint64_t key, address;
    size_t length;
    bool pending;
};

struct shm_queue {
    struct ibx_chunk *head, **tail;
};

struct shm_pieces_fifo {
    uint16_t items[IBX_SHM_PIECES];
    unsigned head, count;
};

struct shm {
    struct ibx_link *link;
    enum ibx_role role;

    /* meeting */
    int listener; /* the server's, until finish */
    char path[108];
    bool abstract; /* `path` is a name in the network namespace, not a file */
    int control;   /* unix socket: wakes, arena descriptors, and its end */
    pid_t peer_pid;
    bool gone; /* the control socket has ended */

    void *segment;
    struct shm_geometry geometry;
    struct shm_half mine, theirs;

    /* the ring */
    uint32_t put, taken;          /* positions, wrapping */
    uint64_t sent, released_seen; /* messages out, and given back by the peer */
    uint64_t received, released;  /* messages in, and given back here */
    uint8_t *inbox;               /* private copies of received messages */
    uint32_t *inbox_free;         /* stack of free places */
    uint32_t inbox_free_count;    /* */
    bool *inbox_held;             /* by the user */
    uint64_t *send_done;          /* cookies of signalled sends to report */
    uint32_t send_done_count;     /* at most slots */
    unsigned hungry;              /* credits that a send was refused for want of; 0: none was */
    bool armed;                   /* this side may have been sleeping */
    bool aborted;                 /* */
    int broken;                   /* negative errno to report as lost, once */
    char broken_reason[160];

    /* regions */
    struct shm_region **regions; /* by index, NULL: free */
    uint32_t region_count;       /* of places in `regions` */
    uint32_t *region_free;       /* stack */
    uint32_t region_free_count;
    uint16_t generation;
    uint32_t randoms[32];
    unsigned randoms_left;
    struct shm_arena arenas[SHM_ARENA_KINDS]; /* this side's, but for the shared one */
    bool shared_lent;                         /* the peer has that one, too */
    uint64_t allocations;                     /* made in them so far */
    struct {
        uint8_t *base; /* NULL: not known or not mappable */
        uint64_t bytes;
        bool seen;
    } peer_arenas[SHM_ARENA_KINDS];

    /* copies */
    struct shm_queue urgent, bulk; /* chunks with bytes neither copied nor asked for */
    unsigned urgent_run;           /* urgent steps since the last one of bulk */
    struct shm_piece pieces[IBX_SHM_PIECES];
    struct shm_request requests[IBX_SHM_PIECES];
    struct shm_pieces_fifo asked_urgent, asked_bulk;
    bool present;         /* the peer was seen at work lately: asking it is worth while */
    uint64_t quiet_since; /* ns; when the wait for an answer began, 0: not waiting */
    size_t copied_alone;  /* bytes since the absent peer was last asked */
    bool direct;          /* process_vm_readv and process_vm_writev reach the peer */
    char direct_reason[128];
    /* The peer recognises this process image by it; at the head of a page of its own, which every
     * direct copy goes through first: the gate (withdraw() shuts it). */
    uint8_t *nonce;
    bool gate_shut;
    uint64_t peer_nonce_address;
    uint8_t peer_nonce[IBX_SHM_NONCE];
};

/* shm_meet.c */
size_t ibx_shm_message_memory(const struct ibx_options *options);
int ibx_shm_offer(void *endpoint, struct ibx_writer *offer, struct ibx_error *err);
int ibx_shm_join(void *endpoint, struct ibx_reader *offer, struct ibx_writer *answer,
                 struct ibx_error *err);
/* Leaves `control`, `segment` and `geometry`. */
int ibx_shm_meet(struct shm *shm, uint64_t deadline_ns, struct ibx_error *err);
void ibx_shm_unmeet(struct shm *shm);
/* A sealed memfd of `bytes` zeros, or a negative errno. */
int ibx_shm_memfd(const char *name, uint64_t bytes);
/* Whether the peer's descriptor is a memfd that it cannot shrink, of ordinary pages: a fault in one
 * of huge pages is a SIGBUS here when the system has none left. */
bool ibx_shm_memfd_safe(int fd);
/* Sends and receives one packet, with a descriptor when *fd >= 0 is given or came; received ones
 * are -1 when there was none. Non-blocking. */
int ibx_shm_packet_send(int socket, const void *data, size_t length, int fd);
ssize_t ibx_shm_packet_receive(int socket, void *data, size_t size, int *fd);

/* shm_ring.c */
int ibx_shm_ring_init(struct shm *shm);
void ibx_shm_ring_fini(struct shm *shm);
int ibx_shm_send(void *endpoint, const struct iovec *iov, int iovcnt, size_t length,
                 uint64_t cookie, unsigned flags);
void ibx_shm_release(void *endpoint, uint64_t slot);
/* Publishes a command other than a message. */
void ibx_shm_command_put(struct shm *shm, const struct shm_command *command);
/* Handles every command that is there; returns the number of upcalls. */
int ibx_shm_ring_progress(struct shm *shm);
int ibx_shm_arm(void *endpoint);
/* Reads what came over the control socket: wakes and arenas. */
void ibx_shm_control_drain(struct shm *shm);
/* Remembers that the connection is over; the next progress reports it. */
void ibx_shm_break(struct shm *shm, int status, const char *reason);

/* shm_memory.c */
int ibx_shm_memory_init(struct shm *shm, struct ibx_error *err);
void ibx_shm_memory_fini(struct shm *shm);
int ibx_shm_mr_register(void *endpoint, struct ibx_mr *mr, struct ibx_error *err);
void ibx_shm_mr_deregister(void *endpoint, struct ibx_mr *mr);
/* This side's memory that the peer names: its address, or NULL with *status set. */
uint8_t *ibx_shm_region_find(struct shm *shm, const struct shm_request *request, int *status);
/* The peer's memory: while it is claimed the peer's deregistration waits. Sets *mapped to where
 * this process sees it, or NULL. -EACCES or -ERANGE, and then nothing is claimed. */
int ibx_shm_region_claim(struct shm *shm, uint64_t key, uint64_t address, uint64_t length,
                         unsigned access, uint8_t **mapped);
/* The same, with the allocation that it is part of where it is mapped. */
int ibx_shm_region_claim_whole(struct shm *shm, const struct ibx_remote *remote, unsigned access,
                               struct ibx_reach *reach);
void ibx_shm_region_unclaim(struct shm *shm);
/* From its return on no direct copy of the peer's begins any more. */
void ibx_shm_gate_shut(struct shm *shm);
const void *ibx_shm_remote_pointer(void *endpoint, const struct ibx_remote *remote);
/* Takes the peer's arena that came over the control socket; owns `fd`. */
void ibx_shm_arena_accept(struct shm *shm, unsigned kind, int fd);

/* shm_shared.c */
/* The descriptor of the process's arena when all these bytes are in it, borrowed; otherwise -1. */
int ibx_shm_shared_fd(const void *address, size_t length, uint64_t *offset);
/* The piece that was allocated round `offset`. */
bool ibx_shm_shared_piece(uint64_t offset, uint64_t *begin, uint64_t *length);

/* shm_copy.c */
void ibx_shm_copy_init(struct shm *shm);
/* Finds out whether the kernel copies between the two processes. */
void ibx_shm_direct_probe(struct shm *shm);
int ibx_shm_rdma(void *endpoint, struct ibx_chunk *chunk);
/* Copies some of what is due, urgent work first; returns how much it found to do. */
int ibx_shm_copy_progress(struct shm *shm);
/* Whether there is something to copy that nobody will wake this side for. */
bool ibx_shm_copy_due(struct shm *shm);
/* A piece of the chunk is over. Returns the number of upcalls. */
int ibx_shm_chunk_part_done(struct shm *shm, struct ibx_chunk *chunk, int status);
/* Copies a part of what the chunk asks for without the peer, by a mapping or else, where `direct`
 * allows it, by the kernel. 0 or a negative errno as its end; 1 when that is not possible. */
int ibx_shm_copy_alone(struct shm *shm, const struct ibx_chunk *chunk, uint8_t *local,
                       uint64_t address, size_t length, bool direct);
/* By the kernel, into or out of the peer's memory; from any thread. 0; -ESRCH: it is gone. */
int ibx_shm_direct_copy(struct shm *shm, bool read, void *local, uint64_t address, size_t length);
/* Reports all chunks with -ECONNRESET. */
void ibx_shm_copy_abort(struct shm *shm);

/* shm_reach.c */
int ibx_shm_remote_hold(void *endpoint, const struct ibx_remote *remote, unsigned access,
                        struct ibx_reach *reach);
void ibx_shm_remote_release(void *endpoint);
int ibx_shm_remote_copy(void *endpoint, bool read, void *local, uint64_t address, size_t length);

/* shm_ask.c */
/* Asks for `length` bytes, at most IBX_SHM_PIECE; false when no bounce buffer is free. */
bool ibx_shm_ask(struct shm *shm, struct ibx_chunk *chunk, uint8_t *local, uint64_t address,
                 size_t length);
/* Whether ibx_shm_ask() would find a bounce buffer. */
bool ibx_shm_ask_room(struct shm *shm, const struct ibx_chunk *chunk);
/* The peer's DONE for one of our pieces; returns the number of upcalls. */
int ibx_shm_ask_done(struct shm *shm, unsigned piece, int status);
/* Whether a piece waits that the peer has not begun to copy. */
bool ibx_shm_ask_open(struct shm *shm);
/* Takes back one of those and copies it alone; returns the number of upcalls. */
int ibx_shm_ask_take_back(struct shm *shm);
/* The peer's READ or WRITE. */
void ibx_shm_request_take(struct shm *shm, unsigned piece, bool urgent,
                          const struct shm_request *request);
/* Does some of what the peer asked for; returns how much. */
int ibx_shm_serve(struct shm *shm);

#endif
