/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A span of memory to register. gpudirect makes it, transport registers it; neither includes the
 * other. */
#ifndef IBX_COMMON_SPAN_H
#define IBX_COMMON_SPAN_H

#include <stddef.h>
#include <stdint.h>

enum ibx_memory_kind {
    IBX_MEMORY_HOST, /* ordinary process memory */
    IBX_MEMORY_CUDA, /* GPU memory; the CPU must not touch it */
};

struct ibx_span {
    void *address; /* of the first byte, in this process (or the device's own, for CUDA) */
    size_t length; /* bytes */
    enum ibx_memory_kind kind;
    int dmabuf_fd;          /* an exported dma-buf that the caller keeps; -1: none */
    uint64_t dmabuf_offset; /* bytes from the dma-buf's begin to `address`; equal modulo the page */
    int device;             /* CUDA's ordinal */
};

static inline struct ibx_span ibx_span_host(void *address, size_t length)
{
    struct ibx_span span = {address, length, IBX_MEMORY_HOST, -1, 0, 0};
    return span;
}

#endif
