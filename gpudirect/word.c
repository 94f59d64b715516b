/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A word of pinned memory that the GPU sets behind a copy. Who polls it sees the end of the copy
 * sooner than cuMemcpyHtoD() or cuEventSynchronize() return. Only where processors abound, as
 * polling takes one, and not beside other sessions, whose copies would wait for the GPU to write
 * it. It is pinned, and goes, with the events of its context.
 */
#include "gpudirect/staging_internal.h"

#include "common/clock.h"
#include "common/thread.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#define PAGE         4096u
#define ASK_NS       ((uint64_t)100000)  /* until the driver is asked what became of the stream */
#define ASK_MOST_NS  ((uint64_t)1000000) /* and from one time to the next, at most */
#define SPIN_NS      ((uint64_t)10000000)
#define REST_MOST_NS ((uint64_t)1000000)

static bool usable(struct ibx_staging *st)
{
    int device, one_address = 0;
    return st->cuda->stream_write_value32 && ibx_thread_may_spin() &&
           !st->cuda->ctx_get_device(&device) &&
           !st->cuda->device_get_attribute(&one_address, IBX_CUDA_DEVICE_HOST_POINTER, device) &&
           one_address;
}

/* It may still be, where a context that had failed did not let go of it. */
static bool pin(struct ibx_staging *st)
{
    const int rc =
        st->cuda->mem_host_register((void *)st->word, PAGE, IBX_CUDA_HOST_REGISTER_PORTABLE);
    return !rc || rc == IBX_CUDA_HOST_MEMORY_REGISTERED;
}

bool ibx_staging_word_ready(struct ibx_staging *st)
{
    if (st->word_pinned || st->word_refused)
        return st->word_pinned;
    if (!st->word && usable(st))
        st->word = aligned_alloc(PAGE, PAGE);
    st->word_pinned = st->word && pin(st);
    st->word_refused = !st->word_pinned;
    if (st->word_pinned) {
        atomic_init(st->word, 0);
        st->word_set = 0;
    }
    return st->word_pinned;
}

void ibx_staging_prepare(struct ibx_staging *st)
{
    if (!ibx_staging_events_ready(st))
        ibx_staging_word_ready(st);
}

int ibx_staging_word_set(struct ibx_staging *st)
{
    return st->cuda->stream_write_value32(st->copy.stream, (uint64_t)(uintptr_t)st->word,
                                          ++st->word_set, 0);
}

/* Sleeps where that adds a hundredth to what was waited for already. */
static void rest(uint64_t waited)
{
    if (waited < SPIN_NS)
        return;
    const uint64_t ns = waited / 100 < REST_MOST_NS ? waited / 100 : REST_MOST_NS;
    nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

/* After an error the GPU never comes to it. */
int ibx_staging_word_wait(struct ibx_staging *st)
{
    const uint64_t began = ibx_now_ns();
    uint64_t now = began, ask = began + ASK_NS;
    for (unsigned i = 1; atomic_load_explicit(st->word, memory_order_acquire) != st->word_set;
         i++) {
        ibx_cpu_relax();
        if (i % 64 || (now = ibx_now_ns()) < ask)
            continue;
        const int rc = st->cuda->stream_query(st->copy.stream);
        if (rc != IBX_CUDA_NOT_READY)
            return rc; /* with 0 all of the stream is over */
        rest(now - began);
        ask = now + (now - began);
        ask = ask < now + ASK_MOST_NS ? ask : now + ASK_MOST_NS;
    }
    return 0;
}
