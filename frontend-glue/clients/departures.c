/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What becomes of a client that has no session any more: it may come again, or it has ended. */
#include "frontend-glue/tenants/client_list_internal.h"
#include "frontend-glue/clients/clients.h"
#include "frontend-glue/session/client_process.h"
#include "frontend-glue/tenants/printed.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#define AWAY_MOST 1024u /* most clients of a tenant that have no session */
#define AWAY_PART 8u    /* ... but at most 1/AWAY_PART of this process's descriptors */
#define END_MS    100   /* between a process's last session and its end, mostly */

static uint64_t departures; /* so far: under ibx_client_list.lock */

/* Locked. */
static void drop(const struct ibx_client *gone)
{
    struct ibx_client **at = &ibx_client_list.all;
    while (*at != gone)
        at = &(*at)->next;
    *at = gone->next;
}

/* Locked. */
static void ends(const struct ibx_client *c)
{
    const struct ibx_client_name name = ibx_client_name_of(c);
    if (c->shares)
        ibx_stream_waits_forget(c->number);
    ibx_client_ends_add(c->number, &name);
}

/* Locked. The same of a client that has sessions. */
static void ends_in_calls(const struct ibx_client *c)
{
    const struct ibx_client_name name = ibx_client_name_of(c);
    if (c->shares)
        ibx_stream_waits_forget(c->number);
    ibx_client_ends_in_calls(c->number, &name);
}

static void forget(struct ibx_client *gone)
{
    drop(gone);
    if (gone->process_fd >= 0)
        close(gone->process_fd);
    free(gone);
    ibx_client_process_look_again();
}

static unsigned away_most(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur / AWAY_PART >= AWAY_MOST)
        return AWAY_MOST;
    return (unsigned)(limit.rlim_cur / AWAY_PART);
}

/* Locked. Ends the tenant's client that has been away longest, if there are too many. A client that
 * claims to be many processes, one after the other, would fill the list, through which every client
 * searches, and take a descriptor for each. */
static void limit_away(const struct ibx_tenant *tenant)
{
    struct ibx_client *first = NULL;
    unsigned away = 0;
    for (struct ibx_client *c = ibx_client_list.all; c; c = c->next) {
        if (c->sessions || c->tenant != tenant)
            continue;
        first = first && first->went < c->went ? first : c;
        away++;
    }
    if (away <= away_most())
        return;
    ends(first);
    ibx_functions_ended(first->number);
    forget(first);
}

/* What a client without a session has left. */
struct leftovers {
    bool handles; /* to be given back, or waits to be ended */
    bool modules; /* its own once it comes again */
};

/* Also waits for words, which may be in page-locked memory: that is no handle. */
static bool has_left(uint64_t number)
{
    return ibx_handles_any(number) || ibx_stream_waits_first(number, NULL);
}

/* Locked. Decides about a client without a session: it is forgotten, has ended, or is kept. `left`:
 * it may come again, as far as is known. Another thread may have done this before. */
static void settle(uint64_t number, bool left, struct leftovers has)
{
    struct ibx_client *c = ibx_client_find_number(number);
    if (!c || c->sessions)
        return;
    if (!c->process || (!has.handles && !has.modules)) {
        ibx_stream_waits_forget(number);
        forget(c);
    } else if (ibx_client_has_ended(c) || (c->process_fd < 0 && !left)) {
        if (has.handles)
            ends(c);
        else
            ibx_stream_waits_forget(number);
        ibx_functions_ended(number);
        forget(c);
    } else {
        if (c->process_fd >= 0)
            ibx_process_ends_watch(c->process_fd, number);
        limit_away(c->tenant);
    }
}

/* The last session of a process ends a moment before this host sees that the process has ended.
 * This waits for that moment, so that this thread can still have its modules unloaded
 * (last_requests.c). Closes the descriptor; -1: there is none. */
static void wait_for_end(int process_fd)
{
    struct pollfd wait = {.fd = process_fd, .events = POLLIN};
    if (process_fd < 0)
        return;
    poll(&wait, 1, END_MS);
    close(process_fd);
}

void ibx_clients_leave(struct gpu_session *x)
{
    ibx_clients_reset_over(x);
    if (x->client && x->options.mode != IBX_GPU_OFF &&
        (x->thread_stream || has_left(x->client->number)))
        ibx_left_work_keep(x, x->client->number);
    pthread_mutex_lock(&ibx_client_list.lock);
    ibx_client_list.sessions -= x->joined;
    x->joined = false;
    if (x->client && x->thread_stream)
        x->client->thread_streams--;
    ibx_client_list.thread_streams -= x->thread_stream;
    x->thread_stream = false;
    if (x->client && ibx_session_process_ended(x->s))
        x->client->ends = true;
    struct ibx_client *away = x->client && !--x->client->sessions ? x->client : NULL;
    if (away)
        away->went = ++departures;
    const uint64_t number = away ? away->number : 0;
    const uint64_t came = away ? away->came : 0;
    const bool calls = away && away->calls;
    const int process_fd = away && away->process_fd >= 0 && ibx_functions_end(number)
                               ? fcntl(away->process_fd, F_DUPFD_CLOEXEC, 0)
                               : -1;
    ibx_client_list.leaving += away != NULL;
    x->client = NULL;
    /* Locked: a session of the same process that comes now may want the same addresses. */
    struct ibx_host_map *maps = away ? ibx_host_maps_take(number) : NULL;
    pthread_mutex_unlock(&ibx_client_list.lock);
    if (number) {
        ibx_printed_end(number);
        ibx_functions_orphan(number);
    }
    if (calls)
        ibx_release_graphs(x, number);
    if (number)
        ibx_exec_ends_settle(x, number);
    ibx_host_maps_end(x, maps);
    wait_for_end(process_fd);
    const struct leftovers has = {
        .handles = x->options.mode != IBX_GPU_OFF && has_left(number),
        .modules = number && (ibx_functions_any(number) || ibx_functions_end(number))};
    pthread_mutex_lock(&ibx_client_list.lock);
    if (number) {
        ibx_client_list.leaving--;
        /* A client that has come again meanwhile, and may have made more, leaves later. */
        const struct ibx_client *c = ibx_client_find_number(number);
        if (c && c->came == came)
            settle(number, ibx_session_took_leave(x->s) && !c->ends, has);
    }
    pthread_cond_broadcast(&ibx_client_list.changed);
    pthread_mutex_unlock(&ibx_client_list.lock);
}

void ibx_clients_ended(uint64_t number)
{
    const struct leftovers has = {.handles = has_left(number), .modules = true};
    pthread_mutex_lock(&ibx_client_list.lock);
    const struct ibx_client *c = ibx_client_find_number(number);
    if (c && c->sessions)
        ends_in_calls(c);
    settle(number, true, has);
    pthread_mutex_unlock(&ibx_client_list.lock);
}

void ibx_clients_watch(struct gpu_session *x)
{
    const uint64_t number = ibx_clients_number(x);
    pthread_mutex_lock(&ibx_client_list.lock);
    if (x->client && x->client->process_fd >= 0)
        ibx_process_ends_watch(x->client->process_fd, number);
    pthread_mutex_unlock(&ibx_client_list.lock);
}
