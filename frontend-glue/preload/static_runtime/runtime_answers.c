/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What those functions of a statically linked runtime (redirect.c) return that no libcudart
 * replaces: single functions that the libcudart lacks, or all of them if there is no libcudart.
 * Their own code must not run: it would look for a driver of this host, with a state of its own. So
 * they return an error.
 */
#include "frontend-glue/preload/static_runtime/runtime_answers.h"

#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/static_runtime/redirect.h"

#include "common/log.h"

#include <string.h>

#define REGISTERS "__cudaRegister"

/* cudaChannelFormatDesc. `kind` is an enum. */
struct channel {
    int x, y, z, w, kind;
};

static struct channel make_channel(int x, int y, int z, int w, int kind)
{
    return (struct channel){x, y, z, w, kind};
}

static int unreached(void)
{
    return CUDA_INSUFFICIENT_DRIVER;
}

static int count_devices(int *count)
{
    if (count)
        *count = 0;
    return CUDA_INSUFFICIENT_DRIVER;
}

/* The handle is passed back, and never used. */
static void **register_module(void *wrapper)
{
    static void *handle;
    (void)wrapper;
    return &handle;
}

struct answer {
    const char *name;
    void (*function)(void);
};

#define ANSWER(name, function)                                                                     \
    {                                                                                              \
        name, (void (*)(void))(function)                                                           \
    }

static void *find(const struct answer *all, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(name, all[i].name))
            return (void *)(uintptr_t)all[i].function;
    return NULL;
}

void *ibx_static_runtime_without_gpu(const char *name)
{
    static const struct answer all[] = {ANSWER("cudaCreateChannelDesc", make_channel),
                                        ANSWER("cudaGetErrorName", cudaGetErrorName),
                                        ANSWER("cudaGetErrorString", cudaGetErrorString)};
    return find(all, sizeof(all) / sizeof(all[0]), name);
}

void *ibx_static_runtime_unreached(const char *name)
{
    static const struct answer all[] = {ANSWER("cudaGetDeviceCount", count_devices),
                                        ANSWER("__cudaRegisterFatBinary", register_module)};
    void *answer = ibx_static_runtime_without_gpu(name);
    if (!answer)
        answer = find(all, sizeof(all) / sizeof(all[0]), name);
    return answer ? answer : (void *)(uintptr_t)unreached;
}

void *ibx_static_runtime_lacked(const char *name)
{
    void *answer = ibx_static_runtime_without_gpu(name);
    return answer ? answer : (void *)(uintptr_t)ibx_static_runtime_absent;
}

/* __cudaRegister...() succeeds: the program may never use what is registered. */
uintptr_t ibx_static_runtime_tell_absent(struct ibx_static_function *function)
{
    const bool registers = !strncmp(function->name, REGISTERS, strlen(REGISTERS));
    if (!atomic_flag_test_and_set(&function->is_reported))
        ibx_log(registers ? IBX_LOG_INFO : IBX_LOG_WARN,
                "%s %s: neither GVirtuS nor this library has it; ibx-gvirtus(1) lists what is "
                "there for a remote GPU",
                function->name, registers ? "does nothing" : "returns cudaErrorNotSupported");
    return registers ? 0 : (uintptr_t)ibx_frontend_fail(CUDA_NOT_SUPPORTED);
}
