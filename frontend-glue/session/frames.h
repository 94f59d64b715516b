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

#include "common/wire.h"

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
    uint64_t dst, src;            /* device addresses; 0 for host memory and symbols */
    uint64_t stream;              /* 0 unless the call names one */
    uint64_t dpitch, spitch;      /* equal to `width` in calls without pitches */
    uint64_t width, height;       /* bytes and rows, not 0; height is 1 in calls without rows */
    uint64_t payload_at, payload; /* of H2D: the payload's offset in the body, and its bytes */
    uint64_t out;                 /* of D2H: bytes of the reply's payload */
    uint64_t symbol;              /* of TO_SYMBOL: its address in the client, never 0 */
    uint64_t symbol_offset;       /* the copy's offset in the symbol */
};

#define IBX_FRAME_PAYLOAD_AT 16u /* the offset of the payload of H2D, except in TO_SYMBOL */
#define IBX_FRAME_TAIL_MAX   36u /* the longest tail, which follows the payload */
/* For calls of one row with the payload at that offset: the bytes of a body besides the payload;
 * else 0. */
size_t ibx_frame_plain_bytes(enum ibx_frame_call call);

/* The call whose name, with its NUL, is at the beginning of `bytes`; *length is the name's. */
enum ibx_frame_call ibx_frame_name(const uint8_t *bytes, size_t n, size_t *length);

/* A body, given by its first and last bytes. A body of at most IBX_FRAME_WINDOW bytes is complete
 * in both. */
#define IBX_FRAME_WINDOW 64u
struct ibx_frame_body {
    const uint8_t *first, *last; /* `window` bytes each */
    uint64_t length;             /* of the body */
};

/* Parses the body. True only if it is exactly what GVirtuS's front end makes for the call, and the
 * values are possible as far as that can be checked without CUDA: no sum or product wraps, and rows
 * fit into their pitches. */
bool ibx_frame_parse(enum ibx_frame_call call, const struct ibx_frame_body *body,
                     struct ibx_frame *frame);

/* --------------------------------------------------------------- numbers in bodies */

/* A number of 1 to 8 bytes at offset `at` of a body of n bytes; 0: it is not all there. */
static inline uint64_t ibx_body_number(const uint8_t *body, size_t n, size_t at, unsigned bytes)
{
    if (at > n || bytes > n - at)
        return 0;
    struct ibx_reader r = ibx_reader_of(body + at, bytes);
    return ibx_get_uint(&r, bytes);
}

/* Writes such a number, if it is all there. */
static inline void ibx_body_set_number(uint8_t *body, size_t n, size_t at, unsigned bytes,
                                       uint64_t value)
{
    if (at > n || bytes > n - at)
        return;
    struct ibx_writer w = ibx_writer_of(body + at, bytes);
    ibx_put_uint(&w, value, bytes);
}

/* --------------------------------------------------------------- requests passing by */

enum ibx_request_stage { IBX_REQUEST_NAME, IBX_REQUEST_LENGTH, IBX_REQUEST_BODY };

/* How far GVirtuS has read in the stream of requests, and what they tell about the thread that runs
 * them. */
struct ibx_request_watch {
    enum ibx_request_stage stage;
    size_t got;         /* bytes of this stage so far */
    char name[64];      /* truncated, with a NUL; few names of functions are longer */
    uint8_t first[8];   /* the first bytes of the length or of the body */
    uint64_t length;    /* of the body */
    int device;         /* the last device of cudaSetDevice */
    unsigned resets;    /* number of requests that destroyed a context */
    bool names_context; /* the last of these named its context: `context`; else it was the device's
                         */
    uint64_t context;
    uint64_t freed; /* the last argument of cudaFree; reset to 0 by whoever reads it */
};

void ibx_request_watch_init(struct ibx_request_watch *watch);
void ibx_request_note_read(struct ibx_request_watch *watch, const void *bytes, size_t n);
/* To be called before these bytes are noted: the last character of a request's name in them, if the
 * name is `name` or begins so; else NULL. */
uint8_t *ibx_request_ends_name(const struct ibx_request_watch *watch, uint8_t *bytes, size_t n,
                               const char *name);
/* Whether the next byte is the first of a request. */
bool ibx_request_begins(const struct ibx_request_watch *watch);

#endif
