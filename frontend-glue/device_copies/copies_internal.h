/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Shared by copies*.c only.
 *
 *   copies.c              what passes by, and one request after the other
 *   copies_request.c      copies at the beginning of the stream
 *   copies_to_device.c    to the device ...
 *   copies_from_device.c  ... and from it
 *   ibx_copies_stage.c        pinned chunks, and the ways that bytes take into and out of them
 *   copies_reach.c        the client's memory within reach: in place, or by several threads
 *   ibx_copies_direct.c       by the fabric, straight into GPU memory and out of it
 *   copies_choice.c       which of these ways, by the size
 *   copies_check.c        what CUDA says before a copy is run
 *   ibx_copies_symbol.c       where a symbol of the program is
 */
#ifndef IBX_FRONTEND_GLUE_DEVICE_COPIES_COPIES_INTERNAL_H
#define IBX_FRONTEND_GLUE_DEVICE_COPIES_COPIES_INTERNAL_H

#include "frontend-glue/session/session_internal.h"

/* Bits of copies->arrived. */
#define COPIES_PLACES  ((1u << IBX_STAGING_DEPTH) - 1)
#define COPIES_HEAD    (1u << IBX_STAGING_DEPTH)
#define COPIES_TAIL    (COPIES_HEAD << 1)
#define COPIES_WINDOWS (COPIES_HEAD | COPIES_TAIL)

/* What became of a request, when it is no error of the session. */
enum outcome { PASS /* it is GVirtuS's */, DONE /* run, not yet answered */ };

/* A request in the stream, still there. */
struct request {
    enum ibx_frame_call call;
    const uint8_t *body;             /* NULL: exposed, or its payload is ... */
    struct ibx_remote remote;        /* ... here ... */
    struct ibx_reader after;         /* ... and the message goes on there, */
    const uint8_t *rest;             /* where a segment ... */
    size_t rest_length;              /* ... has so many bytes of the stream left, behind the tail */
    const uint8_t *head, *tail;      /* what stands in front of the payload and behind it ... */
    size_t head_length, tail_length; /* ... both 0: the whole body is exposed */
    uint64_t length;                 /* of the body */
    size_t inline_length;            /* bytes of it in the segment, with name and length */
};

/* copies_resets.c */

/* Contexts that went before are none of this session's. */
void ibx_copies_resets_begin(struct copies *x);
/* Forgets what the session had in contexts that have gone since the last call. */
void ibx_copies_handle_resets(struct copies *x);
/* A request takes a context away: before its handler runs, and when that has answered. */
void ibx_copies_lose_context(struct copies *x);
void ibx_copies_lost_context(struct copies *x, int exit_code);

/* copies.c */

/* The reply up to its payload of `out` bytes; a whole reply. As ibx_session_fail(). */
int ibx_copies_write_head(struct ibx_session *s, uint64_t began, uint64_t out);
int ibx_copies_answer(struct ibx_session *s, uint64_t began, const void *out, size_t n);

/* copies_choice.c */

/* The sizes that count for copies to the device, or from it. */
const struct ibx_choice_way *ibx_copies_way(const struct copies *x, bool to_device);
/* For ibx_session_refused_way(). */
void ibx_copies_note_refusal(struct copies *x, const char *why);

/* The reply that follows is of a copy in place. As ibx_session_fail(). */
int ibx_copies_tell_placed(struct ibx_session *s);

/* copies_request.c */

/* Finds a copy at the beginning of the stream. 1; 0 when there is none that is whole and near; as
 * ibx_session_fail(). */
int ibx_copies_find_request(struct ibx_session *s, struct request *q);
/* Takes it out of the stream. */
void ibx_copies_consume(struct ibx_session *s, const struct request *q);
/* Parses a request whose numbers are all here; false: it is none of ours, or its payload lies
 * otherwise than its numbers say. */
bool ibx_copies_parse(const struct request *q, struct ibx_frame *frame);

/* ibx_copies_stage.c */

struct ibx_gpu_copy ibx_copies_copy_of(const struct ibx_frame *frame);
/* The peer's memory at copies->remote, `remote_at` on: READs into chunks and WRITEs out of them. */
struct ibx_staging_wire ibx_copies_wire_read(struct ibx_session *s);
struct ibx_staging_wire ibx_copies_wire_write(struct ibx_session *s);
/* The payload came with the request; the reply is too short for one-sided work. */
struct ibx_staging_wire ibx_copies_wire_from_message(struct ibx_session *s);
struct ibx_staging_wire ibx_copies_wire_to_message(struct ibx_session *s);
/* Posts a READ or WRITE of copies->remote; as ibx_session_fail(). */
int ibx_copies_post(struct ibx_session *s, bool read, struct ibx_mr *mr, void *local, uint64_t at,
                    size_t n, uint64_t cookie, unsigned flags);
/* The lane, with no chunks; NULL: there is no memory for it. */
struct ibx_staging *ibx_copies_lane(struct copies *x);
/* Chunks for a copy of `bytes`, for the fabric or not; ibx_staging_end() gives them back. */
bool ibx_copies_stage(struct ibx_session *s, uint64_t bytes, bool fabric);
/* What a copy's end means: DONE, PASS, or as ibx_session_fail(). */
int ibx_copies_outcome(const struct copies *x, int rc);
/* The same after ibx_staging_*: the lane is there unless the session ended. */
int ibx_copies_stage_end(struct copies *x, int rc);

/* copies_reach.c */

enum copies_reach {
    COPIES_FAR,     /* by posts; nothing is held */
    COPIES_PINNED,  /* the GPU finds the bytes at *address */
    COPIES_BY_CREW, /* the crew copies them */
};
/* Holds bytes [at, at + n) of the client's memory, if that is worth while, until
 * ibx_remote_release(), or ibx_copies_threads_end(). With PINNED, copies->early says whether
 * copies->frame may be under way still when it is answered. */
enum copies_reach ibx_copies_hold(struct ibx_session *s, const struct ibx_remote *remote,
                                  uint64_t at, uint64_t n, unsigned access, void **address);
/* It is made anew when it is wanted again. Nothing is under way. */
void ibx_copies_threads_drop(struct copies *copies);
/* Whether a body of that length will be the crew's, as far as can be said before it is held. */
bool ibx_copies_threads_likely(struct ibx_session *s, uint64_t length);
/* By the crew: copies->remote, `remote_at` on, is held. */
struct ibx_staging_wire ibx_copies_wire_threads(struct ibx_session *s, bool read);
/* After that with its result, which it returns; a negative one as ibx_session_fail(). */
int ibx_copies_threads_end(struct ibx_session *s, int rc);

/* ibx_copies_direct.c */

/* Whether this connection reaches GPU memory, as far as that is known. */
bool ibx_copies_direct_likely(struct ibx_session *s);
/* The registration of the allocation that holds these bytes; NULL: they go another way, and it was
 * said why. */
struct ibx_mr *ibx_copies_direct(struct ibx_session *s, uint64_t device, uint64_t n);
/* copies->frame, a plain one, from copies->remote, `remote_at` on: an outcome, or as
 * ibx_session_fail(). */
int ibx_copies_direct_to_device(struct ibx_session *s, struct ibx_mr *mr);
/* The next n bytes of copies->source; as ibx_session_fail(). */
int ibx_copies_direct_deliver(struct ibx_session *s, const struct ibx_remote *remote, size_t n);

/* copies_to_device.c: an outcome, or as ibx_session_fail() */

/* copies->frame and copies->payload are set. */
int ibx_copies_run_from_message(struct ibx_session *s);
int ibx_copies_run_exposed(struct ibx_session *s, const struct request *q);

/* copies_from_device.c: DONE when it is answered, too */

int ibx_copies_run_from_device(struct ibx_session *s, const struct request *q, uint64_t began);

/* ibx_copies_symbol.c */

/* Fills in where the symbol is that the frame names: false when this process does not know, or its
 * memory is not what it should be. */
bool ibx_copies_symbol(struct ibx_frame *frame);

#endif
