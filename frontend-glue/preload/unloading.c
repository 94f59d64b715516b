/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * exit(3) in a signal handler that has interrupted its thread in a call of CUDA. The thread may
 * have any lock of this library there, of the plugin or of GVirtuS, and nobody releases it any
 * more: whatever the end of the process, or a destructor of the program, does with that lock would
 * wait for ever. So such a thread takes no lock of this library from then on, and its calls return
 * cudaErrorCudartUnloading, as they do natively once the runtime is unloaded.
 *
 * The linker (--wrap) has this library call the functions below in place of the C library's, so
 * that no lock can be missed. They count, without a system call, what the thread has or waits for.
 * Those that take a lock end in a jump: what stands behind them, as a sanitizer does, still sees
 * who has called. So this file has flags of its own.
 */
#include "frontend-glue/preload/preload.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

/* A handler that leaves locks and calls by longjmp(3) leaves the locks locked, and the calls half
 * made: they count on, because the end of the process may use neither. */
_Thread_local struct ibx_frontend_thread ibx_frontend_thread;

/* What the linker calls the C library's function, and what it has this library call. */
#define WRAPPED(function, ...)                                                                     \
    int __real_##function(__VA_ARGS__);                                                            \
    int __wrap_##function(__VA_ARGS__)
WRAPPED(pthread_mutex_lock, pthread_mutex_t *);
WRAPPED(pthread_mutex_trylock, pthread_mutex_t *);
WRAPPED(pthread_mutex_clocklock, pthread_mutex_t *, clockid_t, const struct timespec *);
WRAPPED(pthread_mutex_unlock, pthread_mutex_t *);
WRAPPED(pthread_rwlock_rdlock, pthread_rwlock_t *);
WRAPPED(pthread_rwlock_wrlock, pthread_rwlock_t *);
WRAPPED(pthread_rwlock_clockwrlock, pthread_rwlock_t *, clockid_t, const struct timespec *);
WRAPPED(pthread_rwlock_unlock, pthread_rwlock_t *);

void ibx_frontend_goes_inside(void)
{
    ibx_frontend_thread.inside++;
}

void ibx_frontend_comes_outside(void)
{
    struct ibx_frontend_thread *thread = &ibx_frontend_thread;
    thread->inside -= thread->inside > 0;
}

/* The count is never too low in a handler: it changes before the lock is taken, and after that is
 * released. False: the lock is left alone. */
static inline bool begin_lock(void)
{
    struct ibx_frontend_thread *thread = &ibx_frontend_thread;
    if (thread->unloads)
        return false;
    thread->inside++;
    return true;
}

static inline int end_try(int rc)
{
    if (rc)
        ibx_frontend_comes_outside();
    return rc;
}

static inline int end_unlock(int rc)
{
    ibx_frontend_comes_outside();
    return rc;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    return begin_lock() ? __real_pthread_mutex_lock(mutex) : 0;
}

int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex)
{
    return begin_lock() ? end_try(__real_pthread_mutex_trylock(mutex)) : EBUSY;
}

int __wrap_pthread_mutex_clocklock(pthread_mutex_t *mutex, clockid_t clock,
                                   const struct timespec *until)
{
    return begin_lock() ? end_try(__real_pthread_mutex_clocklock(mutex, clock, until)) : ETIMEDOUT;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    return ibx_frontend_unloads() ? 0 : end_unlock(__real_pthread_mutex_unlock(mutex));
}

/* A handler may interrupt a search of a list, and a destructor then wants to change that list. */
int __wrap_pthread_rwlock_rdlock(pthread_rwlock_t *lock)
{
    return begin_lock() ? __real_pthread_rwlock_rdlock(lock) : 0;
}

int __wrap_pthread_rwlock_wrlock(pthread_rwlock_t *lock)
{
    return begin_lock() ? __real_pthread_rwlock_wrlock(lock) : 0;
}

int __wrap_pthread_rwlock_clockwrlock(pthread_rwlock_t *lock, clockid_t clock,
                                      const struct timespec *until)
{
    return begin_lock() ? end_try(__real_pthread_rwlock_clockwrlock(lock, clock, until))
                        : ETIMEDOUT;
}

int __wrap_pthread_rwlock_unlock(pthread_rwlock_t *lock)
{
    return ibx_frontend_unloads() ? 0 : end_unlock(__real_pthread_rwlock_unlock(lock));
}

/* ------------------------------------------------------------------------------- exit(3) */

void ibx_frontend_exits(void)
{
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    const bool in_plugin = calls && calls->exits();
    struct ibx_frontend_thread *thread = &ibx_frontend_thread;
    thread->unloads = thread->unloads || in_plugin || thread->inside;
}

/* The C library's functions. */
static void (*next_exit)(int status);
static void (*next_quick_exit)(int status);

/* At the start, since a handler may not do that. Constructors of other libraries run before, and
 * may call exit(3). */
static void find_next(void)
{
    if (next_exit)
        return;
    *(void **)&next_exit = dlsym(RTLD_NEXT, "exit");
    *(void **)&next_quick_exit = dlsym(RTLD_NEXT, "quick_exit");
}

/* Ends the process if the C library has no such function. */
static _Noreturn void end_by(void (*const *next)(int status), int status)
{
    ibx_frontend_exits();
    find_next();
    if (*next)
        (*next)(status);
    _exit(status);
}

/* Called before everything that exit(3) calls: destructors of the program may run before any
 * function that this library can register. */
__attribute__((visibility("default"))) _Noreturn void exit(int status)
{
    end_by(&next_exit, status);
}

__attribute__((visibility("default"))) _Noreturn void quick_exit(int status)
{
    end_by(&next_quick_exit, status);
}

/* What a child's only thread has interrupted belongs to the parent: the other functions that are
 * registered for forks release or begin anew the locks that it had. */
static void in_child(void)
{
    ibx_frontend_thread.inside = 0;
}

/* Runs before this library's other constructors, so that in_child() runs before their functions. */
__attribute__((constructor(101))) static void begin(void)
{
    find_next();
    pthread_atfork(NULL, NULL, in_child);
}
