// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Calls that the preload makes without GVirtuS's front end, once the front end has made one of each
// kind.
#include "tests/gvirtus/application.h"
#include "tests/gvirtus/application_arrays.h"
#include "tests/gvirtus/connections.h"

#include <cstring>
#include <sys/mman.h>
#include <sys/socket.h>
#include <thread>
#include <vector>

namespace
{

struct Handles {
    void *stream = nullptr, *event = nullptr;
    char *device = nullptr;
};

bool each(const Handles &h, int value)
{
    void *more = nullptr;
    REQUIRE(cudaMemset(h.device, value, 100) == 0);
    REQUIRE(cudaMemsetAsync(h.device + 100, value + 1, 100, h.stream) == 0);
    REQUIRE(cudaEventRecord(h.event, h.stream) == 0 && cudaEventSynchronize(h.event) == 0);
    REQUIRE(cudaEventQuery(h.event) == 0 && cudaStreamQuery(h.stream) == 0);
    REQUIRE(cudaStreamSynchronize(h.stream) == 0 && cudaDeviceSynchronize() == 0);
    REQUIRE(cudaGetLastError() == 0 && cudaPeekAtLastError() == 0 && cudaSetDevice(0) == 0);
    REQUIRE(cudaMalloc(&more, 1000) == 0 && more && cudaFree(more) == 0);
    return HOLDS(cudaStreamQuery(h.stream) == 0);
}

} // namespace

// Short copies to the device go with the calls around them, from the second one on.
bool short_copies()
{
    Handles h;
    std::vector<char> bytes(1901), expected;
    REQUIRE(cudaStreamCreate(&h.stream) == 0 && (h.device = device_memory(1u << 20)) != nullptr);
    for (unsigned i = 0; i < 400; i++) {
        const std::size_t n = i % 7 ? 1 + i % 1900 : 1901;
        random_fill(bytes.data(), n, i);
        expected.insert(expected.end(), bytes.begin(), bytes.begin() + static_cast<long>(n));
        REQUIRE(cudaMemcpyAsync(h.device + expected.size() - n, bytes.data(), n, H2D, h.stream) ==
                0);
        std::memset(bytes.data(), 'x', n); // the program's again
    }
    REQUIRE(cudaStreamSynchronize(h.stream) == 0);
    REQUIRE(device_has(h.device, expected.data(), expected.size()));
    // From page-locked memory into which the GPU has yet to copy: in CUDA's order.
    void *there = nullptr;
    REQUIRE(cudaMallocHost(&there, 71 << 10) == 0);
    for (int i = 0; i < 3; i++) {
        std::memset(there, i, 4096);
        stub_remote()->slow(100000);
        REQUIRE(cudaMemcpyAsync(there, h.device, 1000, D2H, h.stream) == 0);
        REQUIRE(cudaMemcpyAsync(h.device + (900 << 10), there, 1000, H2D, h.stream) == 0);
        REQUIRE(cudaStreamSynchronize(h.stream) == 0);
        stub_remote()->slow(0);
        REQUIRE(device_has(h.device + (900 << 10), expected.data(), 1000));
        REQUIRE(cudaMemset(h.device + (900 << 10), 0, 1000) == 0);
    }
    // A wait for the legacy stream need not wait for the streams that are ordered with it.
    std::memset(there, 9, 4096);
    stub_remote()->slow(100000);
    REQUIRE(cudaMemcpyAsync(there, h.device, 1000, D2H, h.stream) == 0);
    REQUIRE(cudaStreamSynchronize(nullptr) == 0);
    REQUIRE(cudaMemcpy(h.device + (900 << 10), there, 1000, H2D) == 0);
    stub_remote()->slow(0);
    REQUIRE(device_has(h.device + (900 << 10), expected.data(), 1000));
    // Copies of any length, also by the calls that return when the copy has ended.
    for (std::size_t n : {1u, 20u, 100u, 1000u, 20000u, 70000u}) {
        for (int sync = 0; sync < 2; sync++) {
            std::memset(there, 5, 70000);
            stub_remote()->slow(30000);
            REQUIRE(cudaMemcpyAsync(there, h.device, n + 256, D2H, h.stream) == 0);
            REQUIRE((sync ? cudaMemcpy(h.device + (900 << 10), there, n, H2D)
                          : cudaMemcpyAsync(h.device + (900 << 10), there, n, H2D, h.stream)) == 0);
            REQUIRE(cudaStreamSynchronize(h.stream) == 0);
            stub_remote()->slow(0);
            REQUIRE(device_has(h.device + (900 << 10), expected.data(), n));
            REQUIRE(cudaMemset(h.device + (900 << 10), 0, n) == 0);
        }
    }
    REQUIRE(cudaFreeHost(there) == 0);
    // The back end goes on to the copy behind a bad one; the next wait returns the bad one's error.
    REQUIRE(cudaMemcpyAsync(reinterpret_cast<void *>(16), bytes.data(), 8, H2D, h.stream) == 0);
    REQUIRE(cudaMemcpyAsync(h.device, bytes.data(), 8, H2D, h.stream) == 0);
    REQUIRE(cudaStreamSynchronize(h.stream) != 0 && cudaGetLastError() != 0);
    REQUIRE(cudaStreamSynchronize(h.stream) == 0 && device_has(h.device, bytes.data(), 8));
    return HOLDS(cudaFree(h.device) == 0);
}

bool calls()
{
    Handles h;
    REQUIRE(cudaStreamCreate(&h.stream) == 0 && cudaEventCreate(&h.event) == 0);
    REQUIRE((h.device = device_memory(4096)) != nullptr);
    REQUIRE(each(h, 1) && each(h, 2));
    const std::uint64_t before = stub_calls();
    for (int i = 0; i < 30; i++)
        REQUIRE(each(h, i));
    REQUIRE(stub_calls() == before);
    const std::vector<char> first(100, 29), second(100, 30);
    REQUIRE(device_has(h.device, first.data(), 100));
    REQUIRE(device_has(h.device + 100, second.data(), 100));
    // GVirtuS makes the calls that this library does not know.
    REQUIRE(cudaFree(h.device + 1) != 0 && cudaFree(h.device) == 0);
    // Each thread has its own connection, and begins with GVirtuS.
    bool good = false;
    std::thread([&] {
        good = cudaStreamQuery(h.stream) == 0 && stub_calls() == before + 2 &&
               (h.device = device_memory(4096)) && each(h, 3);
    }).join();
    return HOLDS(good);
}

// cudaMemsetAsync keeps the order of its stream, also where the legacy stream does not wait for
// that stream. GVirtuS's front end sends another call (G5).
bool sets_in_streams()
{
    using Rows = int(void *, std::size_t, int, std::size_t, std::size_t, void *);
    auto *set_rows = preloaded<Rows>("cudaMemset2DAsync");
    void *stream = nullptr;
    constexpr std::size_t n = 6000;
    char *device = device_memory(3 * n);
    REQUIRE(device && cudaStreamCreateWithFlags(&stream, 1) == 0);
    std::vector<char> expected(n, 'c');
    for (std::size_t y = 0; y < 8; y++)
        std::memset(&expected[y * 700], 'd', 100);
    for (int round = 0; round < 2; round++) {
        REQUIRE(cudaMemset(device, 'a', n) == 0 && cudaMemset(device + n, 'b', 2 * n) == 0);
        REQUIRE(cudaDeviceSynchronize() == 0);
        stub_remote()->slow(2000);
        REQUIRE(cudaMemcpyAsync(device + n, device, n, D2D, stream) == 0);
        REQUIRE(cudaMemsetAsync(device + n, 'c', n, stream) == 0);
        REQUIRE(set_rows(device + n, 700, 'd', 100, 8, stream) == 0);
        REQUIRE(cudaMemcpyAsync(device + 2 * n, device + n, n, D2D, stream) == 0);
        REQUIRE(cudaStreamSynchronize(stream) == 0);
        stub_remote()->slow(0);
        REQUIRE(device_has(device + n, expected.data(), n));
        REQUIRE(device_has(device + 2 * n, expected.data(), n));
    }
    // These do not go through GVirtuS's front end, and an error is returned, if later.
    const std::uint64_t before = stub_calls();
    REQUIRE(cudaMemsetAsync(device, 0, n, stream) == 0);
    REQUIRE(set_rows(device, 700, 0, 100, 8, stream) == 0 && stub_calls() == before);
    const int rc = cudaMemsetAsync(reinterpret_cast<void *>(16), 0, 8, stream);
    const int later = cudaStreamSynchronize(stream);
    REQUIRE((rc || later) && cudaGetLastError() != 0 && cudaGetLastError() == 0);
    return HOLDS(cudaFree(device) == 0);
}

// Errors that CUDA says at once: memory that is not there, also if calls of the kind have
// succeeded.
bool sets_nowhere()
{
    using Rows = int(void *, std::size_t, int, std::size_t, std::size_t, void *);
    auto *set_rows = preloaded<Rows>("cudaMemset2DAsync");
    void *stream = nullptr;
    constexpr std::size_t n = 4096;
    char *device = device_memory(n);
    REQUIRE(device && cudaStreamCreate(&stream) == 0);
    for (unsigned round = 0; round < 8; round++) {
        REQUIRE(cudaMemset(device, 'a', n) == 0 && cudaMemsetAsync(device, 'b', n, stream) == 0);
        REQUIRE(set_rows(device, 700, 'd', 100, 5, stream) == 0);
    }
    REQUIRE(cudaDeviceSynchronize() == 0);
    const auto refused = [](int rc) { return rc == 1 && cudaGetLastError() == 1; };
    for (char *at : {device + 1, device + n - 1}) {
        REQUIRE(refused(cudaMemset(at, 'x', n)));
        REQUIRE(refused(cudaMemsetAsync(at, 'x', n, stream)));
        REQUIRE(refused(set_rows(at, 1000, 'x', 97, 5, stream)));
    }
    REQUIRE(cudaStreamSynchronize(stream) == 0 && cudaDeviceSynchronize() == 0);
    return HOLDS(cudaFree(device) == 0);
}

// Copies that begin in memory that was registered and go beyond it, whatever is mapped there: the
// rest of its last page, other such memory, or what replaced it. Each is as on an H200.
static bool fails_beyond_registered(char *device)
{
    constexpr std::size_t page = 4096, n = 2 * page;
    const auto map = [](void *at) {
        const int fixed = at ? MAP_FIXED : 0;
        return static_cast<char *>(
            mmap(at, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0));
    };
    char *const begin = map(nullptr), *at = begin + page;
    for (const std::size_t there : {n, n - 100}) {
        REQUIRE(begin != MAP_FAILED && host_register(at, there, 0) == 0);
        for (bool beside : {false, true}) {
            REQUIRE(!beside || host_register(at + n, page, 0) == 0);
            for (int kind : {int{H2D}, 4}) {
                REQUIRE(cudaMemcpyAsync(device, at + 1, there - 1, kind, nullptr) == 0);
                REQUIRE(fails(cudaMemcpyAsync(device, at + 1, there, kind, nullptr), 1));
                REQUIRE(fails(cudaMemcpy(device, at, there + 1, kind), 1));
                REQUIRE(cudaMemcpy(device, begin, page + n, kind) == 0); // begins before it
            }
            REQUIRE(cudaMemcpy(at, device, there, D2H) == 0);
            REQUIRE(fails(cudaMemcpyAsync(at, device, there + 1, D2H, nullptr), 1));
            REQUIRE(cudaMemcpy2D(at, page, device, page, 10, 2, D2H) == 0);
            REQUIRE(fails(cudaMemcpy2D(at, page, device, page, 10, 3, D2H), 1));
        }
        REQUIRE(munmap(begin, 4 * page) == 0 && map(begin) == begin);
        REQUIRE(fails(cudaMemcpy(device, at, there + 1, H2D), 1));
        REQUIRE(host_unregister(at) == 0 && cudaMemcpy(device, at, there + 1, H2D) == 0);
        REQUIRE(fails(cudaMemcpy(device, at + n, page + 1, H2D), 1));
        REQUIRE(host_unregister(at + n) == 0 && cudaMemcpy(at, device, n + page, D2H) == 0);
    }
    return HOLDS(munmap(begin, 4 * page) == 0);
}

// The same of memory of a pool and of page-locked memory, and of copies.
bool fails_beyond()
{
    void *stream = nullptr, *pool = nullptr, *pinned = nullptr, *next = nullptr;
    constexpr std::size_t n = 4096;
    char *device = device_memory(n);
    REQUIRE(device && cudaStreamCreate(&stream) == 0 && cudaMallocHost(&pinned, 2 * n) == 0);
    REQUIRE(cudaMallocHost(&next, 2 * n) == 0); // perhaps right behind it
    auto *allocate = preloaded<int(void **, std::size_t, void *)>("cudaMallocAsync");
    using Rows = int(void *, std::size_t, int, std::size_t, std::size_t, void *);
    auto *set_rows = preloaded<Rows>("cudaMemset2DAsync");
    REQUIRE(allocate(&pool, n, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    std::vector<char> pageable(2 * n);
    const auto refused = [](int rc) { return rc == 1 && cudaGetLastError() == 1; };
    for (char *at : {device, static_cast<char *>(pool)}) {
        REQUIRE(cudaMemsetAsync(at, 'a', n, stream) == 0);
        REQUIRE(refused(cudaMemset(at, 'x', n + 1)));
        REQUIRE(refused(cudaMemsetAsync(at + 1, 'x', n, stream)));
        for (void *host : {pinned, static_cast<void *>(pageable.data())}) {
            REQUIRE(cudaMemcpyAsync(at, host, n, H2D, stream) == 0);
            REQUIRE(refused(cudaMemcpyAsync(at, host, n + 1, H2D, stream)));
            REQUIRE(refused(cudaMemcpyAsync(host, at + 1, n, D2H, stream)));
        }
        REQUIRE(refused(cudaMemcpyAsync(at + n / 2, device, n / 2 + 1, D2D, stream)));
        REQUIRE(refused(cudaMemcpyAsync(device, at + n / 2, n / 2 + 1, D2D, stream)));
        REQUIRE(refused(cudaMemcpy(at, pageable.data(), n + 1, H2D)));
        REQUIRE(refused(cudaMemcpy2D(at, 1000, pageable.data(), 1000, 1000, 5, H2D)));
        REQUIRE(refused(set_rows(at, 1000, 'x', 1000, 5, stream)));
    }
    constexpr std::size_t beyond = 16384;
    for (const std::size_t more : {2 * n + 1, beyond}) {
        REQUIRE(refused(cudaMemset(pinned, 'x', more)));
        REQUIRE(refused(cudaMemsetAsync(pinned, 'x', more, stream)));
    }
    REQUIRE(refused(set_rows(pinned, 1000, 'x', 1000, beyond / 1000, stream)));
    char *large = device_memory(2 * beyond);
    REQUIRE(large);
    for (char *at : {static_cast<char *>(pinned), static_cast<char *>(pinned) + n}) {
        const auto there = static_cast<std::size_t>(static_cast<char *>(pinned) + 2 * n - at);
        for (int kind : {int{H2D}, 4}) {
            REQUIRE(cudaMemcpyAsync(large, at, there, kind, stream) == 0);
            REQUIRE(refused(cudaMemcpyAsync(large, at, there + 1, kind, stream)));
            REQUIRE(refused(cudaMemcpyAsync(large, at, beyond, kind, stream)));
            REQUIRE(refused(cudaMemcpy(large, at, beyond, kind)));
        }
        for (int kind : {int{D2H}, 4}) {
            REQUIRE(cudaMemcpy(at, large, there, kind) == 0);
            REQUIRE(refused(cudaMemcpyAsync(at, large, beyond, kind, stream)));
            REQUIRE(refused(cudaMemcpy(at, large, there + 1, kind)));
            REQUIRE(refused(cudaMemcpy2D(at, 1024, large, 1024, 1000, beyond / 1024, kind)));
        }
    }
    REQUIRE(fails_beyond_registered(large) && cudaFree(large) == 0);
    REQUIRE(cudaStreamSynchronize(stream) == 0 && cudaDeviceSynchronize() == 0);
    return HOLDS(cudaFree(pool) == 0 && cudaFree(device) == 0 && cudaFreeHost(pinned) == 0 &&
                 cudaFreeHost(next) == 0);
}

// What an allocation that fails, or memory that is none, leaves in the program's pointer.
template <typename Call> static bool gives_none(int code, Call call)
{
    void *memory = &memory;
    const int rc = call(&memory);
    cudaGetLastError();
    return HOLDS(rc == code && !memory);
}

bool failed_allocations()
{
    using Ask = int(void **, void *, unsigned);
    using Managed = int(void **, std::size_t, unsigned);
    using Ordered = int(void **, std::size_t, void *);
    using FromPool = int(void **, std::size_t, void *, void *);
    using Pitched = int(ibx_cuda_pitched *, ibx_cuda_extent);
    using Layers = int(void **, const int *, std::size_t, std::size_t, unsigned);
    constexpr std::size_t much = std::size_t{1} << 50, rows = 1 << 20, row = much / rows;
    const int channel[5] = {8, 0, 0, 0, 1};
    void *stream = nullptr, *pool = nullptr;
    REQUIRE(cudaStreamCreate(&stream) == 0);
    REQUIRE(preloaded<int(void **, int)>("cudaDeviceGetDefaultMemPool")(&pool, 0) == 0);
    for (int i = 0; i < 2; i++) // by GVirtuS's front end, and then by this library
        REQUIRE(gives_none(2, [&](void **p) { return cudaMalloc(p, much); }));
    REQUIRE(gives_none(1, [&](void **p) { return cudaHostAlloc(p, 64, 0x9999); }));
    auto *managed = preloaded<Managed>("cudaMallocManaged");
    REQUIRE(gives_none(2, [&](void **p) { return managed(p, much, 1); }));
    REQUIRE(gives_none(1, [&](void **p) { return managed(p, 64, 9); }));
    std::size_t pitch = 0;
    auto *of_rows =
        preloaded<int(void **, std::size_t *, std::size_t, std::size_t)>("cudaMallocPitch");
    REQUIRE(gives_none(2, [&](void **p) { return of_rows(p, &pitch, row, rows); }));
    REQUIRE(gives_none(2, [&](void **p) {
        ibx_cuda_pitched planes = {*p, 5, 6, 7};
        const int rc = preloaded<Pitched>("cudaMalloc3D")(&planes, {row, rows / 4, 4});
        *p = planes.at;
        return rc;
    }));
    REQUIRE(gives_none(2, [&](void **p) {
        return preloaded<Layers>("cudaMallocArray")(p, channel, row, rows, 0);
    }));
    REQUIRE(gives_none(2, [&](void **p) { return malloc_array(p, {row, rows / 4, 4}); }));
    auto *ordered = preloaded<Ordered>("cudaMallocAsync");
    REQUIRE(gives_none(2, [&](void **p) { return ordered(p, much, stream); }));
    auto *from_pool = preloaded<FromPool>("cudaMallocFromPoolAsync");
    REQUIRE(gives_none(2, [&](void **p) { return from_pool(p, much, pool, stream); }));
    REQUIRE(gives_none(1, [&](void **p) { return from_pool(p, 9, stream, stream); }));
    int here = 0;
    REQUIRE(gives_none(
        1, [&](void **p) { return preloaded<Ask>("cudaHostGetDevicePointer")(p, &here, 0); }));
    return HOLDS(managed(nullptr, 64, 1) == 1 && ordered(nullptr, 64, stream) == 1 &&
                 cudaMalloc(nullptr, 64) == 1 && cudaHostAlloc(nullptr, 64, 0x9999) == 1);
}

// The last error is the newest one, also behind and before work that was answered before it was
// run, and has succeeded.
bool errors_around_work()
{
    char here = 0;
    auto *unregister = preloaded<int(void *)>("cudaHostUnregister");
    char *device = device_memory(4096);
    const auto theirs = [&] { return cudaFree(&here) != 0; };
    const auto ours = [&] { return unregister(&here) == 713; };
    const auto set = [&] { return cudaMemsetAsync(device, 1, 4096, nullptr) == 0; };
    REQUIRE(device && theirs());
    const int code = cudaGetLastError();
    for (unsigned i = 0; i < 100; i++) {
        REQUIRE(theirs() && set() && set() && ours() && set() && cudaDeviceSynchronize() == 0);
        REQUIRE(cudaGetLastError() == 713 && cudaGetLastError() == 0);
        REQUIRE(set() && ours() && set() && theirs() && set() && cudaDeviceSynchronize() == 0);
        REQUIRE(cudaGetLastError() == code && cudaGetLastError() == 0);
    }
    return HOLDS(cudaFree(device) == 0);
}

// Also where the connection of an earlier thread has broken in between, so that neither a request
// of the library's nor GVirtuS could do it.
bool sets_after_a_loss()
{
    bool lost = false;
    std::thread([&] {
        char *device = device_memory(100);
        for (int fd : Connections::sockets())
            shutdown(fd, SHUT_RDWR);
        lost = cudaDeviceSynchronize() == 999 && cudaMemsetAsync(device, 'a', 100, nullptr) == 999;
    }).join();
    return lost && sets_in_streams();
}

// What <<<>>> pushes stays in the process; the arguments of a kernel may launch other kernels.
bool configurations()
{
    using Push = unsigned(StubDim3, StubDim3, std::size_t, void *);
    using Pop = int(StubDim3 *, StubDim3 *, std::size_t *, void *);
    auto *push = preloaded<Push>("__cudaPushCallConfiguration");
    auto *pop = preloaded<Pop>("__cudaPopCallConfiguration");
    REQUIRE(push && pop);
    int handles[32];
    for (unsigned n : {1u, 2u, 32u}) {
        for (unsigned i = 0; i < n; i++)
            REQUIRE(push({i + 1, 2, 3}, {i + 4, 5, 6}, i + 7, &handles[i]) == 0);
        for (unsigned i = n; i-- > 0;) {
            StubDim3 grid = {}, block = {};
            std::size_t shared = 0;
            void *stream = nullptr;
            REQUIRE(pop(&grid, &block, &shared, &stream) == 0 && stream == &handles[i]);
            REQUIRE(grid.x == i + 1 && grid.y == 2 && grid.z == 3 && shared == i + 7);
            REQUIRE(block.x == i + 4 && block.y == 5 && block.z == 6);
        }
    }
    StubDim3 size = {};
    std::size_t shared = 0;
    void *stream = nullptr;
    REQUIRE(stub_calls() == 0);
    return HOLDS(pop(&size, &size, &shared, &stream) == 52 && cudaGetLastError() == 52);
}

// Memory half of which may not be touched, in threads that have connections of their own.
bool memory_that_may_not_be_touched()
{
    constexpr std::size_t n = 2u << 20;
    char *device = device_memory();
    void *memory = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(device && memory != MAP_FAILED);
    REQUIRE(mprotect(static_cast<char *>(memory) + n / 2, n / 2, PROT_NONE) == 0);
    for (int kind : {static_cast<int>(H2D), static_cast<int>(D2H)}) {
        void *to = kind == H2D ? device : memory, *from = kind == H2D ? memory : device;
        int first = 0, rc = 0;
        std::thread([&] {
            first = cudaDeviceSynchronize();
            rc = cudaMemcpy(to, from, n, kind);
        }).join();
        REQUIRE(first == 0 && rc != 0);
    }
    std::vector<char> host(n);
    return HOLDS(round_trip(device, host.data(), n, 5) && munmap(memory, n) == 0);
}

// More bytes than either side has, and host memory that ends within a copy. CUDA refuses the first,
// and ends the program or refuses the second.
bool memory_that_ends()
{
    constexpr std::size_t mib = 1u << 20;
    char *device = device_memory();
    void *stream = nullptr;
    // At a place where nobody maps anything behind it.
    void *map = mmap(reinterpret_cast<void *>(3ull << 45), 2 * mib, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(device && map != MAP_FAILED && cudaStreamCreate(&stream) == 0);
    auto *host = static_cast<char *>(map);
    REQUIRE(munmap(host + mib, mib) == 0);
    REQUIRE(round_trip(device, host, mib, 1) && round_trip(device, host, mib, 2, stream));
    for (std::size_t n :
         {std::size_t{1} << 40, std::size_t{1} << 47, 2 * device_bytes_each, 2 * mib, mib + 8}) {
        for (int kind : {static_cast<int>(H2D), static_cast<int>(D2H)}) {
            void *to = kind == H2D ? device : host, *from = kind == H2D ? host : device;
            REQUIRE(fails(cudaMemcpy(to, from, n, kind), 1));
            REQUIRE(fails(cudaMemcpyAsync(to, from, n, kind, stream), 1));
            REQUIRE(fails(cudaMemcpy2D(to, n / 2, from, n / 2, n / 2, 2, kind), 1));
            REQUIRE(fails(cudaMemcpy2D(to, n / 4, from, n / 4, n / 8, 8, kind), 1));
        }
    }
    REQUIRE(round_trip(device, host, mib, 3) && round_trip(device, host, mib, 4, stream));
    // What follows the host's side may be mapped, and not permitted: to read, or to write.
    char *small = device_memory(mib);
    for (int kind : {static_cast<int>(H2D), static_cast<int>(D2H)}) {
        REQUIRE(mmap(host + mib, mib, kind == H2D ? PROT_NONE : PROT_READ,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED);
        void *to = kind == H2D ? small : host, *from = kind == H2D ? host : small;
        REQUIRE(fails(cudaMemcpy(to, from, 2 * mib, kind), 1));
        REQUIRE(fails(cudaMemcpyAsync(to, from, 2 * mib, kind, stream), 1));
        REQUIRE(fails(cudaMemcpy2D(to, mib, from, mib, mib / 2, 2, kind), 1));
        REQUIRE(round_trip(small, host, mib, 5) && munmap(host + mib, mib) == 0);
    }
    // The gap behind a last row need not be there.
    REQUIRE(cudaMemcpy2D(device, 4096, host + 4096 - 100, 4096, 100, 256, H2D) == 0);
    return HOLDS(cudaFree(device) == 0 && cudaFree(small) == 0 && munmap(host, mib) == 0);
}
