/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/preload/dlsym.h"
#include "frontend-glue/preload/preload.h"

#include "common/clock.h"
#include "common/descriptor.h"
#include "common/log.h"
#include "common/thread.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------------- a thread's first call */

/* GVirtuS's front end makes a connection for each thread, and that code is not thread-safe (G5
 * searches a tree without its lock): a program whose threads start together could crash. So first
 * calls are made one at a time. The next one starts when the thread before it sends its first
 * request or, if its connection is not the plugin's, after this time. */
#define ALONE_MS 3000u

/* A child that is forked while a thread connects could hang on locks of GVirtuS's log, which no
 * thread of the child would release. So a fork waits, at most this long, until no thread connects.
 * A thread no longer connects when GVirtuS writes its first request. */
#define FORK_MS 1000u

static pthread_mutex_t first_calls = PTHREAD_MUTEX_INITIALIZER;
/* Taken for writing by a fork, which threads that begin to connect wait for: several connect at a
 * time, and without that a fork could wait for one after the other. */
#define CONNECTING PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP
static pthread_rwlock_t connecting = CONNECTING;
static _Thread_local bool has_called, is_alone, connects, forks;
/* Cancellation is off during a thread's first call: a cancelled thread would not unlock. */
static _Thread_local bool holds;
static _Thread_local int cancels;

static pthread_once_t begun = PTHREAD_ONCE_INIT;
static pthread_key_t thread_end;
static bool keyed;
static atomic_uint callers; /* living threads that have called GVirtuS */
/* No further thread may make its first call, except the one that closed. */
static atomic_bool closed;
static atomic_bool log_ended; /* a destructor of GVirtuS's log was called, or is about to be */
static _Thread_local bool counted, closes;

/* A destructor of a thread's key. It sets the key once more, so that it runs again after the
 * plugin's own destructor, which waits for the thread's launches and closes its connection. */
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
    /* GVirtuS may connect before the constructor of this library has run. */
    pthread_once(&begun, make_key);
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

void ibx_frontend_log_ends(void)
{
    atomic_store(&log_ended, true);
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
    connecting = (pthread_rwlock_t)CONNECTING;
    is_alone = connects = forks = false;
    atomic_store(&callers, counted);
}

__attribute__((constructor)) static void begin(void)
{
    ibx_log_of_library();
    ibx_descriptors_of_library();
    pthread_atfork(NULL, NULL, in_child);
}

/* Registered late, so that it runs first at a fork: the fork must not hold other locks while it
 * waits for a connecting thread that may need them. */
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
    ibx_frontend_goes_inside();
    if (ibx_frontend_unloads() || atomic_load(&log_ended))
        return false;
    ibx_frontend_runtime_used();
    if (has_called)
        return true;
    count(); /* before `closed` is read: see ibx_frontend_close() */
    if (atomic_load(&closed) && !closes)
        return false;
    has_called = true;
    cancels = ibx_thread_hold_cancel();
    holds = true;
    const uint64_t deadline = ibx_deadline_in_ms(ALONE_MS);
    const struct timespec until = ibx_timespec_of(deadline);
    is_alone = !pthread_mutex_clocklock(&first_calls, CLOCK_MONOTONIC, &until);
    connects = !pthread_rwlock_rdlock(&connecting); /* last, so that a fork waits for one connecting
                                                       thread, not for the whole queue */
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
    ibx_frontend_comes_outside();
}

__attribute__((visibility("default"))) bool ibx_frontend_alone(void)
{
    return is_alone;
}

/* Forks wait on: the plugin connects now. */
__attribute__((visibility("default"))) void ibx_frontend_let(void)
{
    let_others();
}

/* The plugin calls this when GVirtuS has connected, perhaps in a call that is none of this
 * library's: the thread's first call of this library connects nothing then. The rest of the first
 * call is like any other, and may take long. Cancellation stays off: the plugin has turned it off,
 * too, and turns it on later. */
void ibx_frontend_begins(void)
{
    has_called = true;
    is_connected();
}

/* ------------------------------------------------------------------------- the plugin */

static _Atomic(const struct ibx_frontend_calls *) plugin;
static atomic_flag warned = ATOMIC_FLAG_INIT;

const struct ibx_frontend_calls *ibx_frontend_plugin(void)
{
    return ibx_frontend_unloads() ? NULL : atomic_load(&plugin);
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
    if (!atomic_load(&plugin) && !atomic_flag_test_and_set(&warned))
        ibx_log(IBX_LOG_WARN, "libibx-frontend.so finds no rdma communicator in this process: "
                              "GVirtuS copies as without it");
    return rc;
}

/* ----------------------------------------------------------------- GVirtuS's functions */

struct loaded {
    const char *name; /* the beginning of its file name */
    char path[PATH_MAX];
};

/* Finds a library by its file name, also one that this library's symbol lookups do not reach. */
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

/* Recognized by cudaGetExportTable(), unless the library has a class of GVirtuS: GVirtuS's
 * libcudart may have that function as well. */
bool ibx_frontend_is_nvidias(void *libcudart)
{
    static const char *const marks[] = {"_ZN7gvirtus8frontend8Frontend7PrepareEv",
                                        "_ZN8Frontend7PrepareEv"}; /* G1 */
    for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++)
        if (ibx_frontend_dlsym(libcudart, marks[i]))
            return false;
    return ibx_frontend_dlsym(libcudart, "cudaGetExportTable");
}

/* The library whose functions have this prefix. Of two prefixes the longer comes first. */
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

/* Whether the function is this library's: the other library may be linked with it. */
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

/* The program has loaded NVIDIA's libcudart instead of GVirtuS's. */
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

/* False for functions of the C library. Constructors call these too, some before those of libcudart
 * have run, and to open libcudart would run them. */
static bool is_of_cuda(const char *symbol)
{
    return !strncmp(symbol, "cu", 2) || !strncmp(symbol, "__cuda", 6);
}

/* Warns if the libcudart that has this cudaMalloc is NVIDIA's. */
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

/* Logs that there is no libcudart at all, if it is a function of the runtime's that is missing. */
static void tell_of_none(const char *symbol)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (!strncmp(symbol, "cuda", 4) && !atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN,
                "%s returns cudaErrorNotSupported, and so do CUDA's other calls: the program has "
                "loaded no libcudart.so of GVirtuS's, through which they reach the back end; link "
                "it with one (nvcc -cudart shared), with its folder in LD_LIBRARY_PATH",
                symbol);
}

/* Caches that a function is missing, too, since the search through all libraries takes longer than
 * the call. That answer is final only after a libcudart was loaded. */
void *ibx_frontend_next(_Atomic(void *) *known, const char *symbol)
{
    static char absent;
    static atomic_bool loaded, looked;
    void *found = atomic_load_explicit(known, memory_order_acquire);
    if (!found) {
        /* before find(symbol): another thread may load libcudart in between */
        if (!atomic_load(&loaded) && find("cudaMalloc"))
            atomic_store(&loaded, true);
        if (atomic_load(&loaded) && is_of_cuda(symbol) && !atomic_exchange(&looked, true))
            look_whose(find("cudaMalloc"));
        const bool lasts = atomic_load(&loaded);
        found = find(symbol);
        if (!found && lasts)
            found = &absent;
        if (!found)
            tell_of_none(symbol);
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

/* A call that waits for the stream which runs this host function would never return. */
bool ibx_frontend_forbidden(int *rc)
{
    if (ibx_frontend_unloads()) {
        *rc = CUDA_UNLOADING;
        return true;
    }
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

/* The last error of this thread that the back end does not know as this thread's. */
static _Thread_local struct ibx_frontend_error last;

/* The plugin's count of this thread's errors; 0: unknown. */
static int errors_so_far(void)
{
    int number = 0;
    return ibx_frontend_knows(IBX_FRONTEND_ERRORS, 0, &number) ? number : 0;
}

/* How many calls were answered before they were run. */
static int answered_so_far(void)
{
    int number = 0;
    return ibx_frontend_knows(IBX_FRONTEND_ANSWERED, 0, &number) ? number : 0;
}

/* A number that changes if a call fails which comes after so many were answered; 0: it is unknown,
 * since one that was answered later may fail yet. */
static int failures_after(int answered)
{
    int number = 0;
    return ibx_frontend_knows(IBX_FRONTEND_FAILURES, (unsigned)answered, &number) ? number + 1 : 0;
}

/* Notes that `last` is newer than the errors so far. */
static void note_newest(void)
{
    last.errors = errors_so_far();
    last.answered = answered_so_far();
    last.failures = failures_after(last.answered);
}

/* Whether `last`, which is set, is so still. `now` is the count of errors that there may be, before
 * the back end was asked for its own; 0: unknown. A launch that has succeeded since changes only
 * that count. */
static bool is_newest(int now)
{
    return (now && now == last.errors) ||
           (last.failures && failures_after(last.answered) == last.failures);
}

int ibx_frontend_fail(int rc)
{
    last.code = rc;
    note_newest();
    return rc;
}

/* The newer of two errors: `last` and the back end's. If it is unknown, the back end's error wins.
 * The counts are read only if `last` is set, because most programs call cudaGetLastError() after
 * each launch. */
static int newer(int theirs, int now)
{
    return last.code && (!theirs || is_newest(now)) ? last.code : theirs;
}

int cudaGetLastError(void)
{
    const bool none = ibx_frontend_knows(IBX_FRONTEND_NO_ERROR, 0, NULL);
    const int now = last.code ? errors_so_far() : 0;
    const int rc = newer(none ? CUDA_SUCCESS : ASK_NEXT(cudaGetLastError), now);
    last.code = CUDA_SUCCESS;
    return rc;
}

int cudaPeekAtLastError(void)
{
    const bool none = ibx_frontend_knows(IBX_FRONTEND_NO_ERROR, 0, NULL);
    const int now = last.code ? errors_so_far() : 0;
    return newer(none ? CUDA_SUCCESS : ASK_NEXT(cudaPeekAtLastError), now);
}

/* ------------------------------------------------------------------- the driver's API */

static _Thread_local unsigned driven;           /* nested calls of the driver's API */
static _Thread_local unsigned asks;             /* nested ibx_frontend_asks() */
static _Thread_local enum ibx_frontend_use use; /* since the last ibx_frontend_take_use() */
static atomic_bool runtime_ever, begun_ever;

void ibx_frontend_runtime_used(void)
{
    const enum ibx_frontend_use now = asks ? IBX_RUNTIME_ASKED : IBX_RUNTIME_USED;
    if (driven || use >= now)
        return;
    use = now;
    atomic_store_explicit(&begun_ever, true, memory_order_relaxed);
    if (now == IBX_RUNTIME_USED)
        atomic_store_explicit(&runtime_ever, true, memory_order_relaxed);
}

void ibx_frontend_asks(void)
{
    asks++;
    ibx_frontend_runtime_used();
}

void ibx_frontend_asked(void)
{
    asks--;
}

enum ibx_frontend_use ibx_frontend_take_use(void)
{
    const enum ibx_frontend_use used = use;
    use = IBX_RUNTIME_UNUSED;
    return used;
}

bool ibx_frontend_runtime_ever(void)
{
    return atomic_load(&runtime_ever);
}

bool ibx_frontend_begun_ever(void)
{
    return atomic_load_explicit(&begun_ever, memory_order_relaxed);
}

/* There the driver begins once more, and what the thread has called are calls of its parent. */
static void not_begun(void)
{
    atomic_store(&begun_ever, false);
    use = IBX_RUNTIME_UNUSED;
}

__attribute__((constructor)) static void watch_children(void)
{
    pthread_atfork(NULL, NULL, not_begun);
}

/* The count of errors at which this thread was known to have none. To ask for that sends what waits
 * to be sent, so it is asked once for each count. */
static _Thread_local int clean_at;

static bool has_none(void)
{
    const int now = errors_so_far();
    if (last.code || !ibx_frontend_plugin())
        return false;
    if (now != clean_at && ibx_frontend_knows(IBX_FRONTEND_NO_ERROR, 0, NULL))
        clean_at = now;
    return now == clean_at;
}

/* Takes the last error from the back end, where one of the driver's would replace it. One that
 * stays there is returned by every call, so it needs nobody to keep it. Returns whether the back
 * end has none from then on. */
static bool take_over(void)
{
    static _Thread_local int stays_at; /* the count of errors at which there was one that stays */
    const int now = errors_so_far();
    if (!now || now == stays_at)
        return false;
    const int theirs = newer(CALL_NEXT(cudaGetLastError), now);
    const bool none = !theirs || !CALL_NEXT(cudaGetLastError);
    last.code = none ? theirs : last.code;
    note_newest();
    stays_at = none ? 0 : last.errors;
    clean_at = none ? last.errors : clean_at;
    return none;
}

void ibx_frontend_drives(struct ibx_frontend_errors *before)
{
    driven++;
    before->none = has_none();
    before->known = before->none || ibx_frontend_knows(IBX_FRONTEND_NONE_KNOWN, 0, NULL);
    if (!before->known)
        before->none = take_over();
    before->last = last;
    before->newest = last.code && is_newest(errors_so_far());
}

/* Whether an error in the back end can only be that of the driver's call that has just failed: its
 * reply came after those of all calls before it. */
static bool is_drivers(const struct ibx_frontend_errors *before)
{
    return before->none || (before->known && ibx_frontend_knows(IBX_FRONTEND_NONE_LATE, 0, NULL));
}

/* The error of a launch that was under way when the driver's call was made: the back end, which
 * keeps one error, has the call's in its place. 0: none, or it is not known. */
static int launch_failure(const struct ibx_frontend_errors *before)
{
    int error = 0;
    const bool one = !before->last.code && before->known;
    return one && ibx_frontend_knows(IBX_FRONTEND_LAUNCH_FAILURE, 0, &error) ? error : 0;
}

/* Removes the error that a failed call has left in the back end. */
void ibx_frontend_drove(const struct ibx_frontend_errors *before, bool failed)
{
    int launch = 0;
    if (failed && errors_so_far() != clean_at &&
        (is_drivers(before) || (launch = launch_failure(before)))) {
        CALL_NEXT(cudaGetLastError);
        clean_at = errors_so_far();
    }
    /* The counts have those of the driver's as well. A launch that was under way may have left an
     * error that is newer than `last`: then the counts stay as they were. */
    if (last.code != before->last.code || (last.code && failed)) {
        last = before->last;
        if (before->newest)
            note_newest();
    }
    if (launch)
        ibx_frontend_fail(launch);
    driven--;
}
