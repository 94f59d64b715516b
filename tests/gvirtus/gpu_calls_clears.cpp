// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Memory that is cleared for a program, since another one may have used it: what the program does
// with it while the GPU is slow, and what it is told when that fails.
#include "tests/gvirtus/gpu_calls_clients.h"

namespace
{

constexpr int launch_failed = 719; // cudaErrorLaunchFailure
constexpr int out_of_memory = 2;   // cudaErrorMemoryAllocation

// From now on the back end clears memory: it has had another program.
bool has_had_another(const Gpu &gpu)
{
    return result_of(spawn([&gpu] {
               Client own(gpu, "");
               return own.remote.get_last_error();
           })) == 0;
}

using FreesMemory = int (*)(Remote &own, std::uint64_t memory);

int by_runtime(Remote &own, std::uint64_t memory)
{
    return own.free(memory);
}

// By a handler of GVirtuS's.
int by_handler(Remote &own, std::uint64_t memory)
{
    return own.call("cuMemFree", Body().u64(memory));
}

// In a stream that does not wait for the one in which it is allocated.
int elsewhere(Remote &own, std::uint64_t memory)
{
    const std::uint64_t stream = own.stream_create(1);
    return own.call("ibxRuntime", number(IBX_EXT_FREE_ASYNC).u64(memory).u64(stream));
}

// cudaFree does not wait for work that uses memory of a pool, nor has the program any: but the back
// end may still be about to clear it.
bool pooled_memory_freed_at_once(FreesMemory give)
{
    Gpu gpu;
    REQUIRE(has_had_another(gpu));
    const std::uint64_t stream = gpu.remote.stream_create(1);
    const std::uint64_t pool =
        gpu.remote.address("ibxRuntime", number(IBX_EXT_POOL_DEFAULT).i32(0));
    REQUIRE(stream && pool && gpu.remote.slow(100000));
    for (const Body &body : {number(IBX_EXT_MALLOC_ASYNC).u64(some).u64(stream),
                             number(IBX_EXT_MALLOC_FROM_POOL).u64(some).u64(pool).u64(stream)}) {
        const std::uint64_t memory = gpu.remote.address("ibxRuntime", body);
        REQUIRE(memory && give(gpu.remote, memory) == 0 && give(gpu.remote, memory) == 1);
    }
    gpu.remote.slow(0);
    gpu.remote.get_last_error();
    REQUIRE(gpu.remote.stream_synchronize(stream) == 0);
    return HOLDS(gpu.remote.device_synchronize() == 0 && gpu.remote.malloc(some));
}

// The stream in which the program frees memory cannot be made to wait for the clear.
bool free_elsewhere_that_cannot_wait()
{
    Gpu gpu;
    REQUIRE(has_had_another(gpu));
    const std::uint64_t stream = gpu.remote.stream_create(1), other = gpu.remote.stream_create(1);
    REQUIRE(stream && other && gpu.remote.slow(100000));
    const std::uint64_t memory =
        gpu.remote.address("ibxRuntime", number(IBX_EXT_MALLOC_ASYNC).u64(some).u64(stream));
    gpu.remote.inject("cuStreamWaitEvent", 1, out_of_memory, false);
    REQUIRE(memory &&
            gpu.remote.call("ibxRuntime", number(IBX_EXT_FREE_ASYNC).u64(memory).u64(other)) == 0);
    gpu.remote.slow(0);
    REQUIRE(gpu.remote.get_last_error() == 0);
    return HOLDS(gpu.remote.device_synchronize() == 0 && gpu.remote.malloc(some));
}

// The clear fails since work has broken the context: the program learns that, and not that there
// is no memory.
bool clear_in_a_broken_context()
{
    Gpu gpu;
    REQUIRE(has_had_another(gpu));
    gpu.remote.inject("dma", 1, launch_failed, true);
    const bool told = gpu.remote.call("cudaMalloc", Body().u64(some)) == launch_failed;
    gpu.remote.inject("", 0, 0, false);
    return HOLDS(told);
}

} // namespace

void check_calls_clears()
{
    check("memory of a pool that is freed before it is cleared",
          [] { return pooled_memory_freed_at_once(by_runtime); });
    check("... by the driver's call", [] { return pooled_memory_freed_at_once(by_handler); });
    check("... in another stream", [] { return pooled_memory_freed_at_once(elsewhere); });
    check("... which cannot wait for the clear", free_elsewhere_that_cannot_wait);
    check("memory that cannot be cleared any more", clear_in_a_broken_context);
}
