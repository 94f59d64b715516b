// SPDX-License-Identifier: LGPL-2.1-or-later
//
// What calls cost apart from the GPU's part: an application with the preload before a libcudart
// that does what GVirtuS's does, and a back end with a GPU that does nothing.
//
//   bench-overhead PLUGIN.so PRELOAD.so LIBCUDART.so shm|tcp [CALLS]
//
// with IBX_LIBCUDA naming libidle-cuda.so, and perhaps IBX_TEST_CUDART naming the runtime's double,
// by which the back end makes short calls then. A line for each call: microseconds, the median and
// the least of CALLS. Page-locked memory, if nothing else is said. Both ends poll as if there were
// 16 processors, or PROCESSORS; `chrt -f 20` keeps other programs off two of them. LIMIT=d65536
// makes only one kind of call, to count its instructions; those of graphs (graph1, graph200) are
// made only then, and need libcuda-double.so, whose GPU does run kernels.
#include "tests/gvirtus/bench_measure.h"
#include "tests/gvirtus/remote.h"
#include "tests/gvirtus/scene.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <filesystem>
#include <sched.h>
#include <unistd.h>

// Called in place of the C library's, also by the plugin.
extern "C" __attribute__((visibility("default"))) int sched_getaffinity(pid_t, std::size_t n,
                                                                        cpu_set_t *set) noexcept
{
    CPU_ZERO_S(n, set);
    const char *said = std::getenv("PROCESSORS");
    const std::size_t processors = said ? std::strtoul(said, nullptr, 10) : 16;
    for (std::size_t i = 0; i < processors; i++)
        CPU_SET_S(i, n, set);
    return 0;
}

namespace
{

template <typename F> F symbol(const char *name)
{
    return reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));
}

struct Calls {
    int (*copy)(void *, const void *, std::size_t, int);
    int (*launch)(void *, const void *, std::size_t, void *);
    int (*synchronize)(), (*wait)(void *), (*query)(void *);
    int (*record)(void *, void *), (*allocate)(void **, std::size_t), (*give_back)(void *);
    int (*launch_graph)(void *, void *);
    char *host, *device;
    std::vector<char> pageable;
    void *event, *graphs[2]; // of 1 and of 200 kernels
};

constexpr std::size_t bytes = 1 << 20;
constexpr unsigned many = 200;

int launch(const Calls &c)
{
    return c.launch(c.device, c.device + 64, 8, nullptr);
}

int launches_and_copy(const Calls &c)
{
    int rc = 0;
    for (unsigned i = 0; i < many; i++)
        rc |= launch(c);
    return rc | c.copy(c.host, c.device, 4, 2);
}

int allocation(const Calls &c)
{
    void *made = nullptr;
    const int rc = c.allocate(&made, 1 << 16);
    return rc | c.give_back(made);
}

template <int which> int graph(const Calls &c)
{
    return c.launch_graph(c.graphs[which], nullptr) | c.wait(nullptr);
}

template <int kind, int n> int copied(const Calls &c)
{
    return kind == 1 ? c.copy(c.device, c.host, n, kind) : c.copy(c.host, c.device, n, kind);
}

template <int n> int from_pageable(const Calls &c)
{
    return c.copy(c.device, c.pageable.data(), n, 1);
}

// What is called, by the name for LIMIT; after each of its calls that return early, `row` of them
// are followed by a wait, which is part of their mean.
struct Kind {
    const char *name, *what;
    int (*call)(const Calls &c);
    unsigned row;
};

const Kind kinds[] = {
    {"d4", "from the device, 4", copied<2, 4>, 1},
    {"d65536", "from the device, 65536", copied<2, 65536>, 1},
    {"h4", "to the device, 4", copied<1, 4>, 1},
    {"h65536", "to the device, 65536", copied<1, 65536>, 1},
    {"h1048576", "to the device, 1048576", copied<1, 1048576>, 1},
    {"p4", "pageable to it, 4", from_pageable<4>, 1},
    {"p65536", "pageable to it, 65536", from_pageable<65536>, 1},
    {"p1048576", "pageable to it, 1048576", from_pageable<1048576>, 1},
    {"s", "cudaDeviceSynchronize", [](const Calls &c) { return c.synchronize(); }, 1},
    {"launch", "launch, in a row", launch, many},
    {"wait", "launch + wait", [](const Calls &c) { return launch(c) | c.wait(nullptr); }, 1},
    {"on-host", "launch + copy on host",
     [](const Calls &c) { return launch(c) | c.copy(c.host, c.host + 64, 64, 0); }, 1},
    {"launches", "200 launches + 4 B back", launches_and_copy, 1},
    {"record", "cudaEventRecord", [](const Calls &c) { return c.record(c.event, nullptr); }, many},
    {"query", "cudaStreamQuery, idle", [](const Calls &c) { return c.query(nullptr); }, 1},
    {"asked", "launch + cudaStreamQuery",
     [](const Calls &c) { return launch(c) | (c.query(nullptr) % 600); }, 1},
    {"allocate", "cudaMalloc + cudaFree", allocation, 1},
    {"graph1", "graph of 1 + wait", graph<0>, 1},
    {"graph200", "graph of 200 + wait", graph<1>, 1},
};

// One function, so that a profiler can be given its name.
__attribute__((noinline)) bool measured(const Calls &c, const Kind &kind, std::vector<double> *all)
{
    bool good = true;
    for (double &time : *all) {
        const double began = now();
        int rc = 0;
        for (unsigned i = 0; i < kind.row; i++)
            rc |= kind.call(c);
        if (kind.row > 1)
            rc |= c.synchronize();
        time = (now() - began) / kind.row;
        good = good && !rc;
    }
    return good;
}

// A graph of so many kernels, captured.
void *graph_of(const Calls &c, unsigned kernels)
{
    void *stream = nullptr, *made = nullptr, *exec = nullptr;
    auto *instantiate =
        symbol<int (*)(void **, void *, unsigned long long)>("cudaGraphInstantiate");
    int rc = symbol<int (*)(void **)>("cudaStreamCreate")(&stream);
    rc = rc ? rc : symbol<int (*)(void *, int)>("cudaStreamBeginCapture")(stream, 0);
    for (unsigned i = 0; i < kernels && !rc; i++)
        rc = c.launch(c.device, c.device + 64, 8, stream);
    rc = rc ? rc : symbol<int (*)(void *, void **)>("cudaStreamEndCapture")(stream, &made);
    rc = rc ? rc : instantiate(&exec, made, 0);
    if (rc)
        std::fprintf(stderr, "no graph can be captured: CUDA error %d\n", rc);
    return exec;
}

bool prepared(Calls &c)
{
    auto *pinned = symbol<int (*)(void **, std::size_t)>("cudaMallocHost");
    auto *event = symbol<int (*)(void **)>("cudaEventCreate");
    void *host = nullptr, *device = nullptr;
    if (c.allocate(&device, bytes) || pinned(&host, bytes) || event(&c.event))
        return false;
    c.host = static_cast<char *>(host);
    c.device = static_cast<char *>(device);
    std::memset(host, 1, bytes);
    c.pageable.assign(bytes, 1);
    return true;
}

int application(const char *cudart, std::size_t calls)
{
    if (!dlopen(cudart, RTLD_NOW | RTLD_GLOBAL)) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    Calls c{symbol<decltype(Calls::copy)>("cudaMemcpy"),
            symbol<decltype(Calls::launch)>("stub_launch"),
            symbol<decltype(Calls::synchronize)>("cudaDeviceSynchronize"),
            symbol<decltype(Calls::wait)>("cudaStreamSynchronize"),
            symbol<decltype(Calls::query)>("cudaStreamQuery"),
            symbol<decltype(Calls::record)>("cudaEventRecord"),
            symbol<decltype(Calls::allocate)>("cudaMalloc"),
            symbol<decltype(Calls::give_back)>("cudaFree"),
            symbol<decltype(Calls::launch_graph)>("cudaGraphLaunch"),
            nullptr,
            nullptr,
            {},
            nullptr,
            {}};
    if (!prepared(c))
        return 1;
    const char *limit = std::getenv("LIMIT");
    for (const Kind &kind : kinds) {
        const bool of_graph = !std::strncmp(kind.name, "graph", 5);
        if (limit ? std::strcmp(limit, kind.name) != 0 : of_graph)
            continue;
        if (of_graph && (!(c.graphs[0] = graph_of(c, 1)) || !(c.graphs[1] = graph_of(c, many))))
            return 1;
        const std::size_t rounds = std::max<std::size_t>(calls / kind.row, 50);
        std::vector<double> first(std::min<std::size_t>(rounds, 200)), all(rounds);
        if (!measured(c, kind, &first) || !measured(c, kind, &all)) {
            std::fprintf(stderr, "%s has failed\n", kind.what);
            return 1;
        }
        std::sort(all.begin(), all.end());
        std::printf("%-26s %8.3f %8.3f\n", kind.what, all[all.size() / 2] * 1e6, all[0] * 1e6);
    }
    std::fflush(stdout);
    _exit(0); // the destructors of GVirtuS's front ends are not to be relied on
}

} // namespace

int main(int argc, char **argv)
{
    if (argc == 4 && !std::strcmp(argv[1], "--application"))
        return application(argv[2], std::strtoul(argv[3], nullptr, 10));
    if (argc < 5) {
        std::fputs("usage: bench-overhead PLUGIN PRELOAD LIBCUDART shm|tcp [CALLS]\n", stderr);
        return 2;
    }
    scene_open(argv[1], argv[4]);
    processes = one_process;
    BackEnd back("rdma.gpu : on\n", [](auto listening) { cuda_back_end_child(listening, true); });
    const pid_t serving = back.serving();
    const pid_t child = spawn([&]() -> int {
        setenv("LD_PRELOAD", argv[2], 1);
        setenv("STUB_PLUGIN", argv[1], 1);
        setenv("STUB_BACK_END", std::to_string(serving).c_str(), 1);
        setenv("STUB_PORT", std::to_string(back.port).c_str(), 1);
        setenv("STUB_PROVIDER", argv[4], 1);
        const std::string self = std::filesystem::read_symlink("/proc/self/exe");
        execl(self.c_str(), argv[0], "--application", argv[3], argc > 5 ? argv[5] : "20000",
              nullptr);
        return 127;
    });
    const int result = result_of(child);
    back.end();
    return scene_close() || result;
}
