// SPDX-License-Identifier: LGPL-2.1-or-later
//
// CUDA's driver API: planes, arrays, textures, graphs and pools, also those that the runtime made.
#include "tests/gvirtus/application_driver.h"

#include <cstdint>
#include <cstring>
#include <vector>
#include <sys/wait.h>
#include <unistd.h>

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

// A copy beyond the height that is given, or beyond the memory that is named, is refused, and
// writes nothing; also if the copy's own bytes are within other memory (H200, driver 580).
bool planes_beyond_memory()
{
    constexpr std::size_t page = 4096;
    void *context = nullptr;
    Address memory = 0;
    std::vector<char> bytes(2 * page, 'b');
    REQUIRE(driver_has_context(&context) && cu("cuMemAlloc_v2", &memory, 2 * page) == 0);
    for (const std::size_t depth : {1u, 2u}) {
        const auto copy = [&](auto change) {
            DriverPlanes p;
            p.from.type = HOST_SIDE, p.from.host = bytes.data(), p.from.pitch = 40;
            p.from.height = 10, p.to.type = DEVICE_SIDE, p.to.device = memory, p.to.pitch = 64;
            p.to.height = 10, p.width = 40, p.height = 10, p.depth = depth;
            change(p);
            const int rc = cu("cuMemcpy3D_v2", static_cast<const DriverPlanes *>(&p));
            return cu("cuMemcpy3DAsync_v2", static_cast<const DriverPlanes *>(&p),
                      static_cast<void *>(nullptr)) == rc
                       ? rc
                       : -1;
        };
        REQUIRE(copy([](DriverPlanes &) {}) == 0);
        REQUIRE(cu("cuMemsetD8_v2", memory, static_cast<unsigned char>('m'), 2 * page) == 0);
        REQUIRE(copy([](DriverPlanes &p) { p.from.y = 1; }) == 1);
        REQUIRE(copy([](DriverPlanes &p) { p.to.y = 1; }) == 1);
        REQUIRE(copy([](DriverPlanes &p) { p.from.height = 9; }) == 1);
        REQUIRE(copy([](DriverPlanes &p) { p.to.height = 9; }) == 1);
        REQUIRE(copy([](DriverPlanes &p) { p.height = 1, p.from.y = 3, p.from.height = 2; }) == 1);
        REQUIRE(copy([](DriverPlanes &p) { p.to.z = 2 * page / 640; }) == 1);
        const std::vector<char> untouched(2 * page, 'm');
        REQUIRE(device_has(reinterpret_cast<const char *>(memory), untouched.data(), 2 * page));
        REQUIRE(copy([](DriverPlanes &p) { p.from.y = p.to.y = 1, p.height = 9; }) == 0);
        REQUIRE(copy([](DriverPlanes &p) { p.from.height = p.to.height = 0; }) == 0);
        REQUIRE(copy([](DriverPlanes &p) { p.from.height = 0, p.from.y = 1; }) == 0);
    }
    // What the copy would write to is an allocation, but not that which is named.
    Address several[8] = {};
    for (Address &one : several)
        REQUIRE(cu("cuMemAlloc_v2", &one, page) == 0);
    for (Address from : several)
        for (Address to : several)
            if (to > from && to - from <= 64 * page) {
                DriverPlanes p;
                p.from.type = HOST_SIDE, p.from.host = bytes.data(), p.from.pitch = 64;
                p.to.type = DEVICE_SIDE, p.to.device = from, p.to.pitch = 64, p.to.height = 1;
                p.to.z = (to - from) / 64, p.width = 64, p.height = 1, p.depth = 1;
                REQUIRE(cu("cuMemcpy3D_v2", static_cast<const DriverPlanes *>(&p)) == 1);
            }
    return HOLDS(cu("cuCtxDestroy_v2", context) == 0 && cudaGetLastError() == 0);
}

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
    return HOLDS(cu("cuCtxDestroy_v2", context) == 0 && cudaGetLastError() == 0 &&
                 planes_beyond_memory());
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
    // The driver launches the program's own kernel; and memory of the runtime goes with no context.
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

// What a capture did not let the program free or destroy still goes with its context.
bool driver_refused_frees()
{
    void *context = nullptr, *stream = nullptr, *graph = nullptr;
    Address memory = 0;
    REQUIRE(driver_has_context(&context) && cu("cuStreamCreate", &stream, 1u) == 0);
    REQUIRE(cu("cuMemAlloc_v2", &memory, std::size_t{5000}) == 0);
    REQUIRE(cu("cuStreamBeginCapture_v2", stream, 0) == 0 && cu("cuMemFree_v2", memory) == 900);
    REQUIRE(cu("cuStreamEndCapture", stream, &graph) == 901);
    const auto before = stub_remote()->stats().allocations;
    REQUIRE(cu("cuCtxDestroy_v2", context) == 0);
    REQUIRE(stub_remote()->stats().allocations == before - 1);
    cudaGetLastError();
    return true;
}

namespace
{

// CUDA_RESOURCE_DESC, CUDA_TEXTURE_DESC
struct DriverResource {
    int kind = 0;
    union {
        void *array;
        struct {
            Address at;
            unsigned format, channels;
            std::size_t sizes[3];
        } memory;
        int reserved[32];
    } of = {};
    unsigned flags = 0;
};
struct DriverTexture {
    int address[3] = {1, 2, 3}, filter = 4;
    unsigned flags = 0, anisotropy = 12;
    int mipmap_filter = 13, bias = 14, least_level = 15, greatest_level = 16;
    int border[4] = {7, 8, 9, 10}, reserved[12] = {};
};
enum { OF_ARRAY, OF_MIPMAP, OF_LINEAR, OF_ROWS };
using Object = unsigned long long;

int create_texture(Object *texture, const DriverResource &of, const DriverTexture &how)
{
    return cu("cuTexObjectCreate", texture, &of, &how, static_cast<const void *>(nullptr));
}

// A texture's descriptors are returned as they were given, but for a flag that is not kept.
bool tells(Object texture, const DriverResource &of, const DriverTexture &how)
{
    DriverResource told;
    DriverTexture how_told;
    REQUIRE(cu("cuTexObjectGetResourceDesc", &told, texture) == 0 && told.kind == of.kind);
    const bool has_handle = of.kind == OF_ARRAY || of.kind == OF_MIPMAP;
    REQUIRE(has_handle ? told.of.array == of.of.array
                       : !std::memcmp(&told.of.memory, &of.of.memory, sizeof(of.of.memory)));
    REQUIRE(cu("cuTexObjectGetTextureDesc", &how_told, texture) == 0);
    return HOLDS(!std::memcmp(&how_told, &how, sizeof(how)));
}

// Makes one and destroys it. It is the driver's where `of_driver`: the double's handles tell.
bool made_by(bool of_driver, const DriverResource &of, const DriverTexture &how)
{
    Object texture = 0;
    DriverTexture none;
    REQUIRE(create_texture(&texture, of, how) == 0 && tells(texture, of, how));
    REQUIRE(texture == (of_driver ? 1050u : 1000u) + static_cast<unsigned>(of.kind));
    REQUIRE(cu("cuTexObjectDestroy", texture) == 0);
    return HOLDS(cu("cuTexObjectGetTextureDesc", &none, texture) == 1);
}

// Memory of integers, in rows and in one row.
bool linear_integers_of_memory(Address memory, DriverTexture how)
{
    DriverResource of;
    of.kind = OF_ROWS;
    for (const unsigned format : {0x01u, 0x02u, 0x03u, 0x08u, 0x09u, 0x0au})
        for (const unsigned channels : {1u, 2u, 4u}) {
            how.flags = format == 0x03 || format == 0x0a ? 0 : 1; // 32 bits always are integers
            of.of.memory = {memory, format, channels, {32, 8, 512}};
            REQUIRE(made_by(true, of, how));
        }
    of.kind = OF_LINEAR;
    of.of.memory = {memory, 0x02, 2, {4096, 0, 0}};
    how.flags = 1;
    return HOLDS(made_by(true, of, how));
}

// What the elements of an array are is asked once, whatever depends on it.
bool asks_once(void *of_floats)
{
    std::uint64_t calls[2];
    DriverResource of;
    of.of.array = of_floats;
    for (const bool linear : {false, true}) {
        Object texture = 0;
        DriverTexture how;
        how.filter = linear ? 1 : how.filter;
        const std::uint64_t before = stub_remote()->runtime_calls();
        REQUIRE(create_texture(&texture, of, how) == 0);
        calls[linear] = stub_remote()->runtime_calls() - before;
        REQUIRE(cu("cuTexObjectDestroy", texture) == 0);
    }
    return HOLDS(calls[0] == calls[1]);
}

// Integers that are read as such with a linear filter: CUDA's runtime refuses such a texture, and
// the driver makes it.
bool linear_integers(void *of_floats, void *of_bytes, Address memory)
{
    struct {
        std::size_t width, height, depth;
        unsigned format, channels, flags;
    } levels = {16, 8, 0, 0x02, 1, 0};
    ibx_cuda_view view = {};
    Object texture = 0;
    DriverResource of;
    DriverTexture how;
    void *mipmap = nullptr;
    how.filter = 1;
    of.of.array = of_bytes;
    for (const unsigned flags : {0u, 1u, 0x73u}) {
        how.flags = flags;
        REQUIRE(made_by(flags != 0, of, how));
    }
    view.levels_and_layers[2] = 7, view.levels_and_layers[3] = 9;
    REQUIRE(cu("cuTexObjectCreate", &texture, &of, &how,
               static_cast<const ibx_cuda_view *>(&view)) == 0);
    REQUIRE(texture == 1150 && cu("cuTexObjectGetResourceViewDesc", &view, texture) == 0);
    REQUIRE(cu("cuTexObjectDestroy", texture) == 0);
    stub_remote()->inject("cuTexObjectCreate", 1, 2, false);
    REQUIRE(create_texture(&texture, of, how) == 2 && made_by(true, of, how));
    of.of.array = of_floats;
    how.flags = 0x02;
    REQUIRE(made_by(false, of, how));
    how.flags = 1;
    REQUIRE(linear_integers_of_memory(memory, how));
    REQUIRE(cu("cuMipmappedArrayCreate", &mipmap, &levels, 2u) == 0);
    of.kind = OF_MIPMAP;
    of.of.array = mipmap;
    REQUIRE(made_by(true, of, how));
    how.filter = 4, how.mipmap_filter = 1; // between the levels alone: the runtime takes it
    REQUIRE(made_by(false, of, how));
    return HOLDS(cu("cuMipmappedArrayDestroy", mipmap) == 0);
}

} // namespace

bool driver_textures()
{
    void *context = nullptr, *array = nullptr, *bytes = nullptr;
    Address memory = 0;
    Object texture = 0, other = 0, surface = 0;
    const DriverArray floats = {16, 8, FLOATS, 2}, of_bytes = {16, 8, 0x01, 4};
    REQUIRE(driver_has_context(&context) && cu("cuArrayCreate_v2", &array, &floats) == 0);
    REQUIRE(cu("cuArrayCreate_v2", &bytes, &of_bytes) == 0);
    REQUIRE(cu("cuMemAlloc_v2", &memory, std::size_t{4096}) == 0);
    DriverResource of;
    DriverTexture how;
    of.of.array = array;
    how.flags = 0x02 | 0x10; // normalized, sRGB
    REQUIRE(create_texture(&texture, of, how) == 0 && texture && tells(texture, of, how));
    REQUIRE(cu("cuTexObjectGetResourceViewDesc", static_cast<void *>(&how), texture) == 1);
    // Small integers are read as they are, or as numbers up to 1.
    of.of.array = bytes;
    for (const unsigned flags : {0u, 1u, 0x61u}) {
        how.flags = flags;
        REQUIRE(create_texture(&other, of, how) == 0 && tells(other, of, how));
        REQUIRE(cu("cuTexObjectDestroy", other) == 0);
    }
    REQUIRE(linear_integers(array, bytes, memory) && asks_once(array));
    // Memory, in one row and in several.
    of = DriverResource();
    of.kind = OF_LINEAR;
    of.of.memory = {memory, FLOATS, 4, {4096, 0, 0}};
    REQUIRE(create_texture(&other, of, how) == 0 && cu("cuTexObjectDestroy", other) == 0);
    of.kind = OF_ROWS;
    of.of.memory = {memory, FLOATS, 1, {64, 4, 512}};
    REQUIRE(create_texture(&other, of, how) == 0 && cu("cuTexObjectDestroy", other) == 0);
    of.of.memory.format = 0x77;
    REQUIRE(create_texture(&other, of, how) == 1);
    of.of.memory = {memory + 4096, FLOATS, 4, {4096, 0, 0}};
    of.kind = 9;
    REQUIRE(create_texture(&other, of, how) == 1 && create_texture(nullptr, of, how) == 1);
    // Surfaces; both go with the context, before the array does.
    of = DriverResource();
    of.of.array = array;
    REQUIRE(cu("cuSurfObjectCreate", &surface, static_cast<const DriverResource *>(&of)) == 0);
    DriverResource told;
    REQUIRE(cu("cuSurfObjectGetResourceDesc", &told, surface) == 0 && told.of.array == array);
    REQUIRE(cu("cuSurfObjectDestroy", surface) == 0);
    REQUIRE(cu("cuSurfObjectGetResourceDesc", &told, surface) == 1);
    of.of.array = bytes;
    how.filter = 1, how.flags = 1;
    REQUIRE(create_texture(&other, of, how) == 0 && other == 1050);
    REQUIRE(cu("cuCtxDestroy_v2", context) == 0 && driver_has_context(&context));
    REQUIRE(cu("cuTexObjectGetResourceDesc", &told, texture) == 1);
    REQUIRE(cu("cuTexObjectGetResourceDesc", &told, other) == 1);
    return HOLDS(cu("cuCtxDestroy_v2", context) == 0 && cudaGetLastError() == 0);
}

namespace
{

struct DriverHandle {
    unsigned char bytes[64];
};

// Another process's memory and event.
bool opens(const DriverHandle &of_memory, const DriverHandle &of_event,
           const std::vector<char> &bytes)
{
    void *context = nullptr, *event = nullptr;
    Address at = 0;
    std::vector<char> back(bytes.size());
    const std::size_t n = bytes.size();
    REQUIRE(driver_has_context(&context));
    REQUIRE(cu("cuIpcOpenMemHandle_v2", &at, of_memory, 1u) == 0 && at);
    REQUIRE(cu("cuMemcpyDtoH_v2", static_cast<void *>(back.data()), at, n) == 0 && back == bytes);
    REQUIRE(cu("cuMemsetD8_v2", at, static_cast<unsigned char>('c'), std::size_t{10}) == 0);
    REQUIRE(cu("cuMemFree_v2", at) == 1); // its maker's
    REQUIRE(cu("cuIpcOpenEventHandle", &event, of_event) == 0 && event);
    REQUIRE(cu("cuEventSynchronize", event) == 0 && cu("cuEventDestroy_v2", event) == 0);
    REQUIRE(cu("cuCtxSynchronize") == 0 && cu("cuIpcCloseMemHandle", at) == 0);
    REQUIRE(cu("cuIpcCloseMemHandle", at) == 1);
    return HOLDS(cudaGetLastError() == 0);
}

} // namespace

bool driver_shares()
{
    void *context = nullptr, *event = nullptr;
    Address memory = 0;
    DriverHandle of_memory = {}, of_event = {};
    int status = -1;
    constexpr std::size_t n = 5000;
    const std::vector<char> bytes = random_bytes(n, 17);
    REQUIRE(driver_has_context(&context) && cu("cuMemAlloc_v2", &memory, n) == 0);
    REQUIRE(cu("cuMemcpyHtoD_v2", memory, static_cast<const void *>(bytes.data()), n) == 0);
    REQUIRE(cu("cuEventCreate", &event, 2u | 4u) == 0); // for other processes
    REQUIRE(cu("cuEventRecord", event, static_cast<void *>(nullptr)) == 0);
    REQUIRE(cu("cuIpcGetMemHandle", &of_memory, memory) == 0);
    REQUIRE(cu("cuIpcGetEventHandle", &of_event, event) == 0);
    REQUIRE(cu("cuIpcGetMemHandle", &of_memory, Address{4096}) == 1);
    REQUIRE(cu("cuIpcGetMemHandle", &of_memory, memory) == 0);
    const pid_t child = fork();
    if (!child)
        _exit(opens(of_memory, of_event, bytes) ? 0 : 1);
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    std::vector<char> expected = bytes, back(n);
    std::memset(expected.data(), 'c', 10);
    REQUIRE(cu("cuMemcpyDtoH_v2", static_cast<void *>(back.data()), memory, n) == 0);
    REQUIRE(back == expected && cu("cuMemFree_v2", memory) == 0);
    return HOLDS(cu("cuCtxDestroy_v2", context) == 0 && cudaGetLastError() == 0);
}

// Hints about managed memory, of both versions of these calls.
bool driver_hints()
{
    struct Place {
        int type, id;
    };
    const Place device = {1, 0}, missing = {1, 7}, host = {2, 0};
    void *context = nullptr, *stream = nullptr;
    Address memory = 0;
    constexpr std::size_t n = 16384;
    int value = -9, other = -9;
    REQUIRE(driver_has_context(&context) && cu("cuStreamCreate", &stream, 1u) == 0);
    REQUIRE(cu("cuMemAllocManaged", &memory, n, 1u) == 0);
    REQUIRE(cu("cuMemAllocManaged", &memory, std::size_t{0}, 1u) == 1);
    const auto is = [&](int attribute) {
        value = -9;
        return cu("cuMemRangeGetAttribute", static_cast<void *>(&value), sizeof(value), attribute,
                  memory, n) == 0
                   ? value
                   : -99;
    };
    REQUIRE(is(1) == 0 && cu("cuMemAdvise", memory, n, 1, 0) == 0 && is(1) == 1);
    REQUIRE(cu("cuMemAdvise", memory, n, 2, -1) == 0 && is(1) == 0);
    REQUIRE(cu("cuMemAdvise_v2", memory, n, 3, device) == 0 && is(2) == 0);
    REQUIRE(cu("cuMemAdvise_v2", memory, n, 3, host) == 0 && is(2) == -1);
    REQUIRE(cu("cuMemAdvise", memory, n, 3, 0) == 0 && is(2) == 0);
    REQUIRE(cu("cuMemPrefetchAsync", memory, n, 0, stream) == 0 && is(4) == 0);
    REQUIRE(cu("cuMemPrefetchAsync", memory, n, -1, stream) == 0 && is(4) == -1);
    REQUIRE(cu("cuMemPrefetchAsync_v2", memory, n, device, 0u, stream) == 0 && is(4) == 0);
    REQUIRE(cu("cuMemPrefetchAsync_v2", memory, n, host, 0u, stream) == 0 && is(4) == -1);
    REQUIRE(cu("cuMemPrefetchAsync", memory, n, 7, stream) == 101);
    REQUIRE(cu("cuMemPrefetchAsync", memory, n, -2, stream) == 101 && is(4) == -1);
    REQUIRE(cu("cuMemPrefetchAsync_v2", memory, n, missing, 0u, stream) == 101);
    const Address ranges[] = {memory};
    const std::size_t lengths[] = {n}, first[] = {0};
    const auto all = [&](const char *call, const Place *to, void *in) {
        return cu(call, static_cast<const Address *>(ranges),
                  static_cast<const std::size_t *>(lengths), std::size_t{1}, to,
                  static_cast<const std::size_t *>(first), std::size_t{1}, 0ull, in);
    };
    REQUIRE(all("cuMemPrefetchBatchAsync", &device, stream) == 0 && is(4) == 0);
    REQUIRE(all("cuMemDiscardAndPrefetchBatchAsync", &host, stream) == 0 && is(4) == -1);
    REQUIRE(all("cuMemPrefetchBatchAsync_ptsz", &device, nullptr) == 0 && is(4) == 0);
    REQUIRE(all("cuMemPrefetchBatchAsync", &device, nullptr) == 1);
    REQUIRE(cu("cuMemDiscardBatchAsync", static_cast<const Address *>(ranges),
               static_cast<const std::size_t *>(lengths), std::size_t{1}, 0ull, stream) == 0);
    REQUIRE(cu("cuMemAdvise", memory, n, 3, 7) == 1 && is(2) == 0);
    REQUIRE(cu("cuMemAdvise", memory + n, n, 1, 0) == 1 &&
            cu("cuMemAdvise", memory, n, 99, 0) == 1);
    void *data[] = {&value, &other};
    const std::size_t argument_sizes[] = {4, 4};
    const int attributes[] = {1, 2};
    REQUIRE(cu("cuMemRangeGetAttributes", static_cast<void **>(data),
               static_cast<const std::size_t *>(argument_sizes),
               static_cast<const int *>(attributes), std::size_t{2}, memory, n) == 0);
    REQUIRE(value == 0 && other == 0);
    REQUIRE(cu("cuStreamAttachMemAsync", stream, memory, std::size_t{0}, 4u) == 0);
    REQUIRE(cu("cuStreamSynchronize", stream) == 0 && cu("cuMemFree_v2", memory) == 0);
    return HOLDS(cu("cuCtxDestroy_v2", context) == 0 && cudaGetLastError() == 0);
}
