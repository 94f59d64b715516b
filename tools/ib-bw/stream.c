/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A stream over a session of ours, as the plugin makes it of GVirtuS's calls. */
#include "tools/ib-bw/ib-bw.h"

#include "frontend-glue/session/session.h"

#include <errno.h>
#include <stdlib.h>

struct session_stream {
    struct bw_stream stream;
    struct ibx_session *session;
};

static struct ibx_session *session_of(struct bw_stream *stream)
{
    return ((struct session_stream *)stream)->session;
}

static ssize_t session_read(struct bw_stream *stream, void *buffer, size_t n)
{
    return ibx_session_read(session_of(stream), buffer, n);
}

static ssize_t session_write(struct bw_stream *stream, const void *buffer, size_t n)
{
    return ibx_session_write(session_of(stream), buffer, n);
}

static int session_sync(struct bw_stream *stream)
{
    return ibx_session_sync(session_of(stream));
}

static const char *session_reason(struct bw_stream *stream)
{
    return ibx_session_reason(session_of(stream));
}

static const char *session_peer(struct bw_stream *stream)
{
    const struct ibx_path *path = ibx_session_path(session_of(stream));
    return path ? path->peer : "a client";
}

static void session_destroy(struct bw_stream *stream)
{
    ibx_session_destroy(session_of(stream));
    free(stream);
}

static const struct bw_stream_ops session_ops = {
    .read = session_read,
    .write = session_write,
    .sync = session_sync,
    .reason = session_reason,
    .peer = session_peer,
    .destroy = session_destroy,
};

int ibx_bw_stream_of_session(struct ibx_session *session, struct bw_stream **stream,
                             struct ibx_error *err)
{
    struct session_stream *s = calloc(1, sizeof(*s));
    if (!s) {
        ibx_session_destroy(session);
        return ibx_error_set(err, -ENOMEM, "no memory for a connection");
    }
    s->stream.ops = &session_ops;
    s->session = session;
    *stream = &s->stream;
    return 0;
}

int ibx_bw_session_connect(const char *uri, const struct ibx_options *options,
                           struct ibx_session **out, struct bw_stream **stream,
                           struct ibx_error *err)
{
    struct ibx_session *session;
    int rc = ibx_session_create(uri, options, &session, err);
    if (rc)
        return rc;
    rc = ibx_session_connect(session, err);
    if (rc) {
        ibx_session_destroy(session);
        return rc;
    }
    *out = session;
    return ibx_bw_stream_of_session(session, stream, err);
}

int ibx_bw_session_listen(const char *uri, const struct ibx_options *options,
                          struct ibx_session **out, struct ibx_error *err)
{
    struct ibx_session *session;
    int rc = ibx_session_create(uri, options, &session, err);
    if (rc)
        return rc;
    rc = ibx_session_serve(session, err);
    if (rc)
        ibx_session_destroy(session);
    else
        *out = session;
    return rc;
}
