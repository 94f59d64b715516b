/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What libibx-frontend.so exports. */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_EXPORTED_H
#define IBX_FRONTEND_GLUE_PRELOAD_EXPORTED_H

#include "frontend-glue/preload/attach_table.h"
#include "frontend-glue/preload/cuda_types.h"

#pragma GCC visibility push(default)
int cudaMemcpy(void *to, const void *from, size_t n, int kind);
int cudaMemcpyAsync(void *to, const void *from, size_t n, int kind, void *stream);
int cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                 size_t height, int kind);
int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                      size_t height, int kind, void *stream);
int cudaMallocHost(void **address, size_t n);
int cudaHostAlloc(void **address, size_t n, unsigned flags);
int cudaFreeHost(void *address);
int cudaHostRegister(void *address, size_t n, unsigned flags);
int cudaHostUnregister(void *address);
int cudaMalloc(void **address, size_t n);
int cudaMallocPitch(void **address, size_t *pitch, size_t width, size_t height);
int cudaFree(void *address);
int cudaSetDevice(int device);
int cudaGetDevice(int *device);
int cudaMemset(void *address, int value, size_t n);
int cudaMemsetAsync(void *address, int value, size_t n, void *stream);
int cudaMemset2D(void *address, size_t pitch, int value, size_t width, size_t height);
int cudaMemset2DAsync(void *address, size_t pitch, int value, size_t width, size_t height,
                      void *stream);
int cudaGraphLaunch(void *graph, void *stream);
int cudaEventRecord(void *event, void *stream);
int cudaStreamWaitEvent(void *stream, void *event, unsigned flags);
int cudaStreamSynchronize(void *stream);
int cudaStreamQuery(void *stream);
int cudaEventSynchronize(void *event);
int cudaEventQuery(void *event);
int cudaDeviceSynchronize(void);
int cudaGetLastError(void);
int cudaPeekAtLastError(void);
int cudaMemcpyFromSymbol(void *to, const void *symbol, size_t n, size_t offset, int kind);
int cudaMemcpyFromSymbolAsync(void *to, const void *symbol, size_t n, size_t offset, int kind,
                              void *stream);
int cudaProfilerStart(void);
int cudaProfilerStop(void);
int cudaThreadSynchronize(void);
int cudaThreadExit(void);
const char *cudaGetErrorName(int code);
const char *cudaGetErrorString(int code);
int cudaLaunchKernel(const void *function, struct dim3 grid, struct dim3 block, void **arguments,
                     size_t shared, void *stream);
void __cudaRegisterFunction(void **handle, const char *function, char *device_function,
                            const char *name, int thread_limit, void *thread, void *block,
                            void *block_size, void *grid_size, int *warp);
void __cudaRegisterVar(void **handle, char *symbol, char *address, const char *name, int external,
                       size_t n, int constant, int global);
void **__cudaRegisterFatBinary(void *wrapper);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
unsigned __cudaPushCallConfiguration(struct dim3 grid, struct dim3 block, size_t shared,
                                     void *stream);
int __cudaPopCallConfiguration(struct dim3 *grid, struct dim3 *block, size_t *shared, void *stream);
int __cudaGetKernel(void **kernel, const void *function);
int __cudaLaunchKernel(void *kernel, struct dim3 grid, struct dim3 block, void **arguments,
                       size_t shared, void *stream);
int cudaLaunchCooperativeKernel(const void *function, struct dim3 grid, struct dim3 block,
                                void **arguments, size_t shared, void *stream);
int cudaLaunchKernelExC(const struct launch_config *config, const void *function, void **arguments);
int cudaStreamSetAttribute(void *stream, int attribute, const void *value);
int cudaStreamGetAttribute(void *stream, int attribute, void *value);
int cudaStreamGetFlags(void *stream, unsigned *flags);
int cudaStreamGetPriority(void *stream, int *priority);
int cudaCtxResetPersistingL2Cache(void);
int cudaDeviceGetLimit(size_t *value, int limit);
int cudaDeviceSetLimit(int limit, size_t value);
int cudaGetSymbolAddress(void **address, const void *symbol);
int cudaGetSymbolSize(size_t *n, const void *symbol);
int cudaMemcpyToSymbol(const void *symbol, const void *from, size_t n, size_t offset, int kind);
int cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t n, size_t offset, int kind,
                            void *stream);
int cudaMallocArray(void **array, const struct ibx_cuda_channel *channel, size_t width,
                    size_t height, unsigned flags);
int cudaMallocMipmappedArray(void **mipmap, const struct ibx_cuda_channel *channel,
                             struct ibx_cuda_extent extent, unsigned levels, unsigned flags);
int cudaFreeMipmappedArray(void *mipmap);
int cudaGetMipmappedArrayLevel(void **array, const void *mipmap, unsigned level);
int cudaMalloc3DArray(void **array, const struct ibx_cuda_channel *channel,
                      struct ibx_cuda_extent extent, unsigned flags);
int cudaFreeArray(void *array);
int cudaGetChannelDesc(struct ibx_cuda_channel *channel, const void *array);
int cudaMemcpyToArray(void *array, size_t x, size_t y, const void *from, size_t n, int kind);
int cudaMemcpyFromArray(void *to, const void *array, size_t x, size_t y, size_t n, int kind);
int cudaMemcpy2DToArray(void *array, size_t x, size_t y, const void *from, size_t pitch,
                        size_t width, size_t height, int kind);
int cudaMemcpy2DFromArray(void *to, size_t pitch, const void *array, size_t x, size_t y,
                          size_t width, size_t height, int kind);
int cudaMemcpyToArrayAsync(void *array, size_t x, size_t y, const void *from, size_t n, int kind,
                           void *stream);
int cudaMemcpyFromArrayAsync(void *to, const void *array, size_t x, size_t y, size_t n, int kind,
                             void *stream);
int cudaMemcpy2DToArrayAsync(void *array, size_t x, size_t y, const void *from, size_t pitch,
                             size_t width, size_t height, int kind, void *stream);
int cudaMemcpy2DFromArrayAsync(void *to, size_t pitch, const void *array, size_t x, size_t y,
                               size_t width, size_t height, int kind, void *stream);
int cudaMemcpy3D(const struct ibx_cuda_memcpy3d *parameters);
int cudaMemcpy3DAsync(const struct ibx_cuda_memcpy3d *parameters, void *stream);
int cudaMemcpy2DArrayToArray(void *to, size_t to_x, size_t to_y, const void *from, size_t from_x,
                             size_t from_y, size_t width, size_t height, int kind);
int cudaMalloc3D(struct ibx_cuda_pitched *memory, struct ibx_cuda_extent extent);
int cudaMemset3D(struct ibx_cuda_pitched memory, int value, struct ibx_cuda_extent extent);
int cudaMemset3DAsync(struct ibx_cuda_pitched memory, int value, struct ibx_cuda_extent extent,
                      void *stream);
int cudaGetDeviceCount(int *count);
int cudaDeviceCanAccessPeer(int *can, int device, int peer);
int cudaDeviceEnablePeerAccess(int peer, unsigned flags);
int cudaDeviceDisablePeerAccess(int peer);
int cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t n);
int cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t n,
                        void *stream);
int cudaDeviceGetPCIBusId(char *id, int n, int device);
int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags);
int cudaCreateTextureObject(unsigned long long *texture, const struct ibx_cuda_resource *resource,
                            const struct ibx_cuda_texture *how, const struct ibx_cuda_view *view);
int cudaDestroyTextureObject(unsigned long long texture);
int cudaCreateSurfaceObject(unsigned long long *surface, const struct ibx_cuda_resource *resource);
int cudaDestroySurfaceObject(unsigned long long surface);
int cudaGetTextureObjectResourceDesc(struct ibx_cuda_resource *resource,
                                     unsigned long long texture);
int cudaGetTextureObjectTextureDesc(struct ibx_cuda_texture *how, unsigned long long texture);
int cudaGetTextureObjectResourceViewDesc(struct ibx_cuda_view *view, unsigned long long texture);
int cudaGetSurfaceObjectResourceDesc(struct ibx_cuda_resource *resource,
                                     unsigned long long surface);
int cudaArrayGetInfo(struct ibx_cuda_channel *channel, struct ibx_cuda_extent *extent,
                     unsigned *flags, void *array);
int cudaMallocAsync(void **address, size_t n, void *stream);
int cudaMallocFromPoolAsync(void **address, size_t n, void *pool, void *stream);
int cudaFreeAsync(void *address, void *stream);
int cudaDeviceGetDefaultMemPool(void **pool, int device);
int cudaDeviceGetMemPool(void **pool, int device);
int cudaMemPoolSetAttribute(void *pool, int attribute, void *value);
int cudaMemPoolGetAttribute(void *pool, int attribute, void *value);
int cudaMemPoolTrimTo(void *pool, size_t keep);
int cudaMemPoolCreate(void **pool, const struct pool_properties *properties);
int cudaMemPoolDestroy(void *pool);
int cudaDeviceSetMemPool(int device, void *pool);
int cudaMemPoolSetAccess(void *pool, const struct memory_access *list, size_t count);
int cudaMemPoolGetAccess(int *flags, void *pool, const struct memory_location *location);
int cudaMemPoolExportToShareableHandle(void *made, void *pool, int type, unsigned flags);
int cudaMemPoolImportFromShareableHandle(void **pool, void *handle, int type, unsigned flags);
int cudaMemPoolExportPointer(struct ipc_handle *handle, void *address);
int cudaMemPoolImportPointer(void **address, void *pool, const struct ipc_handle *handle);
int cudaLaunchHostFunc(void *stream, void (*function)(void *argument), void *argument);
int cudaLaunchHostFunc_v2(void *stream, void (*function)(void *argument), void *argument,
                          unsigned how);
int cudaStreamBeginCapture(void *stream, int mode);
int cudaStreamEndCapture(void *stream, void **graph);
int cudaStreamIsCapturing(void *stream, int *status);
int cudaThreadExchangeStreamCaptureMode(int *mode);
int cudaStreamBeginCaptureToGraph(void *stream, void *graph, void *const *behind, const void *edges,
                                  size_t count, int mode);
int cudaStreamGetCaptureInfo_v2(void *stream, int *status, unsigned long long *id, void **graph,
                                void *const **behind, size_t *count);
int cudaStreamGetCaptureInfo_v3(void *stream, int *status, unsigned long long *id, void **graph,
                                void *const **behind, const void **edges, size_t *count);
int cudaStreamUpdateCaptureDependencies_v2(void *stream, void *const *nodes, const void *edges,
                                           size_t count, unsigned flags);
int cudaGraphConditionalHandleCreate(unsigned long long *handle, void *graph, unsigned value,
                                     unsigned flags);
int cudaGraphConditionalHandleCreate_v2(unsigned long long *handle, void *graph, void *context,
                                        unsigned value, unsigned flags);
int cudaGraphAddNode_v2(void **node, void *graph, void *const *behind, const void *edges,
                        size_t count, struct node_parameters *p);
int cudaGraphCreate(void **graph, unsigned flags);
int cudaGraphDestroy(void *graph);
int cudaGraphClone(void **clone, void *graph);
int cudaGraphInstantiate(void **exec, void *graph, unsigned long long flags);
int cudaGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags);
int cudaGraphExecDestroy(void *exec);
int cudaGraphExecUpdate(void *exec, void *graph, struct graph_update *result);
int cudaGraphUpload(void *exec, void *stream);
int cudaGraphGetNodes(void *graph, void **nodes, size_t *count);
int cudaGraphGetRootNodes(void *graph, void **nodes, size_t *count);
int cudaGraphAddDependencies_v2(void *graph, void *const *from, void *const *to, const void *edges,
                                size_t count);
int cudaGraphRemoveDependencies_v2(void *graph, void *const *from, void *const *to,
                                   const void *edges, size_t count);
int cudaGraphAddKernelNode(void **node, void *graph, void *const *behind, size_t count,
                           const struct kernel_node *kernel);
int cudaGraphAddMemcpyNode(void **node, void *graph, void *const *behind, size_t count,
                           const struct ibx_cuda_memcpy3d *copy);
int cudaGraphAddMemcpyNode1D(void **node, void *graph, void *const *behind, size_t count, void *to,
                             const void *from, size_t n, int kind);
int cudaGraphAddMemsetNode(void **node, void *graph, void *const *behind, size_t count,
                           const struct ibx_cuda_memset *set);
int cudaGraphAddHostNode(void **node, void *graph, void *const *behind, size_t count,
                         const struct host_node *host);
int cudaGraphAddEmptyNode(void **node, void *graph, void *const *behind, size_t count);
int cudaGraphAddChildGraphNode(void **node, void *graph, void *const *behind, size_t count,
                               void *child);
int cudaGraphAddEventRecordNode(void **node, void *graph, void *const *behind, size_t count,
                                void *event);
int cudaGraphAddEventWaitNode(void **node, void *graph, void *const *behind, size_t count,
                              void *event);
int cudaGraphAddMemAllocNode(void **node, void *graph, void *const *behind, size_t count,
                             struct allocation_node *allocation);
int cudaGraphAddMemFreeNode(void **node, void *graph, void *const *behind, size_t count,
                            void *address);
int cudaGraphNodeGetType(void *node, int *type);
int cudaGraphDestroyNode(void *node);
int cudaGraphKernelNodeSetParams(void *node, const struct kernel_node *kernel);
int cudaGraphExecKernelNodeSetParams(void *exec, void *node, const struct kernel_node *kernel);
int cudaGraphMemcpyNodeSetParams(void *node, const struct ibx_cuda_memcpy3d *copy);
int cudaGraphMemcpyNodeGetParams(void *node, struct ibx_cuda_memcpy3d *copy);
int cudaGraphExecMemcpyNodeSetParams(void *exec, void *node, const struct ibx_cuda_memcpy3d *copy);
int cudaGraphNodeFindInClone(void **node, void *original, void *clone);
int cudaGraphExecGetFlags(void *exec, unsigned long long *flags);
int cudaGraphMemsetNodeGetParams(void *node, struct ibx_cuda_memset *set);
int cudaGraphMemsetNodeSetParams(void *node, const struct ibx_cuda_memset *set);
int cudaGraphExecMemsetNodeSetParams(void *exec, void *node, const struct ibx_cuda_memset *set);
/* graph_drawing.c */
int cudaGraphDebugDotPrint(void *graph, const char *path, unsigned flags);
/* user_objects.c */
int cudaUserObjectCreate(void **object, void *what, void (*destroy)(void *what),
                         unsigned references, unsigned flags);
int cudaUserObjectRetain(void *object, unsigned count);
int cudaUserObjectRelease(void *object, unsigned count);
int cudaGraphRetainUserObject(void *graph, void *object, unsigned count, unsigned flags);
int cudaGraphReleaseUserObject(void *graph, void *object, unsigned count);
/* graph_parameters.c */
int cudaGraphKernelNodeGetParams(void *node, struct kernel_node *kernel);
int cudaGraphKernelNodeGetAttribute(void *node, int attribute, void *value);
int cudaGraphKernelNodeSetAttribute(void *node, int attribute, const void *value);
int cudaGraphKernelNodeCopyAttributes(void *to, void *from);
int cudaGraphEventRecordNodeGetEvent(void *node, void **event);
int cudaGraphEventWaitNodeGetEvent(void *node, void **event);
int cudaGraphEventRecordNodeSetEvent(void *node, void *event);
int cudaGraphEventWaitNodeSetEvent(void *node, void *event);
int cudaGraphExecEventRecordNodeSetEvent(void *exec, void *node, void *event);
int cudaGraphExecEventWaitNodeSetEvent(void *exec, void *node, void *event);
int cudaGraphHostNodeGetParams(void *node, struct host_node *host);
int cudaGraphHostNodeSetParams(void *node, const struct host_node *host);
int cudaGraphExecHostNodeSetParams(void *exec, void *node, const struct host_node *host);
int cudaGraphChildGraphNodeGetGraph(void *node, void **graph);
int cudaGraphExecChildGraphNodeSetParams(void *exec, void *node, void *child);
int cudaGraphMemAllocNodeGetParams(void *node, struct allocation_node *a);
int cudaGraphMemFreeNodeGetParams(void *node, void *address);
int cudaGraphNodeGetParams(void *node, struct node_parameters *p);
int cudaGraphNodeSetParams(void *node, struct node_parameters *p);
int cudaGraphExecNodeSetParams(void *exec, void *node, struct node_parameters *p);
int cudaDeviceSetGraphMemAttribute(int device, int attribute, const void *value);
int cudaDeviceGetGraphMemAttribute(int device, int attribute, void *value);
int cudaDeviceGraphMemTrim(int device);
int cudaIpcGetMemHandle(struct ipc_handle *handle, void *address);
int cudaIpcOpenMemHandle(void **address, struct ipc_handle handle, unsigned flags);
int cudaIpcCloseMemHandle(void *address);
int cudaIpcGetEventHandle(struct ipc_handle *handle, void *event);
int cudaIpcOpenEventHandle(void **event, struct ipc_handle handle);
int cudaEventDestroy(void *event);
int cudaStreamDestroy(void *stream);
int cudaDeviceReset(void);
int cudaStreamCreate(void **stream);
int cudaStreamCreateWithFlags(void **stream, unsigned flags);
int cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority);
int cudaStreamAddCallback(void *stream, void (*callback)(void *stream, int status, void *argument),
                          void *argument, unsigned flags);
int cudaMallocManaged(void **address, size_t n, unsigned flags);
int cudaHostGetDevicePointer(void **on_device, void *address, unsigned flags);
int cudaHostGetFlags(unsigned *flags, void *address);
int cudaPointerGetAttributes(struct pointer_attributes *attributes, const void *address);
int cudaDeviceGetAttribute(int *value, int attribute, int device);
int cudaGetDeviceProperties(void *properties, int device);
int cudaGetDeviceProperties_v2(void *properties, int device);
int cudaMemPrefetchAsync_v2(const void *address, size_t n, struct memory_location location,
                            unsigned flags, void *stream);
int cudaMemAdvise_v2(const void *address, size_t n, int advice, struct memory_location location);
int cudaStreamAttachMemAsync(void *stream, void *address, size_t n, unsigned flags);
void __cudaRegisterManagedVar(void **module, void **variable, char *address, const char *name,
                              int external, size_t n, int constant, int global);
char __cudaInitModule(void **module);
void ibx_frontend_attach(const struct ibx_frontend_calls *calls);
void ibx_frontend_begins(void);
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
int cudaFuncGetParamCount(const void *function, size_t *count);
int cudaLibraryLoadData(void **library, const void *code, const int *options, void *const *values,
                        unsigned count, const int *library_options, void *const *library_values,
                        unsigned library_count);
int cudaLibraryLoadFromFile(void **library, const char *path, const int *options,
                            void *const *values, unsigned count, const int *library_options,
                            void *const *library_values, unsigned library_count);
int cudaLibraryUnload(void *library);
int cudaLibraryGetKernel(void **kernel, void *library, const char *name);
int cudaLibraryGetKernelCount(unsigned *count, void *library);
int cudaLibraryEnumerateKernels(void **kernels, unsigned count, void *library);
int cudaLibraryGetGlobal(void **address, size_t *n, void *library, const char *name);
int cudaLibraryGetManaged(void **address, size_t *n, void *library, const char *name);
int cudaFuncGetName(const char **name, const void *function);
int cudaGetKernel(void **kernel, const void *function);
int cudaKernelSetAttributeForDevice(void *kernel, int attribute, int value, int device);
/* batches.c */
int cudaMemcpyBatchAsync(void *const *to, const void *const *from, const size_t *n, size_t count,
                         const struct copy_attributes *attributes, const size_t *first,
                         size_t attribute_count, void *a, void *b);
int cudaMemcpy3DBatchAsync(size_t count, const struct planes_in_batch *list, uintptr_t a,
                           uintptr_t b, void *c);
int cudaMemcpyWithAttributesAsync(void *to, const void *from, size_t n,
                                  const struct copy_attributes *how, void *stream);
int cudaMemcpy3DWithAttributesAsync(const struct planes_in_batch *p, unsigned long long flags,
                                    void *stream);
/* composed.c */
int cudaMemcpy3DPeer(const struct peer_planes *parameters);
int cudaMemcpy3DPeerAsync(const struct peer_planes *parameters, void *stream);
int cudaMemPrefetchBatchAsync(void *const *addresses, const size_t *n, size_t count,
                              const struct memory_location *to, const size_t *first,
                              size_t to_count, unsigned long long flags, void *stream);
int cudaMemDiscardBatchAsync(void *const *addresses, const size_t *n, size_t count,
                             unsigned long long flags, void *stream);
int cudaMemDiscardAndPrefetchBatchAsync(void *const *addresses, const size_t *n, size_t count,
                                        const struct memory_location *to, const size_t *first,
                                        size_t to_count, unsigned long long flags, void *stream);
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
int cudaGraphNodeGetDependencies_v2(void *node, void **nodes, void *edges, size_t *count);
int cudaGraphNodeGetDependentNodes_v2(void *node, void **nodes, void *edges, size_t *count);
int cudaGraphGetEdges_v2(void *graph, void **from, void **to, void *edges, size_t *count);
int cudaGraphNodeSetEnabled(void *exec, void *node, unsigned on);
int cudaGraphNodeGetEnabled(void *exec, void *node, unsigned *on);
/* managed_hints.c */
int cudaMemRangeGetAttribute(void *data, size_t size, int attribute, const void *address, size_t n);
int cudaMemRangeGetAttributes(void **data, size_t *sizes, const int *attributes, size_t count,
                              const void *address, size_t n);
/* versions.c */
int cudaMemPrefetchAsync(const void *address, size_t n, uint64_t where, uint64_t flags,
                         void *stream);
int cudaMemAdvise(const void *address, size_t n, int advice, uint64_t where);
int cudaGraphGetEdges(void *graph, void **from, void **to, void *edges, size_t *count);
int cudaGraphNodeGetDependencies(void *node, void **nodes, void *edges, size_t *count);
int cudaGraphNodeGetDependentNodes(void *node, void **nodes, void *edges, size_t *count);
int cudaGraphAddDependencies(void *graph, void *const *from, void *const *to, const void *edges,
                             size_t count);
int cudaGraphRemoveDependencies(void *graph, void *const *from, void *const *to, const void *edges,
                                size_t count);
int cudaGraphAddNode(void **node, void *graph, void *const *behind, const void *edges, size_t count,
                     struct node_parameters *p);
int cudaStreamGetCaptureInfo(void *stream, int *status, unsigned long long *id, void **graph,
                             void *const **behind, const void **edges, size_t *count);
int cudaStreamUpdateCaptureDependencies(void *stream, void *const *nodes, const void *edges,
                                        size_t count, unsigned flags);
int cudaThreadGetLimit(size_t *value, int limit);
int cudaThreadSetLimit(int limit, size_t value);
int cudaThreadGetCacheConfig(int *config);
int cudaThreadSetCacheConfig(int config);
/* GVirtuS's. */
int cudaSetDeviceFlags(unsigned flags);
int cudaDeviceSetCacheConfig(int config);
int cudaEventCreateWithFlags(void **event, unsigned flags);
int cudaMemcpyArrayToArray(void *to, size_t to_x, size_t to_y, const void *from, size_t from_x,
                           size_t from_y, size_t n, int kind);
int cudaFuncSetAttribute(const void *function, int attribute, int value);
#pragma GCC visibility pop

#endif
