/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* All that processes share (ibx_forked_map()), as the code under test makes it last: for one
 * source of a test that is linked with --wrap=ibx_forked_map. */
#ifndef IBX_TESTS_UNIT_FORKED_MEMORY_H
#define IBX_TESTS_UNIT_FORKED_MEMORY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint8_t *shared_bytes;
static size_t shared_size;

void *__real_ibx_forked_map(size_t n);
void *__wrap_ibx_forked_map(size_t n);
void *__wrap_ibx_forked_map(size_t n)
{
    shared_bytes = __real_ibx_forked_map(n);
    shared_size = n;
    return shared_bytes;
}

/* Long runs of one byte too, which make a place look free, or written. */
static inline void shared_fill_at_random(uint64_t *seed)
{
    for (size_t i = 0; i + 8 <= shared_size; i += 8) {
        *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const uint64_t word = *seed >> 62 ? *seed : *seed >> 60 & 1 ? UINT64_MAX : 0;
        memcpy(shared_bytes + i, &word, 8);
    }
}

#endif
