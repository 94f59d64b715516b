/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "gpudirect/cuda.h"

int ibx_cuda_capture_relax(const struct ibx_cuda *cuda)
{
    int mode = IBX_CUDA_CAPTURE_RELAXED;
    if (!cuda || !cuda->thread_exchange_stream_capture_mode ||
        cuda->thread_exchange_stream_capture_mode(&mode))
        return IBX_CUDA_CAPTURE_RELAXED;
    return mode;
}

void ibx_cuda_capture_restore(const struct ibx_cuda *cuda, int before)
{
    if (before != IBX_CUDA_CAPTURE_RELAXED)
        cuda->thread_exchange_stream_capture_mode(&before);
}
