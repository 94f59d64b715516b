/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Kernels. GVirtuS's handler makes of a request's arguments, which lie one behind the other as the
 * kernel wants them, the pointers that the runtime's launch takes, and looks up how. The driver
 * takes them as they are. The kernel is the runtime's, by the function that the client has
 * registered. What fails is left to GVirtuS, so that exit code and last error are the runtime's.
 */
#include "frontend-glue/device_copies/copies.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define ARGUMENTS_MAX 4096u /* bytes that every driver takes */
#define HEAD          56u   /* of a request, before the arguments */

/* CU_LAUNCH_PARAM_... */
#define BUFFER_POINTER ((void *)1)
#define BUFFER_SIZE    ((void *)2)

static struct {
    int (*launch)(void *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                  unsigned block_y, unsigned block_z, unsigned shared, void *stream,
                  void **arguments, void **extra);
    int (*kernel_of)(void **kernel, const void *function);
    int (*peek_error)(void);
    int (*get_error)(void); /* and forgets it */
} cuda;
static _Atomic unsigned registrations;
static atomic_bool loaded;
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

void ibx_copies_launch_forget(void)
{
    atomic_fetch_add(&registrations, 1);
}

static bool load(struct copies *x)
{
    if (atomic_load_explicit(&loaded, memory_order_acquire))
        return cuda.launch && cuda.kernel_of;
    if (x->tried_launch)
        return false;
    x->tried_launch = true;
    pthread_mutex_lock(&loading);
    if (!atomic_load(&loaded))
        *(void **)&cuda.get_error = ibx_copies_runtime("cudaGetLastError");
    if (cuda.get_error && !atomic_load(&loaded)) {
        *(void **)&cuda.peek_error = ibx_copies_runtime("cudaPeekAtLastError");
        *(void **)&cuda.kernel_of = ibx_copies_runtime("cudaGetFuncBySymbol"); /* CUDA 11 */
        *(void **)&cuda.launch = ibx_cuda_symbol("cuLaunchKernel");
        atomic_store(&loaded, true);
    }
    pthread_mutex_unlock(&loading);
    return cuda.get_error && cuda.launch && cuda.kernel_of;
}

/* A look-up that fails sets the thread's last error, which belongs to the client. */
static bool find_kernel(struct launch_function *f)
{
    if (cuda.peek_error())
        return false;
    if (!cuda.kernel_of(&f->kernel, (const void *)(uintptr_t)f->function))
        return true;
    cuda.get_error();
    return false;
}

static struct launch_function *function_of(struct copies *x, uint64_t function)
{
    const unsigned since = atomic_load(&registrations);
    struct launch_function *f = &x->functions[(function >> 4 ^ function >> 12) % LAUNCH_FUNCTIONS];
    void *context = NULL;
    if (x->cuda->ctx_get_current(&context))
        return NULL;
    if (f->function == function && f->context == context && f->since == since)
        return f;
    *f = (struct launch_function){.function = function, .context = context, .since = since};
    if (function && find_kernel(f))
        return f;
    f->function = 0;
    return NULL;
}

int ibx_copies_launch(struct copies *x, const uint8_t *body, size_t n)
{
    _Alignas(16) uint8_t arguments[ARGUMENTS_MAX] = {0}; /* the kernel may want more than came */
    struct ibx_reader r = ibx_reader_of(body, n);
    unsigned size[6];
    const uint64_t function = ibx_get_u64(&r);
    for (unsigned i = 0; i < 6; i++)
        size[i] = ibx_get_u32(&r);
    const uint64_t shared = ibx_get_u64(&r), stream = ibx_get_u64(&r);
    size_t bytes = (size_t)ibx_get_u64(&r);
    if (r.failed || bytes != n - HEAD || bytes > sizeof(arguments) || shared > UINT_MAX ||
        !ibx_copies_able(x) || !load(x))
        return -1;
    struct launch_function *f = function_of(x, function);
    if (!f || f->refused)
        return -1;
    memcpy(arguments, body + HEAD, bytes);
    void *extra[] = {BUFFER_POINTER, arguments, BUFFER_SIZE, &bytes, NULL};
    const int rc =
        cuda.launch(f->kernel, size[0], size[1], size[2], size[3], size[4], size[5],
                    (unsigned)shared, (void *)(uintptr_t)stream, NULL, bytes ? extra : NULL);
    f->refused = rc;
    return rc;
}
