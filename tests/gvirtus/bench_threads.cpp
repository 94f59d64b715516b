// SPDX-License-Identifier: LGPL-2.1-or-later
//
// What calls that are answered early cost several threads, each with a stream of its own, against a
// back end that does nothing:
//
//   bench-threads PLUGIN.so PROVIDER [THREADS] [CALLS]
//
// Prints, for launches and for calls of a library, the mean time of a call, in microseconds, until
// it has returned, and until all have run.
//
//   bench-threads PLUGIN.so PROVIDER --watched [ROUNDS] [CALLS]
//
// As a program that trains on several GPUs: for each call of a library, which takes the back end 70
// us, a thread records two events, which it has made before, and another thread queries and
// destroys them, under a lock that the first one needs. Prints the same times: median, least and
// most of the rounds.
#include "frontend-glue/preload/attach_table.h"
#include "tests/doubles/gvirtus/world.h"
#include "tests/gvirtus/scene.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <mutex>
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

// ------------------------------------------------------------------------------ with a watchdog

const ibx_frontend_calls *direct;

constexpr int NOT_READY = 600;
constexpr std::chrono::microseconds LIBRARY_US(70);

struct Work {
    std::uint64_t begun, done; // events
};

struct Watched {
    std::mutex lock;
    std::list<Work> works;
    bool ends = false;
};

std::uint64_t make(FrontEnd *front, const char *name)
{
    std::uint64_t made = 0;
    must(front->call(name, Body()), name);
    if (front->out.size() == 8)
        std::memcpy(&made, front->out.data(), 8);
    return made;
}

// As the preload does it.
int query(FrontEnd *front, std::uint64_t event)
{
    if (direct && direct->knows(IBX_FRONTEND_EVENT_PENDING, event, nullptr))
        return NOT_READY;
    if (direct && direct->knows(IBX_FRONTEND_EVENT_OVER, event, nullptr))
        return 0;
    return front->call("cudaEventQuery", Body().u64(event));
}

void watch(std::uint16_t port, Watched *watched)
{
    auto over = connected(port);
    FrontEnd front(over.get());
    for (bool ends = false; !ends;) {
        {
            std::lock_guard<std::mutex> guard(watched->lock);
            for (auto work = watched->works.begin(); work != watched->works.end();) {
                if (query(&front, work->done) || query(&front, work->done)) {
                    work++;
                    continue;
                }
                for (std::uint64_t event : {work->begun, work->done})
                    must(front.call("cudaEventDestroy", Body().u64(event)), "the end of an event");
                work = watched->works.erase(work);
            }
            ends = watched->ends && watched->works.empty();
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

Cost work(std::uint16_t port, unsigned calls, Watched *watched)
{
    auto over = connected(port);
    FrontEnd front(over.get());
    const std::uint64_t stream = make(&front, "cudaStreamCreate"), handle = 1,
                        library = make(&front, "cudaStreamCreate");
    const auto record = [&](std::uint64_t event, std::uint64_t in) {
        must(front.call("cudaEventRecord", Body().u64(event).u64(in)), "a record");
    };
    must(front.call("cublasSetStream_v2", Body().u64(handle).u64(library)), "a stream");
    std::vector<Work> made_before;
    for (unsigned i = 0; i < calls + 3; i++)
        made_before.push_back({make(&front, "cudaEventCreate"), make(&front, "cudaEventCreate")});
    const auto one = [&] {
        const Work made = made_before.back();
        made_before.pop_back();
        record(made.begun, stream);
        must(front.call("cudaStreamWaitEvent", Body().u64(library).u64(made.begun).i32(0)),
             "a wait");
        must(front.call("cublasSgemm_v2", Body().u64(handle).u64(7)), "a call");
        record(made.done, library);
        std::lock_guard<std::mutex> guard(watched->lock);
        watched->works.push_back(made);
    };
    for (int i = 0; i < 3; i++)
        one();
    must(front.call("cudaDeviceSynchronize", Body()), "a wait");
    Cost cost;
    const auto begin = Clock::now();
    for (unsigned i = 0; i < calls; i++)
        one();
    cost.returned = us_since(begin) / calls;
    must(front.call("cudaDeviceSynchronize", Body()), "a wait");
    cost.run = us_since(begin) / calls;
    return cost;
}

int answer_watched(const std::string &name, Body *out)
{
    static std::atomic<std::uint64_t> handles{1000};
    if (name == "cudaEventCreate" || name == "cudaStreamCreate")
        out->u64(handles += 64);
    if (name == "cublasSgemm_v2")
        for (const auto begin = Clock::now(); Clock::now() - begin < LIBRARY_US;)
            ;
    return 0;
}

void print(const char *what, std::vector<double> *row)
{
    std::sort(row->begin(), row->end());
    std::printf("%-24s %8.2f (%.2f to %.2f)\n", what, (*row)[row->size() / 2], row->front(),
                row->back());
}

void measure_watched(unsigned rounds, unsigned calls)
{
    const BackEnd back("", [](auto listening) {
        serve_clients(
            listening,
            [] {
                return [](const std::string &name, const std::vector<char> &, Body *out) {
                    return answer_watched(name, out);
                };
            },
            true);
    });
    std::vector<double> returned, run;
    for (unsigned i = 0; i < rounds; i++) {
        Watched watched;
        std::thread watchdog(watch, back.port, &watched);
        Cost cost;
        std::thread([&] { cost = work(back.port, calls, &watched); }).join();
        {
            std::lock_guard<std::mutex> guard(watched.lock);
            watched.ends = true;
        }
        watchdog.join();
        returned.push_back(cost.returned);
        run.push_back(cost.run);
    }
    print("watched, returned", &returned);
    print("watched, until all ran", &run);
}

} // namespace

__attribute__((visibility("default"))) void ibx_frontend_attach(const ibx_frontend_calls *calls)
{
    direct = calls;
}

int main(int argc, char **argv)
{
    const bool watched = argc > 3 && !std::strcmp(argv[3], "--watched");
    if (argc < 3)
        return std::fprintf(stderr, "usage: bench-threads PLUGIN.so PROVIDER [THREADS] [CALLS]\n"
                                    "       bench-threads PLUGIN.so PROVIDER --watched [ROUNDS] "
                                    "[CALLS]\n"),
               2;
    if (watched) {
        scene_open(argv[1], argv[2]);
        measure_watched(argc > 4 ? static_cast<unsigned>(std::atoi(argv[4])) : 5,
                        argc > 5 ? static_cast<unsigned>(std::atoi(argv[5])) : 300);
        return scene_close();
    }
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
