/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Replies just above the crossover: a grant costs them a good part of their time. So the client
 * lends memory of the session's own with its request; the server WRITEs there without asking, and
 * the client copies on. At twice the crossover that copy costs what the round trip does.
 */
#include "frontend-glue/session/session_internal.h"

#include "common/log.h"

#include <errno.h>
#include <string.h>

/* ------------------------------------------------------------------ the client */

void ibx_posted_reply_prepare(struct ibx_session *s, enum segment_kind kind, uint64_t length)
{
    struct landing *landing = &s->landing;
    size_t most = s->caps->rendezvous + s->caps->rendezvous / 2;
    struct ibx_error err = {0};
    landing->welcome = landing->welcome || (kind == SEGMENT_INLINE && !length);
    if (kind != SEGMENT_PENDING || length > most || !landing->welcome)
        return;
    if (landing->mr || landing->refused)
        return;
    if (ibx_mr_allocate(s->conn, most, IBX_ACCESS_REMOTE_WRITE, &landing->mr, &err)) {
        landing->refused = true;
        ibx_log(IBX_LOG_INFO, "replies always wait for a grant: %s", err.message);
    }
}

size_t ibx_posted_reply_lend(struct ibx_session *s, uint8_t *bytes, size_t size)
{
    struct landing *landing = &s->landing;
    struct ibx_writer w = ibx_writer_of(bytes, size);
    struct ibx_remote remote;
    if (!landing->mr || landing->lent ||
        ibx_mr_remote(landing->mr, 0, ibx_mr_length(landing->mr), &remote))
        return 0;
    ibx_put_u8(&w, SEGMENT_LANDING);
    ibx_remote_put(&w, &remote);
    landing->lent = true;
    landing->taken = 0;
    return w.length;
}

bool ibx_posted_reply_expects(const struct ibx_session *s, uint64_t length)
{
    const struct landing *landing = &s->landing;
    return landing->lent && !landing->taken && length <= ibx_mr_length(landing->mr);
}

int ibx_posted_reply_arrived(struct ibx_session *s)
{
    if (!s->landing.lent || s->landing.arrived)
        return ibx_session_fail(s, -EPROTO, "%s wrote a reply that it was not asked for",
                                s->path.peer);
    s->landing.arrived = true;
    return 0;
}

int ibx_posted_reply_take(struct ibx_session *s, uint8_t *to, size_t n)
{
    struct landing *landing = &s->landing;
    while (!landing->arrived) {
        int rc = ibx_session_pump(s);
        if (rc)
            return rc;
    }
    memcpy(to, (const uint8_t *)ibx_mr_address(landing->mr) + landing->taken, n);
    landing->taken += n;
    s->segment.left -= n;
    if (!s->segment.left)
        landing->lent = landing->arrived = false;
    return 0;
}

/* ------------------------------------------------------------------ the server */

bool ibx_posted_reply_fits(const struct ibx_session *s, size_t length)
{
    return length <= s->landing.remote.length;
}
