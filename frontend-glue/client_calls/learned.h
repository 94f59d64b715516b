/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What a client has learned from the replies that it waited for. A call is answered here only in a
 * form that this back end has given before.
 */
#ifndef IBX_FRONTEND_GLUE_CLIENT_CALLS_LEARNED_H
#define IBX_FRONTEND_GLUE_CLIENT_CALLS_LEARNED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ------------------------------------------------------------------------- successes */

/* A set of requests that have succeeded, by their hashes. A collision of two hashes (1 in 2^64)
 * costs an error that is reported later than natively. */
struct ibx_successes {
    uint64_t *hashes; /* 0: free */
    unsigned count, room;
};

#define IBX_SUCCESSES_MAX 16384u /* beyond it the set begins anew */

/* Of n bytes; never 0. `seed` keeps kinds of requests apart. */
uint64_t ibx_request_hash(uint64_t seed, const void *bytes, size_t n);
bool ibx_successes_hold(const struct ibx_successes *set, uint64_t hash);
/* Without memory it stays out. */
void ibx_successes_add(struct ibx_successes *set, uint64_t hash);
void ibx_successes_clear(struct ibx_successes *set);
void ibx_successes_fini(struct ibx_successes *set);

/* --------------------------------------------------------------------- known replies */

#define IBX_REPLIES    32u
#define IBX_REPLY_MAX  2048u /* bytes of a request, or of a reply */
#define IBX_REPLY_HEAD 20u   /* exit code, seconds, length of the rest */

struct ibx_known_reply {
    uint64_t hash;  /* 0: none */
    uint8_t *bytes; /* the request, and the reply behind it */
    size_t request, reply;
};

struct ibx_known_replies {
    struct ibx_known_reply items[IBX_REPLIES];
    unsigned next; /* to be replaced */
};

/* NULL: unknown. */
const struct ibx_known_reply *ibx_replies_find(const struct ibx_known_replies *replies,
                                               const void *request, size_t n);
void ibx_replies_add(struct ibx_known_replies *replies, const void *request, size_t n,
                     const void *reply, size_t length);
void ibx_replies_clear(struct ibx_known_replies *replies);

/* ------------------------------------------------------- configurations of launches */

#define IBX_CONFIGURATION_BYTES                                                                    \
    40u                        /* grid and block, 12 each; shared memory and stream, 8 each        \
                                */
#define IBX_CONFIGURATIONS 16u /* that were pushed and not popped */

/* The form of a reply to cudaPopCallConfiguration: which of the four fields have their length in
 * front. */
struct ibx_configurations {
    struct {
        uint8_t bytes[IBX_CONFIGURATION_BYTES];
        bool remote; /* the back end has it, too */
    } pushed[IBX_CONFIGURATIONS];
    unsigned count;
    unsigned beyond; /* were pushed behind those, and only the back end has them */
    bool lost;       /* a pop has failed, or brought another one: nothing is known */
    bool push_known; /* the back end answers a push with no output */
    int form;        /* a bit a field, -1: not known yet */
};

void ibx_configurations_init(struct ibx_configurations *all);
/* The request was pushed, here or at the back end. */
void ibx_configurations_push(struct ibx_configurations *all, const uint8_t *body, bool remote);
/* The back end has answered a pop with these bytes. */
void ibx_configurations_popped(struct ibx_configurations *all, const uint8_t *out, size_t n);
/* Writes the output of a pop that the back end knows nothing of; 0: it has to be asked. */
size_t ibx_configurations_pop(struct ibx_configurations *all, uint8_t out[72]);

#endif
