/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Messages between the source and the destination of a migration.
 *
 *   protocol.h, protocol.c  the messages (docs/protocol.md, "ib-migrate"): encoding and decoding
 *   message_fields.c        which fields each has, and their bounds
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
 * The control connection of a migration: it sends whole messages, with a queue for those without
 * credit, and passes on whole decoded messages. The last credit is kept for ABORT, so that ABORT is
 * sent at once even if the other side takes nothing. Owned by one thread; never blocks.
 */
struct ibx_channel {
    struct ibx_conn *conn; /* NULL: there is none */
    struct ibx_channel_item *head, **tail;
};

/* Handles one message, and copies what it keeps of it. A negative errno ends the call that takes
 * messages. */
typedef int (*ibx_channel_handler)(void *context, const struct ibx_migrate_any *message);

/* Takes over an established connection, or NULL. */
void ibx_channel_init(struct ibx_channel *channel, struct ibx_conn *conn);
/* Sends at once or, without credit, as soon as ibx_channel_take() finds some. -ENOTCONN: there is
 * no connection; -ENOMEM; -EINVAL: the message cannot be encoded; or as ibx_send(). */
int ibx_channel_send(struct ibx_channel *channel, const struct ibx_migrate_any *message,
                     struct ibx_error *err);
/* The same for a message without fields. */
int ibx_channel_send_plain(struct ibx_channel *channel, enum ibx_migrate_message type,
                           struct ibx_error *err);
/* Drops the messages that still wait for credit, and sends ABORT. */
int ibx_channel_send_abort(struct ibx_channel *channel, const char *reason);

/* Sends the messages that wait for credit, and passes those that have arrived to `handle`: a
 * bounded number of them, after which ibx_channel_arm() reports the others. Stops at the first
 * error of `handle`, and returns it. Other errors mean that the connection has ended (-ECONNRESET,
 * or the code of its end) or that a message is malformed (-EPROTO, -EPROTONOSUPPORT, -ENOMEM).
 * After any error the messages that arrived together with the last one are lost, and the channel
 * can only be closed. */
int ibx_channel_take(struct ibx_channel *channel, ibx_channel_handler handle, void *context,
                     struct ibx_error *err);
/* The same in a loop that also waits, until an error or the deadline, at which it returns 0. Takes
 * at least once. Messages after the one at which `handle` stopped stay for the next call. */
int ibx_channel_take_until(struct ibx_channel *channel, ibx_channel_handler handle, void *context,
                           uint64_t deadline_ns, struct ibx_error *err);
/* Before poll(2): sets `*fd` to the descriptor to poll, or -1 without a connection. 1: something
 * can be taken at once. */
int ibx_channel_arm(struct ibx_channel *channel, int *fd);
/* No message waits for credit. */
bool ibx_channel_idle(const struct ibx_channel *channel);
/* The most bytes of STATE or MAP in one message. There must be a connection. */
size_t ibx_channel_room(const struct ibx_channel *channel);
/* -EMSGSIZE: this connection takes only messages that are too short for a part of a page map. To be
 * called once for each connection: what else is here relies on it. */
int ibx_channel_check_room(const struct ibx_conn *conn, struct ibx_error *err);
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
/* Whether these are the same peer: the same named key, or no named key and the same host. */
bool ibx_peer_same(const struct ibx_peer *a, const struct ibx_peer *b);

/* A listener, with a thread that accepts authenticated peers. */
struct ibx_accept_thread;

/* That thread calls `came` with each connection, which `came` takes over and which is not
 * established yet (ibx_establish()). Peers for whom this process has no thread or descriptors are
 * told so, and refused. -ENOMEM, no descriptors or threads, or what ibx_listen() returns. */
int ibx_accept_thread_open(const char *uri, const struct ibx_options *options,
                           void (*came)(void *context, struct ibx_conn *conn), void *context,
                           struct ibx_accept_thread **accepts, struct ibx_error *err);
/* The URI to connect to, with the real port. */
const char *ibx_accept_thread_uri(const struct ibx_accept_thread *accepts);
/* Ends the thread and waits for it: `came` is not called any more. May be repeated. */
void ibx_accept_thread_end(struct ibx_accept_thread *accepts);
/* The same; then closes the listener and frees `accepts`. Accepts NULL. */
void ibx_accept_thread_close(struct ibx_accept_thread *accepts);

/* ------------------------------------------------------------ acceptor */

/*
 * Connection requests at the destination. One thread accepts peers that have authenticated, and one
 * thread for each of them sets the connection up and waits for the first message. The migration
 * sees a connection only after that, so no peer delays a stopped VM.
 *
 * A connection has a place until the migration takes it; if no place is free, it is closed. A peer
 * is whoever has a key of one name, or without a named key a host. A peer gets few of the places,
 * so that it cannot take all. The peer of the running migration also has reserved places: twice
 * what its control connection and page connections need, because connections of an earlier attempt
 * may still be there.
 */
#define IBX_ACCEPTOR_OTHERS   32u
#define IBX_ACCEPTOR_PEER     8u /* of these, for one peer */
#define IBX_ACCEPTOR_RESERVED (2u * (1u + IBX_MIGRATE_LINKS_MAX))

#define IBX_MIGRATE_PURPOSE "ib-migrate" /* options.purpose of all connections of a migration */

/* A connection has to bring its first message within this time, or timeout_ms if that is less:
 * whoever connects has it ready. */
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

/* Listens at `uri`. -ENOMEM, no descriptors or threads, or what ibx_listen() returns. */
int ibx_acceptor_open(const char *uri, const struct ibx_options *options,
                      struct ibx_acceptor **acceptor, struct ibx_error *err);
/* The URI for the source, with the real port. */
const char *ibx_acceptor_uri(const struct ibx_acceptor *acceptor);
/* Readable when ibx_acceptor_take() has something, and when it has become busy. */
int ibx_acceptor_fd(const struct ibx_acceptor *acceptor);
/* Whether connections of authenticated peers are being set up, or have not sent their first message
 * yet. */
bool ibx_acceptor_busy(struct ibx_acceptor *acceptor);
/* From now on the reserved places are for the peer of this connection: the same key from the same
 * host; or for the key of this name ("": any) from the host with this address. */
void ibx_acceptor_expect(struct ibx_acceptor *acceptor, const struct ibx_conn *conn);
void ibx_acceptor_expect_host(struct ibx_acceptor *acceptor, const char *address, const char *key);
/* For tests: another limit than IBX_MIGRATE_FIRST_MS. */
void ibx_acceptor_first_within(struct ibx_acceptor *acceptor, unsigned ms);
/* 1 and a request, whose connection and message are the caller's; 0 when there is none. */
int ibx_acceptor_take(struct ibx_acceptor *acceptor, struct ibx_connection_request *request);
/* Closes the listener and every connection that was not taken; waits for its threads. Accepts
 * NULL. */
void ibx_acceptor_close(struct ibx_acceptor *acceptor);

#endif
