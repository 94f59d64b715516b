/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Calls that no GVirtuS has, made of those that it has: copies from variables of the device, by the
 * address that the back end knows, and the profiler's, which have nothing to do here.
 */
#include "frontend-glue/preload/internal.h"

int cudaGetSymbolAddress(void **address, const void *symbol);
int cudaGetSymbolSize(size_t *n, const void *symbol);

/* Where the copy begins. GVirtuS's cudaGetSymbolSize, where it works, tells what is too long. */
static int find_variable(const void *symbol, size_t n, size_t offset, char **from)
{
    void *address = NULL;
    size_t size = 0;
    __typeof__(&cudaGetSymbolSize) measure = NEXT(cudaGetSymbolSize);
    int rc = CALL_NEXT(cudaGetSymbolAddress, &address, symbol);
    if (rc)
        return rc;
    if (!address)
        return ibx_frontend_fail(CUDA_INVALID_SYMBOL);
    if (measure && !measure(&size, symbol) && size && (offset > size || n > size - offset))
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
