/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Handles that a client leaves when it ends, or gives up by a reset: they are taken from the
 * lists, and the caller returns them to CUDA (client_ends.c, own_reset.c). */
#include "frontend-glue/handles/handle_lists.h"

#include <stdlib.h>

/* Whether it is given back by itself: it is the client's, and does not end with another one or with
 * a capture. */
static bool goes_alone(const struct handle *h, uint64_t client)
{
    return client && h->client == client && !ibx_handle_is_of_all(h->kind) &&
           !(h->of && h->kind != IBX_HANDLE_EXEC) && !h->into;
}

/* Whether to take the handle now. `graphs`: takes graphs and executable graphs, of all contexts. A
 * handle that another client has open is passed on, which moves it to another list. */
static bool is_taken(struct handle *h, uint64_t client, bool graphs, const void *context)
{
    return goes_alone(h, client) && !h->holders && !h->ending && !ibx_handle_is_used(NULL, h) &&
           (graphs ? h->kind == IBX_HANDLE_GRAPH || h->kind == IBX_HANDLE_EXEC
                   : !h->context || h->context == context) &&
           !ibx_handle_passes_on(h);
}

/* Locked. Memory stays in the list, as being freed, until it was freed: so nobody else frees it. */
static struct ibx_taken take_it(struct handle *h)
{
    const struct ibx_taken taken = {h->kind,     h->value,  h->context,
                                    h->was_open, h->number, ibx_owners_number(h->value)};
    if (h->kind != IBX_HANDLE_MEMORY) {
        ibx_handle_drop(h);
        return taken;
    }
    h->ending = true;
    ibx_handle_set_client(h, IBX_CLIENT_NONE);
    return taken;
}

void ibx_taken_gone(const struct ibx_taken *taken)
{
    ibx_owners_remove(taken->value, taken->owned);
    ibx_memory_free_end(taken->value, taken->number, true);
}

/* Locked. Takes the handles of a kind that are in a context; `taken` NULL: only counts them. */
static size_t take_kind(uint64_t client, unsigned kind, bool graphs, const void *context,
                        struct ibx_taken *taken, size_t most)
{
    size_t count = 0;
    for (struct handle *h = *ibx_handle_list_of_client(client, kind), *next; h && count < most;
         h = next) {
        next = h->in[OF_CLIENT].next;
        if (h->kind != kind || ibx_handle_is_of_host(h->kind) ||
            !is_taken(h, client, graphs, context))
            continue;
        if (taken)
            taken[count] = take_it(h);
        count++;
    }
    return count;
}

/* Locked. */
static void forget_parts(const struct ibx_taken *taken, size_t count)
{
    for (size_t i = 0; i < count; i++)
        ibx_handle_forget_parts(taken[i].kind, taken[i].value);
}

static size_t take(uint64_t client, bool graphs, const void *context, struct ibx_taken **taken)
{
    size_t count = 0, i = 0;
    pthread_mutex_lock(&ibx_handles_lock);
    for (unsigned kind = 0; kind < KINDS; kind++)
        count += take_kind(client, kind, graphs, context, NULL, SIZE_MAX);
    *taken = calloc(count + 1, sizeof(**taken));
    for (unsigned kind = 0; *taken && kind < KINDS; kind++)
        i += take_kind(client, kind, graphs, context, *taken + i, count - i);
    forget_parts(*taken, i);
    pthread_mutex_unlock(&ibx_handles_lock);
    return i;
}

size_t ibx_handles_take(struct gpu_session *x, struct ibx_taken **taken)
{
    const uint64_t client = ibx_clients_number(x);
    void *context = NULL;
    *taken = NULL;
    if (!ibx_back_end_have_cuda(x) || x->cuda->ctx_get_current(&context))
        return 0;
    return take(client, false, context, taken);
}

size_t ibx_handles_take_graphs(uint64_t client, struct ibx_taken **taken)
{
    return take(client, true, NULL, taken);
}

bool ibx_handles_first(uint64_t client, enum ibx_handle_kind kind, const void **context)
{
    pthread_mutex_lock(&ibx_handles_lock);
    const struct handle *h = *ibx_handle_list_of_client(client, kind);
    while (h && !(h->kind == kind && goes_alone(h, client) && !h->holders && !h->ending &&
                  !ibx_handle_is_used(NULL, h)))
        h = h->in[OF_CLIENT].next;
    if (h)
        *context = h->context;
    pthread_mutex_unlock(&ibx_handles_lock);
    return h;
}

bool ibx_handles_any(uint64_t client)
{
    const struct handle *h = NULL;
    pthread_mutex_lock(&ibx_handles_lock);
    for (unsigned kind = 0; kind < KINDS && !h; kind++) {
        h = *ibx_handle_list_of_client(client, kind);
        while (h && !goes_alone(h, client))
            h = h->in[OF_CLIENT].next;
    }
    pthread_mutex_unlock(&ibx_handles_lock);
    return h;
}

size_t ibx_handles_take_some(uint64_t client, enum ibx_handle_kind kind, const void *context,
                             struct ibx_taken *taken, size_t most)
{
    size_t count = 0;
    pthread_mutex_lock(&ibx_handles_lock);
    for (struct handle *h = *ibx_handle_list_of_client(client, kind), *next; h && count < most;
         h = next) {
        next = h->in[OF_CLIENT].next;
        if (h->kind != kind || h->context != context || !is_taken(h, client, false, context))
            continue;
        taken[count++] = take_it(h);
    }
    forget_parts(taken, count);
    pthread_mutex_unlock(&ibx_handles_lock);
    return count;
}
