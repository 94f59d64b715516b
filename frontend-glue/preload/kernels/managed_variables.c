/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Variables that are declared __managed__ (managed.h). The driver at the back end allocates them
 * when it loads their module. When nvcc's code asks for them, before the program's first access,
 * this process maps pages at the same addresses. The same pages may contain other data, which is
 * left alone, or variables of several modules, such as the program's and a library's. Each variable
 * ends with its module.
 */
#include "frontend-glue/preload/kernels/kernels.h"
#include "frontend-glue/preload/memory/managed.h"

#include "common/log.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PIECES_LEAST 16u

struct variable {
    void **pointer; /* the application's pointer to the variable */
    struct place where;
};

/* Parts of variables, sorted by address, in pages that are not mapped yet. */
struct pieces {
    struct managed_variable *all;
    size_t count, room;
};

static void not_given(const char *why)
{
    ibx_log(IBX_LOG_ERROR,
            "the program has __managed__ variables that it does not get: %s; its first access to "
            "one from the host ends it; use cudaMallocManaged instead",
            why);
}

static int compare(const void *a, const void *b)
{
    const struct variable *left = a, *right = b;
    return (left->where.at > right->where.at) - (left->where.at < right->where.at);
}

/* Finds the variables of a module, sorted by address. False: one was not found. */
static bool find(struct variable *all, void ***pointers, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int rc;
        all[i].pointer = pointers[i];
        if (!ibx_frontend_variable(pointers[i], &all[i].where, &rc) || rc || !all[i].where.n)
            return false;
    }
    qsort(all, count, sizeof(*all), compare);
    return true;
}

/* How many variables, the first one included, are in the same run of pages. */
static size_t neighbours(const struct managed_variable *all, size_t count, size_t page,
                         uint64_t *end)
{
    size_t n = 0;
    *end = all[0].where.at;
    do {
        const uint64_t last = all[n].where.at + all[n].where.n;
        *end = last > *end ? last : *end;
    } while (++n < count && all[n].where.at / page <= (*end - 1) / page);
    return n;
}

/* Maps pages for `count` variables. Their bytes are the device's until the host accesses them. */
static bool map(const struct managed_variable *all, size_t count, uint64_t end)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const uint64_t first = all[0].where.at, begin = first / page * page;
    struct managed *m = ibx_managed_make(end - first, (end - begin + page - 1) / page * page);
    if (!m)
        return false;
    m->begin = begin;
    if (!ibx_managed_set_variables(m, all, count) || ibx_managed_map(m)) {
        m->begin = 0; /* the mapping is somebody else's */
        ibx_managed_discard(m);
        return false;
    }
    mprotect((void *)m->begin, m->n, PROT_NONE);
    ibx_managed_add(m, PAGES_STALE);
    return true;
}

static bool map_all(const struct pieces *pieces)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint64_t end;
    for (size_t i = 0, n; i < pieces->count; i += n) {
        n = neighbours(pieces->all + i, pieces->count - i, page, &end);
        if (!map(pieces->all + i, n, end))
            return false;
    }
    return true;
}

static bool add(struct pieces *pieces, const struct managed_variable *piece)
{
    if (pieces->count == pieces->room) {
        const size_t room = pieces->room ? 2 * pieces->room : PIECES_LEAST;
        struct managed_variable *more = realloc(pieces->all, room * sizeof(*more));
        if (!more)
            return false;
        pieces->all = more;
        pieces->room = room;
    }
    pieces->all[pieces->count++] = *piece;
    return true;
}

/* Adds the parts in pages that are mapped for another module to those; *left gets the rest. */
static bool join(void **module, const struct place *where, struct pieces *left)
{
    const uint64_t end = where->at + where->n;
    bool good = true;
    for (uint64_t at = where->at; good && at < end;) {
        uintptr_t there = at, last;
        if (!ibx_managed_within(&there, end, &last))
            there = last = end;
        if (there > at)
            good = add(left, &(struct managed_variable){{at, there - at}, module});
        if (good && there < end)
            good = !ibx_managed_join(&(struct managed_variable){{there, last - there}, module});
        at = last;
    }
    return good;
}

static void give(void **module, struct variable *all, void ***pointers, size_t count)
{
    struct pieces left = {0};
    bool mapped = true;
    if (!find(all, pointers, count)) {
        not_given("the back end does not tell where they are, or they are shorter there");
        return;
    }
    for (size_t i = 0; mapped && i < count; i++)
        mapped = join(module, &all[i].where, &left);
    mapped = mapped && map_all(&left);
    free(left.all);
    if (!mapped) {
        ibx_frontend_managed_unload(module);
        not_given("this process has something at their addresses, or no memory");
        return;
    }
    for (size_t i = 0; i < count; i++)
        *all[i].pointer = (void *)(uintptr_t)all[i].where.at;
}

/* ------------------------------------------------------------------------------ nvcc's calls */

/* Held while a module's variables are mapped. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* A child has no other threads. */
static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

void __cudaRegisterManagedVar(void **module, void **variable, char *address, const char *name,
                              int external, size_t n, int constant, int global)
{
    __typeof__(&__cudaRegisterManagedVar) next = NEXT(__cudaRegisterManagedVar);
    void **there;
    const bool registered = ibx_frontend_module_now(module, &there);
    if (next && registered)
        next(there, variable, address, name, external, n, constant, global);
    else if (!next)
        ibx_frontend_variable_managed(module, variable, name, n);
}

/* Called by nvcc's code before the first access to such a variable in each source file. G5 has this
 * call, which returns nothing, and has no way to register such variables. */
char __cudaInitModule(void **module)
{
    __typeof__(&__cudaInitModule) next = NEXT(__cudaInitModule);
    size_t count = 0;
    pthread_mutex_lock(&lock);
    void ***pointers = ibx_frontend_variables_managed(module, &count);
    struct variable *all = count && !*pointers[0] ? calloc(count, sizeof(*all)) : NULL;
    if (all && ibx_managed_begin())
        give(module, all, pointers, count);
    else if (all)
        not_given("that needs the rdma communicator, with rdma.pipeline on");
    free(all);
    free(pointers);
    pthread_mutex_unlock(&lock);
    void **there;
    return count || !next || !ibx_frontend_module_now(module, &there) ? 1 : next(there);
}

/* After a reset: the driver has them at the same addresses, as natively. False: it reports other
 * ones. */
static bool stays(void **module)
{
    size_t count = 0;
    struct place where;
    int rc;
    void ***pointers = ibx_frontend_variables_managed(module, &count);
    const bool asked = count && ibx_frontend_variable(pointers[0], &where, &rc) && !rc;
    const bool same = !asked || where.at == (uintptr_t)*pointers[0];
    free(pointers);
    return same;
}

void ibx_frontend_managed_variables_reset(void)
{
    struct managed_variable v;
    void **module = NULL;
    for (size_t i = 0; ibx_managed_variable(i, &v); i++) {
        if (v.module == module || stays(v.module)) {
            module = v.module;
            continue;
        }
        not_given("behind cudaDeviceReset the device has them elsewhere");
        ibx_frontend_managed_unload(v.module);
        i = (size_t)-1; /* start again */
    }
}

void ibx_frontend_managed_unload(void **module)
{
    for (struct managed *m; module && (m = ibx_managed_take_module(module));)
        ibx_managed_discard(m);
}
