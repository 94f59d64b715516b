/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The server runs copies itself: requests of cudaMemcpy, cudaMemcpyAsync,
 * cudaMemcpy2D and cudaMemcpyToSymbol are taken out of the stream before GVirtuS reads them, run on
 * the calling thread's current context and answered as GVirtuS's handler would.
 *
 * Whatever is in doubt is left in the stream, untouched, and GVirtuS's handler
 * runs it: a frame that is not recognised byte for byte, device memory that is
 * not one allocation of the current device, no current context yet, no free
 * chunk, and each copy that CUDA refuses, so that exit code and cudaGetLastError
 * are the runtime's own.
 *
 * Part of a session (session_internal.h), of which it is told each byte read and
 * written.
 */
#ifndef IBX_FRONTEND_GLUE_DEVICE_COPIES_COPIES_H
#define IBX_FRONTEND_GLUE_DEVICE_COPIES_COPIES_H

#include "frontend-glue/session/frames.h"
#include "frontend-glue/session/session.h"
#include "gpudirect/gpudirect.h"

struct copies {
    struct ibx_gpu_options options; /* its mode becomes OFF where there is no CUDA */

    struct ibx_request_watch requests;
    struct ibx_reply_watch replies;
    bool answering; /* what is written now is ours */

    const struct ibx_cuda *cuda;   /* NULL: not looked for yet */
    struct ibx_choice choice;      /* of the device ... */
    int chosen_for;                /* ... with this number, -1: none yet */
    struct ibx_staging *staging;   /* NULL: not made yet */
    unsigned resets;               /* of contexts of the process, that this session has heeded */
    void *losing;                  /* the context that the request in hand takes away ... */
    bool loses;                    /* ... if it takes one; NULL: nobody knows which */
    bool poor;                     /* it was said why copies are not staged */
    struct ibx_gpu_spans spans;    /* GPU memory registered with the connection */
    bool indirect;                 /* it never will be */
    bool refusal_told;             /* and it was said why, or why not some of it */
    struct ibx_client_pins pins;   /* the client's memory, as far as it is mapped here */
    bool unpinned;                 /* it was said why that is not done */
    bool placed;                   /* the GPU itself was at the client's memory */
    bool early;                    /* the copy in hand may be answered before it is done */
    bool straight;                 /* the last copy from the device went into such memory */
    struct ibx_copy_threads *crew; /* NULL: not made yet, or not wanted */
    bool alone;                    /* there will be none */
    struct ibx_mr **regions;       /* the pool's chunks as far as registered here */
    unsigned region_count;
    struct ibx_mr *windows; /* both ends of a long body, IBX_FRAME_WINDOW bytes each */
    uint8_t *held;          /* a request that came in pieces */
    size_t held_size;

    /* the copy in hand */
    struct ibx_frame frame;
    struct ibx_remote remote; /* the peer's side ... */
    uint64_t remote_at;       /* ... and where in it the payload begins */
    uint32_t arrived;         /* a bit for each READ or WRITE that is over, by cookie - 1 */
    const uint8_t *payload;   /* or it came with the request */
    struct ibx_mr *source;    /* from the device, which the fabric reads itself, or NULL ... */
    uint64_t delivered;       /* ... and bytes that it has taken */
    unsigned long ran;        /* copies so far */
    unsigned long inlined;    /* of these, between a message and the driver ... */
    unsigned long in_place;   /* ... without any copy of ours ... */
    unsigned long by_crew;    /* ... by several threads ... */
    unsigned long by_fabric;  /* ... and by the fabric alone */
    char refused[256];        /* why the last one that could not take a better way could not */
};

void ibx_copies_init(struct copies *copies, const struct ibx_gpu_options *options);
/* Where a request begins: runs and answers copies until there is something for GVirtuS to read.
 * 0, or as ibx_session_fail(). */
int ibx_copies_run(struct ibx_session *s);
/* What GVirtuS reads and writes; what ibx_copies_run() does is not told. */
void ibx_copies_note_read(struct ibx_session *s, const void *bytes, size_t n);
void ibx_copies_note_write(struct ibx_session *s, const void *bytes, size_t n);
void ibx_copies_note_sync(struct ibx_session *s);
/* WRITEs the next n bytes of the reply in hand to where the client wants them. As
 * ibx_session_fail().
 */
int ibx_copies_deliver(struct ibx_session *s, const struct ibx_remote *remote, size_t n);
/* At the session's end, before its connection is closed and after. */
void ibx_copies_release(struct ibx_session *s);
void ibx_copies_fini(struct ibx_session *s);

/* copies_reach.c */

/* Threads that copy with this one, made at the first call; NULL: there are to be none. */
struct ibx_copy_threads *ibx_copies_threads(struct copies *copies);

/* copies_choice.c */

/* Which ways copies take from now on, to and from the current device: its number. */
void ibx_copies_choose(struct ibx_session *s, int device);

/* copies_check.c */

/* Whether this thread can run copies now: CUDA is there, and the context that the runtime would use
 * is current. */
bool ibx_copies_able(struct ibx_session *s);
/* Whether all that the frame names is what it should be: device memory of one allocation, of the
 * current device unless the copy is between two, and a stream that is not being captured. Fills in
 * where a symbol is. */
bool ibx_copies_sound(const struct copies *copies, struct ibx_frame *frame);

#endif
