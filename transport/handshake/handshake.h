/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The handshake: from a URI to an established connection. Private to this folder, which implements
 * ibx_listen(), ibx_accept(), ibx_establish() and ibx_connect() of transport.h. It hands finished
 * connections to core/ (transport/core/conn.h), which knows nothing of it.
 *
 *   listen.c          listening
 *   listen_check.c    ... where somebody could be served
 *   pool.c            connection requests, until they have proven themselves
 *   pool_places.c     who of them has a place, and whose turn it is
 *   connect.c         how a client reaches a listener's socket
 *   lookup.c          ... the addresses of a name, also without waiting for a resolver
 *   stranger.c        what a client reports about a server that is not ibx
 *   handshake.c       the dialogue: authenticate, then try providers until one is set up
 *   authentication.c  both ends prove that they know the key, and agree on limits
 *   claim.c           a connection that continues the session of another one
 *   program.c         whose connection it is, and leaving it to another process of this program
 *   locality.c        who is at the other end: this host, and which of its users
 *   frame.c           frames, their MACs, refusals
 *   key_file.c        key files
 *
 * Three calls close a circle of handshake.c, authentication.c, stranger.c, program.c, connect.c and
 * frame.c. program.c, which writes and reads for authentication.c whose connection it is, makes a
 * handshake by handshake.c for a connection that another process has left to this one. frame.c asks
 * authentication.c whether a refusal is proven, and stranger.c what has answered if it is no ibx
 * server; both call frame.c.
 */
#ifndef IBX_TRANSPORT_HANDSHAKE_HANDSHAKE_H
#define IBX_TRANSPORT_HANDSHAKE_HANDSHAKE_H

#include "transport/core/conn.h"

#include <errno.h>
#include <netdb.h>
#include <sys/un.h>

#define IBX_HANDSHAKE_PAYLOAD_MAX 4096u /* bytes of a frame */
#define IBX_HANDSHAKE_MAC_BYTES   16u
#define NONCE_BYTES               32u

struct ibx_key {
    char name[IBX_NAME_MAX + 1];   /* "": the only key of a file that names none */
    uint8_t bytes[IBX_HASH_BYTES]; /* SHA-256 of the key */
};

/*
 * state machine: handshake
 *   [*] -> UNAUTHENTICATED -> CHALLENGED -> AUTHENTICATED -> TRYING -> RESULT_KNOWN
 *   CHALLENGED -> PROVEN -> AUTHENTICATED                   a client's
 *   TRYING | RESULT_KNOWN -> AUTHENTICATED                  this provider failed
 *   UNAUTHENTICATED | CHALLENGED | PROVEN | AUTHENTICATED | TRYING | RESULT_KNOWN -> [*]
 *
 * CHALLENGED: HELLO and CHALLENGE have crossed, so that both ends can make the proofs. PROVEN: a
 * client has sent its PROOF, and the server's is on its way; the first TRY does not wait for it.
 * Frames carry MACs once their sender has sent its PROOF. TRYING: both ends set a provider up.
 * RESULT_KNOWN: the peer's RESULT for it has come, perhaps while this side was still waiting for
 * something else.
 */
enum handshake_state {
    HANDSHAKE_UNAUTHENTICATED,
    HANDSHAKE_CHALLENGED,
    HANDSHAKE_PROVEN,
    HANDSHAKE_AUTHENTICATED,
    HANDSHAKE_TRYING,
    HANDSHAKE_RESULT_KNOWN
};

/* What the other end has said before the proofs. */
struct handshake_peer {
    bool has_key;
    bool sees_local; /* server: by the addresses, the client is on its host */
    uint8_t nonce[NONCE_BYTES], public_key[IBX_PUBLIC_BYTES];
    enum ibx_encryption encryption;
    char name[IBX_NAME_MAX + 1], purpose[32]; /* of a client */
    bool claims;                              /* a client's: it claims a session, with these: */
    uint8_t claim_id[IBX_CLAIM_ID_BYTES], claim_proof[IBX_HASH_BYTES];
};

struct ibx_handshake {
    struct ibx_conn_setup setup; /* first, because core/ sees only this */
    struct ibx_conn *conn;
    struct ibx_state_machine state;       /* enum handshake_state */
    struct ibx_keys *keys;                /* a server's, NULL: none; held */
    const struct ibx_key *key;            /* the one of this connection, NULL: none */
    struct ibx_exchange *exchange;        /* NULL: none yet, or no longer */
    uint8_t public_key[IBX_PUBLIC_BYTES]; /* ours, of it */
    struct handshake_peer peer;
    uint8_t nonce[NONCE_BYTES];         /* ours */
    uint8_t mark[IBX_HASH_BYTES];       /* of this host, different for each connection */
    uint8_t agreed[IBX_HASH_BYTES];     /* the transcript after CHALLENGE */
    uint8_t transcript[IBX_HASH_BYTES]; /* running hash of all frames before authentication */
    uint8_t awaited[IBX_HASH_BYTES];    /* a client's: the proof of the right server */
    bool payloads_in_plain;             /* are allowed: neither end requires encryption */
    bool lacked;                        /* memory: ibx_handshake_lacked() */
    bool no_room;                       /* a client that has proven itself was refused for that */
    uint64_t sent, received;            /* frames, for the MACs */
    int result;                         /* of the peer: 0 or -errno */
    char result_reason[256];
};

enum frame_type {
    FRAME_HELLO = 1,
    FRAME_CHALLENGE,
    FRAME_PROOF,
    FRAME_TRY,
    FRAME_OFFER,
    FRAME_ANSWER,
    FRAME_RESULT,
    FRAME_REFUSE, /* instead of any frame before TRY: i32 -errno, string; then the end */
};

struct frame {
    uint8_t bytes[4 + 1 + IBX_HANDSHAKE_PAYLOAD_MAX + IBX_HANDSHAKE_MAC_BYTES];
    uint8_t type;
    size_t length, at;         /* bytes of the whole frame, and how many have been moved */
    struct ibx_reader payload; /* of a received frame */
    struct ibx_writer out;     /* of one being written */
};

/* handshake.c: makes a connection over this socket that is yet to be established. Takes over `fd`,
 * also on failure: NULL, with -ENOMEM in `err`. */
struct ibx_handshake *ibx_handshake_create(int fd, enum ibx_role role,
                                           const struct ibx_options *options, struct ibx_keys *keys,
                                           struct ibx_error *err);

/* frame.c: whether this handshake had no memory for a digest: then what does not match says nothing
 * of the peer. */
bool ibx_handshake_lacked(struct ibx_handshake *h);
/* poll(2) until the deadline, continued after a signal: how many descriptors are ready; 0: none in
 * time; -EINTR: ends() says that this process is to end (NULL: it is not asked); or another
 * negative errno. */
int ibx_handshake_poll(struct pollfd *fds, unsigned count, bool (*ends)(void),
                       uint64_t deadline_ns);
/* 0 when the handshake socket has `events`; -ETIMEDOUT; -EINTR and others as above. */
int ibx_handshake_wait_socket(const struct ibx_conn *conn, short events, uint64_t deadline_ns);
/* A frame to send: begin, write its payload to frame->out, finish (length, transcript or MAC), and
 * write until it returns 0. A frame to receive: read into one with at = 0 until it returns 0. Write
 * and read never block: -EAGAIN. The others fill `err`. */
void ibx_handshake_frame_begin(struct frame *frame, enum frame_type type);
int ibx_handshake_frame_finish(struct ibx_handshake *h, struct frame *frame, struct ibx_error *err);
int ibx_handshake_frame_write(struct ibx_handshake *h, struct frame *frame);
int ibx_handshake_frame_read(struct ibx_handshake *h, struct frame *frame);
/* Checks that the frame is of `type`. A REFUSE frame becomes the error that it holds; a code with
 * which no server refuses strangers becomes -ECONNREFUSED. */
int ibx_handshake_frame_check(struct ibx_handshake *h, struct frame *frame, enum frame_type type,
                              struct ibx_error *err);
/* These wait until the deadline: send finishes and sends a begun frame, receive takes any frame,
 * and expect one of this type. */
int ibx_handshake_frame_send(struct ibx_handshake *h, struct frame *frame, uint64_t deadline_ns,
                             struct ibx_error *err);
int ibx_handshake_frame_receive(struct ibx_handshake *h, struct frame *frame, uint64_t deadline_ns,
                                struct ibx_error *err);
int ibx_handshake_frame_expect(struct ibx_handshake *h, struct frame *frame, enum frame_type type,
                               uint64_t deadline_ns, struct ibx_error *err);
/* The error of a handshake that cannot go on: returns `rc`. */
int ibx_handshake_broken(struct ibx_handshake *h, int rc, struct ibx_error *err);
/* The same for a client whose HELLO was answered by nothing but `frame`, or a part of it: names the
 * kind of server if it is recognised as another one. */
int ibx_handshake_unanswered(struct ibx_handshake *h, struct frame *frame, int rc,
                             struct ibx_error *err);
/* Reads a code, which is returned, and a reason. Both come from the peer and are not trusted. */
int ibx_handshake_reason_get(struct ibx_reader *r, char *reason, size_t size);
void ibx_handshake_reason_put(struct ibx_writer *w, int code, const char *reason);

/* authentication.c, for a client. prove_client moves UNAUTHENTICATED -> PROVEN; then options are
 * what both ends agreed on, and conn->encrypt says whether TLS comes next. check_server moves
 * PROVEN -> AUTHENTICATED, and does nothing in later states. */
int ibx_handshake_prove_client(struct ibx_handshake *h, uint64_t deadline_ns,
                               struct ibx_error *err);
int ibx_handshake_check_server(struct ibx_handshake *h, uint64_t deadline_ns,
                               struct ibx_error *err);
/* Whether the server that a client awaits has sent this REFUSE, whose fields have been read. */
bool ibx_handshake_refusal_proven(const struct ibx_handshake *h, struct ibx_reader *refusal);
/* The result of sending, for a client. A server that turns it away before it has sent everything
 * sends the reason and closes. The reason can still be received, so -ECONNRESET is no error
 * here. */
static inline int ibx_handshake_unless_closed(int rc)
{
    return rc == -ECONNRESET ? 0 : rc;
}
/*
 * The server's half of the handshake, and what it waits for. READS: bytes from the socket. SENDS:
 * room in the socket. WAITS: nothing of the socket; a PROOF has come, and waits for its turn.
 *
 *   [*] -> READS -> SENDS -> READS
 *   READS -> WAITS -> SENDS -> [*]
 */
enum ibx_turn_phase { IBX_TURN_READS, IBX_TURN_SENDS, IBX_TURN_WAITS };
/* Continues the server's half, and never blocks. 0: authenticated. -EAGAIN: call it again when it
 * can continue, according to the phase. Otherwise `err` says why this is the end, and the client
 * has been told. A new turn is all zeros. */
struct ibx_turn {
    struct frame frame;
    enum ibx_turn_phase phase;
};
int ibx_handshake_turn(struct ibx_handshake *h, struct ibx_turn *turn, struct ibx_error *err);
/* Tells a client that has not proven itself why this is the end: -EBUSY, so that it may try again.
 */
void ibx_handshake_turn_refuse(struct ibx_handshake *h, struct ibx_turn *turn, const char *reason,
                               struct ibx_error *err);
/* -EINVAL: encryption is required, but there is no key for it. */
int ibx_handshake_check_encryption(const struct ibx_options *options, const struct ibx_keys *keys,
                                   struct ibx_error *err);

/* pool.c: the clients of a listening socket, until they have proven themselves. `options` and
 * `keys` stay the caller's. NULL, with the reason in `err`: -ENOMEM, or no descriptors. */
struct ibx_pool;
struct ibx_pool *ibx_pool_create(int listening, const struct ibx_options *options,
                                 struct ibx_keys *keys, struct ibx_error *err);
/* Readable when there is something to do. */
int ibx_pool_fd(const struct ibx_pool *pool);
/* Continues all handshakes that can continue. 0: `*conn` is authenticated; -EAGAIN: nobody is, and
 * if somebody was turned away, `err` says why; other errors of accept4(2) and epoll_ctl(2). */
int ibx_pool_step(struct ibx_pool *pool, struct ibx_conn **conn, struct ibx_error *err);
/* Accepts NULL. */
void ibx_pool_destroy(struct ibx_pool *pool);

/* claim.c: writes a client's claim behind the names in HELLO; nothing without options.claim. */
void ibx_handshake_claim_put(const struct ibx_handshake *h, struct ibx_writer *w);
/* A server reads the claim if it is there. */
void ibx_handshake_claim_get(struct ibx_handshake *h, struct ibx_reader *r);
/* Checks the claim of a client that has proven itself: NULL, or why it is refused. */
const char *ibx_handshake_claim_check(struct ibx_handshake *h);

/* program.c: the client's number in HELLO, behind all else. A server reads it if it is there. */
int ibx_handshake_program_put(struct ibx_writer *w, struct ibx_error *err);
void ibx_handshake_program_get(struct ibx_handshake *h, struct ibx_reader *r);
/* Takes a connection that ibx_conn_hand_over() has sent. Returns as ibx_pool_step() does;
 * -ENOTCONN: the other end is closed; -EPROTO: it has sent something else. `*taken` counts what has
 * come, including what cannot be used. */
int ibx_handshake_take(int socket, const struct ibx_options *options, uint64_t *taken,
                       struct ibx_conn **conn, struct ibx_error *err);

/* locality.c: equal on both ends only under one running kernel; different for each connection. */
void ibx_handshake_host_mark(const uint8_t client_nonce[NONCE_BYTES],
                             const uint8_t server_nonce[NONCE_BYTES], uint8_t mark[IBX_HASH_BYTES]);
/* Why the mark that this thread has made last does not identify this kernel (negative errno), so
 * that it equals no other; 0: it does. */
int ibx_handshake_host_unknown(void);
/* Equal on both ends only if the other end of this TCP connection, as the client's kernel knows it,
 * is the server's own socket: then nobody in between passes the bytes on. False: the client's
 * kernel does not say. */
bool ibx_handshake_end_mark(int fd, enum ibx_role role, const uint8_t client_nonce[NONCE_BYTES],
                            const uint8_t server_nonce[NONCE_BYTES], uint8_t mark[IBX_HASH_BYTES]);
/* Whether the peer is on this host: a unix socket, our own address, or loopback. */
bool ibx_handshake_peer_is_local(int fd, enum ibx_role role);
/* The user of the process at the other end, on this host, once it has accepted the connection.
 * -ENOENT: nobody knows. */
int ibx_handshake_peer_user(int fd, uid_t *uid);

/* key_file.c: the keys of a regular file that only its owner, the caller or root, may read, in
 * memory that is locked, in no core dump, and wiped after its last holder. "" gives NULL, no keys;
 * all of these calls take it. */
int ibx_keys_load(const char *path, struct ibx_keys **keys, struct ibx_error *err);
/* The same for a client. Its threads connect one by one, and a session may have to connect again,
 * when the process has become another user who may no longer read the file. Then the keys are used
 * that it has read before, which stay until it ends. */
int ibx_keys_load_as_client(const char *path, struct ibx_keys **keys, struct ibx_error *err);
/* Reads the keys from a text; `path` is for messages. -EINVAL: what is wrong; -ENOMEM. */
int ibx_keys_parse(const char *path, const char *text, size_t length, struct ibx_keys **keys,
                   struct ibx_error *err);
/* NULL: no key has this name. */
const struct ibx_key *ibx_keys_find(const struct ibx_keys *keys, const char *name);
/* A key without a name that nobody has, for a client whose name is unknown. */
const struct ibx_key *ibx_keys_nobodys(const struct ibx_keys *keys);
/* The key that a client uses: options->name, or the first one; NULL without keys. -EINVAL. */
int ibx_keys_own(const struct ibx_keys *keys, const struct ibx_options *options,
                 const struct ibx_key **key, struct ibx_error *err);
/* -EINVAL: options->allow has a name without a key. */
int ibx_keys_check_allowed(const struct ibx_keys *keys, const struct ibx_options *options,
                           struct ibx_error *err);
bool ibx_key_name_valid(const char *name, size_t length);
struct ibx_keys *ibx_keys_hold(struct ibx_keys *keys);

/* connect.c: a connected stream socket to where the URI leads. `lookup`: NULL, or one that may have
 * the addresses of its host. `hosts`: NULL, or for ibx_handshake_hosts() of these. -EADDRNOTAVAIL:
 * the host cannot be resolved; -ETIMEDOUT; -EINTR as of ibx_handshake_poll(); other errors of
 * connect(2). */
int ibx_handshake_connect(const struct ibx_uri *uri, const struct ibx_lookup *lookup,
                          unsigned timeout_ms, bool (*ends)(void), int *fd, unsigned *hosts,
                          struct ibx_error *err);
/* "[::1]:5000", "10.0.0.7:4000" or "unix socket". */
void ibx_handshake_peer_name(int fd, char *out, size_t size);
/* A new socket and the address to connect or bind it to; negative with errno set. */
int ibx_handshake_unix_socket(const struct ibx_uri *uri, struct sockaddr_un *address);
/* What to do about EINVAL of connect(2) and bind(2): a link-local address without its interface, or
 * one of a group of hosts. */
#define IBX_HANDSHAKE_ONE_HOST                                                                     \
    "; give the address of one host, a link-local one with its interface, as in [fe80::1%eth0]"

/* lookup.c: the addresses of a host, by getaddrinfo(3) with these flags. */
int ibx_handshake_resolve(const struct ibx_uri *uri, int flags, struct addrinfo **list,
                          struct ibx_error *err);
/* How many hosts these addresses may be of: one host may have an IPv4 and an IPv6 address. */
unsigned ibx_handshake_hosts(const struct addrinfo *list);
/* The addresses that were looked up; NULL: those of another host or port, or none. */
const struct addrinfo *ibx_handshake_looked_up(const struct ibx_lookup *lookup,
                                               const struct ibx_uri *uri);

#endif
