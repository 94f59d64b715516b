// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Copies between host and device in graphs: while a graph waits for this process, nobody makes a
// call of CUDA's for them.
#include "tests/gvirtus/graph_calls.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>
#include <unistd.h>

using namespace graph_calls;

namespace
{

void set(void *flag)
{
    *static_cast<std::atomic<int> *>(flag) = 1;
}

// Returns when the graph has called set(); no call of CUDA's is made meanwhile.
bool ran(void *exec, void *stream, std::atomic<int> *flag)
{
    *flag = 0;
    REQUIRE(launch(exec, stream) == 0);
    while (!*flag)
        usleep(100);
    return HOLDS(cudaStreamSynchronize(stream) == 0);
}

// There and back again.
struct Trip {
    std::atomic<int> flag{0};
    std::size_t n;
    char *device, *there, *back;
    void *stream = nullptr, *exec = nullptr;

    Trip(std::size_t bytes, char *memory, char *from, char *to)
        : n(bytes), device(memory), there(from), back(to)
    {
    }
    bool made(Graph &graph)
    {
        const Planes in = copy_of(device, there, n, H2D), out = copy_of(back, device, n, D2H);
        const Host host = {set, &flag};
        REQUIRE(graph.add("cudaGraphAddMemcpyNode", {}, &in) == 0);
        REQUIRE(graph.add("cudaGraphAddMemcpyNode", {graph.nodes[0]}, &out) == 0);
        REQUIRE(graph.add("cudaGraphAddHostNode", {graph.nodes[1]}, &host) == 0);
        REQUIRE(graph.size() == 3);
        return true;
    }
    bool captured(void **graph)
    {
        REQUIRE((run<void *, int>("cudaStreamBeginCapture", stream, 0) == 0));
        REQUIRE(cudaMemcpyAsync(device, there, n, H2D, stream) == 0);
        REQUIRE(cudaMemcpyAsync(back, device, n, D2H, stream) == 0);
        REQUIRE(
            (run<void *, void (*)(void *), void *>("cudaLaunchHostFunc", stream, set, &flag) == 0));
        return run<void *, void **>("cudaStreamEndCapture", stream, graph) == 0;
    }
    bool goes(char letter)
    {
        std::memset(there, letter, n);
        there[0] = letter + 1, there[n - 1] = letter + 2;
        std::memset(back, 'x', n);
        REQUIRE(ran(exec, stream, &flag));
        return !std::memcmp(back, there, n);
    }
};

unsigned long beside()
{
    return stub_remote()->stats().beside_functions;
}

bool node_by_node(std::size_t n, char *device, char *there, char *back, void *stream)
{
    Graph graph;
    Trip trip(n, device, there, back);
    trip.stream = stream;
    REQUIRE(trip.made(graph));
    trip.exec = graph.made();
    const auto before = stub_remote()->stats();
    REQUIRE(trip.goes('a') && trip.goes('e')); // the bytes are those of the launch
    REQUIRE(graph.destroy() == 0 && trip.goes('i'));
    const auto after = stub_remote()->stats();
    REQUIRE(after.beside_functions == before.beside_functions);
    REQUIRE(after.unpinned_async == before.unpinned_async);
    return HOLDS(run("cudaGraphExecDestroy", trip.exec) == 0);
}

bool by_capture(std::size_t n, char *device, char *there, char *back, void *stream)
{
    void *graph = nullptr;
    Trip trip(n, device, there, back);
    trip.stream = stream;
    REQUIRE(trip.captured(&graph));
    REQUIRE((run<void **, void *, unsigned long long>("cudaGraphInstantiate", &trip.exec, graph,
                                                      0) == 0));
    const auto before = stub_remote()->stats();
    REQUIRE(trip.goes('a') && trip.goes('e'));
    const auto after = stub_remote()->stats();
    REQUIRE(after.beside_functions == before.beside_functions);
    REQUIRE(after.unpinned_async == before.unpinned_async);
    return HOLDS(run("cudaGraphDestroy", graph) == 0 &&
                 run("cudaGraphExecDestroy", trip.exec) == 0);
}

// Copies of many graphs, one after the other: the memory that they copy through is given back with
// each graph. All graphs together would need more of it than there is.
bool one_by_one(char *device, void *stream)
{
    constexpr std::size_t n = 3u << 20, graphs = 50;
    std::vector<char> there(n + graphs), back(n + graphs);
    const unsigned long before = beside();
    for (std::size_t i = 0; i < graphs; i++) {
        Graph graph;
        Trip trip(n, device, there.data() + i, back.data() + i);
        REQUIRE(trip.made(graph));
        trip.exec = graph.made();
        trip.stream = stream;
        REQUIRE(trip.goes('a'));
        REQUIRE(graph.destroy() == 0 && run("cudaGraphExecDestroy", trip.exec) == 0);
    }
    REQUIRE(beside() == before);
    return HOLDS(stub_remote()->stats().host_pins < 100);
}

// A trip of so many bytes, for which there is a slot or not.
bool one_trip(std::size_t n, void *stream, bool by_slot)
{
    char *device = device_memory(n);
    std::vector<char> there(n), back(n);
    Graph graph;
    Trip trip(n, device, there.data(), back.data());
    REQUIRE(trip.made(graph));
    trip.exec = graph.made();
    trip.stream = stream;
    const unsigned long before = beside();
    REQUIRE(trip.goes('a') && (beside() == before) == by_slot);
    REQUIRE(trip.goes('e') && graph.destroy() == 0 && trip.goes('i'));
    REQUIRE(run("cudaGraphExecDestroy", trip.exec) == 0);
    return HOLDS(cudaFree(device) == 0);
}

// Several graphs at a time, with long copies.
bool many_at_a_time(char *device, void *stream)
{
    constexpr std::size_t n = 28000000, graphs = 5;
    std::vector<char> there(n + graphs), back(n + graphs);
    std::vector<Graph> made(graphs);
    std::vector<std::unique_ptr<Trip>> trips;
    const unsigned long before = beside();
    for (std::size_t i = 0; i < graphs; i++) {
        trips.push_back(std::make_unique<Trip>(n, device, there.data() + i, back.data() + i));
        REQUIRE(trips[i]->made(made[i]));
        trips[i]->exec = made[i].made();
        trips[i]->stream = stream;
    }
    REQUIRE(trips[0]->goes('a') && trips[graphs - 1]->goes('e') && beside() == before);
    for (std::size_t i = 0; i < graphs; i++)
        REQUIRE(made[i].destroy() == 0 && run("cudaGraphExecDestroy", trips[i]->exec) == 0);
    return true;
}

// Rows with gaps on both sides, which keep their bytes.
bool rows_and_planes(char *device, void *stream)
{
    constexpr std::size_t width = 100, height = 7, depth = 3, pitch = 128, rows = 9;
    std::vector<char> there(pitch * rows * depth), back(there.size(), '-'), expected(back);
    for (std::size_t i = 0; i < there.size(); i++)
        there[i] = static_cast<char>(i * 7 + i / 256);
    REQUIRE(cudaMemset(device, '.', 64 * 1024) == 0);
    Planes in = {}, out = {};
    in.from = {there.data(), pitch, width, rows};
    in.from_at = {2, 1, 0};
    in.to = {device, 256, width, 10};
    in.extent = out.extent = {width, height, depth};
    in.kind = H2D;
    out.from = in.to;
    out.to = {back.data(), pitch, width, rows};
    out.to_at = {5, 2, 0};
    out.kind = D2H;
    for (std::size_t z = 0; z < depth; z++)
        for (std::size_t y = 0; y < height; y++)
            std::memcpy(&expected[(z * rows + y + 2) * pitch + 5],
                        &there[(z * rows + y + 1) * pitch + 2], width);
    Graph graph;
    std::atomic<int> flag{0};
    const Host host = {set, &flag};
    REQUIRE(graph.add("cudaGraphAddMemcpyNode", {}, &in) == 0);
    REQUIRE(graph.add("cudaGraphAddMemcpyNode", {graph.nodes[0]}, &out) == 0);
    REQUIRE(graph.add("cudaGraphAddHostNode", {graph.nodes[1]}, &host) == 0);
    const unsigned long before = beside();
    REQUIRE(ran(graph.made(), stream, &flag) && back == expected && beside() == before);
    return true;
}

bool is(void *node, const Planes &p)
{
    Planes got = {};
    int type = 9;
    REQUIRE(run("cudaGraphNodeGetType", node, &type) == 0 && type == 1);
    REQUIRE((run<void *, Planes *>("cudaGraphMemcpyNodeGetParams", node, &got) == 0));
    REQUIRE(p.from.x && p.to.x && !got.from.x && !got.to.x); // as CUDA tells them
    return HOLDS(got.from.at == p.from.at && got.to.at == p.to.at && got.kind == p.kind &&
                 got.extent.width == p.extent.width && got.from.pitch == p.from.pitch);
}

// Other memory of the host in what is launched, in the node, and by an update.
bool parameters(char *device, void *stream)
{
    constexpr std::size_t n = 5000;
    std::vector<char> there(3 * n), back(3 * n);
    std::fill(there.begin(), there.begin() + n, 'a');
    std::fill(there.begin() + n, there.begin() + 2 * n, 'b');
    std::fill(there.begin() + 2 * n, there.end(), 'c');
    Graph graph;
    Trip trip(n, device, there.data(), back.data());
    trip.stream = stream;
    REQUIRE(trip.made(graph));
    const Planes in = copy_of(device, there.data(), n, H2D),
                 second = copy_of(device, there.data() + n, n, H2D),
                 third = copy_of(device, there.data() + 2 * n, n, H2D),
                 out = copy_of(back.data(), device, n, D2H),
                 aside = copy_of(back.data() + n, device, n, D2H);
    REQUIRE(is(graph.nodes[0], in) && is(graph.nodes[1], out));
    trip.exec = graph.made();
    const auto before = stub_remote()->stats();
    const auto in_exec = [&](unsigned node, const Planes &p) {
        return run<void *, void *, const Planes *>("cudaGraphExecMemcpyNodeSetParams", trip.exec,
                                                   graph.nodes[node], &p);
    };
    const auto gives = [&](std::size_t at, char letter) {
        std::fill(back.begin(), back.end(), 'x');
        REQUIRE(ran(trip.exec, stream, &trip.flag));
        for (std::size_t i = 0; i < back.size(); i++)
            REQUIRE(back[i] == (i >= at && i < at + n ? letter : 'x'));
        return true;
    };
    REQUIRE(gives(0, 'a') && in_exec(0, second) == 0 && gives(0, 'b'));
    REQUIRE(is(graph.nodes[0], in)); // the node is as it was
    REQUIRE(in_exec(1, aside) == 0 && gives(n, 'b') && in_exec(0, in) == 0 && gives(n, 'a'));
    REQUIRE(fails(in_exec(0, aside), 1)); // in the other direction
    unsigned on = 9; // CUDA disables no graph in a graph, which such a copy is there
    REQUIRE(fails(
        run<void *, void *, unsigned>("cudaGraphNodeSetEnabled", trip.exec, graph.nodes[1], 0),
        801));
    REQUIRE((run<void *, void *, unsigned>("cudaGraphNodeSetEnabled", trip.exec, graph.nodes[1],
                                           1) == 0));
    REQUIRE((run<void *, void *, unsigned *>("cudaGraphNodeGetEnabled", trip.exec, graph.nodes[1],
                                             &on) == 0));
    REQUIRE(on == 1 && gives(n, 'a'));
    // The node: graphs that are instantiated from now on have it, and earlier ones are as before.
    REQUIRE(
        (run<void *, const Planes *>("cudaGraphMemcpyNodeSetParams", graph.nodes[0], &third) == 0));
    REQUIRE(is(graph.nodes[0], third) && gives(n, 'a'));
    REQUIRE(in_exec(0, second) == 0 && gives(n, 'b'));
    Update told = {};
    REQUIRE((run<void *, void *, Update *>("cudaGraphExecUpdate", trip.exec, graph.handle, &told) ==
             0));
    REQUIRE(gives(0, 'c') && graph.destroy() == 0 && gives(0, 'c'));
    REQUIRE(stub_remote()->stats().beside_functions == before.beside_functions);
    return HOLDS(run("cudaGraphExecDestroy", trip.exec) == 0);
}

// Nodes that go beyond page-locked or registered memory cannot be added, nor can others become
// such, as on an H200.
bool beyond_memory(char *device)
{
    constexpr std::size_t n = 4000, pitch = 100;
    void *pinned = nullptr;
    std::vector<char> registered(n + 1);
    REQUIRE(cudaMallocHost(&pinned, n) == 0 && host_register(registered.data(), n) == 0);
    for (char *memory : {static_cast<char *>(pinned), registered.data()}) {
        Graph graph;
        const Planes whole = copy_of(device, memory, n, H2D);
        const auto add = [&](const Planes &p) {
            return graph.add("cudaGraphAddMemcpyNode", {}, &p);
        };
        REQUIRE(add(whole) == 0);
        void *exec = graph.made();
        for (const bool from : {true, false}) {
            Planes p =
                from ? copy_of(device, memory, n + 1, H2D) : copy_of(memory, device, n + 1, 4);
            REQUIRE(fails(add(p), 1));
            REQUIRE(fails(
                run<void *, const Planes *>("cudaGraphMemcpyNodeSetParams", graph.nodes[0], &p),
                1));
            REQUIRE((fails(run<void *, void *, const Planes *>("cudaGraphExecMemcpyNodeSetParams",
                                                               exec, graph.nodes[0], &p),
                           1)));
            p.from.pitch = p.to.pitch = pitch, p.from.y = p.to.y = 10;
            p.extent = {pitch, 10, 4};
            REQUIRE(add(p) == 0);
            (from ? p.from_at : p.to_at).depth = 1;
            REQUIRE(fails(add(p), 1));
        }
        Set set = {device, 0, 5, 4, n / 4 + 1, 1};
        REQUIRE(graph.add("cudaGraphAddMemsetNode", {}, &set) == 0);
        void *node = graph.nodes.back();
        set.at = memory;
        REQUIRE(fails(graph.add("cudaGraphAddMemsetNode", {}, &set), 1));
        REQUIRE(fails(run<void *, const Set *>("cudaGraphMemsetNodeSetParams", node, &set), 1));
        REQUIRE(run("cudaGraphExecDestroy", exec) == 0 && graph.destroy() == 0);
    }
    return HOLDS(host_unregister(registered.data()) == 0 && cudaFreeHost(pinned) == 0);
}

// A node gets no copy of nothing, from or to nowhere, or of no kind (H200, driver 580).
bool set_to_nothing(char *device)
{
    constexpr std::size_t n = 256;
    std::vector<char> there(n);
    for (const Planes &first :
         {copy_of(device, there.data(), n, H2D), copy_of(device, device + n, n, D2D)}) {
        Graph graph;
        REQUIRE(graph.add("cudaGraphAddMemcpyNode", {}, &first) == 0);
        void *exec = graph.made();
        const auto set = [&](void *to, const void *from, std::size_t bytes, int kind, int code) {
            REQUIRE(bytes || fails(run<void *, void *, const void *, std::size_t, int>(
                                       "cudaGraphMemcpyNodeSetParams1D", graph.nodes[0], to, from,
                                       bytes, kind),
                                   code));
            return fails(run<void *, void *, void *, const void *, std::size_t, int>(
                             "cudaGraphExecMemcpyNodeSetParams1D", exec, graph.nodes[0], to, from,
                             bytes, kind),
                         code);
        };
        REQUIRE(set(first.to.at, first.from.at, 0, first.kind, 1));
        REQUIRE(set(nullptr, first.from.at, n, DEFAULT, 1));
        REQUIRE(set(first.to.at, nullptr, n, DEFAULT, 1));
        REQUIRE(set(first.to.at, first.from.at, n, 9, 21));
        REQUIRE(run("cudaGraphExecDestroy", exec) == 0 && graph.destroy() == 0);
    }
    return true;
}

// An executable graph is updated by a graph with other memory of the host, and that graph is
// changed then.
bool changed_after_update(char *device, void *stream)
{
    constexpr std::size_t n = 5000;
    std::vector<char> there(3 * n), back(3 * n);
    for (std::size_t i = 0; i < there.size(); i++)
        there[i] = static_cast<char>('a' + i / n);
    Graph graph, other;
    Trip first(n, device, there.data(), back.data());
    Trip second(n, device, there.data() + n, back.data() + n);
    REQUIRE(first.made(graph) && second.made(other));
    void *exec = graph.made();
    Update told = {};
    REQUIRE((run<void *, void *, Update *>("cudaGraphExecUpdate", exec, other.handle, &told) == 0));
    REQUIRE(ran(exec, stream, &second.flag) && back[n] == 'b' && !back[0]);
    const auto set = [&](unsigned node, const Planes &p) {
        return run<void *, void *, const Planes *>("cudaGraphExecMemcpyNodeSetParams", exec,
                                                   graph.nodes[node], &p);
    };
    const Planes in = copy_of(device, there.data() + 2 * n, n, H2D),
                 out = copy_of(back.data() + 2 * n, device, n, D2H);
    REQUIRE(set(0, in) == 0 && ran(exec, stream, &second.flag) && back[n] == 'c' && !back[2 * n]);
    REQUIRE(set(1, out) == 0);
    back[n] = 'x';
    REQUIRE(ran(exec, stream, &second.flag) && back[2 * n] == 'c' && back[n] == 'x');
    // Once more, by the graph that was changed in between.
    REQUIRE((run<void *, void *, Update *>("cudaGraphExecUpdate", exec, graph.handle, &told) == 0));
    REQUIRE(ran(exec, stream, &first.flag) && back[0] == 'a');
    REQUIRE(set(1, out) == 0 && set(0, in) == 0);
    back[0] = back[2 * n] = 'x';
    REQUIRE(ran(exec, stream, &first.flag) && back[2 * n] == 'c' && back[0] == 'x');
    REQUIRE(graph.destroy() == 0 && other.destroy() == 0);
    return HOLDS(run("cudaGraphExecDestroy", exec) == 0);
}

// Nodes one after the other, all of the same memory; functions change its bytes in between.
bool in_turns(char *device, void *stream)
{
    struct Bytes {
        std::vector<char> all = std::vector<char>(1000);
        static void next(void *bytes)
        {
            for (char &byte : static_cast<Bytes *>(bytes)->all)
                byte = static_cast<char>(byte + 1);
        }
    } bytes;
    Graph graph;
    std::atomic<int> flag{0};
    const Host host = {Bytes::next, &bytes}, last = {set, &flag};
    for (std::size_t i = 0; i < 8; i++) {
        const std::vector<void *> behind(i ? 1 : 0, i ? graph.nodes.back() : nullptr);
        const Planes in = copy_of(device + i * 1000, bytes.all.data(), 1000, H2D);
        REQUIRE(graph.add("cudaGraphAddMemcpyNode", behind, &in) == 0);
        REQUIRE(graph.add("cudaGraphAddHostNode", {graph.nodes.back()}, &host) == 0);
    }
    const Planes out = copy_of(bytes.all.data(), device + 1000, 1000, D2H);
    REQUIRE(graph.add("cudaGraphAddMemcpyNode", {graph.nodes.back()}, &out) == 0);
    REQUIRE(graph.add("cudaGraphAddHostNode", {graph.nodes.back()}, &last) == 0);
    void *exec = graph.made();
    for (int first = 0; first < 3; first++) { // out gives what the second one took
        REQUIRE(ran(exec, stream, &flag) && bytes.all[0] == first + 1 &&
                bytes.all[999] == first + 1);
        for (int i = 0; i < 8; i++)
            REQUIRE(device_has(device + i * 1000,
                               std::vector<char>(1000, static_cast<char>(first + i)).data(), 1000));
    }
    return HOLDS(graph.destroy() == 0 && run("cudaGraphExecDestroy", exec) == 0);
}

// Copies and a function, of a graph that is within so many others.
bool deep_within(unsigned depth, char *device, void *stream)
{
    std::vector<char> there(5000, static_cast<char>(depth)), back(5000, 'x');
    std::vector<Graph> graphs(depth + 1);
    Trip trip(there.size(), device, there.data(), back.data());
    REQUIRE(trip.made(graphs[0]));
    for (unsigned i = 1; i <= depth; i++) {
        void *node = nullptr;
        REQUIRE((run<void **, void *, void *const *, std::size_t, void *>(
                     "cudaGraphAddChildGraphNode", &node, graphs[i].handle, nullptr, 0,
                     graphs[i - 1].handle) == 0));
    }
    void *exec = graphs[depth].made();
    REQUIRE(exec && launch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    REQUIRE(trip.flag && back == there && run("cudaGraphExecDestroy", exec) == 0);
    for (Graph &graph : graphs)
        REQUIRE(graph.destroy() == 0);
    return true;
}

// Rows between memory and an array, by the calls for rows or for planes. Columns are in bytes.
struct Rows {
    char *memory;
    std::size_t pitch, width, height, x, y;
    bool to_array;
    int kind;

    Planes planes(void *array, std::size_t element) const
    {
        Planes p = {};
        p.extent = {width / element, height, 1};
        p.kind = kind;
        (to_array ? p.from : p.to) = {memory, pitch, width, height};
        (to_array ? p.to_array : p.from_array) = array;
        (to_array ? p.to_at : p.from_at) = {x / element, y, 0};
        return p;
    }
    int in(void *stream, void *array) const
    {
        if (to_array)
            return run<void *, std::size_t, std::size_t, const void *, std::size_t, std::size_t,
                       std::size_t, int, void *>("cudaMemcpy2DToArrayAsync", array, x, y, memory,
                                                 pitch, width, height, kind, stream);
        return run<void *, std::size_t, const void *, std::size_t, std::size_t, std::size_t,
                   std::size_t, int, void *>("cudaMemcpy2DFromArrayAsync", memory, pitch, array, x,
                                             y, width, height, kind, stream);
    }
};

void *array_of(int bits, std::size_t width, std::size_t height)
{
    void *array = nullptr;
    const int channel[5] = {bits, 0, 0, 0, 0};
    run<void **, const void *, std::size_t, std::size_t, unsigned>("cudaMallocArray", &array,
                                                                   channel, width, height, 0);
    return array;
}

// What the array of 16 rows of 256 bytes has there.
bool array_has(void *array, std::size_t x, std::size_t y, std::size_t width, std::size_t height,
               char letter)
{
    std::vector<char> all(4096);
    REQUIRE(
        (run<void *, std::size_t, const void *, std::size_t, std::size_t, std::size_t, std::size_t,
             int>("cudaMemcpy2DFromArray", all.data(), 256, array, 0, 0, 256, 16, D2H) == 0));
    for (std::size_t i = 0; i < 4096; i++) {
        const bool inside = i % 256 - x < width && i / 256 - y < height;
        REQUIRE((all[i] == letter) == inside);
    }
    return true;
}

enum class Way { nodes, rows, planes };

// The graph of a copy to an array and one from it, nodes or captured.
bool of_two(Way way, void *stream, void *array, std::size_t element, const Rows &in,
            const Rows &out, void **exec)
{
    void *graph = nullptr;
    const Planes to = in.planes(array, element), from = out.planes(array, element);
    if (way == Way::nodes) {
        Graph two;
        REQUIRE(two.add("cudaGraphAddMemcpyNode", {}, &to) == 0);
        REQUIRE(two.add("cudaGraphAddMemcpyNode", {two.nodes[0]}, &from) == 0);
        Planes told = {};
        REQUIRE((run<void *, Planes *>("cudaGraphMemcpyNodeGetParams", two.nodes[0], &told) == 0));
        REQUIRE(told.to_array == array && told.from.at == in.memory && told.kind == in.kind);
        REQUIRE(told.extent.width == to.extent.width && told.to_at.width == to.to_at.width);
        *exec = two.made();
        return HOLDS(two.destroy() == 0);
    }
    REQUIRE((run<void *, int>("cudaStreamBeginCapture", stream, 0) == 0));
    if (way == Way::rows)
        REQUIRE(in.in(stream, array) == 0 && out.in(stream, array) == 0);
    else
        REQUIRE((run<const Planes *, void *>("cudaMemcpy3DAsync", &to, stream) == 0 &&
                 run<const Planes *, void *>("cudaMemcpy3DAsync", &from, stream) == 0));
    REQUIRE((run<void *, void **>("cudaStreamEndCapture", stream, &graph) == 0));
    std::size_t nodes = 0;
    REQUIRE(
        (run<void *, void **, std::size_t *>("cudaGraphGetNodes", graph, nullptr, &nodes) == 0));
    REQUIRE(nodes == 2);
    run<void **, void *, unsigned long long>("cudaGraphInstantiate", exec, graph, 0);
    return HOLDS(run("cudaGraphDestroy", graph) == 0);
}

bool fill(char *memory, char letter, bool of_host)
{
    if (of_host)
        std::memset(memory, letter, 4096);
    return of_host || (cudaMemset(memory, letter, 4096) == 0 && cudaDeviceSynchronize() == 0);
}

// Of the host, and of the device: bytes are those of each launch, and others are left alone.
bool array_trips(void *stream, void *array, std::size_t element, char *there, char *back,
                 bool of_host)
{
    const Rows clear = {there, 256, 256, 16, 0, 0, true, of_host ? H2D : D2D},
               in = {there + 3, 100, 40, 5, 16, 2, true, of_host ? H2D : D2D},
               out = {back, 70, 48, 6, 8, 1, false, of_host ? D2H : D2D};
    for (Way way : {Way::nodes, Way::rows, Way::planes}) {
        void *exec = nullptr;
        REQUIRE(of_two(way, stream, array, element, in, out, &exec));
        for (char letter : {'a', 'b'}) {
            REQUIRE(fill(there, '.', of_host) && clear.in(stream, array) == 0);
            REQUIRE(cudaStreamSynchronize(stream) == 0);
            REQUIRE(fill(there, letter, of_host) && fill(back, 'x', of_host));
            REQUIRE(launch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
            REQUIRE(array_has(array, 16, 2, 40, 5, letter));
            std::vector<char> got(4096), expected(4096, 'x');
            REQUIRE(cudaMemcpy(got.data(), back, 4096, DEFAULT) == 0);
            for (std::size_t i = 0; i < 6; i++)
                for (std::size_t j = 0; j < 48; j++)
                    expected[i * 70 + j] = i >= 1 && j >= 8 ? letter : '.';
            REQUIRE(got == expected);
        }
        REQUIRE(run("cudaGraphExecDestroy", exec) == 0);
    }
    return true;
}

// Bytes of one row of the array, captured.
bool array_row(void *stream, void *array, char *there, char *back)
{
    void *graph = nullptr, *exec = nullptr;
    REQUIRE((run<void *, int>("cudaStreamBeginCapture", stream, 0) == 0));
    REQUIRE((run<void *, std::size_t, std::size_t, const void *, std::size_t, int, void *>(
                 "cudaMemcpyToArrayAsync", array, 56, 3, there, 200, H2D, stream) == 0));
    REQUIRE((run<void *, const void *, std::size_t, std::size_t, std::size_t, int, void *>(
                 "cudaMemcpyFromArrayAsync", back, array, 156, 3, 100, D2H, stream) == 0));
    REQUIRE((run<void *, void **>("cudaStreamEndCapture", stream, &graph) == 0));
    run<void **, void *, unsigned long long>("cudaGraphInstantiate", &exec, graph, 0);
    for (char letter : {'p', 'q'}) {
        REQUIRE(fill(there, letter, true) && fill(back, 'x', true));
        REQUIRE(launch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
        REQUIRE(back[0] == letter && back[99] == letter && back[100] == 'x');
    }
    return HOLDS(run("cudaGraphDestroy", graph) == 0 && run("cudaGraphExecDestroy", exec) == 0);
}

// Blocks of 4 x 4 elements have 8 bytes.
bool array_of_blocks(void *stream, char *there)
{
    void *array = nullptr;
    const int channel[5] = {8, 8, 8, 8, 17}; // cudaChannelFormatKindUnsignedBlockCompressed1
    REQUIRE((run<void **, const void *, std::size_t, std::size_t, unsigned>(
                 "cudaMallocArray", &array, channel, 64, 32, 0) == 0));
    Planes to = {}, from = {};
    to.extent = from.extent = {64, 32, 1};
    to.from = {there, 128, 128, 8}, from.to = {there + 2048, 128, 128, 8};
    to.to_array = from.from_array = array;
    to.kind = H2D, from.kind = D2H;
    Graph graph;
    REQUIRE(graph.add("cudaGraphAddMemcpyNode", {}, &to) == 0);
    REQUIRE(graph.add("cudaGraphAddMemcpyNode", {graph.nodes[0]}, &from) == 0);
    void *exec = graph.made();
    for (int i = 0; i < 1024; i++)
        there[i] = static_cast<char>(i * 7);
    std::memset(there + 1024, 'x', 3072);
    REQUIRE(launch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    REQUIRE(!std::memcmp(there, there + 2048, 1024) && there[3072] == 'x' && there[1024] == 'x');
    REQUIRE(graph.destroy() == 0 && run("cudaGraphExecDestroy", exec) == 0);
    return HOLDS(run("cudaFreeArray", array) == 0);
}

// A node gets another copy, in its graph and in an executable one. An array that is not there, and
// a copy beyond the array, are refused at the latest by the launch.
bool array_changes(void *stream, void *array, char *there)
{
    const Rows rows = {there, 256, 64, 4, 0, 0, true, H2D},
               more = {there, 256, 128, 8, 64, 8, true, H2D};
    const Planes first = rows.planes(array, 4), second = more.planes(array, 4);
    Graph graph;
    REQUIRE(graph.add("cudaGraphAddMemcpyNode", {}, &first) == 0);
    void *exec = graph.made(), *node = graph.nodes[0];
    REQUIRE((run<void *, void *, const Planes *>("cudaGraphExecMemcpyNodeSetParams", exec, node,
                                                 &second) == 0));
    std::memset(there, '.', 4096);
    const Rows clear = {there, 256, 256, 16, 0, 0, true, H2D};
    REQUIRE(clear.in(stream, array) == 0 && cudaStreamSynchronize(stream) == 0);
    std::memset(there, 'c', 4096);
    REQUIRE(launch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    REQUIRE(array_has(array, 64, 8, 128, 8, 'c'));
    Planes none = first;
    none.to_array = there;
    REQUIRE(graph.add("cudaGraphAddMemcpyNode", {}, &none) != 0 && cudaGetLastError() != 0);
    return HOLDS(graph.destroy() == 0 && run("cudaGraphExecDestroy", exec) == 0);
}

} // namespace

// Copies between memory and arrays, in graphs and in captures.
bool copies_with_arrays()
{
    void *stream = nullptr;
    char *device = device_memory(8192), *pinned = nullptr;
    std::vector<char> pageable(8192);
    REQUIRE(cudaStreamCreate(&stream) == 0);
    REQUIRE(cudaMallocHost(reinterpret_cast<void **>(&pinned), 8192) == 0);
    for (int bits : {8, 16, 32}) {
        const auto element = static_cast<std::size_t>(bits) / 8;
        void *array = array_of(bits, 256 / element, 16);
        REQUIRE(array_trips(stream, array, element, pinned, pinned + 4096, true));
        REQUIRE(array_trips(stream, array, element, device, device + 4096, false));
        REQUIRE(array_row(stream, array, pinned, pinned + 4096));
        REQUIRE(bits < 32 || array_changes(stream, array, pageable.data()));
        REQUIRE(run("cudaFreeArray", array) == 0);
    }
    REQUIRE(array_of_blocks(stream, pageable.data()) && cudaStreamDestroy(stream) == 0);
    return HOLDS(cudaFree(device) == 0 && cudaFreeHost(pinned) == 0);
}

// As deep as graphs may be within each other, with the one that each copy is.
bool graphs_within_graphs()
{
    char *device = device_memory(5000);
    void *stream = nullptr;
    REQUIRE(device && cudaStreamCreate(&stream) == 0);
    for (const unsigned depth : {1u, 16u, 17u, 125u})
        REQUIRE(deep_within(depth, device, stream));
    return HOLDS(cudaFree(device) == 0);
}

bool copies_in_graphs()
{
    char *device = device_memory(3u << 20), *pinned = nullptr;
    std::vector<char> there(3u << 20), back(3u << 20);
    void *stream = nullptr;
    REQUIRE(cudaStreamCreate(&stream) == 0);
    REQUIRE(cudaMallocHost(reinterpret_cast<void **>(&pinned), 6u << 20) == 0);
    for (const std::size_t n : {8u, 128u, 129u, 5000u, 100000u, 1u << 20, 3u << 20}) {
        REQUIRE(node_by_node(n, device, there.data(), back.data(), stream));
        REQUIRE(by_capture(n, device, there.data(), back.data(), stream));
        REQUIRE(node_by_node(n, device, pinned, pinned + n, stream));
        REQUIRE(by_capture(n, device, pinned, pinned + n, stream));
    }
    REQUIRE(one_by_one(device, stream) && rows_and_planes(device, stream));
    REQUIRE(parameters(device, stream) && changed_after_update(device, stream));
    REQUIRE(beyond_memory(device) && set_to_nothing(device) && added_for_nothing(device));
    REQUIRE(in_turns(device, stream) && one_trip((64u << 20) + 5, stream, true));
    char *more = device_memory(28000000);
    REQUIRE(many_at_a_time(more, stream) && cudaFree(more) == 0);
    return HOLDS(cudaFree(device) == 0 && cudaFreeHost(pinned) == 0);
}

// The back end may pin 1 MiB.
bool copies_in_graphs_by_calls()
{
    void *stream = nullptr;
    REQUIRE(cudaStreamCreate(&stream) == 0);
    REQUIRE(one_trip(500000, stream, true) && one_trip(3u << 20, stream, false));
    return HOLDS(one_trip(500000, stream, true));
}
