/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "gpudirect/queue_probe.h"

#include <pthread.h>
#include <stdbool.h>

#define CONTEXTS      16u
#define OUT_OF_MEMORY 2 /* CUresult */
#define ROW           4u
#define ROWS          2u

static int (*allocate)(uint64_t *address, size_t n);
static pthread_once_t looked = PTHREAD_ONCE_INIT;

/* The memory stays until its context is gone: to free it would wait for all work there. */
static struct target {
    const void *context; /* NULL: free */
    uint64_t memory;     /* 0: a thread allocates it now, or none could be had */
} targets[CONTEXTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void look(void)
{
    *(void **)&allocate = ibx_cuda_symbol("cuMemAlloc_v2");
}

/* The entry of a context, or a free one for NULL; NULL: there is none. The caller holds the lock.
 */
static struct target *entry_of(const void *context)
{
    struct target *t = targets, *const end = targets + CONTEXTS;
    while (t < end && t->context != context)
        t++;
    return t < end ? t : NULL;
}

/* Gives the context an entry. False: it has one, or there is no room. */
static bool claim(const void *context, uint64_t *memory)
{
    pthread_mutex_lock(&lock);
    const struct target *t = entry_of(context);
    struct target *claimed = t ? NULL : entry_of(NULL);
    *memory = t ? t->memory : 0;
    if (claimed)
        *claimed = (struct target){context, 0};
    pthread_mutex_unlock(&lock);
    return claimed;
}

/* The memory of the current context, which is `context`; 0: there is none. The driver is called
 * without the lock, since it may take long. */
static uint64_t target_of(const void *context)
{
    uint64_t memory;
    pthread_once(&looked, look);
    if (!allocate || !claim(context, &memory))
        return allocate ? memory : 0;
    if (allocate(&memory, ROWS * ROW))
        memory = 0;
    pthread_mutex_lock(&lock);
    struct target *t = entry_of(context);
    if (t)
        t->memory = memory;
    pthread_mutex_unlock(&lock);
    return t ? memory : 0;
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
    for (unsigned i = 0; i < CONTEXTS; i++) {
        if (!context || targets[i].context == context)
            targets[i].context = NULL;
    }
    pthread_mutex_unlock(&lock);
}
