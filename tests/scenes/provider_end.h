/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * One end of a connection without the core: a test calls the provider and reads what it reported.
 * What is not true here aborts, so that fuzzers can use it, too.
 */
#ifndef IBX_TESTS_SCENES_PROVIDER_END_H
#define IBX_TESTS_SCENES_PROVIDER_END_H

#include "transport/core/provider.h"
#include "tests/scenes/must.h"
#include "tests/scenes/patience.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define NOTES_MAX       512u
#define END_PATIENCE_MS patience_ms(20000) /* for what a healthy connection does at once */

enum note_kind { NOTE_CHUNK, NOTE_MESSAGE, NOTE_SEND, NOTE_LOST };

/* What the provider reported. */
struct note {
    enum note_kind kind;
    int status;
    struct ibx_chunk *chunk;
    const uint8_t *data;
    size_t length;
    uint64_t token;   /* the slot of a message, the cookie of a send */
    char reason[192]; /* of a loss */
};

struct end {
    struct ibx_link link;
    const struct ibx_provider *provider;
    struct ibx_options options;
    enum ibx_role role;
    int handshake_socket;
    struct ibx_tls *tls;               /* on that socket; NULL: plain */
    void (*at_close)(struct end *end); /* NULL: nothing */
    int epoll_fd;
    int watched;              /* the descriptor watched last, -1: none, or no longer */
    bool wrong_proofs;        /* all that it computes ... */
    const char *right_proofs; /* ... but those of labels with this in them; NULL: none */
    union {
        void *endpoint;
        struct shm *shm;
        struct tcp *tcp;
        struct ofi_endpoint *ofi;
    };
    struct note notes[NOTES_MAX];
    unsigned count;
    struct ibx_error err;
};

/* Opens an endpoint; with it the end takes the socket (-1: none). */
void end_open(struct end *end, const struct ibx_provider *provider, enum ibx_role role,
              int handshake_socket, const struct ibx_options *options);
void end_close(struct end *end);
/* For ends that a test puts together itself. */
extern const struct ibx_upcalls end_upcalls;
/* The right proof for a label. */
void proof_of(const char *label, uint8_t proof[IBX_PROOF_BYTES]);

/* finish of one end in a thread of its own, so that the test can play the other. */
struct finishing {
    struct end *end;
    struct ibx_reader *answer; /* the server's */
    uint64_t deadline;
    pthread_t thread;
};
void finish_start(struct finishing *finishing, struct end *end, struct ibx_reader *answer,
                  uint64_t deadline);
int finish_join(struct finishing *finishing);
/* offer, join and finish of two ends. */
void ends_connect(struct end *server, struct end *client);

/* One round of progress. */
int end_turn(struct end *end);
/* Turns of both (b may be NULL) until `a` has `count` notes or the time is over: whether it has. */
bool end_await(struct end *a, struct end *b, unsigned count);
/* Whether a sleeper would wake within `timeout_ms`. */
bool end_wakes(const struct end *end, int timeout_ms);
/* The first loss among the notes, or NULL. */
const struct note *end_lost(const struct end *end);

/* Registers; without an address the provider allocates. */
struct ibx_mr *end_register(struct end *end, void *address, size_t length, unsigned access);
void end_deregister(struct end *end, struct ibx_mr *mr);
/* Sends in two pieces, the first of which may be empty, with cookie 77. */
int end_send(struct end *end, const void *data, size_t length, unsigned flags);

#endif
