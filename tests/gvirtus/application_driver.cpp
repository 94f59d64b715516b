// SPDX-License-Identifier: LGPL-2.1-or-later
//
// CUDA's driver API, which the preload implements by the runtime's.
#include "tests/gvirtus/application_driver.h"

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>
#include <sys/wait.h>
#include <unistd.h>

namespace
{

#define DRIVER(name, ...) preloaded<int(__VA_ARGS__)>(#name)

int init(unsigned flags = 0)
{
    return DRIVER(cuInit, unsigned)(flags);
}
int create_context(void **context, int device = 0, unsigned flags = 0)
{
    return DRIVER(cuCtxCreate_v2, void **, unsigned, int)(context, flags, device);
}
int destroy_context(void *context)
{
    return DRIVER(cuCtxDestroy_v2, void *)(context);
}
int current(void **context)
{
    return DRIVER(cuCtxGetCurrent, void **)(context);
}
int set_current(void *context)
{
    return DRIVER(cuCtxSetCurrent, void *)(context);
}
int push(void *context)
{
    return DRIVER(cuCtxPushCurrent_v2, void *)(context);
}
int pop(void **context)
{
    return DRIVER(cuCtxPopCurrent_v2, void **)(context);
}
int retain(void **context, int device)
{
    return DRIVER(cuDevicePrimaryCtxRetain, void **, int)(context, device);
}
int release(int device)
{
    return DRIVER(cuDevicePrimaryCtxRelease_v2, int)(device);
}
int allocate(Address *address, std::size_t n)
{
    return DRIVER(cuMemAlloc_v2, Address *, std::size_t)(address, n);
}
int free_memory(Address address)
{
    return DRIVER(cuMemFree_v2, Address)(address);
}
int to_device(Address to, const void *from, std::size_t n)
{
    return DRIVER(cuMemcpyHtoD_v2, Address, const void *, std::size_t)(to, from, n);
}
int from_device(void *to, Address from, std::size_t n)
{
    return DRIVER(cuMemcpyDtoH_v2, void *, Address, std::size_t)(to, from, n);
}
int synchronize()
{
    return DRIVER(cuCtxSynchronize)();
}

// The device has these bytes.
bool memory_has(Address address, const std::vector<char> &bytes)
{
    std::vector<char> back(bytes.size(), 'x');
    REQUIRE(from_device(back.data(), address, back.size()) == 0);
    return HOLDS(back == bytes);
}

char *at(Address address)
{
    return reinterpret_cast<char *>(static_cast<std::uintptr_t>(address));
}

// An error of the driver is not the runtime's last error.
bool refuses(int rc, int code)
{
    if (rc != code)
        std::fprintf(stderr, "%d instead of %d\n", rc, code);
    REQUIRE(rc == code);
    return HOLDS(cudaGetLastError() == 0);
}

} // namespace

// Before cuInit, devices, names of errors.
bool driver_begins()
{
    int count = -1, value = -1, device = -1;
    void *context = &count;
    const char *text = nullptr;
    auto *get_count = DRIVER(cuDeviceGetCount, int *);
    REQUIRE(get_count(&count) == 3 && count == -1 && current(&context) == 3);
    REQUIRE(init(1) == 1 && init() == 0 && init() == 0);
    REQUIRE(get_count(&count) == 0 && count == 2 && get_count(nullptr) == 1);
    auto *get = DRIVER(cuDeviceGet, int *, int);
    REQUIRE(get(&device, 1) == 0 && device == 1 && get(&device, 2) == 101 &&
            get(&device, -1) == 101);
    REQUIRE(device == 1);
    // What does not change is asked for once, and an attribute that does not exist is an error.
    auto *attribute = DRIVER(cuDeviceGetAttribute, int *, int, int);
    REQUIRE(attribute(&value, 33, 1) == 0); // PCI_BUS_ID
    const std::uint64_t calls = stub_calls();
    int again = -1;
    REQUIRE(attribute(&again, 33, 1) == 0 && again == value && stub_calls() == calls);
    REQUIRE(attribute(&value, 102, 0) == 0 && value == 1);
    // Pools of the host's memory, of a node of it and of all, exist where the runtime has them.
    for (const int pools : {142, 144})
        for (device = 0; device < 2; device++)
            REQUIRE(attribute(&value, pools, device) == 0 && value == device);
    REQUIRE(attribute(nullptr, 33, 0) == 1 && attribute(&value, 33, 7) == 101);
    // There is no context yet.
    REQUIRE(current(&context) == 0 && !context);
    Address address = 0;
    REQUIRE(allocate(&address, 100) == 201 && synchronize() == 201 && !address);
    auto *error_name = DRIVER(cuGetErrorName, int, const char **);
    auto *error_string = DRIVER(cuGetErrorString, int, const char **);
    REQUIRE(error_name(201, &text) == 0 && !std::strcmp(text, "CUDA_ERROR_INVALID_CONTEXT"));
    REQUIRE(error_string(500, &text) == 0 && !std::strcmp(text, "named symbol not found"));
    REQUIRE(error_name(12345, &text) == 1 && !text && error_name(0, nullptr) == 1);
    return HOLDS(cudaGetLastError() == 0);
}

// A context goes, with what was made in it, when it was detached as often as it was made and
// attached.
static bool detached_contexts()
{
    void *context = nullptr, *again = nullptr, *is = nullptr, *before = nullptr;
    Address memory = 0;
    auto *attach = DRIVER(cuCtxAttach, void **, unsigned);
    auto *detach = DRIVER(cuCtxDetach, void *);
    REQUIRE(current(&before) == 0);
    REQUIRE(create_context(&context, 0) == 0 && allocate(&memory, 5000) == 0);
    REQUIRE(attach(&again, 1) == 1 && attach(&again, 0) == 0 && again == context);
    REQUIRE(detach(nullptr) == 201 && detach(&is) == 201);
    REQUIRE(detach(context) == 0 && current(&is) == 0 && is == context);
    REQUIRE(detach(context) == 0 && current(&is) == 0 && is == before);
    REQUIRE(detach(context) == 201 && set_current(context) == 201);
    return refuses(free_memory(memory), 1);
}

// The stack of contexts, primary ones, and what goes with one.
bool driver_contexts()
{
    void *one = nullptr, *other = nullptr, *is = nullptr, *first = nullptr, *second = nullptr;
    int device = -1;
    auto *get_device = DRIVER(cuCtxGetDevice, int *);
    REQUIRE(init() == 0 && get_device(&device) == 201 && pop(&is) == 201);
    REQUIRE(create_context(&one, 0) == 0 && create_context(&other, 1) == 0 && one != other);
    REQUIRE(create_context(&is, 9) == 101 && create_context(nullptr) == 1);
    REQUIRE(current(&is) == 0 && is == other && get_device(&device) == 0 && device == 1);
    REQUIRE(cudaGetDevice(&device) == 0 && device == 1); // it is the runtime's, too
    unsigned flags = 0;                                  // CU_CTX_SCHED_SPIN, CU_CTX_MAP_HOST
    REQUIRE(DRIVER(cuCtxSetFlags, unsigned)(1) == 0 &&
            DRIVER(cuCtxGetFlags, unsigned *)(&flags) == 0);
    REQUIRE(flags == 9 && DRIVER(cuCtxSetFlags, unsigned)(0) == 0);
    REQUIRE(pop(&is) == 0 && is == other && get_device(&device) == 0 && device == 0);
    REQUIRE(push(other) == 0 && push(one) == 0 && get_device(&device) == 0 && device == 0);
    REQUIRE(pop(nullptr) == 0 && current(&is) == 0 && is == other);
    REQUIRE(retain(&first, 0) == 0 && retain(&second, 1) == 0 && first != one);
    REQUIRE(set_current(first) == 0 && current(&is) == 0 && is == first);
    REQUIRE(get_device(&device) == 0 && device == 0);
    // Below it is the one that was pushed first.
    REQUIRE(pop(nullptr) == 0 && current(&is) == 0 && is == one);
    REQUIRE(set_current(other) == 0);
    REQUIRE(push(reinterpret_cast<void *>(&device)) == 201);
    // Of this thread alone.
    int others = -1;
    std::thread([&] {
        void *none = &others;
        others = current(&none) == 0 && !none && set_current(one) == 0 && get_device(&device) == 0
                     ? device
                     : -2;
    }).join();
    REQUIRE(others == 0);
    // What was made in it goes with it.
    Address kept = 0, gone = 0;
    void *stream = nullptr, *event = nullptr;
    REQUIRE(set_current(one) == 0 && allocate(&kept, 5000) == 0 && set_current(other) == 0);
    REQUIRE(allocate(&gone, 5000) == 0);
    REQUIRE(DRIVER(cuStreamCreate, void **, unsigned)(&stream, 0) == 0 && stream);
    REQUIRE(DRIVER(cuEventCreate, void **, unsigned)(&event, 0) == 0 && event);
    REQUIRE(DRIVER(cuStreamGetCtx, void *, void **)(stream, &is) == 0 && is == other);
    REQUIRE(destroy_context(other) == 0 && current(&is) == 0 && !is);
    REQUIRE(destroy_context(other) == 201 && set_current(other) == 201 && push(other) == 201);
    REQUIRE(set_current(one) == 0);
    REQUIRE(free_memory(kept) == 0 && refuses(free_memory(kept), 1));
    REQUIRE(refuses(free_memory(gone), 1));
    // Memory that the runtime has given back is nobody's.
    REQUIRE(allocate(&gone, 5000) == 0 && cudaFree(at(gone)) == 0);
    void *mine = nullptr;
    REQUIRE(cudaMalloc(&mine, 5000) == 0 && destroy_context(one) == 0);
    REQUIRE(cudaSetDevice(0) == 0 && cudaMemset(mine, 1, 5000) == 0 && cudaFree(mine) == 0);
    REQUIRE(release(0) == 0 && release(1) == 0 && release(1) == 201 && release(4) == 101);
    REQUIRE(detached_contexts());
    return HOLDS(cudaGetLastError() == 0);
}

// A context that another thread has destroyed; a child has none of its parent's.
bool driver_context_of_threads()
{
    void *context = nullptr, *is = nullptr;
    Address memory = 0;
    REQUIRE(init() == 0 && create_context(&context) == 0 && allocate(&memory, 1000) == 0);
    const pid_t child = fork();
    if (!child) {
        const bool alone = current(&is) == 3 && init() == 0 && current(&is) == 0 && !is &&
                           set_current(context) == 201 && destroy_context(context) == 201;
        _exit(alone ? 0 : 1);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    REQUIRE(memory_has(memory, {}) && free_memory(memory) == 0);
    std::thread([&] { destroy_context(context); }).join();
    Address address = 0;
    REQUIRE(allocate(&address, 10) == 709 && synchronize() == 709);
    REQUIRE(pop(&is) == 0 && is == context && current(&is) == 0);
    return HOLDS(!is);
}

// An error of the driver's is none of the runtime's, while the runtime has one that was not asked
// for, or has work whose result is not known yet.
bool driver_errors_apart()
{
    void *memory = nullptr, *none = nullptr;
    Address address = 0;
    REQUIRE(cudaMalloc(&memory, 3000) == 0 && cudaGetLastError() == 0);
    REQUIRE(cudaMalloc(&none, std::size_t(1) << 50) == 2);
    REQUIRE(free_memory(12345) == 1 && synchronize() == 0 && free_memory(12345) == 1);
    REQUIRE(cudaPeekAtLastError() == 2 && free_memory(12345) == 1 && cudaGetLastError() == 2);
    REQUIRE(cudaGetLastError() == 0 && cudaMemsetAsync(memory, 0, 3000, nullptr) == 0);
    // One that this library has found, and then one of the back end's, which is newer.
    REQUIRE(preloaded<int(void *)>("cudaLibraryUnload")(&memory) == 400);
    REQUIRE(cudaMalloc(&none, std::size_t(1) << 50) == 2 && free_memory(12345) == 1);
    REQUIRE(cudaGetLastError() == 2 && cudaGetLastError() == 0);
    for (unsigned i = 0; i < 100; i++) {
        for (unsigned k = 0; k < 20; k++)
            REQUIRE(cudaMemsetAsync(memory, 0, 3000, nullptr) == 0);
        REQUIRE(allocate(&address, std::size_t(1) << 50) == 2 && cudaGetLastError() == 0);
    }
    return HOLDS(cudaFree(memory) == 0 && cudaGetLastError() == 0);
}

// A driver's call that waits tells of the runtime's work that failed after its call had returned.
// That error is the runtime's, too.
bool driver_tells_late_errors()
{
    char *memory = device_memory(3000),
         *none = reinterpret_cast<char *>(std::uintptr_t(0x7f) << 40); // which nobody has given out
    unsigned early = 0;
    const auto set = [&](char *at) { return cudaMemsetAsync(at, 0, 3000, nullptr); };
    REQUIRE(memory);
    for (unsigned i = 0; i < 20; i++) {
        for (unsigned k = 0; k < 20; k++)
            REQUIRE(set(memory) == 0);
        REQUIRE(synchronize() == 0 && set(memory) == 0);
        const int rc = set(none);
        early += !rc;
        if (i % 2) // one with the same error of its own
            REQUIRE(free_memory(12345) == 1);
        else
            REQUIRE(synchronize() == (rc ? 0 : 1));
        REQUIRE(cudaGetLastError() == 1 && cudaGetLastError() == 0);
    }
    REQUIRE(early);
    return HOLDS(cudaFree(memory) == 0);
}

// A launch by <<<>>> that fails behind an error that nobody has asked for leaves the newer error. A
// call of the driver's that fails leaves none, and does not change which of them is the newer one.
bool driver_keeps_order_of_errors()
{
    auto *push =
        preloaded<unsigned(StubDim3, StubDim3, std::size_t, void *)>("__cudaPushCallConfiguration");
    auto *pop =
        preloaded<int(StubDim3 *, StubDim3 *, std::size_t *, void *)>("__cudaPopCallConfiguration");
    auto *unregister = preloaded<int(void *)>("cudaHostUnregister");
    std::size_t n = 1000;
    char *device = device_memory(2 * n), *to = device + n;
    void *arguments[] = {&to, &device, &n}, *wrong = &n;
    const auto by_brackets = [&](void *on, unsigned threads = 32) {
        StubDim3 grid = {}, block = {};
        std::size_t shared = 0;
        void *stream = nullptr;
        return push({1, 1, 1}, {threads, 1, 1}, 0, on) || pop(&grid, &block, &shared, &stream)
                   ? -1
                   : cudaLaunchKernel(&stub_kernel, grid, block, arguments, shared, stream);
    };
    REQUIRE(by_brackets(nullptr) == 0 && cudaGetLastError() == 0);
    for (unsigned i = 0; i < 6; i++) { // the launch's error stays, not that of the driver's call
        REQUIRE(by_brackets(wrong) == 0 && free_memory(12345) == 1);
        REQUIRE(cudaPeekAtLastError() == 400 && cudaGetLastError() == 400);
        REQUIRE(cudaGetLastError() == 0 && by_brackets(nullptr) == 0 && cudaGetLastError() == 0);
    }
    for (unsigned i = 0; i < 6; i++) { // launches that succeed leave none, though they might fail
        REQUIRE(by_brackets(wrong) == 0 && cudaPeekAtLastError() == 400 && unregister(&n) == 713);
        REQUIRE(by_brackets(nullptr, 33 + i) == 0 && cudaPeekAtLastError() == 713);
        REQUIRE(cudaGetLastError() == 713 && cudaGetLastError() == 0);
    }
    for (unsigned i = 0; i < 6; i++) {
        REQUIRE(cudaDeviceSynchronize() == 0 && unregister(&n) == 713);
        REQUIRE(free_memory(12345) == 1 && cudaPeekAtLastError() == 713);
        // with the launch's error, since the back end keeps one of the two
        REQUIRE(by_brackets(i % 2 ? wrong : nullptr) == 0);
        REQUIRE(DRIVER(cuStreamQuery, void *)(wrong) == 400);
        REQUIRE(cudaGetLastError() == (i % 2 ? 400 : 713) && cudaGetLastError() == 0);
        REQUIRE(by_brackets(nullptr) == 0 && cudaGetLastError() == 0);
    }
    return HOLDS(cudaFree(device) == 0);
}

// Both in one program: the runtime's call makes the device's context current.
bool driver_and_runtime()
{
    void *context = nullptr, *primary = nullptr, *memory = nullptr;
    int device = -1;
    REQUIRE(init() == 0 && current(&context) == 0 && !context);
    REQUIRE(cudaMalloc(&memory, 3000) == 0);
    REQUIRE(current(&context) == 0 && context && retain(&primary, 0) == 0 && context == primary);
    const std::vector<char> bytes = random_bytes(3000, 3);
    REQUIRE(to_device(reinterpret_cast<std::uintptr_t>(memory), bytes.data(), 3000) == 0);
    REQUIRE(device_has(static_cast<char *>(memory), bytes.data(), 3000));
    // From then on the context's device is the one that the runtime selects.
    REQUIRE(cudaSetDevice(1) == 0 && DRIVER(cuCtxGetDevice, int *)(&device) == 0 && device == 1);
    REQUIRE(retain(&primary, 1) == 0 && current(&context) == 0 && context == primary);
    REQUIRE(set_current(nullptr) == 0 && current(&context) == 0 && !context);
    REQUIRE(cudaSetDevice(0) == 0 && cudaFree(memory) == 0);
    // Errors of the driver's are none of the runtime's, and the other way round.
    REQUIRE(cudaMalloc(&memory, 100) == 0 && refuses(free_memory(12345), 1));
    REQUIRE(preloaded<int(void *)>("cudaLibraryUnload")(&device) == 400);
    REQUIRE(synchronize() == 0 && free_memory(12345) == 1);
    REQUIRE(cudaPeekAtLastError() == 400 && cudaGetLastError() == 400 && cudaGetLastError() == 0);
    return HOLDS(cudaFree(memory) == 0);
}

namespace
{

// CUDA_MEMCPY2D
struct DriverRows {
    std::size_t from_x, from_y;
    int from_type;
    const void *from_host;
    Address from_device;
    void *from_array;
    std::size_t from_pitch, to_x, to_y;
    int to_type;
    void *to_host;
    Address to_device;
    void *to_array;
    std::size_t to_pitch, width, height;
};

template <typename Value>
bool is_set(const char *name, const char *asynchronous, Address memory, Value value)
{
    constexpr std::size_t count = 5001;
    auto *set = preloaded<int(Address, Value, std::size_t)>(name);
    auto *set_in = preloaded<int(Address, Value, std::size_t, void *)>(asynchronous);
    std::vector<char> expected((count + 1) * sizeof(Value), 'z');
    for (int in_stream = 0; in_stream < 2; in_stream++) {
        std::memset(expected.data(), 'z', expected.size());
        REQUIRE(to_device(memory, expected.data(), expected.size()) == 0);
        for (std::size_t i = 0; i < count; i++)
            std::memcpy(expected.data() + i * sizeof(Value), &value, sizeof(Value));
        REQUIRE((in_stream ? set_in(memory, value, count, nullptr) : set(memory, value, count)) ==
                0);
        REQUIRE(memory_has(memory, expected));
    }
    REQUIRE(set(memory, value, 0) == 0);
    return HOLDS(sizeof(Value) == 1 || refuses(set(memory + 1, value, 1), 1));
}

} // namespace

bool driver_memory()
{
    void *context = nullptr;
    Address one = 0, other = 0, base = 0;
    std::size_t n = 0;
    const std::size_t bytes_there = 100000;
    REQUIRE(init() == 0 && create_context(&context) == 0);
    REQUIRE(allocate(&one, bytes_there) == 0 && allocate(&other, bytes_there) == 0);
    REQUIRE(refuses(allocate(&base, 0), 1) && refuses(allocate(nullptr, 1), 1) && !base);
    const std::vector<char> bytes = random_bytes(bytes_there, 5);
    REQUIRE(to_device(one, bytes.data(), bytes_there) == 0 && memory_has(one, bytes));
    REQUIRE(DRIVER(cuMemcpyDtoD_v2, Address, Address, std::size_t)(other, one, bytes_there) == 0);
    REQUIRE(memory_has(other, bytes));
    // By address alone, and in a stream.
    std::vector<char> back(bytes_there);
    const auto host = [](void *memory) { return reinterpret_cast<std::uintptr_t>(memory); };
    auto *copy = DRIVER(cuMemcpy, Address, Address, std::size_t);
    REQUIRE(copy(host(back.data()), other, bytes_there) == 0 && back == bytes);
    void *stream = nullptr;
    REQUIRE(DRIVER(cuStreamCreate, void **, unsigned)(&stream, 1) == 0);
    back.assign(bytes_there, 0);
    REQUIRE(DRIVER(cuMemcpyHtoDAsync_v2, Address, const void *, std::size_t,
                   void *)(one, bytes.data() + 1, 1000, stream) == 0);
    REQUIRE(DRIVER(cuMemcpyDtoDAsync_v2, Address, Address, std::size_t, void *)(other, one, 1000,
                                                                                stream) == 0);
    REQUIRE(DRIVER(cuMemcpyDtoHAsync_v2, void *, Address, std::size_t, void *)(back.data(), other,
                                                                               1000, stream) == 0);
    REQUIRE(DRIVER(cuStreamSynchronize, void *)(stream) == 0);
    REQUIRE(!std::memcmp(back.data(), bytes.data() + 1, 1000));
    REQUIRE(DRIVER(cuStreamDestroy_v2, void *)(stream) == 0);
    // Where an address lies.
    auto *range = DRIVER(cuMemGetAddressRange_v2, Address *, std::size_t *, Address);
    REQUIRE(range(&base, &n, one + 777) == 0 && base == one && n == bytes_there);
    REQUIRE(range(nullptr, nullptr, one) == 0 && range(&base, &n, 4096) == 500);
    // Sets of one, two and four bytes.
    REQUIRE(is_set<unsigned char>("cuMemsetD8_v2", "cuMemsetD8Async", other, 0x5a));
    REQUIRE(is_set<unsigned short>("cuMemsetD16_v2", "cuMemsetD16Async", other, 0x1234));
    REQUIRE(is_set<unsigned short>("cuMemsetD16_v2", "cuMemsetD16Async", other, 0x7777));
    REQUIRE(is_set<unsigned>("cuMemsetD32_v2", "cuMemsetD32Async", other, 0x12345678));
    REQUIRE(is_set<unsigned>("cuMemsetD32_v2", "cuMemsetD32Async", other, 0));
    auto *set = DRIVER(cuMemsetD8_v2, Address, unsigned char, std::size_t);
    REQUIRE(set(one + 1, 'e', bytes_there - 1) == 0 && refuses(set(one + 1, 'e', bytes_there), 1));
    REQUIRE(to_device(one, bytes.data(), bytes_there) == 0);
    // Rows.
    DriverRows rows = {};
    rows.from_type = 1, rows.from_host = bytes.data(), rows.from_pitch = 50;
    rows.from_x = 3, rows.from_y = 2;
    rows.to_type = 2, rows.to_device = one, rows.to_pitch = 64, rows.to_x = 1, rows.to_y = 4;
    rows.width = 40, rows.height = 30;
    auto *copy_rows = DRIVER(cuMemcpy2D_v2, const DriverRows *);
    REQUIRE(copy_rows(&rows) == 0);
    for (std::size_t y = 0; y < 30; y++) {
        const std::size_t from = (y + 2) * 50 + 3;
        REQUIRE(memory_has(one + (y + 4) * 64 + 1,
                           std::vector<char>(bytes.data() + from, bytes.data() + from + 40)));
    }
    rows.width = 70;
    REQUIRE(refuses(copy_rows(&rows), 1));
    rows.width = 40, rows.to_type = 9;
    REQUIRE(refuses(copy_rows(&rows), 1) && refuses(copy_rows(nullptr), 1));
    // Page-locked memory.
    void *pinned = nullptr;
    unsigned flags = 9;
    REQUIRE(DRIVER(cuMemHostAlloc, void **, std::size_t, unsigned)(&pinned, 5000, 0) == 0);
    REQUIRE(DRIVER(cuMemHostGetFlags, unsigned *, void *)(&flags, pinned) == 0);
    // What pointers are.
    auto *ask = DRIVER(cuPointerGetAttribute, void *, int, Address);
    int type = 0;
    void *owner = nullptr;
    int managed = 9;
    REQUIRE(ask(&type, 2, one + 5) == 0 && type == 2 && ask(&type, 2, host(pinned)) == 0);
    REQUIRE(type == 1);
    REQUIRE(ask(&owner, 1, one + 5) == 0);
    REQUIRE(owner == context);
    REQUIRE(ask(&managed, 8, one) == 0 && managed == 0 && ask(&base, 11, one + 9) == 0);
    REQUIRE(base == one && refuses(ask(&type, 2, host(back.data())), 1));
    REQUIRE(refuses(ask(&type, 99, one), 1) && refuses(ask(nullptr, 2, one), 1));
    const int kinds[] = {2, 9};
    int device = 7;
    void *data[] = {&type, &device};
    auto *ask_all = DRIVER(cuPointerGetAttributes, unsigned, const int *, void **, Address);
    REQUIRE(ask_all(2, kinds, data, one) == 0 && type == 2 && device == 0);
    REQUIRE(ask_all(2, kinds, data, host(back.data())) == 0 && type == 0 && device == -2);
    REQUIRE(DRIVER(cuMemFreeHost, void *)(pinned) == 0);
    REQUIRE(free_memory(one) == 0 && free_memory(other) == 0 && refuses(free_memory(one), 1));
    return HOLDS(destroy_context(context) == 0);
}

// Modules, functions and launches.
bool driver_modules()
{
    void *context = nullptr, *module = nullptr, *function = nullptr, *stream = nullptr, *is;
    Address memory = 0, address = 0;
    std::size_t n = 0;
    unsigned count = 0;
    constexpr std::size_t each = 4000;
    const std::vector<char> image = library_cubin();
    REQUIRE(init() == 0);
    auto *load = DRIVER(cuModuleLoadData, void **, const void *);
    REQUIRE(load(&module, image.data()) == 201 && create_context(&context) == 0);
    REQUIRE(load(&module, image.data()) == 0 && module);
    auto *get = DRIVER(cuModuleGetFunction, void **, void *, const char *);
    REQUIRE(get(&function, module, STUB_LIBRARY_KERNEL) == 0 && function);
    REQUIRE(refuses(get(&is, module, "no such"), 500) && refuses(get(&is, nullptr, "x"), 400));
    REQUIRE(DRIVER(cuModuleGetFunctionCount, unsigned *, void *)(&count, module) == 0 &&
            count == 2);
    REQUIRE(DRIVER(cuFuncGetModule, void **, void *)(&is, function) == 0 && is == module);
    auto *global = DRIVER(cuModuleGetGlobal_v2, Address *, std::size_t *, void *, const char *);
    REQUIRE(global(&address, &n, module, "v1.16.8") == 0 && address && n == 8);
    REQUIRE(refuses(global(&address, &n, module, "other"), 500) && !address && !n);
    REQUIRE(allocate(&memory, 2 * each) == 0);
    REQUIRE(DRIVER(cuStreamCreate, void **, unsigned)(&stream, 0) == 0);
    auto *launch = DRIVER(cuLaunchKernel, void *, unsigned, unsigned, unsigned, unsigned, unsigned,
                          unsigned, unsigned, void *, void **, void **);
    struct Packed {
        Address to, from;
        std::size_t n;
    } packed = {memory + each, memory, each};
    std::size_t size = sizeof(packed);
    void *arguments[] = {&packed.to, &packed.from, &packed.n};
    void *extra[] = {reinterpret_cast<void *>(1), &packed, reinterpret_cast<void *>(2), &size,
                     nullptr};
    for (unsigned i = 0; i < 6; i++) {
        const std::vector<char> bytes = random_bytes(each, 40 + i);
        REQUIRE(to_device(memory, bytes.data(), each) == 0);
        REQUIRE(launch(function, 1, 1, 1, 1, 1, 1, 0, stream, i % 2 ? nullptr : arguments,
                       i % 2 ? extra : nullptr) == 0);
        REQUIRE(DRIVER(cuStreamSynchronize, void *)(stream) == 0 &&
                memory_has(memory + each, bytes));
    }
    // A launch like earlier ones costs what one by the runtime does.
    const std::uint64_t calls = stub_calls();
    for (unsigned i = 0; i < 50; i++)
        REQUIRE(launch(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr) == 0);
    REQUIRE(stub_calls() == calls && synchronize() == 0);
    REQUIRE(refuses(launch(nullptr, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr), 400));
    REQUIRE(refuses(launch(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, extra), 1));
    struct {
        unsigned grid[3], block[3], shared;
        void *stream, *attributes;
        unsigned count;
    } config = {{1, 1, 1}, {1, 1, 1}, 0, stream, nullptr, 0};
    const std::vector<char> bytes = random_bytes(each, 77);
    REQUIRE(to_device(memory, bytes.data(), each) == 0);
    REQUIRE(DRIVER(cuLaunchKernelEx, const void *, void *, void **,
                   void **)(&config, function, arguments, nullptr) == 0);
    REQUIRE(synchronize() == 0 && memory_has(memory + each, bytes));
    auto *unload = DRIVER(cuModuleUnload, void *);
    REQUIRE(unload(module) == 0 && refuses(unload(module), 400));
    // PTX, by the linker, whose options have nothing to tell.
    const std::string ptx =
        ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry " STUB_LIBRARY_KERNEL
        "(.param .u64 a, .param .u64 b, .param .align 8 .b8 c[8])\n{\n ret;\n}";
    void *state = nullptr, *linked = nullptr;
    char log[10] = "full";
    int options[] = {3, 4, 2};
    void *values[] = {log, reinterpret_cast<void *>(sizeof(log)), nullptr};
    auto *create = DRIVER(cuLinkCreate_v2, unsigned, int *, void **, void **);
    auto *add = DRIVER(cuLinkAddData_v2, void *, int, const void *, std::size_t, const char *,
                       unsigned, int *, void **);
    REQUIRE(create(3, options, values, &state) == 0);
    REQUIRE(add(state, 1, ptx.data(), ptx.size(), "x", 0, nullptr, nullptr) == 0);
    REQUIRE(DRIVER(cuLinkComplete, void *, void **, std::size_t *)(state, &linked, &n) == 0);
    REQUIRE(DRIVER(cuModuleLoadDataEx, void **, const void *, unsigned, int *,
                   void **)(&module, linked, 3, options, values) == 0);
    REQUIRE(!log[0] && !values[1] && DRIVER(cuLinkDestroy, void *)(state) == 0);
    REQUIRE(get(&function, module, STUB_LIBRARY_KERNEL) == 0);
    REQUIRE(launch(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) == 0);
    REQUIRE(refuses(load(&is, "junk junk"), 200) && refuses(load(&is, nullptr), 1));
    REQUIRE(refuses(DRIVER(cuModuleLoad, void **, const char *)(&is, "/no/such"), 301));
    // A library's kernel is what a module's function is; the module goes with its context.
    void *library = nullptr, *kernel = nullptr;
    REQUIRE(
        DRIVER(cuLibraryLoadData, void **, const void *, int *, void **, unsigned, int *, void **,
               unsigned)(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0) == 0);
    REQUIRE(DRIVER(cuLibraryGetKernel, void **, void *, const char *)(&kernel, library,
                                                                      STUB_LIBRARY_KERNEL) == 0);
    REQUIRE(launch(kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) == 0);
    const std::uint64_t unloads = stub_unloads();
    REQUIRE(destroy_context(context) == 0 && stub_unloads() == unloads + 1);
    REQUIRE(DRIVER(cuLibraryUnload, void *)(library) == 0 && stub_unloads() == unloads + 2);
    return HOLDS(cudaGetLastError() == 0);
}

// CUDA permits no copy between contexts in a capture, which has no graph then. The contexts of such
// a copy may be NULL, since an address belongs to one device.
bool copies_peers(Address memory, void *context, void *stream)
{
    PeerCopy copy = {};
    copy.from_type = copy.to_type = 2; // CU_MEMORYTYPE_DEVICE
    copy.from_context = copy.to_context = context;
    copy.from = memory, copy.to = memory + 2000;
    copy.width = 100, copy.rows = copy.planes = 1;
    const auto captured = [&](const auto &copied) {
        void *graph = nullptr;
        return !cu("cuStreamBeginCapture_v2", stream, 0) && copied() == 900 &&
               cu("cuStreamEndCapture", stream, static_cast<void **>(&graph)) == 901 && !graph;
    };
    const auto peer = [&](void *to, void *from) {
        return cu("cuMemcpyPeerAsync", memory + 2000, to, memory, from, std::size_t{100}, stream);
    };
    const auto in_planes = [&] {
        return cu("cuMemcpy3DPeerAsync", static_cast<const void *>(&copy), stream);
    };
    const auto at_once = [&] { return cu("cuMemcpy3DPeer", static_cast<const void *>(&copy)); };
    REQUIRE(captured([&] { return peer(context, context); }) && captured(in_planes));
    copy.to_context = nullptr;
    REQUIRE(captured([&] { return peer(nullptr, context); }) && captured(in_planes));
    REQUIRE(peer(nullptr, context) == 0 && in_planes() == 0 && at_once() == 0);
    REQUIRE(cu("cuMemcpyPeer", memory + 2000, context, memory, static_cast<void *>(nullptr),
               std::size_t{100}) == 0);
    copy.from_context = &copy; // no context
    REQUIRE(peer(context, &copy) == 201 && in_planes() == 201 && at_once() == 201);
    copy.width = 0;
    return HOLDS(in_planes() == 0 && at_once() == 0);
}

// Streams, events, functions of the host, graphs, memory in a stream's order.
bool driver_streams()
{
    void *context = nullptr, *stream = nullptr, *event = nullptr, *graph = nullptr, *exec = nullptr;
    Address memory = 0;
    REQUIRE(init() == 0 && create_context(&context) == 0);
    REQUIRE(DRIVER(cuStreamCreate, void **, unsigned)(&stream, 1) == 0);
    REQUIRE(DRIVER(cuEventCreate, void **, unsigned)(&event, 2) == 0);
    REQUIRE(DRIVER(cuEventRecord, void *, void *)(event, stream) == 0);
    REQUIRE(DRIVER(cuStreamWaitEvent, void *, void *, unsigned)(nullptr, event, 0) == 0);
    REQUIRE(DRIVER(cuEventSynchronize, void *)(event) == 0);
    REQUIRE(DRIVER(cuEventQuery, void *)(event) == 0);
    REQUIRE(DRIVER(cuStreamQuery, void *)(stream) == 0);
    static std::atomic<int> called, status;
    static int ten = 10;
    REQUIRE(DRIVER(cuLaunchHostFunc, void *, void (*)(void *), void *)(
                stream, [](void *) { called++; }, nullptr) == 0);
    REQUIRE(DRIVER(cuStreamAddCallback, void *, void (*)(void *, int, void *), void *, unsigned)(
                stream,
                [](void *, int rc, void *add) {
                    status = rc;
                    called += *static_cast<int *>(add);
                },
                &ten, 0) == 0);
    REQUIRE(DRIVER(cuStreamSynchronize, void *)(stream) == 0 && called == 11 && status == 0);
    REQUIRE(DRIVER(cuMemAllocAsync, Address *, std::size_t, void *)(&memory, 4000, stream) == 0);
    REQUIRE(copies_peers(memory, context, stream));
    // Captured: elements that no byte alone makes are a node.
    REQUIRE(DRIVER(cuStreamBeginCapture_v2, void *, int)(stream, 0) == 0);
    REQUIRE(DRIVER(cuMemsetD32Async, Address, unsigned, std::size_t, void *)(memory, 0x01020304,
                                                                             1000, stream) == 0);
    REQUIRE(DRIVER(cuStreamEndCapture, void *, void **)(stream, &graph) == 0 && graph);
    REQUIRE(DRIVER(cuGraphInstantiateWithFlags, void **, void *, unsigned long long)(&exec, graph,
                                                                                     0) == 0);
    REQUIRE(DRIVER(cuGraphLaunch, void *, void *)(exec, stream) == 0);
    REQUIRE(DRIVER(cuStreamSynchronize, void *)(stream) == 0);
    std::vector<char> expected;
    for (unsigned i = 0; i < 1000; i++)
        expected.insert(expected.end(), {4, 3, 2, 1});
    REQUIRE(memory_has(memory, expected));
    REQUIRE(DRIVER(cuGraphExecDestroy, void *)(exec) == 0);
    REQUIRE(DRIVER(cuGraphDestroy, void *)(graph) == 0);
    REQUIRE(DRIVER(cuMemFreeAsync, Address, void *)(memory, stream) == 0);
    REQUIRE(DRIVER(cuEventDestroy_v2, void *)(event) == 0);
    return HOLDS(destroy_context(context) == 0);
}

// How functions are found by their names.
bool driver_entry_points()
{
    void *found = nullptr;
    int status = -1;
    auto *get = DRIVER(cuGetProcAddress_v2, const char *, void **, int, unsigned long long, int *);
    const auto is = [](const char *name) { return dlsym(RTLD_DEFAULT, name); };
    REQUIRE(get("cuInit", &found, 12000, 0, &status) == 0 && status == 0 && found == is("cuInit"));
    REQUIRE(get("cuMemAlloc", &found, 12000, 0, &status) == 0 && found == is("cuMemAlloc_v2"));
    REQUIRE(get("cuCtxCreate", &found, 11000, 0, &status) == 0 && found == is("cuCtxCreate_v2"));
    REQUIRE(get("cuCtxCreate", &found, 13000, 0, &status) == 0 && found == is("cuCtxCreate_v4"));
    REQUIRE(get("cuLaunchKernel", &found, 13000, 2, &status) == 0 &&
            found == is("cuLaunchKernel_ptsz"));
    REQUIRE(get("cuMemcpyHtoD", &found, 13000, 2, &status) == 0 &&
            found == is("cuMemcpyHtoD_v2_ptds"));
    REQUIRE(get("cuGreenCtxWaitEvent", &found, 13000, 0, &status) == 0 && status == 1 && !found);
    // Some functions are found though they only return errors: attributes say that the device lacks
    // them.
    REQUIRE(get("cuMulticastCreate", &found, 13000, 0, &status) == 0 && status == 0 && found);
    REQUIRE(get("cudaMalloc", &found, 13000, 0, &status) == 0 && status == 1 && !found);
    REQUIRE(get("cuNoSuch", &found, 13000, 0, nullptr) == 0 && !found &&
            get(nullptr, &found, 1, 0, nullptr) == 1);
    using Get = int(const char *, void **, unsigned, unsigned long long, int *);
    auto *by_runtime = preloaded<Get>("cudaGetDriverEntryPointByVersion");
    REQUIRE(by_runtime("cuMemAlloc", &found, 12000, 0, &status) == 0 && status == 0);
    REQUIRE(found == is("cuMemAlloc_v2"));
    // FFmpeg wants each function of graphics, too, to be in the library.
    for (const char *name :
         {"cuGLGetDevices_v2", "cuGraphicsGLRegisterImage", "cuEGLStreamProducerConnect",
          "cuEGLStreamConsumerDisconnect", "cuEGLStreamProducerReturnFrame", "cuVDPAUGetDevice"}) {
        REQUIRE(is(name) && get(name, &found, 13000, 0, &status) == 0 && status == 1 && !found);
    }
    // Functions that do not exist.
    const void *table = &found;
    REQUIRE(DRIVER(cuGetExportTable, const void **, const void *)(&table, "") == 500 && !table);
    REQUIRE(DRIVER(cuMulticastCreate)() == 801 && DRIVER(cuMulticastCreate)() == 801);
    return HOLDS(cudaGetLastError() == 0);
}
