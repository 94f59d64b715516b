/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* SESSIONS and REPORT: what ibx-gvirtus show prints of a back end's sessions. */
#include "frontend-glue/session/session_internal.h"

#include "common/clock.h"

#include <errno.h>

#define REPORT_BYTES (16u << 10)

struct answer {
    struct ibx_writer body; /* of the sessions that are reported */
    uint32_t sessions, resumed;
    uint8_t told;
    uint64_t now;
};

static void put_session(struct ibx_writer *w, const struct ibx_session_report *report, uint64_t now)
{
    ibx_put_string(w, report->peer);
    ibx_put_string(w, report->provider);
    ibx_put_u32(w, report->resumed);
    ibx_put_u8(w, (uint8_t)report->count);
    for (unsigned i = 0; i < report->count; i++) {
        const struct ibx_path_change *change = &report->changes[i];
        ibx_put_u64(w, (now - change->when) / IBX_NS_PER_MS);
        ibx_put_u32(w, change->took_ms);
        ibx_put_string(w, change->from);
        ibx_put_string(w, change->to);
    }
}

static void add(void *context, const struct ibx_session_report *report)
{
    struct answer *answer = context;
    struct ibx_writer before = answer->body;
    answer->sessions++;
    answer->resumed += report->resumed > 0;
    if (!report->resumed || answer->told == IBX_REPORT_SESSIONS)
        return;
    put_session(&answer->body, report, answer->now);
    if (answer->body.failed) /* no room for this one */
        answer->body = before;
    else
        answer->told++;
}

int ibx_report_send(struct ibx_session *s)
{
    uint8_t head[10], body[REPORT_BYTES];
    struct ibx_writer w = ibx_writer_of(head, sizeof(head));
    size_t room = s->out.most - sizeof(head);
    if (room > sizeof(body))
        room = sizeof(body);
    struct answer answer = {.body = ibx_writer_of(body, room), .now = ibx_now_ns()};
    ibx_session_registry_each(s, add, &answer);
    ibx_put_u8(&w, MESSAGE_REPORT);
    ibx_put_u32(&w, answer.sessions);
    ibx_put_u32(&w, answer.resumed);
    ibx_put_u8(&w, answer.told);
    struct iovec iov[] = {{head, w.length}, {body, answer.body.length}};
    int rc = ibx_send(s->conn, iov, 2, 0, 0);
    return rc == -ENOTCONN ? 0 : rc;
}

/* ------------------------------------------------------------------------- the client */

static void get_text(struct ibx_reader *r, char *text, size_t size)
{
    ibx_get_string(r, text, size);
    ibx_text_sanitize(text);
}

static void get_session(struct ibx_reader *r, struct ibx_session_report *report)
{
    get_text(r, report->peer, sizeof(report->peer));
    get_text(r, report->provider, sizeof(report->provider));
    report->resumed = ibx_get_u32(r);
    report->count = ibx_get_u8(r);
    if (report->count > IBX_REPORT_CHANGES)
        r->failed = true;
    for (unsigned i = 0; i < report->count && !r->failed; i++) {
        struct ibx_path_change *change = &report->changes[i];
        change->when = ibx_get_u64(r);
        change->took_ms = ibx_get_u32(r);
        get_text(r, change->from, sizeof(change->from));
        get_text(r, change->to, sizeof(change->to));
    }
}

static int get_report(const void *bytes, size_t n, struct ibx_sessions_report *report)
{
    struct ibx_reader r = ibx_reader_of(bytes, n);
    *report = (struct ibx_sessions_report){0};
    if (ibx_get_u8(&r) != MESSAGE_REPORT)
        return -EPROTO;
    report->sessions = ibx_get_u32(&r);
    report->resumed = ibx_get_u32(&r);
    report->count = ibx_get_u8(&r);
    if (report->count > IBX_REPORT_SESSIONS || report->count > report->resumed ||
        report->resumed > report->sessions)
        return -EPROTO;
    for (unsigned i = 0; i < report->count && !r.failed; i++)
        get_session(&r, &report->told[i]);
    return r.failed || ibx_reader_left(&r) ? -EPROTO : 0;
}

int ibx_sessions_ask(struct ibx_conn *conn, unsigned timeout_ms, struct ibx_sessions_report *report)
{
    uint8_t byte = MESSAGE_SESSIONS;
    struct iovec iov = {&byte, 1};
    struct ibx_event event;
    const uint64_t deadline = ibx_deadline_in_ms(timeout_ms);
    int n = 0, rc = ibx_send(conn, &iov, 1, 0, 0);
    while (!rc && !(n = ibx_poll(conn, &event, 1))) {
        if (ibx_now_ns() > deadline)
            return -ETIMEDOUT;
        ibx_wait(conn, ibx_ms_until(deadline));
    }
    if (rc || n < 0 || event.type != IBX_EVENT_MESSAGE)
        return rc ? rc : n < 0 ? n : -ENOTCONN;
    rc = get_report(event.data, event.length, report);
    ibx_message_release(conn, &event);
    return rc;
}
