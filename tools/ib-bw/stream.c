/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A byte stream over a session of ibx, as the plugin makes it of GVirtuS's calls. */
#include "tools/ib-bw/ib-bw.h"

#include "frontend-glue/session/session.h"

#include <errno.h>
#include <stdlib.h>

static ssize_t session_read(struct bw_stream *stream, void *buffer, size_t n)
{
    return ibx_session_read(stream->session, buffer, n);
}

static ssize_t session_write(struct bw_stream *stream, const void *buffer, size_t n)
{
    return ibx_session_write(stream->session, buffer, n);
}

static int session_sync(struct bw_stream *stream)
{
    return ibx_session_sync(stream->session);
}

static void session_destroy(struct bw_stream *stream)
{
    ibx_session_destroy(stream->session);
    free(stream);
}

int ibx_bw_stream_of_session(struct ibx_session *session, struct bw_stream **out,
                             struct ibx_error *err)
{
    static const struct bw_stream_ops ops = {.read = session_read,
                                             .write = session_write,
                                             .sync = session_sync,
                                             .destroy = session_destroy};
    struct bw_stream *stream = malloc(sizeof(*stream));
    if (!stream) {
        ibx_session_destroy(session);
        return ibx_error_set(err, -ENOMEM, "no memory for a connection");
    }
    *stream = (struct bw_stream){&ops, session};
    *out = stream;
    return 0;
}

/* `begin`: ibx_session_connect() or ibx_session_serve(). */
static int open_session(const char *uri, const struct ibx_options *options,
                        int (*begin)(struct ibx_session *, struct ibx_error *),
                        struct ibx_session **out, struct ibx_error *err)
{
    struct ibx_session *session;
    int rc = ibx_session_create(uri, options, &session, err);
    if (rc)
        return rc;
    rc = begin(session, err);
    if (rc)
        ibx_session_destroy(session);
    else
        *out = session;
    return rc;
}

int ibx_bw_session_connect(const char *uri, const struct ibx_options *options,
                           struct bw_stream **stream, struct ibx_error *err)
{
    struct ibx_session *session;
    int rc = open_session(uri, options, ibx_session_connect, &session, err);
    return rc ? rc : ibx_bw_stream_of_session(session, stream, err);
}

int ibx_bw_session_listen(const char *uri, const struct ibx_options *options,
                          struct ibx_session **session, struct ibx_error *err)
{
    return open_session(uri, options, ibx_session_serve, session, err);
}
