/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* More of what the library exports (see internal.h): calls that need nothing of the other files. */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_EXPORTED_H
#define IBX_FRONTEND_GLUE_PRELOAD_EXPORTED_H

#include "frontend-glue/preload/internal.h"

/* cudaMemcpyAttributes */
struct copy_attributes {
    int order; /* in which the source is read */
    struct memory_location from, to;
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

#pragma GCC visibility push(default)
/* queries.c */
int cudaStreamGetId(void *stream, unsigned long long *id);
int cudaStreamGetDevice(void *stream, int *device);
int cudaStreamCopyAttributes(void *to, void *from);
int cudaGetDeviceFlags(unsigned *flags);
int cudaDeviceGetCacheConfig(int *config);
int cudaDeviceGetP2PAttribute(int *value, int attribute, int from, int to);
int cudaDeviceGetTexture1DLinearMaxWidth(size_t *most, const struct ibx_cuda_channel *channel,
                                         int device);
int cudaDeviceGetByPCIBusId(int *device, const char *id);
int cudaInitDevice(int device, unsigned flags, unsigned what);
int cudaDeviceGetSharedMemConfig(int *config);
int cudaDeviceSetSharedMemConfig(int config);
int cudaFuncSetSharedMemConfig(const void *function, int config);
int cudaOccupancyMaxActiveClusters(int *count, const void *function,
                                   const struct launch_config *config);
int cudaOccupancyMaxPotentialClusterSize(int *size, const void *function,
                                         const struct launch_config *config);
int cudaOccupancyAvailableDynamicSMemPerBlock(size_t *n, const void *function, int blocks,
                                              int threads);
int cudaFuncGetParamInfo(const void *function, size_t index, size_t *at, size_t *n);
int cudaGetKernel(void **kernel, const void *function);
int cudaKernelSetAttributeForDevice(void *kernel, int attribute, int value, int device);
/* composed.c */
int cudaMemcpyBatchAsync(void *const *to, const void *const *from, const size_t *n, size_t count,
                         const struct copy_attributes *attributes, const size_t *first,
                         size_t attribute_count, void *a, void *b);
int cudaMemcpy3DPeer(const struct peer_planes *parameters);
int cudaMemcpy3DPeerAsync(const struct peer_planes *parameters, void *stream);
int cudaMemPrefetchBatchAsync(void *const *addresses, const size_t *n, size_t count,
                              const struct memory_location *to, const size_t *first,
                              size_t to_count);
int cudaMemDiscardBatchAsync(void *const *addresses, const size_t *n, size_t count);
int cudaMemDiscardAndPrefetchBatchAsync(void *const *addresses, const size_t *n, size_t count,
                                        const struct memory_location *to, const size_t *first,
                                        size_t to_count);
int cudaMemGetDefaultMemPool(void **pool, const struct memory_location *location, int type);
int cudaMemGetMemPool(void **pool, const struct memory_location *location, int type);
int cudaMemSetMemPool(const struct memory_location *location, int type, void *pool);
int cudaGraphInstantiateWithParams(void **exec, void *graph, struct instantiate_parameters *p);
int cudaGraphMemcpyNodeSetParams1D(void *node, void *to, const void *from, size_t n, int kind);
int cudaGraphExecMemcpyNodeSetParams1D(void *exec, void *node, void *to, const void *from, size_t n,
                                       int kind);
int cudaGraphAddMemcpyNodeToSymbol(void **node, void *graph, void *const *behind, size_t count,
                                   const void *symbol, const void *from, size_t n, size_t offset,
                                   int kind);
int cudaGraphAddMemcpyNodeFromSymbol(void **node, void *graph, void *const *behind, size_t count,
                                     void *to, const void *symbol, size_t n, size_t offset,
                                     int kind);
int cudaGraphMemcpyNodeSetParamsToSymbol(void *node, const void *symbol, const void *from, size_t n,
                                         size_t offset, int kind);
int cudaGraphMemcpyNodeSetParamsFromSymbol(void *node, void *to, const void *symbol, size_t n,
                                           size_t offset, int kind);
int cudaGraphExecMemcpyNodeSetParamsToSymbol(void *exec, void *node, const void *symbol,
                                             const void *from, size_t n, size_t offset, int kind);
int cudaGraphExecMemcpyNodeSetParamsFromSymbol(void *exec, void *node, void *to, const void *symbol,
                                               size_t n, size_t offset, int kind);
int cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags,
                            int *status);
int cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                     unsigned long long flags, int *status);
/* graphs.c */
int cudaGraphNodeGetDependencies(void *node, void **nodes, void *edges, size_t *count);
int cudaGraphNodeGetDependentNodes(void *node, void **nodes, void *edges, size_t *count);
int cudaGraphGetEdges(void *graph, void **from, void **to, void *edges, size_t *count);
int cudaGraphNodeSetEnabled(void *exec, void *node, unsigned on);
int cudaGraphNodeGetEnabled(void *exec, void *node, unsigned *on);
/* managed_hints.c */
int cudaMemRangeGetAttribute(void *data, size_t size, int attribute, const void *address, size_t n);
int cudaMemRangeGetAttributes(void **data, size_t *sizes, const int *attributes, size_t count,
                              const void *address, size_t n);
/* GVirtuS's. */
int cudaGetDeviceCount(int *count);
int cudaSetDeviceFlags(unsigned flags);
int cudaMemcpyArrayToArray(void *to, size_t to_x, size_t to_y, const void *from, size_t from_x,
                           size_t from_y, size_t n, int kind);
int cudaFuncSetAttribute(const void *function, int attribute, int value);
#pragma GCC visibility pop

#endif
