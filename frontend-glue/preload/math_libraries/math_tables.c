/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Tables of cuRAND, which programs copy to the device for their own kernels. The back end has the
 * library, and so the tables: they come through memory of the device, since they do not fit into a
 * reply, and stay in this process, as natively in the library. Unlike natively, the first call
 * waits for the work of the device, since cudaFree() does.
 */
#include "frontend-glue/preload/math_libraries/math_calls.h"

#include <stdlib.h>

/* The prototypes are in CUDA's header. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

/* curandStatus_t */
#define ALLOCATION_FAILED 102
#define OUT_OF_RANGE      104
#define INIT_FAILED       203
/* curandDirectionVectorSet_t */
#define FIRST_SET 101

/* Copies the table to the host. Returns cuRAND's status. */
static int fetch(enum ibx_extension_table table, void *bytes, size_t n)
{
    struct extension_request e;
    uint8_t answer[4] = {0};
    struct ibx_reader r = ibx_reader_of(answer, sizeof(answer));
    void *memory = NULL;
    int status = INIT_FAILED;
    if (cudaMalloc(&memory, n))
        return ALLOCATION_FAILED;
    ibx_frontend_request_begin(&e, IBX_EXT_RANDOM_TABLE, "curandGetDirectionVectors32");
    ibx_put_u32(&e.body, table);
    ibx_put_u64(&e.body, (uintptr_t)memory);
    if (!ibx_frontend_request_make(&e, answer, sizeof(answer)))
        status = (int)ibx_get_u32(&r);
    if (!status && cudaMemcpy(bytes, memory, n, CUDA_MEMCPY_FROM_DEVICE))
        status = INIT_FAILED;
    cudaFree(memory);
    return status;
}

static int fetch_unnoticed(enum ibx_extension_table table, void *bytes, size_t n)
{
    struct ibx_math_unnoticed unnoticed;
    ibx_math_unnoticed_begin(&unnoticed);
    const int status = fetch(table, bytes, n);
    ibx_math_unnoticed_end(&unnoticed, status);
    return status;
}

static int table_of(enum ibx_extension_table table, void **to)
{
    static _Atomic(void *) known[IBX_TABLES];
    const size_t n = ibx_table_bytes(table);
    void *there = atomic_load(&known[table]), *bytes = there ? NULL : malloc(n);
    int status = there ? 0 : bytes ? fetch_unnoticed(table, bytes, n) : ALLOCATION_FAILED;
    if (!there && !status && !atomic_compare_exchange_strong(&known[table], &there, bytes))
        free(bytes); /* another thread was faster */
    else if (!there && !status)
        there = bytes;
    else
        free(bytes);
    if (!status)
        *to = there;
    return status;
}

#define EXPORTED __attribute__((visibility("default")))

EXPORTED int curandGetDirectionVectors32(void **vectors, int set)
{
    return vectors && (set == FIRST_SET || set == FIRST_SET + 1)
               ? table_of((enum ibx_extension_table)(IBX_TABLE_VECTORS_32 + set - FIRST_SET),
                          vectors)
               : OUT_OF_RANGE;
}

EXPORTED int curandGetDirectionVectors64(void **vectors, int set)
{
    return vectors && (set == FIRST_SET + 2 || set == FIRST_SET + 3)
               ? table_of((enum ibx_extension_table)(IBX_TABLE_VECTORS_32 + set - FIRST_SET),
                          vectors)
               : OUT_OF_RANGE;
}

EXPORTED int curandGetScrambleConstants32(void **constants)
{
    return constants ? table_of(IBX_TABLE_CONSTANTS_32, constants) : OUT_OF_RANGE;
}

EXPORTED int curandGetScrambleConstants64(void **constants)
{
    return constants ? table_of(IBX_TABLE_CONSTANTS_64, constants) : OUT_OF_RANGE;
}
