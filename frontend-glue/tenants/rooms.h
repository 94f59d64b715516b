/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a session takes of its tenant's for what it makes. */
#ifndef IBX_FRONTEND_GLUE_TENANTS_ROOMS_H
#define IBX_FRONTEND_GLUE_TENANTS_ROOMS_H

#include "frontend-glue/back_end/back_end.h"
#include "frontend-glue/tenants/tenants.h"

/* Reserves room for n more of the tenant's, and gives it back: when it counts otherwise. */
bool ibx_room_take(struct gpu_session *x, enum ibx_hold hold, uint64_t n);
void ibx_room_give(struct gpu_session *x, enum ibx_hold hold, uint64_t n);
/* The same of IBX_HOLD_EXECS, of the GPU whose context the thread has: which that is. */
bool ibx_room_take_execs(struct gpu_session *x, uint64_t n, struct ibx_room *room);
void ibx_room_end(struct ibx_room *room);
int ibx_room_gpu(struct gpu_session *x);
#define IBX_GRAPHS_DEEP 128u /* one within the other */
/* The log says once that the tenant gets no more of it; IBX_HOLDS: of graphs within each other. */
void ibx_room_tell(const struct gpu_session *x, enum ibx_hold hold);
/* Whether there is no `what`, whose bytes nobody counts: rdma.device_memory asks for that. */
bool ibx_room_limited(const struct gpu_session *x, const char *what);
/* Handles that GVirtuS's handlers take: other tenants' are refused as their memory is. False: it
 * cannot be noted whose it is. Before it is given back: for ibx_owners_remove() behind that. */
bool ibx_room_own(struct gpu_session *x, uint64_t handle);
uint64_t ibx_room_owned(const struct gpu_session *x, uint64_t handle);

#endif
