/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The streams that this process has made. While some are being captured nobody can wait for the
 * device, since that would end the captures: one by one the others can be waited for.
 */
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define NON_BLOCKING 1u /* cudaStreamNonBlocking */

static struct ranges all; /* of one byte each, at the handle */
/* Threads whose own stream (cudaStreamPerThread) may have work, and how many of them have ended so
 * far, of which the first ones left none. */
static _Atomic unsigned users, ended, rested_ended;
static _Thread_local bool uses;
static pthread_key_t thread_end;
static bool keyed; /* libraries that began before this one may have used streams */

/* They are the parent's. */
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
    atomic_fetch_add(&ended, 1); /* first: who counts both misses none */
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

/* Without memory for it such a stream is not waited for. One before with that handle is gone. */
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

/* On each device it is another one. */
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
    const unsigned now = atomic_load(&users); /* first, see thread_ends() */
    return now + atomic_load(&ended) - atomic_load(&rested_ended);
}

/* NULL: there is none, or no memory: `count` says which. */
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

static _Thread_local int legacy_waits; /* what became of them */

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
            rc = CUDA_SUCCESS; /* it was destroyed meanwhile */
    }
    free(streams);
    /* Beside such a capture nothing comes into the legacy one. A thread's own stream would be
     * waited for by that, or by the thread. */
    if (!rc && !legacy && all_work && users_and_ended() > rested)
        rc = CUDA_CAPTURE_UNSUPPORTED;
    legacy_waits = CUDA_SUCCESS;
    if (!rc && legacy)
        ibx_frontend_each_device(wait_for_legacy);
    return rc ? rc : legacy_waits;
}
