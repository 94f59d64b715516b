/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The contents of cuDNN descriptors. Programs such as PyTorch make, set and destroy the same
 * descriptors around each call, for each batch normalization or recurrent network. As requests each
 * of these would wait, and would invalidate answers that are kept of other calls. So a descriptor
 * of the program is an address in the program (math_dnn_descriptors.c), and all descriptors in
 * which the same was set, byte by byte, share one descriptor at the back end (math_contents.c).
 * When something is set for the first time, the library is asked, and the call returns its status.
 * Later, the same setting is known to be accepted. A shared descriptor is never changed. So queries
 * of it have the same answer each time (math_answers.c), and calls that name it are the same
 * requests again.
 *
 * Some contents belong to one descriptor alone: states of a dropout, which a call fills; contents
 * that are too long; and contents that refer to such ones.
 */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_MATH_LIBRARIES_MATH_CONTENTS_H
#define IBX_FRONTEND_GLUE_PRELOAD_MATH_LIBRARIES_MATH_CONTENTS_H

#include "frontend-glue/preload/math_libraries/math_calls.h"

#include <pthread.h>
#include <sys/queue.h>

/* ------------------------------------------------------------------------- math_contents.c */

#define IBX_CONTENTS_BYTES 4096u /* of settings; longer ones are not shared */
/* The offset, in the body of a request, of the arguments after the handle, the function's number
 * and one byte. */
#define IBX_CONTENTS_FIRST_AT 11u

struct ibx_contents {
    struct ibx_contents *next; /* in its hash bucket */
    enum ibx_math_type type;
    enum {
        IBX_CONTENTS_SHARED,
        IBX_CONTENTS_OWN, /* of one descriptor, and of contents that refer to it */
        IBX_CONTENTS_LOST /* the descriptor at the back end was lost */
    } state;
    unsigned users; /* number of descriptors, running calls and other contents that use these */
    TAILQ_ENTRY(ibx_contents) unused; /* the list of shared contents without users */
    uint64_t remote;                  /* the descriptor at the back end */
    struct ibx_contents *relies; /* the contents of a descriptor that these refer to; NULL: none */
    size_t n;                    /* bytes; 0: nothing was set, or it was not shared and is lost */
    uint8_t bytes[]; /* the requests that set it, each: u16 length, body; the handle in it is 0 */
};

/* A descriptor at the back end for which there are no contents yet. */
struct ibx_contents_made {
    uint64_t remote;
    unsigned losses; /* the number of losses when it was made */
};

static inline void *ibx_contents_pointer(uint64_t remote)
{
    return (void *)(uintptr_t)remote;
}

/* Protects the lists and users of contents, and the contents of descriptors. */
extern pthread_mutex_t ibx_contents_lock;

/* Called under the lock. Adds a user. */
void ibx_contents_use(struct ibx_contents *contents);
/* Removes a user; NULL is ignored. */
void ibx_contents_drop(struct ibx_contents *contents);
/* Finds shared contents with these bytes, and adds a user; NULL: there are none. */
struct ibx_contents *ibx_contents_find(enum ibx_math_type type, const uint8_t *bytes, size_t n);
/* The same, but makes them if there are none, or if they are not to be shared. Returns a status. */
int ibx_contents_get(enum ibx_math_type type, const uint8_t *bytes, size_t n,
                     struct ibx_contents *relies, bool shared, struct ibx_contents **got);
/* Makes contents, with one user, for a descriptor at the back end in which `bytes` were set. If
 * another thread was faster, returns its contents. NULL: there is no memory, and the descriptor was
 * destroyed. If the back end's descriptors were lost since `of` was made, the contents are in the
 * state LOST. */
struct ibx_contents *ibx_contents_add(enum ibx_math_type type, const struct ibx_contents_made *of,
                                      const uint8_t *bytes, size_t n, struct ibx_contents *relies,
                                      bool shared);
/* Makes a descriptor at the back end and sends these requests for it; and destroys it, unless it
 * was lost. */
int ibx_contents_make(enum ibx_math_type type, const uint8_t *bytes, size_t n,
                      struct ibx_contents_made *of);
void ibx_contents_end(enum ibx_math_type type, const struct ibx_contents_made *of);
/* To be called before something is set: notices that the process of the server has ended, and that
 * this process is a forked child. In both cases all descriptors at the back end are lost. */
void ibx_contents_look(void);

/* ------------------------------------------------------------------ math_dnn_descriptors.c */

enum ibx_math_named {
    IBX_MATH_CALLED,       /* the call was handled here: *status */
    IBX_MATH_NAMED,        /* the call has to be made with the values `own` */
    IBX_MATH_NAMED_SHARED, /* the same, and all descriptors that it names are shared */
};

/* For a call of cuDNN. `own`: the values, with the back end's descriptors instead of the program's.
 */
enum ibx_math_named ibx_math_contents_name(unsigned number, const union ibx_math_value *values,
                                           union ibx_math_value *own, int *status);

/* --------------------------------------------------------------- math_calls.c, for these */

/* Encodes the body of a request. Returns its length; 0: it does not fit, or cannot be encoded. */
size_t ibx_frontend_math_body(unsigned number, const union ibx_math_value *values, uint8_t *bytes,
                              size_t room);
/* Sends a request without output once more: n bytes of `body`, with `handle` at offset `at`.
 * Returns the status. */
int ibx_frontend_math_again(const uint8_t *body, size_t n, size_t at, uint64_t handle);
/* Makes the call. `same`: the same request has the same answer each time. */
int ibx_frontend_math_named(unsigned number, const union ibx_math_value *values, bool same);

#endif
