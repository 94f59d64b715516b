/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A double of CUDA's runtime: symbols that a back end's handlers have registered under a client's
 * address, a thread's last error, and short calls, which the driver's double runs. */
#include "tests/doubles/cuda/driver.h"
#include "tests/doubles/cuda/runtime.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define SYMBOLS        64
#define INVALID_SYMBOL 13
#define INVALIDATED    901
#define IMPLICIT       906
#define NOT_READY      600
#define EXTERNAL       1u /* of a record and a wait */

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

/* ------------------------------------------------------------------- by the driver's double */

static _Atomic unsigned long calls;

void *driver_function(const char *name)
{
    void *handle = dlopen(getenv("IBX_LIBCUDA"), RTLD_LAZY | RTLD_NOLOAD);
    return handle ? dlsym(handle, name) : NULL;
}

/* How many of the calls below were ever made. */
EXPORT unsigned long ibx_double_runtime_calls(void)
{
    return calls;
}

/* "Not ready" does not become the last error. */
int returns(int rc)
{
    calls++;
    last_error = rc && rc != NOT_READY ? rc : last_error;
    return rc;
}

/* A function of the driver's that takes one or two pointers. */
static int with(const char *name, void *first, void *second)
{
    int (*function)(void *, void *, unsigned) = NULL;
    *(void **)&function = driver_function(name);
    return returns(function ? function(first, second, 0) : 999);
}

EXPORT int cudaEventRecord(void *event, void *stream)
{
    return with("cuEventRecord", event, stream);
}

/* cudaEventRecordExternal and cudaEventWaitExternal make nodes in captures. */
EXPORT int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags)
{
    if (flags > EXTERNAL)
        return returns(1);
    return flags && captures_event(stream, true, event) ? returns(0)
                                                        : cudaEventRecord(event, stream);
}

EXPORT int cudaStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    if (flags > EXTERNAL)
        return returns(1);
    return flags && captures_event(stream, false, event) ? returns(0)
                                                         : with("cuStreamWaitEvent", stream, event);
}

EXPORT int cudaEventQuery(void *event)
{
    return with("cuEventQuery", event, NULL);
}

EXPORT int cudaEventDestroy(void *event)
{
    return with("cuEventDestroy_v2", event, NULL);
}

EXPORT int cudaStreamCreateWithFlags(void **stream, unsigned flags)
{
    return with("cuStreamCreate", stream, (void *)(uintptr_t)flags);
}

EXPORT int cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority)
{
    int (*create)(void **made, unsigned of_flags, int of_priority) = NULL;
    *(void **)&create = driver_function("cuStreamCreateWithPriority");
    return returns(create(stream, flags, priority));
}

EXPORT int cudaStreamDestroy(void *stream)
{
    return with("cuStreamDestroy_v2", stream, NULL);
}

EXPORT int cudaIpcGetEventHandle(void *handle, void *event)
{
    return with("cuIpcGetEventHandle", handle, event);
}

EXPORT int cudaIpcGetMemHandle(void *handle, void *memory)
{
    return with("cuIpcGetMemHandle", handle, memory);
}

struct handle {
    char bytes[64];
};

EXPORT int cudaIpcOpenEventHandle(void **event, struct handle handle)
{
    int (*open_event)(void **event, struct handle) = NULL;
    *(void **)&open_event = driver_function("cuIpcOpenEventHandle");
    return returns(open_event(event, handle));
}

EXPORT int cudaIpcOpenMemHandle(void **memory, struct handle handle, unsigned flags)
{
    int (*open_memory)(void **memory, struct handle, unsigned flags) = NULL;
    *(void **)&open_memory = driver_function("cuIpcOpenMemHandle_v2");
    return returns(open_memory(memory, handle, flags));
}

EXPORT int cudaIpcCloseMemHandle(void *memory)
{
    return with("cuIpcCloseMemHandle", memory, NULL);
}

EXPORT int cudaEventSynchronize(void *event)
{
    return with("cuEventSynchronize", event, NULL);
}

static void *context_of(int device)
{
    int (*retain)(void **context, int of) = NULL;
    void *context = NULL;
    *(void **)&retain = driver_function("cuDevicePrimaryCtxRetain");
    if (device == 0 || device == 1)
        retain(&context, device);
    return context;
}

void enter_device(int device)
{
    with("cuCtxPushCurrent_v2", context_of(device), NULL);
}

void leave_device(void)
{
    with("cuCtxPopCurrent_v2", NULL, NULL);
}

int device_of_stream(void *stream, int *device)
{
    void *context = NULL;
    int rc = with("cuStreamGetCtx", stream, &context);
    if (rc)
        return rc;
    with("cuCtxPushCurrent_v2", context, NULL);
    rc = with("cuCtxGetDevice", device, NULL);
    leave_device();
    return rc;
}

EXPORT int cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    void *context = context_of(peer);
    return context ? with("cuCtxEnablePeerAccess", context, (void *)(size_t)flags) : returns(101);
}

EXPORT int cudaDeviceDisablePeerAccess(int peer)
{
    void *context = context_of(peer);
    return context ? with("cuCtxDisablePeerAccess", context, NULL) : returns(101);
}

EXPORT int cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    int (*can_reach)(int *reaches, int from, int to) = NULL;
    *(void **)&can_reach = driver_function("cuDeviceCanAccessPeer");
    return returns(can_reach(can, device, peer));
}

EXPORT int cudaGetDeviceCount(int *devices)
{
    *devices = 2;
    return returns(0);
}

EXPORT int cudaStreamQuery(void *stream)
{
    return capture_is_lost(stream) ? returns(INVALIDATED) : with("cuStreamQuery", stream, NULL);
}

EXPORT int cudaStreamSynchronize(void *stream)
{
    return capture_is_lost(stream) ? returns(INVALIDATED)
                                   : with("cuStreamSynchronize", stream, NULL);
}

EXPORT int cudaDeviceSynchronize(void)
{
    const bool fits = device_wait_begins();
    const int rc = with("cuCtxSynchronize", NULL, NULL);
    device_wait_ends();
    return fits ? rc : returns(900);
}

EXPORT int cudaMalloc(void **address, size_t n)
{
    return with("cuMemAlloc_v2", address, (void *)n);
}

int is_unsafe(const char *function)
{
    int (*unsafe)(const char *name) = NULL;
    *(void **)&unsafe = driver_function("ibx_double_unsafe");
    return unsafe(function);
}

/* With NULL it only makes the context that a thread's first call makes. */
EXPORT int cudaFree(void *address)
{
    void *context = NULL;
    if (address)
        return with("cuMemFree_v2", address, NULL);
    with("cuCtxGetCurrent", &context, NULL);
    return context ? returns(is_unsafe("cudaFree")) : with("cuCtxSetCurrent", context_of(0), NULL);
}

EXPORT int cudaMemset(void *address, int value, size_t n)
{
    int (*copy)(uint64_t to, const void *from, size_t bytes) = NULL;
    if (!legacy_fits_captures())
        return returns(IMPLICIT);
    *(void **)&copy = driver_function("cuMemcpyHtoD_v2");
    void *bytes = malloc(n + 1);
    if (!bytes)
        return returns(2);
    memset(bytes, value, n);
    const int rc = copy((uintptr_t)address, bytes, n);
    free(bytes);
    return returns(rc);
}

static bool is_wide(const void *function)
{
    const uintptr_t number = (uintptr_t)function;
    return number > IBX_DOUBLE_WIDE && number <= IBX_DOUBLE_WIDE + IBX_DOUBLE_WIDEST;
}

/* In place of __cudaRegisterFunction(): another name of the kernel that copies. */
static const void *also;
static bool none;

/* NULL: no function that clients register is a kernel, until the next such call. */
EXPORT int ibx_double_register_function(const void *function)
{
    __atomic_store_n(&also, function, __ATOMIC_RELAXED);
    __atomic_store_n(&none, !function, __ATOMIC_RELAXED);
    return 0;
}

bool is_kernel(const void *function)
{
    const bool any = !__atomic_load_n(&none, __ATOMIC_RELAXED);
    return (uintptr_t)function == IBX_DOUBLE_KERNEL || (any && (uintptr_t)function >> 56 == 0x1b) ||
           is_wide(function) || (function && function == __atomic_load_n(&also, __ATOMIC_RELAXED));
}

static _Atomic(const void *) looked_up; /* the last one that is not wide */

const void *function_of_kernel(void *kernel)
{
    return (uintptr_t)kernel == IBX_DOUBLE_KERNEL ? looked_up : kernel;
}

#define LOADED 1021u

/* The first look-up of a kernel loads it. Returns where the last kernel that was loaded is noted,
 * for kernels with such a number. */
static _Atomic(const void *) *loaded_at(const void *function)
{
    static _Atomic(const void *) loaded[LOADED];
    return &loaded[(uintptr_t)function % LOADED];
}

EXPORT int cudaGetFuncBySymbol(void **kernel, const void *function)
{
    int (*load)(void **function, void *kernel) = NULL;
    if (!is_kernel(function))
        return returns(98);
    if (!is_wide(function))
        looked_up = function;
    if (*loaded_at(function) != function && !load_fits_captures())
        return returns(900);
    *loaded_at(function) = function;
    void *(*of)(const void *of_client) = NULL;
    *(void **)&of = driver_function("ibx_double_kernel_of");
    *(void **)&load = driver_function("cuKernelGetFunction");
    return returns(load(kernel, is_wide(function) ? (void *)(uintptr_t)function : of(function)));
}

EXPORT int cudaGetKernel(void **kernel, const void *function)
{
    return cudaGetFuncBySymbol(kernel, function);
}

struct size {
    unsigned x, y, z;
};

EXPORT int cudaLaunchKernel(const void *function, struct size grid, struct size block,
                            void **arguments, size_t shared, void *stream)
{
    int (*launch)(void *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                  unsigned block_y, unsigned block_z, unsigned shared, void *stream,
                  void **arguments, void **extra) = NULL;
    void *kernel;
    const int rc = cudaGetFuncBySymbol(&kernel, function);
    if (rc)
        return rc;
    *(void **)&launch = driver_function("cuLaunchKernel");
    return returns(launch(kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                          (unsigned)shared, stream, arguments, NULL));
}

/* As if another call had failed. */
EXPORT int ibx_double_fail(int code)
{
    last_error = code;
    return 0;
}
