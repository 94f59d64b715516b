/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A driver whose device memory is addresses alone: 0 to FAKE_DEVICE_BYTES are one allocation. Host
 * memory is really read and written, so that a sanitizer sees what is named wrongly.
 */
#ifndef TESTS_FUZZ_FAKE_CUDA_H
#define TESTS_FUZZ_FAKE_CUDA_H

#define FAKE_DEVICE_BYTES (300u << 10)

/* The n-th call of the driver from now fails, 0: none. */
extern unsigned fake_cuda_fail_in;

#endif
