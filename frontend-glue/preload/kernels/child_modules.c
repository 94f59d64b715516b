/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Modules of a forked child. A child may launch what its parent has registered, by the same
 * addresses; but natively it has its own variables, with their initial values. So before a child's
 * first use of a kernel or variable it registers again, as its own, the modules of its parent that
 * have variables. A module without variables is the same for both.
 *
 * A large module is registered when one of its kernels is needed: CUDA loads modules then, too, and
 * programs with gigabytes of kernels use few of them. Until then it is only listed here. A module
 * with variables, or whose kernels' addresses nobody knows, is not: a variable needs a place. This
 * file and fat_binaries.c call each other for that.
 *
 * The back end unloads a process's modules when the process has ended in any way and no child of it
 * uses them: a process announces once that its children ask for them. A child whose parent ended
 * before the child asked registers all modules again.
 */
#include "frontend-glue/preload/kernels/images.h"
#include "frontend-glue/preload/kernels/kernels.h"
#include "frontend-glue/preload/preload.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/state_machine.h"
#include "common/thread.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define SEEN    1024u  /* sets of kernels that are known to be registered; a power of two */
#define WAYS    4u     /* kernels in a set */
#define LEAST   8u     /* initial capacity of a list */
#define WAIT_MS 30000u /* how long to wait for another thread before a message says so */

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
    size_t count, room, size; /* capacity; size of an item */
};

/*
 * state machine: module
 *   [*] -> REGISTERED              with GVirtuS, at once
 *   [*] -> DEFERRED -> REGISTERED  when it is needed
 *   DEFERRED -> REFUSED            GVirtuS does not register it
 *   REGISTERED | DEFERRED | REFUSED -> [*]  the program unloads it, or ends
 */
enum module_state { MODULE_REGISTERED, MODULE_DEFERRED, MODULE_REFUSED };
static const struct ibx_state module_states[] = {
    [MODULE_REGISTERED] = {"registered", 0, IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [MODULE_DEFERRED] = {"deferred", IBX_TO(MODULE_REGISTERED) | IBX_TO(MODULE_REFUSED),
                         IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [MODULE_REFUSED] = {"refused", 0, IBX_STATE_FINAL}};
static const struct ibx_state_table module_table = IBX_STATE_TABLE("module", module_states);

struct module {
    struct module *next;
    struct ibx_state_machine state;
    void *wrapper; /* the wrapper, in the program's memory like all texts, or `expanded` */
    struct ibx_image_wrapper *expanded;
    void **handle, **there; /* the handle of the program, and GVirtuS's in this process */
    unsigned life;          /* the life (see below) in which it was registered */
    bool managed;           /* it has __managed__ variables */
    bool incomplete;        /* the lists are incomplete, because there was no memory */
    unsigned asked;         /* the life for which `lost` is valid */
    bool lost;              /* the back end does not have it any more */
    struct list functions, variables;
};

/* Protected by the lock of ranges. The newest is first, since registrations mostly belong to it. */
static struct module *modules;
static unsigned life;         /* 1 + how many forks led to this process */
static atomic_bool inherited; /* this is a child that has not registered modules yet */
static atomic_uint deferred;  /* how many modules are DEFERRED */
/* Kernels that are of no such module, by their addresses, the newest of a set first; any may be
 * missing. */
static _Atomic(const void *) seen[SEEN][WAYS];
static atomic_bool told; /* the back end was told that this process's modules end with it */
static pthread_mutex_t registering = PTHREAD_MUTEX_INITIALIZER;

static void in_child(void)
{
    pthread_mutex_init(&registering, NULL);
    life++;
    atomic_store(&inherited, modules != NULL);
    atomic_store(&told, false);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

/* ------------------------------------------------------------------------ what there is */

/* Called under the lock. NULL: its registration was not seen. */
static struct module *find(void **handle)
{
    struct module *m = modules;
    while (m && m->handle != handle)
        m = m->next;
    return m;
}

/* Called under the lock. */
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

/* Whether the back end still has the modules to which this kernel belongs; this process uses them
 * from now on. NULL: asks for no module. True also if the back end cannot be asked: then it keeps
 * them. */
static bool share(const void *kernel)
{
    struct extension_request e;
    uint8_t bytes[8] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    int code;
    ibx_frontend_request_begin(&e, IBX_EXT_SHARE_MODULES, "a forked child's first use of kernels");
    ibx_put_u64(&e.body, (uintptr_t)kernel);
    if (!ibx_frontend_plugin() || !ibx_frontend_request_try(&e, bytes, sizeof(bytes), &code))
        return true;
    if (code != CUDA_NOT_PERMITTED) /* in a host function nothing was asked */
        atomic_store(&told, true);
    return code || ibx_get_u64(&r);
}

/* False: there is no memory. */
static bool list_module(const struct module *like, enum module_state first)
{
    struct module *m = malloc(sizeof(*m));
    if (!m)
        return false;
    *m = *like;
    ibx_state_begin(&m->state, &module_table, first);
    m->functions.size = sizeof(struct function);
    m->variables.size = sizeof(struct variable);
    ibx_frontend_ranges_lock();
    m->life = life;
    m->next = modules;
    modules = m;
    ibx_frontend_ranges_unlock();
    return true;
}

void ibx_frontend_module_registered(void *wrapper, void **handle,
                                    struct ibx_image_wrapper *expanded)
{
    const struct module m = {
        .wrapper = wrapper, .expanded = expanded, .handle = handle, .there = handle};
    if (handle && list_module(&m, MODULE_REGISTERED) && !atomic_load(&told))
        share(NULL);
}

/* The kernels of another module may have been at these addresses. */
bool ibx_frontend_module_deferred(void *wrapper)
{
    const struct module m = {.wrapper = wrapper, .handle = wrapper};
    if (!list_module(&m, MODULE_DEFERRED))
        return false;
    atomic_fetch_add(&deferred, 1);
    for (unsigned i = 0; i < SEEN * WAYS; i++)
        atomic_store_explicit(&seen[i / WAYS][i % WAYS], NULL, memory_order_relaxed);
    return true;
}

bool ibx_frontend_module_there(void **handle, void ***there)
{
    ibx_frontend_ranges_lock();
    const struct module *m = find(handle);
    const bool registered = !m || m->state.now == MODULE_REGISTERED;
    *there = m ? m->there : handle;
    ibx_frontend_ranges_unlock();
    return registered;
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

/* Called under the lock. NULL: the module has no such function. */
static const struct function *function_of(const struct module *m, const void *function)
{
    const struct function *all = m->functions.items;
    size_t i = 0;
    while (i < m->functions.count && all[i].function != function)
        i++;
    return i < m->functions.count ? &all[i] : NULL;
}

struct ibx_image_parameter *ibx_frontend_module_parameters(const void *function, size_t *count)
{
    struct ibx_image_parameter *found = NULL;
    ibx_frontend_ranges_lock();
    for (const struct module *m = modules; m && !found; m = m->next) {
        size_t n;
        const struct function *f = function_of(m, function);
        const uint8_t *fat = f ? ibx_image_wrapped(m->wrapper, &n) : NULL;
        const char *name = f && f->device_function ? f->device_function : f ? f->name : NULL;
        if (fat && name)
            found = ibx_image_parameters(fat, n, name, count);
    }
    ibx_frontend_ranges_unlock();
    return found;
}

static void release(struct module *m)
{
    free(m->functions.items);
    free(m->variables.items);
    free(m);
}

void **ibx_frontend_module_gone(void **handle, struct ibx_image_wrapper **expanded)
{
    ibx_frontend_ranges_lock();
    struct module **at = &modules, *gone;
    while (*at && (*at)->handle != handle)
        at = &(*at)->next;
    if ((gone = *at))
        *at = gone->next;
    ibx_frontend_ranges_unlock();
    *expanded = gone ? gone->expanded : NULL;
    if (!gone)
        return handle;
    void **there = gone->there;
    if (gone->state.now == MODULE_DEFERRED)
        atomic_fetch_sub(&deferred, 1);
    const struct function *f = gone->functions.items;
    for (size_t i = 0; i < gone->functions.count; i++)
        ibx_frontend_kernel_gone(f[i].function); /* dlclose(3) unmaps its name */
    release(gone);
    return there;
}

/* --------------------------------------------------------------------------- in a child */

static void shares(const char *why)
{
    ibx_log(IBX_LOG_WARN, "a forked child shares the variables of a module with its parent: %s",
            why);
}

static bool copy(struct list *list)
{
    const size_t bytes = list->count * list->size;
    void *items = malloc(bytes ? bytes : 1);
    if (items && bytes)
        memcpy(items, list->items, bytes);
    list->items = items;
    return items;
}

/* Called under the lock. The modules of one life are at the back end all or none. */
static void note_answer(unsigned of, bool there)
{
    for (struct module *m = modules; m; m = m->next) {
        if (m->life == of)
            m->lost = !there;
    }
}

/* Called under the lock. A module whose life was not asked for yet, and that need not be registered
 * again for its variables. */
static const struct module *next_to_ask(void)
{
    const struct module *m = modules;
    while (m && (m->state.now != MODULE_REGISTERED || m->life == life || m->asked == life ||
                 m->variables.count || m->managed || !m->functions.count))
        m = m->next;
    return m;
}

/* Asks for the modules of all processes from which this one was forked. */
static void ask(void)
{
    const struct module *m;
    ibx_frontend_ranges_lock();
    while ((m = next_to_ask())) {
        const void *kernel = ((const struct function *)m->functions.items)->function;
        const unsigned of = m->life;
        for (struct module *i = modules; i; i = i->next)
            i->asked = i->life == of ? life : i->asked;
        ibx_frontend_ranges_unlock();
        const bool there = share(kernel);
        ibx_frontend_ranges_lock();
        note_answer(of, there);
    }
    ibx_frontend_ranges_unlock();
}

/* Called under the lock. Whether the module has to be registered again. */
static bool is_to_come(const struct module *m)
{
    return m->state.now == MODULE_REGISTERED && m->life != life &&
           (m->variables.count || m->managed || (m->lost && m->asked == life));
}

/* Called under the lock: the module is this process's own from now on, and is copied. */
static void take_over(struct module *m, struct module *taken)
{
    m->life = life;
    *taken = *m;
    const bool functions = copy(&taken->functions), variables = copy(&taken->variables);
    taken->incomplete = taken->incomplete || !functions || !variables;
}

/* Takes the oldest module that has to be registered again; NULL: there is none, or no memory. */
static struct module *take(void)
{
    struct module *taken = malloc(sizeof(*taken)), *m = NULL;
    ibx_frontend_ranges_lock();
    for (struct module *i = modules; i; i = i->next) {
        if (is_to_come(i))
            m = i;
    }
    if (m && taken)
        take_over(m, taken);
    ibx_frontend_ranges_unlock();
    if (m && taken)
        return taken;
    if (m)
        shares("there is no memory");
    free(taken);
    return NULL;
}

/* GVirtuS's functions, looked up in advance: dlsym(3) takes a lock that another thread may hold in
 * dlopen(3) while it waits for this one. */
struct registrations {
    __typeof__(&__cudaRegisterFatBinary) first;
    __typeof__(&__cudaRegisterFunction) function;
    __typeof__(&__cudaRegisterVar) variable;
    __typeof__(&__cudaRegisterFatBinaryEnd) last;
};

static struct registrations find_registrations(void)
{
    return (struct registrations){.first = NEXT(__cudaRegisterFatBinary),
                                  .function = NEXT(__cudaRegisterFunction),
                                  .variable = NEXT(__cudaRegisterVar),
                                  .last = NEXT(__cudaRegisterFatBinaryEnd)};
}

/* Registers with GVirtuS what the module has. Returns its handle; NULL: GVirtuS refuses it. */
static void **register_again(const struct registrations *r, const struct module *m)
{
    const struct function *f = m->functions.items;
    const struct variable *v = m->variables.items;
    void **handle = r->first && !m->incomplete ? r->first(m->wrapper) : NULL;
    for (size_t i = 0; handle && r->function && i < m->functions.count; i++)
        r->function(handle, f[i].function, f[i].device_function, f[i].name, f[i].thread_limit, NULL,
                    NULL, NULL, NULL, NULL);
    for (size_t i = 0; handle && r->variable && i < m->variables.count; i++)
        r->variable(handle, v[i].symbol, v[i].address, v[i].name, v[i].external, v[i].n,
                    v[i].constant, v[i].global);
    if (handle && r->last)
        r->last(handle);
    return handle;
}

static void registered_again(void **handle, void **there)
{
    if (!there) {
        shares("GVirtuS does not register it again");
        return;
    }
    ibx_frontend_ranges_lock();
    struct module *m = find(handle);
    if (m)
        m->there = there;
    ibx_frontend_ranges_unlock();
    ibx_frontend_variables_own(handle);
}

static void register_all(const struct registrations *r)
{
    struct module *m;
    if (!ibx_frontend_plugin())
        return;
    ask();
    if (!atomic_load(&told)) /* all have variables: this process's own modules end with it, too */
        share(NULL);
    while ((m = take())) {
        registered_again(m->handle, register_again(r, m));
        release(m);
    }
}

static void lock(void)
{
    const struct timespec until = ibx_timespec_of(ibx_deadline_in_ms(WAIT_MS));
    if (!pthread_mutex_clocklock(&registering, CLOCK_MONOTONIC, &until))
        return;
    ibx_log(
        IBX_LOG_WARN,
        "a thread has waited for %u s for another one, which registers the program's kernels and "
        "variables, and goes on waiting",
        WAIT_MS / 1000);
    pthread_mutex_lock(&registering);
}

/* A thread that continued before all modules are registered would use the parent's variables. */
void ibx_frontend_own_modules(void)
{
    if (!atomic_load_explicit(&inherited, memory_order_acquire))
        return;
    const int cancel = ibx_thread_hold_cancel();
    const struct registrations r = find_registrations();
    ibx_frontend_connect(); /* before the lock: GVirtuS may open a library for it */
    lock();
    if (atomic_load(&inherited))
        register_all(&r);
    atomic_store(&inherited, false);
    pthread_mutex_unlock(&registering);
    ibx_thread_release_cancel(cancel);
}

/* ------------------------------------------------------------------- deferred modules */

/* Called under the lock. NULL: there is none to which the kernel, or this handle, belongs. */
static struct module *find_deferred(const void *function, void **handle)
{
    struct module *m = modules;
    while (m && (m->state.now != MODULE_DEFERRED ||
                 (handle ? m->handle != handle : !function_of(m, function))))
        m = m->next;
    return m;
}

/* Copies such a module; false: there is none, or no memory. */
static bool take_deferred(const void *function, void **handle, struct module *taken)
{
    ibx_frontend_ranges_lock();
    struct module *m = find_deferred(function, handle);
    if (m)
        take_over(m, taken);
    ibx_frontend_ranges_unlock();
    return m;
}

/* The program may have unloaded it meanwhile. */
static void registered_now(const struct module *taken, void **there,
                           struct ibx_image_wrapper *expanded)
{
    ibx_frontend_ranges_lock();
    struct module *m = find_deferred(NULL, taken->handle);
    if (m) {
        ibx_state_move(&m->state, there ? MODULE_REGISTERED : MODULE_REFUSED);
        m->wrapper = taken->wrapper;
        m->expanded = expanded;
        m->there = there;
        atomic_fetch_sub(&deferred, 1);
    }
    ibx_frontend_ranges_unlock();
}

/* Registers it with GVirtuS: whole, or, for a program that is still registering it, what it has so
 * far. Other threads use it as soon as it is REGISTERED: the back end has to know by then that its
 * kernels print. */
static void register_deferred(const struct registrations *r, struct module *taken, bool whole)
{
    struct registrations parts = *r;
    struct ibx_image_wrapper *expanded = ibx_frontend_expand_module(taken->wrapper);
    if (expanded)
        taken->wrapper = expanded;
    if (!whole)
        parts.last = NULL;
    void **there = register_again(&parts, taken);
    if (!there) {
        ibx_image_free_wrapped(expanded);
        expanded = NULL;
    }
    if (there && !atomic_load(&told))
        share(NULL);
    if (there)
        ibx_frontend_module_begins(taken->wrapper);
    registered_now(taken, there, expanded);
    free(taken->functions.items);
    free(taken->variables.items);
}

/* The thread's program is in the constructor of the module, so that no other one needs it. */
bool ibx_frontend_module_now(void **handle, void ***there)
{
    struct module taken;
    if (atomic_load(&deferred) && take_deferred(NULL, handle, &taken)) {
        const struct registrations r = find_registrations();
        register_deferred(&r, &taken, false);
    }
    return ibx_frontend_module_there(handle, there);
}

static void register_locked(const void *function, const struct registrations *r)
{
    struct module taken;
    lock();
    if (take_deferred(function, NULL, &taken)) {
        ibx_frontend_gvirtus_maps_lock();
        register_deferred(r, &taken, true);
        ibx_frontend_gvirtus_maps_unlock();
    }
    pthread_mutex_unlock(&registering);
}

/* Not once GVirtuS must not be called any more: then the call that needs the module fails. */
static void register_module_of(const void *function)
{
    const int cancel = ibx_thread_hold_cancel();
    const struct registrations r = find_registrations();
    ibx_frontend_connect(); /* before the locks, as in ibx_frontend_own_modules() */
    if (ibx_frontend_first_begins()) {
        ibx_frontend_targets(); /* likewise: looks functions up */
        register_locked(function, &r);
    }
    ibx_frontend_first_is_over();
    ibx_thread_release_cancel(cancel);
}

static bool is_seen(_Atomic(const void *) *set, const void *function)
{
    unsigned way = 0;
    while (way < WAYS && atomic_load_explicit(&set[way], memory_order_relaxed) != function)
        way++;
    return way < WAYS;
}

/* Called under the lock. */
static void add_seen(_Atomic(const void *) *set, const void *function)
{
    for (unsigned way = WAYS - 1; way; way--) {
        const void *newer = atomic_load_explicit(&set[way - 1], memory_order_relaxed);
        atomic_store_explicit(&set[way], newer, memory_order_relaxed);
    }
    atomic_store_explicit(&set[0], function, memory_order_relaxed);
}

void ibx_frontend_module_needed(const void *function)
{
    const uintptr_t at = (uintptr_t)function;
    _Atomic(const void *) *const set = seen[(at >> 4 ^ at >> 14) % SEEN];
    if (!atomic_load_explicit(&deferred, memory_order_acquire) || ibx_frontend_in_host_function() ||
        is_seen(set, function))
        return;
    ibx_frontend_ranges_lock();
    const bool needed = find_deferred(function, NULL);
    if (!needed)
        add_seen(set, function);
    ibx_frontend_ranges_unlock();
    if (needed)
        register_module_of(function);
}
