/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * GPU memory registered with a fabric: whole allocations, each once.
 *
 *   first   as a dma-buf: mapped by PCIe, or else as the driver maps it by default
 *   second  by its address, for fabrics that know it (nvidia-peermem)
 *
 * A registration is kept while CUDA reports the same buffer id. It ends when the caller reports
 * that the memory is about to be freed or its context reset (ibx_gpu_registrations_drop(),
 * _freed()), when the buffer id at its address has changed, or when its entry is needed for
 * another. The registrar must grant local access only.
 *
 * As long as memory is registered as a dma-buf, it stays allocated after cudaFree() (H200, driver
 * 580). So who frees memory has other threads' registrations of it ended first.
 *
 * A struct ibx_gpu_registrations belongs to one connection, its thread and that thread's current
 * context.
 */
#ifndef IBX_GPUDIRECT_GPU_REGISTRATIONS_H
#define IBX_GPUDIRECT_GPU_REGISTRATIONS_H

#include "common/span.h"
#include "gpudirect/cuda.h"

#include <stdatomic.h>
#include <stdbool.h>

#define IBX_GPU_REGISTRATIONS 32u

/* Registers memory with the fabric; `by_dmabuf` and `by_pointer` say in which ways it can. */
struct ibx_gpu_registrar {
    bool by_dmabuf, by_pointer;
    int (*enter)(void *context, const struct ibx_span *span, void **handle, struct ibx_error *err);
    void (*leave)(void *context, void *handle);
    /* Called by any thread, under a lock: has the registrations' own thread call tidy() soon. NULL:
     * it does so now and then. */
    void (*wake)(void *context);
    void *context;
};

struct ibx_gpu_registration {
    uint64_t base; /* 0: a free entry */
    size_t size;
    uint64_t id;   /* CUDA's, of the buffer */
    void *handle;  /* the registrar's; NULL: refused, and not tried again under this id */
    uint64_t used; /* larger is later */
    bool freed;    /* locked: another thread is about to free the memory */
};

struct ibx_gpu_registrations {
    struct ibx_gpu_registrar registrar;
    struct ibx_gpu_registration entries[IBX_GPU_REGISTRATIONS];
    uint64_t clock;
    atomic_bool untidy; /* an entry may be `freed` */
    /* Locked: how many entries have a handle. If any, others see these registrations. */
    unsigned registered;
    bool paused;
    struct ibx_gpu_registrations *next;
};

/* Sets `handle` to the registration of the allocation that contains [device, device + n), and
 * registers it first unless it is registered. -ERANGE: no single allocation contains the range;
 * -ENOSYS, -EIO or the registrar's error: registering it was refused; -EOPNOTSUPP, without a
 * message: it was refused before. */
int ibx_gpu_registration_get(struct ibx_gpu_registrations *cache, const struct ibx_cuda *cuda,
                             uint64_t device, size_t n, void **handle, struct ibx_error *err);
/* Ends the registration of the allocation that contains `device`, which is about to be freed; 0: of
 * all allocations. Ends a pause. */
void ibx_gpu_registrations_drop(struct ibx_gpu_registrations *cache, uint64_t device);
/* The same, also in all other threads' caches of this process. Waits until their threads have ended
 * their registrations, for a bounded time. `cache` may be NULL. */
void ibx_gpu_registrations_freed(struct ibx_gpu_registrations *cache, uint64_t device);
/* Ends registrations that another thread waits for. To be called while none is in use, before the
 * thread sleeps, and after it was woken. Whether there were any. */
bool ibx_gpu_registrations_tidy(struct ibx_gpu_registrations *cache);
/* From now on registrar.wake is not called. */
void ibx_gpu_registrations_pause(struct ibx_gpu_registrations *cache);

/* Whether writes of a fabric to the current device's memory can be made visible to the device. */
bool ibx_gpu_writes_ordered(const struct ibx_cuda *cuda, struct ibx_error *err);
/* Makes them visible: after such writes have ended, before work on the GPU depends on them. 0 or a
 * CUresult. */
int ibx_gpu_writes_flush(const struct ibx_cuda *cuda);

#endif
