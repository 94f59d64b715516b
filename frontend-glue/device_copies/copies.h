/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared by the files of device_copies/ that run copies, and by its tests only. */
#ifndef IBX_FRONTEND_GLUE_DEVICE_COPIES_COPIES_H
#define IBX_FRONTEND_GLUE_DEVICE_COPIES_COPIES_H

#include "frontend-glue/device_copies/device_copies.h"
#include "frontend-glue/clients/clients.h"

/* A way that bytes take. */
struct copy_path {
    bool holds; /* able() has the client's memory held, and the calls below release it */
    /* Whether the copy in hand can go this way. A better path that is refused leaves the reason in
     * copies->refused. */
    bool (*able)(struct gpu_session *x);
    /* Each is for the stages that able() takes: an outcome, or as ibx_session_fail(). */
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
/* Sets ibx_end_hooks_set(), for a session that nothing is attached to. */
void ibx_copies_set_end_hooks(void);

/* to_device.c, from_device.c: an outcome, or as ibx_session_fail(). From the device DONE means
 * answered, too. */

bool ibx_copies_parse(const struct ibx_request *q, struct ibx_frame *frame);
int ibx_copies_to_device(struct gpu_session *x, const struct ibx_request *q);
int ibx_copies_from_device(struct gpu_session *x, const struct ibx_request *q, uint64_t began);

/* answers.c: as ibx_session_fail() */

/* The beginning of a reply, with `out` bytes behind it. */
int ibx_copies_write_head(struct gpu_session *x, int exit_code, uint64_t began, uint64_t out);
/* The reply up to its payload of n bytes, which is where the client wants it. */
int ibx_copies_reply_early(struct gpu_session *x, uint64_t began, uint64_t n);
/* A whole reply. */
int ibx_copies_answer(struct gpu_session *x, uint64_t began, const void *out, size_t n);
/* The reply up to its payload of n bytes, which follows. */
int ibx_copies_begin_reply(struct gpu_session *x, uint64_t began, uint64_t n);

/* choice.c */

/* Which paths copies take from now on, to and from the current device: its number. */
void ibx_copies_choose(struct gpu_session *x, int device);
/* The sizes that count for copies in the direction of the copy in hand. */
const struct ibx_choice_way *ibx_copies_way(const struct gpu_session *x);
/* For ibx_device_copies_refused(). */
void ibx_copies_note_refusal(struct gpu_session *x, const char *why);
/* What a copy's end means: DONE, PASS, or as ibx_session_fail(). */
int ibx_copies_outcome(const struct gpu_session *x, int rc);
/* The GPU has failed while a reply is on its way; as ibx_session_fail(). */
int ibx_copies_broke_off(struct gpu_session *x, int code);

/* paths.c */

/* Begins a stage of the copy in hand, whose frame is known: `bytes` are to move. */
void ibx_copies_begin(struct gpu_session *x, enum copy_stage stage, uint64_t bytes);
/* The first path of the table that is able; NULL: none is. */
const struct copy_path *ibx_copies_path(struct gpu_session *x);

/* Hook: the next n bytes of a reply, into the client's memory; as ibx_session_fail(). */
int ibx_copies_deliver(void *context, const struct ibx_remote *remote, size_t n);

/* late.c: as ibx_session_fail() */

/* The copy in hand, which is `late`, is answered later; that before is now. */
int ibx_copies_delay(struct gpu_session *x, const struct ibx_request *q, uint64_t began);
/* Hook: answers it, once it has ended. */
int ibx_copies_answer_late(void *context);

/* in_place.c */

/* Hook: pins memory of the client's that copies are about to name. */
int ibx_copies_prepare(void *context, const struct ibx_remote *remote);

/* staged.c */

/* The staging pipeline, with no chunks; NULL: there is no memory for it. */
struct ibx_staging *ibx_copies_staging(struct gpu_session *x);
/* Takes the chunks for a copy of `bytes`, for the fabric or not. */
bool ibx_copies_take_chunks(struct gpu_session *x, uint64_t bytes, bool fabric);
struct ibx_staging_wire ibx_copies_wire(struct gpu_session *x, enum copy_wire wire);
/* After a call of ibx_staging_*, with its result: gives the chunks back; an outcome. */
int ibx_copies_staged_outcome(struct gpu_session *x, int rc);
/* The next n bytes of a reply, into its message; as ibx_session_fail(). */
int ibx_copies_write_staged(struct gpu_session *x, size_t n);

/* direct.c */

/* Whether this connection reaches GPU memory, as far as that is known. */
bool ibx_copies_direct_likely(struct gpu_session *x);

/* check.c */

/* Whether all that the frame names is what it should be: device memory of one allocation, of the
 * current device unless the copy is between two, no other tenant's, and a stream that is not being
 * captured. Fills in where a symbol is. */
bool ibx_copies_sound(struct gpu_session *x, struct ibx_frame *frame);

/* symbol.c */

/* Fills in where the symbol is that the frame names: false when this process does not know, or its
 * memory is not what it should be. */
bool ibx_copies_symbol(struct ibx_frame *frame);

/* slot_copies.c */

/* Clients name the slot of a function that they are calling by its number, as if it were memory of
 * the device: bit 63, the number, 32 bits of a place in the slot. Whether a request is such a copy,
 * of the session that asks for functions to call. An outcome, or as ibx_session_fail(). */
bool ibx_slot_is_named(const struct gpu_session *x, const struct ibx_request *q);
int ibx_slot_copy(struct gpu_session *x, const struct ibx_request *q);
/* The session's connection is about to end. */
void ibx_slot_regions_end(struct gpu_session *x);

#endif
