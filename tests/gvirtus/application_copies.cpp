// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Copies of pageable memory: of all sizes, by pointers that say what they are, and by rows.
#include "tests/gvirtus/application.h"

#include "frontend-glue/session/extensions.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <sys/mman.h>
#include <vector>

static int copy(void *to, const void *from, std::size_t n, int kind, void *stream)
{
    return stream ? cudaMemcpyAsync(to, from, n, kind, stream) : cudaMemcpy(to, from, n, kind);
}

bool round_trip(char *device, char *memory, std::size_t n, unsigned seed, void *stream)
{
    std::vector<char> got(n + 2, 'x');
    random_fill(memory, n, seed);
    REQUIRE(copy(device, memory, n, H2D, stream) == 0);
    REQUIRE(!stream || cudaStreamSynchronize(stream) == 0); // of page-locked memory it is under way
    REQUIRE(device_has(device, memory, n));
    REQUIRE(copy(got.data() + 1, device, n, D2H, stream) == 0);
    REQUIRE(!std::memcmp(got.data() + 1, memory, n));
    REQUIRE(got.front() == 'x' && got.back() == 'x');
    return true;
}

namespace
{

const std::size_t sizes[] = {1,      4,      8,       100,     2047,    2048,    4097,
                             16300,  16384,  16385,   65507,   65536,   100001,  131072,
                             262145, 524289, 1048576, 1048577, 4194304, 17000003};

bool all_sizes(char *device, char *memory, void *stream, unsigned &seed)
{
    for (std::size_t n : sizes) {
        for (void *on : {static_cast<void *>(nullptr), stream}) {
            if (!round_trip(device + n % 977, memory + n % 61, n, seed++, on)) {
                std::fprintf(stderr, "with %zu bytes\n", n);
                return false;
            }
        }
    }
    return true;
}

struct Rows {
    std::size_t width, height, host_pitch, device_pitch;
};

// The last row ends where nothing is mapped; what lies between the rows stays as it was.
bool rows_round_trip(char *device, const Rows &r, bool async, void *stream)
{
    std::size_t bytes = (r.height - 1) * r.host_pitch + r.width,
                room = (bytes + 4095) / 4096 * 4096;
    auto *map = static_cast<char *>(
        mmap(nullptr, room + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(map != MAP_FAILED && mprotect(map + room, 4096, PROT_NONE) == 0);
    char *host = map + room - bytes;
    random_fill(host, bytes, static_cast<unsigned>(bytes));
    std::vector<char> sent(host, host + bytes);
    auto move = [&](void *to, std::size_t to_pitch, const void *from, std::size_t from_pitch,
                    int kind) {
        return async ? cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, r.width, r.height, kind,
                                         stream)
                     : cudaMemcpy2D(to, to_pitch, from, from_pitch, r.width, r.height, kind);
    };
    REQUIRE(move(device, r.device_pitch, host, r.host_pitch, bytes % 2 ? H2D : DEFAULT) == 0);
    REQUIRE(!std::memcmp(host, sent.data(), bytes));
    for (std::size_t i = 0; i < r.height; i += r.height / 3 + 1)
        REQUIRE(device_has(device + i * r.device_pitch, &sent[i * r.host_pitch], r.width));
    for (std::size_t i = 0; i < r.height; i++)
        std::memset(host + i * r.host_pitch, 'x', r.width);
    REQUIRE(move(host, r.host_pitch, device, r.device_pitch, bytes % 2 ? D2H : DEFAULT) == 0);
    REQUIRE(!std::memcmp(host, sent.data(), bytes));
    return HOLDS(munmap(map, room + 4096) == 0);
}

} // namespace

// From so much pageable memory that over shm the later copies go in parts (client_stage.c).
bool sizes_and_offsets()
{
    char *device = device_memory();
    void *stream = nullptr;
    REQUIRE(device && cudaStreamCreate(&stream) == 0);
    std::vector<char> memory(device_bytes_each);
    std::uint64_t before = stub_copies(), handled = stub_remote()->handled();
    unsigned seed = 0;
    for (unsigned i = 0; i < 5; i++)
        REQUIRE(all_sizes(device, memory.data(), stream, seed));
    REQUIRE(stub_copies() == before); // none went through GVirtuS's front end
    REQUIRE(taken ? stub_remote()->handled() == handled
                  : stub_remote()->handled() >= handled + 2 * seed);
    REQUIRE(stub_remote()->stats().unpinned_async == 0);
    // Copies of other kinds are GVirtuS's.
    REQUIRE(cudaMemcpy(device, device + 1000, 1000, D2D) == 0);
    REQUIRE(cudaMemcpyAsync(device, device + 1000, 1000, D2D, stream) == 0);
    REQUIRE(stub_copies() == before + 2);
    REQUIRE(cudaFree(device) == 0);
    return true;
}

// Only the pointers say which memory is the device's.
bool default_kind()
{
    char *device = device_memory(), *other = device_memory();
    void *stream = nullptr;
    REQUIRE(device && other && cudaStreamCreate(&stream) == 0);
    std::vector<char> memory(3000000), got(memory.size());
    for (void *on : {static_cast<void *>(nullptr), stream}) {
        for (std::size_t n : {std::size_t{5}, std::size_t{70000}, memory.size()}) {
            std::size_t at = n % 1000; // also from within an allocation
            random_fill(memory.data(), n, static_cast<unsigned>(n));
            REQUIRE(copy(device + at, memory.data(), n, DEFAULT, on) == 0);
            REQUIRE(!on || cudaStreamSynchronize(on) == 0); // it may be under way
            REQUIRE(device_has(device + at, memory.data(), n));
            REQUIRE(copy(got.data(), device + at, n, DEFAULT, on) == 0);
            REQUIRE(!std::memcmp(got.data(), memory.data(), n));
        }
    }
    REQUIRE(stub_copies() == 0);
    // GVirtuS makes a copy within the device, and is told that it is one.
    REQUIRE(cudaMemcpy(other + 9, device + 8, memory.size() - 8, DEFAULT) == 0);
    REQUIRE(cudaDeviceSynchronize() == 0 && device_has(other + 9, memory.data() + 8, 1000));
    std::memset(got.data(), 0, got.size());
    REQUIRE(cudaMemcpy(got.data(), memory.data(), got.size(), DEFAULT) == 0);
    REQUIRE(got == memory && stub_copies() == 1);
    // Addresses that this process has merely reserved.
    void *reserved = mmap(device, 4096, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    REQUIRE(reserved == device);
    REQUIRE(cudaMemcpy(device + 9, memory.data(), 3000, DEFAULT) == 0);
    REQUIRE(device_has(device + 9, memory.data(), 3000) && stub_copies() == 1);
    REQUIRE(munmap(reserved, 4096) == 0);
    // Memory of both: as without the preload, the beginnings of allocations decide.
    void *both = mmap(device, 4096, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    REQUIRE(both == device);
    REQUIRE(cudaMemcpy(device, memory.data(), 4000, DEFAULT) == 0);
    REQUIRE(device_has(device, memory.data(), 4000) && stub_copies() == 1);
    REQUIRE(device[0] == 0 && device[3999] == 0);
    // Behind the beginnings the other side decides, since few copies are within the host; so do
    // registrations.
    REQUIRE(cudaMemcpy(device + 8, memory.data() + 99, 8, DEFAULT) == 0 && stub_copies() == 1);
    REQUIRE(device[8] == 0 && device_has(device + 8, memory.data() + 99, 8));
    REQUIRE(cudaMemcpy(device + 8, other + 9, 8, DEFAULT) == 0 && stub_copies() == 1);
    REQUIRE(!std::memcmp(device + 8, memory.data() + 8, 8));
    REQUIRE(host_register(device, 4096) == 0);
    REQUIRE(cudaMemcpy(device + 8, memory.data(), 8, DEFAULT) == 0 && stub_copies() == 1);
    REQUIRE(!std::memcmp(device + 8, memory.data(), 8) && host_unregister(device) == 0);
    std::memset(device, 0, 4000);
    // What the device gave back is no longer in the way.
    REQUIRE(cudaFree(device) == 0);
    REQUIRE(cudaMemcpy(other, device, 4096, DEFAULT) == 0 && stub_copies() == 1);
    REQUIRE(cudaMemcpy(device, other, 4096, DEFAULT) == 0 && stub_copies() == 1);
    REQUIRE(device[0] == 0 && device[4095] == 0);
    REQUIRE(cudaFree(other) == 0);
    return HOLDS(munmap(both, 4096) == 0);
}

// Rows without bytes, and no rows at all, whatever the pitches are: both sides stay as they were,
// and the host's memory is not even read.
bool empty_rows()
{
    const struct {
        std::size_t width, height, pitch;
    } all[] = {{0, 64, 63}, {63, 0, 63}, {0, 0, 63}, {0, 1, 63}, {0, 64, 0}, {0, 3, 1u << 20}};
    char *device = device_memory();
    void *stream = nullptr;
    REQUIRE(device && cudaStreamCreate(&stream) == 0);
    const std::vector<char> filled(64 * 64, 'd'), before(64 * 64, 'h');
    REQUIRE(cudaMemcpy(device, filled.data(), filled.size(), H2D) == 0);
    for (const auto &r : all) {
        for (int kind = 0; kind <= D2D; kind++) {
            for (int way = 0; way < 3; way++) {
                std::vector<char> host = before;
                char *const to = kind == H2D || kind == D2D ? device : host.data();
                const char *const from = kind == D2H || kind == D2D ? device + 1
                                         : way                      ? host.data()
                                                                    : nullptr;
                REQUIRE((way > 1 ? cudaMemcpy2DAsync(to, r.pitch, from, r.pitch, r.width, r.height,
                                                     kind, stream)
                                 : cudaMemcpy2D(to, r.pitch, from, r.pitch, r.width, r.height,
                                                kind)) == 0);
                REQUIRE(cudaStreamSynchronize(stream) == 0);
                REQUIRE(host == before && device_has(device, filled.data(), filled.size()));
            }
        }
        REQUIRE(cudaMemcpy2D(device, r.pitch, device, r.pitch, r.width, r.height, 5) == 21);
        REQUIRE(cudaGetLastError() == 21);
    }
    return HOLDS(cudaFree(device) == 0);
}

bool rows()
{
    const Rows all[] = {{1, 1, 1, 1},
                        {1, 500, 4096, 512},
                        {3, 7, 3, 3},
                        {100, 40, 100, 512},
                        {100, 3000, 100, 512},
                        {100, 3000, 101, 100},
                        {100, 3000, 150, 104},
                        {100, 3000, 250, 100},
                        {1000, 2000, 1777, 1024},
                        {1000, 2000, 5000, 1024},
                        {70000, 2, 70001, 70144},
                        {70000, 50, 200000, 70144},
                        {300000, 30, 300000, 300032},
                        {300000, 30, 300008, 300032},
                        {1300000, 3, 3000000, 1300000},
                        {4096, 1, 5000, 9000},
                        {2000, 2000, 2000, 2000}};
    void *device = nullptr, *stream = nullptr;
    std::size_t pitch = 0;
    REQUIRE(cudaStreamCreate(&stream) == 0);
    REQUIRE(cudaMallocPitch(&device, &pitch, 300000, 60) == 0 && pitch >= 300000);
    for (Rows r : all) {
        if (!taken) // each row is a call
            r.height = std::min<std::size_t>(r.height, 300);
        std::uint64_t handled = stub_remote()->handled();
        for (int way = 0; way < 3; way++) {
            if (rows_round_trip(static_cast<char *>(device), r, way > 0,
                                way > 1 ? stream : nullptr))
                continue;
            std::fprintf(stderr, "%zu x %zu by %zu and %zu, way %d\n", r.width, r.height,
                         r.host_pitch, r.device_pitch, way);
            return false;
        }
        REQUIRE(!taken || r.width > 1u << 20 || stub_remote()->handled() == handled);
    }
    REQUIRE(stub_copies() == 0);
    REQUIRE(stub_remote()->stats().unpinned_async == 0);
    // Within the device, in the stream's order; what CUDA refuses; too much of it.
    std::vector<char> memory(100 * 100);
    random_fill(memory.data(), memory.size(), 5);
    auto *at = static_cast<char *>(device);
    stub_remote()->slow(10000);
    REQUIRE(cudaMemcpyAsync(at, memory.data(), memory.size(), H2D, stream) == 0);
    REQUIRE(cudaMemcpy2DAsync(at + 20000, 128, at, 100, 100, 100, DEFAULT, stream) == 0);
    stub_remote()->slow(0);
    REQUIRE(cudaStreamSynchronize(stream) == 0);
    REQUIRE(device_has(at + 20000 + 99 * 128, &memory[9900], 100));
    REQUIRE(stub_copies() == !taken);
    REQUIRE(cudaMemcpy2D(at, 1u << 30, memory.data(), 100, 100, 100, H2D) == 1);
    REQUIRE(cudaMemcpy2D(memory.data(), 100, at, 1u << 30, 100, 100, D2H) == 1);
    return HOLDS(cudaFree(device) == 0);
}

// This process never holds a second copy of the bytes.
bool no_copy()
{
    constexpr std::size_t n = 64u << 20;
    char *device = device_memory(n);
    std::vector<char> memory(n, 7);
    REQUIRE(device && cudaMemcpy(device, memory.data(), 1u << 20, H2D) == 0);
    REQUIRE(cudaMemcpy(memory.data(), device, 1u << 20, D2H) == 0);
    long before = peak();
    REQUIRE(before > 0);
    REQUIRE(cudaMemcpy(device, memory.data(), n, H2D) == 0);
    REQUIRE(cudaMemcpy(memory.data(), device, n, D2H) == 0);
    REQUIRE(peak() - before < 8 << 10);
    return true;
}

// Memory that was copied from and to is unmapped, and other memory comes to lie at its address.
bool remapped()
{
    constexpr std::size_t n = 3u << 20;
    char *device = device_memory();
    void *address = nullptr;
    for (unsigned round = 0; round < 8; round++) {
        void *memory =
            mmap(address, n, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | (address ? MAP_FIXED_NOREPLACE : 0), -1, 0);
        REQUIRE(memory != MAP_FAILED);
        address = memory;
        char *bytes = static_cast<char *>(memory);
        REQUIRE(round_trip(device, bytes, n - round, round));
        std::memset(bytes, 'z', n);
        REQUIRE(cudaMemcpy(bytes, device, n - 100, D2H) == 0);
        std::vector<char> expected(n - 100);
        random_fill(expected.data(), n - 100, round);
        REQUIRE(!std::memcmp(bytes, expected.data(), n - 100));
        REQUIRE(munmap(memory, n) == 0);
    }
    return true;
}

bool errors()
{
    char *device = device_memory();
    std::vector<char> first(6000000);
    // GVirtuS's handlers copy until the pool is pinned, which another thread does.
    for (unsigned long before = 0, tries = 0; stub_remote()->stats().copies_async == before;) {
        before = stub_remote()->stats().copies_async;
        REQUIRE(tries++ < 1000 && cudaMemcpy(device, first.data(), first.size(), H2D) == 0);
    }
    for (std::size_t n : {std::size_t{64}, std::size_t{100000}, std::size_t{6000000}}) {
        std::vector<char> memory(n, 'm');
        // Too much for the device's memory: the handler's own exit code, and nothing is written.
        char *late = device + device_bytes_each - n + 1;
        REQUIRE(cudaMemcpy(late, memory.data(), n, H2D) == 1);
        REQUIRE(cudaGetLastError() == 1 && cudaGetLastError() == 0);
        REQUIRE(cudaMemcpy(memory.data(), late, n, D2H) == 1);
        REQUIRE(cudaPeekAtLastError() == 1 && cudaGetLastError() == 1 && cudaGetLastError() == 0);
        REQUIRE(memory == std::vector<char>(n, 'm'));
        const char *function = n > 16384 ? "dma" : "cuMemcpyHtoD";
        stub_remote()->inject(function, n > 100000 ? 3 : 1, 46, true);
        REQUIRE(cudaMemcpy(device, memory.data(), n, H2D) == 46);
        REQUIRE(cudaMemcpy(memory.data(), device, n, D2H) == 46);
        stub_remote()->inject("", 0, 0, false);
        REQUIRE(round_trip(device, memory.data(), n, 3));
    }
    return true;
}

// More bytes than there are addresses, or no memory: nothing is asked of the back end.
bool refused()
{
    char *device = device_memory();
    std::vector<char> memory(100000, 'm');
    for (std::size_t n : {SIZE_MAX, SIZE_MAX - 30, SIZE_MAX / 2 + 1}) {
        REQUIRE(cudaMemcpy(device, memory.data(), n, H2D) == 1);
        REQUIRE(cudaMemcpy(memory.data(), device, n, D2H) == 1);
        REQUIRE(cudaMemcpyAsync(device, memory.data(), n, H2D, nullptr) == 1);
        REQUIRE(cudaGetLastError() == 1 && cudaGetLastError() == 0);
    }
    for (std::size_t n : {std::size_t{100}, memory.size()}) {
        REQUIRE(cudaMemcpy(device, nullptr, n, H2D) == 1);
        REQUIRE(cudaMemcpy(nullptr, device, n, D2H) == 1);
        REQUIRE(cudaMemcpyAsync(device, nullptr, n, H2D, nullptr) == 1);
        REQUIRE(cudaMemcpyAsync(nullptr, device, n, D2H, nullptr) == 1);
        REQUIRE(cudaMemcpy2D(device, n, nullptr, n, n / 2, 2, H2D) == 1);
        REQUIRE(cudaMemcpy2D(nullptr, n, device, n, n / 2, 2, D2H) == 1);
        REQUIRE(cudaGetLastError() == 1 && cudaGetLastError() == 0);
    }
    REQUIRE(stub_copies() == 0);
    return HOLDS(round_trip(device, memory.data(), memory.size(), 1));
}

// A compressed format has blocks of 4 by 4 texels. Rows and columns of memory are those of blocks.
bool planes_of_blocks()
{
    constexpr std::size_t width = 16, height = 8, block = 16, row = width / 4 * block, rows = 2;
    constexpr std::size_t pitch = row + block;
    const ibx_cuda_channel channel = {8, 8, 8, 8, 29}; // BC7
    void *array = nullptr;
    std::vector<char> there(pitch * rows), back(pitch * height, 'x');
    random_fill(there.data(), there.size(), 5);
    REQUIRE(preloaded<int(void **, const ibx_cuda_channel *, ibx_cuda_extent, unsigned)>(
                "cudaMalloc3DArray")(&array, &channel, {width, height, 0}, 0) == 0);
    const auto planes = preloaded<int(const ibx_cuda_memcpy3d *)>("cudaMemcpy3D");
    ibx_cuda_memcpy3d p = {}, q = {};
    p.from = {there.data(), pitch, row, rows};
    p.from_at = {1, 0, 0};
    p.to_array = array;
    p.extent = {width, height, 1};
    p.kind = H2D;
    REQUIRE(planes(&p) == 0);
    q.from_array = array;
    q.from_at = {4, 4, 0};
    q.to = {back.data(), pitch, row, rows};
    q.extent = {width - 4, height - 4, 1};
    q.kind = D2H;
    REQUIRE(planes(&q) == 0);
    const std::size_t n = row - block;
    REQUIRE(!std::memcmp(back.data(), &there[pitch + 2 * block], n));
    REQUIRE(std::all_of(back.begin() + n, back.end(), [](char c) { return c == 'x'; }));
    p.from_at = {2, 0, 0}; // beyond the pitch
    REQUIRE(fails(planes(&p), 1));
    return HOLDS(preloaded<int(void *)>("cudaFreeArray")(array) == 0);
}

// A copy beyond page-locked memory is an error by each kind, also if the other side is host memory,
// as on an H200 with driver 580.
bool beyond_page_locked_memory(char *pinned, std::size_t n)
{
    constexpr std::size_t row = 16, bytes = row * 4 * 2;
    auto *copy = preloaded<int(const ibx_cuda_memcpy3d *)>("cudaMemcpy3D");
    std::vector<char> pageable(bytes);
    char *const last = pinned + n - bytes + 1, *const other[] = {pageable.data(), pinned};
    for (int kind = 0; kind < 5; kind++)
        for (char *side : other)
            for (const bool from : {false, true}) {
                ibx_cuda_memcpy3d p = {};
                p.from = {from ? last : side, row, row, 4};
                p.to = {from ? side : last, row, row, 4};
                p.extent = {row, 4, 2}, p.kind = kind;
                REQUIRE(fails(copy(&p), 1));
                if (kind && kind != 4)
                    continue;
                REQUIRE(fails(cudaMemcpy(p.to.at, p.from.at, bytes, kind), 1));
                REQUIRE(fails(cudaMemcpyAsync(p.to.at, p.from.at, bytes, kind, nullptr), 1));
                REQUIRE(fails(cudaMemcpy2D(p.to.at, row, p.from.at, row, row, 8, kind), 1));
            }
    return true;
}

// Registered memory that has the addresses of device memory's beginning does not limit copies of
// what is the device's, also behind it.
bool planes_beside_registered()
{
    constexpr std::size_t page = 4096, n = 4 * page, row = 16, rows = n / 2 / row;
    auto *copy = preloaded<int(const ibx_cuda_memcpy3d *)>("cudaMemcpy3D");
    char *device = device_memory(n);
    std::vector<char> there = random_bytes(n / 2, 7), back(n / 2);
    REQUIRE(device && mmap(device, page, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == device);
    REQUIRE(host_register(device, page) == 0);
    ibx_cuda_memcpy3d p = {};
    p.extent = {row, rows, 1};
    const auto made = [&](char *to, char *from, int kind) {
        p.to = {to, row, row, rows}, p.from = {from, row, row, rows}, p.kind = kind;
        return copy(&p);
    };
    for (const int kinds : {0, 1}) {
        const int to = kinds ? DEFAULT : H2D, from = kinds ? DEFAULT : D2H;
        there[0]++;
        REQUIRE(made(device, there.data(), to) == 0);
        REQUIRE(made(device + n / 2, device, D2D) == 0 && cudaDeviceSynchronize() == 0);
        REQUIRE(made(back.data(), device, from) == 0 && back == there);
        back.assign(n / 2, 'x');
        REQUIRE(made(back.data(), device + n / 2, from) == 0 && back == there);
    }
    void *graph = nullptr, *node = nullptr;
    REQUIRE(preloaded<int(void **, unsigned)>("cudaGraphCreate")(&graph, 0) == 0);
    REQUIRE(preloaded<int(void **, void *, void *const *, std::size_t, void *, const void *,
                          std::size_t, int)>("cudaGraphAddMemcpyNode1D")(
                &node, graph, nullptr, 0, device + n / 2, device, n / 2, D2D) == 0);
    REQUIRE(preloaded<int(void *)>("cudaGraphDestroy")(graph) == 0);
    REQUIRE(device[0] == 0 && fails(made(back.data(), device, 0), 1)); // 0: both are the host's
    REQUIRE(host_unregister(device) == 0 && munmap(device, page) == 0);
    return HOLDS(cudaFree(device) == 0);
}

// What the kind of a copy of planes calls a side, as an H200 with driver 580 takes it: CUDA goes by
// the addresses that it knows, device memory's and page-locked memory's. Other memory is an error
// where the kind says that it is the device's.
bool kinds_of_planes()
{
    using Copy = int(const ibx_cuda_memcpy3d *);
    using CopyAsync = int(const ibx_cuda_memcpy3d *, void *);
    auto *copy = preloaded<Copy>("cudaMemcpy3D");
    auto *copy_async = preloaded<CopyAsync>("cudaMemcpy3DAsync");
    constexpr std::size_t n = 4096, half = n / 2, row = 16, bytes = row * 4 * 2;
    void *stream = nullptr, *pinned = nullptr;
    char *device = device_memory(n);
    std::vector<char> pageable(n), back(bytes), there(bytes);
    REQUIRE(device && cudaMallocHost(&pinned, n) == 0 && cudaStreamCreate(&stream) == 0);
    char *const all[] = {device, static_cast<char *>(pinned), pageable.data()};
    unsigned seed = 0;
    const auto is_right = [&](unsigned to, unsigned from, int kind, bool async) {
        ibx_cuda_memcpy3d p = {};
        p.from = {all[from], row, row, 4}, p.to = {all[to] + half, row, row, 4};
        p.extent = {row, 4, 2}, p.kind = kind;
        random_fill(there.data(), bytes, ++seed);
        REQUIRE(cudaMemcpy(all[from], there.data(), bytes, 4) == 0);
        const bool wrong = (to == 2 && (kind == H2D || kind == D2D)) ||
                           (from == 2 && (kind == D2H || kind == D2D));
        const int rc = async ? copy_async(&p, stream) : copy(&p);
        if (kind > 4 || wrong)
            return rc == (kind > 4 ? 21 : 1) && cudaGetLastError() == rc;
        REQUIRE(rc == 0 && cudaStreamSynchronize(stream) == 0 && cudaDeviceSynchronize() == 0);
        REQUIRE(cudaMemcpy(back.data(), all[to] + half, bytes, 4) == 0);
        return back == there;
    };
    for (unsigned to = 0; to < 3; to++)
        for (unsigned from = 0; from < 3; from++)
            for (int kind = 0; kind < 6; kind++)
                for (bool async : {false, true}) {
                    if (is_right(to, from, kind, async))
                        continue;
                    std::fprintf(stderr, "to %u from %u kind %d async %d\n", to, from, kind, async);
                    return false;
                }
    // Device memory that is too short is an error at once.
    ibx_cuda_memcpy3d p = {};
    p.from = {device, row, row, 4}, p.to = {device + n - bytes + 1, row, row, 4};
    p.extent = {row, 4, 2}, p.kind = D2D;
    for (int i = 0; i < 3; i++)
        REQUIRE(copy_async(&p, stream) == 1 && cudaGetLastError() == 1);
    REQUIRE(copy(&p) == 1 && cudaGetLastError() == 1 && cudaDeviceSynchronize() == 0);
    // Also if no byte of the copy is in it.
    p.to = {device, row, row, 4}, p.to_at = {0, 0, n / (row * 4)};
    REQUIRE(fails(copy(&p), 1) && fails(copy_async(&p, stream), 1));
    p.to.at = pinned;
    REQUIRE(fails(copy(&p), 1) && fails(copy_async(&p, stream), 1));
    p.to_at = {};
    // So are planes of more rows than memory has between them, natively by the pitch's error.
    p.to = {device + half, row, row, 3};
    REQUIRE(fails(copy(&p), 12) && fails(copy_async(&p, stream), 12));
    // So is page-locked memory.
    p.to = {static_cast<char *>(pinned) + n - bytes + 1, row, row, 4};
    REQUIRE(copy(&p) == 1 && cudaGetLastError() == 1);
    REQUIRE(beyond_page_locked_memory(static_cast<char *>(pinned), n));
    REQUIRE(planes_beside_registered());
    return HOLDS(cudaFree(device) == 0 && cudaFreeHost(pinned) == 0);
}

// Makes the copy in one of four ways.
int copy_as(int how, char *to, char *from, int kind, void *stream)
{
    switch (how) {
    case 0:
        return cudaMemcpy(to, from, 1000, kind);
    case 1:
        return cudaMemcpyAsync(to, from, 1000, kind, stream);
    case 2:
        return cudaMemcpy2D(to, 100, from, 100, 100, 10, kind);
    default:
        return cudaMemcpy2DAsync(to, 100, from, 100, 90, 10, kind, stream);
    }
}

// A copy between page-locked and pageable memory may call the former the device's, whose address
// CUDA knows; not the latter.
bool page_locked_is_called_device()
{
    void *stream = nullptr, *page_locked = nullptr;
    std::vector<char> pageable(1000, 'a'), others(1000, 'b'), registered(1000);
    REQUIRE(cudaStreamCreate(&stream) == 0 && cudaMallocHost(&page_locked, 1000) == 0);
    REQUIRE(host_register(registered.data(), 1000) == 0);
    for (char *locked : {static_cast<char *>(page_locked), registered.data()}) {
        for (int how = 0; how < 4; how++) {
            const std::size_t n = how == 3 ? 90 : 1000;
            char *const there = pageable.data();
            std::memset(locked, 'p', 1000);
            REQUIRE(copy_as(how, locked, there, H2D, stream) == 0);
            REQUIRE(cudaStreamSynchronize(stream) == 0 && !std::memcmp(locked, there, n));
            std::memset(locked, 'q' + how, 1000);
            REQUIRE(copy_as(how, others.data(), locked, D2H, stream) == 0);
            REQUIRE(cudaStreamSynchronize(stream) == 0 && !std::memcmp(others.data(), locked, n));
        }
        for (int how : {0, 1, 2}) { // at once, also the asynchronous one
            char *const first = pageable.data(), *const second = others.data();
            REQUIRE(copy_as(how, first, locked, H2D, stream) == 1);
            REQUIRE(copy_as(how, locked, first, D2H, stream) == 1);
            REQUIRE(copy_as(how, first, second, H2D, stream) == 1);
            REQUIRE(copy_as(how, first, second, D2H, stream) == 1);
            cudaGetLastError();
            REQUIRE(cudaStreamSynchronize(stream) == 0);
        }
    }
    REQUIRE(cudaStreamDestroy(stream) == 0 && cudaFreeHost(page_locked) == 0);
    return HOLDS(host_unregister(registered.data()) == 0 && cudaGetLastError() == 0);
}

// A copy whose kind calls device memory the host's goes by the addresses: between two allocations,
// or the other way round if page-locked memory is called the device's.
bool device_is_called_host()
{
    constexpr std::size_t n = 1000;
    char *const device = device_memory(), *const other = device_memory();
    void *stream = nullptr, *page_locked = nullptr;
    REQUIRE(device && other && cudaStreamCreate(&stream) == 0);
    REQUIRE(cudaMallocHost(&page_locked, n) == 0);
    char *const locked = static_cast<char *>(page_locked);
    std::vector<char> bytes(n);
    for (const int how : {0, 1})
        for (const int kind : {static_cast<int>(H2D), static_cast<int>(D2H)}) {
            random_fill(bytes.data(), n, static_cast<unsigned>(2 * how + kind));
            REQUIRE(cudaMemcpy(device, bytes.data(), n, H2D) == 0);
            REQUIRE(copy_as(how, other, device, kind, stream) == 0);
            REQUIRE(cudaStreamSynchronize(stream) == 0 && device_has(other, bytes.data(), n));
            std::reverse(bytes.begin(), bytes.end());
            std::memcpy(locked, bytes.data(), n);
            REQUIRE(copy_as(how, other, locked, D2H, stream) == 0);
            REQUIRE(cudaStreamSynchronize(stream) == 0 && device_has(other, bytes.data(), n));
            REQUIRE(copy_as(how, locked, device, H2D, stream) == 0);
            REQUIRE(cudaStreamSynchronize(stream) == 0 && device_has(device, locked, n));
        }
    REQUIRE(cudaStreamDestroy(stream) == 0 && cudaFreeHost(page_locked) == 0);
    return HOLDS(cudaFree(device) == 0 && cudaFree(other) == 0);
}
