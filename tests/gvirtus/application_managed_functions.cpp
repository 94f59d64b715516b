// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Managed memory that functions of streams (cudaLaunchHostFunc) read and write.
#include "tests/gvirtus/graph_calls.h"
#include "tests/fixtures/denied_call.h"
#include "tests/fixtures/patience.h"

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <vector>
#include <unistd.h>

namespace
{

constexpr std::size_t used = 200 * 1024; // bytes of more than one block

void launch_function(void (*function)(void *), void *argument, void *stream)
{
    using Launch = int(void *, void (*)(void *), void *);
    if (preloaded<Launch>("cudaLaunchHostFunc")(stream, function, argument) != 0)
        std::abort();
}

// What a function does with managed memory: it waits until it may, and compares and adds 1.
struct Touch {
    char *memory;
    std::vector<char> expected;
    std::size_t stride = 1; // only every so many bytes are changed
    std::atomic<bool> may{true}, begun{false}, right{false};
};

void touch(void *argument)
{
    auto *t = static_cast<Touch *>(argument);
    t->begun = true;
    while (!t->may)
        std::this_thread::yield();
    t->right = !std::memcmp(t->memory, t->expected.data(), t->expected.size());
    for (std::size_t i = 0; i < t->expected.size(); i += t->stride)
        t->memory[i] = static_cast<char>(t->memory[i] + 1);
}

std::vector<char> touched(std::vector<char> bytes, std::size_t stride)
{
    for (std::size_t i = 0; i < bytes.size(); i += stride)
        bytes[i] = static_cast<char>(bytes[i] + 1);
    return bytes;
}

// Until the thread with this number, once it has one, waits, in pieces perhaps, or its call has
// ended (-1).
void await_sleep(const std::atomic<pid_t> &thread)
{
    for (int asleep = 0; asleep < 200 && thread >= 0; usleep(1000))
        asleep += thread && thread_state(getpid(), thread) == 'S';
}

// A kernel's bytes get to the function, and the function's to a kernel that was launched before the
// function is called. If the back end has page-locked memory at its address, nothing for which the
// function waits needs CUDA: that would copy within its host, behind functions that were called.
bool function_between_kernels(char *memory, void *stream, std::size_t stride, bool by_cuda = true)
{
    char *from = managed_memory(used), *to = managed_memory(used);
    Touch t{memory, random_bytes(used, 3)};
    t.stride = stride;
    t.may = false;
    REQUIRE(from && to);
    std::memcpy(from, t.expected.data(), used);
    REQUIRE(stub_launch(memory, from, used, stream) == 0);
    launch_function(touch, &t, stream);
    REQUIRE(stub_launch(to, memory, used, stream) == 0);
    const auto copies = stub_remote()->stats().beside_functions;
    t.may = true;
    REQUIRE(cudaStreamSynchronize(stream) == 0 && t.right);
    REQUIRE(by_cuda || stub_remote()->stats().beside_functions == copies);
    const std::vector<char> after = touched(t.expected, stride);
    REQUIRE(has(to, after) && has(memory, after));
    return HOLDS(cudaFree(from) == 0 && cudaFree(to) == 0);
}

// While this thread waits for the device: because it touches managed memory, in a copy for which
// the legacy stream may wait for the function, and since what it has written has to get there.
bool function_beside_waits(void *stream, bool legacy_waits)
{
    char *memory = managed_memory(used), *other = managed_memory(used),
         *device = device_memory(used);
    REQUIRE(memory && other && device);
    for (int way = 0; way < 3; way++) {
        const std::vector<char> bytes = random_bytes(used, static_cast<unsigned>(way));
        std::vector<char> back(used);
        Touch t{memory, bytes};
        t.may = false;
        std::memcpy(other, bytes.data(), used);
        REQUIRE(stub_launch(memory, other, used, stream) == 0);
        if (way == 2)
            other[0] = 1; // waits
        launch_function(touch, &t, stream);
        const pid_t waits = gettid();
        std::thread allows([&] {
            for (int asleep = 0; asleep < 100; usleep(1000))
                asleep = thread_state(getpid(), waits) == 'S' ? asleep + 1 : 0;
            t.may = true;
        });
        bool good = true;
        if (way == 0)
            good = other[used - 1] == bytes[used - 1];
        else if (way == 1)
            good = cudaMemcpy(back.data(), memory, used, D2H) == 0 &&
                   (!legacy_waits || back == touched(bytes, 1));
        else
            good =
                stub_launch(device, other, used, stream) == 0 && cudaStreamSynchronize(stream) == 0;
        allows.join();
        REQUIRE(good && cudaStreamSynchronize(stream) == 0 && t.right);
        REQUIRE(has(memory, touched(bytes, 1)));
    }
    return HOLDS(cudaFree(memory) == 0 && cudaFree(other) == 0 && cudaFree(device) == 0);
}

// A copy within host memory that kernels use, in a stream that comes after a function, which needs
// what the device has: CUDA makes such a copy in the call, and may keep others out meanwhile.
bool function_before_copy_on_host(void *stream, void *after)
{
    char *memory = managed_memory(used), *from = managed_memory(used);
    void *one = nullptr, *two = nullptr;
    std::vector<char> pageable(used);
    REQUIRE(memory && from && cudaMallocHost(&one, used) == 0 && cudaMallocHost(&two, used) == 0);
    auto *const there = static_cast<char *>(one), *const back = static_cast<char *>(two);
    REQUIRE(stub_launch(there, back, used, stream) == 0); // kernels use them
    for (int way = 0; way < 5; way++) {
        const std::vector<char> bytes = random_bytes(used, 30 + static_cast<unsigned>(way));
        std::memcpy(from, bytes.data(), used);
        std::memset(there, way, used);
        std::memset(back, 'x', used);
        REQUIRE(stub_launch(memory, from, used, stream) == 0);
        Touch t{memory, bytes};
        t.may = false;
        launch_function(touch, &t, stream);
        while (!t.begun)
            std::this_thread::yield();
        const pid_t waits = gettid();
        std::thread allows([&] {
            for (int asleep = 0; asleep < 30; usleep(1000))
                asleep = thread_state(getpid(), waits) == 'S' ? asleep + 1 : 0;
            t.may = true;
        });
        using Rows = int(void *, std::size_t, const void *, std::size_t, std::size_t, std::size_t,
                         int, void *);
        const graph_calls::Planes p = graph_calls::copy_of(back, there, used, DEFAULT);
        const int rc =
            way == 0   ? cudaMemcpyAsync(back, there, used, DEFAULT, after)
            : way == 1 ? cudaMemcpyAsync(pageable.data(), there, used, D2H, after)
            : way == 2 ? cudaMemcpyAsync(back, pageable.data(), used, H2D, after)
            : way == 3 ? preloaded<Rows>("cudaMemcpy2DAsync")(back, used / 2, there, used / 2,
                                                              used / 2, 2, DEFAULT, after)
                       : graph_calls::run<const graph_calls::Planes *, void *>("cudaMemcpy3DAsync",
                                                                               &p, after);
        const int waited = rc ? rc : cudaStreamSynchronize(after);
        t.may = true;
        allows.join();
        REQUIRE(waited == 0 && cudaStreamSynchronize(stream) == 0 && t.right);
        REQUIRE(has(way == 1 ? pageable.data() : back,
                    way == 2 ? pageable : std::vector<char>(used, static_cast<char>(way))));
    }
    REQUIRE(cudaFreeHost(there) == 0 && cudaFreeHost(back) == 0);
    return HOLDS(cudaFree(memory) == 0 && cudaFree(from) == 0);
}

enum Work { copies_to_host, copies_to_device, kernels };

// A graph that copies so many bytes to the device, or NULL.
void *graph_to_device(char *device, const char *host, std::size_t n)
{
    graph_calls::Graph graph;
    const graph_calls::Planes copy = graph_calls::copy_of(device, host, n, H2D);
    void *const exec = graph.add("cudaGraphAddMemcpyNode", {}, &copy) == 0 ? graph.made() : nullptr;
    return graph.destroy() == 0 ? exec : nullptr;
}

// Copies the device's bytes to the host, or (by a graph, since a call would wait for the function,
// which might write them) the host's to the device, or within the device.
bool is_given(Work work, void *stream, char *device, char *host, void *graph)
{
    constexpr std::size_t bytes = 4096;
    if (work == kernels)
        return stub_launch(device, device + used / 2, bytes, stream) == 0;
    return work == copies_to_host
               ? cudaMemcpyAsync(host, device, bytes, D2H, stream) == 0
               : graph_calls::run<void *, void *>("cudaGraphLaunch", graph, stream) == 0;
}

// Other streams wait for the function, with such work behind that. The copies that the function
// needs get on beside these. Over tcp this thread may wait in the call of a copy to the host.
bool function_before(Work work, void *stream)
{
    constexpr int waiting = 9;
    constexpr std::size_t bytes = 4096;
    char *memory = managed_memory(used), *from = managed_memory(used),
         *device = device_memory(used);
    void *streams[waiting], *graphs[waiting], *reached = nullptr, *pinned = nullptr;
    REQUIRE(memory && from && device && cudaMallocHost(&pinned, used) == 0);
    REQUIRE(cudaMemset(device, 6, used) == 0 && cudaEventCreateWithFlags(&reached, 2) == 0);
    for (void *&one : streams)
        REQUIRE(cudaStreamCreateWithFlags(&one, 1) == 0);
    Touch t{memory, random_bytes(used, 40)};
    t.stride = 8192; // the copies to the device are short
    t.may = false;
    std::memcpy(from, t.expected.data(), used);
    REQUIRE(stub_launch(memory, from, used, stream) == 0);
    launch_function(touch, &t, stream);
    REQUIRE(cudaEventRecord(reached, stream) == 0);
    auto *const host = static_cast<char *>(pinned);
    std::memset(host, 7, used);
    for (std::size_t i = 0; i < waiting; i++)
        REQUIRE((graphs[i] = graph_to_device(device + i * bytes, host + i * bytes, 40 * 1024)));
    const pid_t waits = gettid();
    std::thread allows([&] {
        for (int asleep = 0; asleep < 100 && !t.may; usleep(1000))
            asleep = thread_state(getpid(), waits) == 'S' ? asleep + 1 : 0;
        t.may = true;
    });
    for (std::size_t i = 0; i < waiting; i++)
        REQUIRE(cudaStreamWaitEvent(streams[i], reached, 0) == 0 &&
                is_given(work, streams[i], device + i * bytes, host + i * bytes, graphs[i]));
    t.may = true;
    allows.join();
    REQUIRE(cudaStreamSynchronize(stream) == 0 && t.right);
    for (void *one : streams)
        REQUIRE(cudaStreamSynchronize(one) == 0 && cudaStreamDestroy(one) == 0);
    for (void *graph : graphs)
        REQUIRE(graph_calls::run<void *>("cudaGraphExecDestroy", graph) == 0);
    REQUIRE(work != copies_to_host || has(host, std::vector<char>(waiting * bytes, 6)));
    REQUIRE(work != copies_to_device ||
            device_has(device, std::vector<char>(waiting * bytes, 7).data(), waiting * bytes));
    REQUIRE(touched(t.expected, t.stride) == std::vector<char>(memory, memory + used));
    REQUIRE(cudaEventDestroy(reached) == 0 && cudaFreeHost(pinned) == 0);
    return HOLDS(cudaFree(memory) == 0 && cudaFree(from) == 0 && cudaFree(device) == 0);
}

// A kernel of another stream writes the same block while the function is being called, and so does
// this thread before it launches that kernel: nobody's bytes are lost.
bool function_beside_kernels(void *stream, void *beside)
{
    char *memory = managed_memory(used), *from = managed_memory(used), *nines = device_memory(100);
    REQUIRE(memory && from && nines && cudaMemset(nines, 9, 100) == 0);
    const std::vector<char> bytes(used / 4, 5);
    std::memset(from, 5, used);
    REQUIRE(stub_launch(memory, from, used, stream) == 0);
    Touch first{memory, bytes}, second{memory, touched(bytes, 1)};
    second.may = false;
    launch_function(touch, &first, stream);
    launch_function(touch, &second, stream);
    while (!second.begun)
        std::this_thread::yield();
    REQUIRE(stub_launch(memory + used / 4, nines, 100, beside) == 0);
    REQUIRE(cudaStreamSynchronize(beside) == 0);
    second.may = true;
    REQUIRE(cudaStreamSynchronize(stream) == 0 && first.right && second.right);
    std::vector<char> all(used, 5);
    std::memset(all.data(), 7, used / 4);
    std::memset(all.data() + used / 4, 9, 100);
    REQUIRE(has(memory, all));
    return HOLDS(cudaFree(memory) == 0 && cudaFree(from) == 0 && cudaFree(nines) == 0);
}

// The same in a graph, which is launched again and again.
bool function_in_a_graph(char *memory, char *from, void *captured, void *stream)
{
    char *to = managed_memory(used);
    graph_calls::Graph graph;
    Touch t{memory, random_bytes(used, 4)};
    REQUIRE(to && graph.destroy() == 0 && cudaStreamBeginCapture(captured, 0) == 0);
    REQUIRE(stub_launch(memory, from, used, captured) == 0);
    launch_function(touch, &t, captured);
    REQUIRE(stub_launch(to, memory, used, captured) == 0);
    REQUIRE(cudaStreamEndCapture(captured, &graph.handle) == 0);
    void *const exec = graph.made();
    REQUIRE(exec && graph.destroy() == 0);
    for (unsigned i = 0; i < 4; i++) {
        t.expected = random_bytes(used, 5 + i);
        std::memcpy(from, t.expected.data(), used);
        REQUIRE(graph_calls::launch(exec, stream) == 0);
        REQUIRE(cudaStreamSynchronize(stream) == 0 && t.right);
        REQUIRE(has(to, touched(t.expected, 1)) && has(memory, touched(t.expected, 1)));
    }
    return HOLDS(cudaFree(to) == 0 && graph_calls::run("cudaGraphExecDestroy", exec) == 0);
}

// A function that has changed managed memory, and goes on.
struct Stays {
    char *memory;
    std::atomic<bool> touched{false}, may_end{false};
};

void touch_and_stay(void *argument)
{
    auto *s = static_cast<Stays *>(argument);
    s->memory[0] = 's';
    s->touched = true;
    while (!s->may_end)
        std::this_thread::yield();
}

void note_call(void *argument)
{
    *static_cast<std::atomic<bool> *>(argument) = true;
}

// A child's own function, when no more threads begin. No thread of the child's has had managed
// memory for a function.
[[noreturn]] void call_in_child()
{
    alarm(20 * static_cast<unsigned>(patience_times()));
    void *stream = nullptr;
    std::atomic<bool> called{false};
    bool good = cudaStreamCreate(&stream) == 0;
    stub_remote()->hold_stream(reinterpret_cast<std::uintptr_t>(stream));
    launch_function(note_call, &called, stream);
    good = good && deny_call(SYS_clone, EAGAIN) && deny_call(SYS_clone3, EAGAIN);
    stub_remote()->hold_stream(0);
    good = good && cudaStreamSynchronize(stream) == 0 && called && device_memory();
    std::_Exit(good ? 0 : 1);
}

} // namespace

// A fork while a function has managed memory, and functions of the child.
bool managed_in_function_and_child()
{
    void *stream = nullptr;
    char *memory = managed_memory(used), *from = managed_memory(used);
    REQUIRE(memory && from && cudaStreamCreate(&stream) == 0);
    std::memset(from, 'f', used);
    REQUIRE(stub_launch(memory, from, used, stream) == 0);
    Stays s{memory};
    launch_function(touch_and_stay, &s, stream);
    while (!s.touched)
        std::this_thread::yield();
    const pid_t child = fork();
    if (!child)
        call_in_child();
    int status = -1;
    const bool waited = waitpid(child, &status, 0) == child;
    s.may_end = true;
    REQUIRE(cudaStreamSynchronize(stream) == 0 && waited && status == 0);
    REQUIRE(memory[0] == 's' && memory[1] == 'f' && memory[used - 1] == 'f');
    return HOLDS(cudaFree(memory) == 0 && cudaFree(from) == 0 && cudaStreamDestroy(stream) == 0);
}

// The first managed memory of the process, which a function touches that was called before.
bool managed_made_beside_function()
{
    void *stream = nullptr, *beside = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&stream, 1) == 0);
    REQUIRE(cudaStreamCreateWithFlags(&beside, 1) == 0);
    Touch t{nullptr, random_bytes(used, 9)};
    t.may = false;
    launch_function(touch, &t, stream);
    while (!t.begun)
        std::this_thread::yield();
    char *memory = managed_memory(used), *from = managed_memory(used);
    REQUIRE(memory && from);
    std::memcpy(from, t.expected.data(), used);
    REQUIRE(stub_launch(memory, from, used, beside) == 0 && cudaStreamSynchronize(beside) == 0);
    REQUIRE(stub_launch(from, memory, 1, stream) == 0); // behind the function
    t.memory = memory;
    t.may = true;
    REQUIRE(cudaStreamSynchronize(stream) == 0 && t.right);
    REQUIRE(has(memory, touched(t.expected, 1)) && from[0] == memory[0]);
    return HOLDS(cudaFree(memory) == 0 && cudaFree(from) == 0 && cudaStreamDestroy(stream) == 0 &&
                 cudaStreamDestroy(beside) == 0);
}

// The first function of the process comes into a stream for which the legacy stream waits, while
// another thread gives managed memory to the device in the order of the legacy stream.
bool managed_given_beside_first_function()
{
    void *blocking = nullptr, *beside = nullptr, *held = nullptr, *event = nullptr;
    char *device = device_memory(2);
    REQUIRE(device && cudaStreamCreate(&blocking) == 0 && cudaEventCreate(&event) == 0);
    for (void **stream : {&beside, &held})
        REQUIRE(cudaStreamCreateWithFlags(stream, 1) == 0);
    stub_remote()->hold_stream(reinterpret_cast<std::uintptr_t>(held));
    REQUIRE(stub_launch(device, device + 1, 1, held) == 0 && cudaEventRecord(event, held) == 0);
    char *memory = managed_memory(used); // the device has not had it, so it can be written
    REQUIRE(memory);
    Touch t{memory, random_bytes(used, 10)};
    std::memcpy(memory, t.expected.data(), used);
    REQUIRE(cudaStreamWaitEvent(blocking, event, 0) == 0);
    std::atomic<pid_t> giver{0}, enqueuer{0};
    int given = -1;
    alarm(20 * static_cast<unsigned>(patience_times()));
    std::thread gives([&] {
        giver = gettid();
        given = stub_launch(device, memory, 1, beside);
        giver = -1;
    });
    await_sleep(giver);
    REQUIRE(giver > 0);
    std::thread enqueues([&] {
        enqueuer = gettid();
        launch_function(touch, &t, blocking);
        enqueuer = -1;
    });
    await_sleep(enqueuer);
    stub_remote()->release_stream(reinterpret_cast<std::uintptr_t>(held));
    gives.join();
    enqueues.join();
    REQUIRE(given == 0 && cudaStreamSynchronize(blocking) == 0 && t.right);
    REQUIRE(cudaStreamSynchronize(beside) == 0 && has(memory, touched(t.expected, 1)));
    for (void *stream : {blocking, beside, held})
        REQUIRE(cudaStreamDestroy(stream) == 0);
    return HOLDS(cudaFree(memory) == 0 && cudaFree(device) == 0 && cudaEventDestroy(event) == 0);
}

namespace
{

// The first launch of the process, while a stream waits for a function. CUDA loads the kernel then.
bool is_touched_beside_load(bool with_attribute)
{
    void *stream = nullptr;
    char *memory = managed_memory(used), *device = device_memory(2 * used);
    Touch t{memory, std::vector<char>(used, 4)};
    REQUIRE(memory && device && cudaStreamCreateWithFlags(&stream, 1) == 0);
    REQUIRE(cudaMemset(memory, 4, used) == 0 && cudaMemset(device, 5, 2 * used) == 0);
    alarm(30 * patience_times());
    launch_function(touch, &t, stream);
    std::size_t n = used;
    void *to = device, *from = device + used, *arguments[] = {&to, &from, &n};
    const LaunchAttribute early = {6, {1}};
    const LaunchConfig config = {{1, 1, 1}, {1, 1, 1}, 0, nullptr, &early, with_attribute};
    REQUIRE(preloaded<LaunchAs>("cudaLaunchKernelExC")(&config, &stub_kernel, arguments) == 0);
    REQUIRE(cudaDeviceSynchronize() == 0 && t.right && has(memory, touched(t.expected, 1)));
    return HOLDS(cudaFree(memory) == 0 && cudaFree(device) == 0 && cudaStreamDestroy(stream) == 0);
}

} // namespace

bool managed_in_function_beside_load()
{
    return is_touched_beside_load(false);
}

bool managed_in_function_beside_load_with_attribute()
{
    return is_touched_beside_load(true);
}

// Cases of their own, since a copy that gets no further would end in a hang.
bool is_touched_before(Work work)
{
    void *stream = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&stream, 1) == 0);
    return HOLDS(function_before(work, stream) && cudaStreamDestroy(stream) == 0);
}

bool managed_in_function_before_copies()
{
    return is_touched_before(copies_to_host);
}

bool managed_in_function_before_copies_to_device()
{
    return is_touched_before(copies_to_device);
}

bool managed_in_function_before_kernels()
{
    return is_touched_before(kernels);
}

bool managed_in_function()
{
    void *blocking = nullptr, *free_of = nullptr;
    REQUIRE(cudaStreamCreate(&blocking) == 0 && cudaStreamCreateWithFlags(&free_of, 1) == 0);
    char *memory = managed_memory(used);
    void *of_kernels = nullptr, *pinned = nullptr;
    REQUIRE(memory && cudaHostAlloc(&of_kernels, used, 2) == 0); // cudaHostAllocMapped
    REQUIRE(cudaMallocHost(&pinned, used) == 0);
    void *const threads_own = reinterpret_cast<void *>(2);
    for (void *stream : {blocking, free_of, static_cast<void *>(nullptr), threads_own}) {
        REQUIRE(function_between_kernels(memory, stream, 1));
        REQUIRE(function_between_kernels(static_cast<char *>(of_kernels), stream, 512));
        REQUIRE(function_between_kernels(static_cast<char *>(pinned), stream, 3, false));
        REQUIRE(function_between_kernels(static_cast<char *>(pinned), stream, 24, false));
    }
    REQUIRE(function_between_kernels(memory, blocking, 24));
    auto *const of_host = static_cast<char *>(of_kernels), *const more =
                                                               static_cast<char *>(pinned);
    REQUIRE(function_in_a_graph(memory, more, free_of, blocking));
    REQUIRE(function_in_a_graph(of_host, memory, blocking, free_of));
    REQUIRE(function_in_a_graph(more, of_host, free_of, nullptr));
    REQUIRE(function_beside_waits(blocking, true) && function_beside_waits(free_of, false));
    REQUIRE(function_before_copy_on_host(blocking, nullptr));
    REQUIRE(function_before_copy_on_host(free_of, free_of));
    REQUIRE(function_beside_kernels(blocking, free_of) &&
            function_beside_kernels(free_of, blocking));
    return HOLDS(cudaFree(memory) == 0 && cudaFreeHost(of_kernels) == 0 &&
                 cudaFreeHost(pinned) == 0 && cudaStreamDestroy(blocking) == 0 &&
                 cudaStreamDestroy(free_of) == 0 && cudaGetLastError() == 0);
}
