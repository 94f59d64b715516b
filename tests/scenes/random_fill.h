/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Bytes that look random and are the same for the same seed, in C and C++. */
#ifndef IBX_TESTS_SCENES_RANDOM_FILL_H
#define IBX_TESTS_SCENES_RANDOM_FILL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
void random_fill(void *to, size_t length, uint64_t seed);
#ifdef __cplusplus
}
#endif

#endif
