/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Threads that help to seal and open records, because a cipher takes longer for a record than the
 * kernel takes to carry it. They belong to the process, exist as long as one of its connections
 * does, sleep while there is nothing to do, and help one connection at a time. There are none where
 * the process has fewer than four processors.
 */
#ifndef IBX_TRANSPORT_CORE_TLS_HELPERS_H
#define IBX_TRANSPORT_CORE_TLS_HELPERS_H

#include <stdbool.h>

#define IBX_TLS_HELPERS_MAX 3u

/* Each connection holds them. From any thread. The threads start with the first work. */
void ibx_tls_helpers_hold(void);
void ibx_tls_helpers_release(void);
/* Makes as many threads as there are call work(batch, 1..IBX_TLS_HELPERS_MAX), soon, until
 * ibx_tls_helpers_end(). False: there is no help now. */
bool ibx_tls_helpers_begin(void (*work)(void *batch, unsigned worker), void *batch);
/* No thread begins the work any more, and those that have begun it are done on return. */
void ibx_tls_helpers_end(void);

#endif
