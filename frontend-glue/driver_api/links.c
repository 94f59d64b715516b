/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The driver's linker. A link of one image is that image, since the back end's driver compiles PTX
 * when it is loaded. Several images are not linked.
 */
#include "frontend-glue/driver_api/driver.h"
#include "frontend-glue/preload/kernels/images.h"
#include "frontend-glue/preload/runtime/runtime.h"

#include "common/log.h"
#include "common/thread.h"

#include <stdio.h>
#include <stdlib.h>

#define MARK 0x4b4e494cu

struct link {
    unsigned mark, images;
    struct ibx_compiler compiler; /* its values belong to the program, until the link ends */
    void *image;
    size_t n;
};

static struct link *link_of(void *state)
{
    struct link *l = state;
    return l && l->mark == MARK ? l : NULL;
}

EXPORTED int cuLinkCreate_v2(unsigned count, const int *options, void **values, void **state)
{
    struct link *l = state ? calloc(1, sizeof(*l)) : NULL;
    if (!l)
        return IN_CONTEXT(state ? CUDA_MEMORY_ALLOCATION : CUDA_INVALID_VALUE);
    l->mark = MARK;
    l->compiler = ibx_frontend_compiler_of(count, options, values);
    ibx_frontend_compiler_is_silent(&l->compiler);
    const int rc = IN_CONTEXT(CUDA_SUCCESS);
    if (rc)
        free(l);
    else
        *state = l;
    return rc;
}

/* The driver compiles PTX when it is added, and says then what is wrong. It is compiled here only
 * if the program wants a log, since loading the module compiles it again. */
static int compiled(const struct link *l, const void *image)
{
    return ibx_frontend_compiler_is_asked(&l->compiler)
               ? ibx_frontend_compile(&l->compiler, image, true)
               : CUDA_SUCCESS;
}

static int tell_several(void)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN,
                "cuLinkAddData returns CUDA_ERROR_NOT_SUPPORTED: several images are "
                "not linked for a remote GPU; nvrtc and nvJitLink link them into one");
    return CUDA_NOT_SUPPORTED;
}

/* Keeps a copy of the image, with a NUL behind it, which PTX needs. */
static int add(struct link *l, const void *image, size_t n)
{
    if (!l || !image || !n)
        return l ? CUDA_INVALID_VALUE : CUDA_INVALID_HANDLE;
    if (l->images)
        return tell_several();
    char *copy = malloc(n + 1);
    size_t length = 0;
    if (!copy)
        return CUDA_MEMORY_ALLOCATION;
    memcpy(copy, image, n);
    copy[n] = 0;
    const void *code = copy;
    const bool is_image = ibx_image_measure(&code, n + 1, &length) != IBX_IMAGE_NONE;
    const int rc = is_image ? compiled(l, copy) : CUDA_INVALID_IMAGE;
    if (rc) {
        free(copy);
        return rc;
    }
    l->image = copy;
    l->n = n;
    l->images++;
    return CUDA_SUCCESS;
}

EXPORTED int cuLinkAddData_v2(void *state, int type, const void *data, size_t n, const char *name,
                              unsigned count, const int *options, void **values)
{
    (void)type, (void)name, (void)count, (void)options, (void)values;
    return IN_CONTEXT(add(link_of(state), data, n));
}

static int add_file(struct link *l, const char *path)
{
    FILE *file = path ? fopen(path, "rbe") : NULL;
    char *bytes = NULL;
    size_t n = 0;
    long end;
    if (!file)
        return path ? CUDA_FILE_NOT_FOUND : CUDA_INVALID_VALUE;
    if (!fseek(file, 0, SEEK_END) && (end = ftell(file)) > 0) {
        rewind(file);
        bytes = malloc((size_t)end);
        n = bytes ? fread(bytes, 1, (size_t)end, file) : 0;
    }
    fclose(file);
    const int rc = add(l, bytes, n);
    free(bytes);
    return rc;
}

EXPORTED int cuLinkAddFile_v2(void *state, int type, const char *path, unsigned count,
                              const int *options, void **values)
{
    (void)type, (void)count, (void)options, (void)values;
    const int cancel = ibx_thread_hold_cancel();
    const int rc = IN_CONTEXT(add_file(link_of(state), path));
    ibx_thread_release_cancel(cancel);
    return rc;
}

/* PTX that declares what it lacks is compiled once more, and linked, so that the log says what
 * nothing here defines. */
static int linked(const struct link *l)
{
    static const char lacks[] = ".extern";
    return ibx_frontend_compiler_is_asked(&l->compiler) &&
                   memmem(l->image, l->n, lacks, sizeof(lacks) - 1)
               ? ibx_frontend_compile(&l->compiler, l->image, false)
               : CUDA_SUCCESS;
}

static int complete(const struct link *l, void **image, size_t *n)
{
    if (!l || !image || !l->images)
        return l ? CUDA_INVALID_VALUE : CUDA_INVALID_HANDLE;
    const int rc = linked(l);
    if (rc)
        return rc;
    *image = l->image;
    if (n)
        *n = l->n;
    return CUDA_SUCCESS;
}

EXPORTED int cuLinkComplete(void *state, void **image, size_t *n)
{
    return IN_CONTEXT(complete(link_of(state), image, n));
}

EXPORTED int cuLinkDestroy(void *state)
{
    struct link *l = link_of(state);
    const int rc = IN_CONTEXT(l ? CUDA_SUCCESS : CUDA_INVALID_HANDLE);
    if (l) {
        l->mark = 0;
        free(l->image);
        free(l);
    }
    return rc;
}

SAME_AS(cuLinkCreate, cuLinkCreate_v2)
SAME_AS(cuLinkAddData, cuLinkAddData_v2)
SAME_AS(cuLinkAddFile, cuLinkAddFile_v2)
