// SPDX-License-Identifier: LGPL-2.1-or-later
#include "tests/gvirtus/graph_calls.h"

#include "tests/doubles/cuda/driver.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <sys/mman.h>
#include <thread>
#include <vector>

namespace
{

using graph_calls::Graph;

using Launcher = int(const void *, StubDim3, StubDim3, void **, std::size_t, void *);

// A kernel that has so many bytes among its parameters. It adds `sum` to each and stores it.
struct Wide {
    std::size_t n;
    std::uint32_t sum;
    char *to;
    std::vector<char> bytes, result;
    void *arguments[3];

    Wide(std::size_t size, unsigned seed, char *device)
        : n(size), sum(seed), to(device), bytes(size), result(size), arguments{&to, &bytes[0], &sum}
    {
        random_fill(bytes.data(), n, seed);
        for (std::size_t i = 0; i < n; i++)
            result[i] = static_cast<char>(bytes[i] + static_cast<char>(sum));
    }
    const void *function() const { return reinterpret_cast<const void *>(IBX_DOUBLE_WIDE + n); }
    int launch(const char *call, void *stream = nullptr, unsigned threads = 32)
    {
        return preloaded<Launcher>(call)(function(), {1, 1, 1}, {threads, 1, 1}, arguments, 0,
                                         stream);
    }
    bool there() const { return device_has(to, result.data(), n); }
};

} // namespace

// The stub has cudaLaunchKernel alone, as GVirtuS.
bool launch()
{
    auto *get = preloaded<int(void **, const void *)>("__cudaGetKernel");
    auto *run = preloaded<int(void *, StubDim3, StubDim3, void **, std::size_t, void *)>(
        "__cudaLaunchKernel");
    std::size_t n = 100000;
    char *device = device_memory(2 * n);
    void *stream = nullptr, *kernel = nullptr, *to = device + n, *from = device;
    void *arguments[] = {&to, &from, &n};
    std::vector<char> memory(n);
    random_fill(memory.data(), n, 1);
    REQUIRE(cudaStreamCreate(&stream) == 0);
    REQUIRE(cudaMemcpyAsync(device, memory.data(), n, H2D, stream) == 0);
    REQUIRE(get(&kernel, &stub_kernel) == 0);
    for (int i = 0; i < 300; i++)
        REQUIRE(run(kernel, {1000, 1, 1}, {100, 1, 1}, arguments, 0, stream) == 0);
    REQUIRE(cudaStreamSynchronize(stream) == 0);
    REQUIRE(device_has(device + n, memory.data(), n));
    REQUIRE(get(&kernel, &n) == 0 && run(kernel, {1, 1, 1}, {1, 1, 1}, arguments, 0, stream) == 98);
    return true;
}

// The stub writes a request for the first launch of a kernel, and the library makes the launches
// like it, but for the thread's first one, by which it learns how the stub sends them.
bool launches()
{
    auto *run = preloaded<int(const void *, StubDim3, StubDim3, void **, std::size_t, void *)>(
        "cudaLaunchKernel");
    auto *unload = preloaded<void(void **)>("__cudaUnregisterFatBinary");
    std::size_t n = 100000;
    char *device = device_memory(6 * n);
    std::vector<char> memory(n);
    for (std::uint64_t round = 0; round < 5; round++) {
        std::size_t part = n - round * 1000;
        char *to = device + (round + 1) * n, *from = device + round;
        void *arguments[] = {&to, &from, &part};
        random_fill(memory.data(), n, round);
        REQUIRE(cudaMemcpy(device, memory.data(), n, H2D) == 0);
        const std::uint64_t before = stub_launches(), by_stub = !round ? 2 : round == 3;
        REQUIRE(run(&stub_kernel, {1000, 1, 1}, {100, 1, 1}, arguments, 0, nullptr) == 0);
        REQUIRE(stub_launches() - before == by_stub);
        REQUIRE(cudaDeviceSynchronize() == 0);
        REQUIRE(device_has(to, memory.data() + round, part - round));
        if (round == 2) // another kernel may have its address
            unload(nullptr);
    }
    int other = 0;
    void *none[3] = {&device, &device, &n};
    REQUIRE(run(&other, {1, 1, 1}, {1, 1, 1}, none, 0, nullptr) == 98);
    return true;
}

// The names of a module's kernels end with it: dlclose(3) unmaps them.
bool launches_after_modules()
{
    using Function = void(void **, const void *, char *, const char *, int, void *, void *, void *,
                          void *, int *);
    constexpr std::size_t n = 1000;
    std::uint64_t wrapper[8] = {0}, other[8] = {0};
    void *page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    auto *add = preloaded<Function>("__cudaRegisterFunction");
    auto *load = preloaded<void **(void *)>("__cudaRegisterFatBinary");
    char *device = device_memory(2 * n), *to = device + n, *from = device;
    std::size_t size = n;
    void *arguments[] = {&to, &from, &size};
    const std::vector<char> bytes = random_bytes(n, 4);
    REQUIRE(page != MAP_FAILED && cudaMemcpy(device, bytes.data(), n, H2D) == 0);
    char *name = static_cast<char *>(page);
    std::strcpy(name, "ended");
    void **module = load(wrapper);
    add(module, wrapper, name, name, -1, nullptr, nullptr, nullptr, nullptr, nullptr);
    preloaded<void(void **)>("__cudaUnregisterFatBinary")(module);
    REQUIRE(munmap(page, 4096) == 0);
    // Of this kernel's name there might be several.
    add(load(other), &stub_kernel, nullptr, "kernel", -1, nullptr, nullptr, nullptr, nullptr,
        nullptr);
    REQUIRE(cudaLaunchKernel(&stub_kernel, {1, 1, 1}, {32, 1, 1}, arguments, 0, nullptr) == 0);
    REQUIRE(cudaDeviceSynchronize() == 0 && device_has(to, bytes.data(), n));
    return HOLDS(cudaFree(device) == 0);
}

// Threads begin together. The first call of each launches a known kernel, or frees page-locked
// memory: they connect one after the other.
bool launches_of_new_threads()
{
    constexpr unsigned count = 8, n = 1000;
    std::atomic<unsigned> there{0}, good{0};
    const auto begin_together = [&there, &good](auto first_call) {
        std::vector<std::thread> threads;
        FirstCalls first_calls;
        there = good = 0;
        for (unsigned i = 0; i < count; i++) {
            threads.emplace_back([&there, &good, &first_calls, first_call, i] {
                for (there++; there < count;)
                    std::this_thread::yield();
                const int rc = first_call(i);
                first_calls.note_end();
                good += rc == 0 && cudaDeviceSynchronize() == 0;
            });
        }
        for (std::thread &thread : threads)
            thread.join();
        return HOLDS(good == count && first_calls.came_in_turn());
    };
    char *device = device_memory((count + 2) * n), *used[count];
    const std::vector<char> bytes = random_bytes(n, 3);
    const auto launch_to = [device](unsigned to) {
        char *part = device + to * n, *from = device;
        std::size_t size = n;
        void *arguments[] = {&part, &from, &size};
        return cudaLaunchKernel(&stub_kernel, {1, 1, 1}, {32, 1, 1}, arguments, 0, nullptr);
    };
    REQUIRE(cudaMemcpy(device, bytes.data(), n, H2D) == 0);
    REQUIRE(launch_to(count + 1) == 0 && launch_to(count + 1) == 0);
    REQUIRE(begin_together([launch_to](unsigned i) { return launch_to(i + 1); }));
    for (unsigned i = 0; i <= count; i++)
        REQUIRE(device_has(device + i * n, bytes.data(), n));
    for (char *&memory : used) {
        REQUIRE(cudaMallocHost(reinterpret_cast<void **>(&memory), n) == 0);
        REQUIRE(cudaMemcpyAsync(memory, device, n, D2H, nullptr) == 0);
    }
    REQUIRE(begin_together([&used](unsigned i) { return cudaFreeHost(used[i]); }));
    return HOLDS(cudaFree(device) == 0);
}

// Launches by <<<>>>, which returns nothing: no call that waits returns their errors.
bool launches_unseen()
{
    auto *push =
        preloaded<unsigned(StubDim3, StubDim3, std::size_t, void *)>("__cudaPushCallConfiguration");
    auto *pop =
        preloaded<int(StubDim3 *, StubDim3 *, std::size_t *, void *)>("__cudaPopCallConfiguration");
    auto *run = preloaded<int(const void *, StubDim3, StubDim3, void **, std::size_t, void *)>(
        "cudaLaunchKernel");
    auto *unload = preloaded<void(void **)>("__cudaUnregisterFatBinary");
    std::size_t n = 1000;
    char *device = device_memory(2 * n), *to = device + n;
    std::vector<char> memory(n);
    void *arguments[] = {&to, &device, &n}, *wrong = &n;
    const auto by_brackets = [&](void *on, const void *function) {
        StubDim3 grid = {}, block = {};
        std::size_t shared = 0;
        void *stream = nullptr;
        return push({1, 1, 1}, {32, 1, 1}, 0, on) || pop(&grid, &block, &shared, &stream)
                   ? -1
                   : run(function, grid, block, arguments, shared, stream);
    };
    random_fill(memory.data(), n, 5);
    REQUIRE(cudaMemcpy(device, memory.data(), n, H2D) == 0);
    REQUIRE(by_brackets(nullptr, &stub_kernel) == 0 && cudaGetLastError() == 0);
    REQUIRE(cudaDeviceSynchronize() == 0 && device_has(to, memory.data(), n));
    for (int i = 0; i < 3; i++) {
        REQUIRE(by_brackets(wrong, &stub_kernel) == 0 && cudaDeviceSynchronize() == 0);
        REQUIRE(run(&stub_kernel, {1, 1, 1}, {32, 1, 1}, arguments, 0, wrong) == 400);
        // GVirtuS's front end refuses this launch without a request, and gets the next one, too.
        REQUIRE(by_brackets(nullptr, &n) == 98);
        unload(nullptr);
        REQUIRE(run(&stub_kernel, {1, 1, 1}, {32, 1, 1}, arguments, 0, wrong) == 400);
        // After a launch without an error the next one of the loop is unseen again.
        REQUIRE(cudaGetLastError() == 400 && cudaGetLastError() == 0);
        REQUIRE(by_brackets(nullptr, &stub_kernel) == 0 && cudaGetLastError() == 0);
        REQUIRE(cudaDeviceSynchronize() == 0 && device_has(to, memory.data(), n));
    }
    return true;
}

// More parameters than GVirtuS's front end reads the sizes of, or than fit into a short request.
bool launches_of_many_bytes()
{
    constexpr std::size_t most = IBX_DOUBLE_WIDEST;
    char *device = device_memory(4 * most);
    void *stream = nullptr;
    unsigned seed = 0;
    REQUIRE(cudaGetLastError() == 0 && cudaStreamCreate(&stream) == 0);
    for (const char *call : {"cudaLaunchKernel", "cudaLaunchCooperativeKernel"}) {
        for (std::size_t n : {std::size_t{24}, std::size_t{1800}, std::size_t{3000},
                              std::size_t{STUB_WIDE_KNOWN}, std::size_t{STUB_WIDE_KNOWN} + 1,
                              std::size_t{4096}, std::size_t{4100}, std::size_t{20001}, most}) {
            for (int round = 0; round < 3; round++) {
                Wide wide(n, ++seed, device);
                REQUIRE(cudaMemset(device, 0, n) == 0);
                REQUIRE(wide.launch(call, stream) == 0);
                REQUIRE(cudaStreamSynchronize(stream) == 0 && wide.there());
            }
        }
    }
    // Many kernels whose addresses have the same hash.
    for (std::size_t n = 6000; n < 6040; n++) {
        Wide wide(n, ++seed, device);
        REQUIRE(wide.launch("cudaLaunchKernel", stream) == 0);
        REQUIRE(cudaStreamSynchronize(stream) == 0 && wide.there());
    }
    // In the order of their stream, among other calls; the bytes are those at the time of the call.
    for (int round = 0; round < 10; round++) {
        Wide first(most, ++seed, device), second(9000, ++seed, device), third(100, ++seed, device);
        char *to = device + most, *from = device;
        std::size_t part = most;
        void *arguments[] = {&to, &from, &part};
        REQUIRE(first.launch("cudaLaunchKernel", stream) == 0);
        std::fill(first.bytes.begin(), first.bytes.end(), 'x');
        REQUIRE(second.launch("cudaLaunchKernel", stream) == 0);
        REQUIRE(third.launch("cudaLaunchKernel", stream) == 0);
        REQUIRE(cudaLaunchKernel(&stub_kernel, {1, 1, 1}, {32, 1, 1}, arguments, 0, stream) == 0);
        REQUIRE(cudaMemsetAsync(device, 0, 200, stream) == 0);
        std::memcpy(&first.result[0], &second.result[0], second.n);
        std::memcpy(&first.result[0], &third.result[0], third.n);
        REQUIRE(cudaStreamSynchronize(stream) == 0 && device_has(to, first.result.data(), most));
        REQUIRE(device_has(device, std::vector<char>(200, 0).data(), 200));
    }
    // By several threads, each of which meets the kernels for the first time.
    bool good[3] = {};
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < 3; i++) {
        threads.emplace_back([=, &good] {
            char *own = device + i * most;
            for (unsigned n = 1; n <= 40; n++) {
                Wide wide(30000 - n % 4, n, own);
                if (wide.launch("cudaLaunchKernel") || cudaDeviceSynchronize() || !wide.there())
                    return;
            }
            good[i] = true;
        });
    }
    for (std::thread &thread : threads)
        thread.join();
    REQUIRE(good[0] && good[1] && good[2]);
    // A launch that fails, fails as others do, and the next one succeeds.
    Wide wide(10000, ++seed, device);
    REQUIRE(fails(wide.launch("cudaLaunchKernel", &seed), 400));
    REQUIRE(fails(wide.launch("cudaLaunchKernel", stream, 5000), 1));
    REQUIRE(fails(preloaded<Launcher>("cudaLaunchKernel")(wide.function(), {1, 1, 1}, {1, 1, 1},
                                                          nullptr, 0, stream),
                  1));
    REQUIRE(wide.launch("cudaLaunchKernel", stream) == 0 && cudaStreamSynchronize(stream) == 0);
    return HOLDS(wide.there() && cudaFree(device) == 0);
}

// Nodes of graphs, and their parameters when these change.
bool nodes_of_many_bytes()
{
    char *device = device_memory(4u << 15);
    void *stream = nullptr;
    REQUIRE(cudaGetLastError() == 0 && cudaStreamCreate(&stream) == 0);
    for (std::size_t n : {1900u, 3000u, 5000u, IBX_DOUBLE_WIDEST}) {
        Graph graph;
        Wide first(n, 1, device), second(n, 2, device), third(n, 3, device + (1u << 15));
        graph_calls::Kernel kernel = {first.function(), {1, 1, 1}, {32, 1, 1}, 0,
                                      first.arguments,  nullptr};
        REQUIRE(graph.add("cudaGraphAddKernelNode", {}, &kernel) == 0);
        graph_calls::Kernel told = {};
        REQUIRE((graph_calls::run<void *, graph_calls::Kernel *>("cudaGraphKernelNodeGetParams",
                                                                 graph.nodes[0], &told) == 0));
        REQUIRE(told.function == first.function() && told.block.x == 32);
        REQUIRE(!std::memcmp(told.arguments[0], first.arguments[0], 8) &&
                !std::memcmp(told.arguments[1], first.arguments[1], n) &&
                !std::memcmp(told.arguments[2], first.arguments[2], 4));
        kernel.arguments = third.arguments;
        REQUIRE(graph.add("cudaGraphAddKernelNode", {graph.nodes[0]}, &kernel) == 0);
        void *exec = graph.made();
        REQUIRE(exec && cudaGraphLaunch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
        REQUIRE(first.there() && third.there());
        kernel.arguments = second.arguments;
        REQUIRE((graph_calls::run<void *, void *, const graph_calls::Kernel *>(
                     "cudaGraphExecKernelNodeSetParams", exec, graph.nodes[0], &kernel) == 0));
        REQUIRE(cudaGraphLaunch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
        REQUIRE(second.there() && third.there() && graph.destroy() == 0);
    }
    return HOLDS(cudaFree(device) == 0);
}
