// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Managed memory: the preload keeps this process's bytes and the device's the same.
#include "tests/gvirtus/application.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>
#include <sys/mman.h>
#include <unistd.h>

namespace
{

constexpr std::size_t K = 1024, page = 4096;

int malloc_managed(void **address, std::size_t n, unsigned flags = 1)
{
    return preloaded<int(void **, std::size_t, unsigned)>("cudaMallocManaged")(address, n, flags);
}

} // namespace

char *managed_memory(std::size_t n)
{
    void *address = nullptr;
    return malloc_managed(&address, n) ? nullptr : static_cast<char *>(address);
}

namespace
{

// Kernels read what the host wrote before, and the host what they have written, without a call.
bool kernels_and_host()
{
    constexpr std::size_t n = 700 * K + 100;
    char *a = managed_memory(n), *b = managed_memory(n);
    void *stream = nullptr; // the legacy stream does not wait for it
    REQUIRE(a && b && cudaStreamCreateWithFlags(&stream, 1) == 0);
    for (char byte : {a[0], a[n - 1], b[n / 2]})
        REQUIRE(byte == 0);
    for (unsigned i = 0; i < 6; i++) {
        const std::vector<char> bytes = random_bytes(n, i);
        std::memcpy(a, bytes.data(), n);
        if (i % 4 == 1)
            stub_remote()->slow(10000);
        REQUIRE(stub_launch(b, a, n, i % 2 ? stream : nullptr) == 0);
        if (i % 3 == 1)
            REQUIRE(cudaDeviceSynchronize() == 0);
        REQUIRE(has(b, bytes) && has(a, bytes));
        stub_remote()->slow(0);
        // Bytes of one block from both sides.
        a[i * 1000] = 'x';
        b[7] = 'y';
        REQUIRE(stub_launch(a + 100, b, 8, stream) == 0);
        REQUIRE(a[107] == 'y' && a[99] == bytes[99] && b[8] == bytes[8]);
        REQUIRE(a[i * 1000] == 'x');
    }
    return HOLDS(cudaFree(a) == 0 && cudaFree(b) == 0);
}

// "r--" and the like, of the mapping around the address.
std::string access_of(const void *address)
{
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        unsigned long begin = 0, end = 0;
        char access[5] = "";
        if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, access) == 3 && at >= begin &&
            at < end)
            return std::string(access, 3);
    }
    return "";
}

constexpr std::size_t part = 64 * K;

// Touches blocks one after the other, up or down; returns how many had not this access before.
unsigned touched(char *memory, std::size_t n, bool down, bool writes)
{
    unsigned others = 0;
    for (std::size_t i = 0; i < n / part; i++) {
        char *at = memory + (down ? n / part - 1 - i : i) * part;
        others += access_of(at) != (writes ? "rw-" : "r--");
        if (writes)
            *at = 'z';
        else
            others += 100u * (*const_cast<volatile char *>(at) != 'x');
    }
    return others;
}

// Ever more blocks change at once if a program goes through memory, up or down.
bool goes_through()
{
    constexpr std::size_t n = 64 * part;
    char *a = managed_memory(n), *b = managed_memory(n);
    REQUIRE(a && b);
    for (const bool down : {false, true}) {
        std::memset(a, 'x', n);
        REQUIRE(stub_launch(b, a, n, nullptr) == 0);
        REQUIRE(touched(b, n, down, false) < 10 && touched(b, n, down, true) < 10);
        REQUIRE(stub_launch(b, a, n, nullptr) == 0);
        REQUIRE(touched(b, n, down, true) < 10);
        REQUIRE(stub_launch(a, b, n, nullptr) == 0);
        for (std::size_t i = 0; i < n; i++)
            REQUIRE(a[i] == (i % part ? 'x' : 'z'));
    }
    return HOLDS(cudaFree(a) == 0 && cudaFree(b) == 0);
}

} // namespace

// What the host has only read is not copied back to the device, also if several threads read it
// and one fetches it for all.
bool managed_reads()
{
    volatile char *a = managed_memory(page), *b = managed_memory(page);
    REQUIRE(a && b);
    a[0] = 'x';
    stub_remote()->slow(50000);
    REQUIRE(stub_launch(const_cast<char *>(b), const_cast<char *>(a), page, nullptr) == 0);
    std::vector<std::thread> readers;
    std::atomic<unsigned> right = 0;
    for (unsigned i = 0; i < 6; i++)
        readers.emplace_back([&] { right += b[0] == 'x'; });
    for (std::thread &reader : readers)
        reader.join();
    REQUIRE(right == 6 && access_of(const_cast<char *>(b)) == "r--");
    b[1] = 'y';
    REQUIRE(access_of(const_cast<char *>(b)) == "rw-");
    stub_remote()->slow(0); // a call after which the device may have written
    REQUIRE(cudaFree(const_cast<char *>(a)) == 0 && cudaFree(const_cast<char *>(b)) == 0);
    return HOLDS(goes_through());
}

namespace
{

// While another program captures, the device cannot be waited for.
bool waits_that_fail()
{
    constexpr std::size_t n = 100 * K;
    char *a = managed_memory(n), *b = managed_memory(n);
    void *stream = nullptr;
    const std::vector<char> bytes = random_bytes(n, 5);
    REQUIRE(a && b && cudaStreamCreateWithFlags(&stream, 1) == 0);
    std::memcpy(a, bytes.data(), n);
    stub_remote()->slow(20000);
    REQUIRE(stub_launch(b, a, n, stream) == 0);
    stub_remote()->inject("cuCtxSynchronize", 1, 900, false);
    REQUIRE(has(b, bytes));
    stub_remote()->slow(0);
    return HOLDS(cudaFree(a) == 0 && cudaFree(b) == 0);
}

using kinds = std::initializer_list<int>;

bool copies_and_sets()
{
    constexpr std::size_t n = 300 * K;
    char *m = managed_memory(n), *other = managed_memory(n), *device = device_memory(n);
    std::vector<char> bytes = random_bytes(n, 7), back(n);
    REQUIRE(m && other);
    for (int kind : kinds{H2D, DEFAULT}) {
        std::memset(m, kind, n);
        REQUIRE(cudaMemcpy(m + 5, bytes.data(), n - 5, kind) == 0);
        REQUIRE(m[4] == kind && !std::memcmp(m + 5, bytes.data(), n - 5));
    }
    REQUIRE(cudaMemcpy(m, bytes.data(), n, 0) == 0 && has(m, bytes)); // on the host
    for (int kind : kinds{D2H, DEFAULT, 0}) {
        m[kind] = bytes[std::size_t(kind)] = 'z';
        std::fill(back.begin(), back.end(), 'x');
        REQUIRE(cudaMemcpy(back.data(), m, n, kind) == 0 && back == bytes);
    }
    for (int kind : kinds{H2D, D2D, DEFAULT}) { // it is the host's as well as the device's
        m[9] = bytes[9] = static_cast<char>(kind);
        REQUIRE(cudaMemcpy(device, m, n, kind) == 0 && cudaDeviceSynchronize() == 0);
        REQUIRE(device_has(device, bytes.data(), n));
    }
    for (int kind : kinds{D2H, D2D, DEFAULT, 0}) {
        std::memset(other, 1, n);
        REQUIRE(cudaMemcpyAsync(other, kind ? device : m, n, kind, nullptr) == 0);
        REQUIRE(has(other, bytes));
    }
    REQUIRE(cudaMemset(m + 1000, 3, 70 * K) == 0 && m[999] == bytes[999] && m[1000] == 3);
    REQUIRE(m[1000 + 70 * K] == bytes[1000 + 70 * K] && m[999 + 70 * K] == 3);
    REQUIRE(cudaMemcpy2D(m, 100, bytes.data(), 50, 50, 7, H2D) == 0);
    REQUIRE(!std::memcmp(m + 600, bytes.data() + 300, 50) && m[50] == bytes[50]);
    // Copies with other memory: bytes that are here stay here.
    REQUIRE(cudaMemcpy(back.data(), device, n, D2H) == 0 && back == bytes);
    return HOLDS(cudaFree(m) == 0 && cudaFree(other) == 0 && cudaFree(device) == 0);
}

// Managed memory ends in the order of a stream: nothing of it is left here. Whoever gets the
// address next gets other memory.
bool freed_in_stream()
{
    constexpr std::size_t n = 100 * K;
    auto *give_back = preloaded<int(void *, void *)>("cudaFreeAsync");
    char *other = managed_memory(n);
    const std::vector<char> bytes = random_bytes(n, 9);
    void *stream = nullptr, *graph = nullptr;
    REQUIRE(other && cudaStreamCreateWithFlags(&stream, 1) == 0);
    for (int i = 0; i < 20; i++) {
        char *m = managed_memory(n), *device = nullptr;
        REQUIRE(m);
        std::memcpy(m, bytes.data(), n);
        stub_remote()->slow(1000);
        REQUIRE(stub_launch(other, m, n, stream) == 0);
        REQUIRE(fails(give_back(m + 8, stream), 1) && give_back(m, stream) == 0);
        stub_remote()->slow(0);
        unsigned char resident = 0;
        REQUIRE(has(other, bytes) && mincore(m, page, &resident) != 0);
        device = device_memory(n);
        REQUIRE(device && cudaFree(device) == 0);
    }
    REQUIRE(cudaStreamBeginCapture(stream, 0) == 0 && fails(give_back(other, stream), 1));
    REQUIRE(cudaStreamEndCapture(stream, &graph) == 0);
    return HOLDS(give_back(other, nullptr) == 0 && fails(give_back(other, nullptr), 1));
}

// Each thread with a stream and memory of its own, as with cudaStreamAttachMemAsync.
bool threads_of_streams()
{
    std::vector<std::thread> threads;
    std::atomic<int> good{0};
    auto *attach =
        preloaded<int(void *, void *, std::size_t, unsigned)>("cudaStreamAttachMemAsync");
    for (unsigned t = 0; t < 4; t++) {
        threads.emplace_back([&good, attach, t] {
            constexpr std::size_t n = 130 * K;
            void *stream = nullptr;
            bool right = cudaStreamCreateWithFlags(&stream, 1) == 0;
            char *a = managed_memory(n), *b = managed_memory(n);
            right = right && a && b && attach(stream, a, 0, 4) == 0;
            for (unsigned i = 0; i < 8 && right; i++) {
                const std::vector<char> bytes = random_bytes(n, 100 * t + i);
                std::memcpy(a, bytes.data(), n);
                right = stub_launch(b, a, n, stream) == 0 &&
                        (i % 2 || cudaStreamSynchronize(stream) == 0) && has(b, bytes);
            }
            good += right && cudaFree(a) == 0 && cudaFree(b) == 0;
        });
    }
    for (std::thread &thread : threads)
        thread.join();
    // All of it, or what is there: no part.
    char *m = managed_memory(100 * K);
    REQUIRE(attach(nullptr, m, 100 * K, 1) == 0 && fails(attach(nullptr, m, 17, 1), 1));
    REQUIRE(fails(attach(nullptr, m + 1, 100 * K - 1, 1), 1) && attach(nullptr, m, 0, 2) == 0);
    REQUIRE(fails(attach(nullptr, m + page, 0, 1), 1));
    return good == 4 && cudaFree(m) == 0;
}

// In a graph such a copy is one within the device, whatever kind the program names.
bool graphs_of_managed()
{
    constexpr std::size_t n = 20 * K;
    char *a = managed_memory(n), *b = managed_memory(n);
    void *stream = nullptr, *graph = nullptr, *exec = nullptr, *node = nullptr;
    REQUIRE(a && b && cudaStreamCreate(&stream) == 0);
    using Add =
        int(void **, void *, void *const *, std::size_t, void *, const void *, std::size_t, int);
    using Make = int(void **, void *, unsigned long long);
    REQUIRE(preloaded<int(void **, unsigned)>("cudaGraphCreate")(&graph, 0) == 0);
    REQUIRE(preloaded<Add>("cudaGraphAddMemcpyNode1D")(&node, graph, nullptr, 0, b, a, n, H2D) ==
            0);
    REQUIRE(preloaded<Make>("cudaGraphInstantiate")(&exec, graph, 0) == 0);
    for (unsigned i = 0; i < 5; i++) {
        const std::vector<char> bytes = random_bytes(n, i);
        std::memcpy(a, bytes.data(), n);
        REQUIRE(cudaGraphLaunch(exec, stream) == 0 && has(b, bytes));
    }
    // The device has worked before a capture, which an access does not end.
    REQUIRE(stub_launch(b, a, n, stream) == 0 && cudaStreamBeginCapture(stream, 0) == 0);
    REQUIRE(stub_launch(b, a, n, stream) == 0 && b[0] == a[0]);
    REQUIRE(cudaStreamEndCapture(stream, &graph) == 0);
    return HOLDS(cudaFree(a) == 0 && cudaFree(b) == 0);
}

struct Attributes {
    int type, device;
    void *on_device, *on_host;
    long more[8];
};

bool what_it_is()
{
    char *m = managed_memory(100);
    Attributes is = {};
    void *none = nullptr;
    auto *attributes = preloaded<int(Attributes *, const void *)>("cudaPointerGetAttributes");
    auto *prefetch = preloaded<int(const void *, std::size_t, std::uint64_t, unsigned, void *)>(
        "cudaMemPrefetchAsync");
    REQUIRE(m && attributes(&is, m + 50) == 0 && is.type == 3 && is.on_device == m + 50);
    REQUIRE(is.on_host == m + 50 && is.device == 0);
    REQUIRE(prefetch(m, 100, 1, 0, nullptr) == 0 && prefetch(m, 101, 1, 0, nullptr) == 1);
    REQUIRE(cudaGetLastError() == 1);
    REQUIRE(malloc_managed(&none, 0) == 0 && malloc_managed(&none, 8, 4) == 1 && !none);
    REQUIRE(malloc_managed(&none, std::size_t(1) << 60) == 2 && cudaGetLastError() == 2);
    REQUIRE(cudaFree(m + 1) == 1 && cudaGetLastError() == 1);
    return HOLDS(cudaFree(m) == 0);
}

// If this process has something at an address, the device gives memory at another one.
bool taken_addresses()
{
    char *device = device_memory(10 * K);
    REQUIRE(cudaFree(device) == 0);
    void *there =
        mmap(device, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    REQUIRE(there == device);
    char *m = managed_memory(10 * K);
    REQUIRE(m && m != device && stub_launch(m + 1, m, 1, nullptr) == 0 && m[1] == 0);
    return HOLDS(cudaFree(m) == 0 && munmap(there, page) == 0);
}

// cudaPointerAttributes
struct Pointer {
    int type, device;
    void *on_device, *on_host;
};
enum { UNREGISTERED, HOST, DEVICE, MANAGED };

bool is(const void *address, int type, void *on_device, void *on_host)
{
    Pointer p = {9, 9, nullptr, nullptr};
    auto *ask = preloaded<int(Pointer *, const void *)>("cudaPointerGetAttributes");
    REQUIRE(ask(&p, address) == 0 && p.type == type);
    REQUIRE(p.device == (type == UNREGISTERED ? -2 : 0));
    return HOLDS(p.on_device == on_device && p.on_host == on_host);
}

int on_device(void **pointer, void *address)
{
    return preloaded<int(void **, void *, unsigned)>("cudaHostGetDevicePointer")(pointer, address,
                                                                                 0);
}

int flags_of(void *address)
{
    unsigned flags = 99;
    return preloaded<int(unsigned *, void *)>("cudaHostGetFlags")(&flags, address) ? -1
                                                                                   : int(flags);
}

} // namespace

bool mapped()
{
    constexpr std::size_t n = 300 * K;
    void *a = nullptr, *b = nullptr, *there = nullptr, *pinned = nullptr;
    REQUIRE(cudaHostAlloc(&a, n, 2) == 0 && cudaHostAlloc(&b, n, 7) == 0);
    REQUIRE(cudaHostAlloc(&pinned, n, 4) == 0);
    char *from = static_cast<char *>(a), *to = static_cast<char *>(b);
    REQUIRE(on_device(&there, from + 5) == 0 && there == from + 5);
    for (unsigned i = 0; i < 3; i++) {
        const std::vector<char> bytes = random_bytes(n, i);
        std::memcpy(from, bytes.data(), n);
        REQUIRE(stub_launch(to, from, n, nullptr) == 0);
        REQUIRE(cudaDeviceSynchronize() == 0 && has(to, bytes));
    }
    // A call that sets it returns when it is set.
    for (int i = 1; i < 100; i++) {
        std::memset(to, 0, n);
        REQUIRE(cudaMemset(to, i, n) == 0 && to[0] == i && to[n - 1] == i);
    }
    // It may be used as page-locked memory as well.
    const std::vector<char> bytes = random_bytes(n, 9);
    char *device = device_memory(n);
    std::memcpy(from, bytes.data(), n);
    REQUIRE(cudaMemcpy(device, from, n, H2D) == 0 && device_has(device, bytes.data(), n));
    REQUIRE(cudaMemcpyAsync(to, device, n, D2H, nullptr) == 0);
    REQUIRE(cudaStreamSynchronize(nullptr) == 0 && has(to, bytes));
    REQUIRE(is(a, HOST, a, a) && flags_of(a) == 2 && flags_of(b) == 7 && flags_of(pinned) == 6);
    // A word that all devices may use is most often one for kernels to read or write.
    void *word = nullptr, *large = nullptr;
    REQUIRE(cudaHostAlloc(&word, 4, 1) == 0 && cudaHostAlloc(&large, n, 1) == 0);
    REQUIRE(on_device(&there, word) == 0 && there == word && flags_of(word) == 3);
    std::memcpy(word, "word", 4);
    REQUIRE(stub_launch(to, word, 4, nullptr) == 0 && cudaDeviceSynchronize() == 0);
    REQUIRE(!std::memcmp(to, "word", 4) && cudaFreeHost(word) == 0);
    // Kernels reach all of it.
    for (void *each : {large, pinned})
        REQUIRE(on_device(&there, each) == 0 && there == each);
    REQUIRE(cudaFreeHost(large) == 0);
    // What is not mapped.
    REQUIRE(host_register(&there, 8) == 0 && on_device(&there, &there) == 801);
    REQUIRE(cudaGetLastError() == 801 && host_unregister(&there) == 0);
    REQUIRE(on_device(&there, device) == 1 && on_device(nullptr, a) == 1);
    REQUIRE(flags_of(device) == -1 && cudaGetLastError() == 1);
    REQUIRE(cudaFree(a) == 1 && cudaFreeHost(from + 1) == 1 && cudaGetLastError() == 1);
    char *m = managed_memory(page);
    REQUIRE(cudaFreeHost(m) == 1 && on_device(&there, m) == 1 && cudaFree(m) == 0);
    REQUIRE(cudaFreeHost(a) == 0 && cudaFreeHost(b) == 0 && cudaFreeHost(pinned) == 0);
    REQUIRE(cudaGetLastError() == 1);
    return HOLDS(is(&there, UNREGISTERED, nullptr, &there));
}

struct Place {
    int type, id;
};

// What is known of some pages; -99: an error.
static int hint(const char *at, int which, std::size_t pages)
{
    auto *attribute = preloaded<int(void *, std::size_t, int, const void *, std::size_t)>(
        "cudaMemRangeGetAttribute");
    int value = 99;
    return attribute(&value, 4, which, at, pages * page) ? -99 : value;
}

// Several ranges at once; each place is for those from a first one on.
static bool hints_of_several(char *m)
{
    const Place device = {1, 0}, host = {2, 0};
    using Batch = int(void *const *, const std::size_t *, std::size_t, const Place *,
                      const std::size_t *, std::size_t, unsigned long long, void *);
    auto *prefetch_all = preloaded<Batch>("cudaMemPrefetchBatchAsync");
    auto *discard =
        preloaded<int(void *const *, const std::size_t *, std::size_t, unsigned long long, void *)>(
            "cudaMemDiscardBatchAsync");
    void *const ranges[] = {m, m + page, m + 2 * page}, *const own = reinterpret_cast<void *>(2);
    const std::size_t bytes[] = {page, page, page}, first[] = {0, 2}, wrong[] = {0, 3};
    const std::size_t falling[] = {0, 2, 1};
    const Place to[] = {host, device, host};
    REQUIRE(prefetch_all(ranges, bytes, 3, to, first, 2, 0, own) == 0);
    REQUIRE(hint(m, 4, 2) == -1 && hint(m + 2 * page, 4, 1) == 0);
    REQUIRE(discard(ranges, bytes, 3, 0, own) == 0);
    REQUIRE(fails(prefetch_all(ranges, bytes, 3, to, first, 2, 1, own), 1));
    REQUIRE(fails(prefetch_all(ranges, bytes, 3, to, first, 2, 0, nullptr), 1));
    REQUIRE(fails(prefetch_all(ranges, bytes, 3, to, wrong, 2, 0, own), 1));
    REQUIRE(fails(prefetch_all(ranges, bytes, 3, to, falling, 3, 0, own), 1));
    REQUIRE(fails(prefetch_all(ranges, bytes, 1, to, first, 2, 0, own), 1));
    return HOLDS(fails(discard(ranges, bytes, 3, 1, own), 1) &&
                 fails(discard(ranges, bytes, 3, 0, nullptr), 1));
}

// In the legacy stream.
static int prefetch(const void *memory, std::size_t n, Place where, unsigned flags)
{
    using Call = int(const void *, std::size_t, Place, unsigned, void *);
    return preloaded<Call>("cudaMemPrefetchAsync")(memory, n, where, flags, nullptr);
}

// Memory that is not managed has no hints, also if the device can access it.
static bool hints_of_no_managed()
{
    auto *advise = preloaded<int(const void *, std::size_t, int, Place)>("cudaMemAdvise");
    auto *attach =
        preloaded<int(void *, void *, std::size_t, unsigned)>("cudaStreamAttachMemAsync");
    void *locked = nullptr, *mapped = nullptr;
    REQUIRE(cudaHostAlloc(&locked, page, 0) == 0 && cudaHostAlloc(&mapped, page, 2) == 0);
    for (void *memory : {locked, mapped, static_cast<void *>(device_memory(page))}) {
        int value = 99;
        for (int which = 1; which <= 8; which++)
            REQUIRE(fails(preloaded<int(void *, std::size_t, int, const void *, std::size_t)>(
                              "cudaMemRangeGetAttribute")(&value, 4, which, memory, page),
                          1));
        REQUIRE(value == 99 && fails(advise(memory, page, 1, {1, 0}), 1));
        REQUIRE(fails(prefetch(memory, page, {1, 0}, 0), 1));
        REQUIRE(fails(attach(nullptr, memory, 0, 1), 1));
    }
    return HOLDS(cudaFreeHost(locked) == 0 && cudaFreeHost(mapped) == 0);
}

// Advice about parts of the memory is known as long as the memory exists.
static bool hints()
{
    char *m = managed_memory(4 * page);
    auto *advise = preloaded<int(const void *, std::size_t, int, Place)>("cudaMemAdvise");
    auto *attribute = preloaded<int(void *, std::size_t, int, const void *, std::size_t)>(
        "cudaMemRangeGetAttribute");
    const Place device = {1, 0}, host = {2, 0};
    const auto of = [m](int which, std::size_t at, std::size_t pages) {
        return hint(m + at * page, which, pages);
    };
    REQUIRE(of(1, 0, 4) == 0 && of(2, 0, 4) == -2 && of(4, 0, 4) == -2 && of(5, 0, 4) == 0);
    REQUIRE(advise(m, 4 * page, 1, device) == 0 && of(1, 0, 4) == 1 && of(1, 2, 1) == 1);
    REQUIRE(advise(m + page, page, 2, device) == 0);
    REQUIRE(of(1, 0, 4) == 0 && of(1, 0, 1) == 1 && of(1, 1, 1) == 0 && of(1, 2, 2) == 1);
    REQUIRE(advise(m, 2 * page, 3, device) == 0 && advise(m + 2 * page, page, 3, host) == 0);
    REQUIRE(of(2, 0, 2) == 0 && of(2, 2, 1) == -1 && of(2, 0, 3) == -2 && of(2, 3, 1) == -2);
    REQUIRE(of(5, 0, 2) == 1 && of(6, 0, 2) == 0 && of(5, 2, 1) == 2 && of(1, 2, 1) == 1);
    REQUIRE(prefetch(m + page, 3 * page, device, 0) == 0 && of(4, 1, 3) == 0 && of(4, 0, 2) == -2);
    REQUIRE(fails(prefetch(m, page, device, 3), 1));
    int list[3] = {9, 9, 9};
    REQUIRE(advise(m, page, 5, device) == 0 && advise(m, page, 5, host) == 0);
    REQUIRE(attribute(list, sizeof(list), 3, m, page) == 0);
    REQUIRE(list[0] == -1 && list[1] == 0 && list[2] == -2);
    REQUIRE(attribute(list, 5, 1, m, page) == 1 && attribute(list, 4, 9, m, page) == 1);
    REQUIRE(attribute(list, 4, 1, list, 4) == 1 && attribute(list, 4, 1, m, 5 * page) == 1);
    REQUIRE(advise(m, page, 7, device) == 1 && cudaGetLastError() == 1);
    const Place none = {0, 0}, missing = {1, 9}, node = {3, 0}, strange = {5, 0};
    const Place missing_node = {3, 99999};
    REQUIRE(fails(prefetch(m, page, missing, 0), 101) && fails(prefetch(m, page, none, 0), 1));
    REQUIRE(fails(prefetch(nullptr, 1, missing, 0), 1)); // first what is no managed memory
    REQUIRE(fails(advise(m, page, 3, missing), 1) && fails(advise(m, page, 6, missing), 1));
    REQUIRE(advise(m, page, 1, missing) == 0 && advise(m, page, 2, missing) == 0);
    REQUIRE(fails(advise(m, page, 1, none), 1) && fails(advise(m, page, 1, strange), 1));
    REQUIRE(prefetch(m, page, node, 0) == 0 && fails(advise(m, page, 5, node), 1));
    REQUIRE(fails(prefetch(m, page, missing_node, 0), 1) &&
            fails(advise(m, page, 3, missing_node), 1));
    REQUIRE(advise(m, page, 1, missing_node) == 0 && advise(m, page, 2, missing_node) == 0);
    REQUIRE(hints_of_several(m) && hints_of_no_managed());
    REQUIRE(cudaFree(m) == 0 && (m = managed_memory(4 * page)));
    REQUIRE(of(1, 0, 1) == 0 && of(2, 0, 1) == -2 && of(4, 1, 1) == -2);
    return HOLDS(cudaFree(m) == 0);
}

// A kernel that does not end, like one that waits for the host to write such memory.
bool mapped_for_ever()
{
    void *memory = over_shm ? managed_memory(page) : nullptr; // there kernels see each write
    REQUIRE(over_shm ? memory != nullptr : cudaHostAlloc(&memory, page, 2) == 0);
    char *byte = static_cast<char *>(memory), go = 0;
    REQUIRE(write(STDOUT_FILENO, "r", 1) == 1 && read(STDIN_FILENO, &go, 1) == 1); // it is held
    REQUIRE(stub_launch(byte, byte + 100, 8, nullptr) == 0);
    *byte = 'h';
    return HOLDS((over_shm ? cudaFree(memory) : cudaFreeHost(memory)) == 0);
}

bool pointers()
{
    char *device = device_memory(100), *m = managed_memory(page), local = 0;
    void *pinned = nullptr, *made = nullptr;
    REQUIRE(cudaMallocHost(&pinned, 100) == 0 && host_register(&local, 1) == 0);
    REQUIRE(is(device, DEVICE, device, nullptr) && is(device + 99, DEVICE, device + 99, nullptr));
    REQUIRE(is(m, MANAGED, m, m) && is(m + 5, MANAGED, m + 5, m + 5));
    REQUIRE(is(pinned, HOST, pinned, pinned) && is(&local, HOST, nullptr, &local));
    REQUIRE(host_unregister(&local) == 0 && is(&local, UNREGISTERED, nullptr, &local));
    REQUIRE(is(nullptr, UNREGISTERED, nullptr, nullptr));
    REQUIRE(preloaded<int(void **, std::size_t, void *)>("cudaMallocAsync")(&made, 100, nullptr) ==
            0);
    REQUIRE(is(made, DEVICE, made, nullptr) && cudaFree(made) == 0);
    // Memory that was freed, or never existed, is unknown; memory that other calls have made is
    // known.
    char *strange = reinterpret_cast<char *>(0x7000000), *theirs = nullptr;
    REQUIRE(is(made, UNREGISTERED, nullptr, made) && is(strange, UNREGISTERED, nullptr, strange));
    theirs = reinterpret_cast<char *>(stub_remote()->malloc(100));
    REQUIRE(theirs && is(theirs + 9, DEVICE, theirs + 9, nullptr));
    REQUIRE(stub_remote()->free(reinterpret_cast<std::uintptr_t>(theirs)) == 0);
    REQUIRE(is(theirs + 9, UNREGISTERED, nullptr, theirs + 9));
    REQUIRE(preloaded<int(Pointer *, const void *)>("cudaPointerGetAttributes")(nullptr, m) == 1);
    REQUIRE(cudaGetLastError() == 1);
    return HOLDS(cudaFree(m) == 0 && cudaFree(device) == 0 && cudaFreeHost(pinned) == 0);
}

bool managed()
{
    REQUIRE(kernels_and_host());
    REQUIRE(waits_that_fail());
    REQUIRE(copies_and_sets());
    REQUIRE(threads_of_streams());
    REQUIRE(what_it_is());
    REQUIRE(hints());
    REQUIRE(!taken || graphs_of_managed());
    REQUIRE(!taken || freed_in_stream());
    REQUIRE(!taken || managed_beside_captures());
    REQUIRE(taken_addresses());
    return HOLDS(managed_system_calls() && managed_signals());
}

namespace
{

struct AtEnd {
    char *from, *to;
    void *captured, *work;
} at_end;

// A kernel reads what was written here now, and the host what it has written.
bool runs_at_end(unsigned seed)
{
    const std::vector<char> bytes = random_bytes(20 * K, seed);
    std::memcpy(at_end.from, bytes.data(), bytes.size());
    REQUIRE(stub_launch(at_end.to, at_end.from, bytes.size(), at_end.work) == 0);
    return HOLDS(has(at_end.to, bytes));
}

} // namespace

// In an exit handler that was there before the first managed memory, and beside a capture.
bool managed_at_exit()
{
    std::atexit([] {
        bool good = runs_at_end(1);
        good = good && cudaStreamBeginCapture(at_end.captured, 2) == 0 && runs_at_end(2);
        std::_Exit(good ? 0 : 1);
    });
    at_end = {managed_memory(20 * K), managed_memory(20 * K), nullptr, nullptr};
    REQUIRE(at_end.from && at_end.to && cudaStreamCreate(&at_end.captured) == 0);
    REQUIRE(cudaStreamCreateWithFlags(&at_end.work, 1) == 0 && runs_at_end(0));
    return false; // the exit handler makes that a success
}
