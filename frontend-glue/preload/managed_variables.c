/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Variables that are declared __managed__ (managed.h). The driver allocates them as it loads their
 * module; their bytes there are the device's as far as this process is concerned, which maps pages
 * at the same addresses when nvcc's code asks for them, before the program's first access. Pages
 * may have others' bytes beside them, which are left alone.
 */
#include "frontend-glue/preload/managed.h"

#include "common/log.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct variable {
    void **pointer; /* of the application's, to the variable */
    struct place where;
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

/* Of a module, by their addresses. False: one has none. */
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

/* Those that share pages with the first, and it: how many they are. */
static size_t neighbours(const struct variable *all, size_t count, size_t page, uint64_t *end)
{
    size_t n = 0;
    *end = all[0].where.at;
    do {
        const uint64_t last = all[n].where.at + all[n].where.n;
        *end = last > *end ? last : *end;
    } while (++n < count && all[n].where.at / page <= (*end - 1) / page);
    return n;
}

/* Pages for `count` variables, which are the device's until somebody touches them. */
static struct managed *make(void **module, const struct variable *all, size_t count, uint64_t end)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const uint64_t first = all[0].where.at, begin = first / page * page;
    struct managed *m = ibx_managed_make(end - first, (end - begin + page - 1) / page * page);
    if (!m)
        return NULL;
    m->module = module;
    m->before = first - begin;
    m->variables = calloc(count, sizeof(*m->variables));
    for (size_t i = 0; m->variables && i < count; i++)
        m->variables[m->variable_count++] = all[i].where;
    m->begin = begin;
    if (m->variables && !ibx_managed_map(m))
        return m;
    m->begin = 0; /* it is another's */
    ibx_managed_discard(m);
    return NULL;
}

static bool map(void **module, const struct variable *all, size_t count, uint64_t end)
{
    struct managed *m = make(module, all, count, end);
    if (!m)
        return false;
    mprotect((void *)m->begin, m->n, PROT_NONE);
    ibx_managed_add(m, PAGES_STALE);
    for (size_t i = 0; i < count; i++)
        *all[i].pointer = (void *)(uintptr_t)all[i].where.at;
    return true;
}

static void give(void **module, struct variable *all, void ***pointers, size_t count)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    bool mapped = true;
    uint64_t end;
    if (!find(all, pointers, count)) {
        not_given("the back end does not tell where they are");
        return;
    }
    for (size_t i = 0, n; i < count; i += n) {
        n = neighbours(all + i, count - i, page, &end);
        mapped = map(module, all + i, n, end) && mapped;
    }
    if (!mapped)
        not_given("this process has something at their addresses, or no memory");
}

/* ------------------------------------------------------------------------------ nvcc's calls */

void __cudaRegisterManagedVar(void **module, void **variable, char *address, const char *name,
                              int external, size_t n, int constant, int global)
{
    __typeof__(&__cudaRegisterManagedVar) next = NEXT(__cudaRegisterManagedVar);
    if (next)
        next(module, variable, address, name, external, n, constant, global);
    else
        ibx_frontend_variable_managed(module, variable, name);
}

/* Before the first access to such a variable in each source of the module. G5 has this call, which
 * returns nothing, and no way to register such variables. */
char __cudaInitModule(void **module)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
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
    return count || !next ? 1 : next(module);
}

void ibx_frontend_managed_unload(void **module)
{
    for (struct managed *m; module && (m = ibx_managed_take_module(module));)
        ibx_managed_discard(m);
}
