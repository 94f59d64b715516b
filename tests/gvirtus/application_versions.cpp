// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Calls of CUDA 12's runtime that have other names, or other parameters, from CUDA 13 on; and calls
// that came after CUDA 13.0.
#include "tests/gvirtus/application_driver.h"
#include "tests/gvirtus/graph_calls.h"

#include <array>

using graph_calls::Graph;
using graph_calls::Planes;
using graph_calls::run;

namespace
{

using Edge = std::array<unsigned char, 8>; // cudaGraphEdgeData
struct MemoryPlace {                       // cudaMemLocation
    int type, id;
};
struct Parameters { // cudaGraphNodeParams of an empty node
    int type = 5, reserved[3] = {};
    long long words[30] = {};
};

// Of a node that allocates 100 bytes on device 0.
Parameters allocation()
{
    Parameters p;
    p.type = 10;
    p.words[0] = p.words[1] = 1;
    p.words[13] = 100;
    return p;
}

int list(const char *name, void *node, void **nodes, Edge *edges, std::size_t *count)
{
    *count = 2;
    return run<void *, void **, void *, std::size_t *>(name, node, nodes, edges, count);
}

// CUDA destroys no node of a graph that allocates memory: one that cannot have such an edge is not
// added.
bool edges_beside_memory()
{
    const Edge edges[] = {{1, 0, 1}, {2, 0, 1}, {0, 0, 1}, {1, 0, 0}};
    for (const Edge &edge : edges) {
        Graph graph;
        Parameters empty, memory = allocation();
        void *nodes[2] = {};
        std::size_t count = 0;
        const auto add = [&](std::size_t behind, Parameters *of) {
            return run<void **, void *, void *const *, const void *, std::size_t, void *>(
                "cudaGraphAddNode_v2", &nodes[behind], graph.handle, nodes,
                behind ? &edge : nullptr, behind, of);
        };
        REQUIRE(add(0, &memory) == 0 && fails(add(1, &empty), 1) && !nodes[1]);
        REQUIRE((run<void *, void **, std::size_t *>("cudaGraphGetNodes", graph.handle, nullptr,
                                                     &count) == 0));
        REQUIRE(count == 1);
    }
    return true;
}

// The data of edges that CUDA 12's other functions for graphs do not have.
bool edges_of_graphs()
{
    Graph graph;
    Edge plain = {}, unknown = {0, 0, 9}, of_kernels = {1, 0, 1}, edges[2];
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
    REQUIRE(add(&nodes[0], 0, nullptr) == 0 && fails(add(&nodes[1], 1, &unknown), 1));
    // A node that cannot have such an edge is not left without it.
    REQUIRE(fails(add(&nodes[1], 1, &of_kernels), 1) && !nodes[1]);
    REQUIRE((run<void *, void **, std::size_t *>("cudaGraphGetNodes", graph.handle, nullptr,
                                                 &count) == 0));
    REQUIRE(count == 1);
    count = 2;
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
    REQUIRE(fails(change("cudaGraphRemoveDependencies_v2", &unknown), 1));
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
    Edge plain = {}, unknown = {0, 0, 9}, of_kernels = {1, 0, 1};
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
    REQUIRE(fails(update("cudaStreamUpdateCaptureDependencies_v2", &unknown), 1));
    REQUIRE(update("cudaStreamUpdateCaptureDependencies_v2", &of_kernels) == 0);
    const auto told = [&](const void **edges) {
        return run<void *, int *, unsigned long long *, void **, void *const **, const void **,
                   std::size_t *>("cudaStreamGetCaptureInfo_v3", stream, &status, nullptr, &graph,
                                  &last, edges, &count);
    };
    REQUIRE(told(&data) == 0 && count == 1 && last[0] == node);
    REQUIRE(!std::memcmp(data, of_kernels.data(), 8) && fails(told(nullptr), 402));
    REQUIRE(update("cudaStreamUpdateCaptureDependencies_v2", &plain) == 0);
    REQUIRE(told(&data) == 0 && count == 1 && !std::memcmp(data, plain.data(), 8));
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
    const auto advise = [&](MemoryPlace to) {
        return run<const void *, std::size_t, int, MemoryPlace>("cudaMemAdvise_v2", memory, n, 3,
                                                                to);
    };
    const auto prefetch = [&](const char *name, MemoryPlace to, unsigned flags) {
        return run<const void *, std::size_t, MemoryPlace, unsigned, void *>(name, memory, n, to,
                                                                             flags, stream);
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

struct Attributes { // cudaMemcpyAttributes
    int order;
    MemoryPlace from, to;
    unsigned flags;
};
struct MemoryOperand { // cudaMemcpy3DOperand of memory
    long type = 1;
    void *at;
    std::size_t row = 0, rows = 0;
    MemoryPlace where = {};
};
struct PlanesToCopy { // cudaMemcpy3DBatchOp
    MemoryOperand from, to;
    ibx_cuda_extent extent;
    int order;
    unsigned flags;
};

int copy_one(void *to, const void *from, std::size_t n, const Attributes *how, void *stream)
{
    return run<void *, const void *, std::size_t, const void *, void *>(
        "cudaMemcpyWithAttributesAsync", to, from, n, how, stream);
}

// One copy with the attributes of a batch's. Other than a batch it may be captured.
bool copies_with_attributes()
{
    constexpr std::size_t n = 1 << 16;
    void *stream = nullptr, *pinned = nullptr;
    char *device = device_memory(3 * n);
    REQUIRE(cudaStreamCreate(&stream) == 0 && cudaMallocHost(&pinned, n) == 0);
    const std::vector<char> bytes = random_bytes(n, 5);
    std::memcpy(pinned, bytes.data(), n);
    Attributes at_once = {2, {}, {}, 0}, wrong = {4, {}, {}, 0};
    REQUIRE(stub_remote()->slow(20000));
    REQUIRE(copy_one(device, pinned, n, &at_once, stream) == 0);
    std::memset(pinned, 'x', n);
    stub_remote()->slow(0);
    REQUIRE(device_has(device, bytes.data(), n));
    REQUIRE(fails(copy_one(device, pinned, n, &wrong, stream), 1));
    REQUIRE(fails(copy_one(device, pinned, n, nullptr, stream), 1));
    REQUIRE(fails(copy_one(device, nullptr, n, &at_once, stream), 1));
    PlanesToCopy rows = {};
    rows.from.type = rows.to.type = 1;
    rows.from.at = device, rows.to.at = device + n;
    rows.extent = {64, 2, 1}, rows.order = 1;
    const auto copy_rows = [&](PlanesToCopy *p, unsigned long long flags) {
        return run<PlanesToCopy *, unsigned long long, void *>("cudaMemcpy3DWithAttributesAsync", p,
                                                               flags, stream);
    };
    REQUIRE(copy_rows(&rows, 0) == 0 && cudaStreamSynchronize(stream) == 0);
    REQUIRE(device_has(device + n, bytes.data(), 128));
    std::memcpy(pinned, bytes.data(), n);
    PlanesToCopy from_host = rows;
    from_host.from.at = pinned, from_host.to.at = device + 2 * n;
    from_host.extent.width = n / 2, from_host.order = 2; // at once
    REQUIRE(stub_remote()->slow(20000) && copy_rows(&from_host, 0) == 0);
    std::memset(pinned, 'x', n);
    stub_remote()->slow(0);
    REQUIRE(device_has(device + 2 * n, bytes.data(), n));
    REQUIRE(fails(copy_rows(&rows, 1), 1) && fails(copy_rows(nullptr, 0), 1));
    REQUIRE(cudaMemset(device, 'd', n) == 0 && cudaDeviceSynchronize() == 0);
    void *graph = nullptr, *exec = nullptr;
    REQUIRE((run<void *, int>("cudaStreamBeginCapture", stream, 0) == 0));
    REQUIRE(copy_one(device + n, device, n, &at_once, stream) == 0);
    REQUIRE((run<void *, void **>("cudaStreamEndCapture", stream, &graph) == 0));
    REQUIRE(
        (run<void **, void *, unsigned long long>("cudaGraphInstantiate", &exec, graph, 0) == 0));
    REQUIRE(cudaGraphLaunch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    REQUIRE(device_has(device + n, std::vector<char>(n, 'd').data(), n));
    REQUIRE((run<void *>("cudaGraphExecDestroy", exec) == 0));
    REQUIRE((run<void *>("cudaGraphDestroy", graph) == 0));
    return HOLDS(cudaFreeHost(pinned) == 0 && cudaStreamDestroy(stream) == 0);
}

int get_parameters(void *node, Parameters *p)
{
    return run<void *, void *>("cudaGraphNodeGetParams", node, p);
}

// Of nodes with a copy, a function of the host, a graph and events: each is asked in its own way.
bool parameters_of_other_nodes()
{
    Graph graph, child;
    Parameters is;
    Planes told = {};
    void *events[2] = {}, *nodes[3] = {}, *in = nullptr;
    char *device = device_memory(64);
    const Planes copy = graph_calls::copy_of(device, device + 32, 32, 3);
    const graph_calls::Host host = {[](void *) {}, device};
    const auto word = [&](const void *what, unsigned i = 0) {
        return is.words[i] == static_cast<long long>(reinterpret_cast<std::uintptr_t>(what));
    };
    REQUIRE(graph.add("cudaGraphAddMemcpyNode", {}, &copy) == 0);
    REQUIRE(get_parameters(graph.nodes[0], &is) == 0 && is.type == 1);
    std::memcpy(&told, is.words + 2, sizeof(told)); // behind the flags
    REQUIRE(told.to.at == device && told.from.at == device + 32 && told.extent.width == 32);
    REQUIRE(graph.add("cudaGraphAddHostNode", {}, &host) == 0);
    REQUIRE(get_parameters(graph.nodes[1], &is) == 0 && is.type == 3);
    REQUIRE(word(reinterpret_cast<void *>(host.function)) && word(device, 1));
    REQUIRE((run<void **, void *, void *const *, std::size_t, void *>(
                 "cudaGraphAddChildGraphNode", &nodes[0], graph.handle, nullptr, 0, child.handle) ==
             0));
    REQUIRE((run<void *, void **>("cudaGraphChildGraphNodeGetGraph", nodes[0], &in) == 0));
    REQUIRE(get_parameters(nodes[0], &is) == 0 && is.type == 4 && word(in));
    REQUIRE(cudaEventCreate(&events[0]) == 0 && cudaEventCreate(&events[1]) == 0);
    REQUIRE((run<void **, void *, void *const *, std::size_t, void *>("cudaGraphAddEventWaitNode",
                                                                      &nodes[1], graph.handle,
                                                                      nullptr, 0, events[0]) == 0));
    REQUIRE((run<void **, void *, void *const *, std::size_t, void *>("cudaGraphAddEventRecordNode",
                                                                      &nodes[2], graph.handle,
                                                                      nullptr, 0, events[1]) == 0));
    REQUIRE(get_parameters(nodes[1], &is) == 0 && is.type == 6 && word(events[0]));
    REQUIRE(get_parameters(nodes[2], &is) == 0 && is.type == 7 && word(events[1]));
    return HOLDS(cudaEventDestroy(events[0]) == 0 && cudaEventDestroy(events[1]) == 0);
}

bool parameters_of_nodes()
{
    Graph graph;
    Parameters is;
    char *device = device_memory(64);
    const graph_calls::Set set = {device, 64, 'n', 1, 64, 1};
    graph_calls::Set told = {};
    unsigned long long handle = 0;
    REQUIRE(graph.add("cudaGraphAddMemsetNode", {}, &set) == 0);
    REQUIRE(get_parameters(graph.nodes[0], &is) == 0 && is.type == 2);
    std::memcpy(&told, is.words, sizeof(told));
    REQUIRE(told.at == device && told.value == 'n' && told.width == 64);
    REQUIRE((run<void **, void *, void *const *, std::size_t>(
                 "cudaGraphAddEmptyNode", &graph.nodes[0], graph.handle, nullptr, 0) == 0));
    REQUIRE(get_parameters(graph.nodes[0], &is) == 0 && is.type == 5);
    REQUIRE(fails(get_parameters(graph.nodes[0], nullptr), 1));
    REQUIRE(
        (run<unsigned long long *, void *, void *, unsigned, unsigned>(
             "cudaGraphConditionalHandleCreate_v2", &handle, graph.handle, nullptr, 1, 1) == 0));
    return HOLDS(handle && fails(run<unsigned long long *, void *, void *, unsigned, unsigned>(
                                     "cudaGraphConditionalHandleCreate_v2", &handle, graph.handle,
                                     device, 1, 1),
                                 1));
}

void count_up(void *counter)
{
    ++*static_cast<std::atomic<int> *>(counter);
}

} // namespace

// Of CUDA 13.1 and 13.2.
bool calls_after_cuda_13()
{
    std::atomic<int> called = 0;
    std::size_t count = 0;
    const auto call = [&](unsigned how) {
        return run<void *, void (*)(void *), void *, unsigned>("cudaLaunchHostFunc_v2", nullptr,
                                                               count_up, &called, how);
    };
    REQUIRE(copies_with_attributes() && parameters_of_nodes() && parameters_of_other_nodes());
    REQUIRE(call(0) == 0 && call(1) == 0 && fails(call(2), 1));
    REQUIRE(cudaDeviceSynchronize() == 0 && called == 2);
    REQUIRE((run<const void *, std::size_t *>("cudaFuncGetParamCount", &stub_kernel, &count) == 0));
    REQUIRE(count == 3);
    return HOLDS(
        fails(run<const void *, std::size_t *>("cudaFuncGetParamCount", &called, &count), 98));
}

// The driver's calls of these versions, also those for programs with a stream of each thread.
bool driver_after_cuda_13()
{
    constexpr std::size_t n = 1 << 16;
    const std::vector<char> image = library_cubin(), bytes = random_bytes(n, 9), source = bytes;
    void *context = nullptr, *module = nullptr, *function = nullptr, *none = nullptr;
    Address memory = 0;
    std::size_t count = 0;
    std::atomic<int> called = 0;
    REQUIRE(driver_has_context(&context) && cu("cuMemAlloc_v2", &memory, 2 * n) == 0);
    REQUIRE(cu("cuModuleLoadData", &module, static_cast<const void *>(image.data())) == 0);
    REQUIRE(cu("cuModuleGetFunction", &function, module,
               static_cast<const char *>(STUB_LIBRARY_KERNEL)) == 0);
    for (const char *name : {"cuFuncGetParamCount", "cuKernelGetParamCount"}) {
        count = 0;
        REQUIRE(cu(name, static_cast<const void *>(function), &count) == 0 && count == 3);
    }
    for (const char *name : {"cuLaunchHostFunc_v2", "cuLaunchHostFunc_v2_ptsz"}) {
        const auto call = [&](unsigned how) {
            return cu(name, none, &count_up, static_cast<void *>(&called), how);
        };
        REQUIRE(call(1) == 0 && call(2) == 1);
    }
    REQUIRE(cu("cuCtxSynchronize") == 0 && called == 2);
    const auto from = reinterpret_cast<Address>(source.data());
    const Attributes in_order = {1, {}, {}, 0};
    for (const char *name : {"cuMemcpyWithAttributesAsync", "cuMemcpyWithAttributesAsync_ptsz"}) {
        REQUIRE(cu("cuMemsetD8_v2", memory, std::uint8_t{0}, 2 * n) == 0);
        REQUIRE(cu(name, memory, from, n, &in_order, none) == 0 && cu("cuCtxSynchronize") == 0);
        REQUIRE(device_has(reinterpret_cast<char *>(memory), bytes.data(), n));
    }
    PlanesToCopy rows = {};
    rows.from.at = reinterpret_cast<void *>(memory);
    rows.to.at = reinterpret_cast<void *>(memory + n);
    rows.from.type = rows.to.type = 1;
    rows.extent = {64, 2, 1}, rows.order = 1;
    for (const char *name :
         {"cuMemcpy3DWithAttributesAsync", "cuMemcpy3DWithAttributesAsync_ptsz"}) {
        REQUIRE(cu("cuMemsetD8_v2", memory + n, std::uint8_t{0}, n) == 0);
        REQUIRE(cu(name, &rows, 0ull, none) == 0 && cu("cuCtxSynchronize") == 0);
        REQUIRE(device_has(reinterpret_cast<char *>(memory + n), bytes.data(), 128));
    }
    return HOLDS(cu("cuCtxDestroy_v2", context) == 0 && cudaGetLastError() == 0);
}

bool calls_of_cuda_12()
{
    std::size_t limit = 0, same = 1;
    int config = 9;
    REQUIRE(edges_beside_memory() && edges_of_graphs() && edges_of_captures());
    REQUIRE(places() && properties());
    const int rc = run<std::size_t *, int>("cudaDeviceGetLimit", &limit, 2);
    REQUIRE((run<std::size_t *, int>("cudaThreadGetLimit", &same, 2) == rc));
    REQUIRE((rc || same == limit) && (!rc || cudaGetLastError() == rc));
    REQUIRE((run<int *>("cudaThreadGetCacheConfig", &config) == 0 && config != 9));
    REQUIRE((fails(run<float *, void *, void *>("cudaEventElapsedTime_v2", nullptr, &limit, &limit),
                   1)));
    return true;
}
