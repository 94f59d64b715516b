/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which sessions of a server have gone on over another connection, and by which path. */
#ifndef IBX_FRONTEND_GLUE_SESSION_REPORT_H
#define IBX_FRONTEND_GLUE_SESSION_REPORT_H

#include "transport/transport.h"

#define IBX_REPORT_CHANGES  4u /* of a session that are remembered, the last ones */
#define IBX_REPORT_SESSIONS 8u /* in one answer */

struct ibx_path_change {
    uint64_t when;    /* ibx_now_ns(); in an answer milliseconds ago */
    uint32_t took_ms; /* for which the session waited */
    char from[16], to[16];
};

struct ibx_session_report {
    char peer[128];                                     /* its client's address now */
    char provider[16];                                  /* by which it goes now */
    uint32_t resumed;                                   /* times */
    unsigned count;                                     /* of changes */
    struct ibx_path_change changes[IBX_REPORT_CHANGES]; /* the oldest first */
};

struct ibx_sessions_report {
    uint32_t sessions, resumed; /* that survive their connections; of them, that have */
    unsigned count;             /* of those that are told of */
    struct ibx_session_report told[IBX_REPORT_SESSIONS];
};

/* Asks the server, over a connection that nothing was sent on and that is of no other use after
 * that. -ETIMEDOUT, -ENOTCONN, -EPROTO: it does not say; it may be of an earlier version. */
int ibx_sessions_ask(struct ibx_conn *conn, unsigned timeout_ms,
                     struct ibx_sessions_report *report);

#endif
