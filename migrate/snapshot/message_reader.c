/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Pages by messages, from a cache that has not all of them: over verbs and ofi nobody can READ
 * memory whose pages are missing, because registering it would make zero pages of them. The reader
 * asks for bytes (ASK), and the cache's processor sends them (PAGES) when its own fault engine has
 * them. It is a page reader of the fault engine (userfaultfd/), like that of pages/page_reader.c.
 */
#include "migrate/snapshot/snapshot.h"

#include "common/clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ASKS_BULK      (IBX_SNAPSHOT_ASKS / 2) /* how many requests that are not urgent may use */
#define EVENTS_AT_ONCE 16

/* A request, or if that is longer than an ASK may be, as one for a huge page is, a part of it: the
 * parts have the same cookie. */
struct ask {
    uint64_t cookie, at;
    uint8_t *to; /* NULL: it is free */
    uint32_t length, got;
    uint32_t whole; /* bytes of the request */
    bool waits;     /* for credit, to be sent */
};

struct ibx_snapshot_asker {
    struct ibx_conn *conn;
    struct ask asks[IBX_SNAPSHOT_ASKS];
    unsigned open, waiting; /* `waiting`: of the open ones, those that are not sent yet */
    int error;
    char reason[IBX_ERROR_MAX]; /* why this side ended it; "": see the connection's own reason */
};

struct ibx_snapshot_asker *ibx_snapshot_asker_create(struct ibx_conn *conn)
{
    struct ibx_snapshot_asker *asker = calloc(1, sizeof(*asker));
    if (asker)
        asker->conn = conn;
    return asker;
}

void ibx_snapshot_asker_destroy(struct ibx_snapshot_asker *asker)
{
    if (asker)
        ibx_close(asker->conn);
    free(asker);
}

struct ibx_conn *ibx_snapshot_asker_conn(const struct ibx_snapshot_asker *asker)
{
    return asker->conn;
}

const char *ibx_snapshot_asker_reason(const struct ibx_snapshot_asker *asker)
{
    return asker->reason[0] ? asker->reason : ibx_conn_reason(asker->conn);
}

static void give_up(struct ibx_snapshot_asker *asker, int code, const char *why)
{
    if (asker->error)
        return;
    asker->error = code;
    snprintf(asker->reason, sizeof(asker->reason), "%s", why);
}

/* ------------------------------------------------------------ asking, and what comes */

static int send_ask(struct ibx_snapshot_asker *asker, const struct ask *a)
{
    uint8_t bytes[64];
    const struct ibx_snapshot_any message = {.type = IBX_SNAPSHOT_ASK,
                                             .number = (uint32_t)(a - asker->asks),
                                             .at = a->at,
                                             .length = a->length};
    const ssize_t n = ibx_snapshot_encode(&message, bytes, sizeof(bytes));
    const struct iovec iov = {bytes, (size_t)n};
    return n < 0 ? (int)n : ibx_send(asker->conn, &iov, 1, 0, 0);
}

/* Sends what waits, as far as there is credit. An error is that of the connection, which poll is
 * about to report. */
static void send_waiting(struct ibx_snapshot_asker *asker)
{
    for (unsigned i = 0; asker->waiting && i < IBX_SNAPSHOT_ASKS; i++) {
        struct ask *a = &asker->asks[i];
        if (!a->to || !a->waits)
            continue;
        if (send_ask(asker, a))
            return;
        a->waits = false;
        asker->waiting--;
    }
}

/* The first part is sent now, or nothing is asked for; the others wait if there is no credit, and
 * come before a further request. */
static int ask(struct ibx_snapshot_asker *asker, uint64_t offset, uint32_t length, void *to,
               uint64_t cookie, unsigned most)
{
    const unsigned parts = (length + IBX_SNAPSHOT_ASK_MAX - 1) / IBX_SNAPSHOT_ASK_MAX;
    if (parts > most)
        return -E2BIG;
    send_waiting(asker);
    if (asker->waiting || asker->open > most - parts)
        return -EAGAIN;
    for (uint32_t at = 0, n; at < length; at += n) {
        struct ask *a = asker->asks;
        while (a->to)
            a++;
        n = length - at < IBX_SNAPSHOT_ASK_MAX ? length - at : IBX_SNAPSHOT_ASK_MAX;
        *a = (struct ask){.cookie = cookie, .at = offset + at, .length = n, .whole = length};
        a->waits = at > 0;
        const int rc = at ? 0 : send_ask(asker, a);
        if (rc)
            return rc;
        a->to = (uint8_t *)to + at;
        asker->open++;
        asker->waiting += at > 0;
    }
    send_waiting(asker);
    return 0;
}

static bool is_open(const struct ibx_snapshot_asker *asker, uint64_t cookie)
{
    for (unsigned i = 0; i < IBX_SNAPSHOT_ASKS; i++)
        if (asker->asks[i].to && asker->asks[i].cookie == cookie)
            return true;
    return false;
}

/* Takes a message. 1: all of a request has come, and `arrival` is set. */
static int take(struct ibx_snapshot_asker *asker, const struct ibx_event *event,
                struct ibx_fault_arrival *arrival)
{
    struct ibx_snapshot_any message;
    struct ibx_error why = {0};
    if (ibx_snapshot_decode(event->data, event->length, &message, &why)) {
        give_up(asker, -EPROTO, why.message);
        return 0;
    }
    struct ask *a = message.number < IBX_SNAPSHOT_ASKS ? &asker->asks[message.number] : NULL;
    if (message.type != IBX_SNAPSHOT_PAGES || !a || !a->to || a->waits ||
        message.offset != a->got || message.bytes.length > a->length - a->got) {
        give_up(asker, -EPROTO, "it sent what nobody has asked for");
        return 0;
    }
    memcpy(a->to + a->got, message.bytes.bytes, message.bytes.length);
    a->got += (uint32_t)message.bytes.length;
    if (a->got < a->length)
        return 0;
    a->to = NULL;
    asker->open--;
    if (a->length < a->whole && is_open(asker, a->cookie))
        return 0;
    *arrival = (struct ibx_fault_arrival){.cookie = a->cookie, .length = a->whole};
    return 1;
}

static int poll_arrivals(void *context, struct ibx_fault_arrival *arrivals, int max)
{
    struct ibx_snapshot_asker *asker = context;
    struct ibx_event events[EVENTS_AT_ONCE];
    int arrived = 0;
    if (asker->error)
        return asker->error;
    const int want = max < EVENTS_AT_ONCE ? max : EVENTS_AT_ONCE;
    const int n = ibx_poll(asker->conn, events, want);
    for (int i = 0; i < n; i++) {
        if (events[i].type == IBX_EVENT_CLOSED)
            asker->error = events[i].status ? events[i].status : -ECONNRESET;
        if (events[i].type != IBX_EVENT_MESSAGE)
            continue;
        if (!asker->error)
            arrived += take(asker, &events[i], &arrivals[arrived]);
        ibx_message_release(asker->conn, &events[i]);
    }
    send_waiting(asker);
    return arrived ? arrived : asker->error;
}

/* ------------------------------------------------------------ for the engine */

static int request(void *context, const struct ibx_fault_request *r)
{
    struct ibx_snapshot_asker *asker = context;
    if (asker->error)
        return -EAGAIN; /* poll is about to report it */
    const int rc = ask(asker, r->offset, (uint32_t)r->length, r->buffer, r->cookie,
                       r->urgent ? IBX_SNAPSHOT_ASKS : ASKS_BULK);
    return rc == -ENOTCONN ? -EAGAIN : rc;
}

static void cancel(void *context, uint64_t cookie)
{
    (void)cookie;
    give_up(context, -ECANCELED, "the pages are no longer wanted");
}

static int arm(void *context)
{
    const struct ibx_snapshot_asker *asker = context;
    return asker->error ? 1 : ibx_arm(asker->conn);
}

static int fd(void *context)
{
    const struct ibx_snapshot_asker *asker = context;
    return ibx_fd(asker->conn);
}

static const struct ibx_fault_reader_ops operations = {
    .request = request, .cancel = cancel, .poll = poll_arrivals, .arm = arm, .fd = fd};

void ibx_snapshot_asker_serve(struct ibx_snapshot_asker *asker, struct ibx_fault_reader *as)
{
    *as = (struct ibx_fault_reader){.ops = &operations, .context = asker};
}

/* ------------------------------------------------------------ without one */

static int check_time(uint64_t deadline_ns, bool (*ends)(void))
{
    return ends && ends() ? -EINTR : ibx_now_ns() >= deadline_ns ? -ETIMEDOUT : 0;
}

int ibx_snapshot_asker_fetch(struct ibx_snapshot_asker *asker, uint64_t offset, void *to,
                             uint32_t length, uint64_t deadline_ns, bool (*ends)(void),
                             struct ibx_error *err)
{
    struct ibx_fault_arrival arrival;
    int rc, n = 0, late = 0;
    while ((rc = ask(asker, offset, length, to, 0, IBX_SNAPSHOT_ASKS)) == -EAGAIN &&
           !(late = check_time(deadline_ns, ends)) && (n = poll_arrivals(asker, &arrival, 1)) >= 0)
        ibx_wait(asker->conn, 100);
    while (!rc && !(n = poll_arrivals(asker, &arrival, 1)) &&
           !(late = check_time(deadline_ns, ends)))
        ibx_wait(asker->conn, 100);
    if (late) { /* later messages must not write to the caller's buffer */
        n = late;
        give_up(asker, n, late == -EINTR ? "this process was told to end" : SNAPSHOT_SILENT);
    }
    return rc || n < 0 ? ibx_error_set(err, n < 0 ? n : rc, "the snapshot's server is lost: %s",
                                       ibx_snapshot_asker_reason(asker))
                       : 0;
}
