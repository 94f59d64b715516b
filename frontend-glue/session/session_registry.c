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

struct ibx_session_registry {
    pthread_mutex_t lock;
    _Atomic unsigned holders;
    struct ibx_session *first;
    struct ibx_records *records; /* NULL: there is one process */
};

struct ibx_session_registry *ibx_session_registry_create(bool several)
{
    struct ibx_session_registry *registry = calloc(1, sizeof(*registry));
    if (registry && several)
        registry->records = ibx_records_create();
    if (!registry || (several && !registry->records)) {
        free(registry);
        return NULL;
    }
    pthread_mutex_init(&registry->lock, NULL);
    registry->holders = 1;
    return registry;
}

struct ibx_session_registry *ibx_session_registry_hold(struct ibx_session_registry *registry)
{
    if (registry)
        registry->holders++;
    return registry;
}

void ibx_session_registry_release(struct ibx_session_registry *registry)
{
    if (!registry || --registry->holders)
        return;
    pthread_mutex_destroy(&registry->lock);
    ibx_records_destroy(registry->records);
    free(registry);
}

struct ibx_records *ibx_session_registry_records(const struct ibx_session_registry *registry)
{
    return registry ? registry->records : NULL;
}

/* Called under the lock. */
static struct ibx_session *find(const struct ibx_session_registry *registry, const uint8_t *id)
{
    struct ibx_session *s = registry->first;
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
    struct ibx_session_registry *registry = context;
    if (registry->records)
        return find_record(registry->records, id, claimed);
    pthread_mutex_lock(&registry->lock);
    const struct ibx_session *s = find(registry, id);
    if (s) {
        memcpy(claimed->secret, s->link.secret, sizeof(claimed->secret));
        memcpy(claimed->name, s->link.name, sizeof(claimed->name));
        claimed->has_user = s->link.has_user;
        claimed->user = s->link.user;
    }
    pthread_mutex_unlock(&registry->lock);
    return s;
}

void ibx_session_registry_check(struct ibx_session_registry *registry,
                                struct ibx_claim_check *check)
{
    *check = (struct ibx_claim_check){claim_find, registry};
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

bool ibx_session_registry_add(struct ibx_session *s)
{
    struct ibx_session_registry *registry = s->link.registry;
    pthread_mutex_lock(&registry->lock);
    note_path(&s->link.report, &s->path);
    const bool can = !registry->records || write_record(registry->records, &s->link);
    if (can) {
        s->link.next = registry->first;
        registry->first = s;
    }
    pthread_mutex_unlock(&registry->lock);
    return can;
}

void ibx_session_registry_remove(struct ibx_session *s)
{
    struct ibx_session_registry *registry = s->link.registry;
    if (!registry)
        return;
    pthread_mutex_lock(&registry->lock);
    struct ibx_session **at = &registry->first;
    while (*at && *at != s)
        at = &(*at)->link.next;
    if (*at)
        *at = s->link.next;
    remove_record(registry->records, &s->link);
    struct ibx_conn *offered = s->link.offered;
    s->link.offered = NULL;
    pthread_mutex_unlock(&registry->lock);
    ibx_close(offered);
}

/* A client that comes once more has given its earlier connection up, whose handshake may stand
 * still for as long as its time-outs take. */
void ibx_session_registry_offer(struct ibx_session_registry *registry, struct ibx_conn *conn)
{
    uint64_t one = 1;
    struct ibx_conn *unwanted = conn;
    pthread_mutex_lock(&registry->lock);
    struct ibx_session *s = find(registry, ibx_conn_claimed(conn));
    if (s) {
        unwanted = s->link.offered;
        s->link.offered = conn;
        if (s->link.establishing)
            ibx_hang_up(s->link.establishing);
        (void)!write(s->link.offer_fd, &one, sizeof(one)); /* cannot fail below 2^64 - 1 */
        ibx_wake(s->conn); /* the session may still use the old connection */
    }
    pthread_mutex_unlock(&registry->lock);
    ibx_close(unwanted);
}

struct ibx_conn *ibx_session_registry_take(struct ibx_session *s)
{
    uint64_t count;
    pthread_mutex_lock(&s->link.registry->lock);
    struct ibx_conn *conn = s->link.offered;
    s->link.offered = NULL;
    s->link.establishing = conn;
    (void)!read(s->link.offer_fd, &count, sizeof(count)); /* fails if the event was not set */
    pthread_mutex_unlock(&s->link.registry->lock);
    return conn;
}

void ibx_session_registry_drop(struct ibx_session *s, struct ibx_conn *conn)
{
    pthread_mutex_lock(&s->link.registry->lock);
    s->link.establishing = NULL;
    pthread_mutex_unlock(&s->link.registry->lock);
    ibx_close(conn);
}

void ibx_session_registry_use(struct ibx_session *s, struct ibx_conn *conn)
{
    if (s->link.registry)
        pthread_mutex_lock(&s->link.registry->lock);
    s->conn = conn;
    s->link.establishing = NULL;
    if (s->link.registry)
        pthread_mutex_unlock(&s->link.registry->lock);
}

void ibx_session_registry_note(struct ibx_session *s, const struct ibx_path *path, unsigned took_ms)
{
    struct ibx_session_report *report = &s->link.report;
    if (!s->link.registry)
        return;
    pthread_mutex_lock(&s->link.registry->lock);
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
        write_record(s->link.registry->records, &s->link);
    pthread_mutex_unlock(&s->link.registry->lock);
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

void ibx_session_registry_each(struct ibx_session *asks,
                               void (*each)(void *context, const struct ibx_session_report *report),
                               void *context)
{
    struct ibx_session_registry *registry = asks->link.registry;
    struct asking asking = {.name = asks->path.name, .each = each, .context = context};
    asking.has_user = !asks->path.remote && !ibx_conn_user(asks->conn, &asking.user);
    if (!registry)
        return;
    if (registry->records) {
        tell_records(registry->records, &asking);
        return;
    }
    pthread_mutex_lock(&registry->lock);
    for (const struct ibx_session *s = registry->first; s; s = s->link.next)
        tell(&asking, s->link.name, s->link.has_user, s->link.user, &s->link.report);
    pthread_mutex_unlock(&registry->lock);
}
