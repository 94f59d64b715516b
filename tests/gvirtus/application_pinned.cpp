// SPDX-License-Identifier: LGPL-2.1-or-later
#include "tests/gvirtus/application.h"

#include "frontend-glue/session/extensions.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <functional>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

// Pins for the back end's pool of chunks: 8 MiB (scene.cpp) in pieces of 4.
static constexpr unsigned long pool_pins = 2;

namespace
{

// Short allocations are pieces of a few slabs, of which each is pinned once: at first copies of
// short memory were slow, and with more than 256 pieces all later ones.
bool short_memory_shares_pins(char *device)
{
    std::vector<std::pair<char *, std::size_t>> pieces;
    const unsigned long before = stub_remote()->stats().host_pinned;
    for (unsigned i = 0; i < 300; i++) {
        void *memory = nullptr;
        const std::size_t n = 200 + i * 37 % 9000;
        REQUIRE(cudaMallocHost(&memory, n) == 0);
        REQUIRE(reinterpret_cast<std::uintptr_t>(memory) % (n < 4096 ? 512 : 4096) == 0);
        std::memset(memory, static_cast<int>(i), n);
        pieces.emplace_back(static_cast<char *>(memory), n);
    }
    for (unsigned i = 0; i < pieces.size(); i++) {
        const auto [memory, n] = pieces[i];
        const std::vector<char> all(n, static_cast<char>(i));
        REQUIRE(has(memory, all) && cudaMemcpy(device, memory, n, H2D) == 0);
        std::memset(memory, 0, n);
        REQUIRE(cudaMemcpyAsync(memory, device, n, D2H, nullptr) == 0);
        REQUIRE(cudaStreamSynchronize(nullptr) == 0 && has(memory, all));
    }
    for (const auto &piece : pieces)
        REQUIRE(cudaFreeHost(piece.first) == 0);
    return HOLDS(stub_remote()->stats().host_pinned - before <= (over_shm ? 3u : 0u));
}

} // namespace

bool pinned()
{
    void *first = nullptr; // before there is a connection: by GVirtuS
    REQUIRE(cudaMallocHost(&first, 10) == 0 && stub_hosts() == 1);
    char *device = device_memory(), *memory[8] = {}, *none = nullptr;
    REQUIRE(cudaFreeHost(static_cast<char *>(first) + 1) == 1 && cudaGetLastError() == 1);
    REQUIRE(cudaFreeHost(first) == 0 && stub_hosts() == 2);
    REQUIRE(cudaFreeHost(first) == 1 && cudaGetLastError() == 1);
    for (std::size_t i = 0; i < 8; i++) {
        auto **place = reinterpret_cast<void **>(&memory[i]);
        std::size_t n = 1 + i * 1234567;
        REQUIRE((i % 2 ? cudaHostAlloc(place, n, 5) : cudaMallocHost(place, n)) == 0);
        REQUIRE(reinterpret_cast<std::uintptr_t>(memory[i]) % 4096 == 0);
        REQUIRE(round_trip(device + i, memory[i], n, static_cast<unsigned>(i)));
    }
    // Over shm the back end has pinned what it was given, for the GPU to reach it there.
    unsigned long pins = stub_remote()->stats().host_pinned;
    REQUIRE(cudaMemcpy(device, memory[7] + 99, 3000000, H2D) == 0);
    REQUIRE(stub_remote()->stats().host_pinned == pins);
    std::vector<char> ordinary(3000000);
    REQUIRE(round_trip(device, ordinary.data(), ordinary.size(), 3));
    REQUIRE(stub_remote()->stats().host_pinned == pins);
    REQUIRE((pins > 4 + pool_pins) == over_shm);
    REQUIRE(short_memory_shares_pins(device));
    pins = stub_remote()->stats().host_pinned;
    // While it is allocated, not at its first copy.
    char *early = nullptr;
    REQUIRE(cudaMallocHost(reinterpret_cast<void **>(&early), 4 << 20) == 0);
    REQUIRE(stub_remote()->stats().host_pinned == pins + over_shm);
    REQUIRE(round_trip(device, early, 4 << 20, 11));
    REQUIRE(stub_remote()->stats().host_pinned == pins + over_shm);
    REQUIRE(cudaFreeHost(early) == 0);
    // Copies of parts at any offset, by threads with connections of their own; one thread frees the
    // memory.
    bool good[2] = {};
    std::thread one([&] {
        good[0] = true;
        for (unsigned i = 0; i < 10 && good[0]; i++)
            good[0] = round_trip(device_memory(), memory[7] + i * 777, 600000 + i, i);
    });
    std::thread second([&] {
        char *own = device_memory();
        good[1] = true;
        for (unsigned i = 0; i < 10 && good[1]; i++)
            good[1] = round_trip(own, memory[5] + i * 777, 600000 + i, 50 + i);
        good[1] = good[1] && cudaFreeHost(memory[5]) == 0;
    });
    one.join();
    second.join();
    REQUIRE(good[0] && good[1]);
    // Between two of them, on both sides of a copy.
    REQUIRE(round_trip(device, memory[6], 5000000, 9));
    REQUIRE(cudaMemcpy(memory[7] + 13, device, 5000000, D2H) == 0);
    REQUIRE(!std::memcmp(memory[7] + 13, memory[6], 5000000));
    for (std::size_t i : {std::size_t{0}, std::size_t{7}, std::size_t{3}, std::size_t{4}})
        REQUIRE(cudaFreeHost(memory[i]) == 0);
    // Again and again; bytes of freed memory do not turn up in a copy.
    for (unsigned i = 0; i < 40; i++) {
        std::size_t n = 100000 + i * 33333;
        auto **place = reinterpret_cast<void **>(&memory[0]);
        REQUIRE(cudaMallocHost(place, n) == 0);
        REQUIRE(round_trip(device, memory[0], n, 100 + i));
        REQUIRE(cudaFreeHost(memory[0]) == 0);
    }
    REQUIRE(round_trip(device, memory[6], 5000000, 10));
    long before = peak();
    for (unsigned i = 0; i < 40; i++) {
        REQUIRE(cudaMallocHost(reinterpret_cast<void **>(&memory[0]), 8u << 20) == 0);
        std::memset(memory[0], 1, 8u << 20);
        REQUIRE(cudaFreeHost(memory[0]) == 0);
    }
    REQUIRE(peak() - before < 40 << 10);

    REQUIRE(cudaMallocHost(reinterpret_cast<void **>(&none), 0) == 0 && !none);
    REQUIRE(cudaMallocHost(nullptr, 1) == 1);
    REQUIRE(cudaMallocHost(reinterpret_cast<void **>(&none), std::size_t{1} << 60) == 2 && !none);
    REQUIRE(cudaPeekAtLastError() == 2 && cudaGetLastError() == 2 && cudaGetLastError() == 0);
    REQUIRE(cudaHostAlloc(reinterpret_cast<void **>(&none), 1, 8) == 1 && cudaGetLastError() == 1);
    REQUIRE(cudaFreeHost(nullptr) == 0);
    REQUIRE(cudaFreeHost(memory[6] + 4096) == 1 && cudaGetLastError() == 1);
    REQUIRE(round_trip(device, memory[6], 5000000, 11));
    REQUIRE(stub_copies() == 0 && stub_hosts() == 2);
    // Memory that nobody allocated: GVirtuS would give it to free(3).
    char on_stack[16];
    void *heap = std::malloc(10);
    REQUIRE(cudaFreeHost(on_stack) == 1 && cudaFreeHost(heap) == 1 && cudaGetLastError() == 1);
    std::free(heap);
    REQUIRE(stub_hosts() == 2);
    REQUIRE(write(STDOUT_FILENO, "p", 1) == 1); // the driver looks at the back end
    char byte;
    REQUIRE(read(STDIN_FILENO, &byte, 1) == 1);
    return true;
}

// The bytes of an asynchronous copy have come when a later call, in the order of its stream or of
// the legacy one, copies them on.
static bool goes_on(char *device, void *stream, char *memory, std::size_t n,
                    const std::function<int(char *to)> &way,
                    const std::function<bool(char *to)> &there)
{
    static unsigned seed;
    std::vector<char> expected(n);
    random_fill(expected.data(), n, ++seed);
    REQUIRE(cudaMemcpy(device, expected.data(), n, H2D) == 0);
    REQUIRE(cudaMemset(device + 2 * n, 0, 2 * n) == 0 && cudaDeviceSynchronize() == 0);
    std::memset(memory, 'z', n);
    stub_remote()->slow(20000);
    REQUIRE(cudaMemcpyAsync(memory, device, n, D2H, stream) == 0);
    const int rc = way(device + 2 * n);
    stub_remote()->slow(0);
    REQUIRE(rc == 0 && cudaDeviceSynchronize() == 0);
    REQUIRE(!std::memcmp(memory, expected.data(), n));
    return HOLDS(there(device + 2 * n));
}

bool sent_on()
{
    constexpr std::size_t n = 1u << 20;
    static char variable[1];
    char *device = device_memory(), *memory = nullptr;
    void *stream;
    std::vector<char> copied(n);
    REQUIRE(device && cudaStreamCreate(&stream) == 0);
    REQUIRE(cudaMallocHost(reinterpret_cast<void **>(&memory), n) == 0);
    using Planes = ibx_cuda_memcpy3d;
    const auto planes = [](void *to, const void *from, int kind) {
        Planes p = {};
        p.from = {const_cast<void *>(from), n / 4, n / 4, 4};
        p.to = {to, n / 4, n / 4, 4};
        p.extent = {n / 4 - 100, 4, 1};
        p.kind = kind;
        return preloaded<int(const Planes *)>("cudaMemcpy3D")(&p);
    };
    const auto all = [&](char *to) { return device_has(to, memory, n); };
    const auto rows = [&](char *to) {
        bool good = true;
        for (std::size_t i = 0; i < 4; i++)
            good = good && device_has(to + i * (n / 4), memory + i * (n / 4), n / 4 - 100);
        return good;
    };
    const auto on_host = [&](char *) {
        return !std::memcmp(copied.data(), memory, n / 4 - 100) &&
               !std::memcmp(&copied[3 * (n / 4)], memory + 3 * (n / 4), n / 4 - 100);
    };
    const auto symbol = reinterpret_cast<std::uint64_t>(variable);
    const bool symbols =
        stub_remote()->register_var(symbol, reinterpret_cast<std::uint64_t>(device + 2 * n), n);
    const struct {
        const char *name;
        std::function<int(char *)> way;
        std::function<bool(char *)> there;
    } ways[] = {
        {"plain", [&](char *to) { return cudaMemcpy(to, memory, n, H2D); }, all},
        {"rows",
         [&](char *to) { return cudaMemcpy2D(to, n / 4, memory, n / 4, n / 4 - 100, 4, H2D); },
         rows},
        {"rows in the stream",
         [&](char *to) {
             return cudaMemcpy2DAsync(to, n / 4, memory, n / 4, n / 4 - 100, 4, H2D, stream);
         },
         rows},
        {"few rows", // in a message
         [&](char *to) { return cudaMemcpy2D(to, 40, memory, 50, 30, 4, H2D); },
         [&](char *to) {
             return device_has(to, memory, 30) && device_has(to + 120, memory + 150, 30);
         }},
        {"rows far apart", // in bands
         [&](char *to) { return cudaMemcpy2D(to, n / 4, memory, n / 4, n / 10, 4, H2D); },
         [&](char *to) {
             return device_has(to, memory, n / 10) &&
                    device_has(to + 3 * (n / 4), memory + 3 * (n / 4), n / 10);
         }},
        {"planes",
         [&](char *to) {
             return taken ? planes(to, memory, H2D)
                          : cudaMemcpy2D(to, n / 4, memory, n / 4, n / 4 - 100, 4, H2D);
         },
         rows},
        {"planes on the host", [&](char *) { return planes(copied.data(), memory, 0); }, on_host},
        {"a variable in the stream",
         [&](char *) {
             using Copy = int(const void *, const void *, std::size_t, std::size_t, int, void *);
             return symbols ? preloaded<Copy>("cudaMemcpyToSymbolAsync")(variable, memory, n, 0,
                                                                         H2D, stream)
                            : 0;
         },
         [&](char *to) { return !symbols || all(to); }},
        {"a variable",
         [&](char *) { return symbols ? cudaMemcpyToSymbol(variable, memory, n, 0, H2D) : 0; },
         [&](char *to) { return !symbols || all(to); }},
    };
    bool good = true;
    for (const auto &each : ways) {
        if (goes_on(device, stream, memory, n, each.way, each.there))
            continue;
        std::fprintf(stderr, "%s\n", each.name);
        good = false;
    }
    REQUIRE(cudaFreeHost(memory) == 0 && cudaFree(device) == 0);
    return HOLDS(good);
}

// While this thread captures, another one frees memory that was copied from: the capture goes on,
// and the first free after it gives the memory back.
bool freed_beside_captures()
{
    void *stream = nullptr, *graph = nullptr, *memory = nullptr, *other = nullptr;
    char *device = device_memory();
    int (*is_capturing)(void *, int *) = nullptr;
    int rc = -1, status = 0;
    *reinterpret_cast<void **>(&is_capturing) = dlsym(RTLD_DEFAULT, "cudaStreamIsCapturing");
    REQUIRE(cudaMallocHost(&memory, device_bytes_each) == 0 && cudaStreamCreate(&stream) == 0);
    REQUIRE(cudaStreamBeginCapture(stream, 1) == 0);
    std::thread([&] {
        void *own = reinterpret_cast<void *>(2);
        rc = cudaMallocHost(&other, device_bytes_each);
        rc = rc ? rc : cudaMemcpyAsync(device, other, device_bytes_each, H2D, own);
        rc = rc ? rc : cudaStreamSynchronize(own);
        rc = rc ? rc : cudaFreeHost(other);
    }).join();
    REQUIRE(rc == 0 && is_capturing(stream, &status) == 0 && status == 1);
    REQUIRE(cudaStreamEndCapture(stream, &graph) == 0 && graph);
    REQUIRE(msync(other, 4096, MS_ASYNC) == 0); // it is mapped yet
    REQUIRE(cudaFreeHost(memory) == 0);         // over shm its addresses stay mapped
    REQUIRE(over_shm || msync(other, 4096, MS_ASYNC) != 0);
    return HOLDS(cudaStreamDestroy(stream) == 0);
}

// CUDA goes by the addresses, if it knows both.
bool sides_are_confused(char *device, char *page_locked)
{
    std::memset(page_locked, 7, 1000);
    REQUIRE(cudaMemcpy(device, page_locked, 1000, D2H) == 0);
    std::memset(page_locked, 8, 1000);
    REQUIRE(device_has(device, std::vector<char>(1000, 7).data(), 1000));
    REQUIRE(cudaMemcpy(page_locked, device, 1000, H2D) == 0);
    return HOLDS(page_locked[0] == 7 && page_locked[999] == 7);
}

// The same of copies that call all memory the device's; and of managed memory, by each kind that
// names a side of each, or the wrong ones.
bool host_is_called_device(char *device, char *page_locked, char *registered)
{
    char *managed = nullptr;
    void *stream = nullptr;
    REQUIRE(preloaded<int(char **, std::size_t, unsigned)>("cudaMallocManaged")(&managed, 1000,
                                                                                1) == 0);
    char *const all[] = {device, page_locked, registered, managed};
    REQUIRE(cudaStreamCreate(&stream) == 0);
    for (char *to : all) {
        for (char *from : all) {
            const bool any_kind = to == managed || from == managed;
            for (int i = 0; i < (any_kind ? 12 : 4) && to != from; i++) {
                const int how = i % 4, kind = i < 4 ? D2D : i < 8 ? H2D : D2H;
                REQUIRE(cudaMemset(device, 'd', 1000) == 0);
                std::memset(page_locked, 'p', 1000);
                std::memset(registered, 'r', 1000);
                std::memset(managed, 'm', 1000);
                REQUIRE(copy_as(how, to, from, kind, stream) == 0);
                // A copy within the device does not wait, and need not be in `stream`.
                REQUIRE(cudaDeviceSynchronize() == 0 && cudaGetLastError() == 0);
                const char letter = from == device        ? 'd'
                                    : from == page_locked ? 'p'
                                    : from == managed     ? 'm'
                                                          : 'r';
                const std::vector<char> expected(how == 3 ? 90 : 1000, letter);
                REQUIRE(to == device ? device_has(device, expected.data(), expected.size())
                                     : !std::memcmp(to, expected.data(), expected.size()));
            }
        }
    }
    return HOLDS(cudaStreamDestroy(stream) == 0 && cudaFree(managed) == 0);
}

bool after()
{
    unsigned long pins;
    stub_remote()->slow(0);
    char *device = device_memory(), *memory = nullptr;
    do { // the pool of chunks stays, where there is one
        pins = stub_remote()->stats().host_pins;
    } while (pins > pool_pins);
    REQUIRE(cudaMallocHost(reinterpret_cast<void **>(&memory), device_bytes_each) == 0);
    REQUIRE(round_trip(device, memory, device_bytes_each, 6));
    REQUIRE(stub_remote()->stats().unpinned_async == 0);
    return HOLDS(cudaFreeHost(memory) == 0);
}

bool registrations()
{
    char *device = device_memory();
    std::vector<char> memory(3000000);
    char *at = &memory[100];
    REQUIRE(host_register(at, 2000000, 0) == 0);
    REQUIRE(round_trip(device, at, 2000000, 1));
    REQUIRE(round_trip(device, memory.data(), memory.size(), 2));
    REQUIRE(host_register(at, 2000000, 0) == 712);
    REQUIRE(host_register(at + 1999999, 5, 0) == 712);
    REQUIRE(host_register(at - 10, 11, 0) == 712);
    REQUIRE(host_register(at + 5, 5, 0) == 712);
    REQUIRE(host_register(at - 10, 2500000, 0) == 712);
    REQUIRE(host_register(at - 10, 10, 1) == 0);
    REQUIRE(host_register(at + 2000000, 10, 0) == 0);
    REQUIRE(cudaGetLastError() == 712 && cudaGetLastError() == 0);
    REQUIRE(fails(host_unregister(at + 1), 1));
    REQUIRE(host_unregister(at) == 0 && host_unregister(at) == 713);
    REQUIRE(host_register(at, 2000000, 0) == 0);
    REQUIRE(host_unregister(at + 2000000) == 0 && host_unregister(at) == 0 &&
            host_unregister(at - 10) == 0);
    REQUIRE(host_register(nullptr, 1, 0) == 1 && host_register(at, 0, 0) == 1 &&
            host_register(at, 1, 64) == 1 && host_register(at, 1, 4) == 1);
    REQUIRE(host_register(at, SIZE_MAX, 0) == 1);
    REQUIRE(round_trip(device, memory.data(), memory.size(), 3));
    void *page_locked;
    REQUIRE(cudaMallocHost(&page_locked, 100000) == 0);
    REQUIRE(fails(host_register(page_locked, 10, 0), 1)); // as CUDA does (H200, driver 580)
    REQUIRE(sides_are_confused(device, static_cast<char *>(page_locked)));
    REQUIRE(host_register(at, 1000, 0) == 0);
    REQUIRE(host_is_called_device(device, static_cast<char *>(page_locked), at));
    REQUIRE(host_unregister(at) == 0);
    REQUIRE(host_unregister(page_locked) == 713);
    return HOLDS(cudaFreeHost(page_locked) == 0);
}

// Memory that was registered and unmapped is in the way of no page-locked memory at its address.
// (It is in the way of copies of pageable memory there, as natively: fails_beyond_registered().)
bool stale_registration()
{
    constexpr std::size_t n = 3u << 20;
    char *device = device_memory();
    void *page_locked;
    // All places where the allocator could put it now.
    void *memory = mmap(nullptr, 8 * n, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    char *bytes = static_cast<char *>(memory);
    for (std::size_t i = 0; i < 8; i++)
        REQUIRE(host_register(bytes + i * n, n, 0) == 0);
    REQUIRE(munmap(memory, 8 * n) == 0);
    REQUIRE(cudaMallocHost(&page_locked, n) == 0);
    for (std::size_t i = 0; i < 8; i++) { // the rest
        const int rc = host_unregister(bytes + i * n);
        REQUIRE(rc == 0 || fails(rc, 713));
    }
    REQUIRE(round_trip(device, static_cast<char *>(page_locked), n, 1));
    REQUIRE(host_unregister(page_locked) == 713);
    REQUIRE(cudaFreeHost(page_locked) == 0);
    REQUIRE(stub_hosts() == 0);
    return true;
}

namespace
{

struct Place {
    int type, id;
};
struct PoolOf {
    int allocation, handles;
    Place location;
    void *security;
    std::size_t most;
    char rest[56];
};
struct Access {
    Place location;
    int flags;
};

std::uint64_t number_of(void *pool, int attribute)
{
    std::uint64_t found = ~std::uint64_t{0};
    const int rc =
        preloaded<int(void *, int, void *)>("cudaMemPoolGetAttribute")(pool, attribute, &found);
    return rc ? ~std::uint64_t{0} : found;
}

int access_of(void *pool, Place place)
{
    int flags = -1;
    const auto get = preloaded<int(int *, void *, const Place *)>("cudaMemPoolGetAccess");
    return get(&flags, pool, &place) ? -1 : flags;
}

struct HostPools {
    int (*make)(void **,
                const PoolOf *) = preloaded<int(void **, const PoolOf *)>("cudaMemPoolCreate");
    int (*end)(void *) = preloaded<int(void *)>("cudaMemPoolDestroy");
    int (*allocate)(void **, std::size_t, void *, void *) =
        preloaded<int(void **, std::size_t, void *, void *)>("cudaMallocFromPoolAsync");
    int (*give_back)(void *, void *) = preloaded<int(void *, void *)>("cudaFreeAsync");
    int (*set)(void *, int,
               const void *) = preloaded<int(void *, int, const void *)>("cudaMemPoolSetAttribute");
    int (*query)(void *) = preloaded<int(void *)>("cudaStreamQuery");
    void *stream = nullptr, *other = nullptr;
};
constexpr std::size_t of_pool = 5000, rounded = 5120; // bytes that are asked for, and that it has
constexpr std::size_t pool_most = 32u << 20;          // to which a lower limit is rounded up

// Memory of the pool is page-locked, and copies use it in the order of their streams.
bool host_pool_is_page_locked(const HostPools &h, char *a, char *b)
{
    char *device = device_memory(of_pool);
    const std::vector<char> bytes = random_bytes(of_pool, 31);
    std::memcpy(a, bytes.data(), of_pool);
    REQUIRE(cudaMemcpyAsync(device, a, of_pool, H2D, h.stream) == 0);
    REQUIRE(cudaMemcpyAsync(b, device, of_pool, D2H, h.stream) == 0);
    REQUIRE(cudaStreamSynchronize(h.stream) == 0 && cudaFree(device) == 0);
    return HOLDS(has(b, bytes) && fails(cudaFreeHost(a), 1));
}

// What a stream has freed it gets again. Another one that gets it waits for the work before its
// end, unless the pool forbids that.
bool host_pool_is_used_again(const HostPools &h, void *pool, void *a)
{
    const auto call = preloaded<int(void *, void (*)(void *), void *)>("cudaLaunchHostFunc");
    const auto waits = [](void *flag) {
        while (!*static_cast<std::atomic<int> *>(flag))
            sched_yield();
    };
    std::atomic<int> gate{0};
    void *c = nullptr, *d = nullptr;
    REQUIRE(call(h.stream, waits, &gate) == 0 && h.give_back(a, h.stream) == 0);
    REQUIRE(fails(h.give_back(a, h.stream), 1) && fails(cudaFreeHost(a), 1));
    REQUIRE(number_of(pool, 7) == of_pool && number_of(pool, 5) == 2 * rounded);
    REQUIRE(h.allocate(&d, of_pool, pool, h.stream) == 0 && d == a);
    REQUIRE(h.give_back(d, h.stream) == 0);
    REQUIRE(h.allocate(&c, pool_most - 2 * rounded, pool, h.other) == 0 && h.query(h.other) == 0);
    const int no = 0, yes = 1;
    REQUIRE(h.set(pool, 3, &no) == 0);
    REQUIRE(fails(h.allocate(&d, of_pool, pool, h.other), 2)); // the pool has no more
    REQUIRE(h.set(pool, 3, &yes) == 0 && h.allocate(&d, of_pool, pool, h.other) == 0 && d == a);
    REQUIRE(h.query(h.other) == 600);
    gate = 1;
    REQUIRE(cudaStreamSynchronize(h.other) == 0);
    return HOLDS(h.give_back(d, h.other) == 0 && h.give_back(c, h.other) == 0);
}

// A wait for the device; the threshold; a trim.
bool host_pool_gives_back(const HostPools &h, void *pool)
{
    const auto trim = preloaded<int(void *, std::size_t)>("cudaMemPoolTrimTo");
    const std::uint64_t keep = 2 * rounded, none = 0, wrong = 1;
    REQUIRE(h.set(pool, 4, &keep) == 0 && cudaDeviceSynchronize() == 0);
    REQUIRE(number_of(pool, 5) == 2 * rounded && number_of(pool, 7) == of_pool);
    REQUIRE(number_of(pool, 6) == pool_most);
    REQUIRE(number_of(pool, 8) == pool_most - 2 * rounded + 2 * of_pool);
    REQUIRE(h.set(pool, 6, &none) == 0 && number_of(pool, 6) == 2 * rounded);
    REQUIRE(fails(h.set(pool, 6, &wrong), 1) && fails(h.set(pool, 5, &none), 1));
    return HOLDS(trim(pool, 0) == 0 && number_of(pool, 5) == rounded);
}

// Who has access; the current pool of the host. *standard: its default pool.
bool host_pool_is_found(const HostPools &h, void *pool, void **standard)
{
    const Access device_gets = {{1, 0}, 3}, host_loses = {{2, 0}, 0};
    const auto allow = preloaded<int(void *, const Access *, std::size_t)>("cudaMemPoolSetAccess");
    REQUIRE(access_of(pool, {1, 0}) == 0 && access_of(pool, {2, 0}) == 3);
    REQUIRE(allow(pool, &device_gets, 1) == 0 && access_of(pool, {1, 0}) == 3);
    REQUIRE(fails(allow(pool, &host_loses, 1), 1));
    const Place host = {2, 0};
    void *found = nullptr;
    using Get = int(void **, const Place *, int);
    REQUIRE(preloaded<Get>("cudaMemGetDefaultMemPool")(standard, &host, 1) == 0 && *standard);
    REQUIRE(preloaded<int(const Place *, int, void *)>("cudaMemSetMemPool")(&host, 1, pool) == 0);
    REQUIRE(preloaded<Get>("cudaMemGetMemPool")(&found, &host, 1) == 0 && found == pool);
    REQUIRE(fails(preloaded<int(int, void *)>("cudaDeviceSetMemPool")(0, pool), 1));
    REQUIRE(fails(h.end(*standard), 1) && h.end(pool) == 0);
    REQUIRE(preloaded<Get>("cudaMemGetMemPool")(&found, &host, 1) == 0);
    return HOLDS(found == *standard);
}

// Streams that come and go, and the stream of a thread, do not let a pool grow on and on. cudaFree
// is another end of its memory.
bool host_pool_stays_small(const HostPools &h, void *pool)
{
    void *memory = nullptr, *passing = nullptr, *const own = reinterpret_cast<void *>(2);
    for (int i = 0; i < 40; i++) {
        REQUIRE(cudaStreamCreate(&passing) == 0);
        REQUIRE(h.allocate(&memory, of_pool, pool, passing) == 0);
        REQUIRE(h.give_back(memory, passing) == 0 && cudaStreamDestroy(passing) == 0);
        REQUIRE(h.allocate(&memory, of_pool, pool, own) == 0 && h.give_back(memory, own) == 0);
    }
    REQUIRE(number_of(pool, 6) == 16 * rounded);
    REQUIRE(h.allocate(&memory, of_pool, pool, nullptr) == 0);
    REQUIRE(cudaFree(memory) == 0 && number_of(pool, 7) == 0 && cudaDeviceSynchronize() == 0);
    return HOLDS(number_of(pool, 5) == 0);
}

// A pool ends while one thread frees its memory, and another one's wait gives memory of it back.
bool host_pool_ends_beside_others(const HostPools &h)
{
    const PoolOf of = {1, 0, {2, 0}, nullptr, 0, {}};
    std::atomic<void *> handed{nullptr};
    std::atomic<bool> over{false}, freed{true}, waited{true};
    std::thread frees([&] {
        while (!over || handed) {
            void *memory = handed;
            if (!memory) {
                sched_yield();
            } else {
                freed = h.give_back(memory, h.other) == 0 && freed;
                handed = nullptr;
            }
        }
    });
    std::thread waits([&] {
        while (!over)
            waited = cudaDeviceSynchronize() == 0 && waited;
    });
    bool good = true;
    for (int i = 0; i < 100 && good; i++) {
        void *pool = nullptr, *first = nullptr, *second = nullptr;
        good = h.make(&pool, &of) == 0 && h.allocate(&first, of_pool, pool, h.stream) == 0 &&
               h.allocate(&second, of_pool, pool, h.stream) == 0 &&
               h.give_back(first, h.stream) == 0;
        handed = second;
        good = h.end(pool) == 0 && good;
        while (handed)
            sched_yield();
    }
    over = true;
    frees.join();
    waits.join();
    return HOLDS(good && freed && waited);
}

// Threads with streams of their own get memory that no other one has, while the pool is trimmed.
bool host_pool_has_threads(const HostPools &h, void *pool)
{
    const auto trim = preloaded<int(void *, std::size_t)>("cudaMemPoolTrimTo");
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 1; t <= 4; t++) {
        threads.emplace_back([&, t] {
            void *stream = nullptr, *memory = nullptr;
            wrong += cudaStreamCreate(&stream) != 0;
            for (std::size_t i = 0; i < 200; i++) {
                const std::size_t n = 1 + i * 977 % 9000;
                wrong += h.allocate(&memory, n, pool, stream) != 0;
                wrong += cudaStreamSynchronize(stream) != 0;
                std::memset(memory, t, n);
                sched_yield();
                wrong +=
                    !has(static_cast<char *>(memory), std::vector<char>(n, static_cast<char>(t)));
                wrong += h.give_back(memory, i % 3 ? stream : nullptr) != 0;
                wrong += i % 50 == 0 && trim(pool, 0) != 0;
            }
            wrong += cudaStreamDestroy(stream) != 0;
        });
    }
    for (std::thread &thread : threads)
        thread.join();
    REQUIRE(wrong == 0 && number_of(pool, 7) == 0 && cudaDeviceSynchronize() == 0);
    return HOLDS(number_of(pool, 5) == 0);
}

// A forked child has none of its parent's pools, and counts what it gets itself.
bool host_pool_is_the_parents(const HostPools &h, void *standard)
{
    void *memory = nullptr;
    REQUIRE(h.allocate(&memory, of_pool, standard, h.stream) == 0);
    REQUIRE(number_of(standard, 7) == of_pool);
    const pid_t child = fork();
    if (!child)
        _exit(number_of(standard, 5) || number_of(standard, 7) || number_of(standard, 8));
    int status = 1;
    REQUIRE(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    return HOLDS(h.give_back(memory, h.stream) == 0 && cudaDeviceSynchronize() == 0);
}

// Memory of one device whose last end is in a stream of the other one, and what a reset takes:
// memory of the device that is reset, and its events.
bool host_pool_has_devices(const HostPools &h, void *pool)
{
    void *others = nullptr, *memory = nullptr, *lost = nullptr, *unused = nullptr, *again = nullptr;
    REQUIRE(cudaSetDevice(1) == 0 && cudaStreamCreate(&others) == 0);
    REQUIRE(h.allocate(&memory, of_pool, pool, others) == 0 && cudaSetDevice(0) == 0);
    REQUIRE(h.give_back(memory, others) == 0); // device 0 has no event for that stream
    REQUIRE(h.allocate(&again, of_pool, pool, h.stream) == 0 && again == memory);
    REQUIRE(h.allocate(&lost, of_pool, pool, h.stream) == 0 && lost != memory);
    REQUIRE(h.allocate(&unused, of_pool, pool, h.stream) == 0);
    REQUIRE(h.give_back(again, h.stream) == 0 && h.give_back(unused, h.stream) == 0);
    REQUIRE(cudaDeviceReset() == 0);
    REQUIRE(number_of(pool, 5) == rounded && number_of(pool, 7) == 0);
    REQUIRE(fails(h.give_back(lost, nullptr), 1) && cudaSetDevice(1) == 0);
    REQUIRE(h.allocate(&again, of_pool, pool, others) == 0 && again == memory);
    std::memset(again, 8, of_pool);
    return HOLDS(h.give_back(again, others) == 0 && cudaStreamDestroy(others) == 0);
}

} // namespace

bool pools_of_host()
{
    HostPools h;
    PoolOf of = {1, 0, {2, 0}, nullptr, 1, {}};
    void *pool = nullptr, *standard = nullptr, *a = nullptr, *b = nullptr;
    void *c = &h;
    REQUIRE(cudaStreamCreate(&h.stream) == 0 && cudaStreamCreate(&h.other) == 0);
    REQUIRE(h.make(&pool, &of) == 0);
    of.handles = 1; // no other process can have it
    REQUIRE(fails(h.make(&a, &of), 1));
    REQUIRE(h.allocate(&a, of_pool, pool, h.stream) == 0 && a);
    REQUIRE(h.allocate(&b, of_pool, pool, h.stream) == 0 && a != b);
    REQUIRE(number_of(pool, 5) == 2 * rounded && number_of(pool, 7) == 2 * of_pool);
    REQUIRE(h.allocate(&c, 0, pool, h.stream) == 0 && !c);
    REQUIRE(host_pool_is_page_locked(h, static_cast<char *>(a), static_cast<char *>(b)));
    REQUIRE(host_pool_is_used_again(h, pool, a) && host_pool_gives_back(h, pool));
    std::memset(b, 7, of_pool);
    REQUIRE(host_pool_is_found(h, pool, &standard));
    // Memory outlives its pool.
    REQUIRE(fails(h.allocate(&a, of_pool, pool, h.stream), 1));
    REQUIRE(has(static_cast<char *>(b), std::vector<char>(of_pool, 7)));
    REQUIRE(h.give_back(b, h.stream) == 0 && fails(h.give_back(b, h.stream), 1));
    REQUIRE(host_pool_stays_small(h, standard) && host_pool_ends_beside_others(h));
    REQUIRE(host_pool_has_threads(h, standard) && host_pool_is_the_parents(h, standard));
    REQUIRE(host_pool_has_devices(h, standard));
    return HOLDS(cudaGetLastError() == 0);
}
