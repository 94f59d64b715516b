/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Libraries of kernels that a program loads while it runs (CUDA 12.8). Each becomes a module,
 * registered as nvcc's code registers those of the program; GVirtuS does the rest. The handle of a
 * kernel is the address under which it is registered, so all calls accept it like a kernel of the
 * program. A library that cannot be compiled is found out when it is first used, as natively.
 */
#include "frontend-glue/preload/kernels/images.h"
#include "frontend-glue/preload/kernels/kernels.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/runtime/runtime.h"
#include "frontend-glue/preload/streams/streams.h"

#include "common/log.h"
#include "common/thread.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define IS_PRESERVED   1 /* cudaLibraryBinaryIsPreserved */
#define NAME_MAX_BYTES 4096u

#define NO_BINARY       209 /* cudaErrorNoKernelImageForDevice */
#define UNSUPPORTED_PTX 222
#define ATTRIBUTES_MAX  512u

/* A kernel (n is 0) or a variable of n bytes. Its own address is its handle in CUDA; that of one
 * that is declared __managed__ is the pointer to it, which comes first. */
struct part {
    void *at; /* of a managed one, when the program has asked for it */
    struct part *next;
    struct variable_memory *memory; /* the memory of a variable whose library has no kernel */
    size_t n;
    enum ibx_image_part what;
    char name[];
};

struct library {
    struct library *next;
    struct ibx_image_wrapper wrapper;
    void **module;
    struct part *parts, **last;
    unsigned kernels;
    bool good;       /* there was memory for all parts */
    bool works;      /* the back end has loaded it */
    const void *ptx; /* NULL: it is not PTX alone */
    size_t n;
    _Alignas(8) uint8_t fat[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct library *libraries;

static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

static void discard(struct library *l)
{
    for (struct part *p; l && (p = l->parts);) {
        l->parts = p->next;
        ibx_frontend_variable_memory_end(p->memory);
        free(p);
    }
    free(l);
}

static struct part *part_of(const struct library *l, const char *name, size_t length, bool kernel)
{
    struct part *p = l->parts;
    while (p && !(!p->n == kernel && !strncmp(p->name, name, length) && !p->name[length]))
        p = p->next;
    return p;
}

/* The same name may come once for each architecture. */
static void add_part(const char *name, size_t length, size_t n, enum ibx_image_part what,
                     void *library)
{
    struct library *l = library;
    if (length > NAME_MAX_BYTES || part_of(l, name, length, !n))
        return;
    struct part *p = calloc(1, sizeof(*p) + length + 1);
    l->good = l->good && p;
    if (!p)
        return;
    memcpy(p->name, name, length);
    p->n = n;
    p->what = what;
    *l->last = p;
    l->last = &p->next;
    l->kernels += !n;
}

/* ------------------------------------------------------------------------------------- loading */

/* NULL: *rc says why not. */
static struct library *read_image(const void *code, int *rc)
{
    size_t n = 0;
    bool compressed = false;
    const enum ibx_image_kind kind = ibx_image_measure(&code, SIZE_MAX, &n);
    uint8_t *expanded = kind == IBX_IMAGE_FAT && ibx_image_is_compressed(code, n)
                            ? ibx_image_expand(code, n, ibx_frontend_targets(), &n)
                            : NULL;
    uint8_t begin[IBX_IMAGE_HEADER];
    *rc = CUDA_INVALID_IMAGE;
    if (kind == IBX_IMAGE_NONE)
        return NULL;
    const size_t head = kind == IBX_IMAGE_FAT ? 0 : ibx_image_head(begin, kind, code, n);
    const size_t all = head + ((n + 7) & ~(size_t)7);
    struct library *l = calloc(1, sizeof(*l) + all);
    *rc = CUDA_MEMORY_ALLOCATION;
    if (!l) {
        free(expanded);
        return NULL;
    }
    l->n = all;
    l->good = true;
    l->last = &l->parts;
    memcpy(l->fat, begin, head);
    memcpy(l->fat + head, expanded ? expanded : code, n);
    free(expanded);
    l->wrapper = ibx_image_wrap(l->fat);
    l->ptx = kind == IBX_IMAGE_PTX ? l->fat + head : NULL;
    const bool sound =
        ibx_image_look(l->fat, kind == IBX_IMAGE_FAT ? n : all, add_part, l, &compressed);
    if (sound && l->good)
        return l;
    if (compressed)
        ibx_log(IBX_LOG_WARN, "cudaLibraryLoadData returns cudaErrorNotSupported: an image is "
                              "compressed in a way that is not known here: compile with nvcc "
                              "--no-compress");
    *rc = compressed ? CUDA_NOT_SUPPORTED : !sound ? CUDA_INVALID_IMAGE : *rc;
    discard(l);
    return NULL;
}

/* Registers the library as nvcc's code does. Locked. False: GVirtuS does not accept the image. */
static bool register_locked(struct library *l)
{
    l->module = ibx_frontend_register_module(&l->wrapper);
    if (!l->module)
        return false;
    for (struct part *p = l->parts; p; p = p->next) {
        if (p->what == IBX_IMAGE_MANAGED && l->kernels)
            __cudaRegisterManagedVar(l->module, &p->at, NULL, p->name, 0, p->n, 0, 0);
        else if (p->n)
            __cudaRegisterVar(l->module, (char *)p, p->name, p->name, 0, p->n,
                              p->what == IBX_IMAGE_CONSTANT, 0);
        else
            __cudaRegisterFunction(l->module, (char *)p, p->name, p->name, -1, NULL, NULL, NULL,
                                   NULL, NULL);
    }
    __cudaRegisterFatBinaryEnd(l->module);
    return true;
}

static bool register_module(struct library *l)
{
    const int cancel = ibx_thread_hold_cancel();
    ibx_frontend_gvirtus_maps_lock();
    const bool accepted = register_locked(l);
    ibx_frontend_gvirtus_maps_unlock();
    ibx_thread_release_cancel(cancel);
    return accepted;
}

static void unregister_module(const struct library *l)
{
    const int cancel = ibx_thread_hold_cancel();
    ibx_frontend_gvirtus_maps_lock();
    __cudaUnregisterFatBinary(l->module);
    ibx_frontend_gvirtus_maps_unlock();
    ibx_thread_release_cancel(cancel);
}

/* Whether there are options that are not supported: those of the compiler, and tables of host
 * functions. */
static bool has_options(unsigned count, const int *library_options, unsigned library_count)
{
    for (unsigned i = 0; library_options && i < library_count; i++)
        if (library_options[i] != IS_PRESERVED)
            return true;
    return count;
}

static int load(void **library, const void *code, bool options)
{
    int rc;
    if (options)
        return ibx_frontend_fail(CUDA_NOT_SUPPORTED);
    if (!ibx_frontend_plugin())
        ibx_frontend_connect();
    struct library *l = read_image(code, &rc);
    if (!l)
        return ibx_frontend_fail(rc);
    if (!register_module(l)) {
        discard(l);
        return ibx_frontend_fail(CUDA_INVALID_IMAGE);
    }
    pthread_mutex_lock(&lock);
    l->next = libraries;
    libraries = l;
    pthread_mutex_unlock(&lock);
    *library = l;
    return CUDA_SUCCESS;
}

int cudaLibraryLoadData(void **library, const void *code, const int *options, void *const *values,
                        unsigned count, const int *library_options, void *const *library_values,
                        unsigned library_count)
{
    (void)options, (void)values, (void)library_values;
    if (!library || !code)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    return load(library, code, has_options(count, library_options, library_count));
}

/* The content of a file, followed by a NUL, which PTX in a file may lack. The caller frees it.
 * NULL: *rc says why not. */
static void *read_file(const char *path, int *rc)
{
    FILE *file = fopen(path, "rbe");
    char *bytes = NULL;
    size_t n = 0, length;
    long end;
    *rc = file ? CUDA_INVALID_IMAGE : CUDA_FILE_NOT_FOUND;
    if (file && !fseek(file, 0, SEEK_END) && (end = ftell(file)) > 0) {
        rewind(file);
        bytes = calloc(1, (size_t)end + 1);
        n = bytes ? fread(bytes, 1, (size_t)end, file) : 0;
        *rc = bytes ? CUDA_INVALID_IMAGE : CUDA_MEMORY_ALLOCATION;
    }
    if (file)
        fclose(file);
    const void *code = bytes;
    if (bytes && ibx_image_measure(&code, n + 1, &length) != IBX_IMAGE_NONE)
        return bytes;
    free(bytes);
    return NULL;
}

int cudaLibraryLoadFromFile(void **library, const char *path, const int *options,
                            void *const *values, unsigned count, const int *library_options,
                            void *const *library_values, unsigned library_count)
{
    int rc;
    (void)options, (void)values, (void)library_values;
    if (!library || !path)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    const int cancel = ibx_thread_hold_cancel();
    void *code = read_file(path, &rc);
    ibx_thread_release_cancel(cancel);
    if (!code)
        return ibx_frontend_fail(rc);
    rc = load(library, code, has_options(count, library_options, library_count));
    free(code);
    return rc;
}

/* Called under the lock. The pointer in the list that points to the library, or to NULL at the end.
 */
static struct library **place_of(const void *library)
{
    struct library **at = &libraries;
    while (*at && *at != library)
        at = &(*at)->next;
    return at;
}

int cudaLibraryUnload(void *library)
{
    ibx_frontend_owned_gone(OWNED_LIBRARY, library);
    ibx_frontend_own_modules(); /* before: a thread that registers modules again reads what is freed
                                   here */
    pthread_mutex_lock(&lock);
    struct library **at = place_of(library), *l = *at;
    if (l)
        *at = l->next;
    pthread_mutex_unlock(&lock);
    if (!l)
        return ibx_frontend_fail(CUDA_INVALID_HANDLE);
    unregister_module(l);
    for (const struct part *p = l->parts; p; p = p->next)
        ibx_frontend_kernel_gone(p);
    discard(l);
    return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------- whether it works */

/* A kernel of the library, if there is one. *works: the back end has loaded it. *ptx: the PTX of
 * one that is PTX alone, valid until the library is unloaded. False: there is no such library. */
static bool look_at(const void *library, void **kernel, bool *works, const void **ptx)
{
    *kernel = NULL;
    pthread_mutex_lock(&lock);
    const struct library *l = *place_of(library);
    for (struct part *p = l ? l->parts : NULL; p && !*kernel; p = p->next)
        *kernel = p->n ? NULL : p;
    *works = l && l->works;
    *ptx = l ? l->ptx : NULL;
    pthread_mutex_unlock(&lock);
    return l;
}

static void note_works(const void *library)
{
    pthread_mutex_lock(&lock);
    struct library *l = *place_of(library);
    if (l)
        l->works = true;
    pthread_mutex_unlock(&lock);
}

/* The driver compiles an image when it is loaded, and says then what is wrong; the back end does so
 * when a kernel is first used. The runtime's errors for an image without code for the device become
 * the driver's. */
static int load_kernel(const void *kernel)
{
    _Alignas(16) uint8_t attributes[ATTRIBUTES_MAX];
    const int rc = kernel ? cudaFuncGetAttributes(attributes, kernel) : CUDA_SUCCESS;
    if (rc == CUDA_NOT_SUPPORTED) /* nobody can tell */
        return CUDA_SUCCESS;
    return rc == CUDA_INVALID_FUNCTION || rc == CUDA_INVALID_HANDLE ? NO_BINARY : rc;
}

int ibx_frontend_library_try(void *library, bool *tried)
{
    const void *ptx;
    void *kernel;
    bool works;
    if (!look_at(library, &kernel, &works, &ptx))
        return CUDA_INVALID_HANDLE;
    *tried = kernel;
    const int rc = works ? CUDA_SUCCESS : load_kernel(kernel);
    if (!rc && kernel && !works)
        note_works(library);
    return rc;
}

/* What is wrong with the library, as far as the back end says. One without a known kernel may be
 * one that cannot be compiled. */
static int what_is_wrong(void *library)
{
    static const struct ibx_compiler silent;
    const void *ptx;
    void *kernel;
    bool works;
    if (!look_at(library, &kernel, &works, &ptx))
        return CUDA_INVALID_HANDLE;
    if (works)
        return CUDA_SUCCESS;
    const int rc = load_kernel(kernel);
    const int result = ptx && (rc || !kernel) ? ibx_frontend_compile_module(&silent, ptx) : 0;
    if (!rc && !result)
        note_works(library);
    return result ? result : rc;
}

int ibx_frontend_library_use(void *library)
{
    struct ibx_frontend_errors before;
    ibx_frontend_drives(&before);
    const int rc = what_is_wrong(library);
    ibx_frontend_drove(&before, rc);
    return rc;
}

/* ----------------------------------------------------------------------------- what is in one */

/* The part of this name; NULL: *rc says why not. It is valid until another thread unloads the
 * library. */
static struct part *find(void *library, const char *name, bool kernel, int *rc)
{
    *rc = ibx_frontend_library_use(library);
    if (*rc) {
        ibx_frontend_fail(*rc);
        return NULL;
    }
    pthread_mutex_lock(&lock);
    const struct library *l = *place_of(library);
    struct part *p = l ? part_of(l, name, strlen(name), kernel) : NULL;
    pthread_mutex_unlock(&lock);
    *rc = p ? CUDA_SUCCESS : ibx_frontend_fail(l ? CUDA_SYMBOL_NOT_FOUND : CUDA_INVALID_HANDLE);
    return p;
}

int cudaLibraryGetKernel(void **kernel, void *library, const char *name)
{
    int rc;
    if (!kernel || !name)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    struct part *found = find(library, name, true, &rc);
    if (found)
        *kernel = found;
    return rc;
}

void *ibx_frontend_library_of(const void *kernel)
{
    const struct part *p = NULL;
    pthread_mutex_lock(&lock);
    struct library *l = libraries;
    while (l && !p) {
        for (p = l->parts; p && !(p == kernel && !p->n);)
            p = p->next;
        l = p ? l : l->next;
    }
    pthread_mutex_unlock(&lock);
    return l;
}

/* Whether the error is one of the image, and not of the device, or of the connection to it. */
static bool is_of_image(int rc)
{
    return rc == CUDA_INVALID_IMAGE || rc == NO_BINARY || rc == CUDA_INVALID_PTX ||
           rc == UNSUPPORTED_PTX;
}

/* A library whose image does not work has no kernels. */
int cudaLibraryGetKernelCount(unsigned *count, void *library)
{
    if (!count)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    const bool has_none = is_of_image(ibx_frontend_library_use(library));
    pthread_mutex_lock(&lock);
    const struct library *l = *place_of(library);
    if (l)
        *count = has_none ? 0 : l->kernels;
    pthread_mutex_unlock(&lock);
    return l ? CUDA_SUCCESS : ibx_frontend_fail(CUDA_INVALID_HANDLE);
}

int cudaLibraryEnumerateKernels(void **kernels, unsigned count, void *library)
{
    unsigned i = 0;
    if (!kernels)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    const bool has_none = is_of_image(ibx_frontend_library_use(library));
    pthread_mutex_lock(&lock);
    const struct library *l = *place_of(library);
    for (struct part *p = l && !has_none ? l->parts : NULL; p && i < count; p = p->next)
        if (!p->n)
            kernels[i++] = p;
    pthread_mutex_unlock(&lock);
    return l ? CUDA_SUCCESS : ibx_frontend_fail(CUDA_INVALID_HANDLE);
}

/* The program has the managed variables of a library from when it first asks for one on. `address`
 * or `n` may be NULL. */
int cudaLibraryGetManaged(void **address, size_t *n, void *library, const char *name)
{
    int rc;
    if (!name || (!address && !n))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    struct part *found = find(library, name, false, &rc);
    const struct library *l = library; /* found: so `library` is one */
    if (!found)
        return rc;
    if (found->what != IBX_IMAGE_MANAGED)
        return ibx_frontend_fail(CUDA_SYMBOL_NOT_FOUND);
    if (!found->at)
        __cudaInitModule(l->module);
    if (!found->at)
        return ibx_frontend_fail(CUDA_NOT_SUPPORTED);
    if (address)
        *address = found->at;
    if (n)
        *n = found->n;
    return CUDA_SUCCESS;
}

/* `address` or `n` may be NULL. */
int cudaLibraryGetGlobal(void **address, size_t *n, void *library, const char *name)
{
    void *at = NULL;
    int rc;
    if (!name || (!address && !n))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    struct part *found = find(library, name, false, &rc);
    const struct library *l = library; /* found: so `library` is one */
    if (found)
        rc = l->kernels ? cudaGetSymbolAddress(&at, found)
                        : ibx_frontend_variable_memory(&found->memory, l->fat, l->n, found->name,
                                                       found->n, &at);
    if (!rc && address)
        *address = at;
    if (!rc && n)
        *n = found->n;
    return rc;
}
