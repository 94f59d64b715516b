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
#include "frontend-glue/preload/frontend_internal.h"

#include "common/log.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

EXPORTED int cudaMemcpy(void *to, const void *from, size_t n, int kind);
EXPORTED int cudaMemcpyAsync(void *to, const void *from, size_t n, int kind, void *stream);
EXPORTED int cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                          size_t width, size_t height, int kind);
EXPORTED int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                               size_t width, size_t height, int kind, void *stream);
EXPORTED void ibx_frontend_attach(const struct ibx_frontend_calls *calls);

/* ---------------------------------------------------------------------- the plugin */

static _Atomic(const struct ibx_frontend_calls *) plugin;

const struct ibx_frontend_calls *ibx_frontend_plugin(void)
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

void *ibx_frontend_gvirtus(_Atomic(void *) *place, const char *symbol)
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

/* Without a plugin GVirtuS sees the kind that the application said. */
static int kind_of(const void *to, const void *from, int kind)
{
    return ibx_frontend_plugin() ? ibx_frontend_kind(to, from, kind) : kind;
}

/* True: *exit_code is the call's. */
static bool copied(void *to, const void *from, size_t n, int kind, bool async, void *stream,
                   int *exit_code)
{
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    bool to_device = kind == CUDA_MEMCPY_TO_DEVICE;
    if (!calls || !n || (!to_device && kind != CUDA_MEMCPY_FROM_DEVICE))
        return false;
    /* No frame could say its own length; or GVirtuS would read or write where nothing is. */
    if (n > PTRDIFF_MAX || !(to_device ? from : to)) {
        *exit_code = ibx_frontend_refuse(CUDA_INVALID_VALUE);
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
    enum ibx_frontend_memory memory = async ? ibx_frontend_memory(copy.host, n) : FRONTEND_ORDINARY;
    copy.lasting = memory == FRONTEND_ALLOCATED;
    copy.pinned = memory != FRONTEND_ORDINARY;
    ibx_frontend_device_used();
    if (calls->copy(&copy, exit_code))
        return false;
    if (!async)
        *exit_code = ibx_frontend_outcome(*exit_code, 0);
    return true;
}

/* On the host GVirtuS copies at once, for all before has ended. Here copies of the stream (NULL: of
 * any, as for the legacy stream) may be under way in that memory: this one comes after them. */
static int wait_on_host(const void *to, const void *from, size_t n, int kind, void *stream)
{
    bool on_host = kind == CUDA_MEMCPY_ON_HOST || kind == CUDA_MEMCPY_DEFAULT;
    if (!ibx_frontend_plugin() || !on_host ||
        (!ibx_frontend_memory_used(to, n) && !ibx_frontend_memory_used(from, n)))
        return CUDA_SUCCESS;
    return stream ? cudaStreamSynchronize(stream) : cudaDeviceSynchronize();
}

int cudaMemcpy(void *to, const void *from, size_t n, int kind)
{
    static _Atomic(void *) next;
    int (*call)(void *, const void *, size_t, int);
    int rc;
    kind = kind_of(to, from, kind);
    if (copied(to, from, n, kind, false, NULL, &rc))
        return rc;
    rc = wait_on_host(to, from, n, kind, NULL);
    if (rc)
        return rc;
    *(void **)&call = ibx_frontend_gvirtus(&next, "cudaMemcpy");
    rc = call ? call(to, from, n, kind) : CUDA_NOT_SUPPORTED;
    look_for_plugin();
    return rc;
}

int cudaMemcpyAsync(void *to, const void *from, size_t n, int kind, void *stream)
{
    static _Atomic(void *) next;
    int (*call)(void *, const void *, size_t, int, void *);
    int rc;
    kind = kind_of(to, from, kind);
    if (copied(to, from, n, kind, true, stream, &rc))
        return rc;
    rc = wait_on_host(to, from, n, kind, stream);
    if (rc)
        return rc;
    *(void **)&call = ibx_frontend_gvirtus(&next, "cudaMemcpyAsync");
    rc = call ? call(to, from, n, kind, stream) : CUDA_NOT_SUPPORTED;
    look_for_plugin();
    return rc;
}

/* --------------------------------------------------------------------------- of rows */

struct rows {
    void *to;
    const void *from;
    size_t to_pitch, from_pitch, width, height;
    int kind;
};

/* Without gaps on either side it is a copy like any other. */
static bool is_one_piece(const struct rows *rows)
{
    return rows->height == 1 || (rows->to_pitch == rows->width && rows->from_pitch == rows->width);
}

/* Whether it is a copy between host and device that a frame can say. What CUDA would refuse for its
 * pitches is GVirtuS's. */
static bool is_ours(const struct rows *rows)
{
    size_t most = rows->to_pitch > rows->from_pitch ? rows->to_pitch : rows->from_pitch, bytes;
    return ibx_frontend_plugin() &&
           (rows->kind == CUDA_MEMCPY_TO_DEVICE || rows->kind == CUDA_MEMCPY_FROM_DEVICE) &&
           rows->width && rows->height && rows->width <= rows->to_pitch &&
           rows->width <= rows->from_pitch && !__builtin_mul_overflow(most, rows->height, &bytes) &&
           bytes <= PTRDIFF_MAX;
}

/* As copied(); they are `ours`. */
static bool copied_rows(const struct rows *rows, int *exit_code)
{
    bool to_device = rows->kind == CUDA_MEMCPY_TO_DEVICE;
    if (is_one_piece(rows))
        return copied(rows->to, rows->from, rows->width * rows->height, rows->kind, false, NULL,
                      exit_code);
    struct ibx_frontend_copy copy = {
        .to_device = to_device,
        .device = (uintptr_t)(to_device ? rows->to : rows->from),
        .host = to_device ? (void *)(uintptr_t)rows->from : rows->to,
        .n = rows->width,
        .rows = rows->height,
        .host_pitch = to_device ? rows->from_pitch : rows->to_pitch,
        .device_pitch = to_device ? rows->to_pitch : rows->from_pitch,
    };
    if (!copy.host) {
        *exit_code = ibx_frontend_refuse(CUDA_INVALID_VALUE);
        return true;
    }
    ibx_frontend_device_used();
    if (ibx_frontend_plugin()->copy(&copy, exit_code))
        return false;
    *exit_code = ibx_frontend_outcome(*exit_code, 0);
    return true;
}

static int copy_rows(const struct rows *rows)
{
    static _Atomic(void *) next;
    int (*call)(void *, size_t, const void *, size_t, size_t, size_t, int);
    size_t most = rows->to_pitch > rows->from_pitch ? rows->to_pitch : rows->from_pitch, bytes;
    int rc;
    if (is_ours(rows) && copied_rows(rows, &rc))
        return rc;
    if (__builtin_mul_overflow(most, rows->height, &bytes))
        bytes = SIZE_MAX;
    rc = wait_on_host(rows->to, rows->from, bytes, rows->kind, NULL);
    if (rc)
        return rc;
    *(void **)&call = ibx_frontend_gvirtus(&next, "cudaMemcpy2D");
    rc = call ? call(rows->to, rows->to_pitch, rows->from, rows->from_pitch, rows->width,
                     rows->height, rows->kind)
              : CUDA_NOT_SUPPORTED;
    look_for_plugin();
    return rc;
}

int cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                 size_t height, int kind)
{
    struct rows rows = {to, from, to_pitch, from_pitch, width, height, kind_of(to, from, kind)};
    return copy_rows(&rows);
}

/* GVirtuS has none. So what has gaps comes after all that is in the stream, and has ended when the
 * call returns, that within the device too. */
int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                      size_t height, int kind, void *stream)
{
    static _Atomic(void *) next;
    int (*call)(void *, size_t, const void *, size_t, size_t, size_t, int, void *);
    struct rows rows = {to, from, to_pitch, from_pitch, width, height, kind_of(to, from, kind)};
    int rc;
    if (is_ours(&rows) && is_one_piece(&rows))
        return cudaMemcpyAsync(to, from, width * height, rows.kind, stream);
    if (ibx_frontend_plugin()) {
        rc = cudaStreamSynchronize(stream);
        if (!rc)
            rc = copy_rows(&rows);
        if (!rc && rows.kind == CUDA_MEMCPY_ON_DEVICE)
            rc = cudaStreamSynchronize(NULL);
        return rc;
    }
    *(void **)&call = ibx_frontend_gvirtus(&next, "cudaMemcpy2DAsync");
    rc = call ? call(to, to_pitch, from, from_pitch, width, height, kind, stream)
              : CUDA_NOT_SUPPORTED;
    look_for_plugin();
    return rc;
}
