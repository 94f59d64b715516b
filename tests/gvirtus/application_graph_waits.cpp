// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Graphs that wait for their client, and who does not wait for them.
#include "tests/gvirtus/connections.h"
#include "tests/gvirtus/graph_calls.h"
#include "tests/fixtures/patience.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>
#include <sys/socket.h>
#include <unistd.h>

using namespace graph_calls;

namespace
{

void wait_until_set(void *flag)
{
    while (!*static_cast<std::atomic<int> *>(flag))
        std::this_thread::yield();
}

// Ready to be launched: waits for the flag, and then copies all of `back` from the device. The
// launch waits for neither.
void *waits_and_copies(Graph *graph, std::atomic<int> *flag, PageLocked *back, const char *device)
{
    const Host host = {wait_until_set, flag};
    const Planes out = copy_of(back->at, device, back->n, D2H);
    if (graph->add("cudaGraphAddHostNode", {}, &host) ||
        graph->add("cudaGraphAddMemcpyNode", {graph->nodes[0]}, &out))
        return nullptr;
    return graph->made();
}

} // namespace

// Over a connection that breaks for good: if functions of a graph were not called, its launch has
// failed.
bool graphs_lost()
{
    void *stream = nullptr, *other = nullptr;
    std::atomic<int> flag{0};
    PageLocked back(10000, 'x');
    char *device = device_memory(10000);
    REQUIRE(cudaStreamCreate(&stream) == 0 && cudaStreamCreate(&other) == 0);
    const Connections of_threads;
    Graph graph;
    void *exec = waits_and_copies(&graph, &flag, &back, device);
    REQUIRE(exec && launch(exec, stream) == 0 && cudaStreamSynchronize(other) == 0);
    of_threads.cut();
    flag = 1;
    REQUIRE(cudaStreamSynchronize(stream) == 999 && cudaGetLastError() == 999);
    REQUIRE(back.at[0] == 'x' && cudaStreamSynchronize(other) == 0);
    return HOLDS(fails(launch(exec, stream), 999));
}

namespace
{

// Sets a flag when in_time() is called, or after a while: then somebody has waited for the flag.
class Release
{
    std::mutex lock;
    std::condition_variable told;
    bool asked = false, late = false;
    std::thread thread;

  public:
    explicit Release(std::atomic<int> *flag)
        : thread([this, flag] {
              std::unique_lock<std::mutex> locked(lock);
              const std::chrono::seconds limit(20 * patience_times());
              late = !told.wait_for(locked, limit, [this] { return asked; });
              *flag = 1;
          })
    {
    }
    bool in_time()
    {
        {
            std::lock_guard<std::mutex> locked(lock);
            asked = true;
        }
        told.notify_one();
        thread.join();
        return !late;
    }
};

} // namespace

// cudaFree waits for graphs, and returns what has failed in them; but with NULL, and with memory of
// pools and of graphs, it waits for nothing.
bool frees_beside_graphs()
{
    std::atomic<int> flag{0};
    constexpr std::size_t n = 3u << 20; // the back end has no slot for it
    std::vector<char> there(10000, 'a');
    PageLocked back(10000, 'x'), never(n, 'x');
    char *device = device_memory(10000), *second = device_memory(n);
    void *pooled = nullptr, *stream = nullptr, *array = nullptr, *node = nullptr;
    int channel[5] = {8, 0, 0, 0, 1};
    REQUIRE(cudaMemcpy(device, there.data(), 10000, H2D) == 0 && cudaStreamCreate(&stream) == 0);
    REQUIRE((run<void **, std::size_t, void *>("cudaMallocAsync", &pooled, 4096, nullptr) == 0));
    REQUIRE((run<void **, const void *, std::size_t, std::size_t, unsigned>(
                 "cudaMallocArray", &array, channel, 64, 0, 0) == 0));
    Graph graph, failing, allocating;
    const Planes wrong = copy_of(never.at, second, n, D2H);
    REQUIRE(failing.add("cudaGraphAddMemcpyNode", {}, &wrong) == 0);
    Allocation allocation = {};
    allocation.kind = allocation.location = 1;
    allocation.n = 5000;
    REQUIRE(
        (run<void **, void *, void *const *, std::size_t, Allocation *>(
             "cudaGraphAddMemAllocNode", &node, allocating.handle, nullptr, 0, &allocation) == 0));
    void *exec = waits_and_copies(&graph, &flag, &back, device), *wrong_exec = failing.made();
    REQUIRE(exec && launch(exec, stream) == 0);
    Release release(&flag);
    const bool freed =
        cudaFree(pooled) == 0 && cudaFree(nullptr) == 0 && cudaFree(allocation.address) == 0;
    REQUIRE(release.in_time() && freed);
    REQUIRE(cudaFree(second) == 0 && back == there);
    back.fill_with('y');
    REQUIRE(launch(exec, stream) == 0);
    REQUIRE(run("cudaFreeArray", array) == 0 && back == there);
    REQUIRE(launch(wrong_exec, stream) == 0 && fails(cudaFree(device), 1));
    return HOLDS(cudaDeviceSynchronize() == 0);
}

namespace
{

std::atomic<int> objects_ended{0};

void end_object(void *)
{
    objects_ended++;
}

// A graph with an object is launched, and destroyed before the flag is set for which it waits.
// `streamless`: its stream is destroyed before.
bool destroyed_before_flag(bool streamless, char *device, const std::vector<char> &there)
{
    std::atomic<int> flag{0};
    PageLocked back(10000, 'x');
    void *stream = nullptr, *object = nullptr;
    Graph graph;
    const int ended = objects_ended;
    REQUIRE(cudaStreamCreateWithFlags(&stream, 1) == 0);
    REQUIRE((run<void **, void *, void (*)(void *), unsigned, unsigned>(
                 "cudaUserObjectCreate", &object, nullptr, end_object, 1, 1) == 0));
    REQUIRE((run<void *, void *, unsigned, unsigned>("cudaGraphRetainUserObject", graph.handle,
                                                     object, 1, 1) == 0));
    void *exec = waits_and_copies(&graph, &flag, &back, device);
    REQUIRE(exec && launch(exec, stream) == 0 && graph.destroy() == 0);
    REQUIRE(!streamless || cudaStreamDestroy(stream) == 0);
    Release release(&flag);
    const bool gone = run("cudaGraphExecDestroy", exec) == 0;
    const bool kept = objects_ended == ended;
    const bool refused = streamless || launch(exec, stream) == 1; // it cannot be named
    REQUIRE(release.in_time() && gone && kept && refused);
    cudaGetLastError();
    REQUIRE((streamless ? cudaDeviceSynchronize() : cudaStreamSynchronize(stream)) == 0);
    while (objects_ended == ended)
        std::this_thread::yield();
    REQUIRE(back == there && (streamless || cudaStreamDestroy(stream) == 0));
    return HOLDS(objects_ended == ended + 1 && cudaGetLastError() == 0);
}

} // namespace

namespace
{

struct SeenWait {
    std::atomic<int> flag{0}, runs{0};
};

void wait_seen(void *wait)
{
    static_cast<SeenWait *>(wait)->runs = 1;
    wait_until_set(&static_cast<SeenWait *>(wait)->flag);
}

// An executable graph of one node, with an object.
void *made_with_object(const SeenWait *wait)
{
    void *object = nullptr, *node = nullptr, *exec = nullptr;
    const Host host = {wait_seen, const_cast<SeenWait *>(wait)};
    Graph graph;
    const int rc = wait ? graph.add("cudaGraphAddHostNode", {}, &host)
                        : run<void **, void *, void *const *, std::size_t>(
                              "cudaGraphAddEmptyNode", &node, graph.handle, nullptr, 0);
    if (!rc &&
        run<void **, void *, void (*)(void *), unsigned, unsigned>(
            "cudaUserObjectCreate", &object, nullptr, end_object, 1, 1) == 0 &&
        run<void *, void *, unsigned, unsigned>("cudaGraphRetainUserObject", graph.handle, object,
                                                1, 1) == 0)
        exec = graph.made();
    graph.destroy();
    return exec;
}

// As many as CUDA has connections to the GPU, and more: their objects are not released in a stream
// each, all of which would wait.
bool many_destroyed_before_flag()
{
    SeenWait wait;
    void *stream = nullptr;
    std::vector<void *> execs = {made_with_object(&wait)};
    const int ended = objects_ended;
    for (int i = 0; i < 10; i++)
        execs.push_back(made_with_object(nullptr));
    REQUIRE(cudaStreamCreateWithFlags(&stream, 1) == 0);
    for (void *exec : execs)
        REQUIRE(exec && launch(exec, stream) == 0);
    while (!wait.runs)
        std::this_thread::yield();
    Release release(&wait.flag);
    const unsigned long before = stub_remote()->stats().beside_functions;
    int failed = 0;
    for (void *exec : execs)
        failed += run("cudaGraphExecDestroy", exec) != 0;
    const unsigned long made = stub_remote()->stats().beside_functions - before;
    const bool kept = objects_ended == ended;
    REQUIRE(release.in_time() && !failed && kept && made <= 1);
    while (objects_ended != ended + 11)
        std::this_thread::yield();
    return HOLDS(cudaStreamDestroy(stream) == 0 && cudaGetLastError() == 0);
}

// A device is reset while objects of a launch on another one are to be released: they are.
bool kept_across_reset()
{
    SeenWait wait;
    void *stream = nullptr;
    const int ended = objects_ended;
    REQUIRE(cudaSetDevice(1) == 0 && cudaStreamCreateWithFlags(&stream, 1) == 0);
    void *exec = made_with_object(&wait);
    REQUIRE(exec && launch(exec, stream) == 0 && cudaSetDevice(0) == 0);
    while (!wait.runs)
        std::this_thread::yield();
    Release release(&wait.flag);
    const bool reset = run("cudaGraphExecDestroy", exec) == 0 && cudaDeviceReset() == 0;
    const bool kept = objects_ended == ended;
    REQUIRE(release.in_time() && reset && kept);
    while (objects_ended == ended)
        std::this_thread::yield();
    return HOLDS(cudaStreamDestroy(stream) == 0 && cudaGetLastError() == 0);
}

// No event is made for the launch, and its stream is destroyed: nothing tells when it has ended. So
// its object is never released: the launch may still use it. On a device that has kept no events.
bool never_released_unseen()
{
    SeenWait wait;
    void *stream = nullptr;
    const int ended = objects_ended;
    REQUIRE(cudaSetDevice(1) == 0 && cudaStreamCreateWithFlags(&stream, 1) == 0);
    void *exec = made_with_object(&wait);
    stub_remote()->inject("cuEventCreate", 2, 2, false); // the first one is the back end's
    REQUIRE(exec && launch(exec, stream) == 0 && cudaStreamDestroy(stream) == 0);
    while (!wait.runs)
        std::this_thread::yield();
    Release release(&wait.flag);
    const bool gone = run("cudaGraphExecDestroy", exec) == 0, kept = objects_ended == ended;
    REQUIRE(release.in_time() && gone && kept && cudaGetLastError() == 0);
    REQUIRE(cudaDeviceSynchronize() == 0 && objects_ended == ended);
    return HOLDS(cudaSetDevice(0) == 0);
}

// GVirtuS's front end makes no call when a graph with an object is launched and destroyed again.
bool launched_without_calls()
{
    void *stream = nullptr, *exec = nullptr;
    const int ended = objects_ended;
    std::uint64_t calls = 0;
    REQUIRE(cudaStreamCreateWithFlags(&stream, 1) == 0);
    for (int i = 0; i < 12; i++) {
        calls = i == 2 ? stub_calls() : calls; // the first ones make the event
        REQUIRE((exec = made_with_object(nullptr)));
        for (int n = 0; n < 5; n++)
            REQUIRE(launch(exec, stream) == 0);
        REQUIRE(cudaStreamSynchronize(stream) == 0 && run("cudaGraphExecDestroy", exec) == 0);
        REQUIRE(objects_ended == ended + i + 1);
    }
    REQUIRE(stub_calls() == calls);
    return HOLDS(cudaStreamDestroy(stream) == 0 && cudaGetLastError() == 0);
}

// A graph is launched in that stream, and destroyed before the flag is set for which it waits.
bool destroyed_in(void *stream, char *device, const std::vector<char> &there)
{
    std::atomic<int> flag{0};
    PageLocked back(10000, 'x');
    Graph graph;
    void *exec = waits_and_copies(&graph, &flag, &back, device);
    REQUIRE(exec && launch(exec, stream) == 0 && graph.destroy() == 0);
    Release release(&flag);
    const bool gone = run("cudaGraphExecDestroy", exec) == 0;
    REQUIRE(release.in_time() && gone && cudaStreamSynchronize(stream) == 0);
    return HOLDS(back == there && cudaGetLastError() == 0);
}

// In the legacy stream, beside the capture of a stream that does not wait for it.
bool destroyed_beside_capture(char *device, const std::vector<char> &there)
{
    void *captured = nullptr, *graph = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&captured, 1) == 0);
    REQUIRE((run<void *, int>("cudaStreamBeginCapture", captured, 2) == 0));
    REQUIRE(destroyed_in(nullptr, device, there));
    REQUIRE(run("cudaStreamEndCapture", captured, &graph) == 0);
    return HOLDS(cudaStreamDestroy(captured) == 0);
}

// On another device than the current one.
bool destroyed_on_second(const std::vector<char> &there)
{
    void *stream = nullptr;
    REQUIRE(cudaSetDevice(1) == 0 && cudaStreamCreateWithFlags(&stream, 1) == 0);
    char *device = device_memory(10000);
    REQUIRE(device && cudaMemcpy(device, there.data(), 10000, H2D) == 0 && cudaSetDevice(0) == 0);
    REQUIRE(destroyed_in(stream, device, there));
    return HOLDS(cudaFree(device) == 0 && cudaStreamDestroy(stream) == 0);
}

} // namespace

// An executable graph is destroyed by the thread for which its launch waits: the call returns, and
// the launch goes on, with its functions, its copies and its objects.
bool destroyed_while_running()
{
    std::vector<char> there(10000, 'a');
    char *device = device_memory(10000);
    REQUIRE(device && cudaMemcpy(device, there.data(), 10000, H2D) == 0);
    REQUIRE(destroyed_before_flag(false, device, there));
    REQUIRE(destroyed_before_flag(true, device, there));
    REQUIRE(many_destroyed_before_flag() && launched_without_calls());
    REQUIRE(destroyed_beside_capture(device, there) && destroyed_on_second(there));
    return HOLDS(cudaFree(device) == 0 && kept_across_reset() && never_released_unseen());
}

// Meanwhile the back end may still pin pieces of its pool.
static unsigned long unpinned_ever()
{
    const auto now = stub_remote()->stats();
    return now.host_pinned - now.host_pins;
}

namespace
{

constexpr std::size_t pin_bytes = 4u << 20;

// There and back, in a stream that waits for nobody.
bool comes_back(char *device, char *memory, std::size_t n, void *stream, char fill)
{
    std::memset(memory, fill, n);
    REQUIRE(cudaMemcpyAsync(device, memory, n, H2D, stream) == 0);
    REQUIRE(cudaStreamSynchronize(stream) == 0);
    std::memset(memory, 0, n);
    REQUIRE(cudaMemcpyAsync(memory, device, n, D2H, stream) == 0);
    REQUIRE(cudaStreamSynchronize(stream) == 0);
    REQUIRE(has(memory, std::vector<char>(n, fill)));
    std::memset(memory, 0, n);
    REQUIRE(cudaMemcpy(memory, device, n, D2H) == 0);
    return HOLDS(has(memory, std::vector<char>(n, fill)));
}

// A kernel writes to the memory, and a copy behind it reads that.
bool copied_behind_kernel(char *device, char *memory, std::size_t n, void *stream)
{
    std::memset(memory, 'o', n);
    REQUIRE(cudaMemset(device, 'k', n) == 0 && cudaStreamSynchronize(nullptr) == 0);
    stub_remote()->slow(20000);
    REQUIRE(stub_launch(memory, device, n, stream) == 0);
    REQUIRE(cudaMemcpyAsync(device + n, memory, n, H2D, stream) == 0);
    REQUIRE(cudaStreamSynchronize(stream) == 0);
    stub_remote()->slow(0);
    return HOLDS(device_has(device + n, std::vector<char>(n, 'k').data(), n));
}

// Page-locked memory of `n` bytes takes the place of such that was freed, while a stream has work
// that does not end. The back end has pinned the former memory; unpinning would wait for that work.
bool unpinned_beside_work(std::size_t n)
{
    void *held = nullptr, *stream = nullptr, *memory = nullptr;
    char *device = device_memory(3 * pin_bytes);
    REQUIRE(device && cudaStreamCreateWithFlags(&held, 1) == 0);
    REQUIRE(cudaStreamCreateWithFlags(&stream, 1) == 0 && cudaMallocHost(&memory, pin_bytes) == 0);
    void *const before = memory;
    REQUIRE(comes_back(device, static_cast<char *>(memory), pin_bytes, stream, 'b'));
    REQUIRE(cudaFreeHost(memory) == 0 && cudaDeviceSynchronize() == 0);
    const unsigned long unpinned = unpinned_ever();
    stub_remote()->hold_stream(reinterpret_cast<std::uint64_t>(held));
    REQUIRE(stub_launch(device, device + 5000, 5000, held) == 0);
    REQUIRE(cudaMallocHost(&memory, n) == 0 && (!over_shm || memory == before));
    char *const at = static_cast<char *>(memory);
    REQUIRE(comes_back(device + pin_bytes / 2, at, n, stream, 'h'));
    REQUIRE(!over_shm || copied_behind_kernel(device, at, n, stream));
    REQUIRE(round_trip(device, at, n, 1)); // synchronously
    REQUIRE(round_trip(device, at + n / 2, n / 2, 2) && round_trip(device, at, 1000, 3));
    std::memset(at, 's', n); // and in the stream itself: the call returns
    REQUIRE(!over_shm || cudaMemcpyAsync(device, at, n, H2D, held) == 0);
    REQUIRE(cudaStreamQuery(held) == 600);
    REQUIRE(unpinned_ever() == unpinned);
    stub_remote()->hold_stream(0);
    REQUIRE(cudaStreamSynchronize(held) == 0);
    REQUIRE(!over_shm || device_has(device, std::vector<char>(n, 's').data(), n));
    // A shorter one uses the pin that is there. A longer one uses two; when nothing is under way,
    // one of 64 copies makes one of them.
    const bool joins = over_shm && n > pin_bytes;
    for (int i = 0; i < (joins ? 64 : 1) && unpinned_ever() == unpinned; i++)
        REQUIRE(comes_back(device, at, n, stream, 'a'));
    REQUIRE(unpinned_ever() == unpinned + (joins ? 2 : 0));
    REQUIRE(comes_back(device, at, n, stream, 'b'));
    REQUIRE(cudaStreamDestroy(held) == 0 && cudaStreamDestroy(stream) == 0);
    return HOLDS(cudaFreeHost(memory) == 0 && cudaFree(device) == 0);
}

} // namespace

// A thread that has page-locked memory ends while a graph waits for its client: the back end unpins
// the memory, and that waits for all work of the device.
bool unpinned_beside_graphs()
{
    REQUIRE(unpinned_beside_work(pin_bytes + (1u << 20)) && unpinned_beside_work(pin_bytes / 2));
    std::atomic<int> flag{0}, ready{0}, go{0};
    std::vector<char> there(10000, 'a');
    PageLocked back(10000, 'x');
    char *device = device_memory(10000);
    void *stream = nullptr, *locked = nullptr;
    REQUIRE(cudaMemcpy(device, there.data(), 10000, H2D) == 0 && cudaStreamCreate(&stream) == 0);
    std::thread other([&] {
        const std::size_t n = 1u << 20;
        char *own = device_memory(n);
        const bool good =
            own && cudaMallocHost(&locked, n) == 0 && cudaMemcpy(own, locked, n, H2D) == 0;
        ready = good ? 1 : 2;
        wait_until_set(&go);
    });
    wait_until_set(&ready);
    Graph graph;
    void *exec = waits_and_copies(&graph, &flag, &back, device);
    const unsigned long unpinned = unpinned_ever(), waits = stub_remote()->stats().waits;
    REQUIRE(exec && launch(exec, stream) == 0 && cudaStreamQuery(stream) == 600);
    go = 1;
    other.join();
    while (over_shm && stub_remote()->stats().waits == waits)
        usleep(1000);
    flag = 1;
    REQUIRE(cudaStreamSynchronize(stream) == 0 && back == there && ready == 1);
    while (over_shm && unpinned_ever() == unpinned)
        usleep(1000);
    return HOLDS(cudaFreeHost(locked) == 0 && cudaFree(device) == 0);
}

// A kernel that is loaded on another device is now loaded on this one, where a graph waits for its
// client.
bool loads_beside_graphs()
{
    std::atomic<int> flag{0};
    std::vector<char> there(10000, 'a');
    PageLocked back(10000, 'x');
    char *near = device_memory(10000);
    void *stream = nullptr;
    bool good = false;
    REQUIRE(cudaSetDevice(1) == 0 && cudaStreamCreate(&stream) == 0);
    char *far = device_memory(10000);
    REQUIRE(near && far && cudaMemcpy(far, there.data(), 10000, H2D) == 0);
    Graph graph;
    void *exec = waits_and_copies(&graph, &flag, &back, far);
    REQUIRE(cudaSetDevice(0) == 0 && stub_launch(near, near + 5000, 5000, nullptr) == 0);
    REQUIRE(cudaDeviceSynchronize() == 0 && cudaSetDevice(1) == 0);
    const unsigned long waits = stub_remote()->stats().waits;
    REQUIRE(exec && launch(exec, stream) == 0 && cudaStreamQuery(stream) == 600);
    std::thread other([&] {
        good = cudaSetDevice(1) == 0 && stub_launch(far, far + 5000, 5000, nullptr) == 0 &&
               cudaDeviceSynchronize() == 0;
    });
    while (stub_remote()->stats().waits == waits)
        usleep(1000);
    flag = 1;
    REQUIRE(cudaStreamSynchronize(stream) == 0 && back == there);
    other.join();
    return HOLDS(good && cudaFree(far) == 0 && cudaFree(near) == 0);
}

// With cudaEventRecordExternal and cudaEventWaitExternal, events in a capture are nodes: each
// launch records them, and waits for them, as streams outside do. Without, they are the capture's
// own.
bool captures_of_events()
{
    void *stream = nullptr, *other = nullptr, *event = nullptr, *gate = nullptr, *graph = nullptr;
    void *exec = nullptr, *found = nullptr, *nodes[8] = {};
    std::atomic<int> flag{0};
    std::size_t count = 8;
    char *device = device_memory(64), back[64] = {};
    const auto record = preloaded<int(void *, void *, unsigned)>("cudaEventRecordWithFlags");
    REQUIRE(device && cudaStreamCreate(&stream) == 0 && cudaStreamCreate(&other) == 0);
    REQUIRE(cudaEventCreate(&event) == 0 && cudaEventCreate(&gate) == 0);
    REQUIRE(fails(record(event, stream, 2), 1) && fails(record(event, stream, 1), 401));
    REQUIRE((run<void *, int>("cudaStreamBeginCapture", stream, 0) == 0));
    REQUIRE(fails(record(event, stream, 2), 1));
    REQUIRE(cudaStreamWaitEvent(stream, gate, 1) == 0);
    REQUIRE(cudaMemsetAsync(device, 'a', 64, stream) == 0 && record(event, stream, 1) == 0);
    REQUIRE(run("cudaStreamEndCapture", stream, &graph) == 0);
    REQUIRE(run("cudaGraphGetNodes", graph, nodes, &count) == 0 && count == 3);
    REQUIRE(run("cudaGraphEventRecordNodeGetEvent", nodes[2], &found) == 0 && found == event);
    REQUIRE(run("cudaGraphEventWaitNodeGetEvent", nodes[0], &found) == 0 && found == gate);
    REQUIRE(
        (run<void **, void *, unsigned long long>("cudaGraphInstantiate", &exec, graph, 0) == 0));
    // The event is not recorded before the launch gets there, which waits for the other stream.
    REQUIRE(cudaEventQuery(event) == 0);
    REQUIRE((run<void *, void (*)(void *), void *>("cudaLaunchHostFunc", other, wait_until_set,
                                                   &flag) == 0));
    REQUIRE(record(gate, other, 0) == 0 && launch(exec, stream) == 0);
    REQUIRE(cudaEventQuery(event) == 600 && cudaEventQuery(gate) == 600);
    flag = 1;
    REQUIRE(cudaEventSynchronize(event) == 0 && cudaEventQuery(gate) == 0);
    REQUIRE(cudaMemcpy(back, device, 64, D2H) == 0 && back[0] == 'a' && back[63] == 'a');
    REQUIRE(run("cudaGraphExecDestroy", exec) == 0 && run("cudaGraphDestroy", graph) == 0);
    return HOLDS(cudaEventDestroy(event) == 0 && cudaEventDestroy(gate) == 0);
}
