/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A client whose server a test plays by hand, byte by byte. */
#ifndef IBX_TESTS_UNIT_CLIENT_SCENE_H
#define IBX_TESTS_UNIT_CLIENT_SCENE_H

#include "tests/scenes/memory_provider.h"
#include "tests/scenes/raw_handshake.h"

#include <pthread.h>
#include <stdatomic.h>

/* A raw server, and the result of its last client. */
struct scene {
    int listening;
    uint16_t port;
    int fds; /* open before the scene */
    struct ibx_options options;
    pthread_t thread;
    atomic_bool over; /* the thread has done its work */
    int rc;
    uint64_t took_ns;
    struct ibx_error err;
    struct ibx_path path;
};

/* The server's frames, in their order. */
enum step { AT_CHALLENGE, AT_PROOF, AT_OFFER, AT_RESULT, STEPS };

void open_scene(struct scene *s, bool with_key, unsigned timeout_ms);
/* Nothing has leaked. */
void close_scene(struct scene *s);
/* The client's part: connects, and closes. */
void *client(void *scene);
/* Starts a thread with it, and accepts its connection. */
struct raw take_client(struct scene *s);
/* Waits for the thread: what ibx_connect() returned. */
int client_result(struct scene *s);
/* It failed with this code, and with one sentence that holds `expected` and names the server. */
void expect_failure(struct scene *s, int code, const char *expected);

/* Receives HELLO, and makes the opening and the host's mark of a CHALLENGE to it; their length. */
size_t put_challenge(struct raw *raw, bool with_key, uint8_t *out);
/* Sends one with another host's mark. */
void challenge_from_another_host(struct raw *raw);
/* What the client joins; its length. */
size_t put_wire(uint8_t *out);
/* Receives the frames before the server's frame of this step, and makes that frame. */
void make_step(struct raw *raw, enum step step, struct raw_frame *frame);
/* All steps before this one, as an honest server takes them. */
void play_to(struct raw *raw, enum step step);

#endif
