/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Page-locked memory that kernels use. Natively they can access all of it, at its address. Here the
 * back end maps the memory that a launch names in its arguments (reach() in struct
 * ibx_frontend_calls): then both sides have the same pages at the same address, and see each
 * other's writes at once. It also maps what few bytes point to that are copied to the device, such
 * as a variable there or an object of the program's: Kokkos keeps its locks so.
 *
 * Over another path than shm, such memory becomes managed memory at its address
 * (managed_in_place.c).
 *
 * Registered memory moves to memory that can be mapped so (registered.c), over shm alone.
 *
 * If none of this is possible, the launch fails here: an invalid access of the
 * kernel would be an error that ends the work of all clients of the back end. That still happens if
 * a kernel finds the address elsewhere than in its arguments or in such bytes, and no launch has
 * named the memory before.
 */
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"

#include "common/log.h"

#include <errno.h>
#include <pthread.h>

#define LOOKED_THROUGH                                                                             \
    ((size_t)4096) /* longest copy to the device that is searched for addresses */

/* All such memory is within [lowest, highest). */
static atomic_uintptr_t lowest = UINTPTR_MAX, highest;
/* Number of resets; each begins a new epoch, as a change of reach_epoch() does. */
static atomic_uint resets;
static atomic_bool out_of_reach; /* kernels cannot access what was allocated last */
static atomic_bool any_reached;  /* kernels have accessed some memory */
static atomic_uint all_since; /* the epoch in which kernels have access to all memory that they ever
                                 had; 0: none */
/* The back end knows that this thread's session belongs to this process: it keeps what it maps as
 * long. */
static _Thread_local bool known;
/* Held by a thread that makes such a request: another one for the same memory would collide with
 * it. */
static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;

static atomic_uint forks = 1; /* 1 + the number of forks that led to this process */

/* Not held across a fork: its holder may wait for locks that the fork has taken. A child has no
 * managed memory. */
static void in_child(void)
{
    atomic_fetch_add(&forks, 1);
    pthread_mutex_init(&asking, NULL);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

void ibx_frontend_reach_begins(uintptr_t begin, size_t n)
{
    uintptr_t low = atomic_load(&lowest), high = atomic_load(&highest);
    while (begin < low && !atomic_compare_exchange_weak(&lowest, &low, begin))
        ;
    while (begin + n > high && !atomic_compare_exchange_weak(&highest, &high, begin + n))
        ;
}

bool ibx_frontend_host_any(void)
{
    return atomic_load_explicit(&highest, memory_order_relaxed);
}

void ibx_frontend_reach_reset(void)
{
    atomic_fetch_add(&resets, 1);
}

/* The current epoch, never 0. */
static unsigned epoch_now(const struct ibx_frontend_calls *calls)
{
    return calls->reach_epoch() + atomic_load(&resets) + 1;
}

/* Requests access to n bytes of shared memory at the address `at`, or its end. -EOPNOTSUPP, or an
 * error of CUDA: kernels cannot access it. */
static int ask_at(const struct ibx_frontend_calls *calls, const void *shared, uintptr_t at,
                  size_t n, bool on)
{
    if (on && !known) /* the back end accepts this request only after a first reply */
        ibx_frontend_connect();
    int code, rc = calls->reach(shared, at, n, on, &code);
    if (rc == -ENOTCONN) { /* it is the thread's first call, or a copy is under way */
        ibx_frontend_connect();
        rc = calls->reach(shared, at, n, on, &code);
    }
    rc = rc ? rc : code;
    if (on)
        atomic_store(&out_of_reach, rc == -EOPNOTSUPP);
    known = known || (on && !rc);
    return rc;
}

static int ask(const struct ibx_frontend_calls *calls, const struct range *range, bool on)
{
    return ask_at(calls, (void *)range->begin, range->begin, range->n, on);
}

/* Called under the lock. The back end lets go of the shared pages before they are free for others:
 * it would take the same address for the same pages. */
static void end_registered(uint64_t number)
{
    struct ibx_registered_pages pages;
    if (!ibx_registered_has(number, &pages))
        return;
    ask_at(ibx_frontend_plugin(), pages.shared, pages.at, pages.n, false);
    ibx_registered_back(number);
}

/* Registrations that have ended are in the way only if there is no memory for others. */
static void end_older(const struct range *range)
{
    struct ibx_registered_pages pages;
    uint64_t number;
    bool gone = true;
    while (gone && ibx_registered_in_the_way(range, &number)) {
        end_registered(number);
        gone = !ibx_registered_has(number, &pages);
    }
}

/* The back end maps the shared pages first: if it does not, nothing has to be undone. */
static int ask_for_registered(const struct ibx_frontend_calls *calls, const struct range *range)
{
    struct ibx_registered_pages pages;
    end_older(range);
    int rc = ibx_registered_begin(range, &pages);
    if (rc)
        return rc;
    rc = ask_at(calls, pages.shared, pages.at, pages.n, true);
    if (rc) {
        ibx_registered_refused(range, rc == -EOPNOTSUPP);
        return rc;
    }
    rc = ibx_registered_move(range);
    if (rc)
        ask_at(calls, pages.shared, pages.at, pages.n, false);
    return rc;
}

bool ibx_frontend_reach_likely(void)
{
    return !atomic_load(&out_of_reach);
}

static void registered_ends(const struct range *range)
{
    pthread_mutex_lock(&asking);
    end_registered(range->number);
    pthread_mutex_unlock(&asking);
}

void ibx_frontend_reach_ends(const struct range *range)
{
    if (!range->allocated)
        registered_ends(range);
    else if (range->reach)
        ask(ibx_frontend_plugin(), range, false);
}

static bool is_in_place(const struct range *range)
{
    return range->in_place == atomic_load_explicit(&forks, memory_order_relaxed);
}

static bool is_reached(const struct range *range, unsigned epoch)
{
    return range->reach == epoch && known &&
           (range->allocated || range->moved == atomic_load_explicit(&forks, memory_order_relaxed));
}

/* For a piece of a slab, requests access to the whole slab; registered memory moves. */
static int ask_for(const struct ibx_frontend_calls *calls, const struct range *range,
                   unsigned epoch)
{
    struct range whole;
    const void *address = (void *)range->begin;
    if (!range->allocated)
        return ask_for_registered(calls, range);
    if (!ibx_frontend_small_whole(address, &whole))
        return ask(calls, range, true);
    const int rc = is_reached(&whole, epoch) ? 0 : ask(calls, &whole, true);
    if (!rc)
        ibx_frontend_small_reached(address, epoch);
    return rc;
}

int ibx_frontend_host_try(const void *address, struct range *range)
{
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    int rc = CUDA_SUCCESS;
    if (!calls || !ibx_frontend_host_range(address, range) || is_in_place(range) ||
        is_reached(range, epoch_now(calls)))
        return CUDA_SUCCESS;
    pthread_mutex_lock(&asking);
    const unsigned epoch = epoch_now(calls);
    if (ibx_frontend_host_range(address, range) && !is_reached(range, epoch))
        rc = ask_for(calls, range, epoch);
    if (!rc) {
        ibx_frontend_host_reached(range, epoch, atomic_load(&forks));
        atomic_store(&any_reached, true);
        atomic_store(&all_since, 0);
    }
    pthread_mutex_unlock(&asking);
    return rc ? CUDA_NOT_SUPPORTED : CUDA_SUCCESS;
}

/* Pieces of slabs cannot become managed memory: if kernels cannot access them, no more pieces are
 * allocated. */
static bool may_be_in_place(const struct range *range)
{
    struct range whole;
    return range->allocated && !ibx_frontend_small_whole((void *)range->begin, &whole);
}

/* Another thread may have made it managed meanwhile. */
static int put_in_place(struct range *range)
{
    if (!may_be_in_place(range))
        return CUDA_NOT_SUPPORTED;
    pthread_mutex_lock(&asking);
    const bool there = ibx_frontend_host_range((void *)range->begin, range);
    const int rc = !there || is_in_place(range) ? CUDA_SUCCESS : ibx_frontend_in_place(range);
    if (there && !rc)
        ibx_frontend_host_in_place(range, atomic_load(&forks));
    pthread_mutex_unlock(&asking);
    return rc ? CUDA_NOT_SUPPORTED : CUDA_SUCCESS;
}

bool ibx_frontend_host_likely(const void *address)
{
    struct range range;
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    if (calls && ibx_frontend_host_range(address, &range) && !range.allocated)
        return is_reached(&range, epoch_now(calls));
    return !ibx_frontend_host_try(address, &range) || may_be_in_place(&range);
}

/* Whether this thread's connection shares memory. A thread that has made no call gets one. */
static bool shares(void)
{
    static _Thread_local bool asked;
    if (!asked && !ibx_frontend_knows(IBX_FRONTEND_SHARED, 0, NULL))
        ibx_frontend_connect();
    asked = true;
    return ibx_frontend_knows(IBX_FRONTEND_SHARED, 0, NULL);
}

/* The answer is kept: to read what is mapped takes long, and with CUDA the answer does not change.
 * A launch looks again. Memory that another thread's launch has moved is not looked at. */
static bool registered_can_move(const struct range *range)
{
    enum range_moves moves = range->moves;
    if (range->moved == atomic_load_explicit(&forks, memory_order_relaxed))
        return true;
    if (moves == MOVES_UNKNOWN && shares() &&
        (moves = ibx_registered_moves(range)) != MOVES_UNKNOWN)
        ibx_frontend_host_moves(range, moves);
    return moves == MOVES_YES;
}

bool ibx_frontend_host_can_reach(const void *address)
{
    struct range range;
    return ibx_frontend_host_likely(address) || (ibx_frontend_host_range(address, &range) &&
                                                 !range.allocated && registered_can_move(&range));
}

int ibx_frontend_host_reach(const void *address)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    struct range range = {.n = 0};
    int rc = ibx_frontend_host_try(address, &range);
    if (rc)
        rc = put_in_place(&range);
    if (rc && !atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN,
                "kernels do not reach %zu bytes of page-locked memory at %p (%s), and a launch "
                "that names them fails with cudaErrorNotSupported: give kernels memory of "
                "cudaMallocManaged or cudaHostAllocMapped",
                range.n, (void *)range.begin,
                range.allocated ? "the back end cannot map them" : ibx_registered_why());
    return rc;
}

/* The next word of n bytes, from *at on, that may be an address in page-locked memory; 0: there is
 * none. */
static uint64_t next_address(const uint8_t *bytes, size_t n, size_t *at)
{
    const uintptr_t low = atomic_load_explicit(&lowest, memory_order_relaxed);
    const uintptr_t high = atomic_load_explicit(&highest, memory_order_relaxed);
    for (; *at + sizeof(uint64_t) <= n && high > low; *at += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, bytes + *at, sizeof(word));
        if (word - low < high - low) {
            *at += sizeof(word);
            return word;
        }
    }
    return 0;
}

int ibx_frontend_arguments_reach(const void *arguments, size_t n)
{
    int rc = CUDA_SUCCESS;
    uint64_t word;
    for (size_t at = 0; !rc && (word = next_address(arguments, n, &at));)
        rc = ibx_frontend_host_reach((void *)(uintptr_t)word);
    return rc;
}

void ibx_frontend_copied_reach(const void *bytes, size_t n)
{
    struct range range;
    uint64_t word;
    for (size_t at = 0; n <= LOOKED_THROUGH && (word = next_address(bytes, n, &at));) {
        const void *address = (void *)(uintptr_t)word;
        if (ibx_frontend_host_range(address, &range) && range.allocated &&
            ibx_frontend_host_try(address, &range))
            put_in_place(&range);
    }
}

int ibx_frontend_graph_reach(void)
{
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    struct range range;
    if (!calls || !atomic_load_explicit(&any_reached, memory_order_relaxed))
        return CUDA_SUCCESS;
    unsigned epoch = epoch_now(calls);
    if (known && atomic_load(&all_since) == epoch)
        return CUDA_SUCCESS;
    while (ibx_frontend_host_lapsed(known ? epoch : 0, &range)) {
        const int rc = ibx_frontend_host_reach((void *)range.begin);
        if (rc)
            return rc;
        epoch = epoch_now(calls);
    }
    atomic_store(&all_since, epoch);
    return CUDA_SUCCESS;
}
