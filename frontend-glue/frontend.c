/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * libibx-frontend.so: preloaded (LD_PRELOAD) into an application of GVirtuS, it takes the calls
 * that move memory before GVirtuS's libcudart sees them, and has the plugin run them between the
 * application's own memory and the device. GVirtuS's own functions, found behind this library, get
 * all others, and these too wherever the plugin has no connection: in a thread's first call, by
 * which GVirtuS makes one; for ever where another communicator is configured.
 *
 * The types of CUDA's header are written out: cudaError_t and enum cudaMemcpyKind are int,
 * cudaStream_t is a pointer.
 */
#include "frontend-glue/frontend_internal.h"

#include "common/log.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define KIND_HOST_TO_DEVICE 1
#define KIND_DEVICE_TO_HOST 2

EXPORTED int cudaMemcpy(void *to, const void *from, size_t n, int kind);
EXPORTED int cudaMemcpyAsync(void *to, const void *from, size_t n, int kind, void *stream);
EXPORTED void ibx_frontend_attach(const struct ibx_frontend_calls *calls);

/* ---------------------------------------------------------------------- the plugin */

static _Atomic(const struct ibx_frontend_calls *) plugin;

const struct ibx_frontend_calls *frontend_plugin(void)
{
    return atomic_load(&plugin);
}

static atomic_flag told = ATOMIC_FLAG_INIT; /* why there is none */

void ibx_frontend_attach(const struct ibx_frontend_calls *calls)
{
    if (calls->version == IBX_FRONTEND_VERSION)
        atomic_store(&plugin, calls);
    else if (!atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN, "libibx-frontend.so does not belong to this rdma communicator: "
                              "GVirtuS copies as without it; install both from one build");
}

/* After GVirtuS has run a call, and so has a connection, if it ever gets one. */
static void look_for_plugin(void)
{
    if (!atomic_load(&plugin) && !atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN, "libibx-frontend.so finds no rdma communicator in this process: "
                              "GVirtuS copies as without it");
}

/* ------------------------------------------------------------------------- GVirtuS */

/* Takes down the name of a loaded libcudart, which a dlopen(3) has put into no scope of ours. */
static int note_library(struct dl_phdr_info *library, size_t size, void *path)
{
    (void)size;
    const char *slash = strrchr(library->dlpi_name, '/');
    const char *name = slash ? slash + 1 : library->dlpi_name;
    if (strncmp(name, "libcudart.so", 12) != 0)
        return 0;
    return snprintf(path, PATH_MAX, "%s", library->dlpi_name) < PATH_MAX;
}

static void *find_in_library(const char *symbol)
{
    char path[PATH_MAX] = "";
    void *handle = NULL, *found = NULL;
    if (dl_iterate_phdr(note_library, path))
        handle = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (handle) {
        found = dlsym(handle, symbol);
        dlclose(handle);
    }
    return found;
}

void *frontend_gvirtus(_Atomic(void *) *place, const char *symbol)
{
    void *found = atomic_load(place);
    if (found)
        return found;
    found = dlsym(RTLD_NEXT, symbol);
    if (!found)
        found = find_in_library(symbol);
    atomic_store(place, found);
    return found;
}

/* ------------------------------------------------------------------------- copies */

/* True: *exit_code is the call's. */
static bool copied(void *to, const void *from, size_t n, int kind, bool async, void *stream,
                   int *exit_code)
{
    const struct ibx_frontend_calls *calls = frontend_plugin();
    bool to_device = kind == KIND_HOST_TO_DEVICE;
    if (!calls || !n || (!to_device && kind != KIND_DEVICE_TO_HOST))
        return false;
    if (n > PTRDIFF_MAX) { /* no frame could say its own length */
        *exit_code = CUDA_INVALID_VALUE;
        return true;
    }
    struct ibx_frontend_copy copy = {
        .to_device = to_device,
        .async = async,
        .device = (uintptr_t)(to_device ? to : from),
        .host = to_device ? (void *)(uintptr_t)from : to,
        .n = n,
        .stream = (uintptr_t)stream,
    };
    copy.lasting = async && frontend_lasting(copy.host, n);
    return !calls->copy(&copy, exit_code);
}

int cudaMemcpy(void *to, const void *from, size_t n, int kind)
{
    static _Atomic(void *) next;
    int (*call)(void *, const void *, size_t, int);
    int rc;
    if (copied(to, from, n, kind, false, NULL, &rc))
        return rc;
    *(void **)&call = frontend_gvirtus(&next, "cudaMemcpy");
    rc = call ? call(to, from, n, kind) : CUDA_NOT_SUPPORTED;
    look_for_plugin();
    return rc;
}

int cudaMemcpyAsync(void *to, const void *from, size_t n, int kind, void *stream)
{
    static _Atomic(void *) next;
    int (*call)(void *, const void *, size_t, int, void *);
    int rc;
    if (copied(to, from, n, kind, true, stream, &rc))
        return rc;
    *(void **)&call = frontend_gvirtus(&next, "cudaMemcpyAsync");
    rc = call ? call(to, from, n, kind, stream) : CUDA_NOT_SUPPORTED;
    look_for_plugin();
    return rc;
}
