// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Managed memory while this process captures streams.
#include "tests/gvirtus/application.h"
#include "tests/gvirtus/application_arrays.h"
#include "tests/gvirtus/application_math.h"

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>
#include <unistd.h>

namespace
{

void *const per_thread = reinterpret_cast<void *>(2); // cudaStreamPerThread

// Accesses while this process captures streams: they do not end the captures. A capture ends with
// its stream.
bool beside_own_captures()
{
    constexpr std::size_t length = 100 * 1024;
    char *a = managed_memory(length), *b = managed_memory(length);
    void *captured = nullptr, *other = nullptr, *graph = nullptr;
    std::vector<char> bytes = random_bytes(length, 6);
    REQUIRE(a && b && cudaStreamCreate(&captured) == 0 &&
            cudaStreamCreateWithFlags(&other, 1) == 0);
    std::memcpy(a, bytes.data(), length);
    REQUIRE(cudaStreamBeginCapture(captured, 0) == 0);
    REQUIRE(cudaStreamBeginCapture(captured, 0) == 401 && cudaGetLastError() == 401);
    stub_remote()->slow(20000);
    REQUIRE(stub_launch(b, a, length, other) == 0 && has(b, bytes));
    stub_remote()->slow(0);
    REQUIRE(cudaStreamEndCapture(captured, &graph) == 0 && graph);
    REQUIRE(cudaStreamBeginCapture(captured, 2) == 0 && cudaStreamDestroy(captured) == 0);
    for (unsigned i = 0; i < 3; i++) {
        bytes = random_bytes(length, i);
        std::memcpy(a, bytes.data(), length);
        REQUIRE(stub_launch(b, a, length, nullptr) == 0 && has(b, bytes));
    }
    return HOLDS(cudaFree(a) == 0 && cudaFree(b) == 0);
}

// Also the arrays that are a mipmapped array's levels.
bool mipmap_freed_in_a_capture(void *captured)
{
    using Make = int(void **, const ibx_cuda_channel *, ibx_cuda_extent, unsigned, unsigned);
    using Extent = int(ibx_cuda_channel *, ibx_cuda_extent *, unsigned *, void *);
    auto *give_back = preloaded<int(void *)>("cudaFreeMipmappedArray");
    auto *level_of = preloaded<int(void **, const void *, unsigned)>("cudaGetMipmappedArrayLevel");
    void *mipmap = nullptr, *level = nullptr, *again = nullptr, *graph = nullptr;
    ibx_cuda_extent extent = {};
    REQUIRE(preloaded<Make>("cudaMallocMipmappedArray")(&mipmap, &channel_of_floats, {64, 32, 0}, 3,
                                                        0) == 0);
    REQUIRE(level_of(&level, mipmap, 1) == 0 && cudaStreamBeginCapture(captured, 2) == 0);
    stub_remote()->inject("cuMemFree", 1, 900, false);
    REQUIRE(fails(give_back(mipmap), 900) && cudaStreamEndCapture(captured, &graph) == 0);
    REQUIRE(preloaded<Extent>("cudaArrayGetInfo")(nullptr, &extent, nullptr, level) == 0);
    REQUIRE(extent.width == 32 && extent.height == 16);
    REQUIRE(level_of(&again, mipmap, 1) == 0 && again == level && give_back(mipmap) == 0);
    return HOLDS(fails(level_of(&again, mipmap, 1), 1));
}

// CUDA frees nothing in a capture that is not of mode relaxed: the program still has it.
bool freed_in_a_capture()
{
    using MakeArray = int(void **, const int *, std::size_t, std::size_t, unsigned);
    auto *make_array = preloaded<MakeArray>("cudaMallocArray");
    auto *free_array = preloaded<int(void *)>("cudaFreeArray");
    auto *ask = preloaded<int(int *, void *, unsigned *, void *)>("cudaArrayGetInfo");
    const int channel[5] = {32, 0, 0, 0, 2};
    int seen[5] = {};
    void *array = nullptr;
    constexpr std::size_t length = 100 * 1024;
    char *managed = managed_memory(length), *plain = device_memory(length);
    void *captured = nullptr, *graph = nullptr;
    const std::vector<char> bytes = random_bytes(length, 9);
    std::vector<char> back(length);
    REQUIRE(managed && plain && make_array(&array, channel, 16, 4, 0) == 0);
    REQUIRE(cudaStreamCreate(&captured) == 0);
    std::memcpy(managed, bytes.data(), length);
    REQUIRE(cudaMemcpy(plain, bytes.data(), length, H2D) == 0);
    REQUIRE(cudaStreamBeginCapture(captured, 2) == 0);
    for (char *memory : {managed, plain}) {
        stub_remote()->inject("cuMemFree", 1, 900, false);
        REQUIRE(fails(cudaFree(memory), 900));
    }
    stub_remote()->inject("cuMemFree", 1, 900, false);
    REQUIRE(fails(free_array(array), 900));
    REQUIRE(cudaStreamEndCapture(captured, &graph) == 0 && has(managed, bytes));
    REQUIRE(cudaMemcpy(back.data(), plain, length, DEFAULT) == 0 && back == bytes);
    REQUIRE(ask(seen, nullptr, nullptr, array) == 0 && seen[0] == 32 && free_array(array) == 0);
    REQUIRE(mipmap_freed_in_a_capture(captured));
    REQUIRE(cudaStreamBeginCapture(captured, 2) == 0);
    REQUIRE(cudaFree(managed) == 0 && fails(cudaFree(managed), 1) && cudaFree(plain) == 0);
    REQUIRE(cudaStreamEndCapture(captured, &graph) == 0);
    return HOLDS(cudaStreamDestroy(captured) == 0 && cudaGetLastError() == 0);
}

// Work that a stream has when its capture begins beside another capture is waited for before.
bool begun_beside_captures()
{
    constexpr std::size_t length = 20 * 1024;
    char *from = managed_memory(length), *far = managed_memory(length),
         *to = managed_memory(length);
    void *captured = nullptr, *working = nullptr, *graph = nullptr;
    const std::vector<char> bytes = random_bytes(length, 7);
    REQUIRE(from && far && to && cudaStreamCreateWithFlags(&captured, 1) == 0);
    REQUIRE(cudaStreamCreateWithFlags(&working, 1) == 0);
    std::memcpy(from, bytes.data(), length);
    REQUIRE(cudaStreamBeginCapture(captured, 2) == 0 &&
            stub_launch(far, from, length, captured) == 0);
    stub_remote()->slow(20000);
    for (unsigned i = 0; i < 5; i++)
        REQUIRE(stub_launch(far, from, length, working) == 0);
    REQUIRE(stub_launch(to, far, length, working) == 0 && cudaStreamBeginCapture(working, 0) == 0);
    REQUIRE(has(to, bytes));
    stub_remote()->slow(0);
    REQUIRE(cudaStreamEndCapture(working, &graph) == 0 && graph);
    REQUIRE(cudaStreamEndCapture(captured, &graph) == 0);
    return HOLDS(cudaFree(from) == 0 && cudaFree(far) == 0 && cudaFree(to) == 0);
}

// While the legacy stream cannot be waited for, a thread's own stream is, in an event; bytes that
// the host has written get to the device all the same.
bool own_stream_beside_captures()
{
    constexpr std::size_t length = 20 * 1024;
    char *from = managed_memory(length), *far = managed_memory(length),
         *to = managed_memory(length);
    void *captured = nullptr, *graph = nullptr;
    const std::vector<char> bytes = random_bytes(length, 8);
    REQUIRE(from && far && to && cudaStreamCreate(&captured) == 0);
    std::memcpy(from, bytes.data(), length);
    REQUIRE(cudaStreamBeginCapture(captured, 2) == 0); // another thread may end it
    REQUIRE(stub_launch(to, far, length, captured) == 0);
    stub_remote()->slow(20000);
    for (unsigned i = 0; i < 5; i++)
        REQUIRE(stub_launch(far, from, length, per_thread) == 0);
    REQUIRE(stub_launch(to, far, length, per_thread) == 0);
    std::atomic<bool> read{false};
    int rc = -1;
    const pid_t reader = gettid();
    std::thread ends([&] {
        while (!read && thread_state(getpid(), reader) != 'S')
            usleep(1000);
        rc = cudaStreamEndCapture(captured, &graph);
    });
    const bool good = has(to, bytes);
    read = true;
    ends.join();
    stub_remote()->slow(0);
    REQUIRE(good && rc == 0 && graph);
    return HOLDS(cudaFree(from) == 0 && cudaFree(far) == 0 && cudaFree(to) == 0);
}

// Managed memory that is allocated while another thread, or this one, captures a stream that waits
// for the legacy one: it is zero on the device, whoever had it before, and the capture goes on.
bool allocated_beside_captures()
{
    constexpr std::size_t length = 20 * 1024;
    char *to = managed_memory(length), *device = device_memory(), *old = managed_memory(length);
    void *captured = nullptr, *work = nullptr, *graph = nullptr;
    REQUIRE(to && device && old && cudaStreamCreate(&captured) == 0);
    REQUIRE(cudaStreamCreateWithFlags(&work, 1) == 0 && cudaMemset(old, 5, length) == 0);
    REQUIRE(cudaFree(old) == 0 && cudaStreamBeginCapture(captured, 2) == 0);
    REQUIRE(stub_launch(device, device + length, length, captured) == 0);
    char *made = managed_memory(length);
    REQUIRE(made && stub_launch(to, made, length, work) == 0 && has(to, std::vector<char>(length)));
    made[length - 1] = 3;
    REQUIRE(stub_launch(to, made, length, work) == 0 && to[length - 1] == 3 && to[0] == 0);
    REQUIRE(cudaStreamEndCapture(captured, &graph) == 0 && graph);
    REQUIRE(cudaStreamDestroy(captured) == 0 && cudaStreamDestroy(work) == 0);
    return HOLDS(cudaFree(made) == 0 && cudaFree(to) == 0);
}

// Beside a capture of a blocking stream, while other threads have used their own streams: a thread
// that has waited for its stream, and has gone on or ended, has left no work there.
bool rested_streams_beside_captures()
{
    constexpr std::size_t length = 20 * 1024;
    char *from = managed_memory(length), *to = managed_memory(length), *device = device_memory();
    void *captured = nullptr, *work = nullptr, *graph = nullptr;
    REQUIRE(from && to && device && cudaStreamCreate(&captured) == 0);
    REQUIRE(cudaStreamCreateWithFlags(&work, 1) == 0);
    REQUIRE(cudaStreamBeginCapture(per_thread, 0) == 0); // nothing in it has run
    REQUIRE(stub_launch(device, device + length, length, per_thread) == 0);
    REQUIRE(cudaStreamEndCapture(per_thread, &graph) == 0 && graph);
    REQUIRE(cudaStreamBeginCapture(captured, 2) == 0); // waits are permitted beside it
    REQUIRE(stub_launch(device, device + length, length, captured) == 0);
    int rc = -1;
    const auto use = [&] {
        rc = cudaMemsetAsync(device + 2 * length, 2, length, per_thread);
        rc = rc ? rc : cudaStreamSynchronize(per_thread);
    };
    std::vector<char> bytes = random_bytes(length, 8);
    std::memcpy(from, bytes.data(), length);
    REQUIRE(stub_launch(to, from, length, work) == 0 && has(to, bytes));
    use();
    REQUIRE(rc == 0);
    std::thread(use).join();
    bytes = random_bytes(length, 9);
    std::memcpy(from, bytes.data(), length);
    REQUIRE(rc == 0 && stub_launch(to, from, length, work) == 0 && has(to, bytes));
    REQUIRE(cudaStreamEndCapture(captured, &graph) == 0 && graph);
    REQUIRE(cudaStreamDestroy(captured) == 0 && cudaStreamDestroy(work) == 0);
    return HOLDS(cudaFree(from) == 0 && cudaFree(to) == 0);
}

// Work of this thread's own stream is complete when the capture of a stream that waits for the
// legacy one begins: an access behind later work of others need not wait until that has ended.
bool own_stream_before_a_capture()
{
    constexpr std::size_t length = 20 * 1024;
    char *from = managed_memory(length), *to = managed_memory(length), *device = device_memory();
    void *captured = nullptr, *work = nullptr, *graph = nullptr;
    REQUIRE(from && to && device && cudaStreamCreate(&captured) == 0);
    REQUIRE(cudaStreamCreateWithFlags(&work, 1) == 0);
    for (unsigned i = 0; i < 2; i++) {
        const std::vector<char> bytes = random_bytes(length, 10 + i);
        std::memcpy(from, bytes.data(), length);
        stub_remote()->slow(20000);
        REQUIRE(stub_launch(to, from, length, per_thread) == 0);
        if (i) // for which another thread waits
            REQUIRE(has(to, bytes));
        REQUIRE(cudaStreamBeginCapture(captured, 2) == 0);
        stub_remote()->slow(0);
        REQUIRE(stub_launch(device, device + length, length, captured) == 0);
        REQUIRE(stub_launch(device, to, length, work) == 0 && has(to, bytes));
        REQUIRE(cudaStreamEndCapture(captured, &graph) == 0 && graph);
    }
    REQUIRE(cudaStreamDestroy(captured) == 0 && cudaStreamDestroy(work) == 0);
    return HOLDS(cudaFree(from) == 0 && cudaFree(to) == 0 && cudaFree(device) == 0);
}

// Work that a thread puts into its own stream while a stream that waits for the legacy one is
// captured is waited for, however it got there, and the capture goes on, in whatever mode it is.
bool own_streams_in_a_capture(int mode)
{
    constexpr std::size_t length = 20 * 1024;
    char *from = managed_memory(length), *far = managed_memory(length),
         *to = managed_memory(length), *device = device_memory();
    void *captured = nullptr, *graph = nullptr, *made = nullptr, *exec = nullptr;
    std::vector<char> bytes = random_bytes(length, 12);
    REQUIRE(from && far && to && device && cudaStreamCreate(&captured) == 0);
    std::memcpy(from, bytes.data(), length);
    REQUIRE(cudaStreamBeginCapture(captured, 0) == 0);
    REQUIRE(stub_launch(to, from, length, captured) == 0);
    REQUIRE(cudaStreamEndCapture(captured, &made) == 0);
    REQUIRE(preloaded<int(void **, void *, unsigned long long)>("cudaGraphInstantiate")(&exec, made,
                                                                                        0) == 0);
    REQUIRE(cudaStreamBeginCapture(captured, mode) == 0);
    REQUIRE(stub_launch(device, device + length, length, captured) == 0);
    stub_remote()->slow(20000);
    REQUIRE(stub_launch(to, from, length, per_thread) == 0 && has(to, bytes));
    for (unsigned way = 0; way < 4; way++) {
        int rc = -1;
        bytes = random_bytes(length, 13 + way);
        std::memcpy(from, bytes.data(), length);
        const auto work = [&] {
            rc = stub_launch(far, from, length, per_thread);
            if (way == 0)
                rc = rc ? rc : cudaMemcpyAsync(to, far, length, DEFAULT, per_thread);
            else if (way == 1)
                rc = rc ? rc : cudaMemsetAsync(to, 3, length, per_thread);
            else if (way == 2)
                rc = rc ? rc : preloaded<int(void *, void *)>("cudaGraphLaunch")(exec, per_thread);
            else
                rc = rc ? rc
                        : cudaMemcpy2DAsync(to, length / 2, far, length / 2, length / 2, 2, DEFAULT,
                                            per_thread);
        };
        work();
        REQUIRE(rc == 0 && has(to, way == 1 ? std::vector<char>(length, 3) : bytes));
    }
    stub_remote()->slow(0);
    REQUIRE(cudaStreamEndCapture(captured, &graph) == 0 && graph);
    REQUIRE(preloaded<int(void *)>("cudaGraphExecDestroy")(exec) == 0);
    return HOLDS(cudaFree(from) == 0 && cudaFree(far) == 0 && cudaFree(to) == 0 &&
                 cudaFree(device) == 0 && cudaStreamDestroy(captured) == 0);
}

// The same for work of cuBLAS, whose handle names the stream: behind a kernel there, and alone.
bool libraries_in_a_capture()
{
    constexpr std::size_t length = 20 * 1024;
    char *from = managed_memory(length), *far = managed_memory(length),
         *to = managed_memory(length), *device = device_memory();
    void *captured = nullptr, *graph = nullptr, *handle = nullptr;
    const int count = length / sizeof(double);
    REQUIRE(from && far && to && device && cudaStreamCreate(&captured) == 0);
    REQUIRE(math("cublasCreate_v2", &handle) == 0);
    REQUIRE(math("cublasSetStream_v2", handle, per_thread) == 0);
    REQUIRE(cudaStreamBeginCapture(captured, 2) == 0);
    REQUIRE(stub_launch(device, device + length, length, captured) == 0);
    stub_remote()->slow(20000);
    for (bool alone : {false, true, false}) {
        const std::vector<char> bytes = random_bytes(length, 17 + alone);
        std::memcpy(from, bytes.data(), length);
        if (!alone)
            REQUIRE(stub_launch(far, from, length, per_thread) == 0);
        for (unsigned i = 0; i < 5; i++)
            REQUIRE(math("cublasDcopy_v2", handle, count, from, 1, far, 1) == 0);
        REQUIRE(math("cublasDcopy_v2", handle, count, far, 1, to, 1) == 0);
        REQUIRE(has(to, bytes) && cudaStreamSynchronize(per_thread) == 0);
    }
    stub_remote()->slow(0);
    REQUIRE(cudaStreamEndCapture(captured, &graph) == 0 && graph);
    REQUIRE(math("cublasDestroy_v2", handle) == 0);
    return HOLDS(cudaFree(from) == 0 && cudaFree(far) == 0 && cudaFree(to) == 0 &&
                 cudaFree(device) == 0 && cudaStreamDestroy(captured) == 0);
}

} // namespace

bool managed_beside_captures()
{
    REQUIRE(own_stream_before_a_capture());
    REQUIRE(beside_own_captures() && freed_in_a_capture() && begun_beside_captures());
    REQUIRE(rested_streams_beside_captures());
    REQUIRE(own_streams_in_a_capture(0) && own_streams_in_a_capture(2));
    REQUIRE(libraries_in_a_capture() && allocated_beside_captures());
    return HOLDS(own_stream_beside_captures());
}
