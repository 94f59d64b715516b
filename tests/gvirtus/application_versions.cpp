// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Calls of CUDA 12's runtime that have other names, or other parameters, from CUDA 13 on.
#include "tests/gvirtus/graph_calls.h"

#include <array>

using graph_calls::Graph;
using graph_calls::run;

namespace
{

using Edge = std::array<unsigned char, 8>; // cudaGraphEdgeData
struct Place {                             // cudaMemLocation
    int type, id;
};
struct Parameters { // cudaGraphNodeParams of an empty node
    int type = 5, reserved[3] = {};
    long long words[30] = {};
};

int list(const char *name, void *node, void **nodes, Edge *edges, std::size_t *count)
{
    *count = 2;
    return run<void *, void **, void *, std::size_t *>(name, node, nodes, edges, count);
}

// The data of edges that CUDA 12's other functions for graphs do not have.
bool edges_of_graphs()
{
    Graph graph;
    Edge plain = {}, unknown = {0, 0, 9}, edges[2];
    Parameters empty;
    void *nodes[2] = {}, *from[2], *to[2];
    std::size_t count = 2;
    const auto change = [&](const char *name, const Edge *edge) {
        return run<void *, void *const *, void *const *, const void *, std::size_t>(
            name, graph.handle, &nodes[0], &nodes[1], edge, 1);
    };
    const auto add = [&](void **node, std::size_t behind, const Edge *edge) {
        return run<void **, void *, void *const *, const void *, std::size_t, void *>(
            "cudaGraphAddNode_v2", node, graph.handle, nodes, edge, behind, &empty);
    };
    REQUIRE(add(&nodes[0], 0, nullptr) == 0 && fails(add(&nodes[1], 1, &unknown), 801));
    REQUIRE(add(&nodes[1], 1, &plain) == 0);
    edges[0].fill(9);
    REQUIRE((run<void *, void **, void **, void *, std::size_t *>(
                 "cudaGraphGetEdges_v2", graph.handle, from, to, edges, &count) == 0));
    REQUIRE(count == 1 && from[0] == nodes[0] && to[0] == nodes[1] && edges[0] == plain);
    edges[0].fill(9);
    REQUIRE(list("cudaGraphNodeGetDependencies_v2", nodes[1], from, edges, &count) == 0);
    REQUIRE(count == 1 && from[0] == nodes[0] && edges[0] == plain);
    REQUIRE(list("cudaGraphNodeGetDependentNodes_v2", nodes[0], to, nullptr, &count) == 0);
    REQUIRE(count == 1 && to[0] == nodes[1]);
    REQUIRE(fails(change("cudaGraphRemoveDependencies_v2", &unknown), 801));
    REQUIRE(change("cudaGraphRemoveDependencies_v2", nullptr) == 0);
    REQUIRE(list("cudaGraphNodeGetDependencies_v2", nodes[1], nullptr, nullptr, &count) == 0);
    REQUIRE(count == 0 && change("cudaGraphAddDependencies_v2", &plain) == 0);
    REQUIRE(list("cudaGraphNodeGetDependencies_v2", nodes[1], nullptr, nullptr, &count) == 0);
    return HOLDS(count == 1);
}

// ... and of a capture.
bool edges_of_captures()
{
    void *stream = nullptr, *graph = nullptr, *node = nullptr, *const *last = nullptr;
    const void *data = nullptr;
    std::size_t count = 9;
    int status = 0;
    Edge plain = {}, unknown = {0, 0, 9};
    const auto update = [&](const char *name, const Edge *edge) {
        return run<void *, void *const *, const void *, std::size_t, unsigned>(name, stream, &node,
                                                                               edge, 1, 1);
    };
    REQUIRE(cudaStreamCreate(&stream) == 0);
    REQUIRE((run<void *, int>("cudaStreamBeginCapture", stream, 0) == 0));
    REQUIRE((run<void *, int *, unsigned long long *, void **, void *const **, const void **,
                 std::size_t *>("cudaStreamGetCaptureInfo_v3", stream, &status, nullptr, &graph,
                                &last, &data, &count) == 0));
    REQUIRE((run<void **, void *, void *const *, std::size_t>("cudaGraphAddEmptyNode", &node, graph,
                                                              nullptr, 0) == 0));
    REQUIRE(fails(update("cudaStreamUpdateCaptureDependencies_v2", &unknown), 801));
    REQUIRE(update("cudaStreamUpdateCaptureDependencies_v2", &plain) == 0);
    REQUIRE(update("cudaStreamUpdateCaptureDependencies_v2_ptsz", nullptr) == 0);
    REQUIRE((run<void *, void **>("cudaStreamEndCapture", stream, &graph) == 0));
    REQUIRE((run<void *>("cudaGraphDestroy", graph) == 0));
    return HOLDS(cudaStreamDestroy(stream) == 0);
}

// Hints for places instead of devices.
bool places()
{
    constexpr std::size_t n = 4096;
    void *memory = nullptr, *stream = nullptr;
    int preferred = 9, prefetched = 9;
    const auto advise = [&](Place to) {
        return run<const void *, std::size_t, int, Place>("cudaMemAdvise_v2", memory, n, 3, to);
    };
    const auto prefetch = [&](const char *name, Place to, unsigned flags) {
        return run<const void *, std::size_t, Place, unsigned, void *>(name, memory, n, to, flags,
                                                                       stream);
    };
    const auto attribute = [&](int which, int *value) {
        return run<void *, std::size_t, int, const void *, std::size_t>(
            "cudaMemRangeGetAttribute", value, sizeof(*value), which, memory, n);
    };
    REQUIRE(cudaStreamCreate(&stream) == 0);
    REQUIRE((run<void **, std::size_t, unsigned>("cudaMallocManaged", &memory, n, 1) == 0));
    REQUIRE(advise({2, 0}) == 0 && attribute(2, &preferred) == 0 && preferred == -1);
    REQUIRE(advise({1, 0}) == 0 && attribute(2, &preferred) == 0 && preferred == 0);
    REQUIRE(prefetch("cudaMemPrefetchAsync_v2", {1, 0}, 0) == 0);
    REQUIRE(attribute(4, &prefetched) == 0 && prefetched == 0);
    REQUIRE(prefetch("cudaMemPrefetchAsync_v2_ptsz", {2, 0}, 0) == 0);
    REQUIRE(attribute(4, &prefetched) == 0 && prefetched == -1);
    REQUIRE(fails(prefetch("cudaMemPrefetchAsync_v2", {1, 0}, 1), 1));
    REQUIRE(fails(prefetch("cudaMemPrefetchAsync_v2", {1, 99}, 0), 101) && fails(advise({}), 1));
    return HOLDS(cudaFree(memory) == 0 && cudaStreamDestroy(stream) == 0);
}

// What differs over a remote GPU, in CUDA 12's cudaDeviceProp: of memory that the host and the
// device share.
bool properties()
{
    constexpr std::size_t size = 1032;
    std::vector<unsigned char> all(size + 1, 0xee);
    const auto at = [&](std::size_t offset) {
        int value;
        std::memcpy(&value, &all[offset], sizeof(value));
        return value;
    };
    REQUIRE((run<void *, int>("cudaGetDeviceProperties_v2", all.data(), 0) == 0));
    REQUIRE(at(400) == 1 && at(652) == 1); // canMapHostMemory, managedMemory
    REQUIRE(at(672) == 0 && at(676) == 0 && at(704) == 0 && at(708) == 0);
    REQUIRE(at(404) == 0x01010101 && at(656) == 0x01010101 && all[size] == 0xee);
    return HOLDS(fails(run<void *, int>("cudaGetDeviceProperties_v2", nullptr, 0), 1));
}

} // namespace

bool calls_of_cuda_12()
{
    std::size_t limit = 0, same = 1;
    int config = 9;
    REQUIRE(edges_of_graphs() && edges_of_captures() && places() && properties());
    const int rc = run<std::size_t *, int>("cudaDeviceGetLimit", &limit, 2);
    REQUIRE((run<std::size_t *, int>("cudaThreadGetLimit", &same, 2) == rc));
    REQUIRE((rc || same == limit) && (!rc || cudaGetLastError() == rc));
    REQUIRE((run<int *>("cudaThreadGetCacheConfig", &config) == 0 && config != 9));
    REQUIRE((fails(run<float *, void *, void *>("cudaEventElapsedTime_v2", nullptr, &limit, &limit),
                   1)));
    return true;
}
