/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The functions that streams and graphs have not called yet: a list, oldest first, under the lock
 * of host_functions.c. */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_STREAMS_OUTSTANDING_H
#define IBX_FRONTEND_GLUE_PRELOAD_STREAMS_OUTSTANDING_H

#include "frontend-glue/preload/streams/streams.h"

struct ibx_in_stream {
    void *handle;
    bool blocking; /* the stream and the legacy stream wait for each other */
    int device;
};

struct ibx_outstanding {
    struct ibx_outstanding *next;
    uint64_t number;
    uint64_t order;   /* the order in which they were enqueued; 0: not enqueued yet */
    uint64_t launch;  /* the launch of the graph that calls it; 0: not called by a graph */
    unsigned vain_ms; /* somebody has waited for it for so long in vain */
    bool abandoned;   /* the device was reset: nobody waits for it, though it may be called */
    struct ibx_in_stream in;
    struct ibx_launch_copy copy; /* if it copies for a graph */
    void *argument;
    void (*function)(void *argument);
    void (*callback)(void *stream, int status, void *argument); /* NULL: `function` is called */
};

/* Whether work in the one stream comes after what was in the other before. */
bool ibx_streams_ordered(const struct ibx_in_stream *one, const struct ibx_in_stream *other);
/* The first one that somebody waits for, and that work in the stream comes after; NULL: none. */
struct ibx_outstanding *ibx_outstanding_before(struct ibx_outstanding *list,
                                               const struct ibx_in_stream *in);
/* The first one up to that order that is in a blocking stream; NULL: none. */
struct ibx_outstanding *ibx_outstanding_up_to(struct ibx_outstanding *list, uint64_t order);

/* Whether a launch waits until its copy is made, or its bytes are taken. */
static inline bool ibx_outstanding_is_awaited(const struct ibx_outstanding *f)
{
    return f->copy.use == IBX_COPY_UNTAKEN || f->copy.use == IBX_COPY_AWAITED;
}

void ibx_outstanding_append(struct ibx_outstanding **list, struct ibx_outstanding *f);
/* Removes the oldest one with this number; NULL: there is none. */
struct ibx_outstanding *ibx_outstanding_take(struct ibx_outstanding **list, uint64_t number);
/* For a function of a graph that is not outstanding, because the graph was changed after its
 * launch: it replaces an outstanding one, since a back end may call no more functions than the
 * launched graphs have. Removes that; NULL: there is none. */
struct ibx_outstanding *ibx_outstanding_replace(struct ibx_outstanding **list, uint64_t number);
/* After a call that has enqueued a function of this number: it has the order that follows *order.
 * False: it is in the list no more. */
bool ibx_outstanding_order(struct ibx_outstanding *list, uint64_t number, uint64_t *order);
/* After a launch: its functions are enqueued, in the order that follows *order or, if it has failed
 * (NULL), removed. Returns how many were removed. */
unsigned ibx_outstanding_settle(struct ibx_outstanding **list, uint64_t launch, uint64_t *order);
/* After a reset of the device: nobody waits for those that are enqueued there. Returns how many
 * these are. */
unsigned ibx_outstanding_abandon(struct ibx_outstanding *list, int device);
/* Frees it with the bytes that it has. Ignores NULL. */
void ibx_outstanding_free(struct ibx_outstanding *f);

#endif
