/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Handles that requests have returned. CUDA takes the handle of an array or a pool for an address
 * in this process, so one that was made up, or is of another kind, would crash it. A tenant may
 * name only its own handles, with their own kind, and a program only those that it has made or
 * opened, as far as it is known which process it is. Memory is in the list to know whose it is
 * (handle_memory.c); streams and events are also used by named_streams.c.
 *
 * A request holds what it names, and what that belongs to, until the request is over: another
 * session of the tenant that gives it back meanwhile waits. So does a request that names the same
 * graph: CUDA does not protect a graph from two threads. Natively the program does, and here a
 * client that did not would damage the back end of all. A request that changes an executable graph,
 * or the object of a library's handle, has it alone.
 *
 * In which graphs something is: handle_graphs.c; graphs' sizes: handle_sizes.c; what others have
 * opened: handle_openers.c; memory: handle_memory.c; what a client gives back: handle_removals.c;
 * what it leaves: handle_ends.c.
 */
#include "frontend-glue/handles/handle_lists.h"

#include "common/clock.h"

#include <pthread.h>
#include <search.h>
#include <stdatomic.h>
#include <stdlib.h>

#define HELD_MS 10000u /* for so long a request waits for those who hold something */

pthread_mutex_t ibx_handles_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t let_go = PTHREAD_COND_INITIALIZER;
static void *tree;
#define CLIENT_BUCKETS 8192u
#define GRAPH_BUCKETS  8192u
static struct handle *of_kind[KINDS], *of_client[CLIENT_BUCKETS], *of_graph[GRAPH_BUCKETS];
static atomic_uint there[KINDS]; /* how many there are; 0: nobody needs to take the lock */

/* Ranges that overlap compare as equal: so a search finds one. */
static int compare(const void *a, const void *b)
{
    const struct handle *left = a, *right = b;
    const int kinds = (left->kind > right->kind) - (left->kind < right->kind);
    return kinds ? kinds : (left->value > right->last) - (left->last < right->value);
}

struct handle *ibx_handle_touched(enum ibx_handle_kind kind, uint64_t value, uint64_t last)
{
    const struct handle wanted = {.kind = kind, .value = value, .last = last};
    struct handle *const *found = tfind(&wanted, &tree, compare);
    return found ? *found : NULL;
}

struct handle *ibx_handle_of_any(enum ibx_handle_kind kind, uint64_t value)
{
    struct handle *h = ibx_handle_touched(kind, value, value);
    return h && h->value == value ? h : NULL;
}

struct handle *ibx_handle_of_tenant(const struct gpu_session *x, enum ibx_handle_kind kind,
                                    uint64_t value)
{
    struct handle *h = ibx_handle_of_any(kind, value);
    return h && (!h->tenant || h->tenant == x->isolation.tenant) ? h : NULL;
}

bool ibx_handle_any_of(enum ibx_handle_kind kind)
{
    return atomic_load(&there[kind]);
}

bool ibx_handle_is_apart(const struct gpu_session *x, const struct handle *h)
{
    return h->of_process && h->client != ibx_clients_number_of(x) &&
           ibx_clients_apart(x, h->client);
}

/* Whether the client may name it. */
static bool may_name(const struct gpu_session *x, const struct handle *h)
{
    return ibx_handle_is_of_all(h->kind) || ibx_handle_is_open(h, ibx_clients_number_of(x)) ||
           !ibx_handle_is_apart(x, h);
}

struct handle *ibx_handle_find(const struct gpu_session *x, enum ibx_handle_kind kind,
                               uint64_t value)
{
    struct handle *h = ibx_handle_of_tenant(x, kind, value);
    return h && !h->destroy && may_name(x, h) ? h : NULL;
}

/* The same for a request: an array that the client has freed cannot be named. */
static struct handle *find_to_name(const struct gpu_session *x, enum ibx_handle_kind kind,
                                   uint64_t value)
{
    struct handle *h = ibx_handle_find(x, kind, value);
    return h && !ibx_handle_is_freed(x, h) ? h : NULL;
}

/* ----------------------------------------------------------------------------- lists; locked */

static void link_in(struct handle *h, enum handle_list list, struct handle **head)
{
    h->in[list].next = *head;
    h->in[list].at = head;
    if (*head)
        (*head)->in[list].at = &h->in[list].next;
    *head = h;
}

static void link_out(struct handle *h, enum handle_list list)
{
    *h->in[list].at = h->in[list].next;
    if (h->in[list].next)
        h->in[list].next->in[list].at = h->in[list].at;
}

struct handle **ibx_handle_list_of_client(uint64_t client, unsigned kind)
{
    return &of_client[(client * KINDS + kind) % CLIENT_BUCKETS];
}

static struct handle **list_of_graph(uint64_t graph)
{
    return &of_graph[(graph >> 4 ^ graph >> 16 ^ graph >> 28) % GRAPH_BUCKETS];
}

void ibx_handle_set_client(struct handle *h, uint64_t client)
{
    link_out(h, OF_CLIENT);
    h->client = client;
    link_in(h, OF_CLIENT, ibx_handle_list_of_client(client, h->kind));
}

void ibx_handle_set_graph(struct handle *h, uint64_t graph)
{
    if (h->of)
        link_out(h, OF_GRAPH);
    h->of = graph;
    if (graph)
        link_in(h, OF_GRAPH, list_of_graph(graph));
}

/* Puts a new handle into the lists. */
static void link_all(struct handle *h)
{
    atomic_fetch_add(&there[h->kind], 1);
    link_in(h, OF_KIND, &of_kind[h->kind]);
    link_in(h, OF_CLIENT, ibx_handle_list_of_client(h->client, h->kind));
    if (h->of)
        link_in(h, OF_GRAPH, list_of_graph(h->of));
}

static void free_handle(struct handle *h)
{
    ibx_handle_forget_nodes(h);
    ibx_handle_forget_use(h);
    free(h->openers);
    free(h);
}

void ibx_handle_drop(struct handle *h)
{
    atomic_fetch_sub(&there[h->kind], 1);
    link_out(h, OF_KIND);
    link_out(h, OF_CLIENT);
    if (h->of)
        link_out(h, OF_GRAPH);
    tdelete(h, &tree, compare);
    ibx_handle_count_as(h, NULL);
    ibx_handle_forget_destroy(h);
    if (h->kind == IBX_HANDLE_STREAM || h->kind == IBX_HANDLE_EVENT)
        ibx_handle_is_going();
    h->gone = true;
    if (!h->holders)
        free_handle(h);
}

/* Locked. The handle to which this one belongs, and with which it ends; NULL: to none. */
static struct handle *whole_of(const struct gpu_session *x, const struct handle *h)
{
    const enum ibx_handle_kind kind =
        h->kind == IBX_HANDLE_ARRAY ? IBX_HANDLE_MIPMAP : IBX_HANDLE_GRAPH;
    return h->of && h->kind != IBX_HANDLE_EXEC ? ibx_handle_find(x, kind, h->of) : NULL;
}

/* Locked. False: the request names too much. */
bool ibx_handle_hold(struct gpu_session *x, struct handle *h)
{
    unsigned i = 0;
    while (i < x->held_count && x->held[i] != h)
        i++;
    if (i == IBX_HANDLES_HELD)
        return false;
    if (i < x->held_count)
        return true;
    h->holders++;
    x->held[x->held_count++] = h;
    if (h->kind == IBX_HANDLE_GRAPH)
        h->user = x;
    struct handle *whole = whole_of(x, h);
    return !whole || ibx_handle_hold(x, whole);
}

/* Locked, except while it waits for other requests with the same graph. Finds a handle that the
 * request may hold. NULL: there is none of that value, or waiting takes too long. */
static struct handle *find_free(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    const uint64_t deadline = ibx_deadline_in_ms(HELD_MS);
    const struct timespec until = ibx_timespec_of(deadline);
    for (;;) {
        struct handle *found = find_to_name(x, kind, value), *whole = found;
        while (whole && (!whole->user || whole->user == x))
            whole = whole_of(x, whole);
        if (!whole || ibx_now_ns() >= deadline)
            return whole ? NULL : found;
        pthread_cond_clockwait(&let_go, &ibx_handles_lock, CLOCK_MONOTONIC, &until);
    }
}

void ibx_handle_wait(const struct timespec *until)
{
    pthread_cond_clockwait(&let_go, &ibx_handles_lock, CLOCK_MONOTONIC, until);
}

bool ibx_handle_release(const struct gpu_session *x, struct handle *h)
{
    h->user = h->user == x ? NULL : h->user;
    const bool last = !--h->holders, destroyed = h->destroy;
    if (last && h->gone)
        free_handle(h);
    pthread_cond_broadcast(&let_go);
    return last && destroyed;
}

void ibx_handles_let_go(struct gpu_session *x)
{
    if (x->graph_events.named || x->graph_events.held)
        ibx_graph_events_end(x);
    ibx_handles_uses_end(x);
    if (!x->held_count)
        return;
    bool destroyed = false;
    pthread_mutex_lock(&ibx_handles_lock);
    while (x->held_count)
        destroyed |= ibx_handle_release(x, x->held[--x->held_count]);
    pthread_mutex_unlock(&ibx_handles_lock);
    if (destroyed)
        ibx_handles_destroy_unused();
}

/* Locked. CUDA has returned this handle again, so its former object has ended unseen. */
static void renew(struct handle *h, const struct handle *made)
{
    ibx_handle_count_as(h, NULL);
    h->tenant = made->tenant;
    h->gpu = made->gpu;
    h->weight = made->weight;
    h->nodes = made->nodes;
    h->moved = 0;
    h->depth = made->depth;
    ibx_handle_count_as(h, made->tenant);
    h->context = made->context;
    h->stream = 0;
    h->relies = 0;
    h->of_process = made->of_process;
    h->opener_count = 0;
    h->heir_of = 0;
    ibx_handle_forget_nodes(h);
    ibx_handle_forget_use(h);
    ibx_handle_forget_destroy(h);
    h->theirs = h->captured = false;
    h->into = made->into;
    h->maker = made->maker;
    ibx_handle_set_client(h, made->client);
    ibx_handle_set_graph(h, made->of);
}

struct handle *ibx_handle_new(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    void *context = NULL;
    struct handle *made = malloc(sizeof(*made));
    if (!made)
        return NULL;
    if (ibx_back_end_have_cuda(x) && x->cuda->ctx_get_current(&context))
        context = NULL;
    *made = (struct handle){.kind = kind,
                            .value = value,
                            .last = value,
                            .client = ibx_clients_number(x),
                            .of_process = ibx_clients_is_process(x),
                            .context = context,
                            .gpu = kind == IBX_HANDLE_EXEC ? ibx_room_gpu(x) : 0,
                            .depth = 1,
                            .maker = IBX_MAKER_REQUEST,
                            .weight = 1,
                            .nodes = 1,
                            .tenant = ibx_handle_is_of_all(kind) ? NULL : x->isolation.tenant};
    return made;
}

uint64_t ibx_handle_next_number(void)
{
    static uint64_t numbers;
    return ++numbers;
}

bool ibx_handle_enter(struct handle *made)
{
    struct handle *const *at = tsearch(made, &tree, compare);
    if (!at || *at != made) {
        free(made);
        return false;
    }
    made->number = ibx_handle_next_number();
    link_all(made);
    ibx_handle_count_as(made, made->tenant);
    return true;
}

/* Enters or frees `made`. `listed`: it may be known already, and keeps its number and, in the same
 * graph, all else. False: no memory. */
static bool add(struct handle *made, bool listed)
{
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *const *at = tsearch(made, &tree, compare);
    const bool is_new = at && *at == made;
    if (at && !listed)
        (*at)->number = ibx_handle_next_number();
    if (is_new) {
        link_all(made);
        ibx_handle_count_as(made, made->tenant);
    } else if (at && !(listed && (*at)->of == made->of)) {
        renew(*at, made); /* a device's pool, or an object whose end was not seen */
    }
    pthread_mutex_unlock(&ibx_handles_lock);
    if (!is_new)
        free(made);
    return at;
}

bool ibx_handle_add(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value, uint64_t of,
                    uint64_t weight, bool listed)
{
    struct handle *made = ibx_handle_new(x, kind, value);
    if (!made)
        return false;
    made->of = of;
    made->weight = weight;
    return add(made, listed);
}

bool ibx_handles_add_graph_part(struct gpu_session *x, uint64_t graph, uint64_t outer)
{
    struct handle *made = ibx_handle_new(x, IBX_HANDLE_GRAPH, graph);
    if (!made)
        return false;
    made->of = outer;
    made->into = !outer;
    return add(made, false);
}

bool ibx_handles_add_of_handler(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                                uint64_t weight, enum ibx_handle_maker maker)
{
    struct handle *made = ibx_handle_new(x, kind, value);
    if (!made)
        return false;
    made->weight = weight;
    made->maker = maker;
    return add(made, false);
}

bool ibx_handles_add(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    return ibx_handle_add(x, kind, value, 0, 1, false);
}

bool ibx_handles_add_heavy(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                           uint64_t weight)
{
    return ibx_handle_add(x, kind, value, 0, weight, false);
}

/* Locked, except while it waits for other requests that hold it, such as launches: on an H100 a
 * change during a launch breaks the context (error 719). */
static bool hold_alone(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    const uint64_t deadline = ibx_deadline_in_ms(HELD_MS);
    const struct timespec until = ibx_timespec_of(deadline);
    for (;;) {
        struct handle *found = ibx_handle_find(x, kind, value);
        const bool has = found && (!found->holders || found->user == x);
        if (has && ibx_handle_hold(x, found))
            found->user = x;
        if (!found || has || ibx_now_ns() >= deadline)
            return has && found->user == x;
        pthread_cond_clockwait(&let_go, &ibx_handles_lock, CLOCK_MONOTONIC, &until);
    }
}

bool ibx_handles_change(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    pthread_mutex_lock(&ibx_handles_lock);
    const bool known = hold_alone(x, kind, value);
    pthread_mutex_unlock(&ibx_handles_lock);
    return known;
}

void ibx_handles_select(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                        uint64_t stream)
{
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *found = ibx_handle_find(x, kind, value);
    if (found)
        found->stream = stream;
    pthread_mutex_unlock(&ibx_handles_lock);
}

void ibx_handles_rely(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                      enum ibx_handle_kind on, uint64_t other)
{
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *found = ibx_handle_find(x, kind, value);
    const struct handle *used = ibx_handle_find(x, on, other);
    if (found) {
        found->relies = other;
        found->relied = used ? used->number : 0;
    }
    pthread_mutex_unlock(&ibx_handles_lock);
}

bool ibx_handles_may_rely(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                          enum ibx_handle_kind on)
{
    pthread_mutex_lock(&ibx_handles_lock);
    const struct handle *found = ibx_handle_find(x, kind, value);
    const uint64_t other = found ? found->relies : 0, number = found ? found->relied : 0;
    struct handle *used = other ? find_free(x, on, other) : NULL;
    const bool may = !other || (used && used->number == number && ibx_handle_hold(x, used));
    pthread_mutex_unlock(&ibx_handles_lock);
    return may;
}

enum ibx_handle_maker ibx_handles_maker(struct gpu_session *x, enum ibx_handle_kind kind,
                                        uint64_t value)
{
    pthread_mutex_lock(&ibx_handles_lock);
    const struct handle *found = ibx_handle_find(x, kind, value);
    const enum ibx_handle_maker maker = found ? found->maker : IBX_MAKER_NONE;
    pthread_mutex_unlock(&ibx_handles_lock);
    return maker;
}

uint64_t ibx_handles_selected(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    pthread_mutex_lock(&ibx_handles_lock);
    const struct handle *found = ibx_handle_find(x, kind, value);
    const uint64_t stream = found ? found->stream : 0;
    pthread_mutex_unlock(&ibx_handles_lock);
    return stream;
}

bool ibx_handles_has_node(struct gpu_session *x, uint64_t exec, uint64_t node)
{
    pthread_mutex_lock(&ibx_handles_lock);
    const bool known = hold_alone(x, IBX_HANDLE_EXEC, exec);
    struct handle *found = known ? find_free(x, IBX_HANDLE_NODE, node) : NULL;
    const struct handle *made = found ? ibx_handle_find(x, IBX_HANDLE_EXEC, exec) : NULL;
    const bool has = made && made->user == x && made->of &&
                     ibx_handle_is_in(x, made->of, found->of, made->number) &&
                     found->number < made->number && ibx_handle_hold(x, found);
    pthread_mutex_unlock(&ibx_handles_lock);
    return has;
}

/* Locked. Forgets nodes and conditions of a graph, and the graphs of its conditional nodes with
 * their content. */
static void forget_nodes(uint64_t graph)
{
    struct handle **list = list_of_graph(graph);
    for (struct handle *h = *list, *next; h; h = next) {
        next = h->in[OF_GRAPH].next;
        if (h->of == graph && (h->kind == IBX_HANDLE_NODE || h->kind == IBX_HANDLE_CONDITION))
            ibx_handle_drop(h);
        else if (h->of == graph && h->kind == IBX_HANDLE_EXEC)
            ibx_handle_set_graph(h, 0);
    }
    for (struct handle *h = *list; h;) {
        const uint64_t body = h->of == graph && h->kind == IBX_HANDLE_GRAPH ? h->value : 0;
        if (body) {
            ibx_owners_remove(body, ibx_owners_number(body));
            ibx_handle_drop(h);
            forget_nodes(body);
        }
        h = body ? *list : h->in[OF_GRAPH].next;
    }
}

/* Locked. */
static void forget_levels(uint64_t mipmap)
{
    for (struct handle *h = *list_of_graph(mipmap), *next; h; h = next) {
        next = h->in[OF_GRAPH].next;
        if (h->of != mipmap || h->kind != IBX_HANDLE_ARRAY)
            continue;
        ibx_owners_remove(h->value, ibx_owners_number(h->value));
        ibx_handle_drop(h);
    }
}

/* Locked. */
static void forget_functions(uint64_t module)
{
    for (struct handle *h = *list_of_graph(module), *next; h; h = next) {
        next = h->in[OF_GRAPH].next;
        if (h->of == module &&
            (h->kind == IBX_HANDLE_FUNCTION || h->kind == IBX_HANDLE_TEXTURE_REFERENCE))
            ibx_handle_drop(h);
    }
}

void ibx_handle_forget_parts(enum ibx_handle_kind kind, uint64_t value)
{
    if (kind == IBX_HANDLE_MODULE)
        forget_functions(value);
    if (kind == IBX_HANDLE_GRAPH)
        forget_nodes(value);
    else if (kind == IBX_HANDLE_MIPMAP)
        forget_levels(value);
}

bool ibx_handles_is_node_of(struct gpu_session *x, uint64_t node, uint64_t graph)
{
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *found = find_free(x, IBX_HANDLE_NODE, node);
    const bool is = found && found->of == graph && ibx_handle_hold(x, found);
    pthread_mutex_unlock(&ibx_handles_lock);
    return is;
}

void ibx_handles_forget(const void *context)
{
    pthread_mutex_lock(&ibx_handles_lock);
    for (unsigned kind = 0; kind < KINDS; kind++) {
        for (struct handle *h = of_kind[kind], *next; h; h = next) {
            next = h->in[OF_KIND].next;
            if (context && h->context && h->context != context)
                continue;
            if (ibx_handle_is_of_host(h->kind))
                h->context = NULL;
            else
                ibx_handle_drop(h);
        }
    }
    pthread_mutex_unlock(&ibx_handles_lock);
}

bool ibx_handles_know(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *found = find_free(x, kind, value);
    const bool known = found && ibx_handle_hold(x, found);
    pthread_mutex_unlock(&ibx_handles_lock);
    return known;
}

bool ibx_handles_has(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    pthread_mutex_lock(&ibx_handles_lock);
    const bool has = find_to_name(x, kind, value);
    pthread_mutex_unlock(&ibx_handles_lock);
    return has;
}

bool ibx_handles_is_own(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                        const void **context)
{
    const uint64_t client = ibx_clients_number(x);
    pthread_mutex_lock(&ibx_handles_lock);
    const struct handle *found = ibx_handle_find(x, kind, value);
    const bool is = found && client && found->client == client && !found->was_open;
    if (is)
        *context = found->context;
    pthread_mutex_unlock(&ibx_handles_lock);
    return is;
}

struct handle **ibx_handles_hold_streams(uint64_t client, const void *context, size_t *count)
{
    const enum handle_list list = client ? OF_CLIENT : OF_KIND;
    struct handle *const *head =
        client ? ibx_handle_list_of_client(client, IBX_HANDLE_STREAM) : &of_kind[IBX_HANDLE_STREAM];
    size_t i = 0;
    pthread_mutex_lock(&ibx_handles_lock);
    for (const struct handle *h = *head; h; h = h->in[list].next)
        i++;
    struct handle **held = calloc(i + 1, sizeof(struct handle *));
    i = 0;
    for (struct handle *h = *head; held && h; h = h->in[list].next) {
        if (h->kind != IBX_HANDLE_STREAM || (client && h->client != client) ||
            (h->context && h->context != context))
            continue;
        h->holders++;
        held[i++] = h;
    }
    pthread_mutex_unlock(&ibx_handles_lock);
    *count = i;
    return held;
}

uint64_t ibx_handles_value(const struct handle *held)
{
    return held->value;
}

uint64_t ibx_handles_client(const struct handle *held)
{
    return held->client;
}

void ibx_handles_release(struct handle **held, size_t count)
{
    bool destroyed = false;
    pthread_mutex_lock(&ibx_handles_lock);
    for (size_t i = 0; i < count; i++)
        destroyed |= ibx_handle_release(NULL, held[i]);
    pthread_mutex_unlock(&ibx_handles_lock);
    free(held);
    if (destroyed)
        ibx_handles_destroy_unused();
}
