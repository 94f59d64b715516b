/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Calls that no GVirtuS has, made of those that it has: copies from variables of the device, by the
 * address that the back end knows, and the profiler's, which have nothing to do here.
 */
#include "frontend-glue/preload/internal.h"

/* The front ends that have cudaLaunchKernelExC (G4, G5) cannot read the reply of their own
 * cudaGetSymbolAddress, and end the process; their back ends do not know variables by the
 * application's address of them. */
static bool can_ask_gvirtus(void)
{
    return !NEXT(cudaLaunchKernelExC);
}

/* False: GVirtuS has to be asked, which may know the variable by its name. */
static bool asked(enum ibx_extra number, const char *call, const void *symbol, uint64_t *answer,
                  int *rc)
{
    struct extra extra;
    uint8_t bytes[8] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    ibx_frontend_extra_begin(&extra, number, call);
    ibx_put_u64(&extra.body, (uintptr_t)symbol);
    if (!ibx_frontend_plugin() || !ibx_frontend_extra_try(&extra, bytes, sizeof(bytes), rc) ||
        *rc < 0 || ((*rc == CUDA_NOT_SUPPORTED || *rc == CUDA_INVALID_SYMBOL) && can_ask_gvirtus()))
        return false;
    if (*rc)
        ibx_frontend_fail(*rc);
    else
        *answer = ibx_get_u64(&r);
    return true;
}

int cudaGetSymbolAddress(void **address, const void *symbol)
{
    uint64_t answer = 0;
    int rc;
    if (!asked(IBX_EXTRA_SYMBOL_ADDRESS, "cudaGetSymbolAddress", symbol, &answer, &rc))
        return CALL_NEXT(cudaGetSymbolAddress, address, symbol);
    if (!rc)
        *address = (void *)(uintptr_t)answer;
    return rc;
}

int cudaGetSymbolSize(size_t *n, const void *symbol)
{
    uint64_t answer = 0;
    int rc;
    if (!asked(IBX_EXTRA_SYMBOL_SIZE, "cudaGetSymbolSize", symbol, &answer, &rc))
        return CALL_NEXT(cudaGetSymbolSize, n, symbol);
    if (!rc)
        *n = answer;
    return rc;
}

/* Where the copy begins. The variable's size, where it is known, tells what is too long. */
static int find_variable(const void *symbol, size_t n, size_t offset, char **from)
{
    void *address = NULL;
    size_t size = 0;
    int rc = cudaGetSymbolAddress(&address, symbol);
    if (rc)
        return rc;
    if (!address)
        return ibx_frontend_fail(CUDA_INVALID_SYMBOL);
    if (!cudaGetSymbolSize(&size, symbol) && size && (offset > size || n > size - offset))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    *from = (char *)address + offset;
    return CUDA_SUCCESS;
}

/* To the host unless it says otherwise: the variable is the device's. */
static int kind_of(int kind)
{
    return kind == CUDA_MEMCPY_DEFAULT ? CUDA_MEMCPY_FROM_DEVICE : kind;
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
    return rc ? rc : cudaMemcpy(to, from, n, kind_of(kind));
}

int cudaMemcpyFromSymbolAsync(void *to, const void *symbol, size_t n, size_t offset, int kind,
                              void *stream)
{
    char *from = NULL;
    if (!is_from_device(kind))
        return ibx_frontend_fail(CUDA_INVALID_DIRECTION);
    int rc = find_variable(symbol, n, offset, &from);
    return rc ? rc : cudaMemcpyAsync(to, from, n, kind_of(kind), stream);
}

int cudaProfilerStart(void)
{
    return CUDA_SUCCESS;
}

int cudaProfilerStop(void)
{
    return CUDA_SUCCESS;
}
