/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Where a server's sessions are found when their clients come again. ibx_session_accept() looks
 * here, in the thread that accepts; each session is its own thread's. The lock is between them.
 */
#include "frontend-glue/session/session_internal.h"

#include "common/clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct ibx_waiting {
    pthread_mutex_t lock;
    _Atomic unsigned holders;
    struct ibx_session *first;
};

struct ibx_waiting *ibx_waiting_create(void)
{
    struct ibx_waiting *w = calloc(1, sizeof(*w));
    if (!w)
        return NULL;
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
    free(w);
}

/* Locked. */
static struct ibx_session *find(const struct ibx_waiting *w, const uint8_t *id)
{
    struct ibx_session *s = w->first;
    while (s && memcmp(s->link.id, id, sizeof(s->link.id)) != 0)
        s = s->link.next;
    return s;
}

/* True leaves it locked until claim_done(). */
static bool claim_find(void *context, const uint8_t id[IBX_CLAIM_ID_BYTES],
                       struct ibx_claimed *claimed)
{
    struct ibx_waiting *w = context;
    pthread_mutex_lock(&w->lock);
    const struct ibx_session *s = find(w, id);
    if (!s) {
        pthread_mutex_unlock(&w->lock);
        return false;
    }
    claimed->secret = s->link.secret;
    memcpy(claimed->name, s->link.name, sizeof(claimed->name));
    claimed->has_user = s->link.has_user;
    claimed->user = s->link.user;
    return true;
}

static void claim_done(void *context)
{
    struct ibx_waiting *w = context;
    pthread_mutex_unlock(&w->lock);
}

void ibx_waiting_check(struct ibx_waiting *w, struct ibx_claim_check *check)
{
    *check = (struct ibx_claim_check){claim_find, claim_done, w};
}

/* Locked. */
static void note_path(struct ibx_session_report *report, const struct ibx_path *path)
{
    memcpy(report->peer, path->peer, sizeof(report->peer));
    memcpy(report->provider, path->provider, sizeof(report->provider));
}

void ibx_waiting_add(struct ibx_session *s)
{
    struct ibx_waiting *w = s->link.waiting;
    pthread_mutex_lock(&w->lock);
    note_path(&s->link.report, &s->path);
    s->link.next = w->first;
    w->first = s;
    pthread_mutex_unlock(&w->lock);
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
    struct ibx_conn *offered = s->link.offered;
    s->link.offered = NULL;
    s->link.has_offer = false;
    pthread_mutex_unlock(&w->lock);
    ibx_close(offered);
}

/* A client that comes once more has given its earlier connection up. */
void ibx_waiting_offer(struct ibx_waiting *w, struct ibx_conn *conn)
{
    uint64_t one = 1;
    struct ibx_conn *unwanted = conn;
    pthread_mutex_lock(&w->lock);
    struct ibx_session *s = find(w, ibx_conn_claimed(conn));
    if (s) {
        unwanted = s->link.offered;
        s->link.offered = conn;
        s->link.has_offer = true;
        if (write(s->link.offer_fd, &one, sizeof(one)) < 0) /* cannot fail below 2^64 - 1 */
            s->link.has_offer = true;
        ibx_wake(s->conn); /* which it may still take for a good one */
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
    s->link.has_offer = false;
    if (read(s->link.offer_fd, &count, sizeof(count)) < 0) /* it was not set */
        count = 0;
    pthread_mutex_unlock(&s->link.waiting->lock);
    return conn;
}

void ibx_waiting_use(struct ibx_session *s, struct ibx_conn *conn)
{
    if (s->link.waiting)
        pthread_mutex_lock(&s->link.waiting->lock);
    s->conn = conn;
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
    pthread_mutex_unlock(&s->link.waiting->lock);
}

void ibx_waiting_each(struct ibx_session *asks,
                      void (*each)(void *context, const struct ibx_session_report *report),
                      void *context)
{
    struct ibx_waiting *w = asks->link.waiting;
    unsigned user = 0;
    const bool has_user = !asks->path.remote && !ibx_conn_user(asks->conn, &user);
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    for (const struct ibx_session *s = w->first; s; s = s->link.next) {
        const bool other_user = has_user && s->link.has_user && user && user != s->link.user;
        if (!strcmp(s->link.name, asks->path.name) && !other_user)
            each(context, &s->link.report);
    }
    pthread_mutex_unlock(&w->lock);
}
