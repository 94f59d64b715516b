// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Random CUDA programs with several GPUs, for the same bytes native and under GVirtuS:
//
//   device-programs PROGRAMS [--seed N] [--threads N] [--devices N] [--all] [--graphs] [--managed]
//
// Each thread has memory, streams, events and a row of a __device__ variable on each device, and
// goes from one device to another: copies of all kinds, between devices too, kernels that read
// another device's memory where the devices can, events between streams of both. Prints a line for
// each program with a hash of all that has come back and of what each call has answered, as
// random_programs.cu does. It works with one device as well.
//
//   --threads N  at once, each with its programs, streams and memory (default 1)
//   --devices N  no more than these (default: all there are)
//   --all        also calls that GVirtuS lacks: variables, cudaMemsetAsync, cudaMemcpyPeer, pools
//   --graphs     with these, graphs of work on several devices, of one thread
//   --managed    with these, managed memory that several devices use
//
// Built as random_programs.cu. Without nvcc it has no kernels, for a double of CUDA's driver.
#include "device_program.h"

#include <algorithm>
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

void must(cudaError_t rc, const char *what)
{
    if (rc == cudaSuccess)
        return;
    std::fprintf(stderr, "device-programs: %s: error %d\n", what, static_cast<int>(rc));
    _exit(1);
}

Slot make_slot(int device, unsigned number)
{
    Slot slot{};
    slot.device = device;
    slot.waits = number != 2;
    must(cudaSetDevice(device), "cudaSetDevice");
    must(cudaMalloc(reinterpret_cast<void **>(&slot.memory), MOST), "cudaMalloc");
    must(cudaMemset(slot.memory, 0, MOST), "cudaMemset");
    must(cudaMallocHost(reinterpret_cast<void **>(&slot.pinned), MOST), "cudaMallocHost");
    slot.pageable = static_cast<char *>(std::calloc(1, MOST));
    std::memset(slot.pinned, 0, MOST);
    if (number)
        must(cudaStreamCreateWithFlags(&slot.stream,
                                       slot.waits ? cudaStreamDefault : cudaStreamNonBlocking),
             "a stream");
    must(cudaEventCreate(&slot.event), "cudaEventCreate");
    must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    return slot;
}

// Before the threads begin. What is enabled stays so when the program ends: another one's process
// does not notice that.
std::string reach(unsigned devices, bool twice, std::vector<std::uint8_t> &reaches)
{
    std::string line = "peers";
    reaches.assign(devices * devices, 0);
    for (unsigned i = 0; i < devices; i++) {
        for (unsigned k = 0; k < devices; k++) {
            int can = 0;
            if (i == k)
                continue;
            must(cudaDeviceCanAccessPeer(&can, static_cast<int>(i), static_cast<int>(k)),
                 "cudaDeviceCanAccessPeer");
            must(cudaSetDevice(static_cast<int>(i)), "cudaSetDevice");
            for (unsigned times = 0; can && times <= twice; times++) { // then it is refused
                const cudaError_t rc = cudaDeviceEnablePeerAccess(static_cast<int>(k), 0);
                line += " " + std::to_string(static_cast<int>(rc));
                reaches[i * devices + k] = true;
                cudaGetLastError();
            }
        }
    }
    return line + "\n";
}

void run_thread(unsigned thread, unsigned programs, std::uint64_t seed, const Wish &wish,
                std::vector<std::uint8_t> &reaches, std::string &lines)
{
    std::vector<Slot> slots;
    for (unsigned device = 0; device < wish.devices; device++)
        for (unsigned i = 0; i < SLOTS; i++)
            slots.push_back(make_slot(static_cast<int>(device), i));
    for (unsigned i = 0; i < programs; i++) {
        char line[80];
        Program program{{Random{(seed * 1000003 + thread) * 1000003 + i + 1}}, thread, slots, wish,
                        reaches};
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
    Wish wish;
    for (int i = 2; i < argc; i++) {
        const std::string option = argv[i];
        if (option == "--all")
            wish.all = true;
        else if (option == "--graphs")
            wish.all = wish.graphs = true;
        else if (option == "--managed")
            wish.all = wish.managed = true;
        else if (option == "--seed" && i + 1 < argc)
            seed = std::strtoull(argv[++i], nullptr, 10);
        else if (option == "--threads" && i + 1 < argc)
            threads = static_cast<unsigned>(std::strtoul(argv[++i], nullptr, 10));
        else if (option == "--devices" && i + 1 < argc)
            wish.devices = static_cast<unsigned>(std::strtoul(argv[++i], nullptr, 10));
        else
            programs = 0;
    }
    if (!programs || !threads || threads > THREADS) {
        std::fprintf(stderr, "usage: device-programs PROGRAMS [--seed N] [--threads N] "
                             "[--devices N] [--all] [--graphs] [--managed]\n");
        return 2;
    }
    int count = 0;
    must(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    wish.devices = wish.devices ? std::min(wish.devices, static_cast<unsigned>(count))
                                : static_cast<unsigned>(count);
    wish.alone = threads == 1;
    std::vector<std::uint8_t> reaches;
    const std::string peers = reach(wish.devices, wish.all, reaches);
    std::vector<std::string> lines(threads);
    std::vector<std::thread> others;
    for (unsigned i = 1; i < threads; i++)
        others.emplace_back(run_thread, i, programs, seed, std::cref(wish), std::ref(reaches),
                            std::ref(lines[i]));
    run_thread(0, programs, seed, wish, reaches, lines[0]);
    for (std::thread &other : others)
        other.join();
    std::printf("%u devices, %s", wish.devices, peers.c_str());
    for (const std::string &text : lines)
        std::fputs(text.c_str(), stdout);
    std::printf("DONE\n");
    std::fflush(stdout);
    _exit(0); // the destructors of GVirtuS's front ends are not to be relied on
}
