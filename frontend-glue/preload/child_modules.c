/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Modules of a forked child. The back end lets it launch what its parent has registered, by the
 * same addresses; natively it has variables of its own, which begin with their first values. So
 * before a child's first use of a kernel or variable it registers again, as its own, what its
 * parent has registered: modules with variables, since one that has none is the same for all.
 */
#include "frontend-glue/preload/internal.h"

#include "common/clock.h"
#include "common/log.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define LEAST   8u    /* entries of a list */
#define WAIT_MS 3000u /* for another thread, which may wait for one in dlopen(3) */

struct function {
    const char *function;
    char *device_function;
    const char *name;
    int thread_limit;
};

struct variable {
    char *symbol, *address;
    const char *name;
    size_t n;
    int external, constant, global;
};

struct list {
    void *items;
    size_t count, room, size; /* of one */
};

struct module {
    struct module *next;
    void *wrapper;          /* which lies in the program, as all texts do */
    void **handle, **there; /* as the program knows it, and GVirtuS in this process */
    unsigned life;          /* in which it was registered */
    bool managed;           /* it has variables that are declared __managed__ */
    bool incomplete;        /* there was no memory */
    struct list functions, variables;
};

/* Under the lock of ranges, the last one first: what is registered is mostly of that one. */
static struct module *modules;
static unsigned life;         /* of this process, and those that it was forked from */
static atomic_bool inherited; /* and not looked at yet */
static pthread_mutex_t registering = PTHREAD_MUTEX_INITIALIZER;

static void in_child(void)
{
    pthread_mutex_init(&registering, NULL);
    life++;
    atomic_store(&inherited, modules != NULL);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

/* ------------------------------------------------------------------------ what there is */

/* Locked. NULL: its beginning was not seen. */
static struct module *find(void **handle)
{
    struct module *m = modules;
    while (m && m->handle != handle)
        m = m->next;
    return m;
}

/* Locked. */
static void add(struct module *m, struct list *list, const void *item)
{
    if (list->count == list->room) {
        const size_t room = list->room ? 2 * list->room : LEAST;
        void *more = realloc(list->items, room * list->size);
        m->incomplete = m->incomplete || !more;
        if (!more)
            return;
        list->items = more;
        list->room = room;
    }
    memcpy((char *)list->items + list->count++ * list->size, item, list->size);
}

void ibx_frontend_module_registered(void *wrapper, void **handle)
{
    struct module *m = handle ? malloc(sizeof(*m)) : NULL;
    if (!m)
        return;
    *m = (struct module){.wrapper = wrapper,
                         .handle = handle,
                         .there = handle,
                         .functions.size = sizeof(struct function),
                         .variables.size = sizeof(struct variable)};
    ibx_frontend_ranges_lock();
    m->life = life;
    m->next = modules;
    modules = m;
    ibx_frontend_ranges_unlock();
}

void ibx_frontend_module_function(void **handle, const char *function, char *device_function,
                                  const char *name, int thread_limit)
{
    const struct function f = {function, device_function, name, thread_limit};
    ibx_frontend_ranges_lock();
    struct module *m = find(handle);
    if (m)
        add(m, &m->functions, &f);
    ibx_frontend_ranges_unlock();
}

void ibx_frontend_module_variable(void **handle, char *symbol, char *address, const char *name,
                                  int external, size_t n, int constant, int global)
{
    const struct variable v = {symbol, address, name, n, external, constant, global};
    ibx_frontend_ranges_lock();
    struct module *m = find(handle);
    if (m)
        add(m, &m->variables, &v);
    ibx_frontend_ranges_unlock();
}

void ibx_frontend_module_managed(void **handle)
{
    ibx_frontend_ranges_lock();
    struct module *m = find(handle);
    if (m)
        m->managed = true;
    ibx_frontend_ranges_unlock();
}

static void release(struct module *m)
{
    free(m->functions.items);
    free(m->variables.items);
    free(m);
}

void **ibx_frontend_module_gone(void **handle)
{
    ibx_frontend_ranges_lock();
    struct module **at = &modules, *gone;
    while (*at && (*at)->handle != handle)
        at = &(*at)->next;
    if ((gone = *at))
        *at = gone->next;
    ibx_frontend_ranges_unlock();
    if (!gone)
        return handle;
    void **there = gone->there;
    release(gone);
    return there;
}

/* --------------------------------------------------------------------------- in a child */

static bool copy(struct list *list)
{
    const size_t bytes = list->count * list->size;
    void *items = malloc(bytes ? bytes : 1);
    if (items && bytes)
        memcpy(items, list->items, bytes);
    list->items = items;
    return items;
}

/* A copy of the oldest one that is to be registered again; NULL: there is none. */
static struct module *take(void)
{
    struct module *taken = malloc(sizeof(*taken));
    if (!taken)
        return NULL;
    ibx_frontend_ranges_lock();
    struct module *m = NULL;
    for (struct module *i = modules; i; i = i->next) {
        if (i->life != life && (i->variables.count || i->managed) && !i->incomplete)
            m = i;
    }
    if (m) {
        m->life = life;
        *taken = *m;
        const bool functions = copy(&taken->functions), variables = copy(&taken->variables);
        taken->incomplete = !functions || !variables;
    }
    ibx_frontend_ranges_unlock();
    if (!m)
        free(taken);
    return m ? taken : NULL;
}

/* GVirtuS's handle of it; NULL: it does not take it. */
static void **register_again(const struct module *m)
{
    static _Atomic(void *) last_known;
    __typeof__(&__cudaRegisterFatBinary) first = NEXT(__cudaRegisterFatBinary);
    __typeof__(&__cudaRegisterFunction) function = NEXT(__cudaRegisterFunction);
    __typeof__(&__cudaRegisterVar) variable = NEXT(__cudaRegisterVar);
    void (*last)(void **handle) = NULL;
    *(void **)&last = ibx_frontend_next(&last_known, "__cudaRegisterFatBinaryEnd");
    const struct function *f = m->functions.items;
    const struct variable *v = m->variables.items;
    void **handle = first && !m->incomplete ? first(m->wrapper) : NULL;
    for (size_t i = 0; handle && function && i < m->functions.count; i++)
        function(handle, f[i].function, f[i].device_function, f[i].name, f[i].thread_limit, NULL,
                 NULL, NULL, NULL, NULL);
    for (size_t i = 0; handle && variable && i < m->variables.count; i++)
        variable(handle, v[i].symbol, v[i].address, v[i].name, v[i].external, v[i].n, v[i].constant,
                 v[i].global);
    if (handle && last)
        last(handle);
    return handle;
}

static void registered_again(void **handle, void **there)
{
    if (!there) {
        ibx_log(IBX_LOG_WARN, "a forked child shares the variables of a module with its parent: "
                              "GVirtuS does not register it again");
        return;
    }
    ibx_frontend_ranges_lock();
    struct module *m = find(handle);
    if (m)
        m->there = there;
    ibx_frontend_ranges_unlock();
    ibx_frontend_variables_own(handle);
}

void ibx_frontend_own_modules(void)
{
    if (!atomic_load_explicit(&inherited, memory_order_acquire))
        return;
    const struct timespec until = ibx_timespec_of(ibx_deadline_in_ms(WAIT_MS));
    if (pthread_mutex_clocklock(&registering, CLOCK_MONOTONIC, &until))
        return;
    if (atomic_load(&inherited)) {
        struct module *m = NULL;
        ibx_frontend_connect();
        while (ibx_frontend_plugin() && (m = take())) {
            registered_again(m->handle, register_again(m));
            release(m);
        }
        atomic_store(&inherited, false);
    }
    pthread_mutex_unlock(&registering);
}
