/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * NVIDIA's libraries on top of CUDA (cuRAND, cuFFT ...) call the driver of this host, with
 * addresses that are the remote GPU's: on a host with a GPU of its own they can write elsewhere and
 * say nothing. GVirtuS has front ends of its own for some of them. Where one of NVIDIA's is loaded
 * instead, this host's GPUs are hidden from it, so that its calls fail.
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
    ibx_log(IBX_LOG_WARN,
            "%s is not GVirtuS's and cannot reach the remote GPU: " HIDES
            " is empty now, so that it uses none of this host with the other's addresses; "
            "install GVirtuS's front end of it, or set " HIDES,
            local.path);
}
