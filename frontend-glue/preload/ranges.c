/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/preload/preload.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t numbers; /* protected by the lock */

void ibx_frontend_ranges_lock(void)
{
    pthread_mutex_lock(&lock);
}

void ibx_frontend_ranges_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

/* Takes the lock across a fork, since another thread may hold it. */
__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(ibx_frontend_ranges_lock, ibx_frontend_ranges_unlock,
                   ibx_frontend_ranges_unlock);
}

size_t ibx_frontend_ranges_find(const struct ranges *ranges, uintptr_t begin)
{
    size_t low = 0, high = ranges->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct range *range = &ranges->items[middle];
        if (begin - range->begin < range->n || range->begin > begin)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

struct range *ibx_frontend_ranges_holding(const struct ranges *ranges, const void *address,
                                          size_t n)
{
    size_t at = ibx_frontend_ranges_find(ranges, (uintptr_t)address);
    if (at == ranges->count)
        return NULL;
    struct range *range = &ranges->items[at];
    uintptr_t into = (uintptr_t)address - range->begin;
    return into < range->n && n <= range->n - into ? range : NULL;
}

bool ibx_frontend_ranges_copy(const struct ranges *ranges, const void *address, struct range *copy)
{
    ibx_frontend_ranges_lock();
    const struct range *found = ibx_frontend_ranges_holding(ranges, address, 1);
    if (found)
        *copy = *found;
    ibx_frontend_ranges_unlock();
    return found;
}

struct range *ibx_frontend_ranges_at(const struct ranges *ranges, const void *address)
{
    struct range *range = ibx_frontend_ranges_holding(ranges, address, 1);
    return range && range->begin == (uintptr_t)address ? range : NULL;
}

void ibx_frontend_ranges_remove(struct ranges *ranges, struct range *range)
{
    ranges->count--;
    memmove(range, range + 1, (size_t)(ranges->items + ranges->count - range) * sizeof(*range));
}

uint64_t ibx_frontend_ranges_number(void)
{
    return ++numbers;
}

int ibx_frontend_ranges_add(struct ranges *ranges, const struct range *range)
{
    size_t at = ibx_frontend_ranges_find(ranges, range->begin);
    if (at < ranges->count && ranges->items[at].begin < range->begin + range->n)
        return -EEXIST;
    if (ranges->count == ranges->room) {
        size_t room = ranges->room ? 2 * ranges->room : 16;
        struct range *items = realloc(ranges->items, room * sizeof(*items));
        if (!items)
            return -ENOMEM;
        ranges->items = items;
        ranges->room = room;
    }
    memmove(&ranges->items[at + 1], &ranges->items[at], (ranges->count - at) * sizeof(*range));
    ranges->items[at] = *range;
    ranges->items[at].number = ibx_frontend_ranges_number();
    ranges->count++;
    return 0;
}
