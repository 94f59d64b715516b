/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "gpudirect/cuda.h"

#define UNCHANGED (-1)

int ibx_cuda_aside_begin(const struct ibx_cuda *cuda, int mode)
{
    int before = mode;
    if (!cuda || !cuda->thread_exchange_stream_capture_mode ||
        cuda->thread_exchange_stream_capture_mode(&before) || before == mode)
        return UNCHANGED;
    if (before < mode)
        return before;
    cuda->thread_exchange_stream_capture_mode(&before);
    return UNCHANGED;
}

void ibx_cuda_aside_end(const struct ibx_cuda *cuda, int before)
{
    if (before != UNCHANGED)
        cuda->thread_exchange_stream_capture_mode(&before);
}
