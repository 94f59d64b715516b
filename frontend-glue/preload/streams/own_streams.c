/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The streams that this process has made. While one is being captured, a wait for the device would
 * invalidate the capture: then the other streams are waited for one by one.
 */
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define NON_BLOCKING 1u /* cudaStreamNonBlocking */

static struct ranges all; /* the streams, as ranges of one byte at the handle */
/* users: threads whose own stream (cudaStreamPerThread) may have work. ended: how many such threads
 * have ended; the streams of the first `rested_ended` have no work. */
static _Atomic unsigned users, ended, rested_ended;
static _Thread_local bool uses;
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
}

static void thread_ends(void *nothing)
{
    (void)nothing;
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
    ibx_frontend_ranges_unlock();
}

/* Adds a stream that was made. Without memory for the entry it is not waited for. An earlier stream
 * with this handle must have ended. */
static int note(void *const *made, unsigned flags, int rc)
{
    ibx_frontend_look_for_libraries();
    const struct range stream = {.begin = rc ? 0 : (uintptr_t)*made, .n = 1, .flags = flags};
    if (rc)
        return rc;
    ibx_frontend_ranges_lock();
    struct range *before = ibx_frontend_ranges_at(&all, *made);
    if (before)
        ibx_frontend_ranges_remove(&all, before);
    ibx_frontend_ranges_add(&all, &stream);
    ibx_frontend_ranges_unlock();
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

bool ibx_frontend_stream_gone(const void *stream, unsigned *flags)
{
    ibx_frontend_ranges_lock();
    struct range *range = ibx_frontend_ranges_at(&all, stream);
    const bool found = range;
    if (found) {
        *flags = range->flags;
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

void ibx_frontend_stream_stays(void *stream, unsigned flags)
{
    note(&stream, flags, CUDA_SUCCESS);
}

void ibx_frontend_stream_used(const void *stream)
{
    if ((uintptr_t)stream != 2 || uses)
        return;
    uses = true;
    if (keyed)
        pthread_setspecific(thread_end, &uses);
    atomic_fetch_add(&users, 1);
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

static _Thread_local int legacy_waits; /* the first error */

static void wait_for_legacy(int device)
{
    const int rc = CALL_NEXT(cudaStreamSynchronize, NULL);
    (void)device;
    legacy_waits = legacy_waits ? legacy_waits : rc;
}

int ibx_frontend_streams_rest(bool all_work)
{
    size_t count;
    unsigned rested;
    struct range *streams = copy_of_all(&count);
    bool legacy = !ibx_frontend_threads_capture(&rested);
    int rc = count && !streams ? CUDA_MEMORY_ALLOCATION : CUDA_SUCCESS;
    for (size_t i = 0; i < count && !rc; i++) {
        void *stream = (void *)streams[i].begin;
        if (ibx_frontend_captures(stream))
            legacy = legacy && streams[i].flags & NON_BLOCKING;
        else if ((rc = CALL_NEXT(cudaStreamSynchronize, stream)) == CUDA_INVALID_HANDLE)
            rc = CUDA_SUCCESS; /* the stream was destroyed meanwhile */
    }
    free(streams);
    /* While such a stream is captured, the legacy stream can have no work. But the legacy stream
     * would have waited for threads' own streams. */
    if (!rc && !legacy && all_work && users_and_ended() > rested)
        rc = CUDA_CAPTURE_UNSUPPORTED;
    legacy_waits = CUDA_SUCCESS;
    if (!rc && legacy)
        ibx_frontend_each_device(wait_for_legacy);
    return rc ? rc : legacy_waits;
}
