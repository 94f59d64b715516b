// SPDX-License-Identifier: LGPL-2.1-or-later
//
// What the first use of host memory costs an application, run by tools/bench/gpu --first:
//
//   bench-first LIBCUDART
//
// over this libcudart, GVirtuS's or CUDA's own, and over what is preloaded before it. Prints a line
// for each thing measured, in microseconds, and ends with DONE:
//
//   CALL TIME TIME TIME WHAT
//
// The same TIME comes three times, as other programs' lines have a median, a least and a most.
#include "tests/gvirtus/bench_libcudart.h"
#include "tests/gvirtus/bench_measure.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <string>

namespace
{

constexpr std::size_t KIB = 1024, MIB = 1024 * KIB;

double tell(double seconds, const std::string &what)
{
    double us = seconds * 1e6;
    std::printf("CALL %.2f %.2f %.2f %s\n", us, us, us, what.c_str());
    return us;
}

double timed(const std::function<int()> &call, const std::string &what)
{
    double begin = now();
    must(call(), what);
    return now() - begin;
}

std::string size_name(std::size_t n)
{
    return n < MIB ? std::to_string(n / KIB) + " KiB" : std::to_string(n / MIB) + " MiB";
}

char *device;

int to_device(const char *from, std::size_t n)
{
    static auto copy = symbol<int (*)(void *, const void *, std::size_t, int)>("cudaMemcpy");
    return copy(device, from, n, 1);
}

int from_device(char *to, std::size_t n)
{
    static auto copy = symbol<int (*)(void *, const void *, std::size_t, int)>("cudaMemcpy");
    return copy(to, device, n, 2);
}

// First copies of memory of which each page was touched, later ones, and that the bytes are right.
void copies(char *memory, std::size_t n, const std::string &kind)
{
    std::string of = " of " + kind + " " + size_name(n);
    tell(timed([&] { return to_device(memory, n); }, "to the device"), "first H2D" + of);
    tell(median_of([&] { must(to_device(memory, n), "to the device"); }, 0.02), "H2D" + of);
    char *copy = static_cast<char *>(std::malloc(n));
    std::memcpy(copy, memory, n);
    std::memset(memory, 1, n);
    tell(median_of([&] { must(from_device(memory, n), "from the device"); }, 0.02), "D2H" + of);
    if (std::memcmp(copy, memory, n) != 0) {
        std::fprintf(stderr, "bench-first: other bytes came back than were sent\n");
        leave(1);
    }
    std::free(copy);
}

void pinned(std::size_t n)
{
    static auto allocate = symbol<int (*)(void **, std::size_t)>("cudaMallocHost");
    static auto release = symbol<int (*)(void *)>("cudaFreeHost");
    void *memory = nullptr;
    tell(timed([&] { return allocate(&memory, n); }, "cudaMallocHost"),
         "cudaMallocHost of " + size_name(n));
    fill(static_cast<char *>(memory), n, n);
    copies(static_cast<char *>(memory), n, "pinned");
    must(release(memory), "cudaFreeHost");
}

void registered(std::size_t n)
{
    static auto enter = symbol<int (*)(void *, std::size_t, unsigned)>("cudaHostRegister");
    static auto leave_it = symbol<int (*)(void *)>("cudaHostUnregister");
    char *memory = static_cast<char *>(std::malloc(n));
    fill(memory, n, n);
    tell(timed([&] { return enter(memory, n, 0); }, "cudaHostRegister"),
         "cudaHostRegister of " + size_name(n));
    copies(memory, n, "registered");
    tell(timed([&] { return leave_it(memory); }, "cudaHostUnregister"),
         "cudaHostUnregister of " + size_name(n));
    std::free(memory);
}

void pageable(std::size_t n)
{
    char *memory = static_cast<char *>(std::malloc(n));
    fill(memory, n, n);
    copies(memory, n, "pageable");
    std::free(memory);
}

} // namespace

int main(int argc, char **argv)
{
    if (argc != 2 || !dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL)) {
        std::fprintf(stderr, "%s\n", argc == 2 ? dlerror() : "usage: bench-first LIBCUDART");
        return 2;
    }
    auto allocate = symbol<int (*)(void **, std::size_t)>("cudaMalloc");
    must(allocate(reinterpret_cast<void **>(&device), 256 * MIB), "cudaMalloc");
    pageable(64 * KIB);
    pageable(1 * MIB);
    for (std::size_t n : {64 * KIB, 1 * MIB, 16 * MIB, 256 * MIB})
        pinned(n);
    for (std::size_t n : {16 * MIB, 256 * MIB})
        registered(n);
    std::printf("DONE\n");
    leave(0);
}
