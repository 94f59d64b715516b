/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The end of a process by exit(3), in three situations in which GVirtuS would hang or crash.
 *
 * In a forked child: log4cplus, GVirtuS's logger, has threads, and its destructors wait for them. A
 * child has none of these threads, so it would wait for ever. exit(3) calls what the program has
 * registered, then the destructors of libraries, then what libraries registered when they were
 * initialized, in reverse order. So in a child
 *
 * - log4cplus's destructors are removed from its dynamic section, and
 * - a handler of this library ends the process before the destructors of objects in log4cplus,
 *   which were registered earlier. C++'s streams are flushed when the last library that uses them
 *   is done. log4cplus never is, so the handler flushes them.
 *
 * While other threads may be in calls of CUDA: these threads go on until the process ends, and may
 * connect. So the destructors of GVirtuS and of libfabric, which would free what they use, are
 * removed as well, and the handler closes the connections that no thread uses. The same if
 * exit(3) is called in a signal handler that has interrupted its thread in such a call
 * (unloading.c).
 *
 * If a program has loaded these libraries by dlopen(3), as Python does, what they registered is
 * called earlier, among the program's own. So this library replaces __cxa_atexit() and registers
 * run_left() for them, which decides at the end whether to call the function. A handler that is
 * registered after the first of them tells exit(3) from dlclose(3). What the program has registered
 * before may call CUDA for the first time: GVirtuS would connect, and log that, which ends the
 * process by SIGABRT. Natively the runtime has ended, too, and its calls return
 * cudaErrorCudartUnloading.
 */
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include "common/log.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define STREAMS_USES  65536u /* more uses of C++'s streams than log4cplus has */
#define LIBRARIES_MAX 16u

/* log4cplus, and GVirtuS's own libraries and libfabric, which are looked for only if log4cplus is
 * there. */
static const char *const names[] = {"liblog4cplus", "libgvirtus-", "libcudart.so", "libfabric.so"};

/* The DT_FINI_ARRAYSZ entries of these libraries; log4cplus's is the first. */
static ElfW(Dyn) * destructors[LIBRARIES_MAX];
static unsigned libraries;
static void (*end_streams)(void *); /* std::ios_base::Init::~Init() */
static bool linked;                 /* these libraries were loaded with the program */
static atomic_bool ends;            /* exit(3) was called */
static atomic_bool calls_left;      /* other threads, or interrupted functions, may be in calls */

static void in_child(void)
{
    ends = false;
}

static bool add_destructors(const char *library, ElfW(Dyn) * entry, void *name)
{
    if (!entry || !ibx_frontend_is_named(library, name))
        return false;
    while (entry->d_tag != DT_NULL && entry->d_tag != DT_FINI_ARRAYSZ)
        entry++;
    if (entry->d_tag && libraries < LIBRARIES_MAX)
        destructors[libraries++] = entry;
    return false;
}

static void find_libraries(void)
{
    libraries = 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && (!i || libraries); i++)
        ibx_frontend_each_library(add_destructors, (void *)(uintptr_t)names[i]);
}

static bool skip(ElfW(Dyn) * bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    void *at = (void *)((uintptr_t)&bytes->d_un.d_val & ~(page - 1));
    if (mprotect(at, page, PROT_READ | PROT_WRITE))
        return false;
    bytes->d_un.d_val = 0;
    return true;
}

/* Runs before the first destructor that exit(3) calls; once more if a signal handler calls exit(3)
 * in the middle of all that. */
static void begin_end(void)
{
    ibx_frontend_exits();
    if (ends && (calls_left || !ibx_frontend_unloads()))
        return;
    ends = true;
    if (!ibx_frontend_unloads())
        ibx_frontend_print_last();
    ibx_frontend_managed_ends();
    find_libraries();
    if (!libraries)
        return;
    calls_left = !ibx_frontend_close() || ibx_frontend_unloads();
    if (ibx_frontend_forked() && !skip(destructors[0])) {
        ibx_log(IBX_LOG_ERROR,
                "a forked child ends here, because it would hang in exit(): mprotect: %s",
                strerror(errno));
        _exit(EXIT_FAILURE);
    }
    for (unsigned i = 0; calls_left && i < libraries; i++)
        skip(destructors[i]);
}

/* Destructors of libraries that this one does not depend on, such as log4cplus, run after this one.
 */
__attribute__((destructor)) static void end(void)
{
    begin_end();
}

/* ------------------------------------------------------------- what libraries leave to exit(3) */

struct left {
    void (*function)(void *argument);
    void *argument;
    bool log; /* registered by log4cplus */
};

struct owner {
    uintptr_t address;
    const char *const *name; /* its entry in names[]; NULL: another library */
};

static const char *const *name_of(const char *library)
{
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (ibx_frontend_is_named(library, names[i]))
            return &names[i];
    }
    return NULL;
}

static int look_at_owner(struct dl_phdr_info *library, size_t size, void *argument)
{
    struct owner *owner = argument;
    (void)size;
    for (unsigned i = 0; i < library->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &library->dlpi_phdr[i];
        if (part->p_type != PT_LOAD ||
            owner->address - (library->dlpi_addr + part->p_vaddr) >= part->p_memsz)
            continue;
        owner->name = name_of(library->dlpi_name);
        return 1;
    }
    return 0;
}

/* The entry in names[] of the library with this address. Not by dladdr(3), except in a child:
 * another thread may hold its lock in dlopen(3), and wait for this one. */
static const char *const *owner_of(void *library)
{
    struct owner owner = {.address = (uintptr_t)library};
    Dl_info info;
    if (!ibx_frontend_forked())
        dl_iterate_phdr(look_at_owner, &owner);
    else if (dladdr(library, &info) && info.dli_fname)
        owner.name = name_of(info.dli_fname);
    return owner.name;
}

static void run_left(void *argument)
{
    const struct left left = *(struct left *)argument;
    if (!ibx_frontend_unloads()) /* else free(3) itself may be what was interrupted */
        free(argument);
    if ((ends && calls_left) || (ibx_frontend_forked() && left.log))
        return;
    if (left.log && ends) /* else dlclose(3) calls it */
        ibx_frontend_log_ends();
    left.function(left.argument);
}

/* Finds libstdc++'s function in any scope, while libstdc++ is still usable. */
static void find_streams(void)
{
    static const char name[] = "_ZNSt8ios_base4InitD1Ev";
    void *found = dlsym(RTLD_DEFAULT, name);
    void *library = found ? NULL : dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
    found = library ? dlsym(library, name) : found;
    memcpy(&end_streams, &found, sizeof(found));
}

static void exit_begins(int status, void *argument)
{
    (void)status;
    (void)argument;
    begin_end();
}

typedef int atexit_of_library(void (*function)(void *argument), void *argument, void *library);

/* The C library's __cxa_atexit(). Looked up once, at the start: dlsym(3) waits for a thread in
 * dlopen(3), which may wait for this one. */
static atexit_of_library *next_atexit(void)
{
    static _Atomic(void *) known;
    void *found = atomic_load(&known);
    if (!found)
        atomic_store(&known, found = dlsym(RTLD_NEXT, "__cxa_atexit"));
    atexit_of_library *next;
    memcpy(&next, &found, sizeof(next));
    return next;
}

__attribute__((visibility("default"))) atexit_of_library __cxa_atexit;

/* Called by atexit(3) in a library, and for C++ objects with destructors, of which some libraries
 * have thousands. */
int __cxa_atexit(void (*function)(void *argument), void *argument, void *library)
{
    static _Atomic(void *) others; /* the last library that was found not to be in names[] */
    atexit_of_library *next = next_atexit();
    const char *const *name = library == atomic_load(&others) ? NULL : owner_of(library);
    if (!name)
        atomic_store(&others, library);
    struct left *left = name ? malloc(sizeof(*left)) : NULL;
    if (!left)
        return next(function, argument, library);
    if (!end_streams)
        find_streams();
    *left = (struct left){function, argument, name == &names[0]};
    const int rc = next(run_left, left, library);
    if (rc)
        free(left);
    else if (!linked)
        on_exit(exit_begins, NULL);
    return rc;
}

/* ------------------------------------------------------------------------ behind all that */

static void end_process(int status, void *argument)
{
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    (void)argument;
    if (!libraries || (!ibx_frontend_forked() && !calls_left))
        return;
    if (calls_left && calls)
        calls->leave();
    for (unsigned i = 0; end_streams && i < STREAMS_USES; i++) {
        char nobody = 0;
        end_streams(&nobody);
    }
    fcloseall(); /* flushes as exit(3) does, but without the locks of streams in which other threads
                    may wait */
    _exit(status);
}

__attribute__((constructor)) static void begin(void)
{
    next_atexit();
    find_libraries();
    linked = libraries;
    if (pthread_atfork(NULL, NULL, in_child) || on_exit(end_process, NULL))
        ibx_log(IBX_LOG_WARN, "forked children that call exit() may hang: no memory");
}
