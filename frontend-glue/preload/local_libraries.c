/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * NVIDIA's libraries on top of CUDA (cuRAND, cuFFT ...) call the driver of this host, with
 * addresses that are the remote GPU's: on a host with a GPU of its own they can write elsewhere and
 * say nothing. GVirtuS has front ends of its own for some of them. Where one of NVIDIA's is loaded
 * instead, this host's GPUs are hidden from it, so that its calls fail. One that is loaded later is
 * found by the next cudaMalloc, or by the cudaMemcpy that brings its results.
 *
 * A program that loads the driver itself, as CCCL's streams do, is told so: where there is one it
 * may end in it, by SIGSEGV.
 */
#include "frontend-glue/preload/internal.h"

#include "common/log.h"

#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HIDES "CUDA_VISIBLE_DEVICES"

struct search {
    const char *const *names; /* the last one is NULL */
    char path[PATH_MAX];      /* of the first one found */
    char but[PATH_MAX];       /* not in this folder */
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

/* Of this host: it does not look at the variable any more. */
static bool driver_is_loaded(void)
{
    static const char *const driver[] = {"libcuda.so.1", NULL};
    struct search s = {.names = driver};
    return ibx_frontend_each_library(look, &s);
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

/* So far; in a child, at present. */
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

/* In whichever folder GVirtuS's libcudart is not. libfabric loads it as well. */
static void tell_driver(struct search *driver)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    static const char *const fabric[] = {"libfabric.so", NULL};
    struct search s = {.names = fabric};
    if (!ibx_frontend_each_library(look, driver) || ibx_frontend_each_library(look, &s) ||
        atomic_flag_test_and_set(&told))
        return;
    ibx_log(IBX_LOG_WARN,
            "%s is loaded, the driver of this host, which does not know the remote GPU, nor what "
            "CUDA's runtime makes there (memory, streams, events, kernels): a program that gives "
            "these to the driver, as CCCL's cuda::stream and launches do, fails or ends by "
            "SIGSEGV; have it call the runtime alone",
            driver->path);
}

void ibx_frontend_hide_local_gpus(void)
{
    static const char *const runtime[] = {"libcudart.so", NULL};
    static const char *const libraries[] = {
        "libcurand.so",   "libcufft.so", "libcublas.so", "libcusparse.so",
        "libcusolver.so", "libcudnn.so", "libnpp",       NULL};
    static const char *const drivers[] = {"libcuda.so", NULL};
    struct search front_end = {.names = runtime}, local = {.names = libraries};
    struct search driver = {.names = drivers};
    if (!ibx_frontend_each_library(look, &front_end))
        return;
    snprintf(local.but, sizeof(local.but), "%.*s", (int)folder_of(front_end.path), front_end.path);
    snprintf(driver.but, sizeof(driver.but), "%s", local.but);
    if (!ibx_frontend_each_library(look, &local)) {
        tell_driver(&driver);
        return;
    }
    if (secure_getenv(HIDES) || setenv(HIDES, "", 1))
        return;
    if (driver_is_loaded()) {
        ibx_log(IBX_LOG_ERROR,
                "%s is not GVirtuS's and cannot reach the remote GPU: it may have used one of this "
                "host with the other's addresses, and its results are wrong then; set " HIDES
                " to nothing before the program starts, or install GVirtuS's front end of it",
                local.path);
        return;
    }
    ibx_log(IBX_LOG_WARN,
            "%s is not GVirtuS's and cannot reach the remote GPU: " HIDES
            " is empty now, so that it uses none of this host with the other's addresses; "
            "install GVirtuS's front end of it, or set " HIDES,
            local.path);
}
