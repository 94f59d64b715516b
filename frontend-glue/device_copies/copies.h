/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared by the files of device_copies/ that run copies, and by its tests only. */
#ifndef IBX_FRONTEND_GLUE_DEVICE_COPIES_COPIES_H
#define IBX_FRONTEND_GLUE_DEVICE_COPIES_COPIES_H

#include "frontend-glue/device_copies/device_copies.h"
#include "frontend-glue/clients/clients.h"

/* A path that bytes can take. */
struct copy_path {
    bool holds; /* able() leaves the client's memory held, and the calls below release it */
    /* Whether the copy in hand can take this path. A better path that is refused leaves the reason
     * in x->refused. */
    bool (*able)(struct gpu_session *x);
    /* One for each stage that able() accepts: an outcome, or as ibx_session_fail(). */
    int (*to_device)(struct gpu_session *x);
    int (*to_client)(struct gpu_session *x);
    int (*to_reply)(struct gpu_session *x);
    int (*part)(struct gpu_session *x, size_t n); /* 0, or as ibx_session_fail() */
};

extern const struct copy_path *const ibx_copy_paths[PATHS];
extern const struct copy_path ibx_path_inline, ibx_path_in_place, ibx_path_copy_threads,
    ibx_path_direct, ibx_path_staged;

/* device_copies.c */

/* The context of the session's hooks, or NULL. */
struct gpu_session *ibx_copies_of(const struct ibx_session *s);
/* Calls ibx_end_hooks_set(); by itself only for sessions that have no copies attached. */
void ibx_copies_set_end_hooks(void);

/* to_device.c, from_device.c: an outcome, or as ibx_session_fail(). From the device, DONE means
 * that the request was answered as well. */

bool ibx_copies_parse(const struct ibx_request *q, struct ibx_frame *frame);
int ibx_copies_to_device(struct gpu_session *x, const struct ibx_request *q);
int ibx_copies_from_device(struct gpu_session *x, const struct ibx_request *q, uint64_t began);
/* To be called before GVirtuS's handler runs the copy. It READs the payload at once, and earlier
 * work of the stream may still have to write it: waits for that work if the GPU can reach the
 * client's memory. */
void ibx_copies_pass_in_order(struct gpu_session *x, const struct ibx_request *q);

/* answers.c: as ibx_session_fail() */

/* The copy has been made: sends the answers that were delayed, and takes its request from the
 * stream, so that its own answer can follow. */
int ibx_copies_begin_answer(struct gpu_session *x, const struct ibx_request *q);
/* Part of it, for others: ibx_kernel_output_tell() if the call has waited for the copy. */
int ibx_copies_tell_output(struct gpu_session *x, const struct ibx_request *q);
/* Writes the beginning of a reply, with `out` bytes to follow; `began`: ns, when the request
 * began. */
int ibx_copies_write_head(struct gpu_session *x, int exit_code, uint64_t began, uint64_t out);
/* Writes the reply up to its payload of n bytes, which is in the client's memory already. */
int ibx_copies_reply_early(struct gpu_session *x, uint64_t began, uint64_t n);
/* Writes a whole reply, and sends it. */
int ibx_copies_answer(struct gpu_session *x, uint64_t began, const void *out, size_t n);
/* Writes the reply up to its payload of n bytes, which is to follow. */
int ibx_copies_begin_reply(struct gpu_session *x, uint64_t began, uint64_t n);

/* choice.c */

/* Chooses which paths copies take from now on, to and from the current device, whose number is
 * `device`. */
void ibx_copies_choose(struct gpu_session *x, int device);
/* The sizes that count for copies in the direction of the copy in hand. */
const struct ibx_choice_way *ibx_copies_way(const struct gpu_session *x);
/* Notes a reason for ibx_device_copies_refused(). */
void ibx_copies_note_refusal(struct gpu_session *x, const char *why);
/* The outcome of a copy: 0 is DONE, a CUDA error or IBX_STAGING_REFUSED (positive) is PASS, and a
 * negative code is returned as it is. */
int ibx_copies_outcome(const struct gpu_session *x, int rc);
/* The GPU has failed in the middle of a reply: ends the session, as ibx_session_fail(). */
int ibx_copies_broke_off(struct gpu_session *x, int code);

/* paths.c */

/* Begins a stage of the copy in hand, whose frame is known: `bytes` are to move. */
void ibx_copies_begin(struct gpu_session *x, enum copy_stage stage, uint64_t bytes);
/* The first path of the table that can take the copy; NULL: none can. */
const struct copy_path *ibx_copies_path(struct gpu_session *x);

/* Hook: moves the next n bytes of a reply into the client's memory; as ibx_session_fail(). */
int ibx_copies_deliver(void *context, const struct ibx_remote *remote, size_t n);

/* parts_ahead.c: as ibx_session_fail() */

/* The copy in hand, which is answered LATE, is noted; the one before it is answered now. */
int ibx_copies_delay(struct gpu_session *x, const struct ibx_request *q, uint64_t began);
/* Hook: answers it, once it has ended. */
int ibx_copies_answer_late(void *context);

/* in_place.c */

/* Hook: pins memory of the client's that copies are about to name. */
int ibx_copies_prepare(void *context, const struct ibx_remote *remote);

/* staged.c */

/* The session's staging pipeline, without chunks; NULL: no memory. */
struct ibx_staging *ibx_copies_staging(struct gpu_session *x);
/* Takes chunks for a copy of `bytes`; `fabric`: registered with the connection. False: there are
 * none. */
bool ibx_copies_take_chunks(struct gpu_session *x, uint64_t bytes, bool fabric);
struct ibx_staging_wire ibx_copies_wire(struct gpu_session *x, enum copy_wire wire);
/* After a call of ibx_staging_*, with its result: gives the chunks back; an outcome. */
int ibx_copies_staged_outcome(struct gpu_session *x, int rc);
/* Writes the next n bytes of a reply into its message; as ibx_session_fail(). */
int ibx_copies_write_staged(struct gpu_session *x, size_t n);

/* direct.c */

/* Whether this connection reaches GPU memory, as far as that is known. */
bool ibx_copies_direct_likely(struct gpu_session *x);

/* check.c */

/* Whether all that the frame names is valid: device memory within one allocation, of the current
 * device unless the copy is between two, not of another tenant; and a stream that is not being
 * captured. Fills in the address of a symbol, and takes the mark IBX_EXT_ALONE away. */
bool ibx_copies_sound(struct gpu_session *x, struct ibx_frame *frame);

/* symbol.c */

/* Fills in the address of the symbol that the frame names. False: this process does not know it, or
 * the copy is beyond the symbol. */
bool ibx_copies_symbol(struct ibx_frame *frame);

/* slot_copies.c */

/* Clients name the slot of a function that they are calling by the function's number, in place of
 * device memory: bit 63, the number, 32 bits of an offset in the slot. is_named(): whether a
 * request is such a copy, in the session that asks for functions to call. ibx_slot_copy(): an
 * outcome, or as ibx_session_fail(). */
bool ibx_slot_is_named(const struct gpu_session *x, const struct ibx_request *q);
int ibx_slot_copy(struct gpu_session *x, const struct ibx_request *q);
/* The session's connection is about to end. */
void ibx_slot_regions_end(struct gpu_session *x);

#endif
