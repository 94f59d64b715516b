/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * NVIDIA's libraries on top of CUDA (cuRAND, cuFFT ...) call the driver of this host, with
 * addresses that are the remote GPU's: on a host with a GPU of its own they can write elsewhere and
 * say nothing. GVirtuS has front ends of its own for some of them. Where one of NVIDIA's is loaded
 * instead, this host's GPUs are hidden from it, so that its calls fail. One that is loaded later is
 * found by the next cudaMalloc, or by the cudaMemcpy that brings its results.
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

static int look(struct dl_phdr_info *library, size_t size, void *argument)
{
    (void)size;
    struct search *s = argument;
    const size_t folder = folder_of(library->dlpi_name);
    for (const char *const *name = s->names; *name; name++) {
        if (strncmp(library->dlpi_name + folder, *name, strlen(*name)) != 0 ||
            (s->but[0] && folder == strlen(s->but) && !strncmp(library->dlpi_name, s->but, folder)))
            continue;
        return snprintf(s->path, sizeof(s->path), "%s", library->dlpi_name) < PATH_MAX;
    }
    return 0;
}

/* Of this host: it does not look at the variable any more. */
static bool driver_is_loaded(void)
{
    static const char *const driver[] = {"libcuda.so.1", NULL};
    struct search s = {.names = driver};
    return dl_iterate_phdr(look, &s);
}

static int count_loaded(struct dl_phdr_info *library, size_t size, void *count)
{
    (void)size;
    *(unsigned long long *)count = library->dlpi_adds;
    return 1;
}

void ibx_frontend_look_for_libraries(void)
{
    static _Atomic unsigned long long seen;
    unsigned long long now = 0;
    dl_iterate_phdr(count_loaded, &now);
    if (now != atomic_load_explicit(&seen, memory_order_relaxed) && ibx_frontend_plugin()) {
        atomic_store(&seen, now);
        ibx_frontend_hide_local_gpus();
    }
}

void ibx_frontend_hide_local_gpus(void)
{
    static const char *const runtime[] = {"libcudart.so", NULL};
    static const char *const libraries[] = {
        "libcurand.so",   "libcufft.so", "libcublas.so", "libcusparse.so",
        "libcusolver.so", "libcudnn.so", "libnpp",       NULL};
    struct search front_end = {.names = runtime}, local = {.names = libraries};
    if (secure_getenv(HIDES) || !dl_iterate_phdr(look, &front_end))
        return;
    snprintf(local.but, sizeof(local.but), "%.*s", (int)folder_of(front_end.path), front_end.path);
    if (!dl_iterate_phdr(look, &local) || setenv(HIDES, "", 1))
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
