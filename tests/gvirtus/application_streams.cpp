// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Calls of programs that are compiled with a default stream for each thread.
#include "tests/gvirtus/application_arrays.h"

#include "frontend-glue/session/extensions.h"

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

namespace
{

constexpr std::size_t stream_bytes = 4096;
void *const per_thread = reinterpret_cast<void *>(2); // cudaStreamPerThread

using Copy = int(void *, const void *, std::size_t, int, void *);
using Set = int(void *, int, std::size_t, void *);
using Launch = int(const void *, StubDim3, StubDim3, void **, std::size_t, void *);
using Record = int(void *, void *);

// Two streams, and one of them is held: in calls meanwhile NULL has to mean the thread's own
// stream.
struct Scene {
    void *other = nullptr, *there = nullptr, *behind = nullptr;
    char *from = device_memory(stream_bytes), *to = device_memory(stream_bytes);

    bool begin()
    {
        REQUIRE(from && to && cudaStreamCreate(&other) == 0 && cudaEventCreate(&there) == 0);
        REQUIRE(cudaEventCreate(&behind) == 0 && cudaMemset(from, 'f', stream_bytes) == 0);
        return cudaMemset(to, 0, stream_bytes) == 0 && cudaDeviceSynchronize() == 0;
    }
    // The stream has work that another stream, which the legacy one blocks, does not wait for.
    bool is_in_own(const char *call, int rc)
    {
        const bool good = rc == 0 && cudaStreamQuery(per_thread) == 600 &&
                          cudaEventRecord(there, other) == 0 && cudaEventSynchronize(there) == 0;
        stub_remote()->hold_stream(0);
        if (!good || cudaStreamSynchronize(per_thread) || cudaStreamQuery(per_thread)) {
            std::fprintf(stderr, "%s: not in the thread's stream\n", call);
            return false;
        }
        return true;
    }
    void hold() const { stub_remote()->hold_stream(2); }
};

// While the thread's stream is held, work that is enqueued with NULL comes behind it, and the
// legacy stream would wait for it.
bool streams_of_calls(Scene &s)
{
    std::vector<char> fs(stream_bytes, 'f'), zeros(stream_bytes, 0), twos(stream_bytes, 2);
    s.hold();
    REQUIRE(s.is_in_own("cudaMemcpyAsync_ptsz", preloaded<Copy>("cudaMemcpyAsync_ptsz")(
                                                    s.to, s.from, stream_bytes, D2D, nullptr)));
    REQUIRE(device_has(s.to, fs.data(), stream_bytes));
    s.hold();
    REQUIRE(s.is_in_own("cudaMemsetAsync_ptsz",
                        preloaded<Set>("cudaMemsetAsync_ptsz")(s.to, 0, stream_bytes, nullptr)));
    REQUIRE(device_has(s.to, zeros.data(), stream_bytes));
    s.hold();
    REQUIRE(s.is_in_own("cudaMemset_ptds", preloaded<int(void *, int, std::size_t)>(
                                               "cudaMemset_ptds")(s.to, 2, stream_bytes)));
    REQUIRE(device_has(s.to, twos.data(), stream_bytes));
    s.hold();
    REQUIRE(
        s.is_in_own("cudaMemcpy_ptds", preloaded<int(void *, const void *, std::size_t, int)>(
                                           "cudaMemcpy_ptds")(s.to, s.from, stream_bytes, D2D)));
    for (const char *call : {"cudaLaunchKernel_ptsz", "__cudaLaunchKernel_ptsz"}) {
        REQUIRE(cudaMemset(s.to, 0, stream_bytes) == 0 && cudaDeviceSynchronize() == 0);
        void *to = s.to, *from = s.from;
        std::uint64_t bytes = stream_bytes;
        void *arguments[] = {&to, &from, &bytes};
        s.hold();
        REQUIRE(s.is_in_own(call, preloaded<Launch>(call)(&stub_kernel, {1, 1, 1}, {1, 1, 1},
                                                          arguments, 0, nullptr)));
        REQUIRE(device_has(s.to, fs.data(), stream_bytes));
    }
    return true;
}

// Events, waits and queries of it; a stream that is named stays that one.
bool waits_of_calls(Scene &s)
{
    auto query = preloaded<int(void *)>("cudaStreamQuery_ptsz");
    auto record = preloaded<Record>("cudaEventRecord_ptsz");
    s.hold();
    REQUIRE(preloaded<Copy>("cudaMemcpyAsync_ptsz")(s.to, s.from, stream_bytes, D2D, s.other) == 0);
    REQUIRE(cudaStreamSynchronize(s.other) == 0);
    REQUIRE(preloaded<Copy>("cudaMemcpyAsync_ptsz")(s.to, s.from, stream_bytes, D2D, nullptr) == 0);
    REQUIRE(record(s.behind, nullptr) == 0 && cudaEventQuery(s.behind) == 600);
    REQUIRE(query(nullptr) == 600 && query(s.other) == 0);
    REQUIRE(preloaded<int(void *, void *, unsigned)>("cudaStreamWaitEvent_ptsz")(s.other, s.behind,
                                                                                 0) == 0);
    REQUIRE(record(s.there, s.other) == 0 && cudaEventQuery(s.there) == 600);
    stub_remote()->hold_stream(0);
    REQUIRE(preloaded<int(void *)>("cudaStreamSynchronize_ptsz")(nullptr) == 0);
    REQUIRE(query(nullptr) == 0 && cudaEventQuery(s.behind) == 0);
    return HOLDS(cudaStreamSynchronize(s.other) == 0 && cudaEventQuery(s.there) == 0);
}

// A copy from or to the host is over when it returns, also of page-locked memory.
bool copies_of_host(Scene &s)
{
    auto copy = preloaded<int(void *, const void *, std::size_t, int)>("cudaMemcpy_ptds");
    void *pinned = nullptr;
    constexpr std::size_t many = 1 << 20;
    char *device = device_memory(many);
    REQUIRE(device && cudaMallocHost(&pinned, many) == 0);
    char *bytes = static_cast<char *>(pinned);
    std::vector<char> there(many);
    random_fill(there.data(), many, 5);
    std::memcpy(bytes, there.data(), many);
    REQUIRE(stub_remote()->slow(20000));
    REQUIRE(copy(device, bytes, many, H2D) == 0);
    std::memset(bytes, 'x', many);
    REQUIRE(copy(bytes, device, many, DEFAULT) == 0 && !std::memcmp(bytes, there.data(), many));
    stub_remote()->slow(0);
    using Rows = int(void *, std::size_t, const void *, std::size_t, std::size_t, std::size_t, int);
    REQUIRE(preloaded<Rows>("cudaMemcpy2D_ptds")(bytes, 64, device, 128, 32, 8, D2H) == 0);
    REQUIRE(!std::memcmp(bytes + 64, there.data() + 128, 32));
    REQUIRE(cudaFreeHost(pinned) == 0 && cudaFree(device) == 0);
    REQUIRE(copy(nullptr, there.data(), stream_bytes, H2D) != 0);
    return HOLDS(cudaFree(s.to) == 0);
}

// Sets of page-locked memory that are captured are the graph's: nobody waits for them.
bool captured_sets_of_host(char *memory, std::size_t n)
{
    void *graph = nullptr, *exec = nullptr;
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    std::memset(memory, 'x', 2 * n);
    REQUIRE(preloaded<int(void *, int)>("cudaStreamBeginCapture_ptsz")(nullptr, 0) == 0);
    REQUIRE(preloaded<int(void *, int, std::size_t)>("cudaMemset_ptds")(memory, 5, n) == 0);
    REQUIRE(preloaded<int(std::uint64_t, std::uint8_t, std::size_t)>("cuMemsetD8_v2_ptds")(
                address + n, 6, n) == 0);
    REQUIRE(preloaded<int(void *, void **)>("cudaStreamEndCapture_ptsz")(nullptr, &graph) == 0);
    REQUIRE(memory[0] == 'x' && memory[n] == 'x');
    REQUIRE(preloaded<int(void **, void *, unsigned long long)>("cudaGraphInstantiate")(
                &exec, graph, 0) == 0);
    REQUIRE(preloaded<int(void *, void *)>("cudaGraphLaunch")(exec, per_thread) == 0);
    REQUIRE(cudaStreamSynchronize(per_thread) == 0 && memory[n - 1] == 5 && memory[2 * n - 1] == 6);
    return HOLDS(preloaded<int(void *)>("cudaGraphExecDestroy")(exec) == 0 &&
                 preloaded<int(void *)>("cudaGraphDestroy")(graph) == 0);
}

// Page-locked memory is set when the call returns.
bool sets_of_host()
{
    constexpr std::size_t row = 64;
    using Rows = int(void *, std::size_t, int, std::size_t, std::size_t);
    char *memory = page_locked(bytes_each);
    REQUIRE(memory && stub_launch(memory, memory + row, row, per_thread) == 0);
    REQUIRE(cudaDeviceSynchronize() == 0);
    stub_remote()->slow(20000);
    REQUIRE(preloaded<int(void *, int, std::size_t)>("cudaMemset_ptds")(memory, 1, row) == 0);
    REQUIRE(memory[0] == 1 && memory[row - 1] == 1);
    REQUIRE(preloaded<Rows>("cudaMemset2D_ptds")(memory, 2 * row, 2, row, 3) == 0);
    REQUIRE(memory[0] == 2 && memory[5 * row - 1] == 2);
    using Planes = int(ibx_cuda_pitched, int, ibx_cuda_extent);
    REQUIRE(preloaded<Planes>("cudaMemset3D_ptds")({memory, 2 * row, row, 2}, 7, {row, 1, 2}) == 0);
    REQUIRE(memory[0] == 7 && memory[5 * row - 1] == 7 && memory[3 * row - 1] == 2);
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    REQUIRE(preloaded<int(std::uint64_t, std::uint8_t, std::size_t)>("cuMemsetD8_v2_ptds")(
                address, 3, row) == 0);
    REQUIRE(memory[0] == 3 && memory[row - 1] == 3);
    REQUIRE(preloaded<int(std::uint64_t, std::size_t, std::uint32_t, std::size_t, std::size_t)>(
                "cuMemsetD2D32_v2_ptds")(address, 2 * row, 0x04040404, row / 4, 3) == 0);
    REQUIRE(memory[0] == 4 && memory[5 * row - 1] == 4);
    stub_remote()->slow(0);
    return HOLDS(captured_sets_of_host(memory, row) && cudaFreeHost(memory) == 0);
}

bool functions(Scene &s)
{
    std::atomic<bool> called{false};
    using Function = int(void *, void (*)(void *), void *);
    s.hold();
    REQUIRE(preloaded<Copy>("cudaMemcpyAsync_ptsz")(s.to, s.from, stream_bytes, D2D, nullptr) == 0);
    REQUIRE(preloaded<Function>("cudaLaunchHostFunc_ptsz")(
                nullptr, [](void *flag) { *static_cast<std::atomic<bool> *>(flag) = true; },
                &called) == 0);
    REQUIRE(!called);
    stub_remote()->hold_stream(0);
    REQUIRE(preloaded<int(void *)>("cudaStreamSynchronize_ptsz")(nullptr) == 0);
    return HOLDS(called);
}

// Each thread has its own: a capture in it ends without those of other threads.
bool captures_of_threads(Scene &s)
{
    const auto begin = preloaded<int(void *, int)>("cudaStreamBeginCapture_ptsz");
    const auto end = preloaded<int(void *, void **)>("cudaStreamEndCapture_ptsz");
    std::atomic<int> step{0};
    std::vector<char> zeros(stream_bytes, 0), ones(stream_bytes, 1);
    void *graph = nullptr;
    bool good = true;
    REQUIRE(cudaMemset(s.to, 0, stream_bytes) == 0 && cudaDeviceSynchronize() == 0);
    std::thread other([&] {
        void *others = nullptr;
        good = begin(nullptr, 2) == 0 && stub_launch(s.from, s.to, stream_bytes, per_thread) == 0;
        for (step = 1; step != 2;)
            std::this_thread::yield();
        good = end(nullptr, &others) == 0 && good;
    });
    while (step != 1)
        std::this_thread::yield();
    const int rc = begin(nullptr, 0);
    step = 2;
    other.join();
    REQUIRE(rc == 0 && good);
    REQUIRE(preloaded<Copy>("cudaMemcpyAsync_ptsz")(s.to, ones.data(), stream_bytes, H2D,
                                                    nullptr) == 0);
    REQUIRE(device_has(s.to, zeros.data(), stream_bytes)); // it is the graph's
    return HOLDS(end(nullptr, &graph) == 0 && graph);
}

} // namespace

bool stream_of_thread()
{
    Scene s;
    REQUIRE(cudaGetLastError() == 0 && s.begin());
    return HOLDS(streams_of_calls(s) && waits_of_calls(s) && functions(s) &&
                 captures_of_threads(s) && sets_of_host() && copies_of_host(s));
}

// One thread destroys what another one waits for, by each of the two APIs. That ends at once; the
// wait goes on.
bool destroyed_beside_wait()
{
    static const struct {
        const char *wait, *destroy;
        bool is_event;
    } all[] = {{"cudaStreamSynchronize", "cudaStreamDestroy", false},
               {"cudaEventSynchronize", "cudaEventDestroy", true},
               {"cuStreamSynchronize", "cuStreamDestroy_v2", false},
               {"cuEventSynchronize", "cuEventDestroy_v2", true}};
    REQUIRE(preloaded<int(unsigned)>("cuInit")(0) == 0);
    for (const auto &one : all) {
        Scene s;
        std::atomic<int> rc{-1};
        REQUIRE(cudaGetLastError() == 0 && s.begin() && cudaEventSynchronize(s.there) == 0);
        stub_remote()->hold_stream(reinterpret_cast<std::uintptr_t>(s.other));
        REQUIRE(stub_launch(s.from, s.to, stream_bytes, s.other) == 0);
        REQUIRE(cudaEventRecord(s.there, s.other) == 0 && cudaEventQuery(s.there) == 600);
        void *thing = one.is_event ? s.there : s.other;
        std::thread other([&] { rc = preloaded<int(void *)>(one.wait)(thing); });
        const auto waits_now = [&] {
            const ibx_double_stats now = stub_remote()->stats();
            return one.is_event ? now.event_waits : now.stream_waits;
        };
        while (!waits_now() && rc == -1)
            std::this_thread::yield();
        const int destroyed = preloaded<int(void *)>(one.destroy)(thing);
        const bool waits = rc == -1;
        stub_remote()->hold_stream(0);
        other.join();
        if (destroyed || !waits || rc) {
            std::fprintf(stderr, "%s beside %s: %d %d %d\n", one.destroy, one.wait, destroyed,
                         waits, rc.load());
            return false;
        }
    }
    return true;
}
