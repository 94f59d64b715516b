/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The arrays, mipmapped arrays, textures, surfaces and pools that this process has made or asked
 * for, with what is known of each. A reset of a device removes those on it. */
#include "frontend-glue/preload/memory/device_objects.h"
#include "frontend-glue/preload/preload.h"

#include <pthread.h>
#include <stdlib.h>

#define BUCKETS 512u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct thing *things[BUCKETS];

static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

/* Called under the lock. The pointer in the list that points to the entry, or to NULL at the end.
 */
static struct thing **place_of(enum thing_kind kind, uint64_t handle)
{
    struct thing **at = &things[(handle >> 5 ^ handle >> 14 ^ handle) % BUCKETS];
    while (*at && !((*at)->kind == kind && (*at)->handle == handle))
        at = &(*at)->next;
    return at;
}

struct thing *ibx_frontend_thing_hold(enum thing_kind kind, uint64_t handle)
{
    pthread_mutex_lock(&lock);
    return *place_of(kind, handle);
}

void ibx_frontend_things_let_go(void)
{
    pthread_mutex_unlock(&lock);
}

struct thing *ibx_frontend_thing_take(enum thing_kind kind, uint64_t handle)
{
    pthread_mutex_lock(&lock);
    struct thing **at = place_of(kind, handle), *found = *at;
    if (found)
        *at = found->next;
    pthread_mutex_unlock(&lock);
    return found;
}

void ibx_frontend_thing_made(struct thing *made)
{
    pthread_mutex_lock(&lock);
    struct thing **at = place_of(made->kind, made->handle), *before = *at;
    made->next = before ? before->next : NULL;
    *at = made;
    pthread_mutex_unlock(&lock);
    free(before);
}

void ibx_frontend_things_reset(int device)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < BUCKETS; i++) {
        for (struct thing **at = &things[i], *gone; (gone = *at);) {
            if (gone->device != device) {
                at = &gone->next;
                continue;
            }
            *at = gone->next;
            free(gone);
        }
    }
    pthread_mutex_unlock(&lock);
}

/* ------------------------------------------------------------------------------------- arrays */

struct shape {
    struct thing thing;
    struct ibx_frontend_array is;
};

void ibx_frontend_array_gone(const void *array)
{
    free(ibx_frontend_thing_take(THING_ARRAY, (uintptr_t)array));
}

/* If there is no memory, the back end is asked for the size later. */
void ibx_frontend_array_made(const struct ibx_frontend_array *array)
{
    struct shape *made = malloc(sizeof(*made));
    ibx_frontend_array_gone(array->array); /* an array of the same address whose end was not seen */
    if (!made)
        return;
    *made = (struct shape){
        .thing = {.kind = THING_ARRAY, .device = array->device, .handle = (uintptr_t)array->array},
        .is = *array};
    ibx_frontend_thing_made(&made->thing);
}

bool ibx_frontend_array_known(const void *array, struct ibx_frontend_array *is)
{
    const struct shape *found =
        (const struct shape *)ibx_frontend_thing_hold(THING_ARRAY, (uintptr_t)array);
    if (found)
        *is = found->is;
    ibx_frontend_things_let_go();
    return found;
}

struct ibx_cuda_memcpy3d ibx_frontend_planes_in_bytes(const struct ibx_cuda_memcpy3d *p,
                                                      const struct ibx_array_unit *unit)
{
    struct ibx_cuda_memcpy3d b = *p;
    if (__builtin_mul_overflow(p->from_at.width, unit->bytes, &b.from_at.width) ||
        __builtin_mul_overflow(p->to_at.width, unit->bytes, &b.to_at.width) ||
        __builtin_mul_overflow(ibx_array_units(unit, p->extent.width), unit->bytes,
                               &b.extent.width))
        b.extent.width = 0;
    else
        b.extent.height = ibx_array_units(unit, p->extent.height);
    return b;
}
