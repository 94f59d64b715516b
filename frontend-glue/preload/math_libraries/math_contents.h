/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What is in descriptors of cuDNN. Programs make, set and end the same ones around each call
 * (PyTorch does, of each batch normalization and each recurrent network): every such request would
 * wait, and void what is known of other calls. So a program's descriptor is an address in it
 * (math_dnn_descriptors.c), and all in which the same was set, byte by byte, share one at the back
 * end (math_contents.c). Where nothing was set so before, the library is asked, whose status the
 * call returns: later it has taken the same already. A shared one is never changed. So what is
 * asked about it has the same answer (math_answers.c), and calls that name it are the same requests
 * again.
 *
 * What only one descriptor has is not shared: states of a dropout that a call fills, what is too
 * long, and what relies on such.
 */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_MATH_LIBRARIES_MATH_CONTENTS_H
#define IBX_FRONTEND_GLUE_PRELOAD_MATH_LIBRARIES_MATH_CONTENTS_H

#include "frontend-glue/preload/math_libraries/math_calls.h"

#include <pthread.h>
#include <sys/queue.h>

/* ------------------------------------------------------------------------- math_contents.c */

#define IBX_CONTENTS_BYTES 4096u /* of what was set: more is not shared */
/* In the body of a request, of the arguments behind the handle, the function's number and a byte.
 */
#define IBX_CONTENTS_FIRST_AT 11u

struct ibx_contents {
    struct ibx_contents *next; /* in its bucket */
    enum ibx_math_type type;
    enum {
        IBX_CONTENTS_SHARED,
        IBX_CONTENTS_OWN, /* of one descriptor, and what relies on it */
        IBX_CONTENTS_LOST /* the back end's is no more */
    } state;
    unsigned users;                   /* descriptors, calls, and contents that rely on these */
    TAILQ_ENTRY(ibx_contents) unused; /* while there are none, and it is shared */
    uint64_t remote;                  /* the back end's */
    struct ibx_contents *relies;      /* on what is named in it; NULL: on none */
    size_t n;                         /* 0: nothing was set, or it is lost and was not shared */
    uint8_t bytes[]; /* requests that have set it: u16 length, the body without what is set */
};

/* One at the back end that is in no contents yet. */
struct ibx_contents_made {
    uint64_t remote;
    unsigned losses; /* how often all had been lost before it was made */
};

static inline void *ibx_contents_pointer(uint64_t remote)
{
    return (void *)(uintptr_t)remote;
}

/* Of their lists and users, and of what descriptors have in them. */
extern pthread_mutex_t ibx_contents_lock;

/* Locked: one user more. */
void ibx_contents_use(struct ibx_contents *contents);
/* One user less. */
void ibx_contents_drop(struct ibx_contents *contents);
/* With one user more; NULL: none are shared that were set so. */
struct ibx_contents *ibx_contents_find(enum ibx_math_type type, const uint8_t *bytes, size_t n);
/* Likewise, made if there are none, or if they are not to be shared. A status. */
int ibx_contents_get(enum ibx_math_type type, const uint8_t *bytes, size_t n,
                     struct ibx_contents *relies, bool shared, struct ibx_contents **got);
/* Of one at the back end that was set so, with one user; NULL: there is no memory, and it has
 * ended. Where another thread has been faster, its. If all has been lost since it was made, it is
 * lost, too. */
struct ibx_contents *ibx_contents_add(enum ibx_math_type type, const struct ibx_contents_made *of,
                                      const uint8_t *bytes, size_t n, struct ibx_contents *relies,
                                      bool shared);
/* One at the back end: made by these requests, and ended, if it has not been lost. */
int ibx_contents_make(enum ibx_math_type type, const uint8_t *bytes, size_t n,
                      struct ibx_contents_made *of);
void ibx_contents_end(enum ibx_math_type type, const struct ibx_contents_made *of);
/* Before something is set: with a process of the server's all goes that was there, and a forked
 * child has nothing of its parent's. */
void ibx_contents_look(void);

/* ------------------------------------------------------------------ math_dnn_descriptors.c */

enum ibx_math_named {
    IBX_MATH_CALLED,       /* the call is made: *status */
    IBX_MATH_NAMED,        /* it is to be made with `own` */
    IBX_MATH_NAMED_SHARED, /* ... and names nothing that is ever changed */
};

/* Of a call of cuDNN. `own`: its values, as the back end names what is in them. */
enum ibx_math_named ibx_math_contents_name(unsigned number, const union ibx_math_value *values,
                                           union ibx_math_value *own, int *status);

/* --------------------------------------------------------------- math_calls.c, for these */

/* The body of such a request; 0: it is longer than that, or none. */
size_t ibx_frontend_math_body(unsigned number, const union ibx_math_value *values, uint8_t *bytes,
                              size_t room);
/* Sends a body of n bytes without output, with that handle at such an offset. The status. */
int ibx_frontend_math_again(const uint8_t *body, size_t n, size_t at, uint64_t handle);
/* Makes the call; `same`: it has the same answer each time. */
int ibx_frontend_math_named(unsigned number, const union ibx_math_value *values, bool same);

#endif
