/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/cuda/application.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static struct cuda_application app;
static pthread_once_t loaded = PTHREAD_ONCE_INIT;

static const struct {
    const char *symbol;
    size_t offset;
    bool optional;
} symbols[] = {
    {"cuInit", offsetof(struct cuda_application, init), false},
    {"cuDevicePrimaryCtxRetain", offsetof(struct cuda_application, primary_retain), false},
    {"cuDevicePrimaryCtxReset_v2", offsetof(struct cuda_application, primary_reset), false},
    {"cuCtxSetCurrent", offsetof(struct cuda_application, ctx_set_current), false},
    {"cuMemAlloc_v2", offsetof(struct cuda_application, mem_alloc), false},
    {"cuMemFree_v2", offsetof(struct cuda_application, mem_free), false},
    {"cuMemcpyHtoD_v2", offsetof(struct cuda_application, to_device), false},
    {"cuMemcpyDtoH_v2", offsetof(struct cuda_application, from_device), false},
    {"cuMemcpyAsync", offsetof(struct cuda_application, copy_async), false},
    {"cuStreamCreate", offsetof(struct cuda_application, stream_create), false},
    {"cuStreamSynchronize", offsetof(struct cuda_application, stream_synchronize), false},
    {"cuMemHostRegister_v2", offsetof(struct cuda_application, host_register), false},
    {"cuMemHostUnregister", offsetof(struct cuda_application, host_unregister), false},
    {"ibx_double_peek", offsetof(struct cuda_application, peek), true},
    {"ibx_double_poke", offsetof(struct cuda_application, poke), true},
    {"ibx_double_get_stats", offsetof(struct cuda_application, get_stats), true},
    {"ibx_double_inject", offsetof(struct cuda_application, inject), true},
    {"ibx_double_slow", offsetof(struct cuda_application, slow), true},
    {"ibx_double_hold", offsetof(struct cuda_application, hold), true},
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

const struct cuda_application *cuda_application(void)
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
