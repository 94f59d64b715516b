/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The beginning of the driver. A program that calls the driver alone has not loaded GVirtuS's
 * libcudart, by which this library reaches the back end: cuInit() does.
 */
#include "frontend-glue/driver_api/driver.h"

#include "common/log.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define NEWEST  19 /* versions of CUDA whose libcudart is looked for */
#define OLDEST  8
#define FOLDERS "/lib/frontend/"

static atomic_bool initialized; /* the driver's API, in this process */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool prepared;

static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
    atomic_store(&initialized, false);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

bool ibx_driver_initialized(void)
{
    return atomic_load_explicit(&initialized, memory_order_relaxed);
}

void ibx_driver_set_initialized(void)
{
    if (!ibx_driver_initialized())
        atomic_store(&initialized, true);
}

/* ------------------------------------------------------------------------ GVirtuS's libcudart */

/* Opens a libcudart, unless it is NVIDIA's, which would call this driver, which would call it. */
static void *open_one(const char *path)
{
    void *library = dlopen(path, RTLD_LAZY | RTLD_GLOBAL);
    if (library && ibx_frontend_is_nvidias(library)) {
        dlclose(library);
        library = NULL;
    }
    dlerror();
    return library;
}

/* Looks where the loader does, then where GVirtuS installs it. */
static void *open_runtime(void)
{
    char path[PATH_MAX];
    const char *home = secure_getenv("GVIRTUS_HOME");
    void *library = NULL;
    for (int in_home = 0; in_home < 2 && !library; in_home++) {
        const char *folder = !in_home ? "" : home;
        for (int i = NEWEST; i >= OLDEST && folder && !library; i--)
            if (snprintf(path, sizeof(path), "%s%slibcudart.so.%d", folder, in_home ? FOLDERS : "",
                         i) < PATH_MAX)
                library = open_one(path);
        if (!library && folder &&
            snprintf(path, sizeof(path), "%s%slibcudart.so", folder, in_home ? FOLDERS : "") <
                PATH_MAX)
            library = open_one(path);
    }
    return library;
}

/* Makes this library global, because the plugin looks for it in the global scope, and it is not
 * there if a program has opened libcuda.so.1. False: it is in a namespace of the loader that has no
 * such scope (dlmopen(3)), where glibc crashes when something is added to it. */
static bool make_global(void)
{
    const char *file = ibx_frontend_file_of(&initialized);
    void *us = file ? dlopen(file, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    Lmid_t namespace = LM_ID_BASE;
    const bool is_elsewhere =
        us && !dlinfo(us, RTLD_DI_LMID, &namespace) && namespace != LM_ID_BASE;
    if (us && !is_elsewhere)
        dlopen(file, RTLD_LAZY | RTLD_NOLOAD | RTLD_GLOBAL);
    if (us)
        dlclose(us);
    dlerror();
    return !is_elsewhere;
}

static int load_runtime(void)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    char path[PATH_MAX] = "";
    if (!make_global()) {
        if (!atomic_flag_test_and_set(&told))
            ibx_log(IBX_LOG_ERROR,
                    "cuInit returns CUDA_ERROR_NO_DEVICE: libcuda.so.1 is opened into a namespace "
                    "of its own (dlmopen), where GVirtuS does not reach the remote GPU; preload "
                    "libibx-frontend.so, or open it by dlopen");
        return CUDA_NO_DEVICE;
    }
    if (ibx_frontend_libcudart(path)) {
        void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
        const bool theirs = library && ibx_frontend_is_nvidias(library);
        if (library)
            dlclose(library);
        if (!theirs)
            return CUDA_SUCCESS;
        if (!atomic_flag_test_and_set(&told))
            ibx_log(IBX_LOG_ERROR,
                    "cuInit returns CUDA_ERROR_STUB_LIBRARY: %s is NVIDIA's and has taken this "
                    "library for the driver; a program over GVirtuS needs GVirtuS's libcudart "
                    "first in LD_LIBRARY_PATH, and LD_AUDIT=libibx-search.so where it looks "
                    "elsewhere before, and any other (a back end of GVirtuS's, too) needs "
                    "this library's libcuda.so.1 out of it",
                    path);
        return 34; /* CUDA_ERROR_STUB_LIBRARY */
    }
    if (open_runtime())
        return CUDA_SUCCESS;
    if (!atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_ERROR, "cuInit returns CUDA_ERROR_NO_DEVICE: no libcudart.so of GVirtuS's "
                               "is found, through which the driver's calls reach the back end; put "
                               "its folder into LD_LIBRARY_PATH, or set GVIRTUS_HOME");
    return CUDA_NO_DEVICE;
}

/* --------------------------------------------------------------------------------- calls */

static int prepare(void)
{
    int count = 0, rc = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    if (!prepared) {
        rc = load_runtime();
        if (!rc)
            rc = cudaGetDeviceCount(&count);
        if (!rc && count <= 0)
            rc = CUDA_NO_DEVICE;
        prepared = !rc;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

static int begin_once(void)
{
    struct ibx_frontend_errors errors;
    ibx_frontend_drives(&errors);
    const int rc = prepare();
    ibx_frontend_drove(&errors, rc);
    return ibx_driver_result(rc);
}

/* Whether a library of the plugin calls, which looks for GPUs of this host while GVirtuS's front
 * end connects. */
static bool is_of_plugin(const void *caller)
{
    const char *file = ibx_frontend_file_of(caller);
    return ibx_frontend_connects() || (file && ibx_frontend_is_named(file, "libfabric.so"));
}

EXPORTED int cuInit(unsigned flags)
{
    if (flags)
        return CUDA_INVALID_VALUE;
    if (!ibx_driver_initialized() && is_of_plugin(__builtin_return_address(0)))
        return CUDA_NO_DEVICE;
    const int rc = ibx_driver_initialized() ? CUDA_SUCCESS : begin_once();
    if (!rc)
        ibx_driver_set_initialized();
    return rc;
}

/* Programs ask before cuInit(), too. */
EXPORTED int cuDriverGetVersion(int *version)
{
    static atomic_int known;
    struct ibx_frontend_errors errors;
    int is = atomic_load(&known), rc = CUDA_SUCCESS;
    if (!version)
        return CUDA_INVALID_VALUE;
    if (!is && !(rc = begin_once())) {
        ibx_frontend_drives(&errors);
        rc = cudaDriverGetVersion(&is);
        ibx_frontend_drove(&errors, rc);
        if (!rc)
            atomic_store(&known, is);
    }
    if (!rc)
        *version = is;
    return ibx_driver_result(rc);
}
