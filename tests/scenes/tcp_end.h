/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Ends of a tcp connection (provider_end.h), and raw sockets in place of one. */
#ifndef IBX_TESTS_SCENES_TCP_END_H
#define IBX_TESTS_SCENES_TCP_END_H

#include "tests/scenes/provider_end.h"
#include "transport/tcp/tcp.h"

/* What bulk data moves by: the option tcp_engine of all ends. */
extern const char *end_engine;
/* Whether ends encrypt in ends_encrypt(). */
extern bool end_encrypts;
/* How many lanes of an end have a thread, and of all ends of the process. */
extern unsigned end_threads, end_threads_all;
/* Of ends that are made from now on; NULL: none. */
extern struct ibx_domain *end_domain;
/* A test's argument: an engine, "tls", or "tls-threads". */
void end_choose(const char *way);

/* Opens an endpoint with `slots` messages of 1 KiB and 8 chunks in flight; takes the socket. */
void end_init(struct end *end, enum ibx_role role, int handshake_socket, unsigned lanes,
              unsigned slots);
/* Turns until nothing more happens. */
void end_settle(struct end *end);

/* Two connected sockets, TCP over loopback or unix ones. */
void sockets_tcp(int fds[2]);
void sockets_unix(int fds[2]);
/* TLS on the handshake's sockets, if ends are to encrypt: as the handshake does after the proofs.
 */
void ends_encrypt(struct end *server, struct end *client);
void ends_encrypt_and_connect(struct end *server, struct end *client);
/* The same where nobody answers at the port of the further lanes, as behind a firewall. */
void ends_encrypt_and_connect_alone(struct end *server, struct end *client);
/* The whole: ends of two such sockets, encrypted and connected. */
void ends_open(struct end *server, struct end *client, void (*sockets)(int[2]), unsigned lanes,
               unsigned slots);
void ends_close(struct end *server, struct end *client);
/* What a connected end can do. */
struct ibx_caps end_caps(struct end *end);
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
/* A server against a raw client: lanes[0] is the handshake socket, the others are connected to it.
 */
void end_connect_raw(struct end *server, int *lanes, unsigned count);

#endif
