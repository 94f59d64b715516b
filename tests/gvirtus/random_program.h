// SPDX-License-Identifier: LGPL-2.1-or-later
//
// What programs have in common that make random CUDA calls, and compare the results native and
// under GVirtuS: the random numbers, and a hash of all that has come back. This file is in the
// folder of its users, since nvcc gets no include path.
#ifndef IBX_TESTS_GVIRTUS_RANDOM_PROGRAM_H
#define IBX_TESTS_GVIRTUS_RANDOM_PROGRAM_H

#include "random_numbers.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <cuda_runtime.h>

struct RandomProgram {
    Random random;
    std::uint64_t hash = 14695981039346656037u;

    void note(std::uint64_t word) { hash = (hash ^ word) * 1099511628211u + (hash >> 29); }
    void note(const char *bytes, std::size_t n)
    {
        std::uint64_t word;
        for (; n >= 8; bytes += 8, n -= 8) {
            std::memcpy(&word, bytes, 8);
            note(word);
        }
        word = 0;
        std::memcpy(&word, bytes, n);
        note(word);
    }
    void answered(cudaError_t rc) { note(static_cast<std::uint64_t>(rc)); }
    void fill(char *bytes, std::size_t n)
    {
        for (; n >= 8; bytes += 8, n -= 8) {
            std::uint64_t word = random.next();
            std::memcpy(bytes, &word, 8);
        }
        std::memset(bytes, static_cast<int>(random.next() >> 56), n);
    }
    // A length, mostly short; at most `most`.
    std::size_t length(std::size_t most)
    {
        std::size_t n = random.below(4) ? 1 + random.below(70000) : 1 + random.below(most);
        return n < most ? n : most;
    }
};

#endif
