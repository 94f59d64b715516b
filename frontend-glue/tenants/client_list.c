/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Which sessions belong to one client. Natively a client is a process, whose threads share a
 * context of their own; here it has a session for each thread, and all clients share one context. A
 * client says with its first message which process it is. That counts on its host, and for the name
 * of its key: so a client can at most pretend to be another one of its own tenant.
 *
 * A session whose client has said nothing is a client of its own.
 *
 * A client without a session may come again, since each of its threads' sessions ends with the
 * thread. So what it has made is kept until its process has ended. This host sees that, or the
 * client says it with one of its sessions; a client on another host keeps its last session open for
 * that, and has ended when it loses that one (plugin/last_session.c, client_ends.c). The number of
 * such clients of a tenant is limited; beyond that, the one that has been away longest counts as
 * ended.
 */
#include "frontend-glue/tenants/client_list_internal.h"
#include "frontend-glue/gvirtus_handlers/client_functions.h"
#include "frontend-glue/tenants/tenants.h"

#include "common/clock.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RESET_MS 3000u /* for so long a new session waits for a reset to end */

struct ibx_client_list ibx_client_list = {.lock = PTHREAD_MUTEX_INITIALIZER,
                                          .changed = PTHREAD_COND_INITIALIZER};
static uint64_t numbers; /* of clients, given so far; under the lock of the list */
static _Atomic bool were_several;
static const struct gpu_session *resetting; /* the session that resets the context of all */
static uint64_t reset_until;                /* ns */

void ibx_clients_join(struct gpu_session *x)
{
    /* A client may reset again and again, and each time move reset_until: so this has a deadline,
     * too. */
    const uint64_t mine = ibx_deadline_in_ms(RESET_MS);
    pthread_mutex_lock(&ibx_client_list.lock);
    while (!x->joined && resetting && ibx_now_ns() < reset_until && ibx_now_ns() < mine) {
        const uint64_t end = mine < reset_until ? mine : reset_until;
        const struct timespec until = ibx_timespec_of(end);
        pthread_cond_clockwait(&ibx_client_list.changed, &ibx_client_list.lock, CLOCK_MONOTONIC,
                               &until);
    }
    ibx_client_list.sessions += !x->joined;
    x->joined = true;
    pthread_mutex_unlock(&ibx_client_list.lock);
}

bool ibx_client_has_ended(const struct ibx_client *c)
{
    struct pollfd wait = {.fd = c->process_fd, .events = POLLIN};
    return c->process_fd >= 0 && poll(&wait, 1, 0) > 0;
}

bool ibx_clients_own_ended(const struct gpu_session *x)
{
    return x->client && ibx_client_has_ended(x->client);
}

/* Locked. */
struct ibx_client *ibx_client_find_number(uint64_t number)
{
    struct ibx_client *c = ibx_client_list.all;
    while (c && c->number != number)
        c = c->next;
    return c;
}

/* Locked. */
struct ibx_client_name ibx_client_name_of(const struct ibx_client *c)
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
    pthread_mutex_lock(&ibx_client_list.lock);
    const struct ibx_client *c = ibx_client_find_number(number);
    if (c)
        *name = ibx_client_name_of(c);
    pthread_mutex_unlock(&ibx_client_list.lock);
}

bool ibx_clients_has(uint64_t number)
{
    pthread_mutex_lock(&ibx_client_list.lock);
    const bool has = ibx_client_find_number(number);
    pthread_mutex_unlock(&ibx_client_list.lock);
    return has;
}

bool ibx_clients_give_begin(void)
{
    pthread_mutex_lock(&ibx_client_list.lock);
    const bool can = !resetting || ibx_now_ns() >= reset_until;
    ibx_client_list.leaving += can;
    pthread_mutex_unlock(&ibx_client_list.lock);
    return can;
}

void ibx_clients_give_end(void)
{
    pthread_mutex_lock(&ibx_client_list.lock);
    ibx_client_list.leaving--;
    pthread_cond_broadcast(&ibx_client_list.changed);
    pthread_mutex_unlock(&ibx_client_list.lock);
}

bool ibx_clients_left(void)
{
    pthread_mutex_lock(&ibx_client_list.lock);
    const bool left = ibx_client_list.all;
    pthread_mutex_unlock(&ibx_client_list.lock);
    return left;
}

bool ibx_clients_any(void)
{
    pthread_mutex_lock(&ibx_client_list.lock);
    const bool any = ibx_client_list.sessions;
    pthread_mutex_unlock(&ibx_client_list.lock);
    return any;
}

bool ibx_clients_all_ended(void)
{
    unsigned sessions = 0; /* others have made no request yet: their programs are not known */
    pthread_mutex_lock(&ibx_client_list.lock);
    const struct ibx_client *c = ibx_client_list.all;
    for (; c && ibx_client_has_ended(c); c = c->next)
        sessions += c->sessions;
    const bool ended = !c && sessions == ibx_client_list.sessions;
    pthread_mutex_unlock(&ibx_client_list.lock);
    return ended;
}

bool ibx_clients_others(struct gpu_session *x)
{
    ibx_clients_number(x);
    pthread_mutex_lock(&ibx_client_list.lock);
    const bool several = x->client ? ibx_client_list.all != x->client || ibx_client_list.all->next
                                   : ibx_client_list.all != NULL;
    pthread_mutex_unlock(&ibx_client_list.lock);
    return several;
}

void ibx_clients_use_thread_stream(struct gpu_session *x)
{
    ibx_clients_number(x);
    pthread_mutex_lock(&ibx_client_list.lock);
    if (x->client && !x->thread_stream) {
        x->client->thread_streams++;
        ibx_client_list.thread_streams++;
        x->thread_stream = true;
    }
    pthread_mutex_unlock(&ibx_client_list.lock);
}

bool ibx_clients_use_thread_streams(const struct gpu_session *x)
{
    pthread_mutex_lock(&ibx_client_list.lock);
    const bool use = ibx_client_list.thread_streams > x->thread_stream;
    pthread_mutex_unlock(&ibx_client_list.lock);
    return use;
}

void ibx_clients_hide_work(struct gpu_session *x)
{
    ibx_clients_number(x);
    if (!x->client || atomic_load_explicit(&x->client->hides_work, memory_order_relaxed))
        return;
    /* All clients share the lock: so it is not taken at each call of a library. */
    pthread_mutex_lock(&ibx_client_list.lock);
    atomic_store(&x->client->hides_work, true);
    pthread_mutex_unlock(&ibx_client_list.lock);
}

void ibx_clients_share(uint64_t number)
{
    pthread_mutex_lock(&ibx_client_list.lock);
    struct ibx_client *c = ibx_client_find_number(number);
    if (c)
        c->shares = true;
    pthread_mutex_unlock(&ibx_client_list.lock);
}

/* Locked. Whether sessions of the client's process come from another address of its host, too: they
 * are another client. */
static bool comes_from_elsewhere(const struct ibx_client *like)
{
    const struct ibx_client *c = ibx_client_list.all;
    while (c && (c == like || c->process != like->process ||
                 c->process_namespace != like->process_namespace))
        c = c->next;
    return c;
}

bool ibx_clients_find_work(const struct gpu_session *x)
{
    pthread_mutex_lock(&ibx_client_list.lock);
    const struct ibx_client *c = x->client;
    const bool find = c && c->process && !comes_from_elsewhere(c) && !atomic_load(&c->hides_work) &&
                      c->thread_streams == x->thread_stream;
    pthread_mutex_unlock(&ibx_client_list.lock);
    return find;
}

/* Only for a client that has said which process it is: otherwise its other threads are other
 * clients, and may launch its graphs. */
void ibx_clients_calls(struct gpu_session *x)
{
    ibx_clients_number(x);
    pthread_mutex_lock(&ibx_client_list.lock);
    if (x->client && x->client->process)
        x->client->calls = true;
    pthread_mutex_unlock(&ibx_client_list.lock);
}

/* "HOST:PORT" without the port, which differs between the connections of a process. For this host
 * "": it has many addresses, and each process may come from any of them. */
static void copy_host(const struct ibx_path *path, char host[sizeof(ibx_client_list.all->host)])
{
    const char *peer = path->remote ? path->peer : "", *colon = strrchr(peer, ':');
    const size_t n = colon ? (size_t)(colon - peer) : strlen(peer);
    memcpy(host, peer, n);
    host[n] = 0;
}

/* Locked. */
static struct ibx_client *find(const struct ibx_client *like)
{
    struct ibx_client *c = like->process ? ibx_client_list.all : NULL;
    while (c && !(c->process == like->process && c->tenant == like->tenant &&
                  c->process_namespace == like->process_namespace && !strcmp(c->host, like->host) &&
                  !ibx_client_has_ended(c)))
        c = c->next;
    return c;
}

/* The parent of a process; 0: not known. */
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

/* Locked. The client from which this one was forked, with its modules, as far as this host sees. */
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
    made->next = ibx_client_list.all;
    ibx_client_list.all = made;
    return made;
}

uint64_t ibx_clients_number(struct gpu_session *x)
{
    struct ibx_client like = {.tenant = x->isolation.tenant};
    if (x->client || !x->joined)
        return x->client ? x->client->number : 0;
    copy_host(ibx_session_path(x->s), like.host);
    like.process = ibx_session_process(x->s, &like.process_namespace);
    pthread_mutex_lock(&ibx_client_list.lock);
    x->client = find(&like);
    if (!x->client)
        x->client = enter(&like, x->s);
    if (x->client) {
        x->client->sessions++;
        x->client->came++;
    }
    pthread_mutex_unlock(&ibx_client_list.lock);
    return x->client ? x->client->number : 0;
}

uint64_t ibx_clients_number_of(const struct gpu_session *x)
{
    return x->client ? x->client->number : 0;
}

/* Not by numbers of clients alone: sessions of one process may be several clients, if they come
 * from several addresses of its host, or if it has moved with its VM. */
bool ibx_clients_apart(const struct gpu_session *x, uint64_t number)
{
    const struct ibx_client *own = x->client;
    if (!own || !own->process || own->number == number || x->options.limits.shared)
        return false;
    pthread_mutex_lock(&ibx_client_list.lock);
    const struct ibx_client *c = ibx_client_find_number(number);
    const bool apart = !c || (c->process && (c->process != own->process ||
                                             c->process_namespace != own->process_namespace));
    pthread_mutex_unlock(&ibx_client_list.lock);
    return apart;
}

bool ibx_clients_were_several(void)
{
    return atomic_load_explicit(&were_several, memory_order_relaxed);
}

bool ibx_clients_is_process(const struct gpu_session *x)
{
    return x->client && x->client->process;
}

/* Locked, except while it waits until nobody gives things back. In a broken context that does not
 * take long. */
static void let_leave(void)
{
    const uint64_t deadline = ibx_deadline_in_ms(RESET_MS);
    const struct timespec until = ibx_timespec_of(deadline);
    while (ibx_client_list.leaving && ibx_now_ns() < deadline)
        pthread_cond_clockwait(&ibx_client_list.changed, &ibx_client_list.lock, CLOCK_MONOTONIC,
                               &until);
}

/* Locked. Whether another client has no session, and may come again: it would miss what it has made
 * in the context. */
static bool any_is_away(const struct gpu_session *x)
{
    const struct ibx_client *c = ibx_client_list.all;
    while (c && (c == x->client || c->sessions || ibx_client_has_ended(c)))
        c = c->next;
    return c;
}

bool ibx_clients_reset(struct gpu_session *x, bool broken)
{
    ibx_clients_number(x);
    pthread_mutex_lock(&ibx_client_list.lock);
    if (broken)
        let_leave();
    const bool alone =
        broken ||
        (!ibx_client_list.leaving &&
         (x->client ? x->client->sessions : 1) >= ibx_client_list.sessions && !any_is_away(x));
    if (alone) {
        resetting = x;
        reset_until = ibx_deadline_in_ms(RESET_MS);
    }
    pthread_mutex_unlock(&ibx_client_list.lock);
    return alone;
}

void ibx_clients_reset_over(const struct gpu_session *x)
{
    pthread_mutex_lock(&ibx_client_list.lock);
    if (resetting == x) {
        resetting = NULL;
        pthread_cond_broadcast(&ibx_client_list.changed);
    }
    pthread_mutex_unlock(&ibx_client_list.lock);
}

struct ibx_functions_user *ibx_functions_user_of(struct gpu_session *x)
{
    x->launches.user.client = ibx_clients_number(x);
    x->launches.user.parent = x->client ? x->client->parent : 0;
    x->launches.user.tenant = x->isolation.tenant;
    x->launches.user.quota =
        x->isolation.tenant ? ibx_tenant_quota(x->isolation.tenant, IBX_HOLD_MODULES) : NULL;
    return &x->launches.user;
}
