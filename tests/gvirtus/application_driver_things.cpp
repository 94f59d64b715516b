// SPDX-License-Identifier: LGPL-2.1-or-later
//
// CUDA's driver API: planes, arrays, textures, graphs, pools, and what is of the runtime besides.
#include "tests/gvirtus/application_driver.h"

#include <cstdint>
#include <cstring>
#include <vector>

namespace
{

// CUDA_MEMCPY3D
struct DriverSide {
    std::size_t x = 0, y = 0, z = 0, level = 0;
    int type = 0;
    const void *host = nullptr;
    Address device = 0;
    void *array = nullptr, *reserved = nullptr;
    std::size_t pitch = 0, height = 0;
};
struct DriverPlanes {
    DriverSide from, to;
    std::size_t width = 0, height = 0, depth = 0;
};
enum { HOST_SIDE = 1, DEVICE_SIDE, ARRAY_SIDE };

// CUDA_ARRAY_DESCRIPTOR
struct DriverArray {
    std::size_t width, height;
    unsigned format, channels;
};
constexpr unsigned FLOATS = 0x20;

} // namespace

bool driver_planes()
{
    void *context = nullptr;
    Address memory = 0;
    constexpr std::size_t n = 10000;
    REQUIRE(driver_has_context(&context) && cu("cuMemAlloc_v2", &memory, n) == 0);
    const std::vector<char> bytes = random_bytes(n, 8);
    std::vector<char> back(n, 'x');
    DriverPlanes p;
    p.from.type = HOST_SIDE, p.from.host = bytes.data(), p.from.pitch = 40, p.from.height = 20;
    p.from.x = 5, p.from.y = 1, p.from.z = 1;
    p.to.type = DEVICE_SIDE, p.to.device = memory, p.to.pitch = 32, p.to.height = 12;
    p.to.x = 2, p.to.z = 2;
    p.width = 30, p.height = 10, p.depth = 4;
    REQUIRE(cu("cuMemcpy3D_v2", static_cast<const DriverPlanes *>(&p)) == 0);
    REQUIRE(cu("cuMemcpyDtoH_v2", static_cast<void *>(back.data()), memory, n) == 0);
    for (std::size_t z = 0; z < 4; z++)
        for (std::size_t y = 0; y < 10; y++)
            REQUIRE(!std::memcmp(back.data() + ((z + 2) * 12 + y) * 32 + 2,
                                 bytes.data() + ((z + 1) * 20 + y + 1) * 40 + 5, 30));
    p.from.level = 1;
    REQUIRE(cu("cuMemcpy3D_v2", static_cast<const DriverPlanes *>(&p)) == 801);
    p.from.level = 0, p.to.device = 0;
    REQUIRE(cu("cuMemcpy3D_v2", static_cast<const DriverPlanes *>(&p)) == 1);
    return HOLDS(cu("cuCtxDestroy_v2", context) == 0 && cudaGetLastError() == 0);
}

bool driver_arrays()
{
    void *context = nullptr, *array = nullptr, *other = nullptr;
    DriverArray wanted = {16, 8, FLOATS, 2}, is = {};
    REQUIRE(driver_has_context(&context));
    REQUIRE(cu("cuArrayCreate_v2", &array, static_cast<const DriverArray *>(&wanted)) == 0 &&
            array);
    REQUIRE(cu("cuArrayGetDescriptor_v2", &is, array) == 0);
    REQUIRE(is.width == 16 && is.height == 8 && is.format == FLOATS && is.channels == 2);
    wanted.channels = 3;
    REQUIRE(cu("cuArrayCreate_v2", &other, static_cast<const DriverArray *>(&wanted)) == 1 &&
            !other);
    // Columns are bytes, also where an array takes part.
    const std::vector<char> bytes = random_bytes(16 * 8 * 8, 9);
    std::vector<char> back(bytes.size(), 'x');
    DriverPlanes p;
    p.from.type = HOST_SIDE, p.from.host = bytes.data(), p.from.pitch = 128, p.from.height = 8;
    p.to.type = ARRAY_SIDE, p.to.array = array;
    p.width = 128, p.height = 8, p.depth = 1;
    REQUIRE(cu("cuMemcpy3D_v2", static_cast<const DriverPlanes *>(&p)) == 0);
    DriverPlanes half;
    half.from.type = ARRAY_SIDE, half.from.array = array, half.from.x = 64, half.from.y = 2;
    half.to.type = HOST_SIDE, half.to.host = back.data(), half.to.pitch = 64;
    half.width = 64, half.height = 5, half.depth = 1;
    REQUIRE(cu("cuMemcpy3D_v2", static_cast<const DriverPlanes *>(&half)) == 0);
    for (std::size_t y = 0; y < 5; y++)
        REQUIRE(!std::memcmp(back.data() + y * 64, bytes.data() + (y + 2) * 128 + 64, 64));
    half.from.x = 3; // in the middle of an element
    REQUIRE(cu("cuMemcpy3D_v2", static_cast<const DriverPlanes *>(&half)) == 1);
    REQUIRE(cu("cuArrayDestroy", array) == 0 &&
            cu("cuArrayDestroy", static_cast<void *>(nullptr)) == 400);
    REQUIRE(cu("cuCtxDestroy_v2", context) == 0);
    return HOLDS(cudaGetLastError() == 0);
}

namespace
{

struct DriverKernel {
    const void *function;
    unsigned grid[3], block[3], shared;
    void **arguments, **extra;
    const void *kernel;
    void *context;
};
struct DriverSet {
    Address at;
    std::size_t pitch;
    unsigned value, element;
    std::size_t width, height;
};

} // namespace

bool driver_graphs()
{
    void *context = nullptr, *module = nullptr, *function = nullptr, *graph = nullptr;
    void *nodes[3] = {}, *exec = nullptr;
    Address memory = 0;
    constexpr std::size_t n = 4000;
    const std::vector<char> image = library_cubin();
    REQUIRE(driver_has_context(&context) && cu("cuMemAlloc_v2", &memory, 3 * n) == 0);
    REQUIRE(cu("cuModuleLoadData", &module, static_cast<const void *>(image.data())) == 0);
    REQUIRE(cu("cuModuleGetFunction", &function, module,
               static_cast<const char *>(STUB_LIBRARY_KERNEL)) == 0);
    REQUIRE(cu("cuGraphCreate", &graph, 0u) == 0);
    // Set, then a kernel that copies it on, then a copy to the host.
    const DriverSet set = {memory, 0, 0x1234, 2, n / 2, 1};
    REQUIRE(cu("cuGraphAddMemsetNode", &nodes[0], graph, static_cast<void *const *>(nullptr),
               std::size_t{0}, &set, context) == 0);
    Address to = memory + n, from = memory;
    std::size_t length = n, count = 0;
    void *arguments[] = {&to, &from, &length};
    DriverKernel kernel = {nullptr, {1, 1, 1}, {1, 1, 1}, 0, arguments, nullptr, function, context};
    REQUIRE(cu("cuGraphAddKernelNode_v2", &nodes[1], graph, static_cast<void *const *>(&nodes[0]),
               std::size_t{1}, static_cast<const DriverKernel *>(&kernel)) == 0);
    std::vector<char> back(n, 'x');
    DriverPlanes p;
    p.from.type = DEVICE_SIDE, p.from.device = memory + n;
    p.to.type = HOST_SIDE, p.to.host = back.data();
    p.width = n, p.height = p.depth = 1;
    REQUIRE(cu("cuGraphAddMemcpyNode", &nodes[2], graph, static_cast<void *const *>(&nodes[1]),
               std::size_t{1}, static_cast<const DriverPlanes *>(&p), context) == 0);
    REQUIRE(cu("cuGraphGetNodes", graph, static_cast<void **>(nullptr), &count) == 0 && count == 3);
    DriverKernel told = {};
    REQUIRE(cu("cuGraphKernelNodeGetParams_v2", nodes[1], &told) == 0);
    REQUIRE(told.function == function && told.grid[0] == 1 && told.context == context);
    void *before = nullptr;
    count = 1;
    REQUIRE(cu("cuGraphNodeGetDependencies_v2", nodes[2], &before, static_cast<void *>(nullptr),
               &count) == 0 &&
            count == 1 && before == nodes[1]);
    REQUIRE(cu("cuGraphInstantiateWithFlags", &exec, graph, 0ull) == 0);
    REQUIRE(cu("cuGraphLaunch", exec, static_cast<void *>(nullptr)) == 0);
    REQUIRE(cu("cuCtxSynchronize") == 0);
    for (std::size_t i = 0; i < n; i += 2)
        REQUIRE(back[i] == 0x34 && back[i + 1] == 0x12);
    // In a program of CUDA before 13 as well.
    REQUIRE(cu("cuGraphAddDependencies", graph, static_cast<void *const *>(&nodes[0]),
               static_cast<void *const *>(&nodes[2]), std::size_t{1}) == 0);
    REQUIRE(cu("cuGraphExecDestroy", exec) == 0 && cu("cuGraphDestroy", graph) == 0);
    REQUIRE(cu("cuCtxDestroy_v2", context) == 0);
    return HOLDS(cudaGetLastError() == 0);
}

bool driver_pools()
{
    void *context = nullptr, *pool = nullptr, *stream = nullptr;
    Address memory = 0;
    REQUIRE(driver_has_context(&context) && cu("cuDeviceGetDefaultMemPool", &pool, 0) == 0 && pool);
    REQUIRE(cu("cuStreamCreate", &stream, 1u) == 0);
    REQUIRE(cu("cuMemAllocFromPoolAsync", &memory, std::size_t{5000}, pool, stream) == 0);
    REQUIRE(cu("cuMemsetD8Async", memory, static_cast<unsigned char>('p'), std::size_t{5000},
               stream) == 0);
    REQUIRE(cu("cuStreamSynchronize", stream) == 0);
    std::vector<char> back(5000);
    REQUIRE(cu("cuMemcpyDtoH_v2", static_cast<void *>(back.data()), memory, back.size()) == 0);
    REQUIRE(back == std::vector<char>(5000, 'p'));
    REQUIRE(cu("cuMemAllocFromPoolAsync", &memory, std::size_t{5000}, static_cast<void *>(nullptr),
               stream) == 1);
    // What the program's own kernel is, the driver launches; and its memory goes with no context.
    const void *function = nullptr;
    REQUIRE(cu("cudaGetFuncBySymbol", &function, static_cast<const void *>(&stub_kernel)) == 0);
    REQUIRE(function == &stub_kernel);
    char *mine = device_memory(2000);
    void *to = mine + 1000, *from = mine;
    std::size_t length = 1000;
    void *arguments[] = {&to, &from, &length}, **none = nullptr;
    const std::vector<char> bytes = random_bytes(1000, 4);
    REQUIRE(cudaMemcpy(mine, bytes.data(), 1000, H2D) == 0);
    REQUIRE(cu("cuLaunchKernel", function, 1u, 1u, 1u, 1u, 1u, 1u, 0u, stream,
               static_cast<void **>(arguments), none) == 0);
    REQUIRE(cu("cuCtxDestroy_v2", context) == 0 && device_has(mine + 1000, bytes.data(), 1000));
    return HOLDS(cudaFree(mine) == 0 && cudaGetLastError() == 0);
}
