/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What cudaMalloc has returned to any thread of this process. Without memory for it, cudaFree
 * waits. */
#include "frontend-glue/client_calls/internal.h"

#include <stdlib.h>

#define BUCKETS 1024u

struct allocation {
    struct allocation *next;
    uint64_t address;
};

static struct {
    pthread_mutex_t lock;
    struct allocation *buckets[BUCKETS];
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct allocation **bucket_of(uint64_t address)
{
    return &all.buckets[ibx_request_hash(0, &address, sizeof(address)) % BUCKETS];
}

/* Locked. */
static struct allocation *take_out(uint64_t address)
{
    struct allocation **at = bucket_of(address);
    while (*at && (*at)->address != address)
        at = &(*at)->next;
    struct allocation *found = *at;
    if (found)
        *at = found->next;
    return found;
}

void ibx_allocations_add(uint64_t address)
{
    pthread_mutex_lock(&all.lock);
    struct allocation *made = take_out(address);
    if (!made)
        made = malloc(sizeof(*made));
    if (made) {
        struct allocation **bucket = bucket_of(address);
        *made = (struct allocation){*bucket, address};
        *bucket = made;
    }
    pthread_mutex_unlock(&all.lock);
}

bool ibx_allocations_remove(uint64_t address)
{
    pthread_mutex_lock(&all.lock);
    struct allocation *found = take_out(address);
    pthread_mutex_unlock(&all.lock);
    free(found);
    return found;
}

void ibx_allocations_clear(void)
{
    pthread_mutex_lock(&all.lock);
    for (unsigned i = 0; i < BUCKETS; i++) {
        while (all.buckets[i]) {
            struct allocation *gone = all.buckets[i];
            all.buckets[i] = gone->next;
            free(gone);
        }
    }
    pthread_mutex_unlock(&all.lock);
}

/* Another thread may have been at it during the fork. */
void ibx_allocations_in_child(void)
{
    pthread_mutex_init(&all.lock, NULL);
    for (unsigned i = 0; i < BUCKETS; i++)
        all.buckets[i] = NULL;
}
