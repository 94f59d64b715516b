/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Two ends of one session, for two threads of a test, and what they write to each other. */
#ifndef IBX_TESTS_UNIT_SESSION_PAIR_H
#define IBX_TESTS_UNIT_SESSION_PAIR_H

#include "tests/scenes/pattern.h"
#include "frontend-glue/session/session_internal.h"
#include "transport/fault_injection/fault_injection.h"

#include <pthread.h>

struct session_pair {
    struct ibx_session *listening, *server, *client;
    size_t rendezvous, message; /* of the established connection */
    int (*serve)(struct session_pair *pair, void *argument);
    void *argument;
    int served;
    pthread_t thread;
    struct ibx_conn *bare; /* in place of one of the two */
    pthread_t accepting;   /* connections of a session that is kept */
    bool accepts;
};

/* What pairs use, before the first: the name of a provider, the address where the server listens
 * (NULL: 127.0.0.1; otherwise one of this host's that a client has to reach over the wire), and one
 * more option of both sides (or NULL). */
void session_pair_use(const char *provider, const char *host, const char *key, const char *value);
/* With these faults in every pair opened from now on, on the server's or the client's side. */
extern struct ibx_injected_faults *session_faults_server, *session_faults_client;

/* Pairs opened from now on survive their connections for so many seconds; 0: they do not. */
extern unsigned session_keeps;

/* Threads that the server's sessions copy with, from now on; 0: by the processors. */
extern unsigned session_threads;

/* Memory for long messages that the server's connections are lent from now on; NULL: none. */
extern const struct ibx_message_memory *session_lends;

/* Both ends established; aborts the test when that fails. */
void session_pair_open(struct session_pair *pair);
/* A server session whose client is a bare connection, to speak messages by hand: pair->client is
 * NULL then. And the other way round. */
struct ibx_conn *session_pair_open_bare_client(struct session_pair *pair);
struct ibx_conn *session_pair_open_bare_server(struct session_pair *pair);
/* Runs the server's part in a thread; join returns what it returned. */
void session_pair_start(struct session_pair *pair, int (*serve)(struct session_pair *, void *),
                        void *argument);
int session_pair_join(struct session_pair *pair);
void session_pair_close(struct session_pair *pair);
/* Only its bare connection. */
void session_pair_leave(struct session_pair *pair);

/* Speaks messages by hand. */
void send_message(struct ibx_conn *conn, const void *bytes, size_t length);
/* The next message, copied; its length. */
size_t receive_message(struct ibx_conn *conn, uint8_t *out, size_t size);
void expect_closed(struct ibx_conn *conn);
/* The session has ended with a sentence that names the peer. */
void expect_reason(const struct ibx_session *s);

#endif
