/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * NVIDIA's libraries on top of CUDA (cuRAND, cuFFT ...) call the driver of this host with addresses
 * of the remote GPU. On a host with a GPU they can write to wrong memory without an error. GVirtuS
 * has replacements of some of these libraries. If one of NVIDIA's is loaded instead, this file
 * hides the GPUs of this host from it, so that its calls fail. A library that is loaded later is
 * detected by the next cudaMalloc, or by the cudaMemcpy that reads its results.
 */
#include "frontend-glue/preload/dlsym.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/remote_libraries.h"

#include "common/log.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HIDES "CUDA_VISIBLE_DEVICES"

struct search {
    const char *const *names; /* the last one is NULL */
    char path[PATH_MAX];      /* of the first one found */
    char but[PATH_MAX];       /* a folder to ignore; "": none */
};

static size_t folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

static bool look(const char *path, ElfW(Dyn) * dynamic, void *argument)
{
    struct search *s = argument;
    const size_t folder = folder_of(path);
    (void)dynamic;
    for (const char *const *name = s->names; *name; name++) {
        if (strncmp(path + folder, *name, strlen(*name)) != 0 ||
            (s->but[0] && folder == strlen(s->but) && !strncmp(path, s->but, folder)))
            continue;
        return snprintf(s->path, sizeof(s->path), "%s", path) < PATH_MAX;
    }
    return false;
}

/* Whether the driver of this host is loaded: it has read the variable already. libcuda.so.1 may
 * also be this project's library. */
static bool driver_is_loaded(void)
{
    static const char *const driver[] = {"libcuda.so.1", NULL};
    struct search s = {.names = driver};
    void *library =
        ibx_frontend_each_library(look, &s) ? dlopen(s.path, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    const bool ours = library && ibx_frontend_dlsym(library, "ibx_driver_of_remote_gpu");
    if (library)
        dlclose(library);
    dlerror();
    return s.path[0] && !ours;
}

static int count_loaded(struct dl_phdr_info *library, size_t size, void *count)
{
    (void)size;
    *(unsigned long long *)count = library->dlpi_adds;
    return 1;
}

static bool count_one(const char *path, ElfW(Dyn) * dynamic, void *count)
{
    (void)path, (void)dynamic;
    ++*(unsigned long long *)count;
    return false;
}

/* How many libraries were ever loaded; in a forked child, how many are loaded now. */
static unsigned long long libraries_loaded(void)
{
    unsigned long long count = 0;
    if (ibx_frontend_forked())
        ibx_frontend_each_library(count_one, &count);
    else
        dl_iterate_phdr(count_loaded, &count);
    return count;
}

void ibx_frontend_look_for_libraries(void)
{
    static _Atomic unsigned long long seen;
    const unsigned long long now = libraries_loaded();
    if (now != atomic_load_explicit(&seen, memory_order_relaxed) && ibx_frontend_plugin()) {
        atomic_store(&seen, now);
        ibx_frontend_hide_local_gpus();
    }
}

/* Only for libraries that LD_AUDIT can redirect to GVirtuS's (search.c). */
#define AUDIT " (and set LD_AUDIT=libibx-search.so where the program finds this one before it)"

static bool is_searched(const char *path)
{
    static const char *const names[] = {IBX_REMOTE_LIBRARIES};
    bool searched = false;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        searched = searched || ibx_frontend_is_named(path, names[i]);
    return searched;
}

void ibx_frontend_hide_local_gpus(void)
{
    static const char *const runtime[] = {"libcudart.so", NULL};
    static const char *const libraries[] = {
        "libcurand.so",   "libcufft.so", "libcublas.so", "libcusparse.so",
        "libcusolver.so", "libcudnn.so", "libnpp",       NULL};
    struct search front_end = {.names = runtime}, local = {.names = libraries};
    if (!ibx_frontend_each_library(look, &front_end))
        return;
    snprintf(local.but, sizeof(local.but), "%.*s", (int)folder_of(front_end.path), front_end.path);
    if (!ibx_frontend_each_library(look, &local) || secure_getenv(HIDES) || setenv(HIDES, "", 1))
        return;
    if (driver_is_loaded()) {
        ibx_log(IBX_LOG_ERROR,
                "%s is not GVirtuS's and cannot reach the remote GPU: it may have used one of this "
                "host with the other's addresses, and its results are wrong then; set " HIDES
                " to nothing before the program starts, or install GVirtuS's front end of it",
                local.path);
        return;
    }
    if (ibx_frontend_is_named(local.path, "libcudnn.so")) /* the preload takes over its calls */
        return;
    ibx_log(IBX_LOG_WARN,
            "%s is not GVirtuS's and cannot reach the remote GPU: " HIDES
            " is empty now, so that it uses none of this host with the other's addresses; "
            "install GVirtuS's front end of it%s, or set " HIDES,
            local.path, is_searched(local.path) ? AUDIT : "");
}
