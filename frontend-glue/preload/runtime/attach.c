/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What begins in the process when the plugin attaches. */
#include "frontend-glue/preload/kernels/kernels.h"
#include "frontend-glue/preload/memory/managed.h"

#include <dlfcn.h>
#include <pthread.h>

/* G5's front end takes one lock, gFrontendMutex, in each call, to look up the thread's connection
 * in a tree. If another thread holds it at a fork, the child would wait for it for ever: so the
 * child initializes it again. The tree is consistent then, since it changes only while a thread
 * connects, and a fork waits for that. */
static _Atomic(void *) their_lock;

static void find_their_lock(void)
{
    static _Atomic(void *) found;
    void *lock = ibx_frontend_next(&found, "gFrontendMutex");
    const ElfW(Sym) *symbol = NULL;
    Dl_info info;
    /* A std::mutex, which sanitizers make larger. */
    if (lock && dladdr1(lock, &info, (void **)(void *)&symbol, RTLD_DL_SYMENT) && symbol &&
        info.dli_saddr == lock && symbol->st_size >= sizeof(pthread_mutex_t))
        atomic_store(&their_lock, lock);
}

static void in_child(void)
{
    pthread_mutex_t *theirs = atomic_load(&their_lock);
    if (theirs)
        pthread_mutex_init(theirs, NULL);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

/* GVirtuS's calls use Frontend::Prepare(), which searches the tree without the lock, also while
 * another thread connects and changes it: programs crashed there. This replacement takes the lock.
 */
#define PREPARE "_ZN7gvirtus8frontend8Frontend7PrepareEv"
__attribute__((visibility("default"))) void ibx_frontend_prepare(void *front_end) __asm__(PREPARE);

void ibx_frontend_prepare(void *front_end)
{
    static _Atomic(void *) found;
    void (*next)(void *) = NULL;
    pthread_mutex_t *theirs = atomic_load(&their_lock);
    *(void **)&next = ibx_frontend_next(&found, PREPARE);
    /* A signal handler that touches managed memory would wait for a thread that needs this lock. */
    const bool held = theirs && ibx_managed_any() && ibx_managed_handlers.hold();
    if (theirs)
        pthread_mutex_lock(theirs);
    if (next)
        next(front_end);
    if (theirs)
        pthread_mutex_unlock(theirs);
    if (held)
        ibx_managed_handlers.let();
}

/* Runs before main(): GVirtuS connects in a static initializer. */
static void begin_process(void)
{
    ibx_frontend_visible_devices();
    ibx_frontend_hide_local_gpus();
    ibx_frontend_kernels_prepare();
}

void ibx_frontend_attach(const struct ibx_frontend_calls *calls)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const bool first = ibx_frontend_plugin_is(calls);
    pthread_once(&once, find_their_lock);
    if (first)
        begin_process();
}
