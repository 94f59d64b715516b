/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which sessions are one client's, and which clients there are. */
#ifndef IBX_FRONTEND_GLUE_TENANTS_CLIENT_LIST_H
#define IBX_FRONTEND_GLUE_TENANTS_CLIENT_LIST_H

#include "frontend-glue/back_end_common/back_end.h"

#define IBX_CLIENT_NONE UINT64_MAX /* the number of no client */

/* The session begins. Blocks while a client resets the context of all, for a bounded time. */
void ibx_clients_join(struct gpu_session *x);
/* The session's client has a queue of functions for graphs (host_work.c), whose session lasts as
 * long as the client: when the client's last session ends, nobody can launch its graphs any more,
 * and they are destroyed. */
void ibx_clients_calls(struct gpu_session *x);
/* Whether there is a client of that number, with a session or not. */
bool ibx_clients_has(uint64_t number);
/* Whether there is any client, with a session or not. Without sessions: whether one may come
 * again. */
bool ibx_clients_left(void);
/* Whether any client has a session. */
bool ibx_clients_any(void);
/* Whether the processes of all clients have ended, as far as this host sees. */
bool ibx_clients_all_ended(void);
/* Whether the process of the session's client has ended, if that is on this host. */
bool ibx_clients_own_ended(const struct gpu_session *x);
/* Whether there is a client beside the session's. */
bool ibx_clients_others(struct gpu_session *x);
/* use_thread_stream(): the session uses CUDA's per-thread stream. use_thread_streams(): whether
 * another session of any client does. */
void ibx_clients_use_thread_stream(struct gpu_session *x);
bool ibx_clients_use_thread_streams(const struct gpu_session *x);
/* hide_work(): the client may have work that cannot be found, in a library's own streams.
 * find_work(): whether all of the client's work can be found, by its handles and in the session's
 * thread. */
void ibx_clients_hide_work(struct gpu_session *x);
bool ibx_clients_find_work(const struct gpu_session *x);
/* That client shares memory, events or pools with another program, or has. */
void ibx_clients_share(uint64_t number);
/* Around calls of CUDA that free what clients have left: no client resets the context meanwhile.
 * False: one does that now, and give_end() is not to follow. */
bool ibx_clients_give_begin(void);
void ibx_clients_give_end(void);
/* The number of the session's client, which no other ever has; the first call finds or makes the
 * client. 0: the session has not joined, or there is no memory. */
uint64_t ibx_clients_number(struct gpu_session *x);
/* The same, without making a client; 0: ibx_clients_number() was not called, or has failed. */
uint64_t ibx_clients_number_of(const struct gpu_session *x);
/* The session's client as a user of registered functions, up to date. */
struct ibx_functions_user *ibx_functions_user_of(struct gpu_session *x);
/* Whether client `number`, which may be gone, is another program than the session's client. False
 * also if one of the two has not said which process it is. */
bool ibx_clients_apart(const struct gpu_session *x, uint64_t number);
/* Whether this process has ever had more than one client. */
bool ibx_clients_were_several(void);
/* Whether the session's client has said which process it is; after ibx_clients_number(). */
bool ibx_clients_is_process(const struct gpu_session *x);
/* Whether the client may reset the context: no other client has a session or may come again, and
 * nothing is being given back after an end, or the context is `broken`. If so, no session begins
 * until ibx_clients_reset_over(), or until that takes too long. */
bool ibx_clients_reset(struct gpu_session *x, bool broken);
void ibx_clients_reset_over(const struct gpu_session *x);

/* The name of a client in the log. ibx_clients_name() leaves *name as it is if there is no such
 * client. */
struct ibx_client_name {
    char text[192];
};
void ibx_clients_name(uint64_t number, struct ibx_client_name *name);

#endif
