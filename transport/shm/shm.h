/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The shm provider: shared memory between two processes of one host, in one container or in several
 * that share a directory or the network namespace. This header is for the folder only.
 *
 *   shm.c         the provider's calls, opening and closing
 *   setup.c       offer, join, finish: the dialogue over the unix socket, the shared segment
 *   socket.c      where that socket is, and who may change it there
 *   identity.c    who is at its other end
 *   ring.c        commands, messages, sleeping and waking
 *   memory.c      regions: keys, the shared table of them, arenas
 *   peer_arena.c  the peer's arenas, mapped, and what of them may be touched
 *   shared.c      the process's arena, which belongs to no connection
 *   huge_pages.c  memfds, placement in arenas, huge pages
 *   copy.c        READ and WRITE: which side copies, and how
 *   request.c     copies that the peer is requested to help with
 *   peer_death.c  what happens when the peer dies, stops or hangs
 *
 * Functions that take `void *endpoint` are in the provider's table as they are.
 *
 * One memfd, made by the server, is mapped by both. It has two halves of equal shape; a side writes
 * its own half and reads the other's, with the exceptions named below. Nothing read from shared
 * memory is trusted: it is copied out, then checked, then used. What a peer must not be able to
 * change afterwards (a message being parsed, the state of a piece) lies in private memory.
 */
#ifndef IBX_TRANSPORT_SHM_SHM_H
#define IBX_TRANSPORT_SHM_SHM_H

#include "common/state_machine.h"
#include "transport/core/provider.h"

#include <stdatomic.h>
#include <sys/types.h>

#define IBX_SHM_VERSION       5u
#define IBX_SHM_INLINE        104u         /* bytes of a message that travel inside its command */
#define IBX_SHM_PIECES        6u           /* bounce buffers for the work that one side starts */
#define IBX_SHM_URGENT_PIECES 2u           /* of these, kept for urgent work */
#define IBX_SHM_PIECE         (128u << 10) /* bytes of a bounce buffer: two of them fit in L2 */
#define IBX_SHM_ALIAS         4096u        /* bytes: see bounce_of() */
#define IBX_SHM_PIECE_ROOM    (IBX_SHM_PIECE + IBX_SHM_ALIAS) /* wherever it begins */
#define IBX_SHM_REGIONS       16384u                          /* registrations of one side */
#define IBX_SHM_ARENA         (16ull << 30) /* sparse; bytes that one side can allocate */
#define IBX_SHM_NONCE         16u
#define IBX_SHM_MAPPED        (8ull << 40) /* bytes of peers' arenas that a process maps */
#define IBX_SHM_NAME          36u          /* of a socket: "ibx-" and 32 hex digits */
#define IBX_SHM_DIRECTORY     256u         /* of shm_dir, with the zero byte */
#define IBX_SHM_SHARED_ID     UINT64_MAX /* of all memory in the process's arena: its pages stay */

/* ------------------------------------------------------------ shared memory */

enum shm_command_kind {
    SHM_COMMAND_MESSAGE = 1, /* length */
    SHM_COMMAND_READ,        /* copy length bytes of your memory into my bounce buffer `piece` */
    SHM_COMMAND_WRITE,       /* the other way */
    SHM_COMMAND_DONE,        /* your `piece` is ready: status */
};

/* An atomic in shared memory, moved by compare-and-exchange, so no struct ibx_state_machine. */
enum shm_request_state { SHM_REQUEST_OPEN, SHM_REQUEST_SERVED, SHM_REQUEST_WITHDRAWN };

/* An entry of a ring. The reader takes it when `sequence` is its own; no index is shared. A lap
 * cannot overtake the reader, because every command holds a credit or a piece that only the
 * reader's answer frees (struct shm_geometry). */
struct shm_command {
    _Alignas(128) _Atomic uint32_t sequence; /* position + 1, written last */
    uint8_t kind;
    uint8_t urgent;
    uint16_t piece;
    uint32_t length;
    int32_t status;
    union {
        uint8_t data[IBX_SHM_INLINE]; /* a message, if it fits */
        struct {
            uint64_t key, address;
        } target;
    };
};
_Static_assert(sizeof(struct shm_command) == 128, "a command is two cache lines");
/* Bytes of `data` in the first of them. */
#define IBX_SHM_FIRST_LINE (64u - offsetof(struct shm_command, data))

enum shm_sleep { SHM_AWAKE, SHM_SLEEPS, SHM_SLEEPS_FOR_CREDIT /* for credit as well */ };

/* Each on a line of its own: the peer's polling must not slow down the writer. */
struct shm_control {
    _Alignas(128) _Atomic uint32_t sleeping; /* enum shm_sleep; the peer sets it back */
    _Alignas(128) _Atomic uint64_t released; /* messages this side has given back */
    /* A hazard pointer: 1 + index of the peer's region that this side copies from or to right now,
     * 0: none. The peer's deregistration waits for it. */
    _Alignas(128) _Atomic uint32_t copying;
    /* enum shm_request_state, of the request for this side's piece of the same index; who changes
     * it first does the copy. It is not in the command, whose ring entry may have been reused by
     * then. */
    _Alignas(128) _Atomic uint32_t requests[IBX_SHM_PIECES];
};

/* A region as the peer's copying side sees it. */
struct shm_published {
    _Alignas(64) _Atomic uint64_t key; /* 0: none; written last */
    uint64_t address, length;
    uint64_t arena_offset;
    uint32_t access;
    uint32_t arena; /* enum shm_arena_kind; if not NONE, the region is in an allocation: */
    uint64_t allocation, allocation_offset, allocation_length; /* its id; its place in the arena */
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

/* A used part of an arena. */
struct shm_extent {
    uint64_t offset, length;
    struct shm_extent *next; /* by offset */
};

/* A registration of this side; allocated ones are also a piece of an arena, or anonymous memory. */
struct shm_region {
    struct shm_extent extent; /* where in its arena; length 0: the region is no allocation */
    struct ibx_mr *mr;
    uint32_t index;
    enum shm_arena_kind arena;
    uint64_t id; /* of the allocation that it is or is part of, 0: of none */
    uint64_t whole_offset, whole_length; /* of that allocation in the arena */
};

struct shm_arena {
    int fd; /* -1: not made yet */
    uint64_t bytes;
    struct shm_extent *regions; /* its allocations, each the begin of a struct shm_region */
};

/* The peer's arena as this process has it. */
struct shm_peer_arena {
    bool seen;
    uint8_t *base; /* NULL: not mapped */
    uint64_t bytes;
    int fd;    /* with `base` */
    bool ours; /* of our user: mincore(2) always tells us which pages it has */
    /* All pages between these offsets were there, which is believed for a moment. */
    uint64_t filled_from, filled_to, believed_until;
};

/* The peer's memory where it is mapped. */
struct shm_view {
    uint8_t *address; /* NULL: it is not */
    struct shm_peer_arena *arena;
};

/*
 * A bounce buffer of this side, and the copy that the peer is requested to do with it. WITHDRAWN:
 * this side did the copy itself, or aborted, and the peer has not answered yet.
 *
 * state machine: shm piece
 *   [*] -> FREE -> REQUESTED -> FREE
 *   REQUESTED -> WITHDRAWN -> FREE -> [*]
 */
enum shm_piece_state { SHM_PIECE_FREE, SHM_PIECE_REQUESTED, SHM_PIECE_WITHDRAWN };

struct shm_piece {
    struct ibx_state_machine state; /* enum shm_piece_state */
    struct ibx_chunk *chunk;        /* while REQUESTED */
    uint8_t *local;
    uint64_t address;
    size_t length;
};

/* The peer's request with its bounce buffer of the same index. */
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

/*
 * state machine: shm connection
 *   [*] -> NEW -> LISTENING -> LIVE       the server, until the client has taken the segment
 *   NEW -> JOINING -> LIVE                the client, until it has mapped the segment
 *   LIVE -> BROKEN                        progress() reports the loss
 *   NEW | LISTENING | JOINING | LIVE | BROKEN -> ABORTED -> [*]
 */
enum shm_state { SHM_NEW, SHM_LISTENING, SHM_JOINING, SHM_LIVE, SHM_BROKEN, SHM_ABORTED };

/*
 * PRESENT: the peer was seen at work lately, so a request to it is faster than a direct copy.
 * ABSENT: it sleeps, or has not answered for QUIET_NS (copy.c).
 *
 * state machine: shm peer
 *   [*] -> ABSENT -> PRESENT -> ABSENT -> [*]
 */
enum shm_peer { SHM_PEER_ABSENT, SHM_PEER_PRESENT };

/* Where the server's socket is: socket.c. */
struct shm_place {
    char name[IBX_SHM_NAME + 1];
    bool nested;           /* in a folder of the same name */
    int directory, folder; /* the server's: shm_dir, and where the socket is in it; -1: none */
    bool made_socket, made_folder;
};

struct shm {
    struct ibx_link *link;
    struct ibx_state_machine state; /* enum shm_state */
    struct ibx_state_machine peer;  /* enum shm_peer */
    enum ibx_role role;

    /* setup */
    int listener; /* the server's, until finish */
    struct shm_place place;
    char directory[IBX_SHM_DIRECTORY]; /* the client's way to it; "": the network namespace */
    bool connected;
    int control; /* unix socket: wakes, arena descriptors, and its end */
    pid_t peer_pid;
    _Atomic pid_t peer_thread; /* a thread of the peer: direct copies name its id */
    bool gone;                 /* the control socket has ended */

    void *segment;
    struct shm_geometry geometry;
    struct shm_half mine, theirs;

    /* the ring */
    uint32_t put, taken;          /* positions, wrapping */
    uint64_t sent, released_seen; /* messages out, and given back by the peer */
    uint64_t received, released;  /* messages in, and given back here */
    uint8_t *inbox;               /* private copies of received messages */
    uint32_t *inbox_free;         /* stack of free slots */
    uint32_t inbox_free_count;
    bool *inbox_held;         /* by the user */
    uint64_t *send_done;      /* cookies of signalled sends to report */
    uint32_t send_done_count; /* at most slots */
    unsigned credits_wanted;  /* credits that a refused send needs; 0: none was refused */
    bool armed;               /* this side may have been sleeping */
    bool wake_due;            /* the peer sleeps, and could not be woken */
    int broken;               /* negative errno, when BROKEN */
    char broken_reason[160];

    /* regions */
    struct shm_region **regions; /* by index, NULL: free */
    uint32_t region_count;       /* entries of `regions` */
    uint32_t *region_free;       /* stack */
    uint32_t region_free_count;
    uint16_t generation;
    uint32_t randoms[32];
    unsigned randoms_left;
    struct shm_arena arenas[SHM_ARENA_KINDS]; /* this side's, except for the shared one */
    bool shared_sent;                         /* the peer has it, too */
    uint64_t allocations;                     /* made in them so far */
    struct shm_peer_arena peer_arenas[SHM_ARENA_KINDS];

    /* copies */
    struct shm_queue urgent, bulk; /* chunks with bytes neither copied nor requested */
    unsigned urgent_run;           /* urgent steps since the last one of bulk */
    struct shm_piece pieces[IBX_SHM_PIECES];
    unsigned pieces_used; /* that are not FREE */
    struct shm_request requests[IBX_SHM_PIECES];
    struct shm_pieces_fifo requested_urgent, requested_bulk;
    uint64_t quiet_since; /* ns; when the wait for an answer began, 0: not waiting */
    size_t copied_alone;  /* bytes since the last request to the absent peer */
    bool direct;          /* process_vm_readv and process_vm_writev reach the peer */
    char direct_reason[128];
    /* The peer recognises this process image by it. Every direct copy reads it first. It has a page
     * of its own, which ibx_shm_key_revoke() makes inaccessible. */
    uint8_t *nonce;
    bool nonce_revoked;
    uint64_t peer_nonce_address;
    uint8_t peer_nonce[IBX_SHM_NONCE];
};

static inline void ibx_shm_peer_is(struct shm *shm, enum shm_peer peer)
{
    if (shm->peer.now != peer)
        ibx_state_move(&shm->peer, peer);
}

/* setup.c */
size_t ibx_shm_message_memory(const struct ibx_options *options);
int ibx_shm_offer(void *endpoint, struct ibx_writer *offer, struct ibx_error *err);
int ibx_shm_join(void *endpoint, struct ibx_reader *offer, struct ibx_writer *answer,
                 struct ibx_error *err);
/* Does the dialogue: then `control`, `segment` and `geometry` are set. */
int ibx_shm_setup(struct shm *shm, uint64_t deadline_ns, struct ibx_error *err);
void ibx_shm_setup_undo(struct shm *shm);
/* Sends and receives one packet and at most one descriptor, -1: none; -EMFILE: there was one, for
 * which this process has no place. Non-blocking. */
int ibx_shm_packet_send(int socket, const void *data, size_t length, int fd);
ssize_t ibx_shm_packet_receive(int socket, void *data, size_t size, int *fd);

/* socket.c */
void ibx_shm_place_init(struct shm_place *place);
/* Closes the server's directories, and removes what was made in them. */
void ibx_shm_place_leave(struct shm_place *place);
/* For the offer. -EPROTO: it is malformed. */
void ibx_shm_place_put(const struct shm_place *place, const char *directory, struct ibx_writer *w);
int ibx_shm_place_get(struct shm_place *place, char directory[IBX_SHM_DIRECTORY],
                      struct ibx_reader *r);
/* A descriptor of a directory in which a server may make sockets; *shared: only in a folder of its
 * own there, because others can make files, too. -EPERM: others can exchange what is in it. */
int ibx_shm_directory_open(const char *path, bool *shared, struct ibx_error *err);
/* Makes a listening socket to which nobody can pass descriptors, in `directory`, or ("") in the
 * network namespace. */
int ibx_shm_socket_listen(struct shm_place *place, const char *directory, int *listener,
                          struct ibx_error *err);
int ibx_shm_nonblocking_socket(void);
/* With a deadline of 0 it does not wait: -EAGAIN, without an error, when too many do already.
 * -EINTR: ends() says that this process is to end (NULL: it is not asked). */
int ibx_shm_socket_connect(const struct shm_place *place, const char *directory, int fd,
                           bool (*ends)(void), uint64_t deadline, struct ibx_error *err);
/* Whether this socket takes descriptors; before Linux 6.16 each does. */
void ibx_shm_pass_descriptors(int socket, bool pass);

/* identity.c */
/* The server's first packet on a socket that it accepted. */
int ibx_shm_hello_put(const struct shm *shm, int socket, struct ibx_writer *w);
/* Whether this packet came straight from the server: 0, and what to answer. -EACCES: not from
 * there; -EPERM: somebody passed it on; -ECONNRESET: whoever sent it has closed its end;
 * -EOPNOTSUPP: nobody knows. */
int ibx_shm_hello_check(const struct shm *shm, int socket, struct ibx_reader *r,
                        uint8_t answer[IBX_PROOF_BYTES]);
/* Fills `err` for such an error, or for a packet that does not come. Returns `rc`; -EACCES instead
 * of -ECONNRESET. */
int ibx_shm_hello_error(int socket, int rc, struct ibx_error *err);
/* Whether this answer is to a hello on this very socket: 0 or -EACCES. */
int ibx_shm_answer_check(const struct shm *shm, int socket, struct ibx_reader *r);

/* ring.c */
int ibx_shm_ring_init(struct shm *shm);
void ibx_shm_ring_fini(struct shm *shm);
int ibx_shm_send(void *endpoint, const struct iovec *iov, int iovcnt, size_t length,
                 uint64_t cookie, unsigned flags);
void ibx_shm_release(void *endpoint, uint64_t slot);
/* Publishes a command other than a message. */
void ibx_shm_command_put(struct shm *shm, const struct shm_command *command);
/* Handles every command that is there; returns the number of upcalls. */
int ibx_shm_ring_progress(struct shm *shm);
void ibx_shm_look(void *endpoint, unsigned times);
int ibx_shm_arm(void *endpoint);
/* Reads what came over the control socket: wakes and arenas. */
void ibx_shm_control_drain(struct shm *shm);

/* memory.c */
void ibx_shm_memory_fini(struct shm *shm);
int ibx_shm_mr_register(void *endpoint, struct ibx_mr *mr, struct ibx_error *err);
void ibx_shm_mr_deregister(void *endpoint, struct ibx_mr *mr);
/* Copies this side's memory that the peer names to `bounce`, or from there. 0 or a negative errno:
 * -EACCES also where it has been freed. */
int ibx_shm_region_copy(struct shm *shm, const struct shm_request *request, uint8_t *bounce);
/* The peer's memory: its deregistration waits until the release. Sets *view to where this process
 * sees it. -EACCES, -ERANGE: nothing was acquired. */
int ibx_shm_region_acquire(struct shm *shm, uint64_t key, uint64_t address, uint64_t length,
                           unsigned access, struct shm_view *view);
/* The same, with the allocation that it is part of where it is mapped. */
int ibx_shm_region_acquire_whole(struct shm *shm, const struct ibx_remote *remote, unsigned access,
                                 struct ibx_reach *reach);
void ibx_shm_region_release(struct shm *shm);

/* peer_arena.c */
/* Takes the peer's arena that came over the control socket; owns `fd`, -1: it could not come. */
void ibx_shm_arena_accept(struct shm *shm, unsigned kind, int fd);
void ibx_shm_peer_arenas_fini(struct shm *shm);
/* Where this process sees bytes of the peer's arena; no address: nowhere. */
struct shm_view ibx_shm_peer_view(struct shm *shm, uint32_t kind, uint64_t offset, uint64_t length);
/* Whether all of these bytes have pages, so that to touch them makes none. */
bool ibx_shm_view_filled(const struct shm_view *view, size_t length);
/* Copies these bytes out without making pages. 0 or a negative errno. */
int ibx_shm_view_read(const struct shm_view *view, void *local, size_t length);

/* shared.c */
/* The descriptor of the process's arena when all these bytes are in it, borrowed; otherwise -1. */
int ibx_shm_shared_fd(const void *address, size_t length, uint64_t *offset);
/* That descriptor, whatever is in the arena; -1: there is none, or this is a forked child. */
int ibx_shm_shared_file(void);
/* The allocation around `offset`. False: there is none. */
bool ibx_shm_shared_allocation(uint64_t offset, uint64_t *begin, uint64_t *length);
/* If all these bytes are of one allocation, nobody frees or allocates until
 * ibx_shm_shared_let_go(). False: they are not, and nothing is held. */
bool ibx_shm_shared_hold(const void *address, size_t length);
void ibx_shm_shared_let_go(void);

/* huge_pages.c */
/* Bytes of a page: 4096, on aarch64 also 16 or 64 KiB. The peer's kernel is the same one. */
size_t ibx_shm_page(void);
#define IBX_SHM_HUGE (2ull << 20)
/* A sealed memfd of `bytes` zeros, or a negative errno. */
int ibx_shm_memfd(const char *name, uint64_t bytes);
/* Whether the peer's descriptor is a memfd whose size it cannot change, and not of hugetlbfs, where
 * a system without free huge pages means a SIGBUS here. */
bool ibx_shm_memfd_safe(int fd);
/* Finds room in `bytes` bytes, first fit, from a page's begin on; what is as long as a huge page
 * begins at one. */
bool ibx_shm_extent_place(struct shm_extent **list, struct shm_extent *extent, uint64_t bytes);
void ibx_shm_extent_remove(struct shm_extent **list, struct shm_extent *extent);
/* Transparent huge pages for memory that is as long as one. */
void ibx_shm_huge_advise(void *address, uint64_t length);

/* peer_death.c */
/* Remembers that the connection is over; the next progress reports it. */
void ibx_shm_break(struct shm *shm, int status, const char *reason);
int ibx_shm_nonce_make(struct shm *shm, struct ibx_error *err);
void ibx_shm_nonce_free(struct shm *shm);
/* Revokes the key of this side's region: on return no copy of the peer touches it any more. */
void ibx_shm_key_revoke(struct shm *shm, uint32_t index);

/* copy.c */
void ibx_shm_copy_init(struct shm *shm);
/* Finds out whether the kernel copies between the two processes. */
void ibx_shm_direct_probe(struct shm *shm);
/* Whether this end's options allow direct copies. */
bool ibx_shm_direct_wanted(const struct shm *shm);
/* Whether direct copies are still permitted; if not, clears `direct`. */
bool ibx_shm_direct_permitted(struct shm *shm);
int ibx_shm_rdma(void *endpoint, struct ibx_chunk *chunk);
/* Copies some of what is due, urgent work first; returns how much it did. */
int ibx_shm_copy_progress(struct shm *shm);
/* Whether there is something to copy for which the peer does not wake this side. */
bool ibx_shm_copy_due(struct shm *shm);
/* A piece of the chunk is over. Returns the number of upcalls. */
int ibx_shm_chunk_part_done(struct shm *shm, struct ibx_chunk *chunk, int status);
/* Copies a part of the chunk without the peer, by a mapping or else, where `direct` allows it, by
 * the kernel. 0 or a negative errno as its status; 1 when that is not possible. */
int ibx_shm_copy_alone(struct shm *shm, const struct ibx_chunk *chunk, uint8_t *local,
                       uint64_t address, size_t length, bool direct);
/* Reports all chunks with -ECONNRESET. */
void ibx_shm_copy_abort(struct shm *shm);
int ibx_shm_remote_hold(void *endpoint, const struct ibx_remote *remote, unsigned access,
                        struct ibx_reach *reach);
void ibx_shm_remote_release(void *endpoint);
int ibx_shm_remote_copy(void *endpoint, bool read, void *local, uint64_t address, size_t length);
/* memory.c and peer_arena.c: as the provider's functions of these names (provider.h). */
int ibx_shm_shared_give(void *endpoint);
int ibx_shm_shared_of_peer(void *endpoint, uint64_t *bytes);

/* request.c */
void ibx_shm_request_init(struct shm *shm);
/* Requests `length` bytes, at most IBX_SHM_PIECE; false when no bounce buffer is free. */
bool ibx_shm_request_post(struct shm *shm, struct ibx_chunk *chunk, uint8_t *local,
                          uint64_t address, size_t length);
/* Whether ibx_shm_request_post() has a free bounce buffer. */
bool ibx_shm_request_room(struct shm *shm, const struct ibx_chunk *chunk);
/* The peer's DONE for one of our pieces; returns the number of upcalls. */
int ibx_shm_on_request_done(struct shm *shm, unsigned piece, int status);
/* Whether there is a request that the peer has not begun to serve. */
bool ibx_shm_request_open(struct shm *shm);
/* Withdraws one of those and copies it alone; returns the number of upcalls. */
int ibx_shm_request_withdraw(struct shm *shm);
/* The peer's READ or WRITE. */
void ibx_shm_on_request(struct shm *shm, unsigned piece, bool urgent,
                        const struct shm_request *request);
/* Serves some of the peer's requests; returns how many. */
int ibx_shm_serve(struct shm *shm);

#endif
