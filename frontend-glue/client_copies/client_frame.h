/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared by client_frame.c (one request and its reply) and the files that build copies of such
 * requests. */
#ifndef IBX_FRONTEND_GLUE_CLIENT_COPIES_CLIENT_FRAME_H
#define IBX_FRONTEND_GLUE_CLIENT_COPIES_CLIENT_FRAME_H

#include "frontend-glue/client_copies/client_copies.h"
#include "frontend-glue/session/hooks.h"

#define CLIENT_SCRATCH (64u << 10)
#define CLIENT_FRAME   256u /* most bytes of a frame by reference, and of its segments */

/* Rows in the application's memory, which are contiguous in a frame. */
struct client_rows {
    uint8_t *first;
    size_t pitch, count;
};

/* Bytes of the host's side of a copy in the frame. */
static inline size_t client_payload(const struct ibx_frontend_copy *copy)
{
    return copy->rows ? copy->host_pitch * copy->rows : copy->n;
}

/* All of these: 0, or the session has ended, as ibx_session_fail(). */

/* Every reply begins with exit code, seconds and `out`, the length of the rest. */
int ibx_client_take_head(struct ibx_session *s, int *exit_code, uint64_t *out);
/* Reads and discards n bytes. */
int ibx_client_drain(struct ibx_session *s, uint64_t n);
/* One request and its reply. With `rows` the payload is in these, `copy->n` bytes of each, instead
 * of at copy->host. */
int ibx_client_exchange(struct ibx_session *s, const struct ibx_frontend_copy *copy,
                        const struct client_rows *rows, int *exit_code);

/* The two halves of ibx_client_exchange(). With `registered` the payload is in, or goes to, memory
 * that the caller keeps registered. */
int ibx_client_send_frame(struct ibx_session *s, const struct ibx_frontend_copy *copy,
                          const struct client_rows *rows, const struct ibx_remote *registered);
int ibx_client_take_reply(struct ibx_session *s, const struct ibx_frontend_copy *copy,
                          const struct client_rows *rows, int *exit_code);

/* fits(): whether a plain copy to the device fits into one message; send_whole(): sends it so. */
bool ibx_client_fits(const struct ibx_session *s, const struct ibx_frontend_copy *copy);
int ibx_client_send_whole(struct ibx_session *s, const struct ibx_frontend_copy *copy);

/* client_ahead.c */

/* A session's memory for short copies whose calls return before the copies are made. */
struct client_ahead {
    bool reached; /* the back end's GPU has used memory of this side */
    bool failed;  /* the memory could not be made, or has ended */
    unsigned few; /* so many copies of few bytes are not left to the GPU from now on */
    uint8_t *memory;
    struct ibx_mr *mr;
    unsigned next;        /* slot */
    uint64_t *busy_until; /* for each slot: the number of the reply after which it is free */
};
/* As ibx_session_fail(). */
int ibx_client_send_ahead(struct ibx_session *s, const struct ibx_frontend_copy *copy);
void ibx_client_ahead_end(struct client_ahead *ahead);

/* client_stage.c */

/* NULL: no memory. */
struct client_ahead *ibx_client_stage_ahead(struct ibx_session *s);

/* wants(): whether a copy goes in parts, through memory that both ends map. The memory is made once
 * copies have lost enough time without it. at_once(), for tests: the memory is made for the first
 * such copy. */
bool ibx_client_stage_wants(struct ibx_session *s, const struct ibx_frontend_copy *copy);
void ibx_client_stage_at_once(struct ibx_session *s);
/* Runs such a copy. *exit_code is its cudaError_t. */
int ibx_client_stage_copy(struct ibx_session *s, const struct ibx_frontend_copy *copy,
                          int *exit_code);

/* client_rows.c */

int ibx_client_copy_rows(struct ibx_session *s, const struct ibx_frontend_copy *copy,
                         int *exit_code);

#endif
