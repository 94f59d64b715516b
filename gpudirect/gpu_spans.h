/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * GPU memory as spans that a fabric registers: whole allocations, each once.
 *
 *   first   as a dma-buf, mapped by PCIe, or else as the driver maps it by itself
 *   second  by its address alone, which the fabric gives a meaning (nvidia-peermem)
 *
 * A registration is kept as long as CUDA says that it is the same buffer, and
 * goes when its memory is freed or its context is reset, as far as that is told,
 * or else for want of room. Who registers must do so for this side only.
 *
 * A cache belongs to one connection and its thread, with the current context.
 */
#ifndef IBX_GPUDIRECT_GPU_SPANS_H
#define IBX_GPUDIRECT_GPU_SPANS_H

#include "common/span.h"
#include "gpudirect/cuda.h"

#include <stdbool.h>

#define IBX_GPU_SPANS 32u

/* How memory is registered. `by_dmabuf`, `by_pointer`: whether it can be so at all. */
struct ibx_gpu_registrar {
    bool by_dmabuf, by_pointer;
    int (*enter)(void *context, const struct ibx_span *span, void **registration,
                 struct ibx_error *err);
    void (*leave)(void *context, void *registration);
    void *context;
};

struct ibx_gpu_span {
    uint64_t base; /* 0: a free place */
    size_t size;
    uint64_t id;        /* CUDA's, of the buffer */
    void *registration; /* NULL: refused, and not tried again under this id */
    uint64_t used;      /* the higher the later */
};

struct ibx_gpu_spans {
    struct ibx_gpu_registrar registrar;
    struct ibx_gpu_span spans[IBX_GPU_SPANS];
    uint64_t clock;
};

/* The registration of the allocation that holds [device, device + n), made now if there is none.
 * -EOPNOTSUPP: refused before; otherwise a sentence says why it is refused. */
int ibx_gpu_span_get(struct ibx_gpu_spans *spans, const struct ibx_cuda *cuda, uint64_t device,
                     size_t n, void **registration, struct ibx_error *err);
/* What holds `device` is about to be freed; 0: everything is. */
void ibx_gpu_spans_drop(struct ibx_gpu_spans *spans, uint64_t device);

/* Whether what a fabric writes into the current device's memory can be made visible to it. */
bool ibx_gpu_writes_ordered(const struct ibx_cuda *cuda, struct ibx_error *err);
/* After such writes have ended, and before anything on the GPU is told so. 0 or a CUresult. */
int ibx_gpu_writes_flush(const struct ibx_cuda *cuda);

#endif
