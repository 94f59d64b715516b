/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * One end of a tcp connection without the core: the test gives the socket of the handshake, calls
 * the provider and reads what it reported. The other end is another one of these or a raw socket.
 */
#ifndef IBX_TESTS_UNIT_TCP_END_H
#define IBX_TESTS_UNIT_TCP_END_H

#include "transport/tcp/tcp.h"

#define NOTES_MAX 512u

enum note_kind { NOTE_CHUNK, NOTE_MESSAGE, NOTE_SEND, NOTE_LOST };

/* What the provider reported. */
struct note {
    enum note_kind kind;
    int status;
    struct ibx_chunk *chunk;
    const void *data;
    size_t length;
    uint64_t token; /* the slot of a message, the cookie of a send */
    char reason[192];
};

struct end {
    struct ibx_link link;
    struct ibx_options options;
    enum ibx_role role;
    int door;
    int watched; /* epoll descriptor */
    struct ibx_tls *tls;
    struct tcp *tcp;
    struct note notes[NOTES_MAX];
    unsigned count;
};

/* What bulk data moves by: the option tcp_engine of all ends. */
extern const char *end_engine;
/* Whether ends encrypt in ends_encrypt(). */
extern bool end_encrypts;
/* A test's argument: an engine, or "tls". */
void end_choose(const char *way);

/* Opens an endpoint with `slots` messages of 1 KiB and 8 chunks in flight; takes the door. */
void end_init(struct end *end, enum ibx_role role, int door, unsigned lanes, unsigned slots);
void end_fini(struct end *end);
/* One turn of progress. */
int end_turn(struct end *end);
/* Turns of both (b may be NULL) until `a` has `count` notes or the time is over: whether it has. */
bool end_await(struct end *a, struct end *b, unsigned count);
/* Turns until nothing more happens. */
void end_settle(struct end *end);
bool end_wakes(const struct end *end, int timeout_ms);

struct ibx_mr *end_register(struct end *end, void *address, size_t length, unsigned access);
void end_deregister(struct end *end, struct ibx_mr *mr);
int end_send(struct end *end, const void *data, size_t length, unsigned flags);

/* Two connected sockets, TCP over loopback or unix ones. */
void sockets_tcp(int fds[2]);
void sockets_unix(int fds[2]);
/* TLS on the doors, if ends are to encrypt: as the handshake does after the proofs. */
void ends_encrypt(struct end *server, struct end *client);
/* The same, then offer, join and finish of two ends, the server's in a thread of its own. */
void ends_meet(struct end *server, struct end *client);
/* The proof that the ends of these tests expect on a lane. */
void proof_of(const char *label, uint8_t proof[IBX_PROOF_BYTES]);
/* A client of the test's own making: reads the server's offer, answers with so many lanes. */
struct raw_client {
    uint8_t offered[64];
    struct ibx_writer offer;
    struct ibx_reader address; /* in the offer, behind its terms */
    struct ibx_tcp_terms terms;
};
void raw_begin(struct raw_client *raw, struct end *server);
int raw_finish(struct raw_client *raw, struct end *server, unsigned lanes, uint64_t deadline,
               struct ibx_error *err);
/* Connects to that address; lane 0: without a hello. */
int raw_lane(const struct ibx_reader *address, unsigned lane);
/* A server against a raw client: lanes[0] is the door, the others are connected to it. */
void end_meet_raw(struct end *server, int *lanes, unsigned count);

#endif
