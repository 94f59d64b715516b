// SPDX-License-Identifier: LGPL-2.1-or-later
//
// What calls without copies cost, native and under GVirtuS (tools/bench/gpu --gvirtus):
//
//   bench-calls ROUNDS
//
// Prints a line for each call with the median of the rounds, in microseconds, and ends with DONE:
//
//   CALL MEDIAN LEAST MOST WHAT
//
// Built and run as random_programs.cu.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <functional>
#include <map>
#include <string>
#include <unistd.h>
#include <vector>

namespace
{

using Clock = std::chrono::steady_clock;

__global__ void add(unsigned *to, unsigned value)
{
    *to += value;
}

std::map<std::string, std::vector<double>> rows;

void must(cudaError_t rc, const char *what)
{
    if (rc == cudaSuccess)
        return;
    std::fprintf(stderr, "bench-calls: %s: error %d\n", what, static_cast<int>(rc));
    _exit(1);
}

double microseconds(const std::function<void()> &what, unsigned times = 1)
{
    const auto begin = Clock::now();
    for (unsigned i = 0; i < times; i++)
        what();
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / times;
}

struct Scene {
    unsigned *device = nullptr;
    cudaStream_t stream{}, other{};
    cudaEvent_t event{};
    cudaGraphExec_t graph{};
    unsigned launches = 0; // of adding 1
};

void launch(Scene &s)
{
    unsigned one = 1;
    void *arguments[] = {&s.device, &one};
    must(cudaLaunchKernel(reinterpret_cast<const void *>(add), dim3(1), dim3(1), arguments, 0,
                          s.stream),
         "a launch");
    s.launches++;
}

// The bytes that come back are right, whatever was answered early.
void check(Scene &s)
{
    unsigned found = 0;
    must(cudaStreamSynchronize(s.stream), "cudaStreamSynchronize");
    must(cudaMemcpy(&found, s.device, sizeof(found), cudaMemcpyDeviceToHost), "cudaMemcpy");
    if (found == s.launches)
        return;
    std::fprintf(stderr, "bench-calls: %u launches have added %u\n", s.launches, found);
    _exit(1);
}

void measure(Scene &s)
{
    auto row = [](const char *what, double us) { rows[what].push_back(us); };
    unsigned back = 0;
    const double mean = microseconds([&] { launch(s); }, 10000);
    const double rest = microseconds([&] { cudaStreamSynchronize(s.stream); });
    row("launch, mean of 10,000", mean);
    row("launch, mean of 10,000 until they have run", mean + rest / 10000);
    check(s);
    row("200 launches and 4 B back", microseconds([&] {
            for (int i = 0; i < 200; i++)
                launch(s);
            must(cudaMemcpyAsync(&back, s.device, 4, cudaMemcpyDeviceToHost, s.stream), "a copy");
            must(cudaStreamSynchronize(s.stream), "cudaStreamSynchronize");
        }));
    row("200 launches with cudaGetLastError, and 4 B back", microseconds([&] {
            for (int i = 0; i < 200; i++) {
                launch(s);
                must(cudaGetLastError(), "cudaGetLastError");
            }
            must(cudaMemcpyAsync(&back, s.device, 4, cudaMemcpyDeviceToHost, s.stream), "a copy");
            must(cudaStreamSynchronize(s.stream), "cudaStreamSynchronize");
        }));
    row("launch + cudaDeviceSynchronize", microseconds(
                                              [&] {
                                                  launch(s);
                                                  cudaDeviceSynchronize();
                                              },
                                              200));
    row("cudaEventRecord", microseconds([&] { cudaEventRecord(s.event, s.stream); }, 1000));
    row("cudaStreamWaitEvent",
        microseconds([&] { cudaStreamWaitEvent(s.other, s.event, 0); }, 1000));
    must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    row("cudaEventQuery, finished", microseconds([&] { cudaEventQuery(s.event); }, 1000));
    row("cudaStreamQuery, idle", microseconds([&] { cudaStreamQuery(s.stream); }, 1000));
    row("cudaGetLastError", microseconds([] { cudaGetLastError(); }, 1000));
    int device = 0;
    row("cudaGetDevice", microseconds([&] { cudaGetDevice(&device); }, 1000));
    row("cudaSetDevice, the same", microseconds([&] { cudaSetDevice(device); }, 1000));
    row("cudaMemsetAsync",
        microseconds([&] { cudaMemsetAsync(s.device + 1, 0, 4, s.stream); }, 500));
    must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    void *memory = nullptr;
    row("cudaMalloc + cudaFree, 1 MiB", microseconds(
                                            [&] {
                                                cudaMalloc(&memory, 1u << 20);
                                                cudaFree(memory);
                                            },
                                            200));
    must(cudaGetLastError(), "something");
    check(s);
    if (!s.graph)
        return;
    row("a graph of 200 launches and 4 B back", microseconds([&] {
            must(cudaGraphLaunch(s.graph, s.stream), "cudaGraphLaunch");
            must(cudaMemcpyAsync(&back, s.device, 4, cudaMemcpyDeviceToHost, s.stream), "a copy");
            must(cudaStreamSynchronize(s.stream), "cudaStreamSynchronize");
        }));
    s.launches += 200;
    check(s);
}

// Where GVirtuS has no graphs, its rows are left out.
void record_graph(Scene &s)
{
    cudaGraph_t graph{};
    bool good = !cudaStreamBeginCapture(s.stream, cudaStreamCaptureModeThreadLocal);
    for (int i = 0; i < 200 && good; i++)
        launch(s);
    good = good && !cudaStreamEndCapture(s.stream, &graph) &&
           !cudaGraphInstantiate(&s.graph, graph, 0);
    if (!good)
        s.graph = nullptr;
    cudaGetLastError();
    s.launches = 0;
    must(cudaMemset(s.device, 0, 4096), "cudaMemset");
}

} // namespace

int main(int argc, char **argv)
{
    const int rounds = argc == 2 ? std::atoi(argv[1]) : 0;
    if (rounds < 1) {
        std::fprintf(stderr, "usage: bench-calls ROUNDS\n");
        return 2;
    }
    Scene s;
    must(cudaMalloc(reinterpret_cast<void **>(&s.device), 4096), "cudaMalloc");
    must(cudaMemset(s.device, 0, 4096), "cudaMemset");
    must(cudaStreamCreate(&s.stream), "cudaStreamCreate");
    must(cudaStreamCreate(&s.other), "cudaStreamCreate");
    must(cudaEventCreate(&s.event), "cudaEventCreate");
    record_graph(s);
    for (int i = 0; i < 3; i++) // a program's first calls are not meant
        measure(s);
    rows.clear();
    for (int i = 0; i < rounds; i++)
        measure(s);
    for (auto &row : rows) {
        std::sort(row.second.begin(), row.second.end());
        std::printf("CALL %.3f %.3f %.3f %s\n", row.second[row.second.size() / 2],
                    row.second.front(), row.second.back(), row.first.c_str());
    }
    std::printf("DONE\n");
    std::fflush(stdout);
    _exit(0); // the destructors of GVirtuS's front ends are not to be relied on
}
