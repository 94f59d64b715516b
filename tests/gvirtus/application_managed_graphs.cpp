// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Copies in graphs from and to page-locked memory that kernels use, beside functions of the program
// that touch managed memory.
#include "tests/gvirtus/graph_calls.h"

#include <cstring>
#include <vector>

namespace managed_graphs
{

using namespace graph_calls;

namespace
{

constexpr std::size_t used = 100 * 1024;
void *const per_thread = reinterpret_cast<void *>(2); // cudaStreamPerThread

// The ways in which a program makes a copy a part of a graph.
enum class CopyCall { copy, rows, planes, node };

char *locked(std::size_t n = used)
{
    void *memory = nullptr;
    return cudaMallocHost(&memory, n) == 0 ? static_cast<char *>(memory) : nullptr;
}

// Two pages and more, of rows with gaps. The others keep their bytes.
Planes rows_of(char *to, const char *from, int kind)
{
    Planes p = {};
    p.from = {const_cast<char *>(from), 128, 128, used / 128};
    p.to = {to, 128, 128, used / 128};
    p.extent = {100, used / 128, 1};
    p.kind = kind;
    return p;
}

int copy_in(CopyCall way, char *to, const char *from, int kind, void *stream)
{
    if (way == CopyCall::copy)
        return cudaMemcpyAsync(to, from, used, kind, stream);
    const Planes p = rows_of(to, from, kind);
    return way == CopyCall::rows
               ? run<void *, std::size_t, const void *, std::size_t, std::size_t, std::size_t, int,
                     void *>("cudaMemcpy2DAsync", to, 128, from, 128, 100, used / 128, kind, stream)
               : run<const Planes *, void *>("cudaMemcpy3DAsync", &p, stream);
}

std::vector<char> after_copy(CopyCall way, const std::vector<char> &to,
                             const std::vector<char> &from)
{
    std::vector<char> after = from;
    for (std::size_t i = 0; i < to.size() && way != CopyCall::copy && way != CopyCall::node; i++)
        after[i] = i % 128 < 100 ? from[i] : to[i];
    return after;
}

// A function that the graph calls before the copy: it needs bytes that the device has, and changes
// them.
struct Adds {
    char *memory;
    char seen = 0;
};

void add(void *argument)
{
    auto *a = static_cast<Adds *>(argument);
    a->seen = a->memory[0];
    a->memory[0] = static_cast<char>(a->memory[0] + 1);
}

int call_in(void *stream, Adds *a)
{
    return run<void *, void (*)(void *), void *>("cudaLaunchHostFunc", stream, add, a);
}

// kernel: other -> memory; function: memory; copy: from -> to.
bool made(CopyCall way, char *memory, const char *other, Adds *a, char *to, const char *from,
          int kind, void **exec)
{
    Graph graph;
    void *captured = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&captured, 1) == 0 && graph.destroy() == 0);
    REQUIRE(cudaStreamBeginCapture(captured, 0) == 0);
    REQUIRE(stub_launch(memory, other, used, captured) == 0 && call_in(captured, a) == 0);
    if (way != CopyCall::node)
        REQUIRE(copy_in(way, to, from, kind, captured) == 0);
    REQUIRE(cudaStreamEndCapture(captured, &graph.handle) == 0);
    if (way == CopyCall::node) {
        Graph all;
        const Planes p = copy_of(to, from, used, kind);
        void *child = nullptr;
        REQUIRE((run<void **, void *, void *const *, std::size_t, void *>(
                    "cudaGraphAddChildGraphNode", &child, all.handle, nullptr, 0, graph.handle)) ==
                0);
        REQUIRE(all.add("cudaGraphAddMemcpyNode", {child}, &p) == 0 && graph.destroy() == 0);
        graph = all;
    }
    *exec = graph.made();
    return HOLDS(*exec && graph.destroy() == 0 && cudaStreamDestroy(captured) == 0);
}

struct Memory {
    char *managed, *other, *there, *back;
};

// The copy is within host memory: of this process's, or of the back end's.
bool copies_on_host(CopyCall way, const Memory &m, char *to, char *from, int kind, void *stream)
{
    void *exec = nullptr;
    Adds a{m.managed};
    REQUIRE(made(way, m.managed, m.other, &a, to, from, kind, &exec));
    for (unsigned i = 0; i < 2; i++) {
        const std::vector<char> bytes = random_bytes(used, 2 * i), before(used, 'b');
        std::memcpy(from, bytes.data(), used);
        std::memcpy(to, before.data(), used);
        std::memset(m.other, static_cast<char>(20 + i), used);
        REQUIRE(launch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
        REQUIRE(a.seen == static_cast<char>(20 + i) && m.managed[0] == a.seen + 1);
        REQUIRE(has(to, after_copy(way, before, bytes)));
    }
    return HOLDS(run("cudaGraphExecDestroy", exec) == 0);
}

// Copies of a graph, whose memory becomes managed before the graph is launched again.
bool managed_later(const Memory &m, CopyCall way, void *stream)
{
    void *captured = nullptr, *exec = nullptr;
    char *there = locked(), *back = locked(), *device = device_memory(used);
    Graph graph;
    REQUIRE(there && back && device && graph.destroy() == 0);
    REQUIRE(cudaStreamCreateWithFlags(&captured, 1) == 0);
    REQUIRE(cudaStreamBeginCapture(captured, 0) == 0);
    REQUIRE(copy_in(way, device, there, H2D, captured) == 0);
    REQUIRE(copy_in(way, back, device, D2H, captured) == 0);
    REQUIRE(cudaStreamEndCapture(captured, &graph.handle) == 0);
    REQUIRE((exec = graph.made()) && graph.destroy() == 0);
    for (unsigned i = 0; i < 3; i++) {
        const std::vector<char> bytes = random_bytes(used, 7 + i), before(used, 'c');
        std::memcpy(there, bytes.data(), used);
        std::memcpy(back, before.data(), used);
        REQUIRE(launch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
        REQUIRE(has(back, after_copy(way, before, bytes)));
        REQUIRE(stub_launch(m.managed, there, used, stream) == 0);
        REQUIRE(stub_launch(m.other, back, used, stream) == 0);
        REQUIRE(has(m.managed, bytes) && has(m.other, after_copy(way, before, bytes)));
    }
    REQUIRE(run("cudaGraphExecDestroy", exec) == 0 && cudaStreamDestroy(captured) == 0);
    return HOLDS(cudaFree(device) == 0 && cudaFreeHost(there) == 0 && cudaFreeHost(back) == 0);
}

bool all()
{
    void *stream = nullptr;
    Memory m{managed_memory(used), managed_memory(used), locked(), locked()};
    std::vector<char> pageable(used);
    REQUIRE(m.managed && m.other && m.there && m.back && cudaStreamCreate(&stream) == 0);
    // Kernels use it.
    REQUIRE(stub_launch(m.there, m.back, used, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    for (const CopyCall way : {CopyCall::copy, CopyCall::rows, CopyCall::planes, CopyCall::node})
        for (void *each : {stream, per_thread}) {
            REQUIRE(copies_on_host(way, m, m.there, m.back, DEFAULT, each));
            REQUIRE(copies_on_host(way, m, m.there, pageable.data(), DEFAULT, each));
            REQUIRE(copies_on_host(way, m, pageable.data(), m.back, DEFAULT, each));
        }
    REQUIRE(managed_later(m, CopyCall::copy, stream) && managed_later(m, CopyCall::planes, stream));
    REQUIRE(cudaFreeHost(m.there) == 0 && cudaFreeHost(m.back) == 0 && cudaFree(m.managed) == 0);
    return HOLDS(cudaFree(m.other) == 0 && cudaStreamDestroy(stream) == 0 &&
                 cudaGetLastError() == 0);
}

} // namespace
} // namespace managed_graphs

bool copies_of_managed_in_graphs()
{
    return managed_graphs::all();
}
