/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Memory that cudaMalloc has returned to any thread of this process, in the order of addresses. An
 * allocation for which there is no memory here is not noted: its cudaFree and copies wait. */
#include "frontend-glue/call_pipeline/internal.h"

#include <stdlib.h>
#include <string.h>

#define ROOM_FIRST 64u

struct allocation {
    uint64_t address, n;
};

static struct {
    pthread_mutex_t lock;
    struct allocation *items; /* none overlaps another */
    size_t count, room;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Locked. The first allocation that ends after the address. */
static size_t place_of(uint64_t address)
{
    size_t low = 0, high = all.count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const struct allocation *one = &all.items[middle];
        if (one->address > address || address - one->address < one->n)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Locked. */
static void take_out(size_t at)
{
    all.count--;
    memmove(&all.items[at], &all.items[at + 1], (all.count - at) * sizeof(*all.items));
}

/* Locked. Room for one more. */
static bool make_room(void)
{
    if (all.count < all.room)
        return true;
    const size_t room = all.room ? 2 * all.room : ROOM_FIRST;
    struct allocation *more = realloc(all.items, room * sizeof(*more));
    if (!more)
        return false;
    all.items = more;
    all.room = room;
    return true;
}

void ibx_allocations_add(uint64_t address, uint64_t n)
{
    if (!n || n > UINT64_MAX - address)
        return;
    pthread_mutex_lock(&all.lock);
    const size_t at = place_of(address);
    while (at < all.count && all.items[at].address < address + n)
        take_out(at); /* it was freed by a call that was not seen here */
    if (make_room()) {
        memmove(&all.items[at + 1], &all.items[at], (all.count - at) * sizeof(*all.items));
        all.items[at] = (struct allocation){address, n};
        all.count++;
    }
    pthread_mutex_unlock(&all.lock);
}

bool ibx_allocations_remove(uint64_t address)
{
    pthread_mutex_lock(&all.lock);
    const size_t at = place_of(address);
    const bool found = at < all.count && all.items[at].address == address;
    if (found)
        take_out(at);
    pthread_mutex_unlock(&all.lock);
    return found;
}

bool ibx_allocations_hold(uint64_t address, uint64_t n)
{
    pthread_mutex_lock(&all.lock);
    const size_t at = place_of(address);
    const struct allocation *one = at < all.count ? &all.items[at] : NULL;
    const bool held =
        one && one->address <= address && n <= one->n && address - one->address <= one->n - n;
    pthread_mutex_unlock(&all.lock);
    return held;
}

void ibx_allocations_clear(void)
{
    pthread_mutex_lock(&all.lock);
    all.count = 0;
    pthread_mutex_unlock(&all.lock);
}

void ibx_allocations_lock(void)
{
    pthread_mutex_lock(&all.lock);
}

void ibx_allocations_unlock(void)
{
    pthread_mutex_unlock(&all.lock);
}
