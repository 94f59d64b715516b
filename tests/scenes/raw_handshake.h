/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The handshake once more, written from docs/protocol.md and not from transport/handshake/, so that
 * tests can send it byte by byte, rightly and wrongly.
 */
#ifndef IBX_TESTS_UNIT_RAW_HANDSHAKE_H
#define IBX_TESTS_UNIT_RAW_HANDSHAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RAW_HASH  32
#define RAW_MAC   16
#define RAW_FRAME 8192

/* What an opening has before the names of a client, or the two last fields of a server. */
#define RAW_OPENING 84

/* In a client's PROOF. */
#define RAW_ENCRYPT   1
#define RAW_SAME_HOST 2

enum raw_type { HELLO = 1, CHALLENGE, PROOF, TRY, OFFER, ANSWER, RESULT, REFUSE };

struct raw {
    int fd;
    bool client;
    bool authenticated;    /* frames carry MACs */
    uint8_t key[RAW_HASH]; /* SHA-256 of the key file, zeros without one */
    uint8_t transcript[RAW_HASH], session[RAW_HASH];
    uint8_t client_nonce[32], server_nonce[32];
    struct ibx_exchange *exchange;
    uint8_t own_public[32], peer_public[32];
    uint8_t flags;              /* of the client's PROOF: RAW_SAME_HOST at first */
    const char *name, *purpose; /* of the client's HELLO: "" at first */
    uint8_t encryption;         /* 0 off, 1 auto, 2 required: 1 at first */
    uint64_t sent, received;
};

struct raw_frame {
    uint8_t bytes[RAW_FRAME]; /* as on the wire */
    size_t length;
    uint8_t type;
    const uint8_t *payload;
    size_t payload_length;
};

/* A client that goes from one address of this host ("0.0.0.0": as the kernel likes) to another. */
struct raw raw_connect(uint16_t port, const char *from, const char *to);
/* A listening socket on a free port of 127.0.0.1; raw_accept() waits for one client. */
int raw_listen(uint16_t *port);
struct raw raw_accept(int listening);
void raw_close(struct raw *raw);

/* Makes a frame, MAC and all, and counts it as sent; raw_send() then sends as many of its bytes as
 * the test likes. */
void raw_frame_make(struct raw *raw, struct raw_frame *frame, uint8_t type, const void *payload,
                    size_t length);
void raw_send(struct raw *raw, const void *bytes, size_t length);
void raw_send_frame(struct raw *raw, uint8_t type, const void *payload, size_t length);
/* The next frame, its MAC checked. False at the end of the stream. */
bool raw_receive(struct raw *raw, struct raw_frame *frame);
/* The next frame, which must be of this type. */
void raw_expect(struct raw *raw, uint8_t type, struct raw_frame *frame);
/* True once the other side has closed without sending more. */
bool raw_receives_end(struct raw *raw);

/* What a group of tests begins and ends with: a file with a key, which is `raw`'s, too, when it is
 * set. */
extern char raw_key_file[64];
int raw_make_key(void **state);
int raw_remove_key(void **state);
void raw_set_key(struct raw *raw);

/* Payloads; each returns its length. */
size_t raw_opening(const struct raw *raw, uint8_t *out, bool has_key); /* without the host mark */
/* Keeps the nonce and the public key of the peer's opening. */
void raw_take_opening(struct raw *raw, const struct raw_frame *frame);
void raw_host_mark(const struct raw *raw, uint8_t mark[RAW_HASH]);
/* `fd` is the server's end. */
void raw_end_mark(const struct raw *raw, int fd, uint8_t mark[RAW_HASH]);
/* After CHALLENGE, before PROOF: both proofs, and the session key in raw->session. */
void raw_derive(struct raw *raw, uint8_t client[RAW_HASH], uint8_t server[RAW_HASH]);
/* A client's PROOF. */
size_t raw_proof(const struct raw *raw, const uint8_t proof[RAW_HASH], uint8_t *out);
void raw_send_proof(struct raw *raw, const uint8_t proof[RAW_HASH]);
size_t raw_string(uint8_t *out, const char *text);
size_t raw_result(uint8_t *out, int32_t code, const char *reason);

#endif
