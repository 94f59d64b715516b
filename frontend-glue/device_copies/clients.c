/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Which sessions are one client's. Natively a client is a process, whose threads share a context
 * that is theirs alone; here it has a session for each of them, and all clients share one context.
 * A client says with its first message which process it is. That holds on its host, and for the
 * name of its key: so a client can at most take itself for another one of its own tenant's.
 *
 * A session whose client has said nothing is a client of its own.
 */
#include "frontend-glue/device_copies/copies.h"
#include "frontend-glue/device_copies/printed.h"

#include "common/clock.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define RESET_MS 3000u /* that a new session waits for a reset to end, and no longer */

struct ibx_client {
    struct ibx_client *next;
    uint64_t number; /* that no other ever has */
    unsigned sessions;
    bool calls;       /* ibx_clients_calls() */
    uint32_t process; /* 0: not known */
    uint64_t process_namespace;
    const struct ibx_tenant *tenant;
    char host[sizeof(((struct ibx_path *)0)->peer)];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct ibx_client *all;
static uint64_t numbers;
static unsigned sessions;
static unsigned leaving; /* clients that are no more, and of which not all is given back */
static const struct copies *resetting; /* the session that resets the context of all */
static uint64_t reset_until;           /* ns */

void ibx_clients_join(struct copies *x)
{
    /* The client that resets may say so again and again. */
    const uint64_t mine = ibx_deadline_in_ms(RESET_MS);
    pthread_mutex_lock(&lock);
    while (!x->joined && resetting && ibx_now_ns() < reset_until && ibx_now_ns() < mine) {
        const uint64_t end = mine < reset_until ? mine : reset_until;
        const struct timespec until = ibx_timespec_of(end);
        pthread_cond_clockwait(&changed, &lock, CLOCK_MONOTONIC, &until);
    }
    sessions += !x->joined;
    x->joined = true;
    pthread_mutex_unlock(&lock);
}

/* Locked. */
static void drop(const struct ibx_client *gone)
{
    struct ibx_client **at = &all;
    while (*at != gone)
        at = &(*at)->next;
    *at = gone->next;
}

void ibx_clients_leave(struct copies *x)
{
    ibx_clients_reset_over(x);
    pthread_mutex_lock(&lock);
    sessions -= x->joined;
    x->joined = false;
    struct ibx_client *gone = x->client && !--x->client->sessions ? x->client : NULL;
    if (gone)
        drop(gone);
    leaving += gone != NULL;
    x->client = NULL;
    /* Locked: a session of the same process that comes now may want the same addresses. */
    struct ibx_host_map *maps = gone ? ibx_host_maps_take(gone->number) : NULL;
    pthread_mutex_unlock(&lock);
    if (gone) {
        ibx_printed_end(gone->number);
        ibx_functions_orphan(gone->number);
    }
    if (gone && gone->calls)
        ibx_own_graphs_end(x, gone->number);
    ibx_host_maps_end(x, maps);
    pthread_mutex_lock(&lock);
    leaving -= gone != NULL;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    free(gone);
}

/* Where it is not known which process it is, its other threads are other clients, and may launch
 * its graphs. */
void ibx_clients_calls(struct copies *x)
{
    ibx_clients_number(x);
    pthread_mutex_lock(&lock);
    if (x->client && x->client->process)
        x->client->calls = true;
    pthread_mutex_unlock(&lock);
}

/* "HOST:PORT" without the port, which each of a process's connections has for itself. */
static void copy_host(const char *peer, char host[sizeof(all->host)])
{
    const char *colon = strrchr(peer, ':');
    const size_t n = colon ? (size_t)(colon - peer) : strlen(peer);
    memcpy(host, peer, n);
    host[n] = 0;
}

/* Locked. */
static struct ibx_client *find(const struct ibx_client *like)
{
    struct ibx_client *c = like->process ? all : NULL;
    while (c && !(c->process == like->process && c->tenant == like->tenant &&
                  c->process_namespace == like->process_namespace && !strcmp(c->host, like->host)))
        c = c->next;
    return c;
}

/* Locked. NULL: no memory. */
static struct ibx_client *enter(const struct ibx_client *like)
{
    struct ibx_client *made = malloc(sizeof(*made));
    if (!made)
        return NULL;
    *made = *like;
    made->number = ++numbers;
    made->next = all;
    all = made;
    return made;
}

uint64_t ibx_clients_number(struct copies *x)
{
    struct ibx_client like = {.tenant = x->isolation.tenant};
    if (x->client || !x->joined)
        return x->client ? x->client->number : 0;
    copy_host(ibx_session_path(x->s)->peer, like.host);
    like.process = ibx_session_process(x->s, &like.process_namespace);
    pthread_mutex_lock(&lock);
    x->client = find(&like);
    if (!x->client)
        x->client = enter(&like);
    if (x->client)
        x->client->sessions++;
    pthread_mutex_unlock(&lock);
    return x->client ? x->client->number : 0;
}

/* Locked, and not while it waits. In a broken context nobody who leaves stays for long. */
static void let_leave(void)
{
    const uint64_t deadline = ibx_deadline_in_ms(RESET_MS);
    const struct timespec until = ibx_timespec_of(deadline);
    while (leaving && ibx_now_ns() < deadline)
        pthread_cond_clockwait(&changed, &lock, CLOCK_MONOTONIC, &until);
}

bool ibx_clients_reset(struct copies *x)
{
    const bool broken = ibx_copies_broken(x);
    ibx_clients_number(x);
    pthread_mutex_lock(&lock);
    if (broken)
        let_leave();
    const bool alone = broken || (!leaving && (x->client ? x->client->sessions : 1) >= sessions);
    if (alone) {
        resetting = x;
        reset_until = ibx_deadline_in_ms(RESET_MS);
    }
    pthread_mutex_unlock(&lock);
    return alone;
}

void ibx_clients_reset_over(const struct copies *x)
{
    pthread_mutex_lock(&lock);
    if (resetting == x) {
        resetting = NULL;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
}
