/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Connection requests at the destination. One thread accepts, and one thread for each request does
 * the handshake and waits for the first message. The migration sees a connection only after that,
 * so an unauthenticated peer delays nobody, least of all a stopped VM.
 */
#ifndef IBX_MIGRATE_CHANNEL_ACCEPTOR_H
#define IBX_MIGRATE_CHANNEL_ACCEPTOR_H

#include "migrate/channel/protocol.h"

#define IBX_ACCEPTOR_REQUESTS_MAX 32u /* at a time; more wait in the listener */

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
/* Readable when ibx_acceptor_take() has something. */
int ibx_acceptor_fd(const struct ibx_acceptor *acceptor);
/* 1 and a request, whose connection and message are the caller's; 0 when there is none. */
int ibx_acceptor_take(struct ibx_acceptor *acceptor, struct ibx_connection_request *request);
/* Closes the listener and every connection that was not taken; waits for its threads. Accepts
 * NULL. */
void ibx_acceptor_close(struct ibx_acceptor *acceptor);

#endif
