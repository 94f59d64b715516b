/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Both ends of an shm connection in one process, without the core (provider_end.h). Tests may look
 * into and spoil what either end has in shared memory.
 */
#ifndef IBX_TESTS_SCENES_SHM_PAIR_H
#define IBX_TESTS_SCENES_SHM_PAIR_H

#include "tests/scenes/provider_end.h"
#include "transport/shm/shm.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define READ_WRITE (IBX_ACCESS_REMOTE_READ | IBX_ACCESS_REMOTE_WRITE)

struct pair {
    struct end server, client;
};

/* Makes the two ends; ends_connect() connects them. */
void pair_open(struct pair *pair);
void pair_close(struct pair *pair);
/* What most tests have: a pair that is connected, or one that is not yet. */
extern struct pair both;
int both_connected(void **state);
int both_apart(void **state);
int both_close(void **state);
/* The server's offer as bytes; returns the length. */
size_t pair_offer(struct pair *pair, uint8_t *bytes, size_t size);

/* Progress until `end` has exactly `count` notes; the other end polls too when it is given. */
void await_notes(struct end *end, struct end *other, unsigned count);
/* The last note is the loss of the connection with `status`, and there is no message. */
void assert_lost(const struct end *end, int status);
/* Where `end` has the peer's region mapped, or NULL. */
const uint8_t *pointer(struct end *end, const struct ibx_mr *mr, size_t length);
/* Holds [at, at + length) of the peer's region. */
int hold(struct end *end, const struct ibx_mr *mr, size_t at, size_t length, unsigned access,
         struct ibx_reach *reach);

/* Bytes that tell where they belong; these are those of places `from` and up. */
void fill(uint8_t *bytes, size_t length);
void check(const uint8_t *bytes, size_t length, size_t from);
/* Gives one chunk of `kind` to `end`; lane 0 is urgent. */
void post(struct end *end, struct ibx_chunk *chunk, enum ibx_rdma_kind kind, unsigned lane,
          void *local, const struct ibx_mr *remote, size_t offset, size_t length);

#endif
