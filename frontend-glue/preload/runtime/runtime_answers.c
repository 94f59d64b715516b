/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What functions of a runtime in a program or library (runtime_inside.c) answer that lead to no
 * libcudart: single ones that it lacks, or all, where there is none. Their own code would look for
 * a driver of this host, and not be one runtime with the others. So it is never run, and they
 * return an error.
 */
#include "frontend-glue/preload/runtime/runtime_answers.h"

#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/runtime/runtime_inside.h"

#include "common/log.h"

#include <string.h>

#define REGISTERS "__cudaRegister"

/* cudaChannelFormatDesc; which kind is an int. */
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

/* Nobody looks at what that leads to. */
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

/* Of these nobody's answer depends on a GPU. */
static void *without_gpu(const char *name)
{
    static const struct answer all[] = {ANSWER("cudaCreateChannelDesc", make_channel),
                                        ANSWER("cudaGetErrorName", cudaGetErrorName),
                                        ANSWER("cudaGetErrorString", cudaGetErrorString)};
    return find(all, sizeof(all) / sizeof(all[0]), name);
}

void *ibx_inside_unreached(const char *name)
{
    static const struct answer all[] = {ANSWER("cudaGetDeviceCount", count_devices),
                                        ANSWER("__cudaRegisterFatBinary", register_module)};
    void *answer = without_gpu(name);
    if (!answer)
        answer = find(all, sizeof(all) / sizeof(all[0]), name);
    return answer ? answer : (void *)(uintptr_t)unreached;
}

void *ibx_inside_lacked(const char *name)
{
    void *answer = without_gpu(name);
    return answer ? answer : (void *)(uintptr_t)ibx_inside_absent;
}

/* What nvcc's code registers, a program may never use. */
uintptr_t ibx_inside_tell_absent(struct ibx_inside_function *function)
{
    const bool registers = !strncmp(function->name, REGISTERS, strlen(REGISTERS));
    if (!atomic_flag_test_and_set(&function->is_told))
        ibx_log(registers ? IBX_LOG_INFO : IBX_LOG_WARN,
                "%s %s: neither GVirtuS nor this library has it; ibx-gvirtus(1) lists what is "
                "there for a remote GPU",
                function->name, registers ? "does nothing" : "returns cudaErrorNotSupported");
    return registers ? 0 : (uintptr_t)ibx_frontend_fail(CUDA_NOT_SUPPORTED);
}
