/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Libraries of CUDA that GVirtuS's plugins have loaded, and their functions; and NCCL, for which
 * GVirtuS has no plugin. */
#include "frontend-glue/device_calls/math_descriptors.h"
#include "frontend-glue/session/math_calls.h"

#include "common/log.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct search {
    const char *begins;
    char path[PATH_MAX];
};

static int note_library(struct dl_phdr_info *info, size_t size, void *argument)
{
    struct search *s = argument;
    const char *slash = strrchr(info->dlpi_name, '/');
    (void)size;
    if (strncmp(slash ? slash + 1 : info->dlpi_name, s->begins, strlen(s->begins)) != 0)
        return 0;
    return snprintf(s->path, sizeof(s->path), "%s", info->dlpi_name) < (int)sizeof(s->path);
}

static void *load_nccl(void)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    const char *named = secure_getenv("IBX_LIBNCCL");
    void *library = dlopen(named ? named : "libnccl.so.2", RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
    if (!library && !atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN,
                "clients get no NCCL: %s (install libnccl2, or set IBX_LIBNCCL to the path of "
                "libnccl.so.2, where the back end is started)",
                dlerror());
    return library;
}

/* NULL: the library is not loaded. Once it is found, it stays the same. */
static void *library_of(unsigned number)
{
    static _Atomic(void *) known[IBX_MATH_LIBRARIES];
    _Atomic(void *) *handle = &known[number >> 12];
    struct search s = {.begins = ibx_math_statuses_of(number)->file};
    if (!atomic_load(handle) && dl_iterate_phdr(note_library, &s))
        atomic_store(handle, dlopen(s.path, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE));
    if (ibx_math_is_nccl(number) && !atomic_load(handle))
        atomic_store(handle, load_nccl());
    return atomic_load(handle);
}

/* Looked up once, since a look-up takes a lock of all threads. */
void *ibx_math_function_of(const struct ibx_math_function *f)
{
    static _Atomic(void *) known[IBX_MATH_FUNCTIONS];
    _Atomic(void *) *place = &known[f - ibx_math_each(0)];
    void *function = atomic_load_explicit(place, memory_order_acquire);
    void *library = function ? NULL : library_of(f->number);
    if (library && (function = dlsym(library, f->name)))
        atomic_store_explicit(place, function, memory_order_release);
    return function;
}

void *ibx_math_symbol(unsigned number, const char *name)
{
    void *library = library_of(number);
    return library ? dlsym(library, name) : NULL;
}
