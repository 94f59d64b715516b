/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Room of a tenant that a session takes for what it makes. */
#ifndef IBX_FRONTEND_GLUE_TENANTS_ROOMS_H
#define IBX_FRONTEND_GLUE_TENANTS_ROOMS_H

#include "frontend-glue/back_end_common/back_end.h"
#include "frontend-glue/tenants/tenants.h"

/* take() reserves room for n more; false: the tenant has no room. give() gives that back, when the
 * things count by themselves (ibx_handle_count_as()), or were not made. */
bool ibx_room_take(struct gpu_session *x, enum ibx_hold hold, uint64_t n);
void ibx_room_give(struct gpu_session *x, enum ibx_hold hold, uint64_t n);
/* The same for IBX_HOLD_EXECS on the GPU of the thread's context. ibx_room_gpu(): which GPU that
 * is. has(): whether there is so much room now. */
bool ibx_room_has_execs(struct gpu_session *x, uint64_t n);
bool ibx_room_take_execs(struct gpu_session *x, uint64_t n, struct ibx_room *room);
void ibx_room_end(struct ibx_room *room);
int ibx_room_gpu(struct gpu_session *x);
/* Logs, once for each tenant and limit, that the tenant gets no more of these; IBX_HOLDS: no more
 * graphs within each other. */
void ibx_room_tell(const struct gpu_session *x, enum ibx_hold hold);
/* Whether things are refused whose bytes are not counted, because rdma.device_memory limits bytes.
 * `what`: their name for the log. */
bool ibx_room_limited(const struct gpu_session *x, const char *what);
/* own(): notes a handle that GVirtuS's handlers take as the tenant's: other tenants are refused it
 * as they are memory. False: it cannot be noted. owned(): its number, to be got before it is given
 * back, for ibx_owners_remove() afterwards. */
bool ibx_room_own(struct gpu_session *x, uint64_t handle);
uint64_t ibx_room_owned(const struct gpu_session *x, uint64_t handle);

#endif
