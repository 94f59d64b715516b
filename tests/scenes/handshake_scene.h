/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A listener whose clients a test plays by hand. */
#ifndef IBX_TESTS_UNIT_HANDSHAKE_SCENE_H
#define IBX_TESTS_UNIT_HANDSHAKE_SCENE_H

#include "tests/scenes/memory_provider.h"
#include "tests/scenes/raw_handshake.h"

#include <pthread.h>
#include <stdatomic.h>

/* A listener, and the result of its last client. */
struct handshake_scene {
    struct ibx_listener *listener;
    struct ibx_options options;
    uint16_t port;
    int fds; /* open before the scene */
    pthread_t thread;
    atomic_bool over; /* the thread has done its work */
    int rc, closed_status;
    uint64_t took_ns;
    struct ibx_error err;
    char provider[16], name[64], reason[256];
    uint64_t message_max;
    bool has_program; /* and which, as the client says */
    uint8_t program[IBX_PROGRAM_BYTES];
};

/* The client's frames, in their order. */
enum handshake_step { AT_HELLO, AT_PROOF, AT_TRY, AT_ANSWER, AT_RESULT, STEPS };

void handshake_open(struct handshake_scene *s, bool with_key, unsigned timeout_ms);
/* Afterwards an honest client is served, and nothing has leaked. */
void handshake_close(struct handshake_scene *s);
/* A thread of the server's: one client, established and kept until the end of the connection. */
void *handshake_serve(void *scene);
/* Starts that thread and connects. */
struct raw handshake_connect(struct handshake_scene *s);
/* Waits for the thread: what ibx_establish() returned, or why ibx_accept() turned the client away.
 */
int handshake_result(struct handshake_scene *s);
/* It failed with this code, and with one sentence that holds `expected` and names the client. */
void handshake_expect_failure(struct handshake_scene *s, int code, const char *expected);

/* Receives the frames before the client's frame of this step, and makes that frame. */
void handshake_make_step(struct raw *raw, enum handshake_step step, struct raw_frame *frame);
/* All steps before this one, as an honest client takes them. */
void handshake_play_to(struct raw *raw, enum handshake_step step);

#endif
