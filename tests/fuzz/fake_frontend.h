/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Replaces preload/gvirtus.c, that is, the plugin and GVirtuS's front end, and what preload's
 * files about graphs, arrays and pools need of other files. The fuzzer's input has one answer
 * for each request: u8 how (up to 199: success, from 200 on: an error), u16 n and n bytes of the
 * answer. Bytes for which the caller has no room are dropped, and the rest of the caller's room
 * is filled with 0. After the last answer each request fails. */
#ifndef IBX_TESTS_FUZZ_FAKE_FRONTEND_H
#define IBX_TESTS_FUZZ_FAKE_FRONTEND_H

#include "common/wire.h"
#include "tests/fuzz/require.h"

void fake_frontend_begin(struct ibx_reader answers);
/* Reads the start of an input, which says what a program does: u8 n, and n % 32 steps of `bytes`
 * bytes each. The rest of the input is the answers. Returns NULL if the input is shorter. */
const uint8_t *fake_frontend_steps(const uint8_t *data, size_t size, size_t bytes, unsigned *count);

#endif
