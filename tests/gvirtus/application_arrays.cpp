// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Arrays, copies of planes, textures and surfaces.
#include "tests/gvirtus/application_arrays.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>
#include <sys/mman.h>

namespace
{

using Channel = ibx_cuda_channel;
using Extent = ibx_cuda_extent;
using Planes = ibx_cuda_memcpy3d;
using Resource = ibx_cuda_resource;
using Texture = ibx_cuda_texture;
using View = ibx_cuda_view;

int to_array(void *array, std::size_t x, std::size_t y, const void *from, std::size_t n, int kind)
{
    return preloaded<int(void *, std::size_t, std::size_t, const void *, std::size_t, int)>(
        "cudaMemcpyToArray")(array, x, y, from, n, kind);
}
int from_array(void *to, void *array, std::size_t x, std::size_t y, std::size_t n, int kind)
{
    return preloaded<int(void *, void *, std::size_t, std::size_t, std::size_t, int)>(
        "cudaMemcpyFromArray")(to, array, x, y, n, kind);
}
int planes(const Planes *parameters)
{
    return preloaded<int(const Planes *)>("cudaMemcpy3D")(parameters);
}

Texture texture_of_words()
{
    Texture how;
    for (int i = 0; i < 18; i++)
        how.words[i] = i + 1;
    return how;
}

} // namespace

bool arrays()
{
    void *array = nullptr;
    std::vector<char> there(400 * 30), back(400 * 30);
    random_fill(there.data(), there.size(), 3);
    REQUIRE(malloc_array(&array, {100, 30, 0}) == 0 && array);
    Channel channel = {};
    REQUIRE(preloaded<int(Channel *, const void *)>("cudaGetChannelDesc")(&channel, array) == 0);
    REQUIRE(!std::memcmp(&channel, &channel_of_floats, sizeof(channel)));
    REQUIRE(to_array(array, 0, 0, there.data(), there.size(), H2D) == 0);
    REQUIRE(from_array(back.data(), array, 0, 0, back.size(), D2H) == 0 && back == there);
    REQUIRE(from_array(back.data(), array, 40, 2, 200, DEFAULT) == 0);
    REQUIRE(!std::memcmp(back.data(), there.data() + 840, 200));
    // Rows with gaps, into the middle of it.
    using To = int(void *, std::size_t, std::size_t, const void *, std::size_t, std::size_t,
                   std::size_t, int);
    using From =
        int(void *, std::size_t, void *, std::size_t, std::size_t, std::size_t, std::size_t, int);
    REQUIRE(preloaded<To>("cudaMemcpy2DToArray")(array, 8, 1, there.data(), 50, 40, 7, H2D) == 0);
    std::fill(back.begin(), back.end(), 'x');
    REQUIRE(preloaded<From>("cudaMemcpy2DFromArray")(back.data(), 60, array, 8, 1, 40, 7, D2H) ==
            0);
    for (int i = 0; i < 7; i++)
        REQUIRE(!std::memcmp(&back[std::size_t(i) * 60], &there[std::size_t(i) * 50], 40));
    REQUIRE(back[40] == 'x');
    // On the device.
    char *device = device_memory(there.size());
    REQUIRE(to_array(array, 0, 0, there.data(), there.size(), H2D) == 0);
    REQUIRE(from_array(device, array, 0, 0, there.size(), D2D) == 0);
    REQUIRE(cudaDeviceSynchronize() == 0 && device_has(device, there.data(), there.size()));
    // In a stream that the legacy one does not wait for: the copy is over when the call returns.
    using Async = int(void *, void *, std::size_t, std::size_t, std::size_t, int, void *);
    void *stream = nullptr;
    REQUIRE(cudaStreamCreate(&stream) == 0 && cudaMemset(device, 0, there.size()) == 0);
    REQUIRE(cudaDeviceSynchronize() == 0);
    stub_remote()->slow(20000);
    REQUIRE(preloaded<Async>("cudaMemcpyFromArrayAsync")(device, array, 0, 0, there.size(), D2D,
                                                         stream) == 0);
    REQUIRE(device_has(device, there.data(), there.size()));
    stub_remote()->slow(0);
    // Things that do not exist: the calls return CUDA's errors, and no made-up handle gets to CUDA.
    REQUIRE(fails(to_array(array, 0, 29, there.data(), 401, H2D), 1));
    REQUIRE(fails(to_array(there.data(), 0, 0, there.data(), 4, H2D), 1));
    for (int no_kind : {-1, 5}) {
        REQUIRE(fails(to_array(array, 0, 0, there.data(), 4, no_kind), 21));
        REQUIRE(fails(from_array(back.data(), array, 0, 0, 4, no_kind), 21));
        REQUIRE(fails(
            preloaded<To>("cudaMemcpy2DToArray")(array, 0, 0, there.data(), 40, 40, 2, no_kind),
            21));
        REQUIRE(fails(
            preloaded<From>("cudaMemcpy2DFromArray")(back.data(), 40, array, 0, 0, 40, 2, no_kind),
            21));
        REQUIRE(to_array(array, 0, 0, there.data(), 0, no_kind) == 0);
    }
    void *none = &none;
    REQUIRE(fails(malloc_array(&none, {100, 30, 0}, 64), 1) && !none);
    REQUIRE(free_array(array) == 0 && fails(free_array(array), 1) && free_array(nullptr) == 0);
    return HOLDS(cudaFree(device) == 0);
}

// Levels of a mipmapped array are arrays, which go with it.
bool mipmaps()
{
    using Make = int(void **, const Channel *, Extent, unsigned, unsigned);
    using CreateTexture =
        int(unsigned long long *, const Resource *, const Texture *, const View *);
    auto *make = preloaded<Make>("cudaMallocMipmappedArray");
    auto *level_of = preloaded<int(void **, const void *, unsigned)>("cudaGetMipmappedArrayLevel");
    auto *give_back = preloaded<int(void *)>("cudaFreeMipmappedArray");
    auto *info = preloaded<int(Channel *, Extent *, unsigned *, void *)>("cudaArrayGetInfo");
    auto *texture_on = preloaded<CreateTexture>("cudaCreateTextureObject");
    void *mipmap = nullptr, *levels[3] = {}, *again = nullptr;
    std::vector<char> there(64 * 32 * 4), back(there.size());
    random_fill(there.data(), there.size(), 12);
    REQUIRE(fails(make(nullptr, &channel_of_floats, {64, 32, 0}, 3, 0), 1));
    REQUIRE(fails(make(&mipmap, &channel_of_floats, {64, 32, 0}, 3, 64), 1) && !mipmap);
    REQUIRE(make(&mipmap, &channel_of_floats, {64, 32, 0}, 3, 2) == 0 && mipmap);
    for (unsigned i = 0; i < 3; i++) {
        Channel channel = {};
        Extent extent = {};
        unsigned flags = 0;
        const std::size_t n = there.size() >> 2 * i;
        REQUIRE(level_of(&levels[i], mipmap, i) == 0 && levels[i]);
        REQUIRE(to_array(levels[i], 0, 0, there.data() + i, n, H2D) == 0);
        REQUIRE(from_array(back.data(), levels[i], 0, 0, n, D2H) == 0);
        REQUIRE(!std::memcmp(back.data(), there.data() + i, n));
        REQUIRE(info(&channel, &extent, &flags, levels[i]) == 0 && flags == 2);
        REQUIRE(extent.width == 64u >> i && extent.height == 32u >> i && !extent.depth);
        REQUIRE(!std::memcmp(&channel, &channel_of_floats, sizeof(channel)));
    }
    REQUIRE(from_array(back.data(), levels[0], 0, 0, 100, D2H) == 0);
    REQUIRE(!std::memcmp(back.data(), there.data(), 100));
    REQUIRE(give_back(nullptr) == 0);
    REQUIRE(level_of(&again, mipmap, 1) == 0 && again == levels[1]);
    REQUIRE(fails(level_of(&again, mipmap, 3), 1) && fails(level_of(&again, levels[0], 0), 1));
    REQUIRE(fails(free_array(levels[0]), 1) && fails(free_array(mipmap), 1));
    // A texture of all levels, a surface on one level.
    const Texture how = texture_of_words();
    Resource of = {};
    View view = {};
    unsigned long long texture = 0, surface = 0;
    of.kind = IBX_RESOURCE_MIPMAP;
    of.of.array = mipmap;
    view.levels_and_layers[2] = 7;
    view.levels_and_layers[3] = 9;
    REQUIRE(texture_on(&texture, &of, &how, nullptr) == 0 && texture == 1001);
    REQUIRE(preloaded<int(unsigned long long)>("cudaDestroyTextureObject")(texture) == 0);
    REQUIRE(texture_on(&texture, &of, &how, &view) == 0 && texture == 1101);
    REQUIRE(preloaded<int(unsigned long long)>("cudaDestroyTextureObject")(texture) == 0);
    of.of.array = levels[0];
    REQUIRE(fails(texture_on(&texture, &of, &how, nullptr), 1));
    of.kind = IBX_RESOURCE_ARRAY;
    REQUIRE(preloaded<int(unsigned long long *, const Resource *)>("cudaCreateSurfaceObject")(
                &surface, &of) == 0);
    REQUIRE(preloaded<int(unsigned long long)>("cudaDestroySurfaceObject")(surface) == 0);
    // The levels go with the mipmapped array; a reset of the device takes everything.
    REQUIRE(give_back(mipmap) == 0 && fails(give_back(mipmap), 1));
    REQUIRE(fails(to_array(levels[1], 0, 0, there.data(), 4, H2D), 1));
    REQUIRE(fails(level_of(&again, mipmap, 1), 1));
    REQUIRE(make(&mipmap, &channel_of_floats, {64, 32, 0}, 9, 0) == 0);
    REQUIRE(level_of(&levels[0], mipmap, 6) == 0 && fails(level_of(&again, mipmap, 7), 1));
    REQUIRE(preloaded<int()>("cudaDeviceReset")() == 0);
    REQUIRE(fails(level_of(&again, mipmap, 6), 1));
    return HOLDS(fails(to_array(levels[0], 0, 0, there.data(), 4, H2D), 1));
}

// Rows that are longer than their pitch are refused, and nothing is written.
bool planes_beyond_rows()
{
    std::vector<char> memory(200 * 40, 'm');
    char *device = device_memory(512 * 31);
    const auto copy = [&](std::size_t x, std::size_t width, std::size_t height, int kind) {
        Planes p = {};
        p.from = {memory.data(), 200, 200, 40};
        p.to = {device, 512, 130, 31};
        p.from_at.width = x;
        p.extent = {width, height, 1};
        p.kind = kind;
        return planes(&p);
    };
    REQUIRE(device && copy(0, 200, 2, H2D) == 0 && copy(3, 197, 2, H2D) == 0);
    std::fill(memory.begin(), memory.end(), 'n');
    REQUIRE(fails(copy(3, 198, 2, H2D), 1) && fails(copy(201, 1, 2, H2D), 1));
    REQUIRE(fails(copy(0, 201, 2, H2D), 12) && fails(copy(0, 201, 1, H2D), 1));
    REQUIRE(fails(copy(0, 5, 2, 12), 21) && copy(0, 0, 2, 12) == 0);
    REQUIRE(device_has(device, "mmm", 3));
    // A single plane goes beyond the height that is given (H200, driver 580).
    const auto high = [&](std::size_t y, std::size_t from_height, std::size_t to_height) {
        Planes p = {};
        p.from = {memory.data(), 200, 200, from_height};
        p.to = {device, 512, 130, to_height};
        p.from_at.height = y;
        p.extent = {100, 10, 1};
        p.kind = H2D;
        return planes(&p);
    };
    REQUIRE(fails(high(1, 10, 10), 1) && fails(high(0, 9, 10), 1) && fails(high(0, 10, 9), 1));
    REQUIRE(device_has(device, "mmm", 3) && high(1, 0, 0) == 0 && high(1, 11, 10) == 0);
    return cudaFree(device) == 0;
}

// What CUDA refuses of rows, in its order: the pitch of several rows, the kind, the array's handle,
// and the pitch of one row (H200, driver 580).
static bool refused_rows(void *array, char *memory, std::size_t width)
{
    using To = int(void *, std::size_t, std::size_t, const void *, std::size_t, std::size_t,
                   std::size_t, int);
    using From = int(void *, std::size_t, const void *, std::size_t, std::size_t, std::size_t,
                     std::size_t, int);
    using ToAsync = int(void *, std::size_t, std::size_t, const void *, std::size_t, std::size_t,
                        std::size_t, int, void *);
    using FromAsync = int(void *, std::size_t, const void *, std::size_t, std::size_t, std::size_t,
                          std::size_t, int, void *);
    const auto copy = [&](bool to, bool async, void *with, std::size_t pitch, std::size_t rows,
                          int kind) {
        if (async)
            return to ? preloaded<ToAsync>("cudaMemcpy2DToArrayAsync")(with, 0, 0, memory, pitch,
                                                                       width, rows, kind, nullptr)
                      : preloaded<FromAsync>("cudaMemcpy2DFromArrayAsync")(
                            memory, pitch, with, 0, 0, width, rows, kind, nullptr);
        return to ? preloaded<To>("cudaMemcpy2DToArray")(with, 0, 0, memory, pitch, width, rows,
                                                         kind)
                  : preloaded<From>("cudaMemcpy2DFromArray")(memory, pitch, with, 0, 0, width, rows,
                                                             kind);
    };
    for (bool to : {true, false})
        for (bool async : {false, true})
            for (int kind : {int(to ? H2D : D2H), DEFAULT}) {
                const int back = to ? D2H : H2D;
                REQUIRE(fails(copy(to, async, array, width / 2, 2, kind), 12));
                REQUIRE(fails(copy(to, async, array, width / 2, 2, 9), 12));
                REQUIRE(fails(copy(to, async, nullptr, width / 2, 2, kind), 12));
                REQUIRE(fails(copy(to, async, nullptr, width, 2, 9), 21));
                REQUIRE(fails(copy(to, async, array, width, 2, back), 21));
                REQUIRE(fails(copy(to, async, array, width, 2, 0), 21));
                REQUIRE(fails(copy(to, async, nullptr, width, 2, kind), 400));
                REQUIRE(fails(copy(to, async, nullptr, width / 2, 1, kind), 400));
                REQUIRE(fails(copy(to, async, array, width / 2, 1, kind), 1));
                REQUIRE(copy(to, async, nullptr, width, 0, kind) == 0);
            }
    return true;
}

// A copy beyond an array is refused before memory is read that the program need not have.
static bool beyond_array()
{
    constexpr std::size_t page = 4096, row = 400;
    void *array = nullptr;
    auto *memory = static_cast<char *>(
        mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(memory != MAP_FAILED && mprotect(memory + page, page, PROT_NONE) == 0);
    REQUIRE(malloc_array(&array, {100, 4, 0}) == 0);
    Planes p = {};
    p.from = {memory + page - 4 * row, row, row, 5};
    p.to_array = array;
    p.extent = {100, 4, 1};
    p.kind = H2D;
    REQUIRE(planes(&p) == 0);
    p.extent.height = 5;
    REQUIRE(fails(planes(&p), 1));
    p.extent.height = 4, p.to_at.width = 1;
    REQUIRE(fails(planes(&p), 1));
    p.to_at = {0, 0, 1};
    REQUIRE(fails(planes(&p), 1));
    using To = int(void *, std::size_t, std::size_t, const void *, std::size_t, std::size_t,
                   std::size_t, int);
    using From = int(void *, std::size_t, const void *, std::size_t, std::size_t, std::size_t,
                     std::size_t, int);
    auto *to = preloaded<To>("cudaMemcpy2DToArray");
    auto *from = preloaded<From>("cudaMemcpy2DFromArray");
    for (std::size_t more : {std::size_t{0}, std::size_t{1}}) {
        REQUIRE(to(array, 0, 0, p.from.at, row, row, 4 + more, H2D) == static_cast<int>(more));
        REQUIRE(from(p.from.at, row, array, 0, 0, row, 4 + more, D2H) == static_cast<int>(more));
    }
    REQUIRE(fails(to(array, 4, 0, p.from.at, row, row, 4, H2D), 1));
    REQUIRE(refused_rows(array, memory, 64) && refused_rows(array, memory, 2 * row));
    auto *run = preloaded<int(void *, std::size_t, std::size_t, const void *, std::size_t, int)>(
        "cudaMemcpyToArray");
    char *const last = memory + page - 400;
    REQUIRE(run(array, 100, 2, last - 300, 700, H2D) == 0);
    REQUIRE(fails(run(array, 104, 2, last - 296, 700, H2D), 1));
    REQUIRE(fails(run(array, 0, 3, last, 404, H2D), 1) && fails(run(array, 0, 5, last, 4, H2D), 1));
    return HOLDS(free_array(array) == 0 && munmap(memory, 2 * page) == 0);
}

bool planes_of_arrays()
{
    REQUIRE(beyond_array());
    REQUIRE(planes_beyond_rows());
    void *array = nullptr;
    constexpr std::size_t row = 40, height = 5, depth = 3;
    std::vector<char> there(64 * 8 * depth), back(64 * 8 * depth, 'x');
    random_fill(there.data(), there.size(), 4);
    REQUIRE(malloc_array(&array, {row / 4, height, depth}) == 0);
    Planes p = {};
    p.from = {there.data(), 64, row, 8};
    p.from_at = {1, 1, 0}; // in elements of the array
    p.to_array = array;
    p.extent = {row / 4, height, depth};
    p.kind = H2D;
    REQUIRE(planes(&p) == 0);
    Planes q = {};
    q.from_array = array;
    q.from_at = {1, 1, 1};
    q.to = {back.data(), 64, row, 8};
    q.extent = {row / 4 - 1, height - 1, depth - 1};
    q.kind = DEFAULT;
    REQUIRE(planes(&q) == 0);
    for (std::size_t z = 0; z < depth - 1; z++)
        for (std::size_t y = 0; y < height - 1; y++)
            REQUIRE(!std::memcmp(&back[(z * 8 + y) * 64],
                                 &there[((z + 1) * 8 + y + 2) * 64 + 4 + 4], row - 4));
    REQUIRE(back[row - 4] == 'x' && back[4 * 64] == 'x');
    q.to_array = array;
    REQUIRE(fails(planes(&q), 1)); // two targets
    return HOLDS(free_array(array) == 0);
}

// Memory of planes, and calls that the preload makes of other calls.
bool planes_of_memory()
{
    using Pitched = ibx_cuda_pitched;
    using Set = int(Pitched, int, Extent, void *);
    constexpr std::size_t width = 100, height = 5, depth = 3;
    Pitched memory = {};
    REQUIRE(preloaded<int(Pitched *, Extent)>("cudaMalloc3D")(&memory, {width, height, depth}) ==
            0);
    REQUIRE(memory.at && memory.pitch >= width && memory.x == width && memory.y == height);
    const std::size_t n = memory.pitch * height * depth;
    std::vector<char> bytes(n, 'x');
    REQUIRE(cudaMemcpy(memory.at, bytes.data(), n, H2D) == 0);
    auto *set = preloaded<Set>("cudaMemset3DAsync");
    auto filled = [&](std::size_t x, std::size_t y, std::size_t z, char value) {
        for (std::size_t i = 0; i < x * y * z; i++)
            bytes[(i / x / y * height + i / x % y) * memory.pitch + i % x] = value;
    };
    void *stream = nullptr;
    REQUIRE(cudaStreamCreate(&stream) == 0);
    for (Extent part : {Extent{width, height, depth}, Extent{70, 4, 2}, Extent{1, height, 2}}) {
        const char value = static_cast<char>('a' + part.width);
        REQUIRE(set(memory, value, part, stream) == 0 && cudaStreamSynchronize(stream) == 0);
        filled(part.width, part.height, part.depth, value);
        REQUIRE(device_has(static_cast<char *>(memory.at), bytes.data(), n));
    }
    REQUIRE(preloaded<int(Pitched, int, Extent)>("cudaMemset3D")(memory, 7, {9, 2, 3}) == 0);
    filled(9, 2, 3, 7);
    REQUIRE(cudaDeviceSynchronize() == 0 &&
            device_has(static_cast<char *>(memory.at), bytes.data(), n));
    REQUIRE(set(memory, 1, {9, 0, 3}, stream) == 0);
    REQUIRE(fails(set(memory, 1, {memory.pitch + 1, 1, 1}, stream), 1));
    REQUIRE(fails(set(memory, 1, {1, height + 1, 1}, stream), 1));
    char *other = device_memory(n); // may follow: nothing is written there
    REQUIRE(fails(set(memory, 1, {width, 1, depth + 1}, stream), 1));
    // From device to device.
    auto *peer = preloaded<int(void *, int, const void *, int, std::size_t)>("cudaMemcpyPeer");
    REQUIRE(peer(other, 0, memory.at, 0, n) == 0 && cudaDeviceSynchronize() == 0);
    REQUIRE(device_has(other, bytes.data(), n));
    REQUIRE(fails(peer(other, -1, memory.at, 0, n), 101));
    auto *later =
        preloaded<int(void *, int, const void *, int, std::size_t, void *)>("cudaMemcpyPeerAsync");
    REQUIRE(set(memory, 3, {9, 1, 1}, stream) == 0);
    REQUIRE(later(other, 1, memory.at, 0, n, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    filled(9, 1, 1, 3);
    REQUIRE(device_has(other, bytes.data(), n) &&
            fails(later(other, 0, memory.at, 2, n, stream), 101));
    return HOLDS(cudaFree(memory.at) == 0 && cudaFree(other) == 0);
}

bool array_to_array()
{
    using Copy = int(void *, std::size_t, std::size_t, const void *, std::size_t, std::size_t,
                     std::size_t, std::size_t, int);
    auto *copy = preloaded<Copy>("cudaMemcpy2DArrayToArray");
    void *from = nullptr, *to = nullptr;
    std::vector<char> there(40 * 8), back(40 * 8);
    random_fill(there.data(), there.size(), 8);
    REQUIRE(malloc_array(&from, {10, 8, 0}) == 0 && malloc_array(&to, {10, 8, 0}) == 0);
    REQUIRE(to_array(from, 0, 0, there.data(), there.size(), H2D) == 0);
    std::vector<char> wanted(40 * 8, 0);
    REQUIRE(to_array(to, 0, 0, wanted.data(), wanted.size(), H2D) == 0);
    REQUIRE(copy(to, 4, 1, from, 8, 2, 20, 5, D2D) == 0);
    for (std::size_t y = 0; y < 5; y++)
        std::memcpy(&wanted[(y + 1) * 40 + 4], &there[(y + 2) * 40 + 8], 20);
    REQUIRE(from_array(back.data(), to, 0, 0, back.size(), D2H) == 0 && back == wanted);
    REQUIRE(fails(copy(to, 4, 1, from, 8, 2, 20, 5, H2D), 21));
    REQUIRE(fails(copy(to, 3, 1, from, 8, 2, 20, 5, DEFAULT), 1)); // half an element
    REQUIRE(fails(copy(to, 4, 1, there.data(), 8, 2, 20, 5, D2D), 1));
    return HOLDS(free_array(from) == 0 && free_array(to) == 0);
}

// Descriptions of arrays, textures and surfaces.
bool descriptions()
{
    using Make = int(unsigned long long *, const Resource *, const Texture *, const View *);
    using Info = int(Channel *, Extent *, unsigned *, void *);
    using OfResource = int(Resource *, unsigned long long);
    auto *create = preloaded<Make>("cudaCreateTextureObject");
    auto *info = preloaded<Info>("cudaArrayGetInfo");
    auto *resource_of = preloaded<OfResource>("cudaGetTextureObjectResourceDesc");
    auto *texture_of =
        preloaded<int(Texture *, unsigned long long)>("cudaGetTextureObjectTextureDesc");
    auto *view_of =
        preloaded<int(View *, unsigned long long)>("cudaGetTextureObjectResourceViewDesc");
    auto *of_surface = preloaded<OfResource>("cudaGetSurfaceObjectResourceDesc");
    void *array = nullptr;
    Channel channel = {};
    Extent extent = {};
    unsigned flags = 9;
    REQUIRE(malloc_array(&array, {16, 4, 0}, 2) == 0 &&
            info(&channel, &extent, &flags, array) == 0);
    REQUIRE(!std::memcmp(&channel, &channel_of_floats, sizeof(channel_of_floats)) && flags == 2);
    REQUIRE(extent.width == 16 && extent.height == 4 && extent.depth == 0);
    REQUIRE(info(nullptr, nullptr, nullptr, array) == 0);
    Resource of = {}, told = {};
    of.kind = IBX_RESOURCE_ARRAY;
    of.of.array = array;
    const Texture how = texture_of_words();
    Texture how_told = {};
    View view = {}, view_told = {};
    view.width = 16;
    view.levels_and_layers[2] = 7;
    view.levels_and_layers[3] = 9;
    unsigned long long texture = 0, other = 0, surface = 0;
    REQUIRE(create(&texture, &of, &how, nullptr) == 0 && create(&other, &of, &how, &view) == 0);
    REQUIRE(preloaded<int(unsigned long long *, const Resource *)>("cudaCreateSurfaceObject")(
                &surface, &of) == 0);
    REQUIRE(resource_of(&told, texture) == 0 && told.kind == of.kind && told.of.array == array);
    // No more bytes than programs of CUDA 12 have room for: the program's version is not known.
    alignas(Resource) char bytes[sizeof(Resource) + sizeof(View)];
    const auto left = [&] { return std::count(std::begin(bytes), std::end(bytes), 'x'); };
    std::memset(bytes, 'x', sizeof(bytes));
    REQUIRE(resource_of(reinterpret_cast<Resource *>(bytes), texture) == 0 && bytes[63] != 'x');
    REQUIRE(left() >= static_cast<long>(sizeof(bytes) - 64) && bytes[64] == 'x');
    std::memset(bytes, 'x', sizeof(bytes));
    REQUIRE(view_of(reinterpret_cast<View *>(bytes), other) == 0 && bytes[47] != 'x');
    REQUIRE(left() >= static_cast<long>(sizeof(bytes) - 48) && bytes[48] == 'x');
    REQUIRE(texture_of(&how_told, texture) == 0 && !std::memcmp(&how_told, &how, sizeof(how)));
    REQUIRE(fails(view_of(&view_told, texture), 1));
    REQUIRE(view_of(&view_told, other) == 0 && view_told.width == 16);
    told = Resource();
    REQUIRE(of_surface(&told, surface) == 0 && told.of.array == array);
    REQUIRE(fails(resource_of(&told, surface), 1) && fails(of_surface(&told, texture), 1));
    REQUIRE(fails(resource_of(nullptr, texture), 1));
    REQUIRE(preloaded<int(unsigned long long)>("cudaDestroyTextureObject")(texture) == 0);
    REQUIRE(fails(resource_of(&told, texture), 1) && free_array(array) == 0);
    REQUIRE(info(&channel, &extent, &flags, array) != 0 && cudaGetLastError() != 0);
    // A reset of the device takes the descriptions of its arrays, textures and surfaces, too.
    REQUIRE(resource_of(&told, other) == 0 && malloc_array(&array, {16, 4, 0}, 2) == 0);
    REQUIRE(preloaded<int()>("cudaDeviceReset")() == 0);
    REQUIRE(fails(resource_of(&told, other), 1) && fails(of_surface(&told, surface), 1));
    return HOLDS(info(&channel, &extent, &flags, array) != 0 && cudaGetLastError() != 0);
}

// The address of a library in the back end's memory.
std::uint64_t library_of_back_end()
{
    std::ifstream maps("/proc/" + std::string(std::getenv("STUB_BACK_END")) + "/maps");
    for (std::string line; std::getline(maps, line);)
        if (line.find("libc.so") != std::string::npos)
            return std::stoull(line, nullptr, 16);
    return 0;
}

// CUDA takes a texture that is longer than its memory: it looks only at the beginning.
bool textures_beyond()
{
    using Make = int(unsigned long long *, const Resource *, const Texture *, const View *);
    auto *create = preloaded<Make>("cudaCreateTextureObject");
    const Texture how = texture_of_words();
    void *memory = nullptr;
    REQUIRE(cudaMalloc(&memory, 4096) == 0);
    const std::uint64_t library = library_of_back_end();
    const auto at = reinterpret_cast<std::uintptr_t>(memory);
    Resource of = {};
    of.kind = IBX_RESOURCE_LINEAR;
    of.of.memory.channel = channel_of_floats;
    REQUIRE(library > at);
    for (std::size_t n : {std::size_t{4096}, std::size_t{4096 + 64}, library - at + 64}) {
        unsigned long long texture = 0;
        of.of.memory.at = memory;
        of.of.memory.sizes[0] = n;
        REQUIRE(create(&texture, &of, &how, nullptr) == 0 && texture);
        REQUIRE(preloaded<int(unsigned long long)>("cudaDestroyTextureObject")(texture) == 0);
    }
    return HOLDS(cudaFree(memory) == 0 && cudaGetLastError() == 0);
}

bool textures()
{
    using Make = int(unsigned long long *, const Resource *, const Texture *, const View *);
    auto *create = preloaded<Make>("cudaCreateTextureObject");
    auto *destroy = preloaded<int(unsigned long long)>("cudaDestroyTextureObject");
    const Texture how = texture_of_words();
    unsigned long long texture = 0, surface = 0;
    void *array = nullptr;
    char *device = device_memory(4096);
    REQUIRE(destroy(0) == 0 && destroy(12345) == 0);
    REQUIRE(malloc_array(&array, {16, 4, 0}) == 0);
    Resource of = {};
    of.kind = IBX_RESOURCE_ARRAY;
    of.of.array = array;
    REQUIRE(create(&texture, &of, &how, nullptr) == 0 && texture == 1000);
    View view = {};
    view.levels_and_layers[2] = 7;
    view.levels_and_layers[3] = 9;
    REQUIRE(create(&texture, &of, &how, &view) == 0 && texture == 1100 && destroy(texture) == 0);
    REQUIRE(preloaded<int(unsigned long long *, const Resource *)>("cudaCreateSurfaceObject")(
                &surface, &of) == 0 &&
            surface == 2000);
    REQUIRE(preloaded<int(unsigned long long)>("cudaDestroySurfaceObject")(surface) == 0);
    of.of.array = device; // none
    REQUIRE(fails(create(&texture, &of, &how, nullptr), 1));
    for (int kind : {IBX_RESOURCE_LINEAR, IBX_RESOURCE_PITCH_2D}) {
        of = Resource();
        of.kind = kind;
        of.of.memory.at = device;
        of.of.memory.channel = channel_of_floats;
        of.of.memory.sizes[0] = 64;
        of.of.memory.sizes[1] = 4;
        of.of.memory.sizes[2] = 256;
        REQUIRE(create(&texture, &of, &how, nullptr) == 0 &&
                texture == 1000 + static_cast<unsigned>(kind));
    }
    of.kind = 9;
    REQUIRE(fails(create(&texture, &of, &how, nullptr), 1) && destroy(5) == 0);
    return HOLDS(free_array(array) == 0 && cudaFree(device) == 0);
}
