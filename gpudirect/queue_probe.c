/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "gpudirect/queue_probe.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#define OUT_OF_MEMORY 2 /* CUresult */
#define ROW           4u
#define ROWS          2u

static int (*allocate)(uint64_t *address, size_t n);
static pthread_once_t looked = PTHREAD_ONCE_INIT;

/* The memory stays until its context is gone: to free it would wait for all work there. */
struct target {
    struct target *next;
    const void *context;
    uint64_t memory;
};
static struct target *targets;
static unsigned forgotten; /* how often contexts were */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void look(void)
{
    *(void **)&allocate = ibx_cuda_symbol("cuMemAlloc_v2");
}

/* The memory of a context; 0: there is none yet. */
static uint64_t find(const void *context, unsigned *then_forgotten)
{
    pthread_mutex_lock(&lock);
    const struct target *t = targets;
    while (t && t->context != context)
        t = t->next;
    const uint64_t memory = t ? t->memory : 0;
    *then_forgotten = forgotten;
    pthread_mutex_unlock(&lock);
    return memory;
}

/* Notes the memory, unless a context was forgotten since the look that found none: it may have
 * been this one. The target is the list's then, or freed. */
static void note(struct target *t, unsigned then_forgotten)
{
    pthread_mutex_lock(&lock);
    if (forgotten == then_forgotten) {
        t->next = targets;
        targets = t;
        t = NULL;
    }
    pthread_mutex_unlock(&lock);
    free(t);
}

/* Allocates memory in the current context, which is `context`, and notes it. False: there is none
 * now; the next probe tries again. */
static bool make(const void *context, unsigned then_forgotten)
{
    struct target *t = malloc(sizeof(*t));
    if (!t)
        return false;
    *t = (struct target){.context = context};
    if (allocate(&t->memory, ROWS * ROW)) {
        free(t);
        return false;
    }
    note(t, then_forgotten);
    return true;
}

/* The memory of the current context, which is `context`; 0: there is none. The driver is called
 * without the lock, since it may take long. So two threads may allocate at once: each has its
 * probe, and what one of them has allocated stays unused. */
static uint64_t target_of(const void *context)
{
    uint64_t memory;
    unsigned then_forgotten;
    pthread_once(&looked, look);
    while (!(memory = find(context, &then_forgotten)) && allocate)
        if (!make(context, then_forgotten))
            break;
    return memory;
}

int ibx_queue_probe(const struct ibx_cuda *cuda, const void *context, void *stream,
                    const void *pinned, enum ibx_queue_kind kind)
{
    const uint64_t memory = target_of(context);
    if (!memory)
        return OUT_OF_MEMORY;
    if (kind == IBX_QUEUE_OF_KERNELS)
        return cuda->memcpy_to_device_async(memory, pinned, 1, stream);
    const struct ibx_cuda_memcpy2d rows = {.src_type = IBX_CUDA_MEMORY_HOST,
                                           .src_host = pinned,
                                           .src_pitch = IBX_QUEUE_PROBE_PITCH,
                                           .dst_type = IBX_CUDA_MEMORY_DEVICE,
                                           .dst_device = memory,
                                           .dst_pitch = ROW,
                                           .width = ROW,
                                           .height = ROWS};
    return cuda->memcpy_2d_async(&rows, stream);
}

void ibx_queue_probe_forget(const void *context)
{
    pthread_mutex_lock(&lock);
    forgotten++;
    for (struct target **at = &targets; *at;) {
        struct target *t = *at;
        if (context && t->context != context) {
            at = &t->next;
            continue;
        }
        *at = t->next;
        free(t);
    }
    pthread_mutex_unlock(&lock);
}
