/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Requests that a server makes itself, because only GVirtuS's handlers can do what they ask for:
 * unload the modules of processes that have ended. GVirtuS reads them in the thread of a client
 * whose session has ended, as that client's last requests; the replies are dropped.
 */
#ifndef IBX_FRONTEND_GLUE_CLIENTS_LAST_REQUESTS_H
#define IBX_FRONTEND_GLUE_CLIENTS_LAST_REQUESTS_H

#include <stddef.h>

struct ibx_last_requests;

/* To be called when a session has ended between two requests. NULL: no memory. */
struct ibx_last_requests *ibx_last_requests_create(void);
/* Copies the next n bytes of the requests; returns n, or 0: there are no more. */
size_t ibx_last_requests_read(struct ibx_last_requests *last, void *buffer, size_t n);
/* The handler of the last one has answered. Accepts NULL. */
void ibx_last_requests_answered(struct ibx_last_requests *last);
/* The same, or the handler has failed. Accepts NULL. */
void ibx_last_requests_destroy(struct ibx_last_requests *last);

#endif
