/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "gpudirect/cuda.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define LIBRARY       "libcuda.so.1"
#define OF_REMOTE_GPU "ibx_driver_of_remote_gpu" /* frontend-glue/driver_api/libcuda.c */

static struct ibx_cuda table;
static pthread_once_t loaded = PTHREAD_ONCE_INIT;
static void *handle;
static char reason[256]; /* why loading failed; "" if it has not */
static int reason_code = -EINVAL;

static const struct {
    const char *symbol;
    size_t offset; /* of the pointer in struct ibx_cuda */
} symbols[] = {
    {"cuCtxGetCurrent", offsetof(struct ibx_cuda, ctx_get_current)},
    {"cuCtxGetDevice", offsetof(struct ibx_cuda, ctx_get_device)},
    {"cuCtxPushCurrent_v2", offsetof(struct ibx_cuda, ctx_push_current)},
    {"cuCtxPopCurrent_v2", offsetof(struct ibx_cuda, ctx_pop_current)},
    {"cuMemcpyHtoD_v2", offsetof(struct ibx_cuda, memcpy_to_device)},
    {"cuMemcpyDtoH_v2", offsetof(struct ibx_cuda, memcpy_from_device)},
    {"cuMemcpyHtoDAsync_v2", offsetof(struct ibx_cuda, memcpy_to_device_async)},
    {"cuMemcpyDtoHAsync_v2", offsetof(struct ibx_cuda, memcpy_from_device_async)},
    {"cuMemcpyAsync", offsetof(struct ibx_cuda, memcpy_async)},
    {"cuMemcpy2DAsync_v2", offsetof(struct ibx_cuda, memcpy_2d_async)},
    {"cuEventCreate", offsetof(struct ibx_cuda, event_create)},
    {"cuEventRecord", offsetof(struct ibx_cuda, event_record)},
    {"cuEventQuery", offsetof(struct ibx_cuda, event_query)},
    {"cuEventSynchronize", offsetof(struct ibx_cuda, event_synchronize)},
    {"cuEventDestroy_v2", offsetof(struct ibx_cuda, event_destroy)},
    {"cuStreamSynchronize", offsetof(struct ibx_cuda, stream_synchronize)},
    {"cuStreamQuery", offsetof(struct ibx_cuda, stream_query)},
    {"cuStreamWaitEvent", offsetof(struct ibx_cuda, stream_wait_event)},
    {"cuStreamIsCapturing", offsetof(struct ibx_cuda, stream_is_capturing)},
    {"cuStreamGetCtx", offsetof(struct ibx_cuda, stream_get_context)},
    {"cuPointerGetAttributes", offsetof(struct ibx_cuda, pointer_get_attributes)},
    {"cuMemGetAddressRange_v2", offsetof(struct ibx_cuda, mem_get_address_range)},
    {"cuMemHostRegister_v2", offsetof(struct ibx_cuda, mem_host_register)},
    {"cuMemHostUnregister", offsetof(struct ibx_cuda, mem_host_unregister)},
    {"cuMemHostGetFlags", offsetof(struct ibx_cuda, mem_host_get_flags)},
    {"cuGetErrorName", offsetof(struct ibx_cuda, get_error_name)},
    {"cuPointerSetAttribute", offsetof(struct ibx_cuda, pointer_set_attribute)},
    {"cuDeviceGetAttribute", offsetof(struct ibx_cuda, device_get_attribute)},
    {"cuDeviceGetName", offsetof(struct ibx_cuda, device_get_name)},
    {"cuDriverGetVersion", offsetof(struct ibx_cuda, driver_get_version)},
    {"cuMemGetHandleForAddressRange", offsetof(struct ibx_cuda, mem_get_handle_for_address_range)},
    {"cuFlushGPUDirectRDMAWrites", offsetof(struct ibx_cuda, flush_gpu_direct_rdma_writes)},
    {"cuThreadExchangeStreamCaptureMode",
     offsetof(struct ibx_cuda, thread_exchange_stream_capture_mode)},
    {"cuDevicePrimaryCtxGetState", offsetof(struct ibx_cuda, device_primary_ctx_get_state)},
    {"cuDevicePrimaryCtxRetain", offsetof(struct ibx_cuda, device_primary_ctx_retain)},
    {"cuDevicePrimaryCtxRelease_v2", offsetof(struct ibx_cuda, device_primary_ctx_release)},
    {"cuStreamWriteValue32_v2", offsetof(struct ibx_cuda, stream_write_value32)},
};
#define OPTIONAL 7u /* so many at the end of the table may be missing in the driver */

_Static_assert(sizeof(symbols) / sizeof(symbols[0]) == sizeof(struct ibx_cuda) / sizeof(void *),
               "each function has its symbol");

static void load(void)
{
    const char *named = secure_getenv("IBX_LIBCUDA");
    const char *library = named && *named ? named : LIBRARY;
    handle = dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!handle) {
        const char *why = dlerror();
        snprintf(reason, sizeof(reason),
                 "the CUDA driver cannot be loaded (install NVIDIA's driver, or set IBX_LIBCUDA "
                 "to its library): %.140s",
                 why ? why : library);
        reason_code = library == named ? -EINVAL : -ENOENT;
        return;
    }
    if (dlsym(handle, OF_REMOTE_GPU)) {
        snprintf(reason, sizeof(reason),
                 "%.100s is the libcuda.so.1 of programs that use a remote GPU, not this host's "
                 "driver: take its folder out of LD_LIBRARY_PATH here",
                 library);
        return;
    }
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *function = dlsym(handle, symbols[i].symbol);
        if (!function && i + OPTIONAL < sizeof(symbols) / sizeof(symbols[0])) {
            snprintf(reason, sizeof(reason),
                     "%.128s has no %s: a driver for CUDA 11 or later is needed", library,
                     symbols[i].symbol);
            return;
        }
        *(void **)((char *)&table + symbols[i].offset) = function;
    }
}

const struct ibx_cuda *ibx_cuda_load(struct ibx_error *err)
{
    pthread_once(&loaded, load);
    if (!reason[0])
        return &table;
    ibx_error_set(err, reason_code, "%s", reason);
    return NULL;
}

void *ibx_cuda_symbol(const char *name)
{
    return ibx_cuda_load(NULL) ? dlsym(handle, name) : NULL;
}

const char *ibx_cuda_error_name(const struct ibx_cuda *cuda, int code)
{
    const char *name = NULL;
    return !cuda->get_error_name(code, &name) && name ? name : "an unknown CUDA error";
}
