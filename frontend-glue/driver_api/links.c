/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The driver's linker. A link of one image that can be loaded is that image, since the back end's
 * driver compiles PTX when it is loaded. Several images, and what cannot be loaded alone, are
 * linked by the back end's driver when the link is completed.
 */
#include "frontend-glue/driver_api/driver.h"
#include "frontend-glue/preload/kernels/images.h"
#include "frontend-glue/preload/runtime/runtime.h"
#include "frontend-glue/preload/streams/streams.h"

#include "common/log.h"
#include "common/thread.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define RESULT_LEAST (1u << 20) /* room for what is linked, beside that of the images */

/* CUjitInputType. Those from OBJECT on cannot be loaded alone. */
enum { IS_PTX = 1, IS_OBJECT = 3, IS_LIBRARY, IS_NVVM };

struct part {
    int type;
    void *image;
    size_t n;
};

struct link {
    struct link *next;
    unsigned images;
    struct ibx_compiler compiler; /* its values belong to the program, until the link ends */
    struct part parts[IBX_EXT_LINKED];
    void *image; /* of several, once they are linked */
    size_t n;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the list */
static struct link *links;

static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

/* Called under the lock. */
static struct link **place_of(const void *state)
{
    struct link **at = &links;
    while (*at && *at != state)
        at = &(*at)->next;
    return at;
}

/* NULL: there is no such link, or no longer. */
static struct link *link_of(const void *state)
{
    pthread_mutex_lock(&lock);
    struct link *l = *place_of(state);
    pthread_mutex_unlock(&lock);
    return l;
}

static void note(struct link *l)
{
    pthread_mutex_lock(&lock);
    l->next = links;
    links = l;
    pthread_mutex_unlock(&lock);
}

static struct link *take_out(const void *state)
{
    pthread_mutex_lock(&lock);
    struct link **at = place_of(state), *l = *at;
    if (l)
        *at = l->next;
    pthread_mutex_unlock(&lock);
    return l;
}

EXPORTED int cuLinkCreate_v2(unsigned count, const int *options, void **values, void **state)
{
    struct link *l = state ? calloc(1, sizeof(*l)) : NULL;
    if (!l)
        return IN_CONTEXT(state ? CUDA_MEMORY_ALLOCATION : CUDA_INVALID_VALUE);
    l->compiler = ibx_frontend_compiler_of(count, options, values);
    ibx_frontend_compiler_is_silent(&l->compiler);
    const int rc = IN_CONTEXT(CUDA_SUCCESS);
    if (rc) {
        free(l);
        return rc;
    }
    note(l);
    *state = l;
    return CUDA_SUCCESS;
}

/* The driver compiles PTX when it is added, and says then what is wrong. It is compiled here only
 * if the program wants a log, since loading the module compiles it again. */
static int compiled(const struct link *l, const void *image)
{
    return ibx_frontend_compiler_is_asked(&l->compiler)
               ? ibx_frontend_compile(&l->compiler, image, true)
               : CUDA_SUCCESS;
}

/* Says once that links are refused, and for which reason first. */
static int refuse(const char *call, const char *why)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN,
                "%s returns CUDA_ERROR_NOT_SUPPORTED: %s; nvrtc and nvJitLink link images as well",
                call, why);
    return CUDA_NOT_SUPPORTED;
}

/* Keeps a copy of the image, with a NUL behind it, which PTX needs. */
static int add(struct link *l, int type, const void *image, size_t n)
{
    if (!l || !image || !n || type < 0 || type > IS_NVVM)
        return l ? CUDA_INVALID_VALUE : CUDA_INVALID_HANDLE;
    if (l->images == IBX_EXT_LINKED)
        return refuse("cuLinkAddData", "a link has 64 images at most");
    char *copy = malloc(n + 1);
    size_t length = 0;
    if (!copy)
        return CUDA_MEMORY_ALLOCATION;
    memcpy(copy, image, n);
    copy[n] = 0;
    const void *code = copy;
    const bool is_image =
        type >= IS_OBJECT || ibx_image_measure(&code, n + 1, &length) != IBX_IMAGE_NONE;
    const int rc = !is_image           ? CUDA_INVALID_IMAGE
                   : type >= IS_OBJECT ? CUDA_SUCCESS
                                       : compiled(l, copy);
    if (rc) {
        free(copy);
        return rc;
    }
    l->parts[l->images++] = (struct part){type, copy, n};
    return CUDA_SUCCESS;
}

EXPORTED int cuLinkAddData_v2(void *state, int type, const void *data, size_t n, const char *name,
                              unsigned count, const int *options, void **values)
{
    (void)name, (void)count, (void)options, (void)values;
    return IN_CONTEXT(add(link_of(state), type, data, n));
}

static int add_file(struct link *l, int type, const char *path)
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
    const int rc = add(l, type, bytes, n);
    free(bytes);
    return rc;
}

EXPORTED int cuLinkAddFile_v2(void *state, int type, const char *path, unsigned count,
                              const int *options, void **values)
{
    (void)count, (void)options, (void)values;
    const int cancel = ibx_thread_hold_cancel();
    const int rc = IN_CONTEXT(add_file(link_of(state), type, path));
    ibx_thread_release_cancel(cancel);
    return rc;
}

/* PTX that declares what it lacks is compiled, and linked, since completing the link is where CUDA
 * says that nothing defines it. */
static int linked(const struct link *l)
{
    static const char lacks[] = ".extern";
    return memmem(l->parts[0].image, l->parts[0].n, lacks, sizeof(lacks) - 1)
               ? ibx_frontend_compile(&l->compiler, l->parts[0].image, false)
               : CUDA_SUCCESS;
}

/* The bytes that the linker gets: of PTX with its NUL, unless the program has counted one. */
static size_t length_of(const struct part *p)
{
    const char *bytes = p->image;
    return p->type == IS_PTX && bytes[p->n - 1] ? p->n + 1 : p->n;
}

static size_t length_of_all(const struct link *l)
{
    size_t n = 0;
    for (unsigned i = 0; i < l->images; i++)
        n += ibx_extension_linked_room(length_of(&l->parts[i]));
    return n;
}

/* Copies all parts to memory of the device. */
static int send_parts(const struct link *l, char *memory)
{
    int rc = CUDA_SUCCESS;
    for (unsigned i = 0; i < l->images && !rc; i++) {
        const size_t n = length_of(&l->parts[i]);
        rc = cudaMemcpy(memory, l->parts[i].image, n, CUDA_MEMCPY_TO_DEVICE);
        memory += ibx_extension_linked_room(n);
    }
    return rc;
}

/* Has the back end link what is in that memory. *n: the bytes of the result, which is there then;
 * 0: there is no room for it. */
static int ask(const struct link *l, void *memory, size_t room, size_t *n)
{
    struct extension_request e;
    uint8_t bytes[12] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    int rc = CUDA_SUCCESS;
    ibx_frontend_request_begin(&e, IBX_EXT_LINK, "cuLinkComplete");
    ibx_put_u64(&e.body, (uintptr_t)memory);
    ibx_put_u64(&e.body, room);
    ibx_put_u16(&e.body, (uint16_t)l->images);
    for (unsigned i = 0; i < l->images; i++) {
        ibx_put_u32(&e.body, (uint32_t)l->parts[i].type);
        ibx_put_u64(&e.body, length_of(&l->parts[i]));
    }
    if (!ibx_frontend_request_known(&e, bytes, sizeof(bytes), &rc))
        return refuse("cuLinkComplete", "the back end's communicator is older and links no images");
    const int result = (int)ibx_get_u32(&r);
    *n = ibx_get_u64(&r);
    return rc ? rc : result ? result : *n && *n <= room ? CUDA_SUCCESS : CUDA_MEMORY_ALLOCATION;
}

static int link_parts(struct link *l)
{
    const size_t all = length_of_all(l), room = 2 * all + RESULT_LEAST;
    void *memory = NULL;
    size_t n = 0;
    if (all > IBX_EXT_LINK_MOST || ibx_frontend_capturing())
        return refuse("cuLinkComplete",
                      "a stream is captured, or the images have more than 32 MiB");
    int rc = cudaMalloc(&memory, room);
    if (rc)
        return rc;
    rc = send_parts(l, memory);
    if (!rc)
        rc = ask(l, memory, room, &n);
    l->image = rc ? NULL : malloc(n);
    if (!rc)
        rc = l->image ? cudaMemcpy(l->image, memory, n, CUDA_MEMCPY_FROM_DEVICE)
                      : CUDA_MEMORY_ALLOCATION;
    l->n = rc ? 0 : n;
    if (rc)
        free(l->image);
    l->image = rc ? NULL : l->image;
    const int mode = ibx_frontend_relax(); /* another thread may have begun a capture meanwhile */
    cudaFree(memory);
    ibx_frontend_relax_end(mode);
    return rc;
}

static int complete(struct link *l, void **image, size_t *n)
{
    if (!l || !image || !l->images)
        return l ? CUDA_INVALID_VALUE : CUDA_INVALID_HANDLE;
    const bool alone = l->images == 1 && l->parts[0].type < IS_OBJECT;
    const int rc = alone ? linked(l) : l->n ? CUDA_SUCCESS : link_parts(l);
    if (rc)
        return rc;
    *image = alone ? l->parts[0].image : l->image;
    if (n)
        *n = alone ? l->parts[0].n : l->n;
    return CUDA_SUCCESS;
}

EXPORTED int cuLinkComplete(void *state, void **image, size_t *n)
{
    return IN_CONTEXT(complete(link_of(state), image, n));
}

EXPORTED int cuLinkDestroy(void *state)
{
    struct link *l = take_out(state);
    const int rc = IN_CONTEXT(l ? CUDA_SUCCESS : CUDA_INVALID_HANDLE);
    if (l) {
        for (unsigned i = 0; i < l->images; i++)
            free(l->parts[i].image);
        free(l->image);
        free(l);
    }
    return rc;
}

SAME_AS(cuLinkCreate, cuLinkCreate_v2)
SAME_AS(cuLinkAddData, cuLinkAddData_v2)
SAME_AS(cuLinkAddFile, cuLinkAddFile_v2)
