// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Which bytes of this process's memory a launch of a graph copies: of pageable memory those that it
// has when the launch begins, as with CUDA's driver 580 on an H200.
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

// Opens a gate when the program has changed its memory or, if a launch waits for the gate, in the
// end: the memory would be changed first if the launch did not wait.
class Opener
{
    std::mutex lock;
    std::condition_variable told;
    bool changed = false;
    std::thread thread;

  public:
    explicit Opener(Gate *gate)
        : thread([this, gate] {
              std::unique_lock<std::mutex> locked(lock);
              const std::chrono::milliseconds limit(100 * patience_times());
              told.wait_for(locked, limit, [this] { return changed; });
              gate->open();
          })
    {
        gate->close();
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
        std::vector<char> back = std::vector<char>(n);
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
                 out = copy_of(seen.back.data(), device, n, D2H);
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
    return HOLDS(graph.destroy() == 0 && done(exec));
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
    REQUIRE(waited_for(exec, stream, &gate, &there));
    REQUIRE(device_has(second, all('d', n).data(), n));
    REQUIRE(graph.destroy() == 0 && done(exec));
    Graph back;
    REQUIRE(cudaMemset(second, '.', n) == 0);
    REQUIRE(back.add("cudaGraphAddMemcpyNode", {}, &in) == 0);
    void *first = waits_and_copies(&gate, out), *last = back.made();
    std::fill(there.begin(), there.end(), 'l');
    gate.close();
    REQUIRE(first && launch(first, stream) == 0);
    REQUIRE(waited_for(last, stream, &gate, &there));
    REQUIRE(device_has(second, all('d', n).data(), n));
    return HOLDS(back.destroy() == 0 && done(first) && done(last));
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
    REQUIRE(with_room(device, stream) && cudaStreamDestroy(stream) == 0);
    return HOLDS(cudaFree(device) == 0 && cudaFreeHost(pinned) == 0);
}
