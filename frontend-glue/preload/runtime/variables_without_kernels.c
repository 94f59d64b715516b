/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Variables of a library that has no kernels (JAX puts constants into such libraries). The back end
 * finds a variable through a kernel of the same module (variables.c), so it cannot find these. But
 * no kernel can use them by name: the program takes their addresses. So each becomes device memory
 * with the same initial bytes, on each device its own.
 */
#include "frontend-glue/preload/kernels/images.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/runtime/runtime.h"
#include "frontend-glue/preload/streams/streams.h"

#include <pthread.h>
#include <stdlib.h>

struct variable_memory {
    struct variable_memory *next;
    int device;
    void *at;
    uint64_t number; /* of its allocation (struct range): tells it from a later one at the same
                        address */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

/* Whether its memory still exists: a reset of the device, or the end of its context, frees it. */
static bool is_there(const struct variable_memory *v)
{
    struct range range;
    return v->at && ibx_frontend_allocation(v->at, &range) && range.begin == (uintptr_t)v->at &&
           range.number == v->number;
}

/* Allocates its memory and copies the initial bytes; `from` NULL: zeros. */
static int fill(struct variable_memory *v, const uint8_t *from, size_t n)
{
    struct range range;
    uint8_t *zeros = from ? NULL : calloc(1, n);
    if (!from && !zeros)
        return ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
    const int mode = ibx_frontend_relax();
    int rc = cudaMalloc(&v->at, n);
    if (!rc && (rc = cudaMemcpy(v->at, from ? from : zeros, n, CUDA_MEMCPY_TO_DEVICE)))
        cudaFree(v->at);
    ibx_frontend_relax_end(mode);
    free(zeros);
    if (rc)
        v->at = NULL;
    else if (ibx_frontend_allocation(v->at, &range))
        v->number = range.number;
    return rc;
}

int ibx_frontend_variable_memory(struct variable_memory **all, const uint8_t *fat, size_t size,
                                 const char *name, size_t n, void **address)
{
    const uint8_t *from;
    const int device = ibx_frontend_current_device();
    int rc = CUDA_SUCCESS;
    if (!ibx_image_begins(fat, size, name, n, &from))
        return ibx_frontend_fail(CUDA_SYMBOL_NOT_FOUND);
    pthread_mutex_lock(&lock);
    struct variable_memory *v = *all;
    while (v && v->device != device)
        v = v->next;
    if (!v && (v = calloc(1, sizeof(*v)))) {
        *v = (struct variable_memory){.next = *all, .device = device};
        *all = v;
    }
    if (!v)
        rc = ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
    else if (!is_there(v))
        rc = fill(v, from, n);
    if (!rc)
        *address = v->at;
    pthread_mutex_unlock(&lock);
    return rc;
}

void ibx_frontend_variable_memory_end(struct variable_memory *all)
{
    const int mode = ibx_frontend_relax();
    while (all) {
        struct variable_memory *v = all;
        all = v->next;
        if (is_there(v))
            cudaFree(v->at);
        free(v);
    }
    ibx_frontend_relax_end(mode);
}
