// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Random CUDA programs, for the same bytes native and under GVirtuS (tools/bench/gpu --gvirtus):
//
//   random-programs PROGRAMS [--seed N] [--threads N] [--symbols] [--calls] [--graphs]
//
// Copies of all kinds between kernels, on streams of their own, from pinned and pageable memory
// that changes as soon as CUDA allows it. Prints a line for each program, with a hash of all that
// has come back and of what each call has answered; the lines are the same wherever the programs
// are right.
//
//   --threads N  at once, each with its programs, streams and memory (default 1)
//   --symbols    cudaMemcpyToSymbol, too: not every GVirtuS can do that
//   --calls      mostly calls that need no answer: launches in a row, events between streams,
//                cudaMemsetAsync, wrong configurations, cudaGetLastError; captures, of one thread
//   --graphs     with these: captures of copies from and to the host, of set memory and of
//   functions,
//                and graphs made node by node, which only libibx-frontend.so has
//
// Built by nvcc -cudart shared --no-compress -Xlinker -z,lazy, which is what GVirtuS takes. Kernels
// are launched by cudaLaunchKernel: the <<<>>> of nvcc 13 calls functions that no GVirtuS has, and
// only libibx-frontend.so.
//
// With --default-stream per-thread as well it calls what such programs call. Copies that wait then
// wait for the thread's stream alone, and so all slots use that one.
#include "random_program.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace
{

constexpr unsigned SLOTS = 3; // each with a stream; the first one's is the default stream
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
constexpr bool ALL_IN_DEFAULT_STREAM = true;
#else
constexpr bool ALL_IN_DEFAULT_STREAM = false;
#endif
constexpr std::size_t MOST = 3u << 20; // bytes of a slot's memory, a multiple of 4
constexpr unsigned TABLE = 1021;       // words
constexpr unsigned OPERATIONS_LEAST = 8, OPERATIONS_MOST = 28;

__device__ std::uint32_t table[TABLE];

__global__ void mix(std::uint32_t *words, std::size_t n, std::uint32_t seed)
{
    std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x;
    if (i < n)
        words[i] = words[i] * 2654435761u + seed + table[(i + seed) % TABLE];
}

__global__ void combine(std::uint32_t *to, const std::uint32_t *from, std::size_t n,
                        std::uint32_t times)
{
    std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x;
    if (i >= n)
        return;
    std::uint32_t x = to[i];
    for (std::uint32_t t = 0; t < times; t++) // some take their time
        x = x * 747796405u + from[(i + t) % n];
    to[i] = x;
}

struct Slot {
    char *device, *pinned,
        *pageable; // of MOST bytes; the host's upper halves are for what comes back
    cudaStream_t stream;
    cudaEvent_t event;
    cudaStream_t captured[2]; // none waits for the legacy stream, nor it for them
};

struct Program : RandomProgram {
    std::vector<Slot> &slots;
    bool symbols, calls, graphs;
    bool alone; // there is one thread: a capture ends when another one waits for the device
    void run_all();
    void operation();
    void copy(Slot &slot, bool async, bool pinned);
    void copy_rows(Slot &slot);
    void launch_mix(Slot &slot) { launch_mix(slot, slot.stream); }
    void launch_mix(Slot &slot, cudaStream_t stream);
    void launch_combine(Slot &to, Slot &from);
    void within(Slot &slot);
    void symbol();
    void launches(Slot &slot);
    void launch_refused(Slot &slot, cudaStream_t stream);
    void refused(Slot &slot);
    void capture(Slot &slot);
    void there_and_back(Slot &slot);
    void capture_calls(Slot &slot);
    void capture_of_host(Slot &slot);
    void launch_graph(Slot &slot, cudaGraphExec_t exec);
    void graph_of_nodes(Slot &slot);
    void ordered(Slot &to, Slot &from);
    void call();
};

void Program::copy(Slot &slot, bool async, bool pinned)
{
    std::size_t n = length(MOST / 2), at = random.below(MOST - n + 1),
                from = random.below(MOST / 2 - n + 1);
    char *host = (pinned ? slot.pinned : slot.pageable) + from;
    if (random.below(2)) {
        if (pinned) // the GPU may be at it still
            answered(cudaStreamSynchronize(slot.stream));
        fill(host, n);
        answered(
            async ? cudaMemcpyAsync(slot.device + at, host, n, cudaMemcpyHostToDevice, slot.stream)
                  : cudaMemcpy(slot.device + at, host, n, cudaMemcpyHostToDevice));
        if (!pinned || !async) // it has been read
            fill(host, n < 64 ? n : 64);
        return;
    }
    host += MOST / 2;
    answered(async ? cudaMemcpyAsync(host, slot.device + at, n, cudaMemcpyDeviceToHost, slot.stream)
                   : cudaMemcpy(host, slot.device + at, n, cudaMemcpyDeviceToHost));
    if (async)
        answered(cudaStreamSynchronize(slot.stream));
    note(host, n);
}

// Of the rows alone: GVirtuS writes between them, too, in memory of the application.
void Program::copy_rows(Slot &slot)
{
    std::size_t width = 1 + random.below(3000), rows = 1 + random.below(100);
    std::size_t pitch = width + random.below(500), device_pitch = width + random.below(500);
    std::size_t at = random.below(MOST - device_pitch * rows);
    if (random.below(2)) {
        fill(slot.pageable, pitch * rows);
        answered(cudaMemcpy2D(slot.device + at, device_pitch, slot.pageable, pitch, width, rows,
                              cudaMemcpyHostToDevice));
        return;
    }
    char *back = slot.pageable + MOST / 2;
    answered(cudaMemcpy2D(back, pitch, slot.device + at, device_pitch, width, rows,
                          cudaMemcpyDeviceToHost));
    for (std::size_t row = 0; row < rows; row++)
        note(back + row * pitch, width);
}

dim3 blocks_of(std::size_t n)
{
    return dim3(static_cast<unsigned>((n + 255) / 256));
}

void Program::launch_mix(Slot &slot, cudaStream_t stream)
{
    std::size_t n = 1 + length(MOST) / 4,
                at = random.below(MOST / 4 - n + 1 ? MOST / 4 - n + 1 : 1);
    n = n < MOST / 4 - at ? n : MOST / 4 - at;
    auto *words = reinterpret_cast<std::uint32_t *>(slot.device) + at;
    auto seed = static_cast<std::uint32_t>(random.next() >> 32);
    void *arguments[] = {&words, &n, &seed};
    answered(cudaLaunchKernel(reinterpret_cast<const void *>(mix), blocks_of(n), dim3(256),
                              arguments, 0, stream));
}

void Program::launch_combine(Slot &to, Slot &from)
{
    std::size_t n = 1 + length(MOST - 4) / 4;
    auto *words = reinterpret_cast<std::uint32_t *>(to.device);
    auto *others = reinterpret_cast<const std::uint32_t *>(from.device);
    std::uint32_t times = random.below(8) ? 3 : 3000;
    void *arguments[] = {&words, &others, &n, &times};
    if (&to == &from)
        return;
    answered(cudaStreamSynchronize(from.stream));
    answered(cudaLaunchKernel(reinterpret_cast<const void *>(combine), blocks_of(n), dim3(256),
                              arguments, 0, to.stream));
    answered(cudaStreamSynchronize(to.stream));
}

void Program::within(Slot &slot)
{
    std::size_t n = length(MOST / 2), at = random.below(MOST / 2 - n + 1),
                to = MOST / 2 + random.below(MOST / 2 - n + 1);
    if (random.below(2))
        answered(cudaMemcpyAsync(slot.device + to, slot.device + at, n, cudaMemcpyDeviceToDevice,
                                 slot.stream));
    else
        answered(cudaMemset(slot.device + to, static_cast<int>(random.below(256)), n));
}

void Program::symbol()
{
    std::uint32_t words[TABLE];
    std::size_t at = random.below(TABLE), n = 1 + random.below(TABLE - at);
    fill(reinterpret_cast<char *>(words), n * 4);
    answered(cudaDeviceSynchronize()); // kernels under way read it
    answered(cudaMemcpyToSymbol(table, words, n * 4, at * 4, cudaMemcpyHostToDevice));
}

// Each on what the one before has left, and none waits for another.
void Program::launches(Slot &slot)
{
    for (auto times = 1 + random.below(40); times; times--) {
        launch_mix(slot);
        if (!random.below(4))
            answered(cudaGetLastError());
    }
}

void Program::launch_refused(Slot &slot, cudaStream_t stream)
{
    auto *words = reinterpret_cast<std::uint32_t *>(slot.device);
    std::size_t n = 1;
    std::uint32_t seed = 0;
    void *arguments[] = {&words, &n, &seed};
    answered(cudaLaunchKernel(reinterpret_cast<const void *>(mix), dim3(1), dim3(5000), arguments,
                              0, stream));
}

// By the call itself, and no other call says so.
void Program::refused(Slot &slot)
{
    launch_refused(slot, slot.stream);
    if (random.below(2))
        answered(cudaPeekAtLastError());
    answered(cudaGetLastError());
    answered(cudaGetLastError());
}

// What one stream does behind an event is done to what another one has left there.
void Program::ordered(Slot &to, Slot &from)
{
    auto *words = reinterpret_cast<std::uint32_t *>(to.device);
    auto *others = reinterpret_cast<const std::uint32_t *>(from.device);
    std::size_t n = 1000 + random.below(100000);
    std::uint32_t times = random.below(4) ? 3 : 300;
    void *arguments[] = {&words, &others, &n, &times};
    if (&to == &from)
        return;
    launch_mix(from);
    answered(cudaEventRecord(from.event, from.stream));
    answered(cudaStreamWaitEvent(to.stream, from.event, 0));
    answered(cudaLaunchKernel(reinterpret_cast<const void *>(combine), blocks_of(n), dim3(256),
                              arguments, 0, to.stream));
    answered(cudaEventRecord(to.event, to.stream)); // nothing overtakes what is read
    answered(cudaStreamWaitEvent(from.stream, to.event, 0));
}

// Of the application's, in a graph: it changes what a later copy reads, and that has to be pinned.
// Of pageable memory CUDA's driver reads up to 1 MiB, more or less, when a graph is launched.
void change(void *memory)
{
    auto *bytes = static_cast<unsigned char *>(memory);
    for (unsigned i = 0; i < 4096; i++)
        bytes[i] = static_cast<unsigned char>(bytes[i] * 5 + i);
}

// A call whose memory is the host's.
void Program::capture_of_host(Slot &slot)
{
    std::size_t n = length(MOST / 2), at = random.below(MOST - n + 1),
                from = random.below(MOST / 2 - n + 1);
    cudaStream_t stream = slot.captured[0];
    char *host = (random.below(2) ? slot.pinned : slot.pageable) + from;
    switch (random.below(4)) {
    case 0:
        return answered(cudaMemcpyAsync(slot.device + at, host, n, cudaMemcpyHostToDevice, stream));
    case 1:
        return answered(
            cudaMemcpyAsync(host + MOST / 2, slot.device + at, n, cudaMemcpyDefault, stream));
    case 2:
        return answered(
            cudaMemsetAsync(slot.device + at, static_cast<int>(random.below(256)), n, stream));
    default:
        return answered(cudaLaunchHostFunc(stream, change, slot.pinned));
    }
}

// One behind the other, between bytes of the host that change from launch to launch.
void Program::graph_of_nodes(Slot &slot)
{
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    cudaGraphNode_t node = nullptr, before = nullptr;
    answered(cudaStreamSynchronize(slot.stream));
    answered(cudaGraphCreate(&graph, 0));
    for (auto times = 1 + random.below(8); times; times--) {
        std::size_t n = length(MOST / 2), at = random.below(MOST - n + 1) / 4 * 4, words = n / 4;
        auto *to = reinterpret_cast<std::uint32_t *>(slot.device + at);
        auto seed = static_cast<std::uint32_t>(random.next() >> 32);
        void *arguments[] = {&to, &words, &seed};
        cudaKernelNodeParams kernel{};
        kernel.func = reinterpret_cast<void *>(mix);
        kernel.gridDim = dim3(static_cast<unsigned>(words / 256 + 1));
        kernel.blockDim = dim3(256);
        kernel.kernelParams = arguments;
        cudaMemsetParams set{};
        set.dst = slot.device + at, set.elementSize = 1, set.value = seed & 255;
        set.width = n, set.height = 1;
        const cudaHostNodeParams host{change, slot.pinned};
        const cudaGraphNode_t *behind = before ? &before : nullptr;
        const std::size_t count = before != nullptr;
        switch (random.below(6)) {
        case 0:
            answered(cudaGraphAddMemcpyNode1D(&node, graph, behind, count, slot.device + at,
                                              seed & 1 ? slot.pinned : slot.pageable, n,
                                              cudaMemcpyHostToDevice));
            break;
        case 1:
            answered(cudaGraphAddMemcpyNode1D(&node, graph, behind, count, slot.pinned + MOST / 2,
                                              slot.device + at, n, cudaMemcpyDeviceToHost));
            break;
        case 2:
            answered(cudaGraphAddMemsetNode(&node, graph, behind, count, &set));
            break;
        case 3:
            answered(cudaGraphAddHostNode(&node, graph, behind, count, &host));
            break;
        default:
            answered(cudaGraphAddKernelNode(&node, graph, behind, count, &kernel));
        }
        before = node;
    }
    answered(cudaGraphInstantiate(&exec, graph, 0));
    answered(cudaGraphDestroy(graph));
    for (auto times = 1 + random.below(3); times; times--)
        launch_graph(slot, exec);
    answered(cudaGraphExecDestroy(exec));
}

// The host's memory is what it is when the graph gets there.
void Program::launch_graph(Slot &slot, cudaGraphExec_t exec)
{
    if (graphs) {
        answered(cudaStreamSynchronize(slot.stream));
        fill(slot.pageable, 5000);
        fill(slot.pinned, 5000);
    }
    answered(cudaGraphLaunch(exec, slot.stream));
    if (!graphs)
        return;
    answered(cudaStreamSynchronize(slot.stream));
    note(slot.pageable, MOST);
    note(slot.pinned, MOST);
}

// A launch in the other captured stream. In a capture that has ended already it would not be part
// of a graph but run at once, beside what the slot's stream does later.
void Program::there_and_back(Slot &slot)
{
    cudaStream_t first = slot.captured[0], second = slot.captured[1];
    const cudaError_t begun = cudaEventRecord(slot.event, first);
    answered(begun);
    if (begun)
        return;
    answered(cudaStreamWaitEvent(second, slot.event, 0));
    launch_mix(slot, second);
    answered(cudaEventRecord(slot.event, second));
    answered(cudaStreamWaitEvent(first, slot.event, 0));
}

// Captures a few calls, in two streams at times.
void Program::capture_calls(Slot &slot)
{
    cudaStream_t first = slot.captured[0];
    answered(cudaStreamBeginCapture(first, cudaStreamCaptureModeRelaxed));
    for (auto times = random.below(12); times; times--) {
        std::size_t n = length(MOST / 2), at = random.below(MOST / 2 - n + 1);
        if (graphs && random.below(2)) {
            capture_of_host(slot);
            continue;
        }
        switch (random.below(6)) {
        case 0:
            answered(cudaMemcpyAsync(slot.device + MOST / 2 + at, slot.device + at, n,
                                     cudaMemcpyDeviceToDevice, first));
            break;
        case 1:
            there_and_back(slot);
            break;
        case 2:
            launch_refused(slot, first);
            answered(cudaGetLastError());
            break;
        default:
            launch_mix(slot, first);
        }
    }
    if (random.below(8))
        return;
    answered(cudaStreamSynchronize(first)); // nobody may wait for it: that ends it
    answered(cudaGetLastError());
}

// The graph runs in the slot's stream, between other work there.
void Program::capture(Slot &slot)
{
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    answered(cudaStreamSynchronize(slot.stream));
    capture_calls(slot);
    const cudaError_t ended = cudaStreamEndCapture(slot.captured[0], &graph);
    answered(ended);
    if (ended) {
        answered(cudaGetLastError());
        answered(cudaEventRecord(slot.event, slot.stream)); // not the capture's any more
        return;
    }
    answered(cudaGraphInstantiate(&exec, graph, 0));
    for (auto times = random.below(4); times; times--) {
        launch_graph(slot, exec);
        if (random.below(2))
            launch_mix(slot);
    }
    answered(cudaStreamSynchronize(slot.stream));
    cudaGraphExecDestroy(exec); // G5's back end does not know it
    answered(cudaGraphDestroy(graph));
    answered(cudaEventRecord(slot.event, slot.stream));
    cudaGetLastError();
}

void Program::call()
{
    Slot &slot = slots[random.below(SLOTS)];
    std::size_t n = length(MOST), at = random.below(MOST - n + 1);
    switch (random.below(7)) {
    case 6:
        return !alone                      ? launches(slot)
               : graphs && random.below(2) ? graph_of_nodes(slot)
                                           : capture(slot);
    case 0:
        return refused(slot);
    case 1:
        return ordered(slot, slots[random.below(SLOTS)]);
    case 2:
        return answered(
            cudaMemsetAsync(slot.device + at, static_cast<int>(random.below(256)), n, slot.stream));
    case 3:
        answered(cudaEventRecord(slot.event, slot.stream));
        answered(cudaEventSynchronize(slot.event));
        answered(cudaEventQuery(slot.event));
        if (slot.stream) // the default stream asks about all others, too
            answered(cudaStreamQuery(slot.stream));
        return;
    default:
        return launches(slot);
    }
}

void Program::operation()
{
    if (calls && random.below(3))
        return call();
    Slot &slot = slots[random.below(SLOTS)];
    switch (random.below(12)) {
    case 0:
        return copy(slot, false, false);
    case 1:
        return copy(slot, false, true);
    case 2:
    case 3:
        return copy(slot, true, false);
    case 4:
    case 5:
        return copy(slot, true, true);
    case 6:
        return copy_rows(slot);
    case 7:
    case 8:
        return launch_mix(slot);
    case 9:
        return launch_combine(slot, slots[random.below(SLOTS)]);
    case 10:
        return within(slot);
    default:
        return symbols ? symbol() : answered(cudaStreamSynchronize(slot.stream));
    }
}

void Program::run_all()
{
    for (auto n = OPERATIONS_LEAST + random.below(OPERATIONS_MOST - OPERATIONS_LEAST); n; n--)
        operation();
    answered(cudaDeviceSynchronize());
    for (Slot &slot : slots) {
        std::size_t n = MOST / 2;
        answered(cudaMemcpy(slot.pageable + MOST / 2, slot.device, n, cudaMemcpyDeviceToHost));
        note(slot.pageable + MOST / 2, n);
        answered(cudaMemcpy(slot.pinned + MOST / 2, slot.device + n, n, cudaMemcpyDeviceToHost));
        note(slot.pinned + MOST / 2, n);
    }
}

void must(cudaError_t rc, const char *what)
{
    if (rc == cudaSuccess)
        return;
    std::fprintf(stderr, "random-programs: %s: error %d\n", what, static_cast<int>(rc));
    _exit(1);
}

Slot make_slot(bool default_stream)
{
    Slot slot{};
    must(cudaMalloc(reinterpret_cast<void **>(&slot.device), MOST), "cudaMalloc");
    must(cudaMemset(slot.device, 0, MOST), "cudaMemset");
    must(cudaMallocHost(reinterpret_cast<void **>(&slot.pinned), MOST), "cudaMallocHost");
    slot.pageable = static_cast<char *>(std::calloc(1, MOST));
    if (!default_stream)
        must(cudaStreamCreate(&slot.stream), "cudaStreamCreate");
    must(cudaEventCreate(&slot.event), "cudaEventCreate");
    for (cudaStream_t &stream : slot.captured)
        must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    return slot;
}

void run_thread(unsigned thread, unsigned programs, std::uint64_t seed, const Program &wish,
                std::string &lines)
{
    std::vector<Slot> slots;
    for (unsigned i = 0; i < SLOTS; i++)
        slots.push_back(make_slot(i == 0 || ALL_IN_DEFAULT_STREAM));
    for (unsigned i = 0; i < programs; i++) {
        char line[80];
        Program program{{Random{(seed * 1000003 + thread) * 1000003 + i + 1}},
                        slots,
                        wish.symbols,
                        wish.calls,
                        wish.graphs,
                        wish.alone};
        program.run_all();
        std::snprintf(line, sizeof(line), "%u %u %016llx\n", thread, i,
                      static_cast<unsigned long long>(program.hash));
        lines += line;
    }
}

} // namespace

int main(int argc, char **argv)
{
    unsigned programs = argc > 1 ? static_cast<unsigned>(std::strtoul(argv[1], nullptr, 10)) : 0,
             threads = 1;
    std::uint64_t seed = 1;
    std::vector<Slot> none;
    Program wish{{Random{1}}, none, false, false, false, false};
    for (int i = 2; i < argc; i++) {
        std::string option = argv[i];
        if (option == "--symbols")
            wish.symbols = true;
        else if (option == "--calls")
            wish.calls = true;
        else if (option == "--graphs")
            wish.calls = wish.graphs = true;
        else if (option == "--seed" && i + 1 < argc)
            seed = std::strtoull(argv[++i], nullptr, 10);
        else if (option == "--threads" && i + 1 < argc)
            threads = static_cast<unsigned>(std::strtoul(argv[++i], nullptr, 10));
        else
            programs = 0;
    }
    if (!programs || !threads) {
        std::fprintf(
            stderr,
            "usage: random-programs PROGRAMS [--seed N] [--threads N] [--symbols] [--calls] "
            "[--graphs]\n");
        return 2;
    }
    wish.alone = threads == 1;
    std::vector<std::string> lines(threads);
    std::vector<std::thread> others;
    for (unsigned i = 1; i < threads; i++)
        others.emplace_back(run_thread, i, programs, seed, std::cref(wish), std::ref(lines[i]));
    run_thread(0, programs, seed, wish, lines[0]);
    for (std::thread &other : others)
        other.join();
    for (const std::string &text : lines)
        std::fputs(text.c_str(), stdout);
    std::printf("DONE\n");
    std::fflush(stdout);
    _exit(0); // the destructors of GVirtuS's front ends are not to be relied on
}
