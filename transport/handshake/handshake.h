/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The door's own view of its dialogue: shared by door*.c only.
 *
 *   door.c        providers, one after the other, until one stands
 *   door_proof.c  who is there, and what both go on with
 *   door_frame.c  frames, their MACs, and the sentences inside
 */
#ifndef IBX_TRANSPORT_HANDSHAKE_HANDSHAKE_H
#define IBX_TRANSPORT_HANDSHAKE_HANDSHAKE_H

#include "transport/core/conn.h"

#define IBX_HANDSHAKE_PAYLOAD_MAX 4096u /* bytes of a frame */
#define IBX_HANDSHAKE_MAC_BYTES   16u

enum door_frame_type {
    FRAME_HELLO = 1,
    FRAME_CHALLENGE,
    FRAME_PROOF,
    FRAME_TRY,
    FRAME_OFFER,
    FRAME_ANSWER,
    FRAME_RESULT,
    FRAME_REFUSE, /* instead of any frame before TRY: i32 -errno, string; then the end */
};

struct door_frame {
    uint8_t bytes[4 + 1 + IBX_HANDSHAKE_PAYLOAD_MAX + IBX_HANDSHAKE_MAC_BYTES];
    uint8_t type;
    struct ibx_reader payload; /* of a received frame */
    struct ibx_writer out;     /* of one being written */
};

/* door_frame.c; negative errno values. */
void ibx_handshake_frame_begin(struct door_frame *frame, enum door_frame_type type);
int ibx_handshake_frame_send(struct ibx_conn *conn, struct door_frame *frame, uint64_t deadline_ns);
int ibx_handshake_frame_receive(struct ibx_conn *conn, struct door_frame *frame,
                                uint64_t deadline_ns);
/* Reads a code, which is returned, and a sentence; both from the peer and so not to be trusted. */
int ibx_handshake_reason_get(struct ibx_reader *r, char *reason, size_t size);
void ibx_handshake_reason_put(struct ibx_writer *w, int code, const char *reason);
/* Returns `rc` after it was put into a sentence. */
int ibx_handshake_broken(struct ibx_conn *conn, int rc, struct ibx_error *err);
/* Receives a frame that must be of `type`; a REFUSE becomes its sentence. */
int ibx_handshake_expect(struct ibx_conn *conn, struct door_frame *frame, enum door_frame_type type,
                         uint64_t deadline_ns, struct ibx_error *err);
/* Tells the peer why this is the end; returns `code`. */
int ibx_handshake_refuse(struct ibx_conn *conn, int code, const char *to_peer,
                         struct ibx_error *err);

/* door_proof.c; on success frames carry MACs, and options are what both agreed on. */
int ibx_handshake_prove_server(struct ibx_conn *conn, uint64_t deadline_ns, struct ibx_error *err);
int ibx_handshake_prove_client(struct ibx_conn *conn, uint64_t deadline_ns, bool *same_host,
                               struct ibx_error *err);

#endif
