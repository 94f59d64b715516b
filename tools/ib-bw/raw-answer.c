/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* --raw, the server: READs and WRITEs a client's memory as asked, and sends messages back. The
 * bytes are in ib-bw-raw.c. */
#include "tools/ib-bw/ib-bw.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES_MAX   1024u
#define BUDGET_NS_MAX (3600ull * 1000000000ull)
#define IN_FLIGHT_MAX ((size_t)64 << 20) /* bytes; two pieces may always be */

struct raw_server {
    struct ibx_conn *conn;
    size_t max_bytes;
    struct bw_buffer local;
    uint8_t *report;
    size_t report_room;
    /* The moves in hand. */
    bool write;
    uint64_t bytes, count, budget_ns, seed;
    uint32_t depth, warmup;
    struct ibx_remote remote;
    struct ibx_mr *mr;
    uint64_t started[BW_DEPTH_MAX]; /* when the move with this cookie was posted */
    uint64_t samples[SAMPLES_MAX];
    uint32_t sample_count;
    uint64_t stride; /* every so many moves there is a sample */
};

static int complain(struct raw_server *s, const char *what)
{
    ibx_log(IBX_LOG_WARN, "%s sent %s: connection closed", ibx_conn_path(s->conn)->peer, what);
    return -EPROTO;
}

/* When there are too many samples, every other one is dropped and half as many are taken. */
static void sample(struct raw_server *s, uint64_t nth, uint64_t ns)
{
    if (nth % s->stride)
        return;
    if (s->sample_count == SAMPLES_MAX) {
        for (uint32_t i = 0; i < SAMPLES_MAX / 2; i++)
            s->samples[i] = s->samples[2 * i];
        s->sample_count = SAMPLES_MAX / 2;
        s->stride *= 2;
        if (nth % s->stride)
            return;
    }
    s->samples[s->sample_count++] = ns;
}

static int post(struct raw_server *s, uint64_t cookie)
{
    s->started[cookie] = ibx_now_ns();
    return s->write ? ibx_write(s->conn, s->mr, s->local.data, &s->remote, 0, s->bytes, cookie, 0)
                    : ibx_read(s->conn, s->mr, s->local.data, &s->remote, 0, s->bytes, cookie, 0);
}

/* Takes one event of a move. 1: a move is over; 0: nothing yet. */
static int next_done(struct raw_server *s, uint64_t *cookie)
{
    struct ibx_event event;
    int n = ibx_poll(s->conn, &event, 1);
    if (n < 0)
        return -ENOTCONN;
    if (!n) {
        ibx_wait(s->conn, -1);
        return 0;
    }
    switch (event.type) {
    case IBX_EVENT_READ:
    case IBX_EVENT_WRITE:
        *cookie = event.cookie;
        return event.status ? event.status : 1;
    case IBX_EVENT_MESSAGE:
        ibx_message_release(s->conn, &event);
        return complain(s, "a message before the last was answered");
    case IBX_EVENT_CLOSED:
        return -ENOTCONN;
    case IBX_EVENT_SEND:
        break;
    }
    return 0;
}

/* Keeps `depth` moves in flight until `count` are over (0: until the time is). An error leaves some
 * in flight: only the end of the connection may follow. */
static int keep_moving(struct raw_server *s, uint64_t count, uint64_t end_ns, uint64_t *moves)
{
    uint64_t posted = 0, done = 0;
    int rc = 0;
    while (!rc && posted < s->depth && (!count || posted < count))
        rc = post(s, posted++);
    while (!rc && done < posted) {
        uint64_t cookie = 0;
        rc = next_done(s, &cookie);
        if (rc <= 0)
            continue;
        uint64_t now = ibx_now_ns();
        sample(s, done++, now - s->started[cookie]);
        bool more = count ? posted < count : now < end_ns && posted < BW_CALLS_MAX;
        rc = more ? post(s, cookie) : 0;
        posted += more;
    }
    *moves = done;
    return rc;
}

static int report(struct raw_server *s, int code, uint64_t moves, uint64_t window_ns)
{
    struct ibx_writer w = ibx_writer_of(s->report, s->report_room);
    uint32_t fitting = (uint32_t)((s->report_room - BW_RAW_MOVED_HEAD) / 8);
    uint32_t n = s->sample_count < fitting ? s->sample_count : fitting;
    ibx_put_u8(&w, BW_RAW_MOVED);
    ibx_put_u32(&w, (uint32_t)code);
    ibx_put_u64(&w, moves);
    ibx_put_u64(&w, window_ns);
    ibx_put_u64(&w, code || s->write ? 0 : ibx_bw_payload_sum(s->local.data, s->bytes));
    ibx_put_u32(&w, n);
    for (uint32_t i = 0; i < n; i++) /* evenly spread over those there are */
        ibx_put_u64(&w, s->samples[(uint64_t)i * s->sample_count / n]);
    struct iovec iov = {s->report, w.length};
    return ibx_send(s->conn, &iov, 1, 0, 0);
}

static int timed_moves(struct raw_server *s)
{
    uint64_t moves, start = 0;
    s->stride = 1;
    s->sample_count = 0;
    int rc = s->warmup ? keep_moving(s, s->warmup, 0, &moves) : 0;
    s->stride = 1;
    s->sample_count = 0;
    if (!rc) {
        start = ibx_now_ns();
        rc = keep_moving(s, s->count, start + s->budget_ns, &moves);
    }
    return rc ? rc : report(s, 0, moves, ibx_now_ns() - start);
}

static int move(struct raw_server *s)
{
    s->sample_count = 0;
    if (s->bytes > s->max_bytes || ibx_bw_buffer_room(&s->local, s->bytes))
        return report(s, EFBIG, 0, 0);
    if (s->write)
        ibx_bw_payload_fill(s->local.data, s->bytes, s->seed);
    struct ibx_error err = {0};
    struct ibx_span span = ibx_span_host(s->local.data, s->bytes);
    int rc = ibx_mr_register(s->conn, &span, IBX_ACCESS_LOCAL, &s->mr, &err);
    if (rc) {
        ibx_log(IBX_LOG_WARN, "%s", err.message);
        return report(s, -rc, 0, 0);
    }
    rc = timed_moves(s);
    if (!rc)
        ibx_mr_deregister(s->mr); /* otherwise the close does it, when nothing is in flight */
    return rc;
}

static int take_move(struct raw_server *s, struct ibx_reader *r)
{
    uint8_t write = ibx_get_u8(r);
    s->write = write;
    s->bytes = ibx_get_u64(r);
    s->count = ibx_get_u64(r);
    s->budget_ns = ibx_get_u64(r);
    s->depth = ibx_get_u32(r);
    s->warmup = ibx_get_u32(r);
    s->seed = ibx_get_u64(r);
    ibx_remote_get(r, &s->remote);
    if (r->failed || ibx_reader_left(r) || write > 1 || !s->bytes || s->count > BW_CALLS_MAX ||
        s->budget_ns > BUDGET_NS_MAX || !s->depth || s->depth > BW_DEPTH_MAX ||
        s->warmup > BW_WARMUP_MAX || s->remote.length != s->bytes)
        return complain(s, "a malformed request to move");
    uint64_t fitting = IN_FLIGHT_MAX / s->bytes;
    if (s->depth > 2 && s->depth > fitting)
        s->depth = fitting < 2 ? 2 : (uint32_t)fitting;
    return 0;
}

/* The echo needs credit, which is always there for one who waits for his messages to come back. */
static int take_message(struct raw_server *s, struct ibx_event *event)
{
    struct ibx_reader r = ibx_reader_of(event->data, event->length);
    uint8_t type = ibx_get_u8(&r);
    int rc = 0;
    if (type == BW_RAW_PING) {
        struct iovec iov = {(void *)(uintptr_t)event->data, event->length};
        rc = ibx_send(s->conn, &iov, 1, 0, 0);
        if (rc == -EAGAIN)
            rc = complain(s, "pings without taking them back");
    } else if (type == BW_RAW_MOVE) {
        rc = take_move(s, &r);
    } else {
        rc = complain(s, "a message that is neither a ping nor a request to move");
    }
    ibx_message_release(s->conn, event);
    return !rc && type == BW_RAW_MOVE ? move(s) : rc;
}

void ibx_bw_raw_answer(struct ibx_conn *conn, size_t max_bytes)
{
    struct ibx_error err = {0};
    struct raw_server *s = calloc(1, sizeof(*s));
    int rc = s ? ibx_establish(conn, &err) : -ENOMEM;
    if (rc)
        ibx_log(IBX_LOG_WARN, "%s", s ? err.message : "no memory for a client");
    if (!rc) {
        s->conn = conn;
        s->max_bytes = max_bytes;
        s->report_room = ibx_conn_caps(conn)->message_max;
        s->report = malloc(s->report_room);
        rc = s->report ? 0 : -ENOMEM;
    }
    while (!rc) {
        struct ibx_event event;
        int n = ibx_poll(conn, &event, 1);
        if (n < 0 || (n && event.type == IBX_EVENT_CLOSED))
            break;
        if (n && event.type == IBX_EVENT_MESSAGE)
            rc = take_message(s, &event);
        else if (!n)
            ibx_wait(conn, -1);
    }
    ibx_close(conn);
    if (s) {
        free(s->report);
        ibx_bw_buffer_fini(&s->local);
    }
    free(s);
}
