/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CUDA's runtime in this process: that of GVirtuS's handlers, if there is only one. */
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

void *ibx_copies_runtime(const char *name)
{
    void *handle = runtime();
    return handle ? dlsym(handle, name) : NULL;
}
