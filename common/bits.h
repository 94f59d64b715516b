/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Bits in words of 64. */
#ifndef IBX_COMMON_BITS_H
#define IBX_COMMON_BITS_H

#include <stddef.h>
#include <stdint.h>

/* The number of set bits. Up to 31 words at a time are counted in each of eight bytes, which
 * compilers do for several words at once. The popcount that every processor of an architecture has
 * is a function call for each word. */
static inline uint64_t ibx_bits_count(const uint64_t *words, size_t count)
{
    const uint64_t ones = 0x5555555555555555u, twos = 0x3333333333333333u,
                   fours = 0x0f0f0f0f0f0f0f0fu, eights = 0x00ff00ff00ff00ffu;
    const size_t most = 31; /* the sums of so many words, each at most 8, fit into a byte */
    uint64_t sum = 0;
    while (count) {
        const size_t n = count < most ? count : most;
        uint64_t bytes = 0;
        for (size_t i = 0; i < n; i++) {
            uint64_t word = words[i] - (words[i] >> 1 & ones);
            word = (word & twos) + (word >> 2 & twos);
            bytes += (word + (word >> 4)) & fours;
        }
        bytes = (bytes & eights) + (bytes >> 8 & eights);
        sum += bytes * 0x0001000100010001u >> 48;
        words += n;
        count -= n;
    }
    return sum;
}

#endif
