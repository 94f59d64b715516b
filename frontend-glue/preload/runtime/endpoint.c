/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The end point in GVirtuS's properties.json. Its front end (G5) reads that file for each thread
 * that connects, and compiles regular expressions for its fields, which takes several times as long
 * as to connect. This replacement has the file read once. If it has changed since, which is seldom
 * while a program runs, it is read for each thread again.
 *
 * The function returns a std::shared_ptr, whose layout is libstdc++'s, as the function's name is.
 */
#include "frontend-glue/preload/dlsym.h"
#include "frontend-glue/preload/preload.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>

/* There the caller passes the address of such a result as an argument, before the others. */
#ifdef __x86_64__

#define ENDPOINTS    "_ZN7gvirtus13communicators15EndpointFactory"
#define GET_ENDPOINT ENDPOINTS "12get_endpointERKNSt12experimental10filesystem2v17__cxx114pathE"
/* Earlier generations count their calls, and return the next end point in each. */
#define COUNT ENDPOINTS "12ind_endpointE"

struct reference {
    void *endpoint;
    struct {
        void *functions;
        _Atomic int users, observers;
    } * count;
};

/* A path begins with its characters. */
struct path {
    const char *characters;
};

__attribute__((visibility("default"))) struct reference *
ibx_frontend_endpoint(struct reference *result, const struct path *path) __asm__(GET_ENDPOINT);

typedef struct reference *get_endpoint(struct reference *result, const struct path *path);

/* What was read first. The reference is kept: only C++ could end the last one. */
static struct {
    atomic_flag used; /* by a thread, for a moment; another one reads the file itself */
    struct reference reference;
    struct stat file;
} kept = {.used = ATOMIC_FLAG_INIT};

static bool is_same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

static bool is_same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           is_same_time(a->st_mtim, b->st_mtim) && is_same_time(a->st_ctim, b->st_ctim);
}

static void refer(struct reference *to, const struct reference *from)
{
    atomic_fetch_add(&from->count->users, 1);
    *to = *from;
}

static bool was_read(const struct stat *file, struct reference *result)
{
    if (atomic_flag_test_and_set(&kept.used))
        return false;
    const bool there = kept.reference.count && is_same_file(&kept.file, file);
    if (there)
        refer(result, &kept.reference);
    atomic_flag_clear(&kept.used);
    return there;
}

static void keep(const struct stat *file, const struct reference *result)
{
    if (!result->count || atomic_flag_test_and_set(&kept.used))
        return;
    if (!kept.reference.count) {
        refer(&kept.reference, result);
        kept.file = *file;
    }
    atomic_flag_clear(&kept.used);
}

/* GVirtuS's function is in the library that has called it, which symbol lookups may not reach. */
static get_endpoint *find(const void *caller, bool *counts)
{
    Dl_info info;
    void *library = dladdr(caller, &info) && info.dli_fname
                        ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)
                        : NULL;
    get_endpoint *found = NULL;
    *counts = library && ibx_frontend_dlsym(library, COUNT);
    if (library) {
        *(void **)&found = ibx_frontend_dlsym(library, GET_ENDPOINT);
        dlclose(library);
    }
    return found;
}

struct reference *ibx_frontend_endpoint(struct reference *result, const struct path *path)
{
    static _Atomic(get_endpoint *) found;
    static atomic_bool counts;
    get_endpoint *next = atomic_load(&found);
    struct stat file;
    if (!next) {
        bool does = false;
        next = find(__builtin_return_address(0), &does);
        atomic_store(&counts, does);
        atomic_store(&found, next);
    }
    if (!next) /* not possible: its caller was linked with it */
        abort();
    const bool known = !atomic_load(&counts) && !stat(path->characters, &file);
    if (known && was_read(&file, result))
        return result;
    next(result, path); /* which may throw an exception */
    if (known)
        keep(&file, result);
    return result;
}

#endif
