/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Half of what the tests of payloads compute: it is compiled with optimization in every build. */
#include "tests/scenes/pattern.h"

#include <string.h>

/* splitmix64 */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

uint64_t random_next(struct random *r)
{
    r->state += 0x9e3779b97f4a7c15;
    return mix(r->state);
}

size_t random_below(struct random *r, size_t below)
{
    return (size_t)(random_next(r) % below);
}

/* Whole words by copies of a known length: with sanitizers others are calls. */
void pattern_fill(uint8_t *bytes, size_t length, uint64_t seed)
{
    const size_t whole = length & ~(size_t)7;
    uint64_t word;
    for (size_t at = 0; at < whole; at += 8) {
        word = mix(seed ^ at << 8);
        memcpy(bytes + at, &word, 8);
    }
    word = mix(seed ^ whole << 8);
    memcpy(bytes + whole, &word, length - whole);
}

size_t pattern_check(const uint8_t *bytes, size_t length, uint64_t seed)
{
    for (size_t at = 0; at < length; at += 8) {
        const uint64_t word = mix(seed ^ at << 8);
        const size_t n = length - at < 8 ? length - at : 8;
        uint64_t there = word;
        if (n == 8)
            memcpy(&there, bytes + at, 8);
        else
            memcpy(&there, bytes + at, n);
        if (there == word)
            continue;
        while (bytes[at] == ((const uint8_t *)&word)[at % 8])
            at++;
        return at;
    }
    return length;
}
