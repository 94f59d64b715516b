/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Which sessions are one client's. Natively a client is a process, whose threads share a context
 * that is theirs alone; here it has a session for each of them, and all clients share one context.
 * A client says with its first message which process it is. That holds on its host, and for the
 * name of its key: so a client can at most take itself for another one of its own tenant's.
 *
 * A session whose client has said nothing is a client of its own.
 *
 * A client without a session may come again: each of its threads' sessions ends with the thread. So
 * what it has made is there until its process has ended, which this host sees, or the client says
 * with one of its sessions; or until it has lost the last one, from another host, which it keeps
 * open for that (plugin/last_session.c, client_ends.c). Of a tenant so many can be away; then the
 * one that has been so for the longest time counts as ended.
 */
#include "frontend-glue/clients/clients.h"
#include "frontend-glue/tenants/printed.h"
#include "frontend-glue/session/client_processes.h"

#include "common/clock.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define RESET_MS  3000u /* that a new session waits for a reset to end, and no longer */
#define AWAY_MOST 1024u /* clients of a tenant without a session */
#define AWAY_PART 8u    /* ... but no more than such a part of this process's descriptors */
#define END_MS    100   /* between a process's last session and its end, mostly */

struct ibx_client {
    struct ibx_client *next;
    uint64_t number;         /* that no other ever has */
    uint64_t parent;         /* of the client that it was forked from; 0: not known */
    unsigned sessions;       /* 0: its process may be there, and come again */
    uint64_t came;           /* sessions so far */
    uint64_t went;           /* without a session: in which order they have gone */
    int process_fd;          /* readable once its process has ended; -1: this host does not know */
    bool calls;              /* ibx_clients_calls() */
    unsigned thread_streams; /* sessions that use the stream which CUDA has for their thread */
    atomic_bool hides_work;  /* ibx_clients_hide_work(); for good */
    bool ends;               /* its process has said so: other sessions' ends are still to come */
    uint32_t process;        /* 0: not known */
    uint64_t process_namespace;
    const struct ibx_tenant *tenant;
    char host[sizeof(((struct ibx_path *)0)->peer)];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct ibx_client *all;
static uint64_t numbers, departures;
static unsigned sessions;
static _Atomic bool were_several;
static unsigned thread_streams; /* of all clients */
static unsigned leaving;        /* threads that give back what clients have left, and are in CUDA */
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

static bool has_ended(const struct ibx_client *c)
{
    struct pollfd wait = {.fd = c->process_fd, .events = POLLIN};
    return c->process_fd >= 0 && poll(&wait, 1, 0) > 0;
}

/* Locked. NULL: there is none of that number. */
static struct ibx_client *find_number(uint64_t number)
{
    struct ibx_client *c = all;
    while (c && c->number != number)
        c = c->next;
    return c;
}

/* Locked. */
static struct ibx_client_name name_of(const struct ibx_client *c)
{
    struct ibx_client_name name = {"a client"};
    const char *tenant = c->tenant ? ibx_tenant_name(c->tenant) : "";
    if (c->process)
        snprintf(name.text, sizeof(name.text), "process %u%s%s%s%s%s", c->process,
                 *c->host ? " of " : "", c->host, *tenant ? " (tenant \"" : "", tenant,
                 *tenant ? "\")" : "");
    return name;
}

void ibx_clients_name(uint64_t number, struct ibx_client_name *name)
{
    pthread_mutex_lock(&lock);
    const struct ibx_client *c = find_number(number);
    if (c)
        *name = name_of(c);
    pthread_mutex_unlock(&lock);
}

/* Locked. */
static void ends(const struct ibx_client *c)
{
    const struct ibx_client_name name = name_of(c);
    ibx_client_ends_add(c->number, &name);
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

/* Locked. A client that says it is many processes, one after the other, would fill the list, in
 * which everybody looks for theirs, and take a descriptor for each. */
static void limit_away(const struct ibx_tenant *tenant)
{
    struct ibx_client *first = NULL;
    unsigned away = 0;
    for (struct ibx_client *c = all; c; c = c->next) {
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

/* Of a client without a session. */
struct leftovers {
    bool handles; /* to be given back */
    bool modules; /* its own once it comes again */
};

/* Locked. It has no session; `left`: and may come again, as far as is known. Another thread may
 * have come here for it before. */
static void settle(uint64_t number, bool left, struct leftovers has)
{
    struct ibx_client *c = find_number(number);
    if (!c || c->sessions)
        return;
    if (!c->process || (!has.handles && !has.modules)) {
        forget(c);
    } else if (has_ended(c) || (c->process_fd < 0 && !left)) {
        if (has.handles)
            ends(c);
        ibx_functions_ended(number);
        forget(c);
    } else {
        if (c->process_fd >= 0)
            ibx_client_ends_watch(c->process_fd, number);
        limit_away(c->tenant);
    }
}

/* The last session of a process ends with it, a moment before this host sees that: then this thread
 * can still have its modules unloaded (last_requests.c). Takes the descriptor; -1: there is none.
 */
static void wait_for_end(int process_fd)
{
    struct pollfd wait = {.fd = process_fd, .events = POLLIN};
    if (process_fd < 0)
        return;
    poll(&wait, 1, END_MS);
    close(process_fd);
}

void ibx_clients_leave(struct copies *x)
{
    ibx_clients_reset_over(x);
    if (x->client && x->options.mode != IBX_GPU_OFF &&
        (x->thread_stream || ibx_handles_any(x->client->number)))
        ibx_left_work_keep(x, x->client->number);
    pthread_mutex_lock(&lock);
    sessions -= x->joined;
    x->joined = false;
    if (x->client && x->thread_stream)
        x->client->thread_streams--;
    thread_streams -= x->thread_stream;
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
    leaving += away != NULL;
    x->client = NULL;
    /* Locked: a session of the same process that comes now may want the same addresses. */
    struct ibx_host_map *maps = away ? ibx_host_maps_take(number) : NULL;
    pthread_mutex_unlock(&lock);
    if (number) {
        ibx_printed_end(number);
        ibx_functions_orphan(number);
    }
    if (calls)
        ibx_own_graphs_end(x, number);
    ibx_host_maps_end(x, maps);
    wait_for_end(process_fd);
    const struct leftovers has = {
        .handles = x->options.mode != IBX_GPU_OFF && ibx_handles_any(number),
        .modules = number && (ibx_functions_any(number) || ibx_functions_end(number))};
    pthread_mutex_lock(&lock);
    if (number) {
        leaving--;
        /* Who has come meanwhile, and may have made more, leaves later. */
        const struct ibx_client *c = find_number(number);
        if (c && c->came == came)
            settle(number, ibx_session_took_leave(x->s) && !c->ends, has);
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void ibx_clients_ended(uint64_t number)
{
    const struct leftovers has = {.handles = ibx_handles_any(number), .modules = true};
    pthread_mutex_lock(&lock);
    settle(number, true, has);
    pthread_mutex_unlock(&lock);
}

bool ibx_clients_has(uint64_t number)
{
    pthread_mutex_lock(&lock);
    const bool has = find_number(number);
    pthread_mutex_unlock(&lock);
    return has;
}

bool ibx_clients_give_begin(void)
{
    pthread_mutex_lock(&lock);
    const bool can = !resetting || ibx_now_ns() >= reset_until;
    leaving += can;
    pthread_mutex_unlock(&lock);
    return can;
}

void ibx_clients_give_end(void)
{
    pthread_mutex_lock(&lock);
    leaving--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

bool ibx_clients_left(void)
{
    pthread_mutex_lock(&lock);
    const bool left = all;
    pthread_mutex_unlock(&lock);
    return left;
}

bool ibx_clients_any(void)
{
    pthread_mutex_lock(&lock);
    const bool any = sessions;
    pthread_mutex_unlock(&lock);
    return any;
}

bool ibx_clients_several(struct copies *x)
{
    ibx_clients_number(x);
    pthread_mutex_lock(&lock);
    const bool several = x->client ? all != x->client || all->next : all != NULL;
    pthread_mutex_unlock(&lock);
    return several || ibx_client_ends_any();
}

void ibx_clients_use_thread_stream(struct copies *x)
{
    ibx_clients_number(x);
    pthread_mutex_lock(&lock);
    if (x->client && !x->thread_stream) {
        x->client->thread_streams++;
        thread_streams++;
        x->thread_stream = true;
    }
    pthread_mutex_unlock(&lock);
}

bool ibx_clients_use_thread_streams(const struct copies *x)
{
    pthread_mutex_lock(&lock);
    const bool use = thread_streams > x->thread_stream;
    pthread_mutex_unlock(&lock);
    return use;
}

void ibx_clients_hide_work(struct copies *x)
{
    ibx_clients_number(x);
    if (!x->client || atomic_load_explicit(&x->client->hides_work, memory_order_relaxed))
        return;
    pthread_mutex_lock(&lock); /* of all clients: not with each call of a library's */
    atomic_store(&x->client->hides_work, true);
    pthread_mutex_unlock(&lock);
}

/* Locked. Sessions of one process may come from several of its host's addresses. */
static bool comes_from_elsewhere(const struct ibx_client *like)
{
    const struct ibx_client *c = all;
    while (c && (c == like || c->process != like->process ||
                 c->process_namespace != like->process_namespace))
        c = c->next;
    return c;
}

bool ibx_clients_find_work(const struct copies *x)
{
    pthread_mutex_lock(&lock);
    const struct ibx_client *c = x->client;
    const bool find = c && c->process && !comes_from_elsewhere(c) && !atomic_load(&c->hides_work) &&
                      c->thread_streams == x->thread_stream;
    pthread_mutex_unlock(&lock);
    return find;
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

/* "HOST:PORT" without the port, which each of a process's connections has for itself. Of this host
 * nothing: it has many addresses, and each process may come from any of them. */
static void copy_host(const struct ibx_path *path, char host[sizeof(all->host)])
{
    const char *peer = path->remote ? path->peer : "", *colon = strrchr(peer, ':');
    const size_t n = colon ? (size_t)(colon - peer) : strlen(peer);
    memcpy(host, peer, n);
    host[n] = 0;
}

/* Locked. */
static struct ibx_client *find(const struct ibx_client *like)
{
    struct ibx_client *c = like->process ? all : NULL;
    while (c && !(c->process == like->process && c->tenant == like->tenant &&
                  c->process_namespace == like->process_namespace && !strcmp(c->host, like->host) &&
                  !has_ended(c)))
        c = c->next;
    return c;
}

/* 0: not known. */
static uint32_t parent_of(uint32_t process)
{
    char path[32], text[512];
    unsigned parent = 0;
    snprintf(path, sizeof(path), "/proc/%u/stat", process);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = 0;
    const char *behind_name = strrchr(text, ')');
    return behind_name && sscanf(behind_name, ") %*c %u", &parent) == 1 ? parent : 0;
}

/* Locked. Whose modules it has, as far as this host sees. */
static uint64_t find_parent(const struct ibx_client *child)
{
    struct ibx_client like = *child;
    like.process = child->process_fd >= 0 ? parent_of(child->process) : 0;
    const struct ibx_client *parent = find(&like);
    if (!parent)
        return 0;
    return ibx_functions_any(parent->number) ? parent->number : parent->parent;
}

/* Locked. NULL: no memory. */
static struct ibx_client *enter(const struct ibx_client *like, const struct ibx_session *s)
{
    struct ibx_client *made = malloc(sizeof(*made));
    if (!made)
        return NULL;
    *made = *like;
    made->process_fd = ibx_session_process_watch(s);
    made->parent = find_parent(made);
    made->number = ++numbers;
    if (made->number > 1)
        atomic_store(&were_several, true);
    ibx_functions_inherit(made->number, made->parent);
    made->next = all;
    all = made;
    return made;
}

uint64_t ibx_clients_number(struct copies *x)
{
    struct ibx_client like = {.tenant = x->isolation.tenant};
    if (x->client || !x->joined)
        return x->client ? x->client->number : 0;
    copy_host(ibx_session_path(x->s), like.host);
    like.process = ibx_session_process(x->s, &like.process_namespace);
    pthread_mutex_lock(&lock);
    x->client = find(&like);
    if (!x->client)
        x->client = enter(&like, x->s);
    if (x->client) {
        x->client->sessions++;
        x->client->came++;
    }
    pthread_mutex_unlock(&lock);
    return x->client ? x->client->number : 0;
}

uint64_t ibx_clients_number_of(const struct copies *x)
{
    return x->client ? x->client->number : 0;
}

/* Sessions of one process may come from several addresses of its host, or it has moved with its VM:
 * then they are several clients. */
bool ibx_clients_apart(const struct copies *x, uint64_t number)
{
    const struct ibx_client *own = x->client;
    if (!own || !own->process || own->number == number || x->options.limits.shared)
        return false;
    pthread_mutex_lock(&lock);
    const struct ibx_client *c = find_number(number);
    const bool apart = !c || (c->process && (c->process != own->process ||
                                             c->process_namespace != own->process_namespace));
    pthread_mutex_unlock(&lock);
    return apart;
}

bool ibx_clients_were_several(void)
{
    return atomic_load_explicit(&were_several, memory_order_relaxed);
}

bool ibx_clients_is_process(const struct copies *x)
{
    return x->client && x->client->process;
}

uint64_t ibx_clients_parent(const struct copies *x)
{
    return x->client ? x->client->parent : 0;
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
    const bool broken = ibx_copies_broken();
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

struct ibx_functions_user *ibx_copies_user(struct copies *x)
{
    x->launches.user.client = ibx_clients_number(x);
    x->launches.user.parent = ibx_clients_parent(x);
    x->launches.user.tenant = x->isolation.tenant;
    x->launches.user.quota =
        x->isolation.tenant ? ibx_tenant_quota(x->isolation.tenant, IBX_HOLD_MODULES) : NULL;
    return &x->launches.user;
}
