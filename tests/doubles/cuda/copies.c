/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A libcudart with the functions that bench-clients calls, which do nothing. A process that
 * allocates as many bytes of device memory as IBX_TEST_KILLED says is killed there. */
#include "tests/doubles/cuda/runtime.h"

#include <signal.h>
#include <stdlib.h>

static char no_memory, no_stream;

EXPORT int cudaMalloc(void **memory, size_t bytes)
{
    const char *killed = getenv("IBX_TEST_KILLED");
    if (killed && strtoull(killed, NULL, 10) == bytes)
        raise(SIGKILL);
    *memory = &no_memory;
    return 0;
}

EXPORT int cudaMallocHost(void **memory, size_t bytes)
{
    *memory = malloc(bytes);
    return *memory ? 0 : 2;
}

EXPORT int cudaMemcpy(void *to, const void *from, size_t bytes, int kind)
{
    (void)to, (void)from, (void)bytes, (void)kind;
    return 0;
}

EXPORT int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream)
{
    (void)stream;
    return cudaMemcpy(to, from, bytes, kind);
}

EXPORT int cudaStreamCreate(void **stream)
{
    *stream = &no_stream;
    return 0;
}

EXPORT int cudaStreamSynchronize(void *stream)
{
    (void)stream;
    return 0;
}
