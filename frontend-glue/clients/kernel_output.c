/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * When what kernels print comes out of the driver's buffer, and that a client learns of it with the
 * reply to its wait. CUDA writes the output before a call that waits returns, and another request
 * after each wait would cost as much as the wait.
 */
#include "frontend-glue/clients/clients.h"

#include "frontend-glue/tenants/printed.h"

/* A question about a stream, or a wait for it, would end its capture. */
static bool is_captured(const struct ibx_cuda *cuda, void *stream)
{
    int capturing = 0;
    return cuda->stream_is_capturing(stream, &capturing) || capturing;
}

void ibx_kernel_output_write(struct gpu_session *x)
{
    int (*wait)(void *stream) = NULL, (*query)(void *stream) = NULL;
    *(void **)&wait = ibx_back_end_runtime("cudaStreamSynchronize");
    *(void **)&query = ibx_back_end_runtime("cudaStreamQuery");
    if (!wait || !query || !ibx_back_end_have_cuda(x))
        return;
    const int mode = ibx_cuda_capture_relax(x->cuda);
    if (!is_captured(x->cuda, IBX_CUDA_STREAM_PER_THREAD) && !query(IBX_CUDA_STREAM_PER_THREAD))
        wait(IBX_CUDA_STREAM_PER_THREAD);
    ibx_cuda_capture_restore(x->cuda, mode);
}

int ibx_kernel_output_tell(struct gpu_session *x, bool written)
{
    bool some;
    const uint64_t client = ibx_printed_anybody_told() ? ibx_clients_number(x) : 0;
    if (!client || !ibx_printed_told(client, &some))
        return 0;
    if (!written) {
        ibx_kernel_output_write(x);
        ibx_printed_told(client, &some);
    }
    return ibx_session_reply_printed(x->s, some);
}
