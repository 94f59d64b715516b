// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Which bytes of this process's memory a launch of a graph copies, and what it waits for, as with
// CUDA's driver 580 on an H200: pageable memory may be changed, and has the bytes that the graph
// copies there, when the launch returns.
#include "tests/fixtures/patience.h"
#include "tests/gvirtus/graph_calls.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

using namespace graph_calls;

namespace
{

constexpr int H2H = 0;

void wait_at_gate(void *flag)
{
    while (!*static_cast<std::atomic<int> *>(flag))
        std::this_thread::yield();
}

// A function at which a graph waits until it is opened.
struct Gate {
    std::atomic<int> flag{0};
    const Host host = {wait_at_gate, &flag};

    void close() { flag = 0; }
    void open() { flag = 1; }
};

// Opens a gate when the program has changed its memory or, if a launch waits for the gate, after
// `ms` milliseconds: the memory would be changed first if the launch did not wait.
class Opener
{
    std::mutex lock;
    std::condition_variable told;
    bool changed = false;
    std::thread thread;

  public:
    explicit Opener(Gate *gate, int ms = 100)
        : thread([this, gate, ms] {
              std::unique_lock<std::mutex> locked(lock);
              const std::chrono::milliseconds limit(ms * static_cast<int>(patience_times()));
              told.wait_for(locked, limit, [this] { return changed; });
              gate->open();
          })
    {
        gate->close();
    }
    ~Opener()
    {
        if (thread.joinable())
            memory_is_changed();
    }
    void memory_is_changed()
    {
        {
            std::lock_guard<std::mutex> locked(lock);
            changed = true;
        }
        told.notify_one();
        thread.join();
    }
};

std::vector<char> all(char letter, std::size_t n)
{
    return std::vector<char>(n, letter);
}

bool done(void *exec)
{
    return HOLDS(run("cudaGraphExecDestroy", exec) == 0);
}

// An executable graph that waits at the gate, and then makes the copy.
void *waits_and_copies(Gate *gate, const Planes &copy)
{
    Graph graph;
    void *exec = nullptr;
    if (!graph.add("cudaGraphAddHostNode", {}, &gate->host) &&
        !graph.add("cudaGraphAddMemcpyNode", {graph.nodes[0]}, &copy))
        exec = graph.made();
    graph.destroy();
    return exec;
}

void *captured(Gate *gate, const Planes &copy, void *stream)
{
    void *graph = nullptr, *exec = nullptr;
    run<void *, int>("cudaStreamBeginCapture", stream, 0);
    run<void *, void (*)(void *), void *>("cudaLaunchHostFunc", stream, wait_at_gate, &gate->flag);
    run<const Planes *, void *>("cudaMemcpy3DAsync", &copy, stream);
    run<void *, void **>("cudaStreamEndCapture", stream, &graph);
    run<void **, void *, unsigned long long>("cudaGraphInstantiate", &exec, graph, 0);
    run("cudaGraphDestroy", graph);
    return exec;
}

void *within(Gate *gate, const Planes &copy)
{
    Graph inner, outer;
    void *node = nullptr;
    inner.add("cudaGraphAddHostNode", {}, &gate->host);
    inner.add("cudaGraphAddMemcpyNode", {inner.nodes[0]}, &copy);
    run<void **, void *, void *const *, std::size_t, void *>(
        "cudaGraphAddChildGraphNode", &node, outer.handle, nullptr, 0, inner.handle);
    void *exec = outer.made();
    inner.destroy();
    outer.destroy();
    return exec;
}

// The letters that the memory `there` has when the graph is launched, and after the launch.
bool launched(void *exec, void *stream, Gate *gate, char *there, std::size_t n)
{
    gate->close();
    std::memset(there, 'l', n);
    REQUIRE(exec && launch(exec, stream) == 0);
    std::memset(there, 'x', n);
    gate->open();
    return HOLDS(cudaStreamSynchronize(stream) == 0);
}

bool of_one_row(char *device, char *there, std::size_t n, void *stream, char expected)
{
    Gate gate;
    const Planes in = copy_of(device, there, n, H2D);
    std::memset(there, 'i', n);
    for (int way = 0; way < 3; way++) {
        void *exec = !way       ? waits_and_copies(&gate, in)
                     : way == 1 ? captured(&gate, in, stream)
                                : within(&gate, in);
        for (int i = 0; i < 2; i++) {
            REQUIRE(cudaMemset(device, '.', n) == 0);
            REQUIRE(launched(exec, stream, &gate, there, n));
            REQUIRE(device_has(device, all(expected, n).data(), n));
        }
        REQUIRE(done(exec));
    }
    return true;
}

// Rows with gaps, to memory and to an array.
bool of_rows(char *device, void *stream)
{
    constexpr std::size_t width = 64, height = 8, pitch = 100;
    std::vector<char> there(pitch * height);
    void *array = nullptr;
    const int channel[5] = {8, 0, 0, 0, 0};
    REQUIRE((run<void **, const void *, std::size_t, std::size_t, unsigned>(
                 "cudaMallocArray", &array, channel, width, height, 0) == 0));
    Gate gate;
    Planes in = {}, to_array = {};
    in.from = to_array.from = {there.data(), pitch, width, height};
    in.to = {device, width, width, height};
    to_array.to_array = array;
    in.extent = to_array.extent = {width, height, 1};
    in.kind = to_array.kind = H2D;
    for (const Planes &copy : {in, to_array}) {
        void *exec = waits_and_copies(&gate, copy);
        REQUIRE(launched(exec, stream, &gate, there.data(), there.size()) && done(exec));
    }
    std::vector<char> back(width * height);
    REQUIRE((run<void *, std::size_t, const void *, std::size_t, std::size_t, std::size_t,
                 std::size_t, int>("cudaMemcpy2DFromArray", back.data(), width, array, 0, 0, width,
                                   height, D2H) == 0));
    REQUIRE(back == all('l', back.size()) && device_has(device, back.data(), back.size()));
    return HOLDS(run("cudaFreeArray", array) == 0);
}

// One executable graph is launched again before it has got to its copy: each launch has its bytes.
bool of_each_launch(char *device, void *stream)
{
    constexpr std::size_t n = 5000;
    struct Seen {
        std::string letters;
        char *back = page_locked(n); // or the launches would wait
        static void add(void *seen)
        {
            auto *s = static_cast<Seen *>(seen);
            s->letters += s->back[0] == s->back[n - 1] ? s->back[0] : '?';
        }
    } seen;
    std::vector<char> there(n);
    Gate gate;
    Graph graph;
    const Host host = {Seen::add, &seen};
    const Planes in = copy_of(device, there.data(), n, H2D),
                 out = copy_of(seen.back, device, n, D2H);
    REQUIRE(graph.add("cudaGraphAddHostNode", {}, &gate.host) == 0);
    REQUIRE(graph.add("cudaGraphAddMemcpyNode", {graph.nodes[0]}, &in) == 0);
    REQUIRE(graph.add("cudaGraphAddMemcpyNode", {graph.nodes[1]}, &out) == 0);
    REQUIRE(graph.add("cudaGraphAddHostNode", {graph.nodes[2]}, &host) == 0);
    void *exec = graph.made();
    for (char letter : {'a', 'b', 'c'}) {
        std::fill(there.begin(), there.end(), letter);
        REQUIRE(launch(exec, stream) == 0);
    }
    std::fill(there.begin(), there.end(), 'x');
    gate.open();
    REQUIRE(cudaStreamSynchronize(stream) == 0 && seen.letters == "abc");
    return HOLDS(graph.destroy() == 0 && done(exec) && cudaFreeHost(seen.back) == 0);
}

// A function ahead of the copy changes the memory.
bool ahead_of_functions(char *device, void *stream)
{
    struct Bytes {
        char all[1000];
        static void change(void *bytes) { std::memset(bytes, 'f', sizeof(Bytes)); }
    } bytes;
    Graph graph;
    const Host host = {Bytes::change, &bytes};
    const Planes in = copy_of(device, bytes.all, sizeof(bytes), H2D);
    REQUIRE(graph.add("cudaGraphAddHostNode", {}, &host) == 0);
    REQUIRE(graph.add("cudaGraphAddMemcpyNode", {graph.nodes[0]}, &in) == 0);
    void *exec = graph.made();
    std::memset(bytes.all, 'l', sizeof(bytes));
    REQUIRE(launch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    REQUIRE(bytes.all[0] == 'f' && device_has(device, all('l', 1000).data(), 1000));
    return HOLDS(graph.destroy() == 0 && done(exec));
}

// The program changes the memory after a launch that waits for the gate.
bool waited_for(void *exec, void *stream, Gate *gate, std::vector<char> *there)
{
    Opener opener(gate);
    const int rc = exec ? launch(exec, stream) : -1;
    std::fill(there->begin(), there->end(), 'x');
    opener.memory_is_changed();
    return HOLDS(rc == 0 && cudaStreamSynchronize(stream) == 0);
}

// The launch returns while the gate is closed. Then the program changes the memory.
bool returns_at_once(void *exec, void *stream, Gate *gate, char *there, std::size_t n)
{
    Opener opener(gate, 20000);
    const bool launched = exec && launch(exec, stream) == 0, closed = !gate->flag;
    std::memset(there, 'x', n);
    opener.memory_is_changed();
    return HOLDS(launched && closed && cudaStreamSynchronize(stream) == 0);
}

// Bytes that a graph copies from the device and back to it, in one launch and in two.
bool behind_copies_from_device(char *device, void *stream)
{
    constexpr std::size_t n = 3000;
    std::vector<char> there(n, 'l');
    Gate gate;
    Graph graph;
    char *const second = device + n;
    const Planes out = copy_of(there.data(), device, n, D2H),
                 in = copy_of(second, there.data(), n, H2D);
    REQUIRE(cudaMemset(device, 'd', n) == 0 && cudaMemset(second, '.', n) == 0);
    REQUIRE(graph.add("cudaGraphAddMemcpyNode", {}, &out) == 0);
    REQUIRE(graph.add("cudaGraphAddHostNode", {graph.nodes[0]}, &gate.host) == 0);
    REQUIRE(graph.add("cudaGraphAddMemcpyNode", {graph.nodes[1]}, &in) == 0);
    void *exec = graph.made();
    REQUIRE(returns_at_once(exec, stream, &gate, there.data(), n));
    REQUIRE(device_has(second, all('d', n).data(), n));
    REQUIRE(graph.destroy() == 0 && done(exec));
    Graph back;
    REQUIRE(cudaMemset(second, '.', n) == 0);
    REQUIRE(back.add("cudaGraphAddMemcpyNode", {}, &in) == 0);
    void *first = waits_and_copies(&gate, out), *last = back.made();
    std::fill(there.begin(), there.end(), 'l');
    Opener opener(&gate);
    REQUIRE(first && launch(first, stream) == 0 && there == all('d', n));
    REQUIRE(launch(last, stream) == 0);
    std::fill(there.begin(), there.end(), 'x');
    opener.memory_is_changed();
    REQUIRE(cudaStreamSynchronize(stream) == 0 && device_has(second, all('d', n).data(), n));
    return HOLDS(back.destroy() == 0 && done(first) && done(last));
}

// A launch returns when the graph has copied to pageable memory, however it was made.
bool to_pageable(char *device, char *there, std::size_t n, void *stream)
{
    Gate gate;
    const Planes out = copy_of(there, device, n, D2H);
    REQUIRE(cudaMemset(device, 'd', n) == 0);
    for (int way = 0; way < 3; way++) {
        void *exec = !way       ? waits_and_copies(&gate, out)
                     : way == 1 ? captured(&gate, out, stream)
                                : within(&gate, out);
        for (int i = 0; i < 2; i++) {
            std::memset(there, '.', n);
            Opener opener(&gate);
            const bool launched = exec && launch(exec, stream) == 0;
            const bool copied = all('d', n) == std::vector<char>(there, there + n);
            opener.memory_is_changed();
            REQUIRE(launched && copied && cudaStreamSynchronize(stream) == 0);
        }
        REQUIRE(done(exec));
    }
    return true;
}

// ... but not for copies to page-locked memory.
bool to_page_locked(char *device, char *there, std::size_t n, void *stream)
{
    Gate gate;
    void *exec = waits_and_copies(&gate, copy_of(there, device, n, D2H));
    REQUIRE(cudaMemset(device, 'd', n) == 0);
    REQUIRE(returns_at_once(exec, stream, &gate, there, n) && done(exec));
    return HOLDS(all('d', n) == std::vector<char>(there, there + n));
}

// Copies within the host's memory are made when the launch returns, of whatever kind this is.
bool within_host(void *stream)
{
    constexpr std::size_t n = 2000;
    std::vector<char> pageable(2 * n);
    char *const locked = page_locked(2 * n);
    Gate gate;
    for (int way = 0; way < 4; way++) {
        char *const from = way & 1 ? locked : pageable.data();
        char *const to = (way & 2 ? locked : pageable.data()) + n;
        void *exec = waits_and_copies(&gate, copy_of(to, from, n, H2H));
        std::memset(from, 'l', n);
        Opener opener(&gate);
        REQUIRE(exec && launch(exec, stream) == 0);
        std::memset(from, 'x', n);
        opener.memory_is_changed();
        REQUIRE(cudaStreamSynchronize(stream) == 0 && done(exec));
        REQUIRE(all('l', n) == std::vector<char>(to, to + n));
    }
    return HOLDS(cudaFreeHost(locked) == 0);
}

// What memory was when the node was added, or was changed, is what counts.
bool as_added(char *device, void *stream)
{
    constexpr std::size_t n = 10000;
    std::vector<char> there(n), other(n);
    Gate gate;
    Graph graph;
    const Planes in = copy_of(device, there.data(), n, H2D),
                 from_other = copy_of(device, other.data(), n, H2D);
    REQUIRE(graph.add("cudaGraphAddHostNode", {}, &gate.host) == 0);
    REQUIRE(graph.add("cudaGraphAddMemcpyNode", {graph.nodes[0]}, &in) == 0);
    REQUIRE(host_register(there.data(), n) == 0 && host_register(other.data(), n) == 0);
    void *exec = graph.made();
    REQUIRE(launched(exec, stream, &gate, there.data(), n));
    REQUIRE(device_has(device, all('l', n).data(), n));
    REQUIRE((run<void *, void *, const Planes *>("cudaGraphExecMemcpyNodeSetParams", exec,
                                                 graph.nodes[1], &from_other) == 0));
    REQUIRE(launched(exec, stream, &gate, other.data(), n));
    REQUIRE(device_has(device, all('x', n).data(), n));
    REQUIRE(host_unregister(there.data()) == 0 && host_unregister(other.data()) == 0);
    return HOLDS(graph.destroy() == 0 && done(exec));
}

// More than a launch takes, and copies within this process's memory: the launch waits for them.
bool with_waits(void *stream)
{
    constexpr std::size_t n = 20u << 20;
    char *device = device_memory(n);
    std::vector<char> there(n, 'l'), copied(1000, '.');
    Gate gate;
    void *exec = waits_and_copies(&gate, copy_of(device, there.data(), n, H2D));
    REQUIRE(waited_for(exec, stream, &gate, &there) && done(exec));
    REQUIRE(device_has(device, all('l', n).data(), n));
    exec = waits_and_copies(&gate, copy_of(copied.data(), there.data(), 1000, H2H));
    std::fill(there.begin(), there.end(), 'l');
    REQUIRE(waited_for(exec, stream, &gate, &there) && done(exec));
    return HOLDS(copied == all('l', 1000) && cudaFree(device) == 0);
}

// A launch waits for room that an earlier one has, and returns when it has got it.
bool for_room(char *device, void *stream)
{
    constexpr std::size_t most = 16u << 20, n = 1000;
    char *const large = device_memory(most);
    std::vector<char> first(most, 'l'), second(n, 'l');
    Gate gate, last;
    void *fills = waits_and_copies(&gate, copy_of(large, first.data(), most, H2D)),
         *exec = waits_and_copies(&last, copy_of(device, second.data(), n, H2D));
    REQUIRE(fills && launch(fills, stream) == 0); // the test's limit ends it if that waits
    Opener opener(&gate);
    REQUIRE(returns_at_once(exec, stream, &last, second.data(), n));
    opener.memory_is_changed();
    REQUIRE(device_has(device, all('l', n).data(), n));
    REQUIRE(device_has(large, all('l', most).data(), most) && done(fills) && done(exec));
    return HOLDS(cudaFree(large) == 0);
}

// Launches that are over, and those that fail, leave room for what later ones take.
bool with_room(char *device, void *stream)
{
    constexpr std::size_t n = 1u << 20;
    std::vector<char> there(n, 'l');
    Gate gate;
    void *exec = waits_and_copies(&gate, copy_of(device, there.data(), n, H2D)), *gone = nullptr;
    REQUIRE(cudaStreamCreate(&gone) == 0 && cudaStreamDestroy(gone) == 0);
    for (int i = 0; i < 20; i++) {
        gate.close();
        REQUIRE(launch(exec, stream) == 0 && launch(exec, gone) != 0);
        gate.open();
        REQUIRE(cudaStreamSynchronize(stream) == 0);
    }
    cudaGetLastError();
    REQUIRE(launched(exec, stream, &gate, there.data(), n) && done(exec));
    return HOLDS(device_has(device, all('l', n).data(), n));
}

} // namespace

bool bytes_of_launches()
{
    char *device = device_memory(1u << 20), *pinned = nullptr;
    std::vector<char> there(1u << 20), registered(100000);
    void *stream = nullptr;
    REQUIRE(cudaStreamCreate(&stream) == 0);
    REQUIRE(cudaMallocHost(reinterpret_cast<void **>(&pinned), 100000) == 0);
    for (const std::size_t n : {4u, 128u, 129u, 5000u, 100000u, 1u << 20})
        REQUIRE(of_one_row(device, there.data(), n, stream, 'l'));
    REQUIRE(of_rows(device, stream) && of_each_launch(device, stream));
    REQUIRE(ahead_of_functions(device, stream));
    REQUIRE(host_register(registered.data(), registered.size()) == 0);
    for (const std::size_t n : {4u, 100000u}) { // CUDA reads these when the graph gets there
        REQUIRE(of_one_row(device, pinned, n, stream, 'x'));
        REQUIRE(of_one_row(device, registered.data(), n, stream, 'x'));
    }
    REQUIRE(host_unregister(registered.data()) == 0);
    REQUIRE(behind_copies_from_device(device, stream) && with_waits(stream));
    REQUIRE(as_added(device, stream) && for_room(device, stream));
    REQUIRE(with_room(device, stream) && cudaStreamDestroy(stream) == 0);
    return HOLDS(cudaFree(device) == 0 && cudaFreeHost(pinned) == 0);
}

// Copies of which a launch waits for the end.
bool copies_that_launches_await()
{
    char *device = device_memory(3u << 20), *pinned = page_locked(100000);
    std::vector<char> there(3u << 20), registered(100000);
    void *stream = nullptr;
    REQUIRE(cudaStreamCreate(&stream) == 0);
    for (const std::size_t n : {4u, 128u, 129u, 5000u, 100000u, 3u << 20})
        REQUIRE(to_pageable(device, there.data(), n, stream));
    REQUIRE(host_register(registered.data(), registered.size()) == 0);
    for (const std::size_t n : {4u, 100000u}) {
        REQUIRE(to_page_locked(device, pinned, n, stream));
        REQUIRE(to_page_locked(device, registered.data(), n, stream));
    }
    REQUIRE(host_unregister(registered.data()) == 0 && within_host(stream));
    return HOLDS(cudaStreamDestroy(stream) == 0 && cudaFree(device) == 0 &&
                 cudaFreeHost(pinned) == 0);
}
