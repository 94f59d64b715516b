/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Replies just above the rendezvous threshold: waiting for a CTS costs them a good part of their
 * time. So the client posts a buffer of the session's own with a request; the server WRITEs such a
 * reply there without asking, and the client copies it on. At twice the threshold that copy costs
 * what the round trip does.
 */
#include "frontend-glue/session/session_internal.h"

#include "common/log.h"

#include <errno.h>
#include <string.h>

static const struct ibx_state posted_states[] = {
    [POSTED_UNKNOWN] = {"unknown", IBX_TO(POSTED_WELCOME), IBX_STATE_INITIAL},
    [POSTED_WELCOME] = {"welcome", IBX_TO(POSTED_FREE) | IBX_TO(POSTED_REFUSED), 0},
    [POSTED_REFUSED] = {"refused", 0, IBX_STATE_FINAL},
    [POSTED_FREE] = {"free", IBX_TO(POSTED_POSTED), 0},
    [POSTED_POSTED] = {"posted", IBX_TO(POSTED_WRITTEN), 0},
    [POSTED_WRITTEN] = {"written", IBX_TO(POSTED_FREE), 0}};
static const struct ibx_state_table posted_table = IBX_STATE_TABLE("posted reply", posted_states);

int ibx_posted_reply_init(struct posted_reply *posted)
{
    return ibx_state_begin(&posted->state, &posted_table, POSTED_UNKNOWN);
}

void ibx_posted_reply_fini(struct posted_reply *posted)
{
    ibx_mr_deregister(posted->mr);
    posted->mr = NULL;
}

/* ------------------------------------------------------------------ the client */

void ibx_posted_reply_prepare(struct ibx_session *s, enum segment_kind kind, uint64_t length)
{
    struct posted_reply *posted = &s->posted;
    size_t most = s->caps->rendezvous + s->caps->rendezvous / 2;
    struct ibx_error err = {0};
    if (kind == SEGMENT_INLINE && !length && posted->state.now == POSTED_UNKNOWN)
        ibx_state_move(&posted->state, POSTED_WELCOME);
    if (kind != SEGMENT_RTS_WRITE || length > most || posted->state.now != POSTED_WELCOME)
        return;
    bool made = !ibx_mr_allocate(s->conn, most, IBX_ACCESS_REMOTE_WRITE, &posted->mr, &err);
    if (!made)
        ibx_log(IBX_LOG_INFO, "all long replies wait for a CTS: %s", err.message);
    ibx_state_move(&posted->state, made ? POSTED_FREE : POSTED_REFUSED);
}

size_t ibx_posted_reply_post(struct ibx_session *s, uint8_t *bytes, size_t size)
{
    struct posted_reply *posted = &s->posted;
    struct ibx_writer w = ibx_writer_of(bytes, size);
    struct ibx_remote remote;
    if (posted->state.now != POSTED_FREE ||
        ibx_mr_remote(posted->mr, 0, ibx_mr_length(posted->mr), &remote) ||
        ibx_state_move(&posted->state, POSTED_POSTED))
        return 0;
    ibx_put_u8(&w, SEGMENT_POSTED);
    ibx_remote_put(&w, &remote);
    posted->taken = 0;
    return w.length;
}

bool ibx_posted_reply_expects(const struct ibx_session *s, uint64_t length)
{
    const struct posted_reply *posted = &s->posted;
    bool out = posted->state.now == POSTED_POSTED || posted->state.now == POSTED_WRITTEN;
    return out && !posted->taken && length <= ibx_mr_length(posted->mr);
}

int ibx_posted_reply_written(struct ibx_session *s)
{
    if (s->posted.state.now != POSTED_POSTED)
        return ibx_session_fail(s, -EPROTO, "%s wrote a reply that it was not asked for",
                                s->path.peer);
    return ibx_state_move(&s->posted.state, POSTED_WRITTEN);
}

int ibx_posted_reply_take(struct ibx_session *s, uint8_t *to, size_t n)
{
    struct posted_reply *posted = &s->posted;
    while (posted->state.now == POSTED_POSTED) {
        int rc = ibx_session_pump(s);
        if (rc)
            return rc;
    }
    memcpy(to, (const uint8_t *)ibx_mr_address(posted->mr) + posted->taken, n);
    posted->taken += n;
    s->segment.left -= n;
    return s->segment.left ? 0 : ibx_state_move(&posted->state, POSTED_FREE);
}

/* ------------------------------------------------------------------ the server */

bool ibx_posted_reply_accept(struct ibx_session *s, const struct ibx_remote *remote)
{
    if (s->posted.remote.length)
        return false;
    s->posted.remote = *remote;
    return true;
}

struct ibx_remote ibx_posted_reply_claim(struct ibx_session *s, size_t length)
{
    struct ibx_remote remote = {0};
    if (length > s->posted.remote.length)
        return remote;
    remote = s->posted.remote;
    s->posted.remote.length = 0;
    return remote;
}
