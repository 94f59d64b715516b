// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Memory that a test registers, and kernels use.
#ifndef TESTS_GVIRTUS_REGISTERED_MEMORY_H
#define TESTS_GVIRTUS_REGISTERED_MEMORY_H

#include "tests/gvirtus/application.h"

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

namespace registered
{

constexpr std::size_t page_bytes = 4096, many = 1 << 20;

// Over another path than shm a launch that names such memory is refused, and nothing else fails.
inline bool reach()
{
    return taken && over_shm;
}

inline bool launches(char *to, const char *from, std::size_t n, void *stream = nullptr)
{
    const int rc = stub_launch(to, from, n, stream);
    if (reach())
        return HOLDS(rc == 0 && cudaStreamSynchronize(stream) == 0);
    return fails(rc, 801) && HOLDS(cudaDeviceSynchronize() == 0);
}

inline bool is_refused(char *memory)
{
    const char before = memory[0];
    return fails(stub_launch(memory, memory, 1, nullptr), 801) &&
           HOLDS(cudaDeviceSynchronize() == 0 && memory[0] == before);
}

// Where the back end has nothing: in the place that the kernel chooses it may have.
inline char *new_pages(std::size_t n = many, int kind = MAP_PRIVATE,
                       int access = PROT_READ | PROT_WRITE)
{
    static std::uintptr_t next = (std::uintptr_t{5} << 44) - (std::uintptr_t{1} << 40) +
                                 (static_cast<std::uintptr_t>(getpid() % 4096) << 24);
    void *const wanted = reinterpret_cast<void *>(next);
    next += (n + 2 * page_bytes - 1) / page_bytes * page_bytes; // apart from the one before
    void *memory = mmap(wanted, n, access, kind | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    return memory == MAP_FAILED ? nullptr : static_cast<char *>(memory);
}

// The line of the mapping that holds it.
inline std::string mapping_of(const void *memory)
{
    std::ifstream maps("/proc/self/maps");
    const unsigned long long at = reinterpret_cast<std::uintptr_t>(memory);
    for (std::string line; std::getline(maps, line);) {
        const unsigned long long begin = std::stoull(line, nullptr, 16);
        const unsigned long long end = std::stoull(line.substr(line.find('-') + 1), nullptr, 16);
        if (at >= begin && at < end)
            return line;
    }
    return "";
}

inline bool is_shared(const void *memory)
{
    return mapping_of(memory).find("ibx-shared") != std::string::npos;
}

} // namespace registered

#endif
