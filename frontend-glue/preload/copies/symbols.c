/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Copies to and from variables of the device, which no GVirtuS has, made as copies to the addresses
 * that the back end knows; and the profiler's calls, which do nothing here.
 */
#include "frontend-glue/preload/copies/copies.h"
#include "frontend-glue/preload/kernels/kernels.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

/* Whether GVirtuS's own functions may be asked for a variable. The front ends that have
 * cudaLaunchKernelExC (G4, G5) cannot read the reply to their own cudaGetSymbolAddress, and end the
 * process; and their back ends do not know variables by their addresses in the application. */
static bool can_ask_gvirtus(void)
{
    return !NEXT(cudaLaunchKernelExC);
}

/* Asks the back end. False: it does not know the variable; GVirtuS may know it by its name. */
static bool asked(enum ibx_extension number, const char *call, const void *symbol, uint64_t *answer,
                  int *rc)
{
    struct extension_request own;
    uint8_t bytes[8] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    ibx_frontend_request_begin(&own, number, call);
    ibx_put_u64(&own.body, (uintptr_t)symbol);
    if (!ibx_frontend_plugin() || !ibx_frontend_request_try(&own, bytes, sizeof(bytes), rc) ||
        *rc < 0 || ((*rc == CUDA_NOT_SUPPORTED || *rc == CUDA_INVALID_SYMBOL) && can_ask_gvirtus()))
        return false;
    if (*rc)
        ibx_frontend_fail(*rc);
    else
        *answer = ibx_get_u64(&r);
    return true;
}

/* The address of the variable, and its size; 0: unknown. */
static int find_place(const void *symbol, struct place *where)
{
    void *address = NULL;
    int rc;
    /* Nvcc turns the name of a __managed__ variable into its address. */
    if (ibx_frontend_is_managed(symbol)) {
        *where = (struct place){.at = (uintptr_t)symbol, .n = ibx_frontend_managed_size(symbol)};
        return CUDA_SUCCESS;
    }
    if (ibx_frontend_variable(symbol, where, &rc))
        return rc;
    *where = (struct place){0};
    if (!asked(IBX_EXT_SYMBOL_ADDRESS, "cudaGetSymbolAddress", symbol, &where->at, &rc)) {
        rc = CALL_NEXT(cudaGetSymbolAddress, &address, symbol);
        where->at = (uintptr_t)address;
    }
    return rc;
}

int cudaGetSymbolAddress(void **address, const void *symbol)
{
    struct place where;
    if (!address)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    const int rc = find_place(symbol, &where);
    if (!rc)
        *address = (void *)(uintptr_t)where.at;
    return rc;
}

int cudaGetSymbolSize(size_t *n, const void *symbol)
{
    struct place where;
    uint64_t answer = 0;
    int rc;
    if (!n)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (ibx_frontend_is_managed(symbol) && (where.n = ibx_frontend_managed_size(symbol))) {
        *n = where.n;
        return CUDA_SUCCESS;
    }
    if (ibx_frontend_variable(symbol, &where, &rc)) {
        *n = rc ? *n : where.n;
        return rc;
    }
    if (!asked(IBX_EXT_SYMBOL_SIZE, "cudaGetSymbolSize", symbol, &answer, &rc))
        return CALL_NEXT(cudaGetSymbolSize, n, symbol);
    if (!rc)
        *n = answer;
    return rc;
}

/* The address at which the copy begins. A copy beyond the end is refused if the size is known. */
static int find_variable(const void *symbol, size_t n, size_t offset, char **at)
{
    struct place where;
    const int rc = find_place(symbol, &where);
    if (rc)
        return rc;
    if (!where.at)
        return ibx_frontend_fail(CUDA_INVALID_SYMBOL);
    if (!where.n && !ibx_frontend_is_managed(symbol))
        cudaGetSymbolSize(&where.n, symbol);
    if (where.n && (offset > where.n || n > where.n - offset))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    *at = (char *)(uintptr_t)(where.at + offset);
    return CUDA_SUCCESS;
}

/* The direction of a copy from a variable, which is in device memory. */
static int kind_of(const void *to, int kind)
{
    if (kind != CUDA_MEMCPY_DEFAULT)
        return kind;
    return ibx_frontend_is_device(to) ? CUDA_MEMCPY_ON_DEVICE : CUDA_MEMCPY_FROM_DEVICE;
}

static bool is_from_device(int kind)
{
    return kind == CUDA_MEMCPY_FROM_DEVICE || kind == CUDA_MEMCPY_ON_DEVICE ||
           kind == CUDA_MEMCPY_DEFAULT;
}

int cudaMemcpyFromSymbol(void *to, const void *symbol, size_t n, size_t offset, int kind)
{
    char *from = NULL;
    if (!is_from_device(kind))
        return ibx_frontend_fail(CUDA_INVALID_DIRECTION);
    int rc = find_variable(symbol, n, offset, &from);
    return rc ? rc : cudaMemcpy(to, from, n, kind_of(to, kind));
}

int cudaMemcpyFromSymbolAsync(void *to, const void *symbol, size_t n, size_t offset, int kind,
                              void *stream)
{
    char *from = NULL;
    if (!is_from_device(kind))
        return ibx_frontend_fail(CUDA_INVALID_DIRECTION);
    int rc = find_variable(symbol, n, offset, &from);
    return rc ? rc : cudaMemcpyAsync(to, from, n, kind_of(to, kind), stream);
}

/* The direction of a copy to a variable. */
static int kind_to(const void *from, int kind)
{
    if (kind != CUDA_MEMCPY_DEFAULT)
        return kind;
    return ibx_frontend_is_device(from) ? CUDA_MEMCPY_ON_DEVICE : CUDA_MEMCPY_TO_DEVICE;
}

static bool is_to_device(int kind)
{
    return kind == CUDA_MEMCPY_TO_DEVICE || kind == CUDA_MEMCPY_ON_DEVICE ||
           kind == CUDA_MEMCPY_DEFAULT;
}

/* Whether the variable is registered here. If not, GVirtuS may know it. */
static bool is_known(const void *symbol)
{
    struct place where;
    int rc;
    return ibx_frontend_is_managed(symbol) || ibx_frontend_variable(symbol, &where, &rc);
}

/* GVirtuS reads the bytes before it knows whether it is a variable, and G5 returns success if it is
 * none. */
static int to_unknown(const void *symbol, const void *from, size_t n, size_t offset, int kind)
{
    if (ibx_frontend_plugin() && ibx_frontend_no_variable(symbol))
        return ibx_frontend_fail(CUDA_INVALID_SYMBOL);
    const bool of_host = kind_to(from, kind) == CUDA_MEMCPY_TO_DEVICE;
    const int rc = of_host ? ibx_frontend_before_host(from, n, NULL) : CUDA_SUCCESS;
    return rc ? rc : CALL_NEXT(cudaMemcpyToSymbol, symbol, from, n, offset, kind);
}

int cudaMemcpyToSymbol(const void *symbol, const void *from, size_t n, size_t offset, int kind)
{
    char *to = NULL;
    if (!is_known(symbol))
        return to_unknown(symbol, from, n, offset, kind);
    if (!is_to_device(kind))
        return ibx_frontend_fail(CUDA_INVALID_DIRECTION);
    const int rc = find_variable(symbol, n, offset, &to);
    return rc ? rc : cudaMemcpy(to, from, n, kind_to(from, kind));
}

/* The asynchronous call, which GVirtuS does not have. */
static int to_unknown_behind(const void *symbol, const void *from, size_t n, size_t offset,
                             int kind, void *stream)
{
    if (!ibx_frontend_plugin())
        return CALL_NEXT(cudaMemcpyToSymbolAsync, symbol, from, n, offset, kind, stream);
    int rc = ibx_frontend_stream_wait(stream);
    const int mode = ibx_frontend_relax();
    if (!rc)
        rc = to_unknown(symbol, from, n, offset, kind);
    ibx_frontend_relax_end(mode);
    return rc || !stream ? rc : ibx_frontend_stream_wait(NULL);
}

int cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t n, size_t offset, int kind,
                            void *stream)
{
    char *to = NULL;
    if (!is_known(symbol))
        return to_unknown_behind(symbol, from, n, offset, kind, stream);
    if (!is_to_device(kind))
        return ibx_frontend_fail(CUDA_INVALID_DIRECTION);
    const int rc = find_variable(symbol, n, offset, &to);
    return rc ? rc : cudaMemcpyAsync(to, from, n, kind_to(from, kind), stream);
}

int cudaProfilerStart(void)
{
    return CUDA_SUCCESS;
}

int cudaProfilerStop(void)
{
    return CUDA_SUCCESS;
}
