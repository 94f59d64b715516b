// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Calls that another thread's capture has fail: they fail at once. What CUDA says was observed with
// driver 580 on an H200.
#include "tests/gvirtus/application.h"

#include <functional>

namespace
{

using Clock = std::chrono::steady_clock;

struct Refused {
    std::function<int()> call;
    int code;
    bool of_blocking; // only beside the capture of a stream that waits for the legacy one
};

// The call is made by another thread, which is refused and ends the capture. Adds the time it took.
bool is_refused(const Refused &r, void *stream, int mode, Clock::duration *took)
{
    void *graph = &graph;
    int rc = -1;
    REQUIRE(cudaStreamBeginCapture(stream, mode) == 0);
    std::thread([&] {
        const Clock::time_point began = Clock::now();
        rc = r.call();
        *took += Clock::now() - began;
        cudaGetLastError();
    }).join();
    const int end = cudaStreamEndCapture(stream, &graph);
    cudaGetLastError();
    return HOLDS(rc == r.code && end == 901 && !graph);
}

} // namespace

// A call that waits for other clients' captures, so as not to end them, does not wait for those of
// its own program. Each of the 33 calls would wait for 2 s.
bool captures_keep_nobody_waiting()
{
    constexpr std::size_t n = 1 << 20;
    char *device = device_memory(n);
    std::vector<char> bytes(n, 'a');
    void *streams[2] = {}, *locked = nullptr;
    Clock::duration took{};
    REQUIRE(cudaMallocHost(&locked, n) == 0);
    for (unsigned flags : {0u, 1u})
        REQUIRE(cudaStreamCreateWithFlags(&streams[flags], flags) == 0);
    const Refused calls[] = {
        {[&] { return cudaMemcpy(device, bytes.data(), 4, H2D); }, 906, true},
        {[&] { return cudaMemcpy(device, bytes.data(), n, H2D); }, 906, true},
        {[&] { return cudaMemcpy(bytes.data(), device, 4, D2H); }, 906, true},
        {[&] { return cudaMemcpy(device, device + 8, 8, D2D); }, 906, true},
        {[&] { return cudaMemcpyAsync(device, locked, n, H2D, nullptr); }, 906, true},
        {[&] { return cudaMemset(device, 0, 8); }, 906, true},
        {[&] { return stub_launch(device, device + 50, 10, nullptr); }, 906, true},
        {[&] { return cudaStreamSynchronize(nullptr); }, 906, true},
        {[&] { return cudaStreamQuery(nullptr); }, 906, true},
        {[&] { return cudaDeviceSynchronize(); }, 900, false},
    };
    for (int mode : {0, 1, 2}) // GLOBAL, THREAD_LOCAL, RELAXED
        for (void *stream : streams)
            for (const Refused &r : calls)
                REQUIRE((r.of_blocking && stream != streams[0]) ||
                        is_refused(r, stream, mode, &took));
    REQUIRE(took < std::chrono::seconds(20));
    const auto limit = [] {
        return preloaded<int(int, std::size_t)>("cudaDeviceSetLimit")(2, 1 << 24);
    };
    for (void *stream : streams)
        REQUIRE(is_refused({limit, 900, false}, stream, 0, &took));
    for (void *stream : streams)
        REQUIRE(cudaStreamDestroy(stream) == 0);
    return HOLDS(cudaFreeHost(locked) == 0 && cudaFree(device) == 0);
}
