/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * CUDA's types and numbers, as far as libibx-frontend.so uses them: they are written out, since it
 * is built without CUDA. cudaError_t and enum cudaMemcpyKind are int, cudaStream_t and cudaEvent_t
 * are pointers.
 */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_CUDA_TYPES_H
#define IBX_FRONTEND_GLUE_PRELOAD_CUDA_TYPES_H

#include "frontend-glue/session/extensions.h"

/* cudaError_t */
#define CUDA_SUCCESS               0
#define CUDA_INVALID_VALUE         1
#define CUDA_MEMORY_ALLOCATION     2
#define CUDA_UNLOADING             4
#define CUDA_INVALID_PITCH         12
#define CUDA_INVALID_SYMBOL        13
#define CUDA_INVALID_DIRECTION     21
#define CUDA_INSUFFICIENT_DRIVER   35
#define CUDA_MISSING_CONFIGURATION 52
#define CUDA_INVALID_FUNCTION      98
#define CUDA_INVALID_DEVICE        101
#define CUDA_INVALID_IMAGE         200
#define CUDA_INVALID_PTX           218
#define CUDA_INVALID_CONTEXT       201
#define CUDA_MAP_FAILED            205
#define CUDA_FILE_NOT_FOUND        301
#define CUDA_INVALID_HANDLE        400
#define CUDA_ILLEGAL_STATE         401
#define CUDA_LOSSY_QUERY           402
#define CUDA_SYMBOL_NOT_FOUND      500
#define CUDA_NOT_READY             600
#define CUDA_ALREADY_REGISTERED    712
#define CUDA_NOT_REGISTERED        713
#define CUDA_NOT_PERMITTED         800
#define CUDA_NOT_SUPPORTED         801
#define CUDA_CAPTURE_UNSUPPORTED   900
#define CUDA_CAPTURE_INVALIDATED   901
#define CUDA_CAPTURE_IMPLICIT      906
#define CUDA_UNKNOWN               999

/* enum cudaStreamCaptureMode */
#define CUDA_CAPTURE_GLOBAL       0
#define CUDA_CAPTURE_THREAD_LOCAL 1
#define CUDA_CAPTURE_RELAXED      2

/* enum cudaMemcpyKind */
#define CUDA_MEMCPY_ON_HOST     0
#define CUDA_MEMCPY_TO_DEVICE   1
#define CUDA_MEMCPY_FROM_DEVICE 2
#define CUDA_MEMCPY_ON_DEVICE   3
#define CUDA_MEMCPY_DEFAULT     4
static inline bool ibx_frontend_is_no_kind(int kind)
{
    return kind < CUDA_MEMCPY_ON_HOST || kind > CUDA_MEMCPY_DEFAULT;
}

/* cudaStreamPerThread, the calling thread's; the legacy stream's values are 0 and 1. */
#define CUDA_STREAM_PER_THREAD ((void *)2)

/* The stream that a program with a default stream for each thread means. */
static inline void *ibx_frontend_own(void *stream)
{
    return stream ? stream : CUDA_STREAM_PER_THREAD;
}

struct dim3 {
    unsigned x, y, z;
};

/* cudaIpcMemHandle_t, cudaIpcEventHandle_t */
struct ipc_handle {
    uint8_t bytes[IBX_EXT_HANDLE];
};
/* cudaMemLocation, cudaMemAccessDesc, cudaMemPoolProps */
struct memory_location {
    int type, id;
};
#define CUDA_AT_DEVICE  1 /* cudaMemLocationType */
#define CUDA_AT_HOST    2
#define CUDA_AT_NODE    3    /* cudaMemLocationTypeHostNuma */
#define CUDA_CPU_DEVICE (-1) /* cudaCpuDeviceId */
/* Where a call means that takes a device's number. Which devices there are is not known here: hints
 * that are for no place may have any number. */
static inline struct memory_location ibx_frontend_location_of(int device)
{
    return device == CUDA_CPU_DEVICE ? (struct memory_location){CUDA_AT_HOST, 0}
                                     : (struct memory_location){CUDA_AT_DEVICE, device};
}
struct memory_access {
    struct memory_location location;
    int flags;
};
struct pool_properties {
    int allocation, handles;
    struct memory_location location;
    void *security;
    size_t most;
    unsigned short usage;
    uint8_t reserved[54];
};
#define IPC_LAZY_PEER_ACCESS 1u /* the only flags that cudaIpcOpenMemHandle takes */

struct launch_attribute {
    int id;
    _Alignas(8) uint8_t value[IBX_EXT_ATTRIBUTE];
};

struct launch_config {
    struct dim3 grid, block;
    size_t shared;
    void *stream;
    const struct launch_attribute *attributes;
    unsigned count;
};

/* enum cudaGraphNodeType */
enum {
    IBX_FRONTEND_NODE_KERNEL,
    IBX_FRONTEND_NODE_MEMCPY,
    IBX_FRONTEND_NODE_MEMSET,
    IBX_FRONTEND_NODE_HOST,
    IBX_FRONTEND_NODE_GRAPH,
    IBX_FRONTEND_NODE_EMPTY,
    IBX_FRONTEND_NODE_WAIT,
    IBX_FRONTEND_NODE_RECORD,
    IBX_FRONTEND_NODE_ALLOCATION = 10,
    IBX_FRONTEND_NODE_FREE,
    IBX_FRONTEND_NODE_CONDITIONAL = 13
};

/* Of graphs: cudaKernelNodeParams, cudaHostNodeParams, cudaMemAllocNodeParams with its
 * cudaMemPoolProps, cudaGraphExecUpdateResultInfo. */
struct kernel_node {
    const void *function;
    struct dim3 grid, block;
    unsigned shared;
    void **arguments, **extra;
};
struct host_node {
    void (*function)(void *argument);
    void *argument;
};
struct allocation_node {
    int kind, shared_as;
    int location, device;
    uint8_t rest[72];
    const void *access;
    size_t access_count, n;
    void *address;
};
struct conditional_node {
    unsigned long long handle;
    int type;
    unsigned size;
    void **graphs; /* which the call sets */
};
/* cudaGraphNodeParams. Before CUDA 13 the kernel's, for instance, are the same in it. */
struct node_parameters {
    int type, reserved[3];
    union {
        long long words[29];
        struct kernel_node kernel;
        struct {
            int flags, reserved[3];
            struct ibx_cuda_memcpy3d parameters;
        } copy;
        struct ibx_cuda_memset set;
        struct host_node host;
        struct allocation_node allocation;
        struct conditional_node conditional;
        struct {
            void *graph;
            int ownership; /* 1: it is moved to the node, which otherwise has a clone of it */
        } child;
        void *handle; /* of an event; an address */
    } of;
    long long more;
};
struct graph_update {
    int result;
    void *node, *other;
};

/* cudaPointerAttributes; CUDA 13 has more behind it. */
struct pointer_attributes {
    int type, device;
    void *on_device, *on_host;
};

/* cudaMemcpyAttributes */
struct copy_attributes {
    int order; /* in which the source is read */
    struct memory_location from, to;
    unsigned flags;
};
/* The arguments of cudaMemcpyBatchAsync. */
struct copy_batch {
    void *const *to;
    const void *const *from;
    const size_t *n;
    size_t count;
    const struct copy_attributes *attributes;
    const size_t *first; /* copy for which each of them is */
    size_t attribute_count;
};
/* cudaMemcpy3DOperand, cudaMemcpy3DBatchOp */
struct planes_operand {
    int type;
    union {
        struct {
            void *at;
            size_t row, rows; /* in elements, of a plane */
            struct memory_location where;
        } memory;
        struct {
            void *array;
            struct ibx_cuda_extent at;
        } array;
    } of;
};
struct planes_in_batch {
    struct planes_operand from, to;
    struct ibx_cuda_extent extent; /* in elements */
    int order;
    unsigned flags;
};
/* cudaMemcpy3DPeerParms */
struct peer_planes {
    void *from_array;
    struct ibx_cuda_extent from_at;
    struct ibx_cuda_pitched from;
    int from_device;
    void *to_array;
    struct ibx_cuda_extent to_at;
    struct ibx_cuda_pitched to;
    int to_device;
    struct ibx_cuda_extent extent;
};

/* cudaGraphInstantiateParams */
struct instantiate_parameters {
    unsigned long long flags;
    void *stream; /* for the upload that the flags may ask for */
    void *failed; /* a node */
    int result;
};

#endif
