/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Functions of cuBLASLt that are no request of their own, or need more than one. */
#include "frontend-glue/preload/math_libraries/math_calls.h"

#include "frontend-glue/preload/preload.h"

#include <stdatomic.h>

#define SUCCESS        0
#define INVALID_VALUE  7
#define INTERNAL_ERROR 14
#define NOT_SUPPORTED  15
#define RESULT         96  /* bytes of a cublasLtMatmulHeuristicResult_t */
#define RESULTS_MOST   128 /* of one search; more do not fit into one reply */

_Static_assert(RESULTS_MOST *RESULT + 4 <= IBX_MATH_OUT_MOST, "as one reply has");

int cudaRuntimeGetVersion(int *version);

/* GVirtuS has some functions of the library, with descriptors at the back end; a program uses
 * either GVirtuS's functions or these. If there was no back end to ask, it is asked again next
 * time. */
bool ibx_frontend_lt_is_ours(void)
{
    enum { UNKNOWN, OURS, THEIRS };
    static atomic_int known;
    static _Thread_local bool asking;
    int is = atomic_load_explicit(&known, memory_order_acquire), number = 0;
    const union ibx_math_value values[] = {{.i = 0}, {.p = &number}};
    if (is != UNKNOWN || asking)
        return is == OURS || asking;
    asking = true;
    const int status = ibx_frontend_math(IBX_MATH_cublasLtGetProperty, values);
    asking = false;
    is = !status ? OURS : status == NOT_SUPPORTED ? THEIRS : UNKNOWN;
    atomic_store_explicit(&known, is, memory_order_release);
    return is == OURS;
}

/* Limits a count that the back end returned to the number that was requested: the program has room
 * for no more. */
static int bounded(int status, int wanted, int *count)
{
    if (status || !count || (*count >= 0 && *count <= wanted))
        return status;
    *count = 0;
    return INTERNAL_ERROR;
}

int cublasLtMatmulAlgoGetIds(void *handle, int compute, int scale, int a, int b, int c, int d,
                             int wanted, void *ids, void *count)
{
    const union ibx_math_value values[] = {
        {.p = handle}, {.i = compute}, {.i = scale},  {.i = a},   {.i = b},
        {.i = c},      {.i = d},       {.i = wanted}, {.p = ids}, {.p = count}};
    return bounded(ibx_frontend_math(IBX_MATH_cublasLtMatmulAlgoGetIds, values), wanted, count);
}

/* A search for a given algorithm reads that algorithm from where the results are written, which the
 * request does not contain. */
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *product, void *a, void *b, void *c, void *d,
                                   void *preference, int wanted, void *results, void *count)
{
    const union ibx_math_value values[] = {
        {.p = handle},     {.p = product},
        {.p = a},          {.p = b},
        {.p = c},          {.p = d},
        {.p = preference}, {.i = wanted < RESULTS_MOST ? wanted : RESULTS_MOST},
        {.p = results},    {.p = count}};
    uint32_t search = 0;
    if (ibx_frontend_lt_is_ours()) {
        if (wanted <= 0 || !results || !count)
            return INVALID_VALUE;
        if (cublasLtMatmulPreferenceGetAttribute(preference, IBX_PREFERENCE_SEARCH, &search,
                                                 sizeof(search), NULL))
            return INVALID_VALUE;
        if (search)
            return NOT_SUPPORTED;
    }
    return bounded(ibx_frontend_math(IBX_MATH_cublasLtMatmulAlgoGetHeuristic, values), values[7].i,
                   count);
}

/* The same limit for the bytes of an attribute. With no room, the count is the size that is needed.
 */
static int get_attribute(unsigned number, const union ibx_math_value *values)
{
    const int status = ibx_frontend_math(number, values);
    const uint64_t room = values[3].l;
    uint64_t *written = values[4].p;
    if (status || !written || !room || *written <= room)
        return status;
    *written = 0;
    return INTERNAL_ERROR;
}

int cublasLtMatmulAlgoCapGetAttribute(void *algorithm, int which, void *value, uint64_t room,
                                      void *written)
{
    const union ibx_math_value values[] = {
        {.p = algorithm}, {.i = which}, {.p = value}, {.l = room}, {.p = written}};
    return get_attribute(IBX_MATH_cublasLtMatmulAlgoCapGetAttribute, values);
}

int cublasLtMatmulAlgoConfigGetAttribute(void *algorithm, int which, void *value, uint64_t room,
                                         void *written)
{
    const union ibx_math_value values[] = {
        {.p = algorithm}, {.i = which}, {.p = value}, {.l = room}, {.p = written}};
    return get_attribute(IBX_MATH_cublasLtMatmulAlgoConfigGetAttribute, values);
}

/* ------------------------------------------------------------------------------- the library */

const char *cublasLtGetStatusName(int status)
{
    return cublasGetStatusName(status);
}

const char *cublasLtGetStatusString(int status)
{
    return cublasGetStatusString(status);
}

/* The version of the back end's library; 0: it has none. */
size_t cublasLtGetVersion(void)
{
    int parts[3] = {0}; /* major, minor, patch */
    for (int i = 0; i < 3; i++) {
        if (cublasLtGetProperty(i, &parts[i]))
            return 0;
    }
    return (size_t)parts[0] * 10000 + (size_t)parts[1] * 100 + (size_t)parts[2];
}

size_t cublasLtGetCudartVersion(void)
{
    int version = 0;
    return CALL_NEXT(cudaRuntimeGetVersion, &version) ? 0 : (size_t)version;
}

/* Ignored: the back end's cache of searches is for all its clients. */
int cublasLtHeuristicsCacheSetCapacity(size_t capacity)
{
    (void)capacity;
    return SUCCESS;
}

/* Ignored: the back end's processor is for all its clients. */
unsigned cublasLtDisableCpuInstructionsSetMask(unsigned mask)
{
    static atomic_uint is;
    return atomic_exchange(&is, mask);
}

/* The library's log is at the back end, so these do nothing. */
int cublasLtLoggerSetCallback(void (*callback)(int level, const char *function,
                                               const char *message))
{
    (void)callback;
    return SUCCESS;
}

int cublasLtLoggerSetFile(FILE *file)
{
    (void)file;
    return SUCCESS;
}

int cublasLtLoggerOpenFile(const char *path)
{
    (void)path;
    return SUCCESS;
}

int cublasLtLoggerSetLevel(int level)
{
    return level < 0 || level > 5 ? INVALID_VALUE : SUCCESS;
}

int cublasLtLoggerSetMask(int mask)
{
    (void)mask;
    return SUCCESS;
}

int cublasLtLoggerForceDisable(void)
{
    return SUCCESS;
}
