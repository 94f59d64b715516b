/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Numbers and bytes that both sides of a test know. */
#ifndef IBX_TESTS_SCENES_PATTERN_H
#define IBX_TESTS_SCENES_PATTERN_H

#include <stddef.h>
#include <stdint.h>

/* The same numbers from the same seed on both sides. */
struct random {
    uint64_t state;
};
uint64_t random_next(struct random *r);
/* 0 to below-1 */
size_t random_below(struct random *r, size_t below);

/* Bytes that tell which stream and where in it they belong. */
void pattern_fill(uint8_t *bytes, size_t length, uint64_t seed);
/* The place of the first wrong byte, or `length`. */
size_t pattern_check(const uint8_t *bytes, size_t length, uint64_t seed);

#endif
