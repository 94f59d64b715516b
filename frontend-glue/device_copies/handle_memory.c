/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Memory of the device: which program has made it, and who gives it back. All programs of a process
 * have one context, in which an address that one has given back is another one's a moment later:
 * whoever gives it back once more, or still writes there, would do so to that one. Natively each of
 * these calls fails.
 *
 * So memory is known from before its maker learns of it until CUDA has it back, and while somebody
 * gives it back nobody else does. What another program has made is refused, unless it is open to
 * the client. Memory that nobody was seen to make (a library's, a graph's) is not: but before that
 * is given back, calls that make some and are under way end, whose it could be.
 */
#include "frontend-glue/device_copies/handle_lists.h"

#include "common/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define CROSSED_MAX 64u /* allocations in a row that one range may touch */
#define NOT_THERE   1   /* CUDA_ERROR_INVALID_VALUE: of an address of no allocation */

static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned making;          /* calls that make memory; these and the next with the lock */
static unsigned looking;         /* clients that look for memory which nobody was seen to make */
static _Atomic uint64_t changes; /* of who has which memory */

static uint64_t last_of(uint64_t begin, uint64_t n)
{
    return n && n - 1 <= UINT64_MAX - begin ? begin + n - 1 : n ? UINT64_MAX : begin;
}

/* ------------------------------------------------------------------------------------ it is made
 */

void ibx_memory_make_begin(struct copies *x)
{
    pthread_mutex_lock(&ibx_handles_lock);
    while (looking)
        ibx_thread_wait(&changed, &ibx_handles_lock);
    making++;
    x->makes_memory = true;
    pthread_mutex_unlock(&ibx_handles_lock);
}

void ibx_memory_make_end(struct copies *x)
{
    if (!x->makes_memory)
        return;
    pthread_mutex_lock(&ibx_handles_lock);
    x->makes_memory = false;
    if (!--making && looking)
        pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&ibx_handles_lock);
}

/* Locked. What was there, and was not seen to end, is gone. */
static bool enter(struct handle *made)
{
    for (struct handle *gone;
         (gone = ibx_handle_touched(IBX_HANDLE_MEMORY, made->value, made->last));)
        ibx_handle_drop(gone);
    atomic_fetch_add(&changes, 1);
    return ibx_handle_enter(made);
}

bool ibx_memory_add(struct copies *x, uint64_t address, uint64_t n)
{
    struct handle *made = ibx_handle_new(x, IBX_HANDLE_MEMORY, address);
    if (!made)
        return false;
    made->last = last_of(address, n);
    pthread_mutex_lock(&ibx_handles_lock);
    const bool entered = enter(made);
    pthread_mutex_unlock(&ibx_handles_lock);
    return entered;
}

/* ------------------------------------------------------------------------------------- it is used
 */

/* Locked. What is in the client's way in [first, last], with the rest of what it touches to the
 * left and to the right. `steps` go down. */
static const struct handle *other_in(const struct copies *x, uint64_t first, uint64_t last,
                                     unsigned *steps)
{
    const struct handle *other = NULL, *h = ibx_handle_touched(IBX_HANDLE_MEMORY, first, last);
    const uint64_t client = ibx_clients_number_of(x);
    if (!h || !*steps)
        return NULL;
    --*steps;
    if (h->client != client && !ibx_handle_is_open(h, client) && ibx_clients_apart(x, h->client))
        return h;
    if (h->value > first)
        other = other_in(x, first, h->value - 1, steps);
    if (!other && h->last < last)
        other = other_in(x, h->last + 1, last, steps);
    return other;
}

uint64_t ibx_memory_other(struct copies *x, uint64_t address, uint64_t n)
{
    const uint64_t last = last_of(address, n), client = ibx_clients_number(x);
    struct ibx_owners_cache *cache = &x->isolation.own_memory;
    unsigned steps = CROSSED_MAX;
    if (!client || !ibx_clients_were_several() ||
        (cache->changes == atomic_load(&changes) && address >= cache->begin && last <= cache->end))
        return 0;
    pthread_mutex_lock(&ibx_handles_lock);
    const struct handle *other = other_in(x, address, last, &steps);
    const struct handle *h = other ? NULL : ibx_handle_touched(IBX_HANDLE_MEMORY, address, address);
    const uint64_t whose = other ? other->client : 0;
    if (h && h->client == client)
        *cache = (struct ibx_owners_cache){h->value, h->last, atomic_load(&changes)};
    pthread_mutex_unlock(&ibx_handles_lock);
    return whose;
}

/* ------------------------------------------------------------------------------ it is given back
 */

/* Locked. To whom it is open, it is to be closed by. */
static bool begin(const struct copies *x, struct handle *h, uint64_t address, uint64_t *number)
{
    if (h->value != address) /* CUDA refuses it */
        return true;
    if (h->ending || (h->client != ibx_clients_number_of(x) && ibx_clients_apart(x, h->client)))
        return false;
    h->ending = true;
    *number = h->number;
    return true;
}

/* Whether an allocation begins there, as far as the driver tells. */
static bool is_there(struct copies *x, uint64_t address)
{
    uint64_t base = address;
    size_t n;
    const int rc = x->cuda->mem_get_address_range(&base, &n, address);
    return rc ? rc != NOT_THERE : base == address;
}

/* Locked. It is nobody's until it is gone. */
static void note_unseen(struct handle *made, uint64_t *number)
{
    made->client = IBX_CLIENT_NONE;
    made->ending = true;
    if (enter(made))
        *number = made->number;
}

/* Of memory whose maker is not known. What a call that is under way makes is known when that is
 * over, and none begins meanwhile. */
static bool begin_unseen(struct copies *x, uint64_t address, uint64_t *number)
{
    ibx_copies_begin_context(x);
    struct handle *made =
        ibx_copies_have_cuda(x) ? ibx_handle_new(x, IBX_HANDLE_MEMORY, address) : NULL;
    if (!made)
        return true;
    pthread_mutex_lock(&ibx_handles_lock);
    looking++;
    while (making)
        ibx_thread_wait(&changed, &ibx_handles_lock);
    pthread_mutex_unlock(&ibx_handles_lock);
    const bool there = is_there(x, address);
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *h = ibx_handle_touched(IBX_HANDLE_MEMORY, address, address);
    const bool may = h ? begin(x, h, address, number) : there;
    if (may && !h)
        note_unseen(made, number);
    else
        free(made);
    if (!--looking)
        pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&ibx_handles_lock);
    return may;
}

bool ibx_memory_free_begin(struct copies *x, uint64_t address, uint64_t *number)
{
    *number = 0;
    ibx_clients_number(x);
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *h = ibx_handle_touched(IBX_HANDLE_MEMORY, address, address);
    const bool may = h && begin(x, h, address, number);
    pthread_mutex_unlock(&ibx_handles_lock);
    return h ? may : begin_unseen(x, address, number);
}

void ibx_memory_free_end(uint64_t address, uint64_t number, bool freed)
{
    if (!number)
        return;
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *h = ibx_handle_touched(IBX_HANDLE_MEMORY, address, address);
    const bool same = h && h->number == number; /* otherwise the address is another one's already */
    if (same && (freed || h->client == IBX_CLIENT_NONE)) {
        ibx_handle_drop(h);
        atomic_fetch_add(&changes, 1);
    } else if (same) {
        h->ending = false;
    }
    pthread_mutex_unlock(&ibx_handles_lock);
}
