/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A driver whose device memory consists of addresses only: 0 to FAKE_DEVICE_BYTES are one
 * allocation. Host memory is really read and written, so that a sanitizer detects wrong
 * addresses. */
#ifndef TESTS_FUZZ_FAKE_CUDA_H
#define TESTS_FUZZ_FAKE_CUDA_H

#define FAKE_DEVICE_BYTES (300u << 10)

/* Which call of the driver fails, counted from now; 0: none. */
extern unsigned fake_cuda_fail_in;

#endif
