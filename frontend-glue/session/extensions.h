/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Extension requests: calls of CUDA's runtime that GVirtuS lacks or makes wrongly. The preload
 * makes them (preload/), and the back end's plugin runs them (extensions/extensions.c) with the
 * runtime of GVirtuS's handlers. They travel in GVirtuS's frames: a routine name, IBX_EXT_NAME, and
 * a body that begins with the number of the call. A back end without them answers -1, as for every
 * unknown name. docs/protocol.md has the table of bodies.
 *
 * CUDA's structures are encoded by layouts: strings that name the fields in order, 'i' for 4 bytes
 * and 'q' for 8, each aligned to its size as in the ABI. On the wire they are little-endian,
 * without gaps.
 */
#ifndef IBX_FRONTEND_GLUE_SESSION_EXTENSIONS_H
#define IBX_FRONTEND_GLUE_SESSION_EXTENSIONS_H

#include "common/wire.h"

#include <string.h>

#define IBX_EXT_NAME "ibxRuntime"  /* ordered after all that the client has requested */
#define IBX_EXT_WORK "ibxHostWork" /* ordered after nothing: HOST_ASK, STREAM_WAIT, PRINTED */
#define IBX_EXT_QUEUE                                                                              \
    "ibxEnqueue" /* after what is in its stream, the body's last 8 bytes; its                      \
                    call may return before it is run: MEMSET, MEMSET_2D, MEMSET_ELEMENTS,          \
                    MEMCPY_3D_ASYNC, STREAM_VALUE, LAUNCH_QUEUED */

/* On the wire: u16. Numbers are never used again. */
enum ibx_extension {
    IBX_EXT_LAUNCH = 1,           /* cudaLaunchKernelExC, cudaLaunchCooperativeKernel */
    IBX_EXT_STREAM_SET_ATTRIBUTE, /* cudaStreamSetAttribute */
    IBX_EXT_STREAM_GET_ATTRIBUTE,
    IBX_EXT_RESET_L2, /* cudaCtxResetPersistingL2Cache */
    IBX_EXT_GET_LIMIT,
    IBX_EXT_SYMBOL_ADDRESS, /* cudaGetSymbolAddress */
    IBX_EXT_SYMBOL_SIZE,
    IBX_EXT_MALLOC_ARRAY, /* cudaMallocArray, cudaMalloc3DArray */
    IBX_EXT_FREE_ARRAY,
    IBX_EXT_TO_ARRAY,      /* cudaMemcpyToArray, of device memory */
    IBX_EXT_FROM_ARRAY,    /* cudaMemcpyFromArray, likewise */
    IBX_EXT_2D_TO_ARRAY,   /* cudaMemcpy2DToArray, likewise */
    IBX_EXT_2D_FROM_ARRAY, /* cudaMemcpy2DFromArray, likewise */
    IBX_EXT_MEMCPY_3D,     /* cudaMemcpy3D, likewise */
    IBX_EXT_CHANNEL_DESC,  /* cudaGetChannelDesc */
    IBX_EXT_CREATE_TEXTURE,
    IBX_EXT_DESTROY_TEXTURE,
    IBX_EXT_CREATE_SURFACE,
    IBX_EXT_DESTROY_SURFACE,
    IBX_EXT_MALLOC_ASYNC,
    IBX_EXT_MALLOC_FROM_POOL,
    IBX_EXT_FREE_ASYNC,
    IBX_EXT_POOL_DEFAULT, /* cudaDeviceGetDefaultMemPool */
    IBX_EXT_POOL_CURRENT, /* cudaDeviceGetMemPool */
    IBX_EXT_POOL_SET,     /* cudaMemPoolSetAttribute */
    IBX_EXT_POOL_GET,
    IBX_EXT_POOL_TRIM,
    IBX_EXT_HOST_OPEN, /* a queue of functions to call */
    IBX_EXT_HOST_ADD,  /* cudaLaunchHostFunc, cudaStreamAddCallback */
    IBX_EXT_HOST_ASK,
    IBX_EXT_IS_CAPTURING, /* cudaStreamIsCapturing */
    IBX_EXT_HOST_CAPTURE, /* cudaLaunchHostFunc in a stream that is captured */
    IBX_EXT_MEMSET,       /* cudaMemsetAsync */
    IBX_EXT_GRAPH_CREATE,
    IBX_EXT_GRAPH_DESTROY,
    IBX_EXT_GRAPH_CLONE,
    IBX_EXT_GRAPH_INSTANTIATE,
    IBX_EXT_GRAPH_NODES,     /* cudaGraphGetNodes, cudaGraphGetRootNodes */
    IBX_EXT_GRAPH_FUNCTIONS, /* the client's host functions that it calls */
    IBX_EXT_GRAPH_ORDER,     /* cudaGraphAddDependencies, cudaGraphRemoveDependencies */
    IBX_EXT_NODE_KERNEL,     /* cudaGraphAddKernelNode, and so on */
    IBX_EXT_NODE_MEMCPY,     /* within the device */
    IBX_EXT_NODE_MEMSET,
    IBX_EXT_NODE_HOST,
    IBX_EXT_NODE_EMPTY,
    IBX_EXT_NODE_CHILD,
    IBX_EXT_NODE_RECORD,
    IBX_EXT_NODE_WAIT,
    IBX_EXT_NODE_ALLOC,
    IBX_EXT_NODE_FREE,
    IBX_EXT_NODE_TYPE,
    IBX_EXT_NODE_DESTROY,
    IBX_EXT_SET_KERNEL, /* cudaGraphKernelNodeSetParams, cudaGraphExecKernelNodeSetParams */
    IBX_EXT_SET_MEMCPY,
    IBX_EXT_SET_MEMSET,
    IBX_EXT_EXEC_UPDATE,
    IBX_EXT_EXEC_DESTROY,
    IBX_EXT_EXEC_UPLOAD,
    IBX_EXT_GRAPH_MEMORY, /* cudaDeviceGetGraphMemAttribute */
    IBX_EXT_GRAPH_TRIM,   /* cudaDeviceGraphMemTrim */
    IBX_EXT_STREAM_WAIT,  /* cudaStreamSynchronize */
    IBX_EXT_MEMSET_2D,    /* cudaMemset2DAsync */
    IBX_EXT_IPC_MEMORY,   /* cudaIpcGetMemHandle */
    IBX_EXT_IPC_OPEN_MEMORY,
    IBX_EXT_IPC_EVENT, /* cudaIpcGetEventHandle */
    IBX_EXT_IPC_OPEN_EVENT,
    /* 67 was an earlier version's */
    IBX_EXT_VARIABLE = 68, /* cudaGetSymbolAddress and Size, by a kernel's module and a name */
    IBX_EXT_POOL_CREATE,
    IBX_EXT_POOL_DESTROY,
    IBX_EXT_POOL_SET_ACCESS, /* cudaMemPoolSetAccess, for one device */
    IBX_EXT_POOL_GET_ACCESS,
    IBX_EXT_IPC_POOL, /* cudaMemPoolExportToShareableHandle */
    IBX_EXT_IPC_OPEN_POOL,
    IBX_EXT_IPC_OPEN_POINTER, /* cudaMemPoolImportPointer, of what IPC_MEMORY has shared */
    IBX_EXT_GRAPH_CONDITION,  /* cudaGraphConditionalHandleCreate */
    IBX_EXT_NODE_CONDITIONAL, /* cudaGraphAddNode */
    IBX_EXT_STREAM_FLAGS,     /* cudaStreamGetFlags */
    IBX_EXT_STREAM_PRIORITY,  /* cudaStreamGetPriority */
    IBX_EXT_STREAM_ID,        /* cudaStreamGetId */
    IBX_EXT_STREAM_DEVICE,    /* cudaStreamGetDevice */
    IBX_EXT_STREAM_COPY_ATTRIBUTES,
    IBX_EXT_DEVICE_FLAGS,    /* cudaGetDeviceFlags */
    IBX_EXT_DEVICE_CACHE,    /* cudaDeviceGetCacheConfig */
    IBX_EXT_BETWEEN_DEVICES, /* cudaDeviceGetP2PAttribute */
    IBX_EXT_TEXTURE_WIDTH,   /* cudaDeviceGetTexture1DLinearMaxWidth */
    IBX_EXT_CLUSTERS,        /* cudaOccupancyMaxActiveClusters */
    IBX_EXT_CLUSTER_SIZE,    /* cudaOccupancyMaxPotentialClusterSize */
    IBX_EXT_SHARED_MEMORY,   /* cudaOccupancyAvailableDynamicSMemPerBlock */
    IBX_EXT_PARAMETER,       /* cudaFuncGetParamInfo */
    IBX_EXT_NODE_NEIGHBOURS, /* cudaGraphNodeGetDependencies, cudaGraphNodeGetDependentNodes */
    IBX_EXT_NODE_ENABLE,     /* cudaGraphNodeSetEnabled */
    IBX_EXT_NODE_ENABLED,    /* cudaGraphNodeGetEnabled */
    IBX_EXT_HOST_MAP,        /* page-locked memory at its address, for kernels */
    IBX_EXT_HOST_UNMAP,
    IBX_EXT_MEMCPY_3D_ASYNC, /* cudaMemcpy3DAsync, within the device */
    IBX_EXT_NODE_COPY,       /* cudaGraphAddMemcpyNode between host and device, by a slot */
    IBX_EXT_CAPTURE_COPY,    /* cudaMemcpyAsync likewise, in a stream that is captured */
    IBX_EXT_SET_COPY,        /* cudaGraphMemcpyNodeSetParams likewise, and in what is launched */
    IBX_EXT_GET_COPY,        /* cudaGraphMemcpyNodeGetParams */
    IBX_EXT_PRINTED,         /* what kernels have printed */
    IBX_EXT_IPC_CLOSE,       /* cudaIpcCloseMemHandle, and the like of events and pools */
    IBX_EXT_PARAMETERS, /* the layout of a kernel's arguments; a back end that answers accepts long
                           launches */
    IBX_EXT_SHARE_MODULES, /* a process's modules end with it; a child's uses its parent's */
    IBX_EXT_MALLOC_MIPMAP, /* cudaMallocMipmappedArray */
    IBX_EXT_FREE_MIPMAP,
    IBX_EXT_MIPMAP_LEVEL,     /* cudaGetMipmappedArrayLevel: an array, which goes with it */
    IBX_EXT_NODE_IN_CLONE,    /* cudaGraphNodeFindInClone */
    IBX_EXT_EXEC_FLAGS,       /* cudaGraphExecGetFlags */
    IBX_EXT_GET_MEMSET,       /* cudaGraphMemsetNodeGetParams */
    IBX_EXT_POINTER,          /* cudaPointerGetAttributes: whether it is memory of a device */
    IBX_EXT_GET_KERNEL = 120, /* cudaGraphKernelNodeGetParams */
    IBX_EXT_GET_ATTRIBUTE,    /* cudaGraphKernelNodeGetAttribute */
    IBX_EXT_SET_ATTRIBUTE,
    IBX_EXT_COPY_ATTRIBUTES,     /* cudaGraphKernelNodeCopyAttributes */
    IBX_EXT_GET_EVENT,           /* cudaGraphEventRecordNodeGetEvent, and of nodes that wait */
    IBX_EXT_SET_EVENT,           /* ... SetEvent, and in what is launched */
    IBX_EXT_GET_HOST,            /* cudaGraphHostNodeGetParams */
    IBX_EXT_SET_HOST,            /* ... SetParams, and in what is launched */
    IBX_EXT_GET_CHILD,           /* cudaGraphChildGraphNodeGetGraph */
    IBX_EXT_SET_CHILD,           /* cudaGraphExecChildGraphNodeSetParams */
    IBX_EXT_GET_MEMORY,          /* cudaGraphMemAllocNodeGetParams, cudaGraphMemFreeNodeGetParams */
    IBX_EXT_SET_GRAPH_MEMORY,    /* cudaDeviceSetGraphMemAttribute */
    IBX_EXT_MEMSET_ELEMENTS,     /* cuMemsetD2D16Async, cuMemsetD2D32Async */
    IBX_EXT_VIRTUAL_GRANULARITY, /* cuMemGetAllocationGranularity; whether there is all of these
                                  */
    IBX_EXT_VIRTUAL_RESERVE,     /* cuMemAddressReserve */
    IBX_EXT_VIRTUAL_FREE,        /* cuMemAddressFree */
    IBX_EXT_VIRTUAL_CREATE,      /* cuMemCreate */
    IBX_EXT_VIRTUAL_RELEASE,     /* cuMemRelease */
    IBX_EXT_VIRTUAL_MAP,         /* cuMemMap */
    IBX_EXT_VIRTUAL_UNMAP,       /* cuMemUnmap */
    IBX_EXT_VIRTUAL_SET_ACCESS,  /* cuMemSetAccess, for one device */
    IBX_EXT_VIRTUAL_GET_ACCESS,  /* cuMemGetAccess */
    IBX_EXT_TENSOR_MAP,          /* cuTensorMapEncode*: enum ibx_extension_tensor_map */
    IBX_EXT_TENSOR_ADDRESS,      /* cuTensorMapReplaceAddress */
    IBX_EXT_COMPILE,             /* what the driver's compiler says of PTX */
    IBX_EXT_NODE_MOVED,          /* cudaGraphAddNode, of a graph that is moved there */
    IBX_EXT_STREAM_VALUE,        /* cuStreamWaitValue32, and so on: enum ibx_extension_value */
    IBX_EXT_RANDOM_TABLE,        /* curandGetDirectionVectors32, and so on */
    IBX_EXT_LINK,                /* cuLinkComplete, of several images */
    IBX_EXT_RECORD,              /* cudaEventRecordWithFlags, in a stream that is captured */
    IBX_EXT_LAUNCH_QUEUED,       /* cudaLaunchKernelExC, in a stream that is not captured */
    IBX_EXT_VIRTUAL_EXPORT,      /* cuMemExportToShareableHandle */
    IBX_EXT_VIRTUAL_IMPORT,      /* cuMemImportFromShareableHandle */
    IBX_EXT_HOST_MAP_AT,         /* shared memory at an address of the program's, for kernels */
    IBX_EXT_EXEC_REFRESH,        /* cudaGraphExecUpdate; its call may return before it is run */
    IBX_EXT_CAPTURE_INFO,        /* cudaStreamGetCaptureInfo, of an active capture */
    IBX_EXT_CAPTURE_UPDATE,      /* cudaStreamUpdateCaptureDependencies, with plain edges */
    IBX_EXT_CAPTURE_UPDATE_DATA, /* ... with data of edges */
    IBX_EXT_NODE_EDGES,          /* as NODE_NEIGHBOURS, with the data of edges */
    IBX_EXT_GRAPH_ORDER_DATA,    /* as GRAPH_ORDER, of an edge with data */
    IBX_EXT_CAPTURE_INTO,        /* cudaStreamBeginCaptureToGraph */
    IBX_EXT_REQUESTS             /* one more than the last */
};

/* What a stream does with a word in memory: CUstreamBatchMemOpType. */
enum ibx_extension_value {
    IBX_VALUE_WAIT_32 = 1,
    IBX_VALUE_WRITE_32 = 2,
    IBX_VALUE_WAIT_64 = 4,
    IBX_VALUE_WRITE_64 = 5
};

/* cuRAND's tables: curandDirectionVectorSet_t in its order, then the constants. */
enum ibx_extension_table {
    IBX_TABLE_VECTORS_32,
    IBX_TABLE_SCRAMBLED_VECTORS_32,
    IBX_TABLE_VECTORS_64,
    IBX_TABLE_SCRAMBLED_VECTORS_64,
    IBX_TABLE_CONSTANTS_32,
    IBX_TABLE_CONSTANTS_64,
    IBX_TABLES /* one more than the last */
};

/* The bytes of a table: a word for each of 20,000 dimensions, or as many words as each has bits. */
static inline size_t ibx_table_bytes(enum ibx_extension_table table)
{
    const size_t dimensions = 20000;
    switch (table) {
    case IBX_TABLE_VECTORS_32:
    case IBX_TABLE_SCRAMBLED_VECTORS_32:
        return dimensions * 32 * 4;
    case IBX_TABLE_VECTORS_64:
    case IBX_TABLE_SCRAMBLED_VECTORS_64:
        return dimensions * 64 * 8;
    case IBX_TABLE_CONSTANTS_32:
        return dimensions * 4;
    case IBX_TABLE_CONSTANTS_64:
        return dimensions * 8;
    default:
        return 0;
    }
}

/* The kind of a tensor map. */
enum ibx_extension_tensor_map {
    IBX_EXT_TENSOR_TILED,
    IBX_EXT_TENSOR_IM2COL,
    IBX_EXT_TENSOR_IM2COL_WIDE
};

#define IBX_EXT_TENSOR_RANK      5u   /* dimensions of a tensor, at most */
#define IBX_EXT_TENSOR_MAP_BYTES 128u /* of a CUtensorMap */

#define IBX_EXT_LISTED        32u  /* handles or numbers in one reply, after their total number */
#define IBX_EXT_BEHIND        64u  /* dependencies of a new node, at most */
#define IBX_EXT_TOLD          15u  /* nodes in one reply to CAPTURE_INFO, after their number */
#define IBX_EXT_EDGES         16u  /* nodes in one reply to NODE_EDGES, after their number */
#define IBX_EXT_EDGE          8u   /* bytes of an edge's data; all 0: a plain edge */
#define IBX_EXT_ACCESSES      64u  /* devices that may use a node's memory, at most */
#define IBX_EXT_GRAPHS_DEEP   128u /* graphs within each other, at most */
#define IBX_EXT_OUT_MAX       (8 + 8 * IBX_EXT_LISTED) /* bytes of a reply after the exit code */
#define IBX_EXT_ARGUMENTS_MAX 32764u /* bytes of a launch's arguments, CUDA's limit */
#define IBX_EXT_SET_LAUNCH    18u    /* bytes of a SET_KERNEL before what a launch has */
#define IBX_EXT_ATTRIBUTE     64u    /* bytes of an attribute's value, CUDA's union of scalars */
#define IBX_EXT_PRINTED_ALL   1u     /* PRINTED: the driver is to write its buffer first */
#define IBX_EXT_PRINTED_TELL  2u   /* PRINTED: replies to waits are to tell whether there is any */
#define IBX_EXT_PRINTED_MOST  256u /* bytes in a reply to PRINTED, after their number */
#define IBX_EXT_COPIED        128u /* bytes from the device in the reply to a HOST_ASK, at most */
#define IBX_EXT_OWN_PAGES     UINT64_MAX          /* in HOST_MAP: the memory is in no shared file */
#define IBX_EXT_PAGES         (UINT64_C(1) << 62) /* in a copy's address: docs/protocol.md */
#define IBX_EXT_ALONE         (UINT64_C(1) << 61) /* likewise */
#define IBX_EXT_HANDLE        64u                 /* bytes of a handle for other processes */
#define IBX_EXT_NODE_BYTES    216u  /* of a kernel's arguments in a reply to GET_KERNEL, at most */
#define IBX_EXT_VARIABLE_NAME 1024u /* bytes of a variable's name, at most */
#define IBX_EXT_PTX_MOST      (8u << 20)  /* bytes of PTX in a COMPILE */
#define IBX_EXT_LOG_MOST      (64u << 10) /* ... and of each log */

/* Bytes of an EXEC_REFRESH, whose last one says whether its call has returned; of the answer to an
 * EXEC_UPDATE; and of the answer to an EXEC_REFRESH, which begins alike. */
#define IBX_EXT_REFRESH   19u
#define IBX_EXT_UPDATED   24u
#define IBX_EXT_REFRESHED 36u

#define IBX_EXT_LINKED    64u         /* images in a LINK, at most */
#define IBX_EXT_LINK_MOST (32u << 20) /* ... and bytes of all */

/* How far the next image of a LINK is behind the beginning of one with n bytes. */
static inline size_t ibx_extension_linked_room(size_t n)
{
    return (n + 15) & ~(size_t)15;
}

/* How a COMPILE is to be. */
#define IBX_COMPILE_VERBOSE 1u /* with all that there is to tell */
#define IBX_COMPILE_ADDS    2u /* not linked: what it lacks other images may have */

/* Layouts. */
#define IBX_LAYOUT_CHANNEL  "iiiii"
#define IBX_LAYOUT_EXTENT   "qqq"
#define IBX_LAYOUT_MEMCPY3D "qqqqqqqqqqqqqqqqqqqi"
#define IBX_LAYOUT_TEXTURE  "iiiiiiiiiiiiiiiiii"
#define IBX_LAYOUT_VIEW     "iqqqiiii"
#define IBX_LAYOUT_MEMSET   "qqiiqq"

/* CUDA's structures, as far as both sides interpret them. */
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
/* Whether each side is an array or memory, and not both. */
static inline bool ibx_cuda_has_two_sides(const struct ibx_cuda_memcpy3d *p)
{
    return p && !p->from_array != !p->from.at && !p->to_array != !p->to.at;
}
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

/* Whether an extension request of that number leaves it as it was which nodes graphs have, what
 * these are, and which event or function of the client each names. */
bool ibx_extension_keeps_graphs(unsigned number);

/* Whether a request with this name is one of these. */
static inline bool ibx_extension_is(const char *name)
{
    return *name == 'i' && (!strcmp(name, IBX_EXT_NAME) || !strcmp(name, IBX_EXT_WORK) ||
                            !strcmp(name, IBX_EXT_QUEUE)); /* as ibx_math_is() */
}

void ibx_layout_put(struct ibx_writer *w, const char *layout, const void *structure);
void ibx_layout_get(struct ibx_reader *r, const char *layout, void *structure);
/* For an unknown kind, put() writes only the kind, and get() fails the reader. */
void ibx_resource_put(struct ibx_writer *w, const struct ibx_cuda_resource *resource);
void ibx_resource_get(struct ibx_reader *r, struct ibx_cuda_resource *resource);
/* What a copy counts in that an array takes part in: elements of so many bytes, also in columns of
 * memory. In compressed formats an element is a block of `texels` by `texels`; there the position
 * in an array and the extent of the copy are in texels. */
struct ibx_array_unit {
    size_t bytes, texels;
};

/* bytes 0: CUDA has no such format. */
static inline struct ibx_array_unit ibx_array_unit_of(const struct ibx_cuda_channel *channel)
{
    /* cudaChannelFormatKind*BlockCompressed*; 1 and 4 have half as many bytes as the others. */
    enum { BLOCKS_FIRST = 17, BLOCKS_1 = 18, BLOCKS_4 = 23, BLOCKS_5 = 25, BLOCKS_LAST = 30 };
    const int bits[] = {channel->x, channel->y, channel->z, channel->w}, kind = channel->kind;
    struct ibx_array_unit unit = {0, 1}, none = unit;
    if (kind >= BLOCKS_FIRST && kind <= BLOCKS_LAST) {
        unit.bytes = kind <= BLOCKS_1 || (kind >= BLOCKS_4 && kind < BLOCKS_5) ? 8 : 16;
        unit.texels = 4;
        return unit;
    }
    for (unsigned i = 0; i < 4; i++) {
        if (bits[i] < 0 || bits[i] > 32)
            return none;
        unit.bytes += (size_t)bits[i];
    }
    unit.bytes /= 8;
    return unit;
}

/* How many units there are in a row, or a column, of so many texels. */
static inline size_t ibx_array_units(const struct ibx_array_unit *unit, size_t texels)
{
    return texels / unit->texels + (texels % unit->texels != 0);
}

/* Bytes that a row of a texture of IBX_RESOURCE_PITCH_2D may reach: those of its elements, or a
 * whole pitch if it is not sure how CUDA takes the channels. SIZE_MAX: more than any number. */
size_t ibx_texture_row(const struct ibx_cuda_channel *channel, size_t width, size_t pitch);

#endif
