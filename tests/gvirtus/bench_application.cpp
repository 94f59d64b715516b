// SPDX-License-Identifier: LGPL-2.1-or-later
//
// What cudaMemcpy costs an application, run by bench_gpu and tools/bench/gpu:
//
//   bench-application LIBCUDART SECONDS BYTES...
//
// over this libcudart, GVirtuS's or CUDA's own, and over what is preloaded before it. Prints a line
// for each kind of memory, direction and size, with the microseconds of a call, and ends with DONE:
//
//   CELL pageable|pinned h2d|d2h BYTES MICROSECONDS
//
// To the device it is the mean of calls back to back, with the end of the last one; from the device
// it is the median.
//
// The bytes that come back are compared with those that went.
#include "tests/gvirtus/bench_libcudart.h"
#include "tests/gvirtus/bench_measure.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>

namespace
{

struct Memory {
    char *sent, *got;
};

void measure_memory(const char *kind, const Memory &memory, const std::vector<std::size_t> &sizes,
                    double slice)
{
    auto copy = symbol<int (*)(void *, const void *, std::size_t, int)>("cudaMemcpy");
    auto allocate = symbol<int (*)(void **, std::size_t)>("cudaMalloc");
    auto release = symbol<int (*)(void *)>("cudaFree");
    std::size_t largest = *std::max_element(sizes.begin(), sizes.end());
    void *device = nullptr;
    must(allocate(&device, largest), "cudaMalloc");
    for (std::size_t n : sizes) {
        fill(memory.sent, n, n);
        std::memset(memory.got, 2, n);
        char last = 0;
        double to = mean_of([&] { must(copy(device, memory.sent, n, 1), "to the device"); },
                            [&] { must(copy(&last, device, 1, 2), "from it"); }, slice);
        double from = median_of([&] { must(copy(memory.got, device, n, 2), "from it"); }, slice);
        if (std::memcmp(memory.sent, memory.got, n) != 0) {
            std::fprintf(stderr, "bench-application: other bytes came back than were sent\n");
            leave(1);
        }
        std::printf("CELL %s h2d %zu %.3f\nCELL %s d2h %zu %.3f\n", kind, n, to * 1e6, kind, n,
                    from * 1e6);
    }
    must(release(device), "cudaFree");
}

} // namespace

int main(int argc, char **argv)
{
    std::vector<std::size_t> sizes;
    for (int i = 3; i < argc; i++)
        sizes.push_back(std::strtoull(argv[i], nullptr, 10));
    if (sizes.empty() || !dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL)) {
        const char *why = sizes.empty() ? nullptr : dlerror();
        std::fprintf(stderr, "%s\n",
                     why ? why : "usage: bench-application LIBCUDART SECONDS BYTES...");
        return 2;
    }
    double slice = std::atof(argv[2]);
    std::size_t largest = *std::max_element(sizes.begin(), sizes.end());
    Memory pageable{static_cast<char *>(std::malloc(largest)),
                    static_cast<char *>(std::malloc(largest))},
        pinned{};
    if (!pageable.sent || !pageable.got)
        return 1;
    measure_memory("pageable", pageable, sizes, slice);
    auto allocate = symbol<int (*)(void **, std::size_t)>("cudaMallocHost");
    must(allocate(reinterpret_cast<void **>(&pinned.sent), largest), "cudaMallocHost");
    must(allocate(reinterpret_cast<void **>(&pinned.got), largest), "cudaMallocHost");
    measure_memory("pinned", pinned, sizes, slice);
    std::printf("DONE\n");
    leave(0);
}
