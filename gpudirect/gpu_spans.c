/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "gpudirect/gpu_spans.h"

#include <errno.h>
#include <unistd.h>

static void leave(struct ibx_gpu_spans *spans, struct ibx_gpu_span *span)
{
    if (span->registration)
        spans->registrar.leave(spans->registrar.context, span->registration);
    *span = (struct ibx_gpu_span){0};
}

void ibx_gpu_spans_drop(struct ibx_gpu_spans *spans, uint64_t device)
{
    for (unsigned i = 0; i < IBX_GPU_SPANS; i++) {
        struct ibx_gpu_span *span = &spans->spans[i];
        if (span->base && (!device || device - span->base < span->size))
            leave(spans, span);
    }
}

/* ------------------------------------------------------------------ registration */

/* Only whole pages can be exported; a small allocation shares its page with others. */
static struct ibx_span pages_of(uint64_t base, size_t size, int device)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t from = base & ~(page - 1), to = (base + size + page - 1) & ~(page - 1);
    return (struct ibx_span){
        .address = (void *)(uintptr_t)from,
        .length = (size_t)(to - from),
        .kind = IBX_MEMORY_CUDA,
        .dmabuf_fd = -1,
        .device = device,
    };
}

static int enter_dmabuf(struct ibx_gpu_spans *spans, const struct ibx_cuda *cuda,
                        struct ibx_span span, void **registration, struct ibx_error *err)
{
    int can = 0, rc = 0;
    if (!cuda->mem_get_handle_for_address_range)
        return ibx_error_set(err, -ENOSYS, "no dma-buf: the driver is older than CUDA 11.7");
    if (cuda->device_get_attribute(&can, IBX_CUDA_DEVICE_DMA_BUF, span.device) || !can)
        return ibx_error_set(err, -ENOSYS,
                             "no dma-buf: GPU %d has none (open kernel modules are needed)",
                             span.device);
    for (int pcie = 1; pcie >= 0; pcie--) {
        int fd = -1;
        rc = cuda->mem_get_handle_for_address_range(&fd, (uintptr_t)span.address, span.length,
                                                    IBX_CUDA_RANGE_DMA_BUF_FD,
                                                    pcie ? IBX_CUDA_RANGE_DMA_BUF_PCIE : 0);
        if (rc)
            continue;
        span.dmabuf_fd = fd;
        rc = spans->registrar.enter(spans->registrar.context, &span, registration, err);
        close(fd); /* a registration has its own reference */
        if (!rc)
            return 0;
        rc = 0; /* the registrar has set err */
    }
    if (rc)
        return ibx_error_set(err, -EIO, "no dma-buf of %zu bytes of GPU memory: %s", span.length,
                             ibx_cuda_error_name(cuda, rc));
    return -EIO;
}

/* Without SYNC_MEMOPS a synchronous copy of the driver's may return before it has ended, and the
 * fabric would read too early. */
static int enter(struct ibx_gpu_spans *spans, const struct ibx_cuda *cuda,
                 struct ibx_gpu_span *span, int device, struct ibx_error *err)
{
    unsigned one = 1;
    struct ibx_span pages = pages_of(span->base, span->size, device);
    int rc = cuda->pointer_set_attribute(&one, IBX_CUDA_POINTER_SYNC_MEMOPS, span->base);
    if (rc)
        return ibx_error_set(err, -EIO, "GPU memory cannot be made synchronous: %s",
                             ibx_cuda_error_name(cuda, rc));
    rc = spans->registrar.by_dmabuf
             ? enter_dmabuf(spans, cuda, pages, &span->registration, err)
             : ibx_error_set(err, -EOPNOTSUPP, "this fabric's device registers no dma-buf");
    struct ibx_error second = {0};
    if (rc && spans->registrar.by_pointer) {
        rc = spans->registrar.enter(spans->registrar.context, &pages, &span->registration, &second);
        if (rc)
            *err = second;
    }
    return rc;
}

/* A free entry, or else that of the span unused for longest. */
static struct ibx_gpu_span *entry_for_one(struct ibx_gpu_spans *spans)
{
    struct ibx_gpu_span *oldest = &spans->spans[0];
    for (unsigned i = 0; i < IBX_GPU_SPANS; i++) {
        struct ibx_gpu_span *span = &spans->spans[i];
        if (!span->base)
            return span;
        if (span->used < oldest->used)
            oldest = span;
    }
    leave(spans, oldest);
    return oldest;
}

int ibx_gpu_span_get(struct ibx_gpu_spans *spans, const struct ibx_cuda *cuda, uint64_t device,
                     size_t n, void **registration, struct ibx_error *err)
{
    static const int names[] = {IBX_CUDA_POINTER_BUFFER_ID, IBX_CUDA_POINTER_ORDINAL};
    unsigned long long id = 0;
    int ordinal = 0;
    void *values[] = {&id, &ordinal};
    uint64_t base = 0;
    size_t size = 0;
    int rc = cuda->mem_get_address_range(&base, &size, device);
    if (!rc)
        rc = cuda->pointer_get_attributes(2, names, values, device);
    if (rc || !base || device - base > size || n > size - (device - base))
        return ibx_error_set(err, -ERANGE, "%zu bytes of GPU memory are not one allocation's", n);
    struct ibx_gpu_span *span = NULL;
    for (unsigned i = 0; i < IBX_GPU_SPANS && !span; i++) {
        struct ibx_gpu_span *known = &spans->spans[i];
        if (!known->base || known->base >= base + size || base >= known->base + known->size)
            continue;
        if (known->base == base && known->size == size && known->id == id)
            span = known;
        else
            leave(spans, known); /* its memory was freed and given out again */
    }
    rc = 0;
    if (!span) {
        span = entry_for_one(spans);
        *span = (struct ibx_gpu_span){.base = base, .size = size, .id = id};
        rc = enter(spans, cuda, span, ordinal, err);
    }
    span->used = ++spans->clock;
    if (!span->registration)
        return rc ? rc : -EOPNOTSUPP;
    *registration = span->registration;
    return 0;
}

/* ------------------------------------------------------------------------ order */

static int attribute(const struct ibx_cuda *cuda, int name)
{
    int device = 0, value = 0;
    bool known =
        !cuda->ctx_get_device(&device) && !cuda->device_get_attribute(&value, name, device);
    return known ? value : 0;
}

bool ibx_gpu_writes_ordered(const struct ibx_cuda *cuda, struct ibx_error *err)
{
    if (attribute(cuda, IBX_CUDA_DEVICE_RDMA_ORDERING) >= IBX_CUDA_ORDERING_OWNER ||
        (cuda->flush_gpu_direct_rdma_writes &&
         attribute(cuda, IBX_CUDA_DEVICE_RDMA_FLUSH) & IBX_CUDA_FLUSH_BY_HOST))
        return true;
    ibx_error_set(err, -EOPNOTSUPP,
                  "what a fabric writes into this GPU's memory can be neither ordered nor flushed");
    return false;
}

int ibx_gpu_writes_flush(const struct ibx_cuda *cuda)
{
    if (attribute(cuda, IBX_CUDA_DEVICE_RDMA_ORDERING) >= IBX_CUDA_ORDERING_OWNER)
        return 0;
    return cuda->flush_gpu_direct_rdma_writes(IBX_CUDA_FLUSH_CURRENT_CTX, IBX_CUDA_ORDERING_OWNER);
}
