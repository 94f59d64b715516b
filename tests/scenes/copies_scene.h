/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A session whose server runs copies, and both its sides: a back end that answers what GVirtuS
 * would run with HANDLED, and a front end that makes frames. One at a time. The memory of the
 * device is `device`, of DEVICE_BYTES.
 */
#ifndef TESTS_CUDA_COPIES_SCENE_H
#define TESTS_CUDA_COPIES_SCENE_H

#include "frontend-glue/client_copies/client_copies.h"
#include "frontend-glue/device_copies/copies.h"
#include "tests/scenes/cuda_application.h"
#include "tests/scenes/session_pair.h"

#define DEVICE_BYTES ((size_t)8 << 20)
#define HANDLED      77 /* the exit code of what GVirtuS ran */
#define POOL         (8 * (size_t)IBX_PINNED_STRIDE)

/* What the back end saw. */
struct back_end {
    unsigned requests;
    char last_name[64];
    uint8_t last_body[64];
    size_t last_length;
    struct ibx_copy_counts copies; /* before that */
    char refused[256];             /* why not in a better way */
    int end;                       /* of the session: what the last read returned */
};

struct frame {
    uint8_t *bytes;
    size_t n, room;
};

extern const struct cuda_calls *app;
extern struct ibx_gpu_options gpu; /* of the next scene */
extern struct session_pair pair;
extern uint64_t device;
extern _Atomic int32_t handler_says;         /* to what GVirtuS would run */
extern void (*on_request)(const char *name); /* what the handler of a request does, or NULL */

/* For who opens a pair by itself. */
int serve(struct session_pair *p, void *argument);
struct back_end seen(void);

/* Zeros, until the scene's end; what makes frames and patterns has theirs of it. */
void *scene_memory(size_t n);
void put(struct frame *f, const void *bytes, size_t n);
void put_u64(struct frame *f, uint64_t value);
void put_i32(struct frame *f, int32_t value);
struct frame to_device(const uint8_t *payload, size_t n);
struct frame from_device(size_t n);
void send_frame(const char *name, const struct frame *f);
/* The first n bytes of the payload of `f` as a write of their own: exposed, if it is long enough.
 * Not synced. */
void send_apart(const char *name, const struct frame *f, size_t n);
/* The same with these bytes, where they are, as the payload. */
void send_payload(const char *name, const struct frame *f, const uint8_t *payload, size_t n);
/* The exit code, or -1 when the connection is gone; `out` is of out_length bytes, as the reply's.
 */
int receive_reply(void *out, size_t out_length);
/* Both, with the exit code that is due. */
void expect_code(const char *name, const struct frame *f, int code);
void expect_apart(const char *name, const struct frame *f, size_t n, int code);
void expect_out(const char *name, const struct frame *f, void *out, size_t out_length, int code);
/* By the client itself, with device memory from `device` + wish.device on: the exit code. */
int copy_by_client(struct ibx_frontend_copy wish);
/* The back end's thread has ended. */
void join_server(void);
uint8_t *pattern(size_t n, uint64_t seed);
void assert_device(size_t n, uint64_t seed);

/* False: a client's long copies of pageable memory go in parts when enough of them have come. */
extern bool scene_stage_at_once;
/* A pair whose server knows what replies look like here. */
int set_up(void **state);
int tear_down(void **state);

#endif
