/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which sessions of a server have continued over another connection, and over which path. */
#ifndef IBX_FRONTEND_GLUE_SESSION_REPORT_H
#define IBX_FRONTEND_GLUE_SESSION_REPORT_H

#include "transport/transport.h"

#define IBX_REPORT_CHANGES  4u /* the last changes of a session that are remembered */
#define IBX_REPORT_SESSIONS 8u /* in one answer */

struct ibx_path_change {
    uint64_t when;    /* ibx_now_ns(); in an answer: milliseconds ago */
    uint32_t took_ms; /* how long the session waited, ms */
    char from[16], to[16];
};

struct ibx_session_report {
    char peer[128];                                     /* the client's present address */
    char provider[16];                                  /* of its present path */
    uint32_t resumed;                                   /* how often it has continued */
    unsigned count;                                     /* number of changes */
    struct ibx_path_change changes[IBX_REPORT_CHANGES]; /* oldest first */
};

struct ibx_sessions_report {
    /* Sessions that survive their connections; how many of them have done so. */
    uint32_t sessions, resumed;
    unsigned count; /* of told[] */
    struct ibx_session_report told[IBX_REPORT_SESSIONS];
};

/* Asks the server, over a fresh connection that cannot be used for anything else afterwards.
 * -ETIMEDOUT, -ENOTCONN, -EPROTO: no answer; the server may be of an earlier version. */
int ibx_sessions_ask(struct ibx_conn *conn, unsigned timeout_ms,
                     struct ibx_sessions_report *report);

#endif
