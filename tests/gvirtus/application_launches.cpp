// SPDX-License-Identifier: LGPL-2.1-or-later
#include "tests/gvirtus/application.h"

#include <cstdint>
#include <vector>

// The stub has cudaLaunchKernel alone, as GVirtuS.
bool launch()
{
    auto *get = preloaded<int(void **, const void *)>("__cudaGetKernel");
    auto *run = preloaded<int(void *, StubDim3, StubDim3, void **, std::size_t, void *)>(
        "__cudaLaunchKernel");
    std::size_t n = 100000;
    char *device = device_memory(2 * n);
    void *stream = nullptr, *kernel = nullptr, *to = device + n, *from = device;
    void *arguments[] = {&to, &from, &n};
    std::vector<char> memory(n);
    random_fill(memory.data(), n, 1);
    REQUIRE(cudaStreamCreate(&stream) == 0);
    REQUIRE(cudaMemcpyAsync(device, memory.data(), n, H2D, stream) == 0);
    REQUIRE(get(&kernel, &stub_kernel) == 0);
    REQUIRE(run(kernel, {1000, 1, 1}, {100, 1, 1}, arguments, 0, stream) == 0);
    REQUIRE(cudaStreamSynchronize(stream) == 0);
    REQUIRE(device_has(device + n, memory.data(), n));
    REQUIRE(get(&kernel, &n) == 0 && run(kernel, {1, 1, 1}, {1, 1, 1}, arguments, 0, stream) == 98);
    return true;
}

// The stub makes the first launch of a kernel, and writes one by which the others are made.
bool launches()
{
    auto *run = preloaded<int(const void *, StubDim3, StubDim3, void **, std::size_t, void *)>(
        "cudaLaunchKernel");
    auto *unload = preloaded<void(void **)>("__cudaUnregisterFatBinary");
    std::size_t n = 100000;
    char *device = device_memory(6 * n);
    std::vector<char> memory(n);
    for (std::uint64_t round = 0; round < 5; round++) {
        std::size_t part = n - round * 1000;
        char *to = device + (round + 1) * n, *from = device + round;
        void *arguments[] = {&to, &from, &part};
        random_fill(memory.data(), n, round);
        REQUIRE(cudaMemcpy(device, memory.data(), n, H2D) == 0);
        const std::uint64_t before = stub_launches();
        REQUIRE(run(&stub_kernel, {1000, 1, 1}, {100, 1, 1}, arguments, 0, nullptr) == 0);
        REQUIRE(stub_launches() - before == (round % 3 ? 0 : 2));
        REQUIRE(cudaDeviceSynchronize() == 0);
        REQUIRE(device_has(to, memory.data() + round, part - round));
        if (round == 2) // another one may have its address
            unload(nullptr);
    }
    int other = 0;
    void *none[3] = {&device, &device, &n};
    REQUIRE(run(&other, {1, 1, 1}, {1, 1, 1}, none, 0, nullptr) == 98);
    return true;
}

// By <<<>>>, which returns nothing: no call that waits returns its error.
bool launches_unseen()
{
    auto *push =
        preloaded<unsigned(StubDim3, StubDim3, std::size_t, void *)>("__cudaPushCallConfiguration");
    auto *pop =
        preloaded<int(StubDim3 *, StubDim3 *, std::size_t *, void *)>("__cudaPopCallConfiguration");
    auto *run = preloaded<int(const void *, StubDim3, StubDim3, void **, std::size_t, void *)>(
        "cudaLaunchKernel");
    auto *unload = preloaded<void(void **)>("__cudaUnregisterFatBinary");
    std::size_t n = 1000;
    char *device = device_memory(2 * n), *to = device + n;
    std::vector<char> memory(n);
    void *arguments[] = {&to, &device, &n}, *wrong = &n;
    const auto by_brackets = [&](void *on, const void *function) {
        StubDim3 grid = {}, block = {};
        std::size_t shared = 0;
        void *stream = nullptr;
        return push({1, 1, 1}, {32, 1, 1}, 0, on) || pop(&grid, &block, &shared, &stream)
                   ? -1
                   : run(function, grid, block, arguments, shared, stream);
    };
    random_fill(memory.data(), n, 5);
    REQUIRE(cudaMemcpy(device, memory.data(), n, H2D) == 0);
    REQUIRE(by_brackets(nullptr, &stub_kernel) == 0 && cudaGetLastError() == 0);
    REQUIRE(cudaDeviceSynchronize() == 0 && device_has(to, memory.data(), n));
    for (int i = 0; i < 3; i++) {
        REQUIRE(by_brackets(wrong, &stub_kernel) == 0 && cudaDeviceSynchronize() == 0);
        REQUIRE(run(&stub_kernel, {1, 1, 1}, {32, 1, 1}, arguments, 0, wrong) == 400);
        // GVirtuS's front end refuses it without a request; the next launch goes that way, too.
        REQUIRE(by_brackets(nullptr, &n) == 98);
        unload(nullptr);
        REQUIRE(run(&stub_kernel, {1, 1, 1}, {32, 1, 1}, arguments, 0, wrong) == 400);
        // One that goes well makes the next one of the loop unseen again.
        REQUIRE(cudaGetLastError() == 400 && cudaGetLastError() == 0);
        REQUIRE(by_brackets(nullptr, &stub_kernel) == 0 && cudaGetLastError() == 0);
        REQUIRE(cudaDeviceSynchronize() == 0 && device_has(to, memory.data(), n));
    }
    return true;
}
