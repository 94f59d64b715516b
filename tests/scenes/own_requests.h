/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Clients of two tenants whose requests of our own are run without a connection, on doubles of CUDA
 * that end the process at a handle that is none.
 */
#ifndef TESTS_OWN_REQUESTS_H
#define TESTS_OWN_REQUESTS_H

#include "frontend-glue/own_requests/own_requests.h"
#include "tests/scenes/cuda_application.h"

#define MEMORY 8192u

/* What a tenant has: all of it was made by requests. */
struct client {
    struct gpu_session x;
    uint64_t memory, graph, node, exec, array, texture, mipmap, level;
};
extern struct client alice, bob;
extern const struct cuda_calls *app;
extern struct ibx_session *session;

/* For cmocka_run_group_tests(). */
int own_set_up(void **state);
int own_tear_down(void **state);
/* The client has all kinds of things again. Memory that it gives back is the double's again. */
void own_make_all(struct client *c);

/* The beginning of a request. */
struct ibx_writer own_body(uint8_t *bytes, size_t n, unsigned number);
/* Its exit code; `answer`: the first number that it answers. */
int own_run(struct client *c, const struct ibx_writer *body, uint64_t *answer);
/* One whose arguments are n numbers of 8 bytes. */
int own_call(struct client *c, unsigned number, unsigned n, const uint64_t *numbers,
             uint64_t *answer);
int own_call_one(struct client *c, unsigned number, uint64_t handle, uint64_t *answer);

int own_graph_create(struct client *c, uint64_t *graph);
/* 64 bytes of memory are set. */
int own_memset_add(struct client *c, uint64_t graph, uint64_t at, uint64_t *node);
uint64_t own_nodes_count(struct client *c, uint64_t graph);
int own_level_of(struct client *c, uint64_t mipmap, unsigned number, uint64_t *level);
/* With two levels, of which the second is `level`. */
void own_mipmap_make(struct client *c);
/* The same numbers in each run. */
uint64_t own_random(void);
/* One of alice's. */
void own_event_destroy(void *event);

#endif
