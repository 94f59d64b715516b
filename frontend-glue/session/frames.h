/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The frames of GVirtuS's wire that this plugin understands: requests of
 * cudaMemcpy, cudaMemcpyAsync, cudaMemcpy2D and cudaMemcpyToSymbol, and the
 * shape of replies.
 *
 * A request is `name NUL, u64 length, body`. Bodies, little-endian as GVirtuS's
 * hosts are, n bytes of payload, numbers u64 unless shown:
 *
 *   cudaMemcpy       H2D  dst, n, payload, count, i32 kind
 *                    D2H  1, one NUL byte, src, count, i32 kind
 *                    D2D  dst, src, count, i32 kind
 *   cudaMemcpyAsync  the same, then stream
 *   cudaMemcpy2D     H2D  dst, n, payload, dpitch, spitch, width, height, i32 kind
 *                    D2H  1, one NUL byte, src, dpitch, spitch, width, height, i32 kind
 *                    D2D  dst, src, dpitch, spitch, width, height, i32 kind
 *   cudaMemcpyToSymbol
 *                    H2D  L, L, "0x...", M, M, ..., n, payload, count, offset, i32 kind
 *
 * The strings of the last one are the symbol's address in the client, of L bytes with its NUL, and
 * the M bytes at that address. GVirtuS loses the offset of D2D, so that is not taken as a frame.
 *
 * A reply is `i32 exit code, [f64 seconds,] u64 length, out`; out of D2H is n, payload; of others
 * nothing. Classic GVirtuS sends no seconds.
 */
#ifndef IBX_FRONTEND_GLUE_SESSION_FRAMES_H
#define IBX_FRONTEND_GLUE_SESSION_FRAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ibx_frame_call {
    IBX_FRAME_OTHER,
    IBX_FRAME_MEMCPY,
    IBX_FRAME_MEMCPY_ASYNC,
    IBX_FRAME_MEMCPY_2D,
    IBX_FRAME_TO_SYMBOL,
};

/* The values of cudaMemcpyKind. */
enum ibx_frame_kind { IBX_FRAME_H2D = 1, IBX_FRAME_D2H = 2, IBX_FRAME_D2D = 3 };

struct ibx_frame {
    enum ibx_frame_call call;
    enum ibx_frame_kind kind;
    uint64_t dst, src;            /* device addresses; the host's side and a symbol's are 0 */
    uint64_t stream;              /* 0 unless the call names one */
    uint64_t dpitch, spitch;      /* width in calls without */
    uint64_t width, height;       /* bytes, rows: neither is 0; height is 1 in calls without */
    uint64_t payload_at, payload; /* of H2D: where in the body, and how many bytes */
    uint64_t out;                 /* of D2H: bytes of the reply's payload */
    uint64_t symbol;              /* of TO_SYMBOL: its address in the client, never 0 */
    uint64_t symbol_offset;       /* where in it the copy begins */
};

#define IBX_FRAME_PAYLOAD_AT 16u /* where the payload of H2D begins, but for TO_SYMBOL */
#define IBX_FRAME_TAIL_MAX   36u /* what follows it */
/* Of calls of one row that have it there: bytes of a body that are not its payload. Otherwise 0. */
size_t ibx_frame_plain_bytes(enum ibx_frame_call call);

/* The call whose name, with its NUL, is at the beginning of `bytes`; *length is the name's. */
enum ibx_frame_call ibx_frame_name(const uint8_t *bytes, size_t n, size_t *length);

/* A body by its first and last bytes: all of it in both if it has no more than IBX_FRAME_WINDOW. */
#define IBX_FRAME_WINDOW 64u
struct ibx_frame_body {
    const uint8_t *first, *last; /* `window` bytes each */
    uint64_t length;             /* of the body */
};

/* Whether the body is, byte for byte, one that GVirtuS's front end makes for the call. Its values
 * are checked as far as that is possible without CUDA: no sum or product wraps, and rows fit into
 * their pitches. */
bool ibx_frame_parse(enum ibx_frame_call call, const struct ibx_frame_body *body,
                     struct ibx_frame *frame);

/* --------------------------------------------------------------- requests passing by */

enum ibx_request_stage { IBX_REQUEST_NAME, IBX_REQUEST_LENGTH, IBX_REQUEST_BODY };

/* Where GVirtuS is in the stream of requests that it reads, and what they tell about the thread
 * that runs them. */
struct ibx_request_watch {
    enum ibx_request_stage stage;
    size_t got;         /* bytes of this stage */
    char name[24];      /* as much as fits, with a NUL */
    uint8_t first[8];   /* of the length, or of the body */
    uint64_t length;    /* of the body */
    int device;         /* that cudaSetDevice asked for last, -1: none */
    unsigned resets;    /* requests that took a context away */
    bool names_context; /* the last of them did: this one, otherwise its device's */
    uint64_t context;
    uint64_t freed; /* the last argument of cudaFree; the reader sets it to 0 */
};

void ibx_request_watch_init(struct ibx_request_watch *watch);
void ibx_request_note_read(struct ibx_request_watch *watch, const void *bytes, size_t n);
/* Before these bytes are noted: where in them is the last character of a request's name, if it is
 * that one, or begins so; NULL: it is not. */
uint8_t *ibx_request_ends_name(const struct ibx_request_watch *watch, uint8_t *bytes, size_t n,
                               const char *name);
/* Whether the next byte is the first of a request. */
bool ibx_request_begins(const struct ibx_request_watch *watch);

#endif
