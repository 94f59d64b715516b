/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Calls whose parameters CUDA 13 has changed, and names that it has dropped. CUDA 12 has the new
 * form of the former as well, under a name with _v2 or _v3: these are the functions. A plain name
 * stands for one of them, or for the older form, by the version of the loaded libcudart.
 */
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/runtime/runtime.h"

/* ------------------------------------------------------------------ hints for managed memory */

/* A cudaMemLocation is passed in one register, and before CUDA 13 there was a device's number. */
static struct memory_location location_of(uint64_t where)
{
    struct memory_location location;
    memcpy(&location, &where, sizeof(location));
    return ibx_frontend_before_13() ? ibx_frontend_location_of((int)(uint32_t)where) : location;
}

int cudaMemAdvise(const void *address, size_t n, int advice, uint64_t where)
{
    return cudaMemAdvise_v2(address, n, advice, location_of(where));
}

/* Before CUDA 13 the stream was in the place of the flags. */
int cudaMemPrefetchAsync(const void *address, size_t n, uint64_t where, uint64_t flags,
                         void *stream)
{
    const bool before = ibx_frontend_before_13();
    return cudaMemPrefetchAsync_v2(address, n, location_of(where), before ? 0 : (uint32_t)flags,
                                   before ? (void *)flags : stream);
}

/* ------------------------------------------------------------------------- edges of graphs */

/* Before CUDA 13 there was no parameter for edge data: what follows it is one place earlier. */

int cudaGraphGetEdges(void *graph, void **from, void **to, void *edges, size_t *count)
{
    return ibx_frontend_before_13() ? cudaGraphGetEdges_v2(graph, from, to, NULL, edges)
                                    : cudaGraphGetEdges_v2(graph, from, to, edges, count);
}

int cudaGraphNodeGetDependencies(void *node, void **nodes, void *edges, size_t *count)
{
    return ibx_frontend_before_13() ? cudaGraphNodeGetDependencies_v2(node, nodes, NULL, edges)
                                    : cudaGraphNodeGetDependencies_v2(node, nodes, edges, count);
}

int cudaGraphNodeGetDependentNodes(void *node, void **nodes, void *edges, size_t *count)
{
    return ibx_frontend_before_13() ? cudaGraphNodeGetDependentNodes_v2(node, nodes, NULL, edges)
                                    : cudaGraphNodeGetDependentNodes_v2(node, nodes, edges, count);
}

int cudaGraphAddDependencies(void *graph, void *const *from, void *const *to, const void *edges,
                             size_t count)
{
    return ibx_frontend_before_13()
               ? cudaGraphAddDependencies_v2(graph, from, to, NULL, (uintptr_t)edges)
               : cudaGraphAddDependencies_v2(graph, from, to, edges, count);
}

int cudaGraphRemoveDependencies(void *graph, void *const *from, void *const *to, const void *edges,
                                size_t count)
{
    return ibx_frontend_before_13()
               ? cudaGraphRemoveDependencies_v2(graph, from, to, NULL, (uintptr_t)edges)
               : cudaGraphRemoveDependencies_v2(graph, from, to, edges, count);
}

int cudaGraphAddNode(void **node, void *graph, void *const *behind, const void *edges, size_t count,
                     struct node_parameters *p)
{
    return ibx_frontend_before_13()
               ? cudaGraphAddNode_v2(node, graph, behind, NULL, (uintptr_t)edges,
                                     (struct node_parameters *)count)
               : cudaGraphAddNode_v2(node, graph, behind, edges, count, p);
}

/* ------------------------------------------------------------------------------- captures */

/* Before CUDA 13 this function had three parameters; the others came with _v2 and _v3. */
int cudaStreamGetCaptureInfo(void *stream, int *status, unsigned long long *id, void **graph,
                             void *const **behind, const void **edges, size_t *count)
{
    return ibx_frontend_before_13()
               ? cudaStreamGetCaptureInfo_v2(stream, status, id, NULL, NULL, NULL)
               : cudaStreamGetCaptureInfo_v3(stream, status, id, graph, behind, edges, count);
}

int cudaStreamUpdateCaptureDependencies(void *stream, void *const *nodes, const void *edges,
                                        size_t count, unsigned flags)
{
    return ibx_frontend_before_13()
               ? cudaStreamUpdateCaptureDependencies_v2(stream, nodes, NULL, (uintptr_t)edges,
                                                        (unsigned)count)
               : cudaStreamUpdateCaptureDependencies_v2(stream, nodes, edges, count, flags);
}

/* ----------------------------------------------------------------- names that CUDA 13 dropped */

int cudaThreadGetLimit(size_t *value, int limit)
{
    return cudaDeviceGetLimit(value, limit);
}

int cudaThreadSetLimit(int limit, size_t value)
{
    return cudaDeviceSetLimit(limit, value);
}

int cudaThreadGetCacheConfig(int *config)
{
    return cudaDeviceGetCacheConfig(config);
}

int cudaThreadSetCacheConfig(int config)
{
    return CALL_NEXT(cudaDeviceSetCacheConfig, config);
}
