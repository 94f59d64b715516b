/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Messages between the source and the destination of a migration.
 *
 *   protocol.h, messages.c  the messages (docs/protocol.md, "ib-migrate")
 *   protocol.c              their encoding and decoding
 *   hello.c                 a VM as HELLO describes it
 *   channel.c               the control connection, for everything except pages
 *   accept_thread.c         whoever connects, also to a server of snapshots
 *   acceptor.c              connection requests at the destination
 *
 * pages/ sends and takes messages of page connections itself.
 */
#ifndef IBX_MIGRATE_CHANNEL_CHANNEL_H
#define IBX_MIGRATE_CHANNEL_CHANNEL_H

#include "migrate/channel/protocol.h"

/* ------------------------------------------------------------ control connection */

/*
 * The control connection of a migration: whole messages out, with a queue for those that find no
 * credit, and whole decoded messages in. The last credit is kept for ABORT, so that it leaves at
 * once also when the other side takes nothing. Owned by one thread; never blocks.
 */
struct ibx_channel {
    struct ibx_conn *conn; /* NULL: there is none */
    struct ibx_channel_item *head, **tail;
};

/* Handles one message, of which it copies what it keeps. An error ends the taking. */
typedef int (*ibx_channel_handler)(void *context, const struct ibx_migrate_any *message);

/* Takes over an established connection. */
void ibx_channel_init(struct ibx_channel *channel, struct ibx_conn *conn);
/* Sends at once or, without credit, as soon as ibx_channel_take() finds some. -ENOTCONN, -ENOMEM,
 * -EINVAL. */
int ibx_channel_send(struct ibx_channel *channel, const struct ibx_migrate_any *message,
                     struct ibx_error *err);
/* A message without fields. */
int ibx_channel_send_plain(struct ibx_channel *channel, enum ibx_migrate_message type,
                           struct ibx_error *err);
/* Drops what still waits for credit. */
int ibx_channel_send_abort(struct ibx_channel *channel, const char *reason);

/* Sends what waits and passes every message that has arrived to `handle`, but not without end those
 * that arrive meanwhile: ibx_channel_arm() tells of them. Stops at its first error.
 * Other errors mean that the connection has ended or that a message is malformed. With any of them
 * messages are lost that came with the last one: the channel is of no use then. */
int ibx_channel_take(struct ibx_channel *channel, ibx_channel_handler handle, void *context,
                     struct ibx_error *err);
/* Takes and waits until there is such an error, or the deadline is over: 0. Takes at least once.
 * What came behind the message at which `handle` stopped stays for the next call. */
int ibx_channel_take_until(struct ibx_channel *channel, ibx_channel_handler handle, void *context,
                           uint64_t deadline_ns, struct ibx_error *err);
/* Before poll(2): 1 when there is something to take at once. fd is -1 without connection. */
int ibx_channel_arm(struct ibx_channel *channel, int *fd);
/* Nothing waits to be sent. */
bool ibx_channel_idle(const struct ibx_channel *channel);
/* Bytes of STATE or MAP that one message can carry. */
size_t ibx_channel_room(const struct ibx_channel *channel);
/* After the last message: waits until the peer has closed, or the deadline. */
void ibx_channel_linger(struct ibx_channel *channel, uint64_t deadline_ns);
/* Closes the connection, if there is one. */
void ibx_channel_fini(struct ibx_channel *channel);

/* ------------------------------------------------------------ who connects */

#define IBX_ADDRESS_MAX 56u /* bytes of a host's address as text, or of "unix socket" */

/* Who is at the other end: the name of its key, or "", and its host's address without the port. */
struct ibx_peer {
    char name[IBX_NAME_MAX + 1], address[IBX_ADDRESS_MAX];
};

void ibx_peer_of(const struct ibx_conn *conn, struct ibx_peer *peer);
/* Keys without a name are one for all, so there it is the host that counts. */
bool ibx_peer_same(const struct ibx_peer *a, const struct ibx_peer *b);

/* Listens, with a thread that accepts peers which have proven themselves. */
struct ibx_accept_thread;

/* `came` is called by that thread, and has the connection, which is not established yet. -ENOMEM,
 * no descriptors or threads, or what ibx_listen() returns. */
int ibx_accept_thread_open(const char *uri, const struct ibx_options *options,
                           void (*came)(void *context, struct ibx_conn *conn), void *context,
                           struct ibx_accept_thread **accepts, struct ibx_error *err);
/* With the real port. */
const char *ibx_accept_thread_uri(const struct ibx_accept_thread *accepts);
/* Waits for the thread: nobody comes any more. */
void ibx_accept_thread_end(struct ibx_accept_thread *accepts);
/* And closes the listener. Accepts NULL. */
void ibx_accept_thread_close(struct ibx_accept_thread *accepts);

/* ------------------------------------------------------------ acceptor */

/*
 * Connection requests at the destination. One thread accepts peers that have proven themselves, and
 * one thread for each of them sets the connection up and waits for the first message. The migration
 * sees a connection only after that, so no peer delays a stopped VM.
 *
 * A connection has a place until the migration takes it; without one it is closed. A peer is who
 * has a named key, or a host. Few places are for one peer, so that it cannot take all; the peer of
 * the running migration has places of its own, for the control connection and the page connections
 * twice: those of an earlier attempt may still be there.
 */
#define IBX_ACCEPTOR_OTHERS   32u
#define IBX_ACCEPTOR_PEER     8u /* of these for one peer */
#define IBX_ACCEPTOR_RESERVED (2u * (1u + IBX_MIGRATE_LINKS_MAX))

#define IBX_MIGRATE_PURPOSE "ib-migrate" /* struct ibx_options */

/* The first message of a connection comes within this time, or timeout_ms if that is less: those
 * who connect have it ready. */
#define IBX_MIGRATE_FIRST_MS 4000u
static inline unsigned ibx_migrate_first_ms(const struct ibx_options *options)
{
    return options->timeout_ms < IBX_MIGRATE_FIRST_MS ? options->timeout_ms : IBX_MIGRATE_FIRST_MS;
}

struct ibx_acceptor;

/* A connection whose first message was HELLO or JOIN. */
struct ibx_connection_request {
    struct ibx_conn *conn;
    struct ibx_migrate_any first;
};

/* -ENOMEM, no descriptors or threads, or what ibx_listen() returns. */
int ibx_acceptor_open(const char *uri, const struct ibx_options *options,
                      struct ibx_acceptor **acceptor, struct ibx_error *err);
/* The URI for the source, with the real port. */
const char *ibx_acceptor_uri(const struct ibx_acceptor *acceptor);
/* Readable when ibx_acceptor_take() has something, and when it has become busy. */
int ibx_acceptor_fd(const struct ibx_acceptor *acceptor);
/* Connections of peers that have proven themselves are being set up, or have said nothing yet. */
bool ibx_acceptor_busy(struct ibx_acceptor *acceptor);
/* The places of its own are from now on for the peer of this connection: the same key from the same
 * host; or the key of this name ("": any) from the host with this address. */
void ibx_acceptor_expect(struct ibx_acceptor *acceptor, const struct ibx_conn *conn);
void ibx_acceptor_expect_host(struct ibx_acceptor *acceptor, const char *address, const char *key);
/* For tests: other than IBX_MIGRATE_FIRST_MS. */
void ibx_acceptor_first_within(struct ibx_acceptor *acceptor, unsigned ms);
/* 1 and a request, whose connection and message are the caller's; 0 when there is none. */
int ibx_acceptor_take(struct ibx_acceptor *acceptor, struct ibx_connection_request *request);
/* Closes the listener and every connection that was not taken; waits for its threads. Accepts
 * NULL. */
void ibx_acceptor_close(struct ibx_acceptor *acceptor);

#endif
