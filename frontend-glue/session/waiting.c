/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Where a server finds sessions when their clients come again. ibx_session_accept() looks here, in
 * the accepting thread, while each session belongs to its own thread; the lock is between them. If
 * a server has several processes, each has a list of its own sessions, and all share records of all
 * sessions.
 */
#include "frontend-glue/session/session_internal.h"

#include "common/clock.h"
#include "frontend-glue/session/records.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct ibx_waiting {
    pthread_mutex_t lock;
    _Atomic unsigned holders;
    struct ibx_session *first;
    struct ibx_records *records; /* NULL: there is one process */
};

struct ibx_waiting *ibx_waiting_create(bool several)
{
    struct ibx_waiting *w = calloc(1, sizeof(*w));
    if (w && several)
        w->records = ibx_records_create();
    if (!w || (several && !w->records)) {
        free(w);
        return NULL;
    }
    pthread_mutex_init(&w->lock, NULL);
    w->holders = 1;
    return w;
}

struct ibx_waiting *ibx_waiting_hold(struct ibx_waiting *w)
{
    if (w)
        w->holders++;
    return w;
}

void ibx_waiting_release(struct ibx_waiting *w)
{
    if (!w || --w->holders)
        return;
    pthread_mutex_destroy(&w->lock);
    ibx_records_destroy(w->records);
    free(w);
}

struct ibx_records *ibx_waiting_records(const struct ibx_waiting *w)
{
    return w ? w->records : NULL;
}

/* Called under the lock. */
static struct ibx_session *find(const struct ibx_waiting *w, const uint8_t *id)
{
    struct ibx_session *s = w->first;
    while (s && memcmp(s->link.id, id, sizeof(s->link.id)) != 0)
        s = s->link.next;
    return s;
}

static bool find_record(const struct ibx_records *records, const uint8_t id[IBX_CLAIM_ID_BYTES],
                        struct ibx_claimed *claimed)
{
    struct ibx_record record;
    if (!ibx_records_find(records, id, &record))
        return false;
    memcpy(claimed->secret, record.secret, sizeof(claimed->secret));
    memcpy(claimed->name, record.name, sizeof(claimed->name));
    claimed->has_user = record.has_user;
    claimed->user = record.user;
    explicit_bzero(&record, sizeof(record));
    return true;
}

static bool claim_find(void *context, const uint8_t id[IBX_CLAIM_ID_BYTES],
                       struct ibx_claimed *claimed)
{
    struct ibx_waiting *w = context;
    if (w->records)
        return find_record(w->records, id, claimed);
    pthread_mutex_lock(&w->lock);
    const struct ibx_session *s = find(w, id);
    if (s) {
        memcpy(claimed->secret, s->link.secret, sizeof(claimed->secret));
        memcpy(claimed->name, s->link.name, sizeof(claimed->name));
        claimed->has_user = s->link.has_user;
        claimed->user = s->link.user;
    }
    pthread_mutex_unlock(&w->lock);
    return s;
}

void ibx_waiting_check(struct ibx_waiting *w, struct ibx_claim_check *check)
{
    *check = (struct ibx_claim_check){claim_find, w};
}

/* Called under the lock. */
static void note_path(struct ibx_session_report *report, const struct ibx_path *path)
{
    memcpy(report->peer, path->peer, sizeof(report->peer));
    memcpy(report->provider, path->provider, sizeof(report->provider));
}

/* Called under the lock. False: there is no room. */
static bool write_record(struct ibx_records *records, struct session_link *link)
{
    struct ibx_record r = {.has_user = link->has_user, .user = link->user, .report = link->report};
    memcpy(r.id, link->id, sizeof(r.id));
    memcpy(r.secret, link->secret, sizeof(r.secret));
    memcpy(r.name, link->name, sizeof(r.name));
    if (link->record >= 0)
        ibx_records_change(records, link->record, &r);
    else
        link->record = ibx_records_add(records, &r);
    explicit_bzero(&r, sizeof(r));
    return link->record >= 0;
}

static void remove_record(struct ibx_records *records, struct session_link *link)
{
    if (link->record >= 0)
        ibx_records_remove(records, link->record);
    link->record = -1;
}

bool ibx_waiting_add(struct ibx_session *s)
{
    struct ibx_waiting *w = s->link.waiting;
    pthread_mutex_lock(&w->lock);
    note_path(&s->link.report, &s->path);
    const bool can = !w->records || write_record(w->records, &s->link);
    if (can) {
        s->link.next = w->first;
        w->first = s;
    }
    pthread_mutex_unlock(&w->lock);
    return can;
}

void ibx_waiting_remove(struct ibx_session *s)
{
    struct ibx_waiting *w = s->link.waiting;
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    struct ibx_session **at = &w->first;
    while (*at && *at != s)
        at = &(*at)->link.next;
    if (*at)
        *at = s->link.next;
    remove_record(w->records, &s->link);
    struct ibx_conn *offered = s->link.offered;
    s->link.offered = NULL;
    pthread_mutex_unlock(&w->lock);
    ibx_close(offered);
}

/* A client that comes once more has given its earlier connection up, whose handshake may stand
 * still for as long as its time-outs take. */
void ibx_waiting_offer(struct ibx_waiting *w, struct ibx_conn *conn)
{
    uint64_t one = 1;
    struct ibx_conn *unwanted = conn;
    pthread_mutex_lock(&w->lock);
    struct ibx_session *s = find(w, ibx_conn_claimed(conn));
    if (s) {
        unwanted = s->link.offered;
        s->link.offered = conn;
        if (s->link.establishing)
            ibx_hang_up(s->link.establishing);
        (void)!write(s->link.offer_fd, &one, sizeof(one)); /* cannot fail below 2^64 - 1 */
        ibx_wake(s->conn); /* the session may still use the old connection */
    }
    pthread_mutex_unlock(&w->lock);
    ibx_close(unwanted);
}

struct ibx_conn *ibx_waiting_take(struct ibx_session *s)
{
    uint64_t count;
    pthread_mutex_lock(&s->link.waiting->lock);
    struct ibx_conn *conn = s->link.offered;
    s->link.offered = NULL;
    s->link.establishing = conn;
    (void)!read(s->link.offer_fd, &count, sizeof(count)); /* fails if the event was not set */
    pthread_mutex_unlock(&s->link.waiting->lock);
    return conn;
}

void ibx_waiting_drop(struct ibx_session *s, struct ibx_conn *conn)
{
    pthread_mutex_lock(&s->link.waiting->lock);
    s->link.establishing = NULL;
    pthread_mutex_unlock(&s->link.waiting->lock);
    ibx_close(conn);
}

void ibx_waiting_use(struct ibx_session *s, struct ibx_conn *conn)
{
    if (s->link.waiting)
        pthread_mutex_lock(&s->link.waiting->lock);
    s->conn = conn;
    s->link.establishing = NULL;
    if (s->link.waiting)
        pthread_mutex_unlock(&s->link.waiting->lock);
}

void ibx_waiting_note(struct ibx_session *s, const struct ibx_path *path, unsigned took_ms)
{
    struct ibx_session_report *report = &s->link.report;
    if (!s->link.waiting)
        return;
    pthread_mutex_lock(&s->link.waiting->lock);
    report->resumed++;
    if (report->count == IBX_REPORT_CHANGES) {
        report->count--;
        memmove(report->changes, report->changes + 1, report->count * sizeof(report->changes[0]));
    }
    struct ibx_path_change *change = &report->changes[report->count++];
    change->when = ibx_now_ns();
    change->took_ms = took_ms;
    memcpy(change->from, report->provider, sizeof(change->from));
    memcpy(change->to, path->provider, sizeof(change->to));
    note_path(report, path);
    if (s->link.record >= 0)
        write_record(s->link.waiting->records, &s->link);
    pthread_mutex_unlock(&s->link.waiting->lock);
}

/* The session whose client asks, and the function to call for each session that it may know of. */
struct asking {
    const char *name;
    bool has_user;
    unsigned user;
    void (*each)(void *context, const struct ibx_session_report *report);
    void *context;
};

static void tell(const struct asking *asks, const char *name, bool has_user, unsigned user,
                 const struct ibx_session_report *report)
{
    const bool other_user = asks->has_user && has_user && asks->user && asks->user != user;
    if (!strcmp(name, asks->name) && !other_user)
        asks->each(asks->context, report);
}

static void tell_records(const struct ibx_records *records, const struct asking *asks)
{
    struct ibx_record r;
    unsigned place = 0;
    while (ibx_records_next(records, &place, &r))
        tell(asks, r.name, r.has_user, r.user, &r.report);
    explicit_bzero(&r, sizeof(r));
}

void ibx_waiting_each(struct ibx_session *asks,
                      void (*each)(void *context, const struct ibx_session_report *report),
                      void *context)
{
    struct ibx_waiting *w = asks->link.waiting;
    struct asking asking = {.name = asks->path.name, .each = each, .context = context};
    asking.has_user = !asks->path.remote && !ibx_conn_user(asks->conn, &asking.user);
    if (!w)
        return;
    if (w->records) {
        tell_records(w->records, &asking);
        return;
    }
    pthread_mutex_lock(&w->lock);
    for (const struct ibx_session *s = w->first; s; s = s->link.next)
        tell(&asking, s->link.name, s->link.has_user, s->link.user, &s->link.report);
    pthread_mutex_unlock(&w->lock);
}
