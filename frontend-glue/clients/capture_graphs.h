/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared by captures.c and capture_graphs.c. */
#ifndef IBX_FRONTEND_GLUE_CLIENTS_CAPTURE_GRAPHS_H
#define IBX_FRONTEND_GLUE_CLIENTS_CAPTURE_GRAPHS_H

#include "frontend-glue/clients/clients.h"

#include <pthread.h>

#define CAPTURE_IS_ACTIVE      1 /* CUstreamCaptureStatus */
#define CAPTURE_IS_INVALIDATED 2

/* What sessions of the tenant's may have done to captures of each other. */
struct ibx_captured_work *ibx_captures_work(const struct gpu_session *x);
/* Its lock: who ends a capture has it alone. */
pthread_rwlock_t *ibx_captures_graphs_lock(const struct gpu_session *x);

/* Whether the stream waits for the legacy one, as a capture of it does. */
bool ibx_capture_would_block(struct gpu_session *x, uint64_t stream);

/* The status of a capture, and, if it is active, CUDA's number of it. False: the driver does not
 * tell, before CUDA 11.3. */
bool ibx_capture_status(struct gpu_session *x, uint64_t stream, int *status, uint64_t *id);

/* Whether the stream is still in capture `id`. Another thread may have ended that since, and begun
 * another one in that stream, or in a new stream with the same handle. An invalidated capture
 * counts as the same: it is of no use to anybody. */
bool ibx_capture_is_still(struct gpu_session *x, uint64_t stream, uint64_t id);

/* CUDA's number of a capture, its graph, and how many nodes the next one comes behind. */
struct ibx_capture_known {
    uint64_t id;
    void *graph;
    size_t behind;
};

/* False: none is active in the stream, or the driver does not tell. The older function may fail if
 * an edge to the next node would have data. */
bool ibx_capture_get(struct gpu_session *x, uint64_t stream, struct ibx_capture_known *c);

#endif
