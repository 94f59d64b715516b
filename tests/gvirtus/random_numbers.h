// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Numbers that look random and are the same for the same seed, for programs of random calls.
#ifndef IBX_TESTS_GVIRTUS_RANDOM_NUMBERS_H
#define IBX_TESTS_GVIRTUS_RANDOM_NUMBERS_H

#include <cstddef>
#include <cstdint>

struct Random {
    std::uint64_t state;
    std::uint64_t next()
    {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state * 2685821657736338717u;
    }
    std::size_t below(std::size_t n) { return static_cast<std::size_t>(next() >> 11) % n; }
};

#endif
