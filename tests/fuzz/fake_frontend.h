/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The plugin and GVirtuS's front end in the place of preload/gvirtus.c, and what preload's files
 * about graphs, arrays and pools want of its others. The fuzzer's input has one answer for each
 * request that is made: u8 how (up to 199 a success, 200 and up an error), u16 n and n bytes of the
 * answer. Bytes for which the caller has no room are left out, and 0 fills the rest of its room.
 * After the last answer each request fails. */
#ifndef IBX_TESTS_FUZZ_FAKE_FRONTEND_H
#define IBX_TESTS_FUZZ_FAKE_FRONTEND_H

#include "common/wire.h"
#include "tests/fuzz/require.h"

void fake_frontend_begin(struct ibx_reader answers);
/* An input that begins with what a program does: u8 n, and n % 32 steps of so many bytes. The rest
 * is the answers from here on. NULL: it has fewer. */
const uint8_t *fake_frontend_steps(const uint8_t *data, size_t size, size_t bytes, unsigned *count);

#endif
