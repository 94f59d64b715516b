// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Queries that GVirtuS's libcudart does not have. The double's answers say what it was asked.
#include "tests/gvirtus/application.h"

#include "frontend-glue/session/extensions.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace
{

template <typename... Arguments> int ask(const char *call, Arguments... arguments)
{
    auto *function = preloaded<int(Arguments...)>(call);
    return function ? function(arguments...) : -1;
}

// An error is the call's own, and cudaGetLastError's.
bool refused(int rc, int code)
{
    REQUIRE(rc == code);
    return HOLDS(cudaGetLastError() == code);
}

bool streams()
{
    void *stream = nullptr, *other = nullptr;
    unsigned long long id = 0;
    int device = -1;
    REQUIRE(cudaStreamCreate(&stream) == 0 && cudaStreamCreate(&other) == 0);
    const auto low = reinterpret_cast<std::uintptr_t>(stream) % 1000;
    REQUIRE(ask("cudaStreamGetId", stream, &id) == 0 && id == (1ull << 40) + low);
    REQUIRE(ask("cudaStreamGetId_ptsz", static_cast<void *>(nullptr), &id) == 0);
    REQUIRE(id == (1ull << 40) + 2);
    REQUIRE(ask("cudaStreamGetDevice", stream, &device) == 0 && device == 0);
    REQUIRE(ask("cudaStreamCopyAttributes", stream, other) == 0);
    REQUIRE(ask("cudaStreamGetDevice", stream, &device) == 0 && device == 7);
    return HOLDS(
        refused(ask("cudaStreamGetId", stream, static_cast<unsigned long long *>(nullptr)), 1));
}

// Events that come and go: a query says at once that one has not completed, which is no error, and
// later that it has.
bool short_events()
{
    void *stream = nullptr;
    REQUIRE(cudaStreamCreate(&stream) == 0);
    for (int i = 0; i < 50; i++) {
        void *event = nullptr;
        int rc = 600;
        REQUIRE(cudaEventCreate(&event) == 0 && cudaEventRecord(event, stream) == 0);
        while (rc == 600)
            rc = ask("cudaEventQuery", event);
        REQUIRE(rc == 0 && cudaGetLastError() == 0 && ask("cudaEventQuery", event) == 0);
        REQUIRE(ask("cudaEventDestroy", event) == 0);
    }
    return HOLDS(cudaStreamDestroy(stream) == 0 && cudaGetLastError() == 0);
}

bool devices_of_it()
{
    unsigned flags = 0;
    int value = 0;
    std::size_t most = 0;
    const ibx_cuda_channel floats = {32, 0, 0, 0, 2};
    REQUIRE(ask("cudaGetDeviceFlags", &flags) == 0 && flags == 8);
    REQUIRE(ask("cudaDeviceGetCacheConfig", &value) == 0 && value == 2);
    REQUIRE(ask("cudaDeviceGetP2PAttribute", &value, 3, 1, 2) == 0 && value == 312);
    REQUIRE(refused(ask("cudaDeviceGetP2PAttribute", &value, 3, 1, 1), 101) && value == 312);
    REQUIRE(ask("cudaDeviceGetTexture1DLinearMaxWidth", &most, &floats, 0) == 0);
    REQUIRE(most == (std::size_t{1} << 33) + 32);
    // Answered here: all GPUs have the same banks.
    REQUIRE(ask("cudaDeviceSetSharedMemConfig", 2) == 0);
    REQUIRE(ask("cudaDeviceGetSharedMemConfig", &value) == 0 && value == 1);
    REQUIRE(refused(ask("cudaDeviceSetSharedMemConfig", 3), 1));
    // The address may lack the domain, and the function.
    for (int device = 0; device < 2; device++) {
        char place[32] = {};
        REQUIRE(ask("cudaDeviceGetPCIBusId", place, int{sizeof(place)}, device) == 0);
        const std::string whole = place, bus = whole.substr(whole.find(':') + 1);
        for (const std::string &id : {whole, bus, bus.substr(0, bus.find('.'))}) {
            REQUIRE(ask("cudaDeviceGetByPCIBusId", &value, id.c_str()) == 0 && value == device);
        }
    }
    const char *nowhere = "7f:1f.0";
    REQUIRE(refused(ask("cudaDeviceGetByPCIBusId", &value, nowhere), 101));
    char few[12];
    REQUIRE(refused(ask("cudaDeviceGetPCIBusId", few, int{sizeof(few)}, 0), 1));
    // The context of another device is made; that device is not selected by this.
    REQUIRE(ask("cudaInitDevice", 1, 0u, 0u) == 0 && cudaGetDevice(&value) == 0 && value == 0);
    return HOLDS(ask("cudaInitDevice", 5, 0u, 0u) == 101);
}

// A launch in clusters, whose three numbers all get there.
bool clusters()
{
    constexpr std::size_t n = 1000;
    std::size_t length = n;
    char *device = device_memory(2 * n);
    void *to = device + n, *from = device, *arguments[] = {&to, &from, &length};
    const std::vector<char> bytes = random_bytes(n, 31);
    const void *kernel = &stub_kernel;
    LaunchAttribute cluster = {4, {1, 2, 3}};
    const LaunchConfig config = {{1, 2, 3}, {32, 1, 1}, 0, nullptr, &cluster, 1};
    REQUIRE(cudaMemcpy(device, bytes.data(), n, H2D) == 0);
    REQUIRE(ask("cudaLaunchKernelExC", &config, kernel, static_cast<void **>(arguments)) == 0);
    REQUIRE(cudaDeviceSynchronize() == 0 && device_has(device + n, bytes.data(), n));
    cluster.value[2] = 2; // which is no whole part of the grid
    return HOLDS(
        refused(ask("cudaLaunchKernelExC", &config, kernel, static_cast<void **>(arguments)), 1));
}

bool kernels()
{
    const LaunchAttribute wide = {4, {3}};
    const LaunchConfig config = {{2, 1, 1}, {32, 1, 1}, 5, nullptr, &wide, 1};
    const void *kernel = &stub_kernel;
    void *handle = nullptr;
    int expected = 5, found = 0;
    std::size_t n = 0, at = 0;
    for (int size : {2, 1, 1, 32, 1, 1})
        expected = expected * 3 + size;
    expected += 4 * 1000 + 3 * 100000;
    REQUIRE(ask("cudaOccupancyMaxActiveClusters", &found, kernel, &config) == 0);
    REQUIRE(found == expected);
    REQUIRE(ask("cudaOccupancyMaxPotentialClusterSize", &found, kernel, &config) == 0);
    REQUIRE(found == 2 * expected);
    REQUIRE(ask("cudaOccupancyAvailableDynamicSMemPerBlock", &n, kernel, 3, 256) == 0 && n == 3256);
    REQUIRE(ask("cudaFuncGetParamInfo", kernel, std::size_t{2}, &at, &n) == 0 && at == 16);
    REQUIRE(n == 8 && refused(ask("cudaFuncGetParamInfo", kernel, std::size_t{3}, &at, &n), 1));
    REQUIRE(ask("cudaGetKernel", &handle, kernel) == 0 && handle == kernel);
    return HOLDS(refused(ask("cudaGetKernel", &handle, static_cast<const void *>(nullptr)), 98));
}

struct Location {
    int type, id;
};
struct CopyAttributes {
    int order;
    Location from, to;
    unsigned flags;
};
struct Operand { // cudaMemcpy3DOperand
    long type;   // 1: memory, 2: an array
    void *at;
    std::size_t place[3]; // lengths of rows and planes, or where in the array
};
struct PlanesInBatch { // cudaMemcpy3DBatchOp
    Operand from, to;
    ibx_cuda_extent extent;
    int order;
    unsigned flags;
};
struct Peers {
    void *from_array;
    ibx_cuda_extent from_at;
    ibx_cuda_pitched from;
    int from_device;
    void *to_array;
    ibx_cuda_extent to_at;
    ibx_cuda_pitched to;
    int to_device;
    ibx_cuda_extent extent;
};

// Three copies of different kinds in one call; the source of the first may change at once.
bool batches()
{
    constexpr std::size_t n = 1 << 20;
    void *stream = nullptr, *pinned = nullptr;
    char *device = device_memory(2 * n);
    REQUIRE(device && cudaStreamCreate(&stream) == 0 && cudaMallocHost(&pinned, n) == 0);
    char *bytes = static_cast<char *>(pinned);
    std::vector<char> there(n), back(n);
    random_fill(there.data(), n, 8);
    std::memcpy(bytes, there.data(), n);
    void *to[] = {back.data(), device + n, device};
    const void *from[] = {device + n, device, bytes};
    const std::size_t sizes[] = {n, n, n}, first[] = {0};
    CopyAttributes at_once = {2, {}, {}, 0};
    auto batch = [&](CopyAttributes *attributes, void *in) {
        return ask("cudaMemcpyBatchAsync", static_cast<void *const *>(to),
                   static_cast<const void *const *>(from), static_cast<const std::size_t *>(sizes),
                   std::size_t{3}, attributes, static_cast<const std::size_t *>(first),
                   std::size_t{1}, in);
    };
    REQUIRE(stub_remote()->slow(20000));
    REQUIRE(cudaMemset(device + n, 'z', n) == 0 && batch(&at_once, stream) == 0);
    std::memset(bytes, 'x', n);
    stub_remote()->slow(0);
    REQUIRE(cudaStreamSynchronize(stream) == 0 && back[0] == 'z' && back[n - 1] == 'z');
    REQUIRE(device_has(device, there.data(), n));
    REQUIRE(refused(batch(&at_once, nullptr), 1)); // not in the legacy stream
    REQUIRE(cudaMemset(device + n, 'z', n) == 0);
    for (bool beyond_from : {true, false}) { // one side goes beyond: the copy before it is made
        from[1] = beyond_from ? device + n + 1 : device;
        to[1] = beyond_from ? device : device + n + 1;
        std::fill(back.begin(), back.end(), 'b');
        REQUIRE(refused(batch(&at_once, stream), 1) && cudaStreamSynchronize(stream) == 0);
        REQUIRE(back[0] == 'z' && back[n - 1] == 'z' && device_has(device, there.data(), n));
    }
    from[1] = device, to[1] = device + n;
    for (std::size_t wrong : {std::size_t{0}, n + 1}) { // a copy of nothing is an error, too
        const std::size_t some[] = {n, wrong, n};
        std::size_t failed = 77;
        REQUIRE(ask("cuInit", 0u) == 0);
        const auto driver = [&](CopyAttributes *attributes) { // CUDA 12's
            return ask("cuMemcpyBatchAsync", static_cast<void *const *>(to),
                       static_cast<const void *const *>(from), static_cast<const size_t *>(some),
                       std::size_t{3}, attributes, static_cast<const size_t *>(first),
                       std::size_t{1}, &failed, stream);
        };
        REQUIRE(driver(&at_once) == 1 && failed == 1);
        CopyAttributes unordered = {};
        REQUIRE(driver(&unordered) == 1 && failed == SIZE_MAX);
    }
    REQUIRE(cudaStreamBeginCapture(stream, 0) == 0 && batch(&at_once, stream) == 900);
    void *empty = nullptr; // the capture goes on
    REQUIRE(cudaStreamEndCapture(stream, &empty) == 0 && empty);
    at_once.flags = 2;
    REQUIRE(refused(batch(&at_once, stream), 1));
    at_once.flags = 1, at_once.order = 0;
    REQUIRE(refused(batch(&at_once, stream), 1));
    // Planes between devices.
    Peers p = {};
    p.from = {device, 64, 64, 8}, p.to = {device + n, 64, 64, 8}, p.extent = {32, 4, 1};
    REQUIRE(cudaMemcpy(device + n, there.data(), n, H2D) == 0);
    REQUIRE(cudaMemset(device, 'p', n) == 0 && ask("cudaMemcpy3DPeer", &p) == 0);
    std::fill(there.begin(), there.begin() + 32, 'p');
    REQUIRE(cudaDeviceSynchronize() == 0 && device_has(device + n, there.data(), 64));
    void *captured = nullptr, *graph = nullptr; // CUDA permits no such copy in a capture
    REQUIRE(cudaStreamCreate(&captured) == 0 && cudaStreamBeginCapture(captured, 0) == 0);
    REQUIRE(ask("cudaMemcpy3DPeerAsync", &p, captured) == 900);
    int status = 0;
    REQUIRE(ask("cudaStreamIsCapturing", captured, &status) == 0 && status == 2);
    REQUIRE(cudaMemsetAsync(device, 0, 1, captured) == 901);
    REQUIRE(cudaStreamEndCapture(captured, &graph) == 901 && !graph);
    p.from_device = 2;
    REQUIRE(refused(ask("cudaMemcpy3DPeer", &p), 101));
    REQUIRE(refused(ask("cudaMemcpy3DPeerAsync", &p, stream), 101));
    return HOLDS(cudaFreeHost(pinned) == 0 && cudaFree(device) == 0);
}

// Several copies of planes in one call, between the host, the device and an array. One that is
// wrong keeps out all of them; if only its memory is wrong, those before it are made (H200).
bool batches_of_planes()
{
    constexpr std::size_t n = 4096, row = 16;
    void *stream = nullptr, *array = nullptr;
    char *device = device_memory(n);
    std::vector<char> there(n), back(n);
    random_fill(there.data(), n, 8);
    const ibx_cuda_channel words = {32, 0, 0, 0, 0};
    REQUIRE(device && cudaStreamCreate(&stream) == 0 && cudaMemset(device, 0, n) == 0);
    REQUIRE(ask("cudaMallocArray", &array, &words, std::size_t{8}, std::size_t{4}, 0u) == 0);
    // Rows of 16 bytes in rows of 32, planes of 4 rows in those of 5; then 8 words from an array.
    PlanesInBatch all[] = {
        {{1, there.data(), {32, 5, 0}}, {1, device, {0, 0, 0}}, {row, 4, 2}, 1, 0},
        {{1, there.data() + 1024, {0, 0, 0}}, {2, array, {0, 0, 0}}, {8, 4, 1}, 2, 1}};
    const auto batch = [&](std::size_t count, void *in, unsigned long long flags = 0) {
        return ask("cudaMemcpy3DBatchAsync", count, static_cast<const PlanesInBatch *>(all), flags,
                   in);
    };
    REQUIRE(batch(2, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    for (std::size_t z = 0; z < 2; z++)
        for (std::size_t y = 0; y < 4; y++)
            REQUIRE(device_has(device + (z * 4 + y) * row, &there[(z * 5 + y) * 32], row));
    std::swap(all[1].from, all[1].to);
    all[1].to.at = back.data();
    all[0] = {{1, device, {0, 0, 0}}, {1, device + 2048, {0, 0, 0}}, {128, 1, 1}, 1, 0};
    REQUIRE(batch(2, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    REQUIRE(!std::memcmp(back.data(), &there[1024], 8 * 4 * 4));
    REQUIRE(cudaMemcpy(back.data(), device + 2048, 128, D2H) == 0);
    REQUIRE(!std::memcmp(back.data() + row, &there[32], row));
    const PlanesInBatch good = all[1];
    const auto refuses = [&](const PlanesInBatch &wrong) {
        all[1] = wrong;
        return refused(batch(2, stream), 1);
    };
    const std::vector<char> kept(128, 'k');
    std::vector<char> first(128);
    REQUIRE(cudaMemcpy(first.data(), device, 128, D2H) == 0);
    for (int which = 0; which < 12; which++) {
        REQUIRE(cudaMemset(device + 2048, 'k', 128) == 0);
        PlanesInBatch wrong = good;
        wrong.extent.width = which == 0 ? 0 : 8;
        wrong.order = which == 1 ? 0 : which == 2 ? 4 : 1;
        wrong.flags = which == 3 ? 2 : 0;
        wrong.to.type = which == 4 ? 0 : which == 5 ? 3 : 1;
        wrong.to.place[0] = which == 6 ? 7 : 0; // a row is shorter than what is copied
        wrong.to.place[1] = which == 7 ? 3 : 0;
        wrong.to.at = which == 8 ? nullptr : which == 9 ? device + n - 100 : back.data();
        wrong.from.at = which == 10 ? nullptr : array;
        wrong.extent.depth = which == 11 ? 0 : 1;
        REQUIRE(refuses(wrong) && cudaStreamSynchronize(stream) == 0);
        const bool made = which == 8 || which == 9;
        REQUIRE(device_has(device + 2048, (made ? first : kept).data(), 128));
    }
    all[1] = good;
    REQUIRE(refused(batch(2, nullptr), 1) && refused(batch(0, stream), 1));
    REQUIRE(refused(batch(2, stream, 1), 1));
    std::size_t failed = 0;
    all[1].extent.height = 0;
    REQUIRE(ask("cuMemcpy3DBatchAsync", std::size_t{2}, static_cast<const PlanesInBatch *>(all),
                &failed, 0ull, stream) == 1);
    REQUIRE(failed == 1 && device_has(device + 2048, kept.data(), 128));
    return HOLDS(ask("cudaFreeArray", array) == 0 && cudaFree(device) == 0);
}

// Planes of a compressed format, whose lengths and places are in blocks, as on an H200: BC1 has 4 x
// 4 elements in 8 bytes, and this array 16 x 8 blocks, of which the last ones are not whole.
bool batches_of_blocks()
{
    constexpr std::size_t n = 4096, block = 8, row = 16 * block;
    void *stream = nullptr, *array = nullptr, *words = nullptr;
    char *device = device_memory(n);
    std::vector<char> there(n), back(n, 'x'), expected(n, 'x');
    random_fill(there.data(), n, 8);
    const ibx_cuda_channel compressed = {8, 8, 8, 8, 17}, of_8_bytes = {32, 32, 0, 0, 0};
    REQUIRE(device && cudaStreamCreate(&stream) == 0);
    REQUIRE(ask("cudaMallocArray", &array, &compressed, std::size_t{62}, std::size_t{31}, 0u) == 0);
    REQUIRE(ask("cudaMallocArray", &words, &of_8_bytes, std::size_t{16}, std::size_t{8}, 0u) == 0);
    const auto batch = [&](const std::vector<PlanesInBatch> &all) {
        return ask("cudaMemcpy3DBatchAsync", all.size(), all.data(), 0ull, stream);
    };
    const Operand from = {1, there.data(), {0, 0, 0}}, to = {1, back.data(), {20, 0, 0}},
                  middle = {1, there.data() + 2048, {10, 3, 0}}, all = {2, array, {0, 0, 0}},
                  last = {2, array, {12, 6, 0}}, odd = {2, array, {2, 1, 0}};
    REQUIRE(batch({{from, all, {16, 8, 1}, 1, 0},
                   {middle, last, {4, 2, 1}, 1, 0},
                   {middle, odd, {8, 3, 1}, 1, 0},
                   {all, {1, device, {0, 0, 0}}, {16, 8, 1}, 1, 0},
                   {all, to, {16, 8, 1}, 1, 0}}) == 0);
    REQUIRE(cudaStreamSynchronize(stream) == 0);
    for (std::size_t y = 0; y < 8; y++) {
        char *const line = &expected[y * 20 * block];
        std::memcpy(line, &there[y * row], row);
        if (y >= 6)
            std::memcpy(line + 12 * block, &there[2048 + (y - 6) * 10 * block], 4 * block);
        if (y >= 1 && y < 4)
            std::memcpy(line + 2 * block, &there[2048 + (y - 1) * 10 * block], 8 * block);
        REQUIRE(device_has(device + y * row, line, row));
    }
    REQUIRE(back == expected);
    for (const ibx_cuda_extent beyond : {ibx_cuda_extent{17, 8, 1}, {62, 31, 1}, {16, 9, 1}})
        REQUIRE(refused(batch({{from, all, beyond, 1, 0}}), 1));
    REQUIRE(refused(batch({{from, last, {5, 2, 1}, 1, 0}}), 1));
    const Operand others = {2, words, {0, 0, 0}};
    REQUIRE(refused(batch({{all, others, {16, 8, 1}, 1, 0}}), 801));
    REQUIRE(ask("cudaFreeArray", array) == 0 && ask("cudaFreeArray", words) == 0);
    return HOLDS(cudaFree(device) == 0);
}

// Pools of a place: a device has one, and the host. Managed memory has none here.
bool pools_at_places()
{
    void *pool = nullptr, *of_device = nullptr;
    Location device = {1, 0}, host = {2, 0};
    REQUIRE(ask("cudaDeviceGetDefaultMemPool", &of_device, 0) == 0);
    REQUIRE(ask("cudaMemGetDefaultMemPool", &pool, &device, 1) == 0 && pool == of_device);
    REQUIRE(ask("cudaMemGetMemPool", &pool, &device, 1) == 0 && pool == of_device);
    REQUIRE(ask("cudaMemSetMemPool", &device, 1, pool) == 0);
    REQUIRE(ask("cudaMemGetMemPool", &pool, &host, 1) == 0 && pool != of_device);
    return HOLDS(refused(ask("cudaMemGetMemPool", &pool, &host, 2), 801));
}

struct Instantiate {
    unsigned long long flags;
    void *stream, *failed;
    int result;
};

// Nodes of plain copies, to a variable as well, whose parameters change.
bool copies_of_graphs()
{
    constexpr std::size_t n = 100;
    char *a = device_memory(n), *b = device_memory(n), *variable = device_memory(n), symbol = 0;
    void *graph = nullptr, *node = nullptr, *exec = nullptr, *stream = nullptr;
    const std::vector<char> as(n, 'a'), bs(n, 'b');
    REQUIRE(a && b && variable && cudaStreamCreate(&stream) == 0);
    REQUIRE(cudaMemset(a, 'a', n) == 0 && cudaMemset(b, 'b', n) == 0);
    REQUIRE(stub_remote()->register_var(reinterpret_cast<std::uintptr_t>(&symbol),
                                        reinterpret_cast<std::uintptr_t>(variable), n));
    REQUIRE(ask("cudaGraphCreate", &graph, 0u) == 0);
    using Node = void **;
    using Behind = void *const *;
    const auto to_symbol = [&](std::size_t bytes) {
        return ask("cudaGraphAddMemcpyNodeToSymbol", static_cast<Node>(&node), graph,
                   static_cast<Behind>(nullptr), std::size_t{0}, static_cast<const void *>(&symbol),
                   static_cast<const void *>(a), bytes, std::size_t{10}, D2D);
    };
    REQUIRE(refused(to_symbol(n), 1) && to_symbol(n - 10) == 0);
    Instantiate how = {2, stream, &symbol, 9};
    REQUIRE(ask("cudaGraphInstantiateWithParams", &exec, graph, &how) == 0);
    REQUIRE(!how.failed && how.result == 0);
    REQUIRE(cudaMemset(variable, 0, n) == 0 && cudaGraphLaunch(exec, stream) == 0);
    REQUIRE(cudaStreamSynchronize(stream) == 0 && device_has(variable + 10, as.data(), n - 10));
    REQUIRE(ask("cudaGraphExecMemcpyNodeSetParams1D", exec, node, static_cast<void *>(variable),
                static_cast<const void *>(b), n, D2D) == 0);
    REQUIRE(cudaGraphLaunch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    REQUIRE(device_has(variable, bs.data(), n));
    REQUIRE(ask("cudaGraphExecMemcpyNodeSetParamsToSymbol", exec, node,
                static_cast<const void *>(&symbol), static_cast<const void *>(a), n - 50,
                std::size_t{50}, D2D) == 0);
    REQUIRE(cudaGraphLaunch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    REQUIRE(device_has(variable, bs.data(), 50) && device_has(variable + 50, as.data(), n - 50));
    // From the variable, in the node and in a graph that is instantiated then.
    REQUIRE(ask("cudaGraphMemcpyNodeSetParamsFromSymbol", node, static_cast<void *>(a),
                static_cast<const void *>(&symbol), std::size_t{50}, std::size_t{0}, D2D) == 0);
    REQUIRE(ask("cudaGraphInstantiateWithParams", &exec, graph, &how) == 0);
    REQUIRE(cudaGraphLaunch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    return HOLDS(device_has(a, bs.data(), 50) && device_has(a + 50, as.data(), 50));
}

// Two nodes behind one: the nodes before and behind each, and a node that is switched off.
bool neighbours()
{
    void *graph = nullptr, *exec = nullptr, *stream = nullptr, *found[4] = {}, *to[4] = {};
    void *first = nullptr, *second = nullptr, *third = nullptr;
    constexpr std::size_t n = 64;
    char *a = device_memory(n), *b = device_memory(n);
    const std::vector<char> as(n, 'a'), zeros(n, 0);
    std::uint64_t edges[4] = {9, 9, 9, 9};
    std::size_t count = 0;
    unsigned on = 9;
    REQUIRE(cudaStreamCreate(&stream) == 0 && ask("cudaGraphCreate", &graph, 0u) == 0);
    using Behind = void *const *;
    const auto copy = [&](void **node, Behind behind, std::size_t so_many) {
        return ask("cudaGraphAddMemcpyNode1D", node, graph, behind, so_many, static_cast<void *>(b),
                   static_cast<const void *>(a), n, D2D);
    };
    REQUIRE(copy(&first, nullptr, 0) == 0 && copy(&second, &first, 1) == 0);
    REQUIRE(copy(&third, &first, 1) == 0);
    const auto get = [&](const char *call, void *node) {
        std::fill(found, found + 4, &count);
        return ask(call, node, static_cast<void **>(found), static_cast<void *>(edges), &count);
    };
    REQUIRE(ask("cudaGraphNodeGetDependentNodes", first, static_cast<void **>(nullptr),
                static_cast<void *>(nullptr), &count) == 0 &&
            count == 2);
    count = 3;
    REQUIRE(get("cudaGraphNodeGetDependentNodes", first) == 0 && count == 2 && !found[2]);
    REQUIRE(found[0] == second && found[1] == third && !edges[1] && edges[2] == 9);
    count = 1;
    REQUIRE(get("cudaGraphNodeGetDependencies", third) == 0 && count == 1 && found[0] == first);
    REQUIRE(get("cudaGraphNodeGetDependencies", first) == 0 && count == 0);
    count = 4;
    REQUIRE(ask("cudaGraphGetEdges", graph, static_cast<void **>(found), static_cast<void **>(to),
                static_cast<void *>(nullptr), &count) == 0 &&
            count == 2);
    REQUIRE(found[0] == first && found[1] == first && to[0] == second && to[1] == third && !to[2]);
    REQUIRE(refused(get("cudaGraphNodeGetDependencies", &graph), 1));
    Instantiate how = {};
    REQUIRE(ask("cudaGraphInstantiateWithParams", &exec, graph, &how) == 0);
    REQUIRE(cudaMemset(a, 'a', n) == 0 && cudaMemset(b, 0, n) == 0);
    for (void *node : {first, second, third})
        REQUIRE(ask("cudaGraphNodeSetEnabled", exec, node, 0u) == 0);
    REQUIRE(ask("cudaGraphNodeGetEnabled", exec, first, &on) == 0 && on == 0);
    REQUIRE(cudaGraphLaunch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    REQUIRE(device_has(b, zeros.data(), n));
    REQUIRE(ask("cudaGraphNodeSetEnabled", exec, second, 1u) == 0);
    REQUIRE(ask("cudaGraphNodeGetEnabled", exec, second, &on) == 0 && on == 1);
    REQUIRE(cudaGraphLaunch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    REQUIRE(device_has(b, as.data(), n));
    return HOLDS(refused(ask("cudaGraphNodeSetEnabled", static_cast<void *>(&on), second, 1u), 1));
}

// The kind of a copy says that one side is the host's, but it is the device's: a copy within the
// device, or an error.
bool wrong_sides()
{
    char *device = device_memory(8), *other = device_memory(8), here[8] = "1234567";
    REQUIRE(device && other && cudaMemcpy(device, here, 8, H2D) == 0);
    REQUIRE(refused(cudaMemcpy(here, device, 4, H2D), 1));
    REQUIRE(refused(cudaMemcpy(device, here, 4, D2H), 1));
    REQUIRE(refused(cudaMemcpyAsync(device + 4, here, 4, D2H, nullptr), 1));
    REQUIRE(cudaMemcpy(other, device, 4, H2D) == 0 && device_has(other, "1234", 4));
    REQUIRE(cudaMemcpyAsync(other + 4, device + 4, 4, D2H, nullptr) == 0 &&
            cudaDeviceSynchronize() == 0);
    REQUIRE(device_has(other, here, 8));
    auto *nowhere = reinterpret_cast<void *>(0x100000);
    REQUIRE(refused(ask("cudaHostRegister", nowhere, std::size_t(4096), 0u), 1));
    return HOLDS(cudaFree(device) == 0 && cudaFree(other) == 0);
}

// A capture is ended without a place for its graph: then there is no graph.
bool captured_for_nobody()
{
    void *stream = nullptr;
    int status = 9;
    REQUIRE(cudaStreamCreate(&stream) == 0 && cudaStreamBeginCapture(stream, 1) == 0);
    REQUIRE(cudaStreamEndCapture(stream, nullptr) == 0);
    REQUIRE(ask("cudaStreamIsCapturing", stream, &status) == 0 && status == 0);
    REQUIRE(cudaStreamEndCapture(stream, nullptr) != 0 && cudaGetLastError());
    return HOLDS(cudaStreamDestroy(stream) == 0);
}

bool handles_of_nothing()
{
    struct IpcHandle {
        char bytes[64];
    } none = {};
    void *opened = nullptr;
    REQUIRE(refused(ask("cudaIpcOpenMemHandle", &opened, none, 1u), 1));
    return HOLDS(refused(ask("cudaIpcOpenEventHandle", &opened, none), 205));
}

// Arguments that CUDA refuses at once: no place for the answer, no memory, no kernel.
bool wrong_arguments()
{
    void *const none = nullptr;
    int value = 0;
    REQUIRE(refused(cudaMalloc(nullptr, 64), 1) && refused(cudaGetDevice(nullptr), 1));
    REQUIRE(refused(cudaStreamCreate(nullptr), 1) && refused(cudaEventCreate(nullptr), 1));
    REQUIRE(refused(cudaGetDeviceCount(nullptr), 1) &&
            refused(ask("cudaDriverGetVersion", none), 1));
    REQUIRE(refused(ask("cudaDeviceCanAccessPeer", none, 0, 0), 1));
    std::size_t bytes = 0; // CUDA leaves out an answer without a place
    REQUIRE(ask("cudaMemGetInfo", none, static_cast<void *>(&bytes)) == 0 && bytes);
    REQUIRE(ask("cudaMemGetInfo", none, none) == 0);
    REQUIRE(refused(ask("cudaGetChannelDesc", none, static_cast<void *>(&value)), 1));
    char channel[20] = {};
    REQUIRE(refused(ask("cudaGetChannelDesc", static_cast<void *>(channel), none), 400));
    REQUIRE(refused(cudaMemset(nullptr, 0, 64), 1) && cudaMemset(nullptr, 0, 0) == 0);
    REQUIRE(refused(cudaMemsetAsync(nullptr, 0, 64, nullptr), 1));
    REQUIRE(wrong_sides() && refused(ask("cudaHostUnregister", none), 1));
    REQUIRE(captured_for_nobody() && handles_of_nothing());
    REQUIRE(refused(cudaMemcpyAsync(nullptr, &value, 4, H2D, nullptr), 1));
    REQUIRE(refused(cudaMemcpyAsync(&value, nullptr, 4, D2H, nullptr), 1));
    return HOLDS(refused(cudaLaunchKernel(nullptr, {1, 1, 1}, {1, 1, 1}, nullptr, 0, nullptr), 98));
}

// The last error is the newer one, whether the back end knows it or only this process.
bool errors_in_order()
{
    char here = 0;
    const auto theirs = [&] { return cudaFree(&here) != 0; };
    const auto ours = [] { return cudaMalloc(nullptr, 64) == 1; };
    const auto unregister = [&] { return ask("cudaHostUnregister", static_cast<void *>(&here)); };
    REQUIRE(theirs());
    const int code = cudaGetLastError();
    REQUIRE(code && code != 713 && cudaGetLastError() == 0);
    REQUIRE(theirs() && unregister() == 713);
    REQUIRE(cudaGetLastError() == 713 && cudaGetLastError() == 0);
    REQUIRE(unregister() == 713 && theirs());
    REQUIRE(cudaGetLastError() == code && cudaGetLastError() == 0);
    REQUIRE(unregister() == 713 && ours() && cudaGetLastError() == 1);
    return HOLDS(cudaGetLastError() == 0);
}

} // namespace

// All devices of the back end, whatever CUDA_VISIBLE_DEVICES of this process says.
bool visible_devices()
{
    int count = 0;
    return cudaGetDeviceCount(&count) == 0 && count == 2 && cudaSetDevice(1) == 0;
}

bool queries()
{
    return HOLDS(streams() && short_events() && devices_of_it() && clusters() && kernels() &&
                 batches() && batches_of_planes() && batches_of_blocks() && pools_at_places() &&
                 copies_of_graphs() && neighbours() && wrong_arguments() && errors_in_order());
}

// After a sticky error also those calls return it that the back end does not get.
bool sticky_errors_of_local_calls()
{
    struct Place {
        int type, id;
    };
    using Advise = int(const void *, std::size_t, int, Place);
    using Prefetch = int(const void *, std::size_t, Place, unsigned, void *);
    using Attach = int(void *, void *, std::size_t, unsigned);
    constexpr std::size_t n = 4096;
    char *device = device_memory(n), *managed = managed_memory(n);
    std::vector<char> bytes(2 * n);
    void *locked = nullptr, *made = nullptr, *stream = nullptr;
    REQUIRE(cudaMallocHost(&locked, n) == 0 && host_register(bytes.data(), n) == 0);
    REQUIRE(cudaStreamCreateWithFlags(&stream, 1) == 0 && cudaDeviceSynchronize() == 0);
    stub_remote()->inject("dma", 1, 700, true);
    REQUIRE(cudaMemcpy(device, bytes.data(), 64, H2D) == 700);
    const std::function<int()> calls[] = {
        [&] { return cudaMallocHost(&made, n); },
        [&] { return cudaMallocHost(&made, 64); },
        [&] { return cudaHostAlloc(&made, n, 2); },
        [&] { return cudaFreeHost(locked); },
        [&] { return host_register(bytes.data() + n, n); },
        [&] { return host_unregister(bytes.data()); },
        [&] {
            return preloaded<Advise>("cudaMemAdvise_v2")(managed, n, 1, {1, 0});
        },
        [&] {
            return preloaded<Prefetch>("cudaMemPrefetchAsync_v2")(managed, n, {1, 0}, 0, stream);
        },
        [&] { return preloaded<Attach>("cudaStreamAttachMemAsync")(stream, managed, 0, 1); },
        [&] { return cudaDeviceSynchronize(); },
    };
    for (const auto &call : calls)
        REQUIRE(call() == 700);
    int rc = -1; // of a thread that has called nothing yet
    std::thread([&] { rc = cudaMallocHost(&made, n); }).join();
    return HOLDS(rc == 700 && !made);
}
