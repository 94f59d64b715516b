/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What another client has opened (extensions/ipc.c) becomes that client's when its maker has
 * ended. */
#include "frontend-glue/handles/handle_lists.h"

#include <stdlib.h>

#define OPENERS 8u /* at so many, and at each doubling, those that have ended are dropped */

/* Locked. Drops openers that have ended: memory that exists for long may be opened by very many
 * clients that come and go. */
static void forget_openers(struct handle *h)
{
    unsigned left = 0;
    for (unsigned i = 0; i < h->opener_count; i++) {
        if (ibx_clients_has(h->openers[i].client))
            h->openers[left++] = h->openers[i];
    }
    h->opener_count = left;
}

/* Locked. False: no memory. */
static bool open_for(struct handle *h, uint64_t client)
{
    unsigned i = 0;
    while (i < h->opener_count && h->openers[i].client != client)
        i++;
    if (i == h->opener_count && i >= OPENERS && !(i & (i - 1))) {
        forget_openers(h);
        i = h->opener_count;
    }
    if (i == h->opener_count) {
        struct opener *more = realloc(h->openers, (i + 1) * sizeof(*more));
        if (!more)
            return false;
        h->openers = more;
        h->openers[h->opener_count++] = (struct opener){.client = client};
    }
    h->openers[i].times++;
    h->was_open = true;
    ibx_clients_share(client);
    ibx_clients_share(h->client);
    return true;
}

bool ibx_handle_is_open(const struct handle *h, uint64_t client)
{
    unsigned i = 0;
    while (i < h->opener_count && h->openers[i].client != client)
        i++;
    return i < h->opener_count;
}

static bool is_there(const struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    pthread_mutex_lock(&ibx_handles_lock);
    const bool is = ibx_handle_of_tenant(x, kind, value);
    pthread_mutex_unlock(&ibx_handles_lock);
    return is;
}

bool ibx_handles_open(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    const uint64_t client = ibx_clients_number(x);
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *h = ibx_handle_of_tenant(x, kind, value);
    const bool own = h && h->client == client && !h->heir_of && !h->theirs;
    const bool done = h && (!client || own || open_for(h, client));
    pthread_mutex_unlock(&ibx_handles_lock);
    return done;
}

bool ibx_handles_open_theirs(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                             bool *again)
{
    *again = is_there(x, kind, value);
    if (*again)
        return ibx_handles_open(x, kind, value);
    if (!ibx_handles_add(x, kind, value))
        return false;
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *h = ibx_handle_find(x, kind, value);
    if (h)
        h->theirs = true;
    pthread_mutex_unlock(&ibx_handles_lock);
    if (ibx_handles_open(x, kind, value))
        return true;
    ibx_handles_remove(x, kind, value);
    return false;
}

bool ibx_handles_opened_by(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    const uint64_t client = ibx_clients_number(x);
    unsigned i = 0;
    pthread_mutex_lock(&ibx_handles_lock);
    const struct handle *h = ibx_handle_find(x, kind, value);
    while (h && i < h->opener_count && h->openers[i].client != client)
        i++;
    const bool by = h && i < h->opener_count;
    pthread_mutex_unlock(&ibx_handles_lock);
    return by;
}

bool ibx_handles_there(enum ibx_handle_kind kind, uint64_t value)
{
    pthread_mutex_lock(&ibx_handles_lock);
    const bool there = ibx_handle_of_any(kind, value);
    pthread_mutex_unlock(&ibx_handles_lock);
    return there;
}

void ibx_handles_expose(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *h = ibx_handle_find(x, kind, value);
    if (h) {
        h->was_open = true;
        ibx_clients_share(h->client);
    }
    pthread_mutex_unlock(&ibx_handles_lock);
}

/* Locked. */
bool ibx_handle_passes_on(struct handle *h)
{
    for (; h->opener_count; h->opener_count--) {
        const uint64_t opener = h->openers[h->opener_count - 1].client;
        if (opener == h->client || !ibx_clients_has(opener))
            continue;
        h->heir_of = h->heir_of ? h->heir_of : h->client;
        ibx_handle_set_client(h, opener);
        return true;
    }
    return false;
}

/* Locked. Whether the client has now closed it as often as it has opened it. */
static bool close_for(struct handle *h, uint64_t client)
{
    unsigned i = 0;
    while (i < h->opener_count && h->openers[i].client != client)
        i++;
    if (i == h->opener_count || --h->openers[i].times)
        return false;
    h->openers[i] = h->openers[--h->opener_count];
    return true;
}

bool ibx_handle_close(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                      uint64_t *maker)
{
    const uint64_t client = ibx_clients_number(x);
    *maker = 0;
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *h = client ? ibx_handle_of_tenant(x, kind, value) : NULL;
    const bool last = h && close_for(h, client) && h->client == client &&
                      (h->heir_of || h->theirs) && !ibx_handle_passes_on(h);
    const bool theirs = last && h->theirs;
    if (last && !theirs) {
        *maker = h->heir_of;
        ibx_handle_set_client(h, *maker);
        h->heir_of = 0;
    }
    pthread_mutex_unlock(&ibx_handles_lock);
    return theirs;
}
