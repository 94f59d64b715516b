/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Arrays: levels of mipmapped ones, and those that copies in graphs name. CUDA takes the handle of
 * an array in a graph for an address, also after the array was freed. So an array that graphs name
 * is freed when these are gone: until then the client may not name it any more.
 */
#include "frontend-glue/handles/handle_lists.h"

#include "common/clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define HELD_MS 10000u /* for so long a free waits for requests that hold the array */

struct ibx_array_use {
    atomic_uint users; /* its handle, and objects of graphs */
};

static unsigned later; /* locked: how many are to be freed later */

bool ibx_handles_add_level(struct gpu_session *x, uint64_t array, uint64_t mipmap)
{
    return ibx_handle_add(x, IBX_HANDLE_ARRAY, array, mipmap, 1, false);
}

bool ibx_handles_is_level(struct gpu_session *x, uint64_t array)
{
    pthread_mutex_lock(&ibx_handles_lock);
    const struct handle *found = ibx_handle_find(x, IBX_HANDLE_ARRAY, array);
    const bool is = found && found->of;
    pthread_mutex_unlock(&ibx_handles_lock);
    return is;
}

void ibx_array_use_end(void *use)
{
    struct ibx_array_use *u = use;
    if (atomic_fetch_sub(&u->users, 1) == 1)
        free(u);
}

bool ibx_handle_is_freed(const struct gpu_session *x, const struct handle *h)
{
    if (h->kind == IBX_HANDLE_ARRAY && h->of)
        h = ibx_handle_find(x, IBX_HANDLE_MIPMAP, h->of);
    return !h || h->freed;
}

/* Locked. */
static void set_later(struct handle *h, bool is)
{
    later += is;
    later -= h->freed_later;
    h->freed_later = is;
}

void ibx_handle_forget_use(struct handle *h)
{
    if (h->use)
        ibx_array_use_end(h->use);
    h->use = NULL;
    h->freed = h->in_graphs = false;
    set_later(h, false);
}

/* Locked. The array, or, for a level, the mipmapped array, with which it is freed. */
static struct handle *whole_array(const struct gpu_session *x, uint64_t array)
{
    struct handle *h = ibx_handle_find(x, IBX_HANDLE_ARRAY, array);
    return h && h->of ? ibx_handle_find(x, IBX_HANDLE_MIPMAP, h->of) : h;
}

void *ibx_array_use_begin(struct gpu_session *x, uint64_t array)
{
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *h = whole_array(x, array);
    if (h && !h->use && (h->use = malloc(sizeof(*h->use))))
        atomic_init(&h->use->users, 1);
    struct ibx_array_use *use = h ? h->use : NULL;
    if (use)
        atomic_fetch_add(&use->users, 1);
    else if (h)
        h->in_graphs = true;
    pthread_mutex_unlock(&ibx_handles_lock);
    return use;
}

void ibx_array_use_unknown(struct gpu_session *x, uint64_t array)
{
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *h = whole_array(x, array);
    if (h)
        h->in_graphs = true;
    pthread_mutex_unlock(&ibx_handles_lock);
}

void ibx_arrays_left_in_graphs(struct gpu_session *x)
{
    static const enum ibx_handle_kind kinds[] = {IBX_HANDLE_ARRAY, IBX_HANDLE_MIPMAP};
    const uint64_t client = ibx_clients_number(x);
    pthread_mutex_lock(&ibx_handles_lock);
    for (unsigned i = 0; i < 2; i++) {
        struct handle *h = *ibx_handle_list_of_client(client, kinds[i]);
        for (; h; h = h->in[OF_CLIENT].next)
            h->in_graphs |= h->kind == kinds[i] && h->client == client && h->use &&
                            atomic_load(&h->use->users) > 1;
    }
    pthread_mutex_unlock(&ibx_handles_lock);
}

/* Locked. */
static bool is_used(const struct handle *h)
{
    return h->holders || h->in_graphs || (h->use && atomic_load(&h->use->users) > 1);
}

/* Locked. The array or mipmapped array that is to be freed; NULL: there is none. */
static struct handle *find_freed(const struct gpu_session *x, enum ibx_handle_kind kind,
                                 uint64_t value)
{
    struct handle *found = ibx_handle_find(x, kind, value);
    return found && found->freed ? found : NULL;
}

enum ibx_array_end ibx_handles_free_array(struct gpu_session *x, enum ibx_handle_kind kind,
                                          uint64_t value)
{
    const uint64_t deadline = ibx_deadline_in_ms(HELD_MS);
    const struct timespec until = ibx_timespec_of(deadline);
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *h = ibx_handle_find(x, kind, value);
    const bool known = h && !h->freed;
    if (known)
        h->freed = true;
    while (known && (h = find_freed(x, kind, value)) && h->holders && ibx_now_ns() < deadline)
        ibx_handle_wait(&until);
    const bool now = known && h && !is_used(h);
    const enum ibx_array_end end = now     ? IBX_ARRAY_NOW
                                   : known ? IBX_ARRAY_LATER
                                   : h     ? IBX_ARRAY_FREED
                                           : IBX_ARRAY_UNKNOWN;
    if (end == IBX_ARRAY_LATER && h)
        set_later(h, true);
    pthread_mutex_unlock(&ibx_handles_lock);
    return end;
}

void ibx_handles_array_stays(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                             bool freed_later)
{
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *h = ibx_handle_find(x, kind, value);
    if (h && freed_later)
        set_later(h, true);
    else if (h)
        h->freed = false;
    pthread_mutex_unlock(&ibx_handles_lock);
}

void ibx_handles_array_gone(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *h = find_freed(x, kind, value);
    if (h) {
        ibx_handle_forget_parts(kind, value);
        ibx_handle_drop(h);
    }
    pthread_mutex_unlock(&ibx_handles_lock);
}

uint64_t ibx_handles_unused_array(struct gpu_session *x, enum ibx_handle_kind kind)
{
    const uint64_t client = ibx_clients_number(x);
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *h = later ? *ibx_handle_list_of_client(client, kind) : NULL;
    while (h && !(h->kind == kind && h->client == client && h->freed_later && !is_used(h)))
        h = h->in[OF_CLIENT].next;
    const uint64_t value = h ? h->value : 0;
    if (h)
        set_later(h, false);
    pthread_mutex_unlock(&ibx_handles_lock);
    return value;
}
