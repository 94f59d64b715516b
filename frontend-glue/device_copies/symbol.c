/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Where the symbols of cudaMemcpyToSymbol are. GVirtuS's handler registers a client's variable with
 * CUDA's runtime under its address in the client, and looks it up by that. So can we, in the same
 * runtime: the handler's, if there is only one in this process.
 */
#include "frontend-glue/device_copies/copies.h"

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

/* The runtime, NULL: there is none or several. Once found it stays. */
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

struct calls {
    int (*address_of)(void **device, const void *symbol);
    int (*size_of)(size_t *size, const void *symbol);
    int (*peek_error)(void);
    int (*get_error)(void); /* and forgets it */
};

static bool calls_of(void *handle, struct calls *calls)
{
    *(void **)&calls->address_of = dlsym(handle, "cudaGetSymbolAddress");
    *(void **)&calls->size_of = dlsym(handle, "cudaGetSymbolSize");
    *(void **)&calls->peek_error = dlsym(handle, "cudaPeekAtLastError");
    *(void **)&calls->get_error = dlsym(handle, "cudaGetLastError");
    return calls->address_of && calls->size_of && calls->peek_error && calls->get_error;
}

/* A failed look-up sets the thread's last error, which belongs to the client: this resets it, and
 * looks nothing up while an error is pending. */
static bool look_up(const struct calls *calls, const void *symbol, void **device, size_t *size)
{
    if (calls->peek_error())
        return false;
    if (!calls->address_of(device, symbol) && !calls->size_of(size, symbol))
        return true;
    calls->get_error();
    return false;
}

bool ibx_copies_symbol(struct ibx_frame *f)
{
    struct calls calls;
    void *handle = runtime(), *device = NULL;
    size_t size = 0;
    if (!handle || !calls_of(handle, &calls) ||
        !look_up(&calls, (const void *)(uintptr_t)f->symbol, &device, &size))
        return false;
    if (f->symbol_offset > size || f->width > size - f->symbol_offset)
        return false;
    f->dst = (uintptr_t)device + f->symbol_offset;
    return true;
}
