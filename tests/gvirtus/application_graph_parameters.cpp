// SPDX-License-Identifier: LGPL-2.1-or-later
//
// The parameters of graphs' nodes: what nodes return, and what is set later.
#include "tests/gvirtus/graph_calls.h"

#include <atomic>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace graph_calls;

namespace
{

int parameters_of(void *node, Kernel *kernel)
{
    return run<void *, Kernel *>("cudaGraphKernelNodeGetParams", node, kernel);
}

template <typename T> T value_at(const void *at)
{
    T value;
    std::memcpy(&value, at, sizeof(value));
    return value;
}

void count_up(void *argument)
{
    ++*static_cast<std::atomic<int> *>(argument);
}

struct Attribute {
    std::uint64_t value;
    char rest[56];
};

} // namespace

// The kernels of a graph: the program may read each argument where it is, and it stays there. The
// test asks for the arguments, changes them and sets them again, as programs that capture a graph
// do.
bool kernels_of_graphs()
{
    constexpr std::size_t n = 5000;
    char *device = device_memory(3 * n), *second = device + n;
    std::size_t bytes = n;
    void *stream = nullptr, *to = second, *from = device;
    void *arguments[] = {&to, &from, &bytes};
    std::vector<char> back(n), letters(n, 'p');
    Graph graph;
    Kernel kernel = {&stub_kernel, {100, 2, 3}, {64, 1, 2}, 0, arguments, nullptr};
    Kernel told = {}, again = {};
    REQUIRE(cudaStreamCreate(&stream) == 0);
    REQUIRE(cudaMemcpy(device + 2 * n, letters.data(), n, H2D) == 0);
    REQUIRE(graph.add("cudaGraphAddKernelNode", {}, &kernel) == 0);
    REQUIRE(parameters_of(graph.nodes[0], &told) == 0 && told.function == &stub_kernel);
    REQUIRE(told.grid.x == 100 && told.grid.y == 2 && told.grid.z == 3 && told.block.x == 64 &&
            told.block.z == 2 && !told.shared && !told.extra && told.arguments);
    REQUIRE(value_at<void *>(told.arguments[0]) == second);
    REQUIRE(value_at<void *>(told.arguments[1]) == device);
    REQUIRE(value_at<std::size_t>(told.arguments[2]) == n);
    void *exec = graph.made();
    from = device + 2 * n;
    told.arguments[1] = &from;
    REQUIRE(
        (run<void *, const Kernel *>("cudaGraphKernelNodeSetParams", graph.nodes[0], &told) == 0));
    REQUIRE(parameters_of(graph.nodes[0], &again) == 0);
    REQUIRE(again.arguments == told.arguments &&
            value_at<void *>(again.arguments[1]) == device + 2 * n);
    Update result = {};
    REQUIRE(
        (run<void *, void *, Update *>("cudaGraphExecUpdate", exec, graph.handle, &result) == 0));
    REQUIRE(launch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    REQUIRE(cudaMemcpy(back.data(), second, n, D2H) == 0 && back == letters);
    // Those of another kind, of none, and of a node that is no more.
    const graph_calls::Set ones = {device, 0, 1, 1, 4, 1};
    REQUIRE(graph.add("cudaGraphAddMemsetNode", {}, &ones) == 0);
    REQUIRE(fails(parameters_of(graph.nodes[1], &told), 1));
    REQUIRE(fails(parameters_of(graph.nodes[0], nullptr), 1));
    REQUIRE(fails(parameters_of(device, &told), 1));
    REQUIRE(graph.destroy() == 0 && fails(parameters_of(graph.nodes[0], &told), 1));
    return HOLDS(run("cudaGraphExecDestroy", exec) == 0 && cudaFree(device) == 0);
}

// As llama.cpp does for each token: a node that has taken a kernel takes it again with other
// arguments, without a wait for the back end. For a new kernel, or for a graph that was destroyed,
// the call waits. The next call that waits for the device returns an error that comes later.
bool kernels_that_are_set_again()
{
    constexpr std::size_t n = 5000;
    char *device = device_memory(3 * n), *second = device + n;
    std::size_t bytes = n;
    void *to = second, *from = device, *arguments[] = {&to, &from, &bytes};
    Kernel kernel = {&stub_kernel, {10, 1, 1}, {64, 1, 1}, 0, arguments, nullptr};
    Graph graph;
    REQUIRE(graph.add("cudaGraphAddKernelNode", {}, &kernel) == 0);
    const auto set = [&] {
        return run<void *, const Kernel *>("cudaGraphKernelNodeSetParams", graph.nodes[0], &kernel);
    };
    const auto fails_next = [&] {
        stub_remote()->inject("cuGraphKernelNodeSetParams", 1, 1, false);
    };
    fails_next();
    REQUIRE(fails(set(), 1) && set() == 0);
    void *exec = graph.made();
    for (char letter = 'a'; letter <= 'e'; letter++) { // in order with what is waited for
        const std::vector<char> letters(n, letter);
        std::vector<char> back(n);
        Update result = {};
        from = letter % 2 ? device + 2 * n : device;
        REQUIRE(cudaMemcpy(from, letters.data(), n, H2D) == 0 && set() == 0);
        REQUIRE((run<void *, void *, Update *>("cudaGraphExecUpdate", exec, graph.handle,
                                               &result) == 0));
        REQUIRE(launch(exec, nullptr) == 0);
        REQUIRE(cudaMemcpy(back.data(), second, n, D2H) == 0 && back == letters);
    }
    fails_next();
    REQUIRE(set() == 0 && fails(cudaDeviceSynchronize(), 1));
    fails_next();
    kernel.grid.x = 11;
    REQUIRE(fails(set(), 1) && set() == 0);
    stub_remote()->inject("", 0, 0, false);
    REQUIRE(graph.destroy() == 0 && fails(set(), 1));
    return HOLDS(run("cudaGraphExecDestroy", exec) == 0 && cudaFree(device) == 0);
}

// Such a program also updates its executable graph each time. An update that has succeeded does so
// again, without a wait, until a graph is changed otherwise than by kernels' arguments; the next
// call that waits for the device returns an error that comes later. After any other change the call
// waits, and says what is wrong.
bool updates_that_are_repeated()
{
    constexpr std::size_t n = 5000;
    char *device = device_memory(2 * n), *second = device + n;
    std::size_t bytes = n;
    void *to = second, *from = device, *arguments[] = {&to, &from, &bytes}, *event = nullptr;
    Kernel kernel = {&stub_kernel, {10, 1, 1}, {64, 1, 1}, 0, arguments, nullptr};
    Graph graph, other;
    REQUIRE(cudaEventCreate(&event) == 0);
    REQUIRE(graph.add("cudaGraphAddKernelNode", {}, &kernel) == 0);
    REQUIRE(graph.add("cudaGraphAddKernelNode", {}, &kernel) == 0);
    void *exec = graph.made();
    Update told = {};
    const auto update = [&] {
        told = {7, device, device};
        return run<void *, void *, Update *>("cudaGraphExecUpdate", exec, graph.handle, &told);
    };
    const auto fails_next = [&] { stub_remote()->inject("cudaGraphExecUpdate", 1, 910, false); };
    const auto is_late = [&] {
        fails_next();
        const bool late = update() == 0 && !told.result && !told.node && !told.other &&
                          fails(cudaDeviceSynchronize(), 910);
        stub_remote()->inject("", 0, 0, false);
        return late && update() == 0; // it waits, since an update has failed
    };
    const auto waits = [&] {
        fails_next();
        const bool waited = fails(update(), 910);
        stub_remote()->inject("", 0, 0, false);
        return waited && update() == 0 && cudaDeviceSynchronize() == 0;
    };
    const auto set = [&] {
        return run<void *, const Kernel *>("cudaGraphKernelNodeSetParams", graph.nodes[0], &kernel);
    };
    REQUIRE(waits() && is_late() && is_late());
    REQUIRE(set() == 0 && update() == 0 && set() == 0 && is_late()); // other arguments
    kernel.grid.x = 11;
    REQUIRE(set() == 0 && waits()); // another grid, for which the call has waited
    REQUIRE(is_late() && launch(exec, nullptr) == 0 && is_late());
    REQUIRE(other.add("cudaGraphAddKernelNode", {}, &kernel) == 0 && waits());
    // A node that names an event, which may be destroyed at any time.
    void *record = nullptr;
    REQUIRE((run<void **, void *, void *const *, std::size_t, void *>(
                 "cudaGraphAddEventRecordNode", &record, graph.handle, nullptr, 0, event) == 0));
    REQUIRE(fails(update(), 910) && told.result == 2);
    REQUIRE(run("cudaGraphExecDestroy", exec) == 0);
    exec = graph.made();
    REQUIRE(waits() && waits() && cudaEventDestroy(event) == 0 && fails(update(), 400));
    return HOLDS(graph.destroy() == 0 && other.destroy() == 0 &&
                 run("cudaGraphExecDestroy", exec) == 0 && cudaFree(device) == 0);
}

// Cooperative launches in a capture; and a plain one there, whose node becomes a cooperative one.
static bool captures_cooperative(void **arguments)
{
    using Launch = int(const void *, StubDim3, StubDim3, void **, std::size_t, void *);
    auto *cooperative = preloaded<Launch>("cudaLaunchCooperativeKernel");
    constexpr LaunchAttribute is_cooperative = {2, {1}};
    const Attribute on = {1, {}};
    void *stream = nullptr, *graph = nullptr, *nodes[4] = {}, *exec = nullptr;
    std::size_t count = 4;
    REQUIRE(cudaStreamCreate(&stream) == 0 && cudaStreamBeginCapture(stream, 0) == 0);
    const LaunchConfig config = {{2, 1, 1}, {32, 1, 1}, 0, stream, &is_cooperative, 1};
    REQUIRE(cooperative(&stub_kernel, {2, 1, 1}, {32, 1, 1}, arguments, 0, stream) == 0);
    REQUIRE(preloaded<LaunchAs>("cudaLaunchKernelExC")(&config, &stub_kernel, arguments) == 0);
    REQUIRE(cudaLaunchKernel(&stub_kernel, {2, 1, 1}, {32, 1, 1}, arguments, 0, stream) == 0);
    REQUIRE(run("cudaStreamEndCapture", stream, &graph) == 0);
    REQUIRE((run<void *, void **, std::size_t *>("cudaGraphGetNodes", graph, nodes, &count) == 0));
    REQUIRE(count == 3);
    REQUIRE(
        (run<void *, int, const void *>("cudaGraphKernelNodeSetAttribute", nodes[2], 2, &on) == 0));
    REQUIRE(
        (run<void **, void *, unsigned long long>("cudaGraphInstantiate", &exec, graph, 0) == 0));
    REQUIRE(run("cudaGraphLaunch", exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    REQUIRE(run("cudaGraphExecDestroy", exec) == 0 && run("cudaGraphDestroy", graph) == 0);
    return HOLDS(cudaStreamDestroy(stream) == 0);
}

// Attributes of kernels: CUDA keeps them, and copies them from node to node.
bool attributes_of_nodes()
{
    char *device = device_memory(64);
    std::size_t bytes = 32;
    void *to = device, *from = device + 32, *arguments[] = {&to, &from, &bytes};
    const Kernel kernel = {&stub_kernel, {1, 1, 1}, {1, 1, 1}, 0, arguments, nullptr};
    Attribute set = {}, told = {};
    Graph graph;
    const auto get = [&](void *node, int id) {
        return run<void *, int, void *>("cudaGraphKernelNodeGetAttribute", node, id, &told);
    };
    REQUIRE(graph.add("cudaGraphAddKernelNode", {}, &kernel) == 0);
    REQUIRE(graph.add("cudaGraphAddKernelNode", {}, &kernel) == 0);
    set.value = 5;
    REQUIRE((run<void *, int, const void *>("cudaGraphKernelNodeSetAttribute", graph.nodes[0], 8,
                                            &set) == 0));
    REQUIRE(get(graph.nodes[0], 8) == 0 && told.value == 5);
    REQUIRE(get(graph.nodes[1], 8) == 0 && told.value == 0);
    REQUIRE(run("cudaGraphKernelNodeCopyAttributes", graph.nodes[1], graph.nodes[0]) == 0);
    REQUIRE(get(graph.nodes[1], 8) == 0 && told.value == 5 && fails(get(device, 8), 1));
    // A graph's node cannot have the attribute that names an event.
    REQUIRE((fails(
        run<void *, int, const void *>("cudaGraphKernelNodeSetAttribute", graph.nodes[0], 7, &set),
        1)));
    for (void *node : graph.nodes)
        REQUIRE((run<void *, int, const void *>("cudaGraphKernelNodeSetAttribute", node, 2, &set) ==
                 0));
    std::vector<char> letters(32, 'k');
    REQUIRE(cudaMemcpy(from, letters.data(), 32, H2D) == 0);
    REQUIRE(captures_cooperative(arguments) && device_has(device, letters.data(), 32));
    return HOLDS(graph.destroy() == 0 && cudaFree(device) == 0);
}

// Events and functions of nodes, in the graph and in what was made of it before.
bool events_and_functions_of_nodes()
{
    void *stream = nullptr, *first = nullptr, *second = nullptr, *event = nullptr;
    void *recorded = nullptr, *wait_node = nullptr;
    std::atomic<int> calls{0}, others{0}, thirds{0};
    Graph graph;
    Host host = {count_up, &calls}, told = {};
    using Order = void *const *;
    REQUIRE(cudaStreamCreate(&stream) == 0);
    REQUIRE(cudaEventCreate(&first) == 0 && cudaEventCreate(&second) == 0);
    const auto add = [&](const char *name, void **node) {
        return run<void **, void *, Order, std::size_t, void *>(name, node, graph.handle, nullptr,
                                                                0, first);
    };
    REQUIRE(add("cudaGraphAddEventRecordNode", &recorded) == 0);
    REQUIRE(add("cudaGraphAddEventWaitNode", &wait_node) == 0);
    REQUIRE(graph.add("cudaGraphAddHostNode", {}, &host) == 0);
    REQUIRE(graph.add("cudaGraphAddHostNode", {graph.nodes[0]}, &host) == 0);
    void *exec = graph.made();
    // Events.
    const auto event_of = [&](const char *name, void *node) {
        return run<void *, void **>(name, node, &event);
    };
    REQUIRE(event_of("cudaGraphEventRecordNodeGetEvent", recorded) == 0 && event == first);
    REQUIRE(fails(event_of("cudaGraphEventWaitNodeGetEvent", recorded), 1));
    REQUIRE(fails(event_of("cudaGraphEventRecordNodeGetEvent", wait_node), 1));
    REQUIRE(run("cudaGraphEventRecordNodeSetEvent", recorded, second) == 0);
    REQUIRE(event_of("cudaGraphEventRecordNodeGetEvent", recorded) == 0 && event == second);
    REQUIRE(run("cudaGraphExecEventRecordNodeSetEvent", exec, recorded, second) == 0);
    REQUIRE(run("cudaGraphEventWaitNodeSetEvent", wait_node, second) == 0);
    REQUIRE(event_of("cudaGraphEventWaitNodeGetEvent", wait_node) == 0 && event == second);
    REQUIRE(run("cudaGraphExecEventWaitNodeSetEvent", exec, wait_node, first) == 0);
    REQUIRE(fails(run("cudaGraphEventWaitNodeSetEvent", graph.nodes[0], second), 1));
    REQUIRE(fails(run("cudaGraphEventWaitNodeSetEvent", wait_node, stream), 400));
    // Each call is for one kind of node.
    for (void *of : {static_cast<void *>(nullptr), exec}) {
        const auto set = [&](const char *plain, const char *in_exec, void *node, void *to) {
            return of ? run(in_exec, of, node, to) : run(plain, node, to);
        };
        const auto wait = [&](void *node, void *to) {
            return set("cudaGraphEventWaitNodeSetEvent", "cudaGraphExecEventWaitNodeSetEvent", node,
                       to);
        };
        const auto record = [&](void *node, void *to) {
            return set("cudaGraphEventRecordNodeSetEvent", "cudaGraphExecEventRecordNodeSetEvent",
                       node, to);
        };
        REQUIRE(fails(wait(recorded, first), 1) && fails(record(wait_node, first), 1));
        REQUIRE(fails(wait(wait_node, nullptr), 1) && fails(record(recorded, nullptr), 1));
    }
    REQUIRE(event_of("cudaGraphEventRecordNodeGetEvent", recorded) == 0 && event == second);
    REQUIRE(event_of("cudaGraphEventWaitNodeGetEvent", wait_node) == 0 && event == second);
    // Functions.
    REQUIRE((run<void *, Host *>("cudaGraphHostNodeGetParams", graph.nodes[0], &told) == 0));
    REQUIRE(told.function == count_up && told.argument == &calls);
    host.argument = &others;
    REQUIRE((run<void *, const Host *>("cudaGraphHostNodeSetParams", graph.nodes[0], &host) == 0));
    REQUIRE((run<void *, Host *>("cudaGraphHostNodeGetParams", graph.nodes[0], &told) == 0));
    REQUIRE(told.argument == &others);
    REQUIRE(launch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    REQUIRE(calls == 2 && others == 0); // as it was made
    host.argument = &thirds;
    REQUIRE((run<void *, void *, const Host *>("cudaGraphExecHostNodeSetParams", exec,
                                               graph.nodes[1], &host) == 0));
    REQUIRE(launch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    REQUIRE(calls == 3 && others == 0 && thirds == 1);
    void *made_later = graph.made();
    REQUIRE(launch(made_later, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    REQUIRE(calls == 4 && others == 1 && thirds == 1);
    REQUIRE((fails(run<void *, Host *>("cudaGraphHostNodeGetParams", wait_node, &told), 1)));
    host.function = nullptr;
    REQUIRE(
        (fails(run<void *, const Host *>("cudaGraphHostNodeSetParams", graph.nodes[0], &host), 1)));
    return HOLDS(graph.destroy() == 0);
}

// Without an executable graph the calls for its nodes change nothing, least of all the graph's own.
bool nodes_of_no_executable()
{
    char *device = device_memory(4096);
    void *event = nullptr, *other = nullptr, *of_event[2] = {}, *child = nullptr, *found = nullptr;
    std::atomic<int> calls{0};
    std::size_t n = 100;
    void *to = device, *from = device + 2048, *arguments[] = {&to, &from, &n};
    using Order = void *const *;
    const Kernel kernel = {&stub_kernel, {10, 1, 1}, {64, 1, 1}, 0, arguments, nullptr};
    const graph_calls::Set ones = {device, 0, 1, 1, 4096, 1}, twos = {device, 0, 2, 1, 4096, 1};
    const Host host = {count_up, &calls};
    graph_calls::Set told = {};
    Graph graph, inner;
    REQUIRE(cudaEventCreate(&event) == 0 && cudaEventCreate(&other) == 0);
    REQUIRE(graph.add("cudaGraphAddKernelNode", {}, &kernel) == 0);
    REQUIRE(graph.add("cudaGraphAddMemsetNode", {}, &ones) == 0);
    REQUIRE(graph.add("cudaGraphAddHostNode", {}, &host) == 0);
    REQUIRE(inner.add("cudaGraphAddMemsetNode", {}, &ones) == 0);
    const auto add = [&](const char *name, void **node, void *what) {
        return run<void **, void *, Order, std::size_t, void *>(name, node, graph.handle, nullptr,
                                                                0, what);
    };
    REQUIRE(add("cudaGraphAddEventRecordNode", &of_event[0], event) == 0);
    REQUIRE(add("cudaGraphAddEventWaitNode", &of_event[1], event) == 0);
    REQUIRE(add("cudaGraphAddChildGraphNode", &child, inner.handle) == 0);
    const auto set = [](const char *name, void *node, const void *parameters) {
        return run<void *, void *, const void *>(name, nullptr, node, parameters);
    };
    REQUIRE(fails(set("cudaGraphExecKernelNodeSetParams", graph.nodes[0], &kernel), 1));
    REQUIRE(fails(set("cudaGraphExecMemsetNodeSetParams", graph.nodes[1], &twos), 1));
    REQUIRE(fails(set("cudaGraphExecHostNodeSetParams", graph.nodes[2], &host), 1));
    REQUIRE(fails(set("cudaGraphExecEventRecordNodeSetEvent", of_event[0], other), 1));
    REQUIRE(fails(set("cudaGraphExecEventWaitNodeSetEvent", of_event[1], other), 1));
    REQUIRE(fails(set("cudaGraphExecChildGraphNodeSetParams", child, inner.handle), 1));
    REQUIRE((run<void *, graph_calls::Set *>("cudaGraphMemsetNodeGetParams", graph.nodes[1],
                                             &told) == 0 &&
             told.value == 1));
    REQUIRE((run<void *, void **>("cudaGraphEventWaitNodeGetEvent", of_event[1], &found) == 0));
    REQUIRE(found == event);
    return HOLDS(graph.destroy() == 0 && inner.destroy() == 0 && cudaFree(device) == 0);
}

// A graph in a graph is the node's own: what is added to it is in the node. It goes with the node.
bool graphs_of_nodes()
{
    char *device = device_memory(4096);
    std::vector<char> back(4096), expected(4096, 2);
    void *stream = nullptr, *node = nullptr, *child = nullptr, *again = nullptr, *inner = nullptr;
    std::size_t count = 0;
    using Order = void *const *;
    Graph graph, outer, other;
    const graph_calls::Set ones = {device, 0, 1, 1, 4096, 1}, twos = {device, 0, 2, 1, 4096, 1};
    REQUIRE(cudaStreamCreate(&stream) == 0);
    REQUIRE(graph.add("cudaGraphAddMemsetNode", {}, &ones) == 0);
    REQUIRE(other.add("cudaGraphAddMemsetNode", {}, &twos) == 0);
    const auto add = [&](void *what) {
        return run<void **, void *, Order, std::size_t, void *>("cudaGraphAddChildGraphNode", &node,
                                                                outer.handle, nullptr, 0, what);
    };
    const auto get = [&](void *of, void **found) {
        return run<void *, void **>("cudaGraphChildGraphNodeGetGraph", of, found);
    };
    REQUIRE(add(graph.handle) == 0 && get(node, &child) == 0 && child && child != graph.handle);
    REQUIRE(get(node, &again) == 0 && again == child);
    REQUIRE(
        (run<void *, void **, std::size_t *>("cudaGraphGetNodes", child, nullptr, &count) == 0));
    REQUIRE(count == 1 && fails(run("cudaGraphDestroy", child), 1));
    // The executable graph gets another graph of the same form.
    void *exec = outer.made();
    REQUIRE(run("cudaGraphExecChildGraphNodeSetParams", exec, node, other.handle) == 0);
    REQUIRE(launch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    REQUIRE(cudaMemcpy(back.data(), device, 4096, D2H) == 0 && back == expected);
    // One more node in it.
    REQUIRE((run<void **, void *, Order, std::size_t>("cudaGraphAddEmptyNode", &inner, child,
                                                      nullptr, 0) == 0));
    REQUIRE(
        (run<void *, void **, std::size_t *>("cudaGraphGetNodes", child, nullptr, &count) == 0));
    REQUIRE(count == 2);
    REQUIRE(fails(run("cudaGraphExecChildGraphNodeSetParams", exec, node, outer.handle), 910));
    // A copy with the host is no graph to the program, and a graph with one is not set.
    const Planes out = copy_of(back.data(), device, 4096, D2H);
    Graph copies;
    REQUIRE(copies.add("cudaGraphAddMemcpyNode", {}, &out) == 0);
    REQUIRE(fails(get(copies.nodes[0], &again), 1) && fails(get(graph.nodes[0], &again), 1));
    REQUIRE(fails(run("cudaGraphExecChildGraphNodeSetParams", exec, node, copies.handle), 801));
    REQUIRE(run("cudaGraphDestroyNode", node) == 0 && fails(get(node, &again), 1));
    int type = 0;
    REQUIRE(fails(run("cudaGraphNodeGetType", inner, &type), 1));
    REQUIRE((fails(run<void *, void **, std::size_t *>("cudaGraphGetNodes", child, nullptr, &count),
                   1)));
    REQUIRE(add(graph.handle) == 0 && get(node, &child) == 0 && outer.destroy() == 0);
    return HOLDS(
        fails(run<void *, void **, std::size_t *>("cudaGraphGetNodes", child, nullptr, &count), 1));
}

// Memory of a node that other devices may use.
bool memory_for_devices(Graph &graph)
{
    struct {
        int kind, device, flags;
    } accesses[65] = {{1, 0, 3}, {1, 1, 3}};
    Allocation allocation = {};
    allocation.kind = allocation.location = 1;
    allocation.n = 5000;
    allocation.access = accesses;
    const auto add = [&](std::size_t count) {
        void *node = nullptr;
        allocation.access_count = count;
        return run<void **, void *, void *const *, std::size_t, Allocation *>(
            "cudaGraphAddMemAllocNode", &node, graph.handle, nullptr, 0, &allocation);
    };
    REQUIRE(add(1) == 0 && add(2) == 0 && allocation.address);
    accesses[1].device = 2; // there is none
    REQUIRE(fails(add(2), 1) && add(1) == 0);
    accesses[1] = {1, 1, 1};
    REQUIRE(fails(add(2), 1));
    accesses[1] = {2, 0, 3}; // of the host
    REQUIRE(fails(add(2), 1) && fails(add(65), 801));
    allocation.access = nullptr;
    return fails(add(1), 1) && add(0) == 0;
}

// CUDA gives the place of what a node frees to a shorter one behind it. The copies of the former
// may be set as before.
bool place_of_two(Graph &graph)
{
    using Order = void *const *;
    void *first = nullptr, *copy = nullptr, *freed = nullptr, *second = nullptr;
    char *host = nullptr;
    Allocation a = {}, b = {};
    a.kind = a.location = b.kind = b.location = 1;
    a.n = 5000, b.n = 100;
    const auto allocate = [&](void **node, Order behind, std::size_t count, Allocation *of) {
        return run<void **, void *, Order, std::size_t, Allocation *>(
            "cudaGraphAddMemAllocNode", node, graph.handle, behind, count, of);
    };
    const auto set = [&](std::size_t n) {
        return run<void *, void *, const void *, std::size_t, int>("cudaGraphMemcpyNodeSetParams1D",
                                                                   copy, a.address, host, n, H2D);
    };
    REQUIRE(cudaMallocHost(reinterpret_cast<void **>(&host), a.n) == 0);
    REQUIRE(allocate(&first, nullptr, 0, &a) == 0);
    REQUIRE((run<void **, void *, Order, std::size_t, void *, const void *, std::size_t, int>(
                 "cudaGraphAddMemcpyNode1D", &copy, graph.handle, &first, 1, a.address, host, a.n,
                 H2D) == 0));
    REQUIRE((run<void **, void *, Order, std::size_t, void *>(
                 "cudaGraphAddMemFreeNode", &freed, graph.handle, &copy, 1, a.address) == 0));
    REQUIRE(allocate(&second, &freed, 1, &b) == 0 && b.address == a.address);
    REQUIRE(set(4000) == 0 && set(a.n) == 0);
    return HOLDS(cudaFreeHost(host) == 0);
}

// Memory of nodes; nodes of all kinds by one call.
bool parameters_of_all_kinds()
{
    void *node = nullptr, *freed = nullptr, *address = nullptr, *stream = nullptr;
    using Order = void *const *;
    Graph graph;
    Allocation allocation = {}, told = {};
    allocation.kind = allocation.location = 1;
    allocation.n = 5000;
    REQUIRE(cudaStreamCreate(&stream) == 0);
    REQUIRE((run<void **, void *, Order, std::size_t, Allocation *>(
                 "cudaGraphAddMemAllocNode", &node, graph.handle, nullptr, 0, &allocation) == 0));
    REQUIRE((run<void **, void *, Order, std::size_t, void *>("cudaGraphAddMemFreeNode", &freed,
                                                              graph.handle, &node, 1,
                                                              allocation.address) == 0));
    REQUIRE((run<void *, Allocation *>("cudaGraphMemAllocNodeGetParams", node, &told) == 0));
    REQUIRE(told.address == allocation.address && told.n == 5000 && told.kind == 1 &&
            told.location == 1 && !told.device && !told.access);
    REQUIRE((run<void *, void *>("cudaGraphMemFreeNodeGetParams", freed, &address) == 0));
    REQUIRE(address == allocation.address);
    REQUIRE((fails(run<void *, void *>("cudaGraphMemFreeNodeGetParams", node, &address), 1)));
    std::uint64_t none = 0;
    REQUIRE((run<int, int, const void *>("cudaDeviceSetGraphMemAttribute", 0, 1, &none) == 0));
    Graph more;
    REQUIRE(memory_for_devices(more) && more.destroy() == 0);
    Graph two;
    REQUIRE(place_of_two(two) && two.destroy() == 0);
    // cudaGraphNodeParams
    struct {
        int type, reserved[3];
        graph_calls::Set set;
        char rest[200];
    } p = {};
    char *device = device_memory(64);
    std::vector<char> back(64), expected(64, 7);
    Graph sets;
    graph_calls::Set set = {device, 0, 1, 1, 64, 1};
    REQUIRE(sets.add("cudaGraphAddMemsetNode", {}, &set) == 0);
    void *exec = sets.made();
    set.value = 7;
    p.type = 2;
    p.set = set;
    REQUIRE(
        (run<void *, void *, void *>("cudaGraphExecNodeSetParams", exec, sets.nodes[0], &p) == 0));
    REQUIRE(launch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    REQUIRE(cudaMemcpy(back.data(), device, 64, D2H) == 0 && back == expected);
    REQUIRE((run<void *, void *>("cudaGraphNodeSetParams", sets.nodes[0], &p) == 0));
    REQUIRE((run<void *, graph_calls::Set *>("cudaGraphMemsetNodeGetParams", sets.nodes[0], &set) ==
             0));
    REQUIRE(set.value == 7);
    p.type = 5; // an empty one
    REQUIRE((fails(run<void *, void *>("cudaGraphNodeSetParams", sets.nodes[0], &p), 1)));
    p.type = 10;
    REQUIRE((fails(run<void *, void *>("cudaGraphNodeSetParams", sets.nodes[0], &p), 801)));
    return HOLDS((fails(run<void *, void *>("cudaGraphNodeSetParams", sets.nodes[0], nullptr), 1)));
}

// User objects of graphs: the function is called once nobody has a reference to the object any
// more, and the launches have ended.
bool objects_of_graphs()
{
    static std::atomic<int> ended;
    static std::atomic<bool> open;
    const auto end = [](void *what) { ended += *static_cast<int *>(what); };
    const auto gate = [](void *) {
        while (!open)
            std::this_thread::yield();
    };
    void *object = nullptr, *other = nullptr, *clone = nullptr, *stream = nullptr, *exec = nullptr;
    int one = 1, ten = 10;
    const auto make = [&](void **made, int *what, unsigned count) {
        return run<void **, void *, void (*)(void *), unsigned, unsigned>(
            "cudaUserObjectCreate", made, what, end, count, 1);
    };
    const auto release = [](void *of, unsigned n) {
        return run<void *, unsigned>("cudaUserObjectRelease", of, n);
    };
    const auto retain = [](void *graph, void *of, unsigned n, unsigned flags) {
        return run<void *, void *, unsigned, unsigned>("cudaGraphRetainUserObject", graph, of, n,
                                                       flags);
    };
    // Without graphs.
    REQUIRE(make(&object, &one, 2) == 0);
    for (unsigned none : {0u, INT_MAX + 1u, UINT_MAX})
        REQUIRE((fails(run<void *, unsigned>("cudaUserObjectRetain", object, none), 1)));
    REQUIRE((run<void *, unsigned>("cudaUserObjectRetain", object, 1) == 0));
    REQUIRE(fails(release(object, 4), 1) && release(object, 2) == 0 && ended == 0);
    REQUIRE(release(object, 1) == 0 && ended == 1 && fails(release(object, 1), 1));
    REQUIRE((fails(run<void **, void *, void (*)(void *), unsigned, unsigned>(
                       "cudaUserObjectCreate", &object, &one, end, 1, 0),
                   1)));
    // References of a graph, of its clone and of an executable graph.
    Graph graph, outer, none;
    const Host host = {gate, nullptr};
    REQUIRE(cudaStreamCreate(&stream) == 0 && graph.add("cudaGraphAddHostNode", {}, &host) == 0);
    REQUIRE(make(&object, &one, 1) == 0 && make(&other, &ten, 1) == 0);
    REQUIRE(fails(retain(stream, object, 1, 1), 1) && fails(retain(graph.handle, object, 2, 1), 1));
    REQUIRE(fails(retain(graph.handle, object, INT_MAX + 1u, 0), 1));
    REQUIRE(retain(graph.handle, object, 1, 1) == 0 && fails(release(object, 1), 1));
    REQUIRE(retain(graph.handle, other, 2, 0) == 0 && release(other, 1) == 0 && ended == 1);
    REQUIRE(
        (run<void *, void *, unsigned>("cudaGraphReleaseUserObject", graph.handle, other, 1) == 0));
    REQUIRE(run("cudaGraphClone", &clone, graph.handle) == 0);
    exec = graph.made();
    REQUIRE(exec && graph.destroy() == 0 && run("cudaGraphDestroy", clone) == 0 && ended == 1);
    // An update by a graph of the same form: the old objects go when the launch has ended.
    Graph again;
    Update told = {};
    REQUIRE(again.add("cudaGraphAddHostNode", {}, &host) == 0 && launch(exec, stream) == 0);
    std::thread opens([] {
        for (int i = 0; i < 100 && ended == 1; i++)
            std::this_thread::yield();
        ended += 100;
        open = true;
    });
    REQUIRE((run<void *, void *, Update *>("cudaGraphExecUpdate", exec, again.handle, &told) == 0));
    opens.join();
    REQUIRE(ended >= 101 && cudaStreamSynchronize(stream) == 0);
    while (ended != 112)
        std::this_thread::yield();
    REQUIRE(run("cudaGraphExecDestroy", exec) == 0 && ended == 112);
    // In a graph that another one contains; until the executable graph is updated by one without
    // the object.
    Graph inner;
    void *node = nullptr;
    using Order = void *const *;
    REQUIRE(make(&object, &one, 1) == 0 && retain(inner.handle, object, 1, 1) == 0);
    REQUIRE((run<void **, void *, Order, std::size_t, void *>("cudaGraphAddChildGraphNode", &node,
                                                              outer.handle, nullptr, 0,
                                                              inner.handle) == 0));
    REQUIRE((run<void **, void *, Order, std::size_t, void *>("cudaGraphAddChildGraphNode", &node,
                                                              none.handle, nullptr, 0,
                                                              Graph().handle) == 0));
    REQUIRE(inner.destroy() == 0 && (exec = outer.made()) && outer.destroy() == 0 && ended == 112);
    REQUIRE((run<void *, void *, Update *>("cudaGraphExecUpdate", exec, none.handle, &told) == 0));
    return HOLDS(ended == 113 && run("cudaGraphExecDestroy", exec) == 0 && cudaGetLastError() == 0);
}

// A drawing of a graph: its nodes, those of the graph in it, and their edges.
bool drawings_of_graphs()
{
    char *device = device_memory(64), path[] = "/tmp/ibx-drawing-XXXXXX", text[4096] = {0};
    std::size_t bytes = 32;
    void *to = device, *from = device + 32, *arguments[] = {&to, &from, &bytes}, *node = nullptr;
    using Order = void *const *;
    Graph graph, inner;
    const Kernel kernel = {&stub_kernel, {7, 1, 1}, {32, 1, 1}, 0, arguments, nullptr};
    const graph_calls::Set ones = {device, 0, 1, 1, 64, 1};
    REQUIRE(graph.add("cudaGraphAddKernelNode", {}, &kernel) == 0);
    REQUIRE(inner.add("cudaGraphAddMemsetNode", {}, &ones) == 0);
    REQUIRE((run<void **, void *, Order, std::size_t, void *>("cudaGraphAddChildGraphNode", &node,
                                                              graph.handle, &graph.nodes[0], 1,
                                                              inner.handle) == 0));
    // An edge with data is drawn as others are, and listed only with its data.
    unsigned char edge[8] = {1, 0, 1}, data[3][8] = {}, plain[8] = {};
    void *ends[2][3];
    std::size_t count = 3;
    const auto list = [&](unsigned char(*kinds)[8]) {
        return run<void *, void **, void **, void *, std::size_t *>(
            "cudaGraphGetEdges", graph.handle, ends[0], ends[1], kinds, &count);
    };
    REQUIRE(graph.add("cudaGraphAddKernelNode", {}, &kernel) == 0);
    REQUIRE((run<void *, Order, Order, const void *, std::size_t>("cudaGraphAddDependencies",
                                                                  graph.handle, &graph.nodes[0],
                                                                  &graph.nodes[1], edge, 1) == 0));
    REQUIRE(fails(list(nullptr), 402) && count == 3 && list(data) == 0 && count == 2);
    REQUIRE(ends[1][0] == node && ends[1][1] == graph.nodes[1]);
    REQUIRE(!std::memcmp(data[0], plain, 8) && !std::memcmp(data[1], edge, 8));
    unsigned flags = 0;
    const auto print = [&](void *of, const char *where) {
        return run<void *, const char *, unsigned>("cudaGraphDebugDotPrint", of, where, flags);
    };
    const int file = mkstemp(path);
    REQUIRE(file >= 0);
    for (const unsigned with : {0u, 1u << 10, 1u}) { // the latter two have handles
        flags = with;
        REQUIRE(print(graph.handle, path) == 0);
        const ssize_t n = pread(file, text, sizeof(text) - 1, 0);
        REQUIRE(n > 0);
        text[n] = 0;
        REQUIRE(!std::strstr(text, "node handle: 0x") == !with &&
                !std::strstr(text, "func handle: 0x") == !with);
    }
    close(file);
    unlink(path);
    REQUIRE(std::strstr(text, "KERNEL") && std::strstr(text, "(7,1,1)"));
    REQUIRE(std::strstr(text, "cluster_1") && std::strstr(text, "MEMSET"));
    REQUIRE(std::strstr(text, "\"graph_0_node_0\" -> \"graph_0_node_1\";"));
    REQUIRE(std::strstr(text, "\"graph_0_node_0\" -> \"graph_0_node_2\";"));
    REQUIRE(fails(print(graph.handle, nullptr), 1) && fails(print(device, path), 1));
    return HOLDS(fails(print(graph.handle, "/tmp/there/is/no/such/folder"), 304) &&
                 access(path, F_OK) != 0 && graph.destroy() == 0);
}
