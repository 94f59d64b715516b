/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Threads that help to seal and open records: a cipher takes longer for them than the kernel for
 * their way. They belong to the process, are there as long as one of its connections is, sleep
 * while there is nothing to do, and help one connection at a time. There are none where the process
 * has fewer than four processors.
 */
#ifndef IBX_TRANSPORT_CORE_TLS_HELPERS_H
#define IBX_TRANSPORT_CORE_TLS_HELPERS_H

#include <stdbool.h>

#define IBX_TLS_HELPERS_MAX 3u

/* For each connection, from any thread. They start with the first work. */
void ibx_tls_helpers_hold(void);
void ibx_tls_helpers_release(void);
/* Runs work(batch, 1..IBX_TLS_HELPERS_MAX) in as many threads as there are, soon, until
 * ibx_tls_helpers_end(). False: there is no help now. */
bool ibx_tls_helpers_begin(void (*work)(void *batch, unsigned worker), void *batch);
/* Nobody begins any more, and whoever had begun is done. */
void ibx_tls_helpers_end(void);

#endif
