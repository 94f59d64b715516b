/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Device memory: which program has made it, and who frees it. All programs of a process have one
 * context, in which an address that one program has freed may be another one's a moment later: a
 * program that frees it twice, or still writes there, would do so to the other one. Natively each
 * of these calls fails.
 *
 * So memory is in the list from before its maker learns of it until CUDA has freed it, and while
 * somebody frees it, nobody else does. Memory that another program has made is refused, unless it
 * is open to the client. Memory that nobody was seen to make (a library's) is not refused: but
 * before that is freed, calls under way that allocate memory are waited for, since it could be
 * theirs. Memory of a graph is allocated again by its next launch, at the same address: so it stays
 * its maker's.
 */
#include "frontend-glue/handles/handle_lists.h"

#include "common/clock.h"
#include "common/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define MAKING_MS 10000u /* for so long calls that make memory are waited for */
#define ENDING_MS 1000u  /* ... and another program's memory that is being freed */
#define NOT_FOUND 500    /* CUDA_ERROR_NOT_FOUND; as CUDA_INVALID_VALUE: there is no allocation */

static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned making;          /* calls that make memory; this and the next four under the lock */
static unsigned looking;         /* clients between begin_look() and end_look() */
static unsigned held;            /* calls that make memory and wait until nobody looks */
static uint64_t looks;           /* how often the last client has ended its look */
static unsigned waiting;         /* clients that wait for memory to be freed */
static _Atomic uint64_t changes; /* of the list of memory */

/* ------------------------------------------------------------------------------ it is made */

void ibx_memory_make_begin(struct gpu_session *x)
{
    pthread_mutex_lock(&ibx_handles_lock);
    const uint64_t now = looks;
    if (looking)
        held++; /* end_look() counts it */
    else
        making++;
    while (looking && looks == now)
        ibx_thread_wait(&changed, &ibx_handles_lock);
    x->makes_memory = true;
    pthread_mutex_unlock(&ibx_handles_lock);
}

void ibx_memory_make_end(struct gpu_session *x)
{
    if (!x->makes_memory)
        return;
    pthread_mutex_lock(&ibx_handles_lock);
    x->makes_memory = false;
    if (!--making && looking)
        pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&ibx_handles_lock);
}

/* Locked. Memory that was at that address, and was not seen to end, is gone. */
static bool enter(struct handle *made)
{
    for (struct handle *gone;
         (gone = ibx_handle_touched(IBX_HANDLE_MEMORY, made->value, made->last));)
        ibx_handle_drop(gone);
    atomic_fetch_add(&changes, 1);
    return ibx_handle_enter(made);
}

bool ibx_memory_add(struct gpu_session *x, uint64_t address, uint64_t n, bool of_graph)
{
    struct handle *made = ibx_handle_new(x, IBX_HANDLE_MEMORY, address);
    if (!made)
        return false;
    made->last = ibx_range_last(address, n);
    made->of_graph = of_graph;
    pthread_mutex_lock(&ibx_handles_lock);
    const bool entered = enter(made);
    pthread_mutex_unlock(&ibx_handles_lock);
    return entered;
}

/* Locked, except while it waits. Waits until all memory that calls under way make is known, and
 * holds back other such calls until end_look(). If clients look again and again, calls that wait
 * begin in between. */
static void begin_look(void)
{
    const uint64_t deadline = ibx_deadline_in_ms(MAKING_MS);
    const struct timespec until = ibx_timespec_of(deadline);
    while (looking && held && ibx_now_ns() < deadline)
        pthread_cond_clockwait(&changed, &ibx_handles_lock, CLOCK_MONOTONIC, &until);
    looking++;
    while (making && ibx_now_ns() < deadline)
        pthread_cond_clockwait(&changed, &ibx_handles_lock, CLOCK_MONOTONIC, &until);
}

static void end_look(void)
{
    if (--looking)
        return;
    looks++;
    making += held;
    held = 0;
    pthread_cond_broadcast(&changed);
}

static bool is_no_address(int rc)
{
    return rc == CUDA_INVALID_VALUE || rc == NOT_FOUND;
}

/* ------------------------------------------------------------------------------ it is used */

/* Locked. Memory in [first, last] that the client may not use, or NULL; recursive to the left and
 * to the right of the memory that it finds. `steps` are counted down; with none left, all memory is
 * refused. */
static const struct handle *other_in(const struct gpu_session *x, uint64_t first, uint64_t last,
                                     unsigned *steps)
{
    const struct handle *other = NULL, *h = ibx_handle_touched(IBX_HANDLE_MEMORY, first, last);
    const uint64_t client = ibx_clients_number_of(x);
    if (!h)
        return NULL;
    if (!*steps || (!ibx_handle_is_open(h, client) && ibx_handle_is_apart(x, h)))
        return h;
    --*steps;
    if (h->value > first)
        other = other_in(x, first, h->value - 1, steps);
    if (!other && h->last < last)
        other = other_in(x, h->last + 1, last, steps);
    return other;
}

/* Locked, except while it waits for memory that is being freed: it may be nobody's afterwards, and
 * new memory there may be some that nobody was seen to make. */
static const struct handle *other_at_last(const struct gpu_session *x, uint64_t first,
                                          uint64_t last)
{
    const uint64_t deadline = ibx_deadline_in_ms(ENDING_MS);
    const struct timespec until = ibx_timespec_of(deadline);
    for (;;) {
        unsigned steps = IBX_RANGE_CROSSED_MAX;
        const struct handle *other = other_in(x, first, last, &steps);
        if (!other || !other->ending || ibx_now_ns() >= deadline)
            return other;
        waiting++;
        pthread_cond_clockwait(&changed, &ibx_handles_lock, CLOCK_MONOTONIC, &until);
        waiting--;
    }
}

/* Locked. The client whose memory it is, if it is not for this one; otherwise caches it as its own
 * for the next question. */
static uint64_t other_than(struct gpu_session *x, uint64_t first, uint64_t last)
{
    const struct handle *other = other_at_last(x, first, last);
    const struct handle *h = other ? NULL : ibx_handle_touched(IBX_HANDLE_MEMORY, first, first);
    if (h && h->client == ibx_clients_number_of(x))
        x->isolation.own_memory =
            (struct ibx_owners_cache){h->value, h->last, atomic_load(&changes)};
    return other ? other->client : 0;
}

/* Whether it is the client's own for sure, without a look at the list. */
static bool is_own(struct gpu_session *x, uint64_t first, uint64_t last)
{
    const struct ibx_owners_cache *own = &x->isolation.own_memory;
    return !ibx_clients_number(x) || !ibx_clients_were_several() ||
           (own->changes == atomic_load(&changes) && first >= own->begin && last <= own->end);
}

uint64_t ibx_memory_other(struct gpu_session *x, uint64_t address, uint64_t n)
{
    const uint64_t last = ibx_range_last(address, n);
    if (is_own(x, address, last))
        return 0;
    pthread_mutex_lock(&ibx_handles_lock);
    const bool unsure = making && !ibx_handle_touched(IBX_HANDLE_MEMORY, address, last);
    if (unsure)
        begin_look();
    const uint64_t other = other_than(x, address, last);
    if (unsure)
        end_look();
    pthread_mutex_unlock(&ibx_handles_lock);
    return other;
}

/* Whether CUDA knows of no memory there, neither device memory nor page-locked. */
static bool is_none(struct gpu_session *x, uint64_t address)
{
    unsigned type = 0;
    void *values[] = {&type};
    const int rc = ibx_back_end_have_cuda(x)
                       ? x->cuda->pointer_get_attributes(1, &(int){IBX_CUDA_POINTER_MEMORY_TYPE},
                                                         values, address)
                       : -1;
    return rc ? is_no_address(rc) : !type;
}

uint64_t ibx_memory_not_there(struct gpu_session *x, uint64_t address, uint64_t n)
{
    const uint64_t last = ibx_range_last(address, n);
    if (is_own(x, address, last))
        return 0;
    pthread_mutex_lock(&ibx_handles_lock);
    const uint64_t other = other_than(x, address, last);
    const bool known = ibx_handle_touched(IBX_HANDLE_MEMORY, address, last);
    pthread_mutex_unlock(&ibx_handles_lock);
    if (known)
        return other;
    return is_none(x, address) ? IBX_CLIENT_NONE : ibx_memory_other(x, address, n);
}

/* ------------------------------------------------------------------------ it is given back */

/* Locked. Begins to free memory that is in the list. A client to which it is only open has to close
 * it instead. */
static bool begin(const struct gpu_session *x, struct handle *h, uint64_t address, uint64_t *number)
{
    if (h->value != address) /* no beginning: CUDA refuses it */
        return true;
    if (h->ending || ibx_handle_is_apart(x, h))
        return false;
    h->ending = true;
    *number = h->number;
    return true;
}

/* Whether an allocation begins there, as far as the driver tells. */
static bool is_there(struct gpu_session *x, uint64_t address)
{
    uint64_t base = address;
    size_t n;
    const int rc = x->cuda->mem_get_address_range(&base, &n, address);
    return rc ? !is_no_address(rc) : base == address;
}

/* Locked. Notes memory of an unknown maker as being freed, and nobody's. */
static void note_unseen(struct handle *made, uint64_t *number)
{
    made->client = IBX_CLIENT_NONE;
    made->of_process = false;
    made->ending = true;
    if (enter(made))
        *number = made->number;
}

/* Begins to free memory that is not in the list. */
static bool begin_unseen(struct gpu_session *x, uint64_t address, uint64_t *number)
{
    ibx_back_end_begin_context(x);
    struct handle *made =
        ibx_back_end_have_cuda(x) ? ibx_handle_new(x, IBX_HANDLE_MEMORY, address) : NULL;
    if (!made)
        return true;
    pthread_mutex_lock(&ibx_handles_lock);
    begin_look();
    pthread_mutex_unlock(&ibx_handles_lock);
    const bool there = is_there(x, address);
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *h = ibx_handle_touched(IBX_HANDLE_MEMORY, address, address);
    const bool may = h ? begin(x, h, address, number) : there;
    if (may && !h)
        note_unseen(made, number);
    else
        free(made);
    end_look();
    pthread_mutex_unlock(&ibx_handles_lock);
    return may;
}

bool ibx_memory_free_begin(struct gpu_session *x, uint64_t address, uint64_t *number)
{
    *number = 0;
    ibx_clients_number(x);
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *h = ibx_handle_touched(IBX_HANDLE_MEMORY, address, address);
    const bool opened = ibx_handle_touched(IBX_HANDLE_OPENED_POINTER, address, address);
    const bool may = h && !opened && begin(x, h, address, number);
    pthread_mutex_unlock(&ibx_handles_lock);
    return h || opened ? may : begin_unseen(x, address, number);
}

void ibx_memory_free_end(uint64_t address, uint64_t number, bool freed)
{
    if (!number)
        return;
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *h = ibx_handle_touched(IBX_HANDLE_MEMORY, address, address);
    const bool same = h && h->number == number; /* otherwise the address is another one's already */
    if (waiting)
        pthread_cond_broadcast(&changed);
    if (same && ((freed && !h->of_graph) || h->client == IBX_CLIENT_NONE)) {
        ibx_handle_drop(h);
        atomic_fetch_add(&changes, 1);
    } else if (same) {
        h->ending = false;
    }
    pthread_mutex_unlock(&ibx_handles_lock);
}

bool ibx_memory_keep_begin(uint64_t client, uint64_t address, uint64_t n, uint64_t *base,
                           uint64_t *number)
{
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *h = ibx_handle_touched(IBX_HANDLE_MEMORY, address, address);
    const bool own = h && h->client == client && !h->heir_of && !h->theirs && !h->was_open &&
                     !h->ending && ibx_range_last(address, n) <= h->last;
    if (own) {
        h->ending = true;
        *base = h->value;
        *number = h->number;
    }
    pthread_mutex_unlock(&ibx_handles_lock);
    return own;
}
