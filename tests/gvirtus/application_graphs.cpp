// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Graphs, made node by node or captured: functions that nodes call are called in this process.
#include "tests/gvirtus/graph_calls.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <thread>
#include <vector>
#include <sys/mman.h>
#include <unistd.h>

using namespace graph_calls;

namespace
{

struct Counted {
    std::atomic<int> calls{0};
    const char *memory;
    char expected;
    bool right = true;
};

void count(void *argument)
{
    auto *c = static_cast<Counted *>(argument);
    c->right = c->right && c->memory[0] == c->expected && c->memory[9999] == c->expected;
    c->calls++;
}

} // namespace

// To the device, a kernel there, back, and a function that sees what has come back.
bool graphs()
{
    constexpr std::size_t n = 10000;
    char *device = device_memory(3 * n), *second = device + n;
    std::vector<char> there(n, 'a'), back(n, 'x');
    std::size_t bytes = n;
    void *stream = nullptr, *to = second, *from = device;
    void *arguments[] = {&to, &from, &bytes};
    Counted counted;
    counted.memory = back.data(), counted.expected = 'a';
    REQUIRE(cudaStreamCreate(&stream) == 0);
    Graph graph;
    const Planes in = copy_of(device, there.data(), n, H2D),
                 out = copy_of(back.data(), second, n, 4);
    Kernel kernel = {&stub_kernel, {100, 1, 1}, {100, 1, 1}, 0, arguments, nullptr};
    const Host host = {count, &counted};
    REQUIRE(graph.add("cudaGraphAddMemcpyNode", {}, &in) == 0);
    REQUIRE(graph.add("cudaGraphAddKernelNode", {graph.nodes[0]}, &kernel) == 0);
    REQUIRE(graph.add("cudaGraphAddMemcpyNode", {graph.nodes[1]}, &out) == 0);
    REQUIRE(graph.add("cudaGraphAddHostNode", {graph.nodes[2]}, &host) == 0);
    REQUIRE(graph.size() == 4);
    void *exec = graph.made(), *clone = nullptr, *copy = nullptr;
    REQUIRE(exec && run("cudaGraphClone", &clone, graph.handle) == 0);
    for (char letter : {'a', 'b', 'c'}) { // the bytes are those of the launch
        std::fill(there.begin(), there.end(), letter);
        counted.expected = letter;
        REQUIRE(launch(exec, stream) == 0 && launch(exec, stream) == 0);
        REQUIRE(cudaStreamSynchronize(stream) == 0 && back == there && counted.right);
    }
    REQUIRE(counted.calls == 6);
    // With other arguments, in what is launched alone.
    from = device + 2 * n;
    const std::vector<char> other(n, 'z');
    REQUIRE(cudaMemcpy(device + 2 * n, other.data(), n, H2D) == 0);
    counted.expected = 'z';
    REQUIRE((run<void *, void *, const Kernel *>("cudaGraphExecKernelNodeSetParams", exec,
                                                 graph.nodes[1], &kernel) == 0));
    REQUIRE(launch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    REQUIRE(back == other && counted.right && graph.destroy() == 0);
    // A clone outlives the graph that it was made of; the graph's nodes do not.
    counted.expected = 'c';
    REQUIRE(
        (run<void **, void *, unsigned long long>("cudaGraphInstantiate", &copy, clone, 0) == 0));
    REQUIRE(launch(copy, nullptr) == 0 && cudaDeviceSynchronize() == 0);
    REQUIRE(back == there && counted.right && counted.calls == 8);
    REQUIRE((fails(run<void *, void *, const Kernel *>("cudaGraphExecKernelNodeSetParams", exec,
                                                       graph.nodes[1], &kernel),
                   1)));
    REQUIRE(run("cudaGraphDestroy", clone) == 0 && fails(run("cudaGraphDestroy", clone), 1));
    REQUIRE(run("cudaGraphExecDestroy", exec) == 0 && run("cudaGraphExecDestroy", copy) == 0);
    REQUIRE(fails(run("cudaGraphExecDestroy", copy), 1));
    return HOLDS(cudaFree(device) == 0);
}

// Bytes that a graph copies into pinned memory have come when the graph goes on, also if the back
// end writes them itself, and if other memory was there before.
static bool pinned_bytes_of_graph(char *device, void *stream, std::size_t N)
{
    char *back = nullptr;
    REQUIRE(cudaMallocHost(reinterpret_cast<void **>(&back), N) == 0);
    Graph graph;
    const Planes out = copy_of(back, device, N, D2H);
    REQUIRE(graph.add("cudaGraphAddMemcpyNode", {}, &out) == 0);
    void *exec = graph.made();
    for (char letter = 'a'; letter <= 'd'; letter++) {
        const std::vector<char> there(N, letter);
        REQUIRE(cudaMemcpy(device, there.data(), N, H2D) == 0);
        stub_remote()->slow(20000);
        REQUIRE(launch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
        const bool same = !std::memcmp(back, there.data(), N);
        stub_remote()->slow(0);
        REQUIRE(same);
    }
    REQUIRE(graph.destroy() == 0 && run("cudaGraphExecDestroy", exec) == 0);
    return HOLDS(cudaFreeHost(back) == 0);
}

bool pinned_bytes_of_graphs()
{
    char *device = device_memory();
    void *stream = nullptr;
    REQUIRE(cudaStreamCreate(&stream) == 0);
    for (const std::size_t n : {300000u, 3000000u, 5000000u, 2000000u, 4000000u})
        REQUIRE(pinned_bytes_of_graph(device, stream, n));
    return HOLDS(cudaFree(device) == 0);
}

static void end_process(void *)
{
    kill(getpid(), SIGKILL);
}

// The client ends while its graph waits for it. For the graph's copies the back end has pinned
// memory of the client.
bool killed_in_graph()
{
    constexpr std::size_t n = 3000000;
    char *device = device_memory(n), *back = nullptr;
    REQUIRE(cudaMallocHost(reinterpret_cast<void **>(&back), n) == 0);
    Graph graph;
    const Planes out = copy_of(back, device, n, D2H);
    const Host host = {end_process, nullptr};
    REQUIRE(graph.add("cudaGraphAddMemcpyNode", {}, &out) == 0);
    REQUIRE(graph.add("cudaGraphAddHostNode", {graph.nodes[0]}, &host) == 0);
    REQUIRE(launch(graph.made(), nullptr) == 0);
    return HOLDS(cudaDeviceSynchronize() == 0);
}

static void end_process_when(void *flag)
{
    until_set(flag);
    end_process(nullptr);
}

// It has copied from page-locked memory, and its kernel never ends.
bool killed_beside_endless()
{
    constexpr std::size_t n = 3000000;
    char *device = device_memory(n), *host = nullptr;
    void *stream;
    REQUIRE(cudaMallocHost(reinterpret_cast<void **>(&host), n) == 0 &&
            cudaStreamCreate(&stream) == 0);
    REQUIRE(cudaMemcpy(device, host, n, H2D) == 0);
    stub_remote()->hold_stream(reinterpret_cast<std::uint64_t>(stream));
    REQUIRE(cudaMemcpyAsync(device, device + 1000000, 1000, D2D, stream) == 0);
    void *captures = nullptr;
    REQUIRE(cudaStreamCreate(&captures) == 0 && cudaStreamBeginCapture(captures, 2) == 0);
    return raise(SIGKILL);
}

// Kernels have reached the process's memory. The last of its sessions is that of the library's own
// thread, which waits to be asked for a function.
bool killed_while_mapped()
{
    static std::atomic<bool> alone{false};
    bool good = false;
    const auto launches = [] {
        char *to = nullptr, *from = nullptr;
        const Host host = {end_process_when, &alone};
        REQUIRE(cudaGetLastError() == 0); // GVirtuS connects with the first call
        REQUIRE(cudaMallocHost(reinterpret_cast<void **>(&to), 4096) == 0);
        REQUIRE(cudaMallocHost(reinterpret_cast<void **>(&from), 4096) == 0);
        REQUIRE(stub_launch(to, from, 1, nullptr) == 0);
        Graph graph;
        REQUIRE(graph.add("cudaGraphAddHostNode", {}, &host) == 0);
        return launch(graph.made(), nullptr) == 0;
    };
    std::thread([&] { good = launches(); }).join();
    REQUIRE(good);
    alone = true;
    for (;;)
        pause();
}

namespace
{

// A graph copies the letter to a new allocation: in a context that fails before the graph gets
// there, or in a good one.
bool copied_by_graph(char letter, bool fails, std::vector<char> *there, char **device)
{
    void *stream = nullptr;
    REQUIRE((*device = device_memory(3000)) && cudaStreamCreateWithFlags(&stream, 1) == 0);
    Graph graph;
    const Planes in = copy_of(*device, there->data(), there->size(), H2D);
    REQUIRE(graph.add("cudaGraphAddMemcpyNode", {}, &in) == 0);
    void *exec = graph.made();
    if (fails) {
        stub_remote()->inject("dma", 1, 46, true);
        stub_remote()->hold(true);
        REQUIRE(stub_launch(*device + 1000, *device + 2000, 1000, stream) == 0);
    }
    std::fill(there->begin(), there->end(), letter);
    REQUIRE(launch(exec, stream) == 0);
    std::fill(there->begin(), there->end(), 'x');
    if (fails)
        stub_remote()->hold(false);
    REQUIRE(cudaStreamSynchronize(stream) == (fails ? 46 : 0));
    const std::vector<char> wanted(there->size(), letter);
    return HOLDS(fails || device_has(*device, wanted.data(), wanted.size()));
}

// Of several devices one is reset. A copy that was lost with its context has no bytes for an equal
// copy of a later graph. It is equal where the memory has the same address again: not in a process
// that programs share, in which a context that has failed frees nothing.
bool copied_after_reset_of_second()
{
    std::vector<char> there(1000);
    char *lost = nullptr, *device = nullptr;
    REQUIRE(device_memory(1) && cudaSetDevice(1) == 0);
    REQUIRE(copied_by_graph('a', true, &there, &lost) && cudaDeviceReset() == 0);
    stub_remote()->inject("", 0, 0, false);
    REQUIRE(cudaGetLastError() == 0 || cudaGetLastError() == 0);
    REQUIRE(copied_by_graph('b', false, &there, &device));
    REQUIRE(device == lost || std::getenv("IBX_TEST_PROCESSES"));
    return HOLDS(copied_by_graph('c', false, &there, &device));
}

} // namespace

// After a reset the streams in which graphs' copies were made no longer exist.
bool graphs_after_resets()
{
    for (char letter : {'a', 'b', 'c'}) {
        const std::vector<char> there(10000, letter);
        std::vector<char> back(there.size(), 'x');
        char *device = device_memory(there.size());
        void *stream = nullptr;
        REQUIRE(device && cudaStreamCreate(&stream) == 0);
        Graph graph;
        const Planes in = copy_of(device, there.data(), there.size(), H2D),
                     out = copy_of(back.data(), device, there.size(), D2H);
        REQUIRE(graph.add("cudaGraphAddMemcpyNode", {}, &in) == 0);
        REQUIRE(graph.add("cudaGraphAddMemcpyNode", {graph.nodes[0]}, &out) == 0);
        REQUIRE(launch(graph.made(), stream) == 0 && cudaStreamSynchronize(stream) == 0);
        REQUIRE(back == there && cudaDeviceReset() == 0);
    }
    return copied_after_reset_of_second();
}

// Few bytes from the device come with the message that the graph has reached the copy.
bool few_bytes_of_graphs()
{
    char *device = device_memory(4096);
    void *stream = nullptr;
    REQUIRE(cudaStreamCreate(&stream) == 0);
    for (const std::size_t n : {8u, 128u, 129u}) { // with what does not come with it
        std::vector<char> back(n + 2, 'x');
        Graph graph;
        const Planes out = copy_of(&back[1], device + 1, n, D2H);
        REQUIRE(graph.add("cudaGraphAddMemcpyNode", {}, &out) == 0);
        void *exec = graph.made();
        const auto unpinned = stub_remote()->stats().unpinned_async;
        const auto handled = stub_remote()->handled();
        for (char letter = 'a'; letter <= 'z'; letter++) {
            std::vector<char> there(n, letter);
            REQUIRE(cudaMemcpy(device + 1, there.data(), n, H2D) == 0);
            REQUIRE(launch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
            REQUIRE(!std::memcmp(&back[1], there.data(), n) && back[0] == 'x');
            REQUIRE(back[n + 1] == 'x');
        }
        REQUIRE(stub_remote()->stats().unpinned_async == unpinned);
        REQUIRE(stub_remote()->handled() == handled);
        std::fill(back.begin(), back.end(), 'y'); // several launches, and their order
        REQUIRE(cudaMemset(device, '1', 4096) == 0 && launch(exec, stream) == 0);
        REQUIRE(cudaMemsetAsync(device, '2', 4096, stream) == 0 && launch(exec, stream) == 0);
        REQUIRE(cudaStreamSynchronize(stream) == 0 && back[1] == '2' && back[n] == '2');
        REQUIRE(graph.destroy() == 0 && run("cudaGraphExecDestroy", exec) == 0);
    }
    return HOLDS(cudaFree(device) == 0);
}

// Nodes of the other kinds, and their order.
bool nodes_of_graphs()
{
    char *device = device_memory(8192);
    std::vector<char> bytes(8192, 'q'), back(8192);
    void *stream = nullptr, *event = nullptr, *child_node = nullptr;
    REQUIRE(cudaStreamCreate(&stream) == 0 && cudaEventCreate(&event) == 0);
    REQUIRE(cudaMemcpy(device, bytes.data(), 8192, H2D) == 0);
    // The double runs nodes without an order last one first.
    Graph graph;
    const Set ones = {device, 0, 1, 1, 4096, 1},
              twos = {device + 1024, 2048, 0x02020202, 4, 256, 2};
    REQUIRE(graph.add("cudaGraphAddMemsetNode", {}, &ones) == 0);
    REQUIRE(graph.add("cudaGraphAddMemsetNode", {}, &twos) == 0);
    using Order = void *const *;
    const auto order = [&](const char *name) {
        return run<void *, Order, Order, const void *, std::size_t>(
            name, graph.handle, &graph.nodes[0], &graph.nodes[1], nullptr, 1);
    };
    const auto expected = [&](char second) {
        std::vector<char> all(8192, 'q');
        std::memset(all.data(), 1, 4096);
        std::memset(all.data() + 1024, second, 1024);
        std::memset(all.data() + 3072, second, 1024);
        return cudaMemcpy(back.data(), device, 8192, D2H) == 0 && back == all;
    };
    void *exec = graph.made();
    REQUIRE(launch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0 && expected(1));
    REQUIRE(order("cudaGraphAddDependencies") == 0);
    void *ordered = graph.made();
    REQUIRE(launch(ordered, stream) == 0 && cudaStreamSynchronize(stream) == 0 && expected(2));
    std::size_t roots = 5;
    void *root[5];
    REQUIRE((run<void *, void **, std::size_t *>("cudaGraphGetRootNodes", graph.handle, root,
                                                 &roots) == 0));
    REQUIRE(roots == 1 && root[0] == graph.nodes[0] && !root[1]);
    REQUIRE(order("cudaGraphRemoveDependencies") == 0 &&
            fails(order("cudaGraphRemoveDependencies"), 1));
    // A graph in a graph; an event.
    Graph outer;
    int type = 9;
    REQUIRE((run<void **, void *, Order, std::size_t, void *>("cudaGraphAddChildGraphNode",
                                                              &child_node, outer.handle, nullptr, 0,
                                                              graph.handle) == 0));
    REQUIRE(run("cudaGraphNodeGetType", child_node, &type) == 0 && type == 4);
    void *recorded = nullptr, *empty = nullptr;
    REQUIRE((run<void **, void *, Order, std::size_t, void *>("cudaGraphAddEventRecordNode",
                                                              &recorded, outer.handle, &child_node,
                                                              1, event) == 0));
    REQUIRE((run<void **, void *, Order, std::size_t>("cudaGraphAddEmptyNode", &empty, outer.handle,
                                                      &recorded, 1) == 0));
    REQUIRE(cudaMemset(device, 'q', 8192) == 0 && launch(outer.made(), stream) == 0);
    REQUIRE(cudaEventSynchronize(event) == 0 && expected(1));
    REQUIRE(run("cudaGraphDestroyNode", empty) == 0 &&
            fails(run("cudaGraphDestroyNode", empty), 1));
    // Memory of a graph.
    Allocation allocation = {};
    allocation.kind = allocation.location = 1;
    allocation.n = 5000;
    void *node = nullptr;
    REQUIRE((run<void **, void *, Order, std::size_t, Allocation *>(
                 "cudaGraphAddMemAllocNode", &node, outer.handle, nullptr, 0, &allocation) == 0));
    REQUIRE(allocation.address && cudaMemcpy(back.data(), allocation.address, 5000, 4) == 0);
    REQUIRE((run<void **, void *, Order, std::size_t, void *>("cudaGraphAddMemFreeNode", &node,
                                                              outer.handle, &node, 1,
                                                              allocation.address) == 0));
    std::uint64_t used = 0;
    REQUIRE((run<int, int, void *>("cudaDeviceGetGraphMemAttribute", 0, 1, &used) == 0));
    REQUIRE(used == (1ull << 40 | 7) && run("cudaDeviceGraphMemTrim", 0) == 0);
    // Made-up handles, and those of another graph, do not get to CUDA.
    REQUIRE(fails(graph.add("cudaGraphAddMemsetNode", {child_node}, &ones), 1));
    REQUIRE(fails(graph.add("cudaGraphAddMemsetNode", {device}, &ones), 1));
    REQUIRE(fails(run("cudaGraphDestroy", ordered), 1));
    return HOLDS(graph.destroy() == 0 && outer.destroy() == 0 && graph.size() == 0 &&
                 cudaGetLastError() == 1);
}

// The answers to questions about a graph, its clone and its executable graph.
bool questions_about_graphs()
{
    char *device = device_memory(4096);
    std::vector<char> back(4096);
    void *stream = nullptr, *clone = nullptr, *node = nullptr, *exec = nullptr;
    unsigned long long flags = 7;
    Set ones = {device, 0, 1, 1, 4096, 1}, told = {};
    Graph graph;
    auto *find = preloaded<int(void **, void *, void *)>("cudaGraphNodeFindInClone");
    auto *flags_of = preloaded<int(void *, unsigned long long *)>("cudaGraphExecGetFlags");
    auto *params_of = preloaded<int(void *, Set *)>("cudaGraphMemsetNodeGetParams");
    REQUIRE(cudaStreamCreate(&stream) == 0);
    REQUIRE(graph.add("cudaGraphAddMemsetNode", {}, &ones) == 0);
    REQUIRE(params_of(graph.nodes[0], &told) == 0 && !std::memcmp(&told, &ones, sizeof(ones)));
    REQUIRE(fails(params_of(graph.nodes[0], nullptr), 1) && fails(params_of(device, &told), 1));
    REQUIRE(run("cudaGraphClone", &clone, graph.handle) == 0);
    REQUIRE(find(&node, graph.nodes[0], clone) == 0 && node && node != graph.nodes[0]);
    REQUIRE(fails(find(nullptr, graph.nodes[0], clone), 1));
    REQUIRE(fails(find(&exec, graph.nodes[0], graph.handle), 1));
    REQUIRE(fails(find(&exec, device, clone), 1) && fails(find(&exec, node, device), 1));
    // The found node is like any other node of the clone.
    ones.value = 3;
    REQUIRE((run<void *, const Set *>("cudaGraphMemsetNodeSetParams", node, &ones) == 0));
    REQUIRE(params_of(graph.nodes[0], &told) == 0 && told.value == 1);
    REQUIRE(
        (run<void **, void *, unsigned long long>("cudaGraphInstantiate", &exec, clone, 0) == 0));
    REQUIRE(launch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    REQUIRE(cudaMemcpy(back.data(), device, 4096, D2H) == 0 && back == std::vector<char>(4096, 3));
    REQUIRE(flags_of(exec, &flags) == 0 && flags == 0);
    REQUIRE(flags_of(graph.made(8), &flags) == 0 && flags == 8);
    REQUIRE(fails(flags_of(exec, nullptr), 1) && fails(flags_of(graph.handle, &flags), 1));
    REQUIRE(run("cudaGraphDestroyNode", node) == 0 && fails(find(&node, node, clone), 1));
    return HOLDS(run("cudaGraphDestroy", clone) == 0 && graph.destroy() == 0);
}

// A captured stream: copies from, to and on the host, memory that is set, a function.
bool captures()
{
    constexpr std::size_t n = 10000;
    char *device = device_memory(2 * n);
    std::vector<char> there(n, 'a'), back(n, 'x'), copied(n, 'x'), expected;
    void *stream = nullptr, *other = nullptr, *graph = nullptr, *exec = nullptr;
    int status = 5;
    Counted counted;
    counted.memory = back.data(), counted.expected = 'a';
    REQUIRE(cudaStreamCreate(&stream) == 0 && cudaStreamCreate(&other) == 0);
    const auto begin = [&](std::size_t set) {
        REQUIRE((run<void *, int>("cudaStreamBeginCapture", stream, 0) == 0));
        REQUIRE(run("cudaStreamIsCapturing", stream, &status) == 0 && status == 1);
        REQUIRE(cudaMemcpyAsync(device, there.data(), n, H2D, stream) == 0);
        REQUIRE(cudaMemsetAsync(device + 100, 's', set, stream) == 0);
        REQUIRE(cudaMemcpyAsync(back.data(), device, n, DEFAULT, stream) == 0);
        REQUIRE(cudaMemcpyAsync(copied.data(), back.data(), n, 0, stream) == 0);
        REQUIRE((run<void *, void (*)(void *), void *>("cudaLaunchHostFunc", stream, count,
                                                       &counted) == 0));
        return run("cudaStreamEndCapture", stream, &graph) == 0;
    };
    REQUIRE(begin(50));
    REQUIRE(run("cudaStreamIsCapturing", stream, &status) == 0 && status == 0);
    REQUIRE(cudaDeviceSynchronize() == 0 && back[0] == 'x' && counted.calls == 0); // nothing ran
    REQUIRE(copied == back);
    REQUIRE(
        (run<void **, void *, unsigned long long>("cudaGraphInstantiate", &exec, graph, 0) == 0));
    std::size_t nodes = 0;
    REQUIRE(
        (run<void *, void **, std::size_t *>("cudaGraphGetNodes", graph, nullptr, &nodes) == 0));
    REQUIRE(nodes == 5);
    int calls = 0;
    for (char letter : {'a', 'b'}) {
        std::fill(there.begin(), there.end(), letter);
        expected = there;
        std::memset(expected.data() + 100, 's', 50);
        counted.expected = letter;
        // The graph runs behind earlier work of its stream, and before later work.
        REQUIRE(launch(exec, other) == 0 && cudaMemsetAsync(device, 'm', n, other) == 0);
        REQUIRE(cudaStreamSynchronize(other) == 0 && back == expected && copied == expected);
        REQUIRE(counted.calls == ++calls && counted.right);
    }
    // An update: the same graph with more memory set; then a graph of another form.
    void *first = graph;
    Update told = {};
    REQUIRE(begin(60));
    REQUIRE((run<void *, void *, Update *>("cudaGraphExecUpdate", exec, graph, &told) == 0));
    REQUIRE(!told.result && launch(exec, other) == 0 && cudaStreamSynchronize(other) == 0);
    std::memset(expected.data() + 100, 's', 60);
    REQUIRE(back == expected && counted.calls == ++calls);
    Graph none;
    REQUIRE((fails(run<void *, void *, Update *>("cudaGraphExecUpdate", exec, none.handle, &told),
                   910)));
    REQUIRE(told.result == 2 && launch(exec, other) == 0 && cudaStreamSynchronize(other) == 0);
    REQUIRE(counted.calls == ++calls && run("cudaGraphDestroy", first) == 0);
    REQUIRE(run("cudaGraphDestroy", graph) == 0 && run("cudaGraphExecDestroy", exec) == 0);
    return HOLDS(cudaFree(device) == 0);
}

// A captured stream: copies of rows and planes, most within the device.
bool captures_of_planes()
{
    constexpr std::size_t n = 1000;
    char *device = device_memory(4 * n);
    std::vector<char> there(n, 'a'), back(600, 'x'), expected(600, 'm');
    void *stream = nullptr, *other = nullptr, *graph = nullptr, *exec = nullptr;
    std::size_t nodes = 0;
    for (std::size_t row = 0; row < 30; row++)
        std::memset(expected.data() + 20 * row, 'a', 10);
    REQUIRE(device && cudaStreamCreate(&stream) == 0 && cudaStreamCreate(&other) == 0);
    const auto rows = [&](char *to, const char *from) {
        return run<void *, std::size_t, const void *, std::size_t, std::size_t, std::size_t, int,
                   void *>("cudaMemcpy2DAsync", to, 20, from, 10, 10, 30, D2D, stream);
    };
    const Planes within = copy_of(device + 2 * n, device + n, 600, D2D),
                 out = copy_of(back.data(), device + 2 * n, 600, D2H);
    const auto planes = [&](const Planes *copy) {
        return run<const Planes *, void *>("cudaMemcpy3DAsync", copy, stream);
    };
    REQUIRE(cudaMemsetAsync(device, 'm', 4 * n, stream) == 0);
    REQUIRE(cudaStreamSynchronize(stream) == 0);
    REQUIRE((run<void *, int>("cudaStreamBeginCapture", stream, 0) == 0));
    REQUIRE(cudaMemcpyAsync(device, there.data(), n, H2D, stream) == 0);
    REQUIRE(rows(device + n, device) == 0 && planes(&within) == 0 && planes(&out) == 0);
    REQUIRE(run("cudaStreamEndCapture", stream, &graph) == 0 && graph);
    REQUIRE(cudaDeviceSynchronize() == 0 && back[0] == 'x' && device_has(device, "mm", 2));
    REQUIRE(
        (run<void *, void **, std::size_t *>("cudaGraphGetNodes", graph, nullptr, &nodes) == 0));
    REQUIRE(nodes == 4);
    REQUIRE(
        (run<void **, void *, unsigned long long>("cudaGraphInstantiate", &exec, graph, 0) == 0));
    REQUIRE(launch(exec, other) == 0 && cudaStreamSynchronize(other) == 0 && back == expected);
    // The same without a graph, one behind the other.
    REQUIRE(cudaMemsetAsync(device + n, 'm', 2 * n, stream) == 0);
    std::fill(back.begin(), back.end(), 'x');
    REQUIRE(rows(device + n, device) == 0 && planes(&within) == 0 && planes(&out) == 0);
    REQUIRE(cudaStreamSynchronize(stream) == 0 && back == expected);
    REQUIRE(run("cudaGraphDestroy", graph) == 0 && run("cudaGraphExecDestroy", exec) == 0);
    return HOLDS(cudaFree(device) == 0);
}

static void never_called(void *, int, void *called)
{
    *static_cast<bool *>(called) = true;
}

// CUDA takes functions of cudaLaunchHostFunc into graphs, and those of cudaStreamAddCallback not:
// a capture with one has failed.
bool captures_of_callbacks()
{
    using Callback = void (*)(void *stream, int status, void *argument);
    void *stream = nullptr, *graph = &stream;
    bool called = false;
    int status = 5;
    const auto add = [&](Callback callback) {
        return run<void *, Callback, void *, unsigned>("cudaStreamAddCallback", stream, callback,
                                                       &called, 0);
    };
    REQUIRE(cudaStreamCreate(&stream) == 0);
    REQUIRE((run<void *, int>("cudaStreamBeginCapture", stream, 0) == 0));
    REQUIRE(fails(add(nullptr), 1));
    REQUIRE(run("cudaStreamIsCapturing", stream, &status) == 0 && status == 1);
    REQUIRE(fails(add(never_called), 900) && fails(add(never_called), 901));
    REQUIRE(run("cudaStreamIsCapturing", stream, &status) == 0 && status == 2);
    REQUIRE(fails(run("cudaStreamEndCapture", stream, &graph), 901) && !graph && !called);
    // The stream takes callbacks again.
    REQUIRE(add(never_called) == 0 && cudaStreamSynchronize(stream) == 0 && called);
    return HOLDS(cudaStreamDestroy(stream) == 0);
}

// By a back end that says that graphs have more nodes than there are addresses, and that elements
// of arrays have 64 bytes: nothing behind the last row of 64 is sent. A kernel is not launched,
// either, if the back end says that it has more arguments than the program has pointers.
bool lied_to()
{
    REQUIRE(cudaGetLastError() == 0); // the first call, which asks for nothing else
    const std::size_t page = 4096;
    auto *memory = static_cast<char *>(
        mmap(nullptr, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(memory != MAP_FAILED && mprotect(memory + 2 * page, page, PROT_NONE) == 0);
    void *array = nullptr;
    const int channel[5] = {32, 0, 0, 0, 0};
    REQUIRE((run<void **, const void *, std::size_t, std::size_t, unsigned>(
                 "cudaMallocArray", &array, channel, 16, 4, 0) == 0));
    Planes rows = copy_of(nullptr, memory + page - 64, page, H2D);
    rows.to = {};
    rows.from.y = 2;
    rows.to_array = array;
    rows.extent = {16, 2, 1};
    REQUIRE(run<const Planes *>("cudaMemcpy3D", &rows) == 0);
    Graph graph;
    std::size_t n = 0;
    void *exec = nullptr;
    REQUIRE(graph.handle && (fails(run<void *, void **, std::size_t *>("cudaGraphGetNodes",
                                                                       graph.handle, nullptr, &n),
                                   999)));
    REQUIRE(fails(
        run<void **, void *, unsigned long long>("cudaGraphInstantiate", &exec, graph.handle, 0),
        999));
    const char ptx[] = ".version 9.0\n.target sm_90a\n.address_size 64\n.entry " STUB_LIBRARY_KERNEL
                       "(.param .u64 a)\n{\n ret;\n}";
    void *library = nullptr, *kernel = nullptr;
    REQUIRE((run<void **, const void *, const int *, void *const *, unsigned, const int *,
                 void *const *, unsigned>("cudaLibraryLoadData", &library, ptx, nullptr, nullptr, 0,
                                          nullptr, nullptr, 0) == 0));
    REQUIRE((run<void **, void *, const char *>("cudaLibraryGetKernel", &kernel, library,
                                                STUB_LIBRARY_KERNEL) == 0));
    void **last = reinterpret_cast<void **>(memory + 2 * page) - 1;
    *last = memory;
    for (unsigned i = 0; i < 3; i++)
        REQUIRE(fails(cudaLaunchKernel(kernel, {1, 1, 1}, {1, 1, 1}, last, 0, nullptr), 98));
    return true;
}

// No node is added for a copy of nothing, of no kind, or of rows beyond their pitch or height.
bool added_for_nothing(char *device)
{
    std::vector<char> there(1024);
    Graph graph;
    for (const Planes &sound :
         {copy_of(device, there.data(), 40, H2D), copy_of(there.data(), device, 40, D2H),
          copy_of(device, device + 1024, 40, D2D)}) {
        const auto add = [&](auto change) {
            Planes p = sound;
            p.from.pitch = p.to.pitch = 40, p.from.y = p.to.y = 10;
            p.extent = {40, 10, 2};
            change(p);
            return graph.add("cudaGraphAddMemcpyNode", {}, &p);
        };
        REQUIRE(add([](Planes &) {}) == 0);
        for (int kind : {-1, 5, 99})
            REQUIRE(fails(add([kind](Planes &p) { p.kind = kind; }), 21));
        REQUIRE(fails(add([](Planes &p) { p.from.pitch = 39; }), 12));
        REQUIRE(fails(add([](Planes &p) { p.to.pitch = 39; }), 12));
        REQUIRE(fails(add([](Planes &p) { p.from.y = 9; }), 12));
        REQUIRE(fails(add([](Planes &p) { p.extent.depth = 1, p.from.y = 9; }), 1));
        REQUIRE(fails(add([](Planes &p) { p.extent.depth = 1, p.from_at.height = 1; }), 1));
        REQUIRE(fails(add([](Planes &p) { p.extent.width = 0; }), 1));
        REQUIRE(fails(add([](Planes &p) { p.extent.height = 0; }), 1));
        REQUIRE(fails(add([](Planes &p) { p.extent.depth = 0; }), 1));
    }
    return HOLDS(graph.destroy() == 0);
}
