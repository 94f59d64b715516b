/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Caches of the replies that a client has waited for. A call is answered here only if this back end
 * has given a reply of that form before.
 */
#ifndef IBX_FRONTEND_GLUE_CALL_PIPELINE_REPLY_CACHE_H
#define IBX_FRONTEND_GLUE_CALL_PIPELINE_REPLY_CACHE_H

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

#define IBX_SUCCESSES_MAX 16384u /* at this count the set is emptied */

/* The hash of n bytes; never 0. `seed` keeps kinds of requests apart. */
uint64_t ibx_request_hash(uint64_t seed, const void *bytes, size_t n);
bool ibx_successes_hold(const struct ibx_successes *set, uint64_t hash);
/* Adds a hash, unless there is no memory. */
void ibx_successes_add(struct ibx_successes *set, uint64_t hash);
void ibx_successes_clear(struct ibx_successes *set);
void ibx_successes_fini(struct ibx_successes *set);

/* --------------------------------------------------------------------- known replies */

#define IBX_REPLIES    32u
#define IBX_REPLY_MAX  2048u /* bytes of a request, or of a reply */
#define IBX_REPLY_HEAD 20u   /* bytes: exit code, seconds, length of the rest */

struct ibx_known_reply {
    uint64_t hash;  /* 0: none */
    uint8_t *bytes; /* the request, and then the reply */
    size_t request, reply;
};

struct ibx_known_replies {
    struct ibx_known_reply items[IBX_REPLIES];
    unsigned next; /* to be replaced */
};

/* NULL: the reply is not known. */
const struct ibx_known_reply *ibx_replies_find(const struct ibx_known_replies *replies,
                                               const void *request, size_t n);
void ibx_replies_add(struct ibx_known_replies *replies, const void *request, size_t n,
                     const void *reply, size_t length);
void ibx_replies_clear(struct ibx_known_replies *replies);

/* ------------------------------------------------------- configurations of launches */

/* grid and block, 12 bytes each; shared memory and stream, 8 each */
#define IBX_CONFIGURATION_BYTES 40u
#define IBX_CONFIGURATIONS      16u /* most that were pushed and not popped */

/* The configurations of launches that were pushed, and the form of a reply to
 * cudaPopCallConfiguration: which of the four fields are preceded by their length. */
struct ibx_configurations {
    struct {
        uint8_t bytes[IBX_CONFIGURATION_BYTES];
        bool remote; /* the back end has it, too */
    } pushed[IBX_CONFIGURATIONS];
    unsigned count;
    unsigned beyond; /* pushed after these; only the back end has them */
    bool lost;       /* a pop has failed, or brought another configuration: nothing is known */
    bool push_known; /* the back end answers a push with no output */
    int form;        /* one bit for each field; -1: not known yet */
};

void ibx_configurations_init(struct ibx_configurations *all);
/* A configuration was pushed; `remote`: at the back end, too. */
void ibx_configurations_push(struct ibx_configurations *all, const uint8_t *body, bool remote);
/* The back end has answered a pop with these bytes. */
void ibx_configurations_popped(struct ibx_configurations *all, const uint8_t *out, size_t n);
/* Pops a configuration that the back end does not have, and writes the output of that call. Returns
 * its length; 0: the back end has to be asked. */
size_t ibx_configurations_pop(struct ibx_configurations *all, uint8_t out[72]);

#endif
