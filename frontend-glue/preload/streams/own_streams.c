/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The streams that this process has made. While one is being captured, a wait for the device would
 * invalidate the capture: then the other streams are waited for one by one, by events, and those of
 * threads (cudaStreamPerThread) by events that these record behind their work.
 */
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define NON_BLOCKING 1u /* cudaStreamNonBlocking */
#define NO_TIMING    2u /* cudaEventDisableTiming */

static struct ranges all; /* the streams, as ranges of one byte at the handle */
/* users: threads whose own stream (cudaStreamPerThread) may have work. ended: how many such threads
 * have ended; the streams of the first `rested_ended` have no work. */
static _Atomic unsigned users, ended, rested_ended;
static _Thread_local bool uses;

/* An event behind the work that a thread has put into its own stream while streams are captured:
 * other threads cannot wait for that stream. Under the lock of ranges. */
struct own_work {
    struct own_work *next;
    void *event;
    bool taken;   /* by a thread that has not ended */
    bool covered; /* no work of the thread's stream is behind the event */
};
static struct own_work *own_works; /* none is ever freed */
static _Thread_local struct own_work *mine;
static atomic_bool noted; /* somebody may wait for such work */

static bool is_child;

static pthread_key_t thread_end;
/* False until the constructor: a library that was initialized earlier may use streams. */
static bool keyed;

/* The streams are the parent's. */
static void in_child(void)
{
    all.count = 0;
    atomic_store(&users, 0);
    atomic_store(&rested_ended, atomic_load(&ended));
    uses = false;
    own_works = mine = NULL;
    is_child = true;
}

/* The calling thread's event covers its work no more. */
static void uncover(bool thread_ends)
{
    if (!mine)
        return;
    ibx_frontend_ranges_lock();
    mine->covered = false;
    mine->taken = !thread_ends;
    ibx_frontend_ranges_unlock();
}

static void thread_ends(void *nothing)
{
    (void)nothing;
    uncover(true);
    mine = NULL;
    if (!uses)
        return;
    uses = false;
    atomic_fetch_add(&ended, 1); /* before `users`: users_and_ended() must not miss a thread */
    atomic_fetch_sub(&users, 1);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
    keyed = !pthread_key_create(&thread_end, thread_ends);
}

void ibx_frontend_streams_reset(void)
{
    ibx_frontend_ranges_lock();
    all.count = 0;
    for (struct own_work *w = own_works; w; w = w->next) {
        w->event = NULL;
        w->covered = false;
    }
    ibx_frontend_ranges_unlock();
}

/* Adds a stream. Without memory for the entry it is not waited for. An earlier stream with this
 * handle must have ended. */
static void add(const struct range *stream)
{
    ibx_frontend_ranges_lock();
    struct range *before = ibx_frontend_ranges_at(&all, (void *)stream->begin);
    if (before)
        ibx_frontend_ranges_remove(&all, before);
    ibx_frontend_ranges_add(&all, stream);
    ibx_frontend_ranges_unlock();
}

static int note(void *const *made, unsigned flags, int rc)
{
    ibx_frontend_look_for_libraries();
    if (!rc)
        add(&(struct range){.begin = (uintptr_t)*made,
                            .n = 1,
                            .device = ibx_frontend_current_device(),
                            .flags = flags});
    return rc;
}

int cudaStreamCreate(void **stream)
{
    return stream ? note(stream, 0, CALL_NEXT(cudaStreamCreate, stream))
                  : ibx_frontend_fail(CUDA_INVALID_VALUE);
}

int cudaStreamCreateWithFlags(void **stream, unsigned flags)
{
    return stream ? note(stream, flags, CALL_NEXT(cudaStreamCreateWithFlags, stream, flags))
                  : ibx_frontend_fail(CUDA_INVALID_VALUE);
}

int cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority)
{
    return stream ? note(stream, flags,
                         CALL_NEXT(cudaStreamCreateWithPriority, stream, flags, priority))
                  : ibx_frontend_fail(CUDA_INVALID_VALUE);
}

bool ibx_frontend_stream_gone(const void *stream, struct range *was)
{
    ibx_frontend_ranges_lock();
    struct range *range = ibx_frontend_ranges_at(&all, stream);
    const bool found = range;
    if (found) {
        *was = *range;
        ibx_frontend_ranges_remove(&all, range);
    }
    ibx_frontend_ranges_unlock();
    return found;
}

/* The default streams, and those that this process has not made, count as blocking. */
bool ibx_frontend_stream_blocks(const void *stream)
{
    struct range range;
    return !ibx_frontend_ranges_copy(&all, stream, &range) || !(range.flags & NON_BLOCKING);
}

int ibx_frontend_stream_device(const void *stream)
{
    struct range range;
    return ibx_frontend_ranges_copy(&all, stream, &range) ? range.device
                                                          : ibx_frontend_current_device();
}

void ibx_frontend_stream_stays(const struct range *was)
{
    add(was);
}

void ibx_frontend_stream_used(const void *stream)
{
    if ((uintptr_t)stream != 2)
        return;
    uncover(false);
    if (uses)
        return;
    uses = true;
    if (keyed)
        pthread_setspecific(thread_end, &uses);
    atomic_fetch_add(&users, 1);
}

/* Finds an entry for the calling thread, which has none; NULL: no memory. */
static struct own_work *take_own_work(void)
{
    ibx_frontend_ranges_lock();
    struct own_work *w = own_works;
    while (w && w->taken)
        w = w->next;
    if (!w && (w = malloc(sizeof(*w)))) {
        *w = (struct own_work){.next = own_works};
        own_works = w;
    }
    if (w)
        w->taken = true;
    ibx_frontend_ranges_unlock();
    return w;
}

void ibx_frontend_own_work_note(void)
{
    atomic_store(&noted, true);
}

/* What is captured has not run; and an event is of one device, as the stream is. */
void ibx_frontend_stream_worked(void *stream)
{
    unsigned rested;
    if ((uintptr_t)stream != 2 || !ibx_frontend_capturing() || !atomic_load(&noted) ||
        !ibx_frontend_one_device() ||
        (ibx_frontend_threads_capture(&rested) && ibx_frontend_captures(stream)))
        return;
    mine = mine ? mine : take_own_work();
    void *event = mine ? mine->event : NULL;
    if (!mine || (!event && CALL_NEXT(cudaEventCreateWithFlags, &event, NO_TIMING)))
        return;
    const bool recorded = !cudaEventRecord(event, stream);
    ibx_frontend_ranges_lock();
    mine->event = event;
    mine->covered = recorded && uses;
    ibx_frontend_ranges_unlock();
}

/* Waits for events that cover threads' own streams; returns how many of these streams. No capture
 * forbids that: the program need not have made a call. */
static unsigned wait_for_own_work(void)
{
    unsigned count = 0, waited = 0;
    ibx_frontend_ranges_lock();
    for (const struct own_work *w = own_works; w; w = w->next)
        count += w->covered;
    void **events = count ? malloc(count * sizeof(*events)) : NULL;
    count = 0;
    for (const struct own_work *w = own_works; events && w; w = w->next)
        if (w->covered)
            events[count++] = w->event;
    ibx_frontend_ranges_unlock();
    const int mode = ibx_frontend_relax();
    for (unsigned i = 0; events && i < count; i++)
        waited += !cudaEventSynchronize(events[i]);
    ibx_frontend_relax_end(mode);
    free(events);
    return waited;
}

bool ibx_frontend_stream_is_used(void)
{
    return uses;
}

/* The stream is a different one on each device, so this holds only if one device was used. */
void ibx_frontend_stream_rests(const void *stream)
{
    if (!uses || (stream && (uintptr_t)stream != 2) || !ibx_frontend_one_device())
        return;
    uncover(false);
    uses = false;
    atomic_fetch_sub(&users, 1);
}

unsigned ibx_frontend_threads_ended(void)
{
    return atomic_load(&ended);
}

void ibx_frontend_threads_rest(unsigned so_far)
{
    unsigned before = atomic_load(&rested_ended);
    while ((int)(so_far - before) > 0 &&
           !atomic_compare_exchange_weak(&rested_ended, &before, so_far))
        ;
}

static unsigned users_and_ended(void)
{
    const unsigned now = atomic_load(&users); /* before `ended`: see thread_ends() */
    return now + atomic_load(&ended) - atomic_load(&rested_ended);
}

/* A copy of the list; NULL: it is empty, or there is no memory: *count tells which. */
static struct range *copy_of_all(size_t *count)
{
    ibx_frontend_ranges_lock();
    struct range *copy = all.count ? malloc(all.count * sizeof(*copy)) : NULL;
    *count = all.count;
    if (copy)
        memcpy(copy, all.items, all.count * sizeof(*copy));
    ibx_frontend_ranges_unlock();
    return copy;
}

/* What a thread waits for, on one device after the other. */
struct rest {
    struct range *streams;
    size_t count;
    bool legacy; /* no stream is captured that keeps the legacy stream from having work */
    int rc;      /* the first error */
};
static _Thread_local struct rest *resting;

static void wait_for_legacy(int device)
{
    const int rc = CALL_NEXT(cudaStreamSynchronize, NULL);
    (void)device;
    resting->rc = resting->rc ? resting->rc : rc;
}

/* A wait for a stream would invalidate a capture of it that has begun meanwhile. So an event is put
 * behind its work while no capture begins, and no stream joins one, and is waited for. Without an
 * event the stream is waited for itself. False: it is captured, and nothing was waited for. */
static bool wait_behind(void *event, void *stream)
{
    const int cancel = ibx_frontend_captures_hold();
    const bool open = !ibx_frontend_may_capture(stream);
    int rc = open && event ? CALL_NEXT(cudaEventRecord, event, stream) : CUDA_SUCCESS;
    ibx_frontend_captures_let_go(cancel);
    const int mode = ibx_frontend_relax();
    if (open && !rc)
        rc = event ? CALL_NEXT(cudaEventSynchronize, event)
                   : CALL_NEXT(cudaStreamSynchronize, stream);
    ibx_frontend_relax_end(mode);
    if (rc != CUDA_INVALID_HANDLE) /* otherwise the stream was destroyed meanwhile */
        resting->rc = rc;
    return open;
}

#define ALL_DEVICES (-1)

/* An event is of one device, which must be selected. */
static void wait_for_streams_of(int device)
{
    void *event = NULL;
    for (size_t i = 0; i < resting->count && !resting->rc; i++) {
        const struct range *s = &resting->streams[i];
        if (device != ALL_DEVICES && s->device != device)
            continue;
        if (device != ALL_DEVICES && !event &&
            CALL_NEXT(cudaEventCreateWithFlags, &event, NO_TIMING))
            event = NULL;
        if (!wait_behind(event, (void *)s->begin))
            resting->legacy = resting->legacy && s->flags & NON_BLOCKING;
    }
    if (event)
        CALL_NEXT(cudaEventDestroy, event);
}

/* Streams that are captured are left out. r->legacy becomes false if one of them keeps the legacy
 * stream from having work. */
static void wait_for_streams(struct rest *r, bool by_events)
{
    r->streams = copy_of_all(&r->count);
    r->rc = r->count && !r->streams ? CUDA_MEMORY_ALLOCATION : CUDA_SUCCESS;
    resting = r;
    if (by_events && r->streams)
        ibx_frontend_each_device(wait_for_streams_of);
    else if (r->streams)
        wait_for_streams_of(ALL_DEVICES);
    free(r->streams);
}

bool ibx_frontend_is_child(void)
{
    return is_child;
}

/* Whether all that the legacy stream would wait for was waited for otherwise. In a child a wait for
 * it could include its parent's work, which may wait for the child; and beside captures, one may
 * begin before the wait, which invalidates it. */
static bool legacy_rests(void)
{
    return !users_and_ended() && ibx_frontend_knows(IBX_FRONTEND_LEGACY_RESTS, 0, NULL);
}

int ibx_frontend_own_work_wait(void)
{
    struct rest r = {.legacy = true};
    if (!is_child)
        return CALL_NEXT(cudaDeviceSynchronize);
    wait_for_streams(&r, false); /* nothing is captured */
    return r.rc || legacy_rests() ? r.rc : CALL_NEXT(cudaStreamSynchronize, NULL);
}

int ibx_frontend_streams_rest(bool all_work)
{
    unsigned rested;
    struct rest r = {.legacy = !ibx_frontend_threads_capture(&rested)};
    wait_for_streams(&r, true);
    /* While such a stream is captured, the legacy stream can have no work. But the legacy stream
     * would have waited for threads' own streams. */
    if (!r.rc && !r.legacy && all_work && users_and_ended() > rested &&
        users_and_ended() > rested + wait_for_own_work())
        r.rc = CUDA_CAPTURE_UNSUPPORTED;
    if (!r.rc && r.legacy && !legacy_rests())
        ibx_frontend_each_device(wait_for_legacy);
    return r.rc;
}
