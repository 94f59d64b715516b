/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Both ends of an shm connection in one process, with a core that only takes
 * notes. Tests may look into and spoil what either end has in shared memory.
 */
#ifndef IBX_TESTS_UNIT_SHM_PAIR_H
#define IBX_TESTS_UNIT_SHM_PAIR_H

#include "transport/shm/shm.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define NOTES_MAX 512

enum note_kind { NOTE_CHUNK, NOTE_MESSAGE, NOTE_SEND, NOTE_LOST };

struct note {
    enum note_kind kind;
    struct ibx_chunk *chunk;
    int status;
    const uint8_t *data;
    size_t length;
    uint64_t token; /* slot or cookie */
};

/* One end, and the core above it. */
struct end {
    struct ibx_link link;
    struct ibx_options options;
    enum ibx_role role;
    uint8_t secret; /* of the proofs */
    struct shm *shm;
    struct note notes[NOTES_MAX];
    int count;
    char reason[256];
    int watched; /* descriptor, or -1 */
    struct ibx_error err;
};

struct pair {
    struct end server, client;
};

/* Makes the two ends, not yet met. */
void pair_init(struct pair *pair);
/* offer, join and finish on both; fails the test when that does not work. */
void pair_meet(struct pair *pair);
void pair_fini(struct pair *pair);
/* What most tests have: a pair that has met, or one that has not yet. */
extern struct pair both;
int both_meet(void **state);
int both_apart(void **state);
int both_part(void **state);
/* The server's offer as bytes; returns the length. */
size_t pair_offer(struct pair *pair, uint8_t *bytes, size_t size);
/* finish of one end in a thread of its own, so that the test can play the other. */
struct finishing {
    struct end *end;
    unsigned long thread;
    int rc;
};
void finish_start(struct finishing *finishing, struct end *end);
int finish_join(struct finishing *finishing);

/* Progress until `end` has `count` notes; the other end polls too when it is given. */
void await_notes(struct end *end, struct end *other, int count);
int progress(struct end *end);
int send_bytes(struct end *end, const void *data, size_t length, unsigned flags);
/* The only note is the loss of the connection with `status`. */
void assert_lost(struct end *end, int status);

/* A region of malloc'ed or, without an address, allocated memory. */
struct ibx_mr *region(struct end *end, void *address, size_t length, unsigned access);
void region_drop(struct end *end, struct ibx_mr *mr);
/* Bytes that tell where they belong; these are those of places `from` and up. */
void fill(uint8_t *bytes, size_t length);
void check(const uint8_t *bytes, size_t length, size_t from);
/* Gives one chunk of `kind` to `end`; lane 0 is urgent. */
void post(struct end *end, struct ibx_chunk *chunk, enum ibx_rdma_kind kind, unsigned lane,
          void *local, const struct ibx_mr *remote, size_t offset, size_t length);

#endif
