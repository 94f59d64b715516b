/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Variables of the device, which nvcc's code registers before main() or when a library is loaded.
 * Not every GVirtuS passes on the address by which the application names a variable (G5 does not).
 * So the back end finds it by its name, in the module of a kernel that was registered with it.
 */
#include "frontend-glue/preload/kernels/kernels.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"

#include "common/thread.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct variable {
    struct variable *next;
    const void *symbol; /* the application's address of it */
    bool managed;       /* __managed__: `symbol` is where its address is written */
    size_t n;           /* of a __managed__ one: bytes that the program declared; else 0 */
    struct place where; /* where.n 0: not asked yet */
    int device;         /* on this device, after `resets` resets */
    unsigned resets;
    uint64_t number; /* of its place there: unique in the process, as those of ranges */
    char name[];     /* its name in the module */
};

struct module {
    struct module *next;
    void **handle;
    const void *kernel; /* one of the module's kernels, or NULL */
    unsigned forks;     /* number of forks before it was registered */
    struct variable *variables;
};

/* All lists are protected by the lock of ranges. */
static struct module *modules;
/* Number of device resets, after which variables may have other addresses. */
static atomic_uint resets;
static atomic_uint forks; /* number of forks by this process and its ancestors */
static unsigned birth;    /* the value of `forks` when this process was forked */

/* The entry of a module, made if needed; NULL: there is no memory. */
static struct module *module_of(void **handle)
{
    struct module *m = modules;
    while (m && m->handle != handle)
        m = m->next;
    if (!m && (m = calloc(1, sizeof(*m)))) {
        m->handle = handle;
        m->forks = atomic_load(&forks);
        m->next = modules;
        modules = m;
    }
    return m;
}

static void note_kernel(void **handle, const void *function)
{
    ibx_frontend_ranges_lock();
    struct module *m = module_of(handle);
    if (m && !m->kernel)
        m->kernel = function;
    ibx_frontend_ranges_unlock();
}

static void note_variable(void **handle, const void *symbol, const char *name, bool managed,
                          size_t n)
{
    const size_t length = strlen(name);
    struct variable *v =
        length <= IBX_EXT_VARIABLE_NAME ? calloc(1, sizeof(*v) + length + 1) : NULL;
    if (!v)
        return;
    memcpy(v->name, name, length + 1);
    v->symbol = symbol;
    v->managed = managed;
    v->n = n;
    ibx_frontend_ranges_lock();
    struct module *m = module_of(handle);
    if (m) {
        v->next = m->variables;
        m->variables = v;
    }
    ibx_frontend_ranges_unlock();
    if (!m)
        free(v);
}

/* ------------------------------------------------------------------------------ other processes */

/* Grandchildren: no call tells this process when their parents have ended. So all processes that
 * descend from the one that loaded this library share this memory. */
#define GRANDCHILDREN 1000u
#define ABOUT_TO_BE   (-1)
struct grandchildren {
    atomic_bool more;                  /* there are more than fit */
    _Atomic pid_t pids[GRANDCHILDREN]; /* process ids; 0: free */
};
static struct grandchildren *grandchildren; /* NULL: there was no memory */
/* Reserved for the process that this thread is about to fork. */
static _Thread_local _Atomic pid_t *place;

/* Whether the process has ended. In a container nobody may reap it: then it is a zombie, which
 * kill(2) finds. */
static bool has_ended(pid_t pid)
{
    struct pollfd end = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
    if (end.fd < 0)
        return errno == ESRCH || (kill(pid, 0) && errno == ESRCH);
    const int cancel = ibx_thread_hold_cancel();
    const bool ended = poll(&end, 1, 0) > 0;
    close(end.fd);
    ibx_thread_release_cancel(cancel);
    return ended;
}

/* True also if another process has the number by now. */
static bool lives(pid_t pid)
{
    return pid == ABOUT_TO_BE || (pid && !has_ended(pid));
}

/* Before the fork, because this process may end before the child has run. */
static void reserve_place(void)
{
    const int before = errno;
    place = NULL;
    for (unsigned i = 0; i < GRANDCHILDREN && !place; i++) {
        pid_t there = atomic_load(&grandchildren->pids[i]);
        if (!lives(there) &&
            atomic_compare_exchange_strong(&grandchildren->pids[i], &there, ABOUT_TO_BE))
            place = &grandchildren->pids[i];
    }
    if (!place)
        atomic_store(&grandchildren->more, true);
    errno = before;
}

static bool has_grandchildren(void)
{
    bool any = grandchildren && atomic_load(&grandchildren->more);
    for (unsigned i = 0; grandchildren && !any && i < GRANDCHILDREN; i++) {
        const pid_t pid = atomic_load(&grandchildren->pids[i]);
        any = pid != getpid() && lives(pid);
    }
    return any;
}

static void note_fork(void)
{
    atomic_fetch_add(&forks, 1);
}

static void before_fork(void)
{
    if (birth && grandchildren)
        reserve_place();
}

static void note_birth(void)
{
    if (place)
        atomic_store(place, getpid());
    place = NULL;
    note_fork();
    birth = atomic_load(&forks);
}

/* The handlers for the parent run after a failed fork, too. */
__attribute__((visibility("default"))) pid_t fork(void)
{
    __typeof__(&fork) next = NEXT(fork);
    const pid_t pid = next();
    if (pid < 0 && place)
        atomic_store(place, 0);
    place = NULL;
    return pid;
}

/* Whether there are children, zombies included. */
static bool has_children(void)
{
    siginfo_t unused;
    return !waitid(P_ALL, 0, &unused, WEXITED | WNOHANG | WNOWAIT);
}

__attribute__((constructor)) static void begin(void)
{
    void *shared = mmap(NULL, sizeof(*grandchildren), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    grandchildren = shared == MAP_FAILED ? NULL : shared;
    pthread_atfork(before_fork, note_fork, note_birth);
}

bool ibx_frontend_variables_unload(void **handle)
{
    ibx_frontend_ranges_lock();
    struct module **at = &modules;
    while (*at && (*at)->handle != handle)
        at = &(*at)->next;
    struct module *gone = *at;
    if (gone)
        *at = gone->next;
    const bool parents = gone && gone->forks < birth,
               shared = gone && gone->forks != atomic_load(&forks);
    ibx_frontend_ranges_unlock();
    while (gone && gone->variables) {
        struct variable *v = gone->variables;
        gone->variables = v->next;
        free(v);
    }
    free(gone);
    return parents || (shared && (has_children() || has_grandchildren()));
}

void ibx_frontend_variables_own(void **handle)
{
    ibx_frontend_ranges_lock();
    struct module *m = modules;
    while (m && m->handle != handle)
        m = m->next;
    if (m)
        m->forks = atomic_load(&forks);
    ibx_frontend_ranges_unlock();
    ibx_frontend_variables_reset(); /* they have other addresses now */
}

void ibx_frontend_variables_reset(void)
{
    atomic_fetch_add(&resets, 1);
}

/* ---------------------------------------------------------------------------- registrations */

void __cudaRegisterFunction(void **handle, const char *function, char *device_function,
                            const char *name, int thread_limit, void *thread, void *block,
                            void *block_size, void *grid_size, int *warp)
{
    __typeof__(&__cudaRegisterFunction) next = NEXT(__cudaRegisterFunction);
    void **there;
    if (next && ibx_frontend_module_there(handle, &there))
        next(there, function, device_function, name, thread_limit, thread, block, block_size,
             grid_size, warp);
    ibx_frontend_kernel_registered(function, name);
    ibx_frontend_module_function(handle, function, device_function, name, thread_limit);
    note_kernel(handle, function);
}

/* In some libcudart the size is an int, and only that much is read. */
void __cudaRegisterVar(void **handle, char *symbol, char *address, const char *name, int external,
                       size_t n, int constant, int global)
{
    __typeof__(&__cudaRegisterVar) next = NEXT(__cudaRegisterVar);
    void **there;
    const bool registered = ibx_frontend_module_now(handle, &there);
    if (next && registered)
        next(there, symbol, address, name, external, n, constant, global);
    ibx_frontend_module_variable(handle, symbol, address, name, external, n, constant, global);
    note_variable(handle, symbol, name, false, 0);
}

void ibx_frontend_variable_managed(void **handle, void **variable, const char *name, size_t n)
{
    ibx_frontend_module_managed(handle);
    note_variable(handle, variable, name, true, n);
}

/* ------------------------------------------------------------------------------- where it is */

/* A query of the back end: a variable, on a device. */
struct question {
    const void *kernel;
    char name[IBX_EXT_VARIABLE_NAME + 1];
    size_t n; /* of a __managed__ variable: its bytes */
    int device;
    unsigned resets;
};

/* Called under the lock. */
static struct variable *find(const void *symbol, const struct module **in)
{
    for (const struct module *m = modules; m; m = m->next) {
        for (struct variable *v = m->variables; v; v = v->next) {
            if (v->symbol == symbol) {
                *in = m;
                return v;
            }
        }
    }
    return NULL;
}

bool ibx_frontend_no_variable(const void *symbol)
{
    const struct module *m = NULL;
    bool any = false;
    ibx_frontend_ranges_lock();
    const bool found = find(symbol, &m);
    for (m = modules; m && !found && !any; m = m->next)
        any = m->variables;
    ibx_frontend_ranges_unlock();
    return any;
}

/* Whether the variable is known. q->kernel is NULL if *found has the answer; its size is 0 if the
 * back end cannot be asked. */
static bool look_up(const void *symbol, struct question *q, struct place *found)
{
    const struct module *m = NULL;
    ibx_frontend_ranges_lock();
    const struct variable *v = find(symbol, &m);
    const bool fresh = v && v->where.n && v->device == q->device && v->resets == q->resets;
    *found = fresh ? v->where : (struct place){0};
    q->kernel = v && !fresh ? m->kernel : NULL;
    if (q->kernel) {
        strcpy(q->name, v->name);
        q->n = v->n;
    }
    ibx_frontend_ranges_unlock();
    return v;
}

static void keep(const void *symbol, const struct question *q, const struct place *where)
{
    const struct module *m = NULL;
    ibx_frontend_ranges_lock();
    struct variable *v = find(symbol, &m);
    if (v && m->kernel == q->kernel) {
        if (v->where.at != where->at || v->resets != q->resets)
            v->number = ibx_frontend_ranges_number();
        v->where = *where;
        v->device = q->device;
        v->resets = q->resets;
    }
    ibx_frontend_ranges_unlock();
}

/* Checks the size of a __managed__ variable: the program uses as many bytes as it declared, so no
 * less must be mapped, whatever the back end answers. */
static bool take_size(size_t declared, struct place *where)
{
    if (where->n < declared || where->at > UINT64_MAX - declared)
        return false;
    where->n = declared;
    return true;
}

/* False: the back end cannot be asked, or does not know the request. */
static bool ask(const struct question *q, struct place *where, int *rc)
{
    struct extension_request e;
    uint8_t bytes[16] = {0}, kernel[8];
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    if (!ibx_frontend_plugin())
        ibx_frontend_connect();
    if (!ibx_frontend_plugin() || !ibx_frontend_kernel_name(q->kernel, kernel))
        return false;
    ibx_frontend_request_begin(&e, IBX_EXT_VARIABLE, "a look-up of a variable");
    ibx_put_bytes(&e.body, kernel, sizeof(kernel));
    ibx_put_u16(&e.body, (uint16_t)strlen(q->name));
    ibx_put_bytes(&e.body, q->name, strlen(q->name));
    if (!ibx_frontend_request_known(&e, bytes, sizeof(bytes), rc))
        return false;
    where->at = ibx_get_u64(&r);
    where->n = ibx_get_u64(&r);
    if (!*rc && q->n && !take_size(q->n, where))
        *rc = ibx_frontend_fail(CUDA_INVALID_SYMBOL);
    return true;
}

bool ibx_frontend_variable(const void *symbol, struct place *where, int *rc)
{
    ibx_frontend_own_modules();
    struct question q = {.resets = atomic_load(&resets)};
    cudaGetDevice(&q.device);
    *rc = CUDA_SUCCESS;
    if (!look_up(symbol, &q, where) || (!q.kernel && !where->n))
        return false;
    if (!q.kernel)
        return true;
    if (!ask(&q, where, rc))
        return false;
    if (!*rc) {
        ibx_frontend_memory_lapsed(where->at, where->n);
        keep(symbol, &q, where);
    }
    return true;
}

/* Called under the lock. The variable of which this is the address, on the device where it was last
 * looked up. */
static const struct variable *at_address(uintptr_t address)
{
    const unsigned now = atomic_load(&resets);
    for (const struct module *m = modules; m; m = m->next) {
        for (const struct variable *v = m->variables; v; v = v->next)
            if (v->where.n && v->resets == now && address - v->where.at < v->where.n)
                return v;
    }
    return NULL;
}

bool ibx_frontend_variable_at(const void *address, struct range *range)
{
    ibx_frontend_ranges_lock();
    const struct variable *v = at_address((uintptr_t)address);
    if (v)
        *range = (struct range){
            .begin = v->where.at, .n = v->where.n, .device = v->device, .number = v->number};
    ibx_frontend_ranges_unlock();
    return v;
}

size_t ibx_frontend_managed_size(const void *address)
{
    size_t n = 0;
    ibx_frontend_ranges_lock();
    for (const struct module *m = modules; m && !n; m = m->next) {
        for (const struct variable *v = m->variables; v && !n; v = v->next)
            n = v->managed && v->where.at == (uintptr_t)address ? v->where.n : 0;
    }
    ibx_frontend_ranges_unlock();
    return n;
}

void ***ibx_frontend_variables_managed(void **handle, size_t *count)
{
    void ***found = NULL;
    *count = 0;
    ibx_frontend_ranges_lock();
    for (unsigned again = 0; again < 2; again++) {
        size_t n = 0;
        for (const struct module *m = modules; m; m = m->next) {
            for (struct variable *v = m->handle == handle ? m->variables : NULL; v; v = v->next) {
                if (v->managed && found)
                    found[n] = (void **)(uintptr_t)v->symbol;
                n += v->managed;
            }
        }
        if (!again && n)
            found = calloc(n, sizeof(*found));
        *count = found ? n : 0;
    }
    ibx_frontend_ranges_unlock();
    return found;
}
