// SPDX-License-Identifier: LGPL-2.1-or-later
//
// An application of CUDA, for libibx-frontend.so to be preloaded into: test_frontend.cpp runs it.
//
//   application TEST [taken]     `taken`: the back end's plugin runs the copies
#include "tests/gvirtus/application.h"
#include "tests/scenes/patience.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

bool taken, over_shm;

char state_of(pid_t process, pid_t thread)
{
    char path[64], line[256] = "";
    std::snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", process, thread);
    std::FILE *file = std::fopen(path, "r");
    const bool read = file && std::fgets(line, sizeof(line), file);
    if (file)
        std::fclose(file);
    const char *behind = std::strrchr(line, ')');
    return read && behind && behind[1] ? behind[2] : 0;
}

void stop(pid_t process)
{
    bool all = kill(process, SIGSTOP) != 0;
    while (!all) {
        all = true;
        for (const auto &task :
             std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/task"))
            all = all && state_of(process, std::stoi(task.path().filename())) == 'T';
    }
}

char *device_memory(std::size_t n)
{
    void *device = nullptr;
    return cudaMalloc(&device, n) ? nullptr : static_cast<char *>(device);
}

bool device_has(const char *device, const char *bytes, std::size_t n)
{
    std::vector<char> got(n, 'x');
    return stub_remote()->peek(reinterpret_cast<std::uintptr_t>(device), got.data(), n) &&
           !std::memcmp(got.data(), bytes, n);
}

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

long peak()
{
    long found = -1;
    char line[256];
    std::FILE *status = std::fopen("/proc/self/status", "re");
    while (status && std::fgets(line, sizeof(line), status))
        std::sscanf(line, "VmHWM: %ld", &found);
    std::fclose(status);
    return found;
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

// Of so much pageable memory that over shm the later ones go in parts (client_stage.c).
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

// Nothing but the pointers says what is the device's.
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
            REQUIRE(device_has(device + at, memory.data(), n));
            REQUIRE(copy(got.data(), device + at, n, DEFAULT, on) == 0);
            REQUIRE(!std::memcmp(got.data(), memory.data(), n));
        }
    }
    REQUIRE(stub_copies() == 0);
    // Within the device it is GVirtuS's, which is told what it is.
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
    // Memory of both: as without the preload the beginnings of allocations tell.
    void *both = mmap(device, 4096, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    REQUIRE(both == device);
    REQUIRE(cudaMemcpy(device, memory.data(), 4000, DEFAULT) == 0);
    REQUIRE(device_has(device, memory.data(), 4000) && stub_copies() == 1);
    REQUIRE(device[0] == 0 && device[3999] == 0);
    // Behind them the other side does, since few copies are within the host, and registrations.
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

bool threads()
{
    using std::chrono::steady_clock;
    bool good[4] = {};
    std::atomic<steady_clock::duration> connected{};
    std::vector<std::thread> all;
    const auto began = steady_clock::now();
    for (unsigned i = 0; i < 4; i++)
        all.emplace_back([&good, &connected, began, i] {
            // The first call of a thread is a copy: GVirtuS makes its connection then.
            char byte = 1, *nowhere = reinterpret_cast<char *>(std::uintptr_t{4096});
            bool first = cudaMemcpy(nowhere, &byte, 1, H2D) != 0;
            const auto took = steady_clock::now() - began;
            for (auto last = connected.load();
                 last < took && !connected.compare_exchange_weak(last, took);)
                ;
            char *device = device_memory();
            std::vector<char> memory(3000000);
            good[i] = first && device;
            for (unsigned round = 0; round < 20 && good[i]; round++)
                good[i] =
                    round_trip(device, memory.data(), 30000 + round * 140000, i * 100 + round);
        });
    for (std::thread &thread : all)
        thread.join();
    REQUIRE(good[0] && good[1] && good[2] && good[3]);
    REQUIRE(stub_copies() == 4);
    // One that is about to return, and the next one. A thread waits 3 s for its turn, no longer.
    REQUIRE(stub_connecting_most() <= 2 || connected.load() >= std::chrono::seconds(3));
    return true;
}

std::size_t open_files()
{
    std::size_t count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder))
        count++;
    closedir(folder);
    return count;
}

// A thread's connection ends with it, though GVirtuS keeps what it knows of it.
bool threads_end()
{
    std::size_t files = 0;
    pid_t last = 0;
    bool good = true;
    auto in_thread = [&](const std::function<void()> &what) {
        std::thread thread(what);
        thread.join();
    };
    char *device = device_memory();
    std::vector<char> memory(3000000);
    REQUIRE(round_trip(device, memory.data(), memory.size(), 99));
    for (unsigned i = 0; i < 20 && good; i++) {
        in_thread([&] {
            last = gettid();
            char *own = device_memory(memory.size());
            good = own && round_trip(own, memory.data(), memory.size(), i) && !cudaFree(own);
        });
        files = i ? files : open_files();
    }
    REQUIRE(good && open_files() <= files);
    // Its number is given out again.
    std::uint64_t before = stub_copies();
    in_thread([&] {
        stub_same_number(last);
        char byte = 1, *nowhere = reinterpret_cast<char *>(std::uintptr_t{4096});
        good = cudaMemcpy(nowhere, &byte, 1, H2D) == 1;
        good = good && round_trip(device, memory.data(), memory.size(), 100);
    });
    REQUIRE(good && stub_copies() == before + 1);
    // What it has begun goes on.
    void *stream, *page_locked;
    REQUIRE(cudaStreamCreate(&stream) == 0 && cudaMallocHost(&page_locked, memory.size()) == 0);
    random_fill(memory.data(), memory.size(), 101);
    std::memcpy(page_locked, memory.data(), memory.size());
    stub_remote()->slow(50000);
    in_thread([&] {
        good = device_memory(1) &&
               !cudaMemcpyAsync(device, page_locked, memory.size(), H2D, stream) &&
               !cudaMemcpyAsync(page_locked, device, memory.size(), D2H, stream);
    });
    REQUIRE(good && cudaStreamSynchronize(stream) == 0);
    stub_remote()->slow(0);
    REQUIRE(!std::memcmp(page_locked, memory.data(), memory.size()));
    REQUIRE(device_has(device, memory.data(), memory.size()));
    return HOLDS(cudaFreeHost(page_locked) == 0);
}

// Nothing in this process ever holds a second copy of the bytes.
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
        REQUIRE(cudaMemcpy(memory.data(), late, n, D2H) == 1);
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

// Variables of the device, which GVirtuS copies in one direction only.
bool symbols()
{
    constexpr std::size_t n = 3000;
    static char variable[1]; // by whose address the back end knows it
    char *device = device_memory(), back[n], there[n];
    using Copy = int(void *, const void *, std::size_t, std::size_t, int);
    using CopyAsync = int(void *, const void *, std::size_t, std::size_t, int, void *);
    auto *copy = preloaded<Copy>("cudaMemcpyFromSymbol");
    auto *copy_async = preloaded<CopyAsync>("cudaMemcpyFromSymbolAsync");
    REQUIRE(copy && copy_async);
    const auto symbol = reinterpret_cast<std::uint64_t>(variable);
    if (!stub_remote()->register_var(symbol, reinterpret_cast<std::uint64_t>(device), n))
        return true; // nothing stands for CUDA's runtime here
    random_fill(there, n, 9);
    REQUIRE(cudaMemcpy(device, there, n, H2D) == 0);
    for (int kind : {static_cast<int>(D2H), DEFAULT}) {
        std::memset(back, 0, n);
        REQUIRE(copy(back, variable, n - 100, 100, kind) == 0);
        REQUIRE(!std::memcmp(back, there + 100, n - 100) && back[n - 100] == 0);
        REQUIRE(copy_async(back, variable, n, 0, kind, nullptr) == 0);
        REQUIRE(cudaDeviceSynchronize() == 0 && !std::memcmp(back, there, n));
    }
    for (int kind : {static_cast<int>(D2D), DEFAULT}) {
        REQUIRE(cudaMemcpy(device + n, back, n - 1, H2D) == 0);
        REQUIRE(copy(device + n, variable, n, 0, kind) == 0 && cudaDeviceSynchronize() == 0);
        REQUIRE(device_has(device + n, there, n));
        std::memset(back, 1, n);
    }
    cudaGetLastError();
    REQUIRE(copy(back, variable, n, 0, H2D) == 21 && cudaGetLastError() == 21);
    REQUIRE(copy(back, &device, n, 0, D2H) == 13);
    return true;
}

// What needs no back end, and works when there is none.
bool names()
{
    using Text = const char *(int);
    auto *name = preloaded<Text>("cudaGetErrorName"), *text = preloaded<Text>("cudaGetErrorString");
    auto *start = preloaded<int()>("cudaProfilerStart"),
         *stop = preloaded<int()>("cudaProfilerStop");
    REQUIRE(name && text && start && stop && start() == 0 && stop() == 0);
    const struct {
        int code;
        const char *name, *text;
    } known[] = {
        {0, "cudaSuccess", "no error"},
        {1, "cudaErrorInvalidValue", "invalid argument"},
        {9, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
        {209, "cudaErrorNoKernelImageForDevice",
         "no kernel image is available for execution on the device"},
        {402, "cudaErrorLossyQuery", "attempted introspection would be semantically lossy"},
        {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
        {912, "cudaErrorInvalidClusterSize",
         "a kernel launch error has occurred due to cluster misconfiguration"},
        {999, "cudaErrorUnknown", "unknown error"},
        {-1, "unrecognized error code", "unrecognized error code"},
        {12345, "unrecognized error code", "unrecognized error code"},
    };
    for (const auto &each : known) {
        REQUIRE(!std::strcmp(name(each.code), each.name));
        REQUIRE(!std::strcmp(text(each.code), each.text));
    }
    return true;
}

// A communicator of GVirtuS's own.
bool stock()
{
    void *device = nullptr;
    char there[100], back[100] = {};
    random_fill(there, sizeof(there), 1);
    REQUIRE(cudaMalloc(&device, sizeof(there)) == 0);
    for (unsigned i = 0; i < 3; i++) {
        REQUIRE(cudaMemcpy(device, there, sizeof(there), H2D) == 0);
        REQUIRE(cudaMemcpyAsync(back, device, sizeof(back), D2H, nullptr) == 0);
        REQUIRE(!std::memcmp(there, back, sizeof(back)));
    }
    REQUIRE(stub_copies() == 6);
    void *page_locked;
    REQUIRE(cudaMallocHost(&page_locked, 10) == 0 && cudaFreeHost(page_locked) == 0);
    REQUIRE(cudaHostAlloc(&page_locked, 10, 0) == 0 && cudaFreeHost(page_locked) == 0);
    REQUIRE(stub_hosts() == 4);
    REQUIRE(host_register(there, sizeof(there), 0) == 801); // as this libcudart has none
    REQUIRE(cudaFree(device) == 0);
    return true;
}

// A plugin of another build.
bool other_version()
{
    const struct {
        unsigned version;
    } calls = {4711};
    using Attach = void(const void *);
    auto *attach = reinterpret_cast<Attach *>(dlsym(RTLD_DEFAULT, "ibx_frontend_attach"));
    REQUIRE(attach);
    attach(&calls);
    attach(&calls);
    return HOLDS(stock());
}

} // namespace

int main(int argc, char **argv)
{
    const std::map<std::string, std::function<bool()>> tests = {
        {"sizes", sizes_and_offsets},
        {"default", default_kind},
        {"rows", rows},
        {"threads", threads},
        {"threads-end", threads_end},
        {"no-copy", no_copy},
        {"remapped", remapped},
        {"errors", errors},
        {"first-thread-ends", first_thread_ends},
        {"cancelled-thread", cancelled_thread},
        {"cancelled-in-first-call", cancelled_in_first_call},
        {"forked", forked},
        {"forked-exit", forked_exit},
        {"closes-at-exit", closes_at_exit},
        {"threads-have-ended", threads_have_ended},
        {"thread-ends-late", thread_ends_late},
        {"threads-go-on", threads_go_on},
        {"threads-go-on-in-child", threads_go_on_in_child},
        {"killed", killed},
        {"killed-background", killed_background},
        {"pinned", pinned},
        {"freed-beside-captures", freed_beside_captures},
        {"sent-on", sent_on},
        {"kernels-and-page-locked", kernels_and_page_locked},
        {"page-locked-of-threads", page_locked_of_threads},
        {"page-locked-after-resets", page_locked_after_resets},
        {"page-locked-of-unknown", page_locked_of_unknown},
        {"page-locked-of-graphs", page_locked_of_graphs},
        {"page-locked-and-forks", page_locked_and_forks},
        {"page-locked-pieces", page_locked_pieces},
        {"page-locked-in-place", page_locked_in_place},
        {"async", async},
        {"on-host", on_host},
        {"devices", devices},
        {"no-device", no_device},
        {"peers", peers},
        {"memory-after-reset", memory_after_reset},
        {"managed-on-devices", managed_on_devices},
        {"pools-of-devices", pools_of_devices},
        {"calls", calls},
        {"processes", processes},
        {"programs", programs},
        {"processes-and-pools", processes_and_pools},
        {"processes-apart", processes_apart},
        {"sets-in-streams", sets_in_streams},
        {"sets-after-a-loss", sets_after_a_loss},
        {"configurations", configurations},
        {"memory-that-ends", memory_that_ends},
        {"memory-that-may-not-be-touched", memory_that_may_not_be_touched},
        {"short-copies", short_copies},
        {"background", [] { return background(false); }},
        {"background-registered", [] { return background(true); }},
        {"leaves", leaves},
        {"exits", exits},
        {"after", after},
        {"host-register", registrations},
        {"stale-registration", stale_registration},
        {"refused", refused},
        {"launch", launch},
        {"launches", launches},
        {"launches-of-new-threads", launches_of_new_threads},
        {"launches-unseen", launches_unseen},
        {"launches-of-many-bytes", launches_of_many_bytes},
        {"nodes-of-many-bytes", nodes_of_many_bytes},
        {"arrays", arrays},
        {"libraries", libraries},
        {"math-libraries", math_libraries},
        {"lt-library", lt_library},
        {"math-settings", math_settings},
        {"math-library-first", math_library_first},
        {"math-threads", math_threads},
        {"no-math-libraries", no_math_libraries},
        {"absent-from-math", absent_from_math},
        {"leaves-math-libraries", leaves_math_libraries},
        {"mipmaps", mipmaps},
        {"planes", planes_of_arrays},
        {"planes-of-memory", planes_of_memory},
        {"array-to-array", array_to_array},
        {"textures", textures},
        {"descriptions", descriptions},
        {"textures-beyond", textures_beyond},
        {"capture-modes", capture_modes},
        {"pools", pools},
        {"stream-of-thread", stream_of_thread},
        {"queries", queries},
        {"printed", printed},
        {"visible-devices", visible_devices},
        {"names-of-runtime", names_of_runtime},
        {"absent", absent},
        {"managed", managed},
        {"mapped", mapped},
        {"mapped-for-ever", mapped_for_ever},
        {"signals-in-calls", signals_in_calls},
        {"pointers", pointers},
        {"managed-in-function", managed_in_function},
        {"managed-at-exit", managed_at_exit},
        {"meanwhile", meanwhile},
        {"cooperative", cooperative},
        {"copies-in-graphs", copies_in_graphs},
        {"copies-in-graphs-by-calls", copies_in_graphs_by_calls},
        {"graphs", graphs},
        {"few-bytes-of-graphs", few_bytes_of_graphs},
        {"graphs-after-resets", graphs_after_resets},
        {"pinned-bytes-of-graphs", pinned_bytes_of_graphs},
        {"nodes-of-graphs", nodes_of_graphs},
        {"questions-about-graphs", questions_about_graphs},
        {"kernels-of-graphs", kernels_of_graphs},
        {"kernels-set-again", kernels_that_are_set_again},
        {"attributes-of-nodes", attributes_of_nodes},
        {"events-and-functions-of-nodes", events_and_functions_of_nodes},
        {"graphs-of-nodes", graphs_of_nodes},
        {"parameters-of-all-kinds", parameters_of_all_kinds},
        {"objects-of-graphs", objects_of_graphs},
        {"drawings-of-graphs", drawings_of_graphs},
        {"captures", captures},
        {"captures-of-planes", captures_of_planes},
        {"conditions", conditions},
        {"graphs-lost", graphs_lost},
        {"frees-beside-graphs", frees_beside_graphs},
        {"unpinned-beside-graphs", unpinned_beside_graphs},
        {"loads-beside-graphs", loads_beside_graphs},
        {"killed-in-graph", killed_in_graph},
        {"killed-while-mapped", killed_while_mapped},
        {"lied-to", lied_to},
        {"host-functions", host_functions},
        {"host-functions-as-gates", host_functions_as_gates},
        {"gates-after-reset", gates_after_reset},
        {"calls-in-host-functions", calls_in_host_functions},
        {"host-functions-after-reset", host_functions_after_reset},
        {"host-functions-lost", host_functions_lost},
        {"host-functions-at-exit", host_functions_at_exit},
        {"host-function-for-ever", host_function_for_ever},
        {"local-library", local_library},
        {"local-driver", local_driver},
        {"driver-begins", driver_begins},
        {"driver-contexts", driver_contexts},
        {"driver-context-of-threads", driver_context_of_threads},
        {"driver-and-runtime", driver_and_runtime},
        {"driver-memory", driver_memory},
        {"driver-modules", driver_modules},
        {"driver-streams", driver_streams},
        {"driver-entry-points", driver_entry_points},
        {"driver-planes", driver_planes},
        {"driver-arrays", driver_arrays},
        {"driver-graphs", driver_graphs},
        {"driver-pools", driver_pools},
        {"driver-textures", driver_textures},
        {"driver-shares", driver_shares},
        {"driver-hints", driver_hints},
        {"driver-pointer-answers", driver_pointer_answers},
        {"driver-odd-answers", driver_odd_answers},
        {"driver-launch-answers", driver_launch_answers},
        {"driver-sets-elements", driver_sets_elements},
        {"driver-maps-memory", driver_maps_memory},
        {"driver-maps-tensors", driver_maps_tensors},
        {"driver-maps-nothing", driver_maps_nothing},
        {"driver-maps-until-reset", driver_maps_until_reset},
        {"not-supported", not_supported},
        {"symbols", symbols},
        {"variables", variables},
        {"modules-of-ended", modules_of_ended},
        {"modules-of-ended-alone", modules_of_ended_alone},
        {"left-beside-child", left_beside_child},
        {"modules-of-two-threads", modules_of_two_threads},
        {"modules-and-forks", modules_and_forks},
        {"names", names},
        {"forked-meanwhile", forked_meanwhile},
        {"forked-at-first-calls", forked_at_first_calls},
        {"forked-beside-first-call", forked_beside_first_call},
        {"forked-beside-a-look", forked_beside_a_look},
        {"looks-under-the-lock", looks_under_the_lock},
        {"stock", stock},
        {"other-version", other_version},
    };
    alarm(100 * patience_times());
    taken = argc > 2;
    const char *provider = std::getenv("STUB_PROVIDER");
    over_shm = provider && !std::strcmp(provider, "shm");
    auto test = argc > 1 ? tests.find(argv[1]) : tests.end();
    return test == tests.end() ? 2 : test->second() ? 0 : 1;
}
