/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A double of CUDA's driver: contexts that are made, and a module of the plugin's with two kernels
 * that copy to page-locked memory. */
#include "tests/doubles/cuda/internal.h"

#include <stdlib.h>
#include <string.h>

int cuCtxPushCurrent_v2(void *context);

static char kernels[2]; /* their addresses are the kernels: of 16 bytes, and of one */
static const size_t elements[2] = {16, 1};

EXPORT int cuCtxCreate_v2(void **context, unsigned flags, int device)
{
    int code = 0;
    pthread_mutex_lock(&mutex);
    const bool refused = fails("cuCtxCreate", &code);
    leave(0);
    struct context *made = refused ? NULL : calloc(1, sizeof(*made));
    if (!made || flags || device < 0 || device > 1) {
        free(made);
        return refused ? code : made ? INVALID_VALUE : OUT_OF_MEMORY;
    }
    *made = (struct context){.device = device, .second = true};
    *context = made;
    return cuCtxPushCurrent_v2(made);
}

/* As driver 580 on an H200, which waits for all work of the device. */
EXPORT int cuCtxDestroy_v2(void *context)
{
    pthread_mutex_lock(&mutex);
    wait_for_work_on(((struct context *)context)->device);
    leave(0);
    free(context);
    return SUCCESS;
}

/* Of the current context; it takes no memory here. */
EXPORT int cuCtxSetLimit(int limit, size_t value)
{
    (void)limit, (void)value;
    return current && current->second ? SUCCESS : INVALID_CONTEXT;
}

/* As the driver, which waits for all work of the context: a second one has none. */
EXPORT int cuModuleLoadData(void **module, const void *image)
{
    int code = enter("cuModuleLoadData");
    if (code)
        return code;
    if (!current->second)
        wait_for_device();
    *module = kernels;
    return leave(strncmp(image, ".version ", 9) ? INVALID_VALUE : SUCCESS);
}

EXPORT int cuModuleGetFunction(void **function, void *module, const char *name)
{
    const bool words = !strcmp(name, "ibx_copy_words"), bytes = !strcmp(name, "ibx_copy_bytes");
    if (module != kernels || (!words && !bytes))
        return 500; /* CUDA_ERROR_NOT_FOUND */
    *function = &kernels[bytes];
    return SUCCESS;
}

size_t second_kernel_element(const void *kernel)
{
    return kernel == &kernels[0] ? elements[0] : kernel == &kernels[1] ? elements[1] : 0;
}
