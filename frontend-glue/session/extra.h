/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Requests of our own: calls of CUDA's runtime that GVirtuS lacks, or makes wrongly. The preload
 * makes them (preload/), the back end's plugin runs them (own_requests/own_requests.c) by the
 * runtime of GVirtuS's handlers, and they travel in GVirtuS's frames: a name, IBX_EXTRA_NAME, and a
 * body that begins with the number of the call. A back end without them answers -1, as for every
 * name that it does not know. docs/protocol.md has the table of bodies.
 *
 * CUDA's structures are written out: a layout names the fields of one in their order, 'i' for four
 * bytes and 'q' for eight, each aligned to its size as the ABI has it; on the wire they are
 * little-endian, without gaps.
 */
#ifndef IBX_FRONTEND_GLUE_SESSION_EXTRA_H
#define IBX_FRONTEND_GLUE_SESSION_EXTRA_H

#include "common/wire.h"

#include <string.h>

#define IBX_EXTRA_NAME "ibxRuntime"  /* comes after all that the client has asked for */
#define IBX_EXTRA_WORK "ibxHostWork" /* after nothing of it: HOST_ASK, STREAM_WAIT */
#define IBX_EXTRA_QUEUE                                                                            \
    "ibxEnqueue" /* after what is in its stream, the body's last 8 bytes; its                      \
                    call may return before it is run: MEMSET, MEMSET_2D, MEMSET_ELEMENTS,          \
                    MEMCPY_3D_ASYNC */

/* On the wire: u16. Numbers are never used again. */
enum ibx_extra {
    IBX_EXTRA_LAUNCH = 1,           /* cudaLaunchKernelExC, cudaLaunchCooperativeKernel */
    IBX_EXTRA_STREAM_SET_ATTRIBUTE, /* cudaStreamSetAttribute */
    IBX_EXTRA_STREAM_GET_ATTRIBUTE,
    IBX_EXTRA_RESET_L2, /* cudaCtxResetPersistingL2Cache */
    IBX_EXTRA_GET_LIMIT,
    IBX_EXTRA_SYMBOL_ADDRESS, /* cudaGetSymbolAddress */
    IBX_EXTRA_SYMBOL_SIZE,
    IBX_EXTRA_MALLOC_ARRAY, /* cudaMallocArray, cudaMalloc3DArray */
    IBX_EXTRA_FREE_ARRAY,
    IBX_EXTRA_TO_ARRAY,      /* cudaMemcpyToArray, of device memory */
    IBX_EXTRA_FROM_ARRAY,    /* cudaMemcpyFromArray, likewise */
    IBX_EXTRA_2D_TO_ARRAY,   /* cudaMemcpy2DToArray, likewise */
    IBX_EXTRA_2D_FROM_ARRAY, /* cudaMemcpy2DFromArray, likewise */
    IBX_EXTRA_MEMCPY_3D,     /* cudaMemcpy3D, likewise */
    IBX_EXTRA_CHANNEL_DESC,  /* cudaGetChannelDesc */
    IBX_EXTRA_CREATE_TEXTURE,
    IBX_EXTRA_DESTROY_TEXTURE,
    IBX_EXTRA_CREATE_SURFACE,
    IBX_EXTRA_DESTROY_SURFACE,
    IBX_EXTRA_MALLOC_ASYNC,
    IBX_EXTRA_MALLOC_FROM_POOL,
    IBX_EXTRA_FREE_ASYNC,
    IBX_EXTRA_POOL_DEFAULT, /* cudaDeviceGetDefaultMemPool */
    IBX_EXTRA_POOL_CURRENT, /* cudaDeviceGetMemPool */
    IBX_EXTRA_POOL_SET,     /* cudaMemPoolSetAttribute */
    IBX_EXTRA_POOL_GET,
    IBX_EXTRA_POOL_TRIM,
    IBX_EXTRA_HOST_OPEN, /* a queue of functions to call */
    IBX_EXTRA_HOST_ADD,  /* cudaLaunchHostFunc, cudaStreamAddCallback */
    IBX_EXTRA_HOST_ASK,
    IBX_EXTRA_IS_CAPTURING, /* cudaStreamIsCapturing */
    IBX_EXTRA_HOST_CAPTURE, /* cudaLaunchHostFunc in a stream that is captured */
    IBX_EXTRA_MEMSET,       /* cudaMemsetAsync */
    IBX_EXTRA_GRAPH_CREATE,
    IBX_EXTRA_GRAPH_DESTROY,
    IBX_EXTRA_GRAPH_CLONE,
    IBX_EXTRA_GRAPH_INSTANTIATE,
    IBX_EXTRA_GRAPH_NODES,     /* cudaGraphGetNodes, cudaGraphGetRootNodes */
    IBX_EXTRA_GRAPH_FUNCTIONS, /* of the client's, that it calls */
    IBX_EXTRA_GRAPH_ORDER,     /* cudaGraphAddDependencies, cudaGraphRemoveDependencies */
    IBX_EXTRA_NODE_KERNEL,     /* cudaGraphAddKernelNode, and so on */
    IBX_EXTRA_NODE_MEMCPY,     /* within the device */
    IBX_EXTRA_NODE_MEMSET,
    IBX_EXTRA_NODE_HOST,
    IBX_EXTRA_NODE_EMPTY,
    IBX_EXTRA_NODE_CHILD,
    IBX_EXTRA_NODE_RECORD,
    IBX_EXTRA_NODE_WAIT,
    IBX_EXTRA_NODE_ALLOC,
    IBX_EXTRA_NODE_FREE,
    IBX_EXTRA_NODE_TYPE,
    IBX_EXTRA_NODE_DESTROY,
    IBX_EXTRA_SET_KERNEL, /* cudaGraphKernelNodeSetParams, cudaGraphExecKernelNodeSetParams */
    IBX_EXTRA_SET_MEMCPY,
    IBX_EXTRA_SET_MEMSET,
    IBX_EXTRA_EXEC_UPDATE,
    IBX_EXTRA_EXEC_DESTROY,
    IBX_EXTRA_EXEC_UPLOAD,
    IBX_EXTRA_GRAPH_MEMORY, /* cudaDeviceGetGraphMemAttribute */
    IBX_EXTRA_GRAPH_TRIM,   /* cudaDeviceGraphMemTrim */
    IBX_EXTRA_STREAM_WAIT,  /* cudaStreamSynchronize */
    IBX_EXTRA_MEMSET_2D,    /* cudaMemset2DAsync */
    IBX_EXTRA_IPC_MEMORY,   /* cudaIpcGetMemHandle */
    IBX_EXTRA_IPC_OPEN_MEMORY,
    IBX_EXTRA_IPC_EVENT, /* cudaIpcGetEventHandle */
    IBX_EXTRA_IPC_OPEN_EVENT,
    IBX_EXTRA_HOST_COPY, /* no more */
    IBX_EXTRA_VARIABLE,  /* cudaGetSymbolAddress and Size, by a kernel of its module and its name */
    IBX_EXTRA_POOL_CREATE,
    IBX_EXTRA_POOL_DESTROY,
    IBX_EXTRA_POOL_SET_ACCESS, /* cudaMemPoolSetAccess, for one device */
    IBX_EXTRA_POOL_GET_ACCESS,
    IBX_EXTRA_IPC_POOL, /* cudaMemPoolExportToShareableHandle */
    IBX_EXTRA_IPC_OPEN_POOL,
    IBX_EXTRA_IPC_OPEN_POINTER, /* cudaMemPoolImportPointer, of what IPC_MEMORY has shared */
    IBX_EXTRA_GRAPH_CONDITION,  /* cudaGraphConditionalHandleCreate */
    IBX_EXTRA_NODE_CONDITIONAL, /* cudaGraphAddNode */
    IBX_EXTRA_STREAM_FLAGS,     /* cudaStreamGetFlags */
    IBX_EXTRA_STREAM_PRIORITY,  /* cudaStreamGetPriority */
    IBX_EXTRA_STREAM_ID,        /* cudaStreamGetId */
    IBX_EXTRA_STREAM_DEVICE,    /* cudaStreamGetDevice */
    IBX_EXTRA_STREAM_COPY_ATTRIBUTES,
    IBX_EXTRA_DEVICE_FLAGS,    /* cudaGetDeviceFlags */
    IBX_EXTRA_DEVICE_CACHE,    /* cudaDeviceGetCacheConfig */
    IBX_EXTRA_BETWEEN_DEVICES, /* cudaDeviceGetP2PAttribute */
    IBX_EXTRA_TEXTURE_WIDTH,   /* cudaDeviceGetTexture1DLinearMaxWidth */
    IBX_EXTRA_CLUSTERS,        /* cudaOccupancyMaxActiveClusters */
    IBX_EXTRA_CLUSTER_SIZE,    /* cudaOccupancyMaxPotentialClusterSize */
    IBX_EXTRA_SHARED_MEMORY,   /* cudaOccupancyAvailableDynamicSMemPerBlock */
    IBX_EXTRA_PARAMETER,       /* cudaFuncGetParamInfo */
    IBX_EXTRA_NODE_NEIGHBOURS, /* cudaGraphNodeGetDependencies, cudaGraphNodeGetDependentNodes */
    IBX_EXTRA_NODE_ENABLE,     /* cudaGraphNodeSetEnabled */
    IBX_EXTRA_NODE_ENABLED,    /* cudaGraphNodeGetEnabled */
    IBX_EXTRA_HOST_MAP,        /* page-locked memory at its address, for kernels */
    IBX_EXTRA_HOST_UNMAP,
    IBX_EXTRA_MEMCPY_3D_ASYNC, /* cudaMemcpy3DAsync, within the device */
    IBX_EXTRA_NODE_COPY,       /* cudaGraphAddMemcpyNode between host and device, by a slot */
    IBX_EXTRA_CAPTURE_COPY,    /* cudaMemcpyAsync likewise, in a stream that is captured */
    IBX_EXTRA_SET_COPY,        /* cudaGraphMemcpyNodeSetParams likewise, and in what is launched */
    IBX_EXTRA_GET_COPY,        /* cudaGraphMemcpyNodeGetParams */
    IBX_EXTRA_PRINTED,         /* what kernels have printed */
    IBX_EXTRA_IPC_CLOSE,       /* cudaIpcCloseMemHandle, and the like of events and pools */
    IBX_EXTRA_PARAMETERS,      /* where those of a kernel lie; who answers takes long launches */
    IBX_EXTRA_SHARE_MODULES,   /* a process's modules end with it; a child's uses its parent's */
    IBX_EXTRA_MALLOC_MIPMAP,   /* cudaMallocMipmappedArray */
    IBX_EXTRA_FREE_MIPMAP,
    IBX_EXTRA_MIPMAP_LEVEL,     /* cudaGetMipmappedArrayLevel: an array, which goes with it */
    IBX_EXTRA_NODE_IN_CLONE,    /* cudaGraphNodeFindInClone */
    IBX_EXTRA_EXEC_FLAGS,       /* cudaGraphExecGetFlags */
    IBX_EXTRA_GET_MEMSET,       /* cudaGraphMemsetNodeGetParams */
    IBX_EXTRA_POINTER,          /* cudaPointerGetAttributes: whether it is memory of a device */
    IBX_EXTRA_GET_KERNEL = 120, /* cudaGraphKernelNodeGetParams */
    IBX_EXTRA_GET_ATTRIBUTE,    /* cudaGraphKernelNodeGetAttribute */
    IBX_EXTRA_SET_ATTRIBUTE,
    IBX_EXTRA_COPY_ATTRIBUTES,  /* cudaGraphKernelNodeCopyAttributes */
    IBX_EXTRA_GET_EVENT,        /* cudaGraphEventRecordNodeGetEvent, and of nodes that wait */
    IBX_EXTRA_SET_EVENT,        /* ... SetEvent, and in what is launched */
    IBX_EXTRA_GET_HOST,         /* cudaGraphHostNodeGetParams */
    IBX_EXTRA_SET_HOST,         /* ... SetParams, and in what is launched */
    IBX_EXTRA_GET_CHILD,        /* cudaGraphChildGraphNodeGetGraph */
    IBX_EXTRA_SET_CHILD,        /* cudaGraphExecChildGraphNodeSetParams */
    IBX_EXTRA_GET_MEMORY,       /* cudaGraphMemAllocNodeGetParams, cudaGraphMemFreeNodeGetParams */
    IBX_EXTRA_SET_GRAPH_MEMORY, /* cudaDeviceSetGraphMemAttribute */
    IBX_EXTRA_MEMSET_ELEMENTS,  /* cuMemsetD2D16Async, cuMemsetD2D32Async */
    IBX_EXTRA_VIRTUAL_GRANULARITY, /* cuMemGetAllocationGranularity; whether there is all of these
                                    */
    IBX_EXTRA_VIRTUAL_RESERVE,     /* cuMemAddressReserve */
    IBX_EXTRA_VIRTUAL_FREE,        /* cuMemAddressFree */
    IBX_EXTRA_VIRTUAL_CREATE,      /* cuMemCreate */
    IBX_EXTRA_VIRTUAL_RELEASE,     /* cuMemRelease */
    IBX_EXTRA_VIRTUAL_MAP,         /* cuMemMap */
    IBX_EXTRA_VIRTUAL_UNMAP,       /* cuMemUnmap */
    IBX_EXTRA_VIRTUAL_SET_ACCESS,  /* cuMemSetAccess, for one device */
    IBX_EXTRA_VIRTUAL_GET_ACCESS,  /* cuMemGetAccess */
    IBX_EXTRA_TENSOR_MAP,          /* cuTensorMapEncode*: enum ibx_extra_tensor_map */
    IBX_EXTRA_TENSOR_ADDRESS,      /* cuTensorMapReplaceAddress */
    IBX_EXTRAS                     /* one more than the last */
};

/* Which map of a tensor a request is about. */
enum ibx_extra_tensor_map {
    IBX_EXTRA_TENSOR_TILED,
    IBX_EXTRA_TENSOR_IM2COL,
    IBX_EXTRA_TENSOR_IM2COL_WIDE
};

#define IBX_EXTRA_TENSOR_RANK      5u   /* dimensions, at most */
#define IBX_EXTRA_TENSOR_MAP_BYTES 128u /* of a CUtensorMap */

#define IBX_EXTRA_LISTED        32u /* handles or numbers in one reply, behind how many there are */
#define IBX_EXTRA_BEHIND        64u /* nodes that a new one comes behind */
#define IBX_EXTRA_OUT_MAX       (8 + 8 * IBX_EXTRA_LISTED) /* bytes of a reply beside the exit code */
#define IBX_EXTRA_ARGUMENTS_MAX 32764u /* bytes of a launch's arguments, CUDA's limit */
#define IBX_EXTRA_SET_LAUNCH    18u    /* bytes of a SET_KERNEL before what a launch has */
#define IBX_EXTRA_ATTRIBUTE     64u    /* bytes of an attribute's value, CUDA's union of scalars */
#define IBX_EXTRA_PRINTED_MOST  256u   /* bytes in a reply to PRINTED, behind how many there are */
#define IBX_EXTRA_COPIED        128u /* bytes from the device in the reply to a HOST_ASK, at most */
#define IBX_EXTRA_OWN_PAGES     UINT64_MAX /* of HOST_MAP: the memory is in no shared file */
#define IBX_EXTRA_HANDLE        64u        /* bytes of a handle for other processes */
#define IBX_EXTRA_NODE_BYTES    216u /* of a kernel's arguments in a reply to GET_KERNEL, at most */
#define IBX_EXTRA_VARIABLE_NAME 1024u /* bytes of a variable's name, at most */

/* Layouts. */
#define IBX_LAYOUT_CHANNEL  "iiiii"
#define IBX_LAYOUT_EXTENT   "qqq"
#define IBX_LAYOUT_MEMCPY3D "qqqqqqqqqqqqqqqqqqqi"
#define IBX_LAYOUT_TEXTURE  "iiiiiiiiiiiiiiiiii"
#define IBX_LAYOUT_VIEW     "iqqqiiii"
#define IBX_LAYOUT_MEMSET   "qqiiqq"

/* CUDA's, as far as both sides look into them. */
struct ibx_cuda_channel {
    int x, y, z, w, kind;
};
struct ibx_cuda_extent {
    size_t width, height, depth;
};
struct ibx_cuda_pitched {
    void *at;
    size_t pitch, x, y;
};
struct ibx_cuda_memcpy3d {
    void *from_array;
    struct ibx_cuda_extent from_at;
    struct ibx_cuda_pitched from;
    void *to_array;
    struct ibx_cuda_extent to_at;
    struct ibx_cuda_pitched to;
    struct ibx_cuda_extent extent;
    int kind;
};
struct ibx_cuda_memset {
    void *at;
    size_t pitch;
    unsigned value, element; /* bytes of an element */
    size_t width, height;    /* elements, rows */
};
struct ibx_cuda_texture {
    int words[18];
};
struct ibx_cuda_view {
    int format;
    size_t width, height, depth;
    unsigned levels_and_layers[4];
    unsigned reserved[16];
};
/* An array, a mipmapped array, linear memory, memory of rows. */
enum ibx_cuda_resource_kind {
    IBX_RESOURCE_ARRAY,
    IBX_RESOURCE_MIPMAP,
    IBX_RESOURCE_LINEAR,
    IBX_RESOURCE_PITCH_2D
};
struct ibx_cuda_resource {
    int kind;
    union {
        void *array;
        struct {
            void *at;
            struct ibx_cuda_channel channel;
            size_t sizes[3]; /* bytes; or width, height, pitch */
        } memory;
        int reserved[32];
    } of;
    unsigned flags; /* from CUDA 13 on */
};

/* Whether a request of that name is one of these. */
static inline bool ibx_extra_is(const char *name)
{
    return !strcmp(name, IBX_EXTRA_NAME) || !strcmp(name, IBX_EXTRA_WORK) ||
           !strcmp(name, IBX_EXTRA_QUEUE);
}

void ibx_layout_put(struct ibx_writer *w, const char *layout, const void *structure);
void ibx_layout_get(struct ibx_reader *r, const char *layout, void *structure);
/* Of a kind that is not known neither writes more than the kind; get() then fails the reader. */
void ibx_resource_put(struct ibx_writer *w, const struct ibx_cuda_resource *resource);
void ibx_resource_get(struct ibx_reader *r, struct ibx_cuda_resource *resource);

#endif
