/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Events without timing that this library records for itself. To make one is a request
 * that waits for its answer, and to destroy it is another request, so an event is kept for the next
 * time. While a thread has one, no other thread records it.
 */
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include <pthread.h>

#define NO_TIMING 2u /* cudaEventDisableTiming */
#define KEPT      16 /* as many as threads wait at the same time; more of them are destroyed */

/* Under the lock of ranges. */
static struct ibx_kept_event kept[KEPT];
static unsigned count, resets;

/* The parent's. */
static void in_child(void)
{
    count = 0;
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

static void remove_at(unsigned i)
{
    kept[i] = kept[--count];
}

/* One of the device's, which is removed from the list; NULL: none. Those that the back end may have
 * lost are only forgotten: another event may have the same handle now. */
static void *take_kept(int device, int server)
{
    void *found = NULL;
    for (unsigned i = 0; i < count && !found;) {
        if (kept[i].server == server && kept[i].device == device)
            found = kept[i].event;
        if (found || kept[i].server != server)
            remove_at(i);
        else
            i++;
    }
    return found;
}

/* While copies of the program are under way in the background, it is not known whether the back end
 * still has the events: then the event is a new one, and is not kept. */
int ibx_frontend_event_take(struct ibx_kept_event *own)
{
    *own = (struct ibx_kept_event){.device = ibx_frontend_current_device()};
    own->may_stay = ibx_frontend_knows(IBX_FRONTEND_SERVER, 0, &own->server);
    ibx_frontend_ranges_lock();
    own->resets = resets;
    if (own->may_stay)
        own->event = take_kept(own->device, own->server);
    ibx_frontend_ranges_unlock();
    return own->event ? CUDA_SUCCESS : CALL_NEXT(cudaEventCreateWithFlags, &own->event, NO_TIMING);
}

void ibx_frontend_event_give_back(const struct ibx_kept_event *own, bool good)
{
    ibx_frontend_ranges_lock();
    const bool stays = good && own->may_stay && own->resets == resets && count < KEPT;
    if (stays)
        kept[count++] = *own;
    ibx_frontend_ranges_unlock();
    if (!stays)
        CALL_NEXT(cudaEventDestroy, own->event); /* it is no shared one */
}

void ibx_frontend_kept_events_reset(int device)
{
    ibx_frontend_ranges_lock();
    resets++;
    for (unsigned i = 0; i < count;) {
        if (kept[i].device == device)
            remove_at(i);
        else
            i++;
    }
    ibx_frontend_ranges_unlock();
}
