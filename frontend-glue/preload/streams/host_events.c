/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Events that were recorded after host functions. A wait for such an event, which the back end
 * answers, fails if a function before it was not called.
 */
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct event {
    struct event *next;
    void *event, *stream;
    uint64_t order; /* of the last function before it */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct event *events; /* under the lock */
static atomic_bool any;

/* Called under the lock. The pointer in the list that points to the entry, or to NULL at the end.
 */
static struct event **place_of(const void *event)
{
    struct event **at = &events;
    while (*at && (*at)->event != event)
        at = &(*at)->next;
    return at;
}

void ibx_frontend_host_event(void *event, void *stream)
{
    const uint64_t order = ibx_frontend_host_enqueued();
    if (!order && !atomic_load_explicit(&any, memory_order_relaxed))
        return;
    pthread_mutex_lock(&lock);
    struct event **at = place_of(event), *found = *at;
    if (!order && found) {
        *at = found->next;
        free(found);
    } else if (order && (found || (found = malloc(sizeof(*found))))) {
        struct event *next = *at ? found->next : NULL;
        *found = (struct event){next, event, stream, order};
        *at = found;
    }
    atomic_store(&any, events != NULL);
    pthread_mutex_unlock(&lock);
}

bool ibx_frontend_host_event_lost(const void *event)
{
    if (!ibx_frontend_host_functions())
        return false;
    pthread_mutex_lock(&lock);
    const struct event *found = *place_of(event);
    const struct event copy = found ? *found : (struct event){.order = 0};
    pthread_mutex_unlock(&lock);
    return ibx_frontend_host_lost(copy.order, false, copy.stream);
}

void ibx_frontend_host_events_in_child(void)
{
    events = NULL;
    atomic_store(&any, false);
    pthread_mutex_init(&lock, NULL);
}
