/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Compiled with optimization in every build, as pattern.c. */
#include "tests/scenes/random_fill.h"

#include <string.h>

void random_fill(void *to, size_t length, uint64_t seed)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u + 1, word;
    uint8_t *bytes = (uint8_t *)to;
    for (size_t left = length; left; left -= left < 8 ? left : 8) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        word = x ^ x >> 32;
        if (left >= 8)
            memcpy(bytes + (length - left), &word, 8);
        else
            memcpy(bytes + (length - left), &word, left);
    }
}
