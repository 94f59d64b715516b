/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The calls of GVirtuS's front ends (G2 to G5) by their names on the wire, and what it means for
 * each to be answered before the back end has run it. call_pipeline/ decides by this table; a
 * server's session sends the replies of quick calls together.
 */
#ifndef IBX_FRONTEND_GLUE_SESSION_CALLS_H
#define IBX_FRONTEND_GLUE_SESSION_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ibx_call_kind {
    IBX_CALL_OTHER,  /* waits, and may do anything; also every unknown name */
    IBX_CALL_SHARES, /* the same; from now on other processes may order their work after this one's
                      */
    IBX_CALL_RESETS, /* the same; what succeeded before may fail after it */
    IBX_CALL_DESTROYS,   /* waits; destroys a stream or an event */
    IBX_CALL_QUERIES,    /* waits for work of the device or asks about it, and adds none */
    IBX_CALL_WAITS,      /* waits for work of the device */
    IBX_CALL_FREES,      /* waits (for all work, if the memory is cudaMalloc's), and adds none */
    IBX_CALL_ALLOCATES,  /* waits; may reuse memory that was freed */
    IBX_CALL_ASKS,       /* waits, but not for the device: it creates or queries something */
    IBX_CALL_CONSTANT,   /* the same request has the same reply, until IBX_CALL_RESETS */
    IBX_CALL_LAUNCH,     /* cudaLaunchKernel */
    IBX_CALL_PUSH,       /* pushes a launch's configuration: grid, block, shared memory, stream */
    IBX_CALL_POP,        /* pops it */
    IBX_CALL_REPEATS,    /* enqueues; the same request succeeds again, until IBX_CALL_DESTROYS */
    IBX_CALL_ENQUEUES,   /* enqueues; whether it succeeds is not known before */
    IBX_CALL_COPIES,     /* cudaMemcpyAsync: enqueues if within the device, or short and to it */
    IBX_CALL_REGISTERS,  /* a kernel or a variable, before main() */
    IBX_CALL_LAST_ERROR, /* returns the calling thread's last error and resets it */
    IBX_CALL_PEEK_ERROR, /* returns it without a reset */
    IBX_CALL_GET_DEVICE, /* of the calling thread */
    IBX_CALL_SET_DEVICE, /* for the calling thread */
    IBX_CALL_BEGIN_CAPTURE, /* from now on enqueued work is captured, or refused */
    IBX_CALL_END_CAPTURE,
    IBX_CALL_LIBRARY,   /* a function of cuBLAS and the like: enqueues; the same request succeeds
                           again, until IBX_CALL_SETS_UP, or a stream is destroyed */
    IBX_CALL_SELECTS,   /* selects the stream in which such calls with this handle enqueue */
    IBX_CALL_SETS_UP,   /* waits, and may do anything: creates, changes or destroys what such calls
                           use */
    IBX_CALL_EXTENSION, /* an extension request (extensions.h): waits, and may do anything */
};

/* Where a request holds its stream: an offset in its body, or one of these. */
#define IBX_CALL_NO_STREAM   (-1) /* the call does not depend on the order of the device's work */
#define IBX_CALL_LAST_STREAM (-2) /* the body's last bytes */
#define IBX_CALL_ALL_STREAMS (-3) /* it runs after all work, or may */
#define IBX_CALL_OF_HANDLE   (-4) /* that of a library's handle, in the body's first 8 bytes */
#define IBX_CALL_OF_PLAN     (-5) /* the stream of a cuFFT plan, the first 4 bytes */
#define IBX_CALL_OF_LIBRARY  (-6) /* the body's last bytes, if a library's function has a stream */

struct ibx_call {
    const char *name; /* "" for names that are not in the table, such as GVirtuS's library calls */
    enum ibx_call_kind kind;
    int stream_at;
    unsigned length; /* of the body, bytes; 0: it varies */
    bool event;      /* records an event or waits for one, also an event that a graph records */
    bool blind;      /* its reply depends on the length of the body, not on its bytes */
};

/* Whether the handler may do anything with the device: for unknown names, and for functions of
 * libraries even if the client knows them well. */
static inline bool ibx_call_is_open(enum ibx_call_kind kind)
{
    return kind == IBX_CALL_OTHER || kind == IBX_CALL_LIBRARY || kind == IBX_CALL_SELECTS ||
           kind == IBX_CALL_SETS_UP;
}

/* The call with this name, n bytes with its NUL; never NULL. */
const struct ibx_call *ibx_call_find(const void *name, size_t n);

/* The number (enum ibx_extension) in the body of an IBX_CALL_EXTENSION; 0: it is none. */
unsigned ibx_call_extension(const struct ibx_call *call, const uint8_t *body, size_t n);

/* Whether its handler returns without waiting for anything, so that its reply may be sent with the
 * next one. */
bool ibx_call_is_quick(const struct ibx_call *call, const uint8_t *body, size_t n);

/* The stream of a request, in *stream. False: it concerns all streams, or the body is too short. */
bool ibx_call_stream(const struct ibx_call *call, const uint8_t *body, size_t n, uint64_t *stream);

/* Errors of cudaStreamEndCapture after which the capture has ended all the same: it was
 * invalidated, a stream was not joined again, or another thread began it. */
#define IBX_CALL_CAPTURE_INVALIDATED  901 /* cudaError_t */
#define IBX_CALL_CAPTURE_UNJOINED     904
#define IBX_CALL_CAPTURE_WRONG_THREAD 908

/* Whether the capture has ended, by the result of cudaStreamEndCapture. */
static inline bool ibx_call_ends_capture(int exit_code)
{
    return !exit_code || exit_code == IBX_CALL_CAPTURE_INVALIDATED ||
           exit_code == IBX_CALL_CAPTURE_UNJOINED || exit_code == IBX_CALL_CAPTURE_WRONG_THREAD;
}

/* Whether it is a sticky error, which all later calls of the process return: cudaError_t after
 * which "the process must be terminated and relaunched", from CUDA 10.1 on. */
bool ibx_call_breaks_contexts(int exit_code);

/* The length of the request at the beginning of `bytes`, and its call; 0: it is not complete. */
size_t ibx_call_request(const uint8_t *bytes, size_t n, const struct ibx_call **call);

#endif
