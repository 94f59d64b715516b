/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Requests that a server makes itself, of which GVirtuS's handlers alone know how to do what they
 * ask for: modules of processes that have ended are unloaded. GVirtuS reads them in the thread of a
 * client whose session has ended, as that client's last ones; nobody gets the replies.
 */
#ifndef IBX_FRONTEND_GLUE_CLIENTS_LAST_REQUESTS_H
#define IBX_FRONTEND_GLUE_CLIENTS_LAST_REQUESTS_H

#include <stddef.h>

struct ibx_last_requests;

/* Behind the end of a session between two requests. NULL: no memory. */
struct ibx_last_requests *ibx_last_requests_create(void);
/* The next n bytes: n; 0: there are no more requests. */
size_t ibx_last_requests_read(struct ibx_last_requests *last, void *buffer, size_t n);
/* The handler of the last one has answered. Accepts NULL. */
void ibx_last_requests_answered(struct ibx_last_requests *last);
/* Likewise, or it has failed. Accepts NULL. */
void ibx_last_requests_destroy(struct ibx_last_requests *last);

#endif
