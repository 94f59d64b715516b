/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CUDA in this process: the driver, and the runtime of GVirtuS's handlers, if there is only one. It
 * calls no other file of this folder. */
#include "frontend-glue/back_end_common/back_end.h"

#include "common/log.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <string.h>

#define RUNTIME "libcudart.so"

struct found {
    unsigned count;
    char path[512];
};

static int note_runtime(struct dl_phdr_info *info, size_t size, void *argument)
{
    (void)size;
    struct found *found = argument;
    const char *slash = strrchr(info->dlpi_name, '/');
    const char *name = slash ? slash + 1 : info->dlpi_name;
    if (strncmp(name, RUNTIME, strlen(RUNTIME)) != 0 ||
        strlen(info->dlpi_name) >= sizeof(found->path))
        return 0;
    found->count++;
    strcpy(found->path, info->dlpi_name);
    return 0;
}

/* The runtime; NULL: there is none, or there are several. Once it is found, it stays the same. */
static void *runtime(void)
{
    static _Atomic(void *) known;
    void *handle = atomic_load(&known);
    struct found found = {0};
    if (handle)
        return handle;
    dl_iterate_phdr(note_runtime, &found);
    if (found.count == 1)
        handle = dlopen(found.path, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    atomic_store(&known, handle);
    return handle;
}

/* What this thread has looked up: each extension request needs a function or several, and dlsym(3)
 * takes longer than some of these. */
#define FOUND      64u /* a power of two */
#define FOUND_NAME 56u

static _Thread_local struct {
    void *function; /* NULL: empty */
    char name[FOUND_NAME];
} found_last[FOUND];

static unsigned place_of(const char *name, size_t n)
{
    unsigned hash = (unsigned)n;
    for (size_t i = 0; i < n; i++)
        hash = hash * 31 + (unsigned char)name[i];
    return hash % FOUND;
}

void *ibx_back_end_runtime(const char *name)
{
    const size_t n = strlen(name);
    const unsigned place = place_of(name, n);
    if (found_last[place].function && !strcmp(found_last[place].name, name))
        return found_last[place].function;
    void *handle = runtime(), *function = handle ? dlsym(handle, name) : NULL;
    if (function && n < FOUND_NAME) {
        memcpy(found_last[place].name, name, n + 1);
        found_last[place].function = function;
    }
    return function;
}

bool ibx_back_end_has_error(void)
{
    int (*peek)(void) = NULL;
    *(void **)&peek = ibx_back_end_runtime("cudaPeekAtLastError");
    return peek && peek();
}

void ibx_back_end_forget_error(void)
{
    int (*get_error)(void) = NULL;
    *(void **)&get_error = ibx_back_end_runtime("cudaGetLastError");
    if (get_error)
        get_error();
}

void ibx_back_end_undo(const char *name, uint64_t made)
{
    int (*give_back)(uint64_t) = NULL;
    void *function = ibx_back_end_runtime(name);
    memcpy(&give_back, &function, sizeof(give_back));
    if (give_back)
        give_back(made);
}

/* ------------------------------------------------------------------ the driver, and contexts */

static bool load_cuda(struct gpu_session *x)
{
    struct ibx_error err = {0};
    x->cuda = ibx_cuda_load(&err);
    if (x->cuda)
        return true;
    ibx_log(x->options.mode == IBX_GPU_ON ? IBX_LOG_WARN : IBX_LOG_INFO,
            "GVirtuS runs all copies itself: %s", err.message);
    x->options.mode = IBX_GPU_OFF;
    return false;
}

void ibx_back_end_own_session(struct gpu_session *x)
{
    *x = (struct gpu_session){.options = {.mode = IBX_GPU_AUTO},
                              .requests = {.device = -1},
                              .selected = -1,
                              .device = -1,
                              .chosen_for = -1};
}

bool ibx_back_end_have_cuda(struct gpu_session *x)
{
    return x->options.mode != IBX_GPU_OFF && (x->cuda || load_cuda(x));
}

bool ibx_back_end_able(struct gpu_session *x)
{
    void *context = NULL;
    int device = -1;
    if (!ibx_back_end_have_cuda(x) || x->cuda->ctx_get_current(&context) || !context ||
        x->cuda->ctx_get_device(&device))
        return false;
    x->device = device;
    ibx_turn_go(&x->turn, (unsigned)device);
    return x->requests.device < 0 || x->requests.device == device;
}

bool ibx_back_end_begin_context(struct gpu_session *x)
{
    int (*give_back)(void *nothing) = NULL;
    if (ibx_back_end_able(x))
        return true;
    *(void **)&give_back = ibx_back_end_runtime("cudaFree");
    return give_back && !give_back(NULL) && ibx_back_end_able(x);
}
