/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What was made in a context of the driver's API, and is destroyed with it. A call that destroys
 * one of these, by the runtime's or the driver's API, first takes it out: right after the call
 * another one may have the same handle.
 */
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include "common/log.h"

#include <pthread.h>
#include <stdlib.h>

#define CHAINS 1024u

struct owned {
    struct owned *next;
    struct owned_note note;
};

static struct owned *chains[CHAINS]; /* hashed by handle; protected by the lock */
static atomic_uint count;            /* of all entries; read without the lock */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct owned **place_of(enum owned_kind kind, const void *handle)
{
    const uintptr_t at = (uintptr_t)handle;
    struct owned **place = &chains[(at >> 8 ^ at >> 4 ^ at >> 20) % CHAINS];
    while (*place && ((*place)->note.handle != handle || (*place)->note.kind != kind))
        place = &(*place)->next;
    return place;
}

/* Called under the lock. */
static void take(struct owned **place)
{
    struct owned *found = *place;
    *place = found->next;
    atomic_fetch_sub(&count, 1);
    free(found);
}

/* The entries are the parent's. */
static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
    for (size_t i = 0; i < CHAINS; i++)
        while (chains[i])
            take(&chains[i]);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

static void add(const struct owned_note *note)
{
    struct owned *made = malloc(sizeof(*made));
    if (!made) {
        ibx_log(IBX_LOG_WARN,
                "no memory: something will not be freed with the context in which it was made");
        return;
    }
    pthread_mutex_lock(&lock);
    struct owned **place = place_of(note->kind, note->handle);
    if (*place)
        take(place);
    *made = (struct owned){*place, *note};
    *place = made;
    atomic_fetch_add(&count, 1);
    pthread_mutex_unlock(&lock);
}

void ibx_frontend_owned(enum owned_kind kind, const void *handle, const void *owner)
{
    add(&(struct owned_note){owner, handle, kind, ibx_frontend_current_device()});
}

void ibx_frontend_owned_again(const struct owned_note *note)
{
    if (note->owner)
        add(note);
}

const void *ibx_frontend_owner(enum owned_kind kind, const void *handle)
{
    pthread_mutex_lock(&lock);
    const struct owned *found = *place_of(kind, handle);
    const void *owner = found ? found->note.owner : NULL;
    pthread_mutex_unlock(&lock);
    return owner;
}

void ibx_frontend_owned_lift(enum owned_kind kind, const void *handle, struct owned_note *note)
{
    *note = (struct owned_note){.kind = kind};
    if (!atomic_load_explicit(&count, memory_order_relaxed))
        return;
    pthread_mutex_lock(&lock);
    struct owned **place = place_of(kind, handle);
    if (*place) {
        *note = (*place)->note;
        take(place);
    }
    pthread_mutex_unlock(&lock);
}

void ibx_frontend_owned_gone(enum owned_kind kind, const void *handle)
{
    struct owned_note note;
    ibx_frontend_owned_lift(kind, handle, &note);
}

void *ibx_frontend_owned_take(enum owned_kind kind, const void *owner)
{
    void *handle = NULL;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < CHAINS && !handle && atomic_load(&count); i++) {
        struct owned **place = &chains[i];
        while (*place && ((*place)->note.owner != owner || (*place)->note.kind != kind))
            place = &(*place)->next;
        if (*place) {
            handle = (void *)(uintptr_t)(*place)->note.handle;
            take(place);
        }
    }
    pthread_mutex_unlock(&lock);
    return handle;
}

/* Libraries of kernels stay: they are loaded again when they are used. */
void ibx_frontend_owned_reset(int device)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < CHAINS; i++)
        for (struct owned **place = &chains[i]; *place;) {
            if ((*place)->note.device == device && (*place)->note.kind != OWNED_LIBRARY)
                take(place);
            else
                place = &(*place)->next;
        }
    pthread_mutex_unlock(&lock);
}
