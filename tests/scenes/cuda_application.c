/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/cuda_application.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static struct cuda_calls app;
static pthread_once_t loaded = PTHREAD_ONCE_INIT;

static const struct {
    const char *symbol;
    size_t offset;
    bool optional;
} symbols[] = {
    {"cuInit", offsetof(struct cuda_calls, init), false},
    {"cuDevicePrimaryCtxRetain", offsetof(struct cuda_calls, primary_retain), false},
    {"cuDevicePrimaryCtxReset_v2", offsetof(struct cuda_calls, primary_reset), false},
    {"cuCtxSetCurrent", offsetof(struct cuda_calls, ctx_set_current), false},
    {"cuMemAlloc_v2", offsetof(struct cuda_calls, mem_alloc), false},
    {"cuMemFree_v2", offsetof(struct cuda_calls, mem_free), false},
    {"cuMemcpyHtoD_v2", offsetof(struct cuda_calls, to_device), false},
    {"cuMemcpyDtoH_v2", offsetof(struct cuda_calls, from_device), false},
    {"cuMemcpyAsync", offsetof(struct cuda_calls, copy_async), false},
    {"cuStreamCreate", offsetof(struct cuda_calls, stream_create), false},
    {"cuStreamDestroy_v2", offsetof(struct cuda_calls, stream_destroy), false},
    {"cuStreamSynchronize", offsetof(struct cuda_calls, stream_synchronize), false},
    {"cuStreamQuery", offsetof(struct cuda_calls, stream_query), false},
    {"cuCtxSynchronize", offsetof(struct cuda_calls, ctx_synchronize), false},
    {"cuStreamBeginCapture_v2", offsetof(struct cuda_calls, begin_capture), false},
    {"cuStreamEndCapture", offsetof(struct cuda_calls, end_capture), false},
    {"cuThreadExchangeStreamCaptureMode", offsetof(struct cuda_calls, exchange_mode), false},
    {"cuEventCreate", offsetof(struct cuda_calls, event_create), false},
    {"cuEventRecord", offsetof(struct cuda_calls, event_record), false},
    {"cuEventDestroy_v2", offsetof(struct cuda_calls, event_destroy), false},
    {"cuStreamWaitEvent", offsetof(struct cuda_calls, stream_wait_event), false},
    {"cuEventQuery", offsetof(struct cuda_calls, event_query), false},
    {"cuEventSynchronize", offsetof(struct cuda_calls, event_synchronize), false},
    {"cuMemHostRegister_v2", offsetof(struct cuda_calls, host_register), false},
    {"cuMemHostUnregister", offsetof(struct cuda_calls, host_unregister), false},
    {"ibx_double_peek", offsetof(struct cuda_calls, peek), true},
    {"ibx_double_poke", offsetof(struct cuda_calls, poke), true},
    {"ibx_double_get_stats", offsetof(struct cuda_calls, get_stats), true},
    {"ibx_double_inject", offsetof(struct cuda_calls, inject), true},
    {"ibx_double_attribute", offsetof(struct cuda_calls, attribute), true},
    {"ibx_double_slow", offsetof(struct cuda_calls, slow), true},
    {"ibx_double_hold", offsetof(struct cuda_calls, hold), true},
    {"ibx_double_hold_stream", offsetof(struct cuda_calls, hold_stream), true},
    {"ibx_double_release_stream", offsetof(struct cuda_calls, release_stream), true},
    {"ibx_double_capture", offsetof(struct cuda_calls, capture), true},
    {"ibx_double_print", offsetof(struct cuda_calls, print), true},
};

static void load(void)
{
    const char *named = getenv("IBX_LIBCUDA");
    void *handle = dlopen(named && *named ? named : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *function = handle ? dlsym(handle, symbols[i].symbol) : NULL;
        if (!function && !symbols[i].optional) {
            fprintf(stderr, "no %s: %s\n", symbols[i].symbol, dlerror());
            exit(1);
        }
        *(void **)((char *)&app + symbols[i].offset) = function;
    }
    app.init(0);
}

const struct cuda_calls *cuda_application(void)
{
    pthread_once(&loaded, load);
    return &app;
}

void cuda_application_use(int ordinal)
{
    void *context = NULL;
    if (cuda_application()->primary_retain(&context, ordinal) || app.ctx_set_current(context)) {
        fprintf(stderr, "no context on device %d\n", ordinal);
        exit(1);
    }
}

struct ibx_double_stats cuda_stats(void)
{
    struct ibx_double_stats now;
    app.get_stats(&now);
    return now;
}
