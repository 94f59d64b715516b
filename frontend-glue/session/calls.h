/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The calls of GVirtuS's front ends (G2 to G5) by their names on the wire, and what it means to
 * answer one before the back end has run it. client_calls/ decides by this table; a server's
 * session sends the replies of quick calls together.
 */
#ifndef IBX_FRONTEND_GLUE_SESSION_CALLS_H
#define IBX_FRONTEND_GLUE_SESSION_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ibx_call_kind {
    IBX_CALL_OTHER,      /* waits, and may do anything: also every name that is not known */
    IBX_CALL_SHARES,     /* likewise; other processes order their work by this one's from here on */
    IBX_CALL_RESETS,     /* likewise; what has succeeded before it may fail behind it */
    IBX_CALL_DESTROYS,   /* waits; a stream or an event is no more */
    IBX_CALL_QUERIES,    /* waits for work of the device or asks about it, and adds none */
    IBX_CALL_WAITS,      /* waits for work of the device */
    IBX_CALL_FREES,      /* waits, of cudaMalloc's memory for all work, and adds none */
    IBX_CALL_ALLOCATES,  /* waits: memory that was given back is there again */
    IBX_CALL_ASKS,       /* waits, but for nothing of the device: it makes or asks something */
    IBX_CALL_CONSTANT,   /* the same request has the same reply, until IBX_CALL_RESETS */
    IBX_CALL_LAUNCH,     /* cudaLaunchKernel */
    IBX_CALL_PUSH,       /* of a launch's configuration: grid, block, shared memory, stream */
    IBX_CALL_POP,        /* gives it back */
    IBX_CALL_REPEATS,    /* enqueues; the same request succeeds again, until IBX_CALL_DESTROYS */
    IBX_CALL_ENQUEUES,   /* enqueues; whether it succeeds nobody knows before */
    IBX_CALL_COPIES,     /* cudaMemcpyAsync: within the device, or a short one to it, enqueues */
    IBX_CALL_REGISTERS,  /* a kernel or a variable, before main() */
    IBX_CALL_LAST_ERROR, /* of the calling thread; sets it back */
    IBX_CALL_PEEK_ERROR, /* the same, but does not */
    IBX_CALL_GET_DEVICE, /* of the calling thread */
    IBX_CALL_SET_DEVICE, /* likewise */
    IBX_CALL_BEGIN_CAPTURE, /* from here on enqueued work is recorded, or refused */
    IBX_CALL_END_CAPTURE,
    IBX_CALL_LIBRARY, /* of cuBLAS and the like: enqueues; the same request succeeds again, until
                         IBX_CALL_SETS_UP, or a stream ends */
    IBX_CALL_SELECTS, /* the stream in which such calls with a handle enqueue */
    IBX_CALL_SETS_UP, /* waits, and may do anything: it makes, changes or ends what such calls use
                       */
    IBX_CALL_EXTRA,   /* a request of our own (own_requests.h): waits, and may do anything */
};

/* Where a request holds its stream: an offset in its body, or one of these. */
#define IBX_CALL_NO_STREAM   (-1) /* the order of the device's work makes no difference to it */
#define IBX_CALL_LAST_STREAM (-2) /* the body's last bytes */
#define IBX_CALL_ALL_STREAMS (-3) /* it comes after all work, or may */
#define IBX_CALL_OF_HANDLE   (-4) /* that of a library's handle, the body's first 8 bytes */
#define IBX_CALL_OF_PLAN     (-5) /* that of cuFFT's plan, the first 4 */
#define IBX_CALL_OF_LIBRARY  (-6) /* the body's last bytes, of a library's call that names one */

struct ibx_call {
    const char *name; /* "" for what is not in the table, as all that libraries have of GVirtuS */
    enum ibx_call_kind kind;
    int stream_at;
    unsigned length; /* of the body, 0: it varies */
    bool event;      /* records an event, or comes after one, also one that a graph records */
    bool blind;      /* its reply depends on the body's length, not on its bytes */
};

/* Whether a handler may do anything with the device: of a name that is not known, or of a library's
 * function, however well the client knows that one. */
static inline bool ibx_call_is_open(enum ibx_call_kind kind)
{
    return kind == IBX_CALL_OTHER || kind == IBX_CALL_LIBRARY || kind == IBX_CALL_SELECTS ||
           kind == IBX_CALL_SETS_UP;
}

/* The call whose name, with its NUL, are the n bytes; never NULL. */
const struct ibx_call *ibx_call_find(const void *name, size_t n);

/* The number (enum ibx_own_request) of an IBX_CALL_EXTRA; 0: it is none. */
unsigned ibx_call_own_request(const struct ibx_call *call, const uint8_t *body, size_t n);

/* Whether its handler returns without waiting for anything, so that its reply may wait for the next
 * one. */
bool ibx_call_is_quick(const struct ibx_call *call, const uint8_t *body, size_t n);

/* The stream of a request, and *stream; false: it concerns all, or the body does not have it. */
bool ibx_call_stream(const struct ibx_call *call, const uint8_t *body, size_t n, uint64_t *stream);

/* Errors of cudaStreamEndCapture's, behind which the capture is no more either: it was invalidated,
 * a stream has not joined again, or another thread has begun it. */
#define IBX_CALL_CAPTURE_INVALIDATED  901 /* cudaError_t */
#define IBX_CALL_CAPTURE_UNJOINED     904
#define IBX_CALL_CAPTURE_WRONG_THREAD 908

/* Whether what cudaStreamEndCapture has returned says that the capture has ended. */
static inline bool ibx_call_ends_capture(int exit_code)
{
    return !exit_code || exit_code == IBX_CALL_CAPTURE_INVALIDATED ||
           exit_code == IBX_CALL_CAPTURE_UNJOINED || exit_code == IBX_CALL_CAPTURE_WRONG_THREAD;
}

/* The length of the request at the beginning of `bytes`, if all of it is there, and its call;
 * otherwise 0. */
size_t ibx_call_request(const uint8_t *bytes, size_t n, const struct ibx_call **call);

#endif
