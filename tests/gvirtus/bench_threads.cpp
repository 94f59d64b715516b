// SPDX-License-Identifier: LGPL-2.1-or-later
//
// What calls that are answered early cost several threads, each with a stream of its own, against a
// back end that does nothing:
//
//   bench-threads PLUGIN.so PROVIDER [THREADS] [CALLS]
//
// Prints, for launches and for calls of a library, the mean time of a call, in microseconds, until
// it has returned, and until all have run.
#include "tests/doubles/gvirtus/world.h"
#include "tests/gvirtus/scene.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace
{

using Clock = std::chrono::steady_clock;

void must(int rc, const char *what)
{
    if (!rc)
        return;
    std::fprintf(stderr, "bench-threads: %s: error %d\n", what, rc);
    std::exit(1);
}

struct Cost {
    double returned = 0, run = 0;
};

double us_since(Clock::time_point begin)
{
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

Cost thread_of(std::uint16_t port, unsigned index, unsigned calls, bool library,
               std::atomic<unsigned> *ready, unsigned threads)
{
    auto over = connected(port);
    FrontEnd front(over.get());
    const std::uint64_t stream = 100 + index, handle = 1 + index;
    const Body of_stream = Body().u64(stream);
    const Body gemm = Body().u64(handle).u64(7);
    const Body launch = world_launch(KERNEL, 32, stream, 1);
    const auto one = [&] {
        must(library ? front.call("cublasSgemm_v2", gemm) : front.call("cudaLaunchKernel", launch),
             "a call");
    };
    if (library)
        must(front.call("cublasSetStream_v2", Body().u64(handle).u64(stream)), "a stream");
    for (int i = 0; i < 3; i++)
        one();
    must(front.call("cudaStreamSynchronize", of_stream), "a wait");
    for (++*ready; *ready < threads;)
        std::this_thread::yield();
    Cost cost;
    const auto begin = Clock::now();
    for (unsigned i = 0; i < calls; i++)
        one();
    cost.returned = us_since(begin) / calls;
    must(front.call("cudaStreamSynchronize", of_stream), "a wait");
    cost.run = us_since(begin) / calls;
    return cost;
}

void measure(const char *what, std::uint16_t port, unsigned threads, unsigned calls, bool library)
{
    std::vector<std::thread> all;
    std::vector<Cost> costs(threads);
    std::atomic<unsigned> ready{0};
    for (unsigned i = 0; i < threads; i++)
        all.emplace_back(
            [&, i] { costs[i] = thread_of(port, i, calls, library, &ready, threads); });
    Cost mean;
    for (unsigned i = 0; i < threads; i++) {
        all[i].join();
        mean.returned += costs[i].returned / threads;
        mean.run += costs[i].run / threads;
    }
    std::printf("%-8s %u threads %8.2f %8.2f\n", what, threads, mean.returned, mean.run);
}

} // namespace

int main(int argc, char **argv)
{
    if (argc < 3)
        return std::fprintf(stderr, "usage: bench-threads PLUGIN.so PROVIDER [THREADS] [CALLS]\n"),
               2;
    const auto threads = static_cast<unsigned>(argc > 3 ? std::atoi(argv[3]) : 4);
    const auto calls = static_cast<unsigned>(argc > 4 ? std::atoi(argv[4]) : 20000);
    scene_open(argv[1], argv[2]);
    {
        const BackEnd back("", [](auto listening) {
            serve_clients(
                listening,
                [] {
                    return [](const std::string &, const std::vector<char> &, Body *) { return 0; };
                },
                true);
        });
        for (const bool library : {false, true})
            measure(library ? "library" : "launch", back.port, threads, calls, library);
    }
    return scene_close();
}
