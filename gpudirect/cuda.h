/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The CUDA driver, loaded at first use: ibx builds and runs without CUDA.
 *
 * The types and numbers below are those of the driver's stable binary interface (the _v2 names),
 * declared here so that no header of CUDA is needed. Every function returns a CUresult: 0, or a
 * positive code.
 *
 * The environment variable IBX_LIBCUDA names another library than libcuda.so.1.
 */
#ifndef IBX_GPUDIRECT_CUDA_H
#define IBX_GPUDIRECT_CUDA_H

#include "common/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* CUresult */
#define IBX_CUDA_INVALID_CONTEXT            201
#define IBX_CUDA_HOST_MEMORY_REGISTERED     712
#define IBX_CUDA_HOST_MEMORY_NOT_REGISTERED 713
#define IBX_CUDA_INVALID_HANDLE             400
#define IBX_CUDA_NOT_READY                  600
#define IBX_CUDA_CONTEXT_IS_DESTROYED       709
#define IBX_CUDA_CAPTURE_FIRST              900 /* codes from FIRST to LAST concern captures */
#define IBX_CUDA_CAPTURE_LAST               908
#define IBX_CUDA_CAPTURED_EVENT             907 /* the event was recorded in a capture */

/* CUmemorytype */
#define IBX_CUDA_MEMORY_HOST   1u
#define IBX_CUDA_MEMORY_DEVICE 2u

/* CUpointer_attribute */
#define IBX_CUDA_POINTER_MEMORY_TYPE 2
#define IBX_CUDA_POINTER_SYNC_MEMOPS 6 /* unsigned; to be set */
#define IBX_CUDA_POINTER_BUFFER_ID   7 /* unsigned long long */
#define IBX_CUDA_POINTER_IS_MANAGED  8
#define IBX_CUDA_POINTER_ORDINAL     9
#define IBX_CUDA_POINTER_RANGE_START 11 /* CUdeviceptr: start of the allocation */
#define IBX_CUDA_POINTER_RANGE_SIZE  12 /* size_t: its bytes */
#define IBX_CUDA_POINTER_MEMPOOL     17 /* CUmemoryPool that has it, or NULL (CUDA 11.3) */

/* CU_MEMHOSTREGISTER_PORTABLE: pinned in all contexts. _READ_ONLY: for memory that is mapped
 * read-only; not every device has it. */
#define IBX_CUDA_HOST_REGISTER_PORTABLE   1u
#define IBX_CUDA_HOST_REGISTER_DEVICE_MAP 2u
#define IBX_CUDA_HOST_REGISTER_READ_ONLY  8u

#define IBX_CUDA_EVENT_DISABLE_TIMING 2u

/* CUstreamCaptureMode, of a capture and of a thread. A thread begins in GLOBAL; higher modes forbid
 * less. */
#define IBX_CUDA_CAPTURE_GLOBAL       0
#define IBX_CUDA_CAPTURE_THREAD_LOCAL 1
#define IBX_CUDA_CAPTURE_RELAXED      2

/* CUdevice_attribute. FLUSH: bit 0 says that cuFlushGPUDirectRDMAWrites() works; ORDERING: the
 * scope within which it need not be called. */
#define IBX_CUDA_DEVICE_HOST_POINTER  91 /* pinned memory has one address, also for the device */
#define IBX_CUDA_DEVICE_RDMA_FLUSH    117
#define IBX_CUDA_DEVICE_RDMA_ORDERING 118
#define IBX_CUDA_DEVICE_DMA_BUF       124
#define IBX_CUDA_FLUSH_BY_HOST        1
#define IBX_CUDA_FLUSH_CURRENT_CTX    0   /* CUflushGPUDirectRDMAWritesTarget */
#define IBX_CUDA_ORDERING_OWNER       100 /* a value of ORDERING, and the scope to flush to */

/* CUmemRangeHandleType and its flags */
#define IBX_CUDA_RANGE_DMA_BUF_FD   1
#define IBX_CUDA_RANGE_DMA_BUF_PCIE 1ull

/* CU_STREAM_LEGACY: what stream 0 means, unless a program was built for per-thread streams. */
#define IBX_CUDA_STREAM_LEGACY ((void *)(uintptr_t)1)
/* CU_STREAM_PER_THREAD: that of the calling thread, in each context. */
#define IBX_CUDA_STREAM_PER_THREAD ((void *)(uintptr_t)2)

/* CUDA_MEMCPY2D */
struct ibx_cuda_memcpy2d {
    size_t src_x, src_y; /* bytes, rows */
    unsigned src_type;
    const void *src_host;
    uint64_t src_device;
    void *src_array;
    size_t src_pitch;
    size_t dst_x, dst_y;
    unsigned dst_type;
    void *dst_host;
    uint64_t dst_device;
    void *dst_array;
    size_t dst_pitch;
    size_t width, height; /* bytes, rows */
};
_Static_assert(sizeof(struct ibx_cuda_memcpy2d) == 128, "the layout of CUDA_MEMCPY2D");

struct ibx_cuda {
    int (*ctx_get_current)(void **context);
    int (*ctx_get_device)(int *device);
    int (*ctx_push_current)(void *context);
    int (*ctx_pop_current)(void **context);
    int (*memcpy_to_device)(uint64_t to, const void *from, size_t n);
    int (*memcpy_from_device)(void *to, uint64_t from, size_t n);
    int (*memcpy_to_device_async)(uint64_t to, const void *from, size_t n, void *stream);
    int (*memcpy_from_device_async)(void *to, uint64_t from, size_t n, void *stream);
    int (*memcpy_async)(uint64_t to, uint64_t from, size_t n, void *stream);
    int (*memcpy_2d_async)(const struct ibx_cuda_memcpy2d *copy, void *stream);
    int (*event_create)(void **event, unsigned flags);
    int (*event_record)(void *event, void *stream);
    int (*event_query)(void *event);
    int (*event_synchronize)(void *event);
    int (*event_destroy)(void *event);
    int (*stream_synchronize)(void *stream);
    int (*stream_query)(void *stream);
    int (*stream_wait_event)(void *stream, void *event, unsigned flags);
    int (*stream_is_capturing)(void *stream, int *status);
    int (*stream_get_context)(void *stream, void **context);
    int (*pointer_get_attributes)(unsigned count, const int *attributes, void **values,
                                  uint64_t pointer);
    int (*mem_get_address_range)(uint64_t *base, size_t *size, uint64_t pointer);
    int (*mem_host_register)(void *address, size_t n, unsigned flags);
    int (*mem_host_unregister)(void *address);
    int (*mem_host_get_flags)(unsigned *flags, void *address);
    int (*get_error_name)(int code, const char **name);
    int (*pointer_set_attribute)(const void *value, int attribute, uint64_t pointer);
    int (*device_get_attribute)(int *value, int attribute, int device);
    int (*device_get_name)(char *name, int size, int device);
    int (*driver_get_version)(int *version); /* 12080: CUDA 12.8 */
    /* NULL where the driver is older: CUDA 11.7, 11.3 and 10.1. */
    int (*mem_get_handle_for_address_range)(void *handle, uint64_t pointer, size_t n, int type,
                                            unsigned long long flags);
    int (*flush_gpu_direct_rdma_writes)(int target, int scope);
    int (*thread_exchange_stream_capture_mode)(int *mode);
    /* CUDA 7.0 and 11.0. */
    int (*device_primary_ctx_get_state)(int device, unsigned *flags, int *active);
    int (*device_primary_ctx_retain)(void **context, int device);
    int (*device_primary_ctx_release)(int device);
    /* CUDA 11.7: a word of pinned memory is set when the stream comes to it. */
    int (*stream_write_value32)(void *stream, uint64_t address, uint32_t value, unsigned flags);
    /* cuCtxSynchronize() is left out on purpose: during a capture, of any thread and in any mode,
     * it fails and ends the capture. */
};

/* The one table of this process. NULL with -ENOENT in `err`: the driver's library is missing; with
 * -EINVAL: the one that is there, or that IBX_LIBCUDA names, cannot be used. Later calls return the
 * result of the first one. From any thread; creates no context and calls no CUDA function. */
const struct ibx_cuda *ibx_cuda_load(struct ibx_error *err);
/* Looks up a driver function that is not in the table; NULL: the driver does not have it. */
void *ibx_cuda_symbol(const char *name);
/* "CUDA_ERROR_ILLEGAL_ADDRESS", never NULL. */
const char *ibx_cuda_error_name(const struct ibx_cuda *cuda, int code);

/* Relaxed capture mode. While a thread captures a stream in mode GLOBAL, as most programs do, calls
 * that wait for an event or a stream, pin memory and the like fail in every thread of the process,
 * and end that capture. Mode THREAD_LOCAL restricts the capturing thread alone. Between these two
 * calls the calling thread may make all such calls, and no capture is harmed. `cuda` may be NULL;
 * pairs may be nested; restore takes what relax has returned. */
static inline int ibx_cuda_capture_relax(const struct ibx_cuda *cuda)
{
    int mode = IBX_CUDA_CAPTURE_RELAXED;
    if (!cuda || !cuda->thread_exchange_stream_capture_mode ||
        cuda->thread_exchange_stream_capture_mode(&mode))
        return IBX_CUDA_CAPTURE_RELAXED;
    return mode;
}

static inline void ibx_cuda_capture_restore(const struct ibx_cuda *cuda, int before)
{
    if (before != IBX_CUDA_CAPTURE_RELAXED)
        cuda->thread_exchange_stream_capture_mode(&before);
}

/* Whether the driver has refused a call because a stream is captured. */
static inline bool ibx_cuda_is_of_capture(int rc)
{
    return rc >= IBX_CUDA_CAPTURE_FIRST && rc <= IBX_CUDA_CAPTURE_LAST;
}

/* What the driver says when the context is entered, and left again: 0 or a CUresult. */
static inline int ibx_cuda_context_enters(const struct ibx_cuda *cuda, void *context)
{
    void *popped = NULL;
    const int rc = cuda->ctx_push_current(context);
    if (!rc)
        cuda->ctx_pop_current(&popped);
    return rc;
}

/* Makes a device's primary context, if that is active, the thread's: 1, and *context is it. 0: it
 * is not active, or cannot be entered. < 0: there is no such device, or the driver is too old. */
static inline int ibx_cuda_primary_enter(const struct ibx_cuda *cuda, int device, void **context)
{
    unsigned flags;
    int active = 0;
    if (!cuda->device_primary_ctx_get_state || !cuda->device_primary_ctx_retain ||
        !cuda->device_primary_ctx_release ||
        cuda->device_primary_ctx_get_state(device, &flags, &active))
        return -1;
    if (!active || cuda->device_primary_ctx_retain(context, device))
        return 0;
    if (!cuda->ctx_push_current(*context))
        return 1;
    cuda->device_primary_ctx_release(device);
    return 0;
}

static inline void ibx_cuda_primary_leave(const struct ibx_cuda *cuda, int device)
{
    void *popped = NULL;
    cuda->ctx_pop_current(&popped);
    cuda->device_primary_ctx_release(device);
}

/* Waits for a stream without an event, in relaxed capture mode. 0 or a CUresult. */
static inline int ibx_cuda_stream_wait(const struct ibx_cuda *cuda, void *stream)
{
    int mode = ibx_cuda_capture_relax(cuda);
    const int rc = cuda->stream_synchronize(stream);
    ibx_cuda_capture_restore(cuda, mode);
    return rc;
}

/* Bytes of a copy that a driver may read before their turn. */
#define IBX_CUDA_EARLY_MOST (64u << 10)

/* To be called before an asynchronous copy of no more bytes than that, without rows, from
 * page-locked memory to the device, if work that it comes after may write them. If the stream has
 * no work itself, the driver reads them in the call, though the legacy stream may have the copy
 * come after other streams' work (16 KiB at most, driver 580 on an H200; not of synchronous copies,
 * nor of rows). Natively that happens to the program's own copies, too, but neither to synchronous
 * ones nor to those to managed memory, which are copies like this one here. A wait for an event of
 * the stream itself is work of the stream; an event alone is not, unless it is the legacy stream.
 * An event of another device than the stream's cannot be recorded: then this waits for the stream.
 * 0 or a CUresult. */
static inline int ibx_cuda_put_behind(const struct ibx_cuda *cuda, void *event, void *stream)
{
    const int rc = cuda->event_record(event, stream);
    if (rc == IBX_CUDA_INVALID_HANDLE)
        return ibx_cuda_stream_wait(cuda, stream);
    return rc ? rc : cuda->stream_wait_event(stream, event, 0);
}

#endif
