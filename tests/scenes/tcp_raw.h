/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A server of the tcp provider whose client is raw sockets that a test writes to. */
#ifndef IBX_TESTS_SCENES_TCP_RAW_H
#define IBX_TESTS_SCENES_TCP_RAW_H

#include "tests/scenes/tcp_end.h"

#define BOTH  (IBX_ACCESS_REMOTE_READ | IBX_ACCESS_REMOTE_WRITE)
#define BYTES 4096u

extern struct end server;
extern int lanes[3]; /* the client's: lane 0 and two bulk lanes */
extern uint8_t memory[3 * BYTES];
extern uint8_t *const region; /* in its middle: what is registered; the rest must not change */
extern uint64_t remote_keys[IBX_RAILS_MAX]; /* of memory that the client says to have */

/* For a setup and a teardown. */
int connect_raw(void **state);
int disconnect(void **state);
void reconnect(void);
void close_lane(int i);

void send_raw(int lane, const void *bytes, size_t n);
void send_frame(int lane, struct ibx_tcp_frame frame);
/* Names bytes of a region of the server's. */
struct ibx_tcp_frame request(enum ibx_tcp_type type, const struct ibx_mr *mr, uint64_t offset,
                             uint32_t length);

/* Receives `n` bytes while the server polls. */
void receive(int lane, void *bytes, size_t n);
struct ibx_tcp_frame receive_frame(int lane);
void expect_nak(uint32_t id, uint32_t status);
/* The connection is over, by this errno and with these words. */
void expect_lost(int status, const char *words);
void expect_alive(void);
void expect_memory_unchanged(void);

#endif
