/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * --raw, the client: transport.h without sessions. The server moves, as everywhere; the client
 * exposes a buffer, says what it wants and checks what came.
 *
 *   MOVE   to server  u8 1, u8 write, u64 bytes, u64 count, u64 budget ns, u32 depth, u32 warm-up,
 *                     u64 seed, ibx_remote
 *   MOVED  to client  u8 2, u32 errno, u64 moves, u64 window ns, u64 checksum of what was READ,
 *                     u32 n, n times u64 ns
 *   PING   both ways  u8 3, any bytes: sent back as they are
 */
#include "tools/ib-bw/ib-bw.h"

#include "common/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct raw_path {
    struct bw_path path;
    struct ibx_conn *conn;
    struct bw_front *front; /* reply: what is exposed; request: what should be in it */
    unsigned depth;
    bool answered;
};

static int ended(struct raw_path *p, struct ibx_error *err)
{
    const char *reason = ibx_conn_reason(p->conn);
    int rc = ibx_error_set(err, -ECONNRESET, "the connection ended: %s",
                           *reason ? reason : "the server closed it");
    return p->answered || rc == -EFBIG ? rc : ibx_error_prefix(err, rc, BW_NO_ANSWER);
}

static int next_message(struct raw_path *p, struct ibx_event *event, struct ibx_error *err)
{
    for (;;) {
        int n = ibx_poll(p->conn, event, 1);
        if (n < 0 || (n && event->type == IBX_EVENT_CLOSED))
            return ended(p, err);
        if (n && event->type == IBX_EVENT_MESSAGE) {
            p->answered = true;
            return 0;
        }
        if (!n)
            ibx_wait(p->conn, -1);
    }
}

static int send_message(struct raw_path *p, const struct iovec *iov, int count,
                        struct ibx_error *err)
{
    int rc = ibx_send(p->conn, iov, count, 0, 0);
    return rc ? ibx_error_set(err, rc, "sending failed: %s", strerror(-rc)) : 0;
}

/* ----------------------------------------------------------------- READ and WRITE */

static int ask_for_moves(struct raw_path *p, const struct bw_slice *slice,
                         const struct ibx_remote *remote, struct ibx_error *err)
{
    uint8_t bytes[64 + IBX_REMOTE_BYTES];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    ibx_put_u8(&w, BW_RAW_MOVE);
    ibx_put_u8(&w, slice->op == BW_WRITE);
    ibx_put_u64(&w, slice->bytes);
    ibx_put_u64(&w, slice->count);
    ibx_put_u64(&w, slice->budget_ns);
    ibx_put_u32(&w, p->depth);
    ibx_put_u32(&w, slice->warmup);
    ibx_put_u64(&w, slice->seed);
    ibx_remote_put(&w, remote);
    struct iovec iov = {bytes, w.length};
    return send_message(p, &iov, 1, err);
}

static int take_report(struct raw_path *p, const struct bw_slice *slice, const uint8_t *data,
                       size_t length, struct bw_results *results, struct bw_cell *cell,
                       struct ibx_error *err)
{
    struct ibx_reader r = ibx_reader_of(data, length);
    uint8_t type = ibx_get_u8(&r);
    int code = (int)ibx_get_u32(&r);
    uint64_t moves = ibx_get_u64(&r), window_ns = ibx_get_u64(&r), sum = ibx_get_u64(&r);
    uint32_t samples = ibx_get_u32(&r);
    if (r.failed || type != BW_RAW_MOVED || samples > moves ||
        ibx_reader_left(&r) != (size_t)samples * 8)
        return ibx_error_set(err, -EPROTO, "the server sent a malformed report of %zu bytes",
                             length);
    if (code == EFBIG)
        return ibx_error_set(err, -EFBIG, "the server does not take so much: see its --max-bytes");
    if (code)
        return ibx_error_set(err, -EIO, "the server could not move: %s", strerror(code));
    for (uint32_t i = 0; i < samples; i++)
        ibx_bw_cell_add(results, cell, ibx_get_u64(&r));
    ibx_bw_cell_add_window(results, cell, moves - samples, window_ns);
    bool good = slice->op == BW_READ
                    ? sum == ibx_bw_payload_sum(p->front->reply.data, slice->bytes)
                    : !memcmp(p->front->reply.data, p->front->request.data, slice->bytes);
    return good ? 0
                : ibx_error_set(err, -EBADMSG, "%zu bytes were damaged by a %s", slice->bytes,
                                ibx_bw_op_name(slice->op));
}

static int move(struct raw_path *p, const struct bw_slice *slice, struct bw_results *results,
                struct bw_cell *cell, struct ibx_error *err)
{
    struct ibx_mr *mr;
    struct ibx_remote remote;
    struct ibx_event event;
    struct ibx_span span = ibx_span_host(p->front->reply.data, slice->bytes);
    bool read = slice->op == BW_READ;
    int rc = ibx_mr_register(p->conn, &span,
                             read ? IBX_ACCESS_REMOTE_READ : IBX_ACCESS_REMOTE_WRITE, &mr, err);
    if (rc)
        return rc;
    rc = ibx_mr_remote(mr, 0, slice->bytes, &remote);
    if (!rc)
        rc = ask_for_moves(p, slice, &remote, err);
    if (!rc)
        rc = next_message(p, &event, err);
    if (!rc) {
        rc = take_report(p, slice, event.data, event.length, results, cell, err);
        ibx_message_release(p->conn, &event);
    }
    ibx_mr_deregister(mr);
    return rc;
}

static int run_moves(struct raw_path *p, const struct bw_slice *slice, struct bw_results *results,
                     struct bw_cell *cell, struct ibx_error *err)
{
    struct bw_front *front = p->front;
    if (ibx_bw_buffer_room(&front->reply, slice->bytes) ||
        ibx_bw_buffer_room(&front->request, slice->bytes))
        return ibx_error_set(err, -ENOMEM, "no memory for %zu bytes", slice->bytes);
    if (slice->op == BW_READ) {
        ibx_bw_payload_fill(front->reply.data, slice->bytes, slice->seed);
    } else {
        ibx_bw_payload_fill(front->request.data, slice->bytes, slice->seed);
        memset(front->reply.data, 0, slice->bytes);
    }
    return move(p, slice, results, cell, err);
}

/* ----------------------------------------------------------------------- messages */

static int ping(struct raw_path *p, size_t bytes, uint64_t token, uint64_t *ns,
                struct ibx_error *err)
{
    uint8_t type = BW_RAW_PING;
    uint8_t *payload = p->front->request.data;
    struct iovec iov[2] = {{&type, 1}, {payload, bytes}};
    struct ibx_event event;
    ibx_bw_payload_mark(payload, bytes, token);
    uint64_t start = ibx_now_ns();
    int rc = send_message(p, iov, 2, err);
    if (!rc)
        rc = next_message(p, &event, err);
    if (rc)
        return rc;
    *ns = (ibx_now_ns() - start) / 2;
    const uint8_t *data = event.data;
    bool good =
        event.length == bytes + 1 && data[0] == BW_RAW_PING && !memcmp(data + 1, payload, bytes);
    ibx_message_release(p->conn, &event);
    return good ? 0
                : ibx_error_set(err, -EBADMSG, "a message of %zu bytes came back damaged", bytes);
}

static int run_pings(struct raw_path *p, const struct bw_slice *slice, struct bw_results *results,
                     struct bw_cell *cell, struct ibx_error *err)
{
    if (slice->bytes >= ibx_conn_caps(p->conn)->message_max)
        return 0; /* no message is so long */
    if (ibx_bw_buffer_room(&p->front->request, slice->bytes))
        return ibx_error_set(err, -ENOMEM, "no memory for %zu bytes", slice->bytes);
    ibx_bw_payload_fill(p->front->request.data, slice->bytes, slice->seed);
    uint64_t ns, end = 0;
    for (uint64_t done = 0; !atomic_load(&ibx_bw_stop); done++) {
        bool counts = done >= slice->warmup;
        uint64_t now = ibx_now_ns();
        if (done == slice->warmup)
            end = now + slice->budget_ns;
        if (slice->count ? done == slice->count + slice->warmup
                         : done > slice->warmup && now >= end)
            break;
        int rc = ping(p, slice->bytes, slice->seed + done, &ns, err);
        if (rc)
            return rc;
        if (counts && !ibx_bw_cell_add(results, cell, ns))
            break;
    }
    return 0;
}

/* ------------------------------------------------------------------------ the path */

static int run_slice(struct bw_path *path, const struct bw_slice *slice, struct bw_results *results,
                     struct bw_cell *cell, struct ibx_error *err)
{
    struct raw_path *p = (struct raw_path *)path;
    return slice->op == BW_PING ? run_pings(p, slice, results, cell, err)
                                : run_moves(p, slice, results, cell, err);
}

static void destroy(struct bw_path *path)
{
    struct raw_path *p = (struct raw_path *)path;
    ibx_close(p->conn);
    free(p);
}

int ibx_bw_raw_connect(const char *uri, const struct bw_args *args,
                       const struct ibx_options *options, struct bw_front *front,
                       struct bw_path **path, char provider[16], struct ibx_error *err)
{
    struct raw_path *p = calloc(1, sizeof(*p));
    if (!p)
        return ibx_error_set(err, -ENOMEM, "no memory for a path");
    int rc = ibx_connect(uri, options, &p->conn, err);
    if (rc) {
        free(p);
        return rc;
    }
    p->path.run = run_slice;
    p->path.destroy = destroy;
    p->front = front;
    p->depth = args->depth;
    memcpy(provider, ibx_conn_path(p->conn)->provider, 16);
    *path = &p->path;
    return 0;
}
