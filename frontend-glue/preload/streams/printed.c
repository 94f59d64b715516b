/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The output of printf in kernels, which the driver writes at the back end. If a module of the
 * program calls printf, the output is fetched after each call that waits, when CUDA would write it.
 */
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include <errno.h>
#include <stdio.h>

static atomic_bool prints; /* a module of this program calls printf */

/* Fetches and writes one reply; returns whether there may be more. */
static bool fetch(bool all)
{
    struct extension_request e;
    uint8_t bytes[4 + IBX_EXT_PRINTED_MOST] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    int code;
    ibx_frontend_request_begin(&e, IBX_EXT_PRINTED, "printf of a kernel");
    ibx_put_u8(&e.body, all);
    if (!ibx_frontend_request_try(&e, bytes, sizeof(bytes), &code))
        return false;
    if (code < 0 || code == CUDA_NOT_SUPPORTED)
        atomic_store(&prints, false);
    const uint32_t n = ibx_get_u32(&r);
    if (code || n > IBX_EXT_PRINTED_MOST)
        return false;
    fwrite(ibx_get_bytes(&r, n), 1, n, stdout);
    return n == IBX_EXT_PRINTED_MOST;
}

static bool asks(void)
{
    return atomic_load_explicit(&prints, memory_order_relaxed) && !ibx_frontend_capturing();
}

void ibx_frontend_printed(void)
{
    if (!asks())
        return;
    const int before = errno;
    bool more = fetch(true);
    while (more)
        more = fetch(false);
    errno = before;
}

void ibx_frontend_prints(void)
{
    if (!atomic_exchange(&prints, true))
        fetch(false);
}

void ibx_frontend_print_all(void)
{
    if (asks())
        cudaDeviceSynchronize();
}

int ibx_frontend_waited(int rc, uint64_t stream)
{
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    if (rc || !calls)
        return rc;
    ibx_frontend_printed();
    rc = calls->failure(stream);
    return rc ? ibx_frontend_fail(rc) : CUDA_SUCCESS;
}
