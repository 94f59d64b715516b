/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Work that GVirtuS's handlers would capture wrongly: copies from or to host memory, which would be
 * captured with an address of the back end, and functions of the program. Copies between memory of
 * both hosts are functions, too.
 */
#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

static int capture(void *stream, uint64_t queue, uint64_t number)
{
    struct extension_request e;
    ibx_frontend_request_begin(&e, IBX_EXT_HOST_CAPTURE, "cudaLaunchHostFunc");
    ibx_put_u64(&e.body, (uintptr_t)stream);
    ibx_put_u64(&e.body, queue);
    ibx_put_u64(&e.body, number);
    return ibx_frontend_request_make(&e, NULL, 0);
}

int ibx_frontend_capture_function(void *stream, void (*function)(void *argument), void *argument)
{
    uint64_t queue;
    const uint64_t number = ibx_frontend_host_repeated(function, argument, &queue);
    return number ? capture(stream, queue, number) : ibx_frontend_fail(CUDA_NOT_SUPPORTED);
}

int ibx_frontend_capture_copy(const struct ibx_cuda_memcpy3d *copy, void *stream)
{
    struct extension_request e;
    uint64_t queue;
    int rc = CUDA_SUCCESS;
    struct ibx_cuda_memcpy3d p = *copy;
    if (ibx_frontend_copy_is_on_host(&p))
        p.kind = CUDA_MEMCPY_ON_HOST;
    ibx_frontend_request_begin(&e, IBX_EXT_CAPTURE_COPY, "cudaMemcpyAsync");
    ibx_put_u64(&e.body, (uintptr_t)stream);
    if (ibx_frontend_slot_copy(&e.body, &p) && ibx_frontend_slot_made(&e, NULL, 0, &rc))
        return rc;
    const uint64_t number = ibx_frontend_copy_function(&p, &queue, &rc);
    return number ? capture(stream, queue, number) : ibx_frontend_fail(rc);
}
