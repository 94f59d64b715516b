/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The patterns, which take half of the contract tests' time. This file is compiled with
 * optimization in every build. */
#include "tests/contract/harness.h"

#include <string.h>

/* Sebastiano Vigna's splitmix64 finaliser. */
uint64_t pattern_mix(uint64_t value)
{
    value += 0x9e3779b97f4a7c15ull;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
    return value ^ (value >> 31);
}

/* Uses memcpy() and memcmp() with whole words of a known length: with sanitizers each call is
 * slow. */
void pattern_fill(void *bytes, size_t length, uint64_t seed, uint64_t position)
{
    uint8_t *out = bytes;
    const uint64_t first = pattern_mix(seed);
    while (length) {
        uint64_t word = pattern_mix(first + position / 8);
        size_t skip = position % 8, n = 8 - skip < length ? 8 - skip : length;
        if (n == 8)
            memcpy(out, &word, 8);
        else
            memcpy(out, (uint8_t *)&word + skip, n);
        out += n;
        position += n;
        length -= n;
    }
}

static bool is_word(const uint8_t *bytes, uint64_t word)
{
    uint64_t there;
    memcpy(&there, bytes, 8);
    return there == word;
}

ssize_t pattern_check(const void *bytes, size_t length, uint64_t seed, uint64_t position)
{
    const uint8_t *in = bytes;
    const uint64_t first = pattern_mix(seed);
    for (size_t at = 0; at < length;) {
        uint64_t word = pattern_mix(first + (position + at) / 8);
        size_t skip = (position + at) % 8, n = 8 - skip < length - at ? 8 - skip : length - at;
        const uint8_t *expected = (uint8_t *)&word + skip;
        if (n == 8 && is_word(in + at, word)) {
            at += 8;
            continue;
        }
        if (memcmp(in + at, expected, n)) {
            while (in[at] == *expected)
                at++, expected++;
            return (ssize_t)at;
        }
        at += n;
    }
    return -1;
}
