/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which sessions are one client's, and which clients there are. */
#ifndef IBX_FRONTEND_GLUE_TENANTS_CLIENT_LIST_H
#define IBX_FRONTEND_GLUE_TENANTS_CLIENT_LIST_H

#include "frontend-glue/back_end/back_end.h"

#define IBX_CLIENT_NONE UINT64_MAX /* the number of no client */

/* The session begins, which stays while a client resets the context of all, for a bounded time. */
void ibx_clients_join(struct gpu_session *x);
/* It has a queue of functions for graphs (host_work.c), by a session that lasts as long as it: when
 * its last one ends nobody can launch its graphs any more, and they are given back. */
void ibx_clients_calls(struct gpu_session *x);
/* Whether there is such a client, or its process may come again. */
bool ibx_clients_has(uint64_t number);
/* Whether there is a client that has no session, and may come again. */
bool ibx_clients_left(void);
/* Whether any client has a session. */
bool ibx_clients_any(void);
/* Whether there is a client beside the session's. */
bool ibx_clients_others(struct gpu_session *x);
/* The session uses the stream that CUDA has for its thread. Whether another session of any client
 * does. */
void ibx_clients_use_thread_stream(struct gpu_session *x);
bool ibx_clients_use_thread_streams(const struct gpu_session *x);
/* The client may have work where it is not found: in a library's own streams. Whether all of its
 * work is found by its handles, in the session's thread. */
void ibx_clients_hide_work(struct gpu_session *x);
bool ibx_clients_find_work(const struct gpu_session *x);
/* Around calls of CUDA that give back what clients have left: no client resets the context
 * meanwhile. False: one does that now. */
bool ibx_clients_give_begin(void);
void ibx_clients_give_end(void);
/* A number of the session's client, which no other ever has; 0: there is none, or no memory. */
uint64_t ibx_clients_number(struct gpu_session *x);
/* Likewise, once that was called; 0: it was not. */
uint64_t ibx_clients_number_of(const struct gpu_session *x);
/* The session as one who uses functions. */
struct ibx_functions_user *ibx_functions_user_of(struct gpu_session *x);
/* Whether a client that has said which process it is, and may be no more, is another program than
 * the session's, as far as that has said so, too. */
bool ibx_clients_apart(const struct gpu_session *x, uint64_t number);
/* Whether this process has ever had more than one. */
bool ibx_clients_were_several(void);
/* Whether it is known of which process it is, once ibx_clients_number() was called. */
bool ibx_clients_is_process(const struct gpu_session *x);
/* Whether the client may reset the context: no other has a session, or something that is still
 * being given back behind its last one, or the context is `broken`. If so no session begins until
 * the reset is over, or has taken too long. */
bool ibx_clients_reset(struct gpu_session *x, bool broken);
void ibx_clients_reset_over(const struct gpu_session *x);

/* What a line of the log calls it: "a client" if it is not known. */
struct ibx_client_name {
    char text[192];
};
void ibx_clients_name(uint64_t number, struct ibx_client_name *name);

#endif
