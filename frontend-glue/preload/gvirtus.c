/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/preload/dlsym.h"
#include "frontend-glue/preload/preload.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------------- a thread's first call */

/* GVirtuS's front end makes a connection for each thread, and what it does for that is not made for
 * several threads at once (a tree that is searched without its lock, in G5): a program whose
 * threads begin together could end by a signal. The others go on when the thread makes its
 * first request, or after a while where its connection is none of the plugin's. */
#define ALONE_MS 3000u

/* A child that is forked meanwhile would wait for ever: for locks of GVirtuS's log, which nobody
 * gives back there. So a fork waits until no thread connects, for a while. GVirtuS is done with
 * that when it writes the thread's first request. */
#define FORK_MS 1000u

static pthread_mutex_t first_calls = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t connecting = PTHREAD_RWLOCK_INITIALIZER; /* a fork writes */
static _Thread_local bool has_called, is_alone, connects, forks;
/* A thread is not cancelled in its first call, for which nobody would unlock then. */
static _Thread_local bool holds;
static _Thread_local int cancels;

static pthread_once_t begun = PTHREAD_ONCE_INIT;
static pthread_key_t thread_end;
static bool keyed;
static atomic_uint callers; /* threads that have called, and have not ended */
static atomic_bool closed;  /* to those that have not called yet, but the one that has said so */
static _Thread_local bool counted, closes;

/* Behind the plugin's destructor of a key, which waits for what the thread has launched and closes
 * its connection: by then it is the second time. */
static void uncount(void *nothing)
{
    static _Thread_local bool again;
    (void)nothing;
    if (counted && !again && !pthread_setspecific(thread_end, &counted)) {
        again = true;
        return;
    }
    if (counted)
        atomic_fetch_sub(&callers, 1);
    counted = false;
}

static void make_key(void)
{
    keyed = !pthread_key_create(&thread_end, uncount);
}

static void count(void)
{
    pthread_once(&begun, make_key); /* GVirtuS may connect before this library begins */
    if (counted || !keyed || pthread_setspecific(thread_end, &counted))
        return;
    counted = true;
    atomic_fetch_add(&callers, 1);
}

void ibx_frontend_is_no_caller(void)
{
    counted = true;
}

bool ibx_frontend_close(void)
{
    closes = true;
    atomic_store(&closed, true);
    const bool alone = atomic_load(&callers) == counted;
    if (!alone)
        atomic_store(&closed, false);
    return alone;
}

static void before_fork(void)
{
    const struct timespec until = ibx_timespec_of(ibx_deadline_in_ms(FORK_MS));
    forks = !connects && !pthread_rwlock_clockwrlock(&connecting, CLOCK_MONOTONIC, &until);
}

static void in_parent(void)
{
    if (forks)
        pthread_rwlock_unlock(&connecting);
    forks = false;
}

static void in_child(void)
{
    pthread_mutex_init(&first_calls, NULL);
    pthread_rwlock_init(&connecting, NULL);
    is_alone = connects = forks = false;
    atomic_store(&callers, counted);
}

__attribute__((constructor)) static void begin(void)
{
    ibx_log_of_library();
    pthread_atfork(NULL, NULL, in_child);
}

/* Late, so that a fork waits before it has any other lock, which such a thread may want. */
static void watch_forks(void)
{
    pthread_atfork(before_fork, in_parent, NULL);
}

bool ibx_frontend_connects(void)
{
    return connects;
}

bool ibx_frontend_first_begins(void)
{
    ibx_frontend_runtime_used();
    if (has_called)
        return true;
    count(); /* first: see ibx_frontend_close() */
    if (atomic_load(&closed) && !closes)
        return false;
    has_called = true;
    cancels = ibx_thread_hold_cancel();
    holds = true;
    const uint64_t deadline = ibx_deadline_in_ms(ALONE_MS);
    const struct timespec until = ibx_timespec_of(deadline);
    is_alone = !pthread_mutex_clocklock(&first_calls, CLOCK_MONOTONIC, &until);
    connects = !pthread_rwlock_rdlock(&connecting); /* last: a fork waits for one, not for all */
    return true;
}

static void let_others(void)
{
    if (is_alone)
        pthread_mutex_unlock(&first_calls);
    is_alone = false;
}

static void is_connected(void)
{
    let_others();
    if (connects)
        pthread_rwlock_unlock(&connecting);
    connects = false;
}

void ibx_frontend_first_is_over(void)
{
    is_connected();
    if (holds)
        ibx_thread_release_cancel(cancels);
    holds = false;
}

/* The rest of a first call is like any other, and may take long. The plugin, which calls this,
 * holds cancellation meanwhile, too: so it is not given free here. */
void ibx_frontend_begins(void)
{
    is_connected();
}

/* ------------------------------------------------------------------------- the plugin */

static _Atomic(const struct ibx_frontend_calls *) plugin;
static atomic_flag warned = ATOMIC_FLAG_INIT;

const struct ibx_frontend_calls *ibx_frontend_plugin(void)
{
    return atomic_load(&plugin);
}

bool ibx_frontend_plugin_is(const struct ibx_frontend_calls *calls)
{
    static atomic_flag known = ATOMIC_FLAG_INIT;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    count();
    pthread_once(&once, watch_forks);
    if (calls->version == IBX_FRONTEND_VERSION) {
        atomic_store(&plugin, calls);
        return !atomic_flag_test_and_set(&known);
    }
    if (!atomic_flag_test_and_set(&warned))
        ibx_log(IBX_LOG_WARN, "libibx-frontend.so does not belong to this rdma communicator: "
                              "GVirtuS copies as without it; install both from one build");
    return false;
}

int ibx_frontend_passed(int rc)
{
    if (!ibx_frontend_plugin() && !atomic_flag_test_and_set(&warned))
        ibx_log(IBX_LOG_WARN, "libibx-frontend.so finds no rdma communicator in this process: "
                              "GVirtuS copies as without it");
    return rc;
}

/* ----------------------------------------------------------------- GVirtuS's functions */

struct loaded {
    const char *name; /* how its file's begins */
    char path[PATH_MAX];
};

/* Finds one that dlopen(3) has put outside this library's scopes. */
static bool find_loaded(const char *path, ElfW(Dyn) * dynamic, void *argument)
{
    struct loaded *library = argument;
    (void)dynamic;
    return ibx_frontend_is_named(path, library->name) &&
           snprintf(library->path, sizeof(library->path), "%s", path) < PATH_MAX;
}

bool ibx_frontend_libcudart(char path[PATH_MAX])
{
    struct loaded library = {.name = "libcudart.so"};
    if (!ibx_frontend_each_library(find_loaded, &library))
        return false;
    memcpy(path, library.path, sizeof(library.path));
    return true;
}

/* GVirtuS's may have this function as well. */
bool ibx_frontend_is_nvidias(void *libcudart)
{
    static const char *const marks[] = {"_ZN7gvirtus8frontend8Frontend7PrepareEv",
                                        "_ZN8Frontend7PrepareEv"}; /* G1 */
    for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++)
        if (ibx_frontend_dlsym(libcudart, marks[i]))
            return false;
    return ibx_frontend_dlsym(libcudart, "cudaGetExportTable");
}

/* Whose functions begin so: the longer beginning comes first. */
static const char *library_of(const char *symbol)
{
    static const char *const all[][2] = {
        {"cublasLt", "libcublasLt.so"}, {"cublas", "libcublas.so"},
        {"cufft", "libcufft.so"},       {"curand", "libcurand.so"},
        {"cusolver", "libcusolver.so"}, {"cusparse", "libcusparse.so"},
        {"cudnn", "libcudnn.so"}};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (!strncmp(symbol, all[i][0], strlen(all[i][0])))
            return all[i][1];
    return "libcudart.so";
}

/* A library may itself be linked with this one. */
static bool is_ours(const void *function)
{
    Dl_info its, ours;
    return dladdr(function, &its) && dladdr(&plugin, &ours) && its.dli_fbase == ours.dli_fbase;
}

static void *find_in_library(const char *symbol)
{
    struct loaded library = {.name = library_of(symbol)};
    void *handle = NULL, *found = NULL;
    if (ibx_frontend_each_library(find_loaded, &library))
        handle = dlopen(library.path, RTLD_LAZY | RTLD_NOLOAD);
    if (handle) {
        found = ibx_frontend_dlsym(handle, symbol);
        dlclose(handle);
    }
    return found && !is_ours(found) ? found : NULL;
}

int ibx_frontend_cuda_version(void)
{
    char path[PATH_MAX] = "";
    const char *number = ibx_frontend_libcudart(path) ? strstr(path, "libcudart.so.") : NULL;
    return number ? atoi(number + strlen("libcudart.so.")) : 0;
}

static void *find(const char *symbol)
{
    void *found = dlsym(RTLD_NEXT, symbol);
    return found ? found : find_in_library(symbol);
}

/* The program has NVIDIA's instead. */
static void tell_of_nvidias(const char *path)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN,
                "%s is NVIDIA's, by which no call reaches the remote GPU: the program finds it "
                "where it looks before LD_LIBRARY_PATH (DT_RPATH, a whole path), or that does not "
                "name GVirtuS's lib/frontend; set that, and LD_AUDIT=libibx-search.so besides "
                "LD_PRELOAD",
                path);
}

/* Those of the C library are asked for by constructors, too, some before libcudart's have run,
 * which opening it once more would run. */
static bool is_of_cuda(const char *symbol)
{
    return !strncmp(symbol, "cu", 2) || !strncmp(symbol, "__cuda", 6);
}

/* Once that is known: `function` is its cudaMalloc. */
static void look_whose(void *function)
{
    Dl_info info;
    void *library = NULL;
    if (dladdr(function, &info) && info.dli_fname &&
        ibx_frontend_is_named(info.dli_fname, "libcudart.so"))
        library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (library && ibx_frontend_is_nvidias(library))
        tell_of_nvidias(info.dli_fname);
    if (library)
        dlclose(library);
}

/* Most calls here are of functions that GVirtuS lacks, and to find that out takes longer than what
 * they then do: it looks through all libraries. Once there is a libcudart it stays so. */
void *ibx_frontend_next(_Atomic(void *) *known, const char *symbol)
{
    static char absent;
    static atomic_bool loaded, looked;
    void *found = atomic_load_explicit(known, memory_order_acquire);
    if (!found) {
        /* First: another thread may load it meanwhile. */
        if (!atomic_load(&loaded) && find("cudaMalloc"))
            atomic_store(&loaded, true);
        if (atomic_load(&loaded) && is_of_cuda(symbol) && !atomic_exchange(&looked, true))
            look_whose(find("cudaMalloc"));
        const bool lasts = atomic_load(&loaded);
        found = find(symbol);
        if (!found && lasts)
            found = &absent;
        if (found)
            atomic_store_explicit(known, found, memory_order_release);
    }
    return found == &absent ? NULL : found;
}

/* -------------------------------------------------------------- calls without GVirtuS */

static _Thread_local enum ibx_host_function host_function;

void ibx_frontend_host_function_is(enum ibx_host_function is)
{
    host_function = is;
}

bool ibx_frontend_in_host_function(void)
{
    return host_function != IBX_FUNCTION_NONE;
}

/* One that waits for the function's own stream would never end. */
bool ibx_frontend_forbidden(int *rc)
{
    if (host_function == IBX_FUNCTION_THEIRS)
        *rc = ibx_frontend_fail(CUDA_NOT_PERMITTED);
    return host_function == IBX_FUNCTION_THEIRS;
}

bool ibx_frontend_called(const char *name, const struct ibx_writer *body, int *rc)
{
    ibx_frontend_runtime_used();
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    const struct ibx_frontend_request request = {
        .name = name, .body = body->data, .n = body->length};
    return ibx_frontend_forbidden(rc) || (calls && !calls->call(&request, rc));
}

bool ibx_frontend_launched(const struct ibx_writer *body, bool unseen, int *rc)
{
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    const struct ibx_frontend_request request = {
        .name = "cudaLaunchKernel", .body = body->data, .n = body->length, .unseen = unseen};
    return ibx_frontend_forbidden(rc) || (calls && !calls->call(&request, rc));
}

bool ibx_frontend_knows(enum ibx_frontend_fact fact, uint64_t handle, int *answer)
{
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    return calls && calls->knows(fact, handle, answer);
}

/* ----------------------------------------------------------------------------- errors */

/* Of this thread's calls, where the back end knows of the error in another thread or not at all;
 * and what it was asked for then. */
static _Thread_local int last, told;

/* 0: not known. */
static int errors_so_far(void)
{
    int number = 0;
    return ibx_frontend_knows(IBX_FRONTEND_ERRORS, 0, &number) ? number : 0;
}

int ibx_frontend_fail(int rc)
{
    last = rc;
    told = errors_so_far();
    return rc;
}

/* The newer one of both; theirs where nobody can tell. `now`: as `told`, and only asked for where
 * there are two: most programs ask for the last error behind each launch. */
static int newer(int theirs, int now)
{
    return last && (!theirs || (now && now == told)) ? last : theirs;
}

int cudaGetLastError(void)
{
    const bool none = ibx_frontend_knows(IBX_FRONTEND_NO_ERROR, 0, NULL);
    const int now = last ? errors_so_far() : 0;
    const int rc = newer(none ? CUDA_SUCCESS : CALL_NEXT(cudaGetLastError), now);
    last = CUDA_SUCCESS;
    return rc;
}

int cudaPeekAtLastError(void)
{
    const bool none = ibx_frontend_knows(IBX_FRONTEND_NO_ERROR, 0, NULL);
    const int now = last ? errors_so_far() : 0;
    return newer(none ? CUDA_SUCCESS : CALL_NEXT(cudaPeekAtLastError), now);
}

/* ------------------------------------------------------------------- the driver's API */

static _Thread_local unsigned driven;   /* calls that are made for it, one within another */
static _Thread_local bool runtime_used; /* since it was asked for */
static atomic_bool runtime_ever;

void ibx_frontend_runtime_used(void)
{
    if (driven || runtime_used)
        return;
    runtime_used = true;
    atomic_store_explicit(&runtime_ever, true, memory_order_relaxed);
}

bool ibx_frontend_runtime_ever(void)
{
    return atomic_load(&runtime_ever);
}

/* The number of the thread's errors at which it has none to tell. To ask whether it has one sends
 * what waits to be sent, so that is asked once for each number. */
static _Thread_local int clean_at;

static bool has_none(void)
{
    const int now = errors_so_far();
    if (last || !ibx_frontend_plugin())
        return false;
    if (now != clean_at && ibx_frontend_knows(IBX_FRONTEND_NO_ERROR, 0, NULL))
        clean_at = now;
    return now == clean_at;
}

bool ibx_frontend_drives(struct ibx_frontend_errors *before)
{
    const bool used = runtime_used;
    driven++;
    runtime_used = false;
    before->last = last;
    before->none = has_none();
    return used;
}

/* What the back end has to tell that the thread did not know of before, the program's own calls may
 * have left: it stays. */
void ibx_frontend_drove(const struct ibx_frontend_errors *before, bool failed)
{
    if (failed && before->none && errors_so_far() != clean_at) {
        CALL_NEXT(cudaGetLastError);
        clean_at = errors_so_far();
    }
    if (last != before->last || (last && failed)) {
        last = before->last;
        told = errors_so_far();
    }
    driven--;
}
