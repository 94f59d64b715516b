/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A double of CUDA's runtime: symbols that a back end's handlers have registered under a client's
 * address, and a thread's last error. */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#define EXPORT         __attribute__((visibility("default")))
#define SYMBOLS        64
#define INVALID_SYMBOL 13

static struct {
    const void *symbol;
    void *device;
    size_t size;
} symbols[SYMBOLS];
static unsigned count;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static __thread int last_error;

/* In place of __cudaRegisterVar(). */
EXPORT int ibx_double_register_var(const void *symbol, uint64_t device, size_t size)
{
    pthread_mutex_lock(&mutex);
    unsigned at = count < SYMBOLS ? count++ : SYMBOLS - 1;
    symbols[at].symbol = symbol;
    symbols[at].device = (void *)(uintptr_t)device;
    symbols[at].size = size;
    pthread_mutex_unlock(&mutex);
    return 0;
}

static int look_up(const void *symbol, void **device, size_t *size)
{
    int rc = INVALID_SYMBOL;
    pthread_mutex_lock(&mutex);
    for (unsigned i = 0; i < count && rc; i++) {
        if (symbols[i].symbol != symbol)
            continue;
        if (device)
            *device = symbols[i].device;
        if (size)
            *size = symbols[i].size;
        rc = 0;
    }
    pthread_mutex_unlock(&mutex);
    last_error = rc ? rc : last_error; /* a success leaves it as it is */
    return rc;
}

EXPORT int cudaGetSymbolAddress(void **device, const void *symbol)
{
    return look_up(symbol, device, NULL);
}

EXPORT int cudaGetSymbolSize(size_t *size, const void *symbol)
{
    return look_up(symbol, NULL, size);
}

EXPORT int cudaPeekAtLastError(void)
{
    return last_error;
}

EXPORT int cudaGetLastError(void)
{
    int rc = last_error;
    last_error = 0;
    return rc;
}

/* As if another call had failed. */
EXPORT int ibx_double_fail(int code)
{
    last_error = code;
    return 0;
}
