/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The wire format of the tcp provider (docs/protocol.md): a header of 32 bytes, little-endian, then
 * `length` bytes of payload for MESSAGE, DATA, WRITE and PAD.
 *
 *   0 type(1) 1 lane(1) 2 credits(2) 4 status(4) 8 id(4) 12 length(4) 16 key(8) 24 address(8)
 *
 *            lane  credits  status  id  length  key+address   travels on
 *   MESSAGE   -      x        p      -    x        -           lane 0
 *   READ      x      -        p      x    x        x           lane 0
 *   DATA      -      -        p      x    x        -           the lane that READ names
 *   WRITE     -      -        p      x    x        x           the lane the writer chose
 *   ACK       -      -        p      x    -        -           lane 0
 *   NAK       -      -        x      x    -        -           lane 0
 *   CREDIT    -      x        p      -    -        -           lane 0
 *   PAD       -      -        p      -    x        -           any; its bytes mean nothing
 *   CHECK     x      -        p      x    -        -           any; see loss.c
 *
 * Fields without a letter are zero, and a receiver insists on it. p: the frame's place, which is
 * the number of bytes of frames before it on its lane, modulo 2^32. It is zero where the ends have
 * not agreed on that.
 */
#ifndef IBX_TRANSPORT_TCP_FRAME_H
#define IBX_TRANSPORT_TCP_FRAME_H

#include "transport/core/provider.h"

#define IBX_TCP_FRAME_BYTES 32u
#define IBX_TCP_HELLO_BYTES (8u + IBX_PROOF_BYTES)
#define IBX_TCP_TERMS_BYTES 11u
#define IBX_TCP_PLACES      1u          /* bits of what the ends agree on: frames have places; */
#define IBX_TCP_SIGNS       2u          /* the server gives signs of life */
#define IBX_TCP_BODY_MAX    (64u << 20) /* bytes of one READ or WRITE: the largest chunk option */
#define IBX_TCP_LANES_MAX   16u         /* bulk lanes */
#define IBX_TCP_SLOTS_MAX   1024u
#define IBX_TCP_DEPTH_MAX   2048u
#define IBX_TCP_MESSAGE_MAX (1u << 20)

enum ibx_tcp_type {
    IBX_TCP_MESSAGE = 1,
    IBX_TCP_READ,
    IBX_TCP_DATA,
    IBX_TCP_WRITE,
    IBX_TCP_ACK,
    IBX_TCP_NAK,
    IBX_TCP_CREDIT,
    IBX_TCP_PAD,
    IBX_TCP_CHECK, /* only where places are agreed on */
};

/* What a CHECK has as its lane. */
enum ibx_tcp_check { IBX_TCP_ANSWERS, IBX_TCP_ASKS, IBX_TCP_LIVES };

/* Why a READ or WRITE was refused. These are no errno values, which differ between systems. */
enum ibx_tcp_status {
    IBX_TCP_STATUS_ACCESS = 1, /* no such key, or not for this kind of access: -EACCES */
    IBX_TCP_STATUS_RANGE = 2,  /* outside the region: -ERANGE */
};

struct ibx_tcp_frame {
    enum ibx_tcp_type type;
    uint8_t lane;
    uint16_t credits; /* messages for which there is room again */
    uint32_t status;  /* enum ibx_tcp_status */
    uint32_t place;   /* of any frame but NAK */
    uint32_t id;
    uint32_t length; /* bytes that follow, or that READ requests */
    uint64_t key;
    uint64_t address;
};

void ibx_tcp_frame_put(const struct ibx_tcp_frame *frame, uint8_t out[IBX_TCP_FRAME_BYTES]);
/* -EPROTO for an unknown type, a length out of bounds or a field that the type does not have. */
int ibx_tcp_frame_get(const uint8_t in[IBX_TCP_FRAME_BYTES], struct ibx_tcp_frame *frame);
/* Writes its place into a frame that was put. */
void ibx_tcp_frame_place(uint8_t frame[IBX_TCP_FRAME_BYTES], uint64_t place);
/* How many bytes it takes on its lane, with its payload. */
size_t ibx_tcp_frame_size(const struct ibx_tcp_frame *frame);
/* 0 for a number that is not in enum ibx_tcp_status. */
int ibx_tcp_status_errno(uint32_t status);

/* The first bytes on a bulk socket: "ibxL", version, lane (1..), two zero bytes, proof. */
void ibx_tcp_hello_put(unsigned lane, const uint8_t proof[IBX_PROOF_BYTES],
                       uint8_t out[IBX_TCP_HELLO_BYTES]);
/* -EPROTO: this is no hello. `proof` points into `in`. */
int ibx_tcp_hello_get(const uint8_t in[IBX_TCP_HELLO_BYTES], unsigned *lane, const uint8_t **proof);

/* What one side can take, in the offer and in the answer. */
struct ibx_tcp_terms {
    unsigned lanes;   /* bulk sockets: offered by the server, made by the client */
    unsigned slots;   /* messages this side can hold */
    unsigned depth;   /* READs and WRITEs of this side in flight at most */
    uint32_t message; /* bytes of a message without memory of its own; message.c has longer ones */
};

void ibx_tcp_terms_put(const struct ibx_tcp_terms *terms, struct ibx_writer *writer);
/* -EPROTO for another version or numbers out of bounds. */
int ibx_tcp_terms_get(struct ibx_reader *reader, struct ibx_tcp_terms *terms);

#endif
