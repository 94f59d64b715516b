/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What unit tests of gpudirect/ begin with: device 0, ours and as an application has it. */
#ifndef IBX_TESTS_SCENES_CUDA_UNIT_H
#define IBX_TESTS_SCENES_CUDA_UNIT_H

#include "gpudirect/cuda.h"
#include "tests/scenes/cuda_application.h"
#include "tests/scenes/unit.h"

#include <stdlib.h>

static const struct ibx_cuda *cuda;
static const struct cuda_calls *app;

/* For a group's setup. */
static inline int find_cuda(void **state)
{
    struct ibx_error err = {0};
    (void)state;
    app = cuda_application();
    cuda_application_use(0);
    cuda = ibx_cuda_load(&err);
    if (!cuda)
        print_error("%s\n", err.message);
    return cuda ? 0 : -1;
}

/* The first `n` bytes of this device memory. */
static inline void assert_on_device(uint64_t device, const uint8_t *expected, size_t n)
{
    uint8_t *got = malloc(n);
    assert_true(app->peek(device, got, n));
    assert_memory_equal(got, expected, n);
    free(got);
}

#endif
